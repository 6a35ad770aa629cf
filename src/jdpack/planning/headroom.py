"""Public: the margin, the share of a supply that a run keeps free so that the rest fits.

* The certificate adds a radius to the averaged loads, for noise and, with indivisible goods, for
  coins (`jdpack.privacy.tail_bounds`). In demand codes the noise hardly depends on the supply, so
  a resource whose supply is small against its cap needs a larger margin.
* newton aims below the supply by that much. Any other policy aims for full supplies, and divisible
  goods are scaled and others thinned from there. If grants of a full load are kept with chance f,
  the margin is 1/f - 1.
* The margin of a market is the mean over its resources, weighted by what they are likely worth
  (`newton_targets.likely_shares`). Nothing public tells more before a run. newton shapes its noise
  by the prices that it finds, so whatever they are, it loses at most about `Need.most`. It splits
  beta by them too, which only helps; here the parts are equal.

If all supplies are multiplied by s, the part of a margin that is for noise falls about as 1/s, or a
little faster, and bisection finds the supply for a given margin.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from jdpack.billboard.lines import asks_batches, measures_grants
from jdpack.common.checks import LARGEST
from jdpack.common.portable_math import FloatArray
from jdpack.errors import BudgetError, JdpackError, SupplyWarning
from jdpack.market.grid import DEMAND_CODE_MAX, SUPPLY_CODE_MAX
from jdpack.market.market import Market
from jdpack.pages.number_text import rounded_up, short_percent
from jdpack.policies import newton
from jdpack.policies.base import Policy, budget_of
from jdpack.policies.newton import Newton
from jdpack.policies.newton_targets import free_of_grants, granted_scales, likely_shares
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import gaussian
from jdpack.privacy.tail_bounds import Coins, Outlook, Sum
from jdpack.protocol import closing

RARELY = 0.01
"""How often a run may lose more than `Need.most` to loads that stay below their targets."""

MARGIN_MOST = 0.2
"""If the margin is larger than this, supply is too small for the budget."""


def shortfall(market: Market, budget: Budget, policy: Policy[Any]) -> SupplyWarning | None:
    """The warning that supply is too small for the budget; None if it is large enough."""
    if budget.epsilon == math.inf:
        return None
    said = _said(market, budget, policy)  # type: ignore[arg-type]  # policies are hashable
    return None if said is None else SupplyWarning(*said)


@functools.lru_cache(maxsize=64)
def _said(market: Market, budget: Budget, policy: Policy[Any]) -> tuple[str, str] | None:
    """The text and the hint of the warning: the same for every run on the same public numbers."""
    need = Need(market, budget, policy)
    if need.margin() <= MARGIN_MOST or crowd(market) <= 1.0 - need.margin():
        return None
    factor = need.factor(MARGIN_MOST)
    enough = (
        "no supply is enough" if factor is None else f"{factor:,.4g} times the supply is enough"
    )
    margin = need.margin()
    so = f"and more than {short_percent(MARGIN_MOST)} is not reasonable"
    if margin > 0.5:
        so = "so only a few people can get something"
    if margin >= 1.0:
        so = "which is more than there is, so hardly anybody can get anything"
    return (
        f"supply is too small for this budget: noise needs a margin of {short_percent(margin)} of "
        f"the supplies, {so}",
        f"{enough}; `jdpack plan` shows what else would help",
    )


def check_hope(market: Market, budget: Budget, policy: Policy[Any]) -> None:
    """Refuse a run that can give hardly anything to anybody, but would spend the whole budget."""
    warning = shortfall(market, budget, policy)
    if warning is not None and margin_of(market, budget, policy) > 1.0:
        raise BudgetError(
            warning.message, f"{warning.hint}; --force, or force=True, runs it anyway"
        )


@dataclass(frozen=True)
class Need:
    """What must be kept free in a market."""

    market: Market
    budget: Budget
    policy: Policy[Any]

    @cached_property
    def outlook(self) -> Outlook:
        """What is known of every run."""
        return self.policy.outlook(self.market, self.budget)

    def _spread(self, factor: float) -> float:
        """How much larger the noise is, in codes, if all supplies are multiplied by a factor.

        newton spends less on steering if noise is small. The noise of other policies, as a part of
        their weights, does not depend on supply.
        """
        if factor == 1.0 or not isinstance(self.policy, Newton):
            return 1.0
        rho = self.policy.rho(self.market, self.budget)
        shares = [self.policy.shares(self.market, rho, x) for x in (1.0, factor)]
        now, then = (each[-1] for each in shares)
        return math.sqrt(now / then)

    @cached_property
    def supplies(self) -> FloatArray:
        """The supplies in codes."""
        return np.array(self.market.supply_codes, dtype=np.float64)

    @cached_property
    def worth(self) -> FloatArray:
        """What share of the optimum each resource may explain."""
        return likely_shares(self.market)

    def margins(
        self, factor: float = 1.0, shape: FloatArray | None = None, *, alike: bool = False
    ) -> FloatArray:
        """The margin of each resource if all supplies are multiplied by a factor.

        The noise is even, or has a shape and costs the same (`newton_targets`).

        Args:
            alike: count what more is lost if all agents are alike. Demand jumps at one price then,
                and everybody's coin decides. The loads of a bundle move together, so no price
                makes up for the resource whose noise is worst: every load stays below its target
                by that, or by less with probability 1 - `RARELY`.
        """
        market, budget, policy = self.market, self.budget, self.policy.to_dict()
        coins_decide = tail_bounds.coins_decide(market, batches=asks_batches(policy))
        measured = coins_decide and measures_grants(policy)
        if measured and factor != 1.0:  # how much of rho is for grants depends on supplies
            there = Need(market.scaled(factor), budget, self.policy)
            return there.margins(shape=shape, alike=alike)
        outlook = self.outlook
        tail, cap, weight = tail_bounds.tail(market, budget), float(DEMAND_CODE_MAX), outlook.weight
        truncated, supplies = self.policy.truncated, self.supplies * factor
        stretched = np.full(len(supplies), self._spread(factor))
        if shape is not None:
            change = queries.change(market, "demand")
            stretched *= shape * math.sqrt(change.worst(tuple(shape.tolist())) / change.squares)
        spreads = math.sqrt(outlook.variance) * stretched / weight
        coins = cap * supplies / 4.0 if alike else newton.coins_expected(supplies, spreads)
        scales = np.full(len(supplies), -1.0)  # where grants are not measured
        if measured:
            given = (1.0,) if shape is None else tuple(shape.tolist())
            scales = granted_scales(market, budget, given)

        @functools.cache  # supplies are often alike
        def margin(
            times: float, supply: float, variance: float, spare: float, scale: float
        ) -> float:
            each = outlook.scales
            if each is not None and times != 1.0:  # there may be one for each of many rounds
                each = tuple(s * times for s in each)
            variance_of = outlook.variance * times * times
            noise = Sum(variance_of, float(weight), each, outlook.peak * times)
            if market.divisible:
                return (noise.radius(tail, truncated=truncated) / weight + spare) / supply
            of_market = market, budget, noise
            if isinstance(self.policy, Newton):
                more = tail, float(weight), supply, variance, scale
                return (free_of_grants(*of_market, *more)[0] + spare) / supply
            coins = Coins(0.0, 0.0, weight * cap, 0.0, weight * weight * cap * supply / 4.0)
            if coins_decide:
                coins = tail_bounds.coins_on(*of_market, float(weight), supply, variance)
            fits = noise.fits(coins, tail, truncated=truncated)
            # A full load is thinned until it fits.
            room = 1.0 - spare / supply
            kept = max(fit.factor(room / (1.0 + fit.radius / weight / supply)) for fit in fits)
            return 1.0 / kept - 1.0 if kept > 1e-6 else math.inf

        spares = [float(most) * budget.repaired for most in market.person_cap_codes]
        columns = stretched.tolist(), supplies.tolist(), coins.tolist(), spares, scales.tolist()
        found: FloatArray = np.array(list(map(margin, *columns)))
        if not alike:
            return found
        part = tail_bounds.granted_part(market, budget) if scales.min() >= 0.0 else 0.0
        worst = tail_bounds.normal_quantile(math.log(market.bundle_width / RARELY))
        rounds, granted = spreads * spreads, spreads * spreads + scales * scales + coins
        missed = np.sqrt((1.0 - part) ** 2 * rounds + part**2 * granted)
        found += worst * missed / supplies
        return found

    def margin(self, factor: float = 1.0) -> float:
        """The margin of the market if all supplies are multiplied by a factor."""
        return math.fsum((self.worth * self.margins(factor)).tolist())

    def most(self) -> float:
        """The most that the best shape of the noise loses, whatever prices and agents are like.

        To first order a shape loses the mean of its margins, weighted by what prices explain, so at
        most the largest of them. The best shape loses no more than any other one. We try two: even
        noise, and noise in proportion to supply. The second gives the noise the same part of every
        supply, namely z times the L2 norm of the caps that one agent can move, relative to supply,
        over sqrt(2 rho).
        """
        return min(float(self.margins(shape=x, alike=True).max()) for x in (None, self.supplies))

    def factor(self, level: float) -> float | None:
        """The smallest factor on all supplies that gives this margin, rounded up to four digits.

        Before rounding we add 1e-4, because supplies in codes may round the other way.
        """
        low, high = factors(self.market)
        if self.margin(high) > level:
            return None
        if self.margin(low) <= level:
            high = low
        return rounded_up(self._enough(level, low, high) * (1.0 + 1e-4), 4)

    def _enough(self, level: float, low: float, high: float) -> float:
        """A factor that gives this margin, hardly above the smallest one; `high` gives it.

        Margins fall about as 1 / factor, so it goes along straight lines between logarithms: the
        rule of false position, with half the height of an end that stays (Illinois).
        """

        def over(x: float) -> float:
            return math.log(min(max(self.margin(math.exp(x)), 1e-300), 1e300) / level)

        a, b, side = math.log(low), math.log(high), 0
        at_a, at_b = over(a), over(b)
        for _ in range(60):
            if b - a < 1e-6:
                break
            x = b + at_b if at_a > 9.0 else (a * at_b - b * at_a) / (at_b - at_a)
            x = min(max(x, a + 3e-7), b - 3e-7)
            at_x = over(x)
            if at_x > 0.0:
                a, at_a, at_b, side = x, at_x, at_b * (0.5 if side == 1 else 1.0), 1
            else:
                b, at_b, at_a, side = x, at_x, at_a * (0.5 if side == -1 else 1.0), -1
        return math.exp(b)


def factors(market: Market) -> tuple[float, float]:
    """The smallest and the largest factor on all supplies that a market allows."""
    # No supply may be below its cap, above LARGEST, or above SUPPLY_CODE_MAX in codes.
    low = max(r.max_demand / r.supply for r in market.resources) * (1.0 + 1e-9)
    most = 0.99 * LARGEST / max(r.supply for r in market.resources)
    return low, min(0.99 * SUPPLY_CODE_MAX / max(market.supply_codes), most)


def floor(market: Market, budget: Budget) -> float:
    """M = z Delta / sqrt(2 rho): the margin of one Gaussian release of demand with all of rho.

    Delta is the L2 norm of the largest caps, relative to supply, that one agent can move. It is a
    yardstick for our runs, not a lower bound: noise with bounded support can need less, and noise
    shaped by prices loses less where caps are uneven.
    """
    z = math.sqrt(2.0 * math.log(len(market.resources) / budget.beta))
    change = queries.change(market, "demand")
    sensitivity = math.sqrt(change.worst(tuple(float(s) for s in market.supply_codes)))
    return z * sensitivity / math.sqrt(2.0 * budget.rho)


def crowd(market: Market) -> float:
    """The largest load if every agent got the most that it may ask for."""
    asked = zip(market.person_cap_codes, market.unit_sizes, market.resources, strict=True)
    return max(
        market.agents * min(market.requests * r.max_demand, cap * unit) / r.supply
        for cap, unit, r in asked
    )


def margin_of(market: Market, budget: Budget, policy: Policy[Any]) -> float:
    """The margin of a market."""
    return Need(market, budget, policy).margin()


def margin_at(market: Market, policy: Policy[Any], epsilon: float, delta: float) -> float | None:
    """The margin with another budget; None if a run would refuse that budget."""
    return margin_if_any(market, budget_of(policy, market, epsilon, delta), policy)


def margin_with(market: Market, budget: Budget, policy: Policy[Any], factor: float) -> float | None:
    """The margin with all supplies multiplied by a factor; None if a run would refuse that."""
    low, high = factors(market)
    if factor == 1.0:
        return margin_of(market, budget, policy)
    if not low <= factor <= high:
        return None
    return margin_if_any(market.scaled(factor), budget, policy)


def margin_if_any(market: Market, budget: Budget, policy: Policy[Any]) -> float | None:
    """The margin of a market; None if a run would refuse it."""
    try:
        check(market, budget, policy)
    except JdpackError:
        return None
    return margin_of(market, budget, policy)


def check(market: Market, budget: Budget, policy: Policy[Any]) -> None:
    """Raise what a run would raise before it reads records, such as noise that does not fit."""
    policy.start(market, budget)
    about = policy.to_dict()
    coins = tail_bounds.coins_decide(market, batches=asks_batches(about))
    measured = coins and measures_grants(about)
    shares = tail_bounds.closing_shares(market, budget, coins=coins, measured=measured)
    for query, share in shares.items():
        change = queries.change(market, query)
        if query == "luck":
            cap = market.value_cap_code
            change = queries.luck_change(market, *closing.person_luck(market, -cap, cap))
        gaussian(change, budget.rho * share).cost(change)
