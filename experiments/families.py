"""Random markets for the experiments.

A family is a function of the number of agents and a generator. Demands and values are at most 1,
which is also their public cap. Supplies come from the family's distribution, not from the draw:
they are `fraction` of the expected total demand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from jdpack import Market
from jdpack.curator.optimum import Optimum, optimum

Rng = np.random.Generator


@dataclass(frozen=True, eq=False)
class Instance:
    """Agents of a family, and the public numbers of their market."""

    values: np.ndarray
    demands: np.ndarray | scipy.sparse.csr_matrix
    supply: np.ndarray
    bundle_size: int
    options: int = 1
    agents: np.ndarray | None = None
    """The agent of each row; needed with several options, and with add-remove."""
    most_agents: int | None = None
    """With add-remove, the public upper bound on the number of agents."""
    neighbours: str = "replace-one"
    max_demand: float = 1.0
    max_value: float = 1.0

    @property
    def count(self) -> int:
        """How many agents there are."""
        return len(self.values) if self.agents is None else int(self.agents[-1]) + 1

    def with_supply(self, supply: float) -> Instance:
        """The same agents, with this supply of every resource."""
        return dataclasses.replace(self, supply=np.full(self.demands.shape[1], supply))

    def market(self, *, divisible: bool = True) -> Market:
        """The public market."""
        return Market(
            supply=self.supply.tolist(),
            max_demand=self.max_demand,
            max_value=self.max_value,
            agents=self.most_agents if self.most_agents is not None else self.count,
            bundle_size=self.bundle_size,
            options=self.options,
            neighbours=self.neighbours,
            divisible=divisible,
        )

    def solve_input(self) -> dict[str, Any]:
        """The agents, as arguments of `jdpack.solve`."""
        return {"values": self.values, "demands": self.demands, "ids": self.agents}

    def optimum(self) -> Optimum:
        """The best that fractions can do without privacy."""
        return self._optimum

    @cached_property
    def _optimum(self) -> Optimum:
        return optimum(self.values, self.demands, self.supply, self.agents)


# --- parts of families --------------------------------------------------------------------


def _supply(n: int, mean_demand: Any, fraction: Any, m: int) -> np.ndarray:
    """A fraction of the expected demand, but at least the cap of one agent."""
    return np.maximum(np.broadcast_to(n * np.asarray(mean_demand) * fraction, m), 1.0)


def _chosen(n: int, m: int, k: int, rng: Rng, popularity: np.ndarray | None = None) -> np.ndarray:
    """For each agent, k distinct resources of m; in proportion to popularity if given."""
    chosen = np.empty((n, k), np.int64)
    for i in range(0, n, 2**16):
        rows = min(2**16, n - i)
        if popularity is None:
            keys = rng.random((rows, m))
        else:  # the k largest of log-weights plus Gumbel noise
            keys = -(np.log(popularity) + rng.gumbel(size=(rows, m)))
        if k < m:
            chosen[i : i + rows] = np.argpartition(keys, k, axis=1)[:, :k]
        else:
            chosen[i : i + rows] = np.arange(m)
    return chosen


def _csr(chosen: np.ndarray, amounts: np.ndarray, m: int) -> scipy.sparse.csr_matrix:
    n, k = chosen.shape
    rows = np.repeat(np.arange(n), k)
    return scipy.sparse.csr_matrix((amounts.ravel(), (rows, chosen.ravel())), shape=(n, m))


def _sparse(
    n: int, m: int, k: int, rng: Rng, low: float, fraction: float, popularity: Any = None
) -> Instance:
    demands = _csr(_chosen(n, m, k, rng, popularity), rng.uniform(low, 1.0, n * k), m)
    supply = _supply(n, k / m * (low + 1.0) / 2.0, fraction, m)
    return Instance(rng.random(n), demands, supply, k)


# --- the families -------------------------------------------------------------------------


def dense(n: int, rng: Rng) -> Instance:
    """Ten resources; everybody demands some of each."""
    return Instance(rng.random(n), rng.random((n, 10)), _supply(n, 0.5, 0.4, 10), 10)


def sparse(n: int, rng: Rng) -> Instance:
    """Three of forty resources, all equally popular."""
    return _sparse(n, 40, 3, rng, 0.3, 0.5)


def single(n: int, rng: Rng) -> Instance:
    """One resource."""
    return Instance(rng.random(n), rng.uniform(0.1, 1.0, (n, 1)), _supply(n, 0.55, 0.3, 1), 1)


def unit(n: int, rng: Rng) -> Instance:
    """One unit of one of twenty resources."""
    demands = _csr(_chosen(n, 20, 1, rng), np.ones(n), 20)
    return Instance(rng.random(n), demands, _supply(n, 1 / 20, 0.5, 20), 1)


def tied(n: int, rng: Rng) -> Instance:
    """Like dense, with only four different values."""
    values = rng.choice([0.25, 0.5, 0.75, 1.0], n)
    return Instance(values, rng.random((n, 10)), _supply(n, 0.5, 0.4, 10), 10)


def identical(n: int, rng: Rng) -> Instance:
    """Five resources; everybody wants the same at the same value."""
    bundle = rng.random(5)
    return Instance(np.full(n, 0.7), np.tile(bundle, (n, 1)), _supply(n, bundle, 0.3, 5), 5)


def correlated(n: int, rng: Rng) -> Instance:
    """Like dense, with values that grow with demand."""
    demands = rng.random((n, 10))
    values = np.clip(demands.mean(axis=1) * rng.uniform(0.5, 1.5, n), 0.0, 1.0)
    return Instance(values, demands, _supply(n, 0.5, 0.4, 10), 10)


def heavy(n: int, rng: Rng) -> Instance:
    """Like dense, with heavy-tailed values: Pareto, cut at the cap."""
    values = np.minimum(0.01 * rng.pareto(1.2, n), 1.0)
    return Instance(values, rng.random((n, 10)), _supply(n, 0.5, 0.3, 10), 10)


def zipf(n: int, rng: Rng) -> Instance:
    """Three of forty resources of Zipf popularity, with equal supplies."""
    instance = _sparse(n, 40, 3, rng, 0.5, 0.5, 1.0 / np.arange(1, 41))
    return instance.with_supply(max(0.03 * n, 1.0))


def mixed(n: int, rng: Rng) -> Instance:
    """Like dense, with resources from very tight to slack."""
    fractions = np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.2, 1.5, 2.0, 5.0])
    return Instance(rng.random(n), rng.random((n, 10)), _supply(n, 0.5, fractions, 10), 10)


def unequal(n: int, rng: Rng) -> Instance:
    """Eight resources whose supplies and demands span two orders of magnitude under one cap."""
    sizes = np.logspace(0.0, -2.0, 8)
    values, demands = rng.random(n), rng.random((n, 8)) * sizes
    return Instance(values, demands, _supply(n, sizes / 2.0, 0.4, 8), 8)


def assignment(n: int, rng: Rng) -> Instance:
    """Each agent wants one of three to five slots out of twenty; six in ten can get one."""
    counts = rng.integers(3, 6, n)
    given = np.arange(5) < counts[:, None]
    slots = rng.permuted(_chosen(n, 20, 5, rng), axis=1)[given]
    demands = _csr(slots[:, None], np.ones(len(slots)), 20)
    agents = np.repeat(np.arange(n), counts)
    supply = _supply(n, 1 / 20, 0.6, 20)
    return Instance(rng.random(len(slots)), demands, supply, 1, options=5, agents=agents)


def large(n: int, rng: Rng) -> Instance:
    """Five of two hundred resources."""
    return _sparse(n, 200, 5, rng, 0.3, 0.5)


def complements(n: int, rng: Rng) -> Instance:
    """Each agent wants one of ten blocks of four resources, in almost the same proportions."""
    proportions = np.array([1.0, 0.9, 0.8, 0.7])
    chosen = 4 * _chosen(n, 10, 1, rng) + np.arange(4)
    amounts = rng.uniform(0.3, 0.98, (n, 1)) * proportions * rng.uniform(0.98, 1.02, (n, 4))
    supply = _supply(n, np.tile(0.64 * proportions / 10.0, 10), 0.5, 40)
    return Instance(rng.random(n), _csr(chosen, amounts, 40), supply, 4)


def two_classes(n: int, rng: Rng) -> Instance:
    """Ten resources; one agent in twenty demands and values ten times what the others do."""
    big = rng.random(n) < 0.05
    demands = rng.random((n, 10)) * np.where(big, 1.0, 0.1)[:, None]
    values = rng.random(n) * np.where(big, 1.0, 0.1)
    return Instance(values, demands, _supply(n, 0.5 * (0.05 + 0.95 * 0.1), 0.4, 10), 10)


def add_remove(n: int, rng: Rng) -> Instance:
    """Like dense, with add-remove: up to n agents, one in fifty of whom is absent."""
    there = max(1, n - n // 50)
    instance = dense(there, rng)
    return dataclasses.replace(
        instance, agents=np.arange(there), most_agents=n, neighbours="add-remove"
    )


FAMILIES: dict[str, Callable[[int, Rng], Instance]] = {
    "dense": dense,
    "sparse": sparse,
    "single": single,
    "unit": unit,
    "tied": tied,
    "identical": identical,
    "correlated": correlated,
    "heavy": heavy,
    "zipf": zipf,
    "mixed": mixed,
    "unequal": unequal,
    "assignment": assignment,
    "large": large,
    "complements": complements,
    "two-classes": two_classes,
    "add-remove": add_remove,
}
