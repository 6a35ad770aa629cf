"""jdpack compare: policies side by side. For the curator alone; publish none of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli.options import AsJson, Quiet, Threads
from jdpack.cli.progress import CtrlCError, progress, stage_bar
from jdpack.storage import new_folder


def compare_command(
    market: Annotated[Path, typer.Argument(help="The market file (TOML). Public.")],
    agents: Annotated[
        str, typer.Argument(help="Parquet or CSV: a file, folder or pattern. Private.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A folder to create: page, table, JSON.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="A name, or name:key=value,...; repeat it for more. All if not given."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeded runs of each policy.")] = 5,
    patience: Annotated[
        float, typer.Option(help="Give up on a policy after this many seconds.")
    ] = 300.0,
    epsilon: Annotated[
        float | None, typer.Option(help="Instead of the market's; inf: no noise.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Instead of the market's.")] = None,
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Clamp numbers beyond the public bounds.")
    ] = False,
    threads: Threads = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare policies with each other and the optimum. CURATOR ONLY: publish none of it."""
    from jdpack.curator.compare import compare

    if output is not None:
        new_folder.claim(output)
    try:
        with progress(quiet, stage_bar) as show:
            found = compare(
                market,
                agents,
                policies=policy or None,
                seeds=seeds,
                patience=patience,
                epsilon=epsilon,
                delta=delta,
                clamp=clamp,
                threads=threads,
                progress=show,
            )
    except CtrlCError:
        print("interrupted: nothing is written, and no privacy budget is touched", file=sys.stderr)
        raise typer.Exit(130) from None
    print(json.dumps(found.to_dict(), allow_nan=False) if as_json else found)
    if output is not None:
        found.write(output)
