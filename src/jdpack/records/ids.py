"""Private: the ids of agents, whole numbers or texts.

An id is public: it determines the agent's coin. Which ids take part is private if agents may be
added or removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jdpack.common.coins import COIN_BITS
from jdpack.errors import AgentsError
from jdpack.records.arrow import changes, texts_between, to_arrow, to_numpy
from jdpack.records.bulk_coins import coins_of_texts
from jdpack.records.hashes import mix_all
from jdpack.records.kernels import njit
from jdpack.records.parquet_guard import TEXT_MAX
from jdpack.records.refusals import repeated_id
from jdpack.records.schema import is_text

Chunks = Callable[[], Iterator[pa.Array]]
"""Iterates over the ids of all rows, from the start at each call."""

_KEY_BYTES = 16  # per key, while keys are gathered and sorted


def plain_ids(ids: pa.Array, first: int = 0, where: str = "") -> pa.Array:
    """Ids as 64-bit integers or texts; `first` rows come before them in their file or table."""
    ids = plain_texts(ids, "an id")
    if ids.null_count:
        row = first + pc.index(ids.is_null(), True).as_py() + 1
        raise AgentsError(
            f"row {row}{f' of {where!r}' if where else ''} has no id",
            "rows are counted from 1, without headers",
        )
    if pa.types.is_integer(ids.type):
        try:
            return ids.cast(pa.int64())
        except pa.ArrowInvalid:
            raise AgentsError(f"id {pc.max(ids)} is above 2^63 - 1", "use text ids") from None
    if is_text(ids.type):
        return ids.cast(pa.large_string())
    raise AgentsError(f"ids are of type {ids.type}", "ids are whole numbers or texts")


def plain_texts(texts: pa.Array, what: str) -> pa.Array:
    """The array without a dictionary; refuses long texts before they are repeated."""
    coded = pa.types.is_dictionary(texts.type)
    own = texts.dictionary if coded else texts
    if is_text(own.type):
        length = pc.max(pc.binary_length(own.cast(pa.large_string()))).as_py()
        if length is not None and length > TEXT_MAX:
            raise AgentsError(f"{what} has {length} bytes; the maximum is {TEXT_MAX}")
    return texts.dictionary_decode() if coded else texts


def check_same_type(one: Any, other: Any) -> None:
    """Refuse two ids if one is a number and the other a text."""
    if type(one) is not type(other):
        raise AgentsError(
            f"ids {one!r} and {other!r} mix numbers and texts",
            "write all ids as numbers, or all as texts",
        )


def check_unique(chunks: Chunks, several: bool, limit_bytes: int | None = None) -> None:
    """Refuse an id of two agents; with `several` options, adjacent rows are one agent.

    Increasing numbers take no memory to check. Otherwise the keys of all ids are split by value
    into as many passes as `limit_bytes` requires.
    """

    def heads() -> Iterator[pa.Array]:
        return first_ids(chunks()) if several else chunks()

    count, in_order = survey(heads())
    if in_order:
        return
    passes = 1
    if limit_bytes is not None:
        passes = max(1, -(-_KEY_BYTES * count // max(1, limit_bytes)))
    edges = [2**64 * i // passes for i in range(passes + 1)]
    for low, high in pairwise(edges):
        own = (_between(keys(chunk), low, high) for chunk in heads())
        twice = _repeated_in(heads(), repeated(own))
        if twice is not None:
            raise repeated_id(twice, several)


def keys(chunk: pa.Array) -> NDArray[np.uint64]:
    """A hash of each id, spread over all 64 bits.

    Equal ids have equal keys, and different numbers have different keys. Two different texts share
    a key with probability 2^-53.
    """
    if pa.types.is_integer(chunk.type):
        return mix_all(to_numpy(chunk).view(np.uint64))  # type: ignore[no-any-return]
    return coins_of_texts(bytes(16), *texts(chunk)) << np.uint64(64 - COIN_BITS)


def repeated(arrays: Iterable[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """The keys that occur more than once, in ascending order."""
    together = np.concatenate([np.empty(0, np.uint64), *arrays])
    together.sort()
    return np.unique(together[1:][together[1:] == together[:-1]])


def _repeated_in(chunks: Iterator[pa.Array], suspects: NDArray[np.uint64]) -> int | str | None:
    """An id that has one of these keys and occurs twice, if any."""
    if not len(suspects):
        return None
    seen = set()
    for chunk in chunks:
        for at in np.flatnonzero(np.isin(keys(chunk), suspects)).tolist():
            id: int | str = chunk[at].as_py()
            if id in seen:
                return id
            seen.add(id)
    return None


def survey(chunks: Iterator[pa.Array]) -> tuple[int, bool]:
    """How many ids there are, and whether they are numbers in increasing order."""
    count, last, in_order = 0, None, True
    for chunk in chunks:
        if len(chunk) == 0:
            continue
        count += len(chunk)
        if in_order:
            numbers = pa.types.is_integer(chunk.type)
            in_order = numbers and (last is None or chunk[0].as_py() > last)
            in_order = in_order and bool(_increasing(to_numpy(chunk)))
            last = chunk[-1].as_py()
    return count, in_order


def first_ids(chunks: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """The first of each run of equal ids."""
    last = None
    for chunk in chunks:
        if len(chunk) == 0:
            continue
        yield chunk.filter(to_arrow(changes(chunk, last)))
        last = chunk[-1].as_py()


def joined(chunks: Sequence[pa.Array]) -> pa.Array:
    """The ids in one array, copied out of the memory pool that Arrow reads files with.

    Left there, among short-lived buffers, they would keep much of the pool from being freed.
    """
    if pa.types.is_integer(chunks[0].type):
        return to_arrow(np.concatenate([to_numpy(chunk) for chunk in chunks]))
    split = [texts(chunk) for chunk in chunks]
    data = np.concatenate([data[ends[0] : ends[-1]] for data, ends in split])
    lengths = np.concatenate([np.diff(ends) for _, ends in split])
    return texts_between(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), data)


def texts(chunk: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of an array of texts, and where each begins and ends."""
    _, offsets, data = chunk.buffers()
    ends = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    return (np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)), ends


def _between(keys: NDArray[np.uint64], low: int, high: int) -> NDArray[np.uint64]:
    if low == 0 and high == 2**64:
        return keys
    return keys[(keys >= np.uint64(low)) & (keys <= np.uint64(high - 1))]


@njit(cache=True, nogil=True)
def _increasing(numbers):  # type: ignore[no-untyped-def]
    for i in range(1, numbers.size):  # noqa: SIM110 (compiled code has no generators)
        if numbers[i] <= numbers[i - 1]:
            return False
    return True
