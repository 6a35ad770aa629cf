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

Parts of beta. The loads of m resources are bounded together, and the bound of resource j may fail
with probability p_j, where the p_j sum to beta. To first order, what is kept free loses the sum of
g_j z(p_j), g_j = pi_j sigma_j, with pi_j the share of the optimum that the price of j explains,
sigma_j its noise relative to supply, and z the normal quantile. z falls with ln p at the rate 1 /
z, so the best p_j are in proportion to g_j, that is, to the price of a code times the noise scale
in codes. Prices may have been misjudged, so a part e of beta goes to all resources alike: p_j =
beta (e / m + (1 - e) w_j), w_j = g_j / sum g. To first order this is never worse than equal parts.
It gains 1 / z times the sum of g_j ln(e + (1 - e) m w_j). The logarithm is concave, so this sum is
at least (1 - e) times that of g_j ln(m w_j), which is sum g times a relative entropy, and not
negative.
The prices and scales are those of the first round that counts. They are public before its noise is
drawn. Given all that was public then, the p_j are constants, and so are the rates that the bounds
below fix beforehand. The rounds that count draw their noise after that, so each bound fails with
probability at most p_j given that past, and some bound with probability at most beta. Prices of
later rounds depend on the noise that is bounded, and must not be used.

Noise, coins and thinning. The averaged load of a resource is A = O + N, where O is observed and N
is a sum of noise as above. Coins grant each agent at most q, with mean a_i and variance v_i, given
the rounds; the a_i sum to A (or a little less, because shares are rounded down) and the v_i to Q.
The billboard shows R = Q + E and M = G + Z, where G is the load of all grants, and E and Z are
Gaussian noise of scales s and s', independent of all else. Then it shows a factor f, and every
grant is kept with probability at most f, independently. How large is the load H that is kept?

Keeping a grant more often only raises H, so let f be the probability itself. ln(1 - f + f e^(l x))
is convex in x and 0 at x = 0, so for x <= q it is at most x / q times its value at q. So given the
grants and the billboard, E exp(l H) <= exp(G ln(1 - f + f e^(l q)) / q) for every l > 0. Fix a rate
L before the rounds, and let g = t / ln(1 + (e^t - 1) / f) with t = L q. At l = L / g the logarithm
is t, so P(H >= y | grants, billboard) <= exp(-l y + L G) = exp(-L (y / g - G)). It does not matter
that f may depend on M, and so on the grants.

Fix a part w in [0, 1] beforehand, and let C = G - A. Then G = w (M - Z) + (1 - w) (O + N + C). By
Bennett's inequality (Boucheron, Lugosi & Massart 2013, Section 2.4) with
k(u) = 2 (e^u - 1 - u) / u^2, the mean of exp(L (1 - w) C), given the rounds and all noise, is at
most exp(L b Q), b = (1 - w)^2 L k((1 - w) L q) / 2. So with y = g (w M + (1 - w) O + b R + r) and
X = (1 - w) N - w Z - b E, whatever f is as a function of the billboard,
P(H >= y) <= E min(1, exp(-L (r - X))). Let V be (1 - w)^2 times the variance of N, plus w^2 s'^2,
plus b^2 s^2. This is at most e^-tail

* if r >= tail / L + L V / 2, because E exp(L X) <= exp(L^2 V / 2);
* if weights and scales are fixed beforehand and, with z = r / sqrt V and d = L sqrt V - z >= 0,
  ln(M(z) + M(d)) - z^2 / 2 - ln sqrt(2 pi) <= -tail, where M(x) = Q(x) / phi(x) is at most
  4 / (3 x + sqrt(x^2 + 8)) (Sampford 1953). For normal X the mean is Q(z) + exp(-L r + L^2 V / 2)
  Q(d), and the second term is phi(z) M(d). The bound min(1, exp(-L (r - x))) grows with x and is at
  most 1, so discrete noise adds what it adds above, with E and Z as two more terms.

If f = 1 then g = 1, and w M + (1 - w) O + b R + r bounds the load. At w = 1 nothing about coins
matters, and if nothing is thinned either, M plus the radius of Z alone bounds it. We fix a few
pairs of w and L, for several guesses of Q and for thinning more or less, and each gets its part of
the probability. The variances and q may be bounds. If the weights of the rounds are
chosen as they come, the total weight is known only at the end, and so are q, s and the weight of Z:
then L, q and these are those of a public bound on it. If there is nothing to decide (batches), a
factor of 1 needs no coins, and N alone counts.

Variances that nobody knows beforehand. Let M be a sum of noise whose weights are chosen as they
come, and V the sum of its variances. Let C be a sum of coins with mean 0 given the noise, none
above q, whose variances sum to Q at most, and let R = Q + E be shown, with E independent Gaussian
noise of variance s. For every rate L > 0 fixed before the noise, and b = L k(L q) / 2, the mean of
exp(L (M + C - b R) - L^2 (V + b^2 s) / 2) is at most 1: M is as in the first case above, then come
the coins, by Bennett's inequality, and then E. V, q and s may be random, as long as each is known
before what it is about is drawn. So M + C <= tail / L + L (V + b^2 s) / 2 + b R with probability
1 - e^-tail. The best rate is about sqrt(2 tail / v), with v all variances together. We fix a few
rates, for several guesses of v, and each gets its part of the probability.

What thinning keeps of value. Take grants of total worth U, none above q, and keep each
independently with probability f. ln(1 - f + f e^(l x)) is convex in x and 0 at x = 0, so for x <= q
it is at most (x / q) times its value at q. So what is kept has the moments of at most U / q coins
of size q, and exceeds y, with f U <= y <= U, with probability at most exp(-(U / q) KL(y / U, f)),
where KL is the relative entropy of two coins (Chernoff 1952).
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from jdpack.common import portable_math
from jdpack.market.grid import CHANCE_UNIT, DEMAND_CODE_MAX
from jdpack.market.market import Market
from jdpack.privacy import queries
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import Noise, deviation, gaussian
from jdpack.privacy.queries import Query

WELFARE_SHARE, LUCK_SHARE = 0.02, 0.01
"""Parts of rho for releases about value that close a run (`protocol.closing`)."""

EVEN_PART = 0.1
"""The part of beta that all resources share alike, whatever they seem to be worth (`tails`)."""

GRANTED_SHARE = 0.88
"""The part of rho for the release of what coins grant, as a part of `granted_part`. With the same
part of rho as of the bound, noise would count least; but coins add to what the rounds show."""

CHANCE_MOST = 0.3
"""The largest part of rho for the release of how much coins decide, if it were all that is known
about coins."""

CHANCE_OF_VALUE = 4.0
"""How much more noise the variance of value gets in that release than those of loads."""

CHANCE_PER_CAP = float(DEMAND_CODE_MAX) ** 2 / CHANCE_UNIT
"""How many units of the chance release the square of a cap is."""

_PARTS = tuple(i / 20.0 for i in range(1, 19))  # what `granted_part` chooses from
_STEERED, _SETTLED = 4.0, 0.002  # a guess of the load that coins decide: the first number times the
# deviation of the noise, plus the second times the supply
_STEERING = 0.1  # about the part of rho that does not count in the loads
_MIXED = 0.8  # the part of the probability for bounds that rest on grants and rounds
_HALVINGS = 36  # of an interval that holds a bound; what is left is on the safe side
_FIRST = 0.7  # the part of the probability for the first fit of a bound; the others share the rest
_APART = 6.0  # the ratio of one guess of what coins decide to the one before
_MILD, _THIN = 0.9, (0.5, 0.1)  # one fit each is for thinning to about this
_STEEPEST = 700.0  # where exponentials end


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


def closing_shares(
    market: Market, budget: Budget, *, coins: bool, measured: bool = False
) -> dict[Query, float]:
    """The parts of rho for the releases that close a run; the policy gets the rest.

    `measured` tells whether what coins grant is measured.
    """
    shares: dict[Query, float] = {}
    if measured:
        shares["granted"] = GRANTED_SHARE * granted_part(market, budget)
    if coins:
        shares["chance"] = chance_share(market, budget, measured)
    return {**shares, "welfare": WELFARE_SHARE, "luck": LUCK_SHARE}


@functools.lru_cache(maxsize=64)
def rounds_rho(
    market: Market, budget: Budget, *, batches: bool = False, measured: bool = False
) -> float:
    """The part of rho that the policy may spend."""
    coins = coins_decide(market, batches=batches)
    shares = closing_shares(market, budget, coins=coins, measured=measured and coins)
    return budget.rho * (1.0 - math.fsum(shares.values()))


@functools.lru_cache(maxsize=64)
def granted_part(market: Market, budget: Budget) -> float:
    """w: the part of a bound that rests on the measured grants; the rounds have the rest.

    The part for which the least supply must be kept free: the radius of the bound, and one
    deviation of what the answer misses, because nobody steers by it. The smaller the noise is
    against a cap, the more coins weigh against it, and the larger is the part. A small supply
    counts more than a large one.
    """
    if budget.rho == math.inf:
        return _PARTS[-1]
    supplies = collections.Counter(market.supply_codes)

    def free(part: float) -> float:
        kept = (
            count * _kept_free(market, budget, part, float(supply)) / math.sqrt(supply)
            for supply, count in supplies.items()
        )
        return math.fsum(kept)

    return min(_PARTS, key=free)


def _kept_free(market: Market, budget: Budget, part: float, supply: float) -> float:
    """About what must be kept free of one resource if this part of a bound rests on grants.

    `chance_share` says what its release adds to the variance.
    """
    noise, chance = _deviations(market, budget)
    share, of_chance = GRANTED_SHARE * part, _chance_share(market, budget, part)
    of_rounds = 1.0 - WELFARE_SHARE - LUCK_SHARE - _STEERING - share - of_chance
    rounds, granted = noise * noise / of_rounds, noise * noise / share
    coins = float(DEMAND_CODE_MAX) * (_STEERED * noise + _SETTLED * supply)
    missed = math.sqrt(rounds + granted + coins)
    own = tail(market, budget)
    added = own * (1.0 - part) ** 4 * (chance / noise) ** 2 / (3.0 * of_chance)
    variance = (1.0 - part) ** 2 * (rounds + coins) + part * part * granted + added
    return math.sqrt(2.0 * own * variance) + part * missed


def chance_share(market: Market, budget: Budget, measured: bool = False) -> float:
    """The part of rho for the release of how much coins decide.

    Let n be the deviation of a demand release and c that of the chance release, both with the whole
    rho. With a part v, the certified variance of a load is about
    n^2 / (1 - v) + tail c^2 / (3 v n^2) (`Sum.fits`), which
    v = (c / n^2) sqrt(tail / 3) minimises. We take half as much again, because what is released
    also decides by how much the bound misses its target. With a part w for measured grants, coins
    count (1 - w)^2 times. The variance of value is in the same release, so it gets some anyway.
    """
    if budget.rho == math.inf:
        return WELFARE_SHARE
    return _chance_share(market, budget, granted_part(market, budget) if measured else 0.0)


def _chance_share(market: Market, budget: Budget, part: float) -> float:
    noise, chance = _deviations(market, budget)
    ratio = chance / (noise * noise)
    share = min(CHANCE_MOST, 1.5 * ratio * math.sqrt(tail(market, budget) / 3.0))
    return max(LUCK_SHARE if part else 0.0, share * (1.0 - part) ** 2)


@functools.lru_cache(maxsize=64)
def _deviations(market: Market, budget: Budget) -> tuple[float, float]:
    """Those of a demand release and of a chance release, each with the whole rho."""
    change = queries.change(market, "chance")
    chance = CHANCE_UNIT * math.sqrt(change.worst(chance_shape(market)) / (2.0 * budget.rho))
    return math.sqrt(queries.change(market, "demand").squares / (2.0 * budget.rho)), chance


def chance_shape(market: Market) -> tuple[float, ...]:
    """The shape of the noise of a chance release: value is less important than loads.

    If agents make several requests, the bounds on what they add to loads may be much closer than
    those on value, and then value would take most of the budget: its noise grows with its bound.
    """
    change = queries.change(market, "chance")
    assert isinstance(change, queries.ChanceChange)
    of_value = CHANCE_OF_VALUE * max(1.0, math.isqrt(change.last) / change.most)
    return (1.0,) * len(market.resources) + (of_value,)


@functools.lru_cache(maxsize=64)
def chance_scale(market: Market, budget: Budget, measured: bool = False) -> float:
    """The noise on the variance that coins add to a load, in squared codes."""
    noise = gaussian(
        queries.change(market, "chance"),
        budget.rho * chance_share(market, budget, measured),
        chance_shape(market),
    )
    return CHANCE_UNIT * deviation(noise)[0]


def tail(market: Market, budget: Budget, beta: float | None = None) -> float:
    """ln(1 / probability) for one of equal parts of beta; beta is the budget's, or another."""
    m, beta = len(market.resources), beta or budget.beta
    if m / beta == math.inf:
        return portable_math.log(m) - portable_math.log(beta)
    return portable_math.log(m / beta)


def tails(
    market: Market,
    budget: Budget,
    prices: Sequence[int] | None = None,
    noise: Noise | None = None,
    beta: float | None = None,
) -> tuple[float, ...]:
    """ln(1 / p_j) for the load of each resource j; the p_j sum to beta.

    The parts are equal, or follow the prices and the noise of the first round that counts.
    """
    m, even = len(market.resources), tail(market, budget, beta)
    scales = deviation(noise) if prices is not None and noise is not None else (0.0,)
    scales = scales * m if len(scales) == 1 else scales
    worth = [price * scale for price, scale in zip(prices or [0] * m, scales, strict=True)]
    whole = math.fsum(worth)
    if m == 1 or whole == 0.0:
        return (even,) * m
    # Rounded up by more than floats are off.
    parts = [EVEN_PART + (1.0 - EVEN_PART) * m * (each / whole) for each in worth]
    return tuple(even - portable_math.log(part) + 1e-12 for part in parts)


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
    """About what their variances sum to, fixed beforehand; 0 if coins decide nothing."""
    most: float
    """About the most that they can sum to, also fixed beforehand: a quarter of `largest` times the
    supply."""


@dataclass(frozen=True)
class Fit:
    """A bound on noise and coins together, for one rate that was fixed beforehand."""

    radius: float
    """r + b R: what an observed load may lack."""
    steep: float
    """t: the larger, the more must be thinned for a load that is too large by a little."""

    def kept(self, f: float) -> float:
        """g: a load bounded by U, thinned to f, is bounded by g U."""
        if f >= 1.0 or self.steep == math.inf:
            return 1.0
        whole = portable_math.log(1.0 + (_exp(self.steep) - 1.0) / f)
        return min(1.0, self.steep / whole * (1.0 + 1e-9))

    def factor(self, g: float) -> float:
        """The largest f that keeps at most g; 0 if this fit knows none."""
        if g >= 1.0:
            return 1.0
        if self.steep > _STEEPEST * g:
            return 0.0
        return (_exp(self.steep) - 1.0) / (_exp(self.steep / g) - 1.0) * (1.0 - 1e-9)


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

    @functools.cached_property
    def _alike(self) -> tuple[tuple[float, ...], int]:
        """The scales, each counting once; or if all are alike one of them, and how often it counts.

        There may be a scale for each of many rounds, so sums are told apart by this.
        """
        scales = self.scales or ()
        if scales and scales.count(scales[0]) == len(scales):
            return scales[:1], len(scales)
        return scales, 1

    @functools.cached_property
    def _key(self) -> tuple[object, ...]:
        return self.variance, self.weight, self.scales is None, self._alike, self.peak

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and self._key == other._key

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

    def fits(
        self, coins: Coins, tail: float, *, truncated: bool = False, rest: float = 1.0
    ) -> list[Fit]:
        """Bounds on the sum plus this part of coins; all hold with probability 1 - e^-tail."""
        found: list[Fit] = []
        kinds: list[float] = []
        first, guess = tail - portable_math.log(_FIRST), coins.guess
        thin: tuple[float, ...] = _THIN
        if guess == 0.0:  # then a factor of 1 needs no coins
            found.append(Fit(self.radius(first, truncated=truncated), math.inf))
            guess, thin = coins.most, (_MILD, *_THIN)
        while guess < coins.most or not (kinds or found):
            kinds.append(guess)
            guess *= _APART
        # Thinning a load of 1 / g supplies to g leaves a variance of 4 (1 - g) `most` in what is
        # kept, so coins that thin count like others that decide 1 / g^2 times as much.
        kinds += [coins.guess + 4.0 * (1.0 / g - 1.0) / g * coins.most for g in thin]
        other = tail + portable_math.log((len(found + kinds) - 1) / (1.0 - _FIRST))
        for guess in kinds:
            own = other if found else first
            found.append(self._fit(coins, guess, own, truncated, rest))
        return found

    def fits_with_grants(
        self, coins: Coins, tail: float, scale: float, part: float, *, truncated: bool = False
    ) -> list[tuple[float, Fit]]:
        """Bounds on the sum plus coins if grants are measured, with noise of this scale.

        Each comes with the part of it that rests on the measured grants. They hold together with
        probability 1 - e^-tail. `coins.largest` is a cap times the weight of the rounds.
        """
        weight = coins.largest / DEMAND_CODE_MAX
        both, alone = (self._beside(scale, weight, w) for w in (part, 1.0))
        own = tail - portable_math.log(_MIXED)
        rest = 1.0 - part
        found = [(part, fit) for fit in both.fits(coins, own, truncated=truncated, rest=rest)]
        own = tail - portable_math.log((1.0 - _MIXED) / 2.0)
        found.append((1.0, Fit(alone.radius(own), math.inf)))
        found.append((1.0, alone._fit(coins, coins.guess, own, False, 0.0)))
        return found

    def _beside(self, scale: float, weight: float, part: float) -> Sum:
        """A part of noise of this scale, times the weight of the rounds, and the rest of this."""
        rest = 1.0 - part
        variance = rest * rest * self.variance + (part * weight * scale) ** 2
        scales: tuple[float, ...] | None = (scale,)
        if part < 1.0:
            scales = None if self.scales is None else (*self.scales, scale)
        return Sum(variance, weight, scales if scale > 0.0 else None, rest * self.peak)

    def _fit(self, coins: Coins, guess: float, tail: float, truncated: bool, rest: float) -> Fit:
        """The bound that is fitted to a guess of what coins decide."""
        of_coins = coins.scale, coins.largest, guess, rest
        radius, b, rate = _rate(self, of_coins, tail, truncated)
        return Fit(radius + b * coins.released, rate * coins.largest)

    def _excess(self, tail: float, chance: float = 0.0) -> float:
        """What the difference between discrete and normal noise adds to a tail.

        `chance` is the scale of a chance release that is one more term, in its own unit.
        """
        scales, times = self._alike
        least = min(scales)
        if chance > 0.0:
            least = min(least, chance)
        count = len(scales) * times + 1
        far = math.sqrt(2.0 * (tail + portable_math.log(2e9 * count))) + 0.5 / least
        terms = [times * (far / (2.0 * s) + 1.0 / (8.0 * s * s)) for s in scales]
        if chance > 0.0:
            terms.append(far / (2.0 * chance) + 1.0 / (8.0 * chance * chance))
        return math.fsum(terms) + 2e-9


@functools.lru_cache(maxsize=4096)
def _rate(
    noise: Sum,
    coins: tuple[float, float, float, float],
    tail: float,
    truncated: bool,
) -> tuple[float, float, float]:
    """r, b and the rate that is about best for a guess of what coins decide.

    `coins` has the scale of their release, their largest, the guess, and the part that counts.
    """
    scale, largest, guess, rest = coins
    variance, most = noise.variance, math.inf
    if truncated and variance > 0.0:  # E exp(l N) <= exp(2 l^2 V) for l <= 1 / (sqrt 2 peak)
        variance, most = 4.0 * variance, 1.0 / (math.sqrt(2.0) * noise.peak)

    def about(tried: tuple[float, float, float]) -> float:
        rate, b, added = tried
        return tail / rate + rate * (variance + added) / 2.0 + b * guess

    rate, b, added = min(_rates(scale, largest, rest, most), key=about)
    variance += added
    radius = tail / rate + rate * variance / 2.0
    if noise.scales is not None and noise.variance > 0.0 and not truncated:
        unit = largest * largest / CHANCE_PER_CAP  # of the chance release
        release = scale / unit if b > 0.0 else 0.0
        far = _mixed_quantile(rate * math.sqrt(variance), tail + noise._excess(tail, release))
        radius = min(radius, far * math.sqrt(variance) + (noise.weight + b * unit) / 2.0)
    return radius, b, rate


@functools.lru_cache(maxsize=64)
def _rates(
    scale: float, largest: float, rest: float, most: float
) -> list[tuple[float, float, float]]:
    """Rates to try, each with its b and what the noise of the release adds to the variance."""
    found = []
    for u in _tried():
        rate = min(u / largest, most)
        b = rest * rest * rate * _bennett(u * rest) / 2.0
        found.append((rate, b, (b * scale) ** 2))
    return found


def guessed_radius(
    guess: float, most: float, tail: float, variance: float, coins: Sequence[float]
) -> float:
    """A bound on noise and coins whose variances were guessed beforehand, and are known now.

    The guess is of all variances together, and they are hardly above `most`. `coins` has what the
    variances of the coins sum to, as released, the variance of the noise in that, and the largest
    coin.
    """
    released, spread, largest = coins
    guesses = [guess]
    while guesses[-1] < most:
        guesses.append(_APART * guesses[-1])
    best = math.inf
    for i, each in enumerate(guesses):
        part = _FIRST if i == 0 else (1.0 - _FIRST) / (len(guesses) - 1)
        own = tail - portable_math.log(part)
        rate = math.sqrt(2.0 * own / each)
        if rate * largest <= _tried()[0]:
            b = rate * _bennett(rate * largest) / 2.0
            radius = own / rate + rate * (variance + b * b * spread) / 2.0 + b * released
            best = min(best, radius)
    return best


def _exp(x: float) -> float:
    return portable_math.power(2.718281828459045, x)


def coins_on(
    market: Market,
    budget: Budget,
    noise: Sum,
    weight: float,
    supply: float,
    variance: float,
    measured: bool = False,
) -> Coins:
    """The coins on the load of one resource of this supply, in units of weight times code.

    `variance` is what they add as released or, before the run, as expected, in squared codes. Coins
    decide for agents whose decision turns as prices follow the noise, so for about as much load as
    there is noise on it.
    """
    cap, square = float(DEMAND_CODE_MAX), weight * weight
    guess = cap * max(cap, math.sqrt(noise.variance) / weight)
    scale = chance_scale(market, budget, measured)
    most = cap * supply / 4.0
    return Coins(square * variance, square * scale, weight * cap, square * guess, square * most)


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


@functools.cache
def _tried() -> list[float]:
    """Some rates times `largest`, from 4 down to 2^-16."""
    return [4.0 * portable_math.power(2.0, -0.25 * i) for i in range(72)]


@functools.lru_cache(maxsize=4096)
def _bennett(u: float) -> float:
    """Bennett's factor k(u) for u up to 40, rounded up."""
    term, k = 1.0, 0.0
    for i in range(3, 300):
        k, term = k + term, term * u / i
    return k * (1.0 + 2.0**-40)


def _mixed_quantile(rate: float, tail: float) -> float:
    """A z with phi(z) (M(z) + M(rate - z)) <= e^-tail, close to the smallest, or infinity."""

    def mills(x: float) -> float:
        return 4.0 / (3.0 * x + math.sqrt(x * x + 8.0))

    def exponent(z: float) -> float:
        mixed = (mills(z) + mills(rate - z)) / 2.5066282746310002
        return z * z / 2.0 - portable_math.log(mixed)

    low, high = 0.0, min(rate, math.sqrt(2.0 * tail))
    if exponent(high) < tail:
        return math.inf
    for _ in range(40):
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
