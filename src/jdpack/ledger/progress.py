"""Public: how far a run has come. Each run under way has a small file beside its ledger.

The file has the hash of every line that holds noise, as 64 hexadecimal digits and a newline, and
each is on disk before its line is public. In the ledger's own file, a line would cost four syncs
instead of one. The ledger's `begin` entry follows the first hash, so a lost file is noticed. The
process that works on the run holds the lock of the file, which is removed when the run is over.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from jdpack.errors import LedgerError
from jdpack.storage.files import sync_folder, take_lock

_SIZE = 65  # a hash and its newline


class ProgressFile:
    """The file of a run."""

    def __init__(self, ledger: Path, run: str) -> None:
        self.run = run
        self.path = ledger.with_name(f"run-{hashlib.sha256(run.encode()).hexdigest()[:32]}.heads")

    def __str__(self) -> str:
        return str(self.path)

    @property
    def head(self) -> str | None:
        """The last hash, or None."""
        try:
            with self._open(os.O_RDONLY) as handle:
                end = self._sound(handle)
                return os.pread(handle, _SIZE - 1, end - _SIZE).decode() if end else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from None

    def note(self, head: str, first: bool = False) -> None:
        """Append a hash, or start over with it; it is on disk when this returns."""
        try:
            with self._open(os.O_RDWR | os.O_CREAT) as handle:
                end = 0 if first else self._sound(handle)
                if os.fstat(handle).st_size > end:
                    os.ftruncate(handle, end)
                    os.fsync(handle)
                if os.pwrite(handle, f"{head}\n".encode(), end) < _SIZE:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(handle)
            if first:
                sync_folder(self.path.parent)
        except OSError as error:
            raise self._unusable(error) from None

    @staticmethod
    def _sound(handle: int) -> int:
        """Where the last whole hash ends.

        A power cut may damage the hash that was being written, whose line is not public yet, but
        none before it.
        """
        size = os.fstat(handle).st_size
        for whole in (size // _SIZE, (size - 1) // _SIZE):
            if whole <= 0:
                return 0
            last = os.pread(handle, _SIZE, (whole - 1) * _SIZE)
            if re.fullmatch(rb"[0-9a-f]{64}\n", last) is not None:
                return whole * _SIZE
        raise OSError(errno.EIO, "it is damaged")

    def sync(self) -> None:
        """Put on disk what an earlier process wrote."""
        try:
            with self._open(os.O_RDWR) as handle:
                os.fsync(handle)
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._unusable(error) from None

    def remove(self) -> None:
        """Remove the file: the run is over, or never began."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the run; refuse if another process holds it, from any folder."""
        with contextlib.ExitStack() as held:
            try:
                handle = self._locked(held)
            except BlockingIOError:
                raise LedgerError(
                    f"another process is working on run {self.run!r}, in this folder or in a copy "
                    "of it",
                    "wait until it ends; nothing was drawn",
                ) from None
            except OSError as error:
                raise self._unusable(error) from None
            try:
                yield
            finally:
                if os.fstat(handle).st_size == 0:
                    self.remove()

    def _locked(self, held: contextlib.ExitStack) -> int:
        while True:
            handle = held.enter_context(self._open(os.O_RDWR | os.O_CREAT))
            take_lock(handle)
            with contextlib.suppress(FileNotFoundError):  # the process that held it removed it
                if os.path.samestat(os.fstat(handle), os.stat(self.path)):
                    return handle

    @contextlib.contextmanager
    def _open(self, flags: int) -> Iterator[int]:
        handle = os.open(self.path, flags | os.O_NOFOLLOW, 0o600)
        try:
            yield handle
        finally:
            os.close(handle)

    def _unusable(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"cannot use {str(self.path)!r}, which says how far a run has come: {error.strerror}",
            "it is beside the ledger: you must be able to write to that folder, and its disk "
            "needs free space and must support locks",
        )
