"""People with several requests on the page, in a real browser: the form, a file, each request."""

from __future__ import annotations

import json
import re

import pytest

from browser import boards
from browser.test_flows import check_fit, submit
from jdpack import Request, allocate, explain
from jdpack.agent.in_words import tell_all

MINE = [
    ("job1", 14.5, {"CPU": 120.5, "GPU": 3}),
    ("job2", 0.1, {"CPU": 800}),
    ("job3", 20, {"CPU": 1000, "GPU": 24}),
    ("job4", 20, {"CPU": 1000}),
    ("job5", 1, {"CPU": 1000}),
]
"""With the fifth, more core hours than one person may ask for."""


def type_in(page, requests):
    page.fill("#id", "u00042")
    for r, (name, value, demand) in enumerate(requests):
        if r > 0:
            page.click("#add-option")
        box = page.locator("#options > fieldset").nth(r)
        box.get_by_label("The name of the request").fill(name)
        box.get_by_label("What it is worth to you").fill(str(value))
        for good, amount in demand.items():
            box.get_by_label(good, exact=True).fill(str(amount))


def check(page, board, said):
    own = [Request(name, float(value), demand) for name, value, demand in MINE]
    expected = allocate(board, requests=own, agent="u00042")
    told = tell_all(explain(board, requests=own, agent="u00042"))
    assert said in told
    assert [o.left_out for o in expected] == [None, None, None, None, "max_demand"]
    boxes = page.locator("#why details.request")
    assert boxes.count() == len(MINE)
    for at, outcome in enumerate(expected):
        box = boxes.nth(at)
        summary = box.locator("> summary")
        assert outcome.request in summary.inner_text()
        summary.click()
        if outcome.left_out:
            assert "3,000 core h of CPU" in box.inner_text()
            continue
        box.get_by_text("The exact numbers").click()
        text = box.locator("pre").inner_text()
        given = [int(n) / 2**24 for n in re.findall(r"given (\d+)", text)]
        assert given == list(outcome.given)
        assert int(re.search(r"coin (\d+)", text)[1]) / 2**53 == outcome.coin


def test_the_form_takes_all_requests_and_explains_each(opened):
    board = boards.example("jobs")
    page = opened(board, "phone")
    assert "The name of the request (job)" in page.inner_text("#options")
    assert "one person may make 40 requests" in page.inner_text("#goods")
    type_in(page, MINE)
    check(page, board, submit(page))
    check_fit(page)


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_file_fills_the_form(opened, kind, tmp_path):
    board = boards.example("jobs")
    page = opened(board)
    path = tmp_path / f"me.{kind}"
    if kind == "json":
        each = [{"request": n, "value": v, "demand": d} for n, v, d in MINE]
        path.write_text(json.dumps({"id": "u00042", "requests": each}))
    else:
        rows = [f"u00042,{n},{v},{d.get('CPU', 0)},{d.get('GPU', 0)}" for n, v, d in MINE]
        path.write_text("\n".join(["user,job,points,cpu,gpu", *rows]))
    page.set_input_files("#file", path)
    page.wait_for_function("document.getElementById('outcome').textContent !== ''")
    check(page, board, page.inner_text("#outcome"))


def test_names_that_are_missing_or_come_back_are_said(opened):
    page = opened(boards.example("jobs"))
    type_in(page, [MINE[0], ("", *MINE[1][1:]), (MINE[0][0], *MINE[2][1:])])
    submit(page)
    assert "2 fields need your attention" in page.inner_text("#problems")
    errors = [e for e in page.locator(".error:visible").all_inner_texts() if "request" in e]
    assert any("Enter the name" in e for e in errors) and any(
        "another request" in e for e in errors
    )
