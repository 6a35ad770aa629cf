"""Many readers of `jdpack serve` during a run: errors, waiting times, and the cost.

Each run begins with a window without interruption, in which 200 readers read; every error and every
wait counts. Then come phases of a few seconds in which server and readers work, and phases in which
both are stopped (SIGSTOP), in the order on off off on or the reverse, by coin. On a machine with
other tenants, speed drifts by more than the effect to be measured. So each phase is compared with
its neighbour, and the run's speed comes from the times at which its rounds ended. The result is how
many times as long a round takes with readers, with a 95% interval. Two controls show what the
measure is worth: neighbours that were both stopped, and a server made expensive on purpose, which
must show.

Run, server and readers share the cores. Real readers would be elsewhere, so their time is counted
separately; it slows the run as well.

The machine must have nothing else to do. Everything takes about twelve minutes. The run that keeps
all cores busy and the expensive server alone take five, with fewer pairs:

    python bench/serve.py --case 0 2 --window 15 --pairs 10 -o /tmp/short

Even if other work disturbs the machine, two figures are still useful: the server's CPU time per
load, and the slowdown by CPU time. The latter is how many times as much CPU time a round takes with
readers, times what is left to a run that wants all cores, after server and readers took theirs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

import plots
from common import RESULTS, report

RUN = """
import struct, sys, time, numpy as np, jdpack
from jdpack.engines import shard
shard._SCREENED = 2**62  # ask all agents in every round, so that rounds cost the same
agents, out, ticks = int(sys.argv[1]), sys.argv[2], open(sys.argv[3], "ab", buffering=0)
rng = np.random.default_rng(1)
market = jdpack.Market(
    supply=[agents / 5] * 10, max_demand=1.0, max_value=1.0, agents=agents, divisible=True
)
values, demands = rng.random(agents), rng.random((agents, 10))
def progress(now):
    if now.stage == "rounds":
        ticks.write(struct.pack("d", time.monotonic()))
jdpack.solve(
    market, values=values, demands=demands, epsilon=1.0, delta=1e-8, output=out,
    policy=jdpack.MwuFixed(rounds=10**6), progress=progress,
)
"""

DEAR = """
from jdpack import cli; from jdpack.serve import server as serve
from jdpack.serve import app, site
app.PAUSE = site.PAUSE = 0.02
site._PAUSE_PER_WORK = 0
serve.step_back = lambda: None
cli.main()
"""
"""A server that builds the page as often as it can, at the priority of the run."""

AWAKE = 0.2
"""The first part of a phase, which does not count: server and readers find their pace."""


@dataclass(frozen=True)
class Case:
    """A run, and a server."""

    name: str
    agents: int
    disk: bool
    """Whether its lines go to disk; otherwise to memory, so that the run never waits."""
    code: str | None = None
    """The server, if it is not `jdpack serve`."""


CASES = [
    Case("all cores busy", 10_000_000, disk=False),
    Case("quick rounds", 20_000, disk=True),
    Case("a server that costs much", 10_000_000, disk=False, code=DEAR),
]


@dataclass(frozen=True)
class Phase:
    """A few seconds, and what happened in the part that counts."""

    on: bool
    seconds: float
    """The average time of a round."""
    cores: tuple[float, float, float]
    """How many cores the run, the server and the readers used."""


@dataclass(frozen=True)
class Ratio:
    """How many times as long a round takes, with a 95% interval."""

    ratio: float
    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> Ratio:
        """From pairs of times, by Student's t for their logarithms."""
        if not pairs:
            return cls(math.nan, 0.0, math.inf, 0)
        logs = np.array([math.log(one / other) for one, other in pairs])
        middle, half = float(logs.mean()), math.inf
        if len(logs) > 1:
            error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
            half = float(stats.t.ppf(0.975, len(logs) - 1)) * error
        return cls(math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(logs))

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"


def order(pairs: int, coins: random.Random) -> list[bool]:
    """Which phases are on: on off off on, or the reverse, two pairs at a time."""
    found: list[bool] = []
    while len(found) < 2 * pairs:
        first = coins.random() < 0.5
        found += [first, not first, not first, first]
    return found[: 2 * pairs]


def compared(phases: Sequence[Phase]) -> Ratio:
    """On against off, in pairs of neighbours."""
    both = zip(phases[::2], phases[1::2], strict=True)
    return Ratio.of([(a.seconds, b.seconds) if a.on else (b.seconds, a.seconds) for a, b in both])


def by_cpu(phases: Sequence[Phase], cores: int) -> Ratio:
    """The slowdown of a run that wants all cores, from CPU times alone."""
    found = []
    for pair in zip(phases[::2], phases[1::2], strict=True):
        on, off = sorted(pair, key=lambda phase: not phase.on)
        spent, alone = (phase.seconds * phase.cores[0] for phase in (on, off))
        found.append((spent / (1.0 - sum(on.cores[1:]) / cores), alone))
    return Ratio.of(found)


def idle(phases: Sequence[Phase]) -> Ratio:
    """Off against off, between adjacent pairs: a control where there is nothing to find."""
    both = zip(phases[1::2], phases[2::2], strict=False)
    return Ratio.of([(a.seconds, b.seconds) for a, b in both if not a.on and not b.on])


class Measured:
    """A run with its server and readers, which can be stopped."""

    def __init__(self, case: Case, readers: int, place: Path) -> None:
        self._ticks, out = place / "ticks", place / "out"
        self._ticks.touch()
        self.run = subprocess.Popen(
            [sys.executable, "-c", RUN, str(case.agents), str(out), str(self._ticks)]
        )
        self._started = [self.run]
        try:
            self._await_rounds()
            how = ["-m", "jdpack.cli"] if case.code is None else ["-c", case.code]
            command = [sys.executable, *how, "serve", str(out), "--port", "0"]
            self.server = self._begin(command)
            port = self._line(self.server).rstrip("/\n").rsplit(":", 1)[1]
            load = Path(__file__).with_name("readers.py")
            self.readers = self._begin([sys.executable, load, port, "--readers", str(readers)])
        except BaseException:
            self.close()
            raise

    def _await_rounds(self) -> None:
        while self._ticks.stat().st_size < 8 * 20:
            if self.run.poll() is not None:
                raise SystemExit("the run failed")
            time.sleep(0.1)

    def _begin(self, command: Sequence[str | Path]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._started.append(process)
        return process

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        if not (line := process.stdout.readline()):
            raise SystemExit("the server or its readers failed")
        return line

    def seen(self) -> dict[str, Any]:
        """What the readers saw since the last time."""
        assert self.readers.stdin is not None
        self.readers.stdin.write("?\n")
        self.readers.stdin.flush()
        found: dict[str, Any] = json.loads(self._line(self.readers))
        return found

    def signal(self, number: signal.Signals) -> None:
        for process in (self.server, self.readers):
            process.send_signal(number)

    def phase(self, on: bool, seconds: float) -> Phase:
        """One phase."""
        self.signal(signal.SIGCONT if on else signal.SIGSTOP)
        time.sleep(AWAKE * seconds)
        begin, before = time.monotonic(), self.cpu()
        time.sleep((1 - AWAKE) * seconds)
        end, after = time.monotonic(), self.cpu()
        ticks = np.fromfile(self._ticks)
        ticks = ticks[(ticks >= begin) & (ticks <= end)]
        if len(ticks) < 3:
            raise SystemExit("a phase has fewer than 3 rounds: use longer phases or fewer agents")
        shares = [(b - a) / (end - begin) for a, b in zip(before, after, strict=True)]
        round_seconds = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
        return Phase(on, float(round_seconds), (shares[0], shares[1], shares[2]))

    def rounds(self) -> int:
        return self._ticks.stat().st_size // 8

    def cpu(self) -> list[float]:
        """The CPU seconds of run, server and readers so far."""
        return [_cpu(process.pid) for process in (self.run, self.server, self.readers)]

    def close(self) -> None:
        for process in reversed(self._started):
            process.kill()
            process.communicate()


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def measured(case: Case, readers: int) -> Iterator[Measured]:
    """A case that is running."""
    memory = None if case.disk or not Path("/dev/shm").is_dir() else "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        running = Measured(case, readers, Path(folder))
        try:
            yield running
        finally:
            running.close()


def measure(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Measure a case."""
    with measured(case, args.readers) as running:
        while not running.seen()["loads"]:
            time.sleep(0.1)
        running.seen()
        begin, before = time.monotonic(), running.cpu()[1]
        time.sleep(args.window)
        window, cpu = running.seen(), running.cpu()[1] - before
        took = time.monotonic() - begin
        phases = [running.phase(on, args.phase) for on in order(args.pairs, random.Random(1))]
        running.signal(signal.SIGCONT)
        later, rounds = running.seen(), running.rounds()
    if not window["loads"]:
        raise SystemExit("nobody got the page in time: use a longer window")
    waits, on = 1e3 * np.array(window.pop("waits")), [p for p in phases if p.on]
    mean = np.mean([p.cores for p in on], axis=0)
    alone = float(np.mean([p.cores[0] for p in phases if not p.on]))
    return {
        **asdict(case),
        "readers": args.readers,
        "rounds": rounds,
        "round_ms": 1e3 * float(np.median([p.seconds for p in phases if not p.on])),
        "window": {
            **window,
            "seconds": took,
            "loads_per_second": window["loads"] / took,
            "cpu_ms_per_load": 1e3 * cpu / window["loads"],
            "wait_ms": {q: float(np.percentile(waits, q)) for q in (50, 99, 100)},
        },
        "errors_later": later["errors"],
        "ratio": asdict(compared(phases)),
        "ratio_by_cpu": asdict(by_cpu(phases, len(os.sched_getaffinity(0)))),
        "ratio_idle": asdict(idle(phases)),
        "cores": {"run": mean[0], "run_alone": alone, "server": mean[1], "readers": mean[2]},
        "phases": [asdict(phase) for phase in phases],
    }


def table(found: Sequence[dict[str, Any]]) -> str:
    """What was measured, as a table."""
    lines = [
        "| run | a round | loads in the window | errors | wait, median / 99% / longest "
        "| a round with readers, of one without | by CPU time | two without "
        "| the server's CPU per load | cores: run alone / run / server / readers |",
        "|---" * 10 + "|",
    ]
    for one in found:
        window, cores = one["window"], one["cores"]
        waits = " / ".join(f"{ms:.0f} ms" for ms in window["wait_ms"].values())
        names = ("run_alone", "run", "server", "readers")
        lines.append(
            f"| {one['name']}, {one['agents']:,} agents | {one['round_ms']:.1f} ms "
            f"| {window['loads']:,} in {window['seconds']:.0f} s "
            f"| {len(window['errors']) + len(one['errors_later'])} | {waits} "
            f"| {Ratio(**one['ratio'])} | {Ratio(**one['ratio_by_cpu'])} "
            f"| {Ratio(**one['ratio_idle'])} "
            f"| {window['cpu_ms_per_load']:.2f} ms "
            f"| {' / '.join(f'{cores[name]:.2f}' for name in names)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--window", type=float, default=30.0, help="seconds without interruption")
    parser.add_argument("--phase", type=float, default=5.0, help="seconds of a phase")
    parser.add_argument(
        "--pairs", type=int, default=20, help="of one phase with readers and one without"
    )
    parser.add_argument("--agents", type=int, help="of all runs, instead of their own")
    parser.add_argument("--case", type=int, nargs="+", choices=range(len(CASES)), help="only these")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    plots.check()
    found = []
    for case in [CASES[i] for i in args.case or range(len(CASES))]:
        print(f"{case.name} ...", flush=True)
        found.append(measure(replace(case, agents=args.agents or case.agents), args))
    picture = plots.bars(
        "a round with readers, of one without",
        {
            one["name"]: {
                "measured": one["ratio"]["ratio"],
                "at most, 95%": one["ratio"]["high"],
            }
            for one in found
        },
        mark=(1.1, "10% slower"),
    )
    rows = [{k: v for k, v in one.items() if k != "code"} for one in found]
    report("serve", args.output, table(found), found, picture, rows)


if __name__ == "__main__":
    main()
