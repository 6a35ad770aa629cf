"""Private: which agents are decided while prices stay in a box, so that rounds can skip them.

Codes are not negative, so a cost grows with every price. Over a box of prices [low, high], an
option's surplus lies between value - cost(high) and value - cost(low). An agent is decided if one
option's least surplus is not negative and above the largest surplus of its others, or if all its
surpluses are negative: then it chooses the same at all prices of the box, by the exact arithmetic
of `jdpack.best_response`. Everything that skips decided agents gives the same integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from jdpack import best_response
from jdpack.agents import BLOCK, Part
from jdpack.billboard import SHARE
from jdpack.market import PRICE_UNITS_PER_VALUE_CODE

OUT, IN, OPEN = 0, 1, 2
"""What a row is in a box: not taken, taken, or not decided."""

Prices = NDArray[np.float64]


@dataclass(frozen=True)
class Box:
    """Prices between low and high, and what is known of the agents there."""

    low: Prices
    high: Prices
    open: list[Part]
    """The agents that are not decided."""
    demand: tuple[int, ...]
    """The codes that the decided agents take of each resource."""

    @classmethod
    def screen(cls, parts: list[Part], low: Prices, high: Prices, most: int) -> Box | None:
        """The box, or None if more than `most` rows are open in it."""
        taken, open_parts = [0] * len(low), []
        all_states = [decided(part, low, high) for part in parts]
        if sum(int(np.count_nonzero(states == OPEN)) for states in all_states) > most:
            return None
        for part, states in zip(parts, all_states, strict=True):
            shares = np.where(states == IN, np.uint32(SHARE), np.uint32(0))
            more = best_response.loads(part, len(low), shares)
            taken = [a + b // SHARE for a, b in zip(taken, more, strict=True)]
            if np.any(states == OPEN):
                open_parts.append(rows_of(part, np.flatnonzero(states == OPEN)))
        return cls(low, high, open_parts, tuple(taken))

    def holds(self, prices: Prices) -> bool:
        return bool(np.all((self.low <= prices) & (prices <= self.high)))


def decided(part: Part, low: Prices, high: Prices) -> NDArray[np.uint8]:
    """OUT, IN or OPEN for each row; the rows of an agent are OPEN together."""
    states = np.empty((len(part.fill), BLOCK), np.uint8)
    if part.counts is None:
        _decided_dense(part.codes, part.values, part.starts, part.fill, low, high, states)
    else:
        _decided_sparse(
            part.codes, part.resources, part.counts, part.offsets,
            part.values, part.starts, part.fill, low, high, states,
        )  # fmt: skip
    return np.concatenate([states[b, :n] for b, n in enumerate(part.fill)])


def rows_of(part: Part, rows: NDArray[np.int64]) -> Part:
    """Some rows of a part, whole agents, as a part of their own."""
    first = np.cumsum(part.fill) - part.fill
    block = np.searchsorted(first, rows, side="right") - 1
    place = rows - first[block]
    several = part.starts.size > 0
    starts = part.starts[block, place] if several else np.empty(0, np.uint8)
    slots = _slots(starts, len(rows))
    blocks = int(slots[-1] // BLOCK) + 1
    to, at = slots // BLOCK, slots % BLOCK
    values = np.zeros((blocks, BLOCK), np.uint32)
    values[to, at] = part.values[block, place]
    fill = np.bincount(to, minlength=blocks).astype(np.int64)
    heads = np.zeros((blocks, BLOCK), np.uint8) if several else np.empty((0, 0), np.uint8)
    if several:
        heads[to, at] = starts
    if part.counts is None:
        codes = np.zeros((blocks, part.codes.shape[1], BLOCK), np.uint16)
        for j in range(codes.shape[1]):
            codes[to, j, at] = part.codes[block, j, place]
        return Part(values, fill, heads, codes)
    assert part.resources is not None and part.offsets is not None
    counts = np.zeros((blocks, BLOCK), np.uint16)
    counts[to, at] = part.counts[block, place]
    within = np.cumsum(part.counts, axis=1, dtype=np.int64) - part.counts
    begin = part.offsets[block] + within[block, place]
    lengths = part.counts[block, place].astype(np.int64)
    ends = np.cumsum(lengths)
    pairs = np.repeat(begin - (ends - lengths), lengths) + np.arange(int(ends[-1]))
    sizes = np.bincount(to, weights=lengths, minlength=blocks).astype(np.int64)
    return Part(
        values, fill, heads, part.codes[pairs], part.resources[pairs], counts,
        np.cumsum(sizes) - sizes,
    )  # fmt: skip


@njit(cache=True)
def _slots(starts, rows):  # type: ignore[no-untyped-def]
    """Where each row goes, so that no agent is split between two blocks."""
    slots, at, row = np.empty(rows, np.int64), 0, 0
    while row < rows:
        end = row + 1
        while starts.size > 0 and end < rows and starts[end] == 0:
            end += 1
        if at % BLOCK + end - row > BLOCK:
            at += BLOCK - at % BLOCK
        while row < end:
            slots[row] = at
            at += 1
            row += 1
    return slots


@njit(cache=True, parallel=True)
def _decided_dense(codes, values, starts, fill, low, high, states):  # type: ignore[no-untyped-def]
    for b in prange(fill.size):
        least, most = np.empty(BLOCK, np.float64), np.empty(BLOCK, np.float64)
        best_response._cost_dense(codes[b], low, fill[b], least)
        best_response._cost_dense(codes[b], high, fill[b], most)
        _decide(values, starts, b, fill[b], least, most, states[b])


@njit(cache=True, parallel=True)
def _decided_sparse(  # type: ignore[no-untyped-def]
    codes, resources, counts, offsets, values, starts, fill, low, high, states
):
    for b in prange(fill.size):
        least, most = np.empty(BLOCK, np.float64), np.empty(BLOCK, np.float64)
        best_response._cost_sparse(codes, resources, counts[b], offsets[b], low, fill[b], least)
        best_response._cost_sparse(codes, resources, counts[b], offsets[b], high, fill[b], most)
        _decide(values, starts, b, fill[b], least, most, states[b])


@njit(cache=True)
def _decide(values, starts, b, n, least, most, state):  # type: ignore[no-untyped-def]
    """Set the state of each row from its least and its largest cost."""
    row = 0
    while row < n:
        end = row + 1
        while starts.size > 0 and end < n and starts[b, end] == 0:
            end += 1
        best, second, chosen = -1.0, -1.0, -1  # the largest surpluses at the low prices
        for i in range(row, end):
            surplus = values[b, i] * float(PRICE_UNITS_PER_VALUE_CODE) - least[i]
            if surplus > best:
                best, second, chosen = surplus, best, i
            elif surplus > second:
                second = surplus
        mark = OPEN
        if chosen < 0:
            mark = OUT
        else:
            sure = values[b, chosen] * float(PRICE_UNITS_PER_VALUE_CODE) - most[chosen]
            if sure >= 0.0 and sure > second:
                mark = OUT
                state[chosen] = IN
        for i in range(row, end):
            if mark == OPEN or i != chosen:
                state[i] = mark
        row = end
