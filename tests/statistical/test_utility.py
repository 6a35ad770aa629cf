"""How close mwu-adaptive gets to the optimum, on the experiments' markets of 50,000 agents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jdpack import MwuAdaptive, solve

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import families  # noqa: E402
import utility  # noqa: E402

N = 50_000


@pytest.mark.parametrize("family", utility.FAMILIES)
@pytest.mark.parametrize("alpha", [0.1, 0.03])
def test_within_alpha_n_of_the_optimum_above_the_required_supply(family: str, alpha: float) -> None:
    instance = utility.FAMILIES[family](N, np.random.default_rng(7))
    policy = MwuAdaptive(alpha=alpha)
    required = utility.required_supply(instance, policy)
    half_of_demand = float(instance.demands.sum()) / instance.demands.shape[1] / 2
    supply = float(np.ceil(max(required, half_of_demand)))
    best = instance.with_supply(supply).optimum().value
    assert best / N > 2 * alpha, "else being within alpha n would say little"
    welfare, fits, _ = utility.run(instance, supply, policy, divisible=True)
    assert fits
    assert best - welfare <= alpha * N


def test_far_below_the_required_supply_the_noise_costs_more_than_alpha() -> None:
    """Negative control: the same comparison fails where the requirement says it may."""
    instance = families.single(N, np.random.default_rng(7))
    policy = MwuAdaptive(alpha=0.03)
    supply = utility.required_supply(instance, policy) / 100
    best = instance.with_supply(supply).optimum().value
    welfare, fits, _ = utility.run(instance, supply, policy, divisible=True)
    assert fits
    assert welfare < 0.5 * best


def test_rounds_do_not_grow_with_agents() -> None:
    rounds = []
    for n in (10_000, 200_000):
        instance = families.dense(n, np.random.default_rng(7))
        market = instance.with_supply(n / 10).market()
        result = solve(
            market,
            values=instance.values,
            demands=instance.demands,
            epsilon=1.0,
            delta=1e-8,
            policy=MwuAdaptive(alpha=0.1),
            seed=1,
        )
        rounds.append(sum(1 for _ in result.billboard.rounds))
    assert rounds[1] <= rounds[0]


def test_the_experiment_runs_in_its_quick_version() -> None:
    done = subprocess.run(
        [sys.executable, str(EXPERIMENTS / "utility.py"), "--quick"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "|" in done.stdout
    assert "NO" not in done.stdout.split()
