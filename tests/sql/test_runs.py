"""Whole runs with the engine sql: the same billboard as in memory, and what can go wrong."""

import os
import subprocess
import sys

import duckdb
import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet
import pytest

from database import people
from helpers import check_error, run_cli
from jdpack import (
    Billboard,
    Columns,
    DatabaseQuery,
    Market,
    MwuOnline,
    Newton,
    Sql,
    resume,
    solve,
    verify_run,
)
from jdpack.engines import warehouse
from jdpack.engines.settings import choice_of, from_dict, to_dict
from jdpack.engines.sql import SqlEngine
from jdpack.engines.warehouse import DuckDB
from jdpack.errors import AgentsError, EngineError

BUDGET = {"epsilon": 2.0, "delta": 1e-6, "seed": 5}

MARKET = """
agents = {count = 200}
value = {max = 10}
privacy = {epsilon = 2, delta = 1e-6}
resource = [
    {name = "beds", supply = 60, max_demand = 1},
    {name = "hours", supply = 40, max_demand = 1},
]
"""


@pytest.fixture(params=["parquet", "duckdb", "postgresql"])
def records(request, tmp_path):
    """The same records as Parquet, in a DuckDB file, and in PostgreSQL."""
    if request.param == "parquet":
        path = tmp_path / "people.parquet"
        pyarrow.parquet.write_table(people.wide(), path)
        return str(path)
    if request.param == "duckdb":
        address = str(tmp_path / "records.duckdb")
    else:
        address = request.getfixturevalue("database")
    people.fill(request.param, address)
    return DatabaseQuery(address, people.SQL)


def tables_of(address: str) -> set[str]:
    """The tables that runs have made in a database."""
    query = "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'jdpack%'"
    connect = psycopg.connect if address.startswith("postgresql:") else duckdb.connect
    with connect(address) as db:
        return {name for (name,) in db.execute(query).fetchall()}


def allocation_of(folder):
    table = pyarrow.parquet.read_table(folder / "private" / "allocation.parquet")
    return table.schema, sorted(table.to_pylist(), key=str)


@pytest.mark.parametrize("policy", [Newton(), MwuOnline(batch=40)], ids=["newton", "batches"])
def test_a_run_has_the_same_billboard_and_allocation_as_in_memory(records, policy, tmp_path):
    for engine in ("memory", "sql"):
        solve(
            people.WIDE,
            records,
            policy=policy,
            engine=engine,
            coin_hash="sha-256",
            output=tmp_path / engine,
            **BUDGET,
        )
    memory, sql = tmp_path / "memory", tmp_path / "sql"
    board = "public/billboard.jsonl"
    assert (memory / board).read_bytes() == (sql / board).read_bytes()
    assert allocation_of(memory) == allocation_of(sql)
    if isinstance(records, DatabaseQuery):
        assert tables_of(records.address) == set()
        assert not (sql / "private" / "granted.parquet").exists()  # the records are not read


@pytest.mark.parametrize("clamp", [False, True])
def test_a_long_table_keeps_the_names_of_its_columns_and_options(clamp, tmp_path):
    rng, rows = np.random.default_rng(3), []
    for i in range(60):
        for name in ["early", "late", "any"][: 1 + i % 3]:
            value = round(rng.uniform(1, 9), 1)
            rows += [
                (f"p{i}", name, value, kind, 1.0 + clamp) for kind in ("bed", "bath")[: 1 + i % 2]
            ]
    columns = Columns(id="who", layout="long", option="wish", resource="what", amount="much")
    names = ["who", "wish", "value", "what", "much"]
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    pyarrow.parquet.write_table(table, tmp_path / "wishes.parquet")
    market = Market(
        supply={"bed": 30.0, "bath": 25.0}, max_demand=1.0, max_value=10.0, agents=60, options=3,
        columns=columns, max_total=1.5,
    )  # fmt: skip
    market = market if clamp else market.changed(max_total=None)
    for engine in ("memory", "sql"):
        solve(
            market, str(tmp_path / "wishes.parquet"), engine=engine, coin_hash="sha-256",
            clamp=clamp, output=tmp_path / engine, **{**BUDGET, "epsilon": 50.0},
        )  # fmt: skip
    schema, found = allocation_of(tmp_path / "sql")
    assert (schema, found) == allocation_of(tmp_path / "memory")
    assert schema.names == ["who", "wish", "granted"]
    assert {row["wish"] for row in found if row["granted"]} == {"early", "late", "any"}
    assert verify_run(tmp_path / "sql").agents == 60


@pytest.mark.parametrize("kind", ["duckdb", "postgresql"])
def test_the_order_of_a_query_orders_the_options(kind, tmp_path, request):
    """An alias, a number of a column, and a column that is not read."""
    address = (
        str(tmp_path / "a.duckdb") if kind == "duckdb" else request.getfixturevalue("database")
    )
    people.fill(kind, address)
    found = set()
    for order in ("id, rank", "1, rank", "p.id, p.rank"):
        sql = f"SELECT id, value, beds, hours FROM choices AS p ORDER BY {order}"
        for engine in ("memory", "sql"):
            query = DatabaseQuery(address, sql)
            result = solve(people.SEVERAL, query, engine=engine, coin_hash="sha-256", **BUDGET)
            found.add((result.billboard.head, tuple(result.shares.tolist())))
    assert len(found) == 1
    other = DatabaseQuery(address, sql.replace("p.rank", "p.rank DESC"))
    again = solve(people.SEVERAL, other, engine="sql", **BUDGET)
    assert tuple(again.shares.tolist()) != next(iter(found))[1]
    with pytest.raises(AgentsError, match="must be one SELECT with ORDER BY"):
        solve(
            people.SEVERAL, DatabaseQuery(address, sql.split(" ORDER")[0]), engine="sql", **BUDGET
        )


def test_codes_can_be_kept(tmp_path, monkeypatch, capsys):
    address, market = str(tmp_path / "records.duckdb"), tmp_path / "market.toml"
    people.fill("duckdb", address)
    market.write_text(MARKET)
    out = str(tmp_path / "out")
    asked = ["solve", str(market), address, "--query", people.SQL, "-o", out, "--keep", "--quiet"]
    code, _, err = run_cli(monkeypatch, capsys, *asked)
    assert code != 0 and "--keep is for --engine sql" in err
    code, _, err = run_cli(monkeypatch, capsys, *asked, "--engine", "sql")
    assert code == 0, err
    run = Billboard.read(f"{out}/public/billboard.jsonl").header.commitment
    assert tables_of(address) == {f"jdpack_codes_{run[:8]}"}
    with duckdb.connect(address) as db:
        assert db.execute(f"SELECT COUNT(*) FROM jdpack_codes_{run[:8]}").fetchone() == (200,)


def test_a_command_that_computes_in_duckdb_ends_quietly(tmp_path):
    """DuckDB would print what a process that ends leaves behind."""
    address, code = str(tmp_path / "records.duckdb"), "from jdpack.cli import main; main()"
    people.fill("duckdb", address)
    (tmp_path / "market.toml").write_text(MARKET)
    asked = ["solve", str(tmp_path / "market.toml"), address, "--query", people.SQL, "--quiet"]
    asked += ["-o", str(tmp_path / "out"), "--engine", "sql"]
    done = subprocess.run(
        [sys.executable, "-c", code, *asked], capture_output=True, text=True, check=True
    )
    assert "leaked" not in done.stderr


def test_nobody_else_reads_the_codes(database, server, tmp_path):
    """Nobody else sees a table while a run is at work, and only its role reads one that is kept."""
    people.fill("postgresql", database)
    name = database.partition("?")[0].rpartition("/")[2]
    roles = [f"{role}_{name}" for role in ("runner", "other")]
    with psycopg.connect(database, autocommit=True) as db:
        for role in roles:
            db.execute(f"CREATE ROLE {role} LOGIN")
            db.execute(f"GRANT ALL ON SCHEMA public TO {role}")
        db.execute(f"GRANT SELECT ON people TO {roles[0]}")
    runner, other = (server.address(name, role) for role in roles)
    seen: list[set[str]] = []

    def look(progress):
        if progress.stage == "rounds" and progress.rounds == 2:
            seen.append(tables_of(database))  # as a superuser

    try:
        policy = MwuOnline(batch=40)
        query = DatabaseQuery(runner, people.SQL)
        made = solve(
            people.WIDE, query, engine=Sql(keep=True), policy=policy, progress=look, **BUDGET
        )
        assert seen == [set()]
        table = f"jdpack_codes_{made.billboard.header.commitment[:8]}"
        with psycopg.connect(runner) as db:  # the control: whoever owns it reads it
            assert db.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (200,)
        with (
            psycopg.connect(other) as db,
            pytest.raises(psycopg.Error, match="permission denied for table jdpack_codes"),
        ):
            db.execute(f"SELECT * FROM {table}")
        with pytest.raises(EngineError) as error:
            solve(people.WIDE, DatabaseQuery(other, people.SQL), engine="sql", **BUDGET)
        check_error(error.value, ["permission denied for table people"], "nothing is spent")
        assert tables_of(database) == {table}
    finally:
        with psycopg.connect(database, autocommit=True) as db:
            for role in roles:
                db.execute(f"DROP OWNED BY {role}")
                db.execute(f"DROP ROLE {role}")


def test_rights_that_a_schema_gives_by_default_are_taken_back(database):
    """Analysts who may read every new table must not read everybody's codes."""
    people.fill("postgresql", database)
    with psycopg.connect(database) as db:
        db.execute("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC, pg_monitor")
        db.execute("CREATE TABLE other ()")
    result = solve(
        people.WIDE, DatabaseQuery(database, people.SQL), engine=Sql(keep=True), **BUDGET
    )
    name = f"jdpack_codes_{result.billboard.header.commitment[:8]}"
    with psycopg.connect(database) as db:
        for table, may in [("other", True), (name, False)]:
            asked = f"SELECT has_table_privilege('pg_monitor', '{table}', 'SELECT')"
            assert db.execute(asked).fetchone() == (may,)


def test_what_does_not_fit_in_memory_is_for_its_owner_only(tmp_path, monkeypatch):
    """DuckDB alone would write codes to .tmp where the process runs, for everybody to read."""
    monkeypatch.chdir(tmp_path)
    previous = os.umask(0)
    try:
        db = DuckDB(None, 1, tmp_path)
        db.execute("SET memory_limit = '30MB'")
        db.execute("CREATE TABLE codes AS SELECT hash(range) AS a FROM range(5000000)")
        (folder,) = tmp_path.iterdir()
        assert list(folder.iterdir()) and folder.stat().st_mode & 0o777 == 0o700
        db.close()
    finally:
        os.umask(previous)
    assert list(tmp_path.iterdir()) == []


# --- what can go wrong --------------------------------------------------------------------


KILL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE pid <> pg_backend_pid() AND datname = current_database()"
)


def kill(address):
    """Kills all connections to a database after the third round."""

    def strike(progress):
        if progress.stage == "rounds" and progress.rounds == 3:
            with psycopg.connect(address, autocommit=True) as db:
                db.execute(KILL)

    return strike


def test_a_killed_connection_costs_nothing_twice(database, tmp_path):
    """One sentence, what is posted stays, and `resume` ends with the billboard of a calm run."""
    people.fill("postgresql", database)
    query, out = DatabaseQuery(database, people.SQL), tmp_path / "out"
    calm = solve(people.WIDE, query, engine="sql", output=tmp_path / "calm", **BUDGET)
    with pytest.raises(EngineError) as error:
        solve(people.WIDE, query, engine="sql", output=out, progress=kill(database), **BUDGET)
    check_error(error.value, ["failed: "], "resume")
    assert tables_of(database) == set()
    resumed_as(calm, out)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("DROP TABLE {}", "failed: "),
        ("UPDATE {} SET v0 = v0 + 1 WHERE id = 'p7'", "has changed since the run wrote it"),
        # Somebody who never takes anything, so that lines posted before it is noticed stay right.
        (
            "DELETE FROM {0} WHERE v0 = (SELECT min(v0) FROM {0})",
            "has changed since the run wrote it",
        ),
    ],
    ids=["dropped", "changed", "deleted"],
)
@pytest.mark.parametrize("kind", ["duckdb", "postgresql"])
def test_codes_that_are_lost_or_change_cost_nothing_twice(
    kind, request, tmp_path, monkeypatch, command, says
):
    """Others cannot do that in these databases, so the run's own connection does."""
    address = (
        str(tmp_path / "a.duckdb") if kind == "duckdb" else request.getfixturevalue("database")
    )
    people.fill(kind, address)
    query, out = DatabaseQuery(address, people.SQL), tmp_path / "out"
    calm = solve(people.WIDE, query, engine="sql", output=tmp_path / "calm", **BUDGET)
    asked, demand = [], SqlEngine.demand

    def struck(engine, prices):
        asked.append(prices)
        if len(asked) == 4:
            engine._db.execute(command.format(engine._codes))
        return demand(engine, prices)

    monkeypatch.setattr(SqlEngine, "demand", struck)
    with pytest.raises(EngineError) as error:
        solve(people.WIDE, query, engine="sql", output=out, **BUDGET)
    check_error(error.value, [says], "resume")
    assert tables_of(address) == set()
    resumed_as(calm, out)


def resumed_as(calm, out):
    """Resume a run, whose posted lines stay, and compare it with one that was not struck."""
    posted = (out / "public" / "billboard.jsonl").read_text()
    assert posted.count("\n") >= 4
    result = resume(out)
    assert (out / "public" / "billboard.jsonl").read_text().startswith(posted)
    assert result.billboard.head == calm.billboard.head
    assert result.spent == calm.spent


def test_a_run_waits_for_one_that_was_killed_before_it_takes_its_tables(database, monkeypatch):
    """A server may notice late that a process is gone. The next run then says so in a minute."""
    people.fill("postgresql", database)
    monkeypatch.setattr(warehouse, "_PG_SETTINGS", ("lock_timeout TO '100ms'",))
    query = DatabaseQuery(database, people.SQL)

    def again(progress):
        if progress.stage == "rounds" and progress.rounds == 2:
            with pytest.raises(EngineError, match="failed: canceling statement due to lock timeou"):
                solve(people.WIDE, query, engine="sql", **BUDGET)
            progresses.append(progress)

    progresses: list[object] = []
    assert solve(people.WIDE, query, engine="sql", progress=again, **BUDGET).billboard.finished
    assert len(progresses) == 1


def test_records_that_changed_are_not_resumed(database, tmp_path):
    people.fill("postgresql", database)
    query = DatabaseQuery(database, people.SQL)
    with pytest.raises(EngineError):
        solve(
            people.WIDE,
            query,
            engine="sql",
            output=tmp_path / "out",
            progress=kill(database),
            **BUDGET,
        )
    with psycopg.connect(database) as db:
        db.execute("UPDATE people SET value = value * 0.5 WHERE id = 'p7'")
    with pytest.raises(AgentsError, match="the records have changed since the run began"):
        resume(tmp_path / "out")
    assert tables_of(database) == set()
    with psycopg.connect(database) as db:
        db.execute("UPDATE people SET value = value / 0.5 WHERE id = 'p7'")
    assert resume(tmp_path / "out", engine="memory").billboard.finished  # any engine can finish it


def test_refusals():
    market = people.WIDE
    table = people.wide()
    with pytest.raises(AgentsError, match="but the records are in memory"):
        solve(market, table, engine="sql", **BUDGET)
    with pytest.raises(EngineError) as error:
        solve(market, table, engine="sql", coin_hash="siphash-2-4", **BUDGET)
    check_error(error.value, ["siphash-2-4", "sha-256"], "another engine")
    with pytest.raises(EngineError, match="there is no coin hash 'md5'"):
        solve(market, table, coin_hash="md5", **BUDGET)
    with pytest.raises(EngineError, match="keep must be true or false, not 1"):
        Sql(keep=1)
    wide = Market(supply=[1e4] * 800, max_demand=1.0, max_value=1.0, agents=10**5, options=2)
    with pytest.raises(EngineError, match="2 options with 800 resources are too many"):
        solve(wide, "nowhere.parquet", engine="sql", **BUDGET)


def test_settings_survive_a_run_file():
    assert from_dict(to_dict(Sql(keep=True))) == Sql(keep=True)
    assert choice_of("sql", people.WIDE, "a.parquet") == Sql()


def test_a_run_with_many_resources_and_sparse_options(tmp_path):
    """Enough of them that the curvature and the shares take several queries."""
    rng = np.random.default_rng(2)
    n, m = 300, 50
    market = Market(
        supply=[30.0] * m, max_demand=1.0, max_value=1.0, agents=n, bundle_size=3, options=2
    )
    demands = np.zeros((2 * n, m))
    for row in demands:
        row[rng.permutation(m)[:3]] = rng.uniform(0, 1, 3)
    columns = {r.column: demands[:, j] for j, r in enumerate(market.resources)}
    table = pa.table(
        {"id": np.repeat(np.arange(n), 2), "value": rng.uniform(0, 1, 2 * n)} | columns
    )
    path = tmp_path / "wide.parquet"
    pyarrow.parquet.write_table(table, path)
    found = [
        solve(market, path, engine=engine, coin_hash="sha-256", **BUDGET)
        for engine in ("memory", "sql")
    ]
    assert found[0].billboard.head == found[1].billboard.head
    assert found[0].shares.tolist() == found[1].shares.tolist()


@pytest.mark.skipif(
    not os.environ.get("JDPACK_MILLION"), reason="takes minutes: set JDPACK_MILLION"
)
def test_a_million_agents(tmp_path):
    rng = np.random.default_rng(1)
    n = 1_000_000
    market = Market(supply=[n / 4.0] * 5, max_demand=1.0, max_value=1.0, agents=n)
    columns = {r.column: rng.uniform(0, 1, n) for r in market.resources}
    path = tmp_path / "million.parquet"
    table = {"id": np.arange(n), "value": rng.uniform(0, 1, n)} | columns
    pyarrow.parquet.write_table(pa.table(table), path)
    found = [
        solve(market, path, engine=engine, coin_hash="sha-256", **BUDGET)
        for engine in ("memory", "sql")
    ]
    assert found[0].billboard.head == found[1].billboard.head
    assert np.array_equal(found[0].shares, found[1].shares)
