"""Private: record a run and replay a neighbour of it, through the real pipeline.

The method of Re:cord-play: while `jdpack.solve` runs on a data set, every exact answer, every draw
of noise, every call of the vetted samplers and every random byte is written down. The replay runs
it on a neighbour with the same random bytes, and with noise such that every answer is what was
posted before. A mechanism that is private for the reason that it states then posts the same
billboard, line by line, and its exact answers moved by no more than it claims.

Watching replaces functions of `jdpack.release` and of `secrets` for the time of a run, so one run
is watched at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import secrets
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from opendp.mod import Measurement

from jdpack import release
from jdpack.accounting import Budget
from jdpack.audit.people import People
from jdpack.billboard import Billboard, Step
from jdpack.engines.choice import Choice
from jdpack.errors import JdpackError, JdpackWarning
from jdpack.noise import Noise
from jdpack.policies import Policy

_one_at_a_time = threading.RLock()


class DivergedError(Exception):
    """A replay asked for something else than the run that it replays."""


@dataclass(frozen=True)
class Setting:
    """What is the same in all runs of an audit."""

    policy: Policy[Any]
    epsilon: float
    delta: float

    @property
    def budget(self) -> Budget:
        return Budget.split(self.epsilon, self.delta, truncated=self.policy.truncated)


@dataclass
class Line:
    """One release, from the inside."""

    step: Step
    exact: tuple[int, ...]
    draw: list[int] | None = None
    """What the source of noise returned; None if it was not asked."""
    vetted: list[tuple[str, float, list[int]]] = field(default_factory=list)
    """The calls of the vetted samplers: which, with what scale, and what they gave."""


@dataclass
class Tape:
    """All that was seen of a run."""

    people: People
    lines: list[Line] = field(default_factory=list)
    random_bytes: list[bytes] = field(default_factory=list)
    board: Billboard | None = None
    shares: NDArray[np.uint32] | None = None
    error: str = ""
    """Why it ended before its time, if it did."""

    @property
    def answers(self) -> list[tuple[int, ...]]:
        """What was posted, release by release."""
        return [] if self.board is None else [r.answer for r in self.board.releases]


def record(
    setting: Setting, people: People, engine: str | Choice = "memory", threads: int | None = 1
) -> Tape:
    """A real run, watched. Nothing about it is seeded."""
    return _run(Tape(people), setting, engine, threads, None)


def replay(
    tape: Tape,
    setting: Setting,
    people: People,
    engine: str | Choice = "memory",
    threads: int | None = 1,
) -> Tape:
    """A run on other people, with the random bytes and the answers of the tape forced on it."""
    return _run(Tape(people), setting, engine, threads, tape)


def _run(
    tape: Tape,
    setting: Setting,
    engine: str | Choice,
    threads: int | None,
    forced: Tape | None,
) -> Tape:
    # The module, not the function of the same name; its attribute is looked up for every run.
    pipeline = importlib.import_module("jdpack.solve")
    arguments: dict[str, Any] = {
        "policy": setting.policy,
        "epsilon": setting.epsilon,
        "delta": setting.delta,
        "threads": threads,
        "engine": engine,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", JdpackWarning)
        if engine == "memory":
            arguments |= tape.people.arrays
        else:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "agents.parquet"
            tape.people.write(path)
            arguments["agents"] = path
        with _one_at_a_time, _watching(tape, forced):
            try:
                result = pipeline.solve(tape.people.market, **arguments)
                tape.board, tape.shares = result.billboard, result.shares
            except Exception as error:
                if not tape.lines:
                    raise  # nothing was released: it is the input that is wrong
                sentence = error.message if isinstance(error, JdpackError) else str(error)
                tape.error = f"{type(error).__name__}: {sentence}"
    return tape


@contextlib.contextmanager
def _watching(tape: Tape, forced: Tape | None) -> Iterator[None]:
    statistic, draw = release.statistic, release.SystemRandomness.draw
    token_bytes = secrets.token_bytes

    def watched_statistic(step: Step, *rest: Any) -> tuple[int, ...]:
        exact = statistic(step, *rest)
        tape.lines.append(Line(step, exact))
        return exact

    def watched_draw(self: Any, noise: Noise, count: int, index: int) -> list[int]:
        line = tape.lines[-1]
        if forced is None:
            line.draw = draw(self, noise, count, index)
            return line.draw
        at = len(tape.lines) - 1
        if at >= len(forced.answers) or len(forced.answers[at]) != count:
            raise DivergedError("it asks for more than was posted")
        line.draw = [a - e for a, e in zip(forced.answers[at], line.exact, strict=True)]
        return line.draw

    def watched_bytes(count: int | None = None) -> bytes:
        at = len(tape.random_bytes)
        given = forced.random_bytes if forced is not None else []
        drawn = given[at] if at < len(given) and len(given[at]) == count else token_bytes(count)
        tape.random_bytes.append(drawn)
        return drawn

    def sampler(name: str) -> Callable[[float], Any]:
        make = getattr(release, f"_{name}")

        def watched(scale: float) -> Any:
            def sample(zeros: list[int]) -> list[int]:
                measurement = make(scale)
                drawn: list[int] = measurement(zeros)
                if tape.lines and isinstance(measurement, Measurement):
                    tape.lines[-1].vetted.append((name, scale, list(drawn)))
                return drawn

            return sample

        return watched

    with (
        mock.patch.object(release, "statistic", watched_statistic),
        mock.patch.object(release.SystemRandomness, "draw", watched_draw),
        mock.patch.object(release, "_gaussian", sampler("gaussian")),
        mock.patch.object(release, "_laplace", sampler("laplace")),
        mock.patch.object(secrets, "token_bytes", watched_bytes),
    ):
        yield
