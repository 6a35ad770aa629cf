"""Where the margin of one divisible resource goes, beside the least that one release needs.

The least: one release of demand with normal noise, all of epsilon and delta, and the best split of
delta between the noise (the analytic Gaussian mechanism of Balle & Wang 2018) and the event that
the bound fails. A run also has to find its prices and to say what it achieved, and it leaves one
cap free for a neighbour. Each row of the table adds one of these, so the factors multiply to the
whole.

Everything is computed from public numbers, in seconds. The table goes to stdout.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from jdpack import Budget, Market, Newton
from jdpack.market.grid import DEMAND_CODE_MAX
from jdpack.planning.headroom import margin_of
from jdpack.privacy import tail_bounds

BUDGETS = [(1.0, 1e-8), (1.0, 1e-6), (4.0, 1e-6)]
BEFORE = {(1.0, 1e-8): 1.21, (1.0, 1e-6): 1.24, (4.0, 1e-6): 1.35}
"""Times the least, with zCDP and repair at (1 + e^epsilon) beta."""


def deviation(epsilon: float, delta: float) -> float:
    """The least deviation of normal noise for a move of 1, by the analytic Gaussian mechanism."""

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        first = norm.sf(epsilon / mu - mu / 2.0)
        second = math.exp(epsilon + norm.logsf(epsilon / mu + mu / 2.0))
        return math.log(max(first - second, 1e-300)) - math.log(delta)

    return math.exp(-brentq(excess, math.log(1e-3), math.log(1e2), xtol=1e-13))


def one_release(epsilon: float, delta: float, repair: float) -> float:
    """The margin in caps of one release that keeps this part of delta for a bound that fails."""
    return norm.isf(repair * delta) * deviation(epsilon, (1.0 - repair) * delta)


def least(epsilon: float, delta: float) -> float:
    """`one_release` with the best split."""
    found = minimize_scalar(
        lambda x: one_release(epsilon, delta, x), bounds=(0.01, 0.99), method="bounded"
    )
    return float(found.fun)


def parts(market: Market, epsilon: float, delta: float) -> Iterator[tuple[str, float]]:
    """The margin in caps, row by row."""
    budget = Budget.split(epsilon, delta, truncated=False)
    yield "one release, best split of delta", least(epsilon, delta)
    caps = one_release(epsilon, delta, budget.beta / delta)
    yield "the split that all budgets share", caps
    spread = 1.0 / math.sqrt(2.0 * budget.rho)
    caps = norm.isf(budget.beta) * spread
    yield "noise is discrete", caps
    rounds = tail_bounds.rounds_rho(market, budget)
    caps *= math.sqrt(budget.rho / rounds)
    yield "closing releases about value", caps
    outlook = Newton().outlook(market, budget)
    counted = math.sqrt(outlook.variance) / outlook.weight / DEMAND_CODE_MAX
    caps = norm.isf(budget.beta) * counted
    yield "steering rounds and questions", caps
    supply = market.resources[0].supply / market.resources[0].max_demand
    whole = margin_of(market, budget, Newton()) * supply
    yield "the bound on its tail", whole - 1.0
    yield "one cap for a neighbour", whole


def a_market(supply: float) -> Market:
    """One divisible resource; supply in caps."""
    return Market(
        supply=[supply], max_demand=1.0, max_value=1.0, agents=10 * int(supply), divisible=True
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--supply", type=float, default=5000.0, help="in caps")
    market = a_market(parser.parse_args().supply)
    columns = [list(parts(market, *budget)) for budget in BUDGETS]
    names = " | ".join(f"({e:g}, {d:g})" for e, d in BUDGETS)
    print(f"| margin in caps, and times the row above | {names} |\n|---|" + "---|" * len(BUDGETS))
    for i, (what, _) in enumerate(columns[0]):
        cells = [
            f"{column[i][1]:.2f}" + (f" ({column[i][1] / column[i - 1][1]:.3f})" if i else "")
            for column in columns
        ]
        print(f"| {what} | {' | '.join(cells)} |")
    whole = [f"{column[-1][1] / column[0][1]:.3f}" for column in columns]
    print(f"| **times the least** | {' | '.join(whole)} |")
    print(f"| before | {' | '.join(f'{BEFORE[b]:.2f}' for b in BUDGETS)} |")


if __name__ == "__main__":
    main()
