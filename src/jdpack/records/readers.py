"""Private: cut files of agents into pieces, and read the pieces.

A piece is a range of consecutive rows, found from the files' metadata alone. Any process that can
reach the files can read a piece by itself, and notices if a file has changed.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet

from jdpack.errors import AgentsError
from jdpack.market.market import Market
from jdpack.records import parquet_guard
from jdpack.records.locate import File, file_system, find, reason_of, without_credentials
from jdpack.records.refusals import COUNT_FIRST
from jdpack.records.schema import (
    check_columns,
    check_names,
    check_texts,
    clean,
    csv_types,
    has_runs,
    is_ignored,
    most_rows,
    wanted,
)
from jdpack.records.threads import Threads

_CSV_BYTES = 2**22  # bytes of a CSV file read at a time
_CSV_ROW = 2**20  # bytes; no row of a CSV file has more
_FEW = 2**20  # surplus rows that still get the better error, which counts agents
_HASHED = 2**26  # bytes hashed at a time
_FOOTERS = 16  # read at the same time, because each waits for the network


@dataclass(frozen=True)
class Span:
    """Consecutive rows of a file: some row groups of Parquet, or a whole CSV file."""

    file: File
    groups: tuple[int, int] | None
    first: int
    """How many rows of the file come before it."""
    rows: int
    """How many rows it has; an estimate for a CSV file."""

    @property
    def rows_at_least(self) -> int:
        return self.rows if self.groups is not None else self.file.size // _CSV_ROW


@dataclass(frozen=True)
class FilePiece:
    """The agents whose first rows are in some spans. Small enough to send to any process."""

    spans: tuple[Span, ...]
    before: tuple[Span, ...] = ()
    """Where to look for the row before the piece, nearest span first. Empty for the first piece."""
    after: tuple[Span, ...] = ()
    """Where the last agent may have more rows."""
    to_the_end: bool = True
    """Whether `after` covers everything that follows."""

    @property
    def rows(self) -> int:
        """About how many rows it has."""
        return sum(span.rows for span in self.spans)


@dataclass(frozen=True)
class Rows:
    """Some consecutive rows of a table as read, and where they come from."""

    batch: pa.RecordBatch
    first: int
    where: str

    def slice(self, start: int, length: int | None = None) -> Rows:
        return Rows(self.batch.slice(start, length), self.first + start, self.where)


# --- cutting ------------------------------------------------------------------------------


def file_pieces(market: Market, source: Any, rows: int) -> list[FilePiece]:
    """Cut the files into consecutive pieces of about `rows` rows, or of one row group if larger."""
    spans = []
    with ThreadPoolExecutor(_FOOTERS) as pool:
        for some in pool.map(lambda file: _spans(market, file), find(source)):
            spans += some
    _check_rows(market, sum(span.rows for span in spans if span.groups is not None))
    cuts, held = [0], 0
    for at, span in enumerate(spans):
        if held and held + span.rows > rows:
            cuts.append(at)
            held = 0
        held += span.rows
    edges = [*cuts, len(spans)] if spans else []
    runs, limit = has_runs(market), most_rows(market)
    found = []
    for start, stop in pairwise(edges):
        before, last = list[Span](), start
        while runs and last > 0 and not any(span.rows_at_least for span in before):
            last -= 1
            before.append(spans[last])
        after, end = list[Span](), stop
        while runs and end < len(spans) and sum(span.rows_at_least for span in after) <= limit:
            after.append(spans[end])
            end += 1
        own = tuple(_joined(spans[start:stop]))
        found.append(FilePiece(own, tuple(before), tuple(after), end == len(spans) or not runs))
    return found


def _check_rows(market: Market, rows: int) -> None:
    """Refuse more rows than all agents could have; a tiny file may claim any number of them."""
    most = market.agents * (most_rows(market) - 1)
    if rows > most + _FEW:
        raise AgentsError(
            f"there are {rows:,} rows, but {market.agents:,} agents have at most {most:,}",
            COUNT_FIRST,
        )


def _spans(market: Market, file: File) -> list[Span]:
    """The smallest spans of a file that can be read separately."""
    if file.kind == "CSV":
        return [Span(file, None, 0, 1 + file.size // (8 * len(wanted(market))))]
    with _reading(file):
        metadata = _metadata(file)
        check_columns(market, _with_keys(metadata.schema.to_arrow_schema(), file), file.where)
        spans, first = [], 0
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            if rows:
                spans.append(Span(file, (group, group + 1), first, rows))
            first += rows
        return spans


def _joined(spans: Sequence[Span]) -> Iterator[Span]:
    """Merge adjacent row groups of a file into one span."""
    held = None
    for span in spans:
        if held is not None and held.file is span.file and held.groups and span.groups:
            held = Span(
                held.file, (held.groups[0], span.groups[1]), held.first, held.rows + span.rows
            )
            continue
        if held is not None:
            yield held
        held = span
    if held is not None:
        yield held


# --- reading ------------------------------------------------------------------------------


def stream(market: Market, span: Span, rows: int) -> Iterator[Rows]:
    """The rows of a span, about `rows` at a time."""
    yield from _stream(market, span, rows, None)


def table_of(
    market: Market, pieces: Sequence[FilePiece], only: list[str] | None = None
) -> pa.Table:
    """All rows of the pieces in memory, or only some columns of them."""
    spans = [span for piece in pieces for span in piece.spans]
    batches = [r.batch for span in spans for r in _stream(market, span, 2**16, only)]
    if not batches:
        return pa.table({name: pa.array([], pa.string()) for name in only or wanted(market)})
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    names = only or tables[0].schema.names
    return pa.concat_tables([table.select(names) for table in tables], promote_options="permissive")


def last_id(market: Market, piece: FilePiece) -> Any:
    """The id in the row before a piece; None if there is none."""
    id = market.columns.id
    for span in piece.before:
        last = None
        for some in _stream(market, span, 2**16, [id]):
            last = some.batch.column(id)[-1].as_py() if some.batch.num_rows else last
        if last is not None:
            return last
    return None


def _stream(market: Market, span: Span, rows: int, only: list[str] | None) -> Iterator[Rows]:
    file, first = span.file, span.first
    if only is not None and any(key in only for key, _ in file.keys):
        only = None
    check_unchanged(file)
    with _reading(file):
        read = _parquet if file.kind == "Parquet" else _csv
        for batch in read(market, span, rows, only):
            check_texts(batch, file.where)
            yield Rows(_add_keys(batch, market, file), first, file.where)
            first += batch.num_rows
    check_unchanged(file)


def _parquet(
    market: Market, span: Span, rows: int, only: list[str] | None
) -> Iterator[pa.RecordBatch]:
    file = span.file
    assert span.groups is not None
    remote, groups = file.system != "", list(range(*span.groups))
    with file_system(file.system).open_input_file(file.path) as source:
        table = pyarrow.parquet.ParquetFile(
            source,
            metadata=_metadata(file),
            pre_buffer=remote,  # otherwise every page would be a request
            buffer_size=0 if remote else 2**16,  # otherwise the whole file stays in memory
        )
        names = [n for n in table.schema_arrow.names if not is_ignored(market, n)]
        if only is not None:
            names = only
        if not remote:  # remotely, every page header would be a request
            for group, columns in zip(groups, _chunks(file)[slice(*span.groups)], strict=True):
                count = table.metadata.row_group(group).num_rows
                rows = parquet_guard.rows_at_once(source, columns, names, count, rows)
        for some in [[g] for g in groups] if remote else [groups]:
            yield from table.iter_batches(
                rows,
                row_groups=some,
                columns=names,
                use_threads=False,  # every thread would allocate its own memory
            )


@lru_cache(maxsize=4)
def _metadata(file: File) -> pyarrow.parquet.FileMetaData:
    with file_system(file.system).open_input_file(file.path) as source:
        return pyarrow.parquet.read_metadata(source)


@lru_cache(maxsize=4)
def _chunks(file: File) -> list[list[parquet_guard.Chunk]]:
    with file_system(file.system).open_input_file(file.path) as source:
        return parquet_guard.chunks(source, file.size)


def _csv(market: Market, span: Span, rows: int, only: list[str] | None) -> Iterator[pa.RecordBatch]:
    file = span.file
    fs = file_system(file.system)
    with fs.open_input_stream(file.path) as start:
        if start.read(4) == b"PAR1":
            raise AgentsError(f"{file.where!r} is a Parquet file", "rename it to .parquet")
    try:
        names = _csv_names(file)
    except csv.Error as error:
        raise AgentsError(
            f"cannot read the column names of {file.where!r}: {clean(error)}"
        ) from None
    if len(names) > len(wanted(market)) + len(market.columns.ignore):
        # Arrow would allocate memory for each of them.
        check_names(market, [*names, *(key for key, _ in file.keys)], file.where)
    with fs.open_input_stream(file.path) as source:
        table = pyarrow.csv.open_csv(
            source,
            read_options=pyarrow.csv.ReadOptions(block_size=_CSV_BYTES),
            parse_options=pyarrow.csv.ParseOptions(delimiter=_dialect(file)[0]),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=csv_types(market),
                null_values=[""],
                strings_can_be_null=True,
                include_columns=only,
                decimal_point=_dialect(file)[1],
            ),
        )
        if only is None:
            check_columns(market, _with_keys(table.schema, file), file.where)
        yield from table


def _with_keys(schema: pa.Schema, file: File) -> pa.Schema:
    for key, value in file.keys:
        schema = schema.append(pa.field(key, _key_type(value)))
    return schema


def _add_keys(batch: pa.RecordBatch, market: Market, file: File) -> pa.RecordBatch:
    keys = [(key, value) for key, value in file.keys if key not in market.columns.ignore]
    if not keys:
        return batch
    columns = [pa.repeat(pa.scalar(v, _key_type(v)), batch.num_rows) for _, v in keys]
    names = [*batch.schema.names, *(key for key, _ in keys)]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], names)


def _key_type(value: int | str | None) -> pa.DataType:
    return pa.int64() if isinstance(value, int) else pa.string()


@contextmanager
def _reading(file: File) -> Iterator[None]:
    """Turn any error about a file into one sentence."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        check_unchanged(file)
        raise AgentsError(
            f"cannot read {file.where!r} as {file.kind}: {_problem(error, file)}",
            "raise the limit with ulimit -n, then run again"
            if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)
            else "",
        ) from None


def check_unchanged(file: File) -> None:
    """Refuse a file that has changed since the input was cut into pieces."""
    try:
        info = file_system(file.system).get_file_info(file.path)
    except (OSError, pa.ArrowException) as error:
        raise AgentsError(f"cannot read {file.where!r}: {reason_of(error)}") from None
    modified = -1 if info.mtime_ns is None else info.mtime_ns
    if info.size != file.size or modified != file.modified:
        raise AgentsError(
            f"{file.where!r} has changed since the run began",
            "files must not change while they are read; run again",
        )


def _problem(error: Exception, file: File) -> str:
    """Arrow's message, with the name of a CSV column instead of its number."""
    text = without_credentials(clean(error))
    found = re.fullmatch(r"In CSV column #(\d+): CSV conversion error to \w+: (.*)", text)
    if found is None:
        return text
    try:
        names = _csv_names(file)
    except csv.Error:
        return text
    if int(found[1]) >= len(names):
        return text
    return f"column {names[int(found[1])]!r} has {found[2]}"


def _csv_names(file: File) -> list[str]:
    return _names_in(_start(file), _dialect(file)[0])


def _start(file: File) -> str:
    with file_system(file.system).open_input_stream(file.path) as source:
        found: bytes = source.read(_CSV_BYTES)
    return found.decode("utf-8-sig", errors="replace")


def _names_in(start: str, delimiter: str) -> list[str]:
    return next(csv.reader(StringIO(start, newline=""), delimiter=delimiter), [])


@lru_cache(maxsize=64)
def _dialect(file: File) -> tuple[str, str]:
    """What separates the fields of a CSV file, and its decimal sign.

    Spreadsheets write semicolons, and decimal commas with them, where the comma is the decimal sign
    of the language.
    """
    start = _start(file)
    names = _names_in(start, ",")
    if len(names) != 1 or not (found := re.search("[;\t]", names[0])):
        return ",", "."
    comma = re.search(rf'{found[0]}\s*"?\d+,\d', start) or re.search(r'\n"?\d+,\d', start)
    return found[0], "," if comma else "."


# --- content ------------------------------------------------------------------------------


def fingerprint(source: Any, threads: Threads | None = None) -> str:
    """A digest of the files' contents, their names below the source, and their order.

    For remote files, the address, size and time of change stand in for the contents.
    """
    files = find(source)
    chunks = [(f, at) for f in files if not f.system for at in range(0, f.size, _HASHED)]
    hashes = dict(zip(chunks, (threads or Threads()).map(_hash, chunks), strict=True))
    whole = hashlib.sha256()
    for file in files:
        if file.system:
            content = [file.where, str(file.size), str(file.modified)]
        else:
            check_unchanged(file)
            content = [hashes[file, at] for at in range(0, file.size, _HASHED)]
            content = [file.name, str(file.size), *content]
        for text in content:
            data = text.encode(errors="surrogateescape")
            whole.update(b"%d:%b" % (len(data), data))
    return whole.hexdigest()


def _hash(chunk: tuple[File, int]) -> str:
    file, start = chunk
    digest, left = hashlib.sha256(), _HASHED
    try:
        with open(file.path, "rb", buffering=0) as source:
            source.seek(start)
            while left > 0 and (data := source.read(min(left, 2**20))):
                digest.update(data)
                left -= len(data)
    except OSError as error:
        raise AgentsError(f"cannot read {file.path!r}: {error.strerror}") from None
    return digest.hexdigest()
