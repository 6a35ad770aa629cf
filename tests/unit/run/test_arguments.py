"""Bad arguments of `solve` and `allocate`: refused before anything is spent or written."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse

from helpers import check_error, finished_board, forbid_drawing
from jdpack import (
    AgentsError,
    BillboardError,
    BudgetError,
    Columns,
    JdpackError,
    Market,
    MarketError,
    MwuAdaptive,
    allocate,
    solve,
)
from jdpack.policies.newton import Newton
from jdpack.records import readers, tables
from jdpack.records.encode import encode


@pytest.fixture(autouse=True)
def _nothing_is_drawn(monkeypatch):
    forbid_drawing(monkeypatch)


# --- the budget and the options of a run --------------------------------------------------


@pytest.mark.parametrize("epsilon", [0, 0.0, -1.0, np.nan, -np.inf, "1", True, [1.0], 1e9])
def test_epsilon(epsilon, tmp_path):
    refused(BudgetError, ["epsilon", repr(epsilon)], tmp_path, epsilon=epsilon)


@pytest.mark.parametrize("delta", [0, 0.0, 1.0, 1, -1e-9, 2.0, np.nan, np.inf, "1e-6", False])
def test_delta(delta, tmp_path):
    refused(BudgetError, ["delta", repr(delta)], tmp_path, delta=delta)


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True])
def test_seed(seed, tmp_path):
    refused(JdpackError, ["seed", repr(seed)], tmp_path, seed=seed)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
def test_threads(threads, tmp_path):
    refused(JdpackError, ["threads", repr(threads)], tmp_path, threads=threads)


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.0, np.nan, np.inf, "0.1"])
def test_alpha(alpha):
    with pytest.raises(JdpackError) as caught:
        MwuAdaptive(alpha=alpha)
    check_error(caught.value, ["alpha", repr(alpha)])


def refused(error, says, folder, **options):
    given = {"epsilon": 1.0, "delta": 1e-6} | options
    data = np.ones(3), np.ones((3, 1))
    with pytest.raises(error) as caught:
        solve(a_market(), values=data[0], demands=data[1], output=folder / "out", **given)
    check_error(caught.value, says)
    assert not os.listdir(folder)


def a_market(**changes) -> Market:
    return Market(
        **{"supply": [500.0], "max_demand": 2.0, "max_value": 10.0, "agents": 3} | changes
    )


# --- arrays -------------------------------------------------------------------------------

TABLE = pa.table({"id": [1, 2, 3], "value": [1.0] * 3, "resource 1": [1.0] * 3})
GOOD = {"values": np.ones(3), "demands": np.ones((3, 1))}
OUT_OF_RANGE = scipy.sparse.csr_matrix(([1.0] * 3, [0, 5, 0], [0, 1, 2, 3]), shape=(3, 1))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"demands": np.ones((2, 1))}, "(2, 1), not (3, 1)"),
        ({"demands": np.ones((3, 2))}, "(3, 2), not (3, 1)"),
        ({"demands": scipy.sparse.csr_matrix((3, 2))}, "(3, 2), not (3, 1)"),
        ({"demands": [[1.0], [1.0, 2.0], [1.0]]}, "demands cannot be read"),
        ({"demands": np.full((3, 1), "x")}, "demands are of type <U1"),
        ({"demands": scipy.sparse.csr_matrix(np.ones((3, 1), complex))}, "type complex128"),
        ({"demands": OUT_OF_RANGE}, "name column 5"),
        ({"demands": np.ma.masked_values([[1.0], [2.0], [3.0]], 2.0)}, "masked"),
        ({"values": np.ones(3, bool)}, "values are of type bool"),
        ({"values": np.ones((3, 1))}, "shape (3, 1)"),
        ({"values": 3.0}, "shape ()"),
        ({"values": [1.0, None, 2.0]}, "values are of type object"),
        ({"values": np.array(["2024-01-01"] * 3, "M8[D]")}, "type datetime64"),
        ({"values": [1.0, np.nan, 2.0]}, "agent 1: value nan"),
        ({"values": []}, "(3, 1), not (0, 1)"),
        ({"values": [], "demands": np.ones((0, 1))}, "no agents"),
        ({"ids": [1, 2]}, "2 ids for 3 values"),
        ({"ids": [1, "a", 2]}, "ids cannot be read"),
        ({"ids": 5}, "ids cannot be read"),
        ({"ids": [1, None, 2]}, "row 2 has no id"),
        ({"ids": [1, 2, 1]}, "id 1 belongs to"),
        ({"ids": [True, False, True]}, "ids are of type bool"),
        ({"ids": np.array([1.0, 2.0, 3.0])}, "ids are of type double"),
        ({"values": None}, "values and demands go together"),
        ({"demands": None}, "values and demands go together"),
        ({"agents": TABLE}, "either agents, or values"),
        ({"values": None, "demands": None}, "either agents, or values"),
        ({"values": None, "demands": None, "agents": TABLE, "ids": [1, 2, 3]}, "ids go with"),
        ({"values": None, "demands": None, "agents": 5}, "from a int"),
        ({"values": None, "demands": None, "agents": "x" * 3000}, "File name too long"),
    ],
    ids=lambda given: ", ".join(given) if isinstance(given, dict) else "",
)
def test_arrays(given, says, tmp_path):
    with pytest.raises(AgentsError) as caught:
        solve(a_market(), **GOOD | given, epsilon=1.0, delta=1e-6, output=tmp_path / "out")
    assert says in caught.value.message and "\n" not in caught.value.message
    assert not os.listdir(tmp_path)


def test_several_options_need_ids(tmp_path):
    with pytest.raises(AgentsError, match="need ids"):
        solve(a_market(options=2), **GOOD, epsilon=1.0, delta=1e-6, output=tmp_path / "out")
    assert not os.listdir(tmp_path)


# --- the right row ------------------------------------------------------------------------

N, BAD = 5000, 4321


def many(bad_column=None, bad=None):
    columns = {"id": np.arange(N), "value": np.ones(N), "beds": np.ones(N)}
    table = pa.table(columns)
    if bad_column is not None:
        items = table[bad_column].to_pylist()
        items[BAD] = bad
        table = table.set_column(table.schema.get_field_index(bad_column), bad_column, [items])
    return table


def many_long(table):
    names = {"id": "id", "value": "value", "beds": "amount"}
    return table.rename_columns(names).append_column("resource", pa.array(["beds"] * N))


@pytest.mark.parametrize("layout", ["wide", "long"])
@pytest.mark.parametrize("kind", ["table", "parquet", "files", "csv"])
@pytest.mark.parametrize(
    ("column", "bad", "says"),
    [
        ("id", None, f"row {BAD + 1} has no id"),
        ("value", float("nan"), f"{BAD}: value nan is not a number"),
        ("value", None, f"{BAD}: 'value' is missing"),
        ("beds", 7.5, f"{BAD}: demand for 'beds' 7.5 is above"),
        ("beds", -1.0, f"{BAD}: demand for 'beds' -1.0 is negative"),
    ],
)
def test_the_row_that_is_quoted_is_the_right_one(
    layout, kind, column, bad, says, tmp_path, monkeypatch
):
    monkeypatch.setattr(tables, "_CELLS", 1)  # batches of 1,024 rows
    monkeypatch.setattr(readers, "_CSV_BYTES", 5000)
    table = many(column, bad)
    table = many_long(table) if layout == "long" else table
    source = {"table": lambda: table, "parquet": parquet, "files": some_files, "csv": one_csv}[kind]
    source = source() if kind == "table" else source(table, tmp_path)
    market = a_market(names=["beds"], agents=N, columns=Columns(layout=layout))
    with pytest.raises(AgentsError) as caught:
        solve(market, source, epsilon=1.0, delta=1e-6)
    if kind == "csv":
        says = says.replace(f"{BAD}:", f"'{BAD}':")
    if column == "id" and kind != "table":  # rows are counted in their own file
        row, name = (
            (BAD % 1900, f"{BAD - BAD % 1900:05}.parquet")
            if kind == "files"
            else (BAD, f"a.{kind}")
        )
        says = f"row {row + 1} of {str(tmp_path / name)!r} has no id"
    assert says in caught.value.message


def parquet(table, folder):
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=700)
    return folder / "a.parquet"


def some_files(table, folder):
    for start in range(0, N, 1900):
        piece = table.slice(start, 1900)
        pyarrow.parquet.write_table(piece, folder / f"{start:05}.parquet", row_group_size=700)
    return folder


def one_csv(table, folder):
    pyarrow.csv.write_csv(table, folder / "a.csv")
    return folder / "a.csv"


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_matrix])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_agent_of_an_array_is_the_right_one(kind, sparse, monkeypatch):
    monkeypatch.setattr(tables, "_CELLS", 1)
    m = 8 if sparse else 1
    market = a_market(supply=[500.0] * m, agents=N, bundle_size=1)
    demands = np.zeros((N, m))
    demands[np.arange(N), np.arange(N) % m] = 1.0
    demands[BAD, BAD % m] = -2.0
    name = market.resources[BAD % m].name
    with pytest.raises(AgentsError, match=f"^agent {BAD}: demand for '{name}' -2.0 is negative"):
        solve(market, values=np.ones(N), demands=kind(demands), epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize("kind", [int, str])
@pytest.mark.parametrize("places", [(0, 1), (0, N - 1), (1023, 1024), (2000, 2001), (1024, 3000)])
def test_a_repeated_id_is_found_wherever_it_stands(kind, places, monkeypatch):
    """In order or not, in one batch or in two."""
    monkeypatch.setattr(tables, "_CELLS", 1)
    ids = list(map(kind, range(N)))
    ids[places[1]] = ids[places[0]]
    arrays = {"values": np.ones(N), "demands": np.ones((N, 1)), "ids": ids}
    for options, count in [(1, N), (2, len(set(ids)))]:
        apart = options == 1 or places[1] > places[0] + 1
        market = a_market(agents=count + (options == 2 and apart), options=options)
        error, says = AgentsError, f"^id {ids[places[0]]!r} belongs to more than one agent"
        if not apart:  # two rows that stand together are two options
            error, says = AssertionError, "something was drawn"
        with pytest.raises(error, match=says):
            solve(market, **arrays, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize("start", [1021, 1022, 1023, 1024])
def test_options_are_counted_over_batches(start, monkeypatch):
    """Batches end after 1,024 rows: in the agent's first option, its second, or around it."""
    monkeypatch.setattr(tables, "_CELLS", 1)
    ids = [*range(start), 7777, 7777, 7777]
    arrays = {"values": np.ones(len(ids)), "demands": np.ones((len(ids), 1)), "ids": ids}
    market = a_market(options=2, agents=start + 1)
    with pytest.raises(AgentsError, match=r"^agent 7777 has more than 2 options"):
        solve(market, **arrays, epsilon=1.0, delta=1e-6)
    with pytest.raises(AssertionError, match="something was drawn"):  # two are fine
        solve(market, **{k: v[:-1] for k, v in arrays.items()}, epsilon=1.0, delta=1e-6)


# --- the agent's own function -------------------------------------------------------------


def test_an_unfinished_billboard():
    board = finished_board(a_market(), [((1,), 1)], 2**24)
    board.seed = None
    with pytest.raises(BillboardError, match="not finished"):
        allocate(board, value=1.0, demand=[1.0], agent=1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"value": "much"}, "'much'"),
        ({"value": None}, "None"),
        ({"value": np.nan}, "value nan"),
        ({"value": -1.0}, "value -1.0"),
        ({"value": True}, "value True"),
        ({"demand": [np.inf]}, "inf"),
        ({"demand": [1.0, 2.0]}, "2 amounts"),
        ({"demand": 3j}, "3j"),
        ({"demand": {"bed": 1.0}}, "no resource 'bed'"),
        ({"demand": ["1"]}, "'1' is not a number"),
        ({"value": [1.0, 2.0], "demand": [[1.0], [1.0]]}, "not 2"),
        ({"value": [1.0, 2.0], "demand": [[1.0]]}, "2 values but 1 demands"),
        ({"value": [1.0], "demand": 3}, "3"),
        ({"agent": 1.5}, "1.5"),
        ({"agent": None}, "None"),
        ({"agent": True}, "True"),
    ],
    ids=str,
)
def test_an_agent_that_asks_in_a_wrong_way(given, says):
    board = finished_board(a_market(), [((1,), 1)], 2**24)
    good = {"value": 1.0, "demand": [1.0], "agent": 1}
    assert allocate(board, **good).scaled == (1.0,)
    with pytest.raises(AgentsError) as caught:
        allocate(board, **good | given)
    check_error(caught.value, [says])


def test_an_agent_may_ask_in_numbers_of_any_kind():
    board = finished_board(a_market(options=2), [((2**20,), 1)], 2**24)
    plain = allocate(board, value=3.0, demand=[1.0], agent=17)
    for value in [3, np.float32(3), np.int64(3), np.float64(3)]:
        for agent in [17, np.int64(17), "17"]:
            assert allocate(board, value=value, demand=np.ones(1), agent=agent) == plain
    two = allocate(board, value=[3.0, 4.0], demand=[[1.0], [2.0]], agent=17)
    assert allocate(board, value=np.array([3, 4]), demand=np.array([[1], [2]]), agent=17) == two


def test_agents_that_may_leave_need_ids_where_coins_decide(tmp_path):
    """Otherwise the others' coins, and what they get, would reveal that somebody left."""
    values, demands = np.full(50, 0.5), np.full((50, 1), 0.5)
    market = {"supply": [10.0], "max_demand": 1.0, "max_value": 1.0, "agents": 60}
    coins = Market(**market, neighbours="add-remove")
    with pytest.raises(AgentsError, match="need their own ids"):
        solve(coins, values=values, demands=demands, epsilon=1.0, delta=1e-6)
    no_coins = Market(**market, neighbours="add-remove", divisible=True)
    assert encode(coins, tables.array_pieces(coins, values, demands, np.arange(50))).count == 50
    assert encode(no_coins, tables.array_pieces(no_coins, values, demands)).count == 50


class Mine(MwuAdaptive):
    name = "mine"


class Other(Newton):
    name = "other"


@pytest.mark.parametrize("policy", [3, Mine(0.1), Other(), Newton])
def test_a_policy_that_no_billboard_can_name_is_refused_before_the_run(policy):
    market = Market(supply=[10.0], max_demand=1.0, max_value=1.0, agents=3)
    records = {"values": np.ones(3), "demands": np.ones((3, 1))}
    with pytest.raises(MarketError, match="not one of jdpack's"):
        solve(market, **records, epsilon=1.0, delta=1e-6, policy=policy)
    with pytest.raises(MarketError, match="clamp must be true or false, not 'no'"):
        solve(market, **records, epsilon=1.0, delta=1e-6, clamp="no")


def test_names_that_cannot_be_written_are_refused_before_the_run():
    with pytest.raises(MarketError, match="cannot be written"):
        Market(name="\ud800", supply=[10.0], max_demand=1.0, max_value=1.0, agents=3)
    market = Market(supply=[10.0], max_demand=1.0, max_value=1.0, agents=3)
    board = finished_board(market, [((0,), 1)], 1)
    with pytest.raises(AgentsError, match="is not text"):
        allocate(board, value=1.0, demand=[0.0], agent="\udcff")
