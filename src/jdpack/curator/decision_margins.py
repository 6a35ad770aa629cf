"""Private: how close each agent's decision was.

The decision margin of an option at given prices is (value - cost) / max(value, cost), from -1 to 1:
how far the larger of the two must fall to flip the decision. An agent with several options has the
margin of the one with the largest surplus, the first on a tie.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jdpack.engines.shard import Final, Shard
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE
from jdpack.records.codes import BLOCK, Part
from jdpack.run.curator_page import CLOSE, HALF, Margins

Floats = NDArray[np.float64]


def margins(shard: Shard, final: Final, prices: Sequence[int]) -> Margins:
    """The decision margins of all agents at these prices, winners and losers separately."""
    at = np.array(prices, np.float64)
    counts, close = np.zeros((2, 2 * HALF), np.int64), np.zeros(len(CLOSE), np.int64)
    for part, given in shard.all_given(final):
        own, wins = _of_agents(part, at, given)
        bins = np.clip(np.floor(own * HALF).astype(np.int64) + HALF, 0, 2 * HALF - 1)
        for k in (0, 1):
            counts[k] += np.bincount(bins[wins == bool(k)], minlength=2 * HALF)
        close += [int(np.count_nonzero(np.abs(own) <= share)) for share in CLOSE]
    losers, winners = counts.tolist()
    return Margins(tuple(winners), tuple(losers), tuple(close.tolist()))


def _of_agents(
    part: Part, prices: Floats, given: NDArray[np.uint32]
) -> tuple[Floats, NDArray[np.bool_]]:
    """The decision margin of each agent in a part, and whether it gets something."""
    value = np.concatenate([part.values[b, :n] for b, n in enumerate(part.fill)])
    value = value * float(PRICE_UNITS_PER_VALUE_CODE)
    cost = np.concatenate([_costs(part, b, int(n), prices) for b, n in enumerate(part.fill)])
    wins, heads = given > 0, np.flatnonzero(part.heads())
    if len(heads):
        surplus, agent = value - cost, np.cumsum(part.heads(), dtype=np.int64) - 1
        best = np.flatnonzero(surplus == np.maximum.reduceat(surplus, heads)[agent])
        best = best[np.unique(agent[best], return_index=True)[1]]
        value, cost, wins = value[best], cost[best], np.logical_or.reduceat(wins, heads)
    larger = np.maximum(value, cost)
    return np.divide(value - cost, larger, out=np.zeros(len(value)), where=larger > 0.0), wins


def _costs(part: Part, block: int, rows: int, prices: Floats) -> Floats:
    """The cost of each row of a block, in price units."""
    pairs = part.pairs
    if pairs is None:
        return np.asarray(prices @ part.codes[block][:, :rows])
    begin, end = pairs.offsets[block], pairs.offsets[block + 1]
    each = pairs.codes[begin:end] * prices[pairs.resources[begin:end]]
    cost = np.asarray(each.reshape(-1, BLOCK).sum(axis=0)[:rows])
    rest = slice(pairs.rest_offsets[block], pairs.rest_offsets[block + 1])
    more = pairs.rest_codes[rest] * prices[pairs.rest_resources[rest]]
    np.add.at(cost, pairs.rest_rows[rest], more)
    return cost
