"""A hand starts processes one after the other, strikes them, and checks what they left."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import proof
from jdpack import Billboard, Budget, Ledger, allocate, resume, solve
from jdpack.market.market import Neighbours
from power import cut
from scene import AGENTS, DATASETS, POLICIES, Case, World, columns, market
from strike import REFUSED_STAGES, RUN_STAGES, Ended, Strike, Watch, at_random, run

Counts = Counter[tuple[str, ...]]


def solving(case: Case) -> Callable[[Watch], object]:
    """Work that begins a run."""
    return lambda watch: solve(
        market(case.kind),
        case.world.records(case.kind, case.bad),
        policy=POLICIES[case.policy],
        output=case.folder,
        threads=1,
        ledger=case.world.ledger,
        dataset=case.dataset,
        force=True,
    )


def resuming(case: Case) -> Callable[[Watch], object]:
    """Work that resumes a run."""

    def work(watch: Watch) -> None:
        watch.stage = "reading back"
        resume(case.folder, threads=1)

    return work


class Hand:
    """Starts processes one after the other, strikes them, and checks what they left."""

    copies = 0.3
    """The probability of copying the folder of a killed run, to put it back later."""

    def __init__(self, world: World, name: str, seed: float, typical: dict[str, Any]) -> None:
        self.world, self.name, self.rng = world, name, random.Random(seed)
        self.counts: Counts = Counter()
        self._typical, self._number = typical, 0
        self._datasets, self._finished = list(DATASETS), []  # type: list[str], list[Case]

    @property
    def kills(self) -> int:
        return sum(n for key, n in self.counts.items() if key[0] == "kills")

    @property
    def strikes(self) -> int:
        """Kills and interrupts."""
        return sum(n for key, n in self.counts.items() if key[0] in ("kills", "Ctrl-C"))

    # --- one process --------------------------------------------------------------------

    def _run(self, case: Case, command: str, strike: Strike | None) -> Ended:
        """Run a process. If it was killed, check what it left, and cut the power if asked to."""
        disk = self.world.folder / f"{self.name}.disk"
        disk.write_bytes(pickle.dumps(case.safe))
        work = solving(case) if command == "solve" else resuming(case)
        ended = run(work, strike, disk)
        if not ended.killed:
            return ended
        assert strike is not None
        self._count_kill(command, ended, strike)
        self._checked(proof.after_kill(case))
        if strike.interrupt and not strike.again:
            proof.after_interrupt(case, command, ended.stage)
        told = pickle.loads(disk.read_bytes())
        case.safe = told if strike.delay is None else case.now()
        if strike.power:
            cut(case.folder, told, self.rng, case.heads)
            case.left = case.billboard.read_bytes() if case.billboard.exists() else b""
            case.safe = case.now()
            self._checked(proof.after_kill(case))
        return ended

    def _count_kill(self, command: str, ended: Ended, strike: Strike) -> None:
        self.counts["Ctrl-C" if strike.interrupt else "kills", command, ended.stage] += 1
        how = "at a random time" if strike.delay is not None else "at an operation"
        how = "in the middle of a write" if strike.torn else how
        self.counts["how", how] += 1
        self.counts["how", "by Ctrl-C, twice"] += bool(strike.again)
        self.counts["how", "with the power cut"] += strike.power
        if os.path.exists(f"{self.world.ledger}-journal"):
            self.counts["how", "while somebody wrote the ledger"] += 1

    def _checked(self, entries: int) -> None:
        self.counts["ledger entries checked",] += entries

    def _end(self, case: Case, ended: Ended, command: str) -> None:
        """Check a run that was not killed: it succeeded, or it was refused."""
        if not ended.error:
            proof.must(not case.bad, "bad records were accepted")
            self._checked(proof.after_end(case))
            looked = run(lambda _: proof.allocation(case))
            proof.must(not looked.error, looked.error)
            self.counts["runs finished",] += 1
            self._finished = [*self._finished[-5:], case]
            return
        self._checked(proof.after_kill(case))
        books = proof.no_reservation_is_lost(case.world)
        begun = proof.posted(case.seen)
        proof.must(not begun, f"a run that has begun cannot resume: {ended.error}")
        proof.must(case.name not in books.live(), f"a refused run still counts: {ended.error}")
        if command == "solve":
            self._checked(proof.after_refusal(case))
        full = ended.error.startswith("BudgetError")
        half = not case.billboard.exists()  # refused before, and killed while it took back
        proof.must(full or case.bad or half, f"refused without a reason: {ended.error}")
        self.counts["runs refused", "bad records" if case.bad else "no budget left"] += 1
        if full and self.rng.random() < 0.5:
            self._datasets = [*self._datasets[-2:], self._ledger_victim(None)]

    def lead(self, case: Case, strikes: list[Strike], command: str = "solve") -> None:
        """Take a run to its end through some strikes, then put back copies of earlier states."""
        copies: list[Case] = []
        for strike in [*strikes, None]:
            ended = self._run(case, command, strike)
            if not ended.killed:
                self._end(case, ended, command)
                break
            if not (case.private / "run.json").exists():  # nothing to resume, nothing spent
                proof.must(not case.seen, "a billboard has begun, but its run cannot resume")
                self.counts["runs that left nothing",] += 1
                break
            copies = self._try_copies(case, copies)
            if case.left is None and self.rng.random() < self.copies:
                self._number += 1
                copy = replace(case, folder=self.world.copies / f"{self.name} {self._number}")
                shutil.copytree(case.folder, copy.folder)
                copies.append(copy)
            command = "resume"
        for copy in self._try_copies(case, copies):
            shutil.rmtree(copy.folder)

    def _try_copies(self, case: Case, copies: list[Case]) -> list[Case]:
        """Try to resume from copies that lag behind the run; return the other copies."""
        left = []
        for copy in copies:
            if not case.folder.exists() or proof.may_resume(case, copy):
                left.append(copy)
                continue
            before = proof.known_of(case)
            proof.after_copy(case, copy, before, run(resuming(copy)))
            self.counts["folders from a backup, refused",] += 1
            shutil.rmtree(copy.folder)
        return left

    # --- kills at random ----------------------------------------------------------------

    def at_random(self, kills: int) -> None:
        """Kill processes of all kinds, `kills` times."""
        while self.kills < kills:
            match self.rng.randrange(20):
                case 0 | 1 | 2:
                    self._ledger_victim(self._moment("ledger"))
                case 3 | 4 if self._finished:
                    self._ask()
                case 5 | 6 | 7 if self._finished:
                    self._write_again()
                case _:
                    self._number += 1
                    name = f"{self.name} {self._number}"
                    case = Case.draw(self.world, name, self._datasets, self.rng)
                    count = self.rng.choice([1, 1, 1, 2, 3, 5])
                    stages = REFUSED_STAGES if case.bad else RUN_STAGES
                    self.lead(case, [self._moment(case.policy, stages) for _ in range(count)])

    def _moment(self, what: str, stages: tuple[str, ...] = RUN_STAGES) -> Strike:
        return at_random(self.rng, *self._typical[what], stages)

    def _ledger_victim(self, strike: Strike | None) -> str:
        """Enter a data set and runs without folders; if killed, continue where it stopped."""
        self._number += 1
        dataset = f"set {self.name} {self._number}"
        todo = todo_of(self.world, dataset, self.rng.randint(1, 3) if strike else 0)

        def work(watch: Watch, start: int = 0) -> None:
            watch.stage = "ledger"
            for _, _, act in todo[start:]:
                act()
                watch.done += 1

        if strike is not None and (strike.stage or strike.torn):
            strike = replace(strike, stage="", torn=False)
        ended = run(work, None if strike is None else replace(strike, power=False))
        proof.must(not ended.error, f"the ledger refused: {ended.error}")
        done = ended.done
        if ended.killed:
            assert strike is not None
            self._count_kill("ledger", ended, replace(strike, power=False))
            done = self._entered(dataset, todo, done)
            again = run(lambda watch: work(watch, done))
            proof.must(not again.error, f"the ledger refused: {again.error}")
        self._entered(dataset, todo, len(todo))
        return dataset

    def _entered(self, dataset: str, todo: list[Any], done: int) -> int:
        """The ledger holds everything reported as done, and at most the next thing too."""
        books = proof.no_reservation_is_lost(self.world)
        self._checked(len(books.entries))
        found = [(e["type"], e.get("run")) for e in books.entries if e["dataset"] == dataset]
        wanted = [(kind, name) for kind, name, _ in todo]
        proof.must(
            found in (wanted[:done], wanted[: done + 1]),
            f"{done} were done, but the ledger has {found}",
        )
        return len(found)

    def _ask(self) -> None:
        """Kill agents while they compute what they get: nothing on disk may change."""
        case = self.rng.choice(self._finished)
        before = _contents(case.folder)

        def work(watch: Watch) -> None:
            watch.stage = "asking"
            ask(case)

        strike = Strike(delay=self.rng.uniform(0.0, 0.02))
        ended = run(work, strike)
        proof.must(_contents(case.folder) == before, "a reader changed the run")
        if ended.killed:
            self._count_kill("allocate", ended, strike)

    def _write_again(self) -> None:
        """Lose the allocation, and kill the process that writes it again."""
        case = self.rng.choice(self._finished)
        before = _contents(case.folder)
        (case.private / "allocation.parquet").unlink()
        case.safe = case.now()
        stage = self.rng.choice(["allocation", "allocation", "pages", "finishing"])
        self._run(case, "allocate", Strike(at=self.rng.randint(1, 8), stage=stage))
        self._end(case, self._run(case, "allocate", None), "allocate")
        self.counts["runs finished",] -= 1  # it was counted before
        after = _contents(case.folder)
        proof.must(before.items() <= after.items(), "the second allocation differs from the first")

    # --- kills at every operation -------------------------------------------------------

    def everywhere(self, first: int, step: int) -> None:
        """Kill a run at every `step`-th operation, starting at `first`."""
        fresh = Case.small(World(self.world.folder / "fresh").make())
        ends = [Strike(torn=True, part=0.0)], [Strike(torn=True, part=1.0)]
        ctrl_c = [Strike(interrupt=True)], [Strike(interrupt=True, again=1)]
        for strikes in ([Strike()], *ends, [Strike(power=True)], *ctrl_c):
            self.sweep(fresh, "solve", strikes, first, step)
        # A kill, then a power cut while the next process resumes from what was not synced.
        self.sweep(fresh, "solve", [Strike(), Strike(power=True)], first, step)
        # The same for resuming from a line that is half posted.
        torn = Case.small(World(self.world.folder / "torn").make())
        # The writes: run.json three times, the header, then each line in the journal, its hash
        # beside the ledger, and the line itself.
        self._run(torn, "solve", Strike(at=13, torn=True, part=0.7))
        assert torn.seen.count(b"\n") == 3 and not torn.seen.endswith(b"\n"), torn.seen
        for strikes in ([Strike()], *ends, [Strike(power=True)]):
            self.sweep(torn, "resume", strikes, first, step)

    def sweep(
        self, start: Case, command: str, strikes: list[Strike], first: int, step: int
    ) -> None:
        """Start from copies of a run, and move the first strike to another operation each time."""
        place, at = World(self.world.folder / "sweep"), first
        self.copies = 1.0  # copy every state that a backup could hold
        while True:
            shutil.rmtree(place.folder, ignore_errors=True)
            shutil.copytree(start.world.folder, place.folder)
            case = Case.small(place, start)
            later = [replace(s, at=self.rng.randint(1, 30)) for s in strikes[1:]]
            drawn = [replace(strikes[0], at=at), *later]
            if strikes[0].again:
                drawn[0] = replace(drawn[0], again=self.rng.randint(1, 12))
            before = self.strikes
            self.lead(case, drawn, command)
            if self.strikes == before:
                return
            what = "before an operation"
            if drawn[0].torn:
                what = "after the first byte of a write, or all but the last"
            what += ", by Ctrl-C" if drawn[0].interrupt else ""
            what += ", twice" if drawn[0].again else ""
            what += ", with the power cut" if drawn[0].power else ""
            what += ", then the power cut" if len(drawn) > 1 else ""
            self.counts["every", command, what] += 1
            at += step


def todo_of(world: World, dataset: str, runs: int) -> list[tuple[str, str | None, Any]]:
    """Entries to make, for a data set and its runs: the kind, the run, and the function."""
    path, budget = world.ledger, Budget.split(2.0, 1e-7, truncated=False)

    def reserve(run: str) -> None:
        Ledger.open(path).reserve(dataset, run, budget, Neighbours.REPLACE_ONE)

    def cancel(run: str) -> None:
        Ledger.open(path).cancel(run)

    def begin(run: str) -> None:
        Ledger.open(path).post(run, "", "0" * 64)

    def finish(run: str) -> None:
        Ledger.open(path).finish(run, "0" * 64)

    todo: list[tuple[str, str | None, Any]] = [
        ("dataset", None, lambda: Ledger.create(path, dataset, epsilon=50.0, delta=1e-5))
    ]
    for number in range(runs):
        name = f"bare {dataset} {number}"
        todo.append(("reserve", name, partial(reserve, name)))
        if number % 3 == 1:
            todo.append(("cancel", name, partial(cancel, name)))
            todo.append(("reserve", name, partial(reserve, name)))
        if number % 3 < 2:
            todo.append(("begin", name, partial(begin, name)))
            todo.append(("finish", name, partial(finish, name)))
    return todo


def ask(case: Case) -> None:
    """Compute what some agents get, as each of them would."""
    board, records = Billboard.read(case.billboard), columns(case.kind)
    for agent in range(0, AGENTS, 7):
        rows = (records["id"] == agent).nonzero()[0]
        demand = [[records["beds"][row], records["nurses"][row]] for row in rows]
        allocate(board, value=records["value"][rows], demand=demand, agent=agent)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
