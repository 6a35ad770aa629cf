"""Public: the file of a billboard, and the journal that protects it from torn lines.

Every line holds noise. Once somebody may have read part of a line, its noise must not be drawn
again. So a run first writes each line to a journal among its private files, and then posts it. If
the run is interrupted while posting, resuming it posts exactly the same line. A line that is
incomplete in the journal was never posted, not even in part.

If the run has a ledger, the ledger notes the line between the two steps. It refuses the line if
another process or another copy of the folder has posted in the meantime.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from jdpack.errors import BillboardError, OutputError
from jdpack.storage import hash_chain
from jdpack.storage.files import read_regular, sync_folder

_MOST = 2**32  # more bytes than any billboard has

Note = Callable[[str], object]
"""Takes the hash of a line that holds noise, before the line is public."""


class BoardFile:
    """An open billboard, which only grows, and its journal if it has one."""

    def __init__(
        self, file: IO[bytes], journal: IO[bytes] | None, posted: str = "", missing: str = ""
    ) -> None:
        self._file, self._journal = file, journal
        self._posted, self._missing = posted, missing
        self.note: Note | None = None

    @property
    def text(self) -> str:
        """The complete lines that the file had when it was opened, and the journal's."""
        return self._posted + self._missing

    @property
    def drawn(self) -> bool:
        """Whether the last of these lines was only in the journal."""
        return bool(self._missing)

    @classmethod
    def make(cls, path: Path, journal: Path | None) -> BoardFile:
        """Make the file. It must not exist yet; with a journal, it must exist and is emptied."""
        try:
            # O_EXCL never follows a link and never overwrites.
            flags = os.O_CREAT | os.O_EXCL if journal is None else os.O_TRUNC | os.O_NOFOLLOW
            handle = os.open(path, os.O_WRONLY | flags, 0o644)
        except OSError as error:
            raise OutputError(
                f"cannot make the billboard {str(path)!r}: {error.strerror}",
                "a billboard is never overwritten; choose a path that does not exist yet",
            ) from None
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(os.fdopen(handle, "wb", buffering=0))
            kept = None
            try:
                if journal is not None:
                    kept = opened.enter_context(_open(journal, os.O_CREAT | os.O_TRUNC))
                for new in {path, journal or path}:
                    sync_folder(new.parent)
            except OSError as error:
                if journal is None:
                    path.unlink(missing_ok=True)
                raise OutputError(
                    f"cannot make the billboard {str(path)!r}: {error.strerror}",
                    "nothing is spent: choose a folder that you may read and write",
                ) from None
            opened.pop_all()
            return cls(file, kept)

    @classmethod
    def reopen(cls, path: Path, journal: Path) -> BoardFile:
        """Open the file of an interrupted run. Call `mend` before appending.

        `text` has the complete lines. It includes the journal's line if that was to come next, or
        was damaged while it was posted. A billboard that has lost posted lines is refused.
        """
        with contextlib.ExitStack() as opened:
            try:
                file = opened.enter_context(_open(path))
                kept = opened.enter_context(_open(journal))
                data, written = file.read(), _line_of(kept)
            except OSError as error:
                raise BillboardError(
                    f"cannot open {error.filename!r} of the run: {error.strerror}", "put it back"
                ) from None
            lines = _decoded(data[: data.rfind(b"\n") + 1], path).split("\n")[:-1]
            if len(lines) > 1 and not os.fstat(kept.fileno()).st_size:
                raise lost()  # every posted line passed through the journal, which is never emptied
            if written is not None and lines and not hash_chain.is_sealed(lines[-1]):
                lines.pop()  # its newline reached the disk before all of its text
            posted, missing = "".join(line + "\n" for line in lines), ""
            if written is not None and (not lines or lines[-1] != written):
                if not lines or not hash_chain.follows(written, lines[-1]):
                    raise lost()
                missing = written + "\n"
            opened.pop_all()
            return cls(file, kept, posted, missing)

    def mend(self) -> None:
        """Make the file equal to `text`."""
        sound, missing = len(self._posted.encode()), self._missing.encode()
        try:
            if missing and self._journal is not None:  # it may not have been synced before the kill
                os.fsync(self._journal.fileno())
                self._tell(self._missing[:-1])
            self._file.truncate(sound)
            self._file.seek(sound)
            if self._file.write(missing) < len(missing):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _cannot_write(error, self._posted.count("\n") - 1) from None

    def append(self, line: str, releases: int) -> None:
        """Post a whole line. If it does not fit on the disk, no byte of it stays."""
        data, written = line.encode() + b"\n", 0
        end = os.fstat(self._file.fileno()).st_size
        try:
            if self._journal is not None and end > 0:  # the header holds no noise
                _keep(self._journal, data)
                self._tell(line)
            written = self._file.write(data)
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            if written < len(data):  # a complete line stays: it may have been read already
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file.fileno(), end)
            raise _cannot_write(error, releases) from None

    def _tell(self, line: str) -> None:
        if self.note is not None:
            self.note(hash_chain.hash_of(line))

    def close(self) -> None:
        self._file.close()
        if self._journal is not None:
            self._journal.close()


def read(path: str | Path) -> str:
    """The text of a billboard."""
    try:
        data = read_regular(path, _MOST)
    except OSError as error:
        raise BillboardError(
            f"cannot read billboard {str(path)!r}: {error.strerror or error}", _inside(Path(path))
        ) from None
    for start, kind in _OTHERS.items():
        if data.lstrip()[: len(start)].lower() == start:
            raise BillboardError(
                f"{str(path)!r} is {kind}, not a billboard",
                "the billboard is billboard.jsonl in the folder public of a run",
            )
    return _decoded(data, path)


_OTHERS = {b"<!doctype": "a page", b"<html": "a page", b"par1": "a Parquet file"}
"""How files begin that people may give instead of a billboard."""


def _inside(folder: Path) -> str:
    """A hint for somebody who gives the folder of a billboard."""
    with contextlib.suppress(OSError):  # such as a name that is too long
        for inside in (folder / "public" / "billboard.jsonl", folder / "billboard.jsonl"):
            if inside.is_file():
                return f"give its billboard: {inside}"
    return ""


def first_line(path: Path, journal: Path) -> str | None:
    """The header of a run; None if the run has not begun, so that nothing is spent."""
    try:
        first, end, rest = read(path).partition("\n")
    except BillboardError as error:
        raise BillboardError(error.message, "put it back") from None
    if rest or (end and hash_chain.is_sealed(first)):
        return first
    if journal.exists() and journal.stat().st_size:
        raise lost()
    return None


def _open(path: Path, flags: int = 0) -> IO[bytes]:
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    return os.fdopen(handle, "r+b", buffering=0)


def _keep(journal: IO[bytes], data: bytes) -> None:
    """Overwrite the journal's line, which is posted by now. It is on disk when this returns."""
    journal.seek(0)
    if journal.write(data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    journal.truncate(len(data))
    os.fsync(journal.fileno())


def _line_of(journal: IO[bytes]) -> str | None:
    """The line in a journal, if it is complete."""
    data = journal.read()
    if not data.endswith(b"\n") or not data.isascii():
        return None
    line = data[:-1].decode()
    return line if hash_chain.is_sealed(line) else None


def _decoded(data: bytes, path: str | Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BillboardError(f"cannot read billboard {str(path)!r}: {error}") from None


def lost() -> BillboardError:
    """The refusal of a billboard whose noise would be drawn again."""
    return BillboardError(
        "the billboard lacks lines that were posted",
        "put back the whole billboard: noise is never drawn again for a posted line",
    )


def _cannot_write(error: OSError, releases: int) -> OutputError:
    return OutputError(
        f"cannot write the billboard: {error.strerror}",
        f"the cost of its {releases} releases is spent, and nothing more: free some disk space, "
        "then run `jdpack resume`",
    )
