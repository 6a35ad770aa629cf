"""jdpack check: everything is read, nothing is spent, and what looks wrong is said."""

import json

import numpy as np
import pandas as pd
import pytest

import jdpack
from helpers import forbid_drawing
from jdpack import AgentsError, BudgetError, Market, check

MARKET = Market(
    supply={"North": 2000.0, "South": 1500.0},
    max_demand=1.0,
    max_value=10.0,
    agents=5000,
    epsilon=1.0,
    delta=1e-8,
)


@pytest.fixture(autouse=True)
def _nothing_is_drawn(monkeypatch):
    forbid_drawing(monkeypatch)


def people(**changes) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    north = rng.random(5000) < 0.6
    table = {"id": range(5000), "value": rng.uniform(1, 10, 5000), "North": north, "South": ~north}
    return pd.DataFrame({**table, **changes})


def test_a_good_table():
    found = check(MARKET, people())
    assert found.problems == () and found.refused is None and found.agents == 5000
    asked = people()[["North", "South"]].sum().to_numpy() / [2000.0, 1500.0]
    assert found.wanted == pytest.approx(asked, rel=1e-4)
    assert found.value == pytest.approx(people().value.sum(), rel=1e-6)
    text = str(found)
    assert text.startswith("CURATOR ONLY") and "nothing was spent" in text
    assert "nothing looks wrong" in text and "epsilon 1 and delta 1e-08" in text
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("table", "market", "says"),
    [
        (people(South=0.0), MARKET, "nobody asks for 'South'"),
        (people(value=0.0, North=0.0, South=0.0), MARKET, "no record asks for anything of value"),
        (people(), MARKET.changed(supply=[9000.0, 9000.0]), "nothing is scarce"),
        (people(), MARKET.changed(supply=[40.0, 30.0]), "supply is too small for this budget"),
        (people(), MARKET.changed(epsilon=9.0, delta=1e-3), "little is hidden"),
        (people(value=[11.0, *[5.0] * 4999]), MARKET, "solve would refuse the table: agent 0"),
        (people(value=[11.0, *[5.0] * 4999]), MARKET, "1 number is beyond the public bounds"),
    ],
)
def test_what_looks_wrong_is_said(table, market, says):
    found = check(market, table)
    assert any(says in problem for problem in found.problems), found.problems
    assert "what looks wrong" in str(found)


def test_clamped_numbers_are_no_reason_to_refuse():
    found = check(MARKET, people(value=[11.0, *[5.0] * 4999]), clamp=True)
    assert found.refused is None and found.beyond == 1


def test_what_no_run_would_read_is_an_error():
    with pytest.raises(AgentsError, match="'value' is missing"):
        check(MARKET, people(value=[None, *[5.0] * 4999]))
    with pytest.raises(AgentsError, match="there are 4,999 agents"):
        check(MARKET, people()[:4999])


# --- ids in several rows --------------------------------------------------------------------

REPEATED = people(id=np.r_[np.full(5, 7), np.full(2, 8), np.arange(100, 5093)])


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("agents", [5000, 4995])  # as many as there are rows, or as ids
def test_repeated_ids_say_what_each_reading_protects(agents, clamp):
    market = MARKET.changed(agents=agents)
    with pytest.raises(AgentsError) as caught:
        check(market, REPEATED, clamp=clamp)
    assert caught.value.message == "2 of 4,995 ids are in several rows; 7 is in 5"
    hint = caught.value.hint
    assert "Market(options=...)" in hint and "Market(person=...)" in hint
    of_five = jdpack.plan(market).budget.epsilon_of_group(5)
    assert of_five > 4.0 and f"has epsilon {of_five:.3g} instead of 1" in hint


def test_repeated_ids_in_files_and_arrays(tmp_path):
    says = "2 of 4,995 ids are in several rows; 'p7' is in 5"
    named = REPEATED.assign(id=[f"p{id}" for id in REPEATED.id]).astype(
        {"North": float, "South": float}
    )
    named.to_csv(tmp_path / "agents.csv", index=False)
    with pytest.raises(AgentsError, match=says):
        check(MARKET, tmp_path / "agents.csv")
    arrays = {"values": named.value, "demands": named[["North", "South"]].to_numpy()}
    with pytest.raises(AgentsError, match=says):
        check(MARKET, **arrays, ids=named.id)


def test_unique_ids_are_not_blamed_for_another_error():
    with pytest.raises(AgentsError, match="there are 4,999 agents"):
        check(MARKET, people()[:4999])
    with pytest.raises(AgentsError, match="row 1 has no id"):
        check(MARKET, people(id=[None, *["a", "a"], *map(str, range(4997))]))


def test_a_check_says_who_is_protected():
    assert "protects   one agent: people with several ids" in str(check(MARKET, people()))
    several = MARKET.changed(agents=4995, options=5)
    assert "its rows are options, and it takes one at most" in str(check(several, REPEATED))
    persons = MARKET.changed(agents=4995, person=5)
    found = check(persons, REPEATED.assign(request=np.arange(5000).astype(str)))
    assert (found.agents, found.requests) == (4995, 5000) and found.to_dict()["requests"] == 5000
    assert "over all requests (5,000 requests, 1 per agent on average)" in str(found)


def test_the_command(tmp_path, capsys, monkeypatch):
    from jdpack.cli import main

    agents, market = tmp_path / "agents.csv", tmp_path / "market.toml"
    market.write_text(
        "privacy = {epsilon = 1.0, delta = 1e-8}\nvalue.max = 10.0\nagents.count = 5000\n"
        '[[resource]]\nname = "North"\nsupply = 2000.0\nmax_demand = 1.0\n'
    )

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["jdpack", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            return end.code or 0, *capsys.readouterr()
        return 0, *capsys.readouterr()

    people(North=1.0).drop(columns="South").to_csv(agents, index=False)
    code, out, _ = run("check", market, agents, "-q")
    assert code == 0 and out.endswith(f"next: jdpack solve {market} {agents} -o out\n")
    people(North=2.0).drop(columns="South").to_csv(agents, index=False)
    code, out, _ = run("check", market, agents, "-q", "--json")
    assert code == 1 and json.loads(out)["beyond"] == 5000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["agents.csv", "market.toml"]


# --- a run that can give hardly anything ----------------------------------------------------


@pytest.mark.refused
def test_a_hopeless_run_is_refused_unless_forced(tmp_path, capsys, monkeypatch):
    from jdpack.cli import main

    agents, market, out = (tmp_path / name for name in ("agents.csv", "market.toml", "out"))
    people(North=1.0).drop(columns="South").to_csv(agents, index=False)
    market.write_text(
        "privacy = {epsilon = 1.0, delta = 1e-8}\nvalue.max = 10.0\nagents.count = 5000\n"
        '[[resource]]\nname = "North"\nsupply = 20.0\nmax_demand = 1.0\n'
    )
    assert jdpack.plan(market).margin > 1.0
    monkeypatch.setattr("sys.argv", ["jdpack", "solve", str(market), str(agents), "-o", str(out)])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 2 and not out.exists()
    assert "hardly anybody can get anything" in said and "--force, or force=True, runs" in said
    with pytest.raises(BudgetError, match="hardly anybody can get anything"):
        jdpack.solve(market, agents, output=out)
    assert not out.exists()
    for anyway in ({"force": True}, {"seed": 1}):
        with pytest.raises(AssertionError, match="something was drawn"):
            jdpack.solve(market, agents, **anyway)


def test_the_warning_says_how_bad_it_is():
    texts = {
        0.02: "which is more than there is", 0.06: "only a few people", 0.13: "is not reasonable",
    }  # fmt: skip
    for factor, says in texts.items():
        warning = jdpack.plan(MARKET.scaled(factor)).warning
        assert warning is not None and says in warning.message, jdpack.plan(MARKET.scaled(factor))
