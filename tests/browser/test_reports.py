"""The reports in a browser: axe finds nothing, they fit the screen, and tables can be saved."""

from __future__ import annotations

import csv

import pytest

from browser import boards
from browser.conftest import SIZES
from browser.test_access import violations
from jdpack import report
from jdpack.report import HALF, Curator, Margins, More


def curators(board):
    """A curator's report with all of its parts."""
    exact = Curator(4000, 2300, 0.55, 38_000.0, (0.9, 0.95, 0.2, 0.4), 3, 0)
    winners = tuple(max(0, 10 * (i - 12)) for i in range(2 * HALF))
    losers = tuple(max(0, 8 * (24 - i)) for i in range(2 * HALF))
    more = More(
        Margins(winners, losers, (40, 160, 380)), 39_000.0, 39_000.1,
        ledger="none", seconds={"Reading": 0.2},
    )  # fmt: skip
    return report.curator_page(board, exact, more)


def shown(opened, tmp_path, page, size, **more):
    file = tmp_path / "report.html"
    file.write_text(page, encoding="utf-8")
    return opened(boards.charging(), size, url=file.as_uri(), **more)


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
@pytest.mark.parametrize("kind", ["public", "curator"])
def test_a_report_is_for_everybody(opened, tmp_path, kind, size, scheme):
    board = boards.charging()
    text = report.public_report(board) if kind == "public" else curators(board)
    page = shown(opened, tmp_path, text, size, color_scheme=scheme, java_script_enabled=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    for summary in page.locator("summary:visible").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert violations(page) == []


def test_a_report_of_a_run_that_is_not_private_or_not_finished(opened, tmp_path):
    for board in [boards.lottery(), boards.unfinished(boards.charging(), 30)]:
        page = shown(opened, tmp_path, report.public_report(board), "phone")
        assert violations(page) == []


def test_tables_are_saved_without_scripts(opened, tmp_path):
    board = boards.charging()
    more = {"java_script_enabled": False, "accept_downloads": True}
    page = shown(opened, tmp_path, report.public_report(board), "desktop", **more)
    page.get_by_text("Releases as CSV", exact=True).click()
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save releases.csv").click()
    assert saved.value.suggested_filename == "releases.csv"
    with open(saved.value.path(), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["query"] for row in rows] == [r.step.query for r in board.releases]
