"""Private: SplitMix64 (Steele, Lea & Flood 2014), a one-to-one hash of 64-bit numbers."""

from __future__ import annotations

import numpy as np

from jdpack.records.kernels import njit


@njit(cache=True, nogil=True)
def mix(x):  # type: ignore[no-untyped-def]
    """The hash of one unsigned number."""
    x += np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def mix_all(numbers):  # type: ignore[no-untyped-def]
    """The hashes of an array of unsigned numbers."""
    out = np.empty(numbers.size, np.uint64)
    for i in range(numbers.size):
        out[i] = mix(numbers[i])
    return out
