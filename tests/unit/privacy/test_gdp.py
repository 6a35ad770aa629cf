"""Gaussian noise: (epsilon, delta) and rho against high precision and a second library."""

import math
from fractions import Fraction
from typing import get_args

import mpmath
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from jdpack import Budget, BudgetError
from jdpack.common.batches import Batch
from jdpack.market.grid import DEMAND_CODE_MAX, RESOURCES_MAX
from jdpack.market.market import Market, Neighbours
from jdpack.privacy import gdp, queries, tail_bounds
from jdpack.privacy.accounting import Filter
from jdpack.privacy.noise import SCALE_MAX, Gaussian, gaussian
from jdpack.privacy.queries import Change, Query
from jdpack.privacy.zcdp import rho_of as zcdp_rho_of

EPSILONS = [1e-6, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 10.0, 50.0]
DELTAS = [1e-100, 1e-30, 1e-12, 1e-8, 1e-6, 1e-3, 0.1, 0.5, 0.999]


@pytest.fixture(autouse=True)
def many_digits():
    with mp.workdps(120):
        yield


def upper_tail(x: mpf) -> mpf:
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def normal_delta(mu: mpf, epsilon: mpf) -> mpf:
    """Balle & Wang 2018, Theorem 8."""
    shift = epsilon / mu
    return upper_tail(shift - mu / 2) - mpmath.exp(epsilon) * upper_tail(shift + mu / 2)


def promised(rho: float, epsilon: float) -> mpf:
    """G4, without the tail."""
    cost = mpf(rho) / 512
    return mpmath.exp(cost) * normal_delta(mpmath.sqrt(2 * mpf(rho)), mpf(epsilon) - cost)


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [1e-39, 1e-15, 1e-6, 1e-3, 0.02, 0.3, 5.0, 100.0, 999.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.01, 0.1, 1.0, 4.0, 10.0, 50.0, 100.0])
def test_delta_is_the_exact_one_and_no_less(rho, epsilon):
    exact = promised(rho, epsilon) + mpf(10) ** -110
    ours = gdp.delta_of(rho, epsilon)
    assert ours >= min(1, exact)
    assert ours <= exact * (1 + mpf(10) ** -15)


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-12, 900.0), st.floats(0.0, 100.0))
def test_delta_is_never_below_the_exact_one(rho, epsilon):
    assert gdp.delta_of(rho, epsilon) >= min(1, promised(rho, epsilon))


@pytest.mark.parametrize("x", [-40, -4, -3.999, -1, 0, 1e-9, 2, 3.999, 4, 6, 21, 35, 70])
def test_the_bounds_on_a_tail_hold_it(x):
    with gdp.localcontext(gdp._CONTEXT):
        least, most = (mpf(str(bound)) for bound in gdp._tail(gdp.Decimal(x)))
    exact = upper_tail(mpf(x))
    assert least <= exact * (1 + mpf(10) ** -50)
    assert exact * (1 - mpf(10) ** -50) <= most
    assert most - least <= exact * mpf(10) ** -20


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_calibration_ends_on_the_private_side_and_close(epsilon, delta):
    rho = gdp.rho_of(epsilon, delta)
    assert gdp.delta_of(rho, epsilon) <= delta < gdp.delta_of(rho * (1 + 1e-11), epsilon)
    back = gdp.epsilon_of(rho, delta)
    assert gdp.delta_of(rho, back) <= delta
    assert back <= epsilon * (1 + 1e-11)


def test_what_nobody_proves_is_not_promised():
    assert gdp.delta_of(1e3, 1.0) == gdp.delta_of(math.inf, 1.0) == 1.0
    assert gdp.delta_of(1.0, 100.1) == 1.0
    assert gdp.epsilon_of(200.0, 1e-6) == math.inf
    assert gdp.epsilon_of(1e-6, 0.1) == 0.0


def test_the_tail_of_g4_is_below_what_is_added_for_it():
    draws = mpf(SCALE_MAX) ** 2 * gdp.RHO_MOST * mpf(1) / 512 / 38
    beyond = 2 * upper_tail(mpf("29.5"))
    assert draws < mpf("2e31")
    assert beyond < mpf("1e-188")
    assert mpmath.exp(gdp.EPSILON_PROVED) * draws * beyond < mpf(str(gdp._TAIL))


@pytest.mark.parametrize(
    ("epsilon", "delta", "less"), [(1.0, 1e-8, 0.0539), (1.0, 1e-6, 0.0675), (4.0, 1e-6, 0.0584)]
)
def test_noise_falls_by_several_percent_against_zcdp(epsilon, delta, less):
    scale = math.sqrt(zcdp_rho_of(epsilon, delta) / gdp.rho_of(epsilon, delta))
    assert 1.0 - scale == pytest.approx(less, abs=1e-4)


# --- from normal to discrete noise (G3) -------------------------------------------------------


def ratio(scale: float, x: int) -> mpf:
    """The probability of x under the discrete Gaussian, over that of a normal that rounds to x."""
    s, far = mpf(scale), math.ceil(12 * scale) + 2
    whole = mpmath.fsum(mpmath.exp(-(mpf(k) ** 2) / (2 * s * s)) for k in range(-far, far + 1))
    discrete = mpmath.exp(-(mpf(x) ** 2) / (2 * s * s)) / whole
    return discrete / (upper_tail((x - mpf("0.5")) / s) - upper_tail((x + mpf("0.5")) / s))


@pytest.mark.parametrize("scale", [1.0, 1.3, 2.0, 5.0, 40.0])
def test_discrete_and_rounded_normal_noise_are_as_close_as_charged(scale):
    up, down = 0, 0
    for x in {0, 1, 2, *(int(scale * k) for k in range(1, 31))}:
        found = mpmath.log(ratio(scale, x))
        up, down = max(up, found), max(down, -found)
    assert up <= 1 / (24 * mpf(scale) ** 2)
    assert down <= 900 / (24 * mpf(scale) ** 2) + mpf("1e-8") / mpf(scale) ** 2
    charged = gdp.transfer((scale,))
    assert up + down <= mpf(charged.numerator) / charged.denominator
    # Negative control: neither bound has much to spare.
    assert up > 1 / (30 * mpf(scale) ** 2) or scale < 2.0
    assert down > 0.8 * 900 / (24 * mpf(scale) ** 2) or scale < 5.0


def discrete_delta(scale: float, shift: int, epsilon: float) -> mpf:
    """The exact delta of one discrete draw, by summation."""
    s, far = mpf(scale), 40 * math.ceil(scale)
    weights = {x: mpmath.exp(-(mpf(x) ** 2) / (2 * s * s)) for x in range(-far, far + shift + 1)}
    whole = mpmath.fsum(weights.values())
    terms = (
        weights[x] - mpmath.exp(epsilon) * weights[x - shift] for x in range(-far + shift, far)
    )
    return mpmath.fsum(max(mpf(0), term) for term in terms) / whole


def test_negative_control_discrete_noise_of_a_small_scale_is_not_gdp():
    """Without a charge for it, the normal curve would promise too much: twofold at scale 1."""
    refuted = 0
    for tenth in range(30, 60):
        epsilon = tenth / 10
        exact, normal = discrete_delta(1.0, 1, epsilon), normal_delta(mpf(1), mpf(epsilon))
        refuted += exact > 1.5 * normal
    assert refuted > 0
    filter = Filter(Budget.split(4.0, 1e-6, truncated=False))
    with pytest.raises(BudgetError, match="costs transfer"):
        filter.charge(Gaussian((2.0,)).cost(Change(1)))


@pytest.mark.parametrize(("scale", "shift", "draws"), [(2000.0, 200, 100), (700.0, 220, 10)])
def test_discrete_noise_composes_as_a_second_library_says(scale, shift, draws):
    """dp-accounting composes the discrete distributions themselves, from both sides."""
    cost = Gaussian((scale,)).cost(Change(shift))
    rho = math.nextafter(float(draws * cost.rho), math.inf) + 1e-15
    filter = Filter(Budget(50.0, 0.01, rho, 0.0, 0.001, "gdp"))
    for _ in range(draws):
        filter.charge(cost)  # the scales are large enough
    high, low = (
        privacy_loss_distribution.from_discrete_gaussian_mechanism(
            scale, shift, pessimistic_estimate=side, value_discretization_interval=1e-4
        ).self_compose(draws)
        for side in (True, False)
    )
    for delta in (1e-4, 1e-6, 1e-8):
        ours = gdp.epsilon_of(rho, delta)
        optimistic = low.get_epsilon_for_delta(delta)
        assert optimistic <= ours <= 1.01 * high.get_epsilon_for_delta(delta)
        # Negative controls: less than the true cost is noticed.
        assert gdp.epsilon_of(0.98 * rho, delta) < optimistic
        assert gdp.epsilon_of(rho / 2, delta) < optimistic


# --- the filter and the charge ----------------------------------------------------------------


def test_every_scale_is_charged_rounded_up():
    for scales in [(3.7,) * 5, (1.0, 2.0, 1e6), (2.0**54,)]:
        exact = sum(38 / Fraction(s) ** 2 for s in scales)
        assert exact <= gdp.transfer(scales) <= exact * (1 + Fraction(1, 2**38))
    for scales in [(0.999,), (1e9, 0.5), (1e-300,)]:  # nothing is proved there
        assert gdp.transfer(scales) > Fraction(gdp.RHO_MOST) * gdp.TRANSFER_SHARE
    assert Gaussian((1e4,)).cost(Change(1), 7).transfer == gdp.transfer((1e4,) * 7)
    assert Gaussian((1e4, 2e4)).cost(Change(1), 2).transfer == gdp.transfer((1e4, 2e4))


def test_the_filter_refuses_what_would_not_transfer():
    budget = Budget.split(1.0, 1e-8, truncated=False)
    noise = Gaussian((1e4,))
    most = math.floor(Fraction(budget.rho) / 512 / gdp.transfer((1e4,)))
    filter = Filter(budget)
    filter.charge(noise.cost(Change(1), most))
    assert filter.spent.transfer <= Fraction(budget.rho) / 512
    before = filter.spent
    with pytest.raises(BudgetError, match="costs transfer"):
        filter.charge(noise.cost(Change(1), 2))
    assert filter.spent == before
    truncated = Filter(Budget.split(1.0, 1e-8, truncated=True))  # in zCDP, which needs no transfer
    truncated.charge(noise.cost(Change(1), 2 * most))


def test_batches_transfer_in_parallel():
    budget = Budget.split(1.0, 1e-8, truncated=False)
    half = math.floor(Fraction(budget.rho) / 512 / gdp.transfer((1e4,)) / 2)
    filter, cost = Filter(budget), Gaussian((1e4,)).cost(Change(1), half)
    for index in range(10):
        filter.charge(cost, Batch(index, 10))
    filter.charge(cost)
    with pytest.raises(BudgetError, match="costs transfer"):
        filter.charge(cost, Batch(3, 10))


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("options", [1, 3])
@pytest.mark.parametrize("size", [1, 7, None])
@pytest.mark.parametrize("caps", ["equal", "one large", "small totals"])
def test_every_market_keeps_within_the_transfer_share(neighbours, options, size, caps):
    """Whatever share of rho a query gets, its noise is coarse enough for what it is charged."""
    m, rho = 300, 0.01
    market = Market(
        supply=[1e6] * m,
        max_demand=[1.0] * m if caps == "equal" else [1.0] + [0.1] * (m - 1),
        max_total=None if caps != "small totals" else 1e-6,
        max_value=1.0,
        agents=1000,
        bundle_size=size,
        options=options,
        neighbours=neighbours,
    )
    changes = {q: queries.change(market, q) for q in get_args(Query) if q != "luck"}
    changes["luck"] = queries.luck_change(market, 0, 0)
    for query, change in changes.items():
        width = queries.width(market, query)
        shapes = [(1.0,)]
        if query == "demand":
            shapes += [(1.0,) * m, tuple(1.0 + j for j in range(m)), (1.0,) + (100.0,) * (m - 1)]
        if query == "chance":
            shapes = [tail_bounds.chance_shape(market)]
        for shape in shapes:
            cost = gaussian(change, rho, shape).cost(change, width)
            assert cost.transfer <= rho * gdp.TRANSFER_SHARE
    # The largest market of all.
    assert Fraction(76 * RESOURCES_MAX, DEMAND_CODE_MAX**2) < gdp.TRANSFER_SHARE
