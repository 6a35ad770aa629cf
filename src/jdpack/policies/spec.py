"""Public: policies as text, in Python and on the command line.

A text is a name, or a name with parameters: `mwu-adaptive:alpha=0.05,noise=truncated-laplace`. The
keys are the fields of the policy's dataclass, and the field's type says how to read the value, so
this module works for any policy.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable
from typing import Any, Union, get_args, get_origin, get_type_hints

from jdpack.common import checks
from jdpack.errors import MarketError
from jdpack.policies.base import Policy
from jdpack.policies.registry import KINDS

_LONGEST = 24  # of a value in a label


def policy_of(given: Policy[Any] | str | None) -> Policy[Any]:
    """The policy that a caller names: an object, a text, or None for the default."""
    policy: Any = parse(given) if isinstance(given, str) else given
    if policy is None:
        policy = next(iter(KINDS.values()))()
    if type(policy) not in KINDS.values():  # its billboard could not be read back
        shown = checks.quoted(policy)
        raise MarketError(f"policy {shown} is not one of jdpack's", "such as 'newton' or Newton()")
    return policy  # type: ignore[no-any-return]


def policies_of(given: Iterable[Policy[Any] | str] | None) -> list[Policy[Any]]:
    """The policies in a list, none of them twice; without a list, all with their defaults."""
    if isinstance(given, str):
        raise MarketError(f"policies must be a list, not {given!r}", f"such as [{given!r}]")
    chosen: list[Policy[Any]] = []
    for policy in map(policy_of, KINDS if given is None else given):
        if policy in chosen:
            raise MarketError(f"policy {label_of(policy)!r} is listed twice", "name each one once")
        chosen.append(policy)
    if not chosen:
        raise MarketError("there are no policies to compare", f"known: {', '.join(KINDS)}")
    return chosen


def parse(text: str) -> Policy[Any]:
    """The policy of a text."""
    name, colon, rest = (part.strip() for part in text.partition(":"))
    shown = checks.quoted(text)
    if name not in KINDS:
        known = ", ".join(KINDS)
        raise MarketError(f"policy {checks.quoted(name)} is not known", f"one of: {known}")
    keys = keys_of(KINDS[name])
    hint = f"{name} takes no parameters in a text"
    if keys:
        hint = f"write {name}:key=value,key=value; the keys of {name} are: {', '.join(keys)}"
    data: dict[str, Any] = {}
    for pair in rest.split(",") if colon else []:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not key or not equals or not value:
            raise MarketError(f"policy {shown} cannot be read at {checks.quoted(pair)}", hint)
        if key not in keys:
            raise MarketError(f"policy {name!r} has no parameter {checks.quoted(key)}", hint)
        if key in data:
            raise MarketError(f"policy {shown} gives {key!r} twice", hint)
        data[key] = _read(keys[key], key, value, hint)
    if {"alpha", "rounds"} <= data.keys():
        raise MarketError(
            f"policy {shown} fixes the number of rounds twice, by alpha and by rounds",
            "give one of them",
        )
    return KINDS[name](**data)  # type: ignore[no-any-return]


def label_of(policy: Policy[Any]) -> str:
    """A text for a policy: its name, and the parameters that are not the defaults."""
    kind: Any = type(policy)
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    differs = [
        f"{key}={_shown(getattr(policy, key))}"
        for key, default in defaults.items()
        if getattr(policy, key) != default
    ]
    return f"{kind.name}:{','.join(differs)}" if differs else str(kind.name)


def keys_of(kind: type[Any]) -> dict[str, list[Any]]:
    """The keys that a text can give, each with the types of its values."""
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


def _read(kinds: list[Any], key: str, text: str, hint: str) -> Any:
    if types.NoneType in kinds and text.lower() == "none":
        return None
    wanted = [_READERS[kind] for kind in _READERS if kind in kinds]
    for read, _ in wanted:
        try:
            return read(text)
        except (KeyError, ValueError):
            continue
    words = " or ".join(word for _, word in wanted)
    raise MarketError(f"{key} must be {words}, not {checks.quoted(text)}", hint)


def _shown(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
