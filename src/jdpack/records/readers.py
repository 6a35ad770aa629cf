"""Private: files of agents, wherever they are, and how they are cut into pieces.

A source is a file, a folder, a pattern, an address of PyArrow's file systems (`s3://`, `gs://`,
`hdfs://`, `file://`), or a list of these. Folders may be partitioned: in `north/region=3/x.parquet`
`region` is a column of the table like any other.

A piece is some consecutive rows, found from the files' metadata alone. Any process that can reach
the files reads it by itself, and notices if a file is no longer what it was.
"""

from __future__ import annotations

import csv
import errno
import fnmatch
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet

from jdpack.errors import AgentsError
from jdpack.market.market import Market
from jdpack.records import parquet_guard
from jdpack.records.schema import (
    check_columns,
    check_names,
    check_texts,
    clean,
    csv_types,
    has_runs,
    most_rows,
    wanted,
)
from jdpack.records.threads import Threads

KINDS = {".parquet": "Parquet", ".pq": "Parquet", ".csv": "CSV"}
_CSV_BYTES = 2**22  # of a CSV file in a batch
_CSV_ROW = 2**20  # more bytes than a row of a CSV file has
_FEW = 2**20  # rows too many that are counted one by one, for a better error
_HASHED = 2**26  # bytes that are hashed in one go
_FOOTERS = 16  # that are read at the same time: the wait is for the network
_IS_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_MAGIC = re.compile(r"[*?\[]")
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class File:
    """A file as it was when the input was cut."""

    path: str
    """Where it is in its file system."""
    name: str
    """Its path below the folder or pattern that it was found by."""
    size: int
    modified: int
    """Nanoseconds since 1970; -1 if its file system does not tell."""
    system: str = ""
    """The address of its file system; empty for that of this machine."""
    keys: tuple[tuple[str, int | str | None], ...] = ()
    """The columns that its path names."""

    @property
    def kind(self) -> str:
        """Parquet or CSV, by its name."""
        return KINDS[os.path.splitext(self.path)[1].lower()]

    @property
    def where(self) -> str:
        """Its address as people write it, without any credentials."""
        return f"{self.system.partition('://')[0]}://{self.path}" if self.system else self.path


@dataclass(frozen=True)
class Span:
    """Consecutive rows of a file: some row groups of Parquet, or a whole CSV file."""

    file: File
    groups: tuple[int, int] | None
    first: int
    """How many rows of the file stand before it."""
    rows: int
    """How many it has; of a CSV file, about."""

    @property
    def rows_at_least(self) -> int:
        return self.rows if self.groups is not None else self.file.size // _CSV_ROW


@dataclass(frozen=True)
class FilePiece:
    """The agents whose first rows stand in some spans. Small, and may be sent anywhere."""

    spans: tuple[Span, ...]
    before: tuple[Span, ...] = ()
    """Where the row before the first one is, the nearest span first. Empty at the beginning."""
    after: tuple[Span, ...] = ()
    """Where the last agent may go on."""
    to_the_end: bool = True
    """Whether `after` has all that follows."""

    @property
    def rows(self) -> int:
        """About how many rows it has."""
        return sum(span.rows for span in self.spans)


@dataclass(frozen=True)
class Rows:
    """Some consecutive rows of a table as they were read, and where they stand."""

    batch: pa.RecordBatch
    first: int
    where: str

    def slice(self, start: int, length: int | None = None) -> Rows:
        return Rows(self.batch.slice(start, length), self.first + start, self.where)


def is_source(source: Any) -> bool:
    """Whether it names files: a path, an address, a pattern, or a list of them."""
    if isinstance(source, str | Path):
        return True
    return isinstance(source, list | tuple) and all(isinstance(s, str | Path) for s in source)


# --- where files are ----------------------------------------------------------------------


def find(source: Any) -> list[File]:
    """The files of a source: those of a list in its order, others by their paths.

    Files that were found already stay what they are: whoever reads them notices if they changed.
    """
    if isinstance(source, list) and source and all(isinstance(file, File) for file in source):
        return source
    several = [source] if isinstance(source, str | Path) else source
    if not several:
        raise AgentsError("there are no agents in an empty list", "give at least one file")
    return _typed([file for one in several for file in _find(str(one))])


def _find(source: str) -> list[File]:
    try:
        system, path = _locate(source)
        fs = file_system(system)
        info = fs.get_file_info(path)
        if info.type is pyarrow.fs.FileType.NotFound and _MAGIC.search(path):
            base = _base(path)
            found = [f for info in _matches(fs, path, base) for f in _expand(fs, info)]
        else:
            base = path if info.type is pyarrow.fs.FileType.Directory else os.path.dirname(path)
            found = _expand(fs, info)
    except (OSError, ValueError) as error:
        raise AgentsError(
            f"cannot read agents at {_public(source)!r}: {_reason(error)}",
            "give a file, a folder, a pattern, or an address such as s3://bucket/folder",
        ) from None
    if not found:
        raise AgentsError(
            f"there are no agents at {_public(source)!r}",
            f"give a file, a folder or a pattern; names end in one of: {', '.join(KINDS)}",
        )
    files = []
    for info in sorted(found, key=lambda info: info.path.split("/")):
        name = info.path[len(base) :].lstrip("/")
        modified = -1 if info.mtime_ns is None else info.mtime_ns
        if info.type is not pyarrow.fs.FileType.File:  # a pipe or a device may have no end
            raise AgentsError(f"{info.path!r} is no regular file")
        file = File(info.path, name, info.size, modified, system, _keys(name))
        if os.path.splitext(info.path)[1].lower() not in KINDS:
            raise AgentsError(
                f"{file.where!r} is of no known kind",
                f"its name must end in one of: {', '.join(KINDS)}",
            )
        files.append(file)
    return files


def _locate(source: str) -> tuple[str, str]:
    """The address of a file system, empty for this machine's, and a path in it."""
    if not _IS_ADDRESS.match(source):
        return "", os.path.abspath(source)
    address, _, query = source.partition("?")
    address = quote(address, safe="/:@%!$&'()*+,;=~-._")
    scheme, _, rest = address.partition("://")
    host = rest.partition("/")[0]
    query = f"?{query}" if query else ""
    fs, path = pyarrow.fs.FileSystem.from_uri(address + query)
    if isinstance(fs, pyarrow.fs.LocalFileSystem):
        return "", os.path.abspath(path)
    return f"{scheme}://{host}/{query}", path.rstrip("/")


@lru_cache(maxsize=32)
def file_system(system: str) -> pyarrow.fs.FileSystem:
    """The file system at an address."""
    if not system:
        return pyarrow.fs.LocalFileSystem()
    return pyarrow.fs.FileSystem.from_uri(system)[0]


def _public(text: str) -> str:
    """An address without credentials."""
    text = re.sub(r"://[^/@\s]*@", "://", text)
    return re.sub(r"(://[^?\s]*)\?[^\s']*", r"\1", text)


def _reason(error: Exception) -> str:
    """Why something cannot be reached, in a line."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return _public(clean(error))


def _base(path: str) -> str:
    """The folders of a pattern that are spelled out."""
    parts = path.split("/")
    return "/".join(parts[: next(i for i, part in enumerate(parts) if _MAGIC.search(part))])


def _matches(fs: pyarrow.fs.FileSystem, path: str, base: str) -> list[pyarrow.fs.FileInfo]:
    """What a pattern names; as in a shell, `**` stands for any folders."""
    found = [fs.get_file_info(base or "/")]
    for part in path[len(base) :].lstrip("/").split("/"):
        folders = [info for info in found if info.type is pyarrow.fs.FileType.Directory]
        if part == "**":
            deep = [i for f in folders for i in _list(fs, f.path, True) if _is_seen(i, f)]
            found = folders + [i for i in deep if i.type is pyarrow.fs.FileType.Directory]
        elif _MAGIC.search(part):
            hidden = part.startswith((".", "_"))
            found = [
                info
                for folder in folders
                for info in _list(fs, folder.path)
                if fnmatch.fnmatchcase(info.base_name, part) and (hidden or _is_seen(info, folder))
            ]
        else:
            found = fs.get_file_info([f"{f.path.rstrip('/')}/{part}" for f in folders])
    return list({info.path: info for info in found}.values())


def _expand(fs: pyarrow.fs.FileSystem, info: pyarrow.fs.FileInfo) -> list[pyarrow.fs.FileInfo]:
    """A file itself; the files in a folder, and in those below that name a key and its value."""
    if info.type is pyarrow.fs.FileType.NotFound:
        return []
    if info.type is not pyarrow.fs.FileType.Directory:
        return [info]
    # All at once where a list of names is one request; step by step where folders cost nothing.
    remote = not isinstance(fs, pyarrow.fs.LocalFileSystem)
    found = []
    for below in _list(fs, info.path, recursive=remote):
        *folders, name = below.path[len(info.path) :].strip("/").split("/")
        if not _is_seen(below, info) or not all("=" in folder for folder in folders):
            continue
        if below.type is pyarrow.fs.FileType.Directory:
            if not remote and "=" in name:
                found += _expand(fs, below)
        elif os.path.splitext(name)[1].lower() in KINDS:
            found.append(below)
    return found


def _list(
    fs: pyarrow.fs.FileSystem, folder: str, recursive: bool = False
) -> list[pyarrow.fs.FileInfo]:
    found = fs.get_file_info(pyarrow.fs.FileSelector(folder, recursive=recursive))
    return [info for info in found if info.type is not pyarrow.fs.FileType.NotFound]


def _is_seen(info: pyarrow.fs.FileInfo, folder: pyarrow.fs.FileInfo) -> bool:
    """Whether nothing on the way from the folder is hidden."""
    way = info.path[len(folder.path) :].strip("/").split("/")
    return not any(part.startswith((".", "_")) for part in way)


def _keys(name: str) -> tuple[tuple[str, int | str | None], ...]:
    """The columns that folders named `key=value` give, as texts."""
    pairs = [part.partition("=") for part in name.split("/")[:-1] if "=" in part]
    return tuple((unquote(k), None if v == _NULL else unquote(v)) for k, _, v in pairs)


def _typed(files: list[File]) -> list[File]:
    """Keys whose values are all whole numbers are numbers."""
    seen: dict[str, list[str]] = {}
    for file in files:
        for key, value in file.keys:
            seen.setdefault(key, []).extend([] if value is None else [str(value)])
    whole = {key for key, values in seen.items() if all(map(_WHOLE.fullmatch, values))}
    return [
        replace(
            file,
            keys=tuple((k, int(v) if k in whole and v is not None else v) for k, v in file.keys),
        )
        for file in files
    ]


# --- cutting ------------------------------------------------------------------------------


def file_pieces(market: Market, source: Any, rows: int) -> list[FilePiece]:
    """Cut the files into consecutive pieces of about so many rows, or of one row group."""
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
    """Refuse tables that have more rows than all agents could: they may take no room in a file."""
    most = market.agents * (most_rows(market) - 1)
    if rows > most + _FEW:
        raise AgentsError(
            f"there are {rows} rows, and {market.agents} agents have at most {most}",
            "the number of agents is public: set it before looking at the data",
        )


def _spans(market: Market, file: File) -> list[Span]:
    """The parts of a file that can be read by themselves."""
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
    """Row groups side by side in a file are one span."""
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
    """The rows of a span, so many at a time."""
    yield from _stream(market, span, rows, None)


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
            pre_buffer=remote,  # else every page would be a request of its own
            buffer_size=0 if remote else 2**16,  # else it keeps the whole file in memory
        )
        names = [n for n in table.schema_arrow.names if n not in market.columns.ignore]
        if only is not None:
            names = only
        if not remote:  # there every header would be a request of its own
            for group, columns in zip(groups, _chunks(file)[slice(*span.groups)], strict=True):
                count = table.metadata.row_group(group).num_rows
                rows = parquet_guard.rows_at_once(source, columns, names, count, rows)
        for some in [[g] for g in groups] if remote else [groups]:
            yield from table.iter_batches(
                rows,
                row_groups=some,
                columns=names,
                use_threads=False,  # threads would each keep room of their own
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
            raise AgentsError(f"{file.where!r} is a Parquet file", "name it .parquet")
    try:
        names = _csv_names(file)
    except csv.Error as error:
        raise AgentsError(
            f"cannot read the names of the columns of {file.where!r}: {clean(error)}"
        ) from None
    if len(names) > len(wanted(market)) + len(market.columns.ignore):
        # Arrow would make room for every one of them.
        check_names(market, [*names, *(key for key, _ in file.keys)], file.where)
    with fs.open_input_stream(file.path) as source:
        table = pyarrow.csv.open_csv(
            source,
            read_options=pyarrow.csv.ReadOptions(block_size=_CSV_BYTES),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=csv_types(market),
                null_values=[""],
                strings_can_be_null=True,
                include_columns=only,
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
    """Say what is wrong with a file in one sentence."""
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
    """Refuse a file that is no longer what it was when the input was cut."""
    try:
        info = file_system(file.system).get_file_info(file.path)
    except (OSError, pa.ArrowException) as error:
        raise AgentsError(f"cannot read {file.where!r}: {_reason(error)}") from None
    modified = -1 if info.mtime_ns is None else info.mtime_ns
    if info.size != file.size or modified != file.modified:
        raise AgentsError(
            f"{file.where!r} has changed since the run began",
            "files must stay as they are while they are read; run again",
        )


def _problem(error: Exception, file: File) -> str:
    """What Arrow says, with the name of a CSV column in place of its number."""
    text = _public(clean(error))
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
    """The names of the columns of a CSV file."""
    with file_system(file.system).open_input_stream(file.path) as source:
        start = source.read(_CSV_BYTES).decode("utf-8-sig", errors="replace")
    return next(csv.reader(StringIO(start, newline="")), [])


# --- content ------------------------------------------------------------------------------


def fingerprint(source: Any, threads: Threads | None = None) -> str:
    """A digest of what the files hold, of their names below the source, and of their order.

    Files of this machine are read; of others the address, size and time of change must do.
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
