"""How far a round and the reading of agents are from the machine's limits, in one run.

* A round (best response and sums, dense) against a plain streaming sum over the same code bytes,
  with the same threads.
* Encoding agents from Parquet against PyArrow reading that file.

Ratios are medians of interleaved repetitions: the two sides see the same machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numba import njit, prange

from jdpack import Market, best_response, tables
from jdpack.agents import Agents
from jdpack.encoding import Batch, encode


@njit(parallel=True)
def streaming_sum(words):  # type: ignore[no-untyped-def]
    """The sum of 64-bit words: what reading the bytes once costs."""
    total = np.uint64(0)
    for i in prange(words.size):
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


def stream(agents: Agents) -> Callable[[], object]:
    """A streaming sum over all bytes of the codes."""
    arrays = [a for part in agents.parts for a in (part.codes, part.values)]
    arrays += [a for part in agents.parts for a in (part.resources, part.counts) if a is not None]
    words = [a.reshape(-1)[: a.size // (8 // a.itemsize) * (8 // a.itemsize)] for a in arrays]
    return lambda: [streaming_sum(w.view(np.uint64)) for w in words]


def bench_round(name: str, market: Market, agents: Agents, repeats: int) -> None:
    """One round against the streaming sum."""
    m = len(market.resources)
    # Prices at which about a third of the agents buy: all code paths do their work.
    half = market.value_cap_code * 2**20 // (market.bundle_size * 2**16)
    times = interleaved(
        {
            "sum": stream(agents),
            "round": lambda: best_response.demand(agents.parts, (half,) * m),
        },
        repeats,
    )
    rate = agents.nbytes / times["sum"] / 1e9
    print(
        f"| {name} | {agents.nbytes / 1e6:.0f} MB | "
        f"{1e3 * times['sum']:.1f} ms ({rate:.1f} GB/s) | "
        f"{1e3 * times['round']:.1f} ms | {times['round'] / times['sum']:.2f}x |",
        flush=True,
    )


def bench_encode(market: Market, values: np.ndarray, demands: np.ndarray, repeats: int) -> None:
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
                "encode": lambda: encode(market, tables.batches(market, path)),
            },
            repeats,
        )
    print(
        f"| Parquet {len(values):,} x {demands.shape[1]} | {size / 1e6:.0f} MB | "
        f"{1e3 * times['read']:.0f} ms (read) | {1e3 * times['encode']:.0f} ms | "
        f"{times['encode'] / times['read']:.2f}x |",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    n, rng = args.agents, np.random.default_rng(0)
    print("| what | bytes | the limit | jdpack | ratio |\n|---|---|---|---|---|")
    values, demands = rng.random(n), rng.random((n, 10))
    market = Market(supply=[n / 10] * 10, max_demand=1.0, max_value=1.0, agents=n)
    agents = encode(market, tables.array_batches(market, values, demands))
    bench_round(f"dense round {n:,} x 10", market, agents, args.repeats)
    bench_encode(market, values, demands, max(3, args.repeats // 3))
    del agents, demands
    m, k = 40, 3
    sparse = Market(supply=[n / 10] * m, max_demand=1.0, max_value=1.0, agents=n, bundle_size=k)
    chosen = np.argsort(rng.random((n, m)), axis=1)[:, :k] if n <= 10**5 else _distinct(n, m, rng)
    batch = Batch(
        values,
        indptr=np.arange(0, n * k + 1, k),
        resources=chosen.ravel().astype(np.int64),
        amounts=rng.random(n * k),
    )
    bench_round(f"3-sparse round {n:,} x {m}", sparse, encode(sparse, [batch]), args.repeats)


def _distinct(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    """Three distinct resources for each agent."""
    first = rng.integers(0, m, n)
    second = (first + rng.integers(1, m // 2, n)) % m
    return np.stack([first, second, (second + m // 2) % m], axis=1)


if __name__ == "__main__":
    main()
