"""`jdpack allocate`: what a person gets, why, and how close it was; from options or from a file."""

import json
import re

import pytest

from browser import boards
from helpers import SHARE, finished_board, run_cli
from jdpack import AgentsError, Columns, Group, Market, allocate, explain
from jdpack.agent.in_words import tell
from jdpack.agent.options import ID_BYTES_MAX
from jdpack.records.parquet_guard import TEXT_MAX

RECORD = {"id": "H9", "value": 12.5, "demand": {"18-21 h": 3, "3-6 h": 1.25}}


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    """Asks a billboard; gives the exit code, stdout and stderr."""

    def run(board, *arguments):
        file = tmp_path / "billboard.jsonl"
        file.write_text("".join(f"{line}\n" for line in board.lines()), encoding="utf-8")
        return run_cli(monkeypatch, capsys, "allocate", file, *arguments)

    return run


# --- in words -----------------------------------------------------------------------------


def test_a_coin_decides_and_it_is_said_how_close_it_was(ask):
    """At a value of 3 half of the rounds are taken, at 4 all; the factor is 0.9."""
    board, seen = boards.lottery(), set()
    coins = {id: allocate(board, value=3, demand=[1], agent=id).coin for id in map(str, range(99))}
    groups = [lambda c: c < 0.45, lambda c: 0.45 <= c < 0.9, lambda c: c >= 0.9]
    for id in [id for group in groups for id in [i for i in coins if group(coins[i])][:2]]:
        coin = coins[id]
        code, text, _ = ask(board, "--id", id, "--value", 3, "--demand", "plots=1")
        assert code == 0
        wins = coin < 0.45
        assert ("You get everything you asked for.\n  1 plots of plots\n" in text) == wins
        assert ("You get nothing this time." in text) == (not wins)
        assert "At the final prices: value needed 2.001, yours 3. That is enough.\n" in text
        assert "gain" not in text
        assert "in 10 of the 20 rounds that count: a share of 50.00%." in text
        assert "scaled by 0.9000. That leaves 44.99%." in text
        assert f" is {int(coin * 1e4) / 1e4:.4f}. You get the goods if it is below 0.4499" in text
        assert text.count("and it is not") == (not wins)
        close = re.search(r"(?i)with a value of ([\d.]+)", text)
        if coin >= 0.9:
            assert close is None and "With this coin, no allowed value" in text
            seen.add("never")
            continue
        least = float(close[1])
        assert least == pytest.approx(2 if wins else 4, rel=1e-3)
        for value, gets in [(least, True), (least * 0.999, False)]:
            said = ask(board, "--id", id, "--value", value, "--demand", "1")[1]
            assert ("You get everything" in said) == gets
        seen.add("wins" if wins else "close")
    assert seen == {"wins", "close", "never"}


def test_amounts_are_in_their_units_and_no_more_than_is_given(ask):
    board = boards.charging()
    demand = {"0-3 h": 10.0, "3-6 h": 7.0}
    given = allocate(board, value=39.0, demand=demand, agent="H1").share
    _, text, _ = ask(board, "--id", "H1", "--value", 39, "--demand", "0-3 h=10,3-6 h=7")
    for name, amount in demand.items():
        shown = float(re.search(rf"^  ([\d.]+) kWh of {name}$", text, re.M)[1])
        assert amount * given * 0.999 <= shown <= amount * given


def test_several_options_are_a_table(ask):
    board = boards.clinic()
    asked = [(9.9, "Mon 8"), (3.5, "Wed 15"), (9.9, "Tue 10")]
    flags = [f for value, name in asked for f in ("--value", value, "--demand", f"{name}=1")]
    _, text, _ = ask(board, "--id", "P77", *flags)
    rows = [line.split() for line in text.splitlines() if re.match(r" {6,}\d ", line)]
    why = explain(
        board, value=[v for v, _ in asked], demand=[{n: 1} for _, n in asked], agent="P77"
    )
    assert [int(row[3]) for row in rows] == [o.rounds for o in why.options]
    assert [row[-1] for row in rows] == ["100%" if o.given else "0%" for o in why.options]
    assert "\nHow close it was\n  Option 1: " in text and "  Option 3: " in text


def test_what_is_beyond_the_bounds_counts_as_the_bound_and_is_said(ask):
    _, text, _ = ask(boards.charging(), "--id", " x", "--value", 1000, "--demand", "18-21 h=31")
    notes = text[: text.index("Not checked.")].splitlines()
    assert len(notes) == 3 and "space" in notes[0]
    assert "counts as 40" in notes[1] and "at most 30" in notes[2]


def test_what_is_beyond_a_total_is_cut_in_order_and_is_said(ask):
    market = Market(
        supply=[1000.0] * 6, max_demand=11.0, max_value=10.0, agents=10, units=["kWh"] * 6,
        names=[f"{h} h" for h in range(6)], max_total=16.0, divisible=True,
    )  # fmt: skip
    board = finished_board(market, [((0,) * 6, 1)], SHARE)
    _, text, _ = ask(board, "--id", "x", "--value", 1, "--demand", "0 h=10,3 h=10,5 h=1")
    assert text.split("\n", 1)[1].startswith(
        "You may ask for at most 16 kWh of 0 h, 1 h and 4 more together. Goods count in their "
        "order until that is reached; the rest does not count.\n"
        "Not checked. If your record is id x, value 1, 10 kWh of 0 h, 10 kWh of 3 h, 1 kWh of 5 h:"
        "\n\nYou get everything you asked for.\n  10 kWh of 0 h\n  6 kWh of 3 h\n\n"
    )
    _, text, _ = ask(board, "--id", "x", "--value", 1, "--demand", "0 h=10,3 h=5,5 h=1")
    assert text.split("\n\n", 1)[1].startswith(
        "You get everything you asked for.\n  10 kWh of 0 h\n  5 kWh of 3 h\n"
    )


def test_a_group_counts_and_an_unknown_one_is_said(ask, tmp_path):
    market = Market(
        supply=[1000.0], max_demand=10.0, max_value=10.0, agents=10, names=["doses"],
        divisible=True, groups=[Group("north", cap={"doses": 300})],
    )  # fmt: skip
    unit = market.value_cap_code * 2**20 // 65535
    board = finished_board(market, [((0, unit // 2), 1)], SHARE)
    asked = ["--id", "x", "--value", 4, "--demand", "doses=10"]
    assert "You get everything you asked for" in ask(board, *asked)[1]
    _, text, _ = ask(board, *asked, "--group", "north")
    assert "You get nothing" in text and "needed 5.001," in text
    _, text, _ = ask(board, *asked, "--group", "North")
    assert "“North” is not one of the groups here, so you are in none" in text
    (tmp_path / "me").write_text('{"id": "x", "group": "north", "value": 4, "demand": [10]}')
    assert "You get nothing" in ask(board, "--record", tmp_path / "me")[1]
    code, _, err = ask(boards.lottery(), "--id", "x", "--value", 4, "--demand", 1, "--group", "n")
    assert code == 2 and "this market has no groups" in err


def test_whose_turn_did_not_come_and_whose_did():
    board = boards.random_board(5)
    said = set()
    for id in map(str, range(30)):
        text = tell(explain(board, value=1e9, demand=[0.1] * 4, agent=id))
        said.add(re.search(r"Your turn was round (\d+) of 17. At its prices", text)[1])
    assert len(said) > 8
    cut = boards.random_board(5)
    for _ in range(9):
        cut.releases.pop()  # as of a run that was ended early
    texts = [tell(explain(cut, value=1e9, demand=[0.1] * 4, agent=str(i))) for i in range(30)]
    lost = [text for text in texts if "The run ended before your turn came." in text]
    assert 5 < len(lost) < 25
    for text in lost:
        assert "You get nothing" in text and "needed" not in text


def test_certain_goods_have_no_coin():
    market = Market(supply=[50.0], max_demand=1.0, max_value=1.0, agents=9, options=2)
    board = finished_board(market, [((1,), 1)] * 3, SHARE)
    for values in ([1.0], [1.0, 0.5]):
        text = tell(explain(board, value=values, demand=[[1.0]] * len(values), agent=1))
        assert "Nothing is left to chance." in text and "coin decides" not in text


# --- for programs -------------------------------------------------------------------------


def test_the_exact_numbers_are_in_the_json(ask):
    board = boards.lottery()
    _, out, _ = ask(board, "--id", "5", "--value", 3, "--demand", "1", "--json")
    data = json.loads(out)
    why = explain(board, value=3.0, demand=[1.0], agent="5")
    assert data == json.loads(json.dumps({**why.to_dict(), "private": False}))
    (own,), (exact,) = data["options"], data["exact"]["options"]
    assert exact["surplus"] == exact["value_code"] * 2**20 - exact["cost"] > 0
    assert own["surplus"] == pytest.approx(own["value"] - own["cost"]) == pytest.approx(1.0)
    assert exact["close"]["more"] * board.header.market.value_step == own["more_from_value"]
    assert data["exact"]["coin"] / 2**53 == data["coin"] >= exact["coin_below"] / 2**53
    assert (data["rounds_asked"], data["rounds"], data["turn"]) == (20, [10], None)


# --- a file -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("me.json", json.dumps(RECORD)),
        ("me.json", "\ufeff" + json.dumps({**RECORD, "demand": [3, 0, 0, 1.25]})),
        ("me.csv", "id,value,18-21 h,21-24 h,0-3 h,3-6 h\r\nH9,12.5,3,0,,1.25\r\n"),
    ],
)
def test_a_file_is_the_same_as_its_options(ask, tmp_path, name, text):
    board = boards.charging()
    (tmp_path / name).write_text(text, encoding="utf-8")
    flags = ["--value", "12.5", "--demand", "18-21 h=3,3-6 h=1.25"]
    for more in ([], ["--json"]):
        code, out, _ = ask(board, "--record", tmp_path / name, *more)
        assert code == 0 and out == ask(board, "--id", "H9", *flags, *more)[1]
        # The id of the command counts before that of the file.
        out = ask(board, "--record", tmp_path / name, "--id", "H10", *more)[1]
        assert out == ask(board, "--id", "H10", *flags, *more)[1]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "The file is empty."),
        (b"{", "is not valid JSON"),
        (b'{"value": 1, "demand": {}}', "your id is needed"),
        (b'{"id": "a", "value": 1, "demand": {"18-12 h": 1}}', "no good named “18-12 h”"),
        (b"\xff\xfe", "cannot be read as text in UTF-8"),
        (b"x" * 65537, "larger than 64 kB"),
        (b'{"id": "\\ud800", "value": 1, "demand": {}}', "is not text"),
        (b'{"id": "a", "value": 1, "demand": [1, 1, 1, 0]}', "at most 2 resources"),
    ],
)
def test_a_wrong_file_gets_a_sentence(ask, tmp_path, raw, says):
    (tmp_path / "me").write_bytes(raw)
    code, out, err = ask(boards.charging(), "--record", tmp_path / "me")
    assert (code, out) == (2, "") and says in err.splitlines()[0]


def test_what_does_not_go_together_is_refused(ask, tmp_path):
    (tmp_path / "me").write_text(json.dumps(RECORD))
    record = ["--record", tmp_path / "me"]
    for arguments, says in [
        ([*record, "--value", 1], "--record replaces"),
        ([*record, "--demand", "1"], "--record replaces"),
        (["--id", "a"], "your value and your demand are needed"),
        (["--id", "a", "--value", 1], "your value and your demand are needed"),
        (["--value", 1, "--demand", "1,0,0,0"], "your id is needed"),
        (["--record", tmp_path / "none"], "No such file"),
        (["--record", tmp_path], "Is a directory"),
    ]:
        code, out, err = ask(boards.charging(), *arguments)
        assert (code, out) == (2, "") and says in err.splitlines()[0], arguments


def test_an_id_is_no_longer_than_one_in_a_table(ask):
    assert ID_BYTES_MAX == TEXT_MAX
    flags = ["--value", 1, "--demand", "1,0,0,0"]
    assert ask(boards.charging(), "--id", "é" * 2048, *flags)[0] == 0
    code, _, err = ask(boards.charging(), "--id", "é" * 2049, *flags)
    assert code == 2 and "has 4098 bytes; at most 4096 are allowed" in err
    assert "invisible character" in ask(boards.charging(), "--id", "a\u200bb", *flags)[1]


# --- names of resources -------------------------------------------------------------------


def many() -> Market:
    names = [f"{day} {hour:02} h" for day in ("Mon", "Tue", "Wed") for hour in range(8, 18)]
    return Market(
        supply=[500.0] * 30, max_demand=1.0, max_value=1.0, agents=9, names=names,
        resource_columns=[n.lower().replace(" ", "_") for n in names], columns=Columns("who"),
    )  # fmt: skip


def test_a_resource_may_be_named_by_its_column(ask):
    board = finished_board(many(), [((1,) * 30, 1)] * 3, SHARE)
    named = {"value": 1.0, "agent": 1}
    expected = explain(board, demand={"Tue 09 h": 0.5}, **named)
    assert explain(board, demand={"tue_09_h": 0.5}, **named) == expected
    with pytest.raises(AgentsError, match="are the same resource"):
        explain(board, demand={"tue_09_h": 0.5, "Tue 09 h": 0.5}, **named)
    # A name counts before the column of another.
    market = Market(
        supply=[9.0, 9.0], max_demand=1.0, max_value=1.0, agents=9,
        names=["a", "b"], resource_columns=["b", "x"],
    )  # fmt: skip
    board = finished_board(market, [((1, 1), 1)], SHARE)
    assert explain(board, demand={"b": 1.0}, **named).stated == ((1.0, (0.0, 1.0)),)


def test_a_misspelled_resource_gets_the_closest_names(ask):
    board = finished_board(many(), [((1,) * 30, 1)] * 3, SHARE)
    for wrong, near in [("Wed 17h", "'Wed 17 h'"), ("wed 17 H", "'Wed 17 h'"), ("wed17", "17")]:
        _, _, err = ask(board, "--id", 1, "--value", 1, "--demand", f"{wrong}=1")
        assert "hint: did you mean " in err and near in err.splitlines()[1], err
    _, _, err = ask(board, "--id", 1, "--value", 1, "--demand", "zzz=1")
    assert "one of: Mon 08 h, " in err and "and 10 more" in err


# --- check codes --------------------------------------------------------------------------


def test_a_check_code_finds_what_is_mistyped(ask):
    board = boards.charging()
    code = explain(board, value=12.5, demand={"18-21 h": 3}, agent="H9").code
    assert re.fullmatch("[0-9A-HJKMNP-TV-Z]{4}", code)
    mine = {"--id": "H9", "--value": 12.5, "--demand": "18-21 h=3"}

    def said(code, **changes):
        given = mine | {f"--{key}": value for key, value in changes.items()}
        return ask(board, *(x for pair in given.items() for x in pair), "--code", code)

    for typed in (code, f" {code[:2].lower()}-{code[2:].lower()} "):
        done, text, _ = said(typed)
        assert done == 0 and "The check code is right. Your record is id H9, " in text
    assert said(code, value="12.50")[0] == 0
    for changes in (
        {"id": "H8"},
        {"value": 12.6},
        {"demand": "18-21 h=3.1"},
        {"demand": "0-3 h=3"},
    ):
        done, text, error = said(code, **changes)
        assert (
            done == 2 and text == "" and f"{code!r} is not the check code of this record" in error
        )
    wrong = code[:3] + ("2" if code[3] != "2" else "3")
    assert said(wrong)[0] == 2


def test_codes_of_records_differ():
    """About one in a million pairs of records has the same code."""
    board, seen = boards.charging(), set()
    for i in range(300):
        seen.add(explain(board, value=i / 10, demand={"18-21 h": 3}, agent="H9").code)
        seen.add(explain(board, value=7, demand={"18-21 h": 3}, agent=f"H{i}").code)
        seen.add(explain(board, value=7, demand={"18-21 h": 0.01 + i / 100}, agent="H9").code)
    assert len(seen) >= 895


# --- the market's own words ---------------------------------------------------------------


def test_values_and_units_have_names(ask):
    market = Market(
        supply={"North": 500.0, "South": 500.0},
        max_demand=2.0,
        max_value=10.0,
        agents=10,
        units=["places", "kWh"],
        units_one={"North": "place"},
        value_name="points",
        options=2,
    )
    prices = tuple(3 * 2**20 * market.value_code(1.0) // 65535 for _ in range(2))
    board = finished_board(market, [(prices, 1)], SHARE)
    _, text, _ = ask(board, "--id", "x", "--value", 8.5, "--demand", "North=1,South=1")
    assert ", points 8.5, 1 place of North, 1 kWh of South:\n" in text
    assert "  1 place of North\n  1 kWh of South\n" in text
    needed, yours = re.search(
        r"points needed ([\d.]+), yours ([\d.]+)\. That is enough\.", text
    ).groups()
    assert yours == "8.5" and float(needed) == pytest.approx(3.0, rel=1e-3)
    kept = re.search(r"You would have got it with ([\d.]+) points or more", text)[1]
    _, text, _ = ask(board, "--id", "x", "--value", 1, "--demand", "North=2,South=1")
    assert "yours 1. That is not enough." in text and "2 places of North" in text
    more = re.search(r"With ([\d.]+) points you would have got it", text)[1]
    for value, wins in [(more, True), (float(more) * 0.999, False)]:
        text = ask(board, "--id", "x", "--value", value, "--demand", "North=2,South=1")[1]
        assert ("You get everything" in text) == wins
    assert float(kept) < float(more)
    again = Market.from_dict(market.to_dict())
    assert again == market and again.resources[0].unit_one == "place"


@pytest.mark.parametrize("value", [2.0000001, 1.9999999, 3.0, 2.0])
def test_what_is_needed_is_never_above_what_is_enough(ask, value):
    """A value just above or just below what is needed reads as above or below."""
    _, text, _ = ask(boards.lottery(), "--id", "7", "--value", value, "--demand", "1")
    line = re.search(r"value needed ([\d.]+), yours ([\d.]+)\. That is (enough|not enough)", text)
    assert (float(line[1]) <= float(line[2])) == (line[3] == "enough")


# --- languages ----------------------------------------------------------------------------


def test_the_answer_is_in_the_language_of_the_market_or_the_one_asked_for(ask, tmp_path):
    market = Market(
        supply={"Nord": 500.0, "Süd": 500.0}, max_demand=2.0, max_value=10.0, agents=10,
        units=["Plätze", "kWh"], value_name="Punkte", languages=["de", "es"],
        translations={"es": {"Punkte": "puntos", "Nord": "Norte"}},
    )  # fmt: skip
    board = finished_board(market, [((1, 1), 1)], SHARE)
    asked = ["--id", "x", "--value", "8,5", "--demand"]
    german = "Sie erhalten alles, worum Sie gebeten haben.\n  0,5 Plätze (Nord)\n"
    for demand in ("Nord=0,5", "Nord=0,5;Süd=0", "0,5;0", "0.5,0", "Nord=0.5,Süd=0"):
        code, text, _ = ask(board, *asked, demand)
        assert code == 0 and german in text and "Punkte 8,5, 0,5 Plätze (Nord)" in text
    _, text, _ = ask(board, *asked, "Nord=0,5", "--language", "es")
    assert "Recibe todo lo que pidió.\n  0,5 Plätze (Norte)\n" in text
    _, text, _ = ask(board, *asked, "Nord=0,5", "--language", "en")
    assert "You get everything you asked for.\n  0.5 Plätze of Nord\n" in text
    for demand in ("0,5", "Nord=1;Nord=2", "Nord=1;2", "=1;Süd=2"):
        code, _, err = ask(board, *asked, demand)
        assert code == 2 and "cannot be read" in err
    code, _, err = ask(board, "--id", "x", "--value", "1.250", "--demand", "Nord=1")
    assert code == 2 and "'1.250' may mean 1.25 or 1250" in err
    code, _, err = ask(board, *asked, "Nord=1", "--language", "xx")
    assert code == 2 and "language 'xx' is not known" in err
    (tmp_path / "me").write_text('{"id": "x", "value": 4}')
    code, _, err = ask(board, "--record", tmp_path / "me")
    assert code == 2 and "In der Datei fehlt „demand“" in err
