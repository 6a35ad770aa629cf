"""Private: what a run gives back, with the exact numbers that only the curator may see."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Certificate
from jdpack.common import notebook
from jdpack.common.by_name import ByName
from jdpack.engines.base import Allocation, Engine
from jdpack.errors import OutputError, SupplyWarning
from jdpack.ledger.balance import Balance
from jdpack.market.grid import SHARE
from jdpack.privacy.accounting import Cost

if TYPE_CHECKING:
    from jdpack.records.source import Source


@dataclass(frozen=True)
class ExactNumbers:
    """Private: the exact numbers of a run, for the curator only."""

    agents: int
    """How many records there are."""
    requests: int
    """How many requests they make."""
    winners: int
    """How many requests get something."""
    mean_share: float | None
    """Divisible goods: the share of its option that a request gets, on average over all."""
    welfare: float
    """The total value of what is given out."""
    loads: tuple[float, ...]
    """The load on each resource as a fraction of its supply."""
    clamped: int
    """How many numbers were beyond the public bounds, and requests left out."""
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
    source: Source | None = field(default=None, repr=False)
    """Private: where the records come from."""

    def __repr__(self) -> str:
        market, curator = self.billboard.header.market, self.curator
        who = "agents" if market.requests == 1 else "requests"
        return (
            f"Result({market.name!r}, {curator.winners:,} of {curator.requests:,} {who} get some)"
        )

    def _repr_html_(self) -> str:
        market, curator, number = self.billboard.header.market, self.curator, notebook.number
        who = "agents" if market.requests == 1 else "requests"
        facts = [
            "For the curator only: do not publish.",
            f"{curator.winners:,} of {curator.requests:,} {who} get something, worth "
            f"{number(curator.welfare)} in total.",
        ]
        if not self.billboard.header.private:
            facts.append(f"Not private: {self.billboard.header.why_not_private}.")
        rows = [
            (r.name, f"{number(r.supply)} {r.unit}".strip(), number(price), f"{load:.1%}")
            for r, price, load in zip(market.resources, self.prices, self.loads, strict=True)
        ]
        head = ("resource", "supply", "price of a unit", "given")
        return notebook.sheet(market.name, facts, head, rows)

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

    def to_frame(self) -> Any:
        """Private: who gets how much of what, as a table of pandas or polars.

        One row for each resource of every option that is granted, in whole or in part: the table's
        own id, the name of the request if agents may make several, the option (its own name in long
        tables, otherwise its number from 1) if there may be several, the resource, the amount and
        its unit. Join it to your table by the id; whoever has no row gets nothing. It is a table of
        polars if the records are, or if there is no pandas.
        """
        from jdpack.run import granted  # only here: a public report needs no reader of tables

        if self.source is None:
            raise OutputError(
                "to_frame() needs the records, and those of this run stay in their database",
                "private/allocation.parquet has the ids of those who get something: join it there",
            )
        table = granted.whole(self.source, self.shares)
        polars = type(self.source.agents).__module__.partition(".")[0] == "polars"
        for library in ("polars", "pandas") if polars else ("pandas", "polars"):
            with contextlib.suppress(ImportError):
                frames = importlib.import_module(library)
                return table.to_pandas() if library == "pandas" else frames.from_arrow(table)
        raise OutputError("to_frame() needs pandas or polars", "pip install pandas")

    @property
    def prices(self) -> ByName:
        """Public: the final price of a unit of each resource, by name. Nobody pays it."""
        return self.billboard.prices

    @property
    def loads(self) -> ByName:
        """Private: each resource's load as a fraction of its supply, by name.

        It is rounded up by the grid.
        """
        names = [r.name for r in self.billboard.header.market.resources]
        return ByName(names, self.curator.loads)

    @property
    def slacks(self) -> ByName:
        """Private: what is left of each supply, in its own unit, by name."""
        resources = self.billboard.header.market.resources
        left = [(1.0 - x) * r.supply for x, r in zip(self.loads, resources, strict=True)]
        return ByName([r.name for r in resources], left)

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
    count, supplies = engine.requests, market.supply_codes
    return ExactNumbers(
        agents=engine.count,
        requests=count,
        winners=allocation.winners,
        mean_share=allocation.shares / (count * SHARE) if market.divisible and count else None,
        welfare=allocation.value * market.value_step,
        loads=tuple(
            load / (supply * SHARE) for load, supply in zip(allocation.loads, supplies, strict=True)
        ),
        clamped=engine.clamped,
        dropped=allocation.dropped,
    )
