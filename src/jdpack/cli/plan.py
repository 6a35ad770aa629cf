"""jdpack plan: what a budget buys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli.options import AsJson, PolicyText, next_step
from jdpack.storage import new_folder


def plan_command(
    market: Annotated[Path, typer.Argument(help="The market file (TOML). Public.")],
    epsilon: Annotated[
        float | None, typer.Option(help="Instead of the market's; inf: NOT PRIVATE, no noise.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Instead of the market's.")] = None,
    policy: PolicyText = None,
    runs: Annotated[
        int | None, typer.Option(help="How many runs on the same people share the budget.")
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Rounds, noise, other budgets and supplies, too.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A folder to create: page and JSON.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a privacy budget buys in a market, before any record is read."""
    from jdpack.planning.plan import plan

    if output is not None:
        new_folder.claim(output)
    planned = plan(market, epsilon=epsilon, delta=delta, policy=policy, runs=runs)
    if output is not None:
        planned.write(output)
    if as_json:
        print(json.dumps(planned.to_dict(), allow_nan=False))
        return
    print(planned)
    if details:
        print(f"\n{planned.details}\n")
    else:
        print("--details tells the rest")
    next_step("jdpack check", market, "TABLE")
