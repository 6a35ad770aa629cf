"""Private: `jdpack.common.coins` for many agents at once, compiled."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jdpack.common.coins import _INIT, COIN_BITS, SHA256, SIPHASH, CoinHash, key_text
from jdpack.records.hashes import hash_texts
from jdpack.records.kernels import njit


def coins_of_numbers(
    seed: bytes, ids: NDArray[np.int64], hash: CoinHash = SIPHASH
) -> NDArray[np.uint64]:
    """The coins of agents whose ids are whole numbers."""
    if hash == SHA256:
        texts = pa.array(ids).cast(pa.large_string())
        ends = np.frombuffer(texts.buffers()[1], np.int64)
        return coins_of_texts(seed, np.frombuffer(texts.buffers()[2], np.uint8), ends, hash=hash)
    out, text = np.empty(len(ids), np.uint64), np.empty(20, np.uint8)
    _of_numbers(np.frombuffer(seed, dtype=np.uint64), ids, text, out)
    return out


def coins_of_texts(
    seed: bytes,
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    which: NDArray[np.int64] | None = None,
    hash: CoinHash = SIPHASH,
) -> NDArray[np.uint64]:
    """The coins of agents whose ids are the texts data[offsets[i]:offsets[i + 1]].

    For all i, or only for those in `which`.
    """
    begins, ends = offsets[:-1], offsets[1:]
    if which is not None:
        begins, ends = begins[which], ends[which]
    out = np.empty(len(begins), np.uint64)
    if hash == SHA256:
        hash_texts(key_text(seed), data, begins, ends, out)
        return out >> np.uint64(64 - COIN_BITS)
    _of_texts(np.frombuffer(seed, dtype=np.uint64), data, begins, ends, out)
    return out


def request_keys(ids: pa.Array, requests: pa.Array) -> pa.Array:
    """`jdpack.common.coins.request_key` of many requests."""
    texts = ids.cast(pa.large_string())
    lengths = pc.binary_length(texts).cast(pa.large_string())
    return pc.binary_join_element_wise(lengths, texts, requests, pa.scalar(":", pa.large_string()))


@njit(cache=True, nogil=True, error_model="numpy")
def _of_numbers(key, ids, text, out):  # type: ignore[no-untyped-def]
    for i in range(ids.size):
        rest, start = np.uint64(ids[i]), 20
        if ids[i] < 0:
            rest = ~rest + np.uint64(1)
        while True:
            start -= 1
            text[start] = 48 + np.uint8(rest % np.uint64(10))
            rest //= np.uint64(10)
            if rest == 0:
                break
        if ids[i] < 0:
            start -= 1
            text[start] = 45
        out[i] = _coin(key, text, start, 20)


@njit(cache=True, nogil=True, error_model="numpy")
def _of_texts(key, data, begins, ends, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = _coin(key, data, begins[i], ends[i])


@njit(inline="always")
def _coin(key, data, start, stop):  # type: ignore[no-untyped-def]
    v0, v1 = np.uint64(_INIT[0]) ^ key[0], np.uint64(_INIT[1]) ^ key[1]
    v2, v3 = np.uint64(_INIT[2]) ^ key[0], np.uint64(_INIT[3]) ^ key[1]
    length = stop - start
    ends = length // 8 + 1
    for block in range(ends + 1):  # the last block is four final rounds
        word = np.uint64(0)
        if block < ends:
            for at in range(block * 8, min(block * 8 + 8, length)):
                word |= np.uint64(data[start + at]) << np.uint64(8 * (at & 7))
            if block == ends - 1:
                word |= np.uint64(length & 255) << np.uint64(56)
        else:
            v2 ^= np.uint64(255)
        v3 ^= word
        for _ in range(2 if block < ends else 4):
            v0, v1, v2, v3 = _sipround(v0, v1, v2, v3)
        v0 ^= word
    return (v0 ^ v1 ^ v2 ^ v3) >> np.uint64(64 - COIN_BITS)


@njit(inline="always")
def _sipround(v0, v1, v2, v3):  # type: ignore[no-untyped-def]
    v0 += v1
    v1 = ((v1 << np.uint64(13)) | (v1 >> np.uint64(51))) ^ v0
    v0 = (v0 << np.uint64(32)) | (v0 >> np.uint64(32))
    v2 += v3
    v3 = ((v3 << np.uint64(16)) | (v3 >> np.uint64(48))) ^ v2
    v0 += v3
    v3 = ((v3 << np.uint64(21)) | (v3 >> np.uint64(43))) ^ v0
    v2 += v1
    v1 = ((v1 << np.uint64(17)) | (v1 >> np.uint64(47))) ^ v2
    v2 = (v2 << np.uint64(32)) | (v2 >> np.uint64(32))
    return v0, v1, v2, v3
