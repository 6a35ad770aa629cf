"""Conversions between NumPy and Arrow: the same as PyArrow's, but without pandas."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from jdpack.records.arrow import to_arrow, to_numpy

KINDS = ["bool", "int8", "int32", "int64", "uint16", "uint64", "float32", "float64"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100])
def test_there_and_back(kind, length):
    numbers = np.random.default_rng(length).integers(0, 2 if kind == "bool" else 100, length)
    numbers = numbers.astype(kind)
    array = to_arrow(numbers)
    array.validate(full=True)
    assert array.equals(pa.array(numbers))
    for start in {0, 1, 3, length // 2, length} - set(range(length + 1, 9)):
        for of in (array.slice(start), pa.array(numbers).slice(start, 2)):
            found = to_numpy(of)
            assert found.dtype == kind and found.tolist() == of.to_pylist()
    assert to_arrow(numbers[::-1]).to_pylist() == numbers[::-1].tolist()
    assert to_numpy(pa.array([], array.type)).dtype == kind


SOLVE = """
import sys, warnings
import jdpack
warnings.simplefilter("ignore")
market = jdpack.Market(supply=[9.0], max_demand=1.0, max_value=1.0, agents=9, names=["beds"])
jdpack.solve(market, "agents.parquet", epsilon=1.0, delta=1e-6, output="out", force=True)
print("pandas" in sys.modules)
import pandas
print("pandas" in sys.modules)
"""


def test_a_run_from_file_to_file_does_without_pandas(tmp_path):
    """pandas would take 50 MB. The last line is the control: pandas is installed."""
    columns = {"id": range(9), "value": [0.5] * 9, "beds": [1.0] * 9}
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "agents.parquet")
    run = [sys.executable, "-c", SOLVE]
    done = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"]
