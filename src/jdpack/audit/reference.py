"""Private: exact answers and allocations once more, from records and billboard alone.

Each agent's choice by the agent's own rule, summed in plain integers, with nothing of the engines:
what the curator's queries should have said, and what every agent should have got.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from jdpack.allocate import allocate
from jdpack.audit.findings import Finding, differ, fact
from jdpack.audit.people import VALUE_UNITS, People
from jdpack.audit.tape import Tape
from jdpack.batch import turn
from jdpack.billboard import SHARE, Billboard, Step
from jdpack.coins import COIN_BITS, coin

Rows = NDArray[np.int64]
_NOBODY = 2**COIN_BITS


def of_answers(tapes: Iterable[Tape]) -> Finding:
    """All answers about demand, value and grants are what the agents' own rule says."""
    wrong: list[str] = []
    checked = some = 0
    for tape in tapes:
        if tape.board is None:
            continue
        averaged = None
        for at, (line, release) in enumerate(zip(tape.lines, tape.board.releases, strict=False)):
            query = line.step.query
            if query in ("welfare", "granted") and averaged is None:
                averaged = shares(tape.people, tape.board)
            own = _answer(tape.people, tape.board, release.step, averaged)
            if own is not None:
                checked += 1
                some += query != "scale" and any(own)
                if own != line.exact:
                    wrong.append(f"release {at} ({query}) {differ(line.exact, own)} by the agents")
    return fact(
        "queries: exact",
        "exact answers are sums of what agents choose",
        wrong,
        f"{checked} answers are, {some} of them about agents who take something",
        tested=some > 0,
    )


def of_allocation(tape: Tape, sample: int = 40) -> Finding:
    """What the curator gives is each agent's own function of its record and the billboard."""
    wrong, given = [], 0
    people, board = tape.people, tape.board
    if board is not None and tape.shares is not None:
        for i in _sample(tape, sample):
            record = people.agents[i]
            # Tables leave an agent with a single option a number; `allocate` takes both.
            outcome = allocate(
                board,
                value=[value for value, _ in record],
                demand=[amounts for _, amounts in record],
                agent=people.ids[i],
            )
            first = int(people.starts[i])
            got = (tape.shares[first : first + len(record)] / SHARE).tolist()
            given += sum(got) > 0.0
            if got != list(outcome.given):
                wrong.append(f"agent {people.ids[i]!r} gets {got}, and {outcome.given} by its own")
    return fact(
        "allocation: own function",
        "each agent gets what its own record and the billboard say",
        wrong,
        f"so it is, of {given} winners among those asked",
        tested=given > 0,
    )


def _sample(tape: Tape, count: int) -> list[int]:
    """Some agents, and as many of those who get something."""
    assert tape.shares is not None
    total = np.add.reduceat(tape.shares.astype(np.int64), tape.people.starts)
    everyone, winners = list(range(len(total))), np.flatnonzero(total).tolist()
    some = {i for group in (everyone, winners) for i in group[:: max(1, 2 * len(group) // count)]}
    return sorted(some)


def taken(people: People, prices: tuple[int, ...]) -> Rows:
    """1 for each row that its agent takes at these prices."""
    values, demands = people.codes
    # Exact below 2^53; beyond, nobody can pay (`jdpack.market`).
    cost = (demands.astype(np.float64) * np.array(prices, dtype=np.float64)).sum(axis=1)
    surplus = values.astype(np.float64) * VALUE_UNITS - cost
    starts = people.starts
    best = np.maximum.reduceat(surplus, starts)
    owner = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(values))))
    ties = np.flatnonzero((surplus == best[owner]) & (best[owner] >= 0.0))
    _, first = np.unique(owner[ties], return_index=True)
    chosen = np.zeros(len(values), np.int64)
    chosen[ties[first]] = 1
    return chosen


def shares(people: People, board: Billboard) -> Rows:
    """The averaged share of each row before scaling and coins, in units of 1/SHARE."""
    won = np.zeros(len(people.codes[0]), np.int64)
    for step in board.rounds:
        won += step.weight * _asked(people, board, step) * taken(people, step.prices)
    return np.array([int(w) * SHARE // board.weight for w in won], np.int64)


def _asked(people: People, board: Billboard, step: Step) -> Rows:
    """1 for each row whose agent is asked in a round."""
    if step.batch is None:
        return np.ones(len(people.codes[0]), np.int64)
    count, index, key = step.batch.count, step.batch.index, board.header.order
    turns = [turn(coin(key, name), count) == index for name in people.arrays["ids"]]
    return np.array(turns, np.int64)


def _granted(people: People, board: Billboard, averaged: Rows) -> Rows:
    """1 for each row that coins grant: the options of an agent stand on [0, 1) in turn."""
    assert board.seed is not None
    grain, found = _NOBODY // SHARE, np.zeros(len(averaged), np.int64)
    for name, record, first in zip(people.ids, people.agents, people.starts.tolist(), strict=True):
        left = coin(board.seed.seed, name)
        for row in range(first, first + len(record)):
            width = int(averaged[row]) * grain
            if left < width:
                found[row] = 1
                break
            left -= width
    return found


def _answer(
    people: People, board: Billboard, step: Step, averaged: Rows | None
) -> tuple[int, ...] | None:
    values, demands = people.codes
    if step.query in ("demand", "scale", "value"):
        rows = taken(people, step.prices) * _asked(people, board, step)
        if step.query == "value":
            return (int((rows * values).sum()),)
        demand = tuple(int(d) for d in (rows[:, None] * demands).sum(axis=0))
        if step.query == "demand":
            return demand
        supply = people.market.supply_code
        return (max(supply, *(abs(supply - d) for d in demand)),)
    if averaged is not None and step.query == "welfare":
        each = zip(values.tolist(), averaged.tolist(), strict=True)
        return (sum(value * share // SHARE for value, share in each),)
    if averaged is not None and step.query == "granted":
        granted = _granted(people, board, averaged)
        return tuple(int(d) for d in (granted[:, None] * demands).sum(axis=0))
    return None
