"""Bounds from records: what is charged, when, and what is written."""

import json
import os
import signal

import numpy as np
import pandas as pd
import pytest

import jdpack
from helpers import run_cli
from jdpack import (
    AgentsError,
    BudgetError,
    Ledger,
    LedgerError,
    Market,
    MarketError,
    OutputError,
    Provenance,
)

MARKET = """# Places at two schools.
name = "Schools"

[privacy]
epsilon = 1.0
delta = 1e-8

[value]
max = 1000.0  # points, at most

[agents]
count = 4000

[[resource]]
name = "North"
supply = 5000.0
max_demand = 50.0  # far more than anybody needs

[[resource]]
name = "South"
max_demand = 50.0
supply = 5000.0
"""


@pytest.fixture
def place(tmp_path):
    rng = np.random.default_rng(1)
    (tmp_path / "market.toml").write_text(MARKET)
    wants = rng.integers(0, 4, (4000, 2)).astype(float)
    table = pd.DataFrame({"id": [f"c{i}" for i in range(4000)], "value": rng.uniform(1, 9, 4000)})
    table.assign(North=wants[:, 0], South=wants[:, 1]).to_csv(tmp_path / "agents.csv", index=False)
    Ledger.create(tmp_path / "ledger", "children", epsilon=4.0, delta=1e-6)
    return tmp_path


def given(place, **more):
    paid = {"ledger": place / "ledger", "dataset": "children"}
    market, agents = place / "market.toml", place / "agents.csv"
    return jdpack.bounds(market, agents, **{"epsilon": 1.0, "share": 0.1, **paid, **more})


def kinds(place) -> list[str]:
    return [entry.kind for entry in Ledger.open(place / "ledger").entries()]


def test_the_bounds_are_written_with_what_they_cost(place):
    found = given(place, output=place / "new.toml")
    text = (place / "new.toml").read_text()
    assert "# Places at two schools." in text and "# far more than anybody needs" in text
    market = Market.from_toml(place / "new.toml")
    assert market == found.market
    north, south = market.resources
    assert 3.0 <= north.max_demand < 50.0 and 3.0 <= south.max_demand < 50.0
    assert 9.0 <= market.max_value < 1000.0
    (entry,) = market.provenance
    assert (entry.epsilon, entry.delta) == (1.0, 1e-8)
    ledger = Ledger.open(place / "ledger")
    run = ledger.runs[entry.run]
    assert run.state == "finished" and (run.budget.epsilon, run.budget.delta) == (1.0, 1e-8)
    assert kinds(place) == ["dataset", "reserve", "begin", "finish"]
    # The market file says so wherever it goes: in the plan, the summary and the billboard.
    assert "chosen privately, for epsilon 1 and delta 1e-08 more" in str(jdpack.plan(market))
    result = jdpack.solve(market, place / "agents.csv", clamp=True, ledger=ledger.path,
                          dataset="children")  # fmt: skip
    assert result.billboard.header.market.provenance == market.provenance
    from jdpack.run import summary

    assert "its bounds were chosen privately, for (1, 1e-08) more" in summary.as_text(result)
    # A second time, another entry follows.
    second = jdpack.bounds(
        place / "new.toml", place / "agents.csv", epsilon=0.5, share=0.2, output=place / "c.toml",
        ledger=ledger.path, dataset="children",
    )  # fmt: skip
    assert Market.from_toml(place / "c.toml").provenance == second.market.provenance
    assert len(second.market.provenance) == 2


def test_it_is_spent_before_noise_is_drawn(place, monkeypatch):
    """Ctrl-C at the draw: nothing is given back. The ledger knew before."""

    def interrupted(*_):
        assert kinds(place) == ["dataset", "reserve", "begin"]
        raise KeyboardInterrupt

    monkeypatch.setattr("jdpack.door.SystemRandomness.draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        given(place, output=place / "new.toml")
    assert kinds(place) == ["dataset", "reserve", "begin"]
    assert Ledger.open(place / "ledger").balance("children").runs == 1
    assert not (place / "new.toml").exists()


@pytest.mark.parametrize(
    ("at", "left"),
    [
        ("jdpack.run.bounds.count_levels", ["reserve"]),
        ("jdpack.door.SystemRandomness.draw", ["reserve", "begin"]),
        ("jdpack.run.bounds.write_text", ["reserve", "begin", "finish"]),
    ],
)
def test_kill_9_at_any_moment_gives_nothing_back(place, monkeypatch, at, left):
    """Nothing is refunded, nothing is half written, and the ledger is sound."""
    child = os.fork()
    if child == 0:
        with monkeypatch.context() as patch:
            patch.setattr(at, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            given(place, output=place / "new.toml")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert kinds(place) == ["dataset", *left] and not (place / "new.toml").exists()
    ledger = Ledger.open(place / "ledger")
    assert ledger.balance("children").runs == 1 and ledger.verify().entries == 1 + len(left)
    given(place, output=place / "new.toml")  # another one, with a budget of its own
    assert Ledger.open(place / "ledger").balance("children").runs == 2


def test_bounds_that_cannot_be_written_are_told(place, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jdpack.run.bounds.write_text", full)
    with pytest.raises(OutputError, match="No space left on device") as caught:
        given(place, output=place / "new.toml")
    assert "enter the bounds by hand" in str(caught.value) and "spent" in str(caught.value)
    assert kinds(place)[-1] == "finish"


def test_a_bound_is_one_that_the_market_could_have(place):
    """A resource that could hardly run out: smaller caps would not fit on the grid."""
    records = {"values": np.ones(100), "demands": np.full(100, 1e-5)}
    market = Market(supply=[1e7], max_demand=1.0, max_value=1.0, agents=100)
    found = jdpack.bounds(market, **records, epsilon=20.0, delta=1e-3, share=0.5, seed=1)
    assert 1e-5 < found.market.resources[0].max_demand < 1.0


def test_negative_control_a_late_charge_is_seen(place, monkeypatch):
    """The check of the test above fails if the ledger is told only after the draw."""
    seen = []
    monkeypatch.setattr(Ledger, "post", lambda *_: None)
    monkeypatch.setattr("jdpack.door.SystemRandomness.draw", lambda *_: seen.append(kinds(place)))
    with pytest.raises(TypeError):
        given(place)
    assert seen == [["dataset", "reserve"]]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"epsilon": float("inf")}, BudgetError, "would publish the exact counts"),
        ({"delta": 0.1}, BudgetError, "delta must be at most 0.01"),
        ({"epsilon": 9.0}, BudgetError, "does not fit data set 'children'"),
        ({"share": 0.0}, MarketError, "share must be above 0 and below 1, not 0.0"),
        ({"ledger": None}, LedgerError, "need a ledger and a data set"),
        ({"dataset": "others"}, LedgerError, "no data set 'others'"),
        ({"seed": 1}, BudgetError, "seeded noise protect nobody"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_spent(place, change, error, says):
    with pytest.raises(error, match=says):
        given(place, output=place / "new.toml", **change)
    assert kinds(place) == ["dataset"] and not (place / "new.toml").exists()


def test_records_that_are_wrong_give_the_budget_back(place):
    for row, says in [("c0,nan,1,1", "'value' is nan"), ("c0,1,-2,1", "'North' is -2.0")]:
        rows = (place / "agents.csv").read_text().splitlines()
        (place / "bad.csv").write_text("\n".join([rows[0], row, *rows[2:]]))
        with pytest.raises(AgentsError, match=f"agent 'c0': {says}"):
            jdpack.bounds(place / "market.toml", place / "bad.csv", epsilon=1.0,
                          ledger=place / "ledger", dataset="children")  # fmt: skip
    (place / "few.csv").write_text("\n".join(rows[:-1]))
    with pytest.raises(AgentsError, match="3,999 agents, but the market declares 4,000"):
        jdpack.bounds(place / "market.toml", place / "few.csv", epsilon=1.0,
                      ledger=place / "ledger", dataset="children")  # fmt: skip
    assert kinds(place) == ["dataset", *["reserve", "cancel"] * 3]
    assert Ledger.open(place / "ledger").balance("children").runs == 0


def test_rows_of_which_nobody_knows_whose_they_are_are_refused(place):
    """Each row would count as an agent, and one person could move more counts than are hidden."""
    rows = {"values": np.ones(40), "demands": np.ones(40)}
    paid = {"epsilon": 1.0, "delta": 1e-8, "ledger": place / "ledger", "dataset": "children"}
    market = Market(supply=[50.0], max_demand=1.0, max_value=1.0, agents=40, options=4)
    with pytest.raises(AgentsError, match="several options need ids"):
        jdpack.bounds(market, **rows, **paid)
    one = pd.DataFrame({"id": range(20), "value": 1.0, "resource 1": 1.0})
    one.to_parquet(place / "a.parquet")
    one.assign(id=[f"c{i}" for i in range(20)]).to_parquet(place / "b.parquet")
    with pytest.raises(AgentsError, match="ids 0 and 'c0' mix numbers and texts"):
        jdpack.bounds(market.changed(options=1), [place / "a.parquet", place / "b.parquet"], **paid)
    assert kinds(place) == ["dataset", *["reserve", "cancel"] * 2]


def test_a_file_that_cannot_be_written_is_refused_first(place):
    (place / "there.toml").write_text("mine")
    (place / "dotted.toml").write_text(
        MARKET.replace("[value]\nmax = 1000.0  # points, at most\n", "").replace(
            'name = "Schools"', 'name = "Schools"\nvalue.max = 1000.0'
        )
    )
    for market, output, says in [
        ("market.toml", "there.toml", "already exists"),
        ("market.toml", "no/new.toml", "there is no folder"),
        ("dotted.toml", "new.toml", "the bounds cannot be changed in this market file"),
    ]:
        with pytest.raises((OutputError, MarketError), match=says):
            jdpack.bounds(place / market, place / "agents.csv", epsilon=1.0,
                          output=place / output, ledger=place / "ledger",
                          dataset="children")  # fmt: skip
    paid = {"ledger": place / "ledger", "dataset": "children"}
    with pytest.raises(OutputError, match="no file to copy"):
        jdpack.bounds(Market.from_toml(place / "market.toml"), place / "agents.csv", epsilon=1.0,
                      output=place / "x.toml", **paid)  # fmt: skip
    with pytest.raises(OutputError, match="seeded noise are not private"):
        jdpack.bounds(place / "market.toml", place / "agents.csv", epsilon=1.0,
                      output=place / "x.toml", seed=1)  # fmt: skip
    assert kinds(place) == ["dataset"] and (place / "there.toml").read_text() == "mine"


def test_the_command(place, monkeypatch, capsys):
    paid = ["--ledger", place / "ledger", "--dataset", "children"]
    tables = [place / "market.toml", place / "agents.csv"]
    code, out, _ = run_cli(
        monkeypatch,
        capsys,
        "bounds",
        *tables,
        "--epsilon",
        "1",
        *paid,
        "-o",
        place / "new.toml",
        "--share",
        "0.1",
    )
    assert code == 0 and "instead of 50: about" in out and "spent epsilon 1" in out
    assert out.splitlines()[-1] == f"next: jdpack plan {place / 'new.toml'}"
    code, out, _ = run_cli(
        monkeypatch, capsys, "bounds", *tables, "--epsilon", "1", "--seed", "3", "--json"
    )
    data = json.loads(out)
    assert code == 0 and data["private"] is False and data["run"] == ""
    assert [one["resource"] for one in data["bounds"]] == ["North", "South", None]
    assert all(len(one["counts"]) == len(one["edges"]) + 2 for one in data["bounds"])


def test_words_and_shapes(place):
    market = Market.from_toml(place / "market.toml")
    found = jdpack.bounds(market, place / "agents.csv", epsilon=1.0, seed=1)
    assert str(found).startswith("NOT PRIVATE") and len(repr(found)) < 100
    assert "<pre>NOT PRIVATE" in found._repr_html_()
    loose = market.changed(neighbours="add-remove", provenance=[Provenance(1.0, 1e-8, "x")])
    assert Market.from_dict(loose.to_dict()) == loose
    few = jdpack.bounds(loose, place / "agents.csv", epsilon=0.01, seed=1)
    assert not any(one.changed for one in few.suggestions)  # too few people to tell anything
    assert "as before: no smaller bound is shown to be enough" in str(few)
