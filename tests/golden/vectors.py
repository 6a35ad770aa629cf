"""Golden vectors: finished billboards, agents, and what each agent gets, number by number.

They pin the agent's function for every language and engine. `vectors.json` has doubles as JSON
numbers and integers above 2^53 as texts. To write it again (after a change of the billboard's
schema, never to make a test pass), run this in the folder of the tests:
python -c "from golden import vectors; vectors.write()"
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from helpers import (
    SHARE,
    Records,
    coin_of,
    factors_of,
    finished_board,
    given_of,
    random_records,
    scaled_of,
    share_of,
)
from jdpack import Billboard, Budget, Market, MwuAdaptive, MwuOnline, Newton, solve
from jdpack.billboard.lines import Header, Release, Seed, Step
from jdpack.common.batches import Batch
from jdpack.common.coins import CoinHash
from jdpack.privacy.noise import Gaussian

FILE = Path(__file__).with_name("vectors.json")

RUN, KEPT = 2000, 60  # agents in a run, and how many of them the file holds
TURNS, SEED = 40, Seed(bytes(range(16)))  # for the cases in which agents are asked in turns

_TEXTS = ["", "0", "007", "é", "e\u0301", "漢字", "🩺", "a b", "-1", "x" * 7, "y" * 8, "z" * 300]
_NUMBERS = [0, 1, -1, 7, -(2**63), 2**63 - 1, 2**53 + 1, -(10**18)]


def write() -> None:
    """Run the markets with seeded noise, and write the answers of the plain reference."""
    cases = [
        f'{{"name": {json.dumps(case["name"])}, "ids": {json.dumps(case["ids"])},\n'
        f'"billboard": {_lines(case["billboard"])},\n"agents": {_lines(case["agents"])}}}'
        for case in (make(*each) for each in _cases())
    ]
    FILE.write_text('{"cases": [\n' + ",\n".join(cases) + "\n]}\n")


def read() -> list[dict[str, Any]]:
    """The cases of the file."""
    cases: list[dict[str, Any]] = json.loads(FILE.read_text())["cases"]
    for case in cases:
        for agent in case["agents"]:
            agent["coin"] = int(agent["coin"])
            if case["ids"] == "numbers":
                agent["id"] = int(agent["id"])
    return cases


def make(name: str, kind: str, records: Records, factors: list[int] | None) -> dict[str, Any]:
    """One case: the billboard of a seeded run, and the reference's answer for some agents.

    With `factors`, the billboard has the same prices and weights but these factors, which are odder
    than those that runs certify. A case in turns asks each agent in one round only.
    """
    market = records.market
    policy = Newton() if market.options == 1 else MwuAdaptive(alpha=0.3)
    hash: CoinHash = "sha-256" if name.endswith("by SHA-256") else "siphash-2-4"
    result = solve(
        market,
        **records.arrays(),
        epsilon=1.0,
        delta=1e-3,
        policy=policy,
        seed=1,
        coin_hash=hash,
    )
    board = result.billboard
    rounds = [(step.prices, step.weight) for step in board.rounds]
    if "in turns" in name:
        assert factors is not None
        prices = [rounds[i * len(rounds) // TURNS][0] for i in range(TURNS)]
        board = _in_turns(market, prices, hash)
        board.post(replace(result.certificate, factors=tuple(factors)))
        board.post(SEED)
    elif factors is not None:
        board = finished_board(market, rounds[::3], factors)
    assert board.certificate is not None and board.seed is not None
    agents = []
    kept = zip(records.ids, records.agents, records.codes(), strict=True)
    for agent, options, codes in itertools.islice(kept, KEPT):
        shares = share_of(codes, asked(board, agent))
        scaling = factors_of(codes, board.certificate.factors)
        scaled, coin = scaled_of(shares, scaling), coin_of(board.seed.seed, agent, hash)
        agents.append(
            {
                "id": str(agent),
                "values": [value for value, _ in options],
                "demands": [amounts for _, amounts in options],
                "value_codes": [value for value, _ in codes],
                "demand_codes": [list(demand) for _, demand in codes],
                "shares": shares,
                "factors": scaling,
                "scaled": scaled,
                "coin": str(coin),
                "given": scaled if market.divisible else given_of(shares, scaling, coin),
            }
        )
    return {"name": name, "ids": kind, "billboard": list(board.lines()), "agents": agents}


def _in_turns(market: Market, prices: list[tuple[int, ...]], hash: CoinHash) -> Billboard:
    """A billboard whose rounds ask one batch each, at these prices; all answers are zero."""
    policy = MwuOnline(batch=RUN // TURNS).to_dict()
    budget = Budget.split(4.0, 1e-3, truncated=False)
    board = Billboard(Header(market, policy, budget, SEED.commitment, False, hash))
    for index, price in enumerate(prices):
        step = Step("demand", price, Gaussian((1.0,)), 5, Batch(index, TURNS))
        board.post(Release(step, (0,) * len(market.resources)))
    return board


def asked(board: Billboard, agent: int | str) -> list[tuple[tuple[int, ...], int]]:
    """Prices and weights of the rounds in which an agent is asked: all, or only its turn."""
    order = bytes.fromhex(board.header.commitment)[:16]
    turn = coin_of(order, agent, board.header.coin_hash) // 2**9  # the 44 highest bits
    return [
        (step.prices, step.weight)
        for step in board.rounds
        if step.batch is None or turn * step.batch.count // 2**44 == step.batch.index
    ]


def _lines(items: list[Any]) -> str:
    return "[\n" + ",\n".join(json.dumps(item) for item in items) + "\n]"


def _cases() -> list[tuple[str, str, Records, list[int] | None]]:
    """Each kind of market as its run certifies it, and with a different factor per resource."""
    cases: list[tuple[str, str, Records, list[int] | None]] = []
    for seed, (divisible, options, sparse) in enumerate(
        [(False, 1, False), (True, 1, True), (False, 3, True), (True, 3, False)]
    ):
        rng, m = np.random.default_rng(seed), 8 if sparse else 3
        market = Market(
            name=f"golden {seed}",
            supply=[(60.0 if sparse else 120.0) * 1.3**j for j in range(m)],
            max_demand=[1.2**j for j in range(m)],
            max_value=[1.0, 0.3, 1e6, 7.0][seed],
            agents=RUN,
            neighbours="add-remove",  # so that the kept agents are a valid data set too
            bundle_size=2 if sparse else m,
            options=options,
            divisible=divisible,
        )
        kind = "texts" if seed % 2 else "numbers"
        special = _TEXTS if seed % 2 else _NUMBERS
        others = [f"agent {i}" if seed % 2 else 1000 + i for i in range(RUN - len(special))]
        records = random_records(rng, market, ids=[*special, *others])
        goods = "divisible" if divisible else "indivisible"
        name = f"{goods}, {options} options, {kind}"
        cases.append((name, kind, records, None))
        odd = [SHARE, SHARE * 2 // 3, 12_345_678, 1, SHARE - 1, 0, SHARE // 2, 9_876_543]
        cases.append((f"{name}, a factor each", kind, records, odd[:m]))
        if seed in (1, 2):
            cases.append((f"{name}, in turns", kind, records, odd[:m]))
        if seed == 2:
            cases.append((f"{name}, by SHA-256", kind, records, None))
            cases.append((f"{name}, in turns, by SHA-256", kind, records, odd[:m]))
    return cases
