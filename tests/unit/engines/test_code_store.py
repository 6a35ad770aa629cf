"""The code store: records are encoded once, stay private, and are never used if damaged."""

import errno
import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from jdpack import Market
from jdpack.engines import code_store, mapped
from jdpack.errors import AgentsError, OutputError
from jdpack.records import locate, readers
from jdpack.records.encode import encode_piece
from jdpack.records.source import Source

N = 900


def clinic(**more):
    settings = {"supply": [900.0, 700.0], "max_demand": [2.0, 3.0], "max_value": 10.0}
    return Market(**settings | {"agents": N, "names": ["beds", "nurses"]} | more)


def write_agents(path, *, seed=1, texts=False, row_group_size=300, **more):
    rng = np.random.default_rng(seed)
    ids = [f"Ä{i}" for i in range(N)] if texts else np.arange(N)
    columns = {"id": ids, "value": rng.uniform(0, 10, N), "beds": rng.uniform(0, 2, N)}
    columns["nurses"] = rng.uniform(0, 3, N)
    pyarrow.parquet.write_table(pa.table(columns | more), path, row_group_size=row_group_size)
    return path


@pytest.fixture
def agents(tmp_path):
    return write_agents(tmp_path / "agents.parquet")


@pytest.fixture
def encoded(monkeypatch):
    """How many pieces were encoded so far; there are three, one per row group."""
    calls = []

    def counting(*arguments, **more):
        calls.append(arguments[1])
        return encode_piece(*arguments, **more)

    monkeypatch.setattr(mapped, "encode_piece", counting)
    monkeypatch.setattr(mapped, "_PIECE_ROWS", 300)
    return calls


def opened(folder, agents, market=None, *, clamp=False, threads=2):
    source = Source(market or clinic(), str(agents), None, None, None, clamp)
    return mapped.MappedEngine.open(
        source, threads, folder, agents.parent, 10**9, lambda done: None
    )


def answers(engine):
    """Enough answers of an engine to notice any wrong code."""
    prices = [(0, 0), (10**9, 10**9), (10**6, 3 * 10**8), (5 * 10**8, 7)]
    return [engine.digest(), engine.count, engine.clamped, *map(engine.demand, prices)]


def whole_sets(folder):
    return sorted(p for p in folder.iterdir() if p.is_dir())


# --- reuse --------------------------------------------------------------------------------


def test_records_are_encoded_once(tmp_path, agents, encoded):
    folder = tmp_path / "store"
    first = answers(opened(folder, agents))
    assert len(encoded) == 3
    assert answers(opened(folder, agents, threads=1)) == first
    assert len(encoded) == 3


def test_what_the_codes_do_not_depend_on_does_not_matter(tmp_path, agents, encoded):
    folder = tmp_path / "store"
    opened(folder, agents)
    opened(folder, agents, clinic(epsilon=0.3, delta=1e-9))
    opened(folder, agents, clinic(name="Another"))
    os.utime(agents)
    opened(folder, agents)
    shutil.copy(agents, tmp_path / "kept.parquet")
    os.rename(tmp_path / "kept.parquet", agents)
    opened(folder, agents)
    assert len(encoded) == 3 and len(whole_sets(folder)) == 1


@pytest.mark.parametrize(
    "market",
    [
        {"supply": [901.0, 700.0]},
        {"max_demand": [2.0, 3.5]},
        {"max_value": 11.0},
        {"resource_columns": ["nurses", "beds"]},
        {"neighbours": "add-remove"},
        {"bundle_size": 2, "options": 2},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_the_codes_depend_on_matters(tmp_path, agents, encoded, market):
    """Each is encoded separately, to what a fresh store would contain."""
    folder = tmp_path / "store"
    caps = {"max_demand": [3.0, 3.0]}  # columns may be swapped
    opened(folder, agents, clinic(**caps))
    again = opened(folder, agents, clinic(**caps | market))
    assert len(encoded) == 6 and len(whole_sets(folder)) == 2
    assert answers(again) == answers(opened(tmp_path / "new", agents, clinic(**caps | market)))


def test_clamping_matters(tmp_path, encoded):
    agents = write_agents(tmp_path / "agents.parquet", beds=np.full(N, 2.5))
    folder = tmp_path / "store"
    with pytest.raises(AgentsError, match="beds"):
        opened(folder, agents)
    assert whole_sets(folder) == []
    engine = opened(folder, agents, clamp=True)
    assert engine.clamped == N and len(whole_sets(folder)) == 1
    with pytest.raises(AgentsError, match="beds"):
        opened(folder, agents)


def test_changed_records_are_not_found(tmp_path, agents, encoded):
    folder = tmp_path / "store"
    first = answers(opened(folder, agents))
    before = agents.stat()
    data = agents.read_bytes()
    write_agents(agents, seed=2)
    assert len(agents.read_bytes()) == len(data), "the same size, so that its content must tell"
    os.utime(agents, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert answers(opened(folder, agents)) != first
    assert len(encoded) == 6
    agents.write_bytes(data)
    assert answers(opened(folder, agents)) == first
    assert len(encoded) == 6 and len(whole_sets(folder)) == 2


@pytest.mark.parametrize(
    ("module", "step"),
    [(locate, "find"), (readers, "file_pieces"), (readers, "fingerprint")],
    ids=["find", "pieces", "fingerprint"],
)
def test_records_that_change_meanwhile_are_never_kept_as_what_they_were(
    tmp_path, agents, encoded, monkeypatch, module, step
):
    """Whether it changes before the files are cut, before they are hashed, or after."""
    folder, known = tmp_path / "store", getattr(module, step)

    def changing(*arguments):
        found = known(*arguments)
        monkeypatch.setattr(module, step, known)
        write_agents(agents, seed=2)
        return found

    old = agents.read_bytes()
    monkeypatch.setattr(module, step, changing)
    with pytest.raises(AgentsError, match="has changed since the run began"):
        opened(folder, agents)
    assert whole_sets(folder) == []
    new = answers(opened(folder, agents))
    agents.write_bytes(old)
    assert answers(opened(folder, agents)) == answers(opened(tmp_path / "own", agents)) != new


def test_texts_and_empty_ids_come_back(tmp_path, encoded):
    agents = write_agents(tmp_path / "agents.parquet", id=["", *(f"{i}Ä" for i in range(1, N))])
    folder = tmp_path / "store"
    opened(folder, agents)
    engine = opened(folder, agents)
    assert len(encoded) == 3
    ids = engine.agents.ids.to_pylist()
    assert ids == ["", *(f"{i}Ä" for i in range(1, N))]


def test_an_agent_with_an_empty_text_alone(tmp_path):
    path = tmp_path / "agents.parquet"
    pyarrow.parquet.write_table(pa.table({"id": [""], "value": [1.0], "beds": [1.0]}), path)
    market = Market(supply=[9.0], max_demand=2.0, max_value=2.0, agents=1, names=["beds"])
    for _ in range(2):
        engine = opened(tmp_path / "store", path, market)
        assert engine.agents.ids.to_pylist() == [""] and engine.demand((0,))[0] > 0


def many_pieces(tmp_path, monkeypatch):
    agents = write_agents(tmp_path / "agents.parquet", row_group_size=1)
    monkeypatch.setattr(mapped, "_PIECE_ROWS", 1)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    return agents


@pytest.mark.parametrize("name", ["store", None])
def test_many_pieces_take_few_open_files(tmp_path, monkeypatch, name):
    """A map keeps a file open, and 900 would be close to the usual limit of a process."""
    agents, folder = many_pieces(tmp_path, monkeypatch), name and tmp_path / name
    right = answers(opened(tmp_path / "other", write_agents(tmp_path / "few.parquet")))
    before = len(os.listdir("/proc/self/fd"))
    engine = opened(folder, agents)
    assert 200 < len(os.listdir("/proc/self/fd")) - before < 300
    assert answers(engine) == right
    del engine
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("name", ["store", None])
def test_too_few_open_files_are_named_as_such(tmp_path, monkeypatch, name):
    agents, folder = many_pieces(tmp_path, monkeypatch), name and tmp_path / name
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 99, hard))
    try:
        # Whether the limit is hit while writing codes or while reading records.
        with pytest.raises((OutputError, AgentsError), match="Too many open files") as error:
            opened(folder, agents)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "ulimit -n" in error.value.hint and "space" not in error.value.hint
    opened(folder, agents)


# --- privacy ------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0, 0o022])
def test_everything_is_for_the_owner_alone(tmp_path, agents, umask):
    old = os.umask(umask)
    try:
        opened(tmp_path / "store", agents)
    finally:
        os.umask(old)
    found = [tmp_path / "store", *(tmp_path / "store").rglob("*")]
    assert len(found) >= 5
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_scratch_is_gone_as_soon_as_it_is_made(tmp_path):
    shares = code_store.Store(tmp_path / "store").scratch(1000)
    shares[:] = 7
    assert shares.sum() == 7000 and shares.dtype == np.uint32 and len(shares) == 1000
    assert list((tmp_path / "store").iterdir()) == []
    assert len(code_store.Store(tmp_path / "store").scratch(0)) == 0


# --- damage -------------------------------------------------------------------------------


def flips(size, rng):
    """Offsets in a file: its beginning and end, around every 64th byte, and some others."""
    edges = {0, 1, size - 1, size - 2, *range(0, size, max(64, size // 16 // 64 * 64))}
    return sorted(edges | set(rng.integers(0, size, 8).tolist()) & set(range(size)))


@pytest.mark.parametrize("texts", [False, True])
def test_a_flipped_byte_is_never_believed(tmp_path, encoded, texts, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # for speed; no power cut is tested
    agents = write_agents(tmp_path / "agents.parquet", texts=texts)
    folder = tmp_path / "store"
    right = answers(opened(folder, agents))
    (place,) = whole_sets(folder)
    rng, unseen = np.random.default_rng(4), 0
    for path in sorted(place.iterdir()):
        data = path.read_bytes()
        for at in flips(len(data), rng):
            before, mask = len(encoded), 1 << int(rng.integers(8))
            path.write_bytes(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            assert answers(opened(folder, agents)) == right, (path.name, at, mask)
            if len(encoded) == before:  # only padding between two arrays
                assert path.suffix == ".codes" and data[at] == 0
                path.write_bytes(data)
                unseen += 1
            assert path.read_bytes() == data
            assert whole_sets(folder) == [place]
    assert unseen < 20 < len(encoded)


@pytest.mark.parametrize("at", [0, 1, 63, 64, 65, -2, -1])
@pytest.mark.parametrize("mask", [1, 2, 128])
def test_a_flipped_byte_of_the_index_is_never_believed(tmp_path, agents, encoded, at, mask):
    folder = tmp_path / "store"
    right = answers(opened(folder, agents))
    (place,) = whole_sets(folder)
    data = bytearray((place / "index.json").read_bytes())
    data[at] ^= mask
    (place / "index.json").write_bytes(data)
    assert answers(opened(folder, agents)) == right
    assert len(encoded) == 6


def test_memory_that_held_something_else_is_not_written(tmp_path, agents, monkeypatch):
    """The unused places of a block are zeros, and the same records give the same bytes."""
    empty = np.empty

    def dirty(shape, dtype=float):
        array = empty(shape, dtype)
        array.fill(0xAB)
        return array

    opened(tmp_path / "one", agents)
    monkeypatch.setattr(np, "empty", dirty)
    opened(tmp_path / "two", agents)
    one, two = (
        [p.read_bytes() for p in sorted((tmp_path / name).rglob("*.codes"))]
        for name in ("one", "two")
    )
    assert one == two


DAMAGED = {
    **{f"cut at {keep}": lambda data, keep=keep: data[:keep] for keep in (0, 1, 100, -1)},
    "longer": lambda data: data + b"\n",
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_is_cut_or_longer_is_made_again(tmp_path, agents, encoded, damage):
    folder = tmp_path / "store"
    right = answers(opened(folder, agents))
    (place,) = whole_sets(folder)
    for path in sorted(place.iterdir()):
        data = path.read_bytes()
        path.write_bytes(damage(data))
        before = len(encoded)
        assert answers(opened(folder, agents)) == right
        assert len(encoded) == before + 3 and path.read_bytes() == data


def test_a_missing_file_is_made_again(tmp_path, agents, encoded):
    folder = tmp_path / "store"
    right = answers(opened(folder, agents))
    (place,) = whole_sets(folder)
    names = sorted(path.name for path in place.iterdir())
    for name in names:
        (place / name).unlink()
        before = len(encoded)
        assert answers(opened(folder, agents)) == right
        assert len(encoded) == before + 3
        assert sorted(path.name for path in place.iterdir()) == names


def test_files_that_changed_places_are_made_again(tmp_path, agents, encoded):
    folder = tmp_path / "store"
    right = answers(opened(folder, agents))
    (place,) = whole_sets(folder)
    a, b = sorted(place.glob("*.codes"))[:2]
    data = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(data)
    assert answers(opened(folder, agents)) == right
    assert len(encoded) == 6


def test_an_index_of_another_set_is_not_believed(tmp_path, agents, encoded):
    folder = tmp_path / "store"
    right = answers(opened(folder, agents))
    (place,) = whole_sets(folder)
    opened(folder, agents, clinic(max_value=20.0))
    (other,) = set(whole_sets(folder)) - {place}
    shutil.copy(other / "index.json", place / "index.json")
    assert answers(opened(folder, agents)) == right


def test_what_a_killed_process_left_is_ignored_and_cleaned(tmp_path, agents, encoded):
    folder = tmp_path / "store"
    right = answers(opened(folder, agents))
    (place,) = whole_sets(folder)
    half = place.with_suffix(".part")
    place.rename(half)  # even if everything was written and only the last step is missing
    (half / "00000.codes").write_bytes(b"half")
    assert answers(opened(folder, agents)) == right
    assert whole_sets(folder) == [place] and len(encoded) == 6


def test_an_error_while_encoding_leaves_nothing(tmp_path, agents, encoded, monkeypatch):
    folder = tmp_path / "store"

    def failing(*arguments, **more):
        raise AgentsError("no")

    with monkeypatch.context() as patch:
        patch.setattr(mapped, "encode_piece", failing)
        with pytest.raises(AgentsError, match="no"):
            opened(folder, agents)
    assert whole_sets(folder) == []
    opened(folder, agents)
    assert len(whole_sets(folder)) == 1


def test_a_store_that_cannot_be_is_refused(tmp_path, agents):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match="cannot write codes") as error:
            opened(folder, agents)
        assert "--store" in error.value.hint


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_store_without_the_right_to_is_not_called_full(tmp_path, agents, monkeypatch, number):
    def refusing(*arguments):
        raise OSError(number, os.strerror(number))

    opened(tmp_path / "store", agents)
    monkeypatch.setattr(code_store, "_found", refusing)
    with pytest.raises(OutputError, match="cannot read and write codes in") as error:
        opened(tmp_path / "store", agents)
    assert "--store" in error.value.hint and "space" not in error.value.hint


def test_a_lock_that_is_a_link_is_not_followed(tmp_path, agents):
    folder = tmp_path / "store"
    opened(folder, agents)
    (lock,) = folder.glob("*.lock")
    lock.unlink()
    (tmp_path / "precious").write_text("kept")
    lock.symlink_to(tmp_path / "precious")
    with pytest.raises(OutputError):
        opened(folder, agents)
    assert (tmp_path / "precious").read_text() == "kept"


# --- several processes --------------------------------------------------------------------

CHILD = """
    import sys, time
    from pathlib import Path
    sys.path[:0] = {path!r}
    from tests.unit.engines import test_code_store as here
    from jdpack.engines import mapped
    mapped._PIECE_ROWS = 300
    folder, agents, log = [Path(name) if name else None for name in sys.argv[1:]]

    def slow(*arguments, **more):
        with open(log, "a") as file:
            file.write("piece\\n")
        time.sleep({seconds})
        return here.encode_piece(*arguments, **more)

    mapped.encode_piece = slow
    print(here.answers(here.opened(folder, agents, threads=1)))
"""


def start(folder, agents, log, *, seconds):
    code = textwrap.dedent(CHILD).format(path=[*sys.path, os.getcwd()], seconds=seconds)
    arguments = [sys.executable, "-c", code, str(folder or ""), str(agents), str(log)]
    root = Path(__file__).parents[3]
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root
    )


def test_processes_that_encode_the_same_at_once_make_it_once(tmp_path, agents):
    folder, log = tmp_path / "store", tmp_path / "log"
    children = [start(folder, agents, log, seconds=0.3) for _ in range(2)]
    found = [child.communicate(timeout=100) for child in children]
    assert [child.returncode for child in children] == [0, 0], found
    assert len({out for out, _ in found}) == 1
    assert log.read_text().count("piece") == 3, "one encoded, the other waited"
    assert len(whole_sets(folder)) == 1
    right = answers(opened(tmp_path / "own", agents))
    assert found[0][0].strip() == str(right)


def killed(folder, agents, log, how=signal.SIGKILL):
    """End a process that has just begun to encode."""
    child = start(folder, agents, log, seconds=60)
    deadline = time.monotonic() + 100
    while not log.exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child.pid, how)
    child.communicate()
    assert child.returncode == -how


def test_a_kill_while_encoding_leaves_nothing_that_is_taken_for_whole(tmp_path, agents, encoded):
    folder = tmp_path / "store"
    killed(folder, agents, tmp_path / "log")
    assert [p.suffix for p in whole_sets(folder)] == [".part"]
    right = answers(opened(tmp_path / "own", agents))
    before = len(encoded)
    assert answers(opened(folder, agents)) == right
    assert len(encoded) == before + 3 and [p.suffix for p in whole_sets(folder)] == [""]


def test_what_the_dead_left_is_swept_and_what_the_living_make_is_not(tmp_path, agents, encoded):
    """Whichever records the next run on the store uses."""
    folder = tmp_path / "store"
    killed(folder, agents, tmp_path / "log")
    (dead,) = whole_sets(folder)
    alive, other = folder / f"{'a' * 32}.part", folder / "mine.part"
    for made in (alive, other):
        made.mkdir()
    with open(alive.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        opened(folder, agents, clinic(max_value=20.0))
    assert alive.exists() and other.exists() and not dead.exists()
    opened(folder, agents, clinic(max_value=20.0))
    assert not alive.exists() and other.exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_while_encoding_without_a_store_leaves_nothing(tmp_path, agents, how):
    log = tmp_path / "log"
    killed(None, agents, log, how)
    assert sorted(tmp_path.iterdir()) == sorted([agents, log])
