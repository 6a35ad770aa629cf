"""How far noise and coins carry a sum: bounds against exact tails, never too small, never far off.

Exact tails are sums of exact probabilities, in doubles (all terms positive: good to about 1e-13).
"""

import math
from functools import cache

import numpy as np
import pytest
from scipy.stats import binom, norm

from jdpack import BillboardError, Budget, Market
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.noise import Gaussian, NoNoise, TruncatedLaplace
from jdpack.privacy.tail_bounds import (
    Outlook,
    kept_at_most,
    noise_radius,
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


def an_outlook(scales: list[float], weights: list[int], *, fixed: bool = True) -> Outlook:
    spreads = [w * s for w, s in zip(weights, scales, strict=True)]
    return Outlook(
        rounds_at_most=len(scales),
        variance=math.fsum(s * s for s in spreads),
        peak=max(spreads),
        weight=sum(weights),
        scales=tuple(scales) if fixed else None,
    )


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
            radius = noise_radius(an_outlook(scales, weights, fixed=fixed), tail)
            assert not fails(radius, tails, tail)
        assert radius == pytest.approx(math.sqrt(2 * tail * an_outlook(scales, weights).variance))


def test_where_scales_are_fixed_and_large_the_radius_is_hardly_above_the_exact_one():
    for name, slack in [("one of 300", 1.05), ("one of 3000", 1.01), ("falling weights", 1.1)]:
        scales, weights = SUMS[name]
        tails = tails_of(name)
        for p in (1e-6, 1e-9, 1e-12):
            tail = math.log(1.0 / p)
            outlook = an_outlook(scales, weights)
            exact = int(np.argmax(tails <= p))  # the smallest sum that is as unlikely
            radius = noise_radius(outlook, tail)
            assert exact - 1 <= radius <= slack * exact
            if name == "one of 3000":
                assert radius < 0.96 * math.sqrt(2.0 * tail * outlook.variance)


def test_negative_control_the_plain_normal_quantile_is_too_small_for_small_scales():
    """Without the terms for whole numbers the radius is too small, and the exact tails show it."""
    failed = set()
    for name, (scales, weights) in SUMS.items():
        tails = tails_of(name)
        for p in PROBABILITIES:
            z = norm.isf(p)
            plain = z * math.sqrt(an_outlook(scales, weights).variance)
            if fails(plain, tails, math.log(1.0 / p)):
                failed.add(name)
    assert {"one of 3", "many small"} <= failed


def test_negative_control_a_radius_a_little_smaller_fails():
    for name in ("one of 300", "one of 3000", "falling weights", "alike"):
        scales, weights = SUMS[name]
        tails = tails_of(name)
        tail = math.log(1e6)
        assert fails(0.9 * noise_radius(an_outlook(scales, weights), tail), tails, tail)


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
    outlook = an_outlook([s for s, _ in kinds], weights, fixed=False)
    for p in PROBABILITIES:
        tail = math.log(1.0 / p)
        assert not fails(noise_radius(outlook, tail, truncated=True), tails, tail)


def test_negative_control_the_gaussian_radius_is_too_small_for_laplace_noise():
    kinds, weights = LAPLACES["one"]
    tails = exact_tails([laplace_masses(s, b) for s, b in kinds], weights)
    outlook, tail = an_outlook([5.0], weights, fixed=False), math.log(1e4)
    assert fails(noise_radius(outlook, tail), tails, tail)


def test_no_noise_needs_no_room():
    silent = Outlook(rounds_at_most=5, variance=0.0, peak=0.0, weight=7)
    for truncated in (False, True):
        assert noise_radius(silent, 20.0, truncated=truncated) == 0.0
    assert release_radius(NoNoise(), 20.0) == 0.0


# --- one release ------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.3, 0.7, 1.0, 2.5, 10.0, 77.0, 1000.0])
@pytest.mark.parametrize("p", PROBABILITIES)
def test_one_release_stays_within_its_radius(scale, p):
    tail = math.log(1.0 / p)
    radius = release_radius(Gaussian(scale), tail)
    assert not fails(radius, exact_tails([gaussian_masses(scale)], [1]), tail)
    assert radius <= math.sqrt(2.0 * tail) * scale * SAFE
    if scale == 1000.0 and p < 1e-3:
        assert radius <= 1.02 * norm.isf(p) * scale


def test_a_release_with_other_noise_has_no_radius():
    """Closing releases have Gaussian noise or none; a radius of 0 for any other would be false."""
    with pytest.raises(BillboardError, match="Gaussian noise, not TruncatedLaplace"):
        release_radius(TruncatedLaplace(5.0, 60), 20.0)


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


@pytest.mark.parametrize(
    "too_small",
    [
        lambda load, q, f, tail: f * load + math.sqrt(2 * q * f * (1 - f) * load * tail),
        lambda load, q, f, tail: f * load + q * tail / 3,
        lambda load, q, f, tail: f * load + math.sqrt(q * f * (1 - f) * load * tail) + q * tail / 3,
    ],
    ids=["without the last term", "without the root", "half the variance"],
)
def test_negative_control_less_room_for_coins_is_too_little(too_small):
    failed = 0
    for grants, f in [(40, 0.01), (1000, 0.01), (1000, 0.5), (10**6, 0.5)]:
        for p in PROBABILITIES:
            bound = too_small(grants * 0.01, 0.01, f, math.log(1.0 / p))
            failed += binom.sf(math.floor(bound / 0.01), grants, f) > SAFE * p
    assert failed >= 4


# --- parts of the budget and of beta ----------------------------------------------------------


@pytest.mark.parametrize("divisible", [False, True])
def test_rounds_and_closing_releases_share_rho(divisible):
    market = Market(supply=[9.0] * 3, max_demand=1.0, max_value=1.0, agents=5, divisible=divisible)
    budget = Budget.split(1.0, 1e-8, truncated=False)
    shares = tail_bounds.closing_shares(market)
    assert set(shares) == ({"welfare"} if divisible else {"granted", "welfare", "luck"})
    assert all(share > 0.0 for share in shares.values())
    rounds = tail_bounds.rounds_rho(market, budget)
    assert rounds + budget.rho * sum(shares.values()) == pytest.approx(budget.rho)
    assert rounds > 0.3 * budget.rho


@pytest.mark.parametrize("m", [1, 3, 100])
@pytest.mark.parametrize("divisible", [False, True])
def test_noise_and_coins_of_all_resources_share_beta(m, divisible):
    market = Market(supply=[9.0] * m, max_demand=1.0, max_value=1.0, agents=5, divisible=divisible)
    budget = Budget.split(1.0, 1e-8, truncated=False)
    noise = m * math.exp(-tail_bounds.tail(market, budget))
    coins = 0.0 if divisible else m * math.exp(-tail_bounds.coin_tail(market, budget))
    assert noise + coins == pytest.approx(budget.beta)
    assert noise > 0.85 * budget.beta


def test_the_noise_of_the_granted_load_costs_its_share():
    market = Market(supply=[9.0] * 3, max_demand=1.0, max_value=1.0, agents=5)
    budget = Budget.split(1.0, 1e-8, truncated=False)
    cost = tail_bounds.granted_noise(market, budget).cost(queries.shifts(market, "granted"))
    share = budget.rho * tail_bounds.INDIVISIBLE["granted"]
    assert (1 - 1e-8) * share < float(cost.rho) <= share
    without = Budget.split(math.inf, 1e-8, truncated=False)
    assert tail_bounds.granted_noise(market, without) == NoNoise()
