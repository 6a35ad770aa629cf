"""Private: which agents are decided while prices stay in a box, so that rounds can skip them.

Codes are not negative, so costs increase with every price. Over a box of prices [low, high], an
option's surplus lies between value - cost(high) and value - cost(low). An agent is decided if one
option's smallest surplus is not negative and exceeds the largest surplus of every other option, or
if all its surpluses are negative. It then makes the same choice at all prices in the box, by the
exact arithmetic of `jdpack.engines.best_response`. So skipping decided agents changes no integer.

`PriceRange` and `Boxes` are for every engine; `Box` and what follows it are for codes in memory.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from jdpack.engines.best_response import add_dense, add_sparse, cost_dense, cost_sparse
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE
from jdpack.records.codes import BLOCK, Part, lay_out, rest_of
from jdpack.records.kernels import njit
from jdpack.records.threads import Threads

OUT, IN, OPEN = 0, 1, 2
"""The state of a row in a box: not taken, taken, or not decided."""

Prices = NDArray[np.float64]

_STILL = 0.02  # prices that move by at most this fraction of their sum stand still
_PAYS = 4  # screening costs about as much as this many rounds


@dataclass(frozen=True)
class PriceRange:
    """Prices between low and high."""

    low: Prices
    high: Prices

    def holds(self, prices: Prices) -> bool:
        return bool(np.all((self.low <= prices) & (prices <= self.high)))


B = TypeVar("B", bound=PriceRange)


class Boxes(Generic[B]):
    """The box around the prices of the last rounds."""

    def __init__(self) -> None:
        self.box: B | None = None
        self._seen: Prices | None = None
        self._held = 0
        """Rounds since the agents were last screened."""
        self._reach = _STILL

    def at(self, prices: Prices, screen: Callable[[Prices, Prices], B | None]) -> B | None:
        """The box that holds the prices, if there is one.

        `screen` makes a box, or returns None if too many agents are open in it.
        """
        self._move(prices, screen)
        return self.box if self.box is not None and self.box.holds(prices) else None

    def _move(self, prices: Prices, screen: Callable[[Prices, Prices], B | None]) -> None:
        """Screen the agents again if prices have left the box but hardly move any more.

        A box that did not last was too small; one with many open agents is not worth its cost.
        """
        seen, self._seen = self._seen, prices
        self._held += 1
        if seen is None or (self.box is not None and self.box.holds(prices)):
            return
        if np.abs(prices - seen).sum() > _STILL * prices.sum():
            self.box = None
        elif self.box is None or self._held >= _PAYS:
            if self.box is not None and self._held < 4 * _PAYS:
                self._reach = min(2.0 * self._reach, 0.5)
            reach = self._reach * np.maximum(prices, 0.3 * prices.mean())
            self.box = None  # free its copies before making the next ones
            self.box = screen(np.maximum(prices - reach, 0.0), prices + reach)
            self._held = 0 if self.box is not None else -4 * _PAYS


@dataclass(frozen=True)
class Box(PriceRange):
    """How the agents respond to prices within bounds."""

    open: list[Part]
    """Copies of the agents that are not decided."""
    demand: tuple[int, ...]
    """How many codes of each resource the decided agents take."""

    @classmethod
    def screen(
        cls,
        parts: list[Part],
        low: Prices,
        high: Prices,
        most: int,
        threads: Threads,
        limit_bytes: int | None = None,
    ) -> Box | None:
        """The box, or None if it has more than `most` open rows or takes more than `limit_bytes`.

        The lists of open rows count too, and a copy of even a few rows of a part takes a block.
        During construction it may exceed the limit by the part that each thread is working on.
        """
        rows, space = _Limit(most), _Limit(limit_bytes)

        def find(part: Part) -> tuple[Part, NDArray[np.uint32], NDArray[np.int64]] | None:
            if rows.exceeded or space.exceeded:
                return None
            states, demand = _screened(part, low, high)
            own = np.flatnonzero(states == OPEN).astype(np.uint32)
            rows.take(len(own))
            space.take(own.nbytes + _about(part, len(own)))
            return part, own, demand

        def copy(pair: tuple[Part, NDArray[np.uint32]]) -> Part | None:
            if space.exceeded:
                return None
            part, own = pair
            some = rows_of(part, own.astype(np.int64))
            space.take(some.nbytes - _about(part, len(own)))
            return some

        found = [screened for screened in threads.map(find, parts) if screened is not None]
        if rows.exceeded or space.exceeded:
            return None
        taken = np.sum([demand for _, _, demand in found], axis=0)
        some = [(part, own) for part, own, _ in found if len(own)]
        copies = [part for part in threads.map(copy, some) if part is not None]
        return None if space.exceeded else cls(low, high, copies, tuple(taken.tolist()))


def _about(part: Part, rows: int) -> int:
    """About how many bytes a copy of some rows takes, in whole blocks."""
    return -(-rows // BLOCK) * (part.nbytes // max(len(part.fill), 1))


class _Limit:
    """A limit for all threads together; None is no limit."""

    def __init__(self, most: int | None) -> None:
        self._left: float = math.inf if most is None else most
        self._lock = threading.Lock()

    def take(self, much: int) -> None:
        with self._lock:
            self._left -= much

    @property
    def exceeded(self) -> bool:
        return self._left < 0


def decided(part: Part, low: Prices, high: Prices) -> NDArray[np.uint8]:
    """OUT, IN or OPEN for each row; the rows of an agent are OPEN together."""
    return _screened(part, low, high)[0]


def _screened(part: Part, low: Prices, high: Prices) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The states of the rows, and the codes that the IN rows take."""
    states, demand = np.empty(part.rows, np.uint8), np.zeros(len(low), np.int64)
    least, most = np.empty(BLOCK), np.empty(BLOCK)
    taken, rows = np.empty(BLOCK, np.uint16), np.empty(BLOCK, np.int64)
    buffers = least, most, taken, rows
    where = part.values, part.several, part.fill, low, high, *buffers, states, demand
    if part.pairs is None:
        _screen_dense(part.codes, *where)
    else:
        _screen_sparse(part.pairs, *where)
    return states, demand


def rows_of(part: Part, rows: NDArray[np.int64]) -> Part:
    """A copy of some rows of a part, whole agents in ascending order, without ids."""
    several = part.starts.size > 0
    source = np.empty(len(rows), np.int64)
    _locate(part.fill, rows, source)
    starts = part.starts.reshape(-1)[source] if several else None
    slots = _slots(starts, len(rows))
    blocks = int(slots[-1] // BLOCK) + 1
    fill = np.bincount(slots // BLOCK, minlength=blocks).astype(np.int64)
    values = np.zeros((blocks, BLOCK), np.uint32)
    values.reshape(-1)[slots] = part.values.reshape(-1)[source]
    heads = np.zeros((blocks, BLOCK), np.uint8) if several else np.empty((0, 0), np.uint8)
    if starts is not None:
        heads.reshape(-1)[slots] = starts
    if part.pairs is None:
        codes = np.zeros((blocks, part.codes.shape[1], BLOCK), np.uint16)
        _gather_dense(part.codes, source, slots, codes)
        return Part(values, fill, heads, codes)
    counts = np.zeros(len(rows), np.uint16)
    _count_pairs(part.pairs, source, counts)
    total = int(counts.sum(dtype=np.int64))
    resources, paired = np.empty(total, np.uint16), np.empty(total, np.uint16)
    _gather_sparse(part.pairs, source, resources, paired)
    some = Part(values, fill, heads, paired)
    lay_out(some, counts, resources, paired)
    return some


@njit(cache=True, nogil=True, error_model="numpy")
def _locate(fill, rows, source):  # type: ignore[no-untyped-def]
    """Set where the rows are: block * BLOCK + place."""
    b, first = 0, 0
    for r in range(rows.size):
        while rows[r] >= first + fill[b]:
            first += fill[b]
            b += 1
        source[r] = b * BLOCK + rows[r] - first


@njit(cache=True, nogil=True, error_model="numpy")
def _gather_dense(codes, source, slots, out):  # type: ignore[no-untyped-def]
    for r in range(source.size):
        b, i, to, at = source[r] // BLOCK, source[r] % BLOCK, slots[r] // BLOCK, slots[r] % BLOCK
        for j in range(codes.shape[1]):
            out[to, j, at] = codes[b, j, i]


@njit(cache=True, nogil=True, error_model="numpy")
def _count_pairs(pairs, source, counts):  # type: ignore[no-untyped-def]
    for r in range(source.size):
        b, i = source[r] // BLOCK, source[r] % BLOCK
        for pair in range(pairs.offsets[b] + i, pairs.offsets[b + 1], BLOCK):
            counts[r] += pairs.codes[pair] > 0
        at = rest_of(pairs, b, i)
        while at < pairs.rest_offsets[b + 1] and pairs.rest_rows[at] == i:
            counts[r] += 1
            at += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _gather_sparse(pairs, source, resources, codes):  # type: ignore[no-untyped-def]
    to = 0
    for r in range(source.size):
        b, i = source[r] // BLOCK, source[r] % BLOCK
        for pair in range(pairs.offsets[b] + i, pairs.offsets[b + 1], BLOCK):
            if pairs.codes[pair]:
                resources[to], codes[to] = pairs.resources[pair], pairs.codes[pair]
                to += 1
        at = rest_of(pairs, b, i)
        while at < pairs.rest_offsets[b + 1] and pairs.rest_rows[at] == i:
            resources[to], codes[to] = pairs.rest_resources[at], pairs.rest_codes[at]
            to += 1
            at += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _slots(starts, rows):  # type: ignore[no-untyped-def]
    """Where each row goes, with no agent split between two blocks."""
    slots, at, row = np.empty(rows, np.int64), 0, 0
    while row < rows:
        end = row + 1
        while starts is not None and end < rows and starts[end] == 0:
            end += 1
        if at % BLOCK + end - row > BLOCK:
            at += BLOCK - at % BLOCK
        while row < end:
            slots[row] = at
            at += 1
            row += 1
    return slots


@njit(cache=True, nogil=True, error_model="numpy")
def _screen_dense(  # type: ignore[no-untyped-def]
    codes, values, starts, fill, low, high, least, most, taken, rows, states, demand
):
    first = 0
    for b in range(fill.size):
        cost_dense(codes[b], low, fill[b], least)
        cost_dense(codes[b], high, fill[b], most)
        _decide(values, starts, b, fill[b], least, most, states[first : first + fill[b]], taken)
        add_dense(codes[b], taken, fill[b], demand)
        first += fill[b]


@njit(cache=True, nogil=True, error_model="numpy")
def _screen_sparse(  # type: ignore[no-untyped-def]
    pairs, values, starts, fill, low, high, least, most, taken, rows, states, demand
):
    first = 0
    for b in range(fill.size):
        cost_sparse(pairs, b, low, fill[b], least)
        cost_sparse(pairs, b, high, fill[b], most)
        _decide(values, starts, b, fill[b], least, most, states[first : first + fill[b]], taken)
        add_sparse(pairs, b, taken, fill[b], rows, demand)
        first += fill[b]


@njit(inline="always")
def _decide(values, starts, b, n, least, most, state, taken):  # type: ignore[no-untyped-def]
    """Set the state of each row from its smallest and largest cost, and `taken` for the IN rows."""
    if starts is None:
        for i in range(n):
            value = values[b, i] * float(PRICE_UNITS_PER_VALUE_CODE)
            inside = np.uint8(IN) if most[i] <= value else np.uint8(OPEN)
            state[i] = inside if least[i] <= value else np.uint8(OUT)
    else:
        _decide_several(values, starts, b, n, least, most, state)
    for i in range(n):
        taken[i] = np.uint16(0xFFFF) if state[i] == IN else np.uint16(0)


@njit(cache=True, nogil=True, error_model="numpy")
def _decide_several(values, starts, b, n, least, most, state):  # type: ignore[no-untyped-def]
    """`_decide` where agents have several options."""
    row = 0
    while row < n:
        end = row + 1
        while end < n and starts[b, end] == 0:
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
