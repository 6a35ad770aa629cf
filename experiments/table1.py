"""Table 1 of Huang & Zhu (ICALP 2019), measured: least supply and time of every algorithm.

Least supply. An algorithm *reaches* alpha at a supply b if at least 9 of 10 seeded runs lose at
most alpha n V against the optimum, after everything: noise, certificate, and scaling so that supply
holds. The search uses a grid of supplies of ratio 2^(1/12). The least supply is between the last
that fails and the first that reaches alpha; we take their geometric mean.

The market. n agents have values uniform on [0, 1], and V = 1. Agent i asks for the fraction
4 u_ij / n of the supply of resource j, with u_ij uniform on [0, 1], so all agents together ask for
twice the supply, whatever b. Supply is measured in units of the most that one agent may ask for
(max_demand = 1, the paper's unit): b says how small one agent is, and nothing else depends on it.
(With demands of a fixed size, a small supply would also make the optimum small, and alpha n trivial
to reach.) So b is at most n / 4. Every bundle touches all m resources.

Sweeps change one number of a base case. Only mwu-online is proved to need more supply for more
agents. Except for it and for the sweep over n itself, there are 6 b agents at a supply of b. (The
rounds of mwu-fixed and dual-gd grow as (n / b)^2.) mwu-online has its own base case, with more
agents and a larger epsilon, because no supply is enough for it in the other one.

"mwu-online, independent noise" is a control and runs only if asked for: everything is as in
mwu-online, including the rule for its steps, the split of the budget and the last answer, but each
batch has noise of its own instead of that of its block. What it needs more is due to the blocks.

The algorithms run through the same door and loop as any run of jdpack. Their parameter alpha makes
them lose less than half of alpha n without noise: alpha / 2 for multiplicative weights, alpha for
dual-gd.

Time. At a constant supply, as the number of agents grows: the seconds of whole runs; for the two
algorithms whose rounds grow as n^2, the seconds of one round (of 40) times the number of rounds.

Every run is seeded and protects nobody. Losses go to one file per sweep as they come, and runs on
file are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import plots
from jdpack import (
    Budget,
    BudgetWarning,
    DualGd,
    JdpackError,
    Market,
    MirrorDescent,
    MwuAdaptive,
    MwuFixed,
    MwuOnline,
    Newton,
    SupplyWarning,
    solve,
)
from jdpack.audit.scripted_policy import known
from jdpack.billboard.lines import Release, Step
from jdpack.curator.optimum import optimum
from jdpack.policies import fixed_rounds, mwu_online
from jdpack.policies.base import Policy
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.noise import Gaussian, NoNoise, gaussian
from laws import Fit, Lines, draw, fit
from loss import Store, say

DELTA = 1e-6
CROWD = 6.0
ASKED = 4.0  # one agent asks for up to this fraction, over n, of each supply
SEEDS, NEEDED = 10, 9
GRID = 12  # steps of supply to a factor of 2
MOST = 12 * GRID  # a supply of 4096
ROUNDS = 1_000  # of mirror-descent, which has no alpha


@dataclass(frozen=True)
class Case:
    """A setting whose least supply is to be found."""

    m: int = 4
    n: int | None = None
    """Agents; None for CROWD per unit of supply."""
    epsilon: float = 1.0
    alpha: float = 0.2


@dataclass(frozen=True)
class Algorithm:
    """A row of the table, with what is proved about it."""

    name: str
    policy: Callable[[float], Policy]
    """The policy for an additive loss of alpha n."""
    supply: str
    """A supply proved to be enough, up to logarithms."""
    exponents: dict[str, float]
    """The proved exponents of that supply in m, n, epsilon and alpha."""
    time: str
    base: Case = Case()

    def cell(self, parameter: str, law: Fit | None) -> str:
        """A measured exponent of the least supply, with the proved one in brackets."""
        proved = self.exponents.get(parameter)
        return f"{law or 'none'}" if proved is None else f"{law or 'none'} ({proved:g})"


@dataclass(frozen=True)
class Independent(MwuOnline):
    """mwu-online with the same rules, but noise of its own for each batch: a control."""

    name: ClassVar[str] = "mwu-online, independent noise"

    def start(self, market: Market, budget: Budget) -> mwu_online.State:
        """As in mwu-online; a prefix of T batches has T noises instead of those of its blocks."""
        state = super().start(market, budget)
        rounds = state.rounds_at_most
        noise = rounds * fixed_rounds.sigma(market, state.noise)
        cap = max(market.person_cap_codes) / min(market.supply_codes)
        size = math.log(len(market.resources) + 1.0) / rounds
        theta = math.sqrt(size / (1.0 + rounds * cap))
        return replace(state, theta=min(theta, (size / (noise * noise * rounds)) ** (1.0 / 3.0)))

    def step(self, state: mwu_online.State) -> Step | None:
        """As in mwu-online, but only the last answer sums up more than one batch."""
        step = super().step(state)
        whole = step is None or step.span == state.rounds_at_most
        return step if whole else replace(step, span=1)

    def observe(self, state: mwu_online.State, release: Release) -> mwu_online.State:
        """As in mwu-online; of all prefixes the last one is enough."""
        after = super().observe(state, release)
        return replace(after, prefixes=after.prefixes[-1:])

    def _noises(
        self, market: Market, budget: Budget, rounds: int
    ) -> tuple[Gaussian | NoNoise, Gaussian | NoNoise]:
        """An agent is in one batch, so each of them gets all that the blocks get together."""
        change = queries.change(market, "demand")
        rho = tail_bounds.rounds_rho(market, budget, batches=True) * mwu_online.STEERING
        return gaussian(change, rho), super()._noises(market, budget, rounds)[1]


SMALL = Case()
LARGE = Case(m=4, n=4_000, epsilon=8.0, alpha=0.25)
ROOT = {"m": 0.5, "n": 0.0, "epsilon": -1.0, "alpha": -1.0}
ALGORITHMS = [
    Algorithm(
        "dual-gd", lambda alpha: DualGd(alpha=alpha),
        "m / (alpha epsilon)", {**ROOT, "m": 1.0}, "n^3",
    ),
    Algorithm(
        "mwu-fixed", lambda alpha: MwuFixed(alpha=alpha / 2),
        "sqrt(m) / (alpha epsilon)", ROOT, "n^3",
    ),
    Algorithm(
        "mwu-online", lambda alpha: MwuOnline(),
        "sqrt(m n) / (alpha epsilon)", {**ROOT, "n": 0.5}, "n", base=LARGE,
    ),
    Algorithm(
        "mwu-adaptive", lambda alpha: MwuAdaptive(),
        "sqrt(m) / (alpha epsilon)", ROOT, "n",
    ),
    Algorithm(
        "mirror-descent, entropy", lambda alpha: MirrorDescent("entropy", ROUNDS),
        "sqrt(m) / (alpha epsilon)", ROOT, "T n",
    ),
    Algorithm(
        "mirror-descent, euclidean", lambda alpha: MirrorDescent("euclidean", ROUNDS),
        "m / (alpha epsilon)", {**ROOT, "m": 1.0}, "T n",
    ),
    Algorithm("newton", lambda alpha: Newton(), "none proved", {}, "n"),
]  # fmt: skip
CONTROL = Algorithm(
    Independent.name,
    lambda alpha: Independent(),
    "sqrt(m n) / (alpha epsilon)",
    {**ROOT, "n": 0.5},
    "n",
    base=LARGE,
)

SWEEPS: dict[Case, dict[str, list[float]]] = {
    SMALL: {
        "m": [2, 4, 6, 10, 16],
        "n": [480, 600, 720, 1_080, 1_600],
        "epsilon": [0.4, 0.7, 1.2, 2.0, 3.5],
        "alpha": [0.1, 0.13, 0.16, 0.2, 0.25],
    },
    LARGE: {
        "m": [1, 2, 4, 8, 16],
        "n": [1_000, 2_000, 4_000, 8_000, 16_000],
        "epsilon": [4.0, 5.5, 8.0, 11.0, 16.0],
        "alpha": [0.15, 0.18, 0.21, 0.25, 0.3],
    },
}


# --- one run ------------------------------------------------------------------------------


@cache
def agents(m: int, n: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Values, demands as fractions of supply, and the optimum, which no supply changes."""
    rng = np.random.default_rng([1, m, n])
    values, shares = rng.random(n), rng.random((n, m)) * ASKED / n
    return values, shares, optimum(values, shares, np.ones(m)).value


def market_of(m: int, n: int, supply: float) -> Market:
    """A market of n agents, each at most 1 / supply of every resource."""
    return Market(supply=[supply] * m, max_demand=1.0, max_value=1.0, agents=n, divisible=True)


@known(Independent)  # so that the pipeline accepts it
def loss(policy: Policy, case: Case, supply: float, seed: int) -> float:
    """What one run loses against the optimum, as a fraction of n V."""
    n = case.n or round(CROWD * supply)
    values, shares, best = agents(case.m, n)
    result = solve(
        market_of(case.m, n, supply),
        values=values,
        demands=np.minimum(shares * supply, 1.0),
        epsilon=case.epsilon,
        delta=DELTA,
        policy=policy,
        seed=seed,
        threads=1,
    )
    return (best - float(values @ result.allocation)) / n


# --- least supply -------------------------------------------------------------------------


def supply_at(level: int) -> float:
    """The supply of a level of the grid."""
    return 2.0 ** (level / GRID)


def least_level(reaches: Callable[[int], bool], guess: int, most: int) -> int | None:
    """A level that reaches alpha while the one below does not; None if `most` fails.

    It goes from a guess in growing strides to a level on the other side, then bisects.
    """
    guess, stride = min(guess, most), GRID // 3
    low = high = guess
    if reaches(guess):
        while reaches(low := low - stride):
            high, stride = low, 2 * stride
    else:
        while low < most and not reaches(high := min(most, high + stride)):
            low, stride = high, 2 * stride
        if low == most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def sweep(
    name: str, parameter: str, points: list[float], folder: Path, seeds: int
) -> list[tuple[float, float]]:
    """The least supply at every point; points without one are left out."""
    _ignore_warnings()
    algorithm = next(a for a in [*ALGORITHMS, CONTROL] if a.name == name)
    store = Store(folder / f"{name} {parameter}.json")
    found: list[tuple[float, float]] = []
    guess = 6 * GRID if algorithm.base.n is None else 8 * GRID
    for point in points:
        case = replace(algorithm.base, **{parameter: point})
        policy = algorithm.policy(case.alpha)

        def reaches(level: int, case: Case = case, policy: Policy = policy) -> bool:
            failed = passed = 0
            for seed in itertools.count(1):
                key = f"{case} {json.dumps(policy.to_dict())} level {level} seed {seed}"
                if key not in store.data:
                    store.put(key, _loss_or_all(policy, case, supply_at(level), seed))
                within = store.data[key] <= case.alpha
                passed, failed = passed + within, failed + (not within)
                if passed >= math.ceil(NEEDED / SEEDS * seeds):
                    return True
                if failed > seeds - math.ceil(NEEDED / SEEDS * seeds):
                    return False
            raise AssertionError

        most = math.floor(GRID * math.log2(case.n / ASKED)) if case.n else MOST
        level = least_level(reaches, guess, most)
        if level is None:
            say(f"{name}: no supply up to {supply_at(most):.0f} reaches alpha for {case}")
            continue
        found.append((point, supply_at(level) / 2.0 ** (0.5 / GRID)))
        guess = level
        say(f"{name}: {parameter} = {point:g}: least supply {found[-1][1]:.0f}")
    return found


def _ignore_warnings() -> None:
    """Too little supply and weak budgets are the point here."""
    for kind in (SupplyWarning, BudgetWarning):
        warnings.simplefilter("ignore", kind)


def _loss_or_all(policy: Policy, case: Case, supply: float, seed: int) -> float:
    try:
        return loss(policy, case, supply, seed)
    except JdpackError as error:  # it refuses so small a supply, which counts as losing all
        say(f"{policy}: {error.message}")
        return 1.0


# --- time ---------------------------------------------------------------------------------

TIME_SUPPLY, TIME_ALPHA, TIME_EPSILON, TIME_M = 500.0, 0.2, 1.0, 4
ROUNDS_TIMED = 40
TIMES = {"mwu-online": [2_000, 4_000, 8_000, 16_000, 32_000]}
TIMES_OF_OTHERS = [20_000, 60_000, 180_000, 540_000, 1_620_000]


@dataclass(frozen=True)
class Timed:
    """One algorithm's time for n agents."""

    n: int
    seconds: float
    rounds: int
    asked: float
    """The answers of agents: rounds times the agents asked per round."""


@known(Independent)
def timed(algorithm: Algorithm, n: int) -> Timed:
    """The time of a whole run; with order n^2 rounds, that of one round times their number."""
    rng = np.random.default_rng([2, n])
    values, shares = rng.random(n), rng.random((n, TIME_M)) * ASKED / n
    market, policy = market_of(TIME_M, n, TIME_SUPPLY), algorithm.policy(TIME_ALPHA)
    rounds = None
    if isinstance(policy, fixed_rounds.ByAlpha):  # too many to run
        rounds, policy = math.ceil(policy.asked(market)), replace(policy, rounds=ROUNDS_TIMED)
    least = a_round = math.inf
    for _ in range(2):
        begin, ends = time.perf_counter(), []
        solve(
            market,
            values=values,
            demands=shares * TIME_SUPPLY,
            epsilon=TIME_EPSILON,
            delta=DELTA,
            policy=policy,
            seed=1,
            progress=lambda at, ends=ends: (
                ends.append(time.perf_counter()) if at.stage == "rounds" else None
            ),
        )
        least = min(least, time.perf_counter() - begin)
        a_round = min(a_round, (ends[-1] - ends[0]) / (len(ends) - 1))
    if rounds is not None:
        return Timed(n, a_round * rounds, rounds, float(rounds) * n)
    once = isinstance(policy, MwuOnline)
    return Timed(n, least, len(ends), float(n) if once else float(len(ends)) * n)


def timings(algorithm: Algorithm, folder: Path, *, quick: bool) -> list[Timed]:
    """The times of an algorithm; those on file are not measured again."""
    store = Store(folder / f"{algorithm.name} time.json")
    sizes = TIMES.get(algorithm.name, TIMES_OF_OTHERS)
    for n in sizes[:3] if quick else sizes:
        if str(n) not in store.data:
            store.put(str(n), asdict(timed(algorithm, n)))
            say(f"{algorithm.name}: {n:,} agents: {store.data[str(n)]['seconds']:.3g} s")
    return [Timed(**store.data[str(n)]) for n in sizes if str(n) in store.data]


# --- the table ----------------------------------------------------------------------------


def table(
    chosen: list[Algorithm], supplies: dict[str, Lines], times: dict[str, list[Timed]]
) -> Iterator[str]:
    """Table 1 in Markdown: proved beside measured."""
    yield (
        "| algorithm | least supply, proved | measured: m | n | epsilon | alpha "
        "| time, proved | measured: seconds | agents asked |"
    )
    yield "|---" * 9 + "|"
    for algorithm in chosen:
        cells = [algorithm.cell(p, fit(supplies[algorithm.name][p])) for p in ROOT]
        seconds = fit([(t.n, t.seconds) for t in times[algorithm.name]])
        asked = fit([(t.n, t.asked) for t in times[algorithm.name]])
        yield (
            f"| {algorithm.name} | {algorithm.supply} | {' | '.join(cells)} "
            f"| {algorithm.time} | {seconds} | {asked} |"
        )
    yield ""
    for base in dict.fromkeys(a.base for a in chosen):
        laws = [
            f"{p} {law.slope:.2f}" for p in ("m", "epsilon") if (law := certificate_law(base, p))
        ]
        names = ", ".join(a.name for a in chosen if a.base == base)
        yield f"the noise of a certificate alone ({names}): {', '.join(laws)}"
    yield ""
    yield "| algorithm | sweep | least supplies |"
    yield "|---|---|---|"
    for algorithm in chosen:
        for parameter, points in supplies[algorithm.name].items():
            cells = ", ".join(f"{x:g}: {y:.0f}" for x, y in points)
            yield f"| {algorithm.name} | {parameter} | {cells} |"
    yield ""
    yield "| algorithm | n: seconds (rounds) |"
    yield "|---|---|"
    for name, rows in times.items():
        cells = ", ".join(f"{t.n:,}: {t.seconds:.3g} ({t.rounds:,})" for t in rows)
        yield f"| {name} | {cells} |"


def certificate_law(base: Case, parameter: str) -> Fit | None:
    """How z sqrt(m) / sqrt(2 rho), the noise that a certificate allows for, grows with a parameter.

    z = sqrt(2 ln(m / beta)) as in `headroom.floor`. Table 1 leaves such logarithms out.
    """
    points = []
    for point in SWEEPS[base].get(parameter, []):
        case = replace(base, **{parameter: point})
        budget = Budget.split(case.epsilon, DELTA, truncated=False)
        z = math.sqrt(2.0 * math.log(case.m / budget.beta))
        points.append((point, z * math.sqrt(case.m) / math.sqrt(2.0 * budget.rho)))
    return fit(points)


COLOURS = {
    "dual-gd": ("#E69F00", "s"),
    "mwu-fixed": (plots.FIRST, "o"),
    "mwu-online": (plots.SECOND, "^"),
    "mwu-adaptive": (plots.THIRD, "D"),
    "mirror-descent, entropy": ("#56B4E9", "<"),
    "mirror-descent, euclidean": ("#CC79A7", ">"),
    "newton": (plots.SOFT, "v"),
    CONTROL.name: (plots.SECOND, "x"),
}


def measured(tasks: list[tuple[Any, ...]], workers: int) -> list[list[tuple[float, float]]]:
    """The sweeps of all tasks."""
    if workers == 1:
        return [sweep(*task) for task in tasks]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(sweep, *zip(*tasks, strict=True)))


def main() -> None:
    """Measure what is missing, print the table, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three points and two seeds each")
    parser.add_argument("--algorithms", help="names, with semicolons (all)")
    parser.add_argument("--sweeps", default=",".join(ROOT), help="what to change, with commas")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side")
    parser.add_argument("--results", type=Path, default=Path("results/table1"))
    given = parser.parse_args()
    names = given.algorithms.split(";") if given.algorithms else [a.name for a in ALGORITHMS]
    chosen = [a for a in [*ALGORITHMS, CONTROL] if a.name in names]
    if len(chosen) != len(names):
        parser.error(f"choose from {', '.join(a.name for a in [*ALGORITHMS, CONTROL])}")
    plots.check()
    _ignore_warnings()
    seeds, every = (2, 2) if given.quick else (SEEDS, 1)
    tasks = [
        (a.name, p, SWEEPS[a.base][p][::every], given.results, seeds)
        for p in given.sweeps.split(",")
        for a in chosen
    ]
    supplies: dict[str, Lines] = {a.name: {p: [] for p in ROOT} for a in chosen}
    for task, found in zip(tasks, measured(tasks, given.workers), strict=True):
        supplies[task[0]][task[1]] = found
    times = {a.name: timings(a, given.results, quick=given.quick) for a in chosen}
    print("\n".join(table(chosen, supplies, times)))
    labels = {"m": "resources m", "n": "agents n", "epsilon": "epsilon", "alpha": "alpha"}
    panels = [
        (labels[p], "least supply", {name: lines[p] for name, lines in supplies.items()})
        for p in ROOT
    ]
    (given.results / "table1-supply.svg").write_text(draw(panels, COLOURS))
    seconds = {name: [(float(t.n), t.seconds) for t in rows] for name, rows in times.items()}
    asked = {name: [(float(t.n), t.asked) for t in rows] for name, rows in times.items()}
    panels = [("agents n", "seconds", seconds), ("agents n", "answers of agents", asked)]
    (given.results / "table1-time.svg").write_text(draw(panels, COLOURS))


if __name__ == "__main__":
    main()
