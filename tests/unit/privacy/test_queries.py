"""The sensitivities, by hand; `tests/property/test_sensitivity.py` searches for more."""

from typing import get_args

import pytest

from jdpack import Market
from jdpack.market.grid import DEMAND_CODE_MAX
from jdpack.privacy import queries
from jdpack.privacy.queries import Query


def a_market(**changes) -> Market:
    return Market(
        **{"supply": [10.0, 30.0], "max_demand": 1.0, "max_value": 5.0, "agents": 100} | changes
    )


def test_shifts_are_the_largest_caps_that_a_bundle_can_touch():
    caps = {"supply": [1.0, 1.0, 1.0, 1.0, 1.0], "max_demand": [0.1, 0.5, 0.2, 1.0, 0.4]}
    both = a_market(**caps, bundle_size=2)
    one = a_market(**caps, bundle_size=2, neighbours="add-remove")
    C = both.cap_codes
    assert C[3] == DEMAND_CODE_MAX
    assert [c / DEMAND_CODE_MAX for c in C] == pytest.approx([0.1, 0.5, 0.2, 1.0, 0.4], abs=2e-5)
    assert queries.shifts(both, "demand") == (C[3], C[1], C[4], C[2])
    assert queries.shifts(one, "demand") == (C[3], C[1])
    for market in (both, one):
        assert queries.shifts(market, "scale") == (C[3],)
        assert queries.shifts(market, "granted") == queries.shifts(market, "demand")
        for query in ("value", "welfare"):
            assert queries.shifts(market, query) == (market.value_cap_code,)
        widths = {"demand": 5, "granted": 5, "curvature": 25, "gauge": 7}
        for query in get_args(Query):
            assert queries.width(market, query) == widths.get(query, 1)


def test_shifts_of_the_curvature():
    """u sqrt(2 sum C^2) with one option, 2 u sqrt(sum C^2) with several; rounded up."""
    caps = {"supply": [1.0, 1.0, 1.0, 1.0, 1.0], "max_demand": [0.1, 0.5, 0.2, 1.0, 0.4]}
    C = a_market(**caps).cap_codes
    two, four = C[3] ** 2 + C[1] ** 2, C[3] ** 2 + C[1] ** 2 + C[4] ** 2 + C[2] ** 2
    for more, squares in [
        ({}, 2 * two),
        ({"neighbours": "add-remove"}, two),
        ({"options": 2}, 4 * four),
        ({"options": 2, "neighbours": "add-remove"}, four),
    ]:
        (length,) = queries.shifts(a_market(**caps, bundle_size=2, **more), "curvature")
        assert (length - 1) ** 2 < 1024**2 * squares <= length**2


def test_shifts_of_the_gauge():
    """2 u C with replacement, and sqrt(2) u C without, however many options and resources."""
    for more, squares in [
        ({}, 4),
        ({"options": 3}, 4),
        ({"neighbours": "add-remove"}, 2),
        ({"neighbours": "add-remove", "options": 3, "bundle_size": 1}, 2),
    ]:
        market = a_market(supply=[9.0] * 3, **more)
        (length,) = queries.shifts(market, "gauge")
        assert (length - 1) ** 2 < squares * (1024 * max(market.cap_codes)) ** 2 <= length**2


def test_shifts_of_luck():
    for more, thinned, shift in [
        ({}, False, 101),
        ({}, True, 200),
        ({"options": 2}, False, 200),
        ({"options": 2}, True, 200),
        ({"neighbours": "add-remove"}, False, 100),
        ({"neighbours": "add-remove"}, True, 100),
        ({"neighbours": "add-remove", "options": 2}, False, 100),
    ]:
        assert queries.luck_shifts(a_market(**more), 100, thinned=thinned) == (shift,)


def test_a_bundle_of_more_than_half_the_resources_can_move_them_all():
    for size in (2, 3, None):
        assert len(queries.shifts(a_market(supply=[9.0] * 3, bundle_size=size), "demand")) == 3
    assert a_market(bundle_size=7).bundle_size == 2
