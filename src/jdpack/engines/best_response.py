"""Private: what the agents of a part take at given prices, exactly.

An agent takes the option with the largest surplus, value minus cost, if it is not negative; the
first one on a tie. Costs are compared in doubles, which is exact (see `jdpack.market.market`); sums
are 64-bit integers. So the result depends on no order, thread count or partitioning.

Every kernel goes over a part block by block: costs of the block's rows, then their choices, then
the sums, while the block is in the cache. It runs on one thread and lets go of the interpreter:
engines give parts to threads.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from jdpack.market.grid import BAND, CURVATURE_UNIT, PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.records.codes import BLOCK, Part

_SHARE_BITS = SHARE.bit_length() - 1  # a shift divides by SHARE and rounds down


def demand(part: Part, prices: NDArray[np.float64]) -> NDArray[np.int64]:
    """The demand query: the codes taken of each resource at the given price codes."""
    out, nothing = np.zeros(len(prices), np.int64), np.empty(0, np.int64)
    _play(part, prices.reshape(1, -1), np.zeros(1, np.int64), out, nothing)
    return out


def curvature(part: Part, prices: NDArray[np.float64]) -> NDArray[np.int64]:
    """The curvature query (`Market.shifts`), [row, column]."""
    return _close_calls(part, prices, (len(prices), len(prices)), whole=True)


def gauge(part: Part, prices: NDArray[np.float64]) -> NDArray[np.int64]:
    """The gauge query (`Market.shifts`): the curvature's diagonal, its level and its spread."""
    return _close_calls(part, prices, (1, len(prices) + 2), whole=False).ravel()


def _close_calls(
    part: Part, prices: NDArray[np.float64], shape: tuple[int, int], *, whole: bool
) -> NDArray[np.int64]:
    """Sums over the agents whose two best choices are close."""
    m, (cost, near, firsts) = len(prices), _room()
    seconds, d, share = np.empty(BLOCK + 1, np.int64), np.zeros(m), np.zeros(m)
    sums = np.zeros(shape)  # of whole numbers, far below 2^53 in a part: exact
    where = part.values, part.several, part.fill, prices, math.fsum(prices), whole
    room = cost, near, firsts, seconds, d, share
    if part.pairs is None:
        _close_dense(part.codes, *where, *room, sums)
    else:
        touched, begins = np.empty(m, np.int64), np.empty(BLOCK + 1, np.int64)
        seen = np.zeros(m, np.uint8)
        _close_sparse(part.pairs, *where, *room, seen, touched, begins, sums)
    return sums.astype(np.int64)


def shares(
    part: Part, prices: NDArray[np.float64], weights: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """The share of each row in units of 1/SHARE, rounded down, before scaling.

    A row's share is the weight of the rounds in which it was taken, over the weight of all
    rounds. `prices` is [round, resource].
    """
    won, nothing = np.zeros(part.rows, np.int64), np.empty(0, np.int64)
    _play(part, prices, weights, nothing, won)
    return (won * SHARE // int(weights.sum())).astype(np.uint32)


def _play(
    part: Part,
    prices: NDArray[np.float64],
    weights: NDArray[np.int64],
    demands: NDArray[np.int64],
    won: NDArray[np.int64],
) -> None:
    """Add what is taken in some rounds to `demands`, and their weights to `won` of the takers.

    Either may be empty, if it is not asked for.
    """
    where = part.values, part.several, part.fill, prices, weights, *_room(), demands, won
    if part.pairs is None:
        _play_dense(part.codes, *where)
    else:
        _play_sparse(part.pairs, *where)


def factors(part: Part, of_resources: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The scale factor of each row: the least of the resources that its option touches."""
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

    The coin is uniform on [0, 1). An agent's options stand on that interval one after the other,
    each as wide as its share before scaling; the one that the coin falls on is granted, and given
    if the coin is in the first factor / SHARE of its width. So what is given is always among what
    is granted, and each grant is given with odds of exactly factor / SHARE, independently.
    """
    _flip(part.heads() if part.several is not None else None, shares, coins, factors)


def luck(part: Part, shares: NDArray[np.uint32], given: NDArray[np.uint32], bound: int) -> int:
    """The query luck: value given beyond the averaged shares, cut to +-bound for each agent."""
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
    """The total value of given shares in value codes, rounded down for every row."""
    nothing = np.zeros(len(shares), np.uint32)
    return int(_luck(part.values, part.fill, None, nothing, shares, 2**62))


def loads(part: Part, m: int, shares: NDArray[np.uint32]) -> list[int]:
    """The exact load of given shares on each resource, in units of code / SHARE."""
    # A block's sum is below 2^51; high and low halves keep the total exact in 64 bits.
    high, low = np.zeros(m, np.int64), np.zeros(m, np.int64)
    if part.pairs is None:
        _loads_dense(part.codes, part.fill, shares, high, low)
    else:
        _loads_sparse(part.pairs, part.fill, shares, high, low)
    return [int(h) * SHARE + int(rest) for h, rest in zip(high, low, strict=True)]


def _room() -> tuple[NDArray[np.float64], NDArray[np.uint16], NDArray[np.int64]]:
    """Room for costs, marks and places of the rows of a block, and an entry more for nothing."""
    return np.empty(BLOCK), np.empty(BLOCK + 1, np.uint16), np.empty(BLOCK + 1, np.int64)


@njit(cache=True, nogil=True, error_model="numpy")
def _play_dense(  # type: ignore[no-untyped-def]
    codes, values, starts, fill, prices, weights, cost, taken, rows, demands, won
):
    first, rough = 0, cost.view(np.float32)
    for b in range(fill.size):
        for t in range(weights.size):
            if starts is None:
                if not _choose_sure(codes[b], prices[t], values, b, fill[b], rough, taken):
                    cost_dense(codes[b], prices[t], fill[b], cost)
                    _choose_one(cost, values, b, fill[b], taken)
            else:
                cost_dense(codes[b], prices[t], fill[b], cost)
                _choose(cost, values, starts, b, fill[b], taken, rows)
            if demands.size:
                add_dense(codes[b], taken, fill[b], demands)
            if won.size:
                own, weight = won[first : first + fill[b]], weights[t]
                for i in range(fill[b]):
                    own[i] += weight & -np.int64(taken[i] & 1)
        first += fill[b]


@njit(cache=True, nogil=True, error_model="numpy")
def _play_sparse(  # type: ignore[no-untyped-def]
    pairs, values, starts, fill, prices, weights, cost, taken, rows, demands, won
):
    first = 0
    for b in range(fill.size):
        for t in range(weights.size):
            cost_sparse(pairs, b, prices[t], fill[b], cost)
            if starts is None:
                _choose_one(cost, values, b, fill[b], taken)
            else:
                _choose(cost, values, starts, b, fill[b], taken, rows)
            if demands.size:
                add_sparse(pairs, b, taken, fill[b], rows, demands)
            if won.size:
                own, weight = won[first : first + fill[b]], weights[t]
                for i in range(fill[b]):
                    own[i] += weight & -np.int64(taken[i] & 1)
        first += fill[b]


@njit(cache=True, nogil=True, error_model="numpy")
def _close_dense(  # type: ignore[no-untyped-def]
    codes, values, starts, fill, prices, price_sum, whole,
    cost, near, firsts, seconds, d, share, sums,
):  # fmt: skip
    m = prices.size
    for b in range(fill.size):
        cost_dense(codes[b], prices, fill[b], cost)
        if starts is None:
            count = _close_rows(cost, values, b, fill[b], near, firsts, seconds)
        else:
            count = _close_options(cost, values, starts, b, fill[b], firsts, seconds)
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
                share[k] = np.trunc(float(CURVATURE_UNIT) * (d[k] * prices[k]) / costs)
                trace += d[k] * share[k]
                net += d[k] * prices[k]
            if whole:
                for j in range(m):
                    for k in range(m):
                        sums[j, k] += d[j] * share[k]
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
        if starts is None:
            count = _close_rows(cost, values, b, fill[b], near, firsts, seconds)
        else:
            count = _close_options(cost, values, starts, b, fill[b], firsts, seconds)
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
                share[k] = np.trunc(float(CURVATURE_UNIT) * (d[k] * prices[k]) / costs)
                trace += d[k] * share[k]
                net += d[k] * prices[k]
            if whole:
                for at_j in range(size):
                    for at_k in range(size):
                        j, k = touched[at_j], touched[at_k]
                        sums[j, k] += d[j] * share[k]
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
def rest_begins(pairs, b, begins):  # type: ignore[no-untyped-def]
    """Set where the rest of each row of block b begins; it ends where the next one's begins."""
    at, stop = pairs.rest_offsets[b], pairs.rest_offsets[b + 1]
    for i in range(BLOCK + 1):
        begins[i] = at
        while at < stop and pairs.rest_rows[at] == i:
            at += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _add_row(pairs, b, begins, i, sign, d, seen, touched, count):  # type: ignore[no-untyped-def]
    """Add the codes of row i of block b to d. Keeps the list of resources touched."""
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
def _close_rows(cost, values, b, n, near, firsts, seconds):  # type: ignore[no-untyped-def]
    """List the best and second-best choice of every agent whose surpluses of them are close.

    A choice is a row of block b, or nothing: -1. Returns how many such agents there are. Here every
    agent has one option, and which of it and nothing is the best makes no difference.
    """
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
    """The best and second-best choice of the agent whose rows begin at i; -1 is nothing.

    Also the sum of their costs, or 0 if their surpluses are not close, and the next agent's row.
    """
    first, second = -1, -1  # options by surplus; the earlier on a tie
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


@njit(inline="always")
def cost_dense(codes, prices, n, cost):  # type: ignore[no-untyped-def]
    """Set the costs of the first n rows of a block."""
    for i in range(n):
        cost[i] = 0.0
    for j in range(prices.size):
        row, price = codes[j], prices[j]
        if price > 0.0:
            for i in range(n):
                cost[i] += row[i] * price


@njit(inline="always")
def cost_sparse(pairs, b, prices, n, cost):  # type: ignore[no-untyped-def]
    """Set the costs of the first n rows of block b."""
    slot, end = pairs.offsets[b], pairs.offsets[b + 1]
    for i in range(n):
        cost[i] = 0.0
    while end - slot >= 3 * BLOCK:  # three at a time: costs are loaded and stored less often
        one, two = slot + BLOCK, slot + 2 * BLOCK
        code, resource = pairs.codes[slot : slot + n], pairs.resources[slot : slot + n]
        code1, resource1 = pairs.codes[one : one + n], pairs.resources[one : one + n]
        code2, resource2 = pairs.codes[two : two + n], pairs.resources[two : two + n]
        for i in range(n):
            more = code1[i] * prices[resource1[i]] + code2[i] * prices[resource2[i]]
            cost[i] += code[i] * prices[resource[i]] + more
        slot += 3 * BLOCK
    while slot < end:
        code, resource = pairs.codes[slot : slot + n], pairs.resources[slot : slot + n]
        for i in range(n):
            cost[i] += code[i] * prices[resource[i]]
        slot += BLOCK
    for pair in range(pairs.rest_offsets[b], pairs.rest_offsets[b + 1]):
        cost[pairs.rest_rows[pair]] += pairs.rest_codes[pair] * prices[pairs.rest_resources[pair]]


@njit(inline="always")
def _choose_one(cost, values, b, n, taken):  # type: ignore[no-untyped-def]
    """`_choose` where every agent has one option."""
    for i in range(n):
        affordable = cost[i] <= values[b, i] * float(PRICE_UNITS_PER_VALUE_CODE)
        taken[i] = np.uint16(0xFFFF) if affordable else np.uint16(0)


@njit(inline="always")
def _choose_sure(codes, prices, values, b, n, cost, taken):  # type: ignore[no-untyped-def]
    """`_choose_one` in 32-bit floats, twice as many in a vector. Says whether all are sure.

    With u = 2^-24, the cost of m products is off by a factor within 1 +- (m + 2) u at most, and the
    value by 1 +- u. A difference of more than 2 (m + 4) u of the value is not due to rounding.
    """
    for i in range(n):
        cost[i] = np.float32(0.0)
    for j in range(prices.size):
        row, price = codes[j], np.float32(prices[j])
        for i in range(n):
            cost[i] += np.float32(row[i]) * price
    slack, unsure = np.float32((prices.size + 4) * 2.0**-23), np.uint32(0)
    for i in range(n):
        value = np.float32(values[b, i]) * np.float32(PRICE_UNITS_PER_VALUE_CODE)
        surplus = value - cost[i]
        taken[i] = np.uint16(0xFFFF) if surplus > np.float32(0.0) else np.uint16(0)
        unsure = np.uint32(unsure + np.uint32(abs(surplus) <= slack * value))
    return unsure == 0


@njit(inline="always")
def _choose(cost, values, starts, b, n, taken, chosen):  # type: ignore[no-untyped-def]
    """Set `taken` to all ones for the options that their agents take, else to 0.

    It has an entry more than a block has rows, for the agents that take nothing.
    """
    # Without branches, which random choices would make the processor guess wrong: a mask is all
    # ones or 0. `at` is BLOCK, and `best` is -1, until some option of the agent is worth its cost.
    at, best, agent = np.int64(BLOCK), np.int64(-1), np.int64(-1)
    for i in range(n):
        head = -np.int64(starts[b, i])
        agent -= head
        best |= head
        at = (at & ~head) | (BLOCK & head)
        cost_or_more = min(cost[i], 2.0**60)  # beyond reach already, and the difference fits
        surplus = np.int64(values[b, i] * float(PRICE_UNITS_PER_VALUE_CODE) - cost_or_more)
        better = (best - surplus) >> 63
        best = (best & ~better) | (surplus & better)
        at = (at & ~better) | (i & better)
        chosen[agent] = at
    for i in range(n):
        taken[i] = 0
    for k in range(agent + 1):
        taken[chosen[k]] = 0xFFFF


@njit(inline="always")
def add_dense(codes, taken, n, demands):  # type: ignore[no-untyped-def]
    """Add the codes of the rows of a block that are `taken`: all ones or 0, of the first n."""
    for j in range(demands.size):
        row, total = codes[j], np.uint32(0)  # below 2^11 * 2^16
        for i in range(n):  # in 32 bits: twice the numbers in a vector
            total = np.uint32(total + np.uint32(row[i] & taken[i]))
        demands[j] += total


@njit(inline="always")
def add_sparse(pairs, b, taken, n, rows, demands):  # type: ignore[no-untyped-def]
    """Add the codes of the rows of block b that are `taken`: all ones or 0, of the first n."""
    count = 0
    for i in range(n):
        rows[count] = i
        count += taken[i] & 1
    for slot in range(pairs.offsets[b], pairs.offsets[b + 1], BLOCK):
        codes, resources = pairs.codes[slot : slot + BLOCK], pairs.resources[slot : slot + BLOCK]
        for at in range(count):
            demands[resources[rows[at]]] += codes[rows[at]]
    for pair in range(pairs.rest_offsets[b], pairs.rest_offsets[b + 1]):
        if taken[pairs.rest_rows[pair]]:
            demands[pairs.rest_resources[pair]] += pairs.rest_codes[pair]


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
        begin, share = reached << np.uint64(29), np.uint64(shares[i])  # in the coin's 53 bits
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
