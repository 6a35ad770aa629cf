"""Private: the curator's check of a whole run: what was handed out is what the billboard says.

The records are read again and encoded, and every agent's own function of the billboard is compared
with the allocation file, row by row. Loads are summed anew in exact integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from jdpack.billboard import SHARE
from jdpack.engines.choice import Place, Ray, Source, choice_of, from_dict
from jdpack.engines.combined import final
from jdpack.engines.memory import MemoryEngine
from jdpack.errors import AgentsError, BillboardError, OutputError
from jdpack.output import Output
from jdpack.runfile import RunFile
from jdpack.verify import Verdict, verify

_HINT = "the allocation is not the one of this billboard: `jdpack resume` writes it anew"


@dataclass(frozen=True)
class RunVerdict(Verdict):
    """What a whole run turned out to be. `loads` and `winners` are private."""

    agents: int
    winners: int
    loads: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        curator = {"agents": self.agents, "winners": self.winners, "loads": list(self.loads)}
        return {**super().to_dict(), "curator": curator}

    def _lines(self) -> Iterator[str]:
        yield from super()._lines()
        yield ""
        yield "curator only (exact, not noisy: do not publish)"
        yield f"right: what each of {self.agents:,} agents is given; {self.winners:,} get something"
        yield f"right: no supply is exceeded; the largest load is {100 * max(self.loads):.1f}%"


def verify_run(
    output: str | Path,
    agents: Any = None,
    *,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> RunVerdict:
    """Check a finished run with its private side; raise at the first thing that is wrong.

    Args:
        output: the folder of the run, as given to `solve`.
        agents: where the records are, if they have moved or were given in memory.
        threads: how many cores to use.
        progress: called with the share of the records that is read.
    """
    folder = Output.reopen(output)
    run = RunFile.read(folder.run_file)
    verdict = verify(folder.billboard)
    board = verdict.board
    if board.first_line != run.header:
        raise BillboardError("the billboard is not that of the run", "put back its own")
    if not board.finished:
        raise BillboardError(
            "the run is not finished, and has no allocation yet", f"`jdpack resume {output}` first"
        )
    if run.coin_seed != board.seed:
        raise BillboardError("the seed of the billboard is not that of the run file")
    records = agents if agents is not None else run.agents
    if records is None:
        raise AgentsError(
            "the records of this run were given in memory", "say where they are: agents=..."
        )
    source = Source(board.header.market, records, None, None, None, run.clamp)
    choice = choice_of(None, board.header.market, records)
    place = Place("verify", folder.folder.absolute().parent)
    engine = choice.open(source, threads, place, progress or (lambda done: None))
    assert isinstance(engine, MemoryEngine)  # or mapped: never the cluster
    if engine.digest() != run.digest:
        raise AgentsError("the records are not those of the run", "verify with those it began with")
    allocation = engine.allocate(board)
    files = _files(folder, run)
    if not files:
        raise OutputError(f"there is no allocation in {str(folder.private)!r}", _HINT)
    for some in files:
        _compare(engine.shard.tables(final(board, allocation.drop_from)), _rows(some))
    limit = board.header.market.supply_code * SHARE
    if max(allocation.loads) > limit:
        raise OutputError(f"a supply is exceeded: the load is {max(allocation.loads) / limit:g}")
    loads = tuple(load / limit for load in allocation.loads)
    return RunVerdict(board, verdict.spent, engine.count, allocation.winners, loads)


def _compare(expected: Iterator[pa.Table], found: Iterator[pa.RecordBatch]) -> None:
    """Refuse an allocation that differs in any row."""
    rest, row = pa.table({}), 0
    for want in expected:
        have = [rest] if rest.num_rows else []
        while sum(t.num_rows for t in have) < want.num_rows and (batch := next(found, None)):
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
    return f"row {before + at + 1:,} of the allocation is {is_}, and should be {should}"


def _files(folder: Output, run: RunFile) -> list[list[tuple[pyarrow.fs.FileSystem, str]]]:
    """The allocations that are there: one file, or those of a cluster's workers in order."""
    local, found = pyarrow.fs.LocalFileSystem(), []
    alone = folder.private / "allocation.parquet"
    if alone.exists():
        found.append([(local, str(alone))])
    choice = from_dict(run.engine)
    place = choice.allocation if isinstance(choice, Ray) else None
    system, path = local, str((folder.private / "allocation").absolute())
    if place is not None:
        system, path = pyarrow.fs.FileSystem.from_uri(place) if "://" in place else (local, place)
    there = system.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True))
    parts = sorted(file.path for file in there if file.is_file and file.extension == "parquet")
    if parts:
        found.append([(system, part) for part in parts])
    return found


def _rows(files: list[tuple[pyarrow.fs.FileSystem, str]]) -> Iterator[pa.RecordBatch]:
    for system, path in files:
        try:
            with system.open_input_file(path) as stream:
                file = pyarrow.parquet.ParquetFile(stream, page_checksum_verification=True)
                yield from file.iter_batches()
        except (pa.ArrowException, OSError) as error:
            raise OutputError(f"cannot read the allocation {path!r}: {error}", _HINT) from None
