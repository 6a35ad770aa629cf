"""jdpack resume: finish an interrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli import options
from jdpack.cli.progress import progress
from jdpack.cli.solve import print_result, told


def resume_command(
    output: Annotated[Path, typer.Argument(help="The output folder of an interrupted run.")],
    agents: options.MovedAgents = None,
    query: options.Query = None,
    ledger: options.MovedLedger = None,
    reserve_again: Annotated[
        bool,
        typer.Option(
            "--reserve-again",
            help="Charge the budget a second time if a ledger from a backup has forgotten the run.",
        ),
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
    """Resume an interrupted run from its billboard. It spends no more than its budget."""
    from jdpack.run.solve import resume

    where = options.engine_of(engine, store, memory, workers, allocation, patience, keep or None)
    with told(output), progress(quiet) as show:
        result = resume(
            output,
            options.records_of(agents, query),
            threads=threads,
            engine=where,
            ledger=ledger,
            reserve_again=reserve_again,
            progress=show,
        )
    print_result(result, output, as_json)
