"""Public: the billboard page, a single file that anybody can open from a web server or a disk.

The page is a function of the billboard alone and needs no scripts. After a finished run it also
carries the agent's function in JavaScript (`pages/web/allocate.js`) with the numbers it needs, so
readers can work out what they get without telling anybody who they are. A content security policy
allows only the style and the script in the page, by their hashes, and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Release
from jdpack.common import checks
from jdpack.common.language import Language, english
from jdpack.common.language import language as find_language
from jdpack.market.grid import SHARE
from jdpack.market.market import Market
from jdpack.pages import chart
from jdpack.pages.number_text import (
    amount_text,
    exactly,
    factor_text,
    good_name,
    not_private_text,
    one_in,
    percent,
    percent_down,
    percent_up,
    person_texts,
    price_text,
    short,
    short_down,
    short_up,
    total_text,
    value_word,
)
from jdpack.pages.table import csv_of
from jdpack.privacy.accounting import REVEALED_MOST
from jdpack.privacy.noise import TruncatedLaplace, deviation
from jdpack.protocol.bounds import SURELY_BETA
from jdpack.protocol.charge import totals

NUMBERS_MAX = 2**20
"""The most prices that a page carries for its form; longer runs need the command line."""

DRAWN = 60
"""The page has charts for this many resources at most."""

SHOWN = 8
"""The page shows this many charts at once; the others are a click away."""

_POINTS = 150  # per line of a chart
_LINES = 8  # in the table below a chart
_CUT = 2.0  # prices of the search that are this many times those that count are cut off
_ABOVE = 1.5  # then the axis ends at this many times the highest price that counts
_ROWS = 1000  # in the table of resources
_UNBROKEN = 30  # letters of an amount that stays on one line
_UNFINISHED = {None: "open", True: "running", False: "stopped"}
_SCRIPTS = (
    "allocate.js",
    "number_text.js",
    "words.js",
    "own_record.js",
    "in_words.js",
    "form.js",
)
_WORDS = ("number", "text", "form", "outcome", "record")  # sections that the scripts use


@dataclass(frozen=True)
class Page:
    """A page, and what a server must know about it."""

    html: str
    policy: str
    """The content security policy, which the page states too."""
    mark: str
    """Changes whenever the billboard or the state of the run does."""


def public_page(
    board: Billboard,
    *,
    running: bool | None = None,
    live: bool = False,
    language: str | None = None,
) -> str:
    """The billboard page as HTML; the arguments are those of `build`."""
    return build(board, running=running, live=live, language=language).html


def files(market: Market) -> dict[str, str]:
    """The name of the page's file in each language of the market; the first is index.html."""
    first, *others = market.languages
    return {first: "index.html"} | {code: f"index.{code}.html" for code in others}


def public_pages(board: Billboard) -> dict[str, str]:
    """The page in every language of the market, by the name of its file."""
    named = files(board.header.market)
    return {name: public_page(board, language=code) for code, name in named.items()}


def build(
    board: Billboard | None,
    *,
    running: bool | None = None,
    live: bool = False,
    language: str | None = None,
) -> Page:
    """The billboard page.

    Args:
        board: a billboard, finished or not; None if nothing is posted yet.
        running: whether an unfinished run is still working, if known.
        live: whether `jdpack.serve` keeps the page of an unfinished run up to date.
        language: the code of its language; by default the first of the market's.
    """
    state = "finished" if board is not None and board.finished else _UNFINISHED[running]
    follow = _web("live.js") if live and state != "finished" else None
    if board is None:
        mark = f"waiting-{state}"
        return _fill("waiting.html", mark, live=follow, state=state, not_private=None)
    market = board.header.market
    words = find_language(language or market.languages[0])
    asks, spent = board.finished and board.weight > 0, totals(board)
    long = len(market.resources) * _count(board) > NUMBERS_MAX
    return _fill(
        "billboard.html",
        f"{state}-{board.head}",
        script=script() if asks and not long else None,
        live=follow,
        words=words,
        data=_embedded(data(board, words)) if asks and not long else None,
        state=state,
        figures=figures(board, words),
        shown=SHOWN,
        others=[
            (code, name, find_language(code).name)
            for code, name in files(market).items()
            if code != words.code
        ]
        if words.code in market.languages
        else [],
        totals=[total_text(market, total, words) for total in market.totals],
        bounds_you=list(person_texts(market, "you", words).values()),
        bounds_one=list(person_texts(market, "one", words).values()),
        rows_max=_ROWS,
        table_csv=_csv(resource_rows(board)),
        spent=None if spent is None else [0.0, *spent][-1],
        long=long,
        **_about(board, words),
        **promised(board, adds_up=spent is not None),
    )


def promised(board: Billboard, *, adds_up: bool) -> dict[str, Any]:
    """The numbers that `promises.html` needs in addition to the billboard."""
    epsilon, delta = board.header.in_all
    revealed, more = delta * board.header.market.agents, board.header.market.provenance
    return {
        "e_to_epsilon": math.exp(min(epsilon, 700.0)),
        "in_all": board.header.in_all,
        "for_bounds": (
            math.fsum(entry.epsilon for entry in more),
            math.fsum(entry.delta for entry in more),
        ),
        "adds_up": adds_up,
        "weak": board.header.weakness is not None,
        "revealed": revealed if revealed > REVEALED_MOST else None,
    }


def data(board: Billboard, language: Language | None = None) -> dict[str, Any]:
    """What the agent's function needs from a finished billboard, and the words for its outcome."""
    market, rounds = board.header.market, list(board.rounds)
    words = language or find_language(market.languages[0])
    columns = market.columns

    def said(text: str) -> str:
        return market.said(text, words.code)

    assert board.certificate is not None and board.seed is not None
    batch = rounds[0].batch
    return {
        "divisible": market.divisible,
        "options": market.options,
        "bundle_size": market.bundle_size,
        "max_value": market.max_value,
        "value_name": said(market.value_name),
        "value_word": value_word(market, words),
        "words": {"code": words.code} | {name: words.data[name] for name in _WORDS},
        "labels": {
            "group": words.text("text.group") if columns.group == "group" else said(columns.group),
            "request": said(columns.request),
        },
        "value_step": market.value_step,
        "columns": {
            "id": columns.id,
            "value": columns.value,
            "layout": columns.layout,
            "option": columns.option,
            "resource": columns.resource,
            "amount": columns.amount,
            "ignore": list(columns.ignore),
            "group": columns.group,
            "request": columns.request,
        },
        "resources": [
            {
                "name": r.name,
                "label": said(r.name),
                "unit": said(r.unit),
                "unit_one": said(r.unit_one),
                "column": r.column,
                "max_demand": r.max_demand,
                "unit_size": size,
            }
            for r, size in zip(market.declared, market.unit_sizes, strict=False)
        ],
        "groups": [group.name for group in market.groups],
        "group_labels": [said(group.name) for group in market.groups],
        "derived": [
            {
                "name": market.resources[j].name,
                "label": good_name(market, j, words),
                "base": rule.base,
                "group": rule.group,
                "members": rule.members,
            }
            for j, rule in market.derived
        ],
        "max_totals": [
            {
                "amount": total.amount,
                "resources": list(total.resources),
                "quantum": total.quantum,
                "text": total_text(market, total, words),
            }
            for total in market.totals
        ],
        "person": _person(market, words),
        "factors": list(board.certificate.factors),
        "weight": board.weight,
        "batches": 0 if batch is None else batch.count,
        "order": board.header.order.hex(),
        "coin_hash": board.header.coin_hash,
        "seed": board.seed.seed.hex(),
        "final_prices": list(board.final_prices),
        "rounds": {
            "weights": [step.weight for step in rounds],
            "prices": [list(step.prices) for step in rounds],
        },
    }


def _person(market: Market, words: Language) -> dict[str, Any] | None:
    """What the page must know to count the requests of one person; None if there is only one."""
    if market.requests == 1:
        return None
    limits = market.person_limits
    return {
        "requests": limits.requests,
        "max_value": limits.value,
        "bundle_size": limits.bundle,
        "max_demand": list(limits.steps),
        "max_totals": [
            {"amount": t.amount, "resources": list(t.resources), "quantum": t.quantum}
            for t in limits.totals
        ],
        "texts": person_texts(market, "you", words),
    }


def resource_rows(board: Billboard, language: Language | None = None) -> list[dict[str, Any]]:
    """One row per resource, with its public numbers; None where a number does not exist yet."""
    market, certificate = board.header.market, board.certificate
    posted = [r.step.prices for r in board.releases if r.step.prices]
    final = board.final_prices if certificate is not None else ()
    latest = final or (posted[-1] if posted else None)
    return [
        {
            "name": good_name(market, j, language),
            "unit": r.unit if language is None else market.said(r.unit, language.code),
            "supply": r.supply,
            "max_demand": r.max_demand,
            "price": None if latest is None else market.unit_price(j, latest[j]),
            "factor": None if certificate is None else certificate.factors[j] / SHARE,
            "load_at_most": None if certificate is None else certificate.load_at_most[j],
        }
        for j, r in enumerate(market.resources)
    ]


# --- charts -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """How price and demand of one resource moved: two charts, and the same in numbers."""

    name: str
    unit: str
    price: Markup
    load: Markup
    lines: list[tuple[str, str, str, str]]
    """Round, price, load, and how far the noise may have moved the load (two deviations)."""


def figures(board: Billboard, language: Language | None = None) -> list[Figure]:
    """Price and noisy load of each resource, round by round; those that bind come first."""
    market, words = board.header.market, language or english()
    asked = [r for r in board.releases if r.step.query == "demand"]
    if not asked:
        return []
    picked = chart.thinned(len(asked), _POINTS)
    since = next((t + 1 for t, r in enumerate(asked) if r.step.weight), None)
    found = []
    for j in binding_first(board)[:DRAWN]:
        noise = [2.0 * _deviation(board, asked[t], j) for t in picked]
        prices = [market.unit_price(j, asked[t].step.prices[j]) for t in picked]
        loads = [_load(market, asked[t], j) for t in picked]
        rounds = [t + 1 for t in picked]
        name = good_name(market, j, words)
        found.append(
            Figure(
                name,
                market.said(market.resources[j].unit, words.code),
                _price_chart(name, rounds, prices, since, words),
                _load_chart(name, rounds, loads, noise, since, words),
                [
                    (
                        words.whole(rounds[i]),
                        price_text(market, j, prices[i], words),
                        words.number(percent(loads[i])),
                        words.number(percent(noise[i])),
                    )
                    for i in chart.thinned(len(rounds), _LINES)
                ],
            )
        )
    return found


def binding_first(board: Billboard) -> list[int]:
    """The resources, those that bind first: a resource binds if one more unit of it has a price.

    They are ordered by what the whole supply is worth at the final prices, or at the latest ones of
    a run that is not finished. Resources that are worth next to nothing keep the market's order.
    """
    market, rounds = board.header.market, list(board.rounds)
    posted = [r.step.prices for r in board.releases if r.step.prices]
    prices = board.final_prices if rounds else posted[-1]
    least = 1e-6 * market.max_value * market.agents
    worth = [
        market.unit_price(j, price) * market.resources[j].supply for j, price in enumerate(prices)
    ]
    return sorted(range(len(worth)), key=lambda j: -worth[j] if worth[j] > least else 0.0)


def _price_chart(
    name: str, rounds: list[int], prices: list[float], since: int | None, words: Language
) -> Markup:
    """The axis fits the rounds that count: prices of the search may be many times as high."""
    counted = [p for t, p in zip(rounds, prices, strict=True) if since is None or t >= since]
    settled = max(counted or prices[len(prices) // 2 :])
    highest = max(prices)
    cut = 0.0 < settled < highest / _CUT
    high = (_ABOVE * settled if cut else 1.08 * highest) or 1.0
    axis = chart.Axis(
        0.0, high, tuple((t, words.number(short(t))) for t in chart.round_ticks(high))
    )

    def say(price: float) -> str:
        return words.number(short(price))

    label = words.text(
        "course.price_words",
        **{"good": name, "first": say(prices[0]), "from": rounds[0], "last": say(prices[-1])},
        **{"to": rounds[-1], "low": say(min(prices)), "high": say(highest)},
    )
    label += f" {words.text('course.price_cut')}" if cut else ""
    return chart.line_chart(label, "price", rounds, prices, axis, since=since)


def _load_chart(
    name: str,
    rounds: list[int],
    loads: list[float],
    noise: list[float],
    since: int | None,
    words: Language,
) -> Markup:
    band = chart.Band(
        [load - n for load, n in zip(loads, noise, strict=True)],
        [load + n for load, n in zip(loads, noise, strict=True)],
    )
    tail = loads[len(loads) // 2 :]
    high = min(3.0, max(1.35, 1.1 * max(tail), 1.05 * max(loads)))
    ticks = (0.0, 0.5, 1.0) if high < 2.0 else (0.0, 1.0, 2.0)
    axis = chart.Axis(0.0, high, tuple((t, words.number(f"{100 * t:.0f}%")) for t in ticks))

    def say(load: float) -> str:
        return words.number(percent(load))

    label = words.text(
        "course.load_words",
        **{"good": name, "first": say(loads[0]), "from": rounds[0], "last": say(loads[-1])},
        **{"to": rounds[-1], "noise": say(noise[-1])},
    )
    noisy = any(n > 0.0 for n in noise)
    return chart.line_chart(
        label, "load", rounds, loads, axis,
        band=band if noisy else None, mark=1.0, since=since,
    )  # fmt: skip


def _load(market: Market, release: Release, resource: int) -> float:
    """Demand divided by supply; a block is scaled up as if all batches were like its own."""
    load = release.answer[resource] / market.supply_codes[resource]
    return load * _blocks(release)


def _blocks(release: Release) -> float:
    """How many blocks as large as the one that is asked would hold all agents."""
    batch = release.step.batch
    return 1.0 if batch is None else batch.count / release.step.span


def _deviation(board: Billboard, release: Release, resource: int) -> float:
    """The standard deviation of the noise in `_load`."""
    market, noise = board.header.market, release.step.noise
    scales = deviation(noise)
    own = scales[resource if len(scales) > 1 else 0]
    if isinstance(noise, TruncatedLaplace):
        own = min(math.sqrt(2.0) * own, float(noise.bound))
    if board.header.local:  # each agent who is asked adds its own noise
        own *= math.sqrt(max(1.0, market.agents / _blocks(release)))
    return own / market.supply_codes[resource] * _blocks(release)


# --- other numbers ------------------------------------------------------------------------


def _count(board: Billboard) -> int:
    return sum(1 for _ in board.rounds)


def _csv(rows: list[dict[str, Any]]) -> str:
    names = [key for key in rows[0] if rows[0][key] is not None]
    return csv_of(names, ([row[name] for name in names] for row in rows[:_ROWS]))


# --- the template -------------------------------------------------------------------------


def render(name: str, board: Billboard, **more: Any) -> str:
    """A page about a billboard, without scripts."""
    return filled(name, **_about(board), **more)


def filled(name: str, **more: Any) -> str:
    """A page from its template, without scripts."""
    return _fill(name, "", **more).html


def _about(board: Billboard, language: Language | None = None) -> dict[str, Any]:
    """What the templates need to know about a billboard."""
    header, words = board.header, language or english()
    return {
        "board": board,
        "market": header.market,
        "budget": header.budget,
        "certificate": board.certificate,
        "not_private": None if header.private else not_private_text(header.why_not_private, words),
        "rows": resource_rows(board, words),
        "rounds": _count(board),
        "in_turns": any(r.step.batch is not None for r in board.releases[:1]),
        "share": SHARE,
        "surely_beta": SURELY_BETA,
    }


def _fill(
    name: str,
    mark: str,
    *,
    script: Markup | None = None,
    live: Markup | None = None,
    words: Language | None = None,
    **more: Any,
) -> Page:
    """A page from its template. All pages share one style and one kind of security policy."""
    words = words or english()
    style, connect = _web("style.css"), "'none'" if live is None else "'self'"
    policy = _policy(style, script or live, connect)
    html = _environment().get_template(name).render(
        style=style, script=script, live=live, policy=policy, mark=mark,
        **_words(words), **more,
    )  # fmt: skip
    return Page(html, policy, mark)


def _words(words: Language) -> dict[str, Any]:
    """The functions with which templates write words and numbers."""

    def number(say: Callable[[float], str]) -> Callable[[float], str]:
        return lambda x: words.number(say(x))

    def amount(market: Market, resource: int, x: float) -> Markup:
        return unbroken(amount_text(market, market.resources[resource], x, words))

    return {
        "words": words,
        "t": words.html,
        "short_in": number(short),
        "short_down_in": number(short_down),
        "short_up_in": number(short_up),
        "percent_up_in": number(percent_up),
        "percent_down_in": number(percent_down),
        "exactly_in": number(exactly),
        "whole_in": words.whole,
        "few_digits_in": number(lambda x: f"{x:.4g}"),
        "one_in_in": lambda p: one_in(p, words),
        "factor_in": lambda factor: factor_text(factor, words),
        "price_in": lambda market, j, price: price_text(market, j, price, words),
        "amount_in": amount,
    }


def unbroken(text: str) -> Markup:
    """A short amount that stays on one line."""
    if len(text) > _UNBROKEN:
        return escape(text)
    return Markup('<span class="amount">{}</span>').format(text)


@cache
def script() -> Markup:
    """All scripts of the page as one."""
    return Markup("").join(_web(name) for name in _SCRIPTS)


def _policy(style: Markup, script: Markup | None, connect: str) -> str:
    """Nothing may be loaded, sent or run except what has these hashes."""
    rules = ["default-src 'none'"]
    if script is not None:
        rules.append(f"script-src '{_hash(script)}'")
    rules += [
        f"style-src '{_hash(style)}'",
        "img-src data:",
        f"connect-src {connect}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(rules)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _web(name: str) -> Markup:
    return Markup(resources.files("jdpack.pages").joinpath("web", name).read_text(encoding="utf-8"))


def _embedded(data: dict[str, Any]) -> Markup:
    """JSON for a script element: no name in it can end the element."""
    text = json.dumps(data, separators=(",", ":"))
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Markup(text)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jdpack.pages", "web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "short": short,
        "short_down": short_down,
        "short_up": short_up,
        "percent": percent,
        "percent_down": percent_down,
        "percent_up": percent_up,
        "bar": chart.bar,
        "exactly": exactly,
        "factor": factor_text,
        "one_in": one_in,
        "plain": lambda value: value if isinstance(value, str) else checks.quoted(value),
    }
    return environment
