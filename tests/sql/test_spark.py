"""The engine sql on Spark, which runs on this machine: one session for all of these tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark
from database import people
from helpers import check_error
from jdpack import DatabaseQuery, MwuOnline, Sql, resume, solve, verify_run
from jdpack.engines import warehouse
from jdpack.errors import AgentsError, EngineError, OutputError
from jdpack.records.databases.spark import SETTINGS
from sql.test_queries import (  # tests with the `place` of this file
    compare_all,
    compare_boxes,
    compare_people,
    test_a_person_beyond_a_bound_is_refused_with_clamp_too,
    test_a_wide_bundle_and_too_many_agents_are_refused,
    test_bad_records_are_refused,
    test_large_numbers,
)
from sql.test_runs import BUDGET, allocation_of

__all__ = [
    "test_a_person_beyond_a_bound_is_refused_with_clamp_too",
    "test_a_wide_bundle_and_too_many_agents_are_refused",
    "test_bad_records_are_refused",
    "test_large_numbers",
]


FEW = MwuOnline(batch=40)
"""A policy with few rounds."""


class Spark:
    """Records in a file, which a view reads."""

    def __init__(self, session, folder: Path) -> None:
        self.session, self.folder, self.loaded = session, folder, 0

    def load(self, table: pa.Table) -> warehouse.Warehouse:
        self.loaded += 1
        path = self.folder / f"records{self.loaded}.parquet"
        pq.write_table(table, path)
        self.session.read.parquet(str(path)).createOrReplaceTempView("records")
        return warehouse.Spark(spark.ADDRESS)


@pytest.fixture(scope="module")
def session(spark_home) -> Iterator:
    from pyspark.sql import SparkSession

    own = SparkSession.builder.master("local[1]").config(map=SETTINGS).getOrCreate()
    yield own
    own.stop()


@pytest.fixture(scope="module")
def place(session, tmp_path_factory):
    return Spark(session, tmp_path_factory.mktemp("records"))


@pytest.mark.parametrize(
    ("options", "rest"),
    [
        (1, {"texts": False, "divisible": True, "long": False, "terms": 2000}),
        (3, {"texts": True, "divisible": False, "long": True, "terms": 20}),
    ],
    ids=["one option", "several"],
)
def test_every_query_has_the_same_answer(place, options, rest):
    compare_all(place, seed=5, sparse=False, options=options, each=1, **rest)


def test_groups_totals_and_requests_too(place):
    compare_people(place, seed=1, options=1, clamp=True, each=1)


def test_open_requests_are_enough_while_prices_stay_in_a_box(place, monkeypatch):
    compare_boxes(place, 3, monkeypatch, rounds=10)


# --- runs ---------------------------------------------------------------------------------


@pytest.fixture
def records(session, tmp_path) -> DatabaseQuery:
    """The records in a file that Spark reads by itself."""
    pq.write_table(people.wide(), tmp_path / "people.parquet")
    return DatabaseQuery(spark.ADDRESS, f"SELECT * FROM parquet.`{tmp_path}/people.parquet`")


@pytest.fixture
def tables(session) -> Path:
    """Where Spark keeps its tables."""
    return Path(session.conf.get("spark.sql.warehouse.dir").removeprefix("file:"))


def test_a_run_has_the_same_billboard_and_allocation_as_in_memory(records, tables, tmp_path):
    """docs/databases.md has a run with newton."""
    asked = {"policy": FEW, "coin_hash": "sha-256", **BUDGET}
    memory = solve(people.WIDE, tmp_path / "people.parquet", output=tmp_path / "memory", **asked)
    sql = solve(people.WIDE, records, engine="sql", output=tmp_path / "sql", **asked)
    assert sql.billboard.head == memory.billboard.head
    assert allocation_of(tmp_path / "sql") == allocation_of(tmp_path / "memory")
    assert list(tables.iterdir()) == []
    assert verify_run(tmp_path / "sql").agents == 200  # reads the records from Spark


def test_codes_are_private_and_can_be_kept(records, session, tables, tmp_path):
    asked = {"policy": FEW, **BUDGET}
    name = (
        f"jdpack_codes_{solve(people.WIDE, people.wide(), **asked).billboard.header.commitment[:8]}"
    )
    (tables / name).mkdir()
    (tables / name / "part").write_text("left by a process that was killed")
    solve(people.WIDE, records, engine=Sql(keep=True), **asked)
    assert [row.tableName for row in session.sql("SHOW TABLES LIKE 'jdpack*'").collect()] == [name]
    assert session.table(name).count() == 200
    assert {oct(path.stat().st_mode)[-2:] for path in (tables / name).iterdir()} == {"00"}
    session.sql(f"DROP TABLE {name}")


def test_a_dropped_table_costs_nothing_twice(records, session, tables, tmp_path):
    """One sentence, what is posted stays, and `resume` ends with the billboard of a calm run."""

    def drop(progress):
        if progress.stage == "rounds" and progress.rounds == 3:
            for row in session.sql("SHOW TABLES LIKE 'jdpack*'").collect():
                session.sql(f"DROP TABLE {row.tableName}")

    out = tmp_path / "out"
    with pytest.raises(EngineError) as error:
        solve(people.WIDE, records, engine="sql", policy=FEW, output=out, progress=drop, **BUDGET)
    check_error(error.value, ["the database 'spark:local[1]' failed: "], "resume")
    posted = (out / "public/billboard.jsonl").read_text()
    assert posted.count("\n") >= 4
    finished = resume(out).billboard
    calm = solve(people.WIDE, people.wide(), policy=FEW, coin_hash="sha-256", **BUDGET)
    assert finished.head == calm.billboard.head
    assert (out / "public/billboard.jsonl").read_text().startswith(posted)
    assert list(tables.iterdir()) == []


def test_a_spark_that_is_killed(records, tmp_path):
    """A process of its own loses its Spark in the third round; this one finishes its run."""
    out = tmp_path / "out"
    code = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from pyspark.sql import SparkSession
from database import people
from jdpack import AgentsError, DatabaseQuery, EngineError, resume, solve
from sql.test_spark import BUDGET, FEW

def kill(progress):
    if progress.stage == "rounds" and progress.rounds == 3:
        os.kill(SparkSession.active().sparkContext._gateway.proc.pid, signal.SIGKILL)

sys.modules["jdpack.run.solve"].check_hope = lambda *public: None
try:
    asked = {{"engine": "sql", "policy": FEW, "output": {str(out)!r}, **BUDGET}}
    solve(people.WIDE, {records!r}, progress=kill, **asked)
except EngineError as error:
    print(error)
try:
    resume({str(out)!r})
except AgentsError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("the database 'spark:local[1]' failed: "), done
    says = done.stdout.splitlines()
    assert len(says) == 4 and "resume the run" in says[1]
    assert says[2].startswith("this process has lost its Spark session: ")
    table = people.wide()
    other = pa.array([5.0, *table["value"].to_pylist()[1:]])
    pq.write_table(table.set_column(1, "value", other), tmp_path / "people.parquet")
    with pytest.raises(AgentsError, match="the records have changed since the run began"):
        resume(out)
    pq.write_table(table, tmp_path / "people.parquet")
    calm = solve(people.WIDE, table, policy=FEW, coin_hash="sha-256", **BUDGET)
    assert resume(out).billboard.head == calm.billboard.head


def test_refusals(records, tmp_path):
    with pytest.raises(
        AgentsError, match=r"has a Spark session with 'local\[1\]', not with 'local"
    ):
        solve(people.WIDE, replace(records, address="spark:local[2]"), engine="sql", **BUDGET)
    with pytest.raises(OutputError, match="Spark has no transactions"):
        solve(people.WIDE, records, engine="sql", output=tmp_path / "out", write_to="t", **BUDGET)
    with pytest.raises(EngineError, match=r"failed: .*nowhere"):
        solve(people.WIDE, replace(records, sql="SELECT * FROM nowhere"), engine="sql", **BUDGET)
    with pytest.raises(AgentsError, match=r"cannot read the records from 'spark:.*nowhere"):
        solve(people.WIDE, replace(records, sql="SELECT * FROM nowhere"), **BUDGET)


def test_no_java(records, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code = "from jdpack import *; solve(Market(supply=[9.0], max_demand=1.0, max_value=1.0, "
    code += f"agents=9), {records!r}, engine='sql', epsilon=1.0, delta=1e-6, force=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Spark does not start" in done.stderr and "it needs Java 17" in done.stderr
