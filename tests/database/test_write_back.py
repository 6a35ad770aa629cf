"""Results in a table of the database: all rows or none, and never twice."""

from __future__ import annotations

import re
import sqlite3

import duckdb
import psycopg
import pyarrow.parquet as pq
import pytest

import jdpack
from database import people
from database.people import SEVERAL, WIDE, query
from helpers import run_cli
from jdpack import Ledger, OutputError, letters, resume, solve
from jdpack.run.write_back import Target


def rows(place: str, sql: str) -> list[tuple]:
    if place.startswith("postgresql"):
        with psycopg.connect(place) as db:
            return db.execute(sql).fetchall()
    if place.endswith("duckdb"):
        with duckdb.connect(place) as db:
            return db.execute(sql).fetchall()
    db = sqlite3.connect(place)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def in_file(folder) -> list[tuple]:
    table = pq.read_table(folder / "private/allocation.parquet")
    return sorted(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.parametrize(
    ("market", "sql", "names"),
    [
        (WIDE, people.SQL, "id, granted"),
        (
            SEVERAL,
            "SELECT id, value, beds, hours FROM choices ORDER BY id, rank",
            'id, "option", granted',
        ),
    ],
    ids=["one option", "several"],
)
def test_the_allocation_is_in_the_table(place, tmp_path, market, sql, names):
    for name in ("one", "two"):  # two runs share a table
        made = solve(market, query(place, sql), output=tmp_path / name, write_to="given")
        run = made.billboard.header.commitment
        found = rows(place, f"SELECT {names} FROM given WHERE run = '{run}'")
        assert sorted((*row[:-1], bool(row[-1])) for row in found) == in_file(tmp_path / name)
    count = rows(place, "SELECT count(*), count(DISTINCT run) FROM given")
    assert count == [(2 * len(found), 2)]
    resume(tmp_path / "two")
    assert rows(place, "SELECT count(*), count(DISTINCT run) FROM given") == count


@pytest.mark.parametrize("engine", ["memory", "sql"])
def test_all_rows_or_none(filled, tmp_path, engine):
    """A trigger refuses one row in the middle: none stays, and resume writes all of them."""
    with psycopg.connect(filled) as db:
        db.execute("CREATE TABLE given (run text, id text, granted boolean)")
        db.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF NEW.id = 'p100' THEN RAISE 'no room'; END IF; RETURN NEW; END $$"
        )
        db.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON given FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    Ledger.create(tmp_path / "ledger", "people", epsilon=4.0, delta=1e-5)
    with pytest.raises(OutputError) as raised:
        solve(
            WIDE,
            query(filled),
            engine=engine,
            output=tmp_path / "out",
            write_to="given",
            ledger=tmp_path / "ledger",
            dataset="people",
        )
    assert "no room" in raised.value.message and "spends nothing more" in raised.value.hint
    assert rows(filled, "SELECT count(*) FROM given") == [(0,)]
    billboard = (tmp_path / "out/public/billboard.jsonl").read_text()
    with psycopg.connect(filled) as db:
        db.execute("DROP TRIGGER refuse ON given")
    resume(tmp_path / "out")
    assert rows(filled, "SELECT count(*) FROM given") == [(200,)]
    assert (tmp_path / "out/public/billboard.jsonl").read_text() == billboard
    assert Ledger.open(tmp_path / "ledger").balance("people").runs == 1


def test_a_table_that_cannot_be_written_is_refused_before_anything_is_spent(
    filled, server, tmp_path
):
    with psycopg.connect(filled, autocommit=True) as db:
        name = db.execute("SELECT current_database()").fetchone()[0]
        db.execute("DROP ROLE IF EXISTS reader")
        db.execute("CREATE ROLE reader LOGIN")
        db.execute("GRANT SELECT ON people TO reader")
        db.execute("CREATE TABLE blind (run text, id text, granted boolean)")
        db.execute("GRANT INSERT ON blind TO reader")
    try:
        reader = server.address(name, "reader")
        for table, place, says in [
            ("people", filled, "has the columns id, value, beds, hours, not run, id, granted"),
            ("given", reader, "permission denied for schema public"),
            ("blind", reader, "permission denied for table blind"),
            ("a.b.c", filled, "is not the name of a table"),
            ("", filled, "is not the name of a table"),
            ("nowhere.given", filled, "nowhere"),
        ]:
            with pytest.raises(OutputError, match=re.escape(says)):
                solve(WIDE, query(place), output=tmp_path / "out", write_to=table)
            assert not (tmp_path / "out").exists()
    finally:
        with psycopg.connect(filled, autocommit=True) as db:
            db.execute("DROP OWNED BY reader")
            db.execute("DROP ROLE reader")
    file = people.parquet(tmp_path, people.wide())
    with pytest.raises(OutputError, match="no database to write 'given' to"):
        solve(WIDE, file, output=tmp_path / "out", write_to="given")
    named = jdpack.Market(
        supply={"beds": 60.0, "hours": 40.0},
        max_demand=1.0,
        max_value=10.0,
        agents=200,
        columns=jdpack.Columns(id="run"),
        epsilon=2.0,
        delta=1e-6,
    )
    renamed = query(filled, people.SQL.replace("SELECT id", "SELECT id AS run"))
    with pytest.raises(OutputError, match="already has a column 'run'"):
        solve(named, renamed, output=tmp_path / "out", write_to="given")
    assert not (tmp_path / "out").exists()
    with pytest.raises(OutputError, match="needs an output folder"):
        solve(WIDE, query(filled), write_to="given")


def test_the_negative_control_of_all_or_none(filled, tmp_path, monkeypatch):
    """If every batch were its own transaction, the test above would see some rows."""
    whole = Target.write

    def hasty(self, run, batches, after):
        for batch in batches:
            for at in range(0, batch.num_rows, 50):
                whole(self, f"{run}{at}", iter([batch.slice(at, 50)]), after)
        return True

    monkeypatch.setattr(Target, "write", hasty)
    with psycopg.connect(filled) as db:
        db.execute("CREATE TABLE given (run text, id text, granted boolean CHECK (id <> 'p50'))")
    with pytest.raises(OutputError):
        solve(WIDE, query(filled), output=tmp_path / "out", write_to="given")
    assert 0 < rows(filled, "SELECT count(*) FROM given")[0][0] < 200


@pytest.mark.parametrize("kind", ["duckdb", "postgresql"])
@pytest.mark.parametrize("engine", ["sql", "memory"])
def test_whoever_has_the_database_open_loses_nothing(kind, engine, tmp_path, request):
    """The engine sql has it open, and so may the process that calls jdpack."""
    address = (
        str(tmp_path / "a.duckdb") if kind == "duckdb" else request.getfixturevalue("database")
    )
    people.fill(kind, address)
    connect = psycopg.connect if kind == "postgresql" else duckdb.connect
    with connect(address) as mine:
        mine.execute("CREATE TABLE mine AS SELECT 1 AS x")
        mine.commit()
        solve(WIDE, query(address), engine=engine, output=tmp_path / "out", write_to="given")
        mine.execute("INSERT INTO mine VALUES (2)")
        mine.commit()
    assert sorted(rows(address, "SELECT id, granted FROM given")) == in_file(tmp_path / "out")
    assert rows(address, "SELECT count(*) FROM mine") == [(2,)]
    made = "SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'jdpack%'"
    assert rows(address, made) == [(0,)]
    resume(tmp_path / "out", engine=engine)
    assert rows(address, "SELECT count(*) FROM given") == [(200,)]


def test_letters_in_a_table(place, tmp_path, monkeypatch, capsys):
    made = solve(WIDE, query(place), output=tmp_path / "out")
    out = str(tmp_path / "out")
    code, _, err = run_cli(
        monkeypatch, capsys, "letters", out, "--outcome", "--write-to", "post", "--quiet"
    )
    assert code == 0, err
    found = rows(place, "SELECT run, id, check_code, outcome FROM post")
    assert len(found) == 200 and {row[0] for row in found} == {made.billboard.header.commitment}
    with pytest.raises(OutputError, match="already has letters of this run"):
        letters(out, outcome=True, write_to="post")
    with pytest.raises(OutputError, match="has the columns"):
        letters(out, write_to="post")
    assert rows(place, "SELECT count(*) FROM post") == [(200,)]
