"""Private: encoded agents on disk, mapped into memory.

A store is a folder with one subfolder per set of encoded records. Its name is a key: a hash of the
records, the market's bounds and the encoding. The subfolder holds

    00000.codes ...   the arrays of some parts; each file has the codes of some pieces of input
    index.json        where each array is, with a checksum for every part

All of it is as private as the records (mode 0700). A subfolder is written under another name and
renamed once it is complete and on disk. Opening it checks the length and the checksum of every part
before any kernel sees it; damaged codes are deleted and encoded again.

Codes that need not be kept are in files without a name. They disappear with the process that maps
them, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import mmap
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from jdpack.errors import OutputError
from jdpack.records.arrow import texts_between, to_arrow, to_numpy
from jdpack.records.codes import BLOCK, Part
from jdpack.records.encode import Codes, Tally
from jdpack.records.ids import texts
from jdpack.records.threads import Threads
from jdpack.storage.files import sync_folder

_FORMAT = 5
"""Increase it whenever the same records would be encoded or written differently."""
_ALIGN = 64
_FILES = 256  # the most in a store: every mapped file counts as an open file of the process

P = TypeVar("P")
Keep = Callable[[Part], None]


class Store:
    """A folder of encoded records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _refusal(folder, error) from None

    def codes(
        self,
        key: str,
        pieces: Sequence[P],
        encode: Callable[[P, Keep], Tally],
        threads: Threads,
    ) -> list[Codes]:
        """The parts of every piece, mapped. Encodes them first if the store does not have them."""
        name = hashlib.sha256(f"{_FORMAT} {BLOCK} {key}".encode()).hexdigest()[:32]
        place = self.folder / name
        try:
            with self._locked(name):
                self._sweep()
                found = _opened(place, threads)
                if found is not None:
                    return found
                making = place.with_suffix(".part")
                shutil.rmtree(making, ignore_errors=True)  # left by a run that was killed
                shutil.rmtree(place, ignore_errors=True)  # damaged
                making.mkdir(mode=0o700)
                try:
                    work = [(making / f"{i:05d}.codes", own) for i, own in enumerate(_cut(pieces))]
                    index = threads.map(lambda job: _written(*job, encode), work)
                    _write_index(making / "index.json", index)
                    sync_folder(making)
                    making.rename(place)
                    sync_folder(self.folder)
                finally:
                    shutil.rmtree(making, ignore_errors=True)
                found = _opened(place, threads)
        except OSError as error:
            raise _refusal(self.folder, error) from None
        if found is None:
            raise OutputError(f"the codes in {str(place)!r} are damaged right after writing")
        return found

    def unnamed(
        self, pieces: Sequence[P], encode: Callable[[P, Keep], Tally], threads: Threads
    ) -> list[Codes]:
        """The parts of every piece, encoded and mapped; deleted when they are no longer used."""

        def one(own: Sequence[P]) -> list[Codes]:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                described = _encoded(file, own, encode)
                file.flush()
                found = _mapped(file, described)
            if found is None:
                raise OutputError(f"codes in {str(self.folder)!r} are damaged right after writing")
            return found

        try:
            return [codes for some in threads.map(one, _cut(pieces)) for codes in some]
        except OSError as error:
            raise _refusal(self.folder, error) from None

    def scratch(self, rows: int) -> NDArray[np.uint32]:
        """Space on disk for a share of every row; freed with the array."""
        size = max(4 * rows, 1)
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # raises now if the disk is full
                return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint32, rows)
        except OSError as error:
            raise _refusal(self.folder, error) from None

    @contextmanager
    def _locked(self, name: str, wait: bool = True) -> Iterator[None]:
        """Only one process at a time encodes the same records; others wait, then find them."""
        with open(self.folder / f"{name}.lock", "w", opener=_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def _sweep(self) -> None:
        """Remove unfinished codes of killed processes, whose locks nobody holds."""
        for half in self.folder.glob("*.part"):
            if re.fullmatch("[0-9a-f]{32}", half.stem):
                with suppress(OSError), self._locked(half.stem, wait=False):
                    shutil.rmtree(half, ignore_errors=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _refusal(folder: Path, error: OSError) -> OutputError:
    """The error for a folder of codes, with a hint."""
    what, hint = "write codes to", "choose another folder with --store"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = f"free some space there or {hint}"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        what, hint = "read and write codes in", f"get permission or {hint}"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        hint = f"a run needs about {_FILES + 100} open files: raise the limit with ulimit -n"
    return OutputError(
        f"cannot {what} {str(folder)!r}: {error.strerror or error}",
        f"{hint}, then run again or resume; no partial file is kept",
    )


# --- writing ------------------------------------------------------------------------------


def _cut(pieces: Sequence[P]) -> list[Sequence[P]]:
    """The pieces that go into each file."""
    count, n = min(_FILES, len(pieces)), len(pieces)
    return [pieces[i * n // count : (i + 1) * n // count] for i in range(count)]


def _written(path: Path, pieces: Sequence[P], encode: Callable[[P, Keep], Tally]) -> dict[str, Any]:
    """Encode some pieces to a new file; returns its entry in the index."""
    with open(path, "xb", opener=_private) as file:
        described = _encoded(file, pieces, encode)
        file.flush()
        os.fsync(file.fileno())
        return described | {"file": path.name}


def _encoded(
    file: IO[bytes], pieces: Sequence[P], encode: Callable[[P, Keep], Tally]
) -> dict[str, Any]:
    """Encode some pieces to a file; returns a description of its content."""
    described = []
    for piece in pieces:
        parts: list[dict[str, Any]] = []

        def keep(part: Part, parts: list[dict[str, Any]] = parts) -> None:
            parts.append(_write_part(file, part))

        tally = encode(piece, keep)
        described.append({"tally": asdict(tally), "parts": parts})
    return {"size": file.tell(), "pieces": described}


def _write_part(file: IO[bytes], part: Part) -> dict[str, Any]:
    arrays, checksum = {}, 0
    for name, array in _arrays(part).items():
        file.write(bytes(-file.tell() % _ALIGN))
        arrays[name] = [array.dtype.str, list(array.shape), file.tell()]
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        file.write(data)
        checksum = zlib.crc32(data, checksum)
    return {"first": part.first, "crc32": checksum, "arrays": arrays}


def _arrays(part: Part) -> dict[str, NDArray[Any]]:
    """The arrays that make up a part."""
    whole = {f.name: getattr(part, f.name) for f in fields(Part)}
    arrays = {name: array for name, array in whole.items() if isinstance(array, np.ndarray)}
    if part.ids is not None and part.ids.type == "int64":
        arrays["ids"] = to_numpy(part.ids)
    elif part.ids is not None:
        data, ends = texts(part.ids)
        arrays |= {"id_text": data[ends[0] : ends[-1]], "id_ends": ends - ends[0]}
    for name, column in (("request", part.requests), ("option", part.options)):
        if column is not None:
            data, ends = texts(column)
            arrays |= {f"{name}_text": data[ends[0] : ends[-1]], f"{name}_ends": ends - ends[0]}
    return arrays


def _write_index(path: Path, index: list[dict[str, Any]]) -> None:
    text = json.dumps(index) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    with open(path, "x", opener=_private) as file:
        file.write(f"{digest}\n{text}")
        file.flush()
        os.fsync(file.fileno())


# --- reading ------------------------------------------------------------------------------


def _opened(place: Path, threads: Threads) -> list[Codes] | None:
    """The codes in a folder, or None if there are none or they are damaged."""
    try:
        digest, _, text = (place / "index.json").read_bytes().partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() != digest:
            return None
        files = threads.map(lambda entry: _found(place, entry), json.loads(text))
    except FileNotFoundError:
        return None
    whole = [file for file in files if file is not None]
    return [codes for file in whole for codes in file] if len(whole) == len(files) else None


def _found(place: Path, described: dict[str, Any]) -> list[Codes] | None:
    with open(place / described["file"], "rb") as file:
        return _mapped(file, described)


def _mapped(file: IO[bytes], described: dict[str, Any]) -> list[Codes] | None:
    """The pieces in a file, with their bytes checked; None if any is damaged."""
    size = described["size"]
    if os.fstat(file.fileno()).st_size != size:
        return None
    # Copy-on-write, because kernels are compiled for writable arrays. Nobody writes.
    whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size else b""
    found: list[Codes] = []
    for piece in described["pieces"]:
        parts: list[Part] = []
        for part in piece["parts"]:
            checked = _checked(whole, part)
            if checked is None:
                return None
            parts.append(checked)
        found.append((parts, Tally(**piece["tally"])))
    return found


def _checked(whole: mmap.mmap | bytes, described: dict[str, Any]) -> Part | None:
    """One part from a file; None if it is damaged."""
    arrays, checksum = {}, 0
    for name, (kind, shape, start) in described["arrays"].items():
        count = int(np.prod(shape))
        array = np.frombuffer(whole, kind, count, start) if count else np.empty(0, kind)
        checksum = zlib.crc32(array.view(np.uint8).data, checksum)
        arrays[name] = array.reshape(shape)
    return _part(arrays, described["first"]) if checksum == described["crc32"] else None


def _part(arrays: dict[str, NDArray[Any]], first: int) -> Part:
    ids = None
    if "ids" in arrays:
        ids = to_arrow(arrays.pop("ids"))
    elif "id_ends" in arrays:
        ids = texts_between(arrays.pop("id_ends"), arrays.pop("id_text"))
    names = {
        field: texts_between(arrays.pop(f"{name}_ends"), arrays.pop(f"{name}_text"))
        for field, name in (("requests", "request"), ("options", "option"))
        if f"{name}_ends" in arrays
    }
    return Part(**arrays, ids=ids, **names, first=first)
