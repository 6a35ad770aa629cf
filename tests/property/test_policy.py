"""The contract of every policy: what the rest of the system assumes about it.

Here the answers come from an adversary, not from a market. Whatever they are, a policy must be
pure, stop, stay within the budget and keep to its own outlook.
"""

import functools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import chain, cycle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdpack import (
    Billboard,
    Budget,
    BudgetError,
    DualGd,
    Market,
    MarketError,
    MirrorDescent,
    MwuAdaptive,
    MwuFixed,
    MwuOnline,
    Neighbours,
    Newton,
    solve,
)
from jdpack.billboard.lines import WEIGHT_SUM_MAX, Header, Release, Seed, Step
from jdpack.billboard.schema import ANSWER_MAX
from jdpack.common.batches import Batch
from jdpack.market.grid import PRICE_CODE_MAX, SHARE
from jdpack.policies import registry
from jdpack.policies.base import Policy
from jdpack.policies.newton import MATRIX_MAX
from jdpack.privacy import queries
from jdpack.privacy.accounting import Cost, Filter
from jdpack.privacy.noise import deviation
from jdpack.protocol import closing
from jdpack.protocol.certificate import certify

SEED = Seed(bytes(16))


def warm(market: Market) -> Newton:
    """Starting prices from 0 to more than anybody could pay."""
    prices = cycle([0.3 * market.max_value, 0.0, 1e200, 1e-200])
    return Newton(tuple(next(prices) for _ in market.resources))


KINDS: dict[str, Callable[[Market], Policy]] = {
    "mwu-adaptive 0.5": lambda market: MwuAdaptive(alpha=0.5),
    "mwu-adaptive 0.3": lambda market: MwuAdaptive(alpha=0.3),
    "truncated": lambda market: MwuAdaptive(alpha=0.5, noise="truncated-laplace"),
    "newton": lambda market: Newton(),
    "warm newton": warm,
    "mwu-online": lambda market: MwuOnline(batch=max(1, market.agents // 20)),
    "one by one": lambda market: MwuOnline(batch=-(-market.agents // 1000)),
    "local": lambda market: MwuOnline(batch=max(1, market.agents // 20), local=True),
    "mwu-fixed": lambda market: MwuFixed(rounds=30),
    "dual-gd": lambda market: DualGd(rounds=30),
    "dual-gd of one round": lambda market: DualGd(rounds=1),
    "entropy": lambda market: MirrorDescent("entropy", 30),
    "euclidean": lambda market: MirrorDescent("euclidean", 30),
}
BY_ROUNDS = ["mwu-fixed", "dual-gd", "dual-gd of one round", "entropy", "euclidean"]
"""Policies with a fixed number of rounds; few rounds here."""
SOLVED = ["mwu-adaptive 0.5", "newton", "mwu-online", *BY_ROUNDS]
"""At least one of every policy and potential, for whole runs."""
every_kind = pytest.mark.parametrize("kind", KINDS)


def play(
    policy: Policy, market: Market, budget: Budget, numbers: Iterator[int], board: Billboard
) -> Cost:
    """Run a policy against an adversary, from the current billboard to the end."""
    filter = Filter(budget)
    state = policy.start(market, budget)
    for release in board.releases:
        state = policy.observe(state, release)
    while (step := policy.step(state)) is not None:
        board.post(answer(step, filter, numbers, board))
        state = policy.observe(state, board.releases[-1])
    return filter.spent


def close(budget: Budget, spent: Cost, numbers: Iterator[int], board: Billboard) -> Cost:
    """The closing releases, from the same adversary and the remaining budget."""
    filter = Filter(budget, spent)
    while (step := closing.step(board)) is not None:
        board.post(answer(step, filter, numbers, board))
    return filter.spent


def answer(step: Step, filter: Filter, numbers: Iterator[int], board: Billboard) -> Release:
    width = queries.width(board.header.market, step.query)
    cost = step.noise.cost(closing.change(board, step.query), width)
    filter.charge(cost, step.batch, step.span)
    return Release(step, tuple(next(numbers) for _ in range(width)))


def an_empty_board(policy: Policy, market: Market, budget: Budget) -> Billboard:
    return Billboard(Header(market, policy.to_dict(), budget, SEED.commitment, private=False))


def text_of(board: Billboard, lines: int | None = None) -> str:
    return "".join(f"{line}\n" for line in list(board.lines())[:lines])


# --- random markets and adversaries -------------------------------------------------------------

LARGE = st.sampled_from([3e3, 1e4, 1e9])
"""Supplies large enough for truncated noise to hide one agent; its own tests use smaller ones."""
ANY = st.sampled_from([1.0, 7.3, 3e3, 1e9])


@st.composite
def markets(draw, supplies=ANY) -> Market:
    m = draw(st.integers(1, 4))
    return Market(
        supply=draw(st.lists(supplies, min_size=m, max_size=m)),
        max_demand=draw(st.lists(st.sampled_from([1.0, 0.2]), min_size=m, max_size=m)),
        max_value=draw(st.sampled_from([1.0, 1e3])),
        agents=draw(st.sampled_from([1, 1000, 2**31 - 1])),
        bundle_size=draw(st.integers(1, m)),
        options=draw(st.sampled_from([1, 3])),
        neighbours=draw(st.sampled_from(Neighbours)),
        divisible=draw(st.booleans()),
    )


@functools.cache
def a_budget(epsilon: float, delta: float) -> Budget:
    return Budget.split(epsilon, delta, truncated=True)


budgets = st.builds(
    a_budget, st.sampled_from([1e-3, 0.5, 1.0, 10.0, math.inf]), st.sampled_from([1e-9, 1e-3])
)
adversaries = st.lists(
    st.integers(-ANSWER_MAX, ANSWER_MAX)
    | st.sampled_from([0, 1, 2**16, 2**30, 2**40, ANSWER_MAX, -ANSWER_MAX]),
    min_size=1,
    max_size=24,
)


def suited(kind: str, market: Market) -> Market:
    """Local noise needs all agents to be present, so the same market with replace-one."""
    if kind != "local" or market.neighbours is Neighbours.REPLACE_ONE:
        return market
    with pytest.raises(MarketError, match="that they take part"):
        KINDS[kind](market).start(market, a_budget(1.0, 1e-6))
    privacy = {"neighbours": Neighbours.REPLACE_ONE.value}
    return Market.from_dict({**market.to_dict(), "privacy": privacy})


def check_run(policy: Policy, market: Market, budget: Budget, numbers: Iterator[int]) -> Billboard:
    """Check all of the contract that one run can show."""
    outlook = policy.outlook(market, budget)
    board = an_empty_board(policy, market, budget)
    spent = play(policy, market, budget, numbers, board)

    rounds = list(board.rounds)
    demands = sum(release.step.query == "demand" for release in board.releases)
    assert 1 <= len(rounds) <= demands <= outlook.rounds_at_most
    if not board.header.local and rounds[-1].batch is not None:
        assert rounds[-1].span == len(rounds)  # the sum of all batches, on which the load rests
        resting = rounds[-1:]
    else:
        assert {step.span for step in rounds} == {1}
        resting = rounds
    noise = [Fraction(step.weight) * scales_of(step)[0] for step in resting]
    squares = sum(x * x for x in noise)
    if board.header.local:  # every agent adds its own
        assert outlook.scales is None and len(set(noise)) == 1
        squares = market.agents * noise[0] ** 2
    hair = 1 + Fraction(1, 10**12)  # the certificate allows this much for float rounding
    shaped = any(len(scales_of(step)) > 1 for step in rounds)
    assert not shaped or (isinstance(policy, Newton) and outlook.scales is not None)
    if not shaped:
        assert squares <= Fraction(outlook.variance) * hair
        assert max(noise) <= Fraction(outlook.peak) * hair
    if outlook.scales is not None:  # then weights and scales are fixed before the first round
        check_scales(market, resting, outlook.scales)
        assert shaped or squares * hair >= Fraction(outlook.variance)
        assert board.weight == outlook.weight
    assert 0 < board.weight <= min(outlook.weight, WEIGHT_SUM_MAX)
    batches = [step.batch for step in rounds]
    expected = outlook.batches and [Batch(i, outlook.batches) for i in range(outlook.batches)]
    assert batches == (expected or [None] * len(rounds))  # all agents are asked, each once

    for step in (release.step for release in board.releases):
        assert len(step.prices) == len(market.resources)
        assert all(type(p) is int and 0 <= p <= PRICE_CODE_MAX for p in step.prices)
        assert min(scales_of(step)) > 0 or budget.epsilon == math.inf
        assert type(step.weight) is int
        assert step.weight >= 0
        assert step.weight == 0 or step.query == "demand"

    spent = close(budget, spent, numbers, board)
    assert spent.rho <= budget.rho
    assert spent.delta <= Fraction(budget.truncation)
    assert spent.delta == 0 or policy.truncated
    if not isinstance(policy, MwuAdaptive) and budget.epsilon != math.inf:
        assert spent.rho > 0.95 * Fraction(budget.rho)

    certificate = certify(board)
    assert all(type(f) is int and 0 <= f <= SHARE for f in certificate.factors)
    assert all(0.0 <= bound <= 1.0 for bound in certificate.load_at_most)
    assert 0.0 <= certificate.welfare_at_least < math.inf
    unknown = policy.truncated or isinstance(policy, MwuOnline)  # no bound on the optimum
    assert (certificate.optimum_at_most is None) == unknown
    if certificate.optimum_at_most is not None:
        assert 0.0 <= certificate.optimum_at_most < math.inf
        assert 0.0 <= certificate.ratio_at_least <= 1.0
    assert Billboard.from_text(text_of(board)).releases == board.releases
    return board


def scales_of(step: Step) -> tuple[Fraction, ...]:
    return tuple(Fraction(scale) for scale in deviation(step.noise))


def check_scales(market: Market, rounds: list[Step], scales: tuple[float, ...]) -> None:
    """One shape for all rounds that count, and each costs what it would cost without a shape."""
    change, first = queries.change(market, "demand"), deviation(rounds[0].noise)
    for step, scale in zip(rounds, scales, strict=True):
        own = deviation(step.noise)
        if len(own) == 1:
            assert own == (scale,)
        ratio = scale / scales[0]
        assert own == pytest.approx([ratio * s for s in first], rel=1e-12)
        assert change.worst(own) == pytest.approx(change.worst((scale,)), rel=1e-12)


@every_kind
@settings(max_examples=30)
@given(data=st.data(), budget=budgets, answers=adversaries)
def test_it_stops_in_budget_and_keeps_to_its_outlook(kind, data, budget, answers):
    market = suited(kind, data.draw(markets(LARGE if kind == "truncated" else ANY)))
    policy = KINDS[kind](market)
    try:
        policy.start(market, budget)
    except BudgetError:
        assert kind == "truncated"  # refused before anything is spent
        return
    check_run(policy, market, budget, cycle(answers))


@pytest.mark.parametrize("kind", ["newton", "warm newton", *BY_ROUNDS])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, math.inf])
@pytest.mark.parametrize("size", [0, 20, 40, 50, 64])
def test_random_answers_of_any_size_never_stop_it(kind, epsilon, size):
    """Random signs and magnitudes up to the largest answer: no NaN, no failed factorisation."""
    rng = np.random.default_rng([size, len(kind)])

    def numbers() -> Iterator[int]:
        while True:
            yield int(rng.choice([-1, 1])) * int(2.0 ** rng.uniform(0, size))

    for m in (1, 3, 9):
        market = Market(
            supply=(10.0 ** rng.uniform(-3, 6, m)).tolist(),
            max_demand=1e-3,
            max_value=2.5,
            agents=int(rng.choice([1, 10**4, 10**9])),
            divisible=bool(rng.integers(2)),
        )
        check_run(KINDS[kind](market), market, a_budget(epsilon, 1e-6), numbers())


@pytest.mark.parametrize("divisible", [True, False])
def test_newton_survives_curvature_that_cannot_be(divisible):
    """All numbers of a release at one extreme, those of the next at the other, or zero."""
    budget = a_budget(1.0, 1e-6)
    for m in (3, 5, 9):
        market = Market(
            supply=[10.0**j for j in range(m)],
            max_demand=1.0,
            max_value=1.0,
            agents=10**6,
            divisible=divisible,
        )
        for policy in (Newton(), warm(market)):
            board = check_run(policy, market, budget, cycle([0]))
            widths = [queries.width(market, release.step.query) for release in board.releases]
            for ends in [(ANSWER_MAX, -ANSWER_MAX), (-ANSWER_MAX, ANSWER_MAX), (0, ANSWER_MAX)]:
                pairs = zip(cycle(ends), widths, strict=False)
                numbers = [end for end, width in pairs for _ in range(width)]
                # A run that is thinned asks for luck as well.
                check_run(policy, market, budget, chain(numbers, cycle([0])))


@pytest.mark.parametrize("kind", ["warm newton", *SOLVED])
def test_many_resources(kind):
    market = Market(
        supply=[50.0 + j for j in range(MATRIX_MAX + 36)],
        max_demand=1.0,
        max_value=1.0,
        agents=10_000,
        bundle_size=3,
    )
    rng = np.random.default_rng(4)
    numbers = iter(lambda: int(rng.integers(-(2**50), 2**50)), None)
    board = check_run(KINDS[kind](market), market, a_budget(1.0, 1e-6), numbers)
    assert not any(release.step.query == "curvature" for release in board.releases)


@every_kind
@settings(max_examples=3)
@given(market=markets(LARGE), answers=adversaries)
def test_it_is_pure_and_resumes_at_any_line(kind, market, answers):
    market, budget = suited(kind, market), a_budget(8.0, 1e-3)
    policy = KINDS[kind](market)
    board = an_empty_board(policy, market, budget)
    play(policy, market, budget, cycle(answers), board)
    whole = text_of(board)

    # The same billboard gives the same steps: from another object, with other runs in between.
    again, other = registry.from_dict(policy.to_dict()), policy
    left, right = again.start(market, budget), other.start(market, budget)
    noisy = other.start(market, budget)
    for release in board.releases:
        assert again.step(left) == other.step(right) == other.step(right) == release.step
        fresh = other.step(noisy)
        if fresh is not None:
            noisy = other.observe(noisy, Release(fresh, (7,) * queries.width(market, fresh.query)))
        left = again.observe(left, release)
        other.observe(right, replace(release, answer=tuple(-a for a in release.answer)))
        right = other.observe(right, release)
    assert again.step(left) is None
    assert other.step(right) is None

    # Reading back any prefix and resuming with the same answers ends in the same text.
    used = 0
    beginnings = range(0, len(board.releases), max(1, len(board.releases) // 5))
    for length in range(len(board.releases)):
        if length in beginnings:
            part = Billboard.from_text(text_of(board, length + 1))
            numbers = cycle(answers)
            for _ in range(used):
                next(numbers)
            play(registry.from_dict(part.header.policy), market, budget, numbers, part)
            assert text_of(part) == whole
        used += len(board.releases[length].answer)


def test_every_policy_is_held_to_the_contract():
    market = Market(supply=[2.0] * 3, max_demand=1.0, max_value=1.0, agents=9)
    tested = {KINDS[kind](market).to_dict()["name"] for kind in KINDS}
    assert tested == set(registry.KINDS)
    assert {KINDS[kind](market).to_dict()["name"] for kind in SOLVED} == tested


@every_kind
def test_it_survives_its_dict(kind):
    policy = KINDS[kind](Market(supply=[2.0] * 3, max_demand=1.0, max_value=1.0, agents=9))
    again = registry.from_dict(policy.to_dict())
    assert again == policy
    assert again.to_dict() == policy.to_dict()


# --- markets at the edge ------------------------------------------------------------------------

N = 1000
UP = np.linspace(0, 1, N)
EDGES = {
    "one resource": ([300.0], np.ones((N, 1)), UP),
    "one agent": ([4.0, 4.0], np.ones((1, 2)), np.ones(1)),
    "slack resources": ([1e6, 400.0], np.ones((N, 2)), UP),
    "nothing is scarce": ([1e7, 1e8], np.ones((N, 2)), UP),
    "tied values": ([300.0, 300.0], np.ones((N, 2)), np.full(N, 0.5)),
    "nobody wants anything": ([300.0], np.zeros((N, 1)), np.ones(N)),
    "nothing is worth anything": ([300.0], np.ones((N, 1)), np.zeros(N)),
    "supply for one": ([1.0, 1.0], np.ones((N, 2)), UP),
    "supplies far apart": ([1e6, 1.0, 40.0], np.ones((N, 3)), UP),
    "many resources": ([300.0] * 100, np.tile(np.eye(100), (10, 1)), UP),
}
EPSILONS = {True: [1e-3, 10.0], False: [0.3, math.inf]}  # of divisible and indivisible goods


@pytest.mark.filterwarnings("ignore::jdpack.SupplyWarning")
@pytest.mark.parametrize("kind", SOLVED)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("divisible", [False, True])
def test_it_works_at_the_edge(kind, edge, divisible):
    supply, demands, values = EDGES[edge]
    for number, epsilon in enumerate(EPSILONS[divisible]):
        market = Market(
            supply=supply,
            max_demand=1.0,
            max_value=1.0,
            agents=len(values),
            divisible=divisible,
            bundle_size=min(3, len(supply)),
            neighbours=list(Neighbours)[number % 2],
        )
        result = checked(kind, market, epsilon, values, demands, np.arange(len(values)))
        if edge == "nobody wants anything":
            assert result.welfare == pytest.approx(N)
        if edge == "nothing is scarce" and epsilon >= 10.0 and kind == "newton":
            assert result.welfare > 0.99 * values.sum()


@pytest.mark.filterwarnings("ignore::jdpack.SupplyWarning")
@pytest.mark.parametrize("kind", SOLVED)
@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize("divisible", [False, True])
def test_several_options(kind, neighbours, divisible):
    rng = np.random.default_rng(5)
    market = Market(
        supply=[90.0] * 6,
        max_demand=1.0,
        max_value=1.0,
        agents=N,
        bundle_size=1,
        options=4,
        neighbours=neighbours,
        divisible=divisible,
    )
    counts = rng.integers(1, 5, N - 10 if neighbours is Neighbours.ADD_REMOVE else N)
    rows = int(counts.sum())
    demands = np.eye(6)[rng.integers(0, 6, rows)] * rng.uniform(0.2, 1.0, (rows, 1))
    values, ids = rng.random(rows), np.repeat(np.arange(len(counts)), counts)
    for epsilon in EPSILONS[divisible]:
        result = checked(kind, market, epsilon, values, demands, ids)
        shares = result.shares.astype(np.int64)
        assert np.bincount(ids, weights=shares).max() <= SHARE
        if epsilon >= 10.0 and kind == "newton":
            assert result.certificate.ratio_at_least > 0.85


def checked(kind, market, epsilon, values, demands, ids):
    """A run of a policy, after a check of what it gives."""
    records = {"values": values, "demands": demands, "ids": ids}
    policy = KINDS[kind](market)
    result = solve(market, **records, epsilon=epsilon, delta=1e-6, policy=policy, seed=3, threads=1)
    check_result(market, result, values, demands)
    return result


def check_result(market, result, values, demands):
    """No supply is exceeded in true units, nobody is dropped, and the certificate is right."""
    assert result.spent.rho <= result.billboard.header.budget.rho
    assert result.private.dropped == 0
    given, shares = np.flatnonzero(result.shares), result.shares.astype(np.int64)
    for j, resource in enumerate(market.resources):
        sizes, which = np.unique(demands[given, j], return_inverse=True)
        sums = map(int, np.bincount(which, weights=shares[given]))  # below 2^53
        load = sum(map(operator.mul, map(Fraction, sizes.tolist()), sums), Fraction(0)) / SHARE
        assert load <= Fraction(resource.supply)
        bound = Fraction(result.certificate.load_at_most[j])
        assert load <= Fraction(resource.supply) * bound
    exact = zip(map(Fraction, values[given].tolist()), shares[given].tolist(), strict=True)
    worth = float(sum(value * share for value, share in exact) / SHARE)
    assert result.welfare == pytest.approx(worth, abs=1e-6)
    assert result.certificate.welfare_at_least <= worth + 1e-6
    if result.billboard.header.policy["name"] != "mwu-online":  # which knows no bound
        assert result.certificate.optimum_at_most >= worth
