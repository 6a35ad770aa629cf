"""A whole private solve, arrays to winners, beside other ways to solve the same linear program.

The markets are dense: n agents, ten resources, values and demands uniform on [0, 1], and supplies
of 0.4 of the expected total demand. Every side (`bench/sides.py`) is its own process with the same
arrays in memory. They take turns, one at a time, so all see the same machine. `make bench` sets up
and runs everything; OR-Tools has its own environment.

The timing is kind to the peers: theirs is the solver's own clock, without building its model, while
jdpack's seconds include encoding the arrays and the allocation.

Every turn of every side is kept in `results/bench/peers-turns.json`, and an interrupted command
resumes from there. If jdpack or this code has changed, everything is measured again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "experiments"))

import plots  # noqa: E402
from common import RESULTS, fingerprint, report  # noqa: E402
from loss import Store, say  # noqa: E402
from sides import DELTA, EPSILON, SIDES, TIGHT, TOLERANCE, Options, supplies  # noqa: E402

PEERS = ROOT / ".venv-peers" / "bin" / "python"
RESOURCES = 10
OURS = ("jdpack-indivisible", "jdpack-divisible")
ELSEWHERE = ("pdlp", "pdlp-distance")
"""Sides that run in the environment of OR-Tools."""
ONCE = ("highs",)
"""Sides so slow that they get only one turn."""
Row = dict[str, Any]


class Workers:
    """The processes of the sides, started at their first turn."""

    def __init__(self, folder: str, options: Options) -> None:
        self.folder, self.options = folder, options
        self.running: dict[str, subprocess.Popen[str]] = {}

    def ask(self, side: str) -> Row:
        """One solve."""
        if side not in self.running:
            python = PEERS if side in ELSEWHERE else sys.executable
            program = Path(__file__).with_name("sides.py")
            options = json.dumps(asdict(self.options))
            self.running[side] = subprocess.Popen(
                [python, program, side, self.folder, options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        worker = self.running[side]
        assert worker.stdin is not None and worker.stdout is not None
        print("solve", file=worker.stdin, flush=True)
        line = worker.stdout.readline()
        if not line:
            sys.exit(f"{SIDES[side][0]} failed")
        answer: Row = json.loads(line)
        return answer

    def close(self) -> None:
        for worker in self.running.values():
            worker.communicate()


def play(sides: list[str], n: int, repeats: int, options: Options, store: Store) -> dict[str, Row]:
    """Run all sides in turns. The first turn warms up; it is the only one of the slowest."""
    rng = np.random.default_rng(0)
    values, demands = rng.random(n), rng.random((n, RESOURCES))
    code = fingerprint()
    turns = [(t, s) for t in range(1 + repeats) for s in sides if t == 0 or s not in ONCE]
    keys = {(t, s): f"{s} {n} x {RESOURCES}, {asdict(options)}, turn {t}, {code}" for t, s in turns}
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/values.npy", values)
        np.save(f"{folder}/demands.npy", demands)
        workers = Workers(folder, options)
        for turn, side in turns:
            if keys[turn, side] in store.data:
                continue
            if turn > 0 and side not in workers.running:
                workers.ask(side)  # warm it up again after an interruption
            answer = workers.ask(side)
            if (shares := Path(folder, f"{side}.npy")).exists():
                judge(answer, values, demands, np.load(shares).astype(np.float64))
            store.put(keys[turn, side], answer)
            say(f"turn {turn} of {repeats}: {SIDES[side][0]}: {answer['solve']:.3g} s")
        workers.close()
    runs = {s: [store.data[keys[t, s]] for t, other in turns if other == s] for s in sides}
    bounds = [run["bound"] for some in runs.values() for run in some if "bound" in run]
    bound = min(bounds, default=float("nan"))
    rows = {side: summary(some, bound) for side, some in runs.items()}
    for row in rows.values():
        row["times_jdpack"] = {
            ours: row["solve_seconds"] / rows[ours]["solve_seconds"]
            for ours in OURS
            if ours in rows
        }
    return rows


def judge(answer: Row, values: np.ndarray, demands: np.ndarray, shares: np.ndarray) -> None:
    """Add the welfare of the shares, their violation, and the optimum's bound by duality."""
    supply = supplies(*demands.shape)
    beyond = [shares @ demands / supply - 1.0, shares - 1.0, -shares]
    answer["welfare"] = float(values @ shares)
    answer["violation"] = max(0.0, *(float(b.max()) for b in beyond))
    if answer["prices"]:
        prices = np.array(answer["prices"])
        surplus = np.maximum(values - demands @ prices, 0.0)
        answer["bound"] = float(supply @ prices + surplus.sum())


def summary(runs: list[Row], bound: float) -> Row:
    """The median seconds of the timed turns, and the worst of everything else."""
    timed = runs[1:] or runs
    row: Row = {
        "model_seconds": float(np.median([run["model"] for run in timed])),
        "solve_seconds": float(np.median([run["solve"] for run in timed])),
        "turns": [run["solve"] for run in timed],
        "stopped": any(run["stopped"] for run in runs),
        "peak_mb": max((run["peak"] for run in runs if run["peak"]), default=None),
        "notes": runs[-1]["notes"],
    }
    if all("welfare" in run for run in runs):
        row["welfare"] = min(run["welfare"] for run in runs)
        row["share_of_optimum"] = row["welfare"] / bound
        row["violation"] = max(run["violation"] for run in runs)
    return row


def table(rows: dict[str, Row], n: int, repeats: int, threads: int) -> Iterator[str]:
    """The result in Markdown."""
    yield (
        f"{n:,} agents x {RESOURCES}, dense, {threads} threads; medians of {repeats} turns after "
        f"an untimed one (HiGHS: one turn). Private: epsilon {EPSILON:g}, delta {DELTA:g}. Peers "
        f"are not private, and stop at a relative gap of {TOLERANCE:g}; `x` is their solve, "
        "without the model, against jdpack's arrays to winners."
    )
    yield ""
    yield (
        "| | model | solve | x indivisible | x divisible | welfare / optimum | violation | peak |"
    )
    yield "|---" * 8 + "|"
    for side, row in rows.items():
        more = "> " if row["stopped"] else ""
        times = [row["times_jdpack"].get(ours) for ours in OURS]
        cells = [
            SIDES[side][0],
            f"{row['model_seconds']:.2f} s",
            f"{more}{row['solve_seconds']:.3g} s",
            *("" if x is None or side == "sum" else f"{more}{x:.2f}" for x in times),
            f"{row['share_of_optimum']:.3%}" if "welfare" in row else "",
            f"{row['violation']:.0e}" if "welfare" in row else "",
            f"{row['peak_mb']:,.0f} MB" if row["peak_mb"] and side != "sum" else "",
        ]
        yield f"| {' | '.join(cells)} |"
        if side == "sum" and (rounds := _rounds(rows)):
            yield (
                f"| the same, {rounds} rounds' | | {rounds * row['solve_seconds']:.3g} s "
                "| | | | | |"
            )


def _rounds(rows: dict[str, Row]) -> int:
    return max((int(rows[ours]["notes"]["rounds"]) for ours in OURS if ours in rows), default=0)


STYLES = {True: (plots.FIRST, "o"), False: (plots.SECOND, "D")}


def draw(rows: dict[str, Row]) -> str:
    """Seconds and memory of the sides."""

    def fill(figure: Any) -> None:
        shown = [side for side in rows if side != "sum"]
        places = range(len(shown))
        seconds, memory = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
        for axes, key, label in [
            (seconds, "solve_seconds", "seconds, median (model apart)"),
            (memory, "peak_mb", "peak resident MB"),
        ]:
            for y, side in zip(places, shown, strict=True):
                if (x := rows[side][key]) is None:
                    continue
                colour, shape = STYLES[side.startswith("jdpack")]
                axes.plot([x], [y], shape, color=colour)
                number = f"{x:,.0f}" if x >= 100.0 else f"{x:.3g}"
                text = f"> {number}" if rows[side]["stopped"] else number
                axes.annotate(text, (x, y), (6.0, 0.0), textcoords="offset points", va="center")
            axes.margins(x=0.35)
            axes.set_xlabel(label)
            axes.grid(axis="x", alpha=0.6)
        memory.set_xlim(left=0.0)
        seconds.set_xscale("log")
        plots.plain_numbers(seconds.xaxis)
        seconds.set_yticks(list(places), [SIDES[side][0] for side in shown])
        seconds.set_ylim(len(shown) - 0.4, -0.6)
        if "sum" in rows and (rounds := _rounds(rows)):
            limit = rounds * rows["sum"]["solve_seconds"]
            seconds.axvline(limit, color=plots.SOFT, linestyle="--", linewidth=1.0)
            seconds.annotate(
                f"streaming sum, {rounds} times", (limit, 1.0), (0.0, 4.0),
                xycoords=seconds.get_xaxis_transform(), textcoords="offset points",
                ha="center", fontsize=9.0, color=plots.SOFT,
            )  # fmt: skip

    return plots.svg(11.0, 1.6 + 0.42 * len(rows), fill)


def main() -> None:
    """Measure what is missing; print the table, and write it with JSON and a plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="for every side")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for HiGHS")
    parser.add_argument("--sides", default=",".join(SIDES), help="with commas (all)")
    parser.add_argument("--again", action="store_true", help="discard the saved turns")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    sides = args.sides.split(",")
    if unknown := [side for side in sides if side not in SIDES]:
        parser.error(f"unknown side {unknown[0]!r}; choose from {', '.join(SIDES)}")
    if set(sides) & set(ELSEWHERE) and not PEERS.exists():
        sys.exit("OR-Tools is not set up\nhint: run `make bench`, or leave it out with --sides")
    plots.check()
    store = Store(args.results / "peers-turns.json")
    if args.again:
        store.data.clear()
    options = Options(args.threads, args.limit)
    rows = play(sides, args.agents, args.repeats, options, store)
    setup = {"agents": args.agents, "resources": RESOURCES, "repeats": args.repeats}
    setup |= asdict(options) | {"tight": TIGHT, "tolerance": TOLERANCE}
    setup |= {"epsilon": EPSILON, "delta": DELTA}
    text = "\n".join(table(rows, args.agents, args.repeats, args.threads))
    listed = [{"side": side, **row} for side, row in rows.items()]
    report("peers", args.results, text, {"setup": setup, "sides": rows}, draw(rows), listed)


if __name__ == "__main__":
    main()
