"""Public: an agent's options, checked and turned into codes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jdpack.common import checks
from jdpack.errors import AgentsError
from jdpack.market.market import Market
from jdpack.market.person import Count
from jdpack.market.totals import Total

ID_BYTES_MAX = 4096
"""The same limit as in tables of agents (`parquet_guard.TEXT_MAX`)."""

Demand = float | Sequence[float] | Mapping[str, float]
"""One amount per resource, amounts by name, or one amount if there is one resource."""

Coded = tuple[int, list[int]]
"""An option in codes: its value, and its demand for each resource."""


def check_id(agent: object, what: str = "an id") -> None:
    """Refuse what cannot be the id of an agent, or the name of a request."""
    if isinstance(agent, bool) or not (isinstance(agent, str) or hasattr(agent, "__index__")):
        raise AgentsError(f"{agent!r} is not {what}", f"{what} is a whole number or text")
    try:
        length = len(str(agent).encode())
    except UnicodeEncodeError:
        raise AgentsError(f"{what} is {agent!r}, which is not text") from None
    if length > ID_BYTES_MAX:
        raise AgentsError(f"{what} has {length} bytes; at most {ID_BYTES_MAX} are allowed")


def encoded(
    market: Market,
    value: float | Sequence[float],
    demand: Demand | Sequence[Demand],
    group: int | str | None = None,
) -> list[Coded]:
    """An agent's options, each as a value code and demand codes, clamped to the public bounds."""
    number = group_of(market, group)
    return [
        (market.value_code(min(worth, market.max_value)), _codes(market, amounts, number))
        for worth, amounts in stated(market, value, demand)
    ]


@dataclass(frozen=True)
class Request:
    """One of the requests of an agent that makes several."""

    name: str
    """Unique among the agent's own requests; its coin follows from the id and this name."""
    value: float | Sequence[float]
    """The value of its option, or a list with one value per option."""
    demand: Demand | Sequence[Demand]
    """One amount per resource, or {resource name: amount}; or a list of these."""

    @classmethod
    def of(cls, given: object) -> Request:
        """A request from a mapping with the keys request, value and demand, or checked."""
        if isinstance(given, Mapping):
            if set(given) != {"request", "value", "demand"}:
                raise AgentsError(
                    f"a request has the keys request, value and demand, not {sorted(given)}"
                )
            given = cls(given["request"], given["value"], given["demand"])
        if not isinstance(given, Request):
            raise AgentsError(f"{given!r} is not a request", "give a jdpack.Request or a mapping")
        check_id(given.name, "the name of a request")
        return cls(str(given.name), given.value, given.demand)


@dataclass(frozen=True)
class CodedRequest:
    """A request in codes."""

    request: Request
    options: list[Coded]
    left_out: str | None
    """The bound of `PersonBounds` that it would exceed, so that it gets nothing; otherwise None."""


def encoded_requests(
    market: Market, requests: Sequence[object], group: int | str | None = None
) -> list[CodedRequest]:
    """All requests of an agent in codes, counted in their order against the agent's bounds."""
    if market.requests == 1:
        raise AgentsError(
            "in this market everybody makes one request", "give value and demand instead"
        )
    if isinstance(requests, Mapping | str) or not hasattr(requests, "__len__"):
        raise AgentsError("requests must be a list", "give all requests of the agent, in order")
    own, count = [Request.of(request) for request in requests], Count(market.person_limits)
    if not own:
        raise AgentsError("an agent makes at least one request")
    names = [request.name for request in own]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise AgentsError(f"two requests are named {name!r}", "give each its own name")
    found = []
    for request in own:
        options = encoded(market, request.value, request.demand, group)
        found.append(CodedRequest(request, options, count.admit(options)))
    return found


def group_of(market: Market, group: object) -> int:
    """The number of an agent's group; -1 if it is in none of the market's groups."""
    if group is not None and not market.groups:
        raise AgentsError(f"group {group!r} is given, but this market has no groups")
    if isinstance(group, bool) or not (
        group is None or isinstance(group, str) or hasattr(group, "__index__")
    ):
        raise AgentsError(f"{group!r} is not the name of a group", "names are texts")
    return market.group_number(group)


def counted(market: Market, amounts: Sequence[float]) -> list[float]:
    """The amounts that count, in the user's units: those stated, clamped to the public bounds."""
    found = [min(amount, r.max_demand) for r, amount in zip(market.declared, amounts, strict=True)]
    for total in beyond(market, amounts):
        left = total.amount
        for j in total.resources:
            found[j] = min(found[j], left)
            left -= found[j]
    return found


def beyond(market: Market, amounts: Sequence[float]) -> list[Total]:
    """The bounds on totals that these amounts exceed."""
    codes = _capped(market, amounts) if market.totals else []
    return [total for total in market.totals if not total.fits(codes)]


def _codes(market: Market, amounts: Sequence[float], group: int) -> list[int]:
    """The codes of all resources, derived ones included."""
    codes = _capped(market, amounts)
    for total in market.totals:
        total.cut(codes)
    return market.with_derived(codes, group)


def _capped(market: Market, amounts: Sequence[float]) -> list[int]:
    """The codes of amounts, each clamped to its own cap."""
    return [
        market.demand_code(j, min(amount, r.max_demand))
        for j, (r, amount) in enumerate(zip(market.declared, amounts, strict=True))
    ]


def stated(
    market: Market, value: float | Sequence[float], demand: Demand | Sequence[Demand]
) -> list[tuple[float, list[float]]]:
    """An agent's options, checked but not clamped: a value, and one amount per resource."""
    several = hasattr(value, "__len__") and not isinstance(value, str)
    if several and not hasattr(demand, "__len__"):
        raise AgentsError(f"demand must list one option per value, not {demand!r}")
    values, demands = (list(value), list(demand)) if several else ([value], [demand])  # type: ignore[arg-type]
    if len(values) != len(demands):
        raise AgentsError(f"there are {len(values)} values but {len(demands)} demands")
    if not 1 <= len(values) <= market.options:
        raise AgentsError(
            f"{'an agent' if market.requests == 1 else 'a request'} may have 1 to "
            f"{market.options} options here, not {len(values)}"
        )
    found = []
    for v, d in zip(values, demands, strict=True):
        amounts = [
            _checked(amount, f"demand for {r.name!r}", r.max_demand)
            for r, amount in zip(market.declared, _amounts(market, d), strict=True)
        ]
        if sum(amount > 0.0 for amount in amounts) > market.bundle_size:
            raise AgentsError(f"an option may ask for at most {market.bundle_size} resources")
        found.append((_checked(v, "value", market.max_value), amounts))
    return found


def _amounts(market: Market, demand: object) -> list[float]:
    if isinstance(demand, Mapping):
        amounts: list[float] = [0.0] * len(market.declared)
        named: dict[int, object] = {}
        for name, amount in demand.items():
            j = resource_of(market, name)
            if j in named:
                raise AgentsError(
                    f"{named[j]!r} and {name!r} are the same resource", "name each resource once"
                )
            named[j], amounts[j] = name, amount
        return amounts
    one = hasattr(demand, "__float__") and not hasattr(demand, "__len__")
    if one and len(market.declared) == 1:
        return [demand]  # type: ignore[list-item]
    if not isinstance(demand, Sequence) and not hasattr(demand, "__len__"):
        raise AgentsError(f"demand must list one amount per resource, not {demand!r}")
    amounts = list(demand)  # type: ignore[call-overload]
    if len(amounts) != len(market.declared):
        raise AgentsError(
            f"demand lists {len(amounts)} amounts, but there are {len(market.declared)} resources"
        )
    return amounts


def resource_of(market: Market, name: object) -> int:
    """The number of the resource with this name or, if none has it, with this column."""
    for names in ([r.name for r in market.declared], [r.column for r in market.declared]):
        if name in names:
            return names.index(str(name))
    raise AgentsError(f"there is no resource {name!r}", closest(market, name))


def closest(market: Market, name: object) -> str:
    """A hint for a misspelled resource name."""
    names, columns = zip(*((r.name, r.column) for r in market.declared), strict=True)
    return checks.closest(name, names, columns)


def _checked(number: object, what: str, cap: float) -> float:
    if (isinstance(number, bool) and what == "value") or not hasattr(number, "__float__"):
        raise AgentsError(f"{what} {number!r} is not a number")
    amount = float(number)
    if not 0.0 <= amount < math.inf:
        raise AgentsError(f"{what} {number!r} is not a number from 0 to {cap:g}")
    return amount
