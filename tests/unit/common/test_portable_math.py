"""exp and log that give the same bits everywhere, against the decimal module."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdpack.common import portable_math


def ulps(ours: float, exact: Decimal) -> float:
    """The distance in units in the last place."""
    return float(abs(Decimal(ours) - exact) / Decimal(math.ulp(float(exact))))


def exact(function: str, x: float) -> Decimal:
    with localcontext() as context:
        context.prec = 50
        return getattr(Decimal(x), function)()


EXPONENTS = [0.0, 1.0, -1.0, 0.5, -0.5, 1e-9, -1e-300, 5e-324, math.nextafter(1, 0)]


@given(st.floats(-1.0, 1.0) | st.sampled_from(EXPONENTS))
def test_exp_is_within_four_ulps(x):
    assert ulps(float(portable_math.exp(np.array([x]))[0]), exact("exp", x)) <= 4


@given(st.floats(1e-300, 1e300) | st.integers(1, 2**53).map(float) | st.floats(0.5, 2.0))
def test_log_is_within_four_ulps(x):
    assert ulps(portable_math.log(x), exact("ln", x)) <= 4


def test_log_of_one_is_zero_and_of_powers_of_two_exact_multiples():
    assert portable_math.log(1.0) == 0.0
    for k in (-1000, -3, 1, 10, 1000):
        assert portable_math.log(2.0**k) == k * 0.6931471805599453


def test_exp_of_zero_is_one():
    assert portable_math.exp(np.zeros(3)).tolist() == [1.0, 1.0, 1.0]


@given(st.floats(-690.0, 0.0))
def test_exp_down_is_right_to_twelve_digits(x):
    found, right = float(portable_math.exp_down(np.array([x]))[0]), exact("exp", x)
    assert abs(Decimal(found) / right - 1) < Decimal("1e-12")


def test_exp_down_has_a_floor():
    low, lower = portable_math.exp_down(np.array([-690.0, -1e9])).tolist()
    assert low == lower > 0.0


def test_exp_refuses_what_it_is_not_for():
    for x in (1.0000001, -2.0, math.inf, math.nan):
        with pytest.raises(AssertionError, match="exponents in"):
            portable_math.exp(np.array([0.0, x]))


def test_exp_does_not_depend_on_how_the_numbers_stand():
    # Vector instructions take numbers in fours and eights; the leftovers must come out the same.
    x = np.linspace(-1.0, 1.0, 1003)
    whole = portable_math.exp(x)
    assert [float(portable_math.exp(np.array([v]))[0]) for v in x] == whole.tolist()
    assert portable_math.exp(x[::-1])[::-1].tolist() == whole.tolist()
    assert portable_math.exp(np.repeat(x, 2)[::2]).tolist() == whole.tolist()
    assert portable_math.exp(x[1:]).tolist() == whole[1:].tolist()


def test_the_bits_are_those_of_plain_ieee_arithmetic():
    """Against Python's own doubles, one operation at a time: nothing is fused or reordered."""
    for x in np.linspace(-1.0, 1.0, 501).tolist():
        y = 1.0
        for k in range(20, 0, -1):
            y = 1.0 + x * y / k
        assert float(portable_math.exp(np.array([x]))[0]) == y


def test_the_bits_are_these():
    """Golden values: a machine where these differ would post different prices."""
    x = np.array([-1.0, -0.3, 0.1, 0.7, 1.0])
    assert [float(y).hex() for y in portable_math.exp(x)] == [
        "0x1.78b56362cef38p-2",
        "0x1.7b4c869c37c05p-1",
        "0x1.1aec7b35a00d4p+0",
        "0x1.01c2a61268986p+1",
        "0x1.5bf0a8b145769p+1",
    ]
    assert [portable_math.log(v).hex() for v in (2.0, 3.0, 11.0, 1e-9, 4e120)] == [
        "0x1.62e42fefa39efp-1",
        "0x1.193ea7aad030ap+0",
        "0x1.32ee3b77f374bp+1",
        "-0x1.4b927f32bffb8p+4",
        "0x1.15b24e2f8f9fep+8",
    ]


@given(st.lists(st.floats(min_value=5e-324, max_value=1e308), min_size=1, max_size=100))
def test_logs_has_the_bits_of_log(numbers):
    found = portable_math.logs(np.array([numbers]))
    assert found.tolist() == [[portable_math.log(x) for x in numbers]]
