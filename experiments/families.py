"""Random markets for the experiments.

A family is a function of the number of agents and a generator. Unless a family says otherwise,
demands and values are at most 1, which is also their public cap. Supplies and caps come from the
family's distribution, not from the draw: supplies are a fraction of the expected total demand.

The first sixteen families are even: one cap, and noise that is about the same fraction of every
supply. The others are what real markets look like: supplies over decades, caps over decades, one
scarce resource, few resources that bind, ties, heavy tails, substitutes, time slots and groups.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

import floors
from jdpack import Market
from jdpack.curator.optimum import Optimum, optimum

Rng = np.random.Generator

SAYS = frozenset(inspect.signature(Market).parameters)
"""What this version of the package lets a market say."""


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
    max_demand: float | np.ndarray = 1.0
    """The cap on one option's demand: one for all resources, or one for each."""
    max_value: float = 1.0
    extra: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `Market`; those that it does not know are left out. `max_total` is a
    list of {"amount": the most, "resources": their names, or all if left out}."""

    @property
    def count(self) -> int:
        """How many agents there are."""
        return len(self.values) if self.agents is None else int(self.agents[-1]) + 1

    @property
    def caps(self) -> np.ndarray:
        """The cap of each resource."""
        return np.broadcast_to(np.asarray(self.max_demand, float), self.supply.shape)

    def margin(self, epsilon: float, delta: float) -> float:
        """M; see `floors`."""
        return floors.margin(self.caps / self.supply, self._changed, epsilon, delta)

    def floor(self, pi: Any, epsilon: float, delta: float) -> float:
        """F, from the share of the optimum that each price explains; see `floors`."""
        return floors.factor(len(self.supply), epsilon, delta) * self.best_shape(pi)[0]

    def best_shape(self, pi: Any) -> tuple[float, np.ndarray]:
        """The best noise for these shares of the optimum; see `floors.best_shape`."""
        names = [f"resource {j + 1}" for j in range(len(self.supply))]
        twice = 2.0 if self.neighbours == "replace-one" else 1.0
        totals = [
            (self.caps * np.isin(names, total.get("resources", names)), twice * total["amount"])
            for total in self.extra.get("max_total", [])
        ]
        return floors.best_shape(self.caps / self.supply, pi, self._changed, totals)

    @property
    def _changed(self) -> int:
        return floors.touched(len(self.supply), self.bundle_size, self.neighbours)

    def with_supply(self, supply: float) -> Instance:
        """The same agents, with this supply of every resource."""
        return dataclasses.replace(self, supply=np.full(self.demands.shape[1], supply))

    def market(self, *, divisible: bool = True) -> Market:
        """The public market."""
        known = {name: given for name, given in self.extra.items() if name in SAYS}
        return Market(
            supply=self.supply.tolist(),
            max_demand=self.caps.tolist(),
            max_value=self.max_value,
            agents=self.most_agents if self.most_agents is not None else self.count,
            bundle_size=self.bundle_size,
            options=self.options,
            neighbours=self.neighbours,
            divisible=divisible,
            **known,
        )

    def solve_input(self) -> dict[str, Any]:
        """The agents, as arguments of `jdpack.solve`."""
        return {"values": self.values, "demands": self.demands, "ids": self.agents}

    def optimum(self) -> Optimum:
        """The best that fractions can do without privacy."""
        return self._optimum

    def price_shares(self) -> np.ndarray:
        """The share of the optimum that each price explains: price times supply over the optimum.

        If a resource is used up and has the price 0, other prices may prove the optimum as well.
        Then we look for the mixture of them with the largest floor. The floor's gradient is sigma,
        and the prices that cost the most at sigma are those of slightly smaller supplies, by a
        fraction in proportion to sigma: Frank & Wolfe's method.
        """
        best = self.optimum()
        pi = best.prices * self.supply / best.value
        load = np.asarray(self.demands.T @ best.shares).ravel()
        full = load >= self.supply * (1.0 - 1e-9)
        if np.all(pi[full] > 1e-9):
            return pi
        for step in range(30):
            shape = self.best_shape(pi)[1]
            shape = np.where(full, np.minimum(shape, 10.0 * shape[pi > 0.0].max()), 0.0)
            less = self.supply * (1.0 - 1e-5 * shape / shape.max())
            other = optimum(self.values, self.demands, less, self.agents)
            new = other.prices * self.supply / best.value
            if shape @ (new - pi) <= 1e-3 * (shape @ pi):
                break
            pi = pi + 2.0 / (step + 3.0) * (new - pi)
        return pi

    @cached_property
    def _optimum(self) -> Optimum:
        return optimum(self.values, self.demands, self.supply, self.agents)


# --- parts of families --------------------------------------------------------------------


def _supply(n: int, mean_demand: Any, fraction: Any, m: int) -> np.ndarray:
    """A fraction of the expected demand, but at least the cap of one agent."""
    return np.maximum(np.broadcast_to(n * np.asarray(mean_demand) * fraction, m), 1.0)


def _one_each(resource: np.ndarray, amounts: Any, m: int) -> scipy.sparse.csr_matrix:
    """Demands of one resource per row."""
    return _csr(resource[:, None], np.broadcast_to(amounts, len(resource)), m)


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


# --- uneven families ----------------------------------------------------------------------


def _quotas(n: int, rng: Rng, m: int, fraction: float) -> Instance:
    """One unit of one of m resources; popularity and supply span three decades."""
    popularity = np.logspace(0.0, -3.0, m)
    popularity /= popularity.sum()
    demands = _one_each(rng.choice(m, n, p=popularity), 1.0, m)
    return Instance(rng.random(n), demands, _supply(n, popularity, fraction, m), 1)


def airports(n: int, rng: Rng) -> Instance:
    """One unit of one of sixty resources, whose popularity and supply span three decades."""
    return _quotas(n, rng, 60, 0.6)


def destinations(n: int, rng: Rng) -> Instance:
    """Like airports, with 229 resources."""
    return _quotas(n, rng, 229, 0.6)


def decades(n: int, rng: Rng) -> Instance:
    """Three of thirty resources, whose popularity and supply span three decades."""
    popularity = np.logspace(0.0, -3.0, 30)
    chosen = _chosen(n, 30, 3, rng, popularity)
    demands = _csr(chosen, rng.uniform(0.2, 1.0, 3 * n), 30)
    expected = 3.0 * popularity / popularity.sum()  # popular resources have less than that
    return Instance(rng.random(n), demands, _supply(n, 0.6 * np.minimum(expected, 1.0), 0.4, 30), 3)


def gpu(n: int, rng: Rng) -> Instance:
    """CPU, memory and, for one agent in fifty, a GPU, of which there are sixty times fewer caps."""
    caps = np.array([64.0, 512.0, 8.0])
    wants = rng.random(n) < 0.02
    demands = np.column_stack(
        [
            caps[0] * rng.uniform(0.05, 1.0, n),
            caps[1] * rng.uniform(0.05, 1.0, n),
            np.where(wants, np.ceil(8.0 * rng.random(n)), 0.0),
        ]
    )
    values = rng.random(n) * np.where(wants, 1.0, 0.3)
    supply = caps * _supply(n, 0.525, 0.5, 3) / [1.0, 1.0, 60.0]
    supply = np.maximum(supply, caps)
    return Instance(values, scipy.sparse.csr_matrix(demands), supply, 3, max_demand=caps)


def unequal_caps(n: int, rng: Rng) -> Instance:
    """Eight resources whose caps span two decades; most demands are far below their cap."""
    caps = np.logspace(0.0, 2.0, 8)
    typical = np.sqrt(caps)  # and one demand in sqrt(cap) may come up to the cap
    large = rng.random((n, 8)) < 1.0 / typical
    demands = rng.random((n, 8)) * np.where(large, caps, typical)
    mean = (1.0 - 1.0 / typical) * typical / 2.0 + typical / 2.0
    supply = np.maximum(_supply(n, mean, 0.4, 8), caps)
    return Instance(rng.random(n), demands, supply, 8, max_demand=caps)


def loose_caps(n: int, rng: Rng) -> Instance:
    """Two of twelve resources; public caps are ten times what anybody asks for."""
    instance = _sparse(n, 12, 2, rng, 0.3, 0.5)
    supply = np.maximum(instance.supply, 10.0)
    return dataclasses.replace(instance, supply=supply, max_demand=10.0, max_value=10.0)


def few_binding(n: int, rng: Rng) -> Instance:
    """Two to four hours in a row of 24; nine of the hours bind."""
    share = 1.0 + 3.0 * np.exp(-0.5 * ((np.arange(24) - 18.0) / 2.5) ** 2)
    hours = np.arange(4)
    length = rng.integers(2, 5, n)
    chosen = (rng.choice(24, n, p=share / share.sum())[:, None] + hours) % 24
    amounts = rng.uniform(0.3, 1.0, (n, 1)) * (hours < length[:, None])
    demands = _csr(chosen, amounts, 24)
    demands.eliminate_zeros()
    stays = np.array([1.0, 1.0, 2 / 3, 1 / 3])  # how probable each hour is
    mean = 0.65 * sum(np.roll(share / share.sum(), h) * stays[h] for h in hours)
    values = np.minimum(rng.random(n) * length / 4.0, 1.0)
    return Instance(values, demands, np.full(24, max(n * np.sort(mean)[-10] * 0.97, 1.0)), 4)


def priority(n: int, rng: Rng) -> Instance:
    """One unit of one of twelve resources; value is one of four priority classes."""
    values = rng.choice([0.1, 0.2, 0.5, 1.0], n, p=[0.4, 0.3, 0.2, 0.1])
    return Instance(
        values, _one_each(rng.integers(12, size=n), 1.0, 12), _supply(n, 1 / 12, 0.4, 12), 1
    )


def priority_sizes(n: int, rng: Rng) -> Instance:
    """Two of ten resources in small whole amounts, up to four; value is one of three classes."""
    values = rng.choice([0.2, 0.5, 1.0], n)
    demands = _csr(_chosen(n, 10, 2, rng), rng.integers(1, 5, 2 * n).astype(float), 10)
    supply = np.maximum(_supply(n, 0.2 * 2.5, 0.5, 10), 4.0)
    return Instance(values, demands, supply, 2, max_demand=4.0)


def _sizes(n: int, rng: Rng) -> np.ndarray:
    """Sizes of jobs: a heavy tail up to 500, and about 21 on average."""
    return np.clip(np.ceil(3.0 * (1.0 + rng.pareto(0.95, n))), 1.0, 500.0)


def machine(n: int, rng: Rng) -> Instance:
    """Jobs in one of 14 quarters, worth their size: the aim is to use the machine."""
    sizes = _sizes(n, rng)
    demands = _one_each(rng.integers(14, size=n), sizes, 14)
    supply = np.maximum(_supply(n, 21.0 / 14, 0.6, 14), 500.0)
    return Instance(sizes, demands, supply, 1, max_demand=500.0, max_value=500.0)


def jobs(n: int, rng: Rng) -> Instance:
    """Like machine, but worth size times duration, which has a heavy tail of its own."""
    sizes = _sizes(n, rng)
    values = sizes * np.minimum(rng.lognormal(0.0, 1.2, n), 40.0)
    demands = _one_each(rng.integers(14, size=n), sizes, 14)
    supply = np.maximum(_supply(n, 21.0 / 14, 0.3, 14), 500.0)
    return Instance(values, demands, supply, 1, max_demand=500.0, max_value=20_000.0)


def heavy_tail(n: int, rng: Rng) -> Instance:
    """One of 14 resources; the cap on values is a hundred times the typical value."""
    values = np.minimum(0.01 * rng.lognormal(0.0, 1.5, n), 1.0)
    demands = _one_each(rng.integers(14, size=n), rng.uniform(0.1, 1.0, n), 14)
    return Instance(values, demands, _supply(n, 0.55 / 14, 0.25, 14), 1)


def loose_values(n: int, rng: Rng) -> Instance:
    """Four resources, and log-normal values, of which hardly any is near the public cap."""
    values = np.minimum(rng.lognormal(0.0, 1.5, n), 2000.0)
    return Instance(values, rng.random((n, 4)), _supply(n, 0.5, 0.3, 4), 4, max_value=2000.0)


def substitutes(n: int, rng: Rng) -> Instance:
    """One unit in an hour of nine days, or in one of the next two at a loss; days differ."""
    busy = 1.0 + 0.7 * np.sin(2.0 * np.pi * np.arange(216) / 24.0)
    first = rng.choice(216, n, p=busy / busy.sum())
    slots = (first[:, None] + np.arange(3)) % 216
    values = rng.random((n, 1)) * np.array([1.0, 0.85, 0.7])
    demands = _one_each(slots.ravel(), 1.0, 216)
    agents = np.repeat(np.arange(n), 3)
    supply = _supply(n, 1 / 216, 0.6, 216)
    return Instance(values.ravel(), demands, supply, 1, options=3, agents=agents)


def half_hours(n: int, rng: Rng) -> Instance:
    """Energy over up to 20 half hours in a row of 48; at most 4 caps in total."""
    start, length = rng.integers(48, size=n), rng.integers(4, 21, n)
    total = rng.uniform(1.0, 4.0, n)
    steps = np.arange(20)
    inside = steps < length[:, None]
    rate = rng.random((n, 20)) * inside + 1e-3 * inside
    amounts = np.minimum(rate / rate.sum(axis=1, keepdims=True) * total[:, None], 1.0)
    demands = _csr((start[:, None] + steps) % 48, amounts, 48)
    demands.eliminate_zeros()
    values = rng.random(n) * total / 4.0
    every = [f"resource {j + 1}" for j in range(48)]
    busy = 1.0 + 0.5 * np.sin(2.0 * np.pi * np.arange(48) / 48.0)
    return Instance(
        values,
        demands,
        _supply(n, 2.45 / 48 * busy, 0.4, 48),
        20,
        extra={"max_total": [{"amount": 4.0, "resources": every}]},
    )


def season(n: int, rng: Rng) -> Instance:
    """One to three weeks of a year in a row; hardly anybody asks for the last ones."""
    first, weeks = rng.integers(0, 49, n), rng.choice([1, 1, 1, 2, 3], n)
    demands = _csr(first[:, None] + np.arange(3), 1.0 * (np.arange(3) < weeks[:, None]), 52)
    demands.eliminate_zeros()
    asked = n / 49.0 * np.convolve(np.ones(49), [1.0, 0.4, 0.2])
    supply = np.maximum(np.append(asked, 0.0) * np.tile([0.4, 0.6, 0.8, 1.3], 13), 1.0)
    values = np.minimum(weeks * rng.lognormal(-2.0, 0.8, n), 1.0)
    return Instance(values, demands, supply, 3)


def shelves(n: int, rng: Rng) -> Instance:
    """Three options of two of eight resources, of which some are rare; prices matter little."""
    popularity = np.logspace(0.0, -1.9, 8)
    popularity /= popularity.sum()
    chosen = _chosen(3 * n, 8, 2, rng, popularity)
    sizes = rng.lognormal(-1.5, 0.8, (3 * n, 1)) * rng.uniform(0.7, 1.3, (3 * n, 2))
    values = np.minimum(rng.lognormal(-2.0, 1.0, n), 1.0)
    first = popularity / (1.0 - popularity)  # or second, after one of the others
    expected = 0.3 * popularity * (1.0 + first.sum() - first)
    supply = _supply(n, expected, np.tile([0.5, 0.4, 0.3, 0.6], 2), 8)
    return Instance(
        np.repeat(values, 3) * rng.uniform(0.8, 1.0, 3 * n),
        _csr(chosen, np.clip(sizes, 0.01, 1.0), 8),
        supply,
        2,
        options=3,
        agents=np.repeat(np.arange(n), 3),
    )


def groups(n: int, rng: Rng) -> Instance:
    """One unit of one of six resources; five groups of agents have a cap each, three of them tight.

    A cap on a group is one more resource, of which every member asks for one.
    """
    shares, tight = np.array([0.4, 0.3, 0.15, 0.1, 0.05]), np.array([0.3, 0.4, 0.9, 0.3, 0.9])
    chosen = np.column_stack([rng.integers(6, size=n), 6 + rng.choice(5, n, p=shares)])
    supply = np.concatenate([_supply(n, 1 / 6, 0.5, 6), _supply(n, shares, tight, 5)])
    return Instance(rng.random(n), _csr(chosen, np.ones((n, 2)), 11), supply, 2)


def tiny(n: int, rng: Rng) -> Instance:
    """One or two of three kinds of places: a market of a few hundred agents."""
    chosen = _chosen(n, 3, 2, rng)
    demands = _csr(chosen, np.column_stack([np.ones(n), rng.random(n) < 0.4]), 3)
    demands.eliminate_zeros()
    return Instance(
        rng.random(n), demands, np.ceil(_supply(n, 1.4 / 3, np.array([0.4, 0.6, 0.8]), 3)), 2
    )


Family = Callable[[int, Rng], Instance]

FAMILIES: dict[str, Family] = {
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
    "airports": airports,
    "destinations": destinations,
    "decades": decades,
    "gpu": gpu,
    "unequal-caps": unequal_caps,
    "loose-caps": loose_caps,
    "few-binding": few_binding,
    "priority": priority,
    "priority-sizes": priority_sizes,
    "machine": machine,
    "jobs": jobs,
    "heavy-tail": heavy_tail,
    "loose-values": loose_values,
    "substitutes": substitutes,
    "half-hours": half_hours,
    "season": season,
    "shelves": shelves,
    "groups": groups,
    "tiny": tiny,
}

SIZES: dict[str, list[int]] = {"tiny": [250, 500]}
"""Families that have their own numbers of agents."""
