"""Public: why an agent gets what it gets, and how close it was, in exact whole numbers.

`pages/web/allocate.js` computes the same in the browser, and the tests check that they agree.
Shares are in 1/SHARE, costs in price units, values in value codes; `Explanation.to_dict` also has
them in the user's units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, overload

from jdpack.agent.allocate import (
    Settled,
    best,
    check_given,
    coin_places,
    given_of,
    own_options,
    settle,
    settle_request,
    shares_of,
)
from jdpack.agent.check_code import as_meant, check_code
from jdpack.agent.options import (
    Coded,
    CodedRequest,
    Demand,
    Request,
    counted,
    encoded,
    encoded_requests,
    stated,
)
from jdpack.billboard.board import Billboard
from jdpack.common import notebook
from jdpack.common.coins import COIN_BITS
from jdpack.errors import AgentsError
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.market.market import Market


@dataclass(frozen=True)
class Close:
    """What another value of an option would have got, at the same prices, all else equal."""

    more: int | None
    """The smallest value that gets more than the agent's own does; None if there is none."""
    kept: int
    """The lowest value to which the agent's own could drop without getting less."""
    most: int
    """The smallest value that gets the maximum."""
    most_given: int
    """The maximum."""


@dataclass(frozen=True)
class OptionOutcome:
    """The outcome of one option, in whole numbers."""

    value_code: int
    demand_codes: tuple[int, ...]
    cost: int | None
    """Its cost at the final prices, or at those of the agent's turn; None if that did not come."""
    surplus: int | None
    """Value minus cost, in price units; not negative if the option is worth its price."""
    rounds: int
    """The number of rounds in which it was taken."""
    won: int
    """The weight of these rounds."""
    share: int
    factor: int
    scaled: int
    """Share times factor: what the agent gets of divisible goods; otherwise its chance."""
    given: int
    coin_from: int
    """Indivisible goods: the agent gets the option if its coin is at least this ..."""
    coin_below: int
    """... and below this."""
    close: Close


@dataclass(frozen=True)
class Explanation:
    """What an agent gets, why, and how close it was."""

    market: Market
    """The market on the billboard."""
    agent: str
    """The id, as text."""
    group: str | None
    """The group, as stated; None if none was."""
    stated: tuple[tuple[float, tuple[float, ...]], ...]
    """The value and the amounts of each option, as stated: not clamped."""
    options: tuple[OptionOutcome, ...]
    """The outcome of each option."""
    asked: tuple[int, ...]
    """The rounds in which the agent was asked, counted from 0 among the rounds that count."""
    batches: int
    """The number of turns if agents were asked in turns; otherwise 0."""
    even: bool
    """Whether all rounds in `asked` have the same weight."""
    weight: int
    """The total weight of all rounds."""
    coin: int
    """The agent's coin, from 0 to 2^53 - 1, or that of the request."""
    code: str
    """The check code of the id and the record (`jdpack.agent.check_code`): for a letter."""
    checked: bool = False
    """Whether a check code was given; then it was right."""
    not_private: str | None = None
    """Set if the run protects nobody: why."""
    request: str | None = None
    """The name of the request, if agents may make several."""
    left_out: str | None = None
    """The bound of `PersonBounds` that the request would exceed. Then it gets nothing, whatever its
    value, and has no option outcomes."""

    def __str__(self) -> str:
        from jdpack.agent.in_words import tell  # which imports this module

        return tell(self)

    def __repr__(self) -> str:
        gets = ", ".join(f"{amount:.6g} of {name}" for name, amount in self.amounts.items())
        which = "" if self.request is None else f", request {self.request!r}"
        return f"Explanation(agent {self.agent!r}{which} gets {gets or 'nothing'})"

    def _repr_html_(self) -> str:
        return notebook.typed(str(self))

    @property
    def amounts(self) -> dict[str, float]:
        """The amount that the agent gets of each resource, in its unit; only those that it gets."""
        sums = [0.0] * len(self.market.declared)
        for option, (_, amounts) in zip(self.options, self.stated, strict=False):
            for j, amount in enumerate(counted(self.market, amounts)):
                sums[j] += amount * option.given / SHARE
        return {r.name: s for r, s in zip(self.market.declared, sums, strict=True) if s > 0.0}

    def worth(self, price_units: int) -> float:
        """Price units, converted to the unit of values."""
        return price_units / PRICE_UNITS_PER_VALUE_CODE * self.market.value_step

    def value_of(self, code: int) -> float:
        """The smallest value with this code; the product is exact."""
        return code * self.market.value_step

    def to_dict(self) -> dict[str, Any]:
        """For programs: everything in the user's units, and the whole numbers under `exact`."""
        which = {} if self.request is None else {"request": self.request, "left_out": self.left_out}
        return {
            **which,
            "given": [o.given / SHARE for o in self.options],
            "scaled": [o.scaled / SHARE for o in self.options],
            "coin": self.coin / 2**COIN_BITS,
            "rounds": [o.rounds for o in self.options],
            "share": sum(o.given / SHARE for o in self.options),
            "amounts": self.amounts,
            "check_code": self.code,
            "checked": self.checked,
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


class Explanations(tuple[Explanation, ...]):
    """The explanations of all requests of one agent, in their order.

    Args:
        explanations: one for each request.
    """

    __slots__ = ()

    def __new__(cls, explanations: Iterable[Explanation] = ()) -> Self:
        return super().__new__(cls, explanations)

    def __str__(self) -> str:
        from jdpack.agent.in_words import tell_all  # which imports this module

        return tell_all(self)

    def _repr_html_(self) -> str:
        return notebook.typed(str(self))


@overload
def explain(
    board: Billboard | str | Path,
    *,
    value: float | Sequence[float],
    demand: Demand | Sequence[Demand],
    agent: int | str,
    group: int | str | None = None,
    code: str | None = None,
) -> Explanation: ...


@overload
def explain(
    board: Billboard | str | Path,
    *,
    requests: Sequence[Request | Mapping[str, Any]],
    agent: int | str,
    group: int | str | None = None,
    code: str | None = None,
) -> Explanations: ...


def explain(
    board: Billboard | str | Path,
    *,
    value: Any = None,
    demand: Any = None,
    agent: int | str,
    group: int | str | None = None,
    requests: Sequence[Request | Mapping[str, Any]] | None = None,
    code: str | None = None,
) -> Explanation | Explanations:
    """Compute one agent's allocation as `allocate` does, with everything it follows from.

    Args:
        board: a finished billboard, or the path of its file.
        value: the value of the agent's option, or a list with one value per option.
        demand: one amount per resource, or {resource name: amount}; or a list of these.
        agent: the agent's id. Agents without ids are numbered from 0 in the order of the table.
        group: the agent's group, if the market has groups and the agent is in one.
        requests: instead of value and demand, if agents may make several requests: **all** of the
            agent's, in the order of its record. The result has one Explanation for each.
        code: the check code in the agent's letter; a record that it does not belong to is refused.
    """
    board = Billboard.of(board)
    market = board.header.market
    check_given(market, value, demand, requests)
    if requests is not None:
        coded = encoded_requests(market, requests, group)
        all_codes = [(own.request.name, own.options) for own in coded]
        right = _checked_code(board, agent, all_codes, code)
        return Explanations(
            _explained(
                board,
                settle_request(board, own, agent),
                stated(market, own.request.value, own.request.demand),
                agent,
                group,
                own,
                right,
                code is not None,
            )
            for own in coded
        )
    if board.header.local:
        options, problem = own_options(market, value, demand, group)
        if problem is not None:
            raise AgentsError(problem, "such a record took nothing and gets nothing")
    else:
        options = encoded(market, value, demand, group)
    settled = settle(board, options, agent)
    right = _checked_code(board, agent, [(None, options)], code)
    record = stated(market, value, demand)
    return _explained(board, settled, record, agent, group, None, right, code is not None)


def _checked_code(
    board: Billboard,
    agent: int | str,
    requests: Sequence[tuple[str | None, Sequence[Coded]]],
    given: str | None,
) -> str:
    """The check code of a record, if the one that is given is the same."""
    right = check_code(board.header.order, agent, requests)
    if given is not None and as_meant(given) != right:
        raise AgentsError(
            f"{given!r} is not the check code of this record",
            "something is mistyped: the id, a number, or the code",
        )
    return right


def _explained(
    board: Billboard,
    settled: Settled,
    stated: list[tuple[float, list[float]]],
    agent: int | str,
    group: int | str | None,
    coded: CodedRequest | None,
    code: str,
    checked: bool,
) -> Explanation:
    left_out = None if coded is None else coded.left_out
    rounds = list(board.rounds)
    batches = 0 if rounds[0].batch is None else rounds[0].batch.count
    prices = board.final_prices if not batches else None
    if batches and settled.asked:
        prices = rounds[settled.asked[0]].prices
    places = coin_places(settled.shares, settled.factors)
    return Explanation(
        market=board.header.market,
        agent=str(agent),
        group=None if group is None else str(group),
        stated=tuple((v, tuple(amounts)) for v, amounts in stated),
        options=tuple(
            _outcome(board, settled, o, places[o], prices)
            for o in range(0 if left_out else len(settled.options))
        ),
        asked=settled.asked,
        batches=batches,
        even=len(set(settled.weights)) <= 1,
        weight=board.weight,
        coin=settled.coin,
        code=code,
        checked=checked,
        not_private=None if board.header.private else board.header.why_not_private,
        request=None if coded is None else coded.request.name,
        left_out=left_out,
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
    """What the agent would get of option `o` at each value of it, at the same prices.

    A list of (from, given): value codes from `from` up to the next entry give `given`. In each
    round, the option is taken above some value; below it, the best other option is taken, or none.
    So as the value rises, rounds switch to the option one by one. All else stays equal.
    """
    market = board.header.market
    values = [value for value, _ in settled.options]
    won, moves = [0] * len(values), []
    for t, weight in enumerate(settled.weights):
        costs = [own[t] for own in settled.costs]
        least, other = costs[o], best(values, costs, skip=o)
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
    """Where the agent's own value lies among the steps of `by_value`."""
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
