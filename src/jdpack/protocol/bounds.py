"""Public: bounds on loads and on value that closing releases and the certificate share.

The proofs are in `jdpack.protocol.certificate`.
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
"""The probability that any of the statements about value fails."""


_EVENTS = 6  # welfare from below and above, luck, the gaps of rounding, thinning, and X


DOWN = 1.0 - 1e-12  # float rounding in the bounds stays on the safe side


def factors(board: Billboard) -> tuple[int, ...]:
    """The scale factor of each resource, in units of 1/SHARE."""
    if board.weight == 0:
        raise BillboardError("no round counts: there is nothing to certify")
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
    """Upper bounds on the loads before scaling."""
    return granted_loads(board) if board.header.measured else averaged_loads(board)


def averaged_loads(board: Billboard) -> list[float]:
    """Upper bounds on the load of the averaged allocation, before scaling."""
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
    """Upper bounds on the load of what coins grant, before thinning."""
    market, budget = board.header.market, board.header.budget
    release = closing_release(board, "granted")
    radius = tail_bounds.release_radius(release.step.noise, tail_bounds.tail(market, budget))
    return [max(0.0, (a + radius) / (market.supply_code * DOWN)) for a in release.answer]


def _thinning(load: float, q: float, tail: float) -> int:
    """The largest factor with which the load that coins keep is at most 1."""
    if load <= 1.0:
        return SHARE
    # In f the bound rises, or rises and then falls to its value at f = 1, which is too large: so
    # it passes 1 once.
    low, high = 0, SHARE  # low fits (nothing is kept), high does not
    while high - low > 1:
        middle = (low + high) // 2
        fits = tail_bounds.kept_at_most(load, q, middle / SHARE, tail) <= DOWN
        low, high = (middle, high) if fits else (low, middle)
    return low


def value_radius(noise: Noise) -> float:
    """With its share of 1 - VALUE_BETA, one released value is off by no more in one direction."""
    return tail_bounds.release_radius(noise, value_tail())


def thinned_value(board: Billboard, scaling: tuple[int, ...]) -> float:
    """About how much value thinning takes away, by the bound that the certificate has for it."""
    welfare = float(closing_release(board, "welfare").answer[0])
    return thinned_away(board.header.market, max(0.0, welfare), min(scaling) / SHARE)


def thinned_away(market: Market, welfare: float, f: float) -> float:
    """The value that thinning takes from grants, at most, if each is kept at odds f at least."""
    if f >= 1.0:
        return 0.0
    return tail_bounds.kept_at_most(welfare, float(market.value_cap_code), 1.0 - f, value_tail())


def value_tail() -> float:
    """The tail that each event about value may have, as a logarithm."""
    return portable_math.log(_EVENTS / VALUE_BETA)


def closing_release(board: Billboard, query: Query) -> Release:
    """The closing release of a query; BillboardError if the run has not made it yet."""
    for release in reversed(board.releases):
        if release.step.query == query:
            return release
    raise BillboardError(f"the run is not finished: there is no {query} release")
