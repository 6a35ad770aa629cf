"""An interrupted run resumes from its billboard, and ends as it would have without the break."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from helpers import check_error, forbid_drawing, run_cli
from jdpack import Billboard, Market, resume, solve, verify
from jdpack.door import SystemRandomness
from jdpack.engines.settings import Mapped
from jdpack.errors import AgentsError, BillboardError, JdpackError, MarketError, OutputError
from jdpack.market import grid
from jdpack.policies.mwu_adaptive import MwuAdaptive
from jdpack.policies.mwu_online import MwuOnline
from jdpack.policies.newton import Newton
from jdpack.privacy.accounting import Filter
from jdpack.protocol import closing
from jdpack.protocol.charge import charge
from jdpack.storage import hash_chain

pytestmark = pytest.mark.long

N = 400
POLICIES = {
    "newton": Newton(),
    "mwu-adaptive": MwuAdaptive(0.5),
    "truncated": MwuAdaptive(0.5, noise="truncated-laplace"),
    "mwu-online": MwuOnline(batch=20),
}
RUNS = [(name, divisible) for name in POLICIES for divisible in (False, True)]
FILES = [
    "private/allocation.parquet",
    "private/granted.parquet",
    "private/report.html",
    "public/index.html",
]


def clinic(divisible=False, **more):
    settings = {"supply": [300.0, 350.0], "max_demand": [2.0, 3.0], "max_value": 10.0}
    settings |= {"epsilon": 9.0, "delta": 1e-6, "names": ["beds", "nurses"]}
    return Market(**settings | {"agents": N, "divisible": divisible} | more)


def columns(seed=1):
    rng = np.random.default_rng(seed)
    return {
        "id": np.arange(N),
        "value": rng.uniform(0, 10, N),
        "beds": rng.uniform(0, 2, N),
        "nurses": rng.uniform(0, 3, N),
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the records, and the runs that were not cut."""
    folder = tmp_path_factory.mktemp("runs")
    pyarrow.parquet.write_table(pa.table(columns()), folder / "agents.parquet")
    return folder


@pytest.fixture(autouse=True)
def no_power_cuts(monkeypatch):
    """Skip syncs for speed: what a killed process wrote is there anyway."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def whole(place, name="mwu-adaptive", divisible=False, seed=7):
    """The folder of a run that was not interrupted."""
    folder = place / f"{name} {divisible} {seed}"
    if not folder.exists():
        solve(
            clinic(divisible),
            place / "agents.parquet",
            policy=POLICIES[name],
            seed=seed,
            output=folder,
        )
    return folder


def cut(run, to, lines=None, *, torn=0, files=()):
    """A run as a kill would have left it: some lines, bytes of the next one, and some files."""
    shutil.copytree(run, to)
    board = to / "public" / "billboard.jsonl"
    all_lines = board.read_bytes().splitlines(keepends=True)
    count = len(all_lines) if lines is None else lines
    board.write_bytes(b"".join(all_lines[:count]) + b"".join(all_lines[count:])[:torn])
    last = count if torn else count - 1
    (to / "private" / "journal.jsonl").write_bytes(all_lines[last] if last > 0 else b"")
    for name in set(FILES) - set(files):
        (to / name).unlink()
    return to


def length(run):
    return (run / "public" / "billboard.jsonl").read_bytes().count(b"\n")


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def sampled(count):
    """Where to cut a billboard of this many lines: early, anywhere, and wherever a run closes."""
    some = np.random.default_rng(count).integers(1, count, 3).tolist()
    return sorted({1, 2, *some, *range(max(1, count - 7), count + 1)})


def reseal(folder, change):
    """Rewrite a billboard with a valid hash chain; `change` takes and returns a list of records."""
    path, last = folder / "public" / "billboard.jsonl", ""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    sealed = []
    for record in change(records):
        bare = {key: value for key, value in record.items() if key not in ("prev", "hash")}
        sealed.append(hash_chain.seal(bare, last))
        last = json.loads(sealed[-1])["hash"]
    path.write_text("".join(f"{line}\n" for line in sealed))
    (folder / "private" / "journal.jsonl").write_text(f"{sealed[-1]}\n")
    Billboard.read(path)  # it is one that reads well


# --- the same end -------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "divisible"), RUNS)
def test_a_seeded_run_cut_anywhere_ends_as_if_it_had_not_been(place, tmp_path, name, divisible):
    run = whole(place, name, divisible)
    wanted = content(run)
    for count in sampled(length(run)):
        folder = cut(run, tmp_path / str(count), count)
        result = resume(folder)
        assert content(folder) == wanted, count
        assert result.billboard.finished and result.spent.rho <= result.billboard.header.budget.rho


def test_the_other_policies_too(place, tmp_path):
    from jdpack.policies.registry import KINDS

    for name in ("mwu-fixed", "dual-gd", "mirror-descent"):
        run = place / name
        policy = KINDS[name](rounds=6)
        solve(clinic(), place / "agents.parquet", policy=policy, seed=1, output=run)
        for count in (1, 4, length(run) - 3):
            folder = cut(run, tmp_path / f"{name} {count}", count)
            resume(folder)
            assert content(folder) == content(run)


@pytest.mark.parametrize("files", [[], FILES[:1], FILES[:2], FILES[1:], FILES])
def test_a_finished_run_gets_the_files_that_it_lacks(place, tmp_path, files, monkeypatch):
    run = whole(place)
    folder = cut(run, tmp_path / "cut", files=files)
    forbid_drawing(monkeypatch)
    resume(folder)
    assert content(folder) == content(run)


def test_half_files_of_a_killed_run_are_replaced(place, tmp_path):
    run = whole(place)
    folder = cut(run, tmp_path / "cut")
    for name in FILES:
        path = folder / name
        (path.parent / f".{path.name}.x7_q.part").write_bytes(b"half")
    resume(folder)
    assert content(folder) == content(run)


def test_a_torn_last_line_is_dropped(place, tmp_path):
    run = whole(place)
    lines = (run / "public" / "billboard.jsonl").read_bytes().splitlines(keepends=True)
    rng = np.random.default_rng(3)
    for at in range(1, len(lines)):
        size = len(lines[at])
        for torn in {1, int(rng.integers(1, size)), size - 1}:
            folder = cut(run, tmp_path / f"{at} {torn}", at, torn=torn)
            resume(folder)
            assert content(folder) == content(run), (at, torn)


def test_a_run_may_be_cut_again_and_again(place, tmp_path):
    run = whole(place, "newton")
    folder = cut(run, tmp_path / "cut", 1)

    class StopError(Exception):
        pass

    def after(rounds):
        def show(progress):
            if progress.stage == "rounds" and progress.rounds >= rounds:
                raise StopError

        return show

    before = 0
    for rounds in (3, 4, 30, 80):
        with pytest.raises(StopError):
            resume(folder, progress=after(rounds))
        assert length(folder) > before
        before = length(folder)
    resume(folder)
    assert content(folder) == content(run)


@pytest.mark.parametrize("stored", [False, True])
def test_a_mapped_run_goes_on(place, tmp_path, monkeypatch, stored):
    """From any folder, and in the store that it had."""
    monkeypatch.chdir(tmp_path)
    run, engine = tmp_path / "run", Mapped("codes") if stored else Mapped()
    agents = os.path.relpath(place / "agents.parquet")
    solve(clinic(), agents, policy=POLICIES["mwu-adaptive"], seed=7, output="run", engine=engine)
    there = sorted(tmp_path.rglob("*"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    shutil.move(cut(run, tmp_path / "cut", 5), elsewhere / "cut")
    resume("cut")
    assert content(elsewhere / "cut") == content(run)
    assert content(run)[FILES[0]] == content(whole(place))[FILES[0]]
    assert [p.name for p in elsewhere.iterdir()] == ["cut"]
    assert sorted(p for p in tmp_path.rglob("*") if elsewhere not in (p, *p.parents)) == there


def test_records_in_memory_are_given_again(place, tmp_path):
    data = columns()
    records = {
        "values": data["value"],
        "demands": np.stack([data["beds"], data["nurses"]], axis=1),
        "ids": data["id"],
    }
    run = tmp_path / "run"
    solve(clinic(), **records, policy=POLICIES["mwu-adaptive"], seed=7, output=run)
    folder = cut(run, tmp_path / "cut", 4)
    before = content(folder)
    with pytest.raises(AgentsError) as error:
        resume(folder)
    check_error(error.value, ["given in memory"], "give them again")
    with pytest.raises(AgentsError, match="have changed"):
        resume(folder, **records | {"values": data["value"][::-1]})
    assert content(folder) == before
    resume(folder, **records)
    assert content(folder) == content(run)
    table = cut(run, tmp_path / "table", 4)
    resume(table, pa.table(data))
    assert content(table) == content(run)


def test_files_that_have_moved_are_named_again(place, tmp_path):
    agents = shutil.copy(place / "agents.parquet", tmp_path / "agents.parquet")
    run = tmp_path / "run"
    solve(clinic(), agents, policy=POLICIES["mwu-adaptive"], seed=7, output=run)
    folder = cut(run, tmp_path / "cut", 4)
    os.rename(agents, tmp_path / "moved.parquet")
    before = content(folder)
    with pytest.raises(AgentsError, match=r"agents\.parquet"):
        resume(folder)
    assert content(folder) == before
    resume(folder, tmp_path / "moved.parquet")
    assert content(folder) == content(run)


# --- privacy ------------------------------------------------------------------------------


@pytest.fixture
def draws(monkeypatch):
    """How often noise is drawn."""
    found, draw = [], SystemRandomness.draw

    def counting(self, noise, count, index):
        found.append(index)
        return draw(self, noise, count, index)

    monkeypatch.setattr(SystemRandomness, "draw", counting)
    return found


def spent_on(board):
    """The filter's total for everything on a billboard."""
    filter, so_far = Filter(board.header.budget), Billboard(board.header)
    for release in board.releases:
        charge(release.step, filter, so_far)
        so_far.post(release)
    return filter.spent


@pytest.mark.parametrize(("name", "divisible"), RUNS)
def test_what_is_posted_stays_and_is_never_drawn_again(place, tmp_path, draws, name, divisible):
    run = whole(place, name, divisible, seed=None)
    lines = (run / "public" / "billboard.jsonl").read_bytes().splitlines(keepends=True)
    for count in sampled(len(lines)):
        folder = cut(run, tmp_path / str(count), count)
        posted = len(Billboard.from_text(b"".join(lines[:count]).decode()).releases)
        draws.clear()
        result = resume(folder)
        after = (folder / "public" / "billboard.jsonl").read_bytes()
        assert after.startswith(b"".join(lines[:count]))
        board = Billboard.read(folder / "public" / "billboard.jsonl")
        assert board.finished and board.header.private
        assert draws == list(range(posted, len(board.releases))), "each once, and no other"
        assert spent_on(board) == result.spent
        assert result.spent.rho <= board.header.budget.rho
        supplies = [s * grid.SHARE for s in board.header.market.supply_codes]
        assert all(a <= b for a, b in zip(result.private.loads, supplies, strict=True))


def test_the_sum_of_all_costs_is_within_the_budget(place, tmp_path):
    """Checked without the filter's own arithmetic; a run that started over would exceed it."""
    run = whole(place, "newton", seed=None)
    folder = cut(run, tmp_path / "cut", length(run) - 4)
    board = resume(folder).billboard
    so_far, costs = Billboard(board.header), []
    for release in board.releases:
        costs.append(release.step.noise.cost(closing.change(so_far, release.step.query)).rho)
        so_far.post(release)
    assert sum(costs) <= board.header.budget.rho
    posted = sum(costs[: length(run) - 5])
    assert posted + sum(costs) > board.header.budget.rho


def test_a_release_that_was_drawn_but_not_posted_is_drawn_anew(place, tmp_path, monkeypatch, draws):
    run = whole(place, seed=None)
    folder = cut(run, tmp_path / "cut", 3)
    draws.clear()

    def fails(self, record):
        raise OutputError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Billboard, "post", fails)
        with pytest.raises(OutputError, match="no room"):
            resume(folder)
    assert draws == [2] and length(folder) == 3
    board = resume(folder).billboard
    assert draws[1:] == list(range(2, len(board.releases)))


# --- refusals -----------------------------------------------------------------------------


def refused(folder, kind, says, hint, monkeypatch, **records):
    """One clear error; nothing is drawn, and nothing written."""
    before = content(folder)
    with monkeypatch.context() as patch:
        forbid_drawing(patch)
        with pytest.raises(JdpackError) as error:
            resume(folder, **records)
    assert type(error.value) is kind
    check_error(error.value, [says], hint)
    assert error.value.hint
    assert content(folder) == before


def test_changed_records_are_refused(place, tmp_path, monkeypatch):
    agents = tmp_path / "agents.parquet"
    pyarrow.parquet.write_table(pa.table(columns()), agents)
    run = tmp_path / "run"
    solve(clinic(), agents, policy=POLICIES["mwu-adaptive"], seed=7, output=run)
    changed = columns()
    changed["value"][17] *= 0.99
    pyarrow.parquet.write_table(pa.table(changed), agents)
    for count in (1, 5, length(run)):
        folder = cut(run, tmp_path / str(count), count)
        refused(folder, AgentsError, "have changed", "a new run spends again", monkeypatch)
        resume(folder, place / "agents.parquet")
        assert content(folder) | {"private/run.json": b""} == content(run) | {
            "private/run.json": b""
        }


@pytest.mark.parametrize("count", [1, 5, None])
def test_another_market_in_the_header_is_refused(place, tmp_path, monkeypatch, count):
    folder = cut(whole(place), tmp_path / "cut", count)

    def change(records):
        records[0]["market"]["resource"][0]["supply"] = 299.0
        return records

    reseal(folder, change)
    refused(folder, BillboardError, "is not the one", "another run", monkeypatch)


def test_the_billboard_of_another_run_is_refused(place, tmp_path, monkeypatch):
    folder = cut(whole(place), tmp_path / "cut", 5)
    other = cut(whole(place, seed=8), tmp_path / "other", 5)
    shutil.copy(other / "public" / "billboard.jsonl", folder / "public" / "billboard.jsonl")
    refused(folder, BillboardError, "is not the one", "another run", monkeypatch)


def price(records):
    records[4]["prices"][0] += 1
    return records


def noise(records):
    records[3]["noise"]["scale"] *= 2.0
    return records


def answer(records):
    records[2]["answer"][0] += 10**9  # what follows is not what this answer would have led to
    return records


def dropped(records):
    return records[:2] + records[3:]


def twice(records):
    return [*records[:4], records[3], *records[4:]]


def weight(records):
    next(r for r in records if r.get("weight"))["weight"] += 1
    return records


def policy(records):
    records[0]["policy"]["alpha"] = 0.4
    return records


def budget(records):
    records[0]["budget"]["rho"] *= 2.0
    return records


def query(records):
    return [r for r in records if r.get("query") != "chance"]


def closing_noise(records):
    next(r for r in records if r.get("query") == "welfare")["noise"]["scale"] *= 2.0
    return records


def one_round_more(records):
    at = next(i for i, r in enumerate(records) if r.get("query") in ("granted", "chance"))
    return [*records[:at], dict(records[at - 1]), *records[at:]]


def certificate(records):
    next(r for r in records if r["type"] == "certificate")["welfare_at_least"] += 1.0
    return records


def factors(records):
    made = next(r for r in records if r["type"] == "certificate")
    made["factors"][0] = made["factors"][0] - 1 if made["factors"][0] else 1
    return records


def too_soon(records):
    return [r for r in records if r.get("query") not in ("luck", "welfare")]


@pytest.mark.parametrize(
    "change",
    [
        *(price, noise, answer, dropped, twice, weight, policy, budget),
        *(query, closing_noise, one_round_more, certificate, factors, too_soon),
    ],
)
def test_lines_that_the_run_would_not_have_posted_are_refused(place, tmp_path, monkeypatch, change):
    folder = cut(whole(place), tmp_path / "cut")
    reseal(folder, change)
    with pytest.raises(BillboardError, match="billboard line"):
        verify(folder / "public" / "billboard.jsonl")
    if change in (policy, budget):
        refused(folder, BillboardError, "header is not the one", "another run", monkeypatch)
    else:
        refused(folder, BillboardError, "billboard line", "was changed", monkeypatch)


def test_a_broken_hash_chain_is_refused(place, tmp_path, monkeypatch):
    folder = cut(whole(place), tmp_path / "cut", 6)
    path = folder / "public" / "billboard.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"answer":[', b'"answer":[1', 1))
    refused(folder, BillboardError, "line 2", "put back", monkeypatch)


def not_begun(folder, **more):
    """The run file as it was before the header was posted."""
    path = folder / "private" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"begun": False} | more))


def test_a_run_that_began_and_whose_billboard_is_empty_is_refused(place, tmp_path, monkeypatch):
    for torn in (0, 100):
        folder = cut(whole(place), tmp_path / str(torn), 0, torn=torn)
        refused(folder, BillboardError, "lacks lines", "put back the whole", monkeypatch)


@pytest.mark.parametrize("read", [False, True])
def test_a_run_that_never_posted_its_header_begins(place, tmp_path, read):
    """A kill while records were read, or while the header was written."""
    header = len((whole(place) / "public" / "billboard.jsonl").read_bytes().split(b"\n")[0])
    for torn in (0, 1, 100, header):
        folder = cut(whole(place), tmp_path / str(torn), 0, torn=torn)
        not_begun(folder, **({} if read else {"digest": None}))
        if not read:
            (folder / "private" / "journal.jsonl").unlink()
        resume(folder)
        assert content(folder) == content(whole(place))


@pytest.mark.parametrize("lines", [0, 1, 4])
def test_a_billboard_that_lost_lines_is_refused(place, tmp_path, monkeypatch, lines):
    """Otherwise their noise would be drawn a second time."""
    folder = cut(whole(place, seed=None), tmp_path / "cut", 6)
    path = folder / "public" / "billboard.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    refused(folder, BillboardError, "lacks lines", "put back the whole", monkeypatch)


def test_a_torn_line_is_posted_as_it_was_drawn(place, tmp_path, draws):
    """Half of it may have been read: its noise is not drawn again."""
    run = whole(place, "newton", seed=None)
    lines = (run / "public" / "billboard.jsonl").read_bytes().splitlines(keepends=True)
    for at in (1, 40, len(lines) - 2):
        posted = len(Billboard.from_text(b"".join(lines[: at + 1]).decode()).releases)
        for torn in (1, len(lines[at]) - 1):
            folder = cut(run, tmp_path / f"{at} {torn}", at, torn=torn)
            draws.clear()
            board = resume(folder).billboard
            assert [f"{line}\n".encode() for line in board.lines()][: at + 1] == lines[: at + 1]
            assert draws == list(range(posted, len(board.releases)))


def test_a_damaged_last_line_is_posted_as_it_was_drawn(place, tmp_path):
    """A power cut may leave the end of a line on disk and not its beginning."""
    run = whole(place, "newton", seed=None)
    lines = (run / "public" / "billboard.jsonl").read_bytes().splitlines(keepends=True)
    folder = cut(run, tmp_path / "cut", 30)
    with (folder / "public" / "billboard.jsonl").open("r+b") as file:
        file.seek(-len(lines[29]), os.SEEK_END)
        file.write(bytes(50))
    board = resume(folder).billboard
    assert [f"{line}\n".encode() for line in board.lines()][:30] == lines[:30]


def test_a_line_that_was_cut_short_in_the_journal_was_never_posted(place, tmp_path, draws):
    run = whole(place, seed=None)
    folder = cut(run, tmp_path / "cut", 4, torn=0)
    lines = (run / "public" / "billboard.jsonl").read_bytes().splitlines(keepends=True)
    for kept in (lines[4][:50], lines[4][:100] + lines[3][100:]):
        again = shutil.copytree(folder, tmp_path / str(len(kept)))
        (again / "private" / "journal.jsonl").write_bytes(kept)
        draws.clear()
        board = resume(again).billboard
        assert [f"{line}\n".encode() for line in board.lines()][:4] == lines[:4]
        assert draws == list(range(3, len(board.releases)))


def test_a_market_file_that_has_changed_is_refused(place, tmp_path, monkeypatch):
    market, run = tmp_path / "market.toml", tmp_path / "run"
    market.write_text(MARKET)
    policy = POLICIES["mwu-adaptive"]
    solve(market, place / "agents.parquet", policy=policy, epsilon=5.0, seed=7, output=run)
    market.write_text(MARKET.replace("300.0", "301.0"))
    for lines in (0, 1, 4):
        folder = cut(run, tmp_path / str(lines), lines)
        if lines == 0:
            not_begun(folder)
        refused(folder, MarketError, "market.toml' has changed", "put it back", monkeypatch)
    market.write_text(MARKET + "# no other market\n")
    resume(folder)
    assert content(folder) == content(run)
    market.unlink()
    resume(cut(run, tmp_path / "gone", 3))


def test_a_lost_journal_is_missed(place, tmp_path, monkeypatch):
    folder = cut(whole(place), tmp_path / "cut", 6)
    (folder / "private" / "journal.jsonl").unlink()
    refused(folder, BillboardError, "journal.jsonl", "put it back", monkeypatch)


def test_a_run_without_a_billboard_is_refused(place, tmp_path, monkeypatch):
    folder = cut(whole(place), tmp_path / "cut")
    (folder / "public" / "billboard.jsonl").unlink()
    refused(folder, BillboardError, "billboard.jsonl", "put it back", monkeypatch)


def test_a_billboard_that_is_a_link_is_refused(place, tmp_path, monkeypatch):
    folder = cut(whole(place), tmp_path / "cut", 4)
    path = folder / "public" / "billboard.jsonl"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    refused(folder, BillboardError, "billboard.jsonl", "put it back", monkeypatch)


@pytest.mark.parametrize("name", ["public", "private", "private/allocation"])
def test_a_folder_that_is_a_link_is_refused(place, tmp_path, monkeypatch, name):
    folder = cut(whole(place), tmp_path / "cut", 4)
    (folder / name).mkdir(exist_ok=True)  # the last is a cluster's
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    before = content(tmp_path / "elsewhere")
    refused(folder, OutputError, f"{name}' is a link", "put them back", monkeypatch)
    assert content(tmp_path / "elsewhere") == before


@pytest.mark.parametrize("name", FILES)
def test_no_output_file_follows_a_link(place, tmp_path, name):
    """The link goes, and what it led to stays as it was."""
    folder, elsewhere = cut(whole(place), tmp_path / "cut", 4), tmp_path / "elsewhere"
    elsewhere.write_text("not yours")
    (folder / name).symlink_to(elsewhere)
    resume(folder)
    assert content(folder) == content(whole(place)) and not (folder / name).is_symlink()
    assert elsewhere.read_text() == "not yours"


def test_a_journal_that_is_a_link_is_refused(place, tmp_path, monkeypatch):
    folder, elsewhere = cut(whole(place), tmp_path / "cut", 4), tmp_path / "elsewhere"
    (folder / "private" / "journal.jsonl").rename(elsewhere)
    (folder / "private" / "journal.jsonl").symlink_to(elsewhere)
    refused(folder, BillboardError, "journal.jsonl", "put it back", monkeypatch)


def test_a_folder_that_is_no_run_is_refused(place, tmp_path, monkeypatch):
    folder = cut(whole(place), tmp_path / "cut", 5)
    (folder / "private" / "run.json").unlink()
    refused(folder, OutputError, "there is no run in", "solve began", monkeypatch)
    with pytest.raises(OutputError, match="there is no run in"):
        resume(tmp_path / "nowhere")


RUN_FILES = {
    "empty": "",
    "half": '{"version": 2, "agents":',
    "a list": "[1]",
    "nothing": "null",
    "another version": '{"version": 1}',
    "too little": '{"version": 2}',
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("kind", RUN_FILES)
def test_a_damaged_run_file_is_refused(place, tmp_path, monkeypatch, kind):
    folder = cut(whole(place), tmp_path / "cut", 5)
    data = RUN_FILES[kind]
    (folder / "private" / "run.json").write_bytes(
        data if isinstance(data, bytes) else data.encode()
    )
    refused(folder, OutputError, "cannot read the run file", "solve began", monkeypatch)


@pytest.mark.parametrize(
    ("key", "value"),
    [("coins", "00"), ("coins", "xyz"), ("coins", 5), ("engine", {"kind": "abacus"}), ("more", 1)],
)
def test_a_changed_run_file_is_refused(place, tmp_path, monkeypatch, key, value):
    folder = cut(whole(place), tmp_path / "cut", 5)
    path = folder / "private" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    before = content(folder)
    forbid_drawing(monkeypatch)
    with pytest.raises(JdpackError) as error:
        resume(folder)
    assert error.value.hint and content(folder) == before


def test_a_private_run_does_not_go_on_with_seeded_noise(place, tmp_path, monkeypatch):
    for seed, changed in [(None, 5), (7, None)]:
        folder = cut(whole(place, seed=seed), tmp_path / str(seed), 5)
        path = folder / "private" / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seed": changed}))
        refused(folder, BillboardError, "is not the one", "another run", monkeypatch)


def test_a_run_that_another_process_holds_is_refused(place, tmp_path, monkeypatch):
    folder = cut(whole(place), tmp_path / "cut", 5)
    held = os.open(folder / "private", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    refused(folder, OutputError, "another process is working", "wait until it ends", monkeypatch)
    os.close(held)
    resume(folder)
    assert content(folder) == content(whole(place))


def test_solve_and_resume_hold_the_run_while_they_are_at_work(place, tmp_path):
    folder, refusals = tmp_path / "run", []

    def show(progress):
        if progress.stage == "rounds":
            with pytest.raises(OutputError, match="another process") as error:
                resume(folder)
            refusals.append(error)

    records = place / "agents.parquet"
    solve(clinic(), records, policy=POLICIES["mwu-adaptive"], seed=7, output=folder, progress=show)
    assert len(refusals) == 5
    assert content(folder) == content(whole(place))


def test_records_are_given_in_one_way(place, tmp_path):
    folder = cut(whole(place), tmp_path / "cut", 5)
    with pytest.raises(AgentsError, match="give either"):
        resume(folder, place / "agents.parquet", values=[1.0], demands=[[1.0]])
    with pytest.raises(AgentsError, match="ids go with"):
        resume(folder, place / "agents.parquet", ids=[1])


# --- real kills ---------------------------------------------------------------------------

KILLER = """
    import os, signal, sys, time
    import numpy as np
    from jdpack import cli, solve
    market, agents, out, seed = sys.argv[1:]
    board = f"{out}/public/billboard.jsonl"
    rng = np.random.default_rng(5)

    # What is loaded now, by this thread alone, need not be loaded in every fork.
    data = rng.uniform(0, 1, (400, 3))
    solve(market, values=data[:, 0], demands=data[:, 1:], ids=range(400), threads=1)

    def start(*arguments):
        pid = os.fork()
        if pid == 0:
            sys.argv = ["jdpack", *arguments, "--threads=1"]
            cli.main()
        return pid

    def lines():
        return open(board, "rb").read().count(b"\\n") if os.path.exists(board) else 0

    arguments = ["solve", market, agents, "-o", out, "-q", *([f"--seed={seed}"] if seed else [])]
    killed = 0
    while True:
        begun = lines()
        pid = start(*arguments)
        target = begun + int(rng.integers(1, 25))
        while killed < 4 and lines() < target and os.waitid(
            os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.001)
        if killed < 4:
            time.sleep(rng.uniform(0, 0.01))
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != -signal.SIGKILL:
            break
        killed += 1
        arguments = ["resume", out, "-q"]
    print(killed)
    sys.exit(status)
"""


@pytest.mark.parametrize("seed", ["7", ""])
def test_kills_at_any_moment_do_no_harm(place, tmp_path, seed):
    market, out = tmp_path / "market.toml", tmp_path / "out"
    market.write_text(MARKET)
    arguments = [str(x) for x in (market, place / "agents.parquet", out, seed)]
    code = textwrap.dedent(KILLER)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) >= 3
    assert "Traceback" not in done.stderr
    board = Billboard.read(out / "public" / "billboard.jsonl")
    assert board.finished and spent_on(board).rho <= board.header.budget.rho
    granted = pyarrow.parquet.read_table(out / "private" / "allocation.parquet")
    data = columns()
    assert granted["id"].to_pylist() == data["id"].tolist()
    given = granted["granted"].to_numpy()
    assert given.any() and not given.all()
    for name, supply in (("beds", 300.0), ("nurses", 350.0)):
        assert data[name][given].sum() <= supply
    others = ["private/journal.jsonl", "private/run.json", "public/billboard.jsonl"]
    assert sorted(content(out)) == sorted([*FILES, *others])
    if seed:
        run = tmp_path / "uncut"
        solve(market, place / "agents.parquet", seed=7, output=run)
        assert content(out) == content(run)


MARKET = """
name = "Clinic"
privacy = {epsilon = 9.0, delta = 1e-6}
value.max = 10.0
agents.count = 400
resource = [
    {name = "beds", supply = 300.0, max_demand = 2.0},
    {name = "nurses", supply = 350.0, max_demand = 3.0},
]
"""


# --- the command line ---------------------------------------------------------------------


def test_the_command_goes_on(place, tmp_path, monkeypatch, capsys):
    run = whole(place)
    folder = cut(run, tmp_path / "cut", 5)
    code, out, _ = run_cli(monkeypatch, capsys, "resume", folder, "--json", "-q", "--threads", 1)
    assert code == 0 and json.loads(out)["curator"]["agents"] == N
    assert content(folder) == content(run)
    code, out, _ = run_cli(monkeypatch, capsys, "resume", folder)
    assert code == 0 and "NONE: this run was made with seeded noise" in out and str(folder) in out
    assert content(folder) == content(run)


def test_the_command_refuses_in_a_sentence(place, tmp_path, monkeypatch, capsys):
    code, out, err = run_cli(monkeypatch, capsys, "resume", tmp_path)
    assert code == 2 and out == ""
    assert err.startswith("error: there is no run in") and "hint: " in err
    folder = cut(whole(place), tmp_path / "cut", 4)
    (folder / "public" / "billboard.jsonl").unlink()
    code, _, err = run_cli(monkeypatch, capsys, "resume", folder)
    assert code == 2 and "hint: put it back" in err


def test_ctrl_c_names_resume_and_resume_goes_on(place, tmp_path, monkeypatch, capsys):
    run = whole(place)
    folder = cut(run, tmp_path / "cut", 3)
    with monkeypatch.context() as patch:

        def strike(*_):
            raise KeyboardInterrupt

        patch.setattr(SystemRandomness, "draw", strike)
        patch.setattr("jdpack.door.SeededRandomness.draw", strike)
        code, _, err = run_cli(patch, capsys, "resume", folder)
    assert code == 130 and "jdpack resume" in err
    assert run_cli(monkeypatch, capsys, "resume", folder, "-q")[0] == 0
    assert content(folder) == content(run)
