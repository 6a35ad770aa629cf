"""Private: the folder that a run leaves, public and private files apart.

    out/public/billboard.jsonl      the billboard
    out/public/index.html           the same for people
    out/private/allocation.parquet  what everybody gets (mode 0600)
    out/private/report.html         the curator's page (mode 0600)

The folder must not exist; it is made only after all input is checked. Files are written under a
temporary name and moved into place whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from jdpack import report
from jdpack.billboard import SHARE, sync_folder
from jdpack.errors import OutputError

if TYPE_CHECKING:
    from jdpack.solve import Result

_ROWS = 2**17


@dataclass(frozen=True)
class Output:
    """An output folder that is free to be made."""

    folder: Path

    @classmethod
    def claim(cls, folder: str | Path) -> Output:
        """Check that the folder can be made; make nothing yet."""
        folder = Path(folder)
        if folder.exists() or folder.is_symlink():
            raise OutputError(
                f"the output folder {str(folder)!r} exists already",
                "choose another; a run never writes over an earlier one",
            )
        parent = folder.absolute().parent
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise OutputError(f"cannot make a folder in {str(parent)!r}")
        return cls(folder)

    def create(self) -> Path:
        """Make the folder, and return the path for the billboard."""
        try:
            self.folder.mkdir()
            (self.folder / "public").mkdir(mode=0o755)
            (self.folder / "private").mkdir(mode=0o700)
        except OSError as error:
            raise OutputError(f"cannot make {str(self.folder)!r}: {error.strerror}") from None
        sync_folder(self.folder)
        sync_folder(self.folder.absolute().parent)
        return self.folder / "public" / "billboard.jsonl"

    def write(self, result: Result) -> None:
        """Write everything but the billboard, which is there already."""
        private, public = self.folder / "private", self.folder / "public"
        try:
            whole(private / "allocation.parquet", 0o600, lambda p: _write_allocation(result, p))
            page = report.curator_page(result.billboard, result.curator)
            whole(private / "report.html", 0o600, lambda p: write_text(p, page))
            page = report.public_page(result.billboard)
            whole(public / "index.html", 0o644, lambda p: write_text(p, page))
        except OSError as error:
            raise OutputError(
                f"cannot write to {str(self.folder)!r}: {error.strerror or error}",
                "the budget is spent and the billboard complete: every agent can still compute its "
                "own allocation from it",
            ) from None


def whole(path: Path, mode: int, write: Callable[[Path], None]) -> None:
    """Write a file under a temporary name, then move it into place."""
    part = path.with_name(path.name + ".part")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        write(part)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.rename(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text; for `whole`."""
    path.write_text(text, encoding="utf-8")


def _write_allocation(result: Result, path: Path) -> None:
    """Stream the allocation to Parquet: id, option if there are several, share or granted."""
    market, ids = result.agents.market, result.agents.ids
    several = market.options > 1
    kinds = [("id", pa.int64() if ids is None else ids.type)]
    kinds += [("option", pa.int32())] if several else []
    kinds += [("share", pa.float64()) if market.divisible else ("granted", pa.bool_())]
    # Arrow would read a path with a colon as the address of another file system: give it the file.
    with (
        path.open("wb") as file,
        pyarrow.parquet.ParquetWriter(file, pa.schema(kinds), use_dictionary=False) as writer,
    ):
        given, rows = result.private.shares, result.agents.rows
        options = result.agents.option_numbers() if several else None
        for start in range(0, rows, _ROWS):
            stop = min(rows, start + _ROWS)
            some = np.arange(start, stop) if ids is None else ids.slice(start, stop - start)
            columns = [some if ids is not None else pa.array(some)]
            if options is not None:
                columns.append(pa.array(options[start:stop], pa.int32()))
            shares = given[start:stop]
            columns.append(pa.array(shares / SHARE if market.divisible else shares > 0))
            writer.write_table(pa.table(columns, schema=pa.schema(kinds)))
