"""Public: what the policies with a fixed number of equal rounds share.

mwu-fixed, dual-gd and mirror-descent differ in how a price follows its load. The rest is the same.
There are T rounds, known beforehand. Each round is one release of demand, always with the same
noise, so that T of them cost what the policy may spend. The weights are equal, so everybody gets
the average of what they took. Weights and scales are fixed, so the certificate may use the tail of
the normal distribution.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from jdpack.billboard.lines import Release, Step
from jdpack.common import checks
from jdpack.common.portable_math import FloatArray
from jdpack.errors import MarketError
from jdpack.market.grid import PRICE_CODE_MAX, PRICE_UNITS_PER_VALUE_CODE
from jdpack.market.market import Market
from jdpack.policies.base import check_alpha
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import Gaussian, NoNoise, deviation, gaussian
from jdpack.privacy.tail_bounds import Outlook

ROUNDS_MAX = 1_000_000
"""The most rounds that a policy may take: every agent answers in each of them."""


@dataclass(frozen=True)
class State:
    """What a policy knows from the billboard so far."""

    market: Market
    noise: Gaussian | NoNoise
    size: float
    """The step size."""
    prices: FloatArray
    """Prices of whole supplies; the m resources come first."""
    left: int
    """How many rounds are left."""

    def moved(self, prices: FloatArray) -> State:
        """The state after one more round."""
        return replace(self, prices=prices, left=self.left - 1)


def check_rounds(rounds: object) -> None:
    """Refuse a number of rounds that makes no sense."""
    if type(rounds) is not int:  # the header cannot hold a NumPy integer
        raise MarketError(f"rounds must be a whole number, not {checks.quoted(rounds)}")
    checks.count("rounds", rounds, ROUNDS_MAX)


def width(market: Market) -> float:
    """W: the most that |1 - L_j| can be, at least 1; L_j is a load relative to supply."""
    most = market.agents * float(max(market.person_cap_codes)) / min(market.supply_codes)
    return max(1.0, most - 1.0)


def worth(market: Market) -> float:
    """The most that all agents could pay, n V, in price units."""
    return float(market.agents * market.person_value_code) * PRICE_UNITS_PER_VALUE_CODE


def supplies(market: Market) -> FloatArray:
    """S_j: the supplies in codes."""
    return np.array(market.supply_codes, dtype=np.float64)


def loads(market: Market, release: Release) -> FloatArray:
    """The noisy load of every resource, relative to its supply."""
    return np.array(release.answer, dtype=np.float64) / supplies(market)


def price_codes(market: Market, prices: FloatArray) -> tuple[int, ...]:
    """Prices of whole supplies as price codes; whatever comes after the m resources is left out."""
    each = supplies(market)
    return tuple(min(PRICE_CODE_MAX, round(p)) for p in (prices[: len(each)] / each).tolist())


def noise_of(market: Market, budget: Budget, rounds: int) -> Gaussian | NoNoise:
    """The noise at which this many rounds cost what the policy may spend."""
    change = queries.change(market, "demand")
    noise = gaussian(change, tail_bounds.rounds_rho(market, budget) / rounds)
    noise.cost(change)  # refuses noise that cannot be drawn
    return noise


def sigma(market: Market, noise: Gaussian | NoNoise) -> float:
    """The largest standard deviation of the noise on one load."""
    return deviation(noise)[0] / min(market.supply_codes)


def outlook(market: Market, budget: Budget, rounds: int) -> Outlook:
    """The outlook of this many rounds of weight 1."""
    noise = noise_of(market, budget, rounds)
    if isinstance(noise, NoNoise):
        return Outlook(rounds_at_most=rounds, variance=0.0, peak=0.0, weight=rounds)
    return Outlook(
        rounds_at_most=rounds,
        variance=rounds * noise.scales[0] ** 2,
        peak=noise.scales[0],
        weight=rounds,
        scales=noise.scales * rounds,
    )


def step(state: State) -> Step | None:
    """The next round, if there is one."""
    if state.left == 0:
        return None
    return Step("demand", price_codes(state.market, state.prices), state.noise, weight=1)


def excess(state: State, release: Release) -> FloatArray:
    """The noisy L_j - 1 of every resource: the dual's gradient with its sign flipped."""
    return loads(state.market, release) - 1.0


@dataclass(frozen=True)
class ByAlpha(ABC):
    """A policy whose number of rounds follows from alpha, unless it is given.

    Args:
        alpha: the loss to aim for, as a fraction of n times the value cap.
        rounds: the number of rounds, instead of the number that alpha asks for.
    """

    alpha: float = 0.1
    rounds: int | None = None

    name: ClassVar[str]
    truncated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if self.rounds is not None:
            check_rounds(self.rounds)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}

    def outlook(self, market: Market, budget: Budget) -> Outlook:
        return outlook(market, budget, self.rounds_in(market))

    def step(self, state: State) -> Step | None:
        return step(state)

    @abstractmethod
    def asked(self, market: Market) -> float:
        """The rounds that alpha asks for, before rounding up."""

    def rounds_in(self, market: Market) -> int:
        """The number of rounds; raises MarketError if there are too many."""
        if self.rounds is not None:
            return self.rounds
        asked = self.asked(market)
        if asked > ROUNDS_MAX:
            raise MarketError(
                f"{self.name} would take {asked:.2g} rounds, and {ROUNDS_MAX:,} are the most",
                "use a larger alpha or supply, set the number of rounds, or use mwu-adaptive, "
                "whose rounds do not depend on the number of agents",
            )
        return math.ceil(asked)
