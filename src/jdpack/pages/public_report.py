"""Public: pages for people, each a single offline file.

The billboard page, for everybody, is `jdpack.pages.billboard_page`'s. Here are the reports. The
public one, for journalists and auditors, is a function of the billboard alone: every release, what
it cost, and how the certificate follows. The curator's also shows private numbers, which its caller
hands in, and says so at its top.
"""

from __future__ import annotations

import math

from markupsafe import Markup

from jdpack.billboard.board import Billboard
from jdpack.pages import board_tables, chart
from jdpack.pages.billboard_page import SHOWN, figures, promised, render
from jdpack.pages.board_tables import Spent
from jdpack.pages.number_text import percent

# --- the public report --------------------------------------------------------------------


def public_report(board: Billboard) -> str:
    """The public report: what the billboard says, for journalists and auditors."""
    spending = board_tables.spending(board)
    return render(
        "public-report.html",
        board,
        goods=board_tables.goods_table(board),
        figures=figures(board),
        shown=SHOWN,
        course=board_tables.course_table(board),
        releases=board_tables.releases_table(board, spending),
        spending=spending,
        spent_chart=_spent_chart(board, spending),
        bounds=board_tables.bounds_table(board),
        **promised(board, adds_up=spending is not None),
    )


def _spent_chart(board: Billboard, spending: list[Spent] | None) -> Markup | None:
    """The share of the budget that is spent, release by release."""
    rho = board.header.budget.rho
    if not spending or not 0.0 < rho < math.inf:
        return None
    picked = chart.thinned(len(spending), 150)
    shares = [spending[i].total / rho for i in picked]
    axis = chart.Axis(0.0, 1.05, ((0.0, "0%"), (0.5, "50%"), (1.0, "100%")))
    words = (
        f"Privacy spent, as a share of what is allowed: {percent(shares[0])} after the first "
        f"answer, {percent(shares[-1])} after the last of {len(spending):,}."
    )
    return chart.line_chart(words, "price", [i + 1 for i in picked], shares, axis, mark=1.0)


# --- the curator's report -----------------------------------------------------------------
