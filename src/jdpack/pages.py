"""Private: how much memory the pages of a Parquet file take, before any of them is unpacked.

A few bytes can claim to unpack to two gigabytes, or repeat one long text for every row. So the
headers of the pages are read first (https://github.com/apache/parquet-format, Thrift's compact
protocol), and files whose pages are larger than the numbers and texts of their rows are refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet

TEXT_MAX = 4096
"""The most bytes of an id, or of another text in a table of agents."""

_NUMBER = 64  # more bytes than a number takes in a page
_SLACK = 4096  # bytes of a page beside its values: levels, padding
_DICTIONARY_BYTES, _RATIO = 2**24, 100  # a dictionary is smaller, or less packed
_HEADER = 2**20  # more bytes than the header of a page has
_SHARED = 2**28  # bytes of a batch whose texts may share their beginnings
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_DELTA_BYTE_ARRAY = 7


class PageError(ValueError):
    """A page that is not what the file says it is."""


class Page(NamedTuple):
    """What the header of a page says."""

    kind: int
    unpacked: int
    packed: int
    values: int
    encoding: int
    start: int
    """Where its bytes begin in the file."""


def rows_at_once(
    source: Any, metadata: pa.parquet.FileMetaData, groups: range, names: list[str], rows: int
) -> int:
    """How many rows may be read at once, at most `rows`; refuses what unpacks to too much."""
    for group in groups:
        whole = metadata.row_group(group)
        for at in range(whole.num_columns):
            column = whole.column(at)
            if column.path_in_schema in names:
                rows = min(rows, _column(source, column, whole.num_rows, rows))
    return rows


def _column(source: Any, column: pa.parquet.ColumnChunkMetaData, count: int, rows: int) -> int:
    text, values = column.physical_type == "BYTE_ARRAY", 0
    for page in _pages(source, column):
        most, least = _SLACK + page.values * (TEXT_MAX + 8 if text else _NUMBER), 0
        if page.kind == _DICTIONARY:  # it may have more values than there are rows
            most = max(_DICTIONARY_BYTES, _RATIO * page.packed)
            least = 4 * page.values - _SLACK
        elif page.values > count:
            most = -1
        if not least <= page.unpacked <= most or page.values < 0:
            raise PageError(
                f"a page of column {column.path_in_schema!r} claims to unpack to {page.unpacked} "
                f"bytes and {page.values} values, and there are {count} rows"
            )
        if page.kind == _DICTIONARY:
            if text and page.unpacked > TEXT_MAX:
                _check_texts(source, column, page)
            continue
        values += page.values
        if values > count:
            raise PageError(f"column {column.path_in_schema!r} has more than its {count} values")
        if text and page.encoding == _DELTA_BYTE_ARRAY:
            rows = min(rows, max(16, _SHARED // max(1, page.unpacked)))
    return rows


def _check_texts(source: Any, column: pa.parquet.ColumnChunkMetaData, page: Page) -> None:
    """Refuse a dictionary with a text that is too long."""
    source.seek(page.start)
    data = source.read(page.packed)
    if column.compression != "UNCOMPRESSED":
        codec = {"LZ4": "lz4_hadoop"}.get(column.compression, column.compression.lower())
        data = pa.Codec(codec).decompress(data, page.unpacked, asbytes=True)
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        if length > TEXT_MAX:
            raise PageError(
                f"column {column.path_in_schema!r} has a text of {length} bytes, "
                f"and {TEXT_MAX} are the most"
            )
        at += 4 + length


def _pages(source: Any, column: pa.parquet.ColumnChunkMetaData) -> Any:
    at = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    end = at + column.total_compressed_size
    while at < end:
        page = _page(source, at, end)
        if page.packed < 0:
            raise PageError(f"a page of column {column.path_in_schema!r} has {page.packed} bytes")
        if page.kind in (_DATA, _DICTIONARY, _DATA_V2):
            yield page
        at = page.start + page.packed


def _page(source: Any, at: int, end: int) -> Page:
    size = 128
    while True:
        source.seek(at)
        data = source.read(min(size, end - at))
        reader = _Reader(data)
        try:
            fields = reader.struct()
        except IndexError:
            if len(data) < size or size > _HEADER:
                raise PageError("the header of a page has no end") from None
            size *= 16
            continue
        kind = fields.get(1, -1)
        own = fields.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0), {})
        encoding = own.get({_DATA_V2: 4}.get(kind, 2), 0) if isinstance(own, dict) else 0
        values = own.get(1, 0) if isinstance(own, dict) else 0
        unpacked, packed = fields.get(2, -1), fields.get(3, -1)
        if not all(isinstance(n, int) for n in (kind, unpacked, packed, values, encoding)):
            raise PageError("the header of a page cannot be read")
        return Page(kind, unpacked, packed, values, encoding, at + reader.at)


class _Reader:
    """Thrift's compact protocol, as far as the headers of pages need it."""

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
        if depth > 8:
            raise PageError("the header of a page is nested too deeply")
        if kind in (1, 2):  # true and false, in the kind itself
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._varint())
        if kind in (9, 10):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            for _ in range(count):
                self._element(head & 15, depth)
            return None
        if kind == 12:
            return self.struct(depth + 1)
        raise PageError("the header of a page cannot be read")

    def _element(self, kind: int, depth: int) -> None:
        if kind in (1, 2):
            self._byte()
        else:
            self._value(kind, depth + 1)

    def _skip(self, count: int) -> None:
        if self.at + count > len(self.data):
            raise IndexError
        self.at += count

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
                raise PageError("the header of a page cannot be read")

    def _zigzag(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)
