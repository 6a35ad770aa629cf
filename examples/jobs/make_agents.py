"""Invent a week of batch jobs of the users of a computing centre.

Deterministic: the same number of users gives the same table. All of it is invented; the page
beside this file says how, and what a real centre would put in its place.
"""

import argparse
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet

JOBS, POINTS, POINTS_OF_JOB = 40, 100.0, 20.0
CAPS = {"cpu": 1000.0, "gpu": 24.0}
IN_ALL = {"cpu": 3000.0, "gpu": 72.0}
"""What the portal allows one job, and one user in total; the same as in the market file."""


def jobs(users: int) -> pa.Table:
    """One row per job: its user, its name, the points given to it, core hours and GPU hours."""
    rng = np.random.default_rng(1971)
    # Most users have a handful of jobs, and a few have as many as are allowed.
    counts = np.minimum(JOBS, 1 + rng.pareto(1.1, users).astype(np.int64) * 2)
    user = np.repeat(np.arange(users), counts)
    n = len(user)
    number = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    cpu = np.minimum(CAPS["cpu"], rng.lognormal(4.6, 1.1, n))
    gpu = np.where(rng.random(n) < 0.3, np.minimum(CAPS["gpu"], rng.lognormal(1.5, 0.8, n)), 0.0)
    asked = {"cpu": np.round(cpu, 1), "gpu": np.round(gpu, 1)}
    # The portal takes no more jobs once a user has asked for as much as one user may.
    taken = np.ones(n, bool)
    for name, amounts in asked.items():
        before = np.cumsum(amounts) - amounts
        own = before - before[np.cumsum(counts) - counts][user]
        taken &= own + amounts <= IN_ALL[name]
    # Points: the size of a job times how much it matters, and no more in total than a user has.
    size = sum(asked[name] / CAPS[name] for name in CAPS)
    wish = np.minimum(POINTS_OF_JOB, 8.0 * size * rng.gamma(4.0, 0.25, n)) * taken
    total = np.bincount(user, wish, users)
    points = np.floor(100.0 * wish * np.minimum(1.0, POINTS / total)[user]) / 100.0
    table = pa.table(
        {
            "user": [f"u{i:05d}" for i in user],
            "job": [f"job{j + 1}" for j in number],
            "points": points,
            **asked,
        }
    )
    return table.filter(pa.array(taken))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description="Invent a week of batch jobs.")
    parser.add_argument("--agents", type=int, default=12_000, help="how many users (12,000)")
    parser.add_argument("-o", "--output", default="agents.parquet", help="the table to write")
    given = parser.parse_args(arguments)
    pyarrow.parquet.write_table(jobs(given.agents), given.output)


if __name__ == "__main__":
    main()
