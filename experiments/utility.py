"""How close mwu-adaptive gets to the optimum, above and below the paper's required supply.

It prints two tables: the loss at multiples of the required supply (with every constant explicit,
`MwuAdaptive.supply_ratio`), and rounds and time as the number of agents grows. Everything is
seeded, so the numbers can be reproduced. `--help` shows a quick version.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings

import numpy as np

from families import Instance, dense, single, tied, zipf
from jdpack import Budget, MwuAdaptive, SupplyWarning, solve

EPSILON, DELTA = 1.0, 1e-8
FAMILIES = {"dense": dense, "single": single, "3-sparse": zipf, "tied": tied}


def required_supply(instance: Instance, policy: MwuAdaptive) -> float:
    """The supply at which the noise adds at most alpha n to the paper's regret lemma."""
    budget = Budget.split(EPSILON, DELTA, truncated=policy.truncated)
    return 10_000.0 / policy.supply_ratio(instance.with_supply(10_000.0).market(), budget)


def losses(n: int, alphas: list[float], multiples: list[float]) -> None:
    """The loss of every family at multiples of the required supply."""
    print(f"\n## Loss against the optimum, n = {n:,}, epsilon = {EPSILON:g}, delta = {DELTA:g}\n")
    print("Loss is (optimum - welfare) / n, to compare with alpha; `x` is supply / required.\n")
    print("| family | alpha | required | x | supply | optimum / n | share | loss | <= alpha |"
          " indivisible loss | <= alpha | feasible | rounds |")  # fmt: skip
    print("|---" * 13 + "|")
    for name, family in FAMILIES.items():
        instance = family(n, np.random.default_rng(7))
        for alpha in alphas:
            policy = MwuAdaptive(alpha=alpha)
            required = required_supply(instance, policy)
            # The first supply is the requirement, or half of the demand if that is more.
            half = float(instance.demands.sum()) / instance.demands.shape[1] / 2
            supplies = [max(required, half), *(required * x for x in multiples)]
            for supply in dict.fromkeys(float(math.ceil(b)) for b in supplies):
                best = instance.with_supply(supply).optimum().value
                row = []
                for divisible in (True, False):
                    _say(f"{name} alpha {alpha:g} supply {supply:g}")
                    row.append(run(instance, supply, policy, divisible))
                (welfare, fits, rounds), (whole_welfare, whole_fits, _) = row
                loss, whole_loss = (best - welfare) / n, (best - whole_welfare) / n
                print(
                    f"| {name} | {alpha:g} | {required:,.0f} | {supply / required:.2g} | "
                    f"{supply:,.0f} | "
                    f"{best / n:.4f} | {welfare / best:.1%} | {loss:.4f} | "
                    f"{'yes' if loss <= alpha else 'NO'} | {whole_loss:.4f} | "
                    f"{'yes' if whole_loss <= alpha else 'no'} | "
                    f"{'yes' if fits and whole_fits else 'NO'} | {rounds} |",
                    flush=True,
                )


def growth(sizes: list[int], alpha: float) -> None:
    """Rounds and time as the number of agents grows, at supplies of n / 10."""
    print(f"\n## Rounds and time against n, alpha = {alpha:g}, supply = n / 10\n")
    print("| family | n | rounds | seconds per round | seconds | ns per agent and round |")
    print("|---" * 6 + "|")
    policy = MwuAdaptive(alpha=alpha)
    for name, family in FAMILIES.items():
        for n in sizes:
            _say(f"{name} n {n:,}")
            instance = family(n, np.random.default_rng(7))
            market = instance.with_supply(n / 10).market()
            marks: list[float] = []
            result = solve(
                market,
                values=instance.values,
                demands=instance.demands,
                epsilon=EPSILON,
                delta=DELTA,
                policy=policy,
                seed=1,
                progress=lambda _, marks=marks: marks.append(time.perf_counter()),
            )
            rounds = sum(1 for _ in result.billboard.rounds)
            each = float(np.median(np.diff(marks)))
            print(
                f"| {name} | {n:,} | {rounds} | {each:.2g} | {marks[-1] - marks[0]:.2f} | "
                f"{1e9 * each / n:.1f} |",
                flush=True,
            )


def run(
    instance: Instance, supply: float, policy: MwuAdaptive, divisible: bool
) -> tuple[float, bool, int]:
    """The welfare at the true values, whether the true demands fit, and the rounds."""
    result = solve(
        instance.with_supply(supply).market(divisible=divisible),
        values=instance.values,
        demands=instance.demands,
        epsilon=EPSILON,
        delta=DELTA,
        policy=policy,
        seed=1,
    )
    x = result.allocation.astype(float)
    load = np.asarray(instance.demands.T @ x).ravel()
    fits = bool(np.all(load <= supply * (1.0 + 1e-12)))  # the sum itself is rounded
    return float(instance.values @ x), fits, sum(1 for _ in result.billboard.rounds)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Print both tables."""
    warnings.simplefilter("ignore", SupplyWarning)  # too little supply is the point here
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small markets, for the tests")
    if parser.parse_args().quick:
        losses(5_000, [0.2], [0.25])
        growth([1_000, 4_000], 0.3)
    else:
        losses(50_000, [0.1, 0.03], [1.0, 0.25, 0.05])
        growth([10_000, 100_000, 1_000_000], 0.1)


if __name__ == "__main__":
    main()
