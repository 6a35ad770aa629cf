"""Private: an engine made of shards. Their answers are sums, which are added here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Seed
from jdpack.common.batches import Batch
from jdpack.common.coins import SIPHASH, CoinHash
from jdpack.engines.base import Allocation
from jdpack.engines.shard import NOBODY, Final, Rounds, Shares
from jdpack.market.grid import SHARE
from jdpack.market.market import Market


class Repairing(ABC):
    """An engine that drops winners if what they get does not fit."""

    @property
    @abstractmethod
    def market(self) -> Market: ...

    @abstractmethod
    def drop(self, board: Billboard, drop_from: int) -> Allocation:
        """What all agents get if those with this coin or a larger one get nothing."""

    def allocate(self, board: Billboard) -> Allocation:
        """What all agents get, within the supply.

        If it does not fit, as few agents as needed are dropped, those with the largest coins first.
        This happens with probability at most beta, and is paid for in delta (`Budget`). Then the
        result is feasible whatever the noise was. If the market says how often a supply may be
        exceeded, nobody is dropped. The cut-off coin is found by bisection, because loads only fall
        as more agents are dropped.
        """
        allocation = self.drop(board, NOBODY)
        if not board.header.repaired or self._fits(allocation):
            return allocation
        low, high = 0, NOBODY  # dropping from `low` on is enough, from `high` on it is not
        while high - low > 1:
            middle = (low + high) // 2
            fits = self._fits(self.drop(board, middle))
            low, high = (middle, high) if fits else (low, middle)
        return self.drop(board, low)

    def _fits(self, allocation: Allocation) -> bool:
        supplies = self.market.supply_codes
        return all(load <= s * SHARE for load, s in zip(allocation.loads, supplies, strict=True))


class Combined(Repairing):
    """An engine whose agents are in shards."""

    def __init__(self, market: Market) -> None:
        self._market = market
        self._last: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @abstractmethod
    def _all(self, question: str, *about: Any) -> list[Any]:
        """The results of a method of `Shard` on every shard, in the order of the rows."""

    @abstractmethod
    def write(self, board: Billboard, allocation: Allocation, folder: Path) -> None:
        """Write what all agents get to the private folder, whole or not at all."""

    @property
    def market(self) -> Market:
        return self._market

    def demand(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        # A round may ask for the scale and then for the demand at the same prices; do one pass.
        if self._last is None or self._last[0] != prices:
            self._last = prices, _sums(self._all("demand", prices))
        return self._last[1]

    def batch_demand(
        self,
        prices: Sequence[tuple[int, ...]],
        batch: Batch,
        order: bytes,
        hash: CoinHash = SIPHASH,
    ) -> tuple[int, ...]:
        return _sums(self._all("batch_demand", prices, batch, order, hash))

    def value(self, prices: tuple[int, ...]) -> int:
        return sum(self._all("value", prices))

    def curvature(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        return _sums(self._all("curvature", prices))

    def gauge(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        return _sums(self._all("gauge", prices))

    def welfare(self, board: Billboard) -> int:
        return sum(self._all("welfare", Rounds.of(board)))

    def granted(self, board: Billboard, seed: Seed) -> tuple[int, ...]:
        everything = (SHARE,) * len(self.market.resources)
        parts = self._all("give", Final(Rounds.of(board), seed, everything))
        return tuple(load // SHARE for load in Allocation.of_all(parts).loads)

    def chance(self, board: Billboard, dearest: int) -> tuple[int, ...]:
        return _sums(self._all("chance", Rounds.of(board), dearest))

    def luck(
        self, board: Billboard, seed: Seed, factors: tuple[int, ...], lowest: int, highest: int
    ) -> int:
        return sum(self._all("luck", Rounds.of(board), seed, factors, lowest, highest))

    def shares(self, board: Billboard, allocation: Allocation) -> Shares:
        return np.concatenate(self._all("shares", final(board, allocation.drop_from)))

    def digest(self, hash: CoinHash = SIPHASH) -> int:
        total: int = sum(self._all("digest", hash)) % 2**64
        return total

    def drop(self, board: Billboard, drop_from: int) -> Allocation:
        return Allocation.of_all(self._all("give", final(board, drop_from)))


def final(board: Billboard, drop_from: int) -> Final:
    """What a shard needs to know of a finished billboard."""
    assert board.certificate is not None and board.seed is not None, "the run is not finished"
    return Final(Rounds.of(board), board.seed, board.certificate.factors, drop_from)


def _sums(answers: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(numbers) for numbers in zip(*answers, strict=True))
