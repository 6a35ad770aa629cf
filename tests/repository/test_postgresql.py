"""Where the tests' PostgreSQL comes from, on machines of all kinds, and how long a server lives.
The commands that install are fakes: nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

import postgresql

ROOT = Path(__file__).parents[2]
STARTS, FAILS = "exit 0", "exit 3"


class Machine:
    """A PATH and a record of the commands run."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.log = folder / "bin", folder / "log"
        self.bin.mkdir()
        self.log.touch()
        for needed in ["env", "mkdir", "chmod"]:
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


def test_the_named_folder_comes_first(machine, tmp_path, monkeypatch, capsys):
    machine.has_programs(tmp_path / "lib/15/bin")
    own = machine.has_programs(tmp_path / "own")
    monkeypatch.setenv("JDPACK_POSTGRESQL", str(own))
    assert postgresql.find() == own
    for wrong in [tmp_path / "nothing", machine.has_programs(tmp_path / "broken", FAILS)]:
        monkeypatch.setenv("JDPACK_POSTGRESQL", str(wrong))
        monkeypatch.setattr(sys, "argv", ["postgresql.py"])
        assert postgresql.main() == 1
        assert f"JDPACK_POSTGRESQL is {str(wrong)!r}" in capsys.readouterr().err
    assert machine.ran == [], "and nothing is installed in its place"


def test_the_newest_of_those_that_work(machine, tmp_path):
    assert postgresql.find() is None
    old = machine.has_programs(tmp_path / "lib/9/bin")
    assert postgresql.find() == old
    new = machine.has_programs(tmp_path / "lib/15/bin")
    machine.has_programs(tmp_path / "lib/17/bin", FAILS)
    assert postgresql.find() == new


def test_root_installs_it_with_apt(machine, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["postgresql.py"])
    made = tmp_path / "lib/15/bin"
    scripts = "".join(
        f"echo '#!/bin/sh' > {made}/{name}; chmod +x {made}/{name}; "
        for name in postgresql._PROGRAMS
    )
    machine.has("apt-get", f'[ "$2" = update ] || {{ mkdir -p {made}; {scripts}}}')
    assert postgresql.main() == 0
    assert f"installed {made}" in capsys.readouterr().out
    install = " ".join(postgresql._INSTALL)
    assert machine.ran == ["apt-get --quiet update", f"apt-get --quiet {install}"]
    assert postgresql.main() == 0 and len(machine.ran) == 2, "a second time nothing is installed"


def test_otherwise_it_says_what_to_do(machine, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["postgresql.py"])
    machine.has("apt-get", FAILS)
    assert postgresql.main() == 1
    err = capsys.readouterr().err
    assert err.startswith("error: the tests of databases need PostgreSQL: it is not installed")
    assert "POSTGRESQL=no" in err and machine.ran == []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert postgresql.main() == 1
    assert "apt-get: exit code 3" in capsys.readouterr().err


def test_make_leaves_the_tests_out_on_request():
    for given, wanted in [("POSTGRESQL=no", True), ("POSTGRESQL=yes", False)]:
        done = subprocess.run(
            ["make", "--dry-run", "--no-print-directory", "test", given, "BROWSER=no"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert ("JDPACK_POSTGRESQL=no" in done.stdout) == wanted
        assert ("tests/postgresql.py" in done.stdout) != wanted


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
