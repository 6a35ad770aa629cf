"""Public: what this run achieved, proved from its billboard.

Load. Let D_tj be the exact demand for resource j in round t (in codes), N_tj its noise, w_t the
round's weight and W = sum_t w_t. The averaged allocation xbar has load L_j = sum_t w_t D_tj /
(W S). The billboard shows sum_t w_t (D_tj + N_tj). Each w_t and noise scale is fixed before N_tj
is drawn, so M_T = -sum_t w_t N_tj is a martingale.

* Gaussian: discrete Gaussian noise is sub-Gaussian with its own scale (Canonne, Kamath & Steinke
  2020, Lemma 9), so exp(l M_t - l^2 V_t / 2), V_t = sum (w_t scale_t)^2, is a supermartingale for
  every l. The policy's public constant V bounds V_t always. Hence P(M_T >= r) <=
  exp(-l r + l^2 V / 2) at the random time at which the run stops; the best l gives
  exp(-r^2 / (2V)).
* Truncated Laplace: E exp(l N) <= 1 / (1 - (l scale)^2) <= exp(2 (l scale)^2) for |l| scale <=
  1/sqrt 2: truncation makes |N| smaller and cosh grows with |N|; discrete Laplace noise is below
  the continuous one because (cosh x - 1) / x^2 grows. As above with 2 l^2 V in place of
  l^2 V / 2, for l up to 1 / (sqrt 2 peak), `peak` bounding every w_t scale_t.

With r such that the probability is beta / m, all m bounds hold together with probability
1 - beta: L_j <= (sum_t w_t answer_tj + r) / (W S).

Scaling. Divisible goods: shares are scaled by f = min(1, 1 / max_j bound_j), and fit. For
indivisible goods coins add a deviation of their own: an agent adds an independent amount in
[0, q], q = C_j / S, of total mean at most f U and so of variance at most q f U, with U the bound.
By Bernstein's inequality in its sub-gamma form (Boucheron, Lugosi & Massart 2013, Section 2.8)
the load exceeds f U + sqrt(2 q f U l) + q l / 3 with probability at most e^-l. f makes that 1, with
half of beta for the noise and half for the coins. `load_at_most` is that bound on the load of what
is given, after scaling and coins; agents that are dropped in a repair only lower it.
"""

from __future__ import annotations

import math

from jdpack import policies, portable
from jdpack.accounting import Budget
from jdpack.billboard import SHARE, Billboard, Certificate
from jdpack.errors import BillboardError
from jdpack.market import Market
from jdpack.policies import Outlook

_DOWN = 1.0 - 1e-12  # float rounding in the bounds stays on the safe side


def certify(board: Billboard) -> Certificate:
    """The certificate of a run whose policy has stopped."""
    market, budget = board.header.market, board.header.budget
    averaged = averaged_loads(board)
    factor = _factor(market, budget, averaged)
    given = _given(market, budget, [load * factor / SHARE for load in averaged])
    return Certificate(factor, tuple(given), budget.beta)


def averaged_loads(board: Billboard) -> list[float]:
    """Upper bounds on the load of the averaged allocation, before scaling and coins."""
    market, budget = board.header.market, board.header.budget
    policy = policies.from_dict(board.header.policy)
    if board.weight == 0:
        raise BillboardError("no round counts: there is nothing to certify")
    totals = [0] * len(market.resources)
    for release in board.releases:
        if release.step.weight:
            for j, answer in enumerate(release.answer):
                totals[j] += release.step.weight * answer
    radius = noise_radius(policy.outlook(market, budget), _tail(market, budget), policy.truncated)
    whole = board.weight * market.supply_code
    return [max(0.0, (total + radius) / (whole * _DOWN)) for total in totals]


def noise_radius(outlook: Outlook, tail: float, truncated: bool) -> float:
    """With probability 1 - e^-tail, the weighted noise of one resource sums to no more."""
    if not truncated:
        return math.sqrt(2.0 * tail * outlook.variance)
    most = 1.0 / (math.sqrt(2.0) * outlook.peak)
    rate = min(most, math.sqrt(tail / (2.0 * outlook.variance)))
    return tail / rate + 2.0 * rate * outlook.variance


def _tail(market: Market, budget: Budget) -> float:
    """ln(1 / probability) of one bound: beta over m resources, and over noise and coins."""
    events = len(market.resources) * (1 if market.divisible else 2)
    return portable.log(events / budget.beta)


def _factor(market: Market, budget: Budget, averaged: list[float]) -> int:
    """The scale factor: the largest with which the load that is given is at most 1."""
    tail, factor = _tail(market, budget), 1.0
    for cap, load in zip(market.cap_codes, averaged, strict=True):
        if load > 0.0:
            room = 1.0
            if not market.divisible:
                # y^2 + a y + q tail / 3 = 1 with y^2 = f U, a = sqrt(2 q tail)
                q = cap / market.supply_code
                a, rest = math.sqrt(2.0 * q * tail), 1.0 - q * tail / 3.0
                y = (math.sqrt(a * a + 4.0 * rest) - a) / 2.0 if rest > 0.0 else 0.0
                room = y * y
            factor = min(factor, room * _DOWN / load)
    return math.floor(factor * SHARE)


def _given(market: Market, budget: Budget, scaled: list[float]) -> list[float]:
    """Bounds on the load that is given, from bounds on the scaled load before coins."""
    if market.divisible:
        return [min(1.0, load) for load in scaled]
    tail = _tail(market, budget)
    shares = [cap / market.supply_code for cap in market.cap_codes]
    return [
        min(1.0, (load + math.sqrt(2.0 * q * load * tail) + q * tail / 3.0) / _DOWN)
        for load, q in zip(scaled, shares, strict=True)
    ]
