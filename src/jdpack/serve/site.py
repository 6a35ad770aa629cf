"""Public: what readers see right now, made once for all of them."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from jdpack.billboard.board import Billboard
from jdpack.errors import JdpackError, fit
from jdpack.pages.billboard_page import Page, build, files
from jdpack.serve.folder import Folder, Version

PAUSE = 1.0
"""The least number of seconds between two looks at the folder."""

_PAUSE_PER_WORK = 20  # after each look, wait this many times the CPU time it took
_PATIENCE = 0.3  # seconds that the first reader waits for a new view
_QUIET = 3.0  # seconds without a new line, after which the lock is checked

_log = logging.getLogger("uvicorn.error")  # goes to stderr


@dataclass(frozen=True)
class Body:
    """Bytes to send, and their hash."""

    data: bytes
    tag: str

    @classmethod
    def of(cls, data: bytes) -> Body:
        return cls(data, hashlib.sha256(data).hexdigest()[:32])


@dataclass(frozen=True)
class Shown:
    """The page in one language."""

    page: Body
    packed: Body
    """The page, compressed with gzip."""
    policy: str
    """The content security policy of the page."""

    @classmethod
    def of(cls, page: Page) -> Shown:
        data = page.html.encode()
        return cls(Body.of(data), Body.of(gzip.compress(data, 5, mtime=0)), page.policy)


@dataclass(frozen=True)
class View:
    """What readers see right now."""

    pages: Mapping[str, Shown]
    """The page in each language, by the name of its file; the first is index.html."""
    lines: Body
    mark: str
    """Changes whenever the view does."""
    finished: bool
    found: bool = True
    """False if there is no readable billboard any more."""

    @classmethod
    def of(cls, board: Billboard | None, text: str, running: bool | None) -> View:
        """The view of a billboard and its text; the billboard is None if nothing is posted."""
        named = {"en": "index.html"} if board is None else files(board.header.market)
        pages = {
            name: build(board, running=running, live=True, language=code)
            for code, name in named.items()
        }
        return cls(
            {name: Shown.of(page) for name, page in pages.items()},
            Body.of(text.encode()),
            pages["index.html"].mark,
            board is not None and board.finished,
        )

    @classmethod
    def missing(cls) -> View:
        """The view if no billboard can be read."""
        said = Body.of(b"The billboard cannot be read right now.\n")
        return cls({}, said, "missing", False, found=False)


class Site:
    """The newest view of a folder. It looks at most once a second, however many readers ask."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._view = View.missing()
        self._board: Billboard | None = None
        self._text = ""
        self._version: Version | None = None
        self._running: bool | None = None
        self._grew, self._next = -_QUIET, 0.0
        self._looking: asyncio.Task[None] | None = None

    async def view(self) -> View:
        """The newest view. While it is being made, other readers get the previous one."""
        if time.monotonic() >= self._next and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(asyncio.to_thread(self._refresh))
            await asyncio.wait([self._looking], timeout=_PATIENCE)
        return self._view

    def look(self) -> None:
        """Take the first look; JdpackError if there is no billboard."""
        try:
            self._update()
        except OSError as error:
            raise JdpackError(
                f"cannot serve {str(self._folder.path)!r}: {error.strerror}",
                "give the output folder of a run that solve started; it has a folder `public`",
            ) from None

    def _refresh(self) -> None:
        begin, work = time.monotonic(), time.thread_time()
        try:
            self._update()
        except Exception as error:  # whatever happens, the server keeps running and looks again
            if self._view.found:
                _log.error("the billboard cannot be read: %s", fit(str(error)))
            self._view, self._version = View.missing(), None
            self._board, self._text = None, ""
        now, work = time.monotonic(), time.thread_time() - work
        self._next = now + max(PAUSE, now - begin, _PAUSE_PER_WORK * work)

    def _update(self) -> None:
        """Make a new view if anything has changed."""
        now = time.monotonic()
        new = self._folder.version() != self._version
        if not new and self._view.finished:
            return
        if new and self._version is not None:  # a new line: somebody is working
            running: bool | None = True
            self._grew = now
        elif now - self._grew < _QUIET:
            running = self._running
        else:
            running = self._folder.at_work()
        if not new and running == self._running:
            return
        version, text = self._folder.lines()
        self._view = View.of(self._read(text), text, running)
        self._version, self._running = version, running

    def _read(self, text: str) -> Billboard | None:
        """The billboard of a text. If the text has grown, only the new lines are read."""
        if self._board is not None and text.startswith(self._text):
            self._board.extend(text[len(self._text) :])
        else:
            self._board = Billboard.from_text(text) if text else None
        self._text = text
        return self._board
