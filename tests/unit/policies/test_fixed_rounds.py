"""What mwu-fixed, dual-gd and mirror-descent have in common: T equal rounds, known beforehand."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from helpers import check_error, forbid_drawing, played
from jdpack import (
    Budget,
    BudgetError,
    DualGd,
    Market,
    MarketError,
    MirrorDescent,
    MwuFixed,
    plan,
    solve,
)
from jdpack.curator.optimum import optimum
from jdpack.market.grid import DEMAND_CODE_MAX
from jdpack.policies import registry
from jdpack.policies.fixed_rounds import ROUNDS_MAX
from jdpack.privacy import tail_bounds
from jdpack.privacy.noise import NoNoise

OF_ROUNDS = {
    "mwu-fixed": lambda rounds: MwuFixed(rounds=rounds),
    "dual-gd": lambda rounds: DualGd(rounds=rounds),
    "entropy": lambda rounds: MirrorDescent("entropy", rounds),
    "euclidean": lambda rounds: MirrorDescent("euclidean", rounds),
}
every = pytest.mark.parametrize("kind", OF_ROUNDS)


def a_market(m=3, **more):
    given = {"max_demand": 1.0, "max_value": 2.0, "agents": 5000, "bundle_size": 2}
    return Market(**{"supply": [1000.0 * (j + 1) for j in range(m)], **given, **more})


def a_budget(epsilon=1.0):
    return Budget.split(epsilon, 1e-6, truncated=False)


# --- rounds and budget --------------------------------------------------------------------


@every
@pytest.mark.parametrize("rounds", [1, 7, 1000])
@pytest.mark.parametrize("divisible", [True, False])
@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
def test_equal_rounds_use_the_whole_budget_and_no_more(kind, rounds, divisible, neighbours):
    market, budget = a_market(divisible=divisible, neighbours=neighbours), a_budget()
    policy = OF_ROUNDS[kind](rounds)
    steps = played(policy, market, budget, [(10**7,) * 3] * rounds)
    outlook = policy.outlook(market, budget)
    assert len(steps) == rounds == outlook.rounds_at_most == outlook.weight
    assert {step.weight for step in steps} == {1}
    scales = tuple(s for step in steps for s in step.noise.scales)
    assert len(set(scales)) == 1 and outlook.scales == scales and outlook.peak == scales[0]
    assert outlook.variance == pytest.approx(math.fsum(s * s for s in scales))
    # exactly: 2 (or 1) bundles of 2, at most 3 of 3 resources, and each moves by a cap at most
    shift = (3 if neighbours == "replace-one" else 2) * DEMAND_CODE_MAX**2
    spent = sum(shift / (2 * Fraction(scale) ** 2) for scale in scales)
    closing = Fraction("0.03")  # of rho, for welfare and luck; coins are measured as well
    if not divisible:
        closing += Fraction(tail_bounds.chance_share(market, budget))
    whole = Fraction(budget.rho) * (1 - closing)
    assert (1 - Fraction(1, 10**6)) * whole < spent <= whole
    assert whole == pytest.approx(tail_bounds.rounds_rho(market, budget))


@every
def test_without_privacy_there_is_no_noise(kind):
    market, policy = a_market(), OF_ROUNDS[kind](5)
    steps = played(policy, market, a_budget(math.inf), [(1, 2, 3)] * 5)
    assert [step.noise for step in steps] == [NoNoise()] * 5
    outlook = policy.outlook(market, a_budget(math.inf))
    assert (outlook.variance, outlook.peak, outlook.scales) == (0.0, 0.0, None)


@every
def test_noise_that_cannot_be_drawn_is_refused_beforehand(kind):
    with pytest.raises(BudgetError, match="does not fit in 64 bits"):
        OF_ROUNDS[kind](ROUNDS_MAX).start(a_market(), Budget(1e-6, 1e-6, 1e-20, 0.0, 1e-8))


# --- too many rounds ----------------------------------------------------------------------


@pytest.mark.parametrize("policy", [MwuFixed(0.01), DualGd(0.01)], ids=["mwu-fixed", "dual-gd"])
def test_more_rounds_than_can_be_played_are_refused_before_anything_is_drawn(policy, monkeypatch):
    forbid_drawing(monkeypatch)
    market = a_market(1, supply=[10.0], divisible=True)
    given = {"epsilon": 1.0, "delta": 1e-6, "policy": policy}
    with pytest.raises(MarketError) as planned:
        plan(market, **given)
    with pytest.raises(MarketError) as run:
        solve(market, values=np.ones(5000), demands=np.ones((5000, 1)), **given)
    # 5000 agents for 10 units: W = 499, and ln(2) (W / alpha)^2 or (W / (2 alpha))^2 rounds
    rounds = {"mwu-fixed": "1.7e+09", "dual-gd": "6.2e+08"}[policy.name]
    check_error(
        planned.value,
        [f"{policy.name} would take {rounds} rounds", "1,000,000"],
        "mwu-adaptive, whose rounds do not depend on the number of agents",
    )
    assert str(run.value) == str(planned.value)


@pytest.mark.parametrize(("kind", "width"), [(MwuFixed, 600.56), (DualGd, 1000.0)])
def test_the_most_rounds_are_played_and_more_are_refused(kind, width):
    """One resource, alpha = 1/2: 4 ln(2) W^2 rounds, or W^2, are 10^6 at these widths."""
    below, above = (
        Market(supply=[2e3], max_demand=1.0, max_value=1.0, agents=round(2e3 * (1.0 + w)))
        for w in (0.999 * width, 1.001 * width)
    )
    assert 0.997e6 < kind(0.5).outlook(below, a_budget()).rounds_at_most <= 10**6
    for refused in (kind(0.5).outlook, kind(0.5).start):
        with pytest.raises(MarketError, match="would take"):
            refused(above, a_budget())


@every
@pytest.mark.parametrize("rounds", [0, -1, ROUNDS_MAX + 1, 1.0, "9", True, np.int64(9), math.nan])
def test_a_number_of_rounds_that_makes_no_sense_is_refused(kind, rounds):
    with pytest.raises(MarketError, match="rounds must be"):
        OF_ROUNDS[kind](rounds)


@pytest.mark.parametrize("kind", [MwuFixed, DualGd])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1, math.nan, "0.1", None])
def test_an_alpha_that_makes_no_sense_is_refused(kind, alpha):
    with pytest.raises(MarketError, match="alpha must be"):
        kind(alpha)


@pytest.mark.parametrize("kind", [MwuFixed, DualGd])
def test_given_rounds_stand_in_for_those_of_alpha(kind):
    market, budget = a_market(), a_budget()
    few, many = kind(0.5, 40), kind(0.001, 40)
    assert few.outlook(market, budget) == many.outlook(market, budget)
    answers = [(10**8, 10**7, 0)] * 40
    assert played(few, market, budget, answers) == played(many, market, budget, answers)


# --- without noise ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "least"),
    [("mwu-fixed", 0.88), ("dual-gd", 0.99), ("entropy", 0.97), ("euclidean", 0.985)],
)
def test_without_noise_it_comes_near_the_optimum(kind, least):
    """The loss falls about as 1 over the square root of the number of rounds.

    A supply of 90 caps keeps one of them free, for a neighbour, even without noise.
    """
    rng, n, supply = np.random.default_rng(7), 300, [90.0, 110.0]
    values, demands = rng.uniform(0.2, 1.0, n), rng.uniform(0.2, 1.0, (n, 2))
    market = Market(supply=supply, max_demand=1.0, max_value=1.0, agents=n, divisible=True)
    best = optimum(values, demands, supply).value
    shares = []
    for rounds in (100, 2000):
        policy, exact = OF_ROUNDS[kind](rounds), {"epsilon": math.inf, "delta": 1e-6}
        result = solve(market, values=values, demands=demands, policy=policy, **exact)
        assert result.certificate.ratio_at_least <= result.welfare / best <= 1.0 + 1e-9
        shares.append(result.welfare / best + 1.0 / 90.0)
    assert shares[1] >= least
    assert 1.0 - shares[1] < 0.5 * (1.0 - shares[0])


# --- the same bits everywhere -------------------------------------------------------------


def scripted(m, rounds):
    """Answers of all sizes, by a linear congruential generator, in proportion to supply."""
    seed = itertools.accumulate(itertools.repeat(7), lambda x, _: (x * 69069 + 1) % 2**32)
    return [tuple((j + 1) * (next(seed) // 16 - 2**26) for j in range(m)) for _ in range(rounds)]


GOLDEN = {
    "mwu-fixed": (159789312065, 93551748674, 43983950274),
    "dual-gd": (51693804971, 55960034026, 20120830630),
    "entropy": (65221355831, 40652307867, 16639998871),
    "euclidean": (16414987718, 17769697390, 6389221839),
}


@every
def test_prices_are_the_same_on_every_machine(kind, monkeypatch):
    """Pinned to the last unit, and computed without C library functions or library sums."""
    market, budget = a_market(), Budget(4.0, 1e-6, 0.25, 0.0, 1e-8)

    def forbidden(*_, **__):
        raise AssertionError("not the same on every machine")

    for name in ("exp", "log", "log1p", "expm1", "pow", "log2", "exp2", "cbrt"):
        monkeypatch.setattr(math, name, forbidden)
    for name in ("exp", "log", "power", "sum", "dot", "matmul", "mean", "einsum"):
        monkeypatch.setattr(np, name, forbidden)
    steps = played(OF_ROUNDS[kind](50), market, budget, scripted(3, 49))
    assert steps[-1].prices == GOLDEN[kind]


# --- the registry -------------------------------------------------------------------------


@every
def test_the_plan_of_a_run(kind):
    market = a_market(divisible=True)
    planned = plan(market, epsilon=1.0, delta=1e-6, policy=OF_ROUNDS[kind](500))
    name = planned.policy.to_dict()["name"]
    assert planned.rounds_at_most == 500
    assert f"500 rounds of {name}" in planned.basis
    assert f"policy {name}" in planned.details
    least, most = planned.round_noise
    (first,) = played(planned.policy, market, planned.budget, [])
    assert least == most == pytest.approx(first.noise.scales[0] / max(market.supply_codes))
    assert planned.details.count(f"{100 * least:.3g}%") == 1


def test_a_plan_for_alpha_names_the_aim():
    planned = plan(a_market(), epsilon=1.0, delta=1e-6, policy=DualGd(0.2))
    assert "alpha n V = 2,000, the aim of dual-gd" in planned.basis  # 0.2 x 5000 x 2


@pytest.mark.parametrize("name", ["mwu-fixed", "dual-gd", "mirror-descent"])
def test_the_registry_reads_them_back(name):
    kind = registry.KINDS[name]
    assert kind.name == name and kind().to_dict()["name"] == name
    assert registry.from_dict({"name": name, "rounds": 9}) == kind(rounds=9)
