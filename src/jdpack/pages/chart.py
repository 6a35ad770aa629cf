"""Public: small charts as SVG, for pages without scripts.

A chart is drawn in whole numbers on its own plane, which stretches to fit the page, so it takes few
bytes. Colours come from the page's style sheet by class, so they follow the light or dark setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

_WIDTH, _HEIGHT = 360, 132
_LEFT, _TOP, _RIGHT, _BOTTOM = 46, 8, 6, 20  # space around the plane, for the axes
_PLANE = 1000, 400
_EDGE, _LANE, _LETTERS = 8, 36, 50  # lanes: space at the sides, height, letters per line


@dataclass(frozen=True)
class Axis:
    """The range of values that a chart shows, and the labels at its side."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Band:
    """The values between two lines."""

    low: Sequence[float]
    high: Sequence[float]


def line_chart(
    label: str,
    kind: str,
    xs: Sequence[float],
    ys: Sequence[float],
    axis: Axis,
    *,
    across: Axis | None = None,
    band: Band | None = None,
    mark: float | None = None,
    point: tuple[float, float] | None = None,
    since: int | None = None,
) -> Markup:
    """A line through points, as an image with a text alternative.

    Args:
        label: what the chart shows, in words.
        kind: the class of the line, which gives its colour.
        xs, ys: the points; `xs` increase.
        axis: the range of `ys`; points beyond it are drawn at its edge.
        across: the range of `xs`; if not given, from the first to the last, both labelled.
        band: drawn behind the line.
        mark: a value to draw as a dashed horizontal line.
        point: a point to draw as a dot.
        since: tint the background from here to the right.
    """
    wide, high = _PLANE
    known = across or Axis(xs[0], max(xs[-1], xs[0] + 1), ((xs[0], f"{xs[0]}"),))

    def along(x: float) -> int:
        return round(wide * _part(x, known))

    def down(y: float) -> int:
        return round(high * (1.0 - _part(y, axis)))

    places = [along(x) for x in xs]
    shapes = []
    if since is not None:
        shapes.append(f'<path class="since" d="M{along(since)} 0H{wide}V{high}H{along(since)}z"/>')
    if band is not None:
        there = list(zip(places, map(down, band.high), strict=True))
        back = list(zip(places, map(down, band.low), strict=True))[::-1]
        shapes.append(f'<path class="band {kind}" d="{_path(there + back)}z"/>')
    for value, _ in axis.ticks:
        shapes.append(f'<path class="grid" d="M0 {down(value)}H{wide}"/>')
    for value, _ in () if across is None else across.ticks:
        shapes.append(f'<path class="grid" d="M{along(value)} 0V{high}"/>')
    line = list(zip(places, map(down, ys), strict=True))
    if len(line) == 1:
        line.append((wide, line[0][1]))
    shapes.append(f'<path class="line {kind}" d="{_path(line)}"/>')
    if mark is not None:
        shapes.append(f'<path class="mark" d="M0 {down(mark)}H{wide}"/>')

    def beside(y: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * down(y) / high

    def below(x: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * along(x) / wide

    words = [
        f'<text x="{_LEFT - 6}" y="{beside(value) + 4:.0f}" text-anchor="end">{escape(text)}</text>'
        for value, text in axis.ticks
    ]
    low, ends = _HEIGHT - 5, (_LEFT, _WIDTH - _RIGHT)
    words += [_written(below(value), low, text, ends) for value, text in known.ticks]
    if across is None:
        words.append(_written(ends[1], low, f"{xs[-1]}", ends))
    if point is not None:
        words.append(_dot(kind, below(point[0]), beside(point[1])))
    return _framed(label, shapes, words)


@dataclass(frozen=True)
class Point:
    """A value on a lane, with its interval, if known."""

    value: float
    kind: str = "price"
    """The class, which sets colour and shape: price is a dot, load a diamond, bad a cross."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Lane:
    """One of several things to compare: its name, its values, and the values as text."""

    name: str
    points: Sequence[Point]
    text: str = ""


def lane_chart(
    label: str, lanes: Sequence[Lane], axis: Axis, *, mark: float | None = None
) -> Markup:
    """Values on one lane each, with a common axis below.

    Args:
        label: what the chart shows, in words.
        lanes: from top to bottom.
        axis: from left to right; values beyond it are drawn at its edge.
        mark: a value to draw as a dashed vertical line.
    """
    ends, top = (_EDGE, _WIDTH - _EDGE), 2
    foot = top + _LANE * len(lanes)

    def along(x: float) -> float:
        return ends[0] + (ends[1] - ends[0]) * _part(x, axis)

    def upright(kind: str, x: float) -> str:  # beside the names, not through them
        steps = [f"M{along(x):.1f} {top + _LANE * i + 17}v16" for i in range(len(lanes))]
        return f'<path class="{kind}" d="{"".join(steps)}"/>'

    shapes = [upright("grid", x) for x, _ in axis.ticks]
    if mark is not None:
        shapes.append(upright("mark", mark))
    words = [_written(along(x), foot + 15, text, ends) for x, text in axis.ticks]
    for i, lane in enumerate(lanes):
        y = top + _LANE * i
        most = max(12, _LETTERS - len(lane.text))
        name = lane.name if len(lane.name) <= most else f"{lane.name[: most - 1]}…"
        words.append(f'<text class="name" x="{ends[0]}" y="{y + 13}">{escape(name)}</text>')
        if lane.text:
            words.append(_written(ends[1], y + 13, lane.text, ends))
        for j, point in enumerate(lane.points):
            level = y + 25 + (0 if len(lane.points) != 2 else 3 * (2 * j - 1))
            if point.low is not None and point.high is not None:
                reach = f"M{along(point.low):.1f} {level}H{along(point.high):.1f}"
                shapes.append(f'<path class="line {point.kind}" d="{reach}"/>')
            shapes.append(_dot(point.kind, along(point.value), level))
    return Markup(
        f'<svg class="chart" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {_WIDTH} {foot + 20}">{"".join(shapes)}{"".join(words)}</svg>'
    )


def _part(value: float, axis: Axis) -> float:
    """How far along the axis a value is, from 0 to 1."""
    return (min(max(value, axis.low), axis.high) - axis.low) / (axis.high - axis.low)


def _dot(kind: str, x: float, y: float) -> str:
    if kind == "load":
        return f'<path class="dot load" d="M{x - 4.5:.1f} {y:.1f}l4.5-4.5 4.5 4.5-4.5 4.5z"/>'
    if kind == "bad":
        return f'<path class="line bad" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8"/>'
    return f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'


def _written(x: float, y: float, text: str, ends: tuple[int, int]) -> str:
    """A text at a place, kept between the ends."""
    side = "start" if x < ends[0] + 12 else "end" if x > ends[1] - 12 else "middle"
    anchor = "" if side == "start" else f' text-anchor="{side}"'
    return f'<text x="{x:.0f}" y="{y}"{anchor}>{escape(text)}</text>'


def bar(fraction: float) -> Markup:
    """A bar filled to a fraction of its length; the page must show the number beside it."""
    filled = round(100 * min(max(fraction, 0.0), 1.0))
    return Markup(
        '<svg class="bar" aria-hidden="true" viewBox="0 0 100 8" preserveAspectRatio="none">'
        f'<path class="rest" d="M0 0h100v8H0z"/><path class="fill" d="M0 0h{filled}v8H0z"/></svg>'
    )


def powers(low: float, high: float, most: int = 6) -> tuple[tuple[float, str], ...]:
    """At most `most` powers of 10 as ticks of an axis from 10^low to 10^high."""
    exponents = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    stride = -(-len(exponents) // most) or 1
    return tuple((float(e), f"{10.0**e:g}") for e in exponents[::-1][::stride][::-1])


def round_ticks(high: float, count: int = 3) -> tuple[float, ...]:
    """Round numbers from 0 to `high`, in about `count` steps."""
    if not 0.0 < high < math.inf:
        return (0.0,)
    rough = high / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * (1 - 1e-9))
    return tuple(step * i for i in range(math.floor(high / step * (1 + 1e-9)) + 1))


def thinned(count: int, most: int) -> list[int]:
    """Numbers from 0 to count - 1, about `most` of them, evenly spaced and with the last."""
    stride = max(1, -(-(count - 1) // max(1, most - 1))) if count > most else 1
    return sorted({*range(0, count, stride), count - 1})


def _path(points: Sequence[tuple[int, int]]) -> str:
    """A path through points, as steps from one to the next."""
    (x, y), parts = points[0], []
    for to_x, to_y in points[1:]:
        dx, dy = to_x - x, to_y - y
        parts.append(f"{dx}{dy}" if dy < 0 else f"{dx} {dy}")
        x, y = to_x, to_y
    steps = "".join(part if part[0] == "-" else f" {part}" for part in parts)
    return f"M{points[0][0]} {points[0][1]}l{steps.lstrip()}"


def histogram(
    label: str, above: Sequence[int], below: Sequence[int], ends: tuple[str, str, str]
) -> Markup:
    """Columns above and below a line, in one scale.

    Args:
        label: what the chart shows, in words.
        above, below: the heights, the same number of each.
        ends: the labels at the left end, in the middle and at the right end.
    """
    wide, high = _PLANE
    scale = high / max(1, max(above) + max(below))
    line = round(max(above) * scale)
    step, shapes = wide / len(above), []
    for i, (up, down) in enumerate(zip(above, below, strict=True)):
        left, width = round(i * step) + 1, max(1, round((i + 1) * step) - round(i * step) - 2)
        for kind, count, sign in (("up", up, -1), ("down", down, 1)):
            if count:
                tall = max(2, round(count * scale))
                shapes.append(
                    f'<path class="column {kind}" d="M{left} {line}v{sign * tall}h{width}'
                    f'v{-sign * tall}z"/>'
                )
    shapes.append(f'<path class="mark" d="M{wide // 2} 0V{high}"/>')
    shapes.append(f'<path class="grid" d="M0 {line}H{wide}"/>')
    low = _HEIGHT - 5
    middle = (_LEFT + _WIDTH - _RIGHT) // 2
    words = [
        f'<text x="{_LEFT - 6}" y="{_TOP + 9}" text-anchor="end">{max(above):,}</text>',
        f'<text x="{_LEFT - 6}" y="{low - 16}" text-anchor="end">{max(below):,}</text>',
        f'<text x="{_LEFT}" y="{low}">{escape(ends[0])}</text>',
        f'<text x="{middle}" y="{low}" text-anchor="middle">{escape(ends[1])}</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{low}" text-anchor="end">{escape(ends[2])}</text>',
    ]
    return _framed(label, shapes, words)


def _framed(label: str, shapes: Sequence[str], words: Sequence[str]) -> Markup:
    """The image: shapes on the plane, which stretches, and words beside it, which do not."""
    return Markup(
        f'<svg class="chart" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<svg x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - _RIGHT}" '
        f'height="{_HEIGHT - _TOP - _BOTTOM}" viewBox="0 0 {_PLANE[0]} {_PLANE[1]}" '
        f'preserveAspectRatio="none">{"".join(shapes)}</svg>{"".join(words)}</svg>'
    )
