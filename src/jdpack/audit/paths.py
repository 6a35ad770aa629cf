"""Private: forces every private path of the pipeline to run on small data.

A fault shows only where its code runs. A run's path depends on its size, its engine, its market and
its luck, so this module takes every path on purpose and compares the results with the reference,
like those of any other run (`checks`): screening, several parts, several shards, code stores,
threads, clamping, a market that is nearly or exactly full, repair, every policy, folders,
interruption, a ledger, and agents who add the noise themselves.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import math
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from jdpack.agent.options import counted
from jdpack.audit import answers, budget_checks, neighbours
from jdpack.audit.checks import RecordedRuns, runs_of
from jdpack.audit.epsilon_bounds import scipy
from jdpack.audit.findings import Finding, fact, guarded, located
from jdpack.audit.people import (
    People,
    Record,
    beyond,
    caps_of,
    everything,
    example,
    example_groups,
    example_requests,
    example_sparse,
    example_totals,
    group_of,
    nothing,
    plain,
    with_rules,
)
from jdpack.audit.recording import (
    Chooser,
    Setting,
    StoppedError,
    Tape,
    keep,
    public_files,
    record,
    replay,
    swapped,
    watching,
)
from jdpack.audit.reference import CountedRounds, demand_codes, reference
from jdpack.audit.scripted_policy import BATCHES, GREEDY, HALF, STILL, Script, known
from jdpack.billboard.lines import Step
from jdpack.curator.reports import report_run
from jdpack.engines import shard
from jdpack.engines.base import Engine
from jdpack.engines.memory import MemoryEngine
from jdpack.engines.settings import Mapped, Memory, RunInfo, Tell
from jdpack.engines.shard import Shard
from jdpack.engines.sharded import Combined
from jdpack.errors import JdpackError
from jdpack.ledger.ledger import Ledger
from jdpack.market.grid import (
    DEMAND_CODE_MAX,
    PRICE_CODE_MAX,
    PRICE_UNITS_PER_VALUE_CODE,
    SHARE,
)
from jdpack.market.market import Market, Neighbours
from jdpack.policies.dual_gd import DualGd
from jdpack.policies.mirror_descent import MirrorDescent
from jdpack.policies.mwu_adaptive import MwuAdaptive
from jdpack.policies.mwu_fixed import MwuFixed
from jdpack.policies.mwu_online import MwuOnline
from jdpack.policies.newton import Newton
from jdpack.privacy.noise import Gaussian, deviation
from jdpack.records import encode as encoding
from jdpack.records.encode import encode
from jdpack.records.source import Source
from jdpack.records.threads import Threads
from jdpack.run.local import LocalAgent, LocalRun
from jdpack.run.solve import resume

EVEN = 1000
"""At this price (value codes per demand code), every seventh row costs exactly its value."""

FULL_SIZE = 2**16 + 2**12
"""More rows than engines need before they screen."""

POLICIES: tuple[Any, ...] = (
    MwuAdaptive(alpha=0.5),
    MwuFixed(rounds=8),
    MwuOnline(batch=10),
    DualGd(rounds=12),
    MirrorDescent(rounds=8),
)
"""Every policy except newton, with few rounds."""

FORCED = ((shard, "_SCREENED", 1), (shard, "_FEW", 0))
"""Settings that screen even where it saves no time."""


def low(at: int, scale: float, count: int) -> list[int]:
    """Noise so low that the certificate sees enough supply for everybody."""
    return [-round(300 * scale)] * count


def stopped_at(stop: int) -> Chooser:
    """Honest noise, until a draw at which the run is stopped."""

    def choose(at: int, scale: float, count: int) -> None:
        if at == stop:
            raise StoppedError

    return choose


def lucky(at: int, scale: float, count: int) -> list[int]:
    """No noise, but much on numbers that are drawn alone.

    Welfare is one of them. If it seems large, it is worth a release to see how much of it is lost.
    """
    return [round(40 * scale)] if count == 1 else [0] * count


# --- engines ------------------------------------------------------------------------------


class Shards(MemoryEngine):
    """An engine that spreads its agents over several shards."""

    def __init__(self, agents: Any, threads: int | None) -> None:
        super().__init__(agents, threads)
        self.shards = [Shard(agents.market, [part], Threads(threads)) for part in agents.parts]

    def _all(self, question: str, *about: Any) -> list[Any]:
        return [getattr(one, question)(*about) for one in self.shards]


@dataclass(frozen=True)
class Sharded(Memory):
    """Chooses `Shards`, with about a fifth of the agents in each shard."""

    kind: ClassVar[type[MemoryEngine]] = Shards

    def open(self, source: Source, threads: int | None, run: RunInfo, tell: Tell) -> Engine:
        pieces = source.pieces(max(1, source.market.agents // 5))
        agents = encode(source.market, pieces, clamp=source.clamp, threads=Threads(threads))
        return self.kind(agents, threads)


@dataclass(frozen=True)
class Parted(Sharded):
    """Several parts in one shard, as a run with many agents has."""

    kind: ClassVar[type[MemoryEngine]] = MemoryEngine


class Workers(Combined):
    """The workers of the cluster engine, in this process."""

    def __init__(self, market: Market, workers: Sequence[Any]) -> None:
        super().__init__(market)
        self._workers = workers
        self._all("digest")  # workers read their records at the first question
        tallies = [tally for worker in workers for tally in worker.tallies()]
        self.count = sum(tally.agents for tally in tallies)
        self.requests = sum(tally.requests for tally in tallies)
        self.clamped = sum(tally.clamped for tally in tallies)
        self.numbered = False

    def _all(self, question: str, *about: Any) -> list[Any]:
        return [worker.answer(question, *about)[2] for worker in self._workers]

    def write(self, board: Any, allocation: Any, folder: Path) -> None:
        """These workers write no files."""

    def close(self) -> None:
        """These workers end with this process."""


@dataclass(frozen=True)
class InProcess(Mapped):
    """Chooses `Workers`."""

    def open(self, source: Source, threads: int | None, run: RunInfo, tell: Tell) -> Engine:
        from jdpack.engines import ray

        pieces = ray._cut(source.pieces(max(1, source.market.agents // 9)), 4)
        some = [ray.Worker(source.market, own, source.clamp, 1, self.store) for own in pieces]
        return Workers(source.market, some)


# --- people -------------------------------------------------------------------------------


def crowd(market: Market, seed: int, *, texts: bool = False) -> People:
    """Many agents, with bundles of every size from empty to the largest."""
    market, rng = plain(market), np.random.default_rng([seed, 5])
    m, agents = len(market.declared), market.agents
    counts = rng.integers(1, market.options + 1, agents)
    rows = int(counts.sum())
    ranks = rng.random((rows, m)).argsort(axis=1)
    sizes = np.minimum(rng.geometric(0.5, rows) - 1, market.bundle_size)
    touched = ranks < sizes[:, None]
    demands = touched * rng.choice([0.1, 0.5, 1.0], (rows, 1)) * rng.random((rows, m))
    demands *= [r.max_demand for r in market.declared]
    if market.totals:
        demands = np.array([counted(market, row) for row in demands.tolist()])
    if market.groups:
        groups = np.repeat(rng.integers(-1, len(market.groups), agents), counts).tolist()
        own = zip(demands.tolist(), groups, strict=True)
        demands = np.array([with_rules(market, row, group) for row, group in own])
    values = market.max_value * rng.random(rows) ** 2
    values[::3] = np.round(values[::3] / market.max_value * 4.0) * market.max_value / 4.0  # ties
    codes = demand_codes(market, demands[::7]).sum(axis=1)
    values[::7] = np.minimum(EVEN * codes * market.value_step, market.max_value)
    options = list(zip(values.tolist(), map(tuple, demands.tolist()), strict=True))
    edges = np.cumsum([0, *counts]).tolist()
    records = tuple(tuple(options[a:b]) for a, b in itertools.pairwise(edges))
    ids = tuple(f"agent {i:x}" if texts else 7 * i - 9 for i in range(agents))
    return People(market, ids, records)


def dense(agents: int, options: int = 1, **more: Any) -> Market:
    """A market with three resources, where options may touch all of them."""
    return Market(
        supply=[0.4 * agents, 0.3 * agents, 0.9 * agents],
        max_demand=[1.0, 0.8, 2.0],
        max_value=10.0,
        agents=agents,
        options=options,
        name=f"dense, {options} options",
        **more,
    )


def sparse(agents: int, options: int = 1, **more: Any) -> Market:
    """A market with sixteen resources, where options touch at most six, and most touch fewer."""
    return Market(
        supply=[agents * (0.5 + 0.1 * (j % 4)) for j in range(16)],
        max_demand=[1.0 + 0.5 * (j % 3) for j in range(16)],
        max_value=5.0,
        agents=agents,
        bundle_size=6,
        options=options,
        name=f"sparse, {options} options",
        **more,
    )


def ample(*, divisible: bool, agents: int = 60) -> Market:
    """A market with more than most agents want, so high starting prices soon fall within reach."""
    return Market(
        supply=[1.5 * agents, 8.0 * agents],
        max_demand=[1.0, 4.0],
        max_value=1.0,
        agents=agents,
        divisible=divisible,
        name="ample",
    )


def plentiful(*, divisible: bool) -> Market:
    """A market with so much supply that coins, not the noise, decide who wins."""
    return Market(
        supply=[1e6, 5e6],
        max_demand=[1.0, 2.5],
        max_value=1.0,
        agents=80,
        options=2,
        divisible=divisible,
        name="plentiful",
    )


def tight(*, divisible: bool, options: int, neighbours: Neighbours) -> Market:
    """A market with too little of everything, but enough to give some of it."""
    return Market(
        supply=[50.0, 180.0, 30.0],
        max_demand=[1.0, 3.0, 0.5],
        max_value=10.0,
        agents=500,
        options=options,
        neighbours=neighbours,
        divisible=divisible,
        name="tight",
    )


def filled(
    codes: Callable[[int], int], *, divisible: bool, supply: float = 40.0, excess: float = 0.0
) -> People:
    """Agents whose joint demand for the first resource is `codes(its supply)`, all in codes."""
    market = plain(
        Market(
            supply=[supply, 6.0 * supply],
            max_demand=[1.0, 2.5],
            max_value=1.0,
            agents=int(5 * supply),
            divisible=divisible,
            excess_probability=excess,
            name="full",
        )
    )
    rng, left = np.random.default_rng(11), codes(market.supply_codes[0])
    (size, other), cap = market.unit_sizes, DEMAND_CODE_MAX
    records: list[Record] = []
    while left:
        code = min(left, int(rng.integers(cap // 3, cap + 1)))
        left -= code
        amounts = min(code * size, 1.0), min(int(rng.integers(0, cap // 3)) * other, 1.0)
        records.append(((float(rng.uniform(0.2, 1.0)), amounts),))
    records += [nothing(market)] * (market.agents - len(records))
    return People(market, tuple(range(market.agents)), tuple(records))


# --- the paths ----------------------------------------------------------------------------


class Paths:
    """All paths. `recorded` collects their runs, `found` the findings particular to each path."""

    def __init__(self, epsilon: float, delta: float, seed: int) -> None:
        self.epsilon, self.delta, self.seed = epsilon, delta, seed
        self.recorded: list[RecordedRuns] = []
        self.found: list[Finding] = []

    def run(self) -> None:
        """Take every path. One that raises is a failure."""
        for path in (
            *(self.direct, self.screening, self.engines, self.clamping, self.refusals),
            *(self.formats, self.requests, self.scaling, self.thinning, self.full, self.repair),
            *(self.excess, self.folders, self.interruption, self.policies, self.ledger),
            *(self.seeded, self.local),
        ):
            with known(Script):
                self.found += guarded(f"paths: {path.__name__}, to its end", path)

    def setting(self, policy: Any, **more: Any) -> Setting:
        return Setting(policy, self.epsilon, self.delta, **more)

    def fact(
        self, path: str, claimed: str, wrong: Iterable[str], seen: str = "it holds", **more: Any
    ) -> None:
        """Note a fact about a path."""
        self.found.append(fact(f"paths: {path}", claimed, wrong, seen, **more))

    def family(
        self, setting: Setting, people: People, count: int, where: str, **more: Any
    ) -> tuple[neighbours.Family, list[Finding]]:
        """Keep a run with its neighbours, and return what comparing them shows."""
        family = neighbours.family(setting, people, count, **more)
        self.recorded += runs_of(family, where)
        return family, [*neighbours.of_steps(family), *neighbours.of_sensitivity(family)]

    def direct(self) -> None:
        """Ask engines directly, at prices, factors and bounds that few runs reach."""
        wrong, asked = list[str](), 0
        totals, near = example_totals(agents=300, options=2), example_groups(agents=300)
        wide = example_groups(agents=300, wide=True, excess=0.02)
        markets = dense(900), dense(700, 3), sparse(900), sparse(700, 3), totals, near, wide
        for market in markets:
            people = crowd(market, self.seed, texts=market.options > 1)
            own, m = reference(people), len(market.resources)
            tape = record(self.setting(HALF), people)
            assert tape.board is not None and tape.board.seed is not None
            board, seed = tape.board, tape.board.seed
            rounds = CountedRounds(tuple(board.rounds), board.header.order)
            even = EVEN * PRICE_UNITS_PER_VALUE_CODE
            some = [
                *[(0,) * m, (PRICE_CODE_MAX,) * m, (even,) * m, (even + 1,) * m, (even - 1,) * m],
                *[tuple(even // (1 + (i + j) % 4) * (j % 2) for j in range(m)) for i in range(2)],
                tuple(PRICE_CODE_MAX if j == 1 else even // 3 for j in range(m)),
            ]
            factors = tuple(SHARE * (1 + j % 3) // 3 for j in range(m))
            queries = ("demand", "value", "gauge", "curvature")
            ranges = (0, 0), (-(10**3), 0), (-(10**8), 10**8), (-(2**40), 2**40), (-5, 10**9)
            units = 1, 2**16, 2**24 + 1, 2**32 - 1
            ours = [getattr(own, name)(prices) for prices in some for name in queries]
            ours += [own.luck(rounds, seed.seed, factors, *extent) for extent in ranges]
            ours += [own.chance(rounds, unit) for unit in units]
            ours.append(own.granted(rounds, seed.seed))
            for choice in (Memory(), Sharded(), Parted()):
                source = Source(people.market, agents=None, clamp=False, **people.arrays)
                engine = choice.open(source, 2, RunInfo("audit", None), lambda done: None)
                theirs = [getattr(engine, name)(prices) for prices in some for name in queries]
                theirs += [engine.luck(board, seed, factors, *extent) for extent in ranges]
                theirs += [engine.chance(board, unit) for unit in units]
                theirs.append(engine.granted(board, seed))
                asked += len(ours)
                wrong += [
                    f"the answer to question {at} in {market.name} "
                    f"({type(choice).__name__.lower()}) is {one}, but {two} by the reference"
                    for at, (one, two) in enumerate(zip(theirs, ours, strict=True))
                    if one != two
                ]
        claimed = "engines answer any question as the reference does"
        self.fact("direct", claimed, wrong, f"{asked} answers")

    def refusals(self) -> None:
        """The pipeline refuses records beyond the public bounds before it draws anything."""
        wrong, some = list[str](), 0
        for market in (
            example(agents=30),
            dense(30, bundle_size=2),
            example_sparse(agents=30, plenty=True),
            example_totals(agents=30),
            example_groups(agents=30),
            example_groups(agents=30, wide=True),
        ):
            people = People.invented(market, self.seed)
            setting = self.setting(Script())
            caps = with_rules(market, [r.max_demand for r in market.declared], -1)
            value, one = market.max_value, everything(market)[0]
            bad: list[tuple[str, People]] = [
                (f"a record beyond the bounds ({at})", people.replaced(7, (option,)))
                for at, option in enumerate(
                    [
                        *beyond(market, 0),
                        (value * 1.001, one[1]),
                        (value, tuple(a * 1.001 for a in one[1])),
                        (-1.0, one[1]),
                        (math.nan, one[1]),
                        (math.inf, one[1]),
                        (value, tuple(-a for a in one[1])),
                        (value, tuple(a and math.nan for a in one[1])),
                    ]
                )
            ]
            if market.bundle_size < len(market.declared):
                bad.append(("a bundle that is too large", people.replaced(7, ((value, caps),))))
            if market.totals:
                total = with_rules(market, caps_of(market), -1)
                bad.append(("more in total than allowed", people.replaced(7, ((value, total),))))
            many = people.agents[3] * (market.options + 1)
            bad.append(("too many options", people.replaced(7, many[: market.options + 1])))
            twice = (*people.ids[:-1], people.ids[0])
            bad.append(("an agent who appears twice", replace(people, ids=twice)))
            more = replace(
                people, ids=(*people.ids, 10**6), agents=(*people.agents, people.agents[0])
            )
            bad.append(("more agents than declared", more))
            accepted, tried = self._accepted(setting, bad)
            wrong, some = wrong + accepted, some + tried
        for wide in (False, True):
            people = People.invented(example_requests(agents=30, options=2, wide=wide), self.seed)
            accepted, tried = self._accepted(self.setting(Script()), _bad_requests(people))
            wrong, some = wrong + accepted, some + tried
        people = People.invented(example(agents=30, neighbours=Neighbours.ADD_REMOVE), self.seed)
        bare = {name: people.arrays[name] for name in ("values", "demands")}
        if not self._refused(self.setting(Script()), people, "memory", **bare):
            wrong.append("agents who may leave need no ids, so coins depend on who else is there")
        claimed = "records beyond the public bounds are refused, and nothing is drawn"
        self.fact("refusals", claimed, wrong, f"{some} data sets are refused")

    def _accepted(
        self, setting: Setting, bad: Iterable[tuple[str, People]]
    ) -> tuple[list[str], int]:
        """Which bad data sets are accepted by some engine, and how many were tried."""
        tried = [(*one, engine) for one in bad for engine in ("memory", "mapped")]
        wrong = [
            f"the engine {engine} accepts {what}"
            for what, people, engine in tried
            if not self._refused(setting, people, engine)
        ]
        return wrong, len(tried)

    def _refused(self, setting: Setting, people: People, engine: str, **more: Any) -> bool:
        try:
            record(setting, people, engine, **more)
        except JdpackError:
            return True
        return False

    def screening(self) -> None:
        """Skip agents whose choice is known: at full size, and forced on small data."""
        large = crowd(dense(FULL_SIZE), self.seed)
        tapes = [record(self.setting(replace(STILL, queries=("demand", "gauge"))), large)]
        where = [("screening, full size", tapes)]
        with swapped(*FORCED):
            some = [
                crowd(dense(3000), self.seed),
                crowd(dense(2500, 3, divisible=True), self.seed, texts=True),
                crowd(sparse(3000, neighbours="add-remove"), self.seed),
                crowd(sparse(2500, 3), self.seed),
            ]
            tapes = [record(self.setting(STILL), people, threads=2) for people in some]
            tapes.append(record(self.setting(STILL), some[2], Mapped(memory="10MB")))
            tapes.append(record(self.setting(STILL), some[1], Parted(), threads=2))
            where.append(("screening, small", tapes))
        for name, tapes in where:
            self.recorded.append(RecordedRuns(name, tapes))
            self.found.append(_ran(f"paths: {name}", [tape.screened for tape in tapes]))

    def engines(self) -> None:
        """Several parts, shards, workers, stores and threads agree with the reference."""
        if _has_ray():
            importlib.import_module("jdpack.engines.ray")  # draws random bytes when imported
        for market in (dense(1600, 2), sparse(1300, 3, divisible=True)):
            people = crowd(market, self.seed, texts=True)
            for policy in (Script(), replace(BATCHES, levels=(0.0, 0.1, 0.2, 0.0, 0.1))):
                setting, tapes = self.setting(policy), []
                choices: list[Any] = ["memory", Sharded(), Parted(), "mapped"]
                if _has_ray():
                    choices.append(InProcess())
                tapes = [record(setting, people, choice, 2) for choice in choices]
                what = "batches" if policy.batch else "all queries"
                self.recorded.append(RecordedRuns(f"engines, {market.name}, {what}", tapes))
        seen = "in this process, without Ray itself" if _has_ray() else "Ray is not installed"
        claimed = "workers count each agent once"
        self.fact("workers of a cluster", claimed, [], seen, tested=_has_ray())
        for wide in (False, True):
            people = crowd(example_groups(agents=400, wide=wide), self.seed, texts=True)
            tapes = [
                record(self.setting(Script()), people, one, 2) for one in (Sharded(), Parted())
            ]
            self.recorded.append(
                RecordedRuns(f"engines, groups, {'sparse' if wide else 'dense'}", tapes)
            )
        # A store of other records, or of the same ones under other bounds, must not be used.
        with tempfile.TemporaryDirectory() as folder:
            kept, people = Mapped(store=folder), crowd(dense(500), self.seed)
            loose = people.market.changed(max_demand=2.0)
            every = [
                people,
                people.replaced(250, nothing(people.market)),
                replace(people, market=loose),
                people,
            ]
            tapes = [record(self.setting(Script()), one, kept) for one in every]
        self.recorded.append(RecordedRuns("engines, store", tapes))

    def formats(self) -> None:
        """Records in every form that `solve` accepts, with ids of both kinds and without ids."""
        tapes = []
        near, wide = (example_groups(agents=90, wide=wide) for wide in (False, True))
        asked = [example_requests(agents=60, options=2, wide=wide) for wide in (False, True)]
        for market in (sparse(150, 3), dense(150, divisible=True), near, wide, *asked):
            people = crowd(market, self.seed, texts=market.options > 1)
            if market.requests > 1:
                people = People.invented(market, self.seed)
            long = replace(people, market=_long(people.market))
            setting, data = self.setting(Script()), people.arrays
            matrix = scipy("sparse").csr_matrix(data["demands"])
            ids = {name: own for name, own in data.items() if name != "demands"}
            with tempfile.TemporaryDirectory() as place:
                files = [Path(place) / name for name in ("wide.csv", "long.csv", "long.parquet")]
                pyarrow.csv.write_csv(people.table, files[0])
                pyarrow.csv.write_csv(_long_table(long), files[1])
                pyarrow.parquet.write_table(_long_table(long), files[2], row_group_size=64)
                tapes += [
                    record(setting, people, demands=matrix, **ids),
                    record(setting, people, agents=people.table),
                    record(setting, people, agents=files[0]),
                    record(setting, people, "mapped", agents=[files[0]]),
                    record(setting, long, agents=_long_table(long)),
                    record(setting, long, agents=files[1]),
                    record(setting, long, "mapped", agents=files[2]),
                ]
            if market.options == market.requests == 1:
                numbered = replace(people, ids=tuple(range(market.agents)))
                given = {"values": data["values"], "demands": data["demands"]}
                tapes.append(record(setting, numbered, **given))
        # Without ids an agent's number decides its coin, in every part.
        people = crowd(ample(divisible=False, agents=300), self.seed)
        people = replace(people, ids=tuple(range(300)))
        given = {name: people.arrays[name] for name in ("values", "demands")}
        choices: list[Any] = ["memory", Parted(), Sharded()]
        tapes += [record(self.setting(HALF), people, one, 2, **given) for one in choices]
        self.recorded.append(RecordedRuns("formats", tapes))

    def clamping(self) -> None:
        """An agent beyond the public bounds counts for no more than the bounds allow."""
        relation, found, met = Neighbours.ADD_REMOVE, list[Finding](), list[bool]()
        for name, market, engine in [
            ("dense", example(agents=120), "memory"),
            ("sparse", example_sparse(agents=60, plenty=True), "mapped"),
            ("divisible", example(agents=60, divisible=True, neighbours=relation), "memory"),
            ("totals", example_totals(agents=60, options=2, plenty=True), "memory"),
            ("groups", example_groups(agents=60, plenty=True), "memory"),
            ("sparse groups", example_groups(agents=60, plenty=True, wide=True), "mapped"),
            ("requests", example_requests(agents=40, plenty=True, options=2), "memory"),
            ("sparse requests", example_requests(agents=40, plenty=True, wide=True), "mapped"),
        ]:
            setting = self.setting(Script(), clamp=True)
            people = People.invented(market, self.seed)
            family, shown = self.family(setting, people, 5, f"clamping, {name}", engine=engine)
            found += shown
            met.append(any(tape.clamped for _, tape in family.replayed))
        self.found += [*_merged(found, "clamping"), _ran("paths: clamping", met)]

    def requests(self) -> None:
        """People with several requests: in batches, in engines, and across the ends of parts."""
        found, tapes = list[Finding](), list[Tape]()
        for wide, relation in ((False, Neighbours.REPLACE_ONE), (True, Neighbours.ADD_REMOVE)):
            market = example_requests(agents=60, plenty=True, wide=wide, neighbours=relation)
            people = People.invented(market, self.seed)
            for policy in (BATCHES, MwuOnline(batch=10), Newton()):
                where = f"requests, {policy.name}, {relation.value}"
                found += self.family(self.setting(policy), people, 4, where, seed=self.seed)[1]
            others: list[Any] = ["mapped", Sharded(), Parted()]
            tapes += [record(self.setting(Script()), people, one, 2) for one in others]
            few = People.invented(_scarce(market), self.seed)
            tapes.append(record(self.setting(HALF), few, draws=low))  # and a repair
            # Most ask for more than they may, and some of them where a part ends.
            many = example_requests(agents=500, plenty=True, wide=wide, options=2)
            greedy = tuple(beyond(many, i % 3) for i in range(many.agents))
            people = People(plain(many), tuple(range(many.agents)), greedy)
            with swapped((encoding, "_PART_BYTES", 1)):
                tapes.append(record(self.setting(HALF, clamp=True), people))
        self.recorded.append(RecordedRuns("requests", tapes))
        self.found += _merged(found, "requests")

    def scaling(self) -> None:
        """Markets with too little of everything: shares are scaled, or grants are thinned."""
        found, met = list[Finding](), list[bool]()
        policy = replace(HALF, shaped=False)
        kinds = itertools.product((False, True), (1, 3), Neighbours, (1,))
        for divisible, options, relation, requests in (
            *kinds,
            (False, 1, Neighbours.REPLACE_ONE, 3),
        ):
            market = tight(divisible=divisible, options=options, neighbours=relation)
            if requests > 1:
                market = market.changed(agents=250, person=requests)
            people = People.invented(market, self.seed)
            goods = f"{'' if divisible else 'in'}divisible"
            where = f"scaling, {goods}, {requests} x {options} options, {relation.value}"
            family, shown = self.family(self.setting(policy), people, 6, where, draws=lucky)
            found += [*shown, neighbours.of_others(family)]
            met.append(any(line.step.query == "luck" for line in family.recorded.lines))
        self.found += [*_merged(found, "scaling"), _ran("paths: scaling", met)]

    def thinning(self) -> None:
        """A market so large that the coins that thin grants, not the noise, decide how it fits."""
        tapes = []
        for excess in (0.0, 0.01):
            people = filled(lambda s: 2 * s, divisible=False, supply=1500.0, excess=excess)
            tapes.append(record(self.setting(GREEDY), people))
        self.recorded.append(RecordedRuns("thinning", tapes))
        thinned = [
            tape.board is not None
            and tape.board.certificate is not None
            and min(tape.board.certificate.factors) < SHARE
            for tape in tapes
        ]
        self.found.append(_ran("paths: thinning", thinned))

    def full(self) -> None:
        """A market that is nearly full, or full to the last code, needs no repair."""
        tapes = []
        for divisible in (False, True):
            for codes in (
                lambda s: int(0.955 * s),
                lambda s: int(0.975 * s),
                lambda s: int(0.9905 * s),
                lambda s: int(0.99995 * s),
                lambda s: s - 1,
                lambda s: s,
            ):
                people = filled(codes, divisible=divisible)
                tapes.append(record(self.setting(GREEDY), people, draws=low))
        self.recorded.append(RecordedRuns("full", tapes))
        self.found.append(
            replace(answers.of_allocation(tapes, repaired=False), check="paths: full, no repair")
        )

    def repair(self) -> None:
        """What does not fit is cut in the order of the coins, and no more than needed."""
        certain, crowds = list[Tape](), list[Tape]()
        for divisible in (False, True):
            for codes in (lambda s: s + 1, lambda s: s + 65535, lambda s: int(1.5 * s)):
                people = filled(codes, divisible=divisible)
                certain.append(record(self.setting(GREEDY), people, draws=low))
            for market in (
                dense(300, 3, divisible=divisible),
                sparse(300, divisible=divisible),
                example(agents=200, divisible=divisible),
            ):
                people = crowd(_scarce(market), self.seed, texts=True)
                for engine in ("memory", Sharded()):
                    crowds.append(record(self.setting(HALF), people, engine, draws=low))
        self.recorded.append(RecordedRuns("repair", [*certain, *crowds]))
        # In the crowds coins decide who wins, so a repair is all but certain there.
        cut = [tape.private is not None and tape.private.dropped > 0 for tape in crowds]
        self.found += [
            replace(answers.of_allocation(certain, repaired=True), check="paths: repair"),
            _ran("paths: repair of crowds", cut),
        ]

    def excess(self) -> None:
        """Where a supply may rarely be exceeded, nobody is dropped if it is."""
        found, certain = list[Finding](), list[Tape]()
        for divisible in (False, True):
            people = filled(lambda s: int(1.5 * s), divisible=divisible, excess=0.01)
            certain.append(record(self.setting(GREEDY), people, draws=low))
            market = example_groups(agents=70, divisible=divisible, excess=0.05)
            for policy in (replace(HALF, shaped=True), Newton()):
                people = People.invented(market, self.seed)
                where = f"excess, {'' if divisible else 'in'}divisible, {policy.name}"
                found += self.family(self.setting(policy), people, 4, where)[1]
        self.recorded.append(RecordedRuns("excess", certain))
        over = [
            tape.private is not None
            and tape.private.loads[0] > SHARE * tape.people.market.supply_codes[0]
            for tape in certain
        ]
        self.found += [*_merged(found, "excess"), _ran("paths: excess", over)]

    def policies(self) -> None:
        """Every policy, in a market where its prices come within reach, with neighbours."""
        jobs = [
            (self.setting(policy), ample(divisible=divisible))
            for policy in POLICIES
            for divisible in (False, True)
        ]
        jobs += [
            (self.setting(Newton()), example(agents=150, divisible=divisible, neighbours=relation))
            for divisible in (False, True)
            for relation in Neighbours
        ]
        laplace = MwuAdaptive(alpha=0.5, noise="truncated-laplace")
        large = Market(
            supply=[2000.0, 5000.0],
            max_demand=[1.0, 2.5],
            max_value=1.0,
            agents=1500,
            divisible=True,
        )
        jobs.append((Setting(laplace, 8.0, 1e-4), large))
        tapes, again = [], []
        steps: list[Finding] = []
        for setting, market in jobs:
            family = neighbours.family(setting, People.invented(market, self.seed), 3)
            tapes.append(family.recorded)
            again += [tape for _, tape in family.replayed]
            steps += [*neighbours.of_steps(family), *neighbours.of_sensitivity(family)]
        picks = People.invented(ample(divisible=True), self.seed)  # an alpha, from public numbers
        tapes.append(record(self.setting(MwuAdaptive()), picks))
        self.recorded.append(RecordedRuns("every policy", tapes))
        self.recorded.append(RecordedRuns("every policy, neighbours", again, replayed=True))
        self.found += _merged(steps, "every policy")

    def folders(self) -> None:
        """The public folders of a run and its neighbours, and the private folders beside them."""
        wrong, some = list[str](), 0
        for divisible in (False, True):
            setting = self.setting(Script(), clamp=divisible)
            people = crowd(plentiful(divisible=divisible), self.seed, texts=True)
            with tempfile.TemporaryDirectory() as place:
                first = record(setting, people, output=Path(place) / "0")
                wrong += _wrong_folder(Path(place) / "0", first)
                found: list[tuple[Record | None, Tape]] = []
                others = [nothing(people.market), everything(people.market)]
                others += [beyond(people.market, 1)] * divisible
                for at, other in enumerate(others, start=1):
                    neighbour = people.replaced(40, other)
                    tape = replay(first, setting, neighbour, output=Path(place) / str(at))
                    wrong += _wrong_folder(Path(place) / str(at), tape)
                    found.append((other, tape))
            family = neighbours.Family(40, first, found)
            what = f"folders, {'' if divisible else 'in'}divisible"
            some += len(found) + 1
            self.recorded += runs_of(family, what)
            self.found += located(neighbours.of_steps(family), what)
        claimed = (
            "only the owner can read private files, and the allocation is what each agent's own "
            "function gives"
        )
        self.fact("folders", claimed, wrong, f"checked in {some} folders")

    def interruption(self) -> None:
        """A run that is stopped and resumed draws no line twice and no second seed."""
        wrong, tapes = list[str](), list[Tape]()
        # Draw 16 and draw 17 are for the same release, which has two scales.
        stops = [(0, 0, False), (1, 1, False), (6, 6, True), (14, 14, False), (17, 16, False)]
        for draw, release, torn in [*stops, (18, 17, True)]:
            setting = self.setting(replace(Script(), shaped=False))
            people = crowd(plentiful(divisible=False), self.seed)
            with tempfile.TemporaryDirectory() as place:
                out = Path(place) / "run"
                wrong += self._interrupted(setting, people, out, draw, release, torn, tapes)
        self.recorded.append(RecordedRuns("interruption", tapes))
        claimed = "posted lines stay, and a resumed run continues from there on the same records"
        seen = f"checked in {len(tapes)} runs"
        self.fact("interruption", claimed, wrong, seen, tested=bool(tapes))

    def _interrupted(
        self,
        setting: Setting,
        people: People,
        out: Path,
        stop: int,
        release: int,
        torn: bool,
        tapes: list[Tape],
    ) -> Iterator[str]:
        """Stop a run before draw `stop`, which is for this release, and resume it.

        If `torn`, tear off the end of its last line before that.
        """
        tape = record(setting, people, draws=stopped_at(stop), output=out)
        board = out / "public" / "billboard.jsonl"
        posted = board.read_bytes()
        if len(tape.calls) != stop or posted.count(b"\n") != release + 1:
            yield f"the billboard has {len(posted.splitlines())} lines after {stop} draws"
        if stop == 17:
            tape.calls.pop()  # for a release that was never posted
        if torn:
            board.write_bytes(posted[:-20])
        other = Tape(people, setting)
        with watching(other), contextlib.suppress(JdpackError):
            resume(out, threads=1, **people.replaced(3, everything(people.market)).arrays)
            yield "a run resumes on other records"
        if other.calls:
            yield "a run draws noise for other records"
        with watching(tape):
            keep(tape, resume(out, threads=1, **people.arrays))
        tape.error = ""
        tape.files = public_files(out)
        tapes.append(tape)
        if not board.read_bytes().startswith(posted):
            yield f"lines posted before release {release} have changed"
        before = len(tape.calls), len(tape.random_bytes)
        with watching(tape):
            resume(out, threads=1, **people.arrays)
        if before != (len(tape.calls), len(tape.random_bytes)):
            yield "a complete run draws again when it is resumed"

    def ledger(self) -> None:
        """The ledger reserves the run's whole budget, and refuses the next run before it starts."""
        wrong, people = list[str](), People.invented(example(agents=40), self.seed)
        setting = self.setting(DualGd(rounds=4))
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "ledger"
            Ledger.create(path, "people", epsilon=self.epsilon, delta=self.delta)
            tape = record(setting, people, ledger=path, dataset="people")
            entry = Ledger(path).runs.get(tape.board.header.commitment) if tape.board else None
            if entry is None or entry.budget != tape.budget:
                wrong.append(f"the ledger has {entry} for a run of {tape.budget}")
            wrong += self._refunded(setting, people, Path(place) / "another")
            other = Tape(people, setting)
            with watching(other):
                try:
                    again = record(setting, people, ledger=path, dataset="people")
                except JdpackError:
                    again = None
            if again is not None or "noise" in other.events:
                wrong.append("a second run spends a budget that the first has already spent")
        claimed = "a ledger is charged with a run's budget, and refuses what exceeds its own"
        self.fact("ledger", claimed, wrong)

    def _refunded(self, setting: Setting, people: People, path: Path) -> Iterator[str]:
        """What a ledger gives back of a run that was stopped after its first line."""
        Ledger.create(path, "people", epsilon=self.epsilon, delta=self.delta)
        record(setting, people, draws=stopped_at(2), ledger=path, dataset="people")
        if [run.state for run in Ledger(path).runs.values()] != ["open"]:
            yield "a run that has posted gets its budget back"

    def seeded(self) -> None:
        """A run with seeded noise, or without noise, says that it protects nobody."""
        wrong, people = list[str](), People.invented(example(agents=40), self.seed)
        policy = DualGd(rounds=4)
        kinds: list[tuple[Setting, dict[str, Any]]] = [
            (self.setting(policy), {"seed": 1}),
            (Setting(policy, math.inf, self.delta), {}),
        ]
        for setting, more in kinds:
            with tempfile.TemporaryDirectory() as place:
                out, ledger = Path(place) / "out", Path(place) / "ledger"
                tape = record(setting, people, output=out, **more)
                if tape.board is None or tape.board.header.private:
                    wrong.append("a run that protects nobody calls itself private")
                if b"differential privacy; neighbouring" in tape.files.get("index.html", b""):
                    wrong.append("the page of a run that protects nobody promises privacy")
                Ledger.create(ledger, "people", epsilon=self.epsilon, delta=self.delta)
                with contextlib.suppress(JdpackError):
                    record(setting, people, ledger=ledger, dataset="people", **more)
                    wrong.append("a ledger pays for a run that protects nobody")
        self.fact("seeded", "a run that protects nobody says so, everywhere", wrong)

    def local(self) -> None:
        """Agents who add the noise themselves reveal nothing else."""
        wrong, asked = list[str](), 0
        people = People.invented(example(agents=12), self.seed)
        own, setting = reference(people), self.setting(MwuOnline(batch=4, local=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # with so few agents the noise drowns everything
            run = LocalRun(people.market, epsilon=self.epsilon, delta=self.delta, batch=4)
        header = run.board.header
        agents = [
            LocalAgent(header, value=[v for v, _ in r], demand=[list(a) for _, a in r], agent=id)
            if people.market.options > 1
            else LocalAgent(header, value=r[0][0], demand=list(r[0][1]), agent=id)
            for id, r in zip(people.ids, people.agents, strict=True)
        ]
        while (step := run.step) is not None:
            given = []
            assert step.batch is not None
            turns = own.turns(header.order, step.batch.count)
            for i, agent in enumerate(agents):
                if turns[i] != step.batch.index:
                    continue
                tape = Tape(people, setting)
                with watching(tape):
                    answer = agent.answer(step)
                exact = own.taken(step.prices)[i] * own.demands[i]
                noise = [a - int(e) for a, e in zip(answer, exact, strict=True)]
                (scale,) = deviation(step.noise)
                asked += 1
                if [call.drawn for call in tape.calls] != [noise]:
                    wrong.append(f"agent {i} does not answer with its demand plus noise")
                elif abs(tape.calls[0].scale / scale - 1.0) > 1e-9:
                    wrong.append(f"agent {i} does not draw at the posted scale")
                if budget_checks.cost(people.market, step)[0] > Fraction(header.budget.rho):
                    wrong.append(f"agent {i} answers beyond its budget")
                wrong += _answers_more(agent, step, answer, tape, i)
                given.append(answer)
            run.post(given)
        claimed = "an agent's own answer is its demand plus one draw, within its budget"
        seen = f"checked for {asked} agents"
        self.fact("local", claimed, wrong, seen, tested=asked == len(agents))


def _answers_more(
    agent: LocalAgent, step: Step, answer: tuple[int, ...], tape: Tape, number: int
) -> Iterator[str]:
    """What an agent reveals when asked again, or asked for less noise than its budget covers."""
    (scale,) = deviation(step.noise)
    for asked in (step, replace(step, noise=Gaussian((scale / 10.0,)))):
        before = len(tape.calls)
        with watching(tape), contextlib.suppress(JdpackError):
            if agent.answer(asked) != answer:
                yield f"agent {number} answers twice"
        if len(tape.calls) != before:
            yield f"agent {number} draws noise for an answer beyond its budget"


def markets() -> list[Market]:
    """Markets of every kind, to compare formulas on."""
    kinds = itertools.product((1, 3), Neighbours, (False, True))
    return [
        market
        for options, relation, divisible in kinds
        for market in (
            dense(50, options, neighbours=relation, divisible=divisible),
            sparse(50, options, neighbours=relation, divisible=divisible),
            example_totals(options=options, neighbours=relation, divisible=divisible),
            example_groups(options=options, neighbours=relation, divisible=divisible),
            example_groups(options=options, neighbours=relation, divisible=divisible, wide=True),
            example_requests(options=options, neighbours=relation, divisible=divisible),
            example_requests(options=options, neighbours=relation, divisible=divisible, wide=True),
        )
    ]


def _long(market: Market) -> Market:
    """The same market for long tables, with one row per amount."""
    data = market.to_dict()
    data["agents"]["layout"] = "long"
    return Market.from_dict(data)


def _long_table(people: People) -> pa.Table:
    names = [r.column for r in people.market.declared]
    rows = []
    for place, (id, record_) in enumerate(zip(people.ids, people.agents, strict=True)):
        group, requests = group_of(people.market, record_), people.names_of(place)
        for option, (value, amounts) in enumerate(record_):
            pairs: list[tuple[Any, Any]] = [
                (name, a) for name, a in zip(names, amounts, strict=False) if a
            ]
            own = id, requests[option], f"o{option}", group, value
            rows += [(*own, *pair) for pair in pairs or [(None, None)]]
    named = ("id", "request", "option", "group", "value", "resource", "amount")
    columns = dict(zip(named, zip(*rows, strict=True), strict=True))
    if not people.market.groups:
        del columns["group"]
    if people.market.options == 1:
        del columns["option"]
    if people.market.requests == 1:
        del columns["request"]
    return pa.table({name: list(column) for name, column in columns.items()})


def _bad_requests(people: People) -> Iterator[tuple[str, People]]:
    """Data sets in which one person asks for more than a person may, or twice by one name."""
    market = people.market
    one = people.agents[7][: market.options]
    small = tuple((value / 100.0, tuple(a / 100.0 for a in own)) for value, own in one)
    large = ((market.max_value, with_rules(market, caps_of(market), -1)),) * market.options
    yield "too many requests", people.replaced(7, small * (market.requests + 1))
    yield "more in total than a person may ask for", people.replaced(7, large * market.requests)
    names = [people.names_of(i) for i in range(len(people.ids))]
    names[7] = ("a",) * market.options + ("b",) * market.options + ("a",) * market.options
    twice = replace(people.replaced(7, small * 3), requests=tuple(names))
    yield "two requests of one name", twice


def _scarce(market: Market) -> Market:
    """The same market with a supply just above what one option may ask for."""
    data = market.to_dict()
    for resource in data["resource"]:
        resource["supply"] = 1.3 * resource["max_demand"]
    return Market.from_dict(data)


def _has_ray() -> bool:
    return importlib.util.find_spec("ray") is not None


def _ran(check: str, each: Sequence[bool]) -> Finding:
    """Whether most runs that were meant to take the path did."""
    seen = f"in {sum(each)} of {len(each)} runs"
    return fact(check, "the path is taken", [], seen, tested=2 * sum(each) > len(each))


def _merged(found: Sequence[Finding], where: str) -> list[Finding]:
    """Merge findings of the same name into one."""
    names = dict.fromkeys(one.check for one in found)
    merged = []
    for name in names:
        some = [one for one in found if one.check == name]
        wrong = [one.seen for one in some if not one.passed]
        tested = sum(one.tested for one in some)
        seen = f"it holds in {len(some)} settings, {tested} of which could have failed"
        if name.startswith("sensitivity") and not tested and not wrong:
            continue  # nobody moves this query here; other runs do
        merged.append(fact(f"{name} ({where})", some[0].claimed, wrong, seen, tested=tested > 0))
    return merged


def _wrong_folder(out: Path, tape: Tape) -> Iterator[str]:
    """Add the reports to a run's folder, then say what is wrong with its private side."""
    report_run(out, optimum=False, threads=1, **tape.people.arrays)
    tape.files = public_files(out)
    private = out / "private"
    if stat.S_IMODE(private.stat().st_mode) != 0o700:
        yield "others can open the private folder"
    for file in private.iterdir():
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            yield f"others can open {file.name}"
    if sorted(path.name for path in out.iterdir()) != ["private", "public"]:
        yield "the output folder holds more than a public and a private folder"
    table = pyarrow.parquet.read_table(private / "allocation.parquet")
    rows = answers.given(tape).shares.tolist()
    if tape.people.market.divisible:
        right = table["share"].to_pylist() == [share / SHARE for share in rows]
    else:
        right = table["granted"].to_pylist() == [share > 0 for share in rows]
    if not right or table["id"].to_pylist() != tape.people.arrays["ids"]:
        yield "the allocation's file is not what each agent's own function gives"
