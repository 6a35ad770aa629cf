"""Public: a table on a page, and the same numbers in full as CSV.

The page itself holds the CSV, as text to copy and as a link that saves it. Neither needs a script
or a server.
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
"""The page shows at most this many rows; the CSV has all of them."""

_FORMULA = ("=", "+", "-", "@")
_NUMBER = re.compile(r"[+-][0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
_TEXT = 2**16  # characters of CSV that the page shows; a longer CSV can only be saved


def csv_of(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV. A text that a spreadsheet would take for a formula begins with an apostrophe.

    The organiser chooses the names, but people who open the file trust jdpack.
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
    """A table. `shown` has its cells as text for people; `data` has those of the CSV."""

    name: str
    """What the table is about; also the name of the saved file."""
    heads: tuple[str, ...]
    shown: Sequence[tuple[str | Markup, ...]]
    columns: tuple[str, ...]
    """The names of the columns of the CSV."""
    data: Sequence[tuple[Any, ...]]
    """Exact numbers; None where a number does not exist."""
    words: tuple[int, ...] = ()
    """The shown columns, apart from the first, that hold words instead of numbers."""

    @property
    def rows(self) -> Sequence[tuple[str | Markup, ...]]:
        """The first rows."""
        return self.shown[:ROWS]

    @property
    def left(self) -> int:
        """The number of rows that only the CSV has."""
        return len(self.data) - len(self.rows)

    @property
    def csv(self) -> str:
        return csv_of(self.columns, self.data)

    @property
    def text(self) -> str | None:
        """The CSV, if it is short enough to show."""
        text = self.csv
        return text if len(text) <= _TEXT else None

    @property
    def file(self) -> str:
        """The name of the saved file."""
        return "-".join(self.name.lower().replace(",", "").split()) + ".csv"

    @property
    def link(self) -> str:
        """The CSV as a data URL, which loads nothing."""
        code = base64.b64encode(self.csv.encode()).decode()
        return f"data:text/csv;charset=utf-8;base64,{code}"
