"""The page is for everybody: axe finds nothing, light and dark, on a desktop and on a phone."""

from __future__ import annotations

from importlib import resources
from itertools import pairwise

import pytest

from browser import boards
from browser.test_flows import fill, submit

AXE = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def violations(page):
    """What axe finds with all its rules, including best practices."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"() => {{ {AXE} }}")
    # It takes a third longer to describe all that passes, too.
    found = page.evaluate("async () => (await axe.run({resultTypes: ['violations']})).violations")
    return [(v["id"], [n["html"][:120] for n in v["nodes"]]) for v in found]


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_a_finished_run(opened, size, scheme):
    page = opened(boards.charging(), size, color_scheme=scheme)
    unfold(page)
    submit(page)
    assert page.locator("[aria-invalid]").count() == 3
    assert violations(page) == []
    fill(page, " H1", [(99, {"18-21 h": 11})])
    assert submit(page).startswith("You get")
    page.locator("#why summary").click()
    assert violations(page) == []


def test_several_options_and_a_coin(opened):
    page = opened(boards.clinic(), "phone")
    fill(page, "P7", [(9.9, {"Mon 8": 1}), (3.5, {"Wed 15": 1})])
    submit(page)
    assert violations(page) == []
    page = opened(boards.lottery(), color_scheme="dark")  # not private: the red band
    assert page.get_by_role("alert").first.inner_text().startswith("Not private")
    fill(page, "3", [(3, {"plots": 1})])
    submit(page)
    assert violations(page) == []


@pytest.mark.parametrize("how", [{"media": "print"}, {"forced_colors": "active"}])
def test_the_red_band_is_seen_without_its_background(opened, how):
    """On paper, and in the reader's own few colours."""
    page = opened(boards.lottery(), color_scheme="light")
    look = """element => {
      const {color, backgroundColor, borderTopWidth} = getComputedStyle(element);
      return [color, backgroundColor, borderTopWidth];
    }"""
    band = page.locator(".alarm")
    assert band.evaluate(look) == ["rgb(255, 255, 255)", "rgb(161, 22, 22)", "3px"]
    page.emulate_media(**how)
    color, back, border = band.evaluate(look)
    assert color not in (back, "rgb(255, 255, 255)") and border == "3px"


@pytest.mark.parametrize("lines", [1, 30])
def test_a_run_that_is_not_finished(opened, lines):
    page = opened(boards.unfinished(boards.charging(), lines))
    assert violations(page) == []


def test_the_check_can_fail(opened):
    page = opened(boards.charging())
    page.evaluate("document.querySelector('label[for=id]').remove()")
    assert {"label"} <= {id for id, _ in violations(page)}
    page.evaluate("document.documentElement.removeAttribute('lang')")
    assert {"html-has-lang"} <= {id for id, _ in violations(page)}


def test_what_a_screen_reader_finds(opened):
    page = opened(boards.charging())
    for role in ["banner", "navigation", "main", "contentinfo"]:
        assert page.get_by_role(role).count() == 1, role
    levels = [int(h.evaluate("e => e.tagName[1]")) for h in page.locator("h1,h2,h3").all()]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.locator("svg[role=img]").count() == 8
    for chart in page.locator("svg[role=img]").all():
        label = chart.get_attribute("aria-label")
        assert "in round 1," in label and any(
            f"of {n}" in label or f"for {n}" in label
            for n in ["18-21 h", "21-24 h", "0-3 h", "3-6 h"]
        )
    assert page.locator("table:not(:has(th[scope=col]))").count() == 0
    assert page.get_by_role("status").count() == 1
    assert page.get_by_role("table", name="Goods and prices").count() == 1
    assert page.get_by_role("row").count() >= 5
    fill(page, "H1", [(9.5, {"18-21 h": 11})])
    assert page.get_by_role("status").inner_text() == "" != submit(page)
    assert page.get_by_role("status").inner_text().startswith("Not checked. If your record is id")


@pytest.mark.parametrize("kind", ["charging", "clinic", "large"])
def test_nothing_is_cut_off_at_four_times_the_size(opened, kind):
    """1280 pixels at 400% are 320: everything is one column, and only wide tables scroll."""
    page = opened(getattr(boards, kind)())
    page.set_viewport_size({"width": 320, "height": 640})
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
