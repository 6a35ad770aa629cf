"""Readers of `jdpack serve`, in a separate, cheap process, since real readers are elsewhere.

Every reader keeps the news feed open, and loads the page once a second over a connection that it
keeps, as a browser does. Now and then one of them downloads the whole record. A line on stdin asks
what they saw since the last time; the answer is one line of JSON. At the end of stdin they leave.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import socket
import time
from dataclasses import asdict, dataclass, field

EVERY = 1.0
"""Seconds between two loads of one reader."""

RECORD = 200
"""One in this many loads is of the whole record."""

PATIENCE = 10.0
"""Seconds after which a missing answer is an error."""


@dataclass
class Seen:
    """What readers saw since the last time."""

    loads: int = 0
    records: int = 0
    """How many of these loads were of the whole record."""
    news: int = 0
    bytes: int = 0
    opened: int = 0
    """Connections made again, because the server had closed an idle one."""
    errors: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)


class Link:
    """One connection of one reader."""

    def __init__(self, load: Load, feed: bool) -> None:
        self._load, self._feed, self._used = load, feed, False
        self.begun: float | None = None
        """When it asked; None if it is not waiting."""
        self._open()

    def _open(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self._load.port), timeout=10)
        self.socket.setblocking(False)
        self._load.selector.register(self.socket, selectors.EVENT_READ, self)
        self._got, self._missing, self._used = bytearray(), -1, False
        if self._feed:
            self.socket.send(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")

    def close(self) -> None:
        self._load.selector.unregister(self.socket)
        self.socket.close()

    def ask(self, record: bool) -> None:
        """Ask for the page or the record."""
        self._record, self.begun = record, time.monotonic()
        path = b"/billboard.jsonl" if record else b"/"
        self._sent = b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n"
        try:
            self.socket.send(self._sent)
        except OSError:
            self._ended()

    def read(self) -> None:
        """Read what has arrived."""
        try:
            data = self.socket.recv(2**18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ended()
        elif self._feed:
            self._load.seen.news += data.count(b"data: ")
        elif self.begun is None:
            self.fail("an answer without a question")
        else:
            self._take(data)

    def fail(self, why: str) -> None:
        """Count an error, and reconnect."""
        self._load.seen.errors.append(why)
        self.close()
        self._open()
        self.begun = None

    def _ended(self) -> None:
        """The server closed the connection, which HTTP allows if it is or was idle."""
        if self._feed:
            self.fail("a feed ended")
        elif self.begun is None or (self._used and not self._got and self._missing < 0):
            self.close()
            self._open()
            self._load.seen.opened += 1
            if self.begun is not None:
                self.socket.send(self._sent)
        else:
            self.fail("an incomplete answer")

    def _take(self, data: bytes) -> None:
        self._got += data
        if self._missing < 0:
            head, mark, rest = bytes(self._got).partition(b"\r\n\r\n")
            if not mark:
                return
            if not head.startswith(b"HTTP/1.1 200 "):
                self.fail(head.split(b"\r\n")[0].decode())
                return
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            self._load.seen.bytes += size
            self._missing, self._got = size, bytearray(rest)
            data = rest
        self._missing -= len(data)
        if self._missing == 0:
            self._whole()

    def _whole(self) -> None:
        seen, began, last = self._load.seen, self.begun, bytes(self._got[-3:])
        magic = self._got[:2] == b"\x1f\x8b"
        self._got, self._missing, self._used, self.begun = bytearray(), -1, True, None
        if last != b'"}\n' if self._record else not magic:
            self.fail("a torn line" if self._record else "not the page")
            return
        assert began is not None
        seen.loads += 1
        seen.records += self._record
        seen.waits.append(time.monotonic() - began)


class Load:
    """All readers, in one thread. They take turns, each of them once a second."""

    def __init__(self, port: int, readers: int) -> None:
        self.port, self.selector, self.seen = port, selectors.DefaultSelector(), Seen()
        self._feeds = [Link(self, feed=True) for _ in range(readers)]
        self._links = [Link(self, feed=False) for _ in range(readers)]
        self._turn, self._due = 0, time.monotonic()

    def step(self) -> bool:
        """Do what is due, then wait a moment. Returns whether stdin has something."""
        now = time.monotonic()
        if (held := now - self._due) > EVERY:  # all were stopped: spread them out again
            self._due = now
            for link in self._links:
                link.begun = None if link.begun is None else link.begun + held
        while self._due <= now:
            self._due += EVERY / len(self._links)
            self._turn += 1
            link = self._links[self._turn % len(self._links)]
            if link.begun is None:
                link.ask(self._turn % RECORD == 0)
            elif now - link.begun > PATIENCE:
                link.fail(f"no answer in {PATIENCE:g} s")
        told = False
        for key, _ in self.selector.select(max(0.0, self._due - now)):
            if key.data is None:
                told = True
            else:
                key.data.read()
        return told

    def taken(self) -> Seen:
        """What was seen since the last time."""
        seen, self.seen = self.seen, Seen()
        return seen

    def close(self) -> None:
        for link in [*self._feeds, *self._links]:
            link.close()
        self.selector.close()


def main() -> None:
    """Read until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--readers", type=int, default=200)
    args = parser.parse_args()
    with contextlib.suppress(OSError):
        os.nice(5)  # the run goes first
    load = Load(args.port, args.readers)
    load.selector.register(0, selectors.EVENT_READ, None)
    while True:
        if load.step():
            if not os.read(0, 100):
                load.close()
                return
            print(json.dumps(asdict(load.taken())), flush=True)


if __name__ == "__main__":
    main()
