"""Public: the text of a market file, parsed with limits on what it may hold."""

from __future__ import annotations

import re
import tomllib
from typing import Any

FILE_MAX = 2**24
"""The most bytes of a market file."""


_QUOTES = re.compile(
    r""""{3}(?:[^"\\]|\\.|"(?!""))*+(?:"{3}|\Z)|'{3}(?:[^']|'(?!''))*+(?:'{3}|\Z)"""
    r"""|"(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?|\#[^\n]*+""",
    re.DOTALL,
)


_DEEP = re.compile(r'(?<![\w"-])(?:[\w"-]++[ \t]*+\.[ \t]*+){8}')
"""What stands in quotes and comments, and keys of more parts than a market has."""


def parse(text: str) -> dict[str, Any]:
    """The tables of a TOML file.

    The time and memory that Python's reader takes grow with the square of the length of a key.
    """
    text = text.replace("\r\n", "\n")
    bare = _QUOTES.sub(lambda quotes: "" if quotes[0].startswith("#") else '""', text)
    if _DEEP.search(bare):
        raise ValueError("a key has more parts than any of a market")
    return tomllib.loads(text)
