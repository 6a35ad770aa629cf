"""Public: a ledger in a PostgreSQL database, for several curators at once.

It has the same entries, the same chain and the same rules as a file. Its schema `jdpack` has two
tables:

    entries (number, line)      the entries, as in a file
    heads (run, place, head)    the hash of every line that holds noise, as `jdpack.ledger.progress`

Rows are only ever added: triggers refuse everything else, and the role that runs needs no more than
SELECT and INSERT. Whoever owns the tables can drop the triggers, as the owner of a file can.

Formal guarantees: the same as in `jdpack.ledger.ledger`. Here they rest on three things:
- Every change is one serialisable transaction: PostgreSQL lets it succeed only if it reads and
  writes as if nobody else were there. If another curator was faster, it is made again from the
  start (`retried`). An advisory lock makes curators queue, so that this is rare.
- A hash has its place in the run as its key. If two processes append a hash after the same line,
  one of them is refused.
- A process holds a run by an advisory lock of the same connection that it notes its hashes with. If
  the connection is lost, and the lock with it, no further hash can be noted, so no further line
  becomes public.

Commits must survive a power cut, so a server with `fsync` off is refused.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from jdpack.errors import LedgerError
from jdpack.ledger.entries import SCHEMA, Kind, LedgerState
from jdpack.ledger.sqlite_file import BUSY_SECONDS
from jdpack.storage.address import HINT, scheme_of, secret_in, shown, without_secrets

if TYPE_CHECKING:
    import psycopg

_TRIES = 30
_SCHEMES = ("postgresql", "postgres")
_ABOUT = "jdpack ledger, schema "

_REFUSE = "BEGIN RAISE 'rows of a ledger are never changed or deleted'; END"
_ONLY_NEXT = (
    "BEGIN IF NEW.number IS DISTINCT FROM "
    "(SELECT coalesce(max(number), 0) + 1 FROM jdpack.entries) "
    "THEN RAISE 'entries are appended'; END IF; RETURN NEW; END"
)
_TABLES = (
    "CREATE SCHEMA jdpack",
    "CREATE TABLE jdpack.entries (number bigint PRIMARY KEY, line text NOT NULL)",
    "CREATE TABLE jdpack.heads (run text NOT NULL, place bigint NOT NULL, head text NOT NULL, "
    "PRIMARY KEY (run, place))",
    *(
        f"CREATE FUNCTION jdpack.{name}() RETURNS trigger LANGUAGE plpgsql "
        f"SET search_path TO pg_catalog AS $${body}$$"
        for name, body in (("refuse", _REFUSE), ("only_next", _ONLY_NEXT))
    ),
    "CREATE TRIGGER only_next BEFORE INSERT ON jdpack.entries "
    "FOR EACH ROW EXECUTE FUNCTION jdpack.only_next()",
    *(
        f"CREATE TRIGGER never BEFORE UPDATE OR DELETE OR TRUNCATE ON jdpack.{table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION jdpack.refuse()"
        for table in ("entries", "heads")
    ),
    f"COMMENT ON SCHEMA jdpack IS '{_ABOUT}{SCHEMA}'",
)
_TRIGGERS = [
    ("entries", "never", _REFUSE, "O"),
    ("entries", "only_next", _ONLY_NEXT, "O"),
    ("heads", "never", _REFUSE, "O"),
]
_GRANTS = (
    "GRANT USAGE ON SCHEMA jdpack TO {role}",
    "GRANT SELECT, INSERT ON jdpack.entries, jdpack.heads TO {role}",
)

_DAMAGED = "put back a backup and compare its head; nothing was changed"
_QUEUE = -0x6A64706B
"""The advisory lock that curators queue for; those of runs are not negative."""

_HELD: dict[tuple[int, str, str], psycopg.Connection[Any]] = {}
"""The connections that hold the runs of this process, by process, address and run."""

P = ParamSpec("P")
T = TypeVar("T")


class ConflictError(LedgerError):
    """Another curator was faster; nothing was changed, and trying again may succeed."""


def retried(change: Callable[P, T]) -> Callable[P, T]:
    """The change, made again from the start if another curator was faster."""

    @functools.wraps(change)
    def again(*args: P.args, **kwargs: P.kwargs) -> T:
        for left in reversed(range(_TRIES)):
            try:
                return change(*args, **kwargs)
            except ConflictError:
                if not left:
                    raise
                time.sleep(time.monotonic_ns() % 50 / 1000.0)  # so that two do not meet again
        raise AssertionError

    return again


def is_postgres(path: object) -> bool:
    """Whether a ledger is in PostgreSQL."""
    return isinstance(path, str) and "://" in path and scheme_of(path) in _SCHEMES


class PostgresLedger:
    """The tables of a ledger."""

    def __init__(self, address: str) -> None:
        if secret := secret_in(address):
            raise LedgerError(f"the address of a ledger holds {secret}", HINT)
        self.address = address

    def __str__(self) -> str:
        return shown(self.address)

    def make(self) -> None:
        """Nothing: the first transaction makes the tables."""

    @contextlib.contextmanager
    def transaction(self, *, write: bool) -> Iterator[psycopg.Connection[Any]]:
        """One serialisable transaction, or LedgerError. If it succeeds, it is on disk."""
        with self._explained(), self._connected() as db:
            if write:
                db.execute(f"SELECT pg_advisory_lock({_QUEUE})")
            mode = "READ WRITE" if write else "READ ONLY"
            db.execute(f"BEGIN ISOLATION LEVEL SERIALIZABLE {mode}")
            yield db
            db.execute("COMMIT")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        with contextlib.closing(self._connect()) as db:
            yield db

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            import psycopg
        except ImportError:
            raise LedgerError(
                f"psycopg is needed for the ledger {str(self)!r}",
                "pip install 'jdpack[postgresql]'",
            ) from None
        db = psycopg.connect(self.address, autocommit=True)
        try:
            for setting in (
                "search_path TO pg_catalog",
                "synchronous_commit TO on",
                f"lock_timeout TO '{BUSY_SECONDS:g}s'",
            ):
                db.execute(f"SET {setting}")
            if _one(db, "SELECT current_setting('fsync')") != "on":
                raise LedgerError(
                    f"the server of ledger {str(self)!r} may lose what is committed",
                    "its setting fsync is off: a power cut would lose what was spent",
                )
        except BaseException:
            db.close()
            raise
        return db

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn any error of PostgreSQL into one sentence without secrets."""
        try:
            yield
        except Exception as error:
            if not type(error).__module__.startswith("psycopg"):
                raise
            raise self._error(error) from None

    def _error(self, error: Exception) -> LedgerError:
        state = getattr(error, "sqlstate", None) or ""
        text = str(error).strip() or type(error).__name__
        text = without_secrets(text.splitlines()[0], self.address)
        if state in ("40001", "40P01", "23505"):
            return ConflictError(
                f"others kept changing the ledger {str(self)!r}", "nothing was changed; try again"
            )
        if state == "55P03":
            return LedgerError(
                f"ledger {str(self)!r} was in use by other processes for {BUSY_SECONDS:g} seconds",
                "nothing was changed; try again, or find out which process holds it",
            )
        if state == "42501":
            return LedgerError(
                f"you may not use the ledger {str(self)!r}: {text}",
                "its owner can let you in with `jdpack ledger create ... --grant ROLE`",
            )
        return LedgerError(
            f"cannot use the ledger {str(self)!r}: {text}",
            "is the server running, and may you connect? A password comes from PGPASSWORD, a "
            "password file or a service file; then it is safe to run the same command again",
        )

    # --- entries --------------------------------------------------------------------------

    def begin(self, db: psycopg.Connection[Any]) -> LedgerState:
        """Read all entries; make the tables first if there are none."""
        if _one(db, "SELECT to_regnamespace('jdpack') IS NOT NULL"):
            return self.read(db)
        for statement in _TABLES:
            db.execute(statement)
        return LedgerState()

    def grant(self, db: psycopg.Connection[Any], role: str) -> None:
        """Let a role read and append, and do nothing else."""
        from psycopg import sql

        for statement in _GRANTS:
            db.execute(sql.SQL(statement).format(role=sql.Identifier(role)))

    def insert(
        self,
        db: psycopg.Connection[Any],
        state: LedgerState,
        kind: Kind,
        dataset: str,
        data: Mapping[str, Any],
    ) -> None:
        """Append an entry, if the rules allow it."""
        line = state.append(kind, dataset, data)
        db.execute("INSERT INTO jdpack.entries VALUES (%s, %s)", [len(state.entries), line])

    def read(self, db: psycopg.Connection[Any]) -> LedgerState:
        """Read all entries, and check each."""
        if not _one(db, "SELECT to_regclass('jdpack.entries') IS NOT NULL"):
            raise LedgerError(
                f"there is no ledger in {str(self)!r}",
                "if runs have used one, this is another database; `jdpack ledger create` makes a "
                "new one, which knows nothing about them",
            )
        about = _one(db, "SELECT obj_description(to_regnamespace('jdpack'), 'pg_namespace')")
        if about not in [f"{_ABOUT}{version}" for version in range(1, SCHEMA + 1)]:
            raise LedgerError(f"schema 'jdpack' is not a ledger that this version reads: {about!r}")
        triggers = db.execute(
            "SELECT c.relname, t.tgname, p.prosrc, t.tgenabled FROM pg_trigger t "
            "JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid "
            "WHERE c.relnamespace = to_regnamespace('jdpack') AND NOT t.tgisinternal "
            "ORDER BY 1, 2"
        ).fetchall()
        if [tuple(map(_text, row)) for row in triggers] != _TRIGGERS:
            raise LedgerError("the ledger's triggers have been changed", _DAMAGED)
        rows = db.execute("SELECT number, line FROM jdpack.entries ORDER BY number")
        return LedgerState.of(rows, _DAMAGED)

    def progress(self, run: str) -> PostgresProgress:
        """How far a run has come."""
        return PostgresProgress(self, run)


class PostgresProgress:
    """The hashes of a run, which are never removed."""

    def __init__(self, ledger: PostgresLedger, run: str) -> None:
        self.ledger, self.run = ledger, run
        self._place = 0

    def __str__(self) -> str:
        return f"jdpack.heads of {self.ledger}"

    @property
    def head(self) -> str | None:
        """The last hash, or None."""
        with self.ledger._explained(), self._connection() as db:
            found = db.execute(
                "SELECT place, head FROM jdpack.heads WHERE run = %s ORDER BY place DESC LIMIT 1",
                [self.run],
            ).fetchone()
        self._place = 0 if found is None else found[0]
        return None if found is None else str(found[1])

    def note(self, head: str, first: bool = False) -> None:
        """Append a hash after the one that `head` gave; it is on disk when this returns.

        Raises LedgerError if another process has appended one since.
        """
        if first:
            self.head  # noqa: B018 (what was noted before does not count any more)
        import psycopg

        try:
            with self.ledger._explained(), self._connection() as db:
                try:
                    db.execute(
                        "INSERT INTO jdpack.heads VALUES (%s, %s, %s)",
                        [self.run, self._place + 1, head],
                    )
                except psycopg.errors.UniqueViolation:
                    raise LedgerError(
                        f"another process is working on run {self.run!r}",
                        "its line came first; wait until it ends; nothing more was posted here",
                    ) from None
        finally:
            self._place += 1

    def sync(self) -> None:
        """Nothing: what others can see is on disk."""

    def remove(self) -> None:
        """Nothing: rows are never deleted."""

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the run; refuse if another process holds it, from any folder."""
        with self.ledger._explained(), self.ledger._connected() as db:
            for left in reversed(range(40)):  # the server may not know yet that a process is gone
                if _one(db, f"SELECT pg_try_advisory_lock({self._lock})"):
                    break
                if not left:
                    raise LedgerError(
                        f"another process is working on run {self.run!r}, in this folder or in a "
                        "copy of it",
                        "wait until it ends; nothing was drawn",
                    )
                time.sleep(0.05)
            _HELD[self._key] = db
            try:
                yield
            finally:
                del _HELD[self._key]

    @contextlib.contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        """The connection that holds the run; another one if this process does not hold it."""
        if (held := _HELD.get(self._key)) is not None:
            yield held
            return
        with self.ledger._connected() as db:
            yield db

    @property
    def _key(self) -> tuple[int, str, str]:
        return os.getpid(), self.ledger.address, self.run

    @property
    def _lock(self) -> int:
        return int.from_bytes(hashlib.sha256(self.run.encode()).digest()[:8]) >> 1


def _one(db: psycopg.Connection[Any], question: str) -> Any:
    found = db.execute(question).fetchone()  # type: ignore[call-overload]
    return None if found is None else found[0]


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value
