"""The door: it charges before it touches the data, and answers what was asked."""

from fractions import Fraction

import pytest

from jdpack import Budget, BudgetError, Market
from jdpack.accounting import Cost, Filter
from jdpack.best_response import Sums
from jdpack.billboard import Step
from jdpack.noise import Gaussian, TruncatedLaplace
from jdpack.release import SeededRandomness, SystemRandomness, release, statistic

MARKET = Market(supply=[100.0, 200.0, 50.0], max_demand=[1.0, 1.0, 0.25], max_value=7.0, agents=9)
SUMS = Sums(demand=(5, 3 * MARKET.supply_code, 11), welfare=123)
PRICES = (1, 2, 3)


class Log:
    """An engine, a filter and a source of noise that write down what is asked of them."""

    def __init__(self, rho: float = 1.0, truncation: float = 0.0) -> None:
        self.events: list[tuple[object, ...]] = []
        self.market = MARKET
        self.filter = Filter(Budget(1.0, 0.5, rho, truncation, 0.01))
        self.noise = [7, -8, 9]

    def charge(self, cost: Cost) -> None:
        self.events.append(("charge", cost))
        self.filter.charge(cost)

    def sums(self, prices: tuple[int, ...]) -> Sums:
        self.events.append(("sums", prices))
        return SUMS

    def draw(self, noise, count, index):
        self.events.append(("draw", noise, count, index))
        return self.noise[:count]

    def release(self, step: Step, index: int = 4):
        return release(step, self, self, self, index)


@pytest.mark.parametrize(
    ("query", "exact"),
    [
        ("demand", (5, 3 * MARKET.supply_code, 11)),
        ("scale", (2 * MARKET.supply_code,)),
        ("welfare", (123,)),
    ],
)
def test_the_door_charges_then_asks_then_draws(query, exact):
    log = Log()
    step = Step(query, PRICES, Gaussian(1e10))
    answered = log.release(step)
    cost = Gaussian(1e10).cost(MARKET.shifts(query))
    assert log.events == [
        ("charge", cost),
        ("sums", PRICES),
        ("draw", step.noise, len(exact), 4),
    ]
    assert answered.step == step
    assert answered.answer == tuple(e + z for e, z in zip(exact, log.noise, strict=False))
    assert 0 <= log.filter.spent.rho - cost.rho <= Fraction(1, 2**100)


def test_nothing_happens_that_the_budget_does_not_cover():
    for log, noise in [
        (Log(rho=1e-9), Gaussian(1.0)),
        (Log(rho=1e9), TruncatedLaplace(1e5, 10**5)),  # rho is there, delta is not
    ]:
        before = log.filter.spent
        with pytest.raises(BudgetError):
            log.release(Step("demand", PRICES, noise))
        assert [event[0] for event in log.events] == ["charge"]
        assert log.filter.spent == before


def test_noise_that_cannot_hide_the_move_is_refused_before_anything_is_spent():
    log = Log(rho=1e9, truncation=0.25)
    with pytest.raises(BudgetError, match="cannot hide"):
        log.release(Step("demand", PRICES, TruncatedLaplace(1e5, 10)))
    assert log.events == []


def test_what_was_charged_stays_spent_if_the_data_cannot_be_read():
    log = Log()
    log.sums = lambda prices: 1 / 0
    with pytest.raises(ZeroDivisionError):
        log.release(Step("demand", PRICES, Gaussian(1e9)))
    assert log.filter.spent.rho > 0


def test_the_scale_is_at_least_the_supply():
    S = MARKET.supply_code
    assert statistic("scale", Sums((S, S, S), 0), MARKET) == (S,)
    assert statistic("scale", Sums((0, 0, 0), 0), MARKET) == (S,)
    assert statistic("scale", Sums((0, 0, 2 * S + 5), 0), MARKET) == (S + 5,)


# --- sources of noise ---------------------------------------------------------------------------

NOISES = [Gaussian(30.0), TruncatedLaplace(30.0, 40)]


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


@pytest.mark.parametrize("noise", [Gaussian(1e6), TruncatedLaplace(1e6, 10**8)], ids=str)
def test_system_noise_is_never_drawn_twice(noise):
    # The index does not matter, nor does a new source: eight draws agree with probability < 1e-40.
    draws = [tuple(source.draw(noise, 8, 0)) for source in [SystemRandomness()] * 2]
    draws += [tuple(SystemRandomness().draw(noise, 8, 0)) for _ in range(2)]
    assert len(set(draws)) == 4


def test_noise_that_states_its_own_cost_is_refused_before_anything_happens():
    class Cheap(Gaussian):
        def cost(self, shifts):
            return Cost(Fraction(1, 10**9))

    log = Log()
    with pytest.raises(BudgetError, match="no kind with a proven cost"):
        log.release(Step("demand", PRICES, Cheap(1.0)))
    assert log.events == []
