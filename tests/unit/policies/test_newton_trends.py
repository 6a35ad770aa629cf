"""What rounds show of the response: it corrects a model that noise misled, and nothing else."""

import math
from dataclasses import replace

import numpy as np
import pytest

from jdpack.policies.newton_response import Response, Told, _cholesky
from jdpack.policies.newton_trends import Trends

M = 4
TRUE_DIAGONAL, TRUE_COMMON = np.array([0.2, 0.5, 0.9, 0.3]), 0.4


def model_of(level, diagonal, *, level_variance=1.0, variances=1.0, common=0.0, beyond=None):
    prices, diagonal = np.full(M, 100.0), np.array(diagonal)
    told = Told(
        level, level_variance, diagonal, np.full(M, variances), 0.01 * diagonal, common, beyond
    )
    return Response(prices, diagonal, common, beyond, told)


def watched(noise, rounds=60, seed=3):
    """Trends after rounds in which prices wander and loads respond as the true model says."""
    rng = np.random.default_rng(seed)
    start = np.full(M, 100.0)
    trends = Trends.begin(np.ones(M), start)
    for _ in range(rounds):
        moves = 0.2 * rng.normal(size=M) + 0.2 * rng.normal()
        x = math.log(np.exp(moves).mean())
        loads = 1.0 - TRUE_DIAGONAL * moves - TRUE_COMMON * x + noise * rng.normal(size=M)
        trends = trends.seen(start * np.exp(moves), loads, np.full(M, noise * noise + 1e-4))
    return trends, start


def corrected(model, trends, prices, *, crossed=False):
    """Newton corrects the model after every round, so level and diagonal come to agree."""
    for _ in range(30):
        model = trends.corrected(model, prices, crossed=crossed)
    return model


def level_of(diagonal, common):
    return common + float(np.mean(diagonal))


@pytest.mark.parametrize("told", [0.2, 1.0, 5.0])
def test_rounds_with_little_noise_overrule_the_gauge(told):
    """It told a level and a diagonal that are five times too small, or too large."""
    trends, prices = watched(noise=0.01)
    found = corrected(model_of(2.0 * told, np.full(M, told)), trends, prices)
    assert found.level(prices) == pytest.approx(level_of(TRUE_DIAGONAL, TRUE_COMMON), rel=0.15)
    assert found.diagonal == pytest.approx(TRUE_DIAGONAL, abs=0.1)


def test_rounds_that_noise_drowns_leave_what_the_gauge_told():
    trends, prices = watched(noise=50.0)
    told = model_of(1.0, np.full(M, 0.5), level_variance=0.01, variances=0.01, common=0.5)
    found = corrected(told, trends, prices)
    # With two deviations of doubt about the level added.
    assert found.level(prices) == pytest.approx(1.2, rel=0.01)
    assert found.diagonal == pytest.approx(np.full(M, 0.5), rel=0.01)


def test_an_exact_gauge_is_not_corrected():
    trends, prices = watched(noise=0.01)
    model = model_of(1.0, np.full(M, 0.5), level_variance=0.0)
    assert trends.corrected(model, prices, crossed=False) is model


def test_with_one_option_no_level_is_below_its_diagonal():
    """If the gauge told a diagonal above the level that rounds show, it comes down with it."""
    trends, prices = watched(noise=0.01)
    told = model_of(5.0, np.full(M, 5.0), variances=1e-9)
    level = level_of(TRUE_DIAGONAL, TRUE_COMMON)
    one = corrected(told, trends, prices)
    assert one.level(prices) == pytest.approx(level, rel=0.15)
    several = corrected(told, trends, prices, crossed=True)
    assert several.level(prices) == pytest.approx(5.0, rel=1e-3)


def test_corrections_keep_the_matrix_positive_definite():
    """Negative control: a smaller diagonal with all that the curvature added is not."""
    rng, broken = np.random.default_rng(5), 0
    trends, prices = watched(noise=0.01)
    for _ in range(200):
        square = rng.normal(size=(M, M))
        beyond = (square + square.T) * rng.uniform(0.1, 1.0)
        model = model_of(4.0, np.full(M, 3.0), common=1.0, beyond=beyond)
        base = replace(model, beyond=None).scaled(prices)
        if _cholesky(0.6 * base + beyond) is None:
            continue  # `with_curvature` adds no such matrix
        found = corrected(model, trends, prices, crossed=True)
        assert _cholesky(found.scaled(prices)) is not None
        broken += _cholesky(replace(found, beyond=beyond).scaled(prices)) is None
    assert broken > 10
