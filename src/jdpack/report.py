"""Public: pages for people, each a single offline file.

The billboard page, for everybody, is `jdpack.page`'s. Here is the curator's report: it also shows
private numbers, which its caller hands in, and says so at its top.
"""

from __future__ import annotations

from dataclasses import dataclass

from jdpack.billboard import Billboard
from jdpack.page import public_page, render, resource_rows

__all__ = ["Curator", "curator_page", "public_page", "resource_rows"]


@dataclass(frozen=True)
class Curator:
    """Private numbers of a run, for the curator's eyes only."""

    agents: int
    winners: int
    welfare: float
    loads: tuple[float, ...]
    clamped: int
    dropped: int


def curator_page(board: Billboard, curator: Curator) -> str:
    """The curator's report. Private."""
    return render("report.html", board, curator=curator)
