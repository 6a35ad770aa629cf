"""Private: the data sets of an audit: given or synthetic agents, and their neighbours.

Neighbours are as different as the public bounds allow: everything at its cap, nothing at all, other
resources, several options, and values close to what the options cost at posted prices, where agents
change their minds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from jdpack.agent.options import counted
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE
from jdpack.market.groups import Group
from jdpack.market.market import Columns, Market, Neighbours
from jdpack.market.person import Count, PersonBounds
from jdpack.market.totals import MaxTotal
from jdpack.records.codes import BLOCK, Part
from jdpack.records.encode import encode
from jdpack.records.source import Source

Option = tuple[float, tuple[float, ...]]
"""A value and an amount of each resource, derived ones included (`with_rules`)."""
Record = tuple[Option, ...]
"""One agent's options, request by request."""

VALUE_UNITS = PRICE_UNITS_PER_VALUE_CODE


# Each example takes further arguments of `Market`.


def example(*, agents: int = 600, **more: Any) -> Market:
    """A small market, but large enough that someone gets something at epsilon = 1."""
    return Market(
        supply=[0.2 * agents, 0.75 * agents],
        max_demand=[1.0, 3.0],
        max_value=1.0,
        agents=agents,
        name="audit",
        **more,
    )


def example_sparse(*, agents: int = 80, plenty: bool = False) -> Market:
    """A market of many resources and small bundles, under the add-remove relation.

    Supply is so small that nobody wins; or, with `plenty`, so large that coins decide everything.
    """
    return Market(
        supply=[(1e6 if plenty else 0.05) * agents * (1 + j % 3) for j in range(9)],
        max_demand=[1.0 + 0.25 * (j % 3) for j in range(9)],
        max_value=7.0,
        agents=agents,
        bundle_size=2,
        options=3,
        neighbours=Neighbours.ADD_REMOVE,
        name="sparse",
    )


def example_totals(*, agents: int = 80, plenty: bool = False, **more: Any) -> Market:
    """A market where bounds on totals, in two units, limit what one option may ask for."""
    caps, unit = [1.0, 2.0, 0.5, 2.0, 40.0, 60.0, 3.0], ["h", "h", "h", "h", "km", "km", ""]
    names = [f"resource {j + 1}" for j in range(len(caps))]
    return Market(
        supply=[(1e6 if plenty else 0.07 + 0.04 * j) * agents * cap for j, cap in enumerate(caps)],
        max_demand=caps,
        max_value=3.0,
        agents=agents,
        bundle_size=5,
        max_total=[MaxTotal(3.3, tuple(names[:4])), MaxTotal(70.0, tuple(names[4:6]))],
        names=names,
        units=unit,
        name="totals",
        **more,
    )


def example_groups(
    *,
    agents: int = 80,
    options: int = 2,
    plenty: bool = False,
    wide: bool = False,
    excess: float = 0.0,
    **more: Any,
) -> Market:
    """A market with caps and reserves for two groups, and a total that limits them too.

    If `wide`, it has more resources, and its records are kept in sparse form.
    """
    caps = [1.0, 2.0, 0.5] + [1.0] * (9 if wide else 0)
    size = (1e6 if plenty else 0.3) * agents
    names = [f"resource {j + 1}" for j in range(len(caps))]
    first, second, third = names[:3]
    return Market(
        supply=[size * cap for cap in caps],
        max_demand=caps,
        max_value=4.0,
        agents=agents,
        bundle_size=2,
        options=options,
        max_total=[MaxTotal(2.2, (first, second, third))],
        groups=[
            Group("near", cap={first: 0.5 * size}, reserve={second: 0.7 * size}),
            Group("far", cap={first: 0.4 * size, second: 0.9 * size}, reserve={third: 0.2 * size}),
        ],
        names=names,
        excess_probability=excess,
        name="groups",
        **more,
    )


def example_requests(
    *,
    agents: int = 60,
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    plenty: bool = False,
    wide: bool = False,
    **more: Any,
) -> Market:
    """A market of people with several requests, and bounds on what each may ask for in total.

    If `wide`, it has more resources, and its records are kept in sparse form.
    """
    caps = [1.0, 2.0, 0.5] + [1.0] * (9 if wide else 0)
    names = [f"resource {j + 1}" for j in range(len(caps))]
    return Market(
        supply=[(1e6 if plenty else 0.6) * agents * cap for cap in caps],
        max_demand=caps,
        max_value=4.0,
        agents=agents,
        bundle_size=2,
        person=PersonBounds(
            4,
            max_value=10.0,
            bundle_size=3 if wide else None,
            max_demand={names[0]: 2.5, names[1]: 3.0},
            max_total=(MaxTotal(4.1, tuple(names[1:3])),),
        ),
        neighbours=neighbours,
        names=names,
        name="requests",
        **more,
    )


def plain(market: Market) -> Market:
    """The same market with the audit's own column names."""
    columns = [f"amount {j}" for j in range(len(market.declared))]
    return market.changed(resource_columns=columns, columns=Columns())


@dataclass(frozen=True)
class People:
    """A data set: a market, the agents' ids, and each agent's options."""

    market: Market
    ids: tuple[Any, ...]
    agents: tuple[Record, ...]
    requests: tuple[tuple[str, ...], ...] = ()
    """For each agent, the name of each option's request. If not given, every `market.options`
    options are a request, and requests are numbered."""

    def names_of(self, place: int) -> tuple[str, ...]:
        """The name of each option's request, of one agent."""
        if self.requests:
            return self.requests[place]
        return numbered(self.market, self.agents[place])

    @classmethod
    def read(cls, source: Source) -> People:
        """The agents of a source, as encoded: numbers between codes are rounded."""
        encoded = encode(source.market, source.pieces(), clamp=source.clamp)
        market = plain(source.market)
        ids: list[Any] = []
        agents: list[list[Option]] = []
        requests: list[list[str]] = []
        for part in encoded.parts:
            values, codes = _codes_of(part, len(market.resources))
            names = part.ids.to_pylist() if part.ids is not None else range(part.first, 2**63)
            heads = part.heads().tolist() or [1] * part.rows
            named = [""] * part.rows if part.requests is None else part.requests.to_pylist()
            rows = zip(names, heads, named, values, codes.tolist(), strict=False)
            for name, head, request, value, row in rows:
                if head and not (part.requests is not None and ids and ids[-1] == name):
                    ids.append(name)
                    agents.append([])
                    requests.append([])
                agents[-1].append(_option_of(market, value, row))
                requests[-1].append(request)
        own = tuple(tuple(each) for each in requests) if market.requests > 1 else ()
        return cls(market, tuple(ids), tuple(tuple(options) for options in agents), own)

    @classmethod
    def invented(cls, market: Market, seed: int = 2019) -> People:
        """Random agents of every kind within a market's bounds."""
        market, rng = plain(market), np.random.default_rng(seed)
        records = tuple(_some(market, rng) for _ in range(market.agents))
        return cls(market, tuple(range(market.agents)), records)

    @cached_property
    def arrays(self) -> dict[str, Any]:
        """The records as arguments of `solve`."""
        options = [option for record in self.agents for option in record]
        count = len(self.market.declared)
        found: dict[str, Any] = {
            "values": np.array([value for value, _ in options]),
            "demands": np.array([amounts[:count] for _, amounts in options]),
            "ids": [
                name for name, record in zip(self.ids, self.agents, strict=True) for _ in record
            ],
        }
        if self.market.groups:
            found["groups_of"] = [
                group_of(self.market, record) for record in self.agents for _ in record
            ]
        if self.market.requests > 1:
            found["requests_of"] = [
                name for place in range(len(self.ids)) for name in self.names_of(place)
            ]
        return found

    @property
    def table(self) -> pa.Table:
        """The records as a wide table."""
        data = self.arrays
        columns = {"id": data["ids"], "value": data["values"]}
        for j, resource in enumerate(self.market.declared):
            columns[resource.column] = data["demands"][:, j]
        if self.market.groups:
            columns[self.market.columns.group] = data["groups_of"]
        if self.market.requests > 1:
            columns[self.market.columns.request] = data["requests_of"]
        return pa.table(columns)

    def write(self, folder: Path, files: int = 3) -> None:
        """Write a folder of Parquet files, with no agent in two of them."""
        folder.mkdir()
        table, edges = self.table, [*self.starts.tolist(), len(self.arrays["ids"])]
        cuts = [edges[len(self.ids) * at // files] for at in range(files + 1)]
        for at, (first, end) in enumerate(itertools.pairwise(cuts)):
            if end > first:
                rows = table.slice(first, end - first)
                pyarrow.parquet.write_table(rows, folder / f"{at}.parquet")

    def replaced(self, place: int, record: Record | None) -> People:
        """The neighbour in which one agent has another record, or is absent."""
        before, after = slice(0, place), slice(place + 1, None)
        if record is None:
            return People(
                self.market,
                self.ids[before] + self.ids[after],
                self.agents[before] + self.agents[after],
                self.requests[before] + self.requests[after],
            )
        agents, requests = (*self.agents[before], record, *self.agents[after]), self.requests
        if requests:
            requests = (*requests[before], numbered(self.market, record), *requests[after])
        return People(self.market, self.ids, agents, requests)

    def shuffled(self, seed: int) -> People:
        """The same agents in another order."""
        order = np.random.default_rng(seed).permutation(len(self.ids)).tolist()
        return People(
            self.market,
            tuple(self.ids[i] for i in order),
            tuple(self.agents[i] for i in order),
            tuple(self.requests[i] for i in order) if self.requests else (),
        )

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The number of each agent's first row."""
        return np.cumsum([0, *(len(record) for record in self.agents)])[:-1]


# --- requests -----------------------------------------------------------------------------


def numbered(market: Market, record: Record) -> tuple[str, ...]:
    """Names for the requests of a record: every `market.options` options are one."""
    return tuple(str(i // market.options) for i in range(len(record)))


def within_bounds(market: Market, requests: Iterable[Record]) -> Record:
    """The requests of a person, in order, within the bounds of a person.

    A request that goes beyond them is cut to a part that fits, or dropped.
    """
    if market.requests == 1:
        return next(iter(requests))
    count, found, m = Count(market.person_limits), list[Option](), len(market.declared)
    for request in requests:
        for part in (1.0, 0.5, 0.25, 0.1, 0.01):
            cut = tuple((part * v, tuple(part * a for a in amounts)) for v, amounts in request)
            cut = (cut * market.options)[: market.options]  # requests are told apart by number
            codes = [
                (market.value_code(v), [market.demand_code(j, a) for j, a in enumerate(own[:m])])
                for v, own in cut
            ]
            if count.admit(codes) is None:
                found += cut
                break
    return tuple(found)


# --- groups -------------------------------------------------------------------------------


def with_rules(market: Market, amounts: Sequence[float], group: int) -> tuple[float, ...]:
    """The amounts of all resources, if an agent of a group (-1: none) wants these declared ones.

    Members want what their group's caps limit; everybody else wants what is left by its reserve.
    """
    rest = [
        amounts[rule.base] if (rule.group == group) == rule.members else 0.0
        for _, rule in market.derived
    ]
    return (*amounts, *rest)


def group_of(market: Market, record: Record) -> str | None:
    """The name of the first group, if any, whose members may have this record.

    If there are several, the rules treat this record the same way in each.
    """
    count = len(market.declared)
    for group in range(-1, len(market.groups)):
        if all(with_rules(market, amounts[:count], group) == amounts for _, amounts in record):
            return None if group < 0 else market.groups[group].name
    return None  # an amount is not a number


def _widest(market: Market) -> int:
    """The group whose members ask for the most derived resources; -1 if there are no groups."""
    whole = [1.0] * len(market.declared)
    return max(range(-1, len(market.groups)), key=lambda g: sum(with_rules(market, whole, g)))


# --- neighbours ---------------------------------------------------------------------------


def nothing(market: Market) -> Record:
    """An agent who wants nothing, at value 0."""
    return ((0.0, (0.0,) * len(market.resources)),)


def everything(market: Market, first: int = 0, group: int | None = None) -> Record:
    """An agent who wants the most allowed at the highest value.

    Its bundle starts at the resource of number `first`. By default it is in the group that asks for
    most.
    """
    group = _widest(market) if group is None else group
    each = (
        ((market.max_value, with_rules(market, counted(market, caps_of(market, at)), group)),)
        for at in (first, *(first + i // 2 for i in range(1, market.requests)))
    )
    return within_bounds(market, each)


def caps_of(market: Market, first: int = 0) -> list[float]:
    """The caps of one bundle of declared resources, whatever the totals allow."""
    m = len(market.declared)
    wanted = {(first + j) % m for j in range(market.bundle_size)}
    return [r.max_demand if j in wanted else 0.0 for j, r in enumerate(market.declared)]


def candidates(
    market: Market, posted: Sequence[tuple[int, ...]], count: int, seed: int
) -> list[Record | None]:
    """Records that one agent might have, the most different first; None if it is absent.

    `posted` are prices at which choices should be close.
    """
    rng = np.random.default_rng([seed, 1])
    found: list[Record | None] = [nothing(market), everything(market)]
    if market.neighbours is Neighbours.ADD_REMOVE:
        found.insert(0, None)
    if market.bundle_size < len(market.declared):
        found.append(everything(market, market.bundle_size))
    if market.groups:
        found += [everything(market, 0, group) for group in range(-1, len(market.groups))]
    if market.totals:
        found += [everything(market, first) for first in (1, 2)]
    found.append(_modest(market, rng))
    for turn in range(count - len(found)):
        if not posted or turn % 5 == 0:
            found.append(_some(market, rng))
            continue
        prices = posted[turn % len(posted)]
        only = int(rng.integers(len(market.declared))) if turn % 2 else None
        found.append(_close(market, prices, rng, only))
    return found[:count]


def beyond(market: Market, turn: int) -> Record:
    """An agent who claims more than the public bounds allow; clamped, it counts for the bounds."""
    value, amounts, more = market.max_value, caps_of(market, turn), 10.0 ** (1 + turn)
    if market.totals and turn % 2:
        more = 1.0  # within every cap, but not within the totals
    group = turn % (len(market.groups) + 1) - 1
    options = [(value * more, with_rules(market, [a * more for a in amounts], group))]
    if market.options > 1:
        options.append(
            (value / 2, with_rules(market, [a * more for a in reversed(amounts)], group))
        )
    if market.requests > 1:  # and too many requests
        return tuple((options * market.options)[: market.options] * (market.requests + 2))
    return tuple(options)


def _close(
    market: Market, prices: tuple[int, ...], rng: np.random.Generator, only: int | None
) -> Record:
    """Options at the caps, of one or several resources, worth about what they cost."""
    group = _any_group(market, rng)
    own = (_close_request(market, prices, rng, only, group) for _ in range(market.requests))
    return within_bounds(market, own)


def _close_request(
    market: Market,
    prices: tuple[int, ...],
    rng: np.random.Generator,
    only: int | None,
    group: int,
) -> Record:
    m, caps = len(market.declared), [r.max_demand for r in market.declared]
    options = []
    for _ in range(int(rng.integers(1, market.options + 1))):
        wanted = [only] if only is not None else rng.permutation(m)[: market.bundle_size].tolist()
        own = counted(market, [caps[j] if j in wanted else 0.0 for j in range(m)])
        amounts = with_rules(market, own, group)
        cost = sum(market.demand_code(j, a) * prices[j] for j, a in enumerate(amounts))
        near = int(cost * float(rng.choice([0.9, 1.0, 1.0, 1.02, 1.1])))
        code = min(market.value_cap_code, -(-near // VALUE_UNITS))
        options.append((code * market.value_step, amounts))
    return tuple(options)


def _modest(market: Market, rng: np.random.Generator) -> Record:
    """An agent who wants so little that it accepts nearly any price."""
    value, amounts = everything(market)[0]
    parts = rng.uniform(0.001, 0.02, len(market.declared)).tolist()
    own = [a * part for a, part in zip(amounts, parts, strict=False)]
    return ((value, with_rules(market, own, _any_group(market, rng))),)


def _any_group(market: Market, rng: np.random.Generator) -> int:
    return int(rng.integers(-1, len(market.groups))) if market.groups else -1


def _some(market: Market, rng: np.random.Generator) -> Record:
    group = _any_group(market, rng)
    count = 1 if market.requests == 1 else int(rng.integers(1, market.requests + 1))
    return within_bounds(market, (_some_request(market, rng, group) for _ in range(count)))


def _some_request(market: Market, rng: np.random.Generator, group: int) -> Record:
    m, caps = len(market.declared), [r.max_demand for r in market.declared]
    options = []
    for _ in range(int(rng.integers(1, market.options + 1))):
        parts = rng.choice([rng.random(), 1.0, 0.5], m) * rng.uniform(0.5, 1.0, m)
        parts[rng.permutation(m)[market.bundle_size :]] = 0.0
        worth = float(rng.uniform(0.2, 1.0)) * float(parts.sum()) / market.bundle_size
        amounts = counted(market, [float(p) * cap for p, cap in zip(parts, caps, strict=True)])
        options.append((market.max_value * worth, with_rules(market, amounts, group)))
    return tuple(options)


# --- codes read back ----------------------------------------------------------------------


def _option_of(market: Market, value: int, codes: list[int]) -> Option:
    """The amounts that these codes stand for; encoding them gives the same codes again."""
    return value * market.value_step, tuple(
        min(code * unit, r.max_demand)
        for code, unit, r in zip(codes, market.unit_sizes, market.resources, strict=True)
    )


def _codes_of(part: Part, m: int) -> tuple[list[int], NDArray[np.int64]]:
    values, found = [], []
    for block, fill in enumerate(part.fill.tolist()):
        values += part.values[block, :fill].tolist()
        codes = np.zeros((fill, m), np.int64)
        pairs = part.pairs
        if pairs is None:
            codes[:] = part.codes[block, :, :fill].T
        else:
            for slot in range(int(pairs.offsets[block]), int(pairs.offsets[block + 1]), BLOCK):
                some = slice(slot, slot + fill)
                np.add.at(codes, (np.arange(fill), pairs.resources[some]), pairs.codes[some])
            rest = slice(int(pairs.rest_offsets[block]), int(pairs.rest_offsets[block + 1]))
            where = pairs.rest_rows[rest], pairs.rest_resources[rest]
            np.add.at(codes, where, pairs.rest_codes[rest])
        found.append(codes)
    return values, np.concatenate(found)
