"""Private: recomputes the arithmetic of the budget, with the audit's own formulas, in fractions.

It derives sensitivities and costs from their definitions (`queries.shifts` has the proofs), sums
them and compares the sum with the budget, and the budget with (epsilon, delta). A greedy policy
also asks the real pipeline until it is refused. That must happen in the right round, before the
pipeline touches the data.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from jdpack.audit.findings import Finding, fact
from jdpack.audit.lower_bound import scipy
from jdpack.audit.people import People
from jdpack.audit.recording import Setting, Tape, record
from jdpack.audit.scripted_policy import known
from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Release, Step
from jdpack.common.batches import Batch
from jdpack.errors import BudgetError
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.market.market import Market, Neighbours
from jdpack.privacy import queries
from jdpack.privacy.accounting import Budget, Cost, Filter
from jdpack.privacy.noise import Gaussian, TruncatedLaplace
from jdpack.privacy.queries import Query
from jdpack.privacy.tail_bounds import Outlook
from jdpack.protocol import closing

BAND_UNIT = 1024


def squared_sensitivity(market: Market, query: Query, board: Billboard | None = None) -> int:
    """The square of the L2 sensitivity of a query."""
    caps = sorted((market.demand_code(j, r.max_demand) for j, r in enumerate(market.resources)))
    caps.reverse()
    k, value = market.bundle_size, market.value_code(market.max_value)
    both = _records(market)
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


def _records(market: Market) -> int:
    """How many records differ between neighbours: replacing one removes one and adds another."""
    return 2 if market.neighbours is Neighbours.REPLACE_ONE else 1


def _luck(market: Market, board: Billboard, value: int, both: int) -> int:
    """Bounds what coins give an agent beyond its average, and how two agents differ in it."""
    factors, bound = closing.luck_terms(board)
    if min(factors) < SHARE:
        return (both * value) ** 2
    dearest = [max(prices) for prices in zip(*(s.prices for s in board.rounds), strict=True)]
    costs = [c * p for c, p in zip(market.cap_codes, dearest, strict=True)]
    cost = sum(sorted(costs, reverse=True)[: market.bundle_size])
    # Luck is cut to `bound`, so the charge is for that bound. It must be no less than any cost.
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
            touched = market.bundle_size * _records(market)
            caps = sorted(market.cap_codes, reverse=True)
            moves = caps[:touched] if step.query == "demand" else [math.isqrt(squared)]
            return Fraction(squared) / (2 * Fraction(scale) ** 2), sum(
                _outside(scale, bound, move) for move in moves
            )
        case _:
            return Fraction(10**9), 0.0


def _outside(scale: float, bound: int, move: int) -> float:
    """The mass within `move` of the end of truncated Laplace noise, bounded by an integral."""
    log_mass = -(bound - move) / scale + math.log(-math.expm1(-move / scale))
    log_whole = math.log(-math.expm1(-bound / scale))
    return math.exp(log_mass - log_whole) / (1.0 + math.exp(-1.0 / scale))


def spent(tape: Tape) -> tuple[Fraction, float]:
    """What the releases of a run cost together: rho, and the delta of truncated noise."""
    assert tape.board is not None
    of_all, tails = Fraction(0), 0.0
    of_batches: dict[Batch, Fraction] = defaultdict(Fraction)
    batch_tails: dict[Batch, float] = defaultdict(float)
    for release in tape.board.releases:
        rho, delta = cost(tape.people.market, release.step, tape.board)
        if release.step.batch is None:
            of_all, tails = of_all + rho, tails + delta
        else:
            of_batches[release.step.batch] += rho
            batch_tails[release.step.batch] += delta
    most = max(of_batches.values(), default=Fraction(0))
    return of_all + most, tails + max(batch_tails.values(), default=0.0)


def of_charges(tapes: Iterable[Tape]) -> list[Finding]:
    """The filter charges what a run costs, and that is within the budget."""
    wrong, unlike, some, most, budgets = list[str](), list[str](), 0, 0.0, dict[Budget, Finding]()
    for tape in tapes:
        if tape.board is None:
            continue
        budget, (rho, tails) = tape.setting.budget, spent(tape)
        some += 1
        most = max(most, float(rho / Fraction(budget.rho)))
        budgets.setdefault(budget, of_budget(budget))
        if rho > Fraction(budget.rho):
            wrong.append(f"the releases cost rho {float(rho):.9g}, of {budget.rho:.9g}")
        if tails > budget.truncation * (1.0 + 1e-6):
            wrong.append(f"truncated noise costs delta {tails:.3g}, of {budget.truncation:.3g}")
        if tape.board.header.budget != budget:
            wrong.append(f"the header promises {tape.board.header.budget}, not {budget}")
        if tape.spent is not None:
            # The filter rounds every charge up by less than 2^-100, and integer claims are rounded
            # up too.
            extra = Fraction(tape.spent.rho) - rho
            if not 0 <= extra <= rho * Fraction(1, 10**6):
                unlike.append(
                    f"the filter charged rho {float(tape.spent.rho):.9g}, the cost is "
                    f"{float(rho):.9g}"
                )
            grains = 2.0**-99 * len(tape.board.releases)
            if not tails * 0.99 <= float(tape.spent.delta) <= tails * 1.05 + grains:
                unlike.append(
                    f"the filter charged delta {float(tape.spent.delta):.3g}, the cost is "
                    f"{tails:.3g}"
                )
    return [
        fact(
            "budget: sum",
            "all releases together cost no more than the budget",
            wrong,
            f"{some} runs cost at most {most:.4%} of the budget",
            tested=some > 0,
        ),
        fact(
            "budget: charges",
            "a run is charged what its releases cost",
            unlike,
            f"checked in {some} runs",
            tested=some > 0,
        ),
        fact(
            "budget: epsilon and delta",
            "rho, truncation and repair together give (epsilon, delta)",
            [one.seen for one in budgets.values() if not one.passed],
            "; ".join(one.seen for one in budgets.values()),
            tested=some > 0,
        ),
    ]


def of_factors(tapes: Iterable[Tape]) -> Finding:
    """The certificate's factors leave enough supply for the noise in the loads.

    The cost of a repair rests on this: it is a delta for an event of probability beta. If the
    factors left less than the exact quantile of the noise, repairs would happen more often.
    """
    wrong, some = [], 0
    for tape in tapes:
        board = tape.board
        if board is None or board.certificate is None:
            continue
        market, beta = board.header.market, tape.setting.budget.beta
        loads = _least_bounds(board, beta)
        if loads is None:
            continue
        some += 1
        for j, (load, factor) in enumerate(zip(loads, board.certificate.factors, strict=True)):
            if factor * load > SHARE * (1.0 + 1e-6):
                wrong.append(
                    f"the factor {factor / SHARE:.6g} is too large for {market.resources[j].name!r}"
                    f": its load may be {load:.6g} times the supply"
                )
    return fact(
        "certificate: factors",
        "the factors leave enough supply for the noise in the loads",
        wrong,
        f"checked in {some} runs",
        tested=some > 0,
    )


def _least_bounds(board: Billboard, beta: float) -> list[float] | None:
    """For each resource, the unscaled load that noise alone exceeds with probability beta / m."""
    market = board.header.market
    m, supply = len(market.resources), market.supply_code
    z = float(scipy("special").ndtri(1.0 - beta / m)) * (
        1.0 - 1e-3
    )  # the lattice moves it a little
    if market.divisible:
        counted = [r for r in board.releases if r.step.weight]
        if not all(isinstance(r.step.noise, Gaussian) for r in counted):
            return None
        spread = math.sqrt(
            sum((r.step.weight * getattr(r.step.noise, "scale", 0.0)) ** 2 for r in counted)
        )
        first = counted[0].step
        weight = first.weight if first.batch else sum(r.step.weight for r in counted)
        sums = [sum(r.step.weight * r.answer[j] for r in counted) for j in range(m)]
        return [(total + z * spread) / (weight * supply) for total in sums]
    granted = next(r for r in board.releases if r.step.query == "granted")
    scale = getattr(granted.step.noise, "scale", 0.0)
    return [(answer + z * scale) / supply for answer in granted.answer]


def of_budget(budget: Budget) -> Finding:
    """The parts of (epsilon, delta): noise, its truncation, and the repair."""
    total = conversion(budget.rho, budget.epsilon) + budget.truncation
    total += (1.0 + math.exp(budget.epsilon)) * budget.beta
    wrong = [f"the parts of delta sum to {total:.6g}, above {budget.delta:.6g}"]
    return fact(
        "budget: epsilon and delta",
        "rho, truncation and repair together give (epsilon, delta)",
        wrong if total > budget.delta * (1.0 + 1e-9) else [],
        f"the parts of delta sum to {total / budget.delta:.4%} of it",
    )


def conversion(rho: float, epsilon: float) -> float:
    """The delta of rho-zCDP at epsilon: Canonne, Kamath & Steinke 2020, Proposition 12."""

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
    """Asks for demand for ever; each answer costs one of `parts` equal parts of the budget."""

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


def of_batch_filter(setting: Setting) -> Finding:
    """The filter sums the costs of releases about all agents and of the dearest batch."""
    rng, wrong, refused, taken = random.Random(7), list[str](), 0, 0
    for _ in range(20):
        budget = setting.budget
        filter, all_agents = Filter(budget), Fraction(0)
        batches: dict[int, Fraction] = defaultdict(Fraction)
        for _ in range(30):
            rho = Fraction(budget.rho) * Fraction(rng.randrange(1, 2**20), 2**23)
            batch = None if rng.random() < 0.3 else Batch(rng.randrange(4), 4)
            whole, parts = all_agents, dict(batches)
            if batch is None:
                whole += rho
            else:
                parts[batch.index] = batches[batch.index] + rho
            total = whole + max(parts.values(), default=Fraction(0))
            fits = total * (1 + Fraction(1, 2**60)) <= Fraction(budget.rho)
            try:
                filter.charge(Cost(rho), batch)
                accepted = True
            except BudgetError:
                accepted = False
            if accepted != fits:
                wrong.append(
                    f"a sum of {float(total / Fraction(budget.rho)):.4%} of the budget is "
                    f"{'accepted' if accepted else 'refused'}"
                )
                break
            refused, taken = refused + (not accepted), taken + accepted
            if accepted:
                all_agents = whole
                batches.update(parts)
    return fact(
        "budget: batches",
        "costs of all agents add up, and batches of one partition cost what the dearest does",
        wrong,
        f"{taken} charges were rightly accepted and {refused} rightly refused",
        tested=refused > 0,
    )


def of_formulas(markets: Iterable[Market]) -> Finding:
    """The sensitivities that policies scale their noise to are no less than the audit's own."""
    wrong, some = [], 0
    for market in markets:
        for query in QUERIES:
            own = squared_sensitivity(market, query)
            theirs = sum(d * d for d in queries.shifts(market, query))
            some += 1
            if theirs < own:
                wrong.append(
                    f"{query} of {market.name!r} moves by {math.sqrt(own):.6g}, but the claim is "
                    f"{math.sqrt(theirs):.6g}"
                )
        both = _records(market)
        for thinned in (False, True):
            one_sided = both == 2 and market.options == 1 and not thinned
            least = 1001 if one_sided else both * 1000
            if queries.luck_shifts(market, 1000, thinned=thinned)[0] < least:
                wrong.append(f"luck of {market.name!r} moves by {least} of 1000")
    return fact(
        "sensitivity: formulas",
        "the claim for every query is no less than the audit's own formula gives",
        wrong,
        f"checked for {some} queries",
        tested=some > 0,
    )


QUERIES: tuple[Query, ...] = (
    "demand",
    "scale",
    "value",
    "curvature",
    "gauge",
    "welfare",
    "granted",
)


def of_filter(people: People, epsilon: float, delta: float) -> Finding:
    """The pipeline refuses a greedy run in the first round that the budget does not cover."""
    wrong, seen = [], []
    for parts in (1.0 + 1e-9, 3.0 + 1e-9, 5.0 - 1e-9, 7.5):
        setting = Setting(Probe(parts), epsilon, delta)
        with known(Probe):
            tape = record(setting, people)
        step = setting.policy.start(people.market, setting.budget)
        right = math.floor(Fraction(setting.budget.rho) / cost(people.market, step)[0])
        seen.append(len(tape.calls))
        if len(tape.calls) != right or not tape.error.startswith("BudgetError"):
            wrong.append(f"noise was drawn in {len(tape.calls)} rounds, the budget covers {right}")
    return fact(
        "budget: refusal",
        "a release that the budget does not cover does not happen",
        wrong,
        f"rightly refused after {', '.join(map(str, seen))} rounds",
    )
