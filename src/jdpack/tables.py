"""Private: tables of agents (arrays, Arrow, pandas, polars, Parquet, CSV) as batches to encode.

Wide: a row an option, with the columns id, value and one a resource. Long, for sparse bundles: a
row a (resource, amount) pair, with the columns id, value, resource, amount and, where agents may
have several options, option; the rows of an option stand together, and its value is repeated.
Files are read in a stream: the whole table is never in memory.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from jdpack.agents import Batch
from jdpack.errors import AgentsError
from jdpack.market import Market

_CELLS = 2**20  # numbers in a batch


def batches(market: Market, source: Any) -> Iterator[Batch]:
    """The batches of a table or of files: a path, a glob pattern, a folder, or any Arrow table."""
    reader = _read_long if market.columns.layout == "long" else _read_wide
    if isinstance(source, str | Path):
        for path in _paths(source):
            schema, stream = _open(path, market)
            _check_columns(market, schema, str(path))
            yield from reader(market, _guarded(stream, path))
        return
    try:
        table = pa.table(source)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise AgentsError(
            f"cannot read agents from a {type(source).__name__}: {error}",
            "give a path, or an Arrow, pandas or polars table",
        ) from None
    _check_columns(market, table.schema, "the table")
    yield from reader(market, iter(table.to_batches(max_chunksize=_batch_rows(market))))


def array_batches(market: Market, values: Any, demands: Any, ids: Any = None) -> Iterator[Batch]:
    """The batches of a vector of values and a matrix of demands, dense or SciPy sparse."""
    values = _vector(values, "values")
    n, m = len(values), len(market.resources)
    if ids is not None:
        try:
            ids = pa.array(ids)
        except (pa.ArrowException, TypeError) as error:
            raise AgentsError(f"ids cannot be read: {error}") from None
        if len(ids) != n:
            raise AgentsError(f"there are {len(ids)} ids for {n} values")
    sparse = hasattr(demands, "tocsr")
    matrix: Any = demands.tocsr() if sparse else np.asarray(demands)
    if not sparse and matrix.ndim == 1 and m == 1:
        matrix = matrix[:, None]
    if matrix.shape != (n, m):
        raise AgentsError(
            f"demands have the shape {matrix.shape}, not ({n}, {m})",
            "a row for each value, a column for each resource",
        )
    if matrix.dtype.kind not in "iuf":
        raise AgentsError(f"demands are of type {matrix.dtype}, not numbers")
    if sparse and not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    rows = _batch_rows(market)
    for start in range(0, n, rows):
        stop = min(n, start + rows)
        batch = Batch(values[start:stop], None if ids is None else ids.slice(start, stop - start))
        if sparse:
            first, last = matrix.indptr[start], matrix.indptr[stop]
            batch.indptr = (matrix.indptr[start : stop + 1] - first).astype(np.int64)
            batch.resources = matrix.indices[first:last].astype(np.int64)
            batch.amounts = matrix.data[first:last].astype(np.float64)
        else:
            block = np.ascontiguousarray(matrix[start:stop].T, dtype=np.float64)
            batch.columns = list(block)
        yield batch


def _vector(numbers: Any, what: str) -> NDArray[np.float64]:
    vector = np.asarray(numbers)
    if vector.ndim != 1 or vector.dtype.kind not in "iuf":
        raise AgentsError(
            f"{what} must be a vector of numbers, not {vector.ndim}-dimensional {vector.dtype}"
        )
    return vector.astype(np.float64, copy=False)


def _batch_rows(market: Market) -> int:
    return max(1024, min(65536, _CELLS // len(market.resources)))


# --- files --------------------------------------------------------------------------------


def _paths(source: str | Path) -> list[Path]:
    path = Path(source)
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES)
    elif path.exists():
        found = [path]
    else:
        found = sorted(map(Path, glob.glob(str(source))))
    if not found:
        raise AgentsError(
            f"there are no agents at {str(source)!r}", "give a file, a folder or a pattern"
        )
    return found


_SUFFIXES = (".parquet", ".pq", ".csv")


def _open(path: Path, market: Market) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    try:
        if path.suffix in (".parquet", ".pq"):
            file = pyarrow.parquet.ParquetFile(path)
            wanted = [n for n in file.schema_arrow.names if n not in market.columns.ignore]
            return file.schema_arrow, file.iter_batches(_batch_rows(market), columns=wanted)
        if path.suffix == ".csv":
            text = {market.columns.resource: pa.string()} if market.columns.layout == "long" else {}
            stream = pyarrow.csv.open_csv(
                path,
                read_options=pyarrow.csv.ReadOptions(block_size=2**22),
                convert_options=pyarrow.csv.ConvertOptions(column_types=text),
            )
            return stream.schema, stream
    except (OSError, pa.ArrowException) as error:
        kind = path.suffix[1:].upper()
        raise AgentsError(f"cannot read {str(path)!r} as {kind}: {_first_line(error)}") from None
    raise AgentsError(
        f"{str(path)!r} is of no known kind", f"the name ends in one of: {', '.join(_SUFFIXES)}"
    )


def _guarded(stream: Iterator[pa.RecordBatch], path: Path) -> Iterator[pa.RecordBatch]:
    try:
        yield from stream
    except (OSError, pa.ArrowException) as error:
        raise AgentsError(f"cannot read {str(path)!r} to its end: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]


# --- columns ------------------------------------------------------------------------------


def _check_columns(market: Market, schema: pa.Schema, where: str) -> None:
    c = market.columns
    numbers = [c.value] + ([c.amount] if c.layout == "long" else [])
    wanted = [c.id, *numbers]
    if c.layout == "long":
        wanted += [c.resource] + ([c.option] if market.options > 1 else [])
    else:
        resources = [r.column for r in market.resources]
        numbers, wanted = numbers + resources, wanted + resources
    names = [n for n in schema.names if n not in c.ignore]
    repeated = [n for n in names if names.count(n) > 1]
    if repeated:
        raise AgentsError(f"{where} has two columns named {repeated[0]!r}")
    missing = [n for n in wanted if n not in names]
    if missing:
        raise AgentsError(
            f"{where} lacks the column {missing[0]!r}", f"it has: {', '.join(names[:20])}"
        )
    extra = [n for n in names if n not in wanted]
    if extra:
        raise AgentsError(
            f"{where} has a column {extra[0]!r} that the market does not name",
            "drop it, or add it to [agents] ignore",
        )
    for name in numbers:
        kind = schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not (
            pa.types.is_decimal(kind) or (pa.types.is_null(kind) and name == c.amount)
        ):
            raise AgentsError(f"{where}: column {name!r} is of type {kind}, not a number")


def _numbers(batch: pa.RecordBatch, name: str) -> NDArray[np.float64]:
    column = batch.column(name)
    if column.null_count:
        row = int(pc.index(column.is_null(), True).as_py())
        raise AgentsError(f"column {name!r} has a missing value in row {row} of its batch")
    try:
        return column.cast(pa.float64()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    except pa.ArrowInvalid as error:
        raise AgentsError(f"column {name!r} does not fit a double: {_first_line(error)}") from None


def _read_wide(market: Market, stream: Iterator[pa.RecordBatch]) -> Iterator[Batch]:
    for batch in stream:
        columns = [_numbers(batch, r.column) for r in market.resources]
        values = _numbers(batch, market.columns.value)
        yield Batch(values, batch.column(market.columns.id), columns)


def _read_long(market: Market, stream: Iterator[pa.RecordBatch]) -> Iterator[Batch]:
    """Group consecutive rows of one (id, option); hold back the last group of each batch."""
    c, held = market.columns, None
    several = market.options > 1
    for batch in stream:
        table = pa.Table.from_batches([batch] if held is None else [held, batch])
        joined = table.combine_chunks().to_batches()
        if not joined:
            continue
        heads = _heads(joined[0], [c.id, c.option] if several else [c.id])
        if len(heads) > 1:
            yield _long_batch(market, joined[0].slice(0, heads[-1]), heads[:-1])
        held = joined[0].slice(heads[-1])
    if held is not None:
        yield _long_batch(market, held, np.zeros(1, np.int64))


def _heads(batch: pa.RecordBatch, keys: list[str]) -> NDArray[np.int64]:
    """The rows at which a new group begins."""
    new = np.zeros(batch.num_rows, bool)
    new[0] = True
    for key in keys:
        column = batch.column(key)
        if column.null_count:
            raise AgentsError(f"column {key!r} has a missing value")
        changed = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        new[1:] |= changed.to_numpy(zero_copy_only=False)
    return np.flatnonzero(new)


def _long_batch(market: Market, batch: pa.RecordBatch, heads: NDArray[np.int64]) -> Batch:
    c = market.columns
    values = _numbers(batch, c.value)
    edges = np.append(heads, batch.num_rows)
    group = np.repeat(np.arange(len(heads)), np.diff(edges))
    differs = np.flatnonzero(values != values[heads][group])
    ids = batch.column(c.id)
    if len(differs) and not np.isnan(values[differs[0]]):
        row = int(differs[0])
        raise AgentsError(f"agent {ids[row].as_py()!r}: an option has two values")
    names, amounts = batch.column(c.resource), batch.column(c.amount)
    # An option that demands nothing is one row with neither resource nor amount.
    given = names.is_valid().to_numpy(zero_copy_only=False)
    if not np.array_equal(given, amounts.is_valid().to_numpy(zero_copy_only=False)):
        raise AgentsError(f"a row has only one of {c.resource!r} and {c.amount!r}")
    kept = batch.filter(pa.array(given))
    known = pa.array([r.column for r in market.resources])
    found = pc.index_in(kept.column(c.resource).cast(pa.string()), value_set=known)
    if found.null_count:
        unknown = kept.column(c.resource)[pc.index(found.is_null(), True).as_py()].as_py()
        raise AgentsError(
            f"there is no resource {unknown!r}",
            f"the market has: {', '.join(r.column for r in market.resources[:20])}",
        )
    return Batch(
        values[heads],
        ids.take(pa.array(heads)),
        indptr=np.concatenate([[0], np.cumsum(given)])[edges].astype(np.int64),
        resources=found.to_numpy(zero_copy_only=False).astype(np.int64),
        amounts=_numbers(kept, c.amount),
    )
