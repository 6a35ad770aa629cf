"""Finds PostgreSQL for the tests of databases or installs it (`programs`), and starts a server.

It takes the programs in the folder that JDPACK_POSTGRESQL names, on the PATH, or where Debian and
Homebrew keep them.

`Server.start` makes a new server in its own folder, on a free port of this machine and on a socket
in that folder. PostgreSQL refuses to run as root, so root starts it as another user. A second
process stops the server and removes the folder when the process that it serves is gone, even if
that was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from programs import MissingError, Program, answers

SUPERUSER = "curator"

_PLACES = [
    *(Path("/usr/lib/postgresql"), Path("/usr/local/lib/postgresql")),
    *(Path("/opt/homebrew/opt"), Path("/usr/local/opt")),
]
_PROGRAMS = ["initdb", "pg_ctl", "postgres"]
_SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "32MB",
    "listen_addresses": "127.0.0.1",
    "autovacuum": "off",
}
_WATCH_SECONDS = 0.5


def _candidates() -> Iterator[str]:
    if on_path := shutil.which("initdb"):
        yield str(Path(on_path).resolve().parent)
    for place in _PLACES:
        folders = [*place.glob("[0-9]*/bin"), *place.glob("postgresql@*/bin")]
        yield from map(str, sorted(folders, key=_version, reverse=True))


def _version(folder: Path) -> int:
    return int(folder.parent.name.partition("@")[2] or folder.parent.name.partition(".")[0])


POSTGRESQL = Program(
    name="PostgreSQL",
    tests="the tests of databases",
    variable="JDPACK_POSTGRESQL",
    package="postgresql",
    hint="install PostgreSQL (Debian: apt install postgresql), or set JDPACK_POSTGRESQL to the "
    "folder of its programs, which has initdb; `make test POSTGRESQL=no` leaves these tests out",
    candidates=_candidates,
    works=lambda folder: all(answers(f"{folder}/{name}", "--version") for name in _PROGRAMS),
)


# --- a server -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A private PostgreSQL server. Its socket lets anyone on this machine in without a password."""

    folder: str
    programs: str
    port: int
    password: str
    """The password of SUPERUSER over TCP."""

    @classmethod
    def start(cls, serves: int) -> Server:
        """A new server for the process `serves`; MissingError if it does not start."""
        programs = POSTGRESQL.needed()
        folder = Path(tempfile.mkdtemp(prefix="jdpack-pg-"))
        password = secrets.token_urlsafe(12)
        (folder / "password").write_text(password)
        folder.chmod(0o755)
        if (user := _user()) is not None:
            for made in (folder, folder / "password"):
                shutil.chown(made, user)
        _run(
            *(f"{programs}/initdb", "--pgdata", folder / "data", "--username", SUPERUSER),
            *("--auth-local", "trust", "--auth-host", "scram-sha-256", "--no-sync"),
            *("--pwfile", folder / "password", "--encoding", "UTF8", "--locale", "C"),
            folder=folder,
        )
        with (folder / "data/postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value!r}\n" for name, value in _SETTINGS.items())
            file.write(f"unix_socket_directories = {str(folder)!r}\n")
        server = cls(str(folder), programs, _free_port(), password)
        server.resume()
        subprocess.run(
            [sys.executable, __file__, "watch", str(serves), json.dumps(asdict(server))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
        )
        return server

    def resume(self) -> None:
        """Start it, on the port that it has had."""
        self._control("start", "--wait", "--options", f"-p {self.port}", "--log", "log")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it, as pg_ctl does: "immediate" is a crash, "fast" aborts whatever is running."""
        self._control("stop", "--wait", "--mode", mode)

    def address(self, database: str = "postgres", user: str = SUPERUSER) -> str:
        """The address of a database over the socket, which asks for no password."""
        return f"postgresql://{user}@/{database}?host={self.folder}&port={self.port}"

    def tcp(self, database: str = "postgres", user: str = SUPERUSER, password: str = "") -> str:
        """The address of a database over TCP, which asks for a password."""
        who = f"{user}:{password}" if password else user
        return f"postgresql://{who}@127.0.0.1:{self.port}/{database}"

    def _control(self, *command: str) -> None:
        folder = Path(self.folder)
        _run(Path(self.programs) / "pg_ctl", "--pgdata", folder / "data", *command, folder=folder)


def shared(folder: Path, serves: int) -> Server:
    """The server of all processes that name the same folder; the first of them starts it."""
    import fcntl

    with (folder / "postgresql.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = folder / "postgresql.json"
        if known.exists():
            return Server(**json.loads(known.read_text()))
        server = Server.start(serves)
        known.write_text(json.dumps(asdict(server)))
        return server


def _user() -> str | None:
    """The user that the server runs as; None for the current user."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


def _run(*command: str | Path, folder: Path) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        user=_user(),
        stdin=subprocess.DEVNULL,
        stdout=(out := (folder / "out").open("a")),
        stderr=subprocess.STDOUT,
        env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
    )
    out.close()
    if done.returncode:
        said = (folder / "out").read_text().strip().splitlines()
        raise MissingError(f"{Path(command[0]).name} failed: {said[-1] if said else 'no output'}")


def _free_port() -> int:
    with socket.socket() as any:
        any.bind(("127.0.0.1", 0))
        return int(any.getsockname()[1])


def _watch(serves: int, server: Server) -> None:
    """Stop a server once the process that it serves is gone."""
    while _alive(serves):
        time.sleep(_WATCH_SECONDS)
    with contextlib.suppress(MissingError):  # a test may have stopped it
        server.stop()
    shutil.rmtree(server.folder, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def main() -> int:
    """Make sure that PostgreSQL is installed, or watch over a server."""
    if sys.argv[1:2] == ["watch"]:
        if os.fork():  # whoever started the server need not wait for its watch
            return 0
        _watch(int(sys.argv[2]), Server(**json.loads(sys.argv[3])))
        return 0
    return POSTGRESQL.main()


if __name__ == "__main__":
    sys.exit(main())
