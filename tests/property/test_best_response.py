"""Best response: the kernels against big integers, bit for bit, however the work is cut."""

from dataclasses import replace
from functools import cache

import numba
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers import (
    SHARE,
    Records,
    coin_of,
    finished_board,
    given_of,
    load_of,
    share_of,
    take,
    total,
    whole_market,
)
from jdpack import best_response, encoding
from jdpack.agents import Agents, is_sparse
from jdpack.allocate import _option_of_coin, best_option
from jdpack.engines.memory import MemoryEngine
from jdpack.market import PRICE_CODE_MAX

CODE_MAX, VALUE_MAX = 65535, 2**32 - 1
storages = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
several = pytest.mark.parametrize("options", [1, 3], ids=["single", "multi"])
seeds = st.integers(0, 2**32 - 1)

# Price codes from nothing to the most there is. Multiples of 2^20 make exact ties with values;
# 2^36 and more make costs above 2^53, which doubles can no longer count.
codes = st.sampled_from([0, 1, 2, 255, 256, 32768, CODE_MAX - 1, CODE_MAX]) | st.integers(
    0, CODE_MAX
)
values = st.sampled_from([0, 1, 2, VALUE_MAX - 1, VALUE_MAX]) | st.integers(0, VALUE_MAX)
prices = (
    st.sampled_from([0, 1, 2**20, 2**36, 2**37 - 1, 2**52 - 1, 2**52])
    | st.integers(0, 2**16).map(lambda k: k * 2**20)
    | st.integers(0, PRICE_CODE_MAX)
)


@st.composite
def markets(draw):
    """A few agents in codes, with ties between options and between value and cost."""
    sparse, options = draw(st.booleans()), draw(st.integers(1, 4))
    m = draw(st.integers(6, 9)) if sparse else draw(st.integers(1, 4))
    n = draw(st.integers(1, 6))
    market = whole_market(m, agents=n, sparse=sparse, options=options)
    posted = [tuple(draw(prices) for _ in range(m)) for _ in range(draw(st.integers(1, 4)))]
    agents = []
    for _ in range(market.agents):
        offers = []
        for _ in range(draw(st.integers(1, options))):
            demand = [0] * m
            for j in draw(st.permutations(range(m)))[: draw(st.integers(0, market.bundle_size))]:
                demand[j] = draw(codes)
            cost = sum(c * p for c, p in zip(demand, posted[0], strict=True))
            tie = min(-(-cost // 2**20), VALUE_MAX)
            value = draw(values | st.sampled_from([tie, max(0, tie - 1)]))
            offers.append((value, demand))
        if len(offers) > 1 and draw(st.booleans()):
            offers[-1] = offers[0]  # the first of two equal options is taken
        agents.append(offers)
    return Records(market, list(range(market.agents)), agents), posted


def exact(records):
    """The records are whole numbers in a market where codes are the numbers themselves."""
    return [[(v, tuple(d)) for v, d in options] for options in records.agents]


@given(markets())
def test_sums_are_those_of_big_integers(drawn):
    records, posted = drawn
    encoded = records.encode()
    for price in posted:
        found = best_response.sums(encoded.parts, price)
        assert (list(found.demand), found.welfare) == total(exact(records), price)
        for options in exact(records):  # and so does the agent's own function
            assert best_option([(v, list(d)) for v, d in options], price) == take(options, price)


@given(
    markets(),
    st.lists(st.integers(1, 2**36), min_size=4, max_size=4),
    st.integers(0, SHARE),
    st.binary(min_size=16, max_size=16),
)
@example(None, [2**39 - 4, 1, 1, 1], SHARE, bytes(16))
def test_shares_coins_and_loads_are_those_of_big_integers(drawn, weights, factor, seed):
    if drawn is None:  # an agent that wins every round, at the largest weights and factor
        drawn = Records(whole_market(1, agents=1), [0], [[(VALUE_MAX, [1])]]), [(1,)] * 4
    records, posted = drawn
    rounds = list(zip(posted, weights, strict=False))
    agents = exact(records)
    shares = [share_of(options, rounds, factor) for options in agents]
    coins = [coin_of(seed, i) for i in range(len(agents))]
    given = [given_of(s, c) for s, c in zip(shares, coins, strict=True)]
    for divisible, expected in [(True, flat(shares)), (False, flat(given))]:
        records = replace(records, market=remade(records.market, divisible=divisible))
        board = finished_board(records.market, rounds, factor, seed)
        found = MemoryEngine(records.encode()).allocate(board)
        assert found.dropped == 0  # the supply of 1,000 agents is ample
        assert found.shares.tolist() == expected
        assert list(found.loads) == load_of(agents, expected)


def remade(market, *, divisible):
    return type(market).from_dict(market.to_dict() | {"divisible": divisible})


@given(st.data())
def test_coins_at_the_edges_of_shares(data):
    """A coin on an edge falls on the option that begins there."""
    shares = data.draw(st.lists(st.integers(0, SHARE // 4), min_size=1, max_size=4))
    edges = [sum(shares[:o]) for o in range(len(shares) + 1)]
    coins = [edge * 2**29 + step for edge in edges for step in (-1, 0, 1, 2**29 - 1)]
    coins = [c for c in coins if 0 <= c < 2**53]
    market = whole_market(1, agents=len(coins), options=4)
    records = Records(market, list(range(len(coins))), [[(1, [1])] * len(shares)] * len(coins))
    (part,) = records.encode().parts
    found = np.array(shares * len(coins), np.uint32)
    best_response.flip(part, found, np.repeat(np.array(coins, np.uint64), len(shares)))
    expected = [given_of(shares, c) for c in coins]
    assert found.tolist() == flat(expected)
    for c, whole in zip(coins, expected, strict=True):
        option = _option_of_coin(shares, c)
        assert whole == [SHARE * (o == option) for o in range(len(shares))]


# --- however the work is cut --------------------------------------------------------------


@cache
def many(sparse: bool, options: int) -> Records:
    """Enough rows for several blocks and for work on several threads."""
    rng = np.random.default_rng([sparse, options])
    m = 8 if sparse else 3
    agents = 5000 if options == 1 else 2500
    market = whole_market(m, agents=agents, sparse=sparse, options=options)
    assert is_sparse(market) == sparse
    offers = []
    for _ in range(agents):
        several = []
        for _ in range(int(rng.integers(1, options + 1))):
            touched = rng.permutation(m) < market.bundle_size
            demand = (rng.integers(0, 65536, m) * touched).tolist()
            several.append((int(rng.integers(0, 2**32)), demand))
        offers.append(several)
    ids = [int(i) for i in rng.permutation(10 * agents)[:agents] - 5 * agents]
    return Records(market, ids, offers)


PRICES = [
    tuple(2 ** int(k) for k in np.random.default_rng(t).integers(30, 36, 8)) for t in range(3)
]
ROUNDS = [(price, 7 + t) for t, price in enumerate(PRICES)]


def outcome(agents: Agents, threads: int | None = None):
    """All that depends on the records: sums, shares, loads."""
    m = len(agents.market.resources)
    rounds = [(p[:m], w) for p, w in ROUNDS]
    engine = MemoryEngine(agents, threads)
    allocation = engine.allocate(finished_board(agents.market, rounds, SHARE // 3))
    return [engine.sums(p) for p, _ in rounds], allocation.shares.tolist(), allocation.loads


@storages
@several
def test_several_blocks_agree_with_big_integers(sparse, options):
    records = many(sparse, options)
    agents, m = exact(records), len(records.market.resources)
    rounds = [(p[:m], w) for p, w in ROUNDS]
    sums, shares, loads = outcome(records.encode())
    assert [(list(s.demand), s.welfare) for s in sums] == [total(agents, p) for p, _ in rounds]
    assert 0 < sums[0].welfare < sum(max(v for v, _ in options) for options in agents)
    seed = bytes(range(16))
    expected = [
        given_of(share_of(options, rounds, SHARE // 3), coin_of(seed, agent))
        for agent, options in zip(records.ids, agents, strict=True)
    ]
    assert shares == flat(expected)
    assert list(loads) == load_of(agents, flat(expected))


@storages
@several
def test_threads_and_chunks_do_not_matter(sparse, options, monkeypatch):
    encoded = many(sparse, options).encode()
    expected = outcome(encoded)
    used, real = [], best_response.sums

    def counting(*arguments):
        used.append(numba.get_num_threads())
        return real(*arguments)

    monkeypatch.setattr(best_response, "sums", counting)
    before = numba.get_num_threads()
    for threads in range(1, numba.config.NUMBA_NUM_THREADS + 1):
        assert outcome(encoded, threads) == expected
        assert set(used) == {threads}
        assert numba.get_num_threads() == before  # the caller's own setting comes back
        used.clear()
    for chunks in [1, 2, 3, 7]:
        monkeypatch.setattr(best_response, "_chunks", lambda part, chunks=chunks: chunks)
        assert outcome(encoded) == expected


@storages
@several
def test_parts_do_not_matter(sparse, options, monkeypatch):
    records = many(sparse, options)
    expected = outcome(records.encode())
    monkeypatch.setattr(encoding, "_PART_BYTES", 1)
    encoded = records.encode()
    assert len(encoded.parts) > 1
    assert outcome(encoded) == expected


@storages
@several
def test_the_order_of_agents_does_not_matter(sparse, options):
    records = many(sparse, options)
    sums, shares, loads = outcome(records.encode())
    order = np.random.default_rng(9).permutation(len(records.ids))
    moved = Records(
        records.market, [records.ids[i] for i in order], [records.agents[i] for i in order]
    )
    moved_sums, moved_shares, moved_loads = outcome(moved.encode())
    assert (moved_sums, moved_loads) == (sums, loads)
    by_agent = dict(zip(records.ids, grouped(records, shares), strict=True))
    assert by_agent == dict(zip(moved.ids, grouped(moved, moved_shares), strict=True))


def grouped(records, shares):
    left = iter(shares)
    return [[next(left) for _ in options] for options in records.agents]


def flat(lists):
    return [item for some in lists for item in some]


# --- supply holds, whatever happens -------------------------------------------------------


@settings(max_examples=60)
@given(seeds, st.booleans(), st.booleans(), st.integers(1, 3))
def test_if_the_bound_fails_agents_are_dropped_by_their_coins(seed, sparse, divisible, options):
    """The fewest agents, the largest coins first, until every supply holds."""
    rng = np.random.default_rng(seed)
    m, n = (8 if sparse else 2), 40
    market = whole_market(m, agents=n, sparse=sparse, options=options, divisible=divisible)
    data = market.to_dict()
    for resource in data["resource"]:
        resource["supply"] = 65535.0 * float(rng.integers(1, 12))
    market = type(market).from_dict(data)
    records = Records(market, list(range(n)), [offers(rng, market) for _ in range(n)])
    agents, coin_seed = records.codes(), rng.bytes(16)
    rounds = [(tuple(int(p) for p in rng.integers(0, 2**36, m)), 1) for _ in range(3)]
    shares = [share_of(options, rounds, SHARE) for options in agents]
    coins = [coin_of(coin_seed, i) for i in range(n)]
    if not divisible:
        shares = [given_of(s, c) for s, c in zip(shares, coins, strict=True)]
    winners = sorted((i for i in range(n) if any(shares[i])), key=lambda i: -coins[i])
    dropped = 0
    while max(load_of(agents, flat(shares))) > market.supply_code * SHARE:
        shares[winners[dropped]] = [0] * len(agents[winners[dropped]])
        dropped += 1
    found = MemoryEngine(records.encode()).allocate(
        finished_board(market, rounds, SHARE, coin_seed)
    )
    assert found.shares.tolist() == flat(shares)
    assert found.dropped == dropped
    assert list(found.loads) == load_of(agents, flat(shares))


def offers(rng, market):
    m = len(market.resources)
    return [
        (
            float(rng.integers(2**31, 2**32 - 1)),
            (rng.integers(0, 65536, m) * (rng.permutation(m) < market.bundle_size)).tolist(),
        )
        for _ in range(int(rng.integers(1, market.options + 1)))
    ]
