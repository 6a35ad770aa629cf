"""Private: the engine for agents that fit in memory, on all cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import numpy as np
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

_SCREENED = 2**16  # with fewer rows, a round over all costs no more than its own overhead
_STILL = 0.02  # prices that move by no more than this share of their sum stand still
_PAYS = 4  # screening costs about as much as this many rounds


class MemoryEngine:
    """Agents in memory; `threads` limits the cores that it uses."""

    def __init__(self, agents: Agents, threads: int | None = None) -> None:
        self.agents = agents
        self._screens = agents.rows >= _SCREENED
        most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        blocks = sum(len(part.fill) for part in agents.parts)
        self.threads = min(threads or most, most, blocks)  # waking more costs more than it gives
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
            with self._on_threads():
                self._last = prices, self._demand(np.array(prices, dtype=np.float64), prices)
        return self._last[1]

    def _demand(self, prices: NDArray[np.float64], codes: tuple[int, ...]) -> tuple[int, ...]:
        """The demand, over the undecided agents alone where prices stay in a box."""
        if self._screens:
            self._move_box(prices)
        if self._box is None or not self._box.holds(prices):
            return best_response.demand(self.agents.parts, codes)
        rest = best_response.demand(self._box.open, codes)
        return tuple(a + b for a, b in zip(self._box.demand, rest, strict=True))

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
            self._box = Box.screen(self.agents.parts, low, high, self.agents.rows // 2)
            self._held = 0 if self._box is not None else -4 * _PAYS

    def batch_demand(self, prices: tuple[int, ...], batch: Batch, order: bytes) -> tuple[int, ...]:
        codes = np.array(prices, dtype=np.float64)
        parts = self._in_order(order, batch.count)
        return tuple(np.sum([part.demand(codes, batch.index) for part in parts], axis=0).tolist())

    def _in_order(self, order: bytes, count: int) -> list[Batched]:
        if self._batched is None or self._batched[0] != (order, count):
            parts = [Batched(p, self._coins(order, rows), count) for p, rows in self._slices()]
            self._batched = (order, count), parts
        return self._batched[1]

    def value(self, prices: tuple[int, ...]) -> int:
        price, weight, total = np.array([prices], dtype=np.float64), np.ones(1, np.int64), 0
        with self._on_threads():
            for part in self.agents.parts:
                shares = np.empty(part.rows, np.uint32)
                best_response.shares(part, price, weight, out=shares)
                total += best_response.welfare(part, shares)
        return total

    def curvature(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        with self._on_threads():
            return best_response.curvature(self.agents.parts, prices)

    def gauge(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        with self._on_threads():
            return best_response.gauge(self.agents.parts, prices)

    def welfare(self, board: Billboard) -> int:
        base = self._shares(board)
        return sum(best_response.welfare(p, base[rows]) for p, rows in self._slices())

    def granted(self, board: Billboard, seed: Seed) -> tuple[int, ...]:
        loads = [0] * len(self.market.resources)
        for part, _, granted in self._given(board, seed, (SHARE,) * len(loads)):
            more = best_response.loads(part, len(loads), granted)
            loads = [a + b // SHARE for a, b in zip(loads, more, strict=True)]
        return tuple(loads)

    def luck(self, board: Billboard, seed: Seed, factors: tuple[int, ...], bound: int) -> int:
        return sum(
            best_response.luck(part, shares, given, bound)
            for part, shares, given in self._given(board, seed, factors)
        )

    def allocate(self, board: Billboard) -> Allocation:
        assert board.certificate is not None and board.seed is not None, "the run is not finished"
        shares = self._shares(board)
        self._base = None  # what follows writes over it
        for part, rows in self._slices():
            self._give(part, rows, shares[rows], board.seed, board.certificate.factors)
        allocation = Allocation(shares, self._loads(shares), dropped=0)
        if max(allocation.loads) > self.market.supply_code * SHARE:
            allocation = self._repair(allocation, board.seed)
        return allocation

    def _given(
        self, board: Billboard, seed: Seed, factors: tuple[int, ...]
    ) -> Iterator[tuple[Part, NDArray[np.uint32], NDArray[np.uint32]]]:
        """The parts, their averaged shares, and what is given of them."""
        base = self._shares(board)
        for part, rows in self._slices():
            given = base[rows].copy()
            self._give(part, rows, given, seed, factors)
            yield part, base[rows], given

    def _give(
        self,
        part: Part,
        rows: slice,
        shares: NDArray[np.uint32],
        seed: Seed,
        factors: tuple[int, ...],
    ) -> None:
        """Turn averaged shares into what is given, in place."""
        scaling = best_response.factors(part, np.array(factors, np.uint32))
        if self.market.divisible:
            best_response.scale(shares, scaling)
        else:
            # Of a whole share that is not scaled every coin gives all, of none nothing.
            tossed = (shares > 0) & ((shares < SHARE) | (scaling < SHARE))
            best_response.flip(part, shares, self._coins(seed.seed, rows, tossed), scaling)

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
                with self._on_threads():
                    for part, rows in self._slices():
                        self._share(part, prices, weights, shares[rows])
            self._base = steps, shares
        return self._base[1]

    def _share(
        self,
        part: Part,
        prices: NDArray[np.float64],
        weights: NDArray[np.int64],
        out: NDArray[np.uint32],
    ) -> None:
        """The shares of a part's rows; agents that chose the same in all rounds are not asked."""
        states = decided(part, prices.min(axis=0), prices.max(axis=0))
        rows = np.flatnonzero(states == OPEN)
        if len(rows) > part.rows // 2:
            best_response.shares(part, prices, weights, out=out)
            return
        out[:] = np.where(states == IN, np.uint32(SHARE), np.uint32(0))
        if len(rows):
            some = np.empty(len(rows), np.uint32)
            best_response.shares(rows_of(part, rows), prices, weights, out=some)
            out[rows] = some

    def _slices(self) -> Iterator[tuple[Part, slice]]:
        """The parts, and where their rows stand among all."""
        row = 0
        for part in self.agents.parts:
            yield part, slice(row, row + part.rows)
            row += part.rows

    @contextmanager
    def _on_threads(self) -> Iterator[None]:
        """Kernels run on our number of threads; what the caller has set comes back."""
        before = numba.get_num_threads()
        numba.set_num_threads(self.threads)
        try:
            yield
        finally:
            numba.set_num_threads(before)

    def _repair(self, allocation: Allocation, seed: Seed) -> Allocation:
        """Drop agents by their coins, the largest first, until every supply holds.

        This happens with probability at most beta, and is paid for in delta (`Budget`). What
        remains is feasible whatever the noise did. Bisection on the number of agents dropped:
        loads only fall as more are dropped.
        """
        winners = np.flatnonzero(allocation.shares)
        numbers = self.agents.numbers()[winners]
        coins_won = self._coins(seed.seed, slice(0, len(allocation.shares)))[winners]
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
        loads = [0] * len(self.market.resources)
        for part, rows in self._slices():
            more = best_response.loads(part, len(loads), shares[rows])
            loads = [a + b for a, b in zip(loads, more, strict=True)]
        return tuple(loads)

    def _coins(
        self, key: bytes, rows: slice, tossed: NDArray[np.bool_] | None = None
    ) -> NDArray[np.uint64]:
        """The coin of each row's agent; agents without ids may leave out those not `tossed`."""
        if self.agents.ids is None:
            which = np.arange(rows.start, rows.stop)
            if tossed is None:
                return coins.coins_of_numbers(key, which)
            some = np.zeros(len(which), np.uint64)
            some[tossed] = coins.coins_of_numbers(key, which[tossed])
            return some
        out, at = np.empty(rows.stop - rows.start, np.uint64), 0
        for chunk in self.agents.ids.slice(rows.start, len(out)).chunks:
            if chunk.type == "int64":
                coin = coins.coins_of_numbers(key, chunk.to_numpy())
            else:
                coin = coins.coins_of_texts(key, *texts(chunk))
            out[at : at + len(chunk)] = coin
            at += len(chunk)
        return out
