"""Public: batches of the agents, in a public random order.

An agent's place in the order is a hash of its id. The billboard's header fixes the key before any
record is read (`coins.coin`, `Header.order`). So all agents know their own turn without knowing who
else takes part, and nobody's turn changes when others come or go. The batches are a public
partition of the agents, and one agent's record touches the answer of only one batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jdpack.common.coins import COIN_BITS

BATCHES_MAX = 2**20
"""The most batches, so that `turn` fits in 64 bits."""

_SPARE = 9  # bits of the hash that `turn` drops to make that fit


@dataclass(frozen=True)
class Batch:
    """The agents whose turn it is."""

    index: int
    """The batch's number, from 0."""
    count: int
    """The number of batches; every agent is in exactly one."""


def turn(place: int, count: int) -> int:
    """The batch, out of `count`, of an agent with this place in the order."""
    return (place >> _SPARE) * count >> (COIN_BITS - _SPARE)


def turns(places: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """`turn` for many agents."""
    wide = (places >> np.uint64(_SPARE)) * np.uint64(count)
    return (wide >> np.uint64(COIN_BITS - _SPARE)).astype(np.int64)
