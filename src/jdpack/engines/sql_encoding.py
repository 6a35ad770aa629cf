"""Private: check and encode records with SQL, where they are. The twin of `jdpack.records.encode`.

Three tables follow from each other: the source, whatever the curator gives; the options, one row
each, with amounts as doubles; and the codes (`jdpack.engines.sql_queries`). Codes are rounded as in
the kernels: a quotient rounded down, then corrected by a product that is exact.

What is refused is what `jdpack.records.encode` refuses, with two differences. Rows have no order in
a database, so the rows of an agent need not be adjacent. And requests that lead a person beyond a
bound are refused with `clamp` too, because leaving them out depends on their order.
"""

from __future__ import annotations

from dataclasses import dataclass

from jdpack.engines.sql_queries import Queries, _total, coin, number
from jdpack.market.grid import DEMAND_CODE_MAX
from jdpack.market.market import Market
from jdpack.market.totals import Total
from jdpack.records.databases.database import quoted
from jdpack.records.schema import is_long

SOURCE = "jd_source"
"""Stands for the table or query with the records."""


@dataclass(frozen=True)
class Encoding:
    """How the records of a market become codes."""

    market: Market
    clamp: bool
    text_ids: bool
    placed: bool
    """Whether the source has a column `jd_place` that orders its rows."""
    booleans: frozenset[str] = frozenset()
    """Columns that say whether a resource is asked for."""
    code_type: str = "INTEGER"
    value_type: str = "BIGINT"

    # --- options --------------------------------------------------------------------------

    def options(self) -> str:
        """One row per option: id, request, grp, place, opt (from 0), value and a<resource>."""
        own = self._long() if is_long(self.market) else self._wide()
        if self.market.options == 1:
            return f"SELECT *, 0 AS opt FROM ({own}) AS o"
        keys = ", ".join(Queries(self.market).keys)
        turn = f"ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY place)"
        return f"SELECT *, {turn} - 1 AS opt FROM ({own}) AS o"

    def _wide(self) -> str:
        market = self.market
        amounts = [f"{self._double(r.column)} AS a{j}" for j, r in enumerate(market.declared)]
        return f"SELECT {', '.join([*self._common(), *amounts])} FROM {SOURCE}"

    def _long(self) -> str:
        """Long tables: the pairs of each option in one row."""
        market, c = self.market, self.market.columns
        keys = [*Queries(market).keys, *(["option_name"] if market.options > 1 else [])]
        option = [f"CAST({quoted(c.option)} AS TEXT) AS option_name"] if market.options > 1 else []
        rows = f"CAST({quoted(c.resource)} AS TEXT) AS resource, {self._double(c.amount)} AS amount"
        pairs = f"SELECT {', '.join([*self._common(), *option])}, {rows} FROM {SOURCE}"
        amounts = ", ".join(
            f"COALESCE(MAX(CASE WHEN resource = {text(r.column)} THEN amount END), "
            f"{number(0.0)}) AS a{j}"
            for j, r in enumerate(market.declared)
        )
        known = ", ".join(text(r.column) for r in market.declared)
        fine = f"resource IS NULL OR resource IN ({known})"
        checks = {
            "unknown": f"SUM(CASE WHEN {fine} THEN 0 ELSE 1 END)",
            "half": "SUM(CASE WHEN (resource IS NULL) <> (amount IS NULL) THEN 1 ELSE 0 END)",
            "twice": "COUNT(resource) - COUNT(DISTINCT resource)",
            "values_of": "CASE WHEN MIN(value) < MAX(value) THEN 2 ELSE 1 END",
            # The largest and smallest amounts, so that none is lost in the maximum above.
            "least": "MIN(amount)",
        }
        more = ", ".join(f"{sql} AS {name}" for name, sql in checks.items())
        group = "MIN(grp) AS grp, CASE WHEN COUNT(*) = COUNT(grp) AND MIN(grp) = MAX(grp) OR "
        group += "COUNT(grp) = 0 THEN 1 ELSE 2 END AS groups_of"
        group = f", {group}" if market.groups else ""
        place = ", MIN(place) AS place" if self.placed else ""
        value = "CASE WHEN COUNT(value) = COUNT(*) THEN MAX(value) END AS value"  # none may lack
        columns = f"{', '.join(keys)}{group}{place}, {value}, {amounts}, {more}"
        return f"SELECT {columns} FROM ({pairs}) AS pairs GROUP BY {', '.join(keys)}"

    def _common(self) -> list[str]:
        """The columns that wide and long tables share."""
        market, c = self.market, self.market.columns
        own = [f"CAST({quoted(c.id)} AS {'TEXT' if self.text_ids else 'BIGINT'}) AS id"]
        if market.requests > 1:
            own.append(f"CAST({quoted(c.request)} AS TEXT) AS request")
        if market.groups:
            own.append(f"CAST({quoted(c.group)} AS TEXT) AS grp")
        if self.placed:
            own.append("jd_place AS place")
        return [*own, f"{self._double(c.value)} AS value"]

    def _double(self, name: str) -> str:
        if name in self.booleans:
            own, yes, no = quoted(name), number(1.0), number(0.0)
            return f"CASE WHEN {own} THEN {yes} WHEN NOT {own} THEN {no} END"
        return f"CAST({quoted(name)} AS DOUBLE)"

    # --- checks ---------------------------------------------------------------------------

    @property
    def _caps(self) -> list[tuple[str, float]]:
        declared = self.market.declared
        caps = [(f"a{j}", r.max_demand) for j, r in enumerate(declared)]
        return [("value", self.market.max_value), *caps]

    def problems(self) -> list[tuple[str, str]]:
        """What can be wrong with an option, first things first: a name, and how to see it."""
        market = self.market
        found = [("no id", "id IS NULL")]
        if market.requests > 1:
            found.append(("no request", "request IS NULL"))
        if is_long(market):
            found += [("half", "half > 0"), ("unknown", "unknown > 0"), ("twice", "twice > 0")]
            found += [("values", "values_of > 1"), ("negative", f"least < {number(0.0)}")]
            if market.groups:
                found.append(("groups", "groups_of > 1"))
            if market.options > 1:
                found.append(("no option", "option_name IS NULL"))
        for name, cap in self._caps:
            most = number(float("inf")) if self.clamp else number(cap)
            below = "<" if self.clamp else "<="
            fine = f"{name} >= {number(0.0)} AND {name} {below} {most}"
            found.append((name, f"{name} IS NULL OR NOT ({fine})"))
        if market.options > 1:
            found.append(("options", f"opt >= {market.options}"))
        if market.bundle_size < len(market.declared):
            width = self._width()
            found.append(("bundle", f"{width} > {market.bundle_size}"))
        if not self.clamp:
            for t, total in enumerate(market.totals):
                found.append((f"total {t}", f"{_counted(total)} > {wide(total.limit)}"))
        return found

    def check(self) -> str:
        """How many rows there are, are bad, and have numbers that are clamped."""
        cases = [f"WHEN {test} THEN {at}" for at, (_, test) in enumerate(self.problems(), 1)]
        problem = f"CASE {' '.join(cases)} ELSE 0 END"
        clamped = [
            f"CASE WHEN {name} > {number(cap)} THEN 1 ELSE 0 END" for name, cap in self._caps
        ]
        clamped += [
            f"CASE WHEN {_counted(total)} > {wide(total.limit)} THEN 1 ELSE 0 END"
            for total in self.market.totals
        ]
        own = (
            f"SELECT {problem} AS problem, {_total(clamped)} AS clamped FROM ({self._coded()}) AS t"
        )
        bad = "SUM(CASE WHEN problem > 0 THEN 1 ELSE 0 END)"
        return f"SELECT COUNT(*), {bad}, SUM(clamped) FROM ({own}) AS checked"

    def first_bad(self) -> str:
        """A row that is refused: its problem, its id, and its numbers."""
        cases = [f"WHEN {test} THEN {at}" for at, (_, test) in enumerate(self.problems(), 1)]
        numbers = ", ".join(name for name, _ in self._caps)
        columns = f"CASE {' '.join(cases)} ELSE 0 END AS problem, id, {numbers}"
        own = f"SELECT {columns} FROM ({self._coded()}) AS t"
        return f"SELECT * FROM ({own}) AS bad WHERE problem > 0 ORDER BY problem, id LIMIT 1"

    def _width(self) -> str:
        return _total(
            [f"CASE WHEN c{j} > 0 THEN 1 ELSE 0 END" for j in range(len(self.market.declared))]
        )

    # --- codes ----------------------------------------------------------------------------

    def _coded(self) -> str:
        """The options with the code v of the value and the codes c<j> of the amounts, uncut."""
        market = self.market
        steps = [market.value_step, *market.unit_sizes[: len(market.declared)]]
        cut = [_at_most(name, cap) for name, cap in self._caps]
        floors = ", ".join(
            f"FLOOR({k} / {number(step)}) AS q{i}"
            for i, (k, step) in enumerate(zip(cut, steps, strict=True))
        )
        own = f"SELECT *, {floors} FROM ({self.options()}) AS o"
        value = f"CASE WHEN q0 * {number(steps[0])} > {cut[0]} THEN q0 - 1 ELSE q0 END"
        codes = [f"CAST({value} AS BIGINT) AS v"]
        for i, (k, step) in enumerate(zip(cut[1:], steps[1:], strict=True), 1):
            code = f"CASE WHEN q{i} * {number(step)} < {k} THEN q{i} + 1 ELSE q{i} END"
            codes.append(f"CAST({code} AS BIGINT) AS c{i - 1}")
        return f"SELECT *, {', '.join(codes)} FROM ({own}) AS q"

    def codes(self) -> str:
        """The table of codes, for `CREATE TABLE ... AS`."""
        market, queries = self.market, Queries(self.market)
        own, declared = self._coded(), range(len(market.declared))
        for total in market.totals if self.clamp else ():
            cut = _cut_codes(total)
            kept = ", ".join(
                [
                    "opt",
                    "v",
                    *queries.keys,
                    *self._others(),
                    *(f"c{j}" for j in declared if j not in cut),
                ]
            )
            more = ", ".join(f"{sql} AS c{j}" for j, sql in cut.items())
            own = f"SELECT {kept}, {more} FROM ({own}) AS t"
        every = []
        for j, r in enumerate(market.resources):
            if r.derived is None:
                every.append(f"c{j}")
                continue
            name = text(market.groups[r.derived.group].name)
            first, second = f"c{r.derived.base}", "0"
            if not r.derived.members:
                first, second = second, first
            every.append(f"CASE WHEN grp = {name} THEN {first} ELSE {second} END")
        place = ["MIN(place) AS place"] if self.placed else []
        if market.options == 1:
            values = [f"CAST(v AS {self.value_type}) AS v0"]
            codes = [f"CAST({c} AS {self.code_type}) AS c0_{j}" for j, c in enumerate(every)]
            rest = ["place"] if self.placed else []
            columns = [*queries.keys, f"{self._hash()} AS h", *rest, *values, *codes]
            return f"SELECT {', '.join(columns)} FROM ({own}) AS coded"
        each = range(market.options)
        values = [
            f"CAST(MAX(CASE WHEN opt = {o} THEN v END) AS {self.value_type}) AS v{o}" for o in each
        ]
        codes = [
            f"CAST(MAX(CASE WHEN opt = {o} THEN {c} END) AS {self.code_type}) AS c{o}_{j}"
            for o in each
            for j, c in enumerate(every)
        ]
        names = [
            f"MAX(CASE WHEN opt = {o} THEN option_name END) AS {name}"
            for o, name in enumerate(queries.names)
        ]
        keys = ", ".join(queries.keys)
        columns = [*queries.keys, *place, *names, *values, *codes]
        own = f"SELECT {', '.join(columns)} FROM ({own}) AS coded GROUP BY {keys}"
        return f"SELECT *, {self._hash()} AS h FROM ({own}) AS pivoted"

    def _others(self) -> list[str]:
        named = ["option_name"] if Queries(self.market).names else []
        return [
            *(["grp"] if self.market.groups else []),
            *(["place"] if self.placed else []),
            *named,
        ]

    def _hash(self) -> str:
        return coin("id", bytes(16), request=self.market.requests > 1)

    # --- people ---------------------------------------------------------------------------

    def groups(self) -> str:
        """An agent whose rows name several groups, if any."""
        own = "SELECT id, COUNT(*) AS n, COUNT(grp) AS g, MIN(grp) AS l, MAX(grp) AS m FROM "
        own += f"({self.options()}) AS o GROUP BY id"
        return f"SELECT id FROM ({own}) AS p WHERE g > 0 AND (g < n OR l <> m) ORDER BY id LIMIT 1"


def outside(market: Market, table: str) -> str:
    """How many numbers in the table of codes, or sums of them, are beyond the market's bounds.

    Sensitivities rest on these codes. They come from another reading of the source than the one
    that was checked, and a query may give other rows each time, such as a sample.
    """
    terms = []

    def most(number: str, limit: str, o: int) -> None:
        fine = f"{number} >= 0 AND {number} <= {limit}"
        fine = fine if o == 0 else f"v{o} IS NULL OR {fine}"
        terms.append(f"CASE WHEN {fine} THEN 0 ELSE 1 END")

    for o in range(market.options):
        codes = [f"c{o}_{j}" for j in range(len(market.resources))]
        most(f"v{o}", str(market.value_cap_code), o)
        for code in codes:
            most(code, str(DEMAND_CODE_MAX), o)
        width = _total([f"CASE WHEN {code} > 0 THEN 1 ELSE 0 END" for code in codes])
        most(width, str(market.bundle_width), o)
        for total in market.totals:
            most(_counted(total, f"c{o}_"), wide(total.limit), o)
    return f"SELECT SUM({_total(terms)}) FROM {table}"


def people(market: Market, table: str) -> list[tuple[str, str]]:
    """For each bound on what one person asks for in total: its name, and who exceeds it.

    `jdpack.market.person` says how requests count.
    """
    limits, options = market.person_limits, range(market.options)

    def largest(column: str) -> str:
        each = [f"COALESCE({column.format(o)}, 0)" for o in options]
        return each[0] if len(each) == 1 else f"GREATEST({', '.join(each)})"

    def steps(j: int) -> str:
        each = [f"CASE WHEN c{o}_{j} > 1 THEN c{o}_{j} - 1 ELSE 0 END" for o in options]
        return each[0] if len(each) == 1 else f"GREATEST({', '.join(each)})"

    goods = range(len(market.declared))
    width = [_total([f"CASE WHEN c{o}_{j} > 0 THEN 1 ELSE 0 END" for j in goods]) for o in options]
    touched = _total(
        [
            "MAX(CASE WHEN " + " OR ".join(f"c{o}_{j} > 0" for o in options) + " THEN 1 ELSE 0 END)"
            for j in goods
        ]
    )
    most = width[0] if len(width) == 1 else f"GREATEST({', '.join(width)})"
    tests = [
        ("requests", f"COUNT(*) > {limits.requests}"),
        ("max_value", f"SUM({largest('v{}')}) > {limits.value}"),
        ("bundle_size", f"SUM({most}) > {limits.bundle} AND {touched} > {limits.bundle}"),
    ]
    tests += [
        ("max_demand", f"SUM({steps(j)}) > {limits.steps[j]}")
        for j in goods
        if limits.steps[j] < market.requests * 65535
    ]
    for total in limits.totals:
        each = [_counted(total, f"c{o}_") for o in options]
        own = each[0] if len(each) == 1 else f"GREATEST({', '.join(each)})"
        tests.append(("max_total", f"SUM({own}) > {wide(total.limit)}"))
    return [
        (name, f"SELECT id FROM {table} GROUP BY id HAVING {test} ORDER BY id LIMIT 1")
        for name, test in tests
    ]


def text(value: str) -> str:
    """A text."""
    return "'" + value.replace("'", "''") + "'"


def wide(whole: int) -> str:
    """A whole number of up to 38 digits; `JD_WIDE` is the type for that."""
    return f"JD_WIDE('{whole}')"


def _counted(total: Total, column: str = "c") -> str:
    """What an option is sure to ask for of a total, in whole numbers of its quantum."""
    return _total(
        [
            f"CASE WHEN {column}{j} > 1 THEN JD_WIDE({column}{j} - 1) * {wide(size)} "
            f"ELSE {wide(0)} END"
            for j, size in zip(total.resources, total.sizes, strict=True)
        ]
    )


def _cut_codes(total: Total) -> dict[int, str]:
    """`Total.cut`: codes are kept while they fit, then the largest that fits, then none."""
    found: dict[int, str] = {}
    sums: list[str] = []
    for j, size in zip(total.resources, total.sizes, strict=True):
        before = _total(sums) if sums else wide(0)
        sums.append(f"CASE WHEN c{j} > 1 THEN JD_WIDE(c{j} - 1) * {wide(size)} ELSE {wide(0)} END")
        limit = wide(total.limit)
        largest = f"CAST(JD_DIV(({limit} - ({before})), {wide(size)}) AS BIGINT) + 1"
        found[j] = (
            f"CASE WHEN c{j} = 0 OR {_total(sums)} <= {limit} THEN c{j} "
            f"WHEN {before} <= {limit} THEN {largest} ELSE 0 END"
        )
    return found


def _at_most(name: str, cap: float) -> str:
    return f"CASE WHEN {name} > {number(cap)} THEN {number(cap)} ELSE {name} END"
