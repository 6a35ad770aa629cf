"""jdpack plan: what a budget buys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli.options import (
    Alpha,
    AsJson,
    BatchSize,
    Noise,
    PolicyName,
    Potential,
    Rounds,
    policy_of,
)
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
