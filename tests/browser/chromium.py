"""Finds Chromium for the tests of pages, or installs it.

`make test` runs this file first. It takes the browser that JDPACK_CHROMIUM names, one on the PATH,
or one that Playwright has downloaded. If there is none, it installs one: with apt-get, if it is
root or may become root without a password; otherwise with Playwright, into the user's cache. It
skips browsers that do not start. If nothing helps, it says so, and what to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]

PLAYWRIGHT = [sys.executable, "-m", "playwright"]

_DOWNLOADED = ["chrome-linux*/chrome", "chrome-mac*/*.app/Contents/MacOS/*"]
_INSTALL = ["install", "--yes", "--no-install-recommends", "chromium"]

HINT = (
    "install Chromium (Debian: apt install chromium), or set JDPACK_CHROMIUM to the path of a "
    "Chromium or Chrome; `make test BROWSER=no` leaves the tests of pages out"
)


class MissingError(Exception):
    """There is no browser; the message says why."""


def find() -> str | None:
    """The path of a working browser; MissingError if JDPACK_CHROMIUM names one that is not."""
    if named := os.environ.get("JDPACK_CHROMIUM"):
        if not _starts(named):
            raise MissingError(f"JDPACK_CHROMIUM is {named!r}, which does not start")
        return named
    return next(filter(_starts, _candidates()), None)


def install() -> str:
    """Install a browser and return its path; MissingError if that is impossible here."""
    tried = []
    for what, commands in _ways():
        sys.stdout.write(f"installing Chromium for the tests of pages, with {what}\n")
        sys.stdout.flush()
        failed = [why for command in commands if (why := _failure(command)) is not None]
        if found := find():  # whatever the commands printed
            return found
        tried.append(f"{what}: {failed[-1] if failed else 'what it installed does not start'}")
    raise MissingError("; ".join(tried))


def _candidates() -> Iterator[str]:
    yield from filter(None, map(shutil.which, NAMES))
    place = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    caches = [Path(place)] if place else [Path.home() / ".cache", Path.home() / "Library/Caches"]
    for cache in caches:
        folder = cache if place else cache / "ms-playwright"
        for pattern in _DOWNLOADED:
            yield from map(str, sorted(folder.glob(f"chromium-*/{pattern}"), reverse=True))


def _starts(path: str) -> bool:
    """Whether it starts: a package may be a stub, or lack libraries."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _ways() -> Iterator[tuple[str, list[list[str]]]]:
    """Commands that may install it, best first."""
    root = _root()
    if root is not None and shutil.which("apt-get"):
        apt = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"]
        yield "apt-get", [[*apt, "update"], [*apt, *_INSTALL]]
    more = [[*root, *PLAYWRIGHT, "install-deps", "chromium"]] if root is not None else []
    yield "Playwright", [*more, [*PLAYWRIGHT, "install", "chromium"]]


def _root() -> list[str] | None:
    """The prefix that runs a command as root; None if we may not."""
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    return sudo if shutil.which("sudo") and _failure([*sudo, "true"], quiet=True) is None else None


def _failure(command: Sequence[str], quiet: bool = False) -> str | None:
    """Why a command failed, if it did."""
    out = subprocess.DEVNULL if quiet else None
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    except OSError as error:
        return str(error.strerror)
    return f"exit code {done.returncode}" if done.returncode else None


def main() -> int:
    """Make sure that a browser is installed."""
    try:
        if find() is None:
            sys.stdout.write(f"installed {install()}\n")
    except MissingError as error:
        sys.stderr.write(f"error: the tests of pages need Chromium: {error}\nhint: {HINT}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
