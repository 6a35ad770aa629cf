"""Public: what a step costs. The filter is charged before the step is answered."""

from __future__ import annotations

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Step
from jdpack.errors import BudgetError, JdpackError
from jdpack.privacy import queries
from jdpack.privacy.accounting import Filter
from jdpack.privacy.noise import Gaussian, NoNoise, TruncatedLaplace
from jdpack.protocol import closing

_GAUSSIAN = ("curvature", "gauge", "granted", "chance")  # only this noise is proved to fit


def charge(step: Step, filter: Filter, board: Billboard) -> None:
    """Charge the filter for a step, or refuse the step. `board` is the billboard before it."""
    if type(step.noise) not in (Gaussian, TruncatedLaplace, NoNoise):
        raise BudgetError(f"noise {step.noise!r} has no proven cost")
    if type(step.noise) is TruncatedLaplace and step.query in _GAUSSIAN:
        raise BudgetError(f"the cost of a {step.query} release is proved only for Gaussian noise")
    if step.batch is not None and step.query != "demand":
        raise BudgetError(f"a batch can be asked only for its demand, not for {step.query}")
    if not step.spans_right:
        raise BudgetError(f"a span of {step.span} batches does not end at its own")
    if step.query in ("granted", "chance") and not board.header.coins:
        raise BudgetError(f"{step.query} is about coins, and this run uses none")
    width = queries.width(board.header.market, step.query)
    cost = step.noise.cost(closing.change(board, step.query), width)
    filter.charge(cost, step.batch, step.span)


def totals(board: Billboard) -> list[float] | None:
    """The total cost after each release, or None if no run could have made these releases."""
    filter, found = Filter(board.header.budget), []
    try:
        for release in board.releases:
            charge(release.step, filter, board)
            found.append(float(filter.spent.rho))
    except (JdpackError, ArithmeticError, ValueError):
        return None
    return found
