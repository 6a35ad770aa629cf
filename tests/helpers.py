"""Shared by several tests: a plain reference in big integers, and small random markets.

The reference follows the definitions, and uses nothing of the code under test: one agent,
one option, one resource at a time, in Python's integers.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from jdpack import cli
from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Certificate, Header, Release, Seed, Step
from jdpack.door import SystemRandomness
from jdpack.errors import JdpackError
from jdpack.market.market import Columns, Market
from jdpack.policies.base import Policy
from jdpack.policies.newton import Newton
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import Gaussian
from jdpack.privacy.tail_bounds import Fit, Sum
from jdpack.protocol import bounds
from jdpack.records import tables
from jdpack.records.codes import BLOCK, Agents, Part, is_sparse
from jdpack.records.encode import encode

SHARE = 2**24
VALUE_UNITS = 2**20
CODE_MAX, VALUE_MAX = 65535, 2**32 - 1
BAND = 0.15

Option = tuple[int, tuple[int, ...]]
"""An option in codes: its value and its demand for each resource."""


# --- the reference ------------------------------------------------------------------------


def take(options: Sequence[Option], prices: Sequence[int]) -> int | None:
    """The option that an agent takes: the first of largest surplus, unless that is negative."""
    surplus = [
        value * VALUE_UNITS - sum(code * price for code, price in zip(codes, prices, strict=True))
        for value, codes in options
    ]
    best = max(surplus)
    return surplus.index(best) if best >= 0 else None


def total(agents: Sequence[Sequence[Option]], prices: Sequence[int]) -> tuple[list[int], int]:
    """Demand and welfare in codes."""
    demand, welfare = [0] * len(prices), 0
    for options in agents:
        taken = take(options, prices)
        if taken is not None:
            value, codes = options[taken]
            welfare += value
            demand = [d + code for d, code in zip(demand, codes, strict=True)]
    return demand, welfare


def share_of(options: Sequence[Option], rounds: Sequence[tuple[Sequence[int], int]]) -> list[int]:
    """The share of each option, in 1/SHARE: the weight of its rounds over that of all rounds."""
    won = [0] * len(options)
    for prices, weight in rounds:
        taken = take(options, prices)
        if taken is not None:
            won[taken] += weight
    return [w * SHARE // sum(weight for _, weight in rounds) for w in won]


def factors_of(options: Sequence[Option], factors: Sequence[int]) -> list[int]:
    """The factor of each option: the least of the resources it touches, or 1 if it touches none."""
    return [
        min([SHARE, *(factors[j] for j, code in enumerate(codes) if code > 0)])
        for _, codes in options
    ]


def scaled_of(shares: Sequence[int], factors: Sequence[int]) -> list[int]:
    """Shares after scaling, in 1/SHARE."""
    return [share * factor // SHARE for share, factor in zip(shares, factors, strict=True)]


def given_of(shares: Sequence[int], factors: Sequence[int], coin: int) -> list[int]:
    """All or nothing: the coin, a number in [0, 2^53), falls on one option's share or on none.

    The options lie side by side, each as wide as its share. Only the first part of each option,
    as long as its factor says, wins.
    """
    place = Fraction(coin, 2**53) * SHARE
    begins = [sum(shares[:o]) for o in range(len(shares))]
    return [
        SHARE if begin <= place < begin + Fraction(share * factor, SHARE) else 0
        for begin, share, factor in zip(begins, shares, factors, strict=True)
    ]


def welfare_of(agents: Sequence[Sequence[Option]], shares: Sequence[int]) -> int:
    """The value of shares in value codes, rounded down for every option."""
    options = [option for several in agents for option in several]
    return sum(value * share // SHARE for (value, _), share in zip(options, shares, strict=True))


def luck_of(
    options: Sequence[Option],
    shares: Sequence[int],
    given: Sequence[int],
    lowest: int,
    highest: int,
) -> int:
    """What an agent gets beyond its averaged share, in value codes, cut to a range."""
    luck = sum(
        value * g // SHARE - value * s // SHARE
        for (value, _), s, g in zip(options, shares, given, strict=True)
    )
    return max(lowest, min(highest, luck))


def chance_of(options: Sequence[Option], shares: Sequence[int], dearest: int) -> list[Fraction]:
    """The variances of the codes that an agent's coin grants, and of their value; in 2^14 units.

    Values are in units of dearest / 2^16, above the least that the agent can get.
    """
    taken = [(*option, share) for option, share in zip(options, shares, strict=True) if share]
    certain = len(options) > 1 and sum(shares) >= SHARE - len(options)
    least = min(value for value, _, _ in taken) if taken and certain else 0
    rows = [
        (*codes, min(-(-(value - least) * 2**16 // dearest), 2**16), share)
        for value, codes, share in taken
    ]
    if not rows or any(share == SHARE for *_, share in rows):
        return [Fraction(0)] * (len(options[0][1]) + 1)
    *columns, odds = zip(*rows, strict=True)
    return [
        (
            sum(
                Fraction(code * code * share, SHARE)
                for code, share in zip(column, odds, strict=True)
            )
            - sum(Fraction(code * share, SHARE) for code, share in zip(column, odds, strict=True))
            ** 2
        )
        / 2**14
        for column in columns
    ]


def check_chance(
    found: Sequence[int],
    agents: Sequence[Sequence[Option]],
    shares: Sequence[Sequence[int]],
    dearest: int,
) -> None:
    """Check an answer to `chance`: variances are rounded up for each agent, and hardly further."""
    exact = [chance_of(*agent, dearest) for agent in zip(agents, shares, strict=True)]
    for answer, each in zip(found, zip(*exact, strict=True), strict=True):
        most = sum(math.ceil(variance + Fraction(1, 1000)) for variance in each if variance)
        assert sum(map(math.ceil, each)) <= answer <= most


def close_call(
    options: Sequence[Option], prices: Sequence[int]
) -> tuple[list[int], list[int], int] | None:
    """The two best choices of an agent, if they are close: `curvature` and `gauge` count these.

    Returns their difference in codes, its costs in price units, and the sum of their two costs.
    Taking nothing is a choice too. Choices are ordered by surplus. On a tie, the earlier option is
    better; nothing ranks below an option that ties with the best choice, and above
    all others. Surpluses and costs of close choices are integers below 2^53, which
    doubles hold exactly; only the comparison with the band rounds, once.
    """
    m = len(prices)
    choices = []
    for o, (value, codes) in enumerate(options):
        cost = sum(code * price for code, price in zip(codes, prices, strict=True))
        choices.append((value * VALUE_UNITS - cost, -o, cost, list(codes)))
    choices.sort(key=lambda choice: choice[:2], reverse=True)
    nothing = (0, 0, 0, [0] * m)
    if choices[0][0] < 0:
        first, second = nothing, choices[0]
    elif len(choices) > 1 and choices[1][0] > 0:
        first, second = choices[0], choices[1]
    else:
        first, second = choices[0], nothing
    costs = first[2] + second[2]
    if costs == 0 or first[0] - second[0] > BAND * float(costs):
        return None
    difference = [a - b for a, b in zip(first[3], second[3], strict=True)]
    return difference, [d * p for d, p in zip(difference, prices, strict=True)], costs


def curvature_of(agents: Sequence[Sequence[Option]], prices: Sequence[int]) -> list[int]:
    """The curvature, row by row: products of d_j times the root of a price over the two costs."""
    m = len(prices)
    total = [0] * (m * m)
    for options in agents:
        call = close_call(options, prices)
        if call is not None:
            d, _, costs = call
            roots = [math.sqrt(1024.0 * float(p) / float(costs)) for p in prices]
            v = [int(a * root) for a, root in zip(d, roots, strict=True)]  # towards 0
            total = [sum_ + v[i // m] * v[i % m] for i, sum_ in enumerate(total)]
    return total


def gauge_of(agents: Sequence[Sequence[Option]], prices: Sequence[int]) -> list[int]:
    """The curvature's diagonal, its level and its spread."""
    m = len(prices)
    total = [0] * (m + 2)
    for options in agents:
        call = close_call(options, prices)
        if call is not None:
            d, spent, costs = call
            t = [int(1024.0 * float(s) / float(costs)) for s in spent]
            diagonal = [a * b for a, b in zip(d, t, strict=True)]
            net = float(sum(spent))
            level = int(1024.0 * (net / float(costs)) * (net / float(sum(prices))))
            spread = max(0, sum(diagonal) - level)
            more = [*diagonal, level, spread]
            total = [a + b for a, b in zip(total, more, strict=True)]
    return total


def load_of(agents: Sequence[Sequence[Option]], shares: Sequence[int]) -> list[int]:
    """The load of shares (one per option, agent by agent), in code / SHARE."""
    options = [option for several in agents for option in several]
    m = len(options[0][1])
    return [sum(o[1][j] * s for o, s in zip(options, shares, strict=True)) for j in range(m)]


def coin_of(seed: bytes, agent: int | str, hash: str = "siphash-2-4") -> int:
    """The 53 high bits of the id's text under the seed: by SipHash-2-4, or by SHA-256."""
    if hash == "sha-256":
        return int(hashlib.sha256(f"{seed.hex()} {agent}".encode()).hexdigest()[:16], 16) >> 11
    return sip_hash(seed, str(agent).encode()) >> 11


def sip_hash(key: bytes, message: bytes) -> int:
    """SipHash-2-4 as in the figure of Aumasson & Bernstein 2012."""
    low, high = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    a, b, c, d = (
        k ^ int.from_bytes(word, "big")
        for k, word in zip(
            (low, high, low, high),
            (b"somepseu", b"dorandom", b"lygenera", b"tedbytes"),
            strict=True,
        )
    )

    def rotated(x: int, bits: int) -> int:
        return (x << bits | x >> 64 - bits) % 2**64

    def mixed(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
        a, c = (a + b) % 2**64, (c + d) % 2**64
        b, d, a = rotated(b, 13) ^ a, rotated(d, 16) ^ c, rotated(a, 32)
        c, a = (c + b) % 2**64, (a + d) % 2**64
        return a, rotated(b, 17) ^ c, rotated(c, 32), rotated(d, 21) ^ a

    zeros = bytes(7 - len(message) % 8)
    whole = message + zeros + bytes([len(message) % 256])
    for start in range(0, len(whole), 8):
        word = int.from_bytes(whole[start : start + 8], "little")
        a, b, c, d = mixed(*mixed(a, b, c, d ^ word))
        a ^= word
    a, b, c, d = mixed(*mixed(*mixed(*mixed(a, b, c ^ 255, d))))
    return a ^ b ^ c ^ d


# --- records ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Records:
    """Agents as people would write them: an id, and options with a value and amounts."""

    market: Market
    ids: list[Any]
    agents: list[list[tuple[float, list[float]]]]

    @property
    def rows(self) -> list[tuple[Any, int, float, list[float]]]:
        """One row per option: id, number of the option, value, amounts."""
        return [
            (agent, o, value, amounts)
            for agent, options in zip(self.ids, self.agents, strict=True)
            for o, (value, amounts) in enumerate(options)
        ]

    def arrays(self) -> dict[str, Any]:
        rows = self.rows
        return {
            "values": np.array([value for _, _, value, _ in rows]),
            "demands": np.array([amounts for _, _, _, amounts in rows]),
            "ids": [agent for agent, _, _, _ in rows],
        }

    def codes(self) -> list[list[Option]]:
        """The codes of every agent, from the market's own scalar functions."""
        market = self.market
        return [
            [
                (
                    market.value_code(value),
                    tuple(market.demand_code(j, a) if a else 0 for j, a in enumerate(amounts)),
                )
                for value, amounts in options
            ]
            for options in self.agents
        ]

    def encode(self, *, clamp: bool = False) -> Agents:
        return encode(self.market, tables.array_pieces(self.market, **self.arrays()), clamp=clamp)


def wide_table(records: Records) -> pa.Table:
    """The records, one row per option."""
    rows, market = records.rows, records.market
    columns = {"id": [agent for agent, _, _, _ in rows], "value": [v for _, _, v, _ in rows]}
    for j, r in enumerate(market.resources):
        columns[r.column] = [amounts[j] for _, _, _, amounts in rows]
    return pa.table(columns)


def long_table(records: Records) -> pa.Table:
    """The records, one row per pair of option and resource."""
    columns = {"id": [], "value": [], "resource": [], "amount": []}
    if records.market.options > 1:
        columns["option"] = []
    for agent, option, value, amounts in records.rows:
        pairs = [(r.column, a) for r, a in zip(records.market.resources, amounts, strict=True) if a]
        for resource, amount in pairs or [(None, None)]:
            row = (agent, value, resource, amount, f"option {option}")
            for column, item in zip(columns.values(), row, strict=False):
                column.append(item)
    return pa.table(columns)


def random_market(
    rng: np.random.Generator, *, agents: int, sparse: bool = False, options: int = 1, **more: Any
) -> Market:
    """A market of odd sizes: supplies and caps of any magnitude, dense or sparse codes."""
    m = int(rng.integers(9, 14)) if sparse else int(rng.integers(1, 5))
    supply = 10.0 ** rng.uniform(-3, 6, m)
    return Market(
        supply=supply.tolist(),
        max_demand=(supply * rng.uniform(0.001, 1.0, m)).tolist(),
        max_value=float(10.0 ** rng.uniform(-3, 6)),
        agents=agents,
        bundle_size=2 if sparse else m,
        options=options,
        **more,
    )


def even_market(m: int = 2, n: int = 1000, b: float = 100.0, **more: Any) -> Market:
    """A market of divisible goods with the same supply and cap."""
    given = {"max_demand": 1.0, "max_value": 1.0, "agents": n, "divisible": True}
    return Market(**{"supply": [b] * m, **given, **more})


def whole_market(
    m: int, *, agents: int, sparse: bool = False, options: int = 1, **more: Any
) -> Market:
    """A market whose demand codes are the amounts, and whose value codes are the values."""
    return Market(
        supply=[65535.0 * 1000.0] * m,
        max_demand=65535.0,
        max_value=2.0**32 - 1,
        agents=agents,
        bundle_size=max(1, (m - 2) // 2) if sparse else m,
        options=options,
        **more,
    )


def drawn_agents(draw: Any, market: Market, prices: Sequence[int], codes: Any, values: Any) -> Any:
    """A few agents in codes, drawn by Hypothesis; some values equal the cost, some options tie."""
    agents, m = [], len(market.resources)
    for _ in range(market.agents):
        offers = []
        for _ in range(draw(st.integers(1, market.options))):
            demand = [0] * m
            for j in draw(st.permutations(range(m)))[: draw(st.integers(0, market.bundle_size))]:
                demand[j] = draw(codes)
            cost = sum(c * p for c, p in zip(demand, prices, strict=True))
            tie = min(-(-cost // VALUE_UNITS), VALUE_MAX)
            offers.append((draw(values | st.sampled_from([tie, max(0, tie - 1)])), demand))
        if len(offers) > 1 and draw(st.booleans()):
            offers[-1] = offers[0]  # the first of two equal options is taken
        agents.append(offers)
    return agents


@functools.cache
def many(sparse: bool, options: int, agents: int) -> Records:
    """Random agents in codes: with thousands there are rows for several blocks and threads."""
    rng = np.random.default_rng([sparse, options])
    m = 8 if sparse else 3
    market = whole_market(m, agents=agents, sparse=sparse, options=options)
    assert is_sparse(market) == sparse
    offers = []
    for _ in range(agents):
        several = []
        for _ in range(int(rng.integers(1, options + 1))):
            size = rng.choice([0, 1, 1, 1, *[market.bundle_size] * 3]) if sparse else m
            touched = rng.permutation(m) < size
            demand = (rng.integers(0, 65536, m) * touched).tolist()
            several.append((int(rng.integers(0, 2**32)), demand))
        offers.append(several)
    ids = [int(i) for i in rng.permutation(10 * agents)[:agents] - 5 * agents]
    return Records(market, ids, offers)


def random_records(
    rng: np.random.Generator, market: Market, *, ids: Sequence[Any] | None = None
) -> Records:
    """Agents with 1 to `market.options` options; the numbers include bounds, zeros and ties."""
    n, m = market.agents, len(market.resources)
    agents = []
    for _ in range(n):
        options = []
        for _ in range(int(rng.integers(1, market.options + 1))):
            amounts = [0.0] * m
            for j in rng.permutation(m)[: rng.integers(0, market.bundle_size + 1)]:
                part = rng.choice([rng.random(), 1.0, 1e-9])
                amounts[j] = market.resources[j].max_demand * float(part)
            options.append(
                (market.max_value * float(rng.choice([rng.random(), 0.5, 1.0])), amounts)
            )
        agents.append(options)
    return Records(market, list(ids) if ids is not None else list(range(n)), agents)


def over_parts(query, parts: list[Part], prices) -> tuple[int, ...]:
    """A query of `best_response`, summed over parts in plain integers."""
    if not parts:
        return (0,) * len(prices)
    codes = np.array(prices, dtype=np.float64)
    each = [query(part, codes).ravel().tolist() for part in parts]
    return tuple(sum(numbers) for numbers in zip(*each, strict=True))


def decode(agents: Agents) -> list[list[Option]]:
    """The options of every agent, read back from the storage, dense or sparse."""
    found: list[list[Option]] = []
    for part in agents.parts:
        for block, fill in enumerate(part.fill.tolist()):
            codes = np.zeros((fill, len(agents.market.resources)), np.int64)
            if part.resources is None:
                codes[:] = part.codes[block, :, :fill].T
            else:
                for slot in range(int(part.offsets[block]), int(part.offsets[block + 1]), BLOCK):
                    pairs = slice(slot, slot + fill)  # rows without a pair there have code 0
                    np.add.at(codes, (np.arange(fill), part.resources[pairs]), part.codes[pairs])
                rest = slice(int(part.rest_offsets[block]), int(part.rest_offsets[block + 1]))
                where = part.rest_rows[rest], part.rest_resources[rest]
                np.add.at(codes, where, part.rest_codes[rest])
            starts = part.starts[block] if part.starts.size else np.ones(fill)
            values = part.values[block, :fill].tolist()
            for start, value, demand in zip(
                starts[:fill].tolist(), values, codes.tolist(), strict=True
            ):
                if start:
                    found.append([])
                found[-1].append((value, tuple(demand)))
    return found


# --- the command line -------------------------------------------------------------------


def run_cli(monkeypatch, capsys, *arguments):
    """The command line in this process: exit code, stdout, stderr."""
    monkeypatch.setattr(sys, "argv", ["jdpack", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return stop.value.code, captured.out, captured.err


# --- refusals -----------------------------------------------------------------------------


def forbid_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, drawing noise or releasing anything fails the test."""

    def drawn(*_: Any, **__: Any) -> None:
        raise AssertionError("something was drawn")

    monkeypatch.setattr(importlib.import_module("jdpack.run.loop"), "release", drawn)
    monkeypatch.setattr(SystemRandomness, "draw", drawn)


def check_error(error: JdpackError, says, hint="", longest=400):
    """The error is one sentence with the values in it, and a hint where that helps."""
    assert "\n" not in error.message and len(error.message) < longest
    assert error.message.isprintable()
    assert not error.message.endswith(".") or "file." in error.message
    for part in says:
        assert part in error.message
    assert hint in error.hint
    if hint:
        assert str(error) == f"{error.message}\nhint: {error.hint}"


# --- billboards ---------------------------------------------------------------------------


def open_board(
    market: Market,
    rounds: Sequence[tuple[Sequence[int], int]],
    seed: bytes = bytes(range(16)),
    budget: Budget = Budget(1.0, 1e-6, 0.02, 0.0, 1e-8),  # noqa: B008 (it is frozen)
) -> Billboard:
    """The billboard of a run whose policy has stopped; all answers are zero."""
    m, policy = len(market.resources), Newton().to_dict()
    board = Billboard(Header(market, policy, budget, Seed(seed).commitment, private=False))
    for prices, weight in rounds:
        step = Step("demand", tuple(prices), Gaussian((1.0,)), weight)
        board.post(Release(step, (0,) * m))
    return board


def finished_board(
    market: Market,
    rounds: Sequence[tuple[Sequence[int], int]],
    factors: int | Sequence[int],
    seed: bytes = bytes(range(16)),
) -> Billboard:
    """A finished billboard with the given prices, weights and factors; all answers are zero."""
    m, board = len(market.resources), open_board(market, rounds, seed)
    each = (factors,) * m if isinstance(factors, int) else tuple(factors)
    assert len(each) == m
    beta = board.header.budget.beta
    board.post(Certificate(each, (0.0,) * m, beta, 0.0, None, None, 0.01))
    board.post(Seed(seed))
    return board


LONG = Columns(layout="long")


# --- policies -----------------------------------------------------------------------------


def played(
    policy: Policy[Any], market: Market, budget: Budget, answers: Iterable[Sequence[int]]
) -> list[Step]:
    """The steps of a run with these answers, and the next step if there is one.

    The policy asks only for demand.
    """
    state, steps = policy.start(market, budget), []
    for answer in answers:
        step = policy.step(state)
        assert step is not None and step.query == "demand"
        steps.append(step)
        state = policy.observe(state, Release(step, tuple(answer)))
    last = policy.step(state)
    return [*steps, last] if last is not None else steps


def check_prices(
    steps: Sequence[Step], expected: Sequence[Sequence[Decimal]], within: str = "1e-11"
) -> None:
    """Check the posted prices, up to rounding to codes and relative errors of doubles."""
    assert len(steps) == len(expected)
    for step, prices in zip(steps, expected, strict=True):
        for code, price in zip(step.prices, prices, strict=True):
            assert abs(code - price) <= Decimal("0.5") + abs(price) * Decimal(within)


# --- charts -------------------------------------------------------------------------------


def marks_of(svg: str) -> list[tuple[str, float, float]]:
    """The marks of a chart in order: their kind, and where their middle is."""
    dot = r'<circle class="dot (?P<dot>\w+)" cx="(?P<x>[\d.]+)" cy="(?P<y>[\d.]+)"'
    diamond = r'<path class="dot load" d="M(?P<dx>-?[\d.]+) (?P<dy>[\d.]+)l'
    cross = r'<path class="line bad" d="M(?P<cx>-?[\d.]+) (?P<cy>[\d.]+)l8 8'
    found = []
    for m in re.finditer(f"{dot}|{diamond}|{cross}", svg):
        if m["dot"]:
            found.append((m["dot"], float(m["x"]), float(m["y"])))
        elif m["dx"]:
            found.append(("load", float(m["dx"]) + 4.5, float(m["dy"])))
        else:
            found.append(("bad", float(m["cx"]) + 4.0, float(m["cy"]) + 4.0))
    return found


def places_of(svg: str, kind: str) -> list[float]:
    """Where the vertical lines of a lane chart are."""
    paths = re.findall(rf'<path class="{kind}" d="([^"]*)"', svg)
    return [float(x) for path in paths for x in re.findall(r"M([\d.]+)", path)]


def smaller_radii(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """Bounds that are too small, for negative controls, without the cap for neighbours."""
    radius, fits = Sum.radius, Sum.fits

    def fewer(*given: Any, **more: Any) -> list[Fit]:
        return [replace(fit, radius=times * fit.radius) for fit in fits(*given, **more)]

    monkeypatch.setattr(Sum, "radius", lambda *given, **more: times * radius(*given, **more))
    monkeypatch.setattr(Sum, "fits", fewer)
    monkeypatch.setattr(bounds, "_spare", lambda board: [0.0] * len(board.header.market.resources))
