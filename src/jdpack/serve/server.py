"""Public: the billboard of a run over HTTP, for many readers, even while the run is working.

The server is read-only. It serves three things, all made from the whole lines of the billboard:
the page, the lines, and a feed that says when there is more. No path of a request ever becomes the
path of a file. Nothing is read from the private folder; the server only checks its lock, to tell
whether the run is working.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import ipaddress
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jdpack.errors import JdpackError
from jdpack.serve.app import FEEDS, App
from jdpack.serve.folder import Folder
from jdpack.serve.site import Site

if TYPE_CHECKING:
    from jdpack.serve.connections import Limits

_QUEUE = 1024  # new connections that the system queues until they are accepted
_ENDING = 2  # seconds that readers have to finish when the server stops
_SENT = 2**17  # bytes of an answer that the system buffers for each reader
_GONE = 30_000  # milliseconds without an acknowledgement, after which a reader is gone


def serve(
    out: str | Path,
    listener: socket.socket,
    ready: Callable[[], None],
    limits: Limits | None = None,
) -> None:
    """Serve the public side of an output folder until Ctrl-C.

    Args:
        out: the output folder of a run that has started; it may be finished.
        listener: the socket for readers, from `bound`.
        ready: called once the billboard has been read.
        limits: on connections; the defaults if not given.
    """
    site = Site(Folder(Path(out)))
    site.look()
    import uvicorn

    from jdpack.serve.connections import Connection, Crowd, Limits

    limits = (limits or Limits()).within_descriptors()
    crowd = Crowd(limits)
    app = App(site, min(FEEDS, limits.connections // 2))
    config = uvicorn.Config(
        app,
        http=functools.partial(Connection, crowd),  # type: ignore[arg-type]
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_level="error",  # bad requests must not fill a log
        access_log=False,  # who reads what is nobody's business
        server_header=False,
        proxy_headers=False,
        backlog=limits.at_once,
        timeout_keep_alive=limits.idle,
        callback_notify=crowd.sweep,
        timeout_notify=0,  # once a second
        timeout_graceful_shutdown=_ENDING,
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            listener.listen(_QUEUE)  # asyncio made the queue as short as what it accepts at once

    server = Server(config)
    app.ends = lambda: server.should_exit
    ready()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # raised once everything is closed
        return


def step_back() -> None:
    """Let a run on the same machine go first, if the system allows it."""
    with contextlib.suppress(OSError):
        os.nice(10)  # if a run wants the same core, the server gets about a tenth of it
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            # a request does not interrupt the run, but waits for its time slice to end
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address; JdpackError if that fails, or if no server is installed."""
    for name in ("uvicorn", "httptools"):
        if importlib.util.find_spec(name) is None:
            raise JdpackError(f"to serve pages, jdpack needs {name}", "pip install 'jdpack[serve]'")
    listener = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit these. The system buffers little for each reader, so that the server
        # notices when a reader stops taking an answer.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE)
        listener.bind(address)
        listener.listen(_QUEUE)
    except (OSError, UnicodeError) as error:
        if listener is not None:
            listener.close()
        used = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = getattr(error, "strerror", None) or error
        raise JdpackError(
            f"port {port} of {host!r} is in use" if used else f"cannot serve at {host!r}: {reason}",
            "choose another with --port; 0 takes a free one" if used else "",
        ) from None
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach a socket."""
    return ipaddress.ip_address(listener.getsockname()[0].split("%")[0]).is_loopback
