"""mwu-adaptive against Algorithm 1 in the paper's own variables, and its parameters."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from jdpack import Budget, BudgetError, JdpackError, Market, MarketError, MwuAdaptive, solve
from jdpack.billboard.lines import Release
from jdpack.engines.memory import MemoryEngine
from jdpack.market.grid import DEMAND_CODE_MAX, SHARE
from jdpack.policies import registry
from jdpack.policies.fixed_rounds import ROUNDS_MAX
from jdpack.policies.mwu_adaptive import NOISES, SCALE_SHARE, STEPS_PICKED
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.accounting import Filter
from jdpack.privacy.noise import Gaussian, NoNoise, TruncatedLaplace


def a_run(m=3, b=400.0, n=2000, alpha=0.2, noise="gaussian", epsilon=2.0, seed=1):
    rng = np.random.default_rng([seed, m])
    market = Market(supply=[b] * m, max_demand=1.0, max_value=1.0, agents=n)
    return solve(
        market,
        values=rng.random(n),
        demands=rng.random((n, m)),
        epsilon=epsilon,
        delta=1e-6,
        policy=MwuAdaptive(alpha, noise),
        seed=seed,
    )


RUNS = {
    "gaussian": lambda: a_run(),
    "one resource": lambda: a_run(m=1, alpha=0.1),
    "scarce": lambda: a_run(m=2, b=60.0, alpha=0.3, epsilon=8.0),
    "truncated laplace": lambda: a_run(b=20_000.0, n=60_000, noise="truncated-laplace"),
}


@pytest.mark.parametrize("run", RUNS)
def test_it_is_algorithm_1_on_the_same_noisy_answers(run):
    """A second Algorithm 1: plain floats, supply b, step eta, prices p that sum to 2n/b.

    It sees the noisy answers of the run, turned from codes back into amounts, and must post the
    same prices, give rounds the same weights and stop in the same round.
    """
    board = RUNS[run]().billboard
    market, alpha = board.header.market, board.header.policy["alpha"]
    m, n, b = len(market.resources), market.agents, market.resources[0].supply
    unit = b / market.supply_codes[0]  # the amount that one code stands for
    pmax = 2 * n / b
    eta_sum = math.log(m + 1) / (alpha * b)
    p = [pmax / (m + 1)] * (m + 1)
    done, answers = 0.0, iter(board.releases)
    while done < eta_sum:
        scale, demand = next(answers), next(answers)
        for release, query in [(scale, "scale"), (demand, "demand")]:
            assert release.step.query == query
            posted = [market.unit_price(j, c) for j, c in enumerate(release.step.prices)]
            assert posted == pytest.approx(p[:m], rel=1e-4, abs=1e-9 * pmax)
        gradient_size = scale.answer[0] * unit  # noisy max{b, |gradient_j|}
        eta = min(alpha / b, alpha / gradient_size)
        assert demand.step.weight / SHARE == pytest.approx(eta * b, rel=1e-5)
        gradient = [b - d * unit for d in demand.answer]  # b - sum_i a_ij x_i, noisy
        delta = [min(1.0, max(-1.0, eta * g)) for g in gradient]
        hat = [pj * math.exp(-d) for pj, d in zip(p, [*delta, 0.0], strict=True)]
        p = [pmax * pj / math.fsum(hat) for pj in hat]
        done += eta
    closing = [release.step.query for release in answers]
    assert closing in (["chance", "welfare"], ["chance", "welfare", "luck"]), "it played on"


def scale_of(noise):
    return noise.scale if isinstance(noise, TruncatedLaplace) else noise.scales[0]


@pytest.mark.parametrize("run", RUNS)
def test_weights_sum_to_theta_sum_and_the_noise_follows_the_step(run):
    board = RUNS[run]().billboard
    market, budget = board.header.market, board.header.budget
    alpha, m = board.header.policy["alpha"], len(market.resources)
    theta_sum = math.log(m + 1) / alpha
    weights = [step.weight for step in board.rounds]
    assert all(0 < w / SHARE <= alpha for w in weights)
    assert theta_sum <= (board.weight + 1) / SHARE
    assert (board.weight - weights[-1]) / SHARE < theta_sum
    # Noise scale times the square root of the step is a constant. It spends the demand releases'
    # part of rho, after the closing releases, on theta_sum + alpha.
    rho = budget.rho * (0.97 - tail_bounds.chance_share(market, budget))
    squares = m * DEMAND_CODE_MAX**2  # a replaced bundle of all resources
    constant = squares * (theta_sum + alpha) / (2 * rho * (1 - SCALE_SHARE))
    for step in board.rounds:
        assert scale_of(step.noise) ** 2 * step.weight / SHARE == pytest.approx(constant, rel=1e-6)
    # A scale release uses the previous step, and the first one uses alpha.
    (first, *later) = [r.step.noise for r in board.releases if r.step.query == "scale"]
    squares = DEMAND_CODE_MAX**2
    constant = squares * (theta_sum + 2 * alpha) / (2 * rho * SCALE_SHARE)
    assert scale_of(first) ** 2 * alpha == pytest.approx(constant, rel=1e-6)
    for noise, weight in zip(later, weights, strict=False):
        assert scale_of(noise) ** 2 * weight / SHARE == pytest.approx(constant, rel=1e-6)


@pytest.mark.parametrize("run", RUNS)
def test_most_of_the_budget_is_used(run):
    result = RUNS[run]()
    budget = result.billboard.header.budget
    assert Fraction(1, 2) * Fraction(budget.rho) < result.spent.rho <= Fraction(budget.rho)


def test_truncated_noise_has_the_support_of_the_paper():
    # The exponent's noise lies in [-(1 - alpha), 1 - alpha].
    board = RUNS["truncated laplace"]().billboard
    alpha, S = board.header.policy["alpha"], board.header.market.supply_codes[0]
    for step in board.rounds:
        assert isinstance(step.noise, TruncatedLaplace)
        assert step.noise.bound / S * step.weight / SHARE == pytest.approx(1 - alpha, rel=1e-6)
    assert all(
        isinstance(r.step.noise, Gaussian) for r in board.releases if r.step.query == "scale"
    )


@pytest.mark.parametrize("noise", ["gaussian", "truncated-laplace"])
def test_without_privacy_it_is_algorithm_1_on_exact_answers(noise):
    result = a_run(noise=noise, epsilon=math.inf)
    board = result.billboard
    assert not board.header.private and result.spent.rho == math.inf
    assert {type(release.step.noise) for release in board.releases} == {NoNoise}
    engine = MemoryEngine(result.engine.agents)
    for release in board.releases[:-3]:
        if release.step.query == "demand":
            assert release.answer == engine.demand(release.step.prices)


def a_state(policy: MwuAdaptive, m: int = 2, agents: int = 1000):
    market = Market(supply=[100.0] * m, max_demand=1.0, max_value=1.0, agents=agents)
    budget = Budget.split(1.0, 1e-6, truncated=policy.truncated)
    return market, policy.start(market, budget)


def test_an_over_demanded_resource_counts_by_its_absolute_gradient():
    policy = MwuAdaptive(0.25)
    market, state = a_state(policy)
    S = market.supply_codes[0]
    for answer, theta in [(S, 0.25), (4 * S, 0.0625), (S // 9, 0.25), (-S, 0.25)]:
        after = policy.observe(state, Release(policy.step(state), (answer,)))
        step = policy.step(after)
        assert step.query == "demand"
        assert step.weight / SHARE == pytest.approx(theta, abs=2 / SHARE)
        assert step.prices == policy.step(state).prices


def test_prices_rise_with_demand_and_fall_without():
    policy = MwuAdaptive(0.25)
    market, state = a_state(policy)
    S = market.supply_codes[0]
    state = policy.observe(state, Release(policy.step(state), (S,)))
    before = policy.step(state).prices
    state = policy.observe(state, Release(policy.step(state), (2 * S, 0)))
    after = policy.step(state).prices
    weights = [math.exp(0.25), math.exp(-0.25), 1.0]
    exact = [3 * w / sum(weights) for w in weights]
    assert [a / c for a, c in zip(after, before, strict=True)] == pytest.approx(exact[:2])


def test_noise_is_cut_where_the_exponent_would_leave_its_range():
    policy = MwuAdaptive(0.25)
    market, state = a_state(policy)
    S = market.supply_codes[0]
    state = policy.observe(state, Release(policy.step(state), (S,)))
    step = policy.step(state)
    far = policy.step(policy.observe(state, Release(step, (2**60, -(2**60)))))
    edge = policy.step(policy.observe(state, Release(step, (6 * S, -4 * S))))
    assert far.prices == pytest.approx(edge.prices)
    assert far.prices[0] / far.prices[1] == pytest.approx(math.exp(2.0))


def test_prices_of_the_first_round_are_equal_and_sum_to_less_than_2nv():
    policy = MwuAdaptive()
    market, state = a_state(policy, m=4, agents=1000)
    prices = policy.step(state).prices
    assert len(set(prices)) == 1
    whole = market.unit_price(0, prices[0]) * 100.0  # for a whole supply
    assert whole == pytest.approx(2 * 1000 * 1.0 / 5, rel=1e-4)


def test_the_number_of_rounds_does_not_depend_on_n():
    rounds = []
    for n in (1000, 4000, 16000):
        board = a_run(m=2, b=n / 5, n=n, alpha=0.2, epsilon=8.0).billboard
        rounds.append(len(list(board.rounds)))
    assert max(rounds) <= 1.5 * min(rounds)


def test_the_adversary_cannot_make_it_play_longer_than_the_paper_proves():
    policy = MwuAdaptive(0.5)
    market, state = a_state(policy, m=1)
    most = policy.outlook(market, Budget.split(1.0, 1e-6, truncated=False)).rounds_at_most
    assert most == math.ceil(4 * math.log(2) / 0.25)
    rounds = 0
    while (step := policy.step(state)) is not None:
        state = policy.observe(state, Release(step, (2**64,)))
        rounds += step.weight > 0
    assert rounds == most


def test_truncated_noise_is_refused_beforehand_where_its_delta_could_run_out():
    policy = MwuAdaptive(0.1, "truncated-laplace")
    budget = Budget.split(1.0, 1e-6, truncated=True)
    small = Market(supply=[50.0], max_demand=1.0, max_value=1.0, agents=1000)
    with pytest.raises(BudgetError, match="truncated Laplace noise could cost delta"):
        policy.start(small, budget)
    policy.start(Market(supply=[50_000.0], max_demand=1.0, max_value=1.0, agents=1000), budget)
    with pytest.raises(BudgetError):  # a budget with no part for it
        policy.start(
            Market(supply=[50_000.0], max_demand=1.0, max_value=1.0, agents=1000),
            replace(budget, truncation=0.0),
        )


@pytest.mark.parametrize(
    ("delta", "covered"), [(1e-20, True), (1e-27, True), (1e-29, False), (1e-60, False)]
)
def test_what_start_accepts_the_filter_accepts(delta, covered):
    """The filter counts in grains of 2^-100; a delta near that is refused at once or covered."""
    policy = MwuAdaptive(0.5, "truncated-laplace")
    budget = Budget.split(1.0, delta, truncated=True)
    market = Market(supply=[3e5], max_demand=1.0, max_value=1.0, agents=1000)
    if not covered:
        with pytest.raises(BudgetError, match="could cost delta"):
            policy.start(market, budget)
        return
    state, filter = policy.start(market, budget), Filter(budget)
    for answer in itertools.repeat(market.supply_codes[0]):
        step = policy.step(state)
        if step is None:
            break
        filter.charge(step.noise.cost(queries.change(market, step.query)))
        state = policy.observe(state, Release(step, (answer,)))


def test_the_supply_ratio_grows_with_supply_and_epsilon():
    policy = MwuAdaptive(0.1)

    def ratio(supply: float, epsilon: float) -> float:
        market = Market(supply=[supply] * 3, max_demand=1.0, max_value=1.0, agents=10**5)
        return policy.supply_ratio(market, Budget.split(epsilon, 1e-8, truncated=False))

    assert ratio(2000.0, 1.0) == pytest.approx(2 * ratio(1000.0, 1.0), rel=1e-3)
    assert ratio(1000.0, 2.0) == pytest.approx(2 * ratio(1000.0, 1.0), rel=0.1)


def a_scaled_market(supply: float, m: int = 3) -> Market:
    return Market(supply=[supply] * m, max_demand=1.0, max_value=1.0, agents=10**6)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("supply", "epsilon"), [(2e3, 1.0), (1e4, 1.0), (1e4, 4.0), (1e5, 1.0), (1e5, 0.2)]
)
def test_without_an_alpha_it_takes_the_one_with_the_least_planned_loss(supply, epsilon, noise):
    market, policy = a_scaled_market(supply), MwuAdaptive(noise=noise)
    budget = Budget.split(epsilon, 1e-8, truncated=policy.truncated)
    alpha = policy.alpha_in(market, budget)
    assert 0.001 <= alpha <= 0.1
    s = policy.average_noise(market, budget)

    def possible(alpha: float) -> bool:
        own = MwuAdaptive(alpha, noise)
        try:
            own.start(market, budget)
        except BudgetError:
            return False
        return math.log(4.0) / alpha**2 <= STEPS_PICKED

    def planned(alpha: float) -> float:
        return 4.0 * alpha + 2.0 * (math.log(4.0) / alpha + alpha) * s * s

    steps = round(alpha * 1000)
    assert alpha == steps / 1000
    best = s * math.sqrt(math.log(4.0) / (2.0 + s * s))
    assert all(planned(best) <= planned(best * x) for x in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0))
    assert alpha >= min(best, 0.1)
    assert steps == 1 or alpha - 0.001 < best or not possible(alpha - 0.001)
    if possible(alpha):
        # Then it is the policy with that alpha, step by step.
        given, picked = (p.start(market, budget) for p in (MwuAdaptive(alpha, noise), policy))
        assert given.constants == picked.constants
        outlooks = [p.outlook(market, budget) for p in (MwuAdaptive(alpha, noise), policy)]
        assert outlooks[0] == outlooks[1]


@pytest.mark.parametrize("noise", NOISES)
def test_the_noise_of_the_average_is_the_same_for_every_alpha(noise):
    market = a_scaled_market(3e3)
    policy = MwuAdaptive(noise=noise)
    budget = Budget.split(1.0, 1e-8, truncated=policy.truncated)
    for alpha in (0.01, 0.1, 0.4):
        outlook = MwuAdaptive(alpha, noise).outlook(market, budget)
        spread = math.sqrt(outlook.variance) / outlook.weight / min(market.supply_codes)
        times = math.sqrt(2.0) if policy.truncated else 1.0
        assert times * spread == pytest.approx(policy.average_noise(market, budget), rel=1e-3)


def test_more_supply_or_budget_gives_a_smaller_alpha_until_rounds_run_out():
    def alpha(supply: float, epsilon: float) -> float:
        budget = Budget.split(epsilon, 1e-8, truncated=False)
        return MwuAdaptive().alpha_in(a_scaled_market(supply), budget)

    assert alpha(30.0, 1.0) == 0.1
    assert alpha(30.0, 1.0) > alpha(200.0, 1.0) > alpha(400.0, 1.0)
    assert alpha(200.0, 1.0) > alpha(200.0, 3.0)
    # Without noise the steps alone limit it: ln(4) / alpha^2 of them.
    least = math.ceil(1000 * math.sqrt(math.log(4) / STEPS_PICKED)) / 1000
    assert alpha(1e9, math.inf) == least
    # With many resources, the bound on the rounds does.
    own, budget = MwuAdaptive(), Budget.split(math.inf, 1e-8, truncated=False)
    many = a_scaled_market(1e6, m=200)
    rounds = own.outlook(many, budget).rounds_at_most
    assert 0.97 * ROUNDS_MAX < rounds <= ROUNDS_MAX


def test_its_own_alpha_loses_less_than_a_fixed_one():
    rng = np.random.default_rng(6)
    values, demands = rng.uniform(0, 1, 700), rng.uniform(0, 1, (700, 1))
    market = Market(supply=[100.0], max_demand=1.0, max_value=1.0, agents=700, divisible=True)

    def value(policy: MwuAdaptive) -> float:
        found = [
            solve(
                market, values=values, demands=demands, epsilon=1.0, delta=1e-6, policy=policy,
                seed=seed,
            ).allocation
            for seed in (1, 2)
        ]  # fmt: skip
        return float(values @ sum(found)) / 2.0

    picked, fixed = value(MwuAdaptive()), value(MwuAdaptive(0.1))
    assert picked > 1.05 * fixed
    # Negative control: a smaller one still than what it picks gains little.
    budget = Budget.split(1.0, 1e-6, truncated=False)
    assert value(MwuAdaptive(MwuAdaptive().alpha_in(market, budget) / 2.0)) < 1.03 * picked


@pytest.mark.parametrize("alpha", [0.0, -0.1, 0.6, 1, math.nan, "0.1"])
def test_an_alpha_that_makes_no_sense_is_refused(alpha):
    with pytest.raises(MarketError, match="alpha"):
        MwuAdaptive(alpha)


def test_an_unknown_noise_or_parameter_is_refused():
    with pytest.raises(MarketError, match="noise 'uniform'"):
        MwuAdaptive(noise="uniform")
    for data in [{}, {"name": "mwu"}, {"name": "mwu-adaptive", "beta": 1}, {"name": ["x"]}]:
        with pytest.raises(JdpackError):
            registry.from_dict(data)
