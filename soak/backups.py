"""Attacks that put a run's folder back from a backup while the ledger stays current.

Each attack copies a real run while it is working. None may make a line public twice, or cancel what
was reserved.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import ledgers
import proof
from hand import Counts, resuming
from jdpack import solve
from scene import POLICIES, Case, World, market
from strike import Ended, Strike, Watch, run


def attack(folder: Path, seed: float) -> Counts:
    """Make every attack on every policy."""
    rng, counts = random.Random(seed), Counter()  # type: random.Random, Counts
    for number, policy in enumerate(POLICIES):
        for name, one in ATTACKS.items():
            world = World(folder / f"{name} {number}")
            world.make()
            case = Case(world, world.runs / "1", rng.choice(("whole", "parts")), policy, "clinic")
            case.safe = case.now()
            counts["backups put back", name] += one(case, rng)
            ledgers.remove_world(world.folder)
    return counts


def earlier_folder(case: Case, rng: random.Random) -> int:
    """Put back copies from several rounds, after the run is killed and after it has finished."""
    copies = _copied_at(case, sorted(rng.sample(range(1, 30), 4)))
    tried = sum(_put_back(case, copy) for copy in copies)
    proof.must(not run(resuming(case)).error, "the run itself cannot resume")
    proof.after_end(case)
    return tried + sum(_put_back(case, copy) for copy in copies)


def cut_files(case: Case, rng: random.Random) -> int:
    """Cut the billboard to some of its lines, with an empty, an older or a torn journal."""
    _copied_at(case, [])
    whole = proof.board(case)
    lines, tried = whole.splitlines(keepends=True), 0
    copy = case.world.copies / "cut"
    for kept in sorted({1, 2, *(rng.randrange(1, len(lines) - 1) for _ in range(3))}):
        for journal in (b"", lines[kept - 1] if kept > 1 else b"", lines[-1][:-20]):
            shutil.copytree(case.folder, copy)
            (copy / "public" / "billboard.jsonl").write_bytes(b"".join(lines[:kept]))
            (copy / "private" / "journal.jsonl").write_bytes(journal)
            tried += _put_back(case, copy)
            shutil.rmtree(copy)
    return tried


def refund(case: Case, rng: random.Random) -> int:
    """Put back a copy from before the first line, after its records have become unreadable."""
    (copy,) = _copied_at(case, [0])
    records = case.world.records(case.kind, False)
    records.rename(records.with_suffix(".away"))
    tried = sum(_put_back(case, copy) for _ in range(3))
    records.with_suffix(".away").rename(records)
    return tried


def at_work(case: Case, rng: random.Random) -> int:
    """Resume a copy while the run itself is at work."""
    moments = rng.sample(range(1, 12), 2)

    def copy(name: str) -> None:
        twin = _copy(case, name)
        case.name = proof.name_of(case.private / "run.json") or ""
        before = proof.known_of(case)
        ended = run(resuming(twin))
        proof.must(ended.error, "a copy of a run that is at work resumed")
        proof.must("reading" not in ended.passed, f"refused too late: {ended.error}")
        proof.must(proof.known_of(case) == before, "a copy of a run at work changed the ledger")
        proof.must("is working on" in ended.error, f"refused for another reason: {ended.error}")

    def watched(rounds: int, stage: str) -> None:
        if stage == "rounds" and rounds in moments:
            copy(f"at {rounds}")

    ended = run(_telling(case, watched))
    proof.must(not ended.error, f"the run was disturbed: {ended.error}")
    proof.after_end(case)
    return len(moments)


ATTACKS: dict[str, Callable[[Case, random.Random], int]] = {
    "an earlier folder": earlier_folder,
    "a billboard and a journal that were cut": cut_files,
    "a folder from before the first line, for a refund": refund,
    "a copy of a run that is at work": at_work,
}


def _telling(case: Case, told: Callable[[int, str], None]) -> Callable[[Watch], object]:
    """Work that begins a run and reports every round; stage "reading" comes first."""
    return lambda watch: solve(
        market(case.kind),
        case.world.records(case.kind, False),
        policy=POLICIES[case.policy],
        output=case.folder,
        threads=1,
        ledger=case.world.ledger,
        dataset=case.dataset,
        force=True,
        progress=lambda progress: told(progress.rounds, progress.stage),
    )


def _copied_at(case: Case, rounds: list[int]) -> list[Path]:
    """Copy a run at some of its rounds (0: while it reads records), then kill it near its end."""

    def told(at: int, stage: str) -> None:
        if at in rounds and (stage == "rounds" or (at == 0 and stage == "reading")):
            _copy(case, f"copy {at}")

    ended: Ended = run(_telling(case, told), Strike(at=2, stage="closing"))
    proof.must(ended.killed, f"the run should have been killed near its end: {ended.error}")
    proof.after_kill(case)
    copies = [case.world.copies / f"copy {at}" for at in rounds]
    return [copy for copy in copies if copy.exists()]


def _copy(case: Case, name: str) -> Case:
    """Copy a run's folder as a backup would, from another process."""
    case.world.copies.mkdir(exist_ok=True)
    to = case.world.copies / name
    if not to.exists():
        subprocess.run(["cp", "-a", str(case.folder), str(to)], check=True)
    return Case(case.world, to, case.kind, case.policy, case.dataset)


def _put_back(case: Case, copy: Path) -> int:
    """Put a copy in the run's own place, try to resume, check, then put the run back.

    Returns 0 if the copy is up to date, because that is no attack; otherwise 1.
    """
    if proof.may_resume(case, Case(case.world, copy, case.kind, case.policy, case.dataset)):
        return 0
    aside, before = case.world.copies / "aside", proof.known_of(case)
    case.folder.rename(aside)
    shutil.copytree(copy, case.folder)
    try:
        ended = run(resuming(case))
        proof.must(ended.error, "a folder from a backup resumed")
        proof.must("reading" not in ended.passed, f"it was refused too late: {ended.error}")
        public = (copy / "public" / "billboard.jsonl").read_bytes()
        proof.must(proof.board(case) == public, "a folder from a backup posted something")
        proof.must(proof.known_of(case) == before, "a folder from a backup changed the ledger")
    finally:
        shutil.rmtree(case.folder)
        aside.rename(case.folder)
    return 1
