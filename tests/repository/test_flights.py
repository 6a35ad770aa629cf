"""Markets made from real departures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import flights  # noqa: E402

N = 20_000


def test_departures_are_the_real_ones() -> None:
    found = flights.departures()
    assert {len(column) for column in found.values()} == {flights.ALL}
    assert np.bincount(found["airport"]).tolist() == [120_835, 111_279, 104_662]  # EWR, JFK, LGA
    assert np.bincount(found["destination"]).max() == 17_283  # O'Hare
    assert len(np.bincount(found["week"])) == 53  # the last has one day
    assert np.bincount(found["week"])[-1] == 776  # on 31 December
    assert 0.0 < found["value"].min() <= found["value"].max() <= flights.MOST_VALUE


@pytest.mark.parametrize(
    ("name", "resources", "options"),
    [("destinations", 105, 1), ("routes", 161, 1), ("weeks", 159, 1), ("hours", 56, 3)],
)
def test_markets_keep_to_their_public_numbers(name: str, resources: int, options: int) -> None:
    """There are 56 of 57 hours at three airports: LaGuardia has no departures after 23 h."""
    instance = flights.MARKETS[name](N, np.random.default_rng(1))
    assert instance.demands.shape[1] == len(instance.supply) == resources
    assert instance.count == N and instance.options == options
    assert np.diff(instance.demands.indptr).max() == instance.bundle_size
    assert np.all(instance.demands.data == 1.0) and instance.supply.min() == flights.LEAST
    other = flights.MARKETS[name](N, np.random.default_rng(2))
    assert np.array_equal(instance.supply, other.supply)  # known before the draw
    best = instance.optimum().value
    assert 0.2 * instance.values.sum() < best < 0.95 * instance.values.sum()


def test_supplies_are_in_proportion_and_cover_decades() -> None:
    every = flights.announced(flights.departures()["destination"], flights.ALL)
    assert every.min() == flights.LEAST and every.max() == 10_000.0
    assert 0.4 < every.sum() / flights.ALL < 0.8
    half = flights.announced(flights.departures()["destination"], flights.ALL // 2)
    large = half > flights.LEAST
    assert np.array_equal(half[large], every[large] / 2.0)


def test_a_departure_may_move_by_an_hour_at_its_own_airport() -> None:
    instance = flights.hours(flights.ALL, np.random.default_rng(1))
    found = flights.departures()
    first = np.flatnonzero(np.diff(instance.agents, prepend=-1))
    column, agents = instance.demands.indices, instance.agents
    assert np.array_equal(column[first], flights.slots(found, "hour"))
    assert np.array_equal(column % flights.AIRPORTS, found["airport"][agents])
    moved = column // flights.AIRPORTS - found["hour"][agents]
    left = instance.values / found["value"][agents]
    for move, factor in flights.OPTIONS.values():
        assert np.allclose(left[moved == move], factor)
    assert set(moved.tolist()) == {-1, 0, 1}


def test_more_departures_than_there_are() -> None:
    with pytest.raises(SystemExit, match=r"there are 336,776 departures, not 1,000,000"):
        flights.weeks(1_000_000, np.random.default_rng(1))
