"""A search for two neighbours whose answers differ by more than `Market.shifts` says.

Markets, records and prices are drawn at random and pushed towards violation; the answers come from
the real encoding, the real engine and the real statistic. The negative controls run the same search
against claims that are too small, and it must refute every one of them: a search that finds nothing
then means something.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, find, given, settings, target
from hypothesis import strategies as st

from jdpack import Market, Neighbours
from jdpack.agents import is_sparse
from jdpack.encoding import Batch, encode
from jdpack.engines.memory import MemoryEngine
from jdpack.market import PRICE_CODE_MAX, Query
from jdpack.release import statistic

QUERIES: tuple[Query, ...] = ("demand", "scale", "welfare")

Option = tuple[float, tuple[float, ...]]
"""A value and an amount of each resource."""
Agent = tuple[Option, ...]


@dataclass(frozen=True)
class Case:
    """Two neighbours at the same posted prices. None stands for an agent that is not there."""

    market: Market
    others: tuple[Agent, ...]
    first: Agent | None
    second: Agent | None
    place: int
    """Where among the others the differing agent stands."""
    prices: tuple[int, ...]

    def moves(self, query: Query) -> list[int]:
        """How far the coordinates of the answer move, the largest first."""
        answers = [self._answer(query, agent) for agent in (self.first, self.second)]
        return sorted((abs(a - b) for a, b in zip(*answers, strict=True)), reverse=True)

    def _answer(self, query: Query, agent: Agent | None) -> tuple[int, ...]:
        agents = list(self.others)
        if agent is not None:
            agents.insert(min(self.place, len(agents)), agent)
        return statistic(query, engine_of(self.market, agents).sums(self.prices), self.market)


def engine_of(market: Market, agents: list[Agent]) -> MemoryEngine:
    options = [option for agent in agents for option in agent]
    columns = np.array([amounts for _, amounts in options], dtype=np.float64).T
    ids = [f"agent {i}" for i, agent in enumerate(agents) for _ in agent]
    batch = Batch(
        values=np.array([value for value, _ in options]),
        ids=pa.array(ids),
        columns=[np.ascontiguousarray(column) for column in columns],
    )
    return MemoryEngine(encode(market, [batch]), threads=1)


def exceeds(moves: list[int], claimed: tuple[int, ...]) -> bool:
    """Whether moves (the largest first) are not covered by what is claimed."""
    room = [*claimed, *[0] * len(moves)]
    return any(move > limit for move, limit in zip(moves, room, strict=False))


def closeness(moves: list[int], claimed: tuple[int, ...]) -> float:
    """How much of the claim is used: what the search pushes up."""
    squares = sum(min(move, limit) ** 2 for move, limit in zip(moves, claimed, strict=False))
    return float(squares / sum(limit**2 for limit in claimed))


# --- random cases -----------------------------------------------------------------------------

PARTS = st.sampled_from([0.0, 1.0, 1.0]) | st.floats(0.0, 1.0)
# Prices: free, out of reach, or somewhere in between, where choices change.
PRICES = st.sampled_from([0, 0, PRICE_CODE_MAX, 1]) | st.integers(0, 2**40)


def of_length(n: int, items: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(items, min_size=n, max_size=n)


@st.composite
def cases(draw, neighbours: Neighbours | None = None) -> Case:
    m = draw(st.sampled_from([1, 2, 3, 5, 6, 7]))
    supply = draw(of_length(m, st.sampled_from([1.0, 3.0, 8.5, 1e4])))
    shares = draw(of_length(m, st.sampled_from([1.0, 1.0, 0.5, 0.3, 1e-3])))
    market = Market(
        supply=supply,
        max_demand=[b * share for b, share in zip(supply, shares, strict=True)],
        max_value=draw(st.sampled_from([1.0, 0.7, 1e6])),
        agents=draw(st.sampled_from([2, 3, 5])),
        bundle_size=draw(st.sampled_from([1, 1, -(-m // 2), m])),
        options=draw(st.sampled_from([1, 1, 3])),
        neighbours=neighbours or draw(st.sampled_from(Neighbours)),
    )
    others = tuple(agent_of(market, draw) for _ in range(market.agents - 1))
    first, second = agent_of(market, draw), None
    if market.neighbours is Neighbours.REPLACE_ONE:
        second = agent_of(market, draw)
    prices = tuple(draw(of_length(m, PRICES)))
    return Case(market, others, first, second, draw(st.integers(0, 3)), prices)


def agent_of(market: Market, draw: st.DrawFn) -> Agent:
    m, options = len(market.resources), []
    for _ in range(draw(st.integers(1, market.options))):
        value, *parts = draw(of_length(m + 1, PARTS))
        order = draw(st.permutations(range(m)))[: market.bundle_size]
        amounts = [parts[j] * r.max_demand * (j in order) for j, r in enumerate(market.resources)]
        options.append((market.max_value * value, tuple(amounts)))
    return tuple(options)


# --- the search -------------------------------------------------------------------------------


@pytest.mark.parametrize("query", QUERIES)
@settings(max_examples=200)
@given(case=cases())
def test_no_agent_moves_an_answer_further_than_claimed(query, case):
    moves, claimed = case.moves(query), case.market.shifts(query)
    target(closeness(moves, claimed))
    assert not exceeds(moves, claimed), (moves, claimed)


def refuted(
    query: Query, claim: Callable[[Market], tuple[int, ...]], search: st.SearchStrategy[Case]
) -> Case:
    """A case that breaks a claim; raises NoSuchExample if the search finds none."""
    return find(
        search,
        lambda case: exceeds(case.moves(query), claim(case.market)),
        settings=settings(max_examples=2000, phases=[Phase.generate]),
        random=Random(1),
    )


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("neighbours", Neighbours)
def test_negative_control_a_slightly_smaller_claim_is_refuted(query, neighbours):
    # One code less than claimed on every coordinate: so the claims are tight, too.
    refuted(query, lambda market: tuple(d - 1 for d in market.shifts(query)), cases(neighbours))


def test_negative_control_the_claim_of_add_remove_is_refuted_under_replace_one():
    case = refuted(
        "demand",
        lambda market: replace_relation(market, Neighbours.ADD_REMOVE).shifts("demand"),
        cases(Neighbours.REPLACE_ONE),
    )
    assert case.market.bundle_size < len(case.market.resources)


def test_negative_control_a_smaller_bundle_size_is_refuted():
    refuted(
        "demand",
        lambda market: market.shifts("demand")[:-1] if market.bundle_size > 1 else (2**16,) * 7,
        cases(),
    )


def test_negative_control_the_smallest_caps_are_refuted():
    refuted(
        "demand",
        lambda market: tuple(sorted(market.cap_codes))[: len(market.shifts("demand"))],
        cases(),
    )


@pytest.mark.parametrize("query", QUERIES)
def test_negative_control_two_agents_that_differ_are_refuted(query):
    """The claims are for one agent: the search sees it when two of them leave."""
    two = cases(Neighbours.ADD_REMOVE).filter(lambda case: len(case.others) > 1)
    refuted(
        query,
        lambda market: market.shifts(query),
        two.map(lambda case: TwoLeave(**vars(case))),
    )


class TwoLeave(Case):
    """The last of the other agents leaves together with the differing one."""

    def _answer(self, query: Query, agent: Agent | None) -> tuple[int, ...]:
        others = self.others if agent is not None else self.others[:-1]
        return Case._answer(replace(self, others=others), query, agent)


def replace_relation(market: Market, neighbours: Neighbours) -> Market:
    data = market.to_dict()
    data["privacy"]["neighbours"] = neighbours.value
    return Market.from_dict(data)


def test_the_search_reaches_both_layouts_and_several_options():
    seen = set()

    @settings(max_examples=600)
    @given(cases())
    def look(case):
        seen.add((is_sparse(case.market), case.market.options > 1, case.market.neighbours))

    look()
    assert len(seen) == 8
