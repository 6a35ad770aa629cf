"""Public: the public report, for journalists and auditors.

It is a function of the billboard alone, and shows every release, its cost, and how the certificate
follows from them.
"""

from __future__ import annotations

import math

from markupsafe import Markup

from jdpack.billboard.board import Billboard
from jdpack.pages import board_tables, chart
from jdpack.pages.billboard_page import SHOWN, figures, promised, render
from jdpack.pages.board_tables import Spent
from jdpack.pages.number_text import percent


def public_report(board: Billboard) -> str:
    """The public report as HTML."""
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
    """The fraction of the budget that is spent, release by release."""
    rho = board.header.budget.rho
    if not spending or not 0.0 < rho < math.inf:
        return None
    picked = chart.thinned(len(spending), 150)
    spent = [spending[i].total / rho for i in picked]
    axis = chart.Axis(0.0, 1.05, ((0.0, "0%"), (0.5, "50%"), (1.0, "100%")))
    words = (
        f"Privacy spent, as a fraction of what is allowed: {percent(spent[0])} after the first "
        f"answer, {percent(spent[-1])} after the last of {len(spending):,}."
    )
    return chart.line_chart(words, "price", [i + 1 for i in picked], spent, axis, mark=1.0)
