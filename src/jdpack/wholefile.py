"""Private: files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from jdpack.billboard import sync_folder


def write_whole(path: Path, mode: int, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under a temporary name, then move it into place."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)  # of a run that was killed
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, mode: int, text: str) -> None:
    """Write a text file, whole."""
    write_whole(path, mode, lambda file: file.write(text.encode()))
