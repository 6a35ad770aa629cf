"""How much memory a whole `jdpack solve` needs, against the size of its codes.

It solves generated Parquet files in a separate process, and reads the peak resident size from the
operating system. The promise is 1.5 times the codes plus 300 MB. Ids are integers in order, as in
most tables; text ids take extra space.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

import plots
from common import RESULTS, report
from loss import say

RESOURCES = 10
_MEASURE = """
import json, resource, sys
from jdpack import Market, MwuAdaptive, solve
result = solve(sys.argv[1], sys.argv[2], output=sys.argv[3], policy=MwuAdaptive(alpha=0.3))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"codes": result.engine.agents.nbytes, "peak": peak}))
"""


def write_agents(path: Path, n: int, rng: np.random.Generator, texts: bool = False) -> None:
    """Stream n random agents to Parquet."""
    names = [f"r{j}" for j in range(RESOURCES)]
    kinds = [
        ("id", pa.string() if texts else pa.int64()),
        ("value", pa.float64()),
        *((name, pa.float64()) for name in names),
    ]
    with pyarrow.parquet.ParquetWriter(path, pa.schema(kinds)) as writer:
        for start in range(0, n, 10**6):
            rows = min(10**6, n - start)
            numbers = [pa.array(rng.random(rows)) for _ in range(RESOURCES + 1)]
            numbered = range(start, start + rows)
            ids = pa.array([f"agent {i:09d}" for i in numbered] if texts else numbered)
            writer.write_table(pa.table([ids, *numbers], schema=pa.schema(kinds)))


def market_text(n: int) -> str:
    """The market file of n random agents."""
    resources = "".join(
        f'[[resource]]\nname = "r{j}"\nsupply = {n / 10}\nmax_demand = 1.0\n'
        for j in range(RESOURCES)
    )
    return (
        "[privacy]\nepsilon = 1.0\ndelta = 1e-8\n[value]\nmax = 1.0\n"
        f"[agents]\ncount = {n}\n{resources}"
    )


def measure(n: int, texts: bool = False) -> dict[str, int]:
    """Codes and peak of one solve, in bytes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_agents(folder / "agents.parquet", n, np.random.default_rng(0), texts)
        (folder / "market.toml").write_text(market_text(n))
        arguments = [str(folder / part) for part in ("market.toml", "agents.parquet", "out")]
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE, *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
    numbers: dict[str, int] = json.loads(done.stdout)
    return numbers


def main() -> None:
    """Print the table, and write it with JSON, CSV and a plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=int, nargs="*", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--texts", action="store_true", help="ids of 15 letters, not numbers")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    plots.check()
    text = [
        "| agents x 10 | codes | peak | promised: 1.5 codes + 300 MB | kept |",
        "|---" * 5 + "|",
    ]
    rows = []
    measure(1_000)  # compiles the kernels, which takes about 20 MB more the first time
    for n in args.agents:
        numbers = measure(n, args.texts)
        codes, peak = numbers["codes"] / 1e6, numbers["peak"] / 1e6
        limit = 1.5 * codes + 300
        kept = "yes" if peak <= limit else "NO"
        text.append(f"| {n:,} | {codes:.0f} MB | {peak:.0f} MB | {limit:.0f} MB | {kept} |")
        say(text[-1])
        rows.append({"agents": n, "codes_mb": codes, "peak_mb": peak, "promised_mb": limit})
    series = {"peak": "peak_mb", "promised": "promised_mb", "codes": "codes_mb"}
    points = {name: [(row["agents"], row[key]) for row in rows] for name, key in series.items()}
    picture = plots.lines("agents", "MB", points)
    report("memory", args.results, "\n".join(text), rows, picture, rows)


if __name__ == "__main__":
    main()
