"""Public: how the budgets of several runs on the same people add up.

A data set has a total (epsilon, delta) for one neighbour relation. Entering it fixes two limits:
the runs' deltas may sum to A = delta / 2, and their rhos to R, the largest value for which R-zCDP
implies (epsilon, delta - A)-DP. A run with budget (epsilon_i, delta_i, rho_i, truncation_i, beta_i)
takes rho_i from R and delta_i + truncation_i from A. All sums are exact rationals.

Formal guarantees. Everything that the runs on a data set show together is (epsilon, delta)-jointly
DP, even if each run is chosen from what the earlier ones showed.

- The plain outcomes (before winners are dropped where supply would break) of runs chosen adaptively
  are T-approximately R-zCDP, with T the limit on the sum of truncations, by the filter theorem
  (Whitehouse, Ramdas, Rogers & Wu 2023, Theorem 1). It needs limits fixed in advance, hence the
  fixed split. Once a run has begun, only its own billboard steers it, so runs that overlap in time
  count as if each ended before the next began.
- Let D, D' be neighbours with plain outcomes P, Q, and E the event that no run's plain allocation
  breaks supply on D or on D'. Given the past, run i breaks on D with probability at most beta_i,
  and on D' with P at most e^epsilon_i beta_i + d_i, as Q is at most beta_i and the plain run is
  (epsilon_i, d_i)-DP with d_i = delta_of(rho_i, epsilon_i) + truncation_i. Both together are at
  most delta_i (`Budget`). So P(not E) is at most the sum of delta_i, by a union bound up to the
  first failure, since that sum is surely bounded.
- On E the repaired outcomes P', Q' are the plain ones in both worlds, and E is one set of outcomes:
  P'(S) <= P(S and E) + sum delta_i <= e^epsilon Q(S and E) + delta_of(R, epsilon) +
  sum truncation_i + sum delta_i <= e^epsilon Q'(S) + (delta - A) + A.

One exception: the first run may take up to the whole (epsilon, delta). Its own guarantee is then
the whole statement, and it is chosen before anything has been shown. If it takes more than R or A,
nothing fits after it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any

from opendp.mod import OpenDPException

from jdpack.errors import BudgetError
from jdpack.market.market import Neighbours
from jdpack.privacy.accounting import (
    REPAIR_SHARE,
    TRUNCATION_SHARE,
    Budget,
    delta_of,
    epsilon_of,
    rho_of,
)

_SLACK = 1.0 - 1e-12  # a limit must hold however another machine rounds its logarithms


@dataclass(frozen=True)
class Balance:
    """How much of a data set's budget is spent, and how much is left."""

    dataset: str
    """Its name."""
    neighbours: Neighbours
    """The neighbour relation that the total is for."""
    epsilon: float
    """The total epsilon."""
    delta: float
    """The total delta."""
    rho_limit: Fraction
    """R: the most that the runs' rhos may sum to."""
    delta_limit: Fraction
    """A: the most that the runs' deltas and truncations may sum to."""
    rho_spent: Fraction = Fraction(0)
    delta_spent: Fraction = Fraction(0)
    runs: int = 0
    """How many runs count: finished, or reserved and not cancelled."""
    open: tuple[str, ...] = ()
    """The runs that are reserved but not finished: under way, or crashed."""
    alone: tuple[float, float] | None = None
    """The (epsilon, delta) of the only run, if there is exactly one."""
    last: Budget | None = None
    """What the latest run reserved."""

    @classmethod
    def of(cls, dataset: str, epsilon: float, delta: float, neighbours: Neighbours) -> Balance:
        """The balance of a new data set."""
        if epsilon == math.inf:
            raise BudgetError("the total epsilon of a data set must be finite, not inf")
        Budget.split(epsilon, delta, truncated=False)  # refuses what makes no sense
        half = float(delta) / 2.0
        rho = rho_of(float(epsilon), half * _SLACK)
        return cls(dataset, neighbours, float(epsilon), float(delta), Fraction(rho), Fraction(half))

    @property
    def sound(self) -> bool:
        """Whether the limits prove the total."""
        if not (1e-6 <= self.epsilon <= 50.0 and 1e-100 <= self.delta < 1.0):
            return False
        rest = Fraction(self.delta) / 2
        return self.delta_limit == rest and _implies(float(self.rho_limit), self.epsilon, rest)

    @property
    def rho_left(self) -> Fraction:
        return max(Fraction(0), self.rho_limit - self.rho_spent)

    @property
    def delta_left(self) -> Fraction:
        return max(Fraction(0), self.delta_limit - self.delta_spent)

    @property
    def spent(self) -> tuple[float, float]:
        """The (epsilon, delta) of the runs so far; the total once everything is spent.

        This would hold if the runs and their budgets had been fixed beforehand. However they were
        chosen, the total holds: a filter proves its limit, not how much of it is used (Rogers,
        Roth, Ullman & Vadhan 2016 on odometers). Half of the total delta is for the conversion
        from rho, and counts as spent with the first run.
        """
        if self.runs == 0:
            return 0.0, 0.0
        if self.alone and (self.rho_spent > self.rho_limit or self.delta_spent > self.delta_limit):
            return self.alone
        rest = Fraction(self.delta) - self.delta_limit
        epsilon = epsilon_of(_up(self.rho_spent), float(rest))
        return min(epsilon, self.epsilon), min(float(rest + self.delta_spent), self.delta)

    def fits(self, budget: Budget) -> bool:
        """Whether a run of this budget fits now."""
        if self.runs == 0 and budget.epsilon <= self.epsilon and budget.delta <= self.delta:
            return True
        rho, delta = cost(budget)
        return (
            self.rho_spent + rho <= self.rho_limit and self.delta_spent + delta <= self.delta_limit
        )

    def how_many(self, budget: Budget) -> int:
        """How many runs of this budget fit, one after the other; exact.

        Each adds the same two numbers to the two sums, so if the k-th run stays within the limits,
        so do all before it. The very first run may exceed them.
        """
        check(budget)
        rho, delta = cost(budget)
        within = min(self.rho_left // rho, self.delta_left // delta)
        return max(within, int(self.fits(budget)))

    def plus(self, budget: Budget) -> Balance:
        """The balance after one more run, or BudgetError."""
        check(budget)
        if not self.fits(budget):
            raise BudgetError(*self._refusal(budget))
        return self._changed(budget, 1)

    def minus(self, budget: Budget) -> Balance:
        """The balance without one of its runs."""
        return self._changed(budget, -1)

    def _changed(self, budget: Budget, sign: int) -> Balance:
        rho, delta = cost(budget)
        return replace(
            self,
            rho_spent=self.rho_spent + sign * rho,
            delta_spent=self.delta_spent + sign * delta,
            runs=self.runs + sign,
        )

    def would_fit(self, budget: Budget) -> tuple[float, float] | None:
        """The largest epsilon that fits, to 3 digits, at the delta asked for or at what is left.

        None if almost nothing is left: a millionth of the limit on deltas is not worth a hint.
        """
        truncated = budget.truncation > 0.0
        if self.runs == 0:
            return self.epsilon, min(budget.delta, self.delta)
        share = TRUNCATION_SHARE if truncated else Fraction(0)
        delta = budget.delta
        if Fraction(delta) + Fraction(budget.truncation) > self.delta_left:
            delta = _down(float(self.delta_left / (1 + share)))
        if delta < max(1e-100, 1e-6 * self.delta_limit) or self.rho_left <= 0:
            return None
        try:
            rest = float(Fraction(delta) * (1 - REPAIR_SHARE - share))
            most = min(epsilon_of(float(self.rho_left), rest), self.epsilon)
        except OpenDPException:  # what is left is so little that it underflows
            return None
        for epsilon in (_down(most), _down(most * (1.0 - 5e-3))):
            if epsilon >= 1e-6 and self.fits(Budget.split(epsilon, delta, truncated=truncated)):
                return epsilon, delta
        return None

    def _refusal(self, budget: Budget) -> tuple[str, str]:
        epsilon, delta = self.spent
        fit = self.would_fit(budget)
        if fit is not None:
            hint = f"epsilon {fit[0]:g} at delta {fit[1]:g} would fit"
        elif Fraction(budget.delta) > self.delta_left and self.rho_left > self.rho_limit / 10**6:
            hint = "its delta is used up, of which runs may take half: choose theirs smaller"
        else:
            hint = "all of it is used up"
        return (
            f"a run of epsilon {budget.epsilon:g}, delta {budget.delta:g} does not fit data set "
            f"{self.dataset!r}: of ({self.epsilon:g}, {self.delta:g}), "
            f"({epsilon:.3g}, {delta:.3g}) is spent",
            f"{hint}; nothing was spent",
        )

    def to_dict(self) -> dict[str, Any]:
        """For programs: JSON numbers, and the exact sums as text."""
        epsilon, delta = self.spent
        return {
            "dataset": self.dataset,
            "neighbours": self.neighbours.value,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "epsilon_spent": epsilon,
            "delta_spent": delta,
            "rho_limit": float(self.rho_limit),
            "rho_spent": float(self.rho_spent),
            "rho_left": float(self.rho_left),
            "run_delta_limit": float(self.delta_limit),
            "run_delta_spent": float(self.delta_spent),
            "run_delta_left": float(self.delta_left),
            "exact": {"rho_spent": str(self.rho_spent), "run_delta_spent": str(self.delta_spent)},
            "runs": self.runs,
            "open": list(self.open),
        }


@functools.lru_cache(maxsize=4096)
def cost(budget: Budget) -> tuple[Fraction, Fraction]:
    """What a run takes from each of the two limits."""
    return Fraction(budget.rho), Fraction(budget.delta) + Fraction(budget.truncation)


def check(budget: Budget) -> None:
    """Refuse a budget that bounds nothing, or whose parts make no sense."""
    parts = (budget.epsilon, budget.delta, budget.rho, budget.beta)
    if math.inf in parts:
        raise BudgetError(
            "a run without privacy has no place in a ledger",
            "set --epsilon; without noise, use records that are not private, and no ledger",
        )
    if not all(0.0 < part < math.inf for part in parts) or not 0.0 <= budget.truncation < 1.0:
        raise BudgetError(f"{budget} is not a budget", "make it with Budget.split")


def proved(budget: Budget) -> bool:
    """Whether the parts of a budget prove its (epsilon, delta), as `Budget` claims."""
    if not (1e-6 <= budget.epsilon <= 50.0 and 1e-100 <= budget.delta < 1.0):
        return False
    if not (0.0 < budget.beta < 1.0 and 0.0 <= budget.truncation < 1.0):
        return False
    repair = (1.0 + math.exp(budget.epsilon)) * budget.beta * (1.0 + 1e-15)
    rest = Fraction(budget.delta) - Fraction(budget.truncation) - Fraction(repair)
    return _implies(budget.rho, budget.epsilon, rest)


@functools.lru_cache(maxsize=4096)
def _implies(rho: float, epsilon: float, delta: Fraction) -> bool:
    """Whether rho-zCDP implies (epsilon, delta)-DP."""
    try:
        return 0.0 < rho < 1e3 and delta_of(rho, epsilon) <= delta
    except OpenDPException:  # it gives up on numbers beyond any budget
        return False


def _up(x: Fraction) -> float:
    return math.nextafter(float(x), math.inf)


def _down(x: float) -> float:
    """To 3 significant digits, downwards."""
    return float(Context(prec=3, rounding=ROUND_FLOOR).create_decimal(Decimal(x)))
