"""Private: the engine for agents that fit in memory, on all cores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jdpack.billboard.board import Billboard
from jdpack.engines.base import Allocation
from jdpack.engines.settings import Tell
from jdpack.engines.shard import Shard, Shares
from jdpack.engines.sharded import Combined, final
from jdpack.records.codes import Agents
from jdpack.records.encode import encode
from jdpack.records.source import Source
from jdpack.records.threads import Threads
from jdpack.storage.files import write_whole


class MemoryEngine(Combined):
    """All agents in one shard; `threads` limits the cores that it uses."""

    def __init__(
        self,
        agents: Agents,
        threads: int | None = None,
        scratch: Callable[[int], Shares] = lambda rows: np.empty(rows, np.uint32),
        limit_bytes: int | None = None,
    ) -> None:
        super().__init__(agents.market)
        self.agents = agents
        self.shard = Shard(agents.market, agents.parts, Threads(threads), scratch, limit_bytes)

    @classmethod
    def read(cls, source: Source, threads: int | None, tell: Tell) -> MemoryEngine:
        """Encode the records in memory."""
        agents = encode(
            source.market,
            source.pieces(),
            clamp=source.clamp,
            threads=Threads(threads),
            tell=tell,
        )
        return cls(agents, threads)

    @property
    def count(self) -> int:
        return self.agents.count

    @property
    def requests(self) -> int:
        return self.agents.requests

    @property
    def clamped(self) -> int:
        return self.agents.clamped

    @property
    def numbered(self) -> bool:
        return self.agents.parts[0].ids is None

    def write(self, board: Billboard, allocation: Allocation, folder: Path) -> None:
        get = final(board, allocation.drop_from)
        write_whole(folder / "allocation.parquet", 0o600, lambda file: self.shard.write(get, file))

    def close(self) -> None:
        """There is nothing to release."""

    def _all(self, question: str, *about: Any) -> list[Any]:
        return [getattr(self.shard, question)(*about)]
