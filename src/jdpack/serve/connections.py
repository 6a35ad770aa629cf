"""Public: how long a connection may keep the server waiting, and which one closes when it is full.

A connection waits for its reader in one of three ways: for another request, for the rest of a
request, or for the reader to take an answer. Each has a limit in seconds; uvicorn enforces the
first, and `Crowd` the other two. If the server is full, the connection that has waited longest is
closed for a new one. A feed does not wait for its reader, so it stays open as long as the reader
takes what is sent.
"""

from __future__ import annotations

import asyncio
import resource
import time
from dataclasses import dataclass, replace
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD = 2**14
"""A request may have at most this many bytes; longer ones are cut off. No body is needed."""

_LOTS = 4  # lots of new connections that may be open before the first lot is counted
_SPARE = 64  # file descriptors for everything that is not a connection


@dataclass(frozen=True)
class Limits:
    """The number of connections, and the seconds that each may take."""

    connections: int = 2000
    idle: int = 5
    """From an answer to the next request on the same connection."""
    request: float = 10.0
    """For a whole request, from its first byte; for the first one, from the connection."""
    stuck: float = 30.0
    """Without the reader taking any of its answer."""

    at_once: int = 128
    """The most connections accepted at once."""

    def within_descriptors(self) -> Limits:
        """The limits that this process can keep, after it asks for the file descriptors it needs.

        If the system allows too few, there are fewer connections.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _SPARE + self.connections + _LOTS * self.at_once
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return self
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        except (OSError, ValueError):  # some systems allow fewer than they say
            allowed = soft
        if allowed == wanted:
            return self
        free = max(2 * _LOTS, allowed - _SPARE)
        at_once = min(self.at_once, free // (2 * _LOTS))
        connections = min(self.connections, free - _LOTS * at_once)
        return replace(self, connections=connections, at_once=at_once)


class Crowd:
    """The connections that wait for their reader, and when their time is up."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: dict[
            Connection, float
        ] = {}  # when each one's time is up; the longest wait comes first

    def enter(self, connection: Connection, present: int) -> None:
        """Add a new connection; `present` includes it."""
        if present > self._limits.connections:
            longest = next(iter(self._waiting), connection)
            self._waiting.pop(longest, None)
            longest.transport.abort()
            if longest is connection:
                return
        self._waiting[connection] = time.monotonic() + self._limits.request

    def leave(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)

    def begins(self, connection: Connection) -> None:
        """The first byte of another request has arrived."""
        if connection in self._waiting:
            self._waiting[connection] = time.monotonic() + self._limits.request

    def asked(self, connection: Connection) -> None:
        """A request is complete: now the reader waits, not the server."""
        self._waiting.pop(connection, None)

    def answered(self, connection: Connection) -> None:
        """An answer is written, though the reader may not have taken it yet."""
        self._waiting.pop(connection, None)  # to the end of the line
        self.stops(connection)

    def stops(self, connection: Connection) -> None:
        """The reader does not take what is sent."""
        if connection not in self._waiting:
            self._waiting[connection] = time.monotonic() + self._limits.stuck
            connection.left = connection.rest()

    async def sweep(self) -> None:
        """Close the connections whose time is up.

        An answer that made progress gets more time. One that was taken leaves a connection that
        waits for another request, which uvicorn limits.
        """
        now = time.monotonic()
        for connection in [one for one, end in self._waiting.items() if end <= now]:
            rest = connection.rest()
            if 0 < rest < connection.left or (rest == 0 and connection.silent):
                connection.left = rest
                self._waiting[connection] = now + self._limits.stuck
            else:
                del self._waiting[connection]
                connection.transport.abort()


class Connection(HttpToolsProtocol):
    """A connection of uvicorn's that limits what readers send and keeps `Crowd` informed."""

    def __init__(self, crowd: Crowd, **given: Any) -> None:
        super().__init__(**given)
        self._crowd = crowd
        self._sent = 0  # bytes received since the last complete head
        self.left = 0
        """How many bytes were still to be sent at the last check."""
        self.silent = False
        """Whether nothing has arrived since the last answer."""

    def rest(self) -> int:
        """How many bytes the system has not accepted yet."""
        return self.transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._crowd.enter(self, len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.silent:
            self.silent = False
            self._crowd.begins(self)
        self._sent += len(data)
        super().data_received(data)
        if self._sent > HEAD and not self.transport.is_closing():
            self.send_400_response("The request is too long.")

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether to keep answering a reader who sends no more; a reader of a feed has left."""
        stays = self._answering() and not self.cycle.chunked_encoding
        if stays:
            self.cycle.keep_alive = False
        return stays

    def send_400_response(self, msg: str) -> None:
        if self._answering():  # an answer has begun and cannot be taken back
            self.transport.abort()
        else:
            super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        if self._answering():  # the reader did not wait for its answer
            self.cycle.keep_alive = False
            return
        size = len(self.url) + sum(len(name) + len(text) for name, text in self.headers)
        if size > HEAD or not self.url.startswith(b"/"):
            raise ValueError("not a request for this server")  # uvicorn makes it a 400
        self._sent = 0
        self._crowd.asked(self)
        super().on_headers_complete()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.silent = True
        self._crowd.answered(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._crowd.stops(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answering():
            self._crowd.asked(self)
