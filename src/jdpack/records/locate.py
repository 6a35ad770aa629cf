"""Private: find the files that hold the agents.

A source is a file, a folder, a pattern, an address of PyArrow's file systems (`s3://`, `gs://`,
`hdfs://`, `file://`), or a list of these. Folders may be partitioned: in `north/region=3/x.parquet`
`region` is a column of the table like any other.
"""

from __future__ import annotations

import fnmatch
import os
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet

from jdpack.errors import AgentsError
from jdpack.records.schema import clean
from jdpack.storage.address import shown, without_secrets

KINDS = {".parquet": "Parquet", ".pq": "Parquet", ".csv": "CSV"}
_OTHERS = {".toml": "a market file, not a table", **dict.fromkeys((".xlsx", ".xls"), "a workbook")}
_REMEDIES = {
    ".toml": "the market file comes first, then the table of agents",
    **dict.fromkeys((".xlsx", ".xls"), "save its sheet as CSV, with commas or semicolons"),
}
_DATABASES = ("postgresql", "postgres", "duckdb", "sqlite", "profile")
_DATABASE_FILES = (".duckdb", ".ddb", ".sqlite", ".sqlite3", ".db")
_IS_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_MAGIC = re.compile(r"[*?\[]")
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class File:
    """A file as it was when the input was cut into pieces."""

    path: str
    """Its path in its file system."""
    name: str
    """Its path below the folder or pattern that led to it."""
    size: int
    modified: int
    """Nanoseconds since 1970; -1 if the file system does not say."""
    system: str = ""
    """The address of its file system; empty for this machine."""
    keys: tuple[tuple[str, int | str | None], ...] = ()
    """The columns named by the path, with their values."""

    @property
    def kind(self) -> str:
        """Parquet or CSV, by its name."""
        return KINDS[os.path.splitext(self.path)[1].lower()]

    @property
    def where(self) -> str:
        """Its address as people write it, without credentials."""
        return f"{self.system.partition('://')[0]}://{self.path}" if self.system else self.path


def is_source(source: Any) -> bool:
    """Whether a source names files: a path, an address, a pattern, or a list of them."""
    if isinstance(source, str | Path):
        return True
    return isinstance(source, list | tuple) and all(isinstance(s, str | Path) for s in source)


def find(source: Any) -> list[File]:
    """The files of a source: a list keeps its order, other sources are sorted by path.

    A list of `File` is returned unchanged; reading a file detects whether it has changed.
    """
    if isinstance(source, list) and source and all(isinstance(file, File) for file in source):
        return source
    several = [source] if isinstance(source, str | Path) else source
    if not several:
        raise AgentsError("there are no agents in an empty list", "give at least one file")
    return _typed([file for one in several for file in _find(str(one))])


def _find(source: str) -> list[File]:
    if source.partition("://")[0] in _DATABASES or source.endswith(_DATABASE_FILES):
        raise AgentsError(
            f"{shown(source)!r} is a database, and nothing says which rows to read",
            'give a query: --query "SELECT ...", or jdpack.DatabaseQuery(address, sql)',
        )
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
            f"cannot read agents at {without_credentials(source)!r}: {reason_of(error)}",
            "give a file, a folder, a pattern, or an address such as s3://bucket/folder",
        ) from None
    if not found:
        raise AgentsError(
            f"there are no agents at {without_credentials(source)!r}",
            f"give a file, a folder or a pattern; names end in one of: {', '.join(KINDS)}",
        )
    files = []
    for info in sorted(found, key=lambda info: info.path.split("/")):
        name = info.path[len(base) :].lstrip("/")
        modified = -1 if info.mtime_ns is None else info.mtime_ns
        if info.type is not pyarrow.fs.FileType.File:  # a pipe or a device may have no end
            raise AgentsError(f"{info.path!r} is not a regular file")
        file = File(info.path, name, info.size, modified, system, _keys(name))
        if os.path.splitext(info.path)[1].lower() not in KINDS:
            kind = os.path.splitext(info.path)[1].lower()
            raise AgentsError(
                f"{file.where!r} is {_OTHERS.get(kind, 'of an unknown kind')}",
                _REMEDIES.get(kind, f"its name must end in one of: {', '.join(KINDS)}"),
            )
        files.append(file)
    return files


def _locate(source: str) -> tuple[str, str]:
    """The address of a file system, empty for this machine, and a path in it."""
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
    """The file system at an address; empty for this machine."""
    if not system:
        return pyarrow.fs.LocalFileSystem()
    return pyarrow.fs.FileSystem.from_uri(system)[0]


def without_credentials(text: str) -> str:
    """The text without the credentials in any address."""
    text = re.sub(r"://[^/@\s]*@", "://", text)
    return without_secrets(re.sub(r"(://[^?\s]*)\?[^\s']*", r"\1", text))


def reason_of(error: Exception) -> str:
    """Why something cannot be reached, in one line."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return without_credentials(clean(error))


def _base(path: str) -> str:
    """The folder above the first wildcard of a pattern."""
    parts = path.split("/")
    return "/".join(parts[: next(i for i, part in enumerate(parts) if _MAGIC.search(part))])


def _matches(fs: pyarrow.fs.FileSystem, path: str, base: str) -> list[pyarrow.fs.FileInfo]:
    """The files and folders that match a pattern; as in a shell, `**` matches any folders."""
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
    """A file itself; or the files in a folder and in its subfolders named `key=value`."""
    if info.type is pyarrow.fs.FileType.NotFound:
        return []
    if info.type is not pyarrow.fs.FileType.Directory:
        return [info]
    # Remotely, list everything in one request; locally, one folder at a time is as cheap.
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
    """Whether no part of the path below the folder is hidden."""
    way = info.path[len(folder.path) :].strip("/").split("/")
    return not any(part.startswith((".", "_")) for part in way)


def _keys(name: str) -> tuple[tuple[str, int | str | None], ...]:
    """The columns given by folders named `key=value`, as texts."""
    pairs = [part.partition("=") for part in name.split("/")[:-1] if "=" in part]
    return tuple((unquote(k), None if v == _NULL else unquote(v)) for k, _, v in pairs)


def _typed(files: list[File]) -> list[File]:
    """The files, with numbers for keys whose values are all whole numbers."""
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
