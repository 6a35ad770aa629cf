"""Public: the noise that a policy may ask for, and what it costs.

Only `release` draws it. Both kinds live on the integers, so an exact sum plus noise has no rounding
error that could leak.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from jdpack.common import checks
from jdpack.errors import BillboardError, BudgetError
from jdpack.privacy import gdp
from jdpack.privacy.accounting import Cost
from jdpack.privacy.queries import Change

SCALE_MAX = 2.0**54
"""Noise is drawn in 64 bits. At larger scales a draw could saturate at the largest 64-bit integer,
and the answer would reveal its exact sum; at this scale the probability is below exp(-2^9)."""


@dataclass(frozen=True)
class Gaussian:
    """Discrete Gaussian noise: P(z) proportional to exp(-z^2 / (2 scale^2)) on the integers."""

    scales: tuple[float, ...]
    """One scale per number of the answer, or a single one for all. Close to the standard
    deviations."""

    @functools.lru_cache(maxsize=256)  # noqa: B019 (the cache holds only scales)
    def cost(self, change: Change, width: int = 1) -> Cost:
        """The cost of adding this noise to each of the `width` numbers of an integer answer.

        Formal guarantees. For any integer shift d the Renyi divergence of order a between z and z +
        d is at most a d^2 / (2 scale^2) (Canonne, Kamath & Steinke 2020, Proposition 5). The
        numbers have independent noise, so a move by d costs rho = sum (d_i / scale_i)^2 / 2 (their
        Theorem 14), and `Change.worst` bounds that sum over all moves that one agent can cause.
        `jdpack.privacy.gdp` proves more about noise with large scales.
        """
        for scale in self.scales:
            _check_scale(scale)
        transfer = gdp.transfer(self.of(width) if len(self.scales) == 1 else self.scales)
        return Cost(Fraction(change.worst(self.scales)) / 2, transfer=transfer)

    def of(self, count: int) -> tuple[float, ...]:
        """The scale of each of `count` numbers."""
        assert len(self.scales) in (1, count), "a scale for each number, or one for all"
        return self.scales * count if len(self.scales) == 1 else self.scales

    def to_dict(self) -> dict[str, Any]:
        one = len(self.scales) == 1
        return {"kind": "gaussian", "scale": self.scales[0] if one else list(self.scales)}


@dataclass(frozen=True)
class TruncatedLaplace:
    """The paper's noise on the integers: P(z) proportional to exp(-|z| / scale), |z| <= bound."""

    scale: float
    """P(z) falls by a factor e over this many integers."""
    bound: int
    """The largest |z|."""

    def cost(self, change: Change, width: int = 1) -> Cost:
        """The cost of adding this noise to each coordinate of an integer answer.

        Formal guarantees. Let a coordinate of the answer move by d, 0 < d <= bound, say up from y
        to y + d. The supports [y - bound, y + bound] and [y + d - bound, y + d + bound] differ. An
        outcome outside their intersection tells the two apart; the paper's Lemma does not count
        this case. Let E be the event that the outcome is in the intersection. By symmetry its
        probability is the same for both: 1 - tail(d), with tail(d) = P(z > bound - d). The
        normalising sums are equal, so inside E the two probabilities differ by a factor of at most
        exp(d / scale). Conditioned on E, the coordinate is therefore (d / scale)-DP, and so
        (d / scale)^2 / 2-zCDP (Bun & Steinke 2016, Proposition 1.4). Independent coordinates add
        up: the answer is delta-approximately rho-zCDP with rho = sum d_j^2 / (2 scale^2) and
        delta = sum tail(d_j), a bound on the probability that any coordinate is outside.

        Both grow with each |d_j|, so the bounds `change` give the worst neighbour.
        """
        _check_scale(self.scale)
        if change.most > self.bound:
            raise BudgetError(
                f"truncated noise of at most {self.bound} cannot hide a move of {change.most}",
                "use Gaussian noise, or a larger supply",
            )
        # Rounded up; the last term covers tails that underflow to 0.
        tails = change.count * self.tail(change.most) * (1.0 + 1e-9)
        delta = Fraction(tails) + Fraction(1, 2**1000)
        return Cost(rho=Fraction(change.worst((self.scale,))) / 2, delta=delta)

    def tail(self, d: int) -> float:
        """P(z > bound - d), 0 <= d <= bound: q^(bound-d+1) (1 - q^d) / (1 + q - 2 q^(bound+1))."""
        log_q = -1.0 / self.scale
        numerator = math.exp(log_q * (self.bound - d + 1)) * -math.expm1(log_q * d)
        # 1 + q - 2 q^(bound+1), without cancellation at scales far above the bound
        return numerator / -(
            math.expm1(log_q * (self.bound + 1)) + math.exp(log_q) * math.expm1(log_q * self.bound)
        )

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "truncated-laplace", "scale": self.scale, "bound": self.bound}


@dataclass(frozen=True)
class NoNoise:
    """The exact answer, at infinite cost: for runs without privacy (epsilon = inf)."""

    def cost(self, change: Change, width: int = 1) -> Cost:
        return Cost(rho=math.inf)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "none"}


Noise = Gaussian | TruncatedLaplace | NoNoise


def deviation(noise: Noise) -> tuple[float, ...]:
    """The scales of noise: one, or one per number of the answer; 0 without noise."""
    match noise:
        case Gaussian(scales):
            return scales
        case TruncatedLaplace(scale, _):
            return (scale,)
        case NoNoise():
            return (0.0,)


def gaussian(change: Change, rho: float, shape: tuple[float, ...] = (1.0,)) -> Gaussian | NoNoise:
    """Gaussian noise with scales in proportion to `shape` that costs just below rho."""
    if math.isinf(rho):
        return NoNoise()
    # The factor keeps rounding in the scales on the private side of the filter.
    factor = math.sqrt(change.worst(shape) / (2.0 * rho * (1.0 - 1e-9)))
    return Gaussian(tuple(factor * s for s in shape))


def from_dict(data: Mapping[str, Any]) -> Noise:
    """The inverse of `to_dict`, for reading a billboard."""
    match data:
        case {"kind": "gaussian", "scale": float(scale), **rest} if _right([scale]) and not rest:
            return Gaussian((scale,))
        case {"kind": "gaussian", "scale": [_, _, *_] as scales, **rest} if (
            _right(scales) and not rest
        ):
            return Gaussian(tuple(scales))
        case {"kind": "truncated-laplace", "scale": float(scale), "bound": int(bound), **rest} if (
            _right([scale]) and type(bound) is int and bound >= 0 and not rest
        ):
            return TruncatedLaplace(scale, bound)
        case {"kind": "none", **rest} if not rest:
            return NoNoise()
    raise BillboardError(f"noise {checks.quoted(dict(data))} is of an unknown kind")


def _right(scales: list[Any]) -> bool:
    return all(isinstance(scale, float) and 0.0 < scale < math.inf for scale in scales)


def _check_scale(scale: float) -> None:
    if scale <= 0.0:
        raise BudgetError(f"noise of scale {scale:g} hides nothing")
    if not scale <= SCALE_MAX:
        raise BudgetError(
            f"noise of scale {scale:.2g} does not fit in 64 bits", "use a larger epsilon"
        )
