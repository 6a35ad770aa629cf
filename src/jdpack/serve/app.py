"""Public: requests and answers. A path is one of three, letter by letter, or there is nothing."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from jdpack.serve.site import PAUSE, Body, Site

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

FEEDS = 1000
"""The most readers who are told of news; more can read, and load again."""

_AGAIN = 15.0  # seconds after which a feed says the same again, so that it is known to be alive
_RETRY = 2000  # milliseconds after which a reader who lost the feed comes back
_PIECE = 2**18  # bytes sent at once

_ALWAYS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_GZIP = re.compile(rb"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))")


class App:
    """The answers to all requests (ASGI)."""

    def __init__(self, site: Site) -> None:
        self._site, self._feeds = site, 0
        self.ends: Callable[[], bool] = lambda: False
        """Whether the server is about to end."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path, method = scope["raw_path"], scope["method"]
        if path not in (b"/", b"/index.html", b"/billboard.jsonl", b"/live"):
            await _answer(send, method, 404, Body.of(b"There is nothing here.\n"))
        elif method not in ("GET", "HEAD"):
            said = Body.of(b"This can only be read.\n")
            await _answer(send, method, 405, said, {"Allow": "GET, HEAD"})
        elif path == b"/live":
            await self._feed(method, receive, send)
        else:
            await self._read(path, method, dict(scope["headers"]), send)

    async def _read(
        self, path: bytes, method: str, headers: dict[bytes, bytes], send: Send
    ) -> None:
        """The page or the lines."""
        view = await self._site.view()
        if not view.found:
            await _answer(send, method, 503, view.page, {"Retry-After": "5"})
            return
        body, more = view.lines, {"Content-Type": "application/x-ndjson"}
        if path != b"/billboard.jsonl":
            body, more = view.page, {"Content-Type": "text/html; charset=utf-8"}
            more["Content-Security-Policy"] = f"{view.policy}; frame-ancestors 'none'"
            more["Vary"] = "Accept-Encoding"
            if _GZIP.search(headers.get(b"accept-encoding", b"")):
                body, more["Content-Encoding"] = view.packed, "gzip"
        known = False
        if view.finished:
            more |= {"Cache-Control": "no-cache", "ETag": f'"{body.tag}"'}
            known = body.tag.encode() in headers.get(b"if-none-match", b"")
        await _answer(send, method, 304 if known else 200, None if known else body, more)

    async def _feed(self, method: str, receive: Receive, send: Send) -> None:
        """Say which view is the newest, whenever there is a new one, until the reader leaves."""
        kind = {"Content-Type": "text/event-stream"}
        if method == "HEAD":
            await _answer(send, method, 200, None, kind)
            return
        if self._feeds >= FEEDS:
            said = Body.of(b"Too many are listening: load the page again for news.\n")
            await _answer(send, method, 503, said, {"Retry-After": "60"})
            return
        self._feeds += 1
        try:
            await send(_start(200, kind))
            await send(_piece(f"retry: {_RETRY}\n\n".encode(), more=True))
            told, last = "", 0.0
            while not self.ends():
                view = await self._site.view()
                if view.mark != told or time.monotonic() - last > _AGAIN:
                    told, last = view.mark, time.monotonic()
                    await send(_piece(f"data: {told}\n\n".encode(), more=True))
                if await _left(receive, PAUSE):
                    return
            await send(_piece(b""))
        finally:
            self._feeds -= 1


async def _left(receive: Receive, seconds: float) -> bool:
    """Wait; whether the reader left meanwhile."""
    end = time.monotonic() + seconds
    while (rest := end - time.monotonic()) > 0:
        try:
            message = await asyncio.wait_for(receive(), rest)
        except TimeoutError:
            return False
        if message["type"] == "http.disconnect":
            return True
    return False


async def _answer(
    send: Send, method: str, status: int, body: Body | None, more: dict[str, str] | None = None
) -> None:
    headers = {"Content-Type": "text/plain; charset=utf-8", **(more or {})}
    if body is not None:
        headers["Content-Length"] = str(len(body.data))
    await send(_start(status, headers))
    data = b"" if body is None or method == "HEAD" else body.data
    last = max(0, len(data) - 1) // _PIECE * _PIECE
    for start in range(0, last, _PIECE):
        await send(_piece(data[start : start + _PIECE], more=True))
    await send(_piece(data[last:]))


def _start(status: int, headers: dict[str, str]) -> Message:
    whole = {**_ALWAYS, **headers}
    pairs = [(name.lower().encode(), text.encode()) for name, text in whole.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


def _piece(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}
