"""The model of how loads respond to prices: right without noise, cautious with it."""

import math

import numpy as np
import pytest

from helpers import over_parts
from jdpack import Market
from jdpack.engines import best_response
from jdpack.engines import curvature as curvature_module
from jdpack.market.grid import BAND, CURVATURE_UNIT
from jdpack.policies.newton_response import (
    Response,
    _least_squares,
    _plain,
    from_gauge,
    with_curvature,
)
from jdpack.records.encode import encode
from jdpack.records.tables import array_pieces


def dense_market(n=20_000, m=4, seed=1):
    rng = np.random.default_rng(seed)
    values, demands = rng.random(n), rng.random((n, m))
    market = Market(supply=[0.2 * n] * m, max_demand=1.0, max_value=1.0, agents=n, divisible=True)
    return market, encode(market, array_pieces(market, values, demands, None))


def prices_of(market, total=0.5):
    """Equal prices of whole supplies, each a whole number of price units per code."""
    m = len(market.resources)
    worth = total * market.agents * market.value_cap_code * 2**20
    codes = np.array(market.supply_codes, dtype=float)
    return np.round(worth / m / codes) * codes


def posted(market, prices):
    """Price codes."""
    return tuple(round(p / s) for p, s in zip(prices, market.supply_codes, strict=True))


def answers(market, agents, prices):
    codes = posted(market, prices)
    queries = curvature_module.gauge, curvature_module.curvature
    return tuple(over_parts(query, agents.parts, codes) for query in queries)


def loads(market, agents, prices):
    demand = over_parts(best_response.demand, agents.parts, posted(market, prices))
    return np.array(demand) / np.array(market.supply_codes)


def test_without_noise_the_model_predicts_how_loads_fall():
    market, agents = dense_market()
    prices = prices_of(market)
    gauge, curvature = answers(market, agents, prices)
    model = from_gauge(market, prices, 1.0, gauge, 0.0)
    whole = with_curvature(model, market, curvature, 0.0)
    before = loads(market, agents, prices)
    for moves in (np.full(4, 0.05), np.array([0.08, -0.08, 0.0, 0.0])):
        fell = before - loads(market, agents, prices * np.exp(moves))
        assert whole.falls(prices, moves) == pytest.approx(fell, abs=0.012)
    common = before - loads(market, agents, prices * math.exp(0.05))
    assert model.falls(prices, np.full(4, 0.05)) == pytest.approx(common, abs=0.012)


def test_the_whole_matrix_is_what_was_released_without_noise():
    market, agents = dense_market()
    prices = prices_of(market)
    gauge, curvature = answers(market, agents, prices)
    whole = with_curvature(from_gauge(market, prices, 1.0, gauge, 0.0), market, curvature, 0.0)
    released = np.array(curvature).reshape(4, 4)
    released = released / (2 * BAND * CURVATURE_UNIT * market.supply_codes[0])
    assert (released == released.T).all()
    assert whole.scaled(prices) == pytest.approx(released, abs=1e-6)


@pytest.mark.parametrize("beyond", [False, True])
@pytest.mark.parametrize("caution", [1e-4, 0.05, 10.0])
def test_moves_solve_the_least_squares_problem(beyond, caution):
    rng = np.random.default_rng(3)
    m, prices = 6, rng.uniform(1.0, 9.0, 6)
    extra = rng.normal(size=(m, m)) * 0.01
    model = Response(prices, rng.uniform(0.1, 0.5, m), 1.7, extra + extra.T if beyond else None)
    x, root, trust = rng.normal(size=m), np.sqrt(prices), np.exp(rng.normal(size=m))
    a, w = model.scaled(prices), np.diag(trust)
    scaled = np.linalg.solve(a.T @ w @ a + caution * np.eye(m), a.T @ w @ (root * x))
    assert model.moves(prices, x, caution, trust) == pytest.approx(scaled / root, rel=1e-9)
    moves = rng.normal(size=m)
    assert model.falls(prices, moves) == pytest.approx(a @ (root * moves) / root, rel=1e-9)


def test_the_plain_model_and_the_general_solver_agree():
    rng = np.random.default_rng(4)
    prices, d = rng.uniform(1.0, 9.0, 8), rng.uniform(0.01, 2.0, 8)
    trust = np.exp(2.0 * rng.normal(size=8))
    for common in (0.0, 0.3, 40.0):
        model, x = Response(prices, d, common), rng.normal(size=8)
        root = np.sqrt(prices)
        general = _least_squares(model.scaled(prices), root * x, 0.01, trust) / root
        assert model.moves(prices, x, 0.01, trust) == pytest.approx(general, rel=1e-8)


@pytest.mark.parametrize("seed", range(30))
def test_the_plain_solver_is_the_dense_one(seed):
    """Trust, curvature and prices over many decades, against a solver of whole matrices."""
    rng = np.random.default_rng(seed)
    m, decade = int(rng.integers(1, 12)), 10.0 ** rng.uniform(0.0, 3.0)
    d, x = decade ** rng.uniform(-1.0, 0.0, m), rng.normal(size=m)
    trust, prices = decade ** rng.uniform(-1.0, 1.0, m), decade ** rng.uniform(0.0, 1.0, m)
    c, caution = float(rng.choice([0.0, 0.1, 3.0, 100.0])), 10.0 ** rng.uniform(-4.0, 1.0)
    u = np.sqrt(prices / prices.sum())
    # The same problem as an ordinary least-squares one, which is better conditioned.
    a = np.diag(d) + c * np.outer(u, u)
    rows = np.concatenate([np.sqrt(trust)[:, None] * a, math.sqrt(caution) * np.eye(m)])
    right = np.concatenate([np.sqrt(trust) * x, np.zeros(m)])
    dense = np.linalg.lstsq(rows, right, rcond=None)[0]
    found = _plain(d, c, u, x, caution, trust)
    assert found == pytest.approx(dense, rel=1e-6, abs=1e-6 * np.abs(dense).max())


def test_what_is_not_trusted_does_not_move_the_rest():
    """Negative control of trust: the same excess moves other prices if it is trusted."""
    prices, d, x = np.full(3, 4.0), np.full(3, 0.2), np.array([0.0, 0.0, 5.0])
    model = Response(prices, d, 1.0)
    moved = np.abs(model.moves(prices, x, 1e-3, np.ones(3)))[:2]
    doubted = np.abs(model.moves(prices, x, 1e-3, np.array([1.0, 1.0, 1e-9])))[:2]
    assert (moved > 0.1).all() and (doubted < 1e-3 * moved).all()


def test_noise_that_drowns_the_matrix_leaves_the_model():
    market, agents = dense_market()
    prices = prices_of(market)
    gauge, curvature = answers(market, agents, prices)
    model = from_gauge(market, prices, 1.0, gauge, 0.0)
    rng = np.random.default_rng(5)
    scale = 50.0 * max(curvature)
    kept = []
    for _ in range(20):
        noisy = tuple(int(c + z) for c, z in zip(curvature, rng.normal(0, scale, 16), strict=True))
        whole = with_curvature(model, market, noisy, scale)
        beyond = 0.0 if whole.beyond is None else float(np.abs(whole.beyond).max())
        kept.append(beyond * 2 * BAND * CURVATURE_UNIT * market.supply_codes[0] / scale)
    assert np.mean(kept) < 0.2  # the model believes almost none of the noise
    unit = 2 * BAND * CURVATURE_UNIT * market.supply_codes[0]
    believed = with_curvature(model, market, noisy, 1.0).beyond  # as if it were exact
    assert believed is None or np.abs(believed).max() > 0.2 * scale / unit


@pytest.mark.parametrize("released", [-1.0, 0.0, 1.0])
def test_noise_that_drowns_the_gauge_leaves_a_likely_level(released):
    """If it made the market look stiff, prices would hardly move."""
    market, agents = dense_market(m=1)
    prices = prices_of(market)
    gauge, _ = answers(market, agents, prices)
    exact = from_gauge(market, prices, 1.0, gauge, 0.0).level(prices)
    noise = 100.0 * gauge[-2]
    drowned = tuple(round(g + released * noise) for g in gauge)
    assert 0.2 <= from_gauge(market, prices, 1.0, drowned, noise).level(prices) < 3.0
    faint = 0.01 * gauge[-2]
    assert from_gauge(market, prices, 1.0, gauge, faint).level(prices) == pytest.approx(
        exact, rel=0.05
    )


def test_whatever_is_released_the_matrix_is_positive_definite():
    market, _ = dense_market(2000)
    prices, rng = prices_of(market), np.random.default_rng(6)
    for _ in range(50):
        scale = 10.0 ** rng.uniform(3, 12)
        gauge = tuple(int(z) for z in rng.normal(0, scale, 6))
        curvature = tuple(int(z) for z in rng.normal(0, scale, 16))
        noise = scale * 10.0 ** rng.uniform(-3, 1)
        model = with_curvature(
            from_gauge(market, prices, 1.0, gauge, noise), market, curvature, noise
        )
        assert np.linalg.eigvalsh(model.scaled(prices)).min() > 0.0
        assert np.all(np.isfinite(model.moves(prices, rng.normal(size=4), 0.05, np.ones(4))))


def test_a_resource_that_got_cheap_does_not_move_others():
    model = Response(np.full(2, 4.0), np.full(2, 0.1), 2.0)
    cheap = np.array([4.0, 4e-6])
    falls = model.falls(cheap, np.array([0.0, -0.5]))
    assert abs(falls[0]) < 1e-5 < 0.4 < abs(model.falls(np.full(2, 4.0), np.array([0.0, -0.5]))[0])
