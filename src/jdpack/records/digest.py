"""Private: a number that tells whether records have changed. It never leaves the curator.

Every row is hashed: its agent's id, the name of its request if there are several, its number among
the options of that request, its value code and its demand codes, and whether it is left out. The
digest is the sum of the hashes. So the same records have the same digest in any layout, from any
engine and for any cut into parts. Records that differ by accident collide with probability about
2^-64, or about 2^-53 if they differ only in text ids, which enter as 53-bit hashes. The digest does
not stop somebody who seeks a collision, but anyone who can change the records does not need one.

Runs whose coins use SHA-256 have another digest, which databases can compute too (`portable`). A
row adds two products of 31-bit numbers modulo a prime: one from the hash of its id and request, one
from a sum of its codes times fixed keys. Records that differ by accident collide with probability
about 2^-60.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jdpack.records.arrow import to_numpy
from jdpack.records.bulk_coins import coins_of_texts
from jdpack.records.codes import BLOCK, Part
from jdpack.records.hashes import mix, mix_all
from jdpack.records.ids import texts
from jdpack.records.kernels import njit


def digest(part: Part) -> int:
    """The sum of the hashes of a part's rows, modulo 2^64."""
    if part.ids is None:
        ids = np.arange(part.first, part.first + part.rows).astype(np.uint64)
    elif part.ids.type == "int64":
        ids = to_numpy(part.ids).view(np.uint64)
    else:
        ids = coins_of_texts(bytes(16), *texts(part.ids))
    if part.requests is not None:
        ids = mix_all(ids) ^ coins_of_texts(bytes(16), *texts(part.requests))
    if part.left_out is not None:
        ids = ids ^ (part.left_out.astype(np.uint64) << np.uint64(63))
    if part.pairs is None:
        total = _dense(part.codes, part.values, part.starts, part.fill, ids)
    else:
        total = _sparse(part.pairs, part.values, part.starts, part.fill, ids)
    return int(total)


DIGEST_PRIME = 2**31 - 1
_KEY_BITS = 29  # so that sums of 2^16 codes and a value, times keys, stay below 2^63


class Keys(NamedTuple):
    """The numbers that the codes of a row are multiplied by."""

    value: int
    option: int
    """Times the number of the option among those of its request, from 1."""
    left_out: int
    codes: list[int]


def digest_keys(which: int, resources: int) -> Keys:
    """The keys of one of the two products."""

    def key(name: str) -> int:
        text = f"jdpack digest {which} {name}"
        return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) >> (32 - _KEY_BITS)

    return Keys(
        key("value"), key("option"), key("left out"), [key(str(j)) for j in range(resources)]
    )


def portable(part: Part, hashes: NDArray[np.uint64], resources: int) -> int:
    """The digest of a part's rows; `hashes` are the 53-bit hashes of their ids and requests."""
    total, numbers = 0, part.option_numbers()
    left_out = part.left_out if part.left_out is not None else np.zeros(part.rows, np.uint8)
    for which, h in enumerate([hashes % np.uint64(2**31), hashes >> np.uint64(22)]):
        keys = digest_keys(which, resources)
        sums = np.zeros(part.rows, np.int64)
        if part.pairs is None:
            _add_dense(part.codes, part.fill, np.array(keys.codes), sums)
        else:
            _add_sparse(part.pairs, part.fill, np.array(keys.codes), sums)
        values = np.concatenate([part.values[b, :n] for b, n in enumerate(part.fill)])
        sums += values.astype(np.int64) * keys.value + numbers * keys.option
        sums += left_out.astype(np.int64) * keys.left_out
        rows = h.astype(np.int64) * (sums % DIGEST_PRIME) % DIGEST_PRIME
        total += int(rows.sum()) << 32 * which
    return total


@njit(cache=True, nogil=True)
def _add_dense(codes, fill, keys, sums):  # type: ignore[no-untyped-def]
    first = 0
    for b in range(fill.size):
        for j in range(codes.shape[1]):
            for i in range(fill[b]):
                sums[first + i] += np.int64(codes[b, j, i]) * keys[j]
        first += fill[b]


@njit(cache=True, nogil=True)
def _add_sparse(pairs, fill, keys, sums):  # type: ignore[no-untyped-def]
    first = 0
    for b in range(fill.size):
        own = sums[first : first + fill[b]]
        for slot in range(pairs.offsets[b], pairs.offsets[b + 1], BLOCK):
            for i in range(fill[b]):
                own[i] += np.int64(pairs.codes[slot + i]) * keys[pairs.resources[slot + i]]
        for pair in range(pairs.rest_offsets[b], pairs.rest_offsets[b + 1]):
            code = np.int64(pairs.rest_codes[pair])
            own[pairs.rest_rows[pair]] += code * keys[pairs.rest_resources[pair]]
        first += fill[b]


@njit(cache=True, nogil=True)
def _dense(codes, values, starts, fill, ids):  # type: ignore[no-untyped-def]
    total, row = np.uint64(0), 0
    keys = _keys(codes.shape[1])
    sums = np.empty(BLOCK, np.uint64)
    for b in range(fill.size):
        sums[:] = np.uint64(0)
        for j in range(codes.shape[1]):
            for i in range(fill[b]):
                sums[i] += np.uint64(codes[b, j, i]) * keys[j]
        total += _rows(sums, values, starts, b, fill[b], ids, row)
        row += fill[b]
    return total


@njit(cache=True, nogil=True)
def _sparse(pairs, values, starts, fill, ids):  # type: ignore[no-untyped-def]
    total, row = np.uint64(0), 0
    keys = _keys(2**16)
    sums = np.empty(BLOCK, np.uint64)
    for b in range(fill.size):
        sums[:] = np.uint64(0)
        for slot in range(pairs.offsets[b], pairs.offsets[b + 1], BLOCK):
            for i in range(fill[b]):
                key = keys[pairs.resources[slot + i]]
                sums[i] += np.uint64(pairs.codes[slot + i]) * key
        for pair in range(pairs.rest_offsets[b], pairs.rest_offsets[b + 1]):
            key = keys[pairs.rest_resources[pair]]
            sums[pairs.rest_rows[pair]] += np.uint64(pairs.rest_codes[pair]) * key
        total += _rows(sums, values, starts, b, fill[b], ids, row)
        row += fill[b]
    return total


@njit(cache=True, nogil=True)
def _rows(sums, values, starts, b, n, ids, row):  # type: ignore[no-untyped-def]
    """The sum of the hashes of a block's rows; `sums` are the hashes of their demands."""
    total, option = np.uint64(0), np.uint64(0)
    for i in range(n):
        option = np.uint64(0) if starts.size == 0 or starts[b, i] else option + np.uint64(1)
        value = np.uint64(values[b, i]) | option << np.uint64(32)
        total += mix(sums[i] + mix(value + mix(ids[row + i])))
    return total


@njit(cache=True, nogil=True)
def _keys(count):  # type: ignore[no-untyped-def]
    """An odd number for each resource."""
    keys = np.empty(count, np.uint64)
    for j in range(count):
        keys[j] = mix(np.uint64(j)) | np.uint64(1)
    return keys
