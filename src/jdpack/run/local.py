"""Local privacy: agents who trust nobody add their own noise, and a curator asks them.

mwu-online asks every agent once. So an agent can add the noise itself before it answers, and nobody
ever sees its record: not the other agents, and not the curator. The curator keeps the billboard
with `LocalRun`; each agent has a `LocalAgent` where its record is. A round posts the sum of the
noisy answers that came in.

Formal guarantees. A `LocalAgent` lets its record out through the same door as a curator would
(`release`), with its own filter, which holds the rho of the header's epsilon and delta. Whatever
the curator asks, the answers together cost no more than that, and one answer with the noise of
mwu-online fits. For any two records, the change in the answer is bounded (replace-one; a header
with add-remove neighbours is refused). So the answer is (epsilon, delta)-locally DP, by
`jdpack.privacy.gdp`. Everything else is computed from answers, so the same holds for the billboard
and for what the others get.

Whether an agent answers must not depend on its record either: the curator writes the header, with
the bounds in it, and sees who is silent. So no record is refused. A record outside the bounds, or
something that is not a record at all, takes nothing (`jdpack.agent.allocate.own_options`), answers
with the same noise as any other, and gets nothing; only its owner is told. What is refused, and
when, follows from the header, the step and the agent's id, all of which the curator knows.

Each agent gets what its own function of the billboard says (`jdpack.allocate`). Nothing is
certified about value, and only the noisy sums bound the loads: the noise of all agents, sqrt(n)
times that of one, must fit into the supply.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from jdpack.agent.allocate import best_option, own_options, tell_owner
from jdpack.agent.options import Demand, check_id
from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Header, Release, Seed, Step
from jdpack.billboard.schema import ANSWER_MAX
from jdpack.common.batches import Batch, turn
from jdpack.common.coins import SIPHASH, CoinHash, coin
from jdpack.door import SystemRandomness, release
from jdpack.engines.base import Engine
from jdpack.errors import AgentsError, MarketError
from jdpack.market.grid import PRICE_CODE_MAX
from jdpack.market.market import Market, Neighbours
from jdpack.planning.headroom import shortfall
from jdpack.planning.prepare import prepare
from jdpack.policies.mwu_online import MwuOnline, check_one_request
from jdpack.privacy.accounting import Budget, Filter, check_delta, weakness
from jdpack.protocol.certificate import certify


class LocalAgent:
    """Private: one agent with its record, which never leaves this object without noise.

    Args:
        header: the billboard's header, which fixes the market, the budget and the order of the
            agents. This agent agrees to its epsilon and delta, and does not trust its rho.
        value, demand, agent, group: as for `jdpack.allocate`. A record outside the market's bounds
            takes nothing; `problem` and a RecordWarning tell its owner.
    """

    def __init__(
        self,
        header: Header,
        *,
        value: float | Sequence[float],
        demand: Demand | Sequence[Demand],
        agent: int | str,
        group: int | str | None = None,
    ) -> None:
        check_id(agent)
        if header.market.neighbours is not Neighbours.REPLACE_ONE:
            raise MarketError(
                "noise for neighbours add-remove does not hide which record an agent has",
                "an agent that adds the noise itself needs neighbours = 'replace-one'",
            )
        check_one_request(header.market)
        budget = _promised(header.budget.epsilon, header.budget.delta)
        check_delta(budget)
        weak = weakness(budget, header.market.agents)
        if weak is not None:
            warnings.warn(weak, stacklevel=2)
        self._board = Billboard(header)  # the header, for the door; nothing is posted on it
        self._filter = Filter(budget)
        self._place = coin(header.order, agent, header.coin_hash)
        # The record comes last, so that it can no longer stop anything.
        self._options, self._problem = own_options(header.market, value, demand, group)
        if self._problem is not None:
            tell_owner(self._problem, stacklevel=3)

    @property
    def problem(self) -> str | None:
        """Why this record takes nothing; None if it is within the bounds. For its owner only."""
        return self._problem

    def turn(self, batches: int) -> int:
        """The round in which this agent is asked, from 0."""
        return turn(self._place, batches)

    def answer(self, step: Step) -> tuple[int, ...]:
        """What this agent takes at the posted prices, with its own noise, if its budget allows."""
        # Checked before the record is used: prices that cannot be multiplied would stop only the
        # agents that have something to multiply them with.
        if len(step.prices) != len(self._board.header.market.resources):
            raise AgentsError(f"{len(step.prices)} prices are not one for each resource")
        if not all(type(p) is int and 0 <= p <= PRICE_CODE_MAX for p in step.prices):
            raise AgentsError(
                "a price is not a price code", f"a whole number up to {PRICE_CODE_MAX}"
            )
        mine = step.batch is not None and self.turn(step.batch.count) == step.batch.index
        if not mine or step.span != 1:
            raise AgentsError("this round does not ask this agent", "answer in your own turn only")
        engine = cast(Engine, _OneAgent(self._options))
        answered = release(step, engine, self._filter, SystemRandomness(), self._board, None)
        return answered.answer


@functools.lru_cache(maxsize=64)
def _promised(epsilon: float, delta: float) -> Budget:
    return Budget.split(epsilon, delta, truncated=False, repaired=False)


class _OneAgent:
    """The part of an engine that a batch needs."""

    def __init__(self, options: list[tuple[int, list[int]]]) -> None:
        self._options = options

    def batch_demand(
        self,
        prices: Sequence[tuple[int, ...]],
        batch: Batch,
        order: bytes,
        hash: CoinHash = SIPHASH,
    ) -> tuple[int, ...]:
        taken = best_option(self._options, prices[-1])
        return (0,) * len(prices[-1]) if taken is None else tuple(self._options[taken][1])


class LocalRun:
    """Public: the curator's side of a run whose agents add the noise themselves.

    Publish `board.header`; then, while `step` is not None, publish it and give `post` the answers
    of the agents whose turn it is. At the end the billboard has its certificate and seed.

    Args:
        market: the public market; its neighbours are replace-one.
        epsilon, delta: the privacy budget of every agent; the market's own if not given.
        batch: how many agents a round asks on average.
        path: the billboard's file, which must not exist yet.

    With epsilon = inf the run is an experiment that protects nobody, and its header says so.
    """

    def __init__(
        self,
        market: Market | str | Path,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        batch: int = 1,
        path: str | Path | None = None,
    ) -> None:
        self._policy = MwuOnline(batch=batch, local=True)
        market, _, budget = prepare(market, self._policy, epsilon, delta)
        self._seed = Seed.draw()
        private = budget.epsilon != math.inf
        header = Header(market, self._policy.to_dict(), budget, self._seed.commitment, private)
        for warning in (shortfall(market, budget, self._policy), weakness(budget, market.agents)):
            if warning is not None:
                warnings.warn(warning, stacklevel=2)
        self._state = self._policy.start(market, budget)
        self._answers = 0
        self.board = Billboard(header, None if path is None else Path(path))

    @property
    def step(self) -> Step | None:
        """What to ask next; None when all have been asked."""
        return self._policy.step(self._state)

    def post(self, answers: Iterable[Sequence[int]]) -> None:
        """Post the sum of the answers to `step`.

        The certificate counts the demand of the agents that answered, and the noise of as many
        agents as the market has. So more answers are refused, and an agent that did not answer
        must get nothing.
        """
        step = self.step
        if step is None:
            raise MarketError("all agents have been asked")
        total, agents, count = [0] * len(step.prices), self.board.header.market.agents, 0
        for answer in answers:
            if len(answer) != len(total) or not all(type(a) is int for a in answer):
                raise AgentsError(f"an answer is {len(total)} whole numbers, not {answer!r}")
            total = [a + b for a, b in zip(total, answer, strict=True)]
            count += 1
        if self._answers + count > agents:
            raise AgentsError(f"there are more answers than the {agents:,} agents of the market")
        if max(map(abs, total)) > ANSWER_MAX:
            raise AgentsError(f"the answers sum to {max(map(abs, total)):.2g}, more than any noise")
        answered = Release(step, tuple(total))
        self.board.post(answered)
        self._answers += count
        self._state = self._policy.observe(self._state, answered)
        if self.step is None:
            self.board.post(certify(self.board))
            self.board.post(self._seed)
            self.board.close()
