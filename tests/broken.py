"""Pipelines broken on purpose, as context managers. An audit must catch each of them.

Each one changes the real code while its context is active, so the same call of `audit` sees it.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from jdpack import door
from jdpack.billboard.lines import Seed
from jdpack.door import SystemRandomness
from jdpack.engines import best_response, shard
from jdpack.engines.memory import MemoryEngine
from jdpack.engines.screening import Box
from jdpack.engines.sharded import Combined
from jdpack.errors import BudgetError
from jdpack.market.grid import SHARE
from jdpack.policies.registry import KINDS
from jdpack.privacy.accounting import Filter
from jdpack.privacy.noise import Gaussian
from jdpack.privacy.queries import Query
from jdpack.protocol.run_state import RunState

Broken = Callable[[], AbstractContextManager[Any]]


def drawing(draw: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Replace Gaussian noise by a function of the true source, the scale, count and index."""
    honest = SystemRandomness.draw

    def changed(self, noise, count, index):
        if not isinstance(noise, Gaussian):
            return honest(self, noise, count, index)
        return draw(partial(honest, self), noise.scale, count, index)

    return mock.patch.object(SystemRandomness, "draw", changed)


# --- noise ----------------------------------------------------------------------------------


def noise_too_small() -> AbstractContextManager[Any]:
    """The noise is 30% too small."""
    return drawing(lambda honest, scale, count, index: honest(Gaussian(0.7 * scale), count, index))


def noise_in_doubles() -> AbstractContextManager[Any]:
    """The noise is not rounded at all."""
    rng = np.random.default_rng()
    return drawing(lambda honest, scale, count, index: rng.normal(0.0, scale, count).tolist())


def noise_in_rounded_doubles() -> AbstractContextManager[Any]:
    """Rounded, but from a generator that is not cryptographic."""
    rng = np.random.default_rng()
    return drawing(
        lambda honest, scale, count, index: [
            round(z) for z in rng.normal(0.0, scale, count).tolist()
        ]
    )


def noise_in_singles() -> AbstractContextManager[Any]:
    """Rounded, but drawn in single precision."""
    rng = np.random.default_rng()

    def draw(honest, scale, count, index):
        z = rng.standard_normal(count, dtype=np.float32) * np.float32(scale)
        return [round(float(x)) for x in z]

    return drawing(draw)


def noise_of_every_round_the_same() -> AbstractContextManager[Any]:
    """Each run draws once, and scales that draw for every release."""
    kept: dict[int, tuple[list[int], float]] = {}

    def draw(honest, scale, count, index):
        if index == 0:
            kept.clear()
        if count not in kept:
            kept[count] = honest(Gaussian(scale), count, index), scale
        first, its_scale = kept[count]
        return [round(z * scale / its_scale) for z in first]

    return drawing(draw)


def noise_of_every_second_run_the_same() -> AbstractContextManager[Any]:
    """Every second run reuses the noise of the run before it."""
    runs, kept = [0], {}

    def draw(honest, scale, count, index):
        runs[0] += index == 0
        if runs[0] % 2 == 1 or len(kept.get(index, ((), 1.0))[0]) != count:
            kept[index] = honest(Gaussian(scale), count, index), scale
        drawn, its_scale = kept[index]
        return [round(z * scale / its_scale) for z in drawn]

    return drawing(draw)


@contextlib.contextmanager
def scale_without_noise() -> Iterator[None]:
    """The leak of the printed algorithm: step sizes are exact functions of the demands."""
    statistic, draw, asked = door.statistic, SystemRandomness.draw, []

    def asks(step, *rest):
        asked[:] = [step.query]
        return statistic(step, *rest)

    def draws(self, noise, count, index):
        return [0] * count if asked == ["scale"] else draw(self, noise, count, index)

    with (
        mock.patch.object(door, "statistic", asks),
        mock.patch.object(SystemRandomness, "draw", draws),
    ):
        yield


# --- queries --------------------------------------------------------------------------------


def sum_in_the_order_of_values(dtype: Any = np.float64) -> AbstractContextManager[Any]:
    """Loads are summed in floating point, highest values first, and rounded down."""
    exact = shard.Shard.demand

    def demand(self, prices):
        if any(part.resources is not None for part in self.parts):
            return exact(self, prices)
        supply, total = self.market.supply_code, np.zeros(len(prices), dtype)
        price, weight = np.array([prices], dtype=np.float64), np.ones(1, np.int64)
        for part in self.parts:
            taken = best_response.shares(part, price, weight) > 0
            fills = list(enumerate(part.fill.tolist()))
            codes = np.concatenate([part.codes[b, :, :n].T for b, n in fills])
            values = np.concatenate([part.values[b, :n] for b, n in fills])
            order = np.argsort(values, kind="stable")[::-1]
            loads = (codes[order][taken[order]] / supply).astype(dtype)
            total = np.add.accumulate(np.vstack([total, loads]), axis=0)[-1]
        return tuple(int(load * supply) for load in total.tolist())

    return mock.patch.object(shard.Shard, "demand", demand)


def sum_in_singles() -> AbstractContextManager[Any]:
    """The same in single precision."""
    return sum_in_the_order_of_values(np.float32)


def doubled(query: Query) -> Broken:
    """Every agent counts twice in one query."""

    def broken() -> AbstractContextManager[Any]:
        exact = door.statistic

        def statistic(step, *rest):
            answer = exact(step, *rest)
            return tuple(2 * a for a in answer) if step.query == query else answer

        return mock.patch.object(door, "statistic", statistic)

    broken.__name__ = f"doubled_{query}"
    return broken


# --- policies and filters -------------------------------------------------------------------


@contextlib.contextmanager
def peeking_policy() -> Iterator[None]:
    """A price is one unit higher if the exact demand is odd."""
    opened: list[MemoryEngine] = []
    make = MemoryEngine.__init__

    def remember(self, *args, **kwargs):
        make(self, *args, **kwargs)
        opened[:] = [self]

    def peeking(step):
        def peek(self, state):
            asked = step(self, state)
            if asked is None or not opened or asked.query != "demand":
                return asked
            odd = sum(opened[0].demand(asked.prices)) % 2
            moved = (asked.prices[0] + odd, *asked.prices[1:])
            return type(asked)(asked.query, moved, asked.noise, asked.weight, asked.batch)

        return peek

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(MemoryEngine, "__init__", remember))
        for kind in KINDS.values():
            stack.enter_context(mock.patch.object(kind, "step", peeking(kind.step)))
        yield


def filter_off_by_one() -> AbstractContextManager[Any]:
    """The filter accepts the first release that the budget does not cover, then refuses."""
    charge = Filter.charge

    def late(self, cost, batch=None):
        try:
            charge(self, cost, batch)
        except BudgetError:
            if getattr(self, "late", False):
                raise
            self.late = True

    return mock.patch.object(Filter, "charge", late)


# --- coins ----------------------------------------------------------------------------------


def _bytes_of(agents: Any, arguments: Any) -> bytes:
    if agents is not None:
        return b"".join(file.read_bytes() for file in sorted(agents.iterdir()))
    return b"".join(np.asarray(arguments[name]).tobytes() for name in ("values", "demands"))


def _seeding(seed_of: Callable[[bytes], bytes]) -> AbstractContextManager[Any]:
    """The coins' seed is a function of the records' hash."""
    from jdpack.run import solve as pipeline

    solve = pipeline.solve

    def changed(market, agents=None, **arguments):
        seed = Seed(seed_of(hashlib.sha256(_bytes_of(agents, arguments)).digest())[:16])
        with mock.patch.object(Seed, "draw", classmethod(lambda cls: seed)):
            return solve(market, agents, **arguments)

    return mock.patch.object(pipeline, "solve", changed)


def seed_from_the_records() -> AbstractContextManager[Any]:
    """The same records have the same coins."""
    return _seeding(lambda records: records)


def seed_from_salted_records() -> AbstractContextManager[Any]:
    """The seed is fresh in every run, but still a function of the records."""
    return _seeding(lambda records: hashlib.sha256(records + secrets.token_bytes(16)).digest())


def coin_from_the_value() -> AbstractContextManager[Any]:
    """An agent's coin is a hash of its value."""

    def coins(part, key, tossed=None):
        fills = enumerate(part.fill.tolist())
        values = np.concatenate([part.values[b, :n] for b, n in fills]).astype(np.uint64)
        mixed = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        found = mixed >> np.uint64(11)
        return found if tossed is None else np.where(tossed, found, np.uint64(0))

    return mock.patch.object(shard, "_coins", coins)


def better_of_two_seeds() -> AbstractContextManager[Any]:
    """The run draws two seeds, and the records decide which one it uses."""

    def better(records: bytes) -> bytes:
        seeds = [secrets.token_bytes(16), secrets.token_bytes(16)]
        return max(seeds, key=lambda seed: hashlib.sha256(seed + records).digest())

    return _seeding(better)


# --- what an audit once missed ----------------------------------------------------------------


@contextlib.contextmanager
def stop_when_the_exact_demand_fits() -> Iterator[None]:
    """The run ends at the first counting round in which the true demand fits."""
    opened: list[MemoryEngine] = []
    make, step = MemoryEngine.__init__, RunState.step

    def remember(self, *args, **kwargs):
        make(self, *args, **kwargs)
        opened[:] = [self]

    def stops(self):
        asked = step(self)
        if asked is None or asked.weight == 0 or not self._board.releases or self._closing:
            return asked
        demand = opened[0].demand(self._board.releases[-1].step.prices)
        if max(demand) > opened[0].market.supply_code:
            return asked
        self._closing = True
        return step(self)

    with (
        mock.patch.object(MemoryEngine, "__init__", remember),
        mock.patch.object(RunState, "step", stops),
    ):
        yield


def repair_from_97_percent() -> AbstractContextManager[Any]:
    """The repair drops agents although everything fits."""

    def early(self, board):
        limit, low, high = int(0.97 * self.market.supply_code) * SHARE, 0, shard.NOBODY
        allocation = self.drop(board, high)
        if max(allocation.loads) <= limit:
            return allocation
        while high - low > 1:
            middle = (low + high) // 2
            fits = max(self.drop(board, middle).loads) <= limit
            low, high = (middle, high) if fits else (low, middle)
        return self.drop(board, low)

    return mock.patch.object(Combined, "allocate", early)


def screening_counts_twice() -> AbstractContextManager[Any]:
    """Agents whose choice is known are counted, and then asked anyway."""
    screen = Box.screen.__func__

    def twice(cls, parts, *rest):
        box = screen(cls, parts, *rest)
        return None if box is None else replace(box, open=parts)

    return mock.patch.object(Box, "screen", classmethod(twice))
