"""A run and its ledger: reserved before a record is read, given back only if nothing was posted."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from helpers import check_error, run_cli
from jdpack import (
    AgentsError,
    Billboard,
    BudgetError,
    Ledger,
    LedgerError,
    Market,
    MwuFixed,
    resume,
    solve,
)
from jdpack.billboard import file
from jdpack.door import SystemRandomness
from jdpack.engines.memory import MemoryEngine
from jdpack.errors import BillboardError, JdpackError, OutputError
from jdpack.ledger import progress
from jdpack.ledger.account import Account

N = 300
POLICY = MwuFixed(rounds=4)


IN_DATABASES: dict[Path, str] = {}
"""The ledgers of the folders whose ledger is in PostgreSQL."""


def books(place: Path) -> Path | str:
    """The ledger of a folder."""
    return IN_DATABASES.get(place, place / "ledger.db")


@pytest.fixture
def place(request, tmp_path, monkeypatch):
    """A folder with a ledger for two runs, and records; with `both` also with PostgreSQL."""
    if getattr(request, "param", "sqlite") == "postgresql":
        IN_DATABASES[tmp_path] = request.getfixturevalue("database")
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    rng = np.random.default_rng(1)
    table = {"id": np.arange(N), "value": rng.uniform(0, 10, N), "beds": rng.uniform(0, 2, N)}
    pyarrow.parquet.write_table(pa.table(table), tmp_path / "agents.parquet")
    Ledger.create(books(tmp_path), "clinic", epsilon=3.0, delta=4e-6)
    return tmp_path


both = pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)


def market(**more):
    settings = {"supply": [200.0], "max_demand": 2.0, "max_value": 10.0, "names": ["beds"]}
    return Market(**settings | {"agents": N, "epsilon": 1.0, "delta": 1e-6} | more)


def run(place, name="out", **more):
    settings = {"policy": POLICY, "ledger": books(place), "dataset": "clinic"}
    settings |= {"output": place / name} | more
    return solve(settings.pop("market", market()), place / "agents.parquet", **settings)


def entries(place):
    return [entry.kind for entry in Ledger.open(books(place)).entries()]


def spent(place):
    return Ledger.open(books(place)).balance("clinic").runs


@both
def test_a_run_is_reserved_and_finished(place):
    result = run(place)
    assert entries(place) == ["dataset", "reserve", "begin", "finish"]
    made = Ledger.open(books(place)).entries()
    header = result.billboard.header
    assert made[1].data["run"] == header.commitment and made[1].data["rho"] == header.budget.rho
    assert made[3].data["billboard"] == result.billboard.head
    assert result.balance == Ledger.open(books(place)).balance("clinic")
    assert result.balance.runs == 1 and not result.balance.open
    assert solve(market(), place / "agents.parquet", policy=POLICY).balance is None


@both
@pytest.mark.parametrize("output", [None, "out"])
def test_it_is_reserved_before_a_record_is_read(place, monkeypatch, output):
    seen, read = [], MemoryEngine.read

    def watching(*about):
        seen.append((entries(place), output is None or file.read(board)))
        return read(*about)

    board = place / "out" / "public" / "billboard.jsonl"
    monkeypatch.setattr(MemoryEngine, "read", watching)
    run(place, **({"output": None} if output is None else {}))
    assert seen == [(["dataset", "reserve"], True if output is None else "")]


def test_over_budget_is_refused_before_a_record_is_read(place, monkeypatch):
    run(place, "first")
    run(place, "second", epsilon=0.9, delta=0.9e-6)
    before = (books(place)).read_bytes()

    def reading(*about):
        raise AssertionError("a record was read")

    monkeypatch.setattr(MemoryEngine, "read", reading)
    with pytest.raises(BudgetError) as error:
        run(place, "third")
    says = ["a run of epsilon 1, delta 1e-06 does not fit data set 'clinic'", "(3, 4e-06)"]
    check_error(error.value, says, "would fit; nothing was spent")
    assert not (place / "third").exists()
    assert (books(place)).read_bytes() == before


WRONG = [
    ({"market": market(agents=N - 1)}, AgentsError),
    ({"market": market(names=["chairs"])}, AgentsError),
    ({"market": market(max_value=1.0)}, AgentsError),
]


@both
@pytest.mark.parametrize("output", [None, "out"])
@pytest.mark.parametrize(("wrong", "kind"), WRONG)
def test_records_that_are_refused_cost_nothing(place, wrong, kind, output):
    with pytest.raises(kind):
        run(place, **wrong | ({"output": None} if output is None else {}))
    assert not (place / "out").exists()
    assert entries(place) == ["dataset", "reserve", "cancel"] and spent(place) == 0
    run(place)
    assert spent(place) == 1


@pytest.mark.parametrize("output", [None, "out"])
def test_an_interrupt_while_reading_costs_nothing(place, output):
    def strike(progress):
        assert progress.stage == "reading"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(place, progress=strike, **({"output": None} if output is None else {}))
    assert not (place / "out").exists() and spent(place) == 0


@both
def test_an_interrupt_as_soon_as_it_is_reserved_costs_nothing(place, monkeypatch):
    reserve = Ledger.reserve

    def struck(*about, **more):
        reserve(*about, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "reserve", struck)
    with pytest.raises(KeyboardInterrupt):
        run(place)
    assert not (place / "out").exists()
    assert entries(place) == ["dataset", "reserve", "cancel"] and spent(place) == 0


def strikes(at):
    def strike(progress):
        if progress.stage == "rounds" and progress.rounds == at:
            raise KeyboardInterrupt

    return strike


@both
@pytest.mark.parametrize("output", [None, "out"])
def test_an_interrupt_after_the_first_line_stays_spent(place, output):
    more = {"output": None} if output is None else {}
    with pytest.raises(KeyboardInterrupt):
        run(place, progress=strikes(1), **more)
    balance = Ledger.open(books(place)).balance("clinic")
    assert balance.runs == 1 and len(balance.open) == 1
    if output is not None:
        result = resume(place / "out")
        assert entries(place) == ["dataset", "reserve", "begin", "finish"]
        assert result.balance.runs == 1 and not result.balance.open
        resume(place / "out")
        assert entries(place) == ["dataset", "reserve", "begin", "finish"], "nothing more"


class Killed(BaseException):
    """Leaves what a kill -9 would leave: nothing is undone."""


def begun(place, lines, name="out"):
    """A run that was killed after `lines` lines; with 0, while records were read."""

    def strike(progress):
        told = progress.stage, progress.rounds
        if told == (("rounds", lines - 1) if lines > 1 else ("reading", 0)):
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Account, "cancel", lambda *about: None)
        if lines == 1:
            patch.setattr(Billboard, "post", strike_at_once)
        with pytest.raises(Killed):
            run(place, name, progress=strike if lines != 1 else None)
    board = place / name / "public" / "billboard.jsonl"
    assert board.read_bytes().count(b"\n") == lines
    return place / name


def strike_at_once(*about):
    raise Killed


def without_reservation(place):
    """The ledger as it was before the run, as if a kill had come before it was reserved."""
    (books(place)).unlink()
    Ledger.create(books(place), "clinic", epsilon=3.0, delta=4e-6)


@pytest.mark.parametrize("lines", [0, 1])
def test_a_resume_reserves_what_a_killed_run_had_not_yet(place, lines):
    """After a kill between folder and reservation; a header alone costs nothing."""
    out = begun(place, lines)
    without_reservation(place)
    assert resume(out).balance.runs == 1
    assert entries(place) == ["dataset", "reserve", "begin", "finish"]


def test_a_ledger_that_forgot_a_run_is_seen_before_anything_is_drawn(place, monkeypatch):
    """It was put back from a backup, or is another one."""
    out = begun(place, 2)
    without_reservation(place)
    with monkeypatch.context() as patch:
        patch.setattr(SystemRandomness, "draw", None)
        with pytest.raises(LedgerError, match="knows nothing of run") as error:
            resume(out)
    assert "--reserve-again" in error.value.hint and entries(place) == ["dataset"]
    assert resume(out, reserve_again=True).balance.runs == 1
    assert entries(place) == ["dataset", "reserve", "begin", "finish"]


def test_a_ledger_that_is_behind_a_run_is_paid_again(place, monkeypatch):
    """It was put back from a time when the run had posted less."""
    out = begun(place, 2)
    (heads,) = place.glob("*.heads")
    old = {path: path.read_bytes() for path in (books(place), heads)}
    with pytest.raises(KeyboardInterrupt):
        resume(out, progress=strikes(3))
    for path, data in old.items():
        path.write_bytes(data)
    with monkeypatch.context() as patch:
        patch.setattr(SystemRandomness, "draw", None)
        with pytest.raises(LedgerError, match="is behind run"):
            resume(out)
    assert resume(out, reserve_again=True).balance.runs == 2
    assert entries(place) == ["dataset", "reserve", "begin", "again", "finish"]


@pytest.mark.parametrize("lines", [0, 2])
def test_a_ledger_that_has_moved_is_named(place, lines):
    out = begun(place, lines)
    moved = place / "elsewhere" / "moved.db"
    moved.parent.mkdir()
    shutil.move(books(place), moved)
    with pytest.raises(LedgerError, match=r"cannot find the ledger .*ledger\.db") as error:
        resume(out)
    assert "put it back" in error.value.hint
    if lines:
        with pytest.raises(LedgerError, match="is missing, which says how far") as error:
            resume(out, ledger=moved)
        assert "move it there too" in error.value.hint
        (heads,) = place.glob("*.heads")
        shutil.move(heads, moved.parent)
    assert resume(out, ledger=moved).balance.runs == 1
    kinds = [entry.kind for entry in Ledger.open(moved).entries()]
    assert kinds == ["dataset", "reserve", "begin", "finish"]
    resume(out)  # it is known now
    plain = solve(market(), place / "agents.parquet", policy=POLICY, output=place / "plain")
    assert plain.balance is None
    with pytest.raises(LedgerError, match="has no ledger"):
        resume(place / "plain", ledger=moved)


# --- folders that were put back -------------------------------------------------------------


def states(place, out):
    """Play a run to its end, in legs; a copy of its folder as it was before each of them."""
    copies = []
    for leg in range(6):
        copies.append(shutil.copytree(out, place / f"copy {leg}"))
        try:
            resume(out, progress=strikes(leg))
        except KeyboardInterrupt:
            continue
        return copies
    raise AssertionError("it never ended")


@pytest.mark.parametrize("lines", [0, 1, 2])
@pytest.mark.parametrize("at_end", [False, True])
def test_no_state_from_a_backup_resumes(place, lines, at_end, monkeypatch):
    """Otherwise the same lines would get noise twice, and one charge would pay for both."""
    out = begun(place, lines)
    if at_end:
        copies = states(place, out)
    else:
        copies = [shutil.copytree(out, place / "copy")]
        with pytest.raises(KeyboardInterrupt):
            resume(out, progress=strikes(3))
    book = (books(place)).read_bytes()
    for copy in copies:
        shutil.move(out, place / "newest")
        shutil.move(copy, out)
        board = out / "public" / "billboard.jsonl"
        before = board.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(MemoryEngine, "read", None)
            for again in (False, True):
                with pytest.raises(LedgerError, match=r"earlier copy|is finished, and this is not"):
                    resume(out, reserve_again=again)
        assert (books(place)).read_bytes() == book, "and nothing is given back"
        assert board.read_bytes() == before
        shutil.rmtree(out)
        shutil.move(place / "newest", out)
    assert resume(out).balance.runs == 1


def test_a_billboard_and_a_journal_that_were_cut_are_refused(place, monkeypatch):
    out = begun(place, 4)
    board, journal = out / "public" / "billboard.jsonl", out / "private" / "journal.jsonl"
    whole, kept = board.read_bytes(), journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in range(1, 4):
        for rest in (b"", lines[cut - 1], lines[cut], lines[cut][:-9], kept[:-9], b"\0" * 99):
            if rest == kept:
                continue  # nothing is lost: the last line is in the journal
            board.write_bytes(b"".join(lines[:cut]))
            journal.write_bytes(rest)
            with monkeypatch.context() as patch:
                patch.setattr(SystemRandomness, "draw", None)
                with pytest.raises(
                    (LedgerError, BillboardError), match=r"lacks lines|earlier copy"
                ):
                    resume(out)
    board.write_bytes(whole)
    journal.write_bytes(kept)
    assert resume(out).balance.runs == 1


@both
def test_a_line_that_the_ledger_knows_and_nobody_saw_is_posted_as_drawn(place, monkeypatch):
    """A kill on either side of the ledger's note: the line in the journal is the only one."""
    for number, noted in enumerate((True, False)):
        out = begun(place, 2, f"out {number}")
        post = Ledger.post

        def killed(*about, noted=noted, post=post):
            if noted:
                post(*about)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "post", killed)
            with pytest.raises(Killed):
                resume(out)
        board = out / "public" / "billboard.jsonl"
        assert board.read_bytes().count(b"\n") == 2
        drawn = (out / "private" / "journal.jsonl").read_bytes()
        resume(out)
        assert board.read_bytes().splitlines(keepends=True)[2] == drawn


def test_a_copy_that_lacks_nothing_but_the_last_line_is_completed(place):
    """The last line is in its journal, and the ledger knows it as the end of the run."""
    run(place)
    out = place / "out"
    board, journal = out / "public" / "billboard.jsonl", out / "private" / "journal.jsonl"
    whole = board.read_bytes()
    *lines, last = whole.splitlines(keepends=True)
    assert journal.read_bytes() == last
    board.write_bytes(b"".join(lines))
    assert resume(out).balance.runs == 1
    assert board.read_bytes() == whole


def test_a_reservation_is_not_given_back_to_a_copy_from_before_the_first_line(place):
    """The copy has posted nothing, and its records cannot be read; the run has posted."""
    out = begun(place, 0)
    copy = shutil.copytree(out, place / "copy")
    with pytest.raises(KeyboardInterrupt):
        resume(out, progress=strikes(2))
    (place / "agents.parquet").rename(place / "away.parquet")
    for _ in range(2):
        with pytest.raises(LedgerError, match="earlier copy"):
            resume(copy)
    assert spent(place) == 1
    assert resume(out, place / "away.parquet").balance.runs == 1


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_a_copy_is_refused_while_the_run_is_at_work(place, lines, monkeypatch):
    out = begun(place, lines)
    copy = shutil.copytree(out, place / "copy")
    refused = []

    def meanwhile(_):
        draw = SystemRandomness.draw
        SystemRandomness.draw = None
        try:
            with pytest.raises(LedgerError, match="another process is working on run") as error:
                resume(copy)
        finally:
            SystemRandomness.draw = draw
        refused.append(error.value)

    assert resume(out, progress=meanwhile).balance.runs == 1
    assert refused
    assert not list(place.glob("*.heads"))


def test_without_the_lock_the_ledger_still_lets_only_one_post(place, monkeypatch):
    """On a disk whose locks do nothing: the second is refused before its line is public."""
    monkeypatch.setattr(progress, "take_lock", lambda handle: None)
    out = begun(place, 2)
    copy = shutil.copytree(out, place / "copy")
    done = []

    def meanwhile(_):
        if not done:
            done.append(resume(copy))

    with pytest.raises(LedgerError, match="gone further than this folder"):
        resume(out, progress=meanwhile)
    assert done[0].balance.runs == 1
    ours = (out / "public" / "billboard.jsonl").read_bytes()
    theirs = (copy / "public" / "billboard.jsonl").read_bytes()
    assert ours != theirs and theirs.startswith(ours)


def busy(*about):
    raise LedgerError("the ledger is in use")


def struck(*about, **more):
    raise KeyboardInterrupt


@both
def test_what_cannot_be_given_back_can_be_resumed(place, monkeypatch):
    """The ledger is busy, say, while a run with bad records is undone: the folder stays."""
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "cancel", busy)
        with pytest.raises(AgentsError):
            run(place, market=market(max_value=1.0))
    assert spent(place) == 1 and (place / "out" / "private" / "run.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "cancel", struck)
        with pytest.raises(KeyboardInterrupt):
            run(place, "other", market=market(max_value=1.0))
    assert spent(place) == 2 and (place / "other" / "private" / "run.json").exists()
    for name in ("out", "other"):
        with pytest.raises(AgentsError):  # its records are still beyond the bounds: given back
            resume(place / name)
    assert spent(place) == 0


@both
def test_a_ledger_that_fails_at_the_end_does_not_take_the_result(place, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "finish", busy)
        with pytest.warns(UserWarning, match="its ledger does not know: the ledger is in use"):
            result = run(place, output=None)
        assert result.balance is None and result.billboard.finished
        with pytest.raises(LedgerError, match="in use"):
            run(place)
    assert resume(place / "out").balance.runs == 2


@pytest.mark.parametrize("lines", [0, 2])
def test_a_resume_that_does_not_fit_any_more_is_refused(place, lines):
    out = begun(place, lines)
    without_reservation(place)
    run(place, "other", epsilon=3.0, delta=4e-6)
    board = (out / "public" / "billboard.jsonl").read_bytes()
    with pytest.raises(BudgetError, match="does not fit"):
        resume(out, reserve_again=True)
    assert (out / "public" / "billboard.jsonl").read_bytes() == board


@both
def test_a_resume_that_reads_nothing_gives_back_what_it_reserved(place):
    """The folder stays: the files may be put back."""
    out = begun(place, 0)
    (place / "agents.parquet").rename(place / "away.parquet")
    with pytest.raises(AgentsError):
        resume(out)
    assert spent(place) == 0 and (out / "private" / "run.json").exists()
    result = resume(out, place / "away.parquet")
    assert entries(place) == ["dataset", "reserve", "cancel", "reserve", "begin", "finish"]
    assert result.balance.runs == 1


@both
@pytest.mark.parametrize("lines", [1, 2])
def test_a_resume_that_fails_after_the_first_line_gives_nothing_back(place, lines):
    out = begun(place, lines)
    (place / "agents.parquet").rename(place / "away.parquet")
    with pytest.raises(AgentsError):
        resume(out)
    assert entries(place) == ["dataset", "reserve", "begin"][: lines + 1] and spent(place) == 1


def test_a_resume_without_its_ledger_is_refused(place, monkeypatch):
    out = begun(place, 2)
    shutil.move(books(place), place / "away.db")

    def draw(*about):
        raise AssertionError("something was drawn")

    with monkeypatch.context() as patch:
        patch.setattr(SystemRandomness, "draw", draw)
        with pytest.raises(LedgerError) as error:
            resume(out)
    check_error(error.value, ["ledger.db"], error.value.hint)
    shutil.move(place / "away.db", books(place))
    assert resume(out).balance.runs == 1


@both
@pytest.mark.parametrize(
    ("more", "kind", "says"),
    [
        ({"ledger": None}, LedgerError, "needs the ledger"),
        ({"dataset": None}, LedgerError, "needs the name of a data set"),
        ({"dataset": "village"}, LedgerError, "no data set 'village'"),
        ({"ledger": "missing.db"}, LedgerError, "missing.db"),
        ({"seed": 1}, BudgetError, "protects nobody"),
        ({"epsilon": float("inf")}, BudgetError, "protects nobody"),
        ({"market": market(neighbours="add-remove")}, BudgetError, "add-remove"),
    ],
)
@pytest.mark.parametrize("output", [None, "out"])
def test_what_fits_no_ledger_is_refused(place, monkeypatch, more, kind, says, output):
    def reading(*about):
        raise AssertionError("a record was read")

    monkeypatch.setattr(MemoryEngine, "read", reading)
    with pytest.raises(JdpackError) as error:
        run(place, **more | ({"output": None} if output is None else {}))
    assert type(error.value) is kind and says in error.value.message
    assert not (place / "out").exists() and entries(place) == ["dataset"]


@both
def test_a_folder_that_is_taken_reserves_nothing(place):
    (place / "out").mkdir()
    with pytest.raises(OutputError, match="already exists"):
        run(place)
    assert entries(place) == ["dataset"]


# --- the command line -----------------------------------------------------------------------


@both
def test_the_commands(place, monkeypatch, capsys):
    def jdpack(*arguments):
        return run_cli(monkeypatch, capsys, *arguments)

    book = place / "town.db"
    create = ["ledger", "create", book, "--dataset", "town", "--epsilon", 2, "--delta", "1e-5"]
    code, out, err = jdpack(*create)
    assert (code, err) == (0, "") and "epsilon 2, delta 1e-05" in out
    code, _, err = jdpack(*create)
    assert code == 2 and err.startswith("error: ") and "'town'" in err and "hint: " in err
    (place / "market.toml").write_text(MARKET)
    solving = ["solve", place / "market.toml", place / "agents.parquet", "-q"]
    solving += ["--policy", "mwu-fixed:rounds=3"]
    account = ["--ledger", book, "--dataset", "town"]
    code, out, err = jdpack(*solving, "-o", place / "out", *account)
    assert code == 0 and "is spent on 'town', in 1 run" in out
    code, out, _ = jdpack(*solving, "-o", place / "plain")
    assert code == 0 and "ledger    none: nothing tracks" in out
    code, out, _ = jdpack(*solving, "-o", place / "json", *account, "--json")
    assert json.loads(out)["ledger"]["runs"] == 2
    code, out, _ = jdpack("ledger", "show", book, "--json")
    assert json.loads(out)["datasets"][0]["runs"] == 2
    code, out, _ = jdpack("ledger", "show", book, "--dataset", "town")
    assert code == 0 and "town" in out
    code, out, _ = jdpack("ledger", "history", book)
    assert [line.split()[2] for line in out.splitlines()] == [
        "dataset",
        *("reserve", "begin", "finish") * 2,
    ]
    code, out, _ = jdpack("ledger", "history", book, "--json")
    head = json.loads(out)[-1]["hash"]
    code, out, _ = jdpack("ledger", "verify", book, "--head", head)
    assert code == 0 and head in out
    code, out, _ = jdpack("ledger", "verify", book, "--json")
    assert json.loads(out)["entries"] == 7
    code, _, err = jdpack("ledger", "verify", book, "--head", "00" * 32)
    assert code == 2 and "hint: " in err
    code, _, err = jdpack("ledger", "show", place / "agents.parquet")
    assert code == 2 and err.startswith("error: ")
    code, out, err = jdpack(*solving, "-o", place / "more", *account, "--epsilon", 2)
    assert code == 2 and "would fit" in err and out == ""


MARKET = """
name = "Clinic"
privacy = {epsilon = 1.0, delta = 1e-6}
value.max = 10.0
agents.count = 300
resource = [{name = "beds", supply = 200.0, max_demand = 2.0}]
"""
