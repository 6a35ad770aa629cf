"""Public: the queries that a run may ask, and how far one agent can move each answer."""

from __future__ import annotations

import math
from typing import Literal

from jdpack.market.grid import CURVATURE_UNIT
from jdpack.market.market import Market, Neighbours

Query = Literal["demand", "scale", "value", "curvature", "gauge", "welfare", "granted", "luck"]
CLOSING: tuple[Query, ...] = ("welfare", "granted", "luck")
"""Queries about the allocation of the rounds so far; the others are about posted prices."""


def shifts(market: Market, query: Query) -> tuple[int, ...]:
    """How far one agent can move the answer to a query, coordinate by coordinate.

    Between neighbours at the same prices, the coordinates of the answer move, in some order, by at
    most these amounts in absolute value; all other coordinates stay. So the L2 sensitivity is the
    root of the sum of their squares.

    Formal guarantees. Let x be the one option that the differing agent takes in the first data set
    (the zero option if it takes none or is absent), and y the one it takes in the second. Every
    other agent's choice depends only on its own record and the posted prices, so it is the same in
    both. Every x_j and y_j lies in [0, C_j], and each of x and y has at most k = `bundle_size`
    nonzero entries.

    * demand, D_j = the sum of the codes taken: D moves by x - y. Both are non-negative, so
      |x_j - y_j| <= max(x_j, y_j) <= C_j, and at most min(2k, m) coordinates differ. The
      min(2k, m) largest caps therefore bound the moves. With ADD_REMOVE one of the two is the zero
      option, so the k largest caps do. The same bounds hold for a batch (`jdpack.common.batches`):
      an agent's turn depends only on its id and a public key, so the differing agent moves the
      answer of its own batch by x - y and leaves every other batch alone.
    * scale, max(S, max_j |S - D_j|): each function under the maximum moves by at most max_j C_j,
      so the maximum moves by no more than that.
    * granted, the codes of what the agents' coins grant from the rounds so far: the rounds are
      public and the coins are drawn without looking at the records, so an agent's grant, at most
      one option, depends only on its own record. The bounds are those of demand. (This holds for
      indivisible goods only: parts of several options would touch more resources.)
    * value, the value codes of the options taken, and welfare, those of the averaged allocation of
      the rounds so far, in which an agent's shares sum to at most 1: one term in
      [0, value_cap_code] changes.
    * curvature, E_jk = the sum of d_j t_k over the agents whose two best choices are close: the
      **whole matrix** moves by at most the one number returned, in L2 (Frobenius) norm, so only
      Gaussian noise fits. Here d is the difference between the codes of the two choices (doing
      nothing is a choice of zero codes), and t_k = trunc(CURVATURE_UNIT d_k price_k / (cost_1 +
      cost_2)). The |d_k| price_k sum to at most cost_1 + cost_2, so the integers |t_k| sum to at
      most CURVATURE_UNIT (rounding adds less than 2^-40 to each quotient, so less than 1 to their
      sum), and |t|_2 <= |t|_1. An agent adds an outer product of norm |d|_2 |t|_2. With one option,
      d is that option's codes: |d|_2^2 is at most the sum of the k largest squared caps, and all
      entries are non-negative, so two agents' matrices differ by at most sqrt(2) times the larger
      norm. With several options, d has at most 2k entries of any sign, with |d_j| <= C_j, so the
      matrices differ by at most twice the norm. With ADD_REMOVE one of the two matrices is zero.
    * gauge, the diagonal E_jj, the level and the spread: again the **whole vector** moves by at
      most the one number returned. Let u = CURVATURE_UNIT and C the largest cap. An agent adds
      d_j t_j >= 0 to the diagonal, in total at most max |d_j| sum |t_j| <= u C. To the level it
      adds u (cost_1 - cost_2)^2 / ((cost_1 + cost_2) sum_j price_j), rounded down; because
      |cost_1 - cost_2| <= C sum_j price_j, that is at most u C. To the spread it adds the amount by
      which the diagonal's sum exceeds the level, if any. Either the level and the spread together
      are at most u C or the spread is 0, so the norm is at most sqrt(2) u C. The entries are
      non-negative, so two agents differ by at most sqrt(2) times that, and with ADD_REMOVE by that
      alone.
    """
    if query in ("demand", "granted"):
        touched = market.bundle_size * (2 if market.neighbours is Neighbours.REPLACE_ONE else 1)
        return tuple(sorted(market.cap_codes, reverse=True)[:touched])
    if query == "scale":
        return (max(market.cap_codes),)
    if query == "curvature":
        several = market.options > 1
        largest = sorted(market.cap_codes, reverse=True)[: market.bundle_size * (1 + several)]
        squared = CURVATURE_UNIT**2 * sum(c * c for c in largest)
        if market.neighbours is Neighbours.REPLACE_ONE:
            squared *= 4 if several else 2
        return (math.isqrt(squared - 1) + 1,)
    if query == "gauge":
        squared = 2 * (CURVATURE_UNIT * max(market.cap_codes)) ** 2
        if market.neighbours is Neighbours.REPLACE_ONE:
            squared *= 2
        return (math.isqrt(squared - 1) + 1,)
    return (market.value_cap_code,)


def luck_shifts(market: Market, bound: int, *, thinned: bool) -> tuple[int, ...]:
    """As `shifts`, for the query luck: the value that coins give beyond the average.

    Formal guarantees. An agent adds the value codes of what it is given minus those of its averaged
    share, clamped to [-bound, bound]. So two agents differ by at most 2 bound; with ADD_REMOVE one
    of them is absent and adds 0.

    With one option and no thinning they differ by at most bound + 1, provided that bound is at
    least what any option cost in any round (`closing.dearest`), or at least the value cap. Proof:
    an agent's coin u, in [0, 1), depends only on its id and the seed, which neighbours share. An
    agent with value v and averaged share x is granted its option if u < x. Then it adds
    v (1 - x) < v (1 - u); otherwise it adds -v x >= -v u. If v > bound, the option was taken in
    every round, so x = 1 and the agent adds 0. So all agents with this coin add numbers between
    -bound u and bound (1 - u), rounded by less than 1.
    """
    if market.neighbours is Neighbours.ADD_REMOVE:
        return (bound,)
    return (bound + 1,) if market.options == 1 and not thinned else (2 * bound,)


def width(market: Market, query: Query) -> int:
    """How many numbers the answer to a query has."""
    m = len(market.resources)
    widths: dict[Query, int] = {"demand": m, "granted": m, "curvature": m * m, "gauge": m + 2}
    return widths.get(query, 1)
