"""The door: it charges before it touches the data, and answers what was asked."""

import math
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest

from helpers import open_board
from jdpack import Budget, BudgetError, Market, solve
from jdpack.billboard.lines import Release, Seed, Step
from jdpack.door import SeededRandomness, SystemRandomness, release, statistic
from jdpack.market.grid import SHARE
from jdpack.privacy import queries
from jdpack.privacy.accounting import Cost, Filter
from jdpack.privacy.noise import Gaussian, NoNoise, TruncatedLaplace
from jdpack.privacy.queries import CLOSING, Change, Query
from jdpack.protocol import bounds

MARKET = Market(supply=[100.0, 200.0, 50.0], max_demand=[1.0, 1.0, 0.25], max_value=7.0, agents=9)
S = MARKET.supply_codes
PRICES = (1, 2, 3)
SEED = Seed(bytes(range(16)))
ROUNDS = [((2**30, 0, 2**31), 3), ((2**29, 2**20, 2**31), 5)]


def a_board(market: Market = MARKET):
    """A billboard on which every query is allowed."""
    board = open_board(market, ROUNDS, SEED.seed)
    board.post(Release(Step("granted", (), Gaussian((1.0,))), (0, 0, 0)))
    board.post(Release(Step("chance", (), Gaussian((1.0,))), (0, 0, 0, 0)))
    board.post(Release(Step("welfare", (), Gaussian((1.0,))), (0,)))
    return board


DEAREST = bounds.dearest(a_board())

ASKED: dict[Query, tuple[tuple[object, ...], tuple[int, ...]]] = {
    "demand": (("demand", PRICES), (5, 3 * S[1], 11)),
    "scale": (("demand", PRICES), (2 * min(S),)),
    "value": (("value", PRICES), (123,)),
    "curvature": (("curvature", PRICES), (1, -2, 3, -4, 5, -6, 7, -8, 9)),
    "gauge": (("gauge", PRICES), (1, 2, 3, 4, 5)),
    "welfare": (("welfare",), (77,)),
    "granted": (("granted", SEED), (31, 32, 33)),
    "chance": (("chance", DEAREST), (21, 22, 23, 24)),
    "luck": (("luck", SEED, bounds.factors(a_board()), 0, 0), (-9,)),
}
"""What the door asks the engine for each query, and the exact answer that results."""


class Log:
    """An engine, a filter and a source of noise that record every call."""

    def __init__(self, rho: float = 1.0, truncation: float = 0.0, market: Market = MARKET) -> None:
        self.events: list[tuple[object, ...]] = []
        self.market = market
        self.board = a_board(market)
        self.filter = Filter(Budget(1.0, 0.5, rho, truncation, 0.01))
        self.noise = [7, -8, 9, 10, -11, 12, 13, 14, -15]

    def charge(self, cost: Cost, batch=None, span=1) -> None:
        self.events.append(("charge", cost))
        self.filter.charge(cost, batch, span)

    def demand(self, prices):
        self.events.append(("demand", prices))
        return ASKED["demand"][1]

    def value(self, prices):
        self.events.append(("value", prices))
        return 123

    def curvature(self, prices):
        self.events.append(("curvature", prices))
        return ASKED["curvature"][1]

    def gauge(self, prices):
        self.events.append(("gauge", prices))
        return ASKED["gauge"][1]

    def welfare(self, board):
        assert board is self.board
        self.events.append(("welfare",))
        return 77

    def granted(self, board, seed):
        assert board is self.board
        self.events.append(("granted", seed))
        return ASKED["granted"][1]

    def chance(self, board, dearest):
        assert board is self.board
        self.events.append(("chance", dearest))
        return ASKED["chance"][1]

    def luck(self, board, seed, factors, lowest, highest):
        assert board is self.board
        self.events.append(("luck", seed, factors, lowest, highest))
        return -9

    def draw(self, noise, count, index):
        self.events.append(("draw", noise, count, index))
        return self.noise[:count]

    def release(self, step: Step):
        return release(step, self, self, self, self.board, SEED)


def a_step(query: Query, noise) -> Step:
    return Step(query, () if query in CLOSING else PRICES, noise)


def test_every_query_is_here():
    assert set(ASKED) == set(get_args(Query))


@pytest.mark.parametrize("query", ASKED)
def test_the_door_charges_then_asks_then_draws(query):
    log, (asked, exact) = Log(), ASKED[query]
    step = a_step(query, Gaussian((1e12,)))
    answered = log.release(step)
    change = queries.luck_change(MARKET, 0, 0) if query == "luck" else queries.change(MARKET, query)
    cost = Gaussian((1e12,)).cost(change, len(exact))
    assert log.events == [
        ("charge", cost),
        asked,
        ("draw", step.noise, len(exact), len(log.board.releases)),
    ]
    assert answered.step == step
    assert len(exact) == queries.width(MARKET, query)
    assert answered.answer == tuple(e + z for e, z in zip(exact, log.noise, strict=False))
    assert 0 <= log.filter.spent.rho - cost.rho <= Fraction(1, 2**100)


@pytest.mark.parametrize("query", ASKED)
def test_nothing_happens_that_the_budget_does_not_cover(query):
    for log, noise in [
        (Log(rho=1e-9), Gaussian((1.0,))),
        (Log(rho=1e99), TruncatedLaplace(1e10, 10**12)),  # enough rho, but no delta
        (Log(rho=1e300), NoNoise()),
        (Log(rho=1e300, truncation=0.5), NoNoise()),
    ]:
        before, laplace = log.filter.spent, isinstance(noise, TruncatedLaplace)
        with pytest.raises(BudgetError):
            log.release(a_step(query, noise))
        refused = laplace and query in ("curvature", "gauge", "granted", "chance")
        assert [event[0] for event in log.events] == ([] if refused else ["charge"])
        assert log.filter.spent == before


@pytest.mark.parametrize("query", ASKED)
def test_without_privacy_the_answer_is_exact_and_the_cost_without_bound(query):
    log = Log(rho=math.inf)
    log.noise = [0] * 9
    answered = log.release(a_step(query, NoNoise()))
    assert [event[0] for event in log.events] == ["charge", ASKED[query][0][0], "draw"]
    assert answered.answer == ASKED[query][1]
    assert log.filter.spent == Cost(math.inf)
    log.release(a_step(query, NoNoise()))  # and again
    assert log.filter.spent == Cost(math.inf)


@pytest.mark.parametrize("query", ["curvature", "gauge", "granted", "chance"])
def test_noise_with_a_cost_by_coordinates_is_refused_for_the_length_of_a_move(query):
    """The claim bounds the length of the whole move; truncated noise needs each coordinate."""
    log = Log(rho=1e9, truncation=0.25)
    with pytest.raises(BudgetError, match="proved only for Gaussian noise"):
        log.release(a_step(query, TruncatedLaplace(1e10, 10**12)))
    assert log.events == []


@pytest.mark.parametrize("query", ["granted", "chance"])
def test_coins_are_not_asked_about_where_there_are_none(query):
    data = MARKET.to_dict() | {"divisible": True}
    log = Log(market=Market.from_dict(data))
    with pytest.raises(BudgetError, match=f"{query} is about coins"):
        log.release(a_step(query, Gaussian((1e12,))))
    assert log.events == []


def test_noise_that_cannot_hide_the_move_is_refused_before_anything_is_spent():
    log = Log(rho=1e9, truncation=0.25)
    with pytest.raises(BudgetError, match="cannot hide"):
        log.release(Step("demand", PRICES, TruncatedLaplace(1e5, 10)))
    assert log.events == []


@pytest.mark.parametrize("query", ASKED)
def test_what_was_charged_stays_spent_if_the_data_cannot_be_read(query):
    log = Log()
    for name in ("demand", "value", "curvature", "gauge", "welfare", "granted", "chance", "luck"):
        setattr(log, name, lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        log.release(a_step(query, Gaussian((1e12,))))
    assert log.filter.spent.rho > 0


def test_the_scale_is_at_least_the_supply():
    """It is in units of the smallest supply, here that of the first resource."""
    least = S[0]
    for demand, scale in [
        (S, least),
        ((0, 0, 0), least),
        ((0, 0, 2 * S[2] + 5), (S[2] + 5) * least // S[2]),
        ((3 * S[0] + 5, 0, 0), 2 * least + 5),
        ((0, 4 * S[1], 0), 3 * least),
    ]:
        log = Log()
        log.demand = lambda prices, demand=demand: demand
        assert statistic(a_step("scale", Gaussian((1.0,))), log, log.board, SEED) == (scale,)


@pytest.mark.parametrize("divisible", [False, True])
def test_luck_is_charged_by_how_it_is_measured(divisible):
    """If grants are thinned, agents may differ by the value cap and the dearest cost; if scaled, by
    1 - f.
    """
    market = Market.from_dict(MARKET.to_dict() | {"divisible": divisible})
    log = Log(rho=1.0, market=market)
    log.board = open_board(market, [], SEED.seed, Budget(1.0, 0.5, 1e9, 0.0, 0.01))
    step = Step("demand", PRICES, Gaussian((1.0,)), SHARE)
    log.board.post(Release(step, (2 * S[0], -(10**3) * S[1], -(10**3) * S[2])))
    if not divisible:
        answer = (2 * S[0], -(10**3) * S[1], -(10**3) * S[2])
        log.board.post(Release(Step("granted", (), Gaussian((1.0,))), answer))
        log.board.post(Release(Step("chance", (), Gaussian((1.0,))), (0,) * 4))
    log.board.post(Release(Step("welfare", (), Gaussian((1.0,))), (2**50,)))
    noise = Gaussian((1e12,))
    log.release(a_step("luck", noise))
    (_, cost), (_, _, factors, lowest, highest), _ = log.events
    assert factors[0] < SHARE and factors[1:] == (SHARE, SHARE)
    cap = market.value_cap_code
    if divisible:
        assert lowest == pytest.approx(cap * (factors[0] / SHARE - 1.0), rel=1e-3) and highest == 0
    else:
        assert (lowest, highest) == (-cap, bounds.dearest(log.board))
    assert cost == noise.cost(Change(highest - lowest))


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize("options", [1, 2])
def test_where_all_is_free_a_run_closes_all_the_same(neighbours, options):
    """At prices of 0 everybody's luck is bounded by 0, but a release must cost something."""
    market = Market(
        supply=[1e6],
        max_demand=1.0,
        max_value=1.0,
        agents=30,
        neighbours=neighbours,
        options=options,
    )
    free = open_board(market, [((0,), 1)])
    assert bounds.dearest(free) == 1
    records = {"values": np.full(30, 0.5), "demands": np.full((30, 1), 0.5), "ids": range(30)}
    result = solve(market, **records, epsilon=1.0, delta=1e-6, seed=1)
    assert list(result.billboard.rounds)[-1].prices == (0,)
    assert result.allocation.all()


# --- sources of noise ---------------------------------------------------------------------------

NOISES = [Gaussian((30.0,)), TruncatedLaplace(30.0, 40)]


@pytest.mark.parametrize(
    "source", [SystemRandomness(), SeededRandomness(1)], ids=["system", "seed"]
)
def test_each_number_has_its_own_scale(source):
    scales = (1.0, 1e9, 1.0, 1e3)
    draws = np.array([source.draw(Gaussian(scales), 4, index) for index in range(300)])
    # Within 7 standard errors of a deviation of 300 draws.
    assert draws.std(axis=0) == pytest.approx(scales, rel=7 / math.sqrt(600))


@pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(1)])
def test_no_noise_is_none(source):
    assert source.draw(NoNoise(), 3, 0) == [0, 0, 0]


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_seeded_noise_depends_on_seed_and_index_alone(noise):
    fresh = SeededRandomness(5).draw(noise, 20, 3)
    used = SeededRandomness(5)
    for index in (0, 1, 2, 7):
        used.draw(noise, 11, index)
    assert used.draw(noise, 20, 3) == fresh == used.draw(noise, 20, 3)
    assert used.draw(noise, 20, 4) != fresh
    assert SeededRandomness(6).draw(noise, 20, 3) != fresh


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize(
    "source", [SystemRandomness(), SeededRandomness(1)], ids=["system", "seed"]
)
def test_noise_is_whole_numbers_as_many_as_asked_for_within_bounds(source, noise):
    for count in (1, 2, 500):
        drawn = source.draw(noise, count, 0)
        assert len(drawn) == count
        assert all(type(z) is int for z in drawn)
        assert len(set(drawn)) > 1 or count < 500
        if isinstance(noise, TruncatedLaplace):
            assert all(abs(z) <= noise.bound for z in drawn)


@pytest.mark.parametrize("noise", [Gaussian((1e6,)), TruncatedLaplace(1e6, 10**8)], ids=str)
def test_system_noise_is_never_drawn_twice(noise):
    # Neither the index nor a new source matters: eight draws agree with probability < 1e-40.
    draws = [tuple(source.draw(noise, 8, 0)) for source in [SystemRandomness()] * 2]
    draws += [tuple(SystemRandomness().draw(noise, 8, 0)) for _ in range(2)]
    assert len(set(draws)) == 4


def test_noise_that_states_its_own_cost_is_refused_before_anything_happens():
    class Cheap(Gaussian):
        def cost(self, change, width=1):
            return Cost(Fraction(1, 10**9))

    log = Log()
    with pytest.raises(BudgetError, match="has no proven cost"):
        log.release(Step("demand", PRICES, Cheap((1.0,))))
    assert log.events == []
