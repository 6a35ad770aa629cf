"""Bugs on purpose. A fuzzer that misses them would find nothing else either."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from jdpack.privacy import noise
from watch import SPARE

LEGAL, TOO_MUCH = SPARE - 2**25, SPARE + 2**25
"""The bytes that the first input takes, which is allowed, and that the bug takes after it."""


def plant(kind: str) -> None:
    """Break the reading of noise, which only a billboard that is sealed again reaches."""
    right, large = noise.from_dict, [LEGAL] if kind == "memory" else []

    def wrong(data: Mapping[str, Any]) -> Any:
        if large:
            len(b"x" * large.pop())
        if data.get("kind") == "gaussian" and not isinstance(data.get("scale"), float | list):
            if kind == "hang":
                time.sleep(3600)
            if kind == "memory":
                len(b"x" * TOO_MUCH)
            if kind == "file":
                with open(os.path.expanduser("~/.profile"), "a"):
                    pass
            if kind == "traceback":
                data.get("scale").hex()  # type: ignore[union-attr]
        return right(data)

    noise.from_dict = wrong
