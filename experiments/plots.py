"""Plots of experiments and benchmarks, in the colours and fonts of the pages.

The same numbers give the same bytes: no date, no random names, and text stays text. Colours come
from the pages' style sheet; further lines use Okabe & Ito's palette, which people with any kind of
colour vision can tell apart. Shapes differ too.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from importlib.util import find_spec
from itertools import cycle
from typing import Any

from jdpack.errors import JdpackError

_SHEET = resources.files("jdpack.pages").joinpath("web", "style.css").read_text(encoding="utf-8")
_LIGHT = _SHEET.split("@media")[0]  # the first rules are for light pages


def colour(name: str) -> str:
    """A colour of the pages, by its name in their style sheet."""
    found = re.search(rf"--{name}: (#[0-9a-f]{{6}});", _LIGHT)
    assert found is not None, f"the style sheet has no {name}"
    return found[1]


INK, SOFT, RULE = colour("ink"), colour("soft"), colour("rule")
FIRST, SECOND, THIRD = colour("price"), colour("load"), "#009E73"
STYLES = ((FIRST, "o"), (SECOND, "D"), (THIRD, "s"), ("#CC79A7", "^"), ("#E69F00", "v"))
"""The colour and shape of each series, in order."""

_FONTS = re.search(r"font: [\d.]+rem/[\d.]+ ([^;]+);", _SHEET)  # the first is that of the body
_STYLE: dict[Any, Any] = {
    "font.family": ["sans-serif"],
    "font.size": 11.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "jdpack",
    "text.parse_math": False,  # a name may contain a $
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.frameon": False,
}


def check() -> None:
    """Refuse, before any work, if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise JdpackError(
            "plots need matplotlib, which is not installed", "pip install 'jdpack[plots]'"
        )


def svg(width: float, height: float, draw: Callable[[Any], None]) -> str:
    """A drawing in our style, as SVG text; `draw` gets the empty figure."""
    check()
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    file = io.StringIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's fonts may have it
        figure = Figure(figsize=(width, height))
        FigureCanvasSVG(figure)
        figure.set_layout_engine("constrained")
        draw(figure)
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": "jdpack"})
    assert _FONTS is not None
    fonts = _FONTS[1].replace('"', "'")
    return re.sub(r"font-family: [^;\"]*", f"font-family: {fonts}", file.getvalue())


def plain_numbers(axis: Any) -> None:
    """Label a logarithmic axis without exponents, and more densely if it has few powers."""

    def text(x: float, _: object) -> str:
        if x >= 1e6:
            return f"{x / 1e6:,g}M"
        return f"{x:,g}"

    def between(x: float, _: object) -> str:
        low, high = axis.get_view_interval()
        return text(x, None) if high < 15.0 * low and f"{x:.0e}"[0] in "25" else ""

    axis.set_major_formatter(text)
    axis.set_minor_formatter(between)


def lines(across: str, up: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Named series of points joined by lines, on two logarithmic axes."""

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        axes.set(xlabel=across, ylabel=up)
        for (name, points), (tint, shape) in zip(series.items(), cycle(STYLES), strict=False):
            axes.plot([x for x, _ in points], [y for _, y in points], f"{shape}-", color=tint,
                      label=name, linewidth=1.2)  # fmt: skip
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            plain_numbers(axis)
        axes.grid(visible=True, alpha=0.6)
        axes.legend()

    return svg(7.0, 4.4, fill)


def bars(
    label: str,
    rows: Mapping[str, Mapping[str, float]],
    *,
    mark: tuple[float, str] | None = None,
) -> str:
    """Horizontal bars, one per row and series, and perhaps a marked value."""
    names = list(next(iter(rows.values())))

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        thick = 0.8 / len(names)
        for i, (name, (tint, _)) in enumerate(zip(names, cycle(STYLES), strict=False)):
            places = [y + (i - (len(names) - 1) / 2) * thick for y in range(len(rows))]
            lengths = [row[name] for row in rows.values()]
            drawn = axes.barh(places, lengths, thick * 0.92, color=tint, label=name)
            axes.bar_label(drawn, [f"{x:.3g}" for x in lengths], padding=3.0)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel(label)
        axes.margins(x=0.15)
        axes.grid(axis="x", alpha=0.6)
        if mark is not None:
            axes.axvline(mark[0], color=INK, linestyle="--", linewidth=1.2, label=mark[1])
        if len(names) > 1 or mark is not None:
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)

    return svg(8.0, 1.6 + 0.3 * len(rows) * (1 + len(names)), fill)
