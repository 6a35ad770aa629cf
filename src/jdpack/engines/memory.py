"""Private: the engine for agents that fit in memory, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jdpack import best_response, coins
from jdpack.agents import Agents, Part
from jdpack.batch import Batch
from jdpack.billboard import SHARE, Billboard, Seed, Step
from jdpack.engines import Allocation
from jdpack.engines.batched import Batched
from jdpack.ids import texts
from jdpack.market import Market
from jdpack.screening import IN, OPEN, Box, decided, rows_of
from jdpack.threads import Threads

_SCREENED = 2**16  # with fewer rows, a round over all costs no more than its own overhead
_STILL = 0.02  # prices that move by no more than this share of their sum stand still
_PAYS = 4  # screening costs about as much as this many rounds


Shares = NDArray[np.uint32]
Piece = tuple[Part, Shares]


class MemoryEngine:
    """Agents in memory; `threads` limits the cores that it uses."""

    def __init__(self, agents: Agents, threads: int | None = None) -> None:
        self.agents = agents
        self._screens = agents.rows >= _SCREENED
        self.threads = Threads(threads)
        self._box: Box | None = None
        self._seen: NDArray[np.float64] | None = None
        self._held = 0
        """Rounds since the agents were last screened."""
        self._reach = _STILL
        self._last: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._base: tuple[list[Step], NDArray[np.uint32]] | None = None
        self._batched: tuple[tuple[bytes, int], list[Batched]] | None = None

    @property
    def market(self) -> Market:
        return self.agents.market

    def demand(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        # A round may ask for the scale and then for the demand at the same prices: one pass.
        if self._last is None or self._last[0] != prices:
            self._last = prices, self._demand(np.array(prices, dtype=np.float64))
        return self._last[1]

    def _demand(self, prices: NDArray[np.float64]) -> tuple[int, ...]:
        """The demand, over the undecided agents alone where prices stay in a box."""
        if self._screens:
            self._move_box(prices)
        if self._box is None or not self._box.holds(prices):
            return self._sum(best_response.demand, self.agents.parts, prices)
        rest = self._sum(best_response.demand, self._box.open, prices)
        return tuple(a + b for a, b in zip(self._box.demand, rest, strict=True))

    def _sum(
        self,
        query: Callable[[Part, NDArray[np.float64]], NDArray[np.int64]],
        parts: list[Part],
        prices: NDArray[np.float64],
    ) -> tuple[int, ...]:
        nothing = np.zeros(len(prices) if not parts else (), np.int64)
        answer = self.threads.sum(lambda part: query(part, prices), parts, start=nothing)
        return tuple(answer.ravel().tolist())

    def _move_box(self, prices: NDArray[np.float64]) -> None:
        """Screen the agents anew if prices have left the box but hardly move any more.

        A box that does not hold for long was too small; one with many open agents does not pay.
        """
        seen, self._seen = self._seen, prices
        self._held += 1
        if seen is None or (self._box is not None and self._box.holds(prices)):
            return
        if np.abs(prices - seen).sum() > _STILL * prices.sum():
            self._box = None
        elif self._box is None or self._held >= _PAYS:
            if self._box is not None and self._held < 4 * _PAYS:
                self._reach = min(2.0 * self._reach, 0.5)
            reach = self._reach * np.maximum(prices, 0.3 * prices.mean())
            low, high = np.maximum(prices - reach, 0.0), prices + reach
            self._box = None  # its agents are not kept beside those of the next one
            most = self.agents.rows // 2
            self._box = Box.screen(self.agents.parts, low, high, most, self.threads)
            self._held = 0 if self._box is not None else -4 * _PAYS

    def batch_demand(self, prices: tuple[int, ...], batch: Batch, order: bytes) -> tuple[int, ...]:
        codes = np.array(prices, dtype=np.float64)
        parts = self._in_order(order, batch.count)
        return tuple(np.sum([part.demand(codes, batch.index) for part in parts], axis=0).tolist())

    def _in_order(self, order: bytes, count: int) -> list[Batched]:
        if self._batched is None or self._batched[0] != (order, count):
            parts = self.agents.parts
            batched = self.threads.map(lambda p: Batched(p, coins_of(p, order), count), parts)
            self._batched = (order, count), batched
        return self._batched[1]

    def value(self, prices: tuple[int, ...]) -> int:
        price, weight = np.array([prices], dtype=np.float64), np.ones(1, np.int64)

        def value(part: Part) -> int:
            return best_response.welfare(part, best_response.shares(part, price, weight))

        return sum(self.threads.map(value, self.agents.parts))

    def curvature(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        codes = np.array(prices, dtype=np.float64)
        return self._sum(best_response.curvature, self.agents.parts, codes)

    def gauge(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        codes = np.array(prices, dtype=np.float64)
        return self._sum(best_response.gauge, self.agents.parts, codes)

    def welfare(self, board: Billboard) -> int:
        pieces = self._pieces(self._shares(board))
        return sum(self.threads.map(lambda piece: best_response.welfare(*piece), pieces))

    def granted(self, board: Billboard, seed: Seed) -> tuple[int, ...]:
        m = len(self.market.resources)

        def load(piece: Piece) -> list[int]:
            part, shares = piece
            return best_response.loads(part, m, self._given(part, shares, seed, (SHARE,) * m))

        each = self.threads.map(load, self._pieces(self._shares(board)))
        return tuple(sum(loads) // SHARE for loads in zip(*each, strict=True))

    def luck(self, board: Billboard, seed: Seed, factors: tuple[int, ...], bound: int) -> int:
        def luck(piece: Piece) -> int:
            part, shares = piece
            given = self._given(part, shares, seed, factors)
            return best_response.luck(part, shares, given, bound)

        return sum(self.threads.map(luck, self._pieces(self._shares(board))))

    def allocate(self, board: Billboard) -> Allocation:
        assert board.certificate is not None and board.seed is not None, "the run is not finished"
        shares, seed, factors = self._shares(board), board.seed, board.certificate.factors
        self._base = None  # what follows writes over it

        def give(piece: Piece) -> None:
            part, own = piece
            own[:] = self._given(part, own, seed, factors)

        self.threads.map(give, self._pieces(shares))
        allocation = Allocation(shares, self._loads(shares), dropped=0)
        if max(allocation.loads) > self.market.supply_code * SHARE:
            allocation = self._repair(allocation, seed)
        return allocation

    def _given(self, part: Part, shares: Shares, seed: Seed, factors: tuple[int, ...]) -> Shares:
        """What is given of a part's averaged shares."""
        given, scaling = shares.copy(), best_response.factors(part, np.array(factors, np.uint32))
        if self.market.divisible:
            best_response.scale(given, scaling)
        else:
            # Of a whole share that is not scaled every coin gives all, of none nothing.
            tossed = (given > 0) & ((given < SHARE) | (scaling < SHARE))
            best_response.flip(part, given, coins_of(part, seed.seed, tossed), scaling)
        return given

    def _shares(self, board: Billboard) -> NDArray[np.uint32]:
        """The share of every row in the rounds so far, before scaling and coins."""
        steps = list(board.rounds)
        if self._base is None or self._base[0] != steps:
            prices = np.array([step.prices for step in steps], dtype=np.float64)
            weights = np.array([step.weight for step in steps], dtype=np.int64)
            shares = np.empty(self.agents.rows, np.uint32)
            if steps and steps[0].batch is not None:
                parts = self._in_order(board.header.order, steps[0].batch.count)
                np.concatenate([part.shares(prices) for part in parts], out=shares)
            else:
                self.threads.map(
                    lambda piece: self._share(*piece, prices, weights), self._pieces(shares)
                )
            self._base = steps, shares
        return self._base[1]

    def _share(
        self,
        part: Part,
        out: Shares,
        prices: NDArray[np.float64],
        weights: NDArray[np.int64],
    ) -> None:
        """The shares of a part's rows; agents that chose the same in all rounds are not asked."""
        states = decided(part, prices.min(axis=0), prices.max(axis=0))
        rows = np.flatnonzero(states == OPEN)
        if len(rows) > part.rows // 2:
            out[:] = best_response.shares(part, prices, weights)
            return
        out[:] = np.where(states == IN, np.uint32(SHARE), np.uint32(0))
        if len(rows):
            out[rows] = best_response.shares(rows_of(part, rows), prices, weights)

    def _pieces(self, shares: Shares) -> Iterator[Piece]:
        """The parts, and their rows' shares."""
        for part in self.agents.parts:
            yield part, shares[part.first : part.first + part.rows]

    def _repair(self, allocation: Allocation, seed: Seed) -> Allocation:
        """Drop agents by their coins, the largest first, until every supply holds.

        This happens with probability at most beta, and is paid for in delta (`Budget`). What
        remains is feasible whatever the noise did. Bisection on the number of agents dropped:
        loads only fall as more are dropped.
        """
        winners = np.flatnonzero(allocation.shares)
        numbers = self.agents.numbers()[winners]
        tossed = allocation.shares > 0
        pieces = [
            coins_of(part, seed.seed, tossed[part.first : part.first + part.rows])
            for part in self.agents.parts
        ]
        coins_won = np.concatenate(pieces)[winners]
        order = np.lexsort((numbers, coins_won))[::-1]
        order, numbers = winners[order], numbers[order]
        # Where the rows of each agent end: of divisible goods, an agent may have several.
        ends = np.append(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1, len(order))
        limit = self.market.supply_code * SHARE

        def after(dropped: int) -> Allocation:
            shares = allocation.shares.copy()
            shares[order[: ends[dropped - 1]]] = 0
            return Allocation(shares, self._loads(shares), dropped)

        low, high = 0, len(ends)  # after(low) does not fit, after(high) does
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if max(after(middle).loads) <= limit else (middle, high)
        return after(high)

    def _loads(self, shares: NDArray[np.uint32]) -> tuple[int, ...]:
        """The exact load of shares on each resource, in units of code / SHARE."""
        m = len(self.market.resources)
        each = self.threads.map(
            lambda piece: best_response.loads(piece[0], m, piece[1]), self._pieces(shares)
        )
        return tuple(sum(loads) for loads in zip(*each, strict=True))


def coins_of(part: Part, key: bytes, tossed: NDArray[np.bool_] | None = None) -> NDArray[np.uint64]:
    """The coin of each row's agent; 0 of the rows that are not `tossed`."""
    which = np.arange(part.rows) if tossed is None else np.flatnonzero(tossed)
    if part.ids is None:
        some = coins.coins_of_numbers(key, part.first + which)
    elif pa.types.is_integer(part.ids.type):
        some = coins.coins_of_numbers(key, part.ids.to_numpy()[which])
    else:
        some = coins.coins_of_texts(key, *texts(part.ids), which)
    if tossed is None:
        return some
    out = np.zeros(part.rows, np.uint64)
    out[which] = some
    return out
