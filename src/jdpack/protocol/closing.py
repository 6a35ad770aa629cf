"""Public: the releases that close a run, whatever its policy. The certificate rests on them.

Divisible goods need one number, the welfare of the averaged allocation: the loads of the rounds
already bound its load. Indivisible goods are granted by coins, which carry the load away from the
average by about the square root of the supply. Bounding that blindly would cost more than the noise
does once supply is large. So the run measures the load of what the coins grant, and thins the
resources whose load might not fit. Then `luck` shows how much value the coins gave beyond the
average, and `welfare` shows the average itself.

Only agents who took an option in some rounds and not in others have luck. The value of such an
option is at most what it cost in some round. (If an agent took two options in turn, their values
differ by no more than that.) So a public bound on all costs, `dearest`, bounds every agent's luck,
and the noise on luck is small if prices are far below the value cap.

If the agents add the noise themselves, nobody can ask them all again, and nothing is released.
"""

from __future__ import annotations

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Step
from jdpack.market.grid import PRICE_UNITS_PER_VALUE_CODE, SHARE
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.noise import gaussian
from jdpack.privacy.queries import Query
from jdpack.protocol import bounds


def step(board: Billboard) -> Step | None:
    """The next closing release; None once all of them are posted."""
    market, budget = board.header.market, board.header.budget
    if board.header.local:
        return None
    done = {release.step.query for release in board.releases}
    for query, share in tail_bounds.closing_shares(market).items():
        if query not in done:
            return Step(query, (), gaussian(shifts(board, query), budget.rho * share))
    return None


def shifts(board: Billboard, query: Query) -> tuple[int, ...]:
    """The sensitivity of a query, given the billboard so far."""
    market = board.header.market
    if query != "luck":
        return queries.shifts(market, query)
    factors, bound = luck_terms(board)
    return queries.luck_shifts(market, bound, thinned=min(factors) < SHARE)


def luck_terms(board: Billboard) -> tuple[tuple[int, ...], int]:
    """The factors with which luck is measured, and the most that one agent adds to it.

    If some resources are thinned, there are two ways. We can measure the luck of the grants, and
    bound what thinning takes from them by the smallest factor. Or we can measure what is given,
    and then any agent's whole value may be at stake. We take the one that costs the certificate
    less.
    """
    market, budget = board.header.market, board.header.budget
    factors, bound = bounds.factors(board), dearest(board)
    whole = (SHARE,) * len(factors)
    if min(factors) == SHARE:
        return whole, bound
    cap, rho = market.value_cap_code, budget.rho * tail_bounds.INDIVISIBLE["luck"]
    of_grants = bounds.value_radius(
        gaussian(queries.luck_shifts(market, bound, thinned=False), rho)
    )
    of_grants += bounds.thinned_value(board, factors)
    of_given = bounds.value_radius(gaussian(queries.luck_shifts(market, cap, thinned=True), rho))
    return (whole, bound) if of_grants <= of_given else (factors, cap)


def dearest(board: Billboard) -> int:
    """The most that any option can have cost in any round that counts, in value codes.

    It is at most the value cap, because nobody takes what costs more, and at least 1, even if
    everything is free, because a release must cost something.
    """
    market = board.header.market
    most: list[int] = [
        max(prices) for prices in zip(*(s.prices for s in board.rounds), strict=True)
    ]
    costs = sorted((c * p for c, p in zip(market.cap_codes, most, strict=True)), reverse=True)
    most_cost = -(-sum(costs[: market.bundle_size]) // PRICE_UNITS_PER_VALUE_CODE)
    return min(market.value_cap_code, max(1, most_cost))
