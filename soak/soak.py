"""Kill -9 a thousand times, over ledger, solve, resume and allocate, and check after every kill.

    python soak/soak.py --kills 1000 --every 1

First one small run is killed at *every* operation on files, one after the other: before it, in the
middle of every write, and with a power cut that takes what was not synced; so is the resumption of
a run with a torn line. Each of these runs is then resumed to its end. Then come so many kills at
random moments, in worlds where several processes share a ledger that has room for a few runs.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import pickle
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # one thread: this process forks

import pyarrow as pa

import proof
from hand import Counts, Hand, solving, todo_of
from jdpack import Ledger, SupplyWarning, solve
from jdpack.report import curator_page, public_page
from scene import KINDS, POLICIES, Case, World, columns, market
from strike import STAGES, run

HANDS = 3
"""Processes at once."""
PER_WORLD = 120
"""Kills in a world; then another one begins, with an empty ledger."""


def gather(jobs: list[Callable[[], Counts]]) -> Counts:
    """Do all jobs at once, each in a process of its own, and add up what they count."""
    pipes = []
    for job in jobs:
        heard, told = os.pipe()
        if os.fork() == 0:
            try:
                found: object = job()
            except BaseException:
                found = traceback.format_exc()
            with open(told, "wb") as file:
                pickle.dump(found, file)
            os._exit(0)
        os.close(told)
        pipes.append(heard)
    total: Counts = Counter()
    failures = []
    for heard in pipes:
        with open(heard, "rb") as file:
            found = pickle.load(file)
        os.wait()
        if isinstance(found, str):
            failures.append(found)
        else:
            total += found
    if failures:
        raise proof.Wrong("\n".join(failures))
    return total


def warm_up() -> None:
    """Load and compile here, in one thread, what every fork would else load and compile."""
    for kind in KINDS:
        for policy in POLICIES.values():
            result = solve(market(kind), pa.table(columns(kind)), policy=policy, threads=1)
            result.engine.digest()
            public_page(result.billboard)
            curator_page(result.billboard, result.curator)


def typical(folder: Path) -> dict[str, tuple[float, int]]:
    """How many seconds runs take, and how many operations they do."""
    world, found = World(folder), {}
    world.make()
    Ledger.create(world.ledger, "all", epsilon=50.0, delta=1e-4)
    todo = todo_of(world, "set", 2)
    for name in POLICIES:
        case = Case(world, world.runs / name, "whole", name, "all")
        begun = time.monotonic()
        ended = run(solving(case))
        found[name] = time.monotonic() - begun, ended.operations
    begun = time.monotonic()
    ended = run(lambda _: [act() for _, _, act in todo])
    return found | {"ledger": (time.monotonic() - begun, ended.operations)}


def soak(folder: Path, kills: int, every: int, seed: int) -> Counts:
    """All kills; raises `proof.Wrong` if anything ever is."""
    warnings.simplefilter("ignore", SupplyWarning)
    warm_up()
    gc.freeze()  # forks need not look at what is here already
    measured = _in_fork(lambda: typical(folder / "typical"))
    total: Counts = Counter()

    def sweeping(number: int) -> Counts:
        world = World(folder / f"everywhere {number}")
        world.folder.mkdir()
        hand = Hand(world, str(number), seed * 1000 + number, measured)
        hand.everywhere(1 + number * every, HANDS * every)
        return hand.counts

    if every:
        total += gather([lambda n=n: sweeping(n) for n in range(HANDS)])
    for number, left in enumerate(range(kills, 0, -PER_WORLD)):
        world = World(folder / f"world {number}")
        _in_fork(world.make)
        todo = min(left, PER_WORLD)
        shares = [(todo + hand) // HANDS for hand in range(HANDS)]

        def striking(hand: int, world: World = world, n: int = number, s: Any = shares) -> Counts:
            made = Hand(world, f"{hand}", seed * 1000 + 10 * n + 500 + hand, measured)
            made.at_random(s[hand])
            made.counts["random kills",] += made.kills
            return made.counts

        total += gather([lambda h=h: striking(h) for h in range(HANDS)])  # type: ignore[misc]
        sets, runs = _in_fork(functools.partial(proof.at_last, world))
        total["worlds",] += 1
        total["data sets",] += sets
        total["reservations that count, each with its run",] += runs
        shutil.rmtree(world.folder)
    return total


def _in_fork(work: Callable[[], Any]) -> Any:
    heard, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            found: object = work()
        except BaseException:
            found = proof.Wrong(traceback.format_exc())
        with open(told, "wb") as file:
            pickle.dump(found, file)
        os._exit(0)
    os.close(told)
    with open(heard, "rb") as file:
        found = pickle.load(file)
    os.waitpid(pid, 0)
    if isinstance(found, proof.Wrong):
        raise found
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000, help="how many at random moments")
    parser.add_argument(
        "--every", type=int, default=1, help="sweep every so many operations; 0: no"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the moments; not of the noise")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(2**32)
    folder, begun = Path(tempfile.mkdtemp(prefix="jdpack-soak-")), time.monotonic()
    try:
        counts = soak(folder, given.kills, given.every, seed)
    except proof.Wrong as wrong:
        print(f"WRONG (seed {seed}, files in {folder}):\n{wrong}", file=sys.stderr)
        sys.exit(1)
    shutil.rmtree(folder)
    if given.json:
        print(json.dumps({", ".join(key): n for key, n in sorted(counts.items())}))
        return
    print(report(counts))
    print(f"seed {seed}, {time.monotonic() - begun:.0f} seconds")


def report(counts: Counts) -> str:
    """The counts, for people."""
    kills = {key[1:]: n for key, n in counts.items() if key[0] == "kills"}
    lines = [f"{sum(kills.values()):,} kills, and nothing was ever wrong"]
    for command in sorted({key[0] for key in kills}):
        stages = {key[1]: n for key, n in kills.items() if key[0] == command}
        lines.append(f"  {command}: {sum(stages.values()):,}")
        lines += [f"    {stage}: {stages[stage]:,}" for stage in STAGES if stage in stages]
    for key, n in sorted(counts.items()):
        if key[0] != "kills":
            lines.append(f"{', '.join(key)}: {n:,}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
