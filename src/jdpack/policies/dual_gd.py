"""Public: dual-gd, projected gradient descent on the dual prices.

Hsu, Huang, Roth & Wu, Jointly Private Convex Programming (SODA 2016, arXiv:1411.0998), Algorithm
PrivDude: the first algorithm for the problem. It needs m supplies of order m^2 / (alpha epsilon) in
all, so m / (alpha epsilon) each, up to logarithms, where multiplicative weights need sqrt(m): a
gradient of m noisy numbers is measured in the Euclidean norm, and so is the set of prices.

In relative loads L_j, with P_j the price of a whole supply: prices start at 0, and a round is

    P_j  +=  eta (L_j - 1),   then each is brought back to [0, 2 tau].

tau = n V: optimal prices of the dual sum to the optimum at most, so to n V, and PrivDude doubles
the bound so that no supply is worth exceeding. Everybody gets the average of the rounds.

The constants that the paper leaves in O-notation come from the regret lemma (Zinkevich 2003). With
D the diameter of the box and G^2 a bound on the mean of the squared norm of the noisy gradient, T
rounds have an average regret of at most D^2 / (2 eta T) + eta G^2 / 2.

* D = 2 n V sqrt(m), and G^2 = m (W^2 + sigma^2): W is the width, the most that |L_j - 1| can be,
  and sigma the deviation of the noise of one load, whose mean is 0.
* eta = D / (G sqrt(T)) = 2 n V / sqrt(T (W^2 + sigma^2)) makes it least: D G / sqrt(T).
* PrivDude has T = w^2, with w the width in units of demand, so w = b W for a supply of b. We take
  the T that makes D G / sqrt(T) = 4 alpha n V without noise, which is what the others aim for:
  T = D^2 m W^2 / (4 alpha n V)^2 = m^2 W^2 / (4 alpha^2). Both are the same for b = m / (2 alpha),
  about the supply that PrivDude needs, and ours falls as supply grows. With a constant supply both
  are of order n^2, and every round asks n agents: the n^3.

PrivDude's noise is fixed by advanced composition; ours is Gaussian, by the filter.
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
        alpha: the loss to aim for, as a share of n times the value cap.
        rounds: the number of rounds, in place of the one that alpha asks for.
    """

    name: ClassVar[str] = "dual-gd"

    def start(self, market: Market, budget: Budget) -> State:
        rounds = self.rounds_in(market, budget)
        noise = fixed_rounds.noise_of(market, budget, rounds)
        width, sigma = fixed_rounds.width(market), fixed_rounds.deviation(market, noise)
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
