"""Private: recomputes the arithmetic of the budget, with the audit's own formulas, in fractions.

It derives sensitivities and costs from their definitions (`queries.change` has the proofs), sums
them and compares the sum with the budget, and the budget with (epsilon, delta). A greedy policy
also asks the real pipeline until it is refused. That must happen in the right round, before the
pipeline touches the data.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from jdpack.audit.epsilon_bounds import scipy
from jdpack.audit.findings import Finding, fact
from jdpack.audit.people import People
from jdpack.audit.recording import Setting, Tape, record
from jdpack.audit.reference import (
    TOP,
    bundle_width,
    groups_in,
    luck_range,
    value_cap,
    wanted_with,
)
from jdpack.audit.scripted_policy import known
from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Release, Step
from jdpack.common.batches import Batch
from jdpack.common.portable_math import FloatArray
from jdpack.errors import BudgetError
from jdpack.market.grid import CHANCE_UNIT, SHARE
from jdpack.market.market import Market, Neighbours
from jdpack.privacy import queries
from jdpack.privacy.accounting import Budget, Cost, Filter
from jdpack.privacy.noise import Gaussian, TruncatedLaplace, deviation
from jdpack.privacy.queries import Query
from jdpack.privacy.tail_bounds import Outlook

BAND_UNIT = 1024
EVEN = (1.0,)
SURELY = 1e-9
"""The probability with which `load_surely` may fail."""
_EXPONENTS = np.arange(-80.0, 41.0)
_STEPS = 5
"""More would move a bound by less than 1e-9 of it."""
TRANSFER = Fraction(1, 512)
"""The most epsilon, as a part of rho, that discrete noise may cost (`privacy.gdp`)."""


def worst(
    market: Market,
    query: Query,
    scales: tuple[float, ...] = EVEN,
    board: Billboard | None = None,
) -> Fraction:
    """The largest sum of (move / scale)^2 that one agent can cause in an answer.

    There is one scale for all numbers of the answer, or one for each. Where groups have rules this
    is sharper than what the pipeline claims.
    """
    if query != "luck":
        return _worst(market, query, scales)
    assert board is not None
    lowest, highest = _person_luck(market, *luck_range(board))
    most = highest - lowest if _records(market) == 2 else max(-lowest, highest)
    return (max(most, 1024) / Fraction(min(scales))) ** 2


@functools.lru_cache(maxsize=4096)
def _worst(market: Market, query: Query, scales: tuple[float, ...]) -> Fraction:
    least, m = Fraction(min(scales)), len(market.resources)
    several, both = market.options > 1, _records(market)
    most_of, requests = caps(market), market.requests
    # What the longest vectors of all requests of an agent can add up to.
    longest = TOP * requests
    if requests > 1:
        longest = min(longest, sum(sorted(most_of)[-(m if several else _width(market)) :]))
    match query:
        case "demand" | "granted":
            each = [Fraction(s) for s in (scales if len(scales) > 1 else [*scales] * m)]
            return _demand(market, each, both)
        case "scale":
            smallest = min(market.supply_codes)
            parts = zip(most_of, market.supply_codes, strict=True)
            return (max(math.ceil(Fraction(c * smallest, s)) for c, s in parts) / least) ** 2
        case "value" | "welfare":
            return (_most_value(market) / least) ** 2
        case "gauge":
            return both * 2 * (BAND_UNIT * longest / least) ** 2
        case "curvature":
            # Outer products of vectors with themselves, each no longer than a cap.
            return both * (BAND_UNIT * longest / least) ** 2
        case "chance" if requests > 1:
            loads = Fraction(min(scales[:-1]) if len(scales) > 1 else scales[0])
            in_loads = _chance_of_loads(market, both)
            return in_loads / loads**2 + (requests * (2**16 + 1) / Fraction(scales[-1])) ** 2
        case "chance":
            most, k = 2**16 + 1, bundle_width(market)
            of_loads = math.ceil(Fraction(5, 2) * k) if several else k
            loads = Fraction(min(scales[:-1]) if len(scales) > 1 else scales[0])
            moved = min(both * of_loads, m)
            return most**2 * (moved / loads**2 + 1 / Fraction(scales[-1]) ** 2)
    raise AssertionError(f"nothing is known about {query}")


def caps(market: Market) -> list[int]:
    """The most codes of each resource that one agent can take, over all its requests.

    A request whose code is c is sure to ask for more than c - 1 units.
    """
    requests, found = market.requests, []
    for r, unit in zip(market.declared, market.unit_sizes, strict=False):
        most = requests * TOP
        if r.name in market.person.max_demand:
            units = Fraction(market.person.max_demand[r.name]) / Fraction(unit)
            most = min(most, math.floor(units) + requests)
        found.append(most)
    return found + [found[rule.base] for _, rule in market.derived]


def _size(market: Market) -> int:
    """The most declared resources that one agent can touch."""
    size = min(market.requests * market.bundle_size, len(market.declared))
    return min(size, market.person.bundle_size or size)


def _width(market: Market) -> int:
    """The most resources that one agent can touch, derived ones included."""
    each = [sorted(map(len, wanted_with(market, group)))[::-1] for group in groups_in(market)]
    return max(sum(counts[: _size(market)]) for counts in each)


def _most_value(market: Market) -> int:
    """The most value codes that one agent can take."""
    most = market.requests * value_cap(market)
    if market.person.max_value is None:
        return most
    return min(most, math.floor(Fraction(market.person.max_value) / Fraction(market.value_step)))


def _person_luck(market: Market, lowest: int, highest: int) -> tuple[int, int]:
    """The least and the most that all requests of an agent add to luck, from those of one."""
    requests, most = market.requests, _most_value(market)
    if requests == 1:
        return lowest, highest
    rounding = requests * market.options * (value_cap(market) // SHARE + 2)
    least = math.floor(Fraction(lowest * most, value_cap(market))) - rounding
    return max(requests * lowest, least), min(requests * highest, most)


def _chance_of_loads(market: Market, both: int) -> int:
    """The most that the squares of what coins add to loads sum to, over all requests of an agent.

    It is a whole number of squares of the largest one, like the claim.
    """
    requests, k, m = market.requests, _width(market), len(market.resources)
    # A quarter of a squared code, at most the cap times the code, rounded up for each request.
    each = sorted(
        min(requests * (2**16 + 1), math.ceil(Fraction(TOP * c, 4 * CHANCE_UNIT)) + 2 * requests)
        for c in caps(market)
    )
    squares = sum(a * a for a in each[-k:])
    if market.options > 1:
        taken = math.ceil(Fraction(TOP * sum(sorted(caps(market))[-k:]), CHANCE_UNIT))
        touched = 2 * requests * min(m, market.options * bundle_width(market))
        squares = min(each[-1] * (taken + touched), sum(a * a for a in each))
    squares = min(both * squares, sum(a * a for a in each))
    return each[-1] ** 2 * math.ceil(Fraction(squares, each[-1] ** 2))


def _records(market: Market) -> int:
    """How many records differ between neighbours: replacing one removes one and adds another."""
    return 2 if market.neighbours is Neighbours.REPLACE_ONE else 1


def _demand(market: Market, scales: Sequence[Fraction], both: int) -> Fraction:
    """How far one or two options, each within the market's totals, can move a demand."""
    pairs_of = zip(caps(market), scales, strict=True)
    terms, groups = [(c / s) ** 2 for c, s in pairs_of], groups_in(market)
    if both == 1:
        plain = max(_bundle(market, terms, group) for group in groups)
    else:
        pairs = itertools.combinations_with_replacement(groups, 2)
        plain = max(_union(market, terms, *pair) for pair in pairs)
    if not market.person_totals:
        return plain
    # Totals never lower it below this, so that the noise is not too fine for its grid.
    least = Fraction(1e-5) * len(scales) * (max(caps(market)) / min(scales)) ** 2
    return min(plain, max(_within_totals(market, scales, both), least))


def _bundle(market: Market, terms: Sequence[Fraction], group: int) -> Fraction:
    """The largest sum of terms over the resources that an option of an agent of a group touches."""
    each = sorted((_sum(terms, own) for own in wanted_with(market, group)), reverse=True)
    return sum(each[: _size(market)], Fraction(0))


def _union(market: Market, terms: Sequence[Fraction], one: int, two: int) -> Fraction:
    """The largest sum of terms over the resources that two options touch, of agents of two groups.

    Either touches at most `_size` declared resources, and what goes with them.
    """
    k = _size(market)
    with_one, with_two = wanted_with(market, one), wanted_with(market, two)
    each = [
        (_sum(terms, a), _sum(terms, b), _sum(terms, {*a, *b}))
        for a, b in zip(with_one, with_two, strict=True)
    ]
    if one == two:
        return sum(sorted((a for a, _, _ in each), reverse=True)[: 2 * k], Fraction(0))
    if k == len(each):
        return sum((both for _, _, both in each), Fraction(0))
    best = {(0, 0): Fraction(0)}
    for a, b, both in each:
        for (i, j), so_far in list(best.items()):
            for more in ((i + 1, j, a), (i, j + 1, b), (i + 1, j + 1, both)):
                if max(more[:2]) <= k:
                    own = more[0], more[1]
                    best[own] = max(best.get(own, Fraction(0)), so_far + more[2])
    return max(best.values())


def _sum(terms: Sequence[Fraction], some: Iterable[int]) -> Fraction:
    return sum((terms[j] for j in some), Fraction(0))


def _within_totals(market: Market, scales: Sequence[Fraction], both: int) -> Fraction:
    """The largest sum of (code / scale)^2 of one or two options on different resources."""
    k, tops = bundle_width(market), caps(market)
    bounded = {j for total in market.person_totals for j in total.resources}
    each = enumerate(zip(tops, scales, strict=True))
    free = sorted(((c / s) ** 2 for j, (c, s) in each if j not in bounded), reverse=True)
    whole = sum(free[: both * _width(market)], Fraction(0))
    for total in market.person_totals:
        sizes = {j: Fraction(market.unit_sizes[j]) for j in total.resources}
        rounding = market.requests * sum(sorted(sizes.values(), reverse=True)[:k])
        limit = Fraction(total.amount) + rounding
        # Nobody can ask for more of one resource than the whole total.
        most = {j: min(Fraction(tops[j]), limit / size) for j, size in sizes.items()}
        terms = {j: (most[j] / scales[j]) ** 2 for j in sizes}
        if len({size * tops[j] for j, size in sizes.items()}) == 1:
            # Full codes, the largest terms first, and for each agent one code of what is left.
            size = max(size * tops[j] for j, size in sizes.items())
            full = both * min(limit // size, len(sizes))
            parts = [Fraction(1)] * full + [(limit / size) % 1] * both
            ranked = sorted(((tops[j] / scales[j]) ** 2 for j in sizes), reverse=True)
            whole += sum(t * part**2 for t, part in zip(ranked, parts, strict=False))
            continue
        # A square is at most its largest value times the code, so a total bounds a linear sum. By
        # duality it is the least of price * total + the sum of what terms exceed their price.
        costs = {j: size * most[j] for j, size in sizes.items()}
        whole += min(
            price * both * limit + sum(max(Fraction(0), terms[j] - price * costs[j]) for j in costs)
            for price in [Fraction(0), *(terms[j] / costs[j] for j in costs)]
        )
    return whole


def cost(market: Market, step: Step, board: Billboard | None = None) -> tuple[Fraction, float]:
    """The rho and the delta of a release."""
    match step.noise:
        case Gaussian(scales):
            return worst(market, step.query, scales, board) / 2, 0.0
        case TruncatedLaplace(scale, _):
            squared = worst(market, step.query, (scale,), board)
            return squared / 2, _delta(market, step.query, step.noise, board)
        case _:
            return Fraction(10**9), 0.0


def _delta(
    market: Market, query: Query, noise: TruncatedLaplace, board: Billboard | None = None
) -> float:
    """The delta of truncated noise: answers that only one of two neighbours can give."""
    if query == "demand":
        touched = min(_width(market) * _records(market), len(market.resources))
        moves = [max(caps(market))] * touched
    else:
        moves = [math.isqrt(round(worst(market, query, board=board)))]
    return sum(_outside(noise.scale, noise.bound, move) for move in moves)


def discreteness(market: Market, step: Step) -> Fraction:
    """The extra cost, as epsilon, of Gaussian noise that is discrete, not normal.

    A draw of scale s costs at most (30^2 + 2) / (24 s^2), unless it exceeds 30 s.
    """
    if not isinstance(step.noise, Gaussian):
        return Fraction(0)
    scales = step.noise.scales
    times = queries.width(market, step.query) if len(scales) == 1 else 1
    return times * sum((Fraction(902, 24) / Fraction(s) ** 2 for s in scales), Fraction(0))


def _outside(scale: float, bound: int, move: int) -> float:
    """The mass within `move` of the end of truncated Laplace noise, bounded by an integral."""
    log_mass = -(bound - move) / scale + math.log(-math.expm1(-move / scale))
    log_whole = math.log(-math.expm1(-bound / scale))
    return math.exp(log_mass - log_whole) / (1.0 + math.exp(-1.0 / scale))


def spent(tape: Tape) -> tuple[Fraction, float, Fraction]:
    """What the releases of a run cost together.

    That is rho, the delta of truncated noise, and the epsilon of discrete noise.
    """
    assert tape.board is not None
    totals = [Fraction(0)] * 3
    of_batches: dict[int, list[Fraction]] = defaultdict(lambda: [Fraction(0)] * 3)
    for release in tape.board.releases:
        step = release.step
        rho, delta = cost(tape.people.market, step, tape.board)
        each = rho, Fraction(delta), discreteness(tape.people.market, step)
        if step.batch is None:
            totals = [a + b for a, b in zip(totals, each, strict=True)]
        else:
            for batch in range(step.batch.index - step.span + 1, step.batch.index + 1):
                own = of_batches[batch]
                of_batches[batch] = [a + b for a, b in zip(own, each, strict=True)]
    for at, parts in enumerate(zip(*of_batches.values(), strict=True)):
        totals[at] += max(parts)
    return totals[0], float(totals[1]), totals[2]


def of_charges(tapes: Iterable[Tape]) -> list[Finding]:
    """The filter charges what a run costs, and that is within the budget."""
    wrong, unlike, some, most = list[str](), list[str](), 0, 0.0
    budgets = dict[tuple[Budget, float], Finding]()
    for tape in tapes:
        if tape.board is None:
            continue
        budget, (rho, tails, grid) = tape.budget, spent(tape)
        some += 1
        most = max(most, float(rho / Fraction(budget.rho)))
        excess = tape.people.market.excess_probability
        if (budget, excess) not in budgets:
            budgets[budget, excess] = of_budget(budget, excess)
        if rho > Fraction(budget.rho):
            wrong.append(f"the releases cost rho {float(rho):.9g}, of {budget.rho:.9g}")
        if tails > budget.truncation * (1.0 + 1e-6):
            wrong.append(f"truncated noise costs delta {tails:.3g}, of {budget.truncation:.3g}")
        if budget.accounting == "gdp" and grid > Fraction(budget.rho) * TRANSFER:
            wrong.append(f"discrete noise costs epsilon {float(grid):.3g}, above its part of rho")
        if tape.board.header.budget != budget:
            wrong.append(f"the header promises {tape.board.header.budget}, not {budget}")
        if tape.spent is not None:
            # The filter rounds every charge up by less than 2^-100, and integer claims are rounded
            # up too.
            extra = Fraction(tape.spent.rho) - rho
            coarse = bool(tape.people.market.groups)  # where the claim may exceed the cost
            if not 0 <= extra <= (rho if coarse else rho * Fraction(1, 10**6)):
                unlike.append(
                    f"the filter charged rho {float(tape.spent.rho):.9g}, the cost is "
                    f"{float(rho):.9g}"
                )
            if not grid <= tape.spent.transfer <= grid * Fraction(102, 100):
                unlike.append(
                    f"the filter charged {float(tape.spent.transfer):.3g} for discrete noise, the "
                    f"cost is {float(grid):.3g}"
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
    """The certificate leaves enough supply for the noise in the loads, and for the coins.

    The cost of a repair rests on this: it is a delta for an event of probability beta. If factors
    and bounds left less than the exact quantile, repairs would happen more often.
    """
    wrong, some = [], 0
    for tape in tapes:
        board = tape.board
        if board is None or board.certificate is None:
            continue
        market, posted = tape.people.market, board.certificate
        never, excess = market.excess_probability == 0.0, market.excess_probability
        loads = _least_loads(board, tape.budget.beta if never else excess, spare=never)
        if loads is None:
            continue
        some += 1
        surely = None
        if posted.load_surely is not None:
            surely = _least_loads(board, SURELY, spare=False)
        if (posted.load_surely is None) != never:
            wrong.append(f"load_surely is {posted.load_surely}, at an excess of {excess:g}")
        for j, r in enumerate(market.resources):
            if loads[j] > 1.0 + 1e-6:
                wrong.append(
                    f"the factor {posted.factors[j] / SHARE:.6g} is too large for {r.name!r}: the "
                    f"load given may be {loads[j]:.6g} times the supply"
                )
            stated = [("load_at_most", posted.load_at_most[j], min(1.0, loads[j]))]
            if posted.load_surely is not None and surely is not None:
                stated.append(("load_surely", posted.load_surely[j], surely[j]))
            wrong += [
                f"{name} is {most:.6g} for {r.name!r}, but the load may be {least:.6g}"
                for name, most, least in stated
                if least > most * (1.0 + 1e-6)
            ]
    return fact(
        "certificate: factors",
        "factors and bounds leave enough supply for the noise in the loads and for the coins",
        wrong,
        f"checked in {some} runs",
        tested=some > 0,
    )


def _least_loads(board: Billboard, beta: float, *, spare: bool) -> list[float] | None:
    """For each resource, the least that may be certified of the load given.

    Noise and coins exceed less than this with a probability above the resource's part of beta, for
    the records or, if `spare`, for a neighbour with one agent more. Coins decide what is granted,
    and then which grants are kept, each with the probability that the factor says. At worst every
    grant is a whole cap.
    """
    market, posted = board.header.market, board.certificate
    assert posted is not None
    m, counted = len(market.resources), [r for r in board.releases if r.step.weight]
    if not all(isinstance(r.step.noise, Gaussian) for r in counted):
        return None
    first, last = counted[0].step, counted[-1].step
    parts, worth = np.full(m, beta / m), np.array(first.prices, float) * deviation(first.noise)
    if board.header.policy.get("beta_parts") == "by worth" and worth.any():
        parts = 0.1 * parts + 0.9 * beta * worth / worth.sum()
    # The lattice moves the quantile a little.
    quantiles = -scipy("special").ndtri(parts) * (1.0 - 1e-3)
    weight = first.weight if first.batch else sum(r.step.weight for r in counted)
    if last.batch is not None:  # the blocks that end last hold every batch once
        ends = {last.batch.index: last.span}
        while (end := min(ends) - ends[min(ends)]) >= 0:
            ends[end] = counted[end].step.span
        counted = [counted[end] for end in sorted(ends)]
    granted, chance = (
        next((r for r in board.releases if r.step.query == query), None)
        for query in ("granted", "chance")
    )
    found = []
    for j, (supply, z) in enumerate(zip(market.supply_codes, quantiles.tolist(), strict=True)):
        scales = [(deviation(r.step.noise) * m)[j] for r in counted]
        noise = sum((r.step.weight * s) ** 2 for r, s in zip(counted, scales, strict=True))
        total = sum(r.step.weight * r.answer[j] for r in counted) / weight
        f, spread = posted.factors[j] / SHARE, math.sqrt(noise) / weight
        if chance is None:
            more = 0.0 if market.divisible else _kept(total / TOP, f, z * z / 2.0) * TOP
            least = f * total + math.hypot(z * f * spread, more)
        else:
            scale = deviation(chance.step.noise)[0] * CHANCE_UNIT
            coins = float(chance.answer[j] * CHANCE_UNIT)
            own, shown = spread, total  # as if there were only the rounds
            if granted is not None:
                own, shown = (deviation(granted.step.noise) * m)[j], granted.answer[j]
            w = np.zeros(1) if granted is None else np.linspace(0.0, 1.0, 21)
            least = _with_coins(
                w * shown + (1.0 - w) * total,
                f,
                np.hypot((1.0 - w) * spread, w * own) ** 2,
                (1.0 - w) ** 2 * coins,
                (1.0 - w) ** 2 * scale,
                -math.log(parts[j]),
            )
        found.append((least + caps(market)[j] * spare * f) / supply)
    return found


def _with_coins(
    totals: FloatArray,
    f: float,
    noises: FloatArray,
    coins: FloatArray,
    scales: FloatArray,
    tail: float,
) -> float:
    """The least that may be certified of a load that coins decide, and thin to f.

    Each of `totals` estimates the load: a mixture of what the rounds show and what is measured of
    the grants. `noises` are the variances of the noise in them, and `coins` those of the coins,
    released with noise of these scales. Let X be the noise in the load less l / 2 times that in
    the release. If the sum of the coins is normal, Chernoff's bound at the rate l for a load of
    total + l coins / 2 + r is the mean of min(1, exp(-l (r - X))). At best, thinning multiplies
    that load by g, the logarithm of a cap's moment at that rate. The best mixture and rate give
    the least. If what is released is negative, so much noise in it is unlikely to come together
    with much in the load, and a bound may say so.
    """
    if f == 0.0:
        return 0.0
    log_ndtr = scipy("special").log_ndtr
    about = noises + abs(coins) + scales + (1.0 / f - 1.0) * TOP * abs(totals)
    rates = np.sqrt(2.0 * tail / about)[:, None] * 10.0 ** (_EXPONENTS / 40.0)
    spreads = np.sqrt(noises[:, None] + (rates * scales[:, None] / 2.0) ** 2)
    steep = rates * spreads
    # Chernoff's bound at this rate or a lower one begins above the tail. The logarithm of the mean
    # is concave in r, so that Newton's method comes down to it.
    lower = np.minimum(steep, math.sqrt(2.0 * tail))
    z = np.minimum(tail / lower + lower / 2.0, 40.0)
    for _ in range(_STEPS):
        beyond = steep * (steep / 2.0 - z) + log_ndtr(z - steep)
        mean = np.logaddexp(log_ndtr(-z), beyond)
        z = np.minimum(z + (mean + tail) * np.exp(mean - beyond) / steep, 40.0)
    steep = np.minimum(rates * TOP, 600.0)
    g = np.minimum(1.0, steep / np.log1p(np.expm1(steep) / f))
    # The lattice moves the quantile a little.
    bounds = totals[:, None] + z * (1.0 - 1e-3) * spreads + rates * coins[:, None] / 2.0
    return float((g * bounds).min())


def _kept(grants: float, f: float, tail: float) -> float:
    """How many more than f times the grants coins keep, each with probability f, by Chernoff."""
    if not 0.0 < f < 1.0 or grants <= 0.0:
        return 0.0
    low, high = f, 1.0
    for _ in range(40):
        a = (low + high) / 2.0
        entropy = a * math.log(a / f)
        if a < 1.0:  # the middle is rounded to 1 where f is close to it
            entropy += (1.0 - a) * math.log((1.0 - a) / (1.0 - f))
        low, high = (low, a) if grants * entropy >= tail else (a, high)
    return (low - f) * grants


def of_budget(budget: Budget, excess: float = 0.0) -> Finding:
    """The parts of (epsilon, delta): noise, its truncation, and the repair.

    Everything is repaired, unless the market says with what probability a supply may be exceeded.
    """
    normal = budget.accounting == "gdp"
    total = (gaussian_delta if normal else conversion)(budget.rho, budget.epsilon)
    # With normal noise the certificate leaves one cap more, so that neighbours need no second beta.
    repair = (1.0 if normal else 1.0 + math.exp(budget.epsilon)) * budget.beta
    total += budget.truncation + (repair if excess == 0.0 else 0.0)
    wrong = []
    if total > budget.delta * (1.0 + 1e-6):
        wrong.append(f"the parts of delta sum to {total:.6g}, above {budget.delta:.6g}")
    if budget.repaired != (excess == 0.0):
        wrong.append(f"the budget says repaired = {budget.repaired}, at an excess of {excess:g}")
    if excess > 0.0 and budget.beta > excess:
        wrong.append(f"bounds fail with probability {budget.beta:g}, above {excess:g}")
    return fact(
        "budget: epsilon and delta",
        "rho, truncation and repair together give (epsilon, delta)",
        wrong,
        f"the parts of delta sum to {total / budget.delta:.4%} of it",
    )


def gaussian_delta(rho: float, epsilon: float) -> float:
    """The delta at epsilon of normal noise that moves by sqrt(2 rho) scales, made discrete."""
    log_tail, grid = scipy("special").log_ndtr, rho * float(TRANSFER)
    mu, e = math.sqrt(2.0 * rho), epsilon - grid
    above, below = float(log_tail(mu / 2.0 - e / mu)), float(log_tail(-mu / 2.0 - e / mu))
    return math.exp(grid + above) * -math.expm1(e + below - above)


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
    """Asks for demand forever; each answer costs one of `parts` equal parts of the budget."""

    parts: float

    name: ClassVar[str] = "audit-probe"
    truncated: ClassVar[bool] = False

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "parts": self.parts}

    def outlook(self, market: Market, budget: Budget) -> Outlook:
        (scale,) = deviation(self._noise(market, budget))
        return Outlook(100, 100.0 * scale * scale, scale, 100)

    def start(self, market: Market, budget: Budget) -> Step:
        return Step("demand", (2**30,) * len(market.resources), self._noise(market, budget), 1)

    def step(self, state: Step) -> Step | None:
        return state

    def observe(self, state: Step, release: Release) -> Step:
        return state

    def _noise(self, market: Market, budget: Budget) -> Gaussian | TruncatedLaplace:
        return Gaussian((math.sqrt(worst(market, "demand") * self.parts / (2.0 * budget.rho)),))


@dataclass(frozen=True)
class TruncatedProbe(Probe):
    """The same, but each answer costs a part of the delta for truncated noise, and little rho."""

    name: ClassVar[str] = "audit-truncated-probe"
    truncated: ClassVar[bool] = True

    def _noise(self, market: Market, budget: Budget) -> TruncatedLaplace:
        scale = math.sqrt(worst(market, "demand") * 40.0 / (2.0 * budget.rho))
        low = max(caps(market))
        high = low + math.ceil(100.0 * scale)
        while high - low > 1:
            noise = TruncatedLaplace(scale, (low + high) // 2)
            enough = _delta(market, "demand", noise) <= budget.truncation / self.parts
            low, high = (low, noise.bound) if enough else (noise.bound, high)
        return TruncatedLaplace(scale, high)


def of_batch_filter(setting: Setting) -> Finding:
    """The filter sums the costs of releases about all agents and of the dearest batch."""
    rng, wrong, refused, taken = random.Random(7), list[str](), 0, 0
    for _ in range(20):
        budget = Budget.split(setting.epsilon, setting.delta, truncated=False)
        filter, all_agents = Filter(budget), Fraction(0)
        batches: dict[int, Fraction] = defaultdict(Fraction)
        # In the order of a run: each block after the smaller blocks in it.
        blocks = sorted(rng.choices([(0, 1), (1, 1), (1, 2), (2, 1), (3, 1), (3, 4)], k=30))
        for index, span in blocks:
            rho = Fraction(budget.rho) * Fraction(rng.randrange(1, 2**20), 2**23)
            batch = None if rng.random() < 0.3 else Batch(index, 4)
            whole, parts = all_agents, dict(batches)
            if batch is None:
                whole += rho
            else:
                for one in range(index - span + 1, index + 1):
                    parts[one] = batches[one] + rho
            total = whole + max(parts.values(), default=Fraction(0))
            fits = total * (1 + Fraction(1, 2**60)) <= Fraction(budget.rho)
            try:
                filter.charge(Cost(rho), batch, 1 if batch is None else span)
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
        "costs of all agents add up, and blocks of batches cost what the dearest batch pays",
        wrong,
        f"{taken} charges were rightly accepted and {refused} rightly refused",
        tested=refused > 0,
    )


def of_formulas(markets: Iterable[Market]) -> Finding:
    """The sensitivities that policies scale their noise to are no less than the audit's own."""
    wrong, some = list[str](), 0

    def compare(what: str, market: Market, own: Fraction, theirs: float) -> None:
        if Fraction(theirs) < own:
            wrong.append(
                f"{what} of {market.name!r} moves by {math.sqrt(own):.6g}, but the claim is "
                f"{math.sqrt(theirs):.6g}"
            )

    for market in markets:
        for query in QUERIES:
            for scales in shapes(queries.width(market, query)):
                some += 1
                theirs = queries.change(market, query).worst(scales)
                compare(query, market, worst(market, query, scales), theirs)
        for lowest, highest in ((-3000, 0), (-5000, 5000), (-2000, 4000), (-1, 0)):
            most = highest - lowest if _records(market) == 2 else max(-lowest, highest)
            claimed = queries.luck_change(market, lowest, highest).squares
            compare("luck", market, Fraction(most**2), claimed)
    return fact(
        "sensitivity: formulas",
        "the claim for every query is no less than the audit's own formula gives",
        wrong,
        f"checked for {some} queries with noise of some shape",
        tested=some > 0,
    )


def shapes(width: int) -> list[tuple[float, ...]]:
    """Shapes of noise for an answer: even, and with scales that differ."""
    return [
        EVEN,
        tuple(1.0 + j % 3 for j in range(width)),
        tuple(2.0 ** ((7 * j) % 5) for j in range(width)),
    ][: 3 if width > 1 else 1]


QUERIES: tuple[Query, ...] = (
    "demand",
    "scale",
    "value",
    "curvature",
    "gauge",
    "granted",
    "chance",
    "welfare",
)


def of_filter(people: People, epsilon: float, delta: float) -> Finding:
    """The pipeline refuses a greedy run in the first round that the budget does not cover."""
    wrong, seen = [], []
    probes: list[Probe] = [Probe(parts) for parts in (1.0 + 1e-9, 3.0 + 1e-9, 5.0 - 1e-9, 7.5)]
    probes += [TruncatedProbe(parts) for parts in (2.5, 5.5)]
    for probe in probes:
        setting = Setting(probe, epsilon, delta)
        with known(type(probe)):
            tape = record(setting, people)
        step, budget = probe.start(people.market, tape.budget), tape.budget
        rho, tails = cost(people.market, step)
        right = math.floor(Fraction(budget.rho) / rho)
        if tails:
            right = min(right, math.floor(budget.truncation / tails))
        seen.append(len(tape.calls))
        sooner = bool(people.market.groups) and len(tape.calls) < right  # the claim is coarser
        if (len(tape.calls) != right and not sooner) or not tape.error.startswith("BudgetError"):
            wrong.append(f"noise was drawn in {len(tape.calls)} rounds, the budget covers {right}")
    return fact(
        "budget: refusal",
        "a release that the budget does not cover does not happen",
        wrong,
        f"rightly refused after {', '.join(map(str, seen))} rounds",
    )
