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

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import families  # noqa: E402
import floors  # noqa: E402
import loss  # noqa: E402

CELL = loss.Cell("dense", 10_000, 1.0, True, "default")
GOOD = loss.Run(
    margin=0.1,
    floor=0.08,
    loss=0.1,
    fits=True,
    certified=0.7,
    rounds=88,
    releases=95,
    seconds=1.0,
)


# --- families -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_family_keeps_to_its_public_numbers(name: str) -> None:
    instance = families.FAMILIES[name](600, np.random.default_rng(1))
    demands = scipy.sparse.csr_matrix(instance.demands)
    market = instance.market()
    assert [r.supply for r in market.resources] == instance.supply.tolist()
    assert 0.0 <= instance.values.min() <= instance.values.max() <= market.max_value
    assert [r.max_demand for r in market.resources] == instance.caps.tolist()
    assert demands.data.min() > 0.0
    assert np.all(demands.max(axis=0).toarray() <= instance.caps)
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
    assert line["loss, most"] == "10.00%" and line["loss, mean"] == "8.00%"
    assert line["M"] == "10.00%" and line["F"] == "8.00%" and line["mean / F"] == "1.00"
    assert [line[c] for c in ("small enough", "feasible", "true and close")] == ["yes"] * 3
    assert "NO" not in " ".join(line.values())


BAD = [
    ("small enough", replace(GOOD, loss=0.108)),
    ("feasible", replace(GOOD, fits=False)),
    ("rounds", replace(GOOD, rounds=101)),
    ("true and close", replace(GOOD, certified=0.64)),
    ("true and close", replace(GOOD, certified=0.91)),
    ("true and close", replace(GOOD, certified=None)),
]


@pytest.mark.parametrize(("column", "run"), BAD)
def test_one_bad_run_of_two_says_no(column: str, run: loss.Run) -> None:
    for line in (said(CELL, GOOD, run), said(CELL, run, GOOD)):
        assert [c for c, text in line.items() if "NO" in text] == [column]


@pytest.mark.parametrize(("column", "run"), BAD)
def test_the_summary_names_every_miss(column: str, run: loss.Run) -> None:
    bad = replace(CELL, family="sparse")
    lines = list(loss.summary([(CELL, [GOOD]), (bad, [GOOD, run]), (CELL, [])]))
    assert f"{column}: 1 of 2" in lines
    assert sum(line.endswith(": 2 of 2") for line in lines) == 3
    named = [line for line in lines if bad.key in line]
    assert len(named) == 1 and named[0].startswith(f"  {bad.key}: loss ")
    assert lines[-1] == f"refused: {CELL.key}"


def test_the_summary_has_medians_of_the_mean_loss_over_cells() -> None:
    def cells(divisible: bool, *losses: float) -> loss.Cells:
        cell = replace(CELL, divisible=divisible)
        return [(cell, [replace(GOOD, loss=x), replace(GOOD, loss=x + 0.02)]) for x in losses]

    unclear = (CELL, [replace(GOOD, floor=0.2, loss=1.0)])
    nothing = (replace(CELL, epsilon=math.inf), [replace(GOOD, floor=0.0, loss=0.001)])
    found = [*cells(True, 0.05, 0.08, 0.11), unclear, nothing, *cells(False, 0.10)]
    first, second, *_ = loss.summary(found)
    assert first.startswith("divisible, 3 cells") and "1.12 F; the aim is 1.15 F: yes" in first
    assert second.startswith("indivisible, 1 cells") and "1.38 F; the aim is 1.35 F: NO" in second


def test_the_limits_depend_on_goods_and_budget() -> None:
    assert loss.most_loss(CELL, 0.1) == pytest.approx(0.133)
    assert loss.most_loss(replace(CELL, divisible=False), 0.1) == pytest.approx(0.165)
    assert loss.most_loss(CELL, 0.2) is None
    assert loss.most_loss(replace(CELL, epsilon=math.inf), 0.0) == 0.002
    assert loss.most_loss(replace(CELL, epsilon=math.inf, family="tied"), 0.0) == 0.01
    whole = replace(CELL, divisible=False)
    for cell, certified in [(CELL, 0.646), (whole, 0.776)]:
        assert loss.true_and_close(cell, [replace(GOOD, certified=certified)])
        assert not loss.true_and_close(cell, [replace(GOOD, certified=certified - 0.002)])
    assert loss.true_and_close(CELL, [replace(GOOD, margin=0.2)]) is None


# --- the experiment -----------------------------------------------------------------------


def command(folder: Path, *more: str) -> list[str]:
    sizes = ["--quick", "--n", "3000", "--families", "single,assignment,add-remove"]
    return [str(EXPERIMENTS / "loss.py"), *sizes, "--results", str(folder), *more]


def experiment(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *command(folder, *more)]
    return subprocess.run(words, capture_output=True, text=True, check=True)


def test_the_experiment_runs_and_resumes_where_it_stopped(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    first = experiment(tmp_path)
    lines = [line for line in first.stdout.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 6
    assert "refused" not in first.stdout
    feasible = loss.HEAD.index("feasible")
    assert all(line.split(" | ")[feasible] == "yes" for line in lines[2:])
    kept = json.loads((tmp_path / "loss.json").read_text())
    assert len(kept) == 6
    # By their definitions: one resource of supply 0.3 0.55 n, and a demand of up to 1. F is M times
    # the share of the optimum that the price explains.
    found = kept["single n=3000 epsilon=3 divisible default"]["1"]
    rho, beta = floors.budget(3.0, loss.DELTA)
    margin = math.sqrt(2.0 * math.log(1.0 / beta)) / (0.3 * 0.55 * 3000) / math.sqrt(2 * rho)
    assert found["margin"] == pytest.approx(margin)
    best = families.single(3000, np.random.default_rng(loss.INSTANCE_SEED)).optimum()
    assert found["floor"] == pytest.approx(margin * best.prices[0] * 495.0 / best.value)
    assert "\nfeasible: 6 of 6\n" in first.stdout and "without privacy" not in first.stdout
    monkeypatch.setattr(sys, "argv", command(tmp_path))
    loss.main()
    again = capsys.readouterr()
    assert again.out == first.stdout
    assert "seed" in first.stderr and "seed" not in again.err
    more = experiment(tmp_path, "--seeds", "2", "--private-only", "--epsilon", "3,inf")
    assert more.stderr.count("seed 2") == 6 and "seed 1" not in more.stderr


def test_results_beside_those_of_another_folder(tmp_path: Path, capsys) -> None:
    """Cells and seeds that both have, by their mean."""
    other = replace(CELL, divisible=False)
    for name, found in [
        ("before", {CELL: [GOOD, replace(GOOD, loss=0.2)], other: [GOOD]}),
        ("after", {CELL: [replace(GOOD, loss=0.04, certified=None)]}),
    ]:
        store = loss.Store(tmp_path / name / "loss.json")
        for cell, runs in found.items():
            store.put(cell.key, {str(i + 1): loss.asdict(run) for i, run in enumerate(runs)})
        assert loss.on_file(store.path) == found
    paths = [tmp_path / name / "loss.json" for name in ("before", "after")]
    rows = list(loss.beside(*map(loss.on_file, paths)))
    assert len(rows) == 1 and len(rows[0]) == len(loss.BESIDE)
    assert rows[0][4:] == ["10.00%", "8.00%", "10.00%", "4.00%", "1.25", "0.50", "70.00%", "0.00%"]
    loss.show_beside(*paths)
    printed = capsys.readouterr().out
    assert loss.line(rows[0]) in printed and other.key not in printed
    before, after = printed.partition("\nafter:")[::2]
    assert "small enough: 0 of 1" in before and "small enough: 1 of 1" in after
