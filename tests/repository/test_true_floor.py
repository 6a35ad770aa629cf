"""F*, compared with a search over all scales."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from jdpack.curator.optimum import optimum

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import families  # noqa: E402
import floors  # noqa: E402
from true_floor import CLOSE, true_floor  # noqa: E402


def lost(instance: families.Instance, margins: np.ndarray) -> float:
    """What margins of supply cost."""
    less = optimum(instance.values, instance.demands, instance.supply * (1.0 - margins))
    return 1.0 - less.value / instance.optimum().value


def test_one_resource_has_one_scale() -> None:
    instance = families.single(3000, np.random.default_rng(1))
    exact = lost(instance, np.array([instance.margin(1.0, 1e-8)]))
    found = true_floor(instance, 1.0)
    assert found.low - 1e-6 <= exact <= found.high + 1e-6 and found.high - found.low < CLOSE * exact
    # Prices rise as supply falls, so the first order is too little.
    assert instance.floor(instance.price_shares(), 1.0, 1e-8) < exact


@pytest.mark.parametrize("slack", [1.02, 1.3])
def test_no_scales_of_two_resources_lose_less(slack: float) -> None:
    """Everybody needs both; the second has a slack that is below its margin, or above it."""
    rng = np.random.default_rng(2)
    amounts = rng.uniform(0.5, 1.0, (3000, 1)) * np.array([1.0, 0.9])
    supply = np.array([900.0, 900.0 * 0.9 * slack])
    instance = families.Instance(rng.random(3000), amounts, supply, 2)
    times, u = floors.factor(2, 1.0, 1e-8), 1.0 / supply
    angles = np.linspace(0.1, 0.5 * math.pi - 0.1, 60)  # (u_j / sigma_j)^2 add up to 1
    every = [lost(instance, times * u / np.array([math.cos(a), math.sin(a)])) for a in angles]
    found = true_floor(instance, 1.0)
    assert found.low <= min(every) * (1.0 + 1e-6) and min(every) <= found.high * 1.01
    assert found.high - found.low <= CLOSE * found.high
    first = instance.floor(instance.price_shares(), 1.0, 1e-8)
    assert first < 0.8 * found.low if slack == 1.02 else first > 0.8 * found.low
