"""Public: the ledger, which tracks what all runs on the same people spend together.

It is one SQLite file with one table, an append-only chain of sealed lines
(`jdpack.storage.hash_chain`), or the same in a PostgreSQL database (`jdpack.ledger.postgres`). Each
data set has an entry with its total. Each run has an entry when it reserves its budget, one when it
begins to post, and one when it finishes, or when it is cancelled before it began. Every use
recomputes all sums from the chain, by the rules of `jdpack.ledger.balance`. Each run under way also
has a small file beside the ledger, with the hash of every line that it posts
(`jdpack.ledger.progress`); in PostgreSQL these are in a table.

A reservation is one transaction: when processes race for the rest of a budget, exactly as many win
as fit. If a process is killed, its entry is there completely or not at all; the database rolls back
any leftovers.

Formal guarantees. Once a line with noise may be public, its run's reservation is never given back,
and the run resumes from that line or not at all:
- `post` puts the hash of a line on disk before the line is public, and only if the last hash is
  that of the line before. If two processes work on one run, or on copies of its folder, at most one
  gets its line noted; the other is refused before its line is public.
- `reserve` accepts only a folder whose last line has the last hash. A folder from a backup lacks
  that line, or has another in its place.
- The first `post` enters `begin`, after which the rules allow no `cancel`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from jdpack.errors import BudgetError, LedgerError
from jdpack.ledger.balance import Balance, check
from jdpack.ledger.entries import Entry, Kind, LedgerState, Run, check_name
from jdpack.ledger.postgres import PostgresLedger, PostgresProgress, is_postgres, retried
from jdpack.ledger.progress import ProgressFile
from jdpack.ledger.sqlite_file import SqliteLedger
from jdpack.market.market import Neighbours
from jdpack.privacy.accounting import Accounting, Budget

_AGAIN = "`jdpack resume OUT --reserve-again` charges the run's budget a second time"


class LedgerStore(Protocol):
    """Where a ledger is kept. Its text is for messages."""

    def make(self) -> None:
        """Make an empty ledger, if there is none."""

    def transaction(self, *, write: bool) -> contextlib.AbstractContextManager[Any]:
        """One transaction, or LedgerError. If it succeeds, it is on disk."""

    def begin(self, db: Any) -> LedgerState:
        """Read all entries; make the tables first if there are none."""

    def read(self, db: Any) -> LedgerState:
        """Read all entries, and check each."""

    def insert(
        self, db: Any, state: LedgerState, kind: Kind, dataset: str, data: Mapping[str, Any]
    ) -> None:
        """Append an entry, if the rules allow it."""

    def progress(self, run: str) -> ProgressFile | PostgresProgress:
        """How far a run has come."""


@dataclass(frozen=True)
class Verified:
    """What `Ledger.verify` found. Everything is in order."""

    entries: int
    """How many entries there are."""
    datasets: int
    """How many data sets have a total."""
    runs: int
    """How many runs count: finished, or reserved and not cancelled."""
    open: int
    """How many of them are not finished."""
    head: str
    """The hash of the last entry. Kept elsewhere, it shows later that nothing before it changed."""
    since: int | None
    """How many entries follow the one with the given head."""


class Ledger:
    """The privacy budgets of data sets, over all runs. Make one with `create`, or `open` it.

    Every use opens the file again and checks all of it, so threads can share a Ledger, and it
    survives forks.

    Args:
        path: the ledger's file, or the address of a PostgreSQL database.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: str | Path = path if is_postgres(path) else Path(path)

    @classmethod
    @retried
    def create(
        cls,
        path: str | Path,
        dataset: str,
        *,
        epsilon: float,
        delta: float,
        neighbours: Neighbours = Neighbours.REPLACE_ONE,
        accounting: Accounting = "gdp",
        grant: str | None = None,
    ) -> Ledger:
        """Enter a data set and its total, in a new file or in an existing ledger.

        Args:
            grant: in PostgreSQL, a role that may then read the ledger and add to it, and no more.
            accounting: "gdp" adds up Gaussian noise exactly; "zcdp" also takes runs with truncated
                Laplace noise, but fewer runs overall.
        """
        check_name("data set", dataset)
        balance = Balance.of(dataset, epsilon, delta, Neighbours(neighbours), accounting)
        ledger = cls(path)
        store = ledger._store
        if grant is not None and not isinstance(store, PostgresLedger):
            raise LedgerError(
                f"a file has no roles, so nothing can be granted to {grant!r}",
                "whoever may write to the file may use it",
            )
        store.make()
        with store.transaction(write=True) as db:
            state = store.begin(db)
            store.insert(
                db,
                state,
                "dataset",
                dataset,
                {
                    "neighbours": balance.neighbours.value,
                    "epsilon": balance.epsilon,
                    "delta": balance.delta,
                    "rho_limit": float(balance.rho_limit),
                    "delta_limit": float(balance.delta_limit),
                    **({"accounting": "gdp"} if balance.accounting == "gdp" else {}),
                },
            )
            if isinstance(store, PostgresLedger) and grant is not None:
                store.grant(db, grant)
        return ledger

    @classmethod
    def open(cls, path: str | Path) -> Ledger:
        """Open the ledger in a file, and check it."""
        ledger = cls(path)
        ledger._state()
        return ledger

    @retried
    def reserve(
        self,
        dataset: str,
        run: str,
        budget: Budget,
        neighbours: Neighbours,
        *,
        posted: Sequence[str] = (),
        drawn: bool = False,
        again: bool = False,
    ) -> Balance:
        """Take a run's whole budget from a data set, or raise and take nothing.

        The same run again, with the same amounts, takes nothing more: it resumes. It may resume
        only from where the ledger last saw it, so a folder put back from a backup is refused.

        Args:
            posted: the hashes of the billboard lines that hold noise, in order, as they are in the
                run's folder.
            drawn: whether the last of them is only in the run's journal. Then the ledger may know
                that one, or the one before.
            again: if the ledger is behind the run because the ledger itself was put back from a
                backup, reserve the budget a second time instead of refusing.
        """
        check_name("run", run)
        check(budget)
        with self._store.transaction(write=True) as db:
            state = self._store.read(db)
            total = state.balance(dataset)
            if neighbours is not total.neighbours:
                raise BudgetError(
                    f"a run for {neighbours.value} neighbours does not fit data set {dataset!r}, "
                    f"whose total is for {total.neighbours.value} neighbours",
                    f"use a data set with a total for {neighbours.value}; nothing was spent",
                )
            known = state.runs.get(run)
            lines, forgot = ["", *posted], False
            amounts = {"run": run, **budget.to_dict()}
            if known is None or known.state == "cancelled":
                forgot = bool(posted)
                if forgot and not again:
                    raise self._behind(run, "knows nothing of")
                self._store.insert(db, state, "reserve", dataset, amounts)
            elif (known.dataset, known.budget) != (dataset, budget):
                raise LedgerError(
                    f"run {run!r} is already in the ledger, with another budget or data set",
                    "a run keeps what it reserved; nothing more was spent",
                )
            elif known.state == "finished":
                if known.billboard != lines[-1]:
                    raise LedgerError(
                        f"run {run!r} is finished, and this is not its final billboard",
                        "put back the final one: noise is never drawn again for a posted line",
                    )
            else:
                head = self._progress(run).head if known.begun else ""
                if head is not None and head not in lines:
                    raise _stale(run)
                forgot = head not in lines[-2 if drawn else -1 :] or not known.followed
                if forgot and not again:
                    raise self._lost(run) if head is None else self._behind(run, "is behind")
                if forgot:
                    self._store.insert(db, state, "again", dataset, amounts)
            if forgot and posted and not state.run(run).begun:
                self._store.insert(db, state, "begin", dataset, {"run": run})
            balance = state.balance(dataset)
        if forgot and posted:  # now that it is charged
            self._progress(run).note(lines[-1], first=True)
        return balance

    def held(self, run: str) -> contextlib.AbstractContextManager[None]:
        """Hold a run while working on it; refuse if another process holds it, in any folder."""
        return self._progress(run).held()

    @retried
    def post(self, run: str, before: str, head: str) -> None:
        """Note that a line of a run is about to be public; the note is on disk when this returns.

        The caller must know the line before. So if two processes work on copies of one run, the
        second is refused before its line is public.

        Args:
            before: the hash of the run's last line with noise; empty if this is the first.
            head: the hash of the line.
        """
        progress = self._progress(run)
        last = progress.head
        if last is None or not before:
            with self._store.transaction(write=True) as db:
                state = self._store.read(db)
                known = state.run(run)
                if (known.state, known.billboard) == ("finished", head):
                    return  # a process was killed while it posted this last line
                if not before and not known.begun:
                    self._store.insert(db, state, "begin", known.dataset, {"run": run})
                    progress.note(head, first=True)  # before the entry is committed
                    return
        if last not in (before, head):
            raise _stale(run)
        if last == head:  # by a process that may have been killed before the disk had it
            progress.sync()
        else:
            progress.note(head)

    @retried
    def cancel(self, run: str) -> None:
        """Give back what a run reserved; it must have posted nothing."""
        with self._store.transaction(write=True) as db:
            state = self._store.read(db)
            known = state.run(run)
            if not known.followed:
                raise LedgerError(
                    f"run {run!r} was reserved by an earlier version, which did not note how far "
                    "the run came",
                    "what may be posted stays spent",
                )
            if known.state != "cancelled":
                self._store.insert(db, state, "cancel", known.dataset, {"run": run})

    @retried
    def finish(self, run: str, billboard: str) -> Balance:
        """Note that a run is over, with the hash of its billboard's last line."""
        progress = self._progress(run)
        with self._store.transaction(write=True) as db:
            state = self._store.read(db)
            known = state.run(run)
            if (known.state, known.billboard) != ("finished", billboard):
                if known.state == "open" and known.begun and progress.head != billboard:
                    raise LedgerError(
                        f"run {run!r} has posted more than this billboard, or something else",
                        "finish it with its newest state",
                    )
                self._store.insert(
                    db, state, "finish", known.dataset, {"run": run, "billboard": billboard}
                )
            balance = state.balance(known.dataset)
        progress.remove()
        return balance

    @property
    def runs(self) -> Mapping[str, Run]:
        """What every run reserved, and what became of it."""
        return self._state().runs

    def balance(self, dataset: str) -> Balance:
        """How much of a data set's budget is spent, and how much is left."""
        return self._state().balance(dataset)

    @property
    def datasets(self) -> list[str]:
        """The names of all data sets, oldest first."""
        return list(self._state().balances)

    @property
    def head(self) -> str:
        """The hash of the last entry, which depends on all of them."""
        return self._state().head

    def entries(self, dataset: str | None = None) -> list[Entry]:
        """All entries, or those of one data set."""
        state = self._state()
        if dataset is not None:
            state.balance(dataset)
        return [e for e in state.entries if dataset in (None, e.dataset)]

    def verify(self, head: str | None = None) -> Verified:
        """Check everything; given an earlier head, also check that nothing up to it has changed."""
        state = self._state()
        since = None
        if head is not None:
            places = [e.number for e in state.entries if e.hash == head]
            if not places:
                raise LedgerError(
                    f"ledger {str(self._store)!r} has no entry with hash {head!r}",
                    "it was rewritten or rolled back since that hash was noted, or is another one",
                )
            since = len(state.entries) - places[0]
        states = [run.state for run in state.runs.values()]
        return Verified(
            entries=len(state.entries),
            datasets=len(state.balances),
            runs=len(states) - states.count("cancelled"),
            open=states.count("open"),
            head=state.head,
            since=since,
        )

    def _state(self) -> LedgerState:
        with self._store.transaction(write=False) as db:
            return self._store.read(db)

    @property
    def _store(self) -> LedgerStore:
        return PostgresLedger(self.path) if isinstance(self.path, str) else SqliteLedger(self.path)

    def _progress(self, run: str) -> ProgressFile | PostgresProgress:
        return self._store.progress(run)

    def _behind(self, run: str, how: str) -> LedgerError:
        return LedgerError(
            f"ledger {str(self._store)!r} {how} run {run!r}, which has already posted",
            "it is another ledger, or it was put back from a backup: put back the newest copy; if "
            f"that is lost, {_AGAIN}",
        )

    def _lost(self, run: str) -> LedgerError:
        return LedgerError(
            f"{str(self._progress(run))!r} is missing, which says how far run {run!r} came",
            f"it belongs beside the ledger: move it there too; if it is lost, {_AGAIN}",
        )


def _stale(run: str) -> LedgerError:
    return LedgerError(
        f"run {run!r} has gone further than this folder, which is an earlier copy of it",
        "put back its newest state; if that is lost, another run spends another budget: noise is "
        "never drawn again for a line that may be public",
    )
