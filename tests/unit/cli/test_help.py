"""Help, completion, and what comes next."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jdpack.cli import COMMANDS, PANELS, app_of

JDPACK = Path(sys.executable).with_name("jdpack")
CLI = Path(__file__).parents[3] / "src" / "jdpack" / "cli"


def test_the_help_is_in_groups_and_has_every_command(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        app_of(COMMANDS)(["--help"])
    text = capsys.readouterr().out
    found = [text.index(f" {panel} ") for panel in PANELS]
    assert found == sorted(found)
    for panel, names in PANELS.items():
        part = text[text.index(f" {panel} ") :]
        part = part[: part.index("╰")]
        assert re.findall(r"^│ (\w+) ", part, re.M) == list(names)
    files = {path.stem for path in CLI.glob("*.py")} - {"__init__", "__main__", "options"}
    assert set(COMMANDS) == files - {"progress"}


@pytest.mark.parametrize(
    ("words", "found"), [("jdpack so", ["solve"]), ("jdpack bounds --ep", ["--epsilon"])]
)
def test_the_shell_completes_commands_and_options(words, found):
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    env = {**os.environ, **asked, "_JDPACK_COMPLETE": "complete_bash"}
    done = subprocess.run([JDPACK], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == found


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "serve"])
def test_every_command_says_what_comes_next(name):
    """In its own module, or by `print_result`, which does. `serve` ends with Ctrl-C."""
    text = (CLI / f"{name}.py").read_text(encoding="utf-8")
    assert re.search(r"\bnext_step\(|\bprint_result\(|\"next: |f\"next: ", text)
