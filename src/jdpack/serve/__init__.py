"""Public: the billboard of a run over HTTP, for many readers, also while the run goes on.

Read-only. Three things are served, all made from the whole lines of the billboard: the page, the
lines, and a feed that says when there is more. No path of a request ever becomes the path of a
file. Of the private folder nothing is read; only its lock is looked at, to tell whether the run is
at work.
"""

from __future__ import annotations

import errno
import importlib.util
import ipaddress
import resource
import socket
from collections.abc import Callable
from pathlib import Path

from jdpack.errors import JdpackError
from jdpack.serve.app import App
from jdpack.serve.folder import Folder
from jdpack.serve.site import Site

__all__ = ["bound", "is_loopback", "serve"]

_CONNECTIONS = 2000  # more are told to come back later
_ENDING = 2  # seconds that a reader has to finish when the server ends


def serve(out: str | Path, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve the public side of an output folder until Ctrl-C.

    Args:
        out: the output folder of a run that has begun; it may be finished.
        listener: where readers come in, from `bound`.
        ready: called when the billboard is known to be one.
    """
    site = Site(Folder(Path(out)))
    site.look()
    import uvicorn

    app = App(site)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_level="error",  # what readers send wrong fills no log
        access_log=False,  # who reads what is nobody's business
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_ENDING,
    )
    server = uvicorn.Server(config)
    app.ends = lambda: server.should_exit
    _make_room()
    ready()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # raised once everything is closed
        return


def _make_room() -> None:
    """Let this process hold as many connections as it may have, where the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _CONNECTIONS + 100
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address; JdpackError if it cannot be had, or if no server is installed."""
    if importlib.util.find_spec("uvicorn") is None:
        raise JdpackError("to serve pages, jdpack needs uvicorn", "pip install 'jdpack[serve]'")
    listener = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
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
