"""Private: policies side by side, against the optimum without privacy. Curator only.

Every policy runs on the same encoded records with several seeds, and its allocation is measured on
the true numbers. Seeded runs protect nobody, and the optimum is a function of all records, so all
of this is for the curator only. Nothing is released, and no privacy budget is touched.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jdpack.common.checks import check_whole
from jdpack.curator.comparison import Best, Comparison, MeasuredRun, Row
from jdpack.curator.truth import Truth
from jdpack.errors import AgentsError, BudgetError, JdpackError, MarketError
from jdpack.market.market import Market
from jdpack.planning.headroom import shortfall
from jdpack.planning.prepare import prepare
from jdpack.policies.base import Policy
from jdpack.policies.newton import Newton
from jdpack.policies.spec import label_of, policies_of
from jdpack.privacy.accounting import Budget
from jdpack.run.arguments import check_threads, source_of
from jdpack.run.result import Progress
from jdpack.run.solve import experiment

REFERENCE = "newton, no privacy"


@dataclass(frozen=True)
class Stage:
    """How far a comparison has come."""

    label: str
    """What is being computed."""
    done: float
    """The fraction of the runs that is done."""


def compare(
    market: Market | str | Path,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    groups_of: Any = None,
    requests_of: Any = None,
    policies: Iterable[Policy[Any] | str] | None = None,
    seeds: int = 5,
    patience: float = 300.0,
    epsilon: float | None = None,
    delta: float | None = None,
    clamp: bool = False,
    threads: int | None = None,
    progress: Callable[[Stage], None] | None = None,
) -> Comparison:
    """Run policies on the same records with several seeds, against the optimum.

    Args:
        market, agents, values, demands, ids, groups_of, requests_of: as for `solve`.
        epsilon, delta, clamp, threads: as for `solve`.
        policies: a list of policies, each as for `solve`; all of them if not given.
        seeds: how many seeded runs of each, with the seeds 0, 1, 2 and so on.
        patience: give up on a policy after this many seconds; its finished runs count.
        progress: called after every round.

    Formal guarantees: none. The result is **private**: it compares exact numbers, and seeded runs
    protect nobody. Nothing is released and no budget is touched. If a policy refuses the market or
    the budget, its row says why; if all of them do, the first refusal is raised.
    """
    import jdpack.curator.optimum  # noqa: F401  (raises if its solver is not installed)

    if not isinstance(market, Market):
        market = Market.from_toml(market)
    source = source_of(market, agents, values, demands, ids, groups_of, requests_of, clamp)
    check_threads(threads)
    check_whole("seeds", seeds, least=1)
    if isinstance(patience, bool) or not isinstance(patience, int | float) or not patience > 0:
        raise MarketError(f"patience must be a number of seconds above 0, not {patience!r}")
    entries = _entries(market, policies, epsilon, delta)
    tell = progress if progress is not None else lambda _: None
    tell(Stage("records", 0.0))
    truth = Truth(market, source.pieces(), clamp=clamp)
    tell(Stage("optimum", 0.0))
    best = truth.optimum()
    rows = []
    for k, entry in enumerate(entries):

        def show(run: int, done: float, k: int = k, label: str = entry.label) -> None:
            whole = (k + (run + done) / seeds) / len(entries)
            tell(Stage(f"{label}, run {run + 1} of {seeds}", whole))

        rows.append(_row(entry, truth, best, seeds, threads, patience, show))
    budget = next(e.budget for e in reversed(entries) if e.budget is not None)
    return Comparison(
        market=market,
        agents=truth.agents.count,
        clamped=truth.agents.clamped,
        epsilon=budget.epsilon,
        delta=budget.delta,
        seeds=seeds,
        optimum=best,
        rows=tuple(rows),
    )


# --- what runs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """A policy with its budget, or its refusal."""

    label: str
    policy: Policy[Any]
    epsilon: float | None
    budget: Budget | None = None
    error: JdpackError | None = None


def _entries(
    market: Market,
    policies: Iterable[Policy[Any] | str] | None,
    epsilon: float | None,
    delta: float | None,
) -> list[_Entry]:
    """The reference, then the policies. Raises if all policies refuse."""
    chosen = policies_of(policies)
    epsilon = market.epsilon if epsilon is None else epsilon
    entries = [_entry(market, policy, label_of(policy), epsilon, delta) for policy in chosen]
    if all(entry.error is not None for entry in entries):
        raise next(entry.error for entry in entries if entry.error is not None)
    if epsilon == math.inf and Newton() in chosen:
        return entries
    return [_entry(market, Newton(), REFERENCE, math.inf, delta), *entries]


def _entry(
    market: Market, policy: Policy[Any], label: str, epsilon: float | None, delta: float | None
) -> _Entry:
    try:
        _, _, budget = prepare(market, policy, epsilon, delta)
    except (BudgetError, MarketError) as error:
        return _Entry(label, policy, epsilon, error=error)
    return _Entry(label, policy, budget.epsilon, budget)


class _OutOfTimeError(Exception):
    """A policy has run out of time."""


def _row(
    entry: _Entry,
    truth: Truth,
    best: Best,
    seeds: int,
    threads: int | None,
    patience: float,
    tell: Callable[[int, float], None],
) -> Row:
    """Run a policy with every seed."""
    row, runs = Row(entry.label, entry.policy.to_dict(), entry.epsilon), list[MeasuredRun]()
    if entry.budget is None:
        assert entry.error is not None
        return replace(row, refused=entry.error.message)
    warning = shortfall(truth.market, entry.budget, entry.policy)
    notes = [] if warning is None else [warning.message]
    begin = time.perf_counter()

    def heed(now: Progress) -> None:
        if time.perf_counter() - begin > patience:
            raise _OutOfTimeError(
                f"given up after {patience:g} seconds, in round {now.rounds:,} of run "
                f"{len(runs) + 1} of {seeds}"
            )
        tell(len(runs), now.done)

    try:
        for seed in range(seeds):
            start = time.perf_counter()
            result = experiment(truth.agents, entry.policy, entry.budget, seed, threads, heed)
            runs.append(truth.measure(result, best, seed, time.perf_counter() - start))
    except (AgentsError, BudgetError, MarketError) as error:
        return replace(row, refused=error.message)
    except _OutOfTimeError as end:
        if not runs:
            return replace(row, refused=str(end))
        notes.append(str(end))
    return replace(row, runs=tuple(runs), notes=tuple(notes))
