"""Which alpha should mwu-adaptive take? What it loses with the one that it picks, and with others.

Losses are parts of the linear program's optimum, on small markets of `families`, and means over
seeds. The picked alpha has the least planned loss (`MwuAdaptive.alpha_in`). Every run is seeded.
The table goes to stdout.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

from families import FAMILIES
from jdpack import Budget, BudgetWarning, MwuAdaptive, SupplyWarning
from loss import DELTA, INSTANCE_SEED, Best, Cell, Store, best_of, head, line, mean_loss, run

MARKETS = {
    "single": 3_000,
    "dense": 5_000,
    "few-binding": 5_000,
    "priority": 3_000,
    "heavy-tail": 20_000,
}
ALPHAS = (0.03, 0.05, 0.1, 0.2)
EPSILONS = (1.0, 4.0)
HEAD = ["family", "n", "m", "epsilon", "picked", *(f"{a:g}" for a in ALPHAS), "rounds", "at 0.1"]


def row(family: str, n: int, epsilon: float, seeds: int, optima: Store) -> list[str]:
    """One row of the table."""
    instance = FAMILIES[family](n, np.random.default_rng(INSTANCE_SEED))
    best: Best = best_of(instance, family, optima)
    budget = Budget.split(epsilon, DELTA, truncated=False)
    picked = MwuAdaptive().alpha_in(instance.market(), budget)
    found = {}
    for alpha in (picked, *ALPHAS):
        cell = Cell(family, n, epsilon, True, f"mwu-adaptive:alpha={alpha:g}")
        found[alpha] = [run(instance, best, cell, seed) for seed in range(1, seeds + 1)]
    losses = [f"{mean_loss(found[alpha]):.1%}" for alpha in ALPHAS]
    return [
        *[family, f"{n:,}", f"{len(instance.supply)}", f"{epsilon:g}"],
        f"{mean_loss(found[picked]):.1%} (alpha {picked:g})",
        *losses,
        f"{found[picked][0].rounds:,}",
        f"{found[0.1][0].rounds:,}",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2, help="runs per cell (2)")
    parser.add_argument("--families", default=",".join(MARKETS), help="names, with commas")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="where optima are kept"
    )
    given = parser.parse_args()
    for kind in (SupplyWarning, BudgetWarning):
        warnings.simplefilter("ignore", kind)
    optima = Store(given.results / "optima.json")
    print(head(HEAD), flush=True)
    for family in given.families.split(","):
        for epsilon in EPSILONS:
            print(line(row(family, MARKETS[family], epsilon, given.seeds, optima)), flush=True)


if __name__ == "__main__":
    main()
