"""Processes that are killed or interrupted, at some time or at some operation.

A process is forked with everything loaded, and does one job. In it, the functions through which
jdpack changes files are wrapped. Each call is an operation. A strike hits before an operation, or
in the middle of a write (a torn write). SIGKILL ends the process at once. SIGINT (Ctrl-C) lets it
take back what it can, and a second one may come while it does. The process notes its stage in
shared memory, which outlives it.
"""

from __future__ import annotations

import functools
import io
import mmap
import os
import pickle
import random
import signal
import sqlite3
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

import ledgers
from jdpack.billboard import board, lines
from jdpack.engines.sharded import Combined
from jdpack.errors import JdpackError
from jdpack.ledger import account
from jdpack.privacy.queries import CLOSING
from jdpack.run import folder, lifecycle
from power import Disk

STAGES = (
    *("starting", "making the folder", "reserving", "reading", "header", "rounds", "closing"),
    *(
        "allocation",
        "pages",
        "finishing",
        "cancelling",
        "taking back",
        "ledger",
        "reading back",
        "mending",
        "asking",
    ),
)
RUN_STAGES = STAGES[1:10]
"""The stages of a run that succeeds, in order."""
REFUSED_STAGES = ("reading", "cancelling", "taking back")
"""The stages of a run on bad records, from the one that fails."""

_CREATES = os.O_CREAT | os.O_TRUNC
_REFUSED, _INTERRUPTED = 3, 4


@dataclass(frozen=True)
class Strike:
    """When and how to kill or interrupt a process."""

    at: int = 0
    """Strike before the operation with this number, counted from 1; 0: at no operation."""
    stage: str = ""
    """Count the operations of this stage only."""
    torn: bool = False
    """Count writes only, and write a part of the data."""
    part: float = 0.5
    """The part that a torn write leaves: 0 leaves one byte, 1 all except the last."""
    delay: float | None = None
    """The parent strikes, this many seconds after that operation, or after the start."""
    interrupt: bool = False
    """Use SIGINT, not SIGKILL."""
    again: int = 0
    """Send a second SIGINT after this many operations (or half milliseconds); 0: send one only."""
    power: bool = False
    """Cut the power: what jdpack has not synced may be lost."""


@dataclass
class Ended:
    """How a process ended."""

    killed: bool
    """Or interrupted."""
    stage: str
    """Its stage when it was struck, or when it ended."""
    passed: set[str]
    """All stages it went through."""
    operations: int
    done: int
    """How many things it reported as done."""
    error: str
    """The message of its error; empty if it succeeded or was killed."""


class Watch:
    """What a process shows of itself, in shared memory that outlives it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4096)

    def _get(self, at: int) -> int:
        return int(struct.unpack_from("q", self._memory, at)[0])

    def _set(self, at: int, number: int) -> None:
        struct.pack_into("q", self._memory, at, number)

    operations = property(lambda self: self._get(0), lambda self, n: self._set(0, n))
    done = property(lambda self: self._get(16), lambda self, n: self._set(16, n))

    @property
    def stage(self) -> str:
        """The current stage."""
        return STAGES[self._get(8)]

    @stage.setter
    def stage(self, stage: str) -> None:
        number = STAGES.index(stage)
        self._set(8, number)
        self._set(32, self._get(32) | 1 << number)

    @property
    def passed(self) -> set[str]:
        """All stages so far."""
        return {stage for number, stage in enumerate(STAGES) if self._get(32) >> number & 1}

    @property
    def struck(self) -> str:
        """The stage in which it was struck; empty if it was not."""
        return ("", *STAGES)[self._get(24)]

    def strike(self) -> None:
        """Note that the process is struck now."""
        self._set(24, self._get(8) + 1)

    @property
    def error(self) -> str:
        return self._memory[40:].rstrip(b"\0").decode(errors="replace")

    @error.setter
    def error(self, text: str) -> None:
        data = text.encode()[-4000:]
        self._memory[40 : 40 + len(data)] = data


def run(
    work: Callable[[Watch], object], strike: Strike | None = None, disk: Path | None = None
) -> Ended:
    """Work in a fork, and perhaps kill it. Raises if the fork ends with an error not of jdpack's.

    Args:
        work: what to do.
        strike: when to kill; None: not at all.
        disk: where the process notes which of its data is safe from a power cut.
    """
    watch = Watch()
    heard, told = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        ledgers.entering()
        _child(work, strike or Strike(), watch, told, disk)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.close(told)
    try:
        if strike is not None and strike.delay is not None:
            if strike.at:
                os.read(heard, 1)  # returns when it is there, or when the process has ended
            time.sleep(strike.delay)
            watch.strike()
            # Nobody has waited for it yet, so the pid is still its own.
            os.kill(pid, signal.SIGINT if strike.interrupt else signal.SIGKILL)
            if strike.again:
                time.sleep(0.0005 * strike.again)
                os.kill(pid, signal.SIGINT)
    finally:
        os.close(heard)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ledgers.settled(pid)
    interrupted = strike is not None and strike.interrupt and bool(watch.struck)
    killed = status in (-signal.SIGKILL, _INTERRUPTED) or (interrupted and status == _REFUSED)
    if status not in (0, _REFUSED, _INTERRUPTED, -signal.SIGKILL):
        raise AssertionError(f"a process ended with {status} while {watch.stage}:\n{watch.error}")
    stage = watch.struck if killed else watch.stage
    return Ended(killed, stage, watch.passed, watch.operations, watch.done, watch.error)


def _child(
    work: Callable[[Watch], object], strike: Strike, watch: Watch, told: int, disk: Path | None
) -> None:
    """Work, and end the process. SIGINT is blocked when this begins."""
    try:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = lambda _: None  # Python ignores an interrupt in a destructor
            operations = Operations(strike, watch, told, disk)
            operations.wrap()
            _tell_stages(watch, operations)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            work(watch)
            code = 0
        except JdpackError as error:
            watch.error, code = f"{type(error).__name__}: {error}", _REFUSED
        except KeyboardInterrupt:
            code = _INTERRUPTED
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            operations.leave()
        except BaseException:
            watch.error = traceback.format_exc()
        finally:
            os._exit(code)
    except KeyboardInterrupt:  # the second one
        os._exit(_INTERRUPTED)


def _tell_stages(watch: Watch, operations: Operations) -> None:
    for owner, name, stage in (
        (folder.Output, "create", "making the folder"),
        (account.Account, "reserve", "reserving"),
        (lifecycle.Lifecycle, "_read", "reading"),
        (lifecycle.Lifecycle, "_post_header", "header"),
        (board.Billboard, "mend", "mending"),
        (lifecycle, "run", "rounds"),
        (Combined, "allocate", "allocation"),
        (folder.Output, "write", "allocation"),
        (folder, "write_text", "pages"),
        (account.Account, "finish", "finishing"),
        (account.Account, "cancel", "cancelling"),
        (folder.Output, "remove", "taking back"),
    ):
        _wrap(owner, name, functools.partial(_enter, watch, operations, stage))

    def posting(_: object, record: object) -> None:
        counts = isinstance(record, lines.Release) and record.step.query not in CLOSING
        watch.stage = "rounds" if counts else "closing"

    _wrap(board.Billboard, "post", posting)


def _enter(watch: Watch, operations: Operations, stage: str, *_: Any, **__: Any) -> None:
    watch.stage = stage
    operations.point()  # some stages have no other operation


def _wrap(owner: Any, name: str, before: Callable[..., object]) -> None:
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return plain(*args, **kwargs)

    setattr(owner, name, wrapped)


class Operations:
    """Counts operations on files, and strikes at one."""

    def __init__(self, strike: Strike, watch: Watch, told: int, disk: Path | None) -> None:
        self._strike, self._watch, self._told = strike, watch, told
        self._count, self._disk = 0, Disk.load(disk) if disk is not None else None
        self._disk_path = disk
        self._again = 0

    def leave(self) -> None:
        """Write down what is safe from a power cut."""
        if self._disk is not None and self._disk_path is not None:
            self._disk_path.write_bytes(pickle.dumps(self._disk.durable()))

    def wrap(self) -> None:
        plain_open, plain_fdopen = os.open, os.fdopen
        disk = self._disk

        def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & _CREATES:
                self.point()
            new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
            handle = plain_open(path, flags, *args, **kwargs)
            if disk is not None and kwargs.get("dir_fd") is None:
                disk.opened(handle, path, new)
            return handle

        def synced(handle: int) -> None:  # matters only for a power cut
            self.point()
            if disk is not None:
                disk.synced(handle)

        def fdopened(handle: int, mode: str = "r", buffering: int = -1, **more: Any) -> Any:
            if mode not in ("wb", "r+b"):
                return plain_fdopen(handle, mode, buffering, **more)
            raw = _Raw(handle, mode, self)
            return raw if buffering == 0 else io.BufferedWriter(raw)

        plain_pwrite = os.pwrite

        def pwritten(handle: int, data: bytes, at: int) -> int:
            def torn(part: float) -> None:
                plain_pwrite(
                    handle, data[: max(0, min(len(data) - 1, 1 + int(part * len(data))))], at
                )

            self.point(torn)
            return plain_pwrite(handle, data, at)

        os.open, os.fsync, os.fdopen = opened, synced, fdopened  # type: ignore[assignment]
        os.pwrite = pwritten  # type: ignore[assignment]
        for name in ("mkdir", "rename", "replace", "unlink", "remove", "rmdir", "ftruncate"):
            _wrap(os, name, lambda *_, **__: self.point())
        plain_connect = sqlite3.connect

        def connected(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            db = plain_connect(*args, **{"factory": _Connection, **kwargs})
            db.point = self.point
            return db

        sqlite3.connect = connected  # type: ignore[assignment]

        def executing(_: object, statement: Any, *__: Any, **___: Any) -> None:
            if not str(statement).startswith(("SELECT", "SET ")):
                self.point()

        _wrap(psycopg.Connection, "execute", executing)

    def point(self, torn: Callable[[float], object] | None = None) -> None:
        """Called before every operation: count it, and strike if its turn has come."""
        strike = self._strike
        if self._again:
            self._again -= 1
            if not self._again:
                signal.raise_signal(signal.SIGINT)
        if (strike.stage and strike.stage != self._watch.stage) or (strike.torn and torn is None):
            return
        self._count += 1
        self._watch.operations = self._count
        if self._count != strike.at:
            return
        if strike.delay is not None:
            os.write(self._told, b"!")
            return
        if torn is not None and strike.torn:
            torn(strike.part)
        self._watch.strike()
        if strike.interrupt:
            self._again = strike.again
            signal.raise_signal(signal.SIGINT)
        self.leave()
        os.kill(os.getpid(), signal.SIGKILL)


class _Raw(io.FileIO):
    """A file whose writes are operations."""

    def __init__(self, handle: int, mode: str, operations: Operations) -> None:
        super().__init__(handle, mode)
        self._operations = operations

    def write(self, data: Any) -> int:
        def torn(part: float) -> None:
            size = memoryview(data).nbytes
            super(_Raw, self).write(bytes(data)[: max(0, min(size - 1, 1 + int(part * size)))])

        self._operations.point(torn)
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self._operations.point()
        return super().truncate(size)


class _Connection(sqlite3.Connection):
    """A connection whose statements are operations once it writes."""

    point: Callable[[], None]
    writes = False

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        self.writes = self.writes or sql == "BEGIN IMMEDIATE"
        if self.writes and ("PRAGMA" not in sql or "=" in sql) and "SELECT" not in sql[:6]:
            self.point()
        return super().execute(sql, *args)


def at_random(
    rng: random.Random, seconds: float, operations: int, stages: tuple[str, ...] = RUN_STAGES
) -> Strike:
    """A random strike at a process that takes about this many seconds and operations."""
    strike = _moment(rng, seconds, operations, stages)
    if rng.random() < 0.8:
        return strike
    again = rng.choice([0, 0, rng.randint(1, 12)])
    return replace(strike, interrupt=True, again=again, torn=False, power=False)


def _moment(rng: random.Random, seconds: float, operations: int, stages: tuple[str, ...]) -> Strike:
    power, part = rng.random() < 0.5, rng.choice([0.0, rng.random(), 1.0])
    match rng.randrange(6):
        case 0:
            return Strike(delay=rng.uniform(0.0, 1.1 * seconds))
        case 1:
            delay = rng.expovariate(1 / 0.0005)
            return Strike(at=rng.randint(1, operations), delay=delay)
        case 2:
            return Strike(at=rng.randint(1, operations), power=power)
        case 3:
            return Strike(at=rng.randint(1, operations // 4), torn=True, part=part, power=power)
    stage = rng.choice(stages)
    at = 1 if stage == "reading" else rng.randint(1, 8)
    delay = rng.expovariate(1 / 0.002) if stage == "reading" or rng.random() < 0.5 else None
    return Strike(at=at, stage=stage, delay=delay, power=power and delay is None)
