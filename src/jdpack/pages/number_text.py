"""Public: numbers as text, by our own rules, never by anybody's locale."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal

from jdpack.market.market import Market
from jdpack.market.totals import Total


def short(number: float) -> str:
    """Four digits, or all before the point; three if the number is very small or very large."""
    return _written(_near(number, ROUND_HALF_UP))


def short_down(number: float) -> str:
    """As `short`, but rounded down: for lower bounds."""
    near = _near(number, ROUND_HALF_UP)
    return _written(_near(number, ROUND_FLOOR) if near > number else near)


def short_up(number: float) -> str:
    """As `short`, but rounded up: for upper bounds."""
    near = _near(number, ROUND_HALF_UP)
    return _written(_near(number, ROUND_CEILING) if near < number else near)


def _near(number: float, rounding: str) -> float:
    """The number, rounded to the digits that are shown."""
    size = abs(number)
    if not 0.0 < size < math.inf:
        return number
    if 1e4 <= size < 1e15:
        return float(Decimal(number).to_integral_value(rounding))
    return _rounded(number, 4 if 1e-3 <= size < 1e4 else 3, rounding)


def _rounded(number: float, digits: int, rounding: str) -> float:
    return float(Context(prec=digits, rounding=rounding).create_decimal(Decimal(number)))


def rounded_up(number: float, digits: int) -> float:
    """The number rounded up to this many significant digits."""
    return _rounded(number, digits, ROUND_CEILING)


def _written(number: float) -> str:
    if 0.0 < abs(number) < 1e-3 or abs(number) >= 1e15:
        return f"{number:.3g}"
    return f"{number:,.4g}" if abs(number) < 1e4 else f"{number:,.0f}"


def exactly(number: float) -> str:
    """All digits, for a number that is part of a promise."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def price_text(market: Market, resource: int, price: float) -> str:
    """A price, or "nearly 0" if even the largest demand costs almost nothing."""
    if 0.0 < price * market.resources[resource].max_demand < 1e-6 * market.max_value:
        return "nearly 0"
    return short(price)


def total_text(market: Market, total: Total) -> str:
    """A bound on a total, as in "40 kWh of 8 h, 9 h and 22 more together"."""
    names = [market.resources[j].name for j in total.resources]
    amount = f"{short(total.amount)} {market.resources[total.resources[0]].unit}".rstrip()
    if len(names) == 1:
        return f"{amount} of {names[0]}"
    if len(names) > 4:
        names = [*names[:2], f"{len(names) - 2:,} more"]
    return f"{amount} of {', '.join(names[:-1])} and {names[-1]} together"


WHOLE_PERSON = "everything that one person asked for, however many requests"
"""Who is protected where people make several requests."""


def person_texts(market: Market, who: str = "you", whose: str = "your") -> dict[str, str]:
    """What one person may ask for in all: a sentence without its end for each bound there is."""
    person = market.person
    found = {"requests": f"{who} may make {person.requests:,} requests"}
    if person.max_value is not None:
        found["max_value"] = (
            f"the values of {whose} requests may add up to {short(person.max_value)}"
        )
    if person.bundle_size is not None:
        found["bundle_size"] = f"{whose} requests may touch {person.bundle_size:,} goods"
    units = {r.name: r.unit for r in market.declared}
    each = [
        f"{f'{short(most)} {units[name]}'.rstrip()} of {name}"
        for name, most in person.max_demand.items()
    ]
    each = [*each[:3], f"so on for {len(each) - 3:,} more"] if len(each) > 4 else each
    if each:
        found["max_demand"] = f"{whose} requests may ask for {_listed(each)}"
    if totals := [total_text(market, total) for total in market.person_limits.totals]:
        found["max_total"] = f"{whose} requests may ask for {_listed(totals)}"
    return found


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def one_in(probability: float) -> str:
    """A small probability in words, never understated."""
    if not 0.0 < probability < 0.5:
        return f"{probability:.2g}"
    # As it is written, not as it is stored: 1e-9 is 1 in 1 billion.
    times = int(Context(prec=40, rounding=ROUND_FLOOR).divide(1, Decimal(repr(probability))))
    if times >= 10**15:
        return f"{Context(prec=2, rounding=ROUND_CEILING).create_decimal(repr(probability)):.1e}"
    for name, size in [("trillion", 10**12), ("billion", 10**9), ("million", 10**6)]:
        if times >= size:
            return f"1 in {_two_digits(times // size)} {name}"
    return f"1 in {_two_digits(times)}"


def _two_digits(number: int) -> str:
    """Rounded down to two digits."""
    step = 10 ** max(0, len(str(number)) - 2)
    return f"{number // step * step:,}"


def percent(number: float) -> str:
    """A fraction, to a tenth of a percent."""
    return f"{100 * number:,.1f}%" if abs(number) < 1e13 else f"{number:.3g} times 100%"


def short_percent(number: float) -> str:
    """A fraction from 0 on, to three digits of its percentage, or all before the point."""
    if number == math.inf:
        return "unbounded"
    return f"{100.0 * number:.3g}%" if number < 9.995 else f"{100.0 * number:,.0f}%"


def percent_down(number: float) -> str:
    """A fraction, rounded down: for lower bounds."""
    return f"{math.floor(1000 * number) / 10:.1f}%" if abs(number) < 1e13 else percent(number)


def percent_up(number: float) -> str:
    """A fraction, rounded up: for upper bounds."""
    return f"{math.ceil(1000 * number) / 10:.1f}%" if abs(number) < 1e13 else percent(number)


def factor_text(factor: float) -> str:
    """A scale factor of at most 1; only 1 reads as 1."""
    if factor == 1.0:
        return "1"
    return "just under 1" if f"{factor:.4f}" == "1.0000" else f"{factor:.4f}"
