"""Noise from the operating system has the law that is charged for.

Nothing here is seeded: the tests fail by chance with probability below 1e-9 each. The negative
controls run the same test against a wrong law, which it must reject.
"""

import functools
import math

import numpy as np
import pytest
from scipy import stats

from jdpack.door import SeededRandomness, SystemRandomness
from jdpack.privacy.noise import Gaussian, Noise, TruncatedLaplace, deviation

DRAWS = 100_000
NEVER = 1e-9

LAWS: list[Noise] = [
    Gaussian((0.7,)),
    Gaussian((40.5,)),
    Gaussian((1e5,)),
    TruncatedLaplace(3.0, 8),
    TruncatedLaplace(50.0, 1000),
]
every_law = pytest.mark.parametrize("noise", LAWS, ids=str)


@functools.cache
def drawn(noise: Noise) -> np.ndarray:
    return np.array(SystemRandomness().draw(noise, DRAWS, 0))


def law(noise: Noise, scale: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The values that noise can take, and their probabilities, from the definition."""
    s = deviation(noise)[0] if scale is None else scale
    reach = noise.bound if isinstance(noise, TruncatedLaplace) else math.ceil(12 * s) + 2
    z = np.arange(-reach, reach + 1)
    exponent = -(z**2) / (2 * s * s) if isinstance(noise, Gaussian) else -np.abs(z) / s
    mass = np.exp(exponent)
    return z, mass / mass.sum()


def p_value(draws: np.ndarray, values: np.ndarray, mass: np.ndarray) -> float:
    """A chi-square test in at most 100 cells of about equal probability."""
    at = np.searchsorted(values, np.clip(draws, values[0], values[-1]))
    cell = np.minimum((np.cumsum(mass) - mass / 2) * 100, 99).astype(int)
    _, cell = np.unique(cell, return_inverse=True)
    expected = np.bincount(cell, weights=mass) * len(draws)
    seen = np.bincount(cell[at], minlength=len(expected))
    assert expected.min() >= 5  # where the chi-square law is a good one
    return float(stats.chisquare(seen, expected, sum_check=False).pvalue)


@every_law
def test_draws_follow_the_law(noise):
    assert p_value(drawn(noise), *law(noise)) > NEVER
    if isinstance(noise, TruncatedLaplace):
        assert abs(drawn(noise)).max() <= noise.bound


@every_law
@pytest.mark.parametrize("off", [1.3, 1 / 1.3])
def test_negative_control_a_scale_off_by_30_percent_is_rejected(noise, off):
    assert p_value(drawn(noise), *law(noise, deviation(noise)[0] * off)) < NEVER


def test_negative_control_the_other_kind_of_noise_is_rejected():
    gaussian, laplace = Gaussian((50.0 * math.sqrt(2),)), TruncatedLaplace(50.0, 1000)
    assert p_value(drawn(laplace), *law(gaussian)) < NEVER  # of the same variance


@every_law
def test_neither_sign_is_preferred(noise):
    # Samplers have had a bias in the sign or at zero, so this has its own test.
    draws = drawn(noise)
    above, below = int((draws > 0).sum()), int((draws < 0).sum())
    assert stats.binomtest(above, above + below).pvalue > NEVER
    values, mass = law(noise)
    at_zero = float(mass[len(values) // 2])
    assert stats.binomtest(int((draws == 0).sum()), DRAWS, at_zero).pvalue > NEVER


@pytest.mark.parametrize("noise", [n for n in LAWS if isinstance(n, TruncatedLaplace)], ids=str)
def test_the_lemma_on_mean_and_variance_holds_of_draws(noise):
    """Huang & Zhu 2019: mean mu, variance at most 2 sigma^2. Within 7 standard errors."""
    draws = drawn(noise).astype(float)
    assert abs(draws.mean()) < 7 * draws.std() / math.sqrt(DRAWS)
    error = np.var(draws**2) ** 0.5 / math.sqrt(DRAWS)
    assert draws.var() <= 2 * deviation(noise)[0] ** 2 + 7 * error
    values, mass = law(noise)
    assert draws.var() == pytest.approx(float(mass @ values**2), abs=7 * error)
    # Twice the scale would show.
    assert draws.var() < 2 * (1.3 * deviation(noise)[0]) ** 2 - 7 * error


# --- independence -----------------------------------------------------------------------------

ROUNDS, COORDINATES = 3000, 6


def largest_correlation(table: np.ndarray) -> float:
    """Correlations in standard errors: between coordinates, and between successive rounds.

    `table` is [round, coordinate]. If all are independent, P(above 7) < 1e-9.
    """
    n, width = table.shape
    both = np.corrcoef(np.hstack([table[1:], table[:-1]]).T)
    np.fill_diagonal(both, 0.0)
    # Within the same round, and across rounds. This leaves out each column of the earlier rounds
    # against the other columns there, which would be the same pairs again.
    return float(np.abs(both[:width, :]).max() * math.sqrt(n))


SOURCES = {"system": SystemRandomness(), "seeded": SeededRandomness(11)}


@pytest.mark.parametrize("noise", [Gaussian((200.0,)), TruncatedLaplace(200.0, 1500)], ids=str)
@pytest.mark.parametrize("source", SOURCES)
def test_coordinates_and_rounds_are_independent(source, noise):
    table = np.array([SOURCES[source].draw(noise, COORDINATES, t) for t in range(ROUNDS)])
    assert largest_correlation(table) < 7
    assert largest_correlation(table**2) < 12  # the squares have heavier tails

    # Negative controls: noise used twice, for the next round or for two coordinates.
    again = np.repeat(table[: ROUNDS // 2], 2, axis=0)
    assert largest_correlation(again) > 7
    shared = table.copy()
    shared[:, 1] = table[:, 0] + table[:, 1] // 2
    assert largest_correlation(shared) > 7
    signs = table.copy()
    signs[:, 3] = np.abs(table[:, 4]) * np.where(table[:, 3] < 0, -1, 1)
    assert largest_correlation(signs**2) > 12  # the same size with its own sign
    late = table.copy()
    late[1:, 2] += table[:-1, 0] // 4
    assert largest_correlation(late) > 7


def test_negative_control_a_source_that_forgets_the_round_is_caught():
    class Forgetful(SeededRandomness):
        def draw(self, noise, count, index):
            return super().draw(noise, count, index // 2)

    noise = Gaussian((200.0,))
    table = np.array([Forgetful(3).draw(noise, COORDINATES, t) for t in range(ROUNDS)])
    assert largest_correlation(table) > 7


@pytest.mark.parametrize("noise", [Gaussian((40.5,)), TruncatedLaplace(50.0, 1000)], ids=str)
def test_seeded_noise_follows_the_law_closely_enough_for_experiments(noise):
    draws = np.array(SeededRandomness(7).draw(noise, DRAWS, 0))
    assert p_value(draws, *law(noise)) > NEVER
    assert p_value(draws, *law(noise, deviation(noise)[0] * 1.3)) < NEVER
