"""Public: dual-gd, projected gradient descent on the dual prices.

Hsu, Huang, Roth & Wu, Jointly Private Convex Programming (SODA 2016, arXiv:1411.0998), Algorithm
PrivDude: the first algorithm for the problem. It needs m supplies of order m^2 / (alpha epsilon) in
all, so m / (alpha epsilon) each, up to logarithms. Multiplicative weights need sqrt(m). The reason
is that PrivDude measures both the gradient of m noisy numbers and the set of prices in the
Euclidean norm.

In relative loads L_j, with P_j the price of a whole supply: prices start at 0, and a round is

    P_j  +=  eta (L_j - 1),   then each is brought back to [0, 2 tau].

tau = n V: optimal prices of the dual sum to at most the optimum, so to at most n V. PrivDude
doubles the bound so that exceeding a supply is never worth it. Everybody gets the average of the
rounds.

The regret lemma (Zinkevich 2003) gives the constants that the paper leaves in O-notation. With D
the diameter of the box and G^2 a bound on the mean of the squared norm of the noisy gradient, T
rounds have an average regret of at most D^2 / (2 eta T) + eta G^2 / 2.

* D = 2 n V sqrt(m), and G^2 = m (W^2 + sigma^2): W is the width, the most that |L_j - 1| can be,
  and sigma the standard deviation of the noise on one load, whose mean is 0.
* eta = D / (G sqrt(T)) = 2 n V / sqrt(T (W^2 + sigma^2)) minimises it: D G / sqrt(T).
* PrivDude has T = w^2, with w the width in units of demand, so w = b W for a supply of b. We take
  the T that makes D G / sqrt(T) = 4 alpha n V without noise, which is what the others aim for:
  T = D^2 m W^2 / (4 alpha n V)^2 = m^2 W^2 / (4 alpha^2). Both agree for b = m / (2 alpha), which
  is about the supply that PrivDude needs, and ours falls as supply grows. With a constant supply
  both are of order n^2, and every round asks n agents: the n^3.

PrivDude fixes its noise by advanced composition; we use Gaussian noise and the filter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jdpack.billboard.lines import Release
from jdpack.market.market import Market
from jdpack.policies import fixed_rounds
from jdpack.policies.fixed_rounds import ByAlpha, State
from jdpack.privacy.accounting import Budget


@dataclass(frozen=True)
class DualGd(ByAlpha):
    """Gradient descent on the dual prices, for an additive loss of order alpha n V.

    Args:
        alpha: the loss to aim for, as a fraction of n times the value cap.
        rounds: the number of rounds, instead of the number that alpha asks for.
    """

    name: ClassVar[str] = "dual-gd"

    def start(self, market: Market, budget: Budget) -> State:
        rounds = self.rounds_in(market)
        noise = fixed_rounds.noise_of(market, budget, rounds)
        width, sigma = fixed_rounds.width(market), fixed_rounds.sigma(market, noise)
        return State(
            market=market,
            noise=noise,
            size=2.0
            * fixed_rounds.worth(market)
            / math.sqrt(rounds * (width * width + sigma * sigma)),
            prices=np.zeros(len(market.resources)),
            left=rounds,
        )

    def observe(self, state: State, release: Release) -> State:
        moved = state.prices + state.size * fixed_rounds.excess(state, release)
        return state.moved(np.clip(moved, 0.0, 2.0 * fixed_rounds.worth(state.market)))

    def asked(self, market: Market) -> float:
        root = len(market.resources) * fixed_rounds.width(market) / (2.0 * self.alpha)
        return root * root
