"""Private: the compiled loops of encoding."""

from __future__ import annotations

import numpy as np
from numba import njit

from jdpack.records.codes import BLOCK

_TILE = 2**11  # numbers of a matrix encoded at a time, to stay in the cache

# What is wrong with a number.
_FINE, _NOT_A_NUMBER, _INFINITE, _NEGATIVE, BEYOND = range(5)


@njit(inline="always")
def kind_of(number, cap):  # type: ignore[no-untyped-def]
    """What is wrong with a number, or _FINE."""
    if 0.0 <= number <= cap:
        return _FINE
    if number != number:
        return _NOT_A_NUMBER
    if np.isinf(number):
        return _INFINITE
    return _NEGATIVE if number < 0.0 else BEYOND


@njit(inline="always")
def _admit(number, cap, clamp):  # type: ignore[no-untyped-def]
    """The number to encode, whether it was clamped, and whether it must be refused."""
    kind = kind_of(number, cap)
    if kind == _FINE:
        return number, False, False
    if kind == BEYOND and clamp:
        return cap, True, False
    return 0.0, False, True


@njit(inline="always")
def _code_up(amount, size):  # type: ignore[no-untyped-def]
    """`Market.demand_code`; the product is exact."""
    code = np.floor(amount / size)
    return np.uint16(np.int32(code + 1.0 if code * size < amount else code))


@njit(cache=True, nogil=True, error_model="numpy")
def _place(starts, options, block, fill, runs):  # type: ignore[no-untyped-def]
    """Assign rows to places, block after block, until the part is full.

    A new agent goes to a block with space for as many options as the market allows, so that no
    agent is split. `block` is the number of blocks in use. A run is (block, place in it, row,
    number of rows). Returns how many rows were placed, `block`, and the number of runs.
    """
    row, count = 0, 0
    while row < starts.size:
        if block == 0 or (starts[row] == 1 and fill[block - 1] + options > BLOCK):
            if block == fill.size:
                break
            block += 1
        at, begin = fill[block - 1], row
        if options == 1:
            row += min(BLOCK - at, starts.size - row)
        else:
            row += 1
            while row < starts.size and not (
                starts[row] == 1 and at + row - begin + options > BLOCK
            ):
                row += 1
        # One by one: compiling a tuple assignment would take seconds.
        runs[count, 0], runs[count, 1] = block - 1, at
        runs[count, 2], runs[count, 3] = begin, row - begin
        fill[block - 1] += row - begin
        count += 1
    return row, block, count


@njit(cache=True, nogil=True, error_model="numpy")
def encode_values(values, step, cap, clamp, runs, out):  # type: ignore[no-untyped-def]
    """Encode values; returns the index of the first bad one, or -1, and how many were clamped."""
    bad, clamped = -1, 0
    for r in range(runs.shape[0]):
        block, at, row, n = runs[r, 0], runs[r, 1], runs[r, 2], runs[r, 3]
        source, codes, odd = values[row : row + n], out[block, at : at + n], 0
        for i in range(n):
            value = source[i]
            odd += not (value >= 0.0 and value <= cap)
            code = np.floor(value / step)  # `Market.value_code`; the product below is exact
            codes[i] = np.int64(code - 1.0 if code * step > value else code)
        if odd == 0:
            continue
        for i in range(n):
            value, is_clamped, is_bad = _admit(source[i], cap, clamp)
            clamped += is_clamped
            if is_bad and bad < 0:
                bad = row + i
            code = np.floor(value / step)
            codes[i] = np.int64(code - 1.0 if code * step > value else code)
    return bad, clamped


@njit(inline="always")
def _encode_run(source, size, cap, clamp, codes):  # type: ignore[no-untyped-def]
    """Encode adjacent amounts, on the assumption that all are fine, then check that."""
    odd = 0
    for i in range(source.size):
        amount = source[i]
        odd += not (amount >= 0.0 and amount <= cap)
        codes[i] = _code_up(amount, size)
    bad, clamped = -1, 0
    if odd:
        for i in range(source.size):
            amount, is_clamped, is_bad = _admit(source[i], cap, clamp)
            clamped += is_clamped
            if is_bad and bad < 0:
                bad = i
            codes[i] = _code_up(amount, size)
    return bad, clamped


@njit(cache=True, nogil=True, error_model="numpy")
def encode_amounts(amounts, size, cap, clamp, runs, out, touched):  # type: ignore[no-untyped-def]
    """Encode amounts of one resource; returns the same as `encode_values`."""
    bad, clamped = -1, 0
    for r in range(runs.shape[0]):
        block, at, row, n = runs[r, 0], runs[r, 1], runs[r, 2], runs[r, 3]
        codes = out[block, at : at + n]
        wrong, more = _encode_run(amounts[row : row + n], size, cap, clamp, codes)
        clamped += more
        if wrong >= 0 and bad < 0:
            bad = row + wrong
        if touched.size:
            for i in range(n):
                touched[row + i] += codes[i] > 0
    return bad, clamped


@njit(cache=True, nogil=True, error_model="numpy")
def encode_matrix(matrix, sizes, caps, clamp, runs, out, touched):  # type: ignore[no-untyped-def]
    """Encode a matrix column by column, for a few rows at a time that fit in the cache."""
    bad, column, clamped = -1, 0, 0
    tile = max(16, _TILE // matrix.shape[1])
    for r in range(runs.shape[0]):
        block, at, row, n = runs[r, 0], runs[r, 1], runs[r, 2], runs[r, 3]
        for begin in range(0, n, tile):
            size = min(tile, n - begin)
            low = row + begin
            for j in range(matrix.shape[1]):
                codes = out[block, j, at + begin : at + begin + size]
                wrong, more = _encode_run(
                    matrix[low : low + size, j], sizes[j], caps[j], clamp, codes
                )
                clamped += more
                if wrong >= 0 and (bad < 0 or low + wrong < bad):
                    bad, column = low + wrong, j
                if touched.size:
                    for i in range(size):
                        touched[low + i] += codes[i] > 0
    return bad, column, clamped


@njit(cache=True, nogil=True, error_model="numpy")
def encode_pairs(amounts, resources, sizes, caps, clamp, out):  # type: ignore[no-untyped-def]
    """Encode the amounts of pairs; returns the same as `encode_values`."""
    bad, clamped = -1, 0
    for i in range(amounts.size):
        amount, is_clamped, is_bad = _admit(amounts[i], caps[resources[i]], clamp)
        clamped += is_clamped
        if is_bad and bad < 0:
            bad = i
        out[i] = _code_up(amount, sizes[resources[i]])
    return bad, clamped


@njit(cache=True, nogil=True, error_model="numpy")
def first_repeated(indptr, resources, m):  # type: ignore[no-untyped-def]
    """The first row that names a resource twice, and the index of the second pair; or -1, -1."""
    seen = np.full(m, -1, np.int64)
    for row in range(indptr.size - 1):
        for at in range(indptr[row], indptr[row + 1]):
            if seen[resources[at]] == row:
                return row, at
            seen[resources[at]] = row
    return -1, -1


@njit(cache=True, nogil=True, error_model="numpy")
def store(items, runs, out):  # type: ignore[no-untyped-def]
    """Copy items to the places assigned by `_place`."""
    for r in range(runs.shape[0]):
        block, at, row, n = runs[r, 0], runs[r, 1], runs[r, 2], runs[r, 3]
        out[block, at : at + n] = items[row : row + n]


@njit(cache=True, nogil=True, error_model="numpy")
def scatter(indptr, resources, codes, runs, out):  # type: ignore[no-untyped-def]
    """Copy sparse codes to the places assigned by `_place`."""
    for r in range(runs.shape[0]):
        block, place, row, n = runs[r, 0], runs[r, 1], runs[r, 2], runs[r, 3]
        out[block, :, place : place + n] = 0
        for i in range(n):
            for at in range(indptr[row + i], indptr[row + i + 1]):
                out[block, resources[at], place + i] = codes[at]
