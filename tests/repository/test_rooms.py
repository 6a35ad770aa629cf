"""The rooms: nothing below the wall imports anything above it, and each names its side."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import jdpack

PACKAGE = Path(jdpack.__file__).parent
ROOT = Path(__file__).parents[2]
MODULES = sorted(PACKAGE.rglob("*.py"))

ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
PRIVATE = ["engines", "records"]
CURATOR = ["audit", "curator", "run"]
JOINING = {"__init__.py", "door.py", "run/local.py", "run/loop.py"} | {
    f"cli/{path.name}" for path in (PACKAGE / "cli").iterdir()
}
"""Modules between the rooms, or the package itself, which say so in their own words."""


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def lint(config: Path) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [linter, "--config", config, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_import_rules_hold():
    result = lint(ROOT / "pyproject.toml")
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(rules())} kept, 0 broken" in result.stdout
    assert len(rules()) >= 3


def test_negative_control_a_broken_rule_is_found(tmp_path):
    """The same layers, with the wall upside down."""
    config = tmp_path / "rules.toml"
    config.write_text(
        "[tool.importlinter]\n"
        'root_package = "jdpack"\n'
        "[[tool.importlinter.contracts]]\n"
        'name = "made to break"\n'
        'type = "layers"\n'
        'containers = ["jdpack"]\n'
        f"layers = {LAYERS[::-1]}\n"
    )
    result = lint(config)
    assert result.returncode != 0
    assert "0 kept, 1 broken" in result.stdout


def rules() -> list[dict[str, Any]]:
    """The contracts of pyproject.toml."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return data["tool"]["importlinter"]["contracts"]


LAYERS = [room for layer in rules()[0]["layers"] for room in layer.split(" | ")]


def test_the_layers_are_the_rooms():
    """The wall is below `records`; private and curator modules are above it."""
    assert set(LAYERS) == {*ROOMS, "door", "errors"}
    wall = LAYERS.index("records") + 1
    assert set(LAYERS[:wall]) == {"cli", "door", *PRIVATE, *CURATOR}
    assert rules()[0]["exhaustive"] is True


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "cli"])
def test_a_room_says_on_which_side_it_is_and_names_its_modules(room):
    text = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text("utf-8")))
    side = "Private" if room in PRIVATE else "Curator" if room in CURATOR else "Public"
    assert text and text.startswith(f"{side} side: ")
    for path in (PACKAGE / room).glob("*.py"):
        assert path.stem == "__init__" or f"`{path.stem}`" in text, path.stem


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_whether_it_is_public_or_private(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, "a module without a docstring"
    name = name_of(path)
    if name not in JOINING and path.name != "__init__.py":
        private = name.split("/")[0] in [*PRIVATE, *CURATOR]
        assert text.startswith("Private: " if private else "Public: ")


RANDOM = {
    "make_gaussian",
    "make_laplace",
    "secrets",
    "random",
    "default_rng",
    "urandom",
    "token_bytes",
}


def test_nobody_else_draws_at_random():
    """Only `door` draws noise, `lines` the seed of the coins, and `demo` invented agents.

    `zcdp` builds a Gaussian to learn its cost, and never draws from it. An audit invents
    agents too, and watches others draw.
    """
    users = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {getattr(node, "id", None), getattr(node, "attr", None)}
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names}
                names.add(getattr(node, "module", None))
            if names & RANDOM:
                users.add(name_of(path))
    audits = ("budget_checks", "noise_checks", "paths", "people", "recording")
    auditing = {f"audit/{name}.py" for name in audits}
    drawing = {"privacy/zcdp.py", "billboard/lines.py", "door.py", "run/demo.py"}
    assert users == drawing | auditing
