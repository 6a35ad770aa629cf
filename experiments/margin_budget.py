"""Where the margin of one divisible resource goes, beside the least that one release needs.

The least: one release of demand with normal noise, all of epsilon and delta, and the best split of
delta between the noise (the analytic Gaussian mechanism of Balle & Wang 2018) and the event that
the bound fails. That release does not yet keep our promise: if the bound fails, somebody is
dropped, and a neighbour's bound fails at other answers. `never_exceeded` computes the least for a
release that does. A run also has to find its prices and to say what it achieved. Each row of the
table adds one of these, so the factors multiply to the whole.

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


def never_exceeded(epsilon: float, delta: float) -> float:
    """The least margin in caps of one release if the supply is never exceeded.

    D' has one cap more load than D. One release shows the load plus normal noise of deviation s,
    and r caps are kept free, so what is given exceeds the supply if the noise is below -r. Then
    winners are dropped. Let x be the answer minus the load of D, and p and q its densities for D
    and D'. If the supply lies between the two loads, D' drops somebody if x < 1 - r, the event F,
    and D drops nobody. So on F, who was dropped tells them apart. The worst set of outcomes is all
    x outside F with p > e^epsilon q, and F with nobody dropped:

        delta = integral of (p - e^epsilon q)+ outside F + P(F).

    This is attained, so no proof can charge less. With t = epsilon s^2 - 1/2, p > e^epsilon q if x
    < -t. If r - 1 <= t, all such x are in F, and delta = P(x < 1 - r). Otherwise it is the delta of
    the plain release plus e^epsilon Q(F). (The other direction costs less: on F, p >= q.)
    """

    def whole(s: float, r: float) -> float:
        t = epsilon * s * s - 0.5
        if r - 1.0 <= t:
            return float(norm.logsf((r - 1.0) / s))
        plain = norm.sf(t / s) - math.exp(epsilon + norm.logsf((t + 1.0) / s))
        return math.log(max(plain + math.exp(epsilon + norm.logsf(r / s)), 1e-300))

    def radius(log_s: float) -> float:
        s, enough = math.exp(log_s), 1e4
        if whole(s, enough) > math.log(delta):
            return enough
        return float(brentq(lambda r: whole(s, r) - math.log(delta), 1.0, enough, xtol=1e-12))

    middle = math.log(deviation(epsilon, delta))
    found = minimize_scalar(radius, bounds=(middle - 0.5, middle + 0.5), method="bounded")
    return float(found.fun)


def parts(market: Market, epsilon: float, delta: float) -> Iterator[tuple[str, float]]:
    """The margin in caps, row by row."""
    budget = Budget.split(epsilon, delta, truncated=False)
    yield "one release, best split of delta", least(epsilon, delta)
    yield "a supply that is never exceeded", never_exceeded(epsilon, delta)
    caps = one_release(epsilon, delta, budget.beta / delta)
    yield "one cap for a neighbour, one split for all budgets", caps + 1.0
    spread = 1.0 / math.sqrt(2.0 * budget.rho)
    caps = norm.isf(budget.beta) * spread
    yield "noise is discrete", caps + 1.0
    rounds = tail_bounds.rounds_rho(market, budget)
    caps *= math.sqrt(budget.rho / rounds)
    yield "closing releases about value", caps + 1.0
    outlook = Newton().outlook(market, budget)
    counted = math.sqrt(outlook.variance) / outlook.weight / DEMAND_CODE_MAX
    caps = norm.isf(budget.beta) * counted
    yield "steering rounds and questions", caps + 1.0
    supply = market.resources[0].supply / market.resources[0].max_demand
    yield "the bound on its tail", margin_of(market, budget, Newton()) * supply


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
    for what, i in [("times the least", 0), ("times the least that never exceeds", 1)]:
        whole = [f"{column[-1][1] / column[i][1]:.3f}" for column in columns]
        print(f"| **{what}** | {' | '.join(whole)} |")
    print(f"| before | {' | '.join(f'{BEFORE[b]:.2f}' for b in BUDGETS)} |")


if __name__ == "__main__":
    main()
