"""Private: databases that can compute the queries of a run, behind one small interface.

Every query is written once, in the dialect of DuckDB, and translated by sqlglot. What databases
write differently is here: three functions (`JD_COIN`, `JD_BYTES`, `JD_WIDE`), whole divisions, and
the types of codes.
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import sqlglot
from sqlglot import exp

from jdpack.errors import AgentsError, EngineError
from jdpack.records.databases import duckdb_file, spark
from jdpack.records.schema import clean

COLUMNS_MAX = 1500
"""The most columns that a query computes for each request.

That is 4 for each option besides its codes, or 3 for each resource while records are encoded.
PostgreSQL has at most 1600 columns and 8160 bytes in a row, and 1664 columns in a query.
"""


class Words(NamedTuple):
    """How a database writes what others write differently; {} stands for the argument."""

    coin: str
    """The first 53 bits of the SHA-256 of a text in UTF-8, as an integer."""
    bytes: str
    """How many bytes a text has in UTF-8."""
    wide: str
    """A whole number of up to 38 digits."""
    div: str
    """The quotient of two of these, rounded down."""
    code_type: str = "INTEGER"
    value_type: str = "BIGINT"


WORDS = {
    "duckdb": Words(
        "(CAST('0x' || SUBSTR(SHA256({}), 1, 14) AS BIGINT) // 8)",
        "STRLEN({})",
        "CAST({} AS HUGEINT)",
        "({} // {})",
        "USMALLINT",
        "UINTEGER",
    ),
    "postgres": Words(
        "(CAST(CAST('x' || SUBSTR(ENCODE(SHA256(CONVERT_TO({}, 'UTF8')), 'hex'), 1, 14) "
        "AS BIT(56)) AS BIGINT) / 8)",
        "OCTET_LENGTH(CONVERT_TO({}, 'UTF8'))",
        "CAST({} AS DECIMAL(38, 0))",
        "DIV({}, {})",
    ),
    "spark": Words(
        "(CAST(CONV(SUBSTR(SHA2({}, 256), 1, 14), 16, 10) AS BIGINT) DIV 8)",
        "OCTET_LENGTH({})",
        "CAST({} AS DECIMAL(38, 0))",
        "({} DIV {})",
    ),
    "snowflake": Words(
        "FLOOR(TO_NUMBER(SUBSTR(SHA2({}, 256), 1, 14), 'XXXXXXXXXXXXXX') / 8)",
        "OCTET_LENGTH({})",
        "CAST({} AS DECIMAL(38, 0))",
        "FLOOR({} / {})",
    ),
    "bigquery": Words(
        "DIV(CAST(CONCAT('0x', SUBSTR(TO_HEX(SHA256({})), 1, 14)) AS INT64), 8)",
        "BYTE_LENGTH({})",
        "CAST({} AS BIGNUMERIC)",
        "DIV({}, {})",
    ),
}
"""By the name of the dialect. jdpack runs nothing on Snowflake and BigQuery: for them, tests only
check that every query can be compiled and parsed again."""


_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|(?<![\w.])[0-9]{5,}(?![\w.])"""  # texts, names, numbers
)
_NUMBER = re.compile(r"'[-+.0-9e]+'|[0-9]+")
"""Numbers, as texts or as they are."""


def translated(sql: str, dialect: str, source: str | None = None) -> str:
    """A query in a database's own dialect; `source`, in that dialect, is the table `jd_source`.

    Rounds differ by their numbers only, so each form of a query is translated once.
    """
    if source is not None:  # unchanged: its author knows what it means
        kept = "NOT MATERIALIZED " if dialect in ("duckdb", "postgres") else ""
        return f"WITH jd_source AS {kept}({source}\n) {translated(sql, dialect)}"
    if dialect == "duckdb":  # which has the functions as macros
        return sql
    if _MARK in sql:  # which somebody wrote into a name
        return _translated(sql, dialect)
    numbers: list[str] = []

    def name(found: re.Match[str]) -> str:
        if not _NUMBER.fullmatch(found[0]):
            return found[0]
        numbers.append(found[0])
        mark = f"{_MARK}{len(numbers) - 1:06d}"
        return f"'{mark}'" if found[0].startswith("'") else mark

    form = _translated(_TOKEN.sub(name, sql), dialect)
    return re.sub(rf"'?{_MARK}([0-9]{{6}})'?", lambda mark: numbers[int(mark[1])], form)


_MARK = "7770770777"
"""How the names of numbers begin; they are numbers themselves."""


@lru_cache
def _written(dialect: str, word: str) -> exp.Expr:
    """How a database writes a word, with the columns jd_0 and jd_1 for its arguments."""
    template = getattr(WORDS[dialect], word)
    return sqlglot.parse_one(template.format("jd_0", "jd_1"), read=dialect)


@lru_cache(maxsize=128)
def _translated(sql: str, dialect: str) -> str:
    whole = sqlglot.parse_one(sql, read="duckdb")
    for node in reversed(list(whole.walk())):  # what is inside comes first
        if isinstance(node, exp.Anonymous) and node.name.upper().startswith("JD_"):
            written = _written(dialect, node.name[3:].lower()).copy()
            for place in list(written.find_all(exp.Column)):
                place.replace(node.expressions[int(place.name.removeprefix("jd_"))])
            node.replace(written)
        elif isinstance(node, exp.IntDiv) and dialect == "postgres":
            node.replace(exp.Div(this=node.this, expression=node.expression, typed=True))
        elif isinstance(node, exp.Div):
            node.set("typed", True)
            node.set("safe", False)
        elif isinstance(node, exp.Subquery) and dialect == "postgres" and _computes(node.this):
            # Otherwise PostgreSQL writes every expression out wherever its name occurs.
            node.this.set("offset", exp.Offset(expression=exp.Literal.number(0)))
    return whole.sql(dialect, copy=False)


def placed(query: str, dialect: str) -> str:
    """A query with one more column, jd_place: the number of each row in the order of the query."""
    try:
        whole = sqlglot.parse_one(query, read=dialect)
    except sqlglot.errors.SqlglotError as error:
        raise AgentsError(
            f"cannot understand the query: {clean(error)}", "write one plain SELECT"
        ) from None
    order = whole.args.get("order")
    if not isinstance(whole, exp.Select) or order is None or whole.args.get("distinct"):
        raise AgentsError(
            "the order of an agent's rows counts, so the query must be one SELECT with ORDER BY",
            "end it with ORDER BY the id and what orders the rows of one agent",
        )
    by_name = {column.alias_or_name: column.unalias() for column in whole.selects}
    order.pop()
    for term in order.expressions:
        own = term.this
        if isinstance(own, exp.Literal) and own.is_int:
            own.replace(whole.selects[int(own.this) - 1].unalias().copy())
        elif isinstance(own, exp.Column) and not own.table and own.name in by_name:
            own.replace(by_name[own.name].copy())
    number = exp.Window(this=exp.RowNumber(), order=order)
    whole.select(exp.alias_(number, "jd_place"), copy=False)
    return whole.sql(dialect)


def _computes(query: exp.Expr) -> bool:
    """Whether a query gives expressions names, and does not sum them up."""
    if not isinstance(query, exp.Select) or query.args.get("group"):
        return False
    return any(isinstance(column, exp.Alias) for column in query.selects)


class Warehouse(ABC):
    """A connection to a database."""

    dialect: str
    where: str
    """Its address in messages."""
    encoded = False
    """Whether the records are encoded, so that a run may post what it computes."""

    def create(self, table: str, query: str, source: str | None = None) -> None:
        """Make a table of what a query returns; one of that name is replaced."""
        self.drop(table)
        text = f"CREATE {self.kind_of_table} {table} AS {translated(query, self.dialect, source)}"
        self.execute(text, records=source is not None)

    kind_of_table = "TABLE"

    def drop(self, table: str) -> None:
        """Remove a table, if it is there."""
        self.execute(f"DROP TABLE IF EXISTS {table}")

    def index(self, table: str, column: str) -> None:
        """Make it fast to find the rows with some values, where the database needs that."""
        return

    def ask(self, query: str, source: str | None = None) -> list[int]:
        """The whole numbers of the only row of an answer; sums of nothing are 0."""
        (row,) = self.rows(query, source)
        return [0 if x is None else int(x) for x in row]

    def rows(self, query: str, source: str | None = None) -> list[tuple[Any, ...]]:
        """The rows of an answer."""
        return self.fetch(translated(query, self.dialect, source), records=source is not None)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn any error of the database into one sentence."""
        try:
            yield
        except self.errors as error:
            raise EngineError(
                f"the database {self.where!r} failed: {spark.text(error)}",
                "what is posted is kept and paid for: resume the run once the database is back"
                if self.encoded
                else "nothing is spent: fix the problem, then run the command again",
            ) from None

    errors: tuple[type[Exception], ...] = ()

    @abstractmethod
    def fetch(self, sql: str, *, records: bool = False) -> list[tuple[Any, ...]]:
        """The rows of an answer, in the database's own dialect; `records` if it reads these."""

    @abstractmethod
    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """The rows of a long answer, some at a time."""

    @abstractmethod
    def schema(self, source: str) -> pa.Schema:
        """The columns of a table or query in the database's own dialect."""

    @abstractmethod
    def execute(self, sql: str, *, records: bool = False) -> None:
        """Change something, in the database's own dialect; `records` if it reads these."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect; tables that were not dropped stay."""


class DuckDB(Warehouse):
    """DuckDB, in this process: in memory, or in a file."""

    dialect = "duckdb"

    def __init__(self, path: str | None, threads: int | None, near: Path | None = None) -> None:
        import duckdb

        self.errors = (duckdb.Error,)
        self.where = path or "DuckDB in memory"
        with contextlib.ExitStack() as made, self.explained():
            self._db = duckdb_file.opened(made, path or ":memory:", near=near)
            if threads is not None:
                self._db.execute(f"SET threads = {threads}")
            for name, template in WORDS["duckdb"]._asdict().items():
                if "{}" in template:
                    names = ["x", "y"][: template.count("{}")]
                    macro = f"jd_{name}({', '.join(names)}) AS {template.format(*names)}"
                    self._db.execute(f"CREATE OR REPLACE TEMP MACRO {macro}")
            self._made = made.pop_all()

    def fetch(self, sql: str, *, records: bool = False) -> list[tuple[Any, ...]]:
        with self.explained():
            found: list[tuple[Any, ...]] = self._db.execute(sql).fetchall()
            return found

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        with self.explained():
            yield from self._db.sql(sql).to_arrow_reader(2**16)

    def schema(self, source: str) -> pa.Schema:
        with self.explained():
            return self._db.sql(f"SELECT * FROM ({source}\n) AS s LIMIT 0").to_arrow_reader().schema

    def execute(self, sql: str, *, records: bool = False) -> None:
        with self.explained():
            self._db.execute(sql)

    def close(self) -> None:
        self._made.close()


class PostgreSQL(Warehouse):
    """A PostgreSQL server.

    A run is one transaction, which sees the same rows throughout. Nobody else can see its tables,
    change or drop them, and if the connection is lost, they are gone.
    """

    dialect = "postgres"
    kind_of_table = "UNLOGGED TABLE"  # made again after a crash of the server

    def __init__(self, address: str, where: str) -> None:
        import psycopg

        self.errors, self.where = (psycopg.Error,), where
        with self.explained():
            self._db = psycopg.connect(address, client_encoding="UTF8")
            self._db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            for setting in _PG_SETTINGS:
                self._db.execute(f"SET {setting}")

    def fetch(self, sql: str, *, records: bool = False) -> list[tuple[Any, ...]]:
        with self.explained():
            return self._db.execute(_literal(sql)).fetchall()

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        with self.explained(), self._db.cursor("jdpack") as cursor:
            cursor.execute(_literal(sql))
            names = [column.name for column in cursor.description or ()]
            while rows := cursor.fetchmany(2**14):
                columns = zip(*rows, strict=True)
                yield pa.record_batch([pa.array(column) for column in columns], names)

    def schema(self, source: str) -> pa.Schema:
        with self.explained():
            found = self._db.execute(_literal(f"SELECT * FROM ({source}\n) AS s LIMIT 0"))
            return pa.schema(
                [(c.name, _PG_TYPES.get(c.type_code, pa.binary())) for c in found.description or ()]
            )

    def execute(self, sql: str, *, records: bool = False) -> None:
        with self.explained():
            self._db.execute(_literal(sql))

    def create(self, table: str, query: str, source: str | None = None) -> None:
        super().create(table, query, source)
        for (role,) in self.rows(_OTHERS.format(table)):  # who could read it if it is kept
            self.execute(f"REVOKE ALL ON {table} FROM {role}")

    def index(self, table: str, column: str) -> None:
        self.execute(f"CREATE INDEX ON {table} ({column})")

    def close(self) -> None:
        with contextlib.suppress(EngineError), self.explained(), contextlib.closing(self._db):
            self._db.commit()


_PG_SETTINGS = (
    "standard_conforming_strings TO on",
    "idle_in_transaction_session_timeout TO 0",
    # A run that was killed may still hold tables of the same names, until the server notices.
    "lock_timeout TO '60s'",
)
_OTHERS = (
    "SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) "
    "END FROM pg_class, aclexplode(relacl) WHERE oid = '{}'::regclass AND grantee <> relowner"
)
"""The roles, besides the owner, that a schema's default privileges give rights to a table."""

_PG_TYPES = {
    16: pa.bool_(),
    **dict.fromkeys((20, 21, 23), pa.int64()),
    **dict.fromkeys((700, 701, 1700), pa.float64()),
    **dict.fromkeys((19, 25, 1042, 1043), pa.string()),
}
"""Types by their numbers in PostgreSQL; other types are refused."""


def _literal(sql: str) -> Any:
    """A text that psycopg takes as it is, in the encoding of the connection."""
    return sql.encode()


class Spark(Warehouse):
    """Spark SQL. Tables are files in the folder that `spark.sql.warehouse.dir` names."""

    dialect = "spark"

    def __init__(self, address: str) -> None:
        self._open = contextlib.ExitStack()
        self._spark = self._open.enter_context(spark.session(address))
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        self.errors, self.where = (PySparkException, Py4JError, ConnectionError), address
        self._codes = self._spark.newSession()  # shares the tables, but not the settings
        for name, value in _CODES_SETTINGS.items():
            self._codes.conf.set(name, value)

    def _session(self, records: bool) -> Any:
        return self._spark if records else self._codes

    def fetch(self, sql: str, *, records: bool = False) -> list[tuple[Any, ...]]:
        with self.explained():
            return [tuple(row) for row in self._session(records).sql(sql).collect()]

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        with self.explained():
            yield from spark.read(self._codes, sql).to_batches(2**16)

    def schema(self, source: str) -> pa.Schema:
        with self.explained():
            return spark.read(self._spark, f"SELECT * FROM ({source}\n) AS s LIMIT 0").schema

    def execute(self, sql: str, *, records: bool = False) -> None:
        with self.explained():
            self._session(records).sql(sql)

    def drop(self, table: str) -> None:
        super().drop(table)
        with self.explained():  # a process that was killed leaves files that no catalog knows
            context = self._spark.sparkContext
            folder = self._spark.conf.get("spark.sql.warehouse.dir")
            path = context._jvm.org.apache.hadoop.fs.Path(folder, table)
            path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)

    def close(self) -> None:
        self._open.close()


_RULES = "org.apache.spark.sql.catalyst.optimizer"
_CODES_SETTINGS = {
    "spark.sql.ansi.enabled": "true",  # a number that does not fit is an error
    # Otherwise Spark writes every expression out wherever its name occurs, which takes minutes.
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.optimizer.excludedRules": f"{_RULES}.PushDownPredicates",
}
"""The settings for queries to the table of codes."""
