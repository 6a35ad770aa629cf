"""What noise costs, against exact probabilities on small distributions."""

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest

from jdpack import BillboardError, BudgetError
from jdpack.privacy.noise import (
    Gaussian,
    Noise,
    NoNoise,
    TruncatedLaplace,
    deviation,
    from_dict,
    gaussian,
)
from jdpack.privacy.queries import Change
from jdpack.privacy.zcdp import delta_of

ORDERS = [Decimal(a) for a in ("1.01", "1.5", "2", "3", "7.25", "40")]
SLACK = Decimal("1e-40")

GAUSSIANS = [Gaussian((s,)) for s in (0.4, 1.0, 2.5)]
LAPLACES = [
    TruncatedLaplace(s, bound) for s, bound in itertools.product((0.5, 1.0, 3.7), (2, 5, 12))
]

Distribution = dict[int, Decimal]


@pytest.fixture(autouse=True)
def sixty_digits():
    with localcontext() as context:
        context.prec = 60
        yield


def distribution(noise: Noise) -> Distribution:
    """Exact probabilities, to sixty digits."""
    s = Decimal(deviation(noise)[0])
    if isinstance(noise, Gaussian):
        reach = math.ceil(20 * deviation(noise)[0]) + 5  # the rest is below exp(-200)
        mass = {z: (-(z * z) / (2 * s * s)).exp() for z in range(-reach, reach + 1)}
    else:
        mass = {z: (-abs(z) / s).exp() for z in range(-noise.bound, noise.bound + 1)}
    total = sum(mass.values())
    return {z: p / total for z, p in mass.items()}


def moved(P: Distribution, d: int) -> Distribution:
    return {z + d: p for z, p in P.items()}


def conditioned(P: Distribution, event: set[int]) -> Distribution:
    total = sum(P[z] for z in event)
    return {z: P[z] / total for z in event}


def renyi(P: Distribution, Q: Distribution, order: Decimal) -> Decimal:
    """The Renyi divergence of P from Q, on the support that they share."""
    total = sum(
        (order * P[z].ln() + (1 - order) * Q[z].ln()).exp() for z in P if z in Q and P[z] > 0
    )
    return total.ln() / (order - 1)


def hockey_stick(P: Distribution, Q: Distribution, epsilon: float) -> Decimal:
    """The smallest delta for which P(S) <= e^epsilon Q(S) + delta for every event S."""
    factor = Decimal(epsilon).exp()
    return sum(max(p - factor * Q.get(z, Decimal(0)), Decimal(0)) for z, p in P.items())


def as_decimal(x: Fraction) -> Decimal:
    return Decimal(x.numerator) / Decimal(x.denominator)


# --- the discrete Gaussian --------------------------------------------------------------------


@pytest.mark.parametrize("noise", GAUSSIANS, ids=str)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_gaussian_costs_no_less_than_its_divergence(noise, d):
    P = distribution(noise)
    rho = as_decimal(noise.cost(Change(d)).rho)
    for order in ORDERS:
        if order * d > math.ceil(20 * deviation(noise)[0]) // 2:
            continue  # the tilted mean leaves the tabulated range
        assert renyi(P, moved(P, d), order) <= order * rho + SLACK
        assert renyi(moved(P, d), P, order) <= order * rho + SLACK
    # At whole orders the bound is tight, so half the cost would be false.
    assert abs(renyi(P, moved(P, d), Decimal(2)) - 2 * rho) < rho * Decimal("1e-11")
    assert renyi(P, moved(P, d), Decimal(2)) > rho


def test_coordinates_of_a_gaussian_add_up():
    noise = Gaussian((0.8, 1.1))
    P, R = [distribution(Gaussian((s,))) for s in noise.scales]
    reach = range(-12, 13)
    rho = as_decimal(noise.cost(Change(2, 2), 2).rho)
    for order in ORDERS[:4]:
        total = sum(
            (order * (P[x] * R[y]).ln() + (1 - order) * (P[x - 2] * R[y - 2]).ln()).exp()
            for x in reach
            for y in reach
        )
        assert total.ln() / (order - 1) <= order * rho + Decimal("1e-25")
    assert total.ln() > Decimal("0.99") * order * (order - 1) * rho, "and nearly as much"
    alike = Gaussian((0.8,)).cost(Change(2, 2), 2)
    assert (
        alike.rho == Gaussian((0.8, 0.8)).cost(Change(2, 2), 2).rho > noise.cost(Change(2, 2)).rho
    )


@pytest.mark.parametrize("noise", GAUSSIANS, ids=str)
def test_a_gaussian_is_sub_gaussian_with_its_own_scale(noise):
    # The certificate relies on E exp(l z) <= exp(l^2 scale^2 / 2).
    P = distribution(noise)
    for rate in [Decimal(n) / 10 for n in (-20, -7, -1, 1, 3, 12, 20)]:
        rate /= Decimal(deviation(noise)[0])
        mean = sum(p * (rate * z).exp() for z, p in P.items())
        assert mean <= (rate**2 * Decimal(deviation(noise)[0]) ** 2 / 2).exp() + SLACK


# --- the truncated Laplace --------------------------------------------------------------------


@pytest.mark.parametrize("noise", LAPLACES, ids=str)
def test_a_truncated_laplace_costs_no_less_than_brute_force_says(noise):
    P = distribution(noise)
    for d in range(1, noise.bound + 1):
        cost, Q = noise.cost(Change(d)), moved(P, d)
        rho, delta = as_decimal(cost.rho), as_decimal(cost.delta)
        common = P.keys() & Q.keys()
        outside = 1 - sum(P[z] for z in common)
        assert outside == pytest.approx(1 - sum(Q[z] for z in common), abs=SLACK)
        assert outside <= delta <= outside * Decimal("1.00001")
        inside, moved_inside = conditioned(P, common), conditioned(Q, common)
        for order in ORDERS:
            assert renyi(inside, moved_inside, order) <= order * rho + SLACK
            assert renyi(moved_inside, inside, order) <= order * rho + SLACK
        # And the (epsilon, delta) that rho and delta promise together.
        for epsilon in (0.1, 1.0, 4.0):
            promised = Decimal(delta_of(float(rho), epsilon)) + delta
            assert hockey_stick(P, Q, epsilon) <= promised
            assert hockey_stick(Q, P, epsilon) <= promised


@pytest.mark.parametrize("noise", LAPLACES, ids=str)
def test_smaller_moves_cost_no_more(noise):
    costs = [noise.cost(Change(d)) for d in range(1, noise.bound + 1)]
    for small, large in itertools.pairwise(costs):
        assert small.rho < large.rho
        assert small.delta < large.delta


def test_coordinates_of_a_truncated_laplace_add_up():
    noise, shifts = TruncatedLaplace(1.5, 6), (3, 3)
    cost = noise.cost(Change(3, 2))
    P = distribution(noise)
    Q = [moved(P, d) for d in shifts]
    both = {(x, y): P[x] * P[y] for x in P for y in P}
    other = {(x, y): Q[0][x] * Q[1][y] for x in Q[0] for y in Q[1]}
    common = both.keys() & other.keys()
    assert 1 - sum(both[z] for z in common) <= as_decimal(cost.delta)
    assert 1 - sum(other[z] for z in common) <= as_decimal(cost.delta)
    inside, other_inside = conditioned(both, common), conditioned(other, common)
    for order in ORDERS:
        assert renyi(inside, other_inside, order) <= order * as_decimal(cost.rho) + SLACK
        assert renyi(other_inside, inside, order) <= order * as_decimal(cost.rho) + SLACK


@pytest.mark.parametrize("noise", LAPLACES, ids=str)
def test_negative_control_without_the_moving_support_the_claim_is_false(noise):
    """The paper's lemma compares densities only where both are positive.

    Outcomes that are possible for only one neighbour have probability 0 for the other, so no
    epsilon covers them. Unless delta includes their mass, that event refutes the claim.
    """
    P = distribution(noise)
    Q = moved(P, 1)
    event = P.keys() - Q.keys()
    assert event == {-noise.bound}
    assert sum(P[z] for z in event) > 0
    for epsilon in (1.0, 10.0, 100.0):
        assert hockey_stick(P, Q, epsilon) >= sum(P[z] for z in event)
    # At a large epsilon only that event is left, and the rho part does not cover it.
    rho = float(noise.cost(Change(1)).rho)
    epsilon = 200.0
    assert hockey_stick(P, Q, epsilon) > Decimal(delta_of(rho, epsilon))
    assert hockey_stick(P, Q, epsilon) <= as_decimal(noise.cost(Change(1)).delta)


@pytest.mark.parametrize("noise", LAPLACES, ids=str)
def test_the_lemma_on_mean_and_variance(noise):
    """Huang & Zhu 2019: the mean is mu and the variance at most 2 sigma^2."""
    P = distribution(noise)
    assert sum(p * z for z, p in P.items()) == pytest.approx(Decimal(0), abs=SLACK)
    variance = sum(p * z * z for z, p in P.items())
    assert variance <= 2 * Decimal(deviation(noise)[0]) ** 2


def test_the_variance_bound_is_not_idle():
    # Where grid and truncation hardly matter, the variance is almost 2 sigma^2.
    noise = TruncatedLaplace(20.0, 600)
    variance = sum(p * z * z for z, p in distribution(noise).items())
    assert variance > Decimal("1.99") * 20**2


@pytest.mark.parametrize("noise", LAPLACES, ids=str)
def test_a_truncated_laplace_has_the_moments_that_the_certificate_needs(noise):
    # E exp(l z) <= exp(2 l^2 scale^2) for |l| scale <= 1 / sqrt 2.
    P, s = distribution(noise), Decimal(deviation(noise)[0])
    for step in range(1, 11):
        rate = Decimal(step) / 10 / Decimal(2).sqrt() / s
        mean = sum(p * (rate * z).exp() for z, p in P.items())
        assert mean <= (2 * rate**2 * s**2).exp()


def test_truncated_noise_cannot_hide_a_move_beyond_its_bound():
    noise = TruncatedLaplace(2.0, 5)
    noise.cost(Change(5, 2))
    with pytest.raises(BudgetError, match="cannot hide a move of 6"):
        noise.cost(Change(6, 2))


def test_noise_that_would_not_fit_in_64_bits_is_refused():
    """Draws beyond 64 bits would all saturate at the same number and reveal the exact sum."""
    Gaussian((2.0**54,)).cost(Change(1))
    TruncatedLaplace(2.0**54, 2**70).cost(Change(1))
    for noise in [Gaussian((2.0**55,)), TruncatedLaplace(2.0**55, 2**70), Gaussian((math.inf,))]:
        with pytest.raises(BudgetError, match="64 bits"):
            noise.cost(Change(1))


def test_noise_without_a_scale_is_refused():
    for noise in [Gaussian((0.0,)), Gaussian((-1.0,)), TruncatedLaplace(-1.0, 5)]:
        with pytest.raises(BudgetError, match="hides nothing"):
            noise.cost(Change(1))


@pytest.mark.parametrize("bound", [600, 1000, 5000, 10**9])
def test_a_tail_too_small_for_doubles_still_costs_something(bound):
    # q^(bound - d + 1) (1 - q) / ... is above q^(bound + 1) / 4 for d = 1 and q = 1/e.
    delta = TruncatedLaplace(1.0, bound).cost(Change(1)).delta
    assert delta > 0
    if bound < 10**6:
        assert as_decimal(delta) >= (-Decimal(bound) - 1).exp() / 4


@pytest.mark.parametrize("change", [Change(1), Change(4, 2), Change(65535, 7), Change(2**32 - 1)])
@pytest.mark.parametrize(
    "shape", [(1.0,), tuple(1.0 + j for j in range(9))], ids=["even", "uneven"]
)
@pytest.mark.parametrize("rho", [1e-9, 0.024, 1.0, 1e6])
def test_noise_for_a_cost_costs_that_and_no_more(change, shape, rho):
    noise = gaussian(change, rho, shape)
    cost = noise.cost(change, 9)
    assert [s / noise.scales[0] for s in noise.scales] == pytest.approx(shape)
    assert Fraction(rho) * (1 - Fraction(1, 10**8)) < cost.rho < Fraction(rho)
    assert cost.delta == 0


def test_an_exact_answer_costs_without_bound():
    assert gaussian(Change(4, 2), math.inf) == NoNoise()
    assert NoNoise().cost(Change(1)).rho == math.inf


# --- in and out -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [Gaussian((2.5,)), Gaussian((2.5, 0.1)), TruncatedLaplace(0.125, 0), NoNoise()],
    ids=str,
)
def test_noise_survives_its_dict(noise):
    assert from_dict(noise.to_dict()) == noise


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "gaussian"},
        {"kind": "gaussian", "scale": 0.0},
        {"kind": "gaussian", "scale": -1.0},
        {"kind": "gaussian", "scale": 1},
        {"kind": "gaussian", "scale": []},
        {"kind": "gaussian", "scale": [1.0]},
        {"kind": "gaussian", "scale": [1.0, 0.0]},
        {"kind": "gaussian", "scale": [1.0, 2]},
        {"kind": "gaussian", "scale": [1.0, [2.0]]},
        {"kind": "gaussian", "scale": [1.0, math.nan]},
        {"kind": "gaussian", "scale": [1.0, 2.0], "bound": 3},
        {"kind": "gaussian", "scale": "1"},
        {"kind": "gaussian", "scale": math.nan},
        {"kind": "gaussian", "scale": math.inf},
        {"kind": "gaussian", "scale": 1.0, "bound": 3},
        {"kind": "laplace", "scale": 1.0},
        {"kind": "none", "scale": 1.0},
        {"kind": None},
        {"kind": "truncated-laplace", "scale": 1.0},
        {"kind": "truncated-laplace", "scale": 1.0, "bound": -1},
        {"kind": "truncated-laplace", "scale": 1.0, "bound": 1.0},
        {"kind": "truncated-laplace", "scale": 1.0, "bound": True},
        {"kind": "truncated-laplace", "scale": 1.0, "bound": False},
        {"kind": "truncated-laplace", "scale": math.inf, "bound": 1},
        {"kind": "truncated-laplace", "scale": 1.0, "bound": 1, "more": 1},
    ],
)
def test_noise_of_no_known_kind_is_refused(data):
    with pytest.raises(BillboardError, match="an unknown kind"):
        from_dict(data)


def test_the_tail_is_exact_where_the_scale_is_far_above_the_bound():
    """Then the noise is nearly uniform, and computing 1 + q - 2 q^(bound+1) directly cancels."""
    for bound, d in [(1000, 1), (1000, 700), (7, 7)]:
        uniform = d / (2 * bound + 1)
        assert TruncatedLaplace(2.0**53, bound).tail(d) == pytest.approx(uniform, rel=1e-9)
