"""jdpack audit: attacks on the pipeline. For the curator alone; publish none of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from jdpack.cli import options
from jdpack.cli.progress import print_study, studying


def audit_command(
    market: Annotated[
        Path | None,
        typer.Argument(help="The market file (TOML); a small built-in market if not given."),
    ] = None,
    agents: Annotated[
        str | None, typer.Argument(help="Records to test with; invented ones if not given.")
    ] = None,
    policy: options.PolicyText = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Check sensitivities in this engine; repeat for more. memory, mapped if not given."
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="How often the coalition plays each world; 110 if not given.")
    ] = None,
    neighbours: Annotated[
        int | None, typer.Option(help="How many records of one agent to replay; 16 if not given.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="The confidence of the lower bounds.")] = 0.95,
    epsilon: Annotated[
        float | None, options.privacy_option(help="The epsilon, instead of the market's.")
    ] = None,
    delta: options.Delta = None,
    seed: Annotated[int | None, typer.Option(help="The seed of the invented records.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A folder to create: page, text, JSON.")
    ] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Attack the real pipeline on neighbouring data sets. CURATOR ONLY. A pass is no proof."""
    from jdpack.audit import audit
    from jdpack.curator.compare import Stage

    given: dict[str, Any] = {"trials": trials, "neighbours": neighbours}
    with studying(output, quiet) as show:
        found = audit(
            market,
            agents,
            policy=policy,
            epsilon=epsilon,
            delta=delta,
            **{name: count for name, count in given.items() if count is not None},
            engines=engine or ("memory", "mapped"),
            confidence=confidence,
            seed=seed,
            progress=lambda done, label: show(Stage(label, done)),
        )
    print_study(found, output, as_json)
    if not found.passed:
        raise typer.Exit(1)
    if not as_json:
        options.next_step("jdpack plan", "MARKET" if market is None else market)
