"""What counts as a plan that a run does not keep."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jdpack import plan

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import families  # noqa: E402
import loss  # noqa: E402
import plan_check  # noqa: E402

CELL = loss.Cell("dense", 10_000, 1.0, True, "default")
RUN = loss.Run(0.06, 0.04, 0.04, True, 0.9, 88, 95, 1.0)


def test_forecasts_are_those_of_the_plan() -> None:
    worse = replace(RUN, loss=0.06)
    unclear, nothing = replace(RUN, margin=0.2), replace(CELL, epsilon=math.inf)
    cells = [(CELL, [RUN, worse]), (CELL, []), (CELL, [unclear]), (nothing, [RUN])]
    (check,) = plan_check.checks(cells, families.FAMILIES)
    market = families.dense(10_000, np.random.default_rng(loss.INSTANCE_SEED)).market()
    found = plan(market, epsilon=1.0, delta=loss.DELTA)
    assert check.at_least == found.share_at_least and check.expected == found.share_expected
    assert check.mean == pytest.approx(0.95) and check.worst == pytest.approx(0.94)


def test_what_was_missed_says_no() -> None:
    good = plan_check.Check(CELL, 0.95, 0.93, 0.96, 0.95)
    bad = replace(good, expected=0.93, worst=0.915)
    assert plan_check.row(good)[-1] == "yes" and plan_check.row(bad)[-1] == "NO"
    assert plan_check.row(replace(good, worst=0.925))[-1] == "yes"  # by less than a point
    assert plan_check.row(replace(good, at_least=None))[-1] == ""
    (all_of_them, divisible) = plan_check.summary([good, good])
    assert all_of_them.startswith("all: off by 1.00%") and "NO" not in all_of_them
    assert divisible.startswith("divisible: ") and all_of_them.count("yes") == 2
    first = next(plan_check.summary([good, bad, bad]))
    assert "off by 3.00% in the median of 3 plans: NO" in first and "in 2 of 3: NO" in first
