"""The certificate's bounds fail no more often than it says.

Real certificates have beta near 1e-9, where no failure would ever be seen. So we hand the run a
budget with beta = 0.2, play many seeded runs, and compare the bounds with the exact loads.
"""

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from jdpack import Billboard, Budget, Market, MwuAdaptive, certificate
from jdpack.agents import Agents
from jdpack.best_response import Sums
from jdpack.billboard import SHARE, Header, Release, Seed, Step
from jdpack.certificate import averaged_loads, certify
from jdpack.encoding import Batch, encode
from jdpack.engines import Allocation
from jdpack.engines.memory import MemoryEngine
from jdpack.noise import Gaussian
from jdpack.release import SeededRandomness
from jdpack.solve import run

BETA = 0.2
RUNS = 150
RESOURCES = 8
NEVER = 1e-9
NOISES = ("gaussian", "truncated-laplace")


class Witness(MemoryEngine):
    """An engine that remembers the exact sums of every round."""

    def __init__(self, agents: Agents) -> None:
        super().__init__(agents, threads=1)
        self.seen: dict[tuple[int, ...], Sums] = {}

    def sums(self, prices: tuple[int, ...]) -> Sums:
        return self.seen.setdefault(prices, super().sums(prices))

    def loads(self, board: Billboard) -> list[Fraction]:
        """The exact loads of the averaged allocation."""
        whole = board.weight * self.market.supply_code
        return [
            Fraction(sum(s.weight * self.seen[s.prices].demand[j] for s in board.rounds), whole)
            for j in range(len(self.market.resources))
        ]


def a_run(seed: int, noise: str) -> tuple[Witness, Billboard]:
    rng = np.random.default_rng(seed)
    n = 400
    market = Market(
        supply=[60.0] * RESOURCES, max_demand=1.0, max_value=1.0, agents=n, divisible=True
    )
    demands = rng.random((n, RESOURCES))
    batch = Batch(rng.random(n), pa.array(range(n)), [np.ascontiguousarray(d) for d in demands.T])
    engine = Witness(encode(market, [batch]))
    budget = Budget(epsilon=1.0, delta=0.9, rho=4.0, truncation=0.5, beta=BETA)
    coins = Seed(rng.bytes(16))
    policy = MwuAdaptive(0.5, noise)
    board = Billboard(Header(market, policy.to_dict(), budget, coins.commitment, private=False))
    run(engine, policy, board, SeededRandomness(seed), coins)
    return engine, board


@functools.cache
def runs(noise: str) -> list[tuple[Billboard, list[Fraction]]]:
    """Boards, each with the exact loads that its bounds are about."""
    played = (a_run(seed, noise) for seed in range(RUNS))
    return [(board, engine.loads(board)) for engine, board in played]


def failures(noise: str) -> int:
    """In how many runs any of the bounds, computed anew, is below the exact load."""
    return sum(
        any(load > Fraction(u) for load, u in zip(loads, averaged_loads(board), strict=True))
        for board, loads in runs(noise)
    )


def says(count: int) -> float:
    """The probability of so many failures or more if each run fails with probability beta."""
    return float(stats.binom.sf(count - 1, RUNS, BETA))


@pytest.mark.parametrize("noise", NOISES)
def test_bounds_fail_no_more_often_than_beta(noise):
    assert says(failures(noise)) > NEVER


@pytest.mark.parametrize("noise", NOISES)
def test_negative_control_a_third_of_the_radius_is_caught(noise, monkeypatch):
    real = certificate.noise_radius
    monkeypatch.setattr(certificate, "noise_radius", lambda *given: real(*given) / 3)
    assert says(failures(noise)) < NEVER


@pytest.mark.parametrize("noise", NOISES)
def test_the_posted_certificate_is_the_one_computed_anew(noise):
    for board, _ in runs(noise)[:20]:
        assert certify(board) == board.certificate
        assert Fraction(board.certificate.factor, SHARE) * Fraction(max(averaged_loads(board))) <= 1


@pytest.mark.parametrize("noise", NOISES)
def test_the_bounds_are_not_idle(noise):
    # Most of the distance from a bound to the load is noise that could have been.
    gaps = [
        float(Fraction(bound) - load)
        for board, loads in runs(noise)
        for load, bound in zip(loads, averaged_loads(board), strict=True)
    ]
    assert np.mean(gaps) < 6 * np.std(gaps)


# --- coins --------------------------------------------------------------------------------------


@functools.cache
def coin_runs(supply: float) -> list[tuple[Billboard, Allocation]]:
    """Runs of indivisible goods.

    One round at price 0: 50 agents ask for each resource, and there are 20 of it, so that without
    a margin the coins decide whether it fits. There is next to no noise.
    """
    n = 50 * RESOURCES
    market = Market(
        supply=[supply] * RESOURCES, max_demand=1.0, max_value=1.0, agents=n, bundle_size=1
    )
    demands = [(np.arange(n) % RESOURCES == j).astype(np.float64) for j in range(RESOURCES)]
    engine = MemoryEngine(encode(market, [Batch(np.ones(n), columns=demands)]), threads=1)
    budget = Budget(epsilon=1.0, delta=0.9, rho=1e9, truncation=0.0, beta=BETA)
    policy, free = MwuAdaptive(0.5), (0,) * RESOURCES
    step = Step("demand", free, Gaussian(1.0), weight=math.ceil(math.log(9) / 0.5 * SHARE))
    played = []
    for number in range(RUNS):
        coins = Seed(number.to_bytes(16, "little"))
        board = Billboard(Header(market, policy.to_dict(), budget, coins.commitment, private=False))
        board.post(Release(step, engine.sums(free).demand))
        board.post(certify(board))
        board.post(coins)
        allocation = engine.allocate(board)
        assert max(allocation.loads) <= market.supply_code * SHARE
        played.append((board, allocation))
    return played


def repairs() -> int:
    """In how many runs winners had to be dropped."""
    coin_runs.cache_clear()
    runs = coin_runs(20.0)
    assert all(0.1 < board.certificate.factor / SHARE <= 0.4 for board, _ in runs)
    return sum(allocation.dropped > 0 for _, allocation in runs)


def exceeded(bounds: Callable[[Billboard], Sequence[float]]) -> int:
    """In how many runs with room to spare what is given exceeds any of the bounds."""
    runs = coin_runs(45.0)
    return sum(
        any(
            Fraction(load, board.header.market.supply_code * SHARE) > Fraction(bound)
            for load, bound in zip(allocation.loads, bounds(board), strict=True)
        )
        for board, allocation in runs
    )


def test_what_is_given_exceeds_its_bound_no_more_often_than_beta():
    coin_runs.cache_clear()
    assert says(exceeded(lambda board: board.certificate.load_at_most)) > NEVER


def test_negative_control_the_bound_before_coins_is_exceeded_after_them():
    coin_runs.cache_clear()

    def before_coins(board: Billboard) -> list[float]:
        return [load * board.certificate.factor / SHARE for load in averaged_loads(board)]

    assert says(exceeded(before_coins)) < NEVER


def test_winners_are_dropped_no_more_often_than_beta():
    assert says(repairs()) > NEVER


def test_negative_control_coins_without_a_margin_are_caught(monkeypatch):
    def without_margin(market: Market, budget: Budget, bounds: tuple[float, ...]) -> int:
        return int(min(1.0, 1.0 / max(bounds)) * SHARE)

    monkeypatch.setattr(certificate, "_factor", without_margin)
    assert says(repairs()) < NEVER
