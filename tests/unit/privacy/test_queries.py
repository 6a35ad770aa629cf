"""The sensitivities, by hand; `tests/property/test_sensitivity.py` searches for more."""

import itertools
from typing import get_args

import numpy as np
import pytest

from jdpack import Market, MaxTotal
from jdpack.market.grid import CHANCE_MAX
from jdpack.market.grid import DEMAND_CODE_MAX as C
from jdpack.privacy import queries
from jdpack.privacy.queries import Change, Query


def a_market(**changes) -> Market:
    return Market(
        **{"supply": [10.0, 30.0], "max_demand": 1.0, "max_value": 5.0, "agents": 100} | changes
    )


def just_above(found: float, exact: float) -> bool:
    return exact <= found <= exact * (1.0 + 1e-7)


def test_demand_moves_as_many_numbers_as_two_bundles_touch():
    caps = {"supply": [1.0] * 5, "max_demand": [0.1, 0.5, 0.2, 1.0, 0.4], "bundle_size": 2}
    both, one = a_market(**caps), a_market(**caps, neighbours="add-remove")
    assert queries.change(both, "demand").count == 4
    assert queries.change(one, "demand").count == 2
    scales = (3.0, 1.0, 2.0, 5.0, 4.0)
    worst = sum((C / s) ** 2 for s in (1.0, 2.0, 3.0, 4.0))
    assert just_above(queries.change(both, "demand").worst(scales), worst)
    assert just_above(queries.change(one, "demand").worst(scales), C**2 * (1 + 1 / 4))
    assert just_above(queries.change(both, "demand").squares, 4 * C**2)
    for market in (both, one):
        assert queries.change(market, "scale") == Change(C)
        for query in ("value", "welfare"):
            assert queries.change(market, query) == Change(market.value_cap_code)
        assert queries.change(market, "granted") == queries.change(market, "demand")
        widths = {"demand": 5, "granted": 5, "chance": 6, "curvature": 25, "gauge": 7}
        for query in get_args(Query):
            assert queries.width(market, query) == widths.get(query, 1)


@pytest.mark.parametrize(("query", "squares"), [("curvature", 1), ("gauge", 2)])
def test_the_move_of_the_curvature_and_the_gauge(query, squares):
    """u C and sqrt(2) u C; sqrt(2) times that with replacement, however many options there are."""
    for more, times in [
        ({}, 2),
        ({"options": 3}, 2),
        ({"neighbours": "add-remove"}, 1),
        ({"neighbours": "add-remove", "options": 3, "bundle_size": 1}, 1),
    ]:
        length = queries.change(a_market(supply=[9.0] * 3, **more), query).most
        assert (length - 1) ** 2 < times * squares * (1024 * C) ** 2 <= length**2


def test_the_move_of_chance():
    for more, count in [
        ({}, 4),
        ({"neighbours": "add-remove"}, 2),
        ({"options": 2}, 9),  # no more than there are resources
        ({"options": 2, "neighbours": "add-remove"}, 5),
    ]:
        change = queries.change(a_market(supply=[9.0] * 9, bundle_size=2, **more), "chance")
        assert just_above(change.squares, (count + 1) * CHANCE_MAX**2)
        scales = (2.0,) * 9 + (8.0,)
        assert just_above(change.worst(scales), (count / 4 + 1 / 64) * CHANCE_MAX**2)


def granted_variance(codes, odds):
    """The variance of the code granted, in units, before rounding."""
    mean = float(np.dot(codes, odds))
    return (float(np.dot(np.square(codes), odds)) - mean * mean) / 2**14


def test_the_move_of_luck():
    for more, extent, most in [
        ({}, (-10_000, 0), 10_000),
        ({}, (-10_000, 20_000), 30_000),
        ({"neighbours": "add-remove"}, (-10_000, 20_000), 20_000),
        ({"neighbours": "add-remove"}, (-10_000, 0), 10_000),
        ({}, (0, 0), 1024),  # noise must have a large scale
    ]:
        assert queries.luck_change(a_market(**more), *extent) == Change(most)


def test_a_bundle_of_more_than_half_the_resources_can_move_them_all():
    for size in (2, 3, None):
        assert queries.change(a_market(supply=[9.0] * 3, bundle_size=size), "demand").count == 3
    assert a_market(bundle_size=7).bundle_size == 2


# --- totals -----------------------------------------------------------------------------------

TOTALS = [
    ({"max_total": 2.0}, (1.0, 1.0, 1.0, 1.0)),
    ({"max_total": 1.5, "bundle_size": 2}, (1.0, 3.0, 0.5, 2.0)),
    ({"max_total": [MaxTotal(1.5, ("resource 1", "resource 3"))]}, (1.0, 2.0, 1.0, 9.0)),
    ({"max_total": [MaxTotal(1.0, ("resource 1", "resource 2")),
                    MaxTotal(1.2, ("resource 3", "resource 4"))], "bundle_size": 3},
     (1.0, 1.5, 2.0, 0.7)),
    ({"max_total": 4.5, "max_demand": [1.0, 2.0, 3.0, 0.5]}, (1.0, 2.0, 1.0, 4.0)),
]  # fmt: skip


def corners(market: Market) -> set[tuple[int, ...]]:
    """The options at the corners of what totals allow.

    The squares of codes are convex, so no option moves demand further. A corner has full codes,
    except for at most one per total, which has what is left.
    """
    m, found = len(market.resources), set()
    for touched in itertools.combinations(range(m), market.bundle_size):
        for order in itertools.permutations(touched):
            for full in itertools.product((0, 1), repeat=len(order)):
                codes = [0] * m
                for j, on in zip(order, full, strict=True):
                    codes[j] = C * on
                for total in market.person_totals:
                    left = total.limit
                    for j in order:
                        if j in total.resources and codes[j]:
                            size = total.sizes[total.resources.index(j)]
                            codes[j] = min(codes[j], left // size + 1) if left >= 0 else 0
                            left -= max(codes[j] - 1, 0) * size
                assert all(total.fits(codes) for total in market.person_totals)
                found.add(tuple(codes))
    return found


def longest(market: Market, scales: tuple[float, ...]) -> float:
    """The largest sum of (move / scale)^2 over all pairs of corners, or corners and nothing."""
    first = corners(market)
    second = first if market.neighbours.value == "replace-one" else {(0,) * len(scales)}
    options = np.array(sorted(first)), np.array(sorted(second))
    moves = (options[0][:, None] - options[1][None]) / np.array(scales)
    return float((moves * moves).sum(axis=2).max())


@pytest.mark.parametrize(("more", "scales"), TOTALS)
@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
def test_no_option_within_its_totals_moves_demand_further(more, scales, neighbours):
    given = {"supply": [40.0] * 4, "max_demand": 1.0, "neighbours": neighbours} | more
    market = a_market(**given)
    most, claimed = longest(market, scales), queries.change(market, "demand").worst(scales)
    assert most <= claimed
    if "max_demand" not in more and "bundle_size" not in more:  # attained, up to rounding of codes
        assert 0.999 * claimed < most, "a little less would be wrong"
    free = queries.change(
        a_market(**{k: v for k, v in given.items() if k != "max_total"}), "demand"
    )
    assert claimed <= free.worst(scales)


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize("total", [0.3, 1.0, 1.5, 1.999, 2.0, 3.7])
@pytest.mark.parametrize("scales", [(1.0,) * 5, (1.0, 3.0, 0.5, 2.0, 1.1)])
def test_the_bound_of_a_total_of_equal_caps_is_attained(neighbours, total, scales):
    market = a_market(supply=[40.0] * 5, max_demand=1.0, max_total=total, neighbours=neighbours)
    change = queries.change(market, "demand")
    assert 0.999 * change.worst(scales) < longest(market, scales) <= change.worst(scales)


def test_random_options_within_their_totals_stay_below_the_bound():
    rng = np.random.default_rng(3)
    market = a_market(supply=[40.0] * 6, max_total=2.5, bundle_size=4, neighbours="add-remove")
    change, (total,) = queries.change(market, "demand"), market.person_totals
    reached = 0.0
    for _ in range(2000):
        scales = tuple((10.0 ** rng.uniform(-1, 1, 6)).tolist())
        parts = rng.choice([0.0, 1.0, rng.random()], 6)
        parts[rng.permutation(6)[4:]] = 0.0
        codes = [int(C * part) for part in parts]
        total.cut(codes)
        length = sum((c / s) ** 2 for c, s in zip(codes, scales, strict=True))
        reached = max(reached, length / change.worst(scales))
        assert length <= change.worst(scales)
    assert reached > 0.9
