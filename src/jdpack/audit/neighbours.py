"""Private: replays neighbours under identical randomness.

The audit records one run. Then it runs the pipeline on neighbours of the data set, and forces the
same random bytes and the same posted answers on it. Everything claimed to be a function of the
billboard must come out the same: steps, prices, weights, noise scales, the certificate, the seed,
and what all other agents get. The exact answers may move, but by no more than claimed. The audit
compares every pair of one agent's alternative records, because any two of them make neighbours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from jdpack.audit.budget_checks import shapes, worst
from jdpack.audit.findings import Finding, differ, fact
from jdpack.audit.people import People, Record, beyond, candidates, everything
from jdpack.audit.recording import Chooser, Line, Setting, Tape, can_replay, record, replay
from jdpack.engines.settings import Choice, Tell
from jdpack.market.market import Neighbours
from jdpack.privacy.noise import deviation
from jdpack.privacy.queries import Change, Query
from jdpack.protocol import closing

CLOSE = ("curvature", "gauge")
"""Queries about agents whose choice is close."""
WHOLE = (*CLOSE, "chance")
"""Queries whose claim bounds the whole move, not how many numbers move and each by how much."""


@dataclass(frozen=True)
class Family:
    """A recorded run, and replays of it in which one agent has a different record."""

    place: int
    recorded: Tape
    replayed: list[tuple[Record | None, Tape]]

    def swap(self, record_: Record | None) -> str:
        """How a replay differs from the recorded run, in words."""
        return f"with {_shown(record_)} in place of agent {self.place}"


def family(
    setting: Setting,
    people: People,
    count: int,
    seed: int = 0,
    engine: str | Choice = "memory",
    place: int | None = None,
    tell: Tell = lambda done: None,
    draws: Chooser | None = None,
) -> Family:
    """Record a run in which the agent at `place` wants everything, and replay its neighbours.

    If `draws` is given, it replaces the noise of the recorded run.
    """
    place = len(people.ids) // 2 if place is None else place
    base = people.replaced(place, everything(people.market))
    recorded = record(setting, base, engine, draws=draws)
    found: list[tuple[Record | None, Tape]] = []
    if recorded.board is None:  # `of_runs` says what went wrong
        return Family(place, recorded, found)
    records = candidates(people.market, _prices(recorded), count, seed)
    if setting.clamp:
        records = [*records, *(beyond(people.market, turn) for turn in range(4))]
    for at, record_ in enumerate(records):
        neighbour = people.replaced(place, record_)
        if can_replay(recorded, neighbour):
            found.append((record_, replay(recorded, setting, neighbour, engine)))
        tell((at + 1) / len(records))
    return Family(place, recorded, found)


def _prices(tape: Tape) -> list[tuple[int, ...]]:
    """Prices at which choices should be close: those of curvature queries and of some rounds."""
    steps = [line.step for line in tape.lines]
    curved = [step.prices for step in steps if step.query in CLOSE]
    rounds = [step.prices for step in steps if step.query == "demand"]
    return curved + curved + rounds[:: max(1, len(rounds) // 4)]


def of_runs(tapes: Sequence[Tape]) -> Finding:
    """Every run finishes."""
    wrong = [tape.error for tape in tapes if tape.error]
    return fact("runs: finished", "every run ends with its seed", wrong, f"{len(tapes)} runs")


# --- what must be the same ----------------------------------------------------------------


def of_steps(group: Family) -> list[Finding]:
    """Steps, lines and messages depend on the billboard alone."""
    steps, lines, told = [], [], []
    first = group.recorded
    posted = list(first.board.lines()) if first.board is not None else []
    for record_, tape in group.replayed:
        swap = group.swap(record_)
        steps += _first(first, tape, swap, _other_step)
        if tape.board is not None and list(tape.board.lines()) != posted:
            pairs = itertools.zip_longest(posted, tape.board.lines())
            at = next(i for i, (a, b) in enumerate(pairs) if a != b)
            lines.append(f"line {at + 1} of the billboard changes {swap}")
        if tape.told != first.told:
            told.append(f"progress or warnings change {swap}")
        if tape.files != first.files:
            told.append(f"the public files change {swap}")
    changed = sum(_answered_otherwise(first, tape) for _, tape in group.replayed)
    same = (
        f"are the same in {len(group.replayed)} neighbours, {changed} of which have different "
        "exact answers"
    )
    return [
        fact(
            "replay: steps",
            "prices, weights and noise scales follow from the billboard",
            steps,
            f"{len(first.lines)} steps {same}",
            tested=changed > 0,
        ),
        fact(
            "replay: billboard",
            "the same answers and random bytes give the same billboard",
            lines,
            f"{len(posted)} lines {same}",
            tested=changed > 0,
        ),
        fact(
            "replay: messages",
            "progress, warnings and public files follow from the billboard",
            told,
            f"{len(first.told)} messages {same}",
            tested=changed > 0,
        ),
    ]


def _first(
    one: Tape, two: Tape, how: str, differs: Callable[[Line, Line], str | None]
) -> list[str]:
    """The first release in which two tapes differ, or why the second run stops."""
    for at, (a, b) in enumerate(zip(one.lines, two.lines, strict=False)):
        what = differs(a, b)
        if what is not None:
            return [f"release {at} ({a.step.query}) {what} {how}"]
    return [f"the run stops {how}: {two.error}"] if two.error else []


def _other_step(one: Line, two: Line) -> str | None:
    return "has a different step" if one.step != two.step else None


def _other_answer(one: Line, two: Line) -> str | None:
    return differ(one.exact, two.exact) if one.exact != two.exact else None


def _answered_otherwise(one: Tape, two: Tape) -> bool:
    return any(a.exact != b.exact for a, b in zip(one.lines, two.lines, strict=False))


def of_others(group: Family) -> Finding:
    """What the other agents get does not depend on the record that differs."""
    wrong, first = [], _others(group.recorded, group.place, present=True)
    winners = sum(any(shares) for shares in first)
    for record_, tape in group.replayed:
        others = _others(tape, group.place, present=record_ is not None)
        if tape.board is not None and others != first:
            wrong.append(f"others get something else {group.swap(record_)}")
    return fact(
        "replay: other agents",
        "what others get is a function of their records and the billboard",
        wrong,
        f"{len(first)} others, {winners} of them winners, get the same in "
        f"{len(group.replayed)} neighbours",
        tested=winners > 0,
    )


def _others(tape: Tape, place: int, *, present: bool) -> list[list[int]]:
    if tape.shares is None:
        return []
    shares, starts = tape.shares.tolist(), [*tape.people.starts.tolist(), len(tape.shares)]
    each = [shares[a:b] for a, b in itertools.pairwise(starts)]
    return each[:place] + each[place + present :]


def of_same_people(
    setting: Setting,
    people: People,
    engines: Sequence[str | Choice] = ("memory",),
    recorded: Tape | None = None,
) -> Finding:
    """The order of the records, the number of threads and the engine change no answer."""
    first = recorded if recorded is not None else record(setting, people)
    people, wrong = first.people, list[str]()
    trials: list[tuple[str, Tape]] = [
        ("in another order", replay(first, setting, people.shuffled(1))),
        ("in a third order", replay(first, setting, people.shuffled(2))),
        ("on two threads", replay(first, setting, people, threads=2)),
    ]
    for engine in engines:
        if engine != "memory":
            trials.append((f"with the engine {engine}", replay(first, setting, people, engine)))
    for how, tape in trials:
        wrong += _first(first, tape, how, _other_answer)
    some = sum(line.step.query != "scale" and any(line.exact) for line in first.lines)
    return fact(
        "queries: any order",
        "answers do not depend on the order, the threads or the engine",
        wrong,
        f"{len(first.lines)} answers are the same in {len(trials)} variants, {some} of them about "
        "agents who take something",
        tested=some > 0,
    )


# --- what may move ------------------------------------------------------------------------


def of_sensitivity(group: Family) -> list[Finding]:
    """Swapping one record of an agent for another moves no exact answer by more than claimed."""
    market, board = group.recorded.people.market, group.recorded.board
    if board is None:
        return []
    most: dict[Query, float] = {}
    wrong: dict[Query, list[str]] = {}
    relation, count = market.neighbours, len(group.recorded.lines)
    tapes = [(everything(market), group.recorded), *group.replayed]
    tapes = [(r, t) for r, t in tapes if len(t.lines) == count]
    exact = [[line.exact for line in tape.lines] for _, tape in tapes]
    for at, line in enumerate(group.recorded.lines):
        query = line.step.query
        claimed = closing.change(board, query)
        some = [deviation(line.step.noise), *shapes(len(line.exact))]
        own = [(scales, worst(market, query, scales, board)) for scales in dict.fromkeys(some)]
        wrong.setdefault(query, [])
        pairs = [
            (record_, answers[at])
            for (record_, tape), answers in zip(tapes, exact, strict=True)
            if tape.lines[at].step == line.step  # otherwise `of_steps` fails
        ]
        ratios: dict[tuple[int, ...], float] = {}
        for (one, a), (two, b) in itertools.combinations(pairs, 2):
            if a == b or (relation is Neighbours.ADD_REMOVE and (one is None) == (two is None)):
                continue
            move = tuple(abs(x - y) for x, y in zip(a, b, strict=True))
            if move not in ratios:
                over = (_over(move, *bound) for bound in own)
                ratios[move] = max(moved(query, move, claimed), *over)
            ratio = ratios[move]
            most[query] = max(ratio, most.get(query, 0.0))
            if ratio > 1.0:
                wrong[query].append(
                    f"release {at} moves by {ratio:.6g} times the claim between {_shown(one)} "
                    f"and {_shown(two)}"
                )
    return [
        *_of_batches(tapes),
        *(_sensitivity(query, wrong[query], most.get(query, 0.0)) for query in wrong),
    ]


def _sensitivity(query: Query, wrong: list[str], most: float) -> Finding:
    return fact(
        f"sensitivity: {query}",
        "one agent moves the answer by no more than the charge covers",
        wrong,
        f"at most {most:.1%} of the claim" if most > 0.0 else "no neighbour moves the answer",
        tested=most > 0.0,
    )


def _of_batches(tapes: list[tuple[Record | None, Tape]]) -> list[Finding]:
    """One agent moves only answers about its own batch, so the dearest batch is what it pays."""
    wrong, asked, some = [], 0, 0
    for (one, a), (two, b) in itertools.combinations(tapes, 2):
        moved_in = [
            range(x.step.batch.index - x.step.span + 1, x.step.batch.index + 1)
            for x, y in zip(a.lines, b.lines, strict=True)
            if x.step.batch is not None and x.exact != y.exact
        ]
        asked += any(line.step.batch is not None for line in a.lines)
        some += len(moved_in) > 0
        if moved_in and not set.intersection(*map(set, moved_in)):
            wrong.append(f"{_shown(one)} and {_shown(two)} differ in two batches")
    if not asked:
        return []
    return [
        fact(
            "sensitivity: batches",
            "one agent moves only answers about its own batch",
            wrong,
            f"{some} pairs of records differ, each in one batch",
            tested=some > 0,
        )
    ]


def moved(query: Query, move: Sequence[int], claimed: Change) -> float:
    """How far an answer moved, as a fraction of the claim; above 1 if the claim is too small.

    A claim is about noise of any shape. We try some shapes that do not depend on the move, and
    noise that is small only where the answer moved: on all of it, or on one number.
    """
    where = [j for j, d in enumerate(move) if d]
    if query not in WHOLE and (len(where) > claimed.count or max(move) > claimed.most):
        return math.inf if len(where) > claimed.count else max(move) / claimed.most
    some = shapes(len(move))
    if len(move) > 1:
        some += [
            tuple(1.0 if j in own else 1e6 for j in range(len(move))) for own in (where, where[:1])
        ]
    return max(_over(move, scales, Fraction(claimed.worst(scales))) for scales in some)


def _over(move: Sequence[int], scales: Sequence[float], most: Fraction) -> float:
    """How far a move goes, in these scales, as a fraction of the most that is claimed.

    Above 1 if it goes further, even by less than a double can resolve.
    """
    each = scales if len(scales) > 1 else [*scales] * len(move)
    pairs = [(d, s) for d, s in zip(move, each, strict=True) if d]
    rough = math.sqrt(math.fsum((d / s) ** 2 for d, s in pairs) / most)
    if abs(rough - 1.0) > 1e-9:
        return rough
    square = sum((Fraction(d) / Fraction(s)) ** 2 for d, s in pairs)
    return math.nextafter(1.0, 2.0) if square > most else min(rough, 1.0)


def _shown(record_: Record | None) -> str:
    if record_ is None:
        return "nobody"
    value, amounts = record_[0]
    more = f" and {len(record_) - 1} more" if len(record_) > 1 else ""
    some = ", ".join(f"{a:.4g}" for a in amounts[:4]) + (", ..." if len(amounts) > 4 else "")
    return f"an agent of value {value:.4g} for ({some}){more}"
