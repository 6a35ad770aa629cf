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
from fractions import Fraction
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from jdpack import door
from jdpack.billboard.lines import Header, Seed, Step
from jdpack.door import SystemRandomness
from jdpack.engines import best_response, giving, shard
from jdpack.engines.memory import MemoryEngine
from jdpack.engines.screening import Box
from jdpack.engines.shard import NOBODY
from jdpack.engines.sharded import Combined
from jdpack.errors import BudgetError
from jdpack.ledger.entries import LedgerState
from jdpack.market.grid import SHARE
from jdpack.market.market import Market
from jdpack.policies import mwu_adaptive, newton
from jdpack.policies.newton import Newton
from jdpack.policies.registry import KINDS
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.accounting import Budget, Filter
from jdpack.privacy.noise import Gaussian, TruncatedLaplace
from jdpack.privacy.queries import ChanceChange, DemandChange, Query
from jdpack.protocol import bounds
from jdpack.protocol.run_state import RunState
from jdpack.records import encode, encode_kernels, person_kernels
from jdpack.run import lifecycle
from jdpack.run import solve as solving

Broken = Callable[[], AbstractContextManager[Any]]


def drawing(draw: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Replace Gaussian noise by a function of the true source, the scales, count and index."""
    honest = SystemRandomness.draw

    def changed(self, noise, count, index):
        if not isinstance(noise, Gaussian):
            return honest(self, noise, count, index)
        return draw(partial(honest, self), np.array(noise.of(count)), count, index)

    return mock.patch.object(SystemRandomness, "draw", changed)


# --- noise ----------------------------------------------------------------------------------


def noise_too_small() -> AbstractContextManager[Any]:
    """The noise is 30% too small."""
    return drawing(lambda honest, scale, count, index: honest(_of(0.7 * scale), count, index))


def _of(scales: Any) -> Gaussian:
    return Gaussian(tuple(scales.tolist()))


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
        z = rng.standard_normal(count, dtype=np.float32) * scale.astype(np.float32)
        return [round(float(x)) for x in z]

    return drawing(draw)


def noise_of_every_round_the_same() -> AbstractContextManager[Any]:
    """Each run draws once, and scales that draw for every release."""
    kept: dict[int, tuple[list[int], Any]] = {}

    def draw(honest, scale, count, index):
        if index == 0:
            kept.clear()
        if count not in kept:
            kept[count] = honest(_of(scale), count, index), scale
        first, its_scale = kept[count]
        return [round(z) for z in (first * scale / its_scale).tolist()]

    return drawing(draw)


def noise_of_every_second_run_the_same() -> AbstractContextManager[Any]:
    """Every second run reuses the noise of the run before it."""
    runs, kept = [0], {}

    def draw(honest, scale, count, index):
        runs[0] += index == 0
        if runs[0] % 2 == 1 or len(kept.get(index, ((), 1.0))[0]) != count:
            kept[index] = honest(_of(scale), count, index), scale
        drawn, its_scale = kept[index]
        return [round(z) for z in (drawn * scale / its_scale).tolist()]

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
        supplies, total = np.array(self.market.supply_codes), np.zeros(len(prices), dtype)
        price, weight = np.array([prices], dtype=np.float64), np.ones(1, np.int64)
        for part in self.parts:
            taken = best_response.shares(part, price, weight) > 0
            fills = list(enumerate(part.fill.tolist()))
            codes = np.concatenate([part.codes[b, :, :n].T for b, n in fills])
            values = np.concatenate([part.values[b, :n] for b, n in fills])
            order = np.argsort(values, kind="stable")[::-1]
            loads = (codes[order][taken[order]] / supplies).astype(dtype)
            total = np.add.accumulate(np.vstack([total, loads]), axis=0)[-1]
        return tuple(int(load) for load in (total.astype(np.float64) * supplies).tolist())

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


@contextlib.contextmanager
def _claiming(owner: type, name: str, claim: Any) -> Iterator[None]:
    """Replace a claim. What was computed from it must not outlive it, so nothing is remembered."""
    remembered = (
        *(Gaussian.cost, queries.change, Newton.outlook, newton._relative_noise),
        *(tail_bounds._deviations, tail_bounds.chance_scale, mwu_adaptive._least_alpha),
        tail_bounds.granted_part,
    )
    for one in remembered:
        one.cache_clear()
    with mock.patch.object(owner, name, claim):
        yield
    for one in remembered:
        one.cache_clear()


def chance_claimed_too_small() -> AbstractContextManager[Any]:
    """The sensitivity of a chance release is half of what it should be."""
    worst = ChanceChange.worst
    return _claiming(ChanceChange, "worst", lambda self, scales: worst(self, scales) / 4.0)


def shaped_noise_charged_as_even() -> AbstractContextManager[Any]:
    """Noise with several scales is charged as if it had the largest everywhere."""
    worst = DemandChange.worst
    return _claiming(DemandChange, "worst", lambda self, scales: worst(self, (max(scales),)))


def totals_are_not_read() -> AbstractContextManager[Any]:
    """Sensitivities rest on totals, but records beyond them count in full."""
    return mock.patch.multiple(
        encode_kernels, bound_rows=lambda *_: (-1, -1, 0), bound_pairs=lambda *_: (-1, -1, 0)
    )


def chance_without_halves() -> AbstractContextManager[Any]:
    """Agents with a share of exactly one half are left out of the chance query."""
    chance = giving.chance

    def without(part, m, shares, dearest):
        return chance(part, m, np.where(shares == SHARE // 2, 0, shares).astype(np.uint32), dearest)

    return mock.patch.object(giving, "chance", without)


def luck_cut_to_less() -> AbstractContextManager[Any]:
    """An agent's luck is cut to half of the range that is claimed."""
    luck = giving.luck

    def less(part, shares, given, lowest, highest):
        return luck(part, shares, given, lowest // 2, highest // 2)

    return mock.patch.object(giving, "luck", less)


# --- policies and filters -------------------------------------------------------------------


@contextlib.contextmanager
def _steps_that_see(change: Callable[[Step, tuple[int, ...]], Step]) -> Iterator[None]:
    """Every policy changes the steps that ask for demand, knowing the exact answer."""
    opened: list[MemoryEngine] = []
    make = MemoryEngine.__init__

    def remember(self, *args, **kwargs):
        make(self, *args, **kwargs)
        opened[:] = [self]

    def seeing(step):
        def changed(self, state):
            asked = step(self, state)
            if asked is None or not opened or asked.query != "demand":
                return asked
            return change(asked, opened[0].demand(asked.prices))

        return changed

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(MemoryEngine, "__init__", remember))
        for kind in KINDS.values():
            stack.enter_context(mock.patch.object(kind, "step", seeing(kind.step)))
        yield


def peeking_policy() -> AbstractContextManager[None]:
    """A price is one unit higher if the exact demand is odd."""

    def peek(asked, demand):
        return replace(asked, prices=(asked.prices[0] + sum(demand) % 2, *asked.prices[1:]))

    return _steps_that_see(peek)


def shape_from_exact_loads() -> AbstractContextManager[None]:
    """Noise is shaped by the exact demands: a little smaller where demand is large."""

    def shape(asked, demand):
        least, noise = min(asked.noise.scales), asked.noise.of(len(demand))
        scales = [s + least * 1e-6 / (1 + d) for s, d in zip(noise, demand, strict=True)]
        return replace(asked, noise=Gaussian(tuple(scales)))

    return _steps_that_see(shape)


def filter_off_by_one() -> AbstractContextManager[Any]:
    """The filter accepts the first release that the budget does not cover, then refuses."""
    charge = Filter.charge

    def late(self, cost, *about):
        try:
            charge(self, cost, *about)
        except BudgetError:
            if getattr(self, "late", False):
                raise
            self.late = True

    return mock.patch.object(Filter, "charge", late)


def truncation_for_free() -> AbstractContextManager[Any]:
    """Truncated noise costs no delta, although its support moves with the records."""
    cost = TruncatedLaplace.cost

    def free(self, *about):
        return replace(cost(self, *about), delta=Fraction(0))

    return mock.patch.object(TruncatedLaplace, "cost", free)


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

    def coins(part, key, hash, tossed=None):
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
        if any(d > s for d, s in zip(demand, opened[0].market.supply_codes, strict=True)):
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
        limits, low, high = [int(0.97 * s) * SHARE for s in self.market.supply_codes], 0, NOBODY

        def fits_in(allocation):
            return all(load <= most for load, most in zip(allocation.loads, limits, strict=True))

        allocation = self.drop(board, high)
        if fits_in(allocation):
            return allocation
        while high - low > 1:
            middle = (low + high) // 2
            fits = fits_in(self.drop(board, middle))
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


# --- groups, and a supply that may be exceeded --------------------------------------------------


def groups_not_in_bundles() -> AbstractContextManager[Any]:
    """Sensitivities count declared resources only, although members also move derived ones."""
    return _claiming(Market, "person_width", property(lambda self: self.person_limits.bundle))


def groups_are_not_read() -> AbstractContextManager[Any]:
    """Everybody counts as a member of the first group."""
    rows, pairs = encode_kernels.derive_rows, encode_kernels.derive_pairs

    def first_rows(out, runs, groups, rules):
        return rows(out, runs, np.zeros_like(groups), rules)

    def first_pairs(indptr, resources, codes, groups, rules):
        return pairs(indptr, resources, codes, np.zeros_like(groups), rules)

    return mock.patch.multiple(encode_kernels, derive_rows=first_rows, derive_pairs=first_pairs)


def repaired_where_excess_is_allowed() -> AbstractContextManager[Any]:
    """Winners are dropped although nothing pays for it."""
    return mock.patch.object(Header, "repaired", property(lambda self: True))


def repair_that_is_not_paid() -> AbstractContextManager[Any]:
    """The budget says that nothing is repaired, but winners are dropped anyway."""
    split = Budget.split.__func__

    def unpaid(cls, epsilon, delta, **more):
        return split(cls, epsilon, delta, **{**more, "repaired": False})

    return mock.patch.object(Budget, "split", classmethod(unpaid))


def excess_is_surely_small() -> AbstractContextManager[Any]:
    """`load_surely` is the bound that may fail as often as the market allows."""
    return mock.patch.object(bounds, "SURELY_BETA", None)


def radius_of_one_resource() -> AbstractContextManager[Any]:
    """Every load gets the radius of the first resource, whatever its noise."""
    honest = bounds._noisy_totals

    def alike(board):
        totals, sums = honest(board)
        return totals, sums[:1] * len(sums)

    return mock.patch.object(bounds, "_noisy_totals", alike)


def thinned_on_average() -> AbstractContextManager[Any]:
    """Grants are thinned to fit on average, with no margin for the coins that thin them."""
    return mock.patch.object(tail_bounds.Fit, "factor", lambda self, g: min(1.0, g))


# --- people with several requests ---------------------------------------------------------------


def people_forgotten_where_a_part_ends() -> AbstractContextManager[Any]:
    """What a person has asked for so far is forgotten when the next part begins."""
    honest = encode._Encoder._bound_people

    def forgetting(self, part, pairs):
        self.counts = person_kernels.Counts.empty(self.bounds)
        return honest(self, part, pairs)

    return mock.patch.object(encode._Encoder, "_bound_people", forgetting)


def turns_of_requests() -> AbstractContextManager[Any]:
    """Each request has its own turn, so one person is in several batches."""

    def places(part, key, hash, some=None):
        return shard._coins(part, key, hash, some)

    return mock.patch.object(shard, "_places", places)


def names_that_are_not_checked() -> AbstractContextManager[Any]:
    """Two requests of one person may have the same name, and with it the same coin."""
    return mock.patch.object(encode._Encoder, "_check_names", return_value=None)


def coins_by_rank() -> AbstractContextManager[Any]:
    """Agents without ids get coins by their rank among those whose coin matters."""
    honest = shard.bulk_coins.coins_of_numbers

    def ranked(key, numbers, hash):
        return honest(key, np.arange(len(numbers)), hash)

    return mock.patch.object(shard.bulk_coins, "coins_of_numbers", ranked)


# --- runs that protect nobody, and refunds ------------------------------------------------------


def seeded_run_called_private() -> AbstractContextManager[Any]:
    """A run with seeded noise, or without any, says that it is private."""

    def private(market, policy, budget, commitment, private, hash):
        return Header(market, policy, budget, commitment, True, hash)

    return mock.patch.object(solving, "Header", private)


@contextlib.contextmanager
def refund_of_a_run_that_has_posted() -> Iterator[None]:
    """A run that is stopped after its first line gives its reservation back to the ledger."""
    play, apply = lifecycle.Lifecycle._play, LedgerState._apply

    def refunding(self, engine, board):
        try:
            return play(self, engine, board)
        except BaseException:
            self.account.cancel(self.header)
            raise

    def lenient(self, kind, dataset, data):
        if kind == "cancel":
            self.runs[data["run"]].begun = False
        return apply(self, kind, dataset, data)

    with (
        mock.patch.object(lifecycle.Lifecycle, "_play", refunding),
        mock.patch.object(LedgerState, "_apply", lenient),
    ):
        yield
