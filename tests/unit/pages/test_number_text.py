"""Numbers of a plan as text: three digits of a percentage, and rounding that never goes down."""

import math

import pytest

from jdpack.pages.number_text import rounded_up, short_percent


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0%"),
        (0.00316, "0.316%"),
        (0.02214, "2.21%"),
        (9.994, "999%"),
        (9.996, "1,000%"),
        (1234.5, "123,450%"),
        (math.inf, "unbounded"),
    ],
)
def test_a_percentage_has_three_digits_or_all_before_the_point(number, text):
    assert short_percent(number) == text


@pytest.mark.parametrize("digits", [1, 3, 4])
def test_rounding_up_never_goes_down_and_keeps_the_digits(digits):
    for number in (1e-9, 0.0443, 0.4429999, 1.0, 2.2141, 99.999, 123456.7, 1e300):
        found = rounded_up(number, digits)
        assert number <= found <= number * (1.0 + 10.0 ** (1 - digits))
        assert found == float(f"{found:.{digits - 1}e}")
    assert rounded_up(2.2141, 4) == 2.215
