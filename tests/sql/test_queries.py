"""The engine sql gives the same bits as memory, for every query, on every database."""

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import LONG, finished_board, long_table, random_market, random_records, wide_table
from jdpack import Billboard, Group, Market, MaxTotal, PersonBounds
from jdpack.common.batches import Batch
from jdpack.engines import sql as sql_module
from jdpack.engines import sql_queries, warehouse
from jdpack.engines.memory import MemoryEngine
from jdpack.engines.screening import PriceRange
from jdpack.engines.settings import Sql
from jdpack.engines.shard import NOBODY
from jdpack.engines.sql import SqlEngine
from jdpack.engines.sql_encoding import Encoding, outside, people
from jdpack.engines.sql_queries import Queries
from jdpack.errors import AgentsError
from jdpack.market.grid import PRICE_CODE_MAX, SHARE
from jdpack.records import tables
from jdpack.records.encode import encode

ORDER = bytes(range(5, 21))


# --- databases ----------------------------------------------------------------------------


@dataclass
class Duck:
    """DuckDB in memory."""

    def load(self, table: pa.Table) -> warehouse.Warehouse:
        db = warehouse.DuckDB(None, 1)
        db._db.register("arrow_records", table)
        db.execute("CREATE TABLE records AS SELECT * FROM arrow_records")
        db._db.unregister("arrow_records")
        return db


@dataclass
class Postgres:
    """A database of the test's own server."""

    address: str

    def load(self, table: pa.Table) -> warehouse.Warehouse:
        kinds = [
            "bigint"
            if pa.types.is_integer(field.type)
            else "double precision"
            if pa.types.is_floating(field.type)
            else "text"
            for field in table.schema
        ]
        columns = [f'"{name}" {kind}' for name, kind in zip(table.column_names, kinds, strict=True)]
        with psycopg.connect(self.address, autocommit=True) as db:
            db.execute("DROP TABLE IF EXISTS records")
            db.execute(f"CREATE TABLE records ({', '.join(columns)})")
            with db.cursor() as cursor, cursor.copy("COPY records FROM STDIN") as copy:
                for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                    copy.write_row(row)
        return warehouse.PostgreSQL(self.address, "the test's PostgreSQL")


@pytest.fixture(scope="module", params=["duckdb", "postgresql"])
def place(request: pytest.FixtureRequest) -> Any:
    if request.param == "duckdb":
        return Duck()
    server, new_database = (request.getfixturevalue(n) for n in ("server", "new_database"))
    return Postgres(server.address(new_database()))


def opened(place: Any, market: Market, table: pa.Table, *, clamp: bool = False) -> SqlEngine:
    """The engine over a table, whose rows have the order that memory sees."""
    numbered = table.append_column("jd_place", pa.array(np.arange(len(table))))
    engine = SqlEngine(market, place.load(numbered), "test", Sql())
    try:
        engine.encode("SELECT * FROM records", clamp=clamp)
    except BaseException:
        engine.close()
        raise
    return engine


def in_memory(market: Market, table: pa.Table, *, clamp: bool = False) -> MemoryEngine:
    return MemoryEngine(encode(market, tables.pieces(market, table), clamp=clamp), 1)


def board_of(market: Market, rounds: Any, factors: list[int]) -> Billboard:
    """A finished billboard whose coins are by SHA-256."""
    old = finished_board(market, rounds, factors)
    board = Billboard(replace(old.header, coin_hash="sha-256"))
    for line in (*old.releases, old.certificate, old.seed):
        board.post(line)
    return board


def prices_of(rng: np.random.Generator, m: int) -> tuple[int, ...]:
    """Prices of every size: free ones, dear ones, and those that nobody can pay."""
    sizes = rng.choice([0.0, 0.1, 1.0, 10.0, 2.0**20], m)
    raw = rng.uniform(0, 1, m) * 2.0**52 / 65535 * sizes
    return tuple(min(int(p), PRICE_CODE_MAX) for p in raw)


def compare(
    memory: MemoryEngine, sql: SqlEngine, rng: np.random.Generator, each: int | None = None
) -> None:
    """Every query, with the same answer from both; `each` is how often at most."""
    market, m = memory.market, len(memory.market.resources)
    assert sql.digest("sha-256") == memory.digest("sha-256")
    counts = memory.count, memory.requests, memory.clamped
    assert (sql.count, sql.requests, sql.clamped) == counts
    rounds = []
    for prices in (prices_of(rng, m), prices_of(rng, m), (0,) * m)[:each]:
        rounds.append((prices, int(rng.integers(1, 1000))))
        assert sql.demand(prices) == memory.demand(prices)
        assert sql.value(prices) == memory.value(prices)
        assert sql.curvature(prices) == memory.curvature(prices)
        assert sql.gauge(prices) == memory.gauge(prices)
    factors = [int(f) for f in rng.choice([SHARE, SHARE - 1, 10**7, 0, 5], m)]
    board = board_of(market, rounds, factors)
    assert sql.welfare(board) == memory.welfare(board)
    for dearest in (12_345, 1, 2**32 - 1)[:each]:
        assert sql.chance(board, dearest) == memory.chance(board, dearest)
    for extent in ((-1000, 10**9), (-(2**40), 2**40))[:each]:
        asked = board, board.seed, tuple(factors), *extent
        assert sql.luck(*asked) == memory.luck(*asked)
    for drop_from in (2**52, NOBODY, 0)[:each]:
        assert sql.drop(board, drop_from) == memory.drop(board, drop_from)
    allocation = memory.drop(board, 2**52)
    assert sql.shares(board, allocation).tolist() == memory.shares(board, allocation).tolist()
    for batch, span in ((Batch(3, 5), 3), (Batch(0, 5), 1), (Batch(2**20 - 1, 2**20), 2))[:each]:
        asked = [rounds[i % len(rounds)][0] for i in range(span)]
        found = sql.batch_demand(asked, batch, ORDER, "sha-256")
        assert found == memory.batch_demand(asked, batch, ORDER, "sha-256")


# --- every query --------------------------------------------------------------------------


def compare_all(
    place: Any,
    seed: int,
    sparse: bool,
    options: int,
    texts: bool,
    divisible: bool,
    long: bool,
    terms: int,
    each: int | None = None,
) -> None:
    """Every query about random agents; those of more than `terms` terms are cut."""
    rng = np.random.default_rng(seed)
    layout = {"columns": LONG} if long else {}
    market = random_market(
        rng, agents=40, sparse=sparse, options=options, divisible=divisible, **layout
    )
    numbers = rng.permutation(1000)[:40].tolist()
    ids = [f"ä'{i}\\" for i in numbers] if texts else [i - 500 for i in numbers]
    records = random_records(rng, market, ids=ids)
    table = (long_table if long else wide_table)(records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_queries, "_TERMS", terms)
        patch.setattr(sql_queries, "_COLUMNS", terms)
        sql = opened(place, market, table)
        try:
            compare(in_memory(market, table), sql, rng, each)
        finally:
            sql.close()


@settings(max_examples=6)
@given(
    seed=st.integers(0, 2**32),
    sparse=st.booleans(),
    options=st.integers(1, 3),
    texts=st.booleans(),
    divisible=st.booleans(),
    long=st.booleans(),
    terms=st.sampled_from([20, 2000]),
)
def test_every_query_has_the_same_answer(place, **example):
    compare_all(place, **example)


@settings(max_examples=3)
@given(seed=st.integers(0, 2**32), options=st.integers(1, 2), clamp=st.booleans())
def test_groups_totals_and_requests_too(place, **example):
    compare_people(place, **example)


def compare_people(
    place: Any, seed: int, options: int, clamp: bool, each: int | None = None
) -> None:
    """What clamping does to numbers and totals, derived resources, and coins per request."""
    rng = np.random.default_rng(seed)
    n = 30
    market = Market(
        supply={"a": 40.0, "b": 30.0, "c": 20.0},
        max_demand={"a": 2.0, "b": 1.5, "c": 0.7},
        max_value=10.0,
        agents=n,
        options=options,
        neighbours="add-remove",
        max_total=[MaxTotal(2.0, ("a", "b"))],
        groups=[Group("near", cap={"a": 10.0}, reserve={"b": 5.0})],
        person=PersonBounds(requests=3),
    )
    rows: dict[str, list[Any]] = {
        name: [] for name in ("id", "request", "group", "value", "a", "b", "c")
    }
    scale = 1.2 if clamp else 0.5
    for agent in range(n):
        group = ["near", "far", None][agent % 3]
        for request in range(1 + agent % 3):
            for _ in range(options):
                amounts = [2.0, 1.5, 0.7] * rng.uniform(0, scale, 3) * (rng.uniform(0, 1, 3) < 0.8)
                row = [
                    f"é{agent}",
                    f"r{request}",
                    group,
                    rng.uniform(0, 10 * min(scale, 1.1)),
                    *amounts,
                ]
                for column, item in zip(rows.values(), row, strict=True):
                    column.append(item)
    table = pa.table(rows)
    sql = opened(place, market, table, clamp=clamp)
    try:
        memory = in_memory(market, table, clamp=clamp)
        assert (memory.clamped > 0) == clamp
        compare(memory, sql, rng, each)
    finally:
        sql.close()


@pytest.mark.parametrize(("options", "m", "rounds"), [(3, 1, 560), (1, 496, 2)])
def test_many_rounds_and_many_resources(place, options, m, rounds):
    """PostgreSQL returns at most 1664 columns: 560 rounds of 3 options have more."""
    rng, n = np.random.default_rng(options), 20
    market = Market(
        supply={str(j): 50.0 for j in range(m)}, max_demand=1.0, max_value=1.0, agents=n,
        options=options,
    )  # fmt: skip
    columns = {str(j): rng.uniform(0, 1, n * options) for j in range(m)}
    columns = {"id": np.repeat(np.arange(n), options), "value": columns["0"]} | columns
    memory, sql = in_memory(market, pa.table(columns)), opened(place, market, pa.table(columns))
    try:
        posted = [(prices_of(rng, m), int(rng.integers(1, 9))) for _ in range(rounds)]
        board = board_of(market, posted, [SHARE] * m)
        assert sql.gauge(posted[0][0]) == memory.gauge(posted[0][0])
        assert sql.welfare(board) == memory.welfare(board)
        assert sql.drop(board, 2**52) == memory.drop(board, 2**52)
    finally:
        sql.close()


def test_large_numbers(place):
    """Codes, values and prices at their largest: sums beyond 2^53, and costs beyond 2^63."""
    market = Market(
        supply={"0": 65535e3, "1": 65535e3}, max_demand=65535.0, max_value=2.0**32 - 1, agents=64
    )
    top = [65535.0] * 64
    values = [2.0**32 - 1.0 - i for i in range(64)]
    table = pa.table({"id": range(64), "value": values, "0": top, "1": top})
    sql, memory = opened(place, market, table), in_memory(market, table)
    try:
        assert sql.value((0, 0)) == memory.value((0, 0)) == sum(map(int, values))
        for price in (2**36, 2**36 + 1, 2**37, PRICE_CODE_MAX):
            for prices in ((price, 0), (price, price)):
                assert sql.demand(prices) == memory.demand(prices)
                assert sql.gauge(prices) == memory.gauge(prices)
                assert sql.curvature(prices) == memory.curvature(prices)
    finally:
        sql.close()


@pytest.mark.parametrize("options", [1, 3])
def test_open_requests_are_enough_while_prices_stay_in_a_box(place, options, monkeypatch):
    compare_boxes(place, options, monkeypatch)


def compare_boxes(place: Any, options: int, monkeypatch: Any, rounds: int = 30) -> None:
    """Prices that jump, then hardly move, about which many agents are exactly indifferent.

    Then a box where it does not hold, which must be noticed.
    """
    monkeypatch.setattr(sql_module, "_SCREENED", 0)
    rng, n, unit = np.random.default_rng(7), 60, 2**20
    market = Market(
        supply=dict.fromkeys("012", 65535.0 * n),
        max_demand=65535.0,
        max_value=2.0**32 - 1,
        agents=n,
        options=options,
    )
    counts = rng.integers(1, options + 1, n)
    codes = rng.integers(0, 4, (counts.sum(), 3)) * 100
    values = codes.sum(axis=1) * rng.integers(9, 12, len(codes))
    columns = {"id": np.repeat(np.arange(n), counts), "value": values}
    columns |= {str(j): column for j, column in enumerate(codes.T)}
    table = pa.table({name: np.asarray(column, float) for name, column in columns.items()})
    table = table.set_column(0, "id", pa.array(columns["id"]))
    memory, sql = in_memory(market, table), opened(place, market, table)
    try:
        inside = 0
        for t in range(rounds):
            prices = tuple(int(p) for p in rng.integers(9, 12, 3) * unit)
            if t > 2:
                prices = tuple(10 * unit + int(p) for p in rng.integers(-2, 3, 3) * unit // 20)
            assert sql.demand(prices) == memory.demand(prices)
            assert sql.value(prices) == memory.value(prices)
            inside += sql.boxes.box is not None
        assert inside > rounds // 2
        monkeypatch.setattr(PriceRange, "holds", lambda box, prices: True)
        far = (5 * unit, 15 * unit, 10 * unit)
        assert sql.demand(far) != memory.demand(far)
    finally:
        sql.close()


def test_negative_control_another_rule_on_ties_is_seen(place, monkeypatch):
    """If the last of several best options won, the comparison would fail."""
    market = Market(supply={"0": 9.0}, max_demand=1.0, max_value=1.0, agents=2, options=2)
    table = pa.table({"id": [1, 1, 2, 2], "value": [0.5] * 4, "0": [1.0, 0.5, 1.0, 0.25]})
    memory = in_memory(market, table)
    sql = opened(place, market, table)
    assert sql.demand((0,)) == memory.demand((0,))
    first = sql_queries._first_best

    def last(names: Any, *, affordable: bool = False) -> str:
        return first(names, affordable=affordable).replace(">=", ">", 1)

    monkeypatch.setattr(sql_queries, "_first_best", last)
    sql._last = None
    assert sql.demand((0,)) != memory.demand((0,))
    sql.close()


# --- refusals -----------------------------------------------------------------------------

GOOD = {"id": [1, 2, 3], "value": [1.0, 2.0, 3.0], "0": [0.5, 0.0, 1.0], "1": [0.0, 1.0, 1.0]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"value": [1.0, float("nan"), 3.0]}, "agent 2: value nan is not a number"),
        ({"value": [1.0, 2.0, float("inf")]}, "agent 3: value inf is infinite"),
        ({"value": [-1.0, 2.0, 3.0]}, "agent 1: value -1.0 is negative"),
        ({"0": [0.5, 0.0, 2.0]}, "agent 3: demand for '0' 2.0 is above the public bound 1"),
        ({"id": [1, 2, 2]}, "id 2 belongs to more than one agent"),
        ({"id": [1, None, 3]}, "a row has no id"),
        ({"1": [0.0, None, 1.0]}, "agent 2: demand for '1' is missing"),
        ({"1": ["0", "1", "1"]}, "column '1' is of type string, not a number"),
        ({"2": [0, 0, 0]}, "has a column '2' that the market does not name"),
        ({"id": [1.5, 2.5, 3.5]}, "ids are of type double"),
    ],
)
def test_bad_records_are_refused(place, change, says):
    """With the sentences of the other engines, and no table left behind."""
    market = Market(supply={"0": 9.0, "1": 9.0}, max_demand=1.0, max_value=5.0, agents=3)
    with pytest.raises(AgentsError) as error:
        opened(place, market, pa.table(GOOD | change))
    assert says in error.value.message


def test_a_wide_bundle_and_too_many_agents_are_refused(place):
    market = Market(
        supply={"0": 9.0, "1": 9.0}, max_demand=1.0, max_value=5.0, agents=3, bundle_size=1
    )
    with pytest.raises(AgentsError, match="agent 3 demands 2 resources, but the bundle size is 1"):
        opened(place, market, pa.table(GOOD))
    market = Market(supply={"0": 9.0, "1": 9.0}, max_demand=1.0, max_value=5.0, agents=4)
    with pytest.raises(AgentsError, match="there are 3 agents, but the market declares 4"):
        opened(place, market, pa.table(GOOD))


def test_rows_that_differ_when_they_are_read_again_are_refused(place):
    """Records are checked in one reading of the query, and codes made in another."""
    market = Market(
        supply={"0": 9.0, "1": 9.0}, max_demand=1.0, max_value=5.0, agents=3, bundle_size=1
    )
    db = place.load(pa.table(GOOD | {"1": [0.0, 1.0, 0.0]}))
    db.execute("CREATE SEQUENCE readings")
    later = (
        "CASE WHEN nextval('readings') > 3 THEN 1 ELSE \"1\" END"  # so agents 1 and 3 ask for both
    )
    engine = SqlEngine(market, db, "test", Sql())
    with pytest.raises(AgentsError, match="gave other rows when it was read again"):
        engine.encode(f'SELECT id, value, "0", {later} AS "1" FROM records', clamp=True)
    db.execute("DROP SEQUENCE readings")
    engine.encode("SELECT * FROM records -- the same each time", clamp=True)
    engine.close()


@pytest.mark.parametrize(
    ("values", "says"),
    [([1.0, None, 2.0], "value is missing"), ([1.0, 1.5, 2.0], "an option has two values")],
)
def test_every_row_of_a_long_table_needs_its_value(place, values, says):
    market = Market(supply={"0": 9.0, "1": 9.0}, max_demand=1.0, max_value=5.0, agents=2,
                    columns=LONG)  # fmt: skip
    rows = {"id": [1, 1, 2], "value": values, "resource": ["0", "1", "1"], "amount": [0.5] * 3}
    with pytest.raises(AgentsError, match=f"agent 1: {says}"):
        opened(place, market, pa.table(rows))


def test_a_person_beyond_a_bound_is_refused_with_clamp_too(place):
    market = Market(
        supply={"0": 9.0},
        max_demand=1.0,
        max_value=5.0,
        agents=2,
        person=PersonBounds(requests=2, max_demand={"0": 1.5}),
    )
    rows = {"id": [1, 1, 2], "request": ["a", "b", "a"], "value": [1.0] * 3, "0": [1.0, 0.9, 1.0]}
    for clamp in (False, True):
        with pytest.raises(AgentsError, match="agent 1 is beyond the public bound of max_demand"):
            opened(place, market, pa.table(rows), clamp=clamp)


# --- other dialects -----------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["snowflake", "bigquery", "spark", "postgres"])
@pytest.mark.parametrize("options", [1, 3])
def test_every_query_compiles_for_every_dialect(dialect, options):
    """Nothing runs here: each text is made and parsed again in its own dialect."""
    market = Market(
        supply=[50.0] * 3,
        max_demand=1.0,
        max_value=1.0,
        agents=100,
        options=options,
        max_total=[MaxTotal(1.5)],
        person=PersonBounds(requests=2),
    )
    queries, encoding = Queries(market), Encoding(market, True, True, True)
    prices, table = (5, 0, 2**52), "codes"
    given = queries.given("shares", bytes(16), (SHARE, 5, SHARE), 2**50, "place")
    texts = [
        *(encoding.check(), encoding.first_bad(), encoding.codes()),
        *(query for _, query in people(market, table)),
        outside(market, table),
        *(queries.demand(table, prices), queries.sure(table, prices, prices)),
        queries.open(table, prices, prices),
        *queries.batch_demand(table, [(0, prices), (1, prices)]),
        *(query for _, query in queries.curvature(table, prices)),
        queries.gauge(table, prices),
        queries.shares(table, [(prices, 3), (prices, 4)], "place"),
        queries.batch_shares(table, [(0, prices)], "place"),
        queries.turns(table, "place", bytes(16), 7),
        queries.welfare("shares"),
        *queries.chance("shares", 77),
        *(queries.luck(given, -5, 5), *queries.sums(given), queries.rows(given, "place")),
        queries.digest(table),
    ]
    for text in texts:
        own = warehouse.translated(text, dialect, "SELECT * FROM people")
        assert not re.search(r"JD_(COIN|BYTES|WIDE|DIV)", own.upper())
        again = sqlglot.parse_one(own, read=dialect).sql(dialect)
        assert sqlglot.parse_one(again, read=dialect).sql(dialect) == again
