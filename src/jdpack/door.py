"""The door: the only way from the private side to the public side.

`release` answers one query of a run with noise. `release_levels` does the same for the counts that
suggest bounds, before there is a run. Both charge the filter **before** they touch the data, so
they never make a release that the budget does not cover. Nothing else in jdpack draws noise, and no
other function hands the public side a number that depends on the records.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Protocol, cast

import numpy as np
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_gaussian, make_laplace
from opendp.metrics import l1_distance, l2_distance
from opendp.mod import enable_features

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Release, Seed, Step
from jdpack.common.batches import Batch
from jdpack.engines.base import Engine
from jdpack.market.levels import widths
from jdpack.market.market import Market
from jdpack.privacy import queries
from jdpack.privacy.accounting import Filter
from jdpack.privacy.noise import Gaussian, Noise, NoNoise, TruncatedLaplace
from jdpack.protocol import bounds, closing
from jdpack.protocol.charge import charge
from jdpack.records.levels import Levels


class Randomness(Protocol):
    """A source of noise. `index` is the number of releases before this one."""

    def draw(self, noise: Noise, count: int, index: int) -> list[int]: ...


def release(
    step: Step,
    engine: Engine,
    filter: Filter,
    randomness: Randomness,
    board: Billboard,
    coin_seed: Seed | None,
) -> Release:
    """Answer a step's query through the door.

    Formal guarantees. Between neighbours the exact answer moves by at most `closing.change`.
    `queries.change` and `queries.luck_change` prove this for fixed prices, rounds and coins. Prices
    and rounds are public, and the coins' seed is drawn before the first record is read. So adding
    the step's noise costs what `step.noise.cost` proves, and that is charged first.
    """
    charge(step, filter, board)
    exact = statistic(step, engine, board, coin_seed)
    noise = randomness.draw(step.noise, len(exact), len(board.releases))
    return Release(step, tuple(e + z for e, z in zip(exact, noise, strict=True)))


def release_levels(
    market: Market, levels: Levels, noise: Noise, filter: Filter, randomness: Randomness
) -> tuple[int, ...]:
    """Release how many agents are at each level, with noise, in units of LEVEL_UNIT.

    Formal guarantees. Between neighbours the exact counts move by at most `queries.levels_change`,
    so adding the noise costs what `noise.cost` proves, and that is charged first.
    """
    filter.charge(noise.cost(queries.levels_change(market), sum(widths(market))))
    drawn = randomness.draw(noise, len(levels.counts), 0)
    return tuple(
        queries.LEVEL_UNIT * count + z for count, z in zip(levels.counts, drawn, strict=True)
    )


def statistic(
    step: Step, engine: Engine, board: Billboard, coin_seed: Seed | None
) -> tuple[int, ...]:
    """The exact answer to a query. The set is closed; `privacy.queries` has the sensitivities."""
    assert coin_seed is not None or step.query not in ("granted", "luck"), "coins need their seed"
    match step.query:
        case "demand" if step.batch is not None:
            prices = _posted(step.prices, step.batch, step.span, board)
            return engine.batch_demand(
                prices, step.batch, board.header.order, board.header.coin_hash
            )
        case "demand":
            return engine.demand(step.prices)
        case "scale":
            return (_scale(engine.market.supply_codes, engine.demand(step.prices)),)
        case "value":
            return (engine.value(step.prices),)
        case "curvature":
            return engine.curvature(step.prices)
        case "gauge":
            return engine.gauge(step.prices)
        case "welfare":
            return (engine.welfare(board),)
        case "granted":
            return engine.granted(board, cast(Seed, coin_seed))
        case "chance":
            return engine.chance(board, bounds.dearest(board))
        case "luck":
            factors = bounds.factors(board)
            extent = closing.luck_range(board, factors) or (0, 0)
            return (engine.luck(board, cast(Seed, coin_seed), factors, *extent),)


def _posted(
    prices: tuple[int, ...], batch: Batch, span: int, board: Billboard
) -> list[tuple[int, ...]]:
    """The prices of each batch of a block; `prices` are those of the last one."""
    before = (
        r.step.prices
        for r in reversed(board.releases)
        if r.step.batch is not None and r.step.batch.index < batch.index
    )
    found = [prices, *itertools.islice(before, span - 1)]
    assert len(found) == span, "the billboard lacks a round before this one"
    return found[::-1]


def _scale(supplies: tuple[int, ...], demand: tuple[int, ...]) -> int:
    """How far loads are from full, at least 1, in units of 1 / the smallest supply in codes."""
    unit = min(supplies)
    return max(unit, *(abs(s - d) * unit // s for s, d in zip(supplies, demand, strict=True)))


class SystemRandomness:
    """Exact discrete noise from the operating system's randomness, drawn by OpenDP's samplers."""

    def draw(self, noise: Noise, count: int, index: int) -> list[int]:
        match noise:
            case Gaussian():
                return _gaussians(noise.of(count))
            case NoNoise():
                return [0] * count
            case TruncatedLaplace(scale, bound):
                kept: list[int] = []
                while len(kept) < count:  # rejection: exact, and independent of the data
                    kept += [z for z in _laplace(scale)([0] * count) if abs(z) <= bound]
                return kept[:count]


class SeededRandomness:
    """Reproducible noise for experiments and tests. It protects nobody.

    Each release has its own stream, so a resumed run draws what an uninterrupted run would have.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def draw(self, noise: Noise, count: int, index: int) -> list[int]:
        rng = np.random.default_rng([self.seed, index])
        match noise:
            case Gaussian():
                # As rng.normal with these scales, in half the time.
                drawn = rng.standard_normal(count) * noise.of(count)
                return [round(z) for z in drawn.tolist()]
            case NoNoise():
                return [0] * count
            case TruncatedLaplace(scale, bound):
                kept: list[int] = []
                while len(kept) < count:
                    fresh = [round(z) for z in rng.laplace(0.0, scale, count).tolist()]
                    kept += [z for z in fresh if abs(z) <= bound]
                return kept[:count]


def _gaussians(scales: tuple[float, ...]) -> list[int]:
    """One draw of each scale. Numbers of the same scale are drawn together, which is faster."""
    places: dict[float, list[int]] = {}
    for place, scale in enumerate(scales):
        places.setdefault(scale, []).append(place)
    drawn = [0] * len(scales)
    for scale, where in places.items():
        for place, z in zip(where, _gaussian(scale)([0] * len(where)), strict=True):
            drawn[place] = z
    return drawn


@functools.lru_cache(maxsize=64)
def _gaussian(scale: float) -> Any:
    enable_features("contrib")
    space = vector_domain(atom_domain(T="i64")), l2_distance(T="f64")
    return make_gaussian(*space, scale=scale)


@functools.lru_cache(maxsize=64)
def _laplace(scale: float) -> Any:
    enable_features("contrib")
    space = vector_domain(atom_domain(T="i64")), l1_distance(T="i64")
    return make_laplace(*space, scale=scale)
