"""Public: the ledger, what all runs on the same people spend together.

One SQLite file. Its one table is a chain of sealed lines (`jdpack.chain`), which are only ever
appended: a data set with its total, and for every run a reservation, every time that it was
resumed, then that it finished, or that it was cancelled before anything was posted. All sums are
recomputed from the chain at every use, by the rules of `jdpack.ledger.balance`.

A reservation is one transaction: of processes that race for the rest of a budget, as many win as
fit. Killed at any moment, a process leaves the entry whole or not at all; a journal that it leaves
behind is SQLite's, which rolls it back at the next use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from jdpack.accounting import Budget
from jdpack.errors import BudgetError, LedgerError
from jdpack.ledger.balance import Balance, check
from jdpack.ledger.entries import Entry, Run, State, check_name
from jdpack.ledger.file import begin, insert, make, read, transaction
from jdpack.market import Neighbours


@dataclass(frozen=True)
class Verified:
    """What `Ledger.verify` found: all of it in order."""

    entries: int
    """How many lines there are."""
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

    Every use opens the file anew and checks all of it, so a Ledger can be shared by threads, and
    it outlives forks.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls,
        path: str | Path,
        dataset: str,
        *,
        epsilon: float,
        delta: float,
        neighbours: Neighbours = Neighbours.REPLACE_ONE,
    ) -> Ledger:
        """Enter a data set and its total, in a new file or one that has others already."""
        check_name("data set", dataset)
        balance = Balance.of(dataset, epsilon, delta, Neighbours(neighbours))
        ledger = cls(Path(path))
        make(ledger.path)
        with transaction(ledger.path, write=True) as db:
            state = begin(db)
            insert(
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
                },
            )
        return ledger

    @classmethod
    def open(cls, path: str | Path) -> Ledger:
        """The ledger in a file, after checking it."""
        ledger = cls(Path(path))
        ledger._state()
        return ledger

    def reserve(
        self,
        dataset: str,
        run: str,
        budget: Budget,
        neighbours: Neighbours,
        *,
        token: str = "",
        earlier: Collection[str] = (),
        posted: bool = False,
        billboard: str = "",
    ) -> Balance:
        """Take a run's whole budget from a data set, or raise and take nothing.

        The same run again, with the same amounts, takes nothing more: it goes on. It does so under
        a new `token`, and only for who knows the one before (`earlier`): a copy of the run from
        before it went on would draw noise again. One that is finished goes on from its end only,
        the `billboard` whose last line has that hash.

        Args:
            token: a secret of whoever goes on with the run from here, in hexadecimal.
            earlier: the tokens of this run before.
            posted: whether the run has posted anything; if so, the ledger must know it.
        """
        check_name("run", run)
        check(budget)
        with transaction(self.path, write=True) as db:
            state = read(db)
            total = state.balance(dataset)
            if neighbours is not total.neighbours:
                raise BudgetError(
                    f"a run for {neighbours.value} neighbours does not fit data set {dataset!r}, "
                    f"whose total is for {total.neighbours.value} neighbours",
                    "the market says which; budgets for both do not add up; nothing was spent",
                )
            known = state.runs.get(run)
            if known is None or known.state == "cancelled":
                if posted:
                    raise LedgerError(
                        f"ledger {str(self.path)!r} knows nothing of run {run!r}, which has posted",
                        "put back the ledger that it was reserved in; if this is the one, name it: "
                        "`jdpack resume OUT --ledger FILE` reserves it anew",
                    )
                amounts = {k: float(v) for k, v in asdict(budget).items()}
                insert(db, state, "reserve", dataset, {"run": run, "token": token, **amounts})
            elif (known.dataset, known.budget) != (dataset, budget):
                raise LedgerError(
                    f"run {run!r} is in the ledger already, with another budget or data set",
                    "a run keeps what it reserved; nothing more was spent",
                )
            elif known.state == "finished":
                if known.billboard != billboard:
                    raise LedgerError(
                        f"run {run!r} is finished, and this is not its billboard at the end",
                        "put back the finished one: noise is never drawn again for a posted line",
                    )
            elif known.token != token:
                if known.token not in earlier:
                    raise LedgerError(
                        f"run {run!r} has gone on elsewhere, and this is an earlier copy of it",
                        "go on with its own folder: noise is never drawn again for a posted line",
                    )
                insert(db, state, "resume", dataset, {"run": run, "token": token})
            return state.balance(dataset)

    def cancel(self, run: str, token: str = "") -> None:
        """Give back what a run reserved, of which nothing was posted."""
        with transaction(self.path, write=True) as db:
            state = read(db)
            known = _own(state, run, token)
            if known.state != "cancelled":
                insert(db, state, "cancel", known.dataset, {"run": run})

    def finish(self, run: str, billboard: str, token: str = "") -> Balance:
        """Note that a run is over, with the hash of its billboard's last line."""
        with transaction(self.path, write=True) as db:
            state = read(db)
            known = state.run(run)
            if (known.state, known.billboard) != ("finished", billboard):
                known = _own(state, run, token)
                insert(db, state, "finish", known.dataset, {"run": run, "billboard": billboard})
            return state.balance(known.dataset)

    @property
    def runs(self) -> Mapping[str, Run]:
        """What every run reserved, and what became of it."""
        return self._state().runs

    def balance(self, dataset: str) -> Balance:
        """What of a data set's budget is spent, and what is left."""
        return self._state().balance(dataset)

    @property
    def datasets(self) -> list[str]:
        """The names of all data sets, in the order of their entries."""
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
        """Check everything; with a head noted earlier, also that nothing up to it has changed."""
        state = self._state()
        since = None
        if head is not None:
            places = [e.number for e in state.entries if e.hash == head]
            if not places:
                raise LedgerError(
                    f"ledger {str(self.path)!r} has no entry with hash {head!r}",
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

    def _state(self) -> State:
        with transaction(self.path, write=False) as db:
            return read(db)


def _own(state: State, run: str, token: str) -> Run:
    """A run, if nobody else has gone on with it."""
    known = state.run(run)
    if known.token != token:
        raise LedgerError(
            f"run {run!r} has gone on elsewhere", "what others have reserved or posted stays so"
        )
    return known
