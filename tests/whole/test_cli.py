"""The command line, end to end: results on stdout, the rest on stderr, public and private apart."""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from helpers import run_cli
from jdpack import (
    Billboard,
    Market,
    MarketError,
    Newton,
    __version__,
    cli,
    compare,
    plan,
    solve,
)
from jdpack.audit import audit
from jdpack.door import SystemRandomness
from jdpack.pages import number_text
from jdpack.run import demo

pytestmark = pytest.mark.long

MARKET = """
name = "Clinic"
divisible = {divisible}
[privacy]
epsilon = 9.0
delta = 1e-6
[value]
max = 10.0
[agents]
count = 400
options = {options}
[[resource]]
name = "beds"
supply = 900.0
max_demand = 2.0
unit = "beds"
[[resource]]
name = "nurses"
supply = 800.0
max_demand = 3.0
"""


def write_market(folder: Path, *, divisible=False, options=1) -> Path:
    path = folder / "market.toml"
    path.write_text(MARKET.format(divisible=str(divisible).lower(), options=options))
    return path


def write_agents(folder: Path, *, options=1, beyond=None, name="agents.parquet") -> Path:
    """400 agents of 1 to `options` options; `beyond` is put in place of three numbers."""
    rng = np.random.default_rng(1)
    repeats = rng.integers(1, options + 1, 400)
    ids = np.repeat([f"Ä{i}" for i in range(400)], repeats)
    n = len(ids)
    values = rng.uniform(0, 10, n)
    beds, nurses = rng.uniform(0, 2, n), rng.uniform(0, 3, n)
    if beyond is not None:
        values[3], beds[5], nurses[7] = beyond
    path = folder / name
    table = pa.table({"id": ids, "value": values, "beds": beds, "nurses": nurses})
    pyarrow.parquet.write_table(table, path)
    return path


@pytest.fixture
def jdpack(monkeypatch, capsys):
    """The command line in this process; returns stdout and stderr of a run that succeeds."""

    def run(*arguments):
        code, out, err = run_cli(monkeypatch, capsys, *arguments)
        assert code == 0, err
        return out, err

    return run


FAST = ["--policy", "mwu-adaptive:alpha=0.5"]  # few rounds


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def files_of(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


# --- solve --------------------------------------------------------------------------------


def test_solve_leaves_public_and_private_apart(jdpack, tmp_path):
    market, agents, out = write_market(tmp_path), write_agents(tmp_path), tmp_path / "out"
    old = os.umask(0o022)
    try:
        stdout, stderr = jdpack("solve", market, agents, "-o", out, *FAST)
    finally:
        os.umask(old)
    assert files_of(out) == [
        "private/allocation.parquet",
        "private/granted.parquet",
        "private/journal.jsonl",
        "private/report.html",
        "private/run.json",
        "public/billboard.jsonl",
        "public/index.html",
    ]
    assert mode(out / "private") == 0o700
    assert mode(out / "public") == 0o755
    assert {mode(p) for p in (out / "private").iterdir()} == {0o600}
    assert {mode(p) for p in (out / "public").iterdir()} == {0o644}
    assert "(9, 1e-06)-joint differential privacy" in stdout
    assert "never exceeded" in stdout and "winners" in stdout
    assert "NOT PRIVATE" not in stdout and "NONE" not in stdout
    assert str(out / "private" / "allocation.parquet") in stdout
    assert "winners" not in stderr and "clamped" not in stderr


def test_private_files_stay_private_under_any_umask(jdpack, tmp_path):
    market, agents, out = write_market(tmp_path), write_agents(tmp_path), tmp_path / "out"
    old = os.umask(0)
    try:
        jdpack("solve", market, agents, "-o", out, *FAST, "-q")
    finally:
        os.umask(old)
    assert mode(out / "private") == 0o700
    assert {mode(p) for p in (out / "private").iterdir()} == {0o600}


def test_nothing_private_is_in_the_public_files(jdpack, tmp_path):
    market, agents, out = write_market(tmp_path), write_agents(tmp_path), tmp_path / "out"
    stdout, _ = jdpack("solve", market, agents, "-o", out, *FAST, "--json", "-q")
    curator = json.loads(stdout)["curator"]
    public = "".join(p.read_text() for p in (out / "public").iterdir())
    report = (out / "private" / "report.html").read_text()
    assert "Curator only" in report and "Curator" not in public
    for number in [repr(curator["welfare"]), *map(repr, curator["loads"])]:
        assert number not in public
    assert "Ä" not in public and "\\u00c4" not in public, "no id is on the billboard"
    for word in ["winner", "clamp"]:
        assert word not in public.lower()


def test_json_says_what_the_text_says(jdpack, tmp_path):
    market, agents = write_market(tmp_path), write_agents(tmp_path)
    stdout, _ = jdpack("solve", market, agents, "-o", tmp_path / "a", *FAST, "--json")
    data = json.loads(stdout)
    assert data["private"] is True
    assert (data["epsilon"], data["delta"]) == (9.0, 1e-6)
    assert 0 < data["rho_spent"] <= data["rho"]
    assert data["policy"] == {"name": "mwu-adaptive", "alpha": 0.5, "noise": "gaussian"}
    assert [r["name"] for r in data["resources"]] == ["beds", "nurses"]
    assert all(0.0 <= load <= 1.0 for load in data["curator"]["loads"])
    allocation = pyarrow.parquet.read_table(tmp_path / "a" / "private" / "allocation.parquet")
    assert sum(allocation["granted"].to_pylist()) == data["curator"]["winners"]
    assert data["curator"]["agents"] == 400


def test_quiet_is_silent_and_progress_is_not_on_stdout(jdpack, tmp_path):
    market, agents = write_market(tmp_path, divisible=True), write_agents(tmp_path)
    arguments = ["solve", market, agents, *FAST, "--epsilon", "4", "--json"]
    _, err = jdpack(*arguments, "-o", tmp_path / "quiet", "--quiet")
    assert err == ""
    out, _ = jdpack(*arguments, "-o", tmp_path / "loud")
    assert set(json.loads(out)) >= {"private", "curator"}


def test_flags_reach_the_run(jdpack, tmp_path):
    market, agents = write_market(tmp_path), write_agents(tmp_path)
    flags = ["--epsilon", "8", "--delta", "1e-4", "--threads", "1"]
    flags += ["--policy", "mwu-adaptive:alpha=0.4,noise=gaussian"]
    out, _ = jdpack("solve", market, agents, "-o", tmp_path / "a", *flags, "--json", "-q")
    header = Billboard.read(tmp_path / "a" / "public" / "billboard.jsonl").header
    assert (header.budget.epsilon, header.budget.delta) == (8.0, 1e-4)
    assert header.policy["alpha"] == 0.4 and header.private
    assert json.loads(out)["epsilon"] == 8.0


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("mwu-fixed:rounds=3", {"alpha": 0.1, "rounds": 3}),
        ("mwu-fixed:alpha=0.5", {"alpha": 0.5, "rounds": None}),
        ("dual-gd:rounds=3", {"alpha": 0.1, "rounds": 3}),
        ("mirror-descent:rounds=3", {"potential": "entropy", "rounds": 3}),
        ("mwu-online:batch=40", {"batch": 40, "local": False}),
        ("mirror-descent:potential=euclidean,rounds=3", {"potential": "euclidean", "rounds": 3}),
    ],
)
def test_a_policy_text_reaches_the_run(jdpack, tmp_path, text, policy):
    market, agents = write_market(tmp_path), write_agents(tmp_path)
    expected = {"name": text.partition(":")[0], **policy}
    out, _ = jdpack("plan", market, "--policy", text, "--json")
    assert json.loads(out)["policy"] == expected
    out, _ = jdpack("solve", market, agents, "-o", tmp_path / "a", "--policy", text, "--json")
    assert json.loads(out)["policy"] == expected
    header = Billboard.read(tmp_path / "a" / "public" / "billboard.jsonl").header
    assert header.policy == expected
    table = str(agents)
    assert solve(market, table, policy=text, seed=1).billboard.header.policy == expected


@pytest.mark.parametrize("option", ["alpha", "noise", "rounds", "potential", "batch"])
@pytest.mark.parametrize("name", ["solve", "plan"])
def test_a_policy_has_no_options_beside_its_text(monkeypatch, capsys, tmp_path, name, option):
    market = write_market(tmp_path)
    files = (
        [market, write_agents(tmp_path), "-o", tmp_path / "out"] if name == "solve" else [market]
    )
    code, _, err = run_cli(monkeypatch, capsys, name, *files, f"--{option}", "1")
    assert code == 2 and f"No such option: --{option}" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("newto", "policy 'newto' is not known", "newton, mwu-adaptive, mwu-fixed, mwu-online"),
        ("mwu-adaptive:alfa=1", "has no parameter 'alfa'", "are: alpha, noise"),
        ("mwu-fixed:noise=gaussian", "has no parameter 'noise'", "are: alpha, rounds"),
        ("newton:alpha=0.1", "has no parameter 'alpha'", "newton takes no parameters"),
        ("dual-gd:alpha=0.2,rounds=9", "by alpha and by rounds", "give one of them"),
        ("dual-gd:rounds=many", "a whole number, not 'many'", "are: alpha, rounds"),
        ("mirror-descent:potential", "cannot be read at 'potential'", "are: potential, rounds"),
    ],
)
def test_a_wrong_policy_text_is_refused_in_the_same_words_everywhere(
    monkeypatch, capsys, tmp_path, text, says, hint
):
    """By every command and function that takes one, before anything is written."""
    market, agents, out = write_market(tmp_path), write_agents(tmp_path), tmp_path / "out"
    calls = {
        "solve": lambda: solve(market, str(agents), policy=text),
        "plan": lambda: plan(market, policy=text),
        "compare": lambda: compare(market, str(agents), policies=[text]),
        "audit": lambda: audit(market, str(agents), policy=text),
    }
    for name, call in calls.items():
        with pytest.raises(MarketError) as caught:
            call()
        assert says in caught.value.message and hint in caught.value.hint
        files = [market] if name == "plan" else [market, agents]
        flags = ["-o", out, "--policy", text]
        code, told, err = run_cli(monkeypatch, capsys, name, *files, *flags)
        assert (code, told, err) == (2, "", f"error: {caught.value}\n") and not out.exists()


def test_the_default_is_newton_and_can_start_warm(jdpack, tmp_path):
    market, agents, first = write_market(tmp_path), write_agents(tmp_path), tmp_path / "first"
    out, _ = jdpack("solve", market, agents, "-o", first, "--json", "-q")
    assert json.loads(out)["policy"] == Newton().to_dict()
    board = first / "public" / "billboard.jsonl"
    flags = ["--warm-start", board, "--json", "-q"]
    out, _ = jdpack("solve", market, agents, "-o", tmp_path / "again", *flags)
    data = json.loads(out)
    assert len(data["policy"]["start_prices"]) == 2
    assert data["releases"] < len(Billboard.read(board).releases)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--policy", "mwu-adaptive", "--warm-start", "x"], "--warm-start is for --policy newton"),
        (["--policy", "dual-gd", "--warm-start", "x"], "--warm-start is for --policy newton"),
        (["--policy", "dual-gd:rounds=0"], "rounds must be from 1 to 1000000, not 0"),
        (["--warm-start", "missing.jsonl"], "cannot read billboard 'missing.jsonl'"),
    ],
)
def test_policies_that_cannot_run_are_refused(monkeypatch, capsys, tmp_path, flags, said):
    market, agents, out = write_market(tmp_path), write_agents(tmp_path), tmp_path / "out"
    code, _, err = run_cli(monkeypatch, capsys, "solve", market, agents, "-o", out, *flags)
    assert code == 2 and said in err and not out.exists()


def test_the_summary_shows_the_certificate(jdpack, tmp_path):
    market, agents = write_market(tmp_path), write_agents(tmp_path)
    flags = [market, agents, "--seed", "2", "-q"]
    text, _ = jdpack("solve", *flags, "-o", tmp_path / "a")
    out, _ = jdpack("solve", *flags, "-o", tmp_path / "b", "--json")
    data = json.loads(out)
    certificate = Billboard.read(tmp_path / "a" / "public" / "billboard.jsonl").certificate
    for name in ["welfare_at_least", "optimum_at_most", "ratio_at_least", "value_beta", "beta"]:
        assert data[name] == getattr(certificate, name)
    assert 0.0 < data["ratio_at_least"] < 1.0
    assert data["welfare_at_least"] <= data["curator"]["welfare"] <= data["optimum_at_most"]
    shown = f"at least {int(1e4 * data['ratio_at_least']) / 100:.2f}% of the optimum"
    assert shown in text
    assert (
        f"at least {number_text.short_down(data['welfare_at_least'])}; the optimum at most" in text
    )
    page = (tmp_path / "a" / "public" / "index.html").read_text()
    assert f"At least {int(1e3 * data['ratio_at_least']) / 10:.1f}% of the best" in page


def test_a_run_without_noise_says_so_everywhere(jdpack, tmp_path):
    market, agents, out = write_market(tmp_path), write_agents(tmp_path), tmp_path / "out"
    text, _ = jdpack("solve", market, agents, "-o", out, "--epsilon", "inf", "-q")
    assert "NONE: this run was made without noise" in text
    assert "joint differential privacy" not in text
    for page in ["public/index.html", "private/report.html"]:
        assert "Not private: this run was made without noise" in (out / page).read_text()
    header = Billboard.read(out / "public" / "billboard.jsonl").header
    assert not header.private and header.budget.epsilon == float("inf")
    told, _ = jdpack("solve", market, agents, "-o", tmp_path / "j", "--epsilon", "inf", "--json")
    data = json.loads(told)
    assert data["private"] is False
    assert (data["epsilon"], data["rho"], data["rho_spent"]) == (None, None, None)


# --- clamping -----------------------------------------------------------------------------


def test_clamping_is_told_to_the_curator_only(jdpack, tmp_path):
    """The public files are those of the clamped records, byte for byte."""
    market, seed = write_market(tmp_path), ["--seed", "5", *FAST, "--json", "-q"]
    wild = write_agents(tmp_path, beyond=(11.0, 2.5, 1e9))
    tame = write_agents(tmp_path, beyond=(10.0, 2.0, 3.0), name="tame.parquet")
    wild_out, _ = jdpack("solve", market, wild, "-o", tmp_path / "wild", "--clamp", *seed)
    tame_out, _ = jdpack("solve", market, tame, "-o", tmp_path / "tame", *seed)
    assert json.loads(wild_out)["curator"]["clamped"] == 3
    assert json.loads(tame_out)["curator"]["clamped"] == 0
    for name in ["billboard.jsonl", "index.html"]:
        assert (tmp_path / "wild" / "public" / name).read_bytes() == (
            tmp_path / "tame" / "public" / name
        ).read_bytes()
    report = (tmp_path / "wild" / "private" / "report.html").read_text()
    assert "clamped to the public bounds</dt><dd>3<" in report
    text, _ = jdpack("solve", market, wild, "-o", tmp_path / "text", "--clamp", *FAST, "-q")
    private = text[text.index("curator only") :]
    assert "3 numbers beyond the public bounds" in private
    assert "clamp" not in text[: text.index("curator only")]


# --- allocate -----------------------------------------------------------------------------


@pytest.mark.parametrize("divisible", [False, True], ids=["indivisible", "divisible"])
@pytest.mark.parametrize("options", [1, 3], ids=["single", "multi"])
def test_allocate_agrees_with_the_bulk_allocation(jdpack, tmp_path, divisible, options):
    market = write_market(tmp_path, divisible=divisible, options=options)
    agents, out = write_agents(tmp_path, options=options), tmp_path / "out"
    summary, _ = jdpack("solve", market, agents, "-o", out, *FAST, "--seed", "3", "--json", "-q")
    given = pyarrow.parquet.read_table(out / "private" / "allocation.parquet").to_pandas()
    column = "share" if divisible else "granted"
    assert list(given.columns) == ["id", *(["option"] if options > 1 else []), column]
    records = pyarrow.parquet.read_table(agents).to_pandas()
    assert given["id"].tolist() == records["id"].tolist()
    assert 0 < given[column].sum() < len(given), "some get something, some nothing"
    winners = given["id"][given[column] > 0].nunique()  # an agent may get of several options
    assert json.loads(summary)["curator"]["winners"] == winners <= 400
    billboard = out / "public" / "billboard.jsonl"
    winner = given["id"][given[column] > 0].iloc[0]
    for agent in [winner, "Ä0", "Ä17", "Ä399"]:
        own = records[records["id"] == agent]
        flags = []
        for _, row in own.iterrows():
            flags += ["--value", repr(float(row["value"]))]
            flags += ["--demand", f"nurses={float(row['nurses'])!r},beds={float(row['beds'])!r}"]
        stdout, _ = jdpack("allocate", billboard, "--id", agent, *flags, "--json")
        data = json.loads(stdout)
        expected = given[given["id"] == agent][column].astype(float).tolist()
        assert data["given"] == expected and data["share"] == sum(expected)
        assert data["private"] is False
        in_order = [f.replace("nurses=", "") for f in flags]
        in_order = [",".join(reversed(f.split(",beds="))) if "beds" in f else f for f in in_order]
        assert jdpack("allocate", billboard, "--id", agent, *in_order, "--json")[0] == stdout
    text, _ = jdpack("allocate", billboard, "--id", agent, *flags)
    assert "NOT PRIVATE" in text
    assert "How close it was" in text
    assert ("option 1" in text) == (len(own) > 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--demand", "1"], "1 amounts"),
        (["--demand", "1,x"], "'1,x'"),
        (["--demand", "beds=1,beds=2"], "'beds=1,beds=2'"),
        (["--demand", "beds=1,,nurses=2"], "',nurses'"),
        (["--demand", "beds=1,"], "'beds=1,'"),
        (["--demand", "beds=1,250"], "'1,250' may mean 1.25 or 1250"),
        (["--demand", "bed=1"], "'bed'"),
        (["--demand", "nan,1"], "nan"),
        (["--demand", "1,1", "--demand", "1,1"], "1 values but 2 demands"),
    ],
    ids=str,
)
def test_allocate_refuses_in_a_sentence(jdpack, tmp_path, monkeypatch, capsys, arguments, says):
    out = tmp_path / "out"
    jdpack("solve", write_market(tmp_path), write_agents(tmp_path), "-o", out, *FAST, "-q")
    billboard = out / "public" / "billboard.jsonl"
    code, stdout, err = run_cli(
        monkeypatch, capsys, "allocate", billboard, "--id", "Ä1", "--value", "1", *arguments
    )
    assert (code, stdout) == (2, "")
    assert says in err.splitlines()[0] and err.startswith("error: ")


@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "unfinished", "binary"])
def test_allocate_refuses_a_damaged_billboard(jdpack, tmp_path, monkeypatch, capsys, damage):
    out = tmp_path / "out"
    jdpack("solve", write_market(tmp_path), write_agents(tmp_path), "-o", out, *FAST, "-q")
    billboard = out / "public" / "billboard.jsonl"
    lines = billboard.read_bytes().splitlines(keepends=True)
    if damage == "missing":
        billboard.unlink()
    elif damage == "cut":
        billboard.write_bytes(b"".join(lines)[:-5])
    elif damage == "changed":
        billboard.write_bytes(b"".join(lines).replace(b'"weight":', b'"weight": ', 1))
    elif damage == "unfinished":
        billboard.write_bytes(b"".join(lines[:-1]))
    else:
        billboard.write_bytes(b"\xff\x00\n")
    code, stdout, err = run_cli(
        monkeypatch, capsys,
        "allocate", billboard, "--id", "Ä1", "--value", "1", "--demand", "1,1",
    )  # fmt: skip
    assert (code, stdout) == (2, "") and err.startswith("error: ")
    assert "billboard" in err.splitlines()[0]


# --- seeded runs --------------------------------------------------------------------------


def test_a_seeded_run_says_so_everywhere(jdpack, tmp_path):
    market, agents = write_market(tmp_path), write_agents(tmp_path)
    command = ["solve", market, agents, *FAST, "--seed", "1", "-q"]
    text, _ = jdpack(*command, "-o", tmp_path / "text")
    assert (
        "NONE: this run was made with seeded noise" in text
        and "joint differential privacy" not in text
    )
    data, _ = jdpack(*command, "-o", tmp_path / "json", "--json")
    assert json.loads(data)["private"] is False
    folder = tmp_path / "text"
    for page in ["public/index.html", "private/report.html"]:
        assert "Not private: this run was made with seeded noise" in (folder / page).read_text()
    assert Billboard.read(folder / "public" / "billboard.jsonl").header.private is False
    flags = ["--id", "Ä1", "--value", "1", "--demand", "1,1"]
    told, _ = jdpack("allocate", folder / "public" / "billboard.jsonl", *flags)
    assert told.startswith("NOT PRIVATE")
    told, _ = jdpack("allocate", folder / "public" / "billboard.jsonl", *flags, "--json")
    assert json.loads(told)["private"] is False
    for name in ["public/billboard.jsonl", "private/allocation.parquet"]:
        assert (folder / name).read_bytes() == (tmp_path / "json" / name).read_bytes()


def test_a_private_run_says_nothing_of_the_kind(jdpack, tmp_path):
    """The negative control of the test above; two such runs differ."""
    market, agents = write_market(tmp_path), write_agents(tmp_path)
    boards = []
    for name in ["a", "b"]:
        text, _ = jdpack("solve", market, agents, "-o", tmp_path / name, *FAST, "-q")
        pages = [(tmp_path / name / p).read_text() for p in ["public/index.html"]]
        pages.append((tmp_path / name / "private" / "report.html").read_text())
        assert not any("seeded" in shown for shown in [text, *pages])
        boards.append(Billboard.read(tmp_path / name / "public" / "billboard.jsonl"))
        assert boards[-1].header.private
    assert boards[0].releases[0].answer != boards[1].releases[0].answer
    assert boards[0].seed != boards[1].seed


# --- demo, help, version ------------------------------------------------------------------


def test_demo(jdpack, tmp_path):
    out, err = jdpack("demo", "-o", tmp_path / "demo", "--json", "-q")
    data = json.loads(out)
    assert err == "" and data["private"] is True and data["market"] == "Night charging"
    assert data["curator"]["agents"] == Market.from_toml(tmp_path / "demo" / "market.toml").agents
    assert files_of(tmp_path / "demo") == [
        "agents.parquet",
        "ledger.db",
        "market.toml",
        "out/private/allocation.parquet",
        "out/private/granted.parquet",
        "out/private/journal.jsonl",
        "out/private/report.html",
        "out/private/run.json",
        "out/public/billboard.jsonl",
        "out/public/index.html",
    ]
    assert (tmp_path / "demo" / "market.toml").read_text() == demo.MARKET


def test_version_and_help(jdpack, monkeypatch, capsys):
    assert jdpack("--version")[0].strip() == __version__
    for command in ["solve", "allocate", "demo"]:
        assert "--help" in jdpack(command, "--help")[0]


# --- as a process of its own --------------------------------------------------------------


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "jdpack.cli", *map(str, arguments)]


def test_the_process_exits_with_a_code_and_a_sentence(tmp_path):
    market, out = write_market(tmp_path), tmp_path / "out"
    done = subprocess.run(
        command("solve", market, tmp_path / "missing.parquet", "-o", out),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert "error: there are no agents at" in done.stderr and "Traceback" not in done.stderr
    assert not out.exists()


def test_ctrl_c_leaves_a_billboard_that_reads_back(tmp_path):
    market, agents, out = write_market(tmp_path), write_agents(tmp_path), tmp_path / "out"
    billboard = out / "public" / "billboard.jsonl"
    # A child of a process that ignores Ctrl-C would ignore it too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    run = subprocess.Popen(  # thousands of rounds
        command("solve", market, agents, "-o", out, "--policy", "mwu-adaptive:alpha=0.001", "-q"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    signal.signal(signal.SIGINT, before)
    try:
        deadline = time.monotonic() + 120
        while not billboard.exists() or billboard.read_bytes().count(b"\n") < 30:
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        stdout, stderr = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130
    assert stdout == ""
    first, hint = stderr.splitlines()[-2:]  # after the warning that supply is small
    assert first == "interrupted: what is posted is spent, and a ledger keeps what was reserved"
    assert hint == f"hint: `jdpack resume {out}` finishes the run, and spends nothing more"
    board = Billboard.read(billboard)
    assert len(board.releases) >= 29 and not board.finished
    assert board.header.private
    assert files_of(out) == ["private/journal.jsonl", "private/run.json", "public/billboard.jsonl"]


def test_ctrl_c_that_is_swallowed_is_heeded_at_the_next_round(tmp_path, monkeypatch, capsys):
    """As when it strikes in a destructor, whose exceptions Python drops."""
    real, drawn = SystemRandomness.draw, []

    def draw(*arguments):
        if not drawn:
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)
        drawn.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(SystemRandomness, "draw", draw)
    market, agents, out = write_market(tmp_path), write_agents(tmp_path), tmp_path / "out"
    code, _, err = run_cli(monkeypatch, capsys, "solve", market, agents, "-o", out, "--quiet")
    assert code == 130 and "interrupted: " in err
    assert len(drawn) == 1
    assert not Billboard.read(out / "public" / "billboard.jsonl").finished


def test_ctrl_c_before_the_first_release_leaves_nothing(tmp_path, monkeypatch, capsys):
    market, agents = write_market(tmp_path), write_agents(tmp_path)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["jdpack.engines.memory"], "encode", interrupted)
    for quiet in [["--quiet"], []]:
        code, out, err = run_cli(
            monkeypatch, capsys, "solve", market, agents, "-o", tmp_path / "out", *quiet
        )
        assert (code, out) == (130, "") and "interrupted: " in err
    assert not (tmp_path / "out").exists()


def test_errors_of_the_program_itself_are_not_hidden(tmp_path, monkeypatch):
    """Only what jdpack raises on purpose becomes a sentence."""
    market, agents = write_market(tmp_path), write_agents(tmp_path)

    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(sys.modules["jdpack.run.solve"], "solve", broken)
    monkeypatch.setattr(sys, "argv", ["jdpack", "solve", str(market), str(agents), "-o", "x"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


@pytest.mark.parametrize("name", ["run:12", "s3:bucket", "mock:out"])
def test_an_output_folder_may_have_a_colon(tmp_path, jdpack, monkeypatch, name):
    """Arrow reads such a path as the address of another file system."""
    monkeypatch.chdir(tmp_path)
    jdpack("solve", write_market(tmp_path), write_agents(tmp_path), "-o", name, "--quiet")
    with (tmp_path / name / "private" / "allocation.parquet").open("rb") as file:
        assert pyarrow.parquet.read_table(file).num_rows == 400
    assert not (tmp_path / "out").exists() and not (tmp_path / "bucket").exists()


def test_a_full_disk_during_the_run_is_a_sentence(tmp_path):
    market, agents, out = write_market(tmp_path), write_agents(tmp_path), tmp_path / "out"
    solve_command = command("solve", market, agents, "-o", out)
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 20; exec "$@"', "-", *solve_command],
        capture_output=True, text=True, preexec_fn=ignore_file_size_signal,
    )  # fmt: skip
    assert done.returncode == 2
    assert "error: cannot write the billboard: " in done.stderr
    assert "Traceback" not in done.stderr
    lines = (out / "public" / "billboard.jsonl").read_text().splitlines()
    releases = re.search(r"the cost of its (\d+) releases is spent", done.stderr)
    assert len(lines) - 2 <= int(releases[1]) <= len(lines) - 1  # the last line may be torn


def ignore_file_size_signal() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def test_a_result_shows_no_record(tmp_path):
    rng = np.random.default_rng(3)
    market = Market(supply=[50.0], max_demand=1.0, max_value=1.0, agents=100)
    result = solve(
        market, values=rng.random(100), demands=rng.random((100, 1)),
        epsilon=1.0, delta=1e-6, seed=1,
    )  # fmt: skip
    assert "array" not in repr(result) and "Part" not in repr(result)


# --- engines ------------------------------------------------------------------------------


def test_a_resource_whose_name_has_a_comma_can_be_named(jdpack, tmp_path):
    market = Market(
        supply=[500.0, 500.0], max_demand=1.0, max_value=1.0, agents=3, names=["A, early", "B"]
    )
    records = {"values": [1.0] * 3, "demands": [[1.0, 0.0]] * 3}
    solve(market, **records, epsilon=1.0, delta=1e-6, seed=1, output=tmp_path / "out")
    board = tmp_path / "out" / "public" / "billboard.jsonl"
    asked = ["allocate", board, "--id", 1, "--value", 1, "--json"]
    assert jdpack(*asked, "--demand", "A, early=1,B=0.5") == jdpack(*asked, "--demand", "1,0.5")


@pytest.mark.parametrize(
    "flags",
    [
        ["--engine", "memory"],
        ["--engine", "mapped"],
        ["--engine", "mapped", "--memory", "20MB"],
        ["--engine", "mapped", "--store", "codes", "--memory", "1 GB"],
    ],
    ids=" ".join,
)
def test_every_engine_gives_the_same(jdpack, tmp_path, monkeypatch, flags):
    market, agents = write_market(tmp_path), write_agents(tmp_path)
    jdpack("solve", market, agents, "-o", tmp_path / "plain", *FAST, "--seed", 3, "-q")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    jdpack("solve", market, agents, "-o", "out", *FAST, "--seed", 3, "-q", *flags)
    for name in files_of(tmp_path / "plain"):
        same = (here / "out" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
        assert same or name == "private/run.json"
    stays = ["codes", "out"] if "--store" in flags else ["out"]
    assert sorted(p.name for p in here.iterdir()) == stays
    engine = json.loads((here / "out" / "private" / "run.json").read_text())["engine"]
    assert engine["kind"] == flags[1]
    assert engine.get("store") == (str(here / "codes") if "--store" in flags else None)


@pytest.mark.parametrize(
    ("flags", "says", "hint"),
    [
        (["--engine", "abacus"], "there is no engine 'abacus'", "memory, mapped, ray"),
        (["--engine", ""], "there is no engine ''", "memory, mapped, ray"),
        (["--engine", "mapped://here"], "there is no engine", "memory, mapped, ray"),
        (["--store", "codes"], "--store is for --engine mapped or ray", ""),
        (["--memory", "1GB"], "--memory is for --engine mapped", ""),
        (["--engine", "memory", "--store", "c"], "--store is for --engine mapped or ray", ""),
        (["--engine", "memory", "--memory", "1GB"], "--memory is for --engine mapped", ""),
        (["--engine", "ray", "--memory", "1GB"], "--memory is for --engine mapped", ""),
        (["--engine", "ray://h:1", "--memory", "1GB"], "--memory is for --engine mapped", ""),
        (["--engine", "mapped", "--workers", "2"], "--workers is for --engine ray", ""),
        (["--engine", "mapped", "--allocation", "x"], "--allocation is for --engine ray", ""),
        (["--engine", "mapped", "--patience", "9"], "--patience is for --engine ray", ""),
        (["--engine", "mapped://here", "--store", "c"], "--store is for --engine mapped", ""),
        (["--engine", "mapped", "--memory", "much"], "memory 'much' is not a size", "500MB"),
        (["--engine", "mapped", "--memory", "9MB"], "memory '9MB' is not a size", "at least 10MB"),
    ],
    ids=lambda flags: " ".join(flags) if isinstance(flags, list) else "",
)
def test_engines_and_settings_that_do_not_go_together_are_refused(
    monkeypatch, capsys, tmp_path, flags, says, hint
):
    market, agents = write_market(tmp_path), write_agents(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = files_of(tmp_path)
    arguments = ["solve", market, agents, "-o", "out", *FAST, *flags]
    code, out, err = run_cli(monkeypatch, capsys, *arguments)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and says in err and hint in err.partition("hint: ")[2]
    assert files_of(tmp_path) == before
