"""Public: the bounds on loads and value that the closing releases and the certificate share.

C1 to C6 are the statements that `jdpack.protocol.certificate` proves.
"""

from __future__ import annotations

import math

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Release
from jdpack.common import portable_math
from jdpack.errors import BillboardError
from jdpack.market.grid import CHANCE_UNIT, DEMAND_CODE_MAX, PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.market.market import Market
from jdpack.policies import registry
from jdpack.privacy import tail_bounds
from jdpack.privacy.noise import Noise, deviation
from jdpack.privacy.queries import Query
from jdpack.privacy.tail_bounds import Sum

VALUE_BETA = 0.01
"""The probability that any statement about value fails."""

SURELY_BETA = 1e-9
"""The probability that a load exceeds even `Certificate.load_surely`."""

DOWN = 1.0 - 1e-12  # keeps float rounding in the bounds on the safe side


def factors(board: Billboard) -> tuple[int, ...]:
    """The scale factor of each resource (C1, C2), in units of 1/SHARE."""
    if board.weight == 0:
        raise BillboardError("no round counts, so there is nothing to certify")
    market, budget = board.header.market, board.header.budget
    at_most = load_bounds(board)
    if market.divisible:
        return tuple(SHARE if most <= 1.0 else math.floor(SHARE * DOWN / most) for most in at_most)
    tail = tail_bounds.coin_tail(market, budget)
    return tuple(
        _thinning(load, DEMAND_CODE_MAX / supply, tail, repaired=board.header.repaired)
        for load, supply in zip(at_most, market.supply_codes, strict=True)
    )


def load_bounds(board: Billboard, beta: float | None = None) -> list[float]:
    """Upper bounds on the loads before scaling or thinning: C1, C2 or C3.

    They fail with probability at most `beta`, by default that of the budget.
    """
    market, budget = board.header.market, board.header.budget
    policy = registry.from_dict(board.header.policy)
    tail, truncated = tail_bounds.tail(market, budget, beta), policy.truncated
    totals, sums = _noisy_totals(board)
    if not board.header.coins:
        radii = [noise.radius(tail, truncated=truncated) for noise in sums]
    else:
        # How the bound is fitted must be fixed beforehand, and the weight of the rounds may not be.
        weight = float(policy.outlook(market, budget).weight)
        unit = CHANCE_UNIT * (board.weight / weight) ** 2
        chance = closing_release(board, "chance")
        radii = [
            noise.radius_with_coins(
                tail_bounds.coins_on(market, budget, noise, weight, unit * answer),
                tail,
                truncated=truncated,
            )
            for noise, answer in zip(sums, chance.answer, strict=False)  # the last is of value
        ]
    # What one more agent could add, because a repair must be as rare for neighbours (`Budget`).
    spare = board.weight * DEMAND_CODE_MAX if board.header.repaired else 0
    return [
        max(0.0, (total + spare + radius) / (board.weight * supply * DOWN))
        for total, radius, supply in zip(totals, radii, market.supply_codes, strict=True)
    ]


def _noisy_totals(board: Billboard) -> tuple[list[int], list[Sum]]:
    """For each resource: the weighted sum of its noisy demands, and what is known of its noise."""
    market, budget = board.header.market, board.header.budget
    m = len(market.resources)
    outlook = registry.from_dict(board.header.policy).outlook(market, budget)
    totals, variances = [0] * m, [0.0] * m
    scales: list[list[float]] = [[] for _ in range(m)]
    counted = _resting(board)
    alike = all(len(deviation(release.step.noise)) == 1 for release in counted)
    for release in counted:
        weight, spreads = release.step.weight, deviation(release.step.noise)
        for j, answer in enumerate(release.answer):
            totals[j] += weight * answer
        for j in range(1 if alike else m):
            spread = spreads[j] if len(spreads) > 1 else spreads[0]
            variances[j] += (weight * spread) ** 2
            scales[j].append(spread)
    if outlook.scales is None:
        return totals, [Sum(outlook.variance, peak=outlook.peak)] * m
    whole = float(sum(release.step.weight for release in counted))
    sums = [Sum(variances[j], whole, tuple(scales[j])) for j in range(1 if alike else m)]
    return totals, sums * m if alike else sums


def _resting(board: Billboard) -> list[Release]:
    """The releases that bound the load: all rounds, or with batches disjoint blocks of them (C3).

    The blocks are found from the last batch backwards.
    """
    counted = [release for release in board.releases if release.step.weight]
    if counted and counted[0].step.batch is None:
        return counted
    found, last = [], len(counted) - 1
    while last >= 0:
        found.append(counted[last])
        last -= counted[last].step.span
    return found[::-1]


def _thinning(load: float, q: float, tail: float, *, repaired: bool) -> int:
    """C2: the largest factor at which coins keep a load of at most 1, for neighbours too."""
    if load <= 1.0:
        return SHARE
    # `load` leaves room for one more cap; these records have q less, and must keep q less.
    load, most = (load - q, DOWN - q) if repaired else (load, DOWN)
    if most <= 0.0:
        return 0
    low, high = 0, math.floor(SHARE * most / load)  # low fits (nothing is kept), high does not
    while high - low > 1:
        middle = (low + high) // 2
        fits = load / q * tail_bounds.entropy(most / load, middle / SHARE) >= tail
        low, high = (middle, high) if fits else (low, middle)
    return low


def value_radius(market: Market, noise: Noise) -> float:
    """How far the last number of a release about value may be off, with its part of VALUE_BETA."""
    return tail_bounds.release_radius(deviation(noise)[-1], value_tail(market))


def coin_luck(board: Billboard) -> float:
    """C5: the most that coins can have taken from the value of the averaged allocation."""
    if not board.header.coins:
        return 0.0
    release = closing_release(board, "chance")
    market = board.header.market
    most, tail = float(dearest(board)), value_tail(market)
    variance = max(0.0, release.answer[-1] + value_radius(market, release.step.noise)) * CHANCE_UNIT
    # Values are rounded to whole units before their variance is taken (C5).
    deviation = (math.sqrt(variance) + math.sqrt(market.agents) / 2.0) * most / 2**16
    return math.sqrt(2.0 * tail) * deviation + most * tail / 3.0


def thinned_value(board: Billboard, scaling: tuple[int, ...]) -> float:
    """About how much value thinning takes away, by the bound of C5."""
    welfare = float(closing_release(board, "welfare").answer[0])
    return thinned_away(board.header.market, max(0.0, welfare), min(scaling) / SHARE)


def thinned_away(market: Market, welfare: float, f: float) -> float:
    """C5: the most value that thinning takes from grants, each kept with odds of at least f."""
    if f >= 1.0:
        return 0.0
    cap, tail = float(market.value_cap_code), value_tail(market)
    return tail_bounds.kept_at_most(welfare, cap, 1.0 - f, tail)


def dearest(board: Billboard) -> int:
    """The most that any option can have cost in any round that counts, in value codes.

    It is at most the value cap, because nobody takes what costs more, and at least 1, even if
    everything is free, because it is a unit.
    """
    market = board.header.market
    most: list[int] = [
        max(prices) for prices in zip(*(s.prices for s in board.rounds), strict=True)
    ]
    costs = DEMAND_CODE_MAX * sum(sorted(most, reverse=True)[: market.bundle_width])
    return min(market.value_cap_code, max(1, -(-costs // PRICE_UNITS_PER_VALUE_CODE)))


def value_tail(market: Market) -> float:
    """ln(1 / probability) for each event about value.

    There is one for the welfare from below, one for it from above, one for X (C4), and one for the
    luck if it is released. Coins add the variance of value and what thinning takes away, and with
    several options the gaps (C5). The events are those of any run of the market, because which of
    them occur may depend on the noise.
    """
    events = 4 if market.divisible else 6 + (market.options > 1)
    return portable_math.log(events / VALUE_BETA)


def closing_release(board: Billboard, query: Query) -> Release:
    """The closing release of a query; raises BillboardError if the run has not made it yet."""
    for release in reversed(board.releases):
        if release.step.query == query:
            return release
    raise BillboardError(f"the run is not finished: there is no {query} release")
