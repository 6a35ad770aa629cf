"""jdpack allocate: what one agent gets, and why."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from jdpack.agent.explain import explain
from jdpack.agent.own_record import read_record
from jdpack.billboard.board import Billboard
from jdpack.cli.options import AsJson, next_step
from jdpack.errors import AgentsError


def allocate_command(
    billboard: Annotated[Path, typer.Argument(help="The billboard (JSON lines). Public.")],
    agent: Annotated[str | None, typer.Option("--id", help="Your id.")] = None,
    value: Annotated[
        list[float] | None, typer.Option(help="Your value; once for each option.")
    ] = None,
    demand: Annotated[
        list[str] | None,
        typer.Option(
            help="Amounts '1,0.5' in the market's order, or 'name=amount,...'; once per option."
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="A file with your record, JSON or CSV, instead of --value and --demand."),
    ] = None,
    group: Annotated[str | None, typer.Option(help="Your group, if you are in one.")] = None,
    code: Annotated[
        str | None, typer.Option(help="The check code in your letter; finds what you mistyped.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute what you get from the public billboard, and why. Nothing is sent anywhere."""
    board = Billboard.read(billboard)
    if record is not None:
        if value or demand:
            raise AgentsError("--record replaces --value and --demand", "give one or the other")
        own = read_record(board.header.market, record)
        requests = own.requests
        values: list[float] = list(own.values)
        demands: list[Any] = list(own.demands)
        agent = agent if agent is not None else own.id
        group = group if group is not None else own.group
    else:
        values, demands, requests = value or [], [_demand(d) for d in demand or []], ()
        if board.header.market.requests > 1:
            raise AgentsError(
                "people may make several requests in this market",
                "give all of yours in a file with --record; docs/agents-table.md shows one",
            )
        if not values or not demands:
            raise AgentsError(
                "your value and your demand are needed",
                "give --value and --demand once for each option, or --record with a file",
            )
    if agent is None:
        raise AgentsError("your id is needed", "give it with --id")
    found: dict[str, Any]
    if requests:
        all_of_them = explain(board, requests=requests, agent=agent, group=group, code=code)
        found, said = {"requests": [each.to_dict() for each in all_of_them]}, str(all_of_them)
    else:
        one = explain(board, value=values, demand=demands, agent=agent, group=group, code=code)
        found, said = one.to_dict(), str(one)
    if as_json:
        print(json.dumps({**found, "private": board.header.private}))
        return
    print(said)
    next_step("jdpack verify", billboard)


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
