"""jdpack verify: check a billboard, or a whole run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli import options
from jdpack.cli.progress import reading
from jdpack.errors import BillboardError


def verify_command(
    path: Annotated[
        Path,
        typer.Argument(
            help="A billboard; or the output folder of a run, for the curator to check everything."
        ),
    ],
    agents: options.MovedAgents = None,
    query: options.Query = None,
    ledger: options.MovedLedger = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Check a billboard: every line, price, cost, the certificate and the seed."""
    from jdpack.protocol.verify import verify

    if not os.path.isdir(path):
        if agents is not None or query is not None or ledger is not None:
            raise BillboardError("--agents and --ledger go with the output folder of a run")
        verdict = verify(path)
    else:
        from jdpack.curator.verify_run import verify_run

        with reading(quiet) as show:
            verdict = verify_run(
                path,
                options.records_of(agents, query),
                ledger=ledger,
                progress=show,
            )
    print(json.dumps(verdict.to_dict()) if as_json else verdict)
    if not verdict.finished:
        raise typer.Exit(1)
    if not as_json and os.path.isdir(path):
        options.next_step("jdpack report", path)
    elif not as_json:
        options.next_step(
            "jdpack allocate", path, "--id", "YOURS", "--value", "YOURS", "--demand", "YOURS"
        )
