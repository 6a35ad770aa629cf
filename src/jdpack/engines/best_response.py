"""Private: what the agents of a part take at given prices, exactly.

An agent takes the option with the largest surplus, value minus cost, unless all are negative. On a
tie it takes the first. Costs are compared in doubles, which is exact (see `jdpack.market.market`),
and sums are 64-bit integers. So the result does not depend on order, thread count or partitioning.

Every kernel processes one block of rows of a part after the other: their costs, then the choices,
then the sums, while the block is in the cache. A kernel runs on one thread and releases the GIL;
engines distribute parts over threads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.records.codes import BLOCK, Part
from jdpack.records.kernels import njit


def demand(part: Part, prices: NDArray[np.float64]) -> NDArray[np.int64]:
    """The demand query: how many codes of each resource are taken at the given price codes."""
    out, nothing = np.zeros(len(prices), np.int64), np.empty(0, np.int64)
    _play(part, prices.reshape(1, -1), np.zeros(1, np.int64), out, nothing)
    return out


def shares(
    part: Part, prices: NDArray[np.float64], weights: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """The share of each row in units of 1/SHARE, rounded down, before scaling.

    A row's share is the weight of the rounds in which it was taken, divided by the weight of all
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
    """Add what is taken in each round to `demands`, and its weight to `won` for the rows taken.

    Either array may be empty if it is not needed.
    """
    where = part.values, part.several, part.fill, prices, weights, *scratch(), demands, won
    if part.pairs is None:
        _play_dense(part.codes, *where)
    else:
        _play_sparse(part.pairs, *where)


def scratch() -> tuple[NDArray[np.float64], NDArray[np.uint16], NDArray[np.int64]]:
    """Arrays for the costs, marks and indices of a block's rows; the last two have a spare."""
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
    while end - slot >= 3 * BLOCK:  # three at a time, to load and store costs less often
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
    """`_choose_one` in 32-bit floats, twice as many per vector. Returns whether all are sure.

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
    """Set `taken` to all ones for the options that their agents take, and to 0 for the others.

    It has one entry more than a block has rows, for the agents that take nothing.
    """
    # No branches, because the processor would mispredict random choices. A mask is all ones or 0.
    # `at` is BLOCK and `best` is -1 until some option of the agent is worth its cost.
    at, best, agent = np.int64(BLOCK), np.int64(-1), np.int64(-1)
    for i in range(n):
        head = -np.int64(starts[b, i])
        agent -= head
        best |= head
        at = (at & ~head) | (BLOCK & head)
        cost_or_more = min(cost[i], 2.0**60)  # already unaffordable, and the difference still fits
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
    """Add the codes of the rows that are `taken` (all ones, or else 0) among a block's first n."""
    for j in range(demands.size):
        row, total = codes[j], np.uint32(0)  # below 2^11 * 2^16
        for i in range(n):  # in 32 bits, twice as many per vector
            total = np.uint32(total + np.uint32(row[i] & taken[i]))
        demands[j] += total


@njit(inline="always")
def add_sparse(pairs, b, taken, n, rows, demands):  # type: ignore[no-untyped-def]
    """Add the codes of the rows that are `taken` (all ones, or else 0) among block b's first n."""
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
