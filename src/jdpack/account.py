"""Private: what a run is paid from: a data set of a ledger."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdpack.billboard import Billboard, Header
from jdpack.errors import BudgetError, LedgerError
from jdpack.ledger import Ledger
from jdpack.ledger.balance import Balance


@dataclass(frozen=True)
class Account:
    """A data set of a ledger. A run is known there by the commitment in its header."""

    ledger: str
    dataset: str
    named: bool = False
    """Whether it was named anew for a run that goes on, which may then be entered there."""

    @classmethod
    def of(cls, ledger: str | Path | None, dataset: str | None) -> Account | None:
        """The account of two arguments, which go together; None if neither is given."""
        if ledger is None and dataset is None:
            return None
        if ledger is None or not isinstance(ledger, str | Path):
            raise LedgerError(f"data set {dataset!r} needs the ledger that it is in")
        if not isinstance(dataset, str):
            raise LedgerError(
                f"ledger {str(ledger)!r} needs the name of a data set, not {dataset!r}",
                f"`jdpack ledger show {ledger}` lists them",
            )
        account = cls(os.path.abspath(ledger), dataset)
        Ledger.open(account.ledger).balance(dataset)
        return account

    @classmethod
    def named_anew(cls, ledger: str | Path, dataset: str) -> Account:
        """The account of a run that goes on, whose ledger has moved or was put back."""
        Ledger.open(ledger).balance(dataset)
        return cls(os.path.abspath(ledger), dataset, named=True)

    def reserve(self, header: Header, tokens: Sequence[str], board: Billboard | None) -> None:
        """Reserve the whole budget of a run, or refuse it; of one that goes on, nothing more.

        Args:
            header: of the run.
            tokens: of the run so far; the last is that of whoever goes on with it now.
            board: what it has posted so far; None if nothing.
        """
        if not header.private:
            raise BudgetError(
                "a run with seeded noise, or none, protects nobody and fits no budget",
                "make it without a ledger, on records that are not private",
            )
        Ledger(Path(self.ledger)).reserve(
            self.dataset,
            header.commitment,
            header.budget,
            header.market.neighbours,
            token=tokens[-1],
            earlier=tokens[:-1],
            posted=board is not None and bool(board.releases) and not self.named,
            billboard="" if board is None else board.head,
        )

    def cancel(self, header: Header, tokens: Sequence[str]) -> None:
        """Give back what was reserved, if it was, for a run of which nothing was posted."""
        with contextlib.suppress(LedgerError):  # what cannot be given back stays spent
            Ledger(Path(self.ledger)).cancel(header.commitment, tokens[-1])

    def owes(self, header: Header) -> bool:
        """Whether the ledger holds something for a run, as far as one can tell."""
        try:
            runs = Ledger(Path(self.ledger)).runs
        except LedgerError:
            return True
        return header.commitment in runs and runs[header.commitment].state != "cancelled"

    def finish(self, board: Billboard, tokens: Sequence[str]) -> Balance:
        """Note that a run is complete, with the head of its billboard."""
        return Ledger(Path(self.ledger)).finish(board.header.commitment, board.head, tokens[-1])

    def check(self, board: Billboard) -> None:
        """Refuse a finished billboard that is not the one in the ledger."""
        known = Ledger(Path(self.ledger)).runs.get(board.header.commitment)
        paid = known is not None and known.budget == board.header.budget
        if known is None or not paid or known.dataset != self.dataset:
            raise LedgerError(
                f"ledger {self.ledger!r} did not reserve the budget of this run",
                "it is another ledger, or was rolled back",
            )
        if (known.state, known.billboard) != ("finished", board.head):
            raise LedgerError(
                f"in ledger {self.ledger!r} this run is {known.state}, and not with this billboard",
                "`jdpack resume` ends a run",
            )

    def to_dict(self) -> dict[str, str]:
        return {"ledger": self.ledger, "dataset": self.dataset}

    @classmethod
    def from_dict(cls, data: dict[str, Any] | None) -> Account | None:
        """The account that a run file names."""
        if data is None:
            return None
        match data:
            case {"ledger": str(ledger), "dataset": str(dataset)} if len(data) == 2:
                return cls(ledger, dataset)
        raise LedgerError(f"account {data!r} names no data set of a ledger")
