"""Private: a packing linear program as a market, for people who come from LP solvers.

Maximise c x such that A x <= b and 0 <= x <= 1, where A, b and c are not negative. A row of A is a
resource, and b its supply. A column is one agent, or one option of an agent: then the variables of
one agent sum to at most 1. A column of A and its entry of c are that agent's record, so they are
private. b is public, and so are bounds on the entries of A and c.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jdpack.common import checks
from jdpack.errors import AgentsError, MarketError
from jdpack.market.market import Market
from jdpack.run.result import Result
from jdpack.run.solve import solve

_FITS = (
    "jdpack takes packing programs: A, b and c are not negative, and every row is A x <= b. "
    "Equalities, floors (>=) and variables without a limit do not fit; docs/from-lp.md says what "
    "to do instead"
)


@dataclass(frozen=True)
class LinearProgram:
    """A packing program: a public market, and private records. Make one with `from_lp`."""

    market: Market
    """Public: the rows, and the bounds."""
    values: NDArray[np.float64] = field(repr=False)
    """Private: c, in the order of `order`."""
    demands: Any = field(repr=False)
    """Private: the transpose of A, in the order of `order`."""
    agents: NDArray[Any] | None = field(repr=False)
    """The agent of each variable, in the order of `order`; None if each is one agent."""
    order: NDArray[np.int64] = field(repr=False)
    """The variables, with those of one agent together."""

    def solve(self, **settings: Any) -> Result:
        """`jdpack.solve` on this program; takes its keyword arguments (epsilon, delta, seed, ...).

        `prices` of the result are the duals of the rows, by name, and public. `slacks` are what is
        left of b, by name, and private.
        """
        return solve(
            self.market, values=self.values, demands=self.demands, ids=self.agents, **settings
        )

    def x(self, result: Result) -> NDArray[np.float64]:
        """Private: the solution, in the order of the columns of A."""
        found = np.empty(len(self.order))
        found[self.order] = result.allocation
        return found


def from_lp(
    c: Any,
    A: Any,
    b: Any,
    *,
    max_value: float,
    max_demand: Any,
    agent_of: Any = None,
    options: int = 1,
    names: Any = None,
    divisible: bool = True,
    **market: Any,
) -> LinearProgram:
    """A packing program: maximise c x such that A x <= b and 0 <= x <= 1.

    Args:
        c: one value per variable, not negative. It is **maximised**.
        A: one row per resource and one column per variable: NumPy, SciPy sparse, or a data frame
            whose index has the names of the rows. No entry is negative.
        b: the supply of each row; a dict by name, a Series, or a list.
        max_value, max_demand: public bounds on the entries of c, and of A (one for all rows, or one
            per row). They come from the rules of your market: the largest entry of c or A would
            publish somebody's record.
        agent_of: the agent of each variable, if agents have several: they then sum to at most 1.
        options: with `agent_of`, the most variables of one agent. Public.
        names: the names of the rows, if neither A nor b has them.
        divisible: whether x may be a fraction. If not, x is 0 or 1.
        market: more arguments of `Market`, such as epsilon, delta, bundle_size and units.

    Raises MarketError or AgentsError, with what does not fit, before anything is spent.
    """
    rows = getattr(A, "index", None)
    if names is None and rows is not None and all(isinstance(name, str) for name in rows):
        names = list(rows)
    if checks.is_named(b):
        names = list(b.keys()) if names is None else names
        b = checks.by_name("b", b, list(names))
    supply, values = _vector("b", b), _vector("c", c)
    matrix = A.tocsr() if hasattr(A, "tocsr") else np.asarray(A, dtype=np.float64)
    if matrix.shape != (len(supply), len(values)):
        raise MarketError(
            f"A has the shape {matrix.shape}, not ({len(supply)}, {len(values)})",
            "give one row per entry of b, and one column per entry of c",
        )
    names = [f"row {j + 1}" for j in range(len(supply))] if names is None else list(names)
    _check_signs(supply, values, matrix, names)
    agents, order = None, np.arange(len(values))
    if agent_of is not None:
        agents = np.asarray(agent_of)
        if len(agents) != len(values):
            raise AgentsError(f"agent_of has {len(agents)} entries for {len(values)} variables")
        _, firsts, number = np.unique(agents, return_index=True, return_inverse=True)
        order = np.argsort(firsts[number], kind="stable")
        agents = agents[order]
        count = len(firsts)
    else:
        count = len(values)
    public = Market(
        supply=supply.tolist(),
        max_demand=max_demand,
        max_value=max_value,
        agents=market.pop("agents", count),
        options=options,
        names=names,
        divisible=divisible,
        **market,
    )
    columns = matrix.T.tocsr() if hasattr(matrix, "tocsr") else matrix.T
    return LinearProgram(public, values[order], columns[order], agents, order)


def _vector(what: str, given: Any) -> NDArray[np.float64]:
    try:
        vector = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise MarketError(f"{what} is not a vector of numbers") from None
    if vector.ndim != 1 or not len(vector):
        raise MarketError(f"{what} has the shape {vector.shape}, but must be a vector")
    return vector


def _check_signs(
    supply: NDArray[np.float64], values: NDArray[np.float64], matrix: Any, names: list[str]
) -> None:
    """Refuse anything that is not a packing program, and name the entry."""
    if not (supply > 0.0).all():
        j = int(np.flatnonzero(~(supply > 0.0))[0])
        raise MarketError(f"b is {supply[j]:g} in row {names[j]!r}", _FITS)
    if not (values >= 0.0).all():
        i = int(np.flatnonzero(~(values >= 0.0))[0])
        raise AgentsError(
            f"c is {values[i]:g} for variable {i}",
            "c is maximised: if your solver minimises, give it with the other sign; leave out "
            "variables that only cost something",
        )
    data = matrix.tocoo() if hasattr(matrix, "tocoo") else None
    numbers = matrix if data is None else data.data
    bad = np.argwhere(~(numbers >= 0.0))
    if len(bad):
        at = int(bad[0][0])
        j, i = (int(data.row[at]), int(data.col[at])) if data is not None else map(int, bad[0])
        raise AgentsError(
            f"A is {numbers[tuple(bad[0])]:g} in row {names[j]!r} for variable {i}", _FITS
        )
