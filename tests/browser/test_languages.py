"""The page in every language, on a phone and on a desktop: words, numbers, flows, access."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pyarrow as pa
import pytest

from browser.test_access import unfold, violations
from browser.test_flows import check_fit, widths
from helpers import SHARE, finished_board
from jdpack import Market, allocate, explain, letters, solve
from jdpack.agent.in_words import tell
from jdpack.common.language import known, language
from jdpack.pages.billboard_page import files, public_pages
from jdpack.pages.public_report import public_report

NAMES = {
    "de": ["Praxisplätze", "Punkte", "Plätze/h", "Platz", "Nord", "Süd", "Hafen"],
    "es": ["Plazas de consulta", "puntos", "plazas/h", "plaza", "Norte", "Sur", "Puerto"],
    "fr": ["Places en clinique", "points", "places/h", "place", "Nord", "Sud", "Port"],
}
OWN = ["Clinic", "points", "place/s", "place", "North", "South", "Harbour"]
MARKET = Market(
    name=OWN[0], supply=dict.fromkeys(OWN[4:], 1500.0), max_demand=1.0, max_value=10.0,
    agents=4000, bundle_size=1, options=2, units=[OWN[2]] * 3, units_one=[OWN[3]] * 3,
    value_name=OWN[1], languages=["en", "de", "es", "fr"],
    translations={code: dict(zip(OWN, own, strict=True)) for code, own in NAMES.items()},
)  # fmt: skip
ENGLISH = "the you your and with this that what which of from are not goods price"
"""Words that no page in another language has."""


def make_board():
    one = 2**20 * MARKET.value_code(1.0) // 65535
    search = [((40 * one, 9 * one, 0), 0)] * 3
    rounds = [(((5 + i % 3) * one + one // 4, 8 * one, 0), 1) for i in range(20)]
    return finished_board(MARKET, search + rounds, SHARE * 9 // 10)


BOARD = make_board()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of the page, as `solve` writes them."""
    folder = tmp_path_factory.mktemp("languages")
    for name, html in public_pages(BOARD).items():
        (folder / name).write_text(html, encoding="utf-8")
    assert sorted(path.name for path in folder.iterdir()) == sorted(files(MARKET).values())
    return folder


@pytest.fixture
def page(opened, folder, size, code):
    """The page in a language."""
    return opened(BOARD, size, url=(folder / files(MARKET)[code]).as_uri())


readers = pytest.mark.parametrize(
    ("size", "code"), [*(("phone", code) for code in known()), ("desktop", "de")]
)
"""Each language, and each size: the page's style has the same parts in both."""


def seen(page):
    """All that a reader sees or hears, with everything opened, except code and hashes."""
    unfold(page)
    return page.evaluate("""() => {
      const own = document.body.cloneNode(true);
      own.querySelectorAll("script, code, pre, [hreflang], .link").forEach((e) => e.remove());
      const said = [...own.querySelectorAll("[aria-label]")].map((e) => e.ariaLabel);
      const labels = [...own.querySelectorAll("[data-label]")].map((e) => e.dataset.label);
      const exact = [...document.querySelectorAll("#why pre")].map((e) => e.textContent);
      return [own.textContent, document.title, ...said, ...labels, ...exact].join("\\n");
    }""")


def english_in(text):
    words = set(re.findall(r"[a-zA-ZÀ-ÿ’]+", text.lower()))
    return sorted(words & set(ENGLISH.split()))


def ask(page, id, value, place, second=None):
    page.fill("#id", id)
    boxes = page.locator("#options > fieldset")
    boxes.first.locator("input[inputmode=decimal]").fill(value)
    boxes.first.locator("input[type=radio]").nth(place).check()
    if second is not None:
        page.press("#add-option", "Enter")
        boxes.nth(1).locator("input[inputmode=decimal]").fill(second[0])
        boxes.nth(1).locator("input[type=radio]").nth(second[1]).check()
    page.press("button[type=submit]", "Enter")
    return page.inner_text("#outcome")


@readers
def test_a_loser_and_a_winner_read_it_in_their_language(page, code):
    words = language(code)
    assert page.get_attribute("html", "lang") == code
    assert page.inner_text("h1") == MARKET.said("Clinic", code)
    ids = [f"P{i}" for i in range(60)]
    wins = {id: allocate(BOARD, value=6.4, demand=[1, 0, 0], agent=id).share > 0 for id in ids}
    for id in (next(i for i in ids if not wins[i]), next(i for i in ids if wins[i])):
        page.click("#clear")
        said = ask(page, id, "6,4", 0)
        key = "outcome.everything" if wins[id] else "outcome.nothing"
        assert said == words.text(key)
        told = tell(explain(BOARD, value=6.4, demand=[1, 0, 0], agent=id), code)
        assert page.inner_text("#given") in told
        for line in page.locator("#why li > p, #why .goods li, #why h3").all_inner_texts():
            assert line in told, line
        assert english_in(seen(page)) == ([] if code != "en" else sorted(ENGLISH.split()))
        assert "gain" not in page.inner_text("#result")
    check_fit(page)
    assert violations(page) == []


@readers
def test_what_is_wrong_is_said_in_the_language(page, code):
    words = language(code)
    page.press("button[type=submit]", "Enter")
    own = {"word": MARKET.said("points", code)}
    assert page.locator("#form .error:visible").all_inner_texts() == [
        words.text("form.enter_id"),
        words.text("form.enter_your_value", **own),
        words.text("form.choose_one"),
    ]
    assert page.inner_text("#problems") == words.text("form.fields", count=3)
    for typed, key in [("1.2.3", "marks"), ("x", "only_number"), ("-1", "negative")]:
        ask(page, "P1", typed, 1)
        example = {"marks": "1250.5", "only_number": "12.5", "negative": ""}[key]
        sentence = words.text(f"form.{key}", example=words.number(example))
        assert page.locator("#form .error:visible").all_inner_texts() == [sentence]
    sign = words.data["number"]["group"]
    if sign in ".,":
        ask(page, "P1", f"1{sign}250", 1)
        sentence = words.text("form.ambiguous", small=words.number("1.25"), large="1250")
        assert page.locator("#form .error:visible").all_inner_texts() == [sentence]
    page.fill("#code", "0000")
    ask(page, "P1", "5.5", 1)
    assert page.inner_text("#code-error") == words.text("form.code_wrong")
    assert code == "en" or english_in(seen(page)) == []
    assert violations(page) == []
    file = {"name": "me.json", "mimeType": "", "buffer": b'{"id": 1, "valu": 2}'}
    page.set_input_files("#file", file)
    page.wait_for_selector("#file-error:visible")
    assert page.inner_text("#file-error") == words.text(
        "record.unknown_key", name="valu", keys="id, value, demand"
    )


@readers
def test_several_options_are_a_table_in_the_language(page, code):
    words = language(code)
    ask(page, "P7", "6,4", 0, ("3,5", 2))
    told = tell(explain(BOARD, value=[6.4, 3.5], demand=[[1, 0, 0], [0, 0, 1]], agent="P7"), code)
    heads = page.locator("#why thead th").all_text_contents()
    assert heads[:3] == [words.text(f"outcome.head_{h}") for h in ("option", "yours", "needed")]
    for line in page.locator("#why td").all_inner_texts():
        assert line in told
    assert code == "en" or english_in(seen(page)) == []


@readers
def test_the_link_of_a_letter_and_the_switch(page, folder, code):
    """The script opens nothing itself, so the switch is a plain link and leaves all behind."""
    record = {"id": "P7", "options": [{"value": 6.4, "demand": {"North": 1}}]}
    check = explain(BOARD, value=6.4, demand=[1, 0, 0], agent="P7").code
    text = base64.urlsafe_b64encode(json.dumps(record).encode()).decode().rstrip("=")
    page.goto("about:blank")
    page.goto((folder / files(MARKET)[code]).as_uri() + f"#me={text}.{check}")
    words = language(code)
    begin, _, _ = words.text("outcome.checked", record="\0").partition("\0")
    assert page.inner_text("#given").startswith(begin)
    assert words.number("6.4") in page.inner_text("#given") and page.input_value("#id") == "P7"
    others = [language(other).name for other in MARKET.languages if other != code]
    assert page.locator(".languages a").all_inner_texts() == others
    page.locator(".languages a").last.click()
    page.wait_for_function(f"document.documentElement.lang !== '{code}'")
    assert "#" not in page.url and page.input_value("#id") == ""


@readers
def test_units_stay_on_one_line_and_the_form_comes_first(page, code):
    broken = """() => [...document.querySelectorAll(".amount")]
      .filter((e) => e.getClientRects().length > 1).map((e) => e.textContent)"""
    ask(page, "P7", "9,9", 2)
    order = page.locator("main > section").evaluate_all("all => all.map((e) => e.id)")
    assert order[0] == "mine"
    for _ in widths(page):
        assert page.locator(".amount").count() >= 7 and page.evaluate(broken) == []
        top = page.locator("#id").evaluate("e => e.getBoundingClientRect().top + scrollY")
        alarm = page.locator(".alarm").evaluate("e => e.getBoundingClientRect().height")
        assert top - alarm < 844, "the first field is on the first screen of a phone"


# --- from the letter to the page ----------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A private run of people with up to two options, as a city would make it."""
    folder, rng = tmp_path_factory.mktemp("run"), np.random.default_rng(9)
    ids = np.repeat([f"P{i}" for i in range(40)], 2)
    asked = np.eye(3)[rng.integers(0, 3, 80)]
    table = pa.table(
        {"id": ids, "value": rng.uniform(0, 10, 80).round(1)}
        | {name: asked[:, j] for j, name in enumerate(OWN[4:])}
    )
    market = MARKET.changed(agents=40, supply=[400.0] * 3)
    solve(market, table, epsilon=4.0, delta=1e-6, output=folder / "out")
    return folder / "out", table


@readers
def test_a_letter_leads_to_the_page_in_its_language(opened, run, size, code):
    out, table = run
    words, url = language(code), (out / "public" / "index.html").as_uri()
    texts = {"contact": "030 1234", "appeal": "1. 5. 2027", "next_steps": "A-17"}
    path = letters(out, table, url=url, outcome=True, pages=5, language=code, **texts)
    page = opened(BOARD, size, url=(path.with_suffix("") / "000005.html").as_uri())
    said = seen(page)
    for part in ("title", "you_get", "your_record", "check_code", "next", "appeal", "contact"):
        assert words.text(f"letter.{part}") in said
    assert page.locator("article").count() == 5 == page.locator("svg.qr[role=img]").count()
    assert english_in(said) == [] or code == "en"
    check_fit(page)
    assert violations(page) == []
    own = page.locator("article").nth(3)
    id, check = "P23", own.locator(".code").inner_text()
    assert own.locator(".eyebrow").inner_text() == words.text("letter.for_id", id=id)
    own.locator(".link a").click()
    page.wait_for_selector("#why:visible")
    assert page.get_attribute("html", "lang") == code
    assert (page.input_value("#id"), page.input_value("#code")) == (id, check)
    begin, _, _ = words.text("outcome.checked", record="\0").partition("\0")
    assert page.inner_text("#given").startswith(begin)
    won = page.locator(".goods li").count() > 0
    assert won == (page.inner_text("#outcome") != words.text("outcome.nothing"))


def test_a_wide_table_shows_that_it_scrolls(opened, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(public_report(BOARD), encoding="utf-8")
    page = opened(BOARD, "phone", url=path.as_uri())
    for width in widths(page):
        found = page.locator(".scroll").first.evaluate(
            "e => [e.scrollWidth > e.clientWidth, getComputedStyle(e).backgroundImage,"
            " getComputedStyle(e).backgroundAttachment, e.tabIndex]"
        )
        assert found[0] == (width < 500)
        assert found[1].count("linear-gradient") == 4 and "scroll" in found[2] and found[3] == 0
