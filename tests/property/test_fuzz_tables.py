"""Odd tables, in memory and in files: refused in one sentence, or encoded unchanged."""

from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import LONG, check_error, decode
from jdpack import AgentsError, Market
from jdpack.records.encode import encode
from jdpack.records.tables import pieces

WIDE_MARKET, LONG_MARKET = (
    Market(
        supply=[500.0, 900.0],
        max_demand=3.0,
        max_value=10.0,
        agents=3,
        names=["beds", "nurses"],
        **more,
    )
    for more in ({}, {"columns": LONG})
)
WIDE = {
    "id": pa.array(["a", "b", "c"]),
    "value": pa.array([1.0, 2.0, 3.0]),
    "beds": pa.array([1.0, 0.0, 3.0]),
    "nurses": pa.array([0.0, 2.0, 3.0]),
}
PAIRS = {
    "id": pa.array(["a", "b", "c"]),
    "value": pa.array([1.0, 2.0, 3.0]),
    "resource": pa.array(["beds", "nurses", "beds"]),
    "amount": pa.array([1.0, 2.0, 3.0]),
}

TYPES = [
    *(pa.int8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
    *(pa.null(), pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.date32()),
    *(pa.timestamp("ns"), pa.timestamp("s", "UTC"), pa.duration("s"), pa.decimal128(20, 3)),
    *(pa.decimal256(70, 0), pa.list_(pa.float64()), pa.struct([("a", pa.int64())])),
    *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.int64())),
]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.sampled_from([0.0, -0.0, 3.0, 3.1, 5e-324, -5e-324, 2**63]),
    st.text(max_size=5),
    st.sampled_from(["x" * 10_000, "beds", "a", "\x00", "\x1b[2J"]),
    st.binary(max_size=3),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(Decimal),
    st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)),
    st.lists(st.floats(), max_size=2),
)


@st.composite
def columns(draw, rows):
    kind, values = draw(st.sampled_from(TYPES)), []
    for _ in range(rows):
        value = draw(VALUES)
        try:
            pa.array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
            value = None
        values.append(value)
    return pa.array(values, kind)


@st.composite
def tables(draw, right):
    names, arrays = list(right), list(right.values())
    for _ in range(draw(st.integers(0, 2))):
        arrays[draw(st.integers(0, len(names) - 1))] = draw(columns(3))
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(names) - 1))
        names.append(draw(st.sampled_from([names[at], "note", "\x1b[2J", ""])))
        arrays.append(arrays[at])
    if draw(st.integers(0, 9)) == 0:
        del names[-1], arrays[-1]
    return pa.Table.from_arrays(arrays, names)


def codes(market, source):
    """The codes of all agents, or the sentence that refuses them."""
    try:
        return decode(encode(market, pieces(market, source)))
    except AgentsError as error:
        check_error(error, [], longest=1300)  # it may quote 10**400
        return error


def check(market, table, folder):
    held = codes(market, table)
    path = folder / "agents.parquet"
    try:
        pyarrow.parquet.write_table(table, path, row_group_size=2)
    except pa.ArrowException:
        return
    read = codes(market, path)
    # A file is refused or accepted just like the table, except that Arrow's newer string types may
    # come back as other types.
    assert isinstance(held, AgentsError) == isinstance(read, AgentsError)
    if not isinstance(held, AgentsError):
        assert held == read


@settings(max_examples=200)
@given(table=tables(WIDE))
def test_odd_tables(table, tmp_path_factory):
    check(WIDE_MARKET, table, tmp_path_factory.getbasetemp())


@settings(max_examples=150)
@given(table=tables(PAIRS))
def test_odd_tables_of_pairs(table, tmp_path_factory):
    check(LONG_MARKET, table, tmp_path_factory.getbasetemp())


@settings(max_examples=150)
@given(data=st.text(st.sampled_from('abc,123.5-"\n\r\0e \x1b'), max_size=40), head=st.booleans())
def test_any_text_as_csv(data, head, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "agents.csv"
    path.write_bytes((("id,value,beds,nurses\n" if head else "") + data).encode())
    codes(WIDE_MARKET, path)


@settings(max_examples=150)
@given(st.data())
def test_bytes_of_parquet_changed(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "agents.parquet"
    pyarrow.parquet.write_table(pa.table(WIDE), path)
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole)
    codes(WIDE_MARKET, path)
