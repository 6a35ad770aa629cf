"""The certificate against plain formulas, and against the truth without noise."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import optimize, stats

from jdpack import Billboard, BillboardError, Budget, Market, MwuAdaptive, MwuOnline, Newton, solve
from jdpack.billboard.lines import Header, Release, Seed, Step
from jdpack.curator.optimum import optimum
from jdpack.market.grid import CHANCE_UNIT, DEMAND_CODE_MAX, SHARE
from jdpack.market.market import Neighbours
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.noise import Gaussian, TruncatedLaplace, deviation
from jdpack.privacy.tail_bounds import kept_at_most
from jdpack.protocol import bounds, closing, grants
from jdpack.protocol import certificate as certificates
from jdpack.protocol.bounds import dearest, factors, given_bounds, load_bounds
from jdpack.protocol.certificate import certify

SEED = Seed(b"sixteen bytes ok")
UNITS = 2**20  # price units per value code
CODES = 2.0**32  # about as many value codes as the value cap has
POLICIES = {"newton": Newton((0.2, 0.1)), "mwu-adaptive": MwuAdaptive(0.5)}


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
        answer = (max(market.supply_codes),) * queries.width(market, asked.query)
        if asked.query == "demand":
            sized = zip(loads, market.supply_codes, strict=True)
            answer = tuple(round(load * sway * supply) for load, supply in sized)
        board.post(Release(asked, answer))
        state = policy.observe(state, board.releases[-1])
    return board


def price_codes(market, prices):
    """Price codes of prices per unit of amount, in units of the value cap."""
    sized = zip(prices, market.unit_sizes, strict=True)
    return tuple(round(price * size * CODES * UNITS) for price, size in sized)


def close(board, chance=(0, 0, 0), welfare=0.0, luck=0.0, granted=None):
    """Post the closing releases: variances as they are, values in units of the value cap.

    What is granted is what the rounds show on average, unless it is given.
    """
    rounds = rounds_of(board)
    whole = sum(w for w, *_ in rounds)
    average = [sum(w * answer[j] for w, _, answer, _ in rounds) // whole for j in range(2)]
    answers = {
        "granted": granted or tuple(average),
        "chance": chance,
        "welfare": (round(welfare * CODES),),
        "luck": (round(luck * CODES),),
    }
    while (asked := closing.step(board)) is not None:
        board.post(Release(asked, answers[asked.query]))
    return board


def released(board, query):
    return next(r for r in board.releases if r.step.query == query)


def rounds_of(board):
    """The rounds that count: weight, prices, answer, noise scales."""
    return [
        (r.step.weight, r.step.prices, r.answer, deviation(r.step.noise))
        for r in board.releases
        if r.step.weight
    ]


# --- loads ------------------------------------------------------------------------------------


def radius_of(noise, released, scale, cap, guess, most, tail, *, normal, rest):
    """The radius of noise and a part of coins, from their variances, by the formula of the proof.

    The package tries a few rates; here the best one is sought, so it is a little smaller.
    """
    guesses, found = [], []
    while guess < most or not guesses:
        guesses, guess = [*guesses, guess], guess * 6.0
    thin = [guesses[0] + 4.0 * (1.0 / g - 1.0) / g * most for g in (0.5, 0.1)]
    for i, own in enumerate([*guesses, *thin]):
        part = 0.7 if i == 0 else 0.3 / (len(guesses) + 1)
        found.append(fit_of(noise, released, scale, cap, own, tail - math.log(part), normal, rest))
    return min(found)


def fit_of(noise, released, scale, cap, guess, tail, normal, rest):
    rates = np.geomspace(2.0**-16, 4.0, 4000) / cap
    u = rest * rates * cap
    k = 2.0 * (np.expm1(u) - u) / u**2
    each = rest**2 * rates * k / 2.0
    about = tail / rates + rates * (noise + (each * scale) ** 2) / 2.0 + each * guess
    i = int(np.argmin(about))
    rate, b = rates[i], each[i]
    variance = noise + (b * scale) ** 2
    radius = tail / rate + rate * variance / 2.0

    def fails(z):
        """E min(1, exp(-rate (r - X))) for X normal, and r = z deviations."""
        shift = rate * math.sqrt(variance)
        return stats.norm.sf(z) + math.exp(-shift * z + shift**2 / 2.0) * stats.norm.cdf(z - shift)

    if normal:
        far = tail / (rate * math.sqrt(variance)) + rate * math.sqrt(variance)
        z = optimize.brentq(lambda z: math.log(max(fails(z), 1e-300)) + tail, 0.1, far)
        radius = min(radius, z * math.sqrt(variance))
    return radius + b * released


def parts_of(board):
    """The part of beta for each of two resources, in ones."""
    if board.header.policy.get("beta_parts") != "by worth":
        return np.full(2, 0.5)
    _, prices, _, scales = rounds_of(board)[0]
    worth = np.array(prices, float) * scales
    return 0.05 + 0.9 * worth / worth.sum()


@pytest.mark.parametrize("parts", ["by worth", "even"])
def test_loads_of_a_fixed_schedule_have_the_normal_radius_and_one_cap(parts):
    market = a_market(divisible=True)
    board = played(market, (1.2, 0.3), replace(POLICIES["newton"], beta_parts=parts))
    rounds, beta = rounds_of(board), board.header.budget.beta
    own_part = parts_of(board)
    assert (abs(own_part - 0.5) > 0.05).all() == (parts == "by worth")
    assert len(rounds) > 2
    whole = sum(w for w, *_ in rounds)
    for j, bound in enumerate(load_bounds(board)):
        scales = [deviation(r.step.noise) for r in board.releases if r.step.weight]
        own = [s[j] if len(s) > 1 else s[0] for s in scales]
        spread = math.sqrt(sum((w * s) ** 2 for (w, *_), s in zip(rounds, own, strict=True)))
        radius = stats.norm.isf(beta * own_part[j]) * spread
        average = sum(w * answer[j] for w, _, answer, _ in rounds) / whole
        found = (bound * market.supply_codes[j] - average - DEMAND_CODE_MAX) * whole
        assert radius <= found <= 1.01 * radius
        assert 1.01 * radius < math.sqrt(2 * math.log(1 / (beta * own_part[j]))) * spread


@pytest.mark.parametrize("divisible", [False, True])
def test_what_comes_after_the_prices_of_the_first_round_moves_no_part_of_beta(
    divisible, monkeypatch
):
    """Otherwise noise could choose the bound that is about it."""
    board = close(played(a_market(divisible=divisible), (1.2, 0.3)))
    used, tails = [], tail_bounds.tails
    monkeypatch.setattr(
        tail_bounds, "tails", lambda *x, **y: used.append(tails(*x, **y)) or used[-1]
    )
    load_bounds(board)
    first = next(i for i, r in enumerate(board.releases) if r.step.weight)
    for i, release in enumerate(board.releases):
        if release.step.weight:
            step = replace(release.step, prices=(7, 9)) if i > first else release.step
            board.releases[i] = Release(step, (11, 13))
    load_bounds(board)
    assert used[0] == used[1] and used[0][0] != used[0][1]
    step = replace(board.releases[first].step, prices=(7, 9))
    board.releases[first] = replace(board.releases[first], step=step)
    load_bounds(board)
    assert used[2] != used[1], "the prices of that round itself do"


def test_loads_of_a_schedule_that_adapts_have_the_sub_gaussian_radius():
    market, policy = a_market(divisible=True), POLICIES["mwu-adaptive"]
    board = played(market, (1.2, 0.3), policy)
    rounds, beta = rounds_of(board), board.header.budget.beta
    whole = sum(w for w, *_ in rounds)
    # weight * scale^2 is the same in all rounds, and no run has more weight than the outlook says
    each = [w * scale**2 for w, _, _, (scale,) in rounds]
    assert max(each) <= min(each) * (1 + 1e-6)
    most = policy.outlook(market, board.header.budget).weight
    assert most >= whole
    radius = math.sqrt(2 * math.log(2 / beta) * each[0] * most)
    expected = [
        (sum(w * answer[j] for w, _, answer, _ in rounds) + whole * DEMAND_CODE_MAX + radius)
        / (whole * supply)
        for j, supply in enumerate(market.supply_codes)
    ]
    assert load_bounds(board) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("chance", [(0, 0, 0), (500, 2000, 0), (-700, 9000, 0)])
def test_loads_that_coins_decide_have_the_radius_of_both(kind, chance):
    """The bound is fitted to the outlook's weight, because that of an adaptive run is random."""
    market, policy = a_market(), POLICIES[kind]
    granted = tuple(
        round(load * s) for load, s in zip((0.83, 0.27), market.supply_codes, strict=True)
    )
    board = close(played(market, (0.8, 0.3), policy), chance, granted=granted)
    measured = kind == "newton"
    part = tail_bounds.granted_part(market, board.header.budget) if measured else 0.0
    rounds, budget = rounds_of(board), board.header.budget
    whole = sum(w for w, *_ in rounds)
    most = policy.outlook(market, budget).weight
    assert (most > whole) == (kind == "mwu-adaptive")
    cap, scale = float(DEMAND_CODE_MAX), tail_bounds.chance_scale(market, budget, kind == "newton")
    tail = math.log(2 / budget.beta)
    for j, bound in enumerate(load_bounds(board)):
        variance = policy.outlook(market, budget).variance
        if kind == "newton":
            scales = [deviation(r.step.noise) for r in board.releases if r.step.weight]
            own = [s[j] if len(s) > 1 else s[0] for s in scales]
            variance = sum((w * s) ** 2 for (w, *_), s in zip(rounds, own, strict=True))
        guess = cap * max(cap, math.sqrt(variance) / most)
        own = (deviation(released(board, "granted").step.noise) * 2)[j] if measured else 0.0
        variance = (1.0 - part) ** 2 * variance + (part * most * own) ** 2
        radius = radius_of(
            variance, whole**2 * CHANCE_UNIT * chance[j], most**2 * scale, most * cap,
            most**2 * guess, most**2 * cap * market.supply_codes[j] / 4.0,
            tail - math.log(0.8 if measured else 1.0), normal=kind == "newton", rest=1.0 - part,
        )  # fmt: skip
        total = (1.0 - part) * sum(w * answer[j] for w, _, answer, _ in rounds)
        total += whole * (part * granted[j] + cap)
        alone = stats.norm.isf(0.1 * math.exp(-tail)) * most * own + whole * (granted[j] + cap)
        expected = (min(total + radius, alone) if measured else total + radius) / (
            whole * market.supply_codes[j]
        )
        assert bound == pytest.approx(max(0.0, expected), rel=0.01)


def test_releases_that_only_steer_do_not_count():
    market = a_market(divisible=True)
    board = played(market, (0.9, 0.9))
    before = load_bounds(board)
    board.post(Release(Step("demand", (0, 0), Gaussian((1.0,))), (2**60, 2**60)))
    assert load_bounds(board) == before


@pytest.mark.parametrize("divisible", [True, False])
def test_a_bound_is_never_negative(divisible):
    board = close(played(a_market(divisible=divisible), (-9.0, -9.0)))
    certificate = certify(board)
    assert certificate.load_at_most == (0.0, 0.0)
    assert certificate.factors == (SHARE, SHARE)


# --- factors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loads", [(0.3, 0.5), (1.5, 0.2), (0.9, 4.0), (1.5, 4.0)])
def test_divisible_goods_have_a_factor_for_each_resource(loads):
    board = close(played(a_market(divisible=True), loads), welfare=100.0)
    bounds, certificate = load_bounds(board), certify(board)
    assert certificate.factors == factors(board)
    for bound, factor, load in zip(
        bounds, certificate.factors, certificate.load_at_most, strict=True
    ):
        if bound <= 1.0:
            assert factor == SHARE
        else:
            # the largest that fits, up to float rounding
            assert Fraction(factor, SHARE) * Fraction(bound) <= 1
            assert Fraction(factor + 1, SHARE) * Fraction(bound) > 1 - Fraction(1, 10**11)
        assert load == pytest.approx(min(1.0, bound * factor / SHARE))


@pytest.mark.parametrize("loads", [(0.3, 1.3), (1.01, 0.2), (3.0, 1.1)])
def test_indivisible_goods_are_thinned_where_they_might_not_fit_and_no_more(loads):
    market = a_market(max_demand=[1.0, 0.5])
    board = close(played(market, loads), welfare=100.0)
    beta, certificate = board.header.budget.beta, certify(board)
    assert certificate.factors == factors(board)
    for j, (bound, factor) in enumerate(zip(load_bounds(board), factors(board), strict=True)):
        if bound <= 1.0:
            assert factor == SHARE
            assert certificate.load_at_most[j] == pytest.approx(bound)
        else:
            assert 0 < factor < SHARE
            # A neighbour may be granted and keep one more cap.
            assert certificate.load_at_most[j] == pytest.approx(1.0, abs=1e-6)
            more = list(certificate.factors)
            more[j] += 100
            assert given_bounds(board, tuple(more), None)[j] > 1.0
    assert min(certificate.factors) < SHARE
    assert certificate.beta == beta


@pytest.mark.parametrize("loads", [(0.3, 0.5), (1.5, 0.2), (0.9, 4.0), (1.001, 1.0)])
def test_divisible_goods_never_get_less_than_indivisible_ones(loads):
    """From the same rounds: scaling needs no margin for coins."""
    divisible = factors(close(played(a_market(divisible=True), loads)))
    assert all(
        f >= g for f, g in zip(divisible, factors(close(played(a_market(), loads))), strict=True)
    )


# --- value ------------------------------------------------------------------------------------


def events(board):
    """The tail of each statement about value; all of them share 1%."""
    market, policy = board.header.market, board.header.policy
    statements = 4 if market.divisible else 6 if market.options == 1 else 7
    if not market.divisible and policy.get("grants") == "measured":
        statements += 1
    return math.log(statements / 0.01)


def above_welfare(board, *, noise=True):
    """How far the optimum may exceed the averaged welfare, in value codes."""
    market, policy = board.header.market, board.header.policy["name"]
    rounds = rounds_of(board)
    whole = sum(w for w, *_ in rounds) * UNITS
    supplies = [r.supply / u for r, u in zip(market.resources, market.unit_sizes, strict=True)]
    known, rounding, variance = 0.0, 0.0, 0.0
    outlook = POLICIES[policy].outlook(market, board.header.budget)
    first = 0.0
    for w, prices, answer, scales in rounds:
        known += w * sum(p * (b - a) for p, b, a in zip(prices, supplies, answer, strict=True))
        dearest = sorted(prices)[-market.bundle_size :]
        rounding += w * market.agents * (UNITS + sum(dearest))
        each = scales * (1 if len(scales) > 1 else len(prices))
        squares = sum((p * s) ** 2 for p, s in zip(prices, each, strict=True))
        variance += w * w * squares
        first = first or w * outlook.weight * squares
    tail = events(board) + math.log(4)
    radius = min(
        math.sqrt((variance + v) * (2 * tail + math.log((variance + v) / v)))
        for v in (first / 16, first / 16 / 64, first / 16 / 64**2, first / 16 / 64**3)
    )
    return (known + radius * noise + rounding) / whole


def paid_at_least(board):
    """What all agents pay at posted prices, on average over the rounds, in value codes.

    The worth of all supplies minus the worth of what is left over, which `above_welfare` bounds.
    """
    market, rounds = board.header.market, rounds_of(board)
    whole = sum(w for w, *_ in rounds) * UNITS
    supplies = [r.supply / u for r, u in zip(market.resources, market.unit_sizes, strict=True)]
    worth = unseen = 0.0
    for w, prices, *_ in rounds:
        worth += w * sum(p * b for p, b in zip(prices, supplies, strict=True))
        unseen += w * market.agents * (UNITS + sum(sorted(prices)[-market.bundle_size :]))
    return (worth + unseen) / whole - above_welfare(board) - shares_rounding(board)


def shares_rounding(board):
    """Shares of the averaged allocation are rounded down, by 1/SHARE for every option taken."""
    market = board.header.market
    options = min(market.options, len(rounds_of(board)))
    return market.agents * options * (market.value_cap_code / SHARE + 1)


def released_value(board, query):
    """The last number of a release, and its radius."""
    release = released(board, query)
    scale, tail = deviation(release.step.noise)[-1], events(board)
    return release.answer[-1], tail_bounds.release_radius(scale, tail)


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("options", [1, 3])
@pytest.mark.parametrize(("load", "luck"), [(0.6, 0.0), (1.2, -400.0), (1.2, -3000.0)])
def test_value_of_divisible_goods(load, luck, options, kind):
    market = a_market(divisible=True, options=options, bundle_size=1)
    board = close(played(market, (load, 0.5), POLICIES[kind]), welfare=3000.0, luck=luck)
    answer, radius = released_value(board, "welfare")
    rounding = shares_rounding(board)
    low, high = max(answer - radius, paid_at_least(board)), answer + radius
    above, f = above_welfare(board) + rounding, min(factors(board)) / SHARE
    assert (f < 1.0) == (closing.luck_range(board) is not None) == (load > 1.0)
    least = -math.inf
    if f < 1.0:
        taken, its_radius = released_value(board, "luck")
        least = taken - its_radius

    def given(w):
        return max(0.0, max(f * w, w + least) - rounding)

    certificate, step = certify(board), market.value_step
    assert low > 0
    assert certificate.welfare_at_least == pytest.approx(given(low) * step)
    assert certificate.optimum_at_most == pytest.approx((high + above) * step)
    ratios = [given(w) / (w + above) for w in np.linspace(low, high, 1001)]
    assert certificate.ratio_at_least == pytest.approx(min(1.0, *ratios), rel=1e-5)
    assert certificate.value_beta == 0.01


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("options", [1, 3])
@pytest.mark.parametrize(
    ("loads", "welfare", "luck"),
    [
        ((0.3, 0.3), 3000.0, None),  # nothing is thinned
        ((0.3, 1.5), 100.0, None),  # thinned, and bounded by the factor
        ((1.5, 0.3), 3000.0, -300.0),  # thinned, with the luck of what is given
    ],
)
def test_value_of_indivisible_goods(loads, welfare, luck, options, kind):
    market = a_market(options=options, bundle_size=1)
    board = close(played(market, loads, POLICIES[kind]), (0, 0, 5), welfare, luck or 0.0)
    tail, (answer, radius) = events(board), released_value(board, "welfare")
    low = max(0.0, answer - radius, paid_at_least(board))
    high = max(low, answer + radius)
    cap, f = float(market.value_cap_code), min(factors(board)) / SHARE
    assert (f < 1.0) == (max(loads) > 1.0)
    assert (closing.luck_range(board) is None) == (luck is None)
    if luck is None:
        variance, its_radius = released_value(board, "chance")
        unit = dearest(board) / 2**16
        spread = math.sqrt((variance + its_radius) * CHANCE_UNIT) + math.sqrt(market.agents) / 2
        least = -math.sqrt(2 * tail) * spread * unit - dearest(board) * tail / 3
    else:
        taken, its_radius = released_value(board, "luck")
        least = taken - its_radius
    granted = max(0.0, low + least)
    if options > 1:  # coins that fall in the gaps that rounding left
        least -= kept_at_most(market.agents * cap, cap, options / SHARE, tail)

    def given(w):
        left = max(0.0, w + least)
        if f < 1.0 and luck is None:  # thinning is subtracted
            left -= kept_at_most(left, cap, 1 - f, tail)
        return max(0.0, left)

    above = above_welfare(board) + shares_rounding(board)
    step, certificate = market.value_step, certify(board)
    assert certificate.welfare_at_least == pytest.approx(given(low) * step)
    assert certificate.optimum_at_most == pytest.approx((high + above) * step)
    smallest = min(given(w) / max(w + above, 1e-9) for w in np.linspace(low, high, 1001))
    if kind == "newton" and luck is None:
        short = short_of_optimum(board) + above_welfare(board, noise=False) + shares_rounding(board)
        smallest = max(smallest, given(low) / (granted + short))
    assert certificate.ratio_at_least == pytest.approx(smallest, rel=0.02)
    assert certificate.ratio_at_least <= smallest * (1 + 1e-9)
    assert smallest > 0.0 or welfare == 100.0


def short_of_optimum(board):
    """C7 by plain formulas, in value codes: above what X is without its noise."""
    market, budget, rounds = board.header.market, board.header.budget, rounds_of(board)
    cap, whole = float(DEMAND_CODE_MAX), sum(w for w, *_ in rounds)
    granted, chance = released(board, "granted"), released(board, "chance")
    weights = np.array([w / whole for w, *_ in rounds])[:, None]
    prices = np.array([p for _, p, *_ in rounds], float)
    answers = np.array([a for *_, a, _ in rounds], float)
    scales = np.array([np.resize(s, 2) for *_, s in rounds])
    own = np.resize(deviation(granted.step.noise), 2)
    noise = scales[0] ** 2 * rounds[0][0] / POLICIES["newton"].outlook(market, budget).weight
    coins = cap * np.maximum(cap, np.sqrt(noise))
    pivot = np.floor((noise + coins) / (noise + coins + own**2) * prices[0])
    part = pivot / prices[0]
    away = np.abs(prices - pivot).max(axis=0)
    variance = ((weights * scales * (prices - pivot)) ** 2).sum() + (pivot**2 * own**2).sum()
    # One resource for each option: with one option h is 1, and two options may touch both.
    width = min(2, market.options)

    def worst(variances):  # sum of variances / h
        return variances.sum() if width == 1 else np.sqrt(variances).sum() ** 2

    about = away * np.sqrt(coins)
    h = np.ones(2) if width == 1 else about / about.sum()
    shown = CHANCE_UNIT * np.array(chance.answer[:2], float)
    if market.options > 1:
        shown = shown + market.agents * market.options / SHARE * cap**2
    released_variance = (away**2 / h * shown).sum()
    spread = (
        (away**2 / h * CHANCE_UNIT * np.resize(deviation(chance.step.noise), 3)[:2]) ** 2
    ).sum()
    first = (prices[0] ** 2 * ((1 - part) ** 2 * noise + part**2 * own**2)).sum()
    guesses = [first + worst(prices[0] ** 2 * ((1 - part) ** 2 + 1 / 16) * coins)]
    most = first + worst((prices[0] * (2 - part)) ** 2 * cap / 4 * np.array(market.supply_codes))
    while guesses[-1] < most:
        guesses.append(6 * guesses[-1])
    radii = []
    for i, guess in enumerate(guesses):
        tail = events(board) - math.log(0.7 if i == 0 else 0.3 / (len(guesses) - 1))
        rate = math.sqrt(2 * tail / guess)
        u = rate * cap * sorted(away)[-width:][0] if width == 1 else rate * cap * away.sum()
        b = (math.exp(u) - 1 - u) / u**2 * rate
        radii.append(tail / rate + rate * (variance + b**2 * spread) / 2 + b * released_variance)
    moved = (weights * answers).sum(axis=0) - np.array(granted.answer, float)
    return (min(radii) + (pivot * moved).sum()) / UNITS


def test_a_billboard_from_before_has_the_ratio_of_before():
    """Its header does not say that the ratio rests on grants, and its tail has one event less."""
    board = close(played(a_market(), (0.95, 0.3)), (9, 9, 9), 3000.0)
    earlier = Billboard(replace(board.header, earlier=True))
    for release in board.releases:
        earlier.post(release)
    now, before = certify(board), certify(earlier)
    assert before.ratio_at_least < now.ratio_at_least - 0.005
    assert before.welfare_at_least > now.welfare_at_least
    assert replace(
        before, ratio_at_least=0.0, welfare_at_least=0.0, optimum_at_most=None
    ) == replace(now, ratio_at_least=0.0, welfare_at_least=0.0, optimum_at_most=None)


def test_what_comes_after_the_first_round_moves_neither_pivot_nor_guess(monkeypatch):
    """Otherwise noise could choose the bound that is about it."""
    board = close(played(a_market(), (0.8, 0.3)), (9, 9, 9), 3000.0)
    seen, radius = [], tail_bounds.guessed_radius
    monkeypatch.setattr(tail_bounds, "guessed_radius", lambda *x: seen.append(x[:2]) or radius(*x))
    grants.short_of_optimum(board)
    counted = [i for i, r in enumerate(board.releases) if r.step.weight]
    for i in counted:
        step = board.releases[i].step
        step = step if i == counted[0] else replace(step, prices=(7, 9))
        board.releases[i] = Release(step, (11, 13))
    grants.short_of_optimum(board)
    assert seen[0] == seen[1]
    step = replace(board.releases[counted[0]].step, prices=(7, 9))
    board.releases[counted[0]] = replace(board.releases[counted[0]], step=step)
    grants.short_of_optimum(board)
    assert seen[2] != seen[1], "the prices of that round itself do"


@pytest.mark.parametrize("options", [1, 3])
@pytest.mark.parametrize("divisible", [False, True])
def test_value_beta_is_shared_by_the_events_that_occur(divisible, options, monkeypatch):
    seen = set()

    def watch(module, name, *events):
        honest = getattr(module, name)

        def watched(*about):
            found = honest(*about)
            released = about[1:] if name == "_released" else ()
            seen.update((name, *released, event) for event in events if found != 0.0)
            return found

        monkeypatch.setattr(module, name, watched)

    watch(certificates, "_released", "from below", "from above")
    watch(certificates, "_mixture_radius", "X")
    watch(bounds, "coin_luck", "noise", "coins")
    watch(bounds, "thinned_away", "thinned")
    watch(tail_bounds, "guessed_radius", "grants")
    watch(tail_bounds, "kept_at_most", "kept")  # for the gaps and, once more, for what is thinned
    counts = set()
    for loads, welfare in [((0.3, 0.3), 3000.0), ((0.3, 1.5), 100.0), ((1.5, 0.3), 3000.0)]:
        market = a_market(divisible=divisible, options=options, bundle_size=1)
        board = close(played(market, loads), chance=(10, 10, 10), welfare=welfare, luck=-300.0)
        extent = closing.luck_range(board)  # only compares what it might use
        with monkeypatch.context() as patched:
            patched.setattr(closing, "luck_range", lambda *_, extent=extent: extent)
            seen.clear()
            certify(board)
        seen.discard(("_released", "luck", "from above"))
        if options == 1:
            seen.discard(("kept_at_most", "kept"))
        counts.add(len(seen))
    assert math.log(max(counts) / 0.01) == pytest.approx(events(board))


def test_batches_that_are_thinned_need_no_chance_release():
    """Coins decide nothing there, except for what is thinned."""
    market, policy = a_market(bundle_size=1), MwuOnline(batch=5000)
    for welfare, luck in [(100.0, None), (10_000.0, -3000.0)]:
        board = close(played(market, (1.1, 0.1), policy), welfare=welfare, luck=luck or 0.0)
        assert min(factors(board)) < SHARE
        queries_asked = [r.step.query for r in board.releases if not r.step.weight]
        assert queries_asked == ["welfare"] + (["luck"] if luck else [])
        given = certify(board).welfare_at_least
        assert given < min(factors(board)) / SHARE * welfare * 1.2


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
    board.post(Release(Step("demand", (0, 0), Gaussian((1.0,))), (1, 1)))  # weight 0
    with pytest.raises(BillboardError, match="nothing to certify"):
        certify(board)


@pytest.mark.parametrize("divisible", [True, False])
def test_a_closing_release_that_is_missing_is_told(divisible):
    whole = close(played(a_market(divisible=divisible), (0.5, 0.5)))
    queries = ["welfare"] if divisible else ["granted", "chance", "welfare"]
    for missing in queries:
        board = played(a_market(divisible=divisible), (0.5, 0.5))
        for query in queries:
            if query != missing:
                board.post(released(whole, query))
        with pytest.raises(BillboardError, match=f"there is no {missing} release"):
            certify(board)


# --- the closing releases ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("divisible", "load", "order"),
    [
        (True, 0.5, ["welfare"]),
        (True, 1.5, ["welfare", "luck"]),
        (False, 0.5, ["granted", "chance", "welfare"]),
        (False, 1.5, ["granted", "chance", "welfare", "luck"]),
    ],
)
def test_the_closing_releases_and_what_they_cost(divisible, load, order):
    board = played(a_market(divisible=divisible), (load, 0.5))
    market, before, budget = board.header.market, len(board.releases), board.header.budget
    close(board, welfare=3000.0)
    last = [r.step for r in board.releases[before:]]
    assert [step.query for step in last] == order
    assert all(step.prices == () and step.weight == 0 for step in last)
    for step in last:
        share = tail_bounds.closing_shares(
            market, budget, coins=not divisible, measured=not divisible
        )
        assert (share["welfare"], share["luck"]) == (0.02, 0.01)
        change = closing.change(board, step.query)
        cost = float(step.noise.cost(change, queries.width(market, step.query)).rho)
        assert cost == pytest.approx(share[step.query] * budget.rho)
        assert cost <= share[step.query] * budget.rho


def test_luck_is_released_only_where_the_factor_tells_less():
    market = a_market()
    cap, seen = market.value_cap_code, set()
    for welfare in (0.0, 100.0, 300.0, 1000.0, 3000.0):
        board = close(played(market, (0.3, 1.5)), welfare=welfare)
        asked = any(r.step.query == "luck" for r in board.releases)
        assert closing.luck_range(board) == ((-cap, dearest(board)) if asked else None)
        seen.add(asked)
    assert seen == {False, True}
    assert asked, "much value may be lost, and the release is worth its noise"


@pytest.mark.parametrize("options", [1, 3])
@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_the_luck_of_divisible_goods_is_what_the_smallest_factor_takes(options, neighbours):
    market = a_market(divisible=True, options=options, neighbours=neighbours)
    board = close(played(market, (0.3, 1.5)), welfare=300.0)
    lowest, highest = closing.luck_range(board)
    f, cap = Fraction(min(factors(board)), SHARE), market.value_cap_code
    assert highest == 0
    least = -cap * (1 - f) - options * (Fraction(cap, SHARE) + 1)  # what scaling and rounding take
    assert lowest <= least <= lowest + 2 * options + 1
    assert closing.change(board, "luck").most == -lowest


def dearest_at(rounds, **changes):
    board = played(a_market(**changes), (0.9, 0.9), price=0.0)
    for prices, weight in rounds:
        codes = price_codes(board.header.market, prices)
        board.post(Release(Step("demand", codes, Gaussian((1.0,)), weight), (0, 0)))
    return dearest(board)


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
