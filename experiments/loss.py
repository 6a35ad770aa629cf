"""What privacy costs: the loss against the optimum, on every family, size and budget.

M = z Delta / sqrt(2 rho), with Delta the L2 sensitivity of demand as a fraction of supply and
z = sqrt(2 ln(m / beta)), is the margin that one release of demand with the whole budget would
need to be certified for m resources. Losses are fractions of the linear program's optimum, for
indivisible goods too. The table compares them with 1.2 M + 0.5% (divisible) and 2 M + 0.5%
(indivisible) where M < 20%; without privacy (epsilon inf) with 0.2%, and 1% with tied values. It
compares the certified ratio with the true one minus 2.5 M + 0.5%.

Every run is seeded. Results go to loss.json as they come, and runs on file are not repeated; optima
are kept in optima.json. The table goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from families import FAMILIES, Instance
from jdpack import JdpackError, solve
from jdpack.policies import registry
from jdpack.privacy import queries

DELTA = 1e-8
INSTANCE_SEED = 7
LEAST, LARGEST_MARGIN = 0.005, 0.2
IN_MARGINS = {True: 1.2, False: 2.0}  # for divisible and indivisible goods
CERTIFIED_IN_MARGINS = 2.5
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
    def key(self) -> str:
        goods = "divisible" if self.divisible else "indivisible"
        return f"{self.family} n={self.n} epsilon={self.epsilon:g} {goods} {self.policy}"


@dataclass(frozen=True)
class Run:
    """One seeded run."""

    margin: float
    """M."""
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


# --- runs ---------------------------------------------------------------------------------


def run(instance: Instance, best: float, cell: Cell, seed: int) -> Run:
    """Solve once, and measure what the agents got on their true numbers."""
    market = instance.market(divisible=cell.divisible)
    chosen = None if cell.policy == "default" else registry.from_dict({"name": cell.policy})
    begin = time.perf_counter()
    result = solve(
        market,
        **instance.solve_input(),
        epsilon=cell.epsilon,
        delta=DELTA,
        policy=chosen,
        seed=seed,
    )
    seconds = time.perf_counter() - begin
    given, board = result.allocation.astype(float), result.billboard
    load = np.asarray(instance.demands.T @ given).ravel()
    fits = bool(np.all(load <= instance.supply * (1.0 + 1e-12)))  # the sum itself is rounded
    if instance.agents is not None:
        fits &= bool(np.bincount(instance.agents, weights=given).max() <= 1.0 + 1e-12)
    budget = board.header.budget
    z = math.sqrt(2.0 * math.log(len(instance.supply) / budget.beta))
    sensitivity = math.hypot(*queries.shifts(market, "demand")) / market.supply_code
    return Run(
        margin=z * sensitivity / math.sqrt(2.0 * budget.rho),
        loss=1.0 - float(instance.values @ given) / best,
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


def best_value(instance: Instance, name: str, optima: Store) -> float:
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
        optima.put(key, {"value": found.value, "bound": found.bound, "seconds": seconds})
    return float(optima.data[key]["value"])


def measure(
    cells: list[Cell], seeds: int, folder: Path, *, fresh: bool = False
) -> Iterator[tuple[Cell, list[Run]]]:
    """The runs of each cell: those on file (unless `fresh`), and new ones."""
    store, optima = Store(folder / "loss.json"), Store(folder / "optima.json")
    instance, drawn, best = None, None, math.nan
    for done, cell in enumerate(cells):
        runs = {} if fresh else store.data.get(cell.key, {})
        for seed in range(1, seeds + 1):
            if str(seed) in runs:
                continue
            if drawn != (cell.family, cell.n):
                rng = np.random.default_rng(INSTANCE_SEED)
                instance, drawn = FAMILIES[cell.family](cell.n, rng), (cell.family, cell.n)
                best = best_value(instance, cell.family, optima)
            try:
                found = run(instance, best, cell, seed)
            except JdpackError as error:
                say(f"{cell.key}: {error}")
                break
            runs = {**runs, str(seed): asdict(found)}
            store.put(cell.key, runs)
            say(
                f"[{done + 1}/{len(cells)}] {cell.key} seed {seed}: loss {found.loss:.2%}, "
                f"M {found.margin:.2%}, {found.seconds:.1f} s"
            )
        yield cell, [Run(**runs[key]) for key in sorted(runs, key=int) if int(key) <= seeds]


# --- the table ----------------------------------------------------------------------------

HEAD = [
    "family", "n", "epsilon", "goods", "M", "loss, most", "loss, mean", "(loss - 0.5%) / M",
    "small enough", "rounds", "feasible", "ratio", "certified", "true and close", "seconds",
]  # fmt: skip


def most_loss(cell: Cell, margin: float) -> float | None:
    """The largest acceptable loss; None if there is no limit."""
    if math.isinf(cell.epsilon):
        return NOT_PRIVATE_TIED if cell.family in ("tied", "identical") else NOT_PRIVATE
    if margin >= LARGEST_MARGIN:
        return None
    return IN_MARGINS[cell.divisible] * margin + LEAST


def row(cell: Cell, runs: list[Run]) -> list[str]:
    """A cell as a row of the table; whatever fails says NO."""
    first = [
        cell.family,
        f"{cell.n:,}",
        f"{cell.epsilon:g}",
        "divisible" if cell.divisible else "indivisible",
    ]
    if not runs:
        return [*first, *["refused"] * (len(HEAD) - len(first))]
    margin = runs[0].margin
    worst, limit = max(r.loss for r in runs), most_loss(cell, margin)
    least = min(runs, key=lambda r: -math.inf if r.certified is None else r.certified)
    close = None
    if margin < LARGEST_MARGIN:
        slack = CERTIFIED_IN_MARGINS * margin + LEAST
        close = all(
            r.certified is not None and r.ratio - slack <= r.certified <= r.ratio + 1e-9
            for r in runs
        )
    rounds = max(r.rounds for r in runs)
    return [
        *first,
        f"{margin:.2%}",
        f"{worst:.2%}",
        f"{sum(r.loss for r in runs) / len(runs):.2%}",
        f"{(worst - LEAST) / margin:.2f}" if margin else "",
        "" if limit is None else yes(worst <= limit),
        f"{rounds}" if rounds <= MOST_ROUNDS else f"{rounds} NO",
        yes(all(r.fits for r in runs)),
        f"{least.ratio:.2%}",
        "none" if least.certified is None else f"{least.certified:.2%}",
        "" if close is None else yes(close),
        f"{sum(r.seconds for r in runs) / len(runs):.2g}",
    ]


def yes(true: bool) -> str:
    """Yes, or a NO that is easy to find."""
    return "yes" if true else "NO"


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def numbers(text: str) -> list[float]:
    """Parse numbers separated by commas."""
    return [float(part) for part in text.split(",")]


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one run of 4,000 agents, epsilon 3")
    parser.add_argument("--families", default=",".join(FAMILIES), help="names, with commas")
    parser.add_argument("--n", type=numbers, help="numbers of agents (1e4,1e5,1e6)")
    parser.add_argument("--epsilon", type=numbers, help="budgets (0.3,1,3,inf)")
    parser.add_argument("--seeds", type=int, help="runs per row (3)")
    parser.add_argument("--policy", default="default", help="the name of an algorithm")
    parser.add_argument("--private-only", action="store_true", help="no epsilon inf (no privacy)")
    parser.add_argument("--fresh", action="store_true", help="repeat runs that are on file")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the files go")
    given = parser.parse_args()
    sizes = given.n or ([4_000] if given.quick else [10_000, 100_000, 1_000_000])
    budgets = given.epsilon or ([3.0] if given.quick else [0.3, 1.0, 3.0, math.inf])
    seeds = given.seeds or (1 if given.quick else 3)
    names = given.families.split(",")
    if unknown := set(names) - set(FAMILIES):
        parser.error(f"unknown family {unknown.pop()!r}; choose from {', '.join(FAMILIES)}")
    cells = [
        Cell(family, int(n), epsilon, divisible, given.policy)
        for family in names
        for n in sizes
        for epsilon in budgets
        for divisible in (True, False)
        if not (given.private_only and math.isinf(epsilon))
    ]
    print(f"delta = {DELTA:g}, {seeds} seeds, policy: {given.policy}\n")
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|", flush=True)
    rows = []
    for cell, runs in measure(cells, seeds, given.results, fresh=given.fresh):
        rows.append(row(cell, runs))
        print(f"| {' | '.join(rows[-1])} |", flush=True)
    for column in ("small enough", "rounds", "feasible", "true and close"):
        marks = [line[HEAD.index(column)] for line in rows]
        bad = sum("NO" in mark for mark in marks)
        asked = sum(mark not in ("", "refused") for mark in marks)
        say(f"{column}: {asked - bad} of {asked}")


if __name__ == "__main__":
    main()
