"""Real bookings of two hotels as a market: what each algorithm achieves, and what is certified.

The data: Antonio, de Almeida & Nunes, Hotel booking demand datasets, Data in Brief 22 (2019) 41-49,
doi:10.1016/j.dib.2018.11.126, CC BY 4.0: 119,390 bookings, kept and cancelled, of a resort hotel
and a city hotel in Portugal. It is not part of this project.

An agent is a booking of at least one night at a rate above 0. Other bookings are left out, because
they ask for nothing scarce or are worth nothing. The value of a booking is its average daily rate
times its nights, and its demand is one room for every night. A resource is a hotel in a period:
a night, a week or 30 days. Its supply is rooms times nights. Longer periods are a coarser
promise, because rooms may run short on a single night. But they have more supply, and a booking
touches fewer of them. By night, privacy must fail.

The public numbers are those that a hotelier could name before reading any booking. Nothing in the
market is computed from the records:

* ROOMS of each hotel. The data set does not say; these are the most rooms that kept bookings
  occupied on one night, taken as public.
* The calendar: NIGHTS nights from OPENING on, in whole periods. By its description, the data set
  has arrivals until 31 August 2017; the last period of 30 days ends 17 days later. Nights that
  nobody asks for are resources too.
* At most MOST_NIGHTS for one booking. A longer one is cut to its first nights, in value too. This
  bound sets `max_demand` (the nights of one period) and `bundle_size` (the periods that a stay can
  touch), and they alone set the sensitivity of demand: by night 28 resources of cap 1, by week 5
  of cap 7, by 30 days 2 of cap 28. With at most 14 nights they are 14, 3 and 2 of cap 14.
* At most MOST_VALUE for one booking. A larger value is clamped to it. The noise on demand does not
  depend on it, but the algorithms of the literature aim for a loss in proportion to it (alpha n V),
  and multiplicative ones start from prices in proportion to it.

Only a curator may know how many bookings are cut and clamped; it is shown here because this data is
public. Welfare counts true values. Its share is relative to the linear program's optimum for all
bookings as they came, neither cut nor clamped, so it includes the loss from the bounds. The share
"within bounds" and the certified share use the values and the optimum of the bookings as cut and
clamped. The table also shows the margin of each supply that must be kept free, as `jdpack plan`
says it in advance, the yardsticks M and F of `floors`, and F* of `true_floor`. With
`--excess 0.001`, Newton also runs in markets whose supplies may be exceeded with that probability;
with `--total` also in markets that say that no booking has more than MOST_NIGHTS in total
(`max_total`). With `--beside FOLDER` nothing runs: it prints the results on file beside those of
FOLDER, from before.

Newton also runs without privacy, on indivisible goods (which bookings are), and with a tighter
bound on nights. The other algorithms run with privacy on divisible goods only, unless `--all` is
given. By night they take up to a minute per run, and have one seed.

Every run is seeded. Results go to hotel.json as they come, and runs on file are not repeated;
optima are kept in optima.json, and F* in hotel_floors.json. The table goes to stdout.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from pyarrow import csv

from families import Instance
from jdpack import BudgetWarning, JdpackError, SupplyWarning, plan, solve
from jdpack.pages.number_text import short_percent
from jdpack.policies.spec import parse
from jdpack.run.result import Progress
from loss import DELTA, Best, Store, best_of, head, line, numbers, say, yes
from true_floor import floor_of

VARIABLE = "JDPACK_HOTEL_BOOKINGS"
WHERE = (
    "the bookings are not part of jdpack: download hotel_bookings.csv (Antonio, de Almeida & Nunes "
    "2019, doi:10.1016/j.dib.2018.11.126), and give its path as an argument or in "
    f"{VARIABLE}"
)

ROOMS = {"Resort Hotel": 187, "City Hotel": 226}
OPENING, NIGHTS = datetime.date(2015, 7, 1), 810
MOST_NIGHTS, MOST_VALUE = [28, 14], 3000.0
PERIODS = {"night": 1, "week": 7, "30 days": 30}

EPSILONS = [1.0, 4.0, math.inf]
POLICIES = [
    "newton",
    "mwu-adaptive",
    "mwu-fixed",
    "mwu-fixed:rounds=1000",
    "dual-gd",
    "dual-gd:rounds=1000",
    "mirror-descent:potential=entropy,rounds=1000",
    "mirror-descent:potential=euclidean,rounds=1000",
    "mwu-online:batch=100",
]
"""Where rounds or batch are given, the policy's own choice would be far larger, or refused."""

MOST_ROUNDS = 10_000
"""A run is abandoned after this many."""


# --- the market ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Bookings:
    """The agents: which hotel they ask for, from which night on, and for how long."""

    hotel: np.ndarray
    """Its place in ROOMS."""
    arrival: np.ndarray
    """Nights since OPENING."""
    nights: np.ndarray
    rate: np.ndarray
    left_out: int = 0
    """Bookings of no night, or at no rate."""

    @classmethod
    def read(cls, path: Path) -> Bookings:
        """The bookings of the file, plain or compressed."""
        stays = ["stays_in_weekend_nights", "stays_in_week_nights"]
        dates = ["arrival_date_year", "arrival_date_month", "arrival_date_day_of_month"]
        names = ["hotel", "adr", *stays, *dates]
        options = csv.ConvertOptions(include_columns=names)
        table = csv.read_csv(str(path), convert_options=options).to_pydict()
        hotel = np.array([list(ROOMS).index(name) for name in table["hotel"]])
        months = [datetime.datetime.strptime(m, "%B").month for m in table[dates[1]]]
        arrival = np.array(
            [
                (datetime.date(y, m, d) - OPENING).days
                for y, m, d in zip(table[dates[0]], months, table[dates[2]], strict=True)
            ]
        )
        nights = np.array(table[stays[0]]) + np.array(table[stays[1]])
        rate = np.array(table["adr"], float)
        kept = (nights > 0) & (rate > 0.0)
        if outside := int(np.count_nonzero((arrival[kept] < 0) | (arrival[kept] >= NIGHTS))):
            raise SystemExit(f"{outside} arrivals are outside the calendar")
        return cls(
            hotel[kept], arrival[kept], nights[kept], rate[kept], int(np.count_nonzero(~kept))
        )

    def market(self, period: int, most_nights: int = NIGHTS) -> Instance:
        """The market with periods of `period` nights, and stays cut to `most_nights`."""
        periods = math.ceil(NIGHTS / period)
        nights = np.minimum(self.nights, np.minimum(most_nights, NIGHTS - self.arrival))
        row = np.repeat(np.arange(len(nights)), nights)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(nights) - nights, nights)
        column = self.hotel[row] * periods + (self.arrival[row] + nth) // period
        demands = scipy.sparse.coo_matrix(
            (np.ones(len(row)), (row, column)), shape=(len(nights), len(ROOMS) * periods)
        ).tocsr()  # nights of the same period add up
        return Instance(
            values=self.rate * nights,
            demands=demands,
            supply=np.repeat(list(ROOMS.values()), periods) * float(period),
            # A stay that begins on the last night of a period touches the most periods.
            bundle_size=1 + math.ceil((most_nights - 1) / period),
            max_demand=float(min(period, most_nights)),
            max_value=MOST_VALUE,
        )


# --- runs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A row of the table."""

    period: str
    most_nights: int
    policy: str
    epsilon: float
    divisible: bool
    seeds: int
    excess: float = 0.0
    """The probability with which a supply may be exceeded."""
    total: bool = False
    """Whether the market bounds the nights of a booking in total."""

    @property
    def goods(self) -> str:
        return "divisible" if self.divisible else "indivisible"

    @property
    def key(self) -> str:
        more = [f" excess={self.excess:g}"] * (self.excess > 0.0) + [" total"] * self.total
        return (
            f"{self.period} of {self.most_nights} nights epsilon={self.epsilon:g} {self.goods} "
            f"{self.policy}{''.join(more)}"
        )


@dataclass(frozen=True)
class Run:
    """One seeded run."""

    share: float
    """As a fraction of the optimum."""
    within: float
    """The same for bookings cut and clamped to the public bounds."""
    certified: float | None
    fits: bool
    """Whether the allocation fits into every supply, in true units."""
    rounds: int
    """Releases of demand."""
    seconds: float
    clamped: int


class TooLong(Exception):  # noqa: N818
    """A run that was abandoned."""


class Hotels:
    """Markets and optima, computed when they are first needed."""

    def __init__(self, path: Path, results: Path) -> None:
        self.path = path
        self.optima = Store(results / "optima.json")
        self.floors = Store(results / "hotel_floors.json")
        self._markets: dict[tuple[str, int], Instance] = {}

    @cached_property
    def bookings(self) -> Bookings:
        return Bookings.read(self.path)

    def market(self, period: str, most_nights: int = NIGHTS) -> Instance:
        if (period, most_nights) not in self._markets:
            made = self.bookings.market(PERIODS[period], most_nights)
            self._markets[period, most_nights] = made
        return self._markets[period, most_nights]

    def optimum(self, period: str) -> float:
        """The optimum for the bookings as they came."""
        return best_of(self.market(period), f"hotel {period}", self.optima).value

    def best_within(self, period: str, most_nights: int) -> Best:
        """The optimum for the bookings cut and clamped to the public bounds."""
        cut = self.market(period, most_nights)
        clamped = replace(cut, values=np.minimum(cut.values, MOST_VALUE))
        return best_of(clamped, f"hotel {period} within {most_nights} nights", self.optima)

    def floor(self, cell: Cell) -> float:
        """F*, on file or new."""
        instance = market_of(self, cell)
        key = (
            f"{cell.period} of {cell.most_nights} nights epsilon={cell.epsilon:g} {instance.extra}"
        )
        if key not in self.floors.data:
            clamped = replace(instance, values=np.minimum(instance.values, MOST_VALUE))
            self.floors.put(key, floor_of(clamped, cell.epsilon))
        return self.floors.data[key]


def market_of(hotels: Hotels, cell: Cell) -> Instance:
    """The agents and public numbers of a row."""
    extra: dict[str, Any] = {"excess_probability": cell.excess} if cell.excess else {}
    if cell.total:
        extra["max_total"] = [{"amount": float(cell.most_nights)}]
    return replace(hotels.market(cell.period, cell.most_nights), extra=extra)


def run(hotels: Hotels, cell: Cell, seed: int, most_rounds: int) -> Run:
    """Solve once, and measure what the bookings got on their true numbers."""
    instance = market_of(hotels, cell)
    best = hotels.optimum(cell.period)
    best_within = hotels.best_within(cell.period, cell.most_nights).value

    def watch(progress: Progress) -> None:
        if progress.rounds > most_rounds:
            raise TooLong(f"given up after {most_rounds:,} rounds")

    begin = time.perf_counter()
    result = solve(
        instance.market(divisible=cell.divisible),
        **instance.solve_input(),
        epsilon=cell.epsilon,
        delta=DELTA,
        policy=parse(cell.policy),
        clamp=True,
        seed=seed,
        progress=watch,
    )
    seconds = time.perf_counter() - begin
    given = result.allocation.astype(float)
    load = np.asarray(instance.demands.T @ given).ravel()
    return Run(
        share=float(instance.values @ given) / best,
        within=float(np.minimum(instance.values, MOST_VALUE) @ given) / best_within,
        certified=result.certificate.ratio_at_least,
        fits=bool(np.all(load <= instance.supply * (1.0 + 1e-12))),  # the sum itself is rounded
        rounds=sum(release.step.query == "demand" for release in result.billboard.releases),
        seconds=seconds,
        clamped=result.curator.clamped,
    )


def measure(
    hotels: Hotels, cells: list[Cell], store: Store, most_rounds: int
) -> Iterator[tuple[Cell, list[Run], str]]:
    """The runs of each cell, on file or new; or why there are none."""
    for done, cell in enumerate(cells):
        runs, why = store.data.get(cell.key, {}), ""
        for seed in range(1, cell.seeds + 1):
            if str(seed) in runs:
                continue
            try:
                found = run(hotels, cell, seed, most_rounds)
            except JdpackError as error:
                why = f"refused: {error.message}"
            except TooLong as error:
                why = str(error)
            if why:
                say(f"[{done + 1}/{len(cells)}] {cell.key}: {why}")
                break
            runs = {**runs, str(seed): asdict(found)}
            store.put(cell.key, runs)
            say(
                f"[{done + 1}/{len(cells)}] {cell.key} seed {seed}: {found.share:.2%} in "
                f"{found.rounds:,} rounds, {found.seconds:.1f} s"
            )
        kept = [key for key in sorted(runs, key=int) if int(key) <= cell.seeds]
        yield cell, [Run(**runs[key]) for key in kept], why


# --- the table ----------------------------------------------------------------------------

HEAD = [
    "period", "resources", "supply", "nights at most", "policy", "epsilon", "excess", "total",
    "goods", "margin", "M", "F", "F*", "welfare share", "loss", "least", "within bounds",
    "certified share", "true", "feasible", "rounds", "seconds", "runs",
]  # fmt: skip


def row(hotels: Hotels, cell: Cell, runs: list[Run], why: str) -> list[str]:
    """A cell as a row of the table."""
    instance = market_of(hotels, cell)
    pi = hotels.best_within(cell.period, cell.most_nights).pi
    first = [
        cell.period,
        f"{len(instance.supply):,}",
        f"{instance.supply.min():,.0f} to {instance.supply.max():,.0f}",
        f"{cell.most_nights}",
        cell.policy,
        f"{cell.epsilon:g}",
        f"{cell.excess:g}",
        "yes" if cell.total else "",
        cell.goods,
        foreseen(instance, cell),
        f"{instance.margin(cell.epsilon, DELTA):.2%}",
        f"{instance.floor(pi, cell.epsilon, DELTA):.2%}",
        f"{hotels.floor(cell):.2%}",
    ]
    if not runs:
        return [*first, why, *[""] * (len(HEAD) - len(first) - 1)]
    certified = [0.0 if r.certified is None else r.certified for r in runs]
    return [
        *first,
        f"{mean([r.share for r in runs]):.2%}",
        f"{1.0 - mean([r.share for r in runs]):.2%}",
        f"{min(r.share for r in runs):.2%}",
        f"{mean([r.within for r in runs]):.2%}",
        f"{mean(certified):.2%}" if any(certified) else "none",
        yes(all(c <= r.within + 1e-9 for c, r in zip(certified, runs, strict=True))),
        yes(all(r.fits for r in runs)),
        f"{max(r.rounds for r in runs):,}",
        f"{min(r.seconds for r in runs):.2g}",  # the first run compiles kernels
        f"{len(runs)}",
    ]


def foreseen(instance: Instance, cell: Cell) -> str:
    """The margin of the plan."""
    try:
        found = plan(
            instance.market(divisible=cell.divisible),
            epsilon=cell.epsilon,
            delta=DELTA,
            policy=parse(cell.policy),
        )
    except JdpackError:
        return ""
    return short_percent(found.margin)


def mean(found: list[float]) -> float:
    """The average."""
    return math.fsum(found) / len(found)


def beside(before: Store, after: Store) -> Iterator[list[str]]:
    """The rows that both files have: the mean loss then and now, and the part of it that is gone.

    Rows that say more of their market are compared with those that do not.
    """
    for key, runs in after.data.items():
        plain = key.partition(" excess=")[0].removesuffix(" total")
        if plain not in before.data:
            continue
        then, now = (
            1.0 - mean([run["share"] for run in found.values()])
            for found in (before.data[plain], runs)
        )
        yield [key, f"{then:.2%}", f"{now:.2%}", f"{1.0 - now / then:.0%}" if then > 0.0 else ""]


def overview(hotels: Hotels, bounds: list[int]) -> Iterator[str]:
    """The bookings, the bounds and the optima."""
    b = hotels.bookings
    total = float(b.rate @ b.nights)
    yield f"{len(b.nights):,} bookings worth {total:,.0f}; {b.left_out:,} left out"
    for period in PERIODS:
        best = hotels.optimum(period)
        yield f"optimum by {period}: {best:,.0f}, {best / total:.2%} of all"
    for most in bounds:
        cut = np.count_nonzero(b.nights > most)
        clamped = np.count_nonzero(b.rate * np.minimum(b.nights, most) > MOST_VALUE)
        yield (
            f"curator only: {cut:,} bookings cut to {most} nights, "
            f"then {clamped:,} clamped to a value of {MOST_VALUE:,.0f}"
        )


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("path", nargs="?", default=os.environ.get(VARIABLE), help="the bookings")
    parser.add_argument(
        "--policies", nargs="*", default=POLICIES, help="such as newton mwu-adaptive:alpha=0.03"
    )
    parser.add_argument("--periods", default=",".join(PERIODS), help="with commas")
    parser.add_argument("--epsilon", type=numbers, help="budgets (1,4,inf)")
    parser.add_argument("--all", action="store_true", help="every row for every algorithm")
    parser.add_argument("--most-nights", type=numbers, help="of one booking (28,14)")
    parser.add_argument("--most-rounds", type=int, default=MOST_ROUNDS, help="of one run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each row")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the files go")
    parser.add_argument("--excess", type=numbers, help="probabilities; newton only (0)")
    parser.add_argument("--total", action="store_true", help="also with max_total; newton only")
    parser.add_argument("--beside", type=Path, help="compare the results with those of this folder")
    given = parser.parse_args()
    store = Store(given.results / "hotel.json")
    if given.beside is not None:
        rows = beside(Store(given.beside / "hotel.json"), store)
        names = ["run", "loss before", "after", "gone"]
        print("\n".join([head(names), *(line(row) for row in rows)]))
        return
    if not given.path or not Path(given.path).is_file():
        parser.error(WHERE)
    said = [(p, t) for t in (False, True)[: 1 + given.total] for p in given.excess or [0.0]]
    for kind in (SupplyWarning, BudgetWarning):
        warnings.simplefilter("ignore", kind)  # the table shows margins and budgets
    names = given.periods.split(",")
    if unknown := set(names) - set(PERIODS):
        parser.error(f"unknown period {unknown.pop()!r}; choose from {', '.join(PERIODS)}")
    bounds = [int(most) for most in given.most_nights or MOST_NIGHTS]
    cells = [
        Cell(
            period, most, policy, epsilon, divisible, given.seeds if every or not slow else 1, *more
        )
        for period in names
        for most in bounds
        for policy in given.policies
        for every in [given.all or policy == "newton"]
        for slow in [period == "night"]
        for epsilon in given.epsilon or EPSILONS
        for divisible in (True, False)
        for more in (said if policy == "newton" else [(0.0, False)])
        if every or (divisible and not math.isinf(epsilon) and most == bounds[0])
    ]
    hotels = Hotels(Path(given.path), given.results)
    print("\n".join(overview(hotels, bounds)))
    print(f"delta = {DELTA:g}\n")
    print(head(HEAD), flush=True)
    for cell, runs, why in measure(hotels, cells, store, given.most_rounds):
        print(line(row(hotels, cell, runs, why)), flush=True)


if __name__ == "__main__":
    main()
