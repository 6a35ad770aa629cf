"""A search for neighbours that move the counts of levels further than `levels_change` claims.

Agents have any number of rows, anywhere in the table, with amounts at and around the edges. The
negative control runs the same search against smaller claims, and must refute each of them.
"""

import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from jdpack import Columns, Market, Neighbours
from jdpack.market.levels import edges, grids, widths
from jdpack.privacy import queries
from jdpack.records.levels import count_levels
from jdpack.run.arguments import source_of

ME = "me"


def market_of(rng, neighbours, agents, long=False) -> Market:
    m = int(rng.integers(1, 4))
    return Market(
        supply=[50.0] * m,
        max_demand=[float(rng.choice([1.0, 3.3, 20.0])) for _ in range(m)],
        max_value=float(rng.choice([10.0, 700.0])),
        agents=agents,
        options=int(rng.integers(1, 4)),
        neighbours=neighbours,
        columns=Columns(layout="long" if long else "wide"),
    )


def amounts(rng, grid, rows):
    """Numbers at, around and far beyond the edges, and zeros."""
    at = rng.choice([*grid, 0.0, 2.0 * grid[0], 1e9], rows)
    return np.maximum(0.0, at * rng.choice([1.0, 1.0, 1.0 - 1e-12, 1.0 + 1e-12, 0.5], rows))


def rows_of(rng, market, id) -> pd.DataFrame:
    """The rows of one agent; many more than the market allows, sometimes."""
    rows = int(rng.integers(1, 6))
    found = {"id": [id] * rows, "value": amounts(rng, grids(market)[-1], rows)}
    for r, grid in zip(market.declared, grids(market), strict=False):
        found[r.column] = amounts(rng, grid, rows)
    return pd.DataFrame(found)


def moves(rng, market, others, records) -> np.ndarray:
    """How far the counts move between two neighbours; None is an agent who is absent."""
    answers = []
    for own in records:
        table = pd.concat([*others, *([] if own is None else [own])])
        table = table.sample(frac=1, random_state=int(rng.integers(1000)))
        source = source_of(market, table, None, None, None, None, None, False)
        answers.append(np.array(count_levels(source).counts))
    return answers[1] - answers[0]


def search(neighbours, seeds=range(60)):
    """The largest sum of squares that was found for each number of resources, and the claims."""
    found = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        market = market_of(rng, neighbours, 5)
        others = [rows_of(rng, market, f"p{i}") for i in range(4)]
        both = [rows_of(rng, market, ME), rows_of(rng, market, ME)]
        if neighbours is Neighbours.ADD_REMOVE:
            both[0] = None
        moved = moves(rng, market, others, both)
        found.append((market, int((moved**2).sum()), int(np.abs(moved).max())))
    return found


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_no_neighbour_moves_the_counts_further_than_claimed(neighbours):
    for market, squares, most in search(neighbours):
        claim = queries.levels_change(market)
        assert squares * queries.LEVEL_UNIT**2 <= claim.squares
        assert most * queries.LEVEL_UNIT <= claim.most


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_negative_control_a_smaller_claim_is_refuted(neighbours):
    found = search(neighbours)
    for m in (1, 2, 3):
        largest = max(squares for market, squares, _ in found if len(market.declared) == m)
        assert largest == (2 if neighbours is Neighbours.REPLACE_ONE else 1) * (m + 1)


def test_negative_control_counting_rows_instead_of_agents_is_refuted(monkeypatch):
    """If every row counted, one agent could move a count by as many rows as it has."""
    monkeypatch.setattr(
        "jdpack.records.levels.plain_ids", lambda ids, first, where: pa.array(range(len(ids)))
    )
    monkeypatch.setattr("jdpack.records.levels.check_count", lambda market, agents: None)
    found = search(Neighbours.REPLACE_ONE, range(10))
    assert any(
        squares * queries.LEVEL_UNIT**2 > queries.levels_change(market).squares
        for market, squares, _ in found
    )


def test_a_long_table_has_the_counts_of_a_wide_one():
    rng = np.random.default_rng(1)
    market = market_of(rng, Neighbours.REPLACE_ONE, 4, long=True).changed(options=9)
    wide = pd.concat([rows_of(rng, market, f"p{i}") for i in range(4)])
    wide = wide.assign(option=wide.groupby("id").cumcount().astype(str))
    long = wide.melt(["id", "value", "option"], var_name="resource", value_name="amount")
    long = long.sample(frac=1, random_state=1)
    counts = [
        count_levels(source_of(one, table, None, None, None, None, None, False)).counts
        for one, table in (
            (market, long),
            (market.changed(columns=Columns(ignore=("option",))), wide),
        )
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("bound", [1.0, 30.0, 0.7, 1e-6, 123.4, 1e12])
def test_edges_are_round_numbers_below_the_bound(bound):
    found = edges(bound)
    assert found[0] == bound and list(found) == sorted(found, reverse=True)
    assert 36 <= len(found) <= 37 and found[-1] <= 1.5e-6 * bound
    assert all(b / a > 0.59 for a, b in itertools.pairwise(found[1:]))
    assert all(f"{edge:.0e}"[0] in "12357" for edge in found[1:])
    market = Market(supply=[bound], max_demand=bound, max_value=bound, agents=1)
    assert widths(market) == (len(found) + 2,) * 2
