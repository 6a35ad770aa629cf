"""Public: what this run achieved, proved from its billboard.

`jdpack.privacy.tail_bounds` has the bounds on sums of noise and coins that are used here. The
statements about loads hold together with probability 1 - beta, those about value with 1 -
value_beta (unless agents are dropped in a repair, which has probability beta at most), over the
noise and the coins, whatever the records are.

Load, divisible goods. Let D_tj be the exact demand for resource j in round t (in codes), w_t the
round's weight, W = sum_t w_t and S the supply in codes. The averaged allocation has load L_j =
sum_t w_t D_tj / (W S). The billboard shows D_tj with noise, and the weighted noise sums to at least
-r but with probability beta / m, so L_j <= (sum_t w_t answer_tj + r) / (W S) =: U_j for all j
together. Shares are scaled by f = min(1, 1 / max_j U_j), and fit.

Load, indivisible goods. The `granted` release shows the load of what the coins grant, at most
U_j = (answer_j + r) / S with r the radius of that one release. Where U_j is at most 1, f_j = 1.
Else every grant of an option that touches resource j is kept with odds f_j at most: given the
grants, an agent's coin is uniform on the width of its option, so it is in the first f_j of it with
probability f_j, independently. f_j is the largest for which `tail_bounds.kept_at_most` is at most
1. An option that touches several resources has the least of their factors. (Divisible goods have
one factor for all, which makes the statement about the ratio sharp.)

Batches. Where each round asks one batch (mwu-online), an agent's allocation is what it took in the
one round that asked it, all or nothing, and W is that one round's weight: the sums above are then
the load of all batches together. Where the agents add the noise themselves, those sums bound the
load of indivisible goods too, and nothing is known about value. No bound on the optimum follows
from batches: duality needs the demand of all agents at the same prices.

`load_at_most` is the bound on the load of what is given. Agents that are dropped in a repair only
lower it.

Optimum. Let p_j be posted prices. For every fractional allocation x that fits, sum_i v_i x_i <=
sum_j p_j b_j + sum_i max(0, max_o (v_io - cost_io)) (weak duality); b_j the supply. Hence the
optimum is at most the weighted average of the right side over the rounds. In codes and price units
the right side of round t is sum_j p_tj (b_j / unit_j - D_tj) + 2^20 welfare_t, up to rounding: a
value is less than 1 above its code, an amount less than 1 below, so every agent adds at most 2^20
plus the prices of the k dearest resources. The welfares average to that of the averaged
allocation, which is released once at the end; the rest, X, is known but for the noise
sum_t w_t sum_j p_tj N_tj. The
prices p_t depend on earlier noise, so its variance V_T = sum_t w_t^2 scale_t^2 sum_j p_tj^2 is
random, but known. exp(l M_t - l^2 V_t / 2) is a supermartingale for every l; integrated over l
with a normal density of variance 1/v it is sqrt(v / (V + v)) exp(M^2 / (2 (V + v))), so
|M_T| >= sqrt((V_T + v) (2 ln(1/p) + ln((V_T + v) / v))) with probability at most p (Robbins 1970),
for any v that is fixed before the first round that adds to V. We take the best of several v around
the variance that this round's prices would give, each with its part of the probability. (Where all
prices are 0, as in the first round of dual-gd, a round adds nothing.)

Welfare. Of divisible goods, what is given is worth at least f times the welfare of the averaged
allocation. Of indivisible goods, what is granted is worth that welfare plus the coins' luck, which
is released, or that of what is given if that is told more sharply (`closing.luck_terms`). (Of
several options whose shares are rounded down, a coin may fall on the gap that
rounding left, with odds below 1/SHARE for each option; luck is cut there, and a bound on that is
taken off.) What thinning takes away is bounded like the load that coins keep, at odds of 1 minus
the least factor. The ratio uses that the same welfare w stands above and below, f w / (w + X) or
(w + luck) / (w + X), monotone in w: so its least value is at an end of the interval that holds w.
With y = w + luck and B = X - luck, thinned grants have (f y - a sqrt(y) - k) / (y + B) with
a, k >= 0. Its derivative has the sign of f B + k + a sqrt(y) / 2 - a B / (2 sqrt(y)), which is
positive wherever the ratio is (f sqrt(y) > a there), if B >= 0. If B < 0 it grows with y >= -B, so
the ratio may dip between the ends, at most once (`_dip`). (X is negative where the averaged
allocation does not fit. The optimum is not, so w >= -X: the interval ends there, and the ratio with
it, at infinity or 0.)

The records are meant as encoded: where numbers were clamped to the public bounds, the optimum is
that of the clamped ones.
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

_GUESSES = 4  # variances of X that are tried


def certify(board: Billboard) -> Certificate:
    """The certificate of a run whose policy has stopped and whose closing releases are in."""
    market, budget = board.header.market, board.header.budget
    scaling = bounds.factors(board)
    at_most, coin_tail = bounds.load_bounds(board), tail_bounds.coin_tail(market, budget)
    given = [
        factor / SHARE * load
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
    """Welfare at least, optimum at most, and the ratio, at least."""
    market = board.header.market
    if board.header.local:
        return 0.0, None, None
    tail = bounds.value_tail()
    averaged, radius = _released(board, "welfare")
    # Shares are rounded down: an agent loses less than 1/SHARE of each option that it ever takes.
    options = min(market.options, sum(1 for _ in board.rounds))
    rounding = market.agents * options * (market.value_cap_code / SHARE + 1.0)
    least, most = max(0.0, averaged - radius), max(0.0, averaged + radius)
    f, cap = min(scaling) / SHARE, float(market.value_cap_code)
    luck, thins = 0.0, False
    if not market.divisible:
        released, radius = _released(board, "luck")
        luck, thins = released - radius, min(closing.luck_terms(board)[0]) == SHARE
        if market.options > 1:
            luck -= tail_bounds.kept_at_most(market.agents * cap, cap, options / SHARE, tail)

    def given(welfare: float) -> float:
        if market.divisible:
            return max(0.0, (f * welfare - rounding) * bounds.DOWN)
        granted = max(0.0, welfare + luck)
        return max(
            0.0,
            (granted - (bounds.thinned_away(market, granted, f) if thins else 0.0)) * bounds.DOWN,
        )

    above, step = _above_welfare(board, tail), market.value_step
    if above is None:
        return given(least) * step, None, None
    above += rounding

    def share(welfare: float) -> float:
        w = max(welfare, -above)
        if w + above > 0.0:
            return given(w) / (w + above)
        return math.inf if given(w) > 0.0 else 0.0

    ratio = min(share(least), share(most))
    if thins and 0.0 < f < 1.0 and above < luck:
        dip = _dip(market, luck - above, f) - luck
        ratio = min(ratio, share(min(max(least, dip), most)))
    optimum = max(0.0, most + above) * step / bounds.DOWN
    return given(least) * step, optimum, min(1.0, ratio) * bounds.DOWN if ratio < math.inf else 0.0


def _dip(market: Market, less: float, f: float) -> float:
    """The y >= less > 0 at which (y - _taken(y)) / (y - less) is least; `less` if it only grows."""
    tail, cap = bounds.value_tail(), float(market.value_cap_code)
    a, k = math.sqrt(2.0 * cap * f * (1.0 - f) * tail), cap * tail / 3.0
    half = (f * less - k) / a  # root^2 - 2 half root + less = 0
    if half <= 0.0 or half * half <= less:
        return less
    root = half + math.sqrt(half * half - less)
    return root * root


def _above_welfare(board: Billboard, tail: float) -> float | None:
    """X and all roundings, at most, in value codes; None where the noise has no such bound."""
    market = board.header.market
    batched = any(step.batch for step in board.rounds)
    if batched or registry.from_dict(board.header.policy).truncated:
        return None
    supplies = [
        math.ceil(Fraction(r.supply) / Fraction(unit))
        for r, unit in zip(market.resources, market.unit_sizes, strict=True)
    ]
    total, rounding, variance = 0, 0, 0.0
    guess = 0.0
    outlook = registry.from_dict(board.header.policy).outlook(market, board.header.budget)
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
    """A bound on noise whose variance turned out to be this, by normal mixtures."""
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
