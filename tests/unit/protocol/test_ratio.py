"""The certified ratio is the smallest over all welfares that the releases leave possible (C6)."""

import math
from dataclasses import replace

import numpy as np
import pytest

from jdpack import Billboard, Budget, Market, Newton, solve
from jdpack.billboard.lines import Header, Release, Seed
from jdpack.curator.optimum import optimum
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.privacy import queries
from jdpack.privacy.tail_bounds import kept_at_most
from jdpack.protocol import bounds
from jdpack.protocol import certificate as certificates
from jdpack.protocol.bounds import value_radius
from jdpack.protocol.certificate import certify
from jdpack.protocol.closing import luck_range, step

SEED = Seed(b"sixteen bytes ok")
CODES = 2**32


def a_board(market: Market, load: float, **closing: float) -> Billboard:
    """A run with one price of 0.02, one load, and the given closing answers."""
    budget, policy = Budget.split(1.0, 1e-8, truncated=False), Newton((0.2,))
    header = Header(market, policy.to_dict(), budget, SEED.commitment, earlier=True)  # C6 alone
    board = Billboard(header)
    state = policy.start(market, budget)
    price = round(0.02 * CODES * PRICE_UNITS_PER_VALUE_CODE / market.supply_codes[0] * 4000)
    while (asked := policy.step(state)) is not None:
        asked = replace(asked, prices=(price,))
        answer = (round(load * market.supply_codes[0]),) * queries.width(market, asked.query)
        board.post(Release(asked, answer))
        state = policy.observe(state, board.releases[-1])
    while (asked := step(board)) is not None:
        answer = (0, 0) if asked.query == "chance" else (round(closing.get(asked.query, 0.0)),)
        if asked.query == "granted":
            answer = (round(load * market.supply_codes[0]),)
        board.post(Release(asked, answer))
    return board


def possible_ratios(board: Billboard) -> np.ndarray:
    """What the ratio may be at each welfare on a fine grid, from the statements alone."""
    market, scaling = board.header.market, bounds.factors(board)
    released = {r.step.query: r for r in board.releases}
    radius = value_radius(board.header, released["welfare"].step.noise)
    middle = released["welfare"].answer[0]
    above, paid = certificates._unsold(board, bounds.value_tail(board.header))
    least = max(0.0, middle - radius, paid)
    w = np.linspace(least, max(least, middle + radius), 2001)
    w = w[w + above > 0.0]
    f = min(scaling) / SHARE
    if luck_range(board) is not None:
        luck = released["luck"].answer[0] - value_radius(board.header, released["luck"].step.noise)
    else:
        luck = 0.0 if market.divisible else -bounds.coin_luck(board)
    given = np.maximum(0.0, w + luck)
    if market.divisible:
        given = np.maximum(given, f * w)
    else:
        if f < 1.0 and luck_range(board) is None:
            cap = float(market.value_cap_code)
            taken = [kept_at_most(g, cap, 1.0 - f, bounds.value_tail(board.header)) for g in given]
            given = given - taken
    return np.clip(given, 0.0, None) / (w + above)


# Load in the rounds, welfare, and luck.
BOARDS = {
    "fits": (0.8, 3000.0, 0.0),
    "thinned": (1.1, 3000.0, -300.0),
    "hardly any value": (1.01, 100.0, -20.0),
    "much less than the factor says": (1.2, 300.0, -200.0),
    "far too much": (3.0, 3000.0, -1500.0),
    "too much for what it is worth": (1.2, 100.0, 0.0),
    "where the bounds cross": (3.0, 3000.0, -1935.0),
}


@pytest.mark.parametrize("divisible", [True, False])
@pytest.mark.parametrize("kind", BOARDS)
def test_the_ratio_is_the_least_of_all_that_are_possible(kind, divisible):
    market = Market(
        supply=[4000.0], max_demand=1.0, max_value=1.0, agents=20_000, divisible=divisible
    )
    load, welfare, luck = BOARDS[kind]
    board = a_board(
        market,
        load,
        welfare=welfare * CODES,
        luck=luck * CODES,
    )
    certified, least = certify(board).ratio_at_least, min(1.0, possible_ratios(board).min())
    assert certified <= least + 1e-9
    if divisible:
        assert certified == pytest.approx(least, abs=1e-3)  # and not much less


def loose_values(n=10_000):
    """Values of which hardly any is near the public cap, and what `solve` needs."""
    rng = np.random.default_rng(3)
    market = Market(
        supply=[0.2 * n] * 2, max_demand=1.0, max_value=2000.0, agents=n, divisible=True
    )
    values = np.minimum(rng.lognormal(0.0, 1.5, n), 2000.0)
    return market, values, rng.random((n, 2))


def test_what_is_paid_bounds_a_welfare_that_noise_drowns(monkeypatch):
    """The last certificate is one without that bound: noise leaves nothing of it."""
    market, values, demands = loose_values()
    result = solve(market, values=values, demands=demands, epsilon=1.0, delta=1e-8, seed=1)
    best = optimum(values, demands, np.array([r.supply for r in market.resources])).value
    found = result.certificate
    assert 0.9 < found.ratio_at_least <= result.welfare / best
    assert 0.15 * best < found.welfare_at_least <= result.welfare
    unsold = certificates._unsold
    monkeypatch.setattr(certificates, "_unsold", lambda *a: (unsold(*a)[0], 0.0))
    without = certify(result.billboard)
    assert without.ratio_at_least == without.welfare_at_least == 0.0
    assert without.optimum_at_most == found.optimum_at_most


@pytest.mark.parametrize("options", [1, 3])
def test_what_is_paid_is_at_most_the_welfare_and_close_to_the_exact_sum(options):
    """Without noise, in whole numbers of the billboard."""
    rng, n = np.random.default_rng(options), 3000
    market = Market(
        supply=[300.0] * 3, max_demand=1.0, max_value=1.0, agents=n, bundle_size=1, options=options
    )
    wanted = rng.integers(0, 3, n * options)
    records = {"values": rng.random(n * options), "demands": np.eye(3)[wanted]}
    if options > 1:
        records["ids"] = np.repeat(np.arange(n), options)
    board = solve(market, **records, epsilon=math.inf, delta=1e-8).billboard
    _, paid = certificates._unsold(board, bounds.value_tail(board.header))
    (welfare,) = bounds.closing_release(board, "welfare").answer
    rounds = [r for r in board.releases if r.step.weight]
    exact = sum(
        r.step.weight * sum(p * a for p, a in zip(r.step.prices, r.answer, strict=True))
        for r in rounds
    )
    assert paid == pytest.approx(exact / board.weight / PRICE_UNITS_PER_VALUE_CODE)
    assert 0.3 * welfare < paid <= welfare + n


def test_a_certificate_may_claim_less_about_value_but_never_more():
    market, values, demands = loose_values(3000)
    board = solve(market, values=values, demands=demands, epsilon=4.0, delta=1e-8, seed=1).billboard
    found = board.certificate
    less = replace(found, welfare_at_least=0.0, optimum_at_most=None, ratio_at_least=0.1)
    assert certificates.proves(board, found) and certificates.proves(board, less)
    for claim in (
        {"welfare_at_least": found.welfare_at_least * 1.001},
        {"optimum_at_most": found.optimum_at_most * 0.999},
        {"ratio_at_least": found.ratio_at_least + 0.001},
        {"load_at_most": (0.1, 0.1)},
        {"factors": (SHARE - 1, SHARE)},
        {"value_beta": 0.02},
    ):
        assert not certificates.proves(board, replace(found, **claim))


def test_what_does_not_fit_is_not_counted_in_the_optimum():
    """All agents want the good at this price, so a run that overloads it has seen the optimum."""
    n, supply = 100_000, 2000.0
    market = Market(supply=[supply], max_demand=1.0, max_value=1.0, agents=n, divisible=True)
    result = solve(
        market, values=np.full(n, 0.5), demands=np.ones((n, 1)), epsilon=1.0, delta=1e-8, seed=1
    )
    most = result.certificate.optimum_at_most
    # Prices swing around the one value, so the dual does too; all 100,000 values sum to 50,000.
    assert 0.5 * supply <= most < 1.5 * 0.5 * supply
