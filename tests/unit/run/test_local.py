"""Local privacy: what leaves an agent, what it refuses to answer, and what the curator makes of it.

Nothing here is seeded, except the records: tests of chance fail with probability below 1e-9 each.
"""

from __future__ import annotations

import inspect
import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from helpers import check_error
from jdpack import (
    AgentsError,
    Billboard,
    BudgetError,
    BudgetWarning,
    JdpackError,
    LocalAgent,
    LocalRun,
    Market,
    MarketError,
    OutputError,
    RecordWarning,
    SupplyWarning,
    allocate,
    explain,
    plan,
    solve,
)
from jdpack.billboard.lines import Header, Seed, Step
from jdpack.billboard.schema import ANSWER_MAX
from jdpack.common.batches import Batch
from jdpack.market.grid import SHARE
from jdpack.pages.billboard_page import public_page
from jdpack.planning.headroom import margin_of
from jdpack.policies import registry
from jdpack.policies.mwu_online import MwuOnline
from jdpack.privacy.noise import Gaussian, NoNoise, TruncatedLaplace
from jdpack.privacy.tail_bounds import Sum, tail

NEVER = 1e-9
DRAWS = 2000
N = 40


def a_market(**more: Any) -> Market:
    settings = {"supply": [5000.0, 4000.0], "max_demand": 1.0, "max_value": 10.0, "agents": N}
    return Market(**{**settings, **more})


def a_run(market: Market | None = None, **more: Any) -> LocalRun:
    settings = {"epsilon": 1.0, "delta": 1e-6, "batch": 10}
    return LocalRun(market or a_market(), **{**settings, **more})


def some_agents(header: Header, seed: int = 0) -> tuple[list[LocalAgent], list[dict[str, Any]]]:
    """Agents with their records, as they would write them."""
    rng, market = np.random.default_rng(seed), header.market
    m, records = len(market.resources), []
    for i in range(market.agents):
        several = int(rng.integers(1, market.options + 1))
        values = rng.uniform(0, market.max_value, several).tolist()
        demands = []
        for _ in range(several):
            touched = rng.permutation(m) < market.bundle_size
            demands.append((rng.random(m) * touched * market.resources[0].max_demand).tolist())
        records.append({"value": values, "demand": demands, "agent": f"agent {i}"})
    return [LocalAgent(header, **record) for record in records], records


def played(run: LocalRun, agents: list[LocalAgent]) -> Billboard:
    """The run to its end, if all answer in their turn."""
    while (step := run.step) is not None:
        assert step.batch is not None
        run.post(a.answer(step) for a in agents if a.turn(step.batch.count) == step.batch.index)
    return run.board


def text_of(board: Billboard) -> str:
    return "".join(f"{line}\n" for line in board.lines())


def own_step(run: LocalRun, agent: LocalAgent) -> Step:
    """What a curator asks this agent: the first step, put to the agent's turn."""
    step = run.step
    assert step is not None and step.batch is not None
    return replace(step, batch=Batch(agent.turn(step.batch.count), step.batch.count))


# --- an agent ---------------------------------------------------------------------------------


def an_agent(run: LocalRun, **more: Any) -> LocalAgent:
    return LocalAgent(run.board.header, **{"value": 3.0, "demand": [0.5, 0.1], "agent": 7, **more})


def test_an_agent_answers_once():
    run = a_run()
    agent = an_agent(run)
    step = own_step(run, agent)
    answer = agent.answer(step)
    assert len(answer) == 2 and all(type(a) is int for a in answer)
    for again in [step, replace(step, prices=(0, 0)), own_step(a_run(), agent)]:
        with pytest.raises(BudgetError, match="would exceed the budget"):
            agent.answer(again)


def test_answers_cost_the_budget_together_and_no_more():
    """With noise of twice the scale an answer costs a quarter: there are four of them."""
    run = a_run()
    agent = an_agent(run)
    step = own_step(run, agent)
    wide = replace(step, noise=Gaussian((2.0 * step.noise.scales[0],)))
    for _ in range(4):
        agent.answer(wide)
    with pytest.raises(BudgetError):
        agent.answer(wide)


def test_an_agent_cannot_be_asked_as_a_member_of_two_batches():
    """Batches of one partition compose in parallel; another partition would ask an agent twice."""
    run = a_run()
    agent = an_agent(run)
    step = own_step(run, agent)
    wide = Gaussian((1.5 * step.noise.scales[0],))  # one answer leaves more than half of the budget
    agent.answer(replace(step, noise=wide))
    for count in (1, 2, 3, 5, 100):
        with pytest.raises(BudgetError, match="two partitions"):
            agent.answer(replace(step, noise=wide, batch=Batch(agent.turn(count), count)))


def refused(agent: LocalAgent, step: Step) -> JdpackError:
    with pytest.raises(JdpackError) as caught:
        agent.answer(step)
    return caught.value


def test_what_an_agent_refuses_costs_it_nothing(monkeypatch):
    run = a_run()
    agent = an_agent(run)
    step = own_step(run, agent)
    assert step.batch is not None
    scale, index, count = step.noise.scales[0], step.batch.index, step.batch.count
    monkeypatch.setattr(
        "jdpack.run.local._OneAgent.batch_demand", lambda *_: pytest.fail("was asked")
    )
    cases: list[tuple[Step, list[str]]] = [
        (replace(step, batch=None), ["does not ask this agent"]),
        (replace(step, span=2), ["does not ask this agent"]),
        (replace(step, batch=Batch((index + 1) % count, count)), ["does not ask this agent"]),
        (replace(step, noise=Gaussian((scale * (1 - 1e-6),))), ["would exceed the budget"]),
        (replace(step, noise=Gaussian((1.0,))), ["would exceed the budget"]),
        (replace(step, noise=Gaussian((0.0,))), ["hides nothing"]),
        (replace(step, noise=Gaussian((-scale,))), ["hides nothing"]),
        (replace(step, noise=Gaussian((math.nan,))), ["does not fit"]),
        (replace(step, noise=NoNoise()), ["rho = inf"]),
        (replace(step, noise=TruncatedLaplace(2 * scale, 2**40)), ["costs delta"]),
        (replace(step, query="scale"), ["not for scale"]),
        (replace(step, query="value"), ["not for value"]),
        (replace(step, query="curvature"), ["not for curvature"]),
        (replace(step, query="welfare"), ["not for welfare"]),
        (replace(step, query="granted"), ["not for granted"]),
        (replace(step, prices=()), ["0 prices"]),
        (replace(step, prices=(1,)), ["1 prices"]),
        (replace(step, prices=(1, 2, 3)), ["3 prices"]),
        (replace(step, prices=(1, "x")), ["not a price code"]),
    ]
    for asked, says in cases:
        check_error(refused(agent, asked), says)
    monkeypatch.undo()
    agent.answer(step)  # all of the budget is still there


def test_a_header_that_says_more_rho_than_its_epsilon_has_is_not_believed():
    """The curator is not trusted: what counts is the epsilon and delta that the agent can read."""
    run = a_run()
    honest = run.board.header
    budget = replace(honest.budget, rho=100.0 * honest.budget.rho)
    hostile = replace(honest, budget=budget)
    agent = LocalAgent(hostile, value=1.0, demand=[1.0, 0.0], agent=1)
    policy = MwuOnline(batch=10, local=True)
    step = policy.step(policy.start(hostile.market, budget))
    assert step is not None and step.batch is not None
    own = replace(step, batch=Batch(agent.turn(step.batch.count), step.batch.count))
    assert "would exceed the budget" in refused(agent, own).message
    agent.answer(own_step(run, agent))  # with the noise of the budget that it can read


def test_a_header_of_add_remove_neighbours_is_refused():
    """Its noise would hide one record against none, not one against another."""
    header = a_run().board.header
    market = Market.from_dict({**header.market.to_dict(), "privacy": {"neighbours": "add-remove"}})
    with pytest.raises(MarketError, match="add-remove") as caught:
        LocalAgent(replace(header, market=market), value=1.0, demand=[1.0, 0.0], agent=1)
    check_error(caught.value, ["which record"], "replace-one")


@pytest.mark.parametrize("agent", [True, 1.5, None, b"7", "\ud800"])
def test_what_is_no_id_is_refused(agent):
    with pytest.raises(AgentsError):
        an_agent(a_run(), agent=agent)


class Odd:
    """A number of the caller's own type, which cannot be read."""

    def __float__(self) -> float:
        raise ZeroDivisionError


OUTSIDE: dict[str, dict[str, Any]] = {
    "a large bundle": {"demand": [1.0, 1.0]},
    "many options": {"value": [1.0, 2.0], "demand": [[1.0, 0.0], [0.0, 1.0]]},
    "no option": {"value": [], "demand": []},
    "a value without a demand": {"value": [1.0, 2.0], "demand": [[1.0, 0.0]]},
    "a negative value": {"value": -1.0},
    "a negative amount": {"demand": [-1.0, 0.0]},
    "not a number": {"value": math.nan},
    "an amount that is not a number": {"demand": [math.nan, 0.0]},
    "an infinite amount": {"demand": [math.inf, 0.0]},
    "text": {"demand": [1.0, "x"]},
    "too few amounts": {"demand": [1.0]},
    "too many amounts": {"demand": [1.0, 0.0, 0.0]},
    "another market's good": {"demand": {"beds": 1.0}},
    "no demand": {"demand": None},
    "no value": {"value": None},
    "a number beyond doubles": {"value": 10**400},
    "an amount beyond doubles": {"demand": [10**400, 0]},
    "an array without a length": {"value": np.array(1.0)},
    "a number that cannot be read": {"value": Odd()},
}


@pytest.mark.parametrize("record", OUTSIDE.values(), ids=OUTSIDE)
@pytest.mark.parametrize("filters", ["always", "error", "ignore"])
def test_no_record_silences_an_agent(record, filters):
    """The curator writes the bounds and sees who is silent: such a record takes nothing."""
    run = a_run(a_market(bundle_size=1), epsilon=math.inf)
    record = {"value": 9.0, "demand": [1.0, 0.0], "agent": 7, **record}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter(filters)
        agent = LocalAgent(run.board.header, **record)
        assert agent.turn(4) == an_agent(run, demand=[1.0, 0.0]).turn(4)
        free = replace(own_step(run, agent), prices=(0, 0))
        assert agent.answer(free) == (0, 0) != an_agent(run, demand=[1.0, 0.0]).answer(free)
        for _ in range(4):
            run.post([])
        mine = allocate(run.board, **record)
    assert agent.problem, "its owner is told"
    assert mine.share == 0.0 and mine.given == ()
    assert [w.category for w in told] == [RecordWarning] * (2 if filters == "always" else 0)
    for warning in told:
        assert agent.problem in str(warning.message) and warning.filename == __file__
    with pytest.raises(AgentsError) as caught:
        explain(run.board, **record)
    assert caught.value.hint == "such a record took nothing and gets nothing"


@pytest.mark.filterwarnings("ignore::jdpack.RecordWarning")
@pytest.mark.parametrize("record", [OUTSIDE["a large bundle"], OUTSIDE["many options"]])
def test_a_record_outside_the_bounds_answers_with_the_same_noise(record):
    """And as often: the curator cannot tell it from one that takes nothing."""
    run = a_run(a_market(bundle_size=1))
    answers = []
    for _ in range(DRAWS):
        agent = LocalAgent(run.board.header, **{"value": 9.0, "agent": 7, **record})
        step = replace(own_step(run, agent), prices=(0, 0))
        answers.append(agent.answer(step))
        with pytest.raises(BudgetError, match="would exceed the budget"):
            agent.answer(step)
    draws, scale = np.array(answers, dtype=np.float64), run.step.noise.scales[0]
    assert noise_of(draws, (0, 0), scale) > NEVER
    assert noise_of(draws, (round(0.3 * scale),) * 2, scale) < NEVER  # a control
    assert noise_of(draws, (0, 0), 1.3 * scale) < NEVER


def test_a_record_within_the_bounds_has_no_problem():
    assert an_agent(a_run()).problem is None


@pytest.mark.filterwarnings("ignore::jdpack.RecordWarning")
@pytest.mark.parametrize(
    "prices", [("x", 1), (None, 1), (1.5, 0), (math.nan, 0), (-1, 0), (2**52 + 1, 0), (True, 0)]
)
def test_prices_that_are_none_are_refused_by_every_agent_alike(prices):
    """Otherwise agents with something to multiply would stop, and the others would answer."""
    run = a_run()
    spoken = set()
    for demand in ([0.5, 0.1], [0.0, 0.0], [math.nan, 0.0]):
        agent = an_agent(run, demand=demand)
        step = own_step(run, agent)
        spoken.add(str(refused(agent, replace(step, prices=prices))))
        agent.answer(step)  # and nothing was spent
    assert len(spoken) == 1


def test_a_record_beyond_the_bounds_moves_an_answer_no_further():
    """It is clamped before it is taken."""
    run = a_run(a_market(bundle_size=1), epsilon=math.inf)
    header = run.board.header
    agent = LocalAgent(header, value=1e9, demand=[1e9, 0.0], agent=1)
    step = replace(own_step(run, agent), prices=(0, 0))
    assert agent.answer(step) == (65535, 0)


@pytest.mark.parametrize("delta", [0.011, 0.5])
def test_an_agent_agrees_to_no_promise_that_is_none(delta):
    header = a_run().board.header
    hostile = replace(header, budget=replace(header.budget, delta=delta))
    with pytest.raises(BudgetError, match="delta must be at most"):
        LocalAgent(hostile, value=1.0, demand=[1.0, 0.0], agent=1)
    weak = replace(header, budget=replace(header.budget, epsilon=5.0))
    with pytest.warns(BudgetWarning, match="little is hidden"):
        LocalAgent(weak, value=1.0, demand=[1.0, 0.0], agent=1)


def test_without_noise_an_agent_takes_its_best_option():
    market = a_market(options=3)
    run = a_run(market, epsilon=math.inf)
    agent = LocalAgent(
        run.board.header,
        value=[4.0, 5.0, 5.0],
        demand=[[1.0, 0.0], [0.5, 0.0], [0.5, 0.0]],
        agent="x",
    )
    step = own_step(run, agent)
    dear = market.value_code(5.0) * 2**20 // market.demand_code(0, 0.5)
    assert agent.answer(replace(step, prices=(0, 0))) == (market.demand_code(0, 0.5), 0)
    assert agent.answer(replace(step, prices=(dear, 0))) == (market.demand_code(0, 0.5), 0)
    assert agent.answer(replace(step, prices=(dear + 1, 0))) == (0, 0)


# --- the law of an answer ---------------------------------------------------------------------


def noise_of(draws: np.ndarray, exact: tuple[int, ...], scale: float) -> float:
    """The p-value for answers that are the exact one plus Gaussian noise of a scale in the
    thousands.

    There the discrete Gaussian is the normal law, except for its rounding to whole numbers.
    """
    z = ((draws - np.array(exact)) / scale).ravel()
    squares = stats.chi2(z.size)
    spread = 2.0 * min(squares.cdf(z @ z), squares.sf(z @ z))
    return min(float(stats.kstest(z, "norm").pvalue), spread)


def test_the_noise_of_an_answer_is_the_claimed_one_and_independent_of_the_record():
    run = a_run()
    header = run.board.header
    prices = (0, 0)
    drawn = {}
    for name, demand in [("much", [1.0, 1.0]), ("little", [0.0, 0.0])]:
        answers = []
        for _ in range(DRAWS):  # an agent answers once
            agent = LocalAgent(header, value=10.0, demand=demand, agent=7)
            answers.append(agent.answer(replace(own_step(run, agent), prices=prices)))
        drawn[name] = np.array(answers, dtype=np.float64)
    scale = run.step.noise.scales[0]
    rho = 2 * 65535**2 / (2 * scale * scale)
    assert rho == pytest.approx(header.budget.rho, rel=1e-6) and rho <= header.budget.rho
    assert scale > 1000
    exact = {"much": (65535, 65535), "little": (0, 0)}
    for name, draws in drawn.items():
        assert noise_of(draws, exact[name], scale) > NEVER
        # Negative controls: another scale, another exact answer.
        assert noise_of(draws, exact[name], 1.3 * scale) < NEVER
        assert noise_of(draws, exact[name], scale / 1.3) < NEVER
        shifted = tuple(e + round(0.3 * scale) for e in exact[name])
        assert noise_of(draws, shifted, scale) < NEVER
        coordinates = float(np.corrcoef(draws.T)[0, 1]) * math.sqrt(DRAWS)
        assert abs(coordinates) < 7
        rounds = float(np.corrcoef(draws[1:, 0], draws[:-1, 0])[0, 1]) * math.sqrt(DRAWS)
        assert abs(rounds) < 7
    # Given the exact answer, the noise is the same law whatever the record.
    centred = [(drawn[name] - np.array(exact[name])).ravel() for name in drawn]
    assert stats.ks_2samp(*centred).pvalue > NEVER
    assert stats.ks_2samp(centred[0], 2.0 * centred[1]).pvalue < NEVER
    assert len(np.unique(np.abs(centred[0]))) > 0.9 * DRAWS  # nothing is drawn twice


# --- the curator ------------------------------------------------------------------------------


def test_records_never_reach_the_curator():
    """The curator's side takes a market and answers; no record fits through either."""
    names = set(inspect.signature(LocalRun).parameters)
    assert names == {"market", "epsilon", "delta", "batch", "path"}
    assert set(inspect.signature(LocalRun.post).parameters) == {"self", "answers"}
    run = a_run()
    agents, records = some_agents(run.board.header)
    text = text_of(played(run, agents))
    held = [value for value in vars(run).values() if isinstance(value, LocalAgent)]
    assert not held
    numbers = [repr(v) for r in records for v in r["value"]]
    assert not [number for number in numbers if number in text]


def test_what_is_posted_is_the_sum_of_the_answers():
    run = a_run()
    run.post([(1, -2), [30, 40]])
    run.post([])  # a round in which nobody's turn is
    run.post((a, a) for a in range(3))
    assert [r.answer for r in run.board.releases] == [(31, 38), (0, 0), (3, 3)]
    assert [r.step.batch for r in run.board.releases] == [Batch(i, 4) for i in range(3)]


@pytest.mark.parametrize(
    "answers",
    [
        [(1,)],
        [(1, 2, 3)],
        [(1, 2), (1.0, 2)],
        [(1, True)],
        [(1, "2")],
        [(ANSWER_MAX, 0), (1, 0)],
        [(0, -ANSWER_MAX - 1)],
        [(0, 0)] * (N + 1),
    ],
)
def test_answers_that_cannot_be_are_refused_and_the_round_can_be_posted_again(answers):
    run = a_run()
    before = run.step
    with pytest.raises(AgentsError) as caught:
        run.post(answers)
    check_error(caught.value, [])
    assert run.step == before and not run.board.releases
    run.post([(0, 0)] * N)
    with pytest.raises(AgentsError, match="more answers than the 40 agents"):
        run.post([(0, 0)])  # over all rounds: this many agents' noise is in the certificate


def test_after_the_last_round_nothing_is_asked():
    run = a_run()
    for _ in range(4):
        run.post([])
    assert run.step is None and run.board.finished
    with pytest.raises(MarketError, match="all agents have been asked"):
        run.post([])


def test_its_billboard_reads_back_and_every_price_can_be_recomputed(tmp_path):
    path = tmp_path / "billboard.jsonl"
    run = a_run(path=path)
    board = played(run, some_agents(run.board.header)[0])
    read = Billboard.read(str(path))
    assert text_of(read) == text_of(board) == path.read_text()
    assert read.header.local and read.header.private and read.finished
    assert [r.step.query for r in read.releases] == ["demand"] * 4  # nothing closes the run
    assert read.weight == 1
    policy = registry.from_dict(read.header.policy)
    state = policy.start(read.header.market, read.header.budget)
    for release in read.releases:
        assert policy.step(state) == release.step
        state = policy.observe(state, release)
    assert policy.step(state) is None
    with pytest.raises(OutputError, match="File exists"):
        a_run(path=path)


def test_its_page_promises_no_repair_and_no_value():
    run = a_run()
    page = public_page(played(run, some_agents(run.board.header)[0]))
    assert "-local differential privacy" in page and "joint" not in page
    assert "answered truthfully" in page and "Nothing is certified" in page
    assert "No supply is ever exceeded" not in page and "is dropped" not in page
    with_a_curator = solve(
        a_market(), values=np.ones(N), demands=np.ones((N, 2)), policy=MwuOnline(batch=10),
        epsilon=1.0, delta=1e-6,
    )  # fmt: skip
    page = public_page(with_a_curator.billboard)
    assert "-joint differential privacy" in page and "No supply is ever exceeded" in page


def test_a_run_without_noise_says_so_and_reads_back():
    run = a_run(epsilon=math.inf)
    board = played(run, some_agents(run.board.header)[0])
    assert not board.header.private
    assert not Billboard.from_text(text_of(board)).header.private


def test_what_cannot_be_a_local_run_is_refused():
    with pytest.raises(MarketError, match="that they take part") as caught:
        a_run(a_market(neighbours="add-remove"))
    check_error(caught.value, [], "replace-one")
    with pytest.raises(MarketError, match="batch"):
        a_run(batch=0)
    with pytest.raises(BudgetError):
        LocalRun(a_market())
    with pytest.raises(MarketError, match="add the noise themselves"):
        solve(
            a_market(),
            values=np.ones(N),
            demands=np.ones((N, 2)),
            epsilon=1.0,
            delta=1e-6,
            policy=MwuOnline(local=True),
        )


# --- the certificate --------------------------------------------------------------------------

KINDS = {
    "divisible": {"divisible": True},
    "coins": {},
    "several options": {"options": 3, "divisible": True},
    "several options and coins": {"options": 3},
    "sparse": {"supply": [5000.0] * 9, "bundle_size": 2, "options": 2},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("supply", [2.0, 30.0, 20_000.0])
def test_loads_in_truth_are_within_the_certificate(kind, supply):
    """From a supply that noise exceeds by far to one where nothing is scaled."""
    settings = dict(KINDS[kind])
    m = len(settings.pop("supply", [0, 0]))
    market = a_market(supply=[supply + j for j in range(m)], **settings)
    whole = 0
    for seed in range(3):
        run = a_run(market, epsilon=4.0, batch=[1, 7, 1000][seed])
        agents, records = some_agents(run.board.header, seed)
        board = played(run, agents)
        certificate = board.certificate
        assert certificate is not None
        loads = np.zeros(m)
        for record in records:
            mine = allocate(board, **record)
            assert sum(mine.rounds) <= 1 and mine.share <= 1.0
            loads += np.array(mine.given) @ np.array(record["demand"])
        supplies = np.array([r.supply for r in market.resources])
        assert (loads <= supplies * np.array(certificate.load_at_most)).all()
        assert certificate.welfare_at_least == 0.0
        assert certificate.optimum_at_most is None and certificate.ratio_at_least is None
        whole += min(certificate.factors) == SHARE
    assert supply == 30.0 or whole == (3 if supply > 30.0 else 0)


def test_the_bound_has_the_noise_of_all_agents():
    """Also where coins decide: the load is measured by nothing but the answers."""
    for divisible in (True, False):
        market = a_market(supply=[20_000.0, 30_000.0], divisible=divisible)
        run = a_run(market)
        header = run.board.header
        for _ in range(4):
            run.post([(1000, 2000)])
        scale = run.board.releases[0].step.noise.scales[0]
        radius = scale * math.sqrt(2 * N * tail(market, header.budget))
        seen = zip((1000, 2000), market.supply_codes, strict=True)
        expected = [(4 * answer + radius) / supply for answer, supply in seen]
        most = run.board.certificate.load_at_most
        if divisible:
            assert most == pytest.approx(expected, rel=1e-9)
        else:  # several fits share the probability, in case something must be thinned
            assert all(e < bound < 1.02 * e for e, bound in zip(expected, most, strict=True))


@pytest.mark.parametrize("divisible", [True, False])
def test_the_margin_is_that_of_the_noise_of_all_agents(divisible):
    """And a supply that is too small for it is said to be, before anybody is asked."""
    policy = MwuOnline(batch=10, local=True)
    for supply, small in [(700.0, True), (100_000.0, False)]:
        market = a_market(supply=[supply] * 2, divisible=divisible, agents=100_000)
        found = plan(market, epsilon=4.0, delta=1e-6, policy=policy)
        budget = found.budget
        outlook = policy.outlook(market, budget)
        noise = Sum(outlook.variance, peak=outlook.peak)
        bound = noise.radius(tail(market, budget)) / market.supply_codes[0]
        assert found.margin == margin_of(market, budget, policy) >= 0.99 * bound
        assert (found.warning is not None) == small
    with pytest.warns(SupplyWarning, match="supply is too small"):
        a_run(a_market(supply=[9.0, 9.0], divisible=divisible))


def test_the_planned_noise_of_a_round_is_that_of_all_whom_it_asks():
    market = a_market(agents=4000)
    for batch in (1, 16):
        policy = MwuOnline(batch=batch, local=True)
        found = plan(market, epsilon=4.0, delta=1e-6, policy=policy)
        step = policy.step(policy.start(market, found.budget))
        assert step is not None and isinstance(step.noise, Gaussian)
        round_noise = math.sqrt(batch) * step.noise.scales[0] / market.supply_codes[0]
        assert found.round_noise == (pytest.approx(round_noise),) * 2


def test_the_order_is_fixed_by_what_the_header_commits_to():
    """The turns follow from the header alone, and differ from run to run."""
    seeds = [Seed(bytes([i]) * 16) for i in range(2)]
    header = a_run().board.header
    turns = []
    for seed in seeds:
        mine = replace(header, commitment=seed.commitment)
        agents, _ = some_agents(mine)
        turns.append([agent.turn(1000) for agent in agents])
        assert turns[-1] == [agent.turn(1000) for agent in some_agents(mine, 5)[0]]
    assert turns[0] != turns[1]
