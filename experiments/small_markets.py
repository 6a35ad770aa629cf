"""Ten thousand runs of small markets: does supply hold, and do bounds fail no more than they say?

Real budgets have a beta near 1e-7, so nobody would ever see a load bound fail. Most runs here
therefore get a beta of 5% or 20%, with nothing else changed; the others keep their own. Each run is
checked on the agents' true numbers and against the linear program's optimum:

* exceeded: some supply is exceeded, in true units. This never happens, whatever fails, unless the
  market says with what probability it may;
* load: some `load_at_most` is below the load without a repair: with probability at most beta;
* value: `welfare_at_least`, `optimum_at_most` or `ratio_at_least` is wrong: at most value_beta;
* repaired: winners were dropped so that supply holds: at most beta.

Half of the markets are uneven: units, caps and supplies span decades. Some have a cap on a group of
agents (one more resource, of which each member asks for one), a bound on the total of an option, or
a probability with which a supply may be exceeded.

The seed of a run is its number. The table goes to stdout and to small_markets.json.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from families import SAYS
from jdpack import Billboard, Budget, Certificate, Market, MwuAdaptive, Newton
from jdpack.billboard.lines import Header, Seed
from jdpack.curator.optimum import optimum
from jdpack.door import SeededRandomness
from jdpack.engines.memory import MemoryEngine
from jdpack.engines.shard import NOBODY
from jdpack.market.grid import SHARE
from jdpack.protocol.bounds import VALUE_BETA
from jdpack.records import tables
from jdpack.records.encode import encode
from jdpack.run.loop import run

RUNS = 10_000
DELTA = 1e-6
EPSILONS = [0.3, 1.0, 3.0, 10.0, 10.0, 10.0]
BETAS = [None, 0.05, 0.05, 0.2]
EXCESS = [0.01, 0.05]
HAIR = 1.0 + 1e-9  # the optimum is known to one part in 10^9


@dataclass(frozen=True)
class Case:
    """A market, its agents, and how to solve it."""

    number: int
    market: Market
    values: np.ndarray
    demands: np.ndarray
    ids: np.ndarray
    policy: Newton | MwuAdaptive
    budget: Budget


@dataclass(frozen=True)
class Verdict:
    """What one run showed."""

    number: int
    policy: str
    divisible: bool
    beta: float
    excess: float
    """The probability with which a supply may be exceeded."""
    exceeded: bool
    repaired: bool
    load: bool
    """Whether this bound failed; so for the next three."""
    welfare: bool
    optimum: bool
    ratio: bool
    share: float
    """As a fraction of the optimum."""

    @property
    def value(self) -> bool:
        """Whether any statement about value failed."""
        return self.welfare or self.optimum or self.ratio


# --- one run ------------------------------------------------------------------------------


def draw(number: int) -> Case:
    """The case of this number."""
    rng = np.random.default_rng([20261115, number])
    n, m = int(rng.integers(20, 301)), int(rng.integers(1, 7))
    options = int(rng.choice([1, 1, 1, 2, 4]))
    neighbours = str(rng.choice(["replace-one", "replace-one", "add-remove"]))
    most = n + int(rng.integers(0, 10)) if neighbours == "add-remove" else n
    counts = rng.integers(1, options + 1, n)
    rows, size = int(counts.sum()), int(rng.integers(1, m + 1))
    demands = rng.uniform(rng.choice([0.0, 0.5]), 1.0, (rows, m)) * rng.choice([1.0, 1.0, 0.3])
    touched = rng.random((rows, m)).argsort(axis=1) < size
    demands = np.where(touched, demands, 0.0)
    values = rng.random(rows)
    if rng.random() < 0.2:
        values = np.ceil(4.0 * values) / 4.0  # ties
    supply = demands.sum(axis=0) / counts.mean() * rng.uniform(0.2, 0.9, m)
    supply = np.maximum(supply, rng.uniform(1.0, 3.0, m))  # at least what one agent may demand
    caps, extra = np.ones(m), {}
    ids = np.repeat(np.arange(n), counts)
    if rng.random() < 0.2:  # a group
        member = rng.random(n) < rng.uniform(0.1, 0.9)
        demands, size = np.column_stack([demands, member[ids]]), size + 1
        caps = np.append(caps, 1.0)
        supply = np.append(supply, max(1.0, member.sum() * rng.uniform(0.2, 0.9)))
    if rng.random() < 0.2:  # a bound on the total
        extra["max_total"] = float(demands.sum(axis=1).max() * rng.uniform(1.0, 1.3))
    elif rng.random() < 0.6:
        demands, supply, caps = uneven(demands, supply, caps, rng)
    if rng.random() < 0.2:
        extra["excess_probability"] = float(rng.choice(EXCESS))
    market = Market(
        supply=supply.tolist(),
        max_demand=caps.tolist(),
        max_value=1.0,
        agents=most,
        bundle_size=size,
        options=options,
        neighbours=neighbours,
        divisible=bool(rng.integers(2)),
        **{name: given for name, given in extra.items() if name in SAYS},
    )
    policy = MwuAdaptive(float(rng.choice([0.5, 0.3]))) if rng.random() < 0.15 else Newton()
    budget, beta = split(float(rng.choice(EPSILONS))), rng.choice(BETAS)
    if beta is not None and not excess_of(market):
        budget = dataclasses.replace(budget, beta=float(beta))
    return Case(number, market, values, demands, ids, policy, budget)


def uneven(
    demands: np.ndarray, supply: np.ndarray, caps: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same market with other units, with supplies over decades, and with loose caps."""
    m = len(supply)
    supply = supply * 10.0 ** rng.uniform(-0.7, 1.3, m)
    caps = caps * 10.0 ** (rng.uniform(0.0, 1.0, m) * rng.integers(2, size=m))
    supply = np.maximum(supply, caps * rng.uniform(1.0, 3.0, m))
    units = 10.0 ** rng.uniform(-2.0, 2.0, m)
    # The cap, in other units, may round below a demand that is equal to it.
    return np.minimum(demands * units, caps * units), supply * units, caps * units


def excess_of(market: Market) -> float:
    """The probability with which a supply may be exceeded."""
    return float(getattr(market, "excess_probability", 0.0))


@functools.cache
def split(epsilon: float) -> Budget:
    """The usual budget for this epsilon."""
    return Budget.split(epsilon, DELTA, truncated=False)


def engine_of(case: Case) -> MemoryEngine:
    """The agents, encoded."""
    batches = tables.array_pieces(case.market, case.values, case.demands, case.ids)
    return MemoryEngine(encode(case.market, batches, clamp=False), threads=1)


def play(case: Case) -> tuple[MemoryEngine, Billboard]:
    """A whole run, with seeded noise and coins."""
    engine = engine_of(case)
    coins = Seed(case.number.to_bytes(16, "little"))
    header = Header(case.market, case.policy.to_dict(), case.budget, coins.commitment, False)
    board = Billboard(header)
    run(engine, case.policy, board, SeededRandomness(case.number), coins)
    return engine, board


def best(case: Case) -> float:
    """The optimum without privacy."""
    return optimum(case.values, case.demands, [r.supply for r in case.market.resources],
                   case.ids if case.market.options > 1 else None).value  # fmt: skip


def judge(case: Case, engine: MemoryEngine, board: Billboard, optimal: float) -> Verdict:
    """Check a run's allocation and certificate on the agents' true numbers."""
    certificate: Certificate = board.certificate  # type: ignore[assignment]
    allocation, before = engine.allocate(board), engine.drop(board, NOBODY)
    codes, most_loads = case.market.supply_codes, certificate.load_at_most
    bounds = zip(before.loads, codes, most_loads, strict=True)
    # Only beta covers a repair: statements about value are about the allocation before it.
    began, ended = engine.shares(board, before), engine.shares(board, allocation)
    given = math.fsum((case.values * began).tolist()) / SHARE
    above, ratio = certificate.optimum_at_most, certificate.ratio_at_least
    return Verdict(
        number=case.number,
        policy=case.policy.name,
        divisible=case.market.divisible,
        beta=certificate.beta,
        excess=excess_of(case.market),
        exceeded=not fits(case, ended),
        repaired=allocation.dropped > 0,
        load=any(Fraction(load, code * SHARE) > Fraction(most) for load, code, most in bounds),
        welfare=certificate.welfare_at_least > given * HAIR,
        optimum=above is not None and above * HAIR < optimal,
        ratio=ratio is not None and ratio * optimal > given * HAIR,
        share=math.fsum((case.values * ended).tolist()) / SHARE / optimal,
    )


def fits(case: Case, shares: np.ndarray) -> bool:
    """Whether true demands fit into every supply; exact rationals decide where it is close."""
    for resource, column in zip(case.market.resources, case.demands.T, strict=True):
        if column @ shares > (1.0 - 1e-9) * resource.supply * SHARE:
            taken = zip(column.tolist(), shares.tolist(), strict=True)
            load = sum((Fraction(a) * s for a, s in taken if a and s), Fraction(0))
            if load > Fraction(resource.supply) * SHARE:
                return False
    return True


def verdict(number: int) -> Verdict:
    """Play and judge one case."""
    case = draw(number)
    return judge(case, *play(case), best(case))


# --- all runs -----------------------------------------------------------------------------


def unlikely(failures: int, runs: int, probability: float) -> float:
    """The probability of at least this many failures, if each has at most this probability."""
    return float(stats.binom.sf(failures - 1, runs, probability))


def rows(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """The table: one row per policy, kind of goods, beta and probability of excess."""
    groups: dict[tuple[str, bool, float, float], list[Verdict]] = {}
    for v in verdicts:
        beta = v.beta if v.beta >= 0.01 else 0.0
        groups.setdefault((v.policy, v.divisible, beta, v.excess), []).append(v)
    table = []
    for (policy, divisible, beta, excess), group in sorted(groups.items()):
        failed = {
            what: [v.number for v in group if getattr(v, what)]
            for what in ("exceeded", "load", "repaired", "value", "welfare", "optimum", "ratio")
        }
        count = len(group)
        table.append(
            {
                "policy": policy,
                "goods": "divisible" if divisible else "indivisible",
                "beta": beta,
                "excess": excess,
                "runs": count,
                **{what: len(numbers) for what, numbers in failed.items()},
                "exceeded_p": unlikely(len(failed["exceeded"]), count, excess),
                "load_p": unlikely(len(failed["load"]), count, beta or 1e-6),
                "value_p": unlikely(len(failed["value"]), count, VALUE_BETA),
                "share": float(np.mean([v.share for v in group])),
                "numbers": {what: numbers for what, numbers in failed.items() if numbers},
            }
        )
    return table


HEAD = ["policy", "goods", "beta", "excess", "runs", "exceeded", "load", "repaired", "value",
        "welfare", "optimum", "ratio", "mean share"]  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """A row of the table; failures more frequent than chance allows say NO."""
    count = row["runs"]
    marks = {
        "beta": f"{row['beta']:g}" if row["beta"] else "< 1e-6",
        "exceeded": f"{row['exceeded']}{' NO' if row['exceeded_p'] < 1e-6 else ''}",
        "load": f"{row['load'] / count:.2%}{' NO' if row['load_p'] < 1e-6 else ''}",
        "value": f"{row['value'] / count:.2%}{' NO' if row['value_p'] < 1e-6 else ''}",
        "mean share": f"{row['share']:.1%}",
    }
    marks |= {w: f"{row[w] / count:.2%}" for w in ("repaired", "welfare", "optimum", "ratio")}
    return f"| {' | '.join(str(marks.get(key, row.get(key))) for key in HEAD)} |"


def on_file(path: Path, numbers: range) -> list[Verdict]:
    """The verdicts on file; a line that was cut off counts as missing."""
    found = {}
    for text in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            own = Verdict(**json.loads(text))
            found[own.number] = own
    return [found[number] for number in numbers if number in found]


def main() -> None:
    """Play, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the file goes")
    given = parser.parse_args()
    os.environ["NUMBA_NUM_THREADS"] = "1"  # the workers read it when they start
    given.results.mkdir(parents=True, exist_ok=True)
    path, numbers = (
        given.results / "small_markets.jsonl",
        range(given.first, given.first + given.runs),
    )
    verdicts = on_file(path, numbers)
    left = sorted(set(numbers) - {v.number for v in verdicts})
    begin = time.perf_counter()
    with (
        multiprocessing.get_context("spawn").Pool(given.workers) as pool,
        path.open("a") as file,
    ):
        for v in pool.imap_unordered(verdict, left, chunksize=16):
            verdicts.append(v)
            file.write(json.dumps(dataclasses.asdict(v)) + "\n")
            file.flush()
            if len(verdicts) % 200 == 0 or len(verdicts) == given.runs:
                seconds = time.perf_counter() - begin
                print(f"{len(verdicts)} of {given.runs}, {seconds:.0f} s", file=sys.stderr)
    table = rows(verdicts)
    print(f"value_beta = {VALUE_BETA:g}, runs {given.first} to {numbers[-1]}\n")
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
    for row in table:
        print(line(row))
    found = {"first": given.first, "runs": given.runs, "value_beta": VALUE_BETA, "table": table}
    (given.results / "small_markets.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
