"""The loop: the only module that joins the private and the public side.

policy -> engine -> release -> billboard -> policy, until the policy stops; then the certificate,
the seed, and everybody's allocation.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jdpack.billboard.board import Billboard
from jdpack.billboard.file import Note, first_line, lost
from jdpack.billboard.lines import Header, Seed
from jdpack.common.checks import check_whole
from jdpack.door import Randomness, SeededRandomness, SystemRandomness, release
from jdpack.engines.base import Engine
from jdpack.engines.memory import MemoryEngine
from jdpack.engines.settings import Choice, Place, Ray, choice_of, from_dict, to_dict
from jdpack.errors import (
    AgentsError,
    BillboardError,
    LedgerError,
    OutputError,
    SupplyWarning,
)
from jdpack.ledger.account import Account
from jdpack.ledger.balance import Balance
from jdpack.market.market import Market
from jdpack.planning.headroom import shortfall
from jdpack.planning.prepare import prepare
from jdpack.policies import registry
from jdpack.policies.base import Policy
from jdpack.privacy.accounting import Budget, Cost, weakness
from jdpack.protocol.certificate import certify
from jdpack.protocol.run_state import RunState
from jdpack.records.codes import Agents
from jdpack.records.source import Source
from jdpack.run.arguments import check_arguments, check_curated, check_market, check_order
from jdpack.run.folder import Output
from jdpack.run.result import Progress, Result
from jdpack.run.run_file import RunFile, locked


def solve(
    market: Market | str | Path,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
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
        policy: the algorithm, as a text such as "mwu-adaptive:alpha=0.05" or an object such as
            `MwuAdaptive(alpha=0.05)`; newton if not given. `Newton.warm` starts from the prices of
            an earlier run.
        clamp: bring numbers beyond the public bounds back to them instead of refusing the run.
        seed: draw reproducible noise, for experiments. The result is **not private** and says so.
        threads: how many cores to use.
        engine: where the codes of the agents are: "memory", "mapped" (on disk), "ray" or the
            address of a cluster, or `Memory`, `Mapped`, `Ray` with their settings. All give the
            same billboard. If not given, memory where they fit, else mapped.
        output: a folder to create, with everything for the public and everything private apart.
            A run that was interrupted can go on from it (`resume`).
        ledger, dataset: the ledger that holds the total budget of these people over all runs, and
            their name in it. The run's whole budget is reserved there before a record is read.
        progress: called while records are read, and after every round.

    Formal guarantees. The billboard is (epsilon, delta)-differentially private and the allocation
    (epsilon, delta)-jointly differentially private for the market's neighbour relation, unless
    `seed` is given or epsilon is inf (`Budget` has the arithmetic, `release` the argument). Bad
    input raises before anything is spent or written. So do a SupplyWarning where supply is too
    small for the budget, and a BudgetWarning where the budget promises little, if warnings are
    errors.
    """
    market_file = os.path.abspath(market) if isinstance(market, str | Path) else None
    market, policy, budget = prepare(market, policy, epsilon, delta)
    check_arguments(agents, values, demands, ids, clamp, threads)
    choice = choice_of(engine, market, agents)
    account = Account.of(ledger, dataset)
    coin_seed = Seed.draw() if seed is None else _seeded_coins(seed)
    check_curated(policy)
    warning = shortfall(market, budget, policy)
    if warning is not None:
        warnings.warn(warning, stacklevel=2)
    private = seed is None and budget.epsilon != math.inf
    weak = weakness(budget, market.agents) if private else None
    if weak is not None:
        warnings.warn(weak, stacklevel=2)
    header = Header(market, policy.to_dict(), budget, coin_seed.commitment, private)
    folder = Output.claim(output) if output is not None else None
    source = Source(market, agents, values, demands, ids, clamp)
    run_file = RunFile(
        header=Billboard(header).first_line,
        market=market_file,
        agents=source.paths,
        clamp=clamp,
        engine=to_dict(choice),
        seed=seed,
        coins=coin_seed.seed.hex(),
        ledger=None if account is None else account.to_dict(),
    )
    go = _Run(run_file, header, policy, source, choice, account, folder, warning, threads, progress)
    if folder is None:
        return go.carry_out(None)
    folder.create()
    with locked(folder.private):
        try:
            folder.keep(run_file)
            return go.carry_out(None)
        except BaseException:
            with contextlib.suppress(BillboardError):
                if first_line(folder.billboard, folder.journal) is None and not go.owes():
                    folder.remove()
            raise


def resume(
    output: str | Path,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    threads: int | None = None,
    engine: str | Choice | None = None,
    ledger: str | Path | None = None,
    reserve_again: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Resume a run that was interrupted, from what is on its billboard.

    Args:
        output: the folder of the run, as given to `solve`.
        agents, values, demands, ids: the same records again; needed only if they were given in
            memory, or if their files have moved.
        threads, progress: as for `solve`.
        engine: as for `solve`, in place of the one that the run began with.
        ledger: where the run's ledger is now, if it has moved.
        reserve_again: charge the run's whole budget a second time if its ledger has forgotten how
            far the run has come, because the ledger was put back from a backup. Without this such
            a run is refused. A folder that lags behind its ledger is refused in any case.

    Formal guarantees. What is posted is not asked for again and no noise is drawn for it a second
    time; the filter is charged for it first, so the whole run spends no more than its budget, and
    the guarantee is that of `solve`. Records that have changed are refused. Of a run that is
    complete, what is missing in its folder is written, and nothing is spent.
    """
    folder = Output.reopen(output)
    with locked(folder.private):
        run_file = RunFile.read(folder.run_file)
        folder.settle()
        header, board = Billboard.from_text(run_file.header + "\n").header, None
        begun = first_line(folder.billboard, folder.journal)
        if begun is None and run_file.begun:
            raise lost()
        own = begun in (None, run_file.header) and run_file.fits(header)
        if not own:
            raise BillboardError(
                "the billboard's header is not the one that the run began with",
                "the billboard is that of another run: put back its own",
            )
        if begun is not None:
            board = Billboard.reopen(folder.billboard, folder.journal)
        try:
            check_market(run_file.market, header.market)
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
            policy = registry.from_dict(header.policy)
            warning = shortfall(header.market, header.budget, policy)
            account = Account.from_dict(run_file.ledger)
            if ledger is not None:
                if account is None:
                    raise LedgerError("this run has no ledger", "it was begun without one")
                account = Account.at(ledger, account.dataset)
                run_file = replace(run_file, ledger=account.to_dict())
                folder.keep(run_file)
            rest = folder, warning, threads, progress
            go = _Run(run_file, header, policy, source, choice, account, *rest)
            return go.carry_out(board, again=reserve_again)
        finally:
            if board is not None:
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
    check_curated(policy)
    coin_seed = _seeded_coins(seed)
    header = Header(agents.market, policy.to_dict(), budget, coin_seed.commitment, private=False)
    engine = MemoryEngine(agents, threads)
    check_order(policy.outlook(agents.market, budget), engine)
    board = Billboard(header)
    spent = run(engine, policy, board, SeededRandomness(seed), coin_seed, progress)
    return Result(board, spent, engine, engine.allocate(board))


@dataclass(frozen=True)
class _Run:
    """A run that is to begin, or to go on."""

    file: RunFile
    header: Header
    policy: Policy[Any]
    source: Source
    choice: Choice
    account: Account | None
    folder: Output | None
    warning: SupplyWarning | None
    threads: int | None
    progress: Callable[[Progress], None] | None

    def carry_out(self, board: Billboard | None, again: bool = False) -> Result:
        """Reserve, read, play all rounds that are left, and allocate.

        `board` is None if nothing is posted yet. Then what was reserved is given back, whatever
        fails, until the billboard begins.
        """
        with contextlib.ExitStack() as held:
            note: Note | None = None
            if self.account is not None:
                held.enter_context(self.account.held(self.header))
            with contextlib.ExitStack() as undo:
                if self.account is not None:
                    if board is None:  # before it is reserved: Ctrl-C may come at once
                        undo.callback(self.account.cancel, self.header)
                    self.account.reserve(self.header, board, again)
                    note = self.account.note(self.header, board)
                engine = held.enter_context(contextlib.closing(self._read()))
                if board is None:
                    board = self._begin(engine, note)
                else:
                    self._go_on(board, note)
                undo.pop_all()
            held.callback(board.close)
            result = self._play(engine, board)
            if self.folder is not None:
                self.folder.write(result)
            elif isinstance(self.choice, Ray):
                result.shares  # noqa: B018 (from now on it has them: the workers end)
            if self.account is not None:
                result = replace(result, balance=self._finish(self.account, board))
            return result

    def owes(self) -> bool:
        """Whether a ledger holds something for this run."""
        return self.account is not None and self.account.owes(self.header)

    def _finish(self, account: Account, board: Billboard) -> Balance | None:
        try:
            return account.finish(board, followed=self.folder is not None)
        except LedgerError as error:
            if self.folder is not None:
                raise
            text = f"the run is complete, and its ledger does not know: {error.message}"
            warnings.warn(text, stacklevel=4)
            return None

    def _read(self) -> Engine:
        """Read and encode the records."""

        def tell(done: float) -> None:
            if self.progress is not None:
                self.progress(Progress(0, done, "reading"))

        near = None if self.folder is None else self.folder.folder.absolute().parent
        place = Place(self.header.commitment[:8], near)
        engine = self.choice.open(self.source, self.threads, place, tell)
        try:
            check_order(self.policy.outlook(self.header.market, self.header.budget), engine)
            if self.file.digest is not None and self.file.digest != engine.digest():
                raise AgentsError(
                    "the records have changed since the run began",
                    "a run ends with the records it began with; another run spends again",
                )
        except BaseException:
            engine.close()
            raise
        return engine

    def _begin(self, engine: Engine, note: Note | None) -> Billboard:
        """Post the header: from here on, what is posted is spent."""
        folder = self.folder
        if folder is None:  # nobody can resume it: one note stands for all of its lines
            board = Billboard(self.header)
            if note is not None:
                note(board.head)
            return board
        read = replace(self.file, digest=engine.digest())
        folder.keep(read)
        try:
            board = Billboard(self.header, folder.billboard, folder.journal, note)
        except OutputError as error:
            hint = "nothing is spent: make room, and run again, or resume if its folder is there"
            raise OutputError(error.message, hint) from None
        folder.keep(replace(read, begun=True))
        return board

    def _go_on(self, board: Billboard, note: Note | None) -> None:
        """Post what was about to be: not before it is known that nobody else has resumed."""
        board.mend(note)
        if self.folder is not None and not self.file.begun:
            self.folder.keep(replace(self.file, begun=True))

    def _play(self, engine: Engine, board: Billboard) -> Result:
        """All rounds that are left, and the allocation."""
        coins, seed = self.file.coin_seed, self.file.seed
        source: Randomness = SystemRandomness() if seed is None else SeededRandomness(seed)
        spent = run(engine, self.policy, board, source, coins, self.progress)
        board.close()
        if self.progress is not None:
            self.progress(Progress(sum(1 for _ in board.rounds), 1.0, "allocation"))
        return Result(board, spent, engine, engine.allocate(board), self.warning)


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
    budget, exact = board.header.budget, board.header.budget.rho == math.inf
    outlook = policy.outlook(board.header.market, budget)
    by_rounds = exact or outlook.batches is not None  # the first batch spends what all do
    state = RunState(policy, board)
    filter, rounds = state.filter, sum(1 for r in board.releases if r.step.query == "demand")
    while board.certificate is None and (step := state.step()) is not None:
        answered = release(step, engine, filter, randomness, board, coin_seed)
        board.post(answered)
        state.observe(answered)
        if step.query == "demand" and progress is not None:
            rounds += 1
            whole = rounds, outlook.rounds_at_most
            part, of = whole if by_rounds else (filter.spent.rho, budget.rho)
            progress(Progress(rounds, float(part / of)))
    if board.certificate is None:
        board.post(certify(board))
    if board.seed is None:
        board.post(coin_seed)
    return filter.spent


def _seeded_coins(seed: int) -> Seed:
    check_whole("seed", seed, least=0)
    return Seed(hashlib.sha256(f"jdpack experiment {seed}".encode()).digest()[:16])
