"""jdpack bounds: bounds for a market from its records, with differential privacy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli.options import PRIVACY, AsJson, next_step


def bounds_command(
    market: Annotated[Path, typer.Argument(help="The market file (TOML). Public.")],
    agents: Annotated[
        str, typer.Argument(help="Parquet or CSV: a file, folder or pattern. Private.")
    ],
    epsilon: Annotated[
        float, typer.Option(help="What it may cost, on top of runs.", rich_help_panel=PRIVACY)
    ],
    delta: Annotated[
        float | None, typer.Option(help="Instead of the market's.", rich_help_panel=PRIVACY)
    ] = None,
    share: Annotated[
        float, typer.Option(help="The share of those who ask that a bound may clamp.")
    ] = 0.02,
    ledger: Annotated[
        str | None,
        typer.Option(help="The ledger of all runs on these people.", rich_help_panel=PRIVACY),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="The name of these people in the ledger.", rich_help_panel=PRIVACY),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seeded noise, for experiments: NOT PRIVATE.", rich_help_panel=PRIVACY),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The market file to write, with these bounds."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Suggest smaller bounds from the records, with differential privacy. Spends a budget."""
    from jdpack.run.bounds import bounds

    found = bounds(
        market,
        agents,
        epsilon=epsilon,
        delta=delta,
        share=share,
        ledger=ledger,
        dataset=dataset,
        seed=seed,
        output=output,
    )
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    print(found)
    if output is not None:
        print(f"wrote {output}")
    next_step("jdpack plan", market if output is None else output)
