"""Private: some of the agents, on one machine. Its answers to all queries are exact and add up.

A shard holds parts of encoded rows, in memory or mapped from disk, and processes them on its
threads. Every answer is a sum over its agents, so shards on many machines answer as one
(`jdpack.engines.sharded`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Seed, Step
from jdpack.common import coins
from jdpack.common.batches import Batch
from jdpack.common.coins import SIPHASH, CoinHash
from jdpack.engines import best_response, curvature, giving
from jdpack.engines.base import Allocation
from jdpack.engines.batched import Batched
from jdpack.engines.screening import IN, OPEN, Box, Boxes, Prices, decided, rows_of
from jdpack.market.grid import SHARE
from jdpack.market.market import Market
from jdpack.records import bulk_coins
from jdpack.records.arrow import to_arrow, to_numpy
from jdpack.records.codes import Part
from jdpack.records.digest import digest, portable
from jdpack.records.ids import texts
from jdpack.records.schema import allocation_names
from jdpack.records.threads import Threads

Shares = NDArray[np.uint32]

_SCREENED = 2**16  # with fewer rows, a round over all of them costs little beyond its overhead
_FEW = 2**24  # computing this many choices is faster than compiling the code that avoids some
NOBODY = 2**coins.COIN_BITS


@dataclass(frozen=True)
class Rounds:
    """The part of an unfinished billboard that determines an agent's averaged share."""

    steps: tuple[Step, ...]
    order: bytes
    hash: CoinHash = SIPHASH
    """The hash behind turns and coins."""

    @classmethod
    def of(cls, board: Billboard) -> Rounds:
        return cls(tuple(board.rounds), board.header.order, board.header.coin_hash)


@dataclass(frozen=True)
class Final:
    """The part of a finished billboard that determines what an agent gets."""

    rounds: Rounds
    seed: Seed
    factors: tuple[int, ...]
    """An option's share is scaled by the smallest factor among its resources, over SHARE."""
    drop_from: int = NOBODY
    """Requests with this coin or a larger one get nothing, or a supply would be exceeded."""


class Shard:
    """Some of the agents.

    `scratch` allocates an array for the share of every row. Copies of the codes may take at most
    `limit_bytes`.
    """

    def __init__(
        self,
        market: Market,
        parts: list[Part],
        threads: Threads,
        scratch: Callable[[int], Shares] = lambda rows: np.empty(rows, np.uint32),
        limit_bytes: int | None = None,
    ) -> None:
        self.market, self.parts, self.threads = market, parts, threads
        self.rows = sum(part.rows for part in parts)
        self._scratch = scratch
        self._screens = self.rows >= _SCREENED
        self._limit_bytes = limit_bytes
        self.boxes = Boxes[Box]()
        self._base: tuple[Rounds, list[Shares]] | None = None
        self._batched: tuple[tuple[bytes, CoinHash, int], list[Batched]] | None = None

    # --- rounds ---------------------------------------------------------------------------

    def demand(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        """The demand; only undecided agents are asked while prices stay in a box."""
        codes = np.array(prices, dtype=np.float64)
        box = self.boxes.at(codes, self._screen) if self._screens else None
        if box is None:
            return self._sum(best_response.demand, self.parts, codes)
        rest = self._sum(best_response.demand, box.open, codes)
        return tuple(a + b for a, b in zip(box.demand, rest, strict=True))

    def _screen(self, low: Prices, high: Prices) -> Box | None:
        return Box.screen(self.parts, low, high, self.rows // 2, self.threads, self._limit_bytes)

    def batch_demand(
        self,
        prices: Sequence[tuple[int, ...]],
        batch: Batch,
        order: bytes,
        hash: CoinHash = SIPHASH,
    ) -> tuple[int, ...]:
        codes, parts = np.array(prices, dtype=np.float64), self._in_order(order, hash, batch.count)
        return tuple(np.sum([part.demand(codes, batch.index) for part in parts], axis=0).tolist())

    def value(self, prices: tuple[int, ...]) -> int:
        price, weight = np.array([prices], dtype=np.float64), np.ones(1, np.int64)

        def of(part: Part) -> int:
            return giving.welfare(part, best_response.shares(part, price, weight))

        return sum(self.threads.map(of, self.parts))

    def curvature(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        return self._sum(curvature.curvature, self.parts, np.array(prices, dtype=np.float64))

    def gauge(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        return self._sum(curvature.gauge, self.parts, np.array(prices, dtype=np.float64))

    def _sum(
        self, query: Callable[[Part, Prices], NDArray[np.int64]], parts: list[Part], prices: Prices
    ) -> tuple[int, ...]:
        nothing = np.zeros(len(prices) if not parts else (), np.int64)
        answer = self.threads.sum(lambda part: query(part, prices), parts, start=nothing)
        return tuple(answer.ravel().tolist())

    def _in_order(self, order: bytes, hash: CoinHash, count: int) -> list[Batched]:
        if self._batched is None or self._batched[0] != (order, hash, count):

            def of(part: Part) -> Batched:
                return Batched(part, _places(part, order, hash), count)

            self._batched = (order, hash, count), self.threads.map(of, self.parts)
        return self._batched[1]

    # --- the averaged allocation, and what coins grant ------------------------------------

    def welfare(self, rounds: Rounds) -> int:
        base = zip(self.parts, self._shares(rounds), strict=True)
        return sum(self.threads.map(lambda pair: giving.welfare(*pair), base))

    def chance(self, rounds: Rounds, dearest: int) -> tuple[int, ...]:
        m = len(self.market.resources)
        base = zip(self.parts, self._shares(rounds), strict=True)
        sums = self.threads.map(lambda pair: giving.chance(pair[0], m, pair[1], dearest), base)
        return tuple(sum(numbers) for numbers in zip(*sums, strict=True))

    def luck(
        self, rounds: Rounds, seed: Seed, factors: tuple[int, ...], lowest: int, highest: int
    ) -> int:
        final = Final(rounds, seed, factors)

        def of(pair: tuple[Part, Shares]) -> int:
            part, base = pair
            return giving.luck(part, base, self._give(part, base, final)[0], lowest, highest)

        return sum(self.threads.map(of, zip(self.parts, self._shares(rounds), strict=True)))

    def give(self, final: Final) -> Allocation:
        """The sums of what all agents get."""
        m = len(self.market.resources)

        def of(pair: tuple[Part, Shares]) -> Allocation:
            part, (shares, dropped) = pair[0], self._give(*pair, final)
            return Allocation(
                loads=tuple(giving.loads(part, m, shares)),
                winners=part.requests_with(shares),
                shares=int(shares.sum(dtype=np.uint64)),
                value=giving.welfare(part, shares),
                dropped=dropped,
                drop_from=final.drop_from,
            )

        pairs = zip(self.parts, self._shares(final.rounds), strict=True)
        return Allocation.of_all(self.threads.map(of, pairs))

    def shares(self, final: Final) -> Shares:
        """What each row gets, in units of 1/SHARE."""
        return np.concatenate([given for _, given in self.all_given(final)])

    def write(self, final: Final, file: IO[bytes]) -> None:
        """Stream the allocation to Parquet: id, request and option if several, share or granted."""
        options = {"use_dictionary": False, "write_page_checksum": True}
        with pyarrow.parquet.ParquetWriter(file, self.schema, **options) as writer:
            for table in self.tables(final):
                writer.write_table(table)

    def tables(self, final: Final) -> Iterator[pa.Table]:
        """The rows of the allocation, part by part."""
        for part, given in self.all_given(final):
            columns = [_ids(part)]
            if part.requests is not None:
                columns.append(part.requests)
            if part.options is not None:
                columns.append(part.options)
            elif self.market.options > 1:
                columns.append(to_arrow(part.option_numbers().astype(np.int32)))
            columns.append(to_arrow(given / SHARE if self.market.divisible else given > 0))
            yield pa.table(columns, schema=self.schema)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the allocation, with the names that the table has for them."""
        market, first = self.market, self.parts[0]
        kinds = [_ids(first).type]
        kinds += [pa.large_string()] if market.requests > 1 else []
        if market.options > 1:
            kinds.append(pa.int32() if first.options is None else pa.large_string())
        kinds.append(pa.float64() if market.divisible else pa.bool_())
        return pa.schema(zip(allocation_names(market), kinds, strict=True))

    def all_given(self, final: Final) -> Iterator[tuple[Part, Shares]]:
        """Each part, with what its rows get."""
        for part, base in zip(self.parts, self._shares(final.rounds), strict=True):
            yield part, self._give(part, base, final)[0]

    def _give(self, part: Part, base: Shares, final: Final) -> tuple[Shares, int]:
        """What the agents get of their averaged shares, and how many winners are dropped."""
        given = base.copy()
        scaling = giving.factors(part, np.array(final.factors, np.uint32))
        if self.market.divisible:
            giving.scale(given, scaling)
        else:
            # A full, unscaled share is granted whatever the coin; an empty one never is.
            tossed = (given > 0) & ((given < SHARE) | (scaling < SHARE))
            coins = _coins(part, final.seed.seed, final.rounds.hash, tossed)
            giving.flip(part, given, coins, scaling)
        if part.left_out is not None:
            given[part.left_out == 1] = 0
        if final.drop_from == NOBODY:
            return given, 0
        winners = part.requests_with(given)
        coins = _coins(part, final.seed.seed, final.rounds.hash)
        given[coins >= np.uint64(final.drop_from)] = 0
        return given, winners - part.requests_with(given)

    def _shares(self, rounds: Rounds) -> list[Shares]:
        """The averaged share of every row, part by part, before scaling and coins."""
        if self._base is None or self._base[0] != rounds:
            self._base = None
            shares, row = [], 0
            whole = self._scratch(self.rows)
            for part in self.parts:
                shares.append(whole[row : row + part.rows])
                row += part.rows
            self._share(rounds, shares)
            self._base = rounds, shares
        return self._base[1]

    def _share(self, rounds: Rounds, out: list[Shares]) -> None:
        steps = rounds.steps
        prices = np.array([step.prices for step in steps], dtype=np.float64)
        weights = np.array([step.weight for step in steps], dtype=np.int64)
        if steps and steps[0].batch is not None:
            parts = self._in_order(rounds.order, rounds.hash, steps[0].batch.count)
            for part, own in zip(parts, out, strict=True):
                own[:] = part.shares(prices)
            return
        low, high = prices.min(axis=0), prices.max(axis=0)
        few = self.rows * len(steps) < _FEW

        def of(pair: tuple[Part, Shares]) -> None:
            part, own = pair
            if few:
                own[:] = best_response.shares(part, prices, weights)
                return
            states = decided(part, low, high)
            rows = np.flatnonzero(states == OPEN)
            if len(rows) > part.rows // 2:
                own[:] = best_response.shares(part, prices, weights)
                return
            # Do not ask agents who made the same choice in every round.
            own[:] = np.where(states == IN, np.uint32(SHARE), np.uint32(0))
            if len(rows):
                own[rows] = best_response.shares(rows_of(part, rows), prices, weights)

        self.threads.map(of, zip(self.parts, out, strict=True))

    # --- identity -------------------------------------------------------------------------

    def digest(self, hash: CoinHash = SIPHASH) -> int:
        """A number that changes whenever a record does; see `jdpack.records.digest`."""

        def of(part: Part) -> int:
            if hash == SIPHASH:
                return digest(part)
            return portable(part, _coins(part, bytes(16), hash), len(self.market.resources))

        return sum(self.threads.map(of, self.parts)) % 2**64


def _ids(part: Part) -> pa.Array:
    if part.ids is not None:
        return part.ids
    return to_arrow(np.arange(part.first, part.first + part.rows))


def _coins(
    part: Part, key: bytes, hash: CoinHash, tossed: NDArray[np.bool_] | None = None
) -> NDArray[np.uint64]:
    """The coin of each row's request; 0 for rows that are not `tossed`."""
    if part.requests is None:
        return _places(part, key, hash, tossed)
    which = np.arange(part.rows) if tossed is None else np.flatnonzero(tossed)
    at = to_arrow(which)
    some = bulk_coins.request_keys(_ids(part).take(at), part.requests.take(at))
    out = np.zeros(part.rows, np.uint64)
    out[which] = bulk_coins.coins_of_texts(key, *texts(some), hash=hash)
    return out


def _places(
    part: Part, key: bytes, hash: CoinHash, some: NDArray[np.bool_] | None = None
) -> NDArray[np.uint64]:
    """The hash of each row's id; 0 for rows that are not in `some`."""
    which = np.arange(part.rows) if some is None else np.flatnonzero(some)
    if part.ids is None:
        found = bulk_coins.coins_of_numbers(key, part.first + which, hash)
    elif pa.types.is_integer(part.ids.type):
        found = bulk_coins.coins_of_numbers(key, to_numpy(part.ids)[which], hash)
    else:
        found = bulk_coins.coins_of_texts(key, *texts(part.ids), which, hash)
    if some is None:
        return found
    out = np.zeros(part.rows, np.uint64)
    out[which] = found
    return out
