"""Public: the checks that every run and every plan starts with: market, policy, budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jdpack.common.language import language
from jdpack.errors import BudgetError
from jdpack.market.market import Market
from jdpack.planning.headroom import check
from jdpack.policies.base import Policy, budget_of
from jdpack.policies.spec import policy_of
from jdpack.privacy.accounting import Budget, check_delta


def prepare(
    market: Market | str | Path,
    policy: Policy[Any] | str | None,
    epsilon: float | None,
    delta: float | None,
) -> tuple[Market, Policy[Any], Budget]:
    """The market, policy and budget of a run. Raises every error that needs no records."""
    if not isinstance(market, Market):
        market = Market.from_toml(market)
    for code in market.languages:
        language(code)
    policy = policy_of(policy)
    epsilon = market.epsilon if epsilon is None else epsilon
    delta = market.delta if delta is None else delta
    for what, given in [("epsilon", epsilon), ("delta", delta)]:
        if given is None:
            toml = f"set {what} in [privacy] of the market file, or pass {what}"
            python = f"pass {what}=..., here or to Market(...)"
            raise BudgetError(f"no {what} is given", market.hint(toml, python))
    assert epsilon is not None and delta is not None
    budget = budget_of(policy, market, epsilon, delta)
    check_delta(budget)
    check(market, budget, policy)
    return market, policy, budget
