"""Public: a plan in words. First the verdict in the market's own units, then what would help."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from jdpack.market.market import Resource
from jdpack.pages.number_text import (
    WHOLE_PERSON,
    percent_down,
    person_texts,
    short,
    short_percent,
    short_up,
)
from jdpack.planning.headroom import MARGIN_MOST
from jdpack.policies.mwu_adaptive import STEPS_PICKED, MwuAdaptive

if TYPE_CHECKING:
    from jdpack.planning.plan import Plan

ROWS = 8  # rows of supplies
AT_WORST = "whatever the prices, even if all agents are alike"


def verdict(plan: Plan) -> Iterator[str]:
    """What a run would do, and what would help. For people who decide."""
    market, budget = plan.market, plan.budget
    if plan.several is not None:
        yield from plan.several.lines()
    yield f"{market.name}: {_in_short(plan)}"
    yield from _free(plan)
    least = plan.share_at_least
    if least:
        yield f"  at least about {percent_down(least)}, {AT_WORST}"
    if market.excess_probability:
        often = f"{market.excess_probability:g}"
        yield f"  a supply may be exceeded with probability {often}; nothing is repaired"
    if not plan.private:
        yield "  epsilon is inf: there is no noise, and nothing is private"
    elif plan.warning is not None:
        yield from _wrapped("", plan.warning.message)
    elif plan.margin > MARGIN_MOST:
        yield "  nothing is scarce: all that agents may ask for fits with the margin"
    else:
        yield f"  supply is large enough for epsilon {budget.epsilon:g}, delta {budget.delta:g}"
    if plan.private and market.requests > 1:
        yield from _wrapped("protects: ", WHOLE_PERSON)
    for entry in market.provenance:
        cost = f"epsilon {entry.epsilon:g} and delta {entry.delta:g}"
        yield f"  bounds of this market were chosen privately, for {cost} more"
    if plan.weakness is not None:
        yield from _wrapped("warning: ", plan.weakness.message)
    if plan.helps:
        head = "free gains" if plan.warning is None else "what would help"
        yield f"{head}: what stays free, instead of {short_percent(plan.margin)} on average"
    for help in plan.helps:
        yield f"  {short_percent(help.margin):>7}  with {help.text}"


def _in_short(plan: Plan) -> str:
    if not plan.private:
        return "an experiment; it protects nobody"
    if plan.margin >= 1.0 and plan.warning is not None:
        return "do not run this: noise needs more than there is"
    small = "" if plan.warning is None else "supply is too small; "
    if plan.share_expected is None:
        name = plan.policy.to_dict()["name"]
        return f"{small}public numbers do not tell what value to expect of {name}"
    return f"{small}expect about {percent_down(plan.share_expected)} of the best possible value"


def _free(plan: Plan) -> Iterator[str]:
    """How much of each supply stays free. Resources with the same unit and cap share a line."""
    same: dict[tuple[str, float], list[int]] = {}
    for j, r in enumerate(plan.market.resources):
        same.setdefault((r.unit, r.max_demand), []).append(j)
    for (unit, _), js in list(same.items())[:ROWS]:
        supplies = [plan.market.resources[j].supply for j in js]
        frees = [plan.margins[j] * supply for j, supply in zip(js, supplies, strict=True)]
        where = f"of {plan.market.resources[js[0]].name}"
        if len(js) > 1:
            where = f"in each of {len(js):,} resources"
        there = f"{_span(supplies, short)}{f' {unit}' * bool(unit)} {where}"
        if max(plan.margins[j] for j in js) < 1.0:
            yield f"  about {_span(frees, _about)} of {there} stay free"
        elif max(frees) < math.inf:
            yield f"  noise needs about {_span(frees, _about)} of {there}"
        else:
            yield f"  noise needs more than any part of {there}"
    left = sum(map(len, list(same.values())[ROWS:]))
    if left:
        yield f"  ... and {left:,} more with --json"


def _span(amounts: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(amounts)), text(max(amounts))
    return low if low == high else f"{low} to {high}"


def _about(amount: float) -> str:
    """Three digits."""
    return short(float(f"{amount:.3g}"))


# --- details ------------------------------------------------------------------------------


def details(plan: Plan) -> Iterator[str]:
    """Everything else. For people who know the terms."""
    market, budget = plan.market, plan.budget
    m = len(market.resources)
    bounds = "at most " if market.neighbours.value == "add-remove" else ""
    goods = "divisible" if market.divisible else "indivisible"
    yield (
        f"{market.name}: {m} {goods} resource{'s' * (m > 1)}, {bounds}{market.agents:,} agents; "
        f"policy {plan.policy.to_dict()['name']}"
    )
    if market.requests > 1:
        in_all = "; ".join(person_texts(market, "one").values())
        yield from _wrapped("person     ", f"in all, {in_all}")
    if plan.private:
        yield (
            f"  privacy    ({budget.epsilon:g}, {budget.delta:g})-joint differential privacy, "
            f"{market.neighbours.value} neighbours; rho {budget.rho:.5g}"
        )
        parts = [f"{part:.2g} for {what}" for what, part in plan.delta_split.items() if part]
        yield f"  delta      {', '.join(parts)}; beta {budget.beta:.2g}"
    else:
        yield "  privacy    NONE: epsilon is inf, so there is no noise and nothing is private"
    least, most = plan.round_noise
    noise = "no noise"
    if least > 0.0:
        upto = " or more" if most is None else f" to {short_percent(most)}" if most > least else ""
        noise = f"noise of deviation {short_percent(least)}{upto} of each supply"
    yield f"  rounds     {plan.rounds_at_most:,} at most, each with {noise}"
    if plan.alpha is not None:
        yield f"  alpha      {plan.alpha:g}: {_why_alpha(plan)}"
    what = "is kept free" if plan.margin < 1.0 else "would have to stay free: more than exists"
    yield f"  margin     {short_percent(plan.margin)} of the supplies {what}"
    name, most = plan.tightest
    if m > 1 and most > 1.01 * plan.margin:
        why = "whose supply is smallest against its cap"
        yield f"             {short_percent(most)} of {name}, {why}"
    if plan.private:
        floor = short_percent(plan.floor)
        yield f"  floor      {floor}: one release of demand with the whole budget"
    head, *more = basis(plan)
    yield f"  expected   {head}"
    yield from (f"             {line}" for line in more)
    if plan.least_supply:
        yield from _supply_rows(plan)
    yield _row("epsilon", [f"{epsilon:g}" for epsilon, _ in plan.by_epsilon])
    yield _row(
        "  margin", ["refused" if x is None else short_percent(x) for _, x in plan.by_epsilon]
    )
    yield _row("supply, times the present", [f"{factor:g}" for factor, _ in plan.by_supply])
    yield _row(
        "  margin", ["refused" if x is None else short_percent(x) for _, x in plan.by_supply]
    )
    if plan.by_requests:
        yield _row("requests per person, at most", [f"{r:,}" for r, _ in plan.by_requests])
        margins = ["refused" if x is None else short_percent(x) for _, x in plan.by_requests]
        yield _row("  margin", margins)
        yield "    (the last: one request, or a promise for each request alone)"
    if plan.by_group:
        yield _row("agents at once, g", [f"{g:,}" for g, _, _ in plan.by_group])
        epsilons = ["-" if e is None else short_up(e) for _, e, _ in plan.by_group]
        yield _row("  billboard: epsilon, same delta", epsilons)
        yield _row("  all: delta, at g times epsilon", [short_up(d) for _, _, d in plan.by_group])


def basis(plan: Plan) -> list[str]:
    """What the expected share rests on, line by line."""
    if plan.share_at_least is None:
        return [
            f"{_aim(plan)}, and the margin",
            "public numbers do not tell what share of the optimum that leaves",
        ]
    if plan.share_expected == 0.0 or plan.share_at_least == 0.0:
        share = percent_down(plan.share_expected or 0.0)
        return [f"about {share} of the optimum, but no share of it can be promised"]
    assert plan.share_expected is not None
    return [
        f"about {percent_down(plan.share_expected)} of the optimum",
        f"at least about {percent_down(plan.share_at_least)}, {AT_WORST}",
        "(a fraction x less supply lowers the optimum by at most x: it is concave in supply)",
    ]


def _aim(plan: Plan) -> str:
    """What a policy aims for if public numbers do not tell its share of the optimum."""
    policy = plan.policy.to_dict()
    alpha = policy.get("alpha") if policy.get("rounds") is None else None
    if alpha is None:
        return f"the loss that {plan.rounds_at_most:,} rounds of {policy['name']} leave"
    most = plan.market.person_value_code / plan.market.value_cap_code * plan.market.max_value
    loss = alpha * plan.market.agents * most
    return f"a loss of about alpha n V = {loss:,.4g}, the aim of {policy['name']}"


def _why_alpha(plan: Plan) -> str:
    policy, alpha = plan.policy, plan.alpha
    assert isinstance(policy, MwuAdaptive) and alpha is not None
    if policy.alpha is not None:
        return "as given"
    return f"the aim with the least planned loss, within {STEPS_PICKED:,} steps of full size"


def _alike(plan: Plan) -> list[tuple[Resource, int, int]]:
    """The first resource of each supply and unit, its index, and how many more there are."""
    same: dict[tuple[float, str], list[int]] = {}
    for j, r in enumerate(plan.market.resources):
        same.setdefault((r.supply, r.unit), []).append(j)
    return [(plan.market.resources[js[0]], js[0], len(js) - 1) for js in same.values()]


def _supply_rows(plan: Plan) -> Iterator[str]:
    least = plan.least_supply
    yield _row("supply for a margin of", [short_percent(x.margin) for x in least])
    yield _row("  times the present", [_number(x.factor) for x in least])
    alike = _alike(plan)
    for resource, j, more in alike[:ROWS]:
        others = f" and {more:,} more" if more else ""
        cells = [_number(None if x.supply is None else x.supply[j]) for x in least]
        yield _row(f"  {resource.name}{others}{f' ({resource.unit})' * bool(resource.unit)}", cells)
    left = sum(1 + more for _, _, more in alike[ROWS:])
    if left:
        yield f"    ... and {left:,} more with --json"
    yield _row("  in largest demands", [_number(x.demands) for x in least])
    yield _row("  paper, sqrt(m)/(alpha epsilon)", [_number(x.paper) for x in least])
    yield _row("  paper, with logs and constants", [_number(x.explicit) for x in least])


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(label + text, 100, initial_indent="  ", subsequent_indent="  ")


def _row(label: str, cells: Sequence[str]) -> str:
    return f"  {label:<32}" + "".join(f"{cell:>11}" for cell in cells)


def _number(x: float | None) -> str:
    if x is None:
        return "-"
    return f"{x:,.0f}" if 1e3 <= x < 1e9 else f"{x:.4g}"
