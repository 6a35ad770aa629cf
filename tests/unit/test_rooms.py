"""The rooms: what is public imports nothing private, and every module says which it is."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jdpack

PACKAGE = Path(jdpack.__file__).parent
ROOT = Path(__file__).parents[2]
MODULES = sorted(PACKAGE.rglob("*.py"))

JOINING = {"__init__.py", "local.py", "release.py", "solve.py"} | {
    f"cli/{path.name}" for path in (PACKAGE / "cli").iterdir()
}
"""They stand between the rooms, or are the package itself, and say so in their own words."""


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


@pytest.mark.parametrize(
    ("source", "forbidden"),
    [("jdpack.release", "jdpack.engines"), ("jdpack.policies", "jdpack.billboard")],
)
def test_negative_control_a_broken_rule_is_found(tmp_path, source, forbidden):
    config = tmp_path / "rules.toml"
    config.write_text(
        "[tool.importlinter]\n"
        'root_package = "jdpack"\n'
        "[[tool.importlinter.contracts]]\n"
        'name = "made to break"\n'
        'type = "forbidden"\n'
        f'source_modules = ["{source}"]\n'
        f'forbidden_modules = ["{forbidden}"]\n'
    )
    result = lint(config)
    assert result.returncode != 0
    assert "0 kept, 1 broken" in result.stdout


def rules() -> dict[str, tuple[set[str], set[str]]]:
    """The contracts of pyproject.toml: who may not import whom, by name of the contract."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {
        contract["name"]: (set(contract["source_modules"]), set(contract["forbidden_modules"]))
        for contract in data["tool"]["importlinter"]["contracts"]
    }


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_whether_it_is_public_or_private(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, "a module without a docstring"
    first = text.splitlines()[0]
    if name_of(path) not in JOINING:
        assert first.startswith(("Public: ", "Private: "))


def test_the_rules_name_every_module_of_either_room():
    """A new public module is under the rules from its first day; a private one is forbidden."""
    public, private = rules()["The public rooms import nothing private"]
    for path in MODULES:
        name = name_of(path)
        first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split(":")[0]
        module = "jdpack." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        packages = {module, module.rsplit(".", 1)[0]}
        if first == "Public" and name != "errors.py":
            assert packages & public, f"{module} says that it is public, the rules do not"
        if first == "Private":
            assert packages & private, f"{module} says that it is private, the rules do not"


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
    """Noise in `release`, the seed of the coins in `billboard`, the invented agents of `demo`, the
    tokens of those who go on with a run in `runfile`.

    `accounting` builds a Gaussian to ask what it costs, and never draws from it. An audit invents
    agents too, and looks on while others draw.
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
    auditing = {f"audit/{name}.py" for name in ("charges", "draws", "paths", "people", "tape")}
    drawing = {"accounting.py", "billboard.py", "release.py", "demo.py"}
    assert users == drawing | auditing
