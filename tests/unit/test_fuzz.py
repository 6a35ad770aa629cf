"""The fuzzer itself: a sample of every target is clean, and bugs on purpose are found."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("atheris", reason="atheris is for Linux")

RUN = Path(__file__).parents[2] / "fuzz" / "run.py"
TARGETS = ("billboard", "market", "csv", "parquet", "table", "ledger", "runfile")
PLANTED = {
    "traceback": "Uncaught Python exception",
    "hang": "ERROR: libFuzzer: timeout",
    "memory": "of memory",
    "file": "ForbiddenError: opened",
}


def fuzz(*arguments):
    return subprocess.run(
        [sys.executable, RUN, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_a_sample_of_every_target_is_clean(tmp_path):
    done = fuzz("all", "--runs", 120, "--jobs", 2, "--timeout", 60, "--results", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert sorted(lines) == sorted(TARGETS)
    for _, inputs, _, edges, _, verdict in lines.values():
        assert int(inputs) >= 120 and int(edges) > 30 and verdict == "fine"


def test_negative_control_bugs_on_purpose_are_found(tmp_path):
    def find(kind):
        seconds = 2 if kind == "hang" else 60
        more = ["--runs", 3000, "--timeout", seconds, "--results", tmp_path / kind]
        return fuzz("billboard", "--plant", kind, *more)

    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(PLANTED, pool.map(find, PLANTED), strict=True))
    for kind, done in results.items():
        assert done.returncode == 1 and "FAILED" in done.stdout, kind
        assert PLANTED[kind] in done.stdout, kind
        again = done.stdout.splitlines()[-1].split()
        assert again[0] == "again:" and Path(again[-1]).is_file()
    # What was found is found again by itself, and is no bug of the program as it is.
    crash = results["traceback"].stdout.splitlines()[-1].split()[-1]
    assert fuzz("billboard", crash, "--results", tmp_path / "again").returncode == 0
