"""The command line: thin. Progress and errors go to stderr, results to stdout."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from jdpack import __version__
from jdpack.cli import curator, ledger, public, reports, runs, serve
from jdpack.cli.progress import CtrlCError
from jdpack.errors import JdpackError, SupplyWarning

app = typer.Typer(
    help="Allocate scarce goods with joint differential privacy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("solve")(runs.solve_command)
app.command("resume")(runs.resume_command)
app.command("plan")(public.plan_command)
app.command("compare")(curator.compare_command)
app.command("audit")(curator.audit_command)
app.command("allocate")(public.allocate_command)
app.command("verify")(public.verify_command)
app.command("report")(reports.report_command)
app.command("serve")(serve.serve_command)
app.command("demo")(runs.demo_command)
app.add_typer(ledger.app, name="ledger")


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Allocate scarce goods with joint differential privacy."""
    if show:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; every expected failure is a sentence, not a traceback."""
    try:
        with _warnings():
            app()
    except JdpackError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, CtrlCError):
        print("interrupted", file=sys.stderr)
        sys.exit(130)


@contextmanager
def _warnings() -> Iterator[None]:
    """Shows that supply is too small as one sentence and a hint, on stderr."""
    with warnings.catch_warnings():
        other = warnings.showwarning

        def show(message: Warning | str, *where: Any, **more: Any) -> None:
            if isinstance(message, SupplyWarning):
                print(f"warning: {message}", file=sys.stderr)
            else:
                other(message, *where, **more)

        warnings.simplefilter("always", SupplyWarning)
        warnings.showwarning = show
        yield
