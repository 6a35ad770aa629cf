"""Public: what privacy costs. Budgets, the zCDP filter, and (epsilon, delta) <-> rho.

Every release is delta_t-approximately rho_t-zCDP (Bun & Steinke 2016, Definition 8.1), with rho_t
and delta_t chosen from the public history. A privacy filter keeps the sums of both below the
budget. It composes adaptively chosen mechanisms at no extra cost over fixed ones (Whitehouse,
Ramdas, Rogers & Wu 2023, Theorem 1). The sums are exact rationals.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from jdpack.common.batches import Batch
from jdpack.errors import BudgetError, BudgetWarning

_GRAIN = 2**100  # charges are rounded up to multiples of 2^-100, and summed as whole numbers

REPAIR_SHARE = Fraction(2, 5)
"""The part of delta for the event that the certified bound fails and winners are dropped.

For common budgets the certified margin is smallest here: a larger part leaves less rho for the
noise, a smaller one needs a wider bound. The minimum is flat: from 0.2 to 0.6 it changes by 1%."""

EPSILON_RANGE = 1e-6, 50.0
"""The epsilons of budgets that protect somebody."""

EPSILON_MOST = 4.0
"""Above this epsilon little is hidden: a guess that was 1% likely may become 36% likely."""

DELTA_MOST = 0.01
"""No run may call itself private with a larger delta."""

REVEALED_MOST = 0.1
"""The most for delta times the number of agents. A run that publishes each record with probability
delta keeps an (epsilon, delta) promise, so above this the promise need not protect everybody."""

TRUNCATION_SHARE = Fraction(1, 4)
"""The part of delta for noise whose support moves with the data (truncated Laplace only)."""


def delta_of(rho: float, epsilon: float) -> float:
    """The smallest delta for which rho-zCDP implies (epsilon, delta)-DP, rounded up.

    Canonne, Kamath & Steinke 2020, Proposition 12: the minimum over a > 1 of
    exp((a - 1)(a rho - epsilon)) (1 - 1/a)^a / (a - 1), as computed by OpenDP.
    """
    # A Gaussian of scale 1 at sensitivity s is (s^2 / 2)-zCDP; one step up keeps it above rho.
    sensitivity = math.nextafter(math.sqrt(2.0 * rho), math.inf)
    return float(_conversion().map(sensitivity).delta(epsilon))


def epsilon_of(rho: float, delta: float) -> float:
    """The smallest epsilon for which rho-zCDP implies (epsilon, delta)-DP, rounded up."""
    sensitivity = math.nextafter(math.sqrt(2.0 * rho), math.inf)
    return float(_conversion().map(sensitivity).epsilon(delta))


@functools.lru_cache(maxsize=64)
def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho (to one part in 10^12, from below) that implies (epsilon, delta)-DP."""
    # Start from the classical conversion, sqrt(rho) < sqrt(l + epsilon) - sqrt(l), l = ln(1/delta),
    # which is weaker. Doubling finds an upper end; bisection returns the private side.
    tail = math.log(1.0 / delta)
    low = (math.sqrt(tail + epsilon) - math.sqrt(tail)) ** 2 / 2.0
    high = 2.0 * low
    while delta_of(high, epsilon) <= delta:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * low:
        middle = (low + high) / 2.0
        low, high = (middle, high) if delta_of(middle, epsilon) <= delta else (low, middle)
    return low


@functools.cache
def _conversion() -> Any:
    # Imported at first use: reading a billboard converts nothing and need not wait for OpenDP.
    from opendp.combinators import make_zCDP_to_approxDP
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    space = vector_domain(atom_domain(T="i64")), l2_distance(T="f64")
    return make_zCDP_to_approxDP(make_gaussian(*space, scale=1.0))


@dataclass(frozen=True)
class Budget:
    """How (epsilon, delta) is split. Public, and part of the billboard's header.

    Formal guarantees. Let the releases together be `truncation`-approximately rho-zCDP. Then they
    are (epsilon, d)-DP with d = delta_of(rho, epsilon) + truncation (Bun & Steinke 2016, Lemma
    8.8). What each agent gets is a function of its own record and the billboard, except in an event
    of probability at most beta, in which winners are dropped to stay within the supply. For
    neighbours with plain outcomes P, Q and repaired outcomes P', Q': P'(S) <= P(S) + beta <=
    e^epsilon Q(S) + d + beta <= e^epsilon (Q'(S) + beta) + d + beta. So the repaired allocation is
    (epsilon, d + (1 + e^epsilon) beta)-jointly DP. `split` makes this at most delta.
    """

    epsilon: float
    """The epsilon of the whole promise; inf if there is no privacy."""
    delta: float
    """The delta of the whole promise."""
    rho: float
    """What all releases together may cost, in zCDP."""
    truncation: float
    """The part of delta for noise whose support moves with the data."""
    beta: float
    """A bound on the probability that winners must be dropped to stay within the supply."""

    @classmethod
    def split(cls, epsilon: float, delta: float, *, truncated: bool) -> Budget:
        """Split (epsilon, delta); `truncated` reserves delta for noise with moving support."""
        for what, value in [("epsilon", epsilon), ("delta", delta)]:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BudgetError(f"{what} must be a number, not {value!r}")
        least, most = EPSILON_RANGE
        if not least <= epsilon <= most and epsilon != math.inf:
            raise BudgetError(
                f"epsilon must be from 1e-6 to {most:g}, or inf for no privacy, not {epsilon!r}",
                "1 is a common choice; smaller is more private",
            )
        if not 1e-100 <= delta < 1.0:
            raise BudgetError(
                f"delta must be above 0 (at least 1e-100) and below 1, not {delta!r}",
                "choose it well below 1 / number of agents, such as 1e-8",
            )
        whole = Fraction(delta)
        if epsilon == math.inf:
            return cls(epsilon, float(delta), math.inf, 0.0, float(REPAIR_SHARE * whole))
        truncation = float(TRUNCATION_SHARE * whole) if truncated else 0.0
        beta = float(REPAIR_SHARE * whole) / (1.0 + math.exp(epsilon)) * (1.0 - 1e-12)
        rest = whole - Fraction(truncation) - REPAIR_SHARE * whole
        rho = rho_of(epsilon, float(rest) * (1.0 - 1e-12))
        return cls(float(epsilon), float(delta), rho, truncation, beta)

    def epsilon_of_group(self, agents: int) -> float | None:
        """The epsilon of the billboard for several agents at once, at the same delta.

        None for noise whose support moves with the data: the bound needs zCDP without a delta.

        Formal guarantees. The releases are rho-zCDP for one agent, hence g^2 rho-zCDP for g agents
        (Bun & Steinke 2016, Proposition 1.9). The result is stated at the whole delta, because a
        repair changes only the allocation, not the billboard. `delta_of_group` covers both.
        """
        if self.truncation > 0.0:
            return None
        return epsilon_of(math.nextafter(agents**2 * self.rho, math.inf), self.delta)

    def delta_of_group(self, agents: int) -> float:
        """The delta of the whole promise for g agents at once, at g times epsilon.

        Formal guarantees. Change the g records one by one. Each change costs a factor e^epsilon
        and adds delta, so P_0(S) <= e^epsilon P_1(S) + delta <= ... <=
        e^(g epsilon) P_g(S) + (1 + e^epsilon + ... + e^((g - 1) epsilon)) delta. This holds for
        every (epsilon, delta) promise, so for the repaired allocation and for any noise.
        """
        terms = (math.exp(min(i * self.epsilon, 700.0)) for i in range(agents))
        return min(1.0, math.fsum(terms) * self.delta * (1.0 + 1e-12))


def check_delta(budget: Budget) -> None:
    """Refuse a delta that is too large for a run that calls itself private."""
    if budget.epsilon != math.inf and budget.delta > DELTA_MOST:
        raise BudgetError(
            f"delta must be at most {DELTA_MOST:g}, not {budget.delta:g}: with that probability "
            "everything may be revealed",
            "choose it well below 1 / number of agents, such as 1e-8",
        )


def weakness(budget: Budget, agents: int) -> BudgetWarning | None:
    """The warning that a budget promises little, if it does; a function of public numbers."""
    found, hints = [], []
    if budget.epsilon == math.inf:
        return None
    if budget.epsilon > EPSILON_MOST:
        found.append(f"epsilon {budget.epsilon:g} is above {EPSILON_MOST:g}, so little is hidden")
        hints.append("an epsilon of 1 is a common choice")
    if budget.delta * agents > REVEALED_MOST:
        found.append(
            f"delta {budget.delta:g} is not well below 1 / {agents:,} agents: a run that reveals "
            f"{budget.delta * agents:.2g} records on average would keep this promise"
        )
        enough = 10.0 ** math.floor(math.log10(REVEALED_MOST / agents))
        hints.append(f"choose a delta of {enough:g} or less")
    return BudgetWarning("; ".join(found), "; ".join(hints)) if found else None


@dataclass(frozen=True)
class Cost:
    """What one release costs: it is delta-approximately rho-zCDP."""

    rho: Fraction | float
    """A rational, or inf for an answer without noise."""
    delta: Fraction = Fraction(0)
    """Positive only if the support of the noise moves with the data."""


class Filter:
    """Keeps the sum of all charges within the budget, always.

    Formal guarantees. `charge` is called before anything is drawn. It refuses if the sum would
    exceed the budget in either coordinate, and a refusal changes nothing.

    Batches of one public partition of the agents compose in parallel. Neighbours differ in one
    agent. Given the releases so far, a release about a batch without that agent has the same
    distribution for both neighbours, so it costs nothing between them. What is spent is therefore
    the cost of the releases about all agents, plus the largest total cost of those about any one
    batch. For every pair of neighbours, that sum bounds the adaptively chosen costs, as the filter
    requires.
    """

    def __init__(self, budget: Budget, spent: Cost | None = None) -> None:
        self.budget = budget
        self._limits = _grains(Cost(budget.rho, Fraction(budget.truncation)), math.floor)
        self._of_all = _grains(spent) if spent else _Grains(0, 0)
        self._of_batches: dict[Batch, _Grains] = {}
        self._most = _Grains(0, 0)
        """The largest total cost of the releases about any one batch."""

    @property
    def spent(self) -> Cost:
        rho, delta = self._of_all.plus(self._most)
        return Cost(rho if rho == math.inf else Fraction(int(rho), _GRAIN), Fraction(delta, _GRAIN))

    def charge(self, cost: Cost, batch: Batch | None = None) -> None:
        """Spend `cost` on all agents or one batch, or raise BudgetError and spend nothing."""
        if cost.rho <= 0 or cost.delta < 0:
            raise BudgetError(f"a release must cost something, not rho = {float(cost.rho):.3g}")
        of_all, of_batch, most = self._of_all, _Grains(0, 0), self._most
        if batch is None:
            of_all = of_all.plus(_grains(cost))
        else:
            if self._of_batches and next(iter(self._of_batches)).count != batch.count:
                raise BudgetError("batches from two partitions do not compose in parallel")
            of_batch = self._of_batches.get(batch, of_batch).plus(_grains(cost))
            most = _Grains(max(most.rho, of_batch.rho), max(most.delta, of_batch.delta))
        spent, asked = self._of_all.plus(self._most), of_all.plus(most)
        for what, more, so_far, limit in zip(
            _Grains._fields, asked, spent, self._limits, strict=True
        ):
            if more > limit:
                raise BudgetError(
                    f"a release that costs {what} = {(more - so_far) / _GRAIN:.3g} would exceed "
                    f"the budget: {(limit - so_far) / _GRAIN:.3g} of {limit / _GRAIN:.3g} is left",
                    "nothing was spent on it",
                )
        self._of_all, self._most = of_all, most
        if batch is not None:
            self._of_batches[batch] = of_batch


class _Grains(NamedTuple):
    """A cost in units of 1 / _GRAIN; rho may be inf."""

    rho: int | float
    delta: int

    def plus(self, other: _Grains) -> _Grains:
        return _Grains(self.rho + other.rho, self.delta + other.delta)


@functools.lru_cache(maxsize=64)
def _grains(cost: Cost, round: Callable[[Fraction], int] = math.ceil) -> _Grains:
    rho = math.inf if cost.rho == math.inf else round(Fraction(cost.rho) * _GRAIN)
    return _Grains(rho, round(cost.delta * _GRAIN))


def round_up(x: Fraction) -> Fraction:
    """Round a cost up as the filter does."""
    return Fraction(math.ceil(x * _GRAIN), _GRAIN)
