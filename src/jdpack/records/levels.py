"""Private: how many agents there are at each level, exactly (`jdpack.market.levels`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jdpack.errors import AgentsError
from jdpack.market.levels import grids, widths
from jdpack.market.market import Market
from jdpack.records import tables
from jdpack.records.arrow import to_numpy
from jdpack.records.ids import check_same_type, plain_ids
from jdpack.records.refusals import check_count, no_ids
from jdpack.records.schema import has_several
from jdpack.records.source import Source
from jdpack.records.tables import OptionRows


@dataclass(frozen=True)
class Levels:
    """The exact counts of some records. Private: only the door may use them."""

    agents: int
    counts: tuple[int, ...]
    """For each resource and then for the value, how many agents are at each level."""


def count_levels(source: Source) -> Levels:
    """Read all records, and count every agent once for each resource and once for the value.

    Rows with the same id are one agent, wherever they are in the table: its largest amount counts.
    """
    market = source.market
    ids: list[pa.Array] = []
    found: list[NDArray[np.uint8]] = []
    for piece in source.pieces():
        for rows in tables.read(market, piece):
            if not rows.rows:
                continue
            found.append(_levels(market, rows))
            if rows.ids is not None:
                ids.append(plain_ids(rows.ids, rows.first, rows.where))
                check_same_type(ids[0][0].as_py(), ids[-1][0].as_py())
            elif has_several(market):  # each row would count as an agent
                raise no_ids(market)
    levels = np.concatenate(found) if found else np.empty((0, len(widths(market))), np.uint8)
    who, agents = np.arange(len(levels)), len(levels)
    if ids:
        coded = pa.chunked_array(ids).combine_chunks().dictionary_encode()
        who, agents = to_numpy(coded.indices).astype(np.int64), len(coded.dictionary)
    check_count(market, agents)
    counts: list[int] = []
    for j, width in enumerate(widths(market)):
        own = np.full(agents, width - 1, np.uint8)
        np.minimum.at(own, who, levels[:, j])
        counts += np.bincount(own, minlength=width).tolist()
    return Levels(agents, tuple(counts))


def _levels(market: Market, rows: OptionRows) -> NDArray[np.uint8]:
    """The level of each amount of each row, and of its value in the last column."""
    all_edges, last = grids(market), np.array(widths(market)) - 1
    levels = np.tile(last.astype(np.uint8), (rows.rows, 1))
    if rows.indptr is not None:
        assert rows.resources is not None and rows.amounts is not None
        row = np.repeat(np.arange(rows.rows), np.diff(rows.indptr))
        for j in range(len(market.declared)):
            own = rows.resources == j
            level = _level(rows, row[own], rows.amounts[own], all_edges[j], market.declared[j].name)
            np.minimum.at(levels[:, j], row[own], level)
    else:
        every, matrix = np.arange(rows.rows), rows.dense()
        for j, resource in enumerate(market.declared):
            levels[:, j] = _level(rows, every, matrix[:, j], all_edges[j], resource.name)
    levels[:, -1] = _level(rows, np.arange(rows.rows), rows.values, all_edges[-1], "value")
    return levels


def _level(
    rows: OptionRows,
    row: NDArray[np.int64],
    amounts: NDArray[np.float64],
    edges: tuple[float, ...],
    what: str,
) -> NDArray[np.uint8]:
    """The level of each amount; the row of each is for errors."""
    bad = np.flatnonzero(~(np.isfinite(amounts) & (amounts >= 0.0)))
    if len(bad):
        at = int(row[bad[0]])
        who = rows.first + at if rows.ids is None else repr(rows.ids[at].as_py())
        raise AgentsError(
            f"agent {who}: {what!r} is {float(amounts[bad[0]])!r}, not a number of at least 0"
        )
    reached = len(edges) - np.searchsorted(np.array(edges[::-1]), amounts)
    level: NDArray[np.uint8] = np.where(amounts > 0.0, reached, len(edges) + 1).astype(np.uint8)
    return level
