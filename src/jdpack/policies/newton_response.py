"""Public: a model of how loads respond to prices, from noisy curvature.

With q_j = ln P_j and G_jk = -dL_j / dq_k, the matrix A_jk = sqrt(P_j) G_jk / sqrt(P_k) is the
dual's Hessian, scaled: symmetric and positive semi-definite. A `gauge` release shows its diagonal,
its level u^T A u along u = sqrt(P) / |sqrt(P)| (all prices together), and its spread, the trace
beyond that; the trace is in codes, so it weighs each resource by its supply. From these few,
well-measured numbers we build a model,

    A0 = diag(d) + c u u^T,

which has the level and the spread as measured and, as far as noise allows, the diagonal. A
`curvature` release shows all of A with more noise. What it adds to the model is shrunk, entry by
entry, by the fraction of it that is noise (James & Stein 1961). If noise drowns everything, the
step along u follows the level, and all other directions have one gain.

P_j is the price of a whole supply, and loads are relative to supply. The noise of a load is
relative too, so it differs between resources.

Everything is computed element by element, so that every machine gets the same bits. Library
routines do not promise an order of summation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jdpack.common.portable_math import FloatArray
from jdpack.market.grid import BAND, CURVATURE_UNIT
from jdpack.market.market import Market

_FLAT = 0.02  # no direction is flatter than this fraction of the level
_LEAST = 0.4  # no resource is flatter than this fraction of the mean
_LEVEL_MIN = 0.2
_LIKELY, _OWN = 1.0, 1.0  # a guess of the level before it is measured, and how far it may be off
_STIFF = 0.5  # how much of an earlier level is kept at least
_CHEAP = 0.05  # a resource is cheap below this part of an average price
_UNLIKE = 0.5  # how far one d may be from the others, as a part of the level
_KEPT = 0.6  # how much of the model the matrix must leave


@dataclass(frozen=True)
class Told:
    """What the queries told of the response, and how far that may be off."""

    level: float
    level_variance: float
    diagonal: FloatArray
    variances: FloatArray
    """Those of the diagonal."""
    least: FloatArray
    """The least diagonal."""
    common: float
    beyond: FloatArray | None = None


@dataclass(frozen=True)
class Response:
    """A model of A, and so of G, near given prices."""

    prices: FloatArray
    diagonal: FloatArray
    """d."""
    common: float
    """c."""
    beyond: FloatArray | None = None
    """What a curvature release adds to the model."""
    told: Told | None = None
    """The model as it was before any round corrected it (`corrected`)."""

    def scaled(self, prices: FloatArray) -> FloatArray:
        """A at these prices. G_jk is proportional to P_k, so `beyond` fades where prices fell."""
        along = _along(prices)
        a = np.diag(self.diagonal) + self.common * along[:, None] * along[None, :]
        if self.beyond is not None:
            fade = np.sqrt(np.minimum(1.0, prices / self.prices))
            a = a + self.beyond * fade[:, None] * fade[None, :]
        return a

    def own(self, prices: FloatArray) -> FloatArray:
        """About how far each load rises if its own price falls to 0.

        A load responds to its own price in proportion to that price, so the rise is d, less what
        the price has fallen by already. We take the larger c, before or after corrections: nothing
        is given up because of a trend.
        """
        fade = np.minimum(1.0, prices / self.prices)
        own = self.diagonal if self.beyond is None else self.diagonal + np.diag(self.beyond)
        common = self.common if self.told is None else max(self.common, self.told.common)
        return own * fade + common * prices / math.fsum(prices.tolist())

    def moves(
        self, prices: FloatArray, excess: FloatArray, caution: float, trust: FloatArray
    ) -> FloatArray:
        """The moves of log prices that correct an excess of load.

        In scaled terms, the s that minimises sum_j trust_j (A s - x)_j^2 + caution |s|^2.
        """
        root = np.sqrt(prices)
        if self.beyond is None:
            u = _along(prices)
            return _plain(self.diagonal, self.common, u, root * excess, caution, trust) / root
        return _least_squares(self.scaled(prices), root * excess, caution, trust) / root

    def level(self, prices: FloatArray) -> float:
        """How far the mean load falls if all log prices rise by 1, without what `beyond` adds."""
        along = prices / math.fsum(prices.tolist())
        return self.common + math.fsum((along * self.diagonal).tolist())

    def corrected(self, prices: FloatArray, level: float, diagonal: FloatArray) -> Response:
        """The model with this diagonal, and this level at these prices.

        What the curvature added shrinks as much as the part of the model that shrinks most, so the
        sum stays positive definite.
        """
        along = prices / math.fsum(prices.tolist())
        common = max(0.0, level - math.fsum((along * diagonal).tolist()))
        if self.told is None or self.told.beyond is None:
            return Response(self.prices, diagonal, common, self.beyond, self.told)
        kept = min(1.0, float((diagonal / self.told.diagonal).min()))
        if self.told.common > 0.0:
            kept = min(kept, common / self.told.common)
        return Response(self.prices, diagonal, common, kept * self.told.beyond, self.told)

    def falls(self, prices: FloatArray, moves: FloatArray) -> FloatArray:
        """How far loads fall if log prices make these moves."""
        root = np.sqrt(prices)
        if self.beyond is None:
            along = _along(prices)
            common = self.common * _dot(along, root * moves)
            return self.diagonal * moves + common * along / root
        products = self.scaled(prices) * (root * moves)[None, :]
        return np.array([math.fsum(row) for row in products.tolist()]) / root


def from_gauge(
    market: Market,
    prices: FloatArray,
    floor: float,
    answer: tuple[int, ...],
    noise: float,
    earlier: Response | None = None,
) -> Response:
    """The model A0 from a gauge release at these prices.

    Where many values are equal, the market is stiff at one price and soft everywhere else. So a
    gauge that finds it soft does not quite overrule an earlier one.
    """
    supply = np.array(market.supply_codes, dtype=np.float64)
    codes = np.array(answer, dtype=np.float64) / (2.0 * BAND * CURVATURE_UNIT)
    sigma = noise / (2.0 * BAND * CURVATURE_UNIT)  # in codes
    measured, sigmas = codes[:-2] / supply, sigma / supply
    along = prices / math.fsum(prices.tolist())  # u_j^2
    # The sum of price codes over the sum of prices, which turns the level into a relative load.
    relative = math.fsum((along / supply).tolist())
    # If we take the market to be stiffer than it is, we only slow down. If we take it to be softer,
    # prices may swing wildly. So we add the doubt, and do not subtract it. But a market that is
    # taken to be much stiffer than it is hardly moves at all: what noise drowns follows the guess.
    least = _LEVEL_MIN if earlier is None else max(_LEVEL_MIN, _STIFF * earlier.level(prices))
    own, doubt = _OWN * _OWN, (sigma * relative) ** 2
    kept = own / (own + doubt)
    likely = max(kept * float(codes[-2]) * relative + (1.0 - kept) * _LIKELY, least)
    level = likely + math.sqrt(kept * doubt)
    active = prices > 1.5 * floor
    if market.bundle_width == 1 and market.options == 1:  # then no price moves another load
        mean, common = np.full(len(prices), level), 0.0
        d = _drawn_in(mean, measured - mean, sigmas, active)
    else:
        # The trace in codes is sum_j supply_j A_jj. With one d, A_jj is d + (level - d) u_j^2.
        trace = max(float(codes[-2]) + max(float(codes[-1]), 0.0), 0.0) + sigma
        held = np.where(active, supply, 0.0)
        total = math.fsum((held * (1.0 - along)).tolist())
        beyond = max(0.0, trace - level * math.fsum((supply * along).tolist()))
        even = beyond / total if total > 0.0 else 0.0
        crossed = along * (1.0 - along)
        whole = math.fsum((held * crossed).tolist())
        mean = beyond * crossed / whole if whole > 0.0 else np.zeros_like(along)
        mean = np.maximum(mean, max(_LEAST * even, _FLAT * level))
        d = _drawn_in(mean, measured - level * along - mean, sigmas, active)
        common = max(0.0, level - math.fsum((along * d).tolist()))
    # How far d may be off: by the noise of the gauge, or by how far resources may differ.
    unlike, noisy = (_UNLIKE * level) ** 2, sigmas * sigmas
    variances = unlike * noisy / (unlike + noisy)
    told = Told(likely, kept * doubt, d, variances, _LEAST * mean, common)
    return Response(prices, d, common, told=told)


def with_curvature(
    model: Response, market: Market, answer: tuple[int, ...], noise: float
) -> Response:
    """The model plus, as far as noise allows, the matrix of a curvature release at its prices."""
    m = len(model.prices)
    root = np.sqrt(np.array(market.supply_codes, dtype=np.float64))
    unit = (2.0 * BAND * CURVATURE_UNIT) * root[:, None] * root[None, :]
    released = np.array(answer, dtype=np.float64).reshape(m, m)
    # There are two readings of A_jk, except on the diagonal.
    variance = (noise / unit) ** 2 * (0.5 + 0.5 * np.eye(m))
    base = model.scaled(model.prices)
    beyond = (released + released.T) / (2.0 * unit) - base
    # A_jk is in proportion to the roots of both prices: of cheap resources noise is all there is.
    dear = _along(model.prices) ** 2 > _CHEAP / m
    seen = dear[:, None] & dear[None, :]
    beyond, variance = np.where(seen, beyond, 0.0), np.where(seen, variance, 0.0)
    beyond = beyond * _kept(beyond, variance, int(np.count_nonzero(seen)))
    kept = 1.0
    while kept > 0.01 and _cholesky(_KEPT * base + kept * beyond) is None:
        kept *= 0.8
    if kept <= 0.01 or not np.any(beyond):
        return model
    told = None if model.told is None else replace(model.told, beyond=kept * beyond)
    return replace(model, beyond=kept * beyond, told=told)


def _drawn_in(
    mean: FloatArray, deviation: FloatArray, sigmas: FloatArray, active: NDArray[np.bool_]
) -> FloatArray:
    """The mean plus as much of each deviation as is not noise, but not much below the mean."""
    count = max(1, int(np.count_nonzero(active)))
    found, variance = np.where(active, deviation, 0.0), np.where(active, sigmas * sigmas, 0.0)
    return np.maximum(mean + _kept(found, variance, count) * found, _LEAST * mean)


def _kept(found: FloatArray, variance: FloatArray, count: int) -> FloatArray:
    """How much of each number to keep that has noise of this variance: the part that is signal.

    The numbers are taken to have one variance of their own, estimated from those with little noise.
    """
    scale = math.fsum(variance.ravel().tolist()) / count
    if scale == 0.0:
        return np.ones_like(found)
    weights = 1.0 / (variance + scale) ** 2
    surplus = math.fsum((weights * (found * found - variance)).ravel().tolist())
    own = max(0.0, surplus / math.fsum(weights.ravel().tolist()))
    return own / (own + np.maximum(variance, 1e-300))


def _along(prices: FloatArray) -> FloatArray:
    """u, the direction in which all prices move together."""
    return np.sqrt(prices / math.fsum(prices.tolist()))


def _dot(a: FloatArray, b: FloatArray) -> float:
    return math.fsum((a * b).tolist())


def _plain(
    d: FloatArray, c: float, u: FloatArray, x: FloatArray, caution: float, trust: FloatArray
) -> FloatArray:
    """As `_least_squares` for diag(d) + c u u^T, in time and space of order m.

    With W = diag(trust), w = W d u, k = u.W u and E = diag(trust d^2 + caution), the normal
    equations are E s + (c^2 k u.s + c w.s) u + c (u.s) w = right: two unknowns, u.s and w.s, then
    s. Because k - w.E^-1 w = caution u.W E^-1 u, their determinant is a sum of squares.
    """
    w, right = trust * d * u, trust * d * x + c * u * _dot(u, trust * x)
    inverse = 1.0 / (trust * d * d + caution)
    uu, uw, ww = _dot(u, inverse * u), _dot(u, inverse * w), _dot(w, inverse * w)
    ur, wr = _dot(u, inverse * right), _dot(w, inverse * right)
    cross, own, k = 1.0 + c * uw, c * uu, _dot(u, trust * u)
    determinant = cross * cross + caution * c * own * _dot(u, trust * inverse * u)
    us = (cross * ur - own * wr) / determinant
    ws = ((cross + c * k * own) * wr - (c * c * k * uw + c * ww) * ur) / determinant
    return inverse * (right - (c * c * k * us + c * ws) * u - c * us * w)


def _least_squares(a: FloatArray, x: FloatArray, caution: float, trust: FloatArray) -> FloatArray:
    normal, right = np.zeros_like(a), np.zeros(len(a))
    for row, value, weight in zip(a, x.tolist(), trust.tolist(), strict=True):
        normal += (weight * row)[:, None] * row[None, :]
        right += row * (weight * value)
    # Next to huge entries a small caution would vanish in rounding, and the factor would fail.
    least = 1e-12 * math.fsum(np.diag(normal).tolist())
    factor = _cholesky(normal + max(caution, least) * np.eye(len(a)))
    assert factor is not None
    return _substitute(factor, right)


def _cholesky(work: FloatArray) -> FloatArray | None:
    """The lower factor of a matrix, or None if it is not positive definite."""
    work = work.copy()
    factor = np.zeros_like(work)
    for k in range(len(work)):
        if work[k, k] <= 0.0:
            return None
        factor[k:, k] = work[k:, k] / math.sqrt(work[k, k])
        work[k + 1 :, k + 1 :] -= factor[k + 1 :, k, None] * factor[None, k + 1 :, k]
    return factor


def _substitute(factor: FloatArray, right: FloatArray) -> FloatArray:
    """Solve factor factor^T x = right."""
    x = right.copy()
    for k in range(len(x)):
        x[k] /= factor[k, k]
        x[k + 1 :] -= x[k] * factor[k + 1 :, k]
    for k in range(len(x) - 1, -1, -1):
        x[k] /= factor[k, k]
        x[:k] -= x[k] * factor[k, :k]
    return x
