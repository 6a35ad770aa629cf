"""Private: what a resume needs of a run beside its billboard, in out/private/run.json.

It is written before the billboard begins, and its lock is held while the run goes on: two processes
never go on with the same run. It holds the coins' seed, which is a secret until the billboard shows
it, where the records are, and their digest (`jdpack.digest`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jdpack.billboard import Seed, sync_folder
from jdpack.errors import OutputError

_VERSION = 1


@dataclass(frozen=True)
class RunFile:
    """What is fixed when a run begins."""

    agents: list[str] | None
    """Where the records are; None if they were given in memory."""
    clamp: bool
    engine: dict[str, Any]
    seed: int | None
    """Of the noise, in experiments."""
    coins: str
    """The coins' seed, in hexadecimal."""
    digest: int
    """Of the records."""
    header: str
    """The hash of the billboard's first line."""

    @property
    def coin_seed(self) -> Seed:
        return Seed(bytes.fromhex(self.coins))

    def write(self, path: Path) -> None:
        """Write a new file; it is on disk when this returns."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "w") as file:
            json.dump({"version": _VERSION, **asdict(self)}, file)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)

    @classmethod
    def read(cls, path: Path) -> RunFile:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(data, dict) or data.pop("version", None) != _VERSION:
                raise ValueError("it is not of this version of jdpack")
            run = cls(**data)
            run.coin_seed  # noqa: B018 (raises if it is no seed)
        except (OSError, TypeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise OutputError(
                f"cannot resume from {str(path)!r}: {reason}",
                "give the output folder of a run that solve began",
            ) from None
        return run


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a run; refuse, or wait, if another process does."""
    with contextlib.ExitStack() as held:
        try:
            file = held.enter_context(path.open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise OutputError(
                f"another process is at work on {str(path.parent.parent)!r}",
                "wait until it ends",
            ) from None
        except OSError as error:
            raise OutputError(
                f"cannot lock the run {str(path)!r}: {error.strerror}",
                "it must be a file that you may read, on a disk that knows locks",
            ) from None
        yield
