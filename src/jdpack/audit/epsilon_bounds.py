"""Private: lower bounds on epsilon at a given confidence, from how often an attack is right.

An (epsilon, delta)-DP mechanism has P(S) <= e^epsilon Q(S) + delta for every event S and both
orders of two neighbours. So an event seen often in one world and rarely in the other refutes small
epsilons: epsilon >= ln((P(S) - delta) / Q(S)), with P(S) bounded from below and Q(S) from above by
exact binomial intervals (Clopper & Pearson 1934). The event is a threshold on a score. It is chosen
on one half of the trials and measured on the other half, so choosing costs no confidence.

Formal guarantees. If the trials are independent, each of `epsilon` and `mu` of a `LowerBound` is
above the truth with probability at most 1 - confidence. `mu` and what follows from it assume a
mechanism that is as hard to attack as a Gaussian of sensitivity mu and deviation 1 (mu-GDP, Dong,
Roth & Su 2022). Nothing here checks that assumption. With it, few trials say much more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from jdpack.errors import JdpackError

Floats = NDArray[np.float64]

_THRESHOLDS = 200


@dataclass(frozen=True)
class LowerBound:
    """What an attack proves."""

    epsilon: float
    """The mechanism is not (e, delta)-DP for any e below this, with the given confidence."""
    delta: float
    confidence: float
    trials: int
    """Per world, including the half that chose the event."""
    success: float
    """How often the best event of the first half told the worlds of the second half apart."""
    measured: int
    """The number of trials behind `success`, of both worlds together."""
    mu: float
    """The mechanism is not mu-GDP for any smaller mu, **if** it is like a Gaussian at all."""
    epsilon_if_gaussian: float
    """The smallest epsilon of a mu-GDP mechanism at this delta."""
    at_best: float
    """What `epsilon` would be if every trial were right: these trials cannot prove more."""


def lower_bound(
    first: Sequence[float], second: Sequence[float], delta: float, confidence: float = 0.95
) -> LowerBound:
    """What the scores of trials in two worlds prove; larger scores point to the second world."""
    if len(first) != len(second) or len(first) < 4:
        raise JdpackError(
            f"{len(first)} and {len(second)} trials prove nothing",
            "run at least 4, and the same number in both worlds",
        )
    if not 0.0 < confidence < 1.0 or not 0.0 <= delta < 1.0:
        raise JdpackError(f"confidence {confidence!r} and delta {delta!r} must be in [0, 1)")
    half = len(first) // 2
    chosen = np.array(first[:half], float), np.array(second[:half], float)
    kept = np.array(first[half:], float), np.array(second[half:], float)
    miss = (1.0 - confidence) / 2.0  # both ends of a ratio are bounded

    def best(worth: Any) -> float:
        event = max(_events(*chosen), key=lambda event: worth(*_ends(event, *chosen, miss)))
        return float(worth(*_ends(event, *kept, miss)))

    def epsilon(often: float, rarely: float) -> float:
        return math.log((often - delta) / rarely) if often > delta else 0.0

    def mu(often: float, rarely: float) -> float:
        return float(_special().ndtri(often) - _special().ndtri(rarely))

    least = max(0.0, best(mu))
    event = max(_events(*chosen), key=lambda event: _right(event, *chosen))
    return LowerBound(
        epsilon=max(0.0, best(epsilon)),
        delta=delta,
        confidence=confidence,
        trials=len(first),
        success=_right(event, *kept),
        measured=2 * (len(first) - half),
        mu=least,
        epsilon_if_gaussian=gaussian_epsilon(least, delta),
        at_best=at_best(len(first), delta, confidence),
    )


def at_best(trials: int, delta: float, confidence: float) -> float:
    """The largest epsilon that `trials` trials of each world can prove, if all are right."""
    kept, miss = trials - trials // 2, (1.0 - confidence) / 2.0
    often, rarely = at_least(kept, kept, miss), at_most(0, kept, miss)
    return max(0.0, math.log((often - delta) / rarely)) if often > delta else 0.0


def trials_for(epsilon: float, delta: float, confidence: float) -> int | None:
    """How few trials of each world can prove more than epsilon; None if over a billion."""
    low, high = 0, 1
    while at_best(high, delta, confidence) <= epsilon:
        low, high = high, 2 * high
        if high > 10**9:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if at_best(middle, delta, confidence) <= epsilon:
            low = middle
        else:
            high = middle
    return high


Event = tuple[float, bool, bool]
"""A threshold, whether scores above it count (else below), whether the second world has more."""


def _events(first: Floats, second: Floats) -> list[Event]:
    scores = np.unique(np.concatenate([first, second]))
    gaps = np.diff(scores)
    cuts = scores[:-1] + gaps / 2.0 if len(gaps) else scores
    if len(cuts) > _THRESHOLDS:  # keep evenly spread ones, and the widest gaps
        spread = np.linspace(0, len(cuts) - 1, _THRESHOLDS // 2).astype(np.int64)
        widest = np.argsort(gaps)[-_THRESHOLDS // 2 :]
        cuts = cuts[np.union1d(spread, widest)]
    sides = [(True, True), (False, False), (True, False), (False, True)]
    return [(float(cut), above, more) for cut in cuts for above, more in sides]


def _counts(event: Event, first: Floats, second: Floats) -> tuple[int, int]:
    """How often the event is seen where it should be, and where it should not."""
    cut, above, more_in_second = event
    one, two = (int(np.count_nonzero(s >= cut if above else s < cut)) for s in (first, second))
    return (two, one) if more_in_second else (one, two)


def _right(event: Event, first: Floats, second: Floats) -> float:
    often, rarely = _counts(event, first, second)
    return (often + len(first) - rarely) / (2 * len(first))


def _ends(event: Event, first: Floats, second: Floats, miss: float) -> tuple[float, float]:
    often, rarely = _counts(event, first, second)
    return at_least(often, len(first), miss), at_most(rarely, len(first), miss)


@cache
def at_least(hits: int, trials: int, miss: float) -> float:
    """A lower confidence bound on a probability; it fails with probability `miss`."""
    return 0.0 if hits == 0 else float(_special().betaincinv(hits, trials - hits + 1, miss))


@cache
def at_most(hits: int, trials: int, miss: float) -> float:
    """An upper confidence bound on a probability; it fails with probability `miss`."""
    return 1.0 - at_least(trials - hits, trials, miss)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon at which mu-GDP is (epsilon, delta)-DP; inf if delta is 0.

    Balle & Wang 2018, Theorem 8: delta = Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu).
    """
    if mu <= 0.0:
        return 0.0
    if delta <= 0.0:
        return math.inf

    def more(e: float) -> bool:
        one = float(_special().log_ndtr(mu / 2.0 - e / mu))
        two = e + float(_special().log_ndtr(-mu / 2.0 - e / mu))
        return two < one and one + math.log(-math.expm1(two - one)) > math.log(delta)

    if not more(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while more(high):
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if more(middle) else (low, middle)
    return low


def most_success(epsilon: float, delta: float) -> float:
    """Under (epsilon, delta)-DP, no test of two equally likely neighbours is right more often."""
    if epsilon == math.inf:
        return 1.0
    return 1.0 - (1.0 - delta) / (math.exp(epsilon) + 1.0)


def most_success_gaussian(rho: float) -> float:
    """The same for Gaussian noise of total cost rho: Phi(mu / 2), mu = sqrt(2 rho)."""
    return 0.5 * (1.0 + math.erf(math.sqrt(rho) / 2.0))


def _special() -> Any:
    return scipy("special")


def scipy(part: str) -> Any:
    """A module of SciPy, which is an optional dependency."""
    import importlib

    try:
        return importlib.import_module(f"scipy.{part}")
    except ImportError:
        raise JdpackError(
            "the audit needs SciPy, which is not installed", "pip install 'jdpack[audit]'"
        ) from None


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
        score: how strongly a view points to the second world. A log-likelihood ratio is best.
        trials: per world; half of them choose the event, the other half measure it.
        delta: of the guarantee under test.
        confidence: that the bounds are no larger than the truth.
        progress: called with the fraction done.
    """
    scores: tuple[list[float], list[float]] = ([], [])
    for trial in range(trials):
        for world, sampler in enumerate((first, second)):
            scores[world].append(float(score(sampler())))
        if progress is not None:
            progress((trial + 1) / trials)
    return lower_bound(*scores, delta=delta, confidence=confidence)
