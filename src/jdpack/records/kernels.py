"""Private: `njit`, which compiles kernels.

When the first kernel of a process is loaded, numba looks for a BLAS. It imports SciPy's linear
algebra for that, if it is installed, which takes longer than loading all kernels of a run. No
kernel of jdpack needs a BLAS, so the look is put off until somebody else's kernel does.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from numba import njit

__all__ = ["njit"]


def _put_off() -> None:
    linalg: Any = import_module("numba.np.linalg")
    look, linalg.ensure_blas = linalg.ensure_blas, lambda: None
    try:
        arraymath: Any = import_module("numba.np.arraymath")  # which looks when it is imported
    finally:
        linalg.ensure_blas = look
    arraymath.ensure_blas = look


if find_spec("scipy") is not None:
    with contextlib.suppress(ImportError, AttributeError):  # another numba: then it looks at once
        _put_off()
