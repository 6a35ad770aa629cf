"""The optimum without privacy: its time and the gap of its proof, up to 10^7 agents.

For each chosen family of `experiments/families.py` and each number of agents, it shows the seconds
of `jdpack.curator.optimum`; those of HiGHS on all columns, if the program is small enough; the gap
between the allocation's value and the dual bound that proves it; and by how much the allocation
exceeds any supply.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import highspy
import numpy as np
import scipy.sparse

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

import plots
from common import RESULTS, report
from families import FAMILIES, Instance
from loss import say

WHOLE = 300_000
"""HiGHS gets all columns at once up to this many rows."""


def whole_seconds(instance: Instance) -> tuple[float, float]:
    """HiGHS's dual simplex on the whole program: its seconds and its value."""
    rows = len(instance.values)
    owners = instance.agents if instance.agents is not None else np.arange(rows)
    demands = scipy.sparse.csc_matrix(instance.demands).T
    agents = scipy.sparse.csc_matrix((np.ones(rows), (owners, np.arange(rows))))
    matrix = scipy.sparse.vstack([demands, agents], format="csc")
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = rows, matrix.shape[0]
    program.col_cost_ = -instance.values
    program.col_lower_, program.col_upper_ = np.zeros(rows), np.ones(rows)
    program.row_lower_ = np.full(matrix.shape[0], -highspy.kHighsInf)
    program.row_upper_ = np.concatenate([instance.supply, np.ones(agents.shape[0])])
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = matrix.indptr
    program.a_matrix_.index_ = matrix.indices
    program.a_matrix_.value_ = matrix.data
    solver = highspy.Highs()
    solver.silent()
    begin = time.perf_counter()
    solver.passModel(program)
    solver.run()
    return time.perf_counter() - begin, -float(solver.getObjectiveValue())


def main() -> None:
    """Print the table, and write it with JSON, CSV and a plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--families", default="dense,sparse,assignment", help="with commas")
    parser.add_argument("--agents", type=int, nargs="*", default=[10**5, 10**6, 10**7])
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    plots.check()
    rows: list[dict[str, Any]] = []
    text = [
        "| family | agents | seconds | HiGHS on all columns | gap to the bound | above supply |"
    ]
    text.append("|---" * 6 + "|")
    for family in given.families.split(","):
        for n in given.agents:
            instance = FAMILIES[family](n, np.random.default_rng(7))
            begin = time.perf_counter()
            found = instance.optimum()
            seconds = time.perf_counter() - begin
            beside, whole = "", None
            if len(instance.values) <= WHOLE:
                whole, value = whole_seconds(instance)
                beside = f"{whole:.2g} (differs by {abs(value / found.value - 1.0):.0e})"
            load = np.asarray(instance.demands.T @ found.shares).ravel() / instance.supply
            gap, above = found.bound / found.value - 1.0, max(0.0, float(load.max()) - 1.0)
            text.append(
                f"| {family} | {n:,} | {seconds:.2g} | {beside} | {gap:.0e} | {above:.0e} |"
            )
            say(text[-1])
            row = {"family": family, "agents": n, "seconds": seconds, "highs_seconds": whole}
            rows.append(row | {"gap": gap, "above_supply": above})
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        series.setdefault(row["family"], []).append((row["agents"], row["seconds"]))
    picture = plots.lines("agents", "seconds", series)
    report("optimum", given.results, "\n".join(text), rows, picture, rows)


if __name__ == "__main__":
    main()
