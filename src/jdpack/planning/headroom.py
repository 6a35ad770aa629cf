"""Public: the margin, the share of every supply that a run keeps free so that the rest fits.

* Divisible goods: the margin is the radius that the certificate adds to the averaged loads
  (`jdpack.privacy.tail_bounds`).
* Indivisible goods with newton: the margin is the radius of the granted release, plus what newton
  leaves so that coins and noise land below the bound (`newton.indivisible_target`), as far as it
  knows beforehand.
* Indivisible goods with any other policy: the policy aims for full supplies, and what is granted is
  thinned from there. If the certificate keeps grants of a full load at odds f, the margin is
  1/f - 1. The same holds if agents add the noise themselves, with the radius of the averaged loads:
  there is no granted release.

In demand codes, none of this depends on the supply. If all supplies are multiplied by s and demands
stay the same, the grid stays the same, so supply in codes is multiplied by s. The part of the
margin that is for noise falls as 1/s, the part for coins as 1/sqrt(s), and bisection finds the
supply for a given margin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from jdpack.billboard.lines import is_local
from jdpack.common.checks import LARGEST
from jdpack.errors import JdpackError, SupplyWarning
from jdpack.market.grid import SUPPLY_CODE_MAX
from jdpack.market.market import Market
from jdpack.pages.number_text import rounded_up, short_percent
from jdpack.policies.base import Policy
from jdpack.policies.newton import Newton, indivisible_target, landing
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import Gaussian, NoNoise, gaussian
from jdpack.privacy.tail_bounds import Outlook

MARGIN_MOST = 0.2
"""If the margin is larger than this, supply is too small for the budget."""


def shortfall(market: Market, budget: Budget, policy: Policy[Any]) -> SupplyWarning | None:
    """The warning that supply is too small for the budget; None if it is large enough."""
    if budget.epsilon == math.inf:
        return None
    need = Need.of(market, budget, policy)
    margin = need.margin(market.supply_code)
    if margin <= MARGIN_MOST or crowd(market) <= 1.0 - margin:
        return None
    factor = need.factor(market, MARGIN_MOST)
    enough = (
        "no supply is enough" if factor is None else f"{factor:,.4g} times the supply is enough"
    )
    return SupplyWarning(
        f"supply is too small for this budget: noise needs a margin of {short_percent(margin)} of "
        f"each supply, and more than {short_percent(MARGIN_MOST)} is not reasonable",
        f"{enough}; `jdpack plan` shows what else would help",
    )


@dataclass(frozen=True)
class Need:
    """What must be kept free, in demand codes. Only `margin` depends on the supply."""

    outlook: Outlook
    bound: float
    """What the certificate adds to a load."""
    granted: Gaussian | NoNoise | None
    """The noise of the granted release; None if there is none."""
    divisible: bool
    cap: int
    coin_tail: float
    landing: float | None
    """How many deviations the policy aims below what is certified; None if it does not."""

    @classmethod
    def of(cls, market: Market, budget: Budget, policy: Policy[Any]) -> Need:
        outlook, tail = policy.outlook(market, budget), tail_bounds.tail(market, budget)
        if market.divisible or is_local(policy.to_dict()):
            radius = tail_bounds.noise_radius(outlook, tail, truncated=policy.truncated)
            bound, granted = radius / outlook.weight, None
        else:
            granted = tail_bounds.granted_noise(market, budget)
            bound = tail_bounds.release_radius(granted, tail)
        coin_tail = tail_bounds.coin_tail(market, budget)
        below = landing(market, budget) if isinstance(policy, Newton) else None
        cap, divisible = max(market.cap_codes), market.divisible
        return cls(outlook, bound, granted, divisible, cap, coin_tail, below)

    def margin(self, supply: float) -> float:
        """The margin, as a share of a supply in codes; above 1 if noise exceeds it."""
        if self.divisible:
            return self.bound / supply
        if self.landing is not None and self.granted is not None:
            return 1.0 - indivisible_target(
                self.outlook, self.granted, self.bound, self.cap, supply, self.landing
            )
        odds = _odds(1.0 + self.bound / supply, self.cap / supply, self.coin_tail)
        return 1.0 / odds - 1.0 if odds > 0.0 else math.inf

    def factor(self, market: Market, level: float) -> float | None:
        """The smallest factor on all supplies that gives this margin, rounded up to four digits.

        Before rounding we add 1e-4, because caps in codes may round the other way in the larger
        market.
        """
        low, high = factors(market)
        if self.margin(market.supply_code * high) > level:
            return None
        if self.margin(market.supply_code * low) <= level:
            high = low
        while high > low * (1.0 + 1e-6):
            middle = math.sqrt(low * high)
            fits = self.margin(market.supply_code * middle) <= level
            low, high = (low, middle) if fits else (middle, high)
        return rounded_up(high * (1.0 + 1e-4), 4)


def factors(market: Market) -> tuple[float, float]:
    """The smallest and the largest factor on all supplies that a market allows."""
    # No supply may be below its cap, above LARGEST, or above SUPPLY_CODE_MAX in codes.
    low = max(r.max_demand / r.supply for r in market.resources)
    most = 0.99 * LARGEST / max(r.supply for r in market.resources)
    return low, min(0.99 * SUPPLY_CODE_MAX / market.supply_code, most)


def _odds(load: float, q: float, tail: float) -> float:
    """The largest odds at which coins keep a load that fits, from grants of at most q each."""
    low, high = 0.0, 1.0
    if load <= 1.0:
        return high
    while high - low > 1e-9:
        middle = (low + high) / 2.0
        fits = tail_bounds.kept_at_most(load, q, middle, tail) <= 1.0
        low, high = (middle, high) if fits else (low, middle)
    return low if tail_bounds.kept_at_most(load, q, low, tail) <= 1.0 else 0.0


def floor(market: Market, budget: Budget) -> float:
    """M = z Delta / sqrt(2 rho): the margin of one Gaussian release of demand with all of rho.

    It is a yardstick for our runs, not a lower bound: noise with bounded support can need less.
    """
    z = math.sqrt(2.0 * math.log(len(market.resources) / budget.beta))
    sensitivity = (
        math.sqrt(sum(d * d for d in queries.shifts(market, "demand"))) / market.supply_code
    )
    return z * sensitivity / math.sqrt(2.0 * budget.rho)


def crowd(market: Market) -> float:
    """The largest load if every agent got the most that it may ask for."""
    return max(market.agents * r.max_demand / r.supply for r in market.resources)


def margin_of(market: Market, budget: Budget, policy: Policy[Any]) -> float:
    """The margin of a market."""
    return Need.of(market, budget, policy).margin(market.supply_code)


def margin_at(market: Market, policy: Policy[Any], epsilon: float, delta: float) -> float | None:
    """The margin with another budget; None if a run would refuse that budget."""
    budget = Budget.split(epsilon, delta, truncated=policy.truncated)
    return _margin_if_any(market, budget, policy)


def margin_with(market: Market, budget: Budget, policy: Policy[Any], factor: float) -> float | None:
    """The margin with all supplies multiplied by a factor; None if a run would refuse that."""
    low, high = factors(market)
    if factor == 1.0:
        return margin_of(market, budget, policy)
    if not low <= factor <= high:
        return None
    other = changed(market, supply=[r.supply * factor for r in market.resources])
    return _margin_if_any(other, budget, policy)


def _margin_if_any(market: Market, budget: Budget, policy: Policy[Any]) -> float | None:
    try:
        check(market, budget, policy)
    except JdpackError:
        return None
    return margin_of(market, budget, policy)


def check(market: Market, budget: Budget, policy: Policy[Any]) -> None:
    """Raise what a run would raise before it reads records, such as noise that does not fit."""
    policy.start(market, budget)
    for query, share in tail_bounds.closing_shares(market).items():
        shifts = queries.shifts(market, query)
        if query == "luck":
            shifts = queries.luck_shifts(market, market.value_cap_code, thinned=True)
        gaussian(shifts, budget.rho * share).cost(shifts)


def changed(market: Market, **changes: Any) -> Market:
    """A market with some of its numbers changed."""
    same: dict[str, Any] = {
        "supply": [r.supply for r in market.resources],
        "max_demand": [r.max_demand for r in market.resources],
        "max_value": market.max_value,
        "agents": market.agents,
        "bundle_size": market.bundle_size,
        "options": market.options,
        "neighbours": market.neighbours,
        "divisible": market.divisible,
    }
    return Market(**{**same, **changes})
