"""Public: the file of a ledger: SQLite, opened again for every transaction and never trusted.

It uses a rollback journal, not WAL, so that the ledger is one file. Every commit is synced, and so
is the folder. A file is empty until its first transaction has made all of it, so a kill leaves
nothing half made.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jdpack.errors import LedgerError
from jdpack.ledger.entries import SCHEMA, Kind, LedgerState
from jdpack.ledger.progress import ProgressFile

APPLICATION_ID = 0x6A64706B  # "jdpk", where SQLite files say what they are for
BUSY_SECONDS = 60.0

_TABLES = {
    "entries": "CREATE TABLE entries (number INTEGER PRIMARY KEY, line TEXT NOT NULL) STRICT",
    "only_next": "CREATE TRIGGER only_next BEFORE INSERT ON entries WHEN NEW.number IS NOT"
    " (SELECT coalesce(max(number), 0) + 1 FROM entries)"
    " BEGIN SELECT RAISE(ABORT, 'entries are appended'); END",
    "no_update": "CREATE TRIGGER no_update BEFORE UPDATE ON entries"
    " BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END",
    "no_delete": "CREATE TRIGGER no_delete BEFORE DELETE ON entries"
    " BEGIN SELECT RAISE(ABORT, 'entries are never deleted'); END",
}
"""The triggers guard against accidents. Anyone who means to change the file can drop them."""

_DAMAGED = "put back a copy and compare its head; nothing was changed"

# Closing a file drops this process's locks on it, so no thread may open it while one makes it.
_MAKING = threading.Lock()


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _explained(error: Exception, path: Path) -> LedgerError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LedgerError(
            f"ledger {str(path)!r} was in use by other processes for {BUSY_SECONDS:g} seconds",
            "nothing was changed; try again, or find out which process holds it",
        )
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_TOOBIG):
        return LedgerError(f"{str(path)!r} is not a ledger, or is damaged: {error}", _DAMAGED)
    return LedgerError(
        f"cannot use the ledger {str(path)!r}: {error}",
        "you must be able to write to its folder, which needs free space; then it is safe to run "
        "the same command again",
    )


def _ask(db: sqlite3.Connection, pragma: str) -> object:
    (value,) = db.execute(f"PRAGMA {pragma}").fetchone()
    return value


def _things(db: sqlite3.Connection) -> list[tuple[object, ...]]:
    """What the file's schema contains, cut off one past the size of a ledger's."""
    rows = db.execute("SELECT name, sql FROM sqlite_master").fetchmany(len(_TABLES) + 1)
    return [tuple(row) for row in rows]


def _empty(db: sqlite3.Connection) -> bool:
    marks = (_ask(db, "application_id"), _ask(db, "user_version"))
    return marks == (0, 0) and not _things(db)


class SqliteLedger:
    """The file of a ledger."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def make(self) -> None:
        """Make an empty file if there is none. The first transaction fills it, or fails."""
        try:
            with _MAKING:
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        except (OSError, ValueError) as error:
            raise LedgerError(
                f"cannot make the ledger {str(self.path)!r}: {_why(error)}",
                "its folder must exist, and you must be able to write to it",
            ) from None

    @contextlib.contextmanager
    def transaction(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """One transaction on the file, or LedgerError. If it succeeds, it is on disk."""
        try:
            found = os.lstat(self.path)
        except (OSError, ValueError) as error:
            raise LedgerError(
                f"cannot find the ledger {str(self.path)!r}: {_why(error)}",
                "if runs have used it, put it back where it was; `jdpack ledger create` makes a "
                "new one, which knows nothing about them",
            ) from None
        if stat.S_ISLNK(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink != 1):
            raise LedgerError(
                f"ledger {str(self.path)!r} is a link, or has several names",
                "give it one name: after a crash, SQLite finds the journal by the name of the file",
            )
        if not stat.S_ISREG(found.st_mode):
            raise LedgerError(
                f"ledger {str(self.path)!r} is not a regular file", "a ledger is one file"
            )
        if sqlite3.sqlite_version_info < (3, 37):
            raise LedgerError(
                f"SQLite {sqlite3.sqlite_version} is too old", "3.37 or later is needed"
            )
        try:
            with _MAKING:
                db = sqlite3.connect(
                    f"{self.path.absolute().as_uri()}?mode=rw",
                    uri=True,
                    timeout=BUSY_SECONDS,
                    isolation_level=None,
                )
            with contextlib.closing(db):
                db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2**16)
                db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
                for setting in (
                    "trusted_schema = OFF",
                    "cell_size_check = ON",
                    "synchronous = EXTRA",
                ):
                    db.execute(f"PRAGMA {setting}")
                if _ask(db, "journal_mode") != "delete":  # so that the ledger is one file
                    raise LedgerError(
                        f"ledger {str(self.path)!r} is not in SQLite's journal mode DELETE",
                        "somebody changed the mode: set it back with `PRAGMA journal_mode = "
                        "DELETE`",
                    )
                db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield db
                db.execute("COMMIT")
        except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite quotes a damaged schema
            raise _explained(error, self.path) from None

    def begin(self, db: sqlite3.Connection) -> LedgerState:
        """Read all entries; make the tables first if the file is empty."""
        if not _empty(db):
            return self.read(db)
        for statement in _TABLES.values():
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        return LedgerState()

    def insert(
        self,
        db: sqlite3.Connection,
        state: LedgerState,
        kind: Kind,
        dataset: str,
        data: Mapping[str, Any],
    ) -> None:
        """Append an entry, if the rules allow it. An earlier schema becomes SCHEMA."""
        line = state.append(kind, dataset, data)
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute("INSERT INTO entries VALUES (?, ?)", (len(state.entries), line))

    def read(self, db: sqlite3.Connection) -> LedgerState:
        """Read all entries, and check each."""
        if _empty(db):
            raise LedgerError(
                "the ledger is empty",
                "if runs have used it, put back a copy; only if `jdpack ledger create` was "
                "interrupted, run that again",
            )
        if _ask(db, "application_id") != APPLICATION_ID:
            raise LedgerError(
                "the file is not a ledger but another SQLite database", "nothing was done"
            )
        if (version := _ask(db, "user_version")) not in range(1, SCHEMA + 1):
            raise LedgerError(
                f"schema {version!r} is not one of 1 to {SCHEMA}, which this version reads"
            )
        if _things(db) != list(_TABLES.items()):
            raise LedgerError("the ledger's tables or triggers have been changed", _DAMAGED)
        rows = db.execute("SELECT number, line FROM entries ORDER BY number")
        return LedgerState.of(rows, _DAMAGED)

    def progress(self, run: str) -> ProgressFile:
        """How far a run has come."""
        return ProgressFile(self.path, run)
