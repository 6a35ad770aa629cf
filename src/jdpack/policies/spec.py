"""Public: policies as text: a name, or `mwu-adaptive:alpha=0.05,noise=...` with parameters.

The parameters are the fields of the policy's dataclass, read by their types. Nothing here knows any
particular policy.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable
from typing import Any, Union, get_args, get_origin, get_type_hints

from jdpack.errors import MarketError
from jdpack.policies.base import Policy
from jdpack.policies.registry import KINDS, from_dict

_HINT = "write a name or name:key=value,key=value, such as mwu-adaptive:alpha=0.05"
_LONGEST = 24  # characters of a value in a label


def policies_of(given: Iterable[Policy[Any] | str] | None) -> list[Policy[Any]]:
    """The policies given, as objects or text; all of them with their defaults if None."""
    if isinstance(given, str):
        raise MarketError(f"policies must be a list, not {given!r}", f"such as [{given!r}]")
    chosen: list[Policy[Any]] = []
    for one in KINDS if given is None else given:
        policy: Any = parse(one) if isinstance(one, str) else one
        if type(policy) not in KINDS.values():
            raise MarketError(f"policy {policy!r} is not one of jdpack's", "such as Newton()")
        if policy in chosen:
            raise MarketError(f"policy {label_of(policy)!r} is listed twice", "list it once")
        chosen.append(policy)
    if not chosen:
        raise MarketError("there are no policies to compare", f"known: {', '.join(KINDS)}")
    return chosen


def parse(text: str) -> Policy[Any]:
    """The policy that a text names."""
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if name not in KINDS:
        raise MarketError(f"policy {name!r} is not known", f"one of: {', '.join(KINDS)}")
    known = _parameters(KINDS[name])
    data: dict[str, Any] = {"name": name}
    for pair in rest.split(",") if colon else []:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not key or not equals or not value:
            raise MarketError(f"policy {text!r} is malformed at {pair!r}", _HINT)
        if key in data:
            raise MarketError(f"policy {text!r} sets {key!r} twice", _HINT)
        if key not in known:
            raise MarketError(
                f"policy {name!r} has no parameter {key!r}",
                f"it has: {', '.join(known)}" if known else "it has none that a text can set",
            )
        data[key] = _read(known[key], key, value)
    return from_dict(data)


def label_of(policy: Policy[Any]) -> str:
    """A policy as text: its name, and every parameter that is not at its default."""
    kind: Any = type(policy)
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    differs = [
        f"{key}={_shown(getattr(policy, key))}"
        for key, default in defaults.items()
        if getattr(policy, key) != default
    ]
    return f"{kind.name}:{','.join(differs)}" if differs else str(kind.name)


def _parameters(kind: type[Any]) -> dict[str, list[Any]]:
    """The parameters that a text can set, by name, with their types."""
    hints, found = get_type_hints(kind), {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        several = get_origin(hint) in (Union, types.UnionType)
        kinds = list(get_args(hint)) if several else [hint]
        if any(k in _READERS for k in kinds):
            found[field.name] = kinds
    return found


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_READERS: dict[Any, tuple[Any, str]] = {
    bool: (_truth, "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "a text"),
}


def _read(kinds: list[Any], key: str, text: str) -> Any:
    if types.NoneType in kinds and text.lower() == "none":
        return None
    wanted = [_READERS[kind] for kind in _READERS if kind in kinds]
    for read, _ in wanted:
        try:
            return read(text)
        except (KeyError, ValueError):
            continue
    words = " or ".join(word for _, word in wanted)
    raise MarketError(f"{key} must be {words}, not {text!r}", _HINT)


def _shown(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
