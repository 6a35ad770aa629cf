"""The golden vectors keep the agent's function and the curator's bulk allocation in agreement."""

import numpy as np
import pytest

from golden import vectors
from helpers import (
    SHARE,
    Records,
    coin_of,
    decode,
    factors_of,
    given_of,
    scaled_of,
    share_of,
    take,
)
from jdpack import Billboard, allocate
from jdpack.common.batches import Batch, turn
from jdpack.common.coins import coin
from jdpack.engines.memory import MemoryEngine
from jdpack.records.codes import is_sparse

CASES = vectors.read()
cases = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])


def board_of(case) -> Billboard:
    return Billboard.from_text("".join(f"{line}\n" for line in case["billboard"]))


def records_of(case) -> Records:
    agents = [list(zip(agent["values"], agent["demands"], strict=True)) for agent in case["agents"]]
    return Records(board_of(case).header.market, [a["id"] for a in case["agents"]], agents)


def column(case, name) -> list[int]:
    return [item for agent in case["agents"] for item in agent[name]]


@cases
def test_the_billboard_is_a_finished_one_and_marked(case):
    board = board_of(case)
    assert board.finished and not board.header.private
    assert len(list(board.rounds)) >= 5
    assert list(board.lines()) == case["billboard"]


@cases
def test_codes(case):
    expected = [
        list(zip(a["value_codes"], map(tuple, a["demand_codes"]), strict=True))
        for a in case["agents"]
    ]
    assert records_of(case).codes() == expected
    assert decode(records_of(case).encode()) == expected


@cases
def test_the_agents_own_function(case):
    board = board_of(case)
    for agent in case["agents"]:
        assert coin(board.seed.seed, agent["id"], board.header.coin_hash) == agent["coin"]
        found = allocate(board, value=agent["values"], demand=agent["demands"], agent=agent["id"])
        assert found.scaled == tuple(share / SHARE for share in agent["scaled"])
        assert found.given == tuple(share / SHARE for share in agent["given"])
        assert found.coin == agent["coin"] / 2**53
        if len(agent["values"]) == 1:
            names = [r.name for r in board.header.market.resources]
            alone = allocate(
                board,
                value=agent["values"][0],
                demand=dict(zip(names, agent["demands"][0], strict=True)),
                agent=str(agent["id"]),
            )
            assert alone == found


@cases
@pytest.mark.parametrize("threads", [1, None])
def test_the_bulk_allocation(case, threads):
    engine = MemoryEngine(records_of(case).encode(), threads)
    board = board_of(case)
    found = engine.allocate(board)
    assert found.dropped == 0
    assert engine.shares(board, found).tolist() == column(case, "given")
    codes = np.array(column(case, "demand_codes"), dtype=object)
    assert list(found.loads) == (codes * np.array(column(case, "given"))[:, None]).sum(0).tolist()


@cases
def test_the_reference_says_the_same(case):
    """The file is not stale: the plain reference computes its numbers from its billboards."""
    board = board_of(case)
    for agent, codes in zip(case["agents"], records_of(case).codes(), strict=True):
        rounds = vectors.asked(board, agent["id"])
        shares, factors = share_of(codes, rounds), factors_of(codes, board.certificate.factors)
        assert (shares, factors) == (agent["shares"], agent["factors"])
        assert scaled_of(shares, factors) == agent["scaled"]
        flipped = coin_of(board.seed.seed, agent["id"], board.header.coin_hash)
        assert flipped == agent["coin"]
        divisible = board.header.market.divisible
        given = agent["scaled"] if divisible else given_of(shares, factors, flipped)
        assert agent["given"] == given


def test_the_vectors_cover_what_they_should():
    assert sum(len(case["agents"]) for case in CASES) >= 400
    markets = [board_of(case).header.market for case in CASES]
    kinds = {(m.divisible, m.options > 1) for m in markets}
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}
    assert {is_sparse(m) for m in markets} == {False, True}
    ids = [agent["id"] for case in CASES for agent in case["agents"]]
    assert {-(2**63), 2**63 - 1, "", "007", "é", "e\u0301", "🩺"} <= set(ids)
    for case in CASES:
        shares, given = column(case, "shares"), column(case, "given")
        if "in turns" in case["name"]:
            assert set(shares) == {0, SHARE}, "all or nothing"
        else:
            assert len(set(shares)) > 5, "shares of many sizes"
        assert 0 < sum(g > 0 for g in given) < len(given), "some win and some do not"


def test_the_vectors_cover_turns():
    """What an agent gets depends on its turn: at the prices of another turn it would differ."""
    in_turns = [case for case in CASES if "in turns" in case["name"]]
    boards = [board_of(case).header for case in in_turns]
    assert {header.market.divisible for header in boards} == {False, True}
    assert {header.coin_hash for header in boards} == {"siphash-2-4", "sha-256"}
    for case in in_turns:
        board = board_of(case)
        steps = list(board.rounds)
        assert [step.batch for step in steps] == [Batch(i, 40) for i in range(40)]
        other = 0
        for agent, codes in zip(case["agents"], records_of(case).codes(), strict=True):
            ((prices, _),) = vectors.asked(board, agent["id"])
            mine = turn(coin(board.header.order, agent["id"], board.header.coin_hash), 40)
            assert prices == steps[mine].prices
            other += len({take(codes, step.prices) for step in steps}) > 1
            assert (take(codes, prices) is not None) == any(agent["shares"])
        assert other > 10


def test_the_vectors_cover_factors_of_every_size():
    thinned = 0
    for case in CASES:
        board = board_of(case)
        if not case["name"].endswith("a factor each"):
            continue
        assert len(set(board.certificate.factors)) == len(board.header.market.resources)
        factors = column(case, "factors")
        assert SHARE in factors and len(set(factors)) > 2
        if board.header.market.options > 1:
            assert any(len(set(agent["factors"])) > 1 for agent in case["agents"])
        for agent in case["agents"]:
            whole = [SHARE] * len(agent["shares"])
            granted = given_of(agent["shares"], whole, agent["coin"])
            if not board.header.market.divisible and granted != agent["given"]:
                assert not any(agent["given"])
                thinned += 1
        if board.header.market.divisible:
            assert any(
                0 < g < s
                for g, s in zip(column(case, "given"), column(case, "shares"), strict=True)
            )
    assert thinned >= 10, "coins in the part of an option that thinning takes"
