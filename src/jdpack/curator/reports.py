"""Private: the curator writes two reports of a run: one to publish, one to keep.

The public report is made from the billboard alone. For the curator's, the records are read again
and the allocation is computed again (`jdpack.curator.finished_run`), as in `verify_run`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdpack.billboard.board import Billboard
from jdpack.curator.decision_margins import margins
from jdpack.curator.finished_run import FinishedRun
from jdpack.curator.truth import Truth
from jdpack.engines.sharded import final
from jdpack.errors import JdpackError, LedgerError, OutputError
from jdpack.ledger.account import Account
from jdpack.ledger.ledger import Ledger
from jdpack.ledger.text import ledger_words
from jdpack.market.market import Market
from jdpack.pages.public_report import public_report
from jdpack.records.codes import is_sparse
from jdpack.records.source import Source
from jdpack.run.curator_page import More, curator_page
from jdpack.run.folder import Output
from jdpack.run.result import exact_numbers
from jdpack.run.run_file import locked
from jdpack.storage.files import write_text

SMALL = 2**24
"""If the records have at most this many numbers, the optimum is computed by default."""


@dataclass(frozen=True)
class Reports:
    """Where the reports are."""

    public: Path
    """The report to publish."""
    private: Path | None
    """None if the run is not finished, or if only the public report was wanted."""

    def to_dict(self) -> dict[str, str | None]:
        """The paths as text, for programs."""
        private = None if self.private is None else str(self.private)
        return {"public": str(self.public), "private": private}


def report_run(
    output: str | Path,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    folder: str | Path | None = None,
    public: bool = False,
    optimum: bool | None = None,
    ledger: str | Path | None = None,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Reports:
    """Write the public report of a run and the curator's, each a single file.

    Args:
        output: the folder of the run, as given to `solve`; or a billboard, for the public report.
        agents, values, demands, ids: the records, if they were given in memory or have moved.
        folder: a folder to create for the reports; if not given, they go beside the run's other
            files.
        public: write only the public report, which needs no records.
        optimum: whether the curator's report has the optimum without privacy; if not given, it has
            if the market is small and the solver is installed.
        ledger: where the run's ledger is now, if it has moved.
        threads: how many cores to use.
        progress: called with the fraction of the records that has been read.

    Formal guarantees. The public report is a function of the billboard. The curator's is
    **private**: it shows exact numbers. Nothing is released, and no budget is touched.
    """
    path = Path(output)
    alone = not path.is_dir()
    run = None if alone else Output.reopen(path)
    board = Billboard.read(path if run is None else run.billboard)
    if alone and folder is None:
        raise OutputError(
            f"{str(path)!r} is not the folder of a run, and no folder is given for its report",
            "name a folder to create (-o)",
        )
    target = run if folder is None else Output.claim(folder)
    assert target is not None
    private = None
    if run is not None and board.finished and not public:
        finished = FinishedRun.open(path)
        source = finished.source(agents, values, demands, ids, "report_run")
        private = _curators(finished, source, ledger, optimum, threads, progress)
    return _write(target, public_report(board), private, new=folder is not None)


def _write(target: Output, public: str, private: str | None, *, new: bool) -> Reports:
    found = Reports(
        target.public / "report.html", None if private is None else target.private / "report.html"
    )
    with contextlib.ExitStack() as held:
        if private is not None and not new:
            held.enter_context(locked(target.private))
        try:
            if new:
                target.folder.mkdir()
                target.public.mkdir(mode=0o755)
                if private is not None:
                    target.private.mkdir(mode=0o700)
            write_text(found.public, 0o644, public)
            if private is not None and found.private is not None:
                write_text(found.private, 0o600, private)
        except OSError as error:
            raise OutputError(
                f"cannot write to {str(target.folder)!r}: {error.strerror or error}",
                "free some space, and run again: a report spends nothing",
            ) from None
    return found


def _curators(
    run: FinishedRun,
    source: Source,
    ledger: str | Path | None,
    optimum: bool | None,
    threads: int | None,
    progress: Callable[[float], None] | None,
) -> str:
    """The curator's report, from the records of the run."""
    board, seconds = run.board, dict[str, float]()
    said = _ledger(run, ledger)
    with contextlib.ExitStack() as held:
        with _timed("Reading the records again", seconds):
            engine = held.enter_context(run.records(source, threads, progress))
        with _timed("Computing what everybody gets, and margins", seconds):
            allocation = engine.allocate(board)
            exact = exact_numbers(engine, allocation)
            found = margins(engine.shard, final(board, allocation.drop_from), board.final_prices)
    more = More(margins=found, ledger=said, seconds=seconds, **_best(source, optimum, seconds))
    return curator_page(board, exact, more)


def _best(source: Source, wanted: bool | None, seconds: dict[str, float]) -> dict[str, Any]:
    """The optimum without privacy, or why it is missing."""
    if wanted is False:
        return {"no_optimum": "it was not wanted. jdpack report --optimum computes it"}
    if wanted is None and _size(source.market) > SMALL:
        text = "the market is large, and the records must be in memory for it as they are. "
        return {"no_optimum": f"{text}jdpack report --optimum computes it all the same"}
    try:
        import jdpack.curator.optimum  # noqa: F401  (raises if its solver is not installed)

        with _timed("The optimum", seconds):
            best = Truth(source.market, source.pieces(), clamp=source.clamp).optimum()
    except JdpackError as error:
        if wanted:
            raise
        hint = f" ({error.hint})" if error.hint else ""
        return {"no_optimum": error.message + hint}
    return {"optimum": best.value, "optimum_at_most": best.bound}


def _size(market: Market) -> int:
    """The most numbers that the records can have."""
    row = 2 * market.bundle_size if is_sparse(market) else len(market.resources)
    return market.agents * market.options * (row + 1)


def _ledger(run: FinishedRun, moved: str | Path | None) -> str:
    """What the run's ledger says, in a sentence."""
    account = Account.from_dict(run.file.ledger)
    if account is None:
        if moved is not None:
            raise LedgerError("this run has no ledger", "it was begun without one")
        return ledger_words(None)
    try:
        if moved is not None:
            account = Account.at(moved, account.dataset)
        account.check(run.board)
        balance = Ledger.open(account.ledger).balance(account.dataset)
    except LedgerError as error:
        return f"it does not have this run as paid and finished: {error.message}"
    return f"this run is paid and finished in it; {ledger_words(balance)}"


@contextlib.contextmanager
def _timed(name: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start
