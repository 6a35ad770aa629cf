"""Public: what this run achieved, proved from its billboard.

C1 to C3 are about loads and hold together with probability 1 - beta. C4 to C7 are about value and
hold together with probability 1 - value_beta, unless a repair drops agents, which happens with
probability at most beta. The probabilities are over the noise and the coins, whatever the records
are. `jdpack.privacy.tail_bounds` proves the bounds on sums of noise and coins.

C1. Load of divisible goods. Let D_tj be the exact demand for resource j in round t (in codes), w_t
the round's weight, W = sum_t w_t, and S_j the supply in codes. The averaged allocation has load L_j
= sum_t w_t D_tj / (W S_j). The billboard shows D_tj with noise. Each resource has its part beta_j
of beta: equal parts or, with newton, parts that prices decide before the first round that counts
(`tail_bounds.tails`). The weighted noise of resource j sums to less than -r_j with probability at
most beta_j, so L_j <= (sum_t w_t answer_tj + r_j) / (W S_j) for all j together. We add one cap, C /
S_j, and call the result U_j, because a repair must be as rare for every neighbour of these records
(`Budget`): C is what one agent can take of j in all, over all its requests
(`Market.person_cap_codes`). f_j = min(1, 1 / U_j), and an option is scaled by the smallest f_j of
the resources that it touches. So the load of j falls at least by f_j.

C2. Load of indivisible goods. Every request has its own coin. Coins grant each option with its
averaged share as probability, so what is granted has the load of the averaged allocation plus the
coins, a sum of independent numbers whose mean is 0 given the rounds. The `granted` release measures
that load, and the `chance` release shows the variances that coins add, both with noise. Every grant
of an option that touches resource j is kept with probability at most f_j: given the grants, a
request's coin is uniform on the width of its option, so it falls in the first f_j of that width
with probability f_j, independently of all others. `tail_bounds` bounds noise, coins and thinning
together, by several fits that hold together with probability 1 - beta_j. Fit i bounds the load
before thinning by U_ij, and after it by g U_ij, where g is a function of f_j. f_j is the largest
factor with which some fit has g U_ij <= 1 - C / S_j. What a neighbour of these records keeps is at
most one cap more, so one event covers both. An option that touches several resources uses the
smallest of their factors.

C3. Batches. If each round asks one batch (mwu-online), an agent's allocation is what it took in the
one round that asked it, all or nothing, and W is the weight of one round. An answer may sum up a
block of batches. Over disjoint blocks that hold every batch, the sums of C1 are then the load of
all batches together, of indivisible goods too, and coins decide nothing. Which blocks these are is
fixed beforehand: the one that ends with the last batch, the one that ends just before it, and so
on. If the agents add the noise themselves, nothing is known about value, and nothing is repaired.
Batches give no bound on the optimum: duality needs the demand of all agents at the same prices.

`load_at_most` bounds the load of what is given. Dropping agents in a repair only lowers that load.
If the market says how often a supply may be exceeded, nothing is repaired: beta is that
probability, no cap is added, and `load_surely` is the same bound at a probability of 1e-9.

C4. Optimum. Let p_j be posted prices and b_j the supplies. Every fractional allocation x that fits
has sum_i v_i x_i <= sum_j p_j b_j + sum_i max(0, max_o (v_io - cost_io)) (weak duality). So the
optimum is at most the weighted average of the right side over the rounds. In codes and price units
the right side of round t is sum_j p_tj (b_j / unit_j - D_tj) + 2^20 welfare_t, up to rounding: a
value is less than 1 above its code and an amount less than 1 below, so every agent adds at most
2^20 plus the prices of the k dearest resources. The welfares average to the welfare of the averaged
allocation, which is released once at the end. The rest, X, is known except for the noise
sum_t w_t sum_j p_tj N_tj. The prices p_t depend on earlier noise, so the variance of that sum,
V_T = sum_t w_t^2 sum_j (scale_tj p_tj)^2, is random, but we know it. exp(l M_t - l^2 V_t / 2) is a
supermartingale for every l. Integrated over l with a normal density of variance 1/v it is
sqrt(v / (V + v)) exp(M^2 / (2 (V + v))), so
|M_T| >= sqrt((V_T + v) (2 ln(1/p) + ln((V_T + v) / v))) with probability at most p (Robbins 1970),
for any v fixed before the first round that adds to V. We take the best of several v around the
variance that the prices of that round would give; each v gets its part of the probability. (A round
in which all prices are 0, such as the first of dual-gd, adds nothing.)

The welfare is also at least what is paid. Nobody takes an option that costs more than its value, so
in every round the values taken are worth at least sum_j p_tj D_tj price units. The noise in their
average is the same sum, so both bounds fail in the same event. This one helps where the value cap
is far above the values and noise drowns the release of the welfare.

C5. Welfare. What is given is worth the welfare w of the averaged allocation plus the luck: what
coins gave beyond the average, minus what scaling or thinning took away. If nothing is scaled or
thinned, divisible goods have no luck, and the luck of coins is a sum of independent numbers, none
below -d, d the most that an option cost (`bounds.dearest`), whose variance the `chance` release
shows: by Bernstein's inequality it is below -sqrt(2 variance tail) - d tail / 3 with probability at
most e^-tail. (The release counts values in units of d / 2^16, rounded up. That moves a value by
less than one unit, so one agent's deviation by at most half a unit, and the deviation of n agents
together by at most sqrt(n) / 2 units: Minkowski's inequality.) If something is scaled or thinned,
the run may release the luck of what is given (`closing.luck_range`). Otherwise, or if it is better,
divisible goods are worth at least f w with f the smallest factor, and what thinning takes away is
bounded like the load that coins keep, with chance 1 - f. If an agent has several options, their
shares are rounded down, and its coin may fall in the gap that rounding left, with probability below
1/SHARE per option. `chance` counts such a coin as if it gave the least valuable option, and we
subtract a bound on what is lost in the gaps.

C6. Ratio. The same welfare w appears above and below, in f w / (w + X) or (w + luck) / (w + X).
Both are monotone in w, so the smallest value is at an end of the interval that holds w. Divisible
goods have both bounds, and one may rise while the other falls: then the larger of the two may be
smallest where they are equal. What thinning takes away grows with w, but more slowly than w
(implicit differentiation of the relative entropy in `tail_bounds`), so the value left grows too,
and the ratio is at least the value at the left end of an interval over w + X at its right end. We
cut the interval into cells and take the smallest. (X is negative if the averaged allocation does
not fit. The optimum is never negative, so w >= -X: the interval ends there, where the ratio is
infinite or 0.)

C7. Grants. Where the grants are measured, prices tell directly how far they are from the optimum
(`grants`). Let q be a pivot, one price per resource, and let g_i be the option that the coin of
request i grants, with value v_i(g_i) and codes d_i(g_i). Let its surplus at q be s_i = v_i - q d_i,
0 for nothing. A coin grants each option with its average share, so the values granted sum to
U = w + sum_j q_j (G_j - A_j) + sum_i (s_i(g_i) - E s_i), where G is the load granted and A the
averaged load. Whatever a request took in some round t had the largest surplus at p_t. So if o and
o' were both taken, s(o) - s(o') is at least (p_t - q) (d(o) - d(o')), and hence at least -sum_j e_j
|d_j(o) - d_j(o')| with e_j = max_t |p_tj - q_j|, and likewise with o and o' exchanged. Two options
differ in at most K resources: the width of an option, or twice that if a request has several. Let
h_j > 0 be such that the K largest sum to at most 1. Then by Cauchy's inequality and with an
independent copy of g_i, the variance of s_i(g_i) is at most sum_j e_j^2 / h_j times the variance
of d_ij(g_i), which `chance` shows, summed over all requests. No surplus is below its mean by more
than the cap times the K largest e_j. So with C4, and with noise N in the rounds and Z in `granted`,

    optimum - U <= sum_t w_t sum_j (p_tj b_j - (p_tj - q_j) (D_tj + N_tj)) / W
                   - sum_j q_j (G_j + Z_j)
                   + sum_t w_t sum_j (p_tj - q_j) N_tj / W + sum_j q_j Z_j
                   - sum_i (s_i(g_i) - E s_i).

The first two lines are on the billboard. The others are noise and coins whose variances are known
once it is (`tail_bounds`, "Variances that nobody knows beforehand"), and call the bound on all four
Y. The pivot and the rates depend on the first round that counts and on nothing after it; the pivot
is the part of its prices for which noise and coins are about least. e and h depend on the rounds,
and coins come after them. So the noise of the rounds, and the coins, count only as far as prices
differ from the pivot. (Shares are rounded down. With several options, let the gap grant each of
them what rounding took from it: C5 bounds what that adds to U. It only raises G, and adds at most
1/SHARE of a squared cap per option to a variance. With one option, rounding lowers A, and w by no
more than is added for it.) The value given, U minus what thinning takes away, is a growing part of
U, and U / (U + Y) grows too. So the ratio is at least its value at the least U of C5. If luck is
released, what thinning takes away is not bounded, and C6 counts alone. If not, the larger of the
two ratios does.

All statements are about the records as encoded: if numbers were clamped to the public bounds, the
optimum is the optimum of the clamped ones.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Certificate
from jdpack.common import portable_math
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.policies import registry
from jdpack.privacy import tail_bounds
from jdpack.privacy.noise import deviation
from jdpack.privacy.queries import Query
from jdpack.protocol import bounds, closing, grants

_GUESSES = 4  # how many v the bound of C4 tries
_CELLS = 32  # into which C6 cuts the interval of the welfare


def certify(board: Billboard) -> Certificate:
    """Certify a run whose policy has stopped and whose closing releases are posted."""
    budget = board.header.budget
    scaling = bounds.factors(board)
    given = bounds.given_bounds(board, scaling, None)
    surely = None
    if not budget.repaired:
        surely = tuple(bounds.given_bounds(board, scaling, bounds.SURELY_BETA))
    welfare, optimum, ratio = _value(board, scaling)
    return Certificate(
        factors=scaling,
        load_at_most=tuple(min(1.0, load) for load in given),
        beta=budget.beta,
        welfare_at_least=welfare,
        optimum_at_most=optimum,
        ratio_at_least=ratio,
        value_beta=bounds.VALUE_BETA,
        load_surely=surely,
    )


def proves(board: Billboard, posted: Certificate) -> bool:
    """Whether the billboard proves all that a posted certificate claims.

    It may claim less about value: earlier versions proved less from the same lines.
    """
    found = certify(board)
    less = (
        posted.welfare_at_least <= found.welfare_at_least,
        _none_as(posted.optimum_at_most, math.inf) >= _none_as(found.optimum_at_most, math.inf),
        _none_as(posted.ratio_at_least, 0.0) <= _none_as(found.ratio_at_least, 0.0),
    )
    value = {
        name: getattr(posted, name)
        for name in ("welfare_at_least", "optimum_at_most", "ratio_at_least")
    }
    return all(less) and replace(found, **value) == posted


def _none_as(number: float | None, claims_nothing: float) -> float:
    return claims_nothing if number is None else number


def _value(board: Billboard, scaling: tuple[int, ...]) -> tuple[float, float | None, float | None]:
    """Lower bound on the welfare, upper bound on the optimum, lower bound on the ratio."""
    market = board.header.market
    if board.header.local:
        return 0.0, None, None  # C3
    tail = bounds.value_tail(board.header)
    averaged, radius = _released(board, "welfare")
    # Shares are rounded down: a request loses less than 1/SHARE of each option that it ever takes.
    options = min(market.options, sum(1 for _ in board.rounds))
    rounding = market.requests_at_most * options * (market.value_cap_code / SHARE + 1.0)
    unsold = _unsold(board, tail)
    paid = 0.0 if unsold is None else unsold[1] - rounding
    least = max(0.0, averaged - radius, paid)
    most = max(least, averaged + radius)
    f, value_cap = min(scaling) / SHARE, float(market.value_cap_code)
    thinned, luck, by_grants = False, 0.0, board.header.ratio_by_grants
    if closing.luck_range(board, scaling) is not None:
        released, radius = _released(board, "luck")
        luck, by_grants = released - radius, False
    elif not market.divisible:
        thinned, luck = f < 1.0, -bounds.coin_luck(board)
    granted = max(0.0, least + luck)
    if board.header.coins and market.options > 1:  # C5: the gaps that rounding left
        gaps = market.options / SHARE
        all_value = float(market.agents * market.person_value_code)
        luck -= tail_bounds.kept_at_most(all_value, value_cap, gaps, tail)

    def given(welfare: float) -> float:
        """C5: the value of what is given, at least."""
        left = max(0.0, welfare + luck)
        if thinned:
            left -= bounds.thinned_away(board.header, left, f)
        if market.divisible:
            left = max(left, f * welfare) - rounding
        return max(0.0, left * bounds.DOWN)

    step = market.value_step
    if unsold is None:
        return given(least) * step, None, None
    x = unsold[0] + rounding

    def ratio_of(left: float, right: float) -> float:
        """C6: the value at one welfare, at least, over the optimum at another, at most."""
        left, right = max(left, -x), max(right, -x)
        if right + x > 0.0:
            return given(left) / (right + x)
        return math.inf if given(left) > 0.0 else 0.0

    if thinned:
        ends = [least + i * (most - least) / _CELLS for i in range(_CELLS + 1)]
        ratio = min(ratio_of(a, b) for a, b in itertools.pairwise(ends))
    else:
        ends = [least, most]
        if market.divisible and f < 1.0:  # where the two bounds of C5 are equal
            ends.append(min(max(least, -luck / (1.0 - f)), most))
        ratio = min(ratio_of(end, end) for end in ends)
    if by_grants:
        short = math.fsum(grants.short_of_optimum(board)) + _unseen(board) + rounding
        best = granted + max(0.0, short) / bounds.DOWN
        ratio = max(ratio, given(least) / best if best > 0.0 else 0.0)
    optimum = max(0.0, most + x) * step / bounds.DOWN
    return given(least) * step, optimum, min(1.0, ratio) * bounds.DOWN if ratio < math.inf else 0.0


def _unsold(board: Billboard, tail: float) -> tuple[float, float] | None:
    """C4: an upper bound on X with all roundings, and a lower bound on what is paid.

    In value codes; None if no bound is known.
    """
    market = board.header.market
    policy = registry.from_dict(board.header.policy)
    if policy.truncated or any(step.batch for step in board.rounds):
        return None
    supplies = bounds.supplies_up(market)
    left, paid, variance, guess = 0, 0, 0.0, 0.0
    outlook = policy.outlook(market, board.header.budget)
    for release in board.releases:
        step = release.step
        if step.weight:
            worth = sum(p * b for p, b in zip(step.prices, supplies, strict=True))
            cost = sum(p * a for p, a in zip(step.prices, release.answer, strict=True))
            left, paid = left + step.weight * (worth - cost), paid + step.weight * cost
            scales = deviation(step.noise) * (
                1 if len(deviation(step.noise)) > 1 else len(supplies)
            )
            squares = math.fsum((p * s) ** 2 for p, s in zip(step.prices, scales, strict=True))
            variance += step.weight * step.weight * squares
            guess = guess or step.weight * outlook.weight * squares
    radius = _mixture_radius(variance, guess, tail)
    whole = board.weight * PRICE_UNITS_PER_VALUE_CODE
    above = (left + radius) / whole
    above = above / bounds.DOWN if above > 0.0 else above * bounds.DOWN
    return above + _unseen(board), max(0.0, paid - radius) / whole * bounds.DOWN


def _unseen(board: Billboard) -> float:
    """C4: what values and amounts can lose as they become codes, in value codes."""
    market, rounding = board.header.market, 0
    for step in board.rounds:
        dearest = sorted(step.prices, reverse=True)[: market.bundle_width]
        rounding += step.weight * (PRICE_UNITS_PER_VALUE_CODE + sum(dearest))
    return rounding * market.requests_at_most / (board.weight * PRICE_UNITS_PER_VALUE_CODE)


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
    radius = bounds.value_radius(board.header, release.step.noise)
    return float(release.answer[0]), radius
