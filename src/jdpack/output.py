"""Private: the folder that a run leaves, public and private files apart.

    out/public/billboard.jsonl      the billboard
    out/public/index.html           the same for people
    out/private/run.json            what a resume needs (mode 0600)
    out/private/allocation.parquet  what everybody gets (mode 0600)
    out/private/report.html         the curator's page (mode 0600)

The folder must not exist; it is made only after all input is checked. Files are written under a
temporary name and moved into place whole.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jdpack import report
from jdpack.billboard import sync_folder
from jdpack.errors import OutputError
from jdpack.runfile import RunFile
from jdpack.wholefile import write_text

if TYPE_CHECKING:
    from jdpack.solve import Result


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

    @classmethod
    def reopen(cls, folder: str | Path) -> Output:
        """The folder of a run that was interrupted."""
        output = cls(Path(folder))
        try:
            begun = output.run_file.is_file()
        except OSError as error:
            raise OutputError(f"cannot look into {str(folder)!r}: {error.strerror}") from None
        if not begun:
            raise OutputError(
                f"there is no run to resume in {str(folder)!r}",
                "give the output folder of a run that solve began",
            )
        return output

    @property
    def billboard(self) -> Path:
        return self.folder / "public" / "billboard.jsonl"

    @property
    def run_file(self) -> Path:
        return self.folder / "private" / "run.json"

    def create(self, run: RunFile) -> None:
        """Make the folder with everything that a resume needs but the billboard."""
        try:
            self.folder.mkdir()
        except OSError as error:  # another run may have made it meanwhile: it is not ours
            raise OutputError(
                f"cannot make {str(self.folder)!r}: {error.strerror}", "nothing is spent"
            ) from None
        try:
            (self.folder / "public").mkdir(mode=0o755)
            (self.folder / "private").mkdir(mode=0o700)
            run.write(self.run_file)
            sync_folder(self.folder)
            sync_folder(self.folder.absolute().parent)
        except OSError as error:
            self.remove()
            raise OutputError(
                f"cannot make {str(self.folder)!r}: {error.strerror}",
                "nothing is spent: make room, and run again",
            ) from None

    def remove(self) -> None:
        """Take the folder back, as long as nothing is spent."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, result: Result) -> None:
        """Write everything but the billboard, which is there already."""
        private, public = self.folder / "private", self.folder / "public"
        try:
            result.engine.write(result.billboard, result.private, private)
            page = report.curator_page(result.billboard, result.curator)
            write_text(private / "report.html", 0o600, page)
            page = report.public_page(result.billboard)
            write_text(public / "index.html", 0o644, page)
        except OSError as error:
            raise OutputError(
                f"cannot write to {str(self.folder)!r}: {error.strerror or error}",
                "the budget is spent and the billboard complete: make room, then run "
                f"`jdpack resume {self.folder}`, which spends nothing more",
            ) from None
