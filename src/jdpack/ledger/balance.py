"""Public: how the budgets of several runs on the same people add up.

A data set has a total (epsilon, delta) for one neighbour relation, and an accounting. Entering it
fixes two limits: A for what the runs take from delta, and R for the sum of their rhos, the largest
value that implies (epsilon, delta - A)-DP by that accounting. All sums are exact rationals.

* "gdp": A = delta / 5. It takes runs with Gaussian noise, whose budgets are in GDP too. A run takes
  rho_i from R and beta_i from A.
* "zcdp": A = delta / 2. It takes every run. One whose budget is in zCDP takes rho_i from R and
  delta_i + truncation_i from A; one whose budget is in GDP takes rho_i and beta_i.

Formal guarantees. Everything that the runs on a data set show together is (epsilon, delta)-jointly
DP, even if each run is chosen from what the earlier ones showed.

L1. The plain outcomes (before winners are dropped where supply would break). Once a run has begun,
only its own billboard steers it, so runs that overlap in time count as if each ended before the
next began, and all releases of all runs are one adaptive sequence. Let d(R) be its delta at
epsilon.

  * "gdp": every release is Gaussian, their costs sum to at most R, and what it costs that they are
    discrete sums to at most gdp.TRANSFER_SHARE R, because both hold for each run and its rho_i. So
    d(R) = gdp.delta_of(R, epsilon) by G1 to G4 of `jdpack.privacy.gdp`.
  * "zcdp": every run is truncation_i-approximately rho_i-zCDP, one in GDP with truncation 0: its
    releases are discrete Gaussian, and rho means the same in both (`noise.Gaussian.cost`). By the
    filter theorem (Whitehouse, Ramdas, Rogers & Wu 2023, Theorem 1) all together are
    T-approximately R-zCDP, with T the limit on the sum of truncations. It needs limits fixed in
    advance, hence the fixed split. So d(R) = zcdp.delta_of(R, epsilon) + sum truncation_i.

L2. The repair. Let D, D' be neighbours with plain outcomes P, Q, and F_i the event that the plain
allocation of run i exceeds a supply, on D or on D'. Given the past, both P and Q give F_i at most
a_i:

  * A run that repairs nothing: F_i does not matter, and a_i = 0.
  * A run in GDP: a_i = beta_i (`Budget`, its precondition).
  * A run in zCDP: a_i = delta_i. It fails on D with probability at most beta_i. On D' it does so
    with Q at most beta_i, and the plain run is (epsilon_i, d_i)-DP, so with P at most
    e^epsilon_i beta_i + d_i. Both together are at most delta_i (`Budget`).

The sum of a_i is surely at most A - sum truncation_i, so it bounds the probability of F, the union
of all F_i, by a union bound up to the first failure.

L3. The sum. Outside F the repaired outcomes P', Q' are the plain ones in both worlds, and F is one
set of outcomes: P'(S) <= P(S without F) + sum a_i <= e^epsilon Q(S without F) + d(R) + sum a_i <=
e^epsilon Q'(S) + (delta - A) + A.

A data set in GDP refuses runs in zCDP: truncated Laplace noise is not Gaussian. Data sets entered
before there was a choice are in zCDP and stay so, because their runs do not say what noise they
had.

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

from jdpack.errors import BudgetError
from jdpack.market.market import Neighbours
from jdpack.privacy.accounting import (
    EPSILON_RANGE,
    REPAIR_SHARE,
    TRUNCATION_SHARE,
    Accounting,
    Budget,
    check_delta,
    delta_of,
    epsilon_of,
    rho_of,
    round_down,
)

_SLACK = 1.0 - 1e-12  # a limit in zCDP must hold however another machine rounds its logarithms

_DELTA_DIVISOR: dict[Accounting, float] = {"gdp": 5.0, "zcdp": 2.0}
"""A is delta divided by this. In GDP a run takes only 2/5 of its delta from A, so as many fit by
their deltas as with zCDP, and more of delta is left for the noise."""


@dataclass(frozen=True)
class Balance:
    """How much of a data set's budget is spent, and how much is left."""

    dataset: str
    """Its name."""
    neighbours: Neighbours
    """The neighbour relation that the total is for."""
    accounting: Accounting
    """How the runs' rhos become the total."""
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
    def of(
        cls,
        dataset: str,
        epsilon: float,
        delta: float,
        neighbours: Neighbours,
        accounting: Accounting = "gdp",
    ) -> Balance:
        """The balance of a new data set."""
        if epsilon == math.inf:
            raise BudgetError("the total epsilon of a data set must be finite, not inf")
        check_delta(Budget.split(epsilon, delta, truncated=False))  # refuses what makes no sense
        if accounting not in _DELTA_DIVISOR:
            raise BudgetError(f"accounting must be 'gdp' or 'zcdp', not {accounting!r}")
        epsilon, delta = float(epsilon), float(delta)
        runs = delta / _DELTA_DIVISOR[accounting]
        rest = round_down(Fraction(delta) - Fraction(runs))
        rho = rho_of(epsilon, rest if accounting == "gdp" else rest * _SLACK, accounting)
        limits = Fraction(rho), Fraction(runs)
        return cls(dataset, neighbours, accounting, epsilon, delta, *limits)

    @property
    def sound(self) -> bool:
        """Whether the limits prove the total."""
        least, most = EPSILON_RANGE
        if not (least <= self.epsilon <= most and 1e-100 <= self.delta < 1.0):
            return False
        if self.delta_limit != Fraction(self.delta / _DELTA_DIVISOR[self.accounting]):
            return False
        if self.rho_limit <= 0:
            return False
        rest = Fraction(self.delta) - self.delta_limit
        return delta_of(float(self.rho_limit), self.epsilon, self.accounting) <= rest

    @property
    def rho_left(self) -> Fraction:
        return max(Fraction(0), self.rho_limit - self.rho_spent)

    @property
    def delta_left(self) -> Fraction:
        return max(Fraction(0), self.delta_limit - self.delta_spent)

    @property
    def spent(self) -> tuple[float, float]:
        """The (epsilon, delta) of the runs so far; the total once everything is spent.

        This would hold if the runs and their budgets had been fixed in advance. However they were
        chosen, the total holds: a filter proves its limit, not how much of it is used (Rogers,
        Roth, Ullman & Vadhan 2016 on odometers). The part of the total delta that is not for
        the runs is for the conversion from rho, and counts as spent with the first run.
        """
        if self.runs == 0:
            return 0.0, 0.0
        if self.alone and (self.rho_spent > self.rho_limit or self.delta_spent > self.delta_limit):
            return self.alone
        rest = Fraction(self.delta) - self.delta_limit
        epsilon = epsilon_of(_up(self.rho_spent), round_down(rest), self.accounting)
        return min(epsilon, self.epsilon), min(float(rest + self.delta_spent), self.delta)

    def fits(self, budget: Budget) -> bool:
        """Whether a run of this budget fits now."""
        if not self.takes(budget):
            return False
        if self.runs == 0 and budget.epsilon <= self.epsilon and budget.delta <= self.delta:
            return True
        rho, delta = cost(budget)
        return (
            self.rho_spent + rho <= self.rho_limit and self.delta_spent + delta <= self.delta_limit
        )

    def takes(self, budget: Budget) -> bool:
        """Whether runs with such noise can be added up here at all."""
        return self.accounting == "zcdp" or budget.accounting == "gdp"

    def how_many(self, budget: Budget) -> int:
        """How many runs of this budget fit, one after the other; exact.

        Each adds the same two numbers to the two sums, so if the k-th run stays within the limits,
        so do all before it. The very first run may exceed them.
        """
        check(budget)
        if not self.takes(budget):
            return 0
        rho, delta = cost(budget)
        within = self.rho_left // rho
        if delta > 0:
            within = min(within, self.delta_left // delta)
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
        if not self.takes(budget):
            return None
        truncated = budget.accounting == "zcdp"
        if self.runs == 0:
            return self.epsilon, min(budget.delta, self.delta)
        share = TRUNCATION_SHARE if truncated else Fraction(0)
        delta, taken = budget.delta, 1 + share if truncated else REPAIR_SHARE
        if cost(budget)[1] > self.delta_left:
            delta = _down(float(self.delta_left / taken) * (1.0 - 1e-12))  # its parts are rounded
        if delta < max(1e-100, 1e-6 * self.delta_limit) or self.rho_left <= 0:
            return None
        rest = float(Fraction(delta) * (1 - REPAIR_SHARE - share))
        most = min(epsilon_of(float(self.rho_left), rest, budget.accounting), self.epsilon)
        for epsilon in (_down(most), _down(most * (1.0 - 5e-3))):
            if epsilon >= 1e-6 and self.fits(Budget.split(epsilon, delta, truncated=truncated)):
                return epsilon, delta
        return None

    def _refusal(self, budget: Budget) -> tuple[str, str]:
        if not self.takes(budget):
            return (
                f"data set {self.dataset!r} adds up Gaussian noise, and this run has truncated "
                "Laplace noise",
                "use another noise, or enter a data set with `jdpack ledger create --accounting "
                "zcdp`; nothing was spent",
            )
        epsilon, delta = self.spent
        fit = self.would_fit(budget)
        if fit is not None:
            hint = f"epsilon {fit[0]:g} at delta {fit[1]:g} would fit"
        elif cost(budget)[1] > self.delta_left and self.rho_left > self.rho_limit / 10**6:
            hint = "the part of its delta for runs is used up; a run of smaller delta takes less"
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
            "accounting": self.accounting,
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
    """What a run takes from each of the two limits (L1, L2)."""
    if budget.accounting == "gdp" or not budget.repaired:
        return Fraction(budget.rho), Fraction(budget.repair) + Fraction(budget.truncation)
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


def _up(x: Fraction) -> float:
    return math.nextafter(float(x), math.inf)


def _down(x: float) -> float:
    """Round down to 3 significant digits."""
    return float(Context(prec=3, rounding=ROUND_FLOOR).create_decimal(Decimal(x)))
