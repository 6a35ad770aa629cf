"""Public: the agent's function. What do I get, from my own record and the billboard?

The curator's bulk allocation is this same function for every agent (`best_response.shares`,
`best_response.flip`), and golden vectors hold the two together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jdpack.batch import turn
from jdpack.billboard import SHARE, Billboard
from jdpack.coins import COIN_BITS, coin
from jdpack.errors import AgentsError, BillboardError
from jdpack.market import PRICE_UNITS_PER_VALUE_CODE, Market

Demand = Sequence[float] | Mapping[str, float]


@dataclass(frozen=True)
class Outcome:
    """What an agent gets, and why."""

    given: tuple[float, ...]
    """What is given of each option: a fraction of divisible goods, 0 or 1 of others."""
    odds: tuple[float, ...]
    """The share of each option before coins: its chance, where goods are indivisible."""
    coin: float
    """The agent's public coin in [0, 1)."""
    rounds: tuple[int, ...]
    """In how many rounds each option was taken."""

    @property
    def share(self) -> float:
        """All that is given."""
        return sum(self.given)


def allocate(
    board: Billboard,
    *,
    value: float | Sequence[float],
    demand: Demand | Sequence[Demand],
    agent: int | str,
) -> Outcome:
    """Compute one agent's allocation from its own record and the public billboard.

    Args:
        board: a finished billboard.
        value: the value of the agent's option, or one each if it has several.
        demand: an amount for each resource, or {resource name: amount}; one each if several.
        agent: the agent's id. Agents without ids are numbered from 0 in the order of the table.
    """
    if board.certificate is None or board.seed is None:
        raise BillboardError("the run is not finished: its billboard has no seed yet")
    if board.weight == 0:
        raise BillboardError("no round of this billboard counts: it gives nothing to anybody")
    check_id(agent)
    market = board.header.market
    options = encoded(market, value, demand)
    won, rounds = [0] * len(options), [0] * len(options)
    place = coin(board.header.order, agent)
    for step in board.rounds:
        if step.batch is not None and turn(place, step.batch.count) != step.batch.index:
            continue
        taken = best_option(options, step.prices)
        if taken is not None:
            won[taken] += step.weight
            rounds[taken] += 1
    shares = [w * SHARE // board.weight for w in won]
    factors = [_factor(board.certificate.factors, codes) for _, codes in options]
    flipped = coin(board.seed.seed, agent)
    odds = tuple(s * f // SHARE / SHARE for s, f in zip(shares, factors, strict=True))
    given = odds
    if not market.divisible:
        option = _option_of_coin(shares, factors, flipped)
        given = tuple(float(o == option) for o in range(len(options)))
    return Outcome(given, odds, flipped / 2**COIN_BITS, tuple(rounds))


def check_id(agent: object) -> None:
    """Refuse what cannot be the id of an agent."""
    if isinstance(agent, bool) or not (isinstance(agent, str) or hasattr(agent, "__index__")):
        raise AgentsError(f"agent {agent!r} is no id", "ids are whole numbers or texts")
    try:
        str(agent).encode()
    except UnicodeEncodeError:
        raise AgentsError(f"id {agent!r} is not text") from None


def best_option(options: list[tuple[int, list[int]]], prices: tuple[int, ...]) -> int | None:
    """The first option of the largest surplus, if that is not negative. Exact integers."""
    best, taken = -1, None
    for o, (value, codes) in enumerate(options):
        surplus = value * PRICE_UNITS_PER_VALUE_CODE
        surplus -= sum(code * price for code, price in zip(codes, prices, strict=True))
        if surplus > best:
            best, taken = surplus, o
    return taken


def _factor(factors: tuple[int, ...], codes: list[int]) -> int:
    """The least factor of the resources that an option touches."""
    return min((f for f, code in zip(factors, codes, strict=True) if code > 0), default=SHARE)


def _option_of_coin(shares: list[int], factors: list[int], flipped: int) -> int | None:
    """The options stand on [0, 1) one after the other, each as wide as its share before scaling.

    The one that the coin falls on is given if the coin is in the scaled part of its width.
    """
    grain = 2**COIN_BITS // SHARE
    begin = 0
    for option, (share, factor) in enumerate(zip(shares, factors, strict=True)):
        if flipped < begin + share * grain:
            return option if flipped < begin + share * factor * grain // SHARE else None
        begin += share * grain
    return None


def encoded(
    market: Market, value: float | Sequence[float], demand: Demand | Sequence[Demand]
) -> list[tuple[int, list[int]]]:
    """An agent's options as a value code and demand codes each, clamped to the public bounds."""
    several = hasattr(value, "__len__") and not isinstance(value, str)
    if several and not hasattr(demand, "__len__"):
        raise AgentsError(f"demand must list an option for each value, not {demand!r}")
    values, demands = (list(value), list(demand)) if several else ([value], [demand])  # type: ignore[arg-type]
    if len(values) != len(demands):
        raise AgentsError(f"there are {len(values)} values for {len(demands)} demands")
    if not 1 <= len(values) <= market.options:
        raise AgentsError(f"an agent has 1 to {market.options} options here, not {len(values)}")
    found = []
    for v, d in zip(values, demands, strict=True):
        amounts = _amounts(market, d)
        codes = [
            market.demand_code(j, _checked(a, f"demand for {r.name!r}", r.max_demand))
            for j, (r, a) in enumerate(zip(market.resources, amounts, strict=True))
        ]
        if sum(code > 0 for code in codes) > market.bundle_size:
            raise AgentsError(f"an option may touch at most {market.bundle_size} resources")
        found.append((market.value_code(_checked(v, "value", market.max_value)), codes))
    return found


def _amounts(market: Market, demand: object) -> list[float]:
    if isinstance(demand, Mapping):
        names = [r.name for r in market.resources]
        for name in demand:
            if name not in names:
                raise AgentsError(
                    f"there is no resource {name!r}", f"one of: {', '.join(names[:20])}"
                )
        return [demand.get(name, 0.0) for name in names]
    if not isinstance(demand, Sequence) and not hasattr(demand, "__len__"):
        raise AgentsError(f"demand must list an amount for each resource, not {demand!r}")
    amounts: list[float] = list(demand)  # type: ignore[call-overload]
    if len(amounts) != len(market.resources):
        raise AgentsError(
            f"demand lists {len(amounts)} amounts, and there are {len(market.resources)} resources"
        )
    return amounts


def _checked(number: object, what: str, cap: float) -> float:
    """A number clamped to its public bound, as the curator's encoding may do."""
    if isinstance(number, bool) or not hasattr(number, "__float__"):
        raise AgentsError(f"{what} {number!r} is not a number")
    amount = float(number)
    if not 0.0 <= amount < math.inf:
        raise AgentsError(f"{what} {number!r} is not a number from 0 to {cap:g}")
    return min(amount, cap)
