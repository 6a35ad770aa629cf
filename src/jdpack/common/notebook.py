"""Public: what objects look like in a notebook, as HTML without style or script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

ROWS = 20
"""The most rows of a table."""


def sheet(
    title: str, facts: Iterable[str], head: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """A title, some facts, and the first rows of a table."""
    cells = [f"<th>{escape(name)}</th>" for name in head]
    lines = [f"<tr>{''.join(cells)}</tr>"] if rows else []
    for first, *rest in rows[:ROWS]:
        others = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        lines.append(f"<tr><th>{escape(first)}</th>{others}</tr>")
    more = f"<p>... and {len(rows) - ROWS:,} more</p>" if len(rows) > ROWS else ""
    said = "".join(f"<p>{escape(fact)}</p>" for fact in facts)
    table = f"<table>{''.join(lines)}</table>" if lines else ""
    return f"<p><strong>{escape(title)}</strong></p>{said}{table}{more}"


def typed(text: str) -> str:
    """Text as a terminal shows it."""
    return f"<pre>{escape(text)}</pre>"


def number(x: float) -> str:
    """Four digits, or all before the point."""
    return f"{x:,.0f}" if 1e4 <= abs(x) < 1e15 else f"{x:,.4g}"
