"""Private: scale shares, flip coins, and sum the resulting loads and values exactly."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from jdpack.market.grid import SHARE
from jdpack.records.codes import BLOCK, Part

_SHARE_BITS = SHARE.bit_length() - 1  # a shift divides by SHARE and rounds down


def factors(part: Part, of_resources: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The scale factor of each row: the smallest among the resources that its option touches."""
    out = np.full(part.rows, SHARE, np.uint32)
    if part.pairs is None:
        _factors_dense(part.codes, part.fill, of_resources, out)
    else:
        _factors_sparse(part.pairs, part.fill, of_resources, out)
    return out


def scale(shares: NDArray[np.uint32], factors: NDArray[np.uint32]) -> None:
    """Scale shares by factors / SHARE in place, rounding down."""
    _scale(shares, factors)


def flip(
    part: Part,
    shares: NDArray[np.uint32],
    coins: NDArray[np.uint64],
    factors: NDArray[np.uint32],
) -> None:
    """Scale shares and round them to all or nothing by the agents' coins, in place.

    The coin is uniform on [0, 1). An agent's options are laid out on that interval one after the
    other, each as wide as its share before scaling. The option that the coin falls on is granted.
    It is given if the coin falls in the first factor / SHARE of its width. So only granted options
    are given, each with probability exactly factor / SHARE, independently.
    """
    _flip(part.heads() if part.several is not None else None, shares, coins, factors)


def luck(part: Part, shares: NDArray[np.uint32], given: NDArray[np.uint32], bound: int) -> int:
    """The luck query: value given beyond the averaged shares, cut to +-bound for each agent."""
    return int(
        _luck(
            part.values,
            part.fill,
            part.heads() if part.several is not None else None,
            shares,
            given,
            bound,
        )
    )


def welfare(part: Part, shares: NDArray[np.uint32]) -> int:
    """The total value of the given shares in value codes, rounded down per row."""
    nothing = np.zeros(len(shares), np.uint32)
    return int(_luck(part.values, part.fill, None, nothing, shares, 2**62))


def loads(part: Part, m: int, shares: NDArray[np.uint32]) -> list[int]:
    """The exact load of the given shares on each resource, in units of code / SHARE."""
    # A block's sum is below 2^51; splitting totals into high and low keeps them exact in 64 bits.
    high, low = np.zeros(m, np.int64), np.zeros(m, np.int64)
    if part.pairs is None:
        _loads_dense(part.codes, part.fill, shares, high, low)
    else:
        _loads_sparse(part.pairs, part.fill, shares, high, low)
    return [int(h) * SHARE + int(rest) for h, rest in zip(high, low, strict=True)]


@njit(cache=True, nogil=True, error_model="numpy")
def _factors_dense(codes, fill, factors, out):  # type: ignore[no-untyped-def]
    first = 0
    for b in range(fill.size):
        for j in range(codes.shape[1]):
            if factors[j] < SHARE:
                for i in range(fill[b]):
                    if codes[b, j, i] and factors[j] < out[first + i]:
                        out[first + i] = factors[j]
        first += fill[b]


@njit(cache=True, nogil=True, error_model="numpy")
def _factors_sparse(pairs, fill, factors, out):  # type: ignore[no-untyped-def]
    first = 0
    for b in range(fill.size):
        own = out[first : first + fill[b]]
        for slot in range(pairs.offsets[b], pairs.offsets[b + 1], BLOCK):
            for i in range(fill[b]):
                if pairs.codes[slot + i]:
                    own[i] = min(own[i], factors[pairs.resources[slot + i]])
        for pair in range(pairs.rest_offsets[b], pairs.rest_offsets[b + 1]):
            i = pairs.rest_rows[pair]
            own[i] = min(own[i], factors[pairs.rest_resources[pair]])
        first += fill[b]


@njit(cache=True, nogil=True, error_model="numpy")
def _scale(shares, factors):  # type: ignore[no-untyped-def]
    for i in range(shares.size):
        shares[i] = np.int64(shares[i]) * np.int64(factors[i]) >> _SHARE_BITS


@njit(cache=True, nogil=True, error_model="numpy")
def _flip(starts, shares, coins, factors):  # type: ignore[no-untyped-def]
    reached = np.uint64(0)
    for i in range(shares.size):
        if starts is None or starts[i]:
            reached = np.uint64(0)
        begin, share = reached << np.uint64(29), np.uint64(shares[i])  # as coins, in 53 bits
        reached += share
        width = share * np.uint64(factors[i]) << np.uint64(5)
        shares[i] = SHARE if begin <= coins[i] < begin + width else 0


@njit(cache=True, nogil=True, error_model="numpy")
def _luck(values, fill, starts, shares, given, bound):  # type: ignore[no-untyped-def]
    row, total, own = 0, np.int64(0), np.int64(0)
    for b in range(fill.size):
        for i in range(fill[b]):
            if starts is None or starts[row]:
                total += min(max(own, -bound), bound)
                own = np.int64(0)
            value = np.int64(values[b, i])
            own += value * np.int64(given[row]) >> _SHARE_BITS
            own -= value * np.int64(shares[row]) >> _SHARE_BITS
            row += 1
    return total + min(max(own, -bound), bound)


@njit(cache=True, nogil=True, error_model="numpy")
def _loads_dense(codes, fill, shares, high, low):  # type: ignore[no-untyped-def]
    first = 0
    for b in range(fill.size):
        for j in range(codes.shape[1]):
            total = np.int64(0)
            for i in range(fill[b]):
                total += np.int64(codes[b, j, i]) * np.int64(shares[first + i])
            high[j] += total >> _SHARE_BITS
            low[j] += total & (SHARE - 1)
        first += fill[b]


@njit(cache=True, nogil=True, error_model="numpy")
def _loads_sparse(pairs, fill, shares, high, low):  # type: ignore[no-untyped-def]
    first = 0
    for b in range(fill.size):
        own = shares[first : first + fill[b]]
        for slot in range(pairs.offsets[b], pairs.offsets[b + 1], BLOCK):
            for i in range(fill[b]):
                _load(pairs.resources[slot + i], pairs.codes[slot + i], own[i], high, low)
        for pair in range(pairs.rest_offsets[b], pairs.rest_offsets[b + 1]):
            i = pairs.rest_rows[pair]
            _load(pairs.rest_resources[pair], pairs.rest_codes[pair], own[i], high, low)
        first += fill[b]


@njit(inline="always")
def _load(j, code, share, high, low):  # type: ignore[no-untyped-def]
    total = np.int64(code) * np.int64(share)
    high[j] += total >> _SHARE_BITS
    low[j] += total & (SHARE - 1)
