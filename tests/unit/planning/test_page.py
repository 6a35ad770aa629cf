"""The page of a plan: it draws the plan at other budgets and supplies."""

import html
import json
import math
import re
import stat

import pytest

from helpers import forbid_drawing, marks_of, run_cli
from jdpack import MwuAdaptive, OutputError, plan
from jdpack.planning import page as plan_page
from jdpack.planning.headroom import MARGIN_MOST
from jdpack.planning.plan import EXPECTED_LOSS
from unit.curator.test_reports import HARM, saved
from unit.pages.test_billboard_page import points_of, text_of
from unit.planning.test_plan import DELTA, POLICIES, a_market, scaled, town  # noqa: F401

UP = 400 / 1.05  # the height of 100%


def charts(page):
    found = re.findall(r'<svg class="chart" role="img".*?</svg>(?:<.*?)?</svg>', page, re.S)
    assert len(found) == 2
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("divisible", [True, False])
def test_the_lines_are_the_plan_at_each_budget_and_supply(policy, divisible):
    market, policy = a_market(times=3000.0, divisible=divisible), POLICIES[policy]
    planned = plan(market, epsilon=0.7, delta=DELTA, policy=policy)
    page = plan_page.plan_page(planned)
    assert page == plan_page.plan_page(planned)

    def expected(margin):
        return max(0.0, 1.0 - EXPECTED_LOSS[divisible] * margin)

    def drawn(margin):
        height = margin if planned.share_expected is None else expected(margin)
        return 400 - UP * min(height, 1.05)

    names = ["other-budgets.csv", "other-supplies.csv"]
    for svg, file in zip(charts(page), names, strict=True):
        rows = [[float(x or "nan") for x in row.values()] for row in saved(page, file)]
        known = [row for row in rows if not math.isnan(row[1])]
        low, high = math.log(rows[0][0]), math.log(rows[-1][0])
        points = points_of(svg, "line")
        for (x, y), (at, margin, share) in zip(points, known, strict=True):
            assert abs(x - 1000 * (math.log(at) - low) / (high - low)) <= 0.51
            assert abs(y - drawn(margin)) <= 0.51
            assert math.isnan(share) or share == expected(margin)
        own = 0.7 if "budgets" in file else 1.0
        assert [row[1] for row in rows if row[0] == own] == [planned.margin]
        ((_, x, y),) = marks_of(svg)
        assert (x - 46) / 308 == pytest.approx((math.log(own) - low) / (high - low), abs=2e-3)
        assert (y - 8) / 104 == pytest.approx(drawn(planned.margin) / 400, abs=4e-3)
        level = re.search(r'class="mark" d="M0 (\d+)H', svg)[1]
        assert abs(int(level) - drawn(MARGIN_MOST)) <= 0.51
        for at, margin, _ in known[:: len(known) // 4]:
            epsilon, factor = (at, 1.0) if "budgets" in file else (0.7, at)
            there = plan(scaled(market, factor), epsilon=epsilon, delta=DELTA, policy=policy)
            assert there.margin == margin
    assert rows[0][0] == 1 / 32 and rows[-1][0] == 32.0


def test_the_words_are_those_of_the_plan():
    planned = plan(a_market(times=100.0), epsilon=0.7, delta=DELTA)
    words = text_of(plan_page.plan_page(planned))
    assert "no record was read, and nothing is spent" in words and "NOT FOR PUBL" not in words
    assert "Supply is too small" in words and "Supply is large enough" not in words
    for help in planned.helps:
        assert help.text in words
    assert planned.basis in words and "0.7 (here)" in words and "1 (here)" in words
    large = plan_page.plan_page(plan(a_market(times=1e5), epsilon=0.7, delta=DELTA))
    assert "Supply is large enough" in large and "What would help" not in large
    assert "Free gains" in large and "Free gains" not in words
    assert "supply is smallest against its cap" not in words
    uneven = plan(a_market(2, supply=[900.0, 9000.0], names=["x", "y"]), epsilon=1.0, delta=DELTA)
    said = f"{100 * uneven.tightest[1]:.3g}% of x, whose supply is smallest against its cap"
    assert said in text_of(plan_page.plan_page(uneven))


def test_the_table_of_goods():
    planned = plan(a_market(3, units=["h", "", "kg"]), epsilon=1.0, delta=DELTA)
    rows = saved(plan_page.plan_page(planned), "goods.csv")
    assert [row["unit"] for row in rows] == ["h", "", "kg"]
    for row, r, enough in zip(
        rows, planned.market.resources, planned.least_supply[1].supply, strict=True
    ):
        assert float(row["supply"]) == r.supply and float(row["supply_for_5_percent"]) == enough


# --- odd plans ----------------------------------------------------------------------------


def test_without_privacy_the_page_says_so_and_has_no_budget_to_mark():
    page = plan_page.plan_page(plan(a_market(), epsilon=math.inf, delta=DELTA))
    assert "Not private: epsilon is inf" in text_of(page)
    budgets, supplies = charts(page)
    assert marks_of(budgets) == [] and len(marks_of(supplies)) == 1
    assert "(here)" in page and "inf (here)" not in page and "nan" not in page.split("</style>")[1]


def test_where_nothing_can_be_promised_and_where_no_other_supply_is_possible():
    planned = plan(a_market(times=1.0, agents=3), epsilon=1.3e-5, delta=DELTA)
    page = plan_page.plan_page(planned)
    assert "no share of it can be promised" in page
    assert {row["share_expected"] for row in saved(page, "other-budgets.csv")} == {"", "0.0"}
    assert {y for _, y in points_of(charts(page)[0], "line")} == {400}
    assert float(saved(page, "other-supplies.csv")[0]["times_the_present"]) == 1.0


def test_budgets_that_the_policy_refuses_are_left_out_of_the_line():
    policy = MwuAdaptive(noise="truncated-laplace")
    page = plan_page.plan_page(plan(a_market(times=800.0), epsilon=1.0, delta=DELTA, policy=policy))
    rows = saved(page, "other-budgets.csv")
    refused = [row for row in rows if row["margin"] == ""]
    assert refused and len(points_of(charts(page)[0], "line")) == len(rows) - len(refused)
    assert "refused" in page


@pytest.mark.parametrize("harm", HARM)
def test_names_that_mean_harm_are_only_names(harm):
    market = a_market(2, name=harm, names=[harm, "b"], units=[harm, "b"])
    page = plan_page.plan_page(plan(market, epsilon=1.0, delta=DELTA))
    assert "<script" not in page and "<b>" not in page and "49" not in page.split("<body>")[0]
    assert "{{" not in page.replace(html.escape("{{ 7 * 7 }}"), "")
    assert saved(page, "goods.csv")[0]["name"] == harm
    policy = html.unescape(re.search(r'Security-Policy" content="([^"]*)"', page)[1])
    assert "script-src" not in policy and "connect-src 'none'" in policy


# --- the folder ---------------------------------------------------------------------------


def test_the_command_fills_a_folder_that_anybody_may_read(town, tmp_path, monkeypatch, capsys):  # noqa: F811
    forbid_drawing(monkeypatch)
    out = tmp_path / "out"
    code, stdout, err = run_cli(monkeypatch, capsys, "plan", town, "--epsilon", "3", "-o", out)
    planned = plan(town, epsilon=3.0)
    assert (code, stdout, err) == (
        0,
        f"{planned}\n--details shows the rest\nnext: jdpack check {town} TABLE\n",
        "",
    )
    assert sorted(p.name for p in out.iterdir()) == ["plan.json", "report.html"]
    assert (out / "report.html").read_text(encoding="utf-8") == plan_page.plan_page(planned)
    data = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    assert data == json.loads(json.dumps(planned.to_dict()))
    assert {stat.S_IMODE(p.stat().st_mode) for p in out.iterdir()} == {0o644}
    with pytest.raises(OutputError, match="already exists"):
        planned.write(out)
    for where, says in [(out, "already exists"), (tmp_path / "no" / "out", "cannot make a folder")]:
        code, stdout, err = run_cli(monkeypatch, capsys, "plan", town, "-o", where)
        assert (code, stdout) == (2, "") and says in err
