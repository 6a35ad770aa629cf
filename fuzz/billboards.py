"""Target: billboards. Seeds are runs of every policy; changed ones are sealed or played again."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from html_pages import check_page
from jdpack.agent.allocate import allocate
from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Header, Release, Seed
from jdpack.errors import JdpackError
from jdpack.market.market import Market
from jdpack.pages.billboard_page import public_page
from jdpack.policies import registry
from jdpack.policies.base import Policy
from jdpack.policies.dual_gd import DualGd
from jdpack.policies.mirror_descent import MirrorDescent
from jdpack.policies.mwu_adaptive import MwuAdaptive
from jdpack.policies.mwu_fixed import MwuFixed
from jdpack.policies.mwu_online import MwuOnline
from jdpack.policies.newton import Newton
from jdpack.privacy import queries
from jdpack.privacy.accounting import Budget
from jdpack.protocol.certificate import certify
from jdpack.protocol.run_state import RunState
from jdpack.protocol.verify import verify
from mutate import chain_changed, sealed
from mutate import changed as changed_json
from watch import check_error

_SEED = Seed(bytes(range(16)))
_HUGE = [0, 1, -1, 10**6, -(10**6), 2**53, -(2**53), 2**64, -(2**64)]


def _market(**more: Any) -> Market:
    whole: dict[str, Any] = {
        "supply": [5e5, 9e5],
        "max_demand": [2.0, 3.0],
        "max_value": 10.0,
        "agents": 4,
        "names": ["beds", "nurses"],
    }
    return Market(**whole | more)


_KINDS: list[tuple[Policy[Any], Market]] = [
    (MwuFixed(rounds=2), _market()),
    (MirrorDescent(rounds=2), _market(divisible=True)),
    (MirrorDescent("euclidean", 2), _market()),
    (DualGd(rounds=2), _market(neighbours="add-remove")),
    (MwuAdaptive(alpha=0.5), _market(divisible=True)),
    (MwuOnline(batch=2), _market()),
    (MwuOnline(batch=2, local=True), _market()),
    (Newton(), _market(options=2)),
    (Newton((1.0, 2.0)), _market(divisible=True)),
]


def seeds() -> list[bytes]:
    """A finished billboard of every policy, with random answers."""
    random = Random(1)
    found = []
    for policy, market in _KINDS:
        budget = Budget.split(1.0, 1e-6, truncated=policy.truncated)
        header = Header(market, policy.to_dict(), budget, _SEED.commitment)
        found.append(_played(header, policy, random, 200, honest=True).encode())
    return found


def mutate(data: bytes, size: int, random: Random) -> bytes:
    """A changed billboard."""
    text = data.decode()
    changed = _replayed if random.random() < 0.3 else chain_changed
    return changed(text, random).encode()[:size]


def run(data: bytes, folder: str) -> None:
    """Everything that people do with somebody else's billboard."""
    board = Billboard.from_text(data.decode(errors="replace"))
    for use in (verify, _page, _allocate, _warm):
        try:
            use(board)
        except JdpackError as error:
            check_error(error)


def _page(board: Billboard) -> None:
    check_page(public_page(board))


def _allocate(board: Billboard) -> None:
    market = board.header.market
    demand = [r.max_demand for r in market.resources[: market.bundle_size]]
    demand += [0.0] * (len(market.resources) - len(demand))
    allocate(board, value=market.max_value, demand=demand, agent="ada")


def _warm(board: Billboard) -> None:
    market = board.header.market
    policy = Newton.warm(board, market)
    policy.step(policy.start(market, Budget(1.0, 1e-6, 0.02, 0.0, 1e-8)))


def _replayed(text: str, random: Random) -> str:
    """The run of a changed header, with answers that no real run reaches."""
    first = json.loads(text.partition("\n")[0])
    for part in random.choices(["market", "policy", "budget"], k=random.choice([0, 1, 2])):
        first[part] = changed_json(first[part], random)
    board = Billboard.from_text(chain_of(first))
    policy = registry.from_dict(board.header.policy)
    asked = random.choice([0.1, 1.0, 10.0, 50.0, 1e-6]), random.choice([1e-6, 1e-100, 0.9])
    budget = Budget.split(*asked, truncated=policy.truncated)
    header = Header(board.header.market, policy.to_dict(), budget, _SEED.commitment)
    return _played(header, policy, random, random.choice([1, 5, 30, 200]), honest=False)


def chain_of(first: dict[str, Any]) -> str:
    """A billboard with only a header."""
    return sealed([first])


def _played(header: Header, policy: Policy[Any], random: Random, most: int, *, honest: bool) -> str:
    """A run of at most `most` lines, followed as `verify` follows it."""
    board = Billboard(header)
    answers = [0, 100, 10_000, 100_000] if honest else _HUGE
    try:
        state = RunState(policy, board)
        for _ in range(most):
            step = state.step()
            if step is None:
                board.post(certify(board))
                board.post(_SEED)
                break
            width = queries.width(header.market, step.query)
            release = Release(step, tuple(random.choice(answers) for _ in range(width)))
            board.post(release)
            state.observe(release)
    except (JdpackError, ArithmeticError, ValueError, AssertionError):
        pass  # every reader gets to the same point
    return "".join(line + "\n" for line in board.lines())
