"""jdpack solve: carry out a run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jdpack.cli import options
from jdpack.cli.progress import CtrlCError, progress

if TYPE_CHECKING:
    from jdpack.run.result import Result


def solve_command(
    market: options.MarketFile,
    agents: options.Agents,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to create.")],
    query: options.Query = None,
    write_to: options.WriteTo = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    policy: options.PolicyText = None,
    warm_start: Annotated[
        Path | None, typer.Option(help="Start from an earlier billboard's prices (newton).")
    ] = None,
    clamp: options.Clamp = False,
    ledger: options.Ledger = None,
    dataset: options.Dataset = None,
    seed: options.Seed = None,
    force: Annotated[
        bool, typer.Option("--force", help="Run even if noise needs more than the whole supply.")
    ] = False,
    threads: options.Threads = None,
    engine: options.Engine = None,
    store: options.Store = None,
    memory: options.Memory = None,
    workers: options.Workers = None,
    allocation: options.AllocationPlace = None,
    patience: options.WorkerPatience = None,
    keep: options.KeepCodes = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Allocate a market's resources among the agents of a table."""
    from jdpack.run.solve import solve

    where = options.engine_of(engine, store, memory, workers, allocation, patience, keep or None)
    with told(output), progress(quiet) as show:
        result = solve(
            market,
            options.records_of(agents, query),
            epsilon=epsilon,
            delta=delta,
            policy=policy if warm_start is None else options.warm(policy, warm_start, market),
            clamp=clamp,
            seed=seed,
            threads=threads,
            engine=where,
            output=output,
            ledger=ledger,
            dataset=dataset,
            force=force,
            write_to=write_to,
            progress=show,
        )
    print_result(result, output, as_json)


@contextmanager
def told(output: Path) -> Iterator[None]:
    """After Ctrl-C, say what is spent and how to resume."""
    try:
        yield
    except CtrlCError:
        text = "interrupted: nothing was posted, and nothing is spent"
        if os.path.exists(output / "private" / "run.json"):
            text = "interrupted: what is posted is spent, and a ledger keeps what was reserved\n"
            text += f"hint: `jdpack resume {output}` finishes the run, and spends nothing more"
        print(text, file=sys.stderr)
        raise typer.Exit(130) from None


def print_result(result: Result, output: Path, as_json: bool) -> None:
    """Print the closing summary of a run, as text or JSON."""
    from jdpack.run import summary

    if as_json:
        print(json.dumps(summary.as_dict(result)))
        return
    print(summary.as_text(result, output))
    options.next_step("jdpack letters", output)
