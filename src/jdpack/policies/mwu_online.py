"""Public: mwu-online, multiplicative weights in one pass over the agents.

Huang & Zhu, Near Optimal Jointly Private Packing Algorithms via Dual Multiplicative Weight Update
(SODA 2018), Section 5. Agents come in a random order. Each takes its best bundle at the prices of
its own round, and its noisy demand moves the prices for later agents. One pass takes linear time
and is truthful, because what an agent asks for moves only the prices that others face. It also
needs no trusted party: agents can add the noise themselves (`jdpack.run.local`). In relative loads:

* P sums to 2 n V with a dummy resource, and all prices start equal, as in mwu-adaptive.
* There are T = n / `batch` rounds, rounded up. The order is a public hash
  (`jdpack.common.batches`), so a round asks `batch` agents on average (the paper: exactly one). T
  times the load of a round's batch estimates the load of all agents. P_j *= exp(theta (T Lhat_tj -
  1)), with the exponent cut to [-1, 1].
* An agent is in one batch, and batches compose in parallel (`Filter`): each round's noise may cost
  all of rho. But the noise of T rounds adds up in the load of what is taken, to a standard
  deviation of sqrt(T) Delta / sqrt(2 rho) with Delta of order sqrt(m) / b. That is the sqrt(m n) of
  Table 1. A larger `batch` means fewer rounds and so less noise, unless agents add their own.
* The paper gives theta up to constants. Ours minimises the regret lemma's bound
  2nV (ln(m+1) / (theta T) + theta (W^2 + s^2)): W = max_j n c_j / b_j is the largest estimate that
  a batch of average size can give, and s the standard deviation of its noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from jdpack.billboard.lines import Release, Step
from jdpack.common import checks, portable_math
from jdpack.common.batches import BATCHES_MAX, Batch
from jdpack.common.portable_math import FloatArray
from jdpack.errors import MarketError
from jdpack.market.grid import DEMAND_CODE_MAX
from jdpack.market.market import Market, Neighbours
from jdpack.policies import fixed_rounds
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import Gaussian, NoNoise, deviation, gaussian
from jdpack.privacy.tail_bounds import Outlook

_FLOOR = 1e-300  # for relative prices: prevents underflow


@dataclass(frozen=True)
class State:
    """The fold over the billboard."""

    market: Market
    noise: Gaussian | NoNoise
    rounds_at_most: int
    theta: float
    weights: FloatArray
    """Relative prices of the m resources and the dummy; they sum to 1."""
    rounds: int = 0


@dataclass(frozen=True)
class MwuOnline:
    """One pass over the agents in a public random order.

    Args:
        batch: how many agents a round asks on average.
        local: whether agents add the noise themselves. Then nothing is released at the end, and
            nothing is certified about value (`jdpack.run.local`).
    """

    batch: int = 1
    local: bool = False

    name: ClassVar[str] = "mwu-online"
    truncated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if type(self.batch) is not int or self.batch < 1:
            raise MarketError(
                f"batch must be a whole number of at least 1, not {checks.quoted(self.batch)}"
            )
        if type(self.local) is not bool:
            raise MarketError(f"local must be true or false, not {checks.quoted(self.local)}")

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "batch": self.batch, "local": self.local}

    def outlook(self, market: Market, budget: Budget) -> Outlook:
        rounds, noise = self._rounds(market), self._noise(market, budget)
        scale = deviation(noise)[0]
        noises = market.agents if self.local else rounds
        return Outlook(
            rounds_at_most=rounds,
            variance=noises * scale * scale,
            peak=scale,
            weight=1,
            scales=None if self.local or scale == 0.0 else (scale,) * rounds,
            batches=rounds,
        )

    def start(self, market: Market, budget: Budget) -> State:
        m, rounds, noise = len(market.resources), self._rounds(market), self._noise(market, budget)
        if self.local and market.neighbours is Neighbours.ADD_REMOVE:
            raise MarketError(
                "agents who add the noise themselves cannot hide that they take part",
                "use neighbours = 'replace-one', or mwu-online without local",
            )
        noise.cost(queries.change(market, "demand"))  # refuses noise that cannot be drawn
        spread = rounds * fixed_rounds.sigma(market, noise)
        if self.local:
            spread *= math.sqrt(max(1.0, market.agents / rounds))
        width = market.agents * float(DEMAND_CODE_MAX) / min(market.supply_codes)
        theta = math.sqrt(portable_math.log(m + 1.0) / (rounds * (width * width + spread * spread)))
        return State(market, noise, rounds, theta, np.full(m + 1, 1.0 / (m + 1)))

    def step(self, state: State) -> Step | None:
        if state.rounds >= state.rounds_at_most:
            return None
        whole = state.weights * (2.0 * fixed_rounds.worth(state.market))
        prices = fixed_rounds.price_codes(state.market, whole)
        batch = Batch(state.rounds, state.rounds_at_most)
        return Step("demand", prices, state.noise, weight=1, batch=batch)

    def observe(self, state: State, release: Release) -> State:
        loads = fixed_rounds.loads(state.market, release)
        exponent = state.theta * (state.rounds_at_most * loads - 1.0)
        weights = state.weights.copy()
        weights[:-1] *= portable_math.exp(np.clip(exponent, -1.0, 1.0))
        weights = np.maximum(weights / math.fsum(weights.tolist()), _FLOOR)
        return replace(state, weights=weights, rounds=state.rounds + 1)

    def _rounds(self, market: Market) -> int:
        rounds = -(-market.agents // self.batch)
        if rounds > BATCHES_MAX:
            enough = -(-market.agents // BATCHES_MAX)
            raise MarketError(
                f"mwu-online would take {rounds:,} rounds, and {BATCHES_MAX:,} is the most",
                f"use a batch of {enough:,} or more",
            )
        return rounds

    def _noise(self, market: Market, budget: Budget) -> Gaussian | NoNoise:
        rho = budget.rho if self.local else tail_bounds.rounds_rho(market, budget, batches=True)
        return gaussian(queries.change(market, "demand"), rho)
