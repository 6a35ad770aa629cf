"""Codes on disk give the same bits as codes in memory, need little memory, and leave nothing."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import LONG, random_market, random_records
from jdpack import Market, solve
from jdpack.engines import mapped, screening, shard
from jdpack.engines import settings as engine_settings
from jdpack.engines.settings import Mapped, Memory
from jdpack.errors import AgentsError, BudgetError, EngineError, OutputError
from jdpack.policies.mwu_online import MwuOnline
from jdpack.policies.newton import Newton
from jdpack.records import ids
from jdpack.run.solve import resume


@dataclass(frozen=True)
class Tight(Mapped):
    """With less memory than a user may set, for small tables."""

    bytes: int = 2000

    def open(self, source, threads, place, tell):
        near = place.folder or Path(gettempdir())
        store = None if self.store is None else near / self.store
        return mapped.MappedEngine.open(source, threads, store, near, self.bytes, tell)


def write_table(records, path):
    """Records in the layout of their market."""
    market = records.market
    if market.columns.layout == "wide":
        arrays = records.arrays()
        columns = {"id": arrays["ids"], "value": arrays["values"]}
        for j, resource in enumerate(market.resources):
            columns[resource.column] = arrays["demands"][:, j]
    else:
        rows = []
        for agent, option, value, amounts in records.rows:
            names = [r.name for r in market.resources]
            pairs = [pair for pair in zip(names, amounts, strict=True) if pair[1]]
            rows += [(agent, option, value, *pair) for pair in pairs or [(None, None)]]
        names = ["id", "option", "value", "resource", "amount"]
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        if market.options == 1:
            del columns["option"]
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=37)


def outcome(folder):
    """Everything that a run leaves, except how it was run; row groups may differ."""
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("run.json", "journal.jsonl")
    }
    table = pyarrow.parquet.read_table(folder / "private" / "allocation.parquet")
    return found | {"private/allocation.parquet": (table.schema, table.to_pylist())}


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**32),
    sparse=st.booleans(),
    options=st.integers(1, 3),
    texts=st.booleans(),
    divisible=st.booleans(),
    policy=st.sampled_from([Newton(), MwuOnline(batch=25)]),
    rows=st.integers(1, 300),
    limit=st.integers(100, 50_000),
    threads=st.integers(1, 2),
)
def test_mapped_gives_the_same_bits_as_memory(
    tmp_path_factory, seed, sparse, options, texts, divisible, policy, rows, limit, threads
):
    tmp_path = tmp_path_factory.mktemp("mapped")
    rng = np.random.default_rng(seed)
    market = random_market(rng, agents=200, sparse=sparse, options=options, divisible=divisible)
    numbers = rng.permutation(1000)[:200].tolist()
    records = random_records(rng, market, ids=[f"ä{i}" for i in numbers] if texts else numbers)
    path = tmp_path / "agents.parquet"
    write_table(records, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(mapped, "_PIECE_ROWS", rows)
        patch.setattr(shard, "_SCREENED", 1)
        found = {}
        for name, engine in {
            "memory": Memory(),
            "mapped": Tight(bytes=limit),
            "stored": Tight("store", bytes=limit),
            "again": Tight("store", bytes=limit),
        }.items():
            result = solve(
                market,
                path,
                epsilon=5.0,
                delta=1e-6,
                policy=policy,
                seed=seed,
                threads=threads,
                engine=engine,
                output=tmp_path / name,
            )
            found[name] = outcome(tmp_path / name), result.shares.tolist(), result.private
    assert len(found) == 4
    assert all(each == found["memory"] for each in found.values())
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*found, path.name, "store"])


@pytest.mark.parametrize("texts", [False, True])
def test_long_tables_and_csv_and_folders(tmp_path, texts, monkeypatch):
    """Pieces whose agents continue in the next file; those rows count too."""
    monkeypatch.setattr(mapped, "_PIECE_ROWS", 50)
    rng = np.random.default_rng(8)
    market = random_market(rng, agents=120, sparse=True, options=2, columns=LONG)
    numbers = rng.permutation(500)[:120].tolist()
    records = random_records(rng, market, ids=[f"n {i}" for i in numbers] if texts else numbers)
    write_table(records, tmp_path / "whole.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "whole.parquet")
    folder = tmp_path / "folder"
    folder.mkdir()
    cuts = [0, 61, 62, 150, table.num_rows]
    for i, (a, b) in enumerate(pairwise(cuts)):
        pyarrow.csv.write_csv(table.slice(a, b - a), folder / f"{i}.csv")
    found = [
        solve(market, source, epsilon=5.0, delta=1e-6, seed=3, engine=engine)
        for source in (tmp_path / "whole.parquet", folder)
        for engine in (Memory(), Mapped(), Mapped(str(tmp_path / "store")))
    ]
    lines = [list(result.billboard.lines()) for result in found]
    assert all(each == lines[0] for each in lines)
    shares = [result.shares.tolist() for result in found]
    assert all(each == shares[0] for each in shares) and any(shares[0])


# --- little memory ------------------------------------------------------------------------


def clinic(n, **more):
    return Market(
        supply=[n / 4] * 3,
        max_demand=2.0,
        max_value=10.0,
        agents=n,
        epsilon=5.0,
        delta=1e-6,
        names=["a", "b", "c"],
        **more,
    )


def write_clinic(path, n, ids=None):
    rng = np.random.default_rng(1)
    columns = {"id": rng.permutation(n) if ids is None else ids, "value": rng.uniform(0, 10, n)}
    columns |= {name: rng.uniform(0, 2, n) for name in "abc"}
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=1000)
    return path


def test_ids_are_checked_in_several_passes_and_a_repeated_one_is_found(tmp_path, monkeypatch):
    passes, look = [], ids.repeated

    def counting(arrays):
        passes.append(0)
        return look(arrays)

    monkeypatch.setattr(ids, "repeated", counting)
    n = 3000
    path = write_clinic(tmp_path / "agents.parquet", n)
    solve(clinic(n), path, seed=1, engine=Tight(bytes=20_000))
    assert len(passes) == 5  # 16 bytes per id, in half of the memory
    numbers = np.random.default_rng(2).permutation(n)
    numbers[2900] = numbers[100]
    path = write_clinic(tmp_path / "twice.parquet", n, numbers)
    for engine in (Memory(), Tight(bytes=20_000)):
        with pytest.raises(AgentsError, match=f"id {numbers[100]} belongs to more than one"):
            solve(clinic(n), path, seed=1, engine=engine)


@pytest.mark.parametrize(("limit", "copied"), [(10**6, True), (600, False)])
def test_copies_of_codes_stay_within_the_limit(tmp_path, monkeypatch, limit, copied):
    """A box is made only if its open agents fit; results are the same without it."""
    sizes, screen = [], screening.Box.screen.__func__

    def watching(cls, parts, low, high, most, threads, limit_bytes):
        box = screen(cls, parts, low, high, most, threads, limit_bytes)
        sizes.append(0 if box is None else sum(part.nbytes for part in box.open))
        assert limit_bytes == limit // 2 and sizes[-1] <= limit_bytes
        return box

    monkeypatch.setattr(shard.Box, "screen", classmethod(watching))
    monkeypatch.setattr(shard, "_SCREENED", 1)
    path = write_clinic(tmp_path / "agents.parquet", 3000)
    found = solve(clinic(3000), path, seed=1, engine=Tight(bytes=limit))
    assert sizes and any(sizes) == copied
    monkeypatch.setattr(shard.Box, "screen", classmethod(screen))
    plain = solve(clinic(3000), path, seed=1, engine=Memory())
    assert list(found.billboard.lines()) == list(plain.billboard.lines())


CHILD = """
    import json, sys, threading, time
    from jdpack import Market, solve
    from jdpack.engines.settings import Mapped, Memory

    def anonymous():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

    stage, peak = ["reading"], {}

    def watch():
        while True:
            peak[stage[0]] = max(peak.get(stage[0], 0), anonymous() - before)
            time.sleep(0.005)

    def show(progress):
        stage[0] = "reading" if progress.stage == "reading" else "rounds"

    engine = Mapped(memory="50MB") if sys.argv[1] == "mapped" else Memory()
    n = int(sys.argv[3])
    market = Market(
        supply=[n / 4] * 10, max_demand=2.0, max_value=10.0, agents=n, epsilon=5.0, delta=1e-6,
        names=list("abcdefghij"),
    )
    # What is loaded once, whatever the number of agents, counts for neither.
    small = dict(values=[1.0] * 100, demands=[[1.0] * 10] * 100)
    solve(Market(supply=[90.0] * 10, max_demand=2.0, max_value=10.0, agents=100), **small,
          epsilon=5.0, delta=1e-6, seed=1)
    before = anonymous()
    threading.Thread(target=watch, daemon=True).start()
    result = solve(
        market, sys.argv[2], seed=1, engine=engine, output=sys.argv[4], threads=2, progress=show
    )
    print(json.dumps([peak, list(result.billboard.lines())[-1]]))
"""


def test_memory_is_bounded(tmp_path):
    """2,000,000 agents with 10 resources: 48 MB of codes, 16 MB of ids, 8 MB of shares."""
    n = 2_000_000
    rng = np.random.default_rng(1)
    path = tmp_path / "agents.parquet"
    schema = pa.schema([("id", pa.int64()), *((c, pa.float32()) for c in ("value", *"abcdefghij"))])
    with pyarrow.parquet.ParquetWriter(path, schema, compression=None) as writer:
        for start in range(0, n, 2**17):
            rows = min(2**17, n - start)
            columns = [np.arange(start, start + rows), rng.random(rows, np.float32)]
            columns += [rng.random(rows, np.float32) for _ in range(10)]
            writer.write_table(pa.table(columns, schema=schema))
    found = {}
    for kind in ("mapped", "memory"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CHILD), kind, path, str(n), tmp_path / kind],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        found[kind] = json.loads(done.stdout.splitlines()[-1])
    assert found["mapped"][1] == found["memory"][1], "the same chain of hashes, to its end"
    peak = {kind: peaks for kind, (peaks, _) in found.items()}
    assert peak["mapped"]["rounds"] < 50_000 < peak["memory"]["rounds"], peak
    assert peak["mapped"]["reading"] < 120_000, "what two threads read at a time, whatever n is"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["agents.parquet", "mapped", "memory"]


# --- nothing stays ------------------------------------------------------------------------


def test_without_a_store_nothing_stays(tmp_path, monkeypatch):
    path = write_clinic(tmp_path / "agents.parquet", 3000)
    here = tmp_path / "here"
    here.mkdir()
    result = solve(clinic(3000), path, seed=1, engine="mapped", output=here / "out")
    assert [p.name for p in here.iterdir()] == ["out"]
    assert result.shares.sum() > 0, "what was mapped is there although its names are gone"
    assert [p.name for p in here.iterdir()] == ["out"]


def test_without_a_store_nothing_stays_after_an_error(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    numbers = np.zeros(3000, np.int64)
    twice = write_clinic(tmp_path / "twice.parquet", 3000, numbers)
    good = write_clinic(tmp_path / "good.parquet", 3000)
    with pytest.raises(AgentsError, match="more than one agent"):
        solve(clinic(3000), twice, seed=1, engine=Mapped(), output=here / "out")
    with pytest.raises(AgentsError, match="declares 2,999"):
        solve(clinic(2999), good, seed=1, engine=Mapped(), output=here / "out")
    assert list(here.iterdir()) == []

    def failing(*arguments, **more):
        raise MemoryError

    def refusing(*arguments):
        raise BudgetError("no")

    with monkeypatch.context() as patch:
        patch.setattr(mapped, "encode_piece", failing)
        with pytest.raises(MemoryError):
            solve(clinic(3000), good, seed=1, engine=Mapped(), output=here / "out")
    assert list(here.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["jdpack.run.loop"], "release", refusing)
        with pytest.raises(BudgetError):
            solve(clinic(3000), good, seed=1, engine=Mapped(), output=here / "out")
    assert [p.name for p in here.iterdir()] == ["out"], "a run that can resume"
    resume(here / "out")
    assert [p.name for p in here.iterdir()] == ["out"]


def test_without_an_output_codes_are_where_temporary_files_are(tmp_path, monkeypatch):
    path = write_clinic(tmp_path / "agents.parquet", 3000)
    where = tmp_path / "temporary"
    where.mkdir()
    monkeypatch.setattr(engine_settings, "gettempdir", lambda: str(where))
    seen = []

    class Spy(mapped.Store):
        def __init__(self, folder):
            seen.append(folder)
            super().__init__(folder)

    monkeypatch.setattr(mapped, "Store", Spy)
    result = solve(clinic(3000), path, seed=1, engine=Mapped())
    assert seen and all(where in (folder, *folder.parents) for folder in seen)
    assert result.shares.any() and list(where.iterdir()) == []


# --- refusals -----------------------------------------------------------------------------


def test_records_in_memory_are_refused(tmp_path):
    with pytest.raises(AgentsError, match="the engine mapped reads files") as error:
        solve(
            clinic(10),
            values=[1.0] * 10,
            demands=[[1.0] * 3] * 10,
            engine="mapped",
            output=tmp_path / "out",
        )
    assert "Parquet" in error.value.hint and not (tmp_path / "out").exists()


@pytest.mark.parametrize("memory", ["", "5", "1 parsec", "9.9MB", "-1GB", 10**7 - 1, None, True])
def test_memory_that_is_no_size_is_refused(memory):
    with pytest.raises(EngineError, match="is not a size") as error:
        Mapped(memory=memory)
    assert "500MB" in error.value.hint


@pytest.mark.parametrize("memory", ["10MB", "10 mb", "0.01GB", "500MiB", 10**7, "10000K", "1T"])
def test_memory_sizes_are_read(memory):
    Mapped(memory=memory)


def test_a_place_that_takes_no_codes_is_refused(tmp_path):
    path = write_clinic(tmp_path / "agents.parquet", 3000)
    with pytest.raises(OutputError, match="cannot write codes"):
        solve(clinic(3000), path, seed=1, engine=Mapped("/proc/nowhere"), output=tmp_path / "out")
    assert not (tmp_path / "out").exists()
