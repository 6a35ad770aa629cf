"""Verification: a right billboard passes, and one with any bit changed does not."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from helpers import run_cli
from jdpack import (
    AgentsError,
    Billboard,
    BillboardError,
    BudgetError,
    JdpackError,
    Ledger,
    LedgerError,
    LocalAgent,
    LocalRun,
    Market,
    OutputError,
    solve,
    verify,
    verify_run,
)
from jdpack.billboard.lines import Header, Release, Seed
from jdpack.engines.settings import Ray, to_dict
from jdpack.market.market import Columns
from jdpack.policies import registry
from jdpack.policies.dual_gd import DualGd
from jdpack.policies.mirror_descent import MirrorDescent
from jdpack.policies.mwu_adaptive import MwuAdaptive
from jdpack.policies.mwu_fixed import MwuFixed
from jdpack.policies.mwu_online import MwuOnline
from jdpack.policies.newton import Newton
from jdpack.privacy import queries
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import Gaussian
from jdpack.protocol.run_state import RunState
from jdpack.storage import hash_chain

N = 400
POLICIES = [
    Newton(),
    MwuAdaptive(0.5),
    MwuAdaptive(0.5, noise="truncated-laplace"),
    MwuFixed(rounds=6),
    DualGd(rounds=6),
    MirrorDescent(rounds=6),
    MwuOnline(batch=10),
]


def market(divisible=False, **more):
    settings = {"supply": [300.0, 350.0], "max_demand": [2.0, 3.0], "max_value": 10.0}
    settings |= {"epsilon": 9.0, "delta": 1e-6, "names": ["beds", "nurses"], "agents": N}
    return Market(**settings | {"divisible": divisible} | more)


def records(seed=1, options=1):
    rng = np.random.default_rng(seed)
    rows = N * options
    return pa.table(
        {
            "id": [f"p{i // options:03d}" for i in range(rows)],
            "value": rng.uniform(0, 10, rows),
            "beds": rng.uniform(0, 2, rows),
            "nurses": rng.uniform(0, 3, rows),
        }
    )


def lines_of(folder):
    return (folder / "public" / "billboard.jsonl").read_bytes()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Output folders of runs, each made once."""
    place, made = tmp_path_factory.mktemp("runs"), {}

    def run(policy=POLICIES[1], divisible=False, options=1):
        key = str(policy), divisible, options
        if key not in made:
            agents = place / f"{len(made)}.parquet"
            pyarrow.parquet.write_table(records(options=options), agents)
            made[key] = place / f"run {len(made)}"
            columns = Columns(id="id")
            public = market(divisible, options=options, columns=columns)
            solve(public, agents, policy=policy, output=made[key])
        return made[key]

    return run


@pytest.mark.parametrize("divisible", [False, True])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: str(p.to_dict()))
def test_every_policys_run_is_right(runs, policy, divisible):
    folder = runs(policy, divisible)
    found = verify(folder / "public" / "billboard.jsonl")
    board = Billboard.read(folder / "public" / "billboard.jsonl")
    assert found.finished and found.to_dict()["private"] is True
    assert 0 < found.spent.rho <= board.header.budget.rho
    assert found.to_dict()["head"] == json.loads(list(board.lines())[-1])["hash"]
    whole = verify_run(folder)
    assert whole.spent == found.spent and whole.agents == N
    assert max(whole.loads) <= 1.0 and "curator only" in str(whole)


def test_a_run_of_agents_who_add_the_noise_themselves_is_right():
    public = market()
    run = LocalRun(public, batch=20)
    rows = records().to_pylist()
    people = [
        LocalAgent(
            run.board.header, value=r["value"], demand=[r["beds"], r["nurses"]], agent=r["id"]
        )
        for r in rows
    ]
    while (step := run.step) is not None:
        asked = [p for p in people if p.turn(step.batch.count) == step.batch.index]
        run.post([p.answer(step) for p in asked])
    assert verify(run.board).finished


def test_every_beginning_of_a_run_is_right_and_not_finished(runs):
    lines = lines_of(runs()).decode().splitlines(keepends=True)
    spent = []
    for count in range(1, len(lines)):
        found = verify(Billboard.from_text("".join(lines[:count])))
        assert not found.finished and "NOT FINISHED" in str(found)
        spent.append(found.spent.rho)
    assert spent == sorted(spent) and spent[0] == 0
    assert "NOT FINISHED" not in str(verify(Billboard.from_text("".join(lines))))


def test_any_flipped_bit_is_found(runs, tmp_path):
    data, path = lines_of(runs(MwuFixed(rounds=2), True)), tmp_path / "billboard.jsonl"
    bits = np.random.default_rng(3).integers(8, size=len(data)).tolist()
    ends = [i for i, byte in enumerate(data) if byte == 10]
    for at, bit in [*enumerate(bits), *((end, bit) for end in ends for bit in range(8))]:
        wrong = bytearray(data)
        wrong[at] ^= 1 << bit
        path.write_bytes(wrong)
        with pytest.raises(BillboardError):
            verify(path)


def test_lines_that_are_lost_swapped_or_doubled_are_found(runs, tmp_path):
    lines, path = lines_of(runs()).splitlines(keepends=True), tmp_path / "billboard.jsonl"
    for at in range(len(lines) - 1):
        for wrong in (
            lines[:at] + lines[at + 1 :],
            lines[: at + 1] + lines[at:],
            [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]],
        ):
            path.write_bytes(b"".join(wrong))
            with pytest.raises(BillboardError):
                verify(path)


def resealed(folder, change):
    """A billboard with changed lines and a right hash chain."""
    last, lines = "", []
    data = [json.loads(line) for line in lines_of(folder).splitlines()]
    change(data)
    for record in data:
        bare = {key: value for key, value in record.items() if key not in ("prev", "hash")}
        lines.append(hash_chain.seal(bare, last))
        last = hash_chain.hash_of(lines[-1])
    return Billboard.from_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("part", ["rho", "beta", "epsilon", "delta"])
def test_a_budget_that_does_not_prove_its_promise_is_found(runs, part):
    def change(data):
        data[0]["budget"][part] *= 1.01 if part in ("rho", "beta") else 0.99

    with pytest.raises(BillboardError, match=r"line 1: .* do not prove"):
        verify(resealed(runs(), change))


def test_another_seed_is_found(runs):
    def change(data):
        data[-1]["seed"] = "00" * 16

    with pytest.raises(BillboardError, match="committed"):
        resealed(runs(), change)


class Greedy:
    """A policy that asks for more than the budget covers."""

    truncated = False

    def __init__(self, scale):
        self.scale = scale

    def start(self, market, budget):
        return 0

    def step(self, state):
        from jdpack.billboard.lines import Step

        return Step("demand", (1, 1), Gaussian((self.scale,)), 1) if state < 10 else None

    def observe(self, state, release):
        return state + 1


def test_a_line_beyond_the_budget_is_found():
    public, budget = market(True), Budget.split(1.0, 1e-6, truncated=False)
    header = Header(public, Newton().to_dict(), budget, Seed(bytes(16)).commitment)
    squares = queries.change(public, "demand").squares
    exactly = (squares / (2 * budget.rho)) ** 0.5
    for scale, fits in [(exactly * 10**0.5 * 1.001, 10), (exactly * 9**0.5 * 1.001, 9)]:
        policy, board = Greedy(scale), Billboard(header)
        for _ in range(10):
            board.post(Release(policy.step(0), (5, 5)))
        if fits == 10:
            assert RunState(policy, board).filter.spent.rho <= budget.rho
        else:
            with pytest.raises(BudgetError, match=r"billboard line 11: .* exceed"):
                RunState(policy, board)


def test_numbers_that_no_run_comes_to_are_a_sentence(runs):
    def change(data):
        for record in data[1:]:
            if record["type"] == "release":
                record["answer"] = [2**63 for _ in record["answer"]]

    for policy in POLICIES:
        with pytest.raises(JdpackError):
            verify(resealed(runs(policy), change))


# --- the curator's side ---------------------------------------------------------------------


def copy(folder, to):
    shutil.copytree(folder, to)
    path = to / "private" / "allocation.parquet"
    return to, path, pyarrow.parquet.read_table(path)


def rewrite(path, table):
    pyarrow.parquet.write_table(table, path)


@pytest.mark.parametrize("divisible", [False, True])
@pytest.mark.parametrize("options", [1, 3])
def test_any_row_that_is_not_what_the_billboard_gives_is_found(runs, tmp_path, divisible, options):
    folder, path, table = copy(runs(POLICIES[1], divisible, options), tmp_path / "run")
    assert verify_run(folder).winners > 0
    name = "share" if divisible else "granted"
    given = table[name].to_pylist()
    rng = np.random.default_rng(4)
    for at in {0, len(given) - 1, *rng.integers(0, len(given), 5).tolist()}:
        wrong = list(given)
        wrong[at] = wrong[at] + 2**-24 if divisible else not wrong[at]
        column = pa.array(wrong, table[name].type)
        rewrite(path, table.set_column(table.column_names.index(name), name, column))
        with pytest.raises(OutputError, match=rf"row {at + 1:,} of the allocation is .* should be"):
            verify_run(folder)
    for wrong, says in [
        (table.slice(0, table.num_rows - 1), "ends after"),
        (table.slice(0, 0), "ends after 0 rows"),
        (pa.concat_tables([table, table.slice(0, 1)]), "more than"),
        (pa.concat_tables([table.slice(1), table.slice(0, 1)]), "row 1 of"),
        (table.rename_columns(["name", *table.column_names[1:]]), "columns name"),
        (table.drop_columns([name]), "columns"),
    ]:
        rewrite(path, wrong)
        with pytest.raises(OutputError, match=says):
            verify_run(folder)
    path.unlink()
    with pytest.raises(OutputError, match="no allocation") as error:
        verify_run(folder)
    assert "resume" in error.value.hint


@pytest.mark.parametrize("place", ["its own folder", "a folder", "an address"])
def test_the_files_of_a_cluster_are_one_allocation(runs, tmp_path, place):
    folder, path, table = copy(runs(), tmp_path / "run")
    path.unlink()
    to = folder / "private" / "allocation" if place == "its own folder" else tmp_path / "elsewhere"
    to.mkdir()
    given = {"a folder": str(to), "an address": to.as_uri()}.get(place)
    run_file = folder / "private" / "run.json"
    run = json.loads(run_file.read_text())
    run["engine"] = to_dict(Ray(allocation=given))
    run_file.write_text(json.dumps(run))
    for at, start in enumerate(range(0, N, 100)):
        rewrite(to / f"run-{at:05d}-of-00004.parquet", table.slice(start, 100))
    (to / "notes.txt").write_text("not a table")
    assert verify_run(folder).agents == N
    (to / "run-00001-of-00004.parquet").rename(to / "run-00004-of-00004.parquet")
    with pytest.raises(OutputError, match="row 101 of the allocation is"):
        verify_run(folder)


def test_any_damage_of_an_allocation_is_found(runs, tmp_path):
    folder, path, _ = copy(runs(Newton(), True), tmp_path / "run")
    data = path.read_bytes()
    for at in range(4, len(data), 97):
        wrong = bytearray(data)
        wrong[at] ^= 16
        path.write_bytes(wrong)
        with pytest.raises(OutputError):
            verify_run(folder)
    path.write_bytes(data)
    verify_run(folder)


def test_another_page_is_found(runs, tmp_path):
    folder, _, _ = copy(runs(), tmp_path / "run")
    page = folder / "public" / "index.html"
    page.write_text(page.read_text().replace("No supply is ever exceeded", "No supply matters"))
    with pytest.raises(OutputError, match="is not the page of this billboard") as error:
        verify_run(folder)
    assert "allocation" not in error.value.hint and "resume" in error.value.hint
    with pytest.raises(LedgerError, match="has no ledger"):
        verify_run(folder, ledger=tmp_path / "ledger.db")
    page.unlink()
    verify_run(folder)


def test_the_ledger_must_know_the_run(tmp_path):
    agents = tmp_path / "agents.parquet"
    pyarrow.parquet.write_table(records(), agents)
    account = {"ledger": tmp_path / "ledger.db", "dataset": "clinic"}
    Ledger.create(account["ledger"], "clinic", epsilon=9.0, delta=1e-5)
    solve(market(), agents, policy=POLICIES[1], output=tmp_path / "run", **account)
    assert verify_run(tmp_path / "run").finished
    moved = tmp_path / "moved.db"
    account["ledger"].rename(moved)
    with pytest.raises(LedgerError, match="cannot find"):
        verify_run(tmp_path / "run")
    assert verify_run(tmp_path / "run", ledger=moved).finished
    other = tmp_path / "other.db"
    Ledger.create(other, "clinic", epsilon=9.0, delta=1e-5)
    with pytest.raises(LedgerError, match="did not reserve"):
        verify_run(tmp_path / "run", ledger=other)
    board = Billboard.read(tmp_path / "run" / "public" / "billboard.jsonl")
    run, budget, neighbours = board.header.commitment, board.header.budget, market().neighbours
    Ledger.open(other).reserve("clinic", run, budget, neighbours)
    with pytest.raises(LedgerError, match="this run as open"):
        verify_run(tmp_path / "run", ledger=other)
    Ledger.open(other).finish(run, "0" * 64)
    with pytest.raises(LedgerError, match="this run as finished, with another"):
        verify_run(tmp_path / "run", ledger=other)


def test_records_in_memory_are_given_again(tmp_path):
    table = records()
    arrays = {"values": table["value"].to_numpy(), "ids": table["id"].to_pylist()}
    arrays["demands"] = np.stack([table["beds"].to_numpy(), table["nurses"].to_numpy()], axis=1)
    solve(market(), **arrays, policy=POLICIES[1], output=tmp_path / "run")
    with pytest.raises(AgentsError, match="given in memory"):
        verify_run(tmp_path / "run")
    assert verify_run(tmp_path / "run", **arrays).agents == N


def test_other_records_runs_and_seeds_are_found(runs, tmp_path):
    folder, _, _ = copy(runs(), tmp_path / "run")
    other = tmp_path / "other.parquet"
    pyarrow.parquet.write_table(records(seed=2), other)
    with pytest.raises(AgentsError, match="not the records of this run"):
        verify_run(folder, other)
    path = folder / "private" / "run.json"
    text = path.read_text()
    path.write_text(json.dumps(json.loads(text) | {"coins": "00" * 16}))
    with pytest.raises(BillboardError, match="seed"):
        verify_run(folder)
    path.write_text(text)
    for name in ("billboard.jsonl", "index.html"):
        shutil.copy(runs(Newton()) / "public" / name, folder / "public")
    with pytest.raises(BillboardError, match="not the billboard of this run"):
        verify_run(folder)


def test_a_run_that_is_not_finished_has_no_allocation_yet(runs, tmp_path):
    folder, _, _ = copy(runs(), tmp_path / "run")
    path = folder / "public" / "billboard.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(BillboardError, match="not finished") as error:
        verify_run(folder)
    assert "jdpack resume" in error.value.hint


# --- the command line -----------------------------------------------------------------------


def test_the_command(runs, tmp_path, monkeypatch, capsys):
    folder = runs()
    board = folder / "public" / "billboard.jsonl"
    code, out, err = run_cli(monkeypatch, capsys, "verify", board)
    assert (code, err) == (0, "") and "right: the certificate" in out and "curator" not in out
    code, out, _ = run_cli(monkeypatch, capsys, "verify", board, "--json")
    assert json.loads(out) == verify(board).to_dict()
    code, out, err = run_cli(monkeypatch, capsys, "verify", folder)
    assert (code, err) == (0, "") and f"each of {N} agents" in out
    code, out, _ = run_cli(monkeypatch, capsys, "verify", folder, "--json", "-q")
    assert json.loads(out)["curator"]["agents"] == N
    code, _, err = run_cli(monkeypatch, capsys, "verify", board, "--agents", "x.parquet")
    assert code == 2 and "--agents and --ledger go with" in err
    code, _, err = run_cli(monkeypatch, capsys, "verify", tmp_path / "nothing")
    assert code == 2 and err.startswith("error: cannot read billboard")
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(b"".join(board.read_bytes().splitlines(keepends=True)[:-1]))
    code, out, err = run_cli(monkeypatch, capsys, "verify", cut)
    assert (code, err) == (1, "") and "NOT FINISHED" in out
    code, _, err = run_cli(monkeypatch, capsys, "verify", "x" * 300)
    assert code == 2 and err.startswith("error: cannot read billboard")
    wrong = tmp_path / "billboard.jsonl"
    wrong.write_bytes(board.read_bytes().replace(b'"weight":', b'"weight":1', 1))
    code, out, err = run_cli(monkeypatch, capsys, "verify", wrong)
    assert code == 2 and out == "" and "error: billboard line 2" in err


def solved(**more):
    return solve(market(), values=[1.0] * N, demands=[[1.0, 1.0]] * N, policy=POLICIES[1], **more)


def test_a_seeded_run_is_said_to_protect_nobody(tmp_path):
    result = solved(seed=1)
    found = verify(result.billboard)
    assert str(found).startswith("NOT PRIVATE") and found.to_dict()["private"] is False
    exact = solved(epsilon=float("inf"))
    assert verify(exact.billboard).to_dict()["rho"] is None
    assert "without noise" in str(verify(exact.billboard))


def test_a_budget_that_promises_little_is_said_to():
    for epsilon, weak in [(4.0, False), (4.5, True)]:
        result = solved(epsilon=epsilon)
        found = verify(result.billboard)
        assert str(found).startswith("LITTLE IS PROMISED: epsilon 4.5 is above 4") == weak
        assert (found.to_dict()["weakness"] is not None) == weak


def test_every_policy_is_here():
    assert {p.to_dict()["name"] for p in POLICIES} == set(registry.KINDS)
