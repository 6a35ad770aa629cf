"""jdpack ledger: what all runs on the same people may spend together."""

from __future__ import annotations

import json
from typing import Annotated, cast

import typer

from jdpack.cli.options import AsJson, next_step
from jdpack.errors import BudgetError
from jdpack.ledger import text
from jdpack.ledger.ledger import Ledger
from jdpack.market.market import Neighbours
from jdpack.privacy.accounting import Accounting, Budget

app = typer.Typer(
    help="Track what all runs on the same people spend together.", no_args_is_help=True
)

File = Annotated[
    str, typer.Argument(help="The ledger: a file, or the address of a PostgreSQL database.")
]
Dataset = Annotated[str | None, typer.Option(help="Only this data set.")]


@app.command("create")
def create_command(
    ledger: File,
    dataset: Annotated[str, typer.Option(help="A name for the people in the records.")],
    epsilon: Annotated[float, typer.Option(help="The total of all runs.")],
    delta: Annotated[float, typer.Option(help="The total of all runs.")],
    neighbours: Annotated[
        Neighbours, typer.Option(help="The same as in the markets of the runs.")
    ] = Neighbours.REPLACE_ONE,
    accounting: Annotated[
        str, typer.Option(help="gdp, or zcdp, which also takes runs with truncated Laplace noise.")
    ] = "gdp",
    grant: Annotated[
        str | None,
        typer.Option(
            help="A role that may read the ledger and add to it, nothing else (PostgreSQL)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Enter a data set and its total budget, in a new ledger or an existing one."""
    made = Ledger.create(
        ledger,
        dataset,
        epsilon=epsilon,
        delta=delta,
        neighbours=neighbours,
        accounting=cast(Accounting, accounting),  # which `create` checks
        grant=grant,
    )
    _show(made, dataset, as_json)
    if not as_json:
        where = ("-o", "out", "--ledger", ledger, "--dataset", dataset)
        next_step("jdpack solve MARKET TABLE", *where)


@app.command("show")
def show_command(
    ledger: File,
    dataset: Dataset = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Count how many runs of this epsilon fit; runs like the last one if not given."
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Goes with --epsilon.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is spent, what is left, and how many more runs fit."""
    budget = None
    if epsilon is not None and delta is not None:
        budget = Budget.split(epsilon, delta, truncated=False)
    elif epsilon is not None or delta is not None:
        raise BudgetError("--epsilon and --delta go together", "such as --epsilon 1 --delta 1e-8")
    _show(Ledger.open(ledger), dataset, as_json, budget)


@app.command("history")
def history_command(ledger: File, dataset: Dataset = None, as_json: AsJson = False) -> None:
    """List every entry, oldest first."""
    opened = Ledger.open(ledger)
    if as_json:
        print(json.dumps(text.history_dict(opened, dataset)))
    else:
        print(text.history(opened, dataset))


@app.command("verify")
def verify_command(
    ledger: File,
    head: Annotated[
        str | None, typer.Option(help="An earlier head: check that nothing up to it has changed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the chain of entries and every sum."""
    found = Ledger.open(ledger).verify(head)
    print(json.dumps(found.__dict__) if as_json else text.verified(found))


def _show(ledger: Ledger, dataset: str | None, as_json: bool, budget: Budget | None = None) -> None:
    if as_json:
        print(json.dumps(text.show_dict(ledger, dataset, budget)))
    else:
        print(text.show(ledger, dataset, budget))
