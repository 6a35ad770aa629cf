"""The experiment on people with many requests: its families, and its floor."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import people  # noqa: E402


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("mean", [2, 10])
def test_everybody_is_within_the_bounds_of_a_person(mean, heavy):
    one = people.family(mean, 4000, heavy=heavy)
    asked = np.array([np.bincount(one.people, column) for column in one.demands.T])
    assert asked.max() <= one.in_all * (1 + 1e-9)
    assert one.counts.max() <= max(people.MEANS) and one.counts.min() >= 1
    if heavy:
        assert one.counts.max() > 3 * np.median(one.counts)
    market = one.market(people=True, divisible=True)
    assert market.requests == one.counts.max() and market.agents == len(one.counts)


def test_people_lose_more_than_requests_and_about_as_much_as_the_floor():
    rows = list(people.rows(20_000, 1, [2]))
    assert len(rows) == 4
    for row in rows:
        loss, floor, _, alone, lower, _ = map(float, row[4:])
        assert lower < floor and alone < loss
        assert 0.5 * floor < loss < 2.0 * floor + 0.5
