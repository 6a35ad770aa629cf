"""jdpack report: two reports of a run, one to publish, one for the curator."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli import options
from jdpack.cli.progress import reading
from jdpack.errors import BillboardError


def report_command(
    path: Annotated[
        Path,
        typer.Argument(help="The output folder of a run; or a billboard, for the public report."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A folder to create; the run's own if not given."),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Only the public report, which needs no records.")
    ] = False,
    optimum: Annotated[
        bool | None,
        typer.Option(
            "--optimum/--no-optimum",
            help="Compute the optimum for the curator; only in small markets if not given.",
            show_default=False,
        ),
    ] = None,
    agents: options.MovedAgents = None,
    query: options.Query = None,
    ledger: options.MovedLedger = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a report to publish and one for the curator only, each a single file."""
    from jdpack.curator.reports import report_run

    curators = path.is_dir() and not public
    if not curators and (agents is not None or ledger is not None or optimum is not None):
        raise BillboardError("--agents, --ledger and --optimum are for the curator's report")
    with reading(quiet) as show:
        found = report_run(
            path,
            options.records_of(agents, query),
            folder=output,
            public=public,
            optimum=optimum,
            ledger=ledger,
            threads=threads,
            progress=show,
        )
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        print(f"public    {found.public}")
        if found.private is not None:
            print(f"private   {found.private} (curator only: do not publish)")
            print(f"next: publish {found.public}")
    if curators and found.private is None:
        print("the run is not finished, so there is no curator's report yet", file=sys.stderr)
        raise typer.Exit(1)
