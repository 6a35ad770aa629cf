"""Public: requests and answers. Only the exact paths of a few things are served."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from jdpack.serve.site import PAUSE, Body, Site

Message = MutableMapping[str, Any]
Headers = dict[bytes, bytes]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

FEEDS = 1000
"""At most this many readers get live updates; more can read and reload."""

NOTHING = Body.of(b"There is nothing here.\n")

_PAGE = re.compile(rb"/index(\.[a-z]{2,3})?\.html")
_AGAIN = 15.0  # seconds after which a feed repeats itself, to show that it is alive
_RETRY = 2000  # milliseconds after which a reader who lost the feed reconnects
_AT_ONCE = 2**18  # bytes sent at once

_ALWAYS = {
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
}
_GZIP = re.compile(rb"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))")


class App:
    """The answers to all requests (ASGI)."""

    def __init__(self, site: Site, feeds: int = FEEDS) -> None:
        self._site, self._most, self._feeds = site, feeds, 0
        self.ends: Callable[[], bool] = lambda: False
        """Whether the server is shutting down."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path, method = scope["raw_path"], scope["method"]
        if path not in (b"/", b"/billboard.jsonl", b"/live") and not _PAGE.fullmatch(path):
            await _answer(send, method, 404, NOTHING)
        elif method not in ("GET", "HEAD"):
            said = Body.of(b"This can only be read.\n")
            await _answer(send, method, 405, said, {b"allow": b"GET, HEAD"})
        elif path == b"/live":
            await self._feed(method, receive, send)
        else:
            await self._read(path, method, dict(scope["headers"]), send)

    async def _read(self, path: bytes, method: str, headers: Headers, send: Send) -> None:
        """Send the page or the lines."""
        view = await self._site.view()
        if not view.found:
            await _answer(send, method, 503, view.lines, {b"retry-after": b"5"})
            return
        body, more = view.lines, {b"content-type": b"application/x-ndjson"}
        if path != b"/billboard.jsonl":
            shown = view.pages.get(path[1:].decode() or "index.html")
            if shown is None:
                await _answer(send, method, 404, NOTHING)
                return
            body, more = shown.page, {b"content-type": b"text/html; charset=utf-8"}
            more[b"content-security-policy"] = f"{shown.policy}; frame-ancestors 'none'".encode()
            more[b"vary"] = b"Accept-Encoding"
            if _GZIP.search(headers.get(b"accept-encoding", b"")):
                body, more[b"content-encoding"] = shown.packed, b"gzip"
        known = False
        if view.finished:
            more |= {b"cache-control": b"no-cache", b"etag": f'"{body.tag}"'.encode()}
            known = body.tag.encode() in headers.get(b"if-none-match", b"")
        await _answer(send, method, 304 if known else 200, None if known else body, more)

    async def _feed(self, method: str, receive: Receive, send: Send) -> None:
        """Send the mark of each new view until the reader leaves."""
        kind = {b"content-type": b"text/event-stream"}
        if method == "HEAD":
            await _answer(send, method, 200, None, kind)
            return
        if self._feeds >= self._most:
            said = Body.of(b"Too many readers get live updates; reload the page instead.\n")
            await _answer(send, method, 503, said, {b"retry-after": b"60"})
            return
        self._feeds += 1
        try:
            await send(_start(200, kind))
            await send(_part(f"retry: {_RETRY}\n\n".encode(), more=True))
            told, last = "", 0.0
            while not self.ends():
                view = await self._site.view()
                if view.mark != told or time.monotonic() - last > _AGAIN:
                    told, last = view.mark, time.monotonic()
                    await send(_part(f"data: {told}\n\n".encode(), more=True))
                if await _left(receive, PAUSE):
                    return
            await send(_part(b""))
        finally:
            self._feeds -= 1


async def _left(receive: Receive, seconds: float) -> bool:
    """Wait, and return whether the reader left meanwhile."""
    end = time.monotonic() + seconds
    while (rest := end - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(rest):
                message = await receive()
        except TimeoutError:
            return False
        if message["type"] == "http.disconnect":
            return True
    return False


async def _answer(
    send: Send, method: str, status: int, body: Body | None, more: Headers | None = None
) -> None:
    headers = {b"content-type": b"text/plain; charset=utf-8", **(more or {})}
    if body is not None:
        headers[b"content-length"] = str(len(body.data)).encode()
    await send(_start(status, headers))
    data = b"" if body is None or method == "HEAD" else body.data
    last = max(0, len(data) - 1) // _AT_ONCE * _AT_ONCE
    for start in range(0, last, _AT_ONCE):
        await send(_part(data[start : start + _AT_ONCE], more=True))
    await send(_part(data[last:]))


def _start(status: int, headers: Headers) -> Message:
    pairs = list({**_ALWAYS, **headers}.items())
    return {"type": "http.response.start", "status": status, "headers": pairs}


def _part(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}
