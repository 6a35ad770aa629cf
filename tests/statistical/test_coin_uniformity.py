"""Coins are uniform, whatever the pattern of seeds and ids; a biased coin is caught."""

import numpy as np
import pytest
from scipy import stats

from jdpack.common.coins import COIN_BITS
from jdpack.records.bulk_coins import coins_of_numbers

AGENTS = 400_000
TOO_UNLIKELY = 1e-9
SEED = bytes.fromhex("000102030405060708090a0b0c0d0e0f")


def p_value(coins: np.ndarray, shift: int) -> float:
    """Pearson's chi-square test that 8 bits of the coins are uniform."""
    cells = np.bincount((coins >> np.uint64(shift)).astype(np.int64) & 255, minlength=256)
    return float(stats.chisquare(cells).pvalue)


def together(left: np.ndarray, right: np.ndarray) -> float:
    """The same for the 4 high bits of two coins, whose pairs must be uniform."""
    high = np.uint64(COIN_BITS - 4)
    cells = np.bincount(((left >> high) * np.uint64(16) + (right >> high)).astype(np.int64))
    return float(stats.chisquare(np.pad(cells, (0, 256 - len(cells)))).pvalue)


@pytest.fixture(scope="module")
def coins() -> np.ndarray:
    return coins_of_numbers(SEED, np.arange(AGENTS))


@pytest.mark.parametrize("shift", [0, 21, COIN_BITS - 8], ids=["low", "middle", "high"])
def test_coins_are_uniform(coins, shift):
    assert p_value(coins, shift) > TOO_UNLIKELY


def test_coins_of_neighbours_are_independent(coins):
    assert together(coins[:-1], coins[1:]) > TOO_UNLIKELY


def test_coins_of_two_seeds_are_independent(coins):
    other = coins_of_numbers(SEED[:-1] + b"\x10", np.arange(AGENTS))
    assert together(coins, other) > TOO_UNLIKELY


def test_a_bent_coin_is_caught(coins):
    """The negative control: some agents flip their coin again and keep the smaller one.

    A fraction e of them adds n e^2 / 3 to a statistic of mean 255 and deviation 23; p < 1e-9 needs
    about 160, so with n = 400,000 the least fraction caught is 3.5%, and 5% adds 333.
    """
    rng = np.random.default_rng(1)
    again = rng.integers(0, 2**COIN_BITS, AGENTS, dtype=np.uint64)
    bent = np.where(rng.random(AGENTS) < 0.05, np.minimum(coins, again), coins)
    assert p_value(coins, COIN_BITS - 8) > TOO_UNLIKELY > p_value(bent, COIN_BITS - 8)


def test_dependent_coins_are_caught(coins):
    """The negative control of independence: 2% of copies add 15 n e^2 = 2,400 to the statistic."""
    rng = np.random.default_rng(2)
    copied = np.where(rng.random(AGENTS) < 0.02, coins, np.roll(coins, 1))
    assert together(coins, copied) < TOO_UNLIKELY
