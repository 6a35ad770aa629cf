"""Public: batches, the parts of a public random order of the agents.

An agent's place in the order is a hash of its id, keyed with what the billboard's header fixes
before any record is read (`coins.coin`, `Header.order`). So everybody knows their own turn without
knowing who else there is, and nobody's turn moves if others come or go: a batch is a part of a
public partition, and one agent's record touches the answer of one batch alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jdpack.common.coins import COIN_BITS

BATCHES_MAX = 2**20
"""So that `turn` fits in 64 bits."""

_SPARE = 9  # bits of the hash that are left out for it


@dataclass(frozen=True)
class Batch:
    """The agents whose turn it is."""

    index: int
    """Which batch it is, from 0."""
    count: int
    """How many batches there are; every agent is in one of them."""


def turn(place: int, count: int) -> int:
    """The batch of an agent with this place in the order, of `count` batches."""
    return (place >> _SPARE) * count >> (COIN_BITS - _SPARE)


def turns(places: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """`turn` of many agents."""
    wide = (places >> np.uint64(_SPARE)) * np.uint64(count)
    return (wide >> np.uint64(COIN_BITS - _SPARE)).astype(np.int64)
