"""Public: the bounds on loads and value that the closing releases and the certificate share.

C1 to C7 are the statements that `jdpack.protocol.certificate` proves.
"""

from __future__ import annotations

import math
from fractions import Fraction

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Header, Release
from jdpack.common import portable_math
from jdpack.errors import BillboardError
from jdpack.market.grid import CHANCE_UNIT, DEMAND_CODE_MAX, PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.market.market import Market
from jdpack.policies import registry
from jdpack.privacy import tail_bounds
from jdpack.privacy.noise import Noise, deviation
from jdpack.privacy.queries import Query
from jdpack.privacy.tail_bounds import Coins, Fit, Sum

VALUE_BETA = 0.01
"""The probability that any statement about value fails."""

SURELY_BETA = 1e-9
"""The probability that a load exceeds even `Certificate.load_surely`."""

DOWN = 1.0 - 1e-12  # keeps float rounding in the bounds on the safe side


def factors(board: Billboard) -> tuple[int, ...]:
    """The scale factor of each resource (C1, C2), in units of 1/SHARE."""
    if board.weight == 0:
        raise BillboardError("no round counts, so there is nothing to certify")
    market = board.header.market
    if market.divisible:
        at_most = load_bounds(board)
        return tuple(SHARE if most <= 1.0 else math.floor(SHARE * DOWN / most) for most in at_most)
    found = []
    for pairs, q in zip(_fitted(board, None), _spare(board), strict=True):
        room = (1.0 - q) * DOWN
        if room <= 0.0:  # one more cap would fill the supply
            found.append(0)
            continue
        best = max(fit.factor(room / load if load > room else 1.0) for load, fit in pairs)
        found.append(math.floor(SHARE * best))
    return tuple(found)


def load_bounds(board: Billboard, beta: float | None = None) -> list[float]:
    """Upper bounds on the loads before scaling or thinning: C1, C2 or C3.

    They fail with probability at most `beta`, by default that of the budget.
    """
    market, spare = board.header.market, _spare(board)
    if not market.divisible:
        return [
            max(0.0, min(load for load, _ in pairs) + q)
            for pairs, q in zip(_fitted(board, beta), spare, strict=True)
        ]
    policy = registry.from_dict(board.header.policy)
    totals, sums = _noisy_totals(board)
    found = zip(totals, sums, _tails(board, beta), market.supply_codes, spare, strict=True)
    return [
        max(
            0.0,
            (total + noise.radius(tail, truncated=policy.truncated))
            / (board.weight * supply * DOWN)
            + q,
        )
        for total, noise, tail, supply, q in found
    ]


def given_bounds(board: Billboard, scaling: tuple[int, ...], beta: float | None) -> list[float]:
    """Upper bounds on the loads of what is given, with these factors; they fail as above."""
    if board.header.market.divisible:
        loads = load_bounds(board, beta)
        return [factor / SHARE * load for load, factor in zip(loads, scaling, strict=True)]
    found = zip(_fitted(board, beta), scaling, _spare(board), strict=True)
    return [
        max(0.0, min(fit.kept(factor / SHARE) * load for load, fit in pairs) / DOWN + q)
        if factor
        else 0.0
        for pairs, factor, q in found
    ]


def _spare(board: Billboard) -> list[float]:
    """What one more agent could add, because a repair must be as rare for neighbours (`Budget`).

    Neighbours differ in all requests of one agent.
    """
    market, repaired = board.header.market, board.header.repaired
    caps = zip(market.person_cap_codes, market.supply_codes, strict=True)
    return [cap * repaired / (supply * DOWN) for cap, supply in caps]


def _fitted(board: Billboard, beta: float | None) -> list[list[tuple[float, Fit]]]:
    """For each resource of indivisible goods: bounds on its load, each with its fit (C2, C3)."""
    market, budget = board.header.market, board.header.budget
    policy = registry.from_dict(board.header.policy)
    # How the bound is fitted must be fixed beforehand, and the weight of the rounds may not be.
    weight = float(policy.outlook(market, budget).weight)
    found, (totals, sums) = [], _noisy_totals(board)
    columns = zip(totals, sums, _tails(board, beta), market.supply_codes, strict=True)
    for j, (total, noise, tail, supply) in enumerate(columns):
        whole = board.weight * supply * DOWN
        q = board.weight * float(DEMAND_CODE_MAX)
        coins = Coins(0.0, 0.0, q, 0.0, q * board.weight * supply / 4.0)
        measured = board.header.measured
        if board.header.coins:
            released = CHANCE_UNIT * closing_release(board, "chance").answer[j]
            variance = released * (board.weight / weight) ** 2
            coins = tail_bounds.coins_on(
                market, budget, noise, weight, float(supply), variance, measured
            )
        if not measured:
            plain = noise.fits(coins, tail, truncated=policy.truncated)
            found.append([((total + fit.radius) / whole, fit) for fit in plain])
            continue
        granted = closing_release(board, "granted")
        scales, answer = deviation(granted.step.noise), board.weight * granted.answer[j]
        scale, part = scales[j % len(scales)], tail_bounds.granted_part(market, budget)
        fits = noise.fits_with_grants(coins, tail, scale, part, truncated=policy.truncated)
        found.append(
            [((w * answer + (1.0 - w) * total + fit.radius) / whole, fit) for w, fit in fits]
        )
    return found


def _tails(board: Billboard, beta: float | None) -> tuple[float, ...]:
    """The part of beta for each resource, as a tail; it is known before the rounds that count."""
    market, budget = board.header.market, board.header.budget
    first = next((release.step for release in board.releases if release.step.weight), None)
    if not board.header.by_worth or first is None:
        return tail_bounds.tails(market, budget, beta=beta)
    return tail_bounds.tails(market, budget, first.prices, first.noise, beta)


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


def value_radius(header: Header, noise: Noise) -> float:
    """How far the last number of a release about value may be off, with its part of VALUE_BETA."""
    return tail_bounds.release_radius(deviation(noise)[-1], value_tail(header))


def supplies_up(market: Market) -> list[int]:
    """The supplies in codes, rounded up: the optimum may use all of them."""
    pairs = zip(market.resources, market.unit_sizes, strict=True)
    return [math.ceil(Fraction(r.supply) / Fraction(unit)) for r, unit in pairs]


def coin_luck(board: Billboard) -> float:
    """C5: the most that coins can have taken from the value of the averaged allocation."""
    if not board.header.coins:
        return 0.0
    release = closing_release(board, "chance")
    header, most, tail = board.header, float(dearest(board)), value_tail(board.header)
    variance = max(0.0, release.answer[-1] + value_radius(header, release.step.noise)) * CHANCE_UNIT
    # Values are rounded to whole units before their variance is taken (C5).
    rounding = math.sqrt(header.market.requests_at_most) / 2.0
    deviation = (math.sqrt(variance) + rounding) * most / 2**16
    return math.sqrt(2.0 * tail) * deviation + most * tail / 3.0


def thinned_value(board: Billboard, scaling: tuple[int, ...]) -> float:
    """About how much value thinning takes away, by the bound of C5."""
    welfare = float(closing_release(board, "welfare").answer[0])
    return thinned_away(board.header, max(0.0, welfare), min(scaling) / SHARE)


def thinned_away(header: Header, welfare: float, f: float) -> float:
    """C5: the most value that thinning takes from grants, each kept with a chance of at least f."""
    if f >= 1.0:
        return 0.0
    cap, tail = float(header.market.value_cap_code), value_tail(header)
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


def value_tail(header: Header) -> float:
    """ln(1 / probability) for each event about value.

    There are three in any run: the welfare from below and from above, and X (C4). If luck is
    released, its noise is one more. Otherwise coins add three: the noise on the variance of value,
    the coins given that variance, and those that thin; and with several options there are the gaps
    (C5). Where the ratio rests on measured grants, C7 is one more. Whether luck is released depends
    on the noise so far. But its own noise is drawn after that, and coins fail as rarely given any
    billboard, so it does not add to these two.
    """
    market = header.market
    events = 4 if market.divisible else 6 + (market.options > 1) + header.ratio_by_grants
    return portable_math.log(events / VALUE_BETA)


def closing_release(board: Billboard, query: Query) -> Release:
    """The closing release of a query; raises BillboardError if the run has not made it yet."""
    for release in reversed(board.releases):
        if release.step.query == query:
            return release
    raise BillboardError(f"the run is not finished: there is no {query} release")
