"""Runs: solve, resume and the demo."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jdpack.cli.options import (
    AllocationPlace,
    Alpha,
    AsJson,
    BatchSize,
    Engine,
    MovedAgents,
    MovedLedger,
    Noise,
    PolicyName,
    Potential,
    Quiet,
    Room,
    Rounds,
    Store,
    Threads,
    WorkerPatience,
    Workers,
    engine_of,
    policy_of,
)
from jdpack.cli.progress import CtrlCError, progress

if TYPE_CHECKING:
    from jdpack.run.result import Result


def solve_command(
    market: Annotated[Path, typer.Argument(help="The market file (TOML). Public.")],
    agents: Annotated[
        str, typer.Argument(help="Parquet or CSV: a file, folder or pattern. Private.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to create.")],
    epsilon: Annotated[
        float | None, typer.Option(help="In place of the market's; inf: NOT PRIVATE, no noise.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="In place of the market's.")] = None,
    policy: Annotated[PolicyName, typer.Option(help="The algorithm.")] = PolicyName.newton,
    warm_start: Annotated[
        Path | None, typer.Option(help="Start from an earlier billboard's prices (newton).")
    ] = None,
    alpha: Alpha = None,
    noise: Noise = None,
    rounds: Rounds = None,
    potential: Potential = None,
    batch: BatchSize = None,
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Clamp numbers beyond the public bounds.")
    ] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(help="The ledger of all runs on these people; the budget is reserved there."),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Their name in the ledger.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seeded noise, for experiments: NOT PRIVATE.")
    ] = None,
    threads: Threads = None,
    engine: Engine = None,
    store: Store = None,
    memory: Room = None,
    workers: Workers = None,
    allocation: AllocationPlace = None,
    patience: WorkerPatience = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Allocate a market's resources among the agents of a table."""
    from jdpack.market.market import Market
    from jdpack.run.solve import solve

    public = Market.from_toml(market)
    algorithm = policy_of(
        public,
        policy,
        warm_start,
        alpha=alpha,
        noise=noise,
        rounds=rounds,
        potential=potential,
        batch=batch,
    )
    where = engine_of(
        engine,
        store=store,
        memory=memory,
        workers=workers,
        allocation=allocation,
        patience=patience,
    )
    with _told(output), progress(quiet) as show:
        result = solve(
            market,
            agents,
            epsilon=epsilon,
            delta=delta,
            policy=algorithm,
            clamp=clamp,
            seed=seed,
            threads=threads,
            engine=where,
            output=output,
            ledger=ledger,
            dataset=dataset,
            progress=show,
        )
    _print(result, output, as_json)


def resume_command(
    output: Annotated[Path, typer.Argument(help="The output folder of a run that was cut short.")],
    agents: MovedAgents = None,
    ledger: MovedLedger = None,
    reserve_again: Annotated[
        bool,
        typer.Option(
            "--reserve-again",
            help="Charge the budget a second time if a ledger from a backup has forgotten the run.",
        ),
    ] = False,
    threads: Threads = None,
    engine: Engine = None,
    store: Store = None,
    memory: Room = None,
    workers: Workers = None,
    allocation: AllocationPlace = None,
    patience: WorkerPatience = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Resume an interrupted run from what is on its billboard. Spends no more than it had."""
    from jdpack.run.solve import resume

    where = engine_of(
        engine,
        store=store,
        memory=memory,
        workers=workers,
        allocation=allocation,
        patience=patience,
    )
    with _told(output), progress(quiet) as show:
        result = resume(
            output,
            agents,
            threads=threads,
            engine=where,
            ledger=ledger,
            reserve_again=reserve_again,
            progress=show,
        )
    _print(result, output, as_json)


def demo_command(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to create.")] = Path(
        "demo"
    ),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make a realistic market with random agents, and solve it."""
    from jdpack.run import demo

    with _told(output / "out"), progress(quiet) as show:
        result = demo.run(output, show)
    _print(result, output / "out", as_json)


@contextmanager
def _told(output: Path) -> Iterator[None]:
    """Says after Ctrl-C what is spent, and how to go on."""
    try:
        yield
    except CtrlCError:
        text = "interrupted: nothing was posted, and nothing is spent"
        if os.path.exists(output / "private" / "run.json"):
            text = "interrupted: what is posted is spent, and a ledger keeps what was reserved\n"
            text += f"hint: `jdpack resume {output}` goes on, and spends nothing more"
        print(text, file=sys.stderr)
        raise typer.Exit(130) from None


def _print(result: Result, output: Path, as_json: bool) -> None:
    from jdpack.run import summary

    print(json.dumps(summary.as_dict(result)) if as_json else summary.as_text(result, output))
