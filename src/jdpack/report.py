"""Public: pages for people. One for everybody, one for the curator, each a single offline file.

The public page is a function of the billboard alone. The curator's page also shows private
numbers, which its caller hands in; it says so at its top.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2

from jdpack import fields
from jdpack.billboard import SHARE, Billboard
from jdpack.errors import BillboardError


@dataclass(frozen=True)
class Curator:
    """Private numbers of a run, for the curator's eyes only."""

    agents: int
    winners: int
    welfare: float
    loads: tuple[float, ...]
    clamped: int
    dropped: int


def public_page(board: Billboard) -> str:
    """The billboard page."""
    return _render("billboard.html", board)


def curator_page(board: Billboard, curator: Curator) -> str:
    """The curator's report. Private."""
    return _render("report.html", board, curator=curator)


def resource_rows(board: Billboard) -> list[dict[str, Any]]:
    """One row a resource: what everybody may know of it."""
    market, certificate = board.header.market, board.certificate
    rounds = list(board.rounds)
    if certificate is None or not rounds:
        raise BillboardError("the run is not finished: there is nothing to show yet")
    final = rounds[-1].prices
    return [
        {
            "name": r.name,
            "unit": r.unit,
            "supply": r.supply,
            "max_demand": r.max_demand,
            "price": market.unit_price(j, final[j]),
            "factor": certificate.factors[j] / SHARE,
            "load_at_most": certificate.load_at_most[j],
        }
        for j, r in enumerate(market.resources)
    ]


def _render(name: str, board: Billboard, **more: Any) -> str:
    template = _environment().get_template(name)
    return template.render(
        board=board,
        market=board.header.market,
        budget=board.header.budget,
        certificate=board.certificate,
        rows=resource_rows(board),
        rounds=sum(1 for _ in board.rounds),
        share=SHARE,
        **more,
    )


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jdpack", "web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = lambda number: (
        f"{number:,.4g}" if number < 1e4 else f"{number:,.0f}"
    )
    environment.filters["plain"] = lambda value: (
        value if isinstance(value, str) else fields.quoted(value)
    )
    environment.filters["percent"] = lambda number: f"{100 * number:.1f}%"
    return environment
