"""Private: a finished run, and its records read again by the curator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jdpack.billboard.board import Billboard
from jdpack.engines.memory import MemoryEngine
from jdpack.engines.settings import RunInfo, choice_of
from jdpack.errors import AgentsError, BillboardError
from jdpack.protocol.verify import Verdict, verify
from jdpack.records.source import Source
from jdpack.run.arguments import Records, source_again
from jdpack.run.folder import Output
from jdpack.run.run_file import RunFile


@dataclass(frozen=True)
class FinishedRun:
    """A run whose billboard is complete and correct."""

    folder: Output
    file: RunFile
    verdict: Verdict

    @property
    def board(self) -> Billboard:
        return self.verdict.board

    @classmethod
    def open(cls, output: str | Path) -> FinishedRun:
        """Check everything in a run except its records and what was computed from them."""
        folder = Output.reopen(output)
        run = RunFile.read(folder.run_file)
        verdict = verify(folder.billboard)
        board = verdict.board
        if board.first_line != run.header:
            raise BillboardError("this is not the billboard of this run", "put back the right one")
        if not board.finished:
            raise BillboardError(
                "the run is not finished and has no allocation yet",
                f"`jdpack resume {output}` first",
            )
        if run.coin_seed != board.seed:
            raise BillboardError("the seed on the billboard is not the one in the run file")
        return cls(folder, run, verdict)

    def source(self, caller: str, records: Records) -> Source:
        """The records that are given, or else those that the run read."""
        return source_again(self.file, self.board.header.market, caller, records)

    @contextlib.contextmanager
    def records(
        self, source: Source, threads: int | None, progress: Callable[[float], None] | None
    ) -> Iterator[MemoryEngine]:
        """The encoded records. Refused if they are not the run's."""
        choice = choice_of(None, source.market, source.agents)
        info = RunInfo("again", self.folder.folder.absolute().parent)
        opened = choice.open(source, threads, info, progress or (lambda done: None))
        with contextlib.closing(opened) as engine:
            assert isinstance(engine, MemoryEngine)  # or mapped: never the cluster
            if engine.digest(self.board.header.coin_hash) != self.file.digest:
                raise AgentsError(
                    "these are not the records of this run", "give the records that it began with"
                )
            yield engine
