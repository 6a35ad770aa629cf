"""Private: convert numbers between NumPy and Arrow without copying them.

PyArrow's own conversions do the same, but import pandas if it is installed, about 50 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_NAMES = {"double": "float64", "float": "float32"}


def to_numpy(array: pa.Array) -> NDArray[Any]:
    """The numbers or truth values of an array without nulls."""
    data, stop = array.buffers()[1], array.offset + len(array)
    kind = str(array.type)
    if data is None:
        return np.empty(0, _NAMES.get(kind, kind))
    if pa.types.is_boolean(array.type):
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=stop, bitorder="little")
        return bits[array.offset :].view(bool)
    return np.frombuffer(data, _NAMES.get(kind, kind), stop)[array.offset :]


def to_arrow(numbers: NDArray[Any]) -> pa.Array:
    """An Arrow array of numbers or truth values."""
    kind, data = pa.from_numpy_dtype(numbers.dtype), np.ascontiguousarray(numbers)
    if numbers.dtype == bool:
        data = np.packbits(data, bitorder="little")
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(data)])


def texts_to_arrow(texts: Sequence[str]) -> pa.Array:
    """An Arrow array of texts."""
    data = [text.encode() for text in texts]
    ends = np.concatenate([[0], np.cumsum([len(text) for text in data])]).astype(np.int64)
    return texts_between(ends, b"".join(data))


def texts_between(ends: NDArray[np.int64], data: bytes | NDArray[np.uint8]) -> pa.Array:
    """An Arrow array of the texts data[ends[i]:ends[i + 1]]."""
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(ends) - 1, buffers)


def changes(column: pa.Array, last: Any) -> NDArray[np.bool_]:
    """Whether each entry differs from the one before; `last` is the one before the first."""
    new = np.ones(len(column), bool)
    new[0] = column[0].as_py() != last
    new[1:] = to_numpy(pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)))
    return new
