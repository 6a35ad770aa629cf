"""Bad input: one clear sentence with the offending value, before anything is spent or written.

Every case of files is run twice: through `jdpack.solve` and through the command line.
"""

import os
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from helpers import check_error, forbid_drawing, run_cli
from jdpack import AgentsError, BudgetError, JdpackError, MarketError, OutputError, solve

MARKET = """
name = "clinic"
[privacy]
epsilon = 1.0
delta = 1e-6
neighbours = "replace-one"
[value]
max = 10.0
[agents]
count = 3
options = 1
bundle_size = 2
layout = "wide"
[[resource]]
name = "beds"
supply = 500.0
max_demand = 2.0
[[resource]]
name = "nurses"
supply = 900.0
max_demand = 3.0
[[resource]]
name = "oxygen"
supply = 900.0
max_demand = 4.0
"""

COLUMNS = {
    "id": [7, 8, 9],
    "value": [1.0, 2.0, 3.0],
    "beds": [1.0, 2.0, 0.0],
    "nurses": [1.0, 0.0, 0.0],
    "oxygen": [0.0, 1.0, 4.0],
}
LONG = {
    "id": [7, 7, 8, 9],
    "value": [1.0, 1.0, 2.0, 3.0],
    "resource": ["beds", "nurses", "beds", "oxygen"],
    "amount": [1.0, 1.0, 2.0, 4.0],
}


def wide(**changes) -> pa.Table:
    return pa.table(COLUMNS | changes)


def long(**changes) -> pa.Table:
    return pa.table(LONG | changes)


def market_file(*edits: tuple[str, str]) -> str:
    text = MARKET
    for old, new in edits:
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    return text


IN_LONG = ('layout = "wide"', 'layout = "long"')
THREE_OPTIONS = ("options = 1", "options = 3")


@dataclass
class Case:
    """What is wrong, and what the sentence must say."""

    name: str
    error: type[JdpackError]
    says: tuple[str, ...]
    agents: Any = field(default_factory=wide)
    suffix: str = ".parquet"
    market: Any = MARKET
    clamp: bool = False
    hint: str = ""


def columns(name, *says, hint="", **changes):
    return Case(name, AgentsError, says, agents=wide(**changes), hint=hint)


def csv(name, text, *says, hint=""):
    return Case(name, AgentsError, says, agents=text, suffix=".csv", hint=hint)


def in_long(name, *says, edits=(), hint="", **changes):
    edits = (IN_LONG, *edits)
    return Case(
        name, AgentsError, says, agents=long(**changes), market=market_file(*edits), hint=hint
    )


def in_market(name, *says, edits=(), hint="", text=None, error=MarketError):
    text = text if text is not None else market_file(*edits)
    return Case(name, error, says, market=text, hint=hint)


def parquet_bytes(table) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, compression="none")
    return sink.getvalue().to_pybytes()


PARQUET = parquet_bytes(wide())
TWICE = pa.Table.from_arrays([*wide().columns, wide()["beds"]], [*wide().column_names, "beds"])
HEAD = "id,value,beds,nurses,oxygen\n"

CASES = [
    # columns
    Case("missing column", AgentsError, ("lacks the column 'beds'",), wide().drop(["beds"]),
         hint="it has: id, value, nurses, oxygen"),
    Case("missing id", AgentsError, ("lacks the column 'id'",), wide().drop(["id"])),
    columns("extra column", "has a column 'age' that", age=[1, 2, 3], hint="ignore"),
    Case("column twice", AgentsError, ("two columns named 'beds'",), TWICE),
    csv("column twice in CSV", "id,value,beds,nurses,oxygen,beds\n1,1,1,1,0,1\n",
        "two columns named 'beds'"),
    # types
    columns("text", "column 'value' is of type string", value=["a", "b", "c"]),
    columns("truth", "column 'value' is of type bool", value=[True, False, True]),
    columns("date", "column 'beds' is of type date32", beds=[date(2024, 1, 1)] * 3),
    columns("list", "column 'value' is of type list", value=[[1.0], [2.0], [3.0]]),
    columns("all missing", "column 'value' is of type null", value=[None] * 3),
    columns("beyond doubles", "'beds'", str(2**60 + 1), beds=[1, 2**60 + 1, 1]),
    csv("text in CSV", HEAD + "1,1,1,0,0\n2,many,1,0,0\n3,1,1,0,0\n",
        "column 'value'", "'many'"),
    csv("truth in CSV", HEAD + "1,1,true,0,0\n", "column 'beds'", "'true'"),
    csv("comma for a point", HEAD + '1,"1,5",1,0,0\n', "column 'value'", "'1,5'"),
    csv("too few columns", HEAD + "1,1,1,0,0\n2,1,1\n", "Expected 5 columns, got 3"),
    csv("not UTF-8", HEAD.encode() + b"\xe9,1,1,0,0\n", "column 'id'", "UTF8"),
    csv("semicolons", HEAD.replace(",", ";") + "1;many;1;0;0\n", "column 'value'", "'many'"),
    csv("two decimal signs", HEAD.replace(",", ";") + "1;1,5;1;0;0\n2;1.5;1;0;0\n",
        "column 'value'", "'1.5'"),
    # numbers
    columns("nan", "agent 8: value nan is not a number", value=[1.0, np.nan, 3.0]),
    columns("nan demand", "agent 9: demand for 'beds' nan", beds=[1.0, 0.0, np.nan]),
    columns("infinite", "agent 8: value inf is infinite", value=[1.0, np.inf, 3.0]),
    columns("minus infinite", "agent 7: demand for 'nurses' -inf is infinite",
            nurses=[-np.inf, 0.0, 0.0]),
    columns("negative", "agent 9: value -0.5 is negative", value=[1.0, 2.0, -0.5]),
    columns("negative demand", "agent 7: demand for 'oxygen' -1.0 is negative", oxygen=[-1, 0, 0]),
    columns("null", "agent 8: 'value' is missing", value=[1.0, None, 3.0]),
    columns("null demand", "agent 9: 'beds' is missing", beds=[1.0, 2.0, None]),
    csv("nan in CSV", HEAD + "x,1,1,0,0\ny,nan,1,0,0\nz,1,1,0,0\n",
        "agent 'y': value nan is not a number"),
    csv("empty in CSV", HEAD + "x,1,1,0,0\ny,1,,0,0\nz,1,1,0,0\n", "agent 'y': 'beds' is missing"),
    columns("value beyond the bound", "agent 8: value 10.5 is above the public bound 10",
            value=[1.0, 10.5, 3.0], hint="clamp"),
    columns("demand beyond the bound", "agent 9: demand for 'beds' 2.5 is above the public bound 2",
            beds=[1.0, 2.0, 2.5], hint="clamp"),
    Case("total beyond the bound", AgentsError,
         ("agent 8: total demand 3.0 for 'beds', 'nurses' is above the public bound 2.5",),
         wide(beds=[1.0, 2.0, 1.0], nurses=[1.0, 1.0, 0.0], oxygen=[0.0, 0.0, 0.0]), hint="clamp",
         market=market_file() + '[[max_total]]\namount = 2.5\nresources = ["beds", "nurses"]\n'),
    *(
        Case(f"{what} is not clamped", AgentsError, ("agent 8: value", what),
             wide(value=[1.0, number, 3.0]), clamp=True)
        for what, number in [("nan", np.nan), ("infinite", np.inf), ("negative", -1.0)]
    ),
    columns("large bundle", "agent 7 demands 3 resources", "bundle size is 2",
            oxygen=[1.0, 0.0, 0.0], hint="bundle_size"),
    # ids
    columns("id twice", "id 8 belongs to more than one agent", id=[8, 7, 8],
            hint="set requests in [person]"),
    columns("text id twice", "id 'é' belongs to more than one agent", id=["é", "b", "é"]),
    columns("missing id in a row", "row 3 of", "agents.parquet' has no id", id=[1, 2, None],
            hint="counted from 1"),
    columns("fractional ids", "ids are of type double", id=[1.5, 2.0, 3.0]),
    columns("dates as ids", "ids are of type date32", id=[date(2024, 1, d) for d in (1, 2, 3)]),
    columns("huge id", str(2**64 - 1), id=pa.array([1, 2, 2**64 - 1], pa.uint64()), hint="text"),
    csv("missing id in CSV", HEAD + "x,1,1,0,0\n,1,1,0,0\nz,1,1,0,0\n",
        "row 2 of", "agents.csv' has no id"),
    Case("split agent", AgentsError, ("id 7 belongs to more than one agent",),
         wide(id=[7, 8, 7]), market=market_file(THREE_OPTIONS, ("count = 3", "count = 3")),
         hint="together"),
    Case("too many options", AgentsError, ("agent 7 has more than 2 options",),
         wide(id=[7, 7, 7]), market=market_file(("options = 1", "options = 2")), hint="options"),
    # how many
    in_market("too few agents", "there are 3 agents, but the market declares 4",
              edits=[("count = 3", "count = 4")], error=AgentsError, hint="public"),
    in_market("too many agents", "there are 3 agents, but the market declares 2",
              edits=[("count = 3", "count = 2")], error=AgentsError),
    in_market("more than at most", "there are 3 agents, but the market declares at most 2",
              edits=[("count = 3", "count = 2"), ("replace-one", "add-remove")],
              error=AgentsError),
    Case("no rows", AgentsError, ("there are no agents",), wide().slice(0, 0)),
    Case("no rows, add-remove", AgentsError, ("there are no agents",), wide().slice(0, 0),
         market=market_file(("replace-one", "add-remove"))),
    csv("CSV of a header alone", HEAD, "there are no agents"),
    csv("empty CSV", "", "Empty CSV file"),
    Case("missing file", AgentsError, ("there are no agents at", "agents.parquet"), None),
    Case("empty folder", AgentsError, ("there are no agents at",), "folder"),
    # files that are not what their names say
    Case("text named Parquet", AgentsError, ("as Parquet", "magic bytes"), HEAD + "1,1,1,1,0\n"),
    csv("Parquet named CSV", PARQUET, "is a Parquet file", hint=".parquet"),
    Case("truncated Parquet", AgentsError, ("as Parquet",), PARQUET[:-7]),
    Case("empty Parquet", AgentsError, ("as Parquet", "0 bytes"), b""),
    Case("damaged Parquet", AgentsError, ("as Parquet",), PARQUET[:60] + PARQUET[75:]),
    csv("noise named CSV", bytes(range(255, 0, -1)), "agents.csv"),
    Case("unknown kind", AgentsError, ("of an unknown kind",), PARQUET, ".ods", hint=".csv"),
    Case("workbook", AgentsError, ("is a workbook",), PARQUET, ".xlsx", hint="as CSV"),
    # long tables
    in_long("unknown resource", "agent 8: there is no resource 'bed'",
            resource=["beds", "nurses", "bed", "oxygen"], hint="beds, nurses, oxygen"),
    in_long("amount without resource", "agent 7: a row lacks its 'resource'",
            resource=["beds", None, "beds", "oxygen"]),
    in_long("resource without amount", "agent 9: a row lacks its 'amount'",
            amount=[1.0, 1.0, 2.0, None]),
    in_long("two values", "agent 7: an option has two values, 1.0 and 1.5",
            value=[1.0, 1.5, 2.0, 3.0]),
    in_long("hidden nan", "agent 7: value nan is not a number", value=[1.0, np.nan, 2.0, 3.0]),
    in_long("resource twice", "agent 7 names 'beds' twice",
            resource=["beds", "beds", "beds", "oxygen"]),
    in_long("zero twice", "agent 7 names 'beds' twice", amount=[1.0, 0.0, 2.0, 4.0],
            resource=["beds", "beds", "beds", "oxygen"]),
    in_long("two values in two places", "agent 7: an option has two values, 1.0 and 2.0",
            id=[7, 8, 7, 9]),
    in_long("bad amount", "agent 9: demand for 'oxygen' 4.5 is above the public bound 4",
            amount=[1.0, 1.0, 2.0, 4.5]),
    in_long("no option column", "lacks the column 'option'", edits=[THREE_OPTIONS]),
    in_long("missing option", "agent 8: 'option' is missing", edits=[THREE_OPTIONS],
            option=["a", "b", None, "a"]),
    in_long("resource of a strange type", "column 'resource' is of type", resource=[{"a": 1}] * 4),
    in_long("missing id in long", "row 4 of", "agents.parquet' has no id", id=[7, 7, 8, None]),
    # the market
    in_market("zero supply", "supply", "0.0", edits=[("supply = 500.0", "supply = 0.0")]),
    in_market("negative supply", "supply", "-5", edits=[("supply = 500.0", "supply = -5")]),
    in_market("nan supply", "supply", "nan", edits=[("supply = 500.0", "supply = nan")]),
    in_market("infinite supply", "supply", "inf", edits=[("supply = 500.0", "supply = inf")]),
    in_market("text supply", "supply", "'500'", edits=[("supply = 500.0", 'supply = "500"')]),
    in_market("cap above supply", "'nurses'", "1000", "900",
              edits=[("max_demand = 3.0", "max_demand = 1000")], hint="lower"),
    in_market("zero cap", "max_demand", "0", edits=[("max_demand = 3.0", "max_demand = 0")]),
    in_market("zero value cap", "max", "0", edits=[("max = 10.0", "max = 0")]),
    in_market("no agents declared", "agents", "0", edits=[("count = 3", "count = 0")]),
    in_market("part of an agent", "count", "2.5", edits=[("count = 3", "count = 2.5")]),
    in_market("truth for a number", "options", "True", edits=[("options = 1", "options = true")]),
    in_market("no bundle", "bundle_size", "0", edits=[("bundle_size = 2", "bundle_size = 0")]),
    in_market("unknown layout", "'tall'", edits=[("wide", "tall")], hint="wide, long"),
    in_market("unknown relation", "'swap'", edits=[("replace-one", "swap")], hint="replace-one"),
    in_market("resource named twice", "'beds'", edits=[('"nurses"', '"beds"')]),
    in_market("resource named as a column", "'value'", edits=[('"nurses"', '"value"')]),
    in_market("unknown key", "unknown key 'colour'", edits=[('name = "clinic"', "colour = 1")]),
    in_market("unknown key of privacy", "[privacy]", "'gamma'",
              edits=[("delta = 1e-6", "delta = 1e-6\ngamma = 1")]),
    in_market("unknown key of a resource", "[[resource]] 2", "'sipply'",
              edits=[("supply = 900.0", "supply = 900.0\nsipply = 1")]),
    in_market("missing key", "[[resource]] 1", "'supply'", edits=[("supply = 500.0", "")]),
    in_market("missing section", "'value'", edits=[("[value]\nmax = 10.0", "")]),
    in_market("no resources", "'resource'", text=MARKET.split("[[resource]]")[0]),
    in_market("resources as a number", "resource", "3",
              text="resource = 3" + MARKET.split("[[resource]]")[0]),
    in_market("resource as a number", "[[resource]] 1", "3",
              text="resource = [3]" + MARKET.split("[[resource]]")[0]),
    in_market("not TOML", "is not a TOML file", "line 2", text="name = 'x'\nthis is no market"),
    in_market("not text", "cannot read market file", text=b"\xff\xfe\x00"),
    Case("no market file", MarketError, ("cannot read market file", "market.toml"), market=None),
    # the budget
    *(
        in_market(f"epsilon {text}", "epsilon", shown, error=error,
                  edits=[("epsilon = 1.0", f"epsilon = {text}")])
        for text, shown, error in [
            ("0.0", "0.0", BudgetError), ("-1", "-1", BudgetError), ("1e3", "1000.0", BudgetError),
            ("nan", "nan", JdpackError), ("inf", "inf", JdpackError), ("'1'", "'1'", MarketError),
        ]
    ),
    *(
        in_market(f"delta {text}", "delta", text, error=error,
                  edits=[("delta = 1e-6", f"delta = {text}")])
        for text, error in [
            ("0.0", BudgetError), ("1.0", BudgetError), ("-0.5", BudgetError),
            ("nan", JdpackError), ("'x'", MarketError),
        ]
    ),
    in_market("no epsilon", "no epsilon is given", edits=[("epsilon = 1.0", "")],
              error=BudgetError, hint="set epsilon in [privacy]"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_is_drawn(monkeypatch):
    forbid_drawing(monkeypatch)


def put(case: Case, folder):
    """Write the files of a case, and return their paths."""
    market, agents = folder / "market.toml", folder / f"agents{case.suffix}"
    if case.market is not None:
        data = case.market if isinstance(case.market, bytes) else case.market.encode()
        market.write_bytes(data)
    if isinstance(case.agents, pa.Table):
        pyarrow.parquet.write_table(case.agents, agents)
    elif case.agents == "folder":
        agents.mkdir()
    elif case.agents is not None:
        data = case.agents if isinstance(case.agents, bytes) else case.agents.encode()
        agents.write_bytes(data)
    return market, agents


names = [case.name for case in CASES]
assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", CASES, ids=names)
def test_in_python(case, tmp_path):
    market, agents = put(case, tmp_path)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(JdpackError) as caught:
        solve(market, agents, clamp=case.clamp, output=tmp_path / "out")
    assert isinstance(caught.value, case.error)
    check_error(caught.value, case.says, case.hint)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("case", CASES, ids=names)
def test_on_the_command_line(case, tmp_path, monkeypatch, capsys):
    market, agents = put(case, tmp_path)
    before = sorted(os.listdir(tmp_path))
    flags = ["--clamp"] if case.clamp else []
    code, out, err = run_cli(
        monkeypatch, capsys, "solve", market, agents, "-o", tmp_path / "out", "--quiet", *flags
    )
    assert (code, out) == (2, "")
    first, *rest = err.splitlines()
    assert first.startswith("error: ") and len(rest) <= 1
    assert all(part in first for part in case.says)
    assert all(line.startswith("hint: ") for line in rest)
    assert case.hint in "".join(rest)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_good_case_gets_as_far_as_drawing(tmp_path):
    """The negative control: with nothing wrong, the files above do start a run."""
    market, agents = put(Case("good", JdpackError, ()), tmp_path)
    with pytest.raises(AssertionError, match="something was drawn"):
        solve(market, agents, output=tmp_path / "out")
    (tmp_path / "long").mkdir()
    market, agents = put(Case("", JdpackError, (), long(), market=market_file(IN_LONG)), tmp_path)
    with pytest.raises(AssertionError, match="something was drawn"):
        solve(market, agents, output=tmp_path / "long" / "out")


def test_ids_of_two_kinds(tmp_path):
    for layout in (wide(), long()):
        folder = tmp_path / str(layout.num_rows)
        folder.mkdir()
        pyarrow.parquet.write_table(layout, folder / "1.parquet")
        texts = layout.set_column(0, "id", pa.array(["x"] * layout.num_rows))
        pyarrow.parquet.write_table(texts, folder / "2.parquet")
        text = MARKET if layout.num_rows == 3 else market_file(IN_LONG)
        (tmp_path / "market.toml").write_text(text)
        with pytest.raises(AgentsError, match=r"ids [79] and 'x' mix numbers and texts"):
            solve(tmp_path / "market.toml", folder, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- where the results go -----------------------------------------------------------------


def occupied(folder, kind):
    out = folder / "out"
    if kind == "folder":
        out.mkdir()
    elif kind == "file":
        out.write_text("mine")
    elif kind == "dangling link":
        out.symlink_to(folder / "nowhere")
    elif kind == "no parent":
        return folder / "missing" / "out"
    elif kind == "parent is a file":
        (folder / "file").write_text("mine")
        return folder / "file" / "out"
    return out


@pytest.mark.parametrize(
    "kind", ["folder", "file", "dangling link", "no parent", "parent is a file"]
)
@pytest.mark.parametrize("command", ["python", "solve", "demo"])
def test_an_output_folder_that_cannot_be_made(kind, command, tmp_path, monkeypatch, capsys):
    out = occupied(tmp_path, kind)
    market, agents = put(Case("good", JdpackError, ()), tmp_path)
    before = sorted(os.listdir(tmp_path))
    says = str(out) if kind in ("folder", "file", "dangling link") else str(out.parent)
    if command == "python":
        with pytest.raises(OutputError) as caught:
            solve(market, agents, output=out)
        check_error(caught.value, [says])
    else:
        files = [market, agents] if command == "solve" else []
        code, stdout, err = run_cli(monkeypatch, capsys, command, *files, "-o", out, "-q")
        assert (code, stdout) == (2, "") and says in err.splitlines()[0]
    assert sorted(os.listdir(tmp_path)) == before
    assert not (tmp_path / "nowhere").exists()
    if out.is_file():
        assert out.read_text() == "mine"


# --- flags ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ["--epsilon", "much"],
        ["--delta", ""],
        ["--alpha", "0.1"],
        ["--threads", "0"],
        ["--colour"],
        ["--seed", "1.5"],
    ],
    ids=" ".join,
)
def test_flags_that_cannot_be_read(flags, tmp_path, monkeypatch, capsys):
    market, agents = put(Case("good", JdpackError, ()), tmp_path)
    before = sorted(os.listdir(tmp_path))
    code, out, err = run_cli(
        monkeypatch, capsys, "solve", market, agents, "-o", tmp_path / "o", *flags
    )
    assert (code, out) == (2, "") and flags[0] in err
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--epsilon", "0"], "epsilon"),
        (["--epsilon", "nan"], "nan"),
        (["--delta", "1"], "1.0"),
        (["--policy", "mwu-adaptive:alpha=0.9"], "0.9"),
        (["--policy", "mwu-adaptive:noise=white"], "white"),
        (["--policy", "newton:alpha=0.1"], "no parameter 'alpha'"),
        (["--policy", "mwu-adaptive", "--warm-start", "x"], "--warm-start"),
        (["--warm-start", "no-such-file"], "no-such-file"),
        (["--seed", "-3"], "-3"),
    ],
    ids=str,
)
def test_flags_that_make_no_sense(flags, says, tmp_path, monkeypatch, capsys):
    market, agents = put(Case("good", JdpackError, ()), tmp_path)
    code, out, err = run_cli(
        monkeypatch, capsys, "solve", market, agents, "-o", tmp_path / "o", *flags
    )
    assert (code, out) == (2, "") and says in err.strip().splitlines()[0]
    assert not (tmp_path / "o").exists()
