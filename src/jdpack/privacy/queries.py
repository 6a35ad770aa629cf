"""Public: the queries that a run may ask, and how far one agent can move each answer."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jdpack.market.grid import CHANCE_MAX, CHANCE_UNIT, CURVATURE_UNIT, DEMAND_CODE_MAX
from jdpack.market.market import Market, Neighbours

Query = Literal[
    "demand", "scale", "value", "curvature", "gauge", "granted", "chance", "welfare", "luck"
]
CLOSING: tuple[Query, ...] = ("granted", "chance", "welfare", "luck")
"""Queries about the allocation of the rounds so far; the others are about posted prices."""

LEVEL_UNIT = 2**20
"""What one agent adds to its level in the counts that suggest bounds."""

_LUCK_LEAST = 2**10  # value codes; noise must have a large scale (`privacy.gdp`)
_TOTALS_LEAST = 1e-5  # per resource; totals lower a cost no further, so its noise is coarse enough
_UP = 1.0 + 2.0**-40  # keeps float rounding in a bound on the safe side


@dataclass(frozen=True)
class Change:
    """A bound on the moves d that one agent can cause in an answer.

    At most `count` numbers of the answer move, each by at most `most`.
    """

    most: int
    count: int = 1

    def worst(self, scales: Sequence[float]) -> float:
        """The largest sum of (d_i / scale_i)^2, rounded up. A single scale is for all of them."""
        return _largest(self.most, scales, self.count) * _UP

    @property
    def squares(self) -> float:
        """The squared L2 sensitivity, rounded up."""
        return self.worst((1.0,))


@dataclass(frozen=True)
class SetBound:
    """A bound on what one agent takes of a set of resources together (`Market.person_totals`)."""

    resources: tuple[int, ...]
    amounts: tuple[float, ...]
    """The amount that the most codes of each resource stand for."""
    most: float


@dataclass(frozen=True)
class DemandChange(Change):
    """The moves of a demand release: a bound for each resource, and what totals imply.

    Formal guarantees. Let x be what the differing agent takes in the first data set, summed over
    its requests (zero if it takes nothing or is absent), and y the same in the second. The answer
    moves by d = x - y. Both are non-negative, so |d_j| <= max(x_j, y_j) <= P_j (`caps`), and d does
    not get shorter if the smaller of the two becomes 0, which keeps both within all bounds. So let
    x and y touch different resources: the sum of (d_j / s_j)^2 is that of x plus that of y, and at
    most the sum of the `count` largest v_j = (P_j / s_j)^2. With ADD_REMOVE one of them is zero;
    `agents` is 2, or 1 then.

    Take a set with a total. Let p_j = x_j / P_j in [0, 1], so x adds the sum of
    v_j p_j^2, and the sum of p_j amount_j is at most the total. That is convex in p, so it is
    largest at a corner: at most one p_j is neither 0 nor 1.

    * If all amounts are equal, let the total be n + r of them, n whole and 0 <= r < 1. At a corner
      at most n of the p_j are 1, and one more is at most r. Both agents together have `agents`
      times as many, on different resources, so the largest v_j come first. This is attained.
    * Otherwise, no p_j is above q_j = min(1, total / amount_j), so v_j p_j^2 <= v_j q_j p_j. Both
      agents together use at most `agents` totals, and each resource once: a fractional knapsack,
      in which the largest value per amount is filled first.

    Resources in no set add at most the `agents` times `bundle` largest v_j among them. These bounds
    hold together with the one above, so the smaller one holds.
    """

    caps: tuple[int, ...] = ()
    """P_j for every resource (`Market.person_cap_codes`); `most` is the largest."""
    bundle: int = 1
    agents: int = 1
    """How many agents' demands a move is the difference of."""
    totals: tuple[SetBound, ...] = ()

    def worst(self, scales: Sequence[float]) -> float:
        if len(scales) == 1 and min(self.caps) == self.most:
            plain = super().worst(scales)
        else:
            plain = math.fsum(sorted(self._values(scales), reverse=True)[: self.count]) * _UP
        if not self.totals:
            return plain
        free, sums = dict(enumerate(self._values(scales))), []
        for total in self.totals:
            values = [free.pop(j) for j in total.resources]
            fill = _fill_equal if len(set(total.amounts)) == 1 else _fill
            sums.append(fill(values, total, self.agents))
        sums += sorted(free.values(), reverse=True)[: self.agents * self.bundle]
        least = _TOTALS_LEAST * len(self.caps) * (self.most / min(scales)) ** 2
        return min(plain, max(least, math.fsum(sums) * _UP))

    def _values(self, scales: Sequence[float]) -> list[float]:
        """v_j for every resource."""
        each = scales if len(scales) > 1 else [scales[0]] * len(self.caps)
        return [(cap / s) ** 2 for cap, s in zip(self.caps, each, strict=True)]


@dataclass(frozen=True)
class ChanceChange(Change):
    """The moves of a chance release: `count` times `most`^2 bounds the squares of the moves of all
    numbers except the last, and `last` the square of the last.
    """

    last: int = 1

    def worst(self, scales: Sequence[float]) -> float:
        scale = min(scales[:-1]) if len(scales) > 1 else scales[0]
        loads = self.count * (self.most / scale) ** 2
        return (loads + self.last / scales[-1] ** 2) * _UP


def _largest(most: int, scales: Sequence[float], count: int) -> float:
    """The sum of the `count` largest (most / scale)^2."""
    if len(scales) == 1:
        return count * (most / scales[0]) ** 2
    return math.fsum((most / s) ** 2 for s in sorted(scales)[:count])


def _fill_equal(values: list[float], total: SetBound, agents: int) -> float:
    """The most that `agents` agents together add in a set of equal amounts."""
    part, whole = math.modf(total.most / total.amounts[0])
    ranked, full = sorted(values, reverse=True), agents * int(min(whole, len(values)))
    return math.fsum(ranked[:full]) + part * part * math.fsum(ranked[full : full + agents])


def _fill(values: list[float], total: SetBound, agents: int) -> float:
    """A bound on what `agents` agents together add in a set."""
    items = []
    for value, amount in zip(values, total.amounts, strict=True):
        most = min(1.0, total.most / amount)
        items.append((value * most * most, amount * most))
    gained, left = 0.0, agents * total.most
    for value, amount in sorted(items, key=lambda item: -item[0] / item[1]):
        part = max(0.0, min(1.0, left / amount))
        gained, left = gained + part * value, left - part * amount
    return gained


@functools.lru_cache(maxsize=256)
def change(market: Market, query: Query) -> Change:
    """How far one agent can move the answer to a query, between neighbours at the same prices.

    Formal guarantees. An agent makes at most R requests, and takes at most one option of each. Let
    x be the sum of the options that the differing agent takes in the first data set (zero if it
    takes none or is absent), and y that of the second. Every other agent's choices depend only on
    its own record and the posted prices, so they are the same in both. A single option has codes in
    [0, C], C = DEMAND_CODE_MAX. In all, 0 <= x_j <= P_j, x has at most k nonzero entries, and the
    value codes taken sum to at most V: `market.person_cap_codes`, `person_width` and
    `person_value_code` (`jdpack.market.person` proves them). With one request, P_j = C and k and V
    are those of one option. Even the sum over requests of the *largest* code of any option is at
    most P_j, and the sum of the largest values at most V.

    * demand, D_j = the sum of the codes taken: D moves by x - y, as `DemandChange` bounds it. At
      most min(2k, m) coordinates differ. With ADD_REMOVE one of the two is zero, so at most k do.
      The same bounds hold for a batch (`jdpack.common.batches`): an agent's turn depends only on
      its id and a public key, and all its requests have that turn. So the differing agent moves the
      answer of its own batch by x - y and leaves every other batch alone. They hold for a block of
      batches too, each at the prices of its own round. These prices are public before the release.
      The agent is in at most one batch of the block and takes at most one option of each request
      there, so the sum over the block moves by x - y.
    * scale, the largest of Q and, over all j, of |S_j - D_j| Q / S_j rounded down, with Q the
      smallest S_j: |S_j - D_j| moves by at most P_j, so each term moves by at most P_j Q / S_j
      before rounding, and by at most that rounded up after it. So does the maximum.
    * value, the value codes of the options taken, and welfare, those of the averaged allocation of
      the rounds so far, in which the shares of a request sum to at most 1: what one agent adds lies
      in [0, V].
    * curvature, the sum of v v^T over the requests whose two best choices are close: the **whole
      matrix** moves by at most the one number returned, in L2 (Frobenius) norm, so only Gaussian
      noise of one scale fits. Let u = CURVATURE_UNIT, let d be the difference between the codes of
      the two choices (doing nothing is a choice of zero codes), and c the largest |d_j|. Then
      v_j = d_j sqrt(u price_j / (cost_1 + cost_2)), rounded towards 0. The |d_j| price_j sum to at
      most cost_1 + cost_2, so |v|_2^2 is at most u c; rounding in doubles adds less than 2^-50 of
      it, so less than 1, and both are whole numbers. The norm of v v^T is |v|_2^2. Norms add up
      over the requests of an agent, and the c to at most G: R times C, and the sum of all P_j (of
      the k largest, if each request has one option). What an agent adds is positive semi-definite,
      and so the inner product of what two agents add is not negative:
      |A - B|^2 <= |A|^2 + |B|^2 <= 2 (u G)^2. With ADD_REMOVE one of the two matrices is zero.
    * gauge, the numbers d_j t_j of such requests, t_j = trunc(u d_j price_j / (cost_1 + cost_2)),
      their level and their spread: again the **whole vector** moves by at most the one number
      returned. The integers |t_j| sum to at most u (rounding adds less than 2^-40 to each quotient,
      so less than 1 to their sum). A request adds d_j t_j >= 0 for each resource, together at most
      c sum |t_j| <= u c. To the level it adds
      u (cost_1 - cost_2)^2 / ((cost_1 + cost_2) sum_j price_j), rounded down; because
      |cost_1 - cost_2| <= c sum_j price_j, that is at most u c. To the spread it adds the amount by
      which the sum of its d_j t_j exceeds the level, if any. Either the level and the spread
      together are at most u c or the spread is 0, so the norm is at most sqrt(2) u c, and sqrt(2)
      u G for all requests of an agent. The entries are non-negative, so two agents differ by at
      most sqrt(2) times that, and with ADD_REMOVE by that alone.
    * granted, the codes of what the coins grant from the rounds so far, before any grant is
      thinned. For every seed of the coins, an agent is granted one option of each of its requests,
      or none, like what it takes in a round: so it moves the answer as it moves a demand.
    * chance, the variances that coins add to the loads and to the value of what is granted, given
      the rounds so far (`engines.giving.chance`). Every request has its own coin. Let p be the
      probability that it grants something that touches resource j. The code granted lies in [0, C],
      and is 0 with probability 1 - p. Its variance is at most C^2 p (1 - p) if p <= 1/2, and at
      most C^2 / 4 always; in the unit of the answer the latter is below CHANCE_MAX, after rounding
      up too. With one option all its resources have the same p, so k numbers move. With several
      options the p of all resources sum to at most k, and the square of the bound is at most (4 /
      27) p C^4: in units, the squares sum to less than 2.4 k CHANCE_MAX^2. Rounding up adds at most
      1 to each number above 0, of which there are at most 2^16; a factor of 2.5 covers it. All are
      non-negative, so the square of a difference between two agents is at most the sum of their
      squares; with ADD_REMOVE one of them adds nothing. The value adds one more number. Every
      number lies in [0, CHANCE_MAX], so none moves by more than that. `_chance_of_requests` bounds
      what several requests add.
    """
    both = market.neighbours is Neighbours.REPLACE_ONE
    k, m, several = market.person_width, len(market.resources), market.options > 1
    caps, requests = market.person_cap_codes, market.requests
    if query in ("demand", "granted"):
        count = min(k * (1 + both), m)
        return DemandChange(max(caps), count, caps, k, 1 + both, _totals(market))
    if query == "scale":
        least = min(market.supply_codes)
        pairs = zip(caps, market.supply_codes, strict=True)
        return Change(max(-(-cap * least // supply) for cap, supply in pairs))
    if query in ("curvature", "gauge"):
        largest = DEMAND_CODE_MAX * requests
        if requests > 1:
            largest = min(largest, sum(sorted(caps)[-(m if several else k) :]))
        squared = (CURVATURE_UNIT * largest) ** 2 * (1 + (query == "gauge"))
        return Change(_root(squared * (1 + both)))
    if query == "chance" and requests > 1:
        return _chance_of_requests(market)
    if query == "chance":
        count = -(-5 * k // 2) if several else k
        return ChanceChange(CHANCE_MAX, min(count * (1 + both), m), CHANCE_MAX**2)
    return Change(market.person_value_code)


def _chance_of_requests(market: Market) -> ChanceChange:
    """The chance query where an agent has several requests.

    Formal guarantees. Let c be the largest code of j in the options of a request. The code granted
    lies in [0, c], so its variance is at most c^2 / 4 <= C c / 4; in units and rounded, at most
    that plus 2. The c of all requests sum to at most P_j, so an agent adds at most
    A_j = min(R MOST, C P_j / (4 CHANCE_UNIT) + 2 R) to number j, MOST being CHANCE_MAX, the most
    that one request adds. With one option for each request, it touches at most k resources, and
    the squares sum to at most the k largest A_j^2.
    With several, the variance is also at most C times the mean of what is granted. What is granted
    is a sum of options, one of each request at most, so its codes sum to at most the k largest P_j.
    So all numbers together sum to at most T = C (that sum) / CHANCE_UNIT + 2 for each resource that
    a request touches. The squares sum to at most T times the largest A_j. To the value, each
    request adds at most MOST. The rest is as for one request.
    """
    both = 2 if market.neighbours is Neighbours.REPLACE_ONE else 1
    k, m, requests = market.person_width, len(market.resources), market.requests
    one, unit = CHANCE_MAX, 4 * CHANCE_UNIT
    each = sorted(
        min(requests * one, -(-DEMAND_CODE_MAX * cap // unit) + 2 * requests)
        for cap in market.person_cap_codes
    )
    squares, most = sum(a * a for a in each[-k:]), each[-1]
    if market.options > 1:
        taken = sum(sorted(market.person_cap_codes)[-k:])
        touched = requests * min(m, market.options * market.bundle_width)
        total = -(-DEMAND_CODE_MAX * taken // CHANCE_UNIT) + 2 * touched
        squares = min(most * total, sum(a * a for a in each))
    # No number moves by more than A_j, whichever of the two agents adds it.
    squares = min(both * squares, sum(a * a for a in each))
    return ChanceChange(most, -(-squares // most**2), (requests * one) ** 2)


def luck_change(market: Market, lowest: int, highest: int) -> Change:
    """Like `change`, for the query luck: the value given beyond the averaged shares.

    Formal guarantees. Every request adds the value codes of what is given minus those of its
    averaged shares, and what all requests of an agent add lies in [lowest, highest], where
    lowest <= 0 <= highest. So two agents differ by at most highest - lowest; with ADD_REMOVE one of
    them is absent and adds 0.
    """
    both = market.neighbours is Neighbours.REPLACE_ONE
    most = highest - lowest if both else max(-lowest, highest)
    return Change(max(most, _LUCK_LEAST))


def levels_change(market: Market) -> Change:
    """How far one agent can move the counts of agents by level (`jdpack.market.levels`).

    Formal guarantees. There is one histogram for each declared resource and one for the value. An
    agent is counted once in each: at the level of its largest amount in any option of any of its
    requests, and at the last level if it asks for nothing. So the counts that it adds are one 1 in
    each of the m + 1 histograms, and 0 elsewhere, whatever its record, however many rows it has,
    and whether or not it obeys the bounds of the market. All other agents add the same in both data
    sets. Between neighbours that replace a record, in each histogram one count falls by 1 and one
    rises by 1, or none moves: at most 2 (m + 1) counts move, each by 1. With ADD_REMOVE, one count
    of each histogram moves. The answer counts LEVEL_UNIT for each agent, so that noise is fine
    enough for `jdpack.privacy.gdp`.
    """
    both = market.neighbours is Neighbours.REPLACE_ONE
    return Change(LEVEL_UNIT, (len(market.declared) + 1) * (1 + both))


def width(market: Market, query: Query) -> int:
    """How many numbers the answer to a query has."""
    m = len(market.resources)
    widths: dict[Query, int] = {"demand": m, "granted": m, "chance": m + 1}
    return {**widths, "curvature": m * m, "gauge": m + 2}.get(query, 1)


def _root(squared: int) -> int:
    """The square root, rounded up."""
    return math.isqrt(squared - 1) + 1


def _totals(market: Market) -> tuple[SetBound, ...]:
    """What totals imply for one agent. Codes are rounded up, by less than one unit per resource
    that an option touches.
    """
    found = []
    for total in market.person_totals:
        units = [market.unit_sizes[j] for j in total.resources]
        pairs = zip(units, total.resources, strict=True)
        amounts = tuple(unit * market.person_cap_codes[j] for unit, j in pairs)
        rounding = math.fsum(sorted(units, reverse=True)[: market.bundle_width]) * market.requests
        found.append(SetBound(total.resources, amounts, (total.amount + rounding) * _UP))
    return tuple(found)
