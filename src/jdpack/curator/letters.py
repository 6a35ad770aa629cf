"""Private: what an organiser sends to each person: a check code, a link, and the outcome if wanted.

A link has the person's record behind a `#`, where it fills in the form of the page. Browsers do not
send that part to a server. All of it is as private as the records: each row is for one person.
"""

from __future__ import annotations

import base64
import json
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jdpack.agent.check_code import check_code
from jdpack.agent.in_words import left_out_text, typed
from jdpack.agent.options import Coded, Request, counted, encoded, encoded_requests
from jdpack.curator.finished_run import FinishedRun
from jdpack.errors import OutputError
from jdpack.market.grid import SHARE
from jdpack.market.market import Market
from jdpack.pages.number_text import short_down
from jdpack.pages.table import csv_of
from jdpack.records import tables
from jdpack.records.ids import plain_ids
from jdpack.records.source import Source
from jdpack.records.tables import OptionRows
from jdpack.run.write_back import Target
from jdpack.storage.files import write_text

FILE = "letters.csv"
WORDS = ("id", "code", "link", "record", "outcome")
"""What a template may name, each after a dollar sign."""

Shares = NDArray[np.uint32]


@dataclass(frozen=True)
class Letter:
    """One person's letter."""

    id: int | str
    code: str
    """The check code of the record."""
    link: str
    """The page with the record behind a `#`; empty without an address."""
    record: str
    """The record as it was used, in words."""
    outcome: str
    """What the person gets, in words; empty unless it was asked for."""
    text: str = ""
    """The organiser's own text, filled in."""


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
        text: the organiser's own text, with $id, $code, $link, $record and $outcome in it.
        write_to: a table of the database with the records, which the letters are added to as well.
        threads: how many cores to use.
        progress: called with the fraction of the records that has been read.

    Returns the path of the file. It is private: each row is for one person alone.
    """
    template = _template(text, url, outcome)
    run = FinishedRun.open(output)
    board = run.board
    market, order = board.header.market, board.header.order
    source = run.source(agents, values, demands, ids, groups_of, requests_of, "letters")
    names = [market.columns.id, "check code", "link", "record", "outcome", "letter"]
    kept = [i for i, there in enumerate((1, 1, url, 1, outcome, text)) if there]
    target = Target.of(source, write_to)
    if target is not None:
        target.check([_column(names[i]) for i in kept])
    with run.records(source, threads, progress) as engine:
        shares = engine.shares(board, engine.allocate(board))
    rows = []
    for person in _people(source, shares):
        code = check_code(order, person.id, _codes(market, person))
        link = f"{url}#me={_fragment(market, person)}.{code}" if url else ""
        made = Letter(
            id=person.id,
            code=code,
            link=link,
            record=_record(market, person),
            outcome=_outcome(market, person) if outcome else "",
        )
        filled = template.substitute({word: getattr(made, word) for word in WORDS})
        rows.append([made.id, code, link, made.record, made.outcome, filled])
    path = run.folder.private / FILE
    try:
        write_text(
            path, 0o600, csv_of([names[i] for i in kept], ([row[i] for i in kept] for row in rows))
        )
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror}") from None
    if target is not None:
        table = pa.table({_column(names[i]): [row[i] for row in rows] for i in kept})
        batches = table.combine_chunks().to_batches()
        if not target.write(board.header.commitment, batches, f"the letters are in {str(path)!r}"):
            raise OutputError(
                f"table {write_to!r} has letters of this run already",
                f"delete them there, or name another table; the new ones are in {str(path)!r}",
            )
    return path


def _column(name: str) -> str:
    """The name of a column in a database."""
    return name.replace(" ", "_")


def _template(text: str, url: str, outcome: bool) -> string.Template:
    """The organiser's text, if every word in it is known and there."""
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
    """The bound of `PersonBounds` that it leads beyond, if any."""


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
    amounts = [0.0] * len(market.declared)
    if rows.indptr is not None:
        assert rows.resources is not None and rows.amounts is not None
        for pair in range(int(rows.indptr[i]), int(rows.indptr[i + 1])):
            amounts[int(rows.resources[pair])] = float(rows.amounts[pair])
    elif rows.columns is not None:
        amounts = [float(column[i]) for column in rows.columns]
    else:
        assert rows.matrix is not None
        amounts = rows.matrix[i].tolist()
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


def _record(market: Market, person: _Person) -> str:
    """The record in words."""
    word, parts = market.value_name or market.columns.value, []
    for request in person.requests:
        each, one = zip(request.values, request.demands, strict=True), len(request.values) == 1
        for number, (value, demand) in enumerate(each, start=1):
            which = [] if request.name is None else [f"request “{request.name}”"]
            which += [] if one else [f"option {number}"]
            asked = [_amount(market, name, amount, typed) for name, amount in demand.items()]
            said = ", ".join([f"{word} {typed(value)}", *asked])
            parts.append(f"{', '.join(which)}: {said}" if which else said)
    return "; ".join([*([f"group {person.group}"] if person.group else []), *parts])


def _outcome(market: Market, person: _Person) -> str:
    """What the person gets, in words, rounded down: for each request, and in all."""
    got, parts = dict[str, float](), []
    for request in person.requests:
        own: dict[str, float] = {}
        for demand, given in zip(request.demands, request.given, strict=True):
            for name, amount in demand.items():
                own[name] = own.get(name, 0.0) + amount * given / SHARE
        for name, amount in own.items():
            got[name] = got.get(name, 0.0) + amount
        said = _said(market, own)
        if request.left_out is not None:
            said = left_out_text(market, request.left_out)
        parts.append(f"request “{request.name}”: {said}")
    if market.requests == 1:
        return _said(market, got)
    return "; ".join([*parts, f"in all: {_said(market, got)}"])


def _said(market: Market, got: dict[str, float]) -> str:
    parts = [_amount(market, name, x, short_down) for name, x in got.items() if x > 0.0]
    return ", ".join(parts) or "nothing this time"


def _amount(market: Market, name: str, amount: float, say: Callable[[float], str]) -> str:
    unit = next(r for r in market.declared if r.name == name).unit_of(amount)
    return f"{say(amount)} {unit}".rstrip() + f" of {name}"
