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

With `--runs` it makes whole runs with such a release on indivisible goods, and compares what they
lose with what runs lose today. newton steers with the part of the budget that is for the rounds, to
targets that leave R free, and as many deviations as cost least. Coins grant; then the exact loads
of the grants are released with bounded noise, and grants are thinned where answer + R does not fit.
"""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import scipy.sparse
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

import floors
from families import FAMILIES, Instance
from jdpack import Budget, BudgetWarning, Market, Newton, SupplyWarning, solve
from jdpack.market.grid import DEMAND_CODE_MAX, SHARE
from jdpack.planning import prepare
from jdpack.planning.headroom import margin_of
from jdpack.policies import newton
from jdpack.policies.newton import coins_expected
from jdpack.policies.newton_targets import Free
from jdpack.privacy import gdp, tail_bounds
from jdpack.protocol import bounds
from loss import INSTANCE_SEED, Cell, Store, best_of, head, line, run

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


@dataclass(frozen=True)
class Bounded:
    """The noise with the least R."""

    radius: float
    """R, in caps."""
    density: np.ndarray

    @property
    def points(self) -> np.ndarray:
        """Where the density is, in caps."""
        return (np.arange(len(self.density)) - len(self.density) // 2) / GRID

    @property
    def spread(self) -> float:
        """Its deviation, in caps."""
        return math.sqrt(float(self.density @ self.points**2))


@cache
def least_radius(k: int, spent: float) -> Bounded:
    """The noise with the least R, if this part of rho is spent before."""
    mu = math.sqrt(2.0 * spent * gdp.rho_of(EPSILON, DELTA))
    best, found = math.inf, np.zeros(1)
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
                best, found = high, density(high, power, shape)
    return Bounded(best, found)


def odds(load: float, supply: float, tail: float) -> float:
    """The odds at which grants of this load, in caps, fit with room for one cap."""
    low, high = 0.0, 1.0  # the lower ones fit
    while high - low > 1e-6:
        middle = (low + high) / 2.0
        fits = tail_bounds.kept_at_most(load, 1.0, middle, tail) <= supply - 1.0
        low, high = (middle, high) if fits else (low, middle)
    return low


def thinned(load: float, tail: float, supply: float = SUPPLY) -> float:
    """What thinning costs, in caps, if grants of this load must fit with room for one cap."""
    return supply * (1.0 - odds(load, supply, tail))


def kept_free(noise: Bounded, rounds: float, supply: float, tail: float) -> tuple[float, ...]:
    """What costs least to keep free, in caps: the deviation of a miss, its cost, R and some of it.

    `rounds` is the deviation of the noise of the rounds.
    """
    cap = float(DEMAND_CODE_MAX)
    coins = coins_expected(np.array([cap * supply]), np.array([cap * rounds]))[0] / cap**2
    missed = math.sqrt(noise.spread**2 + rounds**2 + coins)
    cost = thinned(supply + missed, tail, supply)
    tried = [0.1 * i for i in range(50)]
    z = min(tried, key=lambda z: z * missed + norm.sf(z) * cost)
    return missed, cost, noise.radius + z * missed, noise.radius + z * missed + norm.sf(z) * cost


def row(k: int, spent: float) -> list[str]:
    """One row of the table, in caps."""
    market = Market(
        supply=[SUPPLY] * k, max_demand=1.0, max_value=1.0, agents=10 * int(SUPPLY), bundle_size=k
    )
    budget = Budget.split(EPSILON, DELTA, truncated=False)
    today = margin_of(market, budget, Newton()) * SUPPLY
    noise = least_radius(k, spent)
    rounds = math.sqrt(k / (2.0 * spent * budget.rho))
    missed, cost, _, whole = kept_free(noise, rounds, SUPPLY, tail_bounds.tail(market, budget))
    shown = [f"{x:.0f}" for x in (today, noise.radius, missed, cost, whole)]
    return [*shown, f"{whole / today:.2f}"]


# --- whole runs ---------------------------------------------------------------------------

RUNS = {"single": 10_000, "gpu": 100_000, "mixed": 100_000, "airports": 100_000}


def bounded_run(instance: Instance, k: int, spent: float, seed: int) -> tuple[float, float]:
    """The value of what a run with a bounded closing release gives, and the part that it thins."""
    whole = Budget.split(EPSILON, DELTA, truncated=False)
    budget = replace(whole, rho=spent * gdp.rho_of(EPSILON, DELTA), repaired=False)
    # Nobody is dropped before the closing release; grants are thinned after it.
    market = instance.market(divisible=False).changed(excess_probability=1e-3)
    noise, tail = least_radius(k, spent), tail_bounds.tail(market, budget)
    caps = instance.supply / instance.caps
    rounds = math.sqrt(k / (2.0 * budget.rho))
    free = np.array([kept_free(noise, rounds, s, tail)[2] for s in caps.tolist()]) / caps
    ones = (SHARE,) * len(caps)
    with (
        mock.patch.object(prepare, "budget_of", return_value=budget),
        mock.patch.object(tail_bounds, "chance_share", return_value=1e-3),
        mock.patch.object(
            newton, "kept_free", return_value=Free(np.minimum(free, 1e9), np.ones(len(caps)))
        ),
        mock.patch.object(bounds, "factors", return_value=ones),
    ):
        tail_bounds.chance_scale.cache_clear()
        result = solve(
            market,
            **instance.solve_input(),
            epsilon=EPSILON,
            delta=DELTA,
            policy=Newton(grants="unmeasured"),
            seed=seed,
        )
    tail_bounds.chance_scale.cache_clear()
    granted = result.allocation.astype(float)
    rng = np.random.default_rng([3, seed])
    load = np.asarray(instance.demands.T @ granted).ravel() / instance.caps
    answer = load + rng.choice(noise.points, size=len(caps), p=noise.density)
    kept = np.array(
        [odds(a + noise.radius, s, tail) if a + noise.radius > s else 1.0
         for a, s in zip(answer.tolist(), caps.tolist(), strict=True)]
    )  # fmt: skip
    touched = instance.demands if scipy.sparse.issparse(instance.demands) else None
    rows = (touched.toarray() if touched is not None else instance.demands) > 0.0
    least = np.where(rows, kept, 1.0).min(axis=1)
    granted *= rng.random(len(granted)) < least
    return float(instance.values @ granted), 1.0 - float(kept.min())


def compared(family: str, spent: float, seeds: int, optima: Store) -> list[str]:
    """What whole runs lose with a bounded closing release, and today."""
    n = RUNS[family]
    instance = FAMILIES[family](n, np.random.default_rng(INSTANCE_SEED))
    best = best_of(instance, family, optima)
    k = floors.touched(len(instance.supply), instance.bundle_size, instance.neighbours)
    cell = Cell(family, n, EPSILON, False, "default")
    today = [run(instance, best, cell, seed).loss for seed in range(1, seeds + 1)]
    found = [bounded_run(instance, k, spent, seed) for seed in range(1, seeds + 1)]
    losses = [1.0 - value / best.value for value, _ in found]
    thinned = sum(part > 0.0 for _, part in found)
    return [
        *[family, f"{n:,}", f"{k}", f"{np.mean(today):.2%}", f"{np.mean(losses):.2%}"],
        *[f"{np.mean(losses) / np.mean(today):.2f}", f"{thinned} of {seeds}"],
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spent", type=float, default=0.44, help="the part of rho of the rounds")
    parser.add_argument("--runs", type=int, help="compare this many whole runs per family instead")
    parser.add_argument("--families", default=",".join(RUNS), help="names, with commas")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="where optima are kept"
    )
    given = parser.parse_args()
    spent = given.spent
    if given.runs:
        for kind in (SupplyWarning, BudgetWarning):
            warnings.simplefilter("ignore", kind)
        names = ["family", "n", "k", "loss today", "loss, bounded", "times today", "thinned"]
        print(head(names), flush=True)
        for family in given.families.split(","):
            found = compared(family, spent, given.runs, Store(given.results / "optima.json"))
            print(line(found), flush=True)
        return
    print("| resources | today | R | deviation of a miss | cost of thinning | all | times today |")
    print("|---|---|---|---|---|---|---|")
    for k in (1, 3, 10, 20):
        print(f"| {k} | " + " | ".join(row(k, spent)) + " |", flush=True)


if __name__ == "__main__":
    main()
