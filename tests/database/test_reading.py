"""Records from real databases: the same bits as from files, and what happens when reading fails."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import adbc_driver_sqlite
import psycopg
import pyarrow.parquet as pq
import pytest

import jdpack
from database import people
from database.people import LONG, SEVERAL, WIDE, everything_below, query
from helpers import check_error, run_cli
from jdpack import AgentsError, DatabaseQuery, Ledger, Mapped, Ray, resume, solve
from jdpack.records import tables
from jdpack.records.databases import database as reading
from jdpack.run.arguments import source_of
from jdpack.run.run_file import RunFile

PASSWORD = "s3kret-Pa55"
TOML = """
[agents]
count = 200
[value]
max = 10
[privacy]
epsilon = 2
delta = 1e-6
[[resource]]
name = "beds"
supply = 60
max_demand = 1
[[resource]]
name = "hours"
supply = 40
max_demand = 1
"""


def posted(folder: Path) -> str:
    return (folder / "public/billboard.jsonl").read_text()


def same_grants(one: Path, other: Path) -> bool:
    read = [
        pq.read_table(folder / "private/granted.parquet").to_pylist() for folder in (one, other)
    ]
    return sorted(map(str, read[0])) == sorted(map(str, read[1]))


# --- the same bits as from files ----------------------------------------------------------


@pytest.mark.parametrize(
    ("market", "table", "sql"),
    [
        (WIDE, people.wide, people.SQL),
        (WIDE, people.wide, "WITH p AS (SELECT * FROM people) SELECT * FROM p;"),
        (
            SEVERAL,
            lambda: people.several().drop(["rank"]),
            "SELECT id, value, beds, hours FROM choices ORDER BY id, rank",
        ),
        (LONG, people.long, "SELECT * FROM pairs"),
    ],
    ids=["wide", "with", "several", "long"],
)
def test_a_run_posts_the_same_lines_as_from_parquet(place, tmp_path, market, table, sql):
    solve(market, people.parquet(tmp_path, table()), output=tmp_path / "file", seed=5)
    solve(market, query(place, sql), output=tmp_path / "base", seed=5)
    assert posted(tmp_path / "base") == posted(tmp_path / "file")
    assert same_grants(tmp_path / "base", tmp_path / "file")
    mapped = solve(market, query(place, sql), engine="mapped", seed=5)
    assert (
        mapped.billboard.head
        == jdpack.Billboard.read(tmp_path / "file/public/billboard.jsonl").head
    )


def test_numeric_columns_are_read_to_the_nearest_double(filled):
    text = "0.1234567890123456789"
    sql = f"SELECT id, {text}::numeric(30, 20) AS value, beds::numeric, hours::real FROM people"
    source = source_of(WIDE, query(filled, sql), None, None, None, None, None, False)
    rows = [rows for piece in source.pieces() for rows in tables.read(WIDE, piece)]
    assert {value for some in rows for value in some.values} == {float(text)}
    exact = {row["id"]: row["beds"] for row in people.wide().to_pylist()}
    for some in rows:
        assert [exact[id] for id in some.ids.to_pylist()] == some.columns[0].tolist()


def test_rows_come_in_small_batches(filled):
    """Constant memory: only chunks are held, never a whole table."""
    with psycopg.connect(filled) as db:
        db.execute(
            "CREATE TABLE many AS SELECT g AS id, g % 10 AS value, 0.5::float8 AS beds, "
            "0.25::float8 AS hours, repeat('x', 1000) AS note FROM generate_series(1, 60000) g"
        )
    market = jdpack.Market(
        supply={"beds": 60.0, "hours": 40.0},
        max_demand=1.0,
        max_value=10.0,
        agents=60_000,
        columns=jdpack.Columns(ignore=("note",)),
    )
    piece = reading.QueryPiece(query(filled, "SELECT * FROM many"))
    sizes = [rows.batch.num_rows for rows in reading.stream(market, piece, 1000)]
    assert sum(sizes) == 60_000 and max(sizes) <= 1000 and len(sizes) >= 60


def test_check_compare_letters_verify_and_report_read_the_same_query(
    place, tmp_path, monkeypatch, capsys
):
    market = tmp_path / "market.toml"
    market.write_text(TOML)
    given = [str(market), place, "--query", people.SQL]
    code, out, err = run_cli(monkeypatch, capsys, "check", *given, "--quiet")
    assert code == 0 and "--query" in out, err
    code, _, err = run_cli(
        monkeypatch, capsys, "compare", *given, "--policy", "newton", "--seeds", "2", "--quiet"
    )
    assert code == 0, err
    out = str(tmp_path / "out")
    code, _, err = run_cli(monkeypatch, capsys, "solve", *given, "-o", out, "--quiet", "--force")
    assert code == 0, err
    for command in ["letters", "verify", "report"]:
        code, _, err = run_cli(monkeypatch, capsys, command, out, "--quiet")
        assert code == 0, (command, err)
    moved = ["--agents", place, "--query", people.SQL]
    assert run_cli(monkeypatch, capsys, "verify", out, *moved, "--quiet")[0] == 0
    code, _, err = run_cli(monkeypatch, capsys, "verify", out, "--query", people.SQL)
    assert code == 2 and "--query goes with --agents" in err


def test_any_driver_of_adbc(tmp_path, monkeypatch):
    """A driver that jdpack has never heard of, found by its manifest; and a connection profile."""
    place = tmp_path / "records.sqlite"
    people.fill("sqlite", str(place))
    drivers = tmp_path / "drivers"
    drivers.mkdir()
    (drivers / "other.toml").write_text(
        f'name = "other"\nversion = "1"\n[Driver]\nshared = "{adbc_driver_sqlite._driver_path()}"\n'
    )
    monkeypatch.setenv("ADBC_DRIVER_PATH", str(drivers))
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    (profiles / "town.toml").write_text(
        f'profile_version = 1\ndriver = "other"\n[Options]\nuri = "{place}"\n'
    )
    monkeypatch.setenv("ADBC_PROFILE_PATH", str(profiles))
    expected = solve(WIDE, query(str(place)), seed=1).billboard.head
    sql = f"{people.SQL} ORDER BY id"
    found = solve(WIDE, DatabaseQuery("profile://town", sql), seed=1)
    assert found.billboard.head == expected
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AgentsError, match="no ORDER BY"):
        solve(WIDE, DatabaseQuery("profile://town", people.SQL), seed=1)
    with pytest.raises(AgentsError, match=r"cannot read the records from 'nodb://host/x'"):
        solve(WIDE, DatabaseQuery("nodb://host/x", sql), seed=1)


# --- order --------------------------------------------------------------------------------


def test_several_options_need_an_order(place):
    sql = "SELECT id, value, beds, hours FROM choices"
    with pytest.raises(AgentsError) as raised:
        solve(SEVERAL, query(place, sql), seed=1)
    check_error(raised.value, "no ORDER BY", "ORDER BY id, and what orders the rows of one agent")
    with pytest.raises(AgentsError, match="400 agents"):
        solve(SEVERAL, query(place, f"{sql} ORDER BY rank, id"), seed=1)


def test_the_trace_notices_every_change(filled):
    """Even a different order; but not how the rows are cut into batches."""

    def trace(sql: str, rows: int = 64) -> object:
        piece = reading.QueryPiece(query(filled, sql))
        list(reading.stream(SEVERAL, piece, rows))
        return piece.trace.known

    sql = "SELECT id, value, beds, hours FROM choices ORDER BY id, rank"
    known = trace(sql)
    assert known == trace(sql, 7) == trace(sql, 1000)
    others = [
        trace(sql.replace("rank", "rank DESC")),
        trace(sql.replace("hours", "hours + 1e-9 AS hours")),
        trace(sql.replace("value", "CASE id WHEN 'p7' THEN 1 ELSE value END AS value")),
        trace(sql.replace("value", "CASE id WHEN 'p7' THEN NULL ELSE value END AS value")),
        trace(sql.replace("value", "CASE id WHEN 'p7' THEN 0 ELSE value END AS value")),
        trace(sql.replace("SELECT id", "SELECT 'q' || id AS id")),
        trace(sql.replace("ORDER", "WHERE id <> 'p7' ORDER")),
    ]
    assert len({known, *others}) == 1 + len(others)


@pytest.mark.parametrize("change", ["UPDATE people SET beds = beds / 2 WHERE id = 'p3'", "VACUUM"])
def test_a_row_that_changes_between_two_readings(filled, tmp_path, change):
    """The second reading, for the letters, must give the same rows as the first."""
    seen = []

    def meanwhile(progress):
        if progress.stage == "allocation" and not seen:
            with psycopg.connect(filled, autocommit=True) as db:
                db.execute(change)
            seen.append(change)

    def run():
        return solve(WIDE, query(filled), output=tmp_path / "out", progress=meanwhile)

    if change == "VACUUM":  # the control: something happens, but no row changes
        run()
        return
    with pytest.raises(AgentsError) as raised:
        run()
    assert "have changed since they were first read" in raised.value.message
    assert "spends nothing more" in raised.value.hint
    lines = posted(tmp_path / "out")
    with pytest.raises(AgentsError, match="the records have changed since the run began"):
        resume(tmp_path / "out")
    with psycopg.connect(filled) as db:
        db.execute("UPDATE people SET beds = beds * 2 WHERE id = 'p3'")
    resume(tmp_path / "out")
    assert posted(tmp_path / "out") == lines
    assert (tmp_path / "out/private/granted.parquet").exists()


# --- failures -----------------------------------------------------------------------------


def failing(tmp_path: Path, given: DatabaseQuery, market=WIDE, **more) -> AgentsError:
    """The error of a run that must leave no folder and spend nothing."""
    ledger = tmp_path / "ledger"
    Ledger.create(ledger, "people", epsilon=4.0, delta=1e-5)
    with pytest.raises(AgentsError) as raised:
        solve(market, given, output=tmp_path / "out", ledger=ledger, dataset="people", **more)
    assert not (tmp_path / "out").exists()
    assert Ledger.open(ledger).balance("people").runs == 0
    assert len(raised.value.message) < 400 and "\n" not in raised.value.message
    return raised.value


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT * FROM nothing", "nothing"),
        ("SELEC id FROM people", "(?i)syntax"),
        ("SELECT id, value, beds FROM people", "the query lacks the column 'hours'"),
        ("SELECT *, 1 AS more FROM people", "has a column 'more'"),
        ("SELECT id, 'much' AS value, beds, hours FROM people", "'value' is of type .*string"),
        ("DROP TABLE people", "(?i)syntax|near|DROP"),
        ("SELECT id, value, NULL AS beds, hours FROM people", "beds"),
    ],
)
def test_a_query_that_cannot_be_used(place, tmp_path, sql, says):
    error = failing(tmp_path, query(place, sql))
    assert re.search(says, error.message), error.message
    assert solve(WIDE, query(place), seed=1), "the records are still there"


def test_a_query_can_change_nothing(filled, tmp_path):
    with psycopg.connect(filled) as db:
        db.execute(
            "CREATE FUNCTION erase() RETURNS int LANGUAGE sql AS 'DELETE FROM people RETURNING 1'"
        )
    sql = "SELECT id, value, beds, hours + erase() AS hours FROM people"
    error = failing(tmp_path, query(filled, sql))
    assert "read-only transaction" in error.message
    with psycopg.connect(filled) as db:
        assert db.execute("SELECT count(*) FROM people").fetchone() == (200,)


def test_a_dropped_table(filled, tmp_path):
    with psycopg.connect(filled) as db:
        db.execute("DROP TABLE people")
    error = failing(tmp_path, query(filled))
    assert 'relation "people" does not exist' in error.message
    assert "database's own client" in error.hint


def test_a_user_without_rights_sees_nothing(filled, server, tmp_path):
    with psycopg.connect(filled, autocommit=True) as db:
        name = db.execute("SELECT current_database()").fetchone()[0]
        db.execute("DROP ROLE IF EXISTS nobody_here")
        db.execute("CREATE ROLE nobody_here LOGIN")
    error = failing(tmp_path, query(server.address(name, "nobody_here")))
    assert "permission denied for table people" in error.message and "SELECT" in error.hint
    assert not re.search(r"p\d+", error.message)


def test_a_killed_connection(filled, tmp_path):
    """While the rows are read; then the same command works."""

    def kill():
        with psycopg.connect(filled, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )

    timer = threading.Timer(1.0, kill)
    timer.start()
    slow = "SELECT id, value, beds, hours + 0 * (pg_sleep(0.02) IS NULL)::int AS hours FROM people"
    error = failing(tmp_path, query(filled, slow))
    timer.join()
    assert "terminating connection due to administrator command" in error.message
    assert "run the same command again" in error.hint
    assert solve(WIDE, query(filled), seed=1)


def test_a_server_that_dies_while_a_run_resumes(filled, server, tmp_path):
    """The budget is kept, and the run ends with the same billboard once the server is back."""

    class StopError(Exception):
        pass

    def stop(progress):
        if progress.rounds == 2:
            raise StopError

    whole = solve(WIDE, query(filled), output=tmp_path / "whole", seed=2)
    with pytest.raises(StopError):
        solve(WIDE, query(filled), output=tmp_path / "out", seed=2, progress=stop)
    lines = posted(tmp_path / "out")
    name = filled.partition("@/")[2].partition("?")[0]
    away = filled.replace(f"port={server.port}", "port=1")
    with pytest.raises(AgentsError) as raised:
        resume(tmp_path / "out", query(away))
    assert "is the server running" in raised.value.hint and name in raised.value.message
    assert posted(tmp_path / "out") == lines
    assert resume(tmp_path / "out").billboard.head == whole.billboard.head


def test_what_the_run_file_remembers(place, tmp_path):
    solve(WIDE, query(place), output=tmp_path / "out", seed=2)
    file = RunFile.read(tmp_path / "out/private/run.json")
    assert file.query == people.SQL and file.agents == [place]
    assert file.records("resume") == query(place)
    bad = json.loads((tmp_path / "out/private/run.json").read_text())
    for wrong in [{"query": 7}, {"agents": None}, {"agents": [place, place]}]:
        (tmp_path / "bad.json").write_text(json.dumps(bad | wrong))
        with pytest.raises(jdpack.OutputError, match="not what solve writes"):
            RunFile.read(tmp_path / "bad.json")


@pytest.mark.parametrize("engine", [Mapped(store="codes"), Ray()])
def test_engines_that_need_files(place, tmp_path, engine):
    error = failing(tmp_path, query(place), engine=engine)
    assert "the records are in a database" in error.message


def test_files_that_are_no_databases(tmp_path):
    (tmp_path / "x.db").write_text("hello")
    with pytest.raises(AgentsError, match="neither a DuckDB nor an SQLite file"):
        query(str(tmp_path / "x.db"))
    with pytest.raises(AgentsError, match="No such file"):
        query(str(tmp_path / "gone.db"))
    for sql in ["", " ", 7]:
        with pytest.raises(AgentsError, match="sql of a database query"):
            query(str(tmp_path / "x.db"), sql)
    for place in ["postgresql://host/x", str(tmp_path / "x.db"), "profile://town"]:
        with pytest.raises(AgentsError, match="is a database, and nothing says which rows"):
            solve(WIDE, place)


def test_a_column_of_several_types_in_sqlite(tmp_path):
    place = str(tmp_path / "mixed.sqlite")
    with sqlite3.connect(place) as db:
        db.execute("CREATE TABLE people (id, value, beds, hours)")
        rows = [(i, i % 10, 0.5, 0.25) for i in range(1, 100_000)]
        db.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", [*rows, (100_000, 0.5, 0.5, 0.25)])
    db.close()
    market = jdpack.Market(
        supply={"beds": 60.0, "hours": 40.0},
        max_demand=1.0,
        max_value=10.0,
        agents=100_000,
        epsilon=2.0,
        delta=1e-6,
    )
    with pytest.raises(AgentsError) as raised:
        solve(market, query(place), seed=1)
    check_error(raised.value, "expected INT64 but got DOUBLE", "CAST")
    cast = "SELECT id, CAST(value AS REAL) AS value, beds, hours FROM people"
    assert solve(market, query(place, cast), seed=1)


def test_what_duckdb_cannot_sort_in_memory_is_for_its_owner_only(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "private"))
    (tmp_path / "private").mkdir()
    path = str(tmp_path / "records.duckdb")
    people.fill("duckdb", path)
    asked = DatabaseQuery(path, people.SQL)
    with reading.connect(asked) as db, db.cursor() as cursor:
        cursor.execute("SELECT current_setting('temp_directory')")
        folder = Path(cursor.fetchone()[0])
        assert folder.parent == tmp_path / "private" and folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_a_duckdb_file_that_another_program_writes(tmp_path):
    place = str(tmp_path / "records.duckdb")
    people.fill("duckdb", place)
    script = "import duckdb, sys; db = duckdb.connect(sys.argv[1]); print(1, flush=True); input()"
    command = [sys.executable, "-c", script, place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"1\n"
        error = failing(tmp_path, query(place))
        other.communicate(b"\n")
    assert "is the server running, or another program using the file" in error.hint
    assert solve(WIDE, query(place), seed=1)


# --- credentials --------------------------------------------------------------------------


@pytest.fixture
def member(filled, server):
    """A user with a password, who may read the records over TCP."""
    with psycopg.connect(filled, autocommit=True) as db:
        name = db.execute("SELECT current_database()").fetchone()[0]
        db.execute("DROP ROLE IF EXISTS member")
        db.execute(f"CREATE ROLE member LOGIN PASSWORD '{PASSWORD}'")
        db.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO member")
    yield server.tcp(name, "member")
    with psycopg.connect(filled, autocommit=True) as db:
        db.execute("DROP OWNED BY member")
        db.execute("DROP ROLE member")


@pytest.mark.parametrize("way", ["environment", "password file", "service file"])
def test_where_a_password_may_come_from(member, tmp_path, monkeypatch, capsys, way):
    """And it is in no file of the run, nor in anything printed."""
    address, home = member, tmp_path / "home"
    home.mkdir()
    if way == "environment":
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
    elif way == "password file":
        (home / "pgpass").write_text(f"*:*:*:*:{PASSWORD}\n")
        (home / "pgpass").chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(home / "pgpass"))
    else:
        place, _, name = member.partition("@")[2].partition("/")
        host, _, port = place.partition(":")
        (home / "services").write_text(
            f"[town]\nhost={host}\nport={port}\ndbname={name}\nuser=member\npassword={PASSWORD}\n"
        )
        monkeypatch.setenv("PGSERVICEFILE", str(home / "services"))
        address = "postgresql:///?service=town"
    market = tmp_path / "market.toml"
    market.write_text(TOML)
    given = ["solve", str(market), address, "--query", people.SQL, "-o", str(tmp_path / "out")]
    code, out, err = run_cli(monkeypatch, capsys, *given, "--force")
    assert code == 0, err
    for command in ["verify", "report", "letters"]:
        code, more, warned = run_cli(monkeypatch, capsys, command, str(tmp_path / "out"))
        assert code == 0, warned
        out, err = out + more, err + warned
    assert PASSWORD not in out + err
    assert PASSWORD.encode() not in everything_below(tmp_path / "out")
    assert b"member" in everything_below(tmp_path / "out") or way == "service file"


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://member:{PASSWORD}@127.0.0.1:1/town",
        f"postgresql://member:{PASSWORD}/x?y@127.0.0.1:1/town",
        f"postgresql://127.0.0.1:1/town?user=member&password={PASSWORD}",
        f"postgresql://127.0.0.1:1/town?sslpassword={PASSWORD}",
        f"host=127.0.0.1 password={PASSWORD} dbname=town",
        f"snowflake://member:{PASSWORD}@account/town",
        f"flightsql://host/?access_token={PASSWORD}",
    ],
)
def test_a_password_in_the_address_is_refused_and_never_repeated(
    tmp_path, monkeypatch, capsys, address
):
    market = tmp_path / "market.toml"
    market.write_text(TOML)
    for more in (["--query", people.SQL], []):
        given = ["solve", str(market), address, *more, "-o", str(tmp_path / "out"), "--force"]
        code, out, err = run_cli(monkeypatch, capsys, *given)
        assert code == 2 and PASSWORD not in out + err, err
        assert not more or "holds" in err
        assert not (tmp_path / "out").exists()
    with pytest.raises(AgentsError) as raised:
        query(address)
    assert PASSWORD not in repr(raised.value) + str(raised.value.__context__)


def test_errors_of_a_connection_never_show_the_password(member, tmp_path, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", f"not-{PASSWORD}")
    for sql in [people.SQL, "SELECT * FROM nothing"]:
        with pytest.raises(AgentsError) as raised:
            solve(WIDE, query(member, sql), output=tmp_path / "out")
        assert "password authentication failed" in raised.value.message
        assert PASSWORD not in str(raised.value) and "PGPASSWORD" in raised.value.hint
    quoted = f"invalid URI: postgresql://member:{PASSWORD}@host/x password={PASSWORD}"
    assert PASSWORD not in reading.without_secrets(quoted)


def test_a_missing_driver_is_named(filled, monkeypatch):
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql", None)
    with pytest.raises(AgentsError) as raised:
        solve(WIDE, query(filled), seed=1)
    check_error(raised.value, "adbc_driver_postgresql is needed", "jdpack[postgresql]")
