"""The options that several commands share."""

from __future__ import annotations

import dataclasses
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jdpack.errors import EngineError, MarketError

if TYPE_CHECKING:
    from jdpack.engines.settings import Choice
    from jdpack.policies.newton import Newton
    from jdpack.records.databases.database import DatabaseQuery

privacy_option = partial(typer.Option, rich_help_panel="Privacy")
engine_option = partial(typer.Option, rich_help_panel="Large tables and clusters")

MarketFile = Annotated[Path, typer.Argument(help="The market file (TOML). Public.")]
Epsilon = Annotated[
    float | None,
    privacy_option(help="The epsilon, instead of the market's; inf adds no noise: NOT PRIVATE."),
]
Delta = Annotated[float | None, privacy_option(help="The delta, instead of the market's.")]
Ledger = Annotated[
    str | None,
    privacy_option(help="The ledger of all runs on these people; it reserves the budget."),
]
Dataset = Annotated[str | None, privacy_option(help="The name of these people in the ledger.")]
Seed = Annotated[int | None, privacy_option(help="Seeded noise, for experiments: NOT PRIVATE.")]
Clamp = Annotated[bool, typer.Option("--clamp", help="Clamp numbers beyond the public bounds.")]
PolicyText = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="The algorithm: a name, or name:key=value,... such as mwu-adaptive:alpha=0.05; "
        "newton if not given.",
    ),
]
Engine = Annotated[
    str | None,
    engine_option(
        help="Where to keep codes: memory, mapped (on disk), ray, ray://host:port, or sql (in a "
        "database); memory if they fit, otherwise mapped."
    ),
]
Store = Annotated[
    Path | None,
    engine_option(help="Keep codes in this folder for later runs (mapped, ray). Private."),
]
Memory = Annotated[
    str | None,
    engine_option(help="The most memory to use besides the codes, such as 500MB (mapped)."),
]
Workers = Annotated[
    int | None, engine_option(min=1, help="How many processes share the agents (ray).")
]
AllocationPlace = Annotated[
    str | None,
    engine_option(
        "--allocation", help="A folder or URI to which all workers can write the allocation (ray)."
    ),
]
WorkerPatience = Annotated[float | None, engine_option(help="Seconds to wait for a worker (ray).")]
KeepCodes = Annotated[bool, engine_option("--keep", help="Keep the table of codes (sql). Private.")]
Threads = Annotated[int | None, engine_option(min=1, help="Cores to use; all if not given.")]
Agents = Annotated[
    str,
    typer.Argument(
        help="Parquet or CSV: a file, folder or pattern; or, with --query, a database. Private."
    ),
]
Query = Annotated[
    str | None, typer.Option("--query", help="The SELECT whose rows to read from a database.")
]
WriteTo = Annotated[
    str | None,
    typer.Option(
        "--write-to", help="A table of the database to add the result to, all rows or none."
    ),
]
MovedAgents = Annotated[
    str | None, typer.Option("--agents", help="Where the records are now, if they have moved.")
]
MovedLedger = Annotated[
    str | None, typer.Option("--ledger", help="Where the run's ledger is now, if it has moved.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress on stderr.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def records_of(agents: str | None, query: str | None) -> str | DatabaseQuery | None:
    """Where the records are: files, or the rows of a query."""
    from jdpack.errors import AgentsError

    if query is None:
        return agents
    if agents is None:
        raise AgentsError("--query goes with --agents, the address of the database")
    from jdpack.records.databases.database import DatabaseQuery

    return DatabaseQuery(agents, query)


def next_step(command: str, *parts: object) -> None:
    """Say which command comes next. Each part is quoted for the shell."""
    print("next:", command, *(shlex.quote(str(part)) for part in parts))


def warm(policy: str | None, earlier: Path, market: Path) -> Newton:
    """Newton, started from the prices of an earlier billboard."""
    from jdpack import Billboard, Market, Newton
    from jdpack.policies.spec import policy_of

    if policy_of(policy) != Newton():
        raise MarketError(f"--warm-start is for --policy newton, not {policy}")
    return Newton.warm(Billboard.read(earlier), Market.from_toml(market))


def engine_of(name: str | None, *settings: Any) -> str | Choice | None:
    """The engine that the options name. Settings of another engine are refused, not ignored."""
    from jdpack.engines.settings import KINDS as ENGINES

    names = ("store", "memory", "workers", "allocation", "patience", "keep")
    pairs = zip(names, settings, strict=True)
    given = {setting: value for setting, value in pairs if value is not None}
    if not given:
        return name
    if "store" in given:
        given["store"] = str(given["store"].absolute())
    takes = {other: {f.name for f in dataclasses.fields(kind)} for other, kind in ENGINES.items()}
    address = name is not None and name.startswith("ray://")
    kind = "ray" if address else name or ""
    for setting in given:
        if setting not in takes.get(kind, ()):
            users = [other for other in ENGINES if setting in takes[other]]
            raise EngineError(f"--{setting} is for --engine {' or '.join(users)}")
    if address:
        given["address"] = name
    return ENGINES[kind](**given)
