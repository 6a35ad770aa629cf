"""The loop: the only module that joins the private and the public side.

policy -> engine -> release -> billboard -> policy, until the policy stops; then the certificate,
the seed, and everybody's allocation.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import warnings
from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jdpack import closing, policies
from jdpack.accounting import Budget, Cost, Filter
from jdpack.agents import Agents
from jdpack.billboard import SHARE, Billboard, Certificate, Header, Seed
from jdpack.certificate import certify
from jdpack.engines import Allocation, Engine
from jdpack.engines.choice import Choice, Place, Ray, Source, choice_of, from_dict, to_dict
from jdpack.engines.memory import MemoryEngine
from jdpack.errors import (
    AgentsError,
    BillboardError,
    MarketError,
    OutputError,
    SupplyWarning,
)
from jdpack.headroom import shortfall
from jdpack.margin import Outlook
from jdpack.market import Market, Neighbours
from jdpack.output import Output
from jdpack.plan import prepare
from jdpack.policies import Policy
from jdpack.release import (
    Randomness,
    SeededRandomness,
    SystemRandomness,
    charge,
    release,
)
from jdpack.report import Curator
from jdpack.runfile import RunFile, locked


@dataclass(frozen=True)
class Progress:
    """How far a run is. Public numbers only."""

    rounds: int
    done: float
    """The share of the records that is read; then of the budget that is spent, or of the rounds,
    where there is no budget or with batches."""
    stage: str = "rounds"
    """Or "reading", or "allocation"."""


@dataclass(frozen=True)
class Result:
    """What a run leaves. `billboard` and `certificate` are public, all else is private."""

    billboard: Billboard
    spent: Cost
    engine: Engine = field(repr=False)
    """Private: where the encoded records are."""
    private: Allocation = field(repr=False)
    """Private: what is given, in sums of codes."""
    warning: SupplyWarning | None = None
    """Set if supply is too small for the budget; from public numbers."""

    @property
    def certificate(self) -> Certificate:
        assert self.billboard.certificate is not None
        return self.billboard.certificate

    @cached_property
    def shares(self) -> NDArray[np.uint32]:
        """Private: the exact share of each row of the input, in units of 1/SHARE."""
        return self.engine.shares(self.billboard, self.private)

    @property
    def allocation(self) -> NDArray[Any]:
        """Private: what each row of the input gets, a fraction or, if indivisible, 0 or 1."""
        if self.billboard.header.market.divisible:
            return self.shares / SHARE
        return (self.shares > 0).astype(np.uint8)

    @property
    def loads(self) -> tuple[float, ...]:
        """Private: the load on each resource as a share of its supply, rounded up by the grid."""
        supply = self.billboard.header.market.supply_code * SHARE
        return tuple(load / supply for load in self.private.loads)

    @property
    def welfare(self) -> float:
        """Private: the total value of what is given, to the precision of value codes."""
        return self.private.value * self.billboard.header.market.value_step

    @property
    def curator(self) -> Curator:
        """Private: exact numbers for the curator's report."""
        return Curator(
            agents=self.engine.count,
            winners=self.private.winners,
            welfare=self.welfare,
            loads=self.loads,
            clamped=self.engine.clamped,
            dropped=self.private.dropped,
        )


def solve(
    market: Market | str | Path,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    epsilon: float | None = None,
    delta: float | None = None,
    policy: Policy[Any] | None = None,
    clamp: bool = False,
    seed: int | None = None,
    threads: int | None = None,
    engine: str | Choice | None = None,
    output: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Allocate a market's resources with joint differential privacy.

    Args:
        market: the public market, or the path of a market file.
        agents: a table (Arrow, pandas, polars), or Parquet or CSV: a path, folder or pattern, a
            URI such as "s3://...", or a list of them.
        values, demands, ids: or else a vector, a matrix (NumPy or SciPy sparse), and ids if any.
        epsilon, delta: the privacy budget; the market's own if not given. With epsilon = inf there
            is no noise and **no privacy**: a fast approximate solver, and a reference.
        policy: the algorithm; `Newton()` if not given. `Newton.warm` starts from an earlier run.
        clamp: bring numbers beyond the public bounds back to them instead of refusing the run.
        seed: draw reproducible noise, for experiments. The result is **not private** and says so.
        threads: how many cores to use.
        engine: where the codes of the agents are: "memory", "mapped" (on disk), "ray" or the
            address of a cluster, or `Memory`, `Mapped`, `Ray` with their settings. All give the
            same billboard. If not given, memory where they fit, else mapped.
        output: a folder to create, with everything for the public and everything private apart.
            A run that was interrupted can go on from it (`resume`).
        progress: called while records are read, and after every round.

    Formal guarantees. The billboard is (epsilon, delta)-differentially private and the allocation
    (epsilon, delta)-jointly differentially private for the market's neighbour relation, unless
    `seed` is given or epsilon is inf (`Budget` has the arithmetic, `release` the argument). Bad
    input raises, and a supply that is too small for the budget gives a SupplyWarning (`plan`),
    before anything is spent or written.
    """
    market, policy, budget = prepare(market, policy, epsilon, delta)
    check_arguments(agents, values, demands, ids, clamp, threads)
    choice = choice_of(engine, market, agents)
    coin_seed = Seed.draw() if seed is None else _seeded_coins(seed)
    _check_curated(policy)
    warning = shortfall(market, budget, policy)
    if warning is not None:
        warnings.warn(warning, stacklevel=2)
    private = seed is None and budget.epsilon != math.inf
    header = Header(market, policy.to_dict(), budget, coin_seed.commitment, private)
    folder = Output.claim(output) if output is not None else None
    source = Source(market, agents, values, demands, ids, clamp)
    run = header.commitment
    with contextlib.closing(_open(choice, source, threads, run, folder, progress)) as opened:
        _check_order(policy.outlook(market, budget), opened)
        if folder is None:
            result = _play(opened, policy, Billboard(header), coin_seed, seed, warning, progress)
            if isinstance(choice, Ray):
                result.shares  # noqa: B018 (from now on it has them: the workers end)
            return result
        folder.create(
            RunFile(
                agents=source.paths,
                clamp=clamp,
                engine=to_dict(choice),
                seed=seed,
                coins=coin_seed.seed.hex(),
                digest=opened.digest(),
                header=Billboard(header).hash_of_header,
            )
        )
        with locked(folder.run_file, wait=True):
            try:
                board = Billboard(header, folder.billboard)
            except OutputError as error:
                folder.remove()
                hint = "nothing is spent: make room, and run again"
                raise OutputError(error.message, hint) from None
            result = _play(opened, policy, board, coin_seed, seed, warning, progress)
            folder.write(result)
            return result


def resume(
    output: str | Path,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    threads: int | None = None,
    engine: str | Choice | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Go on with a run that was interrupted, from what is on its billboard.

    Args:
        output: the folder of the run, as given to `solve`.
        agents, values, demands, ids: the same records again; needed only if they were given in
            memory, or if their files have moved.
        threads, progress: as for `solve`.
        engine: as for `solve`, in place of the one that the run began with.

    Formal guarantees. What is posted is not asked for again and no noise is drawn for it a second
    time; the filter is charged for it first, so the whole run spends no more than its budget, and
    the guarantee is that of `solve`. Records that have changed are refused. Of a run that is
    complete, what is missing in its folder is written, and nothing is spent.
    """
    folder = Output.reopen(output)
    with locked(folder.run_file):
        run_file = RunFile.read(folder.run_file)
        board = Billboard.reopen(folder.billboard)
        try:
            header, coin_seed = board.header, run_file.coin_seed
            own = coin_seed.commitment == header.commitment
            if not own or run_file.header != board.hash_of_header:
                raise BillboardError(
                    "the billboard's header is not the one that the run began with",
                    "the billboard is that of another run: put back its own",
                )
            policy = policies.from_dict(header.policy)
            if agents is None and values is None and demands is None:
                agents = run_file.agents
                if agents is None:
                    raise AgentsError(
                        "the records of this run were given in memory",
                        "give them again: jdpack.resume(folder, values=..., demands=...)",
                    )
            check_arguments(agents, values, demands, ids, run_file.clamp, threads)
            source = Source(header.market, agents, values, demands, ids, run_file.clamp)
            choice = from_dict(run_file.engine)
            if engine is not None:
                choice = choice_of(engine, header.market, agents)
            warning = shortfall(header.market, header.budget, policy)
            rest = header.commitment, folder, progress
            with contextlib.closing(_open(choice, source, threads, *rest)) as opened:
                if opened.digest() != run_file.digest:
                    raise AgentsError(
                        "the records have changed since the run began",
                        "a run ends with the records it began with; with others, begin another",
                    )
                result = _play(opened, policy, board, coin_seed, run_file.seed, warning, progress)
                folder.write(result)
                return result
        finally:
            board.close()


def experiment(
    agents: Agents,
    policy: Policy[Any],
    budget: Budget,
    seed: int,
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """A seeded run, which is **not private**, on records that are encoded already."""
    _check_curated(policy)
    coin_seed = _seeded_coins(seed)
    header = Header(agents.market, policy.to_dict(), budget, coin_seed.commitment, private=False)
    engine = MemoryEngine(agents, threads)
    _check_order(policy.outlook(agents.market, budget), engine)
    return _play(engine, policy, Billboard(header), coin_seed, seed, None, progress)


def _open(
    choice: Choice,
    source: Source,
    threads: int | None,
    run: str,
    folder: Output | None,
    progress: Callable[[Progress], None] | None,
) -> Engine:
    """Read and encode the records."""

    def tell(done: float) -> None:
        if progress is not None:
            progress(Progress(0, done, "reading"))

    where = None if folder is None else folder.folder.absolute().parent
    return choice.open(source, threads, Place(run[:8], where), tell)


def _play(
    engine: Engine,
    policy: Policy[Any],
    board: Billboard,
    coin_seed: Seed,
    seed: int | None,
    warning: SupplyWarning | None,
    progress: Callable[[Progress], None] | None,
) -> Result:
    """All rounds that are left, and the allocation."""
    randomness: Randomness = SystemRandomness() if seed is None else SeededRandomness(seed)
    try:
        spent = run(engine, policy, board, randomness, coin_seed, progress)
    finally:
        board.close()
    if progress is not None:
        progress(Progress(sum(1 for _ in board.rounds), 1.0, "allocation"))
    return Result(board, spent, engine, engine.allocate(board), warning)


def run(
    engine: Engine,
    policy: Policy[Any],
    board: Billboard,
    randomness: Randomness,
    coin_seed: Seed,
    progress: Callable[[Progress], None] | None = None,
) -> Cost:
    """Play rounds until the policy stops, then post the certificate and the seed.

    What an interrupted run has posted already is charged and followed, not asked again.
    """
    market, budget = board.header.market, board.header.budget
    filter, exact = Filter(budget), budget.rho == math.inf
    outlook = policy.outlook(market, budget)
    by_rounds = exact or outlook.batches is not None  # the first batch spends what all do
    posted = deque(board.releases)
    state, rounds = policy.start(market, budget), 0
    while (step := policy.step(state)) is not None:
        if posted:
            answered = posted.popleft()
            _check_posted(answered.step == step)
            charge(step, filter, board)
        else:
            answered = release(step, engine, filter, randomness, board, coin_seed)
            board.post(answered)
        state = policy.observe(state, answered)
        if step.query == "demand" and progress is not None:
            rounds += 1
            whole = rounds, outlook.rounds_at_most
            part, of = whole if by_rounds else (filter.spent.rho, budget.rho)
            progress(Progress(rounds, float(part / of)))
    for at, answered in enumerate(posted, len(board.releases) - len(posted)):
        before = copy(board)
        before.releases = board.releases[:at]
        _check_posted(answered.step == closing.step(before))
        charge(answered.step, filter, before)
    if board.certificate is not None:
        _check_posted(closing.step(board) is None and board.certificate == certify(board))
    while board.certificate is None and (step := closing.step(board)) is not None:
        board.post(release(step, engine, filter, randomness, board, coin_seed))
    if board.certificate is None:
        board.post(certify(board))
    if board.seed is None:
        board.post(coin_seed)
    return filter.spent


def _check_posted(right: bool) -> None:
    """Refuse to go on from lines that are not what this run would have posted."""
    if not right:
        raise BillboardError(
            "the billboard is not one that its policy would have posted",
            "it was changed, or written by another version of jdpack: begin another run",
        )


def check_arguments(
    agents: Any, values: Any, demands: Any, ids: Any, clamp: object, threads: object
) -> None:
    """Refuse what is no way to give records, before any is read."""
    if not isinstance(clamp, bool):
        raise MarketError(f"clamp must be true or false, not {clamp!r}")
    if threads is not None:
        check_whole("threads", threads, least=1)
    if (agents is None) == (values is None and demands is None):
        raise AgentsError("give either agents, or values and demands")
    if agents is None and (values is None or demands is None):
        raise AgentsError("values and demands go together")
    if agents is not None and ids is not None:
        raise AgentsError("ids go with values and demands", "a table has its own id column")


def _check_curated(policy: Policy[Any]) -> None:
    if policy.to_dict().get("local") is True:
        raise MarketError(
            "with local the agents add the noise themselves, and no curator has their records",
            "use jdpack.LocalRun and jdpack.LocalAgent, or mwu-online without local",
        )


def _check_order(outlook: Outlook, engine: Engine) -> None:
    """Refuse batches of numbered agents who may come and go: all others' turns would move."""
    leaves = engine.market.neighbours is Neighbours.ADD_REMOVE
    if outlook.batches is not None and leaves and engine.numbered:
        raise AgentsError(
            "batches with neighbours add-remove need ids",
            "numbered agents would change their turns when somebody leaves, and show it",
        )


def _seeded_coins(seed: int) -> Seed:
    check_whole("seed", seed, least=0)
    return Seed(hashlib.sha256(f"jdpack experiment {seed}".encode()).digest()[:16])


def check_whole(what: str, number: object, least: int) -> None:
    """Refuse what is not a whole number from `least` on."""
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise MarketError(f"{what} must be a whole number from {least} on, not {number!r}")
