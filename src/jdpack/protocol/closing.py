"""Public: the releases that close a run, whatever its policy. The certificate rests on them.

The loads of the rounds already bound the load of the averaged allocation. Where coins grant
indivisible goods, they move the load away from that average by about the square root of what they
decide. So `granted` measures what they grant, and `chance` shows how much they decide: the variance
that they add to each load, and to the value of what is granted. In a run whose rounds each ask one
batch, coins decide nothing.

`welfare` shows the value of the averaged allocation. If some resources are scaled or thinned,
`luck` shows how much value that costs, unless the factors alone give a better bound.

Only agents who took an option in some rounds and not in others leave anything to their coin. The
value of such an option is at most what it cost in some round. (If an agent took two options in
turn, their values differ by no more than that.) So a public bound on all costs, `bounds.dearest`,
is the unit of the variance of value, and its noise is small if prices are far below the value cap.

If the agents add the noise themselves, nobody can ask them all again, and nothing is released.
"""

from __future__ import annotations

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Step
from jdpack.market.grid import SHARE
from jdpack.market.market import Market
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.noise import Gaussian, gaussian
from jdpack.privacy.queries import Change, Query
from jdpack.protocol import bounds, grants


def step(board: Billboard) -> Step | None:
    """The next closing release; None once all of them are posted."""
    market, budget = board.header.market, board.header.budget
    if board.header.local:
        return None
    done = {release.step.query for release in board.releases}
    header = board.header
    shares = tail_bounds.closing_shares(
        market, budget, coins=header.coins, measured=header.measured
    )
    for query, share in shares.items():
        if query in done or (query == "luck" and luck_range(board) is None):
            continue
        shape = tail_bounds.chance_shape(market) if query == "chance" else (1.0,)
        if query == "granted":  # the shape of the rounds
            first = next(release.step.noise for release in board.releases if release.step.weight)
            shape = first.scales if isinstance(first, Gaussian) else shape
        return Step(query, (), gaussian(change(board, query), budget.rho * share, shape))
    return None


def change(board: Billboard, query: Query) -> Change:
    """The sensitivity of a query, given the billboard so far."""
    market = board.header.market
    if query != "luck":
        return queries.change(market, query)
    return queries.luck_change(market, *person_luck(market, *(luck_range(board) or (0, 0))))


def person_luck(market: Market, lowest: int, highest: int) -> tuple[int, int]:
    """The least and the most that all requests of one agent add to luck.

    Let cap be the value of one option, and V what the values of one agent sum to at most. A request
    of value v adds at least v / cap times the least that one of value cap could add, except for
    rounding, and at most v. So where values sum to at most V, all of them together add at least
    V / cap times the least, rounded down, and the rounding of each request.
    """
    cap, most, requests = market.value_cap_code, market.person_value_code, market.requests
    if requests == 1:
        return lowest, highest
    by_value = lowest * most // cap - requests * _rounding(market)
    return max(requests * lowest, by_value), min(requests * highest, most)


def _rounding(market: Market) -> int:
    """The most value codes that rounding takes from one request."""
    return market.options * (market.value_cap_code // SHARE + 2)


def luck_range(board: Billboard, factors: tuple[int, ...] | None = None) -> tuple[int, int] | None:
    """The least and the most that one request adds to luck; None if luck is not released.

    `factors` are those of the board (`bounds.factors`), if they are known.

    Scaling takes at most the fraction 1 - f of a request's value, with f the smallest factor. For
    each option, rounding takes less than 1/SHARE of its value and less than one value code. If
    indivisible goods are thinned, a request's whole value may be at stake, and bounding what
    thinning takes away by the smallest factor alone may cost the certificate less than the noise of
    the release would. Coins then count too, unless the radius of C7 is smaller: it covers them, and
    the noise that would count otherwise.

    What a coin gives beyond the average is at most `bounds.dearest`: if an option was not taken in
    some round, then what was taken there is worth at most its cost less. (What a request adds is
    cut off there anyway, so this costs nothing but roundings.)
    """
    market, budget = board.header.market, board.header.budget
    factors, cap = factors or bounds.factors(board), market.value_cap_code
    if min(factors) == SHARE:
        return None
    if market.divisible:
        return cap * (min(factors) - SHARE) // SHARE - _rounding(market), 0  # rounded down
    by_grants = board.header.ratio_by_grants
    extent = -cap, bounds.dearest(board) if by_grants else cap
    change = queries.luck_change(market, *person_luck(market, *extent))
    noise = gaussian(change, budget.rho * tail_bounds.LUCK_SHARE)
    by_factor, luck = bounds.thinned_value(board, factors), bounds.coin_luck(board)
    if not by_grants or luck < grants.short_of_optimum(board)[1]:
        by_factor += luck
    return None if by_factor <= bounds.value_radius(board.header, noise) else extent
