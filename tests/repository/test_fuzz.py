"""The fuzzer itself: a sample of every target is clean, and it finds bugs made on purpose."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from browser import boards

pytestmark = pytest.mark.long

pytest.importorskip("atheris", reason="atheris is for Linux")

RUN = Path(__file__).parents[2] / "fuzz" / "run.py"
TARGETS = ("billboard", "market", "csv", "parquet", "table", "ledger", "runfile")
PLANTED = {
    "traceback": "has no attribute 'hex'",
    "hang": "ERROR: libFuzzer: timeout",
    "memory": "of input took 2[89]\\d MB of memory",  # an input may take 224
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
    """A search finds an input that meets the bugs; with it, each kind of harm is seen.

    The bugs wait behind the same condition, so one search shows that the fuzzer gets there. A fine
    input comes first: what it may take must not hide what the next one takes.
    """
    more = ["--timeout", 12, "--jobs", 2, "--results", tmp_path]
    done = fuzz("billboard", "--runs", 12_000, *more, "--plant", "traceback")
    assert done.returncode == 1, done.stdout + done.stderr
    (crash,) = re.findall(r"Test unit written to (\S+)", done.stdout)
    assert f"again: {sys.executable} {RUN} billboard {crash}" in done.stdout
    fine = tmp_path / "fine.jsonl"
    fine.write_text("".join(f"{line}\n" for line in boards.charging().lines()), encoding="utf-8")
    done = fuzz("billboard", fine, crash, *more, "--plant", "", *PLANTED)
    assert done.returncode == 1, done.stdout + done.stderr
    for kind, says in PLANTED.items():
        assert re.search(rf"^billboard-{kind} .*FAILED$", done.stdout, re.M), kind
        log = (tmp_path / f"billboard-{kind}" / "log.txt").read_text(errors="replace")
        assert re.search(says, log), kind
    assert re.search(r"^billboard .*fine$", done.stdout, re.M), "without a bug"
