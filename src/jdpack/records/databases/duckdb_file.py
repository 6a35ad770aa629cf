"""Private: a DuckDB file, through DuckDB's own module.

ADBC's driver would open the file again for every connection. DuckDB locks a file only against other
processes, so two connections of one process, such as this one and that of the engine sql, would
overwrite each other's changes. DuckDB's module opens a file once per process.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

_BATCH_ROWS = 2**16
_SPILLED = "jdpack-"  # how the names of folders begin for what does not fit in memory


def opened(
    made: contextlib.ExitStack, path: str, *, read_only: bool = False, near: Path | None = None
) -> Any:
    """DuckDB, until `made` is closed.

    What does not fit in memory goes to a folder in `near` that only its owner can read. By default,
    DuckDB would use one that everybody can read: `.tmp` where the process runs, or next to the
    file. Connections to one file share the folder of the first.
    """
    import duckdb

    folder = made.enter_context(TemporaryDirectory(prefix=_SPILLED, dir=near))
    db = made.enter_context(duckdb.connect(path, read_only=read_only))
    db.execute("SET enable_progress_bar = false")  # it writes to stdout
    ((now,),) = db.execute("SELECT current_setting('temp_directory')").fetchall()
    if not Path(now).name.startswith(_SPILLED):
        db.execute("SET temp_directory = ?", [folder])
    return db


class DuckDBConnection:
    """A connection with a transaction: those methods of an ADBC connection that jdpack uses."""

    def __init__(self, path: str, *, write: bool) -> None:
        import duckdb

        with contextlib.ExitStack() as made:
            try:
                self._db = opened(made, path, read_only=not write)
            except (
                duckdb.ConnectionException
            ):  # this process already has it open, in the other mode
                self._db = opened(made, path, read_only=write)
            self._begin = "BEGIN TRANSACTION" if write else "BEGIN TRANSACTION READ ONLY"
            self._db.execute(self._begin)
            self._open = made.pop_all()

    def __enter__(self) -> DuckDBConnection:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def cursor(self) -> contextlib.AbstractContextManager[DuckDBConnection]:
        """The connection itself, which has one result at a time."""
        return contextlib.nullcontext(self)

    def execute(self, sql: str) -> None:
        self._found = self._db.sql(sql)

    def fetchone(self) -> Any:
        return next(iter(self._found.limit(1).fetchall()), None)

    @property
    def description(self) -> Any:
        return self._found.description

    def fetch_record_batch(self) -> pa.RecordBatchReader:
        """The rows of what was executed."""
        return self._found.to_arrow_reader(_BATCH_ROWS)

    def adbc_ingest(self, table: str, rows: Any, mode: str, db_schema_name: str | None) -> None:
        """Add rows to a table, or make it of them."""
        parts = [part for part in (db_schema_name, table) if part]
        name = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
        self._db.register("jdpack_rows", rows)
        what = f"CREATE TABLE {name} AS" if mode == "create" else f"INSERT INTO {name} BY NAME"
        self._db.execute(f"{what} SELECT * FROM jdpack_rows")
        self._db.unregister("jdpack_rows")

    def commit(self) -> None:
        self._end("COMMIT")

    def rollback(self) -> None:
        self._end("ROLLBACK")

    def _end(self, how: str) -> None:
        self._db.execute(how)
        self._db.execute(self._begin)
