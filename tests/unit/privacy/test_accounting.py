"""Budgets and how they are split; groups of agents; the filter."""

import math
import random
import re
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_gaussian
from opendp.metrics import l2_distance
from opendp.mod import enable_features
from scipy.optimize import brentq
from scipy.stats import norm

from jdpack import Budget, BudgetError, Market, MwuOnline
from jdpack.common.batches import Batch
from jdpack.policies import nested_blocks
from jdpack.policies.base import budget_of
from jdpack.privacy import gdp, zcdp
from jdpack.privacy.accounting import (
    EXACT_BETA,
    REPAIR_SHARE,
    Cost,
    Filter,
    delta_of,
    proved,
    weakness,
)
from jdpack.privacy.noise import Gaussian
from jdpack.privacy.queries import Change

EPSILONS = [1e-6, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 10.0, 50.0]
DELTAS = [1e-100, 1e-30, 1e-12, 1e-8, 1e-6, 1e-3, 0.1, 0.5, 0.999]
TINY = Fraction(1, 2**100)


def exponential_above(x: float) -> Fraction:
    """e^x, rounded up, as a rational."""
    with localcontext() as context:
        context.prec = 60
        return Fraction(Decimal(x).exp()) * (1 + Fraction(1, 10**50))


# --- several agents at once -------------------------------------------------------------------


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The exact epsilon of one release with normal noise and shift / scale = mu (Balle & Wang)."""

    def excess(epsilon: float) -> float:
        least = float(norm.cdf(mu / 2 - epsilon / mu))
        return least - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - delta

    return float(brentq(excess, 1e-9, 200.0))


@pytest.mark.parametrize("agents", [2, 5, 10])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-8), (4.0, 1e-5)])
def test_the_epsilon_of_a_group_covers_the_worst_release(epsilon, delta, agents):
    """One release that costs all of rho, whose answer the whole group moves together."""
    budget = Budget.split(epsilon, delta, truncated=False)
    worst = gaussian_epsilon(agents * math.sqrt(2 * budget.rho), delta)
    assert worst <= budget.epsilon_of_group(agents) <= 1.004 * worst


def test_beyond_what_gdp_proves_a_group_has_the_epsilon_of_zcdp():
    budget = Budget.split(50.0, 1e-8, truncated=False)
    rho = math.nextafter(100 * budget.rho, math.inf)
    assert gdp.epsilon_of(rho, 1e-8) == math.inf
    assert budget.epsilon_of_group(10) == zcdp.epsilon_of(rho, 1e-8) < math.inf


def test_a_group_under_truncated_noise_has_no_epsilon_of_its_own():
    assert Budget.split(1.0, 1e-8, truncated=True).epsilon_of_group(2) is None


def test_a_group_is_not_protected_at_that_many_times_epsilon():
    """What the docs once said is false: at the same delta the exact epsilon is larger."""
    budget = Budget.split(1.0, 1e-8, truncated=False)
    exact = [gaussian_epsilon(g * math.sqrt(2 * budget.rho), 1e-8) for g in (5, 10)]
    assert [round(e, 2) for e in exact] == [5.54, 12.2]


@given(st.integers(11, 10**12), st.floats(0.01, 50.0), st.floats(1e-12, 0.01))
def test_who_follows_the_hint_is_not_warned_again(agents, epsilon, delta):
    found = weakness(Budget(epsilon, delta, 1.0, 0.0, 0.1), agents)
    assert (found is None) == (epsilon <= 4.0 and delta * agents <= 0.1)
    if found is not None and "choose a delta of" in found.hint:
        delta = float(re.search(r"a delta of (\S+) or", found.hint)[1])
        assert delta <= 0.1 / agents < 10.1 * delta
    assert (
        found is None or weakness(Budget(min(epsilon, 1.0), delta, 1.0, 0.0, 0.1), agents) is None
    )


@pytest.mark.parametrize("agents", [1, 2, 7])
def test_the_delta_of_a_group_is_reached(agents):
    """In a chain of outcomes each change adds delta, so no smaller bound holds in general."""
    budget = Budget.split(0.5, 1e-4, truncated=False)
    worst = 0.0
    for _ in range(agents):  # P_i(S) = e^epsilon P_(i-1)(S) + delta, from P_0(S) = 0
        worst = math.exp(0.5) * worst + 1e-4
    assert budget.delta_of_group(agents) == pytest.approx(worst, rel=1e-9)
    assert budget.delta_of_group(agents) >= worst * (1 - 1e-15)
    assert Budget.split(50.0, 1e-8, truncated=False).delta_of_group(1000) == 1.0


# --- the split --------------------------------------------------------------------------------


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_the_parts_of_delta_add_up_to_no_more(epsilon, delta, truncated):
    budget = Budget.split(epsilon, delta, truncated=truncated)
    assert budget.accounting == ("zcdp" if truncated else "gdp")
    repair = Fraction(budget.beta) * (1 + exponential_above(epsilon) if truncated else 1)
    noise = Fraction(delta_of(budget.rho, epsilon, budget.accounting))
    total = noise + Fraction(budget.truncation) + repair
    assert total <= Fraction(delta)
    assert total >= Fraction(delta) * (1 - Fraction(1, 10**6))  # and only slightly less
    assert repair <= REPAIR_SHARE * Fraction(delta) * (1 + Fraction(1, 2**52))
    assert repair <= Fraction(budget.repair) * (1 + Fraction(1, 10**14))
    assert budget.beta > 0.0
    assert (budget.truncation > 0.0) == truncated
    assert (budget.epsilon, budget.delta) == (epsilon, delta)
    assert proved(budget)


def test_the_negative_control_of_the_split():
    # If the split forgot the repair's factor 1 + e^epsilon, the same sum would be too large.
    budget = Budget.split(1.0, 1e-6, truncated=True)
    beta = Fraction(budget.beta) * 2
    total = Fraction(zcdp.delta_of(budget.rho, 1.0)) + Fraction(budget.truncation)
    assert total + (1 + exponential_above(1.0)) * beta > Fraction(1e-6)
    # If the noise got all of delta, nothing would be left for the repair in GDP.
    whole = Budget.split(1.0, 1e-6, truncated=False, repaired=False)
    assert Fraction(gdp.delta_of(whole.rho, 1.0)) + Fraction(whole.beta) > Fraction(1e-6)
    assert proved(whole) and not proved(replace(whole, repaired=True))


@pytest.mark.parametrize("part", ["rho", "beta", "epsilon", "delta"])
@pytest.mark.parametrize("truncated", [False, True])
def test_a_budget_with_one_part_changed_proves_nothing(part, truncated):
    budget = Budget.split(1.0, 1e-6, truncated=truncated)
    factor = 0.999 if part in ("epsilon", "delta") else 1.001
    assert not proved(replace(budget, **{part: factor * getattr(budget, part)}))
    assert proved(replace(budget, **{part: getattr(budget, part) / factor}))


def test_a_budget_in_gdp_has_no_truncated_noise_and_is_not_one_in_zcdp():
    budget = Budget.split(1.0, 1e-6, truncated=False)
    assert not proved(replace(budget, truncation=1e-12, rho=budget.rho / 2))
    assert not proved(replace(budget, accounting="zcdp"))
    old = Budget.split(1.0, 1e-6, truncated=True)
    assert proved(replace(old, accounting="zcdp", truncation=0.0))
    for epsilon, rho in [(1e-7, 1e-9), (51.0, 0.1), (1.0, math.nan), (math.nan, 0.01), (1.0, 0.0)]:
        assert not proved(replace(budget, epsilon=epsilon, rho=rho))


def test_where_nothing_is_repaired_the_noise_has_all_of_delta():
    """Local runs: nobody sees what agents get, so nobody drops any."""
    local = Budget.split(1.0, 1e-6, truncated=False, repaired=False)
    assert local.rho == gdp.rho_of(1.0, 1e-6)
    assert local.rho > 1.04 * Budget.split(1.0, 1e-6, truncated=False).rho
    assert proved(local) and not proved(replace(local, repaired=True))
    assert local.beta == Budget.split(1.0, 1e-6, truncated=False).beta
    market = Market(supply=[9.0], max_demand=1.0, max_value=1.0, agents=5, excess_probability=0.1)
    assert budget_of(MwuOnline(local=True), market, 1.0, 1e-6) == local
    assert budget_of(MwuOnline(), market.changed(excess_probability=0.0), 1.0, 1e-6) != local


@pytest.mark.parametrize("truncated", [False, True])
def test_a_budget_as_json(truncated):
    budget = Budget.split(1.0, 1e-6, truncated=truncated)
    data = budget.to_dict()
    assert Budget.from_dict(data) == budget
    assert ("accounting" in data) != truncated  # budgets in zCDP look as they always did
    for wrong in (
        {**data, "accounting": "zcdp"},
        {**data, "accounting": None},
        {**data, "rho": 1},
        {**data, "more": 1.0},
        {k: v for k, v in data.items() if k != "beta"},
    ):
        with pytest.raises(BudgetError, match="not the parts of a budget"):
            Budget.from_dict(wrong)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 1e-7, 50.1, math.nan, -math.inf, "1", None, True])
def test_an_epsilon_that_makes_no_sense_is_refused(epsilon):
    with pytest.raises(BudgetError, match="epsilon"):
        Budget.split(epsilon, 1e-6, truncated=False)


@pytest.mark.parametrize("delta", [0.0, -1e-9, 1.0, 2.0, 1e-101, math.nan, "0.1", None, True])
def test_a_delta_that_makes_no_sense_is_refused(delta):
    with pytest.raises(BudgetError, match="delta"):
        Budget.split(1.0, delta, truncated=False)


@pytest.mark.parametrize("truncated", [False, True])
def test_without_privacy_only_the_repair_is_bounded(truncated):
    budget = Budget.split(math.inf, 1e-6, truncated=truncated)
    assert budget == Budget(math.inf, 1e-6, math.inf, 0.0, EXACT_BETA)


def test_the_repair_has_the_share_where_the_margin_is_least():
    """The certified margin is proportional to z / sqrt(rho), which is flat there."""
    for epsilon, delta in [(0.1, 1e-6), (1.0, 1e-8), (1.0, 1e-6), (4.0, 1e-6), (8.0, 1e-6)]:
        for resources in (1, 10, 100):

            def margin(share: float, budget=(epsilon, delta), m=resources) -> float:
                rho = gdp.rho_of(budget[0], (1 - share) * budget[1])
                return float(norm.isf(share * budget[1] / m)) / math.sqrt(rho)

            ours = margin(float(REPAIR_SHARE))
            assert ours <= 1.0036 * min(margin(share / 20) for share in range(1, 16))
            assert margin(0.1) > 1.01 * ours


# --- the filter -------------------------------------------------------------------------------


def a_filter(rho: float = 0.25, truncation: float = 0.125) -> Filter:
    return Filter(Budget(epsilon=1.0, delta=0.5, rho=rho, truncation=truncation, beta=0.01))


def test_the_whole_budget_can_be_spent_and_not_a_grain_more():
    for cost, limit in [(Cost(Fraction(1, 4)), "rho"), (Cost(TINY, Fraction(1, 8)), "delta")]:
        whole = a_filter()
        whole.charge(cost)
        assert whole.spent == Cost(cost.rho, cost.delta)
        over = Cost(cost.rho + TINY) if limit == "rho" else Cost(cost.rho, cost.delta + TINY)
        with pytest.raises(BudgetError, match=f"costs {limit}"):
            a_filter().charge(over)


def test_a_refusal_spends_nothing():
    filter = a_filter()
    filter.charge(Cost(Fraction(1, 5), Fraction(1, 10)))
    before = filter.spent
    for cost in [Cost(Fraction(1, 5)), Cost(TINY, Fraction(1, 10)), Cost(Fraction(9), Fraction(9))]:
        with pytest.raises(BudgetError, match="nothing was spent on it"):
            filter.charge(cost)
        assert filter.spent == before
    filter.charge(Cost(Fraction(1, 25), Fraction(1, 50)))  # what is left can still be used
    assert filter.spent.rho > before.rho
    assert filter.spent.delta > before.delta


def test_many_small_charges_add_up_exactly():
    # Adding 2^-60 to 1/4 changes nothing in doubles, so a sum of doubles would never be refused.
    filter = a_filter()
    filter.charge(Cost(Fraction(1, 4) - 3 * Fraction(1, 2**60)))
    for _ in range(3):
        filter.charge(Cost(Fraction(1, 2**60)))
    assert filter.spent.rho == Fraction(1, 4)
    with pytest.raises(BudgetError):
        filter.charge(Cost(Fraction(1, 2**60)))


@pytest.mark.parametrize(
    "cost",
    [
        Cost(Fraction(0)),
        Cost(Fraction(-1)),
        Cost(Fraction(-1, 10**9), Fraction(1, 100)),
        Cost(Fraction(1, 100), Fraction(-1, 10**9)),
    ],
)
def test_a_charge_that_is_free_or_gives_back_is_refused(cost):
    filter = a_filter()
    filter.charge(Cost(Fraction(1, 8), Fraction(1, 16)))
    before = filter.spent
    with pytest.raises(BudgetError, match="must cost something"):
        filter.charge(cost)
    assert filter.spent == before


costs = st.builds(
    Cost,
    st.fractions(0, Fraction(1, 10)).filter(bool),
    st.fractions(0, Fraction(1, 20)),
)


@settings(max_examples=60)
@given(st.lists(costs, max_size=12))
def test_the_filter_holds_for_any_charges(charges):
    filter = a_filter()
    rho, delta, passed = Fraction(0), Fraction(0), 0
    for cost in charges:
        fits = rho + cost.rho <= Fraction(1, 4) and delta + cost.delta <= Fraction(1, 8)
        before = filter.spent
        try:
            filter.charge(cost)
        except BudgetError:
            assert filter.spent == before
            # It may refuse a charge that barely fits, because charges are rounded up.
            near = [rho + cost.rho - Fraction(1, 4), delta + cost.delta - Fraction(1, 8)]
            assert not fits or max(near) >= -(passed + 1) * TINY
            continue
        assert fits
        rho, delta, passed = rho + cost.rho, delta + cost.delta, passed + 1
        assert rho <= filter.spent.rho <= min(rho + passed * TINY, Fraction(1, 4))
        assert delta <= filter.spent.delta <= min(delta + passed * TINY, Fraction(1, 8))


def test_a_cost_without_bound_fits_a_budget_without_bound_alone():
    for rho in (0.25, 1e300):
        bounded = a_filter(rho=rho)
        bounded.charge(Cost(Fraction(1, 8)))
        before = bounded.spent
        with pytest.raises(BudgetError, match="costs rho = inf"):
            bounded.charge(Cost(math.inf))
        assert bounded.spent == before
    unbounded = a_filter(rho=math.inf, truncation=0.0)
    for cost in (Cost(Fraction(1, 8)), Cost(math.inf), Cost(math.inf), Cost(Fraction(1, 8))):
        unbounded.charge(cost)
    assert unbounded.spent == Cost(math.inf, Fraction(0))
    with pytest.raises(BudgetError, match="costs delta"):
        unbounded.charge(Cost(Fraction(1, 8), TINY))


def test_charges_are_rounded_up_to_the_grain():
    filter = a_filter()
    filter.charge(Cost(Fraction(1, 10**40), Fraction(1, 10**60)))
    assert filter.spent == Cost(TINY, TINY)
    filter.charge(Cost(Fraction(1, 7)))
    assert Fraction(1, 7) + TINY < filter.spent.rho < Fraction(1, 7) + 2 * TINY


# --- batches ----------------------------------------------------------------------------------


def test_batches_of_one_partition_compose_in_parallel():
    """Each batch may cost all that is left; the most expensive one sets what is spent."""
    filter = a_filter()
    for index in range(5):
        filter.charge(Cost(Fraction(1, 8), Fraction(1, 16)), Batch(index, 5))
        assert filter.spent == Cost(Fraction(1, 8), Fraction(1, 16))
    filter.charge(Cost(Fraction(1, 16)), Batch(3, 5))  # the same batch again adds up
    assert filter.spent.rho == Fraction(3, 16)
    filter.charge(Cost(Fraction(1, 16)), Batch(2, 5))
    assert filter.spent.rho == Fraction(3, 16)
    filter.charge(Cost(Fraction(1, 16)))  # all agents, including those of the most expensive batch
    assert filter.spent == Cost(Fraction(1, 4), Fraction(1, 16))
    for batch in (None, Batch(3, 5), Batch(2, 5)):
        with pytest.raises(BudgetError, match="costs rho"):
            filter.charge(Cost(TINY), batch)
    filter.charge(Cost(Fraction(1, 16)), Batch(0, 5))  # which has cost less so far
    with pytest.raises(BudgetError, match="costs rho"):
        filter.charge(Cost(TINY), Batch(0, 5))
    assert filter.spent.rho == Fraction(1, 4)


def test_the_dearest_in_rho_and_in_delta_may_be_two_batches():
    """The sum of both bounds is the most that any pair of neighbours can have."""
    filter = a_filter()
    filter.charge(Cost(Fraction(1, 5), TINY), Batch(0, 2))
    filter.charge(Cost(Fraction(1, 100), Fraction(1, 10)), Batch(1, 2))
    assert filter.spent.rho == pytest.approx(0.2) and filter.spent.delta == pytest.approx(0.1)
    with pytest.raises(BudgetError, match="costs delta"):
        filter.charge(Cost(TINY, Fraction(1, 10)), Batch(1, 2))


def test_batches_of_two_partitions_are_refused():
    """An agent is in one batch of each partition, so the costs add up, unseen by the filter."""
    filter = a_filter()
    filter.charge(Cost(Fraction(1, 8)), Batch(0, 4))
    before = filter.spent
    for batch in (Batch(0, 5), Batch(0, 1), Batch(3, 8)):
        with pytest.raises(BudgetError, match="two partitions"):
            filter.charge(Cost(TINY), batch)
        assert filter.spent == before
    filter.charge(Cost(Fraction(1, 4)), Batch(1, 4))  # whose own budget is untouched


def test_a_refused_batch_spends_nothing():
    filter = a_filter()
    with pytest.raises(BudgetError, match="nothing was spent on it"):
        filter.charge(Cost(Fraction(1, 3)), Batch(0, 4))
    assert filter.spent == Cost(Fraction(0), Fraction(0))
    filter.charge(Cost(Fraction(1, 4)), Batch(0, 7))  # the refusal has not even fixed the partition
    with pytest.raises(BudgetError, match="nothing was spent on it"):
        filter.charge(Cost(TINY), Batch(0, 7))
    filter.charge(Cost(Fraction(1, 4)), Batch(6, 7))
    assert filter.spent == Cost(Fraction(1, 4), Fraction(0))


def test_what_was_spent_before_is_counted_for_every_batch():
    filter = Filter(Budget(1.0, 0.5, 0.25, 0.125, 0.01), Cost(Fraction(1, 8), Fraction(1, 16)))
    assert filter.spent == Cost(Fraction(1, 8), Fraction(1, 16))
    for index in range(3):
        filter.charge(Cost(Fraction(1, 8)), Batch(index, 3))
        with pytest.raises(BudgetError):
            filter.charge(Cost(TINY), Batch(index, 3))


def test_without_a_bound_batches_cost_what_they_like():
    filter = a_filter(rho=math.inf, truncation=0.0)
    for index in range(3):
        filter.charge(Cost(math.inf), Batch(index, 3))
        filter.charge(Cost(math.inf))
    assert filter.spent == Cost(math.inf, Fraction(0))
    bounded = a_filter()
    with pytest.raises(BudgetError, match="costs rho = inf"):
        bounded.charge(Cost(math.inf), Batch(0, 3))
    assert bounded.spent == Cost(Fraction(0), Fraction(0))


PARTS = 3
asked = st.lists(st.tuples(costs, st.none() | st.integers(0, PARTS - 1)), max_size=20)


class Forgetful(Filter):
    """The negative control: remembers only the last batch, and forgets what it cost before."""

    def charge(self, cost: Cost, batch: Batch | None = None, span: int = 1) -> None:
        self._of_batches.clear()
        super().charge(cost, batch, span)


class OneLevel(Filter):
    """Another: charges a block as if only its last batch were in it, so only one of the levels."""

    def charge(self, cost: Cost, batch: Batch | None = None, span: int = 1) -> None:
        super().charge(cost, batch)


class Indifferent(Filter):
    """Another: treats batches with the same index as equal, whatever their partition."""

    def charge(self, cost: Cost, batch: Batch | None = None, span: int = 1) -> None:
        super().charge(cost, None if batch is None else Batch(batch.index, 1000), span)


def holds(filter: Filter, charges: list[tuple[Cost, int | None]]) -> bool:
    """Whether every agent's releases cost, in plain rationals, at most the budget and `spent`.

    Each batch has an agent. It is concerned by the releases about its batch and about all agents.
    """
    rho, delta = [Fraction(0)] * PARTS, [Fraction(0)] * PARTS
    for count, (cost, index) in enumerate(charges, start=1):
        before = filter.spent
        try:
            filter.charge(cost, None if index is None else Batch(index, PARTS))
        except BudgetError:
            assert filter.spent == before
            reached = [i for i in range(PARTS) if index in (None, i)]
            over = [rho[i] + cost.rho - Fraction(1, 4) for i in reached]
            over += [delta[i] + cost.delta - Fraction(1, 8) for i in reached]
            # It refuses only what some agent cannot pay, up to the rounding of charges.
            assert max(over) >= -count * TINY
            continue
        for i in range(PARTS):
            if index in (None, i):
                rho[i], delta[i] = rho[i] + cost.rho, delta[i] + cost.delta
        if max(rho) > Fraction(1, 4) or max(delta) > Fraction(1, 8):
            return False
        spent = filter.spent
        if not max(rho) <= spent.rho <= min(max(rho) + count * TINY, Fraction(1, 4)):
            return False
        if not max(delta) <= spent.delta <= min(max(delta) + count * TINY, Fraction(1, 8)):
            return False
    return True


@settings(max_examples=150)
@given(asked)
def test_whole_grains_are_the_rationals_for_every_agent(charges):
    assert holds(a_filter(), charges)


def test_negative_control_a_filter_that_forgets_batches_is_caught():
    twice: list[tuple[Cost, int | None]] = [(Cost(Fraction(1, 6)), 1), (Cost(Fraction(1, 6)), 1)]
    assert holds(a_filter(), twice)
    assert not holds(Forgetful(a_filter().budget), twice)
    assert find_broken(Forgetful) is not None


def find_broken(kind: type[Filter]) -> int | None:
    """The first of some random sequences of charges that breaks a filter."""
    rng = random.Random(5)
    for number in range(200):
        charges = [
            (
                Cost(Fraction(rng.randint(1, 10**6), 10**7), Fraction(rng.randint(0, 9), 400)),
                rng.choice([None, *range(PARTS)]),
            )
            for _ in range(12)
        ]
        if not holds(kind(a_filter().budget), charges):
            return number
    return None


def test_the_search_that_catches_it_finds_nothing_wrong_with_the_filter():
    assert find_broken(Filter) is None


def test_negative_control_two_partitions_would_exceed_the_budget():
    """If they were let through, an agent in batch 0 of 2 and 1 of 3 would pay twice."""
    loose = Indifferent(a_filter().budget)
    loose.charge(Cost(Fraction(1, 4)), Batch(0, 2))
    loose.charge(Cost(Fraction(1, 4)), Batch(1, 3))
    assert loose.spent.rho == Fraction(1, 4)  # and has seen half of it
    honest = a_filter()
    honest.charge(Cost(Fraction(1, 4)), Batch(0, 2))
    with pytest.raises(BudgetError):
        honest.charge(Cost(Fraction(1, 4)), Batch(1, 3))


blocks = st.lists(st.tuples(costs, st.none() | st.integers(0, 7), st.integers(1, 8)), max_size=24)


def paid(filter: Filter, charges: list[tuple[Cost, int | None, int]], *, exact: bool) -> bool:
    """Whether no batch pays more than `spent`, in plain rationals; if exact, also not less.

    A release about a block is paid by every batch in it.
    """
    rho = [Fraction(0)] * 8
    for count, (cost, last, span) in enumerate(charges, start=1):
        first = 0 if last is None else max(0, last - span + 1)
        batch, span = (None, 1) if last is None else (Batch(last, 8), last - first + 1)
        try:
            filter.charge(cost, batch, span)
        except BudgetError:
            continue
        for i in range(8) if last is None else range(first, last + 1):
            rho[i] += cost.rho
        most = filter.spent.rho
        if max(rho) > min(most, Fraction(1, 4)) or (exact and most > max(rho) + count * TINY):
            return False
    return True


@settings(max_examples=150)
@given(blocks)
def test_every_batch_of_a_block_pays_for_it(charges):
    assert paid(a_filter(), charges, exact=False)


@settings(max_examples=150)
@given(blocks, st.integers(0, 3))
def test_nested_blocks_in_the_order_of_a_run_are_charged_exactly(charges, all_agents):
    """Blocks of 1, 2, 4 and 8 batches, each when its last batch has been asked."""
    nested = []
    for cost, last, span in charges:
        size = 1 << span.bit_length() - 1
        ends = None if last is None else (last // size + 1) * size - 1
        nested.append((cost, ends, size))
    nested.sort(key=lambda charge: (-1, 0) if charge[1] is None else (charge[1], charge[2]))
    asked_all = [charge for charge in nested if charge[1] is None][:all_agents]
    assert paid(a_filter(), asked_all + [c for c in nested if c[1] is not None], exact=True)


def test_negative_control_a_tree_charged_for_one_level_is_caught():
    """The blocks of mwu-online: a batch is in at most two of them."""
    leaf, tree = nested_blocks.first_leaf(6), []
    for last in range(5):
        tree.append((last, nested_blocks.span(leaf)))
        leaf = nested_blocks.next_leaf(leaf)
    assert [span for _, span in tree] == [1, 1, 3, 1, 2] and nested_blocks.levels(6) == 2
    half = [(Cost(Fraction(1, 8)), *block) for block in tree]
    honest = a_filter()
    assert paid(honest, half, exact=True)
    assert honest.spent.rho == Fraction(1, 4)
    whole = [(Cost(Fraction(1, 4)), *block) for block in tree]
    refusing = a_filter()
    assert paid(refusing, whole, exact=True)
    with pytest.raises(BudgetError, match="would exceed"):
        refusing.charge(Cost(Fraction(1, 4)), Batch(2, 8), 3)
    assert not paid(OneLevel(a_filter().budget), whole, exact=False)


@pytest.mark.parametrize("scale", [0.3, 1.0, 17.25, 123456.789])
@pytest.mark.parametrize("change", [Change(1), Change(4, 2), Change(65535, 3), Change(2**32 - 1)])
def test_opendp_says_the_same_of_a_gaussian(scale, change):
    enable_features("contrib")
    space = vector_domain(atom_domain(T="i64")), l2_distance(T="f64")
    theirs = make_gaussian(*space, scale=scale).map(math.sqrt(change.count) * change.most)
    ours = Gaussian((scale,)).cost(change, change.count)
    assert float(ours.rho) == pytest.approx(theirs, rel=1e-11)
    exact = Fraction(change.count * change.most**2) / (2 * Fraction(scale) ** 2)
    assert exact <= ours.rho <= exact * (1 + Fraction(1, 10**11))
    assert ours.delta == 0
