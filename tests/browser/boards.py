"""Billboards and agents for the tests of pages."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from helpers import SHARE, finished_board
from jdpack import Billboard, Budget, Market, MaxTotal, MwuOnline, solve
from jdpack.agent.options import encoded
from jdpack.billboard.lines import Certificate, Header, Release, Seed, Step
from jdpack.common.batches import Batch
from jdpack.market.grid import DEMAND_CODE_MAX, PRICE_CODE_MAX, PRICE_UNITS_PER_VALUE_CODE
from jdpack.privacy.noise import Gaussian

SEED = Seed(bytes(range(16)))


@cache
def charging() -> Billboard:
    """A private run with four divisible goods and one option."""
    rng = np.random.default_rng(5)
    n, names = 4000, ["18-21 h", "21-24 h", "0-3 h", "3-6 h"]
    market = Market(
        name="Night charging", names=names, units=["kWh"] * 4, supply=[9000.0, 9e3, 12e3, 12e3],
        max_demand=30.0, max_value=40.0, agents=n, bundle_size=2, divisible=True,
    )  # fmt: skip
    demands = np.zeros((n, 4))
    first = rng.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])
    demands[np.arange(n), first] = rng.uniform(1, 30, n)
    values = np.minimum(40.0, demands.sum(1) * rng.gamma(3.0, 0.3, n))
    return solve(market, values=values, demands=demands, epsilon=4.0, delta=1e-6).billboard


@cache
def clinic() -> Billboard:
    """A private run of indivisible goods, with up to three options per agent."""
    rng = np.random.default_rng(6)
    n, m = 3000, 12
    names = [f"{day} {hour}" for day in ("Mon", "Tue", "Wed") for hour in (8, 10, 13, 15)]
    market = Market(
        name="Clinic appointments", names=names, units=["slots"] * m, supply=[150.0] * m,
        max_demand=1.0, max_value=10.0, agents=n, bundle_size=1, options=3,
    )  # fmt: skip
    demands = np.zeros((3 * n, m))
    demands[np.arange(3 * n), rng.integers(0, m, 3 * n)] = 1.0
    ids = np.repeat([f"P{i}" for i in range(n)], 3)
    table = {"id": ids, "value": rng.uniform(0, 10, 3 * n)}
    table |= {name: demands[:, j] for j, name in enumerate(names)}
    return solve(market, pa.table(table), epsilon=4.0, delta=1e-6).billboard


@cache
def overbooked() -> Billboard:
    """A private run of divisible goods in which a supply may rarely be exceeded."""
    rng, n = np.random.default_rng(7), 2000
    market = Market(
        name="Overbooked", supply=[500.0, 200.0], max_demand=1.0, max_value=1.0, agents=n,
        divisible=True, excess_probability=0.001,
    )  # fmt: skip
    values, demands = rng.random(n), rng.random((n, 2))
    return solve(market, values=values, demands=demands, epsilon=4.0, delta=1e-6).billboard


@cache
def lottery() -> Billboard:
    """Indivisible goods, one option, half of the rounds at twice the price: coins decide."""
    market = Market(
        name="Garden plots", names=["plots"], units=["plots"], supply=[100.0], max_demand=1.0,
        max_value=10.0, agents=1000,
    )  # fmt: skip
    price = 2 * market.value_cap_code * PRICE_UNITS_PER_VALUE_CODE // 10 // DEMAND_CODE_MAX
    return finished_board(market, [(((1 + i % 2) * price,), 1) for i in range(20)], SHARE * 9 // 10)


def named(name: str, resource: str, unit: str) -> Billboard:
    """A billboard with malicious names."""
    market = Market(
        name=name, names=[resource, "plain"], units=[unit, ""], supply=[10.0, 10.0],
        max_demand=1.0, max_value=1.0, agents=10, options=2,
    )  # fmt: skip
    return finished_board(market, [((1, 1), 1)] * 3, SHARE)


@cache
def example(name: str) -> Billboard:
    """A billboard of a gallery market, at invented prices of about half the cap."""
    market = Market.from_toml(Path(__file__).parents[2] / "examples" / name / "market.toml")
    rng, m = np.random.default_rng(8), len(market.resources)
    level = market.value_cap_code * PRICE_UNITS_PER_VALUE_CODE / market.bundle_size / 4
    level = level / DEMAND_CODE_MAX * rng.uniform(0.5, 2.0, m)
    prices = [(level * rng.uniform(0.8, 1.2, m)).astype(np.int64).tolist() for _ in range(30)]
    return finished_board(market, [(tuple(row), 3) for row in prices], SHARE - 12_345)


def large(rounds: int = 300, m: int = 50) -> Billboard:
    """A long run of many goods, whose prices and answers have all their digits."""
    rng = np.random.default_rng(7)
    market = Market(
        name="Large", names=[f"good number {j}" for j in range(m)], units=["units"] * m,
        supply=rng.uniform(1e4, 1e6, m).tolist(), max_demand=10.0, max_value=100.0,
        agents=10**6, bundle_size=5,
    )  # fmt: skip
    budget = Budget(1.0, 1e-6, 0.02, 0.0, 1e-8)
    board = Billboard(Header(market, {"name": "newton"}, budget, SEED.commitment))
    supply = np.array(market.supply_codes)
    for _ in range(rounds):
        prices = (rng.lognormal(25.0, 0.5, m)).astype(np.int64).tolist()
        answer = (supply * rng.normal(1.0, 0.1, m)).astype(np.int64).tolist()
        step = Step("demand", tuple(prices), Gaussian(tuple((0.03 * supply).tolist())), 12_345)
        board.post(Release(step, tuple(answer)))
    factors, loads = tuple([SHARE - 3] * m), tuple(rng.uniform(0.5, 1.0, m).tolist())
    board.post(Certificate(factors, loads, budget.beta, 1e6, 1.1e6, 0.912345, 0.01))
    board.post(SEED)
    return board


def unfinished(board: Billboard, lines: int) -> Billboard:
    """The first lines of a billboard, as if its run were still under way."""
    return Billboard.from_text("".join(f"{line}\n" for line in list(board.lines())[:lines]))


# --- random agents ------------------------------------------------------------------------

KINDS: list[dict[str, Any]] = [
    {"divisible": True},
    {"divisible": False},
    {"divisible": False, "options": 4},
    {"divisible": True, "options": 3},
    {"divisible": False, "m": 40, "bundle_size": 3, "options": 2},
    {"divisible": True, "batches": 17},
    {"divisible": False, "batches": 1000, "options": 3, "m": 9, "bundle_size": 2},
    {"divisible": False, "m": 1, "scale": 1e90},
    {"divisible": False, "options": 2, "scale": 1e-60, "weights": 2**33},
    {"divisible": False, "wild": True, "options": 2},
    {"divisible": True, "max_total": 0.3, "options": 2},
    {"divisible": False, "max_total": 0.1, "m": 40, "bundle_size": 6, "scale": 1e-60},
]


def random_board(number: int) -> Billboard:
    """A finished billboard of one of the kinds, with prices at which agents waver."""
    kind = {"m": 4, "options": 1, "batches": 0, "scale": 1.0, "weights": 9} | KINDS[number]
    rng, m, scale = np.random.default_rng(100 + number), kind["m"], kind["scale"]
    supply, caps = scale * rng.uniform(50, 5000, m), scale * rng.uniform(0.1, 50, m)
    market = Market(
        name=f"kind {number}",
        supply=supply.tolist(),
        max_demand=caps.tolist(),
        max_value=float(rng.choice([1.0, 0.3, 1e6, 7e-9])),
        agents=5000,
        bundle_size=kind.get("bundle_size", m),
        options=kind["options"],
        max_total=_totals(kind, caps),
        divisible=kind["divisible"],
    )
    typical = market.value_cap_code * PRICE_UNITS_PER_VALUE_CODE / market.bundle_size
    level = typical / DEMAND_CODE_MAX
    count = kind["batches"] or 24
    prices = [
        np.minimum(PRICE_CODE_MAX, level * rng.uniform(0.05, 2.0, m)).astype(np.int64).tolist()
        for _ in range(count)
    ]
    if kind.get("wild"):
        for row in prices:
            row[rng.integers(m)] = int(rng.choice([0, PRICE_CODE_MAX, PRICE_CODE_MAX - 1, 1]))
    factors = rng.choice([SHARE, SHARE - 1, SHARE // 3, 9_876_543], m).tolist()
    if kind.get("wild"):
        factors[0] = 1
    if not kind["batches"]:
        weights = rng.integers(1, kind["weights"], count).tolist()
        return finished_board(market, list(zip(prices, weights, strict=True)), factors)
    budget = Budget(1.0, 1e-6, 0.02, 0.0, 1e-8)
    policy = MwuOnline(batch=5).to_dict()
    board = Billboard(Header(market, policy, budget, SEED.commitment, private=False))
    for index, row in enumerate(prices):
        step = Step("demand", tuple(row), Gaussian((1.0,)), 5, Batch(index, count))
        board.post(Release(step, (0,) * m))
    board.post(Certificate(tuple(factors), (0.5,) * m, budget.beta, 0.0, None, None, 0.01))
    board.post(SEED)
    return board


def _totals(kind: dict[str, Any], caps: Any) -> list[MaxTotal]:
    """Two bounds on totals that leave one resource free, each a fraction of the caps."""
    if "max_total" not in kind:
        return []
    names = [f"resource {j + 1}" for j in range(len(caps))]
    first, second = names[: len(caps) // 2], names[len(caps) // 2 + 1 :]
    amount = kind["max_total"] * float(caps.sum())
    return [MaxTotal(amount / 2, tuple(first)), MaxTotal(amount, tuple(second[::-1]))]


def random_agents(board: Billboard, count: int, seed: int) -> list[dict[str, Any]]:
    """Agents with all kinds of numbers: random, at bounds, beyond them, and where codes change."""
    random, market = Random(seed), board.header.market
    rounds = list(board.rounds)
    letters = "abcXYZ0189 -_.,;'\"<>&/éßñ漢字🩺\u0301\u200d\u2028\t"

    def amount(cap: float, step: float) -> float:
        edge = min(cap, random.randrange(int(cap / step) + 1) * step)
        near = [edge, math.nextafter(edge, math.inf), math.nextafter(edge, 0.0)]
        odd = [2.0 * cap, 0.0, cap * 1e-9, 5e-324, 1e308]
        kind = random.random()
        if kind < 0.5:
            return cap * random.random() if kind < 0.4 else cap
        return random.choice(near if kind < 0.8 else odd)

    def option() -> dict[str, Any]:
        demand = [0.0] * len(market.resources)
        for j in random.sample(range(len(demand)), random.randint(0, market.bundle_size)):
            demand[j] = amount(market.resources[j].max_demand, market.unit_sizes[j])
        value = amount(market.max_value, market.value_step)
        if random.random() < 0.5:  # worth exactly its cost in some round, or one code less
            ((_, codes),) = encoded(market, 0.0, demand)
            prices = random.choice(rounds).prices
            cost = sum(code * price for code, price in zip(codes, prices, strict=True))
            code = -(-cost // PRICE_UNITS_PER_VALUE_CODE) - random.randrange(2)
            value = min(market.max_value, max(0, code) * market.value_step)
        return {"value": value, "demand": demand}

    def id() -> str:
        kind = random.randrange(4)
        if kind == 0:
            return str(random.randrange(-(2**63), 2**63))
        if kind == 1:
            return str(random.randrange(10_000))
        return "".join(random.choices(letters, k=random.randrange(40)))

    return [
        {"id": id(), "options": [option() for _ in range(random.randint(1, market.options))]}
        for _ in range(count)
    ]
