"""Public: the queries that a run may ask, and how far one agent can move each answer."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jdpack.market.grid import CHANCE_MAX, CURVATURE_UNIT, DEMAND_CODE_MAX
from jdpack.market.market import Market, Neighbours

Query = Literal["demand", "scale", "value", "curvature", "gauge", "chance", "welfare", "luck"]
CLOSING: tuple[Query, ...] = ("chance", "welfare", "luck")
"""Queries about the allocation of the rounds so far; the others are about posted prices."""

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
        """The largest sum of (d_i / scale_i)^2, rounded up. A single scale is for all numbers."""
        return _largest(self.most, scales, self.count) * _UP

    @property
    def squares(self) -> float:
        """The squared L2 sensitivity, rounded up."""
        return self.worst((1.0,))


@dataclass(frozen=True)
class SetBound:
    """A bound on what one option asks for of a set of resources together (`Market.max_totals`)."""

    resources: tuple[int, ...]
    amounts: tuple[float, ...]
    """What the largest code of each resource stands for."""
    most: float


@dataclass(frozen=True)
class DemandChange(Change):
    """The moves of a demand release where options obey totals.

    Formal guarantees. Let x be the option that the differing agent takes in the first data set (the
    zero option if it takes none or is absent), and y the one it takes in the second. The answer
    moves by d = x - y. Both are non-negative, so |d_j| <= max(x_j, y_j), and d does not get shorter
    if the smaller of the two becomes 0, which keeps both within all bounds. So let x and y touch
    different resources: the sum of (d_j / s_j)^2 is that of x plus that of y. With ADD_REMOVE one
    of them is zero; `options` is 2, or 1 then.

    Take a set with a total. Let v_j = (C / s_j)^2 and p_j = x_j / C in [0, 1], so x adds the sum of
    v_j p_j^2, and the sum of p_j amount_j is at most the total. That is convex in p, so it is
    largest at a corner: at most one p_j is neither 0 nor 1.

    * If all amounts are equal, let the total be n + r of them, n whole and 0 <= r < 1. At a corner
      at most n of the p_j are 1, and one more is at most r. Both options together have `options`
      times as many, on different resources, so the largest v_j come first. This is attained.
    * Otherwise, no p_j is above q_j = min(1, total / amount_j), so v_j p_j^2 <= v_j q_j p_j. Both
      options together use at most `options` totals, and each resource once: a fractional knapsack,
      in which the largest value per amount is filled first.

    Resources in no set add at most the `options` times `bundle` largest v_j among them. These
    bounds hold at once with that of `Change`, so the smaller one does.
    """

    width: int = 1
    """How many resources there are."""
    bundle: int = 1
    options: int = 1
    """How many options a move is the difference of."""
    totals: tuple[SetBound, ...] = ()

    def worst(self, scales: Sequence[float]) -> float:
        plain = super().worst(scales)
        if not self.totals:
            return plain
        free = dict(enumerate(scales if len(scales) > 1 else [scales[0]] * self.width))
        sums = []
        for total in self.totals:
            values = [(self.most / free.pop(j)) ** 2 for j in total.resources]
            fill = _fill_equal if len(set(total.amounts)) == 1 else _fill
            sums.append(fill(values, total, self.options))
        sums += [(self.most / s) ** 2 for s in sorted(free.values())[: self.options * self.bundle]]
        least = _TOTALS_LEAST * self.width * (self.most / min(scales)) ** 2
        return min(plain, max(least, math.fsum(sums) * _UP))


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


def _fill_equal(values: list[float], total: SetBound, options: int) -> float:
    """What options reach in a set of equal amounts."""
    part, whole = math.modf(total.most / total.amounts[0])
    ranked, full = sorted(values, reverse=True), options * int(min(whole, len(values)))
    return math.fsum(ranked[:full]) + part * part * math.fsum(ranked[full : full + options])


def _fill(values: list[float], total: SetBound, options: int) -> float:
    """What options reach in a set, at most."""
    items = []
    for value, amount in zip(values, total.amounts, strict=True):
        most = min(1.0, total.most / amount)
        items.append((value * most * most, amount * most))
    gained, left = 0.0, options * total.most
    for value, amount in sorted(items, key=lambda item: -item[0] / item[1]):
        part = max(0.0, min(1.0, left / amount))
        gained, left = gained + part * value, left - part * amount
    return gained


@functools.lru_cache(maxsize=256)
def change(market: Market, query: Query) -> Change:
    """How far one agent can move the answer to a query, between neighbours at the same prices.

    Formal guarantees. Let x be the one option that the differing agent takes in the first data set
    (the zero option if it takes none or is absent), and y the one it takes in the second. Every
    other agent's choice depends only on its own record and the posted prices, so it is the same in
    both. Every x_j and y_j lies in [0, C], C = DEMAND_CODE_MAX, and each of x and y has at most
    k = `bundle_width` nonzero entries.

    * demand, D_j = the sum of the codes taken: D moves by x - y. Both are non-negative, so
      |x_j - y_j| <= max(x_j, y_j) <= C, and at most min(2k, m) coordinates differ. With ADD_REMOVE
      one of the two is the zero option, so at most k do. `DemandChange` adds what totals imply. The
      same bounds hold for a batch (`jdpack.common.batches`): an agent's turn depends only on its id
      and a public key, so the differing agent moves the answer of its own batch by x - y and leaves
      every other batch alone. They hold for a block of batches too, each at the prices of its own
      round. These prices are public before the release. The agent is in at most one batch of the
      block and takes at most one option there, so the sum over the block moves by x - y.
    * scale, the largest of Q and, over all j, of |S_j - D_j| Q / S_j rounded down, with Q the
      smallest S_j: |S_j - D_j| moves by at most C, so each term moves by at most C Q / S_j <= C
      before rounding, and by at most the whole number C after it. So does the maximum.
    * value, the value codes of the options taken, and welfare, those of the averaged allocation of
      the rounds so far, in which an agent's shares sum to at most 1: one term in
      [0, value_cap_code] changes.
    * curvature, the sum of v v^T over the agents whose two best choices are close: the **whole
      matrix** moves by at most the one number returned, in L2 (Frobenius) norm, so only Gaussian
      noise of one scale fits. Let u = CURVATURE_UNIT, and let d be the difference between the codes
      of the two choices (doing nothing is a choice of zero codes). Then
      v_j = d_j sqrt(u price_j / (cost_1 + cost_2)), rounded towards 0. The |d_j| price_j sum to at
      most cost_1 + cost_2, so |v|_2^2 is at most u max |d_j| <= u C; rounding in doubles adds less
      than 2^-50 of it, so less than 1, and both are whole numbers. The norm of v v^T is |v|_2^2.
      For two agents, |v v^T - w w^T|^2 = |v|^4 + |w|^4 - 2 (v w)^2 <= 2 (u C)^2. With ADD_REMOVE
      one of the two matrices is zero.
    * gauge, the numbers d_j t_j of such agents, t_j = trunc(u d_j price_j / (cost_1 + cost_2)),
      their level and their spread: again the **whole vector** moves by at most the one number
      returned. The integers |t_j| sum to at most u (rounding adds less than 2^-40 to each quotient,
      so less than 1 to their sum). An agent adds d_j t_j >= 0 for each resource, together at most
      max |d_j| sum |t_j| <= u C. To the level it adds
      u (cost_1 - cost_2)^2 / ((cost_1 + cost_2) sum_j price_j), rounded down; because
      |cost_1 - cost_2| <= C sum_j price_j, that is at most u C. To the spread it adds the amount by
      which the sum of its d_j t_j exceeds the level, if any. Either the level and the spread
      together are at most u C or the spread is 0, so the norm is at most sqrt(2) u C. The entries
      are non-negative, so two agents differ by at most sqrt(2) times that, and with ADD_REMOVE by
      that alone.
    * chance, the variances that coins add to the loads and to the value of what is granted, given
      the rounds so far (`engines.giving.chance`). Let p be the probability that coins grant an
      agent something that touches resource j. The code granted lies in [0, C], and is 0 with
      probability 1 - p. Its variance is at most C^2 p (1 - p) if p <= 1/2, and at most C^2 / 4
      always; in the unit of the answer the latter is below CHANCE_MAX, after rounding up too. With
      one option all its resources have the same p, so k numbers move. With several options the p of
      all resources sum to at most k, and the square of the bound is at most (4 / 27) p C^4: in
      units, the squares sum to less than 2.4 k CHANCE_MAX^2. Rounding up adds at most 1 to each
      number above 0, of which there are at most 2^16; a factor of 2.5 covers it. All are
      non-negative, so the square of a difference between two agents is at most the sum of their
      squares; with ADD_REMOVE one of them adds nothing. The value adds one more number. Every
      number lies in [0, CHANCE_MAX], so none moves by more than that.
    """
    both = market.neighbours is Neighbours.REPLACE_ONE
    k, m, several = market.bundle_width, len(market.resources), market.options > 1
    if query == "demand":
        return DemandChange(
            DEMAND_CODE_MAX, min(k * (1 + both), m), m, k, 1 + both, _totals(market)
        )
    if query == "scale":
        return Change(DEMAND_CODE_MAX)
    if query == "curvature":
        return Change(_root((CURVATURE_UNIT * DEMAND_CODE_MAX) ** 2 * (1 + both)))
    if query == "gauge":
        squared = 2 * (CURVATURE_UNIT * DEMAND_CODE_MAX) ** 2
        return Change(_root(squared * (1 + both)))
    if query == "chance":
        count = -(-5 * k // 2) if several else k
        return ChanceChange(CHANCE_MAX, min(count * (1 + both), m), CHANCE_MAX**2)
    return Change(market.value_cap_code)


def luck_change(market: Market, lowest: int, highest: int) -> Change:
    """As `change`, for the query luck: the value given beyond the averaged shares.

    Formal guarantees. An agent adds the value codes of what it is given minus those of its averaged
    share, clamped to [lowest, highest], where lowest <= 0 <= highest. So two agents differ by at
    most highest - lowest; with ADD_REMOVE one of them is absent and adds 0.
    """
    both = market.neighbours is Neighbours.REPLACE_ONE
    most = highest - lowest if both else max(-lowest, highest)
    return Change(max(most, _LUCK_LEAST))


def width(market: Market, query: Query) -> int:
    """How many numbers the answer to a query has."""
    m = len(market.resources)
    widths: dict[Query, int] = {"demand": m, "curvature": m * m, "gauge": m + 2, "chance": m + 1}
    return widths.get(query, 1)


def _root(squared: int) -> int:
    """The square root, rounded up."""
    return math.isqrt(squared - 1) + 1


def _totals(market: Market) -> tuple[SetBound, ...]:
    """The market's totals. Codes are rounded up, by less than one unit per resource touched."""
    found = []
    for total in market.max_totals:
        units = [market.unit_sizes[j] for j in total.resources]
        amounts = tuple(unit * DEMAND_CODE_MAX for unit in units)
        rounding = math.fsum(sorted(units, reverse=True)[: market.bundle_width])
        found.append(SetBound(total.resources, amounts, (total.amount + rounding) * _UP))
    return tuple(found)
