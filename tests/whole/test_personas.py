"""Four walks through jdpack, each as one kind of person would take it.

The resident with a phone walks in tests/browser. What each of them met before is in
docs/before-after.md.
"""

import csv
import json
import math
import shlex
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import typer.testing

import jdpack
from helpers import run_cli
from jdpack.cli import app_of

pytestmark = pytest.mark.refused  # they see what a user sees


# --- the new user -------------------------------------------------------------------------


def test_a_new_user_follows_what_comes_next(tmp_path, monkeypatch, capsys):
    """From `jdpack init` to a letter in hand, by nothing but the "next:" lines."""
    monkeypatch.chdir(tmp_path)
    answers = [
        "Swimming",
        "lanes",
        "2500",
        "1",
        "hours",
        "",
        "9000",
        "y",
        "1",
        "n",
        "10",
        "",
        "",
        "",
    ]
    given = "".join(f"{line}\n" for line in answers)
    begun = typer.testing.CliRunner().invoke(app_of(["init"]), ["init"], input=given)
    assert begun.exit_code == 0, begun.output
    out, walked = begun.stdout, ["init"]

    rng = np.random.default_rng(1)
    people = pd.DataFrame({"id": [f"k{i}" for i in range(9000)], "lanes": 1})
    people = people.assign(value=rng.integers(1, 101, 9000) / 10)
    people.to_csv("wishes.csv", index=False, sep=";")  # as a German spreadsheet writes it

    while "next: jdpack " in out:
        words = shlex.split(out.rpartition("next: jdpack ")[2].splitlines()[0])
        words = ["wishes.csv" if word == "TABLE" else word for word in words]
        quiet = [] if words[0] in ("plan", "ledger") else ["--quiet"]
        code, out, err = run_cli(monkeypatch, capsys, *words, *quiet)
        assert code == 0, err
        walked.append(words[0])
        if words[0] == "plan":  # the verdict comes first, in the market's own units
            assert out.startswith("Swimming: expect about 9") and " of 2,500 hours of lanes" in out
    assert walked == ["init", "plan", "check", "solve", "letters"]

    with open("out/private/letters.csv", encoding="utf-8", newline="") as file:
        letters = list(csv.DictReader(file))
    assert len(letters) == 9000
    mine = next(letter for letter in letters if letter["id"] == "k17")
    points = float(people.value[17])
    asked = ["--id", "k17", "--value", points, "--demand", "lanes=1", "--code", mine["check code"]]
    code, out, _ = run_cli(monkeypatch, capsys, "allocate", "out/public/billboard.jsonl", *asked)
    granted = set(pd.read_parquet("out/private/granted.parquet").id)
    assert code == 0 and ("you get nothing" not in out.lower()) == ("k17" in granted)
    assert 1500 < len(granted) <= 2500

    # What goes wrong on the way, and what is said.
    for words, says in [
        (("solve", "market.toml", "wishes.csv", "-o", "out"), "already exists"),
        (("allocate", "out/public/index.html", *asked), "is a page"),
        (("solve", "wishes.csv", "market.toml", "-o", "x"), "the market file comes first"),
        (("plan", "market.tom"), "cannot read market file 'market.tom'"),
    ]:
        code, out, err = run_cli(monkeypatch, capsys, *words)
        assert code == 2 and says in err, err


def test_a_new_user_with_too_little_is_stopped_first(tmp_path):
    few = jdpack.Market(supply={"seats": 12}, max_demand=1, max_value=9, agents=300)
    assert str(jdpack.plan(few, epsilon=1, delta=1e-8)).startswith("market: do not run this")
    records = {"values": np.arange(300) % 9, "demands": np.ones(300)}
    with pytest.raises(jdpack.BudgetError, match="hardly anybody can get anything") as caught:
        jdpack.solve(few, **records, epsilon=1, delta=1e-8, output=tmp_path / "out")
    assert "times the supply is enough" in str(caught.value) and not (tmp_path / "out").exists()


# --- the data scientist in a city department ----------------------------------------------


def test_a_data_scientist_joins_the_result_to_her_own_table(tmp_path):
    """Children, up to three wishes each for a school; names, dummies, an untidy export."""
    rng, n = np.random.default_rng(2), 6000
    schools = ["Nordschule", "Südschule", "Westschule"]
    wishes = pd.DataFrame(
        {
            "child": np.repeat([f"K{i:05}" for i in range(n)], 3),
            "wish": np.tile(["first", "second", "third"], n),
            "school": np.concatenate([rng.permutation(schools) for _ in range(n)]),
            "points": np.tile([9.0, 6.0, 3.0], n) + np.repeat(rng.uniform(0, 1, n).round(2), 3),
            "seats": rng.choice([1.0, 1.0, 1.0, 2.0], 3 * n),  # some ask for their siblings too
        }
    ).sample(frac=1, random_state=3)  # an export in no order
    wishes.to_csv(tmp_path / "wishes.csv", index=False, sep=";", decimal=",")
    columns = jdpack.Columns(
        id="child", value="points", layout="long", option="wish", resource="school", amount="seats"
    )
    wide = jdpack.Market(
        supply=dict.fromkeys(schools, 1500.0),
        max_demand=20.0,  # nobody looked
        max_value=100.0,
        agents=n,
        options=3,
        bundle_size=1,
        columns=columns,
        name="Schools",
        epsilon=2.0,
        delta=1e-8,
    )
    assert "supply is too small" in str(jdpack.plan(wide))

    paid = {"ledger": tmp_path / "ledger", "dataset": "children"}
    jdpack.Ledger.create(paid["ledger"], "children", epsilon=4.0, delta=1e-6)
    found = jdpack.bounds(wide, tmp_path / "wishes.csv", epsilon=1.0, share=0.1, **paid)
    assert 2.0 <= max(r.max_demand for r in found.market.resources) <= 5.0
    checked = jdpack.check(found.market, tmp_path / "wishes.csv")
    assert checked.refused is None and checked.agents == n
    result = jdpack.solve(found.market, tmp_path / "wishes.csv", output=tmp_path / "out", **paid)

    frame = result.to_frame()
    assert list(frame.columns) == ["child", "wish", "school", "seats", "unit"]
    joined = frame.merge(wishes, on=["child", "wish", "school", "seats"])
    assert len(joined) == len(frame) > 500 and frame.child.is_unique
    written = pd.read_parquet(tmp_path / "out/private/allocation.parquet")
    every = wishes.merge(written, on=["child", "wish"])
    assert len(every) == 3 * n and every.granted.sum() == len(frame)
    full = frame.groupby("school").seats.sum()
    assert (full <= 1500).all()
    balance = jdpack.Ledger.open(paid["ledger"]).balance("children")
    assert balance.runs == 2 and balance.open == ()
    for thing in (wide, found, checked, result, result.certificate, result.billboard):
        assert len(repr(thing)) < 120
    assert "<td>" in result._repr_html_() and "do not publish" in result._repr_html_()


def test_dummies_and_named_columns_in_any_order(tmp_path):
    rng, n = np.random.default_rng(4), 5000
    clinic = rng.choice(["North", "South"], n)
    frame = pd.concat(
        [pd.get_dummies(clinic), pd.Series(rng.uniform(1, 9, n), name="value")], axis=1
    )[["South", "value", "North"]].assign(id=np.arange(n))
    market = jdpack.Market(
        supply={"North": 900, "South": 800}, max_demand=1, max_value=10, agents=n
    )
    result = jdpack.solve(market, frame, epsilon=2, delta=1e-7, policy="newton")
    given = result.to_frame().merge(frame, on="id")
    assert all(given[name][given.resource == name].all() for name in ("North", "South"))
    assert result.loads["North"] <= 1.0 and result.prices["South"] > 0.0


# --- the operations researcher ------------------------------------------------------------


def test_an_operations_researcher_brings_an_lp():
    rng, n = np.random.default_rng(5), 10_000
    c, a = rng.uniform(0, 10, n), rng.uniform(0, 1, (2, n))
    b = {"machine": 2000.0, "labour": 1600.0}
    program = jdpack.from_lp(c, a, b, max_value=10.0, max_demand=1.0)
    expected = jdpack.plan(program.market, epsilon=1.0, delta=1e-8)
    result = program.solve(epsilon=1.0, delta=1e-8)
    x = program.x(result)

    exact = scipy.optimize.linprog(-c, A_ub=a, b_ub=list(b.values()), bounds=(0, 1))
    share = c @ x / -exact.fun
    assert (a @ x <= list(b.values())).all() and 0.0 <= x.min() <= x.max() <= 1.0
    assert share == pytest.approx(expected.share_expected, abs=0.03)
    assert result.certificate.ratio_at_least <= share <= 1.0
    duals = dict(zip(b, -exact.ineqlin.marginals, strict=True))
    assert duals["labour"] > 0.5  # it binds, and its price is the dual
    assert result.prices["labour"] == pytest.approx(duals["labour"], rel=0.1)
    assert result.slacks["machine"] == pytest.approx(2000.0 - a[0] @ x, abs=0.1)
    # Weak duality with the public prices bounds the optimum, as in a textbook.
    prices = np.array(list(result.prices))
    bound = prices @ list(b.values()) + np.maximum(0.0, c - prices @ a).sum()
    assert -exact.fun <= bound <= -exact.fun * 1.02
    with pytest.raises(jdpack.AgentsError, match=r"in row 'floor'.*\n.*floors \(>=\)"):
        jdpack.from_lp(
            c, np.vstack([a, -a[0]]), {**b, "floor": 1.0}, max_value=10.0, max_demand=1.0
        )


# --- the privacy researcher ---------------------------------------------------------------


def test_a_privacy_researcher_recomputes_from_the_public_file(tmp_path):
    """By hand, from the JSON: the chain, the budget, and one agent's share."""
    rng, n = np.random.default_rng(6), 4000
    market = jdpack.Market(
        supply={"a": 1500.0, "b": 1200.0}, max_demand=1.0, max_value=8.0, agents=n, divisible=True
    )
    values, demands = rng.uniform(0, 8, n), rng.uniform(0, 1, (n, 2))
    records = {"values": values, "demands": demands}
    jdpack.solve(market, **records, epsilon=1.0, delta=1e-8, output=tmp_path / "out")
    path = tmp_path / "out/public/billboard.jsonl"
    header, *lines = map(json.loads, path.read_text().splitlines())
    assert header["private"] and [line["type"] for line in lines[-2:]] == ["certificate", "seed"]

    # Demand releases, replaced record: both codes move by at most 65535. The rest costs, too.
    spent = sum(
        sum((Fraction(65535) / Fraction(scale)) ** 2 for scale in scales) / 2
        for line in lines
        if line.get("query") == "demand"
        for scales in [np.broadcast_to(line["noise"]["scale"], 2).tolist()]
    )
    assert 0.5 * header["budget"]["rho"] < spent <= header["budget"]["rho"]
    # rho buys the Gaussian trade-off: mu^2 = 2 rho at (epsilon, the part of delta for noise).
    mu, epsilon = math.sqrt(2 * header["budget"]["rho"]), header["budget"]["epsilon"]
    tail = lambda z: math.erfc(z / math.sqrt(2)) / 2  # noqa: E731
    delta = tail(epsilon / mu - mu / 2) - math.exp(epsilon) * tail(epsilon / mu + mu / 2)
    assert 0.9 < delta / (header["budget"]["delta"] - header["budget"]["beta"]) <= 1.0

    # One agent's share: in how many rounds was the option worth its price, in whole numbers?
    who = int(np.argsort(values / demands.sum(axis=1))[int(0.62 * n)])
    size, step = Fraction(market.unit_sizes[0]), Fraction(market.value_step)
    codes = [math.ceil(Fraction(float(amount)) / size) for amount in demands[who]]
    worth = math.floor(Fraction(float(values[who])) / step) * 2**20
    rounds = [line for line in lines if line.get("query") == "demand" and line["weight"]]
    won = sum(
        line["weight"]
        for line in rounds
        if sum(code * price for code, price in zip(codes, line["prices"], strict=True)) <= worth
    )
    share = won * 2**24 // sum(line["weight"] for line in rounds)
    share = share * min(lines[-2]["factors"]) // 2**24
    mine = jdpack.allocate(path, value=values[who], demand=demands[who], agent=who)
    assert mine.share == share / 2**24

    # Anybody can verify; a changed price is found. The curator's own check needs the records.
    assert jdpack.verify(path).finished
    assert jdpack.verify_run(tmp_path / "out", **records).agents == n
    changed = path.read_text().replace(str(rounds[3]["prices"][0]), str(rounds[3]["prices"][0] + 1))
    (tmp_path / "changed.jsonl").write_text(changed)
    with pytest.raises(jdpack.BillboardError):
        jdpack.verify(tmp_path / "changed.jsonl")
