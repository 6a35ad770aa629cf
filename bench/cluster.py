"""What a round costs on a Ray cluster beyond its slowest worker: two workers on this machine.

Every worker reads its half of a Parquet file. Then come rounds at changing prices: the driver sends
prices to all workers, waits for their sums and adds them. The overhead of a round is its time at
the driver minus that of the slower worker's kernel. Rounds ask all agents or, once prices hardly
move, only the undecided ones.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

import plots
from common import RESULTS, report
from jdpack import Market, Ray
from jdpack.engines.settings import RunInfo
from jdpack.records.source import Source
from loss import say
from parquet import dataset


def measure(n: int, workers: int, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Rounds over all agents, and over the undecided ones."""
    path, toml = dataset(n, folder)
    market = Market.from_toml(toml)
    source = Source(market, str(path), None, None, None, clamp=False)
    start = time.perf_counter()
    engine: Any = Ray(workers=workers).open(source, None, RunInfo("bench", None), lambda done: None)
    reading = time.perf_counter() - start
    middle = market.value_cap_code * 2**20 // (len(market.resources) * 2**16)
    rows = []
    for what, step in {"all agents": 0.1, "undecided agents": 1e-6}.items():
        whole, kernel = [], []
        for k in range(rounds):
            price = round(middle * (1.0 + step * (1 + k % 7)))
            begin = time.perf_counter()
            engine.demand((price,) * len(market.resources))
            whole.append(time.perf_counter() - begin)
            kernel.append(engine.seconds)
        over = 1e3 * (np.array(whole) - np.array(kernel))[rounds // 4 :]
        rows.append(
            {
                "agents": n,
                "asked": what,
                "reading": reading,
                "kernel_ms": 1e3 * float(np.median(kernel[rounds // 4 :])),
                "overhead_ms": float(np.median(over)),
                "overhead_ms_95": float(np.quantile(over, 0.95)),
            }
        )
    engine.close()
    return rows


def main() -> None:
    """Print the table, and write it with JSON, CSV and a plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--folder", type=Path, default=Path("results/data"), help="data sets")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    plots.check()
    text = ["| agents x 10 | rounds over | slower worker's kernel | overhead, median | 95% |"]
    text.append("|---" * 5 + "|")
    found = []
    for n in args.agents:
        for row in measure(n, args.workers, args.rounds, args.folder):
            found.append(row)
            text.append(
                f"| {n:,} | {row['asked']} | {row['kernel_ms']:.1f} ms | "
                f"{row['overhead_ms']:.1f} ms | {row['overhead_ms_95']:.1f} ms |"
            )
            say(text[-1])
    parts = {"slower worker's kernel": "kernel_ms", "overhead, median": "overhead_ms"}
    shown = {
        f"{row['agents']:,}, {row['asked']}": {name: row[key] for name, key in parts.items()}
        for row in found
    }
    plot = plots.bars("ms per round", shown)
    report("cluster", args.results, "\n".join(text), found, plot, found)


if __name__ == "__main__":
    main()
