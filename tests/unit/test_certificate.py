"""The certificate by hand, and supply that holds whatever the certificate says."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from jdpack import (
    Billboard,
    BillboardError,
    Budget,
    Certificate,
    Market,
    MwuAdaptive,
    allocate,
    solve,
)
from jdpack.billboard import SHARE, Header, Release, Seed, Step
from jdpack.certificate import _factor, averaged_loads, certify, noise_radius
from jdpack.coins import coin
from jdpack.encoding import Batch, encode
from jdpack.engines.memory import MemoryEngine
from jdpack.noise import Gaussian
from jdpack.policies import Outlook

SEED = Seed(b"sixteen bytes ok")


def a_market(**changes) -> Market:
    return Market(
        **{"supply": [50.0, 80.0], "max_demand": 1.0, "max_value": 1.0, "agents": 100} | changes
    )


def a_board(market: Market, releases: list[Release], beta: float = 1e-6) -> Billboard:
    budget = replace(Budget.split(1.0, 1e-3, truncated=True), beta=beta)
    board = Billboard(Header(market, MwuAdaptive(0.5).to_dict(), budget, SEED.commitment))
    for release in releases:
        board.post(release)
    return board


# --- the radius -------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("variance", [1e-3, 7.0, 1e30])
def test_the_gaussian_radius_solves_its_tail(tail, variance):
    radius = noise_radius(Outlook(10, variance, 1.0), tail, truncated=False)
    assert math.exp(-(radius**2) / (2 * variance)) == pytest.approx(math.exp(-tail))


@pytest.mark.parametrize("tail", [0.5, 3.0, 40.0])
@pytest.mark.parametrize(("variance", "peak"), [(100.0, 1.0), (100.0, 10.0), (1e20, 1e8)])
def test_the_truncated_radius_is_the_best_that_its_moments_allow(tail, variance, peak):
    radius = noise_radius(Outlook(10, variance, peak), tail, truncated=True)
    most = 1 / (math.sqrt(2) * peak)
    others = [tail / rate + 2 * rate * variance for rate in np.linspace(0.0, most, 2001)[1:]]
    assert radius <= min(others) * (1 + 1e-12)
    assert radius >= min(others) * (1 - 1e-3)
    # Each rate is a bound by itself, P(noise > r) <= exp(-rate r + 2 rate^2 variance): so is ours.
    rates = np.linspace(0.0, most, 2001)[1:]
    assert min(-rate * radius + 2 * rate**2 * variance for rate in rates) == pytest.approx(
        -tail, rel=1e-3
    )


# --- the certificate --------------------------------------------------------------------------

STEP = Step("demand", (0, 0), Gaussian(1.0))


@pytest.mark.parametrize("divisible", [True, False])
def test_bounds_by_hand(divisible):
    market = a_market(divisible=divisible)
    S = market.supply_code
    releases = [
        Release(Step("scale", (0, 0), Gaussian(1.0)), (10**15,)),  # steers, does not count
        Release(replace(STEP, weight=3), (S, 5 * S)),
        Release(replace(STEP, weight=5), (2 * S, -S)),
        Release(STEP, (10**15, 10**15)),  # weight 0
    ]
    beta = 1e-6
    board = a_board(market, releases, beta)
    policy, budget = MwuAdaptive(0.5), board.header.budget
    events = 2 if divisible else 4
    variance = policy.outlook(market, budget).variance
    radius = math.sqrt(2 * math.log(events / beta) * variance) / (8 * S)
    averaged = averaged_loads(board)
    assert averaged == pytest.approx([13 / 8 + radius, 10 / 8 + radius])
    certificate = certify(board)
    f, tail = certificate.factor / SHARE, math.log(events / beta)
    scaled = [f * load for load in averaged]
    if not divisible:
        qs = [cap / S for cap in market.cap_codes]
        scaled = [
            load + math.sqrt(2 * q * load * tail) + q * tail / 3
            for load, q in zip(scaled, qs, strict=True)
        ]
    assert certificate.load_at_most == pytest.approx([min(1.0, load) for load in scaled])
    assert certificate.beta == beta


def test_a_bound_is_never_negative():
    market = a_market(divisible=True)
    board = a_board(market, [Release(replace(STEP, weight=2**24), (-(2**60), -(2**60)))])
    certificate = certify(board)
    assert certificate.load_at_most == (0.0, 0.0)
    assert certificate.factor == SHARE


def test_without_rounds_there_is_nothing_to_certify():
    with pytest.raises(BillboardError, match="nothing to certify"):
        certify(a_board(a_market(), [Release(STEP, (1, 1))]))


BOUNDS = [(0.2, 0.9), (1.0, 1.0), (3.0, 0.5), (0.0, 7.5), (1e9, 0.1)]


@pytest.mark.parametrize("bounds", BOUNDS)
def test_divisible_shares_are_scaled_to_fit(bounds):
    budget = Budget.split(1.0, 1e-6, truncated=False)
    factor = _factor(a_market(divisible=True), budget, bounds)
    assert Fraction(factor, SHARE) * Fraction(max(bounds)) <= 1
    assert factor >= SHARE - 1 or Fraction(factor + 2, SHARE) * Fraction(max(bounds)) > 1
    assert factor <= SHARE


@pytest.mark.parametrize("bounds", BOUNDS)
def test_indivisible_shares_leave_room_for_the_coins(bounds):
    """Bernstein: f U + sqrt(2 q f U l) + q l / 3 is at most 1 on every resource."""
    market = a_market(supply=[400.0, 900.0], max_demand=[1.0, 2.0])
    budget = Budget.split(1.0, 1e-6, truncated=False)
    f = _factor(market, budget, bounds) / SHARE
    tail = math.log(2 * 2 / budget.beta)
    sums = []
    for cap, bound in zip(market.cap_codes, bounds, strict=True):
        q = cap / market.supply_code
        sums.append(f * bound + math.sqrt(2 * q * f * bound * tail) + q * tail / 3)
    assert max(sums) <= 1.0
    assert f > 0.999999 or max(sums) > 1.0 - 1e-4 * max(bounds)
    assert f <= _factor(replace_divisible(market), budget, bounds) / SHARE


def replace_divisible(market: Market) -> Market:
    return Market.from_dict({**market.to_dict(), "divisible": True})


def test_too_little_supply_for_coins_certifies_nothing():
    market = a_market(supply=[2.0, 2.0])
    assert _factor(market, Budget.split(1.0, 1e-6, truncated=False), (0.5, 0.5)) == 0


# --- supply holds, always ---------------------------------------------------------------------


def records(market: Market, seed: int) -> tuple[list[str], list[float], np.ndarray]:
    """Ids, values and demands of each row; up to `market.options` rows an agent."""
    rng = np.random.default_rng(seed)
    options = rng.integers(1, market.options + 1, market.agents)
    ids = [f"agent {i}" for i, count in enumerate(options) for _ in range(count)]
    m = len(market.resources)
    demands = rng.random((len(ids), m)) * [r.max_demand for r in market.resources]
    demands[rng.random(demands.shape) < 0.3] = 0.0
    for row in demands:  # hold the bundle size
        row[rng.permutation(m)[market.bundle_size :]] = 0.0
    return ids, (rng.random(len(ids)) * market.max_value).tolist(), demands


def engine_of(market: Market, ids, values, demands, threads: int = 2) -> MemoryEngine:
    columns = [np.ascontiguousarray(d) for d in demands.T]
    return MemoryEngine(encode(market, [Batch(np.array(values), pa.array(ids), columns)]), threads)


def true_loads(market: Market, demands: np.ndarray, shares: np.ndarray) -> list[Fraction]:
    """What is given of each resource, in the user's units and exactly."""
    return [
        sum(
            (Fraction(a) * Fraction(int(s), SHARE) for a, s in zip(column, shares, strict=True)),
            Fraction(0),
        )
        for column in demands.T.tolist()
    ]


MARKETS = {
    "indivisible": a_market(supply=[5.3, 8.0], max_demand=[1.0, 0.7]),
    "divisible": a_market(supply=[5.3, 8.0], max_demand=[1.0, 0.7], divisible=True),
    "options": a_market(supply=[5.3, 8.0, 2.2], max_demand=[1.0, 0.7, 1.1], options=3),
    "divisible options": a_market(supply=[5.3, 8.0], options=3, divisible=True, bundle_size=1),
    "sparse": a_market(supply=[1.5] * 9, max_demand=0.9, bundle_size=2),
    "one resource": a_market(supply=[1.0], max_demand=1.0),
    "one of two is scarce": a_market(supply=[5.3, 800.0]),
}


def overloaded(market: Market, factor: int = SHARE) -> Billboard:
    """A finished billboard whose certificate promises what does not fit: nearly all get all."""
    m = len(market.resources)
    low = round(0.1 * market.value_cap_code * 2**20 / 65535)
    board = a_board(
        market,
        [
            Release(Step("demand", (0,) * m, Gaussian(1.0), weight=5 * SHARE), (0,) * m),
            Release(Step("demand", (low,) * m, Gaussian(1.0), weight=SHARE), (0,) * m),
        ],
    )
    board.post(Certificate(factor, (0.1,) * m, 1e-9))
    board.post(SEED)
    return board


def own_shares(board: Billboard, ids, values, demands) -> np.ndarray:
    """What every row gets by its agent's own function, in units of 1/SHARE."""
    shares = np.zeros(len(ids), np.int64)
    for agent in dict.fromkeys(ids):
        rows = [row for row, other in enumerate(ids) if other == agent]
        several = board.header.market.options > 1
        outcome = allocate(
            board,
            value=[values[row] for row in rows] if several else values[rows[0]],
            demand=[demands[row].tolist() for row in rows] if several else demands[rows[0]],
            agent=agent,
        )
        shares[rows] = np.array(outcome.given) * SHARE
    return shares


@pytest.mark.parametrize("kind", MARKETS)
@pytest.mark.parametrize("seed", [1, 2])
def test_repair_drops_in_the_order_of_coins_and_no_more_than_needed(kind, seed):
    market = MARKETS[kind]
    rows = ids, _, demands = records(market, seed)
    board = overloaded(market)
    shares = own_shares(board, *rows)

    # The reference: plain integers, one agent after the other.
    codes = [[market.demand_code(j, a) for j, a in enumerate(row)] for row in demands.tolist()]
    limit = market.supply_code * SHARE

    def loads(given: np.ndarray) -> list[int]:
        pairs = list(zip(given.tolist(), codes, strict=True))
        return [sum(s * row[j] for s, row in pairs) for j in range(len(market.resources))]

    def without(dropped: list[str]) -> np.ndarray:
        return np.where([agent in dropped for agent in ids], 0, shares)

    winners = {agent for agent, share in zip(ids, shares, strict=True) if share}
    order = sorted(winners, key=lambda agent: coin(SEED.seed, agent), reverse=True)
    assert max(loads(shares)) > limit, "nothing to repair"
    needed = 0
    while max(loads(without(order[:needed]))) > limit:
        needed += 1

    allocation = engine_of(market, *rows).allocate(board)
    assert allocation.dropped == needed > 1
    assert allocation.shares.tolist() == without(order[:needed]).tolist()
    assert list(allocation.loads) == loads(allocation.shares)
    assert max(allocation.loads) <= limit
    for given, r in zip(
        true_loads(market, demands, allocation.shares), market.resources, strict=True
    ):
        assert given <= Fraction(r.supply)

    again = engine_of(market, *rows, threads=1).allocate(Billboard.from_text(text_of(board)))
    assert again.shares.tolist() == allocation.shares.tolist()
    assert (again.loads, again.dropped) == (allocation.loads, allocation.dropped)


def text_of(board: Billboard) -> str:
    return "".join(f"{line}\n" for line in board.lines())


@pytest.mark.parametrize("kind", MARKETS)
def test_where_all_fits_everybody_gets_its_own_function(kind):
    market = MARKETS[kind]
    rows = records(market, 3)
    board = overloaded(market, factor=SHARE // 100)
    allocation = engine_of(market, *rows).allocate(board)
    assert allocation.dropped == 0
    assert allocation.shares.tolist() == own_shares(board, *rows).tolist()


@pytest.mark.parametrize("divisible", [True, False])
@pytest.mark.parametrize("noise", ["gaussian", "truncated-laplace"])
def test_what_is_given_fits_in_true_units(divisible, noise):
    for seed in range(4):
        market = a_market(
            supply=[700.1, 333.3, 1e4],
            max_demand=[1.0, 0.31, 7.0],
            agents=3000,
            divisible=divisible,
        )
        ids, values, demands = records(market, seed)
        result = solve(
            market,
            values=values,
            demands=demands,
            ids=ids,
            epsilon=8.0,
            delta=1e-3,
            policy=MwuAdaptive(0.3, noise),
            seed=seed,
        )
        given = true_loads(market, demands, result.private.shares)
        for load, resource in zip(given, market.resources, strict=True):
            assert 0 < load <= Fraction(resource.supply)


@pytest.mark.parametrize("kind", MARKETS)
def test_even_a_run_with_absurd_noise_fits(kind):
    """At a tiny epsilon the noise drowns everything; the supply holds all the same."""
    market = MARKETS[kind]
    ids, values, demands = records(market, 5)
    for seed in range(3):
        result = solve(
            market,
            values=values,
            demands=demands,
            ids=ids,
            epsilon=0.001,
            delta=1e-6,
            policy=MwuAdaptive(0.5),
            seed=seed,
        )
        for load, resource in zip(
            true_loads(market, demands, result.private.shares), market.resources, strict=True
        ):
            assert load <= Fraction(resource.supply)
