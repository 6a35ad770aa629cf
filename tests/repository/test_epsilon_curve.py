"""What counts as a loss that rises with epsilon, and as a default that disappoints."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import epsilon_curve  # noqa: E402
import loss  # noqa: E402

CELL = loss.Cell("dense", 10_000, 1.0, True, "default")
RUN = loss.Run(0.1, 0.08, 0.1, True, 0.7, 88, 95, 1.0)


def cells(policy: str = "default", **losses: list[float]) -> list:
    """Cells by epsilon (e_0_3 is 0.3), with the losses of their seeds."""
    return [
        (
            replace(CELL, epsilon=float(name[2:].replace("_", ".")), policy=policy),
            [replace(RUN, loss=x) for x in found],
        )
        for name, found in losses.items()
    ]


def test_there_are_twelve_epsilons() -> None:
    points = epsilon_curve.EPSILONS
    assert len(points) == 12 and points[0] == 0.2 and points[-1] == 5.0
    assert np.all(np.diff(np.log(points)) > 0.2)


def test_a_curve_that_falls() -> None:
    worst, allowed = epsilon_curve.rise([[0.5, 0.52], [0.3, 0.31], [0.1, 0.12]])
    assert worst < 0.0 < allowed


@pytest.mark.parametrize("place", range(4))
def test_a_bump_is_found_wherever_it_is(place: int) -> None:
    curve = [[0.5, 0.51], [0.3, 0.31], [0.2, 0.21], [0.1, 0.11], [0.05, 0.06]]
    curve[place + 1] = [x + 0.1 for x in curve[place]]
    worst, allowed = epsilon_curve.rise(curve)
    assert worst >= 0.1 - 1e-12 > allowed
    # A slow rise counts too, although no step of it does.
    slow = [[0.1 + 0.0015 * i] * 2 for i in range(12)]
    worst, allowed = epsilon_curve.rise(slow)
    assert worst == pytest.approx(0.0165) and allowed == epsilon_curve.SLACK


def test_noise_is_no_rise() -> None:
    """Flat losses with noise: two standard errors of 66 pairs are rarely passed by much."""
    rng = np.random.default_rng(5)
    over = 0
    for _ in range(200):
        worst, allowed = epsilon_curve.rise(rng.normal(0.3, 0.001, (12, 6)).tolist())
        over += worst > allowed
    assert over == 0  # SLACK is five standard errors here
    falling = rng.normal(np.geomspace(0.8, 0.05, 12)[:, None], 0.02, (12, 6))
    worst, allowed = epsilon_curve.rise(falling.tolist())
    assert worst <= allowed


def test_the_tables_say_no_where_they_must() -> None:
    good = cells(e_0_2=[0.5, 0.5], e_1_2=[0.3, 0.3], e_5=[0.1, 0.1])
    (row,) = epsilon_curve.curves(reversed(good))
    assert row[:3] == ["dense", "10,000", "divisible"] and row[-1] == "yes"
    assert [text for text in row[3:15] if text] == ["50.0", "30.0", "10.0"]
    (row,) = epsilon_curve.curves(cells(e_0_2=[0.3, 0.3], e_5=[0.31, 0.31]))
    assert row[-3:] == ["1.00%", "0.20%", "NO"]
    for behind, verdict in [(0.009, "yes"), (0.011, "NO"), (-0.2, "yes")]:
        found = [
            *cells(e_1=[0.3 + behind, 0.3 + behind]),
            *cells("mwu-adaptive", e_1=[0.2, 0.4]),
            *cells("dual-gd", e_1=[0.5, 0.5]),
            *cells("mwu-fixed", e_1=[]),  # refused
        ]
        (row,) = epsilon_curve.contests(found)
        assert row[5:7] == ["30.00%", "mwu-adaptive"] and row[-1] == verdict
