"""Reading tables: what is accepted, and exactly what it means."""

from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse

from helpers import decode
from jdpack import Columns, Market
from jdpack.records import readers, tables
from jdpack.records.encode import encode


def a_market(**changes) -> Market:
    return Market(
        **{
            "supply": [65535.0 * 10, 65535.0 * 10],
            "max_demand": 65535.0,
            "max_value": 2.0**32 - 1,
            "agents": 3,
            "names": ["beds", "0.5 kg"],
        }
        | changes
    )


def read(market, source):
    return encode(market, tables.pieces(market, source))


def table(**changes) -> pa.Table:
    columns = {"id": [7, 8, 9], "value": [10, 20, 30], "beds": [1, 2, 3], "0.5 kg": [4.0, 5.0, 6.0]}
    return pa.table(columns | changes)


CODES = [[(10, (1, 4))], [(20, (2, 5))], [(30, (3, 6))]]


def write(folder, name, text):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# --- ids ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.dictionary(pa.int8(), pa.int64())]
)
def test_whole_numbers_are_ids(kind):
    ids = pa.array([7, 8, 9])
    ids = ids.dictionary_encode() if pa.types.is_dictionary(kind) else ids.cast(kind)
    agents = read(a_market(), table(id=ids))
    assert agents.ids.type == pa.int64() and agents.ids.to_pylist() == [7, 8, 9]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["wide", "long"])
def test_texts_are_ids(kind, layout):
    texts = ["", "é 漢字", "a" * 300]
    ids = pa.array(texts, pa.string()).cast(kind)
    if layout == "wide":
        agents = read(a_market(), table(id=ids))
    else:
        columns = {"id": ids, "value": [1, 2, 3], "resource": ["beds"] * 3, "amount": [1, 1, 1]}
        agents = read(a_market(columns=Columns(layout="long")), pa.table(columns))
    assert agents.ids.to_pylist() == texts


@pytest.mark.parametrize(
    "ids",
    [
        ["a", "b", "c"],
        np.array(["a", "b", "c"]),
        np.array(["a", "b", "c"], dtype=object),
        pd.Series(["a", "b", "c"]),
        pd.concat([pd.Series(["a"]), pd.Series(["b", "c"])]),
        pd.Series(["a", "b", "c"], dtype="category"),
        pl.Series(["a", "b", "c"]),
        pa.array(["a", "b", "c"]),
        pa.chunked_array([["a"], ["b", "c"]]),
    ],
    ids=lambda ids: type(ids).__module__,
)
def test_ids_beside_arrays_may_come_from_anywhere(ids):
    batches = tables.array_pieces(a_market(), [10, 20, 30], [[1, 4], [2, 5], [3, 6]], ids)
    agents = encode(a_market(), batches)
    assert agents.ids.to_pylist() == ["a", "b", "c"] and decode(agents) == CODES


def test_without_ids_agents_are_numbered():
    agents = encode(a_market(), tables.array_pieces(a_market(), [10, 20, 30], np.ones((3, 2))))
    assert agents.ids is None and agents.count == 3


# --- tables in memory ---------------------------------------------------------------------


def test_the_row_numbers_of_pandas_are_no_column():
    frame = table().to_pandas()
    moved = pd.concat([frame[1:], frame[:1]])  # an index of 1, 2, 0
    assert read(a_market(), moved).ids.to_pylist() == [8, 9, 7]


def test_a_named_index_of_pandas_is_a_column():
    agents = read(a_market(), table().to_pandas().set_index("id"))
    assert agents.ids.to_pylist() == [7, 8, 9] and decode(agents) == CODES


@pytest.mark.parametrize("kind", [dict, pl.DataFrame, pd.DataFrame])
def test_other_tables(kind):
    assert decode(read(a_market(), kind(table().to_pydict()))) == CODES


def test_columns_may_stand_in_any_order():
    assert decode(read(a_market(), table().select(["0.5 kg", "value", "id", "beds"]))) == CODES


def test_decimals_and_chunks():
    decimals = pa.chunked_array([[Decimal("10.00")], [Decimal("20.00"), Decimal("30.00")]])
    assert decode(read(a_market(), table(value=decimals))) == CODES


def test_repeated_entries_of_a_sparse_matrix_add_up():
    numbers, where = [4.0, 1.0, 1.0, 5.0, 1.0, 3.0, 6.0], [1, 0, 0, 1, 0, 0, 1]
    matrix = scipy.sparse.csr_matrix((numbers, where, [0, 2, 5, 7]), shape=(3, 2))
    assert not matrix.has_canonical_format
    batches = tables.array_pieces(a_market(), [10, 20, 30], matrix)
    assert decode(encode(a_market(), batches)) == CODES
    assert matrix.nnz == 7, "the caller's matrix is left alone"


@pytest.mark.parametrize("m", [2, 8], ids=["dense", "sparse"])
def test_an_amount_of_zero_is_no_demand(m):
    """It does not count towards the bundle size, even if it is stored."""
    names = ["beds", "0.5 kg", *"cdefgh"][:m]
    market = a_market(supply=[655350.0] * m, names=names, bundle_size=1, agents=1)
    matrix = scipy.sparse.csr_matrix(([0.0, 4.0], [0, 1], [0, 2]), shape=(1, m))
    assert matrix.nnz == 2
    expected = [[(10, (0, 4, *[0] * (m - 2)))]]
    assert decode(encode(market, tables.array_pieces(market, [10], matrix))) == expected
    assert decode(encode(market, tables.array_pieces(market, [10], matrix.toarray()))) == expected
    columns = {"id": [1, 1], "value": [10, 10], "resource": names[:2], "amount": [0, 4]}
    market = a_market(
        supply=[655350.0] * m, names=names, bundle_size=1, agents=1, columns=Columns(layout="long")
    )
    assert decode(read(market, pa.table(columns))) == expected


@pytest.mark.parametrize("kind", [np.asarray, np.asfortranarray, scipy.sparse.csr_matrix])
def test_pieces_of_arrays_are_no_copies(kind):
    market, values = a_market(agents=9), np.arange(9.0)
    demands = kind(np.arange(18.0).reshape(9, 2))
    pieces = tables.array_pieces(market, values, demands, rows=4)
    assert [(piece.first, len(piece.values)) for piece in pieces] == [(0, 4), (4, 4), (8, 1)]
    for piece in pieces:
        assert np.shares_memory(piece.values, values)
        own, whole = piece.demands, demands
        if kind is scipy.sparse.csr_matrix:
            assert np.shares_memory(own.indices, whole.indices)
            own, whole = own.data, whole.data
        assert np.shares_memory(own, whole)
    expected = [[(i, (2 * i, 2 * i + 1))] for i in range(9)]
    assert decode(encode(market, pieces)) == expected


def test_one_resource_may_be_a_vector():
    market = a_market(supply=[655350.0], names=["beds"])
    found = decode(encode(market, tables.array_pieces(market, [10, 20, 30], [1, 2, 3])))
    assert found == [[(10, (1,))], [(20, (2,))], [(30, (3,))]]


# --- CSV: nothing is guessed --------------------------------------------------------------

HEAD = "id,value,beds,0.5 kg\n"


def test_the_id_of_a_csv_row_is_its_text(tmp_path):
    path = write(tmp_path, "a.csv", HEAD + '007,10,1,4\n7,20,2,5\n"NA",30,3,6\n')
    agents = read(a_market(), path)
    assert agents.ids.to_pylist() == ["007", "7", "NA"] and decode(agents) == CODES


def test_types_do_not_depend_on_the_first_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_CSV_BYTES", 100)
    rows = [f"{i},{i},0,0" for i in range(200)] + ["last one,0.5,0.25,1e2"]
    agents = read(a_market(agents=201), write(tmp_path, "a.csv", HEAD + "\n".join(rows)))
    assert agents.ids[0].as_py() == "0" and agents.ids[200].as_py() == "last one"
    assert decode(agents)[200] == [(0, (1, 100))]


def test_ignored_columns_may_hold_anything(tmp_path):
    market = a_market(columns=Columns(ignore=("note", "absent")))
    text = b"id,note,value,beds,0.5 kg\na,1,10,1,4\nb,\xff,20,2,5\nc,,30,3,6\n"
    assert decode(read(market, write(tmp_path, "a.csv", text))) == CODES
    assert decode(read(market, table(note=[None, None, None]))) == CODES
    pyarrow.parquet.write_table(table(note=[{"a": 1}] * 3), tmp_path / "a.parquet")
    assert decode(read(market, tmp_path / "a.parquet")) == CODES


def test_a_byte_order_mark_and_windows_lines(tmp_path):
    text = "\ufeff" + (HEAD + "a,10,1,4\nb,20,2,5\nc,30,3,6\n").replace("\n", "\r\n")
    assert decode(read(a_market(), write(tmp_path, "a.csv", text))) == CODES


# --- files --------------------------------------------------------------------------------


def test_a_folder_holds_parquet_and_csv_in_the_order_of_names(tmp_path):
    texts = table(id=["x", "y", "z"])
    pyarrow.parquet.write_table(texts.slice(0, 1), tmp_path / "1.parquet")
    pyarrow.csv.write_csv(texts.slice(1, 1), tmp_path / "2.CSV")
    pyarrow.parquet.write_table(texts.slice(2, 1), tmp_path / "3.pq")
    write(tmp_path, "README.txt", "not agents")
    agents = read(a_market(), tmp_path)
    assert agents.ids.to_pylist() == ["x", "y", "z"] and decode(agents) == CODES


def test_a_file_named_like_a_pattern(tmp_path):
    pyarrow.parquet.write_table(table(), tmp_path / "agents[1].parquet")
    assert decode(read(a_market(), tmp_path / "agents[1].parquet")) == CODES


def test_an_empty_piece_among_files(tmp_path):
    for layout, columns in [("wide", Columns()), ("long", Columns(layout="long"))]:
        folder = tmp_path / layout
        folder.mkdir()
        whole = table()
        if layout == "long":
            whole = pa.table(
                {"id": [7, 8], "value": [1, 2], "resource": ["beds", "beds"], "amount": [3, 4]}
            )
        for name, piece in enumerate([whole.slice(0, 0), whole.slice(0, 1), whole.slice(1)]):
            pyarrow.parquet.write_table(piece, folder / f"{name}.parquet")
        market = a_market(columns=columns, agents=whole.num_rows)
        assert read(market, folder).count == whole.num_rows


# --- long tables --------------------------------------------------------------------------


def long_market(**changes) -> Market:
    return a_market(columns=Columns(layout="long"), **changes)


def test_an_option_that_demands_nothing(tmp_path):
    text = "id,value,resource,amount\na,10,,\nb,20,beds,2\nb,20,0.5 kg,5\nc,30,beds,0\n"
    expected = [[(10, (0, 0))], [(20, (2, 5))], [(30, (0, 0))]]
    assert decode(read(long_market(), write(tmp_path, "a.csv", text))) == expected
    nothing = {"id": [1, 2, 3], "value": [1, 2, 3], "resource": [None] * 3, "amount": [None] * 3}
    assert decode(read(long_market(), pa.table(nothing))) == [[(v, (0, 0))] for v in (1, 2, 3)]


@pytest.mark.parametrize("kind", ["string", "category", "object"])
def test_options_go_on_over_batches_and_files(tmp_path, kind):
    """Wherever the table is cut, an agent's options stay whole."""
    rows = [
        ("a", "x", 10, "beds", 1),
        ("a", "x", 10, "0.5 kg", 2),
        ("a", "y", 11, "beds", 3),
        ("b", "y", 12, "beds", 4),
        ("b", "y", 12, "0.5 kg", 5),
    ]
    frame = pd.DataFrame(rows, columns=["id", "option", "value", "resource", "amount"])
    frame = frame.astype({"id": kind, "option": kind, "resource": kind})
    market = long_market(agents=2, options=2)
    expected = [[(10, (1, 2)), (11, (3, 0))], [(12, (4, 5))]]
    assert decode(read(market, frame)) == expected
    for cut in range(1, 5):
        folder = tmp_path / str(cut)
        folder.mkdir()
        frame[:cut].to_parquet(folder / "1.parquet")
        frame[cut:].to_parquet(folder / "2.parquet")
        agents = read(market, folder)
        assert decode(agents) == expected and agents.count == 2


def test_two_agents_may_name_their_options_alike_and_in_any_order():
    columns = {
        "id": [1, 1, 2, 2],
        "option": ["x", "y", "y", "x"],
        "value": [1, 2, 3, 4],
        "resource": ["beds"] * 4,
        "amount": [5, 6, 7, 8],
    }
    agents = read(long_market(agents=2, options=2), pa.table(columns))
    assert decode(agents) == [[(1, (5, 0)), (2, (6, 0))], [(3, (7, 0)), (4, (8, 0))]]
    assert agents.numbers().tolist() == [0, 0, 1, 1]
    (part,) = agents.parts
    assert part.option_numbers().tolist() == [1, 2, 1, 2]


def test_resources_may_be_numbers():
    market = long_market(names=["1", "2"])
    columns = {"id": [1, 2, 3], "value": [1, 2, 3], "resource": [1, 2, 1], "amount": [5, 6, 7]}
    assert decode(read(market, pa.table(columns))) == [
        [(1, (5, 0))],
        [(2, (0, 6))],
        [(3, (7, 0))],
    ]


# --- clamping -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["wide", "long", "arrays", "sparse arrays"])
@pytest.mark.parametrize("bundle_size", [1, 2], ids=["sparse", "dense"])
def test_clamped_numbers_stand_at_the_bound_and_are_counted(layout, bundle_size):
    supply = [655350.0] * (8 if bundle_size == 1 else 2)
    names = ["beds", "0.5 kg", *"cdefgh"][: len(supply)]
    market = a_market(supply=supply, names=names, bundle_size=bundle_size)
    values, beds = [10.0, 2.0**33, 30.0], [65536.0, 2.0, 1e300]
    amounts = np.zeros((3, len(supply)))
    amounts[:, 0] = beds
    if layout == "wide":
        columns = {n: amounts[:, j] for j, n in enumerate(names)}
        batches = tables.pieces(market, pa.table({"id": [1, 2, 3], "value": values} | columns))
    elif layout == "long":
        market = a_market(
            supply=supply, names=names, bundle_size=bundle_size, columns=Columns(layout="long")
        )
        columns = {"id": [1, 2, 3], "value": values, "resource": ["beds"] * 3, "amount": beds}
        batches = tables.pieces(market, pa.table(columns))
    else:
        matrix = scipy.sparse.csr_matrix(amounts) if layout == "sparse arrays" else amounts
        batches = tables.array_pieces(market, values, matrix)
    agents = encode(market, batches, clamp=True)
    found = [(value, codes[0]) for ((value, codes),) in decode(agents)]
    assert found == [(10, 65535), (2**32 - 1, 2), (30, 65535)]
    assert agents.clamped == 3
