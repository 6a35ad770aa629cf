"""jdpack check: what a run would read and do. For the curator alone; publish none of it."""

from __future__ import annotations

import json

import typer

from jdpack.cli import options
from jdpack.cli.progress import reading


def check_command(
    market: options.MarketFile,
    agents: options.Agents,
    query: options.Query = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    policy: options.PolicyText = None,
    clamp: options.Clamp = False,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Read a market and its table, spend nothing, say what looks wrong. CURATOR ONLY."""
    from jdpack.curator.check import check

    with reading(quiet) as show:
        found = check(
            market,
            options.records_of(agents, query),
            epsilon=epsilon,
            delta=delta,
            policy=policy,
            clamp=clamp,
            threads=threads,
            progress=show,
        )
    print(json.dumps(found.to_dict()) if as_json else found)
    if found.refused is not None:
        raise typer.Exit(1)
    if not as_json:
        where = [agents] if query is None else [agents, "--query", query]
        options.next_step("jdpack solve", market, *where, "-o", "out")
