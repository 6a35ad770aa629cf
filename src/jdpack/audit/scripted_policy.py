"""Private: a policy that asks every query, at prices where every agent responds.

The policies of jdpack reach such prices late, or never in a small market, and none asks every
query. What holds for this policy's queries holds for all, because claims do not depend on who asks.
It is not for users: only an audit knows it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from jdpack.billboard.lines import Release, Step
from jdpack.common.batches import Batch
from jdpack.market.grid import DEMAND_CODE_MAX, PRICE_UNITS_PER_VALUE_CODE
from jdpack.market.market import Market
from jdpack.policies import registry
from jdpack.privacy import queries
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import Gaussian, gaussian
from jdpack.privacy.queries import Query
from jdpack.privacy.tail_bounds import Outlook, rounds_rho

LEVELS = (0.0, 0.2, 0.5)
"""The cost of the largest bundle at equal prices, as a fraction of the largest value."""
ALL: tuple[Query, ...] = ("demand", "scale", "value", "gauge", "curvature")


@dataclass(frozen=True)
class Script:
    """Asks the same queries at each price level, of all agents or of one batch per level.

    With batches, the answer of every second level also holds the batch before.
    """

    levels: tuple[float, ...] = LEVELS
    queries: tuple[Query, ...] = ALL
    batch: bool = False
    uneven: bool = True
    """Whether half of the resources cost nothing at every second level."""
    shaped: bool = True
    """Whether the demand noise of every second level differs between resources."""
    grants: str = "measured"

    name: ClassVar[str] = "audit-script"
    truncated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # A header has lists.
        object.__setattr__(self, "levels", tuple(self.levels))
        object.__setattr__(self, "queries", tuple(self.queries))

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "levels": list(self.levels),
            "queries": list(self.queries),
            "uneven": self.uneven,
            "shaped": self.shaped,
            **({"batch": True} if self.batch else {"grants": self.grants}),  # headers look for it
        }

    def outlook(self, market: Market, budget: Budget) -> Outlook:
        count = len(self.levels)
        (scale,) = self._noise("demand", market, budget, (1.0,)).scales
        return Outlook(
            rounds_at_most=count,
            variance=count * scale * scale,
            peak=scale,
            weight=1 if self.batch else count,
            scales=(scale,) * count,
            batches=count if self.batch else None,
        )

    def start(self, market: Market, budget: Budget) -> tuple[Step, ...]:
        found = []
        for at, level in enumerate(self.levels):
            prices = _prices(market, level, uneven=self.uneven and at % 2 == 1)
            shape = _shape(market, at) if self.shaped and at % 2 == 1 else (1.0,)
            for query in self.queries:
                own = shape if query == "demand" else (1.0,)
                step = Step(query, prices, self._noise(query, market, budget, own))
                if query == "demand":
                    batch = Batch(at, len(self.levels)) if self.batch else None
                    span = 2 if self.batch and at % 2 == 1 else 1
                    step = replace(step, weight=1, batch=batch, span=span)
                found.append(step)
        return tuple(found)

    def step(self, state: tuple[Step, ...]) -> Step | None:
        return state[0] if state else None

    def observe(self, state: tuple[Step, ...], release: Release) -> tuple[Step, ...]:
        return state[1:]

    def _noise(
        self, query: Query, market: Market, budget: Budget, shape: tuple[float, ...]
    ) -> Gaussian:
        count = 2 if self.batch else len(self.levels) * len(self.queries)
        rho = rounds_rho(market, budget, batches=self.batch, measured=True) / count * (1.0 - 1e-9)
        noise = gaussian(queries.change(market, query), rho, shape)
        assert isinstance(noise, Gaussian), "an audit needs a finite budget"
        return noise


GREEDY = Script((0.0,), ("demand",))
"""One question, at prices of 0: within a budget, nobody can learn more about one agent."""
HALF = Script((0.0, 0.25, 0.5, 1.0), ("demand",))
"""Agents take something in some of the rounds, some in exactly half of them, so coins decide."""
BATCHES = Script((0.0, 0.2, 0.0), ("demand",), batch=True)
STILL = Script((0.3, 0.3001, 0.3003, 0.6, 0.6005, 0.5999, 0.3, 0.3002, 0.2999), uneven=False)
"""Prices that hardly move, jump, and come back, so agents are screened repeatedly."""


def _prices(market: Market, level: float, *, uneven: bool) -> tuple[int, ...]:
    worth = market.value_cap_code * PRICE_UNITS_PER_VALUE_CODE
    price = int(level * worth / (DEMAND_CODE_MAX * market.bundle_size))
    m = len(market.resources)
    return tuple(0 if uneven and 2 * j >= m else price for j in range(m))


def _shape(market: Market, level: int) -> tuple[float, ...]:
    """Noise that is largest for the first resource, and later for the second."""
    scales = (3.0, 1.0, 2.0) if level % 4 == 1 else (1.0, 5.0, 4.0)
    return tuple(scales[j % 3] for j in range(len(market.resources)))


@contextlib.contextmanager
def known(kind: type[Any]) -> Iterator[None]:
    """Let the pipeline accept a policy of the audit's own for a while."""
    before = dict(registry.KINDS)
    registry.KINDS[kind.name] = kind
    try:
        yield
    finally:
        registry.KINDS.clear()
        registry.KINDS.update(before)
