"""The command line: thin. Progress and errors go to stderr, results to stdout."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from jdpack import __version__, demo, summary
from jdpack.allocate import allocate
from jdpack.billboard import Billboard
from jdpack.compare import Progress as Stage
from jdpack.compare import compare
from jdpack.comparison import check_output
from jdpack.engines.choice import KINDS as ENGINES
from jdpack.engines.choice import Choice
from jdpack.errors import AgentsError, EngineError, JdpackError, MarketError, SupplyWarning
from jdpack.market import Market
from jdpack.plan import plan
from jdpack.policies import KINDS, Policy
from jdpack.policies.newton import Newton
from jdpack.solve import Progress as Round
from jdpack.solve import Result, resume, solve

app = typer.Typer(
    help="Allocate scarce goods with joint differential privacy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class _CtrlCError(Exception):
    """Ctrl-C during a run; Typer would leave on KeyboardInterrupt without a word."""


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
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command("solve")
def solve_command(
    market: Annotated[Path, typer.Argument(help="The market file (TOML). Public.")],
    agents: Annotated[
        str, typer.Argument(help="Parquet or CSV: a file, folder or pattern. Private.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to create.")],
    epsilon: Annotated[
        float | None, typer.Option(help="In place of the market's; inf: NOT PRIVATE, no noise.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="In place of the market's.")] = None,
    policy: Annotated[PolicyName, typer.Option(help="The algorithm.")] = PolicyName.newton,
    warm_start: Annotated[
        Path | None, typer.Option(help="Start from an earlier billboard's prices (newton).")
    ] = None,
    alpha: Alpha = None,
    noise: Noise = None,
    rounds: Rounds = None,
    potential: Potential = None,
    batch: BatchSize = None,
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Clamp numbers beyond the public bounds.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seeded noise, for experiments: NOT PRIVATE.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Cores to use; all if not given.")
    ] = None,
    engine: Engine = None,
    store: Store = None,
    memory: Room = None,
    workers: Workers = None,
    allocation: AllocationPlace = None,
    patience: WorkerPatience = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Allocate a market's resources among the agents of a table."""
    public = Market.from_toml(market)
    algorithm = _policy(
        public,
        policy,
        warm_start,
        alpha=alpha,
        noise=noise,
        rounds=rounds,
        potential=potential,
        batch=batch,
    )
    where = _engine(
        engine,
        store=store,
        memory=memory,
        workers=workers,
        allocation=allocation,
        patience=patience,
    )
    with _progress(quiet) as show:
        result = solve(
            public,
            agents,
            epsilon=epsilon,
            delta=delta,
            policy=algorithm,
            clamp=clamp,
            seed=seed,
            threads=threads,
            engine=where,
            output=output,
            progress=show,
        )
    _print(result, output, as_json)


@app.command("resume")
def resume_command(
    output: Annotated[Path, typer.Argument(help="The output folder of a run that was cut short.")],
    threads: Annotated[
        int | None, typer.Option(min=1, help="Cores to use; all if not given.")
    ] = None,
    engine: Engine = None,
    store: Store = None,
    memory: Room = None,
    workers: Workers = None,
    allocation: AllocationPlace = None,
    patience: WorkerPatience = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Go on with an interrupted run from what is on its billboard. Spends no more than it had."""
    where = _engine(
        engine,
        store=store,
        memory=memory,
        workers=workers,
        allocation=allocation,
        patience=patience,
    )
    with _progress(quiet) as show:
        result = resume(output, threads=threads, engine=where, progress=show)
    _print(result, output, as_json)


@app.command("plan")
def plan_command(
    market: Annotated[Path, typer.Argument(help="The market file (TOML). Public.")],
    epsilon: Annotated[
        float | None, typer.Option(help="In place of the market's; inf: NOT PRIVATE, no noise.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="In place of the market's.")] = None,
    policy: Annotated[PolicyName, typer.Option(help="The algorithm.")] = PolicyName.newton,
    alpha: Alpha = None,
    noise: Noise = None,
    rounds: Rounds = None,
    potential: Potential = None,
    batch: BatchSize = None,
    as_json: AsJson = False,
) -> None:
    """Show what a privacy budget buys in a market, before any record is read."""
    public = Market.from_toml(market)
    algorithm = _policy(
        public, policy, alpha=alpha, noise=noise, rounds=rounds, potential=potential, batch=batch
    )
    planned = plan(public, epsilon=epsilon, delta=delta, policy=algorithm)
    print(json.dumps(planned.to_dict(), allow_nan=False) if as_json else planned)


@app.command("compare")
def compare_command(
    market: Annotated[Path, typer.Argument(help="The market file (TOML). Public.")],
    agents: Annotated[
        str, typer.Argument(help="Parquet or CSV: a file, folder or pattern. Private.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A folder to create: table, JSON, plot.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="A name, or name:key=value,...; once for each. All if not given."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeded runs of each.")] = 5,
    patience: Annotated[
        float, typer.Option(help="Give up on a policy after so many seconds.")
    ] = 300.0,
    epsilon: Annotated[
        float | None, typer.Option(help="In place of the market's; inf: no noise.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="In place of the market's.")] = None,
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Clamp numbers beyond the public bounds.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Cores to use; all if not given.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run policies side by side against the optimum. CURATOR ONLY: publish none of it."""
    if output is not None:
        check_output(output)
    try:
        with _progress(quiet, _stage_bar) as show:
            found = compare(
                market,
                agents,
                policies=policy or None,
                seeds=seeds,
                patience=patience,
                epsilon=epsilon,
                delta=delta,
                clamp=clamp,
                threads=threads,
                progress=show,
            )
    except _CtrlCError:
        print("interrupted: nothing is written, and no privacy budget is touched", file=sys.stderr)
        raise typer.Exit(130) from None
    print(json.dumps(found.to_dict(), allow_nan=False) if as_json else found)
    if output is not None:
        found.write(output)


@app.command("allocate")
def allocate_command(
    billboard: Annotated[Path, typer.Argument(help="The billboard (JSON lines). Public.")],
    agent: Annotated[str, typer.Option("--id", help="Your id.")],
    value: Annotated[list[float], typer.Option(help="Your value; once for each option.")],
    demand: Annotated[
        list[str],
        typer.Option(
            help="Amounts '1,0.5' in the market's order, or 'name=amount,...'; once an option."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Compute your own allocation from the public billboard. Nothing is sent anywhere."""
    board = Billboard.read(billboard)
    outcome = allocate(board, value=value, demand=[_demand(d) for d in demand], agent=agent)
    if as_json:
        print(
            json.dumps(
                {**outcome.__dict__, "share": outcome.share, "private": board.header.private}
            )
        )
        return
    if not board.header.private:
        print(f"NOT PRIVATE: {board.header.why_not_private}.")
    for option, (given, odds, rounds) in enumerate(
        zip(outcome.given, outcome.odds, outcome.rounds, strict=True)
    ):
        label = f"option {option + 1}" if len(value) > 1 else "you get"
        print(f"{label}: {given:.6g} (taken in {rounds} rounds, share {odds:.6g})")
    if not board.header.market.divisible:
        print(f"your coin: {outcome.coin:.6g}; an option is given if the coin falls on its share")


@app.command("demo")
def demo_command(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to create.")] = Path(
        "demo"
    ),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make a realistic market with random agents, and solve it."""
    with _progress(quiet) as show:
        result = demo.run(output, show)
    _print(result, output / "out", as_json)


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
    except (KeyboardInterrupt, _CtrlCError):
        print(
            "interrupted: what is on the billboard is spent, and nothing more\n"
            "hint: `jdpack resume` goes on from its output folder; with none, nothing was spent",
            file=sys.stderr,
        )
        sys.exit(130)


def _policy(
    market: Market, name: PolicyName, warm_start: Path | None = None, **options: Any
) -> Policy[Any]:
    """The policy of the options; options of another one are refused, not ignored."""
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


def _engine(name: str | None, **settings: Any) -> str | Choice | None:
    """The engine of the options; settings of another one are refused, not ignored."""
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


def _demand(text: str) -> list[float] | dict[str, float]:
    try:
        if "=" in text:
            pairs = [part.rsplit("=", 1) for part in text.split(",")]
            amounts = {name.strip(): float(amount) for name, amount in pairs}
            if len(amounts) < len(pairs):
                raise ValueError
            return amounts
        return [float(amount) for amount in text.split(",")]
    except ValueError:
        raise AgentsError(
            f"demand {text!r} cannot be read",
            "write '1,0.5' or 'doses=1,beds=0.5', each resource once",
        ) from None


def _print(result: Result, output: Path, as_json: bool) -> None:
    print(json.dumps(summary.as_dict(result)) if as_json else summary.as_text(result, output))


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


@contextmanager
def _progress(
    quiet: bool,
    bar: Callable[[bool], AbstractContextManager[Callable[[Any], None]]] | None = None,
) -> Iterator[Callable[[Any], None]]:
    """Shows on stderr how far the run is, and heeds Ctrl-C.

    Python only prints the exception of Ctrl-C if it strikes in a destructor, so a flag keeps it
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
        raise _CtrlCError from None
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = hook


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[Round], None]]:
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
def _stage_bar(quiet: bool) -> Iterator[Callable[[Stage], None]]:
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("compare", total=1.0)

        def show(stage: Stage) -> None:
            bar.update(task, completed=stage.done, description=stage.label)

        yield show


if __name__ == "__main__":
    main()
