"""The planted faults still fit the source. The experiment shows what they do to the audit."""

from __future__ import annotations

import ast
import shutil
import sys
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
    ("old", "kept"), [("'plain'", True), ("LIMIT = 3", False), ("'kernel'", False)]
)
def test_a_copy_keeps_kernels_only_if_nothing_compiled_changes(
    tmp_path: Path, old: str, kept: bool
) -> None:
    package = tmp_path / "from" / "jdpack"
    package.mkdir(parents=True)
    text = "LIMIT = 3\n\n\ndef a():\n    'plain'\n\n\n@njit\ndef b():\n    'kernel'\n"
    (package / "a.py").write_text(text)
    (package / "other.nbi").touch()
    fault = Fault("one", "", (Edit("a.py", old, old.replace("3", "4").replace("l", "L")),))
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
    monkeypatch.setattr(audit_faults, "run", lambda *_: (code, out, "Traceback\nValueError: no\n"))
    found, check, exit = audit_faults.audit(Path(), 1.0)
    assert (found, exit) == (passed, code)
    assert found is not False or check == "noise"
