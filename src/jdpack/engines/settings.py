"""Private: which engine holds the agents, and how to open it.

`Memory` keeps codes in memory, `Mapped` on disk, `Ray` on the machines of a cluster, `Sql` in a
database. All give the same bits, so the billboard does not show the choice; only the hash of the
coins depends on it, because databases compute SHA-256 and not SipHash.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import gettempdir
from typing import Any, ClassVar

from jdpack.common.coins import SHA256, CoinHash
from jdpack.engines.base import Engine
from jdpack.errors import AgentsError, EngineError
from jdpack.market.market import Market
from jdpack.records import locate
from jdpack.records.codes import is_sparse
from jdpack.records.databases.database import DatabaseQuery
from jdpack.records.source import Source

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_FITS = 0.5  # the fraction of the machine's memory that codes may take

Tell = Callable[[float], None]
"""Called with the fraction of the records that has been read."""


@dataclass(frozen=True)
class RunInfo:
    """What an engine must know about the run that it is opened for."""

    name: str
    """The name of the run; workers use it in file names."""
    folder: Path | None
    """The folder that contains or will contain the run's output; None if there is none."""


@dataclass(frozen=True)
class Memory:
    """Codes in memory. The default if they fit."""

    needs: ClassVar[CoinHash | None] = None

    def open(self, source: Source, threads: int | None, run: RunInfo, tell: Tell) -> Engine:
        from jdpack.engines.memory import MemoryEngine

        return MemoryEngine.read(source, threads, tell)


@dataclass(frozen=True)
class Mapped:
    """Codes on disk, mapped: for more agents than fit in memory."""

    needs: ClassVar[CoinHash | None] = None

    store: str | None = None
    """A folder to keep the codes in, so that later runs on the same records need not encode them.
    It is as private as the records. If not given, the codes are deleted when the run ends."""
    memory: int | str = "1GB"
    """The most memory to use besides the codes, such as "500MB"."""

    def __post_init__(self) -> None:
        _bytes(self.memory)

    def open(self, source: Source, threads: int | None, run: RunInfo, tell: Tell) -> Engine:
        from jdpack.engines.mapped import MappedEngine

        if source.query is None:
            _check_files("mapped", source)
        elif self.store is not None:
            raise AgentsError(
                "a store keeps the codes of files, but the records are in a database",
                "leave out the store: only the database knows whether its rows have changed",
            )
        store = None if self.store is None else Path(self.store)
        near = run.folder or Path(gettempdir())
        return MappedEngine.open(source, threads, store, near, _bytes(self.memory), tell)


@dataclass(frozen=True)
class Ray:
    """Codes on the machines of a Ray cluster."""

    needs: ClassVar[CoinHash | None] = None

    address: str | None = None
    """The address of the cluster, such as "ray://head:10001". If not given, RAY_ADDRESS; if that
    is not set, a local cluster is started."""
    workers: int | None = None
    """How many processes share the agents; one per core of the cluster if not given."""
    store: str | None = None
    """A folder on each machine for the codes, as in `Mapped`; in memory if not given."""
    allocation: str | None = None
    """A folder that all workers can write the allocation to, or a URI such as
    "s3://bucket/folder". If not given, the output folder, which all machines must then share."""
    patience: float = 900.0
    """How many seconds to wait for a worker's answer before giving up; ten times as long while it
    reads its records."""

    def __post_init__(self) -> None:
        workers, patience = self.workers, self.patience
        if workers is not None and (not _is_number(workers, int) or workers < 1):
            raise EngineError(f"workers must be a whole number of at least 1, not {workers!r}")
        if not _is_number(patience, int | float) or not 0 < patience < math.inf:
            raise EngineError(f"patience must be a number of seconds above 0, not {patience!r}")
        for name in ("store", "allocation"):  # workers have other working folders
            path = getattr(self, name)
            if path is not None and "://" not in path:
                object.__setattr__(self, name, os.path.abspath(path))

    def open(self, source: Source, threads: int | None, run: RunInfo, tell: Tell) -> Engine:
        from jdpack.engines.ray import RayEngine

        _check_files("ray", source)
        return RayEngine.open(source, threads, self, run, tell)


@dataclass(frozen=True)
class Sql:
    """Codes in a database, which computes every sum itself: DuckDB, PostgreSQL or Spark.

    The records are a query to that database, or Parquet files, which DuckDB reads in this process.
    """

    needs: ClassVar[CoinHash | None] = SHA256

    keep: bool = False
    """Whether to keep the table of codes, which is as private as the records. If not, it is dropped
    when the run ends."""

    def __post_init__(self) -> None:
        if not isinstance(self.keep, bool):
            raise EngineError(f"keep must be true or false, not {self.keep!r}")

    def open(self, source: Source, threads: int | None, run: RunInfo, tell: Tell) -> Engine:
        try:
            from jdpack.engines.sql import SqlEngine
        except ModuleNotFoundError as error:
            raise EngineError(
                f"the engine sql needs {error.name}, which is not installed",
                "pip install 'jdpack[sql]'",
            ) from None
        return SqlEngine.open(source, threads, self, run, tell)


Choice = Memory | Mapped | Ray | Sql
KINDS: dict[str, type[Choice]] = {"memory": Memory, "mapped": Mapped, "ray": Ray, "sql": Sql}


def choice_of(engine: object, market: Market, agents: Any) -> Choice:
    """The engine for an argument: None, a name, the address of a cluster, or a choice."""
    if engine is None:
        elsewhere = locate.is_source(agents) or isinstance(agents, DatabaseQuery)
        return Mapped() if elsewhere and not fits(market) else Memory()
    if isinstance(engine, Choice):
        return engine
    if isinstance(engine, str) and engine.startswith("ray://"):
        return Ray(engine)
    if isinstance(engine, str) and engine in KINDS:
        return KINDS[engine]()
    raise EngineError(f"there is no engine {engine!r}", f"one of: {', '.join(KINDS)}, ray://...")


def to_dict(choice: Choice) -> dict[str, Any]:
    """A choice as JSON, for `resume`."""
    name = next(name for name, kind in KINDS.items() if isinstance(choice, kind))
    data = {"kind": name, **asdict(choice)}
    if data.get("store") is not None:
        data["store"] = os.path.abspath(data["store"])  # resume may be called from another folder
    return data


def from_dict(data: dict[str, Any]) -> Choice:
    """The inverse of `to_dict`."""
    try:
        kind = KINDS[data["kind"]]
        return kind(**{f.name: data[f.name] for f in fields(kind)})
    except (KeyError, TypeError):
        raise EngineError(
            f"there is no engine {data!r}", "restore the run's own run.json"
        ) from None


def fits(market: Market) -> bool:
    """Whether the codes of a market fit in memory. A function of public numbers."""
    m, k = len(market.resources), market.bundle_width
    row = 4 + 8 + (4 * k if is_sparse(market) else 2 * m)
    return market.requests_at_most * market.options * row <= _FITS * _memory()


def _memory() -> int:
    """The bytes of memory of this machine or container."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else ""
    return min(most, int(text)) if text.isdigit() else most


def _bytes(size: int | str) -> int:
    found = re.fullmatch(r"(\d{1,30}(?:\.\d+)?) ?([KMGT]?)i?B?", str(size), re.IGNORECASE)
    if found is None or (number := int(float(found[1]) * _UNITS[found[2].upper()])) < 10**7:
        raise EngineError(f"memory {size!r} is not a size", "write '500MB' or '4GB'; at least 10MB")
    return number


def _is_number(number: object, kind: Any) -> bool:
    return isinstance(number, kind) and not isinstance(number, bool)


def _check_files(engine: str, source: Source) -> None:
    if source.query is not None:
        raise AgentsError(
            f"the engine {engine} reads files, but the records are in a database",
            "use the engine memory, mapped or sql",
        )
    if source.paths is None:
        raise AgentsError(
            f"the engine {engine} reads files, but the records are in memory",
            "write them to Parquet and give its path, or use the engine memory",
        )
