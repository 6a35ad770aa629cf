"""Public: numbers as text, by our own rules, whatever the locale.

Where a function takes a language, the text is in that language; otherwise it is in English.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from typing import Literal

from jdpack.common.language import Language, english
from jdpack.market.market import Market, Resource
from jdpack.market.totals import Total


def short(number: float) -> str:
    """Four digits, or all before the point; three if the number is very small or very large."""
    return _written(_near(number, ROUND_HALF_UP))


def short_down(number: float) -> str:
    """Like `short`, but rounded down: for lower bounds."""
    near = _near(number, ROUND_HALF_UP)
    return _written(_near(number, ROUND_FLOOR) if near > number else near)


def short_up(number: float) -> str:
    """Like `short`, but rounded up: for upper bounds."""
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
    if 0.0 < abs(number) < 1e-3:
        return repr(number)  # its few digits; the smallest numbers have fewer than three
    if abs(number) >= 1e15:
        return f"{number:.3g}"
    return f"{number:,.4g}" if abs(number) < 1e4 else f"{number:,.0f}"


def exactly(number: float) -> str:
    """All digits, for a number that is part of a promise."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def price_text(
    market: Market, resource: int, price: float, language: Language | None = None
) -> str:
    """A price, or "nearly 0" if even the largest demand costs almost nothing."""
    language = language or english()
    if 0.0 < price * market.resources[resource].max_demand < 1e-6 * market.max_value:
        return language.text("text.nearly_0")
    return language.number(short(price))


def not_private_text(why: str, language: Language | None = None) -> str:
    """Why a run protects nobody (`Header.why_not_private`), in a language."""
    language = language or english()
    exact = english().text("page.exact")
    return language.text("page.exact" if why == exact else "page.seeded")


def good_name(market: Market, resource: int, language: Language | None = None) -> str:
    """The name of a resource. If it stands for a group's rule, the name is made from its parts."""
    language, r = language or english(), market.resources[resource]
    if r.derived is None:
        return market.said(r.name, language.code)
    return language.text(
        "text.group_cap" if r.derived.members else "text.group_reserve",
        good=market.said(market.resources[r.derived.base].name, language.code),
        group=market.said(market.groups[r.derived.group].name, language.code),
    )


def value_word(market: Market, language: Language | None = None) -> str:
    """What a value is called: by the market, by its table, or "value"."""
    language = language or english()
    if not market.value_name and market.columns.value == "value":
        return language.text("text.value")
    return market.said(market.value_name or market.columns.value, language.code)


def amount_text(
    market: Market,
    resource: Resource,
    amount: float,
    language: Language | None = None,
    say: Callable[[float], str] = short,
) -> str:
    """An amount with its unit, such as "1 place"; `say` writes the number in English."""
    language = language or english()
    one = resource.unit_one and language.plural(amount) == "one"
    unit = market.said(resource.unit_one if one else resource.unit, language.code)
    return f"{language.number(say(amount))} {unit}".rstrip()


def total_text(market: Market, total: Total, language: Language | None = None) -> str:
    """A bound on a total, as in "40 kWh of 8 h, 9 h and 22 more together"."""
    language = language or english()
    names = [market.said(market.resources[j].name, language.code) for j in total.resources]
    amount = amount_text(market, market.resources[total.resources[0]], total.amount, language)
    if len(names) == 1:
        return language.text("text.amount_of", amount=amount, good=names[0])
    if len(names) > 4:
        names = [*names[:2], language.text("text.more", count=len(names) - 2)]
    return language.text("text.together", amount=amount, goods=language.joined(names))


WHOLE_PERSON = "everything that one person asked for, however many requests"
"""Who is protected where people make several requests."""


def person_texts(
    market: Market, who: Literal["you", "one"] = "you", language: Language | None = None
) -> dict[str, str]:
    """What one person may ask for in total: for each bound, a sentence without its full stop.

    The sentences are about the reader ("you"), or about one person.
    """
    language, person = language or english(), market.person
    say = language.text
    found = {"requests": say(f"person.{who}_requests", count=person.requests)}
    if person.max_value is not None:
        most = language.number(short(person.max_value))
        found["max_value"] = say(f"person.{who}_max_value", most=most)
    if person.bundle_size is not None:
        found["bundle_size"] = say(f"person.{who}_bundle_size", count=person.bundle_size)
    own = {r.name: r for r in market.declared}
    each = [
        say(
            "text.amount_of",
            amount=amount_text(market, own[name], most, language),
            good=market.said(name, language.code),
        )
        for name, most in person.max_demand.items()
    ]
    if len(each) > 4:
        each = [*each[:3], say("person.and_so_on", count=len(each) - 3)]
    if each:
        found["max_demand"] = say(f"person.{who}_ask", amounts=language.joined(each))
    if totals := [total_text(market, total, language) for total in market.person_limits.totals]:
        found["max_total"] = say(f"person.{who}_ask", amounts=language.joined(totals))
    return found


def one_in(probability: float, language: Language | None = None) -> str:
    """A small probability in words, never understated."""
    language = language or english()
    if not 0.0 < probability < 0.5:
        return language.number(f"{probability:.2g}")
    # As it is written, not as it is stored: 1e-9 is 1 in 1 billion.
    times = int(Context(prec=40, rounding=ROUND_FLOOR).divide(1, Decimal(repr(probability))))
    if times >= 10**15:
        up = Context(prec=2, rounding=ROUND_CEILING).create_decimal(repr(probability))
        return language.number(f"{up:.1e}")
    for name, size in [("trillion", 10**12), ("billion", 10**9), ("million", 10**6)]:
        if times >= size:
            return language.text(f"text.one_in_{name}", count=_two_digits(times // size))
    return language.text("text.one_in", number=_two_digits(times))


def _two_digits(number: int) -> int:
    """Rounded down to two digits."""
    step: int = 10 ** max(0, len(str(number)) - 2)
    return number // step * step


def percent(number: float) -> str:
    """A fraction, to a tenth of a percent."""
    return f"{100 * number:,.1f}%" if abs(number) < 1e13 else f"{number:.3g} × 100%"


def short_percent(number: float) -> str:
    """A fraction of at least 0 as a percentage: three digits, or all before the point."""
    if number == math.inf:
        return "unbounded"
    return f"{100.0 * number:.3g}%" if number < 9.995 else f"{100.0 * number:,.0f}%"


def percent_down(number: float) -> str:
    """A fraction, rounded down: for lower bounds."""
    return f"{math.floor(1000 * number) / 10:.1f}%" if abs(number) < 1e13 else percent(number)


def percent_up(number: float) -> str:
    """A fraction, rounded up: for upper bounds."""
    return f"{math.ceil(1000 * number) / 10:.1f}%" if abs(number) < 1e13 else percent(number)


def factor_text(factor: float, language: Language | None = None) -> str:
    """A scale factor of at most 1; only 1 reads as 1."""
    language = language or english()
    if factor == 1.0:
        return "1"
    if f"{factor:.4f}" == "1.0000":
        return language.text("text.just_under_1")
    return language.number(f"{factor:.4f}")
