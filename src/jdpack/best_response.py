"""Private: what the agents take at given prices, exactly.

An agent takes the option with the largest surplus, value minus cost, if it is not negative; the
first one on a tie. Costs are compared in doubles, which is exact (see `jdpack.market`); sums are
64-bit integers. So the result depends on no order, thread count or partitioning.

Every kernel goes over a part block by block: costs of the block's rows, then their choices, then
the sums, while the block is in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import get_num_threads, njit, prange
from numpy.typing import NDArray

from jdpack.agents import BLOCK, Part
from jdpack.billboard import SHARE
from jdpack.market import PRICE_UNITS_PER_VALUE_CODE


@dataclass(frozen=True)
class Sums:
    """Exact sums over agents. Private: they leave through `release` only."""

    demand: tuple[int, ...]
    """Codes taken of each resource."""
    welfare: int
    """Value codes of the options taken."""


def sums(parts: list[Part], prices: tuple[int, ...]) -> Sums:
    """Total demand and welfare at the given price codes."""
    costs = np.array(prices, dtype=np.float64)
    demand, welfare = np.zeros(len(prices), np.int64), 0
    for part in parts:
        chunks = _chunks(part)
        demands = np.zeros((chunks, len(prices)), np.int64)
        welfares = np.zeros(chunks, np.int64)
        if part.counts is None:
            _sums_dense(part.codes, part.values, part.starts, part.fill, costs, demands, welfares)
        else:
            _sums_sparse(
                part.codes, part.resources, part.counts, part.offsets,
                part.values, part.starts, part.fill, costs, demands, welfares,
            )  # fmt: skip
        demand += demands.sum(axis=0)
        welfare += int(welfares.sum())
    return Sums(tuple(demand.tolist()), welfare)


def shares(
    part: Part,
    prices: NDArray[np.float64],
    weights: NDArray[np.int64],
    factor: int,
    out: NDArray[np.uint32],
) -> None:
    """Set `out` to the share of each row in units of 1/SHARE, rounded down.

    A row's share is the weight of the rounds in which it was taken, over the weight of all
    rounds, times factor / SHARE. `prices` is [round, resource].
    """
    first = np.cumsum(part.fill) - part.fill
    total = int(weights.sum())
    if part.counts is None:
        _shares_dense(
            part.codes, part.values, part.starts, part.fill, first,
            prices, weights, total, factor, out, _chunks(part),
        )  # fmt: skip
    else:
        _shares_sparse(
            part.codes, part.resources, part.counts, part.offsets,
            part.values, part.starts, part.fill, first,
            prices, weights, total, factor, out, _chunks(part),
        )  # fmt: skip


def flip(part: Part, shares: NDArray[np.uint32], coins: NDArray[np.uint64]) -> None:
    """Round shares to all or nothing with the agents' coins, in place.

    The coin is uniform on [0, 1); an agent's options stand on that interval one after the other,
    each as wide as its share, and the one that the coin falls on is taken whole.
    """
    starts = np.empty(0, np.uint8)
    if part.starts.size:
        starts = np.concatenate([part.starts[b, :n] for b, n in enumerate(part.fill)])
    _flip(starts, shares, coins)


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
def _sums_dense(codes, values, starts, fill, prices, demands, welfares):  # type: ignore[no-untyped-def]
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
            welfares[chunk] += _welfare(values[b], taken, n)


@njit(cache=True, parallel=True)
def _sums_sparse(  # type: ignore[no-untyped-def]
    codes, resources, counts, offsets, values, starts, fill, prices, demands, welfares
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
            welfares[chunk] += _welfare(values[b], taken, n)
        demands[chunk] += demand


@njit(cache=True, parallel=True)
def _shares_dense(  # type: ignore[no-untyped-def]
    codes, values, starts, fill, first, prices, weights, total, factor, out, chunks
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
            _scale(won, n, total, factor, out, first[b])


@njit(cache=True, parallel=True)
def _shares_sparse(  # type: ignore[no-untyped-def]
    codes, resources, counts, offsets, values, starts, fill, first,
    prices, weights, total, factor, out, chunks,
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
            _scale(won, n, total, factor, out, first[b])


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
def _welfare(values, taken, n):  # type: ignore[no-untyped-def]
    total = np.int64(0)
    for i in range(n):
        total += np.int64(values[i]) if taken[i] else np.int64(0)
    return total


@njit(cache=True)
def _count(taken, weight, n, won):  # type: ignore[no-untyped-def]
    for i in range(n):
        won[i] += weight if taken[i] else 0


@njit(cache=True)
def _scale(won, n, total, factor, out, first):  # type: ignore[no-untyped-def]
    for i in range(n):
        out[first + i] = won[i] * factor // total


@njit(cache=True)
def _flip(starts, shares, coins):  # type: ignore[no-untyped-def]
    reached = np.uint64(0)
    for i in range(shares.size):
        if starts.size == 0 or starts[i]:
            reached = np.uint64(0)
        begin = reached
        reached = begin + np.uint64(shares[i])
        coin = coins[i] >> np.uint64(29)  # 53 bits to the 24 of a share
        shares[i] = SHARE if begin <= coin < reached else 0


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
