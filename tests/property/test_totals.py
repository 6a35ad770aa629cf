"""Bounds on totals: the same cut everywhere, what it guarantees, and that nothing else is cut."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from browser.test_same_numbers import in_node
from helpers import LONG, Records, decode, finished_board, long_table, wide_table
from jdpack import AgentsError, Market, MaxTotal
from jdpack.agent.options import counted, encoded
from jdpack.audit.reference import demand_codes
from jdpack.curator.truth import Truth
from jdpack.market.totals import Total
from jdpack.pages.billboard_page import data
from jdpack.records import tables
from jdpack.records.encode import encode

seeds = st.integers(0, 2**32 - 1)


def a_market(rng: np.random.Generator, *, sparse: bool, **more) -> Market:
    """A market with bounds on totals: one set of all resources, or two sets and a free resource."""
    m = int(rng.integers(9, 14)) if sparse else int(rng.integers(3, 6))
    supply = 10.0 ** rng.uniform(-3, 6) * rng.uniform(0.3, 30.0, m)
    caps = supply * rng.uniform(0.01, 1.0, m)
    names = [f"resource {j + 1}" for j in rng.permutation(m)]
    amount = float(rng.choice([0.05, 0.4, 0.9]) * caps.sum() / (3 if sparse else 1))
    totals = [MaxTotal(amount)]
    if rng.random() < 0.5:
        totals = [MaxTotal(amount / 2, tuple(names[: m // 2])), MaxTotal(amount, (names[-1],))]
    return Market(
        supply=supply.tolist(),
        max_demand=caps.tolist(),
        max_value=1.0,
        agents=12,
        bundle_size=3 if sparse else m,
        options=2,
        max_total=totals,
        **more,
    )


def some_records(rng: np.random.Generator, market: Market) -> Records:
    """Records within, at and beyond the bounds, on the grid and just off it."""
    agents = []
    for _ in range(market.agents):
        options = []
        for _ in range(int(rng.integers(1, 3))):
            amounts = [0.0] * len(market.resources)
            for j in rng.permutation(len(amounts))[: rng.integers(0, market.bundle_size + 1)]:
                size, cap = market.unit_sizes[j], market.resources[j].max_demand
                edge = size * int(rng.integers(0, 65536))
                near = [math.nextafter(edge, math.inf), math.nextafter(edge, 0.0)]
                part = [cap, cap * rng.random(), edge, *near, 1e-9 * cap, 2.0 * cap]
                amounts[j] = float(rng.choice(part))
            options.append((0.5, amounts))
        agents.append(options)
    return Records(market, [f"a{i}" for i in range(market.agents)], agents)


def by_agent(records: Records):
    """The codes by the agent's own function."""
    return [
        [
            (value, tuple(codes))
            for value, codes in encoded(
                records.market, [v for v, _ in options], [a for _, a in options]
            )
        ]
        for options in records.agents
    ]


def all_ways(records: Records):
    """The codes from every kind of input."""
    market, arrays = records.market, records.arrays()
    long = Market.from_dict(
        {**market.to_dict(), "agents": {**market.to_dict()["agents"], "layout": "long"}}
    )
    dense = arrays["demands"]
    for kind in (np.ascontiguousarray, np.asfortranarray, scipy.sparse.csr_matrix):
        pieces = tables.array_pieces(market, arrays["values"], kind(dense), arrays["ids"])
        yield decode(encode(market, pieces, clamp=True))
    yield decode(encode(market, tables.pieces(market, wide_table(records)), clamp=True))
    shuffled = backwards(long_table(replace(records, market=long)))
    yield decode(encode(long, tables.pieces(long, shuffled), clamp=True))


def backwards(table):
    """The rows of each option in reverse, so that resources come in descending order."""
    rows = table.to_pylist()
    order = sorted(range(len(rows)), key=lambda i: (int(rows[i]["id"][1:]), rows[i]["option"], -i))
    return table.take(order)


@settings(max_examples=60, deadline=None)
@given(seeds, st.booleans())
def test_every_way_in_cuts_to_the_same_codes(seed, sparse):
    rng = np.random.default_rng(seed)
    records = some_records(rng, a_market(rng, sparse=sparse))
    expected = by_agent(records)
    for found in all_ways(records):
        assert found == expected
    market = records.market
    reference = demand_codes(market, records.arrays()["demands"])
    assert reference.tolist() == [list(codes) for agent in expected for _, codes in agent]


@settings(max_examples=200)
@given(seeds, st.booleans())
def test_what_sensitivities_rest_on(seed, sparse):
    """sum c_j w_j <= B + sum of w_j over the resources touched; and B is the least such bound."""
    rng = np.random.default_rng(seed)
    market = a_market(rng, sparse=sparse)
    for agent in by_agent(some_records(rng, market)):
        for _, codes in agent:
            for total in market.person_totals:
                assert excess(total, codes) <= 0


def excess(total: Total, codes) -> Fraction:
    """How far codes are beyond what is guaranteed, exactly."""
    own = [(codes[j], Fraction(w)) for j, w in zip(total.resources, total.unit_sizes, strict=True)]
    return sum((c * w - w for c, w in own if c > 0), Fraction(0)) - Fraction(total.amount)


def test_negative_control_a_cut_that_is_one_code_too_high_breaks_the_guarantee():
    rng, broken = np.random.default_rng(3), 0
    for _ in range(50):
        market = a_market(rng, sparse=False)
        for options in some_records(rng, market).agents:
            for _, amounts in options:
                ((_, codes),) = encoded(market, 0.0, amounts)
                free = [
                    market.demand_code(j, min(a, r.max_demand))
                    for j, (r, a) in enumerate(zip(market.resources, amounts, strict=True))
                ]
                lowered = [j for j, (c, f) in enumerate(zip(codes, free, strict=True)) if 0 < c < f]
                for total in market.person_totals:
                    for j in set(lowered) & set(total.resources):
                        more = [c + (i == j) for i, c in enumerate(codes)]
                        assert excess(total, more) > 0, "the cut is the mildest that is allowed"
                        broken += 1
    assert broken > 50


@settings(max_examples=200)
@given(st.data(), seeds)
def test_what_is_within_the_bound_is_never_touched(data, seed):
    """Even a total that is exactly the bound, summed as people sum: 0.1 + 0.2 is 0.3."""
    rng = np.random.default_rng(seed)
    m, cap = int(rng.integers(1, 9)), float(10.0 ** rng.uniform(-3, 3))
    amounts = [cap * data.draw(st.sampled_from([0.1, 0.2, 0.3, 1 / 3, 1.0])) for _ in range(m)]
    market = Market(
        supply=[100 * cap] * m, max_demand=cap, max_value=1.0, agents=9, max_total=sum(amounts)
    )
    ((_, codes),) = encoded(market, 0.0, amounts)
    assert codes == [market.demand_code(j, a) for j, a in enumerate(amounts)]
    assert counted(market, amounts) == amounts
    records = Records(market, list(range(9)), [[(0.0, amounts)]] * 9)
    assert decode(records.encode()) == records.codes()


@settings(max_examples=40, deadline=None)
@given(seeds, st.booleans())
def test_the_amounts_that_count_fit_and_have_the_codes_of_the_cut(seed, sparse):
    rng = np.random.default_rng(seed)
    market = a_market(rng, sparse=sparse)
    records = some_records(rng, market)
    for options in records.agents:
        for _, amounts in options:
            ((_, codes),) = encoded(market, 0.0, amounts)
            kept = counted(market, amounts)
            for total in market.person_totals:
                assert sum(kept[j] for j in total.resources) <= total.amount * (1 + 1e-12)
            for j, code in enumerate(codes):
                # The codes before this one are rounded up, each by less than a unit.
                assert abs(kept[j] - code * market.unit_sizes[j]) <= sum(market.unit_sizes)
    arrays = records.arrays()
    for kind in (np.asarray, scipy.sparse.csr_matrix):
        pieces = tables.array_pieces(
            market, arrays["values"], kind(arrays["demands"]), arrays["ids"]
        )
        truth = Truth(market, pieces, clamp=True).demands
        truth = truth if isinstance(truth, np.ndarray) else truth.toarray()
        for row, (_, _, _, amounts) in zip(truth, records.rows, strict=True):
            assert row.tolist() == pytest.approx(counted(market, amounts), rel=1e-9, abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(seeds, st.booleans())
def test_javascript_cuts_to_the_same_codes(seed, sparse):
    rng = np.random.default_rng(seed)
    market = a_market(rng, sparse=sparse)
    board = finished_board(market, [((1,) * len(market.resources), 1)], 2**24)
    records = [some_records(rng, market) for _ in range(5)]
    options = [
        [{"value": v, "demand": a} for v, a in agent] for own in records for agent in own.agents
    ]
    code = """(market, agents) => agents.map((options) => [
      jdpack.allocate(market, "x", options).options.map(({value, codes}) => [value, codes]),
      options.map(({demand}) => jdpack.counted(market, demand)),
    ])"""
    found = in_node(code, data(board), options)
    assert [[(v, tuple(c)) for v, c in codes] for codes, _ in found] == [
        agent for own in records for agent in by_agent(own)
    ]
    assert [amounts for _, amounts in found] == [
        [counted(market, a) for _, a in agent] for own in records for agent in own.agents
    ]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("long", [False, True])
def test_without_clamp_the_first_record_beyond_is_refused(sparse, long):
    m = 9
    market = Market(
        supply=[100.0] * m, max_demand=5.0, max_value=1.0, agents=4, max_total=12.0,
        bundle_size=4 if not sparse else 3, columns=LONG if long else None,
    )  # fmt: skip
    fine, over = [0.0] * 6 + [5.0, 5.0, 2.0], [5.0, 0.0, 5.0] + [0.0] * 5 + [2.5]
    records = Records(market, list("abcd"), [[(1.0, a)] for a in (fine, fine, over, over)])
    table = (long_table if long else wide_table)(records)
    with pytest.raises(AgentsError) as caught:
        encode(market, tables.pieces(market, table))
    assert caught.value.message == (
        "agent 'c': total demand 12.5 for 'resource 1', 'resource 2' and 7 more is above the "
        "public bound 12"
    )
    assert "never by this table" in caught.value.hint
    assert encode(market, tables.pieces(market, table), clamp=True).clamped == 2


def test_a_useless_bound_changes_nothing():
    rng = np.random.default_rng(1)
    market = a_market(rng, sparse=False)
    free = Market.from_dict({k: v for k, v in market.to_dict().items() if k != "max_total"})
    loose = Market.from_dict({**free.to_dict(), "max_total": [{"amount": 1e90}]})
    records = some_records(rng, market)
    assert by_agent(replace(records, market=loose)) == by_agent(replace(records, market=free))
    assert decode(replace(records, market=loose).encode(clamp=True)) == by_agent(
        replace(records, market=free)
    )
