"""Thinning leaves enough supply for both neighbours: one event covers the overflow of either."""

import math

import pytest
from scipy.stats import binom

from jdpack.market.grid import SHARE
from jdpack.privacy.tail_bounds import Coins, Sum


def factor(grants: int, q: float, room: float, tail: float) -> float:
    """The factor for grants of size q each, if coins decide nothing else and there is no noise."""
    fits = Sum(0.0).fits(Coins(0.0, 0.0, q, 0.0, q / 4.0), tail)
    best = max(fit.factor(room / (grants * q + fit.radius)) for fit in fits)
    return math.floor(SHARE * best) / SHARE


@pytest.mark.parametrize("grants", [11, 30, 300, 2000])
@pytest.mark.parametrize("tail", [3.0, 20.0])
@pytest.mark.parametrize("requests", [1, 3])
def test_a_neighbour_with_one_more_agent_overflows_no_more_often(grants, tail, requests):
    q = 1 / 10 if grants < 100 else 1 / 250
    spare = requests * q
    kept, alone = factor(grants, q, 1.0 - spare, tail), factor(grants, q, 1.0, tail)
    # The worst neighbour adds grants that are always kept. Whenever it overflows or these records
    # do, these records keep more than 1 - spare: one event, of probability at most e^-tail.
    overflow = float(binom.sf(math.floor(1.0 / q + 1e-9), grants, kept))
    keeps = float(binom.sf(math.floor((1 - spare) / q + 1e-9), grants, kept))
    assert overflow <= keeps <= math.exp(-tail)
    assert kept <= alone and (kept > 0.0 or tail > 10.0)


def test_a_factor_is_not_much_smaller_than_it_must_be():
    q, tail, grants = 1 / 250, 20.0, 300
    kept = factor(grants, q, 1.0, tail)
    assert float(binom.sf(250, grants, kept + 0.1)) > math.exp(-tail)


def test_negative_control_a_load_that_fits_on_average_overflows():
    q, tail, grants = 1 / 250, 20.0, 300
    assert factor(grants, q, 1.0, tail) < 0.95 * 250 / grants
    assert float(binom.sf(250, grants, 0.95 * 250 / grants)) > math.exp(-tail)


def test_where_a_cap_is_the_whole_supply_nothing_can_be_kept():
    assert factor(2, 1.0, 1e-15, 3.0) == 0.0
    assert factor(1, 1.0, 1.0, 3.0) == 1.0
