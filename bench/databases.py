"""How fast records are read from databases, beside Parquet.

For each source there are two numbers: how fast its driver hands over the rows, in the order that
jdpack asks for and without jdpack, and how fast jdpack turns them into codes. Each is measured in a
process of its own, which compiles and connects before the clock starts. PostgreSQL is a private
server on this machine.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import plots
import postgresql
from common import RESULTS, report, watched
from loss import say
from memory import market_text, write_agents

KINDS = ["Parquet", "PostgreSQL", "DuckDB", "SQLite"]
SQL = "SELECT * FROM agents"
_READ = """
import sys
import time
import pyarrow.parquet as pq
from jdpack import DatabaseQuery, Market
from jdpack.records.databases import database
from jdpack.records.encode import encode, encode_piece
from jdpack.records.source import Source
from jdpack.records.threads import Threads

path, place, how = sys.argv[1:]
market = Market.from_toml(path)
agents = place if place.endswith(".parquet") else DatabaseQuery(place, "SELECT * FROM agents")
source = Source(market, agents, None, None, None, False)
few = Source(market, agents if isinstance(agents, str) else
    DatabaseQuery(place, "SELECT * FROM agents LIMIT 1000"), None, None, None, False)
encode_piece(market, few.pieces(1000)[0], clamp=False, keep=[].append)  # compiles
print("ready", flush=True)
begin = time.perf_counter()
if how == "codes":
    encode(market, source.pieces(), threads=Threads(1))
elif isinstance(agents, str):
    for batch in pq.ParquetFile(place).iter_batches(16384, use_threads=False):
        pass
else:
    with database.connect(agents) as db, db.cursor() as cursor:
        cursor.execute(database.ordered(market, agents))
        with cursor.fetch_record_batch() as reader:
            for batch in reader:
                pass
print(time.perf_counter() - begin)
"""


def fill(kind: str, parquet: Path, place: str) -> None:
    """Copy the agents of a Parquet file to a table."""
    if kind == "DuckDB":
        import duckdb

        with duckdb.connect(place) as db:
            db.execute(f"CREATE TABLE agents AS SELECT * FROM '{parquet}'")
        return
    import adbc_driver_manager.dbapi as adbc

    from jdpack.records.databases.database import DatabaseQuery, connect

    if kind == "SQLite":
        sqlite3.connect(place).execute("CREATE TABLE none (x)").connection.close()
    with connect(DatabaseQuery(place, SQL), write=True) as db, db.cursor() as cursor:
        assert isinstance(db, adbc.Connection)
        with pyarrow.parquet.ParquetFile(parquet) as file:
            reader = pyarrow.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
            cursor.adbc_ingest("agents", reader, mode="create")
        if kind != "SQLite":
            cursor.execute("ALTER TABLE agents ADD PRIMARY KEY (id)")
        else:
            cursor.execute("CREATE UNIQUE INDEX by_id ON agents (id)")
        db.commit()


def measure(n: int, turns: int) -> list[dict[str, float | str]]:
    """One row per source: rows per second by the driver and as codes, and the peak memory."""
    rows: list[dict[str, float | str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parquet, market = folder / "agents.parquet", folder / "market.toml"
        write_agents(parquet, n, np.random.default_rng(0))
        market.write_text(market_text(n))
        places = {"Parquet": str(parquet), "DuckDB": str(folder / "agents.duckdb")}
        places["SQLite"] = str(folder / "agents.sqlite")
        places["PostgreSQL"] = postgresql.Server.start(os.getpid()).address()
        for kind in KINDS[1:]:
            fill(kind, parquet, places[kind])
        for kind in KINDS:
            row: dict[str, float | str] = {"source": kind, "rows": n}
            for how in ("driver", "codes"):
                command = [sys.executable, "-c", _READ, market, places[kind], how]
                done = [watched(command, ready=True) for _ in range(turns)]
                row[how] = n / statistics.median(float(one.out) for one in done)
                row[f"{how}_mb"] = max(one.peak or 0 for one in done) / 1e6
            rows.append(row)
    return rows


def main() -> None:
    """Print the table, and write it with JSON, CSV and a plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    plots.check()
    rows = measure(args.agents, args.turns)
    text = [
        "| source | driver alone, rows/s | as codes, rows/s | of the driver | of Parquet | peak |",
        "|---" * 6 + "|",
    ]
    for row in rows:
        driver, codes = float(row["driver"]), float(row["codes"])
        text.append(
            f"| {row['source']} | {driver:,.0f} | {codes:,.0f} | {codes / driver:.2f} "
            f"| {codes / float(rows[0]['codes']):.2f} | {row['codes_mb']:.0f} MB |"
        )
        say(text[-1])
    bars = {str(row["source"]): {how: row[how] for how in ("driver", "codes")} for row in rows}
    picture = plots.bars("rows per second", bars)
    report("databases", args.results, "\n".join(text), rows, picture, rows)


if __name__ == "__main__":
    main()
