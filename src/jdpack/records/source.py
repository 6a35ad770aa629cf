"""Private: where the records of a run come from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdpack.market.market import Market
from jdpack.records import locate, tables
from jdpack.records.codes import PART_ROWS
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

    def pieces(self, rows: int = PART_ROWS) -> Sequence[Piece]:
        """The records in pieces of about `rows` rows."""
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
    def paths(self) -> list[str] | None:
        """The absolute paths or addresses of the files; None if the records are in memory."""
        if not locate.is_source(self.agents):
            return None
        given = [self.agents] if isinstance(self.agents, str | Path) else self.agents
        return [str(path) if "://" in str(path) else os.path.abspath(path) for path in given]
