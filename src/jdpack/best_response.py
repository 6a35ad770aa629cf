"""Private: what the agents take at given prices, exactly.

An agent takes the option with the largest surplus, value minus cost, if it is not negative; the
first one on a tie. Costs are compared in doubles, which is exact (see `jdpack.market`); sums are
64-bit integers. So the result depends on no order, thread count or partitioning.

Every kernel goes over a part block by block: costs of the block's rows, then their choices, then
the sums, while the block is in the cache.
"""

from __future__ import annotations

import numpy as np
from numba import get_num_threads, njit, prange
from numpy.typing import NDArray

from jdpack.agents import BLOCK, Part
from jdpack.billboard import SHARE
from jdpack.market import BAND, CURVATURE_UNIT, PRICE_UNITS_PER_VALUE_CODE


def demand(parts: list[Part], prices: tuple[int, ...]) -> tuple[int, ...]:
    """The demand query: the codes taken of each resource at the given price codes."""
    costs, total = np.array(prices, dtype=np.float64), np.zeros(len(prices), np.int64)
    for part in parts:
        demands = np.zeros((_chunks(part), len(prices)), np.int64)
        if part.counts is None:
            _demand_dense(part.codes, part.values, part.starts, part.fill, costs, demands)
        else:
            _demand_sparse(
                part.codes, part.resources, part.counts, part.offsets,
                part.values, part.starts, part.fill, costs, demands,
            )  # fmt: skip
        total += demands.sum(axis=0)
    return tuple(total.tolist())


def curvature(parts: list[Part], prices: tuple[int, ...]) -> tuple[int, ...]:
    """The curvature query (`Market.shifts`), row by row."""
    return _close_calls(parts, prices, np.zeros((len(prices), len(prices)), np.int64), whole=True)


def gauge(parts: list[Part], prices: tuple[int, ...]) -> tuple[int, ...]:
    """The gauge query (`Market.shifts`): the curvature's diagonal, its level and its spread."""
    return _close_calls(parts, prices, np.zeros((1, len(prices) + 2), np.int64), whole=False)


def _close_calls(
    parts: list[Part], prices: tuple[int, ...], total: NDArray[np.int64], *, whole: bool
) -> tuple[int, ...]:
    """Sums over the agents whose two best choices are close."""
    costs, price_sum = np.array(prices, dtype=np.float64), float(sum(prices))
    for part in parts:
        pieces = np.zeros((_chunks(part), *total.shape), np.int64)
        where = part.codes, part.values, part.starts, part.fill, costs, price_sum, whole, pieces
        if part.counts is None:
            _close_dense(*where)
        else:
            _close_sparse(part.resources, part.counts, part.offsets, *where)
        total += pieces.sum(axis=0)
    return tuple(total.ravel().tolist())


def shares(
    part: Part,
    prices: NDArray[np.float64],
    weights: NDArray[np.int64],
    out: NDArray[np.uint32],
) -> None:
    """Set `out` to the share of each row in units of 1/SHARE, rounded down, before scaling.

    A row's share is the weight of the rounds in which it was taken, over the weight of all
    rounds. `prices` is [round, resource].
    """
    first = np.cumsum(part.fill) - part.fill
    total = int(weights.sum())
    if part.counts is None:
        _shares_dense(
            part.codes, part.values, part.starts, part.fill, first,
            prices, weights, total, out, _chunks(part),
        )  # fmt: skip
    else:
        _shares_sparse(
            part.codes, part.resources, part.counts, part.offsets,
            part.values, part.starts, part.fill, first,
            prices, weights, total, out, _chunks(part),
        )  # fmt: skip


def factors(part: Part, of_resources: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The scale factor of each row: the least of the resources that its option touches."""
    out = np.full(part.rows, SHARE, np.uint32)
    if part.counts is None:
        _factors_dense(part.codes, part.fill, of_resources, out)
    else:
        _factors_sparse(part.resources, part.codes, part.counts, part.fill, of_resources, out)
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

    The coin is uniform on [0, 1). An agent's options stand on that interval one after the other,
    each as wide as its share before scaling; the one that the coin falls on is granted, and given
    if the coin is in the first factor / SHARE of its width. So what is given is always among what
    is granted, and each grant is given with odds of exactly factor / SHARE, independently.
    """
    _flip(_row_starts(part), shares, coins, factors)


def luck(part: Part, shares: NDArray[np.uint32], given: NDArray[np.uint32], bound: int) -> int:
    """The query luck: value given beyond the averaged shares, cut to +-bound for each agent."""
    return int(_luck(part.values, part.fill, _row_starts(part), shares, given, bound))


def _row_starts(part: Part) -> NDArray[np.uint8]:
    """Where agents begin among the rows of a part; empty if every row is an agent."""
    if not part.starts.size:
        return np.empty(0, np.uint8)
    return np.concatenate([part.starts[b, :n] for b, n in enumerate(part.fill)])


def welfare(part: Part, shares: NDArray[np.uint32]) -> int:
    """The total value of given shares in value codes, rounded down for every row."""
    return int(_welfare(part.values, part.fill, shares))


def loads(part: Part, m: int, shares: NDArray[np.uint32]) -> list[int]:
    """The exact load of given shares on each resource, in units of code / SHARE."""
    # A block's sum is below 2^51; high and low halves keep the total exact in 64 bits.
    high, low = np.zeros(m, np.int64), np.zeros(m, np.int64)
    if part.counts is None:
        _loads_dense(part.codes, part.fill, shares, high, low)
    else:
        _loads_sparse(part.codes, part.resources, part.counts, part.fill, shares, high, low)
    return [int(h) * SHARE + int(rest) for h, rest in zip(high, low, strict=True)]


def _chunks(part: Part) -> int:
    """Work is cut into this many pieces; the result does not depend on it."""
    return max(1, min(len(part.fill), 4 * get_num_threads()))


@njit(cache=True, parallel=True)
def _demand_dense(codes, values, starts, fill, prices, demands):  # type: ignore[no-untyped-def]
    chunks, blocks, m = demands.shape[0], fill.size, prices.size
    for chunk in prange(chunks):
        cost, taken = np.empty(BLOCK, np.float64), np.empty(BLOCK, np.uint16)
        for b in range(blocks * chunk // chunks, blocks * (chunk + 1) // chunks):
            n = fill[b]
            _cost_dense(codes[b], prices, n, cost)
            _choose(cost, values, starts, b, n, taken)
            for j in range(m):
                row, total = codes[b, j], np.uint32(0)  # below 2^11 * 2^16
                for i in range(n):
                    total += np.uint32(row[i] & taken[i])
                demands[chunk, j] += total


@njit(cache=True, parallel=True)
def _demand_sparse(  # type: ignore[no-untyped-def]
    codes, resources, counts, offsets, values, starts, fill, prices, demands
):
    chunks, blocks = demands.shape[0], fill.size
    for chunk in prange(chunks):
        cost, taken = np.empty(BLOCK, np.float64), np.empty(BLOCK, np.uint16)
        demand = np.zeros(prices.size, np.int64)
        for b in range(blocks * chunk // chunks, blocks * (chunk + 1) // chunks):
            n = fill[b]
            _cost_sparse(codes, resources, counts[b], offsets[b], prices, n, cost)
            _choose(cost, values, starts, b, n, taken)
            at = offsets[b]
            for i in range(n):
                stop = at + counts[b, i]
                if taken[i]:
                    for pair in range(at, stop):
                        demand[resources[pair]] += codes[pair]
                at = stop
        demands[chunk] += demand


@njit(cache=True, parallel=True)
def _shares_dense(  # type: ignore[no-untyped-def]
    codes, values, starts, fill, first, prices, weights, total, out, chunks
):
    blocks = fill.size
    for chunk in prange(chunks):
        cost, taken = np.empty(BLOCK, np.float64), np.empty(BLOCK, np.uint16)
        won = np.empty(BLOCK, np.int64)
        for b in range(blocks * chunk // chunks, blocks * (chunk + 1) // chunks):
            n = fill[b]
            won[:n] = 0
            for t in range(weights.size):
                _cost_dense(codes[b], prices[t], n, cost)
                _choose(cost, values, starts, b, n, taken)
                _count(taken, weights[t], n, won)
            _divide(won, n, total, out, first[b])


@njit(cache=True, parallel=True)
def _shares_sparse(  # type: ignore[no-untyped-def]
    codes, resources, counts, offsets, values, starts, fill, first,
    prices, weights, total, out, chunks,
):  # fmt: skip
    blocks = fill.size
    for chunk in prange(chunks):
        cost, taken = np.empty(BLOCK, np.float64), np.empty(BLOCK, np.uint16)
        won = np.empty(BLOCK, np.int64)
        for b in range(blocks * chunk // chunks, blocks * (chunk + 1) // chunks):
            n = fill[b]
            won[:n] = 0
            for t in range(weights.size):
                _cost_sparse(codes, resources, counts[b], offsets[b], prices[t], n, cost)
                _choose(cost, values, starts, b, n, taken)
                _count(taken, weights[t], n, won)
            _divide(won, n, total, out, first[b])


@njit(cache=True, parallel=True)
def _close_dense(codes, values, starts, fill, prices, price_sum, whole, pieces):  # type: ignore[no-untyped-def]
    chunks, blocks, m = pieces.shape[0], fill.size, prices.size
    for chunk in prange(chunks):
        cost, d = np.empty(BLOCK, np.float64), np.zeros(m, np.int64)
        for b in range(blocks * chunk // chunks, blocks * (chunk + 1) // chunks):
            _cost_dense(codes[b], prices, fill[b], cost)
            i = 0
            while i < fill[b]:
                first, second, costs, i = _two_best(cost, values, starts, b, i, fill[b])
                if costs > 0.0:
                    for j in range(m):
                        d[j] = np.int64(codes[b, j, first]) if first >= 0 else 0
                        d[j] -= np.int64(codes[b, j, second]) if second >= 0 else 0
                    _add_close(d, prices, price_sum, costs, whole, pieces[chunk])


@njit(cache=True, parallel=True)
def _close_sparse(  # type: ignore[no-untyped-def]
    resources, counts, offsets, codes, values, starts, fill, prices, price_sum, whole, pieces
):
    chunks, blocks, m = pieces.shape[0], fill.size, prices.size
    for chunk in prange(chunks):
        cost, d = np.empty(BLOCK, np.float64), np.zeros(m, np.int64)
        begin = np.empty(BLOCK + 1, np.int64)
        for b in range(blocks * chunk // chunks, blocks * (chunk + 1) // chunks):
            _cost_sparse(codes, resources, counts[b], offsets[b], prices, fill[b], cost)
            begin[0] = offsets[b]
            for i in range(fill[b]):
                begin[i + 1] = begin[i] + counts[b, i]
            i = 0
            while i < fill[b]:
                first, second, costs, i = _two_best(cost, values, starts, b, i, fill[b])
                if costs > 0.0:
                    d[:] = 0
                    if first >= 0:
                        for pair in range(begin[first], begin[first + 1]):
                            d[resources[pair]] += codes[pair]
                    if second >= 0:
                        for pair in range(begin[second], begin[second + 1]):
                            d[resources[pair]] -= codes[pair]
                    _add_close(d, prices, price_sum, costs, whole, pieces[chunk])


@njit(cache=True)
def _two_best(cost, values, starts, b, i, n):  # type: ignore[no-untyped-def]
    """The best and second-best choice of the agent whose rows begin at i; -1 is nothing.

    Also the sum of their costs, or 0 if their surpluses are not close, and the next agent's row.
    """
    first, second = -1, -1  # options by surplus; the earlier on a tie
    best, next_best = -np.inf, -np.inf
    row = i
    while row < n and (row == i or (starts.size > 0 and starts[b, row] == 0)):
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


@njit(cache=True)
def _add_close(d, prices, price_sum, costs, whole, out):  # type: ignore[no-untyped-def]
    """Add an agent whose two best choices differ by the codes d and cost `costs` together."""
    m, trace, net = d.size, np.int64(0), 0.0
    for k in range(m):
        if d[k] != 0:
            cost = d[k] * prices[k]
            share = np.int64(float(CURVATURE_UNIT) * cost / costs)
            if not whole:
                out[0, k] += d[k] * share
                trace += d[k] * share
                net += cost
            elif share != 0:
                for j in range(m):
                    out[j, k] += d[j] * share
    if not whole:
        level = np.int64(float(CURVATURE_UNIT) * (net / costs) * (net / price_sum))
        out[0, m] += level
        out[0, m + 1] += max(trace - level, 0)


@njit(cache=True)
def _cost_dense(codes, prices, n, cost):  # type: ignore[no-untyped-def]
    cost[:n] = 0.0
    for j in range(prices.size):
        row, price = codes[j], prices[j]
        if price > 0.0:
            for i in range(n):
                cost[i] += row[i] * price


@njit(cache=True)
def _cost_sparse(codes, resources, counts, at, prices, n, cost):  # type: ignore[no-untyped-def]
    for i in range(n):
        total = 0.0
        for pair in range(at, at + counts[i]):
            total += codes[pair] * prices[resources[pair]]
        at += counts[i]
        cost[i] = total


@njit(cache=True)
def _choose(cost, values, starts, b, n, taken):  # type: ignore[no-untyped-def]
    """Set `taken` to all ones for the options that their agents take, else to 0."""
    if starts.size == 0:
        for i in range(n):
            affordable = cost[i] <= values[b, i] * float(PRICE_UNITS_PER_VALUE_CODE)
            taken[i] = np.uint16(0xFFFF) if affordable else np.uint16(0)
        return
    best, at = -1.0, 0
    for i in range(n):
        taken[i] = 0
        if starts[b, i]:
            best, at = -1.0, i
        surplus = values[b, i] * float(PRICE_UNITS_PER_VALUE_CODE) - cost[i]
        if surplus >= 0.0 and surplus > best:
            taken[at] = 0
            taken[i] = 0xFFFF
            best, at = surplus, i


@njit(cache=True)
def _count(taken, weight, n, won):  # type: ignore[no-untyped-def]
    for i in range(n):
        won[i] += weight if taken[i] else 0


@njit(cache=True)
def _divide(won, n, total, out, first):  # type: ignore[no-untyped-def]
    for i in range(n):
        out[first + i] = won[i] * SHARE // total


@njit(cache=True)
def _factors_dense(codes, fill, factors, out):  # type: ignore[no-untyped-def]
    first = 0
    for b in range(fill.size):
        for j in range(codes.shape[1]):
            if factors[j] < SHARE:
                for i in range(fill[b]):
                    if codes[b, j, i] and factors[j] < out[first + i]:
                        out[first + i] = factors[j]
        first += fill[b]


@njit(cache=True)
def _factors_sparse(resources, codes, counts, fill, factors, out):  # type: ignore[no-untyped-def]
    first, at = 0, 0
    for b in range(fill.size):
        for i in range(fill[b]):
            for pair in range(at, at + counts[b, i]):
                if codes[pair] and factors[resources[pair]] < out[first + i]:
                    out[first + i] = factors[resources[pair]]
            at += counts[b, i]
        first += fill[b]


@njit(cache=True)
def _scale(shares, factors):  # type: ignore[no-untyped-def]
    for i in range(shares.size):
        shares[i] = np.int64(shares[i]) * np.int64(factors[i]) // SHARE


@njit(cache=True)
def _flip(starts, shares, coins, factors):  # type: ignore[no-untyped-def]
    reached = np.uint64(0)
    for i in range(shares.size):
        if starts.size == 0 or starts[i]:
            reached = np.uint64(0)
        begin, share = reached << np.uint64(29), np.uint64(shares[i])  # in the coin's 53 bits
        reached += share
        width = share * np.uint64(factors[i]) << np.uint64(5)
        shares[i] = SHARE if begin <= coins[i] < begin + width else 0


@njit(cache=True)
def _luck(values, fill, starts, shares, given, bound):  # type: ignore[no-untyped-def]
    row, total, own = 0, np.int64(0), np.int64(0)
    for b in range(fill.size):
        for i in range(fill[b]):
            if starts.size == 0 or starts[row]:
                total += min(max(own, -bound), bound)
                own = np.int64(0)
            value = np.int64(values[b, i])
            own += value * np.int64(given[row]) // SHARE - value * np.int64(shares[row]) // SHARE
            row += 1
    return total + min(max(own, -bound), bound)


@njit(cache=True)
def _welfare(values, fill, shares):  # type: ignore[no-untyped-def]
    first, total = 0, np.int64(0)
    for b in range(fill.size):
        for i in range(fill[b]):
            total += np.int64(values[b, i]) * np.int64(shares[first + i]) // SHARE
        first += fill[b]
    return total


@njit(cache=True)
def _loads_dense(codes, fill, shares, high, low):  # type: ignore[no-untyped-def]
    first = 0
    for b in range(fill.size):
        for j in range(codes.shape[1]):
            total = np.int64(0)
            for i in range(fill[b]):
                total += np.int64(codes[b, j, i]) * np.int64(shares[first + i])
            high[j] += total // SHARE
            low[j] += total % SHARE
        first += fill[b]


@njit(cache=True)
def _loads_sparse(codes, resources, counts, fill, shares, high, low):  # type: ignore[no-untyped-def]
    first, at = 0, 0
    for b in range(fill.size):
        for i in range(fill[b]):
            for pair in range(at, at + counts[b, i]):
                total = np.int64(codes[pair]) * np.int64(shares[first + i])
                high[resources[pair]] += total // SHARE
                low[resources[pair]] += total % SHARE
            at += counts[b, i]
        first += fill[b]
