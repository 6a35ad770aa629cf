"""How far noise and coins move a sum: bounds against exact tails, never too small, never far off.

Exact tails are sums of exact probabilities, in doubles (all terms positive: good to about 1e-13).
"""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.optimize import minimize
from scipy.stats import binom, norm

from jdpack import Budget, Market
from jdpack.market.grid import CHANCE_UNIT, DEMAND_CODE_MAX
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.noise import Gaussian, NoNoise, deviation, gaussian
from jdpack.privacy.tail_bounds import (
    Coins,
    Fit,
    Sum,
    entropy,
    kept_at_most,
    normal_quantile,
    release_radius,
)

SAFE = 1.0 + 1e-11
"""The error of the exact tails, which are computed in doubles."""

# --- the normal quantile ----------------------------------------------------------------------

TAILS = [*np.linspace(0.0, 3.0, 61)[1:], *np.linspace(3.0, 60.0, 115), 100.0, 300.0, 700.0]


@pytest.mark.parametrize("tail", TAILS)
def test_the_quantile_is_never_below_the_true_one(tail):
    exact = norm.isf(math.exp(-tail))
    assert normal_quantile(tail) >= exact
    if exact >= 3.0:
        assert normal_quantile(tail) <= 1.005 * exact
    assert normal_quantile(tail) <= math.sqrt(2.0 * tail)  # what sub-Gaussian noise needs


def test_the_quantile_grows_with_the_tail():
    found = [normal_quantile(tail) for tail in TAILS]
    assert found == sorted(found)


def test_the_quantile_is_well_below_the_sub_gaussian_bound_where_it_counts():
    for tail in (18.0, 23.0, 30.0):
        assert normal_quantile(tail) < 0.95 * math.sqrt(2.0 * tail)


# --- sums of noise ----------------------------------------------------------------------------


def gaussian_masses(scale: float) -> np.ndarray:
    """P(z), z from -reach to reach, of discrete Gaussian noise."""
    reach = math.ceil(10.0 * scale) + 10  # the rest is below 1e-21
    z = np.arange(-reach, reach + 1)
    mass = np.exp(-(z**2) / (2.0 * scale * scale))
    return mass / mass.sum()


def laplace_masses(scale: float, bound: int) -> np.ndarray:
    mass = np.exp(-np.abs(np.arange(-bound, bound + 1)) / scale)
    return mass / mass.sum()


def exact_tails(masses: list[np.ndarray], weights: list[int]) -> np.ndarray:
    """P(sum of weight * noise >= x) for x = 0, 1, 2, ..."""
    total = np.ones(1)
    for mass, weight in zip(masses, weights, strict=True):
        stretched = np.zeros((len(mass) - 1) * weight + 1)
        stretched[::weight] = mass
        total = np.convolve(total, stretched)
    middle = len(total) // 2
    return np.cumsum(total[::-1])[::-1][middle:]


def fails(radius: float, tails: np.ndarray, tail: float) -> bool:
    """Whether sums above the radius are likelier than e^-tail."""
    at = math.floor(radius) + 1  # the smallest whole number above
    return at < len(tails) and tails[at] > SAFE * math.exp(-tail)


def a_sum(scales: list[float], weights: list[int], *, fixed: bool = True) -> Sum:
    spreads = [w * s for w, s in zip(weights, scales, strict=True)]
    return Sum(
        variance=math.fsum(s * s for s in spreads),
        weight=sum(weights),
        scales=tuple(scales) if fixed else None,
        peak=max(spreads),
    )


def test_sums_are_equal_if_all_their_numbers_are():
    """A long sum of equal scales is compared by one of them and their number."""
    known = Sum(4.0, 2.0, (1.0,) * 50, 1.0)
    assert known == Sum(4.0, 2.0, (1.0,) * 50, 1.0)
    assert hash(known) == hash(Sum(4.0, 2.0, (1.0,) * 50, 1.0))
    others = [
        Sum(5.0, 2.0, (1.0,) * 50, 1.0),
        Sum(4.0, 3.0, (1.0,) * 50, 1.0),
        Sum(4.0, 2.0, (1.0,) * 49, 1.0),
        Sum(4.0, 2.0, (1.0,) * 49 + (1.5,), 1.0),
        Sum(4.0, 2.0, (1.5,) * 50, 1.0),
        Sum(4.0, 2.0, None, 1.0),
        Sum(4.0, 2.0, (1.0,) * 50, 2.0),
    ]
    assert all(known != other for other in others) and len({known, *others}) == len(others) + 1
    assert Sum(4.0, 2.0, ()) != Sum(4.0, 2.0, None) and known != "a sum"


SUMS = {
    "one small": ([0.7], [1]),
    "one of 3": ([3.0], [1]),
    "one of 300": ([300.0], [1]),
    "one of 3000": ([3000.0], [1]),
    "alike": ([40.0] * 5, [1] * 5),
    "unlike": ([2.0, 30.0, 8.0], [3, 1, 2]),
    "falling weights": ([100.0, 120.0, 140.0], [4, 3, 2]),
    "one heavy": ([100.0, 100.0, 100.0], [20, 1, 1]),
    "many small": ([0.5] * 12, [1] * 12),
}


@cache
def tails_of(name: str) -> np.ndarray:
    scales, weights = SUMS[name]
    return exact_tails([gaussian_masses(s) for s in scales], weights)


PROBABILITIES = [0.3, 1e-2, 1e-4, 1e-6, 1e-9, 1e-12]


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_of_gaussian_noise_stays_within_its_radius(name):
    scales, weights = SUMS[name]
    tails = tails_of(name)
    for p in PROBABILITIES:
        tail = math.log(1.0 / p)
        for fixed in (True, False):
            radius = a_sum(scales, weights, fixed=fixed).radius(tail)
            assert not fails(radius, tails, tail)
        assert radius == pytest.approx(math.sqrt(2 * tail * a_sum(scales, weights).variance))


def test_where_scales_are_fixed_and_large_the_radius_is_hardly_above_the_exact_one():
    for name, slack in [("one of 300", 1.05), ("one of 3000", 1.01), ("falling weights", 1.1)]:
        scales, weights = SUMS[name]
        tails = tails_of(name)
        for p in (1e-6, 1e-9, 1e-12):
            tail = math.log(1.0 / p)
            noise = a_sum(scales, weights)
            exact = int(np.argmax(tails <= p))  # the smallest sum that is as unlikely
            radius = noise.radius(tail)
            assert exact - 1 <= radius <= slack * exact
            if name == "one of 3000":
                assert radius < 0.96 * math.sqrt(2.0 * tail * noise.variance)


def test_negative_control_the_plain_normal_quantile_is_too_small_for_small_scales():
    """Without the terms for whole numbers the radius is too small, and the exact tails show it."""
    failed = set()
    for name, (scales, weights) in SUMS.items():
        tails = tails_of(name)
        for p in PROBABILITIES:
            z = norm.isf(p)
            plain = z * math.sqrt(a_sum(scales, weights).variance)
            if fails(plain, tails, math.log(1.0 / p)):
                failed.add(name)
    assert {"one of 3", "many small"} <= failed


def test_negative_control_a_radius_a_little_smaller_fails():
    for name in ("one of 300", "one of 3000", "falling weights", "alike"):
        scales, weights = SUMS[name]
        tails = tails_of(name)
        tail = math.log(1e6)
        assert fails(0.9 * a_sum(scales, weights).radius(tail), tails, tail)


LAPLACES = {
    "one": ([(5.0, 60)], [1]),
    "cut short": ([(5.0, 8)], [1]),
    "one small": ([(0.4, 9)], [1]),
    "alike": ([(6.0, 80)] * 5, [1] * 5),
    "unlike": ([(2.0, 40), (20.0, 200), (6.0, 90)], [3, 1, 2]),
}


@pytest.mark.parametrize("name", LAPLACES)
def test_a_sum_of_truncated_laplace_noise_stays_within_its_radius(name):
    kinds, weights = LAPLACES[name]
    tails = exact_tails([laplace_masses(s, b) for s, b in kinds], weights)
    noise = a_sum([s for s, _ in kinds], weights, fixed=False)
    for p in PROBABILITIES:
        tail = math.log(1.0 / p)
        assert not fails(noise.radius(tail, truncated=True), tails, tail)


def test_negative_control_the_gaussian_radius_is_too_small_for_laplace_noise():
    kinds, weights = LAPLACES["one"]
    tails = exact_tails([laplace_masses(s, b) for s, b in kinds], weights)
    noise, tail = a_sum([5.0], weights, fixed=False), math.log(1e4)
    assert fails(noise.radius(tail), tails, tail)


def test_no_noise_needs_no_room():
    for truncated in (False, True):
        assert Sum(0.0, 7.0).radius(20.0, truncated=truncated) == 0.0
    assert release_radius(0.0, 20.0) == 0.0


# --- one release ------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.3, 0.7, 1.0, 2.5, 10.0, 77.0, 1000.0])
@pytest.mark.parametrize("p", PROBABILITIES)
def test_one_release_stays_within_its_radius(scale, p):
    tail = math.log(1.0 / p)
    radius = release_radius(scale, tail)
    assert not fails(radius, exact_tails([gaussian_masses(scale)], [1]), tail)
    assert radius <= math.sqrt(2.0 * tail) * scale * SAFE
    if scale == 1000.0 and p < 1e-3:
        assert radius <= 1.02 * norm.isf(p) * scale


# --- coins ------------------------------------------------------------------------------------


@pytest.mark.parametrize("grants", [1, 5, 40, 1000, 10**6])
@pytest.mark.parametrize("f", [1e-6, 0.01, 0.3, 0.5, 0.9, 0.999, 1.0 - 1e-9])
def test_coins_keep_no_more_of_grants_that_are_alike(grants, f):
    """The load kept of n grants of load q each is q times a binomial number."""
    q = 0.01
    for p in PROBABILITIES:
        bound = kept_at_most(grants * q, q, f, math.log(1.0 / p))
        most = math.floor(bound / q * (1.0 + 1e-12))
        assert binom.sf(most, grants, f) <= SAFE * p


@pytest.mark.parametrize("f", [0.05, 0.5, 0.8])
def test_coins_keep_no_more_of_grants_of_many_sizes(f):
    sizes = np.random.default_rng(1).integers(1, 60, 80).tolist()
    kept = np.ones(1)
    for size in sizes:
        coin = np.zeros(size + 1)
        coin[0], coin[size] = 1.0 - f, f
        kept = np.convolve(kept, coin)
    tails = np.cumsum(kept[::-1])[::-1]
    for p in PROBABILITIES:
        bound = kept_at_most(sum(sizes), max(sizes), f, math.log(1.0 / p))
        at = math.floor(bound) + 1
        assert at >= len(tails) or tails[at] <= SAFE * p


def test_all_is_kept_where_nothing_is_thinned():
    assert kept_at_most(3.7, 0.1, 1.0, 25.0) == 3.7


def test_the_bound_on_coins_is_close_where_there_are_many():
    n, q, f, p = 10**6, 1e-6, 0.5, 1e-9
    exact = binom.isf(p, n, f) * q
    assert kept_at_most(n * q, q, f, math.log(1.0 / p)) <= exact + 0.1 * (exact - f)


@pytest.mark.parametrize("grants", [40, 1000, 10**6])
@pytest.mark.parametrize("f", [0.01, 0.5, 0.99])
def test_the_bound_on_coins_is_that_of_chernoff(grants, f):
    """Where coins can keep so much at all, the bound is the point at which the entropy suffices."""
    q, tail = 0.01, math.log(1e6)
    bound = kept_at_most(grants * q, q, f, tail)
    if bound < grants * q:
        assert grants * entropy(bound / (grants * q), f) == pytest.approx(tail, rel=1e-6)
    else:
        assert grants * math.log(1.0 / f) <= tail * SAFE


def test_relative_entropy_is_that_of_two_coins():
    for a, f in [(0.3, 0.2), (0.5, 0.5), (0.999, 0.1), (1e-9, 1e-10)]:
        exact = a * math.log(a / f) + (1 - a) * math.log((1 - a) / (1 - f))
        assert entropy(a, f) == pytest.approx(exact, abs=1e-12)
    assert entropy(0.0, 0.25) == pytest.approx(-math.log(0.75))
    assert entropy(1.0, 0.25) == pytest.approx(math.log(4.0))


def test_relative_entropy_is_never_rounded_up():
    """It is multiplied by the number of grants: with 10^10, an error of 1e-16 is 1e-6 of a tail."""
    rng = np.random.default_rng(4)
    with mp.workdps(50):
        for _ in range(500):
            f = int(rng.integers(1, 2**24)) / 2**24
            a = min(f * (1.0 + 10.0 ** rng.uniform(-8, -1)), 1.0 - 2.0**-30)
            exact = a * mp.log(mpf(a) / f) + (1 - mpf(a)) * mp.log((1 - mpf(a)) / (1 - mpf(f)))
            assert exact - mpf(2) ** -45 < entropy(a, f) <= exact


@pytest.mark.parametrize(
    "too_small",
    [
        lambda load, q, f, tail: f * load + math.sqrt(q * f * (1 - f) * load * tail),
        lambda load, q, f, tail: f * load + q * tail / 3,
        lambda load, q, f, tail: kept_at_most(load, q, f, 0.8 * tail),
        lambda load, q, f, tail: kept_at_most(load, 0.8 * q, f, tail),
    ],
    ids=["half the variance", "without the root", "less tail", "smaller coins"],
)
def test_negative_control_less_room_for_coins_is_too_little(too_small):
    failed = 0
    for grants, f in [(40, 0.01), (1000, 0.01), (1000, 0.5), (10**6, 0.5)]:
        for p in PROBABILITIES:
            bound = too_small(grants * 0.01, 0.01, f, math.log(1.0 / p))
            failed += binom.sf(math.floor(bound / 0.01), grants, f) > SAFE * p
    assert failed >= 4


# --- noise and coins --------------------------------------------------------------------------

RUNS = 200_000
NOISE, COIN = 30.0, 10.0  # the deviation of the noise, and the size of a coin
NO_COINS = Coins(0.0, 0.0, COIN, 500.0, 500.0)
FAILS = 0.01


def sums_with_coins(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise plus coins, and the variance of those coins, of many runs.

    The coins may depend on the noise: here the noise decides how many there are, and their odds.
    """
    rng = np.random.default_rng([seed, 9])
    noise = np.round(rng.normal(0.0, NOISE, RUNS))
    if kind == "independent":
        count, odds = np.full(RUNS, 20), np.full(RUNS, 0.5)
    elif kind == "more coins where noise is high":
        count, odds = np.where(noise > NOISE, 60, 2), np.full(RUNS, 0.5)
    elif kind == "rare coins where noise is high":
        count, odds = np.where(noise > NOISE, 300, 0), np.full(RUNS, 0.02)
    else:
        count, odds = np.where(noise > 1.5 * NOISE, 400, 0), np.full(RUNS, 0.5)
    coins = COIN * (rng.binomial(count, odds) - count * odds)
    return noise + coins, COIN**2 * count * odds * (1 - odds)


KINDS = [
    "independent",
    "more coins where noise is high",
    "rare coins where noise is high",
    "as many coins as decide everything",
]


def radius_of(noise: Sum, coins: Coins, tail: float, **more: bool) -> float:
    """The least radius of all fits, if nothing is thinned."""
    return min(fit.radius for fit in noise.fits(coins, tail, **more))


def failures(kind: str, scale: float, spoil=lambda noise, coins: (noise, coins)) -> float:
    """The part of the runs in which the sum is above its radius."""
    total, variance = sums_with_coins(kind, 1)
    released = variance + np.random.default_rng(2).normal(0.0, scale, RUNS)
    guess, tail, count = 20 * COIN**2 / 4, math.log(1.0 / FAILS), 0
    # The radius is a function of the released variance alone. Few values of it are enough.
    edges = np.quantile(released, np.linspace(0.0, 1.0, 400))
    for low, high in itertools.pairwise(edges):
        noise = Sum(NOISE**2, 1.0, (NOISE,))
        noise, coins = spoil(noise, Coins(float(low), scale, COIN, guess, 40 * guess))
        within = (released >= low) & (released < high)
        count += int((total[within] > radius_of(noise, coins, tail)).sum())
    return count / RUNS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.0, 300.0, 3000.0])
def test_noise_and_coins_stay_within_their_radius(kind, scale):
    """With the low end of each range of released variances, so a little too small a radius."""
    assert failures(kind, scale) <= FAILS


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("as many coins as decide everything", lambda noise, _: (noise, NO_COINS)),
        ("more coins where noise is high", lambda _, __: (Sum(NOISE**2 / 9), NO_COINS)),
    ],
    ids=["without the coins", "a third of the noise"],
)  # fmt: skip
def test_negative_control_a_radius_that_leaves_something_out_is_caught(kind, spoil):
    assert failures(kind, 300.0, spoil) > 1.2 * FAILS


def thinned(kind: str, scale: float, part: float, spoil: float = 1.0, less: float = 1.0) -> float:
    """The part of the runs in which what is given, after thinning, is above the supply.

    The averaged load is the supply or a little more, so nearly every run is thinned. `part` of a
    bound rests on the grants, measured with as much noise as the average, or `less` times as much
    as is claimed. If half as many again as may fail did, 150 of these runs would, with a deviation
    of 12, and 100 are allowed.
    """
    rng = np.random.default_rng(4)
    runs, supply, tail = 10_000, 2000.0, math.log(1.0 / FAILS)
    noise, own = (np.round(rng.normal(0.0, NOISE, runs)) for _ in range(2))
    # The load, in coins that are granted for certain, follows the noise: the worst that it can do.
    sure = np.full(runs, 205) if kind == "steady" else np.where(noise > 0.0, 215, 195)
    tossed = np.full(runs, 20) if kind == "steady" else np.where(noise > NOISE, 60, 2)
    if kind == "hardly too many":
        sure, tossed = np.full(runs, 202), np.zeros(runs, int)
    observed = COIN * (sure + tossed / 2.0) - noise
    released = COIN**2 * tossed / 4.0 + rng.normal(0.0, scale, runs)
    granted = sure + rng.binomial(tossed, 0.5)
    sums, failed, weight = Sum(NOISE**2, 1.0, (NOISE,)), 0, COIN / DEMAND_CODE_MAX
    seen = zip(granted, observed, released, COIN * granted - own, strict=True)
    for some, average, shown, measured in seen:
        coins = Coins(shown, scale, COIN, 20 * COIN**2 / 4, COIN * supply / 4.0)
        fits = sums.fits_with_grants(coins, tail, less * NOISE / weight, part)
        mixed = [(w * measured + (1.0 - w) * average + spoil * fit.radius, fit) for w, fit in fits]
        f = max(fit.factor(supply / load) for load, fit in mixed)
        failed += COIN * rng.binomial(some, f) > supply
    return failed / runs


@pytest.mark.parametrize("part", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["steady", "more where noise is high", "hardly too many"])
def test_what_is_thinned_fits(kind, part):
    assert thinned(kind, 300.0, part) <= FAILS


@pytest.mark.parametrize(("spoil", "less"), [(0.0, 1.0), (1.0, 0.1)], ids=["radius", "noise"])
def test_negative_control_thinning_without_a_radius_or_its_noise_is_caught(spoil, less):
    assert thinned("hardly too many", 300.0, 0.5, spoil, less) > 1.2 * FAILS


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("f", [0.02, 0.5, 0.95, 0.9999])
def test_grants_of_any_sizes_are_thinned_like_whole_caps(rate, f):
    """The mean of exp(l H), by the exact moments of grants of random sizes, with caps of 1."""
    rng, fit = np.random.default_rng(5), Fit(0.0, rate)
    g = fit.kept(f)
    for _ in range(50):
        sizes = rng.random(40) ** rng.choice([0.01, 1.0, 4.0])
        exact = math.fsum(np.log1p(f * np.expm1(rate / g * sizes)).tolist())
        assert exact <= rate * sizes.sum() * (1.0 + 1e-9)
    assert f <= g and fit.factor(g) == pytest.approx(f, rel=1e-6)


def test_negative_control_thinning_more_gently_is_refuted():
    rate, f = 2.0, 0.9
    g = 0.999 * Fit(0.0, rate).kept(f)
    assert math.log1p(f * math.expm1(rate / g)) > rate  # one grant of a whole cap


def test_measured_grants_narrow_the_bound_where_coins_decide_much():
    noise, tail, weight = Sum(NOISE**2, 1.0, (NOISE,)), 20.0, COIN / DEMAND_CODE_MAX
    coins = Coins(30 * NOISE**2, 0.0, COIN, NOISE**2, 100 * NOISE**2)
    own = noise.fits_with_grants(coins, tail, NOISE / weight, 0.5)
    least = min(fit.radius for _, fit in own)
    assert noise.radius(tail) < least < 1.1 * noise.radius(tail)
    assert radius_of(noise, coins, tail) > 3.0 * least
    exact = noise.fits_with_grants(coins, tail, 0.0, 0.5)
    assert min(fit.radius for _, fit in exact) == 0.0


def test_the_bound_on_the_ratio_of_the_normal_tail_to_its_density():
    """Sampford 1953, by way of the quantile: it is on the safe side, and close."""
    for tail, rate in [(5.0, 4.0), (20.0, 7.0), (25.0, 9.0), (25.0, 30.0)]:
        z = tail_bounds._mixed_quantile(rate, tail)
        fails = norm.sf(z) + math.exp(-rate * z + rate * rate / 2.0) * norm.sf(rate - z)
        assert 0.85 * math.exp(-tail) <= fails <= math.exp(-tail)
    assert tail_bounds._mixed_quantile(3.0, 25.0) == math.inf


def test_more_noise_in_what_is_released_never_makes_a_radius_smaller():
    noise = Sum(NOISE**2, 1.0, (NOISE,))
    for tail in (5.0, 20.0):
        radii = [
            radius_of(noise, Coins(500.0, scale, COIN, 500.0, 5000.0), tail)
            for scale in (0.0, 10.0, 100.0, 1000.0)
        ]
        assert radii == sorted(radii) and radii[0] > noise.radius(tail)


def test_truncated_noise_needs_more_room():
    noise = Sum(NOISE**2, 1.0, None, NOISE)
    coins = Coins(500.0, 100.0, COIN, 500.0, 5000.0)
    assert radius_of(noise, coins, 20.0, truncated=True) > radius_of(noise, coins, 20.0)


# --- parts of the budget and of beta ----------------------------------------------------------


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("divisible", [False, True])
def test_rounds_and_closing_releases_share_rho(divisible, batches, measured):
    market = Market(
        supply=[900.0] * 3, max_demand=1.0, max_value=1.0, agents=5, divisible=divisible
    )
    budget = Budget.split(1.0, 1e-8, truncated=False)
    coins = tail_bounds.coins_decide(market, batches=batches)
    assert coins == (not divisible and not batches)
    shares = tail_bounds.closing_shares(market, budget, coins=coins, measured=coins and measured)
    assert list(shares) == ["granted"] * (coins and measured) + ["chance"] * coins + [
        "welfare",
        "luck",
    ]
    assert all(share > 0.0 for share in shares.values())
    rounds = tail_bounds.rounds_rho(market, budget, batches=batches, measured=measured)
    assert rounds + budget.rho * sum(shares.values()) == pytest.approx(budget.rho)
    assert rounds > (0.3 if coins and measured else 0.6) * budget.rho


@pytest.mark.parametrize("m", [1, 3, 100])
def test_the_loads_of_all_resources_share_beta(m):
    market = Market(supply=[9.0] * m, max_demand=1.0, max_value=1.0, agents=5)
    budget = Budget.split(1.0, 1e-8, truncated=False)
    assert m * math.exp(-tail_bounds.tail(market, budget)) == pytest.approx(budget.beta)
    rng = np.random.default_rng(m)
    for _ in range(100):
        prices = [int(p) for p in 10.0 ** rng.uniform(-1, 18, m)]  # some are 0
        noise = Gaussian(tuple((10.0 ** rng.uniform(1, 9, m)).tolist()))
        for beta in (None, 0.05, 1e-9):
            tails = tail_bounds.tails(market, budget, prices, noise, beta)
            used, whole = math.fsum(math.exp(-t) for t in tails), beta or budget.beta
            assert used == pytest.approx(whole, rel=1e-11)
            least = tail_bounds.EVEN_PART * whole / m
            assert min(math.exp(-t) for t in tails) >= least * (1.0 - 1e-11)


@pytest.mark.parametrize(
    ("prices", "noise"),
    [
        (None, None),
        ((0, 0, 0), Gaussian((5.0,))),
        ((1, 2, 3), NoNoise()),
        ((4, 4, 4), Gaussian((5.0,))),
    ],
)
def test_parts_of_beta_are_equal_where_nothing_tells_resources_apart(prices, noise):
    market = Market(supply=[9.0] * 3, max_demand=1.0, max_value=1.0, agents=5)
    budget = Budget.split(1.0, 1e-8, truncated=False)
    even = tail_bounds.tail(market, budget)
    assert tail_bounds.tails(market, budget, prices, noise) == pytest.approx((even,) * 3, abs=1e-11)


def test_parts_of_beta_by_worth_are_close_to_the_best_and_never_worse_than_even():
    """What is kept free loses sum g z, to first order; the best parts are found by a search."""
    rng, beta, m = np.random.default_rng(3), 4e-9, 4
    market = Market(supply=[9.0] * m, max_demand=1.0, max_value=1.0, agents=5)
    budget = Budget.split(1.0, 1e-8, truncated=False)
    gains = []
    for _ in range(20):
        worth = [int(10**6 * 10.0 ** rng.uniform(-3, 3)) + 1 for _ in range(m)]
        tails = tail_bounds.tails(market, budget, worth, Gaussian((1.0,)), beta)

        def lost(parts, worth=worth):
            return float(np.dot(worth, norm.isf(np.asarray(parts))))

        def of(logs):
            return lost(beta * np.exp(logs) / np.exp(logs).sum())

        ours, even = lost([math.exp(-t) for t in tails]), lost([beta / m] * m)
        best = minimize(of, np.log(worth), method="Nelder-Mead").fun
        assert best <= ours <= 1.005 * best and ours <= even * (1.0 + 1e-9)
        gains.append(1.0 - ours / even)
    assert max(gains) > 0.03
    # Negative control: parts that fall with worth lose more than equal ones.
    turned = np.array(worth, float) ** -1.0
    assert lost(beta * turned / turned.sum()) > 1.01 * even


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("options", [1, 3])
def test_the_noise_of_the_chance_release_costs_its_share(epsilon, options):
    market = Market(supply=[900.0] * 3, max_demand=1.0, max_value=1.0, agents=5, options=options)
    budget = Budget.split(epsilon, 1e-8, truncated=False)
    share = tail_bounds.chance_share(market, budget)
    assert 0.0 < share <= tail_bounds.CHANCE_MOST
    change = queries.change(market, "chance")
    noise = gaussian(change, budget.rho * share, tail_bounds.chance_shape(market))
    cost = float(noise.cost(change, 4).rho)
    assert (1 - 1e-8) * budget.rho * share < cost <= budget.rho * share
    scales = deviation(noise)
    assert scales[-1] == pytest.approx(tail_bounds.CHANCE_OF_VALUE * scales[0])
    assert tail_bounds.chance_scale(market, budget) == pytest.approx(CHANCE_UNIT * scales[0])
    without = Budget.split(math.inf, 1e-8, truncated=False)
    assert tail_bounds.chance_scale(market, without) == 0.0


def test_the_part_for_grants_follows_how_much_coins_weigh_against_noise():
    """It keeps the least supply free, by an arithmetic of its own."""

    def part(supply, epsilon, k=1):
        market = Market(
            supply=[supply] * k, max_demand=1.0, max_value=1.0, agents=10 * int(supply)
        )  # fmt: skip
        return tail_bounds.granted_part(market, Budget.split(epsilon, 1e-8, truncated=False))

    parts = [part(5_000.0, epsilon) for epsilon in (0.1, 0.3, 1.0, 4.0, 20.0)]
    assert parts == sorted(parts) and parts[0] < 0.2 and parts[-1] > 0.75
    assert part(1_000.0, 4.0) < part(100_000.0, 4.0)
    assert part(5_000.0, 1.0, k=20) < part(5_000.0, 1.0) - 0.2
    assert part(5_000.0, math.inf) == 0.9

    # Noise and coins in caps, and what both ways of knowing a load leave, if chance costs nothing.
    noise, coins = 10.0, math.sqrt(4.0 * 10.0 + 0.002 * 5_000.0)

    def free(w):
        rounds, granted = noise / math.sqrt(0.87 - 0.88 * w), noise / math.sqrt(0.88 * w)
        radius = math.hypot((1.0 - w) * math.hypot(rounds, coins), w * granted)
        return 6.5 * radius + w * math.hypot(rounds, granted, coins)

    least = min(free(i / 20.0) for i in range(1, 19))
    epsilon = next(e for e in np.arange(0.1, 3.0, 0.01) if _noise_in_caps(e) < noise)
    assert free(part(5_000.0, float(epsilon))) < 1.02 * least < 1.02 * free(0.05) < 1.2 * free(0.8)


def _noise_in_caps(epsilon):
    rho = Budget.split(float(epsilon), 1e-8, truncated=False).rho
    return 1.0 / math.sqrt(2.0 * rho)
