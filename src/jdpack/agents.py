"""Private: the agents' records as exact integer codes.

A row is an option: 16-bit demand codes and a 32-bit value code. An agent is one row, or up to
`market.options` consecutive rows. Rows are kept in blocks of BLOCK, no agent split between two,
and blocks in parts:

* dense, `codes[block, resource, row]`: a resource's codes stand side by side, so kernels run over
  agents with vector instructions and stream a block from memory once;
* sparse, for bundles much smaller than the number of resources: (resource, code) pairs, row after
  row, and the number of pairs of each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jdpack.market import Market

BLOCK = 2048


@dataclass
class Part:
    """Some blocks of encoded rows."""

    values: NDArray[np.uint32]
    """Value codes, [block, row]."""
    fill: NDArray[np.int64]
    """How many rows each block holds."""
    starts: NDArray[np.uint8]
    """Where several options an agent are allowed: 1 at an agent's first row, [block, row]."""
    codes: NDArray[np.uint16]
    """Dense: demand codes [block, resource, row]. Sparse: of the pairs, one after the other."""
    resources: NDArray[np.uint16] | None = None
    """Sparse: the resource of each pair."""
    counts: NDArray[np.uint16] | None = None
    """Sparse: the number of pairs of each row, [block, row]."""
    offsets: NDArray[np.int64] | None = None
    """Sparse: where each block's pairs begin."""

    @property
    def rows(self) -> int:
        return int(self.fill.sum())

    @property
    def nbytes(self) -> int:
        sparse = [a for a in (self.resources, self.counts, self.offsets) if a is not None]
        return (
            self.values.nbytes
            + self.starts.nbytes
            + self.codes.nbytes
            + sum(a.nbytes for a in sparse)
        )


@dataclass
class Agents:
    """All agents of a market, encoded. Private: never leaves the curator."""

    market: Market
    parts: list[Part]
    ids: pa.ChunkedArray | None
    """The id of every row; None where agents are numbered from 0."""
    count: int
    """How many agents there are."""
    clamped: int = 0
    """How many numbers lay beyond the public bounds. Curator only."""

    def starts(self) -> NDArray[np.uint8]:
        """1 at the first row of each agent, where agents may have several options."""
        pieces = [part.starts[b, :n] for part in self.parts for b, n in enumerate(part.fill)]
        return np.concatenate(pieces)

    def option_numbers(self) -> NDArray[np.int64]:
        """The place of each row among the options of its agent, from 0."""
        row = np.arange(self.rows)
        return row - np.maximum.accumulate(np.where(self.starts(), row, 0))

    def winners(self, shares: NDArray[np.uint32]) -> int:
        """How many agents have a share of any option."""
        if self.market.options == 1:
            return int(np.count_nonzero(shares))
        heads = np.flatnonzero(self.starts())
        return int(np.count_nonzero(np.maximum.reduceat(shares, heads)))

    def numbers(self) -> NDArray[np.int64]:
        """The agent of each row, from 0."""
        if self.market.options == 1:
            return np.arange(self.rows)
        return np.cumsum(self.starts(), dtype=np.int64) - 1

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the codes."""
        return sum(part.nbytes for part in self.parts)


def is_sparse(market: Market) -> bool:
    """Whether (resource, code) pairs and their count take less room than a dense row."""
    return 4 * market.bundle_size + 2 < 2 * len(market.resources)
