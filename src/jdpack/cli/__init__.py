"""The command line, a thin layer. Results go to stdout, progress and errors to stderr.

A command loads only its own module, and imports the code that does the work when it runs. So
neither `--help` nor an agent who looks up a result has to wait for a compiler.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from jdpack import __version__
from jdpack.cli.progress import CtrlCError
from jdpack.errors import JdpackError, JdpackWarning

PANELS = {
    "Before a run": ("init", "plan", "check", "bounds"),
    "A run": ("solve", "resume", "serve", "letters", "report"),
    "For anyone with a billboard": ("allocate", "verify"),
    "Try it, test it": ("demo", "compare", "audit"),
    "Budgets over several runs": ("ledger",),
}
"""The commands in the groups of the help. Each command is in the module of the same name."""

COMMANDS = tuple(name for names in PANELS.values() for name in names)


def app_of(commands: Iterable[str]) -> typer.Typer:
    """The command line with these commands."""
    app = typer.Typer(
        help="Allocate scarce goods with joint differential privacy.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(version)
    panel_of = {name: panel for panel, names in PANELS.items() for name in names}
    for name in commands:
        module, panel = importlib.import_module(f"jdpack.cli.{name}"), panel_of[name]
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(getattr(module, f"{name}_command"))
    return app


def version(
    show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Allocate scarce goods with joint differential privacy."""
    if show:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line. Every expected failure is a sentence, not a traceback."""
    atexit.register(_leave_garbage)
    try:
        with _warnings():
            app_of(_asked(sys.argv[1:]))()
    except JdpackError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, CtrlCError):
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _leave_garbage() -> None:
    """Skip the last garbage collection: it takes 0.4 s, and the memory is freed anyway."""
    if "duckdb" not in sys.modules:  # it prints a list of what is left
        gc.freeze()


def _asked(arguments: list[str]) -> Iterable[str]:
    """The commands to load: the one that is asked for, or all of them for the help."""
    if arguments == ["--version"]:
        return ()
    return arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS


@contextmanager
def _warnings() -> Iterator[None]:
    """Show our warnings on stderr, as a sentence and a hint."""
    with warnings.catch_warnings():
        other = warnings.showwarning

        def show(message: Warning | str, *where: Any, **more: Any) -> None:
            if isinstance(message, JdpackWarning):
                print(f"warning: {message}", file=sys.stderr)
            else:
                other(message, *where, **more)

        warnings.simplefilter("always", JdpackWarning)
        warnings.showwarning = show
        yield
