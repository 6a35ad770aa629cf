"""Private: a finished run, and its records, read again by the curator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdpack.billboard.board import Billboard
from jdpack.engines.memory import MemoryEngine
from jdpack.engines.settings import Place, choice_of
from jdpack.errors import AgentsError, BillboardError
from jdpack.protocol.verify import Verdict, verify
from jdpack.records.source import Source
from jdpack.run.folder import Output
from jdpack.run.run_file import RunFile


@dataclass(frozen=True)
class FinishedRun:
    """A run whose billboard is complete and right."""

    folder: Output
    file: RunFile
    verdict: Verdict

    @property
    def board(self) -> Billboard:
        return self.verdict.board

    @classmethod
    def open(cls, output: str | Path) -> FinishedRun:
        """Check all of a run but its records and what was computed from them."""
        folder = Output.reopen(output)
        run = RunFile.read(folder.run_file)
        verdict = verify(folder.billboard)
        board = verdict.board
        if board.first_line != run.header:
            raise BillboardError("the billboard is not that of the run", "put back its own")
        if not board.finished:
            raise BillboardError(
                "the run is not finished, and has no allocation yet",
                f"`jdpack resume {output}` first",
            )
        if run.coin_seed != board.seed:
            raise BillboardError("the seed of the billboard is not that of the run file")
        return cls(folder, run, verdict)

    def source(self, agents: Any, values: Any, demands: Any, ids: Any, caller: str) -> Source:
        """The records as they are given, or else where the run found them."""
        if agents is None and values is None and demands is None:
            agents = self.file.agents
            if agents is None:
                raise AgentsError(
                    "the records of this run were given in memory",
                    f"give them again: jdpack.{caller}(folder, values=..., demands=...)",
                )
        return Source(self.board.header.market, agents, values, demands, ids, self.file.clamp)

    @contextlib.contextmanager
    def records(
        self, source: Source, threads: int | None, progress: Callable[[float], None] | None
    ) -> Iterator[MemoryEngine]:
        """The encoded records; refused if they are not those of the run."""
        choice = choice_of(None, source.market, source.agents)
        place = Place("again", self.folder.folder.absolute().parent)
        opened = choice.open(source, threads, place, progress or (lambda done: None))
        with contextlib.closing(opened) as engine:
            assert isinstance(engine, MemoryEngine)  # or mapped: never the cluster
            if engine.digest() != self.file.digest:
                raise AgentsError(
                    "the records are not those of the run", "give those that it began with"
                )
            yield engine
