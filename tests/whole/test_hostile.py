"""Files made to do harm: refused in one sentence, in little time and with little memory."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap
import time
import tracemalloc
from contextlib import contextmanager
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from helpers import check_error, finished_board, run_cli
from jdpack import (
    AgentsError,
    Billboard,
    BillboardError,
    JdpackError,
    Market,
    MarketError,
    OutputError,
    resume,
    solve,
    verify,
)
from jdpack.billboard.lines import Header, Seed
from jdpack.common.checks import TEXT_MAX
from jdpack.errors import fit
from jdpack.ledger.ledger import Ledger
from jdpack.market.file import FILE_MAX
from jdpack.pages.billboard_page import public_page
from jdpack.policies import registry
from jdpack.policies.newton import Newton
from jdpack.privacy.accounting import Budget
from jdpack.records import parquet_guard
from jdpack.records.encode import encode
from jdpack.records.tables import pieces
from jdpack.storage import hash_chain

MARKET = """
[privacy]
epsilon = 1.0
delta = 1e-6
[value]
max = 10.0
[agents]
count = 3
[[resource]]
name = "beds"
supply = 500.0
max_demand = 2.0
"""
BEDS = {"supply": [500.0], "max_demand": 2.0, "max_value": 10.0, "agents": 3, "names": ["beds"]}
COLUMNS = {"id": ["a", "b", "c"], "value": [1.0, 2.0, 3.0], "beds": [1.0, 2.0, 0.0]}


@contextmanager
def little(length: int, seconds: float = 10.0):
    """Takes little time, and no more memory than a small multiple of an input of this length."""
    tracemalloc.start()
    start = time.process_time()  # of this process alone: the machine may have other work
    try:
        yield
        took, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert took < seconds
    assert peak < 40 * length + 2**24


def refusal(kind, do, *arguments):
    with pytest.raises(kind) as caught:
        do(*arguments)
    check_error(caught.value, [])
    return str(caught.value)


# --- market files -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[privacy]", "a." * 10_000 + "b = 1\n[privacy]"),
        ("[privacy]", "a . 'b' .\t" * 5_000 + "b = 1\n[privacy]"),
        ("[privacy]", "[" + "a." * 10_000 + "b]\n[privacy]"),
        ("[privacy]", "x = {" + "a." * 10_000 + "b = 1}\n[privacy]"),
        ("[privacy]", "x = " + "[" * 10_000 + "]" * 10_000 + "\n[privacy]"),
        ("[privacy]", "name = " + "[" * 300 + "]" * 300 + "\n[privacy]"),
        ("count = 3", "count = " + "9" * 5_000),
        ("count = 3", "count = 0x" + "9" * 50_000),
        ("500.0", "0x" + "9" * 50_000),
        ('"beds"', "0x" + "9" * 50_000),
        ('"beds"', '"' + "x" * 100_000 + '"'),
        ("count = 3", "count = 3\nignore = [" + "1," * 50_000 + "]"),
        ("[privacy]", '"""' * 20_001 + "[privacy]"),
        ("[privacy]", "'\\\"" * 20_000 + "[privacy]"),
    ],
    ids=lambda text: text[:12],
)
def test_market_files_that_take_time_and_memory(tmp_path, old, new):
    path = tmp_path / "market.toml"
    path.write_text(MARKET.replace(old, new))
    with little(path.stat().st_size):
        refusal(MarketError, Market.from_toml, path)


def test_quotes_and_comments_may_have_dots(tmp_path):
    path = tmp_path / "market.toml"
    dots = "a.b.c.d.e.f.g.h.i.j.k"
    path.write_text(f"# {dots} = 1\nname = '{dots}'\n" + MARKET.replace("beds", dots))
    assert Market.from_toml(path).name == Market.from_toml(path).resources[0].name == dots


@pytest.mark.parametrize(
    "text", ["a\x1b[31mb", "a\nb", "a\tb", "\x7f", "\u202eb", "\u2066", "\u2028"]
)
@pytest.mark.parametrize("key", ["name", "names", "units", "resource_columns"])
def test_names_that_steer_a_terminal_are_refused(key, text):
    given = BEDS | {key: text if key == "name" else [text]}
    refusal(MarketError, lambda: Market(**given))


def test_names_of_all_scripts_are_fine():
    name = "Betten à 1\u00a0Nacht, می\u200cخواهم, 床, 👩\u200d⚕️"
    assert Market(**BEDS | {"names": [name], "name": name}).resources[0].name == name
    refusal(MarketError, lambda: Market(**BEDS | {"name": "x" * (TEXT_MAX + 1)}))


def test_errors_are_fit_for_a_terminal():
    assert fit("a\x1b[2Jb\n\u202ec\ud800") == "a\\x1b[2Jb\\n\\u202ec\\ud800"
    long = JdpackError("x" * 10**6 + "the end", "y" * 10**6)
    assert long.message.endswith("the end") and len(str(long)) < 3000


# --- what is no file ----------------------------------------------------------------------


@pytest.fixture
def odd_places(tmp_path):
    """Paths that end in .csv but are not regular files."""
    pipe, folder, zero = (tmp_path / f"{name}.csv" for name in ("pipe", "folder", "zero"))
    os.mkfifo(pipe)
    folder.mkdir()
    zero.symlink_to("/dev/zero")
    return [pipe, folder, zero]


def test_pipes_devices_and_folders_are_no_files(odd_places):
    market = Market(**BEDS)
    for path in odd_places:
        with little(0):
            refusal(MarketError, Market.from_toml, path)
            refusal(BillboardError, Billboard.read, path)
            refusal(BillboardError, verify, path)
            refusal(AgentsError, pieces, market, path)
            refusal(JdpackError, Ledger.open, path)


def test_a_market_file_has_a_largest_size(tmp_path):
    path = tmp_path / "market.toml"
    with path.open("wb") as file:
        file.truncate(FILE_MAX + 1)
    with little(0):
        assert f"{FILE_MAX:,}" in refusal(MarketError, Market.from_toml, path)
    os.truncate(path, 2**40)
    with little(0):
        refusal(MarketError, Market.from_toml, path)


# --- tables -------------------------------------------------------------------------------

BOMBS = """
    import resource, sys
    from pathlib import Path
    from jdpack import JdpackError, Market
    from jdpack.records.encode import encode
    from jdpack.records.tables import pieces

    market = Market(supply=[500.0], max_demand=2.0, max_value=10.0, agents=300, names=["beds"])

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    for path in [sys.argv[1], *sorted(sys.argv[1:])]:  # the first makes all of Arrow there
        before = peak()
        try:
            encode(market, pieces(market, path))
        except JdpackError as error:
            print(Path(path).name, peak() - before, error.message[-100:].replace("\\n", " "))
"""


def write_bombs(folder: Path) -> list[Path]:
    long, n = "a" * 2**20, 300
    columns = {"value": np.ones(n), "beds": np.ones(n)}

    def parquet(name, table, **settings):
        pyarrow.parquet.write_table(table, folder / name, compression="zstd", **settings)

    parquet(
        "0.parquet",
        pa.table(
            {"id": np.arange(n - 1), "value": columns["value"][1:], "beds": columns["beds"][1:]}
        ),
    )
    parquet("repeated.parquet", pa.table({"id": [long + str(i % 2) for i in range(n)], **columns}))
    texts = pa.table({"id": [long + str(i) for i in range(n)], **columns})
    parquet("packed.parquet", texts, use_dictionary=False)
    parquet(
        "prefixes.parquet",
        texts,
        use_dictionary=False,
        column_encoding={"id": "DELTA_BYTE_ARRAY", "value": "PLAIN", "beds": "PLAIN"},
    )
    many = np.zeros(3 * 10**7, np.int8)
    parquet("rows.parquet", pa.table({"id": many, "value": many, "beds": many}))
    (folder / "columns.csv").write_bytes(b"id,value,beds" + b"," * 10**6 + b"\n")
    (folder / "line.csv").write_bytes(b"id,value,beds\n" + b"a" * 10**7)
    (folder / "quote.csv").write_bytes(b'id,value,beds\n"' + b"a,1,1\n" * 10**6)
    (folder / "name.csv").write_bytes(
        b'id,value,beds,"' + b"x" * 200_000 + b'"' + b"," * 10**6 + b"\n"
    )
    (folder / "zeros.csv").write_bytes(b"id,value,beds\n" + bytes(10**6))
    (folder / "without_end.csv").write_bytes(b"id,value,beds\n" + b"1,1,1\n" * 2 * 10**6)
    return sorted(folder.iterdir())


def test_tables_that_unpack_to_gigabytes_take_little_memory(tmp_path):
    bombs = write_bombs(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BOMBS), *map(str, bombs)],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    told = [line.split(" ", 2) for line in done.stdout.splitlines()][1:]
    assert [name for name, _, _ in told] == [path.name for path in bombs]  # all are refused
    for name, peak, _ in told:
        # What Arrow keeps for blocks of CSV is about 30 MB, whatever the file.
        assert int(peak) < 100 * 2**20 + 8 * (tmp_path / name).stat().st_size, told


def test_one_long_text_for_every_row_of_a_table_is_refused():
    coded = pa.DictionaryArray.from_arrays(np.zeros(3, np.int32), ["x" * 10**6])
    for column in (coded, coded.dictionary_decode()):
        table = pa.table(COLUMNS | {"id": column})
        market = Market(**BEDS)
        assert "4096" in refusal(AgentsError, lambda: encode(market, pieces(market, table)))  # noqa: B023


def field(number: int, value: int) -> bytes:
    """A whole number in a struct of Thrift's compact protocol, as the next field."""
    zigzag, out = value << 1, [number << 4 | 5]
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*out, zigzag])


def data_page(unpacked: int, values: int) -> bytes:
    own = field(1, values) + field(1, 0) + b"\0"
    return field(1, 0) + field(1, unpacked) + field(1, 5) + b"\x2c" + own + b"\0" + b"12345"


def test_pages_that_claim_more_than_their_rows_are_refused():
    def rows(*headers):
        data = b"".join(headers)
        column = parquet_guard.Chunk(b"value", False, 0, 0, len(data))
        return parquet_guard.rows_at_once(BytesIO(data), [column], ["value"], 10, 1000)

    assert rows(data_page(80, 10)) == rows(data_page(40, 5), data_page(40, 5)) == 1000
    for bad in [
        [data_page(2**31 - 1, 10)],
        [data_page(80, 2**31 - 1)],
        [data_page(40, 5), data_page(48, 6)],
        [data_page(80, 10)[:9]],
        [b"\xff" * 10],
    ]:
        with pytest.raises(parquet_guard.PageError):
            rows(*bad)


def test_names_of_columns_never_steer_the_terminal(tmp_path, monkeypatch, capsys):
    (tmp_path / "market.toml").write_text(MARKET)
    table = pa.table({"\x1b[2J\x1b]0;x\x07": [1]})
    pyarrow.parquet.write_table(table, tmp_path / "agents.parquet")
    paths = tmp_path / "market.toml", tmp_path / "agents.parquet"
    code, out, err = run_cli(monkeypatch, capsys, "solve", *paths, "-o", tmp_path / "out")
    assert code == 2 and out == "" and "\\x1b[2J" in err
    assert err.replace("\n", "").isprintable()


# --- billboards ---------------------------------------------------------------------------


def many_resources(m: int, policy: dict) -> str:
    """The header of a run with this many resources, as a billboard."""
    market = Market(supply=[5e5] * m, max_demand=1.0, max_value=1.0, agents=10**6, bundle_size=2)
    budget = Budget.split(1.0, 1e-8, truncated=False)
    header = Header(market, policy, budget, Seed(bytes(16)).commitment)
    return next(Billboard(header).lines()) + "\n"


def test_many_resources_take_no_square_of_memory():
    text = many_resources(3000, Newton().to_dict())
    with little(len(text), seconds=30):
        verify(Billboard.from_text(text))
        board = Billboard.from_text(text)
        policy = registry.from_dict(board.header.policy)
        policy.step(policy.start(board.header.market, board.header.budget))
        policy.outlook(board.header.market, board.header.budget)


@pytest.mark.parametrize(
    "policy",
    [
        {"name": "mwu-fixed", "alpha": 0.1, "rounds": 10**18},
        {"name": "mirror-descent", "potential": "entropy", "rounds": 10**18},
        {"name": "dual-gd", "alpha": 1e-300, "rounds": None},
        {"name": "mwu-adaptive", "alpha": 1e-300, "noise": "gaussian"},
        {"name": "mwu-online", "batch": 0, "local": False},
        {"name": "newton", "start_prices": [1e308] * 1000},
        {"name": "newton", "start_prices": ["x" * 10**6]},
        {"name": "newton", "beta_parts": ["by worth"] * 1000},
        {"name": "mwu-fixed", "beta_parts": "by worth"},
        {"name": "newton", "__class__": 1},
        {"name": ["newton"]},
        {},
    ],
    ids=lambda policy: str(policy)[:60],
)
def test_parameters_that_would_take_for_ever_are_refused(policy):
    text = many_resources(2, policy)
    with little(len(text)):
        refusal(JdpackError, lambda: verify(Billboard.from_text(text)))


@pytest.mark.parametrize("depth", [100, 900, 960, 5000])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("newton", "start_prices"),
        ("mirror-descent", "potential"),
        ("mwu-adaptive", "alpha"),
        ("mwu-adaptive", "noise"),
        ("mwu-fixed", "rounds"),
        ("mwu-online", "batch"),
        ("x", "x"),
    ],
)
def test_a_deep_policy_is_refused(name, key, depth):
    first = many_resources(2, {"name": name, key: "deep"})
    body = first[: first.index(',"hash":')].replace('"deep"', "[" * depth + "]" * depth)
    line = body + f',"hash":"{hashlib.sha256(body.encode()).hexdigest()}"}}\n'
    refusal(JdpackError, lambda: verify(Billboard.from_text(line)))


def with_budget(**parts) -> str:
    record = json.loads(many_resources(2, Newton().to_dict()))
    record["budget"].update(parts)
    data = {key: value for key, value in record.items() if key not in ("prev", "hash")}
    return hash_chain.seal(data, "") + "\n"


@pytest.mark.parametrize("part", ["rho", "beta", "truncation", "delta", "epsilon"])
@pytest.mark.parametrize("value", [-1.0, -1e-9, 1.0, 51.0, 1e308, None])
def test_budgets_that_prove_nothing_are_refused(part, value):
    if (part, value) == ("epsilon", 1.0):
        value = 0.999  # it has 1, and needs all of it
    refusal(JdpackError, lambda: verify(Billboard.from_text(with_budget(**{part: value}))))


@pytest.mark.parametrize("part", ["rho", "beta", "delta", "epsilon"])
@pytest.mark.parametrize("value", [0.0, -0.0, 5e-324, 1e-200])
def test_budgets_next_to_nothing_break_nothing(part, value):
    try:
        verify(Billboard.from_text(with_budget(**{part: value})))
    except JdpackError as error:
        check_error(error, [])


class Words(HTMLParser):
    def __init__(self):
        super().__init__()
        self.words, self.tags = [], []

    def handle_data(self, data):
        self.words.append(data)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        assert not any(name.startswith("on") for name, _ in attributes)


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "</title><img src=x onerror=alert(1)>",
        "{{ 7 * 7 }}",
        "{% include '/etc/passwd' %}",
        "' onmouseover='x",
        '"><svg onload=x>',
        "<!-- ",
        "&lt;b&gt;",
        "../../etc/passwd",
    ],
)
def test_the_page_shows_what_others_wrote_as_text(text):
    reader, plain = read_page(text), read_page("plain".ljust(len(text), "x"))
    assert reader.tags == plain.tags, "a name that is shown as it is makes elements"
    words = " ".join(reader.words)
    assert words.count(text) >= 5
    assert "root:" not in words and words.count(" 49") == " ".join(plain.words).count(" 49")


def read_page(text):
    """The page of a market in which every name is this text."""
    market = Market(**BEDS | {"name": text, "names": [text], "units": [text]})
    board = finished_board(market, [((2**20,), 1)], 2**24)
    policy = {"name": text, text: text, "list": [text]}
    board.header = Header(market, policy, board.header.budget, board.header.commitment)
    reader = Words()
    reader.feed(public_page(board))
    return reader


def test_a_page_of_an_unfinished_run_says_so():
    board = Billboard.from_text(many_resources(2, Newton().to_dict()))
    assert "Not finished" in public_page(board) and "<form" not in public_page(board)


# --- links --------------------------------------------------------------------------------

WRITTEN = [
    *("public/index.html", "private/report.html"),
    *("private/allocation.parquet", "private/granted.parquet"),
]


@pytest.fixture
def run_folder(tmp_path):
    """A run that ended, whose pages and allocation are gone."""
    solve(Market(**BEDS, epsilon=1.0, delta=1e-6), _table(tmp_path), output=tmp_path / "out")
    for name in WRITTEN:
        (tmp_path / "out" / name).unlink()
    return tmp_path / "out"


def _table(folder: Path) -> Path:
    pyarrow.parquet.write_table(pa.table(COLUMNS), folder / "agents.parquet")
    return folder / "agents.parquet"


def test_what_is_written_never_follows_a_link(run_folder, tmp_path):
    other = tmp_path / "other"
    other.write_text("mine")
    for name in WRITTEN:
        (run_folder / name).symlink_to(other)
    resume(run_folder)
    assert other.read_text() == "mine"
    assert not any((run_folder / name).is_symlink() for name in WRITTEN)


@pytest.mark.parametrize("name", ["public", "private"])
def test_folders_of_a_run_that_became_links_are_refused(run_folder, tmp_path, name):
    (run_folder / name).rename(tmp_path / "elsewhere")
    (run_folder / name).symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    refusal(OutputError, resume, run_folder)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_billboard_that_became_a_link_is_refused(run_folder, tmp_path):
    board = run_folder / "public" / "billboard.jsonl"
    board.rename(tmp_path / "elsewhere")
    board.symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    refusal(JdpackError, resume, run_folder)
    assert (tmp_path / "elsewhere").read_bytes() == before


def test_a_journal_that_is_a_link_is_not_followed(run_folder, tmp_path):
    """In a run that has a line to post."""
    board = run_folder / "public" / "billboard.jsonl"
    board.write_text("".join(line + "\n" for line in board.read_text().split("\n")[:5]))
    (tmp_path / "elsewhere").write_text("mine")
    (run_folder / "private" / "next.jsonl").symlink_to(tmp_path / "elsewhere")
    refusal(JdpackError, resume, run_folder)
    assert (tmp_path / "elsewhere").read_text() == "mine"


@pytest.mark.parametrize("target", ["nowhere", "folder"])
def test_an_output_that_is_a_link_is_refused(tmp_path, target):
    (tmp_path / "folder").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / target)
    market = Market(**BEDS, epsilon=1.0, delta=1e-6)
    refusal(OutputError, lambda: solve(market, _table(tmp_path), output=tmp_path / "out"))
    assert list((tmp_path / "folder").iterdir()) == []


def test_codes_in_a_store_that_became_links_are_not_written_to(tmp_path):
    from jdpack import Mapped

    market, store = Market(**BEDS, epsilon=1.0, delta=1e-6), tmp_path / "store"
    engine = Mapped(store=str(store))
    solve(market, _table(tmp_path), engine=engine)
    (kept,) = [path for path in store.iterdir() if path.is_dir()]
    kept.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "index.json").write_text("damaged")
    kept.symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.joinpath("elsewhere").iterdir())
    refusal(OutputError, lambda: solve(market, tmp_path / "agents.parquet", engine=engine))
    assert sorted(tmp_path.joinpath("elsewhere").iterdir()) == before
