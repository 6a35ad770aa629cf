"""Newton: few rounds, little loss with and without noise, and more than mwu-adaptive gives."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "experiments"))

import families
from jdpack import Market, MwuAdaptive, Newton, solve
from jdpack.planning.headroom import floor as margin_of

DELTA = 1e-8


def instance(family: str, n: int):
    return families.FAMILIES[family](n, np.random.default_rng(11))


def losses(agents, *, divisible, epsilon, seeds, policy=None):
    market, best = agents.market(divisible=divisible), agents.optimum().value
    runs = [
        solve(
            market, **agents.solve_input(), epsilon=epsilon, delta=DELTA, policy=policy, seed=seed
        )
        for seed in range(seeds)
    ]
    for run in runs:
        assert max(run.loads) <= 1.0
        assert len(run.billboard.releases) <= 100 or policy is not None
    return float(np.mean([1.0 - run.welfare / best for run in runs])), runs


@pytest.mark.parametrize(
    ("family", "most"),
    [
        ("dense", 0.002),
        ("sparse", 0.002),
        ("single", 0.002),
        ("mixed", 0.002),
        ("zipf", 0.002),
        ("heavy", 0.002),
        ("assignment", 0.002),
        ("large", 0.002),
        ("tied", 0.01),
        ("identical", 0.01),
    ],
)
def test_without_privacy_it_solves_the_linear_program(family, most):
    loss, (run,) = losses(instance(family, 5000), divisible=True, epsilon=math.inf, seeds=1)
    assert -1e-9 <= loss <= most
    assert not run.billboard.header.private


@pytest.mark.parametrize(
    ("family", "epsilon"),
    [("dense", 1.0), ("correlated", 3.0), ("mixed", 0.3), ("sparse", 3.0), ("assignment", 3.0)],
)
@pytest.mark.parametrize(("divisible", "times"), [(True, 1.2), (False, 2.0)])
def test_privacy_costs_little_more_than_its_margin(family, epsilon, divisible, times):
    agents = instance(family, 10_000)
    loss, runs = losses(agents, divisible=divisible, epsilon=epsilon, seeds=4)
    margin = margin_of(runs[0].billboard.header.market, runs[0].billboard.header.budget)
    assert 0.01 < margin < 0.2
    assert 0.0 < loss <= times * margin + 0.005


@pytest.mark.parametrize("family", ["dense", "single", "tied", "zipf"])
@pytest.mark.parametrize("divisible", [True, False])
def test_it_gives_more_than_mwu_adaptive(family, divisible):
    agents = instance(family, 10_000)
    ours, _ = losses(agents, divisible=divisible, epsilon=3.0, seeds=2)
    theirs, _ = losses(
        agents, divisible=divisible, epsilon=3.0, seeds=1, policy=MwuAdaptive(alpha=0.1)
    )
    assert ours < theirs - 0.01


def test_the_comparison_can_fail(monkeypatch):
    """Negative control of the tests above: a run that aims for half of the load."""
    agents = instance("dense", 10_000)

    market, best, aims = agents.market(divisible=True), agents.optimum().value, Newton._targets
    monkeypatch.setattr(Newton, "_targets", lambda *given: (0.5 * aims(*given)[0], 0.0))
    run = solve(market, **agents.solve_input(), epsilon=1.0, delta=DELTA, seed=0)
    margin = margin_of(market, run.billboard.header.budget)
    assert 1.0 - run.welfare / best > 1.2 * margin + 0.005


def test_all_of_the_budget_is_spent_and_no_more():
    agents = instance("dense", 2000)
    for divisible, unspent in [(True, 1e-6), (False, 0.005)]:
        run = solve(
            agents.market(divisible=divisible), **agents.solve_input(), epsilon=3.0, delta=DELTA
        )
        spent = float(run.spent.rho) / run.billboard.header.budget.rho
        assert 1.0 - unspent <= spent <= 1.0


def test_the_schedule_is_what_the_outlook_says():
    agents = instance("dense", 2000)
    run = solve(agents.market(divisible=True), **agents.solve_input(), epsilon=1.0, delta=DELTA)
    header, rounds = run.billboard.header, list(run.billboard.rounds)
    outlook = Newton().outlook(header.market, header.budget)
    assert tuple(step.noise.scale for step in rounds) == outlook.scales
    assert sum(step.weight for step in rounds) == outlook.weight == run.billboard.weight
    variance = sum((step.weight * step.noise.scale) ** 2 for step in rounds)
    assert variance == pytest.approx(outlook.variance, rel=1e-12)
    asked = [r.step.query for r in run.billboard.releases]
    assert asked.count("demand") == outlook.rounds_at_most == 88
    assert (asked.count("gauge"), asked.count("curvature"), asked.count("value")) == (2, 1, 1)


def test_a_warm_start_is_in_the_header_and_takes_fewer_rounds():
    agents = instance("dense", 5000)
    market = agents.market(divisible=True)
    first = solve(market, **agents.solve_input(), epsilon=3.0, delta=DELTA)
    warm = Newton.warm(first.billboard, market)
    again = solve(market, **agents.solve_input(), epsilon=3.0, delta=DELTA, policy=warm)
    assert Newton(**{"start_prices": again.billboard.header.policy["start_prices"]}) == warm
    asked = [r.step.query for r in again.billboard.releases]
    assert asked.count("demand") == 79
    assert again.welfare > 0.95 * first.welfare
    # the first posted prices are the earlier run's average, in value per unit
    step = again.billboard.releases[0].step
    for j, price in enumerate(warm.start_prices):
        assert market.unit_price(j, step.prices[j]) == pytest.approx(price, rel=1e-6)


@pytest.mark.parametrize("prices", [(1,), (-0.5,), (math.inf,), (math.nan,), ("1",)])
def test_starting_prices_that_are_none_are_refused(prices):
    with pytest.raises(Exception, match="a starting price must be a number of at least 0"):
        Newton(prices)


def test_starting_prices_must_match_the_resources():
    market = Market(supply=[50.0, 60.0], max_demand=1.0, max_value=1.0, agents=100)
    with pytest.raises(Exception, match="1 starting prices for 2 resources"):
        solve(
            market, values=np.ones(100), demands=np.ones((100, 2)),
            epsilon=1.0, delta=1e-6, policy=Newton((0.5,)),
        )  # fmt: skip


def test_identical_agents_are_given_more_and_scaled():
    """If scaling costs nothing, a larger load is certified."""
    agents = instance("identical", 20_000)
    _, (run,) = losses(agents, divisible=True, epsilon=3.0, seeds=1)
    market, budget = run.billboard.header.market, run.billboard.header.budget
    target, radius = Newton()._targets(market, budget)
    observed = 1.0 / (max(run.certificate.factors) / 2**24) - radius
    assert observed > 1.02 * target.max()
