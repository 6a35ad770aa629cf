"""Public: a plan as a page: what a budget buys, and what other budgets and supplies would.

The page is a function of the plan, and so of the market and the budget alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from jdpack.pages import chart
from jdpack.pages.billboard_page import filled
from jdpack.pages.number_text import percent_down, person_texts, short, short_percent
from jdpack.pages.table import Table
from jdpack.planning.headroom import MARGIN_MOST, factors, margin_at, margin_with
from jdpack.planning.plan import Plan, expected_share
from jdpack.privacy.accounting import EPSILON_RANGE

REACH = 5
"""How often budgets and supplies are halved and doubled for the charts."""

_STEPS = 2  # points of a line per doubling

Curve = list[tuple[float, float | None]]
"""Margins by epsilon, or by the factor on supplies; None if a run would refuse it."""


def plan_page(plan: Plan) -> str:
    """The page of a plan."""
    epsilons, supplies = by_epsilon(plan), by_supply(plan)
    return filled(
        "plan.html",
        plan=plan,
        market=plan.market,
        budget=plan.budget,
        not_private=None if plan.private else "epsilon is inf, so there is no noise",
        expects=plan.share_expected is not None,
        goods=goods_table(plan),
        charts=[
            ("Privacy budget, epsilon", _chart(plan, "epsilon", epsilons)),
            ("Supply, times the present", _chart(plan, "supply", supplies)),
        ],
        sheets=[
            curve_table("Other budgets", "epsilon", epsilons, plan),
            curve_table("Other supplies", "times_the_present", supplies, plan),
        ],
        most=MARGIN_MOST,
        margin_text=short_percent,
        person_texts=person_texts,
    )


# --- what if ------------------------------------------------------------------------------


def by_epsilon(plan: Plan) -> Curve:
    """The margin at budgets around the plan's epsilon, or around 1 if that is infinite."""
    middle = plan.budget.epsilon if plan.private else 1.0

    def margin(epsilon: float) -> float | None:
        return margin_at(plan.market, plan.policy, epsilon, plan.budget.delta)

    return _around(middle, EPSILON_RANGE, margin)


def by_supply(plan: Plan) -> Curve:
    """The margin with all supplies multiplied by factors around 1."""
    return _around(
        1.0,
        factors(plan.market),
        lambda factor: margin_with(plan.market, plan.budget, plan.policy, factor),
    )


def _around(
    middle: float, ends: tuple[float, float], margin: Callable[[float], float | None]
) -> Curve:
    far = REACH * _STEPS
    steps = [middle * 2.0 ** (i / _STEPS) for i in range(-far, far + 1)]
    return [(x, margin(x)) for x in steps if x == middle or ends[0] <= x <= ends[1]]


def _shown(plan: Plan, margin: float) -> float:
    """What is drawn: the expected share of the optimum if there is one, or else the margin."""
    return margin if plan.share_expected is None else expected_share(plan.market, margin)


def _chart(plan: Plan, what: str, curve: Curve) -> Markup:
    """A chart over epsilon or supply on a log scale, with the plan itself as a dot."""
    known = [(math.log10(x), _shown(plan, y)) for x, y in curve if y is not None]
    low, high = math.log10(curve[0][0]), math.log10(curve[-1][0])
    if high - low < 1e-9:  # no other supply is possible
        low, high = low - 1.0, high + 1.0
    across = chart.Axis(low, high, _ticks([x for x, _ in curve]))
    axis = chart.Axis(0.0, 1.05, ((0.0, "0%"), (0.5, "50%"), (1.0, "100%")))
    name = "Margin" if plan.share_expected is None else "Expected share of the optimum"
    by = "epsilon" if what == "epsilon" else "supply"
    if not known:
        known = [(low, axis.low)]
    ends = " to ".join(short_percent(y) for _, y in (known[0], known[-1]))
    words = f"{name} by {by}: from {ends}, for {by} from {10**low:.3g} to {10**high:.3g}"
    point = None
    if plan.private or what == "supply":
        own = plan.budget.epsilon if what == "epsilon" else 1.0
        point = (math.log10(own), _shown(plan, plan.margin))
        words += f"; here {short_percent(point[1])} at {own:g}"
    return chart.line_chart(
        f"{words}.", "price", [x for x, _ in known], [y for _, y in known], axis,
        across=across, mark=_shown(plan, MARGIN_MOST), point=point,
    )  # fmt: skip


def _ticks(xs: Sequence[float]) -> tuple[tuple[float, str], ...]:
    """Round numbers on a log scale: at most seven, or else only powers of ten."""
    low, high = xs[0] * (1 - 1e-9), xs[-1] * (1 + 1e-9)
    exponents = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [s * 10.0**e for e in exponents for s in steps if low <= s * 10.0**e <= high]
        if len(found) <= 7:
            break
    return tuple((math.log10(x), f"{x:g}") for x in found)


def curve_table(name: str, column: str, curve: Curve, plan: Plan) -> Table:
    """A line as a table: halves and doubles on the page, and all of its points as CSV."""
    expects, own = plan.share_expected is not None, 1.0
    if column == "epsilon" and plan.private:
        own = plan.budget.epsilon
    here = next(i for i, (x, _) in enumerate(curve) if x == own)
    shown, data = [], []
    for i, (x, margin) in enumerate(curve):
        share = None if margin is None or not expects else _shown(plan, margin)
        data.append((x, margin, share))
        if (i - here) % _STEPS == 0:
            is_plan = i == here and (plan.private or column != "epsilon")
            cells = [f"{x:.3g}{' (here)' if is_plan else ''}"]
            cells.append("refused" if margin is None else short_percent(margin))
            cells += ["–" if share is None else percent_down(share)] if expects else []
            shown.append(tuple(cells))
    head = "Epsilon" if column == "epsilon" else "Times the present"
    heads = (head, "Kept free", *(["Expected share"] if expects else []))
    return Table(name, heads, shown, (column, "margin", "share_expected"), data)


# --- resources ----------------------------------------------------------------------------


def goods_table(plan: Plan) -> Table:
    """The resources, and how much of each would be enough."""
    least = plan.least_supply
    shown, data = [], []
    for j, r in enumerate(plan.market.resources):
        enough = [None if x.supply is None else x.supply[j] for x in least]
        shown.append(
            (
                r.name,
                f"{short(r.supply)} {r.unit}".strip(),
                f"{short(r.max_demand)} {r.unit}".strip(),
                short(r.supply / r.max_demand),
                *("–" if x is None else short(x) for x in enough),
            )
        )
        data.append((r.name, r.unit, r.supply, r.max_demand, r.supply / r.max_demand, *enough))
    heads = (
        "Good", "Supply", "Most for one", "Supply over that",
        *(f"Supply for a margin of {short_percent(x.margin)}" for x in least),
    )  # fmt: skip
    columns = (
        "name", "unit", "supply", "max_demand", "ratio",
        *(f"supply_for_{100 * x.margin:g}_percent" for x in least),
    )  # fmt: skip
    return Table("Goods", heads, shown, columns, data)
