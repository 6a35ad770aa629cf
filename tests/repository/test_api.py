"""What the package promises: `jdpack.__all__`, and nothing else."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import jdpack

ROOT = Path(__file__).parents[2]


def test_all_is_sorted_unique_and_importable():
    assert sorted(set(jdpack.__all__)) == jdpack.__all__
    for name in jdpack.__all__:
        assert hasattr(jdpack, name)


def test_all_has_every_public_name():
    for name in jdpack.__all__:  # loads the names, which happens at first use
        getattr(jdpack, name)
    there = {
        name
        for name, thing in vars(jdpack).items()
        if not name.startswith("_") and not inspect.ismodule(thing)
    }
    # `solve` and `allocate` are functions that hide the modules of the same name.
    assert there == set(jdpack.__all__)


@pytest.mark.parametrize("name", jdpack.__all__)
def test_everything_promised_is_documented_in_place(name):
    thing = getattr(jdpack, name)
    assert inspect.getdoc(thing)
    assert thing.__module__.startswith("jdpack.")


def test_the_pages_use_nothing_that_is_not_promised():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    used = set()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for names in re.findall(r"^from jdpack import (.+)$", text, re.MULTILINE):
            used |= {name.strip() for name in names.split(",")}
        used |= set(re.findall(r"\bjdpack\.([A-Z]\w+)", text))
    assert {"Market", "solve", "allocate"} <= used
    assert used <= set(jdpack.__all__)


def test_errors_are_one_family():
    errors = [getattr(jdpack, name) for name in jdpack.__all__ if name.endswith("Error")]
    assert len(errors) == 8
    for error in errors:
        assert issubclass(error, jdpack.JdpackError)
        assert error.__name__ in (inspect.getdoc(inspect.getmodule(error)) or "")
    with pytest.raises(jdpack.JdpackError, match="what\nhint: why") as caught:
        raise jdpack.BudgetError("what", "why")
    assert (caught.value.message, caught.value.hint) == ("what", "why")


def test_the_version_is_that_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert jdpack.__version__ == project["version"]
