"""Public: mirror-descent, noisy mirror descent on the dual prices.

Chen & Chua, Noisy Dual Mirror Descent: A Near Optimal Algorithm for Jointly-DP Convex Resource
Allocation (NeurIPS 2024). From them we take the domain, the two potentials, the average of the
rounds and, from their experiments, T = 10^4 rounds and a domain a tenth larger than the bound on
optimal prices. The start, the constants in the steps, and noise by the filter are ours.

In relative loads L_j, with P_j the price of a whole supply: the domain is P >= 0, sum_j P_j <= K,
with K = 1.1 n V; optimal prices sum to at most n V. With g_j = 1 - L_j, the dual's gradient, a
round moves to the P in the domain that minimises  size <g, P> + divergence(P, P now).

* entropy: P_j *= exp(-size g_j), then all are scaled down to sum K if they sum to more. Every price
  starts at K / (m + 1), which leaves as much for a dummy.
* euclidean: P_j -= size g_j, then the Euclidean projection on the domain. Prices start at 0.

The steps. Let the potential be mu-strongly convex in some norm on the domain, R the largest
divergence from the start, and G^2 a bound on the mean of the squared dual norm of the noisy
gradient. T rounds have an average regret of at most R / (size T) + size G^2 / (2 mu), and
size = sqrt(2 mu R / T) / G minimises it. W is the width, the most that |1 - L_j| can be, and sigma
the standard deviation of the noise Z_j on one load.

* entropy, in the l1 norm: sum_j h_j^2 / P_j >= |h|_1^2 / sum_j P_j, so mu = 1 / K. The divergence
  is convex, so it is largest at a corner: K ln(m + 1) - K / (m + 1) at a single price,
  K - K / (m + 1) at 0, and R = K ln(m + 1) bounds both. In the dual norm, the largest of m
  coordinates, (E max_j |g_j + Z_j|^2)^(1/2) <= W + (E max_j Z_j^2)^(1/2), and E max_j Z_j^2 is at
  most 2 sigma^2 (ln(2 m) + 1), the integral of the tail min(1, 2 m e^(-z / (2 sigma^2))). So
  size = sqrt(2 ln(m + 1) / T) / (W + sigma sqrt(2 ln(2 m) + 2)).
* euclidean: mu = 1, R = K^2 / 2, G^2 = m (W^2 + sigma^2) as E Z_j = 0. So
  size = K / sqrt(T m (W^2 + sigma^2)).

The exponent is cut to [-1, 1], which matters only in runs with few rounds or extreme noise. A floor
of 1e-300 prevents underflow, which real numbers do not have.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from jdpack.billboard.lines import Release, Step
from jdpack.common import checks, portable_math
from jdpack.common.portable_math import FloatArray
from jdpack.errors import MarketError
from jdpack.market.market import Market
from jdpack.policies import fixed_rounds
from jdpack.policies.fixed_rounds import State
from jdpack.privacy.accounting import Budget
from jdpack.privacy.tail_bounds import Outlook

POTENTIALS = ("entropy", "euclidean")
_DOMAIN = 1.1  # K / (n V)
_FLOOR = 1e-300


@dataclass(frozen=True)
class MirrorDescent:
    """Mirror descent on the dual prices.

    Args:
        potential: "entropy", multiplicative steps, or "euclidean", additive ones.
        rounds: how many rounds to run.
    """

    potential: str = "entropy"
    rounds: int = 10_000

    name: ClassVar[str] = "mirror-descent"

    def __post_init__(self) -> None:
        if self.potential not in POTENTIALS:
            known = ", ".join(POTENTIALS)
            shown = checks.quoted(self.potential)
            raise MarketError(f"potential {shown} is not known", f"one of: {known}")
        fixed_rounds.check_rounds(self.rounds)

    @property
    def truncated(self) -> bool:
        return False

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}

    def outlook(self, market: Market, budget: Budget) -> Outlook:
        return fixed_rounds.outlook(market, budget, self.rounds)

    def start(self, market: Market, budget: Budget) -> State:
        m, most = len(market.resources), _DOMAIN * fixed_rounds.worth(market)
        noise = fixed_rounds.noise_of(market, budget, self.rounds)
        width, sigma = fixed_rounds.width(market), fixed_rounds.sigma(market, noise)
        if self.potential == "entropy":
            largest = width + sigma * math.sqrt(2.0 * portable_math.log(2.0 * m) + 2.0)
            size = math.sqrt(2.0 * portable_math.log(m + 1.0) / self.rounds) / largest
            prices = np.full(m, most / (m + 1))
        else:
            size = most / math.sqrt(self.rounds * m * (width * width + sigma * sigma))
            prices = np.zeros(m)
        return State(market, noise, size, prices, left=self.rounds)

    def step(self, state: State) -> Step | None:
        return fixed_rounds.step(state)

    def observe(self, state: State, release: Release) -> State:
        most = _DOMAIN * fixed_rounds.worth(state.market)
        moves = state.size * fixed_rounds.excess(state, release)
        if self.potential == "euclidean":
            return state.moved(projected(state.prices + moves, most))
        prices = state.prices * portable_math.exp(np.clip(moves, -1.0, 1.0))
        prices *= min(1.0, most / math.fsum(prices.tolist()))
        return state.moved(np.maximum(prices, _FLOOR))


def projected(prices: FloatArray, most: float) -> FloatArray:
    """The nearest point with P >= 0, sum_j P_j <= most: all prices fall by one amount, down to 0.

    Held, Wolfe & Crowder 1974: sort the prices in falling order. The first k stay above 0, where k
    is the largest number for which the k-th price exceeds what each of the first k must lose.
    """
    if math.fsum(np.maximum(prices, 0.0).tolist()) <= most:
        return np.maximum(prices, 0.0)
    total = off = 0.0
    for k, price in enumerate(sorted(prices.tolist(), reverse=True), start=1):
        total += price
        if price * k <= total - most:
            break
        off = (total - most) / k
    return np.maximum(prices - off, 0.0)
