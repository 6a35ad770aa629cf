"""Private: scale shares, flip coins, and sum the resulting loads and values exactly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jdpack.engines.curvature import rest_begins
from jdpack.market.grid import CHANCE_MAX, SHARE
from jdpack.records.codes import BLOCK, Part
from jdpack.records.kernels import njit

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


def luck(
    part: Part, shares: NDArray[np.uint32], given: NDArray[np.uint32], lowest: int, highest: int
) -> int:
    """The luck query: value given beyond the averaged shares, cut to a range for each agent."""
    heads = part.heads() if part.several is not None else None
    return int(_luck(part.values, part.fill, heads, shares, given, lowest, highest))


def chance(part: Part, m: int, shares: NDArray[np.uint32], dearest: int) -> list[int]:
    """The chance query: the variances that coins add to each load and to the value, rounded up.

    With shares s_o, in units of 1/SHARE, of options with codes c_o, the code granted has the
    variance sum_o c_o^2 s_o / SHARE - (sum_o c_o s_o / SHARE)^2, in units of CHANCE_UNIT rounded up
    for each agent. For the value, the code of an option is its value in units of dearest / 2^16,
    above the least that the agent can get, also rounded up and at most 2^16. If shares of several
    options sum to 1 except for their rounding, the least is that of these options.
    """
    out = np.zeros(m + 1, np.int64)
    heads = part.heads() if part.several is not None else None
    where = part.values, part.fill, heads, shares, dearest
    if part.pairs is None:
        _chance_dense(part.codes, *where, out)
    else:
        first, second = np.zeros(m, np.int64), np.zeros(m, np.int64)
        touched, begins = np.empty(m, np.int64), np.empty(BLOCK + 1, np.int64)
        _chance_sparse(part.pairs, *where, first, second, touched, begins, out)
    return [int(number) for number in out]


def welfare(part: Part, shares: NDArray[np.uint32]) -> int:
    """The total value of the given shares in value codes, rounded down per row."""
    nothing = np.zeros(len(shares), np.uint32)
    return int(_luck(part.values, part.fill, None, nothing, shares, 0, 2**62))


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
def _luck(values, fill, starts, shares, given, lowest, highest):  # type: ignore[no-untyped-def]
    row, total, own = 0, np.int64(0), np.int64(0)
    for b in range(fill.size):
        for i in range(fill[b]):
            if starts is None or starts[row]:
                total += min(max(own, lowest), highest)
                own = np.int64(0)
            value = np.int64(values[b, i])
            own += value * np.int64(given[row]) >> _SHARE_BITS
            own -= value * np.int64(shares[row]) >> _SHARE_BITS
            row += 1
    return total + min(max(own, lowest), highest)


@njit(inline="always")
def _variance(first, second):  # type: ignore[no-untyped-def]
    """The variance in units of CHANCE_UNIT, from sum c s <= 2^40 and sum c^2 s <= 2^56.

    sum c^2 s / 2^24 - (sum c s / 2^24)^2 = (2^4 sum c^2 s - (sum c s / 2^10)^2) / 2^28, and a unit
    is 2^14. Rounding the mean down only raises the variance.
    """
    mean = first >> 10
    return ((second << 4) - mean * mean + (np.int64(1) << 42) - 1) >> 42


@njit(inline="always")
def _value_chance(values, b, i, n, shares, row, dearest):  # type: ignore[no-untyped-def]
    """The variance of the value granted to the agent with n rows from row i of block b on."""
    total, least = np.int64(0), np.int64(2) ** 62
    for k in range(n):
        total += shares[row + k]
        if shares[row + k]:
            least = min(least, np.int64(values[b, i + k]))
    if n == 1 or total < SHARE - n:  # not only the gap that rounding leaves
        least = np.int64(0)
    first, second = np.int64(0), np.int64(0)
    for k in range(n):
        share = np.int64(shares[row + k])
        if share:
            above = np.int64(values[b, i + k]) - least
            code = min(((above << 16) + dearest - 1) // dearest, np.int64(1) << 16)
            first += code * share
            second += code * code * share
    return min(_variance(first, second), np.int64(CHANCE_MAX))


@njit(inline="always")
def _rows_of_agent(starts, row, i, n):  # type: ignore[no-untyped-def]
    """How many rows the agent has whose first row is row i of a block with n rows."""
    count = 1
    while starts is not None and i + count < n and not starts[row + count]:
        count += 1
    return count


@njit(inline="always")
def _tosses(shares, row, n):  # type: ignore[no-untyped-def]
    """Whether any of an agent's rows has a share other than none or all."""
    tossed = False
    for k in range(n):
        tossed |= shares[row + k] != 0 and shares[row + k] != SHARE
    return tossed


@njit(cache=True, nogil=True, error_model="numpy")
def _chance_dense(codes, values, fill, starts, shares, dearest, out):  # type: ignore[no-untyped-def]
    row, m = 0, codes.shape[1]
    for b in range(fill.size):
        i = 0
        while i < fill[b]:
            n = _rows_of_agent(starts, row, i, fill[b])
            if _tosses(shares, row, n):
                for j in range(m):
                    first, second = np.int64(0), np.int64(0)
                    for k in range(n):
                        code, share = np.int64(codes[b, j, i + k]), np.int64(shares[row + k])
                        first += code * share
                        second += code * code * share
                    out[j] += _variance(first, second)
                out[m] += _value_chance(values, b, i, n, shares, row, dearest)
            i += n
            row += n


@njit(inline="always")
def _moment(j, code, share, first, second, touched, count):  # type: ignore[no-untyped-def]
    """Add an option's code to the moments of resource j, and list j when it is first touched."""
    if code and first[j] == 0:
        touched[count] = j
        count += 1
    first[j] += code * share
    second[j] += code * code * share
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _chance_sparse(  # type: ignore[no-untyped-def]
    pairs, values, fill, starts, shares, dearest, first, second, touched, begins, out
):
    row, m = 0, first.size
    for b in range(fill.size):
        rest_begins(pairs, b, begins)
        i = 0
        while i < fill[b]:
            n = _rows_of_agent(starts, row, i, fill[b])
            if _tosses(shares, row, n):
                count = 0
                for k in range(i, i + n):
                    share = np.int64(shares[row + k - i])
                    if share == 0:
                        continue
                    for pair in range(pairs.offsets[b] + k, pairs.offsets[b + 1], BLOCK):
                        code, j = np.int64(pairs.codes[pair]), pairs.resources[pair]
                        count = _moment(j, code, share, first, second, touched, count)
                    for pair in range(begins[k], begins[k + 1]):
                        code, j = np.int64(pairs.rest_codes[pair]), pairs.rest_resources[pair]
                        count = _moment(j, code, share, first, second, touched, count)
                for at in range(count):
                    j = touched[at]
                    out[j] += _variance(first[j], second[j])
                    first[j], second[j] = 0, 0
                out[m] += _value_chance(values, b, i, n, shares, row, dearest)
            i += n
            row += n


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
