"""The contract of every policy: what the rest of the system takes for granted of it.

The answers that a policy sees here come from an adversary, not from a market: whatever they are,
it must be pure, stop, stay within the budget and keep to its own outlook.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from jdpack import Billboard, Budget, BudgetError, Market, MwuAdaptive, Neighbours, policies, solve
from jdpack.accounting import Cost, Filter
from jdpack.billboard import SHARE, WEIGHT_SUM_MAX, Header, Release, Seed
from jdpack.certificate import certify
from jdpack.market import PRICE_CODE_MAX
from jdpack.policies import Policy

POLICIES: list[Policy] = [
    MwuAdaptive(alpha=0.5),
    MwuAdaptive(alpha=0.3),
    MwuAdaptive(alpha=0.5, noise="truncated-laplace"),
]
SEED = Seed(bytes(16))

every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda p: str(p.to_dict()))


def play(
    policy: Policy, market: Market, budget: Budget, numbers: Iterator[int], board: Billboard
) -> Cost:
    """Run a policy against an adversary, from where the billboard stands to the end."""
    filter = Filter(budget)
    state = policy.start(market, budget)
    for release in board.releases:
        state = policy.observe(state, release)
    while (step := policy.step(state)) is not None:
        filter.charge(step.noise.cost(market.shifts(step.query)))
        answer = tuple(next(numbers) for _ in range(market.width(step.query)))
        board.post(Release(step, answer))
        state = policy.observe(state, board.releases[-1])
    return filter.spent


def an_empty_board(policy: Policy, market: Market, budget: Budget) -> Billboard:
    return Billboard(Header(market, policy.to_dict(), budget, SEED.commitment, private=False))


def text_of(board: Billboard, lines: int | None = None) -> str:
    return "".join(f"{line}\n" for line in list(board.lines())[:lines])


# --- random markets and adversaries -------------------------------------------------------------

# Supplies large enough for truncated noise to hide one agent; see its own tests for less.
SUPPLIES = st.sampled_from([3e3, 1e4, 1e9])


@st.composite
def markets(draw) -> Market:
    m = draw(st.integers(1, 4))
    return Market(
        supply=draw(st.lists(SUPPLIES, min_size=m, max_size=m)),
        max_demand=draw(st.lists(st.sampled_from([1.0, 0.2]), min_size=m, max_size=m)),
        max_value=draw(st.sampled_from([1.0, 1e3])),
        agents=draw(st.sampled_from([1, 1000, 2**31 - 1])),
        bundle_size=draw(st.integers(1, m)),
        neighbours=draw(st.sampled_from(Neighbours)),
        divisible=draw(st.booleans()),
    )


@st.composite
def budgets(draw) -> Budget:
    epsilon = draw(st.sampled_from([0.5, 1.0, 8.0]))
    delta = draw(st.sampled_from([1e-9, 1e-3]))
    return Budget.split(epsilon, delta, truncated=True)


adversaries = st.lists(
    st.integers(-(2**64), 2**64) | st.sampled_from([0, 2**16, 2**30, 2**64, -(2**64)]),
    min_size=1,
    max_size=24,
)


@every_policy
@settings(max_examples=40)
@given(market=markets(), budget=budgets(), answers=adversaries)
def test_it_stops_in_budget_and_keeps_to_its_outlook(policy, market, budget, answers):
    try:
        policy.start(market, budget)
    except BudgetError:
        assert policy.truncated  # refused beforehand, with nothing spent
        reject()
    outlook = policy.outlook(market, budget)
    board = an_empty_board(policy, market, budget)
    spent = play(policy, market, budget, cycle(answers), board)

    assert spent.rho <= Fraction(budget.rho)
    assert spent.delta <= Fraction(budget.truncation)
    assert spent.delta == 0 or policy.truncated

    rounds = list(board.rounds)
    assert 1 <= len(rounds) <= outlook.rounds_at_most
    noise = [Fraction(step.weight) * Fraction(step.noise.scale) for step in rounds]
    hair = 1 + Fraction(1, 10**12)  # the certificate leaves as much for float rounding
    assert sum(x * x for x in noise) <= Fraction(outlook.variance) * hair
    assert max(noise) <= Fraction(outlook.peak) * hair

    for step in (release.step for release in board.releases):
        assert len(step.prices) == len(market.resources)
        assert all(type(p) is int and 0 <= p <= PRICE_CODE_MAX for p in step.prices)
        assert step.noise.scale > 0
        assert type(step.weight) is int
        assert step.weight >= 0
        assert step.weight == 0 or step.query == "demand"
    assert 0 < board.weight <= WEIGHT_SUM_MAX

    certificate = certify(board)
    assert 0 <= certificate.factor <= SHARE
    assert all(bound >= 0.0 for bound in certificate.load_at_most)
    assert Billboard.from_text(text_of(board)).releases == board.releases


@every_policy
@settings(max_examples=10)
@given(market=markets(), answers=adversaries)
def test_it_is_pure_and_resumes_at_any_line(policy, market, answers):
    budget = Budget.split(8.0, 1e-3, truncated=True)
    board = an_empty_board(policy, market, budget)
    play(policy, market, budget, cycle(answers), board)
    whole = text_of(board)

    # The same billboard, the same steps: from another object, with other runs in between.
    again, other = policies.from_dict(policy.to_dict()), policy
    left, right = again.start(market, budget), other.start(market, budget)
    noisy = other.start(market, budget)
    for release in board.releases:
        assert again.step(left) == other.step(right) == other.step(right) == release.step
        fresh = other.step(noisy)
        if fresh is not None:
            noisy = other.observe(noisy, Release(fresh, (7,) * market.width(fresh.query)))
        left = again.observe(left, release)
        other.observe(right, replace(release, answer=tuple(-a for a in release.answer)))
        right = other.observe(right, release)
    assert again.step(left) is None
    assert other.step(right) is None

    # Reading any beginning back and going on with the same answers ends in the same text.
    used = 0
    beginnings = range(0, len(board.releases), max(1, len(board.releases) // 8))
    for length in range(len(board.releases)):
        if length in beginnings:
            part = Billboard.from_text(text_of(board, length + 1))
            numbers = cycle(answers)
            for _ in range(used):
                next(numbers)
            play(policy, market, budget, numbers, part)
            assert text_of(part) == whole
        used += len(board.releases[length].answer)


@every_policy
def test_it_survives_its_dict(policy):
    again = policies.from_dict(policy.to_dict())
    assert again == policy
    assert again.to_dict() == policy.to_dict()


# --- markets at the edge ------------------------------------------------------------------------

EDGES = {
    "one resource": ([300.0], np.ones((1000, 1)), np.linspace(0, 1, 1000)),
    "one agent": ([4.0, 4.0], np.ones((1, 2)), np.ones(1)),
    "slack resources": ([1e6, 400.0], np.ones((1000, 2)), np.linspace(0, 1, 1000)),
    "nothing is scarce": ([1e7, 1e8], np.ones((1000, 2)), np.linspace(0, 1, 1000)),
    "tied values": ([300.0, 300.0], np.ones((1000, 2)), np.full(1000, 0.5)),
    "nobody wants anything": ([300.0], np.zeros((1000, 1)), np.ones(1000)),
    "nothing is worth anything": ([300.0], np.ones((1000, 1)), np.zeros(1000)),
}


@pytest.mark.parametrize("policy", [p for p in POLICIES if not p.truncated], ids=str)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("divisible", [False, True])
def test_it_works_at_the_edge(policy, edge, divisible):
    supply, demands, values = EDGES[edge]
    market = Market(
        supply=supply, max_demand=1.0, max_value=1.0, agents=len(values), divisible=divisible
    )
    result = solve(
        market, values=values, demands=demands, epsilon=4.0, delta=1e-6, policy=policy, seed=3
    )
    assert result.spent.rho <= Fraction(result.billboard.header.budget.rho)
    assert max(result.loads) <= 1.0
    assert result.private.dropped == 0
    taken = result.allocation @ demands
    assert all(taken <= np.array(supply))
    if edge == "nobody wants anything":
        assert result.certificate.factor > 0
        assert result.welfare > 0.0
    if edge == "nothing is scarce" and divisible:
        assert result.welfare > 0.5 * values.sum()
