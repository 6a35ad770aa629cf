"""Public: what would help if supply is too small for a budget."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jdpack.market.market import Market
from jdpack.pages.number_text import rounded_up
from jdpack.planning.headroom import MARGIN_MOST, Need, changed, crowd, margin_at, margin_of
from jdpack.policies.base import Policy
from jdpack.policies.newton import Newton
from jdpack.privacy.accounting import EPSILON_MOST, Budget

_HELPS = 0.9  # a change helps if it leaves at most this much of the margin


@dataclass(frozen=True)
class Help:
    """A change to the market or the budget, and the margin that it leads to."""

    kind: str
    """What is changed."""
    value: float | None
    """The new value, or the factor; `text` says which."""
    margin: float
    """The share of each supply that would be kept free."""
    text: str
    """For people."""


def remedies(market: Market, budget: Budget, policy: Policy[Any]) -> list[Help]:
    """What would help. Changes that are enough by themselves come first.

    This is a function of public numbers. Nothing here may advise choosing a public number by what
    the records happen to need, because such a number would show them.
    """
    present = margin_of(market, budget, policy)
    found = [
        *_more_epsilon(market, budget, policy),
        *_more_supply(market, budget, policy),
        *_smaller_bundles(market, budget, policy),
        *_coarser(market, budget, policy),
        *_other_kinds(market, budget, policy),
    ]
    helps = [h for h in found if h.margin < math.inf and h.margin <= _HELPS * present]
    return sorted(helps, key=lambda h: h.margin > MARGIN_MOST)  # stable


def _more_epsilon(market: Market, budget: Budget, policy: Policy[Any]) -> Iterator[Help]:
    """The smallest epsilon that is enough, or the largest that we advise."""

    def margin(epsilon: float) -> float:
        at = margin_at(market, policy, epsilon, budget.delta)
        return math.inf if at is None else at

    low, high = budget.epsilon, EPSILON_MOST
    if high <= low:
        return
    while high > 1.005 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if margin(middle) <= MARGIN_MOST else (middle, high)
    epsilon = min(rounded_up(high, 3), EPSILON_MOST)
    text = f"epsilon {epsilon:g} instead of {budget.epsilon:g}"
    yield Help("epsilon", epsilon, margin(epsilon), text)


def _more_supply(market: Market, budget: Budget, policy: Policy[Any]) -> Iterator[Help]:
    need = Need.of(market, budget, policy)
    factor = need.factor(market, MARGIN_MOST)
    if factor is None:
        return
    margin = need.margin(market.supply_code * factor)
    plenty = "; then nothing is scarce" if crowd(market) <= factor else ""
    yield Help("supply", factor, margin, f"{factor:,.4g} times the supply{plenty}")
    text = f"max_demand {factor:,.4g} times smaller, if the rules can forbid more"
    yield Help("max_demand", factor, margin, text)


def _smaller_bundles(market: Market, budget: Budget, policy: Policy[Any]) -> Iterator[Help]:
    """The largest bundle size that is enough, or 1."""

    def margin(size: int) -> float:
        return margin_of(changed(market, bundle_size=size), budget, policy)

    if market.bundle_size == 1:
        return
    low, high = 1, market.bundle_size  # high is too large
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if margin(middle) <= MARGIN_MOST else (low, middle)
    text = f"bundle_size {low} instead of {market.bundle_size}, if the rules can forbid more"
    yield Help("bundle_size", low, margin(low), text)


def _coarser(market: Market, budget: Budget, policy: Policy[Any]) -> Iterator[Help]:
    """Resources merged in groups of 2, 4, 8 and so on: the smallest that is enough, or pairs."""
    m = len(market.resources)
    if m == 1 or len({r.unit for r in market.resources}) > 1:
        return

    def merged(size: int) -> Help:
        coarse = _merged(market, size)
        count = len(coarse.resources)
        text = f"resources merged in groups of {size}: {count} instead of {m}"
        return Help("resources", count, margin_of(coarse, budget, policy), text)

    sizes = [2**i for i in range(1, m.bit_length()) if 2**i <= m]
    yield next((h for h in map(merged, sizes) if h.margin <= MARGIN_MOST), None) or merged(2)


def _other_kinds(market: Market, budget: Budget, policy: Policy[Any]) -> Iterator[Help]:
    if not market.divisible:
        margin = margin_of(changed(market, divisible=True), budget, policy)
        yield Help("divisible", None, margin, "divisible goods, if fractions can be given")
    if not isinstance(policy, Newton):
        whole = Budget.split(budget.epsilon, budget.delta, truncated=False)
        yield Help("policy", None, margin_of(market, whole, Newton()), "policy newton")


def _merged(market: Market, size: int) -> Market:
    """The market with every `size` consecutive resources merged into one.

    An option touches at most bundle_size resources of a group. It may ask for as much of the merged
    resource as it could of those together.
    """
    m, touched = len(market.resources), market.bundle_size
    groups = [market.resources[start : start + size] for start in range(0, m, size)]
    caps = [sorted((r.max_demand for r in group), reverse=True)[:touched] for group in groups]
    return changed(
        market,
        supply=[math.fsum(r.supply for r in group) for group in groups],
        max_demand=[math.fsum(largest) for largest in caps],
    )
