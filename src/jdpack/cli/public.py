"""For everybody: what a budget buys, and whether a billboard is right."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli.options import (
    Alpha,
    AsJson,
    BatchSize,
    MovedAgents,
    MovedLedger,
    Noise,
    PolicyName,
    Potential,
    Quiet,
    Rounds,
    policy_of,
)
from jdpack.cli.progress import progress
from jdpack.errors import BillboardError
from jdpack.storage import new_folder


def plan_command(
    market: Annotated[Path, typer.Argument(help="The market file (TOML). Public.")],
    epsilon: Annotated[
        float | None, typer.Option(help="In place of the market's; inf: NOT PRIVATE, no noise.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="In place of the market's.")] = None,
    policy: Annotated[PolicyName, typer.Option(help="The algorithm.")] = PolicyName.newton,
    alpha: Alpha = None,
    noise: Noise = None,
    rounds: Rounds = None,
    potential: Potential = None,
    batch: BatchSize = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A folder to create: page and JSON.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a privacy budget buys in a market, before any record is read."""
    from jdpack.market.market import Market
    from jdpack.planning.plan import plan

    if output is not None:
        new_folder.claim(output)
    public = Market.from_toml(market)
    algorithm = policy_of(
        public, policy, alpha=alpha, noise=noise, rounds=rounds, potential=potential, batch=batch
    )
    planned = plan(public, epsilon=epsilon, delta=delta, policy=algorithm)
    print(json.dumps(planned.to_dict(), allow_nan=False) if as_json else planned)
    if output is not None:
        planned.write(output)


def verify_command(
    path: Annotated[
        Path,
        typer.Argument(
            help="A billboard; or the output folder of a run, whose curator checks all."
        ),
    ],
    agents: MovedAgents = None,
    ledger: MovedLedger = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Check a billboard: every line, price, cost, the certificate and the seed."""
    from jdpack.protocol.verify import verify

    if not os.path.isdir(path):
        if agents is not None or ledger is not None:
            raise BillboardError("--agents and --ledger go with the output folder of a run")
        verdict = verify(path)
    else:
        from jdpack.curator.verify_run import verify_run
        from jdpack.run.result import Progress as Round

        with progress(quiet) as show:
            verdict = verify_run(
                path, agents, ledger=ledger, progress=lambda done: show(Round(0, done, "reading"))
            )
    print(json.dumps(verdict.to_dict()) if as_json else verdict)
    if not verdict.finished:
        raise typer.Exit(1)
