"""If the noise is far below what the certificate allows for, agents are dropped until all fit.

Here every answer is so low that the policy and the certificate see enough for everybody.
"""

from fractions import Fraction

import numpy as np
import pytest

from helpers import coin_of
from jdpack import Market, MwuAdaptive, Newton, allocate, solve
from jdpack.billboard.board import Billboard
from jdpack.door import SeededRandomness
from jdpack.market.grid import SHARE
from jdpack.privacy.noise import deviation

POLICIES = {"newton": Newton(), "mwu-adaptive": MwuAdaptive(0.5)}

pytestmark = [
    pytest.mark.filterwarnings("ignore::jdpack.errors.SupplyWarning"),
    pytest.mark.parametrize("policy", POLICIES),
    pytest.mark.parametrize("options", [1, 3]),
    pytest.mark.parametrize("divisible", [True, False]),
]


@pytest.fixture(autouse=True)
def _answers_far_too_low(monkeypatch):
    def draw(self, noise, count, index):
        return [-round(300 * scale) for scale in (deviation(noise) * count)[:count]]

    monkeypatch.setattr(SeededRandomness, "draw", draw)


def a_market(n, options, divisible):
    # odd sizes: amounts are not whole numbers of codes, and are rounded
    return Market(
        supply=[0.0531 * n, 0.08 * n, 900.0 * n],
        max_demand=[1.0, 0.7, 7.3],
        max_value=1.0,
        agents=n,
        options=options,
        divisible=divisible,
    )


def records(market, seed):
    """Ids, values and demands, one row per option."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, market.options + 1, market.agents)
    ids = [f"agent {i}" for i, count in enumerate(counts) for _ in range(count)]
    demands = rng.random((len(ids), 3)) * [r.max_demand for r in market.resources]
    demands[rng.random(demands.shape) < 0.3] = 0.0
    return ids, rng.random(len(ids)), demands


def run(market, rows, policy, **more):
    ids, values, demands = rows
    return solve(
        market,
        values=values,
        demands=demands,
        ids=ids,
        epsilon=1.0,
        delta=1e-6,
        policy=POLICIES[policy],
        seed=3,
        **more,
    )


def fits(market, demands, shares):
    """Whether what is given fits, exactly and in the market's units."""
    for column, resource in zip(demands.T.tolist(), market.resources, strict=True):
        pairs = zip(column, shares.tolist(), strict=True)
        if sum(Fraction(a) * s for a, s in pairs if s) > Fraction(resource.supply) * SHARE:
            return False
    return True


def own_shares(board: Billboard, ids, values, demands):
    """What every row gets according to its agent's own function, in units of 1/SHARE."""
    shares = np.zeros(len(ids), np.int64)
    for agent in dict.fromkeys(ids):
        rows = [row for row, other in enumerate(ids) if other == agent]
        one = board.header.market.options == 1
        outcome = allocate(
            board,
            value=values[rows[0]] if one else values[rows].tolist(),
            demand=demands[rows[0]].tolist() if one else demands[rows].tolist(),
            agent=agent,
        )
        shares[rows] = np.array(outcome.given) * SHARE
    return shares


def test_as_few_as_needed_are_dropped_in_the_order_of_their_coins(divisible, options, policy):
    market = a_market(60, options, divisible)
    rows = ids, _, demands = records(market, 1)
    result = run(market, rows, policy)
    board = result.billboard
    assert board.certificate.factors == (SHARE,) * 3  # it saw enough for everybody
    before = own_shares(board, *rows)
    assert not fits(market, demands, before)

    codes = [[market.demand_code(j, a) for j, a in enumerate(row)] for row in demands.tolist()]

    def too_much(shares):
        pairs = list(zip(shares.tolist(), codes, strict=True))
        loads = [sum(s * row[j] for s, row in pairs) for j in range(3)]
        return any(x > s * SHARE for x, s in zip(loads, market.supply_codes, strict=True))

    def without(dropped):
        return np.where([agent in dropped for agent in ids], 0, before)

    winners = {agent for agent, share in zip(ids, before, strict=True) if share}
    order = sorted(winners, key=lambda agent: coin_of(board.seed.seed, agent), reverse=True)
    dropped = result.private.dropped
    assert 1 < dropped < len(order)
    after = without(order[:dropped])
    assert result.shares.tolist() == after.tolist()
    assert not too_much(after) and too_much(without(order[: dropped - 1]))


def test_supply_holds_in_true_units(divisible, options, policy):
    market = a_market(700, options, divisible)
    rows = _, values, demands = records(market, 2)
    result = run(market, rows, policy)
    shares = result.shares
    assert fits(market, demands, shares)
    assert max(result.loads) <= 1.0
    assert max(result.loads) > 0.9  # and most of the scarce resource is still given
    assert result.allocation.tolist() == (shares / SHARE).tolist()
    # The curator's report describes what is left.
    assert result.curator.dropped == result.private.dropped > 0
    assert result.curator.loads == result.loads
    assert result.welfare == pytest.approx(float(values @ shares) / SHARE, rel=1e-6)


def test_a_repair_is_the_same_on_every_run_and_number_of_threads(divisible, options, policy):
    market = a_market(5000, options, divisible)
    rows = ids, values, demands = records(market, 3)
    first = run(market, rows, policy, threads=1)
    assert first.private.dropped > 0
    for threads in (1, 2, None):
        again = run(market, rows, policy, threads=threads)
        assert again.shares.tolist() == first.shares.tolist()
        assert again.private.loads == first.private.loads
        assert again.private.dropped == first.private.dropped

    # The order of agents does not matter either.
    rng = np.random.default_rng(4)
    rank = dict(zip(dict.fromkeys(ids), rng.permutation(market.agents).tolist(), strict=True))
    order = np.array(sorted(range(len(ids)), key=lambda row: rank[ids[row]]))
    moved = run(market, ([ids[row] for row in order], values[order], demands[order]), policy)
    assert moved.shares.tolist() == first.shares[order].tolist()
    assert moved.private.dropped == first.private.dropped
