"""Private: how loads respond to prices: exact sums over the agents whose decision is close."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from jdpack.engines.best_response import cost_dense, cost_sparse, scratch
from jdpack.market.grid import BAND, CURVATURE_UNIT, PRICE_UNITS_PER_VALUE_CODE
from jdpack.records.codes import BLOCK, Part
from jdpack.records.kernels import njit


def curvature(part: Part, prices: NDArray[np.float64]) -> NDArray[np.int64]:
    """The curvature query (`queries.change`), [row, column]."""
    return _close_calls(part, prices, (len(prices), len(prices)), whole=True)


def gauge(part: Part, prices: NDArray[np.float64]) -> NDArray[np.int64]:
    """The gauge query (`queries.change`): the curvature's diagonal, its level and its spread."""
    return _close_calls(part, prices, (1, len(prices) + 2), whole=False).ravel()


def _close_calls(
    part: Part, prices: NDArray[np.float64], shape: tuple[int, int], *, whole: bool
) -> NDArray[np.int64]:
    """Sums over the agents whose two best choices are close."""
    m, (cost, near, firsts) = len(prices), scratch()
    seconds, d, share = np.empty(BLOCK + 1, np.int64), np.zeros(m), np.zeros(m)
    sums = np.zeros(shape)  # exact: whole numbers, far below 2^53 for one part
    where = part.values, part.several, part.fill, prices, math.fsum(prices), whole
    buffers = cost, near, firsts, seconds, d, share
    if part.pairs is None:
        _close_dense(part.codes, *where, *buffers, sums)
    else:
        touched, begins = np.empty(m, np.int64), np.empty(BLOCK + 1, np.int64)
        seen = np.zeros(m, np.uint8)
        _close_sparse(part.pairs, *where, *buffers, seen, touched, begins, sums)
    return sums.astype(np.int64)


@njit(cache=True, nogil=True, error_model="numpy")
def _close_dense(  # type: ignore[no-untyped-def]
    codes, values, starts, fill, prices, price_sum, whole,
    cost, near, firsts, seconds, d, share, sums,
):  # fmt: skip
    m = prices.size
    for b in range(fill.size):
        cost_dense(codes[b], prices, fill[b], cost)
        count = _close_rows(cost, values, starts, b, fill[b], near, firsts, seconds)
        for at in range(count):
            first, second, costs = firsts[at], seconds[at], 0.0
            if first >= 0:
                costs += cost[first]
            if second >= 0:
                costs += cost[second]
            trace, net = 0.0, 0.0
            for k in range(m):
                d[k] = 0.0
                if first >= 0:
                    d[k] += codes[b, k, first]
                if second >= 0:
                    d[k] -= codes[b, k, second]
                if whole:
                    share[k] = _root_share(d[k], prices[k], costs)
                else:
                    share[k] = np.trunc(float(CURVATURE_UNIT) * (d[k] * prices[k]) / costs)
                    trace += d[k] * share[k]
                    net += d[k] * prices[k]
            if whole:
                for j in range(m):
                    for k in range(m):
                        sums[j, k] += share[j] * share[k]
            else:
                for k in range(m):
                    sums[0, k] += d[k] * share[k]
                level = np.trunc(float(CURVATURE_UNIT) * (net / costs) * (net / price_sum))
                sums[0, m] += level
                sums[0, m + 1] += max(trace - level, 0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def _close_sparse(  # type: ignore[no-untyped-def]
    pairs, values, starts, fill, prices, price_sum, whole,
    cost, near, firsts, seconds, d, share, seen, touched, begins, sums,
):  # fmt: skip
    m = prices.size
    for b in range(fill.size):
        cost_sparse(pairs, b, prices, fill[b], cost)
        rest_begins(pairs, b, begins)
        count = _close_rows(cost, values, starts, b, fill[b], near, firsts, seconds)
        for at in range(count):
            first, second, costs, size = firsts[at], seconds[at], 0.0, 0
            if first >= 0:
                costs += cost[first]
                size = _add_row(pairs, b, begins, first, 1.0, d, seen, touched, size)
            if second >= 0:
                costs += cost[second]
                size = _add_row(pairs, b, begins, second, -1.0, d, seen, touched, size)
            trace, net = 0.0, 0.0
            for at_k in range(size):
                k = touched[at_k]
                if whole:
                    share[k] = _root_share(d[k], prices[k], costs)
                else:
                    share[k] = np.trunc(float(CURVATURE_UNIT) * (d[k] * prices[k]) / costs)
                    trace += d[k] * share[k]
                    net += d[k] * prices[k]
            if whole:
                for at_j in range(size):
                    for at_k in range(size):
                        j, k = touched[at_j], touched[at_k]
                        sums[j, k] += share[j] * share[k]
            else:
                for at_k in range(size):
                    k = touched[at_k]
                    sums[0, k] += d[k] * share[k]
                level = np.trunc(float(CURVATURE_UNIT) * (net / costs) * (net / price_sum))
                sums[0, m] += level
                sums[0, m + 1] += max(trace - level, 0.0)
            for at_k in range(size):
                d[touched[at_k]], seen[touched[at_k]] = 0.0, 0


@njit(inline="always")
def _root_share(d, price, costs):  # type: ignore[no-untyped-def]
    return np.trunc(d * np.sqrt(float(CURVATURE_UNIT) * price / costs))


@njit(inline="always")
def rest_begins(pairs, b, begins):  # type: ignore[no-untyped-def]
    """Set where the rest of each row of block b begins, which is where the previous one ends."""
    at, stop = pairs.rest_offsets[b], pairs.rest_offsets[b + 1]
    for i in range(BLOCK + 1):
        begins[i] = at
        while at < stop and pairs.rest_rows[at] == i:
            at += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _add_row(pairs, b, begins, i, sign, d, seen, touched, count):  # type: ignore[no-untyped-def]
    """Add the codes of row i of block b to d, and update the list of touched resources."""
    for pair in range(pairs.offsets[b] + i, pairs.offsets[b + 1], BLOCK):
        count = _touch(pairs.resources[pair], sign * pairs.codes[pair], d, seen, touched, count)
    for pair in range(begins[i], begins[i + 1]):
        code = sign * pairs.rest_codes[pair]
        count = _touch(pairs.rest_resources[pair], code, d, seen, touched, count)
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _touch(k, code, d, seen, touched, count):  # type: ignore[no-untyped-def]
    d[k] += code
    if seen[k] == 0:
        seen[k], touched[count] = 1, k
        count += 1
    return count


@njit(inline="always")
def _close_rows(cost, values, starts, b, n, near, firsts, seconds):  # type: ignore[no-untyped-def]
    """List the best and second-best choices of every agent for whom their surpluses are close.

    A choice is a row of block b, or -1 for nothing. Returns how many such agents there are. If
    every agent has one option, it does not matter whether the option or nothing is better.
    """
    if starts is not None:
        return _close_options(cost, values, starts, b, n, firsts, seconds)
    count = 0
    for i in range(n):
        surplus = values[b, i] * float(PRICE_UNITS_PER_VALUE_CODE) - cost[i]
        close = (abs(surplus) <= BAND * cost[i]) & (cost[i] > 0.0)
        near[i] = np.uint16(0xFFFF) if close else np.uint16(0)
    for i in range(n):
        firsts[count], seconds[count] = i, -1
        count += near[i] & 1
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _close_options(cost, values, starts, b, n, firsts, seconds):  # type: ignore[no-untyped-def]
    """`_close_rows` where agents have several options."""
    row, count = 0, 0
    while row < n:
        first, second, costs, row = _two_best(cost, values, starts, b, row, n)
        firsts[count], seconds[count] = first, second
        count += costs > 0.0
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _two_best(cost, values, starts, b, i, n):  # type: ignore[no-untyped-def]
    """The best and second-best choices of the agent whose rows begin at i; -1 is nothing.

    Also returns the sum of their costs, or 0 if their surpluses are not close, and the first row
    of the next agent.
    """
    first, second = -1, -1  # options by surplus; the first wins a tie
    best, next_best = -np.inf, -np.inf
    row = i
    while row < n and (row == i or starts[b, row] == 0):
        surplus = values[b, row] * float(PRICE_UNITS_PER_VALUE_CODE) - cost[row]
        if surplus > best:
            second, next_best = first, best
            first, best = row, surplus
        elif surplus > next_best:
            second, next_best = row, surplus
        row += 1
    if best < 0.0:  # nothing, then the best option
        first, second, best, next_best = -1, first, 0.0, best
    elif next_best <= 0.0:  # the best option, then nothing
        second, next_best = -1, 0.0
    costs = (cost[first] if first >= 0 else 0.0) + (cost[second] if second >= 0 else 0.0)
    if best - next_best > BAND * costs:
        costs = 0.0
    return first, second, costs, row
