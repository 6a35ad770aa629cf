"""Private: all checks that hold for every recorded run, whatever it was recorded for."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jdpack.audit import answers, budget_checks, fold, neighbours, noise_checks
from jdpack.audit.findings import Finding, guarded
from jdpack.audit.recording import Tape


@dataclass(frozen=True)
class Group:
    """Some runs, and what they were recorded for."""

    where: str
    tapes: Sequence[Tape]
    replayed: bool = False
    """Whether these are replays: their seed and answers are those of a run in another group, and
    `replays` compares their billboards with its billboard."""


def of_every_run(groups: Sequence[Group]) -> Iterator[Finding]:
    """Public side, exact answers, allocation, noise, seeds and charges of recorded runs."""
    recorded = [group for group in groups if not group.replayed]
    made = iter(fold.made_elsewhere([tape for group in recorded for tape in group.tapes]))
    for group in groups:
        ended = [tape for tape in group.tapes if tape.board is not None]
        own = [] if group.replayed else [next(made) for _ in ended]
        found = guarded("runs: checked", functools.partial(_of_group, group, own))
        yield from (replace(one, check=f"{one.check} ({group.where})") for one in found)
    yield from answers.of_seeds([tape for group in recorded for tape in group.tapes])


def _of_group(group: Group, made: Sequence[Any]) -> Iterator[Finding]:
    tapes = group.tapes
    yield neighbours.of_runs(tapes)
    yield answers.of_answers(tapes)
    yield answers.of_allocation(tapes)
    yield from noise_checks.of_vetted_source(tapes)
    if not group.replayed:
        yield from fold.of_public(tapes, made)
        yield from budget_checks.of_charges(tapes)
        yield budget_checks.of_rooms(tapes)
