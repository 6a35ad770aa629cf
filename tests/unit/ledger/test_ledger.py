"""The ledger: what all runs spend together never exceeds the total, and nothing is forgotten."""

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from scipy.optimize import brentq
from scipy.stats import norm

from helpers import run_cli
from jdpack import Budget, BudgetError, Ledger, LedgerError, Neighbours
from jdpack.ledger import sqlite_file as ledgerfile
from jdpack.ledger import text
from jdpack.ledger.balance import Balance
from jdpack.ledger.progress import ProgressFile
from jdpack.privacy import gdp, zcdp
from jdpack.privacy.accounting import REPAIR_SHARE, delta_of, proved
from jdpack.storage import hash_chain

pytestmark = pytest.mark.long

REPLACE, ADD = Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE
ONE = Budget.split(1.0, 1e-6, truncated=False)
SMALL = Budget.split(0.5, 1e-7, truncated=False)
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def path(request, tmp_path):
    """Where the ledger is: a file, or with `both` also a PostgreSQL database."""
    if getattr(request, "param", "sqlite") == "postgresql":
        return request.getfixturevalue("database")
    return tmp_path / "ledger.db"


both = pytest.mark.parametrize("path", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def ledger(path):
    return Ledger.create(path, "clinic", epsilon=4.0, delta=1e-5)


def fresh(epsilon=4.0, delta=1e-5, accounting="gdp") -> Balance:
    return Balance.of("clinic", epsilon, delta, REPLACE, accounting)


def of_before(epsilon: float, delta: float) -> Budget:
    """A budget of Gaussian noise, split as in versions that knew only zCDP."""
    rho = zcdp.rho_of(epsilon, float(1 - REPAIR_SHARE) * delta * (1 - 1e-12))
    beta = float(REPAIR_SHARE) * delta / (1 + math.exp(epsilon)) * (1 - 1e-12)
    return Budget(epsilon, delta, rho, 0.0, beta)


def fill(balance: Balance, budget: Budget) -> Balance:
    while balance.fits(budget):
        balance = balance.plus(budget)
    return balance


def exactly(rho: float, delta: float, accounting: str) -> float:
    """The epsilon of rho at delta, from other libraries."""
    if accounting == "gdp":
        mu = math.sqrt(2 * rho)

        def excess(epsilon: float) -> float:
            most = norm.cdf(mu / 2 - epsilon / mu)
            return float(most - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)) - delta

        return float(brentq(excess, 1e-6, 100.0)) + rho / 512
    # RDP of order a is a rho.
    orders = np.concatenate([np.linspace(1.05, 50, 4000), np.linspace(51, 1000, 950)])
    return rdp_privacy_accountant.compute_epsilon(orders, orders * rho, delta)[0]


# --- the arithmetic ---------------------------------------------------------------------------


@pytest.mark.parametrize(("accounting", "share"), [("gdp", 0.2), ("zcdp", 0.5)])
@pytest.mark.parametrize(("epsilon", "delta"), [(4.0, 1e-5), (0.3, 1e-9), (20.0, 1e-3)])
def test_the_limits_are_those_of_the_total_by_another_library(epsilon, delta, accounting, share):
    balance = fresh(epsilon, delta, accounting)
    assert balance.sound
    assert float(balance.delta_limit) == pytest.approx(share * delta, rel=1e-15)
    found = exactly(float(balance.rho_limit), (1 - share) * delta, accounting)
    assert found == pytest.approx(epsilon, rel=1e-3)
    assert not dataclasses.replace(balance, delta_limit=balance.delta_limit / 2).sound
    assert not dataclasses.replace(
        balance, rho_limit=balance.rho_limit * Fraction(1001, 1000)
    ).sound


def test_sums_are_exact_and_shown_as_epsilon_and_delta():
    runs = [ONE, SMALL, Budget.split(0.7, 3e-7, truncated=False), SMALL]
    balance = fresh()
    for budget in runs:
        balance = balance.plus(budget)
    assert balance.rho_spent == sum(Fraction(b.rho) for b in runs)
    assert balance.delta_spent == sum(Fraction(b.beta) for b in runs)
    assert balance.rho_left + balance.rho_spent == balance.rho_limit
    epsilon, delta = balance.spent
    assert epsilon == pytest.approx(exactly(float(balance.rho_spent), 8e-6, "gdp"), rel=1e-3)
    assert delta == pytest.approx(8e-6 + float(balance.delta_spent), rel=1e-12)
    shown = json.loads(json.dumps(balance.to_dict()))
    assert (shown["epsilon_spent"], shown["delta_spent"]) == balance.spent
    assert Fraction(shown["exact"]["rho_spent"]) == balance.rho_spent
    for budget in runs:
        balance = balance.minus(budget)
    assert balance == fresh()


def test_runs_of_both_kinds_add_up_in_zcdp():
    """Old runs, runs with truncated noise, and runs whose own budget is in GDP."""
    truncated, old = Budget.split(0.7, 3e-7, truncated=True), of_before(1.0, 1e-6)
    assert proved(old) and proved(truncated)
    balance = fresh(accounting="zcdp").plus(old).plus(truncated).plus(ONE).plus(SMALL)
    runs = [old, truncated, ONE, SMALL]
    assert balance.rho_spent == sum(Fraction(b.rho) for b in runs)
    taken = Fraction(old.delta) + Fraction(truncated.delta) + Fraction(truncated.truncation)
    assert balance.delta_spent == taken + Fraction(ONE.beta) + Fraction(SMALL.beta)
    epsilon, _ = balance.spent
    assert epsilon == pytest.approx(exactly(float(balance.rho_spent), 5e-6, "zcdp"), rel=1e-3)


@pytest.mark.parametrize("other", [of_before(1.0, 1e-6), Budget.split(1.0, 1e-6, truncated=True)])
def test_a_data_set_in_gdp_takes_no_other_noise(other):
    for balance in (fresh(), fresh().plus(SMALL)):
        assert not balance.fits(other)
        assert (balance.how_many(other), balance.would_fit(other)) == (0, None)
        with pytest.raises(BudgetError, match="adds up Gaussian noise") as caught:
            balance.plus(other)
        assert "--accounting zcdp" in caught.value.hint


def test_how_many_runs_fit_before_and_after():
    """Runs of (1, 1e-7) in a total of (4, 1e-5), also with the noise that such a run used to have.

    A run of the same promise now has 5.8% less noise, so it takes more of rho.
    """
    run, old = Budget.split(1.0, 1e-7, truncated=False), of_before(1.0, 1e-7)
    assert fresh(accounting="zcdp").how_many(old) == 18
    assert fresh().how_many(run) == 19
    assert math.sqrt(old.rho / run.rho) == pytest.approx(0.9416, abs=1e-4)
    as_noisy = dataclasses.replace(run, rho=old.rho)
    assert fresh().how_many(as_noisy) == 21
    # By their deltas, as many runs fit as before: 50.
    assert fresh().delta_limit // Fraction(run.beta) in (49, 50)


@both
def test_a_run_that_repairs_nothing_takes_no_delta(ledger):
    loose = Budget.split(1.0, 1e-6, truncated=False, excess=0.01)
    left = ledger.balance("clinic")
    assert left.how_many(loose) == left.rho_limit // Fraction(loose.rho)
    ledger.reserve("clinic", "a", loose, REPLACE)
    ledger.reserve("clinic", "b", ONE, REPLACE)
    balance = Ledger.open(ledger.path).balance("clinic")
    assert balance.delta_spent == Fraction(ONE.beta)
    assert ledger.runs["a"].budget == loose


def test_any_sequence_of_runs_stays_within_the_total():
    """The last line of the proof, with numbers: it holds for all runs that were let in."""
    random.seed(5)
    full = 0
    for place in range(8):
        total = random.uniform(0.5, 8.0), 10.0 ** random.uniform(-9, -3)
        accounting = "zcdp" if place % 2 else "gdp"
        balance, let_in = fresh(*total, accounting), []
        for _ in range(20):
            asked = total[0] * random.uniform(0.02, 0.6), total[1] * random.uniform(1e-4, 0.2)
            budget = Budget.split(*asked, truncated=random.random() < 0.5)
            if balance.fits(budget):
                balance = balance.plus(budget)
                let_in.append(budget)
        assert len(let_in) > 1
        rho = float(sum(Fraction(b.rho) for b in let_in)) * (1 + 1e-15)
        repairs = sum(
            Fraction(b.beta)
            if b.accounting == "gdp"
            else Fraction(b.delta) + Fraction(b.truncation)
            for b in let_in
        )
        assert Fraction(delta_of(rho, total[0], accounting)) + repairs <= Fraction(total[1])
        assert accounting == "zcdp" or all(b.accounting == "gdp" for b in let_in)
        full += len(let_in) < 20
    assert full >= 3, "most totals are used up: else nothing was tested"


def test_the_first_run_may_take_the_whole_total_and_then_nothing_fits():
    whole = Budget.split(4.0, 1e-5, truncated=False)
    rho = Fraction(whole.rho)
    assert Fraction(whole.beta) > fresh().delta_limit
    balance = dataclasses.replace(fresh().plus(whole), alone=(4.0, 1e-5))
    assert (balance.rho_spent, balance.spent) == (rho, (4.0, 1e-5))
    assert not balance.fits(Budget.split(1e-6, 1e-12, truncated=False))
    assert balance.rho_left == max(0, balance.rho_limit - rho)
    assert balance.delta_left == 0
    for epsilon, delta in [(4.01, 1e-5), (4.0, 1.01e-5)]:
        assert not fresh().fits(Budget.split(epsilon, delta, truncated=False))
    assert not fresh().plus(SMALL).fits(whole)


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (3.0, 1e-9), (0.2, 4e-6)])
def test_what_is_said_to_fit_fits_and_a_bit_more_does_not(epsilon, delta, truncated):
    asked, new = Budget.split(epsilon, delta, truncated=truncated), fresh()
    if truncated:
        new = fresh(accounting="zcdp")
    for balance in [fill(new, asked), fill(new, Budget.split(0.9, 1e-9, truncated=False))]:
        fit = balance.would_fit(asked)
        if balance.fits(asked) or fit is None:
            continue
        assert balance.fits(Budget.split(*fit, truncated=truncated))
        more = fit[0] * (1.0 + 1.0e-2)
        if more < 4.0:
            assert not balance.fits(Budget.split(more, fit[1], truncated=truncated))
        assert fit[1] == delta or not balance.fits(
            Budget.split(1e-6, min(delta, fit[1] * 1.02), truncated=truncated)
        )


@both
@pytest.mark.parametrize("before", [None, SMALL, Budget.split(2.0, 1e-6, truncated=True)])
@pytest.mark.parametrize(
    ("epsilon", "delta", "truncated"),
    [
        (1.0, 1e-7, False),
        (1.0, 4e-7, False),  # here the deltas run out first
        (1.0, 4e-7, True),
        (3.9, 9e-6, False),  # as a first run only
        (6.0, 1e-7, False),  # never
    ],
)
def test_as_many_runs_as_are_said_to_fit_are_reserved_and_not_one_more(
    path, epsilon, delta, truncated, before
):
    ledger = Ledger.create(path, "clinic", epsilon=4.0, delta=1e-5, accounting="zcdp")
    asked, made = Budget.split(epsilon, delta, truncated=truncated), 0
    if before is not None:
        ledger.reserve("clinic", "before", before, REPLACE)
    promised = ledger.balance("clinic").how_many(asked)
    while True:
        left = ledger.balance("clinic").how_many(asked)
        try:
            ledger.reserve("clinic", f"run {made}", asked, REPLACE)
        except BudgetError:
            break
        made += 1
        assert left == promised - made + 1
    assert made == promised and left == 0
    assert (made > 1) == (epsilon == 1.0) and (made == 1) == (epsilon == 3.9 and before is None)


def test_counting_is_exact_where_a_sum_meets_its_limit():
    """Limits that are whole multiples of a run's cost, and one grain less."""
    grain = Fraction(1, 2**1000)
    rho, delta = Fraction(ONE.rho), Fraction(ONE.beta)
    for k in (1, 2, 7):
        for less, count in [(0, k), (grain, k - 1)]:
            some = dataclasses.replace(
                fresh(), runs=1, rho_limit=k * rho - less, delta_limit=1000 * delta
            )
            assert some.how_many(ONE) == count == (len(runs_of(some, ONE)))
            some = dataclasses.replace(
                fresh(), runs=1, rho_limit=1000 * rho, delta_limit=k * delta - less
            )
            assert some.how_many(ONE) == count == (len(runs_of(some, ONE)))


def runs_of(balance: Balance, budget: Budget) -> list[Balance]:
    """The balances after each run that fits."""
    found = []
    while balance.fits(budget):
        balance = balance.plus(budget)
        found.append(balance)
    return found


@both
def test_the_ledger_says_how_many_more_runs_fit(ledger, monkeypatch, capsys):
    show = functools.partial(run_cli, monkeypatch, capsys, "ledger", "show", ledger.path)
    assert "fits" not in show()[1], "there is no last run, and none was asked for"
    count = fresh().how_many(ONE)
    assert f"fits      {count} more runs of (1, 1e-06)" in show("--epsilon", 1, "--delta", 1e-6)[1]
    ledger.reserve("clinic", "a", ONE, REPLACE)
    ledger.reserve("clinic", "b", SMALL, REPLACE)
    left = ledger.balance("clinic")
    assert f"fits      {left.how_many(SMALL)} more runs like the last (0.5, 1e-07)" in show()[1]
    ledger.cancel("a")
    ledger.reserve("clinic", "a", ONE, REPLACE)
    assert f"{left.how_many(ONE)} more runs like the last (1, 1e-06)" in show()[1]
    data = json.loads(show("--epsilon", 2, "--delta", 1e-7, "--json")[1])["datasets"][0]["fits"]
    two = Budget.split(2.0, 1e-7, truncated=False)
    assert data == {"epsilon": 2.0, "delta": 1e-7, "truncation": 0.0, "runs": left.how_many(two)}
    said = show("--epsilon", 6, "--delta", 1e-6)[1]
    assert "no more runs of (6, 1e-06); one of (" in said and "would" in said
    for wrong, sentence in [
        (["--epsilon", 1], "go together"),
        (["--delta", 1e-8], "go together"),
        (["--epsilon", "inf", "--delta", 1e-8], "has no place in a ledger"),
        (["--epsilon", 0, "--delta", 1e-8], "epsilon must be"),
    ]:
        code, out, err = show(*wrong)
        assert (code, out) == (2, "") and sentence in err


@both
def test_the_ledger_explains_why_an_epsilon_shows_as_less(ledger):
    said = text.show(ledger)
    assert "epsilon 0, delta 0, by 0 runs" in said and "shows as" not in said
    run = Budget.split(1.0, 1e-7, truncated=False)
    ledger.reserve("clinic", "a", run, REPLACE)
    ledger.reserve("clinic", "b", run, REPLACE)
    said = " ".join(text.show(ledger).split())
    alone = exactly(run.rho, 8e-6, "gdp")
    assert f"a run of epsilon 1 at delta 1e-07 shows as {alone:.3g}" in said
    assert "Epsilon is counted at delta 8e-06" in said
    assert "at the total's delta the same noise" in text.ledger_words(ledger.balance("clinic"))
    left = ledger.balance("clinic").rho_left / ledger.balance("clinic").rho_limit
    assert f"left {math.floor(1000 * left) / 10:g}% for noise" in said
    assert "zCDP" not in said


@both
def test_a_single_run_with_the_whole_total_needs_no_explanation(ledger):
    ledger.reserve("clinic", "a", Budget.split(4.0, 1e-5, truncated=False), REPLACE)
    said = text.show(ledger)
    assert "spent     epsilon 4, delta 1e-05, by 1 run\n" in said and "shows as" not in said
    assert text.ledger_words(ledger.balance("clinic")).endswith("in 1 run")


def test_a_data_set_in_zcdp_says_so(old):
    said = text.show(old)
    assert "added up in zCDP" in said and "for the runs' deltas (delta" in said


@both
def test_a_refusal_says_what_was_asked_what_is_spent_and_what_fits(ledger):
    big = Budget.split(3.5, 1e-6, truncated=False)
    ledger.reserve("clinic", "a", big, REPLACE)
    head = ledger.head
    with pytest.raises(BudgetError) as caught:
        ledger.reserve("clinic", "b", big, REPLACE)
    message, hint = caught.value.message, caught.value.hint
    spent = exactly(big.rho, 8e-6, "gdp")
    assert message == (
        "a run of epsilon 3.5, delta 1e-06 does not fit data set 'clinic': of (4, 1e-05), "
        f"({spent:.3g}, 8.4e-06) is spent"
    )
    words = hint.split()
    assert hint.startswith("epsilon ")
    assert hint.endswith(" at delta 1e-06 would fit; nothing was spent")
    assert ledger.head == head
    ledger.reserve("clinic", "b", Budget.split(float(words[1]), 1e-6, truncated=False), REPLACE)
    balance = ledger.balance("clinic")
    assert balance.rho_left < balance.rho_limit / 100
    deltas = fill(fresh(), ONE)
    assert deltas.runs == 5
    with pytest.raises(BudgetError, match="the part of its delta for runs is used up"):
        deltas.plus(ONE)


@both
def test_a_run_that_bounds_nothing_or_something_else_is_refused(ledger):
    with pytest.raises(BudgetError, match="without privacy"):
        ledger.reserve("clinic", "a", Budget.split(math.inf, 1e-6, truncated=False), REPLACE)
    with pytest.raises(BudgetError, match="add-remove neighbours does not fit"):
        ledger.reserve("clinic", "a", ONE, ADD)
    for name in ("rho", "beta", "truncation"):
        forged = dataclasses.replace(ONE, **{name: getattr(ONE, name) * 1.01 + 1e-8})
        assert not proved(forged)
        with pytest.raises(BudgetError, match="do not prove"):
            ledger.reserve("clinic", "a", forged, REPLACE)
    for forged in (
        dataclasses.replace(ONE, rho=-1.0),
        dataclasses.replace(ONE, beta=math.nan),
        dataclasses.replace(ONE, delta=0.0),
    ):
        with pytest.raises(BudgetError, match="is not a budget"):
            ledger.reserve("clinic", "a", forged, REPLACE)
    for forged in (dataclasses.replace(ONE, epsilon=1e4), dataclasses.replace(ONE, rho=1e9)):
        with pytest.raises(BudgetError, match="do not prove"):
            ledger.reserve("clinic", "a", forged, REPLACE)
    assert ledger.balance("clinic").runs == 0


@pytest.mark.parametrize("truncated", [False, True])
def test_every_budget_that_can_be_split_is_proved(truncated):
    for epsilon in (1e-6, 0.1, 1.0, 50.0):
        for delta in (1e-100, 1e-8, 0.9):
            assert proved(Budget.split(epsilon, delta, truncated=truncated))


# --- runs -------------------------------------------------------------------------------------


@both
def test_a_run_is_counted_once(ledger):
    first = ledger.reserve("clinic", "a", ONE, REPLACE)
    head = ledger.head
    assert ledger.reserve("clinic", "a", ONE, REPLACE) == first == ledger.balance("clinic")
    assert (ledger.head, first.runs, first.open) == (head, 1, ("a",))
    with pytest.raises(LedgerError, match="already in the ledger, with another budget"):
        ledger.reserve("clinic", "a", SMALL, REPLACE)
    Ledger.create(ledger.path, "town", epsilon=1.0, delta=1e-6)
    with pytest.raises(LedgerError, match="already in the ledger, with another budget"):
        ledger.reserve("town", "a", ONE, REPLACE)
    ledger.finish("a", "0" * 64)
    head = ledger.head
    ledger.finish("a", "0" * 64)
    ledger.reserve("clinic", "a", ONE, REPLACE, posted=["1" * 64, "0" * 64])
    for other in ((), ["1" * 64], ["0" * 64, "1" * 64]):
        with pytest.raises(LedgerError, match="is finished, and this is not its final billboard"):
            ledger.reserve("clinic", "a", ONE, REPLACE, posted=other, again=True)
    assert (ledger.head, ledger.balance("clinic").open) == (head, ())
    assert ledger.balance("clinic").rho_spent == Fraction(ONE.rho)
    for other in ("1" * 64, "", "x"):
        with pytest.raises(LedgerError, match="is finished, with billboard 000"):
            ledger.finish("a", other)
    assert ledger.balance("town").runs == 0


LINES = [letter * 64 for letter in "0123456789"]


def kinds(ledger):
    return " ".join(entry.kind for entry in ledger.entries())


def posting(ledger, lines):
    """A run that has posted `lines` lines."""
    ledger.reserve("clinic", "a", ONE, REPLACE)
    for before, line in itertools.pairwise(["", *LINES[:lines]]):
        ledger.post("a", before, line)


@both
@pytest.mark.parametrize("lines", [0, 1, 2, 5])
@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("folder", range(7))
def test_a_run_resumes_from_its_last_line_and_from_no_other(ledger, lines, folder, drawn):
    """A folder that lags behind is always refused; one that is ahead, until it pays again."""
    posting(ledger, lines)
    drawn = drawn and folder > 0
    more = {"posted": LINES[:folder], "drawn": drawn}
    head, runs = ledger.head, 1
    if folder < lines:
        for again in (False, True):
            with pytest.raises(LedgerError, match="gone further than this folder"):
                ledger.reserve("clinic", "a", ONE, REPLACE, again=again, **more)
    elif folder == lines or (drawn and folder == lines + 1):
        ledger.reserve("clinic", "a", ONE, REPLACE, **more)
    else:
        with pytest.raises(LedgerError, match="is behind run 'a'") as error:
            ledger.reserve("clinic", "a", ONE, REPLACE, **more)
        assert "--reserve-again" in error.value.hint
        assert ledger.head == head
        ledger.reserve("clinic", "a", ONE, REPLACE, again=True, **more)
        runs = 2
        assert head_of(ledger) == LINES[folder - 1]
    assert (ledger.head == head) == (runs == 1)
    balance = ledger.balance("clinic")
    assert (balance.runs, balance.rho_spent) == (runs, runs * Fraction(ONE.rho))


@both
def test_a_folder_with_other_lines_is_refused(ledger):
    posting(ledger, 3)
    for other in ([LINES[0], LINES[1], LINES[9]], [LINES[9]], LINES[4:8]):
        for drawn in (False, True):
            with pytest.raises(LedgerError, match="gone further than this folder"):
                ledger.reserve("clinic", "a", ONE, REPLACE, posted=other, drawn=drawn, again=True)


@both
def test_of_two_who_post_one_is_refused_before_its_line_is_public(ledger):
    posting(ledger, 2)
    ledger.post("a", LINES[1], LINES[2])
    ledger.post("a", LINES[1], LINES[2])  # the same line again: it was drawn once
    for before in ("", LINES[0], LINES[1]):
        with pytest.raises(LedgerError, match="an earlier copy"):
            ledger.post("a", before, LINES[5])
    assert head_of(ledger) == LINES[2]
    with pytest.raises(LedgerError, match="has no run 'b'"):
        ledger.post("b", "", LINES[0])


@both
def test_what_has_begun_is_never_given_back(ledger):
    posting(ledger, 0)
    ledger.cancel("a")
    with pytest.raises(LedgerError, match="is cancelled"):
        ledger.post("a", "", LINES[0])
    posting(ledger, 1)
    with pytest.raises(LedgerError, match="has begun"):
        ledger.cancel("a")
    with pytest.raises(LedgerError, match="posted more than this billboard"):
        ledger.finish("a", LINES[1])
    ledger.finish("a", LINES[0])
    assert kinds(ledger) == "dataset reserve cancel reserve begin finish"
    assert ledger.balance("clinic").runs == 1


@both
def test_a_run_that_the_ledger_forgot_is_reserved_again_only_if_asked(ledger):
    with pytest.raises(LedgerError, match="knows nothing of run 'a', which has already posted"):
        ledger.reserve("clinic", "a", ONE, REPLACE, posted=LINES[:2])
    assert kinds(ledger) == "dataset"
    ledger.reserve("clinic", "a", ONE, REPLACE, posted=LINES[:2], again=True)
    ledger.post("a", LINES[1], LINES[2])
    with pytest.raises(LedgerError, match="has begun"):
        ledger.cancel("a")
    assert kinds(ledger) == "dataset reserve begin"


@both
def test_a_second_reservation_must_fit(ledger):
    whole = Budget.split(4.0, 1e-5, truncated=False)
    ledger.reserve("clinic", "a", whole, REPLACE)
    with pytest.raises(BudgetError, match="does not fit"):
        ledger.reserve("clinic", "a", whole, REPLACE, posted=LINES[:1], again=True)


OLD_ONE = of_before(1.0, 1e-6)
OLD = """
CREATE TABLE entries (number INTEGER PRIMARY KEY, line TEXT NOT NULL) STRICT;
CREATE TRIGGER only_next BEFORE INSERT ON entries WHEN NEW.number IS NOT \
(SELECT coalesce(max(number), 0) + 1 FROM entries) \
BEGIN SELECT RAISE(ABORT, 'entries are appended'); END;
CREATE TRIGGER no_update BEFORE UPDATE ON entries \
BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON entries \
BEGIN SELECT RAISE(ABORT, 'entries are never deleted'); END;
PRAGMA application_id = 0x6a64706b;
PRAGMA user_version = 1;
"""


@pytest.fixture
def old(path):
    """A ledger of schema 1: a run that was cancelled, one that is finished, and two open ones."""
    total = fresh(accounting="zcdp")
    limits = {"rho_limit": float(total.rho_limit), "delta_limit": float(total.delta_limit)}
    whole = {"neighbours": "replace-one", "epsilon": 4.0, "delta": 1e-5, **limits}
    amounts = OLD_ONE.to_dict()
    records = [
        ("dataset", whole),
        *(("reserve", {"run": run, "token": "aa", **amounts}) for run in "abcd"),
        ("resume", {"run": "a", "token": "bb"}),
        ("finish", {"run": "a", "billboard": "0" * 64}),
        ("cancel", {"run": "b"}),
    ]
    write_old(path, 1, records)
    return Ledger.open(path)


def write_old(path, schema, records):
    """Write a ledger as an earlier version did."""
    db, last = sqlite3.connect(path, isolation_level=None), ""
    db.executescript(OLD.replace("user_version = 1", f"user_version = {schema}"))
    for number, (kind, data) in enumerate(records, start=1):
        time = {"time": "2026-01-01T00:00:00Z", "dataset": "clinic"}
        line = hash_chain.seal({"type": kind, **time, **data}, last)
        last = hash_chain.hash_of(line)
        db.execute("INSERT INTO entries VALUES (?, ?)", (number, line))
    db.close()


def test_a_ledger_of_before_is_read_and_used(old):
    assert old.balance("clinic").runs == 3 and old.verify().entries == 8
    assert old.balance("clinic").accounting == "zcdp"
    old.reserve("clinic", "e", SMALL, REPLACE)
    old.post("e", "", LINES[0])
    assert Ledger.open(old.path).verify().runs == 4
    balance = old.balance("clinic")
    assert balance.rho_spent == 3 * Fraction(OLD_ONE.rho) + Fraction(SMALL.rho)
    assert balance.delta_spent == 3 * Fraction(OLD_ONE.delta) + Fraction(SMALL.beta)
    db = sqlite3.connect(old.path)
    assert db.execute("PRAGMA user_version").fetchone() == (3,)
    db.close()


def test_a_ledger_of_schema_2_is_read_and_used(path):
    """One data set in zCDP, which does not say so, with a run that has begun."""
    total = fresh(accounting="zcdp")
    limits = {"rho_limit": float(total.rho_limit), "delta_limit": float(total.delta_limit)}
    write_old(path, 2, [
        ("dataset", {"neighbours": "replace-one", "epsilon": 4.0, "delta": 1e-5, **limits}),
        ("reserve", {"run": "a", **OLD_ONE.to_dict()}),
        ("begin", {"run": "a"}),
        ("finish", {"run": "a", "billboard": "0" * 64}),
    ])  # fmt: skip
    ledger = Ledger.open(path)
    assert ledger.balance("clinic").accounting == "zcdp" and ledger.verify().entries == 4
    ledger.reserve("clinic", "b", SMALL, REPLACE)
    balance = Ledger.open(path).balance("clinic")
    assert balance.rho_spent == Fraction(OLD_ONE.rho) + Fraction(SMALL.rho)
    assert balance.delta_spent == Fraction(OLD_ONE.delta) + Fraction(SMALL.beta)
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (3,)


def test_a_total_delta_that_protects_nobody_is_refused_but_one_of_before_is_read(path):
    with pytest.raises(BudgetError, match=r"delta must be at most 0.01, not 0.02"):
        Ledger.create(path, "clinic", epsilon=1.0, delta=0.02)
    assert not path.exists()
    rho = gdp.rho_of(1.0, 0.016)
    whole = {"neighbours": "replace-one", "epsilon": 1.0, "delta": 0.02, "rho_limit": rho}
    write_old(path, 3, [("dataset", {**whole, "delta_limit": 0.004, "accounting": "gdp"})])
    assert Ledger.open(path).reserve("clinic", "a", SMALL, REPLACE).runs == 1


def test_a_run_of_before_is_not_given_back_and_resumes_if_it_pays_again(old):
    """Nobody noted how far it came, so its folder may come from any backup."""
    with pytest.raises(LedgerError, match="by an earlier version"):
        old.cancel("c")
    for run, posted in (("c", []), ("d", LINES[:3])):
        with pytest.raises(LedgerError, match=f"is behind run '{run}'"):
            old.reserve("clinic", run, OLD_ONE, REPLACE, posted=posted)
        old.reserve("clinic", run, OLD_ONE, REPLACE, posted=posted, again=True)
        with pytest.raises(LedgerError, match="has begun"):
            old.cancel(run)
        old.reserve("clinic", run, OLD_ONE, REPLACE, posted=posted)
    assert old.balance("clinic").runs == 5


def head_of(ledger):
    return ledger._progress("a").head


@pytest.mark.parametrize("lines", [0, 3])
def test_a_run_whose_progress_is_lost_is_refused_until_it_pays_again(ledger, lines):
    posting(ledger, 3)
    (file,) = ledger.path.parent.glob("*.heads")
    for lost in (file.unlink, lambda: file.write_bytes(b""), lambda: file.write_bytes(b"0" * 64)):
        lost()
        with pytest.raises(LedgerError, match="is missing, which says how far run 'a'") as error:
            ledger.reserve("clinic", "a", ONE, REPLACE, posted=LINES[:lines])
        assert "--reserve-again" in error.value.hint
        with pytest.raises(LedgerError, match="has begun"):
            ledger.cancel("a")
    file.write_bytes(b"x" * 130)
    with pytest.raises(LedgerError, match="it is damaged"):
        ledger.reserve("clinic", "a", ONE, REPLACE, posted=LINES[:lines], again=True)
    file.unlink()
    assert ledger.reserve("clinic", "a", ONE, REPLACE, posted=LINES[:lines], again=True).runs == 2


@pytest.mark.parametrize("tail", [b"2" * 40, b"2" * 64, bytes(65), b"2" * 9 + bytes(56)])
def test_a_hash_that_was_cut_short_is_of_a_line_that_nobody_saw(ledger, tail):
    posting(ledger, 2)
    (file,) = ledger.path.parent.glob("*.heads")
    with file.open("ab") as torn:
        torn.write(tail)
    ledger.reserve("clinic", "a", ONE, REPLACE, posted=LINES[:2])
    ledger.post("a", LINES[1], LINES[3])
    assert head_of(ledger) == LINES[3] and file.stat().st_size == 3 * 65
    ledger.finish("a", LINES[3])
    assert not file.exists()


def test_a_first_line_that_was_never_public_may_be_another(ledger, monkeypatch):
    """A kill between the file and the ledger's `begin`."""
    ledger.reserve("clinic", "a", ONE, REPLACE)
    ProgressFile(ledger.path, "a").note(LINES[7], first=True)
    ledger.reserve("clinic", "a", ONE, REPLACE)
    ledger.post("a", "", LINES[0])
    assert head_of(ledger) == LINES[0] and kinds(ledger) == "dataset reserve begin"


@both
def test_only_a_run_that_posted_nothing_gives_back(ledger):
    before = ledger.balance("clinic")
    for _ in range(2):
        ledger.reserve("clinic", "a", ONE, REPLACE)
        ledger.cancel("a")
        ledger.cancel("a")
        assert ledger.balance("clinic") == before
    with pytest.raises(LedgerError, match="is cancelled"):
        ledger.finish("a", "0" * 64)
    ledger.reserve("clinic", "a", SMALL, REPLACE)  # a cancelled run is free to ask otherwise
    with pytest.raises(LedgerError, match="'' is not a SHA-256"):
        ledger.finish("a", "")
    ledger.finish("a", "0" * 64)
    with pytest.raises(LedgerError, match="is finished"):
        ledger.cancel("a")
    for unknown in (lambda: ledger.cancel("b"), lambda: ledger.finish("b", "0" * 64)):
        with pytest.raises(LedgerError, match="no run 'b'"):
            unknown()
    assert kinds(ledger) == "dataset reserve cancel reserve cancel reserve finish"


@both
def test_data_sets_are_apart(ledger):
    Ledger.create(ledger.path, "town", epsilon=1.0, delta=1e-6, neighbours=ADD)
    assert ledger.datasets == ["clinic", "town"]
    ledger.reserve("town", "a", SMALL, ADD)
    assert ledger.balance("clinic").runs == 0
    assert [e.kind for e in ledger.entries("town")] == ["dataset", "reserve"]
    with pytest.raises(LedgerError, match="already has a data set 'town'"):
        Ledger.create(ledger.path, "town", epsilon=9.0, delta=1e-6)
    for asked in (ledger.balance, ledger.entries):
        with pytest.raises(LedgerError, match="no data set 'city'\nhint: it has 'clinic', 'town'"):
            asked("city")
    with pytest.raises(LedgerError, match="no data set"):
        ledger.reserve("city", "a", ONE, REPLACE)


@both
@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31m", "x" * 101, 7, None])
def test_names_are_short_and_printable(ledger, name):
    with pytest.raises(LedgerError, match="printable text"):
        Ledger.create(ledger.path, name, epsilon=1.0, delta=1e-6)
    with pytest.raises(LedgerError, match="printable text"):
        ledger.reserve("clinic", name, ONE, REPLACE)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(math.inf, 1e-6), (0.0, 1e-6), (math.nan, 1e-6), (1.0, 0.0), ("1", 1.0)]
)
def test_a_total_that_makes_no_sense_leaves_no_file(path, epsilon, delta):
    with pytest.raises(BudgetError):
        Ledger.create(path, "clinic", epsilon=epsilon, delta=delta)
    assert not path.exists()


@both
def test_the_ledger_in_words(ledger):
    ledger.reserve("clinic", "a", ONE, REPLACE)
    Ledger.create(ledger.path, "träger", epsilon=1.0, delta=1e-6)
    assert "epsilon 4, delta 1e-05" in text.show(ledger, "clinic")
    assert "open      a" in text.show(ledger)
    assert "träger" not in text.show(ledger, "clinic")
    assert "may take the whole total" in text.show(ledger, "träger")
    assert json.loads(json.dumps(text.show_dict(ledger)))["head"] == ledger.head
    assert len(text.history(ledger).splitlines()) == len(ledger.entries()) == 3
    assert json.loads(json.dumps(text.history_dict(ledger)))[1]["rho"] == ONE.rho
    assert ledger.head in text.verified(ledger.verify(ledger.head))


# --- the chain --------------------------------------------------------------------------------


def tampered(path, *statements):
    """Run SQL on the file like somebody who drops its triggers first and restores them after."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous = OFF")
    db.execute("BEGIN")
    kept = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall())
    for name in kept:
        db.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        db.execute(*statement) if isinstance(statement, tuple) else db.execute(statement)
    for sql in kept.values():
        db.execute(sql)
    db.execute("COMMIT")
    db.close()


def resealed(path, number, **changes):
    """Forge an entry, and correct its hash and those of all later entries."""
    db = sqlite3.connect(path)
    lines = [line for (line,) in db.execute("SELECT line FROM entries ORDER BY number")]
    db.close()
    statements, last = [], ""
    for place, line in enumerate(lines, start=1):
        data = json.loads(line)
        data = {k: v for k, v in data.items() if k not in ("prev", "hash")}
        line = hash_chain.seal({**data, **(changes if place == number else {})}, last)
        last = hash_chain.hash_of(line)
        statements.append(("UPDATE entries SET line = ? WHERE number = ?", (line, place)))
    tampered(path, *statements)


def test_any_flipped_byte_of_any_line_is_found(ledger):
    ledger.reserve("clinic", "a", ONE, REPLACE)
    ledger.finish("a", "0" * 64)
    whole = ledger.path.read_bytes()
    verified = ledger.verify()
    places = 0
    for (line,) in sqlite3.connect(ledger.path).execute("SELECT line FROM entries").fetchall():
        start = whole.index(line.encode())
        for place in range(start, start + len(line), 3):
            for bit in (1, 0x80):
                changed = bytearray(whole)
                changed[place] ^= bit
                ledger.path.write_bytes(changed)
                with pytest.raises(LedgerError):
                    ledger.verify()
                places += 1
    assert places > 500
    ledger.path.write_bytes(whole)
    assert ledger.verify() == verified


def test_a_head_kept_elsewhere_shows_what_the_file_forgot(ledger):
    ledger.reserve("clinic", "a", ONE, REPLACE)
    old = ledger.head
    ledger.reserve("clinic", "b", ONE, REPLACE)
    new = ledger.head
    assert (ledger.verify(new).since, ledger.verify(old).since) == (0, 1)
    for lost in (1, 2):
        copy = ledger.path.with_name(f"{lost}.db")
        copy.write_bytes(ledger.path.read_bytes())
        tampered(copy, f"DELETE FROM entries WHERE number = {lost}")
        with pytest.raises(LedgerError, match=f"entry {lost} of the ledger"):
            Ledger.open(copy)
    tampered(ledger.path, "DELETE FROM entries WHERE number = 3")
    assert ledger.verify(old).since == 0
    with pytest.raises(LedgerError, match="rolled back"):
        ledger.verify(new)


def test_the_file_itself_refuses_accidents(ledger):
    ledger.reserve("clinic", "a", ONE, REPLACE)
    head = ledger.head
    for statement in (
        "UPDATE entries SET line = '{}' WHERE number = 2",
        "DELETE FROM entries WHERE number = 2",
        "DELETE FROM entries",
        "INSERT OR REPLACE INTO entries VALUES (2, '{}')",
        "INSERT INTO entries VALUES (9, '{}')",
    ):
        db = sqlite3.connect(ledger.path)
        with pytest.raises(sqlite3.IntegrityError, match="entries are"):
            db.execute(statement)
        db.close()
    assert ledger.verify(head).since == 0


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (1, {"rho_limit": 0.46}),
        (1, {"accounting": "zcdp"}),
        (1, {"accounting": None}),
        (2, {"accounting": "none"}),
        (1, {"delta_limit": 9e-6}),
        (1, {"epsilon": 1e300}),
        (1, {"epsilon": 4}),
        (1, {"neighbours": "nobody"}),
        (1, {"dataset": "other"}),
        (1, {"dataset": ["clinic"]}),
        (1, {"type": "reserve"}),
        (1, {"type": ["dataset"]}),
        (1, {"time": "yesterday"}),
        (1, {"more": 1}),
        (2, {"rho": 5.0}),
        (2, {"rho": -5.0}),
        (2, {"delta": 1e-7}),
        (2, {"run": "x" * 200}),
        (2, {"beta": 0.0}),
        (3, {"run": "b"}),
        (3, {"billboard": "0" * 63}),
        (3, {"type": "cancel"}),
        (4, {"run": "a"}),
        (4, {"run": "\x1b[31m"}),
        (4, {"dataset": "other"}),
    ],
)
def test_an_entry_against_the_rules_is_refused_however_well_sealed(ledger, number, changes):
    ledger.reserve("clinic", "a", ONE, REPLACE)
    ledger.finish("a", "0" * 64)
    ledger.reserve("clinic", "b", SMALL, REPLACE)
    resealed(ledger.path, number)
    assert Ledger.open(ledger.path).verify().runs == 2
    resealed(ledger.path, number, **changes)
    with pytest.raises(LedgerError, match=f"entry [{number}-4] of the ledger: "):
        Ledger.open(ledger.path)


def test_an_entry_written_in_another_way_or_place_is_refused(ledger):
    (line,) = sqlite3.connect(ledger.path).execute("SELECT line FROM entries").fetchone()
    data = {k: v for k, v in json.loads(line).items() if k not in ("prev", "hash")}
    turned = hash_chain.seal(dict(reversed(data.items())), "")
    tampered(ledger.path, ("UPDATE entries SET line = ?", (turned,)))
    with pytest.raises(LedgerError, match="not written as schema 3"):
        Ledger.open(ledger.path)
    tampered(ledger.path, ("UPDATE entries SET line = ?", (line,)))
    assert Ledger.open(ledger.path).datasets == ["clinic"]
    tampered(ledger.path, "UPDATE entries SET number = 9")
    with pytest.raises(LedgerError, match="its number"):
        Ledger.open(ledger.path)


def test_a_huge_line_is_not_even_read(ledger):
    tampered(ledger.path, ("UPDATE entries SET line = ?", ("x" * 100_000,)))
    with pytest.raises(LedgerError, match="too big"):
        Ledger.open(ledger.path)


def test_verify_finds_a_budget_that_its_parts_do_not_prove(ledger):
    ledger.reserve("clinic", "a", ONE, REPLACE)
    resealed(ledger.path, 2, beta=ONE.beta * 2)
    with pytest.raises(LedgerError, match="do not prove"):
        ledger.verify()


# --- many processes ---------------------------------------------------------------------------


# Children come by fork after all is imported; numba's threads are idle, and not used in them.
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def all_at_once(count, target, refusal):
    """Run target(i) in `count` processes that start together; whether each was refused."""
    barrier = FORK.Barrier(count)

    def one(i):
        barrier.wait(60)
        try:
            target(i)
        except refusal:
            raise SystemExit(3) from None

    children = [FORK.Process(target=one, args=(i,)) for i in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    codes = [child.exitcode for child in children]
    assert set(codes) <= {0, 3}
    return [code == 3 for code in codes]


@both
@forks
def test_of_32_that_race_exactly_as_many_win_as_fit(ledger):
    refused = all_at_once(
        32,
        lambda i: Ledger.open(ledger.path).reserve("clinic", f"run {i}", ONE, REPLACE),
        BudgetError,
    )
    balance = ledger.balance("clinic")
    assert refused.count(False) == balance.runs == fill(fresh(), ONE).runs == 5
    assert set(balance.open) == {f"run {i}" for i in range(32) if not refused[i]}
    assert balance.rho_spent == 5 * Fraction(ONE.rho)
    assert balance.delta_spent <= balance.delta_limit


@both
@forks
def test_several_may_make_the_same_ledger_at_once(path):
    refused = all_at_once(
        8, lambda i: Ledger.create(path, f"set {i % 4}", epsilon=1.0, delta=1e-6), LedgerError
    )
    assert [refused[i] + refused[i + 4] for i in range(4)] == [1, 1, 1, 1]
    assert sorted(Ledger.open(path).datasets) == [f"set {i}" for i in range(4)]


TINY = Budget.split(0.01, 1e-9, truncated=False)


def work(path, told, name):
    """Reserve and cancel without end, and report each step before and after it."""
    try:
        ledger = Ledger.create(path, "clinic", epsilon=4.0, delta=1e-5)
    except LedgerError:  # the data set is there already
        ledger = Ledger.open(path)
    for i in range(10_000):
        run = f"{name}.{i}"
        os.write(told, f"try {run}\n".encode())
        ledger.reserve("clinic", run, TINY, REPLACE)
        os.write(told, f"has {run}\n".encode())
        if i % 3 == 1:
            os.write(told, f"off {run}\n".encode())
            ledger.cancel(run)


@forks
def test_kill_9_at_any_moment_loses_nothing_and_spends_nothing_twice(path, tmp_path):
    rng = random.Random(7)
    told = tmp_path / "told"
    tell = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    alive = {}
    for kill in range(40):
        while len(alive) < 3:
            name = f"w{kill}-{len(alive)}-{rng.random()}"
            alive[name] = FORK.Process(target=work, args=(path, tell, name))
            alive[name].start()
        time.sleep(rng.uniform(0.0, 0.06))
        victim = alive.pop(rng.choice(sorted(alive)))
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
    for worker in alive.values():
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    os.close(tell)
    steps = [line.split() for line in told.read_text().splitlines()]
    seen = {word: {run for w, run in steps if w == word} for word in ("try", "has", "off")}
    ledger = Ledger.open(path)
    ledger.verify()
    entries = [(e.kind, e.data["run"]) for e in ledger.entries() if e.kind != "dataset"]
    reserved = [run for kind, run in entries if kind == "reserve"]
    cancelled = {run for kind, run in entries if kind == "cancel"}
    assert len(reserved) == len(set(reserved)) > 40
    assert seen["has"] <= set(reserved) <= seen["try"]
    assert cancelled <= seen["off"]
    assert len(seen["off"] - cancelled) <= 42  # at most the last step of each that was killed
    balance = ledger.balance("clinic")
    assert balance.runs == len(reserved) - len(cancelled)
    assert balance.rho_spent == balance.runs * Fraction(TINY.rho)
    assert ledger.reserve("clinic", "after", TINY, REPLACE).runs == balance.runs + 1


def test_a_busy_ledger_is_told_and_nothing_is_spent(ledger, monkeypatch):
    monkeypatch.setattr(ledgerfile, "BUSY_SECONDS", 0.05)
    head = ledger.head
    holder = sqlite3.connect(ledger.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="in use by other processes"):
        ledger.reserve("clinic", "a", ONE, REPLACE)
    assert ledger.head == head  # reading goes on beside it
    holder.close()
    ledger.reserve("clinic", "a", ONE, REPLACE)


def test_a_commit_that_fails_changes_nothing(ledger, monkeypatch):
    monkeypatch.setattr(ledgerfile, "BUSY_SECONDS", 0.05)
    reader = sqlite3.connect(ledger.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM entries").fetchone()
    head = ledger.head
    with pytest.raises(LedgerError, match="in use by other processes"):
        ledger.reserve("clinic", "a", ONE, REPLACE)
    reader.close()
    assert ledger.head == head


# --- files that are something else ------------------------------------------------------------


def test_the_file_is_for_its_owner_alone_and_one_file(ledger):
    ledger.reserve("clinic", "a", ONE, REPLACE)
    assert ledger.path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in ledger.path.parent.iterdir()] == ["ledger.db"]


def test_what_a_kill_while_making_it_leaves_is_no_ledger_yet(path):
    path.touch()
    with pytest.raises(LedgerError, match="the ledger is empty"):
        Ledger.open(path)
    assert Ledger.create(path, "clinic", epsilon=4.0, delta=1e-5).datasets == ["clinic"]


def test_links_folders_and_nothing_are_refused(ledger, tmp_path):
    link, twin, pipe = tmp_path / "link", tmp_path / "twin", tmp_path / "pipe"
    link.symlink_to(ledger.path)
    os.mkfifo(pipe)
    for wrong in (link, pipe, tmp_path):
        for use in (Ledger.open, lambda p: Ledger.create(p, "x", epsilon=1.0, delta=1e-6)):
            with pytest.raises(LedgerError, match=r"is a link|not a regular file"):
                use(wrong)
    os.link(ledger.path, twin)
    with pytest.raises(LedgerError, match="several names"):
        Ledger.open(ledger.path)
    twin.unlink()
    link.unlink()
    link.symlink_to(tmp_path / "not-there")
    with pytest.raises(LedgerError, match="several names"):
        Ledger.create(link, "x", epsilon=1.0, delta=1e-6)
    assert not (tmp_path / "not-there").exists()
    for missing in (tmp_path / "none", tmp_path / "no" / "folder", "a\0b"):
        with pytest.raises(LedgerError, match="cannot find the ledger"):
            Ledger.open(missing)
    with pytest.raises(LedgerError, match="cannot make the ledger"):
        Ledger.create(tmp_path / "no" / "folder", "x", epsilon=1.0, delta=1e-6)
    assert Ledger.open(ledger.path).datasets == ["clinic"]


def line_of(**data):
    return hash_chain.seal({"type": "dataset", "time": "2026-01-01T00:00:00Z", **data}, "")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE other (x)",
        "CREATE VIEW peek AS SELECT * FROM entries",
        "CREATE TRIGGER more AFTER INSERT ON entries BEGIN DELETE FROM entries; END",
        "DROP TRIGGER no_delete",
        "CREATE INDEX lines ON entries (line)",
        "PRAGMA application_id = 7",
        "PRAGMA application_id = 0",
        "PRAGMA user_version = 4",
        "PRAGMA journal_mode = WAL",
        "INSERT INTO entries VALUES (2, zeroblob(0) || '{}')",
        f"INSERT INTO entries VALUES (2, '{'x' * 100_000}')",
        "INSERT INTO entries VALUES (2, '')",
        "INSERT INTO entries VALUES (2, 'NaN')",
        "INSERT INTO entries VALUES (2, 'é')",
        "INSERT INTO entries VALUES (2, CAST(x'ff00' AS TEXT))",
    ],
)
def test_a_ledger_with_anything_else_in_it_is_refused(ledger, statement):
    head = ledger.head
    db = sqlite3.connect(ledger.path, isolation_level=None)
    db.execute(statement)
    db.close()
    for use in (
        lambda: Ledger.open(ledger.path),
        lambda: ledger.reserve("clinic", "a", ONE, REPLACE),
        lambda: ledger.verify(head),
        lambda: Ledger.create(ledger.path, "town", epsilon=1.0, delta=1e-6),
    ):
        with pytest.raises(LedgerError) as caught:
            use()
        assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "line",
    [
        line_of(),
        line_of(dataset="x"),
        line_of(dataset="x", deep=json.loads("[" * 500 + "]" * 500)),
        line_of(dataset="x").replace("x", "y"),
        "[" * 60_000,
        "1e999",
        "{}",
    ],
)
def test_a_first_line_that_is_none_is_refused(ledger, line):
    tampered(ledger.path, ("UPDATE entries SET line = ?", (line,)))
    with pytest.raises(LedgerError, match="entry 1 of the ledger"):
        Ledger.open(ledger.path)


def test_files_of_other_kinds_are_refused(path):
    rng = random.Random(3)
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE entries (number INTEGER PRIMARY KEY, line TEXT)")
    db.close()
    with pytest.raises(LedgerError, match="another SQLite database"):
        Ledger.create(path, "x", epsilon=1.0, delta=1e-6)
    other = path.read_bytes()
    for junk in (
        b"xy",
        rng.randbytes(5000),
        other[:100] + rng.randbytes(4000),
        other[:50],
        bytes(200),
    ):
        path.write_bytes(junk)
        for use in (Ledger.open, lambda p: Ledger.create(p, "x", epsilon=1.0, delta=1e-6)):
            with pytest.raises(LedgerError):
                use(path)
        assert path.read_bytes() == junk


def test_random_damage_is_found_or_harmless(ledger):
    """Whatever bytes change, the ledger says what it said, or that it is damaged."""
    ledger.reserve("clinic", "a", ONE, REPLACE)
    whole, before, rng = ledger.path.read_bytes(), ledger.balance("clinic"), random.Random(11)
    found = 0
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(rng.choice([1, 1, 8])):
            changed[rng.choice([rng.randrange(len(whole)), rng.randrange(110)])] = rng.randrange(
                256
            )
        ledger.path.write_bytes(
            changed[: rng.choice([len(whole)] * 3 + [rng.randrange(len(whole))])]
        )
        try:
            assert Ledger.open(ledger.path).balance("clinic") == before
        except LedgerError:
            found += 1
    assert found > 50
