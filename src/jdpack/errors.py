"""Public: the exceptions that jdpack raises on purpose.

    JdpackError
    ├── MarketError      the public market is malformed or makes no sense
    ├── AgentsError      the private records do not fit the market
    ├── BudgetError      the privacy budget is malformed, or would be exceeded
    ├── BillboardError   a billboard is damaged, incomplete or of another schema
    ├── LedgerError      a ledger is damaged, missing, or knows nothing of what is asked
    ├── EngineError      the machines that hold the records failed
    └── OutputError      the results cannot be written where asked

    JdpackWarning        a warning
    ├── SupplyWarning    the supply is too small for the privacy budget
    ├── BudgetWarning    the privacy budget promises little
    └── RecordWarning    an agent's own record is outside the public bounds, and takes nothing

Each carries one sentence with the offending value and, where we can say what to do about it,
a hint in the user's own terms. Raising one never leaves anything half written, and a refusal of
the privacy filter spends nothing.
"""

from __future__ import annotations

_SHOWN, _END = 1200, 300  # characters of a message, and of its end if it is longer


class JdpackError(Exception):
    """Base of all errors that jdpack raises on purpose.

    Args:
        message: one sentence on what is wrong, with the value in it.
        hint: what to do about it, in the user's own terms; empty if there is nothing to say.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = fit(message), fit(hint)
        super().__init__(self.message if not hint else f"{self.message}\nhint: {self.hint}")

    def __reduce__(self) -> tuple[type[JdpackError], tuple[str, str]]:
        return type(self), (self.message, self.hint)  # as it comes from another process


class MarketError(JdpackError):
    """The public market is malformed or makes no sense."""


class AgentsError(JdpackError):
    """The private records do not fit the market. The text may quote private data: curator only."""


class BudgetError(JdpackError):
    """The privacy budget is malformed, or a release would exceed it."""


class BillboardError(JdpackError):
    """A billboard is damaged, incomplete or of another schema."""


class LedgerError(JdpackError):
    """A ledger is damaged, missing, or knows nothing of what is asked."""


class EngineError(JdpackError):
    """The machines that hold the records failed. What is posted is kept, and the run can resume."""


class OutputError(JdpackError):
    """The results cannot be written where asked."""


def fit(text: str) -> str:
    """A text that is fit for a terminal, whoever wrote what it quotes.

    Characters that would steer the terminal are spelled out, and of a long text the middle goes.
    """
    if len(text) > _SHOWN:
        text = f"{text[: _SHOWN - _END]} ... {text[-_END:]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class JdpackWarning(UserWarning):
    """Base of all warnings that jdpack gives.

    Args:
        message: one sentence on what is wrong, with the value in it.
        hint: what would help.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}\nhint: {hint}")
        self.message = message
        self.hint = hint


class SupplyWarning(JdpackWarning):
    """The supply is too small for the privacy budget. `jdpack.plan` shows what would help."""


class BudgetWarning(JdpackWarning):
    """The privacy budget promises little: its epsilon is large, or its delta is."""


class RecordWarning(JdpackWarning):
    """An agent's own record is outside the public bounds. It is answered as one that takes nothing.

    The text may quote the record: it is for its owner only.
    """
