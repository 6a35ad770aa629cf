"""Public: what a policy is.

A policy is a pure function of the market and the billboard, and never sees a private number. It
folds over the releases on the billboard: `start` gives its state before the first release, `step`
the next release that it wants (or None to stop), and `observe` its state after one more. Verifying
or resuming a run is the same fold.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from jdpack.billboard.lines import Release, Step, is_local
from jdpack.common import checks
from jdpack.errors import MarketError
from jdpack.market.market import Market
from jdpack.privacy.accounting import Budget
from jdpack.privacy.tail_bounds import Outlook

State = TypeVar("State")


class Policy(Protocol[State]):
    """An algorithm: an immutable, hashable configuration and three pure functions."""

    @property
    def truncated(self) -> bool:
        """Whether it asks for noise with moving support, which needs a part of delta."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Its name and parameters, for the billboard's header."""
        ...

    def outlook(self, market: Market, budget: Budget) -> Outlook: ...

    def start(self, market: Market, budget: Budget) -> State: ...

    def step(self, state: State) -> Step | None: ...

    def observe(self, state: State, release: Release) -> State: ...


def budget_of(policy: Policy[Any], market: Market, epsilon: float, delta: float) -> Budget:
    """How a run of a policy in a market splits (epsilon, delta)."""
    local = is_local(policy.to_dict())
    return Budget.split(
        epsilon,
        delta,
        truncated=policy.truncated,
        repaired=not local,
        excess=None if local else market.excess_probability,
    )


def check_alpha(alpha: object) -> None:
    """Refuse an alpha that makes no sense."""
    if not isinstance(alpha, float) or not 1e-3 <= alpha <= 0.5:
        raise MarketError(
            f"alpha must be from 0.001 to 0.5, not {checks.quoted(alpha)}",
            "it is the additive loss to aim for, as a fraction of n times the value cap",
        )
