"""Public: what this run achieved, proved from its billboard.

C1 to C3 are about loads and hold together with probability 1 - beta. C4 to C6 are about value and
hold together with probability 1 - value_beta, unless a repair drops agents, which happens with
probability at most beta. The probabilities are over the noise and the coins, whatever the records
are. `jdpack.privacy.tail_bounds` proves the bounds on sums of noise and coins.

C1. Load of divisible goods. Let D_tj be the exact demand for resource j in round t (in codes), w_t
the round's weight, W = sum_t w_t, and S the supply in codes. The averaged allocation has load L_j =
sum_t w_t D_tj / (W S). The billboard shows D_tj with noise. The weighted noise sums to less than -r
with probability at most beta / m, so L_j <= (sum_t w_t answer_tj + r) / (W S) =: U_j for all j
together. Shares are scaled by f = min(1, 1 / max_j U_j), so they fit.

C2. Load of indivisible goods. The `granted` release shows the load of what the coins grant. That
load is at most U_j = (answer_j + r) / S, where r is the radius of this one release. If U_j <= 1,
then f_j = 1. Otherwise every grant of an option that touches resource j is kept with probability at
most f_j: given the grants, an agent's coin is uniform on the width of its option, so it falls in
the first f_j of that width with probability f_j, independently of all others. f_j is the largest
factor for which `tail_bounds.kept_at_most` is at most 1. An option that touches several resources
uses the smallest of their factors. (Divisible goods have one factor for all resources, which makes
C6 sharp.)

C3. Batches. If each round asks one batch (mwu-online), an agent's allocation is what it took in the
one round that asked it, all or nothing, and W is the weight of one round. The sums of C1 are then
the load of all batches together. If the agents add the noise themselves, those sums bound the load
of indivisible goods too, and nothing is known about value. Batches give no bound on the optimum:
duality needs the demand of all agents at the same prices.

`load_at_most` bounds the load of what is given. Dropping agents in a repair only lowers that load.

C4. Optimum. Let p_j be posted prices and b_j the supplies. Every fractional allocation x that fits
has sum_i v_i x_i <= sum_j p_j b_j + sum_i max(0, max_o (v_io - cost_io)) (weak duality). So the
optimum is at most the weighted average of the right side over the rounds. In codes and price units
the right side of round t is sum_j p_tj (b_j / unit_j - D_tj) + 2^20 welfare_t, up to rounding: a
value is less than 1 above its code and an amount less than 1 below, so every agent adds at most
2^20 plus the prices of the k dearest resources. The welfares average to the welfare of the averaged
allocation, which is released once at the end. The rest, X, is known except for the noise
sum_t w_t sum_j p_tj N_tj. The prices p_t depend on earlier noise, so the variance of that sum,
V_T = sum_t w_t^2 scale_t^2 sum_j p_tj^2, is random, but we know it. exp(l M_t - l^2 V_t / 2) is a
supermartingale for every l. Integrated over l with a normal density of variance 1/v it is
sqrt(v / (V + v)) exp(M^2 / (2 (V + v))), so
|M_T| >= sqrt((V_T + v) (2 ln(1/p) + ln((V_T + v) / v))) with probability at most p (Robbins 1970),
for any v fixed before the first round that adds to V. We take the best of several v around the
variance that the prices of that round would give; each v gets its part of the probability. (A round
in which all prices are 0, such as the first of dual-gd, adds nothing.)

C5. Welfare. For divisible goods, what is given is worth at least f times the welfare of the
averaged allocation. For indivisible goods, what is granted is worth that welfare plus the coins'
luck. The run releases the luck of the grants, or the luck of what is given if that leads to a
sharper bound (`closing.luck_terms`). If an agent has several options, their shares are rounded
down, and its coin may fall in the gap that rounding left, with probability below 1/SHARE per
option. Luck is cut there, and we subtract a bound on that. The value that thinning takes away is
bounded like the load that coins keep, at odds of 1 minus the smallest factor.

C6. Ratio. The same welfare w appears above and below, in f w / (w + X) or (w + luck) / (w + X).
Both are monotone in w, so the smallest value is at an end of the interval that holds w. With
y = w + luck and B = X - luck, thinned grants have the ratio (f y - a sqrt(y) - k) / (y + B) with
a, k >= 0. Its derivative has the sign of f B + k + a sqrt(y) / 2 - a B / (2 sqrt(y)). If B >= 0,
that is positive wherever the ratio is (f sqrt(y) > a there). If B < 0, it grows with y >= -B, so
the ratio may dip between the ends, at most once (`_dip`). (X is negative if the averaged allocation
does not fit. The optimum is never negative, so w >= -X: the interval ends there, where the ratio is
infinite or 0.)

All statements are about the records as encoded: if numbers were clamped to the public bounds, the
optimum is the optimum of the clamped ones.
"""

from __future__ import annotations

import math
from fractions import Fraction

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Certificate
from jdpack.common import portable_math
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.market.market import Market
from jdpack.policies import registry
from jdpack.privacy import tail_bounds
from jdpack.privacy.noise import NoNoise
from jdpack.privacy.queries import Query
from jdpack.protocol import bounds, closing

_GUESSES = 4  # how many v the bound of C4 tries


def certify(board: Billboard) -> Certificate:
    """Certify a run whose policy has stopped and whose closing releases are posted."""
    market, budget = board.header.market, board.header.budget
    scaling = bounds.factors(board)
    at_most, coin_tail = bounds.load_bounds(board), tail_bounds.coin_tail(market, budget)
    given = [
        factor / SHARE * load  # C1; below, C2
        if market.divisible
        else tail_bounds.kept_at_most(load, cap / market.supply_code, factor / SHARE, coin_tail)
        / bounds.DOWN
        for load, cap, factor in zip(at_most, market.cap_codes, scaling, strict=True)
    ]
    welfare, optimum, ratio = _value(board, scaling)
    return Certificate(
        factors=scaling,
        load_at_most=tuple(min(1.0, load) for load in given),
        beta=budget.beta,
        welfare_at_least=welfare,
        optimum_at_most=optimum,
        ratio_at_least=ratio,
        value_beta=bounds.VALUE_BETA,
    )


def _value(board: Billboard, scaling: tuple[int, ...]) -> tuple[float, float | None, float | None]:
    """Lower bound on the welfare, upper bound on the optimum, lower bound on the ratio."""
    market = board.header.market
    if board.header.local:
        return 0.0, None, None  # C3
    tail = bounds.value_tail()
    averaged, radius = _released(board, "welfare")
    # Shares are rounded down: an agent loses less than 1/SHARE of each option that it ever takes.
    options = min(market.options, sum(1 for _ in board.rounds))
    rounding = market.agents * options * (market.value_cap_code / SHARE + 1.0)
    least, most = max(0.0, averaged - radius), max(0.0, averaged + radius)
    f, value_cap = min(scaling) / SHARE, float(market.value_cap_code)
    luck, luck_of_grants = 0.0, False
    if not market.divisible:
        released, radius = _released(board, "luck")
        luck, luck_of_grants = released - radius, min(closing.luck_terms(board)[0]) == SHARE
        if market.options > 1:  # C5: the gaps that rounding left
            gaps = options / SHARE
            luck -= tail_bounds.kept_at_most(market.agents * value_cap, value_cap, gaps, tail)

    def given(welfare: float) -> float:
        """C5: the value of what is given, at least."""
        if market.divisible:
            return max(0.0, (f * welfare - rounding) * bounds.DOWN)
        granted = max(0.0, welfare + luck)
        thinned = bounds.thinned_away(market, granted, f) if luck_of_grants else 0.0
        return max(0.0, (granted - thinned) * bounds.DOWN)

    x, step = _above_welfare(board, tail), market.value_step
    if x is None:
        return given(least) * step, None, None
    x += rounding

    def ratio_at(welfare: float) -> float:
        """C6: the ratio if the averaged allocation has this welfare, at least."""
        w = max(welfare, -x)
        if w + x > 0.0:
            return given(w) / (w + x)
        return math.inf if given(w) > 0.0 else 0.0

    ratio = min(ratio_at(least), ratio_at(most))
    if luck_of_grants and 0.0 < f < 1.0 and x < luck:  # C6 with B < 0
        dip = _dip(market, luck - x, f) - luck
        ratio = min(ratio, ratio_at(min(max(least, dip), most)))
    optimum = max(0.0, most + x) * step / bounds.DOWN
    return given(least) * step, optimum, min(1.0, ratio) * bounds.DOWN if ratio < math.inf else 0.0


def _dip(market: Market, less: float, f: float) -> float:
    """The y >= less = -B > 0 at which the ratio of C6 is smallest; `less` if it only grows."""
    tail, cap = bounds.value_tail(), float(market.value_cap_code)
    a, k = math.sqrt(2.0 * cap * f * (1.0 - f) * tail), cap * tail / 3.0
    half = (f * less - k) / a  # root^2 - 2 half root + less = 0
    if half <= 0.0 or half * half <= less:
        return less
    root = half + math.sqrt(half * half - less)
    return root * root


def _above_welfare(board: Billboard, tail: float) -> float | None:
    """C4: an upper bound on X with all roundings, in value codes; None if no bound is known."""
    market = board.header.market
    policy = registry.from_dict(board.header.policy)
    if policy.truncated or any(step.batch for step in board.rounds):
        return None
    supplies = [
        math.ceil(Fraction(r.supply) / Fraction(unit))
        for r, unit in zip(market.resources, market.unit_sizes, strict=True)
    ]
    total, rounding, variance, guess = 0, 0, 0.0, 0.0
    outlook = policy.outlook(market, board.header.budget)
    for release in board.releases:
        step = release.step
        if step.weight:
            slack = zip(step.prices, supplies, release.answer, strict=True)
            total += step.weight * sum(p * (b - a) for p, b, a in slack)
            dearest = sorted(step.prices, reverse=True)[: market.bundle_size]
            rounding += step.weight * (PRICE_UNITS_PER_VALUE_CODE + sum(dearest))
            squares = float(sum(p * p for p in step.prices))
            scale = 0.0 if isinstance(step.noise, NoNoise) else step.noise.scale
            spread = step.weight * scale
            variance += spread * spread * squares
            guess = guess or outlook.variance * squares
    radius = _mixture_radius(variance, guess, tail)
    whole = board.weight * PRICE_UNITS_PER_VALUE_CODE
    above = (total + radius) / whole
    above = above / bounds.DOWN if above > 0.0 else above * bounds.DOWN
    return above + rounding * market.agents / whole


def _mixture_radius(variance: float, guess: float, tail: float) -> float:
    """C4: a bound on noise of this variance, by normal mixtures."""
    if variance == 0.0:
        return 0.0
    tail += portable_math.log(float(_GUESSES))
    v, best = max(guess, 1e-300) * 4.0, math.inf
    for _ in range(_GUESSES):
        v /= 64.0
        best = min(best, (variance + v) * (2.0 * tail + portable_math.log((variance + v) / v)))
    return math.sqrt(best)


def _released(board: Billboard, query: Query) -> tuple[float, float]:
    release = bounds.closing_release(board, query)
    return float(release.answer[0]), bounds.value_radius(release.step.noise)
