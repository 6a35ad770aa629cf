"""Public: mwu-online, multiplicative weights in one pass over the agents.

Huang & Zhu, Near Optimal Jointly Private Packing Algorithms via Dual Multiplicative Weight Update
(SODA 2018), Section 5. Agents come in a random order. Each takes its best bundle at the prices of
its own round, and its noisy demand moves the prices for later agents. One pass takes linear time
and is truthful, because what an agent asks for moves only the prices that others face. It also
needs no trusted party: agents can add the noise themselves (`jdpack.run.local`). In relative loads:

* P sums to 2 n V with a dummy resource, and all prices start equal, as in mwu-adaptive.
* There are T = n / `batch` rounds, rounded up. The order is a public hash
  (`jdpack.common.batches`), so a round asks `batch` agents on average (the paper: exactly one).
* Multiplicative weights in closed form: after t rounds, P_j is proportional to
  exp(theta (T Lhat_j - t)), with Lhat_j the noisy load of what the first t batches took.
* With a curator, each answer sums up a block of batches (`jdpack.policies.nested_blocks`), so the
  noise of Lhat grows only with the logarithm of T. The last answer sums up all batches. The
  certificate rests on it alone, and it gets `1 - STEERING` of the budget, so the margin does not
  grow with T at all. An agent is in one batch, and pays for the blocks that contain it (`Filter`).
* Agents who add the noise themselves add it independently: each batch has its own noise, each may
  cost all of rho, and T of them sum to sqrt(T) times as much. That is the sqrt(m n) of Table 1.
* The paper gives theta up to constants. In units of 2 n V, the regret lemma bounds the loss by
  ln(m+1) / (theta T) + theta g, with g the second moment of T times the load of a round's batch.
  With independent noise we minimise that for g = W^2 + s^2: W = max_j n c_j / b_j is the largest
  estimate that a batch of average size can give, and s the deviation of its noise. With a curator,
  g = 1 + T max_j c_j / b_j, the second moment of a batch's own estimate for loads near 1. Noise of
  deviation d in Lhat moves the logarithms of the prices by theta T d, up or down alike. That raises
  a price by a factor of 1 + (theta T d)^2 / 2 on average, so its cost is of second order. We take
  the smaller of the two theta that minimise ln(m+1) / (theta T) plus one of these terms. This is a
  rule for the step size, not a proof: the certificate says what a run achieved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from jdpack.billboard.lines import Release, Step
from jdpack.common import checks, portable_math
from jdpack.common.batches import BATCHES_MAX, Batch
from jdpack.errors import MarketError
from jdpack.market.market import Market, Neighbours
from jdpack.policies import fixed_rounds, nested_blocks
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import Gaussian, NoNoise, deviation, gaussian
from jdpack.privacy.tail_bounds import Outlook

STEERING = 0.6
"""The part of what the rounds may spend that the blocks get, and that steers the prices. The sum of
all batches gets the rest. The loss from steering falls with the cube root of this part, and is
several times the margin of that sum on the market of Table 1, where this part was chosen."""


def check_one_request(market: Market) -> None:
    """Refuse several requests of agents who add the noise themselves."""
    if market.requests > 1:
        raise MarketError(
            "agents who add the noise themselves can make only one request",
            market.hint("leave [person] out", "leave person out of Market")
            + ", with one option for all that a person wants; or trust a curator",
        )


@dataclass(frozen=True)
class State:
    """What the policy knows from the billboard so far."""

    market: Market
    noise: Gaussian | NoNoise
    """The noise of a block."""
    last_noise: Gaussian | NoNoise
    """The noise of the last answer."""
    rounds_at_most: int
    theta: float
    leaf: int
    """Where this round's batch is in the tree of blocks."""
    prefixes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """A number of batches, counted from the first, with the noisy sum of their demand, for each
    prefix that later blocks may build on. The last is for all batches so far."""
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
        rounds = self._rounds(market)
        scale = deviation(self._noises(market, budget, rounds)[1])[0]
        noises = market.agents if self.local else 1
        return Outlook(
            rounds_at_most=rounds,
            variance=noises * scale * scale,
            peak=scale,
            weight=1,
            scales=None if self.local or scale == 0.0 else (scale,),
            batches=rounds,
        )

    def start(self, market: Market, budget: Budget) -> State:
        m, rounds = len(market.resources), self._rounds(market)
        noise, last_noise = self._noises(market, budget, rounds)
        if self.local and market.neighbours is Neighbours.ADD_REMOVE:
            raise MarketError(
                "agents who add the noise themselves cannot hide that they take part",
                "use neighbours = 'replace-one', or mwu-online without local",
            )
        if self.local:
            check_one_request(market)
        for each in (noise, last_noise):
            each.cost(queries.change(market, "demand"))  # refuses noise that cannot be drawn
        sigma = rounds * fixed_rounds.sigma(market, noise)
        cap = float(max(market.person_cap_codes)) / min(market.supply_codes)
        size = portable_math.log(m + 1.0) / rounds
        if self.local:
            noisy = sigma * sigma * max(1.0, market.agents / rounds)
            theta = math.sqrt(size / ((market.agents * cap) ** 2 + noisy))
        else:
            theta = math.sqrt(size / (1.0 + rounds * cap))
            noisy = sigma * sigma * nested_blocks.terms(rounds)
            if size < noisy * theta**3:
                theta = portable_math.power(size / noisy, 1.0 / 3.0)
        leaf = nested_blocks.first_leaf(rounds)
        return State(market, noise, last_noise, rounds, theta, leaf)

    def step(self, state: State) -> Step | None:
        if state.rounds >= state.rounds_at_most:
            return None
        exponents = np.zeros(len(state.market.resources) + 1)  # the last is the dummy's
        if state.prefixes:
            load = np.array(state.prefixes[-1][1]) / fixed_rounds.supplies(state.market)
            exponents[:-1] = state.theta * (state.rounds_at_most * load - state.rounds)
        weights = portable_math.exp_down(exponents - exponents.max())
        whole = weights * (2.0 * fixed_rounds.worth(state.market) / math.fsum(weights.tolist()))
        prices = fixed_rounds.price_codes(state.market, whole)
        batch, span = Batch(state.rounds, state.rounds_at_most), 1
        last = batch.index == batch.count - 1
        if not self.local:
            span = batch.count if last else nested_blocks.span(state.leaf)
        noise = state.last_noise if last else state.noise
        return Step("demand", prices, noise, weight=1, batch=batch, span=span)

    def observe(self, state: State, release: Release) -> State:
        rounds = state.rounds + 1
        begin = rounds - release.step.span
        kept = [prefix for prefix in state.prefixes if prefix[0] <= begin]
        before = kept[-1][1] if kept else (0,) * len(release.answer)
        total = tuple(a + b for a, b in zip(before, release.answer, strict=True))
        if self.local:
            kept = []  # no later block goes back further than this
        more = rounds < state.rounds_at_most
        return replace(
            state,
            leaf=nested_blocks.next_leaf(state.leaf) if more else state.leaf,
            prefixes=(*kept, (rounds, total)),
            rounds=rounds,
        )

    def _rounds(self, market: Market) -> int:
        rounds = -(-market.agents // self.batch)
        if rounds > BATCHES_MAX:
            enough = -(-market.agents // BATCHES_MAX)
            raise MarketError(
                f"mwu-online would take {rounds:,} rounds, and {BATCHES_MAX:,} is the most",
                f"use a batch of {enough:,} or more",
            )
        return rounds

    def _noises(
        self, market: Market, budget: Budget, rounds: int
    ) -> tuple[Gaussian | NoNoise, Gaussian | NoNoise]:
        """The noise of a block, and that of the last answer."""
        change = queries.change(market, "demand")
        if self.local:
            return (gaussian(change, budget.rho),) * 2
        rho = tail_bounds.rounds_rho(market, budget, batches=True)
        if rounds == 1:
            return (gaussian(change, rho),) * 2
        block = gaussian(change, rho * STEERING / nested_blocks.levels(rounds))
        return block, gaussian(change, rho * (1.0 - STEERING))
