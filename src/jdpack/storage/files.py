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
    """The bytes of a file, at most so many; OSError if there are more, or if it is no file.

    A pipe is not waited for, and no device is read without end. Of a file that grows meanwhile,
    what was there at first.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        return file.read(found.st_size)


def write_whole(path: Path, mode: int, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under a name that nobody else has, then move it into place.

    What an earlier writer left half done is removed; should it still be at work, it fails.
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
    """Write a text file, whole."""
    write_whole(path, mode, lambda file: file.write(text.encode()))


def sha256(path: Path) -> str:
    """The hash of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def take_lock(handle: int) -> None:
    """Lock an open file or folder, or raise BlockingIOError if another process holds it.

    Whoever only looks whether a run is at work holds a lock for a moment, so this tries again.
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
    """Make new names in a folder outlast a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
