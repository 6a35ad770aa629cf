"""Public: what the server reads from an output folder: its lines, and whether a run is working."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jdpack.storage import hash_chain

MOST = 2**28
"""The server shows billboards of at most this many bytes."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Version = tuple[int, int, int, int]
"""Identifies the state of a file: it changes whenever the file does."""


@dataclass(frozen=True)
class Folder:
    """An output folder. If `public` or `private` in it is a link, it is not followed."""

    path: Path

    def version(self) -> Version:
        """The version of the billboard; OSError if there is none."""
        with self._billboard() as handle:
            return _version(handle)

    def lines(self) -> tuple[Version, str]:
        """The whole lines of the billboard; OSError if there is none, or if it is not ASCII.

        A last line that is still being posted, or did not reach the disk completely, is left out.
        """
        with self._billboard() as handle:
            version, size = _version(handle), os.fstat(handle).st_size
            if size > MOST:
                raise OSError(errno.EFBIG, f"it has more than {MOST:,} bytes")
            with os.fdopen(handle, "rb", closefd=False) as file:
                data = file.read(size)
        try:
            text = data[: data.rfind(b"\n") + 1].decode("ascii")
        except UnicodeDecodeError:
            raise OSError(errno.EINVAL, "it is not plain ASCII") from None
        last = text[text.rfind("\n", 0, -1) + 1 : -1]
        return version, text if hash_chain.is_sealed(last) else text[: len(text) - len(last) - 1]

    def at_work(self) -> bool | None:
        """Whether a run holds the lock of the private folder; None if unknown.

        This takes a shared lock and releases it at once. A run that holds the lock does not
        notice, and a run that wants it tries again (`jdpack.run.run_file`).
        """
        try:
            handle = os.open(self.path / "private", _FOLDER)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        finally:
            os.close(handle)  # releases the lock
        return False

    @contextlib.contextmanager
    def _billboard(self) -> Iterator[int]:
        with contextlib.ExitStack() as opened:
            folder = os.open(self.path / "public", _FOLDER)
            opened.callback(os.close, folder)
            handle = os.open("billboard.jsonl", _FILE, dir_fd=folder)
            opened.callback(os.close, handle)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            yield handle


def _version(handle: int) -> Version:
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
