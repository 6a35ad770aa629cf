"""mwu-fixed against its definition in 50 digits, and the number of its rounds."""

import math
from decimal import Decimal, getcontext

import pytest

from helpers import check_prices, played
from jdpack import Budget, Market, MwuAdaptive, MwuFixed
from jdpack.market.grid import DEMAND_CODE_MAX

getcontext().prec = 50
BUDGET = Budget(1.0, 1e-6, 0.02, 0.0, 1e-8)


def a_market(m=2, n=1000, b=100.0, **more):
    given = {"max_demand": 1.0, "max_value": 1.0, "agents": n}
    return Market(**{"supply": [b] * m, **given, **more})


def nv_of(market):
    """What all agents together could pay, in price units: a value code is worth 2^20."""
    return Decimal(market.agents * market.value_cap_code * 2**20)


def rounds_of(policy, market):
    return policy.outlook(market, BUDGET).rounds_at_most


# --- the step -----------------------------------------------------------------------------


def test_one_round_by_hand():
    """One resource, 2 agents per unit, so W = 1; n V = 4; 3 rounds, so theta = sqrt(ln 2 / 3)."""
    market = a_market(1, n=400, b=200.0, max_value=0.01)
    S = market.supply_codes[0]
    policy = MwuFixed(rounds=3)
    first, second, third = played(policy, market, BUDGET, [(2 * S,), (S // 2,)])
    # the resource and the dummy share 2 n V = 8
    price = [step.prices[0] * S / 2**20 * market.value_step for step in (first, second, third)]
    assert price[0] == pytest.approx(4.0, rel=1e-6)
    theta = 0.4806769  # sqrt(0.6931472 / 3)
    up = 1.6171688  # e^0.4806769: the load is 1 too much
    assert math.exp(theta) == pytest.approx(up, rel=1e-6)
    assert price[1] == pytest.approx(8.0 * up / (up + 1.0), rel=1e-5)
    there = up * math.exp(-theta / 2.0)  # now half is free
    assert price[2] == pytest.approx(8.0 * there / (there + 1.0), rel=1e-5)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_many_rounds_in_50_digits(m):
    market, T = a_market(m, max_demand=[1.0 / (j + 1) for j in range(m)]), 40
    codes = market.supply_codes  # they grow with j
    answers = [
        tuple((7919 * t * (j + 1)) % (3 * S) - S // 4 for j, S in enumerate(codes))
        for t in range(T)
    ]
    width = max(Decimal(1), Decimal(market.agents * DEMAND_CODE_MAX) / min(codes) - 1)
    theta = (Decimal(m + 1).ln() / T).sqrt() / width
    weights, expected = [Decimal(1) / (m + 1)] * (m + 1), []
    for answer in answers:
        expected.append([2 * nv_of(market) * w / S for w, S in zip(weights, codes, strict=False)])
        loads = [Decimal(a) / S for a, S in zip(answer, codes, strict=True)]
        grown = [w * (theta * (x - 1)).exp() for w, x in zip(weights, loads, strict=False)]
        weights = [w / sum([*grown, weights[-1]]) for w in [*grown, weights[-1]]]
    check_prices(played(MwuFixed(rounds=T), market, BUDGET, answers), expected)


def test_prices_stay_where_supply_is_met_and_sum_to_less_than_2nv():
    market = a_market(3)
    policy, S = MwuFixed(rounds=50), market.supply_codes[0]
    steps = played(policy, market, BUDGET, [(S,) * 3] * 49)
    assert len({step.prices for step in steps}) == 1
    wild = [(2**60, -(2**60), 0), (0, 2**60, 2**60)] * 24
    for step in played(policy, market, BUDGET, wild):
        assert sum(step.prices) < 2 * nv_of(market) / S + 2


def test_the_exponent_is_cut_where_the_lemma_needs_it():
    market = a_market(2, n=50)  # W = 1: theta = sqrt(ln 3 / 2) = 0.74
    S = market.supply_codes[0]
    policy = MwuFixed(rounds=2)
    far = played(policy, market, BUDGET, [(2**60, -(2**60))])[1].prices
    assert far[0] / far[1] == pytest.approx(math.exp(2.0))
    near = played(policy, market, BUDGET, [(2 * S, 0)])[1].prices
    assert near[0] / near[1] == pytest.approx(math.exp(2.0 * math.sqrt(math.log(3) / 2)), rel=1e-6)


def test_a_price_that_fell_for_long_comes_back():
    market = a_market(1, n=150)
    answers = [(-(2**60),)] * 2000 + [(2**60,)] * 999
    steps = played(MwuFixed(rounds=3000), market, BUDGET, answers)
    assert steps[1999].prices == (0,)
    assert steps[2999].prices[0] > nv_of(market) / market.supply_codes[0]


# --- the number of rounds -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "b", "alpha", "rounds"),
    [
        (1, 10, 1000.0, 0.5, 3),  # nothing is scarce, W = 1: ln(2) / 0.25 = 2.77
        (1, 10, 1000.0, 0.1, 70),  # 69.3
        (3, 10, 1000.0, 0.1, 139),  # ln(4) / 0.01 = 138.6
        (3, 1200, 100.0, 0.5, 671),  # W = 11: ln(4) 121 / 0.25 = 670.97
    ],
)
def test_the_number_of_rounds(m, n, b, alpha, rounds):
    market, policy = a_market(m, n, b), MwuFixed(alpha)
    assert rounds_of(policy, market) == rounds
    assert policy.start(market, BUDGET).left == rounds


def test_the_step_is_alpha_over_the_squared_width_and_the_regret_4_alpha():
    for alpha, n in [(0.1, 1000), (0.02, 300), (0.5, 5000)]:
        market, m, width = a_market(3, n), 3, n / 100.0 - 1.0
        state = MwuFixed(alpha).start(market, BUDGET)
        assert state.size == pytest.approx(alpha / width**2, rel=1e-2)
        regret = 2.0 * (math.log(m + 1) / (state.size * state.left) + state.size * width**2)
        assert regret == pytest.approx(4.0 * alpha, rel=1e-2)
        assert regret <= 4.0 * alpha * (1 + 1e-6)


def test_rounds_grow_as_n_squared_where_supply_is_constant_and_not_at_all_where_it_follows_n():
    policy = MwuFixed(0.5)
    some, more = (rounds_of(policy, a_market(2, n)) for n in (4000, 8000))
    assert more / some == pytest.approx(4.0, rel=0.06)
    some, more = (rounds_of(policy, a_market(2, n, n / 20.0)) for n in (4000, 8000))
    assert some == more
    # if n is large compared to supply, that is more than mwu-adaptive ever needs
    assert rounds_of(MwuFixed(0.5), a_market(2, 8000)) > 100 * rounds_of(
        MwuAdaptive(0.5), a_market(2, 8000)
    )
