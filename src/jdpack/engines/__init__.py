"""Private: where the agents live. All engines give the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from jdpack.batch import Batch
from jdpack.billboard import Billboard, Seed
from jdpack.market import Market


@dataclass(frozen=True)
class Allocation:
    """What every agent gets. Private."""

    shares: NDArray[np.uint32]
    """The share of each row (option), in units of 1/SHARE."""
    loads: tuple[int, ...]
    """The exact load on each resource, in units of code / SHARE; at most the supply."""
    dropped: int
    """Winners dropped because the certified bound failed, which has probability beta at most."""


class Engine(Protocol):
    """Answers rounds exactly, and computes everybody's allocation at the end."""

    @property
    def market(self) -> Market: ...

    # Exact answers to the queries of `Market.shifts`; they leave through `release` only.

    def demand(self, prices: tuple[int, ...]) -> tuple[int, ...]: ...

    def batch_demand(
        self, prices: tuple[int, ...], batch: Batch, order: bytes
    ) -> tuple[int, ...]: ...

    def value(self, prices: tuple[int, ...]) -> int: ...

    def curvature(self, prices: tuple[int, ...]) -> tuple[int, ...]: ...

    def gauge(self, prices: tuple[int, ...]) -> tuple[int, ...]: ...

    def welfare(self, board: Billboard) -> int: ...

    def granted(self, board: Billboard, seed: Seed) -> tuple[int, ...]: ...

    def luck(self, board: Billboard, seed: Seed, factors: tuple[int, ...], bound: int) -> int: ...

    def allocate(self, board: Billboard) -> Allocation:
        """Every agent's own function of the finished billboard, with supply held."""
        ...
