"""Random markets for the experiments, and their optimum without privacy."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
import scipy.sparse

from jdpack import Market


@dataclass(frozen=True)
class Instance:
    """Agents of a family; demands are at most 1, values at most 1."""

    values: np.ndarray
    demands: np.ndarray | scipy.sparse.csr_matrix
    bundle_size: int

    def market(self, supply: float, *, divisible: bool = True) -> Market:
        """The market of these agents with the same supply of every resource."""
        n, m = self.demands.shape
        return Market(
            supply=[supply] * m,
            max_demand=1.0,
            max_value=1.0,
            agents=n,
            bundle_size=self.bundle_size,
            divisible=divisible,
        )


def dense(n: int, rng: np.random.Generator) -> Instance:
    """Ten resources, everybody demands some of each."""
    return Instance(rng.random(n), rng.random((n, 10)), 10)


def single(n: int, rng: np.random.Generator) -> Instance:
    """One resource."""
    return Instance(rng.random(n), rng.uniform(0.1, 1.0, (n, 1)), 1)


def sparse(n: int, rng: np.random.Generator) -> Instance:
    """Forty resources of unequal popularity, three to an agent."""
    m, k = 40, 3
    popularity = np.log(1.0 / np.arange(1, m + 1))
    # The k largest of log-weights plus Gumbel noise: k distinct resources by popularity.
    chosen = np.argpartition(-(popularity + rng.gumbel(size=(n, m))), k, axis=1)[:, :k]
    rows = np.repeat(np.arange(n), k)
    amounts = rng.uniform(0.5, 1.0, n * k)
    demands = scipy.sparse.csr_matrix((amounts, (rows, chosen.ravel())), shape=(n, m))
    return Instance(rng.random(n), demands, k)


def tied(n: int, rng: np.random.Generator) -> Instance:
    """Ten resources, and values of only four sizes."""
    return Instance(rng.choice([0.25, 0.5, 0.75, 1.0], n), rng.random((n, 10)), 10)


FAMILIES = {"dense": dense, "single": single, "3-sparse": sparse, "tied": tied}


def optimum(instance: Instance, supply: float) -> float:
    """The best total value without privacy: the linear program, by HiGHS."""
    n, m = instance.demands.shape
    columns = scipy.sparse.csc_matrix(instance.demands.T)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = n, m
    lp.col_cost_ = -instance.values
    lp.col_lower_, lp.col_upper_ = np.zeros(n), np.ones(n)
    lp.row_lower_, lp.row_upper_ = np.full(m, -highspy.kHighsInf), np.full(m, supply)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = columns.indptr
    lp.a_matrix_.index_ = columns.indices
    lp.a_matrix_.value_ = columns.data
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("solver", "simplex")
    solver.setOptionValue("presolve", "off")  # it takes minutes on sparse columns
    solver.passModel(lp)
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return -solver.getInfo().objective_function_value
