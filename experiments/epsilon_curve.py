"""Does more budget always give more, and does the default ever lose to another algorithm?

The first table has the mean loss of the default on every family at twelve epsilons from 0.2 to 5.
It should fall as epsilon grows. For every two points, the loss at the larger epsilon may exceed the
loss at the smaller one by two standard errors of the difference and SLACK, no more. The standard
error of a point pools the variance with its neighbours, because a few seeds say little about it.

The second table compares the default with the best of the other algorithms at a few epsilons. The
default may lose by one point, no more.

Every run is seeded. Results go to epsilon_curve.json as they come, and runs on file are not
repeated. The tables go to stdout.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from families import FAMILIES, SIZES
from jdpack import BudgetWarning, SupplyWarning
from loss import Cell, Run, head, line, mean_loss, measure, numbers, yes

EPSILONS = [float(f"{e:.2g}") for e in np.geomspace(0.2, 5.0, 12)]
COMPARED = [0.3, 1.0, 4.0]
OTHERS = [
    "mwu-adaptive",
    "mwu-fixed:rounds=300",
    "dual-gd:rounds=300",
    "mirror-descent:potential=entropy,rounds=300",
    "mirror-descent:potential=euclidean,rounds=300",
]
SLACK = 0.002
POINT = 0.01
N = 10_000


def rise(curve: list[list[float]]) -> tuple[float, float]:
    """The worst rise of a curve of losses, and what noise allows for it.

    Each point of the curve has the losses of all its seeds.
    """
    means = [math.fsum(losses) / len(losses) for losses in curve]
    spread = [float(np.var(losses, ddof=1)) if len(losses) > 1 else 0.0 for losses in curve]
    pooled = [float(np.mean(spread[max(0, i - 1) : i + 2])) for i in range(len(curve))]
    errors = [s / len(losses) for s, losses in zip(pooled, curve, strict=True)]
    pairs = [
        (means[j] - means[i], 2.0 * math.sqrt(errors[i] + errors[j]) + SLACK)
        for i in range(len(curve))
        for j in range(i + 1, len(curve))
    ]
    return max(pairs, key=lambda pair: pair[0] - pair[1], default=(0.0, SLACK))


def curves(cells: Iterable[tuple[Cell, list[Run]]]) -> Iterator[list[str]]:
    """One row per family and kind of goods."""
    found: dict[tuple[str, int, str], dict[float, list[Run]]] = {}
    for cell, runs in cells:
        if runs:
            found.setdefault((cell.family, cell.n, cell.goods), {})[cell.epsilon] = runs
    for (family, n, goods), points in found.items():
        points = dict(sorted(points.items()))
        worst, allowed = rise([[r.loss for r in runs] for runs in points.values()])
        yield [
            *[family, f"{n:,}", goods],
            *[f"{100 * mean_loss(points[e]):.1f}" if e in points else "" for e in EPSILONS],
            *[f"{worst:.2%}", f"{allowed:.2%}", yes(worst <= allowed)],
        ]


def contests(cells: Iterable[tuple[Cell, list[Run]]]) -> Iterator[list[str]]:
    """One row per family, kind of goods and epsilon: the default against the best of the others."""
    found: dict[tuple[str, int, str, float], dict[str, float]] = {}
    for cell, runs in cells:
        if runs:
            place = (cell.family, cell.n, cell.goods, cell.epsilon)
            found.setdefault(place, {})[cell.policy] = mean_loss(runs)
    for (family, n, goods, epsilon), losses in found.items():
        others = {policy: loss for policy, loss in losses.items() if policy != "default"}
        if not others or "default" not in losses:
            continue
        best = min(others, key=lambda policy: others[policy])
        behind = losses["default"] - others[best]
        yield [
            *[family, f"{n:,}", goods, f"{epsilon:g}", f"{losses['default']:.2%}"],
            *[f"{others[best]:.2%}", best, f"{behind:.2%}", yes(behind <= POINT)],
        ]


def main() -> None:
    """Measure what is missing, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--families", default=",".join(FAMILIES), help="names, with commas")
    parser.add_argument("--n", type=float, default=N, help="agents")
    parser.add_argument("--seeds", type=int, default=6, help="runs per point")
    parser.add_argument("--other-seeds", type=int, default=2, help="the same for the others")
    parser.add_argument("--compared", type=numbers, default=COMPARED, help="epsilons (0.3,1,4)")
    parser.add_argument("--others", nargs="*", default=OTHERS, help="algorithms to compare with")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the files go")
    given = parser.parse_args()
    names = given.families.split(",")
    if unknown := set(names) - set(FAMILIES):
        parser.error(f"unknown family {unknown.pop()!r}; choose from {', '.join(FAMILIES)}")
    for kind in (SupplyWarning, BudgetWarning):
        warnings.simplefilter("ignore", kind)  # too little supply is part of the curve
    markets = [
        (family, int(n), divisible)
        for family in names
        for n in SIZES.get(family, [given.n])
        for divisible in (True, False)
    ]

    def measured(
        epsilons: list[float], policies: list[str], seeds: int
    ) -> list[tuple[Cell, list[Run]]]:
        cells = [
            Cell(family, n, epsilon, divisible, policy)
            for family, n, divisible in markets
            for policy in policies
            for epsilon in epsilons
        ]
        return list(measure(cells, seeds, given.results, file="epsilon_curve.json"))

    head_of_curves = ["family", "n", "goods", *(f"{e:g}" for e in EPSILONS)]
    show([*head_of_curves, "rise", "noise", "falls"],
         curves(measured(EPSILONS, ["default"], given.seeds)))  # fmt: skip
    names = ["family", "n", "goods", "epsilon", "default", "best other", "policy", "behind", "fine"]
    policies = ["default", *given.others]
    show(names, contests(measured(given.compared, policies, given.other_seeds)))


def show(names: list[str], rows: Iterable[list[str]]) -> None:
    """Print a table whose last column says yes or NO."""
    rows = list(rows)
    print("\n".join([head(names), *(line(row) for row in rows)]))
    print(f"\n{names[-1]}: {sum(row[-1] == 'yes' for row in rows)} of {len(rows)}\n", flush=True)


if __name__ == "__main__":
    main()
