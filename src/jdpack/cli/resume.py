"""jdpack resume: finish an interrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli.options import (
    AllocationPlace,
    AsJson,
    Engine,
    KeepCodes,
    Memory,
    MovedAgents,
    MovedLedger,
    Query,
    Quiet,
    Store,
    Threads,
    WorkerPatience,
    Workers,
    engine_of,
    records_of,
)
from jdpack.cli.progress import progress
from jdpack.cli.solve import print_result, told


def resume_command(
    output: Annotated[Path, typer.Argument(help="The output folder of an interrupted run.")],
    agents: MovedAgents = None,
    query: Query = None,
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
    memory: Memory = None,
    workers: Workers = None,
    allocation: AllocationPlace = None,
    patience: WorkerPatience = None,
    keep: KeepCodes = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Resume an interrupted run from its billboard. It spends no more than its budget."""
    from jdpack.run.solve import resume

    where = engine_of(
        engine,
        store=store,
        memory=memory,
        workers=workers,
        allocation=allocation,
        patience=patience,
        keep=keep or None,
    )
    with told(output), progress(quiet) as show:
        result = resume(
            output,
            records_of(agents, query),
            threads=threads,
            engine=where,
            ledger=ledger,
            reserve_again=reserve_again,
            progress=show,
        )
    print_result(result, output, as_json)
