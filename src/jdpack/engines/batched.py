"""Private: ask the agents in the public order, batch after batch, each at its own prices.

The choices are exactly those of `jdpack.engines.best_response`. But the few agents of a batch are
scattered over memory, so their rows are read individually.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jdpack.common.batches import turns
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.records.codes import BLOCK, Part, rest_of
from jdpack.records.kernels import njit


class Batched:
    """The rows of one part in the order of their turns."""

    def __init__(self, part: Part, places: NDArray[np.uint64], count: int) -> None:
        turn = turns(places, count)
        self._part = part
        self._order = np.argsort(turn, kind="stable")  # keeps the rows of an agent together
        self._turn = turn[self._order].astype(np.int32)
        first = np.cumsum(part.fill) - part.fill
        block = np.searchsorted(first, self._order, side="right") - 1
        self._slots = block * BLOCK + self._order - first[block]

    def demand(self, prices: NDArray[np.float64], last: int) -> NDArray[np.int64]:
        """How many codes of each resource a block of batches takes, up to the batch `last`.

        `prices` is [batch of the block, resource].
        """
        _, demands, _ = self._choose(prices, last - len(prices) + 1)
        return demands

    def shares(self, prices: NDArray[np.float64]) -> NDArray[np.uint32]:
        """The share of each row of the part; `prices` is [batch asked, resource]."""
        out = np.zeros(len(self._order), np.uint32)
        rows, _, shares = self._choose(prices, 0)
        out[self._order[rows]] = shares
        return out

    def _choose(
        self, prices: NDArray[np.float64], first: int
    ) -> tuple[slice, NDArray[np.int64], NDArray[np.uint32]]:
        """The rows of some batches from `first` on, what they take together, and their shares."""
        part = self._part
        rows = slice(*np.searchsorted(self._turn, [first, first + len(prices)]).tolist())
        slots, at = self._slots[rows], self._turn[rows] - np.int32(first)
        demands, shares = np.zeros(prices.shape[1], np.int64), np.zeros(len(slots), np.uint32)
        if part.pairs is None:
            _dense(part.codes, part.values, part.several, slots, at, prices, demands, shares)
        else:
            _sparse(part.pairs, part.values, part.several, slots, at, prices, demands, shares)
        return rows, demands, shares


@njit(cache=True, nogil=True, error_model="numpy")
def _dense(codes, values, starts, slots, at, prices, demands, shares):  # type: ignore[no-untyped-def]
    costs = np.zeros(slots.size, np.float64)
    for i in range(slots.size):
        for j in range(demands.size):
            costs[i] += codes[slots[i] // BLOCK, j, slots[i] % BLOCK] * prices[at[i], j]
    _best(values, starts, slots, costs, shares)
    for i in range(slots.size):
        if shares[i]:
            for j in range(demands.size):
                demands[j] += codes[slots[i] // BLOCK, j, slots[i] % BLOCK]


@njit(cache=True, nogil=True, error_model="numpy")
def _sparse(pairs, values, starts, slots, turn, prices, demands, shares):  # type: ignore[no-untyped-def]
    costs = np.zeros(slots.size, np.float64)
    for r in range(slots.size):
        b, i = slots[r] // BLOCK, slots[r] % BLOCK
        for pair in range(pairs.offsets[b] + i, pairs.offsets[b + 1], BLOCK):
            costs[r] += pairs.codes[pair] * prices[turn[r], pairs.resources[pair]]
        at = rest_of(pairs, b, i)
        while at < pairs.rest_offsets[b + 1] and pairs.rest_rows[at] == i:
            costs[r] += pairs.rest_codes[at] * prices[turn[r], pairs.rest_resources[at]]
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
