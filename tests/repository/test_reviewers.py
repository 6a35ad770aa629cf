"""The reviewers' page: its names, tests and links exist, and no claim lacks a column."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from repository.test_docs import broken_links, rows, section

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "for-reviewers.md"
TEXT = PAGE.read_text(encoding="utf-8")

NAME = re.compile(r"`(jdpack(?:\.\w+)+)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def found(name: str) -> Any:
    """What a dotted name refers to: a module, or an attribute of the longest module in it.

    It imports modules instead of reading attributes: `jdpack.solve` is a function and a module.
    """
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            thing = getattr(thing, part)
        return thing
    raise ModuleNotFoundError(name)


@cache
def functions(path: str) -> set[str]:
    """The functions of a test file, which is read, not run."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def claims() -> list[list[str]]:
    return rows(section(TEXT, "## The claims"))


def what_is_missing(text: str) -> list[str]:
    """The names and tests in a text that do not exist."""
    missing = []
    for name in NAME.findall(text):
        try:
            found(name)
        except (ModuleNotFoundError, AttributeError):
            missing.append(name)
    for path, test in TEST.findall(text):
        if not (ROOT / path).is_file() or (test and test not in functions(path)):
            missing.append(f"{path}::{test}" if test else path)
    return missing


def test_every_name_and_test_exists():
    assert len(NAME.findall(TEXT)) > 40 and len(TEST.findall(TEXT)) > 60
    assert what_is_missing(TEXT) == []


def test_every_link_and_anchor_exists():
    assert broken_links(TEXT, PAGE) == []


def test_names_are_written_in_one_form():
    """Whatever looks like a name of ours is one, so a script can rewrite it."""
    for code in re.findall(r"`([^`\n]+)`", TEXT):
        if "/" in code or "::" in code or code.startswith(("jdpack.", "test_")):
            assert NAME.fullmatch(f"`{code}`") or TEST.fullmatch(f"`{code}`"), code


@pytest.mark.parametrize("row", claims(), ids=lambda row: row[0])
def test_a_claim_has_its_proof_code_tests_and_control(row):
    number, claim, proof, code, tests, control = row
    assert number.isdigit() and claim
    named = NAME.findall(proof)
    assert named or "](" in proof or "trusted" in proof
    for name in named:
        assert (found(name).__doc__ or "").strip(), f"{name} has no docstring to prove anything"
    assert NAME.findall(code)
    for cell in (tests, control):
        assert all(test.startswith("test_") for _, test in TEST.findall(cell))
        assert TEST.findall(cell)
    assert set(TEST.findall(tests)).isdisjoint(TEST.findall(control)), "a control of its own"


def test_claims_are_numbered_in_order():
    assert [row[0] for row in claims()] == [str(i + 1) for i in range(len(claims()))]


def test_every_field_of_the_certificate_is_a_claim():
    page = (ROOT / "docs" / "certificate.md").read_text()
    fields = {row[0].strip("`") for row in rows(page.partition("## Supply")[0])}
    assert "ratio_at_least" in fields
    text = " ".join(row[1] for row in claims())
    assert [field for field in fields if f"`{field}`" not in text] == []


def test_what_does_not_exist_is_seen():
    text = (
        "`jdpack.door.release` `jdpack.door.no_such` `jdpack.no_such` "
        "`tests/unit/run/test_local.py` `tests/unit/run/test_local.py::test_no_such` "
        "`tests/unit/no_such.py::test_an_agent_answers_once`"
    )
    assert what_is_missing(text) == [
        "jdpack.door.no_such",
        "jdpack.no_such",
        "tests/unit/run/test_local.py::test_no_such",
        "tests/unit/no_such.py::test_an_agent_answers_once",
    ]
