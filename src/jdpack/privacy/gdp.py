"""Public: Gaussian differential privacy of discrete noise, (epsilon, delta) <-> rho.

The cost of a Gaussian release is rho = sum_j d_j^2 / (2 s_j^2), for the worst move d of its answer
and noise of scale s_j on coordinate j. Costs add up to rho, as in zCDP, but the conversion to
(epsilon, delta) is the exact one of the normal distribution with mu^2 = 2 rho, not a bound on
Renyi divergences. The noise is discrete, which costs a little more. G1 to G4 prove it.

Formal guarantees. Let D and D' be neighbours, and let every release add independent noise to an
exact integer answer. Which query comes next, and its scales, are functions of the releases so far.
Whatever they are, the filter keeps sum_t rho_t <= rho, and the sum of `transfer` over all draws at
most c = TRANSFER_SHARE rho. Then the releases are (epsilon, delta)-DP with
delta = `delta_of(rho, epsilon)`.

G1. Normal noise. Suppose first that the noise is normal. Given the past, release t moves by d_t,
and v_t = sum_j (d_tj / s_tj)^2 <= 2 rho_t. Add one last release that moves by sqrt(2 rho - sum v_t)
scales and says nothing else; it can only help an attacker. Write Z_t for the noise in scales and
u_t for the move in scales, so that |u_t|^2 = v_t and the v_t sum to exactly mu^2 = 2 rho. Under D
the log likelihood ratio is L = sum_t (u_t Z_t + v_t / 2). Here u_t depends on the past and Z_t does
not, so exp(i x sum_{k<=t} u_k Z_k + x^2 / 2 sum_{k<=t} v_k) is a martingale for every real x.
Hence E exp(i x sum u_t Z_t) = exp(-x^2 mu^2 / 2): under D, L is normal with mean mu^2 / 2 and
variance mu^2, and under D' with mean -mu^2 / 2, just as for one release that moves by mu scales.
So adaptive choice loses nothing (Smith & Thakurta 2022, "Fully adaptive composition for Gaussian
differential privacy", arXiv:2210.17520; Koskela, Tobaben & Honkela 2023, "Individual privacy
accounting with Gaussian differential privacy", ICLR 2023), and for every real e the releases are
(e, d(e))-DP with d(e) = Q(e / mu - mu / 2) - exp(e) Q(e / mu + mu / 2), where Q is the upper tail
of the standard normal (Balle & Wang 2018, Theorem 8; Dong, Roth & Su 2022, Corollary 2.13).

G2. Rounded normal noise. Round every answer of G1 to the nearest integer. That is post-processing,
and since the exact answer is an integer, it is the same as rounding the noise.

G3. Discrete noise. For one draw of scale s >= 1, let p(x) be the probability of the integer x under
the discrete Gaussian, and r(x) that a normal rounds to x. With f the normal density,
r(x) = integral over |u| <= 1/2 of f(x + u) = f(x) times the integral of
exp(-u^2 / (2 s^2)) cosh(x u / s^2). By Poisson summation the normalising sum of p is
s sqrt(2 pi) (1 + h) with h = 2 sum_{k>=1} exp(-2 pi^2 s^2 k^2), so 0 < h < 1e-8 / s^2 for s >= 1,
and p(x) = f(x) / (1 + h).

  * p(x) / r(x) <= 1 / (integral of exp(-u^2 / (2 s^2))) <= exp(1 / (24 s^2)) for every x: cosh is
    at least 1, and by Jensen's inequality the integral is at least exp(-(mean of u^2) / (2 s^2)).
  * r(x) / p(x) <= (1 + h) (integral of cosh(x u / s^2)) = (1 + h) sinh(a) / a with
    a = |x| / (2 s^2). Term by term, sinh(a) / a <= exp(a^2 / 6), because (2k + 1)! >= 6^k k!. So
    for |x| <= K s it is at most exp(K^2 / (24 s^2) + h).

Both exponents together are at most (K^2 + 2) / (24 s^2) = 37.6 / s^2 for K = 30; `transfer`
charges 38 / s^2.

G4. The run. Let P, P' be the distributions of all releases on D and D', with discrete noise, and
R, R' with rounded normal noise. Each factor of the likelihood is bounded by G3 whatever the past,
so the bounds multiply, and their exponents sum to at most c. Let A + B <= c be the parts of the two
kinds. Let T be the event that on D' some draw exceeds K scales. Then for every set S of outcomes

    P(S) <= e^A R(S)                                     (G3, first bound)
         <= e^A (e^(epsilon - c) R'(S) + d(epsilon - c))   (G1, G2)
         <= e^A (e^(epsilon - c) (e^B P'(S) + R'(T)) + d(epsilon - c))   (G3, second bound)
         <= e^epsilon P'(S) + e^c d(epsilon - c) + e^epsilon R'(T).

A rounded normal exceeds 30 s only if the normal exceeds 29.5 s, so with probability below 1e-188.
Scales are at most 2^54 (`noise.SCALE_MAX`) and c < 2, so there are fewer than 2^108 c / 38 < 2e31
draws, and e^epsilon R'(T) < 1e-110 for epsilon <= 100. The same holds with D and D' exchanged.

Batches. Noise that does not touch the agent in which D and D' differ has the same distribution on
both. G1 holds with a move of 0 there, and P and R may have the same noise there. So only the
releases about all agents, and those about blocks that contain the batch of that agent, count
towards rho and c.

Groups. For g agents mu becomes g mu. G2 to G4 do not depend on the moves. If the agents are in
several batches, up to g batches count. The cost is still at most g^2 rho, and c is at most g times
as large, which `delta_of(g^2 rho)` covers.

Numbers. Everything is computed in decimals of 60 digits, which are the same on every machine, and
every result is rounded to the private side.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction

TRANSFER_SHARE = Fraction(1, 512)
"""The cost of discreteness may sum to this part of rho, and counts as epsilon.

It suffices for every market. A release with n numbers is charged at most 38 n / s^2, s the smallest
of its scales. If one agent can move the number with that scale by d, the release costs rho_t at
least (d / s)^2 / 2, so the charge is at most 76 rho_t n / d^2. For demand, n is at most 65,536 and
d = 65,535; for all others n / d^2 is less. (Where totals bound demand, `queries.DemandChange`
ensures it.) The filter checks it all the same."""

EPSILON_PROVED = 100.0
"""The largest epsilon for which G4 bounds the tail."""

RHO_MOST = 1e3
"""The largest rho for which G4 bounds the number of draws."""

_CHORDS, _NUDGE = 40, 2e-13
_TAIL = Decimal("1e-110")  # e^epsilon R'(T) in G4
_RHO_LEAST = 1e-40  # at less, the difference of two tails would lose too many digits
_CLOSE = Decimal("1e-45")  # bounds the relative error of a tail probability, 1e-52, generously
_CONTEXT = Context(prec=60, rounding=ROUND_HALF_EVEN, Emin=-(10**6), Emax=10**6)
_ROOT_2_PI = Decimal("2.50662827463100050241576528481104525300698674060993831662992357")


def transfer(scales: Sequence[float]) -> Fraction:
    """The extra cost of draws at these scales that are discrete, not normal (G3); part of epsilon.

    Rounded up. Below a scale of 1 nothing is proved, and the charge is more than a budget allows.
    """
    if min(scales) < 1.0:
        return Fraction(38)
    alike = len(scales) if scales.count(scales[0]) == len(scales) else 1  # then one term will do
    total = alike * math.fsum(1.0 / (s * s) for s in scales[::alike])
    return 38 * Fraction(total * (1.0 + 2.0**-40))


@functools.lru_cache(maxsize=4096)
def delta_of(rho: float, epsilon: float) -> float:
    """The smallest delta for which releases that cost rho are (epsilon, delta)-DP, rounded up."""
    if not (epsilon <= EPSILON_PROVED and rho < RHO_MOST):
        return 1.0
    rho = max(rho, _RHO_LEAST)  # delta grows with rho
    with localcontext(_CONTEXT):
        cost = Decimal(rho) * TRANSFER_SHARE.numerator / TRANSFER_SHARE.denominator
        delta = cost.exp() * _normal_delta((2 * Decimal(rho)).sqrt(), Decimal(epsilon) - cost)
        return min(1.0, math.nextafter(float(delta + _TAIL), math.inf))


@functools.lru_cache(maxsize=4096)
def epsilon_of(rho: float, delta: float) -> float:
    """The smallest epsilon for which releases that cost rho are (epsilon, delta)-DP, rounded up.

    It is inf if that is above EPSILON_PROVED.
    """
    if delta_of(rho, EPSILON_PROVED) > delta:
        return math.inf
    if delta_of(rho, 0.0) <= delta:
        return 0.0
    return _last(lambda epsilon: delta_of(rho, epsilon), delta, EPSILON_PROVED, 0.0)


@functools.lru_cache(maxsize=256)
def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho (to one part in 10^12, from below) that implies (epsilon, delta)-DP."""
    low = 1e-3
    while delta_of(low, epsilon) > delta:
        low /= 4.0
    high = 2.0 * low
    while delta_of(high, epsilon) <= delta:
        low, high = high, 2.0 * high
    return _last(lambda rho: delta_of(rho, epsilon), delta, low, high)


def _last(found: Callable[[float], float], most: float, inside: float, outside: float) -> float:
    """The last point from `inside`, where a delta is at most this, to `outside`, where it is more.

    To one part in 10^12, by bisection. Delta is monotone, so what is known on either side of a
    point decides it too. Chords find two points close to the end, which decide most others.
    """
    near, far, moved = inside, outside, 0
    below, above = (math.log(found(point) / most) for point in (near, far))
    for _ in range(_CHORDS):
        point = near + (far - near) * (below / (below - above))
        if min(abs(point - near), abs(point - far)) <= _NUDGE * abs(point):
            break
        value = math.log(found(point) / most)
        # An end that stays twice counts half, so that it moves next (Illinois).
        if value <= 0.0:
            near, below, above, moved = point, value, above / (1 + (moved < 0)), -1
        else:
            far, above, below, moved = point, value, below / (1 + (moved > 0)), 1
    for end in (point * (1.0 - _NUDGE), point * (1.0 + _NUDGE)):
        if min(near, far) < end < max(near, far):
            near, far = (end, far) if found(end) <= most else (near, end)
    while abs(outside - inside) > 1e-12 * abs(inside):
        middle = (inside + outside) / 2.0
        if min(near, far) < middle < max(near, far):
            holds = found(middle) <= most
        else:
            holds = abs(middle - outside) >= abs(near - outside)
        inside, outside = (middle, outside) if holds else (inside, middle)
    return inside


def _normal_delta(mu: Decimal, epsilon: Decimal) -> Decimal:
    """d(epsilon) of G1, rounded up."""
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    (_, most), (least, _) = _tail(a), _tail(b)
    return most - epsilon.exp() * least + most * _CLOSE


def _tail(x: Decimal) -> tuple[Decimal, Decimal]:
    """Bounds on Q(x), up to rounding.

    Near 0 by the series Q(x) = 1/2 - f(x) (x + x^3 / 3 + x^5 / (3 5) + ...), whose terms have one
    sign. Further out by the continued fraction Q(x) = f(x) / (x + 1 / (x + 2 / (x + 3 / ...))),
    whose convergents lie above and below in turn.
    """
    if x < -4:
        least, most = _tail(-x)
        return 1 - most, 1 - least
    density = (-x * x / 2).exp() / _ROOT_2_PI
    if x < 4:
        square, term, total = x * x, x, x
        for k in range(3, 203, 2):  # 16^100 / 201!! < 1e-65
            term = term * square / k
            total += term
        found = Decimal("0.5") - density * total
        return found, found
    depth = 2 * int(700 / (x * x)) + 8  # even: above
    return density / _fraction(x, depth + 1), density / _fraction(x, depth)


def _fraction(x: Decimal, depth: int) -> Decimal:
    found = x
    for k in range(depth, 0, -1):
        found = x + k / found
    return found
