"""Public: lines of JSON, each with its own hash and that of the previous line.

The billboard and the ledger are such chains, so a changed, lost or reordered line is detected.
`hash` is the SHA-256 of everything before it in the line; `prev` is the hash of the previous line.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from jdpack.errors import JdpackError

_HASH_KEY = ',"hash":"'
_HASH_TAIL = len(_HASH_KEY) + 64 + len('"}')


def seal(data: Mapping[str, Any], previous: str) -> str:
    """Turn data into its line, which names the previous line's hash."""
    body = json.dumps({**data, "prev": previous}, separators=(",", ":"), allow_nan=False)[:-1]
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{body}{_HASH_KEY}{digest}"}}'


def hash_of(line: str) -> str:
    """The hash at the end of a sealed line."""
    return line[-66:-2]


def is_sealed(line: str) -> bool:
    """Whether an ASCII line ends with the hash of its own text."""
    body, tail = line[:-_HASH_TAIL], line[-_HASH_TAIL:]
    return tail == f'{_HASH_KEY}{hashlib.sha256(body.encode()).hexdigest()}"}}'


def follows(line: str, before: str) -> bool:
    """Whether a sealed line names `before` as its previous line."""
    return f',"prev":"{hash_of(before)}"{_HASH_KEY}' in line


def open_line(line: str, previous: str) -> dict[str, Any]:
    """The data of a line, after checking its place in the chain.

    A JdpackError says what is wrong with "it"; the caller adds which file and line it is.
    """
    if not line.isascii():
        raise JdpackError("it is not plain ASCII")
    if not is_sealed(line):
        raise JdpackError("its text does not match its hash")
    try:
        data = json.loads(line, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise JdpackError(f"it is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise JdpackError("it is not a JSON object")
    if data.pop("prev", None) != previous:
        raise JdpackError("it does not follow the line before it")
    del data["hash"]
    return data


def _finite(text: str) -> float:
    """A finite number. JSON has no others, but Python's parser accepts NaN and 1e999."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a number")
    return number
