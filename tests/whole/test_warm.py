"""A warm start is refused if the earlier prices may reveal records: the new run would too."""

import math

import numpy as np
import pytest

from jdpack import Market, MarketError, Newton, solve

MARKET = Market(supply=[400.0], max_demand=1.0, max_value=1.0, agents=2000, divisible=True)
RNG = np.random.default_rng(4)
RECORDS = {"values": RNG.random(2000), "demands": RNG.random((2000, 1)), "delta": 1e-8}


@pytest.mark.parametrize("exposed", [{"epsilon": math.inf}, {"epsilon": 1.0, "seed": 1}])
def test_no_warm_start_from_a_billboard_that_is_not_private(exposed):
    board = solve(MARKET, **RECORDS, **exposed).billboard
    with pytest.raises(MarketError, match="the earlier billboard is not private"):
        Newton.warm(board, MARKET)


def test_a_private_billboard_may_start_the_next():
    board = solve(MARKET, **RECORDS, epsilon=1.0).billboard
    policy = Newton.warm(board, MARKET)
    assert policy.start_prices is not None and policy.start_prices[0] > 0.0
