"""Public: the account that pays for a run: a data set in a ledger."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdpack.billboard.board import Billboard
from jdpack.billboard.file import Note
from jdpack.billboard.lines import Header
from jdpack.errors import BudgetError, LedgerError
from jdpack.ledger.balance import Balance
from jdpack.ledger.ledger import Ledger
from jdpack.ledger.postgres import is_postgres
from jdpack.storage.address import shown
from jdpack.storage.hash_chain import hash_of


@dataclass(frozen=True)
class Account:
    """A data set in a ledger. The ledger knows a run by the commitment in its header."""

    ledger: str
    dataset: str

    @classmethod
    def of(cls, ledger: str | Path | None, dataset: str | None) -> Account | None:
        """The account that two arguments name together; None if neither is given."""
        if ledger is None and dataset is None:
            return None
        if ledger is None or not isinstance(ledger, str | Path):
            raise LedgerError(f"data set {dataset!r} needs the ledger that it is in")
        if not isinstance(dataset, str):
            raise LedgerError(
                f"ledger {shown(str(ledger))!r} needs the name of a data set, not {dataset!r}",
                "`jdpack ledger show` lists them",
            )
        return cls.at(ledger, dataset)

    @classmethod
    def at(cls, ledger: str | Path, dataset: str) -> Account:
        """The account of a data set, which must be in the ledger."""
        place = str(ledger) if is_postgres(ledger) else os.path.abspath(ledger)
        account = cls(place, dataset)
        account._ledger.balance(dataset)
        return account

    def held(self, header: Header) -> contextlib.AbstractContextManager[None]:
        """Hold a run; refuse if another process holds it, in this folder or in a copy."""
        return self._ledger.held(header.commitment)

    def reserve(self, header: Header, board: Billboard | None, again: bool = False) -> None:
        """Reserve the whole budget of a run, or refuse it. A resumed run reserves nothing more.

        Args:
            header: the header of the run.
            board: what the run has posted so far; None if nothing.
            again: reserve a second time if the ledger has forgotten how far the run has come.
        """
        if not header.private:
            raise BudgetError(
                "a run with seeded noise, or no noise, protects nobody and fits no budget",
                "make it without a ledger, on records that are not private",
            )
        self._ledger.reserve(
            self.dataset,
            header.commitment,
            header.budget,
            header.market.neighbours,
            posted=() if board is None else board.noisy,
            drawn=board is not None and board.drawn,
            again=again,
        )

    def note(self, header: Header, board: Billboard | None) -> Note:
        """A function that tells the ledger of each further line before the line is public."""
        lines = ["", *(board.noisy if board is not None else ())]
        last = lines[-2] if board is not None and board.drawn else lines[-1]

        def post(head: str) -> None:
            nonlocal last
            self._ledger.post(header.commitment, last, head)
            last = head

        return post

    def cancel(self, header: Header) -> None:
        """Give back what a run reserved, if anything. It must have posted nothing."""
        with contextlib.suppress(LedgerError):  # what cannot be given back stays spent
            self._ledger.cancel(header.commitment)

    def owes(self, header: Header) -> bool:
        """Whether the ledger holds something for a run; True if the ledger cannot be read."""
        try:
            runs = self._ledger.runs
        except LedgerError:
            return True
        return header.commitment in runs and runs[header.commitment].state != "cancelled"

    def finish(self, board: Billboard, followed: bool) -> Balance:
        """Note that a run is complete, with the head of its billboard.

        Args:
            followed: whether the ledger was told of every line, or only of the first.
        """
        run = board.header.commitment
        if not followed:
            self._ledger.post(run, hash_of(board.first_line), board.head)
        return self._ledger.finish(run, board.head)

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.ledger)

    def check(self, board: Billboard) -> None:
        """Refuse a finished billboard that is not the one in the ledger."""
        known = self._ledger.runs.get(board.header.commitment)
        paid = known is not None and known.budget == board.header.budget
        if known is None or not paid or known.dataset != self.dataset:
            raise LedgerError(
                f"ledger {shown(self.ledger)!r} did not reserve the budget of this run",
                "this is another ledger, or it was rolled back",
            )
        if (known.state, known.billboard) != ("finished", board.head):
            other = ", with another billboard" if known.state == "finished" else ""
            raise LedgerError(
                f"ledger {shown(self.ledger)!r} has this run as {known.state}{other}",
                "`jdpack resume` finishes a run",
            )

    def to_dict(self) -> dict[str, str]:
        return {"ledger": self.ledger, "dataset": self.dataset}

    @classmethod
    def from_dict(
        cls, data: dict[str, Any] | None, moved: str | Path | None = None
    ) -> Account | None:
        """The account that a run file names; `moved` is where its ledger is now."""
        match data:
            case None if moved is not None:
                raise LedgerError("this run has no ledger", "it started without one")
            case None:
                return None
            case {"ledger": str(ledger), "dataset": str(dataset)} if len(data) == 2:
                return cls(ledger, dataset) if moved is None else cls.at(moved, dataset)
        raise LedgerError(f"account {data!r} does not name a data set in a ledger")
