"""The prototype of bounded noise: its privacy is that of known formulas."""

import math
import sys
from pathlib import Path

import pytest

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
