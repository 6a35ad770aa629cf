"""The audit's figures: what attacks prove about every policy, and which broken pipelines it flags.

Everything goes through the real pipeline, unseeded, at (epsilon, delta) = (1, 1e-6). For the first
table, the coalition of all agents except one attacks every policy. The second shows how often an
audit flags the variants of `tests/broken.py` and the honest pipeline. To run it, use
`python experiments/audit.py` or `make experiments`; it takes about fifteen minutes on one core.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import os
import secrets
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from jdpack import DualGd, MirrorDescent, MwuAdaptive, MwuFixed, MwuOnline, Newton
from jdpack.audit import LowerBound, audit, distinguish, noise_checks
from jdpack.audit.coalition import Coalition, attack
from jdpack.audit.epsilon_bounds import most_success, most_success_gaussian
from jdpack.audit.findings import judged
from jdpack.audit.people import People, example
from jdpack.audit.recording import Setting, record
from jdpack.audit.scripted_policy import GREEDY, Script, known
from jdpack.policies.spec import label_of

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "experiments")]

import broken  # noqa: E402
import weight_leak  # noqa: E402

EPSILON, DELTA = 1.0, 1e-6
POLICIES: list[Any] = [
    Newton(),
    MwuAdaptive(alpha=0.4),
    MwuFixed(rounds=40),
    MwuOnline(batch=30),
    DualGd(rounds=40),
    MirrorDescent(rounds=40),
]
VARIANTS = [
    broken.noise_too_small,
    broken.noise_in_doubles,
    broken.noise_in_rounded_doubles,
    broken.noise_in_singles,
    broken.noise_of_every_round_the_same,
    broken.noise_of_every_second_run_the_same,
    broken.scale_without_noise,
    broken.sum_in_the_order_of_values,
    broken.sum_in_singles,
    broken.doubled("demand"),
    broken.doubled("gauge"),
    broken.chance_claimed_too_small,
    broken.shaped_noise_charged_as_even,
    broken.totals_are_not_read,
    broken.chance_without_halves,
    broken.luck_cut_to_less,
    broken.shape_from_exact_loads,
    broken.peeking_policy,
    broken.filter_off_by_one,
    broken.seed_from_the_records,
    broken.seed_from_salted_records,
    broken.coin_from_the_value,
    broken.better_of_two_seeds,
    broken.stop_when_the_exact_demand_fits,
    broken.repair_from_97_percent,
    broken.screening_counts_twice,
]
FORCED = (
    "repair_from_97_percent",
    "screening_counts_twice",
    "totals_are_not_read",
    "luck_cut_to_less",
)
"""Variants that show only on forced paths. The others skip those paths to save time."""
NAMES = {v.__name__: v for v in VARIANTS}


# --- what attacks prove -------------------------------------------------------------------


def play(job: tuple[Any, bool, float, int]) -> tuple[LowerBound, float]:
    """Attack one policy; also the mean fraction of the budget that the two worlds use."""
    policy, divisible, epsilon, trials = job
    people = People.invented(example(divisible=divisible, agents=600 if policy != GREEDY else 100))
    setting = Setting(policy, epsilon, DELTA)
    with known(Script):
        coalition = Coalition.against(people, setting)
        _, bound, tapes = attack(setting, coalition, trials, 0.95)
    assert bound is not None
    used = [coalition.evidence(tape.board).rho for tape in tapes[:40] if tape.board is not None]
    return bound, sum(used) / len(used) / setting.budget(people.market).rho


def play_printed(trials: int) -> LowerBound:
    """Attack the paper's algorithm as printed, with the coalition of `weight_leak`."""
    worlds = [weight_leak.make_people(0.0), weight_leak.make_people(weight_leak.CAP)]

    def sampler(people: weight_leak.People) -> Any:
        return lambda: weight_leak.guess_printed(people, secrets.randbits(60))

    return distinguish(*map(sampler, worlds), float, trials, weight_leak.DELTA)


# --- what an audit finds ------------------------------------------------------------------


def variant(name: str) -> Any:
    """A context in which the pipeline is the variant of that name."""
    return NAMES[name]() if name in NAMES else contextlib.nullcontext()


def look(name: str) -> bool:
    """Whether a small audit flags a variant."""
    with variant(name):
        found = audit(
            example(agents=100),
            policy=DualGd(rounds=6),
            epsilon=EPSILON,
            delta=DELTA,
            trials=4,
            neighbours=7,
            engines=("memory",),
            seed=0,
            paths=name in ("honest", *FORCED),
        )
    return not found.passed


def look_at_numbers(name: str) -> bool:
    """Whether the noise of 12 runs and its source alone reveal a variant."""
    with variant(name), known(Script):
        setting = Setting(Script(), EPSILON, DELTA)
        people = People.invented(example(agents=100, divisible=True))
        tapes = [record(setting, people) for _ in range(12)]
        numbers = [*noise_checks.of_noise(noise_checks.draws_of(tapes)), *noise_checks.of_source()]
    return not all(one.passed for one in judged(numbers))


# --- tables -------------------------------------------------------------------------------


def line(*cells: object) -> str:
    """A row of Markdown."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def row(
    name: str, kind: str, epsilon: float, limit: float, bound: LowerBound, used: str = ""
) -> str:
    """One attack: what it proves, what theory allows, and the claim."""
    return line(
        name,
        kind,
        used,
        f"{bound.trials:,}",
        f"{bound.success:.1%}",
        f"{limit:.1%}",
        f"{bound.epsilon:.2f}",
        f"{bound.epsilon_if_gaussian:.2f}",
        f"{epsilon:g}",
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=100, help="of each policy and world")
    parser.add_argument(
        "--greedy", type=int, default=1500, help="trials of the greedy policy; 4x at epsilon 1"
    )
    parser.add_argument("--repeats", type=int, default=20, help="audits of each variant")
    parser.add_argument("--numbers", type=int, default=59, help="tests of 12 runs, per variant")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    given = parser.parse_args()
    os.environ["NUMBA_NUM_THREADS"] = "1"  # the workers read it when they start
    begin = time.perf_counter()
    jobs: list[tuple[Any, bool, float, int]] = [
        (policy, divisible, EPSILON, given.trials)
        for policy in POLICIES
        for divisible in (False, True)
    ]
    jobs.append((GREEDY, True, EPSILON, 4 * given.greedy))  # a small epsilon is harder to refute
    jobs += [(GREEDY, True, epsilon, given.greedy) for epsilon in (4.0, 16.0)]
    names = ["honest", *NAMES]
    looks = [name for name in names for _ in range(given.repeats)]
    numbers = [name for name in names for _ in range(given.numbers)]
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        games = pool.map_async(play, jobs, chunksize=1)
        printed = pool.apply_async(play_printed, (given.trials,))
        seen = pool.map_async(look, looks, chunksize=given.repeats)
        counted = pool.map_async(look_at_numbers, numbers, chunksize=given.numbers)
        bounds, leak = games.get(), printed.get()
        found = Counter(itertools.compress(looks, seen.get()))
        shown = Counter(itertools.compress(numbers, counted.get()))

    print(f"The coalition at delta {DELTA:g}, lower bounds with confidence 95%\n")
    print(
        line(
            *("policy", "goods", "budget used", "trials", "right", "at most"),
            *("epsilon >=", "if Gaussian", "claimed"),
        )
    )
    print("|---" * 9 + "|")
    for (policy, divisible, epsilon, _), (bound, used) in zip(jobs, bounds, strict=True):
        budget = Setting(policy, epsilon, DELTA).budget(example())
        limit = min(most_success(epsilon, DELTA), most_success_gaussian(budget.rho))
        name = "greedy" if policy == GREEDY else label_of(policy)
        kind = "divisible" if divisible else "indivisible"
        print(row(name, kind, epsilon, limit, bound, f"{used:.0%}"))
    limit = most_success(EPSILON, DELTA)
    print(row("Algorithm 1 as printed", "divisible", EPSILON, limit, leak))

    print("\nHow many were flagged\n")
    print(line("pipeline", "by an audit", "by the numbers of 12 runs alone"))
    print("|---|---|---|")
    for name in names:
        audits, tests = f"{found[name]} of {given.repeats}", f"{shown[name]} of {given.numbers}"
        print(line(name.replace("_", " "), audits, tests))
    seconds = time.perf_counter() - begin
    print(f"\n{seconds:.0f} s with {given.workers} processes", file=sys.stderr)


if __name__ == "__main__":
    main()
