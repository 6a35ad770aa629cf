"""The pages say what the program does: their code runs, and nothing is left undocumented."""

import copy
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
import typer

import postgresql
from jdpack import Market, MarketError, MwuAdaptive, cli, solve
from jdpack.cli import COMMANDS, app_of
from jdpack.common import checks
from jdpack.policies import mirror_descent, mwu_adaptive, registry, spec

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL_PAGES = [
    *PAGES,
    *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY")),
]
COMMAND = Path(sys.executable).parent / "jdpack"


LANGUAGES = ["python", "toml", "console", "bash", "text", "{eval-rst}"]
"""The last one is for the site, which `test_site.py` builds."""


def named(page: Path) -> str:
    return page.name


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str) -> list[tuple[str, int, str]]:
    """The fenced blocks of a page: language, line of the fence, and text."""
    found, language, start, lines = [], None, 0, []
    for number, line in enumerate(text.split("\n"), start=1):
        if language is None and line.startswith("```"):
            language, start, lines = line[3:].strip(), number, []
        elif language is not None and line == "```":
            found.append((language, start, "\n".join(lines)))
            language = None
        elif language is not None:
            lines.append(line)
    assert language is None, f"the block of line {start} does not end"
    return found


def section(text: str, heading: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    level = len(heading.split(" ")[0])
    start = re.search(rf"^{re.escape(heading)}$", text, re.M)
    assert start, f"there is no heading {heading!r}"
    end = re.search(rf"^#{{1,{level}}} ", text[start.end() :], re.M)
    return text[start.end() :][: end.start() if end else None]


def rows(text: str) -> list[list[str]]:
    """The rows of the tables in a text, without their heads."""
    lines = [line for line in text.split("\n") if line.startswith("|")]
    cells = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    heads = {i - 1 for i, row in enumerate(cells) if set("".join(row)) == {"-"}}
    return [row for i, row in enumerate(cells) if i not in heads and set("".join(row)) != {"-"}]


def code_cells(text: str) -> list[str]:
    """What is in backquotes in the first cells of the tables."""
    return [code for row in rows(text) for code in re.findall(r"`([^`]+)`", row[0])]


# --- the code runs ------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch, request):
    if "postgresql:///" in page.read_text(encoding="utf-8"):
        request.getfixturevalue("town")
    if "spark:local" in page.read_text(encoding="utf-8"):
        request.getfixturevalue("spark_home")
    monkeypatch.chdir(tmp_path)
    run = installed if page.name in ("README.md", "scale.md") else here  # scale.md starts Ray
    run_page(page.read_text(encoding="utf-8"), page, run)


@pytest.fixture
def town(server, monkeypatch):
    """The database `town`, on the server that the variables of PostgreSQL name."""
    names = {"PGHOST": server.folder, "PGPORT": str(server.port), "PGUSER": postgresql.SUPERUSER}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    with psycopg.connect(server.address(), autocommit=True) as db:
        db.execute("CREATE DATABASE town")
        yield
        db.execute("DROP DATABASE town WITH (FORCE)")
        for (role,) in db.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE 'town%'"):
            db.execute(f"DROP ROLE {role}")


Run = Callable[[list[str]], tuple[int, str]]
"""Runs `jdpack` with arguments; gives the exit code and stderr."""


def installed(arguments: list[str]) -> tuple[int, str]:
    """Run the program as a user does."""
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


def here(arguments: list[str]) -> tuple[int, str]:
    """Run a command in this process: starting Python takes longer than most commands."""
    stderr = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(stderr):
        patch.setattr(sys, "argv", ["jdpack", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return ended.value.code, stderr.getvalue()


def run_page(text: str, page: Path, run: Run) -> None:
    """Run the blocks of a page one after the other, Python in one namespace."""
    names: dict[str, object] = {"__name__": "__page__"}
    for language, line, block in blocks(text):
        assert language in LANGUAGES, f"{page.name}:{line}: {language}"
        if language == "python":
            exec(compile("\n" * line + block, str(page), "exec"), names)
        elif language == "toml":  # a file, with its name in the first line
            file = re.match(r"# (\w+\.toml)\n", block)
            assert file, f"{page.name}:{line}: a file without a name"
            Path(file[1]).write_text(block, encoding="utf-8")
        elif language in ("console", "bash"):
            for command in re.findall(r"^\$ jdpack (.*)$", block, re.M):
                status, stderr = run(shlex.split(command))
                assert status == 0, f"{page.name}: jdpack {command}\n{stderr}"


@pytest.mark.parametrize("run", [installed, here])
def test_a_block_that_fails_is_seen(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    with pytest.raises(ZeroDivisionError):
        run_page("```python\nx = 0\n```\n\n```python\n1 / x\n```\n", page, run)
    run_page("```console\n$ jdpack --version\n```", page, run)
    with pytest.raises(AssertionError, match="no-such-file"):
        run_page(
            "```console\n$ jdpack allocate no-such-file --id 1 --value 1 --demand 1\n```", page, run
        )
    with pytest.raises(AssertionError, match="pyhton"):
        run_page("```pyhton\n1\n```", page, run)
    with pytest.raises(AssertionError, match="without a name"):
        run_page("```toml\nx = 1\n```", page, run)


def test_commands_in_pages_start_with_jdpack_or_make():
    targets = set(re.findall(r"^(\w+):", text_of("Makefile"), re.M))
    for page in PAGES:
        for language, _, block in blocks(page.read_text(encoding="utf-8")):
            if language in ("console", "bash"):
                for line in filter(None, block.split("\n")):
                    make = re.match(r"(?:\$ )?make (\w+)", line)
                    assert line.startswith("$ jdpack ") or make, f"{page.name}: {line}"
                    assert make is None or make[1] in targets, f"{page.name}: no target {make[1]}"


# --- links and names ----------------------------------------------------------------------


def broken_links(text: str, page: Path) -> list[str]:
    """Relative links of a page to files or headings that do not exist."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path
        if path and not target.is_file():
            broken.append(link)
            continue
        if anchor and anchor not in anchors(target.read_text("utf-8") if path else text):
            broken.append(link)
    return broken


def anchors(text: str) -> set[str]:
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", ALL_PAGES, ids=named)
def test_links_resolve(page):
    assert broken_links(page.read_text(encoding="utf-8"), page) == []


def test_a_broken_link_is_seen():
    page = ROOT / "docs" / "known-limits.md"
    text = "[a](no-such-page.md) [b](privacy-promise.md#no-such-heading) [c](#here)\n# Here"
    assert broken_links(text, page) == ["no-such-page.md", "privacy-promise.md#no-such-heading"]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_that_a_page_names_exist(page):
    for name in re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists() or (ROOT / "src/jdpack" / name).exists(), name


def test_every_page_is_linked_from_the_index():
    index = text_of("docs/index.md")
    for page in PAGES[1:]:
        assert f"]({page.name})" in index or page.name == "index.md", page.name
    assert "](docs/index.md)" in text_of("README.md")


def test_the_readme_fits_on_a_screen_and_prints_what_it_says():
    """The lines of code print the text below them, with numbers that are close."""
    readme = text_of("README.md")
    assert len(readme.splitlines()) <= 70
    (code, said), *more = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", readme, re.S)
    assert not more
    out = io.StringIO()
    with redirect_stdout(out):
        exec(code, {})
    number = r"\d+(?:\.\d+)?"
    assert re.sub(number, "#", out.getvalue()) == re.sub(number, "#", said)
    for printed, shown in zip(
        *(re.findall(number, t) for t in (out.getvalue(), said)), strict=True
    ):
        # The noise in the certified welfare has a deviation of 2.5%, so this is six of them.
        assert float(printed) == pytest.approx(float(shown), rel=0.15)


def test_pictures_are_small():
    for picture in (ROOT / "docs").glob("*.png"):
        assert picture.stat().st_size < 150_000, picture.name


def test_every_module_is_in_the_layout():
    rooms = section(text_of("docs/architecture.md"), "## The rooms")
    named = re.findall(r"`(?:src/jdpack/)?([\w/.]+)`", rooms)
    there = [p.name + "/" * p.is_dir() for p in (ROOT / "src/jdpack").iterdir()]
    there = [name for name in there if name.endswith((".py", "/")) and not name.startswith("__")]
    assert set(there) <= set(named)


# --- the command line ---------------------------------------------------------------------


def documented_options(page: str, heading: str) -> set[str]:
    found = {c for c in code_cells(section(page, heading)) if c.startswith("-")}
    return found - {"--help"}


def test_every_command_and_option_is_documented_and_no_other():
    page = text_of("docs/command-line.md")
    group = typer.main.get_command(app_of(COMMANDS))
    commands = set(re.findall(r"^## jdpack (\w+)$", page, re.M))
    assert commands == set(group.commands)
    for name, command in group.commands.items():
        inner = getattr(command, "commands", {}).values()  # of `jdpack ledger`
        params = [p for c in (command, *inner) for p in c.params]
        options = {o for p in params if p.param_type_name == "option" for o in p.opts}
        assert documented_options(page, f"## jdpack {name}") == options - {"--help"}
    head = page[: page.index("\n## ")]
    options = {o for p in group.params for o in p.opts}
    assert {c for c in code_cells(head) if c.startswith("-")} == options | {"--help"}


def test_every_policy_and_key_is_documented_and_no_other():
    """The words, too: the kinds of noise and of potential."""
    text = section(text_of("docs/command-line.md"), "## Policies")
    pairs = [[re.findall(r"`([^`]+)`", cell) for cell in row] for row in rows(text)]
    keys = {name: list(spec.keys_of(kind)) for name, kind in registry.KINDS.items()}
    assert {name: given for (name, *_), given in pairs[: len(keys)]} == keys
    explained = {key: given for (key, *_), given in pairs[len(keys) :]}
    assert set(explained) == {key for given in keys.values() for key in given}
    assert tuple(explained["noise"]) == mwu_adaptive.NOISES
    assert tuple(explained["potential"]) == mirror_descent.POTENTIALS


# --- the market file ----------------------------------------------------------------------

SECTIONS = {
    "the market": "## Top level",
    "[privacy]": "## `[privacy]`",
    "[value]": "## `[value]`",
    "[agents]": "## `[agents]`",
    "[[resource]] 1": "## `[[resource]]`",
    "[[max_total]] 1": "## `[[max_total]]`",
    "[[group]] 1": "## `[[group]]`",
    "[[provenance]] 1": "## `[[provenance]]`",
}
MINIMAL = {
    "value": {"max": 1.0},
    "agents": {"count": 3},
    "resource": [{"name": "doses", "supply": 9.0, "max_demand": 1.0}],
}
FULL = {
    **MINIMAL,
    "max_total": [{"amount": 1.0}],
    "group": [{"name": "north", "cap": {"doses": 3.0}, "reserve": {"doses": 3.0}}],
    "provenance": [{"epsilon": 0.1, "delta": 1e-9, "run": "bounds 1"}],
}
"""With every table that a market file may have."""


def known_keys(monkeypatch) -> dict[str, set[str]]:
    """Every key that `Market.from_dict` looks for, by section."""
    asked: dict[str, set[str]] = {}
    take = checks.Section.take

    def recording(self, key, *more):
        asked.setdefault(self.where, set()).add(key)
        return take(self, key, *more)

    monkeypatch.setattr(checks.Section, "take", recording)
    Market.from_dict(FULL)
    return asked


def test_every_key_of_a_market_file_is_documented_and_no_other(monkeypatch):
    page = text_of("docs/market-file.md")
    asked = known_keys(monkeypatch)
    assert set(asked) == set(SECTIONS)
    for where, heading in SECTIONS.items():
        keys = [row[0].strip("`") for row in rows(section(page, heading))]
        assert sorted(keys) == sorted(asked[where]), where


def test_the_documented_defaults_are_the_defaults():
    page = text_of("docs/market-file.md")
    whole = Market.from_dict(MINIMAL).to_dict()
    filled = {
        "## Top level": whole,
        "## `[privacy]`": whole["privacy"],
        "## `[value]`": whole["value"],
        "## `[agents]`": whole["agents"],
        "## `[[resource]]`": whole["resource"][0],
    }
    given = {
        "## Top level": MINIMAL,
        "## `[privacy]`": {},
        "## `[value]`": MINIMAL["value"],
        "## `[agents]`": MINIMAL["agents"],
        "## `[[resource]]`": MINIMAL["resource"][0],
    }
    for heading, values in filled.items():
        for key, _, default, _ in rows(section(page, heading)):
            name = key.strip("`")
            assert (default == "required") == (name in given[heading]), key
            if default == "none":
                assert name not in values, key
            elif default.startswith("`"):
                assert values[name] == tomllib.loads(f"x = {default.strip('`')}")["x"], key
    assert whole["agents"]["bundle_size"] == len(whole["resource"])  # "all resources"
    assert whole["resource"][0]["column"] == "doses"  # "the name"


def test_required_keys_are_required():
    page = text_of("docs/market-file.md")
    paths = {"## Top level": [], "## `[value]`": ["value"], "## `[agents]`": ["agents"]}
    paths["## `[[resource]]`"] = ["resource", 0]
    for heading, path in paths.items():
        for key, _, default, _ in rows(section(page, heading)):
            data = copy.deepcopy(MINIMAL)
            inner = data
            for step in path:
                inner = inner[step]
            inner.pop(key.strip("`"), None)
            if default == "required":
                with pytest.raises(MarketError, match="lacks"):
                    Market.from_dict(data)
            else:
                Market.from_dict(data)


# --- the billboard ------------------------------------------------------------------------


FEW: dict[str, dict[str, Any]] = {
    "mwu-adaptive": {"alpha": 0.5},
    "mwu-fixed": {"alpha": 0.5},
    "dual-gd": {"alpha": 0.5},
    "mirror-descent": {"rounds": 3},
}
"""Parameters for few rounds."""


@pytest.fixture(scope="module")
def lines():
    """The lines of small runs, of each policy and with each kind of noise, repaired or not."""
    found = []
    for policy in [
        MwuAdaptive(0.5, noise="truncated-laplace"),
        *(kind(**FEW.get(name, {})) for name, kind in registry.KINDS.items()),
    ]:
        market = Market(
            supply=[90_000.0], max_demand=1.0, max_value=1.0, agents=50,
            divisible=policy.name != "newton",
            excess_probability=0.0 if policy.truncated else 0.01,
        )  # fmt: skip
        result = solve(
            market,
            values=np.ones(50),
            demands=np.ones((50, 1)),
            epsilon=2.0,
            delta=1e-6,
            policy=policy,
            seed=1,
            coin_hash="sha-256" if policy.truncated else "siphash-2-4",
        )
        found += [json.loads(line) for line in result.billboard.lines()]
    return found


def test_every_field_of_the_billboard_is_documented_and_no_other(lines):
    written: dict[str, set[str]] = {}
    for line in lines:
        written.setdefault(line["type"], set()).update(line)
        for part in ("policy", "budget", "noise"):
            if part in line:
                written.setdefault(part, set()).update(line[part])
    page = text_of("docs/billboard-format.md")
    documented = set(re.findall(r"^### `(\w+)`$", page, re.M))
    assert documented == set(written)
    for part, names in written.items():
        listed = [row[0].strip("`") for row in rows(section(page, f"### `{part}`"))]
        assert sorted(listed) == sorted(names), part


def test_fields_are_documented_in_the_order_in_which_they_are_written(lines):
    page = text_of("docs/billboard-format.md")
    for line in lines:
        listed = [row[0].strip("`") for row in rows(section(page, f"### `{line['type']}`"))]
        some = ("batch", "span", "ratio", "coin_hash")
        assert [name for name in listed if name in line or name not in some] == list(line)
    for name in some:
        kind = "header" if name in ("ratio", "coin_hash") else "release"
        assert any(name in line for line in lines if line["type"] == kind)
        assert any(name not in line for line in lines if line["type"] == kind)


# --- what the pages say of themselves -----------------------------------------------------


def test_tables_are_read_as_they_stand():
    text = "| key | type |\n|---|---|\n| `a`, `-b` | x |\n| `c` | y |\n\n| z |\n|---|\n| `d` |\n"
    assert rows(text) == [["`a`, `-b`", "x"], ["`c`", "y"], ["`d`"]]
    assert code_cells(text) == ["a", "-b", "c", "d"]


def test_the_changelog_has_the_version():
    version = tomllib.loads(text_of("pyproject.toml"))["project"]["version"]
    assert f"## [{version}]" in text_of("CHANGELOG.md")
