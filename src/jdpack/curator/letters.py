"""Private: what an organiser sends to each person: a check code, a link, and the outcome if wanted.

A link carries the person's record after a `#`, and the page fills in its form from there. Browsers
do not send that part to a server. Letters are as private as the records: each is for one person.
"""

from __future__ import annotations

import base64
import json
import os
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from markupsafe import Markup

from jdpack.agent.check_code import check_code
from jdpack.agent.in_words import amounts_in_words, left_out_text, record_texts
from jdpack.agent.options import Coded, Request, counted, encoded, encoded_requests
from jdpack.common.language import Language
from jdpack.common.language import language as find_language
from jdpack.curator.finished_run import FinishedRun
from jdpack.engines.shard import Shares
from jdpack.errors import OutputError
from jdpack.market.grid import SHARE
from jdpack.market.market import Market
from jdpack.pages.billboard_page import files, filled
from jdpack.pages.table import csv_of
from jdpack.records import tables
from jdpack.records.ids import plain_ids
from jdpack.records.source import Source
from jdpack.records.tables import OptionRows
from jdpack.run.write_back import Target
from jdpack.storage.files import write_text

FILE = "letters.csv"
PAGES = "letters"
"""The folder of printable pages."""
WORDS = ("id", "code", "link", "record", "outcome", "contact", "appeal", "next")
"""What a template may name, each after a dollar sign."""

LINK_MAX = 1000
"""A longer link has no QR code on the page: phones could not read it from paper."""


@dataclass(frozen=True)
class Letter:
    """One person's letter."""

    id: int | str
    code: str
    """The check code of the record."""
    link: str
    """The address of the page, with the record after a `#`; empty if no address is given."""
    record: str
    """The record as it was used, in words."""
    outcome: str
    """What the person gets, in words; empty unless it was asked for."""
    contact: str
    appeal: str
    next: str
    """These three are the organiser's words, the same in every letter; empty if there are none."""
    text: str = ""
    """The text of the letter: the organiser's own, filled in, or the default one."""


def letters(
    output: str | Path,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    groups_of: Any = None,
    requests_of: Any = None,
    url: str = "",
    outcome: bool = False,
    text: str = "",
    contact: str = "",
    appeal: str = "",
    next_steps: str = "",
    language: str | None = None,
    pages: int = 0,
    write_to: str | None = None,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Path:
    """Write a letter for each person of a finished run to its private folder, as CSV.

    Args:
        output: the folder of the run, as given to `solve`.
        agents, values, demands, ids, groups_of, requests_of: the records, if they were given in
            memory or have moved.
        url: the address at which people find the page; without it, letters have no link.
        outcome: whether letters say what the person gets.
        text: the organiser's own text, with $id, $code, $link, $record, $outcome, $contact, $appeal
            and $next in it; without it, a default text says all of them.
        contact: who can answer questions.
        appeal: what people can do if they disagree.
        next_steps: what happens next.
        language: the code of the letters' language; by default the first of the market's.
        pages: if not 0, write printable pages too, this many letters in one file; each has a QR
            code with its link, which needs `pip install 'jdpack[letters]'`.
        write_to: a table of the database with the records, which the letters are added to as well.
        threads: how many cores to use.
        progress: called with the fraction of the records that has been read.

    Returns the path of the CSV. It is private: each row is for one person alone.
    """
    template = _template(text, url, outcome)
    run = FinishedRun.open(output)
    board = run.board
    market, order = board.header.market, board.header.order
    words = find_language(language or market.languages[0])
    if pages < 0:
        raise OutputError(f"{pages} letters cannot be in one file", "write 1 or more")
    if pages and url:
        _need_segno()
    address = _address(url, market, words.code)
    records = agents, values, demands, ids, groups_of, requests_of
    source = run.source("letters", records)
    names = [market.columns.id, "check code", "link", "record", "outcome", "letter", "page"]
    kept = [i for i, there in enumerate((1, 1, url, 1, outcome, 1, pages)) if there]
    target = Target.of(source, write_to)
    if target is not None:
        target.check([_column(names[i]) for i in kept])
    with run.records(source, threads, progress) as engine:
        shares = engine.shares(board, engine.allocate(board))
    made = []
    for person in _people(source, shares):
        code = check_code(order, person.id, _codes(market, person))
        letter = Letter(
            id=person.id,
            code=code,
            link=f"{address}#me={_fragment(market, person)}.{code}" if url else "",
            record=_record(market, person, words),
            outcome=_outcome(market, person, words) if outcome else "",
            contact=contact,
            appeal=appeal,
            next=next_steps,
        )
        given = {word: getattr(letter, word) for word in WORDS}
        own = template.substitute(given) if text else _default_text(market, letter, words)
        made.append(replace(letter, text=own))
    rows = [
        (x.id, x.code, x.link, x.record, x.outcome, x.text, _page_name(i, pages))
        for i, x in enumerate(made)
    ]
    folder, path = run.folder.private, run.folder.private / FILE
    try:
        if pages:
            _write_pages(folder / PAGES, market, made, pages, words, address, bool(text))
        csv = csv_of([names[i] for i in kept], ([row[i] for i in kept] for row in rows))
        write_text(path, 0o600, csv)
    except OSError as error:
        where = str(error.filename or folder)
        raise OutputError(f"cannot write {where!r}: {error.strerror}") from None
    if target is not None:
        table = pa.table({_column(names[i]): [row[i] for row in rows] for i in kept})
        batches = table.combine_chunks().to_batches()
        if not target.write(board.header.commitment, batches, f"the letters are in {str(path)!r}"):
            raise OutputError(
                f"table {write_to!r} already has letters of this run",
                f"delete those, or name another table; the new ones are in {str(path)!r}",
            )
    return path


def _column(name: str) -> str:
    """The name of a column in a database."""
    return name.replace(" ", "_")


def _template(text: str, url: str, outcome: bool) -> string.Template:
    """The organiser's text, after checking that a letter has every word that it names."""
    template = string.Template(text)
    if not template.is_valid():
        raise OutputError("the text has a $ that names nothing", "write $$ for a dollar sign")
    for word in template.get_identifiers():
        if word not in WORDS:
            known = ", ".join(f"${known}" for known in WORDS)
            raise OutputError(f"the text names ${word}, which a letter does not have", known)
        if word == "link" and not url:
            raise OutputError("the text names $link, but there is no address", "give it with --url")
        if word == "outcome" and not outcome:
            raise OutputError("the text names $outcome", "ask for it with --outcome")
    return template


def _address(url: str, market: Market, code: str) -> str:
    """The address of the page in a language."""
    name = files(market).get(code, "index.html")
    if not url or name == "index.html":
        return url
    begin, _, last = url.rpartition("/")
    return f"{begin if last.endswith('.html') else url.rstrip('/')}/{name}"


# --- the text and the pages ---------------------------------------------------------------


def _parts(letter: Letter, words: Language) -> list[tuple[str, str]]:
    """The parts of a letter that it always has or that the organiser gave: head and text."""
    parts = [
        ("you_get", letter.outcome),
        ("your_record", letter.record),
        ("check_code", letter.code),
    ]
    return [(words.text(f"letter.{key}"), text) for key, text in parts if text]


def _after(letter: Letter, words: Language) -> list[tuple[str, str]]:
    """What the organiser says at the end: head and text."""
    parts = [("next", letter.next), ("appeal", letter.appeal), ("contact", letter.contact)]
    return [(words.text(f"letter.{key}"), text) for key, text in parts if text]


def _default_text(market: Market, letter: Letter, words: Language) -> str:
    colon = words.text("text.colon")
    lines = [
        market.said(market.name, words.code),
        words.text("letter.for_id", id=str(letter.id)),
        "",
        words.text("letter.intro"),
        "",
        *(f"{head}{colon}{text}" for head, text in _parts(letter, words)),
        "",
        words.text("letter.see_link" if letter.link else "letter.see_type"),
        *([letter.link] if letter.link else []),
        "",
    ]
    for head, text in _after(letter, words):
        lines += [head, text, ""]
    return "\n".join([*lines, words.text("letter.private")])


def _page_name(number: int, pages: int) -> str:
    return "" if pages == 0 else f"{PAGES}/{number // pages + 1:06}.html"


def _write_pages(
    folder: Path,
    market: Market,
    made: Sequence[Letter],
    pages: int,
    words: Language,
    address: str,
    own_text: bool,
) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    for old in folder.glob("*.html"):
        os.remove(old)
    for first in range(0, len(made), pages):
        each = [
            {
                "letter": letter,
                "paragraphs": letter.text.split("\n\n") if own_text else None,
                "parts": _parts(letter, words),
                "after": _after(letter, words),
                "qr": _qr(letter.link, words),
            }
            for letter in made[first : first + pages]
        ]
        page = filled(
            "letter.html",
            words=words,
            market=market,
            each=each,
            address=address,
            not_private=None,
        )
        write_text(folder.parent / _page_name(first, pages), 0o600, page)


def _need_segno() -> None:
    try:
        import segno  # noqa: F401
    except ImportError:
        raise OutputError(
            "pages with a QR code need the package segno", "pip install 'jdpack[letters]'"
        ) from None


def _qr(link: str, words: Language) -> Markup | None:
    """The link as a QR code in SVG; None without a link, or if it is too long."""
    if not 0 < len(link) <= LINK_MAX:
        return None
    import segno

    code = segno.make(link, error="m", micro=False)
    drawn = code.svg_inline(border=4, svgclass="qr", lineclass=None, omitsize=True)
    label = Markup('<svg role="img" aria-label="{}" ').format(words.text("letter.qr"))
    return Markup(drawn.replace("<svg ", str(label), 1))


@dataclass
class _Person:
    """One person's record as it was used, and what they get."""

    id: int | str
    group: str | None
    requests: list[_Request]


@dataclass
class _Request:
    """One request, and what the person gets of each of its options."""

    name: str | None
    """None if people make one request."""
    values: list[float] = field(default_factory=list)
    demands: list[dict[str, float]] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    left_out: str | None = None
    """The bound of `PersonBounds` that it would exceed, if any."""


def _people(source: Source, shares: Shares) -> Iterator[_Person]:
    """The people of a table, in its order."""
    market, at = source.market, 0
    held: _Person | None = None
    for piece in source.pieces():
        for rows in tables.read(market, piece):
            ids = range(at, at + rows.rows)
            if rows.ids is not None:
                ids = plain_ids(rows.ids, rows.first, rows.where).to_pylist()
            for i, id in enumerate(ids):
                if held is None or id != held.id:
                    if held is not None:
                        yield held
                    held = _Person(id, _group(market, rows, i), [])
                name = None if rows.requests is None else rows.requests[i].as_py()
                if not held.requests or held.requests[-1].name != name:
                    held.requests.append(_Request(name))
                request = held.requests[-1]
                request.values.append(min(float(rows.values[i]), market.max_value))
                request.demands.append(_demand(market, rows, i))
                request.given.append(int(shares[at + i]))
            at += rows.rows
    if held is not None:
        yield held


def _group(market: Market, rows: OptionRows, i: int) -> str | None:
    number = -1 if rows.groups is None else int(rows.groups[i])
    return None if number < 0 else market.groups[number].name


def _demand(market: Market, rows: OptionRows, i: int) -> dict[str, float]:
    """What an option asks for, within the public bounds."""
    amounts = rows.amounts_of(i, len(market.declared))
    kept = zip(market.declared, counted(market, amounts), strict=True)
    return {r.name: amount for r, amount in kept if amount > 0.0}


def _codes(market: Market, person: _Person) -> list[tuple[str | None, list[Coded]]]:
    """The requests in codes; notes which of them are left out."""
    if market.requests == 1:
        (one,) = person.requests
        return [(None, encoded(market, one.values, one.demands, person.group))]
    own = [Request(str(r.name), r.values, r.demands) for r in person.requests]
    coded = encoded_requests(market, own, person.group)
    for request, each in zip(person.requests, coded, strict=True):
        request.left_out = each.left_out
    return [(each.request.name, each.options) for each in coded]


def _fragment(market: Market, person: _Person) -> str:
    """The record as the form reads it from a file, in base 64."""
    each = [
        {
            "request": r.name,
            "options": [
                {"value": value, "demand": demand}
                for value, demand in zip(r.values, r.demands, strict=True)
            ],
        }
        for r in person.requests
    ]
    several = market.requests > 1
    data: dict[str, Any] = {"id": str(person.id)}
    data |= {"requests": each} if several else {"options": each[0]["options"]}
    if market.groups:
        data["group"] = person.group
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _record(market: Market, person: _Person, words: Language) -> str:
    """The record in words."""
    each = [
        (
            request.name,
            [
                (value, [demand.get(r.name, 0.0) for r in market.declared])
                for value, demand in zip(request.values, request.demands, strict=True)
            ],
        )
        for request in person.requests
    ]
    parts = record_texts(market, each, words)
    if person.group:
        column = market.columns.group
        column = words.text("text.group") if column == "group" else column
        parts.insert(
            0, f"{market.said(column, words.code)} {market.said(person.group, words.code)}"
        )
    return "; ".join(parts)


def _outcome(market: Market, person: _Person, words: Language) -> str:
    """What the person gets, in words, rounded down: for each request, and in total."""
    colon, got, parts = words.text("text.colon"), dict[str, float](), []
    for request in person.requests:
        own: dict[str, float] = {}
        for demand, given in zip(request.demands, request.given, strict=True):
            for name, amount in demand.items():
                own[name] = own.get(name, 0.0) + amount * given / SHARE
        for name, amount in own.items():
            got[name] = got.get(name, 0.0) + amount
        said = _said(market, own, words)
        if request.left_out is not None:
            said = left_out_text(market, request.left_out, words)
        parts.append(f"{words.text('letter.request', name=request.name)}{colon}{said}")
    if market.requests == 1:
        return _said(market, got, words)
    total = words.text("letter.in_all")
    return "; ".join([f"{total}{colon}{_said(market, got, words)}", *parts])


def _said(market: Market, got: dict[str, float], words: Language) -> str:
    some = {name: amount for name, amount in got.items() if amount > 0.0}
    return ", ".join(amounts_in_words(market, some, words)) or words.text("letter.nothing")
