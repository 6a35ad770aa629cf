"""A full disk: a clear error wherever it strikes, no half files, and the same end with free space.

A limit on the size of files stands in for a full disk: it needs no rights and strikes at a chosen
byte. Where we may mount a file system, a really full one is tested too.
"""

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

from jdpack import Billboard

pytestmark = pytest.mark.long

N = 6000
MARKET = """
name = "Clinic"
privacy = {epsilon = 9.0, delta = 1e-6}
value.max = 10.0
agents.count = 6000
resource = [
    {name = "beds", supply = 4000.0, max_demand = 2.0},
    {name = "nurses", supply = 5000.0, max_demand = 3.0},
]
"""
FAST = ["--policy", "mwu-adaptive:alpha=0.5", "--seed", "7", "-q", "--threads", "1"]

SERVER = """
    import contextlib, gc, io, json, os, resource, signal, sys
    import numpy as np
    import rich.progress
    from jdpack import cli, solve
    from jdpack.pages import billboard_page
    from jdpack.run import curator_page
    from jdpack.run.folder import Output
    from jdpack.policies.mwu_adaptive import MwuAdaptive
    from jdpack.engines.code_store import Store

    # What is loaded now, by this thread alone, need not be loaded in every fork.
    data = np.random.default_rng(1).uniform(0, 1, (6000, 3))
    result = solve(sys.argv[1], values=data[:, 0], demands=data[:, 1:], ids=range(6000), threads=1,
                   policy=MwuAdaptive(0.5), seed=1)
    curator_page.curator_page(result.billboard, result.curator)
    billboard_page.public_page(result.billboard)
    del result
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        sys.argv = ["jdpack", "plan", sys.argv[1]]
        cli.main()
    gc.freeze()  # or every fork would look through all of it when it ends
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.fsync = lambda handle: None  # for speed; there is no power cut here

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def limit_at(owner, name, size):
        \"\"\"Full from the first call of a function on.\"\"\"
        known = getattr(owner, name)

        def call(*arguments, **more):
            limit(size)
            return known(*arguments, **more)

        setattr(owner, name, call)

    for line in sys.stdin:
        arguments, full = json.loads(line)
        heard, said = os.pipe()  # the limit is for files alone
        pid = os.fork()
        if pid == 0:
            os.dup2(said, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if isinstance(full, int):
                limit(full)
            elif full is not None:
                places = {"scratch": Store, "output": Output}
                pages = {"curator_page": curator_page, "public_page": billboard_page}
                limit_at((places | pages)[full[0]], *full[1:])
            sys.argv = ["jdpack", *arguments]
            cli.main()
        os.close(said)
        with open(heard) as err:
            text = err.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps([status, text]), flush=True)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disk")
    (folder / "market.toml").write_text(MARKET)
    rng = np.random.default_rng(1)
    columns = {"id": rng.permutation(N), "value": rng.uniform(0, 10, N)}
    columns |= {"beds": rng.uniform(0, 2, N), "nurses": rng.uniform(0, 3, N)}
    pyarrow.parquet.write_table(pa.table(columns), folder / "agents.parquet", row_group_size=2000)
    return folder


@pytest.fixture(scope="module")
def jdpack(place):
    """The command line in its own process, with a disk that is full in some way."""
    code = textwrap.dedent(SERVER)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, str(place / "market.toml")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:

        def run(*arguments, full=None):
            server.stdin.write(json.dumps([list(map(str, arguments)), full]) + "\n")
            server.stdin.flush()
            return tuple(json.loads(server.stdout.readline()))

        yield run
    assert server.returncode == 0


@pytest.fixture(scope="module")
def wanted(jdpack, place):
    """What the run leaves on a disk with free space."""
    assert jdpack("solve", *inputs(place), "-o", place / "wanted", *FAST) == (0, "")
    return content(place / "wanted")


def inputs(place):
    return place / "market.toml", place / "agents.parquet"


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("run.json", "journal.jsonl")
    }


def check_refusal(done, *says):
    """Exit code 2, one sentence and a hint."""
    status, err = done
    assert status == 2, err
    assert err.startswith("error: ") and err.count("\n") == 2 and "\nhint: " in err
    assert "Traceback" not in err
    assert "File too large" in err or "No space left on device" in err
    for part in says:
        assert part in err


def check_end(jdpack, folder, wanted):
    assert jdpack("resume", folder, "-q") == (0, "")
    assert content(folder) == wanted


# --- a limit on the size of files ---------------------------------------------------------


def test_without_a_limit_nothing_is_wrong(wanted):
    """The control: what the other tests see is caused by the limit."""
    assert sorted(wanted) == [
        "private/allocation.parquet",
        "private/granted.parquet",
        "private/report.html",
        "public/billboard.jsonl",
        "public/index.html",
    ]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("size", [5_000, 40_000])
def test_while_encoding(jdpack, place, tmp_path, wanted, size, stored):
    store = ["--engine", "mapped", *(["--store", tmp_path / "store"] if stored else [])]
    out = tmp_path / "out"
    arguments = ["solve", *inputs(place), "-o", out, *FAST, *store]
    check_refusal(jdpack(*arguments, full=size), "cannot write codes", "--store")
    assert not out.exists(), "nothing was begun"
    left = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert all(p.suffix == ".lock" and stored for p in left)
    assert jdpack(*arguments) == (0, "")
    assert content(out) == wanted


@pytest.mark.parametrize("stored", [False, True])
def test_while_the_scratch_is_made(jdpack, place, tmp_path, wanted, stored):
    store = ["--engine", "mapped", *(["--store", tmp_path / "store"] if stored else [])]
    out = tmp_path / "out"
    full = ["scratch", "scratch", 4 * N - 1]
    done = jdpack("solve", *inputs(place), "-o", out, *FAST, *store, full=full)
    check_refusal(done, "cannot write codes", "resume")
    board = Billboard.read(out / "public" / "billboard.jsonl")
    assert len(board.releases) > 5 and not board.finished
    assert set(content(out)) == {"public/billboard.jsonl"}
    check_end(jdpack, out, wanted)


def ends(data):
    """Where lines of a billboard end."""
    return np.cumsum([len(line) for line in data.splitlines(keepends=True)]).tolist()


def test_while_posting(jdpack, place, tmp_path, wanted):
    """At the first byte of a line, within it, and at its last one."""
    data = wanted["public/billboard.jsonl"]
    lines = ends(data)
    last = len(lines) - 1  # the seed; before it the certificate, and before that what closes
    run_file = len((place / "wanted" / "private" / "run.json").read_bytes())
    first = next(at for at, end in enumerate(lines, start=1) if end > run_file + 100)
    assert first < 20
    for at, more in [
        *[(first, 0), (first + 1, 7), (first + 4, -1)],
        *[(last - 2, 7), (last - 1, 0), (last, 7), (last, -1)],
    ]:
        size = lines[at - 1] + more if more >= 0 else lines[at] - 1
        out = tmp_path / f"{size}"
        done = jdpack("solve", *inputs(place), "-o", out, *FAST, full=size)
        check_refusal(done, "cannot write the billboard", "jdpack resume")
        assert content(out) == {"public/billboard.jsonl": data[: lines[at - 1]]}
        if more == 7:
            check_end(jdpack, out, wanted)


def test_while_the_header_is_posted(jdpack, place, tmp_path, wanted):
    """Nothing is spent, so nothing stays."""
    out = tmp_path / "out"
    run_file = len((place / "wanted" / "private" / "run.json").read_bytes())
    begin = run_file - 100  # without what is known at the end only, and a byte less
    for size in (0, begin, ends(wanted["public/billboard.jsonl"])[0] - 1):
        done = jdpack("solve", *inputs(place), "-o", out, *FAST, full=size)
        check_refusal(done, "free some space")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ["memory", "mapped"])
@pytest.mark.parametrize("size", [0, 5000, -1])
def test_while_the_allocation_is_written(jdpack, place, tmp_path, wanted, size, engine):
    out = tmp_path / "out"
    whole = len(wanted["private/allocation.parquet"])
    full = ["output", "write", size if size >= 0 else whole - 1]
    arguments = ["solve", *inputs(place), "-o", out, *FAST, "--engine", engine]
    check_refusal(jdpack(*arguments, full=full), "cannot write to", f"jdpack resume {out}")
    assert content(out) == {"public/billboard.jsonl": wanted["public/billboard.jsonl"]}
    assert all(p.name != "allocation.parquet.part" for p in out.rglob("*"))
    check_end(jdpack, out, wanted)


@pytest.mark.parametrize("page", ["curator_page", "public_page"])
def test_while_a_page_is_written(jdpack, place, tmp_path, wanted, page):
    out = tmp_path / "out"
    done = jdpack("solve", *inputs(place), "-o", out, *FAST, full=[page, page, 500])
    check_refusal(done, "cannot write to", f"jdpack resume {out}")
    left = set(wanted) - {"public/index.html"}
    assert set(content(out)) == (left - {"private/report.html"} if page[0] == "c" else left)
    check_end(jdpack, out, wanted)


def test_while_a_resume_posts(jdpack, place, tmp_path, wanted):
    out = tmp_path / "out"
    data = wanted["public/billboard.jsonl"]
    for line in (3, 6, 9):
        arguments = ["resume", out, "-q"] if out.exists() else ["solve", *inputs(place), "-o", out]
        arguments += FAST if arguments[0] == "solve" else []
        done = jdpack(*arguments, full=ends(data)[line] + 20)
        check_refusal(done, "cannot write the billboard", "jdpack resume")
        assert content(out) == {"public/billboard.jsonl": data[: ends(data)[line]]}
    check_end(jdpack, out, wanted)


# --- a file system that is full -----------------------------------------------------------

FULL = """
    set -e
    mount -t tmpfs -o size={size} none {disk}
    set +e
    {solve}
    echo "first $?"
    find {disk} -type f | sort | sed 's/^/left /'
    mount -o remount,size=64m {disk}
    test -e {disk}/out/private/run.json && {resume} || {solve}
    echo "then $?"
    cp -r {disk}/out {copy}
"""


def can_mount():
    """Whether the system lets us mount one; if not, the limit above has to do."""
    if shutil.which("unshare") is None:
        return False
    tried = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"]
    return subprocess.run(tried, capture_output=True).returncode == 0


def pages_of(folder):
    return sum(-(-p.stat().st_size // 4096) for p in folder.rglob("*") if p.is_file())


if can_mount():

    @pytest.mark.parametrize("pages", [-4, 12])
    def test_a_file_system_that_is_full(jdpack, place, tmp_path, wanted, pages):
        """With this many pages of 4096 bytes beside the codes."""
        market, agents = inputs(place)
        engine, store = ["--engine", "mapped", "--store"], tmp_path / "store"
        arguments = ["solve", market, agents, "-o", tmp_path / "plain", *FAST, *engine, store]
        assert jdpack(*arguments) == (0, "")
        disk, copy = tmp_path / "disk", tmp_path / "copy"
        disk.mkdir()
        program = f"{sys.executable} -W ignore -m jdpack.cli"
        arguments[arguments.index("-o") + 1] = disk / "out"
        script = textwrap.dedent(FULL).format(
            size=4096 * (pages_of(store) + pages),
            disk=disk,
            copy=copy,
            solve=" ".join(map(str, [program, *arguments[:-1], disk / "store"])),
            resume=f"{program} resume {disk}/out -q",
        )
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        assert "first 2\n" in done.stdout and "then 0\n" in done.stdout, done.stdout
        assert "Traceback" not in done.stderr and "No space left on device" in done.stderr
        left = [line for line in done.stdout.splitlines() if line.startswith("left ")]
        assert not any(".part" in line or "allocation" in line for line in left)
        assert any(".codes" in line for line in left) == (pages >= 0)
        assert content(copy) == wanted
        assert not os.path.ismount(disk), "it was mounted for the script alone"
