"""Kernels: a first run waits for the compiler, so a small market must need few kernels."""

import os
import subprocess
import sys

RUN = """
import numpy as np
from jdpack import Market, solve

rng = np.random.default_rng(0)
market = Market(supply=[700.0] * 3, max_demand=1.0, max_value=1.0, agents=2000)
solve(market, values=rng.random(2000), demands=rng.random((2000, 3)), epsilon=10.0, delta=1e-6)
"""


def test_a_small_dense_market_compiles_few_kernels(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-W", "ignore", "-c", RUN], env=environment, check=True)
    compiled = sorted(path.name.split("-")[0] for path in tmp_path.rglob("*.nbi"))
    assert "best_response._play_dense" in compiled
    assert len(compiled) <= 10, compiled
    wrong = [name for name in compiled if "sparse" in name or "several" in name or "texts" in name]
    assert not wrong, "kernels for other markets"
    assert len(list(tmp_path.rglob("*.nbc"))) == len(compiled), "kernels for two kinds of arguments"
