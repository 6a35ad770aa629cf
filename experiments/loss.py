"""What privacy costs: the loss against the optimum, on every family, size and budget.

Losses are fractions of the linear program's optimum, for indivisible goods too. `floors` defines
two yardsticks: M, the margin of one release with the same relative noise for every resource, and
F, the first-order loss of the best shape. Where F < 20%, the aims for the worst seed of every cell
are 1.3 F + 0.3% (divisible) and 1.6 F + 0.5% (indivisible); in the median over cells they are
1.15 F and 1.35 F. Without privacy (epsilon inf) the aim is 0.2%, and 1% with tied values. Where
M < 20%, the certified ratio should be within 2.5 M + 0.5% (divisible) and 1.2 M + 0.5%
(indivisible) of the truth.

Every run is seeded. Results go to loss.json as they come, and runs on file are not repeated; optima
are kept in optima.json. The table goes to stdout, with the medians and every miss at its end. With
`--beside FOLDER` nothing runs: it prints the results on file beside those of FOLDER, from before.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from families import FAMILIES, SIZES, Family, Instance
from jdpack import BudgetWarning, JdpackError, SupplyWarning, solve

DELTA = 1e-8
INSTANCE_SEED = 7
LARGEST = 0.2  # there are aims below this F, and for certificates below this M
# Aims for divisible and indivisible goods: times F, plus; in the median; times M for certificates.
MOST = {True: (1.3, 0.003), False: (1.6, 0.005)}
MEDIAN = {True: 1.15, False: 1.35}
CERTIFIED, LEAST = {True: 2.5, False: 1.2}, 0.005
TIED = ("tied", "identical", "priority", "priority-sizes", "machine")
NOT_PRIVATE, NOT_PRIVATE_TIED = 0.002, 0.01
MOST_ROUNDS = 100


@dataclass(frozen=True)
class Cell:
    """A row of the table."""

    family: str
    n: int
    epsilon: float
    divisible: bool
    policy: str

    @property
    def goods(self) -> str:
        return "divisible" if self.divisible else "indivisible"

    @property
    def key(self) -> str:
        return f"{self.family} n={self.n} epsilon={self.epsilon:g} {self.goods} {self.policy}"


@dataclass(frozen=True)
class Run:
    """One seeded run."""

    margin: float
    """M."""
    floor: float
    """F."""
    loss: float
    fits: bool
    """Whether the allocation fits into every supply, in true units."""
    certified: float | None
    """The ratio to the optimum that the certificate promises."""
    rounds: int
    """Releases of demand."""
    releases: int
    seconds: float

    @property
    def ratio(self) -> float:
        return 1.0 - self.loss


@dataclass(frozen=True)
class Best:
    """The optimum."""

    value: float
    pi: list[float]
    """The share of it that the price of each resource explains."""


# --- runs ---------------------------------------------------------------------------------


def run(instance: Instance, best: Best, cell: Cell, seed: int) -> Run:
    """Solve once, and measure what the agents got on their true numbers."""
    market = instance.market(divisible=cell.divisible)
    begin = time.perf_counter()
    result = solve(
        market,
        **instance.solve_input(),
        epsilon=cell.epsilon,
        delta=DELTA,
        policy=None if cell.policy == "default" else cell.policy,
        seed=seed,
    )
    seconds = time.perf_counter() - begin
    given, board = result.allocation.astype(float), result.billboard
    load = np.asarray(instance.demands.T @ given).ravel()
    fits = bool(np.all(load <= instance.supply * (1.0 + 1e-12)))  # the sum itself is rounded
    if instance.agents is not None:
        fits &= bool(np.bincount(instance.agents, weights=given).max() <= 1.0 + 1e-12)
    return Run(
        margin=instance.margin(cell.epsilon, DELTA),
        floor=instance.floor(best.pi, cell.epsilon, DELTA),
        loss=1.0 - float(instance.values @ given) / best.value,
        fits=fits,
        certified=result.certificate.ratio_at_least,
        rounds=sum(release.step.query == "demand" for release in board.releases),
        releases=len(board.releases),
        seconds=seconds,
    )


class Store:
    """A JSON file that is rewritten after every addition."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def put(self, key: str, value: Any) -> None:
        self.data[key] = value
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.data, indent=1, sort_keys=True))
        part.replace(self.path)


def best_of(instance: Instance, name: str, optima: Store) -> Best:
    """The optimum, from the file if it was computed before for exactly these numbers."""
    demands = instance.demands
    sparse = scipy.sparse.issparse(demands)
    arrays = [demands.data, demands.indices, demands.indptr] if sparse else [demands]
    mark = 0
    for array in [instance.values, instance.supply, instance.agents, *arrays]:
        if array is not None:
            mark = zlib.crc32(np.ascontiguousarray(array), mark)
    key = f"{name} n={instance.count} {mark:08x}"
    if key not in optima.data:
        begin = time.perf_counter()
        found = instance.optimum()
        seconds = time.perf_counter() - begin
        say(f"{key}: optimum {found.value:.9g} in {seconds:.1f} s")
        pi = instance.price_shares().tolist()
        kept = {"value": found.value, "bound": found.bound, "pi": pi, "seconds": seconds}
        optima.put(key, kept)
    return Best(optima.data[key]["value"], optima.data[key]["pi"])


def measure(
    cells: list[Cell],
    seeds: int,
    folder: Path,
    *,
    fresh: bool = False,
    file: str = "loss.json",
    families: Mapping[str, Family] = FAMILIES,
) -> Iterator[tuple[Cell, list[Run]]]:
    """The runs of each cell: those on file (unless `fresh`), and new ones."""
    store, optima = Store(folder / file), Store(folder / "optima.json")
    instance, drawn, best = None, None, None
    for done, cell in enumerate(cells):
        runs = {} if fresh else store.data.get(cell.key, {})
        for seed in range(1, seeds + 1):
            if str(seed) in runs:
                continue
            if drawn != (cell.family, cell.n):
                rng = np.random.default_rng(INSTANCE_SEED)
                instance, drawn = families[cell.family](cell.n, rng), (cell.family, cell.n)
                best = best_of(instance, cell.family, optima)
            try:
                found = run(instance, best, cell, seed)
            except JdpackError as error:
                say(f"{cell.key}: {error}")
                break
            runs = {**runs, str(seed): asdict(found)}
            store.put(cell.key, runs)
            say(
                f"[{done + 1}/{len(cells)}] {cell.key} seed {seed}: loss {found.loss:.2%}, "
                f"M {found.margin:.2%}, F {found.floor:.2%}, {found.seconds:.1f} s"
            )
        yield cell, [Run(**runs[key]) for key in sorted(runs, key=int) if int(key) <= seeds]


# --- the table ----------------------------------------------------------------------------

HEAD = [
    "family", "n", "epsilon", "goods", "M", "F", "loss, most", "loss, mean", "mean / F",
    "small enough", "rounds", "feasible", "ratio", "certified", "true and close", "seconds",
]  # fmt: skip


def most_loss(cell: Cell, floor: float) -> float | None:
    """The largest acceptable loss; None if there is no limit."""
    if math.isinf(cell.epsilon):
        return NOT_PRIVATE_TIED if cell.family in TIED else NOT_PRIVATE
    if floor >= LARGEST:
        return None
    times, plus = MOST[cell.divisible]
    return times * floor + plus


def small_enough(cell: Cell, runs: list[Run]) -> bool | None:
    """Whether every loss is acceptable; None if there is no limit."""
    limit = most_loss(cell, runs[0].floor)
    return None if limit is None else max(r.loss for r in runs) <= limit


def true_and_close(cell: Cell, runs: list[Run]) -> bool | None:
    """Whether every certified ratio is true and close to the truth; None if M is too large."""
    if runs[0].margin >= LARGEST:
        return None
    slack = CERTIFIED[cell.divisible] * runs[0].margin + LEAST
    return all(
        r.certified is not None and r.ratio - slack <= r.certified <= r.ratio + 1e-9 for r in runs
    )


def mean_loss(runs: list[Run]) -> float:
    """The average over seeds."""
    return math.fsum(r.loss for r in runs) / len(runs)


def row(cell: Cell, runs: list[Run]) -> list[str]:
    """A cell as a row of the table; whatever fails says NO."""
    first = [cell.family, f"{cell.n:,}", f"{cell.epsilon:g}", cell.goods]
    if not runs:
        return [*first, *["refused"] * (len(HEAD) - len(first))]
    least = min(runs, key=lambda r: -math.inf if r.certified is None else r.certified)
    rounds, floor = max(r.rounds for r in runs), runs[0].floor
    return [
        *first,
        f"{runs[0].margin:.2%}",
        f"{floor:.2%}",
        f"{max(r.loss for r in runs):.2%}",
        f"{mean_loss(runs):.2%}",
        f"{mean_loss(runs) / floor:.2f}" if floor else "",
        yes(small_enough(cell, runs)),
        f"{rounds}" if rounds <= MOST_ROUNDS else f"{rounds} NO",
        yes(all(r.fits for r in runs)),
        f"{least.ratio:.2%}",
        "none" if least.certified is None else f"{least.certified:.2%}",
        yes(true_and_close(cell, runs)),
        f"{sum(r.seconds for r in runs) / len(runs):.2g}",
    ]


Cells = list[tuple[Cell, list[Run]]]


def told(runs: list[Run]) -> str:
    """The numbers of a cell, in short."""
    most = max(runs, key=lambda r: r.loss)
    certified = min(0.0 if r.certified is None else r.certified for r in runs)
    return (
        f"loss {most.loss:.2%}, F {most.floor:.2%}, M {most.margin:.2%}, certified "
        f"{certified:.2%} of {most.ratio:.2%}"
    )


def summary(cells: Cells) -> Iterator[str]:
    """The medians, how many cells meet each aim, and every one that does not."""
    for divisible, aim in MEDIAN.items():
        ratios = [
            mean_loss(runs) / runs[0].floor
            for cell, runs in cells
            if runs and cell.divisible == divisible and 0.0 < runs[0].floor < LARGEST
        ]
        if ratios:
            goods, middle = "divisible" if divisible else "indivisible", float(np.median(ratios))
            yield (
                f"{goods}, {len(ratios)} cells with F < {LARGEST:.0%}: in the median the loss is "
                f"{middle:.2f} F; the aim is {aim:g} F: {yes(middle <= aim)}"
            )
    for what, judge, among in [
        ("small enough", small_enough, math.isfinite),
        ("true and close", true_and_close, math.isfinite),
        ("without privacy, small enough", small_enough, math.isinf),
        ("without privacy, true and close", true_and_close, math.isinf),
        ("feasible", lambda _, runs: all(r.fits for r in runs), lambda _: True),
        ("rounds", lambda _, runs: max(r.rounds for r in runs) <= MOST_ROUNDS, lambda _: True),
    ]:
        judged = [(c, runs, judge(c, runs)) for c, runs in cells if runs and among(c.epsilon)]
        missed = [(cell, runs) for cell, runs, mark in judged if mark is False]
        asked = sum(mark is not None for _, _, mark in judged)
        if asked:
            yield f"{what}: {asked - len(missed)} of {asked}"
        for cell, runs in missed:
            yield f"  {cell.key}: {told(runs)}"
    for cell, runs in cells:
        if not runs:
            yield f"refused: {cell.key}"


# --- before and after ---------------------------------------------------------------------

BESIDE = [
    "family", "n", "epsilon", "goods", "M", "F", "loss before", "after", "/ F before", "after",
    "certified before", "after",
]  # fmt: skip


def on_file(path: Path) -> dict[Cell, list[Run]]:
    """The cells of a file."""
    found = {}
    for key, runs in Store(path).data.items():
        family, n, epsilon, goods, policy = key.split(" ")
        cell = Cell(family, int(n[2:]), float(epsilon[8:]), goods == "divisible", policy)
        found[cell] = [Run(**runs[seed]) for seed in sorted(runs, key=int)]
    return found


def beside(before: dict[Cell, list[Run]], after: dict[Cell, list[Run]]) -> Iterator[list[str]]:
    """The cells that both have, in one row each, with the mean of the seeds that both have."""

    def share(runs: list[Run]) -> str:
        given = [0.0 if r.certified is None else r.certified for r in runs]
        return f"{math.fsum(given) / len(given):.2%}"

    for cell, then in before.items():
        if cell not in after:
            continue
        old, new = zip(*zip(then, after[cell], strict=False), strict=True)
        floor, losses = old[0].floor, [mean_loss(list(runs)) for runs in (old, new)]
        yield [
            *[cell.family, f"{cell.n:,}", f"{cell.epsilon:g}", cell.goods],
            *[f"{old[0].margin:.2%}", f"{floor:.2%}"],
            *[f"{loss:.2%}" for loss in losses],
            *[f"{loss / floor:.2f}" if floor else "" for loss in losses],
            *[share(list(runs)) for runs in (old, new)],
        ]


def show_beside(before: Path, after: Path) -> None:
    """Print what two files have, side by side, and how far each meets the aims."""
    then, now = on_file(before), on_file(after)
    print("\n".join([head(BESIDE), *(line(found) for found in beside(then, now))]))
    for what, found in [("before", then), ("after", now)]:
        shared = [(cell, runs) for cell, runs in found.items() if cell in then and cell in now]
        print("\n".join(["", f"{what}:", *summary(shared)]))


def yes(true: bool | None) -> str:
    """Yes, or a NO that is easy to find; nothing if the question does not arise."""
    return "" if true is None else "yes" if true else "NO"


def line(cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def head(names: Sequence[str]) -> str:
    """The first two lines of a table."""
    return f"{line(names)}\n{'|---' * len(names)}|"


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def numbers(text: str) -> list[float]:
    """Parse numbers separated by commas."""
    return [float(part) for part in text.split(",")]


def show(cells: Iterable[tuple[Cell, list[Run]]]) -> None:
    """Print the table as it grows, and then its summary."""
    print(head(HEAD), flush=True)
    found = []
    for cell, runs in cells:
        found.append((cell, runs))
        print(line(row(cell, runs)), flush=True)
    print("\n".join(["", *summary(found)]))


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one run of 4,000 agents, epsilon 3")
    parser.add_argument("--families", default=",".join(FAMILIES), help="names, with commas")
    parser.add_argument("--n", type=numbers, help="numbers of agents (1e4,1e5,1e6)")
    parser.add_argument("--epsilon", type=numbers, help="budgets (0.3,1,3,inf)")
    parser.add_argument("--seeds", type=int, help="runs per row (3)")
    parser.add_argument("--policy", default="default", help="such as mwu-adaptive:alpha=0.03")
    parser.add_argument("--private-only", action="store_true", help="no epsilon inf (no privacy)")
    parser.add_argument("--fresh", action="store_true", help="repeat runs that are on file")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the files go")
    parser.add_argument("--beside", type=Path, help="compare the results with those of this folder")
    given = parser.parse_args()
    if given.beside is not None:
        show_beside(given.beside / "loss.json", given.results / "loss.json")
        return
    for kind in (SupplyWarning, BudgetWarning):
        warnings.simplefilter("ignore", kind)  # the table shows M
    sizes = given.n or ([4_000] if given.quick else [10_000, 100_000, 1_000_000])
    budgets = given.epsilon or ([3.0] if given.quick else [0.3, 1.0, 3.0, math.inf])
    seeds = given.seeds or (1 if given.quick else 3)
    names = given.families.split(",")
    if unknown := set(names) - set(FAMILIES):
        parser.error(f"unknown family {unknown.pop()!r}; choose from {', '.join(FAMILIES)}")
    cells = [
        Cell(family, int(n), epsilon, divisible, given.policy)
        for family in names
        for n in SIZES.get(family, sizes)
        for epsilon in budgets
        for divisible in (True, False)
        if not (given.private_only and math.isinf(epsilon))
    ]
    print(f"delta = {DELTA:g}, {seeds} seeds, policy: {given.policy}\n")
    show(measure(cells, seeds, given.results, fresh=given.fresh))


if __name__ == "__main__":
    main()
