"""An audit catches every pipeline in `broken`, and does not flag the honest one.

Nothing here is seeded. A certain fault is missed with a probability below 1e-9, which
follows from how it is broken, so a few repetitions are enough. A statistical fault must be found in
all of 59 repetitions, by the statistical checks alone: a power below 95% would pass with a
probability below 0.95^59 < 5%, and the true powers are so high that this never fails. The honest
pipeline is flagged with probability 1e-6 per audit.
"""

import importlib.util
import itertools
import multiprocessing
import re
import secrets
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

import broken
from jdpack import DualGd, Market, MirrorDescent, MwuAdaptive, MwuFixed, MwuOnline, Newton
from jdpack.audit import (
    answers,
    audit,
    budget_checks,
    distinguish,
    fold,
    neighbours,
    noise_checks,
    paths,
)
from jdpack.audit.checks import of_all_runs, of_every_run
from jdpack.audit.coalition import Coalition, attack
from jdpack.audit.epsilon_bounds import most_success_gaussian
from jdpack.audit.findings import judged
from jdpack.audit.people import People, example, example_sparse
from jdpack.audit.recording import Setting, Tape, record
from jdpack.audit.scripted_policy import Script, known
from jdpack.market.market import Neighbours

pytestmark = pytest.mark.long

EPSILON, DELTA = 1.0, 1e-6
QUICK, LONGER = DualGd(rounds=5), DualGd(rounds=40)
TIMES = 59
AGAIN = 3
"""Repetitions where the fault is certain to show."""


@pytest.fixture(scope="module", autouse=True)
def one_process_without_records():
    """One process rebuilds the billboards of all runs here.

    Outside this file each audit starts its own. This one starts before any fault is planted, and
    nothing that is planted here reaches it.
    """
    clean = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, clean) as pool, pytest.MonkeyPatch.context() as patch:
        pool.submit(fold.rebuilt, "[]").result()
        honest_source()  # for all audits here, before any fault is planted

        def run(*_, input, **__):
            return SimpleNamespace(returncode=0, stdout=pool.submit(fold.rebuilt, input).result())

        patch.setattr(fold, "subprocess", SimpleNamespace(run=run))
        yield


honest_source = cache(noise_checks.of_source)
"""What the check of the source of noise finds, which is the same for every policy and market.
Faults that only this check finds have a test of their own, below."""


def audited(market: Market, policy, **more):
    settings = {"trials": 4, "neighbours": 5, "engines": ("memory",), "paths": False, **more}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise_checks, "of_source", honest_source)
        return audit(market, policy=policy, epsilon=EPSILON, delta=DELTA, **settings)


# --- the honest pipeline ----------------------------------------------------------------------

HONEST = [
    *[(QUICK, seed) for seed in range(10)],
    *[(MwuOnline(batch=25), seed) for seed in range(3)],
    *[(MwuFixed(rounds=6), 0), (MirrorDescent(rounds=6), 0), (MwuAdaptive(alpha=0.5), 0)],
    *[(MwuAdaptive(alpha=0.5), 1), (MwuAdaptive(alpha=0.5), 2), (MirrorDescent(rounds=6), 1)],
    (Newton(), 0),
]


FORCED = ("dual-gd", 4)
"""The audit that forces every private path; the page of commands forces them on other data."""
DOCS = Path(__file__).parents[2] / "docs"


def test_there_are_20_repetitions():
    assert len(HONEST) == 20
    assert FORCED in {(policy.name, seed) for policy, seed in HONEST}


def test_every_private_path_is_forced_on_two_data_sets():
    """The command on this page runs, too (`test_docs.py`)."""
    (command,) = re.findall(
        r"^\$ jdpack audit .+", (DOCS / "command-line.md").read_text("utf-8"), re.M
    )
    assert "--seed 3 " in command and "paths" not in command and FORCED[1] != 3


@pytest.mark.parametrize(("policy", "seed"), HONEST, ids=lambda x: getattr(x, "name", x))
def test_the_honest_pipeline_is_not_flagged(policy, seed):
    relation = list(Neighbours)[seed % 2]
    market = example(agents=100, divisible=seed % 3 == 1, neighbours=relation)
    engines = ("memory", "mapped") if seed % 5 == 4 else ("memory",)
    # These paths depend on the seed, but not on the policy.
    forced = (policy.name, seed) == FORCED
    found = audited(market, policy, seed=seed, neighbours=4, engines=engines, paths=forced)
    assert found.passed, str(found)
    assert len(found.findings) - len(found.not_tested) > 60
    names = [one.check for one in found.findings]
    assert [a for a, b in itertools.pairwise(sorted(names)) if a == b] == []


# --- what is wrong for certain ----------------------------------------------------------------

CERTAIN = {
    broken.noise_too_small: "noise: source",
    broken.noise_in_doubles: "noise: whole numbers",
    broken.noise_in_rounded_doubles: "noise: source",
    broken.noise_in_singles: "noise: source",
    broken.noise_of_every_round_the_same: "noise: source",
    broken.noise_of_every_second_run_the_same: "noise: source",
    broken.scale_without_noise: "noise: source",
    broken.sum_in_the_order_of_values: "queries: exact",
    broken.sum_in_singles: "queries: exact",
    broken.doubled("demand"): "sensitivity: demand",
    broken.doubled("gauge"): "sensitivity: gauge",
    broken.chance_claimed_too_small: "sensitivity: chance",
    broken.shaped_noise_charged_as_even: "budget: sum",
    broken.totals_are_not_read: "queries: exact (clamping, totals",
    broken.chance_without_halves: "queries: exact",
    broken.shape_from_exact_loads: "replay: steps",
    broken.peeking_policy: "replay: steps",
    broken.filter_off_by_one: "budget: refusal",
    broken.seed_from_the_records: "coins: fresh",
    broken.seed_from_salted_records: "replay: billboard",
    broken.coin_from_the_value: "allocation: own function",
    broken.better_of_two_seeds: "coins: source",
    broken.stop_when_the_exact_demand_fits: "public: billboard",
}


NINE = [variant for variant in CERTAIN if variant.__name__ in ("peeking_policy", "doubled_gauge")]
"""These do not show in the first few neighbours."""


@pytest.mark.parametrize("variant", CERTAIN, ids=lambda variant: variant.__name__)
def test_an_audit_catches_every_broken_variant(variant, monkeypatch):
    rounding = variant in (broken.sum_in_the_order_of_values, broken.sum_in_singles)
    policy = DualGd(rounds=15) if rounding else QUICK  # not every rounded sum is wrong
    few = variant not in NINE
    # This one shows only on a forced path, and there are others like it below.
    forced = variant is broken.totals_are_not_read
    monkeypatch.setattr(paths.Paths, "run", known(Script)(paths.Paths.clamping))
    with variant():
        found = audited(example(agents=100), policy, neighbours=4 if few else 9, paths=forced)
    assert not found.passed
    wrong = [one.check for one in found.failures]
    assert any(check.startswith(CERTAIN[variant]) for check in wrong), wrong
    assert "FAILED" in str(found)


ON_PATHS = {
    broken.groups_not_in_bundles: ("excess", "sensitivity: formulas"),
    broken.groups_are_not_read: ("excess", "queries: exact (excess"),
    broken.repaired_where_excess_is_allowed: ("excess", "allocation: own function (excess)"),
    broken.repair_that_is_not_paid: ("thinning", "budget: epsilon and delta (thinning)"),
    broken.excess_is_surely_small: ("excess", "certificate: factors (excess"),
    broken.radius_of_one_resource: ("excess", "certificate: factors (excess"),
    broken.thinned_on_average: ("thinning", "certificate: factors (thinning)"),
    broken.repair_from_97_percent: ("full", "paths: full, no repair"),
    broken.screening_counts_twice: ("screening", "queries: exact (screening, full size)"),
    broken.luck_cut_to_less: ("scaling", "queries: exact (scaling"),
    broken.people_forgotten_where_a_part_ends: ("requests", "queries: exact (requests)"),
    broken.turns_of_requests: ("requests", "queries: exact (requests, audit-script"),
    broken.names_that_are_not_checked: ("refusals", "paths: refusals"),
    broken.coins_by_rank: ("formats", "allocation: own function (formats)"),
    broken.seeded_run_called_private: ("seeded", "paths: seeded"),
    broken.refund_of_a_run_that_has_posted: ("ledger", "paths: ledger"),
}
"""Which path shows it, and by which check."""


def on_path(name: str) -> set[str]:
    """The checks that fail if an audit takes one path only."""
    forced = paths.Paths(EPSILON, DELTA, 0)
    with known(Script):
        getattr(forced, name)()
    found = [*forced.found, *of_every_run(forced.recorded), *of_all_runs(forced.recorded)]
    return flagged([*found, budget_checks.of_formulas(paths.markets())])


@pytest.mark.parametrize("variant", ON_PATHS, ids=lambda variant: variant.__name__)
def test_a_path_shows_what_is_wrong(variant):
    path, check = ON_PATHS[variant]
    with variant():
        wrong = on_path(path)
    assert any(one.startswith(check) for one in wrong), wrong


@pytest.mark.parametrize("path", sorted({path for path, _ in ON_PATHS.values()}))
def test_negative_control_the_same_paths_pass_the_honest_pipeline(path):
    assert not on_path(path)


@cache
def crowd() -> People:
    return People.invented(example(agents=150))


@cache
def few_with_many_resources() -> People:
    """Runs with many draws in few releases: a curvature of 12 resources has 144 numbers."""
    return People.invented(
        Market(supply=[9.0] * 12, max_demand=1.0, max_value=1.0, agents=20, divisible=True)
    )


MANY_DRAWS = Script((0.0, 0.5), ("demand", "scale", "curvature"))


def recorded(
    policy, count: int, people: People | None = None, epsilon: float = EPSILON
) -> list[Tape]:
    setting = Setting(policy, epsilon, DELTA)
    with known(Script):
        return [record(setting, people or crowd()) for _ in range(count)]


def test_a_policy_that_peeks_is_caught_every_time():
    """Every second sum is odd, and there are 5 rounds of 7 neighbours."""
    for _ in range(AGAIN):
        with broken.peeking_policy():
            group = neighbours.family(Setting(QUICK, EPSILON, DELTA), crowd(), 7)
        steps, board, _ = neighbours.of_steps(group)
        assert not steps.passed and not board.passed


def test_coins_of_the_data_are_caught_every_time():
    for _ in range(AGAIN):
        with broken.coin_from_the_value():
            (tape,) = recorded(Script(), 1, epsilon=16.0)  # so that luck is released
        assert "luck" in [line.step.query for line in tape.lines]
        assert not answers.of_answers([tape]).passed
        with broken.seed_from_salted_records():
            pair = recorded(Script(), 2)
        fresh, source, _ = answers.of_seeds(pair)
        assert fresh.passed and not source.passed
        with broken.seed_from_the_records():
            pair = recorded(Script(), 2)
        assert not answers.of_seeds(pair)[0].passed


def test_a_filter_that_is_late_or_forgets_truncation_is_caught_at_any_budget():
    for epsilon in (0.1, 1.0, 8.0):
        assert budget_checks.of_filter(crowd(), epsilon, DELTA).passed
        for fault in (broken.filter_off_by_one, broken.truncation_for_free):
            with fault():
                assert not budget_checks.of_filter(crowd(), epsilon, DELTA).passed


def test_a_sum_with_an_order_is_caught_every_time():
    """In doubles about one in five of 120 answers is wrong, in singles most."""
    for _ in range(AGAIN):
        with broken.sum_in_the_order_of_values():
            assert not answers.of_answers(recorded(LONGER, 3)).passed
        with broken.sum_in_singles():
            assert not answers.of_answers(recorded(LONGER, 1)).passed
    assert answers.of_answers(recorded(LONGER, 3)).passed


def test_a_sum_with_an_order_moves_by_more_than_is_claimed():
    """This is why sums use integers: rounding adds to the move of an answer."""
    people, setting = People.invented(example(agents=1000)), Setting(LONGER, EPSILON, DELTA)
    with broken.sum_in_singles():
        group = neighbours.family(setting, people, 5)
    assert [one for one in neighbours.of_sensitivity(group) if not one.passed]
    group = neighbours.family(setting, people, 5)
    assert all(one.passed for one in neighbours.of_sensitivity(group))


def test_each_doubled_query_is_caught():
    # No noise: it would decide which of these runs release luck.
    def quiet(at: int, scale: float, count: int) -> list[int]:
        return [0] * count

    sparse = People.invented(example_sparse())
    for people, queries in [
        (crowd(), ("scale", "value", "curvature", "welfare", "chance")),
        (sparse, ("demand", "scale", "gauge")),
    ]:
        for query in queries:
            with known(Script), broken.doubled(query)():
                setting = Setting(Script(), EPSILON, DELTA)
                group = neighbours.family(setting, people, 12, draws=quiet)
            with known(Script):
                wrong = [one.check for one in neighbours.of_sensitivity(group) if not one.passed]
            assert wrong == [f"sensitivity: {query}"]


# --- what shows in numbers --------------------------------------------------------------------


def flagged(findings) -> set[str]:
    return {one.check for one in judged(findings) if not one.passed}


NUMBERS = {
    broken.noise_too_small: ["noise: variance of all queries"],
    broken.noise_in_singles: ["noise: low bits"],
    broken.noise_of_every_round_the_same: ["noise: independence, rounds", "noise: repeats"],
    broken.noise_of_every_second_run_the_same: ["noise: independence, runs (even"],
    broken.scale_without_noise: ["noise: variance of scale"],
}


@pytest.mark.parametrize("variant", NUMBERS, ids=lambda variant: variant.__name__)
def test_the_noise_of_two_real_runs_gives_it_away(variant):
    for _ in range(TIMES):
        with variant():
            tapes = recorded(MANY_DRAWS, 2, few_with_many_resources())
        wrong = flagged(noise_checks.of_noise(noise_checks.draws_of(tapes)))
        for tell in NUMBERS[variant]:
            assert any(check.startswith(tell) for check in wrong), wrong


def test_the_source_gives_away_what_is_not_on_the_lattice():
    for _ in range(TIMES):
        with broken.noise_in_rounded_doubles():
            wrong = flagged(noise_checks.of_source(800))
        assert "source: Gaussian(scales=(0.4,))" in wrong


def test_negative_control_the_same_checks_pass_the_honest_noise():
    for _ in range(20):
        tapes = recorded(MANY_DRAWS, 2, few_with_many_resources())
        assert not flagged(noise_checks.of_noise(noise_checks.draws_of(tapes)))
    assert not flagged(noise_checks.of_source(800))


# --- lower bounds -----------------------------------------------------------------------------


def _weight_leak():
    file = Path(__file__).parents[2] / "experiments" / "weight_leak.py"
    spec = importlib.util.spec_from_file_location("weight_leak_audited", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


def test_the_printed_algorithm_is_not_private_by_the_game():
    leak = _weight_leak()
    worlds = [leak.make_people(0.0, agents=300), leak.make_people(1.0, agents=300)]

    def sampler(people):
        return lambda: leak.guess_printed(people, secrets.randbits(60))

    bound = distinguish(*map(sampler, worlds), float, 120, leak.DELTA, confidence=0.999)
    assert bound.success > 0.9
    assert bound.epsilon > leak.EPSILON


@cache
def busy() -> Coalition:
    """Agents who demand so much that the step sizes shrink."""
    people = People.invented(example(agents=150, divisible=True))
    with known(Script):
        return Coalition.against(people, Setting(Script(), EPSILON, DELTA))


def test_step_sizes_without_noise_are_not_private_by_the_coalition():
    setting = Setting(Script((0.0,), ("scale", "demand")), EPSILON, DELTA)
    with known(Script):
        with broken.scale_without_noise():
            findings, bound, _ = attack(setting, busy(), 130, 0.95)
        assert bound is not None and bound.epsilon > EPSILON and bound.success == 1.0
        assert [one.passed for one in judged(findings)] == [False, False, True]
        findings, bound, _ = attack(setting, busy(), 40, 0.95)
        assert bound is not None and bound.epsilon <= EPSILON and bound.success < 1.0
        assert all(one.passed for one in judged(findings))


def test_the_coalition_comes_close_to_what_theory_allows():
    """It succeeds as often as the best test; at a large epsilon few trials show it."""
    epsilon = 16.0
    setting = Setting(Script((0.0,), ("demand",)), epsilon, DELTA)
    with known(Script):
        findings, bound, _ = attack(setting, busy(), 120, 0.95)
    assert all(one.passed for one in judged(findings))
    limit = most_success_gaussian(setting.budget(busy().worlds[0].market).rho)
    assert limit - 0.2 < bound.success < limit + 0.2
    assert 0.0 < bound.epsilon < epsilon
    assert 0.1 * epsilon < bound.epsilon_if_gaussian < 1.2 * epsilon
