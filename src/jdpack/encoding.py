"""Private: records to codes.

Records are checked against the market and encoded once, in a stream, to the codes of
`jdpack.agents`; the amounts are then forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit
from numpy.typing import NDArray

from jdpack.agents import BLOCK, PART_ROWS, Agents, Part, is_sparse, lay_out
from jdpack.errors import AgentsError
from jdpack.ids import check_same_type, check_unique, plain_ids
from jdpack.market import Market, Neighbours

_PART_BYTES = 16 * 2**20

# What the kernels below found wrong with a number.
_FINE, _NOT_A_NUMBER, _INFINITE, _NEGATIVE, _BEYOND = range(5)


@dataclass
class Batch:
    """Some consecutive rows as they come in: amounts by resource, or in compressed sparse rows."""

    values: NDArray[np.float64]
    ids: pa.Array | None = None
    columns: list[NDArray[np.float64]] | None = None
    indptr: NDArray[np.int64] | None = None
    resources: NDArray[np.int64] | None = None
    amounts: NDArray[np.float64] | None = None

    @property
    def rows(self) -> int:
        return len(self.values)


def encode(market: Market, batches: Iterable[Batch], *, clamp: bool = False) -> Agents:
    """Check and encode a stream of records.

    Numbers beyond the public bounds are refused or, with `clamp`, brought back to the bound.
    Records that are no numbers, infinite or negative, that touch more resources than the bundle
    size, or whose ids or count do not fit the market are always refused.
    """
    encoder = _Encoder(market, clamp)
    for batch in batches:
        encoder.add(batch)
    agents = encoder.finish()
    pa.default_memory_pool().release_unused()  # what reading needed is not needed again
    return agents


@dataclass
class _Encoder:
    market: Market
    clamp: bool
    parts: list[Part] = field(default_factory=list)
    clamped: int = 0
    rows: int = 0
    agents: int = 0
    first_id: pa.Array | None = None
    last_id: Any = None
    last_options: int = 0

    # The part that is being filled.
    part: Part | None = None
    blocks: int = 0
    """Blocks of it that hold rows."""
    ids: list[pa.Array] = field(default_factory=list)
    pairs: list[tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint16]]] = field(
        default_factory=list
    )
    """Sparse: the number of pairs of each row, their resources and codes."""

    def __post_init__(self) -> None:
        m = len(self.market.resources)
        row_bytes = 2 * m if not is_sparse(self.market) else 4 * self.market.bundle_size
        expected = -(-self.market.agents * self.market.options // BLOCK)
        most = min(_PART_BYTES // (row_bytes * BLOCK), PART_ROWS // BLOCK)
        self.capacity = max(1, min(most, 2 * expected))

    def add(self, batch: Batch) -> None:
        if batch.rows == 0:
            return
        ids = plain_ids(batch.ids, self.rows) if batch.ids is not None else None
        starts = self._group(ids, batch.rows)
        row = 0
        while row < batch.rows:
            part = self.part if self.part is not None else self._open_part(self.rows + row)
            slots = np.empty(batch.rows - row, np.int64)
            placed, self.blocks = _place(
                starts[row:], self.market.options, self.blocks, part.fill, slots
            )
            if placed == 0:
                self._close_part()
                continue
            self._encode(batch, row, slots[:placed], starts[row : row + placed], part)
            if ids is not None:
                self.ids.append(ids.slice(row, placed))
            row += placed
        self.rows += batch.rows

    def finish(self) -> Agents:
        if self.part is not None:
            self._close_part()
        declared, exact = self.market.agents, self.market.neighbours is Neighbours.REPLACE_ONE
        if self.agents == 0:
            raise AgentsError("there are no agents", "the table has no rows")
        if self.agents > declared or (exact and self.agents < declared):
            raise AgentsError(
                f"there are {self.agents} agents, and the market declares "
                f"{'' if exact else 'at most '}{declared}",
                "the number of agents is public: set it before looking at the data",
            )
        agents = Agents(self.market, self.parts, self.agents, self.clamped)
        if agents.ids is not None:
            check_unique(agents.ids, several=self.market.options > 1)
        return agents

    # --- ids ------------------------------------------------------------------------------

    def _group(self, ids: pa.Array | None, rows: int) -> NDArray[np.uint8]:
        """1 at the first row of each agent; counts agents and checks the options of each."""
        if ids is None:
            if self.market.options > 1:
                raise AgentsError(
                    "agents with several options need ids",
                    "give each row the id of its agent, the rows of one agent together",
                )
            if self.market.neighbours is Neighbours.ADD_REMOVE and not self.market.divisible:
                # Numbers would shift when an agent leaves, and with them the others' coins.
                raise AgentsError(
                    "agents that may be added or removed need ids of their own",
                    "give ids, so that nobody's coin depends on who else is there",
                )
            self.agents += rows
            return np.ones(rows, np.uint8)
        self.first_id = self.first_id if self.first_id is not None else ids.slice(0, 1)
        check_same_type(self.first_id, ids)
        if self.market.options == 1:
            self.agents += rows
            return np.ones(rows, np.uint8)
        starts = np.ones(rows, np.uint8)
        if rows > 1:
            starts[1:] = pc.not_equal(ids.slice(1), ids.slice(0, rows - 1)).to_numpy(
                zero_copy_only=False
            )
        starts[0] = ids[0].as_py() != self.last_id or self.agents == 0
        heads = np.flatnonzero(starts)
        edges = np.concatenate([[-self.last_options], heads[starts[0] :], [rows]])
        if starts[0]:
            edges[0] = 0
        options = np.diff(edges)
        if options.max() > self.market.options:
            row = int(edges[options.argmax() + 1]) - 1
            raise AgentsError(
                f"agent {ids[row].as_py()!r} has more than {self.market.options} options",
                "raise [agents] options, or drop some of its rows",
            )
        self.agents += len(heads)
        self.last_id, self.last_options = ids[-1].as_py(), int(options[-1])
        return starts

    # --- codes ----------------------------------------------------------------------------

    def _open_part(self, first: int) -> Part:
        nb, m = self.capacity, len(self.market.resources)
        sparse = is_sparse(self.market)
        self.blocks = 0
        self.part = Part(
            values=np.empty((nb, BLOCK), np.uint32),
            fill=np.zeros(nb, np.int64),
            starts=np.empty((nb, BLOCK) if self.market.options > 1 else (0, 0), np.uint8),
            codes=np.empty((0, 0, 0) if sparse else (nb, m, BLOCK), np.uint16),
            first=first,
        )
        return self.part

    def _close_part(self) -> None:
        part, nb = self.part, self.blocks
        assert part is not None
        part.values, part.fill = part.values[:nb], part.fill[:nb]
        part.starts = part.starts[:nb]
        if is_sparse(self.market):
            counts, resources, codes = (np.concatenate(a) for a in zip(*self.pairs, strict=True))
            lay_out(part, counts, resources, codes)
        else:
            part.codes = part.codes[:nb]
        if self.ids:
            part.ids = pa.concat_arrays(self.ids)
        self.parts.append(part)
        self.part, self.pairs, self.ids = None, [], []

    def _encode(
        self,
        batch: Batch,
        row: int,
        slots: NDArray[np.int64],
        starts: NDArray[np.uint8],
        part: Part,
    ) -> None:
        """Encode rows [row, row + len(slots)) of a batch into their slots of a part."""
        market, stop = self.market, row + len(slots)
        values = batch.values[row:stop]
        bad, clamped = _encode_values(
            values, market.value_step, market.max_value, self.clamp, slots, part.values
        )
        self._judge(bad, values, row, batch, "value", market.max_value)
        self.clamped += clamped
        if part.starts.size:
            _store(starts, slots, part.starts)
        sparse = is_sparse(market)
        if batch.columns is not None and not sparse:
            touched = np.zeros(len(slots), np.int64)
            for j, column in enumerate(batch.columns):
                self._encode_amounts(
                    batch, row, j, column[row:stop], slots, part.codes[:, j], touched
                )
            self._check_bundles(batch, row, touched)
            return
        if batch.columns is not None:
            matrix = np.stack([column[row:stop] for column in batch.columns], axis=1)
            at, resources = np.nonzero(matrix)
            amounts = matrix[at, resources]
            indptr = np.searchsorted(at, np.arange(len(slots) + 1)).astype(np.int64)
        else:
            assert batch.indptr is not None
            assert batch.resources is not None and batch.amounts is not None
            self._check_repeated(batch, row, stop)
            first, last = batch.indptr[row], batch.indptr[stop]
            keep = batch.amounts[first:last] != 0.0
            resources = batch.resources[first:last][keep]
            amounts = batch.amounts[first:last][keep]
            indptr = np.concatenate([[0], np.cumsum(keep)])[batch.indptr[row : stop + 1] - first]
        self._encode_pairs(batch, row, indptr, resources, amounts, slots, part)

    def _encode_amounts(
        self,
        batch: Batch,
        row: int,
        j: int,
        amounts: NDArray[np.float64],
        slots: NDArray[np.int64],
        out: NDArray[np.uint16],
        touched: NDArray[np.int64],
    ) -> None:
        cap = self.market.resources[j].max_demand
        bad, clamped = _encode_amounts(
            amounts, self.market.unit_sizes[j], cap, self.clamp, slots, out, touched
        )
        self._judge(bad, amounts, row, batch, f"demand for {self.market.resources[j].name!r}", cap)
        self.clamped += clamped

    def _encode_pairs(
        self,
        batch: Batch,
        row: int,
        indptr: NDArray[np.int64],
        resources: NDArray[np.int64],
        amounts: NDArray[np.float64],
        slots: NDArray[np.int64],
        part: Part,
    ) -> None:
        market = self.market
        self._check_bundles(batch, row, np.diff(indptr))
        caps = np.array([r.max_demand for r in market.resources])
        codes = np.empty(len(amounts), np.uint16)
        bad, clamped = _encode_pairs(
            amounts, resources, np.array(market.unit_sizes), caps, self.clamp, codes
        )
        if bad >= 0:
            at = int(np.searchsorted(indptr, bad, side="right")) - 1  # the row of the bad pair
            j = int(resources[bad])
            what = f"demand for {market.resources[j].name!r}"
            self._judge(0, amounts[bad : bad + 1], row + at, batch, what, float(caps[j]))
        self.clamped += clamped
        if is_sparse(market):
            counts = np.diff(indptr).astype(np.uint16)
            self.pairs.append((counts, resources.astype(np.uint16), codes))
        else:
            _scatter(indptr, resources, codes, slots, part.codes)

    # --- what is wrong --------------------------------------------------------------------

    def _who(self, row: int, batch: Batch) -> str:
        if batch.ids is None:
            return f"agent {self.rows + row}"
        return f"agent {batch.ids[row].as_py()!r}"

    def _check_repeated(self, batch: Batch, row: int, stop: int) -> None:
        assert batch.indptr is not None and batch.resources is not None
        at, pair = _first_repeated(
            batch.indptr[row : stop + 1], batch.resources, len(self.market.resources)
        )
        if at >= 0:
            name = self.market.resources[batch.resources[pair]].name
            raise AgentsError(
                f"{self._who(row + at, batch)} names {name!r} twice",
                "give the sum of the amounts once; options of one agent need [agents] options",
            )

    def _check_bundles(self, batch: Batch, row: int, touched: NDArray[np.int64]) -> None:
        if touched.size and touched.max() > self.market.bundle_size:
            at = int(touched.argmax())
            raise AgentsError(
                f"{self._who(row + at, batch)} demands {touched[at]} resources, and the bundle "
                f"size is {self.market.bundle_size}",
                "raise [agents] bundle_size, at the price of more noise",
            )

    def _judge(
        self, bad: int, numbers: NDArray[np.float64], row: int, batch: Batch, what: str, cap: float
    ) -> None:
        if bad < 0:
            return
        number, hint = float(numbers[bad]), ""
        kind = _kind(number, cap)
        if kind == _BEYOND:
            problem = f"is above the public bound {cap:g}"
            hint = "raise the bound in the market, or choose to clamp"
        else:
            problem = {
                _NOT_A_NUMBER: "is not a number",
                _INFINITE: "is infinite",
                _NEGATIVE: "is negative",
            }[kind]
        raise AgentsError(f"{self._who(row + bad, batch)}: {what} {number!r} {problem}", hint)


@njit(cache=True, nogil=True)
def _kind(number, cap):  # type: ignore[no-untyped-def]
    if 0.0 <= number <= cap:
        return _FINE
    if number != number:
        return _NOT_A_NUMBER
    if np.isinf(number):
        return _INFINITE
    return _NEGATIVE if number < 0.0 else _BEYOND


@njit(cache=True, nogil=True)
def _admit(number, cap, clamp):  # type: ignore[no-untyped-def]
    """The number to encode, whether it was clamped, and whether it must be refused."""
    kind = _kind(number, cap)
    if kind == _FINE:
        return number, False, False
    if kind == _BEYOND and clamp:
        return cap, True, False
    return 0.0, False, True


@njit(cache=True, nogil=True)
def _code_up(amount, size):  # type: ignore[no-untyped-def]
    """Market.demand_code: the product is exact."""
    code = np.int64(amount / size)
    return code + 1 if code * size < amount else code


@njit(cache=True, nogil=True)
def _place(starts, options, block, fill, slots):  # type: ignore[no-untyped-def]
    """Give rows their slots, block after block, until the part is full.

    A new agent gets a block with room for all the options that it may have, so it is never split.
    `block` is the number of blocks in use. Returns how many rows were placed, and `block`.
    """
    for row in range(starts.size):
        if block == 0 or (starts[row] == 1 and fill[block - 1] + options > BLOCK):
            if block == fill.size:
                return row, block
            block += 1
        slots[row] = (block - 1) * BLOCK + fill[block - 1]
        fill[block - 1] += 1
    return starts.size, block


@njit(cache=True, nogil=True)
def _encode_values(values, step, cap, clamp, slots, out):  # type: ignore[no-untyped-def]
    bad, clamped = -1, 0
    for i in range(values.size):
        value, is_clamped, is_bad = _admit(values[i], cap, clamp)
        clamped += is_clamped
        if is_bad and bad < 0:
            bad = i
        code = np.int64(value / step)  # Market.value_code: the product below is exact
        if code * step > value:
            code -= 1
        out[slots[i] // BLOCK, slots[i] % BLOCK] = code
    return bad, clamped


@njit(cache=True, nogil=True)
def _encode_amounts(amounts, size, cap, clamp, slots, out, touched):  # type: ignore[no-untyped-def]
    bad, clamped = -1, 0
    for i in range(amounts.size):
        amount, is_clamped, is_bad = _admit(amounts[i], cap, clamp)
        clamped += is_clamped
        if is_bad and bad < 0:
            bad = i
        code = _code_up(amount, size)
        touched[i] += code > 0
        out[slots[i] // BLOCK, slots[i] % BLOCK] = code
    return bad, clamped


@njit(cache=True, nogil=True)
def _encode_pairs(amounts, resources, sizes, caps, clamp, out):  # type: ignore[no-untyped-def]
    bad, clamped = -1, 0
    for i in range(amounts.size):
        amount, is_clamped, is_bad = _admit(amounts[i], caps[resources[i]], clamp)
        clamped += is_clamped
        if is_bad and bad < 0:
            bad = i
        out[i] = _code_up(amount, sizes[resources[i]])
    return bad, clamped


@njit(cache=True, nogil=True)
def _first_repeated(indptr, resources, m):  # type: ignore[no-untyped-def]
    """The first row that names a resource twice, and where; or -1."""
    seen = np.full(m, -1, np.int64)
    for row in range(indptr.size - 1):
        for at in range(indptr[row], indptr[row + 1]):
            if seen[resources[at]] == row:
                return row, at
            seen[resources[at]] = row
    return -1, -1


@njit(cache=True, nogil=True)
def _store(items, slots, out):  # type: ignore[no-untyped-def]
    for i in range(items.size):
        out[slots[i] // BLOCK, slots[i] % BLOCK] = items[i]


@njit(cache=True, nogil=True)
def _scatter(indptr, resources, codes, slots, out):  # type: ignore[no-untyped-def]
    for i in range(slots.size):
        block, row = slots[i] // BLOCK, slots[i] % BLOCK
        for j in range(out.shape[1]):
            out[block, j, row] = 0
        for at in range(indptr[i], indptr[i + 1]):
            out[block, resources[at], row] = codes[at]
