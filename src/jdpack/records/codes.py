"""Private: the agents' records as exact integer codes.

A row is an option: 16-bit demand codes and a 32-bit value code. A request is one row, or up to
`market.options` consecutive rows. An agent is one request, or up to `market.requests` of them, one
after the other; kernels decide each request on its own and need not know whose it is. Up to BLOCK
rows make a block of rows, with no request split between two blocks. Blocks are grouped into parts,
the unit of work for threads. There are two layouts:

* dense, `codes[block, resource, row]`: the codes of one resource are adjacent, so kernels use
  vector instructions across agents and stream each block from memory once;
* sparse, for bundles much smaller than the number of resources: (resource, code) pairs. A block
  has several slots, and a slot holds one pair for each of its rows; rows with fewer pairs are
  padded with resource 0 and code 0. At least half of the rows use each slot, so padding at most
  doubles the size. Pairs that do not fit into the slots are stored separately, in the rest.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jdpack.market.market import Market
from jdpack.records.kernels import njit

BLOCK = 2048
PART_ROWS = 2**17
"""The most rows in a part: small enough for even loads and little scratch space per thread."""

_SMALL, _HUGE, _SLAB, _ALIGN = 2**18, 2**22, 2**24, 64  # bytes
_slab: NDArray[np.uint8] = np.empty(0, np.uint8)
"""The unused end of the current slab; a slab is freed with the last array in it."""
_slab_lock = threading.Lock()


class Pairs(NamedTuple):
    """The demands of the rows of some blocks, sparse."""

    codes: NDArray[np.uint16]
    resources: NDArray[np.uint16]
    offsets: NDArray[np.int64]
    """Block b's slots are [offsets[b] : offsets[b + 1]], BLOCK pairs each."""
    rest_codes: NDArray[np.uint16]
    rest_resources: NDArray[np.uint16]
    rest_rows: NDArray[np.uint16]
    """The row of each pair within its block, ascending."""
    rest_offsets: NDArray[np.int64]
    """Block b's rest is [rest_offsets[b] : rest_offsets[b + 1]]."""


@dataclass
class Part:
    """Some blocks of encoded rows."""

    values: NDArray[np.uint32]
    """Value codes, [block, row]."""
    fill: NDArray[np.int64]
    """How many rows each block holds."""
    starts: NDArray[np.uint8]
    """1 at a request's first row, [block, row]; empty if requests have one option."""
    codes: NDArray[np.uint16]
    """Dense: demand codes [block, resource, row]. Sparse: as in `Pairs`, like the next six."""
    resources: NDArray[np.uint16] | None = None
    offsets: NDArray[np.int64] | None = None
    rest_codes: NDArray[np.uint16] | None = None
    rest_resources: NDArray[np.uint16] | None = None
    rest_rows: NDArray[np.uint16] | None = None
    rest_offsets: NDArray[np.int64] | None = None
    first: int = 0
    """The index of the first row among all rows; agents without ids are numbered from it."""
    ids: pa.Array | None = None
    """The id of each row, 64-bit integers or large strings; None if agents are numbered."""
    requests: pa.Array | None = None
    """The name of each row's request, large strings; None if agents make one request."""
    options: pa.Array | None = None
    """The name of each row, large strings; None unless a long table has several options."""
    left_out: NDArray[np.uint8] | None = None
    """1 for rows of requests beyond the bounds of their agent, with codes 0: they get nothing. None
    if there are none."""

    @property
    def several(self) -> NDArray[np.uint8] | None:
        """`starts`, or None if every row is a request: those kernels are much shorter."""
        return self.starts if self.starts.size else None

    @property
    def pairs(self) -> Pairs | None:
        """The sparse demands, for kernels; None if the layout is dense."""
        if self.resources is None:
            return None
        return Pairs(
            self.codes, self.resources, self.offsets,  # type: ignore[arg-type]
            self.rest_codes, self.rest_resources, self.rest_rows, self.rest_offsets,  # type: ignore[arg-type]
        )  # fmt: skip

    @property
    def rows(self) -> int:
        return int(self.fill.sum())

    @property
    def nbytes(self) -> int:
        demands = self.pairs or (self.codes,)
        return sum(array.nbytes for array in (self.values, self.starts, *demands))

    def heads(self) -> NDArray[np.uint8]:
        """1 at the first row of each request; empty if every row is a request."""
        if not self.starts.size:
            return np.empty(0, np.uint8)
        return np.concatenate([self.starts[b, :n] for b, n in enumerate(self.fill)])

    def option_numbers(self) -> NDArray[np.int64]:
        """The number of each row among its request's options, from 1, as people count them."""
        row, heads = np.arange(self.rows), self.heads()
        if not heads.size:
            return np.ones(len(row), np.int64)
        return row - np.maximum.accumulate(np.where(heads, row, 0)) + 1

    def requests_with(self, shares: NDArray[np.uint32]) -> int:
        """How many requests have a positive share of some option."""
        heads = self.heads()
        if not heads.size:
            return int(np.count_nonzero(shares))
        return int(np.count_nonzero(np.maximum.reduceat(shares, np.flatnonzero(heads))))


@dataclass
class Agents:
    """All agents of a market, encoded. Private: never leaves the curator."""

    market: Market
    parts: list[Part]
    count: int
    """How many agents there are."""
    requests: int = 0
    """How many requests they make."""
    clamped: int = 0
    """How many numbers were clamped to the public bounds, and requests left out. Curator only."""

    @property
    def ids(self) -> pa.ChunkedArray | None:
        """The id of every row; None if agents are numbered from 0."""
        if any(part.ids is None for part in self.parts):
            return None
        return pa.chunked_array([part.ids for part in self.parts])

    def starts(self) -> NDArray[np.uint8]:
        """1 at the first row of each request; empty if requests have one option."""
        return np.concatenate([part.heads() for part in self.parts])

    def numbers(self) -> NDArray[np.int64]:
        """The request of each row, from 0."""
        if self.market.options == 1:
            return np.arange(self.rows)
        return np.cumsum(self.starts(), dtype=np.int64) - 1

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


def is_sparse(market: Market) -> bool:
    """Whether (resource, code) pairs and their count take less space than a dense row."""
    return 4 * market.bundle_width + 2 < 2 * len(market.resources)


def space(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """An uninitialised array. Large arrays share slabs big enough for huge pages, which NumPy
    requests from 4 MiB on, so that a round needs far fewer page lookups.
    """
    global _slab
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if not _SMALL <= size < _HUGE:
        return np.empty(shape, dtype)
    with _slab_lock:
        if size + _ALIGN > _slab.size:
            _slab = np.empty(_SLAB, np.uint8)
        start = -_slab.ctypes.data % _ALIGN
        mine, _slab = _slab[start : start + size], _slab[start + size :]
    return mine.view(dtype).reshape(shape)


def lay_out(
    part: Part,
    counts: NDArray[np.uint16],
    resources: NDArray[np.uint16],
    codes: NDArray[np.uint16],
) -> None:
    """Store the sparse demands of a part's rows; row i has the next `counts[i]` pairs."""
    blocks = len(part.fill)
    offsets, rest_offsets = np.zeros(blocks + 1, np.int64), np.zeros(blocks + 1, np.int64)
    _measure(part.fill, counts, offsets, rest_offsets)
    slots, rest = int(offsets[-1]), int(rest_offsets[-1])
    part.codes, part.resources = space((slots,), np.uint16), space((slots,), np.uint16)
    part.codes[:], part.resources[:] = 0, 0
    part.offsets, part.rest_offsets = offsets, rest_offsets
    part.rest_codes, part.rest_resources = np.empty(rest, np.uint16), np.empty(rest, np.uint16)
    part.rest_rows = np.empty(rest, np.uint16)
    _fill_in(part.fill, counts, resources, codes, part.pairs)


@njit(cache=True, nogil=True, error_model="numpy")
def _measure(fill, counts, offsets, rest_offsets):  # type: ignore[no-untyped-def]
    """Give every block the slots that at least half of its rows use."""
    row = 0
    for b in range(fill.size):
        own = counts[row : row + fill[b]]
        row += fill[b]
        most = np.int64(0)
        for count in own:
            most = max(most, np.int64(count))
        more = np.zeros(most + 1, np.int64)  # rows with more than s pairs
        for count in own:
            for s in range(count):
                more[s] += 1
        width, rest = 0, 0
        for s in range(most):
            if 2 * more[s] >= fill[b]:
                width += 1
            else:
                rest += more[s]
        offsets[b + 1] = offsets[b] + width * BLOCK
        rest_offsets[b + 1] = rest_offsets[b] + rest


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_in(fill, counts, resources, codes, pairs):  # type: ignore[no-untyped-def]
    row, pair = 0, 0
    for b in range(fill.size):
        width = (pairs.offsets[b + 1] - pairs.offsets[b]) // BLOCK
        rest = pairs.rest_offsets[b]
        for i in range(fill[b]):
            for s in range(counts[row]):
                if s < width:
                    at = pairs.offsets[b] + s * BLOCK + i
                    pairs.codes[at] = codes[pair]
                    pairs.resources[at] = resources[pair]
                else:
                    pairs.rest_codes[rest] = codes[pair]
                    pairs.rest_resources[rest] = resources[pair]
                    pairs.rest_rows[rest] = i
                    rest += 1
                pair += 1
            row += 1


@njit(cache=True, nogil=True, error_model="numpy")
def rest_of(pairs, b, i):  # type: ignore[no-untyped-def]
    """Where the rest of row i of block b begins, if it has any."""
    low, high = pairs.rest_offsets[b], pairs.rest_offsets[b + 1]
    while low < high:
        middle = (low + high) // 2
        if pairs.rest_rows[middle] < i:
            low = middle + 1
        else:
            high = middle
    return low
