"""Private: the curator writes two reports of a run: one to publish, one to keep.

The public report is made from the billboard alone. `jdpack.curator.curators_report` makes the
curator's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdpack.billboard.board import Billboard
from jdpack.errors import OutputError
from jdpack.pages.public_report import public_report
from jdpack.run.folder import Output
from jdpack.run.run_file import locked
from jdpack.storage.files import write_text


@dataclass(frozen=True)
class Reports:
    """Where the reports are."""

    public: Path
    """The report to publish."""
    private: Path | None
    """None if the run is not finished, or if only the public report was wanted."""

    def to_dict(self) -> dict[str, str | None]:
        """The paths as text, for programs."""
        private = None if self.private is None else str(self.private)
        return {"public": str(self.public), "private": private}


def report_run(
    output: str | Path,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    groups_of: Any = None,
    requests_of: Any = None,
    folder: str | Path | None = None,
    public: bool = False,
    optimum: bool | None = None,
    ledger: str | Path | None = None,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Reports:
    """Write the public report of a run and the curator's, each a single file.

    Args:
        output: the folder of the run, as given to `solve`; or a billboard, for the public report.
        agents, values, demands, ids, groups_of, requests_of: the records, if they were given in
            memory or have moved.
        folder: a folder to create for the reports; if not given, they go beside the run's other
            files.
        public: write only the public report, which needs no records.
        optimum: whether the curator's report has the optimum without privacy; if not given, it has
            if the market is small and the solver is installed.
        ledger: where the run's ledger is now, if it has moved.
        threads: how many cores to use.
        progress: called with the fraction of the records that has been read.

    Formal guarantees. The public report is a function of the billboard. The curator's is
    **private**: it shows exact numbers. Nothing is released, and no budget is touched.
    """
    path = Path(output)
    alone = not path.is_dir()
    run = None if alone else Output.reopen(path)
    board = Billboard.read(path if run is None else run.billboard)
    if alone and folder is None:
        raise OutputError(
            f"{str(path)!r} is not the folder of a run, and no folder is given for its report",
            "name a folder to create (-o)",
        )
    target = run if folder is None else Output.claim(folder)
    assert target is not None
    private = None
    if run is not None and board.finished and not public:
        from jdpack.curator.curators_report import curators_report  # the public one needs no engine
        from jdpack.curator.finished_run import FinishedRun

        finished = FinishedRun.open(path)
        records = agents, values, demands, ids, groups_of, requests_of
        source = finished.source("report_run", records)
        private = curators_report(finished, source, ledger, optimum, threads, progress)
    return _write(target, public_report(board), private, new=folder is not None)


def _write(target: Output, public: str, private: str | None, *, new: bool) -> Reports:
    found = Reports(
        target.public / "report.html", None if private is None else target.private / "report.html"
    )
    with contextlib.ExitStack() as held:
        if private is not None and not new:
            held.enter_context(locked(target.private))
        try:
            if new:
                target.folder.mkdir()
                target.public.mkdir(mode=0o755)
                if private is not None:
                    target.private.mkdir(mode=0o700)
            write_text(found.public, 0o644, public)
            if private is not None and found.private is not None:
                write_text(found.private, 0o600, private)
        except OSError as error:
            raise OutputError(
                f"cannot write to {str(target.folder)!r}: {error.strerror or error}",
                "free some space, and run again: a report spends nothing",
            ) from None
    return found
