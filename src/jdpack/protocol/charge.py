"""Public: what a step costs, which the filter is charged with before the step is answered."""

from __future__ import annotations

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Step
from jdpack.errors import BudgetError, JdpackError
from jdpack.privacy.accounting import Filter
from jdpack.privacy.noise import Gaussian, NoNoise, TruncatedLaplace
from jdpack.protocol import closing


def charge(step: Step, filter: Filter, board: Billboard) -> None:
    """Charge the filter for a step, or refuse it. `board` is the billboard before it."""
    if type(step.noise) not in (Gaussian, TruncatedLaplace, NoNoise):
        raise BudgetError(f"noise {step.noise!r} is of no kind with a proven cost")
    if type(step.noise) is TruncatedLaplace and step.query in ("curvature", "gauge"):
        raise BudgetError(f"the cost of a {step.query} release is proved for Gaussian noise only")
    if step.batch is not None and step.query != "demand":
        raise BudgetError(f"a batch is asked for its demand, not for {step.query}")
    if step.query in ("granted", "luck") and board.header.market.divisible:
        raise BudgetError(f"{step.query} is about coins, and divisible goods are given without")
    filter.charge(step.noise.cost(closing.shifts(board, step.query)), step.batch)


def totals(board: Billboard) -> list[float] | None:
    """What all releases up to each one cost together, or None if they are not those of any run."""
    filter, found = Filter(board.header.budget), []
    try:
        for release in board.releases:
            charge(release.step, filter, board)
            found.append(float(filter.spent.rho))
    except (JdpackError, ArithmeticError, ValueError):
        return None
    return found
