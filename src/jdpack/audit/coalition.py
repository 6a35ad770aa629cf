"""Private: the attack of all agents but one.

They know every record but the last agent's, of which they know that it is one of two. They see the
billboard: prices, weights, answers; and what they get themselves, which follows from these (that it
does is tested by replay). By Neyman and Pearson no test of the two is better than the likelihood of
the answers. An answer that hits an exact one is beyond any noise, and counts for as much.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jdpack import release
from jdpack.audit.bound import LowerBound, lower_bound, most_success, most_success_gaussian, scipy
from jdpack.audit.findings import ALARM, Finding, odds
from jdpack.audit.people import People, everything, nothing
from jdpack.audit.tape import Setting, Tape, record
from jdpack.billboard import Billboard
from jdpack.encoding import encode
from jdpack.engines.memory import MemoryEngine
from jdpack.market import Neighbours
from jdpack.noise import Gaussian, Noise, TruncatedLaplace
from jdpack.tables import array_pieces

_SURE = 1e6
_NEVER = 1e-4  # an answer is exactly right by chance less often than this


class Coalition:
    """What follows from each of two guesses at one record."""

    def __init__(self, first: People, second: People) -> None:
        self.worlds = first, second
        self._engines = [_engine(people) for people in self.worlds]

    @classmethod
    def against(cls, people: People, place: int | None = None) -> Coalition:
        """Does the agent at `place` want nothing, or everything?"""
        place = len(people.ids) // 2 if place is None else place
        absent = people.market.neighbours is Neighbours.ADD_REMOVE
        return cls(
            people.replaced(place, None if absent else nothing(people.market)),
            people.replaced(place, everything(people.market)),
        )

    def evidence(self, board: Billboard) -> float:
        """The log-likelihood of the second world minus that of the first."""
        total = 0.0
        for line in board.releases:
            one, two = (
                release.statistic(line.step, engine, board, board.seed) for engine in self._engines
            )
            for answer, a, b in zip(line.answer, one, two, strict=True):
                if a != b:
                    total += _log(line.step.noise, answer - b) - _log(line.step.noise, answer - a)
        return total


def _engine(people: People) -> MemoryEngine:
    return MemoryEngine(encode(people.market, array_pieces(people.market, **people.arrays)), 1)


def _log(noise: Noise, z: float) -> float:
    """The logarithm of the noise's mass, up to a constant."""
    assert isinstance(noise, Gaussian | TruncatedLaplace)
    if z == 0 and noise.scale > 1.0 / _NEVER:
        return _SURE
    if isinstance(noise, Gaussian):
        return -0.5 * (z / noise.scale) ** 2
    return -abs(z) / noise.scale if abs(z) <= noise.bound else -_SURE


def attack(
    setting: Setting,
    coalition: Coalition,
    trials: int,
    confidence: float,
    tell: Callable[[float], None] = lambda done: None,
) -> tuple[list[Finding], LowerBound | None, list[Tape]]:
    """Play the two worlds `trials` times each, in runs that nothing seeds; also give the runs."""
    scores: tuple[list[float], list[float]] = ([], [])
    tapes: list[Tape] = []
    for trial in range(trials):
        for world, people in enumerate(coalition.worlds):
            tape = record(setting, people)
            tapes.append(tape)
            if tape.board is not None:
                scores[world].append(coalition.evidence(tape.board))
        tell((trial + 1) / trials)
    if min(map(len, scores)) < max(4, trials):
        return [], None, tapes
    return (
        judge(setting, scores, confidence),
        lower_bound(*scores, setting.delta, confidence),
        tapes,
    )


def judge(
    setting: Setting, scores: tuple[list[float], list[float]], confidence: float
) -> list[Finding]:
    """Whether the attack proves more than is claimed, or is right too often."""
    sure = lower_bound(*scores, setting.delta, 1.0 - ALARM / 4)
    shown = lower_bound(*scores, setting.delta, confidence)
    found = [
        Finding(
            "coalition: epsilon",
            f"at most {setting.epsilon:g}",
            f"at least {shown.epsilon:.3g} with confidence {confidence:.0%}",
            sure.epsilon <= setting.epsilon,
        )
    ]
    right = int(np.count_nonzero(np.array(scores[1]) > 0.0))
    right += int(np.count_nonzero(np.array(scores[0]) <= 0.0))
    count = 2 * len(scores[0])
    limit = most_success(setting.epsilon, setting.delta)
    if not setting.policy.truncated:
        limit = min(limit, most_success_gaussian(setting.budget.rho))
    found.append(
        odds(
            "coalition: success",
            f"right in at most {limit:.2%} of trials",
            f"right in {right / count:.2%} of {count} trials",
            float(scipy("stats").binomtest(right, count, limit, alternative="greater").pvalue),
        )
    )
    return found
