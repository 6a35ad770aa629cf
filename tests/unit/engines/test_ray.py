"""A Ray cluster gives the same bits as one machine, whatever happens to its workers."""

import contextlib
import math
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
import pytest

import jdpack.engines.ray as module
from helpers import check_error
from jdpack import (
    AgentsError,
    EngineError,
    Market,
    MwuAdaptive,
    MwuOnline,
    OutputError,
    PersonBounds,
    Ray,
    resume,
    solve,
)
from jdpack.engines import allocation_files
from jdpack.market.market import Columns
from jdpack.records import readers
from jdpack.run import summary

pytestmark = pytest.mark.long

ray = module.ray

ONE, TWO = Ray(workers=1), Ray(workers=2)  # each worker is a process, which takes a second
BUDGET = {"epsilon": 1.0, "delta": 1e-6, "seed": 7}


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    """A real Ray with two cores."""
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of `case` on one machine, and its folder."""
    folder = tmp_path_factory.mktemp("case")
    path = folder / "agents.parquet"
    market = wide(path)
    return market, solve(market, path, output=folder / "alone", **BUDGET), folder


@pytest.fixture
def case(alone, tmp_path):
    """A market of 3,000 agents, their file, and the run on one machine."""
    market, result, folder = alone
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return market, tmp_path / "agents.parquet", result


def wide(path, n=3000, options=1, ids="ordered", divisible=False):
    """A market, and its agents in a Parquet file with several row groups."""
    rng = np.random.default_rng(3)
    market = Market(
        supply=[n / 8] * 3,
        max_demand=1.0,
        max_value=1.0,
        agents=n,
        options=options,
        divisible=divisible,
    )
    numbers = np.repeat(
        rng.permutation(n) if ids == "shuffled" else np.arange(n), rng.integers(1, options + 1, n)
    )
    columns = {"id": [f"agent {i}" for i in numbers] if ids == "texts" else numbers}
    for name in ["value", *(r.name for r in market.resources)]:
        columns[name] = rng.random(len(numbers))
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=500)
    return market


def long(path, n=2000):
    """Agents with sparse demands, in a file whose row groups split agents."""
    rng = np.random.default_rng(4)
    m = 20
    market = Market(
        supply=[n / 20] * m,
        max_demand=1.0,
        max_value=1.0,
        agents=n,
        bundle_size=3,
        columns=Columns(layout="long"),
    )
    agent = np.repeat(np.arange(n), 3)
    resource = (agent + np.tile([0, 3, 7], n)) % m
    columns = {
        "id": agent,
        "value": np.repeat(rng.random(n), 3),
        "resource": [market.resources[j].name for j in resource],
        "amount": rng.random(3 * n),
    }
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=200)
    return market


def given(folder):
    """The allocation that a run wrote, in one file or several."""
    private = folder / "private"
    place = private / "allocation"
    if not place.exists():
        place = private / "allocation.parquet"
    return pyarrow.dataset.dataset(place).to_table()


def workers():
    """Those of our cluster, by number; other tests may have one at the same time."""
    ours = psutil.Process().children(recursive=True)
    return sorted((p for p in ours if "ray::Worker" in _command(p)), key=lambda p: p.pid)


def _command(process):
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return " ".join(process.cmdline())
    return ""


class Killer:
    """Kills a worker after the given rounds."""

    def __init__(self, *rounds, how=signal.SIGKILL, before=lambda: None):
        self.rounds, self.how, self.before, self.killed = set(rounds), how, before, []

    def __call__(self, progress):
        if progress.stage == "rounds" and progress.rounds in self.rounds:
            self.rounds.remove(progress.rounds)
            self.before()
            victim = workers()[len(self.killed) % 2]
            os.kill(victim.pid, self.how)
            self.killed.append(victim)


def check_same(result, alone, folder, other):
    assert list(result.billboard.lines()) == list(alone.billboard.lines())
    assert result.private == alone.private
    assert result.curator == alone.curator
    assert given(folder).equals(given(other))


# --- the same bits ------------------------------------------------------------------------


def requests(path):
    """People with one to four requests, in small row groups, so that pieces cut people."""
    rng = np.random.default_rng(5)
    counts = rng.integers(1, 5, 1200)
    n = int(counts.sum())
    table = pa.table(
        {
            "id": np.repeat([f"p{i}" for i in range(1200)], counts),
            "request": (np.arange(n) % 7).astype(str),
            "value": rng.random(n),
            "a": rng.random(n),
            "b": rng.random(n),
        }
    )
    pa.parquet.write_table(table, path, row_group_size=101)
    return Market(
        supply=[700.0, 800.0],
        max_demand=1.0,
        max_value=1.0,
        agents=1200,
        names=["a", "b"],
        person=PersonBounds(4, max_demand={"a": 4.0}),
    )


@pytest.mark.parametrize(
    ("make", "policy"),
    [
        (lambda path: wide(path, divisible=True), MwuAdaptive(0.5)),
        (lambda path: wide(path, ids="shuffled"), MwuOnline(100)),
        (lambda path: wide(path, n=1500, options=3, ids="texts"), None),
        (long, None),
        (requests, MwuOnline(batch=100)),
    ],
    ids=["divisible", "shuffled", "options", "long", "requests"],
)
def test_a_cluster_agrees_with_one_machine(tmp_path, make, policy):
    path = tmp_path / "agents.parquet"
    market = make(path)
    folders = tmp_path / "alone", tmp_path / "cluster"
    alone = solve(market, path, policy=policy, output=folders[0], **BUDGET)
    result = solve(market, path, policy=policy, engine=TWO, output=folders[1], **BUDGET)
    check_same(result, alone, *reversed(folders))
    with pytest.raises(EngineError, match="have ended"):
        result.shares  # noqa: B018
    for told, folder in [(alone, folders[0]), (result, folders[1])]:
        lines = summary.as_text(told, folder).splitlines()
        where = next(line for line in lines if line.startswith("private")).removeprefix("private")
        assert Path(where.strip()).exists()
    files = sorted(p.name[9:] for p in (folders[1] / "private" / "allocation").iterdir())
    assert files == ["00000-of-00002.parquet", "00001-of-00002.parquet"]


def test_without_an_output_folder_the_shares_stay(case):
    market, path, alone = case
    result = solve(market, path, engine=TWO, **BUDGET)
    assert result.allocation.tolist() == alone.allocation.tolist()
    deadline = time.monotonic() + 60
    while ray.available_resources().get("CPU") != 2:  # the cores of its workers are free again
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_cluster_repairs_as_one_machine_does(tmp_path, monkeypatch):
    from jdpack.door import SeededRandomness
    from jdpack.privacy.noise import deviation

    def draw(self, noise, count, index):
        return [-round(300 * scale) for scale in (deviation(noise) * count)[:count]]

    monkeypatch.setattr(SeededRandomness, "draw", draw)
    path = tmp_path / "agents.parquet"
    market = wide(path, n=600)
    alone = solve(market, path, output=tmp_path / "alone", **BUDGET)
    result = solve(market, path, engine=TWO, output=tmp_path / "cluster", **BUDGET)
    assert alone.private.dropped > 0
    check_same(result, alone, tmp_path / "cluster", tmp_path / "alone")


# --- workers that die ---------------------------------------------------------------------


def test_workers_that_are_killed_come_back_and_nothing_changes(case, tmp_path):
    market, path, alone = case
    killer = Killer(20, 50)
    result = solve(market, path, engine=TWO, output=tmp_path / "out", progress=killer, **BUDGET)
    assert len(killer.killed) == 2 and not any(p.is_running() for p in killer.killed)
    check_same(result, alone, tmp_path / "out", tmp_path / "alone")
    check_resumes_with_fewer(tmp_path, alone)


def check_resumes_with_fewer(tmp_path, alone):
    """A run that has to be written again leaves nobody twice."""
    (tmp_path / "out" / "private" / "report.html").unlink()
    result = resume(tmp_path / "out", engine=ONE)
    check_same(result, alone, tmp_path / "out", tmp_path / "alone")


def test_a_worker_that_comes_back_finds_its_codes_in_the_store(case, tmp_path):
    market, path, alone = case
    engine, killer = Ray(workers=2, store=str(tmp_path / "codes")), Killer(30)
    result = solve(market, path, engine=engine, output=tmp_path / "out", progress=killer, **BUDGET)
    assert len(killer.killed) == 1
    assert len(list((tmp_path / "codes").glob("*/index.json"))) == 2
    check_same(result, alone, tmp_path / "out", tmp_path / "alone")


def test_a_worker_that_never_comes_back(case, tmp_path, monkeypatch):
    market, path, alone = case
    monkeypatch.setattr(module, "_RESTARTS", 0)
    with pytest.raises(EngineError) as caught:
        solve(market, path, engine=TWO, output=tmp_path / "out", progress=Killer(25), **BUDGET)
    check_error(caught.value, ["worker ", " of 2, with", str(path), "is lost"], "jdpack resume")
    check_resumes(tmp_path, alone, ONE)


def test_a_worker_that_does_not_answer(case, tmp_path):
    market, path, alone = case
    engine = Ray(workers=1)

    def hurry():  # only now, so that a busy machine has all the time that it needs to start
        object.__setattr__(engine, "patience", 0.5)

    killer = Killer(25, how=signal.SIGSTOP, before=hurry)
    try:
        with pytest.raises(EngineError) as caught:
            solve(market, path, engine=engine, output=tmp_path / "out", progress=killer, **BUDGET)
    finally:
        for process in killer.killed:
            process.kill()
    check_error(caught.value, ["worker 1 of 1, with", "0.5 seconds"], "jdpack resume")
    check_resumes(tmp_path, alone)


def check_resumes(tmp_path, alone, engine="memory"):
    """What is posted is kept, and the run resumes from there and ends the same."""
    board = tmp_path / "out" / "public" / "billboard.jsonl"
    before, whole = board.read_text(), "".join(f"{line}\n" for line in alone.billboard.lines())
    assert whole.startswith(before) and len(before) < len(whole)
    assert before.count("\n") > 20
    result = resume(tmp_path / "out", engine=engine)
    check_same(result, alone, tmp_path / "out", tmp_path / "alone")


# --- files that change --------------------------------------------------------------------


def test_a_partition_that_is_gone_when_its_worker_comes_back(case, tmp_path):
    market, path, alone = case
    killer = Killer(25, before=lambda: path.rename(tmp_path / "away"))
    with pytest.raises(AgentsError) as caught:
        solve(market, path, engine=ONE, output=tmp_path / "out", progress=killer, **BUDGET)
    check_error(caught.value, [str(path)])
    (tmp_path / "away").rename(path)
    check_resumes(tmp_path, alone)


@pytest.mark.parametrize("quietly", [False, True])
def test_a_file_that_changes_between_rounds(case, tmp_path, quietly):
    """Even if its size and time are the same, once a worker has to read it again."""
    market, path, alone = case
    shutil.copy2(path, tmp_path / "kept")

    def change():
        before, data = path.stat(), path.read_bytes()
        values = pyarrow.parquet.read_table(path)["value"].to_numpy()
        data = data.replace(values[5].tobytes(), (values[5] / 2).tobytes())
        path.write_bytes(data)
        changed = pyarrow.parquet.read_table(path)["value"].to_numpy()
        assert np.flatnonzero(changed != values).tolist() == [5]
        if quietly:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    killer = Killer(25, before=change)
    with pytest.raises(AgentsError) as caught:
        solve(market, path, engine=ONE, output=tmp_path / "out", progress=killer, **BUDGET)
    check_error(caught.value, [str(path), "changed since the run began"])
    with pytest.raises(AgentsError, match="changed since the run began"):
        resume(tmp_path / "out", engine="memory")
    shutil.copy2(tmp_path / "kept", path)
    check_resumes(tmp_path, alone)


def test_an_allocation_that_cannot_be_written(case, tmp_path):
    market, path, alone = case
    place = tmp_path / "place"

    def blocked(progress):
        if progress.stage == "allocation":
            place.rmdir()
            place.write_text("no folder")

    engine = Ray(workers=1, allocation=str(place))
    with pytest.raises(OutputError) as caught:
        solve(market, path, engine=engine, output=tmp_path / "out", progress=blocked, **BUDGET)
    check_error(caught.value, ["cannot write"], "jdpack resume")
    engine = Ray(workers=1, allocation=str(tmp_path / "other"))  # where there is space
    result = resume(tmp_path / "out", engine=engine)
    assert list(result.billboard.lines()) == list(alone.billboard.lines())
    written = pyarrow.dataset.dataset(tmp_path / "other").to_table()
    assert written.equals(given(tmp_path / "alone"))
    check_foreign_files_are_refused(market, path, tmp_path, engine)


def check_foreign_files_are_refused(market, path, tmp_path, engine):
    """A folder may hold the allocation of only one run."""
    with pytest.raises(OutputError) as caught:
        solve(market, path, engine=engine, output=tmp_path / "out2", **BUDGET | {"seed": 8})
    check_error(caught.value, [str(tmp_path / "other"), "already"], "its own folder")
    assert not (tmp_path / "out2").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_files_on_other_systems_are_whole_too(tmp_path, monkeypatch, fails):
    """A partial Parquet file may be valid, so it never gets the name of a complete one."""
    system = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    monkeypatch.setattr(allocation_files, "system_of", lambda place: (system, place))

    def write(file):
        file.write(b"half")
        if fails:
            raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        allocation_files.put_file("", "name", write)
    assert [p.name for p in tmp_path.iterdir()] == ([] if fails else ["name"])


def test_an_address_on_this_machine_keeps_files_private(tmp_path):
    allocation_files.put_file((tmp_path / "new").as_uri(), "name", lambda file: file.write(b"x"))
    assert (tmp_path / "new" / "name").stat().st_mode & 0o777 == 0o600


def test_a_place_that_workers_cannot_write_to_is_refused_before_anything_is_spent(case, tmp_path):
    market, path, _ = case
    (tmp_path / "file").write_text("no folder")
    engine = Ray(workers=2, allocation=str(tmp_path / "file"))
    with pytest.raises(OutputError, match="cannot write an allocation"):
        solve(market, path, engine=engine, output=tmp_path / "out", **BUDGET)
    assert not (tmp_path / "out").exists()


# --- what no worker sees alone ------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "engine"), [("ordered", TWO), ("texts", ONE)], ids=["two workers", "two pieces"]
)
def test_an_id_of_two_agents_of_different_pieces(tmp_path, ids, engine):
    path = tmp_path / "agents.parquet"
    market = wide(path, n=1000, ids=ids)
    table = pyarrow.parquet.read_table(path)
    ids = table["id"].to_pylist()
    ids[990] = ids[3]
    table = table.set_column(0, "id", pa.array(ids))
    pyarrow.parquet.write_table(table, path, row_group_size=250)
    with pytest.raises(AgentsError) as caught:
        solve(market, path, engine=engine, output=tmp_path / "out", **BUDGET)
    check_error(caught.value, [f"id {ids[3]!r}", "more than one agent"], "set requests in [person]")
    assert not (tmp_path / "out").exists()


def test_a_bad_record_is_told_as_on_one_machine(tmp_path):
    path = tmp_path / "agents.parquet"
    market = wide(path, n=1000)
    table = pyarrow.parquet.read_table(path)
    values = table["value"].to_numpy().copy()
    values[[700, 900]] = -1.0
    table = table.set_column(1, "value", pa.array(values))
    pyarrow.parquet.write_table(table, path, row_group_size=250)
    messages = []
    for engine in ["memory", TWO]:
        with pytest.raises(AgentsError) as caught:
            solve(market, path, engine=engine, output=tmp_path / "out", **BUDGET)
        messages.append(str(caught.value))
    assert messages[0] == messages[1] and "700" in messages[0]
    assert not (tmp_path / "out").exists()


def test_files_without_agents_of_their_own(tmp_path):
    """An empty file, and one that only continues the last agent of the file before."""
    market = wide(tmp_path / "all.parquet", n=400, options=3)
    table = pyarrow.parquet.read_table(tmp_path / "all.parquet")
    ids = table["id"].to_numpy()
    cut = int(np.flatnonzero(np.diff(ids) == 0)[-1]) + 1  # within an agent
    end = int(np.searchsorted(ids, ids[cut], side="right"))
    folder = tmp_path / "agents"
    folder.mkdir()
    for name, rows in {
        "a": (0, cut),
        "b": (cut, end),
        "c": (end, end),
        "d": (end, len(ids)),
    }.items():
        pyarrow.parquet.write_table(
            table.slice(rows[0], rows[1] - rows[0]), folder / f"{name}.parquet"
        )
    alone = solve(market, tmp_path / "all.parquet", **BUDGET)
    result = solve(market, folder, engine=TWO, **BUDGET)
    assert list(result.billboard.lines()) == list(alone.billboard.lines())
    assert result.allocation.tolist() == alone.allocation.tolist()


def test_nobody_at_all(tmp_path):
    market = wide(tmp_path / "agents.parquet", n=10)
    table = pyarrow.parquet.read_table(tmp_path / "agents.parquet")
    pyarrow.parquet.write_table(table.slice(0, 0), tmp_path / "agents.parquet")
    with pytest.raises(AgentsError, match="there are no agents"):
        solve(market, tmp_path / "agents.parquet", engine=TWO, **BUDGET)


@pytest.mark.parametrize(
    ("rows", "workers", "expected"),
    [
        ([9, 11], 2, [[9], [11]]),
        ([1, 1, 1, 9], 4, [[1], [1], [1], [9]]),
        ([5] * 6, 3, [[5, 5], [5, 5], [5, 5]]),
        ([100, 1, 1, 1], 2, [[100], [1, 1, 1]]),
        ([], 2, []),
    ],
)
def test_pieces_are_shared_out_evenly(rows, workers, expected):
    pieces = [SimpleNamespace(rows=n) for n in rows]
    cut = module._cut(pieces, workers)
    assert [[piece.rows for piece in run] for run in cut] == expected


@pytest.mark.parametrize("texts", [False, True])
def test_keys_fall_into_even_buckets(texts, tmp_path, monkeypatch):
    """Even keys of texts, whose low bits are all zero."""
    path = tmp_path / "agents.parquet"
    market = wide(path, n=1000, ids="texts" if texts else "shuffled")
    worker = module.Worker(market, readers.file_pieces(market, path, 200), False, 1, None)
    buckets = [worker.keys(bucket, 4) for bucket in range(4)]
    assert all(150 < len(keys) < 350 for keys in buckets)
    assert len(np.unique(np.concatenate(buckets))) == 1000


@pytest.mark.parametrize(
    "settings",
    [{"workers": 0}, {"workers": -1}, {"workers": 1.5}, {"patience": 0}, {"patience": math.inf}],
)
def test_settings_that_make_no_sense(settings):
    with pytest.raises(EngineError, match="must be"):
        Ray(**settings)


def test_more_workers_than_cores_are_refused_at_once(case, tmp_path):
    market, path, _ = case
    with pytest.raises(EngineError) as caught:
        solve(market, path, engine=Ray(workers=50), output=tmp_path / "out", **BUDGET)
    check_error(caught.value, ["50 workers", "2 cores"], "fewer")


def test_another_cluster_than_the_one_connected_to(case, tmp_path):
    market, path, _ = case
    with pytest.raises(EngineError) as caught:
        solve(market, path, engine="ray://elsewhere:10001", output=tmp_path / "out", **BUDGET)
    check_error(caught.value, ["ray://elsewhere:10001"], "ray.shutdown")


def test_a_cluster_that_is_not_there(tmp_path):
    path = tmp_path / "agents.parquet"
    market = wide(path, n=100)
    for engine in ["rays", "ray:/x", 7]:
        with pytest.raises(EngineError, match="there is no engine"):
            solve(market, path, engine=engine, **BUDGET)


def test_records_in_memory_are_not_scattered():
    market = Market(supply=[10.0], max_demand=1.0, max_value=1.0, agents=2)
    with pytest.raises(AgentsError, match="reads files"):
        solve(market, values=[1.0, 1.0], demands=[[1.0], [1.0]], engine="ray", **BUDGET)
