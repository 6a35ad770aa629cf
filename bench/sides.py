"""The sides of `bench/peers.py`, each in its own process: from arrays to shares, timed.

`python bench/sides.py SIDE FOLDER OPTIONS` loads the arrays of the folder, and solves whenever a
line comes in. It imports only NumPy before it knows the side, because the interpreter that has
OR-Tools runs this file too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

TOLERANCE = 1e-4
EPSILON, DELTA = 1.0, 1e-8
TIGHT = 0.4
"""The supply of every resource, as a fraction of the expected total demand."""


@dataclass(frozen=True)
class Options:
    """The options of all sides."""

    threads: int = 2
    limit: float = 900.0
    """Seconds after which HiGHS gives up."""


@dataclass
class Answer:
    """What a side says about one solve."""

    model: float
    """Seconds to build the solver's model; 0 for sides that work on the arrays directly."""
    solve: float
    shares: Any = field(default=None, repr=False)
    prices: list[float] = field(default_factory=list)
    """Prices, if any, bound the optimum."""
    stopped: bool = False
    """It hit the time limit, so there is no answer."""
    notes: dict[str, float] = field(default_factory=dict)


def supplies(n: int, m: int) -> Any:
    """A fraction of the demand expected from n agents: as public as a supply must be."""
    import numpy as np

    return np.full(m, TIGHT * n / 2)


def _market(n: int, m: int, *, divisible: bool) -> Any:
    import jdpack

    return jdpack.Market(
        supply=supplies(n, m), max_demand=1.0, max_value=1.0, agents=n, divisible=divisible
    )


def streaming_sum(values: Any, demands: Any, options: Options) -> Answer:
    """One pass over the bytes of jdpack's codes, on the same threads: the limit for a round."""
    import jdpack
    from jdpack.records.threads import Threads
    from speed import stream

    market = _market(*demands.shape, divisible=True)
    budget = {"epsilon": float("inf"), "delta": DELTA, "threads": options.threads}
    agents = jdpack.solve(market, values=values, demands=demands, **budget).engine.agents
    run = stream(agents, Threads(options.threads))
    run()  # compiles
    times = []
    for _ in range(9):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return Answer(0.0, sorted(times)[4], notes={"bytes": agents.nbytes})


def jdpack_side(*, divisible: bool, epsilon: float) -> Callable[..., Answer]:
    """A whole solve by the default policy, from arrays to winners."""

    def run(values: Any, demands: Any, options: Options) -> Answer:
        import jdpack

        market = _market(*demands.shape, divisible=divisible)
        budget = {"epsilon": epsilon, "delta": DELTA, "threads": options.threads}
        start = time.perf_counter()
        result = jdpack.solve(market, values=values, demands=demands, **budget)
        shares = result.allocation
        seconds = time.perf_counter() - start
        rounds = sum(1 for one in result.billboard.releases if one.step.query == "demand")
        return Answer(0.0, seconds, shares, notes={"rounds": rounds})

    return run


def sifting(values: Any, demands: Any, options: Options) -> Answer:
    """Our own sifting, which sets up its small programs as it goes."""
    from sifting import sift

    start = time.perf_counter()
    found = sift(values, demands, supplies(*demands.shape), TOLERANCE, options.threads)
    seconds = time.perf_counter() - start
    assert found.gap <= TOLERANCE, found
    notes = {"masters": found.masters, "columns": found.columns}
    return Answer(0.0, seconds, found.shares, found.prices.tolist(), notes=notes)


def pdlp_side(*, by_distance: bool) -> Callable[..., Answer]:
    """PDLP by its own matrix interface, which has the least overhead in OR-Tools."""

    def run(values: Any, demands: Any, options: Options) -> Answer:
        import numpy as np
        import scipy.sparse
        from ortools.pdlp import solve_log_pb2, solvers_pb2
        from ortools.pdlp.python import pdlp

        params = solvers_pb2.PrimalDualHybridGradientParams(num_threads=options.threads)
        criteria = params.termination_criteria.simple_optimality_criteria
        criteria.eps_optimal_relative = criteria.eps_optimal_absolute = TOLERANCE
        if by_distance:  # spares it the trust regions, which are half of its time here
            params.restart_strategy = params.ADAPTIVE_DISTANCE_BASED
        start = time.perf_counter()
        n, m = demands.shape
        lp = pdlp.QuadraticProgram()
        lp.objective_vector = -values
        lp.variable_lower_bounds, lp.variable_upper_bounds = np.zeros(n), np.ones(n)
        lp.constraint_lower_bounds = np.full(m, -np.inf)
        lp.constraint_upper_bounds = supplies(n, m)
        rows, starts = np.tile(np.arange(m, dtype=np.int32), n), np.arange(0, n * m + 1, m)
        lp.constraint_matrix = scipy.sparse.csc_matrix((demands.ravel(), rows, starts), (m, n))
        result = pdlp.primal_dual_hybrid_gradient(lp, params)
        whole, log = time.perf_counter() - start, result.solve_log
        assert log.termination_reason == solve_log_pb2.TERMINATION_REASON_OPTIMAL, log
        prices = np.maximum(-result.dual_solution, 0.0).tolist()
        notes = {"iterations": log.iteration_count}
        model = whole - log.solve_time_sec
        return Answer(model, log.solve_time_sec, result.primal_solution, prices, notes=notes)

    return run


def highs(values: Any, demands: Any, options: Options) -> Answer:
    """HiGHS's interior point method at the same tolerance, without crossover."""
    import highspy
    import numpy as np

    start = time.perf_counter()
    n, m = demands.shape
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = n, m
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = -values, np.zeros(n), np.ones(n)
    lp.row_lower_, lp.row_upper_ = np.full(m, -highspy.kHighsInf), supplies(n, m)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.arange(0, n * m + 1, m)
    lp.a_matrix_.index_ = np.tile(np.arange(m), n)
    lp.a_matrix_.value_ = demands.ravel()
    solver = highspy.Highs()
    settings = {"output_flag": False, "solver": "ipx", "run_crossover": "off"}
    settings |= {"threads": options.threads, "time_limit": options.limit}
    for name, setting in (settings | {"ipm_optimality_tolerance": TOLERANCE}).items():
        solver.setOptionValue(name, setting)
    solver.passModel(lp)
    solver.run()
    whole, seconds = time.perf_counter() - start, solver.getRunTime()
    if solver.getModelStatus() == highspy.HighsModelStatus.kTimeLimit:
        return Answer(whole - seconds, seconds, stopped=True)
    solution = solver.getSolution()
    assert solution.value_valid, solver.getModelStatus()
    notes = {"iterations": solver.getInfo().ipm_iteration_count}
    return Answer(whole - seconds, seconds, np.array(solution.col_value), notes=notes)


SIDES: dict[str, tuple[str, Callable[..., Answer]]] = {
    "sum": ("streaming sum, one pass", streaming_sum),
    "jdpack-indivisible": (
        "jdpack, private, indivisible",
        jdpack_side(divisible=False, epsilon=EPSILON),
    ),
    "jdpack-divisible": (
        "jdpack, private, divisible",
        jdpack_side(divisible=True, epsilon=EPSILON),
    ),
    "jdpack-inf": ("jdpack, not private", jdpack_side(divisible=True, epsilon=float("inf"))),
    "sifting": ("sifting", sifting),
    "pdlp": ("PDLP", pdlp_side(by_distance=False)),
    "pdlp-distance": ("PDLP, restarts by distance", pdlp_side(by_distance=True)),
    "highs": ("HiGHS, interior point", highs),
}
"""Name and solve of every side."""


def peak() -> float | None:
    """The process's largest resident size in MB, its arrays included; Linux only."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(s.split()[1]) / 1024 for s in lines if s.startswith("VmHWM")), None)


def serve(side: str, folder: str, options: str) -> None:
    """Solve whenever a line comes in; the shares go to a file, the rest to standard output."""
    given = Options(**json.loads(options))
    # Sifting has its own threads, and each BLAS product runs on one of them.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import numpy as np

    values, demands = np.load(f"{folder}/values.npy"), np.load(f"{folder}/demands.npy")
    for _ in sys.stdin:
        answer = SIDES[side][1](values, demands, given)
        if answer.shares is not None:
            np.save(f"{folder}/{side}.npy", answer.shares)
        answer.shares = None
        print(json.dumps(asdict(answer) | {"peak": peak()}), flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
