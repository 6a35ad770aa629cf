"""Best response: the kernels match big integers bit for bit, for any division of the work."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers import (
    CODE_MAX,
    SHARE,
    VALUE_MAX,
    Records,
    check_chance,
    close_call,
    coin_of,
    curvature_of,
    drawn_agents,
    factors_of,
    finished_board,
    gauge_of,
    given_of,
    load_of,
    luck_of,
    many,
    open_board,
    scaled_of,
    share_of,
    take,
    total,
    welfare_of,
    whole_market,
)
from jdpack import allocate
from jdpack.agent.allocate import best_option, coin_places
from jdpack.billboard.lines import Seed
from jdpack.engines import best_response, curvature, giving, shard
from jdpack.engines.memory import MemoryEngine
from jdpack.market.grid import PRICE_CODE_MAX
from jdpack.records import encode
from jdpack.records.codes import BLOCK, Agents, Part

storages = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
several = pytest.mark.parametrize("options", [1, 3], ids=["single", "multi"])
seeds = st.integers(0, 2**32 - 1)

# Price codes from 0 to the maximum. Multiples of 2^20 make exact ties with values; from 2^36 on,
# costs exceed 2^53, where doubles are no longer exact.
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
    agents = drawn_agents(draw, market, posted[0], codes, values)
    return Records(market, list(range(market.agents)), agents), posted


def exact(records):
    """The records are whole numbers, in a market where codes equal the numbers."""
    return [[(v, tuple(d)) for v, d in options] for options in records.agents]


@given(markets())
def test_demand_and_value_are_those_of_big_integers(drawn):
    records, posted = drawn
    engine = MemoryEngine(records.encode())
    for price in posted:
        assert (list(engine.demand(price)), engine.value(price)) == total(exact(records), price)
        for options in exact(records):  # and so does the agent's own function
            assert best_option([(v, list(d)) for v, d in options], price) == take(options, price)


@given(markets())
def test_curvature_and_gauge_are_those_of_the_reference(drawn):
    records, posted = drawn
    engine = MemoryEngine(records.encode())
    for price in posted:
        assert list(engine.curvature(price)) == curvature_of(exact(records), price)
        assert list(engine.gauge(price)) == gauge_of(exact(records), price)


def close_market(seed: int, sparse: bool, options: int) -> tuple[Records, tuple[int, ...]]:
    """Agents whose values are near the costs of their options, inside and outside the band."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(6, 10)) if sparse else int(rng.integers(1, 5))
    market = whole_market(m, agents=8, sparse=sparse, options=options)
    prices = tuple(int(p) for p in 2.0 ** rng.uniform(10, 35, m) * rng.integers(0, 5, m).clip(0, 1))
    agents = []
    for _ in range(market.agents):
        several = []
        for _ in range(int(rng.integers(1, options + 1))):
            demand = (
                2.0 ** rng.uniform(0, 16, m) * (rng.permutation(m) < market.bundle_size)
            ).astype(int)
            cost = int(sum(int(c) * p for c, p in zip(demand, prices, strict=True)) >> 20)
            value = min(VALUE_MAX, int(cost * rng.choice([0.8, 0.85, 0.9, 1.0, 1.1, 1.15, 1.2])))
            several.append((value, demand.tolist()))
        agents.append(several)
    return Records(market, list(range(market.agents)), agents), prices


@given(seeds, st.booleans(), st.integers(1, 4))
def test_close_calls_are_those_of_the_reference(seed, sparse, options):
    records, prices = close_market(seed, sparse, options)
    engine = MemoryEngine(records.encode())
    assert list(engine.curvature(prices)) == curvature_of(exact(records), prices)
    assert list(engine.gauge(prices)) == gauge_of(exact(records), prices)


@storages
def test_the_search_reaches_close_calls_of_every_kind(sparse):
    """One option against nothing, from both sides, and one option against another."""
    seen = []
    for seed in range(40):
        records, prices = close_market(seed, sparse, 3)
        calls = [close_call(options, prices) for options in exact(records)]
        seen += [c and (min(c[0]) < 0, max(c[0]) > 0) for c in calls]
    for kind in [None, (True, False), (False, True), (True, True)]:
        assert seen.count(kind) > 20


def test_at_the_edge_of_the_band():
    """One value code more or less decides whether the two best choices are close."""
    price = 2**34  # a cost of 100 codes is 100 * 2^14 value codes
    for value, close in [(1392640, 1), (1392639, 0), (1884160, 1), (1884161, 0), (1638400, 1)]:
        records = Records(whole_market(1, agents=1), [0], [[(value, [100])]])
        engine = MemoryEngine(records.encode())
        # Nothing minus the option, or the option minus nothing: the products are the same.
        assert engine.curvature((price,)) == (100 * 1024 * close,)
        assert engine.gauge((price,)) == (100 * 1024 * close, 100 * 1024 * close, 0)


def test_curvature_by_hand():
    """Two options of one agent, close to each other: entries of both signs."""
    market = whole_market(2, agents=1, options=2)
    prices = (2**30, 3 * 2**30)
    # Costs 10 * 2^30 and 12 * 2^30; surpluses 8 * 2^30 and 7 * 2^30: closer than 15% of 22 * 2^30.
    offers = [(18 * 2**10, [10, 0]), (19 * 2**10, [0, 4])]
    engine = MemoryEngine(Records(market, [0], [offers]).encode())
    # d = (10, -4); times the roots of 1024 * 1/22 and 1024 * 3/22, truncated: 68 and -47.
    assert engine.curvature(prices) == (68 * 68, -68 * 47, -68 * 47, 47 * 47)
    # Shares of the costs 10/22 and -12/22, in 1/1024, truncated: 465 and -558. The level:
    # 1024 (10 - 12)^2 / (22 * 4) = 46; the spread: 4650 + 2232 - 46.
    assert engine.gauge(prices) == (4650, 2232, 46, 6836)


@given(
    markets(),
    st.lists(st.integers(1, 2**36), min_size=4, max_size=4),
    st.data(),
    st.binary(min_size=16, max_size=16),
)
@example(None, [2**39 - 4, 1, 1, 1], None, bytes(16))
def test_all_that_follows_from_shares_is_that_of_big_integers(drawn, weights, data, seed):
    if drawn is None:  # an agent that wins every round, with the largest weights and factor
        drawn = Records(whole_market(1, agents=1), [0], [[(VALUE_MAX, [1])]]), [(1,)] * 4
        each, bound = [SHARE], VALUE_MAX
    else:
        m = len(drawn[0].market.resources)
        each = data.draw(st.lists(factors, min_size=m, max_size=m))
        bound = data.draw(st.integers(1, VALUE_MAX) | st.just(VALUE_MAX))
    records, posted = drawn
    rounds = list(zip(posted, weights, strict=False))
    agents = exact(records)
    shares = [share_of(options, rounds) for options in agents]
    scaling = [factors_of(options, each) for options in agents]
    whole = [[SHARE] * len(options) for options in agents]
    coins = [coin_of(seed, i) for i in range(len(agents))]
    granted = [given_of(s, f, c) for s, f, c in zip(shares, whole, coins, strict=True)]
    given = [given_of(s, f, c) for s, f, c in zip(shares, scaling, coins, strict=True)]
    scaled = [scaled_of(s, f) for s, f in zip(shares, scaling, strict=True)]

    board, engine = open_board(records.market, rounds, seed), MemoryEngine(records.encode())
    assert engine.welfare(board) == welfare_of(agents, flat(shares))
    check_chance(engine.chance(board, bound), agents, shares, bound)
    for factor, what in [(each, given), ([SHARE] * len(each), granted)]:
        for extent in [(-bound, bound), (-bound, 0), (-VALUE_MAX, VALUE_MAX)]:
            luck = [luck_of(*agent, *extent) for agent in zip(agents, shares, what, strict=True)]
            assert engine.luck(board, Seed(seed), tuple(factor), *extent) == sum(luck)

    for divisible, expected in [(True, scaled), (False, given)]:
        records = replace(records, market=remade(records.market, divisible=divisible))
        board = finished_board(records.market, rounds, each, seed)
        engine = MemoryEngine(records.encode())
        found = engine.allocate(board)
        assert found.dropped == 0  # the supply of 1,000 agents is ample
        assert engine.shares(board, found).tolist() == flat(expected)
        assert list(found.loads) == load_of(agents, flat(expected))
        for i, options in enumerate(agents):  # and so does the agent's own function
            value, demand = [v for v, _ in options], [d for _, d in options]
            own = allocate(board, value=value, demand=demand, agent=i)
            assert own.given == tuple(share / SHARE for share in expected[i])
            assert own.scaled == tuple(share / SHARE for share in scaled[i])


factors = st.sampled_from([0, 1, SHARE - 1, SHARE, SHARE]) | st.integers(0, SHARE)


def remade(market, *, divisible):
    return type(market).from_dict(market.to_dict() | {"divisible": divisible})


@given(markets(), st.data())
def test_the_factor_of_a_row_is_the_least_that_it_touches(drawn, data):
    records, _ = drawn
    m = len(records.market.resources)
    each = data.draw(st.lists(factors, min_size=m, max_size=m))
    (part,) = records.encode().parts
    expected = flat(factors_of(options, each) for options in exact(records))
    assert giving.factors(part, np.array(each, np.uint32)).tolist() == expected


@given(st.data())
def test_coins_at_the_edges_of_shares(data):
    """A coin on an edge hits what begins there: an option, or the part that is thinned away."""
    shares = data.draw(st.lists(st.integers(0, SHARE // 4), min_size=1, max_size=4))
    each = data.draw(st.lists(factors, min_size=len(shares), max_size=len(shares)))
    begins = [sum(shares[:o]) * 2**29 for o in range(len(shares) + 1)]
    ends = [b + s * f * 2**5 for b, s, f in zip(begins, shares, each, strict=False)]
    coins = [edge + step for edge in [*begins, *ends] for step in (-1, 0, 1, 2**29 - 1)]
    coins = [c for c in coins if 0 <= c < 2**53]
    market = whole_market(1, agents=len(coins), options=4)
    records = Records(market, list(range(len(coins))), [[(1, [1])] * len(shares)] * len(coins))
    (part,) = records.encode().parts
    found = np.array(shares * len(coins), np.uint32)
    giving.flip(
        part,
        found,
        np.repeat(np.array(coins, np.uint64), len(shares)),
        np.array(each * len(coins), np.uint32),
    )
    expected = [given_of(shares, each, c) for c in coins]
    assert found.tolist() == flat(expected)
    for c, whole in zip(coins, expected, strict=True):
        places = coin_places(shares, each)
        assert whole == [SHARE * (begin <= c < end) for begin, end in places]


def test_an_engine_answers_for_the_billboard_that_it_is_asked_about():
    """Even if it has seen the same number of rounds before."""
    records = Records(whole_market(1, agents=1), [0], [[(100, [1])]])
    engine = MemoryEngine(records.encode())
    for price, welfare in [(100 * 2**20, 100), (101 * 2**20, 0), (1, 100)]:
        assert engine.welfare(open_board(records.market, [((price,), 1)])) == welfare


@pytest.mark.parametrize("m", [1, 3, 10, 60])
def test_agents_on_the_margin_are_decided_exactly(m):
    """Value and cost that are equal in 32-bit floats, or that compare in the wrong order."""
    rng = np.random.default_rng(m)
    prices = rng.integers(2**50 // (m * 2**16), 2**51 // (m * 2**16), m)
    wrong = 0
    for _ in range(1000):  # each agent alone, so that no other makes its block unsure
        codes = rng.integers(1, 65536, m)
        cost = sum(
            code * price for code, price in zip(codes.tolist(), prices.tolist(), strict=True)
        )
        value = cost // 2**20 + int(rng.integers(-200, 200))
        part = Part(
            values=np.full((1, BLOCK), value, np.uint32),
            fill=np.array([1]),
            starts=np.empty((0, 0), np.uint8),
            codes=np.tile(codes.astype(np.uint16)[None, :, None], (1, 1, BLOCK)),
        )
        taken = cost <= value * 2**20
        found = best_response.demand(part, prices.astype(np.float64))
        assert found.tolist() == (codes * taken).tolist()
        rough = codes.astype(np.float32) @ prices.astype(np.float32)
        wrong += (rough < np.float32(value) * np.float32(2**20)) != taken
    assert wrong > 10, "rounding would decide some"


# --- any division of the work -------------------------------------------------------------


PRICES = [
    tuple(2 ** int(k) for k in np.random.default_rng(t).integers(30, 36, 8)) for t in range(3)
]
ROUNDS = [(price, 7 + t) for t, price in enumerate(PRICES)]
DEAREST = 2**31


def factors_for(m: int) -> tuple[int, ...]:
    return tuple(SHARE * (j + 2) // (j + 4) for j in range(m))


def outcome(agents: Agents, threads: int | None = None):
    """Everything that depends on the records: answers to all queries, shares and loads."""
    m = len(agents.market.resources)
    rounds, each = [(p[:m], w) for p, w in ROUNDS], factors_for(m)
    engine, seed = MemoryEngine(agents, threads), Seed(bytes(range(16)))
    board = open_board(agents.market, rounds)
    answers = [(engine.demand(p), engine.value(p)) for p, _ in rounds]
    answers += [(engine.curvature(p), engine.gauge(p)) for p, _ in rounds]
    answers += [(engine.welfare(board), engine.chance(board, DEAREST))]
    answers += [engine.luck(board, seed, (SHARE,) * m, -(2**20), 2**20)]
    answers += [engine.luck(board, seed, each, -(2**8), 2**7)]
    board = finished_board(agents.market, rounds, each)
    allocation = engine.allocate(board)
    return answers, engine.shares(board, allocation).tolist(), allocation.loads


@storages
@several
def test_several_blocks_agree_with_big_integers(sparse, options):
    records = many(sparse, options, 5000 if options == 1 else 2500)
    agents, m = exact(records), len(records.market.resources)
    rounds, each = [(p[:m], w) for p, w in ROUNDS], factors_for(m)
    encoded = records.encode()
    if sparse:  # some pairs are in the slots of their blocks, some in the rest
        assert all(part.codes.size and part.rest_codes.size for part in encoded.parts)
    answers, found, loads = outcome(encoded)
    coins = [coin_of(bytes(range(16)), agent) for agent in records.ids]
    shares = [share_of(options, rounds) for options in agents]
    scaling = [factors_of(options, each) for options in agents]
    whole = [[SHARE] * len(options) for options in agents]
    granted = [given_of(s, f, c) for s, f, c in zip(shares, whole, coins, strict=True)]
    given = [given_of(s, f, c) for s, f, c in zip(shares, scaling, coins, strict=True)]
    prices = [p for p, _ in rounds]
    assert [(list(d), v) for d, v in answers[:3]] == [total(agents, p) for p in prices]
    assert 0 < answers[0][1] < sum(max(v for v, _ in options) for options in agents)
    for (curved, gauge), price in zip(answers[3:6], prices, strict=True):
        assert list(curved) == curvature_of(agents, price)
        assert list(gauge) == gauge_of(agents, price)
        calls = [call for options in agents if (call := close_call(options, price))]
        assert all(gauge) and len(calls) > 100
        assert any(min(d) < 0 < max(d) for d, _, _ in calls) == (options > 1)
    welfare, chance = answers[6]
    assert welfare == welfare_of(agents, flat(shares))
    check_chance(chance, agents, shares, DEAREST)
    assert all(chance), "coins decide about every resource"
    for luck, what, lowest, highest in [
        (answers[7], granted, -(2**20), 2**20),
        (answers[8], given, -(2**8), 2**7),
    ]:
        extent = lowest, highest
        each_one = [luck_of(*agent, *extent) for agent in zip(agents, shares, what, strict=True)]
        assert luck == sum(each_one)
        assert lowest in each_one and highest in each_one
    assert found == flat(given)
    assert flat(given) != flat(granted)
    assert list(loads) == load_of(agents, flat(given))


@storages
@several
def test_parts_and_threads_do_not_matter(sparse, options, monkeypatch):
    records = many(sparse, options, 5000 if options == 1 else 2500)
    expected = outcome(records.encode())
    monkeypatch.setattr(encode, "_PART_BYTES", 1)
    encoded = records.encode()
    assert len(encoded.parts) > 1
    monkeypatch.setattr(shard, "_FEW", 0)  # and agents who always choose the same are skipped
    used = set()
    for module, name in KERNELS:
        real = getattr(module, name)

        def noting(*arguments, real=real):
            used.add(threading.get_ident())
            return real(*arguments)

        monkeypatch.setattr(module, name, noting)
    for threads in [1, 2, 5]:
        used.clear()
        assert outcome(encoded, threads) == expected
        assert len(used) <= threads


KERNELS = [
    *((best_response, name) for name in ("demand", "shares")),
    *((curvature, name) for name in ("curvature", "gauge")),
    *((giving, name) for name in ("chance", "loads", "luck", "welfare")),
]


@storages
@several
def test_the_order_of_agents_does_not_matter(sparse, options):
    records = many(sparse, options, 5000 if options == 1 else 2500)
    answers, shares, loads = outcome(records.encode())
    order = np.random.default_rng(9).permutation(len(records.ids))
    moved = Records(
        records.market, [records.ids[i] for i in order], [records.agents[i] for i in order]
    )
    moved_answers, moved_shares, moved_loads = outcome(moved.encode())
    assert (moved_answers, moved_loads) == (answers, loads)
    by_agent = dict(zip(records.ids, grouped(records, shares), strict=True))
    assert by_agent == dict(zip(moved.ids, grouped(moved, moved_shares), strict=True))


def grouped(records, shares):
    left = iter(shares)
    return [[next(left) for _ in options] for options in records.agents]


def flat(lists):
    return [item for some in lists for item in some]


# --- supply is never exceeded -------------------------------------------------------------


@settings(max_examples=60)
@given(seeds, st.booleans(), st.booleans(), st.integers(1, 3))
def test_if_the_bound_fails_agents_are_dropped_by_their_coins(seed, sparse, divisible, options):
    """Drop as few agents as needed, largest coins first, to stay within every supply."""
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
    shares = [share_of(options, rounds) for options in agents]
    coins = [coin_of(coin_seed, i) for i in range(n)]
    if not divisible:
        shares = [given_of(s, [SHARE] * len(s), c) for s, c in zip(shares, coins, strict=True)]
    winners = sorted((i for i in range(n) if any(shares[i])), key=lambda i: -coins[i])
    dropped = 0
    supplies = [supply * SHARE for supply in market.supply_codes]

    def exceeded() -> bool:
        return any(x > s for x, s in zip(load_of(agents, flat(shares)), supplies, strict=True))

    while exceeded():
        shares[winners[dropped]] = [0] * len(agents[winners[dropped]])
        dropped += 1
    engine = MemoryEngine(records.encode())
    board = finished_board(market, rounds, SHARE, coin_seed)
    found = engine.allocate(board)
    assert engine.shares(board, found).tolist() == flat(shares)
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
