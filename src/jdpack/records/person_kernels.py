"""Private: what each person asks for in total, counted as in `jdpack.market.person`, compiled.

Rows are counted in their order, request after request. A person may continue in the next part, so
the counts are kept in a `Counts` from part to part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jdpack.market.market import Market
from jdpack.records.encode_kernels import _LOW, _LOW_BITS, Totals, _within
from jdpack.records.kernels import njit

REASONS = ("", "requests", "max_value", "bundle_size", "max_demand", "max_total")
"""The bound that a request would exceed, by the number that the kernels return."""


class BoundArrays(NamedTuple):
    """`Market.person_limits`, for kernels."""

    most: NDArray[np.int64]
    """Requests, value and resources."""
    steps: NDArray[np.int64]
    totals: Totals

    @classmethod
    def of_market(cls, market: Market) -> BoundArrays:
        limits = market.person_limits
        return cls(
            np.array([limits.requests, limits.value, limits.bundle], np.int64),
            np.array(limits.steps, np.int64),
            Totals.counting(limits.totals, len(limits.steps), limits.requests),
        )


class Counts(NamedTuple):
    """What a person has asked for so far (row 0), and what one request adds (row 1)."""

    sums: NDArray[np.int64]
    """Requests, value, width (the most resources of one option), and resources touched."""
    steps: NDArray[np.int64]
    touched: NDArray[np.int64]
    """The resources touched so far, in the first places."""
    marks: NDArray[np.uint8]
    """1 for the resources touched so far."""
    counted: NDArray[np.int64]
    """What counts for each total, in a high and a low part. The third row is for one option."""

    @classmethod
    def empty(cls, bounds: BoundArrays) -> Counts:
        m, totals = len(bounds.steps), len(bounds.totals.limit_high)
        return cls(
            np.zeros((2, 4), np.int64),
            np.zeros((2, m), np.int64),
            np.zeros((2, m), np.int64),
            np.zeros((2, m), np.uint8),
            np.zeros((3, 2, totals), np.int64),
        )


_PERSON, _REQUEST, _OPTION = 0, 1, 2


# Loops inside these functions read arrays that were taken out of their tuples once. Calling a
# function for every code would take ten times as long.


@njit(inline="always")
def _clear(counts, who):  # type: ignore[no-untyped-def]
    sums, steps, touched, marks, counted = counts
    for at in range(sums[who, 3]):
        steps[who, touched[who, at]] = 0
        marks[who, touched[who, at]] = 0
    sums[who] = 0
    counted[who] = 0


@njit(inline="always")
def _add_option(counts, totals, resources, codes, value):  # type: ignore[no-untyped-def]
    """Count an option: a request counts with the largest. Codes of 0 are not counted."""
    sums, steps, touched, marks, counted = counts
    of, size_high, size_low = totals.of, totals.high, totals.low
    width, m = 0, of.size
    for at in range(codes.size):
        j, code = np.int64(resources[at]), np.int64(codes[at])
        if code == 0 or j >= m:  # derived resources are not counted
            continue
        width += 1
        if not marks[_REQUEST, j]:
            marks[_REQUEST, j] = 1
            touched[_REQUEST, sums[_REQUEST, 3]] = j
            sums[_REQUEST, 3] += 1
        steps[_REQUEST, j] = max(steps[_REQUEST, j], code - 1)
        t = of[j]
        if t >= 0:
            counted[_OPTION, 0, t] += (code - 1) * size_high[j]
            counted[_OPTION, 1, t] += (code - 1) * size_low[j]
    sums[_REQUEST, 1] = max(sums[_REQUEST, 1], value)
    sums[_REQUEST, 2] = max(sums[_REQUEST, 2], width)
    for t in range(counted.shape[2]):
        low = counted[_OPTION, 1, t]
        high, low = counted[_OPTION, 0, t] + (low >> _LOW_BITS), low & _LOW
        so_far = counted[_REQUEST, 0, t]
        if high > so_far or (high == so_far and low > counted[_REQUEST, 1, t]):
            counted[_REQUEST, 0, t] = high
            counted[_REQUEST, 1, t] = low
        counted[_OPTION, 0, t] = 0
        counted[_OPTION, 1, t] = 0


@njit(inline="always")
def _admit(counts, bounds):  # type: ignore[no-untyped-def]
    """`Count.admit`: 0, or the number of the reason why the request is left out."""
    sums, steps, touched, marks, counted = counts
    most, limits, totals = bounds
    why, fresh = 0, 0
    for t in range(counted.shape[2]):
        high = counted[_PERSON, 0, t] + counted[_REQUEST, 0, t]
        low = counted[_PERSON, 1, t] + counted[_REQUEST, 1, t]
        if not _within(high, low, totals.limit_high[t], totals.limit_low[t]):
            why = 5
    for at in range(sums[_REQUEST, 3]):
        j = touched[_REQUEST, at]
        fresh += not marks[_PERSON, j]
        if steps[_PERSON, j] + steps[_REQUEST, j] > limits[j]:
            why = 4
    if min(sums[_PERSON, 2] + sums[_REQUEST, 2], sums[_PERSON, 3] + fresh) > most[2]:
        why = 3
    if sums[_PERSON, 1] + sums[_REQUEST, 1] > most[1]:
        why = 2
    if sums[_PERSON, 0] == most[0]:
        why = 1
    if why == 0:
        for at in range(sums[_REQUEST, 3]):
            j = touched[_REQUEST, at]
            if not marks[_PERSON, j]:
                marks[_PERSON, j] = 1
                touched[_PERSON, sums[_PERSON, 3]] = j
                sums[_PERSON, 3] += 1
            steps[_PERSON, j] += steps[_REQUEST, j]
        sums[_PERSON, 0] += 1
        sums[_PERSON, 1] += sums[_REQUEST, 1]
        sums[_PERSON, 2] += sums[_REQUEST, 2]
        for t in range(counted.shape[2]):
            low = counted[_PERSON, 1, t] + counted[_REQUEST, 1, t]
            counted[_PERSON, 0, t] += counted[_REQUEST, 0, t] + (low >> _LOW_BITS)
            counted[_PERSON, 1, t] = low & _LOW
    return why


@njit(cache=True, nogil=True, error_model="numpy")
def bound_dense(codes, values, starts, fill, new, bounds, counts, left_out):  # type: ignore[no-untyped-def]
    """Set the codes of requests that would exceed a bound of a person to 0.

    `starts` is 1 at the first row of each request, and empty if every row is one; `new` is 1 at
    the first row of each person. `left_out` gets the number of the reason in the rows of each such
    request.
    """
    row = 0
    resources = np.arange(codes.shape[1])
    for b in range(fill.size):
        i = 0
        while i < fill[b]:
            n = 1
            while starts.size and i + n < fill[b] and not starts[b, i + n]:
                n += 1
            if new[row]:
                _clear(counts, _PERSON)
            _clear(counts, _REQUEST)
            for k in range(i, i + n):
                _add_option(
                    counts, bounds.totals, resources, codes[b, :, k], np.int64(values[b, k])
                )
            why = _admit(counts, bounds)
            if why:
                left_out[row : row + n] = why
                codes[b, :, i : i + n] = 0
                values[b, i : i + n] = 0
            i += n
            row += n


@njit(cache=True, nogil=True, error_model="numpy")
def bound_pairs(  # type: ignore[no-untyped-def]
    widths, resources, codes, values, starts, fill, new, bounds, counts, left_out
):
    """`bound_dense` for sparse rows: row r has the next `widths[r]` pairs."""
    row, pair = 0, 0
    for b in range(fill.size):
        i = 0
        while i < fill[b]:
            n = 1
            while starts.size and i + n < fill[b] and not starts[b, i + n]:
                n += 1
            if new[row]:
                _clear(counts, _PERSON)
            _clear(counts, _REQUEST)
            begin = pair
            for k in range(n):
                end = pair + widths[row + k]
                _add_option(
                    counts,
                    bounds.totals,
                    resources[pair:end],
                    codes[pair:end],
                    np.int64(values[b, i + k]),
                )
                pair = end
            why = _admit(counts, bounds)
            if why:
                left_out[row : row + n] = why
                codes[begin:pair] = 0
                values[b, i : i + n] = 0
            i += n
            row += n
