"""Private: tables of agents (arrays, Arrow, pandas, polars, Parquet, CSV) as batches to encode.

Wide: a row an option, with the columns id, value and one a resource. Long, for sparse bundles: a
row a (resource, amount) pair, with the columns id, value, resource, amount and, where agents may
have several options, option. The rows of an agent stand together, and so do those of an option,
whose value is repeated; an option that demands nothing is one row without resource and amount.
Files are read in a stream, one after the other: the whole table is never in memory.
"""

from __future__ import annotations

import csv
import glob
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from jdpack.encoding import Batch
from jdpack.errors import AgentsError
from jdpack.ids import check_same_type, plain_ids
from jdpack.market import Market

_CELLS = 2**18  # numbers in a batch
_CSV_BYTES = 2**22  # of a CSV file in a batch


def batches(market: Market, source: Any) -> Iterator[Batch]:
    """The batches of a table or of files: a path, a glob pattern, a folder, or any Arrow table."""
    stream = _files(market, source) if isinstance(source, str | Path) else _table(market, source)
    return _read_long(market, stream) if _is_long(market) else _read_wide(market, stream)


def array_batches(market: Market, values: Any, demands: Any, ids: Any = None) -> Iterator[Batch]:
    """The batches of a vector of values and a matrix of demands, dense or SciPy sparse."""
    values = _array(values, "values")
    if values.ndim != 1:
        raise AgentsError(f"values have the shape {values.shape}, not that of a vector")
    n, m = len(values), len(market.resources)
    ids = None if ids is None else _id_array(ids, n)
    sparse = hasattr(demands, "tocsr")
    matrix: Any = demands.tocsr() if sparse else _array(demands, "demands")
    if not sparse and matrix.ndim == 1 and m == 1:
        matrix = matrix[:, None]
    if matrix.shape != (n, m):
        raise AgentsError(
            f"demands have the shape {matrix.shape}, not ({n}, {m})",
            "a row for each value, a column for each resource",
        )
    if sparse:
        matrix = _canonical(matrix)
    rows = _batch_rows(market)
    for start in range(0, n, rows):
        stop = min(n, start + rows)
        batch = Batch(
            values[start:stop].astype(np.float64),
            None if ids is None else ids.slice(start, stop - start),
        )
        if sparse:
            first, last = matrix.indptr[start], matrix.indptr[stop]
            batch.indptr = (matrix.indptr[start : stop + 1] - first).astype(np.int64)
            batch.resources = matrix.indices[first:last].astype(np.int64)
            batch.amounts = matrix.data[first:last].astype(np.float64)
        else:
            block = np.ascontiguousarray(matrix[start:stop].T, dtype=np.float64)
            batch.columns = list(block)
        yield batch


def _array(numbers: Any, what: str) -> NDArray[Any]:
    if np.ma.is_masked(numbers):
        raise AgentsError(f"{what} have masked entries", "every agent needs its own numbers")
    try:
        array = np.asarray(numbers)
    except (TypeError, ValueError) as error:
        raise AgentsError(f"{what} cannot be read as an array: {_clean(error)}") from None
    _check_kind(array, what)
    return array


def _check_kind(array: Any, what: str) -> None:
    if array.dtype.kind not in "iuf":
        raise AgentsError(f"{what} are of type {array.dtype}, not numbers")


def _id_array(ids: Any, n: int) -> pa.Array:
    try:
        array = pa.array(ids)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise AgentsError(
            f"ids cannot be read: {_clean(error)}", "ids are whole numbers or texts, one a value"
        ) from None
    if len(array) != n:
        raise AgentsError(f"there are {len(array)} ids for {n} values")
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _canonical(matrix: Any) -> Any:
    """A matrix of compressed sparse rows with every entry in range and written once."""
    _check_kind(matrix, "demands")
    if matrix.nnz and not 0 <= matrix.indices.min() <= matrix.indices.max() < matrix.shape[1]:
        outside = [j for j in matrix.indices.tolist() if not 0 <= j < matrix.shape[1]]
        raise AgentsError(f"demands name column {outside[0]}, and there are {matrix.shape[1]}")
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def _batch_rows(market: Market) -> int:
    return max(1024, min(16384, _CELLS // len(market.resources)))


# --- tables and files ---------------------------------------------------------------------


def _table(market: Market, source: Any) -> Iterator[pa.RecordBatch]:
    try:
        if type(source).__module__.partition(".")[0] == "pandas":
            # A named index is a column; the numbers of the rows are not.
            named = [name for name in source.index.names if name is not None]
            table = pa.Table.from_pandas(source.reset_index(named), preserve_index=False)
        else:
            table = pa.table(source)
    except (AttributeError, TypeError, ValueError, pa.ArrowException) as error:
        raise AgentsError(
            f"cannot read agents from a {type(source).__name__}: {_clean(error)}",
            "give a path, or an Arrow, pandas or polars table",
        ) from None
    _check_columns(market, table.schema, "the table")
    return iter(table.to_batches(max_chunksize=_batch_rows(market)))


def _files(market: Market, source: str | Path) -> Iterator[pa.RecordBatch]:
    for path in _paths(source):
        try:
            schema, stream = _open(path, market)
            _check_columns(market, schema, str(path))
            yield from _ahead(stream)
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            raise AgentsError(
                f"cannot read {str(path)!r} as {_KINDS[path.suffix.lower()]}: "
                f"{_problem(error, path)}"
            ) from None


def _ahead(stream: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of a file, the next one being read while the last is encoded."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = reader.submit(next, stream, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, stream, None)
            yield batch


_KINDS = {".parquet": "Parquet", ".pq": "Parquet", ".csv": "CSV"}


def _paths(source: str | Path) -> list[Path]:
    path = Path(source)
    try:
        if path.is_dir():
            found = sorted(p for p in path.iterdir() if p.suffix.lower() in _KINDS)
        elif path.exists():
            found = [path]
        else:
            found = sorted(map(Path, glob.glob(str(source))))
    except OSError as error:
        raise AgentsError(f"cannot read agents at {str(source)!r}: {error.strerror}") from None
    if not found:
        raise AgentsError(
            f"there are no agents at {str(source)!r}",
            f"give a file, a folder or a pattern; names end in one of: {', '.join(_KINDS)}",
        )
    return found


def _open(path: Path, market: Market) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    kind = _KINDS.get(path.suffix.lower())
    if kind == "Parquet":
        file = pyarrow.parquet.ParquetFile(
            path,
            pre_buffer=False,
            buffer_size=2**16,  # else it keeps the whole file in memory
        )
        wanted = [n for n in file.schema_arrow.names if n not in market.columns.ignore]
        return file.schema_arrow, file.iter_batches(
            _batch_rows(market),
            columns=wanted,
            use_threads=False,  # threads would each keep room of their own
        )
    if kind == "CSV":
        with path.open("rb") as start:
            if start.read(4) == b"PAR1":
                raise AgentsError(f"{str(path)!r} is a Parquet file", "name it .parquet")
        stream = pyarrow.csv.open_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(block_size=_CSV_BYTES),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=_csv_types(market), null_values=[""], strings_can_be_null=True
            ),
        )
        return stream.schema, stream
    raise AgentsError(
        f"{str(path)!r} is of no known kind", f"its name must end in one of: {', '.join(_KINDS)}"
    )


def _csv_types(market: Market) -> dict[str, pa.DataType]:
    """Nothing is guessed from the first rows: numbers are doubles, and an id is its text."""
    c = market.columns
    types = {c.id: pa.string(), c.value: pa.float64()}
    if _is_long(market):
        types |= {c.option: pa.string(), c.resource: pa.string(), c.amount: pa.float64()}
    else:
        types |= {r.column: pa.float64() for r in market.resources}
    return types | {name: pa.binary() for name in c.ignore}


def _problem(error: Exception, path: Path) -> str:
    """What Arrow says, with the name of a CSV column in place of its number."""
    text = _clean(error)
    found = re.fullmatch(r"In CSV column #(\d+): CSV conversion error to \w+: (.*)", text)
    if found is None:
        return text
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        names = next(csv.reader(file))
    return f"column {names[int(found[1])]!r} has {found[2]}"


def _clean(error: Exception) -> str:
    """The first line of an error, fit for a terminal."""
    line = str(error).split("\n")[0]
    return "".join(c if c.isprintable() else "?" for c in line[:300])


# --- columns ------------------------------------------------------------------------------


def _is_long(market: Market) -> bool:
    return market.columns.layout == "long"


def _check_columns(market: Market, schema: pa.Schema, where: str) -> None:
    c = market.columns
    numbers = [c.value] + ([c.amount] if _is_long(market) else [])
    wanted = [c.id, *numbers]
    if _is_long(market):
        wanted += [c.resource] + ([c.option] if market.options > 1 else [])
    else:
        resources = [r.column for r in market.resources]
        numbers, wanted = numbers + resources, wanted + resources
    names = [n for n in schema.names if n not in c.ignore]
    missing = sorted(set(wanted) - set(names), key=wanted.index)
    if missing:
        raise AgentsError(
            f"{where} lacks the column {missing[0]!r}", f"it has: {', '.join(names[:20])}"
        )
    extra = sorted(set(names) - set(wanted), key=names.index)
    if extra:
        raise AgentsError(
            f"{where} has a column {extra[0]!r} that the market does not name",
            "drop it, or add it to [agents] ignore",
        )
    if len(names) > len(wanted):
        repeated = next(n for n in names if names.count(n) > 1)
        raise AgentsError(f"{where} has two columns named {repeated!r}")
    for name in numbers:
        kind = schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not (
            pa.types.is_decimal(kind) or (pa.types.is_null(kind) and name == c.amount)
        ):
            raise AgentsError(f"{where}: column {name!r} is of type {kind}, not a number")


def _numbers(column: pa.Array, name: str, ids: pa.Array) -> NDArray[np.float64]:
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise AgentsError(f"agent {ids[row].as_py()!r}: {name!r} is missing")
    try:
        return column.cast(pa.float64()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    except pa.ArrowInvalid as error:
        raise AgentsError(f"column {name!r} does not fit a double: {_clean(error)}") from None


def _texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        return column.cast(pa.large_string())
    except pa.ArrowException:
        raise AgentsError(f"column {name!r} is of type {column.type}, not text") from None


# --- wide ---------------------------------------------------------------------------------


def _read_wide(market: Market, stream: Iterator[pa.RecordBatch]) -> Iterator[Batch]:
    for batch in stream:
        ids = batch.column(market.columns.id)
        values = _numbers(batch.column(market.columns.value), market.columns.value, ids)
        columns = [_numbers(batch.column(r.column), r.column, ids) for r in market.resources]
        yield Batch(values, ids, columns)


# --- long ---------------------------------------------------------------------------------


def _read_long(market: Market, stream: Iterator[pa.RecordBatch]) -> Iterator[Batch]:
    """Gather the pairs of each option; the last agent of a batch may go on in the next one."""
    held, rows = None, 0
    for batch in stream:
        if batch.num_rows == 0:
            continue
        pairs = _pairs(market, batch, rows)
        rows += batch.num_rows
        if held is not None:
            check_same_type(held.column("id"), pairs.column("id"))
            pairs = pa.Table.from_batches([held, pairs]).combine_chunks().to_batches()[0]
        last = int(_heads(pairs, ["id"])[-1])
        if last > 0:
            yield _options(market, pairs.slice(0, last))
        held = pairs.slice(last)
    if held is not None:
        yield _options(market, held)


def _pairs(market: Market, batch: pa.RecordBatch, rows: int) -> pa.RecordBatch:
    """A batch in plain types: id, value, resource (its number, or -1), amount and option."""
    c = market.columns
    ids = plain_ids(batch.column(c.id), rows)
    names, amounts = _texts(batch, c.resource), batch.column(c.amount)
    half = pc.not_equal(names.is_valid(), amounts.is_valid())
    row = pc.index(half, True).as_py()
    if row >= 0:
        lacking = c.amount if names[row].is_valid else c.resource
        raise AgentsError(
            f"agent {ids[row].as_py()!r}: a row lacks its {lacking!r}",
            "an option that demands nothing is one row without resource and amount",
        )
    known = pa.array([r.column for r in market.resources], pa.large_string())
    resources = pc.index_in(names, value_set=known)
    row = pc.index(pc.and_(names.is_valid(), resources.is_null()), True).as_py()
    if row >= 0:
        raise AgentsError(
            f"agent {ids[row].as_py()!r}: there is no resource {names[row].as_py()!r}",
            f"the market has: {', '.join(r.column for r in market.resources[:20])}",
        )
    if pa.types.is_null(amounts.type):
        amounts = amounts.cast(pa.float64())
    columns = {
        "id": ids,
        "value": pa.array(_numbers(batch.column(c.value), c.value, ids)),
        "resource": resources.fill_null(-1),
        "amount": pa.array(_numbers(amounts.fill_null(0), c.amount, ids)),
    }
    if market.options > 1:
        columns["option"] = _texts(batch, c.option)
        row = pc.index(columns["option"].is_null(), True).as_py()
        if row >= 0:
            raise AgentsError(f"agent {ids[row].as_py()!r}: {c.option!r} is missing")
    return pa.record_batch(columns)


def _options(market: Market, pairs: pa.RecordBatch) -> Batch:
    """The options of some whole agents."""
    ids, several = pairs.column("id"), market.options > 1
    heads = _heads(pairs, ["id", "option"] if several else ["id"])
    if several:
        _check_together(pairs, heads)
    edges = np.append(heads, pairs.num_rows)
    option = np.repeat(np.arange(len(heads)), np.diff(edges))
    values = pairs.column("value").to_numpy()
    nan = np.isnan(values)
    differs = np.flatnonzero((values != values[heads][option]) & ~nan & ~nan[heads][option])
    if len(differs):
        row = int(differs[0])
        two = f"{float(values[heads][option[row]])!r} and {float(values[row])!r}"
        raise AgentsError(f"agent {ids[row].as_py()!r}: an option has two values, {two}")
    value = values[heads]
    value[option[nan]] = np.nan  # refused when it is encoded
    given = pairs.column("resource").to_numpy() >= 0
    return Batch(
        value,
        ids.take(pa.array(heads)),
        indptr=np.concatenate([[0], np.cumsum(given)])[edges].astype(np.int64),
        resources=pairs.column("resource").to_numpy()[given].astype(np.int64),
        amounts=pairs.column("amount").to_numpy()[given],
    )


def _check_together(pairs: pa.RecordBatch, heads: NDArray[np.int64]) -> None:
    """Refuse an agent that comes back to an option of its own."""
    agent = np.searchsorted(_heads(pairs, ["id"]), heads, side="right")
    name = pairs.column("option").take(pa.array(heads)).dictionary_encode().indices.to_numpy()
    key = agent * len(heads) + name
    order = np.argsort(key, kind="stable")
    again = order[1:][key[order[1:]] == key[order[:-1]]]
    if len(again):
        row = int(heads[again.min()])
        who, option = pairs.column("id")[row].as_py(), pairs.column("option")[row].as_py()
        raise AgentsError(
            f"agent {who!r}: the rows of option {option!r} do not stand together",
            "sort the table by agent and option",
        )


def _heads(pairs: pa.RecordBatch, keys: list[str]) -> NDArray[np.int64]:
    """The rows at which a new agent or option begins."""
    new = np.zeros(pairs.num_rows, bool)
    new[0] = True
    for key in keys:
        column = pairs.column(key)
        changed = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        new[1:] |= changed.to_numpy(zero_copy_only=False)
    return np.flatnonzero(new)
