"""Would a closing release with bounded noise need less margin than the rounds' own noise does?

The noise of the closing release has a density in proportion to exp(-|x / s|^p), cut at R. The load
of what was granted is then at most answer + R, for certain: no part of delta pays for a bound that
fails. But the rounds need a part of the budget too, and what the answer will be is not known when
prices are set: it misses its target by the noise of the rounds, that of the release, and the coins.
If it is above, grants are thinned, which costs far more than the excess. So a run has to aim lower
by R and by some deviations of what it may miss. We take the number of deviations that costs least.

Today there is no such release. The rounds' own noise certifies, together with the coins, and the
observed average meets its target almost exactly.

R is the least over p and s for which the release, for a move of one cap in each of k resources, is
(epsilon, delta)-DP together with the part of the budget that was spent before. The privacy loss
distributions of dp-accounting compose it, on the pessimistic side. Noise that is log-concave makes
the full move the worst one. The table goes to stdout; it takes some minutes.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

from jdpack import Budget, Market, Newton
from jdpack.market.grid import DEMAND_CODE_MAX
from jdpack.planning.headroom import margin_of
from jdpack.policies.newton import coins_expected
from jdpack.privacy import gdp, tail_bounds

EPSILON, DELTA, SUPPLY = 1.0, 1e-8, 5000.0
GRID = 8  # points per cap
POWERS, CUTS = (1.0, 1.5, 2.0, 3.0, 4.0), (3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0)


def density(radius: float, power: float, cut: float) -> np.ndarray:
    """The noise on a grid; it ends at R, where |x / s| is `cut`."""
    x = np.arange(-round(radius * GRID), round(radius * GRID) + 1) / (radius * GRID)
    weights = np.exp(-((cut * np.abs(x)) ** power))
    return weights / weights.sum()


def delta_of(noise: np.ndarray, k: int, mu: float) -> float:
    """The delta at EPSILON of k moves by one cap, after normal noise with this mu."""
    n = len(noise)
    with np.errstate(divide="ignore"):
        logs = np.log(noise)
    lower = {i: logs[i] for i in range(n)}
    upper = {i + GRID: logs[i] for i in range(n)}
    one = pld.from_two_probability_mass_functions(lower, upper, value_discretization_interval=1e-3)
    whole = one.self_compose(k)
    if mu > 0.0:
        before = pld.from_gaussian_mechanism(1.0 / mu, value_discretization_interval=1e-3)
        whole = whole.compose(before)
    return float(whole.get_delta_for_epsilon(EPSILON))


def least_radius(k: int, spent: float) -> tuple[float, float]:
    """R in caps, if this part of rho is spent before, and the deviation of its noise."""
    mu = math.sqrt(2.0 * spent * gdp.rho_of(EPSILON, DELTA))
    best, spread = math.inf, math.nan
    for power in POWERS:
        for cut in CUTS:
            shape = cut ** (1.0 / power)  # so that the density falls by e^-cut
            if best < math.inf and delta_of(density(0.995 * best, power, shape), k, mu) > DELTA:
                continue
            low, high = 1.0, min(best, 1024.0)
            while high - low > 0.005 * high:
                middle = (low + high) / 2.0
                fits = delta_of(density(middle, power, shape), k, mu) <= DELTA
                low, high = (low, middle) if fits else (middle, high)
            if high < best:
                noise = density(high, power, shape)
                x = np.arange(len(noise)) - len(noise) // 2
                best, spread = high, math.sqrt(float(noise @ (x * x))) / GRID
    return best, spread


def thinned(load: float, tail: float) -> float:
    """What thinning costs if grants of this load, in caps, must fit with room for one cap."""
    low, high = 0.0, 1.0  # odds; the lower ones fit
    while high - low > 1e-6:
        middle = (low + high) / 2.0
        fits = tail_bounds.kept_at_most(load, 1.0, middle, tail) <= SUPPLY - 1.0
        low, high = (middle, high) if fits else (low, middle)
    return SUPPLY * (1.0 - low)


def row(k: int, spent: float) -> list[str]:
    """One row of the table, in caps."""
    market = Market(
        supply=[SUPPLY] * k, max_demand=1.0, max_value=1.0, agents=10 * int(SUPPLY), bundle_size=k
    )
    budget = Budget.split(EPSILON, DELTA, truncated=False)
    today = margin_of(market, budget, Newton()) * SUPPLY
    radius, spread = least_radius(k, spent)
    rounds = math.sqrt(k / (2.0 * spent * budget.rho))
    cap = float(DEMAND_CODE_MAX)
    coins = coins_expected(np.array([cap * SUPPLY]), np.array([cap * rounds]))[0] / cap**2
    missed = math.sqrt(spread**2 + rounds**2 + coins)
    cost = thinned(SUPPLY + missed, tail_bounds.tail(market, budget))
    tried = [0.1 * i for i in range(50)]
    whole = radius + min(z * missed + norm.sf(z) * cost for z in tried)
    return [f"{x:.0f}" for x in (today, radius, missed, cost, whole)] + [f"{whole / today:.2f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spent", type=float, default=0.44, help="the part of rho of the rounds")
    spent = parser.parse_args().spent
    print("| resources | today | R | deviation of a miss | cost of thinning | all | times today |")
    print("|---|---|---|---|---|---|---|")
    for k in (1, 3, 10, 20):
        print(f"| {k} | " + " | ".join(row(k, spent)) + " |", flush=True)


if __name__ == "__main__":
    main()
