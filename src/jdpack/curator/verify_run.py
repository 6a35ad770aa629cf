"""Private: the curator's check of a whole run: everybody got what the billboard says.

The records are read and encoded again, and every agent's own function of the billboard is compared
with the allocation file, row by row. The file's bytes must have the hash in the run file. Loads are
summed again in exact integers. The public page must match the billboard, and the ledger must have
the run as paid and finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from jdpack.billboard.board import Billboard
from jdpack.curator.finished_run import FinishedRun
from jdpack.engines.allocation_files import system_of, tables_in
from jdpack.engines.settings import Ray, from_dict
from jdpack.engines.shard import Final, Shard, Shares
from jdpack.engines.sharded import final
from jdpack.errors import OutputError
from jdpack.ledger.account import Account
from jdpack.pages import billboard_page, public_report
from jdpack.protocol.verify import Verdict
from jdpack.records.source import Source
from jdpack.run import granted
from jdpack.run.folder import Output
from jdpack.run.result import exact_numbers
from jdpack.run.run_file import RunFile
from jdpack.storage.files import sha256

_HINT = "the allocation does not belong to this billboard: `jdpack resume` writes it again"


@dataclass(frozen=True)
class RunVerdict(Verdict):
    """The result of checking a whole run. `agents`, `winners` and `loads` are private."""

    agents: int
    """How many records were read again."""
    requests: int
    """How many requests they make."""
    winners: int
    """How many requests get something."""
    loads: tuple[float, ...]
    """The load on each resource as a fraction of its supply."""

    def to_dict(self) -> dict[str, Any]:
        curator = {
            "agents": self.agents,
            "requests": self.requests,
            "winners": self.winners,
            "loads": list(self.loads),
        }
        return {**super().to_dict(), "curator": curator}

    def _lines(self) -> Iterator[str]:
        yield from super()._lines()
        yield ""
        yield "curator only (exact, not noisy: do not publish)"
        each = f"{self.agents:,} agents"
        if self.board.header.market.requests > 1:
            each = f"{self.requests:,} requests of {each}"
        yield f"right: what each of {each} is given; {self.winners:,} get something"
        most = max(self.loads)
        if most > 1.0:  # only where nothing is repaired
            yield f"A SUPPLY IS EXCEEDED, which the market allows: a load is {100 * most:.1f}%"
        else:
            yield f"right: no supply is exceeded; the largest load is {100 * most:.1f}%"
        yield "right: the public page, and the ledger if the run has one"


def verify_run(
    output: str | Path,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    groups_of: Any = None,
    requests_of: Any = None,
    ledger: str | Path | None = None,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> RunVerdict:
    """Check a finished run, private files included; raise at the first thing that is wrong.

    Args:
        output: the folder of the run, as given to `solve`.
        agents, values, demands, ids, groups_of, requests_of: the records, if they were given in
            memory or have moved.
        ledger: where the run's ledger is now, if it has moved.
        threads: how many cores to use.
        progress: called with the fraction of the records that has been read.
    """
    run = FinishedRun.open(output)
    board = run.board
    account = Account.from_dict(run.file.ledger, ledger)
    if account is not None:
        account.check(board)
    _check_pages(run.folder, board)
    records = agents, values, demands, ids, groups_of, requests_of
    source = run.source("verify_run", records)
    with run.records(source, threads, progress) as engine:
        allocation = engine.allocate(board)
        _check_allocation(run.folder, run.file, engine.shard, final(board, allocation.drop_from))
        _check_granted(run.folder, source, lambda: engine.shares(board, allocation))
        loads = exact_numbers(engine, allocation).loads
        if max(loads) > 1.0 and board.header.repaired:
            raise OutputError(f"a supply is exceeded: {max(loads):g} times as much is given")
        counts = engine.count, engine.requests, allocation.winners
        return RunVerdict(board, run.verdict.spent, *counts, loads)


def _check_pages(folder: Output, board: Billboard) -> None:
    """Refuse public pages that do not say what the billboard says."""
    pages = {
        name: (
            partial(billboard_page.public_page, language=code),
            "`jdpack resume` writes it again",
        )
        for code, name in billboard_page.files(board.header.market).items()
    }
    pages["report.html"] = partial(public_report.public_report), "`jdpack report` writes it again"
    for name, (page, hint) in pages.items():
        path = folder.public / name
        if path.exists() and path.read_bytes() != page(board).encode():
            raise OutputError(
                f"{str(path)!r} is not the page of this billboard, as this version makes it",
                f"it was changed, or made by another version: {hint}",
            )


def _check_allocation(folder: Output, run: RunFile, shard: Shard, get: Final) -> None:
    """Refuse an allocation that is missing, or that differs in any row or byte."""
    files = _files(folder, run)
    if not files:
        raise OutputError(f"there is no allocation in {str(folder.private)!r}", _HINT)
    for some in files:
        _compare(shard.tables(get), _rows(some))
    alone = folder.private / "allocation.parquet"
    if alone.exists() and sha256(alone) != run.allocation:
        raise OutputError("the allocation has the right rows, but its bytes have changed", _HINT)


def _check_granted(folder: Output, source: Source, shares: Callable[[], Shares]) -> None:
    """Refuse a table of what is granted that differs in any row. A very long one is not written."""
    path = folder.private / granted.FILE
    if path.exists():
        file = (pyarrow.fs.LocalFileSystem(), str(path))
        _compare(granted.granted(source, shares()), _rows([file]))


def _compare(expected: Iterator[pa.Table], found: Iterator[pa.RecordBatch]) -> None:
    """Refuse an allocation that differs in any row."""
    rest, row = pa.table({}), 0
    for want in expected:
        have = [rest] if rest.num_rows else []
        while sum(t.num_rows for t in have) < want.num_rows:
            if (batch := next(found, None)) is None:
                break
            have.append(pa.Table.from_batches([batch]))
        got = pa.concat_tables(have) if have else want.slice(0, 0)
        rest, got = got.slice(want.num_rows), got.slice(0, want.num_rows)
        if got.schema.names != want.schema.names or got.schema.types != want.schema.types:
            raise OutputError(f"the allocation has columns {', '.join(got.schema.names)}", _HINT)
        if not got.equals(want):
            raise OutputError(_difference(want, got, row), _HINT)
        row += want.num_rows
    if rest.num_rows or next(found, None) is not None:
        raise OutputError(f"the allocation has more than the {row:,} rows of the records", _HINT)


def _difference(want: pa.Table, got: pa.Table, before: int) -> str:
    if got.num_rows < want.num_rows:
        return f"the allocation ends after {before + got.num_rows:,} rows"
    at = next(i for i in range(want.num_rows) if not got.slice(i, 1).equals(want.slice(i, 1)))
    is_, should = got.slice(at, 1).to_pylist()[0], want.slice(at, 1).to_pylist()[0]
    return f"row {before + at + 1:,} of the allocation is {is_}, but should be {should}"


def _files(folder: Output, run: RunFile) -> list[list[tuple[pyarrow.fs.FileSystem, str]]]:
    """The allocations in a run's output: one file, or the files of a cluster's workers in order."""
    found = []
    alone = folder.private / "allocation.parquet"
    if alone.exists():
        found.append([(pyarrow.fs.LocalFileSystem(), str(alone))])
    choice = from_dict(run.engine)
    place = choice.allocation if isinstance(choice, Ray) else None
    place = place or str((folder.private / "allocation").absolute())
    if names := tables_in(place):
        system, path = system_of(place)
        found.append([(system, f"{path}/{name}") for name in names])
    return found


def _rows(files: list[tuple[pyarrow.fs.FileSystem, str]]) -> Iterator[pa.RecordBatch]:
    for system, path in files:
        try:
            with system.open_input_file(path) as stream:
                file = pyarrow.parquet.ParquetFile(stream, page_checksum_verification=True)
                yield from file.iter_batches()
        except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
            raise OutputError(f"cannot read the allocation {path!r}: {error}", _HINT) from None
