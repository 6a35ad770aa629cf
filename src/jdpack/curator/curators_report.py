"""Private: the curator's report of a finished run.

The records are read again and the allocation is computed again (`jdpack.curator.finished_run`), as
in `verify_run`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jdpack.curator.decision_margins import margins
from jdpack.curator.finished_run import FinishedRun
from jdpack.curator.truth import Truth
from jdpack.engines.sharded import final
from jdpack.errors import JdpackError, LedgerError
from jdpack.ledger.account import Account
from jdpack.ledger.ledger import Ledger
from jdpack.ledger.text import ledger_words
from jdpack.market.market import Market
from jdpack.records.codes import is_sparse
from jdpack.records.source import Source
from jdpack.run.curator_page import More, curator_page
from jdpack.run.result import exact_numbers

SMALL = 2**24
"""If the records have at most this many numbers, the optimum is computed by default."""


def curators_report(
    run: FinishedRun,
    source: Source,
    ledger: str | Path | None,
    optimum: bool | None,
    threads: int | None,
    progress: Callable[[float], None] | None,
) -> str:
    """The curator's report as HTML, from the records of the run."""
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
        return {"no_optimum": "it was left out. jdpack report --optimum computes it"}
    if wanted is None and _size(source.market) > SMALL:
        text = "the market is large, and the optimum needs all records in memory. "
        return {"no_optimum": f"{text}jdpack report --optimum computes it anyway"}
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
    row = 2 * market.bundle_width if is_sparse(market) else len(market.resources)
    return market.requests_at_most * market.options * (row + 1)


def _ledger(run: FinishedRun, moved: str | Path | None) -> str:
    """What the run's ledger says, in a sentence."""
    account = Account.from_dict(run.file.ledger, moved)
    if account is None:
        return ledger_words(None)
    try:
        account.check(run.board)
        balance = Ledger.open(account.ledger).balance(account.dataset)
    except LedgerError as error:
        return f"this run is not marked as paid and finished there: {error.message}"
    return f"this run is paid for and finished; {ledger_words(balance)}"


@contextlib.contextmanager
def _timed(name: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start
