"""Public: how far noise and coins can carry a sum, and so how wide the certificate's bounds are.

Everything here is known before the first record is read. `jdpack.protocol.certificate` proves how
it is used, and policies aim for the load that it leaves.

Sums of noise. Let N_t be the noise of round t, w_t its weight, and r(p) a radius that sum_t w_t N_t
exceeds with probability at most p = e^-tail.

* Gaussian noise. Discrete Gaussian noise is sub-Gaussian with its own scale (Canonne, Kamath &
  Steinke 2020, Lemma 9). So with M_t = sum w_t N_t and V_t = sum (w_t scale_t)^2,
  exp(l M_t - l^2 V_t / 2) is a supermartingale for every l, even if weights and scales are chosen
  from the history. Let V be a public constant with V >= V_t always. Then
  P(M_T >= r) <= exp(-l r + l^2 V / 2) at the random time T at which the run stops, and the best l
  gives r = sqrt(2 tail V).
* Gaussian noise with weights and scales fixed in advance. The tail of the normal distribution
  itself holds, which is about 6% narrower. Let Y_t = N_t + U_t with U_t uniform on [-1/2, 1/2]. The
  density of Y_t at y is p(x), where x is the integer nearest to y. Its ratio to the normal density
  of the same scale s is at most exp((y^2 - x^2) / (2 s^2)) <= exp((|y| + 1/4) / (2 s^2)), because
  the normalising sum of the discrete Gaussian is at least s sqrt(2 pi), by Poisson summation. So,
  with W = sum w_t and Q the normal tail,
  P(sum w_t N_t >= r) <= P(sum w_t Y_t >= r - W/2)
  <= e^c Q((r - W/2) / sqrt V) + sum_t P(|Y_t| > K s_t), c = sum_t (K / (2 s_t) + 1 / (8 s_t^2)).
  By sub-Gaussianity P(|Y_t| > K s_t) <= 2 exp(-(K - 1 / (2 s_t))^2 / 2); K is chosen so that these
  sum to at most 1e-9 p. Scales are thousands of codes or more, so c and W/2 are tiny. Where they
  are not, the radius above is the smaller one, and is used.
* Truncated Laplace noise. E exp(l N) <= 1 / (1 - (l scale)^2) <= exp(2 (l scale)^2) for
  |l| scale <= 1/sqrt 2: truncation makes |N| smaller and cosh grows with |N|; discrete Laplace
  noise is below the continuous one because (cosh x - 1) / x^2 grows. The rest is as in the first
  case, with 2 l^2 V in place of l^2 V / 2, for l up to 1 / (sqrt 2 peak), where `peak` bounds every
  w_t scale_t.

Coins. Take grants of total load U, none above q, and keep each independently with probability f. By
Bernstein's inequality in its sub-gamma form (Boucheron, Lugosi & Massart 2013, Section 2.8), the
load kept exceeds f U + sqrt(2 q f (1 - f) U tail) + q tail / 3 with probability at most e^-tail.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from jdpack.common import portable_math
from jdpack.errors import BillboardError
from jdpack.market.market import Market
from jdpack.privacy import queries
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import Gaussian, Noise, NoNoise, gaussian
from jdpack.privacy.queries import Query

DIVISIBLE: dict[Query, float] = {"welfare": 0.02}
INDIVISIBLE: dict[Query, float] = {"granted": 0.56, "welfare": 0.02, "luck": 0.06}
"""Parts of rho for the releases that close a run (`protocol.closing`); the policy gets the rest."""

COIN_SHARE = 0.1
"""The part of beta for the coins that thin what was granted; the noise gets the rest."""


@dataclass(frozen=True)
class Outlook:
    """Public constants that hold for every run of a policy, whatever the data and the noise.

    In units of weight times demand code: `variance` bounds the sum over rounds of
    (weight * noise scale)^2, `peak` the largest weight * noise scale of any round.
    """

    rounds_at_most: int
    variance: float
    peak: float
    weight: int
    """The sum, or a bound on it, of the weights of the rounds that ask any one agent."""
    scales: tuple[float, ...] | None = None
    """The noise scale of each round that counts, if weights and scales are fixed in advance."""
    batches: int | None = None
    """The number of batches, if each round asks one of them."""


def closing_shares(market: Market) -> dict[Query, float]:
    """The parts of rho for the releases that close a run."""
    return DIVISIBLE if market.divisible else INDIVISIBLE


def rounds_rho(market: Market, budget: Budget) -> float:
    """The part of rho that the policy may spend."""
    return budget.rho * (1.0 - math.fsum(closing_shares(market).values()))


def granted_noise(market: Market, budget: Budget) -> Gaussian | NoNoise:
    """The noise of the release `granted`: the load of what the coins grant."""
    return gaussian(queries.shifts(market, "granted"), budget.rho * INDIVISIBLE["granted"])


def tail(market: Market, budget: Budget) -> float:
    """ln(1 / probability) for the noise on the load of one resource."""
    share = 1.0 if market.divisible else 1.0 - COIN_SHARE
    return portable_math.log(len(market.resources) / (share * budget.beta))


def coin_tail(market: Market, budget: Budget) -> float:
    """ln(1 / probability) for the coins that thin one resource."""
    return portable_math.log(len(market.resources) / (COIN_SHARE * budget.beta))


def noise_radius(outlook: Outlook, tail: float, *, truncated: bool = False) -> float:
    """The weighted noise of one resource sums to at most this, with probability 1 - e^-tail."""
    if outlook.variance == 0.0:
        return 0.0
    if truncated:
        most = 1.0 / (math.sqrt(2.0) * outlook.peak)
        rate = min(most, math.sqrt(tail / (2.0 * outlook.variance)))
        return tail / rate + 2.0 * rate * outlook.variance
    radius = math.sqrt(2.0 * tail * outlook.variance)
    if outlook.scales is None:
        return radius
    scales = outlook.scales
    far = math.sqrt(2.0 * (tail + portable_math.log(2e9 * len(scales)))) + 0.5 / min(scales)
    alike = len(scales) if scales.count(scales[0]) == len(scales) else 1  # if equal, one term does
    terms = (far / (2.0 * s) + 1.0 / (8.0 * s * s) for s in scales[::alike])
    excess = alike * math.fsum(terms) + 2e-9
    z = normal_quantile(tail + excess)
    weight = outlook.weight * (outlook.batches or 1)  # of all rounds
    return min(radius, z * math.sqrt(outlook.variance) + weight / 2.0)


def release_radius(noise: Noise, tail: float) -> float:
    """A number of a Gaussian release is too high by at most this, with probability 1 - e^-tail."""
    if isinstance(noise, NoNoise):
        return 0.0
    if not isinstance(noise, Gaussian):
        raise BillboardError(f"a closing release needs Gaussian noise, not {noise!r}")
    scale = noise.scale
    return noise_radius(Outlook(1, scale * scale, scale, 1, (scale,)), tail)


@functools.lru_cache(maxsize=256)
def normal_quantile(tail: float) -> float:
    """A z with Q(z) <= e^-tail, where Q is the upper tail of the normal; close to the smallest.

    It uses Q(z) < phi(z) / z (1 - 1 / z^2 + 3 / z^4) for z > 0. Below z = 2 that is coarse, so it
    returns sqrt(2 tail).
    """

    def exponent(z: float) -> float:
        square = z * z
        series = 1.0 - 1.0 / square + 3.0 / (square * square)
        return square / 2.0 + portable_math.log(z * 2.5066282746310002 / series)

    low, high = 2.0, math.sqrt(2.0 * tail)
    if high < 2.0:
        return high
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if exponent(middle) >= tail else (middle, high)
    return high


def kept_at_most(load: float, q: float, f: float, tail: float) -> float:
    """The most that coins keep of grants of total load `load`, each at most q, at probability f."""
    if f >= 1.0:
        return load
    return f * load + math.sqrt(2.0 * q * f * (1.0 - f) * load * tail) + q * tail / 3.0
