"""Files of agents: where they may be, what their paths mean, and what happens if they change."""

import os
import time

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet
import pytest
import scipy.sparse
from moto.server import ThreadedMotoServer

from jdpack import AgentsError, Columns, Market, solve
from jdpack.records import locate, readers, tables
from jdpack.records.encode import encode
from jdpack.records.tables import OptionRows
from jdpack.records.threads import Threads


def a_market(**changes) -> Market:
    given = {"supply": [10.0], "max_demand": 2.0, "max_value": 9.0, "agents": 4, "names": ["beds"]}
    return Market(**given | changes)


def table(*ids, **changes) -> pa.Table:
    ones = [1.0] * len(ids)
    return pa.table({"id": list(ids), "value": ones, "beds": ones} | changes)


def put(path, *ids, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = pyarrow.csv.write_csv if path.suffix == ".csv" else pyarrow.parquet.write_table
    kind(table(*ids, **changes), path)
    return path


def ids_of(source, market=None, rows=1) -> list:
    market = market if market is not None else a_market()
    return [
        id
        for piece in readers.file_pieces(market, source, rows)
        for batch in tables.read(market, piece)
        for id in batch.ids.to_pylist()
    ]


def refusal(source, market=None) -> AgentsError:
    with pytest.raises(AgentsError) as caught:
        ids_of(source, market)
    assert "\n" not in caught.value.message
    return caught.value


# --- where they may be --------------------------------------------------------------------


@pytest.fixture
def several(tmp_path):
    """Files in two folders, and some that must be skipped."""
    put(tmp_path / "b" / "2.csv", "c")
    put(tmp_path / "a" / "1.parquet", "a")
    put(tmp_path / "a" / "2.parquet", "b")
    put(tmp_path / "a" / "_hidden.parquet", "x")
    put(tmp_path / "a" / ".hidden.parquet", "x")
    put(tmp_path / "a" / "_hidden" / "1.parquet", "x")
    put(tmp_path / "a" / "old" / "1.parquet", "d")
    (tmp_path / "a" / "README").write_text("not agents")
    return tmp_path


def test_a_source_may_be_a_path_a_folder_a_pattern_or_a_list(several, monkeypatch):
    assert ids_of(several / "a" / "1.parquet") == ["a"]
    assert ids_of(several / "a") == ["a", "b"]
    assert ids_of(f"{several}/a/*.parquet") == ["a", "b"]
    assert ids_of(f"{several}/a/[2-9].parquet") == ["b"]
    assert ids_of(f"{several}/a/?.parquet") == ["a", "b"]
    assert ids_of(f"{several}/*/2.*") == ["b", "c"]
    assert ids_of(f"{several}/**/1.parquet") == ["a", "d"]
    assert ids_of(f"{several}/?") == ["a", "b", "c"], "the folders that a pattern names"
    assert ids_of(f"{several}/a/_hidden*.parquet") == ["x"], "it is asked for"
    assert ids_of([several / "b" / "2.csv", f"{several}/a/*.parquet"]) == ["c", "a", "b"]
    assert ids_of(f"file://{several}/a") == ids_of(f"file://{several}/a/?.parquet") == ["a", "b"]
    monkeypatch.chdir(several)
    assert ids_of("a") == ids_of("a/*.parquet") == ids_of("./b/../a") == ["a", "b"]


def test_a_relative_path_is_found_from_anywhere(several, monkeypatch):
    monkeypatch.chdir(several)
    market = a_market()
    (piece,) = readers.file_pieces(market, "a", 10)
    monkeypatch.chdir("/")
    assert [batch.ids.to_pylist() for batch in tables.read(market, piece)] == [["a"], ["b"]]


def test_what_has_no_agents_is_refused(several):
    for source in [
        several / "none",
        f"{several}/none/*",
        f"{several}/*.parquet",
        several,
        several / "a" / "old" / "none.parquet",
    ]:
        error = refusal(source)
        assert f"there are no agents at {str(source)!r}" in error.message and error.hint
    assert "empty list" in refusal([]).message
    error = refusal("nowhere://bucket/x")
    assert "'nowhere://bucket/x'" in error.message and "s3://" in error.hint
    assert "of an unknown kind" in refusal(f"{several}/a/*").message, "README"
    error = refusal("s3://key:secret@/x?endpoint_override=y")
    assert "secret" not in str(error)


def test_a_folder_that_may_not_be_read(several, monkeypatch):
    def fail(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(locate, "_list", fail)
    assert refusal(several).message == (
        f"cannot read agents at {str(several)!r}: Permission denied"
    )


# --- what their paths say -----------------------------------------------------------------


def test_folders_may_name_columns(tmp_path):
    """Sorted by path; an ignored key may have any value."""
    put(tmp_path / "region=south" / "day=1" / "x.parquet", "c")
    put(tmp_path / "region=north" / "day=10" / "x.csv", "a")
    put(tmp_path / "region=north" / "day=2" / "x.parquet", "b")
    put(tmp_path / "region=north" / "_day=3" / "x.parquet", "x")
    put(tmp_path / "region=north" / "other" / "x.parquet", "x")
    market = a_market(columns=Columns(ignore=("region", "day")))
    assert ids_of(tmp_path, market) == ["a", "b", "c"]
    assert ids_of(f"{tmp_path}/region=*", market) == ["a", "b", "c"]
    assert ids_of(f"{tmp_path}/region=north/*/x.*", market)[:2] == ["a", "b"]
    found = [dict(file.keys) for file in locate.find(tmp_path)]
    assert found[0] == {"region": "north", "day": 10} and found[2] == {"region": "south", "day": 1}
    assert "has a column 'region' that the market does not name" in refusal(tmp_path).message
    spelled_out = tmp_path / "region=north" / "day=2"
    assert ids_of(spelled_out) == ["b"], "what the user wrote is no column"


def test_a_key_is_a_number_only_if_all_its_values_are(tmp_path):
    for name in ["id=7", "id=007", "id=a%20b"]:
        path = put(tmp_path / name / "x.parquet", "x")
        pyarrow.parquet.write_table(table("x").drop(["id"]), path)
    assert ids_of(tmp_path) == ["007", "7", "a b"]
    assert ids_of(f"{tmp_path}/*=7") == [7]


def test_a_key_may_be_any_column_that_the_market_wants(tmp_path):
    for beds in (2, 1):
        path = put(tmp_path / f"beds={beds}" / "x.parquet", "x")
        pyarrow.parquet.write_table(table(f"wants {beds}").drop(["beds"]), path)
    market = a_market(agents=2)
    agents = encode(market, readers.file_pieces(market, tmp_path, 10))
    assert agents.ids.to_pylist() == ["wants 1", "wants 2"]
    one, two = agents.parts[0].codes[0, 0, :2].tolist()
    assert 0 < 2 * one - 1 <= two <= 2 * one
    put(tmp_path / "beds=1" / "y.parquet", "twice")
    assert "two columns named 'beds'" in refusal(tmp_path, market).message


def test_an_unknown_value_of_a_key_is_missing(tmp_path):
    path = put(tmp_path / f"id={locate._NULL}" / "x.parquet", "x")
    pyarrow.parquet.write_table(table("x").drop(["id"]), path)
    put(tmp_path / "id=5" / "x.parquet", "x")
    pyarrow.parquet.write_table(table("x").drop(["id"]), tmp_path / "id=5" / "x.parquet")
    market = a_market(agents=2)
    with pytest.raises(AgentsError, match=r"row 1 of .* has no id"):
        encode(market, readers.file_pieces(market, tmp_path, 10))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_agents_go_on_over_files_that_name_them(kind, tmp_path):
    """If ids are in the paths, the id before a piece is read from the path."""
    market = a_market(options=3)
    for part in ("1", "2"):
        for name in ("a", "b"):
            path = put(tmp_path / f"id={name}" / f"{part}.{kind}", "x")
            write = pyarrow.csv.write_csv if kind == "csv" else pyarrow.parquet.write_table
            write(table("x").drop(["id"]), path)
    pieces = readers.file_pieces(market, tmp_path, 1)
    found = [[batch.ids.to_pylist() for batch in tables.read(market, p)] for p in pieces]
    assert found == [[["a"], ["a"]], [], [["b"], ["b"]], []]


# --- files that change, and files that cannot be read -------------------------------------


def touch(path):
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def rewrite(path):
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes() + b"\n")
    os.utime(path, ns=times)


@pytest.mark.parametrize("change", [touch, rewrite, os.remove])
@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
@pytest.mark.parametrize("options", [1, 2])
def test_a_file_that_has_changed_is_noticed(change, name, options, tmp_path):
    path, market = put(tmp_path / name, "a", "b"), a_market(options=options)
    put(tmp_path / "b.csv", "c")
    pieces = readers.file_pieces(market, tmp_path, 1)
    change(path)
    read = [0, 1] if options == 2 else [0]  # the second piece also reads the row before it
    for piece in [pieces[i] for i in read]:
        with pytest.raises(AgentsError, match=f"{name}' has changed since the run began"):
            list(tables.read(market, piece))


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path):
    path, market = put(tmp_path / "a.parquet", *map(str, range(5000))), a_market(agents=5000)
    (piece,) = readers.file_pieces(market, path, 10**6)
    batches = tables.read(market, piece)
    next(batches)
    touch(path)
    with pytest.raises(AgentsError, match="has changed since the run began"):
        list(batches)


def test_a_damaged_row_group_is_an_error_of_its_own_piece(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(
        table(*range(4)), path, row_group_size=2, compression="none", use_dictionary=False
    )
    start = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 8] = b"\xff" * 8
    path.write_bytes(data)
    market = a_market()
    good, bad = readers.file_pieces(market, path, 1)
    assert [batch.rows for batch in tables.read(market, good)] == [2]
    with pytest.raises(AgentsError, match=r"cannot read '.*a.parquet' as Parquet"):
        list(tables.read(market, bad))


# --- the first bad record -----------------------------------------------------------------


def test_the_first_bad_record_is_reported_whatever_the_timing():
    def slow():
        time.sleep(0.2)
        yield OptionRows(np.array([1.0, -1.0]), pa.array(["a", "first"]), columns=[np.ones(2)])

    def fast():
        yield OptionRows(np.array([-2.0]), pa.array(["second"]), columns=[np.ones(1)])

    for _ in range(3):
        with pytest.raises(AgentsError, match=r"agent 'first': value -1.0 is negative"):
            encode(a_market(), [slow(), fast(), fast()], threads=Threads(2))


@pytest.mark.parametrize(
    "kind", [np.asfortranarray, np.asarray, scipy.sparse.csr_matrix], ids=["F", "C", "pairs"]
)
@pytest.mark.parametrize("m", [3, 9], ids=["dense", "sparse"])
def test_in_a_batch_too_it_is_the_first_row(kind, m):
    """Not the first column: a bad amount in row 1 comes before a bad value in row 2."""
    market = a_market(supply=[10.0] * m, bundle_size=1, names=None)
    values, demands = np.array([1.0, 1.0, -1.0, 1.0]), np.zeros((4, m))
    demands[1, 2], demands[2, 0], demands[3] = 5.0, -1.0, 1.0

    def cause() -> str:
        with pytest.raises(AgentsError) as caught:
            encode(market, tables.array_pieces(market, values, kind(demands)))
        return caught.value.message

    assert cause().startswith("agent 1: demand for 'resource 3' 5.0 is above")
    demands[1, 2] = 1.0
    assert cause().startswith("agent 2: value -1.0 is negative")
    values[2] = 1.0
    assert cause().startswith("agent 2: demand for 'resource 1' -1.0 is negative")
    demands[2, 0] = 1.0
    assert cause().startswith(f"agent 3 demands {m} resources")


def test_ids_of_two_kinds_in_two_pieces(tmp_path):
    put(tmp_path / "1.parquet", 1, 2)
    put(tmp_path / "2.parquet", "3", "4")
    market = a_market()
    with pytest.raises(AgentsError, match="ids 1 and '3' mix numbers and texts"):
        encode(market, readers.file_pieces(market, tmp_path, 1))


def test_an_id_twice_is_found_also_behind_an_empty_file(tmp_path):
    (tmp_path / "0.csv").write_text("id,value,beds\n")
    put(tmp_path / "1.csv", "a", "b", "a", "c")
    market = a_market()
    with pytest.raises(AgentsError, match="id 'a' belongs to more than one agent"):
        encode(market, readers.file_pieces(market, tmp_path, 1))


# --- content ------------------------------------------------------------------------------


def test_the_fingerprint_is_of_content_names_and_order(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_HASHED", 100)
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        put(folder / "1.csv", *"abcdefghijklmnop")
        put(folder / "region=1" / "2.parquet", "q")
    whole = readers.fingerprint(one)
    assert whole == readers.fingerprint(two) == readers.fingerprint(one, Threads(1))
    touch(one / "1.csv")
    assert whole == readers.fingerprint(one)
    ordered = [[one / "1.csv", one / "region=1" / "2.parquet"]]
    ordered.append(ordered[0][::-1])
    seen = {whole, *map(readers.fingerprint, ordered)}
    os.rename(one / "1.csv", one / "3.csv")
    seen.add(readers.fingerprint(one))
    os.rename(one / "3.csv", one / "1.csv")
    os.rename(one / "region=1", one / "region=2")
    seen.add(readers.fingerprint(one))
    os.rename(one / "region=2", one / "region=1")
    assert whole == readers.fingerprint(one)
    data = (one / "1.csv").read_bytes()
    for at in (0, 99, 100, len(data) - 1):  # also in the second chunk, and the last byte
        (one / "1.csv").write_bytes(data[:at] + b"X" + data[at + 1 :])
        seen.add(readers.fingerprint(one))
    (one / "1.csv").write_bytes(data + b"\n")
    seen.add(readers.fingerprint(one))
    assert len(seen) == 3 + 2 + 4 + 1


# --- other machines -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucket():
    """A real S3 server, and addresses in it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{port}",
        region_name="us-east-1",
        aws_access_key_id="someone",
        aws_secret_access_key="secret",
    )
    client.create_bucket(Bucket="agents")
    query = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"

    def address(path):
        return f"s3://someone:secret@agents/{path}?{query}"

    def put_object(path, data):
        client.put_object(Bucket="agents", Key=path, Body=data)

    yield address, put_object
    server.stop()


def parquet_bytes(whole, **more):
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(whole, sink, **more)
    return sink.getvalue().to_pybytes()


def test_files_may_be_in_object_storage(bucket):
    address, put_object = bucket
    put_object("all/1.parquet", parquet_bytes(table("a", "b", "b"), row_group_size=1))
    put_object("all/region=3/2.csv", b"id,value,beds\nb,1,1\nc,1,1\n")
    put_object("all/region=3/_SUCCESS", b"")
    put_object("all/other/3.parquet", parquet_bytes(table("x")))
    market = a_market(options=3, agents=3, columns=Columns(ignore=("region",)))
    assert ids_of(address("all/1.parquet")) == ["a", "b", "b"]
    assert ids_of(address("all"), market) == ids_of(address("all/"), market) == list("abbbc")
    assert ids_of(address("all/*/2.csv"), market) == ["b", "c"]
    assert ids_of(address("**/3.parquet")) == ["x"]
    assert ids_of([address("all/other"), address("all/1.parquet")]) == ["x", "a", "b", "b"]
    agents = encode(market, readers.file_pieces(market, address("all"), 1), threads=Threads(2))
    assert agents.count == 3 and agents.ids.to_pylist() == list("abbbc")


def test_object_storage_that_lacks_something(bucket):
    address, put_object = bucket
    for error in [
        refusal(address("nothing/here.parquet")),
        refusal(address("nothing/*.parquet")),
        refusal(address("x.parquet").replace("@agents", "@absent")),
    ]:
        assert "s3://a" in error.message and "secret" not in str(error)
    put_object("bad.parquet", b"id,value\n")
    error = refusal(address("bad.parquet"))
    assert "cannot read 's3://agents/bad.parquet' as Parquet" in error.message


def test_objects_that_change(bucket):
    address, put_object = bucket
    put_object("changes.parquet", parquet_bytes(table("a")))
    print_before = readers.fingerprint(address("changes.parquet"))
    assert print_before == readers.fingerprint(address("changes.parquet"))
    market = a_market()
    (piece,) = readers.file_pieces(market, address("changes.parquet"), 1)
    put_object("changes.parquet", parquet_bytes(table("a", "b")))
    with pytest.raises(AgentsError, match=r"'s3://agents/changes.parquet' has changed since"):
        list(tables.read(market, piece))
    assert print_before != readers.fingerprint(address("changes.parquet"))


def test_a_whole_run_from_object_storage(bucket, tmp_path):
    address, put_object = bucket
    put_object("run/1.parquet", parquet_bytes(table("a", "b")))
    put_object("run/2.parquet", parquet_bytes(table("c", "d")))
    market = a_market(supply=[500.0], divisible=True)
    result = solve(market, address("run"), epsilon=1.0, delta=1e-6, output=tmp_path / "out")
    assert len(result.allocation) == 4
    text = (tmp_path / "out" / "public" / "billboard.jsonl").read_text()
    assert "secret" not in text and "s3" not in text
