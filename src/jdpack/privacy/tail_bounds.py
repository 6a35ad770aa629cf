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

Noise and coins. The averaged load of a resource is A = O + N, where O is observed and N is a sum of
noise as above. Coins grant each agent at most q, with mean a_i and variance v_i, given the rounds;
the a_i sum to A and the v_i to Q. The billboard shows R = Q + E, where E is Gaussian noise of scale
s, independent of all else. Then it shows a factor f, and every grant is kept with probability at
most f. How large is the load G that is given? Given the billboard, G is a sum of independent
numbers. Keeping a grant more often only raises it, so let f be the probability itself. Then an
agent is given f a_i on average, with a variance of at most f^2 v_i + f (1 - f) q a_i, because the
square of a grant is at most q times the grant. For every l > 0, Bennett's inequality (Boucheron,
Lugosi & Massart 2013, Section 2.4) with k(u) = 2 (e^u - 1 - u) / u^2, which grows with u, says
P(G >= y | billboard) <= exp(-l (y - g A - f^2 l k(l q) Q / 2)), g = f (1 + l k(l q) (1 - f) q / 2).
Fix a rate L and a `least` before the rounds, and let K = k(L q / least) and b = L K / 2. For a
given f, let g be the larger root of g^2 = f g + f (1 - f) b q, so f <= g. If g >= least, then
l = L / g has k(l q) <= K, and f^2 l <= g L, so
P(G >= y | billboard) <= exp(-L (y / g - A - b Q)) = exp(-L (y / g - O - b R - X)), X = N - b E.
So with y = g (O + b R + r), whatever f is as a function of the billboard,
P(G >= y) <= E min(1, exp(-L (r - X))). Let V = s^2 b^2 + the variance of N. This is at most e^-tail

* if r >= tail / L + L V / 2, because E exp(L X) <= exp(L^2 V / 2);
* if weights and scales are fixed beforehand and, with z = r / sqrt V and d = L sqrt V - z >= 0,
  ln(M(z) + M(d)) - z^2 / 2 - ln sqrt(2 pi) <= -tail, where M(x) = Q(x) / phi(x) is at most
  4 / (3 x + sqrt(x^2 + 8)) (Sampford 1953). For normal X the mean is Q(z) + exp(-L r + L^2 V / 2)
  Q(d), and the second term is phi(z) M(d). The bound min(1, exp(-L (r - x))) grows with x and is at
  most 1, so discrete noise adds what it adds above, with E as one more term.

If f = 1 then g = 1, and O + b R + r bounds the load. We fix a few pairs of L and `least`, for
several guesses of Q and for thinning more or less, and each gets its part of the probability. The
variances and q may be bounds. If the weights of the rounds are chosen as they come, the total
weight is known only at the end, and so are q and s: then L, q and s are those of a public bound on
it. If there is nothing to decide (batches), a factor of 1 needs no coins, and N alone counts.

Those who leave. Suppose that every request has one option, and that no price is below that of the
first round that counts. Costs grow with prices, so whatever is taken in some round is taken in the
first. Let F be the load of the first round and A the averaged load, and let request i take a_i <= q
in the first round and have the share x_i, so F - A is the sum of (1 - x_i) a_i. The coin of request
i takes a_i away with probability 1 - x_i (or a little more, because shares are rounded down). So
for the load G that is granted, and every L > 0, E exp(L (G - F)) is at most
prod_i (1 - (1 - x_i) (1 - e^(-L a_i))) <= exp(-sum_i (1 - x_i) (1 - e^(-L a_i))).
1 - e^(-L a) is concave in a, and 0 at a = 0, so it is at least (a / q) (1 - e^(-L q)) for a <= q.
With k = (1 - e^(-L q)) / (L q) the mean is thus at most exp(-L k (F - A)), and
P(G >= y | billboard) <= exp(-L (y - (1 - k) F - k A)). Now (1 - k) F + k A is a weighted sum of the
loads of the rounds: the weights are k w_t, and (1 - k) W more for the first, W being the sum of all
w_t. It is observed with noise X, and the rest is as above, with these weights and without R and E:
nothing about coins is released. Thinning only lowers G. Whether prices do fall below those of the
first round is known in the end, and if they do, nothing is claimed. So we bound the probability
that they do not and G >= y, and the indicator of that is at most min(1, exp(-L (r - X))) as before.
We fix three rates L, and k with them, before the rounds. Each gets its part of the probability, and
all bounds that hold for any prices share what is left.

What thinning keeps of value. Take grants of total worth U, none above q, and keep each
independently with probability f. ln(1 - f + f e^(l x)) is convex in x and 0 at x = 0, so for x <= q
it is at most (x / q) times its value at q. So what is kept has the moments of at most U / q coins
of size q, and exceeds y, with f U <= y <= U, with probability at most exp(-(U / q) KL(y / U, f)),
where KL is the relative entropy of two coins (Chernoff 1952).
"""

from __future__ import annotations

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

CHANCE_MOST = 0.3
"""The largest part of rho for the release of how much coins decide."""

CHANCE_OF_VALUE = 4.0
"""How much more noise the variance of value gets in that release than those of loads."""

CHANCE_PER_CAP = float(DEMAND_CODE_MAX) ** 2 / CHANCE_UNIT
"""How many units of the chance release the square of a cap is."""

LEAVING = 4.5
"""Coins of agents who leave are worth their own bounds if the noise of one release with the whole
rho is below this many caps."""

LEAVING_MEAN = 0.0125
"""And if it is below this part of supply, so that few have to leave."""

_LEAVING: tuple[tuple[float, float], ...] = ((0.9, 0.3), (1.15, 0.35), (1.6, 0.2))  # rates, in
# deviations, and the parts of the probability of these bounds

_E = 2.718281828459045
_HALVINGS = 36  # of an interval that holds a bound; what is left is on the safe side
_FIRST = 0.7  # the part of the probability for the first fit of a bound; the others share the rest
_APART = 6.0  # the ratio of one guess of what coins decide to the one before
_MILD = 0.9  # thinning to this is as well bounded as none at all
_THIN: tuple[float, ...] = (0.5, 0.1)  # and to these, by fits of their own


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


def apart(heaviest: int, whole: int) -> float:
    """The part of the weight that is not in the heaviest round, rounded up.

    Above a fifth it tells nothing of what coins decide (`queries.chance_change`), and is 1.
    """
    found = (1.0 - heaviest / whole) * (1.0 + 1e-12)
    return found if found <= queries.APART_MOST else 1.0


def closing_shares(
    market: Market, budget: Budget, *, coins: bool, apart: float = 1.0
) -> dict[Query, float]:
    """The parts of rho for the releases that close a run; the policy gets the rest.

    `apart` is the part of the weight that is not in the heaviest round (`queries.chance_change`).
    """
    shares: dict[Query, float] = {"chance": chance_share(market, budget, apart)} if coins else {}
    return {**shares, "welfare": WELFARE_SHARE, "luck": LUCK_SHARE}


def rounds_rho(
    market: Market, budget: Budget, *, batches: bool = False, apart: float = 1.0
) -> float:
    """The part of rho that the policy may spend."""
    coins = coins_decide(market, batches=batches)
    shares = closing_shares(market, budget, coins=coins, apart=apart)
    return budget.rho * (1.0 - math.fsum(shares.values()))


@functools.lru_cache(maxsize=64)
def chance_share(market: Market, budget: Budget, apart: float = 1.0) -> float:
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
    change = queries.chance_change(market, apart)
    chance = CHANCE_UNIT * math.sqrt(change.worst(chance_shape(market)))
    ratio = chance / noise * math.sqrt(2.0 * budget.rho)
    share = min(CHANCE_MOST, 1.5 * ratio * math.sqrt(tail(market, budget) / 3.0))
    # What coins decide then hardly matters, because `leavings` do without it.
    return min(share, WELFARE_SHARE) if apart < 1.0 and leave_only(market, budget) else share


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
def chance_scale(market: Market, budget: Budget, apart: float = 1.0) -> float:
    """The noise on the variance that coins add to a load, in squared codes."""
    noise = gaussian(
        queries.chance_change(market, apart),
        budget.rho * chance_share(market, budget, apart),
        chance_shape(market),
    )
    return CHANCE_UNIT * deviation(noise)[0]


def tail(market: Market, budget: Budget, beta: float | None = None) -> float:
    """ln(1 / probability) for one of equal parts of beta; beta is the budget's, or another."""
    return portable_math.log(len(market.resources) / (beta or budget.beta))


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


@functools.lru_cache(maxsize=64)
def leave_only(market: Market, budget: Budget) -> bool:
    """Whether the bounds of `leavings` are used: coins weigh much against the noise.

    They need agents who have one option, so that higher prices can only make them leave. Each price
    should correct its own load, so they ask for one resource each. And there must be enough supply
    for a few of them to leave.
    """
    if market.divisible or market.options > 1 or market.bundle_width > 1 or budget.rho == math.inf:
        return False
    noise = math.sqrt(queries.change(market, "demand").squares / (2.0 * budget.rho))
    mean = noise * len(market.resources) / math.fsum(market.supply_codes)
    return noise < LEAVING * float(DEMAND_CODE_MAX) and mean < LEAVING_MEAN


@dataclass(frozen=True)
class Leaving:
    """A bound on noise and the coins of those who leave, for one rate fixed beforehand."""

    kept: float
    """The part of the average, against that of the first round, in the observed load."""
    radius: float
    """What that load may lack, in units of weight times code."""


@functools.lru_cache(maxsize=4096)
def leavings(
    weights: tuple[int, ...], scales: tuple[float, ...], cap: float, tail: float
) -> list[Leaving]:
    """Bounds for rounds of these weights and scales, if no price is below that of the first.

    They hold together with the parts of the probability e^-tail that `others_tail` leaves.
    `cap` is the most that one request takes, in codes.
    """
    whole, found = float(sum(weights)), []
    deviation = math.sqrt(math.fsum((w * s) ** 2 for w, s in zip(weights, scales, strict=True)))
    for times, part in _LEAVING:
        own = tail - portable_math.log(part)
        rate = times * math.sqrt(2.0 * own) / deviation
        u = rate * whole * cap
        kept = (1.0 - portable_math.power(_E, -u)) / u * (1.0 - 1e-9)
        spread = [kept * w for w in weights]
        spread[0] += (1.0 - kept) * whole
        variance = math.fsum((w * s) ** 2 for w, s in zip(spread, scales, strict=True))
        radius = own / rate + rate * variance / 2.0
        noise = Sum(variance, whole, scales)
        far = _mixed_quantile(rate * math.sqrt(variance), own + noise._excess(own))
        found.append(Leaving(kept, min(radius, far * math.sqrt(variance) + whole / 2.0)))
    return found


def others_tail(tail: float) -> float:
    """The tail of all other bounds, if those of `leavings` are used."""
    return tail - portable_math.log(1.0 - math.fsum(part for _, part in _LEAVING))


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
    rise: float
    """b q, by which the coins that thin raise the bound."""
    least: float
    """The bound holds if g is at least this."""

    def kept(self, f: float) -> float:
        """g: a load bounded by U, thinned to f, is bounded by g U.

        Keeping more only raises a load, so g need not be below `least`, nor above 1.
        """
        if f >= 1.0:
            return 1.0
        g = (f + math.sqrt(f * f + 4.0 * f * (1.0 - f) * self.rise)) / 2.0
        return min(1.0, max(g, self.least))

    def factor(self, g: float) -> float:
        """The largest f that keeps at most g; 0 if this fit knows none."""
        if g >= 1.0:
            return 1.0
        if g < self.least:
            return 0.0
        half = g + self.rise
        return 2.0 * g * g / (half + math.sqrt(half * half - 4.0 * self.rise * g * g))


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

    def radius_with_coins(self, coins: Coins, tail: float, *, truncated: bool = False) -> float:
        """The sum plus coins is at most this, with probability 1 - e^-tail, if nothing is thinned.

        `fits` says more.
        """
        return min(fit.radius for fit in self.fits(coins, tail, truncated=truncated))

    def fits(self, coins: Coins, tail: float, *, truncated: bool = False) -> list[Fit]:
        """Bounds on the sum plus coins, which hold together with probability 1 - e^-tail."""
        found: list[Fit] = []
        kinds: list[tuple[float, float]] = []
        first, guess, thin = tail - portable_math.log(_FIRST), coins.guess, _THIN
        if guess == 0.0:  # then a factor of 1 needs no coins
            found.append(Fit(self.radius(first, truncated=truncated), math.inf, 1.0))
            guess, thin = coins.most, (_MILD, *thin)
        while guess < coins.most or not (kinds or found):
            kinds.append((guess, _MILD))
            guess *= _APART
        # The coins that thin count like others that decide this much.
        kinds += [(coins.guess + 4.0 * (1.0 - least) * coins.most, least) for least in thin]
        other = tail + portable_math.log((len(found + kinds) - 1) / (1.0 - _FIRST))
        for guess, least in kinds:
            found.append(self._fit(coins, guess, least, other if found else first, truncated))
        return found

    def _fit(self, coins: Coins, guess: float, least: float, tail: float, truncated: bool) -> Fit:
        """The bound that is fitted to a guess of what coins decide."""
        radius, b = _rate(self, coins.scale, coins.largest, guess, least, tail, truncated)
        return Fit(radius + b * coins.released, b * coins.largest, least)

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
    scale: float,
    largest: float,
    guess: float,
    least: float,
    tail: float,
    truncated: bool,
) -> tuple[float, float]:
    """The r and b at the rate that is about best for a guess of what coins decide."""
    variance, most = noise.variance, math.inf
    if truncated and variance > 0.0:  # E exp(l N) <= exp(2 l^2 V) for l <= 1 / (sqrt 2 peak)
        variance, most = 4.0 * variance, 1.0 / (math.sqrt(2.0) * noise.peak)
    doubt = scale * scale / 4.0

    def about(tried: tuple[float, float]) -> float:
        rate, k = min(tried[0] * least / largest, most), tried[1]
        return tail / rate + rate * (variance + k * guess + (rate * k) ** 2 * doubt) / 2.0

    u, k = min(_bennett(), key=about)
    rate = min(u * least / largest, most)
    b = rate * k / 2.0
    variance += 4.0 * b * b * doubt
    radius = tail / rate + rate * variance / 2.0
    if noise.scales is not None and noise.variance > 0.0 and not truncated:
        unit = largest * largest / CHANCE_PER_CAP  # of the chance release
        far = _mixed_quantile(rate * math.sqrt(variance), tail + noise._excess(tail, scale / unit))
        radius = min(radius, far * math.sqrt(variance) + (noise.weight + b * unit) / 2.0)
    return radius, b


def coins_on(
    market: Market,
    budget: Budget,
    noise: Sum,
    weight: float,
    supply: float,
    variance: float,
    apart: float = 1.0,
) -> Coins:
    """The coins on the load of one resource of this supply, in units of weight times code.

    `variance` is what they add as released or, before the run, as expected, in squared codes, and
    `apart` the part of the weight that is not in the heaviest round. Coins
    decide for agents whose decision turns as prices follow the noise, so for about as much load as
    there is noise on it.
    """
    cap, square = float(DEMAND_CODE_MAX), weight * weight
    guess = cap * max(cap, math.sqrt(noise.variance) / weight)
    scale = chance_scale(market, budget, apart)
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
def _bennett() -> list[tuple[float, float]]:
    """Some u, from 4 down to 2^-16, each with Bennett's factor k(u), rounded up."""
    found, u = [], 4.0
    while u > 2.0**-16:
        term, k = 1.0, 0.0
        for i in range(3, 60):
            k, term = k + term, term * u / i
        found.append((u, k * (1.0 + 2.0**-40)))
        u /= 1.189207115002721
    return found


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
