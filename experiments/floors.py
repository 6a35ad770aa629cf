"""Two yardsticks for a loss, from public numbers and the optimum's prices: M and F.

Write c_j for the cap of resource j, b_j for its supply, u_j = c_j / b_j, and rho for the budget.
One agent moves at most K = min(2k, m) demands (k with add-remove), demand j by at most c_j.

M = z |the K largest u_j|_2 / sqrt(2 rho), z = sqrt(2 ln(m / beta)), is the margin that one release
of demand with the whole budget needs to be certified, if noise is the same fraction of every
supply. Here beta = 0.4 delta / (1 + e^epsilon), and rho-zCDP implies (epsilon, 0.6 delta)-DP. That
is how the package split a budget when M was defined; M does not follow later improvements.

F is the same with a scale of its own for each resource. If sigma_j is the noise as a fraction of
supply, aiming at 1 - z sigma_j loses, to first order, z sum_j pi_j sigma_j of the optimum, where
pi_j is price times supply over the optimum. F is the least of that over all scales that cost at
most rho. A resource with slack has the price 0 and loses nothing.

The best scales
---------------
Let t_j = 1 / sigma_j^2, and let W be the convex hull of the squared changes that one agent can
cause, as fractions of supply: w_j = (d_j / b_j)^2. A release costs half the largest sum_j w_j t_j
over w in W. So we look for

    the least f(t) = sum_j pi_j t_j^(-1/2)  with  g(t) = max over w in W of sum_j w_j t_j <= 2 rho.

For every w in W, Hoelder's inequality with the exponents 3/2 and 3 gives

    sum_j pi_j^(2/3) w_j^(1/3) <= f(t)^(2/3) (sum_j w_j t_j)^(1/3) <= f(t)^(2/3) (2 rho)^(1/3),

so f(t) >= max over w in W of (sum_j pi_j^(2/3) w_j^(1/3))^(3/2) / sqrt(2 rho). This is reached. At
the best w, which maximises the concave function h(w) = sum_j pi_j^(2/3) w_j^(1/3) over W, no other
w in W has a larger product with the gradient of h. The gradient is in proportion to
t_j = (pi_j / w_j)^(2/3), so these t_j, scaled to sum_j w_j t_j = 2 rho, satisfy the constraint, and
both inequalities are equalities. Hence F = z h(w)^(3/2) / sqrt(2 rho), with sigma_j in proportion
to (w_j / pi_j)^(1/3).

W is {w_j = u_j^2 y_j : 0 <= y_j <= 1, sum_j y_j <= K}, because the corners of that polytope are the
sets of up to K resources, each changed by its cap. If K = m, then y = 1, which is the closed form
z (sum_j (u_j pi_j)^(2/3))^(3/2) / sqrt(2 rho). Otherwise y_j = min(1, pi_j u_j / L): the resources
that matter most have sigma_j in proportion to (u_j^2 / pi_j)^(1/3), and all others have one common
level of u_j / sigma_j.

A `max_total` of B over the resources R adds: the sum of c_j y_j over R is at most 2B (B with
add-remove). Because d_j^2 <= c_j d_j, this contains every change that is possible; it may contain a
little more, just like the cost that the package charges.
If the optimum has several price vectors, the loss is the largest z sum_j pi_j sigma_j over all of
them, because the optimum is a concave function of supply. h is concave in pi too, so F is the
largest F over their convex hull (`Instance.price_shares`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

Bound = tuple[np.ndarray, float]
"""sum_j a_j y_j <= the number."""


@cache
def budget(epsilon: float, delta: float) -> tuple[float, float]:
    """The rho and the beta of a budget, by the definition of M."""
    beta = 0.4 * delta / (1.0 + math.exp(min(epsilon, 700.0)))
    if math.isinf(epsilon):
        return math.inf, 0.4 * delta
    low, high = 0.0, epsilon
    while high - low > 1e-12 * high:
        rho = (low + high) / 2.0
        low, high = (rho, high) if _log_delta(rho, epsilon) <= math.log(0.6 * delta) else (low, rho)
    return low, beta


def _log_delta(rho: float, epsilon: float) -> float:
    """The log of the delta that rho-zCDP implies (Canonne, Kamath & Steinke 2020, Prop. 12)."""
    # The derivative of the exponent in a: (2a - 1) rho - epsilon + log(1 - 1/a) increases.
    low, high = 1.0, 2.0 + epsilon / rho + 1.0 / math.sqrt(rho)
    for _ in range(100):
        a = (low + high) / 2.0
        slope = (2.0 * a - 1.0) * rho - epsilon + math.log1p(-1.0 / a)
        low, high = (a, high) if slope < 0.0 else (low, a)
    return (a - 1.0) * (a * rho - epsilon) + a * math.log1p(-1.0 / a) - math.log(a - 1.0)


def touched(m: int, bundle_size: int, neighbours: str) -> int:
    """How many demands one agent can move."""
    return min(m, bundle_size * (2 if neighbours == "replace-one" else 1))


def factor(m: int, epsilon: float, delta: float) -> float:
    """The number z / sqrt(2 rho) that all margins are in proportion to, for m resources."""
    rho, beta = budget(epsilon, delta)
    return math.sqrt(2.0 * math.log(m / beta)) / math.sqrt(2.0 * rho)


def margin(u: Any, changed: int, epsilon: float, delta: float) -> float:
    """M. `u` has the ratios of cap to supply; one agent moves at most `changed` demands."""
    largest = np.sort(np.asarray(u, float))[::-1][:changed]
    return factor(len(u), epsilon, delta) * float(np.linalg.norm(largest))


def best_shape(
    u: Any, pi: Any, changed: int, totals: Sequence[Bound] = ()
) -> tuple[float, np.ndarray]:
    """The least sum_j pi_j sigma_j, and the sigma_j, of a release with 2 rho = 1.

    `pi` has the shares of the optimum that prices explain, `totals` further bounds on y. F is the
    result times `factor`. sigma is inf where pi is 0: that resource may have all the noise there
    is.
    """
    u, pi = np.asarray(u, float), np.asarray(pi, float)
    y = _shares(u * pi, [(np.ones(len(u)), float(changed)), *totals])
    w = u * u * y
    root = float(np.sum(pi ** (2.0 / 3.0) * w ** (1.0 / 3.0)))
    with np.errstate(divide="ignore", invalid="ignore"):
        sigma = np.where(pi > 0.0, np.sqrt(root) * (w / pi) ** (1.0 / 3.0), np.inf)
    return root**1.5, sigma


def _shares(weight: np.ndarray, bounds: Sequence[Bound]) -> np.ndarray:
    """The y in [0, 1] with the largest sum_j weight_j^(2/3) y_j^(1/3) within bounds.

    With a price on each bound, y_j = min(1, weight_j / (the cost of y_j)^(3/2)). The best prices
    minimise a smooth convex function, so bisection for each in turn converges.
    """
    prices = np.zeros(len(bounds))
    costs = np.array([a for a, _ in bounds])
    relevant = weight > 0.0

    def demand(prices: np.ndarray) -> np.ndarray:
        cost = prices @ costs
        with np.errstate(divide="ignore", invalid="ignore"):
            y = np.minimum(1.0, weight / cost**1.5)
        return np.where(relevant, np.where(cost > 0.0, y, 1.0), 0.0)

    for _ in range(1 if len(bounds) == 1 else 200):
        before = prices.copy()
        for i, (a, most) in enumerate(bounds):
            prices[i] = 0.0
            if a @ demand(prices) <= most:
                continue
            low, high = 0.0, 1.0
            tried = prices.copy()
            while a @ demand(_with(tried, i, high)) > most:
                low, high = high, 2.0 * high
            while high - low > 1e-14 * high:
                middle = (low + high) / 2.0
                too_much = a @ demand(_with(tried, i, middle)) > most
                low, high = (middle, high) if too_much else (low, middle)
            prices[i] = high
        if np.all(np.abs(prices - before) <= 1e-10 * prices):
            break
    return demand(prices)


def _with(prices: np.ndarray, i: int, price: float) -> np.ndarray:
    prices[i] = price
    return prices
