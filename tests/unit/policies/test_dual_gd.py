"""dual-gd against its definition in 50 digits, its box, and the number of its rounds."""

import math
from decimal import Decimal, getcontext

import pytest

from helpers import check_prices, even_market, played
from jdpack import Budget, DualGd
from jdpack.market.grid import DEMAND_CODE_MAX

getcontext().prec = 50
BUDGET = Budget(1.0, 1e-6, 0.02, 0.0, 1e-8)
EXACT = Budget(math.inf, 1e-6, math.inf, 0.0, 1e-8)


def nv_of(market):
    """What all agents together could pay, in price units: a value code is worth 2^20."""
    return Decimal(market.agents * market.value_cap_code * 2**20)


def variance_of(market, rounds):
    """Of the noise on the scarcest load: a replaced bundle may move all m of them by a cap each,
    and T rounds get 97% of rho."""
    squares = len(market.resources) * Decimal(DEMAND_CODE_MAX) ** 2
    rho = Decimal(BUDGET.rho) * Decimal("0.97")
    return squares * rounds / (2 * rho) / Decimal(min(market.supply_codes)) ** 2


def test_two_rounds_by_hand():
    """2 agents per unit: W = 1; n V = 4; 4 rounds without noise, so eta = 2 x 4 / sqrt(4) = 4."""
    market = even_market(1, n=400, b=200.0, max_value=0.01)
    (S,) = market.supply_codes
    steps = played(DualGd(rounds=4), market, EXACT, [(2 * S,), (S // 2,), (3 * S,)])
    prices = [step.prices[0] * S / 2**20 * market.value_step for step in steps]
    assert prices == pytest.approx([0.0, 4.0, 2.0, 8.0], rel=1e-5)  # and not 2 + 4 x 2


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("budget", [BUDGET, EXACT], ids=["noise", "exact"])
def test_many_rounds_in_50_digits(m, budget):
    market, T = even_market(m, max_demand=[1.0 / (j + 1) for j in range(m)]), 40
    codes = market.supply_codes  # they grow with j
    answers = [
        tuple((7919 * t * (j + 1)) % (9 * S) - 2 * S for j, S in enumerate(codes)) for t in range(T)
    ]
    width = max(Decimal(1), Decimal(market.agents * DEMAND_CODE_MAX) / min(codes) - 1)
    variance = variance_of(market, T) if budget is BUDGET else Decimal(0)
    eta = 2 * nv_of(market) / (T * (width**2 + variance)).sqrt()
    prices, expected = [Decimal(0)] * m, []
    for answer in answers:
        expected.append([p / S for p, S in zip(prices, codes, strict=True)])
        loads = [Decimal(a) / S for a, S in zip(answer, codes, strict=True)]
        moved = [p + eta * (load - 1) for p, load in zip(prices, loads, strict=True)]
        prices = [min(max(p, Decimal(0)), 2 * nv_of(market)) for p in moved]
    # the noise exceeds what rho asks for by up to 1e-9, to stay within the budget
    steps = played(DualGd(rounds=T), market, budget, answers)
    check_prices(steps, expected, "1e-11" if budget is EXACT else "2e-9")


def test_prices_start_at_0_and_stay_in_the_box():
    market = even_market(2)
    steps = played(DualGd(rounds=9), market, BUDGET, [(2**60, -(2**60)), (-(2**60), 2**60)] * 4)
    most = round(2 * nv_of(market) / market.supply_codes[0])
    assert [step.prices for step in steps[1:]] == [(most, 0), (0, most)] * 4
    assert steps[0].prices == (0, 0)


def test_noise_makes_the_steps_smaller():
    market = even_market(2)
    sizes = [
        DualGd(rounds=500).start(market, Budget(1.0, 1e-6, rho, 0.0, 1e-8)).size
        for rho in (1e-8, 1e-3, 1.0, math.inf)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < 0.01 * sizes[-1]
    assert sizes[2] > 0.9 * sizes[-1]


@pytest.mark.parametrize(
    ("m", "n", "b", "alpha", "rounds"),
    [
        (1, 10, 1000.0, 0.5, 1),  # nothing is scarce, W = 1: 1 / (4 alpha^2)
        (1, 10, 1000.0, 0.1, 25),
        (3, 10, 1000.0, 0.1, 225),  # 9 times as many
        (3, 1200, 100.0, 0.5, 1090),  # W = 11, 1089, and the grid rounds supply down
    ],
)
def test_the_number_of_rounds(m, n, b, alpha, rounds):
    market, policy = even_market(m, n, b), DualGd(alpha)
    assert policy.outlook(market, BUDGET).rounds_at_most == rounds
    assert policy.start(market, BUDGET).left == rounds


def test_without_noise_the_regret_of_the_lemma_is_4_alpha():
    """D^2 / (2 eta T) + eta G^2 / 2 in units of n V, D^2 = 4 m, G^2 = m W^2."""
    for alpha, n, m in [(0.1, 1000, 3), (0.02, 300, 2), (0.5, 5000, 1)]:
        market, width = even_market(m, n), n / 100.0 - 1.0
        state = DualGd(alpha).start(market, EXACT)
        eta = state.size / float(nv_of(market))
        regret = 4 * m / (2 * eta * state.left) + eta * m * width**2 / 2
        assert regret == pytest.approx(4.0 * alpha, rel=1e-2)
        assert regret <= 4.0 * alpha * (1 + 1e-6)
