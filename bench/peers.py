"""A whole private solve, arrays to winners, beside solvers of the same linear program.

Dense markets: n agents, ten resources, values and demands uniform on [0, 1], and of every resource
0.4 of the total demand expected. Every side is a process of its own with the same arrays in memory;
they take turns, one at a time, so all see the same machine. `make peers` sets up and runs it all:
OR-Tools has an environment of its own, whose interpreter runs this file for the sides of PDLP.

What is timed is kind to the peers: the seconds to beat are a solver's own clock, without the
building of its model, while jdpack's include the encoding of the arrays and the allocation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-peers" / "bin" / "python"
RESOURCES, TOLERANCE = 10, 1e-4
EPSILON, DELTA = 1.0, 1e-8
OURS = {"jdpack-indivisible": "jdpack, indivisible", "jdpack-divisible": "jdpack, divisible"}
PDLP = {"pdlp": "PDLP", "pdlp-distance": "PDLP, restarts by distance"}
HIGHS = {"highs": "HiGHS, interior point"}
SIDES = OURS | PDLP | HIGHS
Answer = tuple[dict[str, float], np.ndarray, list[float]]  # seconds, shares, prices if any


def run_jdpack(side: str, values: np.ndarray, demands: np.ndarray, threads: int) -> Answer:
    """The private solve, by the default policy."""
    import jdpack

    n, divisible = len(values), side == "jdpack-divisible"
    bounds = {"max_demand": 1.0, "max_value": 1.0, "agents": n}
    market = jdpack.Market(supply=supplies(n), divisible=divisible, **bounds)
    budget = {"epsilon": EPSILON, "delta": DELTA}
    start = time.perf_counter()
    result = jdpack.solve(market, values=values, demands=demands, threads=threads, **budget)
    shares = result.allocation
    return {"model": 0.0, "solve": time.perf_counter() - start}, shares, []


def run_pdlp(side: str, values: np.ndarray, demands: np.ndarray, threads: int) -> Answer:
    """PDLP by its own interface of matrices, which has the least overhead of OR-Tools'."""
    import scipy.sparse
    from ortools.pdlp import solve_log_pb2, solvers_pb2
    from ortools.pdlp.python import pdlp

    params = solvers_pb2.PrimalDualHybridGradientParams(num_threads=threads)
    criteria = params.termination_criteria.simple_optimality_criteria
    criteria.eps_optimal_relative = criteria.eps_optimal_absolute = TOLERANCE
    if side == "pdlp-distance":  # spares it the trust regions, which are half of its time here
        params.restart_strategy = params.ADAPTIVE_DISTANCE_BASED
    start = time.perf_counter()
    n, m = demands.shape
    lp = pdlp.QuadraticProgram()
    lp.objective_vector = -values
    lp.variable_lower_bounds, lp.variable_upper_bounds = np.zeros(n), np.ones(n)
    lp.constraint_lower_bounds, lp.constraint_upper_bounds = np.full(m, -np.inf), supplies(n)
    rows, columns = np.tile(np.arange(m, dtype=np.int32), n), np.arange(0, n * m + 1, m)
    lp.constraint_matrix = scipy.sparse.csc_matrix((demands.ravel(), rows, columns), shape=(m, n))
    result = pdlp.primal_dual_hybrid_gradient(lp, params)
    whole, log = time.perf_counter() - start, result.solve_log
    assert log.termination_reason == solve_log_pb2.TERMINATION_REASON_OPTIMAL, log
    seconds = {"model": whole - log.solve_time_sec, "solve": log.solve_time_sec}
    prices = np.maximum(-result.dual_solution, 0.0)
    return seconds, result.primal_solution, prices.tolist()


def run_highs(side: str, values: np.ndarray, demands: np.ndarray, threads: int) -> Answer:
    """HiGHS' interior point method at the same tolerance, without crossover."""
    import highspy

    start = time.perf_counter()
    n, m = demands.shape
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = n, m
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = -values, np.zeros(n), np.ones(n)
    lp.row_lower_, lp.row_upper_ = np.full(m, -highspy.kHighsInf), supplies(n)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.arange(0, n * m + 1, m)
    lp.a_matrix_.index_ = np.tile(np.arange(m), n)
    lp.a_matrix_.value_ = demands.ravel()
    solver = highspy.Highs()
    options = {"output_flag": False, "solver": "ipm", "run_crossover": "off", "threads": threads}
    for name, option in (options | {"ipm_optimality_tolerance": TOLERANCE}).items():
        solver.setOptionValue(name, option)
    solver.passModel(lp)
    solver.run()
    whole, solution = time.perf_counter() - start, solver.getSolution()
    assert solution.value_valid, solver.getModelStatus()
    seconds = {"model": whole - solver.getRunTime(), "solve": solver.getRunTime()}
    return seconds, np.array(solution.col_value), []


def supplies(n: int) -> np.ndarray:
    """0.4 of the demand expected: as public as a supply must be."""
    return np.full(RESOURCES, 0.4 * n / 2)


def serve(side: str, folder: str, threads: str) -> None:
    """One side's process: solves whenever a line comes in."""
    values, demands = np.load(f"{folder}/values.npy"), np.load(f"{folder}/demands.npy")
    run = run_jdpack if side in OURS else run_pdlp if side in PDLP else run_highs
    for _ in sys.stdin:
        seconds, shares, prices = run(side, values, demands, int(threads))
        np.save(f"{folder}/{side}.npy", shares)
        print(json.dumps({"seconds": seconds, "prices": prices, "peak": peak()}), flush=True)


def peak() -> float | None:
    """The process's largest resident size in MB, its arrays included; Linux only."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(s.split()[1]) / 1024 for s in lines if s.startswith("VmHWM")), None)


def play(sides: list[str], n: int, repeats: int, threads: int) -> dict[str, Any]:
    """All sides in turns. The first turn is for warming up; HiGHS has no other."""
    rng = np.random.default_rng(0)
    values, demands = rng.random(n), rng.random((n, RESOURCES))
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    bounds = [float(values.sum())]
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/values.npy", values)
        np.save(f"{folder}/demands.npy", demands)
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers = {}
        for side in sides:
            python = PEERS if side in PDLP else sys.executable
            command = [python, __file__, "serve", side, folder, str(threads)]
            workers[side] = subprocess.Popen(command, **pipes)
        for turn in range(1 + repeats):
            for side in [s for s in sides if turn == 0 or s not in HIGHS]:
                print(f"turn {turn} of {repeats}: {SIDES[side]}", file=sys.stderr)
                print("solve", file=workers[side].stdin, flush=True)
                line = workers[side].stdout.readline()
                if not line:
                    sys.exit(f"{SIDES[side]} failed")
                run = json.loads(line)
                shares = np.load(f"{folder}/{side}.npy").astype(np.float64)
                run["welfare"] = float(values @ shares)
                beyond = [shares @ demands / supplies(n) - 1.0, shares - 1.0, -shares]
                run["violation"] = max(0.0, *(float(b.max()) for b in beyond))
                if prices := run.pop("prices"):  # by duality, no allocation is worth more
                    surplus = np.maximum(values - demands @ prices, 0.0)
                    bounds.append(float(supplies(n) @ prices + surplus.sum()))
                runs[side].append(run)
        for worker in workers.values():
            worker.communicate()
    return {side: summary(r, min(bounds)) for side, r in runs.items()}


def summary(runs: list[dict[str, Any]], bound: float) -> dict[str, Any]:
    """Median seconds of the timed turns, and the worst of all else."""
    timed = [run["seconds"] for run in runs[1:] or runs]
    welfare = min(run["welfare"] for run in runs)
    return {
        "model_seconds": float(np.median([s["model"] for s in timed])),
        "solve_seconds": float(np.median([s["solve"] for s in timed])),
        "turns": timed,
        "welfare": welfare,
        "share_of_optimum": welfare / bound,
        "violation": max(run["violation"] for run in runs),
        "peak_mb": runs[-1]["peak"],
    }


def main() -> None:
    """Print the table, and write it to results/peers.json."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="for every side")
    parser.add_argument("--highs", action="store_true", help="HiGHS too, once; it is slow")
    args = parser.parse_args()
    if not PEERS.exists():
        sys.exit("OR-Tools is not set up\nhint: run `make peers`")
    sides = [s for s in SIDES if args.highs or s not in HIGHS]
    rows = play(sides, args.agents, args.repeats, args.threads)
    print(
        f"{args.agents:,} agents x {RESOURCES} dense, {args.threads} threads; medians of "
        f"{args.repeats} turns after an untimed one, in which kernels are compiled and cached.\n"
        f"jdpack: epsilon {EPSILON:g}, delta {DELTA:g}, arrays to winners. Peers: not private, "
        f"tolerance {TOLERANCE:g}; `x` is their solve, without the model, against jdpack.\n\n"
        "| | model | solve | x indivisible | x divisible | welfare / optimum | violation | peak |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for side, row in rows.items():
        x = [row["solve_seconds"] / rows[ours]["solve_seconds"] for ours in OURS]
        row["times_jdpack"] = dict(zip(OURS, x, strict=True))
        print(
            f"| {SIDES[side]} | {row['model_seconds']:.2f} s | {row['solve_seconds']:.2f} s | "
            f"{x[0]:.1f} | {x[1]:.1f} | {row['share_of_optimum']:.2%} | {row['violation']:.1e} | "
            f"{row['peak_mb'] or float('nan'):,.0f} MB |"
        )
    setup = vars(args) | {"epsilon": EPSILON, "delta": DELTA, "tolerance": TOLERANCE}
    path = ROOT / "results" / "peers.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"setup": setup, "sides": rows}, indent=2) + "\n")


if __name__ == "__main__":
    serve(*sys.argv[2:]) if sys.argv[1:2] == ["serve"] else main()
