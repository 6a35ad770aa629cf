"""The options that several commands share, and what they stand for."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jdpack.errors import EngineError, MarketError

if TYPE_CHECKING:
    from jdpack.engines.settings import Choice
    from jdpack.market.market import Market
    from jdpack.policies.base import Policy


class PolicyName(StrEnum):
    """The algorithms."""

    newton = "newton"
    mwu_adaptive = "mwu-adaptive"
    mwu_fixed = "mwu-fixed"
    mwu_online = "mwu-online"
    dual_gd = "dual-gd"
    mirror_descent = "mirror-descent"


class NoiseKind(StrEnum):
    """The noise of the demand releases."""

    gaussian = "gaussian"
    truncated_laplace = "truncated-laplace"


class PotentialKind(StrEnum):
    """The geometry of mirror descent."""

    entropy = "entropy"
    euclidean = "euclidean"


Alpha = Annotated[
    float | None,
    typer.Option(
        help="Loss to aim for, as a share of n times the value cap; 0.1 "
        "(mwu-adaptive, mwu-fixed, dual-gd)."
    ),
]
Noise = Annotated[
    NoiseKind | None, typer.Option(help="Noise of the demand releases (mwu-adaptive).")
]
Rounds = Annotated[
    int | None,
    typer.Option(
        help="Number of rounds (mwu-fixed, dual-gd, in place of --alpha; mirror-descent)."
    ),
]
Potential = Annotated[
    PotentialKind | None, typer.Option(help="Kind of steps; entropy (mirror-descent).")
]
BatchSize = Annotated[
    int | None, typer.Option(help="Agents asked in a round, on average; 1 (mwu-online).")
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="Where codes are: memory, mapped (on disk), ray, or ray://host:port; "
        "memory where they fit, else mapped."
    ),
]
Store = Annotated[
    Path | None,
    typer.Option(help="Keep codes in this folder for later runs (mapped, ray). Private."),
]
Room = Annotated[
    str | None, typer.Option("--memory", help="Memory beside the codes, such as 500MB (mapped).")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes that share the agents (ray).")]
AllocationPlace = Annotated[
    str | None,
    typer.Option(
        "--allocation", help="A folder or URI that all workers can write to, for it (ray)."
    ),
]
WorkerPatience = Annotated[float | None, typer.Option(help="Seconds to wait for a worker (ray).")]
Threads = Annotated[int | None, typer.Option(min=1, help="Cores to use; all if not given.")]
MovedAgents = Annotated[
    str | None, typer.Option("--agents", help="Where the records are now, if they have moved.")
]
MovedLedger = Annotated[
    Path | None, typer.Option("--ledger", help="Where the run's ledger is now, if it has moved.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def policy_of(
    market: Market, name: PolicyName, warm_start: Path | None = None, **options: Any
) -> Policy[Any]:
    """The policy of the options; options of another one are refused, not ignored."""
    from jdpack import Billboard, Newton
    from jdpack.policies.registry import KINDS

    takes = {other: {f.name for f in dataclasses.fields(kind)} for other, kind in KINDS.items()}
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in takes[name]:
            users = [other for other in KINDS if option in takes[other]]
            raise MarketError(f"--{option} is for --policy {' or '.join(users)}")
    if warm_start is not None:
        if name is not PolicyName.newton:
            raise MarketError("--warm-start is for --policy newton")
        return Newton.warm(Billboard.read(warm_start), market)
    if {"alpha", "rounds"} <= set(given):
        raise MarketError("--alpha and --rounds both fix the number of rounds", "give one of them")
    plain = {o: str(v) if isinstance(v, StrEnum) else v for o, v in given.items()}
    return KINDS[name](**plain)  # type: ignore[no-any-return]


def engine_of(name: str | None, **settings: Any) -> str | Choice | None:
    """The engine of the options; settings of another one are refused, not ignored."""
    from jdpack.engines.settings import KINDS as ENGINES

    given = {setting: value for setting, value in settings.items() if value is not None}
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
