"""Bounds from private counts: the noise is what is charged, and the stated shares hold.

Every test has a control with less noise, or without a radius, that must be caught. By chance, each
of them fails less than once in 10^6 runs of all tests, except where it is seeded.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

import jdpack
from jdpack import Market
from jdpack.audit.epsilon_bounds import distinguish
from jdpack.door import SystemRandomness, release_levels
from jdpack.market.levels import widths
from jdpack.planning.bounds import Bounds
from jdpack.privacy import queries
from jdpack.privacy.accounting import Budget, Filter
from jdpack.privacy.noise import Gaussian, gaussian
from jdpack.records.levels import Levels

MARKET = Market(supply=[50.0, 9.0], max_demand=[5.0, 9.0], max_value=100.0, agents=100)
BUDGET = Budget.split(1.0, 1e-6, truncated=False, repaired=False)
UNIT = queries.LEVEL_UNIT


def counts_of(levels: list[int]) -> Levels:
    """Everybody at the lowest level, except one agent whose levels are given."""
    found: list[int] = []
    for width, level in zip(widths(MARKET), levels, strict=True):
        one = [0] * width
        one[-1] = 99
        one[level] += 1
        found += one
    return Levels(100, tuple(found))


def draws(levels: Levels, noise: Gaussian, budget: Budget = BUDGET) -> np.ndarray:
    answer = release_levels(MARKET, levels, noise, Filter(budget), SystemRandomness())
    return np.array(answer) / UNIT


@pytest.mark.parametrize("factor", [1.0, 0.8])
def test_the_noise_has_the_scale_that_is_charged(factor):
    """The mean of 20,000 squares is off by 1% (one deviation); a fifth less noise by 36%."""
    noise = gaussian(queries.levels_change(MARKET), BUDGET.rho)
    levels, drawn = counts_of([0, 0, 0]), []
    used = Gaussian(tuple(factor * s for s in noise.scales))
    roomy = replace(BUDGET, rho=2.0 * BUDGET.rho)
    while len(drawn) < 20_000:
        drawn += (draws(levels, used, roomy) - levels.counts).tolist()
    ratio = np.mean(np.square(drawn)) / (noise.scales[0] / UNIT) ** 2
    assert (abs(ratio - 1.0) < 0.06) == (factor == 1.0)


@pytest.mark.parametrize("honest", [True, False], ids=["honest", "a tenth of the noise"])
def test_an_attacker_does_not_find_more_than_epsilon(honest):
    """The best attack on the two worst neighbours: all three levels differ."""
    change = queries.levels_change(MARKET)
    noise = gaussian(change, BUDGET.rho)
    used = noise if honest else Gaussian(tuple(s / 10.0 for s in noise.scales))
    roomy = replace(BUDGET, rho=101.0 * BUDGET.rho)
    worlds = [counts_of([0, 0, 0]), counts_of([3, 3, 3])]
    gap = np.array(worlds[1].counts) - np.array(worlds[0].counts)
    assert math.isclose((gap**2).sum() * UNIT**2, change.squares, rel_tol=1e-9)
    first, second = (lambda world=world: draws(world, used, roomy) for world in worlds)
    found = distinguish(first, second, lambda seen: float(seen @ gap), 800, 1e-6, 1.0 - 1e-6)
    assert (found.epsilon <= BUDGET.epsilon) == honest, found


@pytest.mark.parametrize("honest", [True, False], ids=["honest", "no radius"])
def test_the_shares_hold_as_often_as_stated(honest, monkeypatch):
    """Seeded. All bounds of one release hold together in at least 95% of releases."""
    if not honest:
        monkeypatch.setattr(Bounds, "_radius", lambda self, terms: 0.0)
    rng, n = np.random.default_rng(5), 3000
    market = MARKET.changed(agents=n)
    demands = np.minimum(rng.lognormal(0.0, 1.0, (n, 2)), [5.0, 9.0]) * (rng.random((n, 2)) < 0.8)
    values = rng.uniform(0.0, 100.0, n)
    columns, failed, smaller = [*demands.T, values], 0, 0
    for seed in range(200):
        found = jdpack.bounds(
            market, values=values, demands=demands, epsilon=1.0, delta=1e-6, share=0.2, seed=seed
        )
        right = [
            (column > one.bound).sum() <= one.at_most * (column > 0).sum()
            for one, column in zip(found.suggestions, columns, strict=True)
        ]
        failed += not all(right)
        smaller += sum(one.changed for one in found.suggestions)
    assert (failed <= 10) == honest, failed
    assert smaller > 300  # the statements are not empty


def test_suggestions_are_close_to_what_the_records_would_give():
    """Seeded: with many agents the bound is the round number just above the true quantile."""
    rng, n = np.random.default_rng(6), 200_000
    market = Market(supply=[1e5], max_demand=1000.0, max_value=1e6, agents=n)
    amounts, values = rng.uniform(0.0, 25.0, n), rng.uniform(0.0, 60.0, n)
    found = jdpack.bounds(
        market, values=values, demands=amounts, epsilon=0.5, delta=1e-8, share=0.05, seed=3
    )
    assert [one.bound for one in found.suggestions] == [30.0, 70.0]
    assert found.market.resources[0].max_demand == 30.0 and found.market.provenance == ()
    assert math.isclose(found.suggestions[0].clamped, 0.0, abs_tol=0.01)
