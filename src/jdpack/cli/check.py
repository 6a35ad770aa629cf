"""jdpack check: what a run would read and do. For the curator alone; publish none of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli.options import (
    Agents,
    AsJson,
    PolicyText,
    Query,
    Quiet,
    Threads,
    next_step,
    records_of,
)
from jdpack.cli.progress import progress


def check_command(
    market: Annotated[Path, typer.Argument(help="The market file (TOML). Public.")],
    agents: Agents,
    query: Query = None,
    epsilon: Annotated[float | None, typer.Option(help="Instead of the market's.")] = None,
    delta: Annotated[float | None, typer.Option(help="Instead of the market's.")] = None,
    policy: PolicyText = None,
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Clamp numbers beyond the public bounds.")
    ] = False,
    threads: Threads = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Read a market and its table, spend nothing, say what looks wrong. CURATOR ONLY."""
    from jdpack.curator.check import check
    from jdpack.run.result import Progress as Round

    with progress(quiet) as show:
        found = check(
            market,
            records_of(agents, query),
            epsilon=epsilon,
            delta=delta,
            policy=policy,
            clamp=clamp,
            threads=threads,
            progress=lambda done: show(Round(0, done, "reading")),
        )
    print(json.dumps(found.to_dict()) if as_json else found)
    if found.refused is not None:
        raise typer.Exit(1)
    if not as_json:
        where = [agents] if query is None else [agents, "--query", query]
        next_step("jdpack solve", market, *where, "-o", "out")
