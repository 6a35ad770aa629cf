"""A long run of many goods still fits on a page, and the page is fast."""

from __future__ import annotations

import time

from browser import boards
from browser.test_flows import check, fill, submit
from jdpack.pages.billboard_page import NUMBERS_MAX, data, public_page


def test_300_rounds_of_50_goods(opened):
    """Under 1 MB and interactive in 0.3 seconds; the limit is a minute, for busy machines."""
    board = boards.large()
    assert len(list(board.rounds)) == 300 and len(board.header.market.resources) == 50
    html = public_page(board)
    assert len(html.encode()) < 1_000_000
    begun = time.perf_counter()
    page = opened(board)
    page.wait_for_selector("#form[data-ready=yes]")
    assert time.perf_counter() - begun < 60
    options = [(50, {"good number 7": 3, "good number 42": 1.5, "good number 0": 1})]
    fill(page, "17", options)
    submit(page)
    check(page, board, "17", options)
    assert page.locator("figure:visible").count() == 8
    page.get_by_text("The other 42 goods").click()
    assert page.locator("figure:visible").count() == 50


def test_a_run_that_is_too_long_for_a_page_has_no_form(opened, monkeypatch):
    board = boards.charging()
    numbers = 4 * len(data(board)["rounds"]["weights"])
    assert numbers <= NUMBERS_MAX
    monkeypatch.setattr("jdpack.pages.billboard_page.NUMBERS_MAX", numbers)
    assert 'id="form"' in public_page(board)
    monkeypatch.setattr("jdpack.pages.billboard_page.NUMBERS_MAX", numbers - 1)
    page = opened(board)
    assert "too long for a page" in page.inner_text("#mine")
    assert page.locator("form, script").count() == 0
