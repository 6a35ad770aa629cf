"""Private: the engine for agents that fit in memory, on all cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import numpy as np
from numpy.typing import NDArray

from jdpack import best_response, coins
from jdpack.agents import Agents
from jdpack.best_response import Sums
from jdpack.billboard import SHARE, Billboard
from jdpack.engines import Allocation
from jdpack.ids import texts
from jdpack.market import Market


class MemoryEngine:
    """Agents in memory; `threads` limits the cores that it uses."""

    def __init__(self, agents: Agents, threads: int | None = None) -> None:
        self.agents = agents
        most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        blocks = sum(len(part.fill) for part in agents.parts)
        self.threads = min(threads or most, most, blocks)  # waking more costs more than it gives
        self._last: tuple[tuple[int, ...], Sums] | None = None

    @property
    def market(self) -> Market:
        return self.agents.market

    def sums(self, prices: tuple[int, ...]) -> Sums:
        # A round asks for the scale and then for the demand at the same prices: one pass for both.
        if self._last is None or self._last[0] != prices:
            with self._on_threads():
                self._last = prices, best_response.sums(self.agents.parts, prices)
        return self._last[1]

    def allocate(self, board: Billboard) -> Allocation:
        with self._on_threads():
            return self._allocate(board)

    def _allocate(self, board: Billboard) -> Allocation:
        assert board.certificate is not None and board.seed is not None, "the run is not finished"
        prices = np.array([step.prices for step in board.rounds], dtype=np.float64)
        weights = np.array([step.weight for step in board.rounds], dtype=np.int64)
        shares, row = np.empty(self.agents.rows, np.uint32), 0
        for part in self.agents.parts:
            piece = shares[row : row + part.rows]
            best_response.shares(part, prices, weights, board.certificate.factor, out=piece)
            if not self.market.divisible:
                best_response.flip(part, piece, self._coins(board.seed.seed, row, part.rows))
            row += part.rows
        allocation = Allocation(shares, self._loads(shares), dropped=0)
        if max(allocation.loads) > self.market.supply_code * SHARE:
            allocation = self._repair(allocation, board.seed.seed)
        return allocation

    @contextmanager
    def _on_threads(self) -> Iterator[None]:
        """Kernels run on our number of threads; what the caller has set comes back."""
        before = numba.get_num_threads()
        numba.set_num_threads(self.threads)
        try:
            yield
        finally:
            numba.set_num_threads(before)

    def _repair(self, allocation: Allocation, seed: bytes) -> Allocation:
        """Drop agents by their coins, the largest first, until every supply holds.

        This happens with probability at most beta, and is paid for in delta (`Budget`). What
        remains is feasible whatever the noise did. Bisection on the number of agents dropped:
        loads only fall as more are dropped.
        """
        winners = np.flatnonzero(allocation.shares)
        numbers = self.agents.numbers()[winners]
        coins_won = self._coins(seed, 0, len(allocation.shares))[winners]
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
        loads, row = [0] * m, 0
        for part in self.agents.parts:
            more = best_response.loads(part, m, shares[row : row + part.rows])
            loads = [a + b for a, b in zip(loads, more, strict=True)]
            row += part.rows
        return tuple(loads)

    def _coins(self, seed: bytes, row: int, rows: int) -> NDArray[np.uint64]:
        """The coin of each row's agent, for rows [row, row + rows)."""
        if self.agents.ids is None:
            return coins.coins_of_numbers(seed, np.arange(row, row + rows))
        out, at = np.empty(rows, np.uint64), 0
        for chunk in self.agents.ids.slice(row, rows).chunks:
            if chunk.type == "int64":
                coin = coins.coins_of_numbers(seed, chunk.to_numpy())
            else:
                coin = coins.coins_of_texts(seed, *texts(chunk))
            out[at : at + len(chunk)] = coin
            at += len(chunk)
        return out
