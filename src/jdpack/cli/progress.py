"""Progress bars on stderr, and Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jdpack.curator.compare import Stage
    from jdpack.run.result import Progress as Round


class CtrlCError(Exception):
    """Ctrl-C during a run. Typer would exit on KeyboardInterrupt without a word."""


@contextmanager
def progress(
    quiet: bool,
    bar: Callable[[bool], AbstractContextManager[Callable[[Any], None]]] | None = None,
) -> Iterator[Callable[[Any], None]]:
    """Show on stderr how far the run has come, and heed Ctrl-C.

    If Ctrl-C strikes in a destructor, Python only prints the exception, so a flag remembers it
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
        with (bar or _bar)(quiet) as show:

            def heed(round: Any) -> None:
                if struck:
                    raise KeyboardInterrupt
                show(round)

            yield heed
    except KeyboardInterrupt:
        raise CtrlCError from None
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = hook


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[Round], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("reading", total=1.0)

        def show(round: Round) -> None:
            label = f"round {round.rounds}" if round.stage == "rounds" else round.stage
            bar.update(task, completed=round.done, description=label)

        yield show


@contextmanager
def stage_bar(quiet: bool) -> Iterator[Callable[[Stage], None]]:
    """Show how far a comparison has come."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("compare", total=1.0)

        def show(stage: Stage) -> None:
            bar.update(task, completed=stage.done, description=stage.label)

        yield show
