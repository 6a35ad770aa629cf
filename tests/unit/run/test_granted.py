"""Who gets what, in the words of the table: what every agent computes for itself."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from jdpack import Columns, Market, MarketError, OutputError, allocate, explain, solve, verify_run
from jdpack.agent.options import counted
from jdpack.run import granted

WIDE = Market(
    supply=[40.0, 30.0, 20.0],
    max_demand=[2.0, 1.0, 3.0],
    max_value=10.0,
    agents=200,
    options=3,
    names=["North", "South", "West"],
    units=["slots", "", "kWh"],
    resource_columns=["n", "s", "w"],
    epsilon=9.0,
    delta=1e-6,
    columns=Columns(id="who"),
)


def people(rng, most=(2.0, 1.0, 3.0)) -> pd.DataFrame:
    rows = []
    for i in range(200):
        for _ in range(1 + i % 3):
            asked = [round(rng.uniform(0, top), 2) * (rng.random() < 0.6) for top in most]
            rows.append((f"p{i:03}", round(rng.uniform(1, 10), 1), *asked))
    return pd.DataFrame(rows, columns=["who", "value", "n", "s", "w"])


def to_long(table: pd.DataFrame) -> pd.DataFrame:
    """The same records with one row per amount; an option's name is a letter."""
    table = table.assign(option=table.groupby("who").cumcount().map(lambda k: "abc"[k]))
    long = table.melt(["who", "value", "option"], var_name="resource", value_name="amount")
    long = long[(long.amount > 0) | (long.resource == "n")]
    return long.sort_values(["who", "option", "resource"], kind="stable")


def by_agent(board, market, table, names) -> dict:
    """What every agent computes for itself, by id, option and resource."""
    found = {}
    for who, own in table.groupby("who"):
        demands = own[["n", "s", "w"]].to_numpy().tolist()
        outcome = allocate(board, value=own.value.tolist(), demand=demands, agent=who)
        for o, (share, amounts) in enumerate(zip(outcome.given, demands, strict=True)):
            for name, amount in zip(names, counted(market, amounts), strict=True):
                if share * amount > 0:
                    found[who, o, name] = amount * share
    return found


@pytest.mark.parametrize("divisible", [False, True])
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("engine", ["memory", "mapped"])
def test_the_table_says_what_every_agent_computes(tmp_path, divisible, long, engine):
    table = people(np.random.default_rng(3))
    columns = Columns(id="who", layout="long" if long else "wide")
    market = WIDE.changed(divisible=divisible, columns=columns)
    records = to_long(table) if long else table
    path = tmp_path / "agents.parquet"
    records.to_parquet(path, row_group_size=7, index=False)  # agents span row groups
    result = solve(market, path, engine=engine, output=tmp_path / "out")
    frame = result.to_frame()
    assert list(frame.columns) == ["who", "option", "resource", "amount", "unit"]
    names = ["n", "s", "w"] if long else ["North", "South", "West"]
    wanted = by_agent(result.billboard, market, table, names)
    assert wanted
    option = frame.option.map("abc".index) if long else frame.option - 1
    keys = zip(frame.who, option, frame.resource, strict=True)
    assert dict(zip(keys, frame.amount, strict=True)) == wanted
    assert len(frame) == len(wanted)
    units = dict(zip(names, ["slots", "", "kWh"], strict=True))
    assert (frame.unit == frame.resource.map(units)).all()
    assert pd.read_parquet(tmp_path / "out/private/granted.parquet").equals(frame)
    # The allocation joins to the table without arithmetic, by the table's own names.
    given = pd.read_parquet(tmp_path / "out/private/allocation.parquet")
    what = "share" if divisible else "granted"
    assert list(given.columns) == ["who", "option", what]
    assert (given[what].to_numpy() == result.allocation).all()
    rows = records.drop_duplicates(["who", "option"]) if long else table
    assert given.who.tolist() == rows.who.tolist()
    count = rows.groupby("who").cumcount() + 1
    assert given.option.tolist() == (rows.option if long else count).tolist()
    some = given[given[what] > 0].merge(frame, on=["who", "option"])
    assert len(some) == len(frame) > 0
    assert verify_run(tmp_path / "out", path).winners == result.curator.winners


def test_names_that_clash_are_plain_ones(tmp_path):
    table = people(np.random.default_rng(3)).rename(columns={"who": "granted"})
    market = WIDE.changed(columns=Columns(id="granted"))
    result = solve(market, table, seed=1, output=tmp_path / "out")
    given = pd.read_parquet(tmp_path / "out/private/allocation.parquet")
    assert list(given.columns) == ["id", "option", "granted"]
    assert list(result.to_frame().columns)[:2] == ["granted", "option"]
    long = to_long(people(np.random.default_rng(3))).rename(columns={"who": "unit"})
    market = WIDE.changed(columns=Columns(id="unit", layout="long"))
    frame = solve(market, long, seed=1).to_frame()
    assert list(frame.columns) == ["id", "option", "resource", "amount", "unit"]


def test_amounts_are_clamped_as_they_count(tmp_path):
    market = WIDE.changed(units=["", "", ""], max_total=4.0)
    table = people(np.random.default_rng(4), most=(4.0, 2.0, 6.0))
    result = solve(market, table, clamp=True)
    frame = result.to_frame()
    wanted = by_agent(result.billboard, market, table, ["North", "South", "West"])
    keys = zip(frame.who, frame.option - 1, frame.resource, strict=True)
    assert dict(zip(keys, frame.amount, strict=True)) == wanted
    assert (frame.groupby(["who", "option"]).amount.sum() <= 4.0 + 1e-9).all()
    assert not (table[["n", "s", "w"]].to_numpy() <= [2.0, 1.0, 3.0]).all()  # some were beyond


def test_numbered_agents_and_sparse_demands():
    import scipy.sparse

    rng = np.random.default_rng(5)
    market = WIDE.changed(options=1)
    demands = rng.uniform(0, 1, (200, 3)) * (rng.random((200, 3)) < 0.5)
    values = rng.uniform(1, 10, 200)
    frames = []
    for given in (demands, scipy.sparse.csr_matrix(demands)):
        result = solve(market, values=values, demands=given, seed=1)
        frames.append(result.to_frame())
        winners = [i for i in np.flatnonzero(result.allocation) if demands[i].any()]
        assert sorted(set(frames[-1].who)) == winners
    assert frames[0].equals(frames[1]) and len(frames[0]) > 0


def test_the_frame_is_of_the_kind_that_was_given(monkeypatch):
    table = people(np.random.default_rng(3))
    mine = solve(WIDE, pl.from_pandas(table), seed=1).to_frame()
    assert isinstance(mine, pl.DataFrame)
    result = solve(WIDE, table, seed=1)
    assert mine.to_pandas().equals(result.to_frame())
    assert isinstance(result.to_frame(), pd.DataFrame)
    missing = __import__("importlib").import_module

    def without(name):
        if name in ("pandas", "polars"):
            raise ImportError(name)
        return missing(name)

    monkeypatch.setattr("importlib.import_module", without)
    with pytest.raises(OutputError, match="needs pandas or polars"):
        result.to_frame()


def test_a_stream_is_read_once(tmp_path):
    table = pa.Table.from_pandas(people(np.random.default_rng(3)), preserve_index=False)
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    result = solve(WIDE, reader, seed=1, output=tmp_path / "out")
    assert result.to_frame().equals(solve(WIDE, table, seed=1).to_frame())


def test_a_row_that_is_wrong_is_found(tmp_path):
    table = people(np.random.default_rng(3))
    solve(WIDE, table, seed=1, output=tmp_path / "out")  # which grants enough rows
    assert verify_run(tmp_path / "out", table).winners > 0
    path = tmp_path / "out" / "private" / granted.FILE
    rows = pa.parquet.read_table(path).to_pylist()
    rows[3]["amount"] += 0.5
    pa.parquet.write_table(pa.Table.from_pylist(rows, pa.parquet.read_schema(path)), path)
    with pytest.raises(OutputError, match="row 4 of the allocation"):
        verify_run(tmp_path / "out", table)


def test_a_long_run_leaves_the_file_out(tmp_path, monkeypatch):
    monkeypatch.setattr(granted, "ROWS_MAX", 100)
    solve(WIDE, people(np.random.default_rng(3)), output=tmp_path / "long")
    assert not (tmp_path / "long" / "private" / granted.FILE).exists()


def test_words_of_the_objects():
    result = solve(WIDE, people(np.random.default_rng(3)), seed=1)
    market, board = result.billboard.header.market, result.billboard
    assert repr(market) == "Market('market', 3 resources, 200 agents)"
    shown = {r.name for r in market.resources}
    for thing in (market, board, result):
        html = thing._repr_html_()
        assert all(f"<th>{name}</th>" in html for name in shown)
    assert "Not private" in board._repr_html_() and "do not publish" in result._repr_html_()
    for thing in (market, board, result, result.certificate):
        assert len(repr(thing)) < 120
    assert result.loads["West"] == result.loads[2] == result.curator.loads[2]
    assert result.prices.to_dict() == dict(zip(result.prices.names, result.prices, strict=True))
    assert result.prices["North"] == market.unit_price(0, board.final_prices[0])
    with pytest.raises(MarketError, match=r"there is no resource 'Nort'\nhint: .*North"):
        result.loads["Nort"]
    explained = explain(board, value=9.0, demand={"North": 1.0}, agent="p001")
    assert str(explained).startswith("NOT PRIVATE: this run was made with seeded noise")
    assert "How close it was" in explained._repr_html_() and len(repr(explained)) < 120


def test_names_are_escaped():
    market = WIDE.changed(names=["<b>", "South", "West"], name="<script>")
    assert "<b>" not in market._repr_html_() and "<script>" not in market._repr_html_()


def test_plot_draws_one_line_per_resource():
    import matplotlib

    matplotlib.use("Agg")
    result = solve(WIDE, people(np.random.default_rng(3)), seed=1)
    prices, loads = result.billboard.plot()
    rounds = [r for r in result.billboard.releases if r.step.query == "demand"]
    assert [line.get_label() for line in prices.lines] == ["North", "South", "West"]
    last = WIDE.unit_price(0, rounds[-1].step.prices[0])
    assert prices.lines[0].get_ydata()[-1] == last and len(loads.lines) == 4
    matplotlib.pyplot.close("all")
