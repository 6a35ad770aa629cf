"""Public: what privacy costs. Budgets, and the filter that keeps a run within its budget.

Every release costs rho_t and delta_t, chosen from the public history. A privacy filter keeps the
sums of both below the budget, as exact rationals. It composes adaptively chosen releases at no
extra cost over fixed ones. There are two ways to turn the sum of rho_t into (epsilon, delta), and a
budget says which one it uses:

* "gdp", for Gaussian noise: the exact trade-off of the normal distribution (`jdpack.privacy.gdp`).
* "zcdp", for any noise: release t is delta_t-approximately rho_t-zCDP (Bun & Steinke 2016,
  Definition 8.1; the filter is Theorem 1 of Whitehouse, Ramdas, Rogers & Wu 2023). Runs with
  truncated Laplace noise use it.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from jdpack.common.batches import Batch
from jdpack.errors import BudgetError, BudgetWarning
from jdpack.privacy import gdp, zcdp

Accounting = Literal["zcdp", "gdp"]
"""How costs become (epsilon, delta)."""

_GRAIN = 2**100  # charges are rounded up to multiples of 2^-100, and summed as whole numbers

REPAIR_SHARE = Fraction(2, 5)
"""The part of delta for the event that the certified bound fails and winners are dropped.

A larger part leaves less rho for the noise, a smaller one needs a wider bound. The share with the
smallest margin is between 0.32 and 0.56 for epsilon from 0.1 to 8, delta from 1e-10 to 1e-6 and 1
to 100 resources. At 2/5 the margin is at most 0.35% above its minimum for all of them."""

EXACT_BETA = 1e-2
"""How often a run without privacy may have to drop winners: nothing is hidden that could leak."""

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


@dataclass(frozen=True)
class Budget:
    """How (epsilon, delta) is split. Public, and part of the billboard's header.

    Formal guarantees. Without a repair, what each agent gets is a function of its own record and
    the billboard, so by the billboard lemma the plain allocation is (epsilon, d)-jointly DP, where
    d = delta_of(rho, epsilon) + truncation: `gdp.delta_of` or `zcdp.delta_of` (and Bun & Steinke
    2016, Lemma 8.8, for truncated noise). If the plain allocation exceeds a supply, winners are
    dropped.

    With "gdp" the repair costs beta. Let D and D' be neighbours with plain outcomes P, Q and
    repaired outcomes P', Q', and let F be the set of billboards and coins on which the plain
    allocation of D or of D' exceeds a supply. **Precondition**: P(F) and Q(F) are at most beta. The
    certificate ensures that. One event of probability at most beta must contain both failures. The
    loads of D and D' differ by at most one cap, so a bound that leaves one more cap C_j free than D
    needs also covers D' (`jdpack.protocol.bounds`). Outside F nothing is repaired, neither on D nor
    on D', and F is the same set for both. So for any set S of what all others get, P'(S) <= P(S
    without F) + beta <= e^epsilon Q(S without F) + d + beta <= e^epsilon Q'(S) + d + beta.

    With "zcdp" beta bounds P(plain D exceeds a supply) alone, and the repair costs
    (1 + e^epsilon) beta: P'(S) <= P(S) + beta <= e^epsilon Q(S) + d + beta <= e^epsilon (Q'(S) +
    beta) + d + beta.

    `split` makes d plus the cost of the repair at most delta. In a local run nobody sees what the
    agents get, and nothing is repaired: all of delta is for the noise, and beta is only the
    probability with which the certificate may fail.
    """

    epsilon: float
    """The epsilon of the whole promise; inf if there is no privacy."""
    delta: float
    """The delta of the whole promise."""
    rho: float
    """What all releases together may cost: the sum of sensitivity^2 / (2 scale^2)."""
    truncation: float
    """The part of delta for noise whose support moves with the data."""
    beta: float
    """A bound on the probability that winners must be dropped to stay within the supply."""
    accounting: Accounting = "zcdp"
    """How rho becomes (epsilon, delta)."""
    repaired: bool = True
    """Whether winners are dropped if a supply would be exceeded. If not, beta is how often it may
    be: the agents add the noise themselves, or the market says so (`excess_probability`)."""

    @classmethod
    def split(
        cls,
        epsilon: float,
        delta: float,
        *,
        truncated: bool,
        repaired: bool = True,
        excess: float | None = None,
    ) -> Budget:
        """Split (epsilon, delta).

        Args:
            truncated: whether noise has a support that moves with the data. It takes a part of
                delta, and zCDP.
            repaired: whether winners are dropped if a bound fails; False for local runs.
            excess: the probability with which a supply may be exceeded. Then nothing is repaired.
        """
        repaired = repaired and not excess
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
        epsilon, delta = float(epsilon), float(delta)
        whole = Fraction(delta)
        beta = excess or float(REPAIR_SHARE * whole)
        if epsilon == math.inf:
            beta = excess or EXACT_BETA
            return cls(epsilon, delta, math.inf, 0.0, beta, repaired=repaired)
        if not truncated:
            rest = whole - Fraction(beta) if repaired else whole
            rho = gdp.rho_of(epsilon, round_down(rest))
            return cls(epsilon, delta, rho, 0.0, beta, "gdp", repaired)
        truncation = float(TRUNCATION_SHARE * whole)
        rest = whole - Fraction(truncation)
        if repaired:
            beta = beta / (1.0 + math.exp(epsilon)) * (1.0 - 1e-12)
            rest -= REPAIR_SHARE * whole
        rho = zcdp.rho_of(epsilon, float(rest) * (1.0 - 1e-12))
        return cls(epsilon, delta, rho, truncation, beta, repaired=repaired)

    @property
    def repair(self) -> float:
        """The part of delta that dropping winners costs, rounded up."""
        if not self.repaired:
            return 0.0
        if self.accounting == "gdp" or self.epsilon == math.inf:
            return self.beta
        return (1.0 + math.exp(self.epsilon)) * self.beta * (1.0 + 1e-15)

    def to_dict(self) -> dict[str, Any]:
        """For billboards and ledgers. Budgets in zCDP are written as before GDP was added."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.accounting == "zcdp":
            del found["accounting"]
        if self.repaired:
            del found["repaired"]
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Budget:
        """The inverse of `to_dict`; raises BudgetError for anything else."""
        names = [f.name for f in fields(cls) if f.type == "float"]
        kinds = {key: type(value) for key, value in data.items() if key in names}
        others = {key: value for key, value in data.items() if key not in names}
        accounting: Accounting = "gdp" if "accounting" in others else "zcdp"
        known = others.pop("accounting", "gdp") == "gdp" and others.pop("repaired", False) is False
        if kinds != dict.fromkeys(names, float) or others or not known:
            raise BudgetError("these are not the parts of a budget")
        repaired = "repaired" not in data
        return cls(**{n: data[n] for n in names}, accounting=accounting, repaired=repaired)

    def epsilon_of_group(self, agents: int) -> float | None:
        """The epsilon of the billboard for several agents at once, at the same delta.

        None for noise whose support moves with the data: the bound needs zCDP without a delta.

        Formal guarantees. For g agents every answer moves up to g times as far, so the releases
        cost g^2 rho, in zCDP (Bun & Steinke 2016, Proposition 1.9) and for Gaussian noise in GDP
        (`jdpack.privacy.gdp`, Groups). Gaussian noise has both guarantees. The result is stated at
        the whole delta, because a repair changes only the allocation, not the billboard.
        `delta_of_group` covers both.
        """
        if self.truncation > 0.0:
            return None
        rho = math.nextafter(agents**2 * self.rho, math.inf)
        found = gdp.epsilon_of(rho, self.delta) if self.accounting == "gdp" else math.inf
        return found if found < math.inf else zcdp.epsilon_of(rho, self.delta)

    def delta_of_group(self, agents: int) -> float:
        """The delta of the whole promise for g agents at once, at g times epsilon.

        Formal guarantees. Change the g records one by one. Each change costs a factor e^epsilon
        and adds delta, so P_0(S) <= e^epsilon P_1(S) + delta <= ... <=
        e^(g epsilon) P_g(S) + (1 + e^epsilon + ... + e^((g - 1) epsilon)) delta. This holds for
        every (epsilon, delta) promise, so for the repaired allocation and for any noise.
        """
        terms = (math.exp(min(i * self.epsilon, 700.0)) for i in range(agents))
        return min(1.0, math.fsum(terms) * self.delta * (1.0 + 1e-12))


def delta_of(rho: float, epsilon: float, accounting: Accounting) -> float:
    """The delta of releases that cost rho together, at epsilon; rounded up."""
    return gdp.delta_of(rho, epsilon) if accounting == "gdp" else zcdp.delta_of(rho, epsilon)


def epsilon_of(rho: float, delta: float, accounting: Accounting) -> float:
    """The epsilon of releases that cost rho together, at delta; rounded up."""
    return gdp.epsilon_of(rho, delta) if accounting == "gdp" else zcdp.epsilon_of(rho, delta)


def rho_of(epsilon: float, delta: float, accounting: Accounting) -> float:
    """The most that releases may cost together for (epsilon, delta); rounded down."""
    return gdp.rho_of(epsilon, delta) if accounting == "gdp" else zcdp.rho_of(epsilon, delta)


@functools.lru_cache(maxsize=4096)
def proved(budget: Budget) -> bool:
    """Whether the parts of a budget prove its (epsilon, delta), as `Budget` claims."""
    least, most = EPSILON_RANGE
    if not (least <= budget.epsilon <= most and 1e-100 <= budget.delta < 1.0):
        return False
    if not (0.0 < budget.beta < 1.0 and 0.0 <= budget.truncation < 1.0 and budget.rho > 0.0):
        return False
    if budget.accounting == "gdp" and budget.truncation > 0.0:
        return False
    rest = Fraction(budget.delta) - Fraction(budget.truncation) - Fraction(budget.repair)
    return delta_of(budget.rho, budget.epsilon, budget.accounting) <= rest


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
    """What one release costs: it is delta-approximately rho-zCDP.

    Gaussian noise is also as private as normal noise of the same rho, up to `transfer`.
    """

    rho: Fraction | float
    """A rational, or inf for an answer without noise."""
    delta: Fraction = Fraction(0)
    """Positive only if the support of the noise moves with the data."""
    transfer: Fraction = Fraction(0)
    """The extra cost of Gaussian noise that is discrete, not normal (`gdp.transfer`)."""


class Filter:
    """Keeps the sum of all charges within the budget, always.

    Formal guarantees. `charge` is called before anything is drawn. It refuses if the sum would
    exceed the budget in any coordinate, and a refusal changes nothing. The limit on `transfer` is
    the one of `jdpack.privacy.gdp`, and such a budget takes only Gaussian noise: it has no delta
    for any other. zCDP needs no limit on `transfer`.

    Batches of one public partition of the agents compose in parallel. A release may be about
    several of them in a row: a block. Neighbours differ in one agent, and that agent is in one
    batch. Given the releases so far, a release about a block without that batch has the same
    distribution for both neighbours, so it costs nothing between them. What is spent is therefore
    the cost of the releases about all agents, plus the largest total cost of the releases whose
    blocks contain any one batch. For every pair of neighbours, that sum bounds the adaptively
    chosen costs, as the filter requires. If blocks are nested, each batch pays once per level.

    The filter keeps that maximum for disjoint stretches of batches. A release joins the stretches
    that its block touches into one, and adds its cost to the largest of their maxima. If the block
    contains all of these stretches, this is the exact maximum; otherwise it is at least that.
    """

    def __init__(self, budget: Budget, spent: Cost | None = None) -> None:
        self.budget = budget
        limits = _grains(Cost(budget.rho, Fraction(budget.truncation)), math.floor)
        if budget.accounting == "gdp":
            most = Fraction(budget.rho) * gdp.TRANSFER_SHARE
            limits = limits._replace(transfer=math.floor(most * _GRAIN))
        else:
            limits = limits._replace(transfer=math.inf)
        self._limits = limits
        self._of_all = _grains(spent) if spent else _NOTHING
        self._batches = 0
        """The number of batches in the partition; 0 until one is asked."""
        self._of_batches: list[tuple[int, int, _Grains]] = []
        """Disjoint stretches (first, last) of batches in order, with their largest total cost."""
        self._most = _NOTHING
        """The largest total cost of the releases about any one batch."""

    @property
    def spent(self) -> Cost:
        rho, delta, transfer = self._of_all.plus(self._most)
        return Cost(
            rho if rho == math.inf else Fraction(int(rho), _GRAIN),
            Fraction(delta, _GRAIN),
            Fraction(int(transfer), _GRAIN),
        )

    def charge(self, cost: Cost, batch: Batch | None = None, span: int = 1) -> None:
        """Spend `cost` on all agents, or on the `span` batches that end with `batch`.

        It raises BudgetError if the budget does not cover it, and then spends nothing.
        """
        if cost.rho <= 0 or cost.delta < 0:
            raise BudgetError(f"a release must cost something, not rho = {float(cost.rho):.3g}")
        of_all, most = self._of_all, self._most
        if batch is None:
            of_all = of_all.plus(_grains(cost))
        else:
            if self._batches not in (0, batch.count):
                raise BudgetError("batches from two partitions do not compose in parallel")
            first, last, joined = batch.index - span + 1, batch.index, _NOTHING
            begin = bisect.bisect_left(self._of_batches, first, key=lambda known: known[1])
            end = bisect.bisect_right(self._of_batches, last, key=lambda known: known[0])
            for low, high, largest in self._of_batches[begin:end]:
                first, last, joined = min(first, low), max(last, high), joined.or_more(largest)
            joined = joined.plus(_grains(cost))
            most = most.or_more(joined)
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
            self._batches = batch.count
            self._of_batches[begin:end] = [(first, last, joined)]


class _Grains(NamedTuple):
    """A cost in units of 1 / _GRAIN; rho may be inf, and so may a limit on transfer."""

    rho: int | float
    delta: int
    transfer: int | float

    def plus(self, other: _Grains) -> _Grains:
        return _Grains(
            self.rho + other.rho, self.delta + other.delta, self.transfer + other.transfer
        )

    def or_more(self, other: _Grains) -> _Grains:
        return _Grains(
            max(self.rho, other.rho),
            max(self.delta, other.delta),
            max(self.transfer, other.transfer),
        )


_NOTHING = _Grains(0, 0, 0)


@functools.lru_cache(maxsize=64)
def _grains(cost: Cost, round: Callable[[Fraction], int] = math.ceil) -> _Grains:
    rho = math.inf if cost.rho == math.inf else round(Fraction(cost.rho) * _GRAIN)
    return _Grains(rho, round(cost.delta * _GRAIN), round(cost.transfer * _GRAIN))


def round_up(x: Fraction) -> Fraction:
    """Round a cost up as the filter does."""
    return Fraction(math.ceil(x * _GRAIN), _GRAIN)


def round_down(x: Fraction) -> float:
    """The largest float that is at most x."""
    found = float(x)
    return found if Fraction(found) <= x else math.nextafter(found, -math.inf)
