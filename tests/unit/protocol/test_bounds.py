"""Thinning leaves room for both neighbours: one event covers the overflow of either."""

import math

import pytest
from scipy.stats import binom

from jdpack.market.grid import SHARE
from jdpack.privacy.tail_bounds import entropy
from jdpack.protocol import bounds


def overflow(load: float, q: float, factor: int) -> float:
    """The probability that grants of size q and total load `load` keep more than 1."""
    grants = math.floor(load / q + 1e-9)
    return float(binom.sf(math.floor(1.0 / q + 1e-9), grants, factor / SHARE))


@pytest.mark.parametrize("grants", [11, 30, 300])
@pytest.mark.parametrize("tail", [3.0, 20.0])
def test_a_neighbour_with_one_more_grant_overflows_no_more_often(grants, tail):
    q = 1 / 10 if grants < 100 else 1 / 250
    mine, bound = grants * q, (grants + 1) * q  # `load_bounds` leaves one cap free
    factor = bounds._thinning(bound, q, tail, repaired=True)
    alone = bounds._thinning(bound, q, tail, repaired=False)
    # The worst neighbour adds a grant that is always kept. Whenever it overflows or these records
    # do, these records keep more than 1 - q: one event, of probability at most e^-tail.
    keeps = float(binom.sf(math.floor((1 - q) / q + 1e-9), grants, factor / SHARE))
    assert overflow(mine, q, factor) <= keeps <= math.exp(-tail)
    assert 0 < factor <= alone


def test_negative_control_a_bound_for_one_of_them_does_not_cover_both():
    """With the factor for these records alone, what is proved of that event is too little."""
    q, tail, mine = 1 / 4, 3.0, 2.0
    alone = bounds._thinning(mine, q, tail, repaired=False)
    both = bounds._thinning(mine + q, q, tail, repaired=True)
    proved = [mine / q * entropy((1.0 - q) / mine, f / SHARE) for f in (alone, both)]
    assert proved[0] < 0.6 * tail < tail <= proved[1]


def test_where_a_cap_is_the_whole_supply_nothing_can_be_kept():
    assert bounds._thinning(1.5, 1.0, 3.0, repaired=True) == 0
    assert bounds._thinning(1.0, 1.0, 3.0, repaired=True) == SHARE
