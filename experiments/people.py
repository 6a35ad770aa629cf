"""What it costs to protect people instead of their single requests.

Each family has the same number of requests, made by people who make 1 to 50 of them: all the same
number (even), or most of them few and some many (heavy). Every row is run twice on the same
requests: with the person as the agent, under bounds on what one person may ask for in total, and
with every request as an agent of its own, which protects requests and not people. F is the
first-order loss of the best shape of noise (`floors`), with the bounds of a person and with those
of a request.

Losses are fractions of the linear program's optimum. Every run is seeded, and none is private.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import floors
from jdpack import Market, PersonBounds, SupplyWarning, solve
from jdpack.curator.optimum import optimum

EPSILON, DELTA, RESOURCES, BUNDLE = 1.0, 1e-8, 4, 2
MEANS = (1, 2, 5, 10, 20, 50)


@dataclass(frozen=True)
class Family:
    """Requests, and who makes them."""

    name: str
    counts: np.ndarray
    """How many requests each person makes."""
    values: np.ndarray
    demands: np.ndarray
    supply: np.ndarray
    in_all: float
    """The most of each resource for one person, in caps; by the rules, not by the records."""

    @property
    def people(self) -> np.ndarray:
        """The person of each request."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def market(self, *, people: bool, divisible: bool) -> Market:
        """With people, or with requests, as agents."""
        most = int(self.counts.max())
        names = [f"resource {j + 1}" for j in range(RESOURCES)]
        bounds: PersonBounds | int = 1
        if people and most > 1:
            bounds = PersonBounds(most, max_demand=dict.fromkeys(names, self.in_all))
        return Market(
            supply=self.supply.tolist(),
            max_demand=1.0,
            max_value=1.0,
            agents=len(self.counts) if people else len(self.values),
            bundle_size=BUNDLE,
            person=bounds,
            divisible=divisible,
            neighbours="add-remove",
            names=names,
        )

    def floor(self, market: Market, prices: np.ndarray, best: float) -> float:
        """F of a market."""
        cap = np.array(market.person_cap_codes) * np.array(market.unit_sizes)
        least, _ = floors.best_shape(
            cap / self.supply, prices * self.supply / best, market.person_width
        )
        return least * floors.factor(RESOURCES, EPSILON, DELTA)


def family(mean: int, requests: int, *, heavy: bool, seed: int = 7) -> Family:
    """Requests of people who make `mean` of them on average."""
    rng = np.random.default_rng([seed, mean, heavy])
    n = requests // mean
    counts = np.full(n, mean)
    if heavy and mean > 1:
        wild = 1 + rng.pareto(1.2, n) * (mean - 1) * 0.35
        counts = np.minimum(max(MEANS), wild.astype(np.int64))
    in_all = max(1.0, round(0.3 * mean, 1)) if not heavy else max(1.0, 0.6 * mean)
    who = np.repeat(np.arange(n), counts)
    demands = rng.random((len(who), RESOURCES)) * 0.6
    wanted = np.argsort(rng.random(demands.shape), axis=1) < BUNDLE
    demands *= wanted
    # Nobody hands in a request that leads beyond what one person may ask for.
    first = np.repeat(np.cumsum(counts) - counts, counts)
    before = np.cumsum(demands, axis=0) - demands
    kept = (before - before[first] + demands <= in_all).all(axis=1)
    demands, who = demands[kept], who[kept]
    values = np.minimum(1.0, demands.sum(axis=1) * rng.gamma(3.0, 0.33, len(who)))
    supply = np.round(demands.sum(axis=0) * np.array([0.5, 0.6, 0.7, 1.3]))
    name = f"{'heavy' if heavy else 'even'}, {mean} on average"
    return Family(name, np.bincount(who, minlength=n), values, demands, supply, in_all)


def rows(requests: int, seeds: int, means: Sequence[int]) -> Iterator[list[str]]:
    """One row for each family and kind of goods."""
    for heavy in (False, True):
        for mean in means:
            if heavy and mean in (1, max(MEANS)):
                continue
            one = family(mean, requests, heavy=heavy)
            found = optimum(one.values, one.demands, one.supply)
            for divisible in (True, False):
                cells = []
                for people in (True, False):
                    market = one.market(people=people, divisible=divisible)
                    loss, seconds = _runs(one, market, found.value, seeds)
                    floor = one.floor(market, np.asarray(found.prices), found.value)
                    cells += [f"{100 * loss:.2f}", f"{100 * floor:.2f}", f"{seconds:.2f}"]
                kind = "divisible" if divisible else "indivisible"
                yield [one.name, kind, str(one.counts.max()), f"{one.in_all:g}", *cells]


def _runs(one: Family, market: Market, best: float, seeds: int) -> tuple[float, float]:
    """The mean loss, and the least time of a run, in microseconds for each request."""
    losses, times = [], []
    who = one.people
    ids = who if market.agents == len(one.counts) else np.arange(len(who))
    more = {}
    if market.requests > 1:
        more["requests_of"] = np.arange(len(who)) - np.repeat(
            np.cumsum(one.counts) - one.counts, one.counts
        )
    for seed in range(seeds):
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SupplyWarning)
            result = solve(
                market, values=one.values, demands=one.demands, ids=ids, epsilon=EPSILON,
                delta=DELTA, seed=seed, threads=1, **more,
            )  # fmt: skip
        losses.append(1.0 - result.welfare / best)
        times.append((time.perf_counter() - start) / len(who) * 1e6)
    return float(np.mean(losses)), min(times)


HEADS = (
    "requests per person", "goods", "most", "in all", "people: loss %", "F %", "us",
    "requests: loss %", "F %", "us",
)  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=60_000, help="in each family (60,000)")
    parser.add_argument("--seeds", type=int, default=3, help="of each run (3)")
    given = parser.parse_args()
    print("| " + " | ".join(HEADS) + " |\n|" + "---|" * len(HEADS))
    for row in rows(given.requests, given.seeds, MEANS):
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
