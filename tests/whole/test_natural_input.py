"""Input in the forms that people have, and errors in their own terms."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import jdpack
from jdpack import (
    AgentsError,
    BillboardError,
    BudgetError,
    Columns,
    Market,
    MarketError,
    OutputError,
)
from jdpack.records import tables

CLINICS = {"North": 40.0, "South": 30.0}
BUDGET = {"epsilon": 9.0, "delta": 1e-6}


def a_market(**changes) -> Market:
    given = {"supply": CLINICS, "max_demand": 1.0, "max_value": 10.0, "agents": 120}
    return Market(**{**given, **BUDGET, **changes})


def wishes() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    clinic = rng.choice(list(CLINICS), 120)
    table = pd.DataFrame({"id": [f"p{i}" for i in range(120)], "value": rng.integers(1, 10, 120)})
    return pd.concat([table, pd.get_dummies(clinic)], axis=1)


# --- names --------------------------------------------------------------------------------


def test_names_are_the_keys_of_a_dict():
    named = a_market(
        max_demand={"South": 2.0, "North": 1.0},
        units={"South": "slots"},
        resource_columns={"North": "n", "South": "s"},
    )
    listed = a_market(
        supply=[40.0, 30.0],
        names=["North", "South"],
        max_demand=[1.0, 2.0],
        units=["", "slots"],
        resource_columns=["n", "s"],
    )
    assert named == listed
    assert a_market(supply=pd.Series(CLINICS)) == a_market()
    assert a_market(supply=pd.Series([40.0, 30.0]), names=list(CLINICS)) == a_market()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"names": ["a", "b"]}, "supply already has the names\nhint: leave names out"),
        (
            {"max_demand": {"Nort": 1.0}},
            "max_demand names 'Nort', which is not a resource\nhint: did",
        ),
        ({"max_demand": {"North": 1.0}}, "max_demand lacks the resource 'South'"),
        ({"units": {"East": "x"}}, "units names 'East', which is not a resource"),
        ({"supply": {}}, "1 to 65536 resources, not 0"),
    ],
)
def test_names_that_do_not_fit(changes, says):
    with pytest.raises(MarketError) as caught:
        a_market(**changes)
    assert says.split(" resources")[0] in str(caught.value)


# --- tables -------------------------------------------------------------------------------


def test_dummies_and_columns_in_any_order_are_the_same_records(tmp_path):
    market, table = a_market(), wishes()
    assert table.dtypes["North"].kind == "b"
    path = tmp_path / "agents.parquet"
    table.to_parquet(path)
    numbers = table.astype({"North": float, "South": float})
    demands = table[["South", "North"]]  # not the market's order
    arrays = {"values": table["value"], "ids": table["id"]}
    found = [
        jdpack.solve(market, numbers, seed=1),
        jdpack.solve(market, table[["South", "id", "North", "value"]], seed=1),
        jdpack.solve(market, pl.from_pandas(table).select("South", "North", "value", "id"), seed=1),
        jdpack.solve(market, path, seed=1),
        jdpack.solve(market, **arrays, demands=demands, seed=1),
        jdpack.solve(market, **arrays, demands=pl.from_pandas(demands), seed=1),
        jdpack.solve(market, **arrays, demands=demands[["North", "South"]].to_numpy(), seed=1),
    ]
    heads = {result.billboard.head for result in found}
    assert len(heads) == 1
    wrong = jdpack.solve(market, **arrays, demands=demands.to_numpy(), seed=1)
    assert wrong.billboard.head not in heads  # the control: the order matters


def test_columns_of_demands_that_are_no_resources():
    market, table = a_market(), wishes()
    values = table["value"]
    with pytest.raises(AgentsError, match="demands have a column 'Nord', which is not a resource"):
        jdpack.solve(
            market, values=values, demands=table.rename(columns={"North": "Nord"})[["Nord"]]
        )
    with pytest.raises(AgentsError, match="demands lack the resource 'South'"):
        jdpack.solve(market, values=values, demands=table[["North"]])


def long_records(options: int) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    rows = []
    for i in range(120):
        for o in range(1 + i % options):
            value = float(rng.integers(1, 10))
            for clinic in CLINICS:
                rows.append((f"p{i}", f"wish {o}", value, clinic, round(rng.uniform(0.1, 1), 2)))
    names = ["id", "option", "value", "resource", "amount"]
    return pd.DataFrame(rows, columns=names)


@pytest.mark.parametrize("options", [1, 3])
@pytest.mark.parametrize("kind", ["table", "parquet", "csv"])
def test_a_shuffled_long_table_is_grouped(tmp_path, options, kind):
    columns = Columns(layout="long", ignore=("option",) if options == 1 else ())
    market = a_market(columns=columns, options=options)
    ordered = long_records(options)
    shuffled = ordered.sample(frac=1.0, random_state=4)
    firsts = shuffled.drop_duplicates("id")["id"]
    place = {who: at for at, who in enumerate(firsts)}
    same = shuffled.assign(place=shuffled["id"].map(place))
    seen = shuffled.drop_duplicates(["id", "option"]).assign(n=lambda t: range(len(t)))
    same = same.merge(seen[["id", "option", "n"]]).sort_values(["place", "n"], kind="stable")
    same = same[list(ordered.columns)]

    def records(table, name):
        if kind == "table":
            return table
        path = tmp_path / f"{name}.{kind}"
        table.to_parquet(path) if kind == "parquet" else table.to_csv(path, index=False)
        return path

    one = jdpack.solve(market, records(shuffled, "shuffled"), seed=1)
    two = jdpack.solve(market, records(same, "grouped"), seed=1)
    assert one.billboard.head == two.billboard.head
    assert one.to_frame().equals(two.to_frame())


def test_large_files_are_not_grouped_and_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_GROUPED", 0)
    path, columns, table = tmp_path / "long.parquet", Columns(layout="long"), long_records(3)
    table.sort_values("resource", kind="stable").to_parquet(path)
    market = a_market(columns=columns, options=3, agents=1000, neighbours="add-remove")
    with pytest.raises(AgentsError, match="keep the rows of one agent together"):
        jdpack.solve(market, path)
    table.sort_values(["id", "resource"], kind="stable").to_parquet(path)
    with pytest.raises(AgentsError, match="sort the table by agent and option"):
        jdpack.solve(market, path)


@pytest.mark.parametrize("decimal", [",", "."])
@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_csv_file_with_semicolons(tmp_path, delimiter, decimal):
    market, table = a_market(), wishes().astype({"North": float, "South": float})
    table["value"] += 0.5
    path = tmp_path / "agents.csv"
    table.to_csv(path, index=False, sep=delimiter, decimal=decimal)
    expected = jdpack.solve(market, table, seed=1).billboard.head
    assert jdpack.solve(market, path, seed=1).billboard.head == expected


# --- paths --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("natural") / "out"
    jdpack.solve(a_market(), wishes(), output=folder)
    return folder


def test_allocate_and_explain_by_path(run):
    mine = {"value": 9.0, "demand": {"North": True}, "agent": "p3"}
    board = jdpack.Billboard.read(run / "public" / "billboard.jsonl")
    path = str(run / "public" / "billboard.jsonl")
    assert jdpack.allocate(path, **mine) == jdpack.allocate(board, **mine)
    assert str(jdpack.explain(path, **mine)) == str(jdpack.explain(board, **mine))


@pytest.mark.parametrize(
    ("inside", "says", "hint"),
    [
        (".", "Is a directory", "public/billboard.jsonl"),
        ("public", "Is a directory", "public/billboard.jsonl"),
        ("public/index.html", "is a page, not a billboard", "billboard.jsonl in the folder public"),
        ("private/allocation.parquet", "is a Parquet file, not a billboard", "billboard.jsonl"),
    ],
)
def test_a_wrong_file_instead_of_a_billboard(run, inside, says, hint):
    with pytest.raises(BillboardError) as caught:
        jdpack.allocate(run / inside, value=9.0, demand=[1, 0], agent="p3")
    assert says in caught.value.message and hint in caught.value.hint


def test_a_wrong_file_instead_of_a_market_or_a_table(tmp_path):
    table = tmp_path / "agents.csv"
    wishes().to_csv(table, index=False)
    with pytest.raises(MarketError, match="the market file comes first, then the table"):
        jdpack.solve(table, table)
    for name, says in [("market.toml", "is a market file, not a table"), ("a.xlsx", "a workbook")]:
        (tmp_path / name).write_text("x")
        with pytest.raises(AgentsError, match=says):
            jdpack.solve(a_market(), tmp_path / name)


def test_an_interrupted_folder_points_to_resume(tmp_path):
    def stop(now):
        if now.rounds > 3:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        jdpack.solve(a_market(), wishes(), output=out, progress=stop)
    with pytest.raises(OutputError, match=f"`jdpack resume {out}` finishes it"):
        jdpack.solve(a_market(), wishes(), output=out)
    jdpack.resume(out, wishes())
    with pytest.raises(OutputError, match="already exists"):
        jdpack.solve(a_market(), wishes(), output=out)


# --- hints --------------------------------------------------------------------------------


def test_hints_are_in_the_terms_of_the_market():
    python = a_market()
    toml = Market.from_dict(python.to_dict())
    extra = wishes().assign(phone="1")
    cases = [
        (AgentsError, extra, {}, "Columns(ignore=('phone',))", "ignore = ['phone'] in [agents]"),
        (BudgetError, wishes(), {"epsilon": None}, "Market(...)", "[privacy] of the market file"),
        (AgentsError, wishes().assign(South=1.0, North=1.0), {"bundle_size": 1},
         "Market(bundle_size=...)", "bundle_size in [agents]"),
    ]  # fmt: skip
    for error, table, changes, in_python, in_toml in cases:
        market = python.changed(**changes)
        for written, hint in [(market, in_python), (Market.from_dict(market.to_dict()), in_toml)]:
            with pytest.raises(error) as caught:
                jdpack.solve(written, table)
            assert hint in caught.value.hint
    assert toml == python
