"""Changes JSON and hash-chained lines, and seals the lines again, so readers get past the hash."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from jdpack.storage import hash_chain

ODD: list[Any] = [
    None,
    True,
    "",
    "x" * 5000,
    "\x1b[31m\n\x00",
    "\u202e\ud800",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "{{ 7 * 7 }}{% include '/etc/passwd' %}",
    "__class__",
    [],
    {},
    [[]],
    {"a": {"b": 1}},
    *(0, 1, -1, 2, 3, 1000, 2**16, 2**24, 2**31, 2**39, 2**52, 2**53, 2**63, 2**64, -(2**64)),
    10**400,
    *(0.0, -0.0, 0.5, 1.0, 5e-324, 1e-300, 1e-100, 1e15, 1e99, 1e100, 1e308, -1e308),
]


def changed(value: Any, random: Random) -> Any:
    """The JSON value with one change somewhere."""
    if isinstance(value, dict | list) and value and random.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = random.choice(keys)
        other: Any = dict(value) if isinstance(value, dict) else list(value)
        what = random.random()
        if what < 0.08:
            del other[key]
        elif what < 0.12 and isinstance(other, dict):
            other[random.choice(["", "x", "name", "__class__", "batch"])] = other.pop(key)
        elif what < 0.16 and isinstance(other, dict):
            other[random.choice(["x", "batch", "local", "alpha"])] = random.choice(ODD)
        elif what < 0.2 and isinstance(other, list):
            other = other * random.choice([2, 3, 100])
        else:
            other[key] = changed(value[key], random)
        return other
    if random.random() < 0.03:
        nested: Any = []
        for _ in range(random.choice([10, 200, 900])):
            nested = [nested]
        return nested
    if isinstance(value, int | float) and not isinstance(value, bool) and random.random() < 0.5:
        return random.choice([value + 1, value - 1, -value, value * 2, value / 2, value * 1e9])
    return random.choice(ODD)


def sealed(records: list[dict[str, Any]]) -> str:
    """The text of a chain of records."""
    lines, before = [], ""
    for record in records:
        data = {key: value for key, value in record.items() if key not in ("prev", "hash")}
        line = hash_chain.seal(data, before)
        before = hash_chain.hash_of(line)
        lines.append(line + "\n")
    return "".join(lines)


def chain_changed(text: str, random: Random) -> str:
    """A chain of lines with some changes, sealed again."""
    records = [json.loads(line) for line in text.splitlines()]
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        at = random.randrange(len(records)) if random.random() < 0.7 else 0
        what = random.random()
        if what < 0.05 and len(records) > 1:
            del records[at]
        elif what < 0.1:
            records.insert(random.randrange(len(records) + 1), records[at])
        elif what < 0.13:
            del records[at + 1 :]
        else:
            record = changed(records[at], random)
            records[at] = record if isinstance(record, dict) else {"type": record}
    return sealed(records)
