"""Private: the curator's report, a page that is never published."""

from __future__ import annotations

from dataclasses import dataclass, field

from markupsafe import Markup

from jdpack.billboard.board import Billboard
from jdpack.pages import chart
from jdpack.pages.billboard_page import SHOWN, figures, render, resource_rows
from jdpack.pages.board_tables import noisy_loads
from jdpack.pages.number_text import percent, percent_up, price_text, short
from jdpack.pages.table import Table
from jdpack.run.result import ExactNumbers

HALF = 20
"""Columns of decision margins on each side of 0."""


CLOSE = (0.01, 0.05, 0.1)
"""Decision margins that count as close."""


@dataclass(frozen=True)
class Margins:
    """Private: how close decisions were at the final prices, as counts of agents.

    A decision margin is (value - cost) / max(value, cost). There are 2 HALF columns from -1 to 1.
    """

    winners: tuple[int, ...]
    losers: tuple[int, ...]
    close: tuple[int, ...]
    """How many agents are within each margin of CLOSE, on either side."""


@dataclass(frozen=True)
class More:
    """Private: what a second reading of the records adds."""

    margins: Margins | None = None
    optimum: float | None = None
    """The best total value without privacy."""
    optimum_at_most: float | None = None
    """The bound that proves it."""
    no_optimum: str = ""
    """Why there is no optimum, and how to get it."""
    ledger: str = ""
    """What the ledger says, in a sentence."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each step took, by name."""


def curator_page(board: Billboard, curator: ExactNumbers, more: More | None = None) -> str:
    """The curator's report. Private."""
    margins = None if more is None else more.margins
    return render(
        "curator-report.html",
        board,
        curator=curator,
        more=more,
        loads=loads_table(board, curator),
        shares_of_best=_shares_of_best(board, curator, more),
        margins=None if margins is None else margins_table(margins),
        margins_chart=None if margins is None else _margins_chart(margins),
        batched=any(step.batch is not None for step in board.rounds),
        close=[] if margins is None else list(zip(CLOSE, margins.close, strict=True)),
        figures=figures(board),
        shown=SHOWN,
    )


def loads_table(board: Billboard, curator: ExactNumbers) -> Table:
    """True loads beside certified bounds and what the billboard shows with noise."""
    market, noisy = board.header.market, noisy_loads(board)
    shown, data = [], []
    for j, (r, load) in enumerate(zip(resource_rows(board), curator.loads, strict=True)):
        told = None if noisy is None else noisy[j] * r["factor"]
        shown.append(
            (
                r["name"],
                f"{short(r['supply'])} {r['unit']}".strip(),
                price_text(market, j, r["price"]),
                chart.bar(load) + Markup("<span>") + percent(load) + Markup("</span>"),
                "–" if told is None else percent(told),
                percent_up(r["load_at_most"]),
                percent(r["load_at_most"] - load),
            )
        )
        data.append((r["name"], r["supply"], r["price"], load, told, r["load_at_most"]))
    heads = (
        "Good", "Supply", "Final price of a unit", "True load", "With noise", "Certified, at most",
        "Room between",
    )  # fmt: skip
    columns = ("good", "supply", "price", "true_load", "load_with_noise", "load_at_most")
    return Table("Loads", heads, shown, columns, data)


def _shares_of_best(
    board: Billboard, curator: ExactNumbers, more: More | None
) -> tuple[float, float | None] | None:
    """The welfare as a fraction of the optimum, true and certified."""
    if more is None or more.optimum is None:
        return None
    certified = None if board.certificate is None else board.certificate.ratio_at_least
    return (curator.welfare / more.optimum if more.optimum > 0.0 else 1.0), certified


def margins_table(margins: Margins) -> Table:
    """How many agents have each decision margin."""
    shown, data = [], []
    for i, (winners, losers) in enumerate(zip(margins.winners, margins.losers, strict=True)):
        low, high = (i - HALF) / HALF, (i + 1 - HALF) / HALF
        ends = " to ".join(f"{end:+.0%}" if end else "0" for end in (low, high))
        shown.append((ends, f"{winners:,}", f"{losers:,}"))
        data.append((low, high, winners, losers))
    heads = ("Margin", "Get something", "Get nothing")
    return Table("Margins", heads, shown, ("from", "to", "winners", "losers"), data)


def _margins_chart(margins: Margins) -> Markup:
    close = margins.close[1]
    words = (
        f"Margins from -100% to 100%: {sum(margins.winners):,} get something, "
        f"{sum(margins.losers):,} nothing; {close:,} are within {CLOSE[1]:.0%} of the point at "
        "which their decision turns."
    )
    ends = ("-100%", "0", "+100%")
    return chart.histogram(words, margins.winners, margins.losers, ends)
