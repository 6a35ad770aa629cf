"""What people do on the page, in a real browser, on a desktop and on a phone."""

from __future__ import annotations

import base64
import json
import re

import pytest

from browser import boards
from browser.conftest import SIZES
from helpers import SHARE, finished_board
from jdpack import Columns, Group, Market, allocate, explain
from jdpack.agent.in_words import tell
from jdpack.agent.own_record import parse
from jdpack.pages.billboard_page import public_page

sizes = pytest.mark.parametrize("size", SIZES)


def numbers(page):
    """The exact numbers that the page shows for each option, and the coin."""
    text = page.locator("#why pre").inner_text() if page.locator("#why pre").is_visible() else None
    if text is None:
        page.press("#why summary", "Enter")
        text = page.locator("#why pre").inner_text()
    given = [int(n) for n in re.findall(r"given (\d+)", text)]
    return given, int(re.search(r"coin (\d+)", text)[1])


def fill(page, id, options):
    """Type a record: the value of each option, and its amounts by name."""
    page.fill("#id", id)
    for o, (value, demand) in enumerate(options):
        if o > 0:
            page.click("#add-option")
        box = page.locator("#options > fieldset").nth(o)
        box.get_by_label("What it is worth to you").fill(str(value))
        for i, (name, amount) in enumerate(demand.items()):
            if box.locator("input[type=radio]").count() > 0:
                assert amount == 1
                box.get_by_label(name, exact=True).check()
                continue
            if box.locator("select").count() > 0 and box.locator(".pick").count() == 0:
                assert amount == 1
                box.get_by_label("Good", exact=True).select_option(label=name)
                continue
            if box.locator("select").count() == 0:
                box.get_by_label(name, exact=True).fill(str(amount))
                continue
            if i > 0:
                box.get_by_text("Add another good").click()
            pick = box.locator("select").nth(i)
            pick.select_option(pick.locator("option", has_text=name).get_attribute("value"))
            box.get_by_label("Amount").nth(i).fill(str(amount))


def submit(page):
    """Press the button, by a key: a click makes Chromium draw the page several times.

    `test_the_markets_of_the_gallery` clicks.
    """
    page.get_by_role("button", name="Show what I get").press("Enter")
    return page.inner_text("#outcome")


def widths(page):
    """Show the page in each size in turn. Its script knows none; only its style does."""
    for width, height in SIZES.values():
        page.set_viewport_size({"width": width, "height": height})
        yield width


def check_fit(page):
    for width in widths(page):
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def check(page, board, id, options):
    values, demands = [v for v, _ in options], [d for _, d in options]
    expected = allocate(board, value=values, demand=demands, agent=id)
    given, coin = numbers(page)
    assert tuple(g / 2**24 for g in given) == expected.given
    assert coin / 2**53 == expected.coin


def test_divisible_goods(opened):
    board = boards.charging()
    page = opened(board, "phone")
    for id, value, demand in [
        ("H00001", 39.5, {"18-21 h": 1, "21-24 h": 2.5}),
        ("H2", 0.01, {"18-21 h": 30}),
        ("ä 🩺", 9, {"0-3 h": 10}),
    ]:
        page.click("#clear")
        fill(page, id, [(value, demand)])
        said = submit(page)
        share = allocate(board, value=value, demand=demand, agent=id).share
        if share == 0:
            assert said == "You get nothing this time."
        elif share == 1:
            assert said == "You get everything you asked for."
        else:
            shown = float(re.fullmatch(r"You get ([\d.]+)% of what you asked for.", said)[1])
            assert 100 * share - 0.01 <= shown <= 100 * share
        check(page, board, id, [(value, demand)])
        page.get_by_label("What it is worth to you").fill("1")
        assert page.inner_text("#outcome") == "", "what is shown is never that of another record"
        assert page.locator("#why").is_hidden()
    check_fit(page)


def test_a_check_code_finds_what_is_mistyped(opened):
    board = boards.charging()
    page = opened(board, "phone")
    id, value, demand = "H00001", 39.5, {"18-21 h": 1, "21-24 h": 2.5}
    code = explain(board, value=value, demand=demand, agent=id).code
    fill(page, id, [(value, demand)])
    headline = submit(page)
    record = "id H00001, value 39.5, 1 kWh of 18-21 h, 2.5 kWh of 21-24 h:"
    assert page.inner_text("#given") == f"Not checked. If your record is {record}"
    page.fill("#code", f" {code[:2]} {code[2:].lower()}")
    assert submit(page) == headline
    assert page.inner_text("#given") == f"The check code is right. Your record is {record}"
    for mistyped in ({"#id": "H00007"}, {"#code": "0000" if code != "0000" else "1111"}):
        for selector, text in mistyped.items():
            page.fill(selector, text)
        assert submit(page) == "" == page.inner_text("#given")
        assert "not the check code of this record" in page.inner_text("#code-error")
        assert page.evaluate("document.activeElement.id") == "code"
        page.fill("#id", id)
    page.fill("#code", code)
    assert submit(page) == headline and page.locator("#code-error").is_hidden()
    page.click("#clear")
    assert page.input_value("#code") == ""
    check_fit(page)


def test_the_words_of_the_market(opened):
    """The page says "your points", counts one place, and never says that somebody pays or gains."""
    market = Market(
        supply={"North": 500.0}, max_demand=1.0, max_value=10.0, agents=10, name="Clinic",
        units=["places"], units_one=["place"], value_name="points",
    )  # fmt: skip
    cheap, dear = (2**20 * market.value_code(x) // 65535 for x in (2.0, 8.0))
    board = finished_board(market, [((cheap,), 1), ((dear,), 1)], SHARE * 9 // 10)
    page = opened(board, "phone")
    assert "Nobody pays a price. It only says what one unit of the good needs, in points." in (
        page.inner_text("#goods")
    )
    assert "1 place" in page.inner_text("#goods") and "1 places" not in page.inner_text("body")
    loser = next(i for i in range(99) if allocate(board, value=5, demand=[1], agent=i).share == 0)
    page.fill("#id", str(loser))
    page.get_by_label("Your points").fill("5")
    page.get_by_label("North", exact=True).fill("1")
    assert submit(page) == "You get nothing this time."
    said = page.inner_text("#why")
    told = str(explain(board, value=5, demand=[1], agent=loser))
    line = re.search(r"points needed ([\d.]+), yours 5. That is enough.", told)
    assert line[0] in said
    assert "a coin decides" in said and "gain" not in said and "gain" not in told
    page.get_by_label("Your points").fill("")
    submit(page)
    assert "Enter your points." in page.inner_text("#form")
    check_fit(page)


def test_the_link_of_a_letter_fills_in_the_form(opened, tmp_path):
    board, id, options = boards.clinic(), "P77 ä", [(9.9, {"Mon 8": 1}), (3.5, {"Wed 15": 1})]
    values, demands = [v for v, _ in options], [d for _, d in options]
    code = explain(board, value=values, demand=demands, agent=id).code
    data = {"id": id, "options": [{"value": v, "demand": d} for v, d in options]}
    record = base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")
    file = tmp_path / "letter.html"
    file.write_text(public_page(board), encoding="utf-8")
    page = opened(board, "phone", url=f"{file.as_uri()}#me={record}.{code}")
    assert page.input_value("#id") == id and page.input_value("#code") == code
    assert page.inner_text("#given").startswith("The check code is right. Your record is id P77 ä")
    check(page, board, id, options)
    page.goto(f"{file.as_uri()}#me={record[:-7]}.{code}")  # only the part behind # changes
    page.wait_for_function("document.getElementById('problems').textContent !== ''")
    assert "The link of your letter is damaged" in page.inner_text("#problems")
    assert page.input_value("#id") == "" and page.inner_text("#outcome") == ""
    check_fit(page)


def test_several_options_and_many_goods(opened):
    board = boards.clinic()
    page = opened(board, "phone")
    options = [(9.9, {"Mon 8": 1}), (3.5, {"Wed 15": 1}), (2.0, {"Tue 10": 1})]
    fill(page, "P77", options)
    assert page.locator("#more-options").is_hidden(), "three options are the most"
    said = submit(page)
    assert re.match(r"You get (option \d\.|nothing this time\.)", said)
    check(page, board, "P77", options)
    rows = page.locator("#why table tbody tr")
    assert rows.count() == 3
    page.get_by_role("button", name="Remove this option").last.click()
    assert page.inner_text("#outcome") == ""
    submit(page)
    check(page, board, "P77", options[:2])
    check_fit(page)


def test_a_bound_on_a_total_is_shown_and_cuts(opened):
    market = Market(
        supply=[1000.0] * 3, max_demand=11.0, max_value=10.0, agents=10, units=["kWh"] * 3,
        names=["18 h", "19 h", "20 h"], max_total=16.0, divisible=True,
    )  # fmt: skip
    board = finished_board(market, [((0,) * 3, 1)], SHARE)
    page = opened(board)
    together = "16 kWh of 18 h, 19 h and 20 h together"
    assert f"One person may ask for at most {together}." in page.inner_text("#goods")
    assert f"Up to {together}." in page.inner_text("#options")
    fill(page, "x", [(1, {"18 h": 10, "20 h": 9})])
    assert submit(page) == "You get everything you asked for."
    why = page.inner_text("#why")
    assert f"You may ask for at most {together}. Goods count in their order" in why
    assert "10 kWh of 18 h" in why and "6 kWh of 20 h" in why
    check(page, board, "x", [(1, {"18 h": 10, "20 h": 9})])
    fill(page, "x", [(1, {"18 h": 10, "20 h": 6})])
    submit(page)
    assert "You may ask for" not in page.inner_text("#why")


def test_a_group_is_chosen_and_counts(opened):
    """North has a cap on its doses, at a price; for all others there is a reserve, at another."""
    market = Market(
        supply=[1000.0, 1000.0], max_demand=10.0, max_value=10.0, agents=10,
        names=["doses", "beds"], divisible=True, columns=Columns(group="district"),
        groups=[Group("north", cap={"doses": 300}), Group("south", reserve={"beds": 400})],
    )  # fmt: skip
    unit = market.value_cap_code * 2**20 // 65535
    board = finished_board(market, [((0, 0, unit // 2, unit // 4), 1)], SHARE)
    page = opened(board, "phone")
    assert "doses, for north" in page.inner_text("#goods")
    assert page.get_by_label("doses, for north", exact=True).count() == 0, "nobody enters it"
    for group, value, gets in [
        ("north", 4.9, False),
        ("north", 5.1, True),
        ("south", 0.1, True),
        ("None of these", 0.1, True),
    ]:
        page.click("#clear")
        fill(page, "x", [(value, {"doses": 10})])
        assert submit(page) == "", "the group is missing"
        assert "Choose your group" in page.inner_text("#group-field")
        page.get_by_label("Your group").select_option(group)
        assert (submit(page) == "You get everything you asked for.") == gets
        name = None if group.startswith("None") else group
        expected = allocate(board, value=value, demand={"doses": 10}, agent="x", group=name)
        assert numbers(page)[0] == [g * 2**24 for g in expected.given]
    page.click("#clear")
    record = {"id": "y", "group": "north", "value": 6, "demand": {"doses": 10}}
    file = {"name": "me.json", "mimeType": "", "buffer": json.dumps(record).encode()}
    page.set_input_files("#file", file)
    page.wait_for_function("document.getElementById('outcome').textContent !== ''")
    assert page.get_by_label("Your group").evaluate("e => e.selectedOptions[0].text") == "north"
    page.click("#why summary")
    assert "doses, for north 65535" in page.inner_text("#why pre")


def test_a_coin_decides_and_the_page_says_how_close_it_was(opened):
    """A value of 3 takes half of the rounds, a value of 4 all of them; the factor is 0.9."""
    board, seen = boards.lottery(), set()
    page = opened(board, "phone")
    coins = {id: allocate(board, value=3, demand=[1], agent=id).coin for id in map(str, range(99))}
    groups = [lambda c: c < 0.45, lambda c: 0.45 <= c < 0.9, lambda c: c >= 0.9]
    for id in [id for group in groups for id in [i for i in coins if group(coins[i])][:2]]:
        coin = coins[id]
        page.click("#clear")
        fill(page, id, [(3, {"plots": 1})])
        said = submit(page)
        why = page.inner_text("#why")
        wins = coin < 0.45
        assert said == (
            "You get everything you asked for." if wins else "You get nothing this time."
        )
        assert (
            "10 of the 20 rounds" in why and "a share of 50.00%" in why and "scaled by 0.9" in why
        )
        assert f"is {int(coin * 1e4) / 1e4:.4f}" in why
        assert (", and it is." in why) == wins and (", and it is not." in why) == (not wins)
        close = re.search(r"(?i)with a value of ([\d.e-]*\d)", why)
        if coin >= 0.9:
            assert close is None and "no allowed value" in why
            seen.add("never")
            continue
        # Typing the value shown changes the outcome, and a little less does not.
        least = float(close[1])
        assert least == pytest.approx(2 if wins else 4, rel=1e-3)
        for value, gets in [(least, True), (least * 0.999, False)]:
            page.get_by_label("What it is worth to you").fill(repr(value))
            assert submit(page).startswith("You get everything") == gets
        seen.add("wins" if wins else "close")
    assert seen == {"wins", "close", "never"}


def test_divisible_goods_say_what_more_would_have_brought(opened):
    board = boards.charging()
    page = opened(board)
    fill(page, "x", [(0.05, {"18-21 h": 30})])
    assert submit(page) == "You get nothing this time."
    why = page.inner_text("#why")
    assert re.search(r"value needed [\d.]+, yours 0.05. That is not enough.", why)
    more = re.search(r"With a value of ([\d.]+) or more you would have got more", why)[1]
    most = re.search(r"and with ([\d.]+) or more the maximum", why)[1]
    page.get_by_label("What it is worth to you").fill(more)
    assert submit(page) != "You get nothing this time."
    page.get_by_label("What it is worth to you").fill(most)
    submit(page)
    assert "or more you would have got as much" in page.inner_text("#why")


@sizes
def test_wrong_input_gets_a_sentence_next_to_the_field(opened, size):
    page = opened(boards.charging(), size)

    def complaint(label):
        control = page.get_by_label(label, exact=True)
        assert control.get_attribute("aria-invalid") == "true"
        error = page.locator(f"#{control.get_attribute('id')}-error")
        assert error.get_attribute("id") in control.get_attribute("aria-describedby")
        field, sentence = control.bounding_box(), error.bounding_box()
        assert 0 <= field["y"] - sentence["y"] - sentence["height"] < 24, "just above the field"
        return error.inner_text()

    worth, first = "What it is worth to you", "18-21 h"
    assert submit(page) == ""
    assert page.inner_text("#problems") == "3 fields need your attention."
    assert page.evaluate("document.activeElement.id") == "id"
    assert complaint("Your id") == "Enter your id."
    assert complaint(worth) == "Enter what it is worth to you."
    assert complaint(first) == "Enter how much you ask for, here or for another good."
    fill(page, "x", [("1,250", {first: "-1"})])
    submit(page)
    assert complaint(worth).startswith("Do you mean 1.25 or 1250?")
    assert complaint(first) == "This cannot be negative."
    fill(page, "é" * 2049, [("5", {first: "1"})])
    submit(page)
    assert complaint("Your id").startswith("This is too long for an id.")
    page.fill("#id", "é" * 2048)
    assert submit(page).startswith("You get")
    fill(page, "x", [("12.5", {"18-21 h": 1, "21-24 h": 1, "0-3 h": 1})])
    submit(page)
    assert complaint("0-3 h") == "You may ask for at most 2 goods."
    assert page.inner_text("#problems") == "One field needs your attention."
    page.get_by_label("0-3 h", exact=True).fill("0")
    assert submit(page).startswith("You get")
    assert page.locator("[aria-invalid]").count() == 0 and page.inner_text("#problems") == ""
    assert page.locator("#form .error:visible").count() == 0


def test_what_is_no_number(opened):
    page = opened(boards.charging())
    fill(page, "x", [("", {"18-21 h": "1"})])
    worth = page.get_by_label("What it is worth to you")
    for words, *texts in [
        ("Write only a number", "lots", "NaN", "0x10", "1_000", "∞", "１２"),
        ("Write only a number", "3.7 kWh", "€6", "1/2", "1e", "."),
        ("Write", "1 250.5", "1'250", "1,250.5", "1.250,5", "12,", "1.2.3"),
        ("too large", "1e400", "1E+999"),
        ("negative", "−5"),
    ]:
        for text in texts:
            worth.fill(text)
            worth.press("Enter")
            assert worth.get_attribute("aria-invalid") == "true"
            (said,) = page.locator("#form .error:visible").all_inner_texts()
            assert words in said if words.islower() else said.startswith(words)


def test_wrong_input_where_goods_are_picked(opened):
    page = opened(boards.clinic())
    submit(page)
    assert page.locator(".radios .error:visible").all_inner_texts() == ["Choose what you ask for."]
    page.get_by_text("Another amount").click()
    submit(page)
    assert page.locator(".pick .error:visible").all_inner_texts() == ["Choose a good."]
    page.get_by_label("Amount").fill("1")
    submit(page)
    assert page.locator(".pick .error:visible").all_inner_texts() == [
        "Choose a good for this amount."
    ]
    page.locator("select").select_option("0")
    page.get_by_label("Amount").fill("")
    submit(page)
    assert page.locator(".pick .error:visible").all_inner_texts() == ["Enter an amount."]


def test_what_is_beyond_the_bounds_counts_as_the_bound_and_is_said(opened):
    board = boards.charging()
    page = opened(board)
    fill(page, " x", [("1000", {"18-21 h": 31})])
    submit(page)
    notes = page.locator(".note").all_inner_texts()
    assert len(notes) == 3 and "space" in notes[0]
    assert "counts as 40" in notes[1] and "at most 30" in notes[2]
    check(page, board, " x", [(1000.0, {"18-21 h": 31})])


EXAMPLES = {
    "clinic": ("P00042", [(38, {"Hill week 1": 2}), (34, {"Hill week 2": 2})], "slots"),
    "cluster": ("u00042", [(160, {"CPU": 1200, "memory": 4000, "GPU": 10})], "core h"),
    "charging": ("C000042", [(6, {"18:00": 3.7, "18:30": 3.7}), (5.8, {"00:00": 3.7})], "kWh"),
    "airport": ("0704-UA1545-EWR", [(900, {"EWR 06": 1}), (700.25, {"EWR 07": 1})], "departures"),
}
"""Records from the gallery's pages, and the unit of the first good."""


@sizes
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_markets_of_the_gallery(opened, size, name):
    """What the page says is what the command line says."""
    board, (id, options, unit) = boards.example(name), EXAMPLES[name]
    page = opened(board, size)
    columns = board.header.market.columns
    assert f"Your id ({columns.id})" in page.inner_text("label[for=id]")
    assert f"What it is worth to you ({columns.value})" in page.inner_text("#options")
    fill(page, id, options)
    if name != "airport":  # where everybody asks for one departure
        assert page.locator(".with-unit > span").first.inner_text() == unit
    page.get_by_role("button", name="Show what I get").click()
    said = page.inner_text("#outcome")
    page.click("#why summary")
    check(page, board, id, options)
    values, demands = [v for v, _ in options], [d for _, d in options]
    told = tell(explain(board, value=values, demand=demands, agent=id))
    assert said in told
    for line in page.locator(".goods li").all_inner_texts():
        assert f"  {line}\n" in told
    shown = [text.lower() for text in page.locator("#why").all_inner_texts()]
    for value in re.findall(r"value of (?:at least )?([\d.]+)", told):
        assert value in shown[0]
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]


@pytest.mark.parametrize("name", [*EXAMPLES, "names"])
def test_the_page_shows_what_a_file_looks_like(opened, name):
    """It also accepts such a file."""
    odd = boards.named("x", 'a, "b" <i>', "kg")
    board = odd if name == "names" else boards.example(name)
    market = board.header.market
    page = opened(board)
    page.get_by_text("What such a file looks like").click()
    parts = page.locator("#example").inner_text().split("\n\n")
    assert len(parts) == (1 if name == "clinic" else 2)
    for text in parts:
        page.click("#clear")
        page.set_input_files("#file", {"name": "me", "mimeType": "", "buffer": text.encode()})
        page.wait_for_selector("#why:visible")
        mine = parse(market, text)
        assert mine.id == "A17" == page.input_value("#id")
        options = [dict(enumerate(demand)) for demand in mine.demands]
        named = [{market.resources[j].name: a for j, a in d.items()} for d in options]
        check(page, board, "A17", list(zip(mine.values, named, strict=True)))


RECORD = {"id": "H9", "value": 12.5, "demand": {"18-21 h": 3, "3-6 h": 1.25}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("me.json", json.dumps(RECORD)),
        ("me.json", "\ufeff" + json.dumps({**RECORD, "demand": [3, 0, 0, 1.25]})),
        ("me.json", '{"id":"H9","options":[{"value":12.5,"demand":{"18-21 h":3,"3-6 h":1.25}}]}'),
        ("me.csv", "id,value,18-21 h,21-24 h,0-3 h,3-6 h\r\nH9,12.5,3,0,,1.25\r\n"),
        ("me.csv", '"3-6 h","0-3 h",value,id,"21-24 h","18-21 h"\n1.25,0,12.5,"H9",0,3'),
    ],
)  # fmt: skip
def test_a_file_fills_the_form_and_is_counted(opened, name, text):
    board = boards.charging()
    page = opened(board, "phone")
    file = {"name": name, "mimeType": "text/plain", "buffer": text.encode()}
    page.set_input_files("#file", file)
    page.wait_for_selector("#why:visible")
    assert page.input_value("#id") == "H9"
    assert page.get_by_label("3-6 h", exact=True).input_value() == "1.25"
    check(page, board, "H9", [(12.5, RECORD["demand"])])


def test_a_file_is_dropped(opened):
    board = boards.charging()
    page = opened(board)
    drop = """(text) => {
      const data = new DataTransfer();
      data.items.add(new File([text], "me.json", {type: "application/json"}));
      for (const kind of ["dragover", "drop"]) {
        const event = new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true});
        document.querySelector("%s").dispatchEvent(event);
        if (!event.defaultPrevented) throw new Error("the file would replace the page");
      }
    }"""
    page.evaluate(drop % "h1", json.dumps(RECORD))
    assert page.input_value("#id") == ""
    page.evaluate(drop % "#drop .hint", json.dumps(RECORD))
    page.wait_for_selector("#why:visible")
    check(page, board, "H9", [(12.5, RECORD["demand"])])


DROP = """(texts) => {
  const data = new DataTransfer();
  texts.forEach((text, i) => data.items.add(new File([text], `${i}.json`)));
  if (texts.length === 0) data.setData("text/plain", "{}");
  const event = new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
  document.querySelector("#drop").dispatchEvent(event);
}"""


def test_two_files_or_none_are_dropped(opened):
    page = opened(boards.charging())
    for texts, sentence in [
        ([json.dumps(RECORD)] * 2, "One file at a time, please."),
        ([], "That is not a file."),
    ]:
        page.evaluate(DROP, texts)
        page.wait_for_selector("#file-error:visible")
        assert page.inner_text("#file-error") == sentence and page.input_value("#id") == ""
    page.evaluate(DROP, [json.dumps(RECORD)])
    page.wait_for_selector("#why:visible")
    assert page.locator("#file-error").is_hidden()


def test_a_file_is_fixed_and_chosen_again(opened, tmp_path):
    board, file = boards.charging(), tmp_path / "me.json"
    page = opened(board)
    for value, wrong in [("x", True), (12.5, False), (11, False)]:
        file.write_text(json.dumps({**RECORD, "value": value}))
        with page.expect_file_chooser() as chooser:
            page.click("#file")
        assert page.evaluate("document.querySelector('#file').files.length") == 0
        chooser.value.set_files(file)
        page.wait_for_selector("#file-error:visible" if wrong else "#why:visible")
        if not wrong:
            assert page.locator("#file-error").is_hidden()
            check(page, board, "H9", [(value, RECORD["demand"])])


def test_a_file_of_another_market(opened):
    page = opened(boards.example("charging"))
    wrong = {
        json.dumps({"id": "P1", "value": 3, "demand": {"Hill week 1": 1}}): "named “Hill week 1”",
        "patient,points,Hill week 1\nP1,3,1": "has a column “patient”",
        "car,plan,euro,slot,kwh\nC1,1,3,99:00,1": "named “99:00”",
        "car,euro\nC1,1": "lacks the column “slot”",
        "%PDF-1.7\n%äöü": "has a column “%PDF-1.7”",
    }
    for text, sentence in wrong.items():
        page.set_input_files("#file", {"name": "me", "mimeType": "", "buffer": text.encode()})
        page.wait_for_function("text => document.querySelector('#file-error').textContent"
                               ".includes(text)", arg=sentence)  # fmt: skip
        assert page.inner_text("#outcome") == ""


def many_options(count):
    market = Market(
        name="Many", names=["a", "b"], supply=[90.0, 90.0], max_demand=1.0, max_value=9.0,
        agents=50, options=count,
    )  # fmt: skip
    return finished_board(market, [((2**33 + i, 2**34), 1) for i in range(9)], SHARE // 2)


def test_very_many_options(opened):
    board = many_options(60)
    page = opened(board)
    options = [{"value": 0.1 * i, "demand": [1, 0]} for i in range(61)]
    for count in (61, 60):
        text = json.dumps({"id": "x", "options": options[:count]})
        page.set_input_files("#file", {"name": "me", "mimeType": "", "buffer": text.encode()})
        page.wait_for_selector("#file-error:visible" if count == 61 else "#why:visible")
    assert page.locator("#options > fieldset").count() == 60
    assert page.locator("#more-options").is_hidden()
    given, _ = numbers(page)
    expected = allocate(
        board, value=[o["value"] for o in options[:60]], demand=[[1, 0]] * 60, agent="x"
    )
    assert tuple(g / SHARE for g in given) == expected.given
    page.click("#clear")
    for _ in range(59):
        page.press("#add-option", "Enter")
    assert page.locator("#options > fieldset").count() == 60
    assert page.locator("#more-options").is_hidden()
    legends = page.locator("#options > fieldset > legend").all_inner_texts()
    assert legends == [f"Option {i + 1}" for i in range(60)]


def test_options_and_picks_by_keyboard_alone(opened):
    board = boards.example("airport")
    page = opened(board, "phone")
    page.focus("#id")
    keys, active = page.keyboard, "document.activeElement.textContent"

    def tab_to(text):
        for _ in range(12):
            keys.press("Tab")
            if page.evaluate(active) == text:
                return
        raise AssertionError(text)

    def option(value, good):
        keys.type(value)
        keys.press("Tab")
        keys.type(good)  # a list of goods goes to what is typed

    keys.type("UA1")
    keys.press("Tab")
    option("900", "EWR 07")
    tab_to("Add another option")
    keys.press("Enter")
    option("800.5", "JFK 10")
    tab_to("Add another option")
    keys.press("Space")
    option("1", "LGA 21")
    tab_to("Remove this option")
    keys.press("Enter")
    assert page.evaluate(active) == "Add another option", "the focus is not lost"
    tab_to("Show what I get")
    keys.press("Enter")
    assert page.inner_text("#outcome").startswith("You get")
    check(page, board, "UA1", [(900, {"EWR 07": 1}), (800.5, {"JFK 10": 1})])


def test_an_id_with_what_is_not_seen_is_noted(opened):
    page = opened(boards.charging())
    for id, noted in [
        ("a\u200bb", True),
        ("a\u00adb", True),
        ("a\u00a0b", True),
        ("a b", False),
        ("é", False),
    ]:
        page.click("#clear")
        fill(page, id, [("1", {"18-21 h": 1})])
        submit(page)
        notes = page.locator(".note").all_inner_texts()
        assert [("invisible" in note) for note in notes] == [True] * noted


def test_a_file_with_several_options(opened):
    board = boards.clinic()
    page = opened(board)
    options = [(9.5, {"Mon 8": 1.0}), (3.25, {"Wed 15": 1.0})]
    record = {"id": 17, "options": [{"value": v, "demand": d} for v, d in options]}
    file = {"name": "a", "mimeType": "", "buffer": json.dumps(record).encode()}
    page.set_input_files("#file", file)
    page.wait_for_selector("#why:visible")
    check(page, board, "17", options)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "empty"),
        ("{", "not valid JSON"),
        ("[1]", "one record"),
        ('{"id":"a","value":1}', "lacks a demand"),
        ('{"id":"a","value":"1","demand":[0,0,0,0]}', "must be a number"),
        ('{"id":"a","value":-1,"demand":[0,0,0,0]}', "not negative"),
        ('{"id":"a","value":1,"demand":[0,0,0]}', "lists 3 amounts"),
        ('{"id":"a","value":1,"demand":{"19 h":1}}', "no good named “19 h”"),
        ('{"id":12345678901234567890,"value":1,"demand":{}}', "in quotes"),
        ('{"id":"a","valu":1,"demand":{}}', "has “valu”"),
        ('{"options":[]}', "must be a list"),
        ('{"options":[1,2]}', "must have a value"),
        ('{"options":[{"value":1,"demand":{}},{"value":1,"demand":{}}]}', "has 2 options"),
        ("id;value;18-21 h\na;1;2", "separated by commas"),
        ("id,value,18-21 h,21-24 h,0-3 h,3-6 h", "no record"),
        ("id,value,18-21 h,21-24 h,0-3 h,3-6 h\na,1,2,0,0", "has 5 fields"),
        ("id,value,18-21 h,21-24 h,0-3 h,3-6 h\na,1,2,0,0,0\nb,1,2,0,0,0", "several people"),
        ("id,value,18-21 h,21-24 h,0-3 h,3-6 h\na,1,2,0,0,x", "“x”, which is not a number"),
        ("id,value,18-21 h,21-24 h,0-3 h\na,1,2,0,0", "lacks the column “3-6 h”"),
        ("id,value,age,18-21 h,21-24 h,0-3 h,3-6 h\na,1,7,2,0,0,0", "column “age”"),
        ("id,value,value,18-21 h,21-24 h,0-3 h,3-6 h\na,1,7,2,0,0,0", "two columns “value”"),
        ('id,value\n"a,1', "never closed"),
        ('{"id":"a\\nb","value":1,"demand":{"0-3 h":1}}', "line break"),
        (b"\xff\xfe\x00", "UTF-8"),
        ("id,value".encode("utf-16"), "UTF-8"),
        ("x" * 65537, "larger than 64 kB"),
    ],
)
def test_a_wrong_file_gets_a_sentence(shared, text, sentence):
    raw = text if isinstance(text, bytes) else text.encode()
    shared.set_input_files("#file", {"name": "me.csv", "mimeType": "text/csv", "buffer": raw})
    shared.wait_for_selector("#file-error:visible")
    assert sentence in shared.inner_text("#file-error")
    assert shared.inner_text("#outcome") == ""
    shared.click("#clear")
    assert shared.locator("#file-error").is_hidden()


@pytest.fixture(scope="module")
def shared(browser, tmp_path_factory):
    from jdpack.pages.billboard_page import public_page

    file = tmp_path_factory.mktemp("page") / "index.html"
    file.write_text(public_page(boards.charging()), encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    yield page
    page.close()


def test_by_keyboard_alone(opened):
    """Tab reaches everything in order, and Enter asks."""
    board = boards.charging()
    page = opened(board)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for text in ["H1", "9", "11"]:
        page.keyboard.press("Tab")
        page.keyboard.type(text)
    page.keyboard.press("Enter")
    assert page.inner_text("#outcome").startswith("You get")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid", "the focus is seen"
    check(page, board, "H1", [(9.0, {"18-21 h": 11})])


def test_without_scripts_the_page_is_whole(opened):
    page = opened(boards.charging(), "phone", java_script_enabled=False)
    parts = [
        "What you asked for barely changes this page.",
        "Supply is not exceeded.",
        "of the best possible total value.",
        "jdpack allocate billboard.jsonl",
        "jdpack verify billboard.jsonl",
        "18-21 h",
        "How prices moved",
    ]
    for _ in widths(page):
        text = page.locator("body").inner_text()
        assert [part for part in parts if part not in text] == []
        assert page.locator("form").is_hidden()
        assert page.locator("figure svg[role=img]").count() == 8


@pytest.mark.parametrize(("lines", "rounds"), [(1, 0), (5, 0), (60, None)])
def test_a_run_that_is_not_finished_has_a_page(opened, lines, rounds):
    board = boards.unfinished(boards.charging(), lines)
    page = opened(board, "phone")
    counted = sum(1 for _ in board.rounds)
    for _ in widths(page):
        text = page.locator("body").inner_text()
        assert "Not finished" in text and "Not certified yet." in text
        assert re.search(rf"\b{lines - 1} answers? (is|are) in", text)
        assert rounds in (None, counted) and f"from {counted} round" in text
        assert "Supply is not exceeded" not in text and "of the best possible" not in text
    assert page.locator("form, script").count() == 0
    assert page.locator("figure").count() == (0 if lines == 1 else 4)


# --- a supply that may rarely be exceeded -------------------------------------------------


def test_a_phone_shows_how_rarely_and_how_far_a_supply_is_exceeded(opened):
    board = boards.overbooked()
    page = opened(board, "phone")
    card = page.locator(".card", has=page.get_by_role("heading", name="Supply"))
    words = card.inner_text()
    assert "The chance that a supply is exceeded is 1 in 1,000 at most." in words
    assert "The chance that a supply is exceeded by more than" in words
    assert "nobody is dropped" in words
    box = card.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
