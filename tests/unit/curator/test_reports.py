"""The reports: their numbers computed again, what they hide, and how they are written."""

import base64
import csv
import html
import io
import json
import math
import os
import re
import shutil
import stat
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from browser import boards
from helpers import (
    SHARE,
    VALUE_UNITS,
    Records,
    check_error,
    load_of,
    random_records,
    run_cli,
    wide_table,
)
from jdpack import (
    AgentsError,
    BillboardError,
    JdpackError,
    Ledger,
    LedgerError,
    LocalAgent,
    LocalRun,
    Market,
    MwuAdaptive,
    MwuOnline,
    OutputError,
    report_run,
    solve,
    verify,
    verify_run,
)
from jdpack.billboard.board import Billboard
from jdpack.curator.optimum import optimum
from jdpack.engines.memory import MemoryEngine
from jdpack.pages import billboard_page, board_tables, chart, number_text, public_report
from jdpack.pages.table import ROWS, Table
from jdpack.privacy import queries
from jdpack.privacy.tail_bounds import LUCK_SHARE
from jdpack.protocol import closing
from jdpack.run import curator_page, summary
from jdpack.run.curator_page import CLOSE, HALF, Margins, More
from jdpack.run.result import ExactNumbers
from unit.pages.test_billboard_page import text_of

FAST = MwuAdaptive(alpha=0.5)
HARM = ['<script>alert("1")</script>', "</pre><b>'\"&", 'a,"b" c;=1+1', "{{ 7 * 7 }}"]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def saved(page, file):
    """The rows of a table that a page lets one save, by the name of the file."""
    link = re.search(rf'<a download="{re.escape(file)}" href="data:text/csv;[^,]*,([^"]*)"', page)
    text = base64.b64decode(link[1]).decode()
    shown = re.search(
        rf"Save {re.escape(file)}</a> or copy it:</p>\n<pre[^>]*>(.*?)</pre>", page, re.S
    )
    assert shown is None or html.unescape(shown[1]) == text, "what is copied is what is saved"
    return list(csv.DictReader(io.StringIO(text, newline="")))


def a_run(folder, seed, *, policy=FAST, out="out", **more):
    """A finished run of random records, its folder beside them; the records are in a file."""
    rng, n = np.random.default_rng(seed), 200
    m = more.pop("resources", 3)
    caps = rng.uniform(0.5, 20.0, m)
    market = Market(
        supply=(40.0 * caps).tolist(), max_demand=caps.tolist(), max_value=70.0, agents=n, **more
    )
    records = random_records(rng, market, ids=[f"P{i}" for i in range(n)])
    path = folder / "agents.parquet"
    pyarrow.parquet.write_table(wide_table(records), path)
    result = solve(
        market, path, epsilon=45.0, delta=1e-6, policy=policy, seed=seed, output=folder / out
    )
    return records, result, folder / out


# --- the curator's numbers ----------------------------------------------------------------

KINDS = {
    "divisible": {"divisible": True},
    "whole": {"divisible": False},
    "options": {"divisible": False, "options": 3},
    "sparse": {"divisible": True, "resources": 12, "bundle_size": 2, "options": 2},
    "batches": {"divisible": True, "policy": MwuOnline(batch=20)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_curators_numbers_are_those_of_the_allocation(kind, tmp_path):
    records, result, out = a_run(tmp_path, 11, **KINDS[kind])
    made = report_run(out, optimum=False)
    page, market = made.private.read_text(), records.market
    table = pyarrow.parquet.read_table(out / "private" / "allocation.parquet")
    shares = [
        int(SHARE * float(share)) for share in table.column(table.num_columns - 1).to_pylist()
    ]
    rows = iter(shares)
    of_agents = [[next(rows) for _ in options] for options in records.agents]
    winners = [any(own) for own in of_agents]
    words = text_of(page)
    assert 20 < sum(winners) < 200, "some get something, some nothing"
    assert f"{sum(winners):,} of 200 agents get something" in words
    if market.divisible:
        mean, own = (100 * sum(shares) / SHARE / count for count in (200, sum(winners)))
        assert f"Mean share {mean:.1f}% over all agents; {own:.1f}%" in words
    else:
        assert "ean share" not in words
    loads = load_of(records.codes(), shares)
    told = saved(page, "loads.csv")
    for row, load, r, supply in zip(
        told, loads, market.resources, market.supply_codes, strict=True
    ):
        assert row["good"] == r.name
        assert float(row["true_load"]) == pytest.approx(load / (SHARE * supply), 1e-12)
        assert float(row["true_load"]) <= float(row["load_at_most"]) + 1e-12
    values = records.arrays()["values"].tolist()
    value = sum(v * s for v, s in zip(values, shares, strict=True)) / SHARE
    assert f"Total value {number_text.short(result.welfare)}; the certificate" in words
    assert result.welfare == pytest.approx(value, rel=1e-5, abs=200 * market.value_step)
    assert check_margins(records, result.billboard, winners, page) > 1


def check_margins(records, board, winners, page):
    """Margins by exact fractions, agent by agent; returns how many columns have somebody."""
    expected, close = {True: [0] * 2 * HALF, False: [0] * 2 * HALF}, [0] * len(CLOSE)
    for options, wins in zip(records.codes(), winners, strict=True):
        pairs = [
            (
                value * VALUE_UNITS,
                sum(c * p for c, p in zip(codes, board.final_prices, strict=True)),
            )
            for value, codes in options
        ]
        value, cost = max(pairs, key=lambda pair: pair[0] - pair[1])
        margin = Fraction(value - cost, max(value, cost)) if max(value, cost) else Fraction(0)
        expected[wins][min(2 * HALF - 1, math.floor(margin * HALF) + HALF)] += 1
        close = [n + (abs(margin) <= Fraction(c)) for n, c in zip(close, CLOSE, strict=True)]
    rows = saved(page, "margins.csv")
    assert [int(row["winners"]) for row in rows] == expected[True]
    assert [int(row["losers"]) for row in rows] == expected[False]
    for share, count in zip(CLOSE, close, strict=True):
        assert f"Within {100 * share:.0f}% of flipping {count:,} agents" in text_of(page)
    return sum(n > 0 for n in expected[True] + expected[False])


def test_true_loads_stand_beside_noisy_and_certified_ones(tmp_path):
    _, result, out = a_run(tmp_path, 12, divisible=True)
    board = result.billboard
    rows = saved(report_run(out, optimum=False).private.read_text(), "loads.csv")
    for j, row in enumerate(rows):
        factor = board.certificate.factors[j] / SHARE
        answers = [(r.step.weight, r.answer[j]) for r in board.releases if r.step.weight]
        average = Fraction(sum(w * a for w, a in answers), sum(w for w, _ in answers))
        noisy = factor * float(average) / board.header.market.supply_codes[j]
        assert float(row["load_with_noise"]) == pytest.approx(noisy, rel=1e-9)
        assert float(row["load_with_noise"]) != pytest.approx(float(row["true_load"]), rel=1e-6)
        assert float(row["load_at_most"]) == board.certificate.load_at_most[j]


# --- the optimum --------------------------------------------------------------------------


def test_the_optimum_is_that_of_the_records(tmp_path):
    records, result, out = a_run(tmp_path, 13, divisible=True)
    arrays = records.arrays()
    best = optimum(
        arrays["values"], arrays["demands"], [r.supply for r in records.market.resources]
    )
    words = text_of(report_run(out).private.read_text())
    assert f"Optimum without privacy {number_text.short(best.value)};" in words
    assert f"{100 * result.welfare / best.value:.2f}% of it" in words
    assert "NOT hold" not in words
    assert f"{number_text.percent(result.welfare / best.value)} of the optimum." in words


def test_without_the_optimum_the_report_says_how_to_get_it(tmp_path, monkeypatch):
    _, _, out = a_run(tmp_path, 13, divisible=True)
    page = report_run(out, optimum=False).private.read_text()
    assert "Not computed: it was left out. jdpack report --optimum" in text_of(page)
    from jdpack.curator import curators_report as module

    with monkeypatch.context() as patch:
        patch.setattr(module, "SMALL", 10)
        assert "the market is large" in text_of(report_run(out).private.read_text())
        asked = text_of(report_run(out, optimum=True).private.read_text())
        assert "Optimum without privacy" in asked
    monkeypatch.delitem(sys.modules, "jdpack.curator.optimum")
    monkeypatch.setitem(sys.modules, "highspy", None)
    words = text_of(report_run(out).private.read_text())
    assert "highspy is not installed (pip install " in words
    with pytest.raises(JdpackError, match="highspy is not installed"):
        report_run(out, optimum=True)


def test_a_certificate_that_does_not_hold_is_said_not_to():
    board = boards.charging()
    exact = ExactNumbers(10, 10, 1, 0.5, 100.0, (0.5,) * 4, 0, 0)
    page = curator_page.curator_page(board, exact, More(optimum=1000.0, optimum_at_most=1000.0))
    assert "this does NOT hold here" in page
    page = curator_page.curator_page(board, exact, More(optimum=100.0, optimum_at_most=100.0))
    assert "NOT hold" not in page


# --- what the ledger says -----------------------------------------------------------------


def test_what_the_ledger_says(tmp_path):
    market = Market(supply=[90.0], max_demand=1.0, max_value=1.0, agents=100, divisible=True)
    records = random_records(np.random.default_rng(1), market)
    ledger, out = tmp_path / "ledger.db", tmp_path / "out"
    Ledger.create(ledger, "people", epsilon=3.0, delta=1e-5)
    solve(
        market, **records.arrays(), epsilon=2.0, delta=1e-6, output=out, ledger=ledger,
        dataset="people", policy=FAST,
    )  # fmt: skip

    def words(**more):
        made = report_run(out, **records.arrays(), optimum=False, **more)
        return html.unescape(text_of(made.private.read_text()))

    assert "this run is paid for and finished; (" in words()
    assert "of (3, 1e-05) is spent on 'people', in 1 run" in words()
    moved = tmp_path / "moved.db"
    ledger.rename(moved)
    assert "this run is not marked as paid and finished there" in words()
    assert "this run is paid for and finished; (" in words(ledger=moved)
    solve(market, **records.arrays(), epsilon=2.0, delta=1e-6, output=tmp_path / "b", policy=FAST)
    made = report_run(tmp_path / "b", **records.arrays(), optimum=False)
    assert "none: nothing tracks what other runs spend" in made.private.read_text()
    with pytest.raises(LedgerError, match="this run has no ledger"):
        report_run(tmp_path / "b", **records.arrays(), ledger=moved)


# --- what the public one says -------------------------------------------------------------


def test_the_public_report_is_a_function_of_the_billboard():
    board = boards.charging()
    again = Billboard.from_text("".join(f"{line}\n" for line in board.lines()))
    assert public_report.public_report(again) == public_report.public_report(board)


def test_neighbours_with_the_same_billboard_have_the_same_public_report(tmp_path):
    """And the curator's differ: the exact numbers do go somewhere."""
    records, result, out = a_run(tmp_path, 14, divisible=True)
    market, other = records.market, Records(records.market, records.ids, list(records.agents))
    gets = max(range(200), key=lambda i: result.allocation[i] * sum(records.agents[i][0][1]))
    other.agents[gets] = [(0.0, [r.max_demand for r in market.resources])]
    twin = tmp_path / "twin"
    shutil.copytree(out, twin)
    file = twin / "private" / "run.json"
    run = json.loads(file.read_text())
    run["digest"] = MemoryEngine(other.encode()).digest()
    file.write_text(json.dumps(run))
    one, two = report_run(out), report_run(twin, **other.arrays())
    assert one.public.read_bytes() == two.public.read_bytes()
    exact = [made.private.read_text() for made in (one, two)]
    assert saved(exact[0], "loads.csv") != saved(exact[1], "loads.csv")
    public = one.public.read_text()
    for row in saved(exact[0], "loads.csv"):
        assert row["true_load"] not in public
    assert not re.search(r"winner|clamp|margin of|curator", text_of(public), re.IGNORECASE)


def test_every_release_is_listed_with_its_cost():
    board = boards.clinic()
    rows = saved(public_report.public_report(board), "releases.csv")
    assert [row["query"] for row in rows] == [r.step.query for r in board.releases]
    assert [int(row["line"]) for row in rows] == list(range(2, len(rows) + 2))
    so_far = 0.0
    for row, release in zip(rows, board.releases, strict=True):
        scales = release.step.noise.scales
        rho = closing.change(board, release.step.query).worst(scales) / 2
        assert float(row["noise_scale"]) == min(scales)
        assert float(row["rho"]) == pytest.approx(rho, rel=1e-9)
        so_far += rho
        assert float(row["rho_so_far"]) == pytest.approx(so_far, rel=1e-9)
    whole = board.header.budget.rho
    if all(r.step.query != "luck" for r in board.releases):  # asked only where it helps
        whole *= 1.0 - LUCK_SHARE
    assert 0.999 * whole < so_far <= board.header.budget.rho
    by_query = {r["query"]: float(r["sensitivity"]) for r in rows}
    assert by_query["demand"] == pytest.approx(
        math.sqrt(queries.change(board.header.market, "demand").squares)
    )
    one = {r["query"]: r["answer_if_one_number"] for r in rows}
    welfare = next(r for r in board.releases if r.step.query == "welfare")
    assert one["welfare"] == str(welfare.answer[0]) and one["demand"] == ""


def test_prices_and_demand_of_every_round():
    board = boards.charging()
    market, rows = (
        board.header.market,
        saved(public_report.public_report(board), "prices-and-demand.csv"),
    )
    asked = [(i, r) for i, r in enumerate(board.releases) if r.step.query == "demand"]
    assert len(rows) == 4 * len(asked)
    for k, row in enumerate(rows):
        (i, release), j = asked[k // 4], k % 4
        assert (int(row["line"]), row["good"]) == (i + 2, market.resources[j].name)
        assert float(row["price"]) == market.unit_price(j, release.step.prices[j])
        assert float(row["demand_with_noise"]) == release.answer[j] * market.unit_sizes[j]


@pytest.mark.parametrize("make", [boards.charging, boards.clinic])
def test_the_bounds_are_noisy_loads_and_an_allowance(make):
    board = make()
    for j, row in enumerate(saved(public_report.public_report(board), "bounds-on-loads.csv")):
        load, room, bound = (float(row[k]) for k in ("load_with_noise", "allowance", "bound"))
        assert load + room == pytest.approx(bound)
        # A bound on grants rests on what was measured of them, too, which may be far less.
        assert room > 0.0 or not board.header.market.divisible
        factor = board.certificate.factors[j] / SHARE
        assert float(row["factor"]) == factor
        assert float(row["load_at_most"]) == board.certificate.load_at_most[j] <= 1.0
        if factor == 1.0:
            assert float(row["load_at_most"]) == pytest.approx(min(1.0, bound), rel=1e-9)


def test_the_certificate_in_words_is_rounded_to_the_safe_side():
    board = boards.charging()
    words = text_of(public_report.public_report(board))
    worth = re.search(r"What is given is worth at least ([\d,.]+)", words)[1]
    most = re.search(r"No allocation is worth more than ([\d,.]+)", words)[1]
    assert float(worth.replace(",", "")) <= board.certificate.welfare_at_least
    assert float(most.replace(",", "")) >= board.certificate.optimum_at_most
    assert "proved directly, and is sharper than the quotient" in words
    assert board.head in words and board.header.commitment in words
    assert "(4, 1e-06)-joint differential privacy" in words


def test_blocks_of_batches_cost_what_the_dearest_batch_pays():
    n = 500
    market = Market(supply=[500.0] * 2, max_demand=2.0, max_value=10.0, agents=n)
    board = solve(
        market, values=np.ones(n), demands=np.ones((n, 2)), policy=MwuOnline(batch=10),
        epsilon=1.0, delta=1e-6,
    ).billboard  # fmt: skip
    page = public_report.public_report(board)
    rows = [row for row in saved(page, "releases.csv") if row["batch"]]
    assert len(rows) == 50
    paid = [0.0] * 50
    for last, row in enumerate(rows):
        assert int(row["batch"]) == last
        for batch in range(last - int(row["span"]) + 1, last + 1):
            paid[batch] += float(row["rho"])
        assert float(row["rho_so_far"]) == pytest.approx(max(paid))
    words = text_of(page)
    assert "batches 1 to 50 of 50" in words and ", batch 1 of 50" in words
    assert "the batch that pays most" in words
    assert "Fraction of the best possible not certified" in words


def test_agents_who_add_the_noise_themselves():
    n = 60
    market = Market(supply=[500.0], max_demand=2.0, max_value=10.0, agents=n)
    run = LocalRun(market, epsilon=1.0, delta=1e-6, batch=20)
    agents = [LocalAgent(run.board.header, value=3.0, demand=[1.0], agent=i) for i in range(n)]
    while (step := run.step) is not None:
        turn = [a for a in agents if a.turn(step.batch.count) == step.batch.index]
        run.post(agent.answer(step) for agent in turn)
    page = public_report.public_report(run.board)
    words = text_of(page)
    assert "Nothing is certified: people added the noise themselves." in words
    assert "and each person for their own answer" in words and "does not add up" not in words
    (row,) = saved(page, "bounds-on-loads.csv")
    load, room = float(row["load_with_noise"]), float(row["allowance"])
    assert load + room == pytest.approx(float(row["bound"]))


def test_a_run_without_noise():
    rng = np.random.default_rng(1)
    market = Market(supply=[50.0], max_demand=2.0, max_value=10.0, agents=100)
    board = solve(
        market, values=rng.uniform(0, 10, 100), demands=rng.uniform(0, 2, (100, 1)),
        epsilon=math.inf, delta=1e-6,
    ).billboard  # fmt: skip
    page = public_report.public_report(board)
    assert "Not private: this run was made without noise" in page
    assert "All privacy is spent: the answers are exact" in page
    assert {row["noise_scale"] for row in saved(page, "releases.csv")} == {""}


@pytest.mark.parametrize("lines", [1, 2, 40])
def test_a_run_that_is_not_finished(lines):
    board = boards.charging()
    words = text_of(public_report.public_report(boards.unfinished(board, lines)))
    assert "Not finished" in words and "There is none yet" in words
    assert "the run is not finished, or its end was cut off" in words
    assert "Finished" not in words.replace("Not finished", "")
    if lines == 1:
        assert "Nothing has been asked yet, and nothing is spent." in words


def test_lines_of_no_run_are_said_to_be():
    page = public_report.public_report(
        boards.lottery()
    )  # its noise is far too small for its budget
    assert "The billboard does not add up" in page
    assert {row["rho"] for row in saved(page, "releases.csv")} == {""}


def test_a_very_long_run_has_a_report_of_bounded_size(monkeypatch):
    monkeypatch.setattr(board_tables, "RELEASES", 100)
    monkeypatch.setattr(board_tables, "COURSE", 1000)
    page = public_report.public_report(boards.large())
    assert len(saved(page, "releases.csv")) <= 101
    assert len(saved(page, "prices-and-demand.csv")) <= 1050
    assert text_of(page).count("A selection of") == 2
    assert "An even choice" not in public_report.public_report(boards.charging())


# --- safe pages ---------------------------------------------------------------------------


def both_pages(board):
    m = len(board.header.market.resources)
    exact = ExactNumbers(10, 10, 3, 0.5, 7.0, (0.25,) * m, 0, 0)
    columns = tuple(range(2 * HALF))
    more = More(Margins(columns, columns, (1, 2, 3)), no_optimum=HARM[0], ledger=HARM[1])
    return {
        "public": public_report.public_report(board),
        "curator": curator_page.curator_page(board, exact, more),
        "short": curator_page.curator_page(board, exact),
    }


@pytest.mark.parametrize("harm", HARM)
def test_names_that_mean_harm_are_only_names(harm):
    board = boards.named(harm, f"{harm} good", harm)
    for kind, page in both_pages(board).items():
        assert "<script" not in page and "<b>" not in page and "49" not in page.split("<body>")[0]
        assert "{{" not in page.replace(html.escape("{{ 7 * 7 }}"), "")
        names = {"public": "goods.csv"}.get(kind, "loads.csv")
        found = saved(page, names)[0]
        assert found.get("name", found.get("good")) == f"{harm} good"


@pytest.mark.parametrize("kind", ["public", "curator", "short"])
def test_pages_load_and_run_nothing(kind):
    page = both_pages(boards.charging())[kind]
    assert "<script" not in page and "onclick" not in page
    policy = html.unescape(re.search(r'Security-Policy" content="([^"]*)"', page)[1])
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "script-src" not in policy and "connect-src 'none'" in policy
    links = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert all(re.match(r"#|data:|(billboard\.jsonl|index\.html)$", link) for link in links)
    assert ("index.html" in links) == (kind == "public")
    for anchor in [link[1:] for link in links if link.startswith("#")]:
        assert f'id="{anchor}"' in page
    assert page.count("<h1>") == 1 and '<main id="main"' in page
    assert page.count('<svg class="chart" role="img" aria-label=') >= 8


def test_the_curators_says_at_its_top_that_it_is_not_for_publication():
    pages = both_pages(boards.charging())
    for kind in ("curator", "short"):
        title, body = pages[kind].split("</title>")[0], text_of(pages[kind].split("<body>")[1])
        assert "<title>NOT FOR PUBLICATION: Night charging" in title
        assert body.removeprefix("Skip to the content ").startswith("Curator only: not for public")
    assert "Curator" not in pages["public"] and "NOT FOR PUBLICATION" not in pages["public"]


# --- tables and charts --------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.text(",;\"'=\n a漢", max_size=6), st.floats(allow_nan=False)), max_size=5)
)
def test_csv_gives_back_what_went_in(rows):
    sheet = Table("Some Numbers, here", ("a", "b"), [], ("a", "b"), rows)
    back = list(csv.reader(io.StringIO(sheet.csv, newline="")))
    names = [f"'{name}" if name.strip().startswith("=") else name for name, _ in rows]
    assert [name for name, _ in back[1:]] == names
    assert [float(number) for _, number in back[1:]] == [number for _, number in rows]
    assert base64.b64decode(sheet.link.partition("base64,")[2]).decode() == sheet.csv
    assert sheet.file == "some-numbers-here.csv"


@pytest.mark.parametrize("name", ["=1+1", "+1+A1", "-1 °C", "@A1", " =cmd|'/C calc'!A0"])
def test_no_name_is_a_formula(name):
    board = boards.named(name, name, name)
    rows = saved(public_report.public_report(board), "goods.csv")
    assert (rows[0]["name"], rows[0]["unit"], rows[1]["name"]) == (f"'{name}", f"'{name}", "plain")
    for html_text in (public_report.public_report(board), billboard_page.public_page(board)):
        for text in re.findall(r"<pre[^>]*as CSV[^>]*>(.*?)</pre>", html_text, re.S):
            cells = [c for row in csv.reader(io.StringIO(html.unescape(text))) for c in row]
            assert name not in cells and (f"'{name}" in cells or "line" in cells)
    numbers = Table("x", (), [], ("a",), [(-0.5,), (-7,), ("-7",), ("+0.3e-5",)])
    assert numbers.csv == "a\n-0.5\n-7\n-7\n+0.3e-5\n", "and a number is a number"


def test_long_tables_are_shown_in_part():
    shown = [(str(i),) for i in range(ROWS + 7)]
    sheet = Table("x", ("a",), shown, ("a",), [(i,) for i in range(ROWS + 7)])
    assert len(sheet.rows) == ROWS and sheet.left == 7 and sheet.text == sheet.csv
    long = replace(sheet, data=[("x" * 100,)] * 1000)
    assert long.text is None and len(long.csv) > 100_000


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=40))
def test_columns_are_as_high_as_their_numbers(pairs):
    above, below = zip(*pairs, strict=True)
    svg = chart.histogram("words", above, below, ("a", "<b>", "c"))
    assert "&lt;b&gt;" in svg and 'aria-label="words"' in svg
    columns = re.findall(r'class="column (\w+)" d="M(\d+) (\d+)v(-?\d+)h(\d+)v', svg)
    expected = [(k, n) for up, down in pairs for k, n in (("up", up), ("down", down)) if n]
    assert [kind for kind, *_ in columns] == [kind for kind, _ in expected]
    scale = 400 / max(1, max(above) + max(below))
    for (kind, x, y, tall, width), (_, n) in zip(columns, expected, strict=True):
        high = int(tall) * (-1 if kind == "up" else 1)
        assert high > 0 and (high == 2 or abs(high - n * scale) <= 0.5)
        assert -2 <= int(y) + int(tall) <= 402 and 0 <= int(x) <= int(x) + int(width) <= 1000


@given(st.floats(-1e20, 1e20, allow_subnormal=False))
def test_numbers_rounded_to_the_safe_side(number):
    down, up = (
        float(t(number).replace(",", "")) for t in (number_text.short_down, number_text.short_up)
    )
    assert down <= number <= up
    assert up - down <= max(1.0 if 1e4 <= abs(number) < 1e15 else 0.0, 2e-2 * abs(number))


# --- how they are written -----------------------------------------------------------------


def test_files_and_their_modes(tmp_path):
    _, result, out = a_run(tmp_path, 15, divisible=True)
    before = (out / "public" / "index.html").read_bytes()
    old = os.umask(0)
    try:
        made = report_run(out, optimum=False)
        apart = report_run(out, optimum=False, folder=tmp_path / "apart")
    finally:
        os.umask(old)
    assert made.public == out / "public" / "report.html"
    assert made.private == out / "private" / "report.html"
    for reports in (made, apart):
        assert (mode(reports.public), mode(reports.private)) == (0o644, 0o600)
        assert mode(reports.private.parent) == 0o700
    assert apart.public.read_bytes() == made.public.read_bytes()
    assert (out / "public" / "index.html").read_bytes() == before
    assert made.public.read_text() == public_report.public_report(result.billboard)
    verify_run(out)
    made.public.write_text(made.public.read_text().replace("Night", "Day") + " ")
    with pytest.raises(OutputError, match="is not the page of this billboard") as caught:
        verify_run(out)
    assert "jdpack report" in caught.value.hint


def test_links_are_not_followed(tmp_path):
    _, _, out = a_run(tmp_path, 15, divisible=True)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for side in ("public", "private"):
        (out / side / "report.html").unlink(missing_ok=True)
        (out / side / "report.html").symlink_to(victim)
    made = report_run(out, optimum=False)
    assert victim.read_text() == "precious"
    assert not made.private.is_symlink() and mode(made.private) == 0o600
    (tmp_path / "elsewhere").mkdir()
    shutil.rmtree(out / "public")
    (out / "public").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="is a link"):
        report_run(out)
    (tmp_path / "there").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputError, match="already exists"):
        report_run(boards_file(tmp_path), folder=tmp_path / "there")


def boards_file(folder):
    path = folder / "billboard.jsonl"
    path.write_text("".join(f"{line}\n" for line in boards.charging().lines()))
    return path


def test_anybody_can_make_the_public_one_from_the_billboard(tmp_path, monkeypatch, capsys):
    path = boards_file(tmp_path)
    code, out, _ = run_cli(monkeypatch, capsys, "report", path, "-o", tmp_path / "r")
    assert code == 0 and out == f"public    {tmp_path / 'r' / 'public' / 'report.html'}\n"
    page = (tmp_path / "r" / "public" / "report.html").read_text()
    assert page == public_report.public_report(boards.charging())
    assert os.listdir(tmp_path / "r") == ["public"]
    with pytest.raises(OutputError) as caught:
        report_run(path)
    check_error(caught.value, ["not the folder of a run"], "-o")
    with pytest.raises(BillboardError, match="No such file"):
        report_run(tmp_path / "misspelled")
    for option in (["--agents", "x"], ["--optimum"], ["--ledger", "x"]):
        code, _, err = run_cli(monkeypatch, capsys, "report", path, "-o", tmp_path / "s", *option)
        assert code == 2 and "are for the curator's report" in err
    assert not (tmp_path / "s").exists()


def test_the_command(tmp_path, monkeypatch, capsys):
    _, _, out = a_run(tmp_path, 16, divisible=True)
    code, text, err = run_cli(monkeypatch, capsys, "report", out, "--no-optimum", "-q")
    assert (code, err) == (0, "")
    assert str(out / "public" / "report.html") in text and "curator only" in text
    code, text, _ = run_cli(monkeypatch, capsys, "report", out, "--json", "-o", tmp_path / "r")
    assert json.loads(text)["private"] == str(tmp_path / "r" / "private" / "report.html")
    assert "Optimum without privacy" in (tmp_path / "r" / "private" / "report.html").read_text()
    (tmp_path / "agents.parquet").rename(tmp_path / "moved.parquet")
    code, _, err = run_cli(monkeypatch, capsys, "report", out, "-o", tmp_path / "s")
    assert code == 2 and not (tmp_path / "s").exists()
    code, text, _ = run_cli(monkeypatch, capsys, "report", out, "--public", "-o", tmp_path / "s")
    assert code == 0 and os.listdir(tmp_path / "s") == ["public"]
    again = ["--agents", tmp_path / "moved.parquet", "-o", tmp_path / "t"]
    code, _, _ = run_cli(monkeypatch, capsys, "report", out, *again)
    assert code == 0 and (tmp_path / "t" / "private" / "report.html").exists()


def test_other_records_are_refused_and_nothing_is_written(tmp_path):
    records, _, out = a_run(tmp_path, 17, divisible=True)
    (value, amounts) = records.agents[3][0]
    records.agents[3] = [(value / 2.0, amounts)]
    with pytest.raises(AgentsError, match="not the records of this run"):
        report_run(out, **records.arrays(), folder=tmp_path / "r")
    assert not (tmp_path / "r").exists() and not (out / "public" / "report.html").exists()
    with pytest.raises(OutputError, match="there is no run"):
        report_run(tmp_path)
    (tmp_path / "r").mkdir()
    with pytest.raises(OutputError, match="already exists"):
        report_run(out, folder=tmp_path / "r")
    (out / "public" / "billboard.jsonl").unlink()
    with pytest.raises(JdpackError, match=r"billboard\.jsonl"):
        report_run(out)


def test_records_in_memory_are_asked_for_again(tmp_path):
    market = Market(supply=[9.0], max_demand=1.0, max_value=1.0, agents=20, divisible=True)
    records = random_records(np.random.default_rng(1), market)
    solve(market, **records.arrays(), epsilon=2.0, delta=1e-6, output=tmp_path / "out", policy=FAST)
    with pytest.raises(AgentsError) as caught:
        report_run(tmp_path / "out")
    check_error(caught.value, ["were given in memory"], "jdpack.report_run(folder, values=")


def test_the_report_of_a_run_that_is_not_finished(tmp_path, monkeypatch, capsys):
    _, result, out = a_run(tmp_path, 18, divisible=True)
    billboard = out / "public" / "billboard.jsonl"
    lines = billboard.read_text().splitlines(keepends=True)
    billboard.write_text("".join(lines[:-2]))
    (out / "private" / "report.html").unlink()
    code, text, err = run_cli(monkeypatch, capsys, "report", out)
    assert code == 1 and "the run is not finished" in err and "private" not in text
    assert "Not finished" in (out / "public" / "report.html").read_text()
    assert not (out / "private" / "report.html").exists()
    code, _, _ = run_cli(monkeypatch, capsys, "report", out, "--public")
    assert code == 0
    billboard.write_text("".join(lines))
    report_run(out, optimum=False)
    assert (out / "public" / "report.html").read_text() == public_report.public_report(
        result.billboard
    )


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    _, _, out = a_run(tmp_path, 18, divisible=True)

    def full(*_):
        raise OSError(28, "No space left on device")

    before = (out / "private" / "report.html").read_bytes()
    monkeypatch.setattr(sys.modules["jdpack.curator.reports"], "write_text", full)
    with pytest.raises(OutputError) as caught:
        report_run(out, optimum=False)
    check_error(caught.value, ["No space left"], "a report spends nothing")
    assert (out / "private" / "report.html").read_bytes() == before


# --- the closing summary ------------------------------------------------------------------


def test_the_summary_of_divisible_goods():
    rng = np.random.default_rng(3)
    market = Market(
        names=["doses", "beds, etc."], units=["ml", ""], supply=[90_000.0, 1500.0],
        max_demand=[90.0, 1.0], max_value=123.0, agents=9000, divisible=True,
    )  # fmt: skip
    demands = rng.uniform(0, 1, (9000, 2)) * [90.0, 1.0]
    result = solve(
        market, values=rng.uniform(0, 123, 9000), demands=demands, epsilon=4.0, delta=1e-6, seed=1
    )
    text = summary.as_text(result)
    public, private = text.split("curator only")
    ratio = re.search(r"at least ([\d.]+)% of the optimum \(proved directly: sharper than", public)
    assert 0 <= result.certificate.ratio_at_least - float(ratio[1]) / 100 < 1e-4
    total = re.search(r"a total of at least ([\d,]+); the optimum at most ([\d,]+)\n", public)
    low, high = (int(number.replace(",", "")) for number in total.groups())
    assert 0 <= result.certificate.welfare_at_least - low < 1
    assert 0 <= high - result.certificate.optimum_at_most < 1
    assert "e+0" not in text
    assert f"value     {result.welfare:,.0f} in total" in private
    shares = result.allocation
    assert f"agents; the mean share, over all agents, is {100 * shares.mean():.1f}%\n" in private
    for j, (name, supply) in enumerate([("doses     ", "90,000 ml"), ("beds, etc.", "1,500")]):
        final = market.unit_price(j, result.billboard.final_prices[j])
        price = number_text.price_text(market, j, final)
        assert f"  price     {name}  {price} a unit, of {supply}\n" in public
    assert summary.as_dict(result)["curator"]["mean_share"] == pytest.approx(shares.mean())


def test_the_summary_of_goods_that_are_given_whole():
    n = 300
    market = Market(supply=[50.0] * 14, max_demand=1.0, max_value=5.0, agents=n, bundle_size=1)
    demands = np.zeros((n, 14))
    demands[np.arange(n), np.arange(n) % 14] = 1.0
    result = solve(market, values=np.ones(n), demands=demands, epsilon=4.0, delta=1e-6)
    text = summary.as_text(result)
    assert "mean share" not in text and result.curator.mean_share is None
    assert text.count("  price     ") == text.count("  load      ") == 13
    assert text.count("... and 2 more in the report") == 2


def test_the_summary_names_factors_that_differ():
    market = Market(
        names=["a", "b"], supply=[500.0] * 2, max_demand=2.0, max_value=10.0, agents=1000,
        divisible=True,
    )  # fmt: skip
    for factors, says in [
        ((1.0, 0.5), ["scale     a  shares times 1", "scale     b  shares times 0.5000"]),
        ((0.5, 0.5), ["scale     shares times 0.5000"]),
    ]:
        rows = [{"factor": factor} for factor in factors]
        lines = summary._scale(market, {"resources": rows, "factor": min(factors)})
        assert [line.strip() for line in lines][: len(says)] == says
        assert ("the smallest factor of what an option asks for counts" in lines[-1]) == (
            len(says) == 2
        )


# --- a supply that may rarely be exceeded -------------------------------------------------


def rarely(divisible, probability):
    """A run in a market that allows an excess, or not."""
    rng, n = np.random.default_rng(5), 2000
    market = Market(
        supply=[500.0, 200.0], max_demand=1.0, max_value=1.0, agents=n, divisible=divisible,
        excess_probability=probability,
    )  # fmt: skip
    return solve(
        market, values=rng.random(n), demands=rng.random((n, 2)), epsilon=4.0, delta=1e-6, seed=1
    )


@pytest.mark.parametrize("divisible", [True, False])
def test_an_excess_that_is_allowed_is_said_wherever_supply_is(divisible):
    result = rarely(divisible, 0.002)
    board, most = result.billboard, max(result.certificate.load_surely) - 1.0
    assert 0.0 < most == result.certificate.excess_at_most < 0.1
    words = str(verify(board)), summary.as_text(result)
    for text in words:
        found = re.search(
            r"not exceeded, with probability 1 - 0.002; not by more than ([\d.]+)%, with "
            r"probability 1 - 1e-09",
            text,
        )
        assert most <= float(found[1]) / 100 < most + 0.001, "rounded up"
        assert "nothing is repaired" in text and "never exceeded" not in text
    page = text_of(billboard_page.public_page(board))
    report = text_of(public_report.public_report(board))
    for text in (page, report):
        assert "The chance that a supply is exceeded is 1 in 500 at most." in text
        found = re.search(
            r"The chance that a supply is exceeded by more than ([\d.]+)% is 1 in 1 billion at "
            r"most\.",
            text,
        )
        assert most <= float(found[1]) / 100 < most + 0.001
        assert "nobody is dropped" in text
        assert "No supply is ever exceeded" not in text and "anybody is dropped" not in text
        assert "who is dropped" not in text
    assert "all is for the noise" in report
    rows = saved(public_report.public_report(board), "bounds-on-loads.csv")
    assert [float(row["load_surely"]) for row in rows] == list(result.certificate.load_surely)


@pytest.mark.parametrize("divisible", [True, False])
def test_where_nothing_may_be_exceeded_all_say_so(divisible):
    result = rarely(divisible, 0.0)
    board = result.billboard
    assert result.certificate.excess_at_most is None
    assert "never exceeded; certified with probability 1 - 4e-07" in summary.as_text(result)
    assert "EXCEEDED" not in str(verify(board))
    for text in (billboard_page.public_page(board), public_report.public_report(board)):
        assert "No supply is ever exceeded." in text_of(text)
        assert "who is dropped" in text_of(text) and "load_surely" not in text


def test_an_excess_that_is_ruled_out_almost_surely_is_said_to_be():
    board = rarely(True, 0.1).billboard
    fine = replace(board.certificate, load_surely=(0.9, 1.0))
    board.certificate = fine
    assert fine.excess_at_most == 0.0
    words = text_of(billboard_page.public_page(board))
    assert "In fact, the chance is 1 in 1 billion at most." in words
