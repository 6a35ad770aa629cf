"""Public: the market and its grid of exact integers.

A market is written down before any record is read, and nothing in it may be computed from the
records. It fixes the bounds that every record obeys (or is clamped to), and so how far one agent
can move any sum (`jdpack.privacy.queries`).

The grid
--------

The private side computes with integers only. Every resource has its own grid: one *demand
code* of resource j is its cap c_j divided by 65535. So a cap is always the code 65535, whatever its
unit and however large the supply.

* `unit_sizes[j]` is the amount of resource j that one code stands for: c_j / 65535 rounded **up**
  to 37 significant bits. A code has at most 16 bits, so code * unit_size is exact in a double. The
  code of an amount is the smallest integer that stands for at least that amount, so every language
  finds it without rounding error. (The rounding is by less than one part in 2^36, so 65534 codes
  stand for less than the cap: its code is 65535 exactly.)
* `supply_codes[j]`, S_j, is the largest integer with S_j * unit_sizes[j] <= b_j. So codes that add
  up to at most S_j stand for amounts that add up to at most the supply: what fits in codes fits in
  truth.
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
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from jdpack.common import checks, notebook
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
from jdpack.market.groups import Derived, Group, groups_of
from jdpack.market.person import PersonBounds, PersonLimits
from jdpack.market.totals import MaxTotal, Total, max_totals_of
from jdpack.storage.files import read_regular

Layout = Literal["wide", "long"]
T = TypeVar("T")

EXCESS_PROBABILITY_MAX = 0.1
"""The largest probability with which a supply may be exceeded."""


_COUNTED_MAX = 2**68  # so that kernels count the totals of people in 86 bits


class Neighbours(enum.Enum):
    """Which data sets the guarantee makes indistinguishable."""

    REPLACE_ONE = "replace-one"
    """One agent's record is replaced by another; the number of agents is public and exact."""

    ADD_REMOVE = "add-remove"
    """One agent is added or removed; the public number of agents is only an upper bound."""


@dataclass(frozen=True)
class Resource:
    """A kind of thing with a supply, and the most of it that one option may ask for."""

    name: str
    """Shown to people."""
    supply: float
    """How much there is, in its own unit."""
    max_demand: float
    """The most that one option may ask for."""
    unit: str = ""
    """Shown to people."""
    column: str = ""
    """Its column in tables of agents."""
    derived: Derived | None = None
    """For a cap or a reserve of a group: what it stands for. Tables do not mention it."""
    unit_one: str = ""
    """The unit of exactly one, such as "place" for "places"."""


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
    group: str = "group"
    """The column of the agent's group, if the market has groups."""
    request: str = "request"
    """The column that tells an agent's requests apart, if agents may have several."""


@dataclass(frozen=True)
class Provenance:
    """Bounds of a market that were chosen from the records, privately: what that cost.

    `jdpack bounds` writes it into the market file. It adds to what a run spends.
    """

    epsilon: float
    """The epsilon of that release."""
    delta: float
    """The delta of that release."""
    run: str
    """Its name in the ledger."""

    @classmethod
    def of(cls, entry: Any, where: str) -> Provenance:
        """Read it from a table of a market file."""
        section = checks.Section(where, entry)
        found = cls(
            checks.positive(f"{where}: epsilon", section.number("epsilon")),
            checks.positive(f"{where}: delta", section.number("delta")),
            checks.text("run", section.take("run", str)),
        )
        section.close()
        return found

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `of`."""
        return {"epsilon": self.epsilon, "delta": self.delta, "run": self.run}


@dataclass(frozen=True, init=False)
class Market:
    """The public market.

    Args:
        supply: the supply b_j of each resource, in its own unit: {"North": 2500.0}, or a list.
        max_demand: the cap c_j <= b_j, the most that one option may demand; one number for all
            resources, or one per resource. It and the next ones may be dicts by name as well.
        max_value: the value cap V.
        agents: the number of agents (with ADD_REMOVE: an upper bound on it).
        bundle_size: the most resources that one option may touch; by default all of them.
        options: the most options that one request may have; at most one of them is taken.
        person: what one agent may ask for in total, if agents may make several requests: a
            `PersonBounds`, or the most requests.
        max_total: bounds on the sum of one option's demands over resources that share a unit: a
            number for all resources, or a list of `MaxTotal`.
        groups: groups of agents with caps or reserves, a list of `Group`. Each cap and each reserve
            is one more resource, after those declared (`jdpack.market.groups`).
        neighbours: the neighbour relation of the privacy guarantee.
        divisible: whether an agent may get a fraction of its option.
        names, units: one per resource; shown to people.
        units_one: the units of exactly one ("place" for "places"), if they differ.
        value_name: what a value is, in the plural ("points"); shown to people.
        resource_columns: each resource's column in tables of agents; by default its name.
        name: the market's name; shown to people.
        epsilon, delta: the privacy budget, unless `solve` gets another.
        excess_probability: the probability with which a supply may be exceeded; 0 means never.
        columns: how tables of agents are laid out.
        languages: the languages of the page and of letters, such as ["de", "en"]; the first is
            the one in which names and units are written.
        translations: for other languages, what the market's own texts are called there:
            {"en": {"Plätze": "places"}}.
        provenance: what choosing these bounds from the records cost (`jdpack.bounds`).
    """

    name: str
    resources: tuple[Resource, ...]
    max_value: float
    value_name: str
    agents: int
    bundle_size: int
    options: int
    person: PersonBounds
    max_total: tuple[MaxTotal, ...]
    groups: tuple[Group, ...]
    neighbours: Neighbours
    divisible: bool
    epsilon: float | None
    delta: float | None
    excess_probability: float
    columns: Columns
    languages: tuple[str, ...]
    translations: Mapping[str, Mapping[str, str]] = field(hash=False)
    provenance: tuple[Provenance, ...]
    _in_toml: ClassVar[bool] = False

    def __init__(
        self,
        *,
        supply: Sequence[float] | Mapping[str, float],
        max_demand: float | Sequence[float] | Mapping[str, float],
        max_value: float,
        agents: int,
        bundle_size: int | None = None,
        options: int = 1,
        person: PersonBounds | Mapping[str, Any] | int = 1,
        max_total: float | MaxTotal | Sequence[MaxTotal | Mapping[str, Any]] | None = None,
        groups: Sequence[Group | Mapping[str, Any]] = (),
        neighbours: Neighbours | str = Neighbours.REPLACE_ONE,
        divisible: bool = False,
        names: Sequence[str] | None = None,
        units: Sequence[str] | Mapping[str, str] | None = None,
        units_one: Sequence[str] | Mapping[str, str] | None = None,
        value_name: str = "",
        resource_columns: Sequence[str] | Mapping[str, str] | None = None,
        name: str = "market",
        epsilon: float | None = None,
        delta: float | None = None,
        excess_probability: float = 0.0,
        columns: Columns | None = None,
        languages: Sequence[str] | str = ("en",),
        translations: Mapping[str, Mapping[str, str]] | None = None,
        provenance: Sequence[Provenance] = (),
    ) -> None:
        if checks.is_named(supply):
            if names is not None:
                raise MarketError("supply already has the names", "leave names out")
            stated = dict(supply.items())  # type: ignore[union-attr]
            names, supply = list(stated), list(stated.values())
        supplies = [checks.positive("supply", s) for s in checks.sequence("supply", supply)]
        m = len(supplies)
        if not 1 <= m <= RESOURCES_MAX:
            raise MarketError(f"a market has 1 to {RESOURCES_MAX} resources, not {m}")
        labels = list(names) if names is not None else [f"resource {j + 1}" for j in range(m)]

        def each(what: str, given: Any, plain: Sequence[Any], *missing: str) -> list[Any]:
            """One entry per resource: those given, or the plain ones."""
            stated = plain if given is None else checks.by_name(what, given, labels, *missing)
            found = checks.sequence(what, stated)
            if len(found) != m:
                raise MarketError(f"{what} has {len(found)} entries for {m} resources")
            return found

        most: Any = checks.by_name("max_demand", max_demand, labels)
        resources = tuple(
            Resource(
                name=checks.text("name", label),
                supply=amount,
                max_demand=checks.positive("max_demand", cap),
                unit=checks.text("unit", unit),
                column=checks.text("column", column),
                unit_one=checks.text("unit_one", one),
            )
            for label, amount, cap, unit, column, one in zip(
                each("names", None, labels),
                supplies,
                each("max_demand", [most] * m if np.ndim(most) == 0 else most, ()),
                each("units", units, [""] * m, ""),
                each("resource_columns", resource_columns, labels),
                each("units_one", units_one, [""] * m, ""),
                strict=True,
            )
        )
        put = object.__setattr__
        put(self, "name", checks.text("name", name))
        put(self, "groups", groups_of(groups))
        put(self, "resources", (*resources, *_derived(resources, self.groups)))
        put(self, "max_value", checks.positive("max_value", max_value))
        put(self, "value_name", checks.text("value_name", value_name))
        put(self, "agents", checks.count("agents", agents, AGENTS_MAX))
        size = m if bundle_size is None else checks.count("bundle_size", bundle_size, RESOURCES_MAX)
        put(self, "bundle_size", min(size, m))
        put(self, "options", checks.count("options", options, 1000))
        put(self, "max_total", max_totals_of(max_total))
        put(self, "person", PersonBounds.of(person))
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
        put(self, "excess_probability", _excess_probability(excess_probability))
        put(self, "columns", columns if columns is not None else Columns())
        put(self, "languages", _languages(languages))
        put(self, "translations", _translations(translations or {}, self.languages))
        put(self, "provenance", tuple(provenance))
        self._check()

    def _check(self) -> None:
        c = self.columns
        if not all(isinstance(column, str) for column in c.ignore):
            listed = checks.quoted(c.ignore)
            raise MarketError(f"ignore must list names of columns, not {listed}")
        named = (c.id, c.value, c.option, c.resource, c.amount, c.group, c.request)
        for column in (*named, *c.ignore):
            checks.text("column", column)
        if len(self.resources) > RESOURCES_MAX:
            raise MarketError(
                f"a market has 1 to {RESOURCES_MAX} resources, not {len(self.resources)}",
                "each cap and each reserve of a group counts as one",
            )
        if c.group != "group" and not self.groups:
            raise MarketError(
                f"column {c.group!r} is for groups, but the market has none",
                "give the market a group, or list the column in ignore",
            )
        for r in self.resources:
            if r.max_demand > r.supply:
                raise MarketError(
                    f"resource {r.name!r}: max_demand {r.max_demand:g} is above its supply "
                    f"{r.supply:g}",
                    "no option may ask for more than the supply; lower max_demand",
                )
        for what, values in [
            ("name", [r.name for r in self.resources]),
            ("column", [r.column for r in self.declared]),
        ]:
            twice = sorted(v for v, times in Counter(values).items() if times > 1)
            if twice:
                raise MarketError(f"two resources have the {what} {twice[0]!r}")
        if self.columns.id == self.columns.value:
            raise MarketError(f"column {self.columns.id!r} is used for both id and value")
        clash = {self.columns.id, self.columns.value} & {r.column for r in self.declared}
        if clash and self.columns.layout == "wide":
            raise MarketError(f"column {clash.pop()!r} is used for a resource and for id or value")
        if self.columns.layout not in ("wide", "long"):
            raise MarketError(f"layout {self.columns.layout!r} is not known", "one of: wide, long")
        if c.request != "request" and self.requests == 1:
            raise MarketError(
                f"column {c.request!r} is for requests, but agents have only one",
                "let people make several requests, or list the column in ignore",
            )
        others = [c.id, c.value]
        others += (
            [r.column for r in self.declared] if c.layout == "wide" else [c.resource, c.amount]
        )
        others += [c.option] if c.layout == "long" and self.options > 1 else []
        if self.groups and c.group in others:
            raise MarketError(
                f"column {c.group!r} is used for the group and for something else",
                "name another column for the group",
            )
        if self.requests > 1 and c.request in [*others, *([c.group] if self.groups else [])]:
            raise MarketError(
                f"column {c.request!r} is used for the request and for something else",
                "name another column for the request",
            )
        self._check_totals(self.max_total)
        self._check_totals(self.person.max_total)
        self._check_person()
        if max(self.supply_codes) > SUPPLY_CODE_MAX:
            r = min(self.resources, key=lambda r: r.max_demand / r.supply)
            raise MarketError(
                f"max_demand {r.max_demand:g} is too small for the supply {r.supply:g}",
                "such a resource cannot run out; leave it out of the market",
            )

    def _check_totals(self, given: Sequence[MaxTotal]) -> None:
        """Check that every total names resources of one unit, and each of them in one total."""
        units, bounded = {r.name: r.unit for r in self.declared}, set[str]()
        for total in given:
            own = total.resources or tuple(units)
            for name in own:
                if name not in units:
                    raise MarketError(
                        f"max_total names {checks.quoted(name)}, which is not a resource",
                        checks.closest(name, list(units)),
                    )
                if name in bounded:
                    raise MarketError(
                        f"resource {name!r} is in two max_total bounds",
                        "each resource may be in one",
                    )
                bounded.add(name)
            other = next((name for name in own if units[name] != units[own[0]]), None)
            if other is not None:
                raise MarketError(
                    f"max_total {total.amount:g} adds {own[0]!r} (unit {units[own[0]]!r}) to "
                    f"{other!r} (unit {units[other]!r})",
                    "list the resources of one unit in its resources, or give them the same unit",
                )
        for exact in self._totals_of(given):
            if not exact.countable:
                caps = [(self.resources[j].max_demand, j) for j in exact.resources]
                (low, a), (high, b) = min(caps), max(caps)
                raise MarketError(
                    f"max_total {exact.amount:g} adds {self.resources[a].name!r} to "
                    f"{self.resources[b].name!r}, but their max_demand {low:g} and {high:g} are "
                    "too far apart to be counted together",
                    "bound them separately",
                )

    def _check_person(self) -> None:
        """Check that a person may ask for at least as much as one option."""
        person, caps = self.person, {r.name: r.max_demand for r in self.declared}
        if self.requests_at_most > AGENTS_MAX:
            raise MarketError(
                f"{self.agents} agents with {self.requests} requests each are more than "
                f"{AGENTS_MAX} requests"
            )
        for total in self.person_limits.totals:
            if self.requests * sum(total.sizes) >= _COUNTED_MAX:
                raise MarketError(
                    f"[person]: max_total {total.amount:g} adds resources whose max_demand are too "
                    "far apart to be counted together",
                    "bound them separately",
                )
        for name in person.max_demand:
            if name not in caps:
                raise MarketError(
                    f"[person]: max_demand names {checks.quoted(name)}, which is not a resource",
                    checks.closest(name, list(caps)),
                )
        pairs: list[tuple[str, float | None, float]] = [
            (f"max_demand of {name!r}", most, caps[name])
            for name, most in person.max_demand.items()
        ]
        pairs += [("max_value", person.max_value, self.max_value)]
        pairs += [("bundle_size", person.bundle_size, self.bundle_size)]
        for what, most, one in pairs:
            if most is not None and most < one:
                raise MarketError(
                    f"[person]: {what} is {most:g} in total, but one option may have {one:g}",
                    "let a person ask for at least as much as one option",
                )

    # --- people ---------------------------------------------------------------------------

    @property
    def requests(self) -> int:
        """The most requests that one agent may make."""
        return self.person.requests

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, f.name) for f in fields(self) if f.hash is not False))

    def __hash__(self) -> int:
        return self._hash  # computed once: a plan looks up thousands of numbers by market

    def __getstate__(self) -> dict[str, Any]:
        """Everything except the hash, because texts hash differently in every process."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    @property
    def requests_at_most(self) -> int:
        """The most requests that all agents together may make."""
        return self.agents * self.requests

    @cached_property
    def person_limits(self) -> PersonLimits:
        """What one agent may ask for in total, in whole numbers."""
        person, most = self.person, self.requests * DEMAND_CODE_MAX
        steps = [most] * len(self.declared)
        for j, r in enumerate(self.declared):
            if r.name in person.max_demand:
                units = Fraction(person.max_demand[r.name]) / Fraction(self.unit_sizes[j])
                steps[j] = min(most, math.floor(units))
        value = self.requests * self.value_cap_code
        if person.max_value is not None:
            value = min(value, math.floor(Fraction(person.max_value) / Fraction(self.value_step)))
        size = min(self.requests * self.bundle_size, len(self.declared))
        size = min(size, person.bundle_size or size)
        return PersonLimits(
            self.requests, value, size, tuple(steps), self._totals_of(person.max_total)
        )

    @property
    def person_value_code(self) -> int:
        """The most that the value codes of one agent's options taken can sum to."""
        return self.person_limits.value

    @cached_property
    def person_cap_codes(self) -> tuple[int, ...]:
        """P_j: the most codes of each resource that one agent can take in total."""
        if self.requests == 1:
            return (DEMAND_CODE_MAX,) * len(self.resources)
        most, steps = self.requests * DEMAND_CODE_MAX, self.person_limits.steps
        own = [min(most, some + self.requests) for some in steps]
        return tuple(
            own[j if r.derived is None else r.derived.base] for j, r in enumerate(self.resources)
        )

    @cached_property
    def person_width(self) -> int:
        """The most resources that one agent can touch in total, derived ones included."""
        return self._width(self.person_limits.bundle)

    @cached_property
    def person_totals(self) -> tuple[Total, ...]:
        """Bounds on what one agent can take in total of disjoint sets, before codes are rounded.

        They are the totals of `person`. A set that none of these touches is bounded by `requests`
        times what one option may ask for. What follows for derived resources is included.
        """
        own = self.person_limits.totals
        bounded = {j for total in own for j in total.resources}
        others = [
            self._total(self.requests * total.amount, total.resources)
            for total in self.totals
            if not bounded & set(total.resources)
        ]
        return self._with_derived_totals([*own, *others])

    # --- groups ---------------------------------------------------------------------------

    @cached_property
    def declared(self) -> tuple[Resource, ...]:
        """The resources that tables and people know: those that are not derived from groups."""
        return tuple(r for r in self.resources if r.derived is None)

    @cached_property
    def derived(self) -> tuple[tuple[int, Derived], ...]:
        """The derived resources: the number of each, and what it stands for."""
        each = enumerate(self.resources)
        return tuple((j, r.derived) for j, r in each if r.derived is not None)

    @cached_property
    def bundle_width(self) -> int:
        """The most resources that one option can touch, derived ones included.

        An option touches at most `bundle_size` declared resources. With each of them, an agent of
        group g touches the resources derived from it that g demands. So for each group (and for no
        group) this is the sum over the `bundle_size` declared resources that bring most. Some
        record reaches the largest of these sums.
        """
        return self._width(self.bundle_size)

    def _width(self, size: int) -> int:
        """The most resources that `size` declared ones bring with them, themselves included."""
        widths = []
        for group in range(-1, len(self.groups)):
            brings = [1] * len(self.declared)
            for _, rule in self.derived:
                brings[rule.base] += rule.demanded_by(group)
            widths.append(sum(sorted(brings, reverse=True)[:size]))
        return max(widths)

    def group_number(self, name: object) -> int:
        """The number of a group; -1 for None, for an empty name and for unknown ones."""
        return -1 if name is None else self._group_numbers.get(str(name), -1)

    @cached_property
    def _group_numbers(self) -> dict[str, int]:
        return {group.name: g for g, group in enumerate(self.groups)}

    def with_derived(self, codes: Sequence[int], group: int) -> list[int]:
        """The codes of all resources, from those of the declared ones and the agent's group."""
        rest = [codes[rule.base] if rule.demanded_by(group) else 0 for _, rule in self.derived]
        return [*codes, *rest]

    # --- totals ---------------------------------------------------------------------------

    @cached_property
    def totals(self) -> tuple[Total, ...]:
        """The bounds of `max_total`, with the numbers of their resources."""
        return self._totals_of(self.max_total)

    def _totals_of(self, given: Sequence[MaxTotal]) -> tuple[Total, ...]:
        numbers = {r.name: j for j, r in enumerate(self.declared)}
        return tuple(
            self._total(total.amount, sorted(numbers[n] for n in total.resources or numbers))
            for total in given
        )

    def _with_derived_totals(self, totals: Sequence[Total]) -> tuple[Total, ...]:
        """Bounds on declared resources, and what follows for derived resources.

        Formal guarantees. The code of a derived resource is that of its base, or 0, and an agent is
        in one group. So if the declared resources of a set obey `jdpack.market.totals`, then the
        same bound holds for the caps on them of all groups together, of which an option touches at
        most one for each base, and for the reserves on them of each one group.
        """
        found = list(totals)
        for total in totals:
            own = [(j, rule) for j, rule in self.derived if rule.base in set(total.resources)]
            sets = [[j for j, rule in own if rule.members]]
            for g in range(len(self.groups)):
                sets.append([j for j, rule in own if not rule.members and rule.group == g])
            found += [self._total(total.amount, some) for some in sets if some]
        return tuple(found)

    def _total(self, amount: float, own: Sequence[int]) -> Total:
        return Total(amount, tuple(own), tuple(self.unit_sizes[j] for j in own))

    # --- the grid -------------------------------------------------------------------------

    @cached_property
    def unit_sizes(self) -> tuple[float, ...]:
        """The amount of each resource that one demand code stands for."""
        return tuple(_unit_size(r.max_demand) for r in self.resources)

    @cached_property
    def supply_codes(self) -> tuple[int, ...]:
        """S_j: codes that sum to at most S_j stand for amounts within the supply of j."""
        return tuple(
            _supply_code(r.supply, size)
            for r, size in zip(self.resources, self.unit_sizes, strict=True)
        )

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

    # --- in words -------------------------------------------------------------------------

    def said(self, text: str, language: str) -> str:
        """One of the market's own texts in a language; unchanged if it has no translation."""
        return self.translations.get(language, {}).get(text, text)

    def __repr__(self) -> str:
        m = len(self.resources)
        at_most = "at most " if self.neighbours is Neighbours.ADD_REMOVE else ""
        many = f"{m:,} resource{'s' * (m > 1)}, {at_most}{self.agents:,} agents"
        return f"Market({self.name!r}, {many})"

    def _repr_html_(self) -> str:
        goods = "divisible" if self.divisible else "indivisible"
        facts = [f"The goods are {goods}. One agent may have {self.options} options."]
        if self.options == 1:
            facts = [f"The goods are {goods}. One agent has one option."]
        facts.append(f"The largest value is {notebook.number(self.max_value)}.")
        if self.epsilon is not None and self.delta is not None:
            facts.append(f"Privacy: epsilon {self.epsilon:g}, delta {self.delta:g}.")
        rows = [
            (r.name, *(f"{notebook.number(x)} {r.unit}".strip() for x in (r.supply, r.max_demand)))
            for r in self.resources
        ]
        return notebook.sheet(repr(self), facts, ("resource", "supply", "most for one"), rows)

    # --- in and out -----------------------------------------------------------------------

    @classmethod
    def from_toml(cls, path: str | Path) -> Market:
        """Read a market file; `docs/market-file.md` describes every key."""
        try:
            text = read_regular(path, FILE_MAX).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise MarketError(
                f"cannot read market file {str(path)!r}: {error}", _other(path)
            ) from None
        try:
            data = parse(text)
        except (ValueError, RecursionError) as error:
            raise MarketError(f"{str(path)!r} is not a TOML file: {error}", _other(path)) from None
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

        def each(key: str, of: Callable[[Any, str], T]) -> list[T]:
            """The entries of a list of tables."""
            entries = enumerate(top.take(key, list, []), start=1)
            return [of(entry, f"[[{key}]] {i}") for i, entry in entries]

        named = ("id", "option", "resource", "amount", "group", "request")
        columns = Columns(
            value=value.take("column", str, "value"),
            layout=agents.take("layout", str, "wide"),
            ignore=tuple(agents.take("ignore", list, [])),
            **{name: agents.take(name, str, name) for name in named},
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
            person=top.take("person", object, 1),
            max_total=each("max_total", MaxTotal.of),
            groups=each("group", Group.of),
            provenance=each("provenance", Provenance.of),
            excess_probability=top.number("excess_probability", 0.0),
            supply=[r.number("supply") for r in resources],
            max_demand=[r.number("max_demand") for r in resources],
            names=names,
            units=[r.take("unit", str, "") for r in resources],
            units_one=[r.take("unit_one", str, "") for r in resources],
            value_name=value.take("name", str, ""),
            resource_columns=[
                r.take("column", str, n) for r, n in zip(resources, names, strict=True)
            ],
            columns=columns,
            languages=top.take("languages", list, ["en"]),
            translations=top.table("translation", {}),
        )
        for section in [top, privacy, value, agents, *resources]:
            section.close()
        object.__setattr__(market, "_in_toml", True)
        return market

    def hint(self, toml: str, python: str) -> str:
        """A hint in the terms in which the market was written: a market file, or Python."""
        return toml if self._in_toml else python

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`, for the billboard's header."""
        privacy: dict[str, Any] = {"neighbours": self.neighbours.value}
        if self.epsilon is not None:
            privacy["epsilon"] = self.epsilon
        if self.delta is not None:
            privacy["delta"] = self.delta
        more: dict[str, Any] = {}
        if self.excess_probability > 0.0:
            more["excess_probability"] = self.excess_probability
        if self.max_total:
            more["max_total"] = [total.to_dict() for total in self.max_total]
        if self.groups:
            more["group"] = [group.to_dict() for group in self.groups]
        if self.requests > 1:
            more["person"] = self.person.to_dict()
        if self.languages != ("en",):
            more["languages"] = list(self.languages)
        if self.translations:
            more["translation"] = {code: dict(own) for code, own in self.translations.items()}
        if self.provenance:
            more["provenance"] = [entry.to_dict() for entry in self.provenance]
        return {
            "name": self.name,
            "divisible": self.divisible,
            **more,
            "privacy": privacy,
            "value": {
                "column": self.columns.value,
                "max": self.max_value,
                **({"name": self.value_name} if self.value_name else {}),
            },
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
                **({"group": self.columns.group} if self.groups else {}),
                **({"request": self.columns.request} if self.requests > 1 else {}),
            },
            "resource": [
                {
                    "name": r.name,
                    "supply": r.supply,
                    "max_demand": r.max_demand,
                    "unit": r.unit,
                    "column": r.column,
                    **({"unit_one": r.unit_one} if r.unit_one else {}),
                }
                for r in self.declared
            ],
        }

    def changed(self, **changes: Any) -> Market:
        """The market with some arguments of its constructor changed."""
        same = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "resources"}
        same |= {
            "supply": [r.supply for r in self.declared],
            "max_demand": [r.max_demand for r in self.declared],
            "names": [r.name for r in self.declared],
            "units": [r.unit for r in self.declared],
            "units_one": [r.unit_one for r in self.declared],
            "resource_columns": [r.column for r in self.declared],
        }
        if len(changes.get("supply", self.declared)) != len(self.declared):
            same["units_one"] = None  # words that no longer fit
        return Market(**{**same, **changes})

    def scaled(self, factor: float) -> Market:
        """The market with all supplies multiplied, and the caps and reserves of groups too."""
        groups = [
            Group(
                group.name,
                {name: amount * factor for name, amount in group.cap.items()},
                {name: amount * factor for name, amount in group.reserve.items()},
            )
            for group in self.groups
        ]
        return self.changed(supply=[r.supply * factor for r in self.declared], groups=groups)


# Resources are often alike, and a plan asks for the same market with many supplies.


@lru_cache(maxsize=4096)
def _unit_size(cap: float) -> float:
    return round_up(Fraction(cap) / DEMAND_CODE_MAX, bits=37)


@lru_cache(maxsize=4096)
def _supply_code(supply: float, size: float) -> int:
    return math.floor(Fraction(supply) / Fraction(size))


def _other(path: str | Path) -> str:
    """A hint for a path that does not lead to a market file."""
    kind = Path(path).suffix.lower()
    if kind in (".parquet", ".pq", ".csv"):
        return "it is a table: the market file comes first, then the table"
    if kind in (".jsonl", ".html"):
        return "it belongs to a run that is over; the market file is the TOML file that you wrote"
    return ""


def _derived(declared: Sequence[Resource], groups: Sequence[Group]) -> list[Resource]:
    """A resource for each cap and each reserve, in the order of the groups."""
    numbers, found = {r.name: j for j, r in enumerate(declared)}, list[Resource]()
    kept = [0.0] * len(declared)
    for g, group in enumerate(groups):
        for members, rules in ((True, group.cap), (False, group.reserve)):
            rule = "cap" if members else "reserve"
            for name, amount in rules.items():
                if name not in numbers:
                    raise MarketError(
                        f"group {group.name!r} has a {rule} of {checks.quoted(name)}, which is not "
                        "a resource",
                        checks.closest(name, list(numbers)),
                    )
                base = declared[numbers[name]]
                supply = amount if members else base.supply - amount
                kept[numbers[name]] += 0.0 if members else amount
                if supply < base.max_demand:
                    left = "" if members else f" leaves {supply:g} for the others, which"
                    raise MarketError(
                        f"group {group.name!r}: a {rule} of {amount:g} of {name!r}{left} is below "
                        f"its max_demand {base.max_demand:g}",
                        "an option that obeys max_demand must fit in what the group's rule leaves",
                    )
                found.append(
                    Resource(
                        f"{name}, {'for' if members else 'except'} {group.name}",
                        supply,
                        base.max_demand,
                        base.unit,
                        derived=Derived(numbers[name], g, members),
                        unit_one=base.unit_one,
                    )
                )
    for r, amount in zip(declared, kept, strict=True):
        if amount > r.supply:
            raise MarketError(
                f"the reserves of {r.name!r} add up to {amount:g}, but its supply is {r.supply:g}",
                "reserves are parts of the supply",
            )
    return found


def _languages(given: Any) -> tuple[str, ...]:
    """The codes of languages; whether they are known is checked before a run (`planning`)."""
    found = (given,) if isinstance(given, str) else tuple(given)
    for code in found:
        if not isinstance(code, str) or not re.fullmatch("[a-z]{2,3}", code):
            raise MarketError(
                f"languages has {checks.quoted(code)}, which is not the code of a language",
                'write codes such as "en" or "de"',
            )
    if not found or len(set(found)) < len(found):
        raise MarketError(
            f"languages is {checks.quoted(list(found))}", "list at least one, and each once"
        )
    return found


def _translations(given: Any, languages: Sequence[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for code, own in given.items():
        if code not in languages:
            raise MarketError(
                f"there is a translation to {checks.quoted(code)}, which is not in languages",
                f"languages has: {', '.join(languages)}",
            )
        if not checks.is_named(own):
            raise MarketError(
                f"the translation to {code} must be a table, not {checks.quoted(own)}"
            )
        found[code] = {
            checks.text("translation", a): checks.text("translation", b) for a, b in own.items()
        }
    return found


def _excess_probability(given: Any) -> float:
    probability = checks.finite("excess_probability", given)
    if not 0.0 <= probability <= EXCESS_PROBABILITY_MAX:
        raise MarketError(
            f"excess_probability {probability:g} is not from 0 to {EXCESS_PROBABILITY_MAX:g}",
            "0 means that no supply is ever exceeded",
        )
    return probability
