"""All targets by name. Code makes the seeds; there is no corpus of files."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import billboards
import others


class Target(NamedTuple):
    """A part of jdpack, and what to feed it."""

    seeds: Callable[[], list[bytes]]
    mutate: Callable[[bytes, int, Random], bytes] | None
    """May raise: then the input is changed byte by byte."""
    run: Callable[[bytes, str], None]


TARGETS: dict[str, Target] = {
    "billboard": Target(billboards.seeds, billboards.mutate, billboards.run),
    "market": Target(others.market_seeds, others.market_mutate, others.market_run),
    "csv": Target(others.csv_seeds, others.csv_mutate, others.csv_run),
    "parquet": Target(others.parquet_seeds, others.parquet_mutate, others.parquet_run),
    "table": Target(others.table_seeds, None, others.table_run),
    "ledger": Target(others.ledger_seeds, others.ledger_mutate, others.ledger_run),
    "runfile": Target(others.runfile_seeds, others.runfile_mutate, others.runfile_run),
}
