"""Private: the folder that a run leaves, with separate public and private files.

    out/public/billboard.jsonl      the billboard
    out/public/index.html           the same for people
    out/public/index.de.html        the same in German, and so on, if the market lists languages
    out/private/run.json            what `resume` needs (mode 0600)
    out/private/journal.jsonl       the last line that was posted, or was about to be (mode 0600)
    out/private/allocation.parquet  what everybody gets, one row per option (mode 0600)
    out/private/granted.parquet     who gets how much of what, in the table's words (mode 0600)
    out/private/report.html         the curator's page (mode 0600)

`jdpack report` adds out/public/report.html, and replaces the curator's page.

The folder must not exist. It is made before anything is reserved or read, and removed if the
records are refused. Each file is written under a temporary name, then moved into place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jdpack.errors import AgentsError, OutputError
from jdpack.pages import billboard_page
from jdpack.run import curator_page
from jdpack.run.run_file import RunFile
from jdpack.storage import new_folder
from jdpack.storage.files import sha256, sync_folder, write_text

if TYPE_CHECKING:
    from jdpack.run.result import Result


@dataclass(frozen=True)
class Output:
    """The output folder of a run."""

    folder: Path

    @classmethod
    def claim(cls, folder: str | Path) -> Output:
        """Check that the folder can be made; make nothing yet."""
        there = cls(Path(folder))
        with contextlib.suppress(OSError):
            if there.run_file.is_file() and not (there.public / "index.html").is_file():
                raise OutputError(
                    f"the output folder {str(folder)!r} holds a run that is not finished",
                    f"`jdpack resume {folder}` finishes it; or choose another folder",
                )
        return cls(new_folder.claim(folder))

    @classmethod
    def reopen(cls, folder: str | Path) -> Output:
        """The folder of a run that was interrupted."""
        output = cls(Path(folder))
        try:
            begun = output.run_file.is_file()
            folders = output.public, output.private, output.private / "allocation"
            links = [folder for folder in folders if folder.is_symlink()]
        except OSError as error:
            raise OutputError(f"cannot look into {str(folder)!r}: {error.strerror}") from None
        if links:
            raise OutputError(
                f"{str(links[0])!r} is a link", "a run needs its own folders: put them back"
            )
        if not begun:
            raise OutputError(
                f"there is no run in {str(folder)!r}",
                "give the output folder of a run that solve began",
            )
        return output

    @property
    def public(self) -> Path:
        return self.folder / "public"

    @property
    def private(self) -> Path:
        return self.folder / "private"

    @property
    def journal(self) -> Path:
        return self.private / "journal.jsonl"

    @property
    def billboard(self) -> Path:
        return self.public / "billboard.jsonl"

    @property
    def run_file(self) -> Path:
        return self.private / "run.json"

    def create(self) -> None:
        """Make the folder with an empty billboard. If a billboard is missing later, it was lost."""
        try:
            self.folder.mkdir()
        except OSError as error:  # another run may have made it in the meantime
            raise OutputError(
                f"cannot make {str(self.folder)!r}: {error.strerror}", "nothing is spent"
            ) from None
        try:
            self.public.mkdir(mode=0o755)
            self.private.mkdir(mode=0o700)
            os.close(os.open(self.billboard, os.O_CREAT | os.O_EXCL, 0o644))
            for folder in (self.public, self.folder):
                sync_folder(folder)
            sync_folder(self.folder.absolute().parent)
        except OSError as error:
            self.remove()
            raise _cannot_make(self.folder, error) from None

    def keep(self, run: RunFile) -> None:
        """Write what `resume` needs. Nothing is spent yet."""
        try:
            run.write(self.run_file)
        except OSError as error:
            raise _cannot_make(self.folder, error) from None

    def settle(self) -> None:
        """Make sure that the run file survives a power cut; its writer may have been killed."""
        try:
            sync_folder(self.private)
        except OSError as error:
            raise OutputError(
                f"cannot write to {str(self.private)!r}: {error.strerror}",
                "nothing more is spent: it must be a folder that you can read and write",
            ) from None

    def remove(self) -> None:
        """Remove the folder. Only while nothing is spent."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _note_allocation(self) -> None:
        """Keep the hash of the allocation. A cluster's files have none."""
        path = self.private / "allocation.parquet"
        if path.exists():
            replace(RunFile.read(self.run_file), allocation=sha256(path)).write(self.run_file)

    def _write_granted(self, result: Result) -> None:
        """Write who gets what in the words of the table, unless it is far too long.

        A cluster's records and shares stay with its workers.
        """
        from jdpack.run import granted  # only here: a public report needs no reader of tables

        most = result.engine.requests * result.engine.market.options
        alone = (self.private / "allocation.parquet").exists()
        if result.source is None or most > granted.ROWS_MAX or not alone:
            return
        try:
            granted.write(result.source, result.shares, self.private)
        except AgentsError as error:
            raise AgentsError(
                error.message,
                f"the budget is spent and the billboard is complete: put the records back, then "
                f"run `jdpack resume {self.folder}`, which spends nothing more",
            ) from None

    def write(self, result: Result) -> None:
        """Write everything except the billboard, which is already there."""
        try:
            result.engine.write(result.billboard, result.private, self.private)
            self._note_allocation()
            self._write_granted(result)
            page = curator_page.curator_page(result.billboard, result.curator)
            write_text(self.private / "report.html", 0o600, page)
            pages = billboard_page.public_pages(result.billboard)
            # index.html comes last: once it is there, all pages are.
            for name, page in reversed(pages.items()):
                write_text(self.public / name, 0o644, page)
        except OSError as error:
            raise OutputError(
                f"cannot write to {str(self.folder)!r}: {error.strerror or error}",
                "the budget is spent and the billboard is complete: free some space, then run "
                f"`jdpack resume {self.folder}`, which spends nothing more",
            ) from None


def _cannot_make(folder: Path, error: OSError) -> OutputError:
    return OutputError(
        f"cannot make {str(folder)!r}: {error.strerror}",
        "nothing is spent: free some space, and run again",
    )
