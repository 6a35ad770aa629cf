"""Private: the page of an audit: what attacks prove, how odd the noise is, every check.

Curator only: findings may quote records.
"""

from __future__ import annotations

import math
import re

from markupsafe import Markup

from jdpack.audit.epsilon_bounds import LowerBound, at_least, at_most
from jdpack.audit.findings import AGAINST, ALARM, ALARM_BY_CHANCE, NO_PROOF, Audit, Finding
from jdpack.pages import chart
from jdpack.pages.billboard_page import filled
from jdpack.pages.chart import Axis, Lane, Point
from jdpack.pages.number_text import percent
from jdpack.pages.table import Table

_LEAST = -12.0  # the smallest p-value drawn, as a power of ten
_ORDER = ("FAILED", "not tested", "ok")


def audit_page(audit: Audit) -> str:
    """The page, in HTML. Private."""
    counts = {v: sum(one.verdict == v for one in audit.findings) for v in _ORDER}
    return filled(
        "audit.html",
        found=audit,
        not_private=None,
        counts=counts,
        note=NO_PROOF,
        alarm=ALARM,
        bounds=_bounds_chart(audit) if audit.lower_bounds else None,
        right=_right_chart(audit) if audit.lower_bounds else None,
        attacks=attacks_table(audit),
        chances=_chances_chart(audit),
        flagged_below=flagged_below(audit),
        checks=checks_table(audit),
    )


# --- attacks ------------------------------------------------------------------------------


def interval(bound: LowerBound) -> tuple[float, float]:
    """Clopper and Pearson's interval for how often an attack is right."""
    right, miss = round(bound.success * bound.measured), (1.0 - bound.confidence) / 2.0
    return at_least(right, bound.measured, miss), at_most(right, bound.measured, miss)


def _bounds_chart(audit: Audit) -> Markup:
    """What each attack proves about epsilon, what its trials could prove at best, and the claim."""
    bounds = audit.lower_bounds
    numbers = [x for b in bounds.values() for x in (b.epsilon, b.at_best)] + [audit.epsilon]
    high = 1.08 * max([x for x in numbers if math.isfinite(x)], default=1.0) or 1.0
    axis = Axis(0.0, high, tuple((t, f"{t:g}") for t in chart.round_ticks(high, 4)))
    failed = {one.check for one in audit.failures}
    lanes = []
    for name, b in bounds.items():
        wrong = f"coalition: epsilon ({name.removeprefix(AGAINST)})" in failed
        points = [Point(b.epsilon, "bad" if wrong else "price"), Point(b.at_best, "load")]
        lanes.append(Lane(name.removeprefix(AGAINST), points, f"{b.epsilon:.3g}"))
    said = "; ".join(
        f"{name} proves at least {b.epsilon:.3g}; its trials can prove at most {b.at_best:.3g}"
        for name, b in bounds.items()
    )
    words = f"Lower bounds on epsilon; the claim is {audit.epsilon:g}. {said}."
    mark = audit.epsilon if math.isfinite(audit.epsilon) else None
    return chart.lane_chart(words, lanes, axis, mark=mark)


def _right_chart(audit: Audit) -> Markup:
    """How often each attack is right, and the most that theory allows."""
    lanes, said = [], []
    for name, bound in audit.lower_bounds.items():
        low, high = interval(bound)
        points = [Point(bound.success, "price", low, high)]
        text = percent(bound.success)
        most = audit.right_at_most.get(name)
        if most is not None:
            points.append(Point(most, "load"))
            text += f", at most {percent(most)}"
        lanes.append(Lane(name.removeprefix(AGAINST), points, text))
        said.append(f"{name} {text}{' by theory' if most is not None else ''}")
    axis = Axis(0.0, 1.0, tuple((t / 4, f"{25 * t}%") for t in range(5)))
    words = f"How often attacks are right (a coin is right in 50%): {'; '.join(said)}."
    return chart.lane_chart(words, lanes, axis, mark=0.5)


def attacks_table(audit: Audit) -> Table:
    """The attacks in numbers."""
    shown, data = [], []
    for name, bound in audit.lower_bounds.items():
        low, high = interval(bound)
        most = audit.right_at_most.get(name)
        shown.append(
            (
                name,
                f"{bound.trials:,}",
                percent(bound.success),
                f"{percent(low)} to {percent(high)}",
                "–" if most is None else percent(most),
                f"{bound.epsilon:.3g}",
                f"{bound.epsilon_if_gaussian:.3g}",
                f"{bound.at_best:.3g}",
                f"{audit.epsilon:g}",
            )
        )
        data.append(
            (
                name, bound.trials, bound.measured, bound.success, low, high, most, bound.epsilon,
                bound.epsilon_if_gaussian, bound.at_best, audit.epsilon, bound.confidence,
            )
        )  # fmt: skip
    heads = (
        "Attack", "Trials of each world", "Right in", "Interval", "At most, by theory",
        "Epsilon at least", "If like a Gaussian", "Trials can prove", "Claimed",
    )  # fmt: skip
    columns = (
        "attack", "trials", "measured", "right", "right_low", "right_high", "right_at_most",
        "epsilon_at_least", "epsilon_if_gaussian", "epsilon_at_best", "epsilon_claimed",
        "confidence",
    )  # fmt: skip
    return Table("Attacks", heads, shown, columns, data)


# --- checks -------------------------------------------------------------------------------


def flagged_below(audit: Audit) -> float | None:
    """The p-value below which a check fails, whatever the others are."""
    count = sum(one.p_value is not None for one in audit.findings)
    return ALARM_BY_CHANCE / count if count else None


def _kind(check: str) -> str:
    """What a statistical check is about: `noise: variance of demand` is about variance."""
    return re.split(r" of |,| at |\(", check)[0].strip()


def _chances_chart(audit: Audit) -> Markup | None:
    """P-values by kind of check on a logarithmic axis, and where they are flagged."""
    limit = flagged_below(audit)
    if limit is None:
        return None
    groups: dict[str, list[Finding]] = {}
    for one in audit.findings:
        if one.p_value is not None:
            groups.setdefault(_kind(one.check), []).append(one)
    lanes, said = [], []
    for kind, some in groups.items():
        points = [
            Point(_log(one), "bad" if not one.passed else "price" if one.tested else "load")
            for one in some
        ]
        least = min(one.p_value for one in some if one.p_value is not None)
        many = f"{len(some)} check{'s' * (len(some) > 1)}"
        lanes.append(Lane(kind, points, f"{many}, min p {least:.2g}"))
        said.append(f"{kind}, {many}, smallest {least:.2g}")
    axis = Axis(_LEAST, 0.0, chart.powers(_LEAST, 0.0, 5))
    words = f"P-values; one below {limit:.1g} would be flagged: {'; '.join(said)}."
    return chart.lane_chart(words, lanes, axis, mark=math.log10(limit))


def _log(one: Finding) -> float:
    return math.log10(one.p_value) if one.p_value else _LEAST


def checks_table(audit: Audit) -> Table:
    """Every check: first those that failed, then those that could not be tested."""
    shown, data = [], []
    for one in sorted(audit.findings, key=lambda one: _ORDER.index(one.verdict)):
        verdict = Markup('<span class="bad">FAILED</span>') if not one.passed else one.verdict
        chance = "–" if one.p_value is None else f"{one.p_value:.2g}"
        shown.append((one.check, verdict, chance, one.claimed, one.seen))
        data.append((one.check, one.verdict, one.p_value, one.claimed, one.seen))
    heads = ("Check", "Verdict", "p", "Claimed", "Seen")
    columns = ("check", "verdict", "p_value", "claimed", "seen")
    return Table("Checks", heads, shown, columns, data, words=(3, 4))
