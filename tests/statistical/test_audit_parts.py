"""The parts of an audit: bounds, people, arithmetic, and texts."""

import importlib.util
import itertools
import json
import math
import os
import random
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from opendp.mod import Measurement
from scipy import stats

from helpers import LONG, Records, check_error, decode, long_table, random_market, random_records
from jdpack import Budget, DualGd, JdpackError, Market, MwuAdaptive, MwuFixed, MwuOnline
from jdpack.audit import audit, distinguish, findings
from jdpack.audit.answers import of_allocation, of_answers
from jdpack.audit.budget_checks import (
    QUERIES,
    conversion,
    cost,
    gaussian_delta,
    of_budget,
    of_charges,
    shapes,
    worst,
)
from jdpack.audit.coalition import Coalition, attack, judge
from jdpack.audit.epsilon_bounds import (
    at_best,
    at_least,
    at_most,
    gaussian_epsilon,
    lower_bound,
    most_success,
    most_success_gaussian,
    trials_for,
)
from jdpack.audit.findings import Audit, Finding, fact, judged, statistical
from jdpack.audit.neighbours import family, moved, of_others, of_sensitivity, of_steps
from jdpack.audit.noise_checks import draws_of, law, normal_scores, of_vetted_source, size_scores
from jdpack.audit.people import (
    People,
    candidates,
    caps_of,
    everything,
    example,
    example_groups,
    example_sparse,
    example_totals,
    group_of,
    nothing,
    with_rules,
)
from jdpack.audit.recording import Setting, record, replay
from jdpack.audit.reference import bundle_width, demand_codes, reference
from jdpack.audit.scripted_policy import GREEDY, HALF, Script, known
from jdpack.market.market import Neighbours
from jdpack.market.totals import MaxTotal
from jdpack.policies.registry import KINDS
from jdpack.privacy import gdp, queries, zcdp
from jdpack.privacy.noise import Gaussian, TruncatedLaplace
from jdpack.privacy.queries import ChanceChange, Change
from jdpack.records.source import Source

SETTING = Setting(DualGd(rounds=4), 1.0, 1e-6)

# --- bounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (997, 1000)])
def test_clopper_and_pearson_hold_the_tail_exactly(hits, trials):
    low, high = at_least(hits, trials, 0.01), at_most(hits, trials, 0.01)
    if hits:
        assert stats.binom.sf(hits - 1, trials, low) == pytest.approx(0.01)
    else:
        assert low == 0.0
    if hits < trials:
        assert stats.binom.cdf(hits, trials, high) == pytest.approx(0.01)
    else:
        assert high == 1.0


def test_a_bound_is_below_the_truth_as_often_as_it_says():
    """Randomised response: epsilon is known, and every event shows it in full."""
    rng, epsilon, times = np.random.default_rng(1), 1.0, 400
    p = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    bounds = []
    for _ in range(times):
        first, second = rng.random(200) < 1.0 - p, rng.random(200) < p
        bounds.append(lower_bound(first, second, 0.0, confidence=0.9).epsilon)
    above = sum(bound > epsilon for bound in bounds)
    assert stats.binomtest(above, times, 0.1, alternative="greater").pvalue > 1e-9
    assert np.median(bounds) > 0.4 * epsilon  # and it is not just 0


def test_no_event_is_chosen_on_the_trials_that_measure_it():
    """Equal worlds at confidence 50%: the bound is above 0 in half of the cases, not in all."""
    rng, fair, peeked = np.random.default_rng(3), 0, 0
    for _ in range(60):
        first, second = rng.normal(size=80), rng.normal(size=80)
        fair += lower_bound(first, second, 0.0, 0.5).epsilon > 0.0
        # Negative control: the same trials twice, so both halves are equal.
        twice = [*first[:40], *first[:40]], [*second[:40], *second[:40]]
        peeked += lower_bound(*twice, 0.0, 0.5).epsilon > 0.0
    assert fair < 40
    assert peeked > 45


def test_both_directions_of_a_score_count():
    rng = np.random.default_rng(4)
    low, high = rng.normal(0, 1, 400), rng.normal(6, 1, 400)
    assert lower_bound(low, high, 0.0).epsilon > 3.0
    assert lower_bound(high, low, 0.0).epsilon > 3.0


def test_delta_lowers_the_bound():
    rng = np.random.default_rng(5)
    first, second = np.zeros(2000), (rng.random(2000) < 0.02).astype(float)
    assert lower_bound(first, second, 0.0).epsilon > 1.0
    assert lower_bound(first, second, 0.05).epsilon == 0.0  # all of it may be delta


@pytest.mark.parametrize("mu", [0.05, 0.2158, 1.0, 6.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 0.01])
def test_the_epsilon_of_a_gaussian(mu, delta):
    e = gaussian_epsilon(mu, delta)
    again = stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu)
    assert again == pytest.approx(delta, rel=1e-5) if e > 0 else again <= delta
    assert zcdp.delta_of(mu**2 / 2, e) >= delta * (1 - 1e-6)  # zCDP is the weaker statement


def test_the_ends_of_a_gaussian_epsilon():
    assert gaussian_epsilon(0.0, 1e-6) == 0.0
    assert gaussian_epsilon(1.0, 0.0) == math.inf
    assert gaussian_epsilon(1e-9, 0.5) == 0.0


def test_success_is_limited():
    assert most_success(0.0, 0.0) == 0.5
    assert most_success(math.inf, 0.0) == 1.0
    assert most_success(1.0, 1e-6) == pytest.approx((math.e + 1e-6) / (math.e + 1))
    assert most_success_gaussian(0.5) == pytest.approx(stats.norm.cdf(0.5))


def test_the_game_plays_both_worlds_in_turn_and_tells():
    played, told = [], []
    bound = distinguish(
        lambda: played.append(0) or 0.0,
        lambda: played.append(1) or 1.0,
        float,
        trials=40,
        progress=told.append,
    )
    assert played == [0, 1] * 40
    assert told[-1] == 1.0 and len(told) == 40
    assert bound.success == 1.0 and bound.trials == 40 and bound.measured == 40
    assert bound.epsilon == pytest.approx(math.log(0.025 ** (1 / 20) / (1 - 0.025 ** (1 / 20))))


@pytest.mark.parametrize(
    ("first", "second", "delta", "confidence"),
    [
        ([1.0], [1.0], 0.0, 0.95),
        ([0.0] * 9, [0.0] * 8, 0.0, 0.95),
        ([0.0] * 9, [0.0] * 9, 1.0, 0.9),
    ],
)
def test_a_bound_refuses_what_proves_nothing(first, second, delta, confidence):
    with pytest.raises(JdpackError):
        lower_bound(first, second, delta, confidence)


# --- people -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_people_are_read_back_to_the_same_codes(seed):
    rng = np.random.default_rng(seed)
    market = random_market(rng, agents=30, sparse=seed % 2 == 1, options=1 + seed % 3)
    records = random_records(rng, market, ids=[f"agent {i}" for i in range(30)])
    arrays = records.arrays()
    people = People.read(
        Source(market, None, arrays["values"], arrays["demands"], arrays["ids"], False)
    )
    assert list(people.ids) == records.ids
    own = reference(people)
    values, demands = own.values, own.demands
    expected = [option for agent in records.codes() for option in agent]
    assert values.tolist() == [value for value, _ in expected]
    assert [tuple(row) for row in demands.tolist()] == [codes for _, codes in expected]
    again = Records(people.market, list(people.ids), [list(agent) for agent in people.agents])
    assert decode(again.encode()) == decode(records.encode())


def test_people_without_ids_are_numbered(tmp_path):
    market = example(agents=5)
    values, demands = np.linspace(0, 1, 5), np.full((5, 2), 0.5)
    people = People.read(Source(market, None, values, demands, None, False))
    assert people.ids == (0, 1, 2, 3, 4)


def test_candidates_are_within_the_bounds_and_reach_them():
    for market in (example(agents=9), example_sparse(), example_totals()):
        prices = [(2**33,) * len(market.resources)]
        found = candidates(market, prices, 16, 0)
        assert len(found) == 16
        assert (None in found) == (market.neighbours is Neighbours.ADD_REMOVE)
        assert nothing(market) in found and everything(market) in found
        for record_ in found:
            assert record_ is None or 1 <= len(record_) <= market.options
            for value, amounts in record_ or ():
                assert 0.0 <= value <= market.max_value
                assert sum(a > 0 for a in amounts) <= market.bundle_size
                assert all(
                    0 <= a <= r.max_demand for a, r in zip(amounts, market.resources, strict=True)
                )


# --- replay -----------------------------------------------------------------------------------


def test_a_replay_of_the_same_people_is_the_same_run():
    people = People.invented(example(agents=60))
    first = record(SETTING, people)
    again = replay(first, SETTING, people)
    assert list(again.board.lines()) == list(first.board.lines())
    assert again.shares.tolist() == first.shares.tolist()
    assert [line.exact for line in again.lines] == [line.exact for line in first.lines]
    assert [line.draw for line in again.lines] == [line.draw for line in first.lines]
    other = record(SETTING, people)
    assert list(other.board.lines()) != list(first.board.lines())  # nothing is seeded


def test_watching_leaves_nothing_behind():
    before = Measurement.__call__, os.urandom, random._urandom
    record(SETTING, People.invented(example(agents=20)))
    assert before == (Measurement.__call__, os.urandom, random._urandom)


def test_two_runs_are_watched_one_after_the_other():
    people, tapes = People.invented(example(agents=40)), []
    threads = [
        threading.Thread(target=lambda: tapes.append(record(SETTING, people))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(tape.lines) for tape in tapes] == [len(tape.answers) for tape in tapes]
    assert all(finding.passed for finding in of_vetted_source(tapes))


def test_moves_are_held_against_claims():
    assert 0.999 < moved("demand", (5, 5, 0), Change(5, 2)) <= 1.0
    assert 0.999 < moved("demand", (0, 5, 3), Change(5, 2)) <= 1.0  # in any order
    assert moved("demand", (6, 0), Change(5, 2)) == pytest.approx(6 / 5)
    assert moved("demand", (5, 1), Change(5, 1)) == math.inf
    assert 0.999 < moved("gauge", (3, 4), Change(5)) <= 1.0
    assert moved("gauge", (3, 4, 1), Change(5)) > 1.0
    assert moved("gauge", (2**70, 2**60), Change(2**70)) > 1.0  # by less than rounding resolves
    # Small noise on one number shows what an even shape hides.
    assert moved("chance", (9, 0, 0), ChanceChange(5, 4, 25)) > 0.85
    assert moved("chance", (0, 0, 6), ChanceChange(5, 4, 25)) == pytest.approx(6 / 5, rel=1e-3)


# --- noise ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [Gaussian((0.6,)), Gaussian((150.0,)), Gaussian((250.0,)), TruncatedLaplace(3.0, 8)],
    ids=str,
)
def test_scores_of_the_law_are_standard_normals(noise):
    rng = np.random.default_rng(6)
    values, mass = law(noise)
    drawn = rng.choice(values, 20_000, p=mass)
    scores = normal_scores(noise, drawn.tolist(), rng)
    assert stats.kstest(scores, "norm").pvalue > 1e-9
    assert stats.kstest(size_scores(scores), "norm").pvalue > 1e-9
    wide = rng.choice(values, 20_000, p=mass) * 2
    assert stats.kstest(normal_scores(noise, wide.tolist(), rng), "norm").pvalue < 1e-9


def test_draws_are_answers_minus_exact_ones():
    tape = record(SETTING, People.invented(example(agents=40)))
    for draw, line in zip(draws_of([tape]), tape.lines, strict=True):
        assert list(draw.values) == line.draw
    drawn = [z for call in tape.calls for z in call.drawn]
    assert drawn == [z for line in tape.lines for z in line.draw]  # the last scale differs in one
    assert len(tape.calls) == len(tape.lines) + 1
    assert tape.unused == 0


def test_numbers_with_scales_of_their_own_are_matched_and_scored():
    shaped = replace(Script(), queries=("demand",))
    with known(Script):
        tape = record(Setting(shaped, 1.0, 1e-6), People.invented(example_sparse(agents=40)))
    scales = [line.step.noise.scales for line in tape.lines if line.step.query == "demand"]
    assert [len(set(own)) for own in scales] == [1, 3, 1]
    assert tape.unused == 0 and all(one.passed for one in of_vetted_source([tape]))
    noise, rng = Gaussian((250.0, 1e6, 0.6)), np.random.default_rng(3)
    drawn = np.array([np.rint(rng.normal(0.0, (250.0, 1e6, 0.6))) for _ in range(4000)])
    scores = np.array([normal_scores(noise, row.tolist(), rng) for row in drawn])
    for column in scores[:, :2].T:
        assert stats.kstest(column, "norm").pvalue > 1e-9
    swapped = np.array([normal_scores(noise, row[::-1].tolist(), rng) for row in drawn])
    assert stats.kstest(swapped[:, 0], "norm").pvalue < 1e-9


# --- arithmetic -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("neighbours", Neighbours)
def test_two_formulas_for_every_sensitivity_agree(seed, neighbours):
    rng = np.random.default_rng(seed)
    options = int(rng.integers(1, 4))
    market = random_market(
        rng, agents=9, sparse=seed % 2 == 0, options=options, neighbours=neighbours
    )
    caps = {r.name: r.max_demand for r in market.resources}
    near = {name: cap for name, cap in caps.items() if cap > 1e-3 * max(caps.values())}
    bounded = market.changed(max_total=[MaxTotal(0.6 * sum(near.values()), tuple(near))])
    for own, query in itertools.product((market, bounded), QUERIES):
        for scales in shapes(queries.width(own, query)):
            claimed = queries.change(own, query).worst(scales)
            assert 0 <= claimed / worst(own, query, scales) - 1 < 1e-7  # rounded up


def test_a_knapsack_by_search():
    """No option within the totals moves a demand by more than the formula says."""
    rng, most = np.random.default_rng(8), 0.0
    market = example_totals()
    scales = (3.0, 1.0, 2.0, 1.0, 5.0, 4.0, 2.5)
    bound = worst(market, "demand", scales)
    for _ in range(3000):
        records = np.array([caps_of(market, int(rng.integers(7))) for _ in range(2)])
        codes = demand_codes(market, records * (rng.random((2, 7)) < 0.7))  # cut to the totals
        move = np.abs(codes[0] - codes[1]) / np.array(scales)
        most = max(most, float(move @ move))
    assert 0.6 * bound < most <= bound


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("relation", Neighbours)
def test_groups_by_search(wide, relation):
    """No two records, of any groups, move a demand by more than the audit's formula says.

    And the pipeline claims no less than that.
    """
    market = example_groups(wide=wide, neighbours=relation)
    rng, most, m = np.random.default_rng(9), 0.0, len(market.resources)
    declared, groups = len(market.declared), range(-1, len(market.groups))
    scales = tuple(1.0 + (5 * j) % 7 for j in range(m))
    bound = worst(market, "demand", scales)
    for _ in range(4000):
        pair = [
            with_rules(
                market, caps_of(market, int(rng.integers(declared))), int(rng.choice(groups))
            )
            for _ in range(2)
        ]
        codes = demand_codes(market, np.array(pair))
        if relation is Neighbours.ADD_REMOVE:
            codes[1] = 0
        move = np.abs(codes[0] - codes[1]) / np.array(scales)
        most = max(most, float(move @ move))
        assert np.count_nonzero(codes, axis=1).max() <= bundle_width(market) == market.bundle_width
    assert 0.5 * bound < most <= bound
    claimed = queries.change(market, "demand").worst(scales)
    assert bound <= claimed < 2.0 * bound


def test_records_keep_their_group(tmp_path):
    for wide in (False, True):
        people = People.invented(example_groups(agents=30, wide=wide, divisible=True), 4)
        market, names = people.market, [group_of(people.market, one) for one in people.agents]
        assert {None, "near", "far"} == set(names)
        again = People.read(Source(market, agents=None, clamp=False, **people.arrays))
        codes = [reference(one).demands for one in (people, again)]
        assert np.array_equal(*codes)
        for j, rule in market.derived:
            in_group = np.array([name == market.groups[rule.group].name for name in names])
            asks = in_group if rule.members else ~in_group
            own = codes[0][:, j].tolist()
            base = np.where(asks[reference(people).owner], codes[0][:, rule.base], 0)
            assert own == base.tolist()


@pytest.mark.parametrize(("rho", "epsilon"), [(0.02, 1.0), (0.0003, 0.1), (0.3, 4.0), (1.0, 20.0)])
def test_two_conversions_of_rho_agree(rho, epsilon):
    assert conversion(rho, epsilon) == pytest.approx(zcdp.delta_of(rho, epsilon), rel=1e-6)
    assert gaussian_delta(rho, epsilon) == pytest.approx(gdp.delta_of(rho, epsilon), rel=1e-6)


def test_a_budget_that_promises_too_much_is_found():
    budget = Budget.split(1.0, 1e-6, truncated=False)
    assert of_budget(budget).passed
    assert not of_budget(replace(budget, rho=budget.rho * 1.001)).passed
    assert not of_budget(replace(budget, beta=budget.beta * 1.01)).passed
    assert not of_budget(replace(budget, accounting="zcdp")).passed
    assert not of_budget(replace(budget, repaired=False)).passed  # it is repaired, so it must pay
    rarely = Budget.split(1.0, 1e-6, truncated=False, excess=0.01)
    assert of_budget(rarely, 0.01).passed
    assert not of_budget(rarely).passed
    assert not of_budget(replace(rarely, beta=0.02), 0.01).passed
    assert of_budget(Budget.split(1.0, 1e-6, truncated=True)).passed


def test_a_run_that_costs_too_much_is_found():
    tape = record(SETTING, People.invented(example(agents=40)))
    assert all(one.passed for one in of_charges([tape]))
    tape.setting = Setting(SETTING.policy, 0.99, 1e-6)
    assert not of_charges([tape])[0].passed


def test_truncated_laplace_has_its_charges_too():
    policy = MwuAdaptive(alpha=0.5, noise="truncated-laplace")
    people = People.invented(
        Market(supply=[2000.0] * 2, max_demand=1.0, max_value=1.0, agents=3000, divisible=True)
    )
    setting = Setting(policy, 8.0, 1e-4)
    tape = record(setting, people)
    assert any(isinstance(line.step.noise, TruncatedLaplace) for line in tape.lines)
    assert all(one.passed for one in [*of_charges([tape]), *of_vetted_source([tape])])
    for line in tape.lines:
        if isinstance(line.step.noise, TruncatedLaplace):
            change = queries.change(people.market, line.step.query)
            own, theirs = cost(people.market, line.step), line.step.noise.cost(change)
            assert float(own[0]) == pytest.approx(float(theirs.rho), rel=1e-9)
            assert own[1] == pytest.approx(float(theirs.delta), rel=0.01)


# --- what it says -----------------------------------------------------------------------------


def test_holm_flags_no_more_than_it_should():
    p_values = [1e-9, 1e-8, 2e-7, 0.5]
    some = [statistical(f"{p}", "", "", p) for p in p_values]
    assert [one.passed for one in judged(some, 1e-6)] == [False, False, False, True]
    assert [one.passed for one in judged(some, 1e-7)] == [False, False, True, True]
    assert [one.passed for one in judged(some, 1e-9)] == [True] * 4
    wrong = [fact("a fact", "", ["no"]), *some]
    assert [one.passed for one in judged(wrong, 1e-9)] == [False, *[True] * 4]
    assert not judged([statistical("not a number", "", "", math.nan)])[0].passed


def test_where_answers_differ():
    assert findings.differ((1, 2, 3), (1, 5, 6)) == "is 2 in coordinate 1, but 5"
    assert findings.differ((1,), (1, 5)) == "has 1 numbers, but 2"


def test_the_text_and_the_dictionary():
    bound = lower_bound([0.0] * 9, [1.0] * 9, 1e-6)
    found = Audit(
        [Finding("noise: a", "x", "y"), Finding("noise: b", "claim", "sight", False, 1e-12)],
        {"coalition": bound},
        1.0,
        1e-6,
        "newton",
        ("memory",),
    )
    text = str(found)
    assert "FAILED      noise: b: sight (p = 1.0e-12)" in text and "claimed: claim" in text
    assert "ok          noise, 1 check: y" in text
    assert text.splitlines()[-1] == findings.NO_PROOF
    assert "FAILED: 1 of 2 checks." in text
    data = json.loads(json.dumps(found.to_dict()))
    assert data["passed"] is False and data["note"] == findings.NO_PROOF
    assert data["lower_bounds"]["coalition"]["trials"] == 9
    assert [one["passed"] for one in data["findings"]] == [True, False]
    assert [one["verdict"] for one in data["findings"]] == ["ok", "FAILED"]
    assert data["failed"] == 1 and data["not_tested"] == []


# --- what was not tested ----------------------------------------------------------------------


def verdicts(some) -> list[str]:
    return [one.verdict for one in some]


def test_a_check_that_could_not_fail_is_shown_and_counted():
    idle = [fact(f"replay: {i}", "x", [], "nobody", tested=False) for i in range(7)]
    good, bad = Finding("noise: a", "x", "y"), fact("noise: b", "x", ["z"], tested=False)
    one = Audit([good, idle[0]])
    assert one.passed and one.not_tested == idle[:1]
    assert "not tested  replay: 0: nobody" in str(one)
    assert str(one).splitlines()[-2] == "Passed; 1 check could not be tested: replay: 0."
    data = json.loads(json.dumps(one.to_dict() | {"epsilon": 1.0}))
    assert data["passed"] and data["not_tested"] == ["replay: 0"]
    assert [found["verdict"] for found in data["findings"]] == ["ok", "not tested"]
    many = str(Audit([good, *idle, bad])).splitlines()[-2]
    assert many.startswith("FAILED: 1 of 9 checks; 7 checks could not be tested: replay: 0; replay")
    assert many.endswith("replay: 4; and 2 more.")
    assert verdicts([bad]) == ["FAILED"]  # a check that failed was tested
    assert str(Audit([good])).splitlines()[-2] == "Passed."


def test_too_few_trials_are_no_test():
    """With 100 trials the worst mechanism passes; with one more it does not."""
    needed = trials_for(SETTING.epsilon, SETTING.delta, 1.0 - findings.ALARM / 4)
    assert needed == 101
    few, enough = (judge(SETTING, example(), ([0.0] * n, [1.0] * n), 0.95)[0] for n in (100, 101))
    assert (few.verdict, enough.verdict) == ("not tested", "FAILED")
    honest = judge(SETTING, example(), ([0.0, 1.0] * 51, [1.0, 0.0] * 51), 0.95)
    assert verdicts(judged(honest)) == ["ok", "ok"]
    # All 8 guesses may be right by chance.
    few, enough = (judge(SETTING, example(), ([0.0] * n, [1.0] * n), 0.95)[1] for n in (4, 40))
    assert verdicts(judged([few])) == ["not tested"] and verdicts(judged([enough])) == ["FAILED"]
    for n, epsilon in [(15, 0.5), (51, 1.0), (1000, 3.0)]:
        proved = lower_bound([0.0] * n, [1.0] * n, 1e-6)
        assert proved.epsilon == proved.at_best > 0.0
        found = trials_for(epsilon, 1e-6, 0.99)
        assert at_best(found - 1, 1e-6, 0.99) <= epsilon < at_best(found, 1e-6, 0.99)
    assert trials_for(50.0, 1e-6, 0.95) is None


def test_worlds_that_hardly_differ_are_no_attack():
    people = People.invented(example(agents=20))
    setting = Setting(GREEDY, 0.1, 1e-6)
    with known(Script):
        same, _, _ = attack(setting, Coalition(people, people), 50, 0.95)
        real, _, _ = attack(setting, Coalition.against(people, setting), 50, 0.95)
    assert verdicts(judged(same)) == ["not tested"] * 3
    assert "use only 0.0% of the budget" in same[0].seen
    assert verdicts(judged(real)) == ["ok"] * 3


@pytest.fixture(scope="module")
def winning():
    """A run with winners, recorded once."""
    people = People.invented(example_sparse(agents=40, plenty=True))
    with known(Script):
        return record(Setting(HALF, 1.0, 1e-6), people)


def test_an_allocation_without_winners_is_not_tested(winning):
    good = of_allocation([winning])
    assert good.verdict == "ok" and int(good.seen.split(", ")[1].split()[0]) > 20
    nobody = record(Setting(MwuFixed(rounds=5), 1.0, 1e-6), People.invented(example(agents=40)))
    assert not nobody.shares.any()
    assert of_allocation([nobody]).verdict == "not tested"
    assert of_answers([nobody]).verdict == "not tested"
    assert of_answers([winning]).verdict == "ok"


def test_every_agent_is_compared():
    people = People.invented(example(agents=600))
    tape = record(Setting(DualGd(rounds=5), 1.0, 1e-6), people)
    assert of_allocation([tape]).passed
    shares = tape.shares.copy()
    shares[123] ^= 1
    wrong = of_allocation([replace(tape, shares=shares)])
    assert wrong.verdict == "FAILED" and "agent 123 gets" in wrong.seen


def test_neighbours_that_move_nothing_are_no_test(winning):
    setting, market = Setting(HALF, 1.0, 1e-6), winning.people.market
    with known(Script):
        group = family(setting, winning.people, 4)
        again = replay(group.recorded, setting, group.recorded.people)
        gone = next(tape for record_, tape in group.replayed if record_ is None)
        nobody = family(SETTING, People.invented(example(agents=20)), 3)
    idle = replace(group, replayed=[(everything(market), again)])
    for family_, verdict in [(group, "ok"), (idle, "not tested")]:
        assert verdicts(of_steps(family_)) == [verdict] * 3
        with known(Script):
            found = of_sensitivity(family_)
        demand = [one for one in found if one.check == "sensitivity: demand"]
        assert verdicts(demand) == [verdict]
    assert of_others(group).verdict == "ok"
    assert of_others(nobody).verdict == "not tested"
    wrong = replace(gone, shares=gone.shares[::-1])
    assert of_others(replace(group, replayed=[(None, wrong)])).verdict == "FAILED"


def test_an_audit_says_what_it_could_not_test():
    """This policy's prices start so high that nobody can pay them in 5 rounds."""
    more = {"epsilon": 1.0, "delta": 1e-6, "trials": 4, "neighbours": 4, "engines": ("memory",)}
    found = audit(example(agents=60), policy=MwuFixed(rounds=5), paths=False, **more)
    assert found.passed
    missing = {one.check for one in found.not_tested}
    assert {"allocation: own function (memory)", "coalition: epsilon (greedy)"} <= missing
    assert "paths: all" in missing
    assert "coalition: success (mwu-fixed:rounds=5)" in missing
    assert f"Passed; {len(missing)} checks could not be tested: " in str(found)
    made = {one.check for one in found.findings} - missing
    assert "allocation: own function (memory, plenty)" in made
    assert "replay: other agents (memory, plenty)" in made
    assert "queries: any order (memory, all queries)" in made


def test_files_and_progress(tmp_path):
    rng = np.random.default_rng(8)
    market = Market(
        supply=[9.0, 5.0],
        max_demand=1.0,
        max_value=2.0,
        agents=30,
        names=["id", "value"],  # names that the audit's own tables have too
        epsilon=2.0,
        delta=1e-5,
        columns=LONG,
    )
    records = random_records(rng, market, ids=[f"a{i}" for i in range(30)])
    pyarrow.parquet.write_table(long_table(records), tmp_path / "agents.parquet")
    told = []
    found = audit(
        market,
        tmp_path / "agents.parquet",
        policy=MwuOnline(batch=10),
        trials=4,
        neighbours=3,
        paths=False,
        progress=lambda done, label: told.append((done, label)),
    )
    assert found.passed, str(found)
    assert found.engines == ("memory", "mapped")
    assert (found.epsilon, found.delta, found.policy) == (2.0, 1e-5, "mwu-online:batch=10")
    shares = [done for done, _ in told]
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert set(found.lower_bounds) == {
        "coalition against greedy",
        "coalition against mwu-online:batch=10",
    }


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"trials": 3}, "trials"),
        ({"trials": True}, "trials"),
        ({"neighbours": 1}, "neighbours"),
        ({"confidence": 1.0}, "confidence"),
        ({"epsilon": math.inf}, "no privacy to test"),
        ({"market": None, "epsilon": 0.0}, "epsilon"),
        ({"engines": ("steam",)}, "steam"),
        ({"engines": ()}, "engine"),
        ({"values": [1.0]}, "values and demands"),
        ({"policy": MwuOnline(local=True)}, "local"),
    ],
)
def test_refusals(more, says):
    usual = {"market": example(agents=20), "epsilon": 1.0, "delta": 1e-6, "trials": 4}
    with pytest.raises(JdpackError) as refused:
        audit(**(usual | more))
    check_error(refused.value, [says])


def test_without_scipy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(JdpackError) as refused:
        audit()
    check_error(refused.value, ["SciPy"], "jdpack[audit]")


# --- the experiment behind the figures --------------------------------------------------------


def test_the_experiment_plays_and_looks(monkeypatch):
    file = Path(__file__).parents[2] / "experiments" / "audit.py"
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("audit_experiment", file)
    experiment = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(experiment)
    bound, used = experiment.play((experiment.GREEDY, True, 1.0, 4))
    assert bound.trials == 4 and used == pytest.approx(1.0, abs=1e-6)  # all of the budget
    row = experiment.row("greedy", "divisible", 1.0, 0.54, bound, f"{used:.0%}")
    assert row.startswith("| greedy | divisible | 100% | 4 | ") and row.endswith(" | 1 |")
    assert experiment.look("noise_too_small") and experiment.look_at_numbers("noise_too_small")
    assert not experiment.look_at_numbers("honest")
    assert {policy.name for policy in experiment.POLICIES} == set(KINDS)
