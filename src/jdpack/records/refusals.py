"""Private: the errors about records, in the same words for every reader and every engine.

Each function returns the error for its caller to raise, except `check_count`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jdpack.errors import AgentsError
from jdpack.market.market import Market, Neighbours
from jdpack.market.totals import Total

BY_THE_RULES = "is public, so set it by the rules of your market and never by this table"
COUNT_FIRST = "the number of agents is public: set it before looking at the data"


def check_count(market: Market, agents: int) -> None:
    """Refuse a number of agents that is not the one that the market declares."""
    exact = market.neighbours is Neighbours.REPLACE_ONE
    if agents > market.agents or (exact and agents < market.agents):
        raise AgentsError(
            f"there are {agents:,} agents, but the market declares "
            f"{'' if exact else 'at most '}{market.agents:,}",
            COUNT_FIRST,
        )


def no_ids(market: Market) -> AgentsError:
    """Agents may have several rows, but have no ids."""
    return AgentsError(
        f"agents with several {'options' if market.requests == 1 else 'requests'} need ids",
        "give each row the id of its agent, and keep the rows of one agent together",
    )


def repeated_id(id: Any, several: bool) -> AgentsError:
    """Two agents have one id; `several` if an agent may have several rows."""
    return AgentsError(
        f"id {id!r} belongs to more than one agent",
        "keep the rows of one agent together"
        if several
        else "are its rows options, of which it takes one? Then set options in [agents] of a "
        "market file, or Market(options=...). Are they requests of one person? Then set requests "
        "in [person], or Market(person=...), and everything that one person asks for is protected. "
        "If every row had its own id, only single rows would be protected, not the person",
    )


def two_groups(id: Any) -> AgentsError:
    """An agent's rows name several groups."""
    return AgentsError(
        f"agent {id!r} is in two groups",
        "an agent is in one group or in none; repeat it in each row",
    )


def too_many_options(market: Market, who: str) -> AgentsError:
    """An agent or a request has more options than the market allows."""
    return AgentsError(
        f"{who} has more than {market.options} options",
        f"hand in no more options than that; {_key(market, 'options')} {BY_THE_RULES}",
    )


def repeated_resource(market: Market, who: str, resource: str) -> AgentsError:
    """An option asks twice for one resource."""
    return AgentsError(
        f"{who} names {resource} twice",
        "give the sum of the amounts once; several options of one agent need "
        f"{_key(market, 'options')}",
    )


def wide_bundle(market: Market, who: str, width: int) -> AgentsError:
    """An option asks for more resources than the bundle size."""
    return AgentsError(
        f"{who} demands {width} resources, but the bundle size is {market.bundle_size}",
        f"hand in smaller options; {_key(market, 'bundle_size')} {BY_THE_RULES}",
    )


def beyond_total(market: Market, who: str, total: Total, amounts: Sequence[float]) -> AgentsError:
    """An option asks for more than a bound on a total; `amounts` has one per declared resource."""
    asked = math.fsum(amounts[j] for j in total.resources)
    names = [repr(market.resources[j].name) for j in total.resources]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return AgentsError(
        f"{who}: total demand {asked!r} for {', '.join(names[:2])}{more} is above the public bound "
        f"{total.amount:g}",
        f"clamp (--clamp, or clamp=True) cuts it to the bound; the bound {BY_THE_RULES}",
    )


def beyond_person(market: Market, id: Any, bound: str, more: str, hint: str) -> AgentsError:
    """A person asks for more than a bound of [person] allows."""
    what = f"{market.requests} requests" if bound == "requests" else f"{bound} in total"
    return AgentsError(f"agent {id!r} is beyond the public bound of {what}{more}", hint)


def bad_number(what: str, number: float, cap: float) -> AgentsError:
    """A value or an amount is outside the public bounds, or not a number."""
    if math.isnan(number):
        return AgentsError(f"{what} {number!r} is not a number")
    if math.isinf(number):
        return AgentsError(f"{what} {number!r} is infinite")
    if number < 0.0:
        return AgentsError(f"{what} {number!r} is negative")
    return AgentsError(
        f"{what} {number!r} is above the public bound {cap:g}",
        f"clamp (--clamp, or clamp=True) sets it to the bound; the bound {BY_THE_RULES}",
    )


def _key(market: Market, name: str) -> str:
    return market.hint(f"{name} in [agents]", f"Market({name}=...)")
