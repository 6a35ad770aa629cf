"""jdpack letters: each person's own code, link and outcome, and nobody else's."""

import base64
import csv
import json
import stat

import numpy as np
import pandas as pd
import pytest

from helpers import run_cli
from jdpack import Billboard, Columns, Group, Market, OutputError, explain, letters, solve
from jdpack.agent.own_record import parse

MARKET = Market(
    supply={"North": 60.0, "South": 40.0},
    max_demand=[2.0, 1.0],
    max_value=10.0,
    agents=90,
    options=3,
    units=["places", "places"],
    units_one=["place", "place"],
    value_name="points",
    groups=[Group("staff", cap={"North": 20.0})],
    columns=Columns(id="who"),
    epsilon=9.0,
    delta=1e-6,
)
URL = "https://city.example/clinic/"


def people() -> pd.DataFrame:
    rng = np.random.default_rng(6)
    rows = []
    for i in range(90):
        group = "staff" if i % 4 == 0 else None
        for _ in range(1 + i % 3):
            rows.append((f"ä{i}", group, rng.uniform(0, 12), *rng.uniform(0, [3.0, 1.0])))
    return pd.DataFrame(rows, columns=["who", "group", "value", "North", "South"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("letters")
    people().to_parquet(folder / "agents.parquet")
    solve(MARKET, folder / "agents.parquet", clamp=True, output=folder / "out")
    return folder / "out"


def written(path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_letter_has_its_own_record_code_and_outcome(run):
    text = "Dear $id: $outcome. See $link or type $record and $code. $$5"
    path = letters(run, url=URL, outcome=True, text=text)
    assert path == run / "private" / "letters.csv"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    rows = written(path)
    assert [row["who"] for row in rows] == [f"ä{i}" for i in range(90)]
    board, table = Billboard.read(run / "public" / "billboard.jsonl"), people()
    said = set()
    for row in rows:
        own = table[table.who == row["who"]]
        stated = {
            "value": own.value.tolist(),
            "demand": own[["North", "South"]].to_numpy().tolist(),
            "agent": row["who"],
            "group": None if pd.isna(own.group.iloc[0]) else "staff",
        }
        found = explain(board, **stated, code=row["check code"])
        begin, _, fragment = row["link"].partition("#me=")
        record, _, code = fragment.partition(".")
        assert (begin, code) == (URL, row["check code"])
        data = base64.urlsafe_b64decode(record + "=" * (-len(record) % 4)).decode()
        mine = json.loads(data)
        assert mine["id"] == row["who"]
        read = parse(MARKET, data)
        again = explain(
            board, value=read.values, demand=read.demands, agent=read.id, group=read.group
        )
        assert [o.given for o in again.options] == [o.given for o in found.options]
        gets = row["outcome"] != "nothing this time"
        assert gets == bool(found.amounts)
        assert all(f"of {name}" in row["outcome"] for name in found.amounts)
        assert row["letter"].startswith(f"Dear {row['who']}: {row['outcome']}. See {URL}#me=")
        assert row["letter"].endswith(f"and {code}. $5") and row["record"] in row["letter"]
        said.add(gets)
    assert said == {True, False}


def test_only_what_is_asked_for(run):
    rows = written(letters(run))
    assert list(rows[0]) == ["who", "check code", "record"]
    assert "points" in rows[0]["record"] and "group staff" in rows[0]["record"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"text": "$name"}, "names $name, which a letter does not have"),
        ({"text": "5 $"}, "a $ that names nothing"),
        ({"text": "$link"}, "give it with --url"),
        ({"text": "$outcome"}, "ask for it with --outcome"),
    ],
)
def test_a_text_that_cannot_be_filled_in(run, given, says):
    with pytest.raises(OutputError) as caught:
        letters(run, **given)
    assert says in str(caught.value)


def test_the_command(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "text.txt").write_text("Hello $id")
    arguments = ["letters", run, "--url", URL, "--text", tmp_path / "text.txt", "-q"]
    code, out, _ = run_cli(monkeypatch, capsys, *arguments)
    assert code == 0 and "for that person alone" in out
    assert written(run / "private" / "letters.csv")[7]["letter"] == "Hello ä7"
