"""The picture in the README: the billboard page of the demo, on a phone, from a letter's link.

Run it with `python experiments/screenshot.py`, in the environment of the tests: it needs Chromium
and Playwright. It writes docs/page.png.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import jdpack
from jdpack.run import demo

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "page.png"
SIZE = {"width": 400, "height": 620}
MOST = 150_000  # bytes


def main() -> None:
    """Run the demo, open the page from one letter's link, and take the picture."""
    sys.path.insert(0, str(ROOT / "tests" / "browser"))
    import chromium

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        town = Path(folder) / "town"
        demo.run(town)
        page = (town / "out" / "public" / "index.html").as_uri()
        written = jdpack.letters(town / "out", url=page, outcome=True)
        with Path(written).open(encoding="utf-8", newline="") as file:
            link = next(row["link"] for i, row in enumerate(csv.DictReader(file)) if i == 17)
        browser = play.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        view = browser.new_page(viewport=SIZE, device_scale_factor=1.5)
        view.goto(link)
        view.wait_for_load_state("load")
        view.wait_for_timeout(500)
        view.screenshot(path=PICTURE)
        browser.close()
    size = PICTURE.stat().st_size
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)}: {size:,} bytes\n")
    if size >= MOST:
        sys.exit(f"it has more than {MOST:,} bytes")


if __name__ == "__main__":
    main()
