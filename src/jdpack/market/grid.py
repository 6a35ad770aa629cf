"""Public: the units and limits of the grid of exact integers."""

from __future__ import annotations

import math
from fractions import Fraction

DEMAND_CODE_MAX = 2**16 - 1
VALUE_CODE_MAX = 2**32 - 1
PRICE_UNITS_PER_VALUE_CODE = 2**20
PRICE_CODE_MAX = 2**52  # above every value, so nobody who demands anything can pay it
SUPPLY_CODE_MAX = 2**50
AGENTS_MAX = 2**31 - 1  # sums of 32-bit value codes then fit in 63 bits
RESOURCES_MAX = 2**16  # sparse records name a resource in 16 bits

SHARE = 2**24
"""Shares of an option, weights and scale factors are whole numbers of 1/SHARE."""

BAND = 0.15
"""Two choices are close if their surpluses differ by at most this fraction of their costs."""

CURVATURE_UNIT = 2**10
"""Parts of a cost in the queries gauge and curvature are in units of 1 / CURVATURE_UNIT."""

CHANCE_UNIT = 2**14
"""Variances that coins add to a load are in units of this many squared codes."""

CHANCE_MAX = 2**16 + 1
"""The largest that one agent can add, rounded up: a quarter of the square of the largest code."""


def round_up(x: Fraction, bits: int) -> float:
    """The smallest double that is at least x > 0 and has at most `bits` significant bits."""
    shift = bits - (x.numerator.bit_length() - x.denominator.bit_length())
    scaled = math.ceil(x * Fraction(2) ** shift)  # bits or bits + 1 bits wide
    while scaled.bit_length() > bits:
        scaled, shift = -(-scaled // 2), shift - 1
    return math.ldexp(scaled, -shift)
