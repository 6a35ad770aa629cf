"""Public: exponential and logarithm with the same bits on every machine.

Anybody must be able to recompute every posted price from the billboard, but the C library's exp and
log differ in the last bit between platforms. IEEE 754 fixes +, -, *, / and sqrt exactly, so we
build the two functions that policies need from these alone. Powers are products. Sums of floats use
`math.fsum`, which is correctly rounded in any order (`sum` changed its rounding in Python 3.12).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_LN2 = 0.6931471805599453
_ROOT = 0.7071067811865476  # of 1/2
_FEW = 32  # up to here plain floats do the same arithmetic faster


def exp(x: FloatArray) -> FloatArray:
    """e^x element by element for |x| <= 1, within 4 units in the last place."""
    assert np.abs(x).max() <= 1.0, "portable_math.exp is for exponents in [-1, 1]"
    if x.size <= _FEW:
        return np.array([_exp(z) for z in x.ravel().tolist()]).reshape(x.shape)
    return np.asarray(_exp(x))


def exp_down(x: FloatArray) -> FloatArray:
    """e^x element by element for x <= 0, within a few units in the twelfth place.

    Below x = -690 the result stays at e^-690, about 1e-300.
    """
    y = exp(np.maximum(x, -690.0) / 1024.0)
    for _ in range(10):
        y = y * y
    return y


def _exp(x: Any) -> Any:
    # Horner's rule on the Taylor series; 1/21! < 2e-20. A loop takes longer.
    y = 1.0 + x / 20.0
    y = 1.0 + x * y / 19.0
    y = 1.0 + x * y / 18.0
    y = 1.0 + x * y / 17.0
    y = 1.0 + x * y / 16.0
    y = 1.0 + x * y / 15.0
    y = 1.0 + x * y / 14.0
    y = 1.0 + x * y / 13.0
    y = 1.0 + x * y / 12.0
    y = 1.0 + x * y / 11.0
    y = 1.0 + x * y / 10.0
    y = 1.0 + x * y / 9.0
    y = 1.0 + x * y / 8.0
    y = 1.0 + x * y / 7.0
    y = 1.0 + x * y / 6.0
    y = 1.0 + x * y / 5.0
    y = 1.0 + x * y / 4.0
    y = 1.0 + x * y / 3.0
    y = 1.0 + x * y / 2.0
    return 1.0 + x * y


def log(x: float) -> float:
    """Natural logarithm of x > 0, within 4 units in the last place."""
    mantissa, exponent = math.frexp(x)  # mantissa in [1/2, 1)
    if mantissa < _ROOT:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    result: float = _log(mantissa, exponent)
    return result


def logs(x: FloatArray) -> FloatArray:
    """`log` element by element, with the same bits."""
    if x.size <= _FEW:
        return np.array([log(z) for z in x.ravel().tolist()]).reshape(x.shape)
    mantissa, exponent = np.frexp(x)
    low = mantissa < _ROOT
    return np.asarray(_log(np.where(low, 2.0 * mantissa, mantissa), exponent - low))


def _log(mantissa: Any, exponent: Any) -> Any:
    z = (mantissa - 1.0) / (mantissa + 1.0)  # log(mantissa) = 2 artanh(z), |z| <= 0.172
    s = z * z
    y = s * (1.0 / 25.0) + 1.0 / 23.0  # also Horner's rule
    y = y * s + 1.0 / 21.0
    y = y * s + 1.0 / 19.0
    y = y * s + 1.0 / 17.0
    y = y * s + 1.0 / 15.0
    y = y * s + 1.0 / 13.0
    y = y * s + 1.0 / 11.0
    y = y * s + 1.0 / 9.0
    y = y * s + 1.0 / 7.0
    y = y * s + 1.0 / 5.0
    y = y * s + 1.0 / 3.0
    return exponent * _LN2 + 2.0 * z * (y * s + 1.0)


def power(x: float, exponent: float) -> float:
    """x^exponent for x > 0, within a few units in the twelfth place."""
    y, doublings = exponent * log(x), 0
    while abs(y) > 1.0:
        y, doublings = y / 2.0, doublings + 1
    result: float = _exp(y)
    for _ in range(doublings):
        result *= result
    return result
