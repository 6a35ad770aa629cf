"""The certificate against plain formulas, and against the truth without noise."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from jdpack import Billboard, BillboardError, Budget, Market, MwuAdaptive, Newton, solve
from jdpack.billboard.lines import Header, Release, Seed, Step
from jdpack.curator.optimum import optimum
from jdpack.market.grid import SHARE
from jdpack.market.market import Neighbours
from jdpack.privacy import queries
from jdpack.privacy.noise import Gaussian, TruncatedLaplace
from jdpack.privacy.tail_bounds import release_radius
from jdpack.protocol import closing
from jdpack.protocol.bounds import averaged_loads, factors, granted_loads
from jdpack.protocol.certificate import certify

SEED = Seed(b"sixteen bytes ok")
UNITS = 2**20  # price units per value code
CODES = 2.0**32  # about as many value codes as the value cap has
POLICIES = {"newton": Newton((0.2, 0.1)), "mwu-adaptive": MwuAdaptive(0.5)}
EVENTS = math.log(6 / 0.01)  # six statements about value share 1%


def a_market(**changes):
    return Market(
        **{"supply": [4000.0, 3000.0], "max_demand": 1.0, "max_value": 1.0, "agents": 20_000}
        | changes
    )


def played(market, loads, policy=POLICIES["newton"], price=0.2):
    """The billboard of a policy that has stopped; demand answers sway around `loads`."""
    budget = Budget.split(1.0, 1e-8, truncated=policy.truncated)
    board = Billboard(Header(market, policy.to_dict(), budget, SEED.commitment))
    state = policy.start(market, budget)
    while (asked := policy.step(state)) is not None:
        sway = 1.0 + 0.05 * (len(board.releases) % 3 - 1)
        asked = replace(asked, prices=price_codes(market, [price * sway, 0.5 * price / sway]))
        answer = (market.supply_code,) * queries.width(market, asked.query)
        if asked.query == "demand":
            answer = tuple(round(load * sway * market.supply_code) for load in loads)
        board.post(Release(asked, answer))
        state = policy.observe(state, board.releases[-1])
    return board


def price_codes(market, prices):
    """Price codes of prices per unit of amount, in units of the value cap."""
    sized = zip(prices, market.unit_sizes, strict=True)
    return tuple(round(price * size * CODES * UNITS) for price, size in sized)


def close(board, granted=(0.5, 0.5), welfare=0.0, luck=0.0):
    """Post the closing releases: loads relative to supply, values in units of the value cap."""
    market = board.header.market
    answers = {
        "granted": tuple(round(load * market.supply_code) for load in granted),
        "welfare": (round(welfare * CODES),),
        "luck": (round(luck * CODES),),
    }
    while (asked := closing.step(board)) is not None:
        board.post(Release(asked, answers[asked.query]))
    return board


def released(board, query):
    return next(r for r in board.releases if r.step.query == query)


def rounds_of(board):
    """The rounds that count: weight, prices, answer, noise scale."""
    return [
        (r.step.weight, r.step.prices, r.answer, r.step.noise.scale)
        for r in board.releases
        if r.step.weight
    ]


# --- loads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("divisible", [True, False])
def test_averaged_loads_of_a_fixed_schedule_have_the_normal_radius(divisible):
    market = a_market(divisible=divisible)
    board = played(market, (1.2, 0.3))
    rounds, beta = rounds_of(board), board.header.budget.beta
    assert len(rounds) > 2
    whole = sum(w for w, *_ in rounds)
    deviation = math.sqrt(sum((w * scale) ** 2 for w, _, _, scale in rounds))
    tail = beta / 2 * (1.0 if divisible else 0.9)
    radius = stats.norm.isf(tail) * deviation
    averages = [sum(w * answer[j] for w, _, answer, _ in rounds) / whole for j in range(2)]
    bounds = averaged_loads(board)
    for bound, average in zip(bounds, averages, strict=True):
        found = (bound * market.supply_code - average) * whole
        assert radius <= found <= 1.01 * radius
    assert 1.01 * radius < math.sqrt(2 * math.log(1 / tail)) * deviation


def test_averaged_loads_of_a_schedule_that_adapts_have_the_sub_gaussian_radius():
    market, policy = a_market(divisible=True), POLICIES["mwu-adaptive"]
    board = played(market, (1.2, 0.3), policy)
    rounds, beta = rounds_of(board), board.header.budget.beta
    whole = sum(w for w, *_ in rounds)
    # weight * scale^2 is the same in all rounds, and no run has more weight than the outlook says
    each = [w * scale**2 for w, _, _, scale in rounds]
    assert max(each) <= min(each) * (1 + 1e-6)
    most = policy.outlook(market, board.header.budget).weight
    assert most >= whole
    radius = math.sqrt(2 * math.log(2 / beta) * each[0] * most)
    expected = [
        (sum(w * answer[j] for w, _, answer, _ in rounds) + radius) / (whole * market.supply_code)
        for j in range(2)
    ]
    assert averaged_loads(board) == pytest.approx(expected, rel=1e-6)


def test_releases_that_only_steer_do_not_count():
    market = a_market(divisible=True)
    board = played(market, (0.9, 0.9))
    before = averaged_loads(board)
    board.post(Release(Step("demand", (0, 0), Gaussian(1.0)), (2**60, 2**60)))
    assert averaged_loads(board) == before


@pytest.mark.parametrize("divisible", [True, False])
def test_a_bound_is_never_negative(divisible):
    board = close(played(a_market(divisible=divisible), (-9.0, -9.0)), (-9.0, -9.0))
    certificate = certify(board)
    assert certificate.load_at_most == (0.0, 0.0)
    assert certificate.factors == (SHARE, SHARE)


def test_granted_loads_are_the_release_and_its_radius():
    market = a_market()
    board = close(played(market, (0.9, 0.9)), (0.8, 1.3))
    release, beta = released(board, "granted"), board.header.budget.beta
    radius = stats.norm.isf(0.9 * beta / 2) * release.step.noise.scale
    for bound, answer in zip(granted_loads(board), release.answer, strict=True):
        assert radius <= bound * market.supply_code - answer <= 1.01 * radius


# --- factors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loads", [(0.3, 0.5), (1.5, 0.2), (0.9, 4.0)])
def test_divisible_goods_have_one_factor(loads):
    board = close(played(a_market(divisible=True), loads), welfare=100.0)
    bounds = averaged_loads(board)
    first, second = factors(board)
    assert first == second
    if max(bounds) <= 1.0:
        assert first == SHARE
    else:
        # the largest that fits, up to float rounding
        assert Fraction(first, SHARE) * Fraction(max(bounds)) <= 1
        assert Fraction(first + 1, SHARE) * Fraction(max(bounds)) > 1 - Fraction(1, 10**11)
    certificate = certify(board)
    assert certificate.factors == (first, second)
    expected = [min(1.0, bound * first / SHARE) for bound in bounds]
    assert certificate.load_at_most == pytest.approx(expected)


def kept(market, beta, j, load, f):
    """Bernstein's bound on what coins keep of resource j."""
    q = market.cap_codes[j] / market.supply_code
    tail = math.log(len(market.resources) / (0.1 * beta))
    return f * load + math.sqrt(2 * q * f * (1 - f) * load * tail) + q * tail / 3


@pytest.mark.parametrize("granted", [(0.5, 1.3), (1.01, 0.2), (3.0, 1.1)])
def test_indivisible_goods_are_thinned_where_they_might_not_fit_and_no_more(granted):
    market = a_market(max_demand=[1.0, 0.5])
    board = close(played(market, (1.0, 1.0)), granted, welfare=100.0)
    beta, certificate = board.header.budget.beta, certify(board)
    assert certificate.factors == factors(board)
    for j, (bound, factor) in enumerate(zip(granted_loads(board), factors(board), strict=True)):
        if bound <= 1.0:
            assert factor == SHARE
            assert certificate.load_at_most[j] == pytest.approx(bound)
        else:
            assert 0 < factor < SHARE
            assert kept(market, beta, j, bound, factor / SHARE) <= 1.0
            assert kept(market, beta, j, bound, (factor + 1) / SHARE) > 1.0 - 1e-11
            assert certificate.load_at_most[j] == pytest.approx(1.0, abs=1e-6)
    assert min(certificate.factors) < SHARE
    assert certificate.beta == beta


def test_a_supply_below_the_reach_of_coins_is_not_given_at_all():
    # q tail / 3 alone is above 1
    market = a_market(supply=[3.0, 3000.0])
    board = close(played(market, (1.0, 1.0)), (9.0, 0.5))
    assert factors(board)[0] == 0
    assert certify(board).welfare_at_least == 0.0


# --- value ------------------------------------------------------------------------------------


def above_welfare(board):
    """How far the optimum may exceed the averaged welfare, in value codes."""
    market, policy = board.header.market, board.header.policy["name"]
    rounds = rounds_of(board)
    whole = sum(w for w, *_ in rounds) * UNITS
    supplies = [r.supply / u for r, u in zip(market.resources, market.unit_sizes, strict=True)]
    known, rounding, variance = 0.0, 0.0, 0.0
    for w, prices, answer, scale in rounds:
        known += w * sum(p * (b - a) for p, b, a in zip(prices, supplies, answer, strict=True))
        dearest = sorted(prices)[-market.bundle_size :]
        rounding += w * market.agents * (UNITS + sum(dearest))
        variance += (w * scale) ** 2 * sum(p * p for p in prices)
    outlook = POLICIES[policy].outlook(market, board.header.budget)
    first = outlook.variance * sum(p * p for p in rounds[0][1])
    tail = EVENTS + math.log(4)
    radius = min(
        math.sqrt((variance + v) * (2 * tail + math.log((variance + v) / v)))
        for v in (first / 16, first / 16 / 64, first / 16 / 64**2, first / 16 / 64**3)
    )
    return (known + radius + rounding) / whole


def shares_rounding(board):
    """Shares of the averaged allocation are rounded down, by 1/SHARE for every option taken."""
    market = board.header.market
    options = min(market.options, len(rounds_of(board)))
    return market.agents * options * (market.value_cap_code / SHARE + 1)


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("options", [1, 3])
@pytest.mark.parametrize("load", [0.8, 1.2])
def test_value_of_divisible_goods(load, options, kind):
    market = a_market(divisible=True, options=options, bundle_size=1)
    board = close(played(market, (load, 0.9), POLICIES[kind]), welfare=3000.0)
    release = released(board, "welfare")
    radius, rounding = release_radius(release.step.noise, EVENTS), shares_rounding(board)
    low, high = release.answer[0] - radius, release.answer[0] + radius
    above, f = above_welfare(board) + rounding, factors(board)[0] / SHARE
    certificate = certify(board)
    step = market.value_step
    assert low > 0
    assert certificate.welfare_at_least == pytest.approx((f * low - rounding) * step)
    assert certificate.optimum_at_most == pytest.approx((high + above) * step)
    ratios = [(f * w - rounding) / (w + above) for w in np.linspace(low, high, 101)]
    assert certificate.ratio_at_least == pytest.approx(min(ratios))
    assert certificate.value_beta == 0.01


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("options", [1, 3])
@pytest.mark.parametrize(
    ("granted", "welfare", "luck"),
    [
        ((0.5, 0.5), 3000.0, 5.0),  # nothing is thinned
        ((0.5, 1.2), 300.0, -3.0),  # thinned, with the luck of the grants
        ((1.2, 0.5), 3000.0, -300.0),  # thinned, with the luck of what is given
    ],
)
def test_value_of_indivisible_goods(granted, welfare, luck, options, kind):
    market = a_market(options=options, bundle_size=1)
    board = close(played(market, (0.6, 0.7), POLICIES[kind]), granted, welfare, luck)
    averaged, coins = released(board, "welfare"), released(board, "luck")
    radius, rounding = release_radius(averaged.step.noise, EVENTS), shares_rounding(board)
    low, high = max(0.0, averaged.answer[0] - radius), averaged.answer[0] + radius
    least_luck = coins.answer[0] - release_radius(coins.step.noise, EVENTS)
    cap, f = float(market.value_cap_code), min(factors(board)) / SHARE
    if options > 1:  # coins that fall in the gaps that rounding left
        odds, most = min(options, len(rounds_of(board))) / SHARE, market.agents * cap
        least_luck -= (
            odds * most + math.sqrt(2 * cap * odds * (1 - odds) * most * EVENTS) + cap * EVENTS / 3
        )

    def given(w):
        granted = max(0.0, w + least_luck)
        if f < 1.0 and welfare == 300.0:  # the luck of the grants, so thinning is subtracted
            spread = math.sqrt(2 * cap * f * (1 - f) * granted * EVENTS)
            granted -= (1 - f) * granted + spread + cap * EVENTS / 3
        return max(0.0, granted)

    above, step, certificate = above_welfare(board) + rounding, market.value_step, certify(board)
    assert (f < 1.0) == (max(granted) > 1.0)
    assert certificate.welfare_at_least == pytest.approx(given(low) * step)
    assert certificate.optimum_at_most == pytest.approx((high + above) * step)
    least = min(given(w) / (w + above) for w in np.linspace(low, high, 1001))
    assert certificate.ratio_at_least == pytest.approx(least)
    assert least > 0.0 or welfare == 300.0


def test_truncated_noise_has_no_bound_on_the_optimum():
    market = a_market(divisible=True)
    policy = MwuAdaptive(0.5, "truncated-laplace")
    board = close(played(market, (0.9, 0.9), policy), welfare=3000.0)
    assert any(isinstance(r.step.noise, TruncatedLaplace) for r in board.releases)
    certificate = certify(board)
    assert certificate.optimum_at_most is None
    assert certificate.ratio_at_least is None
    assert certificate.welfare_at_least > 0.0


# --- what is missing --------------------------------------------------------------------------


@pytest.mark.parametrize("divisible", [True, False])
def test_without_rounds_there_is_nothing_to_certify(divisible):
    market, budget = a_market(divisible=divisible), Budget.split(1.0, 1e-8, truncated=False)
    board = Billboard(Header(market, Newton().to_dict(), budget, SEED.commitment))
    board.post(Release(Step("demand", (0, 0), Gaussian(1.0)), (1, 1)))  # weight 0
    with pytest.raises(BillboardError, match="nothing to certify"):
        certify(board)


@pytest.mark.parametrize("divisible", [True, False])
def test_a_closing_release_that_is_missing_is_told(divisible):
    whole = close(played(a_market(divisible=divisible), (0.9, 0.9)))
    queries = ["welfare"] if divisible else ["granted", "welfare", "luck"]
    for missing in queries:
        board = played(a_market(divisible=divisible), (0.9, 0.9))
        for query in queries:
            if query != missing:
                board.post(released(whole, query))
        with pytest.raises(BillboardError, match=f"there is no {missing} release"):
            certify(board)


# --- the closing releases ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("divisible", "order"), [(True, ["welfare"]), (False, ["granted", "welfare", "luck"])]
)
def test_the_closing_releases_and_what_they_cost(divisible, order):
    board = played(a_market(divisible=divisible), (0.9, 0.9))
    before, budget = len(board.releases), board.header.budget
    close(board)
    last = [r.step for r in board.releases[before:]]
    assert [step.query for step in last] == order
    assert all(step.prices == () and step.weight == 0 for step in last)
    for step in last:
        share = {"granted": 0.56, "welfare": 0.02, "luck": 0.06}[step.query]
        cost = float(step.noise.cost(closing.shifts(board, step.query)).rho)
        assert cost == pytest.approx(share * budget.rho)
        assert cost <= share * budget.rho


def test_luck_is_told_the_cheaper_way():
    market = a_market()
    bound = closing.dearest(played(market, (1.0, 1.0)))
    unthinned = close(played(market, (1.0, 1.0)), (0.5, 0.5), welfare=3000.0)
    assert closing.luck_terms(unthinned) == ((SHARE, SHARE), bound)
    assert closing.shifts(unthinned, "luck") == (bound + 1,)
    for welfare in (0.0, 100.0, 300.0, 1000.0, 3000.0):
        board = close(played(market, (1.0, 1.0)), (0.5, 1.2), welfare)
        rho, z = 0.06 * board.header.budget.rho, release_radius(Gaussian(1e9), EVENTS) / 1e9
        cap, f = market.value_cap_code, factors(board)[1] / SHARE
        assert f < 1.0
        taken = welfare * CODES * (1 - f) + cap * EVENTS / 3
        taken += math.sqrt(2 * cap * f * (1 - f) * welfare * CODES * EVENTS)
        of_grants = z * (bound + 1) / math.sqrt(2 * rho) + taken
        of_given = z * 2 * cap / math.sqrt(2 * rho)
        if of_grants < of_given:
            assert closing.luck_terms(board) == ((SHARE, SHARE), bound)
            assert closing.shifts(board, "luck") == (bound + 1,)
        else:
            assert closing.luck_terms(board) == (factors(board), cap)
            assert closing.shifts(board, "luck") == (2 * cap,)
        assert (of_grants < of_given) == (welfare < 1000.0)  # both ways occur


def test_luck_of_several_options_or_of_agents_that_may_be_absent():
    several = close(played(a_market(options=2), (0.9, 0.9)))
    assert closing.shifts(several, "luck") == (2 * closing.dearest(several),)
    absent = close(played(a_market(neighbours=Neighbours.ADD_REMOVE), (0.9, 0.9)))
    assert closing.shifts(absent, "luck") == (closing.dearest(absent),)


def dearest_at(rounds, **changes):
    board = played(a_market(**changes), (0.9, 0.9), price=0.0)
    for prices, weight in rounds:
        codes = price_codes(board.header.market, prices)
        board.post(Release(Step("demand", codes, Gaussian(1.0), weight), (0, 0)))
    return closing.dearest(board)


def test_the_dearest_option_that_can_have_been_bought():
    rounds = [((0.2, 0.1), 1), ((0.1, 0.3), 1), ((0.9, 0.9), 0)]  # the last only steers
    near = {"rel": 1e-3}
    assert dearest_at(rounds) == pytest.approx(0.5 * CODES, **near)  # each at its highest price
    assert dearest_at(rounds, bundle_size=1) == pytest.approx(0.3 * CODES, **near)
    half = {"max_demand": [0.5, 0.2]}
    assert dearest_at(rounds, **half) == pytest.approx((0.1 + 0.06) * CODES, **near)
    assert dearest_at([((0.8, 0.7), 1)]) == a_market().value_cap_code  # no more than any value
    assert dearest_at([]) == 1  # everything is free


# --- the truth, without noise -----------------------------------------------------------------


def random_agents(seed, n, options):
    """Values, demands and ids: agents of 1 to `options` options for one or two resources."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, options + 1, n)
    rows = int(counts.sum())
    demands = rng.uniform(0.1, 1.0, (rows, 2)) * (rng.random((rows, 2)) < 0.8)
    return rng.random(rows), demands, np.repeat(np.arange(n), counts)


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("options", [1, 3])
@pytest.mark.parametrize("divisible", [True, False])
@pytest.mark.parametrize("n", [40, 3000])
def test_without_noise_the_certificate_is_true_and_tight(n, divisible, options, kind):
    for seed in range(3 if n == 40 else 1):
        values, demands, ids = random_agents(seed, n, options)
        market = Market(
            supply=[0.15 * n, 0.1 * n],
            max_demand=1.0,
            max_value=1.0,
            agents=n,
            options=options,
            divisible=divisible,
        )
        policy = Newton() if kind == "newton" else MwuAdaptive(0.3)
        result = solve(
            market,
            values=values,
            demands=demands,
            ids=ids,
            epsilon=math.inf,
            delta=1e-8,
            policy=policy,
            seed=seed,
        )
        best = optimum(values, demands, [r.supply for r in market.resources], ids)
        shares = result.shares / SHARE
        worth = float(values @ shares)
        certificate = result.certificate
        assert result.private.dropped == 0
        assert certificate.welfare_at_least <= worth
        assert certificate.optimum_at_most >= best.value
        assert certificate.ratio_at_least <= worth / best.bound
        for j, (most, r) in enumerate(zip(certificate.load_at_most, market.resources, strict=True)):
            assert float(demands[:, j] @ shares) / r.supply <= most <= 1.0
        if n == 3000 and divisible and kind == "newton":
            assert certificate.ratio_at_least > 0.99
            assert certificate.welfare_at_least > 0.999 * worth
