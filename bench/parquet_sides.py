"""The two sides of `bench/parquet.py`; each process imports no more than it needs."""

from __future__ import annotations

import sys
import time
from typing import Any


def run_jdpack(market: str, agents: str, out: str, engine: str, threads: str) -> None:
    """Do what `jdpack solve` does."""
    import warnings

    import jdpack

    for kind in (jdpack.SupplyWarning, jdpack.BudgetWarning):
        warnings.simplefilter("ignore", kind)
    begin = time.perf_counter()
    where = None if engine == "auto" else engine
    jdpack.solve(market, agents, output=out, engine=where, threads=int(threads))
    print(time.perf_counter() - begin)


def run_pyarrow(agents: str, out: str, at_once: str, threads: str) -> None:
    """Read everything, and write an id and a boolean for every agent."""
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet

    pa.set_cpu_count(int(threads))
    begin = time.perf_counter()

    def answer(table: Any) -> Any:
        granted = pyarrow.compute.greater(table["value"], 0.5)
        return pa.table({"id": table["id"], "granted": granted})

    if at_once == "yes":
        pyarrow.parquet.write_table(answer(pyarrow.parquet.read_table(agents)), out)
    else:
        file = pyarrow.parquet.ParquetFile(agents)
        schema = pa.schema([("id", pa.int64()), ("granted", pa.bool_())])
        with pyarrow.parquet.ParquetWriter(out, schema) as writer:
            for group in range(file.num_row_groups):
                writer.write_table(answer(file.read_row_group(group)))
    print(time.perf_counter() - begin)


if __name__ == "__main__":
    {"jdpack": run_jdpack, "pyarrow": run_pyarrow}[sys.argv[1]](*sys.argv[2:])
