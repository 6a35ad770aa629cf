"""Public: what each of several runs on the same people gets from one total.

A ledger adds up what runs spend (`jdpack.ledger.balance`). If there are to be N runs, each may take
one N-th of both of its limits. Costs grow with the square of epsilon, so each run gets far more
than one N-th of the total epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from jdpack.common import checks
from jdpack.errors import BudgetError
from jdpack.ledger.balance import Balance
from jdpack.market.market import Market, Neighbours
from jdpack.pages.number_text import short_percent
from jdpack.planning.headroom import margin_at
from jdpack.policies.base import Policy
from jdpack.policies.newton import Newton
from jdpack.privacy.accounting import Budget

RUNS_MAX = 10**6


@dataclass(frozen=True)
class SeveralRuns:
    """How a total is divided among runs of one size, and what that costs each of them."""

    runs: int
    """How many runs there are."""
    epsilon: float
    """The epsilon of all runs together."""
    delta: float
    """The delta of all runs together."""
    each: tuple[float, float]
    """The epsilon and the delta of each run."""
    margin: float | None
    """The share of each supply that each run keeps free."""
    margin_warm: float | None
    """The same after a warm start from the run before; None if the policy has none."""
    margin_alone: float | None
    """The same for one run that takes the whole total."""

    def lines(self) -> Iterator[str]:
        """What the plan prints before the plan of one run."""
        epsilon, delta = self.each
        yield (
            f"{self.runs:,} runs on the same people, epsilon {self.epsilon:g} and delta "
            f"{self.delta:g} together"
        )
        yield f"  each       epsilon {epsilon:g}, delta {delta:g}; a ledger keeps the total"
        yield f"  margin     {_share(self.margin)}, the share of each supply that each keeps free"
        if self.margin_warm is not None:
            yield f"             {_share(self.margin_warm)} after a warm start from the run before"
        yield f"             {_share(self.margin_alone)} for a single run with the whole total"
        yield "one of these runs:"


def several_runs(
    market: Market, policy: Policy[Any], runs: int, epsilon: float, delta: float
) -> SeveralRuns:
    """Divide a total among runs of one size."""
    each = divided(checks.count("runs", runs, RUNS_MAX), epsilon, delta, policy)
    margin = margin_at(market, policy, *each)
    warm = None
    if isinstance(policy, Newton):
        started = Newton(start_prices=(1.0,) * len(market.resources))
        warm = margin_at(market, started, *each)
    alone = margin_at(market, policy, epsilon, delta)
    return SeveralRuns(int(runs), float(epsilon), float(delta), each, margin, warm, alone)


def divided(runs: int, epsilon: float, delta: float, policy: Policy[Any]) -> tuple[float, float]:
    """The largest budget, to 3 digits, of which as many runs fit into a total."""
    if epsilon == math.inf:
        raise BudgetError("several runs need a finite total epsilon, not inf")
    asked = Budget.split(epsilon, delta, truncated=policy.truncated)
    if runs == 1:
        return asked.epsilon, asked.delta
    total = Balance.of("", epsilon, delta, Neighbours.REPLACE_ONE, asked.accounting)
    part = replace(
        total, rho_limit=total.rho_limit / runs, delta_limit=total.delta_limit / runs, runs=1
    )
    found = part.would_fit(asked)
    if found is None:
        raise BudgetError(
            f"epsilon {epsilon:g}, delta {delta:g} is too little for {runs:,} runs",
            "plan fewer runs, or a larger total",
        )
    return found


def _share(margin: float | None) -> str:
    return "no run is possible" if margin is None else short_percent(margin)
