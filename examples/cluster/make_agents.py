"""Invent the requests of the users of a computing centre for the next month.

Deterministic: the same number of users gives the same table. All of it is invented; the page
beside this file says how, and what a real centre would put in its place.
"""

import argparse
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet

CAPS = {"cpu": 10_000.0, "memory": 40_000.0, "gpu": 120.0, "storage": 1.6}
"""The most that the form allows; the same as in the market file."""


def users(n: int) -> pa.Table:
    """One row per user: credits, core hours, GB hours, GPU hours and TB."""
    rng = np.random.default_rng(1969)
    cpu = rng.lognormal(7.3, 1.0, n)
    memory = cpu * rng.choice([2.0, 4.0, 8.0], n, p=[0.5, 0.35, 0.15])
    gpu = np.where(rng.random(n) < 0.4, rng.lognormal(3.9, 0.8, n), 0.0)
    storage = rng.lognormal(-1.6, 0.9, n)
    asked = dict(zip(CAPS, (cpu, memory, gpu, storage), strict=True))
    capped = {name: np.minimum(amount, CAPS[name]) for name, amount in asked.items()}
    # Credits: the size of the request, in caps, times how much it matters to the group.
    size = np.sum([capped[name] / CAPS[name] for name in CAPS], axis=0)
    credits = np.minimum(400.0, 100.0 * size * rng.gamma(4.0, 0.25, n))
    return pa.table({"user": [f"u{i:05d}" for i in range(n)], "credits": credits, **capped})


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description="Invent the requests of users.")
    parser.add_argument("--agents", type=int, default=15_000, help="how many users (15,000)")
    parser.add_argument("-o", "--output", default="agents.parquet", help="the table to write")
    given = parser.parse_args(arguments)
    pyarrow.parquet.write_table(users(given.agents), given.output)


if __name__ == "__main__":
    main()
