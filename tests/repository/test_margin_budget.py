"""The margin of one resource: what its parts are, and that they are all of it."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import margin_budget
from jdpack import Budget, Newton
from jdpack.planning.headroom import margin_of
from jdpack.privacy import gdp


@pytest.mark.parametrize(("epsilon", "delta"), margin_budget.BUDGETS)
def test_each_part_adds_to_the_margin_and_the_last_is_what_plan_says(epsilon, delta):
    market = margin_budget.a_market(5000.0)
    rows = [caps for _, caps in margin_budget.parts(market, epsilon, delta)]
    assert rows == sorted(rows)
    budget = Budget.split(epsilon, delta, truncated=False)
    assert rows[-1] == pytest.approx(5000.0 * margin_of(market, budget, Newton()), rel=1e-12)
    assert rows[-1] / rows[0] < margin_budget.BEFORE[epsilon, delta] - 0.05
    # The aim is 1.10. At epsilon 4 no single release that never exceeds the supply reaches it.
    assert rows[-1] / rows[0] < 1.10 or rows[1] / rows[0] > 1.10
    assert rows[-1] / rows[1] < 1.06


ANSWERS = np.linspace(-9.0, 9.0, 250_001)  # in deviations of the noise
DENSITY = norm.pdf(ANSWERS) * (ANSWERS[1] - ANSWERS[0])


def worst_deltas(epsilon, s, radii):
    """The delta of one release with each radius of repair, by a sum over a fine grid of answers."""
    moved = DENSITY * np.exp(ANSWERS / s - 0.5 / s**2)  # of a neighbour: the same, 1 further
    found = []
    for one, other in [(DENSITY, moved), (moved, DENSITY)]:
        apart = np.maximum(one - math.exp(epsilon) * other, 0.0)
        ends = [int(np.searchsorted(ANSWERS, (1.0 - r) / s)) for r in radii]  # repaired before it
        found.append([one[:end].sum() + apart[end:].sum() for end in ends])
    return np.max(found, axis=0)


@pytest.mark.parametrize(("epsilon", "delta"), [*margin_budget.BUDGETS, (0.1, 1e-6), (8.0, 1e-6)])
def test_no_release_that_never_exceeds_needs_less(epsilon, delta):
    least = margin_budget.never_exceeded(epsilon, delta)
    assert least > margin_budget.least(epsilon, delta)
    middle, radii = margin_budget.deviation(epsilon, delta), (1.001 * least, 0.99 * least)
    tried = [middle * (0.7 + 0.005 * i) for i in range(120)]
    enough, less = np.min([worst_deltas(epsilon, s, radii) for s in tried], axis=0)
    assert enough <= delta * (1.0 + 1e-3)
    # Negative control: a little less is not private at any deviation of the noise.
    assert less > delta


@pytest.mark.parametrize(("epsilon", "delta"), margin_budget.BUDGETS)
def test_the_least_is_that_of_the_best_split(epsilon, delta):
    least = margin_budget.least(epsilon, delta)
    for percent in range(1, 100):
        assert margin_budget.one_release(epsilon, delta, percent / 100) >= least * (1 - 1e-9)
    # What the package allows itself for the same delta is never less than the analytic noise.
    scale = (2.0 * gdp.rho_of(epsilon, delta)) ** -0.5
    assert 1.0 <= scale / margin_budget.deviation(epsilon, delta) < 1.001
