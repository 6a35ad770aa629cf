"""Screening: skipping decided agents gives the same integers as asking everybody."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import over_parts
from jdpack import Market
from jdpack.engines import best_response, giving, screening, shard
from jdpack.engines.memory import MemoryEngine
from jdpack.engines.screening import IN, OPEN, OUT, Box
from jdpack.market.grid import PRICE_CODE_MAX
from jdpack.records.codes import BLOCK
from jdpack.records.encode import encode
from jdpack.records.tables import array_pieces
from jdpack.records.threads import Threads

LAYOUTS = ["dense", "sparse"]


def agents_of(layout: str, options: int, seed: int, n: int = 3 * BLOCK):
    """Agents close to indifferent at prices near 1, some of them exactly indifferent."""
    rng = np.random.default_rng(seed)
    m, k = (3, 3) if layout == "dense" else (12, 2)
    counts = rng.integers(1, options + 1, n)
    rows = int(counts.sum())
    demands = rng.integers(0, 4, (rows, m)) / 3.0
    if layout == "sparse":
        for row in demands:
            row[rng.permutation(m)[rng.choice([1, k]) :]] = 0.0
    values = np.clip(demands.sum(axis=1) / m * rng.uniform(0.5, 1.5, rows), 0.0, 1.0)
    market = Market(
        supply=[float(n)] * m, max_demand=1.0, max_value=1.0, agents=n, bundle_size=k,
        options=options,
    )  # fmt: skip
    ids = None if options == 1 else np.repeat(np.arange(n), counts)
    return encode(market, array_pieces(market, values, demands, ids))


def prices_near(agents, rng, spread: float) -> tuple[int, ...]:
    m = len(agents.market.resources)
    one = agents.market.value_cap_code * 2**20 / (m * 65535)
    return tuple(int(p) for p in one * np.exp(rng.normal(0.0, spread, m)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [1, 3])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.001, 0.02, 0.3]))
def test_a_box_gives_the_demand_of_everybody(layout, options, seed, spread):
    agents, rng = agents_of(layout, options, seed % 5), np.random.default_rng(seed)
    posted = [prices_near(agents, rng, spread) for _ in range(4)]
    low, high = np.min(posted, axis=0).astype(float), np.max(posted, axis=0).astype(float)
    box = Box.screen(agents.parts, low, high, agents.rows, Threads(2))
    assert box is not None and sum(part.rows for part in box.open) < agents.rows
    for prices in [*posted, tuple(int(p) for p in low), tuple(int(p) for p in high)]:
        rest = over_parts(best_response.demand, box.open, prices)
        both = tuple(a + b for a, b in zip(box.demand, rest, strict=True))
        assert both == over_parts(best_response.demand, agents.parts, prices)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [1, 3])
def test_states_are_what_agents_do_at_every_price_of_the_box(layout, options):
    agents, rng = agents_of(layout, options, 1), np.random.default_rng(2)
    low = np.array(prices_near(agents, rng, 0.0), dtype=float)
    high = np.floor(low * 1.05)
    (part,) = agents.parts
    states = screening.decided(part, low, high)
    assert {OUT, IN, OPEN} == set(np.unique(states))
    for _ in range(20):
        prices = np.floor(rng.uniform(low, high))
        taken = best_response.shares(part, prices[None, :], np.ones(1, np.int64))
        assert np.all(taken[states == IN] > 0) and np.all(taken[states == OUT] == 0)
    if options > 1:  # agents stay whole
        heads = np.flatnonzero(agents.starts())
        assert np.array_equal(
            np.minimum.reduceat(states == OPEN, heads), np.maximum.reduceat(states == OPEN, heads)
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [1, 3])
def test_rows_of_a_part_are_those_rows(layout, options):
    agents = agents_of(layout, options, 3)
    (part,), rng = agents.parts, np.random.default_rng(4)
    some = np.flatnonzero(rng.random(agents.count) < 0.3)
    rows = np.flatnonzero(np.isin(agents.numbers(), some))
    fewer = screening.rows_of(part, rows)
    assert fewer.rows == len(rows) and np.all(fewer.fill <= BLOCK)
    for _ in range(5):
        prices = np.array([prices_near(agents, rng, 0.1)], dtype=float)
        all_shares = best_response.shares(part, prices, np.ones(1, np.int64))
        shares = best_response.shares(fewer, prices, np.ones(1, np.int64))
        assert np.array_equal(shares, all_shares[rows])
        m = len(agents.market.resources)
        assert giving.loads(fewer, m, shares) == giving.loads(
            part, m, np.where(np.isin(np.arange(part.rows), rows), all_shares, 0).astype(np.uint32)
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [1, 3])
def test_an_engine_answers_a_walk_of_prices_as_if_it_asked_everybody(monkeypatch, layout, options):
    monkeypatch.setattr(shard, "_SCREENED", 0)
    agents, rng = agents_of(layout, options, 5), np.random.default_rng(6)
    engine, prices, inside = MemoryEngine(agents), prices_near(agents, rng, 0.5), 0
    for t in range(60):
        spread = 0.3 if t < 5 or t == 40 else 0.004
        prices = tuple(int(p * np.exp(rng.normal(0.0, spread))) for p in prices)
        assert engine.demand(prices) == over_parts(best_response.demand, agents.parts, prices)
        box = engine.shard.boxes.box
        inside += box is not None and box.holds(np.array(prices, dtype=float))
    assert inside > 20


def test_free_goods_and_prices_beyond_reach():
    agents = agents_of("dense", 1, 7)
    m = len(agents.market.resources)
    for low, high in [(0.0, 0.0), (0.0, float(PRICE_CODE_MAX)), (2.0**52, 2.0**52)]:
        box = Box.screen(agents.parts, np.full(m, low), np.full(m, high), agents.rows, Threads(2))
        for price in {int(low), int(high)}:
            rest = over_parts(best_response.demand, box.open, (price,) * m)
            assert tuple(a + b for a, b in zip(box.demand, rest, strict=True)) == (
                over_parts(best_response.demand, agents.parts, (price,) * m)
            )


def test_a_box_in_which_too_many_are_open_does_not_pay():
    agents = agents_of("dense", 1, 8)
    low, high = np.zeros(3), np.full(3, float(PRICE_CODE_MAX))
    assert Box.screen(agents.parts, low, high, agents.rows // 2, Threads(2)) is None
    assert Box.screen(agents.parts, low, high, agents.rows, Threads(2)) is not None


def test_the_comparison_can_fail():
    """A box used for prices outside it gives another demand."""
    agents, rng = agents_of("dense", 1, 8), np.random.default_rng(9)
    low = np.array(prices_near(agents, rng, 0.0), dtype=float)
    box = Box.screen(agents.parts, low, low, agents.rows, Threads(2))
    prices = tuple(int(p) for p in 1.1 * low)
    rest = over_parts(best_response.demand, box.open, prices) if box.open else (0,) * len(low)
    assert tuple(a + b for a, b in zip(box.demand, rest, strict=True)) != (
        over_parts(best_response.demand, agents.parts, prices)
    )
    assert not box.holds(1.1 * low)
