"""Public: pages for people, each a single offline file.

The billboard page, for everybody, is `jdpack.page`'s. Here are the reports. The public one, for
journalists and auditors, is a function of the billboard alone: every release, what it cost, and how
the certificate follows. The curator's also shows private numbers, which its caller hands in, and
says so at its top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from markupsafe import Markup

from jdpack import certificate as certificates
from jdpack import chart, closing
from jdpack.accounting import Filter
from jdpack.billboard import SHARE, Billboard, Release
from jdpack.charge import charge
from jdpack.errors import JdpackError
from jdpack.market import Query
from jdpack.noise import NoNoise, TruncatedLaplace
from jdpack.page import SHOWN, figures, promised, public_page, render, resource_rows
from jdpack.sheet import Sheet
from jdpack.wording import factor_text, percent, percent_up, price_text, short

__all__ = [
    "Curator",
    "Margins",
    "More",
    "curator_page",
    "public_page",
    "public_report",
    "resource_rows",
]

RELEASES = 20_000
"""The most releases that a report lists; of more, an even choice."""

COURSE = 2**14
"""The most rows of the CSV with prices and demand of every round; of more, an even choice."""

HALF = 20
"""Columns of margins on each side of 0."""

CLOSE = (0.01, 0.05, 0.1)
"""Margins that are close."""

ASKED: dict[Query, str] = {
    "demand": "demand at the posted prices",
    "scale": "how far demand is from supply",
    "value": "value of what is asked for at the posted prices",
    "curvature": "how demand would move with each price",
    "gauge": "how demand would move with its own price",
    "granted": "amounts that the coins grant",
    "welfare": "total value of the average over the rounds",
    "luck": "value that the coins gave beyond the average",
}


# --- the public report --------------------------------------------------------------------


def public_report(board: Billboard) -> str:
    """The public report: what the billboard says, for journalists and auditors."""
    spending = _spending(board)
    return render(
        "report-public.html",
        board,
        goods=goods_sheet(board),
        figures=figures(board),
        shown=SHOWN,
        course=course_sheet(board),
        releases=releases_sheet(board, spending),
        spending=spending,
        spent_chart=_spent_chart(board, spending),
        bounds=bounds_sheet(board),
        **promised(board),
    )


@dataclass(frozen=True)
class Spent:
    """What a release cost, and how much it could give away."""

    sensitivity: float
    """The most that one agent can move the answer, in L2."""
    rho: float
    total: float
    """Of all releases up to this one; of batches, each agent's own."""


def _spending(board: Billboard) -> list[Spent] | None:
    """The cost of every release, or None if they are not those of any run."""
    filter, found = Filter(board.header.budget), []
    try:
        for release in board.releases:
            shifts = closing.shifts(board, release.step.query)
            charge(release.step, filter, board)
            rho = float(release.step.noise.cost(shifts).rho)
            found.append(Spent(math.hypot(*shifts), rho, float(filter.spent.rho)))
    except (JdpackError, ArithmeticError, ValueError):
        return None
    return found


def releases_sheet(board: Billboard, spending: list[Spent] | None) -> Sheet | None:
    """Every release: what was asked, with how much noise, and what it cost."""
    if not board.releases:
        return None
    shown, data, budget = [], [], board.header.budget.rho
    for i in chart.thinned(len(board.releases), RELEASES):
        release, spent = board.releases[i], None if spending is None else spending[i]
        step, noise = release.step, release.step.noise
        scale = None if isinstance(noise, NoNoise) else noise.scale
        ratio = None if spent is None or scale is None else scale / spent.sensitivity
        part = None if spent is None or budget == math.inf else spent.total / budget
        shown.append(
            (
                f"{i + 2:,}",
                ASKED[step.query] + _turn(release),
                f"{step.weight:,}" if step.weight else "–",
                "none" if scale is None else f"{short(scale)} {_kind(noise)}".strip(),
                "–" if spent is None else short(spent.sensitivity),
                "–" if ratio is None else short(ratio),
                "–" if spent is None or spent.rho == math.inf else f"{spent.rho:.3g}",
                "–" if part is None else percent(part),
            )
        )
        data.append(
            (
                i + 2,
                step.query,
                "" if step.batch is None else step.batch.index,
                step.weight,
                noise.to_dict()["kind"],
                scale,
                None if spent is None else spent.sensitivity,
                None if spent is None else spent.rho,
                None if spent is None else spent.total,
                release.answer[0] if len(release.answer) == 1 else None,
            )
        )
    heads = (
        "Line", "Asked for", "Weight", "Noise", "One person moves it by", "Noise over that",
        "Cost (rho)", "Spent so far",
    )  # fmt: skip
    columns = (
        "line", "query", "batch", "weight", "noise", "noise_scale", "sensitivity", "rho",
        "rho_so_far", "answer_if_one_number",
    )  # fmt: skip
    return Sheet("Releases", heads, shown, columns, data)


def _kind(noise: object) -> str:
    return "(Laplace, cut off)" if isinstance(noise, TruncatedLaplace) else ""


def _turn(release: Release) -> str:
    batch = release.step.batch
    return "" if batch is None else f", batch {batch.index + 1:,} of {batch.count:,}"


def _spent_chart(board: Billboard, spending: list[Spent] | None) -> Markup | None:
    """The share of the budget that is spent, release by release."""
    rho = board.header.budget.rho
    if not spending or not 0.0 < rho < math.inf:
        return None
    picked = chart.thinned(len(spending), 150)
    shares = [spending[i].total / rho for i in picked]
    axis = chart.Axis(0.0, 1.05, ((0.0, "0%"), (0.5, "50%"), (1.0, "100%")))
    words = (
        f"Privacy spent, as a share of what is allowed: {percent(shares[0])} after the first "
        f"answer, {percent(shares[-1])} after the last of {len(spending):,}."
    )
    return chart.line_chart(words, "price", [i + 1 for i in picked], shares, axis, mark=1.0)


def goods_sheet(board: Billboard) -> Sheet:
    """The goods: what there is, and what it costs."""
    market, rows = board.header.market, resource_rows(board)
    shown = [
        (
            r["name"],
            f"{short(r['supply'])} {r['unit']}".strip(),
            f"{short(r['max_demand'])} {r['unit']}".strip(),
            "–" if r["price"] is None else price_text(market, j, r["price"]),
            "–" if r["load_at_most"] is None else percent_up(r["load_at_most"]),
        )
        for j, r in enumerate(rows)
    ]
    certified = board.certificate is not None
    price = "Final price of a unit" if certified else "Latest price of a unit"
    heads = ("Good", "Supply", "Most for one", price, "Given, at most")
    columns = ("name", "unit", "supply", "max_demand", "price", "factor", "load_at_most")
    return Sheet("Goods", heads, shown, columns, [tuple(r[c] for c in columns) for r in rows])


def course_sheet(board: Billboard) -> Sheet | None:
    """Prices and noisy demand of every round, as CSV alone: the charts show them to people."""
    market = board.header.market
    asked = [(i, r) for i, r in enumerate(board.releases) if r.step.query == "demand"]
    if not asked:
        return None
    most = max(2, COURSE // len(market.resources))
    data = []
    for t in chart.thinned(len(asked), most):
        i, release = asked[t]
        noise = release.step.noise
        scale = 0.0 if isinstance(noise, NoNoise) else noise.scale
        for j, r in enumerate(market.resources):
            size = market.unit_sizes[j]
            data.append(
                (
                    i + 2,
                    r.name,
                    market.unit_price(j, release.step.prices[j]),
                    release.answer[j] * size,
                    scale * size,
                    release.step.weight,
                )
            )
    columns = ("line", "good", "price", "demand_with_noise", "noise_scale", "weight")
    return Sheet("Prices and demand", (), (), columns, data)


def noisy_loads(board: Billboard) -> tuple[float, ...] | None:
    """What anybody can tell of the load of what is granted, before scaling; with its noise."""
    market = board.header.market
    if not market.divisible and not board.header.local:
        for release in board.releases:
            if release.step.query == "granted":
                return tuple(answer / market.supply_code for answer in release.answer)
        return None
    if not board.weight:
        return None
    totals = [0] * len(market.resources)
    for release in board.releases:
        for j, answer in enumerate(release.answer if release.step.weight else ()):
            totals[j] += release.step.weight * answer
    return tuple(total / (board.weight * market.supply_code) for total in totals)


def bounds_sheet(board: Billboard) -> Sheet | None:
    """How the bounds on loads come about; None before the certificate is there."""
    certificate, market = board.certificate, board.header.market
    if certificate is None:
        return None
    noisy = noisy_loads(board)
    shown, data = [], []
    for j, (r, bound) in enumerate(zip(market.resources, _unscaled(board), strict=True)):
        factor, given = certificate.factors[j] / SHARE, certificate.load_at_most[j]
        load = None if noisy is None else noisy[j]
        room = None if load is None or bound is None else bound - max(load, 0.0)
        shown.append(
            (
                r.name,
                "–" if load is None else percent(load),
                "–" if room is None else percent_up(room),
                "–" if bound is None else percent_up(bound),
                factor_text(factor),
                percent_up(given),
            )
        )
        data.append((r.name, load, room, bound, factor, given))
    heads = (
        "Good", "With noise", "Allowance for noise", "Bound before scaling", "Factor",
        "Given, at most",
    )  # fmt: skip
    columns = ("good", "load_with_noise", "allowance", "bound", "factor", "load_at_most")
    return Sheet("Bounds on loads", heads, shown, columns, data)


def _unscaled(board: Billboard) -> list[float] | list[None]:
    """The bounds on loads before scaling, computed anew; None each if no run has these lines."""
    measured = not board.header.market.divisible and not board.header.local
    try:
        of = certificates.granted_loads if measured else certificates.averaged_loads
        return of(board)
    except (JdpackError, ArithmeticError, ValueError):
        return [None] * len(board.header.market.resources)


# --- the curator's report -----------------------------------------------------------------


@dataclass(frozen=True)
class Curator:
    """Private numbers of a run, for the curator's eyes only."""

    agents: int
    winners: int
    mean_share: float | None
    """Of divisible goods: how much an agent gets of what it asks for, on average over all."""
    welfare: float
    loads: tuple[float, ...]
    clamped: int
    dropped: int


@dataclass(frozen=True)
class Margins:
    """Private: how close decisions were at the last prices, as counts of agents.

    The margin is (value - cost) / max(value, cost); 2 HALF columns from -1 to 1.
    """

    winners: tuple[int, ...]
    losers: tuple[int, ...]
    close: tuple[int, ...]
    """Agents with a margin of at most so much, as in CLOSE, either way."""


@dataclass(frozen=True)
class More:
    """Private: what the records say when they are read again."""

    margins: Margins | None = None
    optimum: float | None = None
    """The best total value without privacy."""
    optimum_at_most: float | None = None
    """The bound that proves it."""
    no_optimum: str = ""
    """Why there is none, and how to get it."""
    ledger: str = ""
    """What the ledger says, in a sentence."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long things took, by name."""


def curator_page(board: Billboard, curator: Curator, more: More | None = None) -> str:
    """The curator's report. Private."""
    margins = None if more is None else more.margins
    return render(
        "report.html",
        board,
        curator=curator,
        more=more,
        loads=loads_sheet(board, curator),
        shares_of_best=_shares_of_best(board, curator, more),
        margins=None if margins is None else margins_sheet(margins),
        margins_chart=None if margins is None else _margins_chart(margins),
        batched=any(step.batch is not None for step in board.rounds),
        close=[] if margins is None else list(zip(CLOSE, margins.close, strict=True)),
        figures=figures(board),
        shown=SHOWN,
    )


def loads_sheet(board: Billboard, curator: Curator) -> Sheet:
    """True loads beside certified bounds and what the billboard shows with noise."""
    market, noisy = board.header.market, noisy_loads(board)
    shown, data = [], []
    for j, (r, load) in enumerate(zip(resource_rows(board), curator.loads, strict=True)):
        told = None if noisy is None else noisy[j] * r["factor"]
        shown.append(
            (
                r["name"],
                f"{short(r['supply'])} {r['unit']}".strip(),
                price_text(market, j, r["price"]),
                chart.bar(load) + Markup("<span>") + percent(load) + Markup("</span>"),
                "–" if told is None else percent(told),
                percent_up(r["load_at_most"]),
                percent(r["load_at_most"] - load),
            )
        )
        data.append((r["name"], r["supply"], r["price"], load, told, r["load_at_most"]))
    heads = (
        "Good", "Supply", "Final price of a unit", "True load", "With noise", "Certified, at most",
        "Room between",
    )  # fmt: skip
    columns = ("good", "supply", "price", "true_load", "load_with_noise", "load_at_most")
    return Sheet("Loads", heads, shown, columns, data)


def _shares_of_best(
    board: Billboard, curator: Curator, more: More | None
) -> tuple[float, float | None] | None:
    """What is given as a share of the optimum, in truth and as certified."""
    if more is None or more.optimum is None:
        return None
    certified = None if board.certificate is None else board.certificate.ratio_at_least
    return (curator.welfare / more.optimum if more.optimum > 0.0 else 1.0), certified


def margins_sheet(margins: Margins) -> Sheet:
    """How many agents have which margin."""
    shown, data = [], []
    for i, (winners, losers) in enumerate(zip(margins.winners, margins.losers, strict=True)):
        low, high = (i - HALF) / HALF, (i + 1 - HALF) / HALF
        shown.append((f"{low:+.0%} to {high:+.0%}", f"{winners:,}", f"{losers:,}"))
        data.append((low, high, winners, losers))
    heads = ("Margin", "Get something", "Get nothing")
    return Sheet("Margins", heads, shown, ("from", "to", "winners", "losers"), data)


def _margins_chart(margins: Margins) -> Markup:
    close = margins.close[1]
    words = (
        f"Margins from -100% to 100%: {sum(margins.winners):,} agents get something, "
        f"{sum(margins.losers):,} nothing; {close:,} are within {CLOSE[1]:.0%} of the point at "
        "which their decision turns."
    )
    ends = ("-100%", "0", "+100%")
    return chart.histogram(words, margins.winners, margins.losers, ends)
