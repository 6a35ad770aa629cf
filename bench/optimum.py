"""The optimum without privacy: time, and how far its proof leaves it open, up to 10^7 agents.

For each family of `experiments/families.py` that is asked for, and each number of agents: the
seconds of `jdpack.optimum`, HiGHS on all columns beside it where that is small enough, the gap
between the allocation's value and the dual bound that proves it, and by how much the allocation
exceeds any supply.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import highspy
import numpy as np
import scipy.sparse

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

from families import FAMILIES, Instance

WHOLE = 300_000
"""Up to so many rows HiGHS is given all columns at once."""


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
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--families", default="dense,sparse,assignment", help="with commas")
    parser.add_argument("--agents", type=int, nargs="*", default=[10**5, 10**6, 10**7])
    given = parser.parse_args()
    print("| family | agents | seconds | HiGHS on all columns | gap to the bound | above supply |")
    print("|---|---|---|---|---|---|", flush=True)
    for family in given.families.split(","):
        for n in given.agents:
            instance = FAMILIES[family](n, np.random.default_rng(7))
            begin = time.perf_counter()
            found = instance.optimum()
            seconds = time.perf_counter() - begin
            beside = ""
            if len(instance.values) <= WHOLE:
                whole, value = whole_seconds(instance)
                beside = f"{whole:.2g} (differs by {abs(value / found.value - 1.0):.0e})"
            load = np.asarray(instance.demands.T @ found.shares).ravel() / instance.supply
            print(
                f"| {family} | {n:,} | {seconds:.2g} | {beside} "
                f"| {found.bound / found.value - 1.0:.0e} | {max(0.0, load.max() - 1.0):.0e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
