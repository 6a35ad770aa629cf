"""Newton: few rounds, little loss with and without noise, and more than mwu-adaptive gives."""

import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "experiments"))

import beta_parts
import families
from jdpack import Market, MarketError, MwuAdaptive, Newton, solve, verify
from jdpack.planning.headroom import floor, margin_of
from jdpack.policies import newton, registry
from jdpack.policies.base import budget_of
from jdpack.policies.newton_trends import Trends
from jdpack.privacy import queries, tail_bounds

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
        ("large", 0.003),
        ("tied", 0.002),
        ("identical", 0.002),
        ("groups", 0.0005),  # six of eleven resources are slack
        ("few-binding", 0.001),
    ],
)
def test_without_privacy_it_solves_the_linear_program(family, most):
    """One cap of every supply is kept free, for a neighbour. That leaves another program."""
    agents = instance(family, 5000)
    loss, (run,) = losses(agents, divisible=True, epsilon=math.inf, seeds=1)
    caps = np.array([r.max_demand for r in run.billboard.header.market.resources])
    left = replace(agents, supply=agents.supply - caps).optimum().value
    assert loss >= -1e-9 and run.welfare >= (1.0 - most) * left
    assert not run.billboard.header.private


@pytest.mark.parametrize(
    ("family", "epsilon"),
    [("dense", 1.0), ("correlated", 3.0), ("mixed", 0.3), ("sparse", 4.0), ("assignment", 3.0)],
)
@pytest.mark.parametrize(("divisible", "times"), [(True, 1.0), (False, 1.3)])
def test_privacy_costs_little_more_than_its_margin(family, epsilon, divisible, times):
    agents = instance(family, 10_000)
    loss, runs = losses(agents, divisible=divisible, epsilon=epsilon, seeds=4)
    market, budget = runs[0].billboard.header.market, runs[0].billboard.header.budget
    # The margin weighs resources by a guess of their prices; the floor does not.
    margin = max(floor(market, budget), margin_of(market, budget, Newton()))
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

    market, best, aimed = agents.market(divisible=True), agents.optimum().value, Newton._targets
    monkeypatch.setattr(Newton, "_targets", lambda *given: 0.5 * aimed(*given))
    run = solve(market, **agents.solve_input(), epsilon=1.0, delta=DELTA, seed=0)
    least = floor(market, run.billboard.header.budget)
    assert 1.0 - run.welfare / best > 2.0 * least + 0.005


def test_all_of_the_budget_is_spent_and_no_more():
    agents = instance("dense", 2000)
    for divisible in (True, False):
        run = solve(
            agents.market(divisible=divisible), **agents.solve_input(), epsilon=3.0, delta=DELTA
        )
        spent = float(run.spent.rho) / run.billboard.header.budget.rho
        luck = any(release.step.query == "luck" for release in run.billboard.releases)
        assert spent == pytest.approx(1.0 if luck else 0.99, abs=1e-6) and spent <= 1.0


def test_the_schedule_is_what_the_outlook_says():
    agents = instance("dense", 2000)
    run = solve(agents.market(divisible=True), **agents.solve_input(), epsilon=1.0, delta=DELTA)
    header, rounds = run.billboard.header, list(run.billboard.rounds)
    outlook = Newton().outlook(header.market, header.budget)
    assert sum(step.weight for step in rounds) == outlook.weight == run.billboard.weight
    # Whatever the shape, a round costs what its scale in the outlook says.
    change = queries.change(header.market, "demand")
    for step, scale in zip(rounds, outlook.scales, strict=True):
        even = change.worst((scale,))
        assert change.worst(step.noise.scales) == pytest.approx(even, rel=1e-12)
    weighted = [step.weight * s for step, s in zip(rounds, outlook.scales, strict=True)]
    assert sum(x * x for x in weighted) == pytest.approx(outlook.variance, rel=1e-12)
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
    agents, observed = instance("identical", 20_000), []
    _, runs = losses(agents, divisible=True, epsilon=3.0, seeds=4)
    state = Newton().start(runs[0].billboard.header.market, runs[0].billboard.header.budget)
    for run in runs:
        scarce = int(np.argmin(run.certificate.factors))
        load = 1.0 / (run.certificate.factors[scarce] / 2**24) - state.radii[scarce]
        observed.append(load / state.targets[scarce])
    assert np.mean(observed) > 1.02


@pytest.mark.parametrize("bundle_size", [1, 3])
def test_a_little_more_budget_changes_the_first_targets_a_little(bundle_size):
    """A cliff here would make the loss jump as epsilon grows."""
    market = Market(
        supply=[400.0, 300.0, 200.0], max_demand=1.0, max_value=1.0, agents=5000,
        bundle_size=bundle_size, divisible=True,
    )  # fmt: skip
    epsilons = np.geomspace(0.1, 2.0, 120)
    states = [Newton().start(market, budget_of(Newton(), market, e, DELTA)) for e in epsilons]
    targets = np.array([state.targets for state in states])
    margins = np.array([state.radii for state in states]).mean(axis=1)
    assert margins[0] > 0.6 and margins[-1] < 0.15
    assert float(np.abs(np.diff(targets, axis=0)).max()) < 0.12
    assert targets[-1] == pytest.approx(1.0 - states[-1].radii)


@pytest.mark.parametrize("divisible", [True, False])
def test_supplies_over_decades_are_sold(divisible):
    """Noise in the gauge made the market look stiff, and half of the supply stayed unsold."""
    agents = instance("decades", 10_000)
    _, runs = losses(agents, divisible=divisible, epsilon=1.6, seeds=4)
    best = agents.optimum().value
    assert max(1.0 - run.welfare / best for run in runs) < 0.32


# --- more budget, more supply, more kinds of goods ----------------------------------------


def mean_losses(family, epsilons, n=6000, *, divisible):
    agents = instance(family, n)
    return [
        losses(agents, divisible=divisible, epsilon=epsilon, seeds=3)[0] for epsilon in epsilons
    ]


def falls(found):
    """Whether each loss is at most the one before, up to a little chance."""
    return all(b <= a + 0.01 for a, b in itertools.pairwise(found)) and found[-1] < found[0] - 0.02


@pytest.mark.filterwarnings("ignore::jdpack.SupplyWarning")
@pytest.mark.parametrize("family", ["dense", "single", "zipf"])
@pytest.mark.parametrize("divisible", [True, False])
def test_the_loss_falls_as_epsilon_grows(family, divisible):
    found = mean_losses(family, (0.5, 1.0, 2.0, 4.0), divisible=divisible)
    assert falls(found), found


def test_a_loss_that_grows_with_epsilon_would_be_seen():
    """Negative control: what was measured before newton saw that a market is empty."""
    assert not falls([0.47, 0.78, 0.62, 0.47, 0.35, 0.20])
    assert not falls([0.1, 0.1, 0.1])


@pytest.mark.filterwarnings("ignore::jdpack.SupplyWarning")
@pytest.mark.parametrize("family", ["dense", "sparse", "single", "zipf", "mixed"])
def test_divisible_goods_never_get_less(family):
    agents = instance(family, 6000)
    whole, _ = losses(agents, divisible=False, epsilon=2.0, seeds=2)
    parts, _ = losses(agents, divisible=True, epsilon=2.0, seeds=2)
    assert parts <= whole + 0.003


# --- supplies of very different size ------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_noise_that_drowns_the_value_costs_nothing(monkeypatch, epsilon):
    """The last losses are those of a policy that believes the answer, whatever its noise."""
    agents = instance("loose-values", 10_000)
    most = 1.3 * agents.floor(agents.price_shares(), epsilon, DELTA) + 0.003
    assert losses(agents, divisible=True, epsilon=epsilon, seeds=3)[0] < most
    monkeypatch.setattr(newton, "_UNSURE", 1e6)
    assert losses(agents, divisible=True, epsilon=epsilon, seeds=3)[0] > most


def test_prices_start_low_where_noise_hides_whether_they_are_too_high(monkeypatch):
    """The last losses are those of a policy that starts as high as anywhere else."""
    agents = instance("jobs", 10_000)
    low, _ = losses(agents, divisible=True, epsilon=1.0, seeds=3)
    monkeypatch.setattr(newton, "_DEAF", math.inf)
    high, _ = losses(agents, divisible=True, epsilon=1.0, seeds=3)
    assert low < 0.87 and high > low + 0.05


@pytest.mark.parametrize(("family", "epsilon"), [("gpu", 4.0), ("shelves", 1.0)])
def test_rounds_correct_what_noise_in_a_gauge_got_wrong(monkeypatch, family, epsilon):
    """The last losses are those of a policy that believes the gauge. See `newton_trends`."""
    agents = instance(family, 10_000)
    corrected, _ = losses(agents, divisible=False, epsilon=epsilon, seeds=6)
    monkeypatch.setattr(Trends, "corrected", lambda trends, model, prices, crossed: model)
    believed, _ = losses(agents, divisible=False, epsilon=epsilon, seeds=6)
    assert corrected < 0.95 * believed


def test_prices_follow_what_little_noise_shows(monkeypatch):
    """A filter with the memory that suits large noise lags behind, and misses the targets."""
    agents = instance("few-binding", 100_000)

    def loss():
        return losses(agents, divisible=True, epsilon=math.inf, seeds=1)[0]

    now = loss()
    monkeypatch.setattr(newton, "_DRIFT", 0.0)
    assert now < 0.8 * loss()


def test_all_prices_rise_further_for_one_resource_where_that_costs_little():
    """Most of the value is in a few agents whom prices do not touch, but scaling takes from all.

    With no more than is made up where prices are as high as the value, it was 2.3 F.
    """
    agents = instance("heavy", 10_000)
    loss, _ = losses(agents, divisible=True, epsilon=0.5, seeds=6)
    assert loss < 2.1 * agents.floor(agents.price_shares(), 0.5, DELTA)


@pytest.mark.parametrize("divisible", [True, False])
def test_what_one_resource_owes_does_not_empty_the_market(divisible):
    """A small group is cheap at first, takes too much, and cannot give it back in a few rounds."""
    agents = instance("groups", 10_000)
    loss, runs = losses(agents, divisible=divisible, epsilon=4.0, seeds=3)
    assert loss < (0.02 if divisible else 0.04)
    for run in runs:
        supply = run.billboard.header.market.supply_codes[6]
        counted = [r.answer[6] / supply for r in run.billboard.releases if r.step.weight]
        assert min(counted) > 0.4  # the largest group keeps buying


def test_a_slack_resource_becomes_free():
    agents = instance("groups", 10_000)
    _, (run,) = losses(agents, divisible=True, epsilon=4.0, seeds=1)
    last, sizes = run.billboard.releases, run.billboard.header.market.supply_codes
    prices = next(r.step.prices for r in reversed(last) if r.step.weight)
    worth = [price * size for price, size in zip(prices, sizes, strict=True)]
    assert sum(worth[:6]) < 0.001 * sum(worth)


def decades(m=30, n=60_000, seed=5):
    """One resource per option; supplies span three decades, and twice as much is asked for."""
    rng = np.random.default_rng(seed)
    supply = np.geomspace(30.0, 30_000.0, m)
    counts = np.maximum(1, np.round(n * supply / supply.sum())).astype(int)
    wanted = np.repeat(np.arange(m), counts)
    demands = np.zeros((len(wanted), m))
    demands[np.arange(len(wanted)), wanted] = 1.0
    supply = np.maximum(1.0, 0.5 * counts)
    values = rng.random(len(wanted))
    return supply, values, demands, wanted


@pytest.mark.parametrize("divisible", [True, False])
def test_a_small_supply_does_not_cost_the_large_ones_anything(divisible):
    """With one grid and one relative noise for all supplies, most of the optimum was lost."""
    supply, values, demands, wanted = decades()
    market = Market(
        supply=supply.tolist(), max_demand=1.0, max_value=1.0, agents=len(values), bundle_size=1,
        divisible=divisible,
    )  # fmt: skip
    best = sum(
        np.sort(values[wanted == j])[::-1][: int(b)].sum() for j, b in enumerate(supply.tolist())
    )
    run = solve(market, values=values, demands=demands, epsilon=1.0, delta=DELTA, seed=1)
    assert max(run.loads) <= 1.0
    assert run.welfare >= 0.9 * best
    # The noise of an even relative shape would exceed the smallest supply, and so all of them.
    budget = run.billboard.header.budget
    assert floor(market, budget) > 1.0


# --- parts of beta --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("divisible", "epsilon", "times"), [(True, 1.0, 0.97), (False, 1.0, 0.97), (False, 8.0, 0.975)]
)
def test_beta_goes_to_what_binds(divisible, epsilon, times):
    """Less is kept free of what binds. At a large epsilon coins take most of it."""
    agents = beta_parts.some_bind(12, 1, 2)(12_000, np.random.default_rng(2))
    market, records = agents.market(divisible=divisible), agents.solve_input()
    kept, worth = {}, {}
    for parts in ("by worth", "even"):
        policy = Newton(beta_parts=parts)
        run = solve(market, **records, epsilon=epsilon, delta=DELTA, seed=1, policy=policy)
        board = run.billboard
        assert max(run.loads) <= 1.0
        assert ("beta_parts" in board.header.policy) == (parts == "by worth")
        assert registry.from_dict(board.header.policy) == policy
        verify(board)
        # The policy aims by the parts that the certificate will use.
        state = policy.start(market, board.header.budget)
        for release in board.releases:
            if release.step.weight:
                break
            state = policy.observe(state, release)
        first = (release.step.prices, release.step.noise) if parts == "by worth" else ()
        assert state.tails == tail_bounds.tails(market, board.header.budget, *first)
        kept[parts] = state.radii[:2].mean()
        worth[parts] = run.welfare
    assert kept["by worth"] < times * kept["even"]
    assert worth["by worth"] > worth["even"]


def test_parts_of_beta_that_are_none_are_refused():
    with pytest.raises(MarketError, match="beta_parts must be 'by worth' or 'even', not 'odd'"):
        Newton(beta_parts="odd")
