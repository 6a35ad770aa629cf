"""Write the locks: which versions of which packages, with the hashes of all their files.

`make lock` runs this in an environment of its own. pip resolves for the Python that runs it, so run
it on the oldest one that jdpack supports. The hashes are those of every file of a release, so a
lock serves other systems and newer Pythons too. They come from the index that pip is configured to
use, and no lock names that index.

With --keep (`make lock KEEP=yes`), whatever the lock of the tests already names keeps its version:
for a new package without an update of all others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

# pip has no public way to list all files of a release. `make lock` is the only user of this one.
from pip._internal.commands import create_command
from pip._internal.index.collector import parse_links
from pip._internal.models.link import Link
from pip._vendor.packaging.utils import (
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

ROOT = Path(__file__).resolve().parents[1]
BUILD = ["hatchling"]
"""What installs jdpack itself into an environment that has a lock."""

LOCKS = {
    "test": [".[test]", *BUILD],  # first: the others take the same versions
    "docs": [".[docs]", *BUILD],
    "demo": [".", *BUILD],
}


def resolve(wanted: list[str], pins: dict[str, str]) -> dict[str, str]:
    """The versions that pip would install, none of them other than in `pins`."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.writelines(f"{name}=={version}\n" for name, version in pins.items())
        constraints.flush()
        options = ["--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
        if pins:
            options += ["--constraint", constraints.name]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, *wanted],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
        )
    found = [item["metadata"] for item in json.loads(done.stdout)["install"]]
    versions = {canonicalize_name(item["name"]): item["version"] for item in found}
    del versions["jdpack"]
    return dict(sorted(versions.items()))


def hashes(versions: dict[str, str]) -> dict[str, list[str]]:
    """The hashes of all files of these releases."""
    command = create_command("download")
    options, _ = command.parse_args([])
    found: dict[str, set[str]] = {name: set() for name in versions}
    with command.main_context():
        session = command._build_session(options)
        finder = command._build_package_finder(options, session)
        for name, version in versions.items():
            for place in finder.search_scope.get_index_urls_locations(name):
                page = finder._link_collector.fetch_response(Link(place))
                for link in parse_links(page) if page else []:
                    if link.hash_name == "sha256" and version_of(link.filename) == version:
                        found[name].add(link.hash)
            if not found[name]:
                raise SystemExit(f"the index has no sha256 for {name} {version}")
    return {name: sorted(found[name]) for name in versions}


def version_of(file: str) -> str | None:
    """The version in the name of a wheel or sdist; None for other files and very old names."""
    try:
        parse = parse_wheel_filename if file.endswith(".whl") else parse_sdist_filename
        return str(parse(file)[1])
    except ValueError:
        return None


def kept() -> dict[str, str]:
    """The versions in the lock of the tests as it is."""
    lines = (ROOT / "requirements/test.lock").read_text(encoding="utf-8").splitlines()
    pins = [line.removesuffix(" \\").split("==") for line in lines if "==" in line]
    return dict(pins)


def main() -> None:
    """Write all locks."""
    versions: dict[str, dict[str, str]] = {}
    pins = kept() if "--keep" in sys.argv[1:] else {}
    for lock, wanted in LOCKS.items():
        versions[lock] = resolve(wanted, versions.get("test", pins))
    known = hashes(versions["test"])
    for lock, pins in versions.items():
        lines = []
        for name, version in pins.items():
            lines.append(f"{name}=={version}")
            lines += [f"    --hash=sha256:{digest}" for digest in known[name]]
        text = "\n".join(lines).replace("\n    --hash", " \\\n    --hash") + "\n"
        (ROOT / "requirements" / f"{lock}.lock").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
