"""Private: compiled hashes of many numbers or short texts at once.

SplitMix64 (Steele, Lea & Flood 2014) maps 64-bit numbers one to one. SHA-256 follows FIPS 180-4.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from jdpack.records.kernels import njit


@njit(cache=True, nogil=True)
def mix(x):  # type: ignore[no-untyped-def]
    """SplitMix64 of one unsigned number."""
    x += np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def mix_all(numbers):  # type: ignore[no-untyped-def]
    """SplitMix64 of each number of an array."""
    out = np.empty(numbers.size, np.uint64)
    for i in range(numbers.size):
        out[i] = mix(numbers[i])
    return out


def hash_texts(
    prefix: bytes,
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    out: NDArray[np.uint64],
) -> None:
    """Set the 64 highest bits of the hash of the prefix and each text data[begins[i]:ends[i]]."""
    block, words = np.empty(64, np.uint8), np.empty(64, np.uint32)
    first = np.frombuffer(prefix, np.uint8)
    _hash_texts(first, data, begins, ends, _START, _ROUNDS, block, words, out)


def _root_bits(degree: int, count: int) -> NDArray[np.uint32]:
    """The first 32 bits after the point of the roots of the first primes."""
    primes = [p for p in range(2, 312) if all(p % q for q in range(2, math.isqrt(p) + 1))]
    found = []
    for prime in primes[:count]:
        number, root = prime << 32 * degree, 0
        for bit in reversed(range(36)):
            if (root | 1 << bit) ** degree <= number:
                root |= 1 << bit
        found.append(root % 2**32)
    return np.array(found, np.uint32)


_START, _ROUNDS = _root_bits(2, 8), _root_bits(3, 64)


@njit(cache=True, nogil=True, error_model="numpy")
def _hash_texts(prefix, data, begins, ends, start, rounds, block, words, out):  # type: ignore[no-untyped-def]
    state = np.empty(8, np.uint32)
    for i in range(out.size):
        for k in range(8):
            state[k] = start[k]
        length = prefix.size + ends[i] - begins[i]
        blocks = (length + 8) // 64 + 1  # with one more bit, and the length in 8 bytes
        for b in range(blocks):
            for k in range(64):
                at = b * 64 + k
                if at < prefix.size:
                    block[k] = prefix[at]
                elif at < length:
                    block[k] = data[begins[i] + at - prefix.size]
                else:
                    block[k] = 128 if at == length else 0
            if b == blocks - 1:
                for k in range(8):
                    block[63 - k] = (8 * length >> 8 * k) & 255
            _compress(state, block, rounds, words)
        out[i] = np.uint64(state[0]) << np.uint64(32) | np.uint64(state[1])


@njit(inline="always")
def _turned(x, bits):  # type: ignore[no-untyped-def]
    return np.uint32(x >> np.uint32(bits)) | np.uint32(x << np.uint32(32 - bits))


@njit(cache=True, nogil=True, error_model="numpy")
def _compress(state, block, rounds, w):  # type: ignore[no-untyped-def]
    for t in range(16):
        word = np.uint32(block[4 * t]) << np.uint32(24) | np.uint32(block[4 * t + 1]) << np.uint32(
            16
        )
        w[t] = word | np.uint32(block[4 * t + 2]) << np.uint32(8) | np.uint32(block[4 * t + 3])
    for t in range(16, 64):
        x, y = w[t - 15], w[t - 2]
        low = _turned(x, 7) ^ _turned(x, 18) ^ np.uint32(x >> np.uint32(3))
        high = _turned(y, 17) ^ _turned(y, 19) ^ np.uint32(y >> np.uint32(10))
        w[t] = np.uint32(w[t - 16] + low + w[t - 7] + high)
    a, b, c, d, e, f, g, h = (
        state[0], state[1], state[2], state[3], state[4], state[5], state[6], state[7],
    )  # fmt: skip
    for t in range(64):
        high = _turned(e, 6) ^ _turned(e, 11) ^ _turned(e, 25)
        one = np.uint32(h + high + ((e & f) ^ (~e & g)) + rounds[t] + w[t])
        low = _turned(a, 2) ^ _turned(a, 13) ^ _turned(a, 22)
        two = np.uint32(low + ((a & b) ^ (a & c) ^ (b & c)))
        h, g, f, e = g, f, e, np.uint32(d + one)
        d, c, b, a = c, b, a, np.uint32(one + two)
    for k, more in enumerate((a, b, c, d, e, f, g, h)):
        state[k] += more
