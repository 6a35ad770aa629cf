"""The planted faults still fit the source. The experiment shows what they do to the audit."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import audit_faults  # noqa: E402
from audit_faults import FAULTS, Edit, Fault, Row, edited, plant, summary  # noqa: E402


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_applies_once_and_parses(fault: Fault) -> None:
    for file, text in edited(fault).items():
        before = (audit_faults.SOURCE / "jdpack" / file).read_text()
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(before))


def test_faults_have_names_and_reasons_of_their_own() -> None:
    assert len(FAULTS) >= 18
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert len({fault.breaks for fault in FAULTS}) == len(FAULTS)
    assert "honest" not in {fault.name for fault in FAULTS}


@pytest.mark.parametrize("text", ["nothing", "twice twice"])
def test_an_edit_that_does_not_fit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="has the text to edit"):
        Edit("a.py", "twice", "once").apply(text)


@pytest.mark.parametrize(
    ("old", "kept"),
    [("'plain'", True), ("'cached'", True), ("LIMIT = 3", False), ("'kernel'", False)],
)
def test_a_copy_keeps_kernels_only_if_nothing_compiled_changes(
    tmp_path: Path, old: str, kept: bool
) -> None:
    package = tmp_path / "from" / "jdpack"
    package.mkdir(parents=True)
    text = "LIMIT = 3\n\n\ndef a():\n    'plain'\n\n\n@njit(x=1)\ndef b():\n    'kernel'\n"
    text += "\n\n@cache\ndef c():\n    'cached'\n"
    (package / "a.py").write_text(text)
    (package / "other.nbi").touch()
    fault = Fault("one", "", (Edit("a.py", old, old.upper()),))
    if old.startswith("LIMIT"):
        fault = Fault("one", "", (Edit("a.py", old, "LIMIT = 4"),))
    plant(fault, tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to" / "jdpack" / "a.py").read_text() != text
    assert (tmp_path / "to" / "jdpack" / "other.nbi").exists() == kept
    assert (package / "a.py").read_text() == text
    shutil.rmtree(tmp_path / "to")


def test_a_crash_is_not_a_catch() -> None:
    rows = [
        Row("one", "caught", "budget", 1, 1.0),
        Row("two", "missed", "", 0, 1.0),
        Row("three", "crashed", "ValueError", 1, 1.0),
        Row("honest", "passed", "", 0, 1.0),
    ]
    said = summary(rows)
    assert said.startswith("caught 1 of 3 faults; 1 missed; 1 crashed;")
    assert "0 minutes of CPU" in said
    assert said.endswith("passed 1 of 1 times")


@pytest.mark.parametrize(
    ("code", "out", "passed"),
    [
        (0, '{"passed": true, "findings": []}', True),
        (1, '{"passed": false, "findings": [{"check": "noise", "passed": false}]}', False),
        (1, "", None),  # a traceback ends with 1 too
        (0, '{"passed": false, "findings": []}', None),
        (2, "", None),
    ],
)
def test_a_verdict_needs_both_the_result_and_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, code: int, out: str, passed: bool | None
) -> None:
    errors = "Traceback\nValueError: no\ncpu 61.5\n"
    monkeypatch.setattr(audit_faults, "run", lambda *_: (code, out, errors))
    found, check, exit, cpu = audit_faults.audit(Path(), 1.0)
    assert (found, exit, cpu) == (passed, code, 61.5)
    assert found is not False or check == "noise"
    assert found is not None or not check.startswith("cpu")


def test_verdicts_are_kept_for_the_same_source_only(tmp_path: Path) -> None:
    file, of = tmp_path / "kept.json", audit_faults.fingerprint()
    assert audit_faults.known_rows(file, of) == []
    rows = [Row("one", "caught", "budget", 1, 1.0), Row("two", "crashed", "no", 1, 1.0)]
    file.write_text(json.dumps({"of": of, "rows": [asdict(row) for row in rows]}))
    assert audit_faults.known_rows(file, of) == rows[:1]  # a crash is no verdict
    assert audit_faults.known_rows(file, "another") == []
    file.write_text("torn")
    assert audit_faults.known_rows(file, of) == []


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is tried, though nothing really runs."""
    names: list[str] = []

    def tried(fault: Fault | None, source: Path, options: object) -> Row:
        names.append(fault.name if fault else "honest")
        return Row(names[-1], "caught" if fault else "passed", "", 0, 1.0, cpu=1.0)

    monkeypatch.setattr(audit_faults, "tried", tried)
    monkeypatch.setattr(audit_faults, "smoke", lambda *_: (True, "", 0, 1.0))
    return names


def test_a_second_start_runs_only_what_has_no_verdict(tmp_path: Path, ran: list[str]) -> None:
    names = [fault.name for fault in FAULTS[:3]]
    given = ["--results", str(tmp_path), "--honest", "2", "--jobs", "2"]
    assert audit_faults.main([*given, "--only", names[0]]) == 0
    assert sorted(ran) == sorted([names[0], "honest", "honest"])
    ran.clear()
    assert audit_faults.main([*given, *(f"--only={name}" for name in names)]) == 0
    assert sorted(ran) == sorted(names[1:])
    ran.clear()
    assert audit_faults.main([*given, "--only", names[0], "--again"]) == 0
    assert len(ran) == 3


def test_the_order_is_a_shuffle_that_a_second_start_keeps(tmp_path: Path, ran: list[str]) -> None:
    assert audit_faults.main(["--results", str(tmp_path), "--honest", "5"]) == 0
    once = ran.copy()
    names = [fault.name for fault in FAULTS]
    assert sorted(once) == sorted(names + ["honest"] * 5)
    assert [name for name in once if name != "honest"] != names
    assert once[-5:] != ["honest"] * 5
    kept = json.loads((tmp_path / "audit_faults.json").read_text())
    kept["rows"] = [row for row in kept["rows"] if row["name"] in once[:7]]
    (tmp_path / "audit_faults.json").write_text(json.dumps(kept))
    done = [row["name"] for row in kept["rows"]]
    ran.clear()
    assert audit_faults.main(["--results", str(tmp_path), "--honest", "5"]) == 0
    for name in done:
        once.remove(name)
    assert ran == once
