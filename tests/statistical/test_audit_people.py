"""The audit of people with several requests: neighbours differ in a whole person."""

import numpy as np
import pytest

from jdpack import MwuOnline
from jdpack.audit import answers, budget_checks, neighbours
from jdpack.audit.paths import markets
from jdpack.audit.people import People, beyond, candidates, everything, example_requests
from jdpack.audit.recording import Setting, record
from jdpack.audit.reference import reference
from jdpack.audit.scripted_policy import Script, known
from jdpack.engines import shard
from jdpack.market.market import Market, Neighbours
from jdpack.privacy import queries
from jdpack.run.arguments import source_of

pytestmark = pytest.mark.filterwarnings("ignore::jdpack.SupplyWarning")

KINDS = [
    {"plenty": True},
    {"plenty": True, "options": 2, "wide": True},
    {"plenty": True, "neighbours": Neighbours.REPLACE_ONE},
    {"divisible": True, "neighbours": Neighbours.REPLACE_ONE, "options": 2},
]
LEVELS = Script((0.003, 0.03, 0.1, 0.3))


@pytest.fixture(autouse=True)
def a_policy_that_asks_everything():
    with known(Script):
        yield


def family(market: Market, *, clamp: bool = False):
    setting = Setting(LEVELS, 20.0, 1e-6, clamp=clamp)
    return neighbours.family(setting, People.invented(market, 3), 10, seed=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clamp", [False, True])
def test_an_honest_run_passes(kind, clamp):
    group = family(example_requests(agents=30, **kind), clamp=clamp)
    tapes = [group.recorded, *(tape for _, tape in group.replayed)]
    found = [
        *neighbours.of_steps(group),
        *neighbours.of_sensitivity(group),
        neighbours.of_others(group),
        neighbours.of_runs(tapes),
        answers.of_answers(tapes),
        answers.of_allocation(tapes),
        *budget_checks.of_charges([group.recorded]),
    ]
    assert [one for one in found if not one.passed] == []
    moved = [one for one in found if one.check.startswith("sensitivity") and one.tested]
    assert len(moved) > 4


def test_the_formulas_agree():
    some = [market for market in markets() if market.requests > 1]
    found = budget_checks.of_formulas(some)
    assert found.passed and len(some) == 16
    for market in some:
        for query in budget_checks.QUERIES:
            own = float(budget_checks.worst(market, query))
            claimed = queries.change(market, query).squares
            assert claimed == pytest.approx(own, rel=1e-6), (market, query)


@pytest.mark.parametrize("kind", KINDS)
def test_negative_control_sensitivities_of_one_row_are_caught(kind, monkeypatch):
    """If every claim were for one request, the audit would see people move answers further."""
    honest = queries.change

    def per_row(market: Market, query: queries.Query) -> queries.Change:
        return honest(market.changed(person=1), query)

    monkeypatch.setattr(queries, "change", per_row)
    group = family(example_requests(agents=30, **kind))
    wrong = {one.check for one in neighbours.of_sensitivity(group) if not one.passed}
    assert {"sensitivity: demand", "sensitivity: value"} <= wrong
    assert not all(one.passed for one in budget_checks.of_charges([group.recorded]))
    assert not budget_checks.of_formulas([example_requests(**kind)]).passed


def test_negative_control_turns_of_single_requests_are_caught(monkeypatch):
    """If every request had its own turn, one person would be in several batches."""

    monkeypatch.setattr(
        shard, "_places", lambda part, key, some=None: shard._coins(part, key, some)
    )
    market = example_requests(agents=30, plenty=True)
    people, caught = People.invented(market, 3), False
    for _ in range(15):  # the keys of batches are drawn; about one run in three shows nothing
        group = neighbours.family(Setting(MwuOnline(batch=6), 20.0, 1e-6), people, 6)
        found = neighbours.of_sensitivity(group)
        caught |= any(one.check == "sensitivity: batches" and not one.passed for one in found)
    assert caught


def test_neighbours_reach_the_bounds_of_a_person():
    market = example_requests(agents=30, plenty=True)
    codes = [reference(People(market, (0,), (everything(market),))).demands.sum(axis=0)]
    most = np.array(market.person_cap_codes)
    for one in candidates(market, [(10**6,) * 3] * 4, 40, 1):
        if one is not None:
            codes.append(reference(People(market, (0,), (one,))).demands.sum(axis=0))
    assert (np.max(codes, axis=0) > 0.7 * most)[:2].all()
    own = reference(People(market, (0,), (beyond(market, 0),)))
    assert own.left_out.any() and (own.demands.sum(axis=0) <= most).all()


def test_reading_back_keeps_requests_apart():
    market = example_requests(agents=12, options=2, plenty=True)
    people = People.invented(market, 5)
    given = people.arrays
    groups = given["values"], given["demands"], given["ids"], None, given["requests_of"]
    again = People.read(source_of(people.market, None, *groups, clamp=False))
    assert again.ids == people.ids
    assert [again.names_of(i) for i in range(12)] == [people.names_of(i) for i in range(12)]
    a, b = reference(again), reference(people)
    assert (a.values == b.values).all() and (a.demands == b.demands).all()
    assert record(Setting(LEVELS, 20.0, 1e-6), again).error == ""
