"""All tables of what privacy costs, in about an hour of CPU time.

Each table is the output of one script, with one or two seeds, and goes to a Markdown file in the
folder of results. A script writes its runs to a file, so an interrupted script resumes from there;
delete the file of a table to print it again, and the folder to measure again. The scripts alone,
without arguments, measure more seeds and sizes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RIVALS = [
    "mwu-adaptive",
    "mirror-descent:potential=entropy,rounds=300",
    "mirror-descent:potential=euclidean,rounds=300",
]
TABLES: dict[str, list[str]] = {
    "loss": ["loss.py", "--n", "1e4,1e5", "--epsilon", "1,4", "--seeds", "1"],
    "flights": ["flights.py", "--epsilon", "1,4", "--seeds", "1"],
    "hotel": [
        "hotel.py", "--policies", "newton", "--epsilon", "1,4", "--most-nights", "28",
        "--excess", "0,0.001", "--seeds", "1",
    ],
    "plan_check": ["plan_check.py", "--epsilon", "1,4", "--seeds", "1"],
    "small_markets": ["small_markets.py", "--runs", "10000"],
    "epsilon_curve": [
        "epsilon_curve.py", "--seeds", "2", "--other-seeds", "1", "--compared", "1,4",
        "--others", *RIVALS,
    ],
}  # fmt: skip


def main() -> None:
    """Print the tables that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="*", default=list(TABLES), help=", ".join(TABLES))
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the files go")
    given = parser.parse_args()
    if unknown := set(given.tables) - set(TABLES):
        parser.error(f"unknown table {unknown.pop()!r}; choose from {', '.join(TABLES)}")
    given.results.mkdir(parents=True, exist_ok=True)
    for name in given.tables:
        path = given.results / f"{name}.md"
        if path.exists():
            continue
        if name == "hotel" and not os.environ.get("JDPACK_HOTEL_BOOKINGS"):
            print("hotel: set JDPACK_HOTEL_BOOKINGS to the bookings", file=sys.stderr)
            continue
        script, *more = TABLES[name]
        command = [sys.executable, str(HERE / script), *more, "--results", str(given.results)]
        begin, part = time.perf_counter(), path.with_suffix(".md.part")
        with part.open("w") as file:
            subprocess.run(command, stdout=file, check=True)
        part.replace(path)
        print(f"{path}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
