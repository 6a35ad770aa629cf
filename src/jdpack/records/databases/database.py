"""Private: read the records from a database, as a stream of Arrow batches.

ADBC drivers read PostgreSQL, SQLite and any other database that has one. DuckDB and Spark have
their own modules. The rows stay in the database: a batch is encoded and forgotten.

The order of the rows. Codes and shares have the order of the records, and some results need the
records a second time: what is granted, letters, reports. So the same query must give the same rows
in the same order twice, and a `Trace` makes sure that it did. Where every agent has one option,
jdpack sorts by id. Where agents may have several, their order counts, and only the query can say
what it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jdpack.errors import AgentsError, JdpackError
from jdpack.market.market import Market
from jdpack.records.arrow import to_numpy
from jdpack.records.databases import duckdb_file, spark
from jdpack.records.hashes import mix_all
from jdpack.records.ids import keys
from jdpack.records.readers import Rows
from jdpack.records.schema import (
    check_columns,
    check_texts,
    clean,
    has_several,
    is_ignored,
    is_long,
    is_text,
    wanted,
)
from jdpack.storage.address import (
    HINT,
    is_address,
    scheme_of,
    secret_in,
    shown,
    without_secrets,
)

_ORDER = re.compile(r"\border\s+by\b", re.IGNORECASE)
_BATCH_ROWS = 2**16
_KNOWN = ("postgresql", "duckdb", "sqlite", "spark")
"""Databases whose SQL we know well enough to add an order to a query."""

Failed = Callable[[str, str], JdpackError]
"""Makes an error from a sentence and a hint."""


@dataclass(frozen=True)
class DatabaseQuery:
    """The records of a run, as the rows that a query returns.

    Args:
        address: a database: "postgresql://host/name", the path of a DuckDB or SQLite file, an
            address of any other database that has an ADBC driver, "profile://name" for a
            connection profile of ADBC, or a master of Spark, such as "spark:local[4]". Passwords
            come from the environment or a file, never from here.
        sql: one SELECT. Its columns are those of a table of agents. Where agents may have several
            options or requests, it ends with ORDER BY, because their order counts.
    """

    address: str
    sql: str

    def __post_init__(self) -> None:
        for name in ("address", "sql"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                raise AgentsError(
                    f"the {name} of a database query must be a text that is not empty"
                )
        if secret := secret_in(self.address):
            raise AgentsError(f"the address of a database holds {secret}", HINT)
        if self.kind in ("duckdb", "sqlite"):
            path = re.sub(r"^(duckdb|sqlite)://", "", self.address)
            object.__setattr__(self, "address", os.path.abspath(path))
        object.__setattr__(self, "sql", self.sql.strip().rstrip(";").rstrip())

    @property
    def kind(self) -> str:
        """The name of its driver."""
        if is_address(self.address) and not os.path.exists(self.address):
            scheme = scheme_of(self.address)
            return "postgresql" if scheme == "postgres" else scheme
        return _kind_of_file(self.address)

    @property
    def where(self) -> str:
        """Its address in messages."""
        return shown(self.address)


def _kind_of_file(path: str) -> str:
    """Which database a file is, by its first bytes."""
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except OSError as error:
        raise AgentsError(
            f"cannot read the database {shown(path)!r}: {error.strerror}",
            "give a DuckDB or SQLite file, or an address such as postgresql://host/name",
        ) from None
    if start == b"SQLite format 3\0":
        return "sqlite"
    if start[8:12] == b"DUCK":
        return "duckdb"
    raise AgentsError(
        f"{path!r} is neither a DuckDB nor an SQLite file",
        "a query is for a database; leave it out for a Parquet or CSV file",
    )


# --- connections --------------------------------------------------------------------------


def connect(query: DatabaseQuery, *, write: bool = False) -> Any:
    """A connection, with a transaction. Without `write` it cannot change anything."""
    if query.kind == "duckdb":
        _driver(query, "duckdb")
        return duckdb_file.DuckDBConnection(query.address, write=write)
    manager = _driver(query, "adbc_driver_manager.dbapi")
    match query.kind:
        case "postgresql":
            driver = _driver(query, "adbc_driver_postgresql")
            made = manager.connect(driver._driver_path(), query.address)
            try:
                with made.cursor() as cursor:
                    cursor.execute("SET client_encoding TO 'UTF8'")  # whatever the database has
                    made.commit()
                    if not write:
                        cursor.execute("SET TRANSACTION READ ONLY")
            except BaseException:
                made.close()
                raise
            return made
        case "sqlite":
            driver = _driver(query, "adbc_driver_sqlite")
            path = query.address.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
            return manager.connect(
                driver._driver_path(), f"file:{path}?mode={'rw' if write else 'ro'}"
            )
        case "profile":
            return manager.connect(profile=query.address.partition(":")[2].removeprefix("//"))
        case other:
            name = f"adbc_driver_{other.partition('+')[0]}"
            if importlib.util.find_spec(name) is not None:
                found = importlib.import_module(name)
                return manager.connect(found._driver_path(), query.address)
            return manager.connect(other, query.address)


def _driver(query: DatabaseQuery, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        extra = query.kind if query.kind in _KNOWN else "sqlite"
        raise AgentsError(
            f"{name.partition('.')[0]} is needed to read {query.where!r}",
            f"pip install 'jdpack[{extra}]'",
        ) from None


@contextmanager
def explained(query: DatabaseQuery, what: str, failed: Failed = AgentsError) -> Iterator[None]:
    """Turn any error of a driver into one sentence without secrets."""
    try:
        yield
    except JdpackError:
        raise
    except Exception as error:
        if not _is_drivers(error):
            raise
        text, hint = _problem(error, query)
        raise failed(f"cannot {what} {query.where!r}: {text}", hint) from None


def _is_drivers(error: Exception) -> bool:
    if isinstance(error, OSError | pa.ArrowException | ValueError | RuntimeError):
        return True
    return type(error).__module__.startswith(
        ("adbc_driver", "duckdb", "_duckdb", "pyspark", "py4j")
    )


_HINTS = {
    r"password|authentication|no pg_hba": "a password comes from PGPASSWORD, a password file or a "
    "service file, and the server decides who may connect",
    r"permission denied|not allowed|read-?only": "the user of the database may only do what it was "
    "granted; reading needs SELECT on every table of the query",
    r"could not connect|connection to server|translate host|refused|unable to open|lock on file": (
        "is the server running, or another program using the file? Nothing was changed"
    ),
    r"terminat|closed the connection|connection.*(lost|broke)|SSL SYSCALL|server closed": (
        "the connection was lost; once the server is back, run the same command again"
    ),
    r"does not exist|no such|not found|syntax error|Catalog Error|Parser Error|Binder Error": (
        "first try the query in the database's own client"
    ),
    r"Type mismatch in column": "its rows are of different types: write CAST(... AS REAL) in the "
    "query, or CAST(... AS TEXT) for ids",
}


def _problem(error: Exception, query: DatabaseQuery) -> tuple[str, str]:
    """What a driver says, in one line, and what to do about it."""
    text = str(error)
    found = re.search(r"(?:ERROR|FATAL|PANIC):\s+([^\n]+)", text)
    if found is None:
        text = re.sub(r"^[A-Z_]+: ", "", text.strip())
        text = re.sub(r"^\[[^\]]*\] |^Failed to connect: ", "", text)
    else:
        text = found[1]
    hint = next((h for p, h in _HINTS.items() if re.search(p, text, re.IGNORECASE)), "")
    return without_secrets(clean(Exception(text)), query.address), hint


# --- reading ------------------------------------------------------------------------------


@dataclass
class Trace:
    """A number that tells whether two readings gave the same rows in the same order."""

    known: tuple[int, int] | None = None
    """The number and the count of rows of the first whole reading."""

    def check(self, found: tuple[int, int]) -> None:
        if self.known is None:
            self.known = found
        elif self.known != found:
            raise AgentsError(
                "the rows have changed since they were first read, or came in another order",
                "the query must return the same rows in the same order: let nobody change them "
                "during a run, and end the query with ORDER BY on columns that decide every tie",
            )


@dataclass(frozen=True)
class QueryPiece:
    """All rows of a query."""

    query: DatabaseQuery
    trace: Trace = field(default_factory=Trace)


def ordered(market: Market, query: DatabaseQuery) -> str:
    """The query in an order that is the same every time."""
    if has_several(market) or query.kind not in _KNOWN:
        if not _ORDER.search(query.sql):
            raise AgentsError(
                "the query has no ORDER BY, but the order of an agent's rows counts"
                if has_several(market)
                else "the query has no ORDER BY",
                f"end it with ORDER BY {market.columns.id}"
                + (", and what orders the rows of one agent" if has_several(market) else ""),
            )
        return query.sql
    names = [market.columns.id, *([market.columns.resource] if is_long(market) else [])]
    quote = spark_quoted if query.kind == "spark" else quoted
    by = ", ".join(quote(name) for name in names)
    return f"SELECT * FROM (\n{query.sql}\n) AS records ORDER BY {by}"


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def spark_quoted(name: str) -> str:
    """A name as Spark writes it."""
    return "`" + name.replace("`", "``") + "`"


def stream(market: Market, piece: QueryPiece, rows: int) -> Iterator[Rows]:
    """The rows of a query, at most `rows` at a time."""
    query, first, total = piece.query, 0, 0
    sql = ordered(market, query)
    with explained(query, "read the records from"), _reader(query, sql) as reader:
        names = [name for name in reader.schema.names if not is_ignored(market, name)]
        empty = _plain(reader.schema.empty_table().select(names), query)
        check_columns(market, empty.schema, "the query")
        for batches in _gathered(reader, rows):
            table = _plain(pa.Table.from_batches(batches).select(names), query)
            check_texts(table, "the query")
            for some in table.combine_chunks().to_batches(max_chunksize=rows):
                total = (total + _trace(market, some, first)) % 2**64
                yield Rows(some, first, "the query")
                first += some.num_rows
    piece.trace.check((total, first))


@contextmanager
def _reader(query: DatabaseQuery, sql: str) -> Iterator[pa.RecordBatchReader]:
    if query.kind == "spark":
        with spark.session(query.address) as session:
            yield spark.read(session, sql).to_reader()
        return
    with connect(query) as db, db.cursor() as cursor:
        if query.kind == "sqlite":  # which takes the types of its columns from the first batch
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
        cursor.execute(sql)
        with cursor.fetch_record_batch() as reader:
            yield reader


def _gathered(reader: Iterator[pa.RecordBatch], rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Small batches together, at least `rows` rows at a time."""
    held: list[pa.RecordBatch] = []
    for batch in reader:
        held.append(batch)
        if sum(some.num_rows for some in held) >= rows:
            yield held
            held = []
    if held:
        yield held


def _plain(table: pa.Table, query: DatabaseQuery) -> pa.Table:
    """The columns in plain types: PostgreSQL's numeric comes as text."""
    for at, column in enumerate(table.schema):
        kind = column.type
        if getattr(kind, "extension_name", "") != "arrow.opaque":
            continue
        plain = pa.chunked_array(
            [chunk.storage for chunk in table.column(at).chunks], kind.storage_type
        )
        if kind.type_name == "numeric" and is_text(kind.storage_type):
            plain = plain.cast(pa.float64())
        table = table.set_column(at, column.name, plain)
    return table


def _trace(market: Market, batch: pa.RecordBatch, first: int) -> int:
    """The sum of the hashes of some rows, each with its place."""
    hashes = np.arange(first, first + batch.num_rows).astype(np.uint64)
    for name in wanted(market):
        column = batch.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        there = column.is_valid()
        if is_text(column.type):
            own = keys(column.fill_null("").cast(pa.large_string()))
        elif pa.types.is_null(column.type):
            own = np.zeros(len(column), np.uint64)
        else:
            exact = pa.int64() if pa.types.is_integer(column.type) else pa.float64()
            own = to_numpy(pc.fill_null(column.cast(exact, safe=False), 0)).view(np.uint64)
        hashes = mix_all(hashes ^ mix_all(own ^ to_numpy(there).astype(np.uint64)))
    return int(hashes.sum(dtype=np.uint64))
