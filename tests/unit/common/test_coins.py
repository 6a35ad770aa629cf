"""Coins: SipHash-2-4 against its published vectors, SHA-256 against hashlib, bulk against plain."""

import hashlib
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import Records, coin_of, sip_hash, whole_market
from jdpack.common.coins import COIN_BITS, SIPHASH, coin, siphash
from jdpack.engines.shard import _coins as coins_of
from jdpack.records.bulk_coins import coins_of_numbers, coins_of_texts

# Aumasson & Bernstein 2012, Appendix A (the 15 bytes), and the vectors of their reference code:
# key 00 01 .. 0f, message 00 01 .. of each length.
VECTORS = {
    0: 0x726FDB47DD0E0E31,
    1: 0x74F839C593DC67FD,
    2: 0x0D6C8009D9A94F5A,
    3: 0x85676696D7FB7E2D,
    4: 0xCF2794E0277187B7,
    5: 0x18765564CD99A68D,
    6: 0xCBC9466E58FEE3CE,
    7: 0xAB0200F58B01D137,
    8: 0x93F5F5799A932462,
    15: 0xA129CA6149BE45E5,
}
KEY = bytes(range(16))


@pytest.mark.parametrize("length", VECTORS)
def test_siphash_gives_the_published_vectors(length):
    message = bytes(range(length))
    assert siphash(KEY, message) == VECTORS[length]
    assert sip_hash(KEY, message) == VECTORS[length]
    compiled = coins_of_texts(KEY, np.frombuffer(message, np.uint8), np.array([0, length]))
    assert compiled.tolist() == [VECTORS[length] >> 11]


def test_a_coin_is_the_high_bits_of_the_hash_of_the_text():
    assert COIN_BITS == 53
    assert coin(KEY, 17) == coin(KEY, "17") == siphash(KEY, b"17") >> 11
    assert coin(KEY, -1) == siphash(KEY, b"-1") >> 11
    assert coin(KEY, "é") == siphash(KEY, "é".encode()) >> 11 != coin(KEY, "e\u0301")


int64 = st.integers(-(2**63), 2**63 - 1)
keys = st.binary(min_size=16, max_size=16)
EDGES = [0, 1, -1, 9, 10, -9, -10, 99999999, 10**18, -(10**18), 2**63 - 1, -(2**63)]


hashes = st.sampled_from(["siphash-2-4", "sha-256"])


@given(keys, st.lists(int64 | st.sampled_from(EDGES), max_size=20), hashes)
def test_numbers_in_bulk(key, ids, hash):
    expected = [coin_of(key, i, hash) for i in ids]
    assert [coin(key, i, hash) for i in ids] == expected
    assert coins_of_numbers(key, np.array(ids, np.int64), hash).tolist() == expected


def test_all_edges_in_bulk():
    expected = [coin_of(KEY, i) for i in EDGES]
    assert coins_of_numbers(KEY, np.array(EDGES, np.int64)).tolist() == expected


@given(
    keys,
    st.lists(st.text(max_size=30) | st.text("a", min_size=250, max_size=300), max_size=20),
    hashes,
)
def test_texts_in_bulk(key, ids, hash):
    array = pa.array(ids, pa.large_string())
    text = np.frombuffer("".join(ids).encode() or b"\0", np.uint8)
    offsets = np.cumsum([0, *(len(i.encode()) for i in ids)])
    expected = [coin_of(key, i, hash) for i in array.to_pylist()]
    assert [coin(key, i, hash) for i in ids] == expected
    assert coins_of_texts(key, text, offsets, hash=hash).tolist() == expected


def test_sha256_hashes_the_key_a_space_and_the_text():
    """By hand: the first 16 hexadecimal digits of `printf '000102...0f 17' | sha256sum`."""
    digits = hashlib.sha256(b"000102030405060708090a0b0c0d0e0f 17").hexdigest()
    assert coin(KEY, 17, "sha-256") == int(digits[:16], 16) >> 11 == 2165563926654877
    assert coin(KEY, 17, "sha-256") != coin(KEY, 17)


@pytest.mark.parametrize("kind", ["numbers", "texts", "none"])
def test_the_engine_finds_the_coin_of_every_row(kind):
    """Wherever a part begins; if rows are named, only their coins are tossed."""
    ids = {"numbers": [5, -3, 2**63 - 1], "texts": ["", "é", "a" * 300], "none": [0, 1, 2]}[kind]
    records = Records(whole_market(1, agents=3), ids, [[(1.0, [1.0])]] * 3)
    (part,) = records.encode().parts
    for row in range(3):
        for rows in range(1, 4 - row):
            part.fill, part.first = np.array([rows]), row
            part.ids = records.encode().parts[0].ids.slice(row, rows) if kind != "none" else None
            expected = [coin_of(KEY, i) for i in ids[row : row + rows]]
            assert coins_of(part, KEY, SIPHASH).tolist() == expected
            for tossed in product([False, True], repeat=rows):
                found = coins_of(part, KEY, SIPHASH, np.array(tossed)).tolist()
                assert found == [c * t for c, t in zip(expected, tossed, strict=True)]
