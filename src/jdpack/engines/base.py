"""Private: what every engine can do. All engines give the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Seed
from jdpack.common.batches import Batch
from jdpack.common.coins import SIPHASH, CoinHash
from jdpack.market.market import Market


@dataclass(frozen=True)
class Allocation:
    """The sums of what all agents get. Private."""

    loads: tuple[int, ...]
    """The exact load on each resource, at most the supply, in units of code / SHARE."""
    winners: int
    """Requests that get something."""
    shares: int
    """The sum of all shares, in units of 1/SHARE."""
    value: int
    """The total value of what is given, in value codes, rounded down per row."""
    dropped: int
    """Winners dropped because the certified bound failed, which has probability at most beta."""
    drop_from: int
    """Requests with this coin or a larger one were dropped."""

    @classmethod
    def of_all(cls, parts: list[Allocation]) -> Allocation:
        """What the agents of all parts get."""
        return cls(
            loads=tuple(sum(loads) for loads in zip(*(p.loads for p in parts), strict=True)),
            winners=sum(p.winners for p in parts),
            shares=sum(p.shares for p in parts),
            value=sum(p.value for p in parts),
            dropped=sum(p.dropped for p in parts),
            drop_from=parts[0].drop_from,
        )


class Engine(Protocol):
    """Answers rounds exactly, and computes everybody's allocation at the end."""

    @property
    def market(self) -> Market: ...

    @property
    def count(self) -> int:
        """How many agents there are."""
        ...

    @property
    def requests(self) -> int:
        """How many requests they make."""
        ...

    @property
    def clamped(self) -> int:
        """How many numbers were clamped to the public bounds, and requests left out."""
        ...

    @property
    def numbered(self) -> bool:
        """Whether agents are numbered because they have no ids."""
        ...

    def digest(self, hash: CoinHash = SIPHASH) -> int:
        """A number that changes whenever a record does; see `jdpack.records.digest`.

        `hash` is the hash behind the run's coins.
        """
        ...

    # Exact answers to the queries of `queries.change`; they leave only through `release`.

    def demand(self, prices: tuple[int, ...]) -> tuple[int, ...]: ...

    def batch_demand(
        self,
        prices: Sequence[tuple[int, ...]],
        batch: Batch,
        order: bytes,
        hash: CoinHash = SIPHASH,
    ) -> tuple[int, ...]:
        """The demand of a block of batches, each at its own prices; `batch` is the last one."""
        ...

    def value(self, prices: tuple[int, ...]) -> int: ...

    def curvature(self, prices: tuple[int, ...]) -> tuple[int, ...]: ...

    def gauge(self, prices: tuple[int, ...]) -> tuple[int, ...]: ...

    def welfare(self, board: Billboard) -> int: ...

    def granted(self, board: Billboard, seed: Seed) -> tuple[int, ...]:
        """What the coins grant after the rounds so far, in codes of each resource."""
        ...

    def chance(self, board: Billboard, dearest: int) -> tuple[int, ...]: ...

    def luck(
        self, board: Billboard, seed: Seed, factors: tuple[int, ...], lowest: int, highest: int
    ) -> int: ...

    def allocate(self, board: Billboard) -> Allocation:
        """Every agent's own function of the finished billboard, within the supply."""
        ...

    def shares(self, board: Billboard, allocation: Allocation) -> NDArray[np.uint32]:
        """What every row of the input gets, in units of 1/SHARE."""
        ...

    def write(self, board: Billboard, allocation: Allocation, folder: Path) -> None:
        """Write what every agent gets to a private folder, only whole files."""
        ...

    def close(self) -> None:
        """Release other machines, if any; after that, the engine answers no more questions."""
        ...
