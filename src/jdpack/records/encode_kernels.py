"""Private: the compiled loops of encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jdpack.market.market import Market
from jdpack.market.totals import Total
from jdpack.records.codes import BLOCK
from jdpack.records.kernels import njit

_TILE = 2**11  # numbers of a matrix encoded at a time, to stay in the cache


@njit(inline="always")
def _admit(number, cap, clamp):  # type: ignore[no-untyped-def]
    """The number to encode, whether it was clamped, and whether it must be refused."""
    if 0.0 <= number <= cap:
        return number, False, False
    if clamp and cap < number < np.inf:
        return cap, True, False
    return 0.0, False, True


@njit(inline="always")
def _code_up(amount, size):  # type: ignore[no-untyped-def]
    """`Market.demand_code`; the product is exact."""
    code = np.floor(amount / size)
    return np.uint16(np.int32(code + 1.0 if code * size < amount else code))


@njit(cache=True, nogil=True, error_model="numpy")
def _place(starts, options, block, fill, runs):  # type: ignore[no-untyped-def]
    """Assign rows to places, block after block, until the part is full.

    A new agent goes to a block with space for as many options as the market allows, so that no
    agent is split. `block` is the number of blocks in use. A run is (block, place in it, row,
    number of rows). Returns how many rows were placed, `block`, and the number of runs.
    """
    row, count = 0, 0
    while row < starts.size:
        if block == 0 or (starts[row] == 1 and fill[block - 1] + options > BLOCK):
            if block == fill.size:
                break
            block += 1
        at, begin = fill[block - 1], row
        if options == 1:
            row += min(BLOCK - at, starts.size - row)
        else:
            row += 1
            while row < starts.size and not (
                starts[row] == 1 and at + row - begin + options > BLOCK
            ):
                row += 1
        # One by one: compiling a tuple assignment would take seconds.
        runs[count, 0], runs[count, 1] = block - 1, at
        runs[count, 2], runs[count, 3] = begin, row - begin
        fill[block - 1] += row - begin
        count += 1
    return row, block, count


@njit(cache=True, nogil=True, error_model="numpy")
def encode_values(values, step, cap, clamp, runs, out):  # type: ignore[no-untyped-def]
    """Encode values; returns the index of the first bad one, or -1, and how many were clamped."""
    bad, clamped = -1, 0
    for r in range(runs.shape[0]):
        block, at, row, n = runs[r, 0], runs[r, 1], runs[r, 2], runs[r, 3]
        source, codes, odd = values[row : row + n], out[block, at : at + n], 0
        for i in range(n):
            value = source[i]
            odd += not (value >= 0.0 and value <= cap)
            code = np.floor(value / step)  # `Market.value_code`; the product below is exact
            codes[i] = np.int64(code - 1.0 if code * step > value else code)
        if odd == 0:
            continue
        for i in range(n):
            value, is_clamped, is_bad = _admit(source[i], cap, clamp)
            clamped += is_clamped
            if is_bad and bad < 0:
                bad = row + i
            code = np.floor(value / step)
            codes[i] = np.int64(code - 1.0 if code * step > value else code)
    return bad, clamped


@njit(inline="always")
def _encode_run(source, size, cap, clamp, codes):  # type: ignore[no-untyped-def]
    """Encode adjacent amounts, on the assumption that all are fine, then check that."""
    odd = 0
    for i in range(source.size):
        amount = source[i]
        odd += not (amount >= 0.0 and amount <= cap)
        codes[i] = _code_up(amount, size)
    bad, clamped = -1, 0
    if odd:
        for i in range(source.size):
            amount, is_clamped, is_bad = _admit(source[i], cap, clamp)
            clamped += is_clamped
            if is_bad and bad < 0:
                bad = i
            codes[i] = _code_up(amount, size)
    return bad, clamped


@njit(cache=True, nogil=True, error_model="numpy")
def encode_amounts(amounts, size, cap, clamp, runs, out, touched):  # type: ignore[no-untyped-def]
    """Encode amounts of one resource; returns the same as `encode_values`."""
    bad, clamped = -1, 0
    for r in range(runs.shape[0]):
        block, at, row, n = runs[r, 0], runs[r, 1], runs[r, 2], runs[r, 3]
        codes = out[block, at : at + n]
        wrong, more = _encode_run(amounts[row : row + n], size, cap, clamp, codes)
        clamped += more
        if wrong >= 0 and bad < 0:
            bad = row + wrong
        if touched.size:
            for i in range(n):
                touched[row + i] += codes[i] > 0
    return bad, clamped


@njit(cache=True, nogil=True, error_model="numpy")
def encode_matrix(matrix, sizes, caps, clamp, runs, out, touched):  # type: ignore[no-untyped-def]
    """Encode a matrix column by column, for a few rows at a time that fit in the cache."""
    bad, column, clamped = -1, 0, 0
    tile = max(16, _TILE // matrix.shape[1])
    for r in range(runs.shape[0]):
        block, at, row, n = runs[r, 0], runs[r, 1], runs[r, 2], runs[r, 3]
        for begin in range(0, n, tile):
            size = min(tile, n - begin)
            low = row + begin
            for j in range(matrix.shape[1]):
                codes = out[block, j, at + begin : at + begin + size]
                wrong, more = _encode_run(
                    matrix[low : low + size, j], sizes[j], caps[j], clamp, codes
                )
                clamped += more
                if wrong >= 0 and (bad < 0 or low + wrong < bad):
                    bad, column = low + wrong, j
                if touched.size:
                    for i in range(size):
                        touched[low + i] += codes[i] > 0
    return bad, column, clamped


@njit(cache=True, nogil=True, error_model="numpy")
def encode_pairs(amounts, resources, sizes, caps, clamp, out):  # type: ignore[no-untyped-def]
    """Encode the amounts of pairs; returns the same as `encode_values`."""
    bad, clamped = -1, 0
    for i in range(amounts.size):
        amount, is_clamped, is_bad = _admit(amounts[i], caps[resources[i]], clamp)
        clamped += is_clamped
        if is_bad and bad < 0:
            bad = i
        out[i] = _code_up(amount, sizes[resources[i]])
    return bad, clamped


@njit(cache=True, nogil=True, error_model="numpy")
def first_repeated(indptr, resources, m):  # type: ignore[no-untyped-def]
    """The first row that names a resource twice, and the index of the second pair; or -1, -1."""
    seen = np.full(m, -1, np.int64)
    for row in range(indptr.size - 1):
        for at in range(indptr[row], indptr[row + 1]):
            if seen[resources[at]] == row:
                return row, at
            seen[resources[at]] = row
    return -1, -1


@njit(cache=True, nogil=True, error_model="numpy")
def store(items, runs, out):  # type: ignore[no-untyped-def]
    """Copy items to the places assigned by `_place`."""
    for r in range(runs.shape[0]):
        block, at, row, n = runs[r, 0], runs[r, 1], runs[r, 2], runs[r, 3]
        for i in range(n):  # an assignment of slices takes seconds to compile
            out[block, at + i] = items[row + i]


@njit(cache=True, nogil=True, error_model="numpy")
def scatter(indptr, resources, codes, runs, out):  # type: ignore[no-untyped-def]
    """Copy sparse codes to the places assigned by `_place`."""
    for r in range(runs.shape[0]):
        block, place, row, n = runs[r, 0], runs[r, 1], runs[r, 2], runs[r, 3]
        out[block, :, place : place + n] = 0
        for i in range(n):
            for at in range(indptr[row + i], indptr[row + i + 1]):
                out[block, resources[at], place + i] = codes[at]


# --- totals -------------------------------------------------------------------------------
#
# `Total.fits` and `Total.cut`, with whole numbers of up to 86 bits as high * 2^_LOW_BITS + low. A
# code has 16 bits, a size 53, and a sum 2^16 terms. So sums of highs stay below 2^61, and sums of
# lows, which are carried over only when they are compared, below 2^56.

_LOW_BITS = 24
_LOW = 2**_LOW_BITS - 1


class Totals(NamedTuple):
    """The bounds of a market on totals, for kernels."""

    of: NDArray[np.int64]
    """The bound that each resource counts for, or -1."""
    high: NDArray[np.int64]
    low: NDArray[np.int64]
    """The unit size of each resource."""
    limit_high: NDArray[np.int64]
    limit_low: NDArray[np.int64]
    """Each bound."""

    @classmethod
    def of_market(cls, market: Market) -> Totals:
        return cls.counting(market.totals, len(market.resources))

    @classmethod
    def counting(cls, totals: Sequence[Total], m: int, requests: int = 1) -> Totals:
        """These bounds, on what this many requests ask for together."""
        count = len(totals)
        found = cls(np.full(m, -1), *np.zeros((2, m), np.int64), *np.zeros((2, count), np.int64))
        for t, total in enumerate(totals):
            own = list(total.resources)
            found.of[own] = t
            found.high[own] = [size >> _LOW_BITS for size in total.sizes]
            found.low[own] = [size & _LOW for size in total.sizes]
            most = requests * sum(total.sizes) << 16  # more than they can ask for
            limit = min(total.limit, most)
            found.limit_high[t], found.limit_low[t] = limit >> _LOW_BITS, limit & _LOW
        return found


@njit(inline="always")
def _within(high, low, limit_high, limit_low):  # type: ignore[no-untyped-def]
    high += low >> _LOW_BITS
    return high < limit_high or (high == limit_high and (low & _LOW) <= limit_low)


@njit(cache=True, nogil=True, error_model="numpy")
def _cut(codes, resources, totals, t):  # type: ignore[no-untyped-def]
    """`Total.cut` for codes of resources in ascending order; returns how many were cut."""
    high, low, cut = np.int64(0), np.int64(0), 0
    limit_high, limit_low = totals.limit_high[t], totals.limit_low[t]
    for i in range(codes.size):
        if codes[i] == 0:
            continue
        if cut > 0:
            codes[i] = 0
            cut += 1
            continue
        own_high, own_low = totals.high[resources[i]], totals.low[resources[i]]
        most = np.int64(codes[i]) - 1
        if _within(high + most * own_high, low + most * own_low, limit_high, limit_low):
            high += most * own_high
            low += most * own_low
            continue
        least = np.int64(0)  # fits, and `most` does not
        while most - least > 1:
            middle = (least + most) // 2
            if _within(high + middle * own_high, low + middle * own_low, limit_high, limit_low):
                least = middle
            else:
                most = middle
        codes[i] = least + 1
        cut = 1
    return cut


@njit(cache=True, nogil=True, error_model="numpy")
def bound_rows(out, runs, totals, clamp):  # type: ignore[no-untyped-def]
    """Find or cut dense rows beyond a bound.

    Returns the first such row and its bound, or -1, -1; with `clamp`, how many codes were cut.
    """
    bad, bound, clamped = -1, -1, 0
    high, low = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for t in range(totals.limit_high.size):
        own = np.flatnonzero(totals.of == t)
        some = np.empty(own.size, np.uint16)
        for r in range(runs.shape[0]):
            block, at, row, n = runs[r, 0], runs[r, 1], runs[r, 2], runs[r, 3]
            high[:n] = 0
            low[:n] = 0
            for j in own:
                codes = out[block, j, at : at + n]
                for i in range(n):
                    steps = max(np.int64(codes[i]) - 1, 0)
                    high[i] += steps * totals.high[j]
                    low[i] += steps * totals.low[j]
            for i in range(n):
                if _within(high[i], low[i], totals.limit_high[t], totals.limit_low[t]):
                    continue
                if clamp:
                    for a in range(own.size):
                        some[a] = out[block, own[a], at + i]
                    clamped += _cut(some, own, totals, t)
                    for a in range(own.size):
                        out[block, own[a], at + i] = some[a]
                elif bad < 0 or row + i < bad:
                    bad, bound = row + i, t
    return bad, bound, clamped


@njit(cache=True, nogil=True, error_model="numpy")
def bound_pairs(indptr, resources, codes, totals, clamp):  # type: ignore[no-untyped-def]
    """Find or cut sparse rows beyond a bound; returns the same as `bound_rows`."""
    count, clamped = totals.limit_high.size, 0
    high, low = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for row in range(indptr.size - 1):
        begin, end = indptr[row], indptr[row + 1]
        for at in range(begin, end):
            j = resources[at]
            if totals.of[j] >= 0:
                steps = max(np.int64(codes[at]) - 1, 0)
                high[totals.of[j]] += steps * totals.high[j]
                low[totals.of[j]] += steps * totals.low[j]
        for at in range(begin, end):
            t = totals.of[resources[at]]
            if t < 0:
                continue
            fits = _within(high[t], low[t], totals.limit_high[t], totals.limit_low[t])
            high[t] = 0  # for the next row
            low[t] = 0
            if fits:
                continue
            if not clamp:
                return row, t, clamped
            order = np.argsort(resources[begin:end])
            own = begin + order[totals.of[resources[begin:end][order]] == t]
            some = codes[own]
            clamped += _cut(some, resources[own], totals, t)
            codes[own] = some
    return -1, -1, clamped


# --- groups -------------------------------------------------------------------------------


class Rules(NamedTuple):
    """The derived resources of a market, for kernels."""

    first: int
    """The number of the first derived resource."""
    base: NDArray[np.int64]
    """The resource that each is derived from."""
    asks: NDArray[np.bool_]
    """Whether agents of a group demand it, [group, rule]; the last row is for those in no group."""

    @classmethod
    def of_market(cls, market: Market) -> Rules:
        rules = [rule for _, rule in market.derived]
        groups = [*range(len(market.groups)), -1]
        asks = [[rule.demanded_by(g) for rule in rules] for g in groups]
        base = np.array([rule.base for rule in rules], np.int64)
        return cls(len(market.declared), base, np.array(asks, bool))


@njit(cache=True, nogil=True, error_model="numpy")
def derive_rows(out, runs, groups, rules):  # type: ignore[no-untyped-def]
    """`Market.with_derived` for dense rows."""
    for d in range(rules.base.size):
        for r in range(runs.shape[0]):
            block, at, row, n = runs[r, 0], runs[r, 1], runs[r, 2], runs[r, 3]
            base = out[block, rules.base[d], at : at + n]
            codes = out[block, rules.first + d, at : at + n]
            for i in range(n):
                codes[i] = base[i] if rules.asks[groups[row + i], d] else 0


@njit(cache=True, nogil=True, error_model="numpy")
def derive_pairs(indptr, resources, codes, groups, rules):  # type: ignore[no-untyped-def]
    """`Market.with_derived` for sparse rows: the pairs of each row, then the derived ones."""
    at = np.full(rules.first, -1, np.int64)  # where a row has a resource
    ends = np.zeros(indptr.size, np.int64)
    found_resources = np.empty(0, resources.dtype)
    found_codes = np.empty(0, codes.dtype)
    for fill in (False, True):  # count, then fill in
        if fill:
            found_resources = np.empty(ends[-1], resources.dtype)
            found_codes = np.empty(ends[-1], codes.dtype)
        to = 0
        for row in range(indptr.size - 1):
            for pair in range(indptr[row], indptr[row + 1]):
                at[resources[pair]] = pair
                if fill:
                    found_resources[to], found_codes[to] = resources[pair], codes[pair]
                to += 1
            for d in range(rules.base.size):
                pair = at[rules.base[d]]
                if pair >= indptr[row] and rules.asks[groups[row], d]:
                    if fill:
                        found_resources[to], found_codes[to] = rules.first + d, codes[pair]
                    to += 1
            for pair in range(indptr[row], indptr[row + 1]):
                at[resources[pair]] = -1
            ends[row + 1] = to
    return ends, found_resources, found_codes
