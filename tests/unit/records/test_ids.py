"""Ids: each belongs to one agent, which is checked within a limit of memory."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdpack import AgentsError
from jdpack.records import ids
from jdpack.records.ids import check_unique, first_ids, keys, repeated

limits = st.sampled_from([None, 1, 16, 40, 100, 10**6])
numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 12)
texts = st.text(max_size=3)


def chunked(values, cuts, kind):
    edges = [0, *sorted(cut % (len(values) + 1) for cut in cuts), len(values)]
    parts = [pa.array(values[a:b], kind) for a, b in pairwise(edges)]
    return lambda: iter(parts)


def brute_force(values, several):
    """The ids that two agents share."""
    heads = [v for i, v in enumerate(values) if not several or i == 0 or values[i - 1] != v]
    return {v for v in heads if heads.count(v) > 1}


@settings(max_examples=300)
@given(
    st.lists(numbers, max_size=30) | st.lists(texts, max_size=30),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 30), max_size=4),
    limits,
)
def test_exactly_the_ids_that_stand_for_two_agents_are_refused(values, sort, several, cuts, limit):
    values = sorted(values) if sort else values
    kind = pa.large_string() if values and isinstance(values[0], str) else pa.int64()
    bad = brute_force(values, several)
    if not bad:
        check_unique(chunked(values, cuts, kind), several, limit)
        return
    with pytest.raises(AgentsError) as caught:
        check_unique(chunked(values, cuts, kind), several, limit)
    assert caught.value.message in {f"id {v!r} belongs to more than one agent" for v in bad}


@settings(max_examples=50)
@given(st.lists(texts, max_size=20), st.booleans(), limits)
def test_texts_that_share_a_key_are_looked_at(values, several, limit):
    """Here all texts share one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "keys", lambda chunk: np.full(len(chunk), 3, np.uint64))
        bad = brute_force(values, several)
        try:
            check_unique(chunked(values, [7], pa.large_string()), several, limit)
        except AgentsError:
            assert bad
        else:
            assert not bad


@pytest.mark.parametrize("kind", [int, str])
@pytest.mark.parametrize("limit", [20_000, 1000])
def test_no_pass_exceeds_the_limit(kind, limit, monkeypatch):
    values = np.random.default_rng(1).permutation(10_000).tolist()
    chunk = pa.array([kind(v) for v in values])
    chunk = chunk.cast(pa.large_string()) if kind is str else chunk
    used, sort = [], ids.repeated

    def measured(arrays):
        arrays = list(arrays)
        used.append(ids._KEY_BYTES * sum(map(len, arrays)))
        return sort(arrays)

    monkeypatch.setattr(ids, "repeated", measured)
    check_unique(lambda: iter([chunk.slice(0, 3000), chunk.slice(3000)]), False, limit)
    assert sum(used) == ids._KEY_BYTES * 10_000
    assert max(used) <= 2 * limit and np.mean(used) <= limit


def test_numbers_in_order_need_no_keys(monkeypatch):
    monkeypatch.setattr(ids, "keys", None)
    chunks = [pa.array([-5, 0, 1]), pa.array([], pa.int64()), pa.array([2, 2**62])]
    check_unique(lambda: iter(chunks), False, 1)
    check_unique(lambda: iter([*chunks, pa.array([2**62])]), True, 1)  # the same agent continues
    with pytest.raises(TypeError):  # the negative control: this one needs keys
        check_unique(lambda: iter([*chunks, pa.array([2**62])]), False, 1)


def test_what_a_cluster_needs():
    one, two = pa.array([1, 1, 5, -3]), pa.array([7, 8, 5])
    heads = next(first_ids(iter([one])))
    assert len(set(keys(one).tolist())) == 3 and len(keys(heads)) == 3
    both = repeated([keys(heads), keys(two)])
    assert both.tolist() == keys(pa.array([5])).tolist()
    assert not len(repeated([keys(heads), keys(two.slice(0, 2))]))
    assert not len(repeated([]))
    assert repeated([keys(two), keys(two)]).tolist() == sorted(keys(two).tolist())
    words = pa.array(["a", "b", "a", "ä"], pa.large_string())
    assert repeated([keys(words)]).tolist() == [int(keys(words)[0])]
    assert not len(repeated([keys(words.slice(1))]))
    assert keys(words.slice(2)).tolist() == keys(words)[2:].tolist()


def test_keys_are_spread_evenly():
    """So that equal ranges hold about equally many keys."""
    for chunk in (pa.array(range(40_000)), pa.array(map(str, range(40_000)), pa.large_string())):
        counts = np.bincount((keys(chunk) >> np.uint64(60)).astype(np.int64), minlength=16)
        assert np.abs(counts - 2500).max() < 6 * np.sqrt(2500)
