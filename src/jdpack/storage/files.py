"""Public: read a regular file up to a limit; write a file whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO


def read_regular(path: str | Path, most: int) -> bytes:
    """The bytes of a regular file; OSError if it has more than `most`, or is not a regular file.

    This never waits for a pipe and never reads a device. If the file grows meanwhile, it returns
    the bytes that were there at first.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        return file.read(found.st_size)


def write_whole(path: Path, mode: int, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under a unique name, then move it into place.

    Unfinished files of earlier writers are removed. A writer that is still at work then fails.
    """
    for left in path.parent.glob(f".{path.name}.*.part"):
        left.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(".part", f".{path.name}.", path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        part.rename(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, mode: int, text: str) -> None:
    """`write_whole` for text."""
    write_whole(path, mode, lambda file: file.write(text.encode()))


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def take_lock(handle: int) -> None:
    """Lock an open file or folder, or raise BlockingIOError if another process holds it.

    A process that only checks whether a run is active holds the lock for a moment, so this retries.
    """
    for left in reversed(range(4)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(0.05)
        else:
            break


def sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
