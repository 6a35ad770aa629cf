"""A total divided among several runs: as many fit in a ledger, and hardly more."""

import json
import math

import pytest

from helpers import run_cli
from jdpack import Budget, BudgetError, Market, MarketError, Neighbours, Newton, plan
from jdpack.ledger.balance import Balance
from jdpack.planning.headroom import margin_at
from jdpack.planning.several_runs import divided
from jdpack.policies.mwu_adaptive import MwuAdaptive

LAPLACE = MwuAdaptive(noise="truncated-laplace")


TOML = """
name = "town"
divisible = true

[value]
column = "points"
max = 1.0

[agents]
count = 100000
id = "who"

[[resource]]
name = "hours"
supply = 5000.0
max_demand = 1.0

[[resource]]
name = "seats"
supply = 20000.0
max_demand = 2.0
"""


def a_market(**changes) -> Market:
    given = {"supply": [5000.0, 20000.0], "max_demand": [1.0, 2.0], "max_value": 1.0}
    return Market(**{**given, "agents": 100_000, "divisible": True, **changes})


@pytest.mark.parametrize("policy", [Newton(), LAPLACE], ids=["gdp", "zcdp"])
@pytest.mark.parametrize(("epsilon", "delta"), [(4.0, 1e-5), (1.0, 1e-8), (0.1, 1e-6)])
@pytest.mark.parametrize("runs", [2, 52, 1000])
def test_as_many_runs_fit_as_planned_and_hardly_more(policy, epsilon, delta, runs):
    each = Budget.split(*divided(runs, epsilon, delta, policy), truncated=policy.truncated)
    total = Balance.of("all", epsilon, delta, Neighbours.REPLACE_ONE, each.accounting)
    assert runs <= total.how_many(each) <= 1.02 * runs
    assert each.epsilon > epsilon / runs  # far more than an equal part of epsilon


def test_one_run_has_the_whole_total():
    assert divided(1, 4.0, 1e-5, Newton()) == (4.0, 1e-5)
    one = plan(a_market(), epsilon=4.0, delta=1e-5, runs=1)
    assert one.budget == plan(a_market(), epsilon=4.0, delta=1e-5).budget
    assert one.several.margin == one.several.margin_alone == one.margin


def test_the_plan_is_for_one_of_the_runs():
    market = a_market()
    found = plan(market, epsilon=4.0, delta=1e-5, runs=52)
    several = found.several
    assert several.each == (found.budget.epsilon, found.budget.delta) == (0.589, 9.61e-08)
    assert several.margin == found.margin
    assert several.margin_alone == plan(market, epsilon=4.0, delta=1e-5).margin
    warm = Newton(start_prices=(0.5, 0.25))  # whatever the prices are
    assert several.margin_warm == margin_at(market, warm, *several.each) < found.margin
    assert plan(market, epsilon=1.0, delta=1e-8).several is None
    other = plan(market, epsilon=4.0, delta=1e-5, runs=3, policy=MwuAdaptive())
    assert other.several.margin_warm is None


def test_what_cannot_be_divided_is_refused():
    for wrong in (0, -1, 10**7, 2.5, True):
        with pytest.raises(MarketError, match="runs must be"):
            plan(a_market(), epsilon=1.0, delta=1e-8, runs=wrong)
    with pytest.raises(BudgetError, match="finite total epsilon"):
        plan(a_market(), epsilon=math.inf, delta=1e-8, runs=2)
    with pytest.raises(BudgetError, match="too little for 1,000,000 runs"):
        plan(a_market(), epsilon=1e-4, delta=1e-8, runs=10**6)


def test_the_command_says_what_each_run_gets(tmp_path, monkeypatch, capsys):
    path = tmp_path / "market.toml"
    path.write_text(TOML)
    asked = ["plan", path, "--epsilon", 4, "--delta", 1e-5, "--runs", 52]
    code, out, _ = run_cli(monkeypatch, capsys, *asked)
    assert code == 0
    assert out.startswith("52 runs on the same people, epsilon 4 and delta 1e-05 together\n")
    assert "each       epsilon 0.589, delta 9.61e-08" in out
    assert "after a warm start from the run before" in out
    code, out, _ = run_cli(monkeypatch, capsys, *asked, "--json", "-o", tmp_path / "plan")
    assert json.loads(out)["several_runs"]["each"] == [0.589, 9.61e-08]
    page = (tmp_path / "plan" / "report.html").read_text()
    assert "52 runs on the same people share epsilon 4" in page
