"""Policies side by side: measured on the true numbers, against a separate linear program."""

import html
import json
import math
import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.optimize
import scipy.sparse

from helpers import LONG, check_error, marks_of, places_of, random_records, run_cli
from jdpack import (
    AgentsError,
    BudgetError,
    Comparison,
    Market,
    MarketError,
    MwuAdaptive,
    Newton,
    OutputError,
    compare,
    solve,
)
from jdpack.curator import compare as compare_module
from jdpack.curator import truth
from jdpack.curator.comparison import NOTICE, UNTOUCHED, Best, Interval, MeasuredRun, Row
from jdpack.curator.comparison_page import comparison_page
from jdpack.door import SystemRandomness
from jdpack.policies.registry import KINDS
from jdpack.policies.spec import label_of, parse, policies_of
from unit.curator.test_reports import HARM, saved
from unit.pages.test_billboard_page import text_of

FAST = MwuAdaptive(0.5)
BUDGET = {"epsilon": 5.0, "delta": 1e-6}


def best_of(values, demands, supply, owners) -> float:
    """The optimum as one linear program with every constraint written out."""
    each = scipy.sparse.csr_matrix((np.ones(len(owners)), (owners, np.arange(len(owners)))))
    found = scipy.optimize.linprog(
        -np.asarray(values),
        A_ub=scipy.sparse.vstack([scipy.sparse.csr_matrix(demands).T, each]).tocsr(),
        b_ub=np.concatenate([supply, np.ones(each.shape[0])]),
        bounds=(0.0, 1.0),
        method="highs",
    )
    assert found.status == 0
    return float(-found.fun)


@dataclass
class Case:
    market: Market
    given: dict
    """How the records are given."""
    values: np.ndarray
    demands: np.ndarray
    owners: np.ndarray


def dense_case(*, divisible=True, name="market") -> Case:
    rng = np.random.default_rng(3)
    values, demands = rng.uniform(0, 8, 300), rng.uniform(0, 2, (300, 2))
    market = Market(
        supply=[90.0, 120.0], max_demand=2.0, max_value=8.0, agents=300, divisible=divisible,
        name=name,
    )  # fmt: skip
    return Case(market, {"values": values, "demands": demands}, values, demands, np.arange(300))


def sparse_case() -> Case:
    """SciPy sparse rows, with several options per agent."""
    rng = np.random.default_rng(4)
    market = Market(
        supply=rng.uniform(20, 30, 11).tolist(), max_demand=1.0, max_value=5.0, agents=200,
        bundle_size=2, options=3, divisible=True,
    )  # fmt: skip
    records = random_records(rng, market)
    arrays = records.arrays()
    owners = np.unique(arrays["ids"], return_inverse=True)[1]
    given = {**arrays, "demands": scipy.sparse.csr_matrix(arrays["demands"])}
    return Case(market, given, arrays["values"], arrays["demands"], owners)


def long_case() -> Case:
    """A table with one row per pair, and indivisible goods."""
    rng = np.random.default_rng(5)
    market = Market(
        supply=[40.0, 50.0, 60.0], max_demand=1.0, max_value=5.0, agents=200, options=2,
        columns=LONG,
    )  # fmt: skip
    records = random_records(rng, market, ids=[f"a{i}" for i in range(200)])
    columns = {key: [] for key in ("id", "value", "resource", "amount", "option")}
    for agent, option, value, amounts in records.rows:
        pairs = [(str(r.column), a) for r, a in zip(market.resources, amounts, strict=True) if a]
        for name, amount in pairs or [(None, None)]:
            for key, cell in zip(columns, (agent, value, name, amount, str(option)), strict=True):
                columns[key].append(cell)
    arrays = records.arrays()
    owners = np.unique(arrays["ids"], return_inverse=True)[1]
    return Case(market, {"agents": pa.table(columns)}, arrays["values"], arrays["demands"], owners)


CASES = {
    "dense": dense_case,
    "indivisible": lambda: dense_case(divisible=False),
    "sparse options": sparse_case,
    "long table": long_case,
}


# --- what is measured ---------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_run_is_the_run_of_solve_measured_on_the_true_numbers(case):
    case = case()
    supply = np.array([r.supply for r in case.market.resources])
    best = best_of(case.values, case.demands, supply, case.owners)
    found = compare(case.market, **case.given, policies=[Newton(), FAST], seeds=2, **BUDGET)
    assert found.optimum.value == pytest.approx(best, rel=1e-7)
    assert found.optimum.value <= found.optimum.bound * (1 + 1e-12)
    assert found.optimum.bound == pytest.approx(best, rel=1e-7)
    assert [row.label for row in found.rows] == [
        "newton, no privacy", "newton", "mwu-adaptive:alpha=0.5",
    ]  # fmt: skip
    for row, policy in zip(found.rows, [Newton(), Newton(), FAST], strict=True):
        assert row.policy == policy.to_dict() and row.refused is None
        assert [run.seed for run in row.runs] == [0, 1]
        for run in row.runs:
            budget = {"epsilon": row.epsilon, "delta": BUDGET["delta"]}
            result = solve(case.market, **case.given, policy=policy, seed=run.seed, **budget)
            given = result.allocation.astype(float)
            assert run.welfare == pytest.approx(case.values @ given, rel=1e-12)
            assert run.share == pytest.approx(case.values @ given / best, rel=1e-7)
            assert run.load == pytest.approx((case.demands.T @ given / supply).max(), rel=1e-12)
            assert run.certified == result.certificate.ratio_at_least
            queries = [release.step.query for release in result.billboard.releases]
            assert (run.rounds, run.releases) == (queries.count("demand"), len(queries))
            assert run.fits and run.dropped == 0 and run.seconds > 0
    assert found.rows[0].epsilon == math.inf and found.rows[1].epsilon == 5.0


def test_without_noise_newton_comes_close_and_no_reference_is_added():
    case = dense_case()
    found = compare(
        case.market, **case.given, policies=["newton"], seeds=1, epsilon=math.inf, delta=1e-6
    )
    assert [row.label for row in found.rows] == ["newton"]
    assert found.rows[0].share.mean > 0.985
    assert found.rows[0].valid == len(found.rows[0].promises) == 1
    assert found.to_dict()["epsilon"] is None
    assert "no privacy" in str(found)


def test_records_beyond_the_bounds_are_clamped_for_the_optimum_too():
    case = dense_case()
    wild = {"values": case.values.copy(), "demands": case.demands.copy()}
    wild["values"][:40] *= 50.0
    wild["demands"][40:80] *= 3.0
    tame = {
        "values": np.minimum(wild["values"], 8.0),
        "demands": np.minimum(wild["demands"], 2.0),
    }
    with pytest.raises(AgentsError, match="above the public bound"):
        compare(case.market, **wild, policies=[FAST], seeds=1, **BUDGET)
    found = compare(case.market, **wild, policies=[FAST], seeds=1, clamp=True, **BUDGET)
    plain = compare(case.market, **tame, policies=[FAST], seeds=1, **BUDGET)
    assert found.clamped > 0 == plain.clamped
    assert found.optimum.value == plain.optimum.value
    for row, other in zip(found.rows, plain.rows, strict=True):
        assert replace(row.runs[0], seconds=0) == replace(other.runs[0], seconds=0)
    assert "clamped" in str(found) and "clamped" not in str(plain)


def test_sparse_records_are_clamped_too():
    case = sparse_case()
    wild = case.given | {"demands": case.given["demands"] * 1.5}
    tame = case.given | {"demands": (case.given["demands"] * 1.5).minimum(1.0)}
    found = compare(case.market, **wild, policies=[FAST], seeds=1, clamp=True, **BUDGET)
    plain = compare(case.market, **tame, policies=[FAST], seeds=1, **BUDGET)
    assert found.clamped > 0
    assert found.optimum.value == plain.optimum.value
    assert found.rows[1].runs[0].load == plain.rows[1].runs[0].load


def generous(*arguments, real=compare_module.experiment):
    result = real(*arguments)
    result.shares[:] = 2**24
    return result


def test_supply_that_does_not_hold_is_seen(monkeypatch):
    """Negative control: everybody gets everything."""
    monkeypatch.setattr(compare_module, "experiment", generous)
    case = dense_case()
    found = compare(case.market, **case.given, policies=[FAST], seeds=1, **BUDGET)
    row = found.rows[1]
    assert row.fits is False and row.runs[0].load > 1.0 and row.runs[0].share > 1.0
    assert "EXCEEDED" in str(found)


def test_two_whole_options_of_one_agent_are_seen(monkeypatch):
    """Negative control: there is plenty of supply, but an agent may get only one option."""
    market = Market(
        supply=[1000.0], max_demand=1.0, max_value=1.0, agents=2, options=2, divisible=True
    )
    given = {"values": np.ones(4), "demands": np.ones((4, 1)), "ids": [1, 1, 2, 2]}
    fine = compare(market, **given, policies=[FAST], seeds=1, **BUDGET)
    monkeypatch.setattr(compare_module, "experiment", generous)
    found = compare(market, **given, policies=[FAST], seeds=1, **BUDGET)
    assert fine.rows[1].fits is True and found.rows[1].fits is False
    assert found.rows[1].runs[0].load < 1.0


def test_records_are_read_and_encoded_once(monkeypatch):
    case, calls = dense_case(), []
    real = truth.encode

    def counted(*arguments, **more):
        calls.append(arguments)
        return real(*arguments, **more)

    monkeypatch.setattr(truth, "encode", counted)
    compare(case.market, **case.given, policies=[FAST, MwuAdaptive(0.4)], seeds=2, **BUDGET)
    assert len(calls) == 1


def test_nothing_of_value_gives_whole_shares():
    market = Market(supply=[10.0], max_demand=1.0, max_value=1.0, agents=30, divisible=True)
    found = compare(
        market, values=np.zeros(30), demands=np.ones((30, 1)), policies=[FAST], seeds=1, **BUDGET
    )
    assert found.optimum.value == 0.0 and found.rows[1].share.mean == 1.0
    assert "100.00%" in str(found)


# --- means and intervals ------------------------------------------------------------------


def test_intervals_are_those_of_students_t():
    found = Interval.of([1.0, 2.0, 3.0, 4.0, 5.0])
    # Tables of Student's t: 2.776 for 4 degrees of freedom and 95%.
    reach = 2.7764451 * math.sqrt(2.5) / math.sqrt(5.0)
    assert found.mean == 3.0
    assert found.low == pytest.approx(3.0 - reach, rel=1e-7)
    assert found.high == pytest.approx(3.0 + reach, rel=1e-7)
    assert Interval.of([0.25]) == Interval(0.25, None, None)
    assert Interval.of([0.25, 0.25]) == Interval(0.25, 0.25, 0.25)


def run_of(seed=0, **more) -> MeasuredRun:
    numbers = {
        "welfare": 9.0, "share": 0.9, "certified": 0.8, "load": 0.95, "fits": True, "dropped": 0,
        "rounds": 88, "releases": 93, "seconds": 1.0,
    }  # fmt: skip
    return MeasuredRun(seed, **(numbers | more))


def test_a_row_counts_what_certificates_promise_and_whether_it_is_true():
    runs = (
        run_of(0),
        run_of(1, certified=0.95, seconds=100.0),
        run_of(2, certified=None, seconds=2.0),
        run_of(3, share=0.8, dropped=3, rounds=89),
    )
    row = Row("newton", {"name": "newton"}, 1.0, runs)
    assert [run.valid for run in runs] == [True, False, None, True]
    assert len(row.promises) == 3 and row.valid == 2
    assert row.certified.mean == pytest.approx(0.85) and row.share.mean == pytest.approx(0.875)
    assert row.dropped == 3 and row.rounds == 88.25 and row.seconds == 1.5 and row.fits is True
    assert replace(row, runs=(*runs, run_of(4, fits=False))).fits is False
    nothing = Row("newton", {"name": "newton"}, 1.0, (run_of(0, certified=None),))
    assert nothing.certified is None and nothing.promises == () and nothing.valid == 0


def test_the_table_says_what_the_rows_say():
    runs = (run_of(0, certified=0.99996, share=0.99999), run_of(1, certified=None, rounds=89))
    rows = (
        Row("newton", {}, 1.0, runs, notes=("supply is small",)),
        Row("one", {}, 1.0, runs[:1]),
        Row("none", {}, 1.0, refused="it takes too long"),
    )
    case = dense_case(name="Ward")
    best = Best(1234.5, 1234.75, 2.0)
    text = str(Comparison(case.market, 300, 7, 1.0, 1e-6, 2, best, rows))
    lines = [" ".join(line.split()) for line in text.split("\n")]
    assert "Ward: 2 divisible resources, 300 agents" in lines
    assert "noise as for (1, 1e-06)-joint differential privacy; 2 seeded runs of each" in lines
    assert "optimum: 1,234.5; the dual bound is above it by 0.2" in lines
    assert "optimum 100% 2" in lines
    # A promise of 99.996% is not one of 100%. Student's t of one degree of freedom, 12.706,
    # times half the difference of the two.
    assert "newton 95.00% (31.47 to 158.52) 99.99% 1 of 1 held 0 88.5 93 1" in lines
    assert "one 100.00% 99.99% 1 of 1 held 0 88 93 1" in lines
    assert "newton: supply is small" in lines and "none: no run: it takes too long" in lines
    assert any(line.startswith("7 numbers beyond the public bounds") for line in lines)


# --- policies as texts --------------------------------------------------------------------


@dataclass(frozen=True)
class Odd:
    """A policy with parameters of all types; it refuses everything."""

    count: int | None = None
    ratio: float = 0.5
    brave: bool = False
    tune: str = "low"
    list: tuple[float, ...] | None = None

    name: ClassVar[str] = "odd"
    truncated: ClassVar[bool] = False

    def to_dict(self):
        return {"name": self.name, "count": self.count}

    def start(self, market, budget):
        raise MarketError(f"odd would take {len(market.resources)}e+09 rounds", "take another")


@pytest.fixture
def odd(monkeypatch):
    monkeypatch.setitem(KINDS, "odd", Odd)
    return Odd


def test_texts_are_read_by_the_types_of_the_fields(odd):
    assert parse("newton") == Newton()
    assert parse("mwu-adaptive:alpha=0.05") == MwuAdaptive(0.05)
    assert parse(" mwu-adaptive : alpha = 0.05 , noise = truncated-laplace ") == MwuAdaptive(
        0.05, "truncated-laplace"
    )
    assert parse("odd:count=3,ratio=2,brave=TRUE,tune=7") == Odd(3, 2.0, True, "7")
    assert type(parse("odd:ratio=2").ratio) is float and type(parse("odd:count=3").count) is int
    assert parse("odd:count=none") == Odd()


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("newto", "'newto' is not known", "one of: newton, mwu-adaptive"),
        ("", "'' is not known", "one of: newton"),
        ("newton:start_prices=1", "no parameter 'start_prices'", "newton takes no parameters"),
        ("odd:list=1", "no parameter 'list'", "keys of odd are: count, ratio, brave, tune"),
        ("mwu-adaptive:alfa=1", "no parameter 'alfa'", "keys of mwu-adaptive are: alpha, noise"),
        (
            "mwu-adaptive:truncated=1",
            "no parameter 'truncated'",
            "keys of mwu-adaptive are: alpha, noise",
        ),
        ("mwu-adaptive:alpha", "at 'alpha'", "write mwu-adaptive:key=value"),
        ("mwu-adaptive:alpha=", "at 'alpha='", "write mwu-adaptive:key=value"),
        ("mwu-adaptive:", "at ''", "write mwu-adaptive:key=value"),
        ("mwu-adaptive:alpha=0.1,", "at ''", "write mwu-adaptive:key=value"),
        ("mwu-adaptive:alpha=0.1,alpha=0.2", "gives 'alpha' twice", "write mwu-adaptive:key=value"),
        ("mwu-adaptive:name=newton", "no parameter 'name'", "are: alpha, noise"),
        ("mwu-fixed:alpha=0.1,rounds=9", "twice, by alpha and by rounds", "one of them"),
        ("mwu-adaptive:alpha=much", "alpha must be a number, not 'much'", "are: alpha, noise"),
        ("mwu-adaptive:alpha=7", "alpha must be from 0.001 to 0.5, not 7.0", ""),
        ("odd:count=1.5", "count must be a whole number, not '1.5'", ""),
        ("odd:brave=perhaps", "brave must be true or false, not 'perhaps'", ""),
        ("odd:ratio=none", "ratio must be a number, not 'none'", ""),
    ],
)
def test_bad_texts_are_refused_in_a_sentence(odd, text, says, hint):
    with pytest.raises(MarketError) as caught:
        parse(text)
    check_error(caught.value, [says], hint)


def test_labels_are_texts_again(odd):
    for policy in [Newton(), MwuAdaptive(), MwuAdaptive(0.05), Odd(3, 2.0, True, "x")]:
        assert parse(label_of(policy)) == policy
    assert label_of(MwuAdaptive(0.05)) == "mwu-adaptive:alpha=0.05"
    assert label_of(Odd(brave=True)) == "odd:brave=true"
    assert len(label_of(Newton(tuple(float(i) for i in range(100))))) < 60


def test_the_default_set_is_the_registry():
    assert policies_of(None) == [kind() for kind in KINDS.values()]
    assert Newton() in policies_of(None) and len(policies_of(None)) >= 2


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        (["newton", Newton()], "'newton' is listed twice"),
        ([], "no policies"),
        ("newton", "must be a list"),
        ([3], "policy 3 is not one of jdpack's"),
    ],
)
def test_bad_lists_of_policies_are_refused(policies, says):
    with pytest.raises(MarketError, match=says):
        compare(dense_case().market, values=[1.0], demands=[[1.0]], policies=policies)


# --- refusals -----------------------------------------------------------------------------


def test_a_policy_that_refuses_has_a_row_that_says_so_and_the_rest_go_on(odd):
    case = dense_case()
    found = compare(case.market, **case.given, policies=["odd", FAST], seeds=1, **BUDGET)
    row = found.row("odd")
    assert row.refused == "odd would take 2e+09 rounds" and row.runs == ()
    assert (row.share, row.certified, row.fits, row.rounds, row.seconds) == (None,) * 5
    assert len(found.row("mwu-adaptive:alpha=0.5").runs) == 1
    assert "odd: no run: odd would take 2e+09 rounds" in str(found)
    assert "odd no run" in comparison_page(found)
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_policy_that_fails_on_its_way_has_a_row_too(monkeypatch):
    real = compare_module.experiment

    def failing(agents, policy, *more):
        if policy == FAST:
            raise BudgetError("the noise is too large to draw")
        return real(agents, policy, *more)

    monkeypatch.setattr(compare_module, "experiment", failing)
    case = dense_case()
    found = compare(case.market, **case.given, policies=[FAST, "newton"], seeds=1, **BUDGET)
    assert found.rows[1].refused == "the noise is too large to draw"
    assert len(found.rows[2].runs) == 1


def test_what_solve_refuses_has_a_row_that_says_so():
    """Agents who add their own noise; batches of numbered agents who may come and go."""
    case = dense_case()
    found = compare(
        case.market, **case.given, policies=["mwu-online:local=true", FAST], seeds=1, **BUDGET
    )
    assert "agents add the noise themselves" in found.rows[1].refused
    market = Market(
        supply=[90.0, 120.0], max_demand=2.0, max_value=8.0, agents=400, divisible=True,
        neighbours="add-remove",
    )  # fmt: skip
    policies = ["mwu-online:batch=100", FAST]
    found = compare(market, **case.given, policies=policies, seeds=1, **BUDGET)
    assert "need ids" in found.rows[1].refused and len(found.rows[2].runs) == 1
    ids = list(range(300))
    found = compare(market, **case.given, ids=ids, policies=policies, seeds=1, **BUDGET)
    assert len(found.rows[1].runs) == 1 and found.agents == 300


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"policies": ["odd"]}, MarketError, "odd would take"),
        ({"epsilon": None}, BudgetError, "no epsilon is given"),
        ({"epsilon": -1.0}, BudgetError, "epsilon must be"),
        ({"delta": 2.0}, BudgetError, "delta must be"),
        ({"seeds": 0}, MarketError, "seeds must be a whole number of at least 1"),
        ({"seeds": 2.5}, MarketError, "seeds must be a whole number of at least 1"),
        ({"threads": 0}, MarketError, "threads must be"),
        ({"clamp": "yes"}, MarketError, "clamp must be"),
        ({"patience": 0}, MarketError, "patience must be"),
        ({"patience": math.nan}, MarketError, "patience must be"),
        ({"values": None}, AgentsError, "go together"),
    ],
)
def test_what_is_wrong_for_all_is_refused_before_any_record_is_read(
    odd, monkeypatch, arguments, error, says
):
    def reading(*_, **__):
        raise AssertionError("records were read")

    monkeypatch.setattr(truth, "encode", reading)
    case = dense_case()
    with pytest.raises(error, match=says):
        compare(case.market, **(case.given | BUDGET | {"policies": [FAST]} | arguments))


def test_patience_ends(monkeypatch):
    case = dense_case()
    found = compare(case.market, **case.given, policies=[FAST], seeds=2, patience=1e-9, **BUDGET)
    row = found.rows[1]
    assert row.runs == () and "given up after" in row.refused

    now = [0.0]
    monkeypatch.setattr(compare_module.time, "perf_counter", lambda: now[0])
    real = compare_module.experiment

    def slow(*arguments):
        now[0] += 40.0
        return real(*arguments)

    monkeypatch.setattr(compare_module, "experiment", slow)
    found = compare(case.market, **case.given, policies=[FAST], seeds=3, patience=100, **BUDGET)
    row = found.rows[1]
    assert [run.seconds for run in row.runs] == [40.0, 40.0] and row.refused is None
    assert any("of run 3 of 3" in note for note in row.notes)
    assert "given up after" in str(found)


def test_that_supply_is_small_is_noted_and_not_warned(recwarn):
    case = dense_case()
    found = compare(case.market, **case.given, policies=[FAST], seeds=1, epsilon=0.01, delta=1e-6)
    assert any("supply" in note for note in found.rows[1].notes)
    assert not found.rows[0].notes and not recwarn.list


def test_progress_rises_to_one_and_names_the_runs():
    case, seen = dense_case(), []
    compare(case.market, **case.given, policies=[FAST], seeds=2, progress=seen.append, **BUDGET)
    assert [stage.label for stage in seen[:2]] == ["records", "optimum"]
    done = [stage.done for stage in seen]
    assert done == sorted(done) and 0.9 < done[-1] <= 1.0
    assert seen[-1].label == "mwu-adaptive:alpha=0.5, run 2 of 2"


# --- curator only -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> Comparison:
    case = dense_case(name="Ward $a_1$ & <b> 病院")
    return compare(case.market, **case.given, policies=[FAST, "newton"], seeds=3, **BUDGET)


def test_the_folder_is_for_the_curator_alone(found, tmp_path):
    old = os.umask(0)
    try:
        found.write(tmp_path / "out")
    finally:
        os.umask(old)
    files = sorted((tmp_path / "out").iterdir())
    assert [f.name for f in files] == ["comparison.json", "comparison.txt", "report.html"]
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
    for file in files[:2]:
        assert NOTICE in " ".join(file.read_text(encoding="utf-8").split())
    page = files[2].read_text(encoding="utf-8")
    assert page == comparison_page(found)
    data = json.loads((tmp_path / "out" / "comparison.json").read_text(encoding="utf-8"))
    assert data == found.to_dict()
    assert (tmp_path / "out" / "comparison.txt").read_text(encoding="utf-8") == f"{found}\n"
    assert UNTOUCHED in str(found)
    with pytest.raises(OutputError, match="already exists"):
        found.write(tmp_path / "out")


def test_the_page_says_at_its_top_that_it_is_not_for_publication(found):
    page = comparison_page(found)
    assert page == comparison_page(found)
    assert "<title>NOT FOR PUBLICATION: Ward $a_1$ &amp; &lt;b&gt; 病院" in page
    words = text_of(page.split("<body>")[1])
    assert words.removeprefix("Skip to the content ").startswith("Curator only: not for public")
    assert "publish none of this" in words and UNTOUCHED in words
    assert "<script" not in page and "script-src" not in page and "connect-src" in page
    assert "<b>" not in page
    for row in found.rows:
        assert row.label in words


def a_comparison(*shares, market=None, seconds=2.0, certified=0.8):
    """One policy per pair of shares, those of its two runs; None is a policy that refused."""
    rows = []
    for i, pair in enumerate(shares):
        runs = tuple(
            run_of(seed, share=share, seconds=seconds * 10**i, certified=certified)
            for seed, share in enumerate(pair or ())
        )
        rows.append(Row(f"p{i}", {}, 1.0, runs, None if pair else "it <would> take long"))
    best = Best(10.0, 10.0, 0.5)
    return Comparison(market or dense_case().market, 300, 0, 1.0, 1e-6, 2, best, tuple(rows))


def charts_of(page):
    return re.findall(r'<svg class="chart".*?</svg>', page, re.DOTALL)


def test_the_plot_shows_the_numbers():
    found = a_comparison((0.97, 0.96), (0.93, 0.95), None)
    shares, times = charts_of(comparison_page(found))
    low, high = 0.8, found.rows[1].share.high  # what is certified, and the widest interval
    assert high > 1.0

    def spot(x):
        return pytest.approx(8 + 344 * (min(x, high) - low) / (high - low), abs=0.06)

    expected = [(k, x) for mean in (0.965, 0.94) for k, x in (("price", mean), ("load", 0.8))]
    assert [(kind, x) for kind, x, _ in marks_of(shares)] == [(k, spot(x)) for k, x in expected]
    reaches = re.findall(r'class="line (\w+)" d="M([\d.]+) [\d.]+H([\d.]+)"', shares)
    for i in (0, 1):
        kind, left, right = reaches[2 * i]
        interval = found.rows[i].share
        assert kind == "price" and interval.low < interval.mean < interval.high
        assert [float(left), float(right)] == [spot(interval.low), spot(interval.high)]
    assert places_of(shares, "mark") == [spot(1.0)] * 3
    assert "p2 no run" in shares and ">no run<" in shares and ">96.50%<" in shares
    # Seconds on an axis of logarithms from 0.1 to 100: of the optimum 0.5, then 2 and 20.
    expected = [8 + 344 * (math.log10(s) + 1) / 3 for s in (0.5, 2.0, 20.0)]
    assert [x for _, x, _ in marks_of(times)] == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("pair", [(0.0, 0.0), (1.0, 1.0), (0.9999, 0.9998), (0.3, 0.9)])
@pytest.mark.parametrize("certified", [None, 0.0, 1.0])
def test_odd_shares_have_a_page(pair, certified):
    found = a_comparison(pair, certified=certified, seconds=0.0)
    shares, times = charts_of(comparison_page(found))
    assert len(marks_of(shares)) == (1 if certified is None else 2) and len(marks_of(times)) == 2
    assert all(8 <= x <= 352 for svg in (shares, times) for _, x, _ in marks_of(svg))
    ticks = re.findall(r">([\d.]+)%</text>", shares)
    assert "100" in ticks


def test_the_tables_of_the_page_have_all_digits(found):
    page = comparison_page(found)
    rows = saved(page, "policies.csv")
    assert rows[0]["policy"] == "optimum" and float(rows[0]["seconds"]) == found.optimum.seconds
    for line, row in zip(rows[1:], found.rows, strict=True):
        assert line["policy"] == row.label and float(line["share"]) == row.share.mean
        assert float(line["share_low"]) == row.share.low and line["fits"] == str(row.fits)
    runs = [(row.label, run) for row in found.rows for run in row.runs]
    for line, (label, run) in zip(saved(page, "runs.csv"), runs, strict=True):
        assert line["policy"] == label and float(line["share"]) == run.share
        assert int(line["seed"]) == run.seed and float(line["load"]) == run.load


@pytest.mark.parametrize("harm", HARM)
def test_names_that_mean_harm_are_only_names(harm):
    found = a_comparison((0.9, 0.8), None, market=dense_case(name=harm).market)
    found = replace(found, rows=tuple(replace(row, label=harm) for row in found.rows))
    page = comparison_page(found)
    assert "<script" not in page and "<b>" not in page and "49" not in page.split("<body>")[0]
    assert "{{" not in page.replace(html.escape("{{ 7 * 7 }}"), "")
    assert saved(page, "policies.csv")[1]["policy"] == harm


def test_one_run_has_no_interval():
    found = a_comparison((0.9,))
    page = comparison_page(replace(found, seeds=1))
    assert not re.findall(r'class="line \w+" d="M[\d.]+ [\d.]+H', charts_of(page)[0])
    assert "1 seeded run of each" in text_of(page) and "confidence interval" not in page


def test_the_libraries_of_a_comparison_are_loaded_when_it_runs():
    code = (
        "import sys, jdpack.cli; print([m for m in ('matplotlib', 'highspy', 'scipy.stats') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- the command line ---------------------------------------------------------------------


def write_case(folder: Path) -> tuple[Path, Path]:
    market = folder / "market.toml"
    market.write_text(
        'name = "Clinic"\ndivisible = true\nprivacy = {epsilon = 5.0, delta = 1e-6}\n'
        "value.max = 8.0\nagents.count = 300\n"
        'resource = [{name = "beds", supply = 90, max_demand = 2},\n'
        '            {name = "nurses", supply = 120, max_demand = 2}]\n'
    )
    case = dense_case()
    columns = {"id": np.arange(300), "value": case.values}
    columns |= {name: case.demands[:, j] for j, name in enumerate(["beds", "nurses"])}
    pyarrow.parquet.write_table(pa.table(columns), folder / "agents.parquet")
    return market, folder / "agents.parquet"


TWO = ["--policy", "newton", "--policy", "mwu-adaptive:alpha=0.5", "--seeds", "2"]


def test_the_command_prints_the_table_and_fills_the_folder(tmp_path, monkeypatch, capsys):
    def drawn(*_, **__):
        raise AssertionError("a real draw")

    monkeypatch.setattr(SystemRandomness, "draw", drawn)
    market, agents = write_case(tmp_path)
    out = tmp_path / "out"
    code, stdout, stderr = run_cli(monkeypatch, capsys, "compare", market, agents, *TWO, "-o", out)
    assert (code, stderr) == (0, "")
    assert stdout.startswith("CURATOR ONLY: ") and UNTOUCHED in stdout
    written = (out / "comparison.txt").read_text(encoding="utf-8")
    assert stdout == f"{written}next: jdpack plan {market}\n"
    case = dense_case()
    again = compare(
        Market.from_toml(market), values=case.values, demands=case.demands,
        policies=["newton", "mwu-adaptive:alpha=0.5"], seeds=2, threads=1,
    )  # fmt: skip
    data = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    assert [row["share"] for row in data["rows"]] == [
        row["share"] for row in again.to_dict()["rows"]
    ]


def test_the_command_prints_json(tmp_path, monkeypatch, capsys):
    market, agents = write_case(tmp_path)
    arguments = ["compare", market, agents, *TWO, "--epsilon", "9", "--json", "--quiet"]
    code, stdout, stderr = run_cli(monkeypatch, capsys, *arguments)
    assert (code, stderr) == (0, "")
    data = json.loads(stdout)
    assert data["notice"] == NOTICE and data["epsilon"] == 9.0
    assert [row["label"] for row in data["rows"]][1:] == ["newton", "mwu-adaptive:alpha=0.5"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["agents.parquet", "market.toml"]


def test_the_command_refuses_in_a_sentence(tmp_path, monkeypatch, capsys):
    market, agents = write_case(tmp_path)
    for arguments, says in [
        (["--policy", "newto"], "error: policy 'newto' is not known\nhint: one of: newton"),
        (["--seeds", "0"], "error: seeds must be a whole number of at least 1"),
        (["-o", tmp_path], "already exists"),
    ]:
        code, stdout, stderr = run_cli(
            monkeypatch, capsys, "compare", market, agents, "--quiet", *arguments
        )
        assert (code, stdout) == (2, "") and says in stderr


def test_ctrl_c_leaves_nothing(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare_module, "experiment", interrupted)
    market, agents = write_case(tmp_path)
    code, stdout, stderr = run_cli(
        monkeypatch, capsys, "compare", market, agents, *TWO, "-o", tmp_path / "out"
    )
    assert (code, stdout) == (130, "")
    assert stderr == "interrupted: nothing is written, and no privacy budget is touched\n"
    assert not (tmp_path / "out").exists()


# --- the page -----------------------------------------------------------------------------


def test_every_field_of_the_json_is_documented_and_no_other(found):
    page = (Path(__file__).parents[3] / "docs" / "compare.md").read_text(encoding="utf-8")
    data = found.to_dict()
    row = data["rows"][0]
    parts = {
        "The whole": data,
        "`optimum`": data["optimum"],
        "`rows`": row,
        "`runs`": row["runs"][0],
    }
    for heading, part in parts.items():
        section = page.split(f"\n### {heading}\n")[1].split("\n#")[0]
        lines = [line for line in section.split("\n") if line.startswith("| `")]
        assert [line.split("`")[1] for line in lines] == list(part), heading
