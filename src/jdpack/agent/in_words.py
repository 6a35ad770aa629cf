"""Public: what an agent gets and why, in plain words for a terminal.

The billboard page says the same (`pages/web/in_words.js`). Numbers are rounded so that every claim
holds: amounts down, and the values at which the outcome would change up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_HALF_UP, Context, Decimal
from fractions import Fraction

from jdpack.agent.explain import Close, Explanation, OptionOutcome
from jdpack.agent.options import beyond
from jdpack.common.coins import COIN_BITS
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.market.market import Market
from jdpack.pages.number_text import factor_text, person_texts, short, short_down, total_text

_WHOLE: int = 2**COIN_BITS
_NO_TURN = "the run ended before your turn came"
_NO_CHANCE = "nothing is left to chance"


def tell(explained: Explanation) -> str:
    """The outcome, why, and how close it was."""
    return "\n".join([*_head([explained]), *_body(explained)])


def _head(requests: Sequence[Explanation]) -> list[str]:
    """What comes before the outcome: an alarm, notes about the input, and the record."""
    alarm = requests[0].not_private
    notes = dict.fromkeys(note for each in requests for note in _notes(each))
    return [*([] if alarm is None else [f"NOT PRIVATE: {alarm}."]), *notes, *_record(requests)]


def _body(explained: Explanation) -> list[str]:
    one = len(explained.options) == 1
    lines = [_headline(explained, one), *_goods(explained), "", "why"]
    lines += _why_one(explained) if one else _why_several(explained)
    lines += ["", "how close it was"]
    for number, option in enumerate(explained.options, start=1):
        lead = "" if one else f"option {number}: "
        lines.append(f"  {lead}{_how_close(explained, option)}")
    return [*lines, "  (all else equal, at the same public prices)"]


def tell_all(explained: Sequence[Explanation]) -> str:
    """The outcome of every request of one agent, and in sum."""
    granted = sum(any(option.given for option in each.options) for each in explained)
    requests = f"{len(explained):,} request{'s' * (len(explained) != 1)}"
    get = "gets" if granted == 1 else "get"
    lines = [*_head(explained), f"{granted:,} of your {requests} {get} something"]
    market, sums = explained[0].market, dict[str, float]()
    for each in explained:
        for name, amount in each.amounts.items():
            sums[name] = sums.get(name, 0.0) + amount
    lines += _amounts(market, {r.name: sums[r.name] for r in market.declared if r.name in sums})
    for each in explained:
        lines += ["", f"request “{each.request}”"]
        lines += [f"  {left_out_text(market, each.left_out)}"] if each.left_out else _body(each)
    return "\n".join(lines)


def left_out_text(market: Market, bound: str) -> str:
    """Why a request is left out that leads beyond a bound of `PersonBounds`."""
    return (
        f"left out: in all, {person_texts(market)[bound]}; with the requests before it, this one "
        "would go beyond that, so it gets nothing"
    )


def _notes(explained: Explanation) -> list[str]:
    """Notes about the agent's input."""
    market, notes = explained.market, []
    if explained.agent != explained.agent.strip():
        notes.append("note: your id begins or ends with a space, and that counts")
    elif not explained.agent.isprintable():
        notes.append("note: your id has an invisible character, and that counts")
    if explained.group and market.group_number(explained.group) < 0:
        notes.append(f"note: “{explained.group}” is none of the groups here, so you count in none")
    for value, amounts in explained.stated:
        if value > market.max_value:
            most = short(market.max_value)
            notes.append(f"note: a value above {most} counts as {most}, the highest value allowed")
        notes += [
            f"note: you may ask for at most {short(r.max_demand)} of {r.name}; more counts as that"
            for r, amount in zip(market.declared, amounts, strict=True)
            if amount > r.max_demand
        ]
        notes += [
            f"note: you may ask for at most {total_text(market, total)}; in the order of the "
            "goods, what goes beyond that does not count"
            for total in beyond(market, amounts)
        ]
    return list(dict.fromkeys(notes))


def _record(requests: Sequence[Explanation]) -> list[str]:
    """The record that the answer is for; it is right only if the record is."""
    explained = requests[0]
    market = explained.market
    begin = "if your record is this, not checked by a code:"
    if explained.checked:
        begin = "your record; the check code is right:"
    lines = [begin, f"  id {explained.agent}"]
    if explained.group is not None:
        lines.append(f"  {market.columns.group} {explained.group}")
    for each in requests:
        for number, (value, amounts) in enumerate(each.stated, start=1):
            which = [] if each.request is None else [f"request “{each.request}”"]
            which += [] if len(each.stated) == 1 else [f"option {number}"]
            asked = [
                f"{typed(amount)} {r.unit_of(amount)}".rstrip() + f" of {r.name}"
                for r, amount in zip(market.declared, amounts, strict=True)
                if amount > 0.0
            ]
            parts = ", ".join([f"{_word(explained)} {typed(value)}", *asked])
            lines.append(f"  {', '.join(which)}: {parts}" if which else f"  {parts}")
    return [*lines, ""]


def _headline(explained: Explanation, one: bool) -> str:
    got = [(o, option.given) for o, option in enumerate(explained.options) if option.given > 0]
    if not got:
        return "you get nothing this time"
    if one and got[0][1] == SHARE:
        return "you get everything you asked for"
    parts = []
    for o, given in got:
        what = "what you asked for" if one else f"option {o + 1}"
        parts.append(what if given == SHARE else f"{share_text(given)} of {what}")
    return f"you get {' and '.join(parts)}"


def _goods(explained: Explanation) -> list[str]:
    return _amounts(explained.market, explained.amounts)


def _amounts(market: Market, amounts: Mapping[str, float]) -> list[str]:
    own = {r.name: r for r in market.declared}
    return [
        f"  {short_down(amount)} {own[name].unit_of(amount)}".rstrip() + f" of {name}"
        for name, amount in amounts.items()
    ]


# --- why ----------------------------------------------------------------------------------


def _why_one(explained: Explanation) -> list[str]:
    (option,) = explained.options
    lines = []
    if option.cost is None:
        lines.append(_NO_TURN)
    else:
        enough = "enough" if _pays(option) else "not enough"
        lines.append(
            f"{_at_prices(explained)}: {_word(explained)} needed {_needed(explained, 0)}, "
            f"yours {typed(_worth(explained, 0))}, which is {enough}"
        )
    if not explained.batches:
        share = f": a share of {share_text(option.share)}"
        if not explained.even:
            share = f"; weighted as they are, a share of {share_text(option.share)}"
        lines.append(
            f"it was enough in {option.rounds:,} of the "
            f"{_rounds(len(explained.asked))} that count"
            + (share if 0 < option.share < SHARE else "")
        )
    if option.share > 0 and option.factor < SHARE:
        lines.append(
            "so that everything fits, shares of these goods are scaled by "
            f"{factor_text(option.factor / SHARE)}, which leaves {share_text(option.scaled)}"
        )
    if not explained.market.divisible and option.share > 0:
        if _certain(option):
            lines.append(_NO_CHANCE)
        else:
            coin, line = places(explained.coin, option.coin_below)
            verdict = "it is" if option.given else "it is not"
            lines.append(
                "the goods are indivisible, so a coin decides. Yours follows from "
                f"{_coin_of(explained)} and the public seed: {coin}. You get the goods if it is "
                f"below {line}, and {verdict}"
            )
    return [f"  {number}. {line}" for number, line in enumerate(lines, start=1)]


def _why_several(explained: Explanation) -> list[str]:
    if not explained.asked:
        return [f"  {_NO_TURN}"]
    divisible, asked = explained.market.divisible, len(explained.asked)
    counted = "" if explained.batches else f" (out of the {asked:,} that count)"
    lines = [
        f"  {_at_prices(explained)}: the {_word(explained)} that each option needs. In each round",
        "  you take the one with most to spare, if any has enough; the table counts the",
        f"  rounds{counted}:",
        "",
        *_table(explained),
    ]
    notes = []
    if any(option.scaled != option.share for option in explained.options):
        what = "shares" if divisible else "chances"
        notes.append(
            f"so that everything fits, the {what} are scaled down; the table shows them after that"
        )
    if not divisible and any(_certain(option) for option in explained.options):
        notes.append(_NO_CHANCE)
    elif not divisible and any(option.share > 0 for option in explained.options):
        won = next((o for o, option in enumerate(explained.options) if option.given), None)
        falls = "on none of your options" if won is None else f"on option {won + 1}"
        nearest = min(
            (edge for o in explained.options for edge in (o.coin_from, o.coin_below)),
            key=lambda edge: abs(edge - explained.coin),
        )
        notes.append(
            "the goods are indivisible, so a coin decides. Yours follows from "
            f"{_coin_of(explained)} and the public seed: {places(explained.coin, nearest)[0]}. "
            f"It falls {falls}"
        )
    return lines + (["", *(f"  {note}" for note in notes)] if notes else [])


def _coin_of(explained: Explanation) -> str:
    """What the coin follows from, besides the seed."""
    return "your id" if explained.request is None else "your id, the name of the request"


def _table(explained: Explanation) -> list[str]:
    """One row per option."""
    divisible = explained.market.divisible
    head = ["option", "yours", "needed", "rounds", "share" if divisible else "chance"]
    rows = [[*head, "you get"] if divisible else [*head, "coin from", "to", "you get"]]
    for o, option in enumerate(explained.options):
        places_of = [f"{edge / _WHOLE:.4f}" for edge in (option.coin_from, option.coin_below)]
        rows.append(
            [
                str(o + 1),
                typed(_worth(explained, o)),
                _needed(explained, o),
                f"{option.rounds:,}",
                share_text(option.scaled),
                *([] if divisible else places_of if option.share else ["-", "-"]),
                share_text(option.given),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _at_prices(explained: Explanation) -> str:
    if not explained.batches:
        return "at the final prices"
    turn = explained.asked[0] + 1
    return f"your turn was round {turn:,} of {explained.batches:,}; at its prices"


def _word(explained: Explanation) -> str:
    """What a value is."""
    return explained.market.value_name or explained.market.columns.value


def _needed(explained: Explanation, o: int) -> str:
    """The smallest value that is enough for an option, in few digits.

    It is not above the agent's own value if that is enough, and above it if not.
    """
    option = explained.options[o]
    if option.cost is None:
        return "-"
    cap = _worth(explained, o) if _pays(option) else math.inf
    return typed_up(explained.value_of(-(-option.cost // PRICE_UNITS_PER_VALUE_CODE)), cap)


def _worth(explained: Explanation, o: int) -> float:
    return min(explained.stated[o][0], explained.market.max_value)


def _certain(option: OptionOutcome) -> bool:
    """Whether the agent gets the option wherever the coin falls."""
    return option.coin_below - option.coin_from == _WHOLE


def _pays(option: OptionOutcome) -> bool:
    return option.surplus is not None and option.surplus >= 0


def _rounds(count: int) -> str:
    return f"{count:,} round{'' if count == 1 else 's'}"


# --- how close ----------------------------------------------------------------------------


def _how_close(explained: Explanation, option: OptionOutcome) -> str:
    close, given = option.close, option.given
    if explained.market.divisible:
        return _how_close_of_parts(explained, close, given)
    if given > 0:
        if close.kept == 0:
            return "you would have got it whatever your value"
        return f"you would have got it with {_at_least(explained, close.kept)}"
    if close.more is not None:
        return f"with {_of(explained, close.more)} you would have got it"
    never = "no allowed value would have got it"
    return f"with this coin, {never}" if len(explained.options) == 1 else never


def _how_close_of_parts(explained: Explanation, close: Close, given: int) -> str:
    if close.most_given == 0:
        return "no allowed value would have got you anything"
    if given == close.most_given:
        if close.kept == 0:
            return "any value would have got as much"
        least = _at_least(explained, close.kept)
        return f"{least} would have got as much, and no value more"
    assert close.more is not None
    more, most = _of(explained, close.more), _typed(explained, close.most)
    end = f": {share_text(close.most_given)}"
    if close.most > close.more:
        end = f", and with {most} or more the maximum, {share_text(close.most_given)}"
    return f"with {more} or more you would have got more{end}"


# --- numbers ------------------------------------------------------------------------------


def _of(explained: Explanation, code: int) -> str:
    """Such as "8.3 points", or "a value of 8.3" if values have no name."""
    text, name = _typed(explained, code), explained.market.value_name
    return f"{text} {name}" if name else f"a value of {text}"


def _at_least(explained: Explanation, code: int) -> str:
    text, name = _typed(explained, code), explained.market.value_name
    return f"{text} {name} or more" if name else f"any value of at least {text}"


def _typed(explained: Explanation, code: int) -> str:
    return typed_up(explained.value_of(code), explained.market.max_value)


def typed_up(number: float, cap: float) -> str:
    """A number with few digits, not below this one and not above a cap; people can type it."""
    if number == 0.0:
        return "0"
    for digits in range(4, 17):
        for rounding in (ROUND_HALF_UP, ROUND_CEILING):
            near = float(Context(prec=digits, rounding=rounding).create_decimal(Decimal(number)))
            if number <= near <= cap:
                return repr(near).removesuffix(".0")
    return repr(number).removesuffix(".0")


def typed(number: float) -> str:
    """A number as people type it."""
    return repr(float(number)).removesuffix(".0")


def share_text(share: int) -> str:
    """A share in percent, rounded down; 0% and 100% only if exact."""
    if share in (0, SHARE):
        return "100%" if share else "0%"
    hundredths = share * 10_000 // SHARE
    return f"{hundredths / 100:.2f}%" if hundredths else "less than 0.01%"


def places(coin: int, line: int) -> tuple[str, str]:
    """A coin and a line on [0, 1), with enough digits to tell them apart."""
    for digits in range(4, 17):
        ten = 10**digits
        a, b = (math.floor(Fraction(x * ten, _WHOLE)) for x in (coin, line))
        if a != b or coin == line:
            return f"{a / ten:.{digits}f}", f"{b / ten:.{digits}f}"
    return repr(coin / _WHOLE), repr(line / _WHOLE)
