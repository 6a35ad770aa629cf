"""Where the ledgers of the soak are: in files, or in databases of a private PostgreSQL server.

Everything here reads a ledger without jdpack.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import sys
import time
from pathlib import Path

import psycopg

from jdpack.ledger.progress import ProgressFile

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import postgresql

server: postgresql.Server | None = None
"""The server of all ledgers; None if they are files."""


def use_postgresql() -> None:
    """Keep all ledgers in a new server, which lives as long as this process."""
    global server
    server = postgresql.Server.start(os.getpid())


def ledger_of(folder: Path) -> Path | str:
    """The ledger of a world."""
    return folder / "ledger.db" if server is None else server.address(_name(folder))


def make(folder: Path) -> None:
    """Make a place for the ledger of a world."""
    if server is not None:
        _command(f"DROP DATABASE IF EXISTS {_name(folder)} WITH (FORCE)")
        _command(f"CREATE DATABASE {_name(folder)}")


def copy_world(start: Path, place: Path) -> None:
    """Copy a world in which nobody is working, with its ledger."""
    remove_world(place)
    shutil.copytree(start, place)
    if server is not None:
        _command(f"CREATE DATABASE {_name(place)} TEMPLATE {_name(start)}")


def remove_world(folder: Path) -> None:
    """Remove a world, with its ledger."""
    shutil.rmtree(folder, ignore_errors=True)
    if server is not None:
        _command(f"DROP DATABASE IF EXISTS {_name(folder)} WITH (FORCE)")


def lines_of(ledger: Path | str) -> list[str]:
    """The entries of a ledger."""
    if isinstance(ledger, str):
        with psycopg.connect(ledger) as db:
            rows = db.execute("SELECT line FROM jdpack.entries ORDER BY number").fetchall()
            return [line for (line,) in rows]
    file = sqlite3.connect(ledger, timeout=60.0, isolation_level=None)
    try:
        return [line for (line,) in file.execute("SELECT line FROM entries ORDER BY number")]
    finally:
        file.close()


def heads_file(ledger: Path | str, run: str) -> Path | None:
    """The file beside a ledger that says how far a run has come; None in PostgreSQL."""
    return ProgressFile(ledger, run).path if run and isinstance(ledger, Path) else None


def heads_of(ledger: Path | str, run: str) -> str:
    """How far a run has come: a line per hash."""
    if isinstance(ledger, str):
        with psycopg.connect(ledger) as db:
            rows = db.execute(
                "SELECT head FROM jdpack.heads WHERE run = %s ORDER BY place", [run]
            ).fetchall()
            return "".join(f"{head}\n" for (head,) in rows)
    file = heads_file(ledger, run)
    return file.read_text(errors="replace") if file and file.exists() else ""


def entering() -> None:
    """Give the connections of this process their own name."""
    os.environ["PGAPPNAME"] = f"soak {os.getpid()}"


def settled(process: int) -> None:
    """Wait until the server has noticed that a process is gone: its last command may still end."""
    if server is None:
        return
    with psycopg.connect(server.address(), autocommit=True) as db:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        while db.execute(asked, [f"soak {process}"]).fetchone() != (0,):
            time.sleep(0.005)


def _name(folder: Path) -> str:
    return f"soak_{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:24]}"


def _command(text: str) -> None:
    assert server is not None
    with psycopg.connect(server.address(), autocommit=True) as db:
        db.execute(text)
