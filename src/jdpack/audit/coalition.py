"""Private: the attack by all agents except one.

They know every other record, and that the last agent's record is one of two. They see the
billboard (prices, weights, answers) and what they get themselves, which follows from the billboard
and their records (replay tests this). By Neyman and Pearson, no test is better than the likelihood
ratio of the answers. An answer that equals an exact one at a large scale is beyond chance, so it
counts as certainty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jdpack.audit.epsilon_bounds import (
    LowerBound,
    lower_bound,
    most_success,
    most_success_gaussian,
    scipy,
    trials_for,
)
from jdpack.audit.findings import ALARM, Finding, fact, statistical
from jdpack.audit.people import People, everything, nothing
from jdpack.audit.recording import Setting, Tape, alike, record, true_answers
from jdpack.billboard.board import Billboard
from jdpack.market.market import Market, Neighbours
from jdpack.privacy.noise import Noise, TruncatedLaplace

LITTLE = 0.05
"""Hardly anyone can tell two worlds apart that use less of the budget than this."""

_SURE = 1e6
_NEVER = 1e-4  # counts as certainty: answers that are exactly right by chance less often than this


class Evidence(NamedTuple):
    """What a coalition learns from a run."""

    log_ratio: float
    """The log-likelihood of the second world minus that of the first."""
    rho: float
    """The zCDP cost of all releases between these two worlds; never above the budget's rho."""


class Coalition:
    """Two worlds that differ in one record."""

    def __init__(self, first: People, second: People) -> None:
        self.worlds = first, second

    @classmethod
    def against(cls, people: People, setting: Setting) -> Coalition:
        """Two worlds: the agent in the middle wants nothing (or is absent), or it wants much.

        A trial run picks the amount that is easiest to tell from nothing: everything, if its price
        is ever within reach.
        """
        place, market = len(people.ids) // 2, people.market
        absent = market.neighbours is Neighbours.ADD_REMOVE
        first = people.replaced(place, None if absent else nothing(market))
        board = record(setting, first).board
        (value, amounts), *_ = everything(market)
        parts = [1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01] if board is not None else [1.0]
        pairs = [
            cls(first, people.replaced(place, ((value, tuple(part * a for a in amounts)),)))
            for part in parts
        ]
        if board is None:
            return pairs[0]
        return max(pairs, key=lambda pair: pair.evidence(board).rho)

    def evidence(self, board: Billboard) -> Evidence:
        """How strongly a billboard points to the second world."""
        total, rho = 0.0, 0.0
        worlds = (true_answers(people, board) for people in self.worlds)
        for line, one, two in zip(board.releases, *worlds, strict=True):
            noise = line.step.noise
            for scale, places in alike(noise, len(one)):
                for j in places:
                    answer, a, b = line.answer[j], one[j], two[j]
                    if a != b:
                        total += _log(noise, scale, answer - b) - _log(noise, scale, answer - a)
                        rho += 0.5 * ((a - b) / scale) ** 2
        return Evidence(total, rho)


def _log(noise: Noise, scale: float, z: float) -> float:
    """The log of the mass of noise of this scale, up to a constant."""
    if z == 0 and scale > 1.0 / _NEVER:
        return _SURE
    if isinstance(noise, TruncatedLaplace):
        return -abs(z) / scale if abs(z) <= noise.bound else -_SURE
    return -0.5 * (z / scale) ** 2


def attack(
    setting: Setting,
    coalition: Coalition,
    trials: int,
    confidence: float,
    tell: Callable[[float], None] = lambda done: None,
) -> tuple[list[Finding], LowerBound | None, list[Tape]]:
    """Play each world `trials` times, in unseeded runs; the runs are returned too."""
    scores: tuple[list[float], list[float]] = ([], [])
    tapes: list[Tape] = []
    used: list[float] = []
    for trial in range(trials):
        for world, people in enumerate(coalition.worlds):
            tape = record(setting, people)
            tapes.append(tape)
            if tape.board is not None:
                evidence = coalition.evidence(tape.board)
                scores[world].append(evidence.log_ratio)
                used.append(evidence.rho / tape.budget.rho)
        tell((trial + 1) / trials)
    if min(map(len, scores)) < max(4, trials):
        return [], None, tapes
    mean, most = float(np.mean(used)), max(used)
    found = judge(setting, coalition.worlds[0].market, scores, confidence)
    if mean < LITTLE:
        few = f"; the two worlds use only {mean:.1%} of the budget"
        found = [replace(one, seen=one.seen + few, tested=False) for one in found]
    wrong = [f"{most:.6g} times the budget in one run"] if most > 1.0 else []
    found.append(
        fact(
            "coalition: loss",
            "no run costs more than its budget between the two worlds",
            wrong,
            f"at most {most:.1%} of the budget in any run",
            tested=most >= LITTLE,
        )
    )
    return found, lower_bound(*scores, setting.delta, confidence), tapes


def right_at_most(setting: Setting, market: Market) -> float:
    """By theory, no test of two equally likely neighbours is right more often."""
    limit = most_success(setting.epsilon, setting.delta)
    if setting.policy.truncated:
        return limit
    return min(limit, most_success_gaussian(setting.budget(market).rho))


def judge(
    setting: Setting,
    market: Market,
    scores: tuple[list[float], list[float]],
    confidence: float,
) -> list[Finding]:
    """Whether the attack proves more than the claimed epsilon, or is right too often."""
    sure = lower_bound(*scores, setting.delta, 1.0 - ALARM / 4)
    shown = lower_bound(*scores, setting.delta, confidence)
    needed = trials_for(setting.epsilon, setting.delta, 1.0 - ALARM / 4)
    enough = needed is not None and len(scores[0]) >= needed
    more = f"proving more than {setting.epsilon:g} takes at least {needed or 10**9:,} trials"
    found = [
        Finding(
            "coalition: epsilon",
            f"at most {setting.epsilon:g}",
            f"at least {shown.epsilon:.3g} with confidence {confidence:.0%}"
            + ("" if enough else f"; {more}"),
            sure.epsilon <= setting.epsilon,
            tested=enough,
        )
    ]
    right = int(np.count_nonzero(np.array(scores[1]) > 0.0))
    right += int(np.count_nonzero(np.array(scores[0]) <= 0.0))
    count = 2 * len(scores[0])
    limit = right_at_most(setting, market)
    found.append(
        statistical(
            "coalition: success",
            f"right in at most {limit:.2%} of trials",
            f"right in {right / count:.2%} of {count} trials",
            float(scipy("stats").binomtest(right, count, limit, alternative="greater").pvalue),
            least_p=limit**count,
        )
    )
    return found
