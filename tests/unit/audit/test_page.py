"""The page of an audit draws what was found, whatever it is."""

import html
import json
import math
import re
import stat
from dataclasses import replace
from functools import partial

import pytest
from scipy.stats import binomtest

from helpers import marks_of, places_of, run_cli
from jdpack.audit import audit, auditor
from jdpack.audit.epsilon_bounds import lower_bound
from jdpack.audit.findings import ALARM, Audit, Finding, judged
from jdpack.audit.page import audit_page
from unit.curator.test_reports import HARM, saved
from unit.pages.test_billboard_page import text_of

AGAINST = "coalition against "


def bound_of(right, trials=200):
    """The bound from an attack that is right in this many of a hundred trials."""
    second = [float(i % (trials // 2) < right) for i in range(trials)]
    return lower_bound([1.0 - score for score in second], second, 1e-6)


def an_audit(**more):
    findings = [
        Finding("replay: steps (memory)", "as claimed", "it holds"),
        Finding("sensitivity: demand (memory)", "as claimed", "no neighbour", tested=False),
        Finding("coalition: epsilon (greedy)", "at most 1", "at least 3", True),
        Finding("coalition: success (greedy)", "as claimed", "seen", True, 0.5),
        Finding("noise: variance of demand", "the posted one", "1.0 times", True, 1e-3),
        Finding("noise: variance of luck", "the posted one", "0.2 times", True, 1e-10),
        Finding("noise: mean of demand", "0", "+0.3", True, 0.0),
        Finding("noise: low bits at scales from 2^18", "fair", "fair", True, 1.0),
    ]
    whole = {
        "findings": judged(findings),
        "lower_bounds": {f"{AGAINST}greedy": bound_of(100), f"{AGAINST}newton": bound_of(55)},
        "epsilon": 1.0,
        "delta": 1e-6,
        "policy": "newton",
        "engines": ("memory",),
        "right_at_most": {f"{AGAINST}greedy": 0.543, f"{AGAINST}newton": 0.731},
    }
    return Audit(**whole | more)


def charts_of(page):
    return re.findall(r'<svg class="chart".*?</svg>', page, re.DOTALL)


def spot(value, low, high):
    return pytest.approx(8 + 344 * (min(max(value, low), high) - low) / (high - low), abs=0.06)


# --- plots --------------------------------------------------------------------------------


def test_the_bounds_on_epsilon_against_the_claim():
    found = an_audit()
    all_right, half_right = found.lower_bounds.values()
    svg = charts_of(audit_page(found))[0]
    high = 1.08 * all_right.at_best
    expected = [
        ("price", spot(all_right.epsilon, 0.0, high)),
        ("load", spot(all_right.at_best, 0.0, high)),
        ("price", spot(half_right.epsilon, 0.0, high)),
        ("load", spot(half_right.at_best, 0.0, high)),
    ]
    assert all_right.epsilon == all_right.at_best > 2.0 and half_right.epsilon == 0.0
    assert [(kind, x) for kind, x, _ in marks_of(svg)] == expected
    assert places_of(svg, "mark") == [spot(1.0, 0.0, high)] * 2  # what is claimed
    failed = [
        replace(one, passed=False) if one.check == "coalition: epsilon (greedy)" else one
        for one in found.findings
    ]
    svg = charts_of(audit_page(replace(found, findings=failed)))[0]
    assert [kind for kind, *_ in marks_of(svg)] == ["bad", "load", "price", "load"]


def test_how_often_attacks_are_right_with_the_interval_and_what_theory_allows():
    found = an_audit()
    page = audit_page(found)
    svg = charts_of(page)[1]
    expected = [("price", 1.0), ("load", 0.543), ("price", 0.55), ("load", 0.731)]
    assert [(kind, x) for kind, x, _ in marks_of(svg)] == [
        (kind, spot(x, 0.0, 1.0)) for kind, x in expected
    ]
    reaches = re.findall(r'class="line price" d="M([\d.]+) [\d.]+H([\d.]+)"', svg)
    for reach, right, row in zip(reaches, (200, 110), saved(page, "attacks.csv"), strict=True):
        exact = binomtest(right, 200).proportion_ci(0.95, method="exact")
        assert [float(x) for x in reach] == [spot(x, 0.0, 1.0) for x in exact]
        assert float(row["right_low"]) == pytest.approx(exact.low)
        assert float(row["right_high"]) == pytest.approx(exact.high)
        assert float(row["right"]) == right / 200 and int(row["trials"]) == 200
    assert places_of(svg, "mark") == [spot(0.5, 0.0, 1.0)] * 2


def test_p_values_by_kind_and_where_they_are_flagged():
    found = an_audit()
    svg = charts_of(audit_page(found))[2]
    kinds = re.findall(r'class="name"[^>]*>([^<]*)<', svg)
    expected = ["coalition: success", "noise: variance", "noise: mean", "noise: low bits"]
    assert kinds == expected
    powers = [
        ("price", math.log10(0.5)), ("price", -3.0), ("bad", -10.0), ("bad", -12.0), ("price", 0.0),
    ]  # fmt: skip
    assert [(kind, x) for kind, x, _ in marks_of(svg)] == [
        (kind, spot(x, -12.0, 0.0)) for kind, x in powers
    ]
    line = math.log10(ALARM / 2 / 5)
    assert places_of(svg, "mark") == [spot(line, -12.0, 0.0)] * 4
    idle = [replace(one, tested=False) for one in found.findings]
    marks = marks_of(charts_of(audit_page(replace(found, findings=idle)))[2])
    assert [kind for kind, *_ in marks] == ["load", "load", "bad", "bad", "load"]


# --- words and tables ---------------------------------------------------------------------


def test_every_check_is_shown_and_failures_come_first():
    found = an_audit()
    page = audit_page(found)
    assert page == audit_page(found)
    rows = saved(page, "checks.csv")
    assert [row["verdict"] for row in rows] == ["FAILED"] * 2 + ["not tested"] + ["ok"] * 5
    by_name = {one.check: one for one in found.findings}
    for row in rows:
        one = by_name[row["check"]]
        assert (row["claimed"], row["seen"]) == (one.claimed, one.seen)
        assert row["p_value"] == ("" if one.p_value is None else repr(one.p_value))
    words = text_of(page)
    assert "2 of 8 checks failed" in words and "No check failed" not in words
    assert "Of 8 checks 5 passed and 2 failed; 1 could not have failed" in words
    assert "A pass is no proof" in words
    good = text_of(audit_page(an_audit(findings=found.findings[:1])))
    assert "No check failed at epsilon 1" in good and "A pass is no proof" in good


def test_it_is_for_the_curator_alone():
    page = audit_page(an_audit())
    assert "<title>NOT FOR PUBLICATION: audit of newton</title>" in page
    words = text_of(page.split("<body>")[1])
    assert words.removeprefix("Skip to the content ").startswith("Curator only: not for public")
    policy = html.unescape(re.search(r'Security-Policy" content="([^"]*)"', page)[1])
    assert "<script" not in page and "script-src" not in policy and "connect-src 'none'" in policy


@pytest.mark.parametrize("harm", HARM)
def test_malicious_records_are_only_quoted(harm):
    bounds = {AGAINST + harm: bound_of(60)}
    findings = [Finding(harm, harm, harm, False, 0.3), Finding(harm, harm, harm, tested=False)]
    page = audit_page(an_audit(findings=findings, lower_bounds=bounds, policy=harm))
    assert "<script" not in page and "<b>" not in page
    assert "{{" not in page.replace(html.escape("{{ 7 * 7 }}"), "")
    assert saved(page, "checks.csv")[0]["seen"] == harm


def test_an_audit_with_nothing_in_it_has_a_page():
    page = audit_page(Audit([]))
    assert charts_of(page) == [] and saved(page, "checks.csv") == []
    odd = an_audit(epsilon=math.inf, right_at_most={}, findings=[])
    bounds, right = charts_of(audit_page(odd))
    assert places_of(bounds, "mark") == [] and len(marks_of(right)) == 2


# --- the folder ---------------------------------------------------------------------------

SMALL = [
    "audit", "--trials", "4", "--neighbours", "2", "--engine", "memory",
    "--policy", "mwu-fixed:rounds=5", "--quiet",
]  # fmt: skip


def test_the_command_fills_a_folder_for_the_curator_alone(tmp_path, monkeypatch, capsys):
    """Without the forced paths, which take long; a block of the docs runs the whole command."""
    monkeypatch.setattr("jdpack.audit.audit", partial(audit, paths=False))
    out = tmp_path / "out"
    code, text, err = run_cli(monkeypatch, capsys, *SMALL, "-o", out)
    assert (code, err) == (0, "")
    files = sorted(out.iterdir())
    assert [file.name for file in files] == ["audit.json", "audit.txt", "report.html"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert files[1].read_text(encoding="utf-8") + "next: jdpack plan MARKET\n" == text
    data = json.loads(files[0].read_text(encoding="utf-8"))
    assert data["right_at_most"].keys() == data["lower_bounds"].keys() and data["lower_bounds"]
    assert all(0.5 < most < 0.55 for most in data["right_at_most"].values())  # Gaussian, epsilon 1
    page = files[2].read_text(encoding="utf-8")
    assert len(saved(page, "checks.csv")) == len(data["findings"])
    assert len(charts_of(page)) == 3


def test_an_existing_folder_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jdpack.audit.audit", None)
    code, text, err = run_cli(monkeypatch, capsys, *SMALL, "-o", tmp_path)
    assert (code, text) == (2, "") and "already exists" in err


def test_the_default_number_of_trials(monkeypatch, capsys):
    """The same as in Python. The help repeats it, because it must not load an audit."""
    calls = []
    monkeypatch.setattr("jdpack.audit.audit", lambda *_, **given: calls.append(given) or an_audit())
    run_cli(monkeypatch, capsys, "audit")
    run_cli(monkeypatch, capsys, *SMALL)
    assert [{"trials", "neighbours"} & set(given) for given in calls] == [
        set(), {"trials", "neighbours"},
    ]  # fmt: skip
    _, text, _ = run_cli(monkeypatch, capsys, "audit", "--help")
    words = " ".join(re.sub(r"[│\n]", " ", text).split())
    assert f"plays each world; {auditor.TRIALS} if not given." in words
    assert f"one agent to replay; {auditor.NEIGHBOURS} if not given." in words


def test_what_failed_is_written_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jdpack.audit.audit", lambda *_, **__: an_audit())
    code, _, _ = run_cli(monkeypatch, capsys, *SMALL, "-o", tmp_path / "out")
    assert code == 1
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page == audit_page(an_audit())
