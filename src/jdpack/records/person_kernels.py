"""Private: what each person asks for in all, counted as in `jdpack.market.person`, compiled.

Rows are counted in their order, request after request. A person may continue in the next part, so
the counts are kept in a `Counts` from part to part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from jdpack.market.market import Market
from jdpack.records.encode_kernels import _LOW, _LOW_BITS, Totals, _within

REASONS = ("", "requests", "max_value", "bundle_size", "max_demand", "max_total")
"""What a request leads beyond, by the number that the kernels return."""


class Bounds(NamedTuple):
    """`Market.person_limits`, for kernels."""

    most: NDArray[np.int64]
    """Requests, value and resources."""
    steps: NDArray[np.int64]
    totals: Totals

    @classmethod
    def of_market(cls, market: Market) -> Bounds:
        limits = market.person_limits
        return cls(
            np.array([limits.requests, limits.value, limits.bundle], np.int64),
            np.array(limits.steps, np.int64),
            Totals.counting(limits.totals, len(limits.steps), limits.requests),
        )


class Counts(NamedTuple):
    """What a person has asked for so far, or what one request adds."""

    sums: NDArray[np.int64]
    """Requests, value, width (the most resources of one option), and resources touched."""
    steps: NDArray[np.int64]
    touched: NDArray[np.int64]
    """The resources touched so far, in the first places."""
    marks: NDArray[np.uint8]
    """1 for the resources touched so far."""
    high: NDArray[np.int64]
    low: NDArray[np.int64]
    """What counts for each total."""

    @classmethod
    def empty(cls, bounds: Bounds) -> Counts:
        m, totals = len(bounds.steps), len(bounds.totals.limit_high)
        return cls(
            np.zeros(4, np.int64),
            np.zeros(m, np.int64),
            np.zeros(m, np.int64),
            np.zeros(m, np.uint8),
            *np.zeros((2, totals), np.int64),
        )


@njit(inline="always")
def _clear(counts):  # type: ignore[no-untyped-def]
    for at in range(counts.sums[3]):
        j = counts.touched[at]
        counts.steps[j] = 0
        counts.marks[j] = 0
    for at in range(4):
        counts.sums[at] = 0
    for t in range(counts.high.size):
        counts.high[t] = 0
        counts.low[t] = 0


@njit(inline="always")
def _touch(counts, j):  # type: ignore[no-untyped-def]
    if not counts.marks[j]:
        counts.marks[j] = 1
        counts.touched[counts.sums[3]] = j
        counts.sums[3] += 1


@njit(inline="always")
def _add_code(request, option_high, option_low, totals, j, code):  # type: ignore[no-untyped-def]
    """Count one code above 0 of an option."""
    _touch(request, j)
    steps = np.int64(code) - 1
    request.steps[j] = max(request.steps[j], steps)
    t = totals.of[j]
    if t >= 0:
        option_high[t] += steps * totals.high[j]
        option_low[t] += steps * totals.low[j]


@njit(inline="always")
def _add_option(request, option_high, option_low, value, width):  # type: ignore[no-untyped-def]
    """Count an option after its codes: a request counts with the largest."""
    request.sums[1] = max(request.sums[1], value)
    request.sums[2] = max(request.sums[2], width)
    for t in range(option_high.size):
        high, low = option_high[t] + (option_low[t] >> _LOW_BITS), option_low[t] & _LOW
        if high > request.high[t] or (high == request.high[t] and low > request.low[t]):
            request.high[t] = high
            request.low[t] = low
        option_high[t] = 0
        option_low[t] = 0


@njit(inline="always")
def _admit(person, request, bounds):  # type: ignore[no-untyped-def]
    """`Count.admit`: 0, or the number of the reason why the request is left out."""
    why, fresh, totals = 0, 0, bounds.totals
    for at in range(request.sums[3]):
        fresh += not person.marks[request.touched[at]]
    for t in range(person.high.size):
        high, low = person.high[t] + request.high[t], person.low[t] + request.low[t]
        if not _within(high, low, totals.limit_high[t], totals.limit_low[t]):
            why = 5
    for at in range(request.sums[3]):
        j = request.touched[at]
        if person.steps[j] + request.steps[j] > bounds.steps[j]:
            why = 4
    if min(person.sums[2] + request.sums[2], person.sums[3] + fresh) > bounds.most[2]:
        why = 3
    if person.sums[1] + request.sums[1] > bounds.most[1]:
        why = 2
    if person.sums[0] == bounds.most[0]:
        why = 1
    if why == 0:
        person.sums[0] += 1
        person.sums[1] += request.sums[1]
        person.sums[2] += request.sums[2]
        for at in range(request.sums[3]):
            j = request.touched[at]
            _touch(person, j)
            person.steps[j] += request.steps[j]
        for t in range(person.high.size):
            low = person.low[t] + request.low[t]
            person.high[t] += request.high[t] + (low >> _LOW_BITS)
            person.low[t] = low & _LOW
    return why


@njit(cache=True, nogil=True, error_model="numpy")
def bound_dense(codes, values, starts, fill, new, bounds, person, request, left_out):  # type: ignore[no-untyped-def]
    """Mark the rows of requests that lead a person beyond a bound, and set their codes to 0.

    `starts` is 1 at the first row of each request, and empty if every row is one; `new` is 1 at
    the first row of each person. Returns the first such row with the number of its reason, or -1
    and 0.
    """
    row, bad, reason, m = 0, -1, 0, bounds.steps.size
    option_high, option_low = (
        np.zeros(person.high.size, np.int64),
        np.zeros(person.high.size, np.int64),
    )
    for b in range(fill.size):
        i = 0
        while i < fill[b]:
            n = 1
            while starts.size and i + n < fill[b] and not starts[b, i + n]:
                n += 1
            if new[row]:
                _clear(person)
            _clear(request)
            for k in range(i, i + n):
                width = 0
                for j in range(m):
                    if codes[b, j, k]:
                        width += 1
                        _add_code(
                            request, option_high, option_low, bounds.totals, j, codes[b, j, k]
                        )
                _add_option(request, option_high, option_low, np.int64(values[b, k]), width)
            why = _admit(person, request, bounds)
            if why:
                if bad < 0:
                    bad, reason = row, why
                left_out[row : row + n] = 1
                codes[b, :, i : i + n] = 0
                values[b, i : i + n] = 0
            i += n
            row += n
    return bad, reason


@njit(cache=True, nogil=True, error_model="numpy")
def bound_pairs(  # type: ignore[no-untyped-def]
    counts, resources, codes, values, starts, fill, new, bounds, person, request, left_out
):
    """As `bound_dense`, where row r has the next `counts[r]` pairs; sets codes and values to 0."""
    row, bad, reason, pair = 0, -1, 0, 0
    option_high, option_low = (
        np.zeros(person.high.size, np.int64),
        np.zeros(person.high.size, np.int64),
    )
    for b in range(fill.size):
        i = 0
        while i < fill[b]:
            n = 1
            while starts.size and i + n < fill[b] and not starts[b, i + n]:
                n += 1
            if new[row]:
                _clear(person)
            _clear(request)
            begin = pair
            for k in range(n):
                width = 0
                for _ in range(counts[row + k]):
                    j = np.int64(resources[pair])
                    if codes[pair] and j < bounds.steps.size:  # derived resources are not counted
                        width += 1
                        _add_code(request, option_high, option_low, bounds.totals, j, codes[pair])
                    pair += 1
                _add_option(request, option_high, option_low, np.int64(values[b, i + k]), width)
            why = _admit(person, request, bounds)
            if why:
                if bad < 0:
                    bad, reason = row, why
                left_out[row : row + n] = 1
                codes[begin:pair] = 0
                values[b, i : i + n] = 0
            i += n
            row += n
    return bad, reason
