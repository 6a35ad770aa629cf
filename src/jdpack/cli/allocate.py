"""jdpack allocate: what one agent gets, and why."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from jdpack.agent.explain import explain
from jdpack.agent.in_words import tell, tell_all
from jdpack.agent.options import Request
from jdpack.agent.own_record import RecordError, read_record, typed_number
from jdpack.billboard.board import Billboard
from jdpack.cli.options import AsJson, next_step
from jdpack.common.language import Language
from jdpack.common.language import language as find_language
from jdpack.errors import AgentsError


def allocate_command(
    billboard: Annotated[Path, typer.Argument(help="The billboard (JSON lines). Public.")],
    agent: Annotated[str | None, typer.Option("--id", help="Your id.")] = None,
    value: Annotated[
        list[str] | None, typer.Option(help="Your value; repeat it for each option.")
    ] = None,
    demand: Annotated[
        list[str] | None,
        typer.Option(
            help="Amounts '1,0.5' in the market's order, or 'name=amount,...'; repeat it for each "
            "option. With decimal commas, put semicolons between amounts."
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="A file with your record, JSON or CSV, instead of --value and --demand."),
    ] = None,
    group: Annotated[str | None, typer.Option(help="Your group, if you are in one.")] = None,
    code: Annotated[
        str | None, typer.Option(help="The check code in your letter; it catches typing errors.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="The language of the answer; by default the market's first.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Work out what you get, and why, from the public billboard. Nothing leaves your machine."""
    board = Billboard.read(billboard)
    words = find_language(language or board.header.market.languages[0])
    values: list[float]
    demands: list[Any]
    requests: tuple[Request, ...]
    if record is not None:
        if value or demand:
            raise AgentsError("--record replaces --value and --demand", "give one or the other")
        try:
            own = read_record(board.header.market, record)
        except RecordError as error:
            raise AgentsError(error.said(words), error.hint) from None
        requests = own.requests
        values, demands = list(own.values), list(own.demands)
        agent = agent if agent is not None else own.id
        group = group if group is not None else own.group
    else:
        values = [typed_number(text, words) for text in value or []]
        demands, requests = [_demand(text, words) for text in demand or []], ()
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
        found, said = (
            {"requests": [each.to_dict() for each in all_of_them]},
            tell_all(all_of_them, words.code),
        )
    else:
        one = explain(board, value=values, demand=demands, agent=agent, group=group, code=code)
        found, said = one.to_dict(), tell(one, words.code)
    if as_json:
        print(json.dumps({**found, "private": board.header.private}))
        return
    print(said)
    next_step("jdpack verify", billboard)


def _demand(text: str, words: Language) -> list[float] | dict[str, float]:
    """Amounts by name or in order. With a semicolon in it, commas are decimal signs."""
    try:
        if ";" in text:
            parts = [part.rpartition("=") for part in text.split(";")]
            amounts = [typed_number(amount, words) for _, _, amount in parts]
            names = [name.strip() for name, _, _ in parts]
            if not any(sign for _, sign, _ in parts):
                return amounts
            if not all(names) or len(set(names)) < len(names):
                raise ValueError
            return dict(zip(names, amounts, strict=True))
        if "=" in text:
            pairs = re.findall(r"(.+?)=([^,=]+)(?:,|$)", text)  # a name may have commas
            if sum(len(name) + len(amount) + 2 for name, amount in pairs) != len(text) + 1:
                pairs = re.findall(r"^(.+)=([0-9]*,[0-9]+)$", text)  # one, with a decimal comma
            if not pairs:
                raise ValueError
            found = {name.strip(): typed_number(amount, words) for name, amount in pairs}
            if len(found) < len(pairs):
                raise ValueError
            return found
        if "," in text and "." not in text and words.data["number"]["decimal"] == ",":
            raise ValueError  # it may be one amount or several
        return [float(amount) for amount in text.split(",")]
    except ValueError:
        raise AgentsError(
            f"demand {text!r} cannot be read",
            "write '1,0.5' or 'doses=1,beds=0.5', each resource once; with decimal commas "
            "'1;0,5' or 'doses=1;beds=0,5'",
        ) from None
