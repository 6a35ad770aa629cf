"""Public: the agent's function. What do I get, from my own record and the billboard?

The curator's bulk allocation computes the same function for every agent (`best_response.shares`,
`giving.flip`); golden vectors check that the two agree. `jdpack.agent.explain` says why.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

from jdpack.agent.options import (
    Coded,
    CodedRequest,
    Demand,
    Request,
    check_id,
    encoded,
    encoded_requests,
)
from jdpack.billboard.board import Billboard
from jdpack.common.batches import turn
from jdpack.common.coins import COIN_BITS, coin, request_key
from jdpack.errors import AgentsError, BillboardError, RecordWarning, fit
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.market.market import Market

_ALL_OF_THEM = "agents may make several requests here, so all requests are needed"


@dataclass(frozen=True)
class Outcome:
    """What an agent gets, or one of its requests, and why."""

    given: tuple[float, ...]
    """What the agent gets of each option: a fraction of divisible goods, 0 or 1 of others."""
    scaled: tuple[float, ...]
    """The share of each option after scaling; for indivisible goods, the chance of its coin."""
    coin: float
    """The agent's public coin in [0, 1)."""
    rounds: tuple[int, ...]
    """The number of rounds in which each option was taken."""
    request: str | None = None
    """The request's name, if agents may make several."""
    left_out: str | None = None
    """The bound of `PersonBounds` that the request would exceed, so that it gets nothing."""

    @property
    def share(self) -> float:
        """The sum over all options."""
        return sum(self.given)


@overload
def allocate(
    board: Billboard | str | Path,
    *,
    value: float | Sequence[float],
    demand: Demand | Sequence[Demand],
    agent: int | str,
    group: int | str | None = None,
) -> Outcome: ...


@overload
def allocate(
    board: Billboard | str | Path,
    *,
    requests: Sequence[Request | Mapping[str, Any]],
    agent: int | str,
    group: int | str | None = None,
) -> tuple[Outcome, ...]: ...


def allocate(
    board: Billboard | str | Path,
    *,
    value: Any = None,
    demand: Any = None,
    agent: int | str,
    group: int | str | None = None,
    requests: Sequence[Request | Mapping[str, Any]] | None = None,
) -> Outcome | tuple[Outcome, ...]:
    """Compute one agent's allocation from its own record and the public billboard.

    Args:
        board: a finished billboard, or the path of its file.
        value: the value of the agent's option, or a list with one value per option.
        demand: one amount per resource, or {resource name: amount}; or a list of these.
        agent: the agent's id. Agents without ids are numbered from 0 in the order of the table.
        group: the agent's group, if the market has groups and the agent is in one.
        requests: instead of value and demand, if agents may make several requests: **all** of the
            agent's, in the order of its record, because they are counted together. The result has
            one Outcome for each.

    A record that the market does not allow is refused. If agents add the noise themselves
    (`jdpack.run.local`), such a record took nothing and gets nothing: the Outcome has no options,
    and there is a RecordWarning.
    """
    board = Billboard.of(board)
    market, problem = board.header.market, None
    check_given(market, value, demand, requests)
    if requests is not None:
        coded = encoded_requests(market, requests, group)
        return tuple(_outcome_of(settle_request(board, own, agent), own) for own in coded)
    if board.header.local:
        options, problem = own_options(market, value, demand, group)
    else:
        options = encoded(market, value, demand, group)
    if problem is not None:
        tell_owner(problem, stacklevel=3)
    return _outcome_of(settle(board, options, agent))


def check_given(market: Market, value: object, demand: object, requests: object) -> None:
    """Refuse a record that is given in two ways, or in none."""
    if requests is not None and (value is not None or demand is not None):
        raise AgentsError("requests replaces value and demand", "give one or the other")
    if requests is None and market.requests > 1:
        raise AgentsError(_ALL_OF_THEM, "a request is counted together with those before it")


def _outcome_of(settled: Settled, coded: CodedRequest | None = None) -> Outcome:
    return Outcome(
        tuple(g / SHARE for g in settled.given),
        tuple(s / SHARE for s in settled.scaled),
        settled.coin / 2**COIN_BITS,
        settled.times,
        None if coded is None else coded.request.name,
        None if coded is None else coded.left_out,
    )


@dataclass(frozen=True)
class Settled:
    """What an agent gets, in whole numbers, with one entry per option; shares are in 1/SHARE."""

    options: list[Coded]
    asked: tuple[int, ...]
    """The rounds in which the agent is asked, counted from 0 among the rounds that count."""
    weights: tuple[int, ...]
    """The weights of these rounds."""
    costs: tuple[tuple[int, ...], ...]
    """What each option costs in each of these rounds, in price units."""
    won: tuple[int, ...]
    """The total weight of the rounds in which the option was taken."""
    times: tuple[int, ...]
    """The number of rounds in which the option was taken."""
    shares: tuple[int, ...]
    factors: tuple[int, ...]
    scaled: tuple[int, ...]
    coin: int
    given: tuple[int, ...]


def settle_request(board: Billboard, coded: CodedRequest, agent: int | str) -> Settled:
    """`settle` for one of several requests; one that is left out takes nothing."""
    settled = settle(board, coded.options, agent, coded.request.name)
    if coded.left_out is None:
        return settled
    none = (0,) * len(coded.options)
    return replace(settled, won=none, times=none, shares=none, scaled=none, given=none)


def settle(
    board: Billboard, options: list[Coded], agent: int | str, request: str | None = None
) -> Settled:
    """Compute what an agent with these options gets: exact, and the same in any language.

    `request` is the name of the request that has these options, if agents may make several.
    """
    if board.certificate is None or board.seed is None:
        raise BillboardError("the run is not finished: its billboard has no seed yet")
    if board.weight == 0:
        raise BillboardError("no round of this billboard counts, so it gives nothing to anybody")
    check_id(agent)
    hash = board.header.coin_hash
    place = coin(board.header.order, agent, hash)
    rounds = [
        (number, step)
        for number, step in enumerate(board.rounds)
        if step.batch is None or turn(place, step.batch.count) == step.batch.index
    ]
    touched = [[(j, code) for j, code in enumerate(codes) if code > 0] for _, codes in options]
    costs = tuple(
        tuple(sum(code * step.prices[j] for j, code in pairs) for _, step in rounds)
        for pairs in touched
    )
    won, times = [0] * len(options), [0] * len(options)
    for t, (_, step) in enumerate(rounds):
        taken = best([value for value, _ in options], [own[t] for own in costs])
        if taken is not None:
            won[taken] += step.weight
            times[taken] += 1
    shares = shares_of(won, board.weight)
    factors = tuple(_factor(board.certificate.factors, codes) for _, codes in options)
    key = agent if request is None else request_key(agent, request)
    flipped = coin(board.seed.seed, key, hash)
    return Settled(
        options=options,
        asked=tuple(number for number, _ in rounds),
        weights=tuple(step.weight for _, step in rounds),
        costs=costs,
        won=tuple(won),
        times=tuple(times),
        shares=shares,
        factors=factors,
        scaled=_scaled(shares, factors),
        coin=flipped,
        given=given_of(board.header.market, shares, factors, flipped),
    )


def shares_of(won: Sequence[int], weight: int) -> tuple[int, ...]:
    """The share of each option: the weight of its rounds divided by the weight of all."""
    return tuple(w * SHARE // weight for w in won)


def given_of(
    market: Market, shares: Sequence[int], factors: Sequence[int], flipped: int
) -> tuple[int, ...]:
    """What the agent gets of each option: a share of divisible goods, all or nothing of others."""
    if market.divisible:
        return _scaled(shares, factors)
    return tuple(
        SHARE if begin <= flipped < end else 0 for begin, end in coin_places(shares, factors)
    )


def coin_places(shares: Sequence[int], factors: Sequence[int]) -> list[tuple[int, int]]:
    """Where the coin must fall to give each option: from the first number, below the second.

    The options lie on [0, 1) one after the other, each as wide as its share before scaling. The
    agent gets the option that the coin falls on, if the coin is in the scaled part of its width.
    """
    grain = 2**COIN_BITS // SHARE
    places, begin = [], 0
    for share, factor in zip(shares, factors, strict=True):
        places.append((begin, begin + share * factor * grain // SHARE))
        begin += share * grain
    return places


def best_option(options: list[Coded], prices: tuple[int, ...]) -> int | None:
    """The option that an agent takes at these prices, if any."""
    costs = [
        sum(code * price for code, price in zip(codes, prices, strict=True)) for _, codes in options
    ]
    return best([value for value, _ in options], costs)


def best(values: Sequence[int], costs: Sequence[int], skip: int | None = None) -> int | None:
    """The first option with the largest surplus, unless that is negative; `skip` does not count."""
    most, taken = -1, None
    for o, (value, cost) in enumerate(zip(values, costs, strict=True)):
        surplus = value * PRICE_UNITS_PER_VALUE_CODE - cost
        if o != skip and surplus > most:
            most, taken = surplus, o
    return taken


def _scaled(shares: Sequence[int], factors: Sequence[int]) -> tuple[int, ...]:
    return tuple(s * f // SHARE for s, f in zip(shares, factors, strict=True))


def _factor(factors: tuple[int, ...], codes: list[int]) -> int:
    """The smallest factor of the resources that an option asks for."""
    return min((f for f, code in zip(factors, codes, strict=True) if code > 0), default=SHARE)


def own_options(
    market: Market, value: Any, demand: Any, group: Any = None
) -> tuple[list[Coded], str | None]:
    """The options of an agent who adds the noise itself, and what is wrong with its record, if any.

    A record that cannot be encoded has no options, so it takes nothing and gets nothing. This
    never raises: an agent that stopped here would be silent, and its silence would show the
    curator that its record is outside the bounds.
    """
    try:
        return encoded(market, value, demand, group), None
    except Exception as error:  # including what `float` or `len` raise for types of the caller's
        return [], fit(error.message if isinstance(error, AgentsError) else repr(error))


def tell_owner(problem: str, *, stacklevel: int) -> None:
    """Warn the owner of a record that takes nothing. Never raises, even if warnings are errors."""
    with contextlib.suppress(RecordWarning):
        warnings.warn(
            RecordWarning(
                f"this record takes nothing and gets nothing: {problem}",
                "only you see this; others see an answer like any other",
            ),
            stacklevel=stacklevel,
        )
