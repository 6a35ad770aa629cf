"""Private: the optimum without privacy, with its proof. Losses are measured against it.

The best total value of a market is a linear program: maximise sum v x, subject to the supplies, at
most one option per agent, and 0 <= x <= 1. Its dual has one price per resource: at any prices
p >= 0, D(p) = sum_j p_j b_j + sum_i max(0, the largest surplus of agent i) is at least the optimum.
So a feasible allocation that is worth D(p) is optimal, and the prices prove it.

The method is sifting (Bixby, Gregory, Lustig, Marsten & Shanno 1992). At prices that are almost
right, nearly all agents are far from changing their minds. They keep their best choice, and only
alternatives that are almost as good become columns of a small program, which HiGHS solves. Its
prices are put to all agents. If D is above what the allocation is worth, the next small program
starts from there. The first prices come from a sample of the agents, with supplies in proportion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jdpack.errors import AgentsError, JdpackError
from jdpack.records.hashes import mix_all

try:
    import highspy
    import scipy.sparse as sparse  # type: ignore[import-untyped]
except ImportError as missing:
    raise JdpackError(
        f"the optimum needs HiGHS and SciPy, and {missing.name} is not installed",
        "pip install 'jdpack[experiments]'",
    ) from None

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FEW = 4000  # up to this many options, or an eighth as many agents, there is no sample
_RATIO = 8  # a sample has one agent in this many
_TIED = 1e-9  # surpluses that are closer, relative to costs, differ only by rounding
_CELLS = 2**22  # numbers handled together
_NOTHING = -1  # the "row" of an agent that takes nothing


@dataclass(frozen=True)
class Optimum:
    """Private: a best allocation, and the prices that prove it."""

    value: float
    """The total value of `shares`, which are feasible."""
    bound: float
    """No allocation is worth more: D at `prices`."""
    prices: Floats
    """The value of one unit of each resource."""
    shares: Floats
    """How much each row gets of its option."""


def optimum(
    values: Any, demands: Any, supply: Any, agents: Any = None, *, tolerance: float = 1e-9
) -> Optimum:
    """The best total value that fractions of options can have, with its proof.

    Args:
        values: the value of each option.
        demands: one row per option, one column per resource; NumPy or SciPy sparse.
        supply: the supply of each resource.
        agents: the agent of each option; options of one agent are adjacent. If not given, each
            option has its own agent.
        tolerance: the relative gap between value and bound that is accepted.
    """
    problem = _problem(values, demands, supply, agents)
    found = _sift(problem, tolerance)
    if found.bound - found.value > tolerance * found.bound:
        raise JdpackError(
            f"the optimum is between {found.value!r} and {found.bound!r}, "
            "but no closer bounds were found",
            "accept that with a larger tolerance",
        )
    return found


# --- the problem --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Problem:
    """Options row by row. `starts` has each agent's first row; None if each has one option."""

    values: Floats
    demands: Any
    supply: Floats
    starts: Ints | None

    @property
    def rows(self) -> int:
        return len(self.values)

    @property
    def count(self) -> int:
        return self.rows if self.starts is None else len(self.starts)

    def owners(self) -> Ints:
        """The agent of each row."""
        if self.starts is None:
            return np.arange(self.rows)
        return np.repeat(np.arange(self.count), np.diff(self.starts, append=self.rows))

    def sample(self) -> _Problem:
        """One agent in `_RATIO`, and supplies in proportion."""
        chosen = mix_all(np.arange(self.count, dtype=np.uint64)) % np.uint64(_RATIO) == 0
        rows, starts = np.flatnonzero(chosen[self.owners()]), None
        if self.starts is not None:
            sizes = np.diff(self.starts, append=self.rows)[chosen]
            starts = np.cumsum(sizes) - sizes
        supply = self.supply * float(chosen.mean())
        return _Problem(self.values[rows], self.demands[rows], supply, starts)

    def change(self, new: Ints, old: Ints) -> Any:
        """How demand changes from one choice to another, row by row."""
        return _rows_of(self.demands, new) - _rows_of(self.demands, old)


def _problem(values: Any, demands: Any, supply: Any, agents: Any) -> _Problem:
    v, b = np.asarray(values, np.float64), np.asarray(supply, np.float64)
    a: Any = demands.tocsr() if hasattr(demands, "tocsr") else np.asarray(demands)
    a = a.astype(np.float64, copy=False)
    if v.ndim != 1 or b.ndim != 1 or a.shape != (len(v), len(b)) or not len(b):
        shapes = f"{v.shape}, {a.shape} and {b.shape}"
        raise AgentsError(f"values, demands and supply have shapes {shapes}, which do not fit")
    for what, numbers, least in [
        ("values", v, -math.inf),
        ("demands", a if isinstance(a, np.ndarray) else a.data, 0.0),
        ("supply", b, math.ulp(0.0)),
    ]:
        good = np.isfinite(numbers) & (numbers >= least)
        if not good.all():
            raise AgentsError(
                f"{what} include {float(numbers[~good][0])!r}",
                "all are finite, no demand is below 0 and every supply is above 0",
            )
    if agents is None:
        return _Problem(v, a, b, None)
    ids = np.asarray(agents)
    if ids.shape != v.shape:
        raise AgentsError(f"there are {len(ids)} agents for {len(v)} values")
    new = np.ones(len(ids), bool)
    new[1:] = ids[1:] != ids[:-1]
    starts = np.flatnonzero(new)
    if len(np.unique(ids[starts])) < len(starts):
        raise AgentsError("the options of an agent are not adjacent", "sort them by agent")
    return _Problem(v, a, b, starts if len(starts) < len(v) else None)


def _rows_of(matrix: Any, rows: Ints) -> Any:
    """Some rows of a matrix; zero for an agent that takes nothing."""
    picked = matrix[np.maximum(rows, 0)]
    if isinstance(picked, np.ndarray):
        picked[rows == _NOTHING] = 0.0
        return picked
    picked.data *= np.repeat(rows != _NOTHING, np.diff(picked.indptr))
    return picked


# --- choices at given prices --------------------------------------------------------------


@dataclass(frozen=True)
class _Choices:
    """The best choice of every agent, and all the alternatives to it."""

    bound: float
    base: Ints
    """The row of each agent's best choice."""
    agent: Ints
    """The agent of each alternative."""
    row: Ints
    """The row of each alternative."""
    regret: Floats
    """How much worse each alternative is."""
    distance: Floats
    """The regret, relative to what both cost."""


def _choices(problem: _Problem, prices: Floats) -> _Choices:
    surplus = problem.values - problem.demands @ prices
    # What moves when prices move; the prices of free goods can move too.
    worth = prices * problem.supply
    moved = problem.demands @ (np.maximum(worth, 0.01 * worth.mean() or 1.0) / problem.supply)
    rows = np.arange(problem.rows)
    if problem.starts is None:
        takes = surplus > 0.0
        base, most = np.where(takes, rows, _NOTHING), np.maximum(surplus, 0.0)
        agent, row, regret = rows, np.where(takes, _NOTHING, rows), np.abs(surplus)
    else:
        owner = problem.owners()
        best = np.maximum.reduceat(surplus, problem.starts)
        most = np.maximum(best, 0.0)
        tops = np.flatnonzero(surplus == best[owner])
        first = tops[np.flatnonzero(np.diff(owner[tops], prepend=-1))]
        base = np.where(best > 0.0, first, _NOTHING)
        others, takers = np.flatnonzero(rows != base[owner]), np.flatnonzero(best > 0.0)
        agent = np.concatenate([owner[others], takers])
        row = np.concatenate([others, np.full(len(takers), _NOTHING)])
        regret = np.concatenate([(most[owner] - surplus)[others], most[takers]])
    cost = np.where(row == _NOTHING, 0.0, moved[row])
    cost += np.where(base == _NOTHING, 0.0, moved[base])[agent]
    distance = np.full(len(row), math.inf)
    np.divide(regret, cost, out=distance, where=cost > 0.0)
    distance[regret == 0.0] = 0.0
    bound = float(prices @ problem.supply) + float(most.sum())
    return _Choices(bound, base, agent, row, regret, distance)


# --- sifting ------------------------------------------------------------------------------


def _sift(problem: _Problem, tolerance: float) -> Optimum:
    m, prices, width = len(problem.supply), np.zeros(len(problem.supply)), problem.rows
    if problem.rows > _FEW and problem.count > _FEW // _RATIO:
        prices = _sift(problem.sample(), max(tolerance, 1e-6)).prices
        # Prices err like 1 / sqrt(agents in the sample); this many agents lie in between.
        width = _FEW + math.ceil(4.0 * math.sqrt(_RATIO * m * problem.count))
    choices = _choices(problem, prices)
    value, shares, last = 0.0, np.zeros(problem.rows), 3
    while choices.bound - value > tolerance * choices.bound and last:
        last -= width >= problem.rows  # the whole program: better prices only improve its rounding
        small = _Small(problem, prices, choices, _select(problem, prices, choices, width))
        x, new_prices = small.solve(whole=width >= problem.rows)
        new_value, new_shares = small.allocate(x)
        if new_value > value:
            value, shares = new_value, new_shares
        new_choices = _choices(problem, new_prices)
        if new_choices.bound < choices.bound:
            prices, choices = new_prices, new_choices
        width *= 2
    return Optimum(value, choices.bound, prices, shares)


@dataclass(frozen=True)
class _Selection:
    """The alternatives in a small program, and how they are grouped.

    Alternatives of one column are taken in equal shares; a unit takes at most one of its columns.
    """

    picked: Ints
    column: Ints
    unit: Ints


def _select(problem: _Problem, prices: Floats, choices: _Choices, width: int) -> _Selection:
    """The nearest `width` alternatives in separate columns, and all others that are tied.

    There may be many ties, for example if all agents are the same. It does not matter which of
    those agents change their minds, so they share columns. The kind of an alternative is a pair of
    resources: the one whose demand it raises most, and the one whose demand it lowers most. Agents
    with the same kinds of alternatives form a unit.
    """
    if width >= len(choices.row):
        every = np.arange(len(choices.row))
        return _Selection(every, every, choices.agent)
    near = np.argpartition(choices.distance, width)[:width]
    free = np.ones(problem.count, bool)
    free[choices.agent[near]] = False
    nearest = choices.distance <= max(_TIED, float(choices.distance[near].max()))
    tied = np.flatnonzero((choices.distance <= _TIED) & free[choices.agent])
    near = np.flatnonzero(nearest & ~free[choices.agent])  # an agent with all of its ties
    own = np.arange(len(near))
    if not len(tied):
        return _Selection(near, own, choices.agent[near])
    kinds: list[Ints] = []
    chunk = max(1, _CELLS // len(prices))
    for i in range(0, len(tied), chunk):
        some = tied[i : i + chunk]
        change = problem.change(choices.row[some], choices.base[choices.agent[some]])
        change = change if isinstance(change, np.ndarray) else change.toarray()
        change = change * (prices + 0.01 * prices.mean())
        kinds.append(change.argmax(axis=1) * len(prices) + change.argmin(axis=1))
    kind, agent = np.concatenate(kinds), choices.agent[tied]
    order = np.lexsort((kind, agent))
    first = np.ones(len(order), bool)  # of its kind
    first[1:] = (np.diff(agent[order]) != 0) | (np.diff(kind[order]) != 0)
    order = order[first]
    tied, kind, agent = tied[order], kind[order], agent[order]
    heads = np.flatnonzero(np.diff(agent, prepend=-1))
    marks = np.add.reduceat(mix_all(kind.astype(np.uint64)), heads)
    _, unit = np.unique(marks, return_inverse=True)
    unit = np.repeat(unit, np.diff(heads, append=len(agent)))
    _, column = np.unique(unit * (int(kind.max()) + 1) + kind, return_inverse=True)
    return _Selection(
        np.concatenate([near, tied]),
        np.concatenate([own, len(near) + column]),
        np.concatenate([choices.agent[near], problem.count + unit]),
    )


@dataclass(frozen=True)
class _Small:
    """The program of the selected alternatives."""

    problem: _Problem
    prices: Floats
    choices: _Choices
    selection: _Selection

    def solve(self, *, whole: bool) -> tuple[Floats, Floats]:
        """How far each picked alternative replaces its agent's best choice, and new prices.

        Minimise regret x + sum_j p_j unused_j + sum_j (cap_j - p_j) extra_j, such that change in
        demand + unused - extra = supply - demand of the best choices. The duals are changes of the
        prices, the dual simplex starts from the old prices, and `extra` keeps the program feasible.
        """
        p, c, m = self.problem, self.choices, len(self.prices)
        picked, column, unit = self.selection.picked, self.selection.column, self.selection.unit
        agent = c.agent[picked]
        size = np.bincount(column).astype(np.float64)
        mean = sparse.csr_matrix(
            (1.0 / size[column], (column, np.arange(len(agent)))),
            shape=(len(size), len(agent)),
        )
        change = sparse.csr_matrix(mean @ p.change(c.row[picked], c.base[agent]))
        regret = mean @ c.regret[picked]
        spare = p.supply - p.demands.T @ self._taken()
        cap = 1.001 * c.bound / p.supply  # above every optimal price
        if not whole and self.prices.any():  # stay close on a partial program
            cap = np.minimum(cap, 2.0 * self.prices + 0.1 * (self.prices @ p.supply) / p.supply)
        # Units in which typical numbers are about 1.
        total = np.bincount(change.indices, weights=abs(change.data), minlength=m)
        amount = total / np.maximum(np.bincount(change.indices, minlength=m), 1)
        amount = np.where(amount > 0.0, amount, p.supply)
        money = max(float(regret.mean()), 1e-3 * float(np.abs(p.values).mean()))
        # Units with several columns take at most one of them.
        _, ends = np.unique(column, return_index=True)
        _, who, times = np.unique(unit[ends], return_inverse=True, return_counts=True)
        several = np.flatnonzero(times[who] > 1)
        _, limit = np.unique(who[several], return_inverse=True)
        limits = sparse.csr_matrix(
            (1.0 / size[several], (several, limit)),
            shape=(len(size) + 2 * m, int(limit.max(initial=-1)) + 1),
        )
        eye = sparse.identity(m)
        x, duals = _highs(
            np.concatenate([regret, self.prices * amount, (cap - self.prices) * amount]) / money,
            np.concatenate([size, np.full(2 * m, math.inf)]),
            sparse.hstack([sparse.vstack([change.multiply(1.0 / amount), eye, -eye]), limits]),
            spare / amount,
        )
        x = np.clip(x[: len(size)] / size, 0.0, 1.0)[column]
        return x, np.maximum(self.prices - duals[:m] * money / amount, 0.0)

    def allocate(self, x: Floats) -> tuple[float, Floats]:
        """The shares of all rows, scaled so that everything fits, and what they are worth."""
        p, c = self.problem, self.choices
        agent, row = c.agent[self.selection.picked], c.row[self.selection.picked]
        base, shares = c.base[agent], self._taken()
        total = np.bincount(agent, weights=x, minlength=p.count)
        x = x / np.maximum(total, 1.0)[agent]
        np.subtract.at(shares, base[base != _NOTHING], x[base != _NOTHING])
        shares = np.maximum(shares, 0.0)
        shares[row[row != _NOTHING]] = x[row != _NOTHING]
        load = p.demands.T @ shares
        shares /= max(1.0, float((load / p.supply).max()))
        return float(p.values @ shares), shares

    def _taken(self) -> Floats:
        base, taken = self.choices.base, np.zeros(self.problem.rows)
        taken[base[base != _NOTHING]] = 1.0
        return taken


def _highs(cost: Floats, upper: Floats, columns: Any, right: Floats) -> tuple[Floats, Floats]:
    """Minimise cost x, 0 <= x <= upper. The first rows equal `right`; the others are at most 1."""
    columns = columns.tocsr()
    limits = columns.shape[1] - len(right)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns.shape
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, np.zeros(len(cost)), upper
    lp.row_lower_ = np.concatenate([right, np.full(limits, -math.inf)])
    lp.row_upper_ = np.concatenate([right, np.ones(limits)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = columns.indptr
    lp.a_matrix_.index_ = columns.indices
    lp.a_matrix_.value_ = columns.data
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("solver", "simplex")
    solver.setOptionValue("presolve", "off")  # it takes longer than everything else
    solver.setOptionValue("primal_feasibility_tolerance", 1e-9)
    solver.setOptionValue("dual_feasibility_tolerance", 1e-9)
    solver.passModel(lp)
    solver.run()
    found = solver.getSolution()
    if not (found.value_valid and found.dual_valid):
        raise JdpackError(f"HiGHS stopped: {solver.modelStatusToString(solver.getModelStatus())}")
    return np.asarray(found.col_value), np.asarray(found.row_dual)
