"""Private: the arithmetic of the budget once more, by formulas of our own, in fractions.

Sensitivities and costs are written down again from their definitions (`Market.shifts` has the
proofs), summed, and held against the budget; the budget itself against (epsilon, delta). And a
greedy policy asks the real pipeline until it is refused: that must be in the right round, before
the data is touched.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from jdpack import closing
from jdpack.accounting import Budget
from jdpack.audit.findings import Finding, fact
from jdpack.audit.people import People
from jdpack.audit.script import known
from jdpack.audit.tape import Setting, Tape, record
from jdpack.batch import Batch
from jdpack.billboard import SHARE, Billboard, Release, Step
from jdpack.margin import Outlook
from jdpack.market import PRICE_UNITS_PER_VALUE_CODE, Market, Neighbours, Query
from jdpack.noise import Gaussian, TruncatedLaplace

BAND_UNIT = 1024


def squared_sensitivity(market: Market, query: Query, board: Billboard | None = None) -> int:
    """The square of the L2 sensitivity of a query."""
    caps = sorted((market.demand_code(j, r.max_demand) for j, r in enumerate(market.resources)))
    caps.reverse()
    k, value = market.bundle_size, market.value_code(market.max_value)
    both = 2 if market.neighbours is Neighbours.REPLACE_ONE else 1
    match query:
        case "demand" | "granted":
            return sum(c * c for c in caps[: both * k])
        case "scale":
            return caps[0] ** 2
        case "value" | "welfare":
            return value**2
        case "gauge":
            return both * 2 * (BAND_UNIT * caps[0]) ** 2
        case "curvature" if market.options == 1:
            return both * BAND_UNIT**2 * sum(c * c for c in caps[:k])
        case "curvature":
            return both**2 * BAND_UNIT**2 * sum(c * c for c in caps[: 2 * k])
        case "luck":
            assert board is not None
            return _luck(market, board, value, both)


def _luck(market: Market, board: Billboard, value: int, both: int) -> int:
    """What coins give an agent beyond its average, at most, and how two agents differ in it."""
    factors, bound = closing.luck_terms(board)
    if min(factors) < SHARE:
        return (both * value) ** 2
    dearest = [max(prices) for prices in zip(*(s.prices for s in board.rounds), strict=True)]
    costs = [c * p for c, p in zip(market.cap_codes, dearest, strict=True)]
    cost = sum(sorted(costs, reverse=True)[: market.bundle_size])
    # Luck is cut to `bound`, so what is charged for is that; it must be no less than any cost.
    enough = min(value, math.ceil(Fraction(cost, PRICE_UNITS_PER_VALUE_CODE)))
    one_sided = both == 2 and market.options == 1 and bound >= enough
    return (bound + 1) ** 2 if one_sided else (both * bound) ** 2


def cost(market: Market, step: Step, board: Billboard | None = None) -> tuple[Fraction, float]:
    """The rho and the delta of a release."""
    squared = squared_sensitivity(market, step.query, board)
    match step.noise:
        case Gaussian(scale):
            return Fraction(squared) / (2 * Fraction(scale) ** 2), 0.0
        case TruncatedLaplace(scale, bound):
            touched = market.bundle_size * (2 if market.neighbours is Neighbours.REPLACE_ONE else 1)
            caps = sorted(market.cap_codes, reverse=True)
            moves = caps[:touched] if step.query == "demand" else [math.isqrt(squared)]
            return Fraction(squared) / (2 * Fraction(scale) ** 2), sum(
                _outside(scale, bound, move) for move in moves
            )
        case _:
            return Fraction(10**9), 0.0


def _outside(scale: float, bound: int, move: int) -> float:
    """The mass within `move` of the end of truncated Laplace noise, an integral from above."""
    log_mass = -(bound - move) / scale + math.log(-math.expm1(-move / scale))
    log_whole = math.log(-math.expm1(-bound / scale))
    return math.exp(log_mass - log_whole) / (1.0 + math.exp(-1.0 / scale))


def of_charges(tape: Tape, setting: Setting) -> list[Finding]:
    """A run costs no more than its budget, and its budget no more than (epsilon, delta)."""
    market, budget = tape.people.market, setting.budget
    of_all, tails = Fraction(0), 0.0
    of_batches: dict[Batch, Fraction] = defaultdict(Fraction)
    batch_tails: dict[Batch, float] = defaultdict(float)
    for line in tape.lines:
        rho, delta = cost(market, line.step, tape.board)
        if line.step.batch is None:
            of_all, tails = of_all + rho, tails + delta
        else:
            of_batches[line.step.batch] += rho
            batch_tails[line.step.batch] += delta
    spent = of_all + max(of_batches.values(), default=Fraction(0))
    tails += max(batch_tails.values(), default=0.0)
    wrong = []
    if spent > Fraction(budget.rho):
        wrong.append(f"the releases cost rho {float(spent):.9g}, of {budget.rho:.9g}")
    if tails > budget.truncation * (1.0 + 1e-6):
        wrong.append(f"noise with an end costs delta {tails:.3g}, of {budget.truncation:.3g}")
    posted = tape.board.header.budget if tape.board is not None else budget
    if posted != budget:
        wrong.append(f"the header promises {posted}, not {budget}")
    return [
        fact(
            "budget: sum",
            "all releases together cost no more than the budget",
            wrong,
            f"{len(tape.lines)} releases cost {float(spent / Fraction(budget.rho)):.4%} of it",
        ),
        of_budget(budget),
    ]


def of_budget(budget: Budget) -> Finding:
    """The split of (epsilon, delta): noise, its ends, and the repair."""
    total = conversion(budget.rho, budget.epsilon) + budget.truncation
    total += (1.0 + math.exp(budget.epsilon)) * budget.beta
    wrong = [f"the parts of delta sum to {total:.6g}, above {budget.delta:.6g}"]
    return fact(
        "budget: epsilon and delta",
        "rho, truncation and repair together are (epsilon, delta)",
        wrong if total > budget.delta * (1.0 + 1e-9) else [],
        f"the parts of delta sum to {total / budget.delta:.4%} of it",
    )


def conversion(rho: float, epsilon: float) -> float:
    """Delta of rho-zCDP: Canonne, Kamath & Steinke 2020, Proposition 12."""

    def log_delta(a: float) -> float:
        tilt = (a - 1.0) * (a * rho - epsilon)
        return tilt + a * math.log1p(-1.0 / a) - math.log(a - 1.0)

    low, high = 1.0 + 1e-9, 2.0 + 4.0 * (epsilon / rho + 1.0)
    for _ in range(300):  # convex in a
        left, right = low + (high - low) / 3.0, high - (high - low) / 3.0
        if log_delta(left) < log_delta(right):
            high = right
        else:
            low = left
    return math.exp(log_delta((low + high) / 2.0))


# --- a policy that asks until it is refused -------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """Asks for demand, each time for one part of the budget, for ever."""

    parts: float

    name: ClassVar[str] = "audit-probe"
    truncated: ClassVar[bool] = False

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "parts": self.parts}

    def outlook(self, market: Market, budget: Budget) -> Outlook:
        scale = self._noise(market, budget).scale
        return Outlook(100, 100.0 * scale * scale, scale, 100)

    def start(self, market: Market, budget: Budget) -> Step:
        return Step("demand", (2**30,) * len(market.resources), self._noise(market, budget), 1)

    def step(self, state: Step) -> Step | None:
        return state

    def observe(self, state: Step, release: Release) -> Step:
        return state

    def _noise(self, market: Market, budget: Budget) -> Gaussian:
        squared = squared_sensitivity(market, "demand")
        return Gaussian(math.sqrt(squared * self.parts / (2.0 * budget.rho)))


def of_filter(people: People, epsilon: float, delta: float) -> Finding:
    """Greedy runs are refused in the first round that the budget does not cover."""
    wrong, seen = [], []
    for parts in (1.0 + 1e-9, 3.0 + 1e-9, 5.0 - 1e-9, 7.5):
        setting = Setting(Probe(parts), epsilon, delta)
        with known(Probe):
            tape = record(setting, people)
        step = setting.policy.start(people.market, setting.budget)
        right = math.floor(Fraction(setting.budget.rho) / cost(people.market, step)[0])
        seen.append(len(tape.lines))
        if len(tape.lines) != right or not tape.error.startswith("BudgetError"):
            wrong.append(f"{len(tape.lines)} rounds were answered, and the budget covers {right}")
    return fact(
        "budget: refusal",
        "a release that the budget does not cover does not happen",
        wrong,
        f"refused after {', '.join(map(str, seen))} rounds, as it should",
    )
