"""What must hold after every strike, checked by jdpack itself and by the soak's own arithmetic.

Every check raises `Wrong` with a sentence.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import stat
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet

import ledgers
from jdpack import Billboard, Budget, Ledger, allocate
from jdpack.curator.verify_run import verify_run
from jdpack.protocol.verify import verify
from scene import AGENTS, DELTA, EPSILON, Case, World, columns
from strike import Ended

FILES = {
    *("public/billboard.jsonl", "public/index.html", "private/run.json"),
    *("private/journal.jsonl", "private/allocation.parquet", "private/report.html"),
    "private/granted.parquet",
}
_HEX = re.compile("[0-9a-f]{64}").fullmatch
_HASH = re.compile(r'(.*),"hash":"([0-9a-f]{64})"\}', re.DOTALL)
_LIFE = re.compile("(RC)*(R(BF?)?)?")
"""The life of a run: reserved, cancelled, reserved again, begun, finished."""
_LETTERS = {"reserve": "R", "begin": "B", "again": "A", "cancel": "C", "finish": "F"}


class Wrong(Exception):  # noqa: N818
    """Something that must never happen."""


def must(true: object, what: str) -> None:
    """Raise `Wrong` unless it is true."""
    if not true:
        raise Wrong(what)


# --- the ledger -----------------------------------------------------------------------------


@dataclass
class Books:
    """A ledger, read without jdpack."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    totals: dict[str, dict[str, Any]] = field(default_factory=dict)
    lives: dict[str, str] = field(default_factory=dict)
    """For each run, its letters in order: R, B, C, F."""
    reserved: dict[str, dict[str, Any]] = field(default_factory=dict)

    def live(self, dataset: str | None = None) -> set[str]:
        """Runs that count."""
        return {
            run
            for run, life in self.lives.items()
            if not life.endswith("C") and dataset in (None, self.reserved[run]["dataset"])
        }

    def spent(self, dataset: str) -> tuple[Fraction, Fraction]:
        runs = [_takes(self.reserved[run]) for run in self.live(dataset)]
        return sum((rho for rho, _ in runs), Fraction(0)), sum((a for _, a in runs), Fraction(0))


def _takes(budget: dict[str, Any]) -> tuple[Fraction, Fraction]:
    """What a run takes from the limits of its data set."""
    rho = Fraction(budget["rho"])
    if budget.get("accounting") == "gdp":
        return rho, Fraction(budget["beta"]) * budget.get("repaired", True)
    return rho, Fraction(budget["delta"]) + Fraction(budget["truncation"])


def books_of(path: Path | str) -> Books:
    """Read and check a ledger: the chain, the order of entries, and the limits at all times."""
    Ledger.open(path).verify()
    books, last = Books(), ""
    for line in ledgers.lines_of(path):
        parts = _HASH.fullmatch(line)
        must(parts, f"a ledger line without a hash: {line}")
        assert parts is not None
        must(hashlib.sha256(parts[1].encode()).hexdigest() == parts[2], f"a wrong hash: {line}")
        entry = json.loads(line)
        must(entry["prev"] == last, f"a ledger line out of its place: {line}")
        last = parts[2]
        _book(books, entry)
    return books


def _book(books: Books, entry: dict[str, Any]) -> None:
    books.entries.append(entry)
    dataset = entry["dataset"]
    if entry["type"] == "dataset":
        must(dataset not in books.totals, f"data set {dataset} appears twice")
        numbers = (entry[key] for key in ("rho_limit", "delta_limit", "epsilon", "delta"))
        hold = _hold_in_gdp if entry.get("accounting") == "gdp" else _hold_in_zcdp
        must(hold(*numbers), f"the limits of {dataset} do not imply its total")
        books.totals[dataset] = entry
        return
    run = entry["run"]
    life = books.lives.get(run, "") + _LETTERS[entry["type"]]
    must(_LIFE.fullmatch(life), f"run {run} is in the ledger as {life}: spent twice or cancelled")
    books.lives[run] = life
    if entry["type"] == "reserve":
        books.reserved[run] = entry
        rho, delta = books.spent(dataset)
        total = books.totals[dataset]
        must(rho <= Fraction(total["rho_limit"]), f"data set {dataset} is over its rho")
        must(delta <= Fraction(total["delta_limit"]), f"data set {dataset} is over its delta")


@functools.cache
def _hold_in_gdp(rho_limit: float, delta_limit: float, epsilon: float, delta: float) -> bool:
    """Whether limits imply a total: Balle & Wang 2018, Theorem 8, for normal noise.

    That the noise is discrete may cost 1/512 of rho, as a part of epsilon.
    """
    mu, cost = math.sqrt(2 * rho_limit), rho_limit / 512
    epsilon -= cost
    above, below = (
        math.erfc((epsilon / mu + sign * mu / 2) / math.sqrt(2)) / 2 for sign in (-1, 1)
    )
    of_rho = math.exp(cost) * (above - math.exp(epsilon) * below)
    return of_rho + delta_limit <= delta * (1 + 1e-6)


@functools.cache
def _hold_in_zcdp(rho_limit: float, delta_limit: float, epsilon: float, delta: float) -> bool:
    """Whether limits imply a total: Canonne, Kamath & Steinke 2020, Corollary 13."""
    alphas = 1.0 + np.exp(np.linspace(math.log(1e-3), math.log(1e3), 200_001))
    logs = (alphas - 1) * (alphas * rho_limit - epsilon) + alphas * np.log1p(-1 / alphas)
    of_rho = math.exp(float(np.min(logs - np.log(alphas - 1))))
    return of_rho + delta_limit <= delta * (1 + 1e-6)


def no_reservation_is_lost(world: World) -> Books:
    """Every reservation that counts belongs to a folder from which its run can resume."""
    for _ in range(3):  # a refused run first cancels, then removes its folder
        books = books_of(world.ledger)
        names = {name_of(folder / "private" / "run.json") for folder in world.runs.iterdir()}
        lost = {run for run in books.live() - names if not run.startswith("bare ")}
        if not lost:
            return books
    raise Wrong(f"reserved by runs that left nothing to resume from: {lost}")


def name_of(run_file: Path) -> str | None:
    """The name of a run, from its run file."""
    try:
        header = json.loads(json.loads(run_file.read_text())["header"])
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Wrong(f"a torn run file: {error}") from None
    return str(header["seed_commitment"])


def may_resume(case: Case, copy: Case) -> bool:
    """Whether a copy of a run's folder is as far as the run, by the soak's own reading."""
    books = books_of(case.world.ledger)
    life = books.lives.get(case.name, "")
    if not life.endswith(("B", "F")):
        return True  # nothing was ever public
    if life.endswith("F"):
        return board(copy) == board(case)
    heads = ledgers.heads_of(case.world.ledger, case.name)
    known = [line for line in heads.split("\n")[:-1] if _HEX(line)]
    here = _hashes(board(copy)) or [""]
    journal = copy.private / "journal.jsonl"
    drawn = _hashes(b"\n" + journal.read_bytes()) if journal.exists() else []
    return known[-1] in (here[-1], *drawn)


def _hashes(board: bytes) -> list[str]:
    """The hashes of the complete lines after the header."""
    found = (
        _HASH.fullmatch(line.decode(errors="replace")) for line in _lines(board).split(b"\n")[1:]
    )
    return [parts[2] for parts in found if parts is not None]


# --- a run ----------------------------------------------------------------------------------


def after_kill(case: Case) -> int:
    """Check what a killed process left; returns the number of ledger entries checked."""
    books = no_reservation_is_lost(case.world)
    _look(case)
    data = board(case)
    begun = b"\n" in data
    if case.left is None:
        case.seen = max(case.seen, data, key=len)
    if begun or b"\n" in case.seen:
        must(not case.bad, "a run on bad records has begun")
    if posted(data) or posted(case.seen):
        life = books.lives.get(case.name, "")
        must(case.name in books.live(), f"noise is posted, but its run is in state {life!r}")
    if begun and case.left is None:
        spent = verify(_whole(data)).spent
        must(spent.rho <= Fraction(books.reserved[case.name]["rho"]), "overspent")
    return len(books.entries)


def after_interrupt(case: Case, command: str, stage: str) -> None:
    """Check that a run interrupted once, before it began, took everything back."""
    if stage not in ("reserving", "reading", "header") or b"\n" in board(case):
        return
    must(command != "solve" or not case.folder.exists(), f"Ctrl-C while {stage} left a folder")
    live = books_of(case.world.ledger).live()
    must(not case.name or case.name not in live, f"Ctrl-C while {stage} left a reservation")


def after_copy(case: Case, copy: Case, before: list[str], ended: Ended) -> None:
    """Check an attempt to resume from a backup."""
    if ended.error:
        read = "reading" in ended.passed
        must(not read, f"a copy of an earlier state was refused too late: {ended.error}")
    else:
        must(board(copy) == board(case), "a copy of an earlier state resumed")
        life = books_of(case.world.ledger).lives[case.name]
        must(life.endswith("F"), f"a copy ended a run, which is in state {life!r}")
    must(case.seen.startswith(_lines(board(copy))), "noise was drawn twice, for a copy")
    must(known_of(case) == before, "a copy of an earlier state changed the ledger")


def known_of(case: Case) -> list[str]:
    """Everything the ledger knows about a run: its entries, and how far it has come."""
    entries = [line for line in ledgers.lines_of(case.world.ledger) if case.name in line]
    return [*entries, ledgers.heads_of(case.world.ledger, case.name)]


def after_end(case: Case) -> int:
    """Check a run that has succeeded."""
    books = no_reservation_is_lost(case.world)
    case.left = None
    _look(case)
    data = board(case)
    must(data.startswith(case.seen), "the billboard is not what readers have seen")
    case.seen = data
    verdict = verify(case.billboard)
    must(verdict.finished, "a run succeeded, but its billboard is not finished")
    must(verdict.spent.rho <= Fraction(books.reserved[case.name]["rho"]), "overspent")
    head = json.loads(data.splitlines()[-1])["hash"]
    finishes = [e for e in books.entries if e["type"] == "finish" and e["run"] == case.name]
    must([e["billboard"] for e in finishes] == [head], "the ledger has a different end of the run")
    found = {str(p.relative_to(case.folder)) for p in case.folder.rglob("*") if p.is_file()}
    must(found == FILES, f"too many or too few files: {sorted(found ^ FILES)}")
    must(case.heads is None or not case.heads.exists(), "a run is over, but its heads remain")
    return len(books.entries)


def after_refusal(case: Case) -> int:
    """Check that a refused run leaves neither a folder nor a reservation."""
    must(not case.folder.exists(), f"a refused run left {case.folder}")
    books = no_reservation_is_lost(case.world)
    must(case.name not in books.live(), "a refused run still counts")
    return len(books.entries)


def _look(case: Case) -> None:
    """Learn the name of a run; check who may read its files, and what readers have seen."""
    name = name_of(case.private / "run.json")
    must(name in (None, case.name) or not case.name, "the run has changed its name")
    case.name = name or ""
    for path in case.folder.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if case.private in path.parents:
            must(mode == 0o600, f"others may read {path.name}: {mode:o}")
        elif path == case.private:
            must(mode == 0o700, f"others may read the private folder: {mode:o}")
    data = board(case)
    if case.left == data:
        return  # nobody has mended it yet
    case.left = None
    same = data.startswith(case.seen) or case.seen.startswith(data)
    must(same, "noise was drawn twice: the billboard is not what readers have seen")


def board(case: Case) -> bytes:
    """The billboard's bytes."""
    return case.billboard.read_bytes() if case.billboard.exists() else b""


def posted(data: bytes) -> bool:
    """Whether a billboard has anything after its header, which holds no noise."""
    return bool(data.partition(b"\n")[2])


def _lines(data: bytes) -> bytes:
    """The complete lines."""
    return data[: data.rfind(b"\n") + 1]


def _whole(data: bytes) -> Billboard:
    return Billboard.from_text(_lines(data).decode())


def allocation(case: Case) -> None:
    """Check the allocation: by jdpack, by the agents' own function, and by addition."""
    must(verify_run(case.folder, threads=1).agents == AGENTS, "agents are missing")
    records = columns(case.kind)
    table = pyarrow.parquet.read_table(case.private / "allocation.parquet")
    given = table[table.column_names[-1]].to_numpy().astype(float)
    must(table["id"].to_pylist() == records["id"].tolist(), "the ids differ from the records")
    board = Billboard.read(case.billboard)
    for resource in board.header.market.resources:
        load = math.fsum(given * records[resource.name])
        must(load <= resource.supply * (1 + 1e-12), f"supply of {resource.name} is exceeded")
    for agent in range(0, AGENTS, 29):
        rows = np.flatnonzero(records["id"] == agent)
        must(given[rows].sum() <= 1.0, f"agent {agent} gets more than one option")
        demand = [[records[r.name][row] for r in board.header.market.resources] for row in rows]
        outcome = allocate(board, value=records["value"][rows], demand=demand, agent=agent)
        must(
            list(outcome.given) == given[rows].tolist(), f"agent {agent} computes a different share"
        )


def at_last(world: World) -> tuple[int, int]:
    """Check a world where nobody is at work: nothing is lost, and the rest can be spent.

    Returns the number of data sets, and of runs with folders that count.
    """
    books = no_reservation_is_lost(world)
    ledger = Ledger.open(world.ledger)
    for dataset, total in books.totals.items():
        balance = ledger.balance(dataset)
        rho, delta = books.spent(dataset)
        must((balance.rho_spent, balance.delta_spent) == (rho, delta), f"{dataset} adds up wrong")
        must(balance.runs == len(books.live(dataset)), f"{dataset} counts its runs wrong")
        run = Budget.split(EPSILON, DELTA, truncated=False)
        more_rho, more_delta = _takes(run.to_dict())
        fits = rho + more_rho <= Fraction(total["rho_limit"])
        fits = fits and delta + more_delta <= Fraction(total["delta_limit"])
        must(balance.fits(run) == fits, f"whether a run fits in {dataset} should be {fits}")
    for folder in world.runs.iterdir():
        name = name_of(folder / "private" / "run.json")
        board = folder / "public" / "billboard.jsonl"
        begun = board.exists() and posted(board.read_bytes())
        must(not begun or books.lives.get(name or "", "").endswith("F"), f"{name} never ended")
    runs = [run for run in books.live() if not run.startswith("bare ")]
    return len(books.totals), len(runs)
