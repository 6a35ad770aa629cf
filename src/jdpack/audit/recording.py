"""Private: a run of the real pipeline, watched from below and from outside.

The pipeline is a black box here. The audit watches what goes in at its source: every call of
OpenDP's samplers, with the scale that the sampler itself states; every call of the operating
system's randomness; and the moment when the records are first touched. It keeps what comes out: the
billboard, the allocation, the files of the public folder. It replaces nothing inside `solve` or
`release`, so no fault there can bypass the watch.

From this the audit recomputes the rest: the exact answers from the records (`reference`), the
public side from the billboard (`fold`). A replay (the method of Re:cord-play) runs the pipeline on
a neighbour with the same random bytes, and with noise that makes every answer the posted one.

Watching replaces `Measurement.__call__` of OpenDP and `urandom` during a run, so only one run is
watched at a time.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opendp.mod import Measurement

from jdpack.audit.people import People
from jdpack.audit.reference import CountedRounds, reference
from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Step
from jdpack.engines.base import Allocation
from jdpack.engines.settings import Choice, Memory
from jdpack.errors import JdpackError
from jdpack.market.market import Market
from jdpack.policies.base import Policy, budget_of
from jdpack.privacy.accounting import Budget, Cost
from jdpack.privacy.noise import Gaussian, Noise, TruncatedLaplace, deviation
from jdpack.privacy.queries import CLOSING

_one_at_a_time = threading.RLock()

SEED_BYTES = 16
_LAWS_MOST = 512

Chooser = Callable[[int, float, int], list[int] | None]
"""Chooses what a sampler returns, from the number of the call, its scale, and how many numbers are
drawn. None leaves the choice to the sampler."""


class StoppedError(Exception):
    """A run that was stopped on purpose."""


@dataclass(frozen=True)
class Setting:
    """The policy and budget that runs have in common."""

    policy: Policy[Any]
    epsilon: float
    delta: float
    clamp: bool = False

    def budget(self, market: Market) -> Budget:
        """How a run in this market splits (epsilon, delta)."""
        return budget_of(self.policy, market, self.epsilon, self.delta)


@dataclass(frozen=True)
class Call:
    """One call of a vetted sampler."""

    kind: str
    """ "gaussian" or "laplace", on 64-bit integers; or "other"."""
    scale: float
    """The scale by the sampler's own privacy map, which jdpack cannot influence."""
    drawn: list[int]


@dataclass(frozen=True)
class Line:
    """One release, seen from the inside."""

    step: Step
    answer: tuple[int, ...]
    """What was posted."""
    true: tuple[int, ...]
    """The exact answer, by the reference."""
    draw: list[int] | None
    """The vetted draw of this line; None if no call of a sampler belongs to it."""

    @property
    def exact(self) -> tuple[int, ...]:
        """What the pipeline added the draw to; the reference's answer if there was no draw."""
        if self.draw is None or len(self.draw) != len(self.answer):
            return self.true
        return tuple(a - z for a, z in zip(self.answer, self.draw, strict=True))


@dataclass
class Tape:
    """Everything the audit saw of a run."""

    people: People
    setting: Setting
    calls: list[Call] = field(default_factory=list)
    random_bytes: list[bytes] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    """What happened, in order: "bytes", "records", "noise"."""
    told: list[tuple[Any, ...]] = field(default_factory=list)
    """Progress and warnings, in order."""
    forced: bool = False
    """Whether the audit chose the noise."""
    board: Billboard | None = None
    shares: NDArray[np.uint32] | None = None
    private: Allocation | None = None
    spent: Cost | None = None
    clamped: int = 0
    screened: bool = False
    """Whether some rounds skipped agents whose choice was decided."""
    files: dict[str, bytes] = field(default_factory=dict)
    """The files of the public folder, by name."""
    error: str = ""
    """Why the run ended early, if it did."""
    _matched: tuple[list[Line], int] | None = None

    @property
    def budget(self) -> Budget:
        """How the run splits (epsilon, delta)."""
        return self.setting.budget(self.people.market)

    @property
    def answers(self) -> list[tuple[int, ...]]:
        """The posted answers, one per release."""
        return [] if self.board is None else [r.answer for r in self.board.releases]

    @property
    def lines(self) -> list[Line]:
        """Every release with its draw and its exact answer."""
        return self._match()[0]

    @property
    def unused(self) -> int:
        """How many sampler calls belong to no line."""
        return self._match()[1]

    def _match(self) -> tuple[list[Line], int]:
        """Match sampler calls to lines, in order."""
        if self._matched is None:
            found, calls = list[Line](), list(self.calls)
            releases = [] if self.board is None else self.board.releases
            true = [] if self.board is None else true_answers(self.people, self.board)
            for release, exact in zip(releases, true, strict=True):
                draw, used = _draw_of(release.step.noise, len(exact), calls)
                del calls[:used]
                found.append(Line(release.step, release.answer, exact, draw))
            self._matched = found, len(calls)
        return self._matched


def _draw_of(noise: Noise, count: int, calls: Sequence[Call]) -> tuple[list[int] | None, int]:
    """The draw for a line from the next calls, and how many calls it took."""
    if isinstance(noise, Gaussian):
        drawn, parts = [0] * count, alike(noise, count)
        if len(calls) < len(parts):
            return None, 0
        for call, (scale, places) in zip(calls, parts, strict=False):
            if not _fits(call, "gaussian", scale) or len(call.drawn) != len(places):
                return None, 0
            for place, z in zip(places, call.drawn, strict=True):
                drawn[place] = z
        return drawn, len(parts)
    if isinstance(noise, TruncatedLaplace):
        kept: list[int] = []
        for used, call in enumerate(calls, start=1):
            if not _fits(call, "laplace", noise.scale) or len(call.drawn) != count:
                break
            kept += [z for z in call.drawn if abs(z) <= noise.bound]
            if len(kept) >= count:
                return kept[:count], used
    return None, 0


def alike(noise: Noise, count: int) -> list[tuple[float, list[int]]]:
    """The scales of `count` numbers, in order, and the places of the numbers that have each.

    Numbers of the same scale are drawn together, in one call of a sampler.
    """
    if not isinstance(noise, Gaussian):
        return [(deviation(noise)[0], list(range(count)))]
    scales = noise.scales if len(noise.scales) > 1 else noise.scales * count
    return [
        (scale, [place for place, own in enumerate(scales) if own == scale])
        for scale in dict.fromkeys(scales)
    ]


def _fits(call: Call, kind: str, scale: float) -> bool:
    return call.kind == kind and math.isclose(call.scale, scale, rel_tol=1e-9)


def true_answers(people: People, board: Billboard) -> list[tuple[int, ...]]:
    """The reference's exact answers to all releases of a billboard.

    It remembers them: a replay asks before its run, and a check asks after it.
    """
    own, steps = reference(people), tuple(release.step for release in board.releases)
    factors = None if board.certificate is None else board.certificate.factors
    asked = (steps, board.header.order, board.seed, factors)
    if asked not in own.answers:
        found, before = list[tuple[int, ...]](), list[Step]()
        rounds = CountedRounds((), board.header.order)
        for step in steps:
            if step.query in CLOSING or step.span > 1:
                rounds = CountedRounds(tuple(before), board.header.order)
            found.append(own.answer(step, rounds, board))
            if step.weight:
                before.append(step)
        own.answers[asked] = found
    return own.answers[asked]


# --- running it ---------------------------------------------------------------------------


def record(
    setting: Setting,
    people: People,
    engine: str | Choice = "memory",
    threads: int | None = 1,
    *,
    draws: Chooser | None = None,
    output: Path | None = None,
    **more: Any,
) -> Tape:
    """Watch a real, unseeded run. If `draws` is given, it replaces the noise.

    `more` are further arguments of `solve`, such as the people's records in another form.
    """
    return _run(Tape(people, setting), engine, threads, draws, (), output, more)


def replay(
    tape: Tape,
    setting: Setting,
    people: People,
    engine: str | Choice = "memory",
    threads: int | None = 1,
    *,
    output: Path | None = None,
) -> Tape:
    """Run on other people, and force the random bytes and the answers of the tape on the run."""
    assert tape.board is not None, "only a finished run can be replayed"
    pairs = zip(tape.board.releases, true_answers(people, tape.board), strict=True)
    wanted = [
        [release.answer[place] - exact[place] for place in places]
        for release, exact in pairs
        for _, places in alike(release.step.noise, len(exact))
    ]

    def forced(at: int, scale: float, count: int) -> list[int] | None:
        fits = at < len(wanted) and len(wanted[at]) == count
        return list(wanted[at]) if fits else None  # a misfit shows on the billboard

    given = tuple(tape.random_bytes)
    return _run(Tape(people, setting), engine, threads, forced, given, output, {})


def can_replay(tape: Tape, people: People) -> bool:
    """Whether truncated noise can turn the neighbour's exact answers into the posted ones."""
    assert tape.board is not None
    pairs = zip(tape.board.releases, true_answers(people, tape.board), strict=True)
    return all(
        not isinstance(r.step.noise, TruncatedLaplace)
        or all(abs(a - e) <= r.step.noise.bound for a, e in zip(r.answer, exact, strict=True))
        for r, exact in pairs
    )


def _run(
    tape: Tape,
    engine: str | Choice,
    threads: int | None,
    draws: Chooser | None,
    given: Sequence[bytes],
    output: Path | None,
    more: dict[str, Any],
) -> Tape:
    # Import the module, so that every run looks up its `solve` again.
    from jdpack.run import solve as pipeline

    setting, tape.forced = tape.setting, draws is not None
    arguments: dict[str, Any] = {
        "policy": setting.policy,
        "epsilon": setting.epsilon,
        "delta": setting.delta,
        "clamp": setting.clamp,
        "threads": threads,
        "engine": engine,
        "output": output,
        "force": True,  # the markets that it attacks are small
        **more,
    }

    def progress(seen: Any) -> None:
        if seen.stage != "reading":
            tape.told.append((seen.stage, seen.rounds, seen.done))

    with contextlib.ExitStack() as stack:
        heard = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        if "agents" in more or "values" in more:
            pass  # the caller gives the records in another form
        elif engine == "memory" or isinstance(engine, Memory):
            arguments |= _noted(tape)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "agents"
            tape.people.write(folder)
            arguments["agents"] = folder
        with _one_at_a_time, watching(tape, draws, given):
            try:
                result = pipeline.solve(tape.people.market, progress=progress, **arguments)
            except Exception as error:
                begun = tape.calls or tape.told
                if not begun and isinstance(error, JdpackError):
                    raise  # nothing was released: the input is wrong
                sentence = error.message if isinstance(error, JdpackError) else str(error)
                tape.error = f"{type(error).__name__}: {sentence}"
            else:
                keep(tape, result)
        tape.told += [("warning", type(w.message).__name__, str(w.message)) for w in heard]
        if output is not None:
            tape.files = public_files(output)
    return tape


def public_files(output: Path) -> dict[str, bytes]:
    """The files of an output's public folder, by name."""
    return {file.name: file.read_bytes() for file in sorted((output / "public").iterdir())}


def keep(tape: Tape, result: Any) -> None:
    """Copy the result of a run to its tape."""
    tape.board, tape.private, tape.spent = result.billboard, result.private, result.spent
    tape.shares, tape.clamped = result.shares, result.engine.clamped
    shard = getattr(result.engine, "shard", None)
    tape.screened = shard is not None and shard.boxes.box is not None


class _Noted:
    """An array of records that notes on the tape when somebody reads it."""

    def __init__(self, array: Any, tape: Tape) -> None:
        self._array, self._tape = array, tape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        self._tape.events.append("records")
        return np.array(self._array, dtype=dtype, copy=True)

    def __len__(self) -> int:
        self._tape.events.append("records")
        return len(self._array)

    def __getattr__(self, name: str) -> Any:
        self._tape.events.append("records")
        return getattr(self._array, name)


def _noted(tape: Tape) -> dict[str, Any]:
    data = tape.people.arrays
    noted = {name: _Noted(data[name], tape) for name in ("values", "demands")}
    return data | noted


@contextlib.contextmanager
def watching(
    tape: Tape, draws: Chooser | None = None, given: Sequence[bytes] = ()
) -> Iterator[None]:
    """Record what the samplers and the operating system return, or choose it."""
    invoke: Any = Measurement.__call__
    urandom = os.urandom

    def sampled(self: Any, arg: Any) -> Any:
        several, (kind, scale) = isinstance(arg, list), _stated(self)
        count = len(arg) if several else 1
        returned = None if draws is None else draws(len(tape.calls), scale, count)
        if returned is None:
            drawn = invoke(self, arg)
            returned = list(drawn) if several else [drawn]
        tape.calls.append(Call(kind, scale, list(returned)))
        tape.events.append("noise")
        return returned if several else returned[0]

    def random_bytes(count: int) -> bytes:
        if _not_by_us(sys._getframe(1)):
            return urandom(count)
        at = len(tape.random_bytes)
        fits = at < len(given) and len(given[at]) == count
        tape.random_bytes.append(given[at] if fits else urandom(count))
        tape.events.append("bytes")
        return tape.random_bytes[-1]

    with swapped(
        (Measurement, "__call__", sampled),
        (os, "urandom", random_bytes),
        (random, "_urandom", random_bytes),  # where `secrets` and NumPy's seeds come from
    ):
        yield


def _not_by_us(frame: FrameType | None) -> bool:
    """Whether a library, not jdpack itself, asks for random bytes.

    Numba draws names for the files of its compiler cache, Ray draws names too, and some modules
    draw while they are imported.
    """
    while frame is not None:
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if module in ("numba", "ray", "importlib", "jdpack"):
            return bool(module != "jdpack")
        frame = frame.f_back
    return False


_laws: dict[int, tuple[Any, tuple[str, float]]] = {}  # a sampler that is kept keeps its id


def _stated(sampler: Any) -> tuple[str, float]:
    """`_law_of` a sampler, asked once."""
    if id(sampler) not in _laws:
        if len(_laws) >= _LAWS_MOST:
            _laws.clear()
        _laws[id(sampler)] = sampler, _law_of(sampler)
    return _laws[id(sampler)][1]


def _law_of(sampler: Any) -> tuple[str, float]:
    """The law that a sampler draws from, according to its own privacy map."""
    if "VectorDomain(AtomDomain(T=i64))" not in str(sampler.input_domain):
        return "other", math.nan
    measure = str(sampler.output_measure)
    if measure.startswith("ZeroConcentratedDivergence"):
        return "gaussian", math.sqrt(0.5 / sampler.map(1.0))
    if measure.startswith("MaxDivergence"):
        return "laplace", 1.0 / sampler.map(1)
    return "other", math.nan


@contextlib.contextmanager
def swapped(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace some attributes, and restore them at the end."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)
