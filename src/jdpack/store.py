"""Private: encoded agents on disk, mapped into memory when they are needed.

A store is a folder with a folder for each set of records that was encoded, named by its key: a
hash of what the records were, of the market's bounds and of the way to encode them. It holds

    00000.codes ...   the arrays of some parts one after the other, a file for each piece of input
    index.json        which arrays stand where, with a checksum for every part

All of it is as private as the records (mode 0700). It is made under another name, and renamed when
it is whole and on disk: what stands under a key is complete. Opening it checks the length and the
checksum of every part before any kernel sees it; what is damaged is thrown away and made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jdpack.agents import BLOCK, Part
from jdpack.billboard import sync_folder
from jdpack.buffers import to_arrow, to_numpy
from jdpack.encoding import Codes, Tally
from jdpack.errors import OutputError
from jdpack.ids import texts
from jdpack.threads import Threads

_FORMAT = 1
_ALIGN = 64

P = TypeVar("P")
Keep = Callable[[Part], None]


class Store:
    """A folder of encoded records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _full(folder, error) from None

    def codes(
        self,
        key: str,
        pieces: Sequence[P],
        encode: Callable[[P, Keep], Tally],
        threads: Threads,
    ) -> list[Codes]:
        """The parts of every piece, mapped; encoded first if the store does not have them."""
        name = hashlib.sha256(f"{_FORMAT} {BLOCK} {key}".encode()).hexdigest()[:32]
        place = self.folder / name
        try:
            with self._locked(name):
                found = _opened(place, threads)
                if found is not None:
                    return found
                making = place.with_suffix(".part")
                shutil.rmtree(making, ignore_errors=True)  # of a run that was killed
                shutil.rmtree(place, ignore_errors=True)  # damaged
                making.mkdir(mode=0o700)
                try:
                    work = [(making / f"{i:05d}.codes", piece) for i, piece in enumerate(pieces)]
                    index = threads.map(lambda job: _encoded(*job, encode), work)
                    _write_index(making / "index.json", index)
                    sync_folder(making)
                    making.rename(place)
                    sync_folder(self.folder)
                finally:
                    shutil.rmtree(making, ignore_errors=True)
                found = _opened(place, threads)
        except OSError as error:
            raise _full(self.folder, error) from None
        if found is None:
            raise OutputError(f"the codes in {str(place)!r} are damaged as soon as written")
        return found

    def scratch(self, rows: int) -> NDArray[np.uint32]:
        """Room on disk for a share of every row; gone when the array is."""
        size = max(4 * rows, 1)
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk shows now, as an error
                return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint32, rows)
        except OSError as error:
            raise _full(self.folder, error) from None

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """One process at a time encodes the same records; others wait and find them."""
        with open(self.folder / f"{name}.lock", "w", opener=_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _full(folder: Path, error: OSError) -> OutputError:
    return OutputError(
        f"cannot write codes to {str(folder)!r}: {error.strerror or error}",
        "make room there or choose another folder with --store, then run again or resume; "
        "nothing half written is kept",
    )


# --- writing ------------------------------------------------------------------------------


def _encoded(path: Path, piece: P, encode: Callable[[P, Keep], Tally]) -> dict[str, Any]:
    """Encode a piece into a file of its own; what the index says of it."""
    parts: list[dict[str, Any]] = []
    with open(path, "xb", opener=_private) as file:
        tally = encode(piece, lambda part: parts.append(_write_part(file, part)))
        file.flush()
        os.fsync(file.fileno())
        return {"file": path.name, "size": file.tell(), "tally": asdict(tally), "parts": parts}


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
    """The codes that stand in a folder, or None if there are none or they are damaged."""
    try:
        digest, _, text = (place / "index.json").read_bytes().partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() != digest:
            return None
        pieces = threads.map(lambda entry: _mapped(place, entry), json.loads(text))
    except FileNotFoundError:
        return None
    whole = [piece for piece in pieces if piece is not None]
    return whole if len(whole) == len(pieces) else None


def _mapped(place: Path, entry: dict[str, Any]) -> Codes | None:
    """The parts of one file, once their bytes are checked."""
    parts: list[Part] = []
    with open(place / entry["file"], "rb") as file:
        if os.fstat(file.fileno()).st_size != entry["size"]:
            return None
        # Private and writable, for kernels are compiled for such arrays; nobody writes.
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if entry["size"] else b""
    for described in entry["parts"]:
        arrays, checksum = {}, 0
        for name, (kind, shape, start) in described["arrays"].items():
            count = int(np.prod(shape))
            array = np.frombuffer(whole, kind, count, start) if count else np.empty(0, kind)
            checksum = zlib.crc32(array.view(np.uint8).data, checksum)
            arrays[name] = array.reshape(shape)
        if checksum != described["crc32"]:
            return None
        parts.append(_part(arrays, described["first"]))
    return parts, Tally(**entry["tally"])


def _part(arrays: dict[str, NDArray[Any]], first: int) -> Part:
    ids = None
    if "ids" in arrays:
        ids = to_arrow(arrays.pop("ids"))
    elif "id_ends" in arrays:
        ends, data = arrays.pop("id_ends"), arrays.pop("id_text")
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
        ids = pa.Array.from_buffers(pa.large_string(), len(ends) - 1, buffers)
    return Part(**arrays, ids=ids, first=first)
