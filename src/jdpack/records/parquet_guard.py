"""Private: refuse Parquet files that unpack to too much, before any page is unpacked.

A few bytes can claim to unpack to two gigabytes, or repeat one long text for every row. So the
page headers are read first (https://github.com/apache/parquet-format, Thrift's compact protocol).
A file is refused if its pages are larger than the numbers and texts of its rows can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

TEXT_MAX = 4096
"""The most bytes in an id or any other text in a table of agents."""

_NUMBER = 64  # bytes; no number takes more in a page
_SLACK = 4096  # bytes of a page that are not values: levels, padding
_DICTIONARY_BYTES, _RATIO = 2**24, 100  # a dictionary exceeds at most one of these limits
_HEADER = 2**20  # bytes; no page header has more
_SHARED = 2**28  # bytes unpacked at a time, if texts may share prefixes
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_BYTE_ARRAY, _DELTA_BYTE_ARRAY = 6, 7
_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}


class PageError(ValueError):
    """A page or footer that cannot be right."""


class PageHeader(NamedTuple):
    """What the header of a page says."""

    kind: int
    unpacked: int
    packed: int
    values: int
    encoding: int
    start: int
    """Where its bytes begin in the file."""


class Chunk(NamedTuple):
    """A column of a row group: where its pages are, and what they hold."""

    name: bytes
    text: bool
    codec: int
    start: int
    end: int


def chunks(source: Any, size: int) -> list[list[Chunk]]:
    """The columns of every row group, read from the end of a file of `size` bytes.

    Arrow could list them too, but it crashes the process on some corrupt files.
    """
    source.seek(max(0, size - 8))
    tail = source.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or length > size - 8:
        raise PageError("its footer cannot be read")
    source.seek(size - 8 - length)
    try:
        groups = _Reader(source.read(length)).struct().get(4, [])
        return [[_chunk(column[3]) for column in group[1]] for group in groups]
    except (IndexError, KeyError, TypeError, AttributeError):
        raise PageError("its metadata cannot be read") from None


def _chunk(column: dict[int, Any]) -> Chunk:
    start, first = column[9], column.get(11, 0)
    if first > 0 and (first < start or start == 0):  # without rows there is only a dictionary
        start = first
    codec, length = column[4], column[7]
    if not all(isinstance(n, int) for n in (start, codec, length)):
        raise PageError("its metadata cannot be read")
    return Chunk(b".".join(column[3]), column[1] == _BYTE_ARRAY, codec, start, start + length)


def rows_at_once(source: Any, columns: list[Chunk], names: list[str], count: int, rows: int) -> int:
    """How many of the `count` rows of a row group may be read at once, at most `rows`.

    Refuses columns that unpack to more than the numbers and texts of `count` rows.
    """
    for column in columns:
        if column.name.decode(errors="replace") in names:
            rows = min(rows, _column(source, column, count, rows))
    return rows


def _column(source: Any, column: Chunk, count: int, rows: int) -> int:
    values = 0
    for page in _pages(source, column):
        most, least = _SLACK + page.values * (TEXT_MAX + 8 if column.text else _NUMBER), 0
        if page.kind == _DICTIONARY:  # may have more values than the row group has rows
            most = max(_DICTIONARY_BYTES, _RATIO * page.packed)
            least = 4 * page.values - _SLACK
        elif page.values > count:
            most = -1
        if not least <= page.unpacked <= most or page.values < 0:
            raise PageError(
                f"a page claims to unpack to {page.unpacked} bytes and {page.values} values, "
                f"but there are {count} rows"
            )
        shared = column.text and page.encoding == _DELTA_BYTE_ARRAY
        if page.kind == _DICTIONARY:
            shared = column.text and page.unpacked > TEXT_MAX and column.codec not in _CODECS
            if column.text and page.unpacked > TEXT_MAX and not shared:
                _check_texts(source, column, page)
        else:
            values += page.values
        if values > count:
            raise PageError(f"a column has more values than its {count} rows")
        if shared:
            rows = min(rows, max(16, _SHARED // max(1, page.unpacked)))
    return rows


def _check_texts(source: Any, column: Chunk, page: PageHeader) -> None:
    """Refuse a dictionary that holds a text longer than TEXT_MAX."""
    source.seek(page.start)
    data = source.read(page.packed)
    if (codec := _CODECS[column.codec]) is not None:
        data = pa.Codec(codec).decompress(data, page.unpacked, asbytes=True)
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        if length > TEXT_MAX:
            raise PageError(f"a text has {length} bytes; the maximum is {TEXT_MAX}")
        at += 4 + length


def _pages(source: Any, column: Chunk) -> Iterator[PageHeader]:
    at = column.start
    while at < column.end:
        page = _page(source, at, column.end)
        if page.packed < 0:
            raise PageError(f"a page has {page.packed} bytes")
        if page.kind in (_DATA, _DICTIONARY, _DATA_V2):
            yield page
        at = page.start + page.packed


def _page(source: Any, at: int, end: int) -> PageHeader:
    size = 128
    while True:
        source.seek(at)
        data = source.read(min(size, end - at))
        reader = _Reader(data)
        try:
            fields = reader.struct()
        except IndexError:
            if len(data) < size or size > _HEADER:
                raise PageError("a page header does not end") from None
            size *= 16
            continue
        kind, unpacked, packed = (fields.get(n, -1) for n in (1, 2, 3))
        own = fields.get(7 if kind == _DICTIONARY else 8 if kind == _DATA_V2 else 5, {})
        own = own if isinstance(own, dict) else {}
        values, encoding = own.get(1, 0), own.get(4 if kind == _DATA_V2 else 2, 0)
        if not all(isinstance(n, int) for n in (kind, unpacked, packed, values, encoding)):
            raise PageError("a page header cannot be read")
        return PageHeader(kind, unpacked, packed, values, encoding, at + reader.at)


class _Reader:
    """Thrift's compact protocol: a struct becomes a dictionary from field numbers to values."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while kind := self._byte():
            number = number + (kind >> 4) if kind >> 4 else self._zigzag()
            fields[number] = self._value(kind & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > 12:
            raise PageError("its metadata is nested too deeply")
        if kind in (1, 2):  # the kind itself says true or false
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            return [self._element(head & 15, depth) for _ in range(count)]
        if kind == 12:
            return self.struct(depth + 1)
        raise PageError("its metadata cannot be read")

    def _element(self, kind: int, depth: int) -> Any:
        return self._byte() if kind in (1, 2) else self._value(kind, depth + 1)

    def _bytes(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise IndexError
        self.at += count
        return self.data[self.at - count : self.at]

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > 63:
                raise PageError("its metadata cannot be read")

    def _zigzag(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)
