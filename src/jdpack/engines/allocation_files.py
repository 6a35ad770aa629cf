"""Private: the files of an allocation, in a local folder or at an address."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pyarrow.fs

from jdpack.storage.files import write_whole


def system_of(place: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a place, and the path in it."""
    if "://" not in place:
        return pyarrow.fs.LocalFileSystem(), place
    system, folder = pyarrow.fs.FileSystem.from_uri(place)
    return system, folder


def put_file(place: str, name: str, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file whole or not at all."""
    system, folder = system_of(place)
    if isinstance(system, pyarrow.fs.LocalFileSystem):
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(Path(folder) / name, 0o600, write)
        return
    half = f"{folder}/{name}.part"
    try:
        with system.open_output_stream(half) as stream:
            write(stream)
    except BaseException:
        with contextlib.suppress(OSError):
            system.delete_file(half)
        raise
    system.move(half, f"{folder}/{name}")


def files_in(place: str) -> list[str]:
    """The names of the files in a place, sorted."""
    system, folder = system_of(place)
    found = system.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))
    return sorted(info.base_name for info in found if info.is_file)


def tables_in(place: str) -> list[str]:
    """The names of the Parquet files in a place, sorted."""
    return [name for name in files_in(place) if name.endswith(".parquet")]


def remove_file(place: str, name: str) -> None:
    """Remove a file."""
    system, folder = system_of(place)
    system.delete_file(f"{folder}/{name}")
