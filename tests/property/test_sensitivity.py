"""A search for two neighbours whose answers differ by more than is claimed.

The claims are those of `queries.shifts` and `queries.luck_shifts`. Markets, records, prices, rounds
and coins are random, with many numbers at their bounds and many close choices. The answers come
from the real encoding, the real engine and the real statistic. The negative controls run the same
search against claims that are too small, and it must refute every one of them. Only then does a
search that finds nothing mean something.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property

import numpy as np
import pyarrow as pa
import pytest

from helpers import SHARE, coin_of, open_board
from jdpack import Budget, Market, Neighbours
from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Release, Seed, Step
from jdpack.common.batches import Batch
from jdpack.door import statistic
from jdpack.engines.memory import MemoryEngine
from jdpack.market.grid import PRICE_CODE_MAX, PRICE_UNITS_PER_VALUE_CODE
from jdpack.privacy import queries
from jdpack.privacy.noise import Gaussian
from jdpack.privacy.queries import CLOSING, Query
from jdpack.protocol import closing
from jdpack.records.codes import is_sparse
from jdpack.records.encode import encode
from jdpack.records.tables import OptionRows as Rows

EACH: tuple[Query, ...] = ("demand", "scale", "value", "welfare", "granted")
"""Queries with a claim for each coordinate, all of which one agent can reach."""
WHOLE: tuple[Query, ...] = ("curvature", "gauge")
"""Queries with one claim, for the length of the whole move."""
QUERIES = (*EACH, *WHOLE, "luck")

Option = tuple[float, tuple[float, ...]]
"""An option: a value and an amount of each resource."""
Agent = tuple[Option, ...]
Claim = tuple[int, ...]
Rounds = tuple[tuple[tuple[int, ...], int], ...]
ME = "the differing agent"


@dataclass(frozen=True)
class Case:
    """Two neighbours at the same posted prices and rounds, with the same coins.

    None stands for an agent that is not there.
    """

    market: Market
    others: tuple[Agent, ...]
    first: Agent | None
    second: Agent | None
    place: int
    """The position of the differing agent among the others."""
    rounds: Rounds
    """Prices and weights; queries about posted prices use those of the first round."""
    seed: bytes
    overload: tuple[float, ...]
    """The load of what coins grant, before the certificate thins it; `luck` depends on it."""

    @cached_property
    def board(self) -> Billboard:
        """The public record up to the query `luck`."""
        budget = Budget(1.0, 1e-6, 1e6, 0.0, 1e-8)  # large enough that noise hardly matters
        board = open_board(self.market, self.rounds, self.seed, budget)
        supply = self.market.supply_code
        granted = tuple(int(load * supply) for load in self.overload)
        board.post(Release(Step("granted", (), Gaussian(1.0)), granted))
        board.post(Release(Step("welfare", (), Gaussian(1.0)), (2**50,)))
        return board

    @property
    def thinned(self) -> bool:
        return min(closing.luck_terms(self.board)[0]) < SHARE

    def claim(self, query: Query) -> Claim:
        return closing.shifts(self.board, query)

    def moves(self, query: Query) -> list[int]:
        """How far the coordinates of the answer move, largest first."""
        prices = () if query in CLOSING else self.rounds[0][0]
        step = Step(query, prices, Gaussian(1.0))
        answers = [statistic(step, e, self.board, Seed(self.seed)) for e in self.engines]
        return sorted((abs(a - b) for a, b in zip(*answers, strict=True)), reverse=True)

    @cached_property
    def engines(self) -> list[MemoryEngine]:
        return [self._engine(agent) for agent in (self.first, self.second)]

    def _engine(self, agent: Agent | None) -> MemoryEngine:
        agents = [(f"other {i}", other) for i, other in enumerate(self.others)]
        if agent is not None:
            agents.insert(min(self.place, len(agents)), (ME, agent))
        return engine_of(self.market, agents)


def engine_of(market: Market, agents: list[tuple[str, Agent]]) -> MemoryEngine:
    options = [option for _, agent in agents for option in agent]
    columns = np.array([amounts for _, amounts in options], dtype=np.float64).T
    batch = Rows(
        values=np.array([value for value, _ in options]),
        ids=pa.array([name for name, agent in agents for _ in agent]),
        columns=[np.ascontiguousarray(column) for column in columns],
    )
    return MemoryEngine(encode(market, [[batch]]), threads=1)


def exceeds(query: Query, moves: list[int], claimed: Claim) -> bool:
    """Whether some move exceeds its claim; moves are largest first."""
    if query in WHOLE:
        (length,) = claimed
        return sum(move**2 for move in moves) > length**2
    limits = [*claimed, *[0] * len(moves)]
    return any(move > limit for move, limit in zip(moves, limits, strict=False))


# --- random cases -----------------------------------------------------------------------------


def cases(
    neighbours: Neighbours | None = None, options: int | None = None, start: int = 0
) -> Iterator[Case]:
    """An endless stream of cases."""
    for seed in itertools.count(start):
        yield a_case(np.random.default_rng([seed, 7]), neighbours, options)


def a_case(
    rng: np.random.Generator, neighbours: Neighbours | None = None, options: int | None = None
) -> Case:
    m = int(rng.choice([1, 2, 3, 5, 6, 7]))
    supply = rng.choice([1.0, 3.0, 8.5, 1e4], m)
    relation = neighbours or list(Neighbours)[rng.integers(2)]
    market = Market(
        supply=supply.tolist(),
        max_demand=(supply * rng.choice([1.0, 1.0, 0.5, 0.3, 1e-3], m)).tolist(),
        max_value=float(rng.choice([1.0, 0.7, 1e6])),
        agents=int(rng.choice([2, 3, 5])),
        bundle_size=int(rng.choice([1, -(-m // 2), max(1, m - 1), m])),
        options=options or int(rng.choice([1, 1, 3])),
        neighbours=relation,
    )
    rounds = some_rounds(rng, m)
    count = market.agents + (relation is Neighbours.REPLACE_ONE)
    first, *others = [an_agent(rng, market, rounds) for _ in range(count)]
    second = others.pop() if relation is Neighbours.REPLACE_ONE else None
    overload = rng.choice([0.0, 2.0, 50.0], m) if rng.random() < 0.3 else np.zeros(m)
    return Case(
        market=market,
        others=tuple(others),
        first=first,
        second=second,
        place=int(rng.integers(4)),
        rounds=rounds,
        seed=some_seeds()[int(rng.choice([0, 1, -2, -1, rng.integers(256)]))],
        overload=tuple(overload.tolist()),
    )


def some_rounds(rng: np.random.Generator, m: int) -> Rounds:
    """Prices that are zero, unaffordable, or in between, where choices change; constant or not."""
    rounds = []
    base = 2.0 ** rng.uniform(16, 36, m if rng.random() < 0.5 else 1) * np.ones(m)
    base *= rng.choice([0.0, 1.0, 1.0], m)
    swing = [0.1, 1.0] if rng.random() < 0.5 else [1.0, 1.0, 1.01, 1.1]
    for _ in range(int(rng.integers(1, 4))):
        price = base * rng.choice(swing, m)
        price = np.where(rng.random(m) < 0.2, rng.choice([0.0, 1.0, PRICE_CODE_MAX], m), price)
        rounds.append((tuple(int(p) for p in price), int(rng.choice([1, 3, 50]))))
    return tuple(rounds)


def an_agent(rng: np.random.Generator, market: Market, rounds: Rounds) -> Agent:
    """Demand at the caps, or not; a value at the cap, anywhere, or close to the option's cost."""
    m, caps = len(market.resources), [r.max_demand for r in market.resources]
    options = []
    for _ in range(int(rng.integers(1, market.options + 1))):
        parts = rng.choice([0.0, 1.0, 1.0, 1.0, rng.random()], m)
        parts[rng.permutation(m)[market.bundle_size :]] = 0.0
        amounts = [float(part) * cap for part, cap in zip(parts, caps, strict=True)]
        value = market.max_value * float(rng.choice([0.0, 1.0, rng.random()]))
        if rng.random() < 0.7:
            prices, _ = rounds[rng.integers(len(rounds))]
            codes = [market.demand_code(j, a) for j, a in enumerate(amounts)]
            cost = sum(c * p for c, p in zip(codes, prices, strict=True))
            near = int(cost * rng.choice([0.86, 1.0, 1.0, 1.02, 1.1, 1.14]))
            code = -(-near // PRICE_UNITS_PER_VALUE_CODE)
            value = min(code, market.value_cap_code) * market.value_step
        options.append((value, tuple(amounts)))
    return tuple(options)


@cache
def some_seeds() -> list[bytes]:
    """Seeds for coins, by the coin of the differing agent."""
    return sorted((bytes([i]) * 16 for i in range(256)), key=lambda seed: coin_of(seed, ME))


# --- the search -------------------------------------------------------------------------------


@cache
def the_cases() -> list[Case]:
    return list(itertools.islice(cases(), 500))


@pytest.mark.parametrize("query", QUERIES)
def test_no_agent_moves_an_answer_further_than_claimed(query):
    moved = 0
    for case in the_cases():
        moves, claimed = case.moves(query), case.claim(query)
        assert not exceeds(query, moves, claimed), (case, moves, claimed)
        moved += any(moves)
    assert moved > 50


def refuted(query: Query, claim: Callable[[Case], Claim], search: Iterator[Case]) -> Case:
    """A case that breaks a claim."""
    for case in itertools.islice(search, 3000):
        if exceeds(query, case.moves(query), claim(case)):
            return case
    raise AssertionError("the search did not refute the claim")


@pytest.mark.parametrize("query", EACH)
@pytest.mark.parametrize("neighbours", Neighbours)
def test_negative_control_a_slightly_smaller_claim_is_refuted(query, neighbours):
    # One code less than claimed on every coordinate is refuted, so the claims are tight too.
    refuted(query, lambda case: tuple(d - 1 for d in case.claim(query)), cases(neighbours))


def share(query: Query, of: float) -> Callable[[Case], Claim]:
    return lambda case: tuple(int(of * d) for d in case.claim(query))


@pytest.mark.parametrize(
    ("query", "of", "neighbours", "options"),
    [
        ("curvature", 0.999, Neighbours.ADD_REMOVE, 1),
        ("curvature", 0.9, Neighbours.REPLACE_ONE, 1),
        ("curvature", 0.7, Neighbours.ADD_REMOVE, 3),
        ("curvature", 0.55, Neighbours.REPLACE_ONE, 3),
        ("gauge", 0.999, Neighbours.ADD_REMOVE, 1),
        ("gauge", 0.7, Neighbours.REPLACE_ONE, 1),
        ("gauge", 0.7, Neighbours.ADD_REMOVE, 3),
        ("gauge", 0.7, Neighbours.REPLACE_ONE, 3),
        ("luck", 0.9, Neighbours.ADD_REMOVE, 1),
        ("luck", 0.9, Neighbours.ADD_REMOVE, 3),
        ("luck", 0.9, Neighbours.REPLACE_ONE, 1),
        ("luck", 0.6, Neighbours.REPLACE_ONE, 3),
    ],
)
def test_negative_control_a_share_of_the_claim_is_refuted(query, of, neighbours, options):
    refuted(query, share(query, of), cases(neighbours, options))


def test_negative_control_curvature_needs_the_root_of_two():
    """Two agents with one option each move different entries."""
    refuted(
        "curvature",
        lambda case: queries.shifts(
            replace_relation(case.market, Neighbours.ADD_REMOVE), "curvature"
        ),
        cases(Neighbours.REPLACE_ONE, 1),
    )


def test_negative_control_curvature_of_one_option_is_refuted_for_several():
    """The difference of two options has twice as many entries."""
    refuted(
        "curvature",
        lambda case: queries.shifts(replace_options(case.market, 1), "curvature"),
        cases(Neighbours.ADD_REMOVE, 3),
    )


def test_negative_control_luck_is_not_bounded_by_half_the_dearest_option():
    refuted(
        "luck",
        lambda case: (closing.dearest(case.board) // 2,),
        (case for case in cases(Neighbours.ADD_REMOVE, 1) if not case.thinned),
    )


def test_negative_control_the_claim_of_add_remove_is_refuted_under_replace_one():
    case = refuted(
        "demand",
        lambda case: queries.shifts(replace_relation(case.market, Neighbours.ADD_REMOVE), "demand"),
        cases(Neighbours.REPLACE_ONE),
    )
    assert case.market.bundle_size < len(case.market.resources)


@pytest.mark.parametrize("query", ["demand", "granted"])
def test_negative_control_a_smaller_bundle_size_is_refuted(query):
    refuted(
        query,
        lambda case: case.claim(query)[:-1] if case.market.bundle_size > 1 else (2**16,) * 7,
        cases(),
    )


@pytest.mark.parametrize("query", ["demand", "granted"])
def test_negative_control_the_smallest_caps_are_refuted(query):
    refuted(
        query,
        lambda case: tuple(sorted(case.market.cap_codes))[: len(case.claim(query))],
        cases(),
    )


@pytest.mark.parametrize("query", QUERIES)
def test_negative_control_two_agents_that_differ_are_refuted(query):
    """The claims are for one agent: the search notices if two of them leave."""
    two = (case for case in cases(Neighbours.ADD_REMOVE) if len(case.others) > 1)
    refuted(query, lambda case: case.claim(query), map(TwoLeave.of, two))


class TwoLeave(Case):
    """The last of the other agents leaves together with the differing one."""

    @classmethod
    def of(cls, case: Case) -> "TwoLeave":
        return cls(**{field.name: getattr(case, field.name) for field in fields(case)})

    def _engine(self, agent: Agent | None) -> MemoryEngine:
        others = self.others if agent is not None else self.others[:-1]
        return Case._engine(replace(self, others=others), agent)


# --- batches ----------------------------------------------------------------------------------

BATCHES = 3


def batch_moves(case: Case) -> list[list[int]]:
    """How far the answer of each batch moves, largest coordinates first."""
    engines, moves = case.engines, []
    for index in range(BATCHES):
        step = Step("demand", case.rounds[0][0], Gaussian(1.0), 1, Batch(index, BATCHES))
        answers = [statistic(step, e, case.board, None) for e in engines]
        changed = (abs(a - b) for a, b in zip(*answers, strict=True))
        moves.append(sorted(changed, reverse=True))
    return moves


def own_batch(case: Case) -> int:
    return (coin_of(case.board.header.order, ME) // 512) * BATCHES // 2**44


def test_no_agent_moves_its_batch_further_than_claimed_and_no_other_at_all():
    moved = set()
    for case in the_cases():
        mine, claimed = own_batch(case), case.claim("demand")
        for index, moves in enumerate(batch_moves(case)):
            if index == mine:
                assert not exceeds("demand", moves, claimed), (case, moves, claimed)
                if any(moves):
                    moved.add((is_sparse(case.market), case.market.options > 1))
                    moved |= {mine, case.market.neighbours}
            else:
                assert not any(moves), (case, index, moves)
    assert len(moved) == 4 + BATCHES + len(Neighbours)  # the search reaches all of them


@pytest.mark.parametrize("neighbours", Neighbours)
def test_negative_control_a_slightly_smaller_claim_on_a_batch_is_refuted(neighbours):
    for case in itertools.islice(cases(neighbours), 3000):
        less = tuple(d - 1 for d in case.claim("demand"))
        if exceeds("demand", batch_moves(case)[own_batch(case)], less):
            return
    raise AssertionError("the search did not refute the claim")


def test_negative_control_an_order_by_rows_moves_several_batches():
    """If turns followed the order of the table, an agent who leaves would move all after it."""
    for case in itertools.islice(cases(Neighbours.ADD_REMOVE), 3000):
        if sum(any(moves) for moves in batch_moves(Numbered.of(case))) > 1:
            return
    raise AssertionError("the search did not see it")


class Numbered(Case):
    """Agents have their positions as ids."""

    @classmethod
    def of(cls, case: Case) -> "Numbered":
        return cls(**{field.name: getattr(case, field.name) for field in fields(case)})

    def _engine(self, agent: Agent | None) -> MemoryEngine:
        agents = list(self.others)
        if agent is not None:
            agents.insert(min(self.place, len(agents)), agent)
        return engine_of(self.market, [(str(i), each) for i, each in enumerate(agents)])


# --- the worst cases, by hand -----------------------------------------------------------------

C, COST = 65535, 65535 * 2**14
"""A cap in codes, and the cost of that much at a price of 2^34, in value codes."""


def by_hand(first: Agent, second: Agent, rounds: Rounds, m: int, bundle: int, **more) -> Case:
    """A case in a market where amounts and values equal their codes."""
    market = Market(
        supply=[1000.0 * C] * m,
        max_demand=float(C),
        max_value=2.0**32 - 1,
        agents=1,
        bundle_size=bundle,
        options=max(len(first), len(second)),
    )
    assert market.cap_codes == (C,) * m and market.value_step == 1.0
    settings = {"seed": some_seeds()[0], "overload": (0.0,) * m} | more
    return Case(market, (), first, second, 0, rounds, **settings)


def demand_of(m: int, *resources: int) -> tuple[float, ...]:
    return tuple(float(C) * (j in resources) for j in range(m))


def test_curvature_of_several_options_needs_more_than_the_root_of_two():
    """Entries of both signs: the matrices of two agents may point in opposite directions."""

    def agent(*first: int) -> Agent:
        rest = [j for j in range(6) if j not in first]
        return (COST + 1.0, demand_of(6, *first)), (1.0, demand_of(6, *rest))

    case = by_hand(agent(0, 1, 2), agent(0, 3, 4), (((2**34, *[0] * 5), 1),), 6, 3)
    moves, (claimed,) = case.moves("curvature"), case.claim("curvature")
    assert moves[:5] == [2 * C * 1024] * 4 + [0]
    length = 4 * C * 1024
    assert claimed / 2**0.5 < length <= claimed


def test_the_luck_of_several_options_needs_the_factor_2():
    """The coin that gives one agent an expensive option gives the other a worthless one."""
    dear = 2**34
    rounds = (((dear, dear + 2**20), 1), ((dear + 2**20, dear), 49))
    first = ((float(COST), demand_of(2, 0)),)  # only in round 1: a share of 1/50
    # The worthless option in round 1, the expensive one in round 2.
    second = ((0.0, demand_of(2)), (COST + 1.0, demand_of(2, 1)))
    case = by_hand(first, second, rounds, 2, 1)
    assert coin_of(case.seed, ME) / 2**53 < 1 / 50
    bound = closing.dearest(case.board)
    assert bound == COST + C
    (moved,), (claimed,) = case.moves("luck"), case.claim("luck")
    assert claimed == 2 * bound
    assert moved == pytest.approx(COST * (0.98 + 0.98), rel=1e-6)
    (of_one_option,) = queries.luck_shifts(replace_options(case.market, 1), bound, thinned=False)
    assert of_one_option < moved <= claimed


def test_the_luck_of_what_thinning_leaves_needs_the_factor_2():
    """An agent that is thinned away loses everything; an unthinned one gains nearly everything."""
    rounds = (((0, 2**34), 1), ((0, 2**34 + 2**20), 30))
    seed = next(s for s in some_seeds() if coin_of(s, ME) / 2**53 > 1 / 50)
    first = ((2.0**32 - 1, demand_of(2, 0)),)
    second = ((float(COST), demand_of(2, 1)),)
    assert 1 / 50 < coin_of(seed, ME) / 2**53 < 1 / 31
    case = by_hand(first, second, rounds, 2, 1, seed=seed, overload=(50.0, 0.0))
    (moved,), (claimed,) = case.moves("luck"), case.claim("luck")
    cap = case.market.value_cap_code
    assert claimed == 2 * cap
    assert moved == pytest.approx(cap + COST * 30 / 31, rel=1e-6)
    assert queries.luck_shifts(case.market, cap, thinned=False)[0] < moved <= claimed


def replace_options(market: Market, options: int) -> Market:
    data = market.to_dict()
    data["agents"]["options"] = options
    return Market.from_dict(data)


def replace_relation(market: Market, neighbours: Neighbours) -> Market:
    data = market.to_dict()
    data["privacy"]["neighbours"] = neighbours.value
    return Market.from_dict(data)


def test_the_search_reaches_every_kind_of_market():
    seen = {
        (is_sparse(case.market), case.market.options > 1, case.market.neighbours)
        for case in the_cases()
    }
    assert len(seen) == 8


def test_the_search_reaches_both_ways_to_measure_luck():
    seen = set()
    for case in the_cases():
        _, bound = closing.luck_terms(case.board)
        assert case.thinned == (max(case.overload) > 1.0)
        seen.add((case.thinned, bound < case.market.value_cap_code))
    assert seen == {(True, False), (False, False), (False, True)}
