"""Encoding: exact codes, rounded to the safe side, the same from every source and layout."""

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import (
    LONG,
    Records,
    decode,
    long_table,
    random_market,
    random_records,
    wide_table,
)
from jdpack.market.market import Market
from jdpack.records import encode as encode_module
from jdpack.records import readers, tables
from jdpack.records.codes import BLOCK, Part, is_sparse, lay_out
from jdpack.records.encode import encode

seeds = st.integers(0, 2**32 - 1)
storages = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
several = pytest.mark.parametrize("options", [1, 3], ids=["single", "multi"])


# --- each code is exact -------------------------------------------------------------------


@st.composite
def edge_records(draw) -> Records:
    """Records at and next to the boundaries between codes, where a rounding error would show."""
    sparse = draw(st.booleans())
    market = random_market(np.random.default_rng(draw(seeds)), agents=draw(st.integers(1, 6)))
    if sparse:
        size = st.floats(1e-3, 1e6)
        supply = [draw(size) for _ in range(8)]
        market = Market(
            supply=supply,
            max_demand=[s * draw(st.floats(1e-3, 1.0)) for s in supply],
            max_value=draw(size),
            agents=market.agents,
            bundle_size=2,
        )

    def near_edge(size: float, cap: float) -> float:
        edge = size * draw(st.integers(0, math.ceil(cap / size)))
        steps = draw(st.integers(-2, 2))
        for _ in range(abs(steps)):
            edge = math.nextafter(edge, math.copysign(math.inf, steps))
        return min(max(edge, 0.0), cap)

    def number(size: float, cap: float) -> float:
        kind = draw(st.sampled_from(["edge", "any", "cap", "tiny"]))
        if kind == "edge":
            return near_edge(size, cap)
        return {"any": draw(st.floats(0.0, cap)), "cap": cap, "tiny": 5e-324}[kind]

    agents = []
    for _ in range(market.agents):
        amounts = [0.0] * len(market.resources)
        touched = draw(st.permutations(range(len(amounts))))[: market.bundle_size]
        for j in touched:
            amounts[j] = number(market.unit_sizes[j], market.resources[j].max_demand)
        agents.append([(number(market.value_step, market.max_value), amounts)])
    return Records(market, list(range(market.agents)), agents)


@settings(max_examples=150)
@given(edge_records())
def test_codes_are_exact(records):
    """The smallest code that covers the amount, and the largest that the value covers."""
    market, encoded = records.market, decode(records.encode())
    step = Fraction(market.value_step)
    for option, (value_code, codes) in zip(flat(records.agents), flat(encoded), strict=True):
        value, amounts = option
        assert value_code * step <= Fraction(value) < (value_code + 1) * step
        assert value_code <= market.value_cap_code <= 2**32 - 1
        for amount, code, size in zip(amounts, codes, market.unit_sizes, strict=True):
            assert code * Fraction(size) >= Fraction(amount)
            assert code == 0 or (code - 1) * Fraction(size) < Fraction(amount)
            assert code <= 65535
    assert encoded == records.codes(), "the kernels encode as Market.demand_code and value_code"


@given(edge_records(), seeds)
def test_what_fits_in_codes_fits_in_truth(records, seed):
    market = records.market
    if max(market.supply_codes) > 10**6:
        # Smaller and smaller caps, so that a few thousand agents can fill the supply.
        market = replace_supply(market)
    rng = np.random.default_rng(seed)
    for j, r in enumerate(market.resources):
        assert filled(market, j, rng, market.demand_code) <= Fraction(r.supply)


def test_negative_control_codes_rounded_down_do_not_fit():
    market = Market(supply=[73.0], max_demand=0.01, max_value=1.0, agents=2)
    rng = np.random.default_rng(5)

    def down(j: int, amount: float) -> int:
        return max(1, int(amount / market.unit_sizes[j]))

    assert filled(market, 0, rng, market.demand_code) <= Fraction(73)
    assert filled(market, 0, rng, down) > Fraction(73)


def filled(market: Market, j: int, rng: np.random.Generator, code_of: Any) -> Fraction:
    """Random demands that fill a supply to the last code, on and off the grid."""
    left, amounts, cap = market.supply_codes[j], Fraction(0), market.resources[j].max_demand
    while left > 0:
        code = float(rng.integers(1, 65536)) - float(rng.random() < 0.5) * rng.random()
        amount = min(cap, market.unit_sizes[j] * code)
        code = code_of(j, amount)
        if code > left:
            code, amount = left, left * market.unit_sizes[j]
        left, amounts = left - code, amounts + Fraction(amount)
    return amounts


def replace_supply(market: Market) -> Market:
    caps = [r.max_demand for r in market.resources]
    return Market(
        supply=[c * 7.3 for c in caps], max_demand=caps, max_value=1.0, agents=market.agents
    )


def flat(agents):
    return [option for options in agents for option in options]


# --- every source gives the same codes ----------------------------------------------------


def from_arrow(table, folder):
    return table


def from_pandas(table, folder):
    return table.to_pandas()


def from_polars(table, folder):
    return pl.from_arrow(table)


def from_parquet(table, folder):
    pyarrow.parquet.write_table(table, folder / "agents.parquet", row_group_size=777)
    return folder / "agents.parquet"


def from_parquet_folder(table, folder):
    _pieces(table, folder)
    return folder


def from_parquet_pattern(table, folder):
    _pieces(table, folder)
    return f"{folder}/part-*.parquet"


def from_csv(table, folder):
    pyarrow.csv.write_csv(table, folder / "agents.csv")
    return str(folder / "agents.csv")


def from_csv_folder(table, folder):
    for name, piece in _cut(table):
        pyarrow.csv.write_csv(piece, folder / f"part-{name}.csv")
    return folder


def _pieces(table, folder):
    for name, piece in _cut(table):
        pyarrow.parquet.write_table(piece, folder / f"part-{name}.parquet", row_group_size=1000)


def _cut(table):
    """Pieces of uneven length, most of which end within an agent."""
    edges = [0, 1, 2, 1500, 1501, table.num_rows - 1, table.num_rows]
    for name, (start, stop) in enumerate(pairwise(edges)):
        yield name, table.slice(start, stop - start)


SOURCES = [
    from_arrow,
    from_pandas,
    from_polars,
    from_parquet,
    from_parquet_folder,
    from_parquet_pattern,
    from_csv,
    from_csv_folder,
]


@cache
def table_of(layout, sparse: bool, options: int) -> pa.Table:
    return layout(big(sparse, options)[0])


@cache
def big(sparse: bool, options: int) -> tuple[Records, list]:
    """Rows for several blocks, parts and chunks, and their codes by the scalar functions."""
    rng = np.random.default_rng([sparse, options])
    market = random_market(
        rng, agents=4500 if options == 1 else 2200, sparse=sparse, options=options
    )
    assert is_sparse(market) == sparse
    records = random_records(rng, market, ids=[f"agent {i}" for i in range(market.agents)])
    return records, records.codes()


@pytest.fixture
def small_pieces(monkeypatch):
    """Parts of one block, chunks of 1,024 rows, CSV blocks of a few kilobytes."""
    monkeypatch.setattr(encode_module, "_PART_BYTES", 1)
    monkeypatch.setattr(tables, "_CELLS", 1)
    monkeypatch.setattr(readers, "_CSV_BYTES", 5000)


@pytest.mark.usefixtures("small_pieces")
@storages
@several
@pytest.mark.parametrize("layout", [wide_table, long_table])
@pytest.mark.parametrize("source", SOURCES)
def test_tables_and_files_give_the_codes_of_the_market(sparse, options, layout, source, tmp_path):
    records, expected = big(sparse, options)
    market = records.market
    if layout is long_table:
        market = with_columns(market, LONG)
    encoded = encode(
        market, tables.pieces(market, source(table_of(layout, sparse, options), tmp_path))
    )
    assert decode(encoded) == expected
    assert ids_of(encoded) == records.ids
    check_storage(encoded)


def as_lists(matrix):
    return matrix.tolist()


@pytest.mark.usefixtures("small_pieces")
@storages
@several
@pytest.mark.parametrize(
    "kind",
    [
        np.asarray,
        np.asfortranarray,
        as_lists,
        pd.DataFrame,
        scipy.sparse.csr_matrix,
        scipy.sparse.csc_array,
        scipy.sparse.coo_array,
    ],
)
def test_arrays_give_the_codes_of_the_market(sparse, options, kind):
    records, expected = big(sparse, options)
    arrays = records.arrays()
    arrays["demands"] = kind(arrays["demands"])
    encoded = encode(records.market, tables.array_pieces(records.market, **arrays))
    assert decode(encoded) == expected
    assert ids_of(encoded) == records.ids
    check_storage(encoded)


@storages
def test_whole_numbers_and_short_floats_are_encoded_as_doubles(sparse):
    rng = np.random.default_rng(5)
    market = Market(
        supply=[1000.0] * 9,
        max_demand=100,
        max_value=100,
        agents=50,
        bundle_size=2 if sparse else 9,
    )
    demands = rng.integers(0, 100, (50, 9)) * (np.arange(9) < 2)
    values = rng.integers(0, 100, 50)
    expected = decode(encode(market, tables.array_pieces(market, values * 1.0, demands * 1.0)))
    for kind in ["i1", "i8", "u2", "u8", "f2", "f4", "g"]:
        arrays = values.astype(kind), demands.astype(kind)
        assert decode(encode(market, tables.array_pieces(market, *arrays))) == expected
    columns = {r.column: demands[:, j] for j, r in enumerate(market.resources)}
    table = pa.table({"id": np.arange(50), "value": values} | columns)
    for kind in [pa.int8(), pa.uint64(), pa.float32(), pa.decimal128(25, 2), pa.decimal256(50, 3)]:
        fields = [pa.field("id", pa.int64()), pa.field("value", kind)]
        fields += [pa.field(r.column, kind) for r in market.resources]
        assert (
            decode(encode(market, tables.pieces(market, table.cast(pa.schema(fields))))) == expected
        )


@settings(max_examples=30)
@given(seeds, st.booleans(), st.integers(1, 4), st.booleans())
def test_any_cut_into_batches_gives_the_same_storage(seed, sparse, options, by_column):
    rng = np.random.default_rng(seed)
    market = random_market(rng, agents=30, sparse=sparse, options=options)
    records = random_records(rng, market)
    arrays = records.arrays()
    arrays["demands"] = np.asfortranarray(arrays["demands"]) if by_column else arrays["demands"]
    (piece,) = tables.array_pieces(market, **arrays)
    (whole,) = tables.read(market, piece)
    cuts = np.unique(np.concatenate([[0, whole.rows], rng.integers(0, whole.rows, 6)]))
    pieces = [cut(whole, a, b) for a, b in pairwise(cuts)]
    encoded = encode(market, [pieces])
    assert decode(encoded) == records.codes()
    assert encoded.count == 30


def cut(batch, start, stop):
    return replace(
        batch,
        values=batch.values[start:stop],
        ids=batch.ids.slice(start, stop - start),
        columns=batch.columns and [column[start:stop] for column in batch.columns],
        matrix=None if batch.matrix is None else batch.matrix[start:stop],
    )


@storages
@several
def test_codes_take_two_bytes_a_demand_and_four_a_value(sparse, options):
    records, codes = big(sparse, options)
    encoded = records.encode()
    rows, blocks = encoded.rows, sum(len(p.fill) for p in encoded.parts)
    assert rows / BLOCK <= blocks <= rows / (BLOCK - options + 1) + 1
    per_row = 4 + (options > 1) + (0 if sparse else 2 * len(records.market.resources))
    if not sparse:
        assert encoded.nbytes == blocks * BLOCK * per_row
        return
    pairs = sum(code > 0 for agent in codes for _, demand in agent for code in demand)
    empty = blocks * BLOCK - rows  # unused rows at the ends of blocks
    offsets = 16 * (blocks + len(encoded.parts))
    most = (2 * pairs + empty * records.market.bundle_size) * 4 + offsets
    assert 4 * pairs <= encoded.nbytes - blocks * BLOCK * per_row <= most


@settings(max_examples=25)  # of 50,000 pairs each
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 0.9, 0.999]))
def test_bundles_of_uneven_sizes_take_at_most_twice_their_room(seed, few):
    """One row of a block may have thousands of pairs while others have one or none."""
    rng = np.random.default_rng(seed)
    fill = np.array([BLOCK, 5, BLOCK - 3])
    rows = int(fill.sum())
    counts = np.where(rng.random(rows) < few, rng.integers(0, 2, rows), rng.integers(0, 50, rows))
    counts[rng.integers(rows)] = 3000
    pairs = int(counts.sum())
    resources, codes = rng.integers(0, 4000, pairs), rng.integers(1, 65536, pairs)
    part = Part(np.empty((3, BLOCK), np.uint32), fill, np.empty((0, 0), np.uint8), np.empty(0))
    lay_out(part, *(a.astype(np.uint16) for a in (counts, resources, codes)))
    width = np.diff(part.offsets) // BLOCK
    assert (width[[0, 2]] * fill[[0, 2]]).sum() <= 2 * pairs and width.max() <= 3000
    found = []
    for b, n in enumerate(fill.tolist()):
        rows_of_block = [[] for _ in range(n)]
        for slot in range(part.offsets[b], part.offsets[b + 1], BLOCK):
            for i in range(n):
                if part.codes[slot + i]:
                    rows_of_block[i].append((part.resources[slot + i], part.codes[slot + i]))
        for pair in range(part.rest_offsets[b], part.rest_offsets[b + 1]):
            own = part.rest_resources[pair], part.rest_codes[pair]
            rows_of_block[part.rest_rows[pair]].append(own)
        found += rows_of_block
    assert [len(own) for own in found] == counts.tolist()
    flat = [pair for own in found for pair in own]
    assert flat == list(zip(resources.tolist(), codes.tolist(), strict=True))


def with_columns(market: Market, columns) -> Market:
    data = market.to_dict()
    data["agents"]["layout"] = columns.layout
    return Market.from_dict(data)


def ids_of(encoded) -> list:
    ids = encoded.ids.to_pylist()
    if encoded.market.options == 1:
        return ids
    return [agent for agent, start in zip(ids, encoded.starts(), strict=True) if start]


def check_storage(encoded):
    """The boundaries were reached, and no agent is split between two blocks."""
    assert len(encoded.parts) > 1
    for part in encoded.parts:
        assert (part.fill <= BLOCK).all()
        if part.starts.size:
            assert part.starts[:, 0].all()
