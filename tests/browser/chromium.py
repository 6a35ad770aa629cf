"""Finds Chromium for the tests of pages, or installs it (`programs`).

It takes the browser that JDPACK_CHROMIUM names, one on the PATH, or one that Playwright has
downloaded. Where apt-get brings none, Playwright does, into the user's cache.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from programs import Program, Way, answers

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]

PLAYWRIGHT = [sys.executable, "-m", "playwright"]

_DOWNLOADED = ["chrome-linux*/chrome", "chrome-mac*/*.app/Contents/MacOS/*"]


def _candidates() -> Iterator[str]:
    yield from filter(None, map(shutil.which, NAMES))
    place = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    caches = [Path(place)] if place else [Path.home() / ".cache", Path.home() / "Library/Caches"]
    for cache in caches:
        folder = cache if place else cache / "ms-playwright"
        for pattern in _DOWNLOADED:
            yield from map(str, sorted(folder.glob(f"chromium-*/{pattern}"), reverse=True))


def _playwright(root: list[str] | None) -> Iterator[Way]:
    more = [[*root, *PLAYWRIGHT, "install-deps", "chromium"]] if root is not None else []
    yield "Playwright", [*more, [*PLAYWRIGHT, "install", "chromium"]]


CHROMIUM = Program(
    name="Chromium",
    tests="the tests of pages",
    variable="JDPACK_CHROMIUM",
    package="chromium",
    hint="install Chromium (Debian: apt install chromium), or set JDPACK_CHROMIUM to the path of a "
    "Chromium or Chrome; `make test BROWSER=no` leaves the tests of pages out",
    candidates=_candidates,
    works=lambda path: answers(path, "--version"),
    other_ways=_playwright,
)

if __name__ == "__main__":
    sys.exit(CHROMIUM.main())
