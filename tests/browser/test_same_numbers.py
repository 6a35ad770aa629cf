"""Python, Node and a real browser give every agent the same numbers, and the same words."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import shutil
import subprocess
from dataclasses import asdict
from importlib import resources
from itertools import pairwise
from pathlib import Path
from random import Random

import playwright
import pytest

from browser.boards import KINDS, random_agents, random_board
from golden import vectors
from golden.test_golden import board_of
from helpers import finished_board
from jdpack import AgentsError, Group, Market, PersonBounds, Request, allocate
from jdpack.agent.explain import Explanation, explain
from jdpack.agent.in_words import (
    _InWords,
    amounts_in_words,
    granted_text,
    places,
    share_text,
    typed_up,
)
from jdpack.agent.own_record import typed_number
from jdpack.common.coins import siphash
from jdpack.common.language import known, language
from jdpack.pages.billboard_page import data
from jdpack.pages.number_text import factor_text, short, short_down

SHARE = 2**24
AGENTS = 300  # of each kind: 3,600 in all

WEB = Path(str(resources.files("jdpack.pages").joinpath("web")))

ALL = """(market, agents) => agents.map(({id, options}) => {
  const found = jdpack.allocate(market, id, options);
  const {given, scaled, times, won, shares, factors, rounds, paid, surplus, places, coin} = found;
  const codes = found.options.map(({value, codes}) => [value, codes]);
  const close = options.map((_, o) => jdpack.closeness(market, found, o));
  return {given, scaled, times, won, shares, factors, rounds, paid, surplus, places, codes, close,
          code: jdpack.checkCode(market, id, [found]), coin: String(coin)};
})"""
CLOSE = """(market, agents) => agents.map(({id, options}) => {
  const found = jdpack.allocate(market, id, options);
  return options.map((_, o) => ({
    given: found.given[o],
    code: found.options[o].value,
    steps: jdpack.byValue(market, found, o),
    close: jdpack.closeness(market, found, o),
  }));
})"""


ANSWER = """
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const [code, given] = JSON.parse(line);
  const said = {};
  try { said.found = eval(`(${code})`)(...given); } catch (error) { said.error = error.stack; }
  process.stdout.write(JSON.stringify(said) + "\\n");
});
"""


@functools.cache
def node() -> subprocess.Popen:
    """Node with the page's scripts. It comes with the library that drives the browser."""
    command = shutil.which("node") or Path(playwright.__file__).parent / "driver" / "node"
    names = ("allocate", "number_text", "words", "own_record", "in_words")
    program = "".join((WEB / f"{name}.js").read_text() for name in names) + ANSWER
    pipe = subprocess.PIPE
    process = subprocess.Popen([command, "-e", program], stdin=pipe, stdout=pipe, encoding="utf-8")
    atexit.register(process.__exit__, None, None, None)
    atexit.register(process.kill)
    return process


def in_node(code: str, *arguments: object) -> object:
    """The result of a function in Node. One Node answers all: to start it takes long."""
    process = node()
    process.stdin.write(json.dumps([code, arguments]) + "\n")
    process.stdin.flush()
    said = json.loads(process.stdout.readline())
    assert "error" not in said, said["error"]
    return said["found"]


def in_browser(page, agents, market=None):
    """The same with the page's own script and its market, or another market."""
    own = "JSON.parse(document.getElementById('market').textContent)"
    if market is not None:
        own = json.dumps(market)
    return json.loads(
        page.evaluate(f"(text) => JSON.stringify(({ALL})({own}, JSON.parse(text)))",
                      json.dumps(agents))
    )  # fmt: skip


def check(board, agents, found):
    assert len(found) == len(agents)
    for agent, own in zip(agents, found, strict=True):
        values = [o["value"] for o in agent["options"]]
        demands = [o["demand"] for o in agent["options"]]
        expected = allocate(board, value=values, demand=demands, agent=agent["id"])
        assert tuple(g / SHARE for g in own["given"]) == expected.given
        assert tuple(o / SHARE for o in own["scaled"]) == expected.scaled
        assert tuple(own["times"]) == expected.rounds
        assert int(own["coin"]) / 2**53 == expected.coin
        check_reasons(explain(board, value=values, demand=demands, agent=agent["id"]), own)


def check_reasons(expected, own):
    """Everything that explains an outcome."""
    assert (tuple(own["rounds"]), int(own["coin"])) == (expected.asked, expected.coin)
    assert own["code"] == expected.code
    for o, option in enumerate(expected.options):
        assert own["codes"][o] == [option.value_code, list(option.demand_codes)]
        assert (own["times"][o], own["won"][o]) == (option.rounds, option.won)
        assert (own["shares"][o], own["factors"][o]) == (option.share, option.factor)
        assert (own["scaled"][o], own["given"][o]) == (option.scaled, option.given)
        assert own["places"][o] == [option.coin_from, option.coin_below]
        assert own["close"][o] == {"given": option.given, **asdict(option.close)}
        if option.cost is None or option.cost < 2**53:
            assert (own["paid"][o], own["surplus"][o]) == (option.cost, option.surplus)
        else:  # beyond every value, however it is rounded
            assert own["paid"][o] >= 2**53 and own["surplus"][o] < 0 and option.surplus < 0


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_random_agents(opened, number):
    board = random_board(number)
    agents = random_agents(board, AGENTS, seed=number)
    page = opened(board)
    found = in_browser(page, agents)
    check(board, agents, found)
    assert in_node(ALL, data(board), agents) == found
    given = [sum(own["given"]) for own in found]
    few = AGENTS // 50
    assert few < sum(g > 0 for g in given) < AGENTS - few, "some win and some do not"
    assert sum(1 for own in found if 0 < sum(own["shares"]) < SHARE) > 20 or data(board)["batches"]


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_what_another_value_would_have_brought(number):
    """Python agrees with each step that the page shows, and with the value just below it."""
    board, checked = random_board(number), 0
    market = board.header.market
    agents = random_agents(board, 60, seed=1000 + number)
    for agent, own in zip(agents, in_node(CLOSE, data(board), agents), strict=True):
        for o, option in enumerate(own):
            steps, close, code = option["steps"], option["close"], option["code"]

            def given_at(code, o=o, agent=agent):
                values = [option["value"] for option in agent["options"]]
                values[o] = code * market.value_step
                demands = [option["demand"] for option in agent["options"]]
                found = allocate(board, value=values, demand=demands, agent=agent["id"])
                return found.given[o] * SHARE

            pairs = list(pairwise(steps))
            for below, step in pairs[:4] + pairs[4:][-1:]:
                assert given_at(step["from"]) == step["given"] != below["given"]
                assert given_at(step["from"] - 1) == below["given"]
                checked += 1
            assert given_at(market.value_cap_code) == steps[-1]["given"]
            assert close["given"] == option["given"]
            assert close["kept"] <= code and given_at(close["kept"]) >= close["given"]
            if close["kept"] > 0:
                assert given_at(close["kept"] - 1) < close["given"]
            if close["more"] is not None:
                assert close["more"] > code and given_at(close["more"]) > close["given"]
                assert given_at(close["more"] - 1) <= close["given"]
            assert given_at(close["most"]) == close["most_given"]
    assert checked >= 3


def test_the_golden_vectors(opened):
    page = opened(random_board(0))
    for case in vectors.read():
        board = board_of(case)
        agents = [
            {
                "id": str(a["id"]),
                "options": [
                    {"value": value, "demand": demand}
                    for value, demand in zip(a["values"], a["demands"], strict=True)
                ],
            }
            for a in case["agents"]
        ]
        found = in_browser(page, agents, data(board))
        assert found == in_node(ALL, data(board), agents)
        for own, agent in zip(found, case["agents"], strict=True):
            assert own["given"] == agent["given"] and own["scaled"] == agent["scaled"]
            assert own["shares"] == agent["shares"] and own["factors"] == agent["factors"]
            assert int(own["coin"]) == agent["coin"]
            assert own["codes"] == [
                list(pair) for pair in zip(agent["value_codes"], agent["demand_codes"], strict=True)
            ]


def test_the_hash():
    """SipHash-2-4 of every length up to 70 bytes, including the paper's vector."""
    code = "(key, texts) => texts.map((t) => String(jdpack.siphash(key, Uint8Array.from(t))))"
    key = bytes(range(16))
    texts = [[(7 * i + n) % 256 for i in range(n)] for n in range(70)] + [list(range(15))]
    found = in_node(code, key.hex(), texts)
    assert [int(f) for f in found] == [siphash(key, bytes(t)) for t in texts]
    assert int(found[-1]) == 0xA129CA6149BE45E5


def test_the_other_hash():
    """SHA-256 of every length up to 130 bytes, so of one to three blocks."""
    code = "(texts) => texts.map((t) => String(jdpack.sha256(Uint8Array.from(t))))"
    texts = [[(7 * i + n) % 256 for i in range(n)] for n in range(130)]
    expected = [int(hashlib.sha256(bytes(t)).hexdigest()[:16], 16) for t in texts]
    assert [int(f) for f in in_node(code, texts)] == expected


def test_numbers_in_words():
    """A number reads the same in a sentence of the page, in its tables and in a terminal."""
    random, numbers = (
        Random(3),
        [0.0, 0.3, 0.1, 1234.5, 9999.5, 9999.96, 999.95, 12344.5, 1e-3, 0.5],
    )
    numbers += [1e15, 999999999999999.9, 9.995e-4, 0.00012378, 1e-5, 1.5e-9, 9.999e-5, 1e21, 3e22]
    numbers += [10 ** random.uniform(-9, 18) for _ in range(2000)]
    numbers += [round(10 ** random.uniform(-4, 6), random.randint(0, 4)) for _ in range(2000)]
    code = """(numbers) => numbers.map((x) => [
      jdpackWords.short(x), jdpackWords.shortDown(x), Number(jdpackWords.typedUp(x, 1e30))])"""
    expected = [[short(x), short_down(x), float(typed_up(x, 1e30))] for x in numbers]
    assert in_node(code, numbers) == expected
    assert short(9999.96) == "10,000" and short_down(0.3) == "0.3", "not 1e+04, not 0.2999"

    shares = [random.randrange(SHARE) for _ in range(500)] + [0, 1, SHARE - 1, SHARE]
    code = "(all) => all.map((s) => [jdpackWords.shareText(s), jdpackWords.factorText(s)])"
    for share, texts in zip(shares, in_node(code, shares), strict=True):
        assert texts[0] == (None if share_text(share).startswith("less") else share_text(share))
        factor = factor_text(share / SHARE)
        assert texts[1] == (None if factor.startswith("just") else factor) or share == SHARE
    coins = [(random.getrandbits(53), random.getrandbits(53)) for _ in range(500)]
    coins += [(a, a + d) for a, _ in coins[:100] for d in (-(2**30), 0, 2**25)]
    code = "(all) => all.map(([a, b]) => jdpackWords.places(a / 2 ** 53, b / 2 ** 53))"
    assert in_node(code, coins) == [list(places(*pair)) for pair in coins]


def test_what_python_refuses_is_refused():
    board = random_board(1)
    m, market = len(board.header.market.resources), data(board)
    zero, fine = [0.0] * m, {"value": 0.0, "demand": [0.0] * m}
    bad = [
        [{"value": -1.0, "demand": zero}],
        [{"value": 0.0, "demand": [-1.0, *zero[1:]]}],
        [{"value": None, "demand": zero}],
        [{"value": "1", "demand": zero}],
        [{"value": 0.0, "demand": zero[1:]}],
        [{"value": 0.0, "demand": [*zero[1:], None]}],
        [],
        [fine, fine],
    ]
    code = """(market, all) => all.map((options) => {
      try { jdpack.allocate(market, "x", options); return "taken"; }
      catch (error) { return error.name; }
    })"""
    assert in_node(code, market, [*bad, [fine]]) == ["RangeError"] * len(bad) + ["taken"]
    lone = "(market, fine) => ['\\ud800', '\\udc00x', 'a\\ud83e'].map(jdpack.wellFormed)"
    assert in_node(lone, market, fine) == [False] * 3


# --- words --------------------------------------------------------------------------------

SAID = """(market, agents) => {
  const { said } = jdpackOutcome.of(market);
  return agents.map(({ id, options, requests, group }) =>
    said({ id, group: group ?? null, ...(requests ? { requests } : { options }) }));
}"""


def in_python(explained: list[Explanation], code: str) -> dict[str, object]:
    """What `jdpack allocate` says, in the shape in which the page's script says it."""
    words, market = language(code), explained[0].market
    own = [_InWords(one, words) for one in explained]
    sums = {r.name: sum(one.amounts.get(r.name, 0.0) for one in explained) for r in market.declared}
    got = {name: amount for name, amount in sums.items() if amount > 0.0}
    requests = explained[0].request is not None
    given = own[0].given(explained)
    begin, _, end = words.text("outcome.unchecked", record="\0").partition("\0")
    return {
        "given": given.removeprefix(begin).removesuffix(end),
        "headline": granted_text(explained, words) if requests else own[0].headline(),
        "goods": amounts_in_words(market, got, words),
        "each": [
            {"left_out": one.left_out()}
            if one.explained.left_out
            else {
                "headline": one.headline(),
                "notes": one.notes(),
                "why": one.why(),
                "table": one.table(),
                "close": one.close(),
            }
            for one in own
        ],
    }


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_the_same_words_in_every_language(number):
    board = random_board(number)
    agents = random_agents(board, 40, seed=2000 + number)
    for code in known():
        found = in_node(SAID, data(board, language(code)), agents)
        for agent, said in zip(agents, found, strict=True):
            values = [o["value"] for o in agent["options"]]
            demands = [o["demand"] for o in agent["options"]]
            explained = explain(board, value=values, demand=demands, agent=agent["id"])
            assert said == in_python([explained], code)


def test_the_same_words_for_several_requests_and_groups():
    market = Market(
        supply={"Nord": 500.0, "Süd": 400.0}, max_demand=[2.0, 1.0], max_value=10.0, agents=99,
        units=["Plätze", "kW/h"], units_one={"Nord": "Platz", "Süd": ""}, value_name="Punkte",
        options=2, person=PersonBounds(requests=3, max_demand={"Nord": 3.0}, max_value=25.0),
        groups=[Group("Haus", cap={"Nord": 90.0}), Group("Hof", reserve={"Süd": 9.0})],
        languages=["de", "fr", "en"], name="Lose",
        translations={"fr": {"Nord": "Nord (fr)", "Plätze": "places", "Platz": "place",
                             "Punkte": "points", "Haus": "maison"}},
    )  # fmt: skip
    unit = 2**20 * market.value_code(1.0) // 65535
    prices = [tuple((i * j) % 7 * unit for j in range(1, 5)) for i in range(1, 9)]
    board = finished_board(market, [(row, 1) for row in prices], SHARE * 9 // 10)
    random = Random(5)

    def option():
        amounts = [round(random.uniform(0, 2.5), 1), random.choice([0, 1.0, 0.5])]
        return {"value": round(random.uniform(0, 11), 2), "demand": amounts}

    agents = [
        {
            "id": f"ä{i}",
            "group": random.choice([None, "Haus", "Hof", "weg"]),
            "requests": [
                {"name": f"r{r}", "options": [option() for _ in range(random.randint(1, 2))]}
                for r in range(random.randint(1, 4))
            ],
        }
        for i in range(60)
    ]
    left_out, all_said = set(), ""
    for code in known():
        found = in_node(SAID, data(board, language(code)), agents)
        for agent, said in zip(agents, found, strict=True):
            own = [
                Request(
                    each["name"],
                    [o["value"] for o in each["options"]],
                    [o["demand"] for o in each["options"]],
                )
                for each in agent["requests"]
            ]
            explained = explain(board, requests=own, agent=agent["id"], group=agent["group"])
            left_out |= {one.left_out for one in explained}
            assert said == in_python(list(explained), code)
        all_said += str(found)
    assert left_out >= {None, "requests", "max_demand"}
    for part in ("kW/h", "Plätze", "places (Nord (fr))", "place (Nord (fr))", "groupe maison"):
        assert part in all_said


def test_plural_forms_are_those_of_the_browser():
    numbers = [*range(0, 1200), 10**6, 2 * 10**6, 1.5, 0.5, 2.25, 1e-9]
    code = """(words, numbers) => {
      const rules = new Intl.PluralRules(words.code);
      return numbers.map((n) => rules.select(n));
    }"""
    for name in known():
        own = language(name)
        forms = {*own.data["plural"], "other"}  # a category that a file lacks counts as "other"
        found = in_node(code, {"code": name}, numbers)
        expected = [form if form in forms else "other" for form in found]
        assert [own.plural(n) for n in numbers] == expected


def test_typed_numbers():
    typed = ["8.3", "8,3", "1.250", "1,250", "0,250", "1250", ".5", ",5", "12.", "12,", "1,2,3"]
    typed += ["1 250", "-1", "1e3", "1,5e2", "x", "", "1e999", " 7 ", "1.2345", "12,3456", "12.345"]
    code = "(words, texts) => texts.map((text) => jdpackLanguage.of(words).typed(text))"
    for name in known():
        own = language(name)
        words = {"code": name, **own.data}
        for text, found in zip(typed, in_node(code, words, typed), strict=True):
            if "number" in found:
                assert found == {"number": typed_number(text, own)}
                continue
            with pytest.raises(AgentsError) as refused:
                typed_number(text, own)
            assert ("meant" in found) == (" may mean " in str(refused.value))
    assert typed_number("1.250", language("fr")) == 1.25 == typed_number("1,250", language("de"))
    for text, name in [("1.250", "de"), ("1.250", "es"), ("1,250", "en")]:
        with pytest.raises(AgentsError, match=r"may mean 1\.25 or 1250"):
            typed_number(text, language(name))
