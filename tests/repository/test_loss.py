"""The experiments' families match their descriptions, and the loss table says NO where it must."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from jdpack import Budget

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import families  # noqa: E402
import loss  # noqa: E402

CELL = loss.Cell("dense", 10_000, 1.0, True, "default")
GOOD = loss.Run(
    margin=0.1, loss=0.12, fits=True, certified=0.7, rounds=88, releases=95, seconds=1.0
)


# --- families -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_family_keeps_to_its_public_numbers(name: str) -> None:
    instance = families.FAMILIES[name](600, np.random.default_rng(1))
    demands = scipy.sparse.csr_matrix(instance.demands)
    market = instance.market()
    assert [r.supply for r in market.resources] == instance.supply.tolist()
    assert 0.0 <= instance.values.min() <= instance.values.max() <= market.max_value
    assert 0.0 < demands.data.min() <= demands.data.max() <= 1.0
    assert np.diff(demands.indptr).max() <= market.bundle_size
    assert instance.count <= market.agents == 600
    if instance.agents is not None:
        sizes = np.bincount(instance.agents)
        assert 1 <= sizes.min() <= sizes.max() <= market.options
        assert np.all(np.diff(instance.agents) >= 0)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_supplies_are_scarce_and_known_before_the_draw(name: str) -> None:
    one, two = (families.FAMILIES[name](3000, np.random.default_rng(s)) for s in (1, 2))
    assert not np.array_equal(one.values, two.values) or name == "identical"
    if name != "identical":  # its only bundle is drawn, and public
        assert np.array_equal(one.supply, two.supply)
    best = one.optimum()
    assert best.bound - best.value <= 1e-9 * best.bound
    wanted = one.values.sum() if one.options == 1 else one.values.max() * one.count
    assert 0.1 * wanted < best.value < 0.9 * wanted
    assert one.optimum() is best


def test_with_supply_changes_nothing_else() -> None:
    instance = families.mixed(100, np.random.default_rng(1))
    other = instance.with_supply(20.0)
    assert other.supply.tolist() == [20.0] * 10
    assert other.values is instance.values and other.demands is instance.demands
    assert other.optimum().value != instance.optimum().value


# --- what the table says ------------------------------------------------------------------


def said(cell: loss.Cell, *runs: loss.Run) -> dict[str, str]:
    return dict(zip(loss.HEAD, loss.row(cell, list(runs)), strict=True))


def test_a_good_row_says_yes() -> None:
    line = said(CELL, GOOD, replace(GOOD, loss=0.06))
    assert line["loss, most"] == "12.00%" and line["loss, mean"] == "9.00%"
    assert line["(loss - 0.5%) / M"] == "1.15"
    assert [line[c] for c in ("small enough", "feasible", "true and close")] == ["yes"] * 3
    assert "NO" not in " ".join(line.values())


@pytest.mark.parametrize(
    ("column", "run"),
    [
        ("small enough", replace(GOOD, loss=0.126)),
        ("feasible", replace(GOOD, fits=False)),
        ("rounds", replace(GOOD, rounds=101)),
        ("true and close", replace(GOOD, certified=0.62)),
        ("true and close", replace(GOOD, certified=0.89)),
        ("true and close", replace(GOOD, certified=None)),
    ],
)
def test_one_bad_run_of_two_says_no(column: str, run: loss.Run) -> None:
    for line in (said(CELL, GOOD, run), said(CELL, run, GOOD)):
        assert [c for c, text in line.items() if "NO" in text] == [column]


def test_the_limit_depends_on_goods_and_budget() -> None:
    assert loss.most_loss(CELL, 0.1) == pytest.approx(0.125)
    assert loss.most_loss(replace(CELL, divisible=False), 0.1) == pytest.approx(0.205)
    assert loss.most_loss(CELL, 0.2) is None
    assert loss.most_loss(replace(CELL, epsilon=math.inf), 0.0) == 0.002
    assert loss.most_loss(replace(CELL, epsilon=math.inf, family="tied"), 0.0) == 0.01


# --- the experiment -----------------------------------------------------------------------


def experiment(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, EXPERIMENTS / "loss.py", "--quick", "--results", folder]
    command += ["--families", "single,assignment,add-remove", "--n", "3000", *more]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_the_experiment_runs_and_resumes_where_it_stopped(tmp_path: Path) -> None:
    first = experiment(tmp_path)
    lines = [line for line in first.stdout.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 6
    assert "refused" not in first.stdout
    feasible = loss.HEAD.index("feasible")
    assert all(line.split(" | ")[feasible] == "yes" for line in lines[2:])
    kept = json.loads((tmp_path / "loss.json").read_text())
    assert len(kept) == 6
    # The margin by its definition: one resource of supply 0.3 0.55 n, and a demand of up to 1.
    margin = kept["single n=3000 epsilon=3 divisible default"]["1"]["margin"]
    budget = Budget.split(3.0, loss.DELTA, truncated=False)
    z = math.sqrt(2.0 * math.log(1.0 / budget.beta))
    assert margin == pytest.approx(z / (0.3 * 0.55 * 3000) / math.sqrt(2 * budget.rho), rel=1e-3)
    again = experiment(tmp_path)
    assert again.stdout == first.stdout
    assert "seed" in first.stderr and "seed" not in again.stderr
    more = experiment(tmp_path, "--seeds", "2", "--private-only", "--epsilon", "3,inf")
    assert more.stderr.count("seed 2") == 6 and "seed 1" not in more.stderr
