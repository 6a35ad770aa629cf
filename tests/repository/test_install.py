"""What people install: the same bytes from the same sources, and nothing missing that it needs."""

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

import jdpack

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
LOCKS = {path.stem: path for path in (ROOT / "requirements").glob("*.lock")}
SOURCES = ["src", "tests", "pyproject.toml", "README.md", "LICENSE", ".gitignore"]
"""Enough to build from; the tests stand for all that is in an sdist and not in a wheel."""

OPTIONAL = {"highspy", "ray", "sqlglot", "uvicorn"}
"""What some modules import at their top, and only an extra brings."""


def run(*command: object, **options: object) -> str:
    """What a command prints, outside of this environment."""
    ours = ("PYTHON", "NUMBA", "COVERAGE", "VIRTUAL_ENV", "SOURCE_DATE_EPOCH")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [str(part) for part in command],
        env=clean,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        **options,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def copy_of_sources(folder: Path, when: float) -> Path:
    """The sources in another place, at another time, beside files that are not part of them."""
    folder.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, folder / name)
    cache = folder / "src" / "jdpack" / "__pycache__"
    cache.mkdir()
    (cache / f"kernel-{when}.nbi").write_text(str(when))
    (folder / "notes.txt").write_text(str(when))
    for path in folder.rglob("*"):
        os.utime(path, (when, when))
    return folder


def build(folder: Path) -> dict[str, bytes]:
    """The wheel and the sdist by their names."""
    run(sys.executable, "-m", "hatchling", "build", cwd=folder)
    return {path.name: path.read_bytes() for path in (folder / "dist").iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of the sources with its wheel and sdist in dist/."""
    folder = copy_of_sources(tmp_path_factory.mktemp("one") / "jdpack", when=1e9)
    build(folder)
    return folder


def wheel_and_sdist(folder: Path) -> tuple[Path, Path]:
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


def test_the_same_sources_give_the_same_bytes(built, tmp_path):
    wheel, sdist = wheel_and_sdist(built)
    first = {path.name: path.read_bytes() for path in (wheel, sdist)}
    other = copy_of_sources(tmp_path / "elsewhere" / "a copy", when=time.time())
    module = other / "src" / "jdpack" / "errors.py"
    module.chmod(0o600)
    assert build(other) == first
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (again,) = (tmp_path / "unpacked").iterdir()
    assert build(again)[wheel.name] == first[wheel.name], "built from the sdist"
    module.write_text(module.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    changed = build(other)
    assert all(changed[name] != first[name] for name in first), "the control"


def test_the_wheel_has_the_package_and_nothing_else(built):
    wheel, _ = wheel_and_sdist(built)
    there = {path.relative_to(ROOT / "src").as_posix() for path in files_of(ROOT / "src")}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == there
    assert "jdpack/py.typed" in names


def files_of(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]


def test_a_fresh_environment_runs_the_demo(built, tmp_path):
    """It has what the demo's lock names and nothing else.

    So a dependency that is missing from the lock or from pyproject.toml shows: pip may not look for
    others. The packages are links to ours: set-up has installed the same files, because the lock of
    the tests has every line of the demo's.
    """
    wheel, _ = wheel_and_sdist(built)
    fresh = tmp_path / "fresh"
    run(sys.executable, "-m", "venv", "--without-pip", fresh)
    python, command = fresh / "bin" / "python", fresh / "bin" / "jdpack"
    link_packages(pins(LOCKS["demo"]), fresh)
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-compile"]

    # `pip install .`
    run(*install, "--no-index", "--no-build-isolation", built)
    installed = installed_files(python)
    assert run(command, "--version", cwd=tmp_path).split()[-1] == version()

    # The wheel, which installs the same.
    run(*install, "--no-index", "--force-reinstall", "--no-deps", wheel)
    assert installed_files(python) == installed
    run(sys.executable, "-m", "pip", "--python", python, "check")
    run(command, "demo", "-o", "demo", "--quiet", cwd=tmp_path)
    assert (tmp_path / "demo" / "out" / "public" / "index.html").stat().st_size > 10_000
    assert "right" in run(command, "verify", "demo/out", cwd=tmp_path)

    # Every module can be imported, or lacks what an extra brings.
    lacking = set(run(python, "-c", IMPORT_ALL, cwd=tmp_path).split())
    assert lacking == OPTIONAL


def link_packages(names: Iterable[str], environment: Path) -> None:
    """Links in an environment to some packages of ours, and to nothing else."""
    (there,) = environment.glob("lib/*/site-packages")
    for name in names:
        package = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            (there / top).symlink_to(package.locate_file(top))


def installed_files(python: Path) -> dict[str, str]:
    """The files of jdpack in an environment, with their hashes."""
    (package,) = python.parents[1].glob("lib/*/site-packages/jdpack")
    return {
        path.relative_to(package).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files_of(package)
    }


IMPORT_ALL = """
import importlib, pkgutil, jdpack
for module in pkgutil.walk_packages(jdpack.__path__, "jdpack."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except Exception as error:  # that of a missing module, or with it as its context
            missing = error if isinstance(error, ModuleNotFoundError) else error.__context__
            print(missing.name)
"""


def test_the_version_is_the_same_everywhere():
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.M)
    assert cited
    assert cited[1] == jdpack.__version__ == version()


def version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


# --- locks --------------------------------------------------------------------------------


def pins(lock: Path) -> dict[str, str]:
    """The versions in a lock; every line is a version or a hash of the one above."""
    found: dict[str, str] = {}
    hashes = 0
    for line in lock.read_text(encoding="utf-8").splitlines():
        pin = re.fullmatch(r"([a-z0-9-]+)==([\w.+!]+) \\", line)
        if pin:
            assert hashes or not found, f"{lock.name}: no hash before {line}"
            found[pin[1]], hashes = pin[2], 0
        else:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line), line
            hashes += 1
    return found


def test_locks_agree_and_the_demo_needs_the_least():
    """In versions and hashes."""
    locks = {name: set(entries(lock)) for name, lock in LOCKS.items()}
    assert set(locks) == {"demo", "docs", "test"}
    assert locks["demo"] < locks["docs"] < locks["test"]
    assert len(locks["demo"]) == len(pins(LOCKS["demo"])) < 35


def entries(lock: Path) -> list[str]:
    """Each version in a lock with its hashes."""
    return re.split(r"\n(?! )", lock.read_text(encoding="utf-8").rstrip("\n"))


def test_a_lock_of_other_lines_is_seen(tmp_path):
    lock = tmp_path / "x.lock"
    for text in ["--index-url https://index.example", "rich>=13", "rich==13 \\\nnumpy==2 \\"]:
        lock.write_text(text + "\n")
        with pytest.raises(AssertionError):
            pins(lock)


def test_the_tests_run_with_the_versions_of_their_lock():
    """Except on another system, for which the lock has packages that are not installed."""
    for name, locked in pins(LOCKS["test"]).items():
        try:
            assert importlib.metadata.version(name) == locked, name
        except importlib.metadata.PackageNotFoundError:
            assert sys.platform != "linux", name
