"""Public: a model of how loads respond to prices, from noisy curvature.

With q_j = ln P_j and G_jk = -dL_j / dq_k, the matrix A_jk = sqrt(P_j) G_jk / sqrt(P_k) is the
dual's Hessian, scaled: symmetric and positive semi-definite. A `gauge` release shows its diagonal,
its level u^T A u along u = sqrt(P) / |sqrt(P)| (all prices together), and its spread, the trace
beyond that. From these few, well-measured numbers we build a model,

    A0 = diag(d) + c u u^T,

which has the level and the spread as measured and, as far as noise allows, the diagonal. A
`curvature` release shows all of A with more noise. What it adds to the model is shrunk by the
fraction of it that is noise (James & Stein 1961). If noise drowns everything, the step along u
follows the level, and all other directions have one gain.

Everything is computed element by element, so that every machine gets the same bits. Library
routines do not promise an order of summation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from jdpack.common.portable_math import FloatArray
from jdpack.market.grid import BAND, CURVATURE_UNIT
from jdpack.market.market import Market

_FLAT = 0.02  # no direction is flatter than this fraction of the level
_LEAST = 0.4  # no resource is flatter than this fraction of the mean
_LEVEL_MIN = 0.2
_KEPT = 0.6  # how much of the model the matrix must leave


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

    def scaled(self, prices: FloatArray) -> FloatArray:
        """A at these prices. G_jk is proportional to P_k, so `beyond` fades where prices fell."""
        along = _along(prices)
        a = np.diag(self.diagonal) + self.common * along[:, None] * along[None, :]
        if self.beyond is not None:
            fade = np.sqrt(np.minimum(1.0, prices / self.prices))
            a = a + self.beyond * fade[:, None] * fade[None, :]
        return a

    def moves(self, prices: FloatArray, excess: FloatArray, caution: float) -> FloatArray:
        """The moves of log prices that correct an excess of load.

        In scaled terms, the s that minimises |A s - x|^2 + caution |s|^2.
        """
        root = np.sqrt(prices)
        if self.beyond is None:
            u = _along(prices)
            return _plain(self.diagonal, self.common, u, root * excess, caution) / root
        return _least_squares(self.scaled(prices), root * excess, caution) / root

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
    market: Market, prices: FloatArray, floor: float, answer: tuple[int, ...], noise: float
) -> Response:
    """The model A0 from a gauge release at these prices."""
    unit = 2.0 * BAND * CURVATURE_UNIT * market.supply_code
    measured, sigma = np.array(answer, dtype=np.float64) / unit, noise / unit
    diagonal, level, spread = measured[:-2], float(measured[-2]), float(measured[-1])
    along = prices / math.fsum(prices.tolist())  # u_j^2
    # If we take the market to be stiffer than it is, we only slow down. If we take it to be softer,
    # prices may swing wildly. So we add the noise, and do not subtract it.
    level = max(level, _LEVEL_MIN) + sigma
    spread = max(spread, 0.0) + sigma
    active = prices > 1.5 * floor
    count = max(1, int(np.count_nonzero(active)))
    even = spread / max(1, count - 1)
    crossed = along * (1.0 - along)
    total = math.fsum(crossed.tolist())
    mean = spread * crossed / total if total > 0.0 else np.zeros_like(along)
    mean = np.maximum(mean, max(_LEAST * even, _FLAT * level))
    deviation = np.where(active, diagonal - level * along - mean, 0.0)
    signal = math.fsum((deviation * deviation).tolist())
    kept = max(0.0, 1.0 - (count * sigma * sigma) / signal) if signal > 0.0 else 0.0
    d = np.maximum(mean + kept * deviation, _LEAST * mean)
    common = max(0.0, level - math.fsum((along * d).tolist()))
    return Response(prices, d, common)


def with_curvature(
    model: Response, market: Market, answer: tuple[int, ...], noise: float
) -> Response:
    """The model plus, as far as noise allows, the matrix of a curvature release at its prices."""
    m = len(model.prices)
    unit = 2.0 * BAND * CURVATURE_UNIT * market.supply_code
    response, sigma = np.array(answer, dtype=np.float64).reshape(m, m) / unit, noise / unit
    # Two readings of A_jk, with deviations r to 1/r: weight them by inverse variances.
    root = np.sqrt(model.prices)
    ratio = root[:, None] / root[None, :]
    precision = 1.0 / (ratio * ratio) + ratio * ratio
    base = model.scaled(model.prices)
    beyond = (response / ratio + response.T * ratio) / precision - base
    drowned = sigma * sigma * math.fsum((1.0 / precision).ravel().tolist())
    signal = math.fsum((beyond * beyond).ravel().tolist())
    kept = max(0.0, 1.0 - drowned / signal) if signal > 0.0 else 0.0
    while kept > 0.01 and _cholesky(_KEPT * base + kept * beyond) is None:
        kept *= 0.8
    if kept <= 0.01:
        return model
    return replace(model, beyond=kept * beyond)


def _along(prices: FloatArray) -> FloatArray:
    """u, the direction in which all prices move together."""
    return np.sqrt(prices / math.fsum(prices.tolist()))


def _dot(a: FloatArray, b: FloatArray) -> float:
    return math.fsum((a * b).tolist())


def _plain(d: FloatArray, c: float, u: FloatArray, x: FloatArray, caution: float) -> FloatArray:
    """As `_least_squares` for diag(d) + c u u^T, |u| = 1, in time and space of order m.

    With w = d u and E = diag(d^2 + caution), the normal equations are
    E s + (c^2 u.s + c w.s) u + c (u.s) w = right: two unknowns, u.s and w.s, then s. Their
    determinant, written with |u| = 1, is a sum of squares.
    """
    w, right = d * u, d * x + c * u * _dot(u, x)
    inverse = 1.0 / (d * d + caution)
    uu, uw, ww = _dot(u, inverse * u), _dot(u, inverse * w), _dot(w, inverse * w)
    ur, wr = _dot(u, inverse * right), _dot(w, inverse * right)
    cross, own = 1.0 + c * uw, c * uu
    determinant = cross * cross + caution * own * own
    us = (cross * ur - own * wr) / determinant
    ws = ((1.0 + c * c * uu + c * uw) * wr - (c * c * uw + c * ww) * ur) / determinant
    return inverse * (right - (c * c * us + c * ws) * u - c * us * w)


def _least_squares(a: FloatArray, x: FloatArray, caution: float) -> FloatArray:
    normal, right = np.zeros_like(a), np.zeros(len(a))
    for row, value in zip(a, x.tolist(), strict=True):
        normal = normal + row[:, None] * row[None, :]
        right = right + row * value
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
