"""Private: the distinguishing game, for any mechanism.

Two samplers give what an attacker sees in two neighbouring worlds, and a score says how much a
view speaks for the second one. What the attack proves about epsilon is returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from jdpack.audit.lower_bound import LowerBound, lower_bound

View = TypeVar("View")


def distinguish(
    first: Callable[[], View],
    second: Callable[[], View],
    score: Callable[[View], float],
    trials: int,
    delta: float = 0.0,
    confidence: float = 0.95,
    progress: Callable[[float], None] | None = None,
) -> LowerBound:
    """Play the game `trials` times in each world.

    Args:
        first, second: run the mechanism on one of two neighbouring data sets, with fresh
            randomness, and return what the attacker sees.
        score: how much a view speaks for the second world; best, a log-likelihood ratio.
        trials: of each world; half of them choose the event, the other half measure it.
        delta: of the guarantee that is tested.
        confidence: that the bounds are no larger than the truth.
        progress: called with the share that is done.
    """
    scores: tuple[list[float], list[float]] = ([], [])
    for trial in range(trials):
        for world, sampler in enumerate((first, second)):
            scores[world].append(float(score(sampler())))
        if progress is not None:
            progress((trial + 1) / trials)
    return lower_bound(*scores, delta=delta, confidence=confidence)
