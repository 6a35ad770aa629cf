"""Public: what an agent gets and why, in plain words and in the market's languages.

The billboard page says the same (`pages/web/in_words.js`), from the same texts
(`jdpack.common.language`); the tests compare them word by word. Numbers are rounded so that every
claim holds: amounts down, and the values at which the outcome would change up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_HALF_UP, Context, Decimal
from fractions import Fraction

from jdpack.agent.explain import Close, Explanation, OptionOutcome
from jdpack.agent.options import beyond
from jdpack.common.coins import COIN_BITS
from jdpack.common.language import Language, english, language
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.market.market import Market
from jdpack.pages.number_text import (
    amount_text,
    factor_text,
    not_private_text,
    person_texts,
    short,
    short_down,
    total_text,
    value_word,
)

_WHOLE: int = 2**COIN_BITS


def tell(explained: Explanation, code: str | None = None) -> str:
    """The outcome, why, and how close it was; in the market's language, or the one with a code."""
    own = _InWords.of(explained, code)
    return "\n".join([*own.before([explained]), *own.lines()])


def tell_all(explained: Sequence[Explanation], code: str | None = None) -> str:
    """The outcome of every request of one agent, and all of them together."""
    each = [_InWords.of(one, code) for one in explained]
    first, market = each[0], explained[0].market
    sums = dict[str, float]()
    for one in explained:
        for name, amount in one.amounts.items():
            sums[name] = sums.get(name, 0.0) + amount
    got = {r.name: sums[r.name] for r in market.declared if r.name in sums}
    lines = [*first.before(explained), granted_text(explained, first.language)]
    lines += [f"  {text}" for text in amounts_in_words(market, got, first.language)]
    for one, own in zip(explained, each, strict=True):
        lines += ["", first.language.text("outcome.request", name=one.request)]
        lines += [f"  {own.left_out()}"] if one.left_out else own.lines()
    return "\n".join(lines)


def granted_text(explained: Sequence[Explanation], language: Language) -> str:
    """How many of a person's requests get something."""
    granted = sum(any(option.given for option in each.options) for each in explained)
    requests = language.text("text.requests", count=len(explained))
    return language.text("outcome.granted", count=granted, requests=requests)


def amounts_in_words(market: Market, amounts: Mapping[str, float], language: Language) -> list[str]:
    """What somebody gets, one text per resource, rounded down."""
    own = {r.name: r for r in market.declared}
    return [
        language.text(
            "text.amount_of",
            amount=amount_text(market, own[name], amount, language, short_down),
            good=market.said(name, language.code),
        )
        for name, amount in amounts.items()
    ]


def left_out_text(market: Market, bound: str, language: Language) -> str:
    """Why a request that would exceed a bound of `PersonBounds` is left out."""
    text = person_texts(market, "you", language)[bound]
    return language.text("outcome.left_out_why", bound=text)


def record_texts(
    market: Market,
    options: Sequence[tuple[str | None, Sequence[tuple[float, Sequence[float]]]]],
    language: Language,
) -> list[str]:
    """A record in words, one text per option; each request has its name or None."""
    found = []
    for name, own in options:
        for number, (value, amounts) in enumerate(own, start=1):
            which = [] if name is None else [language.text("outcome.request", name=name)]
            which += [] if len(own) == 1 else [language.text("outcome.option", number=number)]
            word, text = value_word(market, language), language.number(typed(value))
            parts = [language.text("outcome.stated", word=word, value=text)]
            parts += [
                language.text(
                    "text.amount_of",
                    amount=amount_text(market, r, amount, language, typed),
                    good=market.said(r.name, language.code),
                )
                for r, amount in zip(market.declared, amounts, strict=True)
                if amount > 0.0
            ]
            begin = f"{', '.join(which)}{language.text('text.colon')}" if which else ""
            found.append(f"{begin}{', '.join(parts)}")
    return found


@dataclass(frozen=True)
class _InWords:
    """The outcome of one request in words."""

    explained: Explanation
    language: Language

    @classmethod
    def of(cls, explained: Explanation, code: str | None) -> _InWords:
        return cls(explained, language(code or explained.market.languages[0]))

    @property
    def market(self) -> Market:
        return self.explained.market

    @property
    def one(self) -> bool:
        """Whether there is only one option."""
        return len(self.explained.options) == 1

    def say(self, key: str, **given: object) -> str:
        return self.language.text(f"outcome.{key}", **given)

    def before(self, requests: Sequence[Explanation]) -> list[str]:
        """What comes before the outcome: an alarm, notes about the input, and the record."""
        alarm = self.explained.not_private
        lines = []
        if alarm is not None:
            lines.append(
                self.language.text("page.alarm", why=not_private_text(alarm, self.language))
            )
        notes = (note for each in requests for note in _InWords(each, self.language).notes())
        return [*lines, *dict.fromkeys(notes), self.given(requests), ""]

    def given(self, requests: Sequence[Explanation]) -> str:
        """The record that the answer is for; it is right only if the record is."""
        own, market = self.explained, self.market
        parts = [f"{self.language.text('text.id')} {own.agent}"]
        if own.group is not None:
            column = market.columns.group
            column = self.language.text("text.group") if column == "group" else column
            group = market.said(own.group, self.language.code)
            parts.append(f"{market.said(column, self.language.code)} {group}")
        parts += record_texts(
            market, [(each.request, each.stated) for each in requests], self.language
        )
        one = own.request is None and len(own.stated) == 1
        record = (", " if one else "; ").join(parts)
        return self.say("checked" if own.checked else "unchecked", record=record)

    def lines(self) -> list[str]:
        """The outcome, why, and how close it was, for a terminal."""
        lines = [self.headline(), *(f"  {text}" for text in self.goods()), "", self.say("why")]
        lines += [f"  {n}. {text}" for n, text in enumerate(self.why(), start=1)]
        if table := self.table():
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            lines.append("")
            for row in table:
                cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
                lines.append(f"  {'  '.join(cells)}")
        lines += ["", self.say("close"), *(f"  {text}" for text in self.close())]
        return [*lines, f"  ({self.say('all_else')})"]

    def notes(self) -> list[str]:
        """Notes about the agent's input."""
        market, notes, own = self.market, list[str](), self.explained
        if own.agent != own.agent.strip():
            notes.append(self.say("note_space"))
        elif not own.agent.isprintable():
            notes.append(self.say("note_invisible"))
        if own.group and market.group_number(own.group) < 0:
            notes.append(self.say("note_group", group=own.group))
        for value, amounts in own.stated:
            if value > market.max_value:
                most = self.language.number(short(market.max_value))
                notes.append(self.say("note_value", most=most))
            notes += [
                self.say(
                    "note_demand",
                    most=amount_text(market, r, r.max_demand, self.language),
                    good=market.said(r.name, self.language.code),
                )
                for r, amount in zip(market.declared, amounts, strict=True)
                if amount > r.max_demand
            ]
            notes += [
                self.say("note_total", total=total_text(market, total, self.language))
                for total in beyond(market, amounts)
            ]
        return list(dict.fromkeys(notes))

    def headline(self) -> str:
        got = [(o, x.given) for o, x in enumerate(self.explained.options, start=1) if x.given > 0]
        if not got:
            return self.say("nothing")
        if self.one:
            share = got[0][1]
            if share == SHARE:
                return self.say("everything")
            return self.say("part", share=share_text(share, self.language))
        parts = [
            self.say("option", number=o)
            if given == SHARE
            else self.say("share_of_option", share=share_text(given, self.language), number=o)
            for o, given in got
        ]
        return self.say("some", parts=self.language.joined(parts))

    def goods(self) -> list[str]:
        return amounts_in_words(self.market, self.explained.amounts, self.language)

    def left_out(self) -> str:
        assert self.explained.left_out is not None
        return left_out_text(self.market, self.explained.left_out, self.language)

    # --- why ------------------------------------------------------------------------------

    def why(self) -> list[str]:
        """The steps that lead to the outcome."""
        if not self.explained.asked and self.explained.batches:
            return [self.say("no_turn")]
        return self._why_one() if self.one else self._why_several()

    def _why_one(self) -> list[str]:
        own = self.explained
        (option,) = own.options
        lines = [
            self.say(
                "enough" if _pays(option) else "not_enough",
                prices=self._at_prices(),
                word=value_word(self.market, self.language),
                needed=self._needed(0),
                own=self.language.number(typed(self._worth(0))),
            )
        ]
        if not own.batches:
            rounds = self.language.text("text.rounds", count=len(own.asked))
            key = "times_share" if own.even else "times_weighted"
            key = key if 0 < option.share < SHARE else "times"
            share = share_text(option.share, self.language)
            lines.append(self.say(key, times=option.rounds, rounds=rounds, share=share))
        if option.share > 0 and option.factor < SHARE:
            factor = factor_text(option.factor / SHARE, self.language)
            left = share_text(option.scaled, self.language)
            lines.append(self.say("scaled", factor=factor, share=left))
        if not self.market.divisible and option.share > 0:
            lines.append(self._coin())
        return lines

    def _why_several(self) -> list[str]:
        own = self.explained
        lines = [
            self.say(
                "several_turn" if own.batches else "several",
                prices=self._at_prices(),
                word=value_word(self.market, self.language),
                rounds=len(own.asked),
            )
        ]
        if any(option.scaled != option.share for option in own.options):
            lines.append(self.say("scaled_shares" if self.market.divisible else "scaled_chances"))
        if not self.market.divisible and any(option.share > 0 for option in own.options):
            lines.append(self._coin())
        return lines

    def _coin(self) -> str:
        """Where the coin fell."""
        own, options = self.explained, self.explained.options
        if any(option.coin_below - option.coin_from == _WHOLE for option in options):
            return self.say("certain")
        coin, line = places(own.coin, options[0].coin_below if self.one else 0)
        if self.one:
            verdict = "coin_yes" if options[0].given else "coin_no"
            end = self.say(verdict, line=self.language.number(line))
        else:
            won = next((o for o, option in enumerate(options, start=1) if option.given), None)
            end = self.say("coin_off") if won is None else self.say("coin_on", number=won)
        begin = "coin" if own.request is None else "coin_request"
        return f"{self.say(begin, coin=self.language.number(coin))} {end}"

    def table(self) -> list[list[str]]:
        """One row per option, below the heads; empty if there is only one option."""
        own, divisible = self.explained, self.market.divisible
        if self.one or not own.asked:
            return []
        heads = ["option", "yours", "needed", "rounds", "share" if divisible else "chance"]
        heads += ["get"] if divisible else ["coin", "get"]
        rows = [[self.say(f"head_{head}") for head in heads]]
        for o, option in enumerate(own.options):
            edges = (option.coin_from, option.coin_below)
            coin = "–".join(self.language.number(f"{edge / _WHOLE:.4f}") for edge in edges)
            rows.append(
                [
                    str(o + 1),
                    self.language.number(typed(self._worth(o))),
                    self._needed(o),
                    self.language.whole(option.rounds),
                    share_text(option.scaled, self.language),
                    *([] if divisible else [coin if option.share else "–"]),
                    share_text(option.given, self.language),
                ]
            )
        return rows

    def _at_prices(self) -> str:
        own = self.explained
        if not own.batches:
            return self.say("at_final")
        return self.say("at_turn", turn=own.asked[0] + 1, turns=own.batches)

    def _needed(self, o: int) -> str:
        """The smallest value that is enough for an option, in few digits.

        It is not above the agent's own value if that is enough, and above it if not.
        """
        option = self.explained.options[o]
        if option.cost is None:
            return "–"
        cap = self._worth(o) if _pays(option) else math.inf
        least = self.explained.value_of(-(-option.cost // PRICE_UNITS_PER_VALUE_CODE))
        return self.language.number(typed_up(least, cap))

    def _worth(self, o: int) -> float:
        return min(self.explained.stated[o][0], self.market.max_value)

    # --- how close ------------------------------------------------------------------------

    def close(self) -> list[str]:
        """What another value would have got, one text per option."""
        found = []
        for number, option in enumerate(self.explained.options, start=1):
            lead = "" if self.one else f"{self.say('head_option')} {number}"
            lead += self.language.text("text.colon") if lead else ""
            how = self._of_parts if self.market.divisible else self._of_wholes
            found.append(f"{lead}{how(option.close, option.given)}")
        return found

    def _of_wholes(self, close: Close, given: int) -> str:
        if given > 0:
            return self._with("kept", close.kept) if close.kept else self.say("kept_any")
        if close.more is not None:
            return self._with("missed", close.more)
        return self.say("never_coin" if self.one else "never")

    def _of_parts(self, close: Close, given: int) -> str:
        if close.most_given == 0:
            return self.say("never_any")
        if given == close.most_given:
            return self._with("as_much", close.kept) if close.kept else self.say("as_much_any")
        assert close.more is not None
        share = share_text(close.most_given, self.language)
        if close.most == close.more:
            return self._with("more", close.more, share=share)
        return self._with("more_most", close.more, most=self._typed(close.most), share=share)

    def _with(self, key: str, code: int, **more: str) -> str:
        """A text about a value, such as "8.3 points", or "a value of 8.3" if it has no name."""
        value, name = self._typed(code), self.market.value_name
        worth = self.say("worth", value=value)
        if name:
            word = self.market.said(name, self.language.code)
            worth = self.say("worth_named", value=value, word=word)
        return self.say(key, worth=worth, **more)

    def _typed(self, code: int) -> str:
        text = typed_up(self.explained.value_of(code), self.market.max_value)
        return self.language.number(text)


def _pays(option: OptionOutcome) -> bool:
    return option.surplus is not None and option.surplus >= 0


# --- numbers ------------------------------------------------------------------------------


def typed_up(number: float, cap: float) -> str:
    """A number with few digits, not below this one and not above a cap; people can type it."""
    if number == 0.0:
        return "0"
    for digits in range(4, 17):
        for rounding in (ROUND_HALF_UP, ROUND_CEILING):
            near = float(Context(prec=digits, rounding=rounding).create_decimal(Decimal(number)))
            if number <= near <= cap:
                return typed(near)
    return typed(number)


def typed(number: float) -> str:
    """A number as people type it, with all its digits; browsers write it like this."""
    text = repr(float(number)).removesuffix(".0")
    if 1e-6 <= number < 1e21:
        return f"{Decimal(text):f}"
    return re.sub(r"e([+-])0(\d)$", r"e\1\2", text)


def share_text(share: int, language: Language | None = None) -> str:
    """A share in percent, rounded down; 0% and 100% only if exact."""
    language = language or english()
    if share in (0, SHARE):
        return language.number("100%" if share else "0%")
    hundredths = share * 10_000 // SHARE
    if not hundredths:
        return language.text("text.less_than", number=language.number("0.01%"))
    return language.number(f"{hundredths / 100:.2f}%")


def places(coin: int, line: int) -> tuple[str, str]:
    """A coin and a line on [0, 1), with enough digits to tell them apart."""
    for digits in range(4, 17):
        ten = 10**digits
        a, b = (math.floor(Fraction(x * ten, _WHOLE)) for x in (coin, line))
        if a != b or coin == line:
            return f"{a / ten:.{digits}f}", f"{b / ten:.{digits}f}"
    return repr(coin / _WHOLE), repr(line / _WHOLE)
