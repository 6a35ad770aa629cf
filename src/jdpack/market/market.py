"""Public: the market and its grid of exact integers.

A market is written down before any record is read, and nothing in it may be computed from the
records. It fixes the bounds that every record obeys (or is clamped to), and so how far one agent
can move any sum (`jdpack.privacy.queries`).

The grid
--------
The private side computes with integers only. One *demand code* is the same fraction u of every
supply: u = max_j (c_j / b_j) / 65535, where c_j is the cap and b_j the supply of resource j.

* `unit_sizes[j]` is the amount of resource j that one code stands for: u b_j rounded **up** to 37
  significant bits. A code has at most 16 bits, so code * unit_size is exact in a double. The code
  of an amount is the smallest integer that stands for at least that amount, so every language
  finds it without rounding error.
* `supply_code` S is the largest integer with S * unit_sizes[j] <= b_j for every j. So codes that
  add up to at most S stand for amounts that add up to at most the supply: what fits in codes fits
  in truth.
* A *value code* is a 32-bit integer: the largest one that stands for at most the record's value.
  Each is worth `value_step`, which has 21 significant bits, so the product is exact again.
* A *price code* is a whole number of price units per demand code. A value code is worth 2^20 price
  units, so every value is below 2^52 of them. An agent takes an option only if
  cost = sum_j code_j * price_j <= value. Computed in doubles, every partial sum is an exact integer
  while the true sum is below 2^53; beyond 2^53 the option is unaffordable however the rest is
  rounded. So all languages, summation orders and engines decide alike.
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
    DEMAND_CODE_MAX,
    PRICE_UNITS_PER_VALUE_CODE,
    RESOURCES_MAX,
    SUPPLY_CODE_MAX,
    VALUE_CODE_MAX,
    round_up,
)
from jdpack.storage.files import read_regular

Layout = Literal["wide", "long"]


class Neighbours(enum.Enum):
    """Which data sets the guarantee makes indistinguishable."""

    REPLACE_ONE = "replace-one"
    """One agent's record is replaced by another; the number of agents is public and exact."""

    ADD_REMOVE = "add-remove"
    """One agent is added or removed; the public number of agents is only an upper bound."""


@dataclass(frozen=True)
class Resource:
    """A kind of thing with a supply, and the most that one option may ask of it."""

    name: str
    """Shown to people."""
    supply: float
    """How much there is, in its own unit."""
    max_demand: float
    """The most that one option may ask of it."""
    unit: str = ""
    """Shown to people."""
    column: str = ""
    """Its column in tables of agents."""


@dataclass(frozen=True)
class Columns:
    """How the table of agents is laid out. Names only, so public."""

    id: str = "id"
    """The column of ids."""
    value: str = "value"
    """The column of values."""
    layout: Layout = "wide"
    """"wide": one row per option, one column per resource. "long": one row per amount."""
    option: str = "option"
    """Long tables: the column that tells an agent's options apart."""
    resource: str = "resource"
    """Long tables: the column of the resource's name."""
    amount: str = "amount"
    """Long tables: the column of the amount."""
    ignore: tuple[str, ...] = ()
    """Other columns that the table may have; they are not read."""


@dataclass(frozen=True, init=False)
class Market:
    """The public market.

    Args:
        supply: the supply b_j of each resource, in its own unit.
        max_demand: the cap c_j <= b_j, the most that one option may demand; one number for all
            resources, or one per resource.
        max_value: the value cap V.
        agents: the number of agents (with ADD_REMOVE: an upper bound on it).
        bundle_size: the most resources that one option may touch; by default all of them.
        options: the most options that one agent may have; it takes at most one of them.
        neighbours: the neighbour relation of the privacy guarantee.
        divisible: whether an agent may get a fraction of its option.
        names, units: one per resource; shown to people.
        resource_columns: each resource's column in tables of agents; by default its name.
        name: the market's name; shown to people.
        epsilon, delta: the privacy budget, unless `solve` gets another.
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
                    "no option may ask for more than the supply; lower max_demand",
                )
        for what, values in [
            ("name", [r.name for r in self.resources]),
            ("column", [r.column for r in self.resources]),
        ]:
            twice = sorted(v for v, times in Counter(values).items() if times > 1)
            if twice:
                raise MarketError(f"two resources have the {what} {twice[0]!r}")
        if self.columns.id == self.columns.value:
            raise MarketError(f"column {self.columns.id!r} is used for both id and value")
        clash = {self.columns.id, self.columns.value} & {r.column for r in self.resources}
        if clash and self.columns.layout == "wide":
            raise MarketError(f"column {clash.pop()!r} is used for a resource and for id or value")
        if self.columns.layout not in ("wide", "long"):
            raise MarketError(f"layout {self.columns.layout!r} is not known", "one of: wide, long")
        if self.supply_code > SUPPLY_CODE_MAX:
            r = min(self.resources, key=lambda r: r.max_demand / r.supply)
            raise MarketError(
                f"max_demand {r.max_demand:g} is too small for the supply {r.supply:g}",
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
        """S: codes that sum to at most S stand for amounts within the supply."""
        return min(
            math.floor(Fraction(r.supply) / Fraction(w))
            for r, w in zip(self.resources, self.unit_sizes, strict=True)
        )

    @cached_property
    def cap_codes(self) -> tuple[int, ...]:
        """C_j: the code of each resource's cap, the largest that a record can have."""
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
        """The smallest code that stands for at least `amount`; the product below is exact."""
        size = self.unit_sizes[resource]
        code = int(amount / size)
        return code + 1 if code * size < amount else code

    def value_code(self, value: float) -> int:
        """The largest code that stands for at most `value`; the product below is exact."""
        code = int(value / self.value_step)
        return code - 1 if code * self.value_step > value else code

    def unit_price(self, resource: int, price_code: int) -> float:
        """A price code in the user's terms: value per unit of the resource."""
        per_code = price_code * self.value_step / PRICE_UNITS_PER_VALUE_CODE
        return per_code / self.unit_sizes[resource]

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
        """Build a market from a parsed market file, or from a billboard's header."""
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
        """The inverse of `from_dict`, for the billboard's header."""
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
