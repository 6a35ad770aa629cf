"""Private: what is granted, in the words of the table: who gets how much of what.

One row for each resource of every option that is granted, in whole or in part. The records are read
again for it, because codes hold amounts only to the precision of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from jdpack.agent.options import counted
from jdpack.market.grid import SHARE
from jdpack.market.market import Market
from jdpack.records import tables
from jdpack.records.arrow import changes, texts_to_arrow, to_arrow
from jdpack.records.ids import plain_ids
from jdpack.records.schema import is_long, written_names
from jdpack.records.source import Source
from jdpack.records.tables import OptionRows
from jdpack.storage.files import write_whole

FILE = "granted.parquet"
ROWS_MAX = 2**20
"""A run that may have more rows leaves the file out: reading the records twice takes time, and
memory that an engine on disk has promised not to use."""


def granted(source: Source, shares: NDArray[np.uint32]) -> Iterator[pa.Table]:
    """The table in pieces; `shares` has one entry per option, in the order of the records."""
    market, at = source.market, 0
    names = _names(market)
    last: list[Any] = [None, None]  # the last request: its id, and its name if it has one
    count = 0  # its options so far
    for piece in source.pieces():
        for rows in tables.read(market, piece):
            own = shares[at : at + rows.rows]
            ids = to_arrow(np.arange(at, at + rows.rows))
            if rows.ids is not None:
                ids = plain_ids(rows.ids, rows.first, rows.where)
            at += rows.rows
            if not rows.rows:
                continue
            option = rows.names
            if option is None and market.options > 1:
                keys = [ids] if rows.requests is None else [ids, rows.requests]
                numbers = _numbers(keys, last, count)
                last, count = [key[-1].as_py() for key in keys], int(numbers[-1])
                option = to_arrow(numbers)
            columns = _columns(source, rows, ids, option, own)
            yield pa.table(dict(zip(names, columns, strict=True)))


def whole(source: Source, shares: NDArray[np.uint32]) -> pa.Table:
    """The table; without any row if nobody gets anything."""
    return pa.concat_tables(granted(source, shares))


def write(source: Source, shares: NDArray[np.uint32], folder: Path) -> None:
    """Write the table to a private folder, whole or not at all."""

    def put(file: Any) -> None:
        writer = None
        try:
            for table in granted(source, shares):
                writer = writer or pyarrow.parquet.ParquetWriter(file, table.schema)
                if table.num_rows:
                    writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()

    write_whole(folder / FILE, 0o600, put)


def _names(market: Market) -> list[str]:
    """The names of the columns: the table's own, so that the two can be joined."""
    c, plain = market.columns, ["resource", "amount", "unit"]
    return written_names(
        market, [c.resource, c.amount, "unit"] if is_long(market) else plain, plain
    )


def _columns(
    source: Source, rows: OptionRows, ids: pa.Array, option: Any, own: NDArray[np.uint32]
) -> Iterator[pa.Array]:
    market = source.market
    chosen = np.flatnonzero(own)
    row, resource, amount = _amounts(rows, chosen)
    if source.clamp:
        amount = _clamped(market, row, resource, amount)
        left = amount > 0.0
        row, resource, amount = row[left], resource[left], amount[left]
    where = to_arrow(row)
    yield ids.take(where)
    if rows.requests is not None:
        yield rows.requests.take(where)
    if option is not None:
        yield option.take(where)
    which, long = to_arrow(resource), market.columns.layout == "long"
    yield texts_to_arrow([r.column if long else r.name for r in market.declared]).take(which)
    yield to_arrow(amount * own[row] / SHARE)
    yield texts_to_arrow([r.unit for r in market.declared]).take(which)


def _amounts(
    rows: OptionRows, chosen: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The positive amounts of the chosen rows: their rows, resources and numbers, in order."""
    if rows.indptr is not None:
        assert rows.resources is not None and rows.amounts is not None
        counts = np.diff(rows.indptr)
        of = np.repeat(np.arange(rows.rows), counts)
        keep = np.isin(of, chosen) & (rows.amounts > 0.0)
        order = np.lexsort((rows.resources[keep], of[keep]))
        return of[keep][order], rows.resources[keep][order], rows.amounts[keep][order]
    matrix = rows.dense(chosen)
    at, resource = np.nonzero(matrix > 0.0)
    return chosen[at], resource, matrix[at, resource]


def _clamped(
    market: Market, row: NDArray[np.int64], resource: NDArray[np.int64], amount: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The amounts that count, within the public bounds."""
    caps = np.array([r.max_demand for r in market.declared])
    capped: NDArray[np.float64] = np.minimum(amount, caps[resource])
    if not market.totals:
        return capped
    for one in np.unique(row).tolist():
        own = np.flatnonzero(row == one)
        stated = np.zeros(len(caps))
        stated[resource[own]] = amount[own]
        capped[own] = np.array(counted(market, stated.tolist()))[resource[own]]
    return capped


def _numbers(keys: list[pa.Array], last: list[Any], count: int) -> NDArray[np.int64]:
    """The number of each row among its request's options; the first request may have had some."""
    row = np.arange(len(keys[0]))
    new = np.logical_or.reduce([changes(key, own) for key, own in zip(keys, last, strict=False)])
    start = np.maximum.accumulate(np.where(new, row, -1))
    return np.where(start < 0, count, -start) + row + 1
