"""A supply that may rarely be exceeded: how often, by how much, and that nobody is dropped."""

import numpy as np
import pytest
from scipy import stats

from helpers import open_board
from jdpack import Budget, Market, solve, verify_run
from jdpack.billboard.lines import Release, Step
from jdpack.door import SeededRandomness
from jdpack.market.grid import SHARE
from jdpack.privacy.noise import Gaussian, deviation
from jdpack.protocol import bounds
from jdpack.protocol.certificate import certify

ALLOWED = 0.02
TRIALS = 600
LOAD = 1.03  # of the averaged shares: without a factor a supply is always exceeded


def a_market(excess=ALLOWED):
    return Market(
        supply=[1000.0], max_demand=1.0, max_value=1.0, agents=5000, divisible=True,
        excess_probability=excess,
    )  # fmt: skip


def boards(market, count):
    """Boards of rounds whose true load is LOAD, with noise of a hundredth of the supply."""
    rng, (supply,) = np.random.default_rng(1), market.supply_codes
    scale, excess = 0.01 * supply, market.excess_probability
    budget = Budget.split(1.0, 1e-6, truncated=False, excess=excess)
    for _ in range(count):
        board = open_board(market, [], budget=budget)
        for noise in rng.normal(0.0, scale, 5):
            step = Step("demand", (1,), Gaussian((scale,)), 1)
            board.post(Release(step, (round(LOAD * supply + noise),)))
        board.post(Release(Step("welfare", (), Gaussian((2.0**32,))), (2**40,)))
        if min(bounds.factors(board)) < SHARE:
            board.post(Release(Step("luck", (), Gaussian((2.0**32,))), (0,)))
        yield board


def too_often(count):
    """Whether this many trials are too many for a probability of ALLOWED."""
    return stats.binom.sf(count - 1, TRIALS, ALLOWED) < 1e-6


def test_a_supply_is_exceeded_no_more_often_than_the_market_allows():
    exceeded, far = 0, 0
    for board in boards(a_market(), TRIALS):
        certificate = certify(board)
        given = LOAD * certificate.factors[0] / SHARE
        assert certificate.beta == ALLOWED and certificate.load_at_most[0] <= 1.0
        exceeded += given > 1.0
        far += given > certificate.load_surely[0]
    assert not too_often(exceeded) and far == 0
    assert exceeded > 0.5 * ALLOWED * TRIALS, "and not much less often: nothing is given away"


def test_negative_control_a_bound_that_fails_more_often_is_caught():
    exceeded = 0
    for board in boards(a_market(), TRIALS):
        (most,) = bounds.load_bounds(board, 0.9)
        exceeded += LOAD * min(1.0, 1.0 / most) > 1.0
    assert too_often(exceeded)


def test_where_nothing_may_be_exceeded_a_cap_more_is_left_free_and_nothing_is_said_of_excess():
    (never,), (rarely,) = boards(a_market(0.0), 1), boards(a_market(), 1)
    assert certify(never).load_surely is None and certify(rarely).load_surely is not None
    assert certify(never).factors[0] < certify(rarely).factors[0]
    (alone,), (spare,) = bounds.load_bounds(rarely, 1e-9), bounds.load_bounds(never, 1e-9)
    assert spare - alone == pytest.approx(1 / 1000, rel=1e-3)
    assert certify(rarely).load_surely[0] == pytest.approx(
        alone * certify(rarely).factors[0] / SHARE
    )


@pytest.mark.filterwarnings("ignore::jdpack.errors.SupplyWarning")
@pytest.mark.parametrize("divisible", [True, False])
def test_if_a_bound_fails_nobody_is_dropped_and_verify_says_what_happened(
    divisible, tmp_path, monkeypatch
):
    """Every answer is far too low, so the certificate sees enough for everybody."""

    def draw(self, noise, count, index):
        return [-round(300 * max(deviation(noise)))] * count

    monkeypatch.setattr(SeededRandomness, "draw", draw)
    rng, n = np.random.default_rng(2), 500
    records = {"values": rng.random(n), "demands": rng.random((n, 1))}
    for excess in (ALLOWED, 0.0):
        market = Market(
            supply=[25.0], max_demand=1.0, max_value=1.0, agents=n, divisible=divisible,
            excess_probability=excess,
        )  # fmt: skip
        out = tmp_path / f"out {excess}"
        result = solve(market, **records, epsilon=1.0, delta=1e-6, seed=1, output=out)
        words = str(verify_run(out, **records))
        assert (result.curator.dropped > 0) == (excess == 0.0)
        assert (max(result.loads) > 1.0) == (excess > 0.0)
        assert ("A SUPPLY IS EXCEEDED, which the market allows" in words) == (excess > 0.0)
        assert ("right: no supply is exceeded" in words) == (excess == 0.0)
