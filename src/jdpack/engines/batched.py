"""Private: ask the agents in the public order, one batch after the other.

The choices are exactly those of `jdpack.engines.best_response`. But the few agents of a batch are
scattered over memory, so their rows are read individually.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from jdpack.common.batches import turns
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.records.codes import BLOCK, Part, rest_of


class Batched:
    """The rows of one part in the order of their turns."""

    def __init__(self, part: Part, places: NDArray[np.uint64], count: int) -> None:
        turn = turns(places, count)
        self._part = part
        self._order = np.argsort(turn, kind="stable")  # keeps the rows of an agent together
        self._first = np.searchsorted(turn[self._order], np.arange(count + 1))
        first = np.cumsum(part.fill) - part.fill
        block = np.searchsorted(first, self._order, side="right") - 1
        self._slots = block * BLOCK + self._order - first[block]

    def demand(self, prices: NDArray[np.float64], index: int) -> NDArray[np.int64]:
        """How many codes of each resource one batch takes."""
        rows = slice(self._first[index], self._first[index + 1])
        demands = np.zeros(len(prices), np.int64)
        self._choose(rows, prices, demands)
        return demands

    def shares(self, prices: NDArray[np.float64]) -> NDArray[np.uint32]:
        """The share of each row of the part; `prices` is [batch asked, resource]."""
        out, demands = np.zeros(len(self._order), np.uint32), np.zeros(prices.shape[1], np.int64)
        for index, posted in enumerate(prices):
            rows = slice(self._first[index], self._first[index + 1])
            out[self._order[rows]] = self._choose(rows, posted, demands)
        return out

    def _choose(
        self, rows: slice, prices: NDArray[np.float64], demands: NDArray[np.int64]
    ) -> NDArray[np.uint32]:
        """The shares of some rows; adds what they take to `demands`."""
        part, slots = self._part, self._slots[rows]
        shares = np.zeros(len(slots), np.uint32)
        if part.pairs is None:
            _dense(part.codes, part.values, part.several, slots, prices, demands, shares)
        else:
            _sparse(part.pairs, part.values, part.several, slots, prices, demands, shares)
        return shares


@njit(cache=True, nogil=True, error_model="numpy")
def _dense(codes, values, starts, slots, prices, demands, shares):  # type: ignore[no-untyped-def]
    costs = np.zeros(slots.size, np.float64)
    for i in range(slots.size):
        for j in range(prices.size):
            costs[i] += codes[slots[i] // BLOCK, j, slots[i] % BLOCK] * prices[j]
    _best(values, starts, slots, costs, shares)
    for i in range(slots.size):
        if shares[i]:
            for j in range(prices.size):
                demands[j] += codes[slots[i] // BLOCK, j, slots[i] % BLOCK]


@njit(cache=True, nogil=True, error_model="numpy")
def _sparse(pairs, values, starts, slots, prices, demands, shares):  # type: ignore[no-untyped-def]
    costs = np.zeros(slots.size, np.float64)
    for r in range(slots.size):
        b, i = slots[r] // BLOCK, slots[r] % BLOCK
        for pair in range(pairs.offsets[b] + i, pairs.offsets[b + 1], BLOCK):
            costs[r] += pairs.codes[pair] * prices[pairs.resources[pair]]
        at = rest_of(pairs, b, i)
        while at < pairs.rest_offsets[b + 1] and pairs.rest_rows[at] == i:
            costs[r] += pairs.rest_codes[at] * prices[pairs.rest_resources[at]]
            at += 1
    _best(values, starts, slots, costs, shares)
    for r in range(slots.size):
        if shares[r]:
            b, i = slots[r] // BLOCK, slots[r] % BLOCK
            for pair in range(pairs.offsets[b] + i, pairs.offsets[b + 1], BLOCK):
                demands[pairs.resources[pair]] += pairs.codes[pair]
            at = rest_of(pairs, b, i)
            while at < pairs.rest_offsets[b + 1] and pairs.rest_rows[at] == i:
                demands[pairs.rest_resources[at]] += pairs.rest_codes[at]
                at += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _best(values, starts, slots, costs, shares):  # type: ignore[no-untyped-def]
    """Set a full share for the option that each agent takes."""
    best, at = -1.0, -1
    for i in range(slots.size):
        b, place = slots[i] // BLOCK, slots[i] % BLOCK
        if starts is None or starts[b, place]:
            best, at = -1.0, -1
        surplus = values[b, place] * float(PRICE_UNITS_PER_VALUE_CODE) - costs[i]
        if surplus >= 0.0 and surplus > best:
            if at >= 0:
                shares[at] = 0
            shares[i] = SHARE
            best, at = surplus, i
