"""The shape of newton's noise: the best one, on a grid, and what is guessed before a run."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from jdpack import Budget, Market
from jdpack.market.grid import DEMAND_CODE_MAX
from jdpack.policies.base import budget_of
from jdpack.policies.newton import Newton
from jdpack.policies.newton_targets import (
    LEAST,
    best_shape,
    best_targets,
    kept_free,
    likely_shares,
    on_grid,
    steering_shape,
    water_fill,
)
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.tail_bounds import Sum

GRID = 2.0**0.25


def a_market(supply, **more):
    given = {"max_demand": 1.0, "max_value": 1.0, "agents": 10_000, "divisible": True}
    return Market(supply=supply, **{**given, **more})


# --- the best shape -----------------------------------------------------------------------


def cost(levels, touched):
    """The sum of the `touched` largest, the last of them in part."""
    ranked = np.sort(levels)[::-1]
    whole = int(touched)
    part = (touched - whole) * ranked[whole] if whole < len(ranked) else 0.0
    return float(ranked[:whole].sum() + part)


def lost(gains, levels, touched):
    """The first-order loss at a cost of 1."""
    return float((gains / np.sqrt(levels)).sum() * math.sqrt(cost(levels, touched)))


def searched(gains, touched):
    """The least loss that a general optimiser finds.

    With slacks: the sum of the k largest a_j is at most 1 if and only if there are t and e_j >= 0
    with k t + sum_j e_j <= 1 and a_j <= t + e_j. All of it is convex, so any minimum is the one.
    """
    m = len(gains)

    def spent(x):
        return 1.0 - touched * x[m] - x[m + 1 :].sum()

    found = minimize(
        lambda x: float((gains / np.sqrt(x[:m])).sum()),
        np.concatenate([np.full(m, 0.5 / m), [0.9 / m], np.full(m, 0.01 / m)]),
        bounds=[(1e-6, 1.0)] * m + [(0.0, 1.0)] * (m + 1),
        constraints=[
            {"type": "ineq", "fun": spent},
            {"type": "ineq", "fun": lambda x: x[m] + x[m + 1 :] - x[:m]},
        ],
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    levels = np.maximum(found.x[:m], 1e-6)
    return lost(gains, levels, touched)


@pytest.mark.parametrize("seed", range(20))
def test_water_filling_is_what_a_general_optimiser_finds(seed):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, 7))
    touched = float(rng.integers(1, m + 1))
    gains = np.exp(rng.uniform(0.0, 4.0 if seed % 2 else 1.0, m))
    ours = lost(gains, water_fill(gains, touched), touched)
    assert ours == pytest.approx(searched(gains, touched), rel=1e-4)
    for _ in range(50):  # and nothing nearby is better
        other = water_fill(gains, touched) * np.exp(rng.normal(0.0, 0.2, m))
        assert ours <= lost(gains, other, touched) * (1.0 + 1e-12)


def test_the_search_would_notice_a_worse_shape():
    """Negative control: an even shape, and the shape for all resources where two are touched."""
    gains, rng = np.array([40.0, 5.0, 1.0, 1.0, 0.5]), np.random.default_rng(1)
    best = searched(gains, 2.0)
    assert lost(gains, np.ones(5), 2.0) > 1.05 * best
    assert lost(gains, gains ** (2.0 / 3.0), 2.0) > 1.05 * best
    assert lost(gains, rng.uniform(0.1, 1.0, 5), 2.0) > 1.05 * best


def test_if_options_touch_all_the_shape_follows_the_closed_form():
    gains = np.array([8.0, 1.0, 27.0])
    assert water_fill(gains, 3.0) == pytest.approx([4.0, 1.0, 9.0])  # gains^(2/3)


def test_if_one_resource_is_touched_none_is_better_off():
    assert len(set(water_fill(np.array([9.0, 1.0, 3.0]), 1.0).tolist())) == 1


def test_resources_that_gain_nothing_do_not_break_it():
    levels = water_fill(np.array([1.0, 0.0, 0.0]), 3.0)
    assert np.all(levels > 0.0) and levels[0] > 1e6 * levels[1]


def test_totals_may_touch_less_than_a_whole_resource():
    gains = np.array([5.0, 3.0, 2.0, 1.0])
    levels = water_fill(gains, 1.6)
    ours = lost(gains, levels, 1.6)
    assert ours <= searched(gains, 1.6) * (1.0 + 1e-4)


# --- the grid -----------------------------------------------------------------------------


def test_scales_are_rounded_to_quarter_octaves_of_the_smallest():
    scales = np.exp(np.random.default_rng(2).uniform(0.0, 9.0, 200))
    rounded = on_grid(scales)
    steps = np.log(rounded) / math.log(GRID)
    assert steps == pytest.approx(np.round(steps), abs=1e-9)
    assert rounded.min() == 1.0
    off = np.abs(np.log(rounded / (scales / scales.min())))
    assert off.max() <= math.log(GRID) / 2.0 + 1e-9
    assert on_grid(7.0 * scales).tolist() == rounded.tolist()


def test_no_scale_is_more_than_sixteen_octaves_from_the_smallest():
    assert on_grid(np.array([1.0, 2.0**15, 2.0**16, 1e12])) == pytest.approx(
        [1.0, 2.0**15, 2.0**16, 2.0**16]
    )


@pytest.mark.parametrize("touched", [2.0, 6.0])
def test_the_grid_costs_less_than_half_a_percent_on_average(touched):
    rng, worse = np.random.default_rng(3), []
    for _ in range(100):
        gains = np.exp(rng.uniform(0.0, 5.0, 6))
        levels = water_fill(gains, touched)
        there = 1.0 / on_grid(1.0 / np.sqrt(levels)) ** 2
        worse.append(lost(gains, there, touched) / lost(gains, levels, touched))
    assert 1.0 <= np.mean(worse) < 1.005
    assert max(worse) < 1.02


# --- the shape of a market ----------------------------------------------------------------


def shape_of(market, prices, loads=None, **more):
    """The shape with nothing to rise and nothing in doubt."""
    m = len(market.resources)
    loads = np.ones(m) if loads is None else np.array(loads)
    given = {"doubt": np.full(m, 0.01), "reach": 1e6, "dearer": np.zeros_like, **more}
    return best_shape(market, np.array(prices, dtype=float), loads, **given)


@pytest.mark.parametrize("bundle", [1, 2, 5])
def test_even_markets_have_an_even_shape(bundle):
    market = a_market([1000.0] * 5, bundle_size=bundle)
    assert set(shape_of(market, [3.0] * 5)) == {1.0}
    assert shape_of(a_market([1000.0]), [3.0]) == (1.0,)


def test_a_scarce_resource_gets_less_noise_if_its_price_is_as_high():
    """Equal prices of whole supplies: s_j ~ S_j^(1/3), so a factor of 4 for supplies 64 apart."""
    market = a_market([1000.0, 64_000.0])
    scarce, plenty = shape_of(market, [1.0, 1.0])
    assert scarce == 1.0
    assert 0.99 * 4.0 / GRID <= plenty <= 4.0 * GRID


def test_a_resource_that_is_free_gets_more_noise_than_one_that_is_dear():
    market = a_market([1000.0] * 4)
    shape = shape_of(market, [1.0, 1.0, 1e-6, 1e-6], [1.0, 1.0, 0.1, 0.1])
    assert shape[0] == shape[1] == 1.0 and min(shape[2:]) > 1.5


@pytest.mark.parametrize(("bundle", "spent"), [(3, False), (52, True)])
def test_a_supply_that_noise_drowns_gets_budget_only_if_options_need_it(bundle, spent):
    """Nobody asks for it, but its price never fell, because noise hid that."""
    market = a_market([1000.0] * 51 + [1.0], bundle_size=bundle)
    reach = 100.0 * market.person_cap_codes[0]
    loads, doubt = [1.0] * 51 + [0.0], np.array([0.01] * 51 + [10.0])
    shape = shape_of(market, [1.0] * 51 + [0.03], loads, reach=reach, doubt=doubt)
    assert (shape[-1] < shape[0]) == spent


def test_a_free_resource_near_its_supply_is_not_given_up():
    """Its price may have been misjudged, and noise would eat up its slack."""
    market = a_market([1000.0] * 4)
    near = shape_of(market, [1.0, 1.0, 1.0, 1e-6], [1.0, 1.0, 1.0, 0.98])
    far = shape_of(market, [1.0, 1.0, 1.0, 1e-6], [1.0, 1.0, 1.0, 0.1])
    assert near[3] < far[3]


def test_where_one_resource_is_touched_noise_is_shared():
    """With add-remove and one resource per option the cost is that of the dearest alone."""
    market = a_market([500.0, 50_000.0, 5000.0], bundle_size=1, neighbours="add-remove")
    assert set(shape_of(market, [0.01, 5.0, 1.0])) == {1.0}


def test_whatever_the_shape_it_costs_the_same():
    market = a_market([100.0, 1000.0, 30_000.0], bundle_size=2)
    budget = budget_of(Newton(), market, 1.0, 1e-8)
    change = queries.change(market, "demand")
    for shape in [(1.0,), (1.0, 2.0, 4.0), (8.0, 1.0, 2.0)]:
        scales = Newton()._noises(market, budget, shape)[8].scales
        even = Newton()._noises(market, budget, (1.0,))[8].scales
        assert change.worst(scales) == pytest.approx(change.worst(even), rel=1e-9)
        assert np.array(scales) / min(scales) == pytest.approx(np.array(shape) / min(shape))


# --- guesses before a run -----------------------------------------------------------------


def test_likely_shares():
    """Either prices per cap or prices of whole supplies may be equal: take the mean of both."""
    one = likely_shares(a_market([100.0, 900.0], bundle_size=1))
    assert one == pytest.approx([0.1, 0.9], rel=1e-4)
    both = likely_shares(a_market([100.0, 900.0], bundle_size=2))
    assert both == pytest.approx([0.25, 0.75], rel=1e-4)
    caps = likely_shares(a_market([100.0, 900.0], bundle_size=1, max_demand=[1.0, 9.0]))
    assert caps == pytest.approx([0.5, 0.5], rel=1e-3)  # in caps, both supplies are 100


def test_the_steering_shape():
    assert steering_shape(a_market([100.0, 6400.0], bundle_size=1)) == (1.0,)
    assert steering_shape(a_market([100.0, 100.0])) == (1.0,)
    found = steering_shape(a_market([100.0, 6400.0, 51_200.0]))
    assert found == pytest.approx([1.0, 4.0, 8.0], rel=1e-9)  # cube roots, on the grid


# --- radii --------------------------------------------------------------------------------


@pytest.mark.parametrize("excess", [0.0, 1e-3])
def test_a_radius_leaves_room_for_a_neighbour_only_if_there_is_a_repair(excess):
    """Without noise nothing else is left: a cap of a supply of 100 caps is 1%."""
    market = a_market([100.0, 1000.0], excess_probability=excess)
    budget = budget_of(Newton(), market, 1.0, 1e-8)
    assert isinstance(budget, Budget) and budget.repaired == (excess == 0.0)
    tails = tail_bounds.tails(market, budget)
    found = kept_free(market, budget, [Sum(0.0), Sum(0.0)], tails, 1.0, None).radii
    cap = 0.0 if excess else DEMAND_CODE_MAX
    assert found == pytest.approx([cap / code for code in market.supply_codes])


# --- the loads to aim for -----------------------------------------------------------------


def aims(radius, rate, *, power=1.0):
    found = best_targets(np.array([radius]), np.array([power]), rate, np.array([1.0]))
    return float(found[0])


@pytest.mark.parametrize("power", [1.0, 2.0, 1e6])
def test_a_small_radius_is_kept_free(power):
    """Scaling everything down costs more than leaving out the cheapest."""
    assert aims(0.05, 0.6, power=power) == pytest.approx(0.95)


def test_identical_agents_are_scaled_down():
    """If everybody's value is the price, a load is worth as much as it is large."""
    assert aims(0.05, 1.0) > 0.99


def test_a_heavy_tail_is_not_thinned():
    """If the last half of the supply is worth little, it is better left empty than shared out."""
    assert aims(0.5, 0.1) == pytest.approx(0.5)
    assert aims(0.5, 0.1, power=1.5) == pytest.approx(0.5)


def test_thinning_costs_more_than_scaling():
    """Where divisible goods would be scaled down, indivisible ones may still be kept free."""
    assert aims(0.4, 0.9) > 0.9
    assert aims(0.4, 0.9, power=2.0) < 0.7


def test_a_supply_that_noise_drowns_is_scaled_down():
    """There is no load that fits, so about a full one is aimed for."""
    assert aims(1.5, 0.5) > 1.0
    assert aims(1.5, 0.5, power=2.0) > 0.7


def test_a_load_to_aim_for_is_never_below_the_least():
    """And it is a number for the largest radius that there is, too."""
    assert aims(0.95, 0.01) >= LEAST
    assert math.isfinite(aims(1e9, 0.5))


def test_thinning_keeps_about_the_power_that_is_expected():
    """The exact factor of a fit, for loads that are a little too large."""
    market = a_market([500.0], divisible=False)
    budget = budget_of(Newton(), market, 1.0, 1e-8)
    noise = Sum((20.0 * DEMAND_CODE_MAX) ** 2, 1.0, (20.0 * DEMAND_CODE_MAX,))
    coins = tail_bounds.coins_on(market, budget, noise, 1.0, 500.0 * DEMAND_CODE_MAX, 0.0)
    (fit, *_) = noise.fits(coins, 20.0)
    steep = 1.0 - math.exp(-fit.steep)
    for g in (0.99, 0.95, 0.9):
        assert fit.factor(g) == pytest.approx(g ** (fit.steep / steep), rel=0.02)
