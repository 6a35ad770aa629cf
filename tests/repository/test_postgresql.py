"""Where the tests' PostgreSQL and Java come from, and how long a server lives.
The commands that install are fakes: nothing is installed. `test_chromium.py` has more of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psycopg
import pytest

import postgresql
from postgresql import POSTGRESQL
from spark import JAVA

ROOT = Path(__file__).parents[2]
STARTS, FAILS = "exit 0", "exit 3"


class Machine:
    """A PATH and a record of the commands run."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.log = folder / "bin", folder / "log"
        self.bin.mkdir()
        self.log.touch()
        for needed in ["env"]:
            (self.bin / needed).symlink_to(shutil.which(needed))

    def has(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.log}\n{script}\n')
        path.chmod(0o755)

    def has_programs(self, folder: Path, script: str = STARTS) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name in postgresql._PROGRAMS:
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        return folder

    @property
    def ran(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.delenv("JDPACK_POSTGRESQL", raising=False)
    monkeypatch.setattr(postgresql, "_PLACES", [tmp_path / "lib"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return made


def test_the_newest_of_those_that_work(machine, tmp_path, monkeypatch, capsys):
    assert POSTGRESQL.find() is None
    old = machine.has_programs(tmp_path / "lib/9/bin")
    assert POSTGRESQL.find() == str(old)
    new = machine.has_programs(tmp_path / "lib/15/bin")
    machine.has_programs(tmp_path / "lib/17/bin", FAILS)
    assert POSTGRESQL.find() == str(new)
    own = machine.has_programs(tmp_path / "own")
    monkeypatch.setenv("JDPACK_POSTGRESQL", str(own))
    assert POSTGRESQL.find() == str(own)
    (own / "pg_ctl").unlink()
    assert POSTGRESQL.main() == 1
    assert f"JDPACK_POSTGRESQL is {str(own)!r}" in capsys.readouterr().err


def test_otherwise_it_says_what_to_do(machine, monkeypatch, capsys):
    machine.has("apt-get", FAILS)
    assert POSTGRESQL.main() == 1
    err = capsys.readouterr().err
    assert err.startswith("error: the tests of databases need PostgreSQL: it is not installed")
    assert "POSTGRESQL=no" in err and machine.ran == []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert POSTGRESQL.main() == 1
    assert "apt-get: exit code 3" in capsys.readouterr().err
    assert machine.ran[-1] == f"apt-get --quiet {' '.join(POSTGRESQL.apt)}"


def test_java_must_be_new_enough(machine, monkeypatch, capsys):
    monkeypatch.delenv("JDPACK_JAVA", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    machine.has("java", "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2")
    assert JAVA.find() is None and JAVA.main() == 1
    err = capsys.readouterr().err
    assert err.startswith("error: the tests of Spark need Java 17 or newer: it is not installed")
    assert "SPARK=no" in err
    machine.has("java", "echo 'openjdk version \"21.0.1\" 2023-10-17' >&2")
    assert JAVA.find() == str(machine.bin / "java") and JAVA.main() == 0
    machine.has("java", "echo 'openjdk version \"21.0.1\" 2023-10-17' >&2; exit 3")
    assert JAVA.find() is None


@pytest.mark.parametrize(
    ("option", "variable", "script"),
    [
        ("POSTGRESQL", "JDPACK_POSTGRESQL=no", "tests/postgresql.py"),
        ("SPARK", "JDPACK_JAVA=no", "tests/spark.py"),
    ],
)
def test_make_leaves_the_tests_out_on_request(option, variable, script):
    for given in ("no", "yes"):
        done = subprocess.run(
            ["make", "--dry-run", "--no-print-directory", "test", f"{option}={given}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert (variable in done.stdout) == (given == "no")
        assert (script in done.stdout) != (given == "no")


def test_a_server_that_tests_share(server, new_database):
    first, second = new_database(), new_database()
    with psycopg.connect(server.address(first)) as db:
        assert db.execute("SELECT current_database()").fetchone() == (first,)
    with psycopg.connect(server.tcp(second, password=server.password)) as db:
        assert db.execute("SELECT current_database()").fetchone() == (second,)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.tcp(first, password="wrong"))


def test_a_server_ends_with_the_process_that_it_serves(server):
    """Even if that is killed, and nobody says goodbye."""
    serves = subprocess.Popen(["sleep", "600"])
    own = postgresql.Server.start(serves.pid)
    with psycopg.connect(own.address()) as db:
        (process,) = db.execute("SELECT pg_backend_pid()").fetchone()
        assert postgresql._alive(process)
    serves.send_signal(signal.SIGKILL)
    serves.wait()
    for _ in range(600):
        if not Path(own.folder).exists():
            break
        time.sleep(0.1)
    assert not Path(own.folder).exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(own.tcp(password=own.password))
