"""Public: a market file with comments, from a few answers, or with other bounds."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from jdpack.errors import MarketError
from jdpack.market.file import parse
from jdpack.market.market import Market


@dataclass(frozen=True)
class Good:
    """A resource, as somebody describes it."""

    name: str
    supply: float
    max_demand: float
    unit: str = ""


@dataclass(frozen=True)
class Answers:
    """What `jdpack init` asks for."""

    name: str
    goods: Sequence[Good]
    agents: int
    exact: bool
    """Whether the exact number of agents is public."""
    options: int
    bundle_size: int
    divisible: bool
    max_value: float
    epsilon: float = 1.0
    delta: float = 1e-8
    id: str = "id"
    value: str = "value"


def market_file(answers: Answers) -> str:
    """The text of the market file."""
    neighbours = "replace-one" if answers.exact else "add-remove"
    several = answers.options > 1
    lines = [
        "# A market file of jdpack. Everything in it is public. Write it before anybody looks at",
        "# the records: a number chosen by looking at them reveals something about them.",
        "",
        f"name = {_text(answers.name)}",
        f"divisible = {str(answers.divisible).lower()}  # true: people can get part of a wish",
        "",
        "[privacy]",
        f"epsilon = {_number(answers.epsilon)}  # smaller protects better and costs more",
        f"delta = {answers.delta!r}  # far below 1 / (number of agents)",
        f"neighbours = {_text(neighbours)}  # "
        + (
            "the number of agents is public" if answers.exact else "hides the number of agents, too"
        ),
        "",
        "[value]",
        f"column = {_text(answers.value)}  # the column that says what a wish is worth",
        f"max = {_number(answers.max_value)}  # the largest value that your rules allow",
        "",
        "[agents]",
        f"count = {answers.agents}" + ("" if answers.exact else "  # at most"),
        f"id = {_text(answers.id)}  # the column with everybody's id",
        f"options = {answers.options}  # "
        + ("the most wishes of one agent, who gets at most one" if several else "one wish each"),
        f"bundle_size = {answers.bundle_size}  # the most resources that one wish may ask for",
    ]
    for good in answers.goods:
        lines += [
            "",
            "[[resource]]",
            f"name = {_text(good.name)}  # also its column in the table; or add: column = ...",
            f"supply = {_number(good.supply)}",
            f"max_demand = {_number(good.max_demand)}  # the most that one wish may ask for",
            f"unit = {_text(good.unit)}",
        ]
    return "\n".join(lines) + "\n"


_HEAD = re.compile(r"\s*\[+\s*([\w.-]+)\s*\]+")
_BOUND = re.compile(r"(\s*(max_demand|max)\s*=\s*)[^\s#]+")


def with_bounds(text: str, market: Market) -> str:
    """A market file with the bounds and the provenance of `market`, and all else as it is.

    Raises MarketError if the result would not be that market.
    """
    lines, section, at = list[str](), "", -1
    for line in text.splitlines():
        if head := _HEAD.match(line):
            section = head[1]
            at += section == "resource"
        bound = _BOUND.match(line)
        if (
            bound
            and (section, bound[2]) == ("resource", "max_demand")
            and at < len(market.declared)
        ):
            line = bound[1] + _number(market.declared[at].max_demand) + line[bound.end() :]
        elif bound and (section, bound[2]) == ("value", "max"):
            line = bound[1] + _number(market.max_value) + line[bound.end() :]
        lines.append(line)
    for entry in market.provenance[text.count("[[provenance]]") :]:
        lines += [
            "",
            "[[provenance]]  # these bounds were chosen from the records, privately, at this cost",
            f"epsilon = {_number(entry.epsilon)}",
            f"delta = {entry.delta!r}",
            f"run = {_text(entry.run)}  # in the ledger",
        ]
    new = "\n".join(lines) + "\n"
    try:
        right = Market.from_dict(parse(new)) == market
    except (MarketError, ValueError):
        right = False
    if not right:
        raise MarketError(
            "the bounds cannot be changed in this market file",
            "write [value] and each [[resource]] as a table, with max and max_demand on lines of "
            "their own; or leave out -o and change them by hand",
        )
    return new


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number(number: float) -> str:
    return repr(float(number))
