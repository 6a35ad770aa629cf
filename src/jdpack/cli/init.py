"""jdpack init: ask a few questions, and write a market file with comments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from jdpack.cli.options import next_step
from jdpack.errors import MarketError, OutputError
from jdpack.market.file import parse
from jdpack.market.market import Market
from jdpack.market.template import Answers, Good, market_file
from jdpack.storage.files import write_text

T = TypeVar("T", str, int, float)


def init_command(
    market: Annotated[Path, typer.Argument(help="The market file to write.")] = Path("market.toml"),
) -> None:
    """Ask a few questions, and write a market file with comments. Reads no records."""
    if market.exists() or market.is_symlink():
        raise OutputError(f"{str(market)!r} already exists", "give another name")
    _say(
        "Your answers are public. Take them from the rules of your market, never from the records."
    )
    name = _ask("What is the market called?", "My market")
    goods = _goods()
    agents = _ask("How many people take part (or at most how many)?", 1000)
    exact = typer.confirm("Is that exact number public?", default=True, err=True)
    options = _ask("How many wishes may one person list? They get at most one.", 1)
    bundle = 1
    if len(goods) > 1:
        bundle = _ask("How many different resources may one wish ask for together?", 1)
    divisible = typer.confirm("Can people get part of a wish?", default=False, err=True)
    max_value = _ask("What is the largest value that a wish can have (points, euros)?", 100.0)
    id = _ask("Which column of your table has the ids?", "id")
    value = _ask("Which column has the value?", "value")
    epsilon = _ask("Privacy: which epsilon? 1 is usual; smaller protects better.", 1.0)
    answers = Answers(
        name=name,
        goods=goods,
        agents=agents,
        exact=exact,
        options=options,
        bundle_size=bundle,
        divisible=divisible,
        max_value=max_value,
        epsilon=epsilon,
        delta=min(1e-8, 0.01 / max(1, agents)),
        id=id,
        value=value,
    )
    text = market_file(answers)
    Market.from_dict(parse(text))  # refuses what does not fit, before anything is written
    try:
        write_text(market, 0o644, text)
    except OSError as error:
        raise OutputError(f"cannot write {str(market)!r}: {error.strerror}") from None
    print(f"wrote {market}")
    next_step("jdpack plan", market)


def _goods() -> list[Good]:
    """The resources, until an empty name."""
    goods: list[Good] = []
    while True:
        more = " (leave it empty to finish)" if goods else ""
        name = _ask(f"Name of a resource{more}", "" if goods else "places").strip()
        if not name:
            return goods
        if name in [good.name for good in goods]:
            raise MarketError(f"two resources have the name {name!r}", "start again")
        supply = _ask(f"How much of {name} is there?", 100.0)
        most = _ask("What is the most that one wish may ask for of it?", 1.0)
        unit = _ask("What is its unit (places, kWh; leave it empty for none)?", "")
        goods.append(Good(name, supply, most, unit))


def _ask(question: str, default: T) -> T:
    kind = type(default)
    found: T = typer.prompt(question, default=default, type=kind, err=True)
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr)
