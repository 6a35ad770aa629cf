"""What a round costs in a database, beside a plain sum of the same table there.

Each place computes in a process of its own, on one core. It encodes the records, sums up all
columns of the table of codes a few times, asks for the demand at the prices of some rounds over all
rows, and then at those of all rounds, as a run does. Finally it solves. All seconds are of CPU
time, in jdpack's process and the database's together, because other work on the machine cannot add
to it. PostgreSQL is a private server on this machine, and Spark runs on it with one thread. The
engine memory does the same for comparison. For PostgreSQL there are also the rows that ADBC reads
per second, by the clock. Runs of the same size must end with the same billboard everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import plots
import postgresql
import spark
from common import RESULTS, report
from databases import fill
from memory import market_text, write_agents

PLACES = {
    "memory": "memory",
    "duckdb": "DuckDB, table",
    "parquet": "DuckDB, Parquet",
    "postgresql": "PostgreSQL",
    "spark": "Spark",
}
ROUNDS = ("all", "round")
_MEASURE = """
import json
import sys
import time
import psutil
from jdpack import DatabaseQuery, Market, solve
from jdpack.engines import shard, sql as sql_engine
from jdpack.engines.settings import KINDS, RunInfo
from jdpack.records.source import Source
from jdpack.records.databases import database

path, address, sql, engine, turns, run = sys.argv[1:]
market, found = Market.from_toml(path), {}
agents = DatabaseQuery(address, sql) if sql else address
source = Source(market, agents, None, None, None, False)
adbc = address.startswith("postgresql")

def cpu():
    roots = [psutil.Process(), *server]
    every = [*roots, *(child for root in roots for child in root.children(recursive=True))]
    ended = sum(t.children_user + t.children_system for t in (root.cpu_times() for root in roots))
    return ended + sum(t.user + t.system for t in (one.cpu_times() for one in every))

def timed(work, times=1):
    begin = cpu()
    answers = [work(time) for time in range(times)]
    return (cpu() - begin) / times, answers[-1]

asked = dict(threads=1, coin_hash="sha-256", seed=1)
calm = solve(market, path.replace(".toml", ".parquet"), engine="memory", **asked).billboard
prices = [one.step.prices for one in calm.releases if one.step.query == "demand"]
server = []
if adbc:
    import psycopg
    with psycopg.connect(address) as db:
        server = [psutil.Process(db.info.backend_pid).parent()]
    begin = time.perf_counter()
    with database.connect(agents) as db, db.cursor() as cursor:
        cursor.execute(sql)
        with cursor.fetch_record_batch() as reader:
            rows = sum(batch.num_rows for batch in reader)
    found["adbc"] = rows / (time.perf_counter() - begin)
with_engine = KINDS[engine]()
found["encode"], opened = timed(
    lambda _: with_engine.open(source, 1, RunInfo("bench", None), lambda done: None)
)
some = prices[:: max(1, len(prices) // int(turns))]
found["plain"] = None
if engine == "sql":
    columns = [*(f"SUM(c0_{j})" for j in range(len(market.resources))), "SUM(v0)"]
    plain = f"SELECT {', '.join(columns)} FROM {opened._codes}"
    opened._db.ask(plain)  # databases read from disk, or compile, the first time
    found["plain"], every = timed(lambda _: opened._db.ask(plain), len(some))
module, usual = (sql_engine, sql_engine._SCREENED) if engine == "sql" else (shard, shard._SCREENED)
module._SCREENED = 2**62  # ask all agents
opened.demand((1,) * len(market.resources))
found["all"], _ = timed(lambda turn: opened.demand(some[turn]), len(some))
module._SCREENED = usual
found["round"], _ = timed(lambda turn: opened.demand(prices[turn]), len(prices))
opened.close()
found["rounds"], found["run"] = len(prices), None
if run == "yes":
    found["run"], result = timed(lambda _: solve(market, agents, engine=engine, **asked))
    assert result.billboard.head == calm.head, "the same run has other bits elsewhere"
print(json.dumps(found))
"""


def measure(
    place: str, n: int, turns: int, run: bool, folder: Path
) -> dict[str, float | str | None]:
    """The numbers of one place; the folder keeps the records for others."""
    parquet, market = folder / f"{n}.parquet", folder / f"{n}.toml"
    if not parquet.exists():
        write_agents(parquet, n, np.random.default_rng(0))
        market.write_text(market_text(n))
    address, sql = str(parquet), ""
    if place in ("duckdb", "postgresql"):
        server = place == "postgresql"
        address = (
            postgresql.Server.start(os.getpid()).address() if server else f"{folder}/{n}.duckdb"
        )
        fill("PostgreSQL" if server else "DuckDB", parquet, address)
        sql = "SELECT * FROM agents"
    elif place == "spark":
        os.environ.update(spark.variables(folder, spark.LARGE))
        address, sql = spark.ADDRESS, f"SELECT * FROM parquet.`{parquet}`"
    engine = "memory" if place == "memory" else "sql"
    os.environ["PGOPTIONS"] = "-c max_parallel_workers_per_gather=0"
    command = [sys.executable, "-c", _MEASURE, market, address, sql, engine, str(turns)]
    done = subprocess.run(
        [*command, "yes" if run else "no"], check=True, stdout=subprocess.PIPE, text=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    keys = ("encode", "plain", "all", "round", "rounds", "run", "adbc")
    return {"place": PLACES[place], "agents": n} | {key: found.get(key) for key in keys}


def main() -> None:
    """Print the table, and write it with JSON, CSV and a plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--place",
        action="append",
        metavar="NAME=AGENTS",
        help=f"one of {', '.join(PLACES)}, with how many agents; all with 10,000,000 if not given",
    )
    parser.add_argument(
        "--turns", type=int, default=5, help="about how many rounds to ask over all rows"
    )
    parser.add_argument("--no-run", action="store_true", help="leave the whole runs out")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    plots.check()
    rows: list[dict[str, Any]] = []
    text = [
        "| place | agents | encode | a plain sum | a round over all rows | a round of the run "
        "| a whole run | ADBC |",
        "|---" * 8 + "|",
    ]
    with tempfile.TemporaryDirectory() as name:
        for given in args.place or [f"{place}=10000000" for place in PLACES]:
            place, _, count = given.partition("=")
            rows.append(measure(place, int(count), args.turns, not args.no_run, Path(name)))
    for row in rows:

        def cell(key: str, form: str = ".3f", unit: str = "s", row: dict[str, Any] = row) -> str:
            return "" if row[key] is None else f"{row[key]:{form}} {unit}"

        times = [f" ({row[key] / row['plain']:.2f})" if row["plain"] else "" for key in ROUNDS]
        text.append(
            f"| {row['place']} | {row['agents']:,} | {cell('encode', '.1f')} | {cell('plain')} "
            f"| {cell('all')}{times[0]} | {cell('round')}{times[1]} | {cell('run', '.1f')} "
            f"| {cell('adbc', ',.0f', 'rows/s')} |"
        )
    bars = {
        f"{row['place']}, {row['agents']:,}": {"round": row["round"] / row["agents"] * 1e9}
        for row in rows
    }
    picture = plots.bars("nanoseconds of CPU time per agent and round", bars)
    report("warehouse", args.results, "\n".join(text), rows, picture, rows)


if __name__ == "__main__":
    main()
