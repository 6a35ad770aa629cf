"""Private: results in a table of the database that the records came from.

All rows of a run are written in one transaction, or none is. Every row names its run, by the
commitment in the billboard's header, so one table can take many runs, and a run that is resumed
sees whether its rows are already there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from jdpack.errors import JdpackError, OutputError
from jdpack.records.databases.database import DatabaseQuery, connect, explained, quoted
from jdpack.records.source import Source

RUN = "run"
"""The column that names the run."""


@dataclass(frozen=True)
class Target:
    """A table to write results to."""

    query: DatabaseQuery
    """Says where the database is."""
    table: str
    """Its name, perhaps with its schema's: "allocation" or "town.allocation"."""

    @classmethod
    def of(cls, source: Source, table: object) -> Target | None:
        """The table that an argument names; None if it names none."""
        if table is None:
            return None
        if source.query is None:
            raise OutputError(
                f"there is no database to write {table!r} to",
                "results go to a table of the database that the records come from",
            )
        if source.query.kind == "spark":
            raise OutputError(
                f"Spark has no transactions, so {table!r} could be left with some of the rows",
                "let Spark read private/allocation.parquet, or the letters, after the run",
            )
        if not isinstance(table, str) or not 1 <= len([*filter(None, table.split("."))]) <= 2:
            raise OutputError(f"{table!r} is not the name of a table", "such as town.allocation")
        return cls(source.query, table)

    def check(self, names: Sequence[str]) -> None:
        """Refuse a table that cannot take these columns, before anything is spent."""
        wanted = [RUN, *names]
        if RUN in names:
            raise OutputError(
                f"the allocation already has a column {RUN!r}, a name that the table needs",
                "give the column of the records another name, with AS in the query",
            )
        with self._explained(""), connect(self.query, write=True) as db:
            found = self._ask(db, "*", "1 = 0")
            there = wanted if found is None else [column[0] for column in found[0]]
            if sorted(there) != sorted(wanted):
                raise OutputError(
                    f"table {self.table!r} has the columns {', '.join(there)}, not "
                    f"{', '.join(wanted)}",
                    "name a new table, or one that an earlier run has made",
                )
            nothing = pa.table({name: pa.array([], pa.string()) for name in wanted})
            self._ingest(db, nothing, found is not None)
            db.rollback()

    def write(self, run: str, batches: Iterable[pa.RecordBatch], after: str) -> bool:
        """Write all rows, or none; False if rows of this run are already there.

        Args:
            run: the run's commitment.
            batches: the rows.
            after: what to do if it fails.
        """
        with self._explained(after), connect(self.query, write=True) as db:
            found = self._ask(db, "count(*)", f"{RUN} = '{run}'")
            if found is not None and found[1][0] > 0:
                return False
            rows = (_named(batch, run) for batch in batches)
            first = next(rows)

            def all_rows() -> Iterator[pa.RecordBatch]:
                yield first
                yield from rows

            reader = pa.RecordBatchReader.from_batches(first.schema, all_rows())
            self._ingest(db, reader, found is not None)
            db.commit()
            return True

    def _ask(self, db: Any, what: str, where: str) -> tuple[Any, Any] | None:
        """The columns and the first row of an answer; None if there is no table yet."""
        try:
            with db.cursor() as cursor:
                cursor.execute(f"SELECT {what} FROM {self._name} WHERE {where}")
                return cursor.description, cursor.fetchone()
        except Exception as error:
            if "denied" in str(error):
                raise
            return None  # whatever else is wrong shows when the table is made
        finally:
            db.rollback()

    def _ingest(self, db: Any, rows: Any, there: bool) -> None:
        schema, _, name = self.table.rpartition(".")
        mode = "append" if there else "create"
        with db.cursor() as cursor:
            cursor.adbc_ingest(name, rows, mode=mode, db_schema_name=schema or None)

    @property
    def _name(self) -> str:
        return ".".join(quoted(part) for part in self.table.split("."))

    @contextmanager
    def _explained(self, after: str) -> Iterator[None]:
        def failed(message: str, hint: str) -> JdpackError:
            return OutputError(message, after or hint)

        with explained(self.query, f"write table {self.table!r} of", failed):
            yield


def rows_of(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of an allocation in a file."""
    with pyarrow.parquet.ParquetFile(path) as file:
        yield from file.iter_batches()


def _named(batch: pa.RecordBatch, run: str) -> pa.RecordBatch:
    column = pa.repeat(pa.scalar(run), batch.num_rows)
    return pa.RecordBatch.from_arrays([column, *batch.columns], [RUN, *batch.schema.names])
