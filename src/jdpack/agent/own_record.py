"""Public: one person's own record from a small file: JSON, or CSV in the layout of the market.

`pages/web/own_record.js` does the same on the billboard page. The tests check that both read the
same files alike and refuse the others in the same words.
"""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdpack.agent.options import Request, closest
from jdpack.common.language import Language, english
from jdpack.errors import AgentsError
from jdpack.market.market import Market
from jdpack.storage.files import read_regular

BYTES_MAX = 65536

# What browsers trim.
_SPACE = "\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_BLANKS = re.compile(f"[{_SPACE}]*")
_JSON = re.compile(rf"[{_SPACE}]*[{{[]")
_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


_TYPED = re.compile(r"([0-9]+(\.[0-9]*|,[0-9]+)?|[.,][0-9]+)([eE][+-]?[0-9]+)?")


class RecordError(AgentsError):
    """A file that does not hold a record of this market.

    Args:
        key: the text of `jdpack.common.language` that says what is wrong.
        hint: what to do, for the command line.
        given: what the text needs.
    """

    def __init__(self, key: str, hint: str = "", **given: object) -> None:
        self._key, self._given = f"record.{key}", given
        super().__init__(self.said(english()), hint)

    def __reduce__(self) -> tuple[type[AgentsError], tuple[str, str]]:
        return AgentsError, (self.message, self.hint)

    def said(self, language: Language) -> str:
        """What is wrong, in a language."""
        return language.text(self._key, **self._given)


@dataclass(frozen=True)
class Record:
    """A person's own record."""

    id: str | None
    """None if the file has no id."""
    values: tuple[float, ...]
    """The value of each option."""
    demands: tuple[tuple[float, ...], ...]
    """For each option, one amount per resource."""
    group: str | None = None
    """None if it is in no group, or if the market has none."""
    requests: tuple[Request, ...] = ()
    """If agents may make several requests: all of them, in the order of the file. Then `values` and
    `demands` are empty."""


def read_record(market: Market, path: str | Path) -> Record:
    """Read a record from a file."""
    try:
        return parse(market, read_regular(path, BYTES_MAX).decode("utf-8-sig"))
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise RecordError("too_large") from None
        why = error.strerror or error
        raise AgentsError(f"cannot read the record in {str(path)!r}: {why}") from None
    except UnicodeDecodeError:
        raise RecordError("not_utf8") from None


def parse(market: Market, text: str) -> Record:
    """The record in a text."""
    text = text.removeprefix("\ufeff")
    if _BLANKS.fullmatch(text):
        raise RecordError("empty")
    record = _from_json(market, text) if _JSON.match(text) else _from_csv(market, text)
    for values in [record.values, *(request.value for request in record.requests)]:
        count = len(values)  # type: ignore[arg-type]
        if count > market.options:
            key = "options" if market.requests == 1 else "request_options"
            raise RecordError(key, count=count, most=market.options)
    return record


def typed_number(text: str, language: Language) -> float:
    """A number as a person types it in a language: a point or a comma is the decimal sign.

    The language's own mark for thousands is refused before three digits, where it could mean
    thousands. `pages/web/words.js` does the same.
    """
    plain = _trimmed(text)
    found = number(plain.replace(",", ".", 1)) if _TYPED.fullmatch(plain) else None
    if found is None:
        raise AgentsError(f"{text!r} is not a number", "write it like 1250.5 or 1250,5")
    sign = re.fullmatch(r"[1-9][0-9]{0,2}([.,])[0-9]{3}", plain)
    if sign is not None and sign[1] == language.data["number"]["group"]:
        raise AgentsError(
            f"{text!r} may mean {found:g} or {plain.replace(sign[1], '')}",
            "write it without a mark for thousands",
        )
    return found


def _trimmed(text: str) -> str:
    return re.sub(f"^[{_SPACE}]+|[{_SPACE}]+$", "", text)


def number(text: str) -> float | None:
    """A number in a file: digits, a point, perhaps an exponent; otherwise None."""
    plain = _trimmed(text)
    found = float(plain) if _NUMBER.fullmatch(plain) else math.inf
    return found if found < math.inf else None


# --- JSON ---------------------------------------------------------------------------------


def _from_json(market: Market, text: str) -> Record:
    def refuse(_: str) -> float:
        raise ValueError

    try:  # all numbers are doubles, as in a browser
        data = json.loads(text, parse_int=float, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise RecordError("not_json") from None
    if not isinstance(data, dict):
        raise RecordError("one_record", example='{"id": ..., ...}')
    own = ["id", "group"] if market.groups else ["id"]
    if market.requests > 1:
        _known(data, [*own, "requests"])
        each = data.get("requests")
        if not isinstance(each, list) or not each:
            raise RecordError("requests_list")
    else:
        each = [data]
    lists = [_json_options(given, own if market.requests == 1 else ["request"]) for given in each]
    id = _as_text(data.get("id"))
    if id is not None and not isinstance(id, str):
        raise RecordError("id_type")
    group = _json_group(data) if market.groups else None
    found = [[_json_option(market, option) for option in options] for options in lists]
    if market.requests == 1:
        return _record(id, found[0], group)
    names = [_json_name(given) for given in each]
    return _with_requests(id, list(zip(names, found, strict=True)), group)


def _json_options(data: Any, own: list[str]) -> list[Any]:
    """The options of a record or of a request."""
    if not isinstance(data, dict):
        raise RecordError("each_request")
    several = "options" in data
    _known(data, [*own, "options"] if several else [*own, "value", "demand"])
    options = data["options"] if several else [{k: v for k, v in data.items() if k not in own}]
    if not isinstance(options, list) or not options:
        raise RecordError("options_list")
    return options


def _json_name(data: dict[str, Any]) -> str:
    name = _as_text(data.get("request"))
    if not isinstance(name, str) or name == "":
        raise RecordError("request_name", example='{"request": ..., ...}')
    return name


def _as_text(given: Any) -> Any:
    """A whole number as text; anything else unchanged."""
    whole = isinstance(given, float) and given.is_integer() and abs(given) < 2**53
    return str(int(given)) if whole else given


def _json_group(data: dict[str, Any]) -> str | None:
    if "group" not in data:
        raise RecordError("lacks_group")
    group = data["group"]
    if group is not None and not isinstance(group, str):
        raise RecordError("group_type")
    return group or None


def _json_option(market: Market, option: Any) -> tuple[float, list[float]]:
    if not isinstance(option, dict):
        raise RecordError("each_option")
    _known(option, ["value", "demand"])
    value = _json_number(option.get("value"), None)
    asked, m = option.get("demand"), len(market.declared)
    if isinstance(asked, list):
        if len(asked) != m:
            raise RecordError("amounts", count=len(asked), goods=m)
        return value, [_json_number(a, market.declared[j].name) for j, a in enumerate(asked)]
    if not isinstance(asked, dict):
        raise RecordError("lacks_demand", example='{"…": 1, ...}')
    names, columns = [r.name for r in market.declared], [r.column for r in market.declared]
    demand, seen = [0.0] * m, set()
    for name, amount in asked.items():
        if name not in names and name not in columns:
            raise RecordError("no_good", closest(market, name), name=name)
        j = names.index(name) if name in names else columns.index(name)
        if j in seen:
            raise RecordError("good_twice", name=names[j])
        seen.add(j)
        demand[j] = _json_number(amount, market.declared[j].name)
    return value, demand


def _json_number(given: Any, good: str | None) -> float:
    """A number; `good` is the name of what it is an amount of, or None for a value."""
    if not isinstance(given, float) or not 0.0 <= given < math.inf:
        if good is None:
            raise RecordError("value_number")
        raise RecordError("amount_number", good=good)
    return given


def _known(data: dict[str, Any], keys: list[str]) -> None:
    for key in data:
        if key not in keys:
            raise RecordError("unknown_key", name=key, keys=", ".join(keys))


def _with_requests(
    id: str | None,
    requests: Sequence[tuple[str, Sequence[tuple[float, list[float]]]]],
    group: str | None,
) -> Record:
    names = [name for name, _ in requests]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise RecordError("same_name", name=name)
    found = (
        Request(name, tuple(v for v, _ in options), tuple(tuple(d) for _, d in options))
        for name, options in requests
    )
    return Record(id, (), (), group, tuple(found))


def _record(
    id: str | None, options: Sequence[tuple[float, list[float]]], group: str | None
) -> Record:
    return Record(id, tuple(v for v, _ in options), tuple(tuple(d) for _, d in options), group)


# --- CSV ----------------------------------------------------------------------------------


def _from_csv(market: Market, text: str) -> Record:
    head, *rows = _csv_rows(text)
    columns, long = market.columns, market.columns.layout == "long"
    if not rows:
        raise RecordError("no_rows")
    names = [columns.value, columns.resource, columns.amount, columns.option]
    if not long:
        names = [columns.value, *(r.column for r in market.declared)]
    if market.groups:
        names.append(columns.group)
    if market.requests > 1:
        names.append(columns.request)
    for name in head:
        if name != columns.id and name not in names and name not in columns.ignore:
            listed = ", ".join([columns.id, *names[:20]])
            raise RecordError("unknown_column", f"its columns are: {listed}", name=name)
    for name in names:
        if name not in head and not (long and name == columns.option):
            raise RecordError("lacks_column", name=name)
    for i, name in enumerate(head):
        if head.index(name) != i:
            raise RecordError("column_twice", name=name)
    for row in rows:
        if len(row) != len(head):
            raise RecordError("fields", count=len(row), first=len(head))
    cells = [dict(zip(head, row, strict=True)) for row in rows]
    ids = {row[columns.id] for row in cells} if columns.id in head else {None}
    if len(ids) > 1:
        raise RecordError("several_people")
    groups = {row[columns.group] for row in cells} if market.groups else {""}
    if len(groups) > 1:
        raise RecordError("several_groups")

    def options_of(rows: list[dict[str, str]]) -> list[tuple[float, list[float]]]:
        return _long(market, rows) if long else [_wide(market, row) for row in rows]

    id, group = ids.pop(), groups.pop() or None
    if market.requests == 1:
        return _record(id, options_of(cells), group)
    requests: list[tuple[str, list[dict[str, str]]]] = []
    for cell in cells:
        name = cell[columns.request]
        if name == "":
            raise RecordError("lacks_request")
        if not requests or requests[-1][0] != name:
            requests.append((name, []))
        requests[-1][1].append(cell)
    return _with_requests(id, [(name, options_of(rows)) for name, rows in requests], group)


def _wide(market: Market, row: dict[str, str]) -> tuple[float, list[float]]:
    amounts = [_csv_number(row[r.column], r.name) for r in market.declared]
    return _csv_number(row[market.columns.value], None), amounts


def _long(market: Market, rows: list[dict[str, str]]) -> list[tuple[float, list[float]]]:
    columns = [r.column for r in market.declared]
    options: dict[str, tuple[float, list[float]]] = {}
    seen = set()
    for row in rows:
        key = row.get(market.columns.option, "")
        value = _csv_number(row[market.columns.value], None)
        stated, demand = options.setdefault(key, (value, [0.0] * len(columns)))
        if stated != value:
            raise RecordError("two_values")
        name = row[market.columns.resource]
        if name == "":
            continue
        if name not in columns:
            raise RecordError("no_good", closest(market, name), name=name)
        j = columns.index(name)
        if (key, j) in seen:
            raise RecordError("good_twice", name=name)
        seen.add((key, j))
        demand[j] = _csv_number(row[market.columns.amount], market.declared[j].name)
    return list(options.values())


def _csv_number(text: str, good: str | None) -> float:
    """A number; `good` is what it is an amount of, which may be blank; None for a value."""
    if good is not None and _BLANKS.fullmatch(text):
        return 0.0
    found = number(text)
    if found is None and good is None:
        raise RecordError("value_text", text=text)
    if found is None:
        raise RecordError("amount_text", good=good, text=text)
    return found


def _csv_rows(text: str) -> list[list[str]]:
    """Rows of fields separated by commas, as in RFC 4180, without blank rows."""
    rows: list[list[str]] = [[]]
    field, quoted, closed, at = "", False, False, 0
    while at < len(text):
        c, pair = text[at], text[at : at + 2]
        at += 1
        if quoted:
            if c != '"':
                field += c
            elif pair == '""':
                field += c
                at += 1
            else:
                quoted, closed = False, True
        elif c == '"' and field == "" and not closed:
            quoted = True
        elif c in ",\n\r":
            rows[-1].append(field)
            field, closed = "", False
            if c != ",":
                rows.append([])
                at += pair == "\r\n"
        else:
            field += c
    if quoted:
        raise RecordError("quote")
    rows[-1].append(field)
    full = [row for row in rows if row != [""]]
    if not full:
        raise RecordError("empty")
    if len(full[0]) == 1 and re.search("[;\t]", full[0][0]):
        raise RecordError("commas")
    return full
