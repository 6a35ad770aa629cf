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
from jdpack.errors import SupplyWarning
from jdpack.ledger.balance import Balance
from jdpack.market.grid import SHARE
from jdpack.privacy.accounting import Cost


@dataclass(frozen=True)
class ExactNumbers:
    """Private: the exact numbers of a run, for the curator only."""

    agents: int
    """How many records there are."""
    winners: int
    """How many of them get something."""
    mean_share: float | None
    """Divisible goods: the share of its option that an agent gets, on average over all."""
    welfare: float
    """The total value of what is given out."""
    loads: tuple[float, ...]
    """The load on each resource as a fraction of its supply."""
    clamped: int
    """How many numbers were beyond the public bounds."""
    dropped: int
    """How many winners were dropped because the certified bound on loads failed."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come. Public numbers only."""

    rounds: int
    """How many rounds have been played."""
    done: float
    """The fraction of the records read; then of the budget spent, or of the rounds played if there
    is no budget or with batches."""
    stage: str = "rounds"
    """One of "reading", "rounds" and "allocation"."""

    @property
    def label(self) -> str:
        """What is being computed."""
        return f"round {self.rounds}" if self.stage == "rounds" else self.stage


@dataclass(frozen=True)
class Result:
    """What a run gives back. `billboard` and `certificate` are public, the rest is private."""

    billboard: Billboard
    """Public: prices, noisy sums, the certificate and the seed of the coins."""
    spent: Cost
    """What all releases cost together."""
    engine: Engine = field(repr=False)
    """Private: where the encoded records are."""
    private: Allocation = field(repr=False)
    """Private: what is given out, as sums of codes."""
    warning: SupplyWarning | None = None
    """Set if supply is too small for the budget; from public numbers."""
    balance: Balance | None = None
    """What the ledger says about the data set; None if the run has no ledger."""

    @property
    def certificate(self) -> Certificate:
        """Public: what this run is proved to have achieved."""
        assert self.billboard.certificate is not None
        return self.billboard.certificate

    @cached_property
    def shares(self) -> NDArray[np.uint32]:
        """Private: the exact share of each input row, in units of 1/SHARE."""
        return self.engine.shares(self.billboard, self.private)

    @property
    def allocation(self) -> NDArray[Any]:
        """Private: the share that each input row gets; 0 or 1 if goods are indivisible."""
        if self.billboard.header.market.divisible:
            return self.shares / SHARE
        return (self.shares > 0).astype(np.uint8)

    @property
    def loads(self) -> tuple[float, ...]:
        """Private: each resource's load as a fraction of its supply, rounded up by the grid."""
        return self.curator.loads

    @property
    def welfare(self) -> float:
        """Private: the total value of what is given out, to the precision of value codes."""
        return self.curator.welfare

    @property
    def curator(self) -> ExactNumbers:
        """Private: exact numbers for the curator's report."""
        return exact_numbers(self.engine, self.private)


def exact_numbers(engine: Engine, allocation: Allocation) -> ExactNumbers:
    """Private: what is given out, in the units of the market."""
    market = engine.market
    count, supplies = engine.count, market.supply_codes
    return ExactNumbers(
        agents=count,
        winners=allocation.winners,
        mean_share=allocation.shares / (count * SHARE) if market.divisible and count else None,
        welfare=allocation.value * market.value_step,
        loads=tuple(
            load / (supply * SHARE) for load, supply in zip(allocation.loads, supplies, strict=True)
        ),
        clamped=engine.clamped,
        dropped=allocation.dropped,
    )
