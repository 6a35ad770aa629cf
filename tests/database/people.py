"""The records of the tests of databases, in every backend."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import duckdb
import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet

from jdpack import Columns, DatabaseQuery, Market

WIDE = Market(
    supply={"beds": 60.0, "hours": 40.0},
    max_demand=1.0,
    max_value=10.0,
    agents=200,
    epsilon=2.0,
    delta=1e-6,
)
SEVERAL, LONG = WIDE.changed(options=2), WIDE.changed(columns=Columns(layout="long"))
BACKENDS = ["postgresql", "duckdb", "sqlite"]
SQL = "SELECT id, value, beds, hours FROM people"


def wide() -> pa.Table:
    rng = np.random.default_rng(3)
    columns = {"id": [f"p{i}" for i in range(200)], "value": rng.uniform(0, 10, 200).round(3)}
    columns |= {name: rng.uniform(0, 1, 200).round(4) for name in ("beds", "hours")}
    return pa.table(columns)


def several() -> pa.Table:
    """Two options per person; `rank` says which comes first."""
    rng = np.random.default_rng(4)
    columns = {
        "id": [f"p{i // 2}" for i in range(400)],
        "rank": [i % 2 for i in range(400)],
        "value": rng.uniform(0, 10, 400).round(3),
    }
    columns |= {name: rng.uniform(0, 1, 400).round(4) for name in ("beds", "hours")}
    return pa.table(columns)


def long() -> pa.Table:
    rows = [
        (row["id"], row["value"], name, row[name])
        for row in wide().to_pylist()
        for name in ("hours", "beds")
    ]
    names = ["id", "value", "resource", "amount"]
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


TABLES = {"people": wide, "choices": several, "pairs": long}
_TYPES = {pa.string(): "text", pa.float64(): "double precision", pa.int64(): "bigint"}


def fill(kind: str, place: str) -> None:
    """Put all tables into a database, with the rows in another order."""
    for name, made in TABLES.items():
        table = made()
        table = table.take(np.random.default_rng(1).permutation(table.num_rows))
        if kind == "duckdb":
            with duckdb.connect(place) as db:
                db.register("given", table)
                db.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
            continue
        columns = ", ".join(f"{c.name} {_TYPES[c.type]}" for c in table.schema)
        rows = [tuple(row.values()) for row in table.to_pylist()]
        if kind == "sqlite":
            marks = ", ".join("?" for _ in table.schema)
            with sqlite3.connect(place) as db:
                db.execute(f"CREATE TABLE {name} ({columns})")
                db.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
            db.close()
        else:
            with psycopg.connect(place) as db:
                db.execute(f"CREATE TABLE {name} ({columns})")
                with db.cursor().copy(f"COPY {name} FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)


def query(place: str, sql: str = SQL) -> DatabaseQuery:
    return DatabaseQuery(place, sql)


def parquet(folder: Path, table: pa.Table) -> Path:
    path = folder / "agents.parquet"
    pyarrow.parquet.write_table(table, path)
    return path


def everything_below(folder: Path) -> bytes:
    """Everything that is written in a folder, with the names of the files."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return b"\n".join(str(path).encode() + path.read_bytes() for path in files)
