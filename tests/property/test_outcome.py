"""Why an agent gets what it gets: every number agrees with `allocate`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from browser.boards import KINDS, random_agents, random_board
from helpers import SHARE, VALUE_UNITS, factors_of, given_of, scaled_of
from jdpack import allocate
from jdpack.agent.allocate import settle
from jdpack.agent.explain import by_value, explain
from jdpack.agent.in_words import places, share_text, tell, typed_up
from jdpack.agent.options import encoded

board_of = cache(random_board)
kinds = st.integers(0, len(KINDS) - 1)
seeds = st.integers(0, 2**31)


def drawn(kind, seed):
    """A billboard, an agent's values and demands, and its id."""
    board = board_of(kind)
    (agent,) = random_agents(board, 1, seed)
    values = [option["value"] for option in agent["options"]]
    return board, values, [option["demand"] for option in agent["options"]], agent["id"]


def given_at(board, values, demands, id, o, code):
    """What `allocate` gives of an option with another value code."""
    others = [*values[:o], code * board.header.market.value_step, *values[o + 1 :]]
    return allocate(board, value=others, demand=demands, agent=id).given[o] * SHARE


@given(kinds, seeds)
@settings(max_examples=150)
def test_at_the_turning_value_the_outcome_changes_and_one_code_below_it_does_not(kind, seed):
    board, values, demands, id = drawn(kind, seed)
    cap = board.header.market.value_cap_code
    for o, option in enumerate(explain(board, value=values, demand=demands, agent=id).options):

        def at(code, o=o):
            return given_at(board, values, demands, id, o, code)

        close, own = option.close, option.value_code
        assert at(own) == option.given
        assert 0 <= close.kept <= own and at(close.kept) >= option.given
        if close.kept > 0:
            assert at(close.kept - 1) < option.given
        if close.more is None:
            assert at(cap) <= option.given
        else:
            assert own < close.more <= cap and at(close.more) > option.given
            assert at(close.more - 1) <= option.given
        assert at(close.most) == close.most_given >= option.given
        if close.most > 0:
            assert at(close.most - 1) < close.most_given


@given(kinds, seeds, st.data())
@settings(max_examples=150)
def test_every_value_brings_what_its_step_says(kind, seed, data):
    board, values, demands, id = drawn(kind, seed)
    cap = board.header.market.value_cap_code
    settled = settle(board, encoded(board.header.market, values, demands), id)
    o = data.draw(st.integers(0, len(values) - 1))
    steps = by_value(board, settled, o)
    codes = [code for code, _ in steps]
    assert codes == sorted(set(codes)) and codes[0] == 0 and codes[-1] <= cap
    some = data.draw(st.lists(st.integers(0, cap), max_size=3) | st.just(codes[-3:]))
    for code in [cap, *some, *(c - 1 for c in codes[1:][-2:])]:
        expected = [brings for start, brings in steps if start <= code][-1]
        assert given_at(board, values, demands, id, o, code) == expected


@given(kinds, seeds)
def test_cost_surplus_rounds_and_coins_are_those_of_the_definitions(kind, seed):
    board, values, demands, id = drawn(kind, seed)
    found = explain(board, value=values, demand=demands, agent=id)
    rounds = [list(board.rounds)[t] for t in found.asked]
    options = [(o.value_code, o.demand_codes) for o in found.options]
    assert options == [(v, tuple(c)) for v, c in encoded(board.header.market, values, demands)]
    costs = [
        [sum(c * p for c, p in zip(codes, step.prices, strict=True)) for step in rounds]
        for _, codes in options
    ]
    for o, option in enumerate(found.options):
        if not rounds:
            assert option.cost is option.surplus is None and option.given == 0
            continue
        prices = rounds[0].prices if found.batches else board.final_prices
        assert option.cost == sum(c * p for c, p in zip(option.demand_codes, prices, strict=True))
        assert option.surplus == option.value_code * VALUE_UNITS - option.cost
        worth = [t for t in range(len(rounds)) if option.value_code * VALUE_UNITS >= costs[o][t]]
        assert option.rounds <= len(worth)
        if len(options) == 1:
            assert option.rounds == len(worth)
            assert option.won == sum(rounds[t].weight for t in worth)
    shares, factors = [o.share for o in found.options], [o.factor for o in found.options]
    assert factors == factors_of(options, board.certificate.factors)
    assert [o.scaled for o in found.options] == scaled_of(shares, factors)
    whole = [found.coin in range(o.coin_from, o.coin_below) for o in found.options]
    if not board.header.market.divisible:
        assert [o.given for o in found.options] == given_of(shares, factors, found.coin)
        assert [o.given == SHARE for o in found.options] == whole


@given(kinds, seeds)
def test_an_explanation_is_the_outcome_that_allocate_gives(kind, seed):
    board, values, demands, id = drawn(kind, seed)
    outcome = allocate(board, value=values, demand=demands, agent=id)
    found = explain(board, value=values, demand=demands, agent=id)
    data = found.to_dict()
    assert (data["given"], data["scaled"]) == (list(outcome.given), list(outcome.scaled))
    assert (data["coin"], data["rounds"]) == (outcome.coin, list(outcome.rounds))
    assert data["share"] == outcome.share
    market = board.header.market
    for j, r in enumerate(market.resources):
        given, cut = 0.0, 0
        for option, demand, share in zip(found.options, demands, outcome.given, strict=True):
            amount, code = min(demand[j], r.max_demand), option.demand_codes[j]
            if code != market.demand_code(j, amount):  # cut, because a total is exceeded
                amount, cut = code * market.unit_sizes[j], cut + 1
            given += amount * share
        shown = data["amounts"].get(r.name, 0.0)
        assert shown == pytest.approx(given, rel=1e-12, abs=cut * market.unit_sizes[j])


@given(kinds, seeds)
def test_the_words_claim_what_holds(kind, seed):
    board, values, demands, id = drawn(kind, seed)
    found = explain(board, value=values, demand=demands, agent=id)
    text = tell(found)
    gets = any(option.given for option in found.options)
    assert ("You get nothing this time." in text) == (not gets)
    cap = board.header.market.max_value
    for o, option in enumerate(found.options):
        # Typing in the value at which the outcome is said to change does change it.
        if option.close.more is not None:
            typed = typed_up(found.value_of(option.close.more), cap)
            assert typed in text
            others = [*values[:o], float(typed), *values[o + 1 :]]
            more = allocate(board, value=others, demand=demands, agent=id).given[o]
            code = board.header.market.value_code(float(typed))
            assert code >= option.close.more
            assert more * SHARE == given_at(board, values, demands, id, o, code)


@given(st.floats(1e-300, 1e300), st.floats(1.0, 2.0))
def test_a_number_to_type_is_no_smaller_and_short_if_it_can_be(number, factor):
    cap = number * factor
    typed = typed_up(number, cap)
    assert number <= float(typed) <= max(cap, number)
    if factor > 1.01:
        assert float(typed) <= number * 1.01 and len(typed.split("e")[0].strip("0.")) <= 6


@given(st.integers(0, 2**53 - 1), st.integers(0, 2**53))
def test_a_coin_and_a_line_read_as_they_stand(coin, line):
    a, b = places(coin, line)
    assert (a < b) == (coin < line) and (a == b) == (coin == line)


def test_shares_in_words():
    assert [share_text(s) for s in (0, 1, SHARE // 3, SHARE - 1, SHARE)] == [
        "0%", "less than 0.01%", "33.33%", "99.99%", "100%",
    ]  # fmt: skip


def test_negative_control_a_turning_value_that_is_one_off_is_caught():
    """The check above fails for numbers that are off by one code."""
    caught = 0
    for seed in range(40):
        board, values, demands, id = drawn(1, seed)
        (option,) = explain(board, value=values, demand=demands, agent=id).options
        if option.close.more is None:
            continue
        wrong = replace(option.close, more=option.close.more + 1)
        caught += not given_at(board, values, demands, id, 0, wrong.more - 1) <= option.given
    assert caught > 3
