"""Batches: the kernels, the agent's own function and the bulk allocation match big integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import (
    CODE_MAX,
    SHARE,
    VALUE_MAX,
    Option,
    Records,
    coin_of,
    drawn_agents,
    factors_of,
    given_of,
    load_of,
    luck_of,
    many,
    scaled_of,
    take,
    total,
    welfare_of,
    whole_market,
)
from jdpack import Budget, allocate
from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Certificate, Header, Release, Seed, Step
from jdpack.common.batches import Batch
from jdpack.engines.memory import MemoryEngine
from jdpack.market.grid import PRICE_CODE_MAX
from jdpack.policies.mwu_online import MwuOnline
from jdpack.privacy.noise import Gaussian
from jdpack.records import encode, tables

ODD_IDS: list[Any] = [0, -1, 17, -(2**63), 2**63 - 1, 2**53 + 1, 10, 99]

prices = (
    st.sampled_from([0, 1, 2**20, 2**36, 2**37 - 1, PRICE_CODE_MAX])
    | st.integers(0, 2**16).map(lambda k: k * 2**20)
    | st.integers(0, PRICE_CODE_MAX)
)
codes = st.sampled_from([0, 1, CODE_MAX]) | st.integers(0, CODE_MAX)
values = st.sampled_from([0, 1, VALUE_MAX]) | st.integers(0, VALUE_MAX)
factors = st.sampled_from([0, 1, SHARE - 1, SHARE, SHARE]) | st.integers(0, SHARE)


def turn_of(order: bytes, agent: Any, count: int) -> int:
    """The batch of an agent: 44 bits of the hash of its id, split into equal ranges."""
    return (coin_of(order, agent) // 512) * count // 2**44


def exact(records: Records) -> list[list[Option]]:
    return [[(int(v), tuple(map(int, d))) for v, d in options] for options in records.agents]


def batch_shares(
    options: Sequence[Option], rounds: Sequence[Sequence[int]], index: int
) -> list[int]:
    """A full share of what an agent took in its own round; nothing if it was not asked."""
    taken = take(options, rounds[index]) if index < len(rounds) else None
    return [SHARE * (o == taken) for o in range(len(options))]


@st.composite
def markets(draw):
    """A few agents in codes, a number of batches, and prices for the first few batches."""
    sparse, options = draw(st.booleans()), draw(st.integers(1, 3))
    m = draw(st.integers(6, 8)) if sparse else draw(st.integers(1, 3))
    n, count = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    relation, divisible = draw(st.sampled_from(["replace-one", "add-remove"])), draw(st.booleans())
    market = whole_market(
        m, agents=n, sparse=sparse, options=options, neighbours=relation, divisible=divisible
    )
    played = draw(st.integers(1, count))
    posted = [tuple(draw(prices) for _ in range(m)) for _ in range(played)]
    agents = drawn_agents(draw, market, posted[0], codes, values)
    ids = ODD_IDS[:n] if draw(st.booleans()) else [f"é {i}" for i in range(n)]
    return Records(market, ids, agents), posted, count


def a_board(
    records: Records,
    posted: Sequence[Sequence[int]],
    count: int,
    seed: Seed,
    each: Sequence[int] | None = None,
) -> Billboard:
    """The billboard after these batches, finished if there are factors; all answers are zero."""
    market = records.market
    m = len(market.resources)
    budget = Budget(1.0, 1e-6, 0.02, 0.0, 1e-8)
    board = Billboard(Header(market, MwuOnline().to_dict(), budget, seed.commitment, private=False))
    for index, price in enumerate(posted):
        step = Step("demand", tuple(price), Gaussian((1.0,)), 3, Batch(index, count))
        board.post(Release(step, (0,) * m))
    if each is not None:
        board.post(Certificate(tuple(each), (0.0,) * m, 1e-8, 0.0, None, None, 0.01))
        board.post(seed)
    return board


@settings(max_examples=50)
@given(markets(), st.binary(min_size=16, max_size=16))
def test_the_demand_of_a_batch_is_that_of_big_integers(drawn, order):
    records, posted, count = drawn
    agents, engine = exact(records), MemoryEngine(records.encode())
    members = [
        [a for a, i in zip(agents, records.ids, strict=True) if turn_of(order, i, count) == index]
        for index in range(count)
    ]
    assert sum(map(len, members)) == len(agents)
    for price in posted:
        found = [engine.batch_demand([price], Batch(i, count), order) for i in range(count)]
        assert [list(demand) for demand in found] == [total(some, price)[0] for some in members]
        assert tuple(map(sum, zip(*found, strict=True))) == engine.demand(price)
        whole = engine.batch_demand([price] * count, Batch(count - 1, count), order)
        assert whole == engine.demand(price)


@settings(max_examples=50)
@given(markets(), st.data(), st.binary(min_size=16, max_size=16))
def test_all_that_follows_from_batches_is_that_of_big_integers(drawn, data, key):
    records, posted, count = drawn
    m, seed, agents = len(records.market.resources), Seed(key), exact(records)
    each = data.draw(st.lists(factors, min_size=m, max_size=m))
    bound = data.draw(st.integers(1, VALUE_MAX) | st.just(VALUE_MAX))
    open_board, board = [a_board(records, posted, count, seed, f) for f in (None, each)]
    order = open_board.header.order
    shares = [
        batch_shares(options, posted, turn_of(order, agent, count))
        for options, agent in zip(agents, records.ids, strict=True)
    ]
    coins = [coin_of(key, agent) for agent in records.ids]
    scaling = [factors_of(options, each) for options in agents]
    given = [given_of(s, f, c) for s, f, c in zip(shares, scaling, coins, strict=True)]
    scaled = [scaled_of(s, f) for s, f in zip(shares, scaling, strict=True)]

    engine = MemoryEngine(records.encode())
    assert engine.welfare(open_board) == welfare_of(agents, flat(shares))
    if not records.market.divisible:
        # An agent is granted all it took, whatever its coin: coins only matter for thinning.
        assert not any(engine.chance(open_board, bound))
        extent = -bound, bound
        luck = [luck_of(*agent, *extent) for agent in zip(agents, shares, given, strict=True)]
        assert engine.luck(open_board, seed, tuple(each), *extent) == sum(luck)
        assert engine.luck(open_board, seed, (SHARE,) * m, *extent) == 0
    expected = scaled if records.market.divisible else given
    engine = MemoryEngine(records.encode())
    found = engine.allocate(board)
    assert found.dropped == 0
    assert engine.shares(board, found).tolist() == flat(expected)
    assert list(found.loads) == load_of(agents, flat(expected))
    for i, agent in enumerate(records.ids):  # and so does the agent's own function
        own = allocate(
            board,
            value=[v for v, _ in records.agents[i]],
            demand=[d for _, d in records.agents[i]],
            agent=agent,
        )
        assert own.given == tuple(share / SHARE for share in expected[i])
        assert own.scaled == tuple(share / SHARE for share in scaled[i])
        assert own.rounds == tuple(share // SHARE for share in shares[i])


def flat(lists):
    return [item for some in lists for item in some]


# --- any division of the work -----------------------------------------------------------------

storages = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
several = pytest.mark.parametrize("options", [1, 3], ids=["single", "multi"])
CUTS = [(1, False), (7, True), (7, False), (4000, False)]
"""One batch, a few, and more batches than agents; in one part and in several."""


def some_rounds(m: int, count: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(count)
    return [tuple(row) for row in (2 ** rng.integers(30, 36, (count, m))).tolist()]


@storages
@several
@pytest.mark.parametrize(("count", "cut"), CUTS)
def test_several_blocks_agree_with_big_integers(sparse, options, count, cut, monkeypatch):
    records = many(sparse, options, 2500 if options == 1 else 1500)
    m, agents, seed = len(records.market.resources), exact(records), Seed(bytes(range(16)))
    if cut:
        monkeypatch.setattr(encode, "_PART_BYTES", 1)
    encoded = records.encode()
    assert (len(encoded.parts) > 1) == cut
    assert sum(len(part.fill) for part in encoded.parts) > 1
    posted = some_rounds(m, count)
    each = tuple(SHARE * (j + 2) // (j + 4) for j in range(m))
    board = a_board(records, posted[: max(1, count - 3)], count, seed, each)
    order = board.header.order
    turns = [turn_of(order, agent, count) for agent in records.ids]
    assert len(set(turns)) == count or len(set(turns)) < count // 2
    engine = MemoryEngine(encoded)
    for index in {0, count // 2, count - 1}:
        mine = [options for options, t in zip(agents, turns, strict=True) if t == index]
        found = engine.batch_demand([posted[index]], Batch(index, count), order)
        assert list(found) == total(mine, posted[index])[0]
    for first, last in {(0, count - 1), (count // 3, count // 2)}:
        block = [
            total([o for o, t in zip(agents, turns, strict=True) if t == index], posted[index])[0]
            for index in {t for t in turns if first <= t <= last}
        ]
        found = engine.batch_demand(posted[first : last + 1], Batch(last, count), order)
        assert list(found) == [sum(numbers) for numbers in zip([0] * m, *block, strict=True)]
    everybody = zip(agents, turns, records.ids, strict=True)
    rounds, expected = [step.prices for step in board.rounds], []
    for own, index, agent in everybody:
        shares = batch_shares(own, rounds, index)
        expected.append(given_of(shares, factors_of(own, each), coin_of(seed.seed, agent)))
    found = engine.allocate(board)
    assert engine.shares(board, found).tolist() == flat(expected)
    assert 0 < sum(s > 0 for s in flat(expected)) < len(agents)
    assert list(found.loads) == load_of(agents, flat(expected))
    for i in range(0, len(agents), 500):
        own = allocate(
            board,
            value=[v for v, _ in agents[i]],
            demand=[d for _, d in agents[i]],
            agent=records.ids[i],
        )
        assert own.given == tuple(share / SHARE for share in expected[i])


def test_an_engine_answers_for_the_order_that_it_is_asked_about():
    """Even if it has sorted its agents into the same number of batches before."""
    records = Records(whole_market(1, agents=8), list(range(8)), [[(9, [2**i])] for i in range(8)])
    engine = MemoryEngine(records.encode())
    for key in range(6):
        for count in (2, 3):
            order = bytes([key]) * 16
            mine = [i for i in range(8) if turn_of(order, i, count) == 1]
            assert engine.batch_demand([(0,)], Batch(1, count), order) == (sum(2**i for i in mine),)


def test_numbered_agents_have_the_turns_of_their_numbers():
    records = many(False, 1, 2500)
    plain = encode.encode(
        records.market,
        tables.array_pieces(
            records.market,
            [options[0][0] for options in records.agents],
            [options[0][1] for options in records.agents],
        ),
    )
    assert plain.ids is None
    order, price = bytes(range(16)), some_rounds(3, 1)[0]
    mine = [a for i, a in enumerate(exact(records)) if turn_of(order, i, 9) == 4]
    assert (
        list(MemoryEngine(plain).batch_demand([price], Batch(4, 9), order)) == total(mine, price)[0]
    )
