"""Public: the bounds on loads and value that the closing releases and the certificate share.

C1 to C6 are the statements that `jdpack.protocol.certificate` proves.
"""

from __future__ import annotations

import math

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Release
from jdpack.common import portable_math
from jdpack.errors import BillboardError
from jdpack.market.grid import SHARE
from jdpack.market.market import Market
from jdpack.policies import registry
from jdpack.privacy import tail_bounds
from jdpack.privacy.noise import Noise
from jdpack.privacy.queries import Query

VALUE_BETA = 0.01
"""The probability that any statement about value fails."""

_EVENTS = 6  # welfare from below and above, luck, the gaps of rounding, thinning (C5), and X (C4)

DOWN = 1.0 - 1e-12  # keeps float rounding in the bounds on the safe side


def factors(board: Billboard) -> tuple[int, ...]:
    """The scale factor of each resource (C1, C2), in units of 1/SHARE."""
    if board.weight == 0:
        raise BillboardError("no round counts, so there is nothing to certify")
    market, budget = board.header.market, board.header.budget
    at_most = load_bounds(board)
    if market.divisible:
        most = max(at_most)
        return (SHARE if most <= 1.0 else math.floor(SHARE * DOWN / most),) * len(at_most)
    tail = tail_bounds.coin_tail(market, budget)
    return tuple(
        _thinning(load, cap / market.supply_code, tail)
        for load, cap in zip(at_most, market.cap_codes, strict=True)
    )


def load_bounds(board: Billboard) -> list[float]:
    """Upper bounds on the loads before scaling: C2 if the grants were measured, else C1 or C3."""
    return granted_loads(board) if board.header.measured else averaged_loads(board)


def averaged_loads(board: Billboard) -> list[float]:
    """C1: upper bounds on the load of the averaged allocation, before scaling."""
    market, budget = board.header.market, board.header.budget
    policy = registry.from_dict(board.header.policy)
    totals = [0] * len(market.resources)
    for release in board.releases:
        if release.step.weight:
            for j, answer in enumerate(release.answer):
                totals[j] += release.step.weight * answer
    radius = tail_bounds.noise_radius(
        policy.outlook(market, budget), tail_bounds.tail(market, budget), truncated=policy.truncated
    )
    whole = board.weight * market.supply_code
    return [max(0.0, (total + radius) / (whole * DOWN)) for total in totals]


def granted_loads(board: Billboard) -> list[float]:
    """C2: upper bounds on the load of what the coins grant, before thinning."""
    market, budget = board.header.market, board.header.budget
    release = closing_release(board, "granted")
    radius = tail_bounds.release_radius(release.step.noise, tail_bounds.tail(market, budget))
    return [max(0.0, (a + radius) / (market.supply_code * DOWN)) for a in release.answer]


def _thinning(load: float, q: float, tail: float) -> int:
    """C2: the largest factor at which coins keep a load of at most 1."""
    if load <= 1.0:
        return SHARE
    # As f grows, the bound rises, or rises and then falls to its value at f = 1, which is too
    # large. So it crosses 1 only once.
    low, high = 0, SHARE  # low fits (nothing is kept), high does not
    while high - low > 1:
        middle = (low + high) // 2
        fits = tail_bounds.kept_at_most(load, q, middle / SHARE, tail) <= DOWN
        low, high = (middle, high) if fits else (low, middle)
    return low


def value_radius(noise: Noise) -> float:
    """How far one released value may be off in one direction, with its part of VALUE_BETA."""
    return tail_bounds.release_radius(noise, value_tail())


def thinned_value(board: Billboard, scaling: tuple[int, ...]) -> float:
    """About how much value thinning takes away, by the bound of C5."""
    welfare = float(closing_release(board, "welfare").answer[0])
    return thinned_away(board.header.market, max(0.0, welfare), min(scaling) / SHARE)


def thinned_away(market: Market, welfare: float, f: float) -> float:
    """C5: the most value that thinning takes from grants, each kept with odds of at least f."""
    if f >= 1.0:
        return 0.0
    return tail_bounds.kept_at_most(welfare, float(market.value_cap_code), 1.0 - f, value_tail())


def value_tail() -> float:
    """ln(1 / probability) for each event about value."""
    return portable_math.log(_EVENTS / VALUE_BETA)


def closing_release(board: Billboard, query: Query) -> Release:
    """The closing release of a query; raises BillboardError if the run has not made it yet."""
    for release in reversed(board.releases):
        if release.step.query == query:
            return release
    raise BillboardError(f"the run is not finished: there is no {query} release")
