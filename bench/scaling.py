"""How the cost of a whole private solve grows with the number of agents and of resources.

* Agents: dense markets of ten resources, with 10^4 to 10^7 agents from arrays in memory, and on
  request more, from a Parquet data set through the engine that keeps codes on disk.
* Resources: 1 to 1000, of which every agent wants up to three, with 10^6 agents.

Values and demands are uniform on [0, 1], supply is 0.4 of the expected demand, epsilon is 1, and
goods are indivisible. (At 1000 resources supply is far too small for the budget, but only the work
is measured.) Every cell is its own process, which compiles its kernels before the clock starts.
Exponents come from least squares on logarithms, with 95% intervals: over all cells, and over those
large enough to hide the fixed cost of a run.

Cells are kept in `results/bench/scaling-cells.json`, and an interrupted command resumes from there.
If jdpack or this code has changed, everything is measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

import plots
from common import RESULTS, fingerprint, report, watched
from jdpack import BudgetWarning, Market, SupplyWarning, solve
from laws import Fit, draw, fit
from loss import Store, say
from parquet import dataset
from sides import DELTA, EPSILON, TIGHT

RESOURCES, BUNDLE = 10, 3
AGENTS = [10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000]
MAPPED = 20_000_000
"""From this many agents on, they come from a data set on disk."""
SWEPT = [1, 3, 10, 30, 100, 300, 1_000]
LARGE = {"n": 300_000, "m": 30}
"""Cells from here on get a second fit."""


@dataclass(frozen=True)
class Cell:
    """What is solved."""

    n: int
    m: int
    bundle: int
    """How many resources an agent wants; all of them means dense."""

    @property
    def mapped(self) -> bool:
        return self.n >= MAPPED

    @property
    def repeats(self) -> int:
        return 3 if self.n <= 1_000_000 else 1


def market_of(cell: Cell) -> Market:
    """The public market of a cell; resources are named as in the data sets of `parquet`."""
    supply = max(1.0, TIGHT * cell.n * cell.bundle / cell.m / 2)
    return Market(
        supply=[supply] * cell.m,
        names=[f"r{j}" for j in range(cell.m)],
        max_demand=1.0,
        max_value=1.0,
        agents=cell.n,
        bundle_size=cell.bundle,
    )


def arrays(cell: Cell) -> tuple[Market, dict[str, Any]]:
    """The market, and random agents in memory."""
    n, m, k, rng = cell.n, cell.m, cell.bundle, np.random.default_rng(0)
    market = market_of(cell)
    if k == m:
        return market, {"values": rng.random(n), "demands": rng.random((n, m))}
    chosen = distinct(n, m, k, rng)
    starts = np.arange(0, n * k + 1, k)
    demands = scipy.sparse.csr_matrix((rng.random(n * k), chosen.ravel(), starts), (n, m))
    return market, {"values": rng.random(n), "demands": demands}


def distinct(n: int, m: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """For each of n agents, k of m resources in order; all sets are equally likely."""
    chosen = np.sort(rng.integers(0, m, (n, k)), axis=1)
    while len(again := np.flatnonzero((np.diff(chosen, axis=1) == 0).any(axis=1))):
        chosen[again] = np.sort(rng.integers(0, m, (len(again), k)), axis=1)
    return chosen


def run(cell: Cell, folder: Path, threads: int) -> dict[str, Any]:
    """Solve a cell in this process; prints a line when everything is ready."""
    for kind in (SupplyWarning, BudgetWarning):
        warnings.simplefilter("ignore", kind)  # only the work matters here
    warm, given = arrays(Cell(4_000, cell.m, cell.bundle))
    budget = {"epsilon": EPSILON, "delta": DELTA, "threads": threads}
    solve(warm, **given, **budget)
    if cell.mapped:
        market, (path, _) = market_of(cell), dataset(cell.n, folder)
    else:
        market, given = arrays(cell)
    print("ready", flush=True)
    wholes, a_round, rounds = [], [], 0
    for _ in range(cell.repeats):
        ends: list[float] = []

        def progress(at: Any, ends: list[float] = ends) -> None:
            if at.stage == "rounds":
                ends.append(time.perf_counter())

        begin = time.perf_counter()
        if cell.mapped:
            with tempfile.TemporaryDirectory(dir=folder) as out:
                where = {"engine": "mapped", "output": f"{out}/run"}
                solve(market, path, **where, **budget, progress=progress)
        else:
            _ = solve(market, **given, **budget, progress=progress).allocation
        wholes.append(time.perf_counter() - begin)
        rounds = len(ends)
        a_round.append((ends[-1] - ends[0]) / (rounds - 1))
    return {
        "seconds": float(np.median(wholes)),
        "round": float(np.median(a_round)),
        "rounds": rounds,
    }


def measure(cell: Cell, store: Store, folder: Path, threads: int, code: str) -> dict[str, Any]:
    """A cell's numbers, from the file if it has them for this code."""
    key = f"{cell}, {threads} threads, {code}"
    if key not in store.data:
        command = [sys.executable, __file__, "cell", json.dumps(asdict(cell)), folder, str(threads)]
        done = watched(command, ready=True)
        store.put(key, json.loads(done.out) | {"peak": done.peak})
        say(f"{cell}: {store.data[key]['seconds']:.3g} s")
    return {**asdict(cell), **store.data[key]}


Rows = list[dict[str, Any]]
MEASURED = {"seconds": "whole solve", "round": "one round", "peak": "peak memory"}


def laws(rows: Rows, by: str) -> dict[str, dict[str, Fit | None]]:
    """How the measured numbers grow, over all cells and over the large ones."""
    found = {}
    for what in MEASURED:
        points = [(float(row[by]), float(row[what])) for row in rows if row[what]]
        large = [point for point in points if point[0] >= LARGE[by]]
        found[what] = {"all": fit(points), "large": fit(large)}
    return found


def table(rows: Rows, by: str) -> Iterator[str]:
    """One sweep in Markdown."""
    heads = {"n": "agents, dense x 10", "m": "resources, 3-sparse"}
    yield f"| {heads[by]} | seconds | rounds | ms per round | ns per agent and round | peak |"
    yield "|---" * 6 + "|"
    for row in rows:
        peak = f"{row['peak'] / 1e6:,.0f} MB" if row["peak"] else ""
        where = " (on disk)" if row["n"] >= MAPPED else ""
        yield (
            f"| {row[by]:,}{where} | {row['seconds']:.3g} | {row['rounds']} "
            f"| {1e3 * row['round']:.3g} | {1e9 * row['round'] / row['n']:.3g} | {peak} |"
        )
    yield ""
    yield f"| exponent in {by} | all | from {LARGE[by]:,} on |"
    yield "|---|---|---|"
    for what, found in laws(rows, by).items():
        yield f"| {MEASURED[what]} | {found['all'] or ''} | {found['large'] or ''} |"


STYLES = {
    "whole solve": (plots.FIRST, "o"),
    "one round": (plots.SECOND, "D"),
    "peak memory": (plots.THIRD, "s"),
}


def panels(rows: Rows, by: str) -> list[tuple[str, str, dict[str, list[tuple[float, float]]]]]:
    """Seconds and memory of a sweep, for `draw`."""
    label = {"n": "agents n", "m": "resources m"}[by]

    def points(what: str, unit: float) -> list[tuple[float, float]]:
        return [(float(row[by]), row[what] / unit) for row in rows if row[what]]

    seconds = {MEASURED[what]: points(what, 1.0) for what in ("seconds", "round")}
    return [
        (label, "seconds", seconds),
        (label, "peak MB", {MEASURED["peak"]: points("peak", 1e6)}),
    ]


def main() -> None:
    """Measure what is missing; print the tables, and write them with JSON and plots."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=int, nargs="*", default=AGENTS)
    parser.add_argument("--resources", type=int, nargs="*", default=SWEPT)
    parser.add_argument("--sparse-agents", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("results/data"), help="data sets")
    parser.add_argument("--again", action="store_true", help="discard the saved cells")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    plots.check()
    store = Store(args.results / "scaling-cells.json")
    if args.again:
        store.data.clear()
    cells = {
        "n": [Cell(n, RESOURCES, RESOURCES) for n in args.agents],
        "m": [Cell(args.sparse_agents, m, min(BUNDLE, m)) for m in args.resources],
    }
    for cell in cells["n"]:
        if cell.mapped:
            dataset(cell.n, args.folder)
    code = fingerprint()
    rows = {
        by: [measure(cell, store, args.folder, args.threads, code) for cell in some]
        for by, some in cells.items()
    }
    text = "\n\n".join("\n".join(table(some, by)) for by, some in rows.items())
    fits = {
        by: {
            what: {over: law and asdict(law) for over, law in found.items()}
            for what, found in laws(some, by).items()
        }
        for by, some in rows.items()
    }
    picture = draw([panel for by, some in rows.items() for panel in panels(some, by)], STYLES)
    listed = [{"sweep": by, **row} for by, some in rows.items() for row in some]
    report("scaling", args.results, text, {"cells": rows, "fits": fits}, picture, listed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["cell"]:
        asked = Cell(**json.loads(sys.argv[2]))
        print(json.dumps(run(asked, Path(sys.argv[3]), int(sys.argv[4]))))
    else:
        main()
