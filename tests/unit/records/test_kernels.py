"""Kernels are loaded without SciPy, and whoever needs a BLAS still gets it."""

import subprocess
import sys

CODE = """
import sys
import numpy as np
from numba import njit
from jdpack.records.hashes import mix_all

mix_all(np.arange(3, dtype=np.uint64))
assert "numba.np.arraymath" in sys.modules
print("scipy.linalg" in sys.modules)
print(njit(lambda a: a.dot(a))(np.full(3, 2.0)), "scipy.linalg" in sys.modules)
"""


def test_kernels_do_without_scipy_and_others_get_its_blas():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "12.0", "True"]
