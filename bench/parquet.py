"""Parquet to allocation Parquet, against PyArrow alone on the same files.

* jdpack: a fresh process reads the table of agents, solves (indivisible, epsilon 1), and leaves its
  folder with the allocation. An earlier run has left compiled kernels on disk.
* PyArrow: a fresh process reads the same table, and writes one with an id and a boolean for every
  agent. It reads up to 20,000,000 agents at once, and larger tables row group by row group, because
  they would not fit in memory.

The two take turns. Seconds are for whole processes, including imports; the JSON also has them
without imports. The input is read once before the first turn, so it is in the page cache for both
if it fits. Memory excludes mapped files (`common.watched`).

The data set is random, and stays in the folder for later runs. Turns are kept in
`results/bench/parquet-turns.json`, and an interrupted command resumes from there. The table also
has the other sizes that were saved. If jdpack or this code has changed, everything is measured
again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

import plots
from common import RESULTS, fingerprint, report, watched
from loss import Store, say
from memory import RESOURCES, market_text, write_agents

AT_ONCE = 20_000_000
SIDES = ("jdpack", "pyarrow")
PROGRAM = Path(__file__).with_name("parquet_sides.py")
Row = dict[str, Any]


def dataset(n: int, folder: Path) -> tuple[Path, Path]:
    """The table of n random agents and their market file, written if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    agents, market = folder / f"agents-{n}.parquet", folder / f"market-{n}.toml"
    market.write_text(market_text(n))
    if not agents.exists():
        say(f"writing {agents}")
        part = agents.with_suffix(".part")
        write_agents(part, n, np.random.default_rng(0))
        part.replace(agents)
    return agents, market


def turn(side: str, n: int, folder: Path, engine: str, threads: int) -> Row:
    """One process of a side."""
    agents, market = dataset(n, folder)
    out = folder / f"out-{side}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    if side == "jdpack":
        given = [market, agents, out / "run", engine, str(threads)]
    else:
        at_once = "yes" if n <= AT_ONCE else "no"
        given = [agents, out / "allocation.parquet", at_once, str(threads)]
    try:
        done = watched([sys.executable, PROGRAM, side, *given])
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return {"seconds": done.seconds, "inside": float(done.out.split()[-1]), "peak": done.peak}


def warm(path: Path) -> None:
    """Read a file into the page cache."""
    with path.open("rb") as file:
        while file.read(2**24):
            pass


def play(
    n: int, repeats: int, folder: Path, engine: str, threads: int, store: Store, code: str
) -> None:
    """All turns of one size that are not saved for this code."""
    keys = {
        (t, side): f"{n} {engine} {threads} threads, {side}, turn {t}, {code}"
        for t in range(repeats)
        for side in SIDES
    }
    if all(key in store.data for key in keys.values()):
        return
    warm(dataset(n, folder)[0])
    turn("jdpack", 2_000, folder, engine, threads)  # compiles and caches the kernels
    for (t, side), key in keys.items():
        if key not in store.data:
            about = {"n": n, "side": side, "engine": engine, "code": code, "threads": threads}
            store.put(key, about | turn(side, n, folder, engine, threads))
            say(f"{n:,} agents, turn {t + 1} of {repeats}: {side}: "
                f"{store.data[key]['seconds']:.3g} s")  # fmt: skip


def summary(turns: list[Row]) -> list[Row]:
    """One row per size and engine: medians, their ratio, the largest memory."""
    rows = []
    for n, engine in sorted({(t["n"], t["engine"]) for t in turns}):
        some = [t for t in turns if (t["n"], t["engine"]) == (n, engine)]
        row: Row = {"n": n, "engine": engine}
        for side in SIDES:
            own = [t for t in some if t["side"] == side]
            row[side] = {
                "seconds": float(np.median([t["seconds"] for t in own])),
                "inside": float(np.median([t["inside"] for t in own])),
                "peak": max((t["peak"] for t in own if t["peak"]), default=None),
                "turns": [t["seconds"] for t in own],
            }
        row["ratio"] = row["jdpack"]["seconds"] / row["pyarrow"]["seconds"]
        row["ns_an_agent"] = 1e9 * row["jdpack"]["seconds"] / n
        rows.append(row)
    return rows


def table(rows: list[Row]) -> Iterator[str]:
    """The result in Markdown."""
    yield (
        f"| agents x {RESOURCES} | engine | jdpack | PyArrow alone | ratio | ns per agent "
        "| peak, jdpack | peak, PyArrow |"
    )
    yield "|---" * 8 + "|"
    for row in rows:
        peaks = [row[side]["peak"] for side in SIDES]
        cells = " | ".join(f"{p / 1e6:,.0f} MB" if p else "" for p in peaks)
        yield (
            f"| {row['n']:,} | {row['engine']} | {row['jdpack']['seconds']:.3g} s "
            f"| {row['pyarrow']['seconds']:.3g} s | {row['ratio']:.2f} "
            f"| {row['ns_an_agent']:.0f} | {cells} |"
        )


def draw(rows: list[Row]) -> str:
    """Nanoseconds per agent of both sides, for each size."""

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        labels = [f"{row['n']:,}, {row['engine']}" for row in rows]
        styles = {"jdpack": (plots.FIRST, -0.2), "pyarrow": (plots.SECOND, 0.2)}
        for side, (colour, shift) in styles.items():
            heights = [1e9 * row[side]["seconds"] / row["n"] for row in rows]
            places = [x + shift for x in range(len(rows))]
            bars = axes.bar(places, heights, 0.36, color=colour, label=side)
            axes.bar_label(bars, [f"{h:.0f}" for h in heights], padding=2.0)
        axes.set_xticks(range(len(rows)), labels)
        axes.set_ylabel("ns per agent")
        axes.margins(y=0.15)
        axes.grid(axis="y", alpha=0.6)
        axes.legend()

    return plots.svg(4.0 + 2.0 * len(rows), 4.0, fill)


def main() -> None:
    """Measure what is missing; print the table, and write it with JSON and a plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=int, nargs="*", default=[10_000_000])
    parser.add_argument("--engine", choices=["auto", "memory", "mapped"], default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="for both sides")
    parser.add_argument("--folder", type=Path, default=Path("results/data"), help="data sets")
    parser.add_argument("--again", action="store_true", help="discard the saved turns")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    store = Store(args.results / "parquet-turns.json")
    if args.again:
        store.data.clear()
    code = fingerprint()
    for n in args.agents:
        play(n, args.repeats, args.folder, args.engine, args.threads, store, code)
    rows = summary([turn for turn in store.data.values() if turn["code"] == code])
    report("parquet", args.results, "\n".join(table(rows)), rows, draw(rows), rows)


if __name__ == "__main__":
    main()
