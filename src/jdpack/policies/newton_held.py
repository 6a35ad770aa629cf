"""Public: newton where coins weigh as much as the noise: one heavy round, after which agents leave.

With little noise, a few agents more or less decide about the margin, and so would coins. So newton
first finds prices more closely than elsewhere. Then it holds them in one round, which has nearly
all of the weight and of the budget. If the observed load is more than can be certified, prices rise
in the few rounds that are left, and some agents leave. Their coins take most of what they had, and
`tail_bounds.leavings` bounds what coins leave of it. If the load is less, prices stay: coins then
decide nothing.

This is for agents who ask for one resource each and have one option, because then each price
corrects its own load, and higher prices can only make agents leave.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from jdpack.common.portable_math import FloatArray
from jdpack.market.grid import DEMAND_CODE_MAX
from jdpack.market.market import Market
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.accounting import Budget
from jdpack.privacy.tail_bounds import Sum

BRIDGE, EARLY, BRIDGE_SHARE = 16, 6, 0.2
"""How many rounds look for the price to hold, how many of them come before the shape of the noise
is chosen, and their part of the policy's rho."""

AFTER, LATER = 4, 0.4
"""How many rounds come after the heavy one, and how much budget they get relative to weight."""

_GROWTH = 1.2  # each round of the bridge gets this many times the budget of the one before
_FALL = 0.5  # the ratio of each weight after the heavy round to the one before
_LEAST, _MOST, _PER_NOISE = 0.05, 0.19, 40.0  # the weight after the heavy round: this many
# deviations of the noise, within these limits
_VARIANCE = 0.1  # of what a load lacks after the approach
_OFF = 0.3  # how far the model is off, as a part of what it predicts
_CAN_LEAVE = 0.8  # the part of a load that may leave at most
_OWED = 0.38  # the deviation of what is owed after the heavy round, in margins
_LOWER, _LOWER_STILL = 0.25, 0.25  # how much lower the heavy round aims, in margins, where leaving
# can put everything right, and what is added where it can put nothing right
_LANDING = 0.03  # the part of a margin that is left free for the noise of the last rounds
_JUMPS, _UNUSUAL = 0.03, 4.0  # prices cannot be held if loads lack more than this part of supply,
# and more than this many deviations of the noise


@functools.lru_cache(maxsize=64)
def weights(market: Market, budget: Budget, whole: int) -> tuple[int, ...]:
    """The weights of the heavy round and those after it; they sum to `whole`."""
    noise = math.sqrt(queries.change(market, "demand").squares / (2.0 * budget.rho))
    supplies = market.supply_codes
    mean = math.fsum(min(noise, _MOST * s) for s in supplies) / math.fsum(supplies)
    apart = min(_MOST, max(_LEAST, _PER_NOISE * mean))
    falling = [_FALL**i for i in range(AFTER)]
    after = [round(whole * apart * part / math.fsum(falling)) for part in falling]
    return (whole - sum(after), *after)


@functools.cache
def bridge_shares() -> tuple[float, ...]:
    """The part of rho for each round of the bridge: more for those that are nearer to its end."""
    parts = [_GROWTH**i for i in range(BRIDGE)]
    return tuple(BRIDGE_SHARE * part / math.fsum(parts) for part in parts)


def trusted(
    doubt: FloatArray | None, news: FloatArray, noise: FloatArray, falls: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """How far to follow the news of each load, and the doubt that is left.

    `doubt` is the variance of what the loads at the center lack. News is followed by how its noise
    compares to that (Kalman 1960). The model of the market is off by a part of what it predicts, so
    large moves leave doubt, and steps stay large until the moves are small.
    """
    doubt = np.full(len(news), _VARIANCE) if doubt is None else doubt
    own = noise * noise + (_OFF * falls) ** 2 + 1e-18
    gains = doubt / (doubt + own)
    return gains, (1.0 - gains) * doubt + (_OFF * gains * news) ** 2


def unsettled(doubt: FloatArray, noise: FloatArray, shares: FloatArray) -> bool:
    """Whether loads still jump, as with many equal values, so that prices cannot be held.

    `noise` has the deviations of the averaged loads, and `shares` what the resources are worth.
    """
    lack = math.fsum((shares * np.minimum(1.0, np.sqrt(doubt))).tolist())
    usual = math.fsum((shares * np.minimum(1.0, noise)).tolist())
    return lack > max(_JUMPS, _UNUSUAL * usual)


def bounds(
    market: Market,
    budget: Budget,
    sums: list[Sum],
    tails: Sequence[float],
    weights: tuple[int, ...],
) -> tuple[FloatArray, FloatArray]:
    """The bounds of `tail_bounds.leavings`: what is kept, and radii as parts of supply.

    There is a row for each bound and a column for each resource.
    """
    whole = float(sum(weights))
    supply = np.array(market.supply_codes, dtype=np.float64)
    found = []
    for noise, tail in zip(sums, tails, strict=True):
        assert noise.scales is not None
        found.append(tail_bounds.leavings(weights, noise.scales, float(DEMAND_CODE_MAX), tail))
    kept = np.array([[bound.kept for bound in each] for each in found]).T
    radii = np.array([[bound.radius for bound in each] for each in found]).T / whole
    if budget.repaired:
        radii = radii + np.array(market.person_cap_codes, dtype=np.float64)
    return kept, radii / supply


def margins(kept: FloatArray, radii: FloatArray, apart: float) -> FloatArray:
    """What the heavy round leaves free: the least radius, and some of what may be owed after it."""
    radius = radii.min(axis=0)
    able = _CAN_LEAVE * apart * kept.max(axis=0) / (_OWED * radius)
    lower = _LOWER + _LOWER_STILL * (1.0 - np.minimum(1.0, able / 2.0))
    found: FloatArray = radius * (1.0 + lower)
    return found


def must_leave(
    kept: FloatArray, radii: FloatArray, first: FloatArray, ahead: FloatArray, apart: float
) -> FloatArray:
    """By how much averaged loads must still fall to be certified.

    `first` has the observed loads of the heavy round, and `ahead` what all rounds will average to
    if its prices are kept. Where too much would have to leave, nothing does: then thinning takes
    less.
    """
    over = (1.0 + _LANDING) * radii + kept * ahead + (1.0 - kept) * first - 1.0
    least = np.min(np.maximum(0.0, over) / kept, axis=0)
    return np.where(least > _CAN_LEAVE * apart, 0.0, least)
