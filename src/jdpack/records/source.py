"""Private: where the records of a run come from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jdpack.market.market import Market
from jdpack.records import locate, tables
from jdpack.records.codes import PART_ROWS
from jdpack.records.databases.database import DatabaseQuery, QueryPiece, Trace
from jdpack.records.tables import Piece


@dataclass(frozen=True)
class Source:
    """The records of a run, in any form that `solve` accepts."""

    market: Market
    agents: Any
    values: Any
    demands: Any
    ids: Any
    clamp: bool
    groups_of: Any = None
    requests_of: Any = None
    trace: Trace = field(default_factory=Trace, compare=False)
    """What the first reading of a database gave."""

    def pieces(self, rows: int = PART_ROWS) -> Sequence[Piece]:
        """The records in pieces of about `rows` rows. A database gives them in one."""
        if isinstance(self.agents, DatabaseQuery):
            return [QueryPiece(self.agents, self.trace)]
        if self.agents is not None:
            return tables.pieces(self.market, self.agents, rows)
        return tables.array_pieces(
            self.market,
            self.values,
            self.demands,
            self.ids,
            rows,
            groups_of=self.groups_of,
            requests_of=self.requests_of,
        )

    @property
    def query(self) -> DatabaseQuery | None:
        """The query, if the records are in a database."""
        return self.agents if isinstance(self.agents, DatabaseQuery) else None

    @property
    def paths(self) -> list[str] | None:
        """The absolute paths or addresses of the files or database; None if all is in memory."""
        if self.query is not None:
            return [self.query.address]
        if not locate.is_source(self.agents):
            return None
        given = [self.agents] if isinstance(self.agents, str | Path) else self.agents
        return [str(path) if "://" in str(path) else os.path.abspath(path) for path in given]
