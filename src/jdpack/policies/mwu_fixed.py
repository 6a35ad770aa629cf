"""Public: mwu-fixed, multiplicative weights with a fixed step.

Huang & Zhu, Near Optimal Jointly Private Packing Algorithms via Dual Multiplicative Weight Update
(SODA 2018, arXiv:1905.00812), Section 3: the optimal supply, of order sqrt(m) / (alpha epsilon) up
to logarithms, in time n^3. Its successor mwu-adaptive needs only time n, because its steps follow
the size of the gradient. Here one step size must suit the largest gradient possible.

In relative loads L_j, with P_j the price of a whole supply: the prices of the m resources and of a
dummy sum to 2 n V. Nobody demands the dummy, and its load counts as 1. All prices start equal. A
round is

    P_j  *=  exp(theta (L_j - 1)),   then all are scaled so that they sum to 2 n V again.

The regret lemma gives the constants that the paper leaves in O-notation. With W the width, the most
that |L_j - 1| can be, T rounds have an average regret of at most

    2 n V (ln(m + 1) / (theta T)  +  theta W^2).

* theta = sqrt(ln(m + 1) / T) / W minimises it: 4 n V W sqrt(ln(m + 1) / T).
* T = ln(m + 1) W^2 / alpha^2 makes that 4 alpha n V, as for mwu-adaptive, so alpha means the same
  in both. Then theta is alpha / W^2. W is of order n / b: with a constant supply b, T is of order
  n^2, and every round asks n agents. That is the n^3.

The paper uses Laplace noise and advanced composition; we use Gaussian noise and the filter. The
exponent is cut to [-1, 1], where the lemma needs it, and a floor of 1e-300 prevents underflow,
which real numbers do not have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jdpack.billboard.lines import Release
from jdpack.common import portable_math
from jdpack.market.market import Market
from jdpack.policies import fixed_rounds
from jdpack.policies.fixed_rounds import ByAlpha, State
from jdpack.privacy.accounting import Budget

_FLOOR = 1e-300


@dataclass(frozen=True)
class MwuFixed(ByAlpha):
    """Multiplicative weights with a fixed step, for an additive loss of order alpha n V.

    Args:
        alpha: the loss to aim for, as a fraction of n times the value cap.
        rounds: the number of rounds, instead of the number that alpha asks for.
    """

    name: ClassVar[str] = "mwu-fixed"

    def start(self, market: Market, budget: Budget) -> State:
        m, rounds = len(market.resources), self.rounds_in(market)
        return State(
            market=market,
            noise=fixed_rounds.noise_of(market, budget, rounds),
            size=math.sqrt(portable_math.log(m + 1.0) / rounds) / fixed_rounds.width(market),
            prices=np.full(m + 1, 2.0 * fixed_rounds.worth(market) / (m + 1)),
            left=rounds,
        )

    def observe(self, state: State, release: Release) -> State:
        prices = state.prices.copy()
        exponent = np.clip(state.size * fixed_rounds.excess(state, release), -1.0, 1.0)
        prices[:-1] *= portable_math.exp(exponent)
        total = 2.0 * fixed_rounds.worth(state.market)
        prices *= total / math.fsum(prices.tolist())
        return state.moved(np.maximum(prices, _FLOOR))

    def asked(self, market: Market) -> float:
        share = fixed_rounds.width(market) / self.alpha
        return portable_math.log(len(market.resources) + 1.0) * share * share
