"""Private: convert numbers between NumPy and Arrow without copying them.

PyArrow's own conversions do the same, but import pandas if it is installed, about 50 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
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
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.large_string(), len(data), buffers)
