"""jdpack letters: what an organiser sends to each person. Private."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from jdpack.cli import options
from jdpack.cli.progress import reading
from jdpack.errors import OutputError
from jdpack.storage.files import read_regular


def letters_command(
    output: Annotated[Path, typer.Argument(help="The output folder of a finished run.")],
    url: Annotated[
        str, typer.Option(help="The address of the public page, which adds a link to each letter.")
    ] = "",
    outcome: Annotated[
        bool, typer.Option("--outcome", help="Say in each letter what the person gets.")
    ] = False,
    text: Annotated[
        Path | None,
        typer.Option(
            help="A file with your own text. It may name $id, $code, $link, $record, $outcome, "
            "$contact, $appeal and $next."
        ),
    ] = None,
    contact: Annotated[str, typer.Option(help="Who can answer questions.")] = "",
    appeal: Annotated[str, typer.Option(help="What people can do if they disagree.")] = "",
    next_steps: Annotated[str, typer.Option("--next", help="What happens next.")] = "",
    language: Annotated[
        str | None, typer.Option(help="The language, such as de; by default the market's first.")
    ] = None,
    pages: Annotated[
        int,
        typer.Option(
            help="Also write printable pages, with this many letters in each file; 0 for none."
        ),
    ] = 0,
    agents: options.MovedAgents = None,
    query: options.Query = None,
    write_to: options.WriteTo = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Write one letter per person: check code, link, outcome, your own text. CURATOR ONLY."""
    from jdpack.curator.letters import letters

    own = ""
    if text is not None:
        try:
            own = read_regular(text, 2**20).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise OutputError(f"cannot read the text in {str(text)!r}: {error}") from None
    with reading(quiet) as show:
        path = letters(
            output,
            options.records_of(agents, query),
            url=url,
            outcome=outcome,
            text=own,
            contact=contact,
            appeal=appeal,
            next_steps=next_steps,
            language=language,
            pages=pages,
            write_to=write_to,
            threads=threads,
            progress=show,
        )
    if as_json:
        more = {"pages": str(path.with_suffix(""))} if pages else {}
        print(json.dumps({"letters": str(path), **more}))
    else:
        print(f"private   {path} (one row per person, for that person alone)")
        if pages:
            print(f"private   {path.with_suffix('')} (pages to print)")
        print(f"next: publish {output / 'public'}, then send each row to its person")
