"""The margin of one resource: what its parts are, and that they are all of it."""

import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("epsilon", "delta"), margin_budget.BUDGETS)
def test_the_least_is_that_of_the_best_split(epsilon, delta):
    least = margin_budget.least(epsilon, delta)
    for percent in range(1, 100):
        assert margin_budget.one_release(epsilon, delta, percent / 100) >= least * (1 - 1e-9)
    # What the package allows itself for the same delta is never less than the analytic noise.
    scale = (2.0 * gdp.rho_of(epsilon, delta)) ** -0.5
    assert 1.0 <= scale / margin_budget.deviation(epsilon, delta) < 1.001
