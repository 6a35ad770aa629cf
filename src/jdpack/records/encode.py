"""Private: check records against the market and encode them, piece by piece.

The result is the codes of `jdpack.records.codes`; the original amounts are not kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jdpack.errors import AgentsError
from jdpack.market.market import Market, Neighbours
from jdpack.records import encode_kernels, person_kernels, tables
from jdpack.records.arrow import changes, to_arrow, to_numpy
from jdpack.records.codes import BLOCK, PART_ROWS, Agents, Part, is_sparse, lay_out, space
from jdpack.records.ids import check_same_type, check_unique, joined, plain_ids
from jdpack.records.refusals import (
    BY_THE_RULES,
    COUNT_FIRST,
    bad_number,
    beyond_person,
    beyond_total,
    check_count,
    no_ids,
    repeated_resource,
    too_many_options,
    two_groups,
    wide_bundle,
)
from jdpack.records.schema import has_several
from jdpack.records.tables import OptionRows, Piece
from jdpack.records.threads import Threads

_PART_BYTES = 16 * 2**20

_FEW = 2**20  # how far to count beyond the declared agents, for a better error


@dataclass(frozen=True)
class Tally:
    """Private: counts of what a piece holds, and its first id."""

    rows: int
    agents: int
    requests: int
    clamped: int
    """How many numbers were clamped to the public bounds, and requests left out."""
    id: int | str | None
    """Its first id; None if agents are numbered."""


Codes = tuple[list[Part], Tally]
"""The parts of a piece, with rows counted from its first, and its tally."""


def encode(
    market: Market,
    pieces: Iterable[Piece],
    *,
    clamp: bool = False,
    threads: Threads | None = None,
    tell: Callable[[float], None] = lambda done: None,
) -> Agents:
    """Check and encode records, several pieces at a time; `tell` gets the fraction done.

    Numbers and totals beyond the public bounds are refused or, with `clamp`, cut to the bound.
    Always refused are numbers that are NaN, infinite or negative, options that touch more resources
    than the bundle size, and ids or a number of agents that do not fit the market. The error names
    the first bad record. Requests that would take an agent beyond what it may ask for in total are
    refused or, with `clamp`, left out (`jdpack.market.person`). They are checked part by part,
    after their numbers.
    """
    all_pieces = list(pieces)
    finished = itertools.count(1)

    def one(piece: Piece) -> Codes:
        kept: list[Part] = []
        tally = encode_piece(market, piece, clamp=clamp, keep=kept.append)
        tell(next(finished) / len(all_pieces))
        return kept, tally

    return gather(market, (threads or Threads()).map(one, all_pieces))


def gather(market: Market, codes: Iterable[Codes], limit_bytes: int | None = None) -> Agents:
    """The agents of all pieces, after checking their ids and their number.

    The check of ids may use at most `limit_bytes`.
    """
    parts, tallies, row = list[Part](), list[Tally](), 0
    for some, tally in codes:
        for part in some:
            part.first += row
        row += tally.rows
        parts += some
        tallies.append(tally)
    check_tallies(market, tallies)
    if parts[0].ids is not None:
        check_unique(lambda: (part.ids for part in parts), has_several(market), limit_bytes)
    agents, requests = sum(t.agents for t in tallies), sum(t.requests for t in tallies)
    return Agents(market, parts, agents, requests, sum(t.clamped for t in tallies))


def encode_piece(
    market: Market, piece: Piece, *, clamp: bool, keep: Callable[[Part], None]
) -> Tally:
    """Encode one piece; `keep` gets its parts in order, with rows counted from its first."""
    encoder = _Encoder(market, clamp, keep)
    for chunk in tables.read(market, piece):
        encoder.add(chunk)
    if encoder.part is not None:
        encoder._close_part()
    pa.default_memory_pool().release_unused()
    counts = encoder.agents, encoder.requests, encoder.clamped
    return Tally(encoder.rows, *counts, encoder.first_id)


def check_tallies(market: Market, tallies: Iterable[Tally]) -> None:
    """Check all pieces together: one type of ids, and the declared number of agents."""
    count, id = 0, None
    for tally in tallies:
        count += tally.agents
        if tally.id is not None:
            id = tally.id if id is None else id
            check_same_type(id, tally.id)
    if count == 0:
        raise AgentsError("there are no agents", "the table has no rows")
    check_count(market, count)


@dataclass
class _Encoder:
    market: Market
    clamp: bool
    keep: Callable[[Part], None]
    clamped: int = 0
    rows: int = 0
    agents: int = 0
    requests: int = 0
    first_id: int | str | None = None
    last_id: Any = None
    last_request: str | None = None
    last_options: int = 0
    last_group: int = -1
    last_names: list[str] = field(default_factory=list)
    """The requests, so far, of the last agent of the parts that are closed."""

    # The part being filled.
    part: Part | None = None
    blocks: int = 0
    """How many of its blocks hold rows."""
    ids: list[pa.Array] = field(default_factory=list)
    names: list[pa.Array] = field(default_factory=list)
    """The name of each row's request."""
    options: list[pa.Array] = field(default_factory=list)
    """The name of each row, if the table has them."""
    new: list[NDArray[np.uint8]] = field(default_factory=list)
    """1 at the first row of each agent, if agents make several requests."""
    pairs: list[tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint16]]] = field(
        default_factory=list
    )
    """Sparse: how many pairs each row has, their resources and their codes."""
    problems: list[tuple[int, AgentsError]] = field(default_factory=list)
    """Rows of the chunk with their errors; the error of the first row is raised."""

    def __post_init__(self) -> None:
        m = len(self.market.resources)
        row_bytes = 2 * m if not is_sparse(self.market) else 4 * self.market.bundle_width
        expected = -(-self.market.requests_at_most * self.market.options // BLOCK)
        most = min(_PART_BYTES // (row_bytes * BLOCK), PART_ROWS // BLOCK)
        self.capacity = max(1, min(most, 2 * expected))
        self.totals = encode_kernels.Totals.of_market(self.market)
        self.rules = encode_kernels.Rules.of_market(self.market)
        if self.market.requests > 1:
            self.bounds = person_kernels.BoundArrays.of_market(self.market)
            self.counts = person_kernels.Counts.empty(self.bounds)

    def add(self, chunk: OptionRows) -> None:
        if chunk.rows == 0:
            return
        ids = None
        if chunk.ids is not None:
            ids = plain_ids(chunk.ids, chunk.first, chunk.where)
        starts, new = self._group(ids, chunk.requests, chunk.rows)
        if chunk.groups is not None:
            self._check_groups(chunk, new)
        if self.agents > self.market.agents + _FEW:  # the input may be endless
            raise AgentsError(
                f"there are more than {self.market.agents + _FEW:,} agents, but the market "
                f"declares {self.market.agents:,}",
                COUNT_FIRST,
            )
        row = 0
        while row < chunk.rows:
            part = self.part if self.part is not None else self._open_part(self.rows + row)
            runs = np.empty((len(part.fill), 4), np.int64)
            placed, self.blocks, count = encode_kernels._place(
                starts[row:], self.market.options, self.blocks, part.fill, runs
            )
            if placed == 0:
                self._close_part()
                continue
            self._encode(chunk, slice(row, row + placed), runs[:count], starts, part)
            if ids is not None:
                self.ids.append(ids.slice(row, placed))
            if chunk.requests is not None:
                self.names.append(chunk.requests.slice(row, placed))
                self.new.append(new[row : row + placed])
            if chunk.names is not None:
                self.options.append(chunk.names.slice(row, placed))
            row += placed
        self.rows += chunk.rows

    # --- ids ------------------------------------------------------------------------------

    def _group(
        self, ids: pa.Array | None, requests: pa.Array | None, rows: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """1 at the first row of each request, and of each agent.

        Counts agents and requests, and checks how many options each request has.
        """
        market = self.market
        if ids is None:
            if has_several(market):
                raise no_ids(market)
            if market.neighbours is Neighbours.ADD_REMOVE and not market.divisible:
                # Numbers, and with them coins, would shift when an agent leaves.
                raise AgentsError(
                    "agents that may be added or removed need their own ids",
                    "give ids, so that nobody's coin depends on who else takes part",
                )
        else:
            first: int | str = ids[0].as_py()
            self.first_id = first if self.first_id is None else self.first_id
            check_same_type(self.first_id, first)
        if ids is None or not has_several(market):
            self.agents += rows
            self.requests += rows
            return np.ones(rows, np.uint8), np.ones(rows, np.uint8)
        begun = self.agents > 0
        new = changes(ids, self.last_id if begun else None).view(np.uint8)
        starts = new
        if requests is not None:
            last = self.last_request if begun else None
            starts = new | changes(requests, last).view(np.uint8)
            self.last_request = requests[-1].as_py()
        heads = np.flatnonzero(starts)
        edges = np.concatenate([[-self.last_options], heads[starts[0] :], [rows]])
        if starts[0]:
            edges[0] = 0
        options = np.diff(edges)
        many = np.flatnonzero(options > market.options)
        if len(many):
            row = int(edges[many[0] + 1]) - 1
            who = f"agent {ids[row].as_py()!r}"
            if requests is not None:
                who = f"request {requests[row].as_py()!r} of {who}"
            raise too_many_options(market, who)
        self.agents += int(np.count_nonzero(new))
        self.requests += len(heads)
        self.last_id, self.last_options = ids[-1].as_py(), int(options[-1])
        return starts, new

    def _check_groups(self, chunk: OptionRows, new: NDArray[np.uint8]) -> None:
        """Refuse an agent whose rows name several groups."""
        groups = chunk.groups
        assert groups is not None
        before = np.concatenate([[self.last_group], groups[:-1]])
        differs = np.flatnonzero((groups != before) & (new == 0))
        if len(differs):
            assert chunk.ids is not None
            raise two_groups(chunk.ids[int(differs[0])].as_py())
        self.last_group = int(groups[-1])

    # --- codes ----------------------------------------------------------------------------

    def _open_part(self, first: int) -> Part:
        nb, m = self.capacity, len(self.market.resources)
        sparse = is_sparse(self.market)
        self.blocks = 0
        self.part = Part(
            values=space((nb, BLOCK), np.uint32),
            fill=np.zeros(nb, np.int64),
            starts=np.empty((nb, BLOCK) if self.market.options > 1 else (0, 0), np.uint8),
            codes=space((0, 0, 0) if sparse else (nb, m, BLOCK), np.uint16),
            first=first,
        )
        return self.part

    def _close_part(self) -> None:
        part, nb = self.part, self.blocks
        assert part is not None
        part.values, part.fill = part.values[:nb], part.fill[:nb]
        part.starts = part.starts[:nb]
        for b, n in enumerate(part.fill.tolist()):  # clear uninitialised memory
            part.values[b, n:] = 0
            part.starts[b : b + 1, n:] = 0
            part.codes[b : b + 1, :, n:] = 0
        if self.ids:
            part.ids = joined(self.ids)
        if self.names:
            part.requests = joined(self.names)
            self._check_names(part)
        if self.options:
            part.options = joined(self.options)
        if is_sparse(self.market):
            counts, resources, codes = (np.concatenate(a) for a in zip(*self.pairs, strict=True))
            if self.names and self._bound_people(part, (counts, resources, codes)):
                kept = codes > 0
                row = np.repeat(np.arange(len(counts)), counts)[kept]
                counts = np.bincount(row, minlength=len(counts)).astype(np.uint16)
                resources, codes = resources[kept], codes[kept]
            lay_out(part, counts, resources, codes)
        else:
            part.codes = part.codes[:nb]
            if self.names:
                self._bound_people(part, None)
        self.keep(part)
        self.part, self.pairs, self.ids, self.names, self.new = None, [], [], [], []
        self.options = []

    # --- people ---------------------------------------------------------------------------

    def _check_names(self, part: Part) -> None:
        """Refuse an agent with two requests of one name: they would have the same coin."""
        assert part.ids is not None and part.requests is not None
        heads = np.flatnonzero(part.heads()) if part.starts.size else np.arange(part.rows)
        new = np.concatenate(self.new)[heads]
        names, who = part.requests.take(to_arrow(heads)), np.cumsum(new)
        carried = [] if new[0] else self.last_names
        all_names = pa.concat_arrays([pa.array(carried, pa.large_string()), names])
        everybody = np.concatenate([np.zeros(len(carried), np.int64), who])
        number = to_numpy(all_names.dictionary_encode().indices).astype(np.int64)
        key = everybody * len(all_names) + number
        order = np.argsort(key, kind="stable")
        again = order[1:][key[order[1:]] == key[order[:-1]]]
        if len(again):
            at = int(again.min()) - len(carried)
            id = part.ids[int(heads[at])].as_py()
            raise AgentsError(
                f"agent {id!r} has two requests named {names[at].as_py()!r}",
                "give each request of an agent its own name, and keep its rows together",
            )
        last = np.flatnonzero(new)
        begin = int(last[-1]) if len(last) else 0
        self.last_names = ([] if len(last) else carried) + names.slice(begin).to_pylist()

    def _bound_people(
        self,
        part: Part,
        pairs: tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint16]] | None,
    ) -> bool:
        """Refuse or leave out requests beyond the bounds of their agent; whether there are any."""
        new, left_out = np.concatenate(self.new), np.zeros(part.rows, np.uint8)
        rest = part.values, part.starts, part.fill, new, self.bounds, self.counts, left_out
        if pairs is None:
            person_kernels.bound_dense(part.codes, *rest)
        else:
            person_kernels.bound_pairs(*pairs, *rest)
        rows = np.flatnonzero(left_out)
        if rows.size == 0:
            return False
        if not self.clamp:
            self._refuse_request(part, int(rows[0]), person_kernels.REASONS[left_out[rows[0]]])
        starts = part.heads() if part.starts.size else np.ones(part.rows, np.uint8)
        part.left_out = (left_out > 0).astype(np.uint8)
        self.clamped += int(np.count_nonzero(part.left_out & starts))
        return True

    def _refuse_request(self, part: Part, row: int, bound: str) -> None:
        assert part.ids is not None and part.requests is not None
        raise beyond_person(
            self.market,
            part.ids[row].as_py(),
            bound,
            f" with request {part.requests[row].as_py()!r}",
            "clamp (--clamp, or clamp=True) leaves such requests out, in the order of the table; "
            f"{self.market.hint('[person]', 'Market(person=...)')} {BY_THE_RULES}",
        )

    def _encode(
        self,
        chunk: OptionRows,
        of: slice,
        runs: NDArray[np.int64],
        starts: NDArray[np.uint8],
        part: Part,
    ) -> None:
        """Encode some rows of a chunk to their places in a part."""
        market, values = self.market, chunk.values[of]
        bad, clamped = encode_kernels.encode_values(
            values, market.value_step, market.max_value, self.clamp, runs, part.values
        )
        self._judge(bad, values, of.start, chunk, "value", market.max_value)
        self.clamped += clamped
        if part.starts.size:
            encode_kernels.store(starts[of], runs, part.starts)
        if is_sparse(market) or chunk.indptr is not None:
            self._encode_pairs(chunk, of, runs, part)
        elif chunk.matrix is not None:
            self._encode_matrix(chunk, of, runs, part)
        else:
            self._encode_columns(chunk, of, runs, part)
        if chunk.groups is not None and not is_sparse(market):
            groups = chunk.groups[of]
            encode_kernels.derive_rows(part.codes, runs, groups, self.rules)
        if self.problems:
            raise min(self.problems, key=lambda problem: problem[0])[1]

    def _encode_columns(
        self, chunk: OptionRows, of: slice, runs: NDArray[np.int64], part: Part
    ) -> None:
        market = self.market
        touched = self._counters(of)
        assert chunk.columns is not None
        for j, column in enumerate(chunk.columns):
            cap, amounts = market.resources[j].max_demand, column[of]
            bad, clamped = encode_kernels.encode_amounts(
                amounts, market.unit_sizes[j], cap, self.clamp, runs, part.codes[:, j], touched
            )
            self._judge(bad, amounts, of.start, chunk, self._demand(j), cap)
            self.clamped += clamped
        self._check_bundles(chunk, of.start, touched)
        self._bound_rows(chunk, of, runs, part)

    def _encode_matrix(
        self, chunk: OptionRows, of: slice, runs: NDArray[np.int64], part: Part
    ) -> None:
        market = self.market
        touched = self._counters(of)
        assert chunk.matrix is not None
        caps = np.array([r.max_demand for r in market.declared])
        matrix, sizes = chunk.matrix[of], np.array(market.unit_sizes[: len(caps)])
        bad, j, clamped = encode_kernels.encode_matrix(
            matrix, sizes, caps, self.clamp, runs, part.codes, touched
        )
        self._judge(bad, matrix[:, j], of.start, chunk, self._demand(j), float(caps[j]))
        self.clamped += clamped
        self._check_bundles(chunk, of.start, touched)
        self._bound_rows(chunk, of, runs, part)

    def _bound_rows(
        self, chunk: OptionRows, of: slice, runs: NDArray[np.int64], part: Part
    ) -> None:
        """Refuse or cut what is beyond a bound on a total."""
        if self.market.totals:
            bad, bound, cut = encode_kernels.bound_rows(part.codes, runs, self.totals, self.clamp)
            self._check_total(chunk, of.start + bad, bound)
            self.clamped += cut

    def _encode_pairs(
        self, chunk: OptionRows, of: slice, runs: NDArray[np.int64], part: Part
    ) -> None:
        market = self.market
        indptr, resources, amounts = self._pairs_of(chunk, of)
        self._check_bundles(chunk, of.start, np.diff(indptr))
        caps = np.array([r.max_demand for r in market.declared])
        codes = np.empty(len(amounts), np.uint16)
        bad, clamped = encode_kernels.encode_pairs(
            amounts, resources, np.array(market.unit_sizes), caps, self.clamp, codes
        )
        if bad >= 0:
            at = int(np.searchsorted(indptr, bad, side="right")) - 1  # the row of the bad pair
            j = int(resources[bad])
            one = amounts[bad : bad + 1]
            self._judge(0, one, of.start + at, chunk, self._demand(j), float(caps[j]))
        self.clamped += clamped
        if market.totals:
            bad, bound, cut = encode_kernels.bound_pairs(
                indptr, resources, codes, self.totals, self.clamp
            )
            self._check_total(chunk, of.start + bad, bound)
            self.clamped += cut
            kept = codes > 0
            indptr = np.concatenate([[0], np.cumsum(kept)])[indptr]
            resources, codes = resources[kept], codes[kept]
        if chunk.groups is not None and is_sparse(market):
            indptr, resources, codes = encode_kernels.derive_pairs(
                indptr, resources, codes, chunk.groups[of], self.rules
            )
        if is_sparse(market):
            counts = np.diff(indptr).astype(np.uint16)
            self.pairs.append((counts, resources.astype(np.uint16), codes))
        else:
            encode_kernels.scatter(indptr, resources, codes, runs, part.codes)

    def _pairs_of(
        self, chunk: OptionRows, of: slice
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Some rows of a chunk as compressed sparse rows, without zeros."""
        if chunk.indptr is None:
            matrix = chunk.dense(of)
            at, resources = np.nonzero(matrix)
            indptr = np.searchsorted(at, np.arange(len(matrix) + 1)).astype(np.int64)
            return indptr, resources, matrix[at, resources]
        assert chunk.resources is not None and chunk.amounts is not None
        indptr = chunk.indptr[of.start : of.stop + 1]
        self._check_repeated(chunk, of.start, indptr)
        first, last = indptr[0], indptr[-1]
        kept = chunk.amounts[first:last] != 0.0
        return (
            np.concatenate([[0], np.cumsum(kept)])[indptr - first],
            chunk.resources[first:last][kept],
            chunk.amounts[first:last][kept],
        )

    def _counters(self, of: slice) -> NDArray[np.int64]:
        """Counters of the resources that each row touches; empty if there is no limit."""
        limited = self.market.bundle_size < len(self.market.declared)
        return np.zeros(of.stop - of.start if limited else 0, np.int64)

    # --- errors ---------------------------------------------------------------------------

    def _demand(self, j: int) -> str:
        return f"demand for {self.market.resources[j].name!r}"

    def _who(self, row: int, chunk: OptionRows) -> str:
        if chunk.ids is None:
            return f"agent {chunk.first + row}"
        return f"agent {chunk.ids[row].as_py()!r}"

    def _check_repeated(self, chunk: OptionRows, row: int, indptr: NDArray[np.int64]) -> None:
        at, pair = encode_kernels.first_repeated(
            indptr, chunk.resources, len(self.market.resources)
        )
        if at >= 0:
            assert chunk.resources is not None
            name = self.market.resources[chunk.resources[pair]].name
            who = self._who(row + at, chunk)
            self.problems.append((row + at, repeated_resource(self.market, who, repr(name))))

    def _check_bundles(self, chunk: OptionRows, row: int, touched: NDArray[np.int64]) -> None:
        large = np.flatnonzero(touched > self.market.bundle_size)
        if len(large):
            at = int(large[0])
            who = self._who(row + at, chunk)
            self.problems.append((row + at, wide_bundle(self.market, who, int(touched[at]))))

    def _check_total(self, chunk: OptionRows, row: int, bound: int) -> None:
        if bound < 0:
            return
        who, total = self._who(row, chunk), self.market.totals[bound]
        amounts = chunk.amounts_of(row, len(self.market.declared))
        self.problems.append((row, beyond_total(self.market, who, total, amounts)))

    def _judge(
        self,
        bad: int,
        numbers: NDArray[np.float64],
        row: int,
        chunk: OptionRows,
        what: str,
        cap: float,
    ) -> None:
        if bad >= 0:
            what = f"{self._who(row + bad, chunk)}: {what}"
            self.problems.append((row + bad, bad_number(what, float(numbers[bad]), cap)))
