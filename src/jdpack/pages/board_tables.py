"""Public: tables from the billboard alone: goods, releases and their costs, bounds on loads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Release
from jdpack.errors import JdpackError
from jdpack.market.grid import SHARE
from jdpack.pages import chart
from jdpack.pages.billboard_page import resource_rows
from jdpack.pages.number_text import factor_text, percent, percent_up, price_text, short
from jdpack.pages.table import Table
from jdpack.privacy.noise import NoNoise, TruncatedLaplace, deviation
from jdpack.privacy.queries import Query
from jdpack.protocol import bounds, closing
from jdpack.protocol.charge import totals

RELEASES = 20_000
"""A report lists at most this many releases, at even intervals."""

COURSE = 2**14
"""The CSV of prices and demand has at most this many rows, from rounds at even intervals."""

ASKED: dict[Query, str] = {
    "demand": "demand at posted prices",
    "scale": "distance of demand from supply",
    "value": "value at posted prices",
    "curvature": "how demand moves with prices",
    "gauge": "how demand moves with its price",
    "granted": "amounts that coins grant",
    "chance": "how much coins decide",
    "welfare": "value of the rounds' average",
    "luck": "value that coins added to it",
}


# --- releases and what they cost ----------------------------------------------------------


@dataclass(frozen=True)
class Spent:
    """What a release cost, and its sensitivity."""

    sensitivity: float
    """The most that one agent can move the answer, in L2."""
    rho: float
    total: float
    """The cost of all releases so far; each agent pays for its own batch only."""


def spending(board: Billboard) -> list[Spent] | None:
    """The cost of every release, or None if no run could have posted them."""
    spent = totals(board)
    if spent is None:
        return None
    found = []
    for release, total in zip(board.releases, spent, strict=True):
        change = closing.change(board, release.step.query)
        rho = float(release.step.noise.cost(change).rho)
        found.append(Spent(math.sqrt(change.squares), rho, total))
    return found


def releases_table(board: Billboard, spending: list[Spent] | None) -> Table | None:
    """Every release: what was asked, how much noise it got, and what it cost."""
    if not board.releases:
        return None
    shown, data, budget = [], [], board.header.budget.rho
    for i in chart.thinned(len(board.releases), RELEASES):
        release, spent = board.releases[i], None if spending is None else spending[i]
        step, noise = release.step, release.step.noise
        scale = None if isinstance(noise, NoNoise) else min(deviation(noise))
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
                "" if step.batch is None else step.span,
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
        "line", "query", "batch", "span", "weight", "noise", "noise_scale", "sensitivity", "rho",
        "rho_so_far", "answer_if_one_number",
    )  # fmt: skip
    return Table("Releases", heads, shown, columns, data, words=(1,))


def _kind(noise: object) -> str:
    return "(truncated Laplace)" if isinstance(noise, TruncatedLaplace) else ""


def _turn(release: Release) -> str:
    batch, span = release.step.batch, release.step.span
    if batch is None:
        return ""
    last = f"{batch.index + 1:,} of {batch.count:,}"
    return f", batch {last}" if span == 1 else f", batches {batch.index - span + 2:,} to {last}"


# --- goods, prices and loads --------------------------------------------------------------


def goods_table(board: Billboard) -> Table:
    """The goods, their supplies and their prices."""
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
    return Table("Goods", heads, shown, columns, [tuple(r[c] for c in columns) for r in rows])


def course_table(board: Billboard) -> Table | None:
    """Prices and noisy demand of every round, only as CSV; people have the charts."""
    market = board.header.market
    asked = [(i, r) for i, r in enumerate(board.releases) if r.step.query == "demand"]
    if not asked:
        return None
    most = max(2, COURSE // len(market.resources))
    data = []
    for t in chart.thinned(len(asked), most):
        i, release = asked[t]
        noise = release.step.noise
        scales = deviation(noise)
        for j, r in enumerate(market.resources):
            size, scale = market.unit_sizes[j], scales[j if len(scales) > 1 else 0]
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
    return Table("Prices and demand", (), (), columns, data)


def noisy_loads(board: Billboard) -> tuple[float, ...] | None:
    """The public, noisy loads before scaling; None if the billboard does not have them yet."""
    market = board.header.market
    if not board.weight:
        return None
    totals = [0] * len(market.resources)
    for release in board.releases:
        for j, answer in enumerate(release.answer if release.step.weight else ()):
            totals[j] += release.step.weight * answer
    pairs = zip(totals, market.supply_codes, strict=True)
    return tuple(total / (board.weight * supply) for total, supply in pairs)


def bounds_table(board: Billboard) -> Table | None:
    """How the bounds on loads come about; None without a certificate."""
    certificate, market = board.certificate, board.header.market
    if certificate is None:
        return None
    noisy, surely = noisy_loads(board), certificate.load_surely
    shown: list[tuple[str, ...]] = []
    data: list[tuple[str | float | None, ...]] = []
    for j, (r, bound) in enumerate(zip(market.resources, _unscaled(board), strict=True)):
        factor, given = certificate.factors[j] / SHARE, certificate.load_at_most[j]
        load = None if noisy is None else noisy[j]
        allowance = None if load is None or bound is None else bound - load
        more = () if surely is None else (surely[j],)
        shown.append(
            (
                r.name,
                "–" if load is None else percent(load),
                "–" if allowance is None else percent_up(allowance),
                "–" if bound is None else percent_up(bound),
                factor_text(factor),
                percent_up(given),
                *map(percent_up, more),
            )
        )
        data.append((r.name, load, allowance, bound, factor, given, *more))
    last = () if surely is None else ("Almost surely",), () if surely is None else ("load_surely",)
    heads = (
        "Good", "With noise", "Allowance", "Bound before scaling", "Factor", "Given, at most",
        *last[0],
    )  # fmt: skip
    columns = ("good", "load_with_noise", "allowance", "bound", "factor", "load_at_most", *last[1])
    return Table("Bounds on loads", heads, shown, columns, data)


def _unscaled(board: Billboard) -> list[float] | list[None]:
    """The bounds on loads before scaling; None each if no run could have posted these lines."""
    try:
        return bounds.load_bounds(board)
    except (JdpackError, ArithmeticError, ValueError):
        return [None] * len(board.header.market.resources)
