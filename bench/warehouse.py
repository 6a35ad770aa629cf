"""How long a round takes in a database, beside a plain sum of the same table there.

Each place computes in a process of its own, on one core: encode the records, then ask for the
demand and for the plain sums of all columns in turn, at other prices each time, and finally solve.
Seconds are those of the fastest of several turns, because other work on the machine can only add;
the ratio of a round and a plain sum is that of CPU time in all turns. PostgreSQL is a private
server on this machine, and Spark runs on it with one thread. The engine memory has the same round
for comparison. For PostgreSQL there are also the rows that ADBC reads per second. Runs of the same
size must end with the same billboard everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
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
from common import RESULTS, report, watched
from databases import fill
from memory import market_text, write_agents

PLACES = {
    "memory": "memory",
    "duckdb": "DuckDB, table",
    "parquet": "DuckDB, Parquet",
    "postgresql": "PostgreSQL",
    "spark": "Spark",
}
TICK = 0.01
"""Seconds: what the clock of CPU time can tell apart."""
_MEASURE = """
import json
import sys
import time
import numpy as np
import psutil
from jdpack import DatabaseQuery, Market, MwuAdaptive, solve
from jdpack.engines.settings import KINDS, Place
from jdpack.records.source import Source
from jdpack.records.databases import database

path, address, sql, engine, turns, run = sys.argv[1:]
market, found = Market.from_toml(path), {}
agents = DatabaseQuery(address, sql) if sql else address
source = Source(market, agents, None, None, None, False)
adbc = address.startswith("postgresql")

def timed(work):
    begin = time.perf_counter()
    answer = work()
    return time.perf_counter() - begin, answer

def cpu():
    own = psutil.Process()
    servers = [psutil.Process(opened._db._db.info.backend_pid)] if adbc else []
    every = [one.cpu_times() for one in [own, *own.children(recursive=True), *servers]]
    return sum(one.user + one.system for one in every)

if adbc:
    def read():
        with database.connect(agents) as db, db.cursor() as cursor:
            cursor.execute(sql)
            with cursor.fetch_record_batch() as reader:
                return sum(batch.num_rows for batch in reader)
    seconds, rows = timed(read)
    found["adbc"] = rows / seconds
with_engine = KINDS[engine]()
found["encode"], opened = timed(
    lambda: with_engine.open(source, 1, Place("bench", None), lambda done: None)
)
rng, rounds, plains, m = np.random.default_rng(1), [], [], len(market.resources)
found["round_cpu"] = found["plain_cpu"] = 0.0
for turn in range(int(turns) + 1):
    prices = tuple(int(p) for p in rng.uniform(0.5, 1, m) * 2.0**52 / 65535 / m)
    begin = cpu()
    seconds, demand = timed(lambda: opened.demand(prices))
    rounds.append(seconds)
    found["round_cpu"] += (cpu() - begin) * (turn > 0)
    if engine == "sql":
        sums = ", ".join([*(f"SUM(c0_{j})" for j in range(m)), "SUM(v0)"])
        begin = cpu()
        seconds, every = timed(lambda: opened._db.ask(f"SELECT {sums} FROM {opened._codes}"))
        assert all(0 < one < of for one, of in zip(demand, every))
        plains.append(seconds)
        found["plain_cpu"] += (cpu() - begin) * (turn > 0)
opened.close()
found["round"] = min(rounds[1:])  # the first one compiles
found["plain"] = min(plains[1:], default=None)
if run == "yes":
    policy = MwuAdaptive(alpha=0.3)
    asked = dict(policy=policy, engine=engine, threads=1, coin_hash="sha-256", seed=1)
    found["run"], result = timed(lambda: solve(market, agents, **asked))
    found["head"] = result.billboard.head
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
    done = watched([*command, "yes" if run else "no"])
    found = json.loads(done.out.splitlines()[-1])
    row = {"place": PLACES[place], "agents": n, "encode": found["encode"], "round": found["round"]}
    row |= {key: found[key] for key in ("plain", "round_cpu", "plain_cpu")}
    row |= {"run": found.get("run"), "adbc": found.get("adbc")}
    return row | {"head": found.get("head")}


def main() -> None:
    """Print the table, and write it with JSON, CSV and a plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--place",
        action="append",
        metavar="NAME=AGENTS",
        help=f"one of {', '.join(PLACES)}, with how many agents; all with 10,000,000 if not given",
    )
    parser.add_argument("--turns", type=int, default=5, help="rounds to measure")
    parser.add_argument("--no-run", action="store_true", help="leave the whole runs out")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    plots.check()
    rows: list[dict[str, Any]] = []
    text = [
        "| place | agents | encode | a round | a plain sum | CPU ratio | a whole run | ADBC |",
        "|---" * 8 + "|",
    ]
    with tempfile.TemporaryDirectory() as name:
        for given in args.place or [f"{place}=10000000" for place in PLACES]:
            place, _, count = given.partition("=")
            rows.append(measure(place, int(count), args.turns, not args.no_run, Path(name)))
    for row in rows:
        plain, ratio, run, adbc = "", "", "", ""
        if row["plain"] is not None:
            plain, ratio = (
                f"{row['plain']:.3f} s",
                f"{row['round_cpu'] / max(row['plain_cpu'], TICK):.2f}",
            )
        if row["run"] is not None:
            run = f"{row['run']:.0f} s"
        if row["adbc"] is not None:
            adbc = f"{row['adbc']:,.0f} rows/s"
        text.append(
            f"| {row['place']} | {row['agents']:,} | {row['encode']:.1f} s | {row['round']:.3f} s "
            f"| {plain} | {ratio} | {run} | {adbc} |"
        )
    for n in {row["agents"] for row in rows}:
        heads = {row["head"] for row in rows if row["agents"] == n}
        assert len(heads) == 1, "the same run has other bits elsewhere"
    bars = {
        f"{row['place']}, {row['agents']:,}": {"round": row["round"] / row["agents"] * 1e9}
        for row in rows
    }
    picture = plots.bars("nanoseconds per agent and round", bars)
    report("warehouse", args.results, "\n".join(text), rows, picture, rows)


if __name__ == "__main__":
    main()
