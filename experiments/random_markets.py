"""Markets of random structure: does newton do well where nobody chose the market?

The families of `families.py` were written down by people who know newton, and its constants were
chosen on them. Here the structure itself is drawn: how many agents, resources and options there
are, how many resources an option touches, how popular each is, how far supplies and caps are apart,
how large demands are, and how values are spread. Each market has one budget and is run with
divisible and indivisible goods, by newton and by the other policies that a user may choose instead.

A loss is compared with F*, the least loss of one release with the best noise scales
(`true_floor`), wherever F* is below 30%, and with the best of the other policies everywhere.

Markets 0 to 89 were looked at while newton was changed, and the mean over 90 to 179 was known when
the last constant was chosen. So the default is the next 90.

Runs go to random_markets.json as they come, floors to random_floors.json; what is on file is not
repeated. The table of all markets and a summary go to stdout.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from families import Instance, Rng, _chosen, _csr
from jdpack import BudgetWarning, SupplyWarning
from loss import MOST, Cell, Run, Store, head, line, mean_loss, measure
from true_floor import floor_of

RIVALS = [
    "mirror-descent:potential=euclidean,rounds=300",
    "mirror-descent:potential=entropy,rounds=300",
]
SMALL = 0.3
POINT = 0.01
AGENTS = [2_000, 5_000, 10_000, 30_000, 100_000]


def drawn(number: int) -> tuple[Instance, float]:
    """A market and its epsilon."""
    rng = np.random.default_rng([99, number])
    n = int(rng.choice(AGENTS, p=[0.1, 0.2, 0.35, 0.25, 0.1]))
    m = int(rng.choice([1, 2, 3, 5, 8, 12, 24, 40, 80, 150]))
    k = int(min(m, rng.choice([1, 1, 2, 3, 5, 8, m])))
    options = int(rng.choice([1, 1, 1, 3, 5])) if k <= 3 and m >= 5 else 1
    rows = n * options
    popularity = np.exp(rng.normal(0.0, rng.choice([0.0, 0.5, 1.2, 2.0]), m))
    chosen = _chosen(rows, m, k, rng, popularity / popularity.sum())
    caps = np.exp(rng.choice([0.0, 0.0, 1.0, 2.0]) * rng.normal(size=m))
    caps /= caps.max()
    amounts = _amounts(rows, k, rng)
    if rng.random() < 0.3:  # not every option touches as many
        left_out = rng.random((rows, k)) < 0.4
        left_out[:, 0] = False
        amounts = np.where(left_out, 0.0, amounts)
    values = _values(rows, amounts.mean(axis=1), rng)
    if options > 1:  # the options of an agent are worth about the same
        values = np.repeat(values[::options], options) * rng.uniform(0.8, 1.0, rows)
    if rng.random() < 0.3:
        values = values / 10.0  # the public cap is far too high
    demands = _csr(chosen, amounts * caps[chosen], m)
    demands.eliminate_zeros()
    asked = np.asarray(demands.sum(axis=0)).ravel() / options
    part = np.exp(rng.normal(np.log(0.45), rng.choice([0.05, 0.4, 0.8]), m))
    instance = Instance(
        np.clip(values, 0.0, 1.0),
        demands,
        np.maximum(asked * part, caps),
        k,
        options=options,
        agents=np.repeat(np.arange(n), options) if options > 1 else None,
        max_demand=caps,
    )
    return instance, float(rng.choice([0.5, 1.0, 1.0, 2.0, 4.0]))


def _amounts(rows: int, k: int, rng: Rng) -> np.ndarray:
    """Demands as parts of the caps."""
    kind = rng.choice(["unit", "uniform", "small", "log-normal"])
    if kind == "unit":
        return np.ones((rows, k))
    if kind == "uniform":
        return rng.uniform(0.1, 1.0, (rows, k))
    if kind == "small":  # hardly anybody asks for as much as the cap
        amounts = rng.uniform(0.02, 0.2, (rows, k))
        amounts[rng.random(rows) < 0.02] = 1.0
        return amounts
    sizes = rng.lognormal(-1.5, 0.8, (rows, 1)) * rng.uniform(0.7, 1.3, (rows, k))
    return np.clip(sizes, 0.01, 1.0)


def _values(rows: int, sizes: np.ndarray, rng: Rng) -> np.ndarray:
    kind = rng.choice(["uniform", "log-normal", "pareto", "by size", "levels", "beta"])
    if kind == "uniform":
        return rng.random(rows)
    if kind == "log-normal":
        return np.minimum(rng.lognormal(-2.0, 1.0, rows), 1.0)
    if kind == "pareto":
        return np.minimum(0.01 * (1.0 + rng.pareto(1.5, rows)), 1.0)
    if kind == "by size":
        return sizes * rng.uniform(0.6, 1.0, rows)
    if kind == "levels":
        return rng.choice([0.2, 0.4, 0.6, 0.8, 1.0], rows)
    return rng.beta(5.0, 2.0, rows)


# --- the table ----------------------------------------------------------------------------

HEAD = [
    "market", "agents", "resources", "touched", "options", "epsilon", "goods", "F*", "loss",
    "/ F*", "best rival", "supply holds", "certificate true",
]  # fmt: skip


def rows(
    found: dict[tuple[int, bool], dict[str, list[Run]]], floors: dict[str, float]
) -> Iterator[tuple[list[str], float | None, float, bool, bool]]:
    """A row per market and kind of goods: its text, loss / F*, points behind, and two checks."""
    for (number, divisible), runs in found.items():
        own, others = runs["default"], [mean_loss(r) for p, r in runs.items() if p != "default"]
        instance, epsilon = drawn(number)
        floor = floors[str(number)]
        loss, best = mean_loss(own), min(others, default=1.0)
        fits = all(r.fits for r in own)
        true = all(r.certified is None or r.certified <= r.ratio + 1e-9 for r in own)
        ratio = loss / floor if 0.0 < floor < SMALL else None
        text = [
            f"{number}", f"{instance.count:,}", f"{len(instance.supply)}",
            f"{instance.bundle_size}", f"{instance.options}", f"{epsilon:g}",
            "divisible" if divisible else "indivisible", f"{floor:.2%}", f"{loss:.2%}",
            "" if ratio is None else f"{ratio:.2f}", f"{best:.2%}",
            "yes" if fits else "NO", "yes" if true else "NO",
        ]  # fmt: skip
        yield text, ratio, loss - best, fits, true


def summary(
    found: dict[tuple[int, bool], dict[str, list[Run]]], floors: dict[str, float]
) -> Iterator[str]:
    """Quantiles of loss / F*, how often aims are met with F* in place of F, and the checks."""
    for divisible in (True, False):
        part = {key: runs for key, runs in found.items() if key[1] == divisible}
        numbers = list(rows(part, floors))
        ratios = [ratio for _, ratio, *_ in numbers if ratio is not None]
        times, plus = MOST[divisible]
        within = sum(
            mean_loss(part[key]["default"]) <= times * floors[str(key[0])] + plus
            for key in part
            if 0.0 < floors[str(key[0])] < SMALL
        )
        goods = "divisible" if divisible else "indivisible"
        if ratios:
            low, middle, high = np.percentile(ratios, [10, 50, 90])
            yield (
                f"{goods}: {len(ratios)} of {len(part)} markets with F* < {SMALL:.0%}: the loss is "
                f"{middle:.2f} F* in the median, {low:.2f} to {high:.2f} in four fifths of them, "
                f"{max(ratios):.2f} at worst; at most {times} F* + {plus:.1%} in {within}"
            )
        behind = [points for _, _, points, *_ in numbers]
        yield (
            f"{goods}: behind the best rival by more than a point in "
            f"{sum(b > POINT for b in behind)} of {len(behind)}, by {max(behind):.1%} at most; "
            f"ahead by {np.median([-b for b in behind]):.1%} in the median"
        )
        yield (
            f"{goods}: supply exceeded in {sum(not fits for *_, fits, _ in numbers)}, "
            f"certificates above the truth: {sum(not true for *_, true in numbers)}"
        )


def main() -> None:
    """Measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=int, default=180, help="the number of the first market")
    parser.add_argument("--markets", type=int, default=90, help="how many")
    parser.add_argument("--seeds", type=int, default=2, help="runs of newton for each")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the files go")
    given = parser.parse_args()
    for kind in (SupplyWarning, BudgetWarning):
        warnings.simplefilter("ignore", kind)  # too little supply is part of it
    floors = Store(given.results / "random_floors.json")
    found: dict[tuple[int, bool], dict[str, list[Run]]] = {}
    for number in range(given.first, given.first + given.markets):
        instance, epsilon = drawn(number)
        if str(number) not in floors.data:
            floors.put(str(number), floor_of(instance, epsilon))
        for divisible in (True, False):
            for policy in ["default", *RIVALS]:
                cell = Cell(f"market-{number}", instance.count, epsilon, divisible, policy)
                seeds = given.seeds if policy == "default" else 1
                ((_, runs),) = measure(
                    [cell],
                    seeds,
                    given.results,
                    file="random_markets.json",
                    families={cell.family: lambda n, rng, own=instance: own},
                )
                if runs:
                    found.setdefault((number, divisible), {})[policy] = runs
    print(head(HEAD))
    for text, *_ in rows(found, floors.data):
        print(line(text))
    print()
    for sentence in summary(found, floors.data):
        print(sentence)


if __name__ == "__main__":
    main()
