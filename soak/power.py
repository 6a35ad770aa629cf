"""What a power cut leaves of a run: everything that was synced, and by chance some of the rest.

A file keeps what it held at its last fsync. Of later writes any part may survive: none, all, or a
beginning, followed by zeros or by the old content. A folder keeps the names it had at its last
fsync; each later change may have reached the disk or not.

A run is its folder, and the file beside the ledger that says how far it has come. The ledger's own
file is not followed: syncing it and rolling it back is up to SQLite.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_open, _close = os.open, os.close


@dataclass
class Durable:
    """What is safe on disk."""

    contents: dict[int, bytes] = field(default_factory=dict)
    """The bytes of each file, by inode."""
    names: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each folder, the names in it and their inodes."""


class Disk:
    """Tracks what becomes safe while a process works."""

    def __init__(self, safe: Durable) -> None:
        self._safe = safe
        self._paths: dict[int, str] = {}

    @classmethod
    def load(cls, path: Path) -> Disk:
        return cls(pickle.loads(path.read_bytes()))

    def opened(self, handle: int, path: Any, new: bool) -> None:
        self._paths[handle] = os.path.abspath(os.fspath(path))
        if new:  # a deleted file may have had the same inode
            self._safe.contents.pop(os.fstat(handle).st_ino, None)

    def synced(self, handle: int) -> None:
        path = self._paths.get(handle)
        if path is None:
            return
        if os.path.isdir(path):
            self._safe.names[path] = names(path)
        else:
            self._safe.contents[os.fstat(handle).st_ino] = content(path)

    def durable(self) -> Durable:
        return self._safe


def names(folder: str) -> dict[str, int]:
    """The names in a folder, and their inodes."""
    return {entry.name: entry.inode() for entry in os.scandir(folder)}


def content(path: str | Path) -> bytes:
    """The bytes of a file, read without the functions that `strike` wraps."""
    handle = _open(path, os.O_RDONLY)
    try:
        return b"".join(iter(lambda: os.read(handle, 2**20), b""))
    finally:
        _close(handle)


def as_it_is(folder: Path, heads: Path | None = None) -> Durable:
    """Everything there is of a run, as if it were synced; `heads` says how far it has come."""
    safe = Durable()
    for path in (folder, heads or folder):
        top = str(path.parent.absolute())
        there = names(top)
        safe.names[top] = {path.name: there[path.name]} if path.name in there else {}
    if heads is not None and heads.exists():
        safe.contents[heads.stat().st_ino] = content(heads)
    for at, _, files in os.walk(folder.absolute()):
        safe.names[at] = names(at)
        for name in files:
            path = os.path.join(at, name)
            safe.contents[os.stat(path).st_ino] = content(path)
    return safe


def cut(folder: Path, safe: Durable, rng: random.Random, heads: Path | None = None) -> None:
    """Lose some of what was not safe, by chance."""
    top = folder.parent.absolute()
    if heads is not None:
        known, now = safe.names.get(str(heads.parent.absolute()), {}), names(str(heads.parent))
        _lose(heads, known.get(heads.name), now.get(heads.name), safe, rng)
    if not folder.exists():
        return
    if folder.name not in safe.names[str(top)] and rng.random() < 0.5:
        shutil.rmtree(folder)
        return
    _cut_inside(folder.absolute(), safe, rng)
    for inside in sorted(path for path in folder.absolute().iterdir() if path.is_dir()):
        _cut_inside(inside, safe, rng)


def _cut_inside(folder: Path, safe: Durable, rng: random.Random) -> None:
    known, now = safe.names.get(str(folder), {}), names(str(folder))
    for name in sorted({*known, *now}):
        _lose(folder / name, known.get(name), now.get(name), safe, rng)


def _lose(
    path: Path, before: int | None, now: int | None, safe: Durable, rng: random.Random
) -> None:
    if before != now and rng.random() < 0.5:  # the change of names is lost
        if now is not None:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if before is not None and before in safe.contents:
            path.write_bytes(safe.contents[before])
            path.chmod(0o644 if path.parent.name == "public" else 0o600)
        return
    if now is None or path.is_dir():
        return
    old, new = safe.contents.get(now, b""), content(path)
    if old != new:
        path.write_bytes(_mixed(old, new, rng))


def _mixed(old: bytes, new: bytes, rng: random.Random) -> bytes:
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    at = rng.choice([rng.randint(same, len(new)), min(same + 1, len(new)), max(len(new) - 1, same)])
    match rng.randrange(4):
        case 0:
            return old
        case 1:
            return new
        case 2:
            return new[:at] + old[at:]
    return new[:same] + bytes(at - same) + new[at:]
