"""Private: all checks that hold for every recorded run, whatever it was recorded for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jdpack.audit import answers, charges, draws, fold, replays
from jdpack.audit.findings import Finding
from jdpack.audit.tape import Tape


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
        tapes = group.tapes
        found = [
            replays.of_runs(tapes),
            answers.of_answers(tapes),
            answers.of_allocation(tapes),
            *draws.of_vetted_source(tapes),
        ]
        if not group.replayed:
            own = [next(made) for tape in tapes if tape.board is not None]
            found += fold.of_public(tapes, own)
            found += charges.of_charges(tapes)
            found.append(charges.of_rooms(tapes))
        yield from (replace(one, check=f"{one.check} ({group.where})") for one in found)
    yield from answers.of_seeds([tape for group in recorded for tape in group.tapes])
