"""Private: what a run is paid from: a data set of a ledger."""

from __future__ import annotations

import contextlib
import os
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

    def reserve(self, header: Header, board: Billboard | None) -> None:
        """Reserve the whole budget of a run, or refuse it. Again for the same run: nothing more.

        `board` is what the run has posted so far, None if nothing.
        """
        if not header.private:
            raise BudgetError(
                "a run with seeded noise, or none, protects nobody and fits no budget",
                "make it without a ledger, on records that are not private",
            )
        run, neighbours = header.commitment, header.market.neighbours
        posted = "" if board is None else board.head
        Ledger.open(self.ledger).reserve(self.dataset, run, header.budget, neighbours, posted)

    def cancel(self, header: Header) -> None:
        """Give back what was reserved, if it was, for a run of which nothing was posted."""
        with contextlib.suppress(LedgerError):  # what cannot be given back stays spent
            Ledger.open(self.ledger).cancel(header.commitment)

    def finish(self, board: Billboard) -> Balance:
        """Note that a run is complete, with the head of its billboard."""
        ledger = Ledger.open(self.ledger)
        ledger.finish(board.header.commitment, board.head)
        return ledger.balance(self.dataset)

    @classmethod
    def from_dict(cls, data: dict[str, Any] | None) -> Account | None:
        """The account that a run file names."""
        if data is None:
            return None
        try:
            return cls(**data)
        except TypeError:
            raise LedgerError(f"account {data!r} names no data set of a ledger") from None
