"""Invent the charging plans of electric cars, in half-hours from noon to noon.

Deterministic: the same number of cars gives the same table. All of it is invented; the page beside
this file says how, and what a real utility would put in its place.
"""

import argparse
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet

SLOTS = 48
NAMES = [f"{(12 + s // 2) % 24:02d}:{30 * (s % 2):02d}" for s in range(SLOTS)]
MOST_SLOTS = 8  # in one plan; the bundle size of the market
HALF_HOUR = 3.7  # kWh that a home charger of 7.4 kW delivers in half an hour
MOST_VALUE = 20.0  # euro
PLANS = {"at once": 1.0, "between": 0.97, "at the end": 0.95}
"""When a car charges during its stay; waiting for a full battery costs a little."""


def cars(n: int) -> pa.Table:
    """One row per half-hour of a plan; flexible cars have three plans."""
    rng = np.random.default_rng(1899)
    at_home = rng.random(n) < 0.85  # the others charge at work, after noon
    arrival = np.where(at_home, rng.normal(13.0, 2.5, n), rng.normal(3.0, 2.0, n))
    arrival = np.clip(np.rint(arrival), 0, SLOTS - 2 * MOST_SLOTS).astype(int)
    stay = np.where(at_home, rng.normal(26.0, 3.0, n), rng.normal(10.0, 2.0, n))
    departure = np.clip(np.rint(arrival + stay), arrival + MOST_SLOTS, SLOTS).astype(int)
    energy = np.minimum(MOST_SLOTS * HALF_HOUR, rng.lognormal(2.4, 0.5, n))  # kWh
    # What charging elsewhere would cost: 0.10 to 0.80 euro per kWh.
    value = np.minimum(MOST_VALUE, energy * np.clip(rng.gamma(6.0, 0.06, n), 0.1, 0.8))
    length = np.ceil(energy / HALF_HOUR).astype(int)
    flexible = (rng.random(n) < 0.5) & (departure - arrival >= 2 * MOST_SLOTS)

    # First one row per plan, with the plans of a car together; then one row per half-hour.
    count = np.where(flexible, len(PLANS), 1)
    car = np.repeat(np.arange(n), count)
    which = np.arange(len(car)) - np.repeat(np.cumsum(count) - count, count)
    idle = departure - arrival - length
    start = arrival[car] + idle[car] * which // (len(PLANS) - 1)
    worth = value[car] * np.array(list(PLANS.values()))[which]
    plan = np.repeat(np.arange(len(car)), length[car])
    step = np.arange(len(plan)) - np.repeat(np.cumsum(length[car]) - length[car], length[car])
    amount = np.minimum(HALF_HOUR, energy[car[plan]] - HALF_HOUR * step)
    return pa.table(
        {
            "car": pa.array(np.char.mod("C%06d", car[plan])),
            "plan": pa.array(np.array(list(PLANS))[which[plan]]),
            "euro": worth[plan],
            "slot": pa.array(np.array(NAMES)[start[plan] + step]),
            "kwh": amount,
        }
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description="Invent the charging plans of cars.")
    parser.add_argument("--agents", type=int, default=90_000, help="how many cars (90,000)")
    parser.add_argument("-o", "--output", default="agents.parquet", help="the table to write")
    given = parser.parse_args(arguments)
    pyarrow.parquet.write_table(cars(given.agents), given.output)


if __name__ == "__main__":
    main()
