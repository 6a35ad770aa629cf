"""Private: the plot of a comparison. Curator only.

The same numbers give the same bytes: no date, no random names, and text stays text. The colours
are of Okabe & Ito's palette, which all kinds of colour vision tell apart; shapes differ too.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from jdpack.errors import JdpackError

if TYPE_CHECKING:
    from jdpack.comparison import Comparison, Interval

_BLUE, _VERMILLION, _GREY = "#0072B2", "#D55E00", "#666666"
_STYLE: dict[Any, Any] = {
    "font.family": ["sans-serif"],
    "font.size": 11.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "jdpack",
    "text.parse_math": False,  # a name may have a $
}


def check() -> None:
    """Refuse before any work if the library that draws is not there."""
    if find_spec("matplotlib") is None:
        raise JdpackError(
            "plots are drawn by matplotlib, which is not installed", "pip install 'jdpack[plots]'"
        )


def svg(width: float, height: float, draw: Callable[[Any], None]) -> str:
    """A drawing in our style, as text; `draw` is given the empty figure."""
    check()
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    file = io.StringIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a reader's fonts may have it
        figure = Figure(figsize=(width, height))
        FigureCanvasSVG(figure)
        figure.set_layout_engine("constrained")
        draw(figure)
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": "jdpack"})
    return file.getvalue()


def comparison_svg(comparison: Comparison) -> str:
    """Shares of the optimum with their intervals, certified shares, and time, policy by policy."""
    from jdpack.comparison import NOTICE

    def draw(figure: Any) -> None:
        shares, times = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
        _draw_shares(shares, comparison)
        _draw_times(times, comparison)
        figure.suptitle(comparison.market.name)
        figure.supxlabel(NOTICE, fontsize=9.0, color=_VERMILLION, wrap=True)

    return svg(11.0, 2.6 + 0.45 * (len(comparison.rows) + 1), draw)


def _draw_shares(axes: Any, comparison: Comparison) -> None:
    rows = comparison.rows
    places = range(1, len(rows) + 1)
    axes.axvline(100.0, color=_GREY, linestyle="--", linewidth=1.0)
    for what, colour, shape, shift, found in [
        ("share of the optimum, 95% interval", _BLUE, "o", -0.12, [row.share for row in rows]),
        ("certified share", _VERMILLION, "D", 0.12, [row.certified for row in rows]),
    ]:
        points = [(y + shift, i) for y, i in zip(places, found, strict=True) if i is not None]
        axes.errorbar(
            [100.0 * i.mean for _, i in points],
            [y for y, _ in points],
            xerr=[100.0 * _reach(i) for _, i in points],
            fmt=shape,
            color=colour,
            capsize=4.0,
            label=what,
        )
    for y, row in zip(places, rows, strict=True):
        if not row.runs:
            axes.annotate(
                "no run", (0.5, y), xycoords=axes.get_yaxis_transform(), color=_GREY,
                ha="center", va="center",
            )  # fmt: skip
    axes.set_yticks([0, *places], ["optimum", *(row.label for row in rows)])
    axes.plot([100.0], [0], "k|", markersize=14.0)
    axes.set_ylim(len(rows) + 0.6, -0.6)
    axes.set_xlabel("% of the optimum")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)


def _draw_times(axes: Any, comparison: Comparison) -> None:
    seconds = [comparison.optimum.seconds, *(row.seconds for row in comparison.rows)]
    points = [(y, s) for y, s in enumerate(seconds) if s is not None]
    axes.plot([s for _, s in points], [y for y, _ in points], "s", color=_BLUE)
    for y, s in points:
        axes.annotate(
            f"{s:.3g}", (s, y), xytext=(6.0, 0.0), textcoords="offset points", va="center"
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
    axes.xaxis.set_minor_formatter(lambda *_: "")
    axes.margins(x=0.25)
    axes.set_xlabel("seconds of a run, median")
    axes.grid(axis="x", alpha=0.3)


def _reach(interval: Interval) -> float:
    return 0.0 if interval.high is None else interval.high - interval.mean
