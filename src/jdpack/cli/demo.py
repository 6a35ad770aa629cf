"""jdpack demo: a market to try."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli.options import AsJson, Quiet
from jdpack.cli.progress import progress
from jdpack.cli.solve import print_result, told


def demo_command(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to create.")] = Path(
        "demo"
    ),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make a realistic market with random agents, and solve it."""
    from jdpack.run import demo

    with told(output / "out"), progress(quiet) as show:
        result = demo.run(output, show)
    print_result(result, output / "out", as_json)
