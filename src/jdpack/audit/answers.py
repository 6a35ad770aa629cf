"""Private: compares what recorded runs answered, gave and drew with the reference.

`reference` does the audit's own arithmetic. This module compares each run's exact answers, what
every agent got, and where the coins came from with what they should be.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

import numpy as np

from jdpack.agent.allocate import allocate
from jdpack.agent.options import Request
from jdpack.audit.epsilon_bounds import scipy
from jdpack.audit.findings import Finding, differ, fact, statistical
from jdpack.audit.people import group_of
from jdpack.audit.recording import SEED_BYTES, Tape
from jdpack.audit.reference import COINS, CountedRounds, Given, reference, wrong_grid
from jdpack.market.grid import SHARE


def of_answers(tapes: Iterable[Tape]) -> Finding:
    """Every exact answer, to any query, follows from the agents' own rule."""
    wrong: list[str] = []
    checked = some = 0
    for tape in tapes:
        wrong += wrong_grid(tape.people.market)
        for at, line in enumerate(tape.lines):
            query = line.step.query
            checked += 1
            some += query != "scale" and any(line.true)
            if line.exact != line.true:
                differs = differ(line.exact, line.true)
                wrong.append(f"release {at} ({query}) {differs} by the reference")
    return fact(
        "queries: exact",
        "exact answers are sums of what agents choose",
        wrong,
        f"{checked} answers match the reference, {some} of them about agents who take something",
        tested=some > 0,
    )


def given(tape: Tape) -> Given:
    """What every agent should have got in a finished run."""
    board = tape.board
    assert board is not None and board.seed is not None and board.certificate is not None
    rounds = CountedRounds(tuple(board.rounds), board.header.order)
    return reference(tape.people).given(rounds, board.seed.seed, board.certificate.factors)


def of_allocation(tapes: Iterable[Tape], *, repaired: bool | None = None) -> Finding:
    """Every agent gets what its own record and the billboard say, unless that does not fit.

    If it does not fit, and only then, the run drops as few agents as needed, chosen by their coins.

    Args:
        tapes: the runs.
        repaired: True if every run should need a repair, False if none should; None if either is
            fine.
    """
    wrong, winners, dropped, agents, taking, nearest = list[str](), 0, 0, 0, 0, 0.0
    for tape in tapes:
        if tape.board is None or tape.shares is None or tape.private is None:
            continue
        own, got, sums = given(tape), tape.shares.tolist(), tape.private
        limits = [supply * SHARE for supply in tape.people.market.supply_codes]
        agents, winners = agents + len(tape.people.ids), winners + own.winners
        dropped += own.before - own.winners
        taking += own.taking
        nearest = max(nearest, _fullest(own.loads, limits))
        wanted = own.shares.tolist()
        if got != wanted:
            rows = itertools.zip_longest(got, wanted)
            row = next(i for i, (a, b) in enumerate(rows) if a != b)
            ids = tape.people.arrays["ids"]
            who = repr(ids[row]) if row < len(ids) else "nobody"
            a, b = (side[row] if row < len(side) else None for side in (got, wanted))
            wrong.append(f"agent {who} gets {a} of {SHARE}, but its own function says {b}")
        for what, theirs, ours in [
            ("loads", sums.loads, own.loads),
            ("winners", sums.winners, own.winners),
            ("sum of shares", sums.shares, sum(wanted)),
            ("value", sums.value, own.value),
            ("dropped", sums.dropped, own.before - own.winners),
            ("coin to drop from", sums.drop_from, own.drop_from),
        ]:
            if theirs != ours:
                wrong.append(f"the curator's {what}: {theirs}, but {ours} by the reference")
        if own.drop_from == COINS:
            wrong += _other_outcomes(tape, own)
        never = tape.people.market.excess_probability == 0.0
        if never and (most := _fullest(sums.loads, limits)) > 1.0:
            wrong.append(f"a supply is exceeded: {most:.6g} of it is given")
        if repaired is not None and (own.drop_from < COINS) != repaired:
            wrong.append(f"the run {'needed no' if repaired else 'needed a'} repair")
    return fact(
        "allocation: own function",
        "each agent gets what its own record and the billboard say, and nothing that fits is cut",
        wrong,
        f"of {agents} agents {taking} take something in some round, {winners} win and {dropped} "
        f"are dropped; the largest load is {nearest:.4%} of its supply",
        tested=dropped > 0 if repaired else taking > 0,
    )


def _fullest(loads: Sequence[int], limits: Sequence[int]) -> float:
    """The largest load, as a part of its supply; above 1 if and only if it is more than that."""
    parts = [Fraction(load, limit) for load, limit in zip(loads, limits, strict=True)]
    return max(float(max(parts)), math.nextafter(1.0, 2.0) * (max(parts) > 1))


def _other_outcomes(tape: Tape, own: Given, sample: int = 3) -> Iterator[str]:
    """Agents, winners first, whose own function disagrees with the reference."""
    assert tape.board is not None
    people, starts = tape.people, tape.people.starts.tolist()
    count = len(people.market.declared)
    winners = np.flatnonzero(np.maximum.reduceat(own.shares, starts)).tolist()
    for i in [*winners[:sample], *range(len(starts))][:sample]:
        record, id = people.agents[i], people.ids[i]
        group = group_of(people.market, record)
        if people.market.requests > 1:
            named = itertools.groupby(
                zip(people.names_of(i), record, strict=True), lambda pair: pair[0]
            )
            requests = []
            for name, rows_of in named:
                options = [option for _, option in rows_of]
                amounts = [list(amounts[:count]) for _, amounts in options]
                requests.append(Request(name, [value for value, _ in options], amounts))
            outcomes = allocate(tape.board, requests=requests, agent=id, group=group)
            given = [share for outcome in outcomes for share in outcome.given]
        else:
            outcome = allocate(
                tape.board,
                value=[value for value, _ in record],
                demand=[amounts[:count] for _, amounts in record],
                agent=id,
                group=group,
            )
            given = list(outcome.given)
        rows = own.shares[starts[i] : starts[i] + len(record)]
        if given != [int(share) / SHARE for share in rows]:
            yield f"agent {id!r} computes {given} for itself"


def of_statements(tapes: Iterable[Tape]) -> list[Finding]:
    """What certificates say is true as often as they say, in runs with their own noise.

    A run's private sums are known to be right (`of_allocation`), so the truth is known.
    """
    failed, expected, some = Counter[str](), defaultdict[str, float](float), 0
    for tape in tapes:
        board, sums = tape.board, tape.private
        if board is None or board.certificate is None or sums is None or tape.forced:
            continue
        market, says = tape.people.market, board.certificate
        some += 1
        pairs = list(zip(sums.loads, market.supply_codes, strict=True))
        loads = [Fraction(load, supply * SHARE) for load, supply in pairs]
        value = sums.value * market.value_step
        never, beta = market.excess_probability == 0.0, tape.budget.beta
        for what, p, wrong in [
            ("loads", beta, any(map(operator.gt, loads, says.load_at_most))),
            ("nobody is dropped", beta * never, never and sums.dropped > 0),
            ("surely", 1e-9, any(map(operator.gt, loads, says.load_surely or loads))),
            ("welfare", says.value_beta + beta, value < says.welfare_at_least),
            ("optimum", says.value_beta + beta, value > (says.optimum_at_most or math.inf)),
        ]:
            failed[what] += wrong
            expected[what] += p
    return [
        statistical(
            f"certificate: {what}",
            f"fails in at most {most:.2g} of {some} runs on average",
            f"failed in {failed[what]}",
            float(scipy("stats").poisson.sf(failed[what] - 1, most)) if failed[what] else 1.0,
            tested=some > 0,
        )
        for what, most in expected.items()
    ]


def of_seeds(tapes: Iterable[Tape]) -> list[Finding]:
    """Each run draws one seed from the operating system before it touches the first record."""
    ended = [tape for tape in tapes if tape.board is not None and tape.board.seed is not None]
    seeds = [tape.board.seed.seed for tape in ended if tape.board and tape.board.seed]
    again = [
        f"two runs have the seed {one.hex()}"
        for one, two in itertools.pairwise(sorted(seeds))
        if one == two
    ]
    own, order, noted = list[str](), list[str](), 0
    for seed, tape in zip(seeds, ended, strict=True):
        own += _wrong_seed(seed, tape)
        if "records" in tape.events:
            noted += 1
            first = tape.events.index("records")
            if "bytes" not in tape.events[:first] or "bytes" in tape.events[first:]:
                order.append("random bytes were drawn after a record was touched")
            if "noise" in tape.events[:first]:
                order.append("noise was drawn before a record was touched")
    return [
        fact(
            "coins: fresh",
            "every run has its own seed",
            again,
            f"{len(seeds)} seeds",
            tested=len(seeds) > 1,
        ),
        fact(
            "coins: source",
            "a run draws one seed from the system's randomness, and commits to it",
            own,
            f"{len(seeds)} seeds",
            tested=len(seeds) > 0,
        ),
        fact(
            "coins: order",
            "the seed is drawn before the first record is touched, and no random bytes after",
            order,
            f"checked in {noted} runs",
            tested=noted > 0,
        ),
    ]


def _wrong_seed(seed: bytes, tape: Tape) -> Sequence[str]:
    assert tape.board is not None
    drawn = tape.random_bytes
    if drawn != [seed]:
        if seed in drawn:
            return [f"the run drew {len(drawn)} times from the system's randomness, not once"]
        return [f"the seed {seed.hex()} was not drawn from the system's randomness"]
    commitment = hashlib.sha256(b"jdpack seed " + seed).hexdigest()
    if len(seed) != SEED_BYTES or tape.board.header.commitment != commitment:
        return ["the header does not commit to the seed"]
    return []
