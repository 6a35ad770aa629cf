"""The reports in a browser: axe finds nothing, they fit the screen, and tables can be saved."""

from __future__ import annotations

import csv

import pytest

from browser import boards
from browser.conftest import SIZES
from browser.test_access import unfold, violations
from jdpack import Market, plan
from jdpack.audit.page import audit_page
from jdpack.curator.comparison_page import comparison_page
from jdpack.pages import public_report
from jdpack.pages.chart import Axis, Lane, lane_chart
from jdpack.planning.page import plan_page
from jdpack.run import curator_page
from jdpack.run.curator_page import HALF, Margins, More
from jdpack.run.result import ExactNumbers
from unit.audit.test_page import an_audit
from unit.curator.test_compare import a_comparison


def curators(board):
    """A curator's report with all its parts."""
    exact = ExactNumbers(4000, 4000, 2300, 0.55, 38_000.0, (0.9, 0.95, 0.2, 0.4), 3, 0)
    winners = tuple(max(0, 10 * (i - 12)) for i in range(2 * HALF))
    losers = tuple(max(0, 8 * (24 - i)) for i in range(2 * HALF))
    more = More(
        Margins(winners, losers, (40, 160, 380)), 39_000.0, 39_000.1,
        ledger="none", seconds={"Reading": 0.2},
    )  # fmt: skip
    return curator_page.curator_page(board, exact, more)


def shown(opened, tmp_path, page, size, **more):
    file = tmp_path / "report.html"
    file.write_text(page, encoding="utf-8")
    return opened(boards.charging(), size, url=file.as_uri(), **more)


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
@pytest.mark.parametrize("kind", ["public", "curator"])
def test_a_report_is_for_everybody(opened, tmp_path, kind, size, scheme):
    board = boards.charging()
    text = public_report.public_report(board) if kind == "public" else curators(board)
    page = shown(opened, tmp_path, text, size, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert violations(page) == []


def test_a_report_of_a_run_that_is_not_private_or_not_finished(opened, tmp_path):
    for board in [boards.lottery(), boards.unfinished(boards.charging(), 30)]:
        page = shown(opened, tmp_path, public_report.public_report(board), "phone")
        assert violations(page) == []


def test_tables_are_saved_without_scripts(opened, tmp_path):
    board = boards.charging()
    text = public_report.public_report(board)
    page = shown(opened, tmp_path, text, "desktop", java_script_enabled=False)
    page.get_by_text("Releases as CSV", exact=True).click()
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save releases.csv").click()
    assert saved.value.suggested_filename == "releases.csv"
    with open(saved.value.path(), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["query"] for row in rows] == [r.step.query for r in board.releases]


# --- of plan, compare and audit -----------------------------------------------------------


def a_plan():
    market = Market(
        supply=[900.0, 600.0, 300.0], max_demand=1.0, max_value=9.0, agents=5000, divisible=True,
        name="Clinic", names=["nurses", "doctors", "scanner with a long name"], units=["h"] * 3,
    )  # fmt: skip
    return plan_page(plan(market, epsilon=0.3, delta=1e-6))


PAGES = {
    "plan": a_plan,
    "comparison": lambda: comparison_page(a_comparison((0.97, 0.96), (0.4, 0.5), None)),
    "audit": lambda: audit_page(an_audit()),
}


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
@pytest.mark.parametrize("kind", PAGES)
def test_the_page_of_a_command_is_for_everybody(opened, tmp_path, kind, size, scheme):
    page = shown(opened, tmp_path, PAGES[kind](), size, color_scheme=scheme)
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert violations(page) == []
    # Charts are visible, and no word in them lies outside, or over another.
    for chart in page.locator("svg.chart").all():
        assert chart.evaluate(OVERLAPS) == []


OVERLAPS = """svg => {
  const frame = svg.getBoundingClientRect(), found = [];
  if (frame.width < 200 || frame.height < 30) found.push("small");
  const words = [...svg.querySelectorAll("text")].map(
    word => [word.textContent, word.getBoundingClientRect()]);
  for (const [text, box] of words) {
    if (box.left < frame.left - 1 || box.right > frame.right + 1) found.push(`outside: ${text}`);
    for (const [other, there] of words) {
      const aside = box.left >= there.right || there.left >= box.right;
      const apart = box.top + 2 >= there.bottom || there.top + 2 >= box.bottom;
      if (text < other && !aside && !apart) found.push(`${text} / ${other}`);
    }
  }
  return found;
}"""


def test_negative_control_words_over_others_are_seen(opened, tmp_path):
    lanes = [Lane("a name", []), Lane("b" * 40, [], "c" * 50)]
    svg = lane_chart("words", lanes, Axis(0.0, 1.0, ()))
    page = shown(opened, tmp_path, f"<!doctype html><title>x</title>{svg}", "desktop")
    (found,) = page.locator("svg.chart").evaluate_all(f"all => all.map({OVERLAPS})")
    assert [text[:7] for text in found] == ["bbbbbbb", "outside"]
