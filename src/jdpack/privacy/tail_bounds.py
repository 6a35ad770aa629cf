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
* Gaussian noise with weights and scales fixed before the first round that counts, from whatever was
  public by then. Given that past, they are constants, and the tail of the normal distribution
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

Noise and coins. Let N be a sum of noise as above, with E exp(l N) <= exp(l^2 V / 2), and G a sum of
coins: given the rounds, independent numbers of mean at most 0, none above q, whose variances sum to
Q. Which coins there are depends on the rounds, and so on N. For 0 < l < 3 / q Bernstein's
inequality (Boucheron, Lugosi & Massart 2013, Section 2.4) says that E[exp(l G) | rounds] is at most
exp(l^2 k Q / 2) with k = 1 / (1 - l q / 3). So the mean of exp(Z), Z = l (N + G) - l^2 (V + k Q) /
2, is at most 1, though Q is random. What is released of Q is R = Q + E, where E is Gaussian noise
of scale s, independent of all of this. Then
P(N + G >= tail / l + l (V + k R + l^2 k^2 s^2 / 4) / 2)
= P(Z - l^2 k E / 2 >= tail + l^4 k^2 s^2 / 8) <= e^-tail,
because E exp(-l^2 k E / 2) <= exp(l^4 k^2 s^2 / 8). This holds for every l that is fixed
beforehand. We fix a few l, for several guesses of Q, and each gets its part of the probability. V
and q may be bounds. If the weights of the rounds are chosen as they come, the total weight is known
only at the end, and so are q and s: then l, q and s are those of a public bound on it.

Thinning. Take grants of total load U, none above q, and keep each independently with probability f.
ln(1 - f + f e^(l x)) is convex in x and 0 at x = 0, so for x <= q it is at most (x / q) times its
value at q. So the load kept has the moments of at most U / q coins of size q, and exceeds y, with
f U <= y <= U, with probability at most exp(-(U / q) KL(y / U, f)), where KL is the relative entropy
of two coins (Chernoff 1952).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from jdpack.common import portable_math
from jdpack.market.grid import CHANCE_UNIT, DEMAND_CODE_MAX
from jdpack.market.market import Market
from jdpack.privacy import queries
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import deviation, gaussian
from jdpack.privacy.queries import Query

WELFARE_SHARE, LUCK_SHARE = 0.02, 0.01
"""Parts of rho for releases about value that close a run (`protocol.closing`)."""

CHANCE_MOST = 0.3
"""The largest part of rho for the release of how much coins decide."""

CHANCE_OF_VALUE = 4.0
"""How much more noise the variance of value gets in that release than those of loads."""

COIN_SHARE = 0.1
"""The part of beta for the coins that thin what was granted; the loads of the rounds get the
rest."""

_HALVINGS = 36  # of an interval that holds a bound; what is left is on the safe side
_GUESSES = (1.0, 6.0, 36.0)  # how often the guess of what coins decide the bound is fitted to


@dataclass(frozen=True)
class Outlook:
    """Public constants that hold for every run of a policy, whatever the data and the noise.

    In units of weight times demand code: `variance` bounds the sum over rounds of
    (weight * noise scale)^2 for one resource, `peak` the largest weight * noise scale of any round.
    """

    rounds_at_most: int
    variance: float
    peak: float
    weight: int
    """The sum, or a bound on it, of the weights of the rounds that ask any one agent."""
    scales: tuple[float, ...] | None = None
    """The noise scale of each round that counts, if weights and scales are fixed before the first
    of them. If the policy shapes its noise, this is what it is without a shape."""
    batches: int | None = None
    """The number of batches, if each round asks one of them."""


def coins_decide(market: Market, *, batches: bool = False) -> bool:
    """Whether coins decide who gets something. In batches, everybody takes all or nothing."""
    return not market.divisible and not batches


def closing_shares(market: Market, budget: Budget, *, coins: bool) -> dict[Query, float]:
    """The parts of rho for the releases that close a run; the policy gets the rest."""
    shares: dict[Query, float] = {"chance": chance_share(market, budget)} if coins else {}
    return {**shares, "welfare": WELFARE_SHARE, "luck": LUCK_SHARE}


def rounds_rho(market: Market, budget: Budget, *, batches: bool = False) -> float:
    """The part of rho that the policy may spend."""
    coins = coins_decide(market, batches=batches)
    return budget.rho * (1.0 - math.fsum(closing_shares(market, budget, coins=coins).values()))


@functools.lru_cache(maxsize=64)
def chance_share(market: Market, budget: Budget) -> float:
    """The part of rho for the release of how much coins decide.

    Let n be the deviation of a demand release and c that of the chance release, both with the whole
    rho. With a part v, the certified variance of a load is about
    n^2 / (1 - v) + tail c^2 / (3 v n^2) (`Sum.radius_with_coins`), which
    v = (c / n^2) sqrt(tail / 3) minimises. We take half as much again, because what is released
    also decides by how much the bound misses its target.
    """
    if budget.rho == math.inf:
        return WELFARE_SHARE
    noise = queries.change(market, "demand").squares
    chance = CHANCE_UNIT * math.sqrt(queries.change(market, "chance").worst(chance_shape(market)))
    ratio = chance / noise * math.sqrt(2.0 * budget.rho)
    return min(CHANCE_MOST, 1.5 * ratio * math.sqrt(tail(market, budget) / 3.0))


def chance_shape(market: Market) -> tuple[float, ...]:
    """The shape of the noise of a chance release: value is less important than loads."""
    return (1.0,) * len(market.resources) + (CHANCE_OF_VALUE,)


@functools.lru_cache(maxsize=64)
def chance_scale(market: Market, budget: Budget) -> float:
    """The noise on the variance that coins add to a load, in squared codes."""
    noise = gaussian(
        queries.change(market, "chance"),
        budget.rho * chance_share(market, budget),
        chance_shape(market),
    )
    return CHANCE_UNIT * deviation(noise)[0]


def tail(market: Market, budget: Budget, beta: float | None = None) -> float:
    """ln(1 / probability) for the load of one resource; beta is the budget's, or another."""
    share = 1.0 if market.divisible else 1.0 - COIN_SHARE
    return portable_math.log(len(market.resources) / (share * (beta or budget.beta)))


def coin_tail(market: Market, budget: Budget, beta: float | None = None) -> float:
    """ln(1 / probability) for the coins that thin one resource."""
    return portable_math.log(len(market.resources) / (COIN_SHARE * (beta or budget.beta)))


@dataclass(frozen=True)
class Coins:
    """A sum of coins, independent given the rounds, with mean 0."""

    released: float
    """What their variances sum to, as released."""
    scale: float
    """The scale of the noise in `released`."""
    largest: float
    """No coin is above this."""
    guess: float
    """About what their variances sum to; must be fixed beforehand."""


@dataclass(frozen=True)
class Sum:
    """A weighted sum of noise, as far as it is known before the noise is drawn."""

    variance: float
    """The sum of (weight * scale)^2, or a bound on it."""
    weight: float = 0.0
    """The sum of the weights."""
    scales: tuple[float, ...] | None = None
    """The scale of every term, if weights and scales are fixed beforehand."""
    peak: float = 0.0
    """The largest weight * scale; needed for truncated noise only."""

    def radius(self, tail: float, *, truncated: bool = False) -> float:
        """The sum is at most this, with probability 1 - e^-tail."""
        if self.variance == 0.0:
            return 0.0
        if truncated:
            most = 1.0 / (math.sqrt(2.0) * self.peak)
            rate = min(most, math.sqrt(tail / (2.0 * self.variance)))
            return tail / rate + 2.0 * rate * self.variance
        radius = math.sqrt(2.0 * tail * self.variance)
        if self.scales is None:
            return radius
        z = normal_quantile(tail + self._excess(tail))
        return min(radius, z * math.sqrt(self.variance) + self.weight / 2.0)

    def radius_with_coins(self, coins: Coins, tail: float, *, truncated: bool = False) -> float:
        """The sum plus coins is at most this, with probability 1 - e^-tail."""
        noise, limit = self.variance, 3.0 / coins.largest
        if truncated and noise > 0.0:  # E exp(l N) <= exp(2 l^2 V) for l <= 1 / (sqrt 2 peak)
            noise, limit = 4.0 * noise, min(limit, 1.0 / (math.sqrt(2.0) * self.peak))
        tail += portable_math.log(float(len(_GUESSES)))
        doubt, best = coins.scale * coins.scale, math.inf
        for factor in _GUESSES:
            expected = noise + factor * coins.guess
            expected += tail * doubt / (2.0 * (expected + math.sqrt(tail * doubt)))
            rate = min(math.sqrt(2.0 * tail / expected), 0.5 * limit)
            k = 1.0 / (1.0 - rate * coins.largest / 3.0)
            variance = noise + k * coins.released + (rate * k) ** 2 * doubt / 4.0
            best = min(best, tail / rate + rate * max(variance, noise) / 2.0)
        return best

    def _excess(self, tail: float) -> float:
        """What the difference between discrete and normal noise adds to a tail."""
        assert self.scales is not None
        scales = self.scales
        far = math.sqrt(2.0 * (tail + portable_math.log(2e9 * len(scales)))) + 0.5 / min(scales)
        alike = len(scales) if scales.count(scales[0]) == len(scales) else 1  # then one term does
        terms = (far / (2.0 * s) + 1.0 / (8.0 * s * s) for s in scales[::alike])
        return alike * math.fsum(terms) + 2e-9


def coins_on(market: Market, budget: Budget, noise: Sum, weight: float, variance: float) -> Coins:
    """The coins on the load of one resource, in units of weight times code.

    `variance` is what they add as released or, before the run, as expected, in squared codes. Coins
    decide for agents whose decision turns as prices follow the noise, so for about as much load as
    there is noise on it.
    """
    cap, square = float(DEMAND_CODE_MAX), weight * weight
    guess = cap * max(cap, math.sqrt(noise.variance) / weight)
    scale = chance_scale(market, budget)
    return Coins(square * variance, square * scale, weight * cap, square * guess)


def release_radius(scale: float, tail: float) -> float:
    """A number with this noise is too high by at most this, with probability 1 - e^-tail."""
    return Sum(scale * scale, 1.0, (scale,)).radius(tail)


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
    """The most that coins keep of grants of total load `load`, each at most q, at probability f.

    It fails with probability at most e^-tail.
    """
    if f >= 1.0 or load <= 0.0:
        return max(0.0, load)
    if f <= 0.0:
        return 0.0
    low, high = f * load, load  # high is enough
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        enough = load / q * entropy(middle / load, f) >= tail
        low, high = (low, middle) if enough else (middle, high)
    return high


def entropy(a: float, f: float) -> float:
    """KL(a, f): the relative entropy of a coin with probability a to one with probability f < 1.

    Rounded down: where a is close to f, its two terms nearly cancel, and what rounding leaves is
    multiplied by the number of grants.
    """
    log = portable_math.log
    ours = a * log(a / f) if a > 0.0 else 0.0
    others = (1.0 - a) * log((1.0 - a) / (1.0 - f)) if a < 1.0 else 0.0
    return max(0.0, ours + others - 2.0**-46)
