"""jdpack bounds: bounds for a market from its records, with differential privacy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli import options


def bounds_command(
    market: options.MarketFile,
    agents: Annotated[
        str, typer.Argument(help="Parquet or CSV: a file, folder or pattern. Private.")
    ],
    epsilon: Annotated[
        float, options.privacy_option(help="What this may cost, on top of all runs.")
    ],
    delta: options.Delta = None,
    share: Annotated[
        float, typer.Option(help="The fraction of those who ask whose amounts a bound may clamp.")
    ] = 0.02,
    ledger: options.Ledger = None,
    dataset: options.Dataset = None,
    seed: options.Seed = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The market file to write, with these bounds."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Suggest smaller bounds from the records, with differential privacy. Spends budget."""
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
    options.next_step("jdpack plan", market if output is None else output)
