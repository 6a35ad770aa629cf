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

from jdpack.cli.options import (
    PRIVACY,
    Agents,
    AllocationPlace,
    AsJson,
    Engine,
    KeepCodes,
    Memory,
    PolicyText,
    Query,
    Quiet,
    Store,
    Threads,
    WorkerPatience,
    Workers,
    WriteTo,
    engine_of,
    next_step,
    records_of,
    warm,
)
from jdpack.cli.progress import CtrlCError, progress

if TYPE_CHECKING:
    from jdpack.run.result import Result


def solve_command(
    market: Annotated[Path, typer.Argument(help="The market file (TOML). Public.")],
    agents: Agents,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to create.")],
    query: Query = None,
    write_to: WriteTo = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Instead of the market's; inf: NOT PRIVATE, no noise.", rich_help_panel=PRIVACY
        ),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Instead of the market's.", rich_help_panel=PRIVACY)
    ] = None,
    policy: PolicyText = None,
    warm_start: Annotated[
        Path | None, typer.Option(help="Start from an earlier billboard's prices (newton).")
    ] = None,
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Clamp numbers beyond the public bounds.")
    ] = False,
    ledger: Annotated[
        str | None,
        typer.Option(
            help="The ledger of all runs on these people; it reserves the budget.",
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="The name of these people in the ledger.", rich_help_panel=PRIVACY),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seeded noise, for experiments: NOT PRIVATE.", rich_help_panel=PRIVACY),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Run even if noise needs more than the whole supply.")
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
    """Allocate a market's resources among the agents of a table."""
    from jdpack.run.solve import solve

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
        result = solve(
            market,
            records_of(agents, query),
            epsilon=epsilon,
            delta=delta,
            policy=policy if warm_start is None else warm(policy, warm_start, market),
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
    next_step("jdpack letters", output)
