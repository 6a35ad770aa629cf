"""Private: the queries of a run as SQL over a table of codes, exact in every database.

The table has one row per request: its agent's `id` and, if agents may make several, the name of the
`request`; `h`, a hash of both; and for each option o its value code `v<o>` and its demand codes
`c<o>_<resource>`. An option that a request does not have is null. So every query reads each row
once and needs no join and no sort.

Why the numbers are exact. Costs are sums of codes times prices in doubles, which decide exactly
(`jdpack.market.market`) and take less time than integers, whose overflow databases check. The
curvature queries compute in doubles, in the same order as `jdpack.engines.curvature`. They only
add, multiply, divide and take roots, which IEEE 754 rounds the same way everywhere. Everything that
is summed is a 64-bit integer, cut in two where a sum might exceed 63 bits.

The text is in the dialect of DuckDB; `jdpack.engines.warehouse` translates it. `JD_COIN` and
`JD_BYTES` stand for what every database writes in its own way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from jdpack.market.grid import (
    BAND,
    CHANCE_MAX,
    CURVATURE_UNIT,
    PRICE_UNITS_PER_VALUE_CODE,
    SHARE,
)
from jdpack.market.market import Market
from jdpack.records.digest import DIGEST_PRIME, digest_keys

_ABSENT, _MASKED = -1e300, -2e300  # below every surplus
_OPEN = -2  # stands for the option that is taken, if that depends on prices
_TERMS = 2000  # products in one query; larger texts take databases long to plan
_COLUMNS = 800  # numbers that one query returns; PostgreSQL has a limit of 1664

WholePrices = Sequence[int]
T = TypeVar("T")


@dataclass(frozen=True)
class Queries:
    """The queries about the agents of a market."""

    market: Market

    @property
    def keys(self) -> list[str]:
        """The columns that tell requests apart."""
        return ["id", "request"] if self.market.requests > 1 else ["id"]

    @property
    def columns(self) -> list[str]:
        """The columns of the table of codes, besides what orders its rows."""
        codes = [f"c{o}_{j}" for o in self._options for j in self._resources]
        return [*self.keys, "h", *self.names, *(f"v{o}" for o in self._options), *codes]

    @property
    def names(self) -> list[str]:
        """The columns with the names of options, if the table has them."""
        named = self.market.options > 1 and self.market.columns.layout == "long"
        return [f"n{o}" for o in self._options] if named else []

    @property
    def _options(self) -> range:
        return range(self.market.options)

    @property
    def _resources(self) -> range:
        return range(len(self.market.resources))

    # --- what is taken at posted prices ---------------------------------------------------

    def demand(self, table: str, prices: WholePrices) -> str:
        """How many codes of each resource are taken, and their value: m + 1 numbers."""
        if self.market.options == 1:
            sums = [*(f"SUM(c0_{j})" for j in self._resources), "SUM(v0)"]
            return f"SELECT {', '.join(sums)} FROM {table} WHERE {_affordable(prices)}"
        return self._taken(table, [number(p) for p in prices])

    def batch_demand(self, table: str, batches: Sequence[tuple[int, WholePrices]]) -> list[str]:
        """The demand of some turns, each at its own prices; the answers add up."""
        found = []
        for some in _cut(batches, len(self._resources), _TERMS):
            own = f"{table} JOIN {_price_table(some)} ON {table}.turn = prices.turn"
            found.append(self._taken(own, [f"p{j}" for j in self._resources]))
        return found

    def _taken(self, table: str, prices: Sequence[str]) -> str:
        return self._sums(self._chosen(table, prices))

    def _sums(self, chosen: str) -> str:
        codes = [
            f"SUM(CASE {_by_option('taken', 'c{}_' + str(j), self._options)} END)"
            for j in self._resources
        ]
        value = f"SUM(CASE {_by_option('taken', 'v{}', self._options)} END)"
        return f"SELECT {', '.join(codes)}, {value} FROM ({chosen}) AS t WHERE taken >= 0"

    def sure(self, table: str, low: WholePrices, high: WholePrices) -> str:
        """What is taken at all prices between two, and its value."""
        if self.market.options == 1:  # what is taken at the highest
            return self.demand(table, high)
        return self._sums(self._decided(table, low, high))

    def open(self, table: str, low: WholePrices, high: WholePrices) -> str:
        """The table without the requests that make the same choice at all prices between two."""
        own = self._decided(table, low, high)
        return f"SELECT {self._codes} FROM ({own}) AS t WHERE taken = {_OPEN}"

    def _decided(self, table: str, low: WholePrices, high: WholePrices) -> str:
        """The table with `taken`, the option that is taken at all prices between two.

        It is -1 if none is taken at any of them, and _OPEN if that depends on the price
        (`jdpack.engines.screening`). `most<o>` and `least<o>` are the bounds of a surplus.
        """
        bounds = ", ".join(
            f"{self._surplus(o, [number(p) for p in prices])} AS {name}{o}"
            for name, prices in (("most", low), ("least", high))
            for o in self._options
        )
        own = f"SELECT {self._codes}, {bounds} FROM {table}"
        cases = []
        for o in self._options:
            tests = [f"least{o} > most{k}" for k in self._options if k != o]
            tests.append(f"least{o} >= {number(0.0)}")
            cases.append(f"WHEN {' AND '.join(tests)} THEN {o}")
        never = " AND ".join(f"most{o} < {number(0.0)}" for o in self._options)
        taken = f"CASE {' '.join(cases)} WHEN {never} THEN -1 ELSE {_OPEN} END AS taken"
        return f"SELECT *, {taken} FROM ({own}) AS s"

    def _chosen(self, table: str, prices: Sequence[str], more: str = "") -> str:
        """The table with `taken`, the number of the option that each request takes, or -1."""
        surpluses = ", ".join(f"{self._surplus(o, prices)} AS s{o}" for o in self._options)
        own = f"SELECT {self._codes}{more}, {surpluses} FROM {table}"
        names = [f"s{o}" for o in self._options]
        return f"SELECT *, {_first_best(names, affordable=True)} AS taken FROM ({own}) AS s"

    @property
    def _codes(self) -> str:
        return ", ".join(self.columns)

    def _surplus(self, o: int, prices: Sequence[str]) -> str:
        own = f"{_worth(o)} - {_cost(o, prices)}"
        return own if o == 0 else f"COALESCE({own}, {number(_ABSENT)})"

    # --- close calls ----------------------------------------------------------------------

    def curvature(self, table: str, prices: WholePrices) -> list[tuple[list[tuple[int, int]], str]]:
        """The curvature: for each query, which entries it returns, and its text.

        Entries that no query returns are those below the diagonal, and those of free resources.
        """
        priced = [j for j in self._resources if prices[j] > 0]
        entries = [(j, k) for j in priced for k in priced if j <= k]
        found = []
        for some in (entries[at : at + _COLUMNS] for at in range(0, len(entries), _COLUMNS)):
            own = sorted({j for pair in some for j in pair})
            unit = {j: number(CURVATURE_UNIT * prices[j]) for j in own}
            roots = ", ".join(
                f"{self._truncated(j, f'SQRT({unit[j]} / costs)', '{} * {}')} AS r{j}" for j in own
            )
            inner = f"SELECT {roots} FROM ({self._close(table, prices, own)}) AS d"
            sums = ", ".join(f"SUM(r{j} * r{k})" for j, k in some)
            found.append((some, f"SELECT {sums} FROM ({inner}) AS r"))
        return found

    def gauge(self, table: str, prices: WholePrices) -> str:
        """The curvature's diagonal at resources that are not free, its level and its spread."""
        priced = [j for j in self._resources if prices[j] > 0]
        unit, whole = number(CURVATURE_UNIT), number(math.fsum(prices))
        share = f"{unit} * ({{}} * {{}}) / costs"
        shares = ", ".join(
            f"{self._truncated(j, number(prices[j]), share)} AS t{j}" for j in priced
        )
        net = _total([f"d{j} * {number(prices[j])}" for j in priced])
        own = ", ".join(f"CAST(d{j} AS BIGINT) AS d{j}" for j in priced)
        inner = f"SELECT {own}, {shares}, {net} AS net, costs FROM "
        inner += f"({self._close(table, prices, priced)}) AS d"
        level = _whole(f"{unit} * (net / costs) * (net / {whole})")
        trace = _total([f"d{j} * t{j}" for j in priced])
        more = ", ".join(f"d{j} * t{j} AS e{j}" for j in priced)
        level = f"SELECT {more}, {level} AS level, {trace} AS trace FROM ({inner}) AS n"
        sums = [*(f"SUM(e{j})" for j in priced), "SUM(level)"]
        sums.append("SUM(CASE WHEN trace > level THEN trace - level ELSE 0 END)")
        return f"SELECT {', '.join(sums)} FROM ({level}) AS l"

    def _truncated(self, j: int, times: str, text: str) -> str:
        """An expression of `d<j>` and another number, rounded towards 0."""
        up = _whole(text.format(f"d{j}", times))
        if self.market.options == 1:  # differences are not negative
            return up
        return f"CASE WHEN d{j} < 0 THEN -{_whole(text.format(f'(-d{j})', times))} ELSE {up} END"

    def _close(self, table: str, prices: WholePrices, resources: Sequence[int]) -> str:
        """The differences `d<j>` between the two best choices, where they are close, and `costs`.

        Their sign is that of the best option; which of the two is the better one does not matter.
        """
        texts, band = [number(p) for p in prices], number(BAND)
        if self.market.options == 1:
            own = f"SELECT {self._codes}, {_cost(0, texts)} AS costs FROM {table}"
            d = ", ".join(f"CAST(c0_{j} AS DOUBLE) AS d{j}" for j in resources)
            close = f"ABS({_worth(0)} - costs) <= {band} * costs AND costs > {number(0.0)}"
            return f"SELECT {d}, costs FROM ({own}) AS c WHERE {close}"
        names = [f"s{o}" for o in self._options]
        costs = ", ".join(
            f"COALESCE({_cost(o, texts)}, {number(0.0)}) AS k{o}" for o in self._options
        )
        own = f"SELECT {self._codes}, {costs} FROM {table}"
        surplus = ", ".join(
            f"COALESCE({_worth(o)} - k{o}, {number(_ABSENT)}) AS s{o}" for o in self._options
        )
        own = f"SELECT *, {surplus} FROM ({own}) AS k"
        own = f"SELECT *, {_first_best(names)} AS b FROM ({own}) AS s"
        masked = ", ".join(
            f"CASE WHEN b = {o} THEN {number(_MASKED)} ELSE s{o} END AS u{o}" for o in self._options
        )
        own = f"SELECT *, {masked} FROM ({own}) AS b"
        own = f"SELECT *, {_first_best([f'u{o}' for o in self._options])} AS q FROM ({own}) AS u"

        def of(which: str, column: str) -> str:
            return f"CASE {_by_option(which, column, self._options)} END"

        parts = f"{of('b', 's{}')} AS best, {of('q', 's{}')} AS next"
        parts += f", {of('b', 'k{}')} AS cost_b, {of('q', 'k{}')} AS cost_q"
        own = f"SELECT *, {parts} FROM ({own}) AS q"
        zero = number(0.0)
        two = f"CASE WHEN best >= {zero} AND next > {zero} THEN 1 ELSE 0 END AS two"
        own = f"SELECT *, {two} FROM ({own}) AS p"
        gap = "CASE WHEN two = 1 THEN best - next ELSE ABS(best) END AS gap"
        both = "CASE WHEN two = 1 THEN cost_b + cost_q ELSE cost_b END AS costs"
        own = f"SELECT *, {gap}, {both} FROM ({own}) AS w"
        d = ", ".join(
            f"CAST({of('b', 'c{}_' + str(j))} AS DOUBLE) - CAST(CASE WHEN two = 1 THEN "
            f"{of('q', 'c{}_' + str(j))} ELSE 0 END AS DOUBLE) AS d{j}"
            for j in resources
        )
        where = f"gap <= {band} * costs AND costs > {zero}"
        return f"SELECT {d}, costs FROM ({own}) AS g WHERE {where}"

    # --- the averaged allocation ----------------------------------------------------------

    def shares(self, table: str, rounds: Sequence[tuple[WholePrices, int]], order: str) -> str:
        """The table with the averaged shares `a<o>`; `order` is what orders its rows, if any."""
        weight = sum(w for _, w in rounds)
        m, options = len(self._resources), self.market.options
        # With several options, each is a column per round, and some hundreds are enough.
        chunks = _cut(rounds, m if options == 1 else max(m, 4) * options, _TERMS)
        if len(chunks) == 1:
            own = self._won(table, rounds, f"{self._codes}{order and f', {order}'}")
        else:
            keys = ", ".join(self.keys)
            parts = " UNION ALL ".join(self._won(table, chunk, keys) for chunk in chunks)
            sums = ", ".join(f"SUM(w{o}) AS w{o}" for o in self._options)
            added = f"SELECT {keys}, {sums} FROM ({parts}) AS parts GROUP BY {keys}"
            same = " AND ".join(f"{table}.{key} = added.{key}" for key in self.keys)
            codes = ", ".join(f"{table}.{name}" for name in self.columns)
            more = order and f", {table}.{order}"
            own = f"SELECT {codes}{more}, {self._w} FROM {table} JOIN ({added}) AS added ON {same}"
        shares = ", ".join(
            f"CAST(CAST(w{o} AS BIGINT) * {SHARE} // {weight} AS INTEGER) AS a{o}"
            for o in self._options
        )
        return f"SELECT {self._codes}{order and f', {order}'}, {shares} FROM ({own}) AS won"

    @property
    def _w(self) -> str:
        return ", ".join(f"w{o}" for o in self._options)

    def _won(self, table: str, rounds: Sequence[tuple[WholePrices, int]], kept: str) -> str:
        """Some columns of the table, and `w<o>`: the weight of the rounds that took each option."""
        if self.market.options == 1:
            low = [min(column) for column in zip(*(p for p, _ in rounds), strict=True)]
            high = [max(column) for column in zip(*(p for p, _ in rounds), strict=True)]
            won = _total([f"CASE WHEN {_affordable(p)} THEN {w} ELSE 0 END" for p, w in rounds])
            whole = sum(w for _, w in rounds)
            # Whoever can pay the highest prices takes it in every round, so most need not be asked.
            case = f"WHEN {_affordable(high)} THEN {whole} WHEN NOT {_affordable(low)} THEN 0"
            own = f"CASE {case} ELSE {won} END"
            return f"SELECT {kept}, CAST({own} AS BIGINT) AS w0 FROM {table}"
        each = ", ".join(
            f"{self._surplus(o, [number(p) for p in prices])} AS s{t}_{o}"
            for t, (prices, _) in enumerate(rounds)
            for o in self._options
        )
        own = f"SELECT {kept}, {each} FROM {table}"
        taken = ", ".join(
            f"{_first_best([f's{t}_{o}' for o in self._options], affordable=True)} AS t{t}"
            for t in range(len(rounds))
        )
        own = f"SELECT {kept}, {taken} FROM ({own}) AS s"
        won = ", ".join(
            _total([f"CASE WHEN t{t} = {o} THEN {w} ELSE 0 END" for t, (_, w) in enumerate(rounds)])
            + f" AS w{o}"
            for o in self._options
        )
        return f"SELECT {kept}, {won} FROM ({own}) AS t"

    def batch_shares(
        self, table: str, batches: Sequence[tuple[int, WholePrices]], order: str
    ) -> str:
        """`shares` where each agent is asked in one round: all or nothing."""
        more, parts = order and f", {order}", []
        for some in _cut(batches, len(self._resources), _TERMS):
            own = f"{table} JOIN {_price_table(some)} ON {table}.turn = prices.turn"
            own = self._chosen(own, [f"p{j}" for j in self._resources], more)
            parts.append(f"SELECT {self._codes}{more}, taken FROM ({own}) AS chosen")
        asked = len(batches)
        rest = f"SELECT {self._codes}{more}, -1 AS taken FROM {table} WHERE turn >= {asked}"
        shares = ", ".join(
            f"CAST(CASE WHEN taken = {o} THEN {SHARE} ELSE 0 END AS INTEGER) AS a{o}"
            for o in self._options
        )
        union = " UNION ALL ".join([*parts, rest])
        return f"SELECT {self._codes}{more}, {shares} FROM ({union}) AS asked"

    def turns(self, table: str, order: str, key: bytes, count: int) -> str:
        """The table with the `turn` of each agent among `count` batches (`common.batches.turn`)."""
        place = f"({coin('id', key, request=False)}) // 512"
        own = f"SELECT {self._codes}{order and f', {order}'}, {place} AS place44 FROM {table}"
        high, low = f"place44 // {2**22}", f"place44 % {2**22}"
        turn = f"(({high}) * {count} + (({low}) * {count}) // {2**22}) // {2**22}"
        columns = f"{self._codes}{order and f', {order}'}"
        return f"SELECT {columns}, CAST({turn} AS INTEGER) AS turn FROM ({own}) AS p"

    def welfare(self, shares: str) -> str:
        """The value of the averaged shares, in value codes."""
        return f"SELECT SUM({self._value('a')}) FROM {shares}"

    def _value(self, given: str) -> str:
        return _total(
            [_or_zero(o, f"CAST(v{o} AS BIGINT) * {given}{o} // {SHARE}") for o in self._options]
        )

    def chance(self, shares: str, dearest: int) -> list[str]:
        """The chance query, in pieces of some resources each; the last has the value too."""
        tossed = " OR ".join(f"(a{o} > 0 AND a{o} < {SHARE})" for o in self._options)
        found = []

        def moment(j: int, code: str) -> str:
            return _total([_or_zero(o, f"{code.format(o=o, j=j)} * a{o}") for o in self._options])

        first, second = "CAST(c{o}_{j} AS BIGINT)", "CAST(c{o}_{j} AS BIGINT) * c{o}_{j}"
        for some in _cut(list(self._resources), 1, _COLUMNS // 2):
            moments = ", ".join(
                f"{moment(j, first)} AS first_{j}, {moment(j, second)} AS second_{j}" for j in some
            )
            own = f"SELECT {moments} FROM {shares} WHERE {tossed}"
            sums = ", ".join(f"SUM({_variance(f'first_{j}', f'second_{j}')})" for j in some)
            found.append(f"SELECT {sums} FROM ({own}) AS moments")
        found.append(self._value_chance(shares, tossed, dearest))
        return found

    def _value_chance(self, shares: str, tossed: str, dearest: int) -> str:
        own = f"SELECT * FROM {shares} WHERE {tossed}"
        least = "0"
        if self.market.options > 1:
            some = [f"CASE WHEN a{o} > 0 THEN v{o} ELSE {2**62} END" for o in self._options]
            total = _total([f"a{o}" for o in self._options])
            count = _total([f"CASE WHEN v{o} IS NULL THEN 0 ELSE 1 END" for o in self._options])
            parts = f"{total} AS whole, {count} AS n, LEAST({', '.join(some)}) AS least_value"
            own = f"SELECT *, {parts} FROM ({own}) AS t"
            least = f"CASE WHEN n = 1 OR whole < {SHARE} - n THEN 0 ELSE least_value END"
        own = f"SELECT *, {least} AS least FROM ({own}) AS l"
        codes = ", ".join(
            f"CASE WHEN a{o} > 0 THEN LEAST(((CAST(v{o} AS BIGINT) - least) * 65536 + "
            f"{dearest - 1}) // {dearest}, 65536) ELSE 0 END AS k{o}"
            for o in self._options
        )
        own = f"SELECT *, {codes} FROM ({own}) AS k"
        first = _total([f"k{o} * a{o}" for o in self._options])
        second = _total([f"k{o} * k{o} * a{o}" for o in self._options])
        own = f"SELECT {first} AS first_v, {second} AS second_v FROM ({own}) AS m"
        variance = f"LEAST({_variance('first_v', 'second_v')}, {CHANCE_MAX})"
        return f"SELECT SUM({variance}) FROM ({own}) AS v"

    # --- what coins give ------------------------------------------------------------------

    def given(
        self,
        shares: str,
        seed: bytes,
        factors: Sequence[int],
        drop_from: int | None = None,
        order: str = "",
    ) -> str:
        """The averaged shares with what is given, `g<o>`, in units of 1/SHARE.

        `won` is 1 for requests that get something before any are dropped.
        """
        scales = ", ".join(f"{self._factor(o, factors)} AS f{o}" for o in self._options)
        own = f"SELECT *, {scales} FROM {shares}"
        if self.market.divisible:
            given = [f"CAST(a{o} AS BIGINT) * f{o} // {SHARE}" for o in self._options]
        else:
            # A full, unscaled share is granted whatever the coin; an empty one never is.
            tossed = " OR ".join(
                f"(a{o} > 0 AND (a{o} < {SHARE} OR f{o} < {SHARE}))" for o in self._options
            )
            flipped = f"CASE WHEN {tossed} THEN {self._coin(seed)} ELSE 0 END"
            own = f"SELECT *, {flipped} AS coin FROM ({own}) AS f"
            given = []
            for o in self._options:
                before = _total([f"a{k}" for k in range(o)]) if o else "0"
                begin = f"CAST({before} AS BIGINT) * {2**29}"
                width = f"CAST(a{o} AS BIGINT) * f{o} * 32"
                inside = f"coin >= {begin} AND coin < {begin} + {width}"
                given.append(f"CASE WHEN {inside} THEN {SHARE} ELSE 0 END")
        each = ", ".join(f"{text} AS g{o}" for o, text in enumerate(given))
        own = f"SELECT *, {each} FROM ({own}) AS c"
        wins = " OR ".join(f"g{o} > 0" for o in self._options)
        own = f"SELECT *, CASE WHEN {wins} THEN 1 ELSE 0 END AS won FROM ({own}) AS g"
        if drop_from is None:
            return own
        dropped = f"CASE WHEN won = 1 THEN {self._coin(seed)} ELSE 0 END AS drop_coin"
        own = f"SELECT *, {dropped} FROM ({own}) AS w"
        kept = ", ".join(
            f"CASE WHEN drop_coin < {drop_from} THEN g{o} ELSE 0 END AS g{o}" for o in self._options
        )
        shared = ", ".join(f"a{o}" for o in self._options)
        columns = f"{self._codes}{order and f', {order}'}, {shared}, won, {kept}"
        return f"SELECT {columns} FROM ({own}) AS d"

    def _coin(self, seed: bytes) -> str:
        return coin("id", seed, request=self.market.requests > 1)

    def _factor(self, o: int, factors: Sequence[int]) -> str:
        """The smallest factor of the resources that an option touches."""
        some = [
            f"CASE WHEN c{o}_{j} > 0 THEN {f} ELSE {SHARE} END"
            for j, f in enumerate(factors)
            if f < SHARE
        ]
        return f"LEAST({', '.join([str(SHARE), *some])})" if some else str(SHARE)

    def sums(self, given: str) -> list[str]:
        """Winners before and after dropping, shares, value; then loads, high and low parts."""
        wins = " OR ".join(f"g{o} > 0" for o in self._options)
        shares = _total([f"g{o}" for o in self._options])
        one = f"SUM(won), SUM(CASE WHEN {wins} THEN 1 ELSE 0 END), SUM({shares}), "
        found = [f"SELECT {one}SUM({self._value('g')}) FROM ({given}) AS given"]
        for some in _cut(list(self._resources), 1, _COLUMNS // 2):
            loads = ", ".join(
                _total([_or_zero(o, f"CAST(c{o}_{j} AS BIGINT) * g{o}") for o in self._options])
                + f" AS l{j}"
                for j in some
            )
            own = f"SELECT {loads} FROM ({given}) AS given"
            halves = ", ".join(f"SUM(l{j} // {SHARE}), SUM(l{j} % {SHARE})" for j in some)
            found.append(f"SELECT {halves} FROM ({own}) AS loads")
        return found

    def luck(self, given: str, lowest: int, highest: int) -> str:
        """What is given beyond the averaged shares, in value codes, cut to a range."""
        own = f"SELECT {self._value('g')} - ({self._value('a')}) AS luck FROM ({given}) AS given"
        cut = f"GREATEST(LEAST(luck, {highest}), {lowest})"
        return f"SELECT SUM({cut}) FROM ({own}) AS l"

    def rows(self, given: str, order: str) -> str:
        """What each request gets, in the order of the records; null for options it lacks."""
        each = ", ".join(
            f"CASE WHEN v{o} IS NULL THEN NULL ELSE g{o} END AS g{o}" for o in self._options
        )
        keys, own = ", ".join(self.keys), ", ".join([*self.keys, *self.names])
        return f"SELECT {own}, {each} FROM ({given}) AS given ORDER BY {order or keys}"

    # --- identity -------------------------------------------------------------------------

    def digest(self, table: str) -> str:
        """Two sums that change whenever a code does (`jdpack.records.digest.portable`)."""
        sums = []
        for which, h in enumerate([f"h % {2**31}", f"h // {2**22}"]):
            keys = digest_keys(which, len(self._resources))
            terms = []
            for o in self._options:
                code = _total(
                    [
                        f"CAST(v{o} AS BIGINT) * {keys.value}",
                        f"CAST({(o + 1) * keys.option} AS BIGINT)",
                        *(f"CAST(c{o}_{j} AS BIGINT) * {k}" for j, k in enumerate(keys.codes)),
                    ]
                )
                own = f"(({h}) * (({code}) % {DIGEST_PRIME})) % {DIGEST_PRIME}"
                terms.append(_or_zero(o, own))
            sums.append(f"SUM({_total(terms)})")
        return f"SELECT {', '.join(sums)} FROM {table}"


def number(x: float) -> str:
    """A double, to its last bit."""
    return f"CAST('{float(x)!r}' AS DOUBLE)"


def coin(id: str, key: bytes, *, request: bool) -> str:
    """The coin of an agent or of its request, under a key."""
    text = f"CAST({id} AS TEXT)"
    if request:
        text = f"CAST(JD_BYTES({text}) AS TEXT) || ':' || {text} || ':' || request"
    return f"JD_COIN('{key.hex()} ' || {text})"


def _affordable(prices: WholePrices) -> str:
    """Whether the only option costs at most its value."""
    return f"({_cost(0, [number(p) for p in prices])} <= {_worth(0)})"


def _cost(o: int, prices: Sequence[str]) -> str:
    free = number(0.0)
    terms = [f"CAST(c{o}_{j} AS DOUBLE) * {p}" for j, p in enumerate(prices) if p != free]
    return _total(terms or [free])


def _worth(o: int) -> str:
    return f"CAST(v{o} AS DOUBLE) * {number(PRICE_UNITS_PER_VALUE_CODE)}"


def _first_best(names: Sequence[str], *, affordable: bool = False) -> str:
    """The number of the first largest; with `affordable`, -1 if that is negative."""
    cases = []
    for o, name in enumerate(names):
        tests = [f"{name} >= {other}" for other in names[o + 1 :]]
        tests += [f"{name} >= {number(0.0)}"] if affordable else []
        cases.append(f"WHEN {' AND '.join(tests or ['1 = 1'])} THEN {o}")
    return f"CASE {' '.join(cases)} ELSE -1 END"


def _by_option(which: str, column: str, options: range) -> str:
    return " ".join(f"WHEN {which} = {o} THEN {column.format(o)}" for o in options)


def _whole(x: str) -> str:
    """A double that is not negative, rounded down, as an integer."""
    return f"CAST(FLOOR({x}) AS BIGINT)"


def _variance(first: str, second: str) -> str:
    """`jdpack.engines.giving._variance`; all numbers are below 2^63 and not negative."""
    mean = f"({first} // 1024)"
    return f"({second} * 16 - {mean} * {mean} + {2**42 - 1}) // {2**42}"


def _or_zero(o: int, text: str) -> str:
    """The text, or 0 if the option is absent; every request has the first option."""
    return text if o == 0 else f"COALESCE({text}, 0)"


def _total(terms: Sequence[str]) -> str:
    """A sum as a balanced tree: databases refuse expressions that are nested too deeply."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return f"({_total(terms[:half])} + {_total(terms[half:])})"


def _price_table(batches: Sequence[tuple[int, WholePrices]]) -> str:
    rows = ", ".join(
        f"(CAST({turn} AS INTEGER), {', '.join(number(p) for p in prices)})"
        for turn, prices in batches
    )
    names = ", ".join(f"p{j}" for j in range(len(batches[0][1])))
    return f"(VALUES {rows}) AS prices(turn, {names})"


def _cut(items: Sequence[T], each: int, most: int) -> list[Sequence[T]]:
    """The items in pieces that take about `most` in total, where an item takes `each`."""
    size = max(1, most // each)
    return [items[at : at + size] for at in range(0, len(items), size)]
