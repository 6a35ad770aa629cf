"""Where the tests' browser comes from, on machines of all kinds. All commands are fakes:
nothing is installed.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from browser import chromium
from browser.chromium import CHROMIUM

ROOT = Path(__file__).parents[2]
STARTS, FAILS = "exit 0", "exit 3"


class Machine:
    """A PATH, a home, and a record of the commands run."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.home, self.log = folder / "bin", folder / "home", folder / "log"
        for made in (self.bin, self.home):
            made.mkdir()
        self.log.touch()
        self.cached = self.home / ".cache/ms-playwright/chromium-1254/chrome-linux64/chrome"
        for needed in ["env", "mkdir", "chmod", "cp"]:
            (self.bin / needed).symlink_to(shutil.which(needed))

    def has(self, name: str, script: str, path: Path | None = None) -> str:
        """A command that records how it was called."""
        path = path or self.bin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.log}\n{script}\n')
        path.chmod(0o755)
        return str(path)

    def makes(self, path: Path, script: str = STARTS) -> str:
        """A script that makes a command."""
        shell = f"mkdir -p {path.parent}; echo '#!/bin/sh' > {path}; echo '{script}' >> {path}"
        return f"{shell}; chmod +x {path}"

    @property
    def ran(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if "--version" not in line]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.setenv("HOME", str(made.home))
    for name in ["JDPACK_CHROMIUM", "PLAYWRIGHT_BROWSERS_PATH"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(chromium, "PLAYWRIGHT", [made.has("playwright", FAILS)])
    be(monkeypatch, root=False)
    return made


def be(monkeypatch, root: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)


# --- what is there ------------------------------------------------------------------------


def test_the_named_browser_comes_first(machine, monkeypatch, capsys):
    machine.has("chromium", STARTS)
    own = machine.has("own", STARTS, machine.home / "own")
    monkeypatch.setenv("JDPACK_CHROMIUM", own)
    assert CHROMIUM.find() == own
    for wrong in [str(machine.home / "nothing"), machine.has("broken", FAILS), str(machine.home)]:
        monkeypatch.setenv("JDPACK_CHROMIUM", wrong)
        assert CHROMIUM.main() == 1
        err = capsys.readouterr().err
        assert err.startswith(
            f"error: the tests of pages need Chromium: JDPACK_CHROMIUM is {wrong!r}"
        )
    assert machine.ran == [], "and nothing is installed in its place"


@pytest.mark.parametrize("name", chromium.NAMES)
def test_one_on_the_path(machine, name, capsys):
    path = machine.has(name, STARTS)
    assert CHROMIUM.find() == path
    assert CHROMIUM.main() == 0 and machine.ran == []
    assert capsys.readouterr() == ("", ""), "and not a word"


def test_one_that_playwright_has_downloaded(machine, monkeypatch):
    machine.has("chrome", STARTS, machine.cached)
    assert CHROMIUM.find() == str(machine.cached)
    elsewhere = machine.home / "place/chromium-1300/chrome-linux/chrome"
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(machine.home / "place"))
    assert CHROMIUM.find() is None
    machine.has("chrome", STARTS, elsewhere)
    assert CHROMIUM.find() == str(elsewhere)


def test_a_browser_that_does_not_start_is_skipped(machine):
    """Like Ubuntu's package, which is a script that asks for snap."""
    machine.has("chromium-browser", FAILS)
    assert CHROMIUM.find() is None
    machine.has("chrome", STARTS, machine.cached)
    assert CHROMIUM.find() == str(machine.cached)


# --- what is installed --------------------------------------------------------------------


APT = ["apt-get --quiet update", f"apt-get --quiet {' '.join(CHROMIUM.apt)}"]


def test_root_installs_it_with_apt(machine, monkeypatch, capsys):
    be(monkeypatch, root=True)
    machine.has("apt-get", f'[ "$2" = update ] || {{ {machine.makes(machine.bin / "chromium")}; }}')
    assert CHROMIUM.main() == 0
    assert machine.ran == APT
    assert f"installed {machine.bin / 'chromium'}\n" in capsys.readouterr().out
    assert CHROMIUM.main() == 0 and machine.ran == APT, "once"


def test_a_user_who_may_become_root_does(machine):
    machine.has("apt-get", machine.makes(machine.bin / "chromium"))
    machine.has("sudo", 'shift; [ "$1" = true ] || "$@"')
    assert CHROMIUM.main() == 0
    assert [line for line in machine.ran if not line.startswith("sudo")] == APT
    assert all(line.startswith("sudo -n ") for line in machine.ran if line not in APT)


@pytest.mark.parametrize("sudo", [None, FAILS], ids=["none", "asks for a password"])
def test_a_user_who_may_not_gets_it_from_playwright(machine, sudo):
    machine.has("apt-get", machine.makes(machine.bin / "chromium"))
    if sudo is not None:
        machine.has("sudo", sudo)
    machine.has("playwright", machine.makes(machine.cached))
    assert CHROMIUM.main() == 0
    assert [line for line in machine.ran if not line.startswith("sudo")] == [
        "playwright install chromium"
    ]
    assert CHROMIUM.find() == str(machine.cached)


def test_where_apt_has_none_playwright_brings_it_with_its_libraries(machine, monkeypatch):
    be(monkeypatch, root=True)
    machine.has("apt-get", "exit 100")
    needs = machine.home / "libraries"
    brings = machine.makes(machine.cached, f"[ -e {needs} ]")
    machine.has("playwright", f'if [ "$1" = install-deps ]; then mkdir {needs}; else {brings}; fi')
    assert CHROMIUM.main() == 0
    assert machine.ran == [*APT, "playwright install-deps chromium", "playwright install chromium"]


def test_a_package_list_that_cannot_be_updated_may_still_do(machine, monkeypatch):
    be(monkeypatch, root=True)
    brings = machine.makes(machine.bin / "chromium")
    machine.has("apt-get", f'[ "$2" = install ] && {{ {brings}; }}')
    assert CHROMIUM.main() == 0 and machine.ran == APT


def test_where_nothing_helps_it_says_what_to_do(machine, monkeypatch, capfd):
    assert CHROMIUM.main() == 1
    out, err = capfd.readouterr()
    assert out == "installing Chromium for the tests of pages, with Playwright\n"
    assert err == (
        f"error: the tests of pages need Chromium: Playwright: exit code 3\nhint: {CHROMIUM.hint}\n"
    )
    assert "make test BROWSER=no" in err and "JDPACK_CHROMIUM" in err
    be(monkeypatch, root=True)
    machine.has("apt-get", "exit 100")
    machine.has("playwright", machine.makes(machine.cached, FAILS))
    assert CHROMIUM.main() == 1
    err = capfd.readouterr().err
    assert "apt-get: exit code 100; Playwright: what it installed does not start\n" in err
    monkeypatch.setattr(chromium, "PLAYWRIGHT", [str(machine.home / "nothing")])
    machine.cached.unlink()
    assert CHROMIUM.main() == 1
    assert "Playwright: No such file or directory\n" in capfd.readouterr().err


# --- make ---------------------------------------------------------------------------------


def commands_of(*given: str) -> list[str]:
    """What make would run, assuming that the environment exists."""
    command = ["make", "--dry-run", "--no-print-directory", "-o", ".venv/ready", *given]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()  # fmt: skip


def test_make_test_asks_for_the_browser_first_unless_told_not_to():
    """Next to the other checks, none of which depends on it."""
    asks = "python3 tests/browser/chromium.py"
    *first, tests = (line.strip() for line in commands_of("test"))
    assert tests.startswith(".venv/bin/pytest ") and "--ignore" not in tests
    assert asks in first and ".venv/bin/mypy" in first
    *without, fewer, said = commands_of("test", "BROWSER=no")
    assert asks not in without
    assert fewer == f"{tests} --ignore tests/browser"
    assert said == 'echo "skipped: the tests of pages in tests/browser"'
    others = [
        [line for line in lines if line != asks and "--output-sync" not in line]
        for lines in (first, without)
    ]
    assert others[0] == others[1]


def test_it_is_quick_if_a_browser_exists(machine):
    machine.has("chromium", STARTS)
    start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    script = ROOT / "tests" / "browser" / "chromium.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - start < 5.0
