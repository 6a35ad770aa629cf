"""A person's own record is read from a file like the table of agents, wide or long.

The page uses `pages/web/own_record.js`, the command line `jdpack.agent.own_record`. They agree,
down to the sentences.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from browser.boards import random_board
from browser.test_same_numbers import in_node
from helpers import SHARE, finished_board
from jdpack import Columns, Group, Market, solve
from jdpack.agent.own_record import RecordError, number, parse
from jdpack.errors import fit
from jdpack.pages.billboard_page import data

PARSE = """(market, texts) => texts.map((text) => {
  try { return jdpackRecord.parse(market, text); }
  catch (error) { return jdpackLanguage.of(market.words).say(error.key, error.given); }
})"""


def a_market(layout, options=2, groups=()):
    columns = Columns("who", "worth", layout, "try", "what", "much", ("note",))
    return Market(
        supply=[500.0] * 3, max_demand=2.0, max_value=10.0, agents=4, options=options,
        names=["a, b", 'say "c"', "d"], resource_columns=["ab", 'c"', "d"],
        groups=groups, columns=replace(columns, group="part") if groups else columns,
    )  # fmt: skip


def parsed(layout, *texts, options=2, groups=()):
    """What the page reads in each text, or its error; Python must say the same."""
    market = a_market(layout, options, groups)
    board = finished_board(market, [((1,) * len(market.resources), 1)], SHARE)
    found = in_node(PARSE, data(board), texts)
    for text, on_page in zip(texts, found, strict=True):
        # In a terminal, control characters are spelled out.
        assert in_python(market, text) == (fit(on_page) if isinstance(on_page, str) else on_page)
    return found


def in_python(market, text):
    try:
        record = parse(market, text)
    except RecordError as error:
        return error.message
    options = zip(record.values, record.demands, strict=True)
    options = [{"value": v, "demand": list(d)} for v, d in options]
    return {"id": record.id, "group": record.group, "options": options}


def written(rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


WIDE = [
    {"who": "007", "worth": 9.5, "ab": 1.25, 'c"': 0, "d": 2, "note": 'x,"y"\nz'},
    {"who": "007", "worth": 1e-3, "ab": 0, 'c"': 0.1, "d": 0, "note": ""},
]
LONG = [
    {"who": "007", "try": "x", "worth": 9.5, "what": "ab", "much": 1.25, "note": "é"},
    {"who": "007", "try": "x", "worth": 9.5, "what": "d", "much": 2, "note": ""},
    {"who": "007", "try": "y", "worth": 1e-3, "what": 'c"', "much": 0.1, "note": ""},
]
RECORD = {
    "id": "007",
    "group": None,
    "options": [
        {"value": 9.5, "demand": [1.25, 0, 2]},
        {"value": 0.001, "demand": [0, 0.1, 0]},
    ],
}


def test_the_table_of_agents_is_understood():
    """What Python's own writer writes, wide and long, gives the same record."""
    assert parsed("wide", written(WIDE)) == [RECORD]
    assert parsed("long", written(LONG)) == [RECORD]
    assert parsed("wide", written(WIDE).replace("\r\n", "\n").rstrip()) == [RECORD]
    keys = {"note"}
    bare = [{k: v for k, v in row.items() if k not in keys} for row in WIDE]
    assert parsed("wide", written(bare)) == [RECORD]
    for layout, rows in [("wide", WIDE), ("long", LONG)]:  # as `solve` reads it
        names = [name for name in rows[0] if name != "note"]
        table = pa.table({name: [row[name] for row in rows] for name in names})
        market = Market.from_dict({
            **a_market(layout).to_dict(),
            "agents": {**a_market(layout).to_dict()["agents"], "count": 1, "ignore": []},
        })  # fmt: skip
        solve(market, table, epsilon=1.0, delta=1e-6)


def test_a_file_without_an_id_leaves_it_to_the_form():
    anonymous = [{k: v for k, v in row.items() if k != "who"} for row in WIDE]
    assert parsed("wide", written(anonymous)) == [{**RECORD, "id": None}]
    assert parsed("wide", '{"value": 1, "demand": {}}')[0]["id"] is None


GROUPS = (Group("north", cap={"d": 9}), Group("é", reserve={"d": 9}))


def test_the_group_is_read_too():
    for group, name in [("north", "north"), ("é", "é"), ("elsewhere", "elsewhere"), ("", None)]:
        for layout, rows in [("wide", WIDE), ("long", LONG)]:
            text = written([{**row, "part": group} for row in rows])
            assert parsed(layout, text, groups=GROUPS) == [{**RECORD, "group": name}]
        asked = {"value": 1, "demand": {"d": 1}}
        several = {"id": "007", "group": group or None, "options": [asked, asked]}
        one, many = parsed(
            "wide", json.dumps({"group": group, **asked}), json.dumps(several), groups=GROUPS
        )
        assert (one["group"], many["group"], many["id"]) == (name, name, "007")


def test_wrong_groups_are_refused_in_the_same_words():
    two = [{**row, "part": part} for row, part in zip(WIDE, ["north", "é"], strict=True)]
    asked = '"value": 1, "demand": {}'
    found = parsed(
        "wide", written(WIDE), written(two), f"{{{asked}}}", f'{{"group": 3, {asked}}}',
        f'{{"group": ["north"], {asked}}}', groups=GROUPS,
    )  # fmt: skip
    assert found == [
        "The file lacks the column “part”.",
        "The file names several groups; you can be in one, or in none.",
        'The file lacks your "group"; write null if you are in none.',
        "The file’s group must be text, or null.",
        "The file’s group must be text, or null.",
    ]
    (found,) = parsed("wide", f'{{"group": "north", {asked}}}')
    assert "“group”, which is not one of: id, value, demand" in found


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"what": "a, b"}, "no good named “a, b”"),
        ({"what": "d"}, "names “d” twice"),
        ({"worth": 9}, "two values"),
        ({"much": "-1"}, "“-1”, which is not a number"),
        ({"who": "008"}, "several people"),
    ],
)
def test_wrong_rows_of_a_long_table(change, sentence):
    rows = [{**LONG[0], **change}, *LONG[1:]]
    (said,) = parsed("long", written(rows))
    assert sentence in said


def test_an_option_that_asks_for_nothing():
    empty = [{**LONG[0], "what": "", "much": ""}]
    assert parsed("long", written(empty))[0]["options"] == [{"value": 9.5, "demand": [0, 0, 0]}]


def test_more_options_than_one_may_have():
    (said,) = parsed("wide", written(WIDE), options=1)
    assert "has 2 options, but you may enter at most 1" in said


def test_numbers_are_those_that_python_reads():
    market = data(random_board(0))
    texts = [
        "1",
        "1.",
        ".5",
        "0.1",
        "1e3",
        "1E-3",
        "12345678901234567890",
        "5e-324",
        " 7 ",
        "00.10",
    ]
    code = "(market, texts) => texts.map((text) => jdpackRecord.number(text))"
    found = [float(read) for read in in_node(code, market, texts)]
    assert found == [float(text) for text in texts] == [number(text) for text in texts]
    wrong = ["", "-1", "+1", "1,5", "0x1", "1e999", "inf", "NaN", "1_0", "1 0", "１", "e5", "."]
    assert in_node(code, market, wrong) == [None] * len(wrong) == [number(text) for text in wrong]


def test_a_good_may_be_named_by_its_column():
    """If no good has that name. Naming a good twice is refused, by whatever names."""
    named = {"id": "007", "value": 1, "demand": {"ab": 1, "d": 2}}
    (found,) = parsed("wide", json.dumps(named))
    assert found["options"] == [{"value": 1, "demand": [1, 0, 2]}]
    (said,) = parsed("wide", json.dumps({**named, "demand": {"ab": 1, "a, b": 2}}))
    assert said == "The file names “a, b” twice in one option."


def test_odd_files_are_read_alike():
    """Numbers, spaces, quotes and nesting on which the two languages might differ."""
    parsed(
        "wide",
        *('""', '"', ",", "\n\n", " ", "\ufeff", "\ufeff\ufeff{}", "\u00a0{}", "\x1c{}", "\x85"),
        *("{}", "[]", "[", "{]", "{1}", '{"id": NaN}', '{"value": Infinity}', "{'id': 1}"),
        *('{"id": 17.0, "value": 1, "demand": [0, 0, 0]}', '{"id": 1e3, "value": 1, "demand": {}}'),
        *('{"id": -0, "value": 1, "demand": {}}', '{"id": 1.5, "value": 1, "demand": {}}'),
        *('{"id": true, "value": 1, "demand": {}}', '{"id": null, "value": 1, "demand": {}}'),
        *('{"value": true, "demand": {}}', '{"value": 1e400, "demand": {}}', '{"demand": {}}'),
        *(f'{{"value": {"9" * 400}, "demand": {{}}}}', f'{{"id": {"9" * 5000}}}', '{"value": 1}'),
        *('{"value": 1, "demand": {"d": -0.0}}', '{"value": -1e-999, "demand": {}}'),
        *('{"value": 1, "demand": null}', '{"value": 1, "demand": 3}', '{"options": [[]]}'),
        *('{"value": 1, "demand": "d"}', '{"options": {}}', '{"options": [null]}'),
        *('{"options": [], "value": 1}', '{"options": [{"value": 1, "demand": {}, "id": 2}]}'),
        *('{"value": 1, "value": 2, "demand": {}}', '"who"x,worth', 'who,"worth""",x'),
        *('"""who""",b\n1,2', 'a"b,c\r1,2\r\n', '"a\n', "who\n\n1"),
        *("who;worth\n1;2", "who\tworth\n1\t2", "who\n1", "worth,ab,d\n1,1,1", "who,who\n1,1"),
    )  # fmt: skip


def test_damaged_files_are_read_alike():
    """Records with some characters changed, lost or doubled."""
    random, marks = Random(7), '",\n\r{}[]: 0159.e-+x;\t\u00a0“\U0001fa7a'
    option = {"value": 1.5, "demand": {"ab": 1, "d": 2.5}}
    as_json = json.dumps({"id": "007", "options": [option]})
    for layout, own in [("wide", written(WIDE)), ("long", written(LONG))]:
        texts = []
        for _ in range(400):
            text = list(random.choice([own, as_json, own]))
            for _ in range(random.randint(1, 3)):
                at = random.randrange(len(text))
                text[at : at + random.randint(0, 2)] = random.choices(marks, k=random.randint(0, 2))
            texts.append("".join(text))
        found = parsed(layout, *texts)
        assert sum(isinstance(f, dict) for f in found) > 20, "some are still records"
        assert len({f for f in found if isinstance(f, str)}) > 10, "and some are wrong in many ways"
