"""Private: start a run or resume one. `lifecycle` carries it out, `loop` plays its rounds."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Header, Seed
from jdpack.common.checks import check_whole
from jdpack.common.coins import CoinHash
from jdpack.door import SeededRandomness
from jdpack.engines.memory import MemoryEngine
from jdpack.engines.settings import Choice, choice_of, from_dict, to_dict
from jdpack.errors import OutputError
from jdpack.ledger.account import Account
from jdpack.market.market import Market
from jdpack.planning.headroom import check_hope, shortfall
from jdpack.planning.prepare import prepare
from jdpack.policies import registry
from jdpack.policies.base import Policy
from jdpack.privacy.accounting import Budget, weakness
from jdpack.records.codes import Agents
from jdpack.records.schema import allocation_names
from jdpack.run.arguments import (
    check_coin_hash,
    check_curated,
    check_market,
    check_order,
    check_threads,
    coin_hash_of,
    source_again,
    source_of,
)
from jdpack.run.folder import Output
from jdpack.run.lifecycle import Lifecycle, reopened
from jdpack.run.loop import run
from jdpack.run.result import Progress, Result
from jdpack.run.run_file import RunFile
from jdpack.run.write_back import Target


def solve(
    market: Market | str | Path,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    groups_of: Any = None,
    requests_of: Any = None,
    epsilon: float | None = None,
    delta: float | None = None,
    policy: Policy[Any] | str | None = None,
    clamp: bool = False,
    seed: int | None = None,
    threads: int | None = None,
    engine: str | Choice | None = None,
    output: str | Path | None = None,
    ledger: str | Path | None = None,
    dataset: str | None = None,
    force: bool = False,
    write_to: str | None = None,
    coin_hash: CoinHash | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Allocate a market's resources with joint differential privacy.

    Args:
        market: the public market, or the path of a market file.
        agents: a table (Arrow, pandas, polars), or Parquet or CSV: a path, folder or pattern, a
            URI such as "s3://...", or a list of them; or the rows of a `DatabaseQuery`.
        values, demands, ids: instead of `agents`, a vector, a matrix (NumPy or SciPy sparse), and
            ids if there are any.
        groups_of: with `values` and `demands` in a market with groups, the name of each row's
            group, or None.
        requests_of: with `values` and `demands` where agents may make several requests, the name of
            each row's request.
        epsilon, delta: the privacy budget; the market's own if not given. With epsilon = inf there
            is no noise and **no privacy**: a fast approximate solver, and a reference.
        policy: the algorithm, as a text such as "mwu-adaptive:alpha=0.05" or an object such as
            `MwuAdaptive(alpha=0.05)`; newton if not given. `Newton.warm` starts from the prices of
            an earlier run.
        clamp: move numbers beyond the public bounds to the nearest bound, instead of refusing them.
        seed: draw reproducible noise, for experiments. The result is **not private** and says so.
        threads: how many cores to use.
        engine: where to keep the agents' codes: "memory", "mapped" (on disk), "ray" or the address
            of a cluster, "sql" (in a database, or DuckDB for Parquet files), or `Memory`, `Mapped`,
            `Ray`, `Sql` with their settings. All give the same billboard, given the same
            `coin_hash`. If not given, memory if the codes fit, otherwise mapped.
        output: a folder to create, with public and private files in separate folders.
            `resume` can finish an interrupted run from it.
        ledger, dataset: the ledger that holds these people's total budget over all runs, and their
            name in it. It reserves the run's whole budget before any record is read.
        force: run even if noise needs more than the whole supply, so that hardly anybody can get
            anything. Otherwise such a run is refused, unless it has a seed.
        write_to: with a `DatabaseQuery` and an output folder, a table of the same database that the
            allocation is added to at the end, in one transaction.
        coin_hash: the hash behind the agents' coins, "siphash-2-4" or "sha-256", which databases
            compute too. If not given, the one that the engine needs.
        progress: called while records are read, and after every round.

    Formal guarantees. The billboard is (epsilon, delta)-differentially private and the allocation
    (epsilon, delta)-jointly differentially private for the market's neighbour relation, unless
    `seed` is given or epsilon is inf (`Budget` has the arithmetic, `release` the argument). Bad
    input raises before anything is spent or written. So does a SupplyWarning (supply is too small
    for the budget) or a BudgetWarning (the budget promises little), if warnings are errors.
    """
    market_file = os.path.abspath(market) if isinstance(market, str | Path) else None
    market, policy, budget = prepare(market, policy, epsilon, delta)
    source = source_of(market, agents, values, demands, ids, groups_of, requests_of, clamp)
    check_threads(threads)
    target = Target.of(source, write_to)
    if target is not None and output is None:
        raise OutputError(
            "write_to needs an output folder", "so that `resume` can finish what was interrupted"
        )
    choice = choice_of(engine, market, agents)
    hash = coin_hash_of(coin_hash, choice)
    account = Account.of(ledger, dataset)
    coin_seed = Seed.draw() if seed is None else _seeded_coins(seed)
    check_curated(policy)
    if seed is None and not force:
        check_hope(market, budget, policy)
    warning = shortfall(market, budget, policy)
    if warning is not None:
        warnings.warn(warning, stacklevel=2)
    private = seed is None and budget.epsilon != math.inf
    weak = weakness(budget, market.agents) if private else None
    if weak is not None:
        warnings.warn(weak, stacklevel=2)
    header = Header(market, policy.to_dict(), budget, coin_seed.commitment, private, hash)
    folder = Output.claim(output) if output is not None else None
    if target is not None:
        target.check(allocation_names(market))
    run_file = RunFile(
        header=Billboard(header).first_line,
        market=market_file,
        agents=source.paths,
        query=None if source.query is None else source.query.sql,
        write_to=write_to,
        clamp=clamp,
        engine=to_dict(choice),
        seed=seed,
        coins=coin_seed.seed.hex(),
        ledger=None if account is None else account.to_dict(),
    )
    return Lifecycle(
        file=run_file,
        header=header,
        policy=policy,
        source=source,
        choice=choice,
        account=account,
        folder=folder,
        target=target,
        warning=warning,
        threads=threads,
        progress=progress,
    ).begin()


def resume(
    output: str | Path,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    groups_of: Any = None,
    requests_of: Any = None,
    threads: int | None = None,
    engine: str | Choice | None = None,
    ledger: str | Path | None = None,
    reserve_again: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Resume a run that was interrupted, from what is on its billboard.

    Args:
        output: the folder of the run, as given to `solve`.
        agents, values, demands, ids, groups_of, requests_of: the same records again; needed only if
            they were given in memory, or if their files have moved.
        threads, progress: as for `solve`.
        engine: as for `solve`, instead of the one that the run began with.
        ledger: where the run's ledger is now, if it has moved.
        reserve_again: charge the run's whole budget a second time if its ledger was put back from
            a backup and has forgotten how far the run has come. Otherwise such a run is refused. A
            folder that is behind its ledger is refused in any case.

    Formal guarantees. What is posted is not asked for again, and no noise is drawn for it a second
    time. The filter is charged for it first, so the whole run spends no more than its budget, and
    the guarantee is that of `solve`. Records that have changed are refused. If the run is complete,
    the files that are missing in its folder are written, and nothing is spent.
    """
    with reopened(output) as begun:
        header, market = begun.header, begun.header.market
        check_market(begun.file.market, market)
        records = agents, values, demands, ids, groups_of, requests_of
        source = source_again(begun.file, market, "resume", records)
        check_threads(threads)
        saved = from_dict(begun.file.engine)
        choice = saved if engine is None else choice_of(engine, market, agents)
        target = Target.of(source, begun.file.write_to)
        check_coin_hash(header.coin_hash, choice)
        policy = registry.from_dict(header.policy)
        warning = shortfall(market, header.budget, policy)
        if ledger is not None:
            begun = begun.at_ledger(ledger)
        return Lifecycle(
            file=begun.file,
            header=header,
            policy=policy,
            source=source,
            choice=choice,
            account=Account.from_dict(begun.file.ledger),
            folder=begun.folder,
            target=target,
            warning=warning,
            threads=threads,
            progress=progress,
        ).carry_out(begun.board, again=reserve_again)


def experiment(
    agents: Agents,
    policy: Policy[Any],
    budget: Budget,
    seed: int,
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """A seeded run on records that are already encoded. It is **not private**."""
    check_curated(policy)
    coin_seed = _seeded_coins(seed)
    header = Header(agents.market, policy.to_dict(), budget, coin_seed.commitment, private=False)
    engine = MemoryEngine(agents, threads)
    check_order(policy.outlook(agents.market, budget), engine)
    board = Billboard(header)
    spent = run(engine, policy, board, SeededRandomness(seed), coin_seed, progress)
    return Result(board, spent, engine, engine.allocate(board))


def _seeded_coins(seed: int) -> Seed:
    check_whole("seed", seed, least=0)
    return Seed(hashlib.sha256(f"jdpack experiment {seed}".encode()).digest()[:16])
