"""The loop: the only module that joins the private and the public side.

policy -> engine -> release -> billboard -> policy, until the policy stops; then the certificate,
the seed, and everybody's allocation.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jdpack import closing, tables
from jdpack.accounting import Budget, Cost, Filter
from jdpack.agents import Agents
from jdpack.billboard import SHARE, Billboard, Certificate, Header, Seed
from jdpack.certificate import certify
from jdpack.encoding import encode
from jdpack.engines import Allocation, Engine
from jdpack.engines.memory import MemoryEngine
from jdpack.errors import AgentsError, MarketError, SupplyWarning
from jdpack.headroom import shortfall
from jdpack.margin import Outlook
from jdpack.market import Market, Neighbours
from jdpack.output import Output
from jdpack.plan import prepare
from jdpack.policies import Policy
from jdpack.release import Randomness, SeededRandomness, SystemRandomness, release
from jdpack.report import Curator
from jdpack.threads import Threads


@dataclass(frozen=True)
class Progress:
    """How far a run is. Public numbers only."""

    rounds: int
    done: float
    """The share of the budget that is spent; of the rounds, where there is none or with batches."""


@dataclass(frozen=True)
class Result:
    """What a run leaves. `billboard` and `certificate` are public, all else is private."""

    billboard: Billboard
    spent: Cost
    agents: Agents = field(repr=False)
    """Private: the encoded records."""
    private: Allocation = field(repr=False)
    """Private: exact shares, and loads in codes."""
    warning: SupplyWarning | None = None
    """Set if supply is too small for the budget; from public numbers."""

    @property
    def certificate(self) -> Certificate:
        assert self.billboard.certificate is not None
        return self.billboard.certificate

    @property
    def allocation(self) -> NDArray[Any]:
        """Private: what each row of the input gets, a fraction or, if indivisible, 0 or 1."""
        if self.billboard.header.market.divisible:
            return self.private.shares / SHARE
        return (self.private.shares > 0).astype(np.uint8)

    @property
    def loads(self) -> tuple[float, ...]:
        """Private: the load on each resource as a share of its supply, rounded up by the grid."""
        supply = self.billboard.header.market.supply_code * SHARE
        return tuple(load / supply for load in self.private.loads)

    @property
    def curator(self) -> Curator:
        """Private: exact numbers for the curator's report."""
        return Curator(
            agents=self.agents.count,
            winners=self.agents.winners(self.private.shares),
            welfare=self.welfare,
            loads=self.loads,
            clamped=self.agents.clamped,
            dropped=self.private.dropped,
        )

    @property
    def welfare(self) -> float:
        """Private: the total value of what is given, to the precision of value codes."""
        step, row, total = self.billboard.header.market.value_step, 0, 0.0
        for part in self.agents.parts:
            for values, n in zip(part.values, part.fill.tolist(), strict=True):
                given = self.private.shares[row : row + n]
                total += float(values[:n].astype(np.float64) @ given.astype(np.float64))
                row += n
        return total * step / SHARE


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
    output: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Allocate a market's resources with joint differential privacy.

    Args:
        market: the public market, or the path of a market file.
        agents: a table (Arrow, pandas, polars) or a path, folder or pattern of Parquet or CSV.
        values, demands, ids: or else a vector, a matrix (NumPy or SciPy sparse), and ids if any.
        epsilon, delta: the privacy budget; the market's own if not given. With epsilon = inf there
            is no noise and **no privacy**: a fast approximate solver, and a reference.
        policy: the algorithm; `Newton()` if not given. `Newton.warm` starts from an earlier run.
        clamp: bring numbers beyond the public bounds back to them instead of refusing the run.
        seed: draw reproducible noise, for experiments. The result is **not private** and says so.
        threads: how many cores to use.
        output: a folder to create, with everything for the public and everything private apart.
        progress: called after every round.

    Formal guarantees. The billboard is (epsilon, delta)-differentially private and the allocation
    (epsilon, delta)-jointly differentially private for the market's neighbour relation, unless
    `seed` is given or epsilon is inf (`Budget` has the arithmetic, `release` the argument). Bad
    input raises, and a supply that is too small for the budget gives a SupplyWarning (`plan`),
    before anything is spent or written.
    """
    market, policy, budget = prepare(market, policy, epsilon, delta)
    check_arguments(agents, values, demands, ids, clamp, threads)
    coin_seed = Seed.draw() if seed is None else _seeded_coins(seed)
    _check_curated(policy)
    warning = shortfall(market, budget, policy)
    if warning is not None:
        warnings.warn(warning, stacklevel=2)
    private = seed is None and budget.epsilon != math.inf
    header = Header(market, policy.to_dict(), budget, coin_seed.commitment, private)
    randomness: Randomness = SystemRandomness() if seed is None else SeededRandomness(seed)
    folder = Output.claim(output) if output is not None else None
    pieces = records(market, agents, values, demands, ids)
    encoded = encode(market, pieces, clamp=clamp, threads=Threads(threads))
    _check_order(policy.outlook(market, budget), encoded)
    board = Billboard(header, folder.create() if folder is not None else None)
    try:
        engine = MemoryEngine(encoded, threads)
        spent = run(engine, policy, board, randomness, coin_seed, progress)
        result = Result(board, spent, encoded, engine.allocate(board), warning)
        if folder is not None:
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
    _check_order(policy.outlook(agents.market, budget), agents)
    coin_seed = _seeded_coins(seed)
    header = Header(agents.market, policy.to_dict(), budget, coin_seed.commitment, private=False)
    board, engine = Billboard(header), MemoryEngine(agents, threads)
    spent = run(engine, policy, board, SeededRandomness(seed), coin_seed, progress)
    return Result(board, spent, agents, engine.allocate(board))


def run(
    engine: Engine,
    policy: Policy[Any],
    board: Billboard,
    randomness: Randomness,
    coin_seed: Seed,
    progress: Callable[[Progress], None] | None = None,
) -> Cost:
    """Play rounds until the policy stops, then post the certificate and the seed."""
    market, budget = board.header.market, board.header.budget
    assert not board.releases, "a run starts with an empty billboard"
    filter, exact = Filter(budget), budget.rho == math.inf
    outlook = policy.outlook(market, budget)
    by_rounds = exact or outlook.batches is not None  # the first batch spends what all do
    state, rounds = policy.start(market, budget), 0
    while (step := policy.step(state)) is not None:
        answered = release(step, engine, filter, randomness, board, coin_seed)
        board.post(answered)
        state = policy.observe(state, answered)
        if step.query == "demand" and progress is not None:
            rounds += 1
            whole = rounds, outlook.rounds_at_most
            part, of = whole if by_rounds else (filter.spent.rho, budget.rho)
            progress(Progress(rounds, float(part / of)))
    while (step := closing.step(board)) is not None:
        board.post(release(step, engine, filter, randomness, board, coin_seed))
    board.post(certify(board))
    board.post(coin_seed)
    return filter.spent


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


def records(
    market: Market, agents: Any, values: Any, demands: Any, ids: Any
) -> Sequence[tables.Piece]:
    """The records, from either way to give them."""
    if agents is not None:
        return tables.pieces(market, agents)
    return tables.array_pieces(market, values, demands, ids)


def _check_curated(policy: Policy[Any]) -> None:
    if policy.to_dict().get("local") is True:
        raise MarketError(
            "with local the agents add the noise themselves, and no curator has their records",
            "use jdpack.LocalRun and jdpack.LocalAgent, or mwu-online without local",
        )


def _check_order(outlook: Outlook, agents: Agents) -> None:
    """Refuse batches of numbered agents who may come and go: all others' turns would move."""
    leaves = agents.market.neighbours is Neighbours.ADD_REMOVE
    if outlook.batches is not None and leaves and agents.ids is None:
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
