"""Invent the wishes of patients: up to four appointments each, of which one is given.

Deterministic: the same number of patients gives the same table. All of it is invented; the page
beside this file says how, and what a real clinic would put in its place.
"""

import argparse
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet

SITES = ["North", "Harbour", "Hill", "Station"]
WEEKS = 3
RESOURCES = [f"{site} week {week}" for site in SITES for week in range(1, WEEKS + 1)]
NEAR = [0.37, 0.28, 0.2, 0.15]
"""The fraction of patients who live near each site."""


def patients(n: int) -> pa.Table:
    """One row per option: the patient, the triage points, and slots at one site in one week."""
    rng = np.random.default_rng(1947)
    urgency = 100.0 * rng.beta(2.0, 3.0, n)  # points, given by a nurse
    slots = np.where(rng.random(n) < 0.35, 2.0, 1.0)  # a first visit takes two slots
    home = rng.choice(len(SITES), n, p=NEAR)
    other = (home + rng.integers(1, len(SITES), n)) % len(SITES)
    travels = rng.random(n) < 0.6
    free = rng.random((n, WEEKS)) < 0.8  # the weeks in which the patient can come
    free[np.arange(n), rng.integers(0, WEEKS, n)] = True
    rows: dict[str, list[float | str]] = {"patient": [], "points": []}
    rows |= {name: [] for name in RESOURCES}
    for i in range(n):
        for site, week, points in _options(urgency[i], home[i], other[i], travels[i], free[i]):
            rows["patient"].append(f"P{i:05d}")
            rows["points"].append(points * (1.0 if slots[i] == 1.0 else 1.5) / 1.5)
            for j, name in enumerate(RESOURCES):
                rows[name].append(slots[i] if j == site * WEEKS + week else 0.0)
    return pa.table(rows)


def _options(
    urgency: float, home: int, other: int, travels: bool, free: np.ndarray
) -> list[tuple[int, int, float]]:
    """Site, week and points. Waiting costs points, more for urgent patients; so does travel."""
    waits = [urgency * (1.0 - 0.004 * urgency * week) for week in range(WEEKS)]
    weeks = [week for week in range(WEEKS) if free[week]]
    options = [(home, week, waits[week]) for week in weeks]
    if travels:
        options.append((other, weeks[0], 0.8 * waits[weeks[0]]))
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description="Invent the wishes of patients.")
    parser.add_argument("--agents", type=int, default=36_000, help="how many patients (36,000)")
    parser.add_argument("-o", "--output", default="agents.parquet", help="the table to write")
    given = parser.parse_args(arguments)
    pyarrow.parquet.write_table(patients(given.agents), given.output)


if __name__ == "__main__":
    main()
