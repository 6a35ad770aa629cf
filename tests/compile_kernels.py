"""Compiles the kernels that the tests use, once, before several processes run the tests.

A script for `make test`. Without it every process compiles the kernels that it meets, most of them
at the same time as the others. A kernel that this script misses is compiled where it is met.
"""

import itertools
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet

from helpers import LONG, long_table, random_market, random_records, wide_table
from jdpack import MwuOnline, Newton, solve
from jdpack.audit.people import People, example_groups, example_requests, example_totals
from jdpack.audit.recording import Setting, record
from jdpack.audit.scripted_policy import Script, known
from jdpack.engines import shard
from jdpack.errors import JdpackWarning

AGENTS = 200


def run(folder: Path, sparse: bool, options: int, texts: bool) -> None:
    """Small runs on one market: from arrays and from a file, in memory and on disk."""
    rng = np.random.default_rng(1)
    layout = {"columns": LONG} if sparse else {}
    market = random_market(
        rng, agents=AGENTS, sparse=sparse, options=options, divisible=texts, **layout
    )
    ids = [f"agent {i}" if texts else i for i in range(AGENTS)]
    records = random_records(rng, market, ids=ids)
    path = folder / "agents.parquet"
    pyarrow.parquet.write_table((long_table if sparse else wide_table)(records), path)
    budget = {"epsilon": 5.0, "delta": 1e-6, "seed": 1}
    for policy in (Newton(), MwuOnline(batch=25)):
        solve(market, **records.arrays(), policy=policy, force=True, **budget)
        for engine in ("memory", "mapped"):
            result = solve(market, path, policy=policy, engine=engine, force=True, **budget)
            result.engine.digest()
            result.engine.digest("sha-256")


def bounded() -> None:
    """Small runs on markets with bounds on totals, groups and people, as in every audit."""
    with known(Script):
        for market in (
            example_totals(agents=40, options=2),
            *(example_groups(agents=40, wide=wide) for wide in (False, True)),
            *(example_requests(agents=40, wide=wide) for wide in (False, True)),
        ):
            record(Setting(Script(), 1.0, 1e-6, clamp=True), People.invented(market))


if __name__ == "__main__":
    warnings.simplefilter("ignore", JdpackWarning)
    shard._SCREENED = 1  # as if the markets were large
    with tempfile.TemporaryDirectory() as folder:
        for kind in itertools.product([False, True], [1, 2], [False, True]):
            run(Path(folder), *kind)
    bounded()
