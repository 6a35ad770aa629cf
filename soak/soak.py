"""Kill -9 ledger, solve, resume and allocate a thousand times, and check after every kill.

    python soak/soak.py --kills 1000 --every 1

1. Copy folders while a run is at work, and put the copies back in its place (`backups`).
2. Sweep: strike one small run at *every* file operation in turn. Kill it before the operation,
   after the first byte of every write and before the last; kill it with a power cut that loses what
   was not synced; interrupt it (Ctrl-C) once and twice. Do the same to a run that resumes from a
   torn line. Then resume each of these runs to its end.
3. Strike at random moments: `--kills` kills, and a quarter as many interrupts, in worlds where
   several processes share a ledger that pays for a few runs.

The folder of a killed run is copied, at every operation of the sweep and sometimes in step 3. Once
the run has come further, resuming from the copy must be refused.

A power cut damages the folders of runs, and the files that say how far runs have come. It spares
the ledger's own file: the soak trusts SQLite to sync it, and only kills it.

With `--ledger postgresql`, all ledgers are in a private PostgreSQL server, and every statement that
changes one is an operation too. The server itself is not killed here; tests/database does that.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jdpack.records import encode_kernels

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # one thread: this process forks

import pyarrow as pa

import backups
import ledgers
import proof
from hand import Counts, Hand, solving, todo_of
from jdpack import BudgetWarning, Ledger, SupplyWarning, solve
from jdpack.pages.billboard_page import public_page
from jdpack.run.curator_page import curator_page
from scene import KINDS, POLICIES, Case, World, columns, market
from strike import STAGES, run

HANDS = 3
"""Processes at once."""
PER_WORLD = 120
"""Kills in a world, before the next one begins with an empty ledger."""


def together(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run all jobs at once, each in its own process, and return their results."""
    pipes = []
    for job in jobs:
        heard, told = os.pipe()
        if os.fork() == 0:
            try:
                found: object = job()
            except BaseException:
                found = proof.Wrong(traceback.format_exc())
            with open(told, "wb") as file:
                pickle.dump(found, file)
            os._exit(0)
        os.close(told)
        pipes.append(heard)
    given = []
    for heard in pipes:
        with open(heard, "rb") as file:
            given.append(pickle.load(file))
        os.wait()
    for wrong in given:
        if isinstance(wrong, proof.Wrong):
            raise wrong
    return given


def in_fork(job: Callable[[], Any]) -> Any:
    """Run a job in its own process, and return its result."""
    return together([job])[0]


def warm_up() -> None:
    """Load and compile everything here, in one thread, so that forks need not."""
    for kind in KINDS:
        for policy in POLICIES.values():
            result = solve(
                market(kind), pa.table(columns(kind)), policy=policy, threads=1, force=True
            )
            result.engine.digest()
            public_page(result.billboard)
            curator_page(result.billboard, result.curator)
    for kernel in (encode_kernels.encode_values, encode_kernels.encode_amounts):  # for files
        column, *rest = kernel.signatures[0]
        kernel.compile((column.copy(readonly=False), *rest))


def typical(folder: Path) -> dict[str, tuple[float, int]]:
    """How many seconds and operations runs take."""
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


def soak(
    folder: Path, kills: int, every: int, seed: int, tell: Callable[[str], object] = len
) -> Counts:
    """Do everything; raise `proof.Wrong` at the first thing that is wrong."""
    folder.mkdir(exist_ok=True)
    for kind in (SupplyWarning, BudgetWarning):
        warnings.simplefilter("ignore", kind)
    warm_up()
    gc.freeze()  # spares forks from collecting what already exists
    measured = in_fork(functools.partial(typical, folder / "typical"))
    total: Counts = Counter()
    jobs = [functools.partial(backups.attack, folder / f"backups {h}", seed + h) for h in range(2)]
    total.update(sum(together(jobs), start=Counter()))
    tell("folders from backups were put back")
    if every:
        jobs = [functools.partial(sweep, folder, hand, every, seed) for hand in range(HANDS)]
        total.update(sum(together(jobs), start=Counter()))
        tell(f"{struck(total):,} strikes, at every operation of a run")
    for number, left in enumerate(range(kills, 0, -PER_WORLD)):
        world = in_fork(World(folder / f"world {number}").make)
        todo, seeds = min(left, PER_WORLD), random.Random(f"{seed} {number}")
        jobs = [
            functools.partial(strike, world, str(h), (todo + h) // HANDS, seeds.random(), measured)
            for h in range(HANDS)
        ]
        total.update(sum(together(jobs), start=Counter()))
        sets, runs = in_fork(functools.partial(proof.at_last, world))
        total["worlds",] += 1
        total["data sets",] += sets
        total["reservations that count, each with its run",] += runs
        ledgers.remove_world(world.folder)
        tell(f"{struck(total):,} strikes")
    return total


def sweep(folder: Path, number: int, every: int, seed: int) -> Counts:
    """One hand's part of the sweep."""
    world = World(folder / f"everywhere {number}")
    world.folder.mkdir()
    hand = Hand(world, str(number), seed + number, {})
    hand.everywhere(1 + number * every, HANDS * every)
    for name in ("fresh", "torn", "sweep"):
        ledgers.remove_world(world.folder / name)
    shutil.rmtree(world.folder)
    return hand.counts


def strike(
    world: World, name: str, kills: int, seed: float, measured: dict[str, tuple[float, int]]
) -> Counts:
    """One hand's part of the random kills in a world."""
    hand = Hand(world, name, seed, measured)
    hand.at_random(kills)
    hand.counts["random kills",] += hand.kills
    return hand.counts


def struck(counts: Counts, *what: str) -> int:
    """How many kills and interrupts there were, or only those named."""
    return sum(n for key, n in counts.items() if key[0] in (what or ("kills", "Ctrl-C")))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000, help="how many at random moments")
    parser.add_argument(
        "--every", type=int, default=1, help="sweep every n-th operation; 0: no sweep"
    )
    parser.add_argument("--seed", type=int, default=None, help="for the moments, not the noise")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument(
        "--ledger", choices=("sqlite", "postgresql"), default="sqlite", help="where ledgers are"
    )
    given = parser.parse_args()
    if given.ledger == "postgresql":
        ledgers.use_postgresql()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(2**32)
    folder, begun = Path(tempfile.mkdtemp(prefix="jdpack-soak-")), time.monotonic()
    try:
        counts = soak(
            folder, given.kills, given.every, seed, functools.partial(print, file=sys.stderr)
        )
    except proof.Wrong as wrong:
        print(f"WRONG (seed {seed}, files in {folder}):\n{wrong}", file=sys.stderr)
        sys.exit(1)
    shutil.rmtree(folder)
    if given.json:
        print(json.dumps(plain(counts)))
        return
    print(report(counts))
    print(f"seed {seed}, {time.monotonic() - begun:.0f} seconds")


def plain(counts: Counts) -> dict[str, int]:
    """The counts, for JSON."""
    return {", ".join(key): n for key, n in sorted(counts.items())}


def report(counts: Counts) -> str:
    """The counts as text: a table of all kills by command and stage, and their total."""
    kills = {key[1:]: n for key, n in counts.items() if key[0] == "kills"}
    lines = [f"{', '.join(k)}: {n:,}" for k, n in sorted(counts.items()) if len(k) < 3]
    lines += [f"{', '.join(k)}: {n:,}" for k, n in sorted(counts.items()) if k[0] == "every"]
    commands = [
        c for c in ("solve", "resume", "allocate", "ledger") if any(c == k[0] for k in kills)
    ]
    wide = max(map(len, STAGES))
    rows = [["kills", *commands, "all", "Ctrl-C"]]
    for stage in STAGES:
        own = [kills.get((command, stage), 0) for command in commands]
        ctrl_c = sum(n for key, n in counts.items() if key[0] == "Ctrl-C" and key[2] == stage)
        if any(own) or ctrl_c:
            rows.append([stage, *(f"{n:,}" for n in (*own, sum(own), ctrl_c))])
    sums = [sum(n for key, n in kills.items() if key[0] == command) for command in commands]
    last = (*sums, struck(counts, "kills"), struck(counts, "Ctrl-C"))
    rows.append(["all", *(f"{n:,}" for n in last)])
    lines += ["", *(row[0].ljust(wide) + "".join(f"{n:>10}" for n in row[1:]) for row in rows), ""]
    total = f"{struck(counts, 'kills'):,} kills and {struck(counts, 'Ctrl-C'):,} interrupts"
    return "\n".join([*lines, f"{total}, and nothing was ever wrong"])


if __name__ == "__main__":
    main()
