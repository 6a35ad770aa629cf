"""Public: make a folder, never over an existing one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jdpack.errors import OutputError
from jdpack.storage.files import write_text


def claim(folder: str | Path) -> Path:
    """Check that a folder can be made, before anything is computed. Make nothing yet."""
    folder = Path(folder)
    try:
        taken = folder.exists() or folder.is_symlink()
    except OSError as error:
        raise OutputError(f"cannot make {str(folder)!r}: {error.strerror}") from None
    if taken:
        raise OutputError(
            f"the output folder {str(folder)!r} already exists",
            "choose another; jdpack never writes over an existing folder",
        )
    parent = folder.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"cannot make a folder in {str(parent)!r}")
    return folder


def fill_with_study(
    folder: str | Path, name: str, page: str, text: str, data: Mapping[str, Any]
) -> None:
    """Make a private folder with a study of the records: its page, its text and its JSON."""
    texts = {
        "report.html": page,
        f"{name}.txt": f"{text}\n",
        f"{name}.json": f"{json.dumps(data, allow_nan=False, indent=1)}\n",
    }
    fill(folder, texts, private=True)


def fill(folder: str | Path, texts: Mapping[str, str], *, private: bool) -> None:
    """Make a folder with these files (name to text); if private, readable by its owner only."""
    folder = claim(folder)
    try:
        folder.mkdir(mode=0o700 if private else 0o755)
        for name, text in texts.items():
            write_text(folder / name, 0o600 if private else 0o644, text)
    except OSError as error:
        raise OutputError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from None
