"""zCDP: (epsilon, delta) and rho against a second library and against the formula."""

import math

import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import minimize_scalar

from jdpack.privacy.zcdp import delta_of, epsilon_of, rho_of

EPSILONS = [1e-6, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 10.0, 50.0]
DELTAS = [1e-100, 1e-30, 1e-12, 1e-8, 1e-6, 1e-3, 0.1, 0.5, 0.999]

# Every order gives a bound, so a fine grid comes as close as we like, from above.
ORDERS = [1 + 10 ** (e / 800) for e in range(-800, 3200)]


def log_delta_by_formula(rho: float, epsilon: float) -> float:
    """The logarithm of Canonne, Kamath & Steinke 2020, Proposition 12, minimised numerically."""

    def objective(t: float) -> float:  # a = 1 + e^t
        excess = math.exp(t)
        a = 1.0 + excess
        tail = a * (t - math.log1p(excess))  # (1 - 1/a)^a, without cancellation
        return excess * (a * rho - epsilon) + tail - t

    # Convex in the order, so there is one minimum: the grid brackets it, the search refines it.
    grid = [t / 4 for t in range(-80, 220)]
    values = [objective(t) for t in grid]
    at = min(range(1, len(grid) - 1), key=values.__getitem__)
    found = minimize_scalar(
        objective, bounds=(grid[at - 1], grid[at + 1]), method="bounded", options={"xatol": 1e-10}
    )
    return float(found.fun)


@pytest.mark.parametrize(("epsilon", "rho"), [(0.1, 0.000321), (1.0, 0.024356), (4.0, 0.311065)])
def test_known_values(epsilon, rho):
    assert rho_of(epsilon, 1e-6) == pytest.approx(rho, abs=5e-7)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 10.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-8, 1e-3])
def test_dp_accounting_agrees(epsilon, delta):
    rho = rho_of(epsilon, delta)
    other = RdpAccountant(orders=ORDERS)
    other.compose(dp_event.ZCDpEvent(rho))
    assert other.get_delta(epsilon) == pytest.approx(delta, rel=1e-4)
    assert other.get_epsilon(delta) == pytest.approx(epsilon, rel=1e-5)
    assert delta_of(rho, epsilon) == pytest.approx(other.get_delta(epsilon), rel=1e-4)
    assert epsilon_of(rho, delta) == pytest.approx(other.get_epsilon(delta), rel=1e-5)


@pytest.mark.parametrize("rho", [1e-12, 1e-6, 1e-3, 0.024, 0.3, 5.0])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 4.0, 20.0])
def test_delta_is_the_minimum_of_proposition_12_and_no_less(rho, epsilon):
    log_delta = log_delta_by_formula(rho, epsilon)
    ours = delta_of(rho, epsilon)
    if log_delta < -700:  # below the smallest double: rounded up, it must not be negative
        assert 0.0 <= ours < 1e-300
    else:
        assert math.log(ours) >= log_delta - 1e-8
        assert math.log(ours) <= max(log_delta, 0.0) or math.log(ours) == pytest.approx(
            log_delta, abs=1e-6
        )


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_calibration_ends_on_the_private_side_and_close(epsilon, delta):
    rho = rho_of(epsilon, delta)
    assert delta_of(rho, epsilon) <= delta
    assert delta_of(rho * (1 + 1e-9), epsilon) > delta
    assert log_delta_by_formula(rho, epsilon) <= math.log(delta) + 1e-7


def test_more_rho_means_more_delta_and_more_epsilon():
    deltas = [delta_of(rho, 1.0) for rho in (0.001, 0.01, 0.1, 1.0)]
    assert deltas == sorted(set(deltas))
    epsilons = [epsilon_of(rho, 1e-6) for rho in (0.001, 0.01, 0.1, 1.0)]
    assert epsilons == sorted(set(epsilons))


def test_a_rho_beyond_any_budget_proves_nothing():
    assert delta_of(1e3, 1.0) == delta_of(math.inf, 1.0) == 1.0
