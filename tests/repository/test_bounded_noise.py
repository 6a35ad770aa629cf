"""The prototype of bounded noise: its privacy is that of known formulas."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import bounded_noise
from jdpack.privacy import gdp


def test_one_resource_needs_the_radius_of_truncated_laplace_noise():
    """ln(1 + (e^epsilon - 1) / (2 delta)) / epsilon caps, the least of any noise that is cut."""
    exact = math.log1p((math.e - 1.0) / 2e-8)
    assert bounded_noise.delta_of(bounded_noise.density(exact + 0.2, 1.0, exact), 1, 0.0) <= 1e-8
    assert bounded_noise.delta_of(bounded_noise.density(exact - 0.5, 1.0, exact), 1, 0.0) > 1e-8


def test_what_was_spent_before_counts():
    """Noise so wide that it hides everything leaves the delta of what came before."""
    wide = bounded_noise.density(2000.0, 2.0, 6.0)
    for part in (0.5, 1.0):
        rho = part * gdp.rho_of(1.0, 1e-8)
        found = bounded_noise.delta_of(wide, 1, math.sqrt(2.0 * rho))
        assert found == pytest.approx(gdp.delta_of(rho, 1.0), rel=0.1)


def test_thinning_costs_more_than_the_excess():
    """These odds keep the tail of a binomial below its part of beta; a little more does not."""
    tail = 20.0
    for missed in (5.0, 50.0):
        load = bounded_noise.SUPPLY + missed
        cost = bounded_noise.thinned(load, tail)
        f = 1.0 - cost / bounded_noise.SUPPLY
        keeps = binom.logsf(bounded_noise.SUPPLY - 1.0, round(load), f)
        assert missed < cost and keeps <= -tail  # an exact tail, not the bound that was used
        less = 1.0 - 0.8 * cost / bounded_noise.SUPPLY
        assert binom.logsf(bounded_noise.SUPPLY - 1.0, round(load), less) > -tail


A_NOISE = bounded_noise.Bounded(31.0, bounded_noise.density(31.0, 1.0, 18.0))


@pytest.mark.parametrize("spent", [0.2, 0.44])
def test_a_row_has_all_its_numbers(monkeypatch, spent):
    """With a radius that is known, so that nothing is searched."""
    monkeypatch.setattr(bounded_noise, "least_radius", lambda k, spent: A_NOISE)
    today, radius, missed, cost, whole, times = map(float, bounded_noise.row(1, spent))
    assert radius == 31.0 < whole and missed < cost and 10.0 < today < 100.0
    assert times == pytest.approx(whole / today, abs=0.03)


def test_a_whole_run_is_thinned_if_the_answer_is_too_high(monkeypatch):
    instance = bounded_noise.FAMILIES["single"](4_000, np.random.default_rng(7))
    best, last = instance.optimum().value, len(A_NOISE.density) - 1

    def ran(at: int) -> tuple[float, float]:
        """A run whose answer is always off by the same amount."""
        noise = bounded_noise.Bounded(31.0, np.eye(1, last + 1, at)[0])
        monkeypatch.setattr(bounded_noise, "least_radius", lambda k, spent: noise)
        return bounded_noise.bounded_run(instance, 1, 0.2, 1)

    (low, nothing), (high, part) = ran(0), ran(last)
    assert nothing == 0.0 and 0.8 * best < low < best
    assert part > 0.0 and high < low
