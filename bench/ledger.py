"""What a ledger adds to a run: solve the same market with and without one, in turns.

Most of what it adds is waiting for the disk, so the ratio of times holds for an idle machine. The
ratio of CPU times hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

import plots
from common import RESULTS, report
from jdpack import Ledger, SupplyWarning, solve
from loss import say
from memory import market_text, write_agents


def measure(n: int, turns: int) -> list[dict[str, float]]:
    """Seconds from Parquet to the finished folder, without and with a ledger; one row per turn."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_agents(folder / "agents.parquet", n, np.random.default_rng(0))
        (folder / "market.toml").write_text(market_text(n))
        ledger = Ledger.create(folder / "ledger", "people", epsilon=50.0, delta=1e-4)
        paid = {"ledger": ledger.path, "dataset": "people"}
        for turn in range(-1, turns):  # the first turn warms up
            row = {"turn": float(turn)}
            sides = [("without", {}), ("with", paid)]
            for side, more in sides if turn % 2 else sides[::-1]:
                start, begun = time.perf_counter(), time.process_time()
                out = folder / f"{side} {turn}"
                result = solve(
                    folder / "market.toml", folder / "agents.parquet", output=out, **more
                )
                row[side] = time.perf_counter() - start
                row[f"{side}, CPU"] = time.process_time() - begun
                row["lines"] = len(list(result.billboard.lines()))
            rows.append(row)
    return rows[1:]


def main() -> None:
    """Print the table, and write it with JSON, CSV and a plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    plots.check()
    warnings.simplefilter("ignore", SupplyWarning)
    text = [
        "| agents x 10 | lines | without | with a ledger | ratio (quartiles) | of CPU times |",
        "|---" * 6 + "|",
    ]
    rows = []
    for n in args.agents:
        turns = measure(n, args.turns)
        without, paid = (statistics.median(t[side] for t in turns) for side in ("without", "with"))
        low, ratio, high = statistics.quantiles((t["with"] / t["without"] for t in turns), n=4)
        cpu = statistics.median(t["with, CPU"] / t["without, CPU"] for t in turns)
        text.append(
            f"| {n:,} | {turns[0]['lines']:.0f} | {without:.3f} s | {paid:.3f} s "
            f"| {ratio:.3f} ({low:.3f} to {high:.3f}) | {cpu:.3f} |"
        )
        say(text[-1])
        rows.append({"agents": n, "without": without, "with": paid, "ratio": ratio, "cpu": cpu})
    points = {"with a ledger / without": [(row["agents"], row["ratio"]) for row in rows]}
    report("ledger", args.results, "\n".join(text), rows, plots.lines("agents", "", points), rows)


if __name__ == "__main__":
    main()
