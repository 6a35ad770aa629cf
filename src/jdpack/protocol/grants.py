"""Public: how far what coins grant is from the optimum, where a closing release measures it.

C7 is proved in `jdpack.protocol.certificate`.
"""

from __future__ import annotations

import math

import numpy as np

from jdpack.billboard.board import Billboard
from jdpack.common.portable_math import FloatArray
from jdpack.market.grid import CHANCE_UNIT, DEMAND_CODE_MAX, PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.policies import registry
from jdpack.privacy import tail_bounds
from jdpack.privacy.noise import deviation
from jdpack.protocol import bounds

_WANDER = 0.25  # how far prices are guessed to move in the rounds that count, as a part of them


def short_of_optimum(board: Billboard) -> tuple[float, float]:
    """C7: by how much the optimum exceeds the value of what coins grant, and the radius of that.

    In value codes, without what numbers lose as they become codes, and shares as they are rounded.
    """
    market, steps = board.header.market, list(board.rounds)
    m, cap = len(market.resources), float(DEMAND_CODE_MAX)
    outlook = registry.from_dict(board.header.policy).outlook(market, board.header.budget)
    prices = np.array([step.prices for step in steps], dtype=np.float64)
    weights = np.array([[step.weight] for step in steps], dtype=np.float64) / board.weight
    scales = np.array([np.resize(np.array(deviation(step.noise)), m) for step in steps])
    granted = bounds.closing_release(board, "granted")
    own = np.resize(np.array(deviation(granted.step.noise)), m) ** 2

    # What the first round tells: variances of noise and coins in each load, and the pivot.
    first, noise = prices[0], scales[0] ** 2 * (steps[0].weight / outlook.weight)
    coins = cap * np.maximum(cap, np.sqrt(noise))
    part = (noise + coins) / (noise + coins + own)
    pivot = np.floor(part * first)
    known = _sum(pivot**2 * own)
    guess = known + _sum((first - pivot) ** 2 * noise)
    width = market.bundle_width if market.options == 1 else min(2 * market.bundle_width, m)
    few = first * np.sqrt(((1.0 - part) ** 2 + _WANDER**2) * coins)
    full = first * (2.0 - part) * np.sqrt(cap / 4.0 * np.array(market.supply_codes, np.float64))

    # What all rounds tell.
    away = prices - pivot
    variance = known + _sum((weights * scales * away) ** 2)
    most = np.abs(away).max(axis=0)
    times = most**2 / _split(most * np.sqrt(coins), width)
    chance = bounds.closing_release(board, "chance")
    shown = CHANCE_UNIT * np.array(chance.answer[:m], dtype=np.float64)
    if market.options > 1:
        shown += market.requests_at_most * market.options / SHARE * cap**2
    spreads = CHANCE_UNIT * np.resize(np.array(deviation(chance.step.noise)), m + 1)[:m]
    radius = tail_bounds.guessed_radius(
        max(1.0, guess + _sum(few**2 / _split(few, width))),
        guess + _sum(full**2 / _split(full, width)),
        bounds.value_tail(board.header),
        variance,
        (_sum(times * shown), _sum((times * spreads) ** 2), cap * _largest(most, width)),
    )

    total, exact = 0, [int(q) for q in pivot.tolist()]
    supplies = bounds.supplies_up(market)
    for release in board.releases:
        step = release.step
        if step.weight:
            columns = zip(step.prices, exact, supplies, release.answer, strict=True)
            total += step.weight * sum(p * b - (p - q) * a for p, q, b, a in columns)
    total -= board.weight * sum(q * a for q, a in zip(exact, granted.answer, strict=True))
    unit = float(PRICE_UNITS_PER_VALUE_CODE)
    return total / board.weight / unit, radius / unit


def _split(gains: FloatArray, width: int) -> FloatArray:
    """Parts whose `width` largest sum to 1, for which the sum of gains^2 / part is about least.

    The largest gains have parts in proportion; the others share a common one.
    """
    squares = sorted((gains**2).tolist(), reverse=True)
    above, left = 0, math.fsum(squares)
    while above + 1 < width and squares[above] * (width - above) > left:
        left = max(0.0, left - squares[above])
        above += 1
    least = math.sqrt(max(left / (width - above), 1e-18 * squares[0]))
    parts = np.maximum(gains, max(least, 1e-100))
    return parts / _largest(parts, width)


def _largest(x: FloatArray, count: int) -> float:
    return math.fsum(sorted(x.tolist())[-count:])


def _sum(x: FloatArray) -> float:
    return math.fsum(x.ravel().tolist())
