"""Public: what newton aims for. The shape of its noise, and the load to aim for per resource.

The shape. With noise of scale s_j on the demand for resource j, a release costs half the largest
sum of a_j = (P_j / s_j)^2 over the K resources that one agent can move (`queries.change`), and
aiming below the supply by a multiple of the noise loses, to first order, sum_j g_j / sqrt(a_j),
where g_j = pi_j u_j, u_j = P_j / S_j, P_j is the most that one agent can take of j, and pi_j is the
share of the optimum that the price of j explains. Given the cost R, the best a has some resources
above a common level L and all others at L: lowering those below L would save nothing. Let the
resources with the h largest g be above. Then

    a_j = r g_j^(2/3) for those,   L = r (G / (K - h))^(2/3) for the others,

G being the sum of their g, as if they were K - h resources with equal g. The right h is the first
for which the next g is not above G / (K - h). With K = m and h = m - 1 this is a_j ~ g_j^(2/3).

Scales are rounded to powers of 2^(1/4): near the best shape that costs less than half a percent,
and noise of equal scales is drawn together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jdpack.common import portable_math
from jdpack.common.portable_math import FloatArray
from jdpack.market.market import Market
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import deviation, gaussian
from jdpack.privacy.tail_bounds import Fit, Sum

LEAST = 0.2
"""The smallest load to aim for."""

_MISJUDGED = 0.25  # the part of an average price that a resource near its supply is taken to have
_SPARE = 0.01  # and the part that one far below it has
_NEAR = 0.12  # how much load may still change before the rounds that count
_UNBOUNDED = 1e9  # a margin of this many supplies or more is as good as infinite
_SAFE = 0.7  # the part of its slack that noise may take from a resource
_REPEATS = 12  # how often the shape is corrected
_DEAR = 6  # the most that a log price is taken to rise
_SPARE_CHANCE = 1.0  # how many deviations of the chance release to keep free
_MISSED = 1.0  # and of what the measured grants may miss
_CURVE = 0.5  # a cautious guess: how far loads fall if prices rise by a factor of e
_OVERSHOOT, _FARTHEST = 1.5, 2.2  # the largest target, or this many radii if that is more
_TRIED = 48  # how many steps there are from the smallest to the largest target
_STEEPEST = 1e6  # stands for infinity where a fit says nothing about thinning
_AT_RANDOM = 1.15  # coins that thin take at random, and of several resources the worst decides
_GRID = 1.189207115002721  # 2^(1/4)
_STEPS = 64  # how many steps of that grid a scale may be from another


def best_shape(
    market: Market,
    prices: FloatArray,
    loads: FloatArray,
    doubt: FloatArray,
    reach: float,
    dearer: Callable[[FloatArray], FloatArray],
) -> tuple[float, ...]:
    """The best shape of the noise of the rounds that count.

    Args:
        market: the public market.
        prices: prices of whole supplies.
        loads: about the loads at these prices, relative to supply.
        doubt: how far these loads may be off.
        reach: the radius of the certificate with noise of one scale, in codes.
        dearer: how far log prices rise if these parts of the supplies are kept free.
    """
    change = queries.change(market, "demand")
    supply = np.array(market.supply_codes, dtype=np.float64)
    caps = np.array(market.person_cap_codes, dtype=np.float64)
    relative = caps / caps.max()
    touched = change.worst(tuple(relative.tolist())) / float(caps.max()) ** 2
    if len(supply) == 1:
        return (1.0,)
    # A supply that noise would drown even if all of the budget went to it is not worth the budget,
    # unless many options need it. Its price says little, because its loads said nothing.
    alone = reach * caps / math.sqrt(change.squares) / supply
    hope = 1.0 / (1.0 + alone * alone)
    needed = market.bundle_width / len(supply)
    prices = prices * (hope + needed * (1.0 - hope))
    # A price that was misjudged must not cost the run. How likely that is falls with the slack.
    slack = np.maximum(0.0, 1.0 - loads)
    far = slack / np.sqrt(_NEAR * _NEAR + doubt * doubt)
    even = likely_shares(market) * hope
    spare = (_SPARE + _MISJUDGED / (1.0 + far * far) ** 2) * even
    risen, scarce = np.zeros(len(supply)), np.ones(len(supply))
    for _ in range(_REPEATS):
        shares = prices * portable_math.exp(risen / _DEAR) ** _DEAR
        shares = (shares / math.fsum(shares.tolist()) + spare) * scarce
        shape = on_grid(relative / np.sqrt(water_fill(shares * relative / supply, touched)))
        factor = math.sqrt(change.worst(tuple(shape.tolist())) / change.squares)
        margins = reach * factor * shape / supply
        risen = 0.5 * (risen + np.clip(dearer(np.minimum(margins, 1.0)), 0.0, float(_DEAR)))
        # Where noise would eat up the slack, it costs as if the supply were scarce.
        eaten = np.clip(margins / np.maximum(_SAFE * slack, 1e-3), 1.0, 4.0) ** 3
        most = np.maximum(1.0, even / shares)
        scarce = np.where(slack > 0.0, scarce * np.minimum(eaten, most), 1.0)
    return tuple(shape.tolist())


def best_targets(
    radii: FloatArray, powers: FloatArray, rate: float, loads: FloatArray
) -> FloatArray:
    """The load of each resource that is worth most after it is scaled or thinned to fit.

    Let r be the radius that the certificate adds. A load up to 1 - r fits as it is. A larger load
    L is scaled by 1 / (L + r) if goods are divisible, and thinned to about a power of that if they
    are not (`Free`). Prices are the marginal value of load, so they tell what a load is worth: the
    value at `loads` is 1, it grows there at `rate` per load, and that rate falls by a factor of e
    for each `_CURVE` of load. A smaller load is worth at least its part of the value, because the
    dearest options are taken first.
    """
    least = np.maximum(LEAST, 1.0 - radii)
    most = np.maximum(_OVERSHOOT, _FARTHEST * radii)
    steps = np.arange(_TRIED + 1) / _TRIED
    tried = least[:, None] + (most - least)[:, None] * steps[None, :]
    more = tried - loads[:, None]
    slope = np.minimum(rate, 1.0 / loads)[:, None] * _CURVE
    fall = portable_math.exp_down(-np.abs(more) / _CURVE)
    worth = 1.0 + slope * (1.0 - np.where(more > 0.0, fall, 1.0 / fall))
    worth = np.where(more < 0.0, np.maximum(worth, tried / loads[:, None]), worth)
    kept = 1.0 / np.maximum(1.0, tried + radii[:, None])
    worth = worth * portable_math.exp_down(powers[:, None] * portable_math.logs(kept))
    return np.take_along_axis(tried, np.argmax(worth, axis=1)[:, None], axis=1)[:, 0]


def likely_shares(market: Market) -> FloatArray:
    """What share of the optimum each resource may explain, before anything is known.

    If options touch one resource each, prices per cap are taken to be equal. If options touch
    several, supplies may also be small because little is asked of them, and then prices of whole
    supplies are equal. So we take the geometric mean of both.
    """
    supply = np.array(market.supply_codes, dtype=np.float64)
    worth = supply if market.bundle_width == 1 else np.sqrt(supply)
    return worth / math.fsum(worth.tolist())


def steering_shape(market: Market) -> tuple[float, ...]:
    """The shape of the noise before anything is known.

    If options touch several resources, the best shape for equal prices of whole supplies: any of
    them may turn out to be the scarce one. If options touch one each, an even one.
    """
    supply = np.array(market.supply_codes, dtype=np.float64)
    if market.bundle_width == 1 or float(supply.max()) == float(supply.min()):
        return (1.0,)
    cubic = np.array([portable_math.power(s, 1.0 / 3.0) for s in supply.tolist()])
    return tuple(on_grid(cubic).tolist())


def water_fill(gains: FloatArray, touched: float) -> FloatArray:
    """The best a_j up to a common factor, if the `touched` largest of them are paid for."""
    order = np.argsort(-gains, kind="stable")
    ranked = gains[order].tolist()
    left = math.fsum(ranked)
    above = 0
    while above + 1 < touched and ranked[above] * (touched - above) > left:
        left = max(0.0, left - ranked[above])
        above += 1
    common = left / (touched - above)
    if above == len(ranked):
        common = 0.0
    filled = [g if i < above else common for i, g in enumerate(ranked)]
    least = 1e-12 * max(filled)
    levels = np.empty(len(filled))
    levels[order] = [portable_math.power(max(g, least), 2.0 / 3.0) for g in filled]
    return levels


def on_grid(scales: FloatArray) -> FloatArray:
    """Scales relative to the smallest, rounded to powers of 2^(1/4)."""
    relative = scales / float(scales.min())
    grid = [_GRID**0]
    for _ in range(_STEPS):
        grid.append(grid[-1] * _GRID)
    steps = [
        min(_STEPS, round(4.0 * portable_math.log(r) / 0.6931471805599453))
        for r in relative.tolist()
    ]
    return np.array([grid[step] for step in steps])


@dataclass(frozen=True)
class Grants:
    """What is known beforehand of coins, and of the release of what they grant."""

    coins: FloatArray
    """About the variance that coins add to each load, in squared codes."""
    scales: FloatArray | None
    """The noise of the release, in codes; None if there is none."""


def granted_scales(market: Market, budget: Budget, shape: tuple[float, ...]) -> FloatArray:
    """The noise of the release of what coins grant, per resource, if rounds have this shape."""
    share = tail_bounds.closing_shares(market, budget, coins=True, measured=True)["granted"]
    noise = gaussian(queries.change(market, "granted"), budget.rho * share, shape)
    return np.resize(np.array(deviation(noise)), len(market.resources))


@dataclass(frozen=True)
class Free:
    """What newton keeps free of each resource, and what becomes of a load that does not fit."""

    radii: FloatArray
    """As a part of supply."""
    powers: FloatArray
    """If the bound on a load is 1 / g times the supply, about g to this power of it is given.
    Divisible goods are scaled by g. Indivisible goods are thinned by more, because the coins that
    thin need room of their own: to about 1 - k (1 - g) for g close to 1, with
    k = t / (1 - e^-t) and t as in `tail_bounds.Fit`. The power is a little above k."""


def kept_free(
    market: Market,
    budget: Budget,
    sums: list[Sum],
    tails: Sequence[float],
    weight: float,
    grants: Grants | None,
) -> Free:
    """What newton keeps free of each resource.

    That is what the certificate will add to its load and, where grants are measured, some of what
    their answer may miss: it differs from what the rounds show by the noise of both and by what
    coins add. `tails` has the part of beta for each resource (`tail_bounds.tails`).
    """
    supply = np.array(market.supply_codes, dtype=np.float64)
    coins, scales = [0.0] * len(sums), [-1.0] * len(sums)
    if grants is not None:
        coins = grants.coins.tolist()
        scales = scales if grants.scales is None else grants.scales.tolist()
    found: dict[tuple[float, ...], tuple[float, float]] = {}
    columns = list(zip(sums, tails, supply.tolist(), coins, scales, strict=True))
    for noise, tail, size, own, scale in columns:
        if (noise.variance, tail, size, own, scale) in found:
            continue
        if grants is None:
            free = noise.radius(tail) / weight, 1.0
        else:
            free = free_of_grants(market, budget, noise, tail, weight, size, own, scale)
        found[noise.variance, tail, size, own, scale] = free
    each = np.array([found[noise.variance, *others] for noise, *others in columns])
    radii = each[:, 0]
    if budget.repaired:
        radii = radii + np.array(market.person_cap_codes, dtype=np.float64)
    return Free(np.minimum(radii / supply, _UNBOUNDED), each[:, 1])


def free_of_grants(
    market: Market,
    budget: Budget,
    noise: Sum,
    tail: float,
    weight: float,
    supply: float,
    coins: float,
    scale: float,
) -> tuple[float, float]:
    """What to keep free of one resource that coins grant, in codes, and the power of `Free`.

    The grants are measured with noise of this scale, or not if it is negative.
    """
    measured = scale >= 0.0
    spare = _SPARE_CHANCE * tail_bounds.chance_scale(market, budget, measured)
    coin = tail_bounds.coins_on(market, budget, noise, weight, supply, coins + spare, measured)
    if not measured:
        fit = min(noise.fits(coin, tail), key=lambda fit: fit.radius)
        return fit.radius / weight, _power(fit)
    missed = math.sqrt(noise.variance / (weight * weight) + scale * scale + coins)
    fits = noise.fits_with_grants(coin, tail, scale, tail_bounds.granted_part(market, budget))
    radius = min(fit.radius / weight + _MISSED * part * missed for part, fit in fits)
    return radius, min(_power(fit) for _, fit in fits)


def _power(fit: Fit) -> float:
    """The power of `Free` for this fit."""
    steep = min(fit.steep, _STEEPEST)
    falls = float(portable_math.exp_down(np.array([-steep]))[0])
    return _AT_RANDOM * (steep / (1.0 - falls) if steep > 1e-6 else 1.0)
