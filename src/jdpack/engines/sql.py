"""Private: the engine for records that stay in a database, which computes every sum itself.

Records are encoded once, by SQL (`jdpack.engines.sql_encoding`), to a table of codes next to them.
Then every round is one query (`jdpack.engines.sql_queries`). Once prices hardly move, it is a query
to a smaller table, of the requests whose choice is still open (`jdpack.engines.screening`). Only
sums reach this process, and they leave it through the door. The table of codes is as private as the
records. It has a name that begins with `jdpack_codes_`, and is dropped when the run ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Seed
from jdpack.common.batches import Batch
from jdpack.common.coins import SHA256, SIPHASH, CoinHash
from jdpack.engines.base import Allocation
from jdpack.engines.screening import Boxes, PriceRange, Prices
from jdpack.engines.settings import RunInfo, Sql, Tell
from jdpack.engines.shard import NOBODY, Rounds
from jdpack.engines.sharded import Repairing
from jdpack.engines.sql_encoding import Encoding, outside, people, text
from jdpack.engines.sql_queries import Queries
from jdpack.engines.warehouse import (
    COLUMNS_MAX,
    WORDS,
    DuckDB,
    PostgreSQL,
    Spark,
    Warehouse,
    placed,
    translated,
)
from jdpack.errors import AgentsError, EngineError
from jdpack.market.grid import SHARE
from jdpack.market.market import Market
from jdpack.records import locate
from jdpack.records.arrow import to_arrow, to_numpy
from jdpack.records.encode import Tally, check_tallies
from jdpack.records.refusals import (
    BY_THE_RULES,
    bad_number,
    beyond_person,
    beyond_total,
    repeated_id,
    repeated_resource,
    too_many_options,
    two_groups,
    wide_bundle,
)
from jdpack.records.schema import allocation_names, check_columns, has_several, wanted
from jdpack.records.source import Source
from jdpack.storage.files import write_whole

_SCREENED = 10**5  # with fewer requests, a round costs little beyond its overhead


@dataclass(frozen=True)
class _Box(PriceRange):
    """Prices within bounds, at which only the table of open requests has to be asked."""

    taken: list[int]
    """The demand and the value of the others."""


class SqlEngine(Repairing):
    """All agents in a table of codes of a database."""

    numbered = False  # tables have ids

    def __init__(self, market: Market, warehouse: Warehouse, run: str, settings: Sql) -> None:
        self._market, self._db, self._queries = market, warehouse, Queries(market)
        self._codes, self._shares = f"jdpack_codes_{run}", f"jdpack_shares_{run}"
        self._turns, self._open = f"jdpack_turns_{run}", f"jdpack_open_{run}"
        self._settings, self._order = settings, ""
        self.count = self.requests = self.clamped = 0
        self._digest = 0
        self._last: tuple[tuple[int, ...], list[int]] | None = None
        self.boxes = Boxes[_Box]()
        self._base: Rounds | None = None
        self._batched: tuple[bytes, int] | None = None

    @classmethod
    def open(
        cls, source: Source, threads: int | None, settings: Sql, run: RunInfo, tell: Tell
    ) -> SqlEngine:
        """Connect to the database that has the records, and encode them there."""
        market = source.market
        if max(market.options, 3) * (len(market.resources) + 4) > COLUMNS_MAX:
            raise EngineError(
                f"{market.options} options with {len(market.resources)} resources are too many for "
                "the engine sql",
                "the larger of 3 and the number of options, times the number of resources and 4 "
                f"more, may be at most {COLUMNS_MAX}; use another engine",
            )
        warehouse, records = _records(source, threads, run.folder)
        engine = cls(market, warehouse, run.name, settings)
        try:
            engine.encode(records, clamp=source.clamp)
            tell(1.0)
        except BaseException:
            engine.close()
            raise
        return engine

    @property
    def market(self) -> Market:
        return self._market

    # --- records --------------------------------------------------------------------------

    def encode(self, source: str, *, clamp: bool) -> None:
        """Check the records of a query, and make the table of codes.

        If the query has a column jd_place, that orders its rows.
        """
        encoding = self._encoding(source, clamp)
        placed = encoding.placed
        rows, bad, self.clamped = self._db.ask(encoding.check(), source)
        if bad:
            self._refuse(encoding, source)
        if self.market.groups and (self.market.options > 1 or self.market.requests > 1):
            for (id,) in self._db.rows(encoding.groups(), source):
                raise two_groups(id)
        if rows == 0:
            raise AgentsError("there are no agents", "the table has no rows")
        self._order = "place" if placed else ""
        self._db.create(self._codes, encoding.codes(), source)
        if self._db.ask(outside(self.market, self._codes))[0]:
            raise AgentsError(
                "the query gave other rows when it was read again",
                "its rows must be the same each time: no sample, and no LIMIT without an order",
            )
        counts = f"SELECT COUNT(*), COUNT(DISTINCT id) FROM {self._codes}"
        self.requests, self.count = self._db.ask(counts)
        if self.requests > self.count and self.market.requests == 1:
            self._refuse_twice()
        if self.market.requests > 1:
            self._check_people(clamp)
        tally = Tally(rows, self.count, self.requests, self.clamped, None)
        check_tallies(self.market, [tally])
        self._digest = self.digest(SHA256)
        self._db.encoded = True

    def _encoding(self, source: str, clamp: bool) -> Encoding:
        schema = self._db.schema(source)
        placed = "jd_place" in schema.names
        schema = pa.schema([field for field in schema if field.name not in _PLACES])
        check_columns(self.market, schema, "the query")
        kind = schema.field(self.market.columns.id).type
        named = wanted(self.market)
        booleans = {n for n in named if pa.types.is_boolean(schema.field(n).type)}
        words = WORDS[self._db.dialect]
        types = words.code_type, words.value_type
        return Encoding(
            self.market, clamp, not pa.types.is_integer(kind), placed, frozenset(booleans), *types
        )

    def _refuse(self, encoding: Encoding, source: str) -> None:
        """Raise the error for a row that is refused."""
        market = self.market
        (row,) = self._db.rows(encoding.first_bad(), source)
        problem, _ = encoding.problems()[int(row[0]) - 1]
        who, numbers = f"agent {row[1]!r}", row[2:]
        match problem.split():
            case ["no", "id"]:
                raise AgentsError("a row has no id", "every agent needs one")
            case ["no", "request"]:
                raise AgentsError(
                    f"{who}: the name of a request is missing",
                    "every row names its request; a name must be unique for each agent only",
                )
            case ["no", "option"]:
                raise AgentsError(f"{who}: {market.columns.option!r} is missing")
            case ["half"]:
                raise AgentsError(
                    f"{who}: a row lacks its resource or its amount",
                    "an option that demands nothing is one row without resource and amount",
                )
            case ["unknown"]:
                raise AgentsError(
                    f"{who} names a resource that does not exist",
                    f"the market has: {', '.join(r.column for r in market.declared[:20])}",
                )
            case ["twice"]:
                raise repeated_resource(market, who, "a resource")
            case ["values"]:
                raise AgentsError(f"{who}: an option has two values")
            case ["groups"]:
                raise two_groups(row[1])
            case ["negative"]:
                raise AgentsError(f"{who}: an amount is negative")
            case ["options"]:
                raise too_many_options(market, who)
            case ["bundle"]:
                raise wide_bundle(market, who, sum(amount > 0 for amount in numbers[1:]))
            case ["total", which]:
                raise beyond_total(market, who, market.totals[int(which)], numbers[1:])
            case [name]:
                at = 0 if name == "value" else int(name[1:]) + 1
                cap = market.max_value if at == 0 else market.resources[at - 1].max_demand
                what = "value" if at == 0 else f"demand for {market.resources[at - 1].name!r}"
                if numbers[at] is None:
                    raise AgentsError(f"{who}: {what} is missing")
                raise bad_number(f"{who}: {what}", float(numbers[at]), cap)

    def _refuse_twice(self) -> None:
        query = f"SELECT id FROM {self._codes} GROUP BY id HAVING COUNT(*) > 1 ORDER BY id LIMIT 1"
        ((id,),) = self._db.rows(query)
        raise repeated_id(id, several=False)

    def _check_people(self, clamp: bool) -> None:
        """Refuse a person whose requests lead beyond a bound."""
        keys = ", ".join(self._queries.keys)
        twice = f"SELECT id, request FROM {self._codes} GROUP BY {keys} HAVING COUNT(*) > 1 LIMIT 1"
        for id, request in self._db.rows(twice):
            raise AgentsError(
                f"agent {id!r} has two requests named {request!r}",
                "give each request of an agent its own name",
            )
        for bound, query in people(self.market, self._codes):
            for (id,) in self._db.rows(query):
                hint = (
                    "a database has no order of rows, so it cannot leave requests out: use another "
                    "engine"
                )
                raise beyond_person(
                    self.market, id, bound, "", hint if clamp else f"[person] {BY_THE_RULES}"
                )

    def digest(self, hash: CoinHash = SIPHASH) -> int:
        assert hash == SHA256, "a run with this engine has coins by SHA-256"
        return self._digest_of(self._codes)

    def _digest_of(self, table: str) -> int:
        first, second = self._db.ask(self._queries.digest(table))
        return (first + (second << 32)) % 2**64

    # --- rounds ---------------------------------------------------------------------------

    def demand(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self._taken(prices)[:-1])

    def value(self, prices: tuple[int, ...]) -> int:
        return self._taken(prices)[-1]

    def _taken(self, prices: tuple[int, ...]) -> list[int]:
        """The demand and its value. A round may ask for both, or for the scale too."""
        if self._last is None or self._last[0] != prices:
            screens, codes = self.requests >= _SCREENED, np.array(prices, dtype=np.float64)
            box = self.boxes.at(codes, self._screen) if screens else None
            found = self._db.ask(self._queries.demand(self._open if box else self._codes, prices))
            if box is not None:
                found = [a + b for a, b in zip(box.taken, found, strict=True)]
            self._last = prices, found
        return self._last[1]

    def _screen(self, low: Prices, high: Prices) -> _Box | None:
        """Make a table of the requests that are open in a box; None if they are more than half."""
        low, high = np.floor(low), np.ceil(high)  # whole prices, so costs are exact
        bounds = [int(p) for p in low], [int(p) for p in high]
        self._db.create(self._open, self._queries.open(self._codes, *bounds))
        (few,) = self._db.ask(f"SELECT COUNT(*) FROM {self._open}")
        if 2 * few > self.requests:
            self._db.drop(self._open)
            return None
        return _Box(low, high, self._db.ask(self._queries.sure(self._codes, *bounds)))

    def batch_demand(
        self,
        prices: Sequence[tuple[int, ...]],
        batch: Batch,
        order: bytes,
        hash: CoinHash = SIPHASH,
    ) -> tuple[int, ...]:
        self._ask_in_turns(order, hash, batch.count)
        first = batch.index - len(prices) + 1
        asked = list(enumerate(prices, start=first))
        queries = self._queries.batch_demand(self._turns, asked)
        answers = [self._db.ask(query)[:-1] for query in queries]
        return tuple(sum(numbers) for numbers in zip(*answers, strict=True))

    def _ask_in_turns(self, order: bytes, hash: CoinHash, count: int) -> None:
        """Make the table with the turn of each agent."""
        assert hash == SHA256
        if self._batched != (order, count):
            query = self._queries.turns(self._codes, self._order, order, count)
            self._db.create(self._turns, f"{query} ORDER BY turn")
            self._db.index(self._turns, "turn")
            self._batched = order, count

    def curvature(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        m = len(prices)
        found = [0] * (m * m)
        for entries, query in self._queries.curvature(self._codes, prices):
            for (j, k), number in zip(entries, self._db.ask(query), strict=True):
                found[j * m + k] = found[k * m + j] = number
        return tuple(found)

    def gauge(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        m, priced = len(prices), [j for j, price in enumerate(prices) if price > 0]
        found = [0] * (m + 2)
        if priced:
            answer = self._db.ask(self._queries.gauge(self._codes, prices))
            for j, number in zip([*priced, m, m + 1], answer, strict=True):
                found[j] = number
        return tuple(found)

    # --- the averaged allocation, and what coins grant ------------------------------------

    def welfare(self, board: Billboard) -> int:
        self._average(board)
        return self._db.ask(self._queries.welfare(self._shares))[0]

    def granted(self, board: Billboard, seed: Seed) -> tuple[int, ...]:
        self._average(board)
        everything = (SHARE,) * len(self.market.resources)
        given = self._queries.given(self._shares, seed.seed, everything)
        return tuple(load // SHARE for load in self._loads(self._queries.sums(given)[1:]))

    def chance(self, board: Billboard, dearest: int) -> tuple[int, ...]:
        self._average(board)
        queries = self._queries.chance(self._shares, dearest)
        return tuple(number for query in queries for number in self._db.ask(query))

    def luck(
        self, board: Billboard, seed: Seed, factors: tuple[int, ...], lowest: int, highest: int
    ) -> int:
        self._average(board)
        given = self._queries.given(self._shares, seed.seed, factors)
        return self._db.ask(self._queries.luck(given, lowest, highest))[0]

    def _average(self, board: Billboard) -> None:
        """Make the table of averaged shares."""
        rounds = Rounds.of(board)
        if self._base == rounds:
            return
        assert rounds.hash == SHA256
        steps, batch = rounds.steps, rounds.steps[0].batch if rounds.steps else None
        if batch is not None:
            self._ask_in_turns(rounds.order, rounds.hash, batch.count)
            asked = [(step.batch.index, step.prices) for step in steps if step.batch is not None]
            query = self._queries.batch_shares(self._turns, asked, self._order)
        else:
            own = [(step.prices, step.weight) for step in steps]
            query = self._queries.shares(self._codes, own, self._order)
        self._db.create(self._shares, query)
        if self._digest_of(self._shares) != self._digest:  # of the codes that the shares rest on
            raise _changed(self._codes)
        self._base = rounds

    def drop(self, board: Billboard, drop_from: int) -> Allocation:
        self._average(board)
        given = self._given(board, drop_from)
        first, *others = self._queries.sums(given)
        before, winners, shares, value = self._db.ask(first)
        return Allocation(
            loads=self._loads(others),
            winners=winners,
            shares=shares,
            value=value,
            dropped=before - winners,
            drop_from=drop_from,
        )

    def _loads(self, queries: list[str]) -> tuple[int, ...]:
        """Loads in units of code / SHARE, from queries of their high and low parts."""
        parts = [number for query in queries for number in self._db.ask(query)]
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return tuple(high * SHARE + low for high, low in pairs)

    def _given(self, board: Billboard, drop_from: int) -> str:
        assert board.certificate is not None and board.seed is not None, "the run is not finished"
        dropped = None if drop_from == NOBODY else drop_from
        factors = board.certificate.factors
        return self._queries.given(self._shares, board.seed.seed, factors, dropped, self._order)

    def shares(self, board: Billboard, allocation: Allocation) -> NDArray[np.uint32]:
        tables = self._tables(board, allocation)
        given = [to_numpy(table.column("share").combine_chunks()) for table in tables]
        return np.concatenate([np.empty(0, np.uint32), *given])

    def _tables(self, board: Billboard, allocation: Allocation) -> Iterator[pa.Table]:
        """What each option gets, in 1/SHARE, in the order of the records."""
        query = self._queries.rows(self._given(board, allocation.drop_from), self._order)
        options = self.market.options
        for batch in self._db.batches(translated(query, self._db.dialect)):
            given = np.stack(
                [
                    to_numpy(batch.column(f"g{o}").cast(pa.float64()).fill_null(-1.0))
                    for o in range(options)
                ],
                axis=1,
            )
            rows, numbers = np.nonzero(given >= 0)
            at = to_arrow(rows)
            columns = {key: _plain(batch.column(key).take(at)) for key in self._queries.keys}
            if options > 1:
                columns["option"] = to_arrow((numbers + 1).astype(np.int32))
            if self._queries.names:
                every = [_plain(batch.column(name)) for name in self._queries.names]
                place = to_arrow(numbers * batch.num_rows + rows)
                columns["option"] = pa.concat_arrays(every).take(place)
            columns["share"] = to_arrow(given[rows, numbers].astype(np.uint32))
            yield pa.table(columns)

    def write(self, board: Billboard, allocation: Allocation, folder: Path) -> None:
        """Write what everybody gets to private/allocation.parquet."""

        def put(file: IO[bytes]) -> None:
            writer, divisible = None, self.market.divisible
            for table in self._tables(board, allocation):
                given = to_numpy(table.column("share").combine_chunks())
                last = given / SHARE if divisible else given > 0
                table = table.drop_columns("share").append_column("given", to_arrow(last))
                table = table.rename_columns(allocation_names(self.market))
                if writer is None:
                    options = {"use_dictionary": False, "write_page_checksum": True}
                    writer = pyarrow.parquet.ParquetWriter(file, table.schema, **options)
                writer.write_table(table)
            assert writer is not None
            writer.close()

        write_whole(folder / "allocation.parquet", 0o600, put)

    def close(self) -> None:
        """Drop the tables, unless the codes are kept, and disconnect."""
        tables = [
            self._shares,
            self._turns,
            self._open,
            *([] if self._settings.keep else [self._codes]),
        ]
        try:
            for table in tables:
                with contextlib.suppress(EngineError):  # the connection may be lost
                    self._db.drop(table)
        finally:
            self._db.close()


def _records(source: Source, threads: int | None, near: Path | None) -> tuple[Warehouse, str]:
    """The database that has the records, and the query for them in its own dialect."""
    query = source.query
    if query is None:
        return _parquet(source, threads, near)
    warehouse: Warehouse
    dialect = {"postgresql": "postgres"}.get(query.kind, query.kind)
    records = query.sql
    if has_several(source.market) and dialect in WORDS:
        records = placed(records, dialect)
    try:
        match query.kind:
            case "duckdb":
                warehouse = DuckDB(query.address, threads, near)
            case "postgresql":
                warehouse = PostgreSQL(query.address, query.where)
            case "spark":
                warehouse = Spark(query.address)
            case other:
                raise EngineError(
                    f"the engine sql does not know {other!r}",
                    "it computes in DuckDB, PostgreSQL and Spark; other engines read the records",
                )
    except ModuleNotFoundError as error:
        raise EngineError(
            f"{error.name} is needed to compute in {query.where!r}",
            f"pip install 'jdpack[sql,{query.kind}]'",
        ) from None
    return warehouse, records


def _parquet(source: Source, threads: int | None, near: Path | None) -> tuple[DuckDB, str]:
    """DuckDB in this process, and a query for the rows of Parquet files in their order."""
    if source.paths is None:
        raise AgentsError(
            "the engine sql reads a database or Parquet files, but the records are in memory",
            "write them to Parquet and give its path, or use the engine memory",
        )
    files = locate.find(source.agents)
    for file in files:
        if file.kind != "Parquet" or file.system or file.keys:
            raise AgentsError(
                f"the engine sql cannot read {file.where!r}",
                "it reads a database, or Parquet files on this machine that are not partitioned",
            )
    names = [text(file.path) for file in files]
    place = " ".join(f"WHEN {name} THEN {at}" for at, name in enumerate(names))
    rows = f"(CASE filename {place} END) * CAST({2**40} AS BIGINT) + file_row_number AS jd_place"
    options = "filename = true, file_row_number = true, hive_partitioning = false"
    read = f"read_parquet([{', '.join(names)}], {options})"
    return DuckDB(None, threads, near), f"SELECT *, {rows} FROM {read}"


_PLACES = ("jd_place", "filename", "file_row_number")


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64() if pa.types.is_integer(column.type) else pa.large_string())


def _changed(table: str) -> EngineError:
    return EngineError(
        f"the table {table} has changed since the run wrote it",
        "nobody else may write to it. What is posted is kept and paid for: resume the run, which "
        "makes the table again",
    )
