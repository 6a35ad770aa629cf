"""The digest of records: it changes with any record, and with nothing else."""

import functools

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import Records, random_records, whole_market
from jdpack import Market
from jdpack.engines.memory import MemoryEngine
from jdpack.engines.settings import Mapped, Memory, RunInfo
from jdpack.records import encode, tables
from jdpack.records.codes import is_sparse
from jdpack.records.source import Source

KINDS = ("numbers", "texts")


def market_of(*, options=1, sparse=False, agents=40, m=12):
    return whole_market(m, agents=agents, options=options, sparse=sparse)


def whole_records(seed, market, *, ids="numbers", most=5):
    """Records whose codes equal their numbers, with at most `most` resources each."""
    rng = np.random.default_rng(seed)
    m = len(market.resources)
    agents = []
    for _ in range(market.agents):
        options = []
        for _ in range(int(rng.integers(1, market.options + 1))):
            amounts = [0.0] * m
            for j in rng.permutation(m)[: rng.integers(0, most + 1)].tolist():
                amounts[j] = float(rng.integers(1, 65536))
            options.append((float(rng.integers(0, 2**32)), amounts))
        agents.append(options)
    numbers = rng.permutation(10 * market.agents)[: market.agents].tolist()
    return Records(market, numbers if ids == "numbers" else [f"ä {i}" for i in numbers], agents)


def digest_of(records, rows=2**17, threads=1):
    pieces = tables.array_pieces(records.market, **records.arrays(), rows=rows)
    return MemoryEngine(encode.encode(records.market, pieces), threads).digest()


# --- the same records ---------------------------------------------------------------------


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 50),
    threads=st.integers(1, 3),
    options=st.integers(1, 3),
    sparse=st.booleans(),
    ids=st.sampled_from(KINDS),
)
def test_any_cut_and_any_number_of_threads_give_the_same_digest(
    seed, rows, threads, options, sparse, ids
):
    records = whole_records(seed, market_of(options=options, sparse=sparse), ids=ids)
    assert digest_of(records, rows, threads) == digest_of(records)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), options=st.integers(1, 3), ids=st.sampled_from(KINDS))
def test_dense_and_sparse_codes_have_the_same_digest(seed, options, ids):
    dense, sparse = market_of(options=options), market_of(options=options, sparse=True)
    assert is_sparse(sparse) and not is_sparse(dense)
    records = whole_records(seed, sparse, ids=ids)
    assert digest_of(records) == digest_of(Records(dense, records.ids, records.agents))


def test_blocks_of_any_fill_and_rests_have_the_same_digest():
    """Several blocks, not all full, and rows with more pairs than most rows have."""
    market = market_of(options=3, sparse=True, agents=4000)
    records = whole_records(5, market, most=2)
    for agent in range(0, 4000, 97):
        records.agents[agent] = [(1.0, [7.0] * 5 + [0.0] * 7)]
    (part,) = records.encode().parts
    assert len(part.fill) > 2 and len(part.rest_rows) > 0 and part.fill[0] < part.values.shape[1]
    dense = Records(market_of(options=3, agents=4000), records.ids, records.agents)
    wanted = digest_of(records)
    assert digest_of(dense) == wanted
    assert digest_of(records, rows=777, threads=2) == wanted
    records.agents[97][0][1][4] = 8.0  # a pair in the rest
    assert digest_of(records) != wanted


@pytest.mark.parametrize("ids", KINDS)
@pytest.mark.parametrize("sparse", [False, True])
def test_all_engines_have_the_same_digest(tmp_path, ids, sparse):
    market = market_of(sparse=sparse, agents=300)
    records = whole_records(3, market, ids=ids)
    arrays = records.arrays()
    columns = {"id": arrays["ids"], "value": arrays["values"]}
    for j, resource in enumerate(market.resources):
        columns[resource.column] = arrays["demands"][:, j]
    path = tmp_path / "agents.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=64)
    source = Source(market, path, None, None, None, False)
    found = {
        choice.open(source, threads, RunInfo("run", tmp_path), lambda done: None).digest()
        for choice in (Memory(), Mapped(), Mapped(str(tmp_path / "store")))
        for threads in (1, 2)
    }
    assert found == {digest_of(records)}


def test_numbered_agents_count_as_if_their_numbers_were_ids():
    market = market_of(agents=300)
    records = Records(market, list(range(300)), whole_records(3, market).agents)
    arrays = records.arrays() | {"ids": None}
    pieces = tables.array_pieces(market, **arrays, rows=64)
    assert MemoryEngine(encode.encode(market, pieces), 2).digest() == digest_of(records)


def test_the_order_of_agents_with_ids_does_not_matter():
    records = whole_records(9, market_of(options=2))
    there = list(zip(records.ids, records.agents, strict=True))
    ids, agents = zip(*reversed(there), strict=True)
    assert digest_of(Records(records.market, list(ids), list(agents))) == digest_of(records)


def test_a_digest_is_a_number_of_64_bits_that_says_nothing_simple():
    """Every bit of the digest is set in about half of 200 markets."""
    market = market_of(agents=2)
    found = np.array([digest_of(whole_records(s, market)) for s in range(200)], dtype=np.uint64)
    bits = np.unpackbits(found.view(np.uint8)).reshape(200, 64).sum(axis=0)
    assert bits.min() > 50 and bits.max() < 150  # 7 standard deviations


# --- changed records ----------------------------------------------------------------------


@functools.cache
def unchanged(options, sparse, ids):
    records = whole_records(options, market_of(options=options, sparse=sparse), ids=ids)
    return records, digest_of(records)


def with_one_change(records, draw):
    """The same records except for one code, value, id, option, or order of options."""
    agents = [[(v, list(a)) for v, a in options] for options in records.agents]
    ids = list(records.ids)
    who = draw(st.integers(0, len(agents) - 1))
    o = draw(st.integers(0, len(agents[who]) - 1))
    value, amounts = agents[who][o]
    kind = draw(st.sampled_from(["code", "value", "id", "swap agents", "options", "move"]))
    touched = [j for j, amount in enumerate(amounts) if amount]
    if kind == "code" and touched:
        j = draw(st.sampled_from(touched))
        new = draw(st.integers(0, 65535))
        amounts[j] = float(new if new != amounts[j] else (new + 1) % 65536)
    elif kind == "move" and touched and len(touched) < len(amounts):
        j = draw(st.sampled_from(touched))
        k = draw(st.sampled_from([k for k in range(len(amounts)) if k not in touched]))
        amounts[k], amounts[j] = amounts[j], 0.0
    elif kind == "id":
        new = draw(st.integers(10**6, 2**63 - 1))
        ids[who] = new if isinstance(ids[who], int) else f"{new}"
    elif kind == "swap agents":
        other = (who + 1) % len(agents)
        if agents[who] == agents[other]:
            agents[who][o] = ((value + 1.0) % 2.0**32, amounts)
        agents[who], agents[other] = agents[other], agents[who]
    elif kind == "options" and len(agents[who]) > 1 and agents[who][0] != agents[who][1]:
        agents[who][0], agents[who][1] = agents[who][1], agents[who][0]
    elif kind == "options" and len(agents[who]) > 1:
        del agents[who][1]
    else:
        new = draw(st.integers(0, 2**32 - 1))
        agents[who][o] = (float(new if new != value else (new + 1) % 2**32), amounts)
    return Records(records.market, ids, agents)


@settings(max_examples=150)
@given(options=st.integers(1, 3), sparse=st.booleans(), ids=st.sampled_from(KINDS), data=st.data())
def test_any_one_change_gives_another_digest(options, sparse, ids, data):
    records, before = unchanged(options, sparse, ids)
    changed = with_one_change(records, data.draw)
    assert (changed.ids, changed.agents) != (records.ids, records.agents)
    assert digest_of(changed) != before


@pytest.mark.parametrize("bit", range(16))
def test_every_bit_of_a_code_counts(bit):
    records, before = unchanged(1, False, "numbers")
    agents = [[(v, list(a)) for v, a in options] for options in records.agents]
    amounts = agents[7][0][1]
    amounts[3] = float(int(amounts[3]) ^ 1 << bit)
    assert digest_of(Records(records.market, records.ids, agents)) != before


@pytest.mark.parametrize("bit", range(32))
def test_every_bit_of_a_value_counts(bit):
    records, before = unchanged(1, False, "numbers")
    agents = [list(options) for options in records.agents]
    value, amounts = agents[7][0]
    agents[7][0] = (float(int(value) ^ 1 << bit), amounts)
    assert digest_of(Records(records.market, records.ids, agents)) != before


def test_numbered_agents_that_change_places_change_the_digest():
    market = market_of(agents=3)
    a, b, c = whole_records(1, market).agents
    found = {
        digest_of(Records(market, [0, 1, 2], list(order)))
        for order in [(a, b, c), (b, a, c), (a, c, b), (c, b, a)]
    }
    assert len(found) == 4


def test_one_more_agent_of_nothing_changes_the_digest():
    market = Market(
        supply=[65535.0], max_demand=65535.0, max_value=1.0, agents=2, neighbours="add-remove"
    )
    one = Records(market, [5], [[(0.0, [0.0])]])
    two = Records(market, [5, 6], [[(0.0, [0.0])], [(0.0, [0.0])]])
    assert digest_of(one) != digest_of(two)


def test_random_markets_of_any_magnitude_have_digests_of_their_own():
    market = whole_market(3, agents=50)
    rng = np.random.default_rng(2)
    found = {digest_of(random_records(rng, market)) for _ in range(50)}
    assert len(found) == 50
