"""Private: recomputes every exact answer and every allocation from the definitions.

This is the audit's own arithmetic. It shares no code with the engines, the kernels, the encoder,
the bulk coins or the agent's function: it encodes the records itself, lets every agent choose, and
sums plain integers. From the rest of jdpack it takes only the market's public numbers (the grid,
the caps) and the billboard.

`queries.change` defines the queries, `jdpack.allocate` the allocation, `Combined.allocate` the
repair, `jdpack.common.coins` the coins (SipHash-2-4) and `jdpack.common.batches` the turns.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jdpack.audit.people import People
from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Step
from jdpack.common.batches import Batch
from jdpack.market.grid import BAND, CURVATURE_UNIT, PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.market.market import Market
from jdpack.market.totals import Total

Ints = NDArray[Any]
"""Integers: 64-bit where they fit, otherwise Python's own."""

COINS = 2**53
"""A coin is an integer from 0 to below this."""
GRAIN = COINS // SHARE
TOP = 2**16 - 1
"""The code of every cap."""
_REMEMBERED = 2**21  # choices


@dataclass(frozen=True)
class CountedRounds:
    """The rounds that count and the public order, which fix the averaged allocation."""

    steps: tuple[Step, ...]
    order: bytes

    @property
    def weight(self) -> int:
        """The total weight of the rounds that ask one agent: all rounds, or one batch."""
        if self.steps and self.steps[0].batch is not None:
            return self.steps[0].weight
        return sum(step.weight for step in self.steps)


@dataclass(frozen=True)
class Given:
    """What every agent gets, and what the repair did."""

    shares: Ints
    """One per row, in units of 1/SHARE."""
    loads: tuple[int, ...]
    """One per resource, in units of code / SHARE."""
    value: int
    """The total value in value codes, rounded down for every row."""
    winners: int
    taking: int
    """How many agents take something in some round that counts."""
    before: int
    """How many agents would have got something without a repair."""
    drop_from: int
    """The repair drops agents with this coin or a larger one; COINS if it drops nobody."""


class Reference:
    """The agents of a data set, each following its own rule."""

    def __init__(self, people: People) -> None:
        self.market, self.ids = people.market, people.ids
        options = [option for record in people.agents for option in record]
        self.agent = np.repeat(np.arange(len(people.ids)), [len(r) for r in people.agents])
        self.names: list[tuple[Any, str]] = []
        """The id and the name of each request."""
        counts = []
        for place, id in enumerate(people.ids):
            if self.market.requests == 1:
                self.names.append((id, ""))
                counts.append(len(people.agents[place]))
                continue
            for name, own in itertools.groupby(people.names_of(place)):
                self.names.append((id, name))
                counts.append(len(list(own)))
        self.starts = np.cumsum([0, *counts])[:-1]
        self.owner = np.repeat(np.arange(len(counts)), counts)
        """The request of each row."""
        self.single = all(count == 1 for count in counts)
        self.values = value_codes(self.market, np.array([value for value, _ in options]))
        self.demands = demand_codes(self.market, np.array([amounts for _, amounts in options]))
        self.left_out = np.zeros(len(options), bool)
        if self.market.requests > 1:
            self._leave_out(people.starts.tolist())
        self.answers: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
        """Those of whole runs (`recording.true_answers`)."""
        self._taken: dict[tuple[int, ...], Ints] = {}
        self._places: dict[bytes, list[int]] = {}
        self._coins: dict[bytes, Ints] = {}
        self._shares: dict[CountedRounds, Ints] = {}

    def _leave_out(self, starts: Iterable[int]) -> None:
        """Leave out the requests of each person beyond its bounds; `starts` are the first rows.

        In fractions, from the definition: a request counts with the largest of its options, and a
        code with the amounts that it is sure to exceed.
        """
        market, person = self.market, self.market.person
        sizes = [Fraction(unit) for unit in market.unit_sizes]
        numbers = {r.name: j for j, r in enumerate(market.declared)}
        bounds = [([numbers[name]], amount) for name, amount in person.max_demand.items()]
        bounds += [
            ([numbers[n] for n in total.resources or numbers], total.amount)
            for total in person.max_total
        ]
        most = [Fraction(person.requests), *(Fraction(amount) for _, amount in bounds)]
        if person.max_value is not None:
            most.append(Fraction(person.max_value))
        width = math.inf if person.bundle_size is None else person.bundle_size
        firsts, total, asked, wide = set(starts), list[Fraction](), set[int](), 0
        for first, end in itertools.pairwise([*self.starts.tolist(), len(self.owner)]):
            if first in firsts:
                total, asked, wide = [Fraction(0)] * len(most), set(), 0
            codes = self.demands[first:end, : len(numbers)].tolist()
            own = [
                max(sum(max(row[j] - 1, 0) * sizes[j] for j in among) for row in codes)
                for among, _ in bounds
            ]
            value = int(self.values[first:end].max()) * Fraction(market.value_step)
            more = [1, *own, value][: len(most)]
            after = [a + b for a, b in zip(total, more, strict=True)]
            named = asked | {j for row in codes for j, code in enumerate(row) if code}
            wider = wide + max(sum(code > 0 for code in row) for row in codes)
            if all(a <= b for a, b in zip(after, most, strict=True)) and (
                min(len(named), wider) <= width
            ):
                total, asked, wide = after, named, wider
            else:
                self.left_out[first:end] = True
                self.values[first:end], self.demands[first:end] = 0, 0

    # --- one round ------------------------------------------------------------------------

    def costs(self, prices: Sequence[int]) -> Ints:
        """What each row costs, exactly."""
        most = int(self.demands.max(initial=0)) * sum(prices)
        kind: Any = np.int64 if most < 2**62 else object
        cost: Ints = self.demands.astype(kind) @ np.array(prices, dtype=kind)
        return cost

    def surpluses(self, prices: Sequence[int]) -> tuple[Ints, Ints]:
        """The cost and the surplus of each row."""
        cost = self.costs(prices)
        return cost, self.values.astype(cost.dtype) * PRICE_UNITS_PER_VALUE_CODE - cost

    def taken(self, prices: tuple[int, ...]) -> Ints:
        """1 for each row that its agent takes: the first of largest surplus, if that is >= 0."""
        if prices not in self._taken:
            surplus = self.surpluses(prices)[1]
            worth = surplus >= 0
            if not self.single:
                best = np.maximum.reduceat(surplus, self.starts)
                rows = np.flatnonzero(worth & (surplus == best[self.owner]))
                _, first = np.unique(self.owner[rows], return_index=True)
                worth = np.zeros(len(surplus), bool)
                worth[rows[first]] = True
            if len(self._taken) * len(surplus) > _REMEMBERED:
                self._taken.clear()
            self._taken[prices] = worth.astype(np.int64)
        return self._taken[prices]

    def demand(
        self, prices: tuple[int, ...], batch: Batch | None = None, order: bytes = b""
    ) -> tuple[int, ...]:
        rows = self.taken(prices)
        if batch is not None:
            rows = rows * (self.turns(order, batch.count) == batch.index)
        return _whole(rows @ self.demands)

    def block(self, step: Step, rounds: CountedRounds) -> tuple[int, ...]:
        """The demand of the step's batch and of those before it in its span."""
        total = np.array(self.demand(step.prices, step.batch, rounds.order))
        if step.batch is not None:
            for other in rounds.steps:
                assert other.batch is not None
                if step.batch.index - step.span < other.batch.index < step.batch.index:
                    total += self.demand(other.prices, other.batch, rounds.order)
        return _whole(total)

    def scale(self, prices: tuple[int, ...]) -> int:
        supplies = self.market.supply_codes
        least = min(supplies)
        parts = zip(supplies, self.demand(prices), strict=True)
        return max(least, *(math.floor(abs(Fraction(s - d, s)) * least) for s, d in parts))

    def value(self, prices: tuple[int, ...]) -> int:
        return int(self.taken(prices) @ self.values)

    def close_calls(self, prices: tuple[int, ...]) -> tuple[Ints, NDArray[np.float64]]:
        """For each close call: the codes of the best choice minus the second, and their cost.

        A call is close if the surpluses of the two differ by at most BAND times the sum of their
        costs. Taking nothing is a choice too: it costs nothing and its surplus is 0.
        """
        cost, surplus = self.surpluses(prices)
        if self.single:
            rough = cost.astype(np.float64)
            near = (cost > 0) & (np.abs(surplus).astype(np.float64) <= BAND * rough)
            return self.demands[near], rough[near]
        differences, sums = [], []
        nothing = np.zeros(len(prices), np.int64)
        for first, end in zip(self.starts, [*self.starts[1:], len(cost)], strict=True):
            # Sort by surplus; on a tie the earlier option wins. Taking nothing ranks before a
            # second option of surplus 0, but after a first one.
            rows = sorted(range(first, end), key=lambda row: -surplus[row])
            choices = [(int(surplus[r]), int(cost[r]), self.demands[r]) for r in rows[:2]]
            choices.insert(
                0 if choices[0][0] < 0 else 1 if len(choices) == 1 or choices[1][0] <= 0 else 2,
                (0, 0, nothing),
            )
            (best, dear, one), (next_best, cheap, two) = choices[:2]
            if dear + cheap > 0 and best - next_best <= BAND * float(dear + cheap):
                differences.append(one - two)
                sums.append(float(dear + cheap))
        return np.array(differences, np.int64).reshape(-1, len(prices)), np.array(sums)

    def parts(
        self, prices: tuple[int, ...]
    ) -> tuple[Ints, Ints, NDArray[np.float64], NDArray[np.float64]]:
        """For each close call: d, t = trunc(unit d price / costs), sum d price, and costs."""
        d, costs = self.close_calls(prices)
        priced = d.astype(np.float64) * np.array(prices, np.float64)
        t = np.trunc(float(CURVATURE_UNIT) * priced / costs[:, None]).astype(np.int64)
        return d, t, priced.sum(axis=1), costs

    def curvature(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        d, costs = self.close_calls(prices)
        per_code = float(CURVATURE_UNIT) * np.array(prices, np.float64) / costs[:, None]
        v = np.trunc(d * np.sqrt(per_code)).astype(np.int64)
        return _whole((v.T @ v).ravel())

    def gauge(self, prices: tuple[int, ...]) -> tuple[int, ...]:
        d, t, net, costs = self.parts(prices)
        whole = math.fsum(float(p) for p in prices)
        each = d * t
        level = np.zeros(len(net), np.int64)
        if len(net):
            level = np.trunc(float(CURVATURE_UNIT) * (net / costs) * (net / whole)).astype(np.int64)
        spread = np.maximum(each.sum(axis=1) - level, 0)
        return (*_whole(each.sum(axis=0)), int(level.sum()), int(spread.sum()))

    # --- all rounds -----------------------------------------------------------------------

    def turns(self, order: bytes, count: int) -> Ints:
        """The batch of each row's agent."""
        if order not in self._places:
            places = siphash(order, [str(id).encode() for id in self.ids]) >> 11
            self._places = {order: places.tolist()}
        return np.array([(p >> 9) * count >> 44 for p in self._places[order]])[self.agent]

    def coins(self, key: bytes) -> Ints:
        """The coin of each request, from 0 to COINS - 1."""
        if key not in self._coins:
            texts = [str(id).encode() for id, _ in self.names]
            if self.market.requests > 1:
                named = zip(texts, self.names, strict=True)
                texts = [b"%d:%b:%b" % (len(id), id, name.encode()) for id, (_, name) in named]
            self._coins = {key: siphash(key, texts) >> 11}
        return self._coins[key]

    def shares(self, rounds: CountedRounds) -> Ints:
        """The averaged share of each row, before scaling and coins."""
        if rounds not in self._shares:
            won = np.zeros(len(self.values), np.int64)
            for step in rounds.steps:
                rows = step.weight * self.taken(step.prices)
                if step.batch is not None:
                    rows = rows * (self.turns(rounds.order, step.batch.count) == step.batch.index)
                won += rows
            self._shares = {rounds: won * SHARE // rounds.weight}
        return self._shares[rounds]

    def welfare(self, rounds: CountedRounds) -> int:
        return int((self.values * self.shares(rounds) // SHARE).sum())

    def unrepaired(self, rounds: CountedRounds, seed: bytes, factors: Sequence[int]) -> Ints:
        """What each row gets by its agent's own function, in units of 1/SHARE."""
        shares, touched = self.shares(rounds), self.demands > 0
        own: Ints = np.where(touched, np.array(factors, np.int64), SHARE).min(axis=1)
        own = np.where(self.left_out, 0, own)
        if self.market.divisible:
            return shares * own // SHARE
        # An agent's options lie side by side on [0, COINS), each as wide as its share.
        ends = np.cumsum(shares)
        begins = ends - shares
        begins -= begins[self.starts][self.owner]
        coins = self.coins(seed).astype(np.int64)[self.owner]
        first, width = begins * GRAIN, shares * own * (GRAIN // SHARE)
        given: Ints = np.where((first <= coins) & (coins < first + width), SHARE, 0)
        return given

    def granted(self, rounds: CountedRounds, seed: bytes) -> tuple[int, ...]:
        """The codes of what the coins grant."""
        everything = (SHARE,) * len(self.market.resources)
        return tuple(
            load // SHARE for load in self._loads(self.unrepaired(rounds, seed, everything))
        )

    def chance(self, rounds: CountedRounds, dearest: int) -> tuple[int, ...]:
        """The variances that coins add to each load and to the value.

        The value of an option counts from the least that its agent can get: nothing, unless the
        shares of several options fill the whole interval except for the gaps that rounding leaves.
        """
        shares = self.shares(rounds)
        whole = np.add.reduceat(shares, self.starts)
        count = np.diff([*self.starts, len(shares)])
        worth = np.where(shares > 0, self.values, 2**62)
        open_ = (count == 1) | (whole < SHARE - count)
        least = np.where(open_, 0, np.minimum.reduceat(worth, self.starts))
        above = np.where(shares > 0, self.values - least[self.owner], 0)
        value = np.minimum(-(-above * 2**16 // dearest), 2**16)
        return (*(self._variance(c, shares) for c in self.demands.T), self._variance(value, shares))

    def _variance(self, codes: Ints, shares: Ints) -> int:
        """The sum over agents of the variance of the code granted, rounded up for each agent.

        The unit is 2^14 squared codes. The mean is rounded down to 2^-14 codes first. In units of
        2^-28 squared codes, no number here is above 2^60.
        """
        mean = np.add.reduceat(codes * shares, self.starts) // 2**10
        squares = np.add.reduceat(codes * codes * shares, self.starts) * 2**4
        return int(-((mean * mean - squares) // 2**42).sum())

    def luck(
        self, rounds: CountedRounds, seed: bytes, factors: Sequence[int], lowest: int, highest: int
    ) -> int:
        given, shares = self.unrepaired(rounds, seed, factors), self.shares(rounds)
        each = self.values * given // SHARE - self.values * shares // SHARE
        return int(np.clip(np.add.reduceat(each, self.starts), lowest, highest).sum())

    def given(self, rounds: CountedRounds, seed: bytes, factors: Sequence[int]) -> Given:
        """What every agent gets: its own function, then a repair if and only if that does not fit.

        The repair drops the agents with the largest coins, as few as possible. Where a supply may
        rarely be exceeded, there is none.
        """
        rows, limits = self.unrepaired(rounds, seed, factors), self.market.supply_codes
        coins = self.coins(seed).astype(np.int64)
        winning = np.maximum.reduceat(rows, self.starts) > 0
        before, drop_from = int(winning.sum()), COINS
        order = iter(np.argsort(-coins).tolist())
        loads = self._loads(rows)
        never = self.market.excess_probability == 0.0
        while never and any(load > s * SHARE for load, s in zip(loads, limits, strict=True)):
            agent = next(order)
            own = slice(self.starts[agent], [*self.starts, len(rows)][agent + 1])
            loads = tuple(
                load - int(out)
                for load, out in zip(loads, rows[own] @ self.demands[own], strict=True)
            )
            drop_from = int(coins[agent])
        dropped = coins[self.owner] >= drop_from
        rows = np.where(dropped, 0, rows)
        return Given(
            shares=rows,
            loads=self._loads(rows),
            value=int((self.values * rows // SHARE).sum()),
            winners=int((np.maximum.reduceat(rows, self.starts) > 0).sum()),
            taking=int((np.maximum.reduceat(self.shares(rounds), self.starts) > 0).sum()),
            before=before,
            drop_from=drop_from,
        )

    def _loads(self, rows: Ints) -> tuple[int, ...]:
        high, low = rows >> 12, rows & 0xFFF  # keeps the sums of many rows within 64 bits
        return tuple(
            (int(h) << 12) + int(rest)
            for h, rest in zip(high @ self.demands, low @ self.demands, strict=True)
        )

    # --- any query ------------------------------------------------------------------------

    def answer(self, step: Step, rounds: CountedRounds, board: Billboard) -> tuple[int, ...]:
        """The exact answer to a step of a finished billboard, given the rounds before it."""
        match step.query:
            case "demand":
                return self.block(step, rounds)
            case "scale":
                return (self.scale(step.prices),)
            case "value":
                return (self.value(step.prices),)
            case "curvature":
                return self.curvature(step.prices)
            case "gauge":
                return self.gauge(step.prices)
            case "welfare":
                return (self.welfare(rounds),)
            case "granted":
                assert board.seed is not None
                return self.granted(rounds, board.seed.seed)
            case "chance":
                return self.chance(rounds, dearest(self.market, rounds))
            case "luck":
                assert board.seed is not None and board.certificate is not None
                factors = board.certificate.factors
                return (self.luck(rounds, board.seed.seed, factors, *luck_range(board)),)


def _whole(numbers: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(n) for n in numbers)


def dearest(market: Market, rounds: CountedRounds) -> int:
    """The most that any option can have cost in any round, in value codes; from 1 to the cap."""
    most = sorted(map(max, zip(*(step.prices for step in rounds.steps), strict=True)))
    cost = Fraction(TOP * sum(most[-bundle_width(market) :]), PRICE_UNITS_PER_VALUE_CODE)
    return max(1, min(math.ceil(cost), value_cap(market)))


def wanted_with(market: Market, group: int) -> list[list[int]]:
    """For each declared resource: itself, and the derived ones that agents of a group want with it.

    A cap counts what its group takes, and a reserve what everybody else takes.
    """
    found = [[j] for j in range(len(market.declared))]
    for j, rule in market.derived:
        if rule.members == (rule.group == group):
            found[rule.base].append(j)
    return found


def groups_in(market: Market) -> range:
    """The numbers of the groups that an agent may be in; -1 is none."""
    return range(-1, len(market.groups))


def bundle_width(market: Market) -> int:
    """The most resources that one option can touch, derived ones included."""
    each = [sorted(map(len, wanted_with(market, group)))[::-1] for group in groups_in(market)]
    return max(sum(counts[: market.bundle_size]) for counts in each)


def luck_range(board: Billboard) -> tuple[int, int]:
    """The least and the most that one agent adds to luck, on a finished billboard."""
    assert board.certificate is not None
    market, factors = board.header.market, board.certificate.factors
    top = value_cap(market)
    if not market.divisible and board.header.policy.get("grants") != "measured":
        return -top, top
    if not market.divisible:
        return -top, dearest(market, CountedRounds(tuple(board.rounds), board.header.order))
    rounding = market.options * (top // SHARE + 2)  # of shares and of values
    return math.floor(top * (Fraction(min(factors), SHARE) - 1)) - rounding, 0


def value_cap(market: Market) -> int:
    """The code of the largest value."""
    return math.floor(Fraction(market.max_value) / Fraction(market.value_step))


@functools.lru_cache(maxsize=64)
def reference(people: People) -> Reference:
    """The reference of a data set; it caches what it has computed."""
    return Reference(people)


# --- codes --------------------------------------------------------------------------------


def demand_codes(market: Market, amounts: NDArray[np.float64]) -> Ints:
    """The smallest number of units that covers an amount, after cutting it to the public cap."""
    sizes = np.array(market.unit_sizes)
    capped = np.minimum(amounts, [r.max_demand for r in market.resources])
    wanted = capped > 0.0
    codes = np.ceil(capped / sizes)
    codes = np.where((codes - 1.0) * sizes >= capped, codes - 1.0, codes)  # products are exact
    found: Ints = np.where(codes * sizes < capped, codes + 1.0, codes).astype(np.int64)
    for total in market.totals:
        for row in np.atleast_2d(found):
            _cut(row, total, sizes.tolist())
    for j, rule in market.derived:  # whoever wants it wants as much as of the resource it is about
        found[..., j] = np.where(wanted[..., j], found[..., rule.base], 0)
    return found


def _cut(codes: Ints, total: Total, sizes: list[float]) -> None:
    """Cut one option to a bound on a total, in fractions.

    Codes are kept while the amounts that they exceed add up to at most the bound. The first beyond
    it is lowered until they do, and the rest are dropped.
    """
    left, full = Fraction(total.amount), False
    own = [j for j in total.resources if codes[j] > 0]
    if sum(int(codes[j] - 1) * Fraction(sizes[j]) for j in own) <= left:
        return
    for j in own:
        kept = min(int(codes[j]), math.floor(left / Fraction(sizes[j])) + 1)
        if full:
            kept = 0
        full = full or kept < codes[j]
        codes[j] = kept
        left -= (kept - 1) * Fraction(sizes[j])


def value_codes(market: Market, values: NDArray[np.float64]) -> Ints:
    """The largest number of steps within a value, after cutting it to the public cap."""
    step, capped = market.value_step, np.minimum(values, market.max_value)
    codes = np.floor(capped / step)
    codes = np.where((codes + 1.0) * step <= capped, codes + 1.0, codes)
    codes = np.where(codes * step > capped, codes - 1.0, codes)
    return codes.astype(np.int64)


def wrong_grid(market: Market) -> list[str]:
    """What is wrong with a market's grid. Codes that fit must stand for amounts that fit."""
    wrong = []
    for j, (r, unit) in enumerate(zip(market.resources, market.unit_sizes, strict=True)):
        cap = math.ceil(Fraction(r.max_demand) / Fraction(unit))
        if cap != TOP:
            wrong.append(f"the cap of {r.name!r} is code {cap}, not {TOP}")
        supply, fits = market.supply_codes[j], math.floor(Fraction(r.supply) / Fraction(unit))
        if supply != fits:
            wrong.append(f"the supply of {r.name!r} is {supply} codes, but {fits} by size")
    rules = [
        (base, amount, members)
        for group in market.groups
        for members, stated in ((True, group.cap), (False, group.reserve))
        for base, amount in stated.items()
    ]
    for (j, rule), (base, amount, members) in zip(market.derived, rules, strict=True):
        r, of = market.resources[j], market.resources[rule.base]
        limit = amount if members else of.supply - amount
        if (r.max_demand, r.supply, of.name) != (of.max_demand, limit, base):
            wrong.append(f"{r.name!r} is not what its rule says")
    top = value_cap(market)
    if market.value_cap_code != top or top >= 2**32:
        wrong.append(f"the value cap is code {market.value_cap_code}, but {top} by size")
    return wrong


# --- coins --------------------------------------------------------------------------------


def siphash(key: bytes, messages: Sequence[bytes]) -> Ints:
    """SipHash-2-4 of many messages, as unsigned 64-bit integers."""
    found = np.zeros(len(messages), np.uint64)
    groups: dict[int, list[int]] = defaultdict(list)
    for at, message in enumerate(messages):
        groups[len(message) // 8 + 1].append(at)
    for words, places in groups.items():
        padded = b"".join(
            messages[at].ljust(8 * words - 1, b"\0") + bytes([len(messages[at]) % 256])
            for at in places
        )
        found[places] = _siphash(key, np.frombuffer(padded, "<u8").reshape(len(places), words))
    return found


def _siphash(key: bytes, words: Ints) -> Ints:
    k0, k1 = (np.uint64(int.from_bytes(key[at : at + 8], "little")) for at in (0, 8))
    begin = np.frombuffer(b"uespemosmodnarodarenegylsetybdet", "<u8")
    v = [np.full(len(words), b ^ k) for b, k in zip(begin, (k0, k1, k0, k1), strict=True)]

    def turn(x: Ints, bits: int) -> Ints:
        return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))

    def mix(times: int) -> None:
        for _ in range(times):
            v[0] = v[0] + v[1]
            v[2] = v[2] + v[3]
            v[1] = turn(v[1], 13) ^ v[0]
            v[3] = turn(v[3], 16) ^ v[2]
            v[0] = turn(v[0], 32)
            v[2] = v[2] + v[1]
            v[0] = v[0] + v[3]
            v[1] = turn(v[1], 17) ^ v[2]
            v[3] = turn(v[3], 21) ^ v[0]
            v[2] = turn(v[2], 32)

    for word in words.T:
        v[3] = v[3] ^ word
        mix(2)
        v[0] = v[0] ^ word
    v[2] = v[2] ^ np.uint64(255)
    mix(4)
    found: Ints = v[0] ^ v[1] ^ v[2] ^ v[3]
    return found
