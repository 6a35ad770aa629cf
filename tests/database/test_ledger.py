"""The ledger in PostgreSQL: what differs from a file. `tests/unit/ledger` has the rules of both."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time

import psycopg
import pytest

import postgresql
from database import people
from database.people import WIDE, everything_below
from helpers import check_error, run_cli
from jdpack import Billboard, Budget, BudgetError, Ledger, LedgerError, Neighbours, resume, solve
from jdpack.ledger import postgres

REPLACE = Neighbours.REPLACE_ONE
ONE = Budget.split(1.0, 1e-6, truncated=False)
FORK = multiprocessing.get_context("fork")
PASSWORD = "s3kret-Pa55"


@pytest.fixture
def ledger(database):
    return Ledger.create(database, "clinic", epsilon=4.0, delta=1e-5)


@pytest.fixture
def agents(tmp_path):
    return people.parquet(tmp_path, people.wide())


@pytest.fixture
def runner(ledger, server):
    """The address of the ledger for a role that may only append."""
    with psycopg.connect(ledger.path, autocommit=True) as db:
        name = db.execute("SELECT current_database()").fetchone()[0]
        db.execute("DROP ROLE IF EXISTS runner")
        db.execute(f"CREATE ROLE runner LOGIN PASSWORD '{PASSWORD}'")
    Ledger.create(ledger.path, "town", epsilon=4.0, delta=1e-5, grant="runner")
    yield server.address(name, "runner")
    with psycopg.connect(ledger.path, autocommit=True) as db:
        db.execute("DROP OWNED BY runner")
        db.execute("DROP ROLE runner")


# --- rights -------------------------------------------------------------------------------

CHANGES = [
    "UPDATE jdpack.entries SET line = 'x'",
    "DELETE FROM jdpack.entries",
    "TRUNCATE jdpack.entries",
    "UPDATE jdpack.heads SET head = 'x'",
    "DELETE FROM jdpack.heads",
    "TRUNCATE jdpack.heads",
]
STRUCTURE = [
    "DROP TABLE jdpack.entries",
    "DROP SCHEMA jdpack CASCADE",
    "ALTER TABLE jdpack.entries DISABLE TRIGGER ALL",
    "DROP TRIGGER never ON jdpack.entries",
    "CREATE OR REPLACE FUNCTION jdpack.refuse() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN RETURN NEW; END'",
    "CREATE TABLE jdpack.more (x int)",
    "COMMENT ON SCHEMA jdpack IS 'x'",
]


def test_the_role_that_runs_can_only_append(runner, agents, tmp_path, ledger):
    solve(WIDE, agents, output=tmp_path / "out", ledger=runner, dataset="town")
    before = ledger.head
    for statement in [*CHANGES, *STRUCTURE]:
        with (
            pytest.raises(psycopg.errors.InsufficientPrivilege),
            psycopg.connect(runner) as db,
        ):
            db.execute(statement)
    with (
        pytest.raises(psycopg.errors.RaiseException, match="entries are appended"),
        psycopg.connect(runner) as db,
    ):
        db.execute("INSERT INTO jdpack.entries VALUES (1000, 'x')")
    assert Ledger.open(runner).head == before
    assert [entry.kind for entry in ledger.entries("town")] == [
        *("dataset", "reserve", "begin", "finish")
    ]


def test_accidents_of_the_owner_are_refused_too(ledger):
    ledger.reserve("clinic", "a", ONE, REPLACE)
    ledger.post("a", "", "0" * 64)
    for statement in CHANGES:
        with (
            pytest.raises(psycopg.errors.RaiseException, match="never changed or deleted"),
            psycopg.connect(ledger.path) as db,
        ):
            db.execute(statement)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("ALTER TABLE jdpack.entries DISABLE TRIGGER never", "triggers have been changed"),
        ("DROP TRIGGER only_next ON jdpack.entries", "triggers have been changed"),
        (STRUCTURE[4], "triggers have been changed"),
        ("COMMENT ON SCHEMA jdpack IS 'something else'", "not a ledger that this version reads"),
        ("DROP TABLE jdpack.entries", "there is no ledger in"),
        (
            "ALTER TABLE jdpack.entries DISABLE TRIGGER ALL; UPDATE jdpack.entries "
            "SET line = replace(line, '4.0', '9.0'); ALTER TABLE jdpack.entries ENABLE TRIGGER ALL",
            "entry 1 of the ledger",
        ),
        (
            "ALTER TABLE jdpack.entries DISABLE TRIGGER ALL; DELETE FROM jdpack.entries; "
            "ALTER TABLE jdpack.entries ENABLE TRIGGER ALL",
            "lost all its entries",
        ),
    ],
)
def test_what_the_owner_changed_on_purpose_is_noticed(ledger, statement, says):
    with psycopg.connect(ledger.path) as db:
        db.execute(statement)
    with pytest.raises(LedgerError, match=says):
        Ledger.open(ledger.path)


def test_a_role_without_rights_is_told(ledger, runner, server, agents, tmp_path):
    with psycopg.connect(ledger.path, autocommit=True) as db:
        db.execute("REVOKE ALL ON jdpack.entries FROM runner")
    with pytest.raises(LedgerError) as raised:
        solve(WIDE, agents, output=tmp_path / "out", ledger=runner, dataset="town")
    check_error(raised.value, "you may not use the ledger", "--grant ROLE")
    assert not (tmp_path / "out").exists()


# --- races --------------------------------------------------------------------------------


def race(count: int, act) -> list[str]:
    """What becomes of some processes that act at the same moment."""
    go, told = FORK.Event(), FORK.SimpleQueue()

    def one(number: int) -> None:
        go.wait()
        try:
            act(number)
            told.put("won")
        except (BudgetError, LedgerError) as error:
            told.put(type(error).__name__)

    processes = [FORK.Process(target=one, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    go.set()
    found = [told.get() for _ in processes]
    for process in processes:
        process.join()
    return found


@pytest.mark.parametrize("queue", [True, False], ids=["in a queue", "all at once"])
def test_of_12_that_race_exactly_as_many_win_as_fit(database, monkeypatch, queue):
    """Also if nothing makes them queue: then transactions conflict, and are retried."""
    ledger = Ledger.create(database, "clinic", epsilon=2.0, delta=1e-5)
    fit = ledger.balance("clinic").how_many(ONE)
    assert 1 <= fit <= 8
    conflicts = FORK.Value("i", 0)
    explained = postgres.PostgresLedger._error

    def counted(self, error):
        found = explained(self, error)
        with conflicts.get_lock():
            conflicts.value += isinstance(found, postgres.ConflictError)
        return found

    monkeypatch.setattr(postgres.PostgresLedger, "_error", counted)
    if not queue:
        monkeypatch.setattr(postgres, "_TRIES", 200)
        connect = postgres.PostgresLedger._connect

        class Unqueued:
            def __init__(self, db):
                self.db, self.close = db, db.close

            def execute(self, statement, *more):
                if "pg_advisory_lock" in statement:
                    return None
                return self.db.execute(statement, *more)

        monkeypatch.setattr(
            postgres.PostgresLedger, "_connect", lambda self: Unqueued(connect(self))
        )
    found = race(12, lambda i: Ledger.open(database).reserve("clinic", f"run {i}", ONE, REPLACE))
    assert sorted(found) == sorted(["won"] * fit + ["BudgetError"] * (12 - fit))
    assert Ledger.open(database).balance("clinic").runs == fit
    assert (conflicts.value == 0) == queue


def test_several_may_make_the_same_ledger_at_once(database):
    found = race(6, lambda i: Ledger.create(database, f"set {i % 3}", epsilon=1.0, delta=1e-6))
    assert sorted(found) == ["LedgerError"] * 3 + ["won"] * 3
    assert sorted(Ledger.open(database).datasets) == ["set 0", "set 1", "set 2"]


def test_of_two_that_post_after_the_same_line_one_is_refused(ledger, monkeypatch):
    """Even without any lock: the place of a hash is its key."""
    ledger.reserve("clinic", "a", ONE, REPLACE)
    ledger.post("a", "", "0" * 64)
    found = race(4, lambda i: Ledger.open(ledger.path).post("a", "0" * 64, f"{i + 1}" * 64))
    assert sorted(found) == ["LedgerError"] * 3 + ["won"]
    with psycopg.connect(ledger.path) as db:
        assert db.execute("SELECT count(*) FROM jdpack.heads").fetchone() == (2,)


# --- runs ---------------------------------------------------------------------------------


class StopError(Exception):
    pass


def interrupted(agents, out, ledger) -> None:
    def stop(progress):
        if progress.rounds == 3:
            raise StopError

    with pytest.raises(StopError):
        solve(WIDE, agents, output=out, ledger=ledger.path, dataset="clinic", progress=stop)


def posted(out) -> list[str]:
    return (out / "public/billboard.jsonl").read_text().splitlines()


def test_a_folder_from_a_backup_is_refused(ledger, agents, tmp_path):
    interrupted(agents, tmp_path / "out", ledger)
    shutil.copytree(tmp_path / "out", tmp_path / "backup")
    resume(tmp_path / "out")
    lines = posted(tmp_path / "backup")
    with pytest.raises(LedgerError, match="is finished, and this is not its final billboard"):
        resume(tmp_path / "backup")
    assert posted(tmp_path / "backup") == lines
    assert ledger.balance("clinic").runs == 1


def test_a_database_from_a_backup_needs_a_second_charge(ledger, agents, tmp_path):
    """Forget the last hash, as a backup of the database would."""
    interrupted(agents, tmp_path / "out", ledger)
    with psycopg.connect(ledger.path) as db:
        db.execute(
            "ALTER TABLE jdpack.heads DISABLE TRIGGER ALL; DELETE FROM jdpack.heads "
            "WHERE place = (SELECT max(place) FROM jdpack.heads); "
            "ALTER TABLE jdpack.heads ENABLE TRIGGER ALL"
        )
    with pytest.raises(LedgerError, match="is behind run"):
        resume(tmp_path / "out")
    resume(tmp_path / "out", reserve_again=True)
    assert [entry.kind for entry in ledger.entries()] == [
        *("dataset", "reserve", "begin", "again", "finish")
    ]


SCRIPT = """
import sys
from database.people import WIDE
from jdpack import solve
def tell(progress):
    if progress.rounds == 2:
        print("there", flush=True)
        sys.stdin.readline()
solve(WIDE, sys.argv[1], output=sys.argv[2], ledger=sys.argv[3], dataset="clinic", progress=tell)
"""


def test_a_copy_is_refused_while_the_run_is_at_work_and_a_kill_frees_it(ledger, agents, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-c", SCRIPT, str(agents), str(out), ledger.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout.readline() == b"there\n"
        shutil.copytree(out, tmp_path / "copy")
        with pytest.raises(LedgerError) as raised:
            resume(tmp_path / "copy")
        check_error(raised.value, "another process is working", "nothing was drawn")
        process.send_signal(signal.SIGKILL)
    for _ in range(600):  # until the server has noticed
        with contextlib.suppress(LedgerError):
            resume(out)
            break
        time.sleep(0.1)
    assert Billboard.read(out / "public/billboard.jsonl").finished
    assert [entry.kind for entry in ledger.entries()][1:] == ["reserve", "begin", "finish"]


def test_a_lost_connection_stops_the_run_before_its_next_line(ledger, agents, tmp_path):
    """The lock is lost with it, so the process must stop before another one takes over."""
    out, seen = tmp_path / "out", []

    def kill(progress):
        if progress.rounds == 3 and not seen:
            seen.append(len(posted(out)))
            with psycopg.connect(ledger.path, autocommit=True) as db:
                db.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )

    with pytest.raises(LedgerError) as raised:
        solve(WIDE, agents, output=out, ledger=ledger.path, dataset="clinic", progress=kill)
    assert "cannot use the ledger" in raised.value.message
    assert "safe to run the same command again" in raised.value.hint
    assert seen == [len(posted(out))]
    resume(out)
    with psycopg.connect(ledger.path) as db:
        heads = [head for (head,) in db.execute("SELECT head FROM jdpack.heads ORDER BY place")]
    assert heads == list(Billboard.read(out / "public/billboard.jsonl").noisy)
    assert ledger.balance("clinic").runs == 1


def test_a_server_that_crashes_keeps_what_was_reserved(agents, tmp_path):
    server = postgresql.Server.start(os.getpid())
    ledger = Ledger.create(server.address(), "clinic", epsilon=4.0, delta=1e-5)
    crashed = []

    def crash(progress):
        if progress.rounds == 3 and not crashed:
            crashed.append(True)
            server.stop("immediate")

    out = tmp_path / "out"
    with pytest.raises(LedgerError):
        solve(WIDE, agents, output=out, ledger=ledger.path, dataset="clinic", progress=crash)
    lines = posted(out)
    with pytest.raises(LedgerError) as raised:
        resume(out)
    assert "is the server running" in raised.value.hint and posted(out) == lines
    server.resume()
    resume(out)
    assert posted(out)[: len(lines)] == lines
    assert ledger.balance("clinic").runs == 1
    with psycopg.connect(server.address(), autocommit=True) as db:
        db.execute("ALTER SYSTEM SET fsync = off")
        db.execute("SELECT pg_reload_conf()")
    for _ in range(600):  # until the server has read it
        with psycopg.connect(server.address()) as db:
            if db.execute("SHOW fsync").fetchone() == ("off",):
                break
        time.sleep(0.1)
    with pytest.raises(LedgerError) as raised:
        Ledger.open(server.address())
    check_error(raised.value, "may lose what is committed", "fsync is off")
    server.stop()


# --- addresses ----------------------------------------------------------------------------


def test_there_is_no_ledger_yet(database, agents, tmp_path):
    with pytest.raises(LedgerError) as raised:
        solve(WIDE, agents, output=tmp_path / "out", ledger=database, dataset="clinic")
    check_error(raised.value, "there is no ledger in", "jdpack ledger create")


def test_passwords_are_in_no_file_and_no_message(
    runner, server, agents, tmp_path, monkeypatch, capsys
):
    name = runner.partition("@/")[2].partition("?")[0]
    for address in [server.tcp(name, "runner", PASSWORD), f"{runner}&password={PASSWORD}"]:
        code, out, err = run_cli(monkeypatch, capsys, "ledger", "show", address)
        assert code == 2 and "holds" in err and PASSWORD not in out + err
    tcp = server.tcp(name, "runner")
    monkeypatch.setenv("PGPASSWORD", f"not-{PASSWORD}")
    with pytest.raises(LedgerError) as raised:
        Ledger.open(tcp)
    assert PASSWORD not in str(raised.value) and "PGPASSWORD" in raised.value.hint
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    solve(WIDE, agents, output=tmp_path / "out", ledger=tcp, dataset="town")
    code, out, err = run_cli(monkeypatch, capsys, "verify", str(tmp_path / "out"), "--quiet")
    assert code == 0, err
    assert PASSWORD not in out + err
    assert PASSWORD.encode() not in everything_below(tmp_path / "out")


def test_a_file_has_no_roles(tmp_path):
    with pytest.raises(LedgerError, match="a file has no roles"):
        Ledger.create(tmp_path / "l", "clinic", epsilon=1.0, delta=1e-6, grant="runner")
    assert not (tmp_path / "l").exists()
