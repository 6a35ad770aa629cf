"""Private: a comparison of policies as a page: plots, and tables with their CSV. Curator only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from markupsafe import Markup

from jdpack.curator.comparison import (
    CONFIDENCE,
    HEADS,
    NOTICE,
    UNTOUCHED,
    Comparison,
    Interval,
    MeasuredRun,
    Row,
    optimum_cells,
    row_cells,
)
from jdpack.pages import chart
from jdpack.pages.billboard_page import filled
from jdpack.pages.chart import Axis, Lane, Point
from jdpack.pages.table import Table


def comparison_page(comparison: Comparison) -> str:
    """The page of a comparison. Private."""
    return filled(
        "comparison.html",
        found=comparison,
        market=comparison.market,
        not_private=None,
        notice=NOTICE,
        untouched=UNTOUCHED,
        confidence=CONFIDENCE,
        infinite=comparison.epsilon == math.inf,
        shares=_shares(comparison),
        times=_times(comparison),
        policies=policies_table(comparison),
        runs=runs_table(comparison),
        notes=comparison.notes,
    )


# --- plots --------------------------------------------------------------------------------


def _shares(comparison: Comparison) -> Markup:
    """Fractions of the optimum with their intervals, and certified ones, policy by policy."""
    lanes, seen, said = [], [1.0], []
    for row in comparison.rows:
        points = []
        if row.share is not None:
            points.append(_point(row.share, "price"))
        if row.certified is not None:
            points.append(_point(row.certified, "load"))
        text = "no run" if row.share is None else f"{row.share.mean:.2%}"
        lanes.append(Lane(row.label, points, text))
        said.append(f"{row.label} {text}")
        seen += [x for p in points for x in (p.value, p.low, p.high) if x is not None]
    axis = _percents(min(seen), max(seen))
    words = f"Mean fractions of the optimum: {'; '.join(said)}."
    return chart.lane_chart(words, lanes, axis, mark=1.0)


def _point(interval: Interval, kind: str) -> Point:
    return Point(interval.mean, kind, interval.low, interval.high)


def _percents(least: float, most: float) -> Axis:
    """An axis between round percentages below and above all values, 100% included."""
    width = max(1.0, most) - min(1.0, least)
    step = next((s for s in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1) if 5 * s >= width), 0.25)
    low = step * math.floor(max(0.0, least) / step + 1e-9)
    high = max(1.0 + step / 4, min(most, 1.0 + step))
    count = math.floor((1.0 - low) / step + 1e-9)
    ticks = [(1.0 - step * i) for i in range(count, -1, -1)]
    return Axis(low, high, tuple((t, f"{100 * t:.3g}%") for t in ticks))


def _times(comparison: Comparison) -> Markup:
    """The seconds of a run, on a logarithmic axis."""
    known = [("optimum", comparison.optimum.seconds)]
    known += [(row.label, row.seconds) for row in comparison.rows if row.seconds is not None]
    logs = [math.log10(max(seconds, 1e-6)) for _, seconds in known]
    axis = Axis(math.floor(min(logs)), math.floor(max(logs)) + 1.0, ())
    axis = Axis(axis.low, axis.high, chart.powers(axis.low, axis.high))
    lanes = [
        Lane(name, [Point(at)], f"{seconds:.3g} s")
        for (name, seconds), at in zip(known, logs, strict=True)
    ]
    said = "; ".join(f"{name} {seconds:.3g}" for name, seconds in known)
    return chart.lane_chart(f"Median seconds of a run: {said}.", lanes, axis)


# --- tables -------------------------------------------------------------------------------


def policies_table(comparison: Comparison) -> Table:
    """One row per policy, as in the text; the CSV also has both ends of the intervals."""
    best = comparison.optimum
    shown: list[tuple[str, ...]] = [optimum_cells(best)]
    data: list[Sequence[object]] = [
        ("optimum", 1.0, None, None, None, None, None, None, None, None, None, best.seconds, None)
    ]
    for row in comparison.rows:
        refused = (row.label, "no run", *[""] * (len(HEADS) - 2))
        shown.append(row_cells(row) if row.runs else refused)
        data.append(_numbers(row))
    columns = (
        "policy", "share", "share_low", "share_high", "certified", "promises", "valid", "fits",
        "dropped", "rounds", "releases", "seconds", "refused",
    )  # fmt: skip
    return Table("Policies", HEADS, shown, columns, [tuple(line) for line in data])


def _numbers(row: Row) -> tuple[object, ...]:
    share, certified = row.share, row.certified
    ends = (None,) * 3 if share is None else (share.mean, share.low, share.high)
    return (
        row.label, *ends, None if certified is None else certified.mean, len(row.promises),
        row.valid, row.fits, row.dropped, row.rounds, row.releases, row.seconds, row.refused,
    )  # fmt: skip


def runs_table(comparison: Comparison) -> Table:
    """One row per run."""
    shown, data = [], []
    for row in comparison.rows:
        for run in row.runs:
            shown.append((row.label, *_run(run)))
            data.append((row.label, *asdict(run).values()))
    heads = (
        "Policy", "Seed", "Fraction of the optimum", "Certified", "Largest load", "Dropped",
        "Rounds", "Seconds",
    )  # fmt: skip
    columns = ("policy", *(MeasuredRun.__dataclass_fields__))
    return Table("Runs", heads, shown, columns, data)


def _run(run: MeasuredRun) -> tuple[str, ...]:
    return (
        f"{run.seed}",
        f"{run.share:.2%}",
        # A promise is rounded down.
        "none" if run.certified is None else f"{math.floor(1e4 * run.certified) / 100:.2f}%",
        f"{run.load:.2%}",
        f"{run.dropped:,}",
        f"{run.rounds:,}",
        f"{run.seconds:.3g}",
    )
