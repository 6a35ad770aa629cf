"""For everybody: what a budget buys, what an agent gets, and whether a billboard is right."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from jdpack import newfolder
from jdpack.billboard import Billboard
from jdpack.cli.options import (
    Alpha,
    AsJson,
    BatchSize,
    Noise,
    PolicyName,
    Potential,
    Quiet,
    Rounds,
    policy_of,
)
from jdpack.cli.progress import progress
from jdpack.errors import AgentsError, BillboardError
from jdpack.market import Market
from jdpack.outcome import explain
from jdpack.plan import plan
from jdpack.record import read_record
from jdpack.solve import Progress as Round
from jdpack.telling import tell
from jdpack.verify import verify
from jdpack.verify_run import verify_run


def plan_command(
    market: Annotated[Path, typer.Argument(help="The market file (TOML). Public.")],
    epsilon: Annotated[
        float | None, typer.Option(help="In place of the market's; inf: NOT PRIVATE, no noise.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="In place of the market's.")] = None,
    policy: Annotated[PolicyName, typer.Option(help="The algorithm.")] = PolicyName.newton,
    alpha: Alpha = None,
    noise: Noise = None,
    rounds: Rounds = None,
    potential: Potential = None,
    batch: BatchSize = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A folder to create: page and JSON.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a privacy budget buys in a market, before any record is read."""
    if output is not None:
        newfolder.claim(output)
    public = Market.from_toml(market)
    algorithm = policy_of(
        public, policy, alpha=alpha, noise=noise, rounds=rounds, potential=potential, batch=batch
    )
    planned = plan(public, epsilon=epsilon, delta=delta, policy=algorithm)
    print(json.dumps(planned.to_dict(), allow_nan=False) if as_json else planned)
    if output is not None:
        planned.write(output)


def allocate_command(
    billboard: Annotated[Path, typer.Argument(help="The billboard (JSON lines). Public.")],
    agent: Annotated[str | None, typer.Option("--id", help="Your id.")] = None,
    value: Annotated[
        list[float] | None, typer.Option(help="Your value; once for each option.")
    ] = None,
    demand: Annotated[
        list[str] | None,
        typer.Option(
            help="Amounts '1,0.5' in the market's order, or 'name=amount,...'; once an option."
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Your record in a file, JSON or CSV, in place of --value and --demand."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute your own allocation from the public billboard, and why. Nothing is sent anywhere."""
    board = Billboard.read(billboard)
    if record is not None:
        if value or demand:
            raise AgentsError("--record is in place of --value and --demand", "give one or other")
        own = read_record(board.header.market, record)
        values: list[float] = list(own.values)
        demands: list[Any] = list(own.demands)
        agent = agent if agent is not None else own.id
    else:
        values, demands = value or [], [_demand(d) for d in demand or []]
        if not values or not demands:
            raise AgentsError(
                "your value and your demand are needed",
                "give --value and --demand once for each option, or --record with a file",
            )
    if agent is None:
        raise AgentsError("your id is needed", "give it with --id")
    explained = explain(board, value=values, demand=demands, agent=agent)
    if as_json:
        print(json.dumps({**explained.to_dict(), "private": board.header.private}))
        return
    if not board.header.private:
        print(f"NOT PRIVATE: {board.header.why_not_private}.")
    print(tell(explained))


def verify_command(
    path: Annotated[
        Path,
        typer.Argument(
            help="A billboard; or the output folder of a run, whose curator checks all."
        ),
    ],
    agents: Annotated[
        str | None, typer.Option(help="Where the records are now, if they have moved.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Where the run's ledger is now, if it has moved.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Check a billboard: every line, price, cost, the certificate and the seed."""
    if not os.path.isdir(path):
        if agents is not None or ledger is not None:
            raise BillboardError("--agents and --ledger go with the output folder of a run")
        verdict = verify(path)
    else:
        with progress(quiet) as show:
            verdict = verify_run(
                path, agents, ledger=ledger, progress=lambda done: show(Round(0, done, "reading"))
            )
    print(json.dumps(verdict.to_dict()) if as_json else verdict)
    if not verdict.finished:
        raise typer.Exit(1)


def _demand(text: str) -> list[float] | dict[str, float]:
    try:
        if "=" in text:
            pairs = re.findall(r"(.+?)=([^,=]+)(?:,|$)", text)  # a name may have commas
            if sum(len(name) + len(amount) + 2 for name, amount in pairs) != len(text) + 1:
                raise ValueError
            amounts = {name.strip(): float(amount) for name, amount in pairs}
            if len(amounts) < len(pairs):
                raise ValueError
            return amounts
        return [float(amount) for amount in text.split(",")]
    except ValueError:
        raise AgentsError(
            f"demand {text!r} cannot be read",
            "write '1,0.5' or 'doses=1,beds=0.5', each resource once",
        ) from None
