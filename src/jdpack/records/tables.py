"""Private: turn tables of agents (arrays, Arrow, pandas, polars, files) into chunks to encode.

A wide table has one row per option, with the columns id, value and one per resource. A long table,
for sparse bundles, has one row per (resource, amount) pair, with the columns id, value, resource,
amount and, if requests may have several options, option. If agents may make several requests, both
have the column request. The rows of an agent are adjacent, and so are those of a request and those
of an option, which repeat its value. An option that demands nothing is one row without resource and
amount.

The input is cut into pieces of whole agents, and each piece is streamed separately. A table in
files is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jdpack.common.checks import closest
from jdpack.errors import AgentsError
from jdpack.market.market import Market
from jdpack.records import locate, readers
from jdpack.records.arrow import changes, to_arrow, to_numpy
from jdpack.records.codes import PART_ROWS
from jdpack.records.databases import database
from jdpack.records.ids import check_same_type, plain_ids, plain_texts
from jdpack.records.readers import Rows
from jdpack.records.refusals import two_groups
from jdpack.records.schema import (
    check_columns,
    check_name_type,
    check_texts,
    clean,
    has_runs,
    has_several,
    is_long,
)

_CELLS = 2**18  # numbers in a chunk


@dataclass
class OptionRows:
    """A chunk of consecutive options, before they are encoded.

    The amounts are a matrix, one column per resource, or compressed sparse rows.
    """

    values: NDArray[np.float64]
    ids: pa.Array | None = None
    groups: NDArray[np.int64] | None = None
    """The number of each row's group, or -1; None if the market has no groups."""
    requests: pa.Array | None = None
    """The name of each row's request, as large strings; None if agents make one request."""
    columns: list[NDArray[np.float64]] | None = None
    indptr: NDArray[np.int64] | None = None
    resources: NDArray[np.int64] | None = None
    amounts: NDArray[np.float64] | None = None
    matrix: NDArray[np.float64] | None = None
    first: int = 0
    """The index of its first row in its file, table or array."""
    where: str = ""
    """The file it comes from, if any."""
    names: pa.Array | None = None
    """The name of each option, if the table has them: long tables with several options."""

    @property
    def rows(self) -> int:
        return len(self.values)

    def dense(self, rows: slice | NDArray[np.int64] = slice(None)) -> NDArray[np.float64]:
        """The amounts of some rows as a matrix, unless they are compressed."""
        if self.columns is not None:
            return np.stack([column[rows] for column in self.columns], axis=1)
        assert self.matrix is not None
        return self.matrix[rows]

    def amounts_of(self, row: int, m: int) -> list[float]:
        """The amounts of a row, one for each of m resources."""
        amounts: list[float]
        if self.indptr is None:
            amounts = self.dense(slice(row, row + 1))[0].tolist()
        else:
            assert self.resources is not None and self.amounts is not None
            own = slice(self.indptr[row], self.indptr[row + 1])
            amounts = np.bincount(self.resources[own], self.amounts[own], m).tolist()
        return amounts


@dataclass(frozen=True)
class TablePiece:
    """Some whole agents of a table in memory."""

    table: pa.Table
    first: int


class SparseRows(NamedTuple):
    """Some rows of a matrix in compressed sparse rows; `indices` and `data` hold all its rows."""

    indptr: NDArray[Any]
    indices: NDArray[Any]
    data: NDArray[Any]


@dataclass(frozen=True)
class ArrayPiece:
    """Some whole agents of arrays in memory, not copied."""

    values: NDArray[Any]
    demands: NDArray[Any] | SparseRows
    ids: pa.Array | None
    groups: NDArray[np.int64] | None
    requests: pa.Array | None
    first: int


Piece = readers.FilePiece | TablePiece | ArrayPiece | database.QueryPiece | Iterable[OptionRows]
"""Some consecutive agents, which can be read separately."""


def pieces(market: Market, source: Any, rows: int = PART_ROWS) -> Sequence[Piece]:
    """Cut files or a table into pieces of about `rows` rows."""
    if locate.is_source(source):
        files = readers.file_pieces(market, source, rows)
        if not is_long(market) or _is_grouped(market, files):
            return files
        table = readers.table_of(market, files)
    else:
        table = _table(market, source)
    if is_long(market):
        table = _grouped(market, table)
    ids = table.column(market.columns.id) if has_runs(market) else None
    edges = _cuts(ids, table.num_rows, rows)
    return [TablePiece(table.slice(a, b - a), a) for a, b in edges]


def array_pieces(
    market: Market,
    values: Any,
    demands: Any,
    ids: Any = None,
    rows: int = PART_ROWS,
    *,
    groups_of: Any = None,
    requests_of: Any = None,
) -> Sequence[Piece]:
    """Cut a vector of values and a matrix of demands, dense or SciPy sparse, into pieces."""
    values = _array(values, "values")
    if values.ndim != 1:
        raise AgentsError(f"values have the shape {values.shape}, but must be a vector")
    n, m = len(values), len(market.declared)
    ids = None if ids is None else _id_array(ids, n)
    groups = _group_array(market, groups_of, n) if market.groups else None
    requests = _request_array(requests_of, n) if market.requests > 1 else None
    sparse = hasattr(demands, "tocsr")
    matrix: Any = demands.tocsr() if sparse else _array(_in_order(market, demands), "demands")
    if not sparse and matrix.ndim == 1 and m == 1:
        matrix = matrix[:, None]
    if matrix.shape != (n, m):
        raise AgentsError(
            f"demands have the shape {matrix.shape}, not ({n}, {m})",
            "give one row per value and one column per resource",
        )
    matrix = _canonical(matrix) if sparse else matrix
    found = []
    for a, b in _cuts(ids if has_several(market) else None, n, rows):
        if sparse:
            demands = SparseRows(matrix.indptr[a : b + 1], matrix.indices, matrix.data)
        else:
            demands = matrix[a:b]
        own, group, request = (x if x is None else x[a:b] for x in (ids, groups, requests))
        found.append(ArrayPiece(values[a:b], demands, own, group, request, a))
    return found


def read(market: Market, piece: Piece) -> Iterator[OptionRows]:
    """The chunks of a piece: all agents whose first rows are in it, and no others."""
    if isinstance(piece, ArrayPiece):
        return _read_arrays(market, piece)
    if isinstance(piece, TablePiece):
        stream = _table_rows(market, piece)
    elif isinstance(piece, readers.FilePiece):
        stream = _file_rows(market, piece)
    elif isinstance(piece, database.QueryPiece):
        stream = database.stream(market, piece, _chunk_rows(market))
    else:
        return iter(piece)
    return _read_long(market, stream) if is_long(market) else _read_wide(market, stream)


def _cuts(ids: Any, n: int, rows: int) -> list[tuple[int, int]]:
    """Where to cut n rows; if ids are given, only between two different ones."""
    edges = [0]
    while edges[-1] < n:
        cut = min(n, edges[-1] + rows)
        if ids is not None and cut < n:
            cut += _same(ids, cut, ids[cut - 1].as_py())
        edges.append(cut)
    return list(pairwise(edges))


def _same(ids: Any, start: int, id: Any) -> int:
    """How many consecutive rows from `start` have this id."""
    row = start
    while id is not None and row < len(ids) and ids[row].as_py() == id:
        row += 1
    return row - start


def _chunk_rows(market: Market) -> int:
    return max(1024, min(16384, _CELLS // len(market.resources)))


# --- arrays -------------------------------------------------------------------------------


def _read_arrays(market: Market, piece: ArrayPiece) -> Iterator[OptionRows]:
    demands, rows = piece.demands, _chunk_rows(market)
    for start in range(0, len(piece.values), rows):
        stop = min(len(piece.values), start + rows)
        chunk = OptionRows(
            piece.values[start:stop].astype(np.float64, copy=False),
            None if piece.ids is None else piece.ids.slice(start, stop - start),
            None if piece.groups is None else piece.groups[start:stop],
            None if piece.requests is None else piece.requests.slice(start, stop - start),
            first=piece.first + start,
        )
        if isinstance(demands, SparseRows):
            first, last = demands.indptr[start], demands.indptr[stop]
            chunk.indptr = (demands.indptr[start : stop + 1] - first).astype(np.int64)
            chunk.resources = demands.indices[first:last].astype(np.int64)
            chunk.amounts = demands.data[first:last].astype(np.float64)
        elif demands.flags.f_contiguous or demands.strides[0] == demands.itemsize:
            block = demands[start:stop].astype(np.float64, copy=False)
            chunk.columns = [block[:, j] for j in range(block.shape[1])]
        else:
            chunk.matrix = np.ascontiguousarray(demands[start:stop], dtype=np.float64)
        yield chunk


def _in_order(market: Market, demands: Any) -> Any:
    """The demands with their columns in the market's order, if the columns have names."""
    names = list(getattr(demands, "columns", ()))
    if not names or not all(isinstance(name, str) for name in names):
        return demands
    known = {r.name: j for j, r in enumerate(market.declared)}
    known |= {r.column: j for j, r in enumerate(market.declared)}
    for name in names:
        if name not in known:
            raise AgentsError(
                f"demands have a column {name!r}, which is not a resource",
                closest(name, [r.name for r in market.declared]),
            )
    where = {known[name]: at for at, name in enumerate(names)}
    missing = [r.name for j, r in enumerate(market.declared) if j not in where]
    if missing or len(where) < len(names):
        what = f"lack the resource {missing[0]!r}" if missing else "name a resource twice"
        raise AgentsError(f"demands {what}", f"their columns are: {', '.join(names[:20])}")
    return np.asarray(demands)[:, [where[j] for j in range(len(names))]]


def _array(numbers: Any, what: str) -> NDArray[Any]:
    if np.ma.is_masked(numbers):
        raise AgentsError(f"{what} have masked entries", "every agent needs its own numbers")
    try:
        array = np.asarray(numbers)
    except (TypeError, ValueError) as error:
        raise AgentsError(f"{what} cannot be read as an array: {clean(error)}") from None
    _check_kind(array, what)
    return array


def _check_kind(array: Any, what: str) -> None:
    if array.dtype.kind not in ("iuf" if what == "values" else "biuf"):
        raise AgentsError(f"{what} are of type {array.dtype}, not numbers")


def _one_each(given: Any, n: int, argument: str, things: str, hint: str) -> pa.Array:
    """An argument that has one thing per value."""
    try:
        array = pa.array(given)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise AgentsError(f"{argument} cannot be read: {clean(error)}", hint) from None
    if len(array) != n:
        raise AgentsError(f"there are {len(array)} {things} for {n} values")
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _id_array(ids: Any, n: int) -> pa.Array:
    return _one_each(ids, n, "ids", "ids", "ids are whole numbers or texts, one per value")


def _group_array(market: Market, groups_of: Any, n: int) -> NDArray[np.int64]:
    hint = "give a name or None for each value"
    array = _one_each(groups_of, n, "groups_of", "groups", hint)
    return _group_numbers(market, array, "groups_of")


def _request_array(requests_of: Any, n: int) -> pa.Array:
    hint = "give a name for each value"
    array = _one_each(requests_of, n, "requests_of", "names of requests", hint)
    return _request_names(array, "requests_of")


def _canonical(matrix: Any) -> Any:
    """The matrix in compressed sparse rows, with every entry in range and stored once."""
    _check_kind(matrix, "demands")
    if matrix.nnz and not 0 <= matrix.indices.min() <= matrix.indices.max() < matrix.shape[1]:
        outside = [j for j in matrix.indices.tolist() if not 0 <= j < matrix.shape[1]]
        raise AgentsError(f"demands name column {outside[0]}, but there are only {matrix.shape[1]}")
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


# --- tables and files ---------------------------------------------------------------------


def _table(market: Market, source: Any) -> pa.Table:
    try:
        if type(source).__module__.partition(".")[0] == "pandas":
            # A named index is a column; row numbers are not.
            named = [name for name in source.index.names if name is not None]
            table = pa.Table.from_pandas(source.reset_index(named), preserve_index=False)
        else:
            table = pa.table(source)
    except (AttributeError, TypeError, ValueError, pa.ArrowException) as error:
        raise AgentsError(
            f"cannot read agents from a {type(source).__name__}: {clean(error)}",
            "give a path, or an Arrow, pandas or polars table",
        ) from None
    check_columns(market, table.schema, "the table")
    check_texts(table, "the table")
    return table


_GROUPED = 2**26  # bytes of files that are read into memory, if need be, to group their rows


def _is_grouped(market: Market, pieces: Sequence[readers.FilePiece]) -> bool:
    """Whether the rows of agents and options are adjacent, or the files too large to group."""
    files = {span.file for piece in pieces for span in piece.spans}
    if sum(file.size for file in files) > _GROUPED:
        return True
    try:
        keys = readers.table_of(market, pieces, _keys(market))
    except pa.ArrowException:  # columns of different types, which are refused elsewhere
        return True
    return _order(market, keys) is None


def _grouped(market: Market, table: pa.Table) -> pa.Table:
    """The table with the rows of each agent, request and option together, ordered by the first."""
    order = _order(market, table)
    return table if order is None else table.take(to_arrow(order))


def _keys(market: Market) -> list[str]:
    c, several = market.columns, market.options > 1
    return [c.id, *([c.request] if market.requests > 1 else []), *([c.option] if several else [])]


def _order(market: Market, table: pa.Table) -> NDArray[np.int64] | None:
    """An order that keeps agents, requests and options together; None if they are already."""
    whole, firsts = np.zeros(table.num_rows, np.int64), list[NDArray[np.int64]]()
    for name in _keys(market):
        column = table.column(name).combine_chunks()
        if column.null_count or not len(column):
            return None  # which is refused elsewhere, if it is wrong
        plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        codes = to_numpy(plain.dictionary_encode().indices).astype(np.int64)
        key = whole * (int(codes.max()) + 1) + codes
        _, first, whole = np.unique(key, return_index=True, return_inverse=True)
        firsts.append(first[whole])
    order = np.lexsort(firsts[::-1]).astype(np.int64)  # stable
    return None if bool((order == np.arange(len(order))).all()) else order


def _table_rows(market: Market, piece: TablePiece) -> Iterator[Rows]:
    first = piece.first
    for batch in piece.table.to_batches(max_chunksize=_chunk_rows(market)):
        yield Rows(batch, first, "")
        first += batch.num_rows


def _file_rows(market: Market, piece: readers.FilePiece) -> Iterator[Rows]:
    """The rows of a piece's agents; the last agent may continue beyond the piece."""
    size, id = _chunk_rows(market), market.columns.id
    own = chain.from_iterable(readers.stream(market, span, size) for span in piece.spans)
    if not has_runs(market):
        yield from own
        return
    last = readers.last_id(market, piece)
    begun = False
    for rows in own:
        skip = 0 if begun else _same(rows.batch.column(id), 0, last)
        if skip < rows.batch.num_rows:
            rows, begun = rows.slice(skip), True
            yield rows
            last = rows.batch.column(id)[-1].as_py()
    if not begun:
        return
    for span in piece.after:
        for rows in readers.stream(market, span, size):
            same = _same(rows.batch.column(id), 0, last)
            if same:
                yield rows.slice(0, same)
            if same < rows.batch.num_rows:
                return
    if not piece.to_the_end:
        raise AgentsError(
            f"agent {last!r} has far too many rows", "does every agent have its own id?"
        )


# --- columns ------------------------------------------------------------------------------


def _numbers(column: pa.Array, name: str, ids: pa.Array) -> NDArray[np.float64]:
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise AgentsError(f"agent {ids[row].as_py()!r}: {name!r} is missing")
    try:
        return to_numpy(column.cast(pa.float64()))
    except pa.ArrowInvalid as error:
        raise AgentsError(f"column {name!r} does not fit a double: {clean(error)}") from None


def _texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = plain_texts(batch.column(name), f"column {name!r}")
    try:
        return column.cast(pa.large_string())
    except pa.ArrowException:
        raise AgentsError(f"column {name!r} is of type {column.type}, not text") from None


def _group_numbers(market: Market, column: Any, what: str) -> NDArray[np.int64]:
    """The number of each row's group; -1 if it has none, or one that the market does not know."""
    check_name_type(column.type, what, "group")
    names = plain_texts(column, what).cast(pa.large_string())
    known = pa.array([group.name for group in market.groups], pa.large_string())
    return to_numpy(pc.index_in(names, value_set=known).fill_null(-1)).astype(np.int64)


def _request_names(column: Any, what: str) -> pa.Array:
    """The name of each row's request, as text."""
    check_name_type(column.type, what, "request")
    names = plain_texts(column, what).cast(pa.large_string())
    if names.null_count:
        raise AgentsError(
            f"{what}: the name of a request is missing",
            "every row names its request; two agents may use the same name",
        )
    return names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names


# --- wide ---------------------------------------------------------------------------------


def _read_wide(market: Market, stream: Iterator[Rows]) -> Iterator[OptionRows]:
    c = market.columns
    for rows in stream:
        batch = rows.batch
        ids = batch.column(c.id)
        values = _numbers(batch.column(c.value), c.value, ids)
        columns = [_numbers(batch.column(r.column), r.column, ids) for r in market.declared]
        groups = None
        if market.groups:
            groups = _group_numbers(market, batch.column(c.group), f"column {c.group!r}")
        requests = None
        if market.requests > 1:
            requests = _request_names(batch.column(c.request), f"column {c.request!r}")
        yield OptionRows(
            values, ids, groups, requests, columns=columns, first=rows.first, where=rows.where
        )


# --- long ---------------------------------------------------------------------------------


def _read_long(market: Market, stream: Iterator[Rows]) -> Iterator[OptionRows]:
    """Gather the pairs of each option; an agent may continue in the next batch."""
    held = None
    for rows in stream:
        if rows.batch.num_rows == 0:
            continue
        pairs = _pairs(market, rows)
        if held is not None:
            check_same_type(held.column("id")[0].as_py(), pairs.column("id")[0].as_py())
            pairs = pa.Table.from_batches([held, pairs]).combine_chunks().to_batches()[0]
        last = int(_heads(pairs, ["id"])[-1])
        if last > 0:
            yield _options(market, pairs.slice(0, last))
        held = pairs.slice(last)
    if held is not None:
        yield _options(market, held)


def _pairs(market: Market, rows: Rows) -> pa.RecordBatch:
    """The rows in plain types: id, value, resource (its index, or -1), amount and option."""
    c, batch = market.columns, rows.batch
    ids = plain_ids(batch.column(c.id), rows.first, rows.where)
    names, amounts = _texts(batch, c.resource), batch.column(c.amount)
    half = pc.not_equal(names.is_valid(), amounts.is_valid())
    row = pc.index(half, True).as_py()
    if row >= 0:
        lacking = c.amount if names[row].is_valid else c.resource
        raise AgentsError(
            f"agent {ids[row].as_py()!r}: a row lacks its {lacking!r}",
            "an option that demands nothing is one row without resource and amount",
        )
    known = pa.array([r.column for r in market.declared], pa.large_string())
    resources = pc.index_in(names, value_set=known)
    row = pc.index(pc.and_(names.is_valid(), resources.is_null()), True).as_py()
    if row >= 0:
        raise AgentsError(
            f"agent {ids[row].as_py()!r}: there is no resource {names[row].as_py()!r}",
            f"the market has: {', '.join(r.column for r in market.declared[:20])}",
        )
    if pa.types.is_null(amounts.type):
        amounts = amounts.cast(pa.float64())
    columns = {
        "id": ids,
        "value": to_arrow(_numbers(batch.column(c.value), c.value, ids)),
        "resource": resources.fill_null(-1),
        "amount": to_arrow(_numbers(amounts.fill_null(0), c.amount, ids)),
    }
    if market.groups:
        numbers = _group_numbers(market, batch.column(c.group), f"column {c.group!r}")
        columns["group"] = to_arrow(numbers)
    if market.requests > 1:
        columns["request"] = _request_names(batch.column(c.request), f"column {c.request!r}")
    if market.options > 1:
        columns["option"] = _texts(batch, c.option)
        row = pc.index(columns["option"].is_null(), True).as_py()
        if row >= 0:
            raise AgentsError(f"agent {ids[row].as_py()!r}: {c.option!r} is missing")
    return pa.record_batch(columns)


def _options(market: Market, pairs: pa.RecordBatch) -> OptionRows:
    """The options of whole agents."""
    ids = pairs.column("id")
    names = [name for name in ("request", "option") if name in pairs.schema.names]
    heads = _heads(pairs, ["id", *names])
    for at in range(len(names)):
        _check_together(pairs, _heads(pairs, ["id", *names[: at + 1]]), names[: at + 1])
    edges = np.append(heads, pairs.num_rows)
    option = np.repeat(np.arange(len(heads)), np.diff(edges))
    values = to_numpy(pairs.column("value"))
    nan = np.isnan(values)
    differs = np.flatnonzero((values != values[heads][option]) & ~nan & ~nan[heads][option])
    if len(differs):
        row = int(differs[0])
        two = f"{float(values[heads][option[row]])!r} and {float(values[row])!r}"
        raise AgentsError(f"agent {ids[row].as_py()!r}: an option has two values, {two}")
    groups = None
    if market.groups:
        each = to_numpy(pairs.column("group"))
        groups = each[heads]
        differs = np.flatnonzero(each != groups[option])
        if len(differs):
            raise two_groups(ids[int(differs[0])].as_py())
    value = values[heads]
    value[option[nan]] = np.nan  # the encoder refuses it
    given = to_numpy(pairs.column("resource")) >= 0
    return OptionRows(
        value,
        ids.take(to_arrow(heads)),
        groups,
        pairs.column("request").take(to_arrow(heads)) if "request" in names else None,
        indptr=np.concatenate([[0], np.cumsum(given)])[edges].astype(np.int64),
        resources=to_numpy(pairs.column("resource"))[given].astype(np.int64),
        amounts=to_numpy(pairs.column("amount"))[given],
        names=pairs.column("option").take(to_arrow(heads)) if "option" in names else None,
    )


def _check_together(pairs: pa.RecordBatch, heads: NDArray[np.int64], names: list[str]) -> None:
    """Refuse an agent whose rows return to an earlier request or option."""
    key, of = np.searchsorted(_heads(pairs, ["id"]), heads, side="right"), names[-1]
    for name in names:
        column = pairs.column(name).take(to_arrow(heads)).dictionary_encode()
        key = np.unique(key * len(heads) + to_numpy(column.indices), return_inverse=True)[1]
    order = np.argsort(key, kind="stable")
    again = order[1:][key[order[1:]] == key[order[:-1]]]
    if len(again):
        row = int(heads[again.min()])
        who, option = pairs.column("id")[row].as_py(), pairs.column(of)[row].as_py()
        raise AgentsError(
            f"agent {who!r}: the rows of {of} {option!r} are not adjacent",
            f"sort the table by {' and '.join(['agent', *names])}",
        )


def _heads(pairs: pa.RecordBatch, keys: list[str]) -> NDArray[np.int64]:
    """The rows where a new agent or option begins."""
    return np.flatnonzero(np.logical_or.reduce([changes(pairs.column(key), None) for key in keys]))
