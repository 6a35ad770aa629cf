"""Private: the checks that every recorded run must pass, whatever it was recorded for."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jdpack.audit import answers, budget_checks, fold, neighbours, noise_checks
from jdpack.audit.findings import Finding, guarded, located
from jdpack.audit.recording import Tape


@dataclass(frozen=True)
class RecordedRuns:
    """Some runs, and why they were recorded."""

    where: str
    tapes: Sequence[Tape]
    replayed: bool = False
    """Whether these are replays: their seed and answers come from a run elsewhere, and `neighbours`
    compares their billboards with that run's."""


def runs_of(family: neighbours.Family, where: str) -> list[RecordedRuns]:
    """The recorded run of a family, and its replays."""
    replays = [tape for _, tape in family.replayed]
    return [
        RecordedRuns(where, [family.recorded]),
        RecordedRuns(f"{where}, neighbours", replays, replayed=True),
    ]


def of_every_run(recorded: Sequence[RecordedRuns]) -> Iterator[Finding]:
    """Check the public side, exact answers, allocation, noise and charges of each run."""
    made = iter(fold.made_elsewhere(_first_tapes(recorded)))
    for runs in recorded:
        ended = [tape for tape in runs.tapes if tape.board is not None]
        own = [] if runs.replayed else [next(made) for _ in ended]
        found = guarded("runs: checked", functools.partial(_of_runs, runs, own))
        yield from located(found, runs.where)


def of_all_runs(recorded: Sequence[RecordedRuns]) -> Iterator[Finding]:
    """Check that no seed repeats, and that statements hold as often as they say."""
    tapes = _first_tapes(recorded)
    yield from answers.of_seeds(tapes)
    yield from answers.of_statements(tapes)


def _first_tapes(recorded: Sequence[RecordedRuns]) -> list[Tape]:
    """All runs but the replays."""
    return [tape for runs in recorded if not runs.replayed for tape in runs.tapes]


def _of_runs(runs: RecordedRuns, made: Sequence[Any]) -> Iterator[Finding]:
    tapes = runs.tapes
    yield neighbours.of_runs(tapes)
    yield answers.of_answers(tapes)
    yield answers.of_allocation(tapes)
    yield from noise_checks.of_vetted_source(tapes)
    if not runs.replayed:
        yield from fold.of_public(tapes, made)
        yield from budget_checks.of_charges(tapes)
        yield budget_checks.of_factors(tapes)
