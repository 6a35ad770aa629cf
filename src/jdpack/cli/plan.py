"""jdpack plan: what a budget buys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli import options
from jdpack.storage import new_folder


def plan_command(
    market: options.MarketFile,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    policy: options.PolicyText = None,
    runs: Annotated[
        int | None, typer.Option(help="How many runs on the same people share the budget.")
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also show rounds, noise, other budgets and supplies.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A folder to create: page and JSON.")
    ] = None,
    as_json: options.AsJson = False,
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
        print("--details shows the rest")
    options.next_step("jdpack check", market, "TABLE")
