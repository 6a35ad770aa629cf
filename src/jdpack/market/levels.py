"""Public: levels, the log scale on which amounts are counted to choose bounds for them.

The edges of the levels are public: the present bound, and round numbers below it. An amount has
level 0 if it is above the bound, level k if k of the edges are at least as large, and the last
level if it is 0. So a larger amount has a smaller level, and the agents whose largest amount is
above edge k are those with levels 0 to k.
"""

from __future__ import annotations

import math

from jdpack.market.grid import DEMAND_CODE_MAX, SUPPLY_CODE_MAX
from jdpack.market.market import Market

_ROUND = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
_DECADES = 6  # of edges below the bound


def edges(bound: float, least: float = 0.0) -> tuple[float, ...]:
    """The bound itself, then the edges below it that are at least `least`, the largest first."""
    exponent = math.floor(math.log10(bound))
    every = (
        float(f"{digits}e{e}")
        for e in range(exponent - _DECADES, exponent + 1)
        for digits in _ROUND
    )
    least = max(least, bound * 10.0**-_DECADES)
    return (bound, *sorted((edge for edge in every if least <= edge < bound), reverse=True))


def grids(market: Market) -> tuple[tuple[float, ...], ...]:
    """The edges for each declared resource, and finally for the value.

    All of them are bounds that the market could have: a smaller cap needs more codes.
    """
    codes = 1.01 * DEMAND_CODE_MAX / SUPPLY_CODE_MAX
    own = [edges(r.max_demand, codes * r.supply) for r in market.declared]
    return (*own, edges(market.max_value))


def widths(market: Market) -> tuple[int, ...]:
    """How many levels each grid has: one per edge, one above them, and one for nothing."""
    return tuple(len(grid) + 2 for grid in grids(market))
