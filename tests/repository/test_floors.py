"""The yardsticks M and F: closed forms, a numerical solver, and the package's own split."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize

from jdpack import Budget

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import families  # noqa: E402
import floors  # noqa: E402


def solved(u: np.ndarray, pi: np.ndarray, changes: np.ndarray) -> float:
    """The least sum_j pi_j sigma_j if every row of `changes`, as shares of u, costs at most 1."""
    rows = (changes * u) ** 2

    def cost(x: np.ndarray) -> np.ndarray:
        return rows @ np.exp(-2.0 * x)

    start = np.log(u) + 0.5 * np.log(cost(np.log(u)).max())
    found = scipy.optimize.minimize(
        lambda x: pi @ np.exp(x),
        start,
        jac=lambda x: pi * np.exp(x),
        constraints={
            "type": "ineq",
            "fun": lambda x: 1.0 - cost(x),
            "jac": lambda x: 2.0 * rows * np.exp(-2.0 * x),
        },
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    return float(found.fun * math.sqrt(cost(found.x).max()))  # scaled until it is feasible


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, 7))
    pi = rng.dirichlet(np.full(m, 0.7)) * rng.uniform(0.2, 1.0)
    return 10.0 ** rng.uniform(-2.0, 0.0, m), pi, int(rng.integers(1, m + 1))


@pytest.mark.parametrize("seed", range(30))
def test_no_other_scales_lose_less(seed: int) -> None:
    u, pi, changed = drawn(seed)
    found, sigma = floors.best_shape(u, pi, changed)
    assert pi @ sigma == pytest.approx(found)
    assert np.sort((u / sigma) ** 2)[::-1][:changed].sum() == pytest.approx(1.0)
    sets = np.array([np.isin(np.arange(len(u)), c) for c in combinations(range(len(u)), changed)])
    assert solved(u, pi, sets) == pytest.approx(found, rel=1e-4)


@pytest.mark.parametrize("seed", range(15))
def test_no_other_scales_lose_less_within_a_total(seed: int) -> None:
    """The corners of {0 <= y <= 1, sum y <= K, sum c y <= B}, found by brute force."""
    u, pi, changed = drawn(100 + seed)
    m, rng = len(u), np.random.default_rng(seed)
    caps = rng.uniform(0.2, 1.0, m)
    bounds = [
        (np.ones(m), float(changed)),
        (caps, float(rng.uniform(0.3, 1.0) * caps.sum())),
        (caps * (np.arange(m) < 2), float(rng.uniform(0.4, 1.0))),
    ]
    rows = np.vstack([*(a for a, _ in bounds), np.eye(m), -np.eye(m)])
    right = np.array([*(b for _, b in bounds), *np.ones(m), *np.zeros(m)])
    corners = []
    for some in combinations(range(len(rows)), m):
        chosen = list(some)
        if abs(np.linalg.det(rows[chosen])) > 1e-9:
            y = np.linalg.solve(rows[chosen], right[chosen])
            if np.all(rows @ y <= right + 1e-9):
                corners.append(np.clip(y, 0.0, 1.0))
    found, sigma = floors.best_shape(u, pi, changed, bounds[1:])
    squares = np.unique(np.round(corners, 12), axis=0)
    assert (squares @ (u / sigma) ** 2).max() == pytest.approx(1.0, rel=1e-6)
    assert solved(u, pi, np.sqrt(squares)) == pytest.approx(found, rel=1e-3)


def test_closed_forms() -> None:
    u, pi = np.array([0.1, 0.02, 0.5]), np.array([0.3, 0.2, 0.1])
    assert floors.best_shape(u, pi, 3)[0] == pytest.approx(np.sum((u * pi) ** (2 / 3)) ** 1.5)
    # One resource per option, and each explains its share of supply: all noise relative to caps.
    quotas = np.array([10.0, 100.0, 1000.0])
    found, sigma = floors.best_shape(1 / quotas, quotas / quotas.sum(), 2)
    assert sigma == pytest.approx(math.sqrt(2.0) / quotas)
    assert found == pytest.approx(3 * math.sqrt(2.0) / quotas.sum())
    # Equal ratios that all bind equally: no shape is better than a common one.
    even = floors.best_shape(np.full(8, 0.01), np.full(8, 1 / 8), 4)[0]
    assert even == pytest.approx(0.01 * math.sqrt(4.0))
    # A resource that does not bind may have all the noise, and costs nothing.
    found, sigma = floors.best_shape(u, [0.3, 0.0, 0.1], 3)
    assert sigma[1] == math.inf and found == floors.best_shape(u[[0, 2]], [0.3, 0.1], 3)[0]
    # Twenty slots and a total of four caps: 2 caps instead of sqrt(20).
    slots = np.full(20, 0.01), np.full(20, 1 / 20)
    assert floors.best_shape(*slots, 20)[0] == pytest.approx(0.01 * math.sqrt(20.0))
    total = [(np.ones(20), 4.0)]
    assert floors.best_shape(*slots, 20, total)[0] == pytest.approx(0.01 * 2.0)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 5.0])
def test_the_budget_is_split_as_when_the_margin_was_defined(epsilon: float) -> None:
    golden = {0.2: 0.0007613192273331494, 1.0: 0.01665619576724679, 5.0: 0.3407678817103173}
    rho, beta = floors.budget(epsilon, 1e-8)
    assert rho == pytest.approx(golden[epsilon], rel=1e-9)
    assert beta == pytest.approx(0.4e-8 / (1.0 + math.exp(epsilon)))
    # Whatever the package does later, it should not need more noise than this.
    assert Budget.split(epsilon, 1e-8, truncated=False).rho >= rho * (1.0 - 1e-9)


def test_the_margin_and_the_floor_of_markets() -> None:
    instance = families.sparse(1000, np.random.default_rng(1))
    rho, beta = floors.budget(1.0, 1e-8)
    unit = math.sqrt(2.0 * math.log(40.0 / beta)) / math.sqrt(2.0 * rho) / instance.supply[0]
    assert instance.margin(1.0, 1e-8) == pytest.approx(math.sqrt(6.0) * unit)
    even = np.full(40, 0.5 / 40)
    assert instance.floor(even, 1.0, 1e-8) == pytest.approx(0.5 * math.sqrt(6.0) * unit)
    assert instance.margin(math.inf, 1e-8) == instance.floor(even, math.inf, 1e-8) == 0.0
    absent = families.add_remove(1000, np.random.default_rng(1))
    assert floors.touched(10, absent.bundle_size, absent.neighbours) == 10
    # A bound on the total helps: with 20 of 48 half hours and 4 caps, 8 caps in squares, not 40.
    slots = families.half_hours(1000, np.random.default_rng(1))
    pi = slots.price_shares()
    without = replace(slots, extra={})
    assert slots.floor(pi, 1.0, 1e-8) < 0.6 * without.floor(pi, 1.0, 1e-8)


def test_prices_that_are_not_unique() -> None:
    """Identical agents use up five supplies at once, so no supply may be missed: F is M."""
    instance = families.identical(1000, np.random.default_rng(3))
    pi = instance.price_shares()
    assert pi.sum() == pytest.approx(1.0)
    assert instance.floor(pi, 1.0, 1e-8) == pytest.approx(instance.margin(1.0, 1e-8), rel=0.05)
    best = instance.optimum()
    plain = best.prices * instance.supply / best.value
    assert instance.floor(plain, 1.0, 1e-8) < 0.5 * instance.margin(1.0, 1e-8)
    unique = families.dense(1000, np.random.default_rng(3))
    best = unique.optimum()
    assert np.array_equal(unique.price_shares(), best.prices * unique.supply / best.value)
