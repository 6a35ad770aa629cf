"""The loop: the only module, with `local`, that joins the private and the public side.

    while the policy wants another step:
        step     = what the policy asks for, from the market and the billboard alone
        answered = release(step)            # the door: charges the budget, then adds noise
        billboard.post(answered)
        the policy observes what was posted
    billboard.post(certificate)
    billboard.post(seed of the coins)

Everything after the loop, including each agent's allocation, follows from the billboard.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Seed
from jdpack.door import Randomness, release
from jdpack.engines.base import Engine
from jdpack.policies.base import Policy
from jdpack.privacy.accounting import Cost
from jdpack.protocol.certificate import certify
from jdpack.protocol.run_state import RunState
from jdpack.run.result import Progress


def run(
    engine: Engine,
    policy: Policy[Any],
    board: Billboard,
    randomness: Randomness,
    coin_seed: Seed,
    progress: Callable[[Progress], None] | None = None,
) -> Cost:
    """Play rounds until the policy stops, then post the certificate and the seed.

    What an interrupted run has already posted is charged and observed first, and not asked for
    again.
    """
    budget, exact = board.header.budget, board.header.budget.rho == math.inf
    outlook = policy.outlook(board.header.market, budget)
    by_rounds = exact or outlook.batches is not None  # the first batch spends as much as all
    state = RunState(policy, board)
    filter, rounds = state.filter, sum(1 for r in board.releases if r.step.query == "demand")
    while board.certificate is None and (step := state.step()) is not None:
        answered = release(step, engine, filter, randomness, board, coin_seed)
        board.post(answered)
        state.observe(answered)
        if step.query == "demand" and progress is not None:
            rounds += 1
            whole = rounds, outlook.rounds_at_most
            part, of = whole if by_rounds else (filter.spent.rho, budget.rho)
            progress(Progress(rounds, float(part / of)))
    if board.certificate is None:
        board.post(certify(board))
    if board.seed is None:
        board.post(coin_seed)
    return filter.spent
