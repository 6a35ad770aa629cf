"""Does a plan forecast what a run then achieves?

For every family, size and budget with M < 20%, for real departures and, if the file is there, for
hotel bookings, the table compares what `jdpack plan` says from public numbers with what runs
achieve: the expected share of the optimum with the mean over seeds, and "at least" with the worst
seed. The expected share should be within 1.5 points in the median; "at least" should never be
missed by more than a point.

The runs are those of loss.json, flights.json and hotel.json: runs on file are not repeated. The
table goes to stdout.
"""

from __future__ import annotations

import argparse
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import flights
import hotel
from families import FAMILIES, SIZES, Family, Instance
from jdpack import BudgetWarning, SupplyWarning, plan
from loss import DELTA, INSTANCE_SEED, LARGEST, Cell, Run, Store, head, line, measure, numbers, yes

OFF, MISSED = 0.015, 0.01


@dataclass(frozen=True)
class Check:
    """A forecast, and what came of it."""

    cell: Cell
    expected: float | None
    """The share of the optimum that the plan expects."""
    at_least: float | None
    mean: float
    worst: float

    @property
    def off(self) -> float | None:
        """How far the forecast is from the mean."""
        return None if self.expected is None else abs(self.expected - self.mean)

    @property
    def missed(self) -> float | None:
        """By how much the worst run is below "at least"."""
        return None if self.at_least is None else self.at_least - self.worst


def checks(cells: Iterable[tuple[Cell, list[Run]]], families: dict[str, Family]) -> Iterator[Check]:
    """The forecasts of all cells that have one."""
    drawn, instance = None, None
    for cell, runs in cells:
        if not runs or math.isinf(cell.epsilon) or runs[0].margin >= LARGEST:
            continue
        if drawn != (cell.family, cell.n):
            drawn = cell.family, cell.n
            instance = families[cell.family](cell.n, np.random.default_rng(INSTANCE_SEED))
        yield check_of(cell, instance, [r.ratio for r in runs])


def check_of(cell: Cell, instance: Instance, shares: list[float]) -> Check:
    """The forecast for a cell, and the shares of the optimum that its runs gave."""
    found = plan(instance.market(divisible=cell.divisible), epsilon=cell.epsilon, delta=DELTA)
    mean = math.fsum(shares) / len(shares)
    return Check(cell, found.share_expected, found.share_at_least, mean, min(shares))


def hotel_checks(path: Path, results: Path, seeds: int) -> Iterator[Check]:
    """The same for hotel bookings, relative to the optimum within the public bounds."""
    hotels, most = hotel.Hotels(path, results), hotel.MOST_NIGHTS[0]
    cells = [
        hotel.Cell(period, most, "newton", epsilon, divisible, seeds)
        for period in hotel.PERIODS
        for epsilon in hotel.EPSILONS
        for divisible in (True, False)
        if 0.0 < hotels.market(period, most).margin(epsilon, DELTA) < LARGEST
    ]
    store = Store(results / "hotel.json")
    for cell, runs, _ in hotel.measure(hotels, cells, store, hotel.MOST_ROUNDS):
        instance = hotels.market(cell.period, most)
        name = f"hotel by {cell.period}"
        plain = Cell(name, instance.count, cell.epsilon, cell.divisible, cell.policy)
        yield check_of(plain, instance, [r.within for r in runs])


HEAD = ["family", "n", "epsilon", "goods", "expected", "mean", "off by", "at least", "worst",
        "missed by", "fine"]  # fmt: skip


def row(check: Check) -> list[str]:
    """A line of the table."""

    def percent(share: float | None) -> str:
        return "" if share is None else f"{share:.2%}"

    cell, missed = check.cell, check.missed
    return [
        *[cell.family, f"{cell.n:,}", f"{cell.epsilon:g}", cell.goods],
        *[percent(check.expected), percent(check.mean), percent(check.off)],
        *[percent(check.at_least), percent(check.worst), percent(missed)],
        yes(None if missed is None else missed <= MISSED),
    ]


def summary(found: list[Check]) -> Iterator[str]:
    """The median, and how often "at least" was missed."""
    for what, some in [
        ("all", found),
        ("divisible", [c for c in found if c.cell.divisible]),
        ("indivisible", [c for c in found if not c.cell.divisible]),
    ]:
        off = [c.off for c in some if c.off is not None]
        missed = [c.missed for c in some if c.missed is not None]
        if off and missed:
            middle, bad = float(np.median(off)), sum(m > MISSED for m in missed)
            yield (
                f"{what}: off by {middle:.2%} in the median of {len(off)} plans: "
                f"{yes(middle <= OFF)}; at least missed by more than {MISSED:.0%} in {bad} of "
                f"{len(missed)}: {yes(bad == 0)}"
            )


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--families", default=",".join(FAMILIES), help="names, with commas")
    parser.add_argument("--markets", default=",".join(flights.MARKETS), help="of flights")
    parser.add_argument("--hotel", default=os.environ.get(hotel.VARIABLE), help="the bookings")
    parser.add_argument("--n", type=numbers, default=[1e4, 1e5], help="numbers of agents")
    parser.add_argument("--epsilon", type=numbers, default=[0.3, 1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=3, help="runs per row")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the files go")
    given = parser.parse_args()
    for kind in (SupplyWarning, BudgetWarning):
        warnings.simplefilter("ignore", kind)  # the plan says the same
    found: list[Check] = []

    def say(checks: Iterable[Check]) -> None:
        for check in checks:
            found.append(check)
            print(line(row(check)), flush=True)

    print(head(HEAD), flush=True)
    for file, families, chosen, sizes in [
        ("loss.json", FAMILIES, given.families, given.n),
        ("flights.json", flights.MARKETS, given.markets, [flights.ALL]),
    ]:
        cells = [
            Cell(name, int(n), epsilon, divisible, "default")
            for name in filter(None, chosen.split(","))
            for n in SIZES.get(name, sizes)
            for epsilon in given.epsilon
            for divisible in (True, False)
        ]
        runs = measure(cells, given.seeds, given.results, file=file, families=families)
        say(checks(runs, families))
    if given.hotel:
        say(hotel_checks(Path(given.hotel), given.results, given.seeds))
    print("\n".join(["", *summary(found)]))


if __name__ == "__main__":
    main()
