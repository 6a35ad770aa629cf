"""Public: the exceptions that jdpack raises on purpose.

    JdpackError
    ├── MarketError      the public market is malformed or makes no sense
    ├── AgentsError      the private records do not fit the market
    ├── BudgetError      the privacy budget is malformed, or would be exceeded
    ├── BillboardError   a billboard is damaged, incomplete or of another schema
    ├── LedgerError      a ledger is damaged or missing, or lacks the entry asked for
    ├── EngineError      the machines that hold the records failed
    └── OutputError      the results cannot be written where asked

    JdpackWarning        a warning
    ├── SupplyWarning    the supply is too small for the privacy budget
    ├── BudgetWarning    the privacy budget promises little
    └── RecordWarning    an agent's own record is outside the public bounds, so it gets nothing

Each carries one sentence with the offending value and, where there is something to do about it, a
hint in the user's own terms. Raising one never leaves anything half written. When the privacy
filter refuses a release, nothing is spent.
"""

from __future__ import annotations

_SHOWN, _END = 1200, 300  # the most characters of a message, and how many of them from its end


class JdpackError(Exception):
    """Base of all errors that jdpack raises on purpose.

    Args:
        message: one sentence that says what is wrong, with the value.
        hint: what to do about it, in the user's own terms; may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = fit(message), fit(hint)
        super().__init__(self.message if not hint else f"{self.message}\nhint: {self.hint}")

    def __reduce__(self) -> tuple[type[JdpackError], tuple[str, str]]:
        return type(self), (self.message, self.hint)  # errors of other processes are pickled


class MarketError(JdpackError):
    """The public market is malformed or makes no sense."""


class AgentsError(JdpackError):
    """The private records do not fit the market. The text may quote private data: curator only."""


class BudgetError(JdpackError):
    """The privacy budget is malformed, or a release would exceed it."""


class BillboardError(JdpackError):
    """A billboard is damaged, incomplete or of another schema."""


class LedgerError(JdpackError):
    """A ledger is damaged or missing, or lacks the entry asked for."""


class EngineError(JdpackError):
    """The machines that hold the records failed. All posted lines are kept; the run can resume."""


class OutputError(JdpackError):
    """The results cannot be written where asked."""


def fit(text: str) -> str:
    """Make a text safe for a terminal, whoever wrote the values that it quotes.

    Spell out control characters, and drop the middle of a long text.
    """
    if len(text) > _SHOWN:
        text = f"{text[: _SHOWN - _END]} ... {text[-_END:]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class JdpackWarning(UserWarning):
    """Base of all warnings that jdpack gives.

    Args:
        message: one sentence that says what is wrong, with the value.
        hint: what would help.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}\nhint: {hint}")
        self.message = message
        self.hint = hint


class SupplyWarning(JdpackWarning):
    """The supply is too small for the privacy budget. `jdpack.plan` shows what would help."""


class BudgetWarning(JdpackWarning):
    """The privacy budget promises little: its epsilon or its delta is large."""


class RecordWarning(JdpackWarning):
    """An agent's own record is outside the public bounds, so the agent gets nothing.

    The text may quote the record: it is for its owner only.
    """
