"""Public: why an agent gets what it gets, and how close it was. Exact whole numbers.

`pages/web/allocate.js` computes the same in the browser, and the tests hold the two together.
Shares are in 1/SHARE, costs in price units, values in value codes; `Explanation.to_dict` has them
in the user's terms too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jdpack.agent.allocate import (
    Settled,
    best,
    coin_places,
    given_of,
    own_options,
    settle,
    shares_of,
)
from jdpack.agent.options import Demand, encoded, stated
from jdpack.billboard.board import Billboard
from jdpack.common.coins import COIN_BITS
from jdpack.errors import AgentsError
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.market.market import Market


@dataclass(frozen=True)
class Close:
    """What another value of an option would have brought, all else equal, at the same prices."""

    more: int | None
    """The least value above the agent's own from which more of it would be given; None if none."""
    kept: int
    """The least value down to which, from the agent's own, no less would be given."""
    most: int
    """The least value from which as much is given as any value brings,"""
    most_given: int
    """which is so much."""


@dataclass(frozen=True)
class OptionOutcome:
    """What became of one option, in whole numbers."""

    value_code: int
    demand_codes: tuple[int, ...]
    cost: int | None
    """At the final prices, or those of the agent's turn; None if its turn did not come."""
    surplus: int | None
    """The value less the cost, in price units; not negative where the option is worth its price."""
    rounds: int
    """In how many rounds it was taken, of those in which the agent was asked."""
    won: int
    """The weight of these rounds."""
    share: int
    factor: int
    scaled: int
    """The share times the factor: what is given of divisible goods, and else the chance."""
    given: int
    coin_from: int
    """Of indivisible goods, it is given if the coin is not below this,"""
    coin_below: int
    """and below this."""
    close: Close


@dataclass(frozen=True)
class Explanation:
    """What an agent gets, why, and how close it was."""

    market: Market
    """The billboard's."""
    agent: str
    """The id, as a text."""
    stated: tuple[tuple[float, tuple[float, ...]], ...]
    """The value and the amounts of each option, as they were given: not clamped."""
    options: tuple[OptionOutcome, ...]
    """What became of each option."""
    asked: tuple[int, ...]
    """The numbers, from 0 and of those that count, of the rounds in which the agent was asked."""
    batches: int
    """How many turns there were, if agents were asked in turns; else 0."""
    even: bool
    """Whether all these rounds weigh the same."""
    weight: int
    """The weight of all rounds."""
    coin: int
    """The agent's coin, of 2^53."""

    @property
    def amounts(self) -> dict[str, float]:
        """What is given of each resource, in its unit; those of which nothing is are left out."""
        sums = [0.0] * len(self.market.resources)
        for option, (_, amounts) in zip(self.options, self.stated, strict=True):
            for j, (r, amount) in enumerate(zip(self.market.resources, amounts, strict=True)):
                sums[j] += min(amount, r.max_demand) * option.given / SHARE
        return {r.name: s for r, s in zip(self.market.resources, sums, strict=True) if s > 0.0}

    def worth(self, price_units: int) -> float:
        """Price units in the terms of values."""
        return price_units / PRICE_UNITS_PER_VALUE_CODE * self.market.value_step

    def value_of(self, code: int) -> float:
        """The least value with this code; the product is exact."""
        return code * self.market.value_step

    def to_dict(self) -> dict[str, Any]:
        """For programs: everything in the user's terms, and the whole numbers under `exact`."""
        return {
            "given": [o.given / SHARE for o in self.options],
            "odds": [o.scaled / SHARE for o in self.options],
            "coin": self.coin / 2**COIN_BITS,
            "rounds": [o.rounds for o in self.options],
            "share": sum(o.given / SHARE for o in self.options),
            "amounts": self.amounts,
            "rounds_asked": len(self.asked),
            "turn": self.asked[0] + 1 if self.batches and self.asked else None,
            "options": [self._option(o) for o in self.options],
            "exact": {
                "coin": self.coin,
                "weight": self.weight,
                "options": [asdict(o) for o in self.options],
            },
        }

    def _option(self, option: OptionOutcome) -> dict[str, Any]:
        close = option.close
        return {
            "value": self.value_of(option.value_code),
            "cost": None if option.cost is None else self.worth(option.cost),
            "surplus": None if option.surplus is None else self.worth(option.surplus),
            "share": option.share / SHARE,
            "factor": option.factor / SHARE,
            "coin_from": option.coin_from / 2**COIN_BITS,
            "coin_below": option.coin_below / 2**COIN_BITS,
            "more_from_value": None if close.more is None else self.value_of(close.more),
            "kept_from_value": self.value_of(close.kept),
            "most_from_value": self.value_of(close.most),
            "most_given": close.most_given / SHARE,
        }


def explain(
    board: Billboard,
    *,
    value: float | Sequence[float],
    demand: Demand | Sequence[Demand],
    agent: int | str,
) -> Explanation:
    """Compute one agent's allocation as `allocate` does, with all that it follows from.

    Args:
        board: a finished billboard.
        value: the value of the agent's option, or one each if it has several.
        demand: an amount for each resource, or {resource name: amount}; one each if several.
        agent: the agent's id. Agents without ids are numbered from 0 in the order of the table.
    """
    market = board.header.market
    if board.header.local:
        options, problem = own_options(market, value, demand)
        if problem is not None:
            raise AgentsError(problem, "such a record took nothing, and gets nothing")
    else:
        options = encoded(market, value, demand)
    settled = settle(board, options, agent)
    rounds = list(board.rounds)
    batches = 0 if rounds[0].batch is None else rounds[0].batch.count
    prices = board.final_prices if not batches else None
    if batches and settled.asked:
        prices = rounds[settled.asked[0]].prices
    places = coin_places(settled.shares, settled.factors)
    return Explanation(
        market=market,
        agent=str(agent),
        stated=tuple((v, tuple(amounts)) for v, amounts in stated(market, value, demand)),
        options=tuple(
            _outcome(board, settled, o, places[o], prices) for o in range(len(settled.options))
        ),
        asked=settled.asked,
        batches=batches,
        even=len(set(settled.weights)) <= 1,
        weight=board.weight,
        coin=settled.coin,
    )


def _outcome(
    board: Billboard, settled: Settled, o: int, place: tuple[int, int], prices: Sequence[int] | None
) -> OptionOutcome:
    code, codes = settled.options[o]
    cost = None
    if prices is not None:
        cost = sum(c * p for c, p in zip(codes, prices, strict=True))
    return OptionOutcome(
        value_code=code,
        demand_codes=tuple(codes),
        cost=cost,
        surplus=None if cost is None else code * PRICE_UNITS_PER_VALUE_CODE - cost,
        rounds=settled.times[o],
        won=settled.won[o],
        share=settled.shares[o],
        factor=settled.factors[o],
        scaled=settled.scaled[o],
        given=settled.given[o],
        coin_from=place[0],
        coin_below=place[1],
        close=closeness(board, settled, o),
    )


def by_value(board: Billboard, settled: Settled, o: int) -> list[tuple[int, int]]:
    """What would be given of option `o` for each value of it, at the same prices, all else equal.

    A list of (from, given): from that value code on, up to the next entry, so much is given.
    A round takes the option from some value on, whatever the others are worth; below, it takes
    the best of the others, or none. So as the value rises, rounds move over to it one by one.
    """
    market = board.header.market
    values = [value for value, _ in settled.options]
    won, moves = [0] * len(values), []
    for t, weight in enumerate(settled.weights):
        costs = [own[t] for own in settled.costs]
        least, other = costs[o], best(values, costs, but=o)
        if other is not None:
            won[other] += weight
            # On a tie the first option is taken.
            least += values[other] * PRICE_UNITS_PER_VALUE_CODE - costs[other] + (other < o)
        code = -(-least // PRICE_UNITS_PER_VALUE_CODE)
        if code <= market.value_cap_code:
            moves.append((code, weight, other))
    steps: list[tuple[int, int]] = []

    def note(code: int) -> None:
        shares = shares_of(won, board.weight)
        given = given_of(market, shares, settled.factors, settled.coin)[o]
        if steps and steps[-1][0] == code:
            steps.pop()
        if not steps or steps[-1][1] != given:
            steps.append((code, given))

    note(0)
    for code, weight, other in sorted(moves, key=lambda move: move[0]):
        if other is not None:
            won[other] -= weight
        won[o] += weight
        note(code)
    return steps


def closeness(board: Billboard, settled: Settled, o: int) -> Close:
    """Where the agent's own value stands among the steps of `by_value`."""
    steps = by_value(board, settled, o)
    own = settled.options[o][0]
    at = max(i for i, (code, _) in enumerate(steps) if code <= own)
    given = steps[at][1]
    kept = at
    while kept > 0 and steps[kept - 1][1] >= given:
        kept -= 1
    most, most_given = max(steps, key=lambda step: step[1])
    more = next((code for code, brings in steps[at + 1 :] if brings > given), None)
    return Close(more, steps[kept][0], most, most_given)
