"""How far a round, and reading agents, are from the limits of the machine.

* A round (best response and sums) against a plain streaming sum over the same number of bytes, with
  the same threads: agents with dense demands, with few of many resources, and with several options.
* Encoding agents from Parquet against PyArrow reading that file.

Ratios are medians of interleaved repetitions, so both sides see the same machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numba import njit

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

import plots
from common import RESULTS, report
from jdpack import Market
from jdpack.engines import best_response
from jdpack.records import tables
from jdpack.records.codes import Agents
from jdpack.records.encode import encode
from jdpack.records.tables import OptionRows
from jdpack.records.threads import Threads
from loss import say

Row = dict[str, Any]


@njit(nogil=True)
def streaming_sum(words):  # type: ignore[no-untyped-def]
    """The sum of 64-bit words: what reading the bytes once costs."""
    total = np.uint64(0)
    for i in range(words.size):
        total += words[i]
    return total


def interleaved(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median seconds of each side, measured turn by turn."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for run in sides.values():
        run()  # compile, and warm the caches
    for _ in range(repeats):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(t)) for name, t in times.items()}


def stream(agents: Agents, threads: Threads) -> Callable[[], object]:
    """A streaming sum over as many bytes, with one chunk per thread."""
    words = np.arange(agents.nbytes // 8, dtype=np.uint64)
    chunks = np.array_split(words, threads.count)
    return lambda: threads.map(streaming_sum, chunks)


def bench_round(name: str, market: Market, agents: Agents, repeats: int, threads: Threads) -> Row:
    """One round against the streaming sum."""
    # At these prices about a third of the agents buy, so all code paths have work.
    half = market.value_cap_code * 2**20 // (market.bundle_size * 2**16)
    prices = np.full(len(market.resources), float(half))
    nothing = np.zeros(len(prices), np.int64)
    times = interleaved(
        {
            "sum": stream(agents, threads),
            "round": lambda: threads.sum(
                lambda part: best_response.demand(part, prices), agents.parts, nothing
            ),
        },
        repeats,
    )
    return row_of(name, agents.nbytes, times["sum"], times["round"])


def row_of(what: str, size: int, limit: float, ours: float) -> Row:
    """A row of the table, which is also printed at once."""
    row = {"what": what, "bytes": size, "limit": limit, "jdpack": ours, "ratio": ours / limit}
    say(line(row))
    return row


def line(row: Row) -> str:
    """A row in Markdown."""
    rate = row["bytes"] / row["limit"] / 1e9
    return (
        f"| {row['what']} | {row['bytes'] / 1e6:.0f} MB | {1e3 * row['limit']:.1f} ms "
        f"({rate:.1f} GB/s) | {1e3 * row['jdpack']:.1f} ms | {row['ratio']:.2f}x |"
    )


def bench_encode(market: Market, values: np.ndarray, demands: np.ndarray, repeats: int) -> Row:
    """Encoding from Parquet against PyArrow reading the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agents.parquet"
        columns = {"id": np.arange(len(values)), "value": values}
        columns |= {r.name: demands[:, j] for j, r in enumerate(market.resources)}
        pyarrow.parquet.write_table(pa.table(columns), path)
        size = path.stat().st_size
        times = interleaved(
            {
                "read": lambda: pyarrow.parquet.read_table(path),
                "encode": lambda: encode(market, tables.pieces(market, path)),
            },
            repeats,
        )
    name = f"Parquet {len(values):,} x {demands.shape[1]}, against reading it"
    return row_of(name, size, times["read"], times["encode"])


def dense(n: int, rng: np.random.Generator) -> tuple[Market, np.ndarray, np.ndarray]:
    """Agents who want some of each of ten resources."""
    market = Market(supply=[n / 10] * 10, max_demand=1.0, max_value=1.0, agents=n)
    return market, rng.random(n), rng.random((n, 10))


def sparse(n: int, m: int, rng: np.random.Generator) -> tuple[Market, Agents]:
    """Agents who want some of three resources of m."""
    market = Market(supply=[n / 10] * m, max_demand=1.0, max_value=1.0, agents=n, bundle_size=3)
    return market, encode(market, [_three_of(n, m, rng)])


def several(n: int, m: int, rng: np.random.Generator) -> tuple[Market, Agents]:
    """Agents with three to five options, each for some of three resources of m."""
    market = Market(
        supply=[n / 10] * m, max_demand=1.0, max_value=1.0, agents=n, bundle_size=3, options=5
    )
    ids = np.repeat(np.arange(n), rng.integers(3, 6, n))
    return market, encode(market, [_three_of(len(ids), m, rng, ids)])


def _three_of(
    rows: int, m: int, rng: np.random.Generator, ids: np.ndarray | None = None
) -> Iterator[OptionRows]:
    """Rows with three distinct resources each."""
    for start in range(0, rows, 2**20):
        n = min(2**20, rows - start)
        first = rng.integers(0, m, n)
        second = (first + rng.integers(1, m // 2, n)) % m
        yield OptionRows(
            rng.random(n),
            ids=pa.array(ids[start : start + n]) if ids is not None else None,
            indptr=np.arange(0, n * 3 + 1, 3),
            resources=np.stack([first, second, (second + m // 2) % m], axis=1).ravel(),
            amounts=rng.random(n * 3),
        )


def main() -> None:
    """Print the table, and write it with JSON, CSV and a plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, help="all cores by default")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    n, rng, threads = args.agents, np.random.default_rng(0), Threads(args.threads)
    plots.check()
    market, values, demands = dense(n, rng)
    agents = encode(market, tables.array_pieces(market, values, demands))
    rows = [bench_round(f"dense round {n:,} x 10", market, agents, args.repeats, threads)]
    del agents
    rows.append(bench_encode(market, values, demands, max(3, args.repeats // 3)))
    del values, demands
    market, agents = sparse(n, 1000, rng)
    name = f"3-sparse round {n:,} x 1000"
    rows.append(bench_round(name, market, agents, args.repeats, threads))
    del agents
    market, agents = several(n // 4, 30, rng)
    name = f"3-5 options, 3-sparse, round {n // 4:,} x 30"
    rows.append(bench_round(name, market, agents, args.repeats, threads))
    head = ["| what | bytes | the limit | jdpack | ratio |", "|---|---|---|---|---|"]
    picture = plots.bars(
        "times the limit of the machine",
        {row["what"]: {"jdpack": row["ratio"]} for row in rows},
        mark=(1.0, "reading the bytes once"),
    )
    report("speed", args.results, "\n".join([*head, *map(line, rows)]), rows, picture, rows)


if __name__ == "__main__":
    main()
