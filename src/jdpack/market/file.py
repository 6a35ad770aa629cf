"""Public: parsing of a market file, with limits on its size and its keys."""

from __future__ import annotations

import re
import tomllib
from typing import Any

FILE_MAX = 2**24
"""The most bytes of a market file."""

# Quoted strings and comments.
_QUOTES = re.compile(
    r""""{3}(?:[^"\\]|\\.|"(?!""))*+(?:"{3}|\Z)|'{3}(?:[^']|'(?!''))*+(?:'{3}|\Z)"""
    r"""|"(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?|\#[^\n]*+""",
    re.DOTALL,
)
# Keys with more parts than any key of a market.
_DEEP = re.compile(r'(?<![\w"-])(?:[\w"-]++[ \t]*+\.[ \t]*+){8}')


def parse(text: str) -> dict[str, Any]:
    """The tables of a TOML file.

    Long dotted keys are refused: Python's parser takes time and memory quadratic in their length.
    """
    text = text.replace("\r\n", "\n")
    bare = _QUOTES.sub(lambda quotes: "" if quotes[0].startswith("#") else '""', text)
    if _DEEP.search(bare):
        raise ValueError("a key has more parts than any key of a market")
    return tomllib.loads(text)
