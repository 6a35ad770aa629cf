"""Progress bars on stderr, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from jdpack.storage import new_folder

if TYPE_CHECKING:
    from jdpack.audit.findings import Audit
    from jdpack.curator.compare import Stage
    from jdpack.curator.comparison import Comparison
    from jdpack.run.result import Progress


class CtrlCError(Exception):
    """Ctrl-C during a run. Typer would exit on KeyboardInterrupt without saying anything."""


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[Progress | Stage], None]]:
    """Show progress on stderr, and handle Ctrl-C.

    If Ctrl-C comes during a destructor, Python only prints the exception, so a flag remembers it
    until the next round.
    """
    struck = False

    def strike(*_: object) -> None:
        nonlocal struck
        struck = True
        raise KeyboardInterrupt

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        if args.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(args)

    before, hook = signal.signal(signal.SIGINT, strike), sys.unraisablehook
    sys.unraisablehook = unraisable
    try:
        with _bar(quiet) as show:

            def heed(now: Progress | Stage) -> None:
                if struck:
                    raise KeyboardInterrupt
                show(now)

            yield heed
    except KeyboardInterrupt:
        raise CtrlCError from None
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = hook


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[Progress | Stage], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    with Bar(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("reading", total=1.0)
        yield lambda now: bar.update(task, completed=now.done, description=now.label)


@contextmanager
def reading(quiet: bool) -> Iterator[Callable[[float], None]]:
    """Show how much of the records has been read."""
    from jdpack.run.result import Progress

    with progress(quiet) as show:
        yield lambda done: show(Progress(0, done, "reading"))


@contextmanager
def studying(output: Path | None, quiet: bool) -> Iterator[Callable[[Progress | Stage], None]]:
    """Check the folder for a study of the records, and show its progress."""
    if output is not None:
        new_folder.claim(output)
    try:
        with progress(quiet) as show:
            yield show
    except CtrlCError:
        print("interrupted: nothing is written, and no privacy budget is touched", file=sys.stderr)
        raise typer.Exit(130) from None


def print_study(found: Audit | Comparison, output: Path | None, as_json: bool) -> None:
    """Print what a study found, and write it to its folder."""
    print(json.dumps(found.to_dict(), allow_nan=False) if as_json else found)
    if output is not None:
        found.write(output)
