"""jdpack compare: policies side by side. For the curator alone; publish none of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli import options
from jdpack.cli.progress import print_study, studying


def compare_command(
    market: options.MarketFile,
    agents: options.Agents,
    query: options.Query = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A folder to create: page, table, JSON.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="A name, or name:key=value,...; repeat for more. All if not given."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeded runs of each policy.")] = 5,
    patience: Annotated[
        float, typer.Option(help="Give up on a policy after this many seconds.")
    ] = 300.0,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    clamp: options.Clamp = False,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare policies with each other and the optimum. CURATOR ONLY: publish none of it."""
    from jdpack.curator.compare import compare

    with studying(output, quiet) as show:
        found = compare(
            market,
            options.records_of(agents, query),
            policies=policy or None,
            seeds=seeds,
            patience=patience,
            epsilon=epsilon,
            delta=delta,
            clamp=clamp,
            threads=threads,
            progress=show,
        )
    print_study(found, output, as_json)
    if not as_json:
        options.next_step("jdpack plan", market)
