"""A sample of the soak, and jdpack broken on purpose in ways that the soak must catch.

Run this script in its own process: it forks, so it may have no threads. It prints JSON: the counts
of the sample, and what the soak finds wrong with each broken variant and with the honest one at the
same strikes. With a further argument `postgresql`, the ledgers are in a PostgreSQL server, the
sample is smaller, and only what differs from a file is broken.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from jdpack.run import lifecycle

sys.path.insert(0, str(Path(__file__).parents[1] / "soak"))

import backups
import ledgers
import proof
import soak
import strike
from hand import Hand
from jdpack import Ledger
from jdpack.billboard import file as boardfile
from jdpack.engines.shard import Shard
from jdpack.ledger import progress
from jdpack.ledger.account import Account
from jdpack.ledger.balance import Balance
from jdpack.ledger.entries import LedgerState
from jdpack.ledger.postgres import PostgresProgress
from jdpack.ledger.progress import ProgressFile
from jdpack.run import run_file
from jdpack.run.folder import Output
from scene import Case, World
from strike import Strike

Strikes = list[list[Strike]]
"""The runs to try in turn, each with its kills."""


def no_journal() -> Strikes:
    boardfile._keep = lambda journal, data: None
    return [
        [Strike(at=2, stage="rounds", torn=True, part=0.95)]
    ]  # the first write is that of its hash


def journal_not_synced() -> Strikes:
    def keep(journal, data):
        journal.seek(0)
        journal.write(data)
        journal.truncate(len(data))

    boardfile._keep = keep
    return [[Strike(at=at, stage="rounds", power=True)] for at in 30 * [12, 19]]  # until it is lost


def resume_posts_what_is_not_synced() -> Strikes:
    mend = boardfile.BoardFile.mend

    class Deaf:
        """A journal that ignores every sync."""

        fileno = staticmethod(lambda: -1)

    def hasty(self):
        self._journal, journal = Deaf(), self._journal
        mend(self)
        self._journal = journal

    boardfile.BoardFile.mend = hasty
    then = Strike(at=8, stage="mending", power=True)
    return [[Strike(at=16, stage="rounds"), then] for _ in range(30)]  # until it is lost


def reserves_after_the_rounds() -> Strikes:
    reserve, run = Account.reserve, lifecycle.run
    asked = []

    def late(engine, policy, board, *rest):
        run(engine, policy, board, *rest)
        reserve(*asked.pop())

    Account.reserve, lifecycle.run = (lambda *given: asked.append(given)), late
    Account.note = lambda *about: None
    return [[Strike(at=at, stage="rounds")] for at in (6, 9)]


def resume_does_not_reserve() -> Strikes:
    class Free(Account):
        def reserve(self, *_):
            return None

        def note(self, *_):
            return None

    Account.from_dict = classmethod(lambda cls, data: Free(**data))
    return [[Strike(at=1, stage="reserving"), Strike(at=9, stage="rounds")]]


def reserves_again_under_another_name() -> Strikes:
    reserve = Ledger.reserve

    def again(self, dataset, run, *rest, **more):
        return reserve(self, dataset, f"{run[:50]}{os.getpid()}", *rest, **more)

    Ledger.reserve = again
    return [[Strike(at=1, stage="rounds")]]


def knows_no_limit() -> Strikes:
    Balance.fits = lambda self, budget: True
    return [[]] * 6


def cancels_what_has_begun() -> Strikes:
    write, apply = Output.write, LedgerState._apply

    def lenient(self, kind, dataset, data):
        if kind == "cancel":
            self.runs[data["run"]].begun = False
        apply(self, kind, dataset, data)

    LedgerState._apply = lenient

    def cancelling(self, result):
        run = json.loads(self.run_file.read_text())
        ledger = Ledger.open(run["ledger"]["ledger"])
        ledger.cancel(result.billboard.header.commitment)
        write(self, result)

    Output.write = cancelling
    return [[Strike(at=3, stage="pages")]]


def run_file_in_pieces() -> Strikes:
    def write(path, mode, text):
        handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())

    run_file.write_text = write
    return [[Strike(at=2, torn=True)]]


def private_files_for_all() -> Strikes:
    write = run_file.write_text
    run_file.write_text = lambda path, mode, text: write(path, 0o644, text)
    return [[Strike(at=1, stage="rounds")]]


def gives_everything_to_everybody() -> Strikes:
    tables = Shard.tables

    def generous(self, final):
        for table in tables(self, final):
            yes = [True] * table.num_rows
            yield table.set_column(table.num_columns - 1, "granted", [yes])

    Shard.tables = generous  # verify_run compares with this too, so only addition can tell
    return [[Strike(at=1, stage="pages")]]


def allocation_of_another_billboard() -> Strikes:
    tables = Shard.tables

    def late(self, final):
        for table in tables(self, final):
            rows = list(range(table.num_rows))
            if os.environ.get("WRITING"):
                rows[0] = next(r for r in rows if table["granted"][r] != table["granted"][0])
            yield table.set_column(table.num_columns - 1, "granted", table["granted"].take(rows))

    write = Output.write

    def writing(self, result):
        os.environ["WRITING"] = "yes"
        write(self, result)

    Shard.tables, Output.write = late, writing
    return [[Strike(at=1, stage="pages")]]


def leaves_half_written_files() -> Strikes:
    Path.glob = lambda *_: []  # jdpack finds leftovers by this
    return [[Strike(at=4, stage="pages")]]


def takes_a_header_without_its_end() -> Strikes:
    """Accepts a first line without its newline."""
    first_line = boardfile.first_line

    def first(path, journal):
        text = boardfile.read(path)
        sealed = "\n" not in text and boardfile.hash_chain.is_sealed(text)
        return text if sealed else first_line(path, journal)

    lifecycle.first_line = first
    return [[Strike(at=2, stage="header", torn=True, part=1.0)]]


def forgets_what_it_reserved() -> Strikes:
    """Removes the folder even if the reservation could not be cancelled."""
    lifecycle.Lifecycle.owes = lambda self: False
    return [[Strike(at=1, stage="reading", interrupt=True, again=at)] for at in range(1, 9)]


def any_folder_resumes() -> Strikes:
    """The ledger does not ask a folder how far it has come."""
    reserve = Ledger.reserve

    def lenient(self, dataset, run, *rest, posted=(), drawn=False, **more):
        head = ProgressFile(self.path, run).head
        return reserve(self, dataset, run, *rest, posted=[head] if head else [], **more)

    Ledger.reserve = lenient
    return [[Strike(at=14, stage="rounds"), Strike(at=40, stage="rounds")]]


def notes_after_the_line_is_public() -> Strikes:
    tell, write = boardfile.BoardFile._tell, strike._Raw.write
    due = []
    boardfile.BoardFile._tell = lambda self, line: due.append((self, line))

    def late(self, data):
        written = write(self, data)
        if (
            due
            and data.startswith(due[0][1].encode())
            and self.fileno() == due[0][0]._file.fileno()
        ):
            tell(*due.pop())
        return written

    strike._Raw.write = late
    return [[Strike(at=at, stage="rounds")] for at in range(4, 10)]


def resume_trusts_a_hash_that_is_not_synced() -> Strikes:
    """A kill before the hash of a line is on disk, then a power cut once the line is public."""
    ProgressFile.sync = lambda self: None
    then = Strike(at=5, stage="mending", power=True)
    return [[Strike(at=20, stage="rounds"), then] for _ in range(30)]  # until it is lost


CONTROLS: dict[Callable[[], Strikes], str] = {
    no_journal: "noise was drawn twice|cannot resume",
    journal_not_synced: "noise was drawn twice|cannot resume|still counts",
    resume_posts_what_is_not_synced: "noise was drawn twice|cannot resume|still counts",
    reserves_after_the_rounds: "its run is in state ''",
    resume_does_not_reserve: "its run is in state ''",
    reserves_again_under_another_name: "left nothing to resume from",
    knows_no_limit: "is over its",
    cancels_what_has_begun: "its run is in state 'RBC'|as RBC",
    run_file_in_pieces: "a torn run file",
    private_files_for_all: "others may read",
    gives_everything_to_everybody: "is exceeded",
    allocation_of_another_billboard: "row 1 of the allocation",
    leaves_half_written_files: "too many or too few files",
    takes_a_header_without_its_end: "torn|refused without a reason",
    forgets_what_it_reserved: "left nothing to resume from",
    any_folder_resumes: "noise was drawn twice, for a copy|a copy of an earlier state",
    resume_trusts_a_hash_that_is_not_synced: "is behind run|is missing",
    notes_after_the_line_is_public: "is behind run|noise was drawn twice",
}
"""The broken variants, and what the soak says about them."""


def no_lock() -> None:
    progress.take_lock = lambda handle: None


def refunds_what_has_begun() -> None:
    """If a folder has posted nothing, the ledger forgets that its run has begun."""
    reserve, cancel = Ledger.reserve, LedgerState._apply

    def lenient(self, dataset, run, *rest, posted=(), **more):
        if posted or run not in self.runs:
            return reserve(self, dataset, run, *rest, posted=posted, **more)
        return self.balance(dataset)

    def refunding(self, kind, dataset, data):
        if kind == "cancel":
            self.runs[data["run"]].begun = False
        cancel(self, kind, dataset, data)

    Ledger.reserve, LedgerState._apply = lenient, refunding


def trusts_the_folder() -> None:
    any_folder_resumes()


ATTACKED: dict[Callable[[], None], str] = {
    no_lock: "a copy of a run that is at work resumed",
    refunds_what_has_begun: "it was refused too late|changed the ledger",
    trusts_the_folder: "a folder from a backup resumed|refused too late",
}
"""Broken variants that the attacks with backups must catch, and what the soak says about them."""


def tried(place: Path, strikes: Strikes, copies: bool) -> tuple[int, str]:
    """How many runs were tried, and what was wrong with the last; empty if nothing was."""
    world = World(place).make()
    hand = Hand(world, "0", 1, {})
    hand.copies = float(copies)
    for number, kills in enumerate(strikes, start=1):
        case = Case.small(world)
        case.folder = world.runs / str(number)
        case.safe.names[str(world.runs)] = {}
        try:
            hand.lead(case, kills)
        except Exception as error:
            return number, f"{type(error).__name__}: {error}"
    return len(strikes), ""


def control(place: Path, broken: Callable[[], Strikes]) -> dict[str, str]:
    """What is wrong with a broken variant, and with the honest one at the same strikes."""
    copies = broken is any_folder_resumes

    def with_it() -> tuple[int, str]:
        return tried(place / "broken", broken(), copies)

    def without_it() -> tuple[int, str]:
        return tried(place / "honest", strikes[count - 1 : count], copies)

    count, wrong = soak.in_fork(with_it)
    strikes = soak.in_fork(broken)
    return {"broken": wrong, "honest": soak.in_fork(without_it)[1]}


def attacked(place: Path, broken: Callable[[], None]) -> dict[str, str]:
    """What is wrong with a broken variant when folders are put back.

    The sample itself attacks the honest one.
    """

    def with_it() -> str:
        broken()
        try:
            backups.attack(place, 1)
        except (proof.Wrong, AssertionError) as wrong:  # the latter comes from a fork within a fork
            return str(wrong)
        return ""

    return {"broken": soak.in_fork(with_it), "honest": ""}


def no_advisory_lock() -> None:
    PostgresProgress.held = lambda self: contextlib.nullcontext()


def in_postgresql(folder: Path, kills: int, every: int, seed: int) -> dict[str, dict]:
    """The counts of a small sample with ledgers in PostgreSQL, and a control."""
    ledgers.use_postgresql()
    backups.POLICIES = {"mwu-adaptive": backups.POLICIES["mwu-adaptive"]}
    counts = soak.soak(folder / "sample", kills, every, seed)
    backups.ATTACKS = {name: one for name, one in backups.ATTACKS.items() if "at work" in name}
    broken = attacked(folder / "no lock", no_advisory_lock)["broken"]
    honest = soak.in_fork(functools.partial(backups.attack, folder / "lock", 1))
    return {"sample": soak.plain(counts), "broken": broken, "honest": soak.plain(honest)}


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="jdpack-soak-"))
    kills, every, seed = map(int, sys.argv[1:4])
    soak.HANDS = 2
    if sys.argv[4:] == ["postgresql"]:
        found = in_postgresql(folder, kills, every, seed)
        shutil.rmtree(folder)
        sys.stdout.write(json.dumps(found))
        return
    counts = soak.soak(folder / "sample", kills, every, seed)
    jobs = [functools.partial(control, folder / b.__name__, b) for b in CONTROLS]
    jobs += [functools.partial(attacked, folder / b.__name__, b) for b in ATTACKED]
    found = [f for i in range(0, len(jobs), 3) for f in soak.together(jobs[i : i + 3])]
    controls = {
        b.__name__: {"says": says, **f}
        for (b, says), f in zip((CONTROLS | ATTACKED).items(), found, strict=True)
    }
    shutil.rmtree(folder)
    sys.stdout.write(json.dumps({"sample": soak.plain(counts), "controls": controls}))


if __name__ == "__main__":
    main()
