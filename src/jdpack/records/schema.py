"""Private: which columns a table of agents must have, and their types."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from jdpack.errors import AgentsError
from jdpack.market.market import Market

_REQUEST_ROWS = 2**16


def is_long(market: Market) -> bool:
    """Whether a row is a (resource, amount) pair instead of a whole option."""
    return market.columns.layout == "long"


def has_runs(market: Market) -> bool:
    """Whether an agent may have several rows."""
    return has_several(market) or is_long(market)


def has_several(market: Market) -> bool:
    """Whether an agent may have several options, of one request or of several."""
    return market.options > 1 or market.requests > 1


def most_rows(market: Market) -> int:
    """One more than the number of rows that one agent may have.

    Agents with too many requests may be clamped, so this leaves space for many more rows.
    """
    each = len(market.declared) + 1 if is_long(market) else 1
    if market.requests == 1:
        return market.options * each + 1
    return max(market.requests * market.options * each, _REQUEST_ROWS) + 1


def wanted(market: Market) -> list[str]:
    """The names of the required columns."""
    c = market.columns
    own = [c.id, c.value, *([c.group] if market.groups else [])]
    own += [c.request] if market.requests > 1 else []
    if not is_long(market):
        return [*own, *(r.column for r in market.declared)]
    return [*own, c.amount, c.resource, *([c.option] if market.options > 1 else [])]


def written_names(market: Market, own: Sequence[str], plain: Sequence[str]) -> list[str]:
    """The column names of a table that jdpack writes: id, request, option, and others.

    They are those of the table of agents, so that the two can be joined; `own` has the names of the
    other columns. If two names clash, all are plain ones, with `plain` for the other columns.
    """
    c, several = market.columns, market.options > 1
    request = market.requests > 1
    option = [c.option if is_long(market) else "option"] if several else []
    names = [c.id, *([c.request] if request else []), *option, *own]
    if len(set(names)) == len(names):
        return names
    return ["id", *(["request"] if request else []), *(["option"] if several else []), *plain]


def allocation_names(market: Market) -> list[str]:
    """The column names of an allocation."""
    what = ["share" if market.divisible else "granted"]
    return written_names(market, what, what)


def check_columns(market: Market, schema: pa.Schema, where: str) -> None:
    """Refuse a table with a missing or unknown column, or with a column of the wrong type."""
    check_names(market, schema.names, where)
    c = market.columns
    kind = schema.field(c.id).type
    if not _can_name(kind):
        raise AgentsError(f"ids are of type {kind}", "ids are whole numbers or texts")
    if market.groups:
        check_name_type(schema.field(c.group).type, f"{where}: column {c.group!r}", "group")
    if market.requests > 1:
        check_name_type(schema.field(c.request).type, f"{where}: column {c.request!r}", "request")
    for name in wanted(market):
        if (market.groups and name == c.group) or (market.requests > 1 and name == c.request):
            continue
        if name in (c.id, *((c.resource, c.option) if is_long(market) else ())):
            continue
        kind = schema.field(name).type
        if pa.types.is_boolean(kind) and name != c.value:  # asked for, or not
            continue
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not (
            pa.types.is_decimal(kind) or (pa.types.is_null(kind) and name == c.amount)
        ):
            raise AgentsError(f"{where}: column {name!r} is of type {kind}, not a number")


def check_name_type(kind: pa.DataType, what: str, thing: str) -> None:
    """Refuse a type that cannot hold names of groups, or of requests."""
    if not _can_name(kind):
        missing = "; a missing one means no group" if thing == "group" else ""
        raise AgentsError(
            f"{what} is of type {kind}, not the name of a {thing}",
            f"names of {thing}s are texts or whole numbers{missing}",
        )


def _can_name(kind: pa.DataType) -> bool:
    """Whether values of a type can be ids or names: whole numbers, texts, or nothing at all."""
    own = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_integer(own) or pa.types.is_null(own) or is_text(own)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are texts."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def check_texts(table: pa.Table | pa.RecordBatch, where: str) -> None:
    """Refuse texts that are not valid UTF-8: files and other programs may contain any bytes."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            try:
                chunk.validate(full=is_text(kind) and not _is_ascii(chunk))
            except pa.ArrowInvalid as error:
                raise AgentsError(f"{where}: column {name!r} is not text: {clean(error)}") from None


def _is_ascii(texts: pa.Array) -> bool:
    """Whether all bytes are ASCII, which is much faster to check than UTF-8."""
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        return False
    data = texts.buffers()[2]
    return not data or int(np.frombuffer(data, np.uint8).max()) < 128


def is_ignored(market: Market, name: str) -> bool:
    """Whether a column is not read: the market ignores it, or it has pandas' row numbers."""
    return name in market.columns.ignore or re.fullmatch(r"__index_level_\d+__", name) is not None


def check_names(market: Market, found: list[str], where: str) -> None:
    """Refuse a table with a missing, unknown or repeated column."""
    needed = wanted(market)
    names = [n for n in found if not is_ignored(market, n)]
    known, there = set(needed), set(names)
    missing = [name for name in needed if name not in there]
    if missing:
        raise AgentsError(
            f"{where} lacks the column {missing[0]!r}", f"it has: {', '.join(names[:20])}"
        )
    extra = [name for name in names if name not in known]
    if extra:
        raise AgentsError(
            f"{where} has a column {extra[0]!r} that the market does not name",
            market.hint(
                f"drop it, or set ignore = [{extra[0]!r}] in [agents]",
                f"drop it, or pass columns=Columns(ignore=({extra[0]!r},)) to Market",
            ),
        )
    if len(names) > len(needed):
        repeated = next(n for n, times in Counter(names).items() if times > 1)
        raise AgentsError(f"{where} has two columns named {repeated!r}")


def csv_types(market: Market) -> dict[str, pa.DataType]:
    """The types of CSV columns, so that Arrow guesses none: numbers are doubles, ids are texts."""
    c = market.columns
    types = {c.id: pa.string(), c.value: pa.float64()}
    if market.groups:
        types[c.group] = pa.string()
    if market.requests > 1:
        types[c.request] = pa.string()
    if is_long(market):
        types |= {c.option: pa.string(), c.resource: pa.string(), c.amount: pa.float64()}
    else:
        types |= {r.column: pa.float64() for r in market.declared}
    return types | {name: pa.binary() for name in c.ignore}


def clean(error: Exception) -> str:
    """The first line of an error, fit for a terminal."""
    line = str(error).split("\n")[0]
    return "".join(c if c.isprintable() else "?" for c in line[:300].rstrip("."))
