"""The experiment behind Table 1: its search, its fits, and a small version of everything."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import table1  # noqa: E402
from jdpack import MwuOnline  # noqa: E402
from jdpack.policies import registry  # noqa: E402

pytestmark = pytest.mark.long


@given(st.integers(-50, 150), st.integers(-50, 150), st.integers(0, 100))
def test_the_search_finds_the_least_level_from_any_guess(least, guess, most):
    asked = []

    def reaches(level: int) -> bool:
        asked.append(level)
        assert level <= most
        return level >= least

    found = table1.least_level(reaches, guess, most)
    assert found == (None if least > most else least)
    assert len(asked) < 25


def test_a_power_law_is_found_with_its_error():
    exact = table1.fit([(x, 3.0 * x**-1.5) for x in (1.0, 2.0, 5.0, 7.0, 11.0)])
    assert exact.slope == pytest.approx(-1.5)
    assert exact.constant == pytest.approx(3.0)
    assert exact.error < 1e-6
    rough = table1.fit([(1.0, 1.0), (2.0, 2.4), (4.0, 3.6), (8.0, 9.0), (16.0, 15.0)])
    # By hand: the slope of five points at 0..4 is (2 (y5 - y1) + y4 - y2) / 10, in log 2.
    logs = [math.log2(y) for y in (1.0, 2.4, 3.6, 9.0, 15.0)]
    slope = (2.0 * (logs[4] - logs[0]) + logs[3] - logs[1]) / 10.0
    middle = sum(logs) / 5.0
    rest = [y - middle - slope * (x - 2.0) for x, y in enumerate(logs)]
    stderr = math.sqrt(sum(r * r for r in rest) / 3.0 / 10.0)
    assert rough.slope == pytest.approx(slope)
    assert rough.error == pytest.approx(3.182446 * stderr, rel=1e-5)  # t of 3 degrees of freedom
    assert table1.fit([(1.0, 1.0), (2.0, 2.0)]) is None
    assert "3 points" in str(table1.fit([(1.0, 1.0), (2.0, 2.4), (4.0, 3.6)]))


def test_sweeps_find_the_law_that_losses_follow_and_repeat_no_run(tmp_path, monkeypatch):
    """Losses of 20 sqrt(m) / (b epsilon), with a tenth of the runs far above."""
    runs = []

    def loss(policy, case, supply, seed):
        runs.append(seed)
        return 0.9 if seed == 3 else 20.0 * math.sqrt(case.m) / (supply * case.epsilon)

    monkeypatch.setattr(table1, "loss", loss)
    for parameter, slope in [("m", 0.5), ("epsilon", -1.0)]:
        points = [1, 2, 3, 5, 8]
        found = table1.sweep("newton", parameter, points, tmp_path, 10)
        assert [point for point, _ in found] == points
        law = table1.fit(found)
        assert law.slope == pytest.approx(slope, abs=0.03)
        assert dict(found)[2] == pytest.approx(
            20.0 * math.sqrt(2 if parameter == "m" else 4) / (0.2 * (2 if parameter != "m" else 1)),
            rel=2 ** (1 / table1.GRID) - 1,
        )
        before = len(runs)
        assert table1.sweep("newton", parameter, points, tmp_path, 10) == found
        assert len(runs) == before

    # With two bad seeds in ten, nothing reaches alpha with probability 0.9.
    monkeypatch.setattr(table1, "loss", lambda *given: 0.9 if given[3] in (3, 7) else 0.0)
    assert table1.sweep("newton", "m", [2], tmp_path / "other", 10) == []


@pytest.mark.filterwarnings("ignore::jdpack.SupplyWarning")
def test_a_small_version_of_the_whole(tmp_path, monkeypatch, capsys):
    """All algorithms, three budgets, two seeds, few supplies: every law falls with epsilon."""
    bases = {
        table1.SMALL: table1.Case(m=1, alpha=0.2),  # newton reaches 0.3 where a cap exceeds supply
        table1.LARGE: table1.Case(m=1, n=450, epsilon=20.0, alpha=0.3),
    }
    sweeps = {
        bases[table1.SMALL]: {"epsilon": [1.0, 1.5, 2.0, 3.0, 4.0]},
        bases[table1.LARGE]: {"epsilon": [10.0, 15.0, 20.0, 30.0, 40.0]},
    }
    algorithms = [replace(a, base=bases[a.base]) for a in table1.ALGORITHMS]
    monkeypatch.setattr(table1, "ALGORITHMS", algorithms)
    monkeypatch.setattr(table1, "SWEEPS", sweeps)
    monkeypatch.setattr(table1, "CROWD", table1.ASKED)
    monkeypatch.setattr(table1, "GRID", 3)
    monkeypatch.setattr(table1, "MOST", 12 * 3)
    monkeypatch.setattr(table1, "TIME_SUPPLY", 50.0)
    monkeypatch.setattr(table1, "ROUNDS", 200)
    monkeypatch.setattr(table1, "TIMES", {})
    monkeypatch.setattr(table1, "TIMES_OF_OTHERS", [250, 500, 1_000])
    command = ["table1.py", "--quick", "--sweeps", "epsilon", "--workers", "1", "--results"]
    monkeypatch.setattr(sys, "argv", [*command, str(tmp_path)])
    table1.main()
    out = capsys.readouterr().out
    rows = {line.split("|")[1].strip(): line.split("|") for line in out.splitlines()[2:9]}
    assert set(rows) == {a.name for a in table1.ALGORITHMS}
    for name, cells in rows.items():
        # -1 is proved; two seeds and supplies of a few units can only show that it falls.
        assert -2.0 < float(cells[5].split("±")[0]) < -0.05, name
    for name, asked in [("mwu-fixed", 3.0), ("dual-gd", 3.0), ("mwu-online", 1.0), ("newton", 1.0)]:
        assert float(rows[name][9].split("±")[0]) == pytest.approx(asked, abs=0.25), name
    for picture in ("table1-supply.svg", "table1-time.svg"):
        assert "<svg" in (tmp_path / picture).read_text()
    kept = json.loads((tmp_path / "newton epsilon.json").read_text())
    assert all(0.0 <= loss <= 0.5 for loss in kept.values())


def test_the_control_runs_and_is_known_only_while_it_does():
    before = dict(registry.KINDS)
    case = table1.Case(m=1, n=400, epsilon=8.0, alpha=0.3)
    blocks, alone = (
        table1.loss(policy, case, 90.0, 1) for policy in (MwuOnline(), table1.Independent())
    )
    assert alone > blocks + 0.02  # 400 batches, each with its own noise
    assert before == registry.KINDS
