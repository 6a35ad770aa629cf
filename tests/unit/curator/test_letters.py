"""jdpack letters: each person's own code, link and outcome, and nobody else's."""

import base64
import csv
import json
import stat
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers import run_cli
from jdpack import (
    Billboard,
    Columns,
    Group,
    Market,
    OutputError,
    PersonBounds,
    Request,
    explain,
    letters,
    solve,
)
from jdpack.agent.own_record import parse
from jdpack.curator.letters import LINK_MAX, _address

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


def a_run(folder: Path, market: Market, table: pd.DataFrame) -> Path:
    table.to_parquet(folder / "agents.parquet")
    solve(market, folder / "agents.parquet", clamp=True, output=folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return a_run(tmp_path_factory.mktemp("letters"), MARKET, people())


def in_link(link: str) -> tuple[str, str, str]:
    """The address of the page, the record as JSON, and the check code."""
    begin, _, fragment = link.partition("#me=")
    record, _, code = fragment.partition(".")
    return begin, base64.urlsafe_b64decode(record + "=" * (-len(record) % 4)).decode(), code


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
        begin, data, code = in_link(row["link"])
        assert (begin, code) == (URL, row["check code"])
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
    assert list(rows[0]) == ["who", "check code", "record", "letter"]
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


# --- several requests, languages, pages ---------------------------------------------------

JOBS = Market(
    supply={"CPU": 900.0, "GPU": 200.0},
    max_demand=[20.0, 2.0],
    max_value=10.0,
    agents=60,
    options=2,
    person=PersonBounds(requests=4, max_demand={"CPU": 30.0}),
    units={"CPU": "Kernstunden", "GPU": "Karten"},
    units_one={"CPU": "Kernstunde", "GPU": "Karte"},
    value_name="Punkte",
    columns=Columns(id="user", request="job"),
    languages=["de", "fr"],
    translations={"fr": {"Punkte": "points", "Kernstunden": "heures", "Kernstunde": "heure"}},
    epsilon=9.0,
    delta=1e-6,
)


def jobs() -> pd.DataFrame:
    """People with one to five requests of one or two options; some go beyond their bounds."""
    rng = np.random.default_rng(8)
    rows = [
        (f"u{i}", f"job {r}", rng.uniform(0, 10), *rng.uniform(0, [20.0, 2.0]))
        for i in range(60)
        for r in range(1 + i % 5)
        for _ in range(1 + (i + r) % 2)
    ]
    return pd.DataFrame(rows, columns=["user", "job", "value", "CPU", "GPU"])


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    return a_run(tmp_path_factory.mktemp("jobs"), JOBS, jobs())


def test_letters_of_people_with_several_requests(several):
    assert (several / "public" / "index.fr.html").exists()
    rows = written(letters(several, url=URL, outcome=True))
    board, table = Billboard.read(several / "public" / "billboard.jsonl"), jobs()
    assert [row["user"] for row in rows] == [f"u{i}" for i in range(60)]
    left_out, got = 0, 0
    for row in rows:
        own = table[table.user == row["user"]]
        requests = [
            Request(name, some.value.tolist(), some[["CPU", "GPU"]].to_numpy().tolist())
            for name, some in own.groupby("job", sort=False)
        ]
        found = explain(board, requests=requests, agent=row["user"], code=row["check code"])
        read = parse(JOBS, in_link(row["link"])[1])
        again = explain(board, requests=read.requests, agent=read.id)
        assert [x.amounts for x in again] == [pytest.approx(x.amounts) for x in found]
        assert [x.left_out for x in again] == [x.left_out for x in found]
        parts = row["outcome"].split("; ")
        assert parts[0].startswith("insgesamt: ")
        for one in found:
            (said,) = [p for p in parts if p.startswith(f"Anfrage „{one.request}“: ")]
            assert ("Mit den Anfragen davor" in said) == (one.left_out is not None)
            assert said.endswith("dieses Mal nichts") == (not one.amounts and not one.left_out)
            left_out += one.left_out is not None
            got += bool(one.amounts)
        assert "Prüfcode: " + row["check code"] in row["letter"] and row["link"] in row["letter"]
    assert left_out > 5 and got > 20


def test_pages_to_print(several):
    """One article per person, with its own link as a QR code, and nobody else's."""
    settings = {"contact": "rat@stadt.example", "appeal": "Bis 1. Mai.", "next_steps": "<b>Warten"}
    path = letters(several, url=URL, pages=25, language="fr", **settings)
    rows, folder = written(path), path.with_suffix("")
    assert sorted(p.name for p in folder.iterdir()) == [f"{i:06}.html" for i in (1, 2, 3)]
    assert [row["page"] for row in rows] == [f"letters/{i // 25 + 1:06}.html" for i in range(60)]
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        html = file.read_text(encoding="utf-8")
        own = [row for row in rows if row["page"].endswith(file.name)]
        assert html.count("<article") == len(own) and '<html lang="fr">' in html
        assert "script-src" not in html and "<b>" not in html and "&lt;b&gt;Warten" in html
        assert html.count("Si vous n’êtes pas d’accord") == len(own)
        short = sum(len(row["link"]) <= LINK_MAX for row in own)
        assert html.count('class="qr"') == short > 0
        for row in own:
            assert row["check code"] in html and row["link"] in html
            assert row["link"].startswith(f"{URL}index.fr.html#me=")
    assert any(len(row["link"]) > LINK_MAX for row in rows), "some are too long for a code"
    letters(several, pages=60)
    assert [p.name for p in folder.iterdir()] == ["000001.html"], "no page of before is left"


@pytest.mark.parametrize(
    ("url", "code", "expected"),
    [
        ("https://a.example/x/", "de", "https://a.example/x/"),
        ("https://a.example/x/", "fr", "https://a.example/x/index.fr.html"),
        ("https://a.example/x", "fr", "https://a.example/x/index.fr.html"),
        ("https://a.example/x/index.html", "fr", "https://a.example/x/index.fr.html"),
        ("https://a.example/x/", "es", "https://a.example/x/"),
        ("", "fr", ""),
    ],
)
def test_the_address_is_that_of_the_page_in_the_language(url, code, expected):
    assert _address(url, JOBS, code) == expected


def test_without_segno_pages_are_refused_with_a_hint(several, monkeypatch):
    monkeypatch.setitem(sys.modules, "segno", None)
    with pytest.raises(OutputError, match=r"pip install 'jdpack\[letters\]'"):
        letters(several, url=URL, pages=1)
    letters(several, pages=60)  # no link, so no code


def test_the_command_with_everything(several, capsys, monkeypatch):
    arguments = ["letters", several, "--url", URL, "--outcome", "--pages", 1, "--language", "fr"]
    arguments += ["--contact", "c", "--appeal", "a", "--next", "n", "-q", "--json"]
    code, out, _ = run_cli(monkeypatch, capsys, *arguments)
    assert code == 0 and json.loads(out)["pages"].endswith("private/letters")
    assert len(list((several / "private" / "letters").iterdir())) == 60
    code, _, err = run_cli(monkeypatch, capsys, "letters", several, "--language", "xx")
    assert code == 2 and "language 'xx' is not known" in err
