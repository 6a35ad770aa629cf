"""jdpack serve: a run's billboard page for many readers, live and afterwards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def serve_command(
    output: Annotated[Path, typer.Argument(help="The output folder of a run.")],
    host: Annotated[
        str, typer.Option(help="The address to serve at; only this machine if not given.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")
    ] = 8000,
) -> None:
    """Serve a run's public page, live while the run is under way. Ctrl-C ends it."""
    from jdpack.serve.server import bound, is_loopback, serve, step_back

    with bound(host, port) as listener:
        if not is_loopback(listener):
            print(
                "everybody who can reach this machine can read the public folder: "
                "nothing is encrypted, and nobody has to log in",
                file=sys.stderr,
            )
        step_back()
        name, taken = listener.getsockname()[:2]
        address = f"http://[{name}]:{taken}/" if ":" in name else f"http://{name}:{taken}/"
        serve(output, listener, ready=lambda: print(address, flush=True))
