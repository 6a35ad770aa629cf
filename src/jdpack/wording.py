"""Public: numbers as pages write them. By rules of our own, never by anybody's locale."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from jdpack.market import Market


def short(number: float) -> str:
    """Four digits, or all before the point."""
    if 0.0 < abs(number) < 1e-3 or abs(number) >= 1e15:
        return f"{number:.3g}"
    return f"{number:,.4g}" if abs(number) < 1e4 else f"{number:,.0f}"


def short_down(number: float) -> str:
    """As `short`, of a number that is claimed to be at least so much."""
    return _toward(number, math.floor)


def short_up(number: float) -> str:
    """As `short`, of a number that is claimed to be at most so much."""
    return _toward(number, math.ceil)


def _toward(number: float, whole: Callable[[Fraction], int]) -> str:
    """The digits that `short` shows, the last of them rounded down or up."""
    if number == 0.0 or not math.isfinite(number):
        return short(number)
    digits = 4 if 1e-3 <= abs(number) < 1e15 else 3
    power = math.floor(math.log10(abs(number))) - digits + 1
    if abs(number) >= 1e4 and digits == 4:
        power = 0
    step = Fraction(10) ** power
    return short(float(whole(Fraction(number) / step) * step))


def price_text(market: Market, resource: int, price: float) -> str:
    """A price; nearly 0 if all that one may ask for costs next to nothing."""
    if 0.0 < price * market.resources[resource].max_demand < 1e-6 * market.max_value:
        return "nearly 0"
    return short(price)


def one_in(probability: float) -> str:
    """A small probability in words, never below what it is."""
    if not 0.0 < probability < 0.5:
        return f"{probability:.2g}"
    times = 1.0 / probability
    for name, size in [("trillion", 1e12), ("billion", 1e9), ("million", 1e6)]:
        if size <= times < 1e3 * size:
            return f"1 in {_two_digits(times / size)} {name}"
    return f"1 in {_two_digits(times)}" if times < 1e6 else f"{probability:.1e}"


def _two_digits(number: float) -> str:
    """Rounded down to two digits."""
    step = 10.0 ** max(0, math.floor(math.log10(number)) - 1)
    return f"{math.floor(number / step) * step:,.0f}"


def percent(number: float) -> str:
    """A share, to a tenth of a percent."""
    return f"{100 * number:,.1f}%" if abs(number) < 1e13 else f"{number:.3g} times 100%"


def percent_down(number: float) -> str:
    """A share of which nothing is claimed that does not hold."""
    return f"{math.floor(1000 * number) / 10:.1f}%" if abs(number) < 1e13 else percent(number)


def percent_up(number: float) -> str:
    """A share that is not exceeded."""
    return f"{math.ceil(1000 * number) / 10:.1f}%" if abs(number) < 1e13 else percent(number)


def factor_text(factor: float) -> str:
    """A scale factor of at most 1; none but 1 reads as 1."""
    if factor == 1.0:
        return "1"
    return "just under 1" if f"{factor:.4f}" == "1.0000" else f"{factor:.4f}"
