"""Public: an agent's options, checked and turned into codes."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence

from jdpack.errors import AgentsError
from jdpack.market.market import Market

ID_BYTES_MAX = 4096
"""The same limit as in tables of agents (`parquet_guard.TEXT_MAX`)."""

Demand = Sequence[float] | Mapping[str, float]

Coded = tuple[int, list[int]]
"""An option in codes: its value, and its demand for each resource."""


def check_id(agent: object) -> None:
    """Refuse what cannot be the id of an agent."""
    if isinstance(agent, bool) or not (isinstance(agent, str) or hasattr(agent, "__index__")):
        raise AgentsError(f"{agent!r} is not an id", "ids are whole numbers or text")
    try:
        length = len(str(agent).encode())
    except UnicodeEncodeError:
        raise AgentsError(f"id {agent!r} is not text") from None
    if length > ID_BYTES_MAX:
        raise AgentsError(f"the id has {length} bytes; at most {ID_BYTES_MAX} are allowed")


def encoded(
    market: Market, value: float | Sequence[float], demand: Demand | Sequence[Demand]
) -> list[Coded]:
    """An agent's options, each as a value code and demand codes, clamped to the public bounds."""
    return [
        (
            market.value_code(min(worth, market.max_value)),
            [
                market.demand_code(j, min(amount, r.max_demand))
                for j, (r, amount) in enumerate(zip(market.resources, amounts, strict=True))
            ],
        )
        for worth, amounts in stated(market, value, demand)
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
            f"an agent may have 1 to {market.options} options here, not {len(values)}"
        )
    found = []
    for v, d in zip(values, demands, strict=True):
        amounts = [
            _checked(amount, f"demand for {r.name!r}", r.max_demand)
            for r, amount in zip(market.resources, _amounts(market, d), strict=True)
        ]
        if sum(amount > 0.0 for amount in amounts) > market.bundle_size:
            raise AgentsError(f"an option may ask for at most {market.bundle_size} resources")
        found.append((_checked(v, "value", market.max_value), amounts))
    return found


def _amounts(market: Market, demand: object) -> list[float]:
    if isinstance(demand, Mapping):
        amounts: list[float] = [0.0] * len(market.resources)
        named: dict[int, object] = {}
        for name, amount in demand.items():
            j = resource_of(market, name)
            if j in named:
                raise AgentsError(
                    f"{named[j]!r} and {name!r} are the same resource", "name each resource once"
                )
            named[j], amounts[j] = name, amount
        return amounts
    if not isinstance(demand, Sequence) and not hasattr(demand, "__len__"):
        raise AgentsError(f"demand must list one amount per resource, not {demand!r}")
    amounts = list(demand)  # type: ignore[call-overload]
    if len(amounts) != len(market.resources):
        raise AgentsError(
            f"demand lists {len(amounts)} amounts, but there are {len(market.resources)} resources"
        )
    return amounts


def resource_of(market: Market, name: object) -> int:
    """The number of the resource with this name or, if none has it, with this column."""
    for names in ([r.name for r in market.resources], [r.column for r in market.resources]):
        if name in names:
            return names.index(str(name))
    raise AgentsError(f"there is no resource {name!r}", closest(market, name))


def closest(market: Market, name: object) -> str:
    """A hint for a misspelled resource name."""
    names = [r.name for r in market.resources]
    folded = {n.casefold(): n for n in (*(r.column for r in market.resources), *names)}
    near = difflib.get_close_matches(str(name).casefold(), folded, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(repr(folded[n]) for n in near)}?"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"one of: {', '.join(names[:20])}{more}"


def _checked(number: object, what: str, cap: float) -> float:
    if isinstance(number, bool) or not hasattr(number, "__float__"):
        raise AgentsError(f"{what} {number!r} is not a number")
    amount = float(number)
    if not 0.0 <= amount < math.inf:
        raise AgentsError(f"{what} {number!r} is not a number from 0 to {cap:g}")
    return amount
