"""Public: checks of input values, with errors that name the field."""

from __future__ import annotations

import difflib
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from jdpack.errors import MarketError

LARGEST = 1e100
"""Positive numbers of a market must be below this and above its inverse."""

TEXT_MAX = 1000
"""The most characters of a name, a unit or a column."""

_QUOTED = 160  # the most characters of a value in an error
_STEERING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


class Section:
    """One table of a market file: take the typed keys out, then `close` refuses the rest."""

    def __init__(self, where: str, data: Any) -> None:
        if not isinstance(data, Mapping):
            raise MarketError(f"{where} must be a table, not {quoted(data)}")
        self.where, self.rest = where, dict(data)

    def take(self, key: str, kind: type, *default: Any) -> Any:
        if key not in self.rest:
            if default:
                return default[0]
            raise MarketError(f"{self.where} lacks {key!r}", "docs/market-file.md lists every key")
        value = self.rest.pop(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise MarketError(f"{self.where}: {key} = {quoted(value)} is not a {kind.__name__}")
        return value

    def number(self, key: str, *default: Any) -> Any:
        if isinstance(self.rest.get(key), int) and not isinstance(self.rest[key], bool):
            return finite(key, self.take(key, int))
        return self.take(key, float, *default)

    def table(self, key: str, *default: Any) -> Any:
        return self.take(key, dict, *default)

    def close(self) -> None:
        if self.rest:
            key = sorted(map(str, self.rest))[0]
            raise MarketError(
                f"{self.where} has an unknown key {key!r}", "docs/market-file.md lists every key"
            )


def is_named(given: Any) -> bool:
    """Whether numbers come with names: a dict, or a Series of pandas whose index has names."""
    return (
        hasattr(given, "keys")
        and hasattr(given, "items")
        and all(
            isinstance(key, str)
            for key in given.keys()  # noqa: SIM118 (a Series iterates values)
        )
    )


def by_name(what: str, given: Any, names: Sequence[str], *default: Any) -> Any:
    """The entries of a dict in the order of the names; anything else unchanged."""
    if not is_named(given):
        return given
    stated = dict(given.items())
    for name in stated:
        if name not in names:
            raise MarketError(
                f"{what} names {quoted(name)}, which is not a resource", closest(name, names)
            )
    for name in names:
        if name not in stated and not default:
            raise MarketError(f"{what} lacks the resource {quoted(name)}")
    return [stated.get(name, *default) for name in names]


def sequence(what: str, values: Any) -> list[Any]:
    """Any iterable as a list."""
    try:
        return list(values)
    except TypeError:
        raise MarketError(f"{what} must be a list, not {quoted(values)}") from None


def finite(what: str, value: Any) -> float:
    """A finite number."""
    try:
        if isinstance(value, bool | str):  # float() would take True and "1"
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise MarketError(f"{what} must be a number, not {quoted(value)}") from None
    if not math.isfinite(number):
        raise MarketError(f"{what} must be a finite number, not {quoted(value)}")
    return number


def positive(what: str, value: Any) -> float:
    """A number above 0."""
    number = finite(what, value)
    if not 1.0 / LARGEST < number < LARGEST:
        raise MarketError(f"{what} must be positive, not {quoted(value)}")
    return number


def count(what: str, value: Any, most: int) -> int:
    """A whole number from 1 to `most`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise MarketError(f"{what} must be a whole number, not {quoted(value)}")
    if not 1 <= int(value) <= most:
        raise MarketError(f"{what} must be from 1 to {most}, not {quoted(int(value))}")
    return int(value)


def text(what: str, value: object) -> str:
    """A text that fits on one line and has no characters that control a terminal."""
    shown = str(value)
    if len(shown) > TEXT_MAX:
        raise MarketError(f"{what} {quoted(shown)} has more than {TEXT_MAX} characters")
    if shown.isascii() and shown.isprintable():
        return shown
    for c in shown:
        if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or (
            unicodedata.bidirectional(c) in _STEERING
        ):
            raise MarketError(f"{what} {quoted(shown)} has {c!r}, which cannot be written")
    return shown


def quoted(value: object) -> str:
    """A value as errors quote it: never long, whatever its size and depth."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # more digits, or deeper, than Python writes
        return f"a value of type {type(value).__name__} that is too large to show"
    return shown if len(shown) <= _QUOTED else f"{shown[:_QUOTED]} [...]"


def closest(name: object, names: Sequence[str], also: Sequence[str] = ()) -> str:
    """A hint for a misspelled name: the closest of `names` and `also`, or all `names`."""
    folded = {n.casefold(): n for n in (*also, *names)}
    near = difflib.get_close_matches(str(name).casefold(), folded, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(repr(folded[n]) for n in near)}?"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"one of: {', '.join(names[:20])}{more}"


def check_whole(what: str, number: object, least: int) -> None:
    """Refuse anything except a whole number that is at least `least`."""
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise MarketError(f"{what} must be a whole number of at least {least}, not {number!r}")
