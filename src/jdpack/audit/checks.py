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
class Group:
    """Some runs, and why they were recorded."""

    where: str
    tapes: Sequence[Tape]
    replayed: bool = False
    """Whether these are replays: their seed and answers come from a run in another group, and
    `neighbours` compares their billboards with that run's."""


def groups_of(family: neighbours.Family, where: str) -> list[Group]:
    """The recorded run of a family, and its replays."""
    replays = [tape for _, tape in family.replayed]
    return [
        Group(where, [family.recorded]),
        Group(f"{where}, neighbours", replays, replayed=True),
    ]


def of_every_run(groups: Sequence[Group]) -> Iterator[Finding]:
    """Check the public side, exact answers, allocation, noise and charges of each run."""
    recorded = [group for group in groups if not group.replayed]
    made = iter(fold.made_elsewhere([tape for group in recorded for tape in group.tapes]))
    for group in groups:
        ended = [tape for tape in group.tapes if tape.board is not None]
        own = [] if group.replayed else [next(made) for _ in ended]
        found = guarded("runs: checked", functools.partial(_of_group, group, own))
        yield from located(found, group.where)


def of_all_runs(groups: Sequence[Group]) -> Iterator[Finding]:
    """Check that no seed repeats, and that statements hold as often as they say."""
    tapes = [tape for group in groups if not group.replayed for tape in group.tapes]
    yield from answers.of_seeds(tapes)
    yield from answers.of_statements(tapes)


def _of_group(group: Group, made: Sequence[Any]) -> Iterator[Finding]:
    tapes = group.tapes
    yield neighbours.of_runs(tapes)
    yield answers.of_answers(tapes)
    yield answers.of_allocation(tapes)
    yield from noise_checks.of_vetted_source(tapes)
    if not group.replayed:
        yield from fold.of_public(tapes, made)
        yield from budget_checks.of_charges(tapes)
        yield budget_checks.of_factors(tapes)
