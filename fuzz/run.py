"""Coverage-guided fuzzing of what others may have written (atheris, on libFuzzer).

    python fuzz/run.py billboard --seconds 300     one target; `all` for each in turn
    python fuzz/run.py billboard results/fuzz/billboard/crash-...     one input again

An input must be refused with a sentence or taken: any other exception, more than 10 seconds, more
memory than 256 MB and 64 times its length, and any file or process that is none of ours is a crash,
which is kept in results/fuzz.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

NAMES = ("billboard", "market", "csv", "parquet", "table", "ledger", "runfile")
RESULTS = Path(__file__).parents[1] / "results" / "fuzz"
COMPILED = ("agents", "best_response", "coins", "digest", "encoding", "ids", "screening")
"""Modules with kernels, which no instrumentation may touch."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz what others may have written.")
    parser.add_argument("target", choices=[*NAMES, "all"])
    parser.add_argument("inputs", nargs="*", type=Path, help="inputs to run again, and no others")
    parser.add_argument("--seconds", type=int, default=300, help="for each target")
    parser.add_argument("--runs", type=int, default=-1, help="stop after so many inputs")
    parser.add_argument("--seed", type=int, default=0, help="other inputs for other seeds")
    parser.add_argument("--timeout", type=int, default=10, help="seconds for one input")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where crashes are kept")
    parser.add_argument("--plant", choices=["traceback", "hang", "memory", "file"], default="")
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside is not None:
        inside(given)
    targets = NAMES if given.target == "all" else (given.target,)
    with ThreadPoolExecutor(given.jobs) as pool:
        codes = list(pool.map(lambda target: outside(target, given), targets))
    return 1 if any(codes) else 0


def outside(target: str, given: argparse.Namespace) -> int:
    """Fuzz a target in a process of its own, and tell what came of it."""
    kept = given.results / target
    kept.mkdir(parents=True, exist_ok=True)
    arguments = [arg for arg in sys.argv[1:] if arg != given.target]
    command = [sys.executable, __file__, target, *arguments, "--inside"]
    with tempfile.TemporaryDirectory() as folder, (kept / "log.txt").open("wb") as log:
        code = subprocess.run([*command, folder], stdout=log, stderr=log, check=False).returncode
    text = (kept / "log.txt").read_text(errors="replace")
    done = re.findall(r"^#(\d+)\s.*\bcov: (\d+)", text, re.M)
    runs, coverage = done[-1] if done else ("0", "0")
    executed = re.findall(r"stat::number_of_executed_units:\s+(\d+)", text)
    print(
        f"{target:10} {executed[-1] if executed else runs:>9} inputs  {coverage:>6} edges", end=""
    )
    print("  fine" if code == 0 else f"  FAILED ({code})", flush=True)
    if code != 0:
        print(text[-3000:])
        for crash in re.findall(r"Test unit written to (\S+)", text):
            print(f"again: {sys.executable} {__file__} {target} {crash}", flush=True)
    return code


def inside(given: argparse.Namespace) -> None:
    """Fuzz in this process; ends it."""
    import atheris

    sys.path.insert(0, str(Path(__file__).parent))
    compiled = [f"jdpack.{module}" for module in COMPILED]
    with atheris.instrument_imports(include=["jdpack", "tomllib"], exclude=compiled):
        from targets import TARGETS
    from watch import watched

    target = TARGETS[given.target]
    folder = str(given.inside)
    warnings.simplefilter("ignore")

    def one(data: bytes) -> None:
        with watched(len(data), folder):
            target.run(data, folder)

    if given.plant:
        from planted import plant

        plant(given.plant)

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        random, found = Random(seed), None
        if target.mutate is not None and random.random() < 0.9:
            with contextlib.suppress(Exception):  # this one cannot be changed so
                found = target.mutate(data, size, random)
        return found if found is not None else atheris.Mutate(data, len(data))

    seeds = Path(folder) / "seeds"
    seeds.mkdir()
    for at, seed in enumerate(target.seeds()):
        (seeds / f"{at:03d}").write_bytes(seed)
    options = [
        f"-max_total_time={given.seconds}",
        f"-runs={given.runs}",
        f"-seed={given.seed + 1}",
        f"-timeout={given.timeout}",
        "-rss_limit_mb=6000",
        "-max_len=100000",
        "-len_control=0",
        "-print_final_stats=1",
        f"-artifact_prefix={given.results / given.target}/",
    ]
    where = [str(path) for path in given.inputs] or [str(seeds)]
    atheris.Setup([sys.argv[0], *options, *where], one, custom_mutator=mutate)
    atheris.Fuzz()
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
