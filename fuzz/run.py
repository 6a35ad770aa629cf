"""Coverage-guided fuzzing of files that others may have written (atheris, on libFuzzer).

    python fuzz/run.py billboard --seconds 300     one target; `all` for each in turn
    python fuzz/run.py billboard results/fuzz/billboard/crash-...     one input again

An input must be accepted, or refused with a sentence. Anything else is a crash, which is kept in
results/fuzz: another exception, more than 10 seconds, more memory than 256 MB plus 64 times the
input's length, or any access to a file or process that is not ours.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import os
import re
import shutil
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from random import Random
from typing import Any

import atheris

NAMES = ("billboard", "market", "csv", "parquet", "table", "ledger", "runfile")
RESULTS = Path(__file__).parents[1] / "results" / "fuzz"
COMPILED = (
    "records.codes",
    "engines.best_response",
    "engines.curvature",
    "engines.giving",
    "records.bulk_coins",
    "records.digest",
    "records.encode_kernels",
    "records.ids",
    "engines.screening",
)
"""Modules with kernels, which must not be instrumented."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz files that others may have written.")
    parser.add_argument("target", choices=[*NAMES, "all"])
    parser.add_argument("inputs", nargs="*", type=Path, help="run only these inputs again")
    parser.add_argument("--seconds", type=int, default=300, help="for each target")
    parser.add_argument("--runs", type=int, default=-1, help="stop after this many inputs")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other inputs")
    parser.add_argument("--timeout", type=int, default=10, help="seconds for one input")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where crashes are kept")
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time")
    parser.add_argument("--plant", nargs="*", default=[""], help="bugs on purpose: planted.py")
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    compiled = [f"jdpack.{module}" for module in COMPILED]
    with (
        contextlib.redirect_stderr(io.StringIO()),  # it prints a line for every module
        atheris.instrument_imports(include=["jdpack", "tomllib"], exclude=compiled),
    ):
        import targets
    names = NAMES if given.target == "all" else (given.target,)
    waiting = [(name, plant) for name in names for plant in given.plant]
    running: dict[int, tuple[str, Path]] = {}
    failed = False
    folder, parent = tempfile.mkdtemp(), os.getpid()
    try:
        while waiting or running:
            if waiting and len(running) < given.jobs:
                name, plant = waiting.pop(0)
                kept = given.results / (f"{name}-{plant}" if plant else name)
                kept.mkdir(parents=True, exist_ok=True)
                own = Path(folder) / kept.name
                own.mkdir()
                pid = os.fork()
                if pid == 0:
                    _fuzz(targets.TARGETS[name], plant, own, kept, given)
                running[pid] = name, kept
            else:
                pid, status = os.wait()
                code = os.waitstatus_to_exitcode(status)
                failed |= code != 0
                _tell(*running.pop(pid), code)
    finally:
        if os.getpid() == parent:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


def _tell(target: str, kept: Path, code: int) -> None:
    """Print the result of a target."""
    text = (kept / "log.txt").read_text(errors="replace")
    done = re.findall(r"^#(\d+)\s.*\bcov: (\d+)", text, re.M)
    runs, coverage = done[-1] if done else ("0", "0")
    executed = re.findall(r"stat::number_of_executed_units:\s+(\d+)", text)
    runs = executed[-1] if executed else runs
    told = [f"{kept.name:10} {runs:>9} inputs  {coverage:>6} edges  {'FAILED' if code else 'fine'}"]
    if code != 0:
        told.append(text[-3000:])
        crashes = re.findall(r"Test unit written to (\S+)", text)
        told += [f"again: {sys.executable} {__file__} {target} {crash}" for crash in crashes]
    print("\n".join(told), flush=True)


def _fuzz(target: Any, plant: str, folder: Path, kept: Path, given: argparse.Namespace) -> None:
    """Fuzz a target in this process, then end the process."""
    log = os.open(kept / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    import planted
    from watch import watched

    warnings.simplefilter("ignore")
    seeds = folder / "seeds"
    seeds.mkdir()
    for at, seed in enumerate(target.seeds()):
        (seeds / f"{at:03d}").write_bytes(seed)
    if plant:
        planted.plant(plant)

    done = itertools.count(1)

    def one(data: bytes) -> None:
        number = next(done)
        try:
            with watched(len(data), str(folder)):
                target.run(data, str(folder))
        except BaseException:
            traceback.print_exc()
            crash = kept / f"crash-{hashlib.sha1(data).hexdigest()}"
            crash.write_bytes(data)
            print(f"Test unit written to {crash}\nstat::number_of_executed_units: {number}")
            sys.stdout.flush()
            os._exit(77)  # libFuzzer's alarm sometimes interrupts its own exit

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        random, found = Random(seed), None
        if target.mutate is not None and random.random() < 0.9:
            with contextlib.suppress(Exception):  # the target cannot change this input
                found = target.mutate(data, size, random)
        return found if found is not None else atheris.Mutate(data, len(data))

    options = [
        f"-max_total_time={given.seconds}",
        f"-runs={given.runs}",
        f"-seed={given.seed + 1}",
        f"-timeout={given.timeout}",
        "-rss_limit_mb=6000",
        "-max_len=100000",
        "-len_control=0",
        "-print_final_stats=1",
        f"-artifact_prefix={kept}/",
    ]
    where = [str(path) for path in given.inputs] or [str(seeds)]
    atheris.Setup([sys.argv[0], *options, *where], one, custom_mutator=mutate)
    atheris.Fuzz()
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
