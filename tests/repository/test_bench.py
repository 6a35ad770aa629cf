"""Small benchmarks: sifting against the optimum, fits, memory, and every command that needs no
separate environment.
"""

from __future__ import annotations

import csv
import io
import json
import re
import runpy
import sys
import time
import xml.etree.ElementTree as ElementTree
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from helpers import check_error
from jdpack.errors import JdpackError

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "experiments"), str(ROOT / "bench")]

import common  # noqa: E402
import databases  # noqa: E402
import families  # noqa: E402
import first_letter  # noqa: E402
import ledger  # noqa: E402
import memory  # noqa: E402
import optimum  # noqa: E402
import parquet  # noqa: E402
import peers  # noqa: E402
import plots  # noqa: E402
import scaling  # noqa: E402
import sides  # noqa: E402
import speed  # noqa: E402
import warehouse  # noqa: E402
from loss import Store  # noqa: E402
from sifting import Settings, sift  # noqa: E402

pytestmark = pytest.mark.long

SMALL = Settings(first=100, ratio=5)
"""Take samples of samples, although there are few agents."""


# --- sifting ------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [SMALL, Settings(first=100, ratio=5, near=1.0, more=0.2)])
@pytest.mark.parametrize("family", ["dense", "single", "tied", "identical", "mixed", "two-classes"])
@pytest.mark.parametrize("n", [1, 40, 3_000])
def test_sifting_finds_the_optimum_within_its_gap(family, n, settings):
    market = families.FAMILIES[family](n, np.random.default_rng(n))
    best = market.optimum()
    found = sift(market.values, market.demands, market.supply, 1e-4, 2, settings)
    assert found.gap <= 1e-4
    assert found.value == pytest.approx(market.values @ found.shares)
    assert best.value * (1 - 1e-4) <= found.value <= best.value * (1 + 1e-9)
    assert found.bound >= best.value * (1 - 1e-9)
    assert found.shares.min() >= 0.0 and found.shares.max() <= 1.0
    assert (found.shares @ market.demands <= market.supply * (1 + 1e-9)).all()


def test_sifting_adds_columns_where_the_first_are_too_few():
    market = families.dense(3_000, np.random.default_rng(5))
    given = market.values, market.demands, market.supply
    found = sift(*given, 1e-4, 1, Settings(first=100, ratio=5, near=0.3, more=0.5))
    assert found.masters > 1
    assert found.gap <= 1e-4
    # Stopped after the first master, it claims no more than it has: the gap is wide, and holds.
    early = sift(*given, 1e-4, 1, Settings(first=100, ratio=5, near=0.3, more=0.5, most=1))
    best = market.optimum().value
    assert early.gap > 1e-4
    assert early.value < best * (1 - 1e-4)
    assert early.bound >= best * (1 - 1e-9)
    assert (early.shares @ market.demands <= market.supply * (1 + 1e-9)).all()


def test_sifting_where_supply_is_plenty_gives_everything():
    rng = np.random.default_rng(0)
    values, demands = rng.random(500), rng.random((500, 3))
    found = sift(values, demands, np.full(3, 1_000.0), 1e-4, 1, SMALL)
    assert found.shares.min() == 1.0
    assert found.gap == pytest.approx(0.0, abs=1e-12)


# --- judging ------------------------------------------------------------------------------


def test_what_shares_violate_is_seen():
    values, demands = np.array([1.0, 0.5]), np.array([[1.0], [1.0]])  # a supply of 0.4
    answer = {"prices": [1.0]}
    peers.judge(answer, values, demands, np.array([0.4, 0.0]))
    assert answer["welfare"] == pytest.approx(0.4)
    assert answer["violation"] == pytest.approx(0.0, abs=1e-15)
    assert answer["bound"] == pytest.approx(0.4)
    peers.judge(answer, values, demands, np.array([0.5, 0.0]))
    assert answer["violation"] == pytest.approx(0.25)
    peers.judge(answer, values, demands, np.array([0.5, -0.3]))
    assert answer["violation"] == pytest.approx(0.3)


def test_a_solver_that_hits_its_limit_is_said_to_take_more():
    rng = np.random.default_rng(0)
    agents = rng.random(5_000), rng.random((5_000, 10))
    answer = sides.highs(*agents, sides.Options(1, 60.0))
    best = families.Instance(*agents, sides.supplies(5_000, 10), 10).optimum().value
    assert not answer.stopped
    assert agents[0] @ answer.shares == pytest.approx(best, rel=1e-3)
    answer = sides.highs(*agents, sides.Options(1, 0.0))
    assert answer.stopped
    assert answer.shares is None
    run = {"model": 0.1, "solve": 30.0, "stopped": True, "peak": 5.0, "notes": {}}
    row = peers.summary([run], 1.0) | {"times_jdpack": dict.fromkeys(peers.OURS, 60.0)}
    (line,) = [x for x in peers.table({"highs": row}, 10, 1, 2) if x.startswith("| HiGHS")]
    assert "> 30 s | > 60.00 | > 60.00 |" in line


# --- scaling ------------------------------------------------------------------------------


def test_exponents_are_of_all_cells_and_of_the_large_ones():
    large = scaling.LARGE["n"]
    sizes = [large // 100, large // 10, large, 10 * large, 100 * large]
    rows = [
        {"n": n, "seconds": 1e-6 * max(n, large), "round": 1e-9 * n, "peak": 1_000} for n in sizes
    ]
    found = scaling.laws(rows, "n")
    assert found["seconds"]["large"].slope == pytest.approx(1.0)
    assert 0.3 < found["seconds"]["all"].slope < 0.7
    assert found["round"]["all"].slope == pytest.approx(1.0)
    assert found["peak"]["all"].slope == pytest.approx(0.0, abs=1e-12)
    text = "\n".join(scaling.table([row | {"rounds": 88} for row in rows], "n"))
    assert "| one round | 1.00 ± 0.00 | 1.00 ± 0.00, 3 points |" in text


def test_resources_of_an_agent_are_distinct():
    chosen = scaling.distinct(20_000, 4, 3, np.random.default_rng(0))
    assert (np.diff(chosen, axis=1) > 0).all()
    _, counts = np.unique(chosen, axis=0, return_counts=True)
    assert len(counts) == 4  # all four sets of three, equally often
    assert abs(counts - 5_000).max() < 400


# --- plots and tables ---------------------------------------------------------------------


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_plots_have_the_colours_and_fonts_of_the_pages():
    style = (ROOT / "src" / "jdpack" / "pages" / "web" / "style.css").read_text(encoding="utf-8")
    svg = plots.bars("ms", {"a $x_1$ & <b>": {"one": 3.0, "two": 1.0}}, mark=(2.0, "limit"))
    assert svg == plots.bars("ms", {"a $x_1$ & <b>": {"one": 3.0, "two": 1.0}}, mark=(2.0, "limit"))
    assert "<dc:date>" not in svg
    for name in ("price", "load", "ink", "soft"):
        assert f"--{name}: {plots.colour(name)};" in style.split("@media")[0]
        assert plots.colour(name) in svg
    assert {"a $x_1$ & <b>", "one", "two", "ms", "limit"} <= {
        " ".join(text.itertext()).strip() for text in texts_of(svg)
    }
    assert "font-family: system-ui" in svg and "DejaVu" not in svg
    with pytest.raises(AssertionError, match="no mauve"):
        plots.colour("mauve")


def texts_of(svg):
    return ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")


def test_bars_and_lines_are_as_long_as_their_numbers():
    svg = plots.bars("ms", {"a": {"one": 3.0}, "b": {"one": 1.5}})
    bars = re.findall(rf'd="M ([\d.]+) [\d.]+ \nL ([\d.]+) [^"]*"[^>]*fill: {plots.FIRST}', svg)
    long, short = (float(right) - float(left) for left, right in bars)
    assert long == pytest.approx(2.0 * short)
    svg = plots.lines("agents", "MB", {"peak": [(10, 1), (100, 10), (10_000, 1_000)]})
    line = re.search(rf'd="M ([^"]*)"[^>]*stroke: {plots.FIRST}; stroke-width: 1.2', svg)[1]
    x, y = np.array(re.findall(r"([\d.]+) ([\d.]+)", line), float).T
    assert (x[2] - x[0]) / (x[1] - x[0]) == pytest.approx(3.0)
    assert (y[2] - y[0]) / (y[1] - y[0]) == pytest.approx(3.0)


def test_without_the_library_plots_are_refused(monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(JdpackError) as caught:
        plots.svg(1.0, 1.0, print)
    check_error(caught.value, ["matplotlib", "not installed"], "pip install 'jdpack[plots]'")


# --- whole commands -----------------------------------------------------------------------


def here(command, *, ready=False):
    """Do what `watched` does in this process: starting Python takes longer than a small turn."""
    _, what, *given = map(str, command)
    begin, out = time.perf_counter(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        if what == "-c":
            what, *given = given
            patch.setattr(sys, "argv", ["-c", *given])
            exec(what, {"__name__": "__main__"})
        else:
            patch.setattr(sys, "argv", [what, *given])
            runpy.run_path(what, run_name="__main__")
    text = out.getvalue()
    return common.Watched(
        text.removeprefix("ready\n") if ready else text, time.perf_counter() - begin, 10**8
    )


@pytest.mark.parametrize(
    ("program", "arguments", "rows"),
    [
        (speed, ["--agents", "2000", "--repeats", "1"], 4),
        (memory, ["--agents", "2000"], 1),
        (optimum, ["--agents", "500", "--families", "dense,sparse"], 2),
        (ledger, ["--agents", "500", "--turns", "3"], 1),
        (databases, ["--agents", "500", "--turns", "1"], 4),
        (warehouse, ["--place", "parquet=500", "--turns", "1"], 1),
    ],
)
def test_tables_are_written_with_csv_and_a_plot(
    program, arguments, rows, tmp_path, monkeypatch, capsys
):
    name = program.__name__
    monkeypatch.setattr(memory, "measure", lambda *_: {"codes": 10**6, "peak": 2 * 10**8})
    monkeypatch.setattr(databases, "watched", here)
    monkeypatch.setattr(sys, "argv", [name, *arguments, "--results", str(tmp_path)])
    program.main()
    table = capsys.readouterr().out
    assert table == (tmp_path / f"{name}.md").read_text() and len(table.splitlines()) == 2 + rows
    listed, numbers = rows_of(tmp_path / f"{name}.csv"), json.loads(
        (tmp_path / f"{name}.json").read_text()
    )  # fmt: skip
    assert len(listed) == len(numbers) == rows
    for line, row in zip(listed, numbers, strict=True):
        assert line == {key: "" if value is None else str(value) for key, value in row.items()}
    assert "<svg" in (tmp_path / f"{name}.svg").read_text()


def test_memory_is_of_the_process_without_mapped_files(tmp_path, monkeypatch):
    file, seen = tmp_path / "zeros", tmp_path / "seen"
    file.write_bytes(bytes(120_000_000))
    program = (
        "import mmap, os, sys, time\n"
        "file = open(sys.argv[1], 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "sum(mapped[::4096])\n"
        "own = b'x' * int(sys.argv[2])\n"
        "print('ready', flush=True)\n"
        "while not os.path.exists(sys.argv[3]): time.sleep(0.01)\n"
        "print('done')\n"
    )
    look = common._own_memory

    def look_and_tell(pid: int) -> int:  # the process stays until it has been sampled
        size = look(pid)
        seen.touch()
        return size

    monkeypatch.setattr(common, "_own_memory", look_and_tell)
    peaks = []
    for own in ("1000", "60_000_000"):
        seen.unlink(missing_ok=True)
        done = common.watched([sys.executable, "-c", program, file, own, seen], ready=True)
        assert done.out == "done\n"
        assert done.seconds > 0.0
        peaks.append(done.peak)
    assert peaks[0] < 40e6  # does not include the 120 MB that are mapped
    assert 55e6 < peaks[1] - peaks[0] < 65e6
    with pytest.raises(SystemExit, match="code 3"):
        common.watched([sys.executable, "-c", "raise SystemExit(3)"])


def test_peers_take_turns_and_repeat_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "fingerprint", lambda: "code")
    chosen = "sum,jdpack-divisible,sifting"
    arguments = ["--agents", "2000", "--repeats", "1", "--sides", chosen]
    command = ["peers.py", *arguments, "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    peers.main()
    rows = json.loads((tmp_path / "peers.json").read_text())["sides"]
    assert list(rows) == chosen.split(",")
    assert rows["sifting"]["share_of_optimum"] == pytest.approx(1.0, abs=1e-4)
    assert 0.0 < rows["jdpack-divisible"]["share_of_optimum"] < 1.0
    assert rows["jdpack-divisible"]["violation"] == 0.0
    assert rows["jdpack-divisible"]["notes"]["rounds"] > 10
    assert "<svg" in (tmp_path / "peers.svg").read_text()
    assert [row["side"] for row in rows_of(tmp_path / "peers.csv")] == chosen.split(",")
    table = capsys.readouterr().out
    assert table == (tmp_path / "peers.md").read_text()
    monkeypatch.setattr(peers.Workers, "ask", lambda *_: pytest.fail("a turn was repeated"))
    peers.main()
    assert capsys.readouterr().out == table
    assert len(Store(tmp_path / "peers-turns.json").data) == 6


def test_scaling_small(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scaling, "fingerprint", lambda: "code")
    folders = ["--results", str(tmp_path), "--folder", str(tmp_path / "data")]
    command = ["scaling.py", "--agents", "2000", "--resources", "5", "--sparse-agents", "2000"]
    monkeypatch.setattr(sys, "argv", [*command, *folders, "--threads", "1"])
    scaling.main()
    cells = json.loads((tmp_path / "scaling.json").read_text())["cells"]
    for cell in (*cells["n"], *cells["m"]):
        assert cell["seconds"] > cell["round"] * cell["rounds"] / 2 > 0.0
        assert cell["peak"] > 10e6
    assert "<svg" in (tmp_path / "scaling.svg").read_text()
    listed = rows_of(tmp_path / "scaling.csv")
    assert [row["sweep"] for row in listed] == ["n", "m"]
    assert float(listed[0]["seconds"]) == cells["n"][0]["seconds"]
    table = capsys.readouterr().out
    monkeypatch.setattr(scaling, "watched", lambda *_, **__: pytest.fail("a cell was repeated"))
    scaling.main()
    assert capsys.readouterr().out == table


def test_parquet_small(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(parquet, "fingerprint", lambda: "code")
    monkeypatch.setattr(parquet, "watched", here)
    folders = ["--results", str(tmp_path), "--folder", str(tmp_path / "data")]
    command = ["parquet.py", "--agents", "2000", "--repeats", "1", *folders]
    monkeypatch.setattr(sys, "argv", command)
    parquet.main()
    (row,) = json.loads((tmp_path / "parquet.json").read_text())
    assert row["ratio"] == pytest.approx(row["jdpack"]["seconds"] / row["pyarrow"]["seconds"])
    assert row["ns_an_agent"] == pytest.approx(1e9 * row["jdpack"]["seconds"] / 2_000)
    assert 0.0 < row["jdpack"]["inside"] < row["jdpack"]["seconds"]
    assert "<svg" in (tmp_path / "parquet.svg").read_text()
    (listed,) = rows_of(tmp_path / "parquet.csv")
    assert float(listed["jdpack.seconds"]) == row["jdpack"]["seconds"]
    assert "jdpack.turns" not in listed
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == [
        "agents-2000.parquet",
        "market-2000.toml",
    ]
    table = capsys.readouterr().out
    monkeypatch.setattr(parquet, "watched", lambda *_: pytest.fail("a turn was repeated"))
    parquet.main()
    assert capsys.readouterr().out == table


def test_steps_are_timed_and_a_failed_one_is_told(tmp_path):
    steps = first_letter.Steps(tmp_path)
    steps.run("one", [sys.executable, "-c", "open('there', 'w').write(input())"], "hello\n")
    assert (tmp_path / "there").read_text() == "hello"
    rows = [line.split("|")[1].strip() for line in steps.table().splitlines()]
    assert rows == ["step", "---", "one", "total"]
    with pytest.raises(SystemExit, match="two failed:\nno such thing"):
        steps.run("two", [sys.executable, "-c", "import sys; sys.exit('no such thing')"])
