"""mirror-descent against its definition in 50 digits, and its two projections."""

import math
from decimal import Decimal, getcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import check_prices, even_market, played
from jdpack import Budget, MarketError, MirrorDescent
from jdpack.market.grid import DEMAND_CODE_MAX
from jdpack.policies.mirror_descent import projected

getcontext().prec = 50
BUDGET = Budget(1.0, 1e-6, 0.02, 0.0, 1e-8)
EXACT = Budget(math.inf, 1e-6, math.inf, 0.0, 1e-8)


def most_of(market):
    """K = 1.1 n V, in price units: a value code is worth 2^20."""
    return Decimal("1.1") * Decimal(market.agents * market.value_cap_code * 2**20)


def width_of(market):
    loads = Decimal(market.agents * DEMAND_CODE_MAX) / min(market.supply_codes)
    return max(Decimal(1), loads - 1)


def scripted(market, rounds):
    return [
        tuple((7919 * t * (j + 1)) % (9 * S) - 2 * S for j, S in enumerate(market.supply_codes))
        for t in range(rounds)
    ]


def loads_of(market, answer):
    return [Decimal(a) / S for a, S in zip(answer, market.supply_codes, strict=True)]


def codes_of(market, prices):
    return [p / S for p, S in zip(prices, market.supply_codes, strict=True)]


# --- the steps ----------------------------------------------------------------------------


def test_euclidean_rounds_by_hand():
    """2 resources, 2 agents per unit: W = 1; K = 4.4; 8 rounds, so size = 4.4 / sqrt(16) = 1.1."""
    market = even_market(2, n=400, b=200.0, max_value=0.01)
    S = market.supply_codes[0]
    answers = [(2 * S, 0), (3 * S, 2 * S), (3 * S, 2 * S), (0, 0)]
    steps = played(MirrorDescent("euclidean", 8), market, EXACT, answers)
    prices = [[p * S / 2**20 * market.value_step for p in step.prices] for step in steps]
    assert prices[0] == [0.0, 0.0]
    assert prices[1] == pytest.approx([1.1, 0.0], rel=1e-5)
    assert prices[2] == pytest.approx([3.3, 1.1], rel=1e-5)  # sums to 4.4: nothing to cut
    assert prices[3] == pytest.approx([3.85, 0.55], rel=1e-5)  # 5.5 + 2.2, less 1.65 each
    assert prices[4] == pytest.approx([2.75, 0.0], rel=1e-5)


def test_entropy_rounds_by_hand():
    """1 resource, 2 agents per unit; K = 4.4, start 2.2, size = sqrt(2 ln 2 / 8) = 0.41628."""
    market = even_market(1, n=400, b=200.0, max_value=0.01)
    S = market.supply_codes[0]
    answers = [(2 * S,), (0,), (3 * S,)]
    steps = played(MirrorDescent("entropy", 8), market, EXACT, answers)
    prices = [step.prices[0] * S / 2**20 * market.value_step for step in steps]
    up = 1.51631  # e^0.41628
    assert math.exp(math.sqrt(2 * math.log(2) / 8)) == pytest.approx(up, rel=1e-5)
    # the sum is not normalised: up, down again, and up to K but no further
    assert prices == pytest.approx([2.2, 2.2 * up, 2.2, 4.4], rel=1e-5)


def entropy(m, T, most, width, sigma):
    """The first prices, and the step from prices and loads to prices."""
    size = (2 * Decimal(m + 1).ln() / T).sqrt() / (
        width + sigma * (2 * Decimal(2 * m).ln() + 2).sqrt()
    )

    def step(prices, loads):
        moved = [p * (size * (x - 1)).exp() for p, x in zip(prices, loads, strict=True)]
        return [p * min(Decimal(1), most / sum(moved)) for p in moved]

    return [most / (m + 1)] * m, step


def euclidean(m, T, most, width, sigma):
    size = most / (T * m * (width**2 + sigma**2)).sqrt()

    def step(prices, loads):
        return nearest([p + size * (x - 1) for p, x in zip(prices, loads, strict=True)], most)

    return [Decimal(0)] * m, step


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("budget", [BUDGET, EXACT], ids=["noise", "exact"])
@pytest.mark.parametrize("potential", [entropy, euclidean])
def test_prices_in_50_digits(m, budget, potential):
    market, T = even_market(m, max_demand=[1.0 / (j + 1) for j in range(m)]), 40
    policy, sigma = MirrorDescent(potential.__name__, T), Decimal(0)
    if budget is BUDGET:
        (first,) = played(policy, market, budget, [])
        sigma = Decimal(first.noise.scales[0]) / min(market.supply_codes)
    prices, step = potential(m, T, most_of(market), width_of(market), sigma)
    expected = []
    for answer in scripted(market, T):
        expected.append(codes_of(market, prices))
        prices = step(prices, loads_of(market, answer))
    check_prices(played(policy, market, budget, scripted(market, T)), expected)


def nearest(prices, most):
    """The Euclidean projection, by bisection on the amount taken off every price."""
    low, high = Decimal(0), max(Decimal(0), *prices)
    if sum(max(p, Decimal(0)) for p in prices) <= most:
        high = low
    for _ in range(160):
        middle = (low + high) / 2
        fits = sum(max(p - middle, Decimal(0)) for p in prices) <= most
        low, high = (low, middle) if fits else (middle, high)
    return [max(p - high, Decimal(0)) for p in prices]


def test_noise_makes_the_steps_smaller():
    market = even_market(2)
    for potential in ("entropy", "euclidean"):
        sizes = [
            MirrorDescent(potential, 500).start(market, Budget(1.0, 1e-6, rho, 0.0, 1e-8)).size
            for rho in (1e-8, 1e-3, 1.0, math.inf)
        ]
        assert sizes == sorted(sizes)
        assert sizes[0] < 0.02 * sizes[-1]


# --- the projection -----------------------------------------------------------------------

vectors = st.lists(
    st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0, -1.0, 7.0]), min_size=1, max_size=12
)


@given(vectors, st.sampled_from([1e-3, 1.0, 5.0, 1e4]))
def test_the_projection_is_the_nearest_point_of_the_domain(prices, most):
    found = projected(np.array(prices), most)
    assert (found >= 0.0).all()
    assert math.fsum(found) <= most + 1e-9 * (1.0 + max(map(abs, prices)))
    expected = [float(p) for p in nearest([Decimal(p) for p in prices], Decimal(most))]
    assert found.tolist() == pytest.approx(expected, abs=1e-9 * (1.0 + max(map(abs, prices))))


def test_the_projection_of_ties_and_of_what_is_inside():
    assert projected(np.array([1.0, 1.0, 1.0]), 1.5).tolist() == [0.5, 0.5, 0.5]
    assert projected(np.array([3.0, 1.0, -2.0]), 2.0).tolist() == [2.0, 0.0, 0.0]
    assert projected(np.array([0.5, -1.0, 0.25]), 2.0).tolist() == [0.5, 0.0, 0.25]
    assert projected(np.array([-1.0]), 2.0).tolist() == [0.0]


@pytest.mark.parametrize("potential", ["entropy", "euclidean"])
def test_prices_stay_in_the_domain_whatever_the_answers(potential):
    market = even_market(3)
    far = 2**40
    answers = [(far, far, -far), (far, -far, 0), (-far, far, far)] * 9
    steps = played(MirrorDescent(potential, 40), market, BUDGET, answers)
    sums = [sum(step.prices) for step in steps]
    most = most_of(market) / market.supply_codes[0]  # all supplies are equal
    assert all(total <= most + 3 for total in sums)
    assert max(sums) >= most - 3


def test_a_price_that_fell_for_long_comes_back():
    market = even_market(1, n=150)
    answers = [(-(2**60),)] * 2000 + [(2**60,)] * 999
    steps = played(MirrorDescent("entropy", 3000), market, BUDGET, answers)
    assert steps[1999].prices == (0,)
    assert steps[2999].prices[0] == pytest.approx(float(most_of(market) / market.supply_codes[0]))


# --- parameters ---------------------------------------------------------------------------


def test_the_papers_number_of_rounds_is_the_default():
    assert MirrorDescent().outlook(even_market(), BUDGET).rounds_at_most == 10_000
    assert MirrorDescent().to_dict() == {
        "name": "mirror-descent",
        "potential": "entropy",
        "rounds": 10_000,
    }


@pytest.mark.parametrize("potential", ["nuclear", "", None, 1])
def test_an_unknown_potential_is_refused(potential):
    with pytest.raises(MarketError, match=r"potential .* is not known"):
        MirrorDescent(potential)
