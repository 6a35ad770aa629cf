"""A sample of the soak, and jdpack broken on purpose in ways that the soak must see.

A script, for a process of its own: it forks, so it may have no threads. It prints JSON: what the
sample counted, and what was found wrong with each broken variant, and with the honest one at the
same strikes.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "soak"))

import soak
from hand import Hand
from jdpack import Ledger, boardfile, runfile
from jdpack.account import Account
from jdpack.engines.shard import Shard
from jdpack.ledger.balance import Balance
from jdpack.output import Output
from scene import Case, World
from strike import Strike

run_module = importlib.import_module("jdpack.solve")

Strikes = list[list[Strike]]
"""Runs to try in turn, and the kills of each."""


def no_journal() -> Strikes:
    boardfile._keep = lambda journal, data: None
    return [[Strike(at=1, stage="rounds", torn=True, part=0.95)]]


def journal_not_synced() -> Strikes:
    def keep(journal, data):
        journal.seek(0)
        journal.write(data)
        journal.truncate(len(data))

    boardfile._keep = keep
    return [[Strike(at=at, stage="rounds", power=True)] for at in 30 * [5, 9]]  # until it is lost


def resume_posts_what_is_not_synced() -> Strikes:
    mend = boardfile.BoardFile.mend

    def hasty(self):
        self._journal, journal = None, self._journal
        mend(self)
        self._journal = journal

    boardfile.BoardFile.mend = hasty
    then = Strike(at=4, stage="mending", power=True)
    return [[Strike(at=9, stage="rounds"), then] for _ in range(30)]  # until it is lost


def reserves_after_the_rounds() -> Strikes:
    reserve, run = Account.reserve, run_module.run
    asked = []

    def late(engine, policy, board, *rest):
        run(engine, policy, board, *rest)
        reserve(*asked.pop())

    Account.reserve, run_module.run = (lambda *given: asked.append(given)), late
    return [[Strike(at=at, stage="rounds")] for at in (6, 9)]


def resume_does_not_reserve() -> Strikes:
    class Free(Account):
        def reserve(self, *_):
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
    write = Output.write

    def cancelling(self, result):
        run = json.loads(self.run_file.read_text())
        ledger = Ledger.open(run["ledger"]["ledger"])
        ledger.cancel(result.billboard.header.commitment, run["tokens"][-1])
        write(self, result)

    Output.write = cancelling
    return [[Strike(at=3, stage="pages")]]


def run_file_in_pieces() -> Strikes:
    def write(path, mode, text):
        handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())

    runfile.write_text = write
    return [[Strike(at=2, torn=True)]]


def private_files_for_all() -> Strikes:
    write = runfile.write_text
    runfile.write_text = lambda path, mode, text: write(path, 0o644, text)
    return [[Strike(at=1, stage="rounds")]]


def gives_everything_to_everybody() -> Strikes:
    tables = Shard.tables

    def generous(self, final):
        for table in tables(self, final):
            yes = [True] * table.num_rows
            yield table.set_column(table.num_columns - 1, "granted", [yes])

    Shard.tables = generous  # also what verify_run compares with, so that only addition is left
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
    Path.glob = lambda *_: []  # by which earlier ones are found
    return [[Strike(at=4, stage="pages")]]


def takes_a_header_without_its_end() -> Strikes:
    """As if a first line were whole without its newline."""
    first_line = boardfile.first_line

    def first(path, journal):
        text = boardfile.read(path)
        sealed = "\n" not in text and boardfile.chain.is_sealed(text)
        return text if sealed else first_line(path, journal)

    run_module.first_line = first
    return [[Strike(at=2, stage="header", torn=True, part=1.0)]]


def forgets_what_it_reserved() -> Strikes:
    """The folder goes, whether or not the reservation could be given back."""
    run_module._Run.owes = lambda self: False
    return [[Strike(at=1, stage="reading", interrupt=True, again=at)] for at in range(1, 9)]


def copies_go_on() -> Strikes:
    """The ledger asks nobody who goes on with a run whether it is its own."""
    reserve = Ledger.reserve

    def lenient(self, dataset, run, *rest, earlier=(), **more):
        known = self.runs.get(run)
        earlier = earlier if known is None else [*earlier, known.token]
        return reserve(self, dataset, run, *rest, earlier=earlier, **more)

    Ledger.reserve = lenient
    return [[Strike(at=1, stage="rounds"), Strike(at=9, stage="rounds")]]


CONTROLS: dict[Callable[[], Strikes], str] = {
    no_journal: "noise was drawn twice",
    journal_not_synced: "noise was drawn twice|cannot go on",
    resume_posts_what_is_not_synced: "noise was drawn twice|cannot go on",
    reserves_after_the_rounds: "its run is in state ''",
    resume_does_not_reserve: "its run is in state ''",
    reserves_again_under_another_name: "left nothing to go on from",
    knows_no_limit: "is over its",
    cancels_what_has_begun: "its run is in state 'RC'",
    run_file_in_pieces: "a torn run file",
    private_files_for_all: "may be read by others",
    gives_everything_to_everybody: "is exceeded",
    allocation_of_another_billboard: "row 1 of the allocation",
    leaves_half_written_files: "files too many",
    takes_a_header_without_its_end: "torn|refused without a reason",
    forgets_what_it_reserved: "left nothing to go on from",
    copies_go_on: "noise was drawn twice, for a copy|a copy of an earlier state",
}
"""The broken variants, and what the soak says of them."""


def tried(place: Path, strikes: Strikes, copies: bool) -> tuple[int, str]:
    """How many runs were tried, and what was wrong with the last; nothing if none was."""
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
    copies = broken is copies_go_on

    def with_it() -> tuple[int, str]:
        return tried(place / "broken", broken(), copies)

    def without_it() -> tuple[int, str]:
        return tried(place / "honest", strikes[count - 1 : count], copies)

    count, wrong = soak.in_fork(with_it)
    strikes = soak.in_fork(broken)
    return {"broken": wrong, "honest": soak.in_fork(without_it)[1]}


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="jdpack-soak-"))
    kills, every, seed = map(int, sys.argv[1:])
    soak.HANDS = 2
    counts = soak.soak(folder / "sample", kills, every, seed)
    jobs = [functools.partial(control, folder / b.__name__, b) for b in CONTROLS]
    found = [f for i in range(0, len(jobs), 3) for f in soak.together(jobs[i : i + 3])]
    controls = {
        b.__name__: {"says": CONTROLS[b], **f} for b, f in zip(CONTROLS, found, strict=True)
    }
    shutil.rmtree(folder)
    sys.stdout.write(json.dumps({"sample": soak.plain(counts), "controls": controls}))


if __name__ == "__main__":
    main()
