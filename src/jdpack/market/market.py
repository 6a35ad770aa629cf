"""Public: the market, its grid of exact integers, and the sensitivity of every query.

A market is written down before any record is read, and nothing in it may be computed from the
records. It fixes the bounds that every record obeys (or is clamped to), and therefore how much
one agent can move any sum.

The grid
--------
The private side computes in integers only. One *demand code* is the same fraction u of every
supply, u = max_j (c_j / b_j) / 65535, with c_j the cap and b_j the supply of resource j.

* `unit_sizes[j]`, the amount of resource j that one code stands for, is u b_j rounded **up** to
  37 significant bits. A code has at most 16 bits, so code * unit_size is exact in a double, and
  the code of an amount, the least integer whose amount is no smaller, is decided without rounding
  error in any language.
* `supply_code` S is the largest integer with S * unit_sizes[j] <= b_j for every j. So codes that
  add up to at most S stand for amounts that add up to at most the supply: what fits in codes fits
  in truth.
* A *value code* is a 32-bit integer: the largest whose value, at `value_step` each (21
  significant bits, so the product is exact again), is no larger than the record's.
* A *price code* is an integer number of price units for one demand code; a value code is worth
  2^20 price units, so every value is below 2^52 of them. An agent takes an option only if
  cost = sum_j code_j * price_j <= value. In doubles, while the true sum is below 2^53 every
  partial sum is an exact integer; once it passes 2^53 the option is unaffordable however the rest
  is rounded. All languages, orders and engines decide alike.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jdpack.common import checks
from jdpack.errors import MarketError
from jdpack.market.file import FILE_MAX, parse
from jdpack.market.grid import (
    AGENTS_MAX,
    CURVATURE_UNIT,
    DEMAND_CODE_MAX,
    PRICE_UNITS_PER_VALUE_CODE,
    RESOURCES_MAX,
    SUPPLY_CODE_MAX,
    VALUE_CODE_MAX,
    round_up,
)
from jdpack.storage.files import read_regular

Query = Literal["demand", "scale", "value", "curvature", "gauge", "welfare", "granted", "luck"]
CLOSING: tuple[Query, ...] = ("welfare", "granted", "luck")
"""Queries about the allocation of the rounds so far; the others are about posted prices."""

Layout = Literal["wide", "long"]


class Neighbours(enum.Enum):
    """Which data sets the guarantee makes indistinguishable."""

    REPLACE_ONE = "replace-one"
    """One agent's record is replaced by another; the number of agents is public and exact."""

    ADD_REMOVE = "add-remove"
    """One agent is added or removed; the public number of agents is only an upper bound."""


@dataclass(frozen=True)
class Resource:
    """One scarce good: how much there is, and the most that one option may ask of it."""

    name: str
    """Shown to people."""
    supply: float
    """How much there is, in its own unit."""
    max_demand: float
    """The most that one option may ask of it."""
    unit: str = ""
    """Shown to people."""
    column: str = ""
    """Its name in tables of agents."""


@dataclass(frozen=True)
class Columns:
    """How the table of agents is laid out. Names only, so public."""

    id: str = "id"
    """The column of ids."""
    value: str = "value"
    """The column of values."""
    layout: Layout = "wide"
    """One row an option, with a column a resource; or "long", one row an amount."""
    option: str = "option"
    """Long tables: the column that tells an agent's options apart."""
    resource: str = "resource"
    """Long tables: the column of the resource's name."""
    amount: str = "amount"
    """Long tables: the column of the amount."""
    ignore: tuple[str, ...] = ()
    """Columns that may be there, and are not read."""


@dataclass(frozen=True, init=False)
class Market:
    """The public market.

    Args:
        supply: the supply b_j of each resource, in its own unit.
        max_demand: the cap c_j <= b_j, the most that one option may demand; one, or one each.
        max_value: the value cap V.
        agents: how many agents there are (with ADD_REMOVE: at most).
        bundle_size: the most resources that one option may touch; all of them if not given.
        options: the most options that one agent may have; it takes at most one of them.
        neighbours: the neighbour relation of the privacy guarantee.
        divisible: whether an agent may get a fraction of its option.
        names, units: one each a resource; shown to people.
        resource_columns: what each resource is called in tables of agents; its name if not given.
        name: what the market is called; shown to people.
        epsilon, delta: the privacy budget, unless `solve` is given another.
        columns: how tables of agents are laid out.
    """

    name: str
    resources: tuple[Resource, ...]
    max_value: float
    agents: int
    bundle_size: int
    options: int
    neighbours: Neighbours
    divisible: bool
    epsilon: float | None
    delta: float | None
    columns: Columns

    def __init__(
        self,
        *,
        supply: Sequence[float],
        max_demand: float | Sequence[float],
        max_value: float,
        agents: int,
        bundle_size: int | None = None,
        options: int = 1,
        neighbours: Neighbours | str = Neighbours.REPLACE_ONE,
        divisible: bool = False,
        names: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
        resource_columns: Sequence[str] | None = None,
        name: str = "market",
        epsilon: float | None = None,
        delta: float | None = None,
        columns: Columns | None = None,
    ) -> None:
        supplies = [checks.positive("supply", s) for s in checks.sequence("supply", supply)]
        m = len(supplies)
        if not 1 <= m <= RESOURCES_MAX:
            raise MarketError(f"a market has 1 to {RESOURCES_MAX} resources, not {m}")
        each = [max_demand] * m if np.ndim(max_demand) == 0 else max_demand
        caps = [checks.positive("max_demand", c) for c in checks.sequence("max_demand", each)]
        labels = list(names) if names is not None else [f"resource {j + 1}" for j in range(m)]
        shown = list(units) if units is not None else [""] * m
        columns_of = list(resource_columns) if resource_columns is not None else list(labels)
        lists: list[tuple[str, Sequence[object]]] = [
            ("max_demand", caps),
            ("names", labels),
            ("units", shown),
            ("resource_columns", columns_of),
        ]
        for what, given in lists:
            if len(given) != m:
                raise MarketError(f"{what} has {len(given)} entries for {m} resources")
        resources = tuple(
            Resource(
                checks.text("name", n), b, c, checks.text("unit", u), checks.text("column", col)
            )
            for n, b, c, u, col in zip(labels, supplies, caps, shown, columns_of, strict=True)
        )
        put = object.__setattr__
        put(self, "name", checks.text("name", name))
        put(self, "resources", resources)
        put(self, "max_value", checks.positive("max_value", max_value))
        put(self, "agents", checks.count("agents", agents, AGENTS_MAX))
        size = m if bundle_size is None else checks.count("bundle_size", bundle_size, RESOURCES_MAX)
        put(self, "bundle_size", min(size, m))
        put(self, "options", checks.count("options", options, 1000))
        try:
            put(self, "neighbours", Neighbours(neighbours))
        except ValueError:
            known = ", ".join(n.value for n in Neighbours)
            raise MarketError(
                f"neighbours {checks.quoted(neighbours)} is not a neighbour relation",
                f"one of: {known}",
            ) from None
        if not isinstance(divisible, bool):
            raise MarketError(f"divisible must be true or false, not {checks.quoted(divisible)}")
        put(self, "divisible", divisible)
        put(self, "epsilon", None if epsilon is None else checks.finite("epsilon", epsilon))
        put(self, "delta", None if delta is None else checks.finite("delta", delta))
        put(self, "columns", columns if columns is not None else Columns())
        self._check()

    def _check(self) -> None:
        c = self.columns
        if not all(isinstance(column, str) for column in c.ignore):
            listed = checks.quoted(c.ignore)
            raise MarketError(f"ignore must list names of columns, not {listed}")
        for column in (c.id, c.value, c.option, c.resource, c.amount, *c.ignore):
            checks.text("column", column)
        for r in self.resources:
            if r.max_demand > r.supply:
                raise MarketError(
                    f"resource {r.name!r}: max_demand {r.max_demand:g} is above its supply "
                    f"{r.supply:g}",
                    "one option may never ask for more than there is; lower max_demand",
                )
        for what, values in [
            ("name", [r.name for r in self.resources]),
            ("column", [r.column for r in self.resources]),
        ]:
            twice = sorted(v for v, times in Counter(values).items() if times > 1)
            if twice:
                raise MarketError(f"two resources have the {what} {twice[0]!r}")
        if self.columns.id == self.columns.value:
            raise MarketError(f"column {self.columns.id!r} is named for both id and value")
        clash = {self.columns.id, self.columns.value} & {r.column for r in self.resources}
        if clash and self.columns.layout == "wide":
            raise MarketError(f"column {clash.pop()!r} is named for a resource and for id or value")
        if self.columns.layout not in ("wide", "long"):
            raise MarketError(f"layout {self.columns.layout!r} is not known", "one of: wide, long")
        if self.supply_code > SUPPLY_CODE_MAX:
            r = min(self.resources, key=lambda r: r.max_demand / r.supply)
            raise MarketError(
                f"max_demand is too small beside the supply: {r.max_demand:g} of {r.supply:g}",
                "such a resource cannot run out; leave it out of the market",
            )

    # --- the grid -------------------------------------------------------------------------

    @cached_property
    def unit_sizes(self) -> tuple[float, ...]:
        """The amount of each resource that one demand code stands for."""
        u = max(Fraction(r.max_demand) / Fraction(r.supply) for r in self.resources)
        u /= DEMAND_CODE_MAX
        return tuple(round_up(u * Fraction(r.supply), bits=37) for r in self.resources)

    @cached_property
    def supply_code(self) -> int:
        """S: codes that sum to at most S stand for amounts that sum to at most the supply."""
        return min(
            math.floor(Fraction(r.supply) / Fraction(w))
            for r, w in zip(self.resources, self.unit_sizes, strict=True)
        )

    @cached_property
    def cap_codes(self) -> tuple[int, ...]:
        """C_j: the code of the cap of each resource, the largest that a record can have."""
        return tuple(self.demand_code(j, r.max_demand) for j, r in enumerate(self.resources))

    @cached_property
    def value_step(self) -> float:
        """The value that one value code stands for."""
        return round_up(Fraction(self.max_value) / VALUE_CODE_MAX, bits=21)

    @cached_property
    def value_cap_code(self) -> int:
        """The code of the value cap V."""
        return self.value_code(self.max_value)

    def demand_code(self, resource: int, amount: float) -> int:
        """The least code that stands for at least `amount`; the product below is exact."""
        size = self.unit_sizes[resource]
        code = int(amount / size)
        return code + 1 if code * size < amount else code

    def value_code(self, value: float) -> int:
        """The largest code that stands for at most `value`; the product below is exact."""
        code = int(value / self.value_step)
        return code - 1 if code * self.value_step > value else code

    def unit_price(self, resource: int, price_code: int) -> float:
        """A price code in the user's terms: value for one unit of the resource."""
        per_code = price_code * self.value_step / PRICE_UNITS_PER_VALUE_CODE
        return per_code / self.unit_sizes[resource]

    # --- the sensitivities ----------------------------------------------------------------

    def shifts(self, query: Query) -> tuple[int, ...]:
        """How far one agent can move the answer to a query, coordinate by coordinate.

        Between neighbours at the same prices, the coordinates of the answer move, in some order,
        by at most these amounts in absolute value, and all other coordinates do not move. So the
        L2 sensitivity is the root of the sum of their squares.

        Formal guarantees. Write x for the one option that the differing agent takes in the first
        data set (the zero option if none, or if the agent is absent) and y for the second. Every
        other agent's choice depends on its own record and the posted prices alone, and so is the
        same in both. Every x_j and y_j lies in [0, C_j], and at most k = `bundle_size` of each
        are not zero.

        * demand, D_j = sum of the codes taken: D moves by x - y. Both are non-negative, so
          |x_j - y_j| <= max(x_j, y_j) <= C_j, and at most min(2k, m) coordinates differ: the
          min(2k, m) largest caps bound the moves. With ADD_REMOVE one of the two is the zero
          option: the k largest. Of a batch (`jdpack.common.batches`) the same: an agent's turn
          depends on its id and a public key alone, so the differing agent moves the answer of its
          own batch by x - y, and that of no other batch at all.
        * scale, max(S, max_j |S - D_j|): a maximum of functions that each move by at most
          max_j C_j moves by no more than that.
        * granted, the codes of what the agents' coins grant from the rounds so far: rounds and
          coins are public or drawn without regard to the records, so an agent's grant, at most
          one option, depends on its own record alone: as demand. (Of indivisible goods only:
          parts of several options would touch more.)
        * value, the value codes of the options taken, and welfare, those of the averaged
          allocation of the rounds so far, where the shares of an agent's options sum to at most
          1: one term in [0, value_cap_code] changes.
        * curvature, E_jk = sum of d_j t_k over the agents whose two best choices are close: here
          the **whole matrix** moves by at most the one number returned, in L2 (Frobenius) norm,
          so only Gaussian noise fits. d is the difference of the codes of the two choices (doing
          nothing is a choice of zero codes), and t_k = trunc(CURVATURE_UNIT d_k price_k / (cost_1
          + cost_2)). The |d_k| price_k sum to at most cost_1 + cost_2, so the integers |t_k| sum
          to at most CURVATURE_UNIT (rounding adds less than 2^-40 to each quotient, so less than
          1 to their sum), and |t|_2 <= |t|_1. An agent adds an outer product of norm
          |d|_2 |t|_2. With one option d is that option's codes: |d|_2^2 is at most the sum of the k
          largest squared caps, and all entries are non-negative, so two agents' matrices differ
          by at most sqrt(2) times the larger norm. With several options d has at most 2k entries,
          |d_j| <= C_j, of any sign, so they differ by at most twice the norm. With ADD_REMOVE one
          of the two matrices is zero.
        * gauge, the diagonal E_jj, the level and the spread: again **the whole vector** moves by
          at most the one number returned. With u = CURVATURE_UNIT and C the largest cap, an agent
          adds d_j t_j >= 0 to the diagonal, together at most max |d_j| sum |t_j| <= u C; to the
          level u (cost_1 - cost_2)^2 / ((cost_1 + cost_2) sum_j price_j), rounded down, where
          |cost_1 - cost_2| <= C sum_j price_j, so at most u C; to the spread what the diagonal's
          sum exceeds that by, if anything. Level and spread together are at most u C or the
          spread is 0, so the norm is at most sqrt(2) u C; entries are non-negative, so two agents
          differ by at most sqrt(2) times that, and with ADD_REMOVE by that alone.
        """
        if query in ("demand", "granted"):
            touched = self.bundle_size * (2 if self.neighbours is Neighbours.REPLACE_ONE else 1)
            return tuple(sorted(self.cap_codes, reverse=True)[:touched])
        if query == "scale":
            return (max(self.cap_codes),)
        if query == "curvature":
            several = self.options > 1
            largest = sorted(self.cap_codes, reverse=True)[: self.bundle_size * (1 + several)]
            squared = CURVATURE_UNIT**2 * sum(c * c for c in largest)
            if self.neighbours is Neighbours.REPLACE_ONE:
                squared *= 4 if several else 2
            return (math.isqrt(squared - 1) + 1,)
        if query == "gauge":
            squared = 2 * (CURVATURE_UNIT * max(self.cap_codes)) ** 2
            if self.neighbours is Neighbours.REPLACE_ONE:
                squared *= 2
            return (math.isqrt(squared - 1) + 1,)
        return (self.value_cap_code,)

    def luck_shifts(self, bound: int, *, thinned: bool) -> tuple[int, ...]:
        """As `shifts`, for the query luck: the value that coins give beyond the average.

        Formal guarantees. An agent adds the value codes of what it is given minus those of its
        averaged share, cut to [-bound, bound]; so two agents differ by at most 2 bound, and with
        ADD_REMOVE one of them is absent and adds 0. With one option and no thinning they differ
        by at most bound + 1, if bound is no less than what any option cost in any round
        (`closing.dearest`) or than the value cap: an agent's coin u (in [0, 1)) depends on its id
        and the seed alone, which neighbours share. With value v and averaged share x it is
        granted its option if u < x, and adds v (1 - x) < v (1 - u), else -v x >= -v u. If
        v > bound, the option was taken in every round, so x = 1 and the agent adds 0. So all
        agents with this coin add numbers between -bound u and bound (1 - u), rounded by less
        than 1.
        """
        if self.neighbours is Neighbours.ADD_REMOVE:
            return (bound,)
        return (bound + 1,) if self.options == 1 and not thinned else (2 * bound,)

    def width(self, query: Query) -> int:
        """How many numbers the answer to a query has."""
        m = len(self.resources)
        widths: dict[Query, int] = {"demand": m, "granted": m, "curvature": m * m, "gauge": m + 2}
        return widths.get(query, 1)

    # --- in and out -----------------------------------------------------------------------

    @classmethod
    def from_toml(cls, path: str | Path) -> Market:
        """Read a market file; `docs/market-file.md` describes every key."""
        try:
            text = read_regular(path, FILE_MAX).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise MarketError(f"cannot read market file {str(path)!r}: {error}") from None
        try:
            data = parse(text)
        except (ValueError, RecursionError) as error:
            raise MarketError(f"{str(path)!r} is not a TOML file: {error}") from None
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Market:
        """The market of a parsed market file, and of a billboard's header."""
        top = checks.Section("the market", data)
        privacy = checks.Section("[privacy]", top.table("privacy", {}))
        value = checks.Section("[value]", top.table("value"))
        agents = checks.Section("[agents]", top.table("agents"))
        entries = top.take("resource", list)
        resources = [
            checks.Section(f"[[resource]] {i + 1}", entry) for i, entry in enumerate(entries)
        ]
        names = [r.take("name", str) for r in resources]
        columns = Columns(
            id=agents.take("id", str, "id"),
            value=value.take("column", str, "value"),
            layout=agents.take("layout", str, "wide"),
            option=agents.take("option", str, "option"),
            resource=agents.take("resource", str, "resource"),
            amount=agents.take("amount", str, "amount"),
            ignore=tuple(agents.take("ignore", list, [])),
        )
        market = cls(
            name=top.take("name", str, "market"),
            divisible=top.take("divisible", bool, False),
            epsilon=privacy.number("epsilon", None),
            delta=privacy.number("delta", None),
            neighbours=privacy.take("neighbours", str, Neighbours.REPLACE_ONE.value),
            max_value=value.number("max"),
            agents=agents.take("count", int),
            bundle_size=agents.take("bundle_size", int, None),
            options=agents.take("options", int, 1),
            supply=[r.number("supply") for r in resources],
            max_demand=[r.number("max_demand") for r in resources],
            names=names,
            units=[r.take("unit", str, "") for r in resources],
            resource_columns=[
                r.take("column", str, n) for r, n in zip(resources, names, strict=True)
            ],
            columns=columns,
        )
        for section in [top, privacy, value, agents, *resources]:
            section.close()
        return market

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`; what the billboard's header carries."""
        privacy: dict[str, Any] = {"neighbours": self.neighbours.value}
        if self.epsilon is not None:
            privacy["epsilon"] = self.epsilon
        if self.delta is not None:
            privacy["delta"] = self.delta
        return {
            "name": self.name,
            "divisible": self.divisible,
            "privacy": privacy,
            "value": {"column": self.columns.value, "max": self.max_value},
            "agents": {
                "count": self.agents,
                "bundle_size": self.bundle_size,
                "options": self.options,
                "id": self.columns.id,
                "layout": self.columns.layout,
                "option": self.columns.option,
                "resource": self.columns.resource,
                "amount": self.columns.amount,
                "ignore": list(self.columns.ignore),
            },
            "resource": [
                {
                    "name": r.name,
                    "supply": r.supply,
                    "max_demand": r.max_demand,
                    "unit": r.unit,
                    "column": r.column,
                }
                for r in self.resources
            ],
        }
