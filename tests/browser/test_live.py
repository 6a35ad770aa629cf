"""The live page in Chromium: it grows, disturbs no reader, and ends as the final page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from browser import boards
from browser.conftest import SIZES
from browser.test_access import violations
from browser.test_flows import fill, submit
from jdpack.run.run_file import locked
from unit.serve.test_server import Running, text_of

BOARD = boards.charging
STATUS = "#live"
FOLLOWS = "This page updates by itself."


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    out: Path = tmp_path_factory.mktemp("live") / "out"
    (out / "public").mkdir(parents=True)
    (out / "private").mkdir()
    (out / "public" / "billboard.jsonl").write_text("")
    with Running(out) as running:
        yield running


@pytest.fixture
def watched(browser, server):
    """A page of the server, its console output, and its requests."""
    context = browser.new_context(
        viewport=dict(zip(("width", "height"), SIZES["phone"], strict=True))
    )
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    context.on("request", lambda request: asked.append(request.url))
    yield page, said, asked
    context.close()


def answers(page) -> str:
    return page.inner_text(".lede")


def shows(page, where: str, text: str) -> None:
    """Wait for a text; `wait_for_function` would need `eval`, which the page forbids."""
    page.locator(where, has_text=text).wait_for(timeout=60_000)


def test_from_nothing_to_the_finished_run(server, watched):
    page, said, asked = watched
    server.show("")
    page.goto(server.address)
    assert page.inner_text("h1") == "Nothing is posted yet"
    shows(page, ".lede", "Nobody is working on it now")
    shows(page, STATUS, "If the run is resumed, this page updates by itself.")
    assert violations(page) == []
    page.evaluate("window.stays = true")
    with locked(server.out / "private"):
        shows(page, ".lede", "records are being read")
        shows(page, STATUS, FOLLOWS)
        assert page.inner_text(".pill") == "Running" and page.evaluate("window.stays") is True
        server.show(text_of(BOARD(), 1))
        shows(page, "h1", "Night charging")
        assert page.locator("#course").count() == 0
        shows(page, STATUS, FOLLOWS)
        page.evaluate("window.stays = true")
        server.show(text_of(BOARD(), 8))
        shows(page, ".lede", "7 answers")
        assert page.locator("#course figure").count() == 4
        order = "[...document.querySelectorAll('main > section')].map(s => s.id).filter(Boolean)"
        assert page.evaluate(order) == ["mine", "promises", "goods", "course", "safe", "check"]
        # The reader is in the middle of the page: nothing there moves when more comes in.
        page.locator("#course figure summary").nth(1).click()
        page.locator("#course figure summary").nth(1).focus()
        page.evaluate(
            """() => {
              window.told = 0;
              const watch = new MutationObserver(() => { window.told += 1; });
              watch.observe(document.getElementById("live"), { childList: true, subtree: true });
            }"""
        )
        for lines in [9, 20, 40]:
            server.show(text_of(BOARD(), lines))
            shows(page, ".lede", f"{lines - 1} answers")
        assert page.evaluate("document.activeElement.textContent").startswith("Numbers")
        assert page.locator("#course details").nth(1).evaluate("d => d.open") is True
        assert page.locator("#course details").nth(0).evaluate("d => d.open") is False
        assert page.evaluate("window.told") == 0, "no round is announced"
        assert page.inner_text(STATUS) == FOLLOWS
        assert page.evaluate("window.stays") is True, "and nothing was loaded again"
        head = list(BOARD().lines())[39][-66:-2]
        assert page.inner_text("#check .hash") == head
        assert page.inner_text(".pill") == "Running"
        assert violations(page) == []
    shows(page, ".pill", "Interrupted")
    assert "resumed" in page.inner_text(STATUS) and page.evaluate("window.told") == 1
    assert page.evaluate("window.stays") is True
    server.show(text_of(BOARD()))
    page.wait_for_selector("#form")
    assert page.evaluate("window.stays") is None, "a page of its own, under its own policy"
    fill(page, "H1", [(9.5, {"18-21 h": 11})])
    assert submit(page).startswith("You get")
    before = len(asked)
    page.evaluate("async () => { await fetch('/').catch(() => {}); }")
    page.wait_for_timeout(300)
    assert len(asked) == before, "the finished page connects to nothing"
    assert {url.removeprefix(server.address) for url in asked} == {"", "live"}
    refused = [text for text in said if "Content Security Policy" in text or "Fetch API" in text]
    assert refused and refused == said


def test_the_live_page_connects_to_nothing_but_its_server(server, watched, site):
    page, said, _ = watched
    _, elsewhere, reached = site
    server.show(text_of(BOARD(), 5))
    page.goto(server.address)
    page.wait_for_selector(STATUS)
    page.evaluate(
        "async (url) => { await fetch(url, {mode: 'no-cors'}).catch(() => {}); }", elsewhere
    )
    assert page.evaluate("async () => (await fetch('/live', {method: 'HEAD'})).status") == 200
    assert reached == [] and any("Content Security Policy" in text for text in said)


def test_a_tab_that_sleeps_and_a_folder_that_is_made_again(server, watched):
    """A frozen tab gets no news, and catches up when it wakes, even if its run is gone."""
    page, said, _ = watched
    server.show(text_of(BOARD(), 5))
    page.goto(server.address)
    shows(page, STATUS, "updates by itself")
    page.evaluate("window.stays = true")
    session = page.context.new_cdp_session(page)
    session.send("Page.setWebLifecycleState", {"state": "frozen"})
    for lines in [6, 9, 14]:
        server.show(text_of(BOARD(), lines))
    session.send("Page.setWebLifecycleState", {"state": "active"})
    shows(page, ".lede", "13 answers")
    page.context.set_offline(True)
    server.show(text_of(BOARD(), 16))
    page.context.set_offline(False)
    shows(page, ".lede", "15 answers")
    shutil.rmtree(server.out)
    shows(page, STATUS, "could not update; it will try again")
    assert "15 answers" in answers(page)
    (server.out / "public").mkdir(parents=True)
    (server.out / "private").mkdir()
    server.show("")
    shows(page, "h1", "Nothing is posted yet")
    assert page.locator("main > section").count() == 0
    assert page.evaluate("window.stays") is True
    server.show(text_of(boards.clinic(), 4))
    shows(page, "h1", boards.clinic().header.market.name)
    shows(page, ".lede", "3 answers")
    assert all("503" in text or "ERR_" in text for text in said), said


def test_without_scripts_it_reads_as_well(browser, server):
    server.show(text_of(BOARD(), 5))
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(server.address)
    assert page.inner_text(STATUS) == "Reload this page to see the latest."
    assert "4 answers are in" in answers(page)
    server.show(text_of(BOARD()))
    page.reload()
    assert page.inner_text(".pill") == "Finished"
    context.close()


def test_a_server_that_ends_and_comes_back(browser, tmp_path):
    """The page says so politely, once, and continues when the server is back."""
    out = tmp_path / "out"
    (out / "public").mkdir(parents=True)
    (out / "public" / "billboard.jsonl").write_text(text_of(BOARD(), 5))
    page = browser.new_page()
    with Running(out) as first:
        page.goto(first.address)
        shows(page, STATUS, FOLLOWS)
        assert first.end() == (0, "")
    shows(page, STATUS, "is lost")
    assert "4 answers are in" in answers(page)
    assert page.get_by_role("status").count() == 1
    (out / "public" / "billboard.jsonl").write_text(text_of(BOARD(), 7))
    with Running(out, port=first.port):
        shows(page, ".lede", "6 answers")
        assert page.inner_text(STATUS) == FOLLOWS
    page.close()
