"""What an audit recomputes: each check passes on what is right, and fails on what is wrong."""

import itertools
import math
import secrets
from dataclasses import replace
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest

import broken
from jdpack import DualGd, Market, MwuAdaptive, MwuOnline, Newton
from jdpack.audit import answers, budget_checks, fold, neighbours, noise_checks, paths
from jdpack.audit.checks import RecordedRuns, of_every_run
from jdpack.audit.findings import guarded
from jdpack.audit.people import People, example, example_sparse
from jdpack.audit.recording import Setting, Tape, record, watching
from jdpack.audit.reference import (
    CountedRounds,
    demand_codes,
    reference,
    siphash,
    value_codes,
    wrong_grid,
)
from jdpack.audit.scripted_policy import BATCHES, HALF, Script, known
from jdpack.billboard.lines import Seed
from jdpack.common.coins import siphash as plain_siphash
from jdpack.door import SystemRandomness
from jdpack.market.grid import CHANCE_UNIT, DEMAND_CODE_MAX, SHARE
from jdpack.policies import nested_blocks
from jdpack.policies.registry import KINDS
from jdpack.privacy import queries
from jdpack.privacy.accounting import Filter
from jdpack.privacy.queries import Query
from jdpack.privacy.tail_bounds import Coins, Sum

SETTING = Setting(Script(), 1.0, 1e-6)


@pytest.fixture(autouse=True)
def _script_is_known():
    with known(Script):
        yield


def people(**more) -> People:
    return People.invented(example(agents=60, **more))


def verdicts(found) -> dict[str, str]:
    return {one.check: one.verdict for one in found}


# --- the reference ----------------------------------------------------------------------------


def test_the_hash_is_that_of_the_coins():
    key = bytes(range(16))
    texts = [b"", b"7", b"1234567", b"12345678", "Zoë".encode(), b"x" * 300]
    assert siphash(key, texts).tolist() == [plain_siphash(key, text) for text in texts]
    assert plain_siphash(key, bytes(range(15))) == 0xA129CA6149BE45E5  # the authors' own vector
    assert siphash(key, [bytes(range(15))]).tolist() == [0xA129CA6149BE45E5]


@pytest.mark.parametrize("seed", range(5))
def test_codes_are_exact_at_the_edges_of_the_grid(seed):
    rng = np.random.default_rng(seed)
    market = Market(
        supply=(10.0 ** rng.uniform(-2, 4, 3)).tolist(),
        max_demand=(1e-2 * rng.uniform(0.5, 0.999, 3)).tolist(),
        max_value=float(10.0 ** rng.uniform(-3, 3)),
        agents=9,
    )
    assert wrong_grid(market) == []
    sizes = np.array(market.unit_sizes)
    codes = rng.integers(0, DEMAND_CODE_MAX, (50, 3))
    for nudge in (-1, 0, 1):
        amounts = codes * sizes
        amounts = np.maximum(np.nextafter(amounts, amounts + nudge) if nudge else amounts, 0.0)
        exact = [
            [-(-Fraction(a) // Fraction(s)) for a, s in zip(row, market.unit_sizes, strict=True)]
            for row in amounts.tolist()
        ]
        assert demand_codes(market, amounts).tolist() == exact
    values = rng.uniform(0.0, market.max_value, 50)
    exact = [Fraction(v) // Fraction(market.value_step) for v in values.tolist()]
    assert value_codes(market, values).tolist() == exact


QUERIES: list[Query] = [
    "demand", "scale", "value", "gauge", "curvature", "welfare", "granted", "chance",
]  # fmt: skip


@pytest.mark.parametrize("query", [*QUERIES, "luck"])
def test_every_query_has_a_reference(query):
    """Gauge, curvature, chance and luck included."""
    some = people(divisible=query == "luck")
    policy = HALF if query in ("luck", "granted", "chance") else Script()
    if query in ("granted", "chance"):
        some = People.invented(example_sparse(agents=40, plenty=True))
    honest = record(replace(SETTING, policy=policy), some)
    assert query in {line.step.query for line in honest.lines}
    assert answers.of_answers([honest]).verdict == "ok"
    with broken.doubled(query)():
        wrong = answers.of_answers([record(replace(SETTING, policy=policy), some)])
    assert wrong.verdict == "FAILED" and f"({query})" in wrong.seen


def test_chance_is_the_variance_of_what_coins_grant():
    """In fractions, by the definition; rounding adds less than two units per agent."""
    some = People.invented(example_sparse(agents=40, plenty=True))
    tape = record(replace(SETTING, policy=HALF), some)
    own, rounds = reference(some), CountedRounds(tuple(tape.board.rounds), tape.board.header.order)
    shares, found = own.shares(rounds).tolist(), own.chance(rounds, 2**32 - 1)
    exact = [Fraction(0)] * len(some.market.resources)
    edges = [*own.starts.tolist(), len(shares)]
    for begin, end in itertools.pairwise(edges):
        for j in range(len(exact)):
            pairs = [
                (int(own.demands[r, j]), Fraction(shares[r], SHARE)) for r in range(begin, end)
            ]
            mean = sum(code * share for code, share in pairs)
            exact[j] += sum(code**2 * share for code, share in pairs) - mean**2
    assert max(exact) > 0
    for released, true in zip(found, exact, strict=False):
        assert true <= CHANCE_UNIT * released <= true + 2 * CHANCE_UNIT * len(some.ids)


def test_a_thinned_run_in_batches_is_certified():
    """Coins decide nothing there, so there is no chance release; thinning still takes value."""
    tape = record(Setting(BATCHES, 1.0, 1e-6), People.invented(example()))
    board = tape.board
    assert not tape.error and max(board.certificate.factors) < SHARE
    assert "chance" not in {line.step.query for line in tape.lines}
    welfare = next(r for r in board.releases if r.step.query == "welfare")
    assert (
        board.certificate.welfare_at_least
        < 0.5 * welfare.answer[0] * board.header.market.value_step
    )


def test_costs_beyond_64_bits_are_whole_numbers():
    own = reference(people())
    costs = own.costs((2**52, 2**52))
    assert max(costs) > 2**63
    assert sum(own.demand((2**52, 2**52))) == 0


# --- the public side --------------------------------------------------------------------------


def test_the_public_side_is_made_again_without_records():
    tapes = [record(Setting(Newton(), 1.0, 1e-6), people()), record(SETTING, people())]
    tapes.append(record(Setting(MwuAdaptive(alpha=0.5), 1.0, 1e-6), people(divisible=True)))
    assert set(verdicts(fold.of_public(tapes)).values()) == {"ok"}
    assert len(tapes[0].lines) > 90


def test_a_run_that_stops_early_is_found():
    with broken.stop_when_the_exact_demand_fits():
        (found, *_) = fold.of_public([record(Setting(HALF, 1.0, 1e-6), people(divisible=True))])
        assert found.passed, "nothing fits there"
        plenty = People.invented(example_sparse(agents=40, plenty=True))
        (found, *_) = fold.of_public([record(Setting(HALF, 1.0, 1e-6), plenty)])
    assert found.verdict == "FAILED" and "before its policy does" in found.seen


def test_another_certificate_price_or_total_is_found():
    tape = record(SETTING, people(divisible=True))
    board = tape.board
    assert all(one.passed for one in fold.of_public([tape]))
    lines = list(board.lines())
    made = fold.made_elsewhere([tape])
    for at in (0, 3, len(lines) - 2, len(lines) - 1):
        other = [line.replace("0", "1", 1) if i == at else line for i, line in enumerate(lines)]
        again = [{**made[0], "lines": other}]
        assert f"line {at + 1} of a run" in fold.of_public([tape], again)[0].seen
    less = replace(tape, spent=replace(tape.spent, rho=tape.spent.rho / 2))
    assert not fold.of_public([less])[1].passed


def test_public_files_are_compared_byte_by_byte(tmp_path):
    tape = record(SETTING, people(), output=tmp_path / "run")
    made = fold.made_elsewhere([tape])
    assert verdicts(fold.of_public([tape], made))["public: files"] == "ok"
    for files in (
        {**tape.files, "summary.json": b"{}"},
        {**tape.files, "index.html": tape.files["index.html"] + b" "},
        {**tape.files, "billboard.jsonl": tape.files["billboard.jsonl"][:-1]},
    ):
        changed = replace(tape, files=files)
        assert verdicts(fold.of_public([changed], made))["public: files"] == "FAILED"


# --- noise and seeds --------------------------------------------------------------------------


def test_the_scale_is_what_the_sampler_says_and_not_what_it_is_called():
    from jdpack import door

    make = door._gaussian
    with mock.patch.object(door, "_gaussian", lambda scale: make(scale * 0.999)):
        tape = record(SETTING, people())
    assert verdicts(noise_checks.of_vetted_source([tape]))["noise: source"] == "FAILED"


def test_a_draw_that_is_thrown_away_is_found():
    draw = SystemRandomness.draw

    def better(self, noise, count, index):
        return min(draw(self, noise, count, index), draw(self, noise, count, index))

    with mock.patch.object(SystemRandomness, "draw", better):
        tape = record(SETTING, people())
    assert tape.unused > 0
    assert verdicts(noise_checks.of_vetted_source([tape]))["noise: source"] == "FAILED"


def test_all_random_bytes_of_python_are_seen():
    tape = Tape(people(), SETTING)
    with watching(tape):
        secrets.token_bytes(3)
        secrets.token_hex(4)
        np.random.default_rng()
    assert [len(some) for some in tape.random_bytes[:2]] == [3, 4]
    assert len(tape.random_bytes) > 2


def test_one_seed_before_the_first_record():
    def judged(tape):
        return [one.verdict for one in answers.of_seeds([tape, record(SETTING, people())])]

    assert judged(record(SETTING, people())) == ["ok"] * 3
    draw = Seed.draw.__func__
    with mock.patch.object(Seed, "draw", classmethod(lambda cls: draw(cls) and draw(cls))):
        assert judged(record(SETTING, people())) == ["ok", "FAILED", "ok"]
    tape = record(SETTING, people())
    assert tape.events[0] == "bytes" and tape.events[1] == "records"
    tape.events[:2] = ["records", "bytes"]
    assert judged(tape) == ["ok", "ok", "FAILED"]


# --- allocation, charges and certificate ------------------------------------------------------


def test_a_repair_is_made_where_it_is_needed_and_nowhere_else():
    for codes, needed in [(lambda s: s, False), (lambda s: s + 1, True)]:
        for divisible in (False, True):
            full = paths.filled(codes, divisible=divisible)
            tape = record(Setting(paths.GREEDY, 1.0, 1e-6), full, draws=paths.low)
            assert answers.of_allocation([tape], repaired=needed).verdict == "ok"
            assert (tape.private.dropped > 0) is needed
            with broken.repair_from_97_percent():
                early = record(Setting(paths.GREEDY, 1.0, 1e-6), full, draws=paths.low)
            assert answers.of_allocation([early]).verdict == "FAILED"


def test_a_run_is_charged_what_it_costs():
    tape = record(SETTING, people())
    assert set(verdicts(budget_checks.of_charges([tape])).values()) == {"ok"}
    for part in ("rho", "transfer"):
        spent = replace(tape.spent, **{part: getattr(tape.spent, part) * Fraction(97, 100)})
        less = replace(tape, spent=spent)
        assert verdicts(budget_checks.of_charges([less]))["budget: charges"] == "FAILED"


def test_a_filter_that_forgets_a_batch_is_found():
    assert budget_checks.of_batch_filter(SETTING).verdict == "ok"
    charge = Filter.charge
    with mock.patch.object(
        Filter, "charge", lambda self, cost, batch=None, span=1: charge(self, cost)
    ):
        assert budget_checks.of_batch_filter(SETTING).verdict == "FAILED"
    # Blocks charged as if only their last batch were in them.
    with mock.patch.object(
        Filter, "charge", lambda self, cost, batch=None, span=1: charge(self, cost, batch)
    ):
        assert budget_checks.of_batch_filter(SETTING).verdict == "FAILED"
    with mock.patch.object(Filter, "charge", return_value=None):
        assert budget_checks.of_batch_filter(SETTING).verdict == "FAILED"


def test_blocks_that_are_charged_for_one_level_only_are_found():
    """The noise of mwu-online calibrated for one level, and a filter that lets it pass."""
    setting = Setting(MwuOnline(batch=5), 1.0, 1e-6)
    honest = record(setting, people(divisible=True))
    assert verdicts(budget_checks.of_charges([honest]))["budget: charges"] == "ok"
    charge = Filter.charge
    with (
        mock.patch.object(
            Filter, "charge", lambda self, cost, batch=None, span=1: charge(self, cost, batch)
        ),
        mock.patch.object(nested_blocks, "levels", return_value=1),
    ):
        broken = record(setting, people(divisible=True))
    assert broken.board is not None
    assert verdicts(budget_checks.of_charges([broken]))["budget: charges"] == "FAILED"


@pytest.mark.parametrize("query", QUERIES)
def test_a_claim_that_is_too_small_is_found(query):
    markets = paths.markets()
    assert budget_checks.of_formulas(markets).verdict == "ok"
    change = queries.change

    def smaller(market, asked):
        found = change(market, asked)
        if asked != query:
            return found
        if query in ("demand", "granted"):
            return replace(found, most=found.most - 1, caps=tuple(cap - 1 for cap in found.caps))
        part = "last" if query == "chance" else "most"
        return replace(found, **{part: getattr(found, part) - 1})

    with mock.patch.object(queries, "change", smaller):
        assert budget_checks.of_formulas(markets).verdict == "FAILED"


def test_a_certificate_that_ignores_noise_is_found():
    setting, people = Setting(Newton(), 1.0, 1e-6), People.invented(example(divisible=True))
    tapes = (record(setting, people) for _ in range(40))
    tape = next(t for t in tapes if min(t.board.certificate.factors) < SHARE)  # most runs are so
    assert budget_checks.of_factors([tape]).verdict == "ok"
    tape.board.certificate = replace(tape.board.certificate, factors=(SHARE, SHARE))
    assert budget_checks.of_factors([tape]).verdict == "FAILED"


# --- paths ------------------------------------------------------------------------------------


def test_every_policy_is_run():
    kinds = {type(policy) for policy in paths.POLICIES} | {Newton, Script}
    assert kinds == set(KINDS.values())


def test_agents_that_screening_counts_twice_are_found():
    forced = paths.Paths(1.0, 1e-6, 0)
    with broken.screening_counts_twice():
        forced.screening()
    for runs in forced.recorded:
        assert answers.of_answers(runs.tapes).verdict == "FAILED", runs.where


def test_records_that_should_be_refused_and_are_not():
    from jdpack.records import encode

    forced = paths.Paths(1.0, 1e-6, 0)
    forced.refusals()
    with mock.patch.object(encode, "check_unique", return_value=None):
        forced.refusals()
    assert [one.verdict for one in forced.found] == ["ok", "FAILED"]
    assert "an agent who appears twice" in forced.found[1].seen


def test_messages_that_differ_between_neighbours_are_found():
    family = neighbours.family(SETTING, people(), 4)
    assert verdicts(neighbours.of_steps(family))["replay: messages"] == "ok"
    family.replayed[0][1].told.append(("warning", "UserWarning", "3 numbers were clamped"))
    assert verdicts(neighbours.of_steps(family))["replay: messages"] == "FAILED"


def test_a_pipeline_that_breaks_down_has_failed():
    def breaks():
        raise ZeroDivisionError("no\nmore")

    (found,) = guarded("paths: x", breaks)
    assert found.verdict == "FAILED" and found.seen == "ZeroDivisionError: no"
    tape = record(Setting(DualGd(rounds=3), 1.0, 1e-6), people())
    tape.board.releases.pop()
    found = {one.check: one.verdict for one in of_every_run([RecordedRuns("here", [tape])])}
    assert "FAILED" in found.values()


@pytest.mark.parametrize("seed", [0, 4])
def test_honest_runs_are_interrupted_and_repaired_as_they_should(seed):
    """With seed 4 the replaced agent wants nothing; one who wants nothing would be no change."""
    forced = paths.Paths(1.0, 1e-6, seed)
    forced.interruption()
    forced.repair()
    assert {one.verdict for one in forced.found} == {"ok"}


def test_few_grants_that_are_nearly_all_kept_have_a_bound():
    """The bisection for it ends where 1 minus the middle is rounded to 0."""
    almost = 1.0 - 2.0**-24
    assert budget_checks._kept(1.0, almost, 20.0) == pytest.approx(2.0**-24)
    assert budget_checks._kept(1000.0, 0.5, 20.0) == pytest.approx(100.0, rel=0.01)


@pytest.mark.parametrize("answer", [-5.0, -3.0, -1.5, -0.5, 0.0, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("doubt", [0.01, 0.3, 1.0, 5.0])
def test_the_bound_on_noise_and_coins_is_no_more_than_a_certificate_needs(answer, doubt):
    """Whatever the release about the coins says, and however noisy it is.

    `answer` is in deviations of that release, and `doubt` is one of them in variances of the load.
    """
    cap, beta = float(DEMAND_CODE_MAX), 1e-7
    total, noise = 5e3 * cap, (40.0 * cap) ** 2
    scale, tail = doubt * noise, -math.log(beta)
    coins = Coins(answer * scale, scale, cap, cap * math.sqrt(noise), cap * total / 4.0)
    fits = Sum(noise, 1.0, (math.sqrt(noise),)).fits(coins, tail)
    for f in (1.0, 0.9999, 0.99, 0.9, 0.6, 0.2):
        certified = min(fit.kept(f) * (total + fit.radius) for fit in fits) - f * total
        given = (np.array([total]), f, *np.array([[noise], [answer * scale], [scale]]), tail)
        least = budget_checks._with_coins(*given) - f * total
        # It is not much less either, so it catches a bound that is too low.
        assert (0.6 if answer > -4.0 else 0.0) * certified < least < certified
