"""Chromium for the tests of pages, which fail without it.

`make test` installs it where it can (`chromium.py`).
"""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from browser.chromium import CHROMIUM
from jdpack import Billboard
from jdpack.pages.billboard_page import public_page

SIZES = {"desktop": (1280, 800), "phone": (390, 844)}

_FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM.for_test(), args=_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def tabs() -> dict[str, list[Page]]:
    """The tabs that no test is using, by their settings.

    A new tab takes Chromium four times the work of showing a page.
    """
    return {}


@pytest.fixture
def opened(
    browser: Browser, tabs: dict[str, list[Page]], tmp_path: Path
) -> Iterator[Callable[..., Page]]:
    """Opens the page of a billboard from a file, as `opened(board, size="phone", ...)`.

    At its end, the test fails if the page printed anything on the console, including a violation of
    its security policy or an exception.
    """
    used, said = [], []

    def hear(message: object) -> None:
        said.append(getattr(message, "text", str(message)))

    def open(
        board: Billboard,
        size: str = "desktop",
        url: str | None = None,
        color_scheme: str = "light",
        **more: object,
    ) -> Page:
        width, height = SIZES[size]
        viewport = {"width": width, "height": height}
        free = tabs.setdefault(f"{size} {more}", [])
        if free:
            page = free.pop()
            page.set_viewport_size(viewport)
        else:
            touch = size == "phone"
            page = browser.new_page(viewport=viewport, is_mobile=touch, has_touch=touch, **more)
        page.emulate_media(media="null", forced_colors="null", color_scheme=color_scheme)
        used.append((page, free))
        page.on("console", hear)
        page.on("pageerror", hear)
        if url is None:
            file = tmp_path / f"page-{len(used)}.html"
            file.write_text(public_page(board), encoding="utf-8")
            url = file.as_uri()
        page.goto(url)
        return page

    yield open
    for page, free in used:
        page.evaluate("0")  # whatever it has printed has arrived
        page.remove_listener("console", hear)
        page.remove_listener("pageerror", hear)
        free.append(page)
    assert said == []


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """A folder, the address at which a web server shows it, and the paths requested."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(self.path)

    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/", asked
        server.shutdown()
        thread.join()
