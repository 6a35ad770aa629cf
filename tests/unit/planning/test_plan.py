"""The plan: its numbers against a recomputation, against what policies do, and against runs."""

import json
import linecache
import math
import warnings
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import jdpack
from helpers import forbid_drawing, run_cli
from jdpack import (
    DualGd,
    JdpackError,
    Market,
    MirrorDescent,
    MwuAdaptive,
    MwuFixed,
    SupplyWarning,
    plan,
    solve,
)
from jdpack.billboard.lines import Release
from jdpack.market.grid import DEMAND_CODE_MAX
from jdpack.pages.number_text import rounded_up
from jdpack.planning.headroom import MARGIN_MOST, Need, factors, margin_of
from jdpack.planning.plan import EPSILONS, EXPECTED_LOSS, LEVELS
from jdpack.policies import newton
from jdpack.policies.newton import Newton
from jdpack.policies.newton_targets import water_fill
from jdpack.privacy import gdp, queries, tail_bounds, zcdp
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import Gaussian, deviation
from jdpack.privacy.tail_bounds import Sum
from jdpack.protocol import bounds
from jdpack.run import summary

DELTA = 1e-8
POLICIES = {
    "newton": Newton(),
    "warm": Newton((1.0,)),
    "mwu": MwuAdaptive(),
    "truncated": MwuAdaptive(noise="truncated-laplace"),
    "mwu-fixed": MwuFixed(0.5),
    "dual-gd": DualGd(0.5),
    "mirror-descent": MirrorDescent(rounds=200),
}


def a_market(m=1, *, times=2000.0, **more):
    """A market in which every supply is this many times its largest demand."""
    given = {"max_demand": 2.0, "max_value": 10.0, "agents": 50_000, "divisible": True}
    return Market(**{"supply": [2.0 * times] * m, **given, **more})


def with_supply(market, supply, **more):
    return Market(
        **{
            "supply": supply,
            "max_demand": [r.max_demand for r in market.resources],
            "max_value": market.max_value,
            "agents": market.agents,
            "bundle_size": market.bundle_size,
            "options": market.options,
            "neighbours": market.neighbours,
            "divisible": market.divisible,
            "units": [r.unit for r in market.resources],
            **more,
        }
    )


def scaled(market, factor):
    return with_supply(market, [r.supply * factor for r in market.resources])


def steps_of(policy, market, budget):
    """The steps of a run in which nobody ever demands anything."""
    state, steps = policy.start(market, budget), []
    while (step := policy.step(state)) is not None:
        steps.append(step)
        state = policy.observe(state, Release(step, (0,) * queries.width(market, step.query)))
    return steps


markets = st.builds(
    a_market,
    m=st.integers(1, 12),
    times=st.floats(50.0, 1e6),
    bundle_size=st.integers(1, 12),
    options=st.integers(1, 3),
    neighbours=st.sampled_from(["replace-one", "add-remove"]),
    divisible=st.booleans(),
)
policies = st.sampled_from(
    [Newton(), MwuAdaptive(), MwuAdaptive(alpha=0.02), MwuFixed(rounds=9), DualGd(rounds=300)]
)


# --- the numbers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", [Newton(), MwuAdaptive(), DualGd(rounds=99)], ids=["newton", "mwu", "dual-gd"]
)
@pytest.mark.parametrize("m", [1, 7])
def test_the_margin_of_divisible_goods_is_the_tail_of_the_noise_that_a_run_adds(policy, m):
    market = a_market(m)
    planned = plan(market, epsilon=1.0, delta=DELTA, policy=policy)
    rounds = [s for s in steps_of(policy, market, planned.budget) if s.weight]
    variance = math.fsum((s.weight * s.noise.scales[0]) ** 2 for s in rounds)
    weight = sum(s.weight for s in rounds)
    z = norm.isf(planned.budget.beta / m)
    if policy == MwuAdaptive():  # weights depend on the run, so the normal tail does not hold
        z = math.sqrt(2.0 * math.log(m / planned.budget.beta))
    # One more agent must fit, so that a repair is as rare for neighbours.
    radius = z * math.sqrt(variance) / weight + DEMAND_CODE_MAX
    assert planned.margin == pytest.approx(radius / market.supply_codes[0], rel=0.01)
    assert len(rounds) <= planned.rounds_at_most
    deviations = [s.noise.scales[0] / market.supply_codes[0] for s in rounds]
    assert planned.round_noise[0] == pytest.approx(min(deviations))
    assert planned.round_noise[1] in (None, pytest.approx(max(deviations)))


def laplace_deviation(scale):
    """Of the integers z with odds q^|z|, where q = exp(-1 / scale): the sum in closed form."""
    return math.sqrt(2.0 * math.exp(-1.0 / scale)) / -math.expm1(-1.0 / scale)


@pytest.mark.parametrize("scale", [0.3, 7.0, 900.0])
def test_the_closed_form_of_the_deviation_is_the_sum(scale):
    z = np.arange(40 * scale + 1.0)
    odds = np.exp(-z / scale) * np.where(z > 0, 2.0, 1.0)
    deviation = math.sqrt(np.sum(z * z * odds) / np.sum(odds))
    assert laplace_deviation(scale) == pytest.approx(deviation, rel=1e-9)


def test_the_deviation_of_truncated_laplace_noise_is_that_of_its_distribution():
    market, policy = a_market(times=1e5), POLICIES["truncated"]
    planned = plan(market, epsilon=1.0, delta=DELTA, policy=policy)
    noise = next(s.noise for s in steps_of(policy, market, planned.budget) if s.weight)
    assert noise.bound > 40 * noise.scale, "what the bound cuts off counts for nothing"
    deviation = laplace_deviation(noise.scale) / market.supply_codes[0]
    assert planned.round_noise == (pytest.approx(deviation, rel=1e-3), None)


def test_the_certificate_of_a_run_adds_the_planned_margin():
    market = a_market(2, times=500.0, agents=2000)
    rng = np.random.default_rng(3)
    values, demands = rng.uniform(0, 10, 2000), rng.uniform(0, 2, (2000, 2))
    for policy in (Newton(), MwuAdaptive(alpha=0.3), MwuFixed(rounds=99)):
        planned = plan(market, epsilon=2.0, delta=DELTA, policy=policy)
        board = solve(
            market, values=values, demands=demands, epsilon=2.0, delta=DELTA, policy=policy, seed=1
        ).billboard
        counting = [r for r in board.releases if r.step.weight]
        shape = np.array(deviation(counting[0].step.noise))
        assert len(shape) == 1 or isinstance(policy, Newton)
        need = Need(market, planned.budget, policy)
        margins = need.margins(shape=shape) if len(shape) > 1 else np.full(2, planned.margin)
        for j, bound in enumerate(bounds.load_bounds(board)):
            total = sum(r.step.weight * r.answer[j] for r in counting)
            observed = total / (board.weight * market.supply_codes[j])
            # mwu-adaptive may stop with a little less weight than its outlook says
            assert bound - observed == pytest.approx(
                # and a plan of newton has equal parts of beta
                margins[j],
                rel={"mwu-adaptive": 0.1, "newton": 0.01}.get(policy.name, 1e-6),
            )


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("m", [1, 7])
def test_the_margin_of_indivisible_goods_is_what_newton_reckons_with(m, epsilon):
    market = a_market(m, times=20_000.0, divisible=False)
    planned = plan(market, epsilon=epsilon, delta=DELTA)
    state = Newton().start(market, planned.budget)
    assert planned.margin == pytest.approx(float(state.radii.max()), rel=1e-9)
    # It leaves a little more free, so that nothing is thinned.
    free = 1.0 - min(state.targets.tolist())
    assert planned.margin * (1.0 - 1e-9) <= free < 1.2 * planned.margin < 0.2
    # Coins need more than the noise alone, and the room for one more agent.
    z, rho = norm.isf(planned.budget.beta / m), planned.budget.rho
    whole = math.sqrt(queries.change(market, "demand").squares / (2.0 * rho))
    noise = z * whole + DEMAND_CODE_MAX  # one release with all of rho
    assert planned.margin > noise / market.supply_codes[0]


def test_a_full_load_is_thinned_by_the_planned_margin():
    """mwu-adaptive aims for full supplies, so the certificate's own factor is the measure."""
    market = a_market(3, times=3000.0, divisible=False)
    planned = plan(market, epsilon=1.0, delta=DELTA, policy=MwuAdaptive())
    budget, outlook = planned.budget, MwuAdaptive().outlook(market, planned.budget)
    tail, S = math.log(3 / budget.beta), market.supply_codes[0]
    noise, weight = Sum(outlook.variance, peak=outlook.peak), float(outlook.weight)
    decided = newton.coins_expected(
        np.array([float(S)]), np.array([math.sqrt(outlook.variance) / weight])
    )
    coins = tail_bounds.coins_on(market, budget, noise, weight, float(S), float(decided[0]))
    fits = noise.fits(coins, tail)
    factor = max(
        fit.factor((1.0 - DEMAND_CODE_MAX / S) / (1.0 + fit.radius / weight / S)) for fit in fits
    )
    assert 1.0 / factor - 1.0 == pytest.approx(planned.margin, rel=1e-4)
    assert planned.margin > min(fit.radius for fit in fits) / weight / S


# --- uneven supplies ----------------------------------------------------------------------


def uneven(**more):
    supply = [900.0, 4000.0, 30_000.0, 200_000.0]
    return with_supply(a_market(4, **more), supply, **more)


def test_each_resource_has_its_own_margin_and_the_largest_is_named():
    market = with_supply(uneven(), [4000.0, 900.0, 30_000.0, 200_000.0], names=list("abcd"))
    planned = plan(market, epsilon=1.0, delta=DELTA)
    margins = Need(market, planned.budget, Newton()).margins()
    # Even noise, so margins in proportion to 1 / supply.
    shares = [margin * r.supply for margin, r in zip(margins, market.resources, strict=True)]
    assert shares == pytest.approx([shares[0]] * 4, rel=1e-3)
    assert planned.tightest == ("b", float(margins[1]))
    assert f"{100 * margins[1]:.3g}% of b, whose supply is smallest" in planned.details
    assert planned.to_dict()["tightest"] == {"resource": "b", "margin": float(margins[1])}
    # The margin of the market weighs them by the root of the supply: options touch several.
    worth = np.sqrt([r.supply for r in market.resources])
    assert planned.margin == pytest.approx(float(worth @ margins / worth.sum()), rel=1e-3)
    alone = with_supply(market, [r.supply for r in market.resources], bundle_size=1)
    found = Need(alone, planned.budget, Newton())
    worth = np.array([r.supply for r in market.resources])
    mean = float(worth @ found.margins() / worth.sum())
    assert found.margin() == pytest.approx(mean, rel=1e-3)
    even = plan(a_market(4), epsilon=1.0, delta=DELTA)
    assert "whose supply is smallest" not in str(even)


def best_loss(need, prices):
    """The loss, to first order, of the best shape for these prices: the mean of its margins.

    All agents are alike.
    """
    change = queries.change(need.market, "demand")
    touched = change.squares / DEMAND_CODE_MAX**2
    levels = water_fill(prices / need.supplies, touched)
    return float(prices @ need.margins(shape=1.0 / np.sqrt(levels), alike=True))


@pytest.mark.parametrize("divisible", [True, False])
@pytest.mark.parametrize("bundle", [1, 2, 4])
@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
def test_whatever_the_prices_a_run_loses_at_most_the_most(divisible, bundle, neighbours):
    market = uneven(divisible=divisible, bundle_size=bundle, neighbours=neighbours)
    need = Need(market, Budget.split(1.0, DELTA, truncated=False), Newton())
    most, rng = need.most(), np.random.default_rng(4)
    assert most >= need.margin()
    squared = 1.0 / need.supplies**2
    tried = [squared / squared.sum(), *np.maximum(np.eye(4), 1e-9), need.worth]
    tried += [rng.dirichlet(np.full(4, a)) for a in (0.1, 0.3, 1.0, 5.0) for _ in range(25)]
    worst = max(best_loss(need, prices / prices.sum()) for prices in tried)
    assert worst <= most * (1.0 + 1e-6)
    assert worst > 0.9 * most  # and it is not far above what can happen
    # Negative control: even noise may lose far more, unless one agent moves one resource.
    if bundle == 4:
        assert float(need.margins(alike=True).max()) > 1.4 * most


def test_a_shape_that_follows_supply_has_one_margin():
    need = Need(uneven(), Budget.split(1.0, DELTA, truncated=False), Newton())
    cap = DEMAND_CODE_MAX / need.supplies
    shaped, even = need.margins(shape=need.supplies) - cap, need.margins() - cap
    assert shaped == pytest.approx([shaped[0]] * 4, rel=1e-3)
    # All four are touched: the mean of their squared margins stays.
    assert float((1.0 / shaped**2).sum()) > 0.0
    assert shaped[0] == pytest.approx(math.sqrt(float((even**2).mean())), rel=1e-3)


@pytest.mark.parametrize("divisible", [True, False])
def test_the_margin_at_another_supply_is_that_of_the_other_market(divisible):
    market = uneven(divisible=divisible)
    need = Need(market, Budget.split(1.0, DELTA, truncated=False), Newton())
    rho = tail_bounds.rounds_rho(market, need.budget)
    counted = [Newton().shares(market, rho, factor)[-1] for factor in (0.2, 1.0, 5.0, 500.0)]
    assert counted == sorted(counted) and counted[0] < counted[-1]  # less noise, less steering
    for factor in (0.2, 5.0, 500.0):
        there = margin_of(scaled(market, factor), need.budget, Newton())
        assert need.margin(factor) == pytest.approx(there, rel=1e-3)
    # Negative control: with the noise of the present supply it would be another one.
    cap = float((need.worth * market.person_cap_codes / need.supplies).sum()) / 500.0
    if divisible:
        plain = (need.margin() - 500.0 * cap) / 500.0 + cap
        assert abs(plain / need.margin(500.0) - 1.0) > 5e-3


@pytest.mark.parametrize(
    ("neighbours", "bundle", "count"),
    [("replace-one", 2, 4), ("add-remove", 2, 2), ("replace-one", 4, 5), ("replace-one", 5, 5)],
)
def test_the_floor_in_true_units(neighbours, bundle, count):
    supply = [4000.0, 9000.0, 5000.0, 70_000.0, 6000.0]
    market = with_supply(a_market(5), supply, neighbours=neighbours, bundle_size=bundle)
    planned = plan(market, epsilon=1.0, delta=DELTA)
    largest = sorted((2.0 / b for b in supply), reverse=True)[:count]
    z = math.sqrt(2.0 * math.log(5 / planned.budget.beta))
    expected = z * math.sqrt(sum(x * x for x in largest)) / math.sqrt(2.0 * planned.budget.rho)
    assert planned.floor == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_delta_is_split_without_rest(policy):
    planned = plan(a_market(times=1e5), epsilon=1.5, delta=DELTA, policy=policy)
    parts, budget = planned.delta_split, planned.budget
    assert sum(parts.values()) == pytest.approx(DELTA)
    # Truncated noise has zCDP, under which a repair costs more.
    times = 1.0 + math.exp(1.5) if policy.truncated else 1.0
    assert parts["repair"] == pytest.approx(times * budget.beta)
    account = zcdp if policy.truncated else gdp
    assert account.delta_of(budget.rho, 1.5) <= parts["noise"] * (1 + 1e-9)
    assert (parts["truncation"] > 0.0) == policy.truncated


def test_the_expected_share_follows_from_the_margin_and_says_so():
    for divisible, times in EXPECTED_LOSS.items():
        planned = plan(a_market(3, divisible=divisible), epsilon=1.0, delta=DELTA)
        assert planned.share_expected == pytest.approx(1.0 - times * planned.margin)
        assert planned.share_at_least < 1.0 - planned.margin < planned.share_expected
        assert "concave" in planned.basis and "at least about" in planned.basis
        far = plan(uneven(divisible=divisible), epsilon=1.0, delta=DELTA)
        most = Need(far.market, far.budget, Newton()).most()
        assert far.share_at_least == 1.0 - most < 1.0 - far.margin < far.share_expected
        alike = Need(far.market, far.budget, Newton()).margins(alike=True)
        assert (alike > Need(far.market, far.budget, Newton()).margins()).all()
    other = plan(a_market(3), epsilon=1.0, delta=DELTA, policy=MwuAdaptive(alpha=0.2))
    assert other.share_at_least is None and other.share_expected is None
    assert "alpha n V = 1e+05" in other.basis  # 0.2 x 50,000 x 10
    drowned = plan(a_market(times=5.0), epsilon=0.1, delta=DELTA)
    assert drowned.margin > 1.0 and drowned.share_at_least == 0.0
    assert "no share of it can be promised" in drowned.basis


# --- more is better -----------------------------------------------------------------------


@settings(max_examples=20)
@given(markets, policies, st.floats(0.05, 8.0))
def test_more_epsilon_and_more_supply_make_a_smaller_margin(market, policy, epsilon):
    def margin(market, epsilon):
        return margin_of(market, Budget.split(epsilon, DELTA, truncated=False), policy)

    here = margin(market, epsilon)
    # The bound on coins is fitted to about as many of them as there is noise. So in vast markets
    # in which coins need more room than noise, less noise does not make the margin smaller.
    vast = market.resources[0].supply > 3000.0 * market.resources[0].max_demand or epsilon > 3.0
    if market.divisible or not vast:
        assert margin(market, 1.2 * epsilon) < here or here == math.inf
    assert margin(scaled(market, 1.2), epsilon) < here or here == math.inf


@settings(max_examples=10)
@given(markets, policies, st.floats(0.2, 5.0))
def test_the_least_supply_gives_its_margin_and_less_does_not(market, policy, epsilon):
    planned = plan(market, epsilon=epsilon, delta=DELTA, policy=policy)
    assert [least.margin for least in planned.least_supply] == list(LEVELS)
    for least in planned.least_supply:
        enough, less = (
            margin_of(scaled(market, least.factor * f), planned.budget, policy)
            for f in (1.0, 0.998)
        )
        assert enough <= least.margin < less
        names = zip(market.resources, least.supply, strict=True)
        assert all(supply == r.supply * least.factor for r, supply in names)
        shares = (s / r.max_demand for r, s in zip(market.resources, least.supply, strict=True))
        assert least.demands == pytest.approx(min(shares))
        m = len(market.resources)
        assert least.paper == pytest.approx(math.sqrt(m) / (least.margin * epsilon))
        # at the supply that the paper requires, with all constants, the ratio is 1
        there = scaled(market, least.explicit / least.demands * least.factor)
        ratio = MwuAdaptive(alpha=least.margin).supply_ratio(there, planned.budget)
        assert ratio == pytest.approx(1.0, rel=0.01)


def bisected(need: Need, level: float) -> float:
    """The factor at the end of a plain bisection."""
    low, high = factors(need.market)
    while high > low * (1.0 + 1e-6):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if need.margin(middle) <= level else (middle, high)
    return high


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("divisible", [True, False])
def test_a_few_margins_find_the_factor_of_a_bisection(monkeypatch, policy, divisible):
    """A margin takes long if there are many resources."""
    market = a_market(3, divisible=divisible, excess_probability=0.0)
    budget = Budget.split(1.0, DELTA, truncated=POLICIES[policy].truncated)
    need, margin, asked = Need(market, budget, POLICIES[policy]), Need.margin, []
    monkeypatch.setattr(Need, "margin", lambda *a: asked.append(a[1:]) or margin(*a))
    for level in LEVELS:
        expected, often = bisected(need, level), len(asked)
        asked.clear()
        assert expected < need.factor(level) <= rounded_up(1.0002 * expected, 4)
        assert len(asked) <= 20 < often
        asked.clear()


def test_supplies_of_different_size_are_scaled_alike():
    market = with_supply(a_market(3), [3000.0, 80_000.0, 500_000.0], max_demand=[2.0, 3.0, 1.0])
    for divisible in (True, False):
        goods = with_supply(market, [r.supply for r in market.resources], divisible=divisible)
        planned = plan(goods, epsilon=1.0, delta=DELTA)
        for least in planned.least_supply:
            found = margin_of(with_supply(goods, least.supply), planned.budget, Newton())
            assert 0.998 * least.margin < found <= least.margin


def test_no_supply_below_its_cap_or_beyond_the_grid_is_advised():
    market = with_supply(a_market(2), [3000.0, 80_000.0])
    need = Need(market, Budget.split(1.0, DELTA, truncated=False), Newton())
    least = need.factor(1e6)  # any supply would do
    assert 2.0 / 3000.0 <= least <= 1.001 * 2.0 / 3000.0
    scaled(market, least)
    assert need.factor(1e-12) is None
    vast = with_supply(a_market(), [1e99], max_demand=1e98)
    planned = plan(vast, epsilon=1.0, delta=DELTA)
    assert [(x.factor, x.supply, x.demands) for x in planned.least_supply] == [(None,) * 3] * 3
    assert strict(json.dumps(planned.to_dict()))["least_supply"][0]["supply"] is None
    assert "-" in next(line for line in planned.details.split("\n") if "times the present" in line)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_table_of_epsilon_is_the_plan_at_each(policy):
    market = a_market(times=30_000.0)
    planned = plan(market, epsilon=0.7, delta=DELTA, policy=policy)
    assert [e for e, _ in planned.by_epsilon] == [0.1, 0.35, 0.7, 1.0, 1.4, 10.0]
    for epsilon, margin in planned.by_epsilon:
        there = plan(market, epsilon=epsilon, delta=DELTA, policy=policy)
        assert there.margin == margin


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("divisible", [True, False])
def test_the_table_of_supply_is_the_plan_at_each(policy, divisible):
    market = a_market(times=30_000.0, divisible=divisible)
    planned = plan(market, epsilon=0.7, delta=DELTA, policy=policy)
    assert [factor for factor, _ in planned.by_supply] == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert dict(planned.by_supply)[1.0] == planned.margin
    for factor, margin in planned.by_supply:
        there = plan(scaled(market, factor), epsilon=0.7, delta=DELTA, policy=policy)
        assert there.margin == margin


def test_a_budget_or_supply_beyond_what_there_is_is_not_in_the_tables():
    planned = plan(a_market(times=1.0), epsilon=30.0, delta=DELTA)  # the smallest supply allowed
    assert [e for e, _ in planned.by_epsilon] == [0.1, 1.0, 10.0, 15.0, 30.0]
    assert [x is None for _, x in planned.by_supply] == [True, True, False, False, False]
    assert "epsilon" not in {help.kind for help in planned.helps}  # we advise at most 4
    least = plan(a_market(), epsilon=1.3e-5, delta=DELTA)  # twice its noise is beyond 64 bits
    assert [x is None for _, x in least.by_epsilon] == [True, False, False, False, False, False]
    with pytest.raises(jdpack.BudgetError, match="64 bits"):
        plan(a_market(), epsilon=6.5e-6, delta=DELTA)


def test_no_epsilon_is_advised_that_would_be_warned_of():
    for times in (20.0, 60.0, 100.0):
        planned = plan(a_market(times=times), epsilon=1.0, delta=DELTA)
        for help in planned.helps:
            if help.kind == "epsilon":
                assert 1.0 < help.value <= 4.0
                again = plan(a_market(times=times), epsilon=help.value, delta=DELTA)
                assert again.weakness is None and again.margin == help.margin
    assert "epsilon" in {help.kind for help in planned.helps}


# --- what the promise is worth ------------------------------------------------------------


def test_a_plan_says_what_the_promise_is_for_several_agents():
    planned = plan(a_market(), epsilon=1.0, delta=1e-8)
    assert [g for g, _, _ in planned.by_group] == [2, 5, 10]
    for g, epsilon, delta in planned.by_group:
        assert epsilon > g, "g times epsilon at the same delta is not what holds"
        assert delta > g * 1e-8
    lines = planned.details.split("\n")
    cells = {line[:34].strip(): line[34:].split() for line in lines}
    assert cells["agents at once, g"] == ["2", "5", "10"]
    page = (Path(__file__).parents[3] / "docs" / "privacy-promise.md").read_text(encoding="utf-8")
    shown = [cells["billboard: epsilon, same delta"], cells["all: delta, at g times epsilon"]]
    for g, epsilon, delta in zip((2, 5, 10), *shown, strict=True):
        assert f"| {g} | {epsilon} | {delta} |" in page
    truncated = plan(
        a_market(), epsilon=1.0, delta=1e-8, policy=MwuAdaptive(noise="truncated-laplace")
    )
    assert [e for _, e, _ in truncated.by_group] == [None] * 3
    assert plan(a_market(), epsilon=math.inf, delta=1e-8).by_group == ()
    data = json.loads(json.dumps(planned.to_dict(), allow_nan=False))
    assert [row["agents"] for row in data["by_group"]] == [2, 5, 10]


@pytest.mark.parametrize(
    ("epsilon", "delta", "weak"),
    [
        (4.0, 1e-8, False),
        (4.01, 1e-8, True),
        (1.0, 1.9e-6, False),  # of 50,000 agents: 0.095 records
        (1.0, 2.1e-6, True),
        (1.0, 0.01, True),
        (math.inf, 0.5, False),  # an experiment, which says so elsewhere
    ],
)
def test_a_budget_that_promises_little_is_warned_of(tmp_path, epsilon, delta, weak):
    market = a_market()
    planned = plan(market, epsilon=epsilon, delta=delta)
    assert (planned.weakness is not None) == weak == (planned.to_dict()["weakness"] is not None)
    assert ("  warning: " in str(planned)) == weak
    planned.write(tmp_path / "plan")
    page = (tmp_path / "plan" / "report.html").read_text(encoding="utf-8")
    assert (" is above 4, so little is hidden" in page) == (4.0 < epsilon < math.inf)
    assert ("is not well below 1 / 50,000 agents" in page) == (weak and epsilon == 1.0)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = solve(
            market, values=np.ones(50_000), demands=np.ones((50_000, 1)), epsilon=epsilon,
            delta=delta,
        )  # fmt: skip
    given = [str(w.message) for w in found if issubclass(w.category, jdpack.BudgetWarning)]
    assert given == ([str(planned.weakness)] if weak else [])
    said = summary.as_dict(result)["weakness"]
    assert said == (planned.weakness.message if weak else None)
    assert ("\n  warning  " in summary.as_text(result)) == weak


def test_an_experiment_is_not_warned_of_its_budget():
    _, found = solved(a_market(agents=100), epsilon=20.0)
    assert not [w for w in found if issubclass(w.category, jdpack.BudgetWarning)]


@pytest.mark.parametrize("delta", [0.0101, 0.5, 0.99])
@pytest.mark.parametrize("begin", [plan, solve, jdpack.LocalRun])
def test_a_delta_that_promises_nothing_is_refused_before_anything(
    tmp_path, monkeypatch, begin, delta
):
    forbid_drawing(monkeypatch)
    given = {solve: {"output": tmp_path / "out"}, jdpack.LocalRun: {"path": tmp_path / "b.jsonl"}}
    with pytest.raises(jdpack.BudgetError, match=f"at most 0.01, not {delta:g}"):
        begin(a_market(), epsilon=1.0, delta=delta, **given.get(begin, {}))
    assert list(tmp_path.iterdir()) == []


def test_resources_that_are_alike_have_one_row():
    market = with_supply(
        a_market(12), [6000.0, 7000.0, *[6000.0] * 8, 7000.0, 8000.0],
        units=["h"] * 11 + ["kg"], names=[f"r{j}" for j in range(12)],
    )  # fmt: skip
    planned = plan(market, epsilon=1.0, delta=DELTA)
    lines = planned.details.split("\n")
    rows = [line.split("  ")[2] for line in lines if line.startswith("    r")]
    assert rows == ["r0 and 8 more (h)", "r1 and 1 more (h)", "r11 (kg)"]
    (row,) = [line for line in lines if "r1 and" in line]
    assert f"{planned.least_supply[0].supply[10]:,.0f}" in row
    other = with_supply(market, [6000.0 + j for j in range(12)])
    assert "    ... and 4 more with --json" in plan(other, epsilon=1.0, delta=DELTA).details


def test_a_budget_that_the_policy_refuses_has_no_margin_in_the_table():
    policy = POLICIES["truncated"]
    planned = plan(a_market(times=800.0), epsilon=1.0, delta=DELTA, policy=policy)
    margins = dict(planned.by_epsilon)
    assert margins[0.1] is None and margins[1.0] == planned.margin
    with pytest.raises(jdpack.BudgetError, match="truncated Laplace"):
        plan(a_market(times=800.0), epsilon=0.1, delta=DELTA, policy=policy)
    assert "refused" in planned.details


# --- what would help ----------------------------------------------------------------------


FREE = {"max_total", "bundle_size", "neighbours", "excess_probability", "delta"}
"""Kinds of help that cost nobody anything."""


def small_market(**more):
    units = ["kg"] * 8 + ["h"] * 8
    return a_market(16, times=700.0, bundle_size=6, divisible=False, units=units, **more)


def helps_of(market, **given):
    planned = plan(market, delta=DELTA, **given)
    found = {help.kind: help for help in planned.helps}
    assert len(found) == len(planned.helps)
    for help in planned.helps:
        assert help.margin < planned.margin and help.text in str(planned)
    enough = [help.margin <= MARGIN_MOST for help in planned.helps]
    assert enough == sorted(enough, reverse=True)
    return planned, found


def test_each_help_is_what_the_changed_market_has():
    market = small_market()
    planned, helps = helps_of(market, epsilon=0.5)
    assert set(helps) == {"epsilon", "supply", "max_demand", "divisible", *FREE} - {"max_total"}
    supply = [r.supply for r in market.resources]

    def margin(market, epsilon=0.5, policy=None):
        return plan(market, epsilon=epsilon, delta=DELTA, policy=policy).margin

    epsilon = helps["epsilon"].value
    assert (
        helps["epsilon"].margin == margin(market, epsilon) <= 0.2 < margin(market, 0.98 * epsilon)
    )
    factor = helps["supply"].value
    assert margin(scaled(market, factor)) <= 0.2 < margin(scaled(market, 0.998 * factor))
    assert helps["max_demand"].value == factor
    smaller = with_supply(market, supply, max_demand=2.0 / factor)
    assert margin(smaller) == pytest.approx(helps["max_demand"].margin, rel=1e-3)
    assert helps["max_demand"].margin <= 0.2
    size = helps["bundle_size"].value
    bundled = with_supply(market, supply, bundle_size=int(size))
    assert helps["bundle_size"].margin == margin(bundled) < planned.margin
    whole = with_supply(market, supply, divisible=True)
    assert helps["divisible"].margin == margin(whole)
    present = with_supply(market, supply, neighbours="add-remove")
    assert helps["neighbours"].margin == margin(present)
    rarely = with_supply(market, supply, excess_probability=1e-3)
    assert helps["excess_probability"].margin == margin(rarely)
    # 50,000 agents: a hundredth of 1 / agents is 2e-7, and the power of ten below that is 1e-7
    assert helps["delta"].value == 1e-7
    assert helps["delta"].margin == plan(market, epsilon=0.5, delta=1e-7).margin


@pytest.mark.parametrize("divisible", [True, False])
def test_free_gains_are_listed_even_if_supply_is_large_enough(divisible):
    """Bounds that the rules may imply anyway, and promises that people may not need."""
    market = a_market(8, times=3000.0, divisible=divisible, bundle_size=8)
    planned = plan(market, epsilon=1.0, delta=DELTA)
    assert planned.warning is None and planned.margin < MARGIN_MOST
    found = {help.kind: help for help in planned.helps}
    assert {"max_total", "excess_probability"} <= set(found) <= FREE
    assert "free gains" in str(planned) and "what would help" not in str(planned)
    # eight caps of 2 each, and a quarter of that
    assert found["max_total"].value == 4.0
    total = with_supply(market, [r.supply for r in market.resources], max_total=4.0)
    assert found["max_total"].margin == plan(total, epsilon=1.0, delta=DELTA).margin
    assert all(help.margin <= 0.9 * planned.margin for help in planned.helps)
    scarce = plan(scaled(market, 0.05), epsilon=1.0, delta=DELTA)
    assert "what would help" in str(scarce) and "free gains" not in str(scarce)
    assert set(found) <= {help.kind for help in scarce.helps}
    # What is said already is not advised.
    said = with_supply(total, [r.supply for r in market.resources], max_total=4.0,
                       bundle_size=1, neighbours="add-remove", excess_probability=1e-3)  # fmt: skip
    assert plan(said, epsilon=1.0, delta=1e-7).helps == ()


def test_the_largest_bundle_that_is_enough_is_advised():
    market = a_market(40, times=600.0, bundle_size=20)
    _, helps = helps_of(market, epsilon=0.7)
    size, supply = helps["bundle_size"].value, [r.supply for r in market.resources]
    assert 1 < size < 20
    enough, more = (
        plan(with_supply(market, supply, bundle_size=k), epsilon=0.7, delta=DELTA).margin
        for k in (size, size + 1)
    )
    assert enough <= MARGIN_MOST < more


@pytest.mark.parametrize(
    ("bundle", "cap"),
    [(1, 2.0), (40, 8.0)],
    ids=["an option touches one", "an option touches all"],
)
def test_coarser_resources_are_the_merged_market(bundle, cap):
    market = a_market(40, times=100.0 if bundle == 1 else 650.0, bundle_size=bundle)
    _, helps = helps_of(market, epsilon=1.0)
    assert helps["resources"].value == 10  # pairs are not enough, groups of four are
    merged = with_supply(
        a_market(10), [4 * r.supply for r in market.resources[:10]], max_demand=cap
    )
    merged = with_supply(merged, [r.supply for r in merged.resources], bundle_size=min(bundle, 10))
    assert helps["resources"].margin == plan(merged, epsilon=1.0, delta=DELTA).margin
    assert helps["resources"].margin <= MARGIN_MOST


def test_what_is_not_possible_or_no_help_is_not_listed():
    _, helps = helps_of(a_market(4, times=100.0, bundle_size=1), epsilon=0.5)
    assert "bundle_size" not in helps and "divisible" not in helps and "policy" not in helps
    units = ["kg", "kg", "h", "h"]
    _, helps = helps_of(a_market(4, times=100.0, units=units), epsilon=0.5)
    assert "resources" not in helps  # hours and kilograms do not add up
    _, helps = helps_of(a_market(1, times=3.0), epsilon=20.0)
    # epsilon is already above what we advise
    assert set(helps) == {"supply", "max_demand", "excess_probability"}
    # a bundle of 3 of 4 resources moves as many as one of 4, and so does one of 2
    planned = plan(a_market(4, times=200.0, bundle_size=2, units=units), epsilon=1.0, delta=DELTA)
    assert planned.warning is not None
    (bundle,) = [h for h in planned.helps if h.kind == "bundle_size"]
    assert bundle.value == 1


def test_another_policy_is_advised_where_it_helps():
    market = a_market(3, times=100.0, divisible=False)
    planned, helps = helps_of(market, epsilon=1.0, policy=MwuAdaptive())
    newton = plan(market, epsilon=1.0, delta=DELTA).margin
    assert helps["policy"].margin == newton < planned.margin
    # Under the market's own promise: a supply that may be exceeded needs less.
    rarely = with_supply(market, [r.supply for r in market.resources], excess_probability=1e-3)
    _, helps = helps_of(rarely, epsilon=4.0, policy=MwuAdaptive())
    assert helps["policy"].margin == plan(rarely, epsilon=4.0, delta=DELTA).margin


def test_a_market_in_which_nothing_can_be_certified_still_has_a_plan():
    market = with_supply(a_market(), [3.0], divisible=False)
    planned, helps = helps_of(market, epsilon=1.0, policy=MwuAdaptive())
    assert planned.margin == math.inf and planned.warning is not None
    assert strict(json.dumps(planned.to_dict()))["margin"] is None
    assert "unbounded" in str(planned)
    assert all(math.isfinite(help.margin) for help in helps.values())


# --- the warning --------------------------------------------------------------------------


def solved(market, **given):
    """Solve with warnings recorded."""
    rng = np.random.default_rng(1)
    n, m = market.agents, len(market.resources)
    demands = np.zeros((n, m))
    demands[np.arange(n), rng.integers(0, m, n)] = 1.0
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = solve(
            market, values=rng.uniform(0, 10, n), demands=demands, delta=DELTA, seed=1, **given
        )
    return result, [w for w in found if issubclass(w.category, SupplyWarning)]


@pytest.mark.parametrize("divisible", [True, False])
def test_solve_warns_exactly_when_the_plan_does(divisible):
    market = a_market(2, times=100.0, agents=600, divisible=divisible)
    given = {"epsilon": 1.0, "policy": MwuAdaptive(alpha=0.5)}
    planned = plan(market, **given, delta=DELTA)
    assert planned.warning is not None
    factor = {help.kind: help.value for help in planned.helps}["supply"]
    agents = int(5 * 100 * factor)
    for times, warns in [(100.0 * factor, False), (99.8 * factor, True)]:
        market = a_market(2, times=times, agents=agents, divisible=divisible)
        planned = plan(market, **given, delta=DELTA)
        result, found = solved(market, **given)
        assert (planned.warning is not None) == warns == (planned.margin > MARGIN_MOST)
        assert [str(w.message) for w in found] == ([str(planned.warning)] if warns else [])
        assert str(result.warning) == str(planned.warning)
        # A change of a thousandth, as would be enough here, is not worth a line.
        kinds = {help.kind for help in planned.helps}
        assert ("resources" in kinds) == warns and (warns or kinds <= FREE)
        if warns:
            line = linecache.getline(found[0].filename, found[0].lineno)
            assert " solve(" in line  # where it was called


def test_the_warning_says_by_how_much_and_what_would_do():
    planned = plan(a_market(times=100.0), epsilon=1.0, delta=DELTA)
    (factor,) = [h.value for h in planned.helps if h.kind == "supply"]
    assert f"{100 * planned.margin:.3g}%" in planned.warning.message
    assert f"{factor:.4g} times" in planned.warning.hint
    assert "\n" not in planned.warning.message + planned.warning.hint
    assert str(planned.warning) == f"{planned.warning.message}\nhint: {planned.warning.hint}"


@pytest.mark.filterwarnings("error::jdpack.SupplyWarning")
def test_the_warning_comes_before_anything_is_read_spent_or_written(tmp_path, monkeypatch):
    forbid_drawing(monkeypatch)
    before = list(tmp_path.iterdir())
    with pytest.raises(SupplyWarning, match="supply is too small"):
        solve(
            a_market(times=20.0),
            str(tmp_path / "no-such-file.parquet"),
            epsilon=1.0,
            delta=DELTA,
            output=tmp_path / "out",
        )
    assert list(tmp_path.iterdir()) == before


def test_where_nothing_can_run_out_nothing_is_too_small():
    """Ten agents who ask for one unit each of two hundred need no margin."""
    few = a_market(2, times=200.0, agents=10)
    planned = plan(few, epsilon=0.5, delta=DELTA)
    assert planned.margin > MARGIN_MOST and planned.warning is None
    assert {help.kind for help in planned.helps} <= FREE
    assert "nothing is scarce" in str(planned)
    _, found = solved(few, epsilon=0.5)
    assert found == []
    crowded = a_market(2, times=200.0, agents=int(200 * (1.0 - planned.margin)) + 1)
    assert plan(crowded, epsilon=0.5, delta=DELTA).warning is not None


# --- no privacy ---------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("divisible", [True, False])
def test_without_privacy_there_is_no_margin_for_noise_and_no_warning(policy, divisible):
    market = a_market(times=20.0, agents=300, divisible=divisible)
    planned = plan(market, epsilon=math.inf, delta=DELTA, policy=policy)
    assert (planned.floor, planned.round_noise) == (0.0, (0.0, 0.0))
    cap = 1.0 / 20.0  # the room for one more agent
    assert planned.margin >= cap * (1.0 - 1e-3)
    if divisible:
        assert planned.margin == pytest.approx(cap, rel=1e-3)
    assert planned.warning is None and planned.least_supply == ()
    assert len(planned.by_epsilon) == len(EPSILONS)
    assert "protects nobody" in str(planned) and "nothing is private" in str(planned)
    assert "NONE" in planned.details
    data = strict(json.dumps(planned.to_dict()))
    assert data["private"] is False and data["epsilon"] is None and data["rho"] is None
    # Without noise, the default alpha of mwu-adaptive is so small that a run has 300,000 rounds.
    few = replace(policy, alpha=0.1) if isinstance(policy, MwuAdaptive) else policy
    result, found = solved(market, epsilon=math.inf, policy=few)
    assert found == [] and result.warning is None
    if policy == Newton():
        state = Newton().start(market, planned.budget)
        assert planned.margin == pytest.approx(float(state.radii.max()), abs=1e-12)


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"epsilon": None},
        {"delta": None},
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"epsilon": True},
        {"epsilon": "1"},
        {"epsilon": 51.0},
        {"epsilon": 1e-6},  # needs noise that cannot be drawn
        {"epsilon": 1e-6, "policy": MwuAdaptive()},  # the same, in the closing releases
        {"delta": 1.0},
        {"policy": "newto"},
        {"policy": Newton((1.0, 2.0))},
        {"policy": MwuAdaptive(noise="truncated-laplace"), "epsilon": 0.01},
        {"market": "no-such-file.toml"},
    ],
    ids=str,
)
@pytest.mark.parametrize("divisible", [True, False])
def test_bad_input_is_refused_as_by_solve_before_anything_is_drawn(given, divisible, monkeypatch):
    forbid_drawing(monkeypatch)
    given = {"market": a_market(divisible=divisible), "epsilon": 1.0, "delta": DELTA, **given}
    with pytest.raises(JdpackError) as planned:
        plan(**given)
    with pytest.raises(JdpackError) as run:
        solve(**given, values=np.ones(50_000), demands=np.ones((50_000, 1)))
    assert type(planned.value) is type(run.value) and str(planned.value) == str(run.value)


def test_the_market_has_a_budget_of_its_own():
    market = a_market(epsilon=2.0, delta=1e-6)
    planned = plan(market)
    assert (planned.budget.epsilon, planned.budget.delta) == (2.0, 1e-6)
    assert plan(market, epsilon=1.0).budget.epsilon == 1.0


# --- text and JSON ------------------------------------------------------------------------


def strict(text):
    """Standard JSON: no NaN, no Infinity."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("policy", ["newton", "mwu", "truncated"])
@pytest.mark.parametrize("m", [1, 1000])
@pytest.mark.parametrize("divisible", [True, False])
def test_any_size_and_policy_has_a_plan_in_strict_json(policy, m, divisible):
    market = a_market(m, times=1e6, divisible=divisible, neighbours="add-remove", bundle_size=2)
    planned = plan(market, epsilon=1.0, delta=DELTA, policy=POLICIES[policy])
    data = strict(json.dumps(planned.to_dict(), allow_nan=False))
    assert data["margin"] == planned.margin and data["policy"]["name"] in planned.details
    assert len(data["least_supply"][0]["supply"]) == m
    assert max(map(len, f"{planned}\n{planned.details}".split("\n"))) <= 110


@pytest.fixture
def town(tmp_path):
    path = tmp_path / "market.toml"
    path.write_text(
        'name = "Town"\n'
        "privacy = {epsilon = 1.0, delta = 1e-8}\n"
        "value.max = 10.0\n"
        "agents.count = 900\n"
        "resource = [\n"
        '  {name = "doses", supply = 60.0, max_demand = 1.0, unit = "vials"},\n'
        '  {name = "beds", supply = 50.0, max_demand = 1.0},\n'
        "]\n"
    )
    return path


def test_the_command_prints_the_plan(town, monkeypatch, capsys):
    code, out, err = run_cli(monkeypatch, capsys, "plan", town)
    follow = f"next: jdpack check {town} TABLE\n"
    assert (code, out, err) == (0, f"{plan(town)}\n--details shows the rest\n{follow}", "")
    assert "too small" in out and "times the supply" in out and "rho" not in out
    code, out, err = run_cli(monkeypatch, capsys, "plan", town, "--details")
    assert (code, out, err) == (0, f"{plan(town)}\n\n{plan(town).details}\n\n{follow}", "")
    for word in ("Town", "rho", "beta", "rounds", "margin", "floor", "doses (vials)"):
        assert word in out
    assert "sqrt(m)/(alpha epsilon)" in out
    code, out, err = run_cli(monkeypatch, capsys, "plan", town, "--json", "--epsilon", "3")
    assert code == 0 and strict(out) == json.loads(json.dumps(plan(town, epsilon=3.0).to_dict()))
    text = "mwu-adaptive:alpha=0.2"
    code, out, err = run_cli(monkeypatch, capsys, "plan", town, "--policy", text, "--json")
    assert strict(out)["policy"] == MwuAdaptive(alpha=0.2).to_dict()
    assert plan(town, policy=text).to_dict() == plan(town, policy=MwuAdaptive(0.2)).to_dict()
    assert plan(town, policy="newton").to_dict() == plan(town).to_dict()
    code, out, err = run_cli(monkeypatch, capsys, "plan", town, "--epsilon", "inf")
    assert code == 0 and "nothing is private" in out
    code, out, err = run_cli(monkeypatch, capsys, "plan", town, "--epsilon", "0")
    assert code == 2 and out == "" and err.startswith("error: epsilon must be")


def test_the_command_line_warns_on_stderr_and_in_the_summary(town, tmp_path, monkeypatch, capsys):
    table = tmp_path / "agents.csv"
    rows = "\n".join(f"{i},{i % 10},1,0" for i in range(900))
    table.write_text(f"id,value,doses,beds\n{rows}\n")

    def run(name, *flags):
        return run_cli(
            monkeypatch, capsys, "solve", town, table, "-o", tmp_path / name, "--json", *flags
        )

    code, out, err = run("one", "--quiet", "--force")
    warning = plan(town).warning
    assert code == 0 and err == f"warning: {warning}\n"
    assert strict(out)["warning"] == str(warning)
    code, out, err = run("two", "--epsilon", "inf")
    assert code == 0 and err == "" and strict(out)["warning"] is None


# --- the page -----------------------------------------------------------------------------


def test_the_page_shows_what_is_printed(tmp_path, monkeypatch):
    """To refresh: run the page's commands, and paste their output into its text blocks."""
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[3] / "docs" / "plan.md"
    text = page.read_text(encoding="utf-8")
    (write,) = [b.split("```")[0] for b in text.split("```python\n") if "write_text" in b]
    exec(write, {})
    blocks = [b.split("\n```")[0] for b in text.split("```text\n")[1:]]
    follow = "next: jdpack check clinic.toml TABLE"
    large, small = plan("clinic.toml"), plan("clinic.toml", epsilon=0.05)
    ends = f"--details shows the rest\n{follow}"
    details = f"{large}\n\n{large.details}\n\n{follow}"
    assert blocks == [f"{large}\n{ends}", f"{small}\n{ends}", details]


# --- the verdict --------------------------------------------------------------------------


def first_lines(market, **more):
    return str(plan(market, delta=DELTA, **{"epsilon": 1.0, **more})).split("\n")


def test_the_verdict_comes_first_in_the_units_of_the_market():
    market = with_supply(
        a_market(3, bundle_size=1), [6000.0, 8000.0, 7000.0],
        max_demand=[1.0, 1.0, 2.0], units=["slots"] * 3, names=["a", "b", "c"], name="Town",
    )  # fmt: skip
    planned = plan(market, epsilon=1.0, delta=DELTA)
    head, alike, alone, *_ = str(planned).split("\n")
    share = math.floor(1000 * planned.share_expected) / 10
    assert head == f"Town: expect about {share}% of the best possible value"
    # What stays free is what the plan says of each resource, to three digits.
    frees = [m * r.supply for m, r in zip(planned.margins, market.resources, strict=True)]
    assert f"about {float(f'{frees[0]:.3g}'):.4g} of 6,000 to 8,000 slots in each of 2 " in alike
    assert f"about {float(f'{frees[2]:.3g}'):.4g} of 7,000 slots of c stay free" in alone
    assert planned.to_dict()["margins"] == list(planned.margins)


@pytest.mark.parametrize(
    ("supply", "more", "says"),
    [
        (300_000.0, {}, "expect about 99."),
        (3000.0, {"epsilon": 0.05}, "supply is too small; expect about"),
        (90.0, {"epsilon": 0.1}, "do not run this: noise needs more than there is"),
        (300_000.0, {"policy": "mwu-fixed"}, "public numbers do not tell what value to expect"),
        (300_000.0, {"epsilon": math.inf}, "an experiment; it protects nobody"),
    ],
)
def test_the_first_line_says_whether_to_run(supply, more, says):
    head, free, *_ = first_lines(with_supply(a_market(), [supply]), **more)
    assert says in head
    assert ("noise needs about" in free) == ("do not run" in head)


def test_noise_is_a_share_of_each_cap_in_true_units():
    """The largest code of every resource is its cap, so even noise is the same number of caps."""
    market = with_supply(a_market(2), [3000.0, 90_000.0])
    budget = Budget.split(1.0, DELTA, truncated=False)
    noise = next(s.noise for s in steps_of(Newton(), market, budget) if s.weight)
    assert isinstance(noise, Gaussian)
    caps = [
        Fraction(noise.of(2)[j]) * Fraction(unit) / Fraction(r.max_demand)
        for j, (unit, r) in enumerate(zip(market.unit_sizes, market.resources, strict=True))
    ]
    change = queries.change(market, "demand")
    even = math.sqrt(change.worst(noise.scales) / change.squares)  # if it had no shape
    planned = plan(market, epsilon=1.0, delta=DELTA)
    assert planned.round_noise[0] == pytest.approx(1.0 / even / max(market.supply_codes), rel=0.01)
    assert all(cap > 0 for cap in caps)
