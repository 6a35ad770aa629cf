"""Private: the ids of agents, whole numbers or texts.

An id is public by itself: it gives the agent's coin. Which ids are there is not, where agents may
be added or removed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit
from numpy.typing import NDArray

from jdpack.coins import coins_of_texts
from jdpack.errors import AgentsError


def plain_ids(ids: pa.Array, rows: int) -> pa.Array:
    """Ids as 64-bit integers or texts; `rows` is how many rows stand before them."""
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    if ids.null_count:
        row = rows + pc.index(ids.is_null(), True).as_py() + 1
        raise AgentsError(
            f"row {row} has no id", "rows are counted from 1, without headers, over all files"
        )
    if pa.types.is_integer(ids.type):
        try:
            return ids.cast(pa.int64())
        except pa.ArrowInvalid:
            raise AgentsError(f"id {pc.max(ids)} is above 2^63 - 1", "use text ids") from None
    if (
        pa.types.is_string(ids.type)
        or pa.types.is_large_string(ids.type)
        or pa.types.is_string_view(ids.type)
    ):
        return ids.cast(pa.large_string())
    raise AgentsError(f"ids are of type {ids.type}", "ids are whole numbers or texts")


def check_same_type(ids: pa.Array, more: pa.Array) -> None:
    """Refuse tables where some ids are numbers and some are texts."""
    if ids.type != more.type:
        raise AgentsError(
            f"ids {ids[0].as_py()!r} and {more[0].as_py()!r} are a number and a text",
            "write all ids as numbers, or all as texts",
        )


def check_unique(ids: pa.ChunkedArray, several: bool) -> None:
    """Refuse an id of two agents; with `several` options, rows that stand together are one."""
    if several:
        ids = _heads(ids)
    twice = _repeated_number(ids) if pa.types.is_integer(ids.type) else _repeated_text(ids)
    if twice is not None:
        raise AgentsError(
            f"id {twice!r} stands for more than one agent",
            "keep the rows of one agent together"
            if several
            else "ids must be unique; if an agent has several options, raise [agents] options",
        )


def _heads(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """The first of each run of equal ids."""
    kept, last = [], None
    for chunk in ids.chunks:
        new = np.ones(len(chunk), bool)
        new[0] = chunk[0].as_py() != last
        new[1:] = pc.not_equal(chunk.slice(1), chunk.slice(0, len(chunk) - 1))
        kept.append(chunk.filter(pa.array(new)))
        last = chunk[-1].as_py()
    return pa.chunked_array(kept)


def _repeated_number(ids: pa.ChunkedArray) -> int | None:
    """A number that stands there twice, if any."""
    last = None
    for chunk in ids.chunks:  # ids are often in order: then no sort, and no room for one
        if len(chunk) == 0:
            continue
        if (last is not None and chunk[0].as_py() <= last) or not _increasing(chunk.to_numpy()):
            break
        last = chunk[-1].as_py()
    else:
        return None
    numbers = np.sort(ids.to_numpy())
    same = np.flatnonzero(numbers[1:] == numbers[:-1])
    return int(numbers[same[0]]) if len(same) else None


def _repeated_text(ids: pa.ChunkedArray) -> str | None:
    """A text that stands there twice, if any.

    Sorted 64-bit hashes take far less room than a table of texts; equal hashes are looked at.
    """
    hashes, row = np.empty(len(ids), np.uint64), 0
    for chunk in ids.chunks:
        hashes[row : row + len(chunk)] = coins_of_texts(bytes(16), *texts(chunk))
        row += len(chunk)
    ordered = np.sort(hashes)
    for same in np.unique(ordered[1:][ordered[1:] == ordered[:-1]]):
        seen: set[str] = set()
        for at in np.flatnonzero(hashes == same).tolist():
            text = ids[at].as_py()
            if text in seen:
                return str(text)
            seen.add(text)
    return None


def texts(chunk: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of an array of texts, and where each begins and ends."""
    _, offsets, data = chunk.buffers()
    ends = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    return (np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)), ends


@njit(cache=True)
def _increasing(numbers):  # type: ignore[no-untyped-def]
    for i in range(1, numbers.size):  # noqa: SIM110 (compiled code has no generators)
        if numbers[i] <= numbers[i - 1]:
            return False
    return True
