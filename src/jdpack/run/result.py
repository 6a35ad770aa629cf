"""Private: what a run gives back, with the exact numbers that only the curator may see."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Certificate
from jdpack.engines.base import Allocation, Engine
from jdpack.errors import (
    SupplyWarning,
)
from jdpack.ledger.balance import Balance
from jdpack.market.grid import SHARE
from jdpack.privacy.accounting import Cost


@dataclass(frozen=True)
class ExactNumbers:
    """Private numbers of a run, for the curator's eyes only."""

    agents: int
    """How many records there are."""
    winners: int
    """How many of them get something."""
    mean_share: float | None
    """Of divisible goods: how much an agent gets of what it asks for, on average over all."""
    welfare: float
    """The total value of what is given."""
    loads: tuple[float, ...]
    """The load on each resource as a share of its supply."""
    clamped: int
    """How many numbers lay beyond the public bounds."""
    dropped: int
    """Winners that were dropped because the certified bound on loads failed."""


@dataclass(frozen=True)
class Progress:
    """How far a run is. Public numbers only."""

    rounds: int
    """How many there were."""
    done: float
    """The share of the records that is read; then of the budget that is spent, or of the rounds,
    where there is no budget or with batches."""
    stage: str = "rounds"
    """Or "reading", or "allocation"."""


@dataclass(frozen=True)
class Result:
    """What a run leaves. `billboard` and `certificate` are public, all else is private."""

    billboard: Billboard
    """Public: prices, noisy sums, the certificate and the seed of the coins."""
    spent: Cost
    """What the releases cost together."""
    engine: Engine = field(repr=False)
    """Private: where the encoded records are."""
    private: Allocation = field(repr=False)
    """Private: what is given, in sums of codes."""
    warning: SupplyWarning | None = None
    """Set if supply is too small for the budget; from public numbers."""
    balance: Balance | None = None
    """What the ledger says of the data set; None if nothing tracks what runs spend together."""

    @property
    def certificate(self) -> Certificate:
        """Public: what this run is proved to have achieved."""
        assert self.billboard.certificate is not None
        return self.billboard.certificate

    @cached_property
    def shares(self) -> NDArray[np.uint32]:
        """Private: the exact share of each row of the input, in units of 1/SHARE."""
        return self.engine.shares(self.billboard, self.private)

    @property
    def allocation(self) -> NDArray[Any]:
        """Private: what each row of the input gets, a fraction or, if indivisible, 0 or 1."""
        if self.billboard.header.market.divisible:
            return self.shares / SHARE
        return (self.shares > 0).astype(np.uint8)

    @property
    def loads(self) -> tuple[float, ...]:
        """Private: the load on each resource as a share of its supply, rounded up by the grid."""
        return self.curator.loads

    @property
    def welfare(self) -> float:
        """Private: the total value of what is given, to the precision of value codes."""
        return self.curator.welfare

    @property
    def curator(self) -> ExactNumbers:
        """Private: exact numbers for the curator's report."""
        return exact_numbers(self.engine, self.private)


def exact_numbers(engine: Engine, allocation: Allocation) -> ExactNumbers:
    """Private: what is given, in the units of the market."""
    market = engine.market
    supply, count = market.supply_code * SHARE, engine.count
    return ExactNumbers(
        agents=count,
        winners=allocation.winners,
        mean_share=allocation.shares / (count * SHARE) if market.divisible and count else None,
        welfare=allocation.value * market.value_step,
        loads=tuple(load / supply for load in allocation.loads),
        clamped=engine.clamped,
        dropped=allocation.dropped,
    )
