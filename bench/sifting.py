"""Sifting, as strong as we could make it: a peer of jdpack for markets with one option per agent.

Sifting (Bixby, Gregory, Lustig, Marsten & Shanno 1992) solves a linear program of few rows and very
many columns. At prices that are almost right, nearly all agents are far from changing their minds:
they stay at their better bound, 0 or 1, and a *master* program has the columns of the others. What
makes it fast here:

* The first prices come from a sample of the agents, whose own come from a smaller one, and so on.
* A column of the master is a change of mind. Its cost is what the agent loses by it at the first
  prices, which is never negative. So HiGHS's dual simplex starts at those prices from a basis
  without any column, and its duals are changes of prices.
* Columns that turn out to be at the wrong bound are added, the worst first, and the primal simplex
  continues from the last basis.
* Threads price all agents in chunks that stay in the cache; a chunk is one matrix-vector product of
  BLAS, and the load of its takers another. Few passes over all agents are needed: one before the
  master, and one after it, which gives the proof.

It stops when duality proves the value of its allocation within the tolerance: D(p) = b p +
sum_i max(0, v_i - a_i p) is above every allocation, whatever the prices p >= 0.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CHUNK = 2**14
"""Agents that are priced together: about 1.5 MB with ten resources."""
_BEYOND = 1e3  # what one unit above supply costs, in prices
_PRIMAL, _DUAL = 4, 1  # HiGHS's names of the simplex methods


@dataclass(frozen=True)
class Settings:
    """The best of about thirty choices at 2,000,000 x 10, many of which took twice as long.

    Fewer columns in the master are slower, not faster, because it can then hardly meet supply.
    """

    first: int = 2_000
    """The smallest sample, which has all its columns in the master."""
    ratio: int = 16
    """The next larger sample has this many times as many agents."""
    near: float = 7.0
    """The columns of the master, in units of n / sqrt(agents of the sample)."""
    more: float = 0.5
    """The columns that a later master may add, as a fraction of those of the first."""
    loose: float = 5.0
    """A sample is solved to a gap of this over its number of agents."""
    most: int = 100
    """Masters before it gives up."""


@dataclass(frozen=True)
class Sifted:
    """An allocation, and the prices that prove how good it is."""

    value: float
    bound: float
    prices: Floats
    shares: Floats = field(repr=False)
    masters: int
    columns: int

    @property
    def gap(self) -> float:
        return (self.bound - self.value) / self.bound if self.bound > 0.0 else 0.0


def sift(
    values: Floats,
    demands: Floats,
    supply: Floats,
    gap: float = 1e-4,
    threads: int | None = None,
    settings: Settings = Settings(),  # noqa: B008 - it is frozen
) -> Sifted:
    """Maximise values x such that demands.T x <= supply and 0 <= x <= 1, within a relative gap."""
    n, rng = len(values), np.random.default_rng(0)
    sizes = [n]
    while sizes[-1] > settings.first:
        sizes.append(max(settings.first, sizes[-1] // settings.ratio))
    prices, before = np.zeros(len(supply)), 0
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        for size in sizes[:0:-1]:
            rows = rng.integers(0, n, size)
            agents = _Agents(values[rows], demands[rows], supply * (size / n), pool)
            prices, before = (
                _sift(agents, prices, before, settings, settings.loose / size).prices,
                size,
            )
        return _sift(_Agents(values, demands, supply, pool), prices, before, settings, gap)


def _sift(agents: _Agents, prices: Floats, sample: int, settings: Settings, gap: float) -> Sifted:
    """From first prices, which come from a sample of this size, to those of all agents."""
    master = _Master(agents, prices, sample, settings)
    bound = master.priced.bound
    for count in range(1, settings.most + 1):
        prices = master.solve(_DUAL if count == 1 else _PRIMAL)
        priced, shares = agents.price(prices), master.shares()
        bound = min(bound, priced.bound)
        value = float(agents.values @ shares)
        found = Sifted(value, bound, prices, shares, count, len(master.rows))
        if found.gap <= gap or not master.add(priced.surplus):
            break
    return found


@dataclass(frozen=True)
class _Priced:
    """All agents at some prices."""

    surplus: Floats
    load: Floats
    """The total demand of those with a surplus."""
    bound: float
    """The dual value."""


@dataclass(frozen=True)
class _Agents:
    values: Floats
    demands: Floats
    supply: Floats
    pool: ThreadPoolExecutor

    def price(self, prices: Floats) -> _Priced:
        surplus = np.empty(len(self.values))

        def chunk(start: int) -> tuple[Floats, float]:
            rows = slice(start, start + CHUNK)
            some, demands = surplus[rows], self.demands[rows]
            np.subtract(self.values[rows], demands @ prices, out=some)
            takes = (some > 0.0).astype(np.float64)
            return takes @ demands, float(takes @ some)

        done = list(self.pool.map(chunk, range(0, len(surplus), CHUNK)))
        load = np.sum([load for load, _ in done], axis=0)
        return _Priced(surplus, load, float(self.supply @ prices) + sum(s for _, s in done))


class _Master:
    """The agents that are nearly indifferent at some prices; the others take their better bound."""

    def __init__(self, agents: _Agents, prices: Floats, sample: int, settings: Settings) -> None:
        self.agents, self.prices = agents, prices
        self.priced = agents.price(prices)
        n, m = agents.demands.shape
        width = min(n, int(settings.near * n / np.sqrt(sample)) if sample else n)
        self.most = max(100, int(settings.more * width))
        self.rows = self._nearest(width)
        self.kept = np.zeros(n, bool)
        self.kept[self.rows] = True
        self.takes = self.priced.surplus > 0.0
        # Units in which prices, amounts and costs are about 1.
        self.money = float(agents.values.mean()) or 1.0
        self.amount = np.maximum(agents.demands[self.rows].mean(axis=0), 1e-9)
        spare = (agents.supply - self.priced.load) / self.amount
        dual = prices * self.amount / self.money
        self.solver: Any = highspy.Highs()
        off = {"output_flag": False, "solver": "simplex", "presolve": "off", "parallel": "off"}
        for name, value in off.items():
            self.solver.setOptionValue(name, value)
        lp = highspy.HighsLp()  # m columns for unused supply, then m for what exceeds it
        lp.num_col_, lp.num_row_ = 2 * m, m
        beyond = _BEYOND * (dual + float(dual.mean()) + 1.0)
        lp.col_cost_ = np.concatenate([dual, beyond])
        lp.col_lower_, lp.col_upper_ = np.zeros(2 * m), np.full(2 * m, np.inf)
        lp.row_lower_ = lp.row_upper_ = spare
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = np.arange(2 * m + 1)
        lp.a_matrix_.index_ = np.tile(np.arange(m), 2)
        lp.a_matrix_.value_ = np.repeat([1.0, -1.0], m)
        self.solver.passModel(lp)
        self._pass(self.rows)

    def _nearest(self, width: int) -> Ints:
        """About `width` agents of least |surplus|; a sample tells where to cut."""
        distance = np.abs(self.priced.surplus)
        if width >= len(distance):
            return np.arange(len(distance))
        some = distance[:: max(1, len(distance) // 50_000)]
        place = min(len(some) - 1, int(width / len(distance) * len(some)))
        return np.flatnonzero(distance <= np.partition(some, place)[place])

    def _pass(self, rows: Ints) -> None:
        """Give the solver the columns of some agents."""
        changes = self.agents.demands[rows] / self.amount
        changes[self.takes[rows]] *= -1.0
        count, m = changes.shape
        cost = np.abs(self.priced.surplus[rows]) / self.money
        starts = np.arange(0, count * m, m, dtype=np.int32)
        index = np.tile(np.arange(m, dtype=np.int32), count)
        lower, upper = np.zeros(count), np.ones(count)
        self.solver.addCols(count, cost, lower, upper, changes.size, starts, index, changes.ravel())

    def solve(self, method: int) -> Floats:
        """The prices of the master."""
        self.solver.setOptionValue("simplex_strategy", method)
        self.solver.run()
        status = self.solver.getModelStatus()
        assert status == highspy.HighsModelStatus.kOptimal, status
        duals = np.asarray(self.solver.getSolution().row_dual)
        return np.maximum(self.prices - duals * self.money / self.amount, 0.0)

    def shares(self) -> Floats:
        """What all agents get, scaled down if the master is above a supply."""
        m = len(self.prices)
        found = np.asarray(self.solver.getSolution().col_value)
        changed = np.clip(found[2 * m :], 0.0, 1.0)
        shares = self.takes.astype(np.float64)
        shares[self.rows] = np.where(self.takes[self.rows], 1.0 - changed, changed)
        change = (shares[self.rows] - self.takes[self.rows]) @ self.agents.demands[self.rows]
        load = self.priced.load + change
        shares /= max(1.0, float((load / self.agents.supply).max()))
        return shares

    def add(self, surplus: Floats) -> bool:
        """Add the agents at the wrong bound, biggest losers first; whether there were any."""
        lost = np.where(self.takes, -surplus, surplus)
        lost[self.kept] = 0.0
        wrong = np.flatnonzero(lost > 0.0)
        if len(wrong) > self.most:
            wrong = wrong[np.argpartition(-lost[wrong], self.most)[: self.most]]
        if len(wrong):
            self._pass(wrong)
            self.kept[wrong] = True
            self.rows = np.concatenate([self.rows, wrong])
        return len(wrong) > 0
