"""A search for two neighbours whose answers differ by more than is claimed.

The claims are those of `queries.change` and `queries.luck_change`. Markets, records, prices, rounds
and coins are random, with many numbers at their bounds and many close choices. The answers come
from the real encoding, the real engine and the real statistic. The negative controls run the same
search against claims that are too small, and it must refute every one of them. Only then does a
search that finds nothing mean something.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache, cached_property

import numpy as np
import pyarrow as pa
import pytest

from helpers import coin_of, open_board
from jdpack import Budget, Market, MaxTotal, Neighbours, PersonBounds
from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Release, Seed, Step
from jdpack.common.batches import Batch
from jdpack.door import statistic
from jdpack.engines.memory import MemoryEngine
from jdpack.market.grid import (
    CHANCE_MAX,
    DEMAND_CODE_MAX,
    PRICE_CODE_MAX,
    PRICE_UNITS_PER_VALUE_CODE,
)
from jdpack.privacy import queries
from jdpack.privacy.noise import Gaussian
from jdpack.privacy.queries import CLOSING, ChanceChange, Change, Query
from jdpack.protocol import bounds, closing
from jdpack.records.codes import is_sparse
from jdpack.records.encode import encode
from jdpack.records.tables import OptionRows as Rows

EACH: tuple[Query, ...] = ("demand", "scale", "value", "granted", "welfare")
"""Queries with a claim for each coordinate, all of which one agent can reach."""
WHOLE: tuple[Query, ...] = ("curvature", "gauge")
"""Queries with one claim, for the length of the whole move."""
QUERIES = (*EACH, *WHOLE, "chance", "luck")

Option = tuple[float, tuple[float, ...]]
"""An option: a value and an amount of each resource."""
Agent = tuple[Option, ...]
Moves = tuple[int, ...]
Rounds = tuple[tuple[tuple[int, ...], int], ...]
ME = "the differing agent"
C = DEMAND_CODE_MAX
NOTHING = -1e9  # a load so low that nothing is scaled or thinned


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
    """The load that the rounds show; `luck` depends on what is scaled or thinned."""

    @cached_property
    def board(self) -> Billboard:
        """The public record up to the query `luck`."""
        budget = Budget(1.0, 1e-6, 1e6, 0.0, 1e-8)  # large enough that noise hardly matters
        supplies = self.market.supply_codes
        seen = tuple(int(x * s) for x, s in zip(self.overload, supplies, strict=True))
        header = open_board(self.market, [], self.seed, budget).header
        board = Billboard(header)
        for prices, weight in self.rounds:
            board.post(Release(Step("demand", prices, Gaussian((1.0,)), weight), seen))
        if board.header.coins:
            board.post(Release(Step("granted", (), Gaussian((1.0,))), seen))
        board.post(Release(Step("chance", (), Gaussian((1.0,))), (0,) * (len(supplies) + 1)))
        board.post(Release(Step("welfare", (), Gaussian((1.0,))), (2**50,)))
        return board

    @classmethod
    def of(cls, case: "Case") -> "Case":
        return cls(**{field.name: getattr(case, field.name) for field in fields(case)})

    @property
    def extent(self) -> tuple[int, int] | None:
        return closing.luck_range(self.board)

    def claim(self, query: Query) -> Change:
        return closing.change(self.board, query)

    def moves(self, query: Query) -> Moves:
        """How far the numbers of the answer move."""
        if query == "granted" and self.market.divisible:  # coins grant whole options
            return replace(self, market=self.market.changed(divisible=False)).moves(query)
        prices = () if query in CLOSING else self.rounds[0][0]
        step = Step(query, prices, Gaussian((1.0,)))
        answers = [statistic(step, e, self.board, Seed(self.seed)) for e in self.engines]
        return tuple(abs(a - b) for a, b in zip(*answers, strict=True))

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


def exceeds(query: Query, moves: Moves, claimed: Change) -> bool:
    """Whether some move exceeds its claim."""
    if query in WHOLE:
        return sum(move**2 for move in moves) > claimed.most**2
    if query == "chance":
        assert isinstance(claimed, ChanceChange)
        loads = sum(move**2 for move in moves[:-1]) > claimed.count * claimed.most**2
        return loads or moves[-1] ** 2 > claimed.last
    return max(moves) > claimed.most or sum(move > 0 for move in moves) > claimed.count


def length(moves: Moves, scales: tuple[float, ...]) -> Fraction:
    """The sum of (move / scale)^2."""
    return sum((Fraction(d) / Fraction(s)) ** 2 for d, s in zip(moves, scales, strict=True))


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
    caps = supply * rng.choice([1.0, 1.0, 0.5, 0.3, 1e-3], m)
    relation = neighbours or list(Neighbours)[rng.integers(2)]
    market = Market(
        supply=supply.tolist(),
        max_demand=caps.tolist(),
        max_value=float(rng.choice([1.0, 0.7, 1e6])),
        agents=int(rng.choice([2, 3, 5])),
        bundle_size=int(rng.choice([1, -(-m // 2), max(1, m - 1), m])),
        options=options or int(rng.choice([1, 1, 3])),
        neighbours=relation,
        divisible=bool(rng.random() < 0.3),
        max_total=some_totals(rng, caps),
    )
    rounds = some_rounds(rng, m)
    count = market.agents + (relation is Neighbours.REPLACE_ONE)
    first, *others = [an_agent(rng, market, rounds) for _ in range(count)]
    second = others.pop() if relation is Neighbours.REPLACE_ONE else None
    overload = rng.choice([NOTHING, 2.0, 50.0], m) if rng.random() < 0.5 else np.full(m, NOTHING)
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


def some_totals(rng: np.random.Generator, caps: np.ndarray) -> list[MaxTotal] | None:
    """Bounds on the sums of options over all resources, over some of them, or none."""
    if rng.random() < 0.6:
        return None
    alike = [j for j in range(len(caps)) if 1e-2 < caps[j] / caps[0] < 1e2]
    names = [j for j in alike if j == 0 or rng.random() < 0.7]
    most = max(caps[names].max(), caps[names].sum() * rng.choice([0.3, 0.5]))
    return [MaxTotal(float(most), tuple(f"resource {j + 1}" for j in names))]


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
        for total in market.totals:
            left = total.amount
            for j in rng.permutation(total.resources):
                amounts[j] = min(amounts[j], left)
                left -= amounts[j]
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


def how_many_move(query: Query, cases: Sequence[Case]) -> int:
    """In how many cases the answer moves; in none may it move further than claimed."""
    some = 0
    for case in cases:
        moves, claimed = case.moves(query), case.claim(query)
        assert not exceeds(query, moves, claimed), (case, moves, claimed)
        some += any(moves)
    return some


@pytest.mark.parametrize("query", QUERIES)
def test_no_agent_moves_an_answer_further_than_claimed(query):
    assert how_many_move(query, the_cases()) > 50


def refuted(query: Query, claim: Callable[[Case], Change], search: Iterator[Case]) -> Case:
    """A case that breaks a claim."""
    for case in itertools.islice(search, 3000):
        if exceeds(query, case.moves(query), claim(case)):
            return case
    raise AssertionError("the search did not refute the claim")


@pytest.mark.parametrize("query", EACH)
@pytest.mark.parametrize("neighbours", Neighbours)
def test_negative_control_a_slightly_smaller_claim_is_refuted(query, neighbours):
    # One code less than claimed is refuted, so the claims are tight too.
    refuted(query, lambda case: Change(case.claim(query).most - 1, 2**16), cases(neighbours))


def share(query: Query, of: float) -> Callable[[Case], Change]:
    def part(case: Case) -> Change:
        claim = case.claim(query)
        if isinstance(claim, ChanceChange):
            return ChanceChange(int(of * claim.most), claim.count, claim.last)
        return Change(int(of * claim.most), claim.count)

    return part


@pytest.mark.parametrize(
    ("query", "of", "neighbours", "options"),
    [
        ("curvature", 0.999, Neighbours.ADD_REMOVE, 1),
        ("curvature", 0.999, Neighbours.REPLACE_ONE, 1),
        ("curvature", 0.999, Neighbours.ADD_REMOVE, 3),
        ("curvature", 0.999, Neighbours.REPLACE_ONE, 3),
        ("gauge", 0.999, Neighbours.ADD_REMOVE, 1),
        ("gauge", 0.7, Neighbours.REPLACE_ONE, 1),
        ("gauge", 0.7, Neighbours.ADD_REMOVE, 3),
        ("gauge", 0.7, Neighbours.REPLACE_ONE, 3),
        ("chance", 0.999, Neighbours.ADD_REMOVE, 1),
        ("chance", 0.999, Neighbours.REPLACE_ONE, 1),
        ("chance", 0.999, Neighbours.REPLACE_ONE, 3),
        ("luck", 0.999, Neighbours.ADD_REMOVE, 1),
        ("luck", 0.999, Neighbours.ADD_REMOVE, 3),
        ("luck", 0.999, Neighbours.REPLACE_ONE, 1),
        ("luck", 0.999, Neighbours.REPLACE_ONE, 3),
    ],
)
def test_negative_control_a_share_of_the_claim_is_refuted(query, of, neighbours, options):
    refuted(query, share(query, of), cases(neighbours, options))


@pytest.mark.parametrize("neighbours", Neighbours)
def test_negative_control_a_smaller_variance_of_value_is_refuted(neighbours):
    refuted(
        "chance",
        lambda case: replace(case.claim("chance"), count=2**20, last=int(0.99 * CHANCE_MAX) ** 2),
        cases(neighbours),
    )


@pytest.mark.parametrize("divisible", [True, False])
def test_negative_control_a_smaller_luck_is_refuted(divisible):
    """What scaling takes from a whole share of the largest value is the claim, or half of it."""
    refuted(
        "luck",
        share("luck", 0.999 if divisible else 0.499),
        (c for c in cases(Neighbours.REPLACE_ONE) if c.market.divisible == divisible and c.extent),
    )


@pytest.mark.parametrize("options", [1, 3])
def test_negative_control_curvature_needs_the_root_of_two(options):
    """Two agents move different entries."""
    refuted(
        "curvature",
        lambda case: queries.change(
            replace_relation(case.market, Neighbours.ADD_REMOVE), "curvature"
        ),
        cases(Neighbours.REPLACE_ONE, options),
    )


@pytest.mark.parametrize("query", ["demand", "chance"])
def test_negative_control_the_claim_of_add_remove_is_refuted_under_replace_one(query):
    case = refuted(
        query,
        lambda case: queries.change(replace_relation(case.market, Neighbours.ADD_REMOVE), query),
        cases(Neighbours.REPLACE_ONE, 1),
    )
    assert case.market.bundle_size < len(case.market.resources)


@pytest.mark.parametrize("query", ["demand", "chance"])
def test_negative_control_a_smaller_bundle_size_is_refuted(query):
    refuted(
        query,
        lambda case: replace(case.claim(query), count=case.claim(query).count - 1),
        cases(options=1),
    )


# --- totals and uneven noise ----------------------------------------------------------------------


def some_scales(case: Case) -> tuple[float, ...]:
    """Scales for the numbers of a demand release, some of them far apart."""
    rng = np.random.default_rng([sum(map(abs, case.rounds[0][0])) % 2**32, 5])
    m = len(case.market.resources)
    return tuple((10.0 ** rng.uniform(-1.0, 1.0, m) * (1.0 + rng.integers(2, size=m))).tolist())


def too_long(case: Case, of: float = 1.0) -> bool:
    """Whether a demand release moves further than this part of its claim, at uneven scales."""
    scales = some_scales(case)
    claimed = case.claim("demand").worst(scales)
    return length(case.moves("demand"), scales) > Fraction(of * claimed)


def test_no_agent_moves_demand_further_than_claimed_at_uneven_scales():
    for case in the_cases():
        assert not too_long(case), case
    assert sum(bool(case.market.max_total) for case in the_cases()) > 100


def at_its_worst(case: Case) -> Case:
    """The case with two agents who fill their totals where the noise is smallest, all for free."""
    market, m = case.market, len(case.market.resources)
    free = replace(case, rounds=(((0,) * m, 1),))
    scales, caps = some_scales(free), [r.max_demand for r in market.resources]
    totals = {j: i for i, total in enumerate(market.totals) for j in total.resources}
    asked = np.zeros((2, m))
    left = [[total.amount for total in market.totals] for _ in asked]
    for j in sorted(range(m), key=lambda j: scales[j] ** 2 * (caps[j] if j in totals else 1e-9)):
        room = [own[totals[j]] if j in totals else caps[j] for own in left]
        room = [
            (r if np.count_nonzero(own) < market.bundle_size else 0.0, -np.count_nonzero(own))
            for r, own in zip(room, asked, strict=True)
        ]
        who = room.index(max(room))
        asked[who, j] = min(caps[j], room[who][0])
        if j in totals:
            left[who][totals[j]] -= asked[who, j]
    first, second = (((market.max_value, tuple(row.tolist())),) for row in asked)
    alone = market.neighbours is Neighbours.ADD_REMOVE
    return replace(free, first=first, second=None if alone else second)


def test_no_agent_who_fills_its_totals_moves_demand_further_than_claimed():
    for case in map(at_its_worst, the_cases()):
        assert not too_long(case), case


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("neighbours", Neighbours)
def test_negative_control_a_little_less_at_uneven_scales_is_refuted(neighbours, bounded):
    for case in itertools.islice(map(at_its_worst, cases(neighbours)), 3000):
        smaller = case.claim("demand").worst(some_scales(case))
        free = Change(C, case.claim("demand").count).worst(some_scales(case))
        if (smaller < 0.99 * free) == bounded and too_long(case, 0.999):
            return
    raise AssertionError("the search did not refute the claim")


@pytest.mark.parametrize("query", QUERIES)
def test_negative_control_two_agents_that_differ_are_refuted(query):
    """The claims are for one agent: the search notices if two of them leave."""
    two = (case for case in cases(Neighbours.ADD_REMOVE) if len(case.others) > 1)
    refuted(query, lambda case: case.claim(query), map(TwoLeave.of, two))


class TwoLeave(Case):
    """The last of the other agents leaves together with the differing one."""

    def _engine(self, agent: Agent | None) -> MemoryEngine:
        others = self.others if agent is not None else self.others[:-1]
        return Case._engine(replace(self, others=others), agent)


# --- batches ----------------------------------------------------------------------------------

BATCHES = 3


def batch_moves(case: Case) -> list[Moves]:
    """How far the answer of each batch moves."""
    engines, moves = case.engines, []
    for index in range(BATCHES):
        step = Step("demand", case.rounds[0][0], Gaussian((1.0,)), 1, Batch(index, BATCHES))
        answers = [statistic(step, e, case.board, None) for e in engines]
        moves.append(tuple(abs(a - b) for a, b in zip(*answers, strict=True)))
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


def test_no_agent_moves_a_block_further_than_claimed_and_none_without_its_batch():
    """Blocks of batches, each at the prices of its own round, which differ."""
    moved = set()
    for case in the_cases():
        board = Billboard(case.board.header)
        for index in range(BATCHES):
            prices = tuple(p * index for p in case.rounds[0][0])
            step = Step("demand", prices, Gaussian((1.0,)), 1, Batch(index, BATCHES))
            for span in range(1, index + 2):
                block = replace(step, span=span)
                answers = [statistic(block, e, board, None) for e in case.engines]
                moves = tuple(abs(a - b) for a, b in zip(*answers, strict=True))
                assert not exceeds("demand", moves, case.claim("demand")), (case, span, moves)
                assert index - span < own_batch(case) <= index or not any(moves)
                moved |= {(index, span)} if any(moves) else set()
            board.post(Release(step, (0,) * len(prices)))
    assert len(moved) == BATCHES * (BATCHES + 1) // 2


@pytest.mark.parametrize("neighbours", Neighbours)
def test_negative_control_a_slightly_smaller_claim_on_a_batch_is_refuted(neighbours):
    for case in itertools.islice(cases(neighbours), 3000):
        less = Change(C - 1, 2**16)
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

    def _engine(self, agent: Agent | None) -> MemoryEngine:
        agents = list(self.others)
        if agent is not None:
            agents.insert(min(self.place, len(agents)), agent)
        return engine_of(self.market, [(str(i), each) for i, each in enumerate(agents)])


# --- people with several requests -----------------------------------------------------------------

Person = tuple[Agent, ...]
"""The requests of one person, in order."""


class Many(Case):
    """A case whose agents make several requests each. Those beyond the bounds are left out."""

    def _engine(self, agent: Person | None) -> MemoryEngine:
        people = [(f"other {i}", other) for i, other in enumerate(self.others)]
        if agent is not None:
            people.insert(min(self.place, len(people)), (ME, agent))
        rows = [
            (name, f"request {r}", *option)
            for name, requests in people
            for r, request in enumerate(requests)
            for option in request
        ]
        ids, names, values, amounts = zip(*rows, strict=True)
        columns = np.array(amounts, dtype=np.float64).T
        batch = Rows(
            values=np.array(values),
            ids=pa.array(ids),
            requests=pa.array(names, pa.large_string()),
            columns=[np.ascontiguousarray(column) for column in columns],
        )
        return MemoryEngine(encode(self.market, [[batch]], clamp=True), threads=1)

    def left_out(self) -> int:
        return sum(engine.clamped for engine in self.engines)


def many(
    neighbours: Neighbours | None = None,
    options: int | None = None,
    bounded: bool | None = None,
    start: int = 0,
) -> Iterator[Many]:
    """An endless stream of cases with several requests."""
    for seed in itertools.count(start):
        yield a_case_of_many(np.random.default_rng([seed, 11]), neighbours, options, bounded)


def a_case_of_many(
    rng: np.random.Generator,
    neighbours: Neighbours | None,
    options: int | None,
    bounded: bool | None,
) -> Many:
    base = a_case(rng, neighbours, options)
    market = base.market.changed(agents=2)
    explicit = bool(rng.random() < 0.6) if bounded is None else bounded
    market = market.changed(
        person=some_bounds(rng, market) if explicit else int(rng.choice([2, 3]))
    )
    relation = market.neighbours is Neighbours.REPLACE_ONE
    first, *others = [a_person(rng, market, base.rounds) for _ in range(2 + relation)]
    second = others.pop() if relation else None
    given = {field.name: getattr(base, field.name) for field in fields(base)}
    return Many(**given | {"market": market, "others": tuple(others)} | {
        "first": first, "second": second,
    })  # fmt: skip


def some_bounds(rng: np.random.Generator, market: Market) -> PersonBounds:
    size, m = market.bundle_size, len(market.resources)
    demand = {
        r.name: r.max_demand * float(rng.choice([1.0, 1.5, 2.0]))
        for r in market.resources
        if rng.random() < 0.5
    }
    totals = some_totals(rng, np.array([1.5 * r.max_demand for r in market.resources]))
    return PersonBounds(
        requests=int(rng.choice([2, 3, 4])),
        max_value=market.max_value * float(rng.choice([1.0, 1.5])) if rng.random() < 0.4 else None,
        bundle_size=min(m, size + int(rng.integers(2))) if rng.random() < 0.5 else None,
        max_demand=demand,
        max_total=tuple(totals or ()),
    )


def a_person(rng: np.random.Generator, market: Market, rounds: Rounds) -> Person:
    """Requests that are all alike, or all different; sometimes more than allowed."""
    count = int(rng.integers(1, market.requests + 2))
    if rng.random() < 0.6:
        return (an_agent(rng, market, rounds),) * count
    return tuple(an_agent(rng, market, rounds) for _ in range(count))


@cache
def the_many() -> list[Many]:
    return list(itertools.islice(many(), 400))


@pytest.mark.parametrize("query", QUERIES)
def test_no_person_moves_an_answer_further_than_claimed(query):
    assert how_many_move(query, the_many()) > 40


def test_no_person_moves_demand_further_than_claimed_at_uneven_scales():
    for case in the_many():
        assert not too_long(case), case
    assert sum(case.left_out() > 0 for case in the_many()) > 100
    assert sum(bool(case.market.person.max_total) for case in the_many()) > 50


def test_a_person_is_in_one_batch():
    moved = 0
    for case in the_many():
        for index, moves in enumerate(batch_moves(case)):
            if index == own_batch(case):
                assert not exceeds("demand", moves, case.claim("demand")), (case, moves)
                moved += any(moves)
            else:
                assert not any(moves), (case, index, moves)
    assert moved > 100


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("neighbours", Neighbours)
def test_negative_control_a_claim_for_one_row_is_refuted(query, neighbours):
    """The sensitivities of one request protect a request, and not the person who makes several."""

    def per_row(case: Case) -> Change:
        return Case.claim(replace(Case.of(case), market=case.market.changed(person=1)), query)

    refuted(query, per_row, many(neighbours))


@pytest.mark.parametrize("query", EACH)
@pytest.mark.parametrize("neighbours", Neighbours)
def test_negative_control_a_slightly_smaller_claim_for_a_person_is_refuted(query, neighbours):
    refuted(
        query,
        lambda case: Change(case.claim(query).most - 1, 2**16),
        many(neighbours, bounded=False),
    )


@pytest.mark.parametrize("query", EACH)
def test_negative_control_a_part_of_the_claim_is_refuted_where_people_are_bounded(query):
    bounds = "max_value" if query in ("value", "welfare") else "max_demand"
    search = (case for case in many(bounded=True) if getattr(case.market.person, bounds))
    refuted(query, lambda case: Change(int(0.99 * case.claim(query).most), 2**16), search)


@pytest.mark.parametrize(("query", "start"), [("demand", 0), ("chance", 2200)])
def test_negative_control_a_smaller_bundle_size_of_a_person_is_refuted(query, start):
    """Few cases refute the claim on chance, and the first of them comes late."""

    def fewer(case: Case) -> Change:
        return replace(case.claim(query), count=case.claim(query).count - 1)

    all_cases = many(options=1, bounded=True, start=start)
    search = (case for case in all_cases if case.market.person.bundle_size)
    refuted(query, fewer, (case for case in search if case.claim(query).count > 1))


@pytest.mark.parametrize(
    ("query", "of", "neighbours", "options"),
    [
        ("curvature", 0.999, Neighbours.ADD_REMOVE, 1),
        ("curvature", 0.45, Neighbours.ADD_REMOVE, 3),
        ("gauge", 0.999, Neighbours.ADD_REMOVE, 1),
        ("gauge", 0.7, Neighbours.REPLACE_ONE, 1),
        ("chance", 0.99, Neighbours.ADD_REMOVE, 1),
        ("chance", 0.99, Neighbours.REPLACE_ONE, 1),
        ("luck", 0.99, Neighbours.ADD_REMOVE, 1),
    ],
)
def test_negative_control_a_share_of_the_claim_for_a_person_is_refuted(
    query, of, neighbours, options
):
    refuted(query, share(query, of), many(neighbours, options, bounded=False))


# --- the worst cases, by hand -----------------------------------------------------------------

COST = C * 2**14
"""The cost of a cap at a price of 2^34, in value codes."""


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
    assert market.unit_sizes == (1.0,) * m and market.value_step == 1.0
    settings = {"seed": some_seeds()[0], "overload": (NOTHING,) * m} | more
    return Case(market, (), first, second, 0, rounds, **settings)


def demand_of(m: int, *resources: int) -> tuple[float, ...]:
    return tuple(float(C) * (j in resources) for j in range(m))


def test_the_curvature_of_two_options_that_share_nothing_reaches_the_claim():
    """Entries of both signs, in the same places: the two matrices still never point apart."""

    def agent(*first: int) -> Agent:
        rest = [j for j in range(4) if j not in first]
        return (2.0 * COST, demand_of(4, *first)), (2.0 * COST, demand_of(4, *rest))

    # v = (1, 1, -1, -1) and w = (1, -1, 1, -1), up to a factor: v w = 0.
    case = by_hand(agent(0, 1), agent(0, 2), (((2**33,) * 4, 1),), 4, 2)
    moves, claimed = case.moves("curvature"), case.claim("curvature").most
    length = sum(move**2 for move in moves) ** 0.5
    assert moves.count(0) == 8 and 0.999 * claimed < length <= claimed


def test_curvature_of_two_people_needs_the_root_of_two():
    """Each has two requests for one resource, and it is not the same one."""

    def person(resource: int) -> Person:
        return (((float(COST), demand_of(2, resource)),),) * 2

    rounds = (((2**34, 2**34), 1),)
    case = Many.of(by_hand(person(0), person(1), rounds, 2, 1))
    bounds = PersonBounds(2, bundle_size=1)
    case = replace(case, market=case.market.changed(person=bounds, options=1))
    moves, claimed = case.moves("curvature"), case.claim("curvature").most
    each = 2 * math.isqrt(C * 1024) ** 2
    assert moves == (each, 0, 0, each)
    assert 0.999 * claimed < math.hypot(each, each) <= claimed


def test_the_luck_of_what_thinning_leaves_needs_the_value_cap_and_the_dearest_cost():
    """An agent that is thinned away loses everything; a lucky one gains nearly what it cost."""
    rounds = (((0, 2**34), 1), ((0, 2**34 + 2**20), 30))
    seed = next(s for s in some_seeds() if coin_of(s, ME) / 2**53 > 1 / 50)
    first = ((2.0**32 - 1, demand_of(2, 0)),)
    second = ((float(COST), demand_of(2, 1)),)
    assert 1 / 50 < coin_of(seed, ME) / 2**53 < 1 / 31
    case = by_hand(first, second, rounds, 2, 1, seed=seed, overload=(50.0, NOTHING))
    (moved,), claimed = case.moves("luck"), case.claim("luck").most
    cap, dearest = case.market.value_cap_code, bounds.dearest(case.board)
    assert case.extent == (-cap, dearest) and claimed == cap + dearest
    assert moved == pytest.approx(cap + COST * 30 / 31, rel=1e-6)
    assert 0.99 * claimed < moved <= claimed


def test_the_chance_of_several_options_needs_more_than_one_per_resource():
    """An agent takes another option in each of three rounds: all resources have odds of a third."""
    high, low = 2**35, 2**34
    rounds = tuple((tuple(low if j // 2 == t else high for j in range(6)), 1) for t in range(3))
    options = tuple((2.0**32 - 1, demand_of(6, 2 * o, 2 * o + 1)) for o in range(3))
    case = by_hand(options, ((0.0, demand_of(6)),), rounds, 6, 2)
    moves, claimed = case.moves("chance"), case.claim("chance")
    assert moves[:6] == (-(-2 * C * C // 9 // 2**14),) * 6
    squares = sum(move**2 for move in moves[:6])
    per_option = squares / (2 * CHANCE_MAX**2)
    assert 2.36 < per_option < 2.5, "one option has 1, and the proof allows 2.5"
    assert squares <= claimed.count * claimed.most**2


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


def test_the_search_reaches_every_way_to_measure_luck():
    seen = set()
    for case in the_cases():
        extent = case.extent
        seen.add((case.market.divisible, extent is not None))
        if extent is not None:
            lowest, highest = extent
            assert lowest < 0 and (highest == 0) == case.market.divisible
    assert len(seen) == 4
