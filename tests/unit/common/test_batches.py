"""Batches: the public order of the agents, and batches on the billboard."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from helpers import Records, check_error, coin_of, whole_market
from jdpack import Billboard, BillboardError, Budget, Certificate, Market, allocate
from jdpack.billboard.lines import WEIGHT_SUM_MAX, Header, Release, Seed, Step
from jdpack.common.batches import BATCHES_MAX, Batch, turn, turns
from jdpack.common.coins import COIN_BITS
from jdpack.engines.memory import MemoryEngine
from jdpack.market.grid import SHARE
from jdpack.policies.mwu_online import MwuOnline
from jdpack.privacy.noise import Gaussian

NEVER = 1e-9
LAST = 2**COIN_BITS - 1
places = st.integers(0, LAST) | st.sampled_from([0, 1, 511, 512, 2**52, LAST - 512, LAST])
counts = st.integers(1, BATCHES_MAX) | st.sampled_from([1, 2, 3, BATCHES_MAX - 1, BATCHES_MAX])

# --- turns ------------------------------------------------------------------------------------


@given(places, counts)
@example(LAST, BATCHES_MAX)
@example(LAST, 1)
@example(0, BATCHES_MAX)
def test_a_turn_is_the_place_in_the_order_cut_into_equal_parts(place, count):
    index = turn(place, count)
    assert 0 <= index < count
    assert index == (place // 512) * count // 2**44  # 44 bits of the place are enough


@given(st.lists(places, max_size=20), counts)
@example([0, LAST, LAST - 511], BATCHES_MAX)
def test_the_turns_of_many_are_the_turn_of_each(some, count):
    found = turns(np.array(some, np.uint64), count)
    assert found.dtype == np.int64
    assert found.tolist() == [turn(place, count) for place in some]


@pytest.mark.parametrize("count", [1, 2, 3, 1000, BATCHES_MAX])
def test_the_parts_differ_in_size_by_no_more_than_a_hair(count):
    """Where each batch begins, exactly: each has 2^53 / count places, give or take 512."""

    def begin(index: int) -> int:
        return -(-index * 2**44 // count) * 512

    for index in {0, 1, count // 2, count - 1}:
        first, end = begin(index), begin(index + 1)
        assert turn(first, count) == turn(end - 1, count) == index
        assert abs((end - first) - 2**53 / count) <= 1024
        assert index == 0 or turn(first - 1, count) == index - 1


def test_one_batch_more_would_not_fit_in_64_bits():
    """Above the maximum, compiled turns would wrap around."""
    assert (2**44 - 1) * BATCHES_MAX < 2**64
    assert turns(np.array([LAST], np.uint64), BATCHES_MAX).tolist() == [BATCHES_MAX - 1]
    beyond = 2 * BATCHES_MAX
    assert turns(np.array([LAST], np.uint64), beyond).tolist() != [turn(LAST, beyond)]


def test_turns_of_agents_are_uniform_and_independent_of_their_coins():
    order = Seed(bytes(range(16)))
    header = a_header()
    numbers = [coin_of(header.order, agent) for agent in range(20_000)]
    seen = np.bincount(turns(np.array(numbers, np.uint64), 50), minlength=50)
    assert stats.chisquare(seen).pvalue > NEVER
    # Negative control: an order in which the first agents come first.
    early = np.bincount([turn(n // 2, 50) for n in numbers], minlength=50)
    assert stats.chisquare(early).pvalue < NEVER
    coins = [coin_of(order.seed, agent) for agent in range(20_000)]
    table = np.histogram2d(numbers, coins, bins=10)[0]
    assert stats.chi2_contingency(table).pvalue > NEVER
    assert stats.chi2_contingency(np.histogram2d(coins, coins, bins=10)[0]).pvalue < NEVER


# --- who else takes part does not matter ------------------------------------------------------


def batches_of(records: Records, order: bytes, count: int) -> dict[Any, int]:
    """The batch in which the engine finds each agent, told apart by their demands."""
    engine = MemoryEngine(records.encode())
    found = {}
    for index in range(count):
        (demand,) = engine.batch_demand([(0,)], Batch(index, count), order)
        for bit, agent in enumerate(sorted(records.ids, key=str)):
            if demand >> bit & 1:
                assert agent not in found
                found[agent] = index
    return found


def bits(ids: list[Any]) -> Records:
    """Agents whose demands are different powers of 2, by id."""
    names = sorted(ids, key=str)
    market = whole_market(1, agents=16, neighbours="add-remove")
    return Records(market, ids, [[(1, [2 ** names.index(agent)])] for agent in ids])


@pytest.mark.parametrize("ids", [list(range(100, 116)), [f"é{i}" for i in range(16)]], ids=str)
def test_the_turn_of_an_agent_depends_on_its_id_alone(ids):
    order, count = bytes(range(16)), 5
    own = {agent: turn(coin_of(order, agent), count) for agent in ids}
    assert len(set(own.values())) > 1
    assert batches_of(bits(ids), order, count) == own
    for others in [ids[::-1], ids[3:], ids[:1], ids[::2]]:
        found = batches_of(bits(others), order, count)
        assert found == {agent: own[agent] for agent in others}
    assert batches_of(bits(ids), bytes(16), count) != own  # another order has other turns


def test_the_key_of_the_order_is_public_before_the_first_round():
    """The key is half of the commitment to the seed, which reveals no coins."""
    seed = Seed(bytes(range(16)))
    digest = hashlib.sha256(b"jdpack seed " + seed.seed).digest()
    assert a_header().order == digest[:16]
    assert Billboard.from_text(text_of(Billboard(a_header()))).header.order == digest[:16]


# --- on the billboard -------------------------------------------------------------------------

SEED = Seed(bytes(range(16)))
MARKET = Market(supply=[100.0, 90.0], max_demand=1.0, max_value=1.0, agents=7)
COUNT = 3


def a_header() -> Header:
    budget = Budget(1.0, 1e-6, 0.02, 0.0, 1e-8)
    return Header(MARKET, MwuOnline(batch=3).to_dict(), budget, SEED.commitment)


def a_step(index: int, weight: int = 5, count: int = COUNT) -> Step:
    return Step("demand", (index, 7), Gaussian((3.0,)), weight, Batch(index, count))


def a_board(weight: int = 5) -> Billboard:
    board = Billboard(a_header())
    for index in range(COUNT):
        board.post(Release(a_step(index, weight), (index, -index)))
    board.post(Certificate((SHARE, SHARE), (1.0, 0.5), 1e-8, 0.0, None, None, 0.01))
    board.post(SEED)
    return board


def test_a_billboard_without_rounds_gives_nothing_to_anybody():
    board = Billboard(a_header())
    board.post(Certificate((SHARE, SHARE), (1.0, 0.5), 1e-8, 0.0, None, None, 0.01))
    board.post(SEED)
    with pytest.raises(BillboardError, match="no round"):
        allocate(Billboard.from_text(text_of(board)), value=1.0, demand=[0.0, 0.0], agent=1)


def text_of(board: Billboard) -> str:
    return "".join(f"{line}\n" for line in board.lines())


def resealed(lines: list[dict[str, Any]]) -> str:
    text, previous = "", ""
    for data in lines:
        plain = {k: v for k, v in data.items() if k not in ("prev", "hash")}
        body = json.dumps({**plain, "prev": previous}, separators=(",", ":"))[:-1]
        previous = hashlib.sha256(body.encode()).hexdigest()
        text += f'{body},"hash":"{previous}"}}\n'
    return text


DATA = [json.loads(line) for line in a_board().lines()]


@pytest.mark.parametrize("weight", [1, 5, SHARE, WEIGHT_SUM_MAX])
def test_batches_are_written_and_read_back(weight):
    board = a_board(weight)
    read = Billboard.from_text(text_of(board))
    assert read.releases == board.releases
    assert [step.batch for step in read.rounds] == [Batch(i, COUNT) for i in range(COUNT)]
    assert read.weight == board.weight == weight  # of the rounds that ask one agent
    assert text_of(read) == text_of(board)
    assert resealed([json.loads(line) for line in board.lines()]) == text_of(board)


def test_a_line_names_its_batch_and_how_many_there_are():
    assert [line["batch"] for line in DATA[1:4]] == [[0, 3], [1, 3], [2, 3]]
    assert list(DATA[1]) == [
        "type", "query", "prices", "noise", "weight", "batch", "answer", "prev", "hash",
    ]  # fmt: skip


def test_a_line_names_its_span_if_it_sums_up_several_batches():
    board = Billboard(a_header())
    board.post(Release(a_step(0), (0, 0)))
    board.post(Release(replace(a_step(1), span=2), (0, 0)))
    assert [line.get("span") for line in map(json.loads, board.lines())] == [None, None, 2]
    assert Billboard.from_text(text_of(board)).releases == board.releases
    for span in (0, -1, 4):
        with pytest.raises(BillboardError, match="does not end at its own"):
            board.post(Release(replace(a_step(2), span=span), (0, 0)))


def test_a_round_of_all_agents_names_no_batch():
    board = Billboard(a_header())
    board.post(Release(replace(a_step(0), batch=None), (1, 2)))
    assert "batch" not in json.loads(list(board.lines())[1])
    assert Billboard.from_text(text_of(board)).releases == board.releases


def test_many_batches_are_read():
    board = Billboard(a_header())
    board.post(Release(a_step(0, count=BATCHES_MAX), (1, 2)))
    assert Billboard.from_text(text_of(board)).releases == board.releases


Change = Callable[[list[dict[str, Any]]], Any]


def put(**fields: Any) -> Change:
    return lambda lines: lines[2].update(fields)


def swap(lines: list[dict[str, Any]]) -> None:
    lines[1], lines[2] = lines[2], lines[1]


def move(lines: list[dict[str, Any]]) -> None:
    """The same fields with the batch at the end."""
    lines[2] = {**{k: v for k, v in lines[2].items() if k != "batch"}, "batch": [1, 3]}


BROKEN: dict[str, tuple[Change, int, str]] = {
    "no list": (put(batch=1), 3, "batch 1 is not one"),
    "null": (put(batch=None), 3, "batch None is not one"),
    "a text": (put(batch="13"), 3, "is not one"),
    "an object": (put(batch={"index": 1, "count": 3}), 3, "is not one"),
    "one number": (put(batch=[1]), 3, "is not one"),
    "three numbers": (put(batch=[1, 3, 0]), 3, "is not one"),
    "fractions": (put(batch=[1.0, 3]), 3, "is not one"),
    "truths": (put(batch=[True, 3]), 3, "is not one"),
    "negative": (put(batch=[-1, 3]), 3, "is not one"),
    "beyond its count": (put(batch=[3, 3]), 3, "is not one"),
    "none at all": (put(batch=[0, 0]), 3, "is not one"),
    "too many": (put(batch=[1, BATCHES_MAX + 1]), 3, f"at most {BATCHES_MAX}"),
    "without weight": (put(weight=0), 3, "rounds that count"),
    "about value": (put(query="value", answer=[1]), 3, "weight 5 is out of range"),
    "about value without weight": (put(query="value", answer=[1], weight=0), 3, "rounds that"),
    "about welfare": (put(query="welfare", prices=[], answer=[1], weight=0), 3, "rounds that"),
    "twice": (put(batch=[0, 3]), 3, "do not follow each other"),
    "left out": (put(batch=[2, 3]), 3, "do not follow each other"),
    "of another count": (put(batch=[1, 4]), 3, "do not follow each other"),
    "of another weight": (put(weight=6), 3, "with one weight"),
    "all agents in between": (lambda lines: lines[2].pop("batch"), 3, "some rounds ask all"),
    "all agents first": (lambda lines: lines[1].pop("batch"), 3, "some rounds ask all"),
    "out of order": (swap, 2, "do not follow each other"),
    "beginning late": (lambda lines: lines.pop(1), 2, "do not follow each other"),
    "a span of more than there are": (put(span=3), 3, "a span of 3 batches"),
    "a span of none": (put(span=0), 3, "a span of 0 batches"),
    "a span of all agents": (lambda lines: (lines[2].pop("batch"), put(span=2)(lines)), 3, "ask"),
    "a fraction of a span": (put(span=2.0), 3, "span 2.0 is not a whole number"),
    "a span of one": (put(span=1), 3, "not written as schema 2"),
    "at the end of the line": (move, 3, "not written as schema 2"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_batches_that_cannot_be_are_refused(what):
    change, number, says = BROKEN[what]
    lines = copy.deepcopy(DATA)
    change(lines)
    with pytest.raises(BillboardError) as caught:
        Billboard.from_text(resealed(lines))
    check_error(caught.value, [f"billboard line {number}: ", says])


def test_post_refuses_rounds_out_of_order_and_forgets_them():
    board = Billboard(a_header())
    board.post(Release(a_step(0), (0, 0)))
    for step in [
        a_step(0),
        a_step(2),
        a_step(1, 6),
        a_step(1, count=4),
        replace(a_step(1), batch=None),
        replace(a_step(1), weight=0),
    ]:
        with pytest.raises(BillboardError):
            board.post(Release(step, (0, 0)))
    assert len(board.releases) == 1
    board.post(Release(a_step(1), (0, 0)))
    assert board.weight == 5


def test_rounds_that_only_steer_may_stand_between_batches():
    board = Billboard(a_header())
    steering = Release(Step("demand", (1, 1), Gaussian((3.0,))), (4, 4))
    for record in [steering, Release(a_step(0), (0, 0)), steering, Release(a_step(1), (0, 0))]:
        board.post(record)
    read = Billboard.from_text(text_of(board))
    assert read.releases == board.releases and read.weight == 5


@pytest.mark.parametrize("commitment", ["", "00", "z" * 64, "A" * 64, "0" * 63, "0" * 65, "é" * 64])
def test_a_commitment_that_gives_no_order_is_refused(commitment):
    lines = copy.deepcopy(DATA)
    lines[0]["seed_commitment"] = commitment
    with pytest.raises(BillboardError) as caught:
        Billboard.from_text(resealed(lines[:1]))
    check_error(caught.value, ["billboard line 1: ", "is not a SHA-256"])
