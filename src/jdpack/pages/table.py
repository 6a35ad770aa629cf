"""Public: a table of a page: for people, and the same numbers in full as CSV, to copy or to keep.

The CSV is in the page itself, as text and as a link that saves it, so neither needs a script or a
server.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

ROWS = 500
"""The most rows that people see; the CSV has them all."""

_FORMULA = ("=", "+", "-", "@")
_NUMBER = re.compile(r"[+-][0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
_TEXT = 2**16  # characters of CSV that are shown to copy; more than that is only saved


def csv_of(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV. What spreadsheets would take for a formula begins with an apostrophe.

    Names are the organiser's, and whoever opens the file trusts jdpack.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_inert(cell) for cell in row] for row in rows)
    return text.getvalue()


def _inert(cell: Any) -> Any:
    if not isinstance(cell, str) or cell.lstrip()[:1] not in _FORMULA:
        return cell
    return cell if _NUMBER.fullmatch(cell) else f"'{cell}"


@dataclass(frozen=True)
class Table:
    """A table. `shown` are its cells for people, a text each; `data` those of the CSV."""

    name: str
    """What it is about, in words; also the name of the file that is saved."""
    heads: tuple[str, ...]
    shown: Sequence[tuple[str | Markup, ...]]
    columns: tuple[str, ...]
    """The names of the columns of the CSV."""
    data: Sequence[tuple[Any, ...]]
    """Numbers as they are; what does not exist is None."""
    words: tuple[int, ...] = ()
    """The columns that people see with words in them; others have numbers, or the first names."""

    @property
    def rows(self) -> Sequence[tuple[str | Markup, ...]]:
        """The first rows."""
        return self.shown[:ROWS]

    @property
    def left(self) -> int:
        """How many rows are in the CSV alone."""
        return len(self.data) - len(self.rows)

    @property
    def csv(self) -> str:
        return csv_of(self.columns, self.data)

    @property
    def text(self) -> str | None:
        """The CSV, if it is short enough to be shown."""
        text = self.csv
        return text if len(text) <= _TEXT else None

    @property
    def file(self) -> str:
        """The name of the file that is saved."""
        return "-".join(self.name.lower().replace(",", "").split()) + ".csv"

    @property
    def link(self) -> str:
        """The CSV as an address of its own: nothing is loaded."""
        code = base64.b64encode(self.csv.encode()).decode()
        return f"data:text/csv;charset=utf-8;base64,{code}"
