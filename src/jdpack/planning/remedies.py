"""Public: what would help if supply is too small for a budget."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from jdpack.billboard.lines import is_local
from jdpack.market.market import Market, Neighbours
from jdpack.pages.number_text import rounded_up
from jdpack.planning.headroom import MARGIN_MOST, Need, crowd, margin_at, margin_of
from jdpack.policies.base import Policy
from jdpack.policies.newton import Newton
from jdpack.privacy.accounting import EPSILON_MOST, Budget

EXCESS = 1e-3
"""The excess probability that a plan tries."""

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


def remedies(
    market: Market, budget: Budget, policy: Policy[Any], *, scarce: bool = True
) -> list[Help]:
    """What would help. Changes that are enough by themselves come first.

    If supply is not scarce, only what costs nobody anything is listed: bounds that the rules may
    imply anyway, and promises that people may not need.

    This is a function of public numbers. Nothing here may advise choosing a public number by what
    the records happen to need, because such a number would show them.
    """
    present = margin_of(market, budget, policy)
    free = [
        *_smaller_bundles(market, budget, policy),
        *_smaller_totals(market, budget, policy),
        *_smaller_people(market, budget, policy),
        *_weaker_promises(market, budget, policy),
    ]
    more = [
        *_more_epsilon(market, budget, policy),
        *_more_supply(market, budget, policy),
        *_coarser(market, budget, policy),
        *_other_kinds(market, budget, policy),
    ]
    found = [*more, *free] if scarce else free
    helps = [h for h in found if h.margin < math.inf and h.margin <= _HELPS * present]
    return sorted(helps, key=lambda h: h.margin > MARGIN_MOST)  # stable


def _smaller_totals(market: Market, budget: Budget, policy: Policy[Any]) -> Iterator[Help]:
    """A bound on the total of an option over all resources: a quarter of what caps allow."""
    units = {r.unit for r in market.declared}
    if market.totals or len(units) > 1 or market.bundle_size == 1:
        return
    caps = sorted((r.max_demand for r in market.declared), reverse=True)
    total = rounded_up(math.fsum(caps[: market.bundle_size]) / 4.0, 3)
    if total < max(caps):
        return
    margin = margin_of(market.changed(max_total=total), budget, policy)
    text = f"max_total {total:g} over all resources, if the rules can forbid more"
    yield Help("max_total", total, margin, text)


def _smaller_people(market: Market, budget: Budget, policy: Policy[Any]) -> Iterator[Help]:
    """Half of what one person may ask for in all of each resource, but at least one option."""
    if market.requests == 1:
        return
    codes = zip(market.person_cap_codes, market.unit_sizes, market.declared, strict=False)
    half = {r.name: max(r.max_demand, rounded_up(cap * unit / 2.0, 3)) for cap, unit, r in codes}
    person = replace(market.person, max_demand=half)
    margin = margin_of(market.changed(person=person), budget, policy)
    text = "half as much of each resource for one person in all, if the rules can forbid more"
    yield Help("person", 0.5, margin, text)


def _weaker_promises(market: Market, budget: Budget, policy: Policy[Any]) -> Iterator[Help]:
    if market.neighbours is Neighbours.REPLACE_ONE and not is_local(policy.to_dict()):
        other = market.changed(neighbours=Neighbours.ADD_REMOVE)
        text = "neighbours add-remove: the number of agents is then an upper bound"
        yield Help("neighbours", None, margin_of(other, budget, policy), text)
    if not market.excess_probability and not is_local(policy.to_dict()):
        other = market.changed(excess_probability=EXCESS)
        margin = margin_at(other, policy, budget.epsilon, budget.delta)
        if margin is not None:
            text = f"excess_probability {EXCESS:g}, if a supply may be exceeded that rarely"
            yield Help("excess_probability", EXCESS, margin, text)
    delta = 10.0 ** math.floor(math.log10(0.01 / market.agents))
    if delta > budget.delta:
        margin = margin_at(market, policy, budget.epsilon, delta)
        if margin is not None:
            text = f"delta {delta:g} instead of {budget.delta:g}, a hundredth of 1 / agents"
            yield Help("delta", delta, margin, text)


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
    need = Need(market, budget, policy)
    factor = need.factor(MARGIN_MOST)
    if factor is None:
        return
    margin = need.margin(factor)
    plenty = "; then nothing is scarce" if crowd(market) <= factor else ""
    yield Help("supply", factor, margin, f"{factor:,.4g} times the supply{plenty}")
    text = f"max_demand {factor:,.4g} times smaller, if the rules can forbid more"
    yield Help("max_demand", factor, margin, text)


def _smaller_bundles(market: Market, budget: Budget, policy: Policy[Any]) -> Iterator[Help]:
    """The largest bundle size that is enough, or 1."""

    def margin(size: int) -> float:
        return margin_of(market.changed(bundle_size=size), budget, policy)

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
    if m == 1 or market.groups or len({r.unit for r in market.resources}) > 1:
        return
    if market.requests > 1:  # bounds per person name resources that would be gone
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
        margin = margin_of(market.changed(divisible=True), budget, policy)
        yield Help("divisible", None, margin, "divisible goods, if fractions can be given")
    if not isinstance(policy, Newton):
        steered = margin_at(market, Newton(), budget.epsilon, budget.delta)
        if steered is not None:
            yield Help("policy", None, steered, "policy newton")


def _merged(market: Market, size: int) -> Market:
    """The market with every `size` consecutive resources merged into one.

    An option touches at most bundle_size resources of a group. It may ask for as much of the merged
    resource as it could of those together. A bound on the total of all resources stays.
    """
    m, touched = len(market.resources), market.bundle_size
    groups = [market.resources[start : start + size] for start in range(0, m, size)]
    caps = [sorted((r.max_demand for r in group), reverse=True)[:touched] for group in groups]
    whole = [total.amount for total in market.totals if len(total.resources) == m]
    return market.changed(
        supply=[math.fsum(r.supply for r in group) for group in groups],
        max_demand=[min(math.fsum(largest), *whole, math.inf) for largest in caps],
        names=None,
        units=None,
        resource_columns=None,
        max_total=whole[0] if whole else None,
    )
