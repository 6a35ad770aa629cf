"""Batches over more rows than one block: every agent is asked once, with its own record."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import random_market, random_records
from jdpack.common.batches import Batch
from jdpack.engines.memory import MemoryEngine
from jdpack.records.codes import BLOCK, is_sparse


@pytest.mark.parametrize("options", [1, 2])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_batches_demand_together_what_all_demand(sparse: bool, options: int) -> None:
    rng = np.random.default_rng(5)
    market = random_market(rng, agents=2 * BLOCK + 100, sparse=sparse, options=options)
    assert is_sparse(market) == sparse
    engine = MemoryEngine(random_records(rng, market).encode())
    assert all(len(part.fill) > 1 for part in engine.agents.parts)
    prices = tuple(rng.integers(0, 2**33, len(market.resources)).tolist())
    asked = [engine.batch_demand([prices], Batch(i, 3), bytes(16)) for i in range(3)]
    assert all(sum(answer) > 0 for answer in asked)
    assert tuple(np.sum(asked, axis=0).tolist()) == engine.demand(prices)
