"""Power laws through measured points: their exponents with intervals, and log-log plots."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats

import plots

Lines = dict[str, list[tuple[float, float]]]
"""Points by name."""


@dataclass(frozen=True)
class Fit:
    """y = constant * x^slope, by least squares on logarithms."""

    slope: float
    error: float
    """Half the width of the slope's 95% confidence interval, from the residuals."""
    constant: float
    points: int

    def __str__(self) -> str:
        few = "" if self.points >= 5 else f", {self.points} points"
        return f"{self.slope:.2f} ± {self.error:.2f}{few}"


def fit(points: list[tuple[float, float]]) -> Fit | None:
    """The power law through some points; None if there are fewer than three."""
    if len(points) < 3:
        return None
    x, y = np.log(np.array(points).T)
    line = scipy.stats.linregress(x, y)
    wide = float(scipy.stats.t.ppf(0.975, len(points) - 2)) * float(line.stderr)
    return Fit(float(line.slope), wide, math.exp(float(line.intercept)), len(points))


def draw(panels: list[tuple[str, str, Lines]], styles: Mapping[str, tuple[str, str]]) -> str:
    """Log-log plots, two per row, with the fitted power laws; styles are colour and shape."""

    def fill(figure: Any) -> None:
        places = figure.subplots(-(-len(panels) // 2), 2, squeeze=False).ravel()
        for axes, (across, up, lines) in zip(places, panels, strict=True):
            axes.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
            for axis in (axes.xaxis, axes.yaxis):
                plots.plain_numbers(axis)
            axes.grid(visible=True, alpha=0.6)
            for name, points in lines.items():
                law = fit(points)
                if law is None:
                    continue
                colour, shape = styles[name]
                x = np.array([point[0] for point in points])
                label = f"{name}: slope {law}"
                axes.plot(x, [y for _, y in points], shape, color=colour, label=label)
                axes.plot(x, law.constant * x**law.slope, color=colour, linewidth=1.0)
            if axes.lines:
                axes.legend(fontsize=8.0, loc="center left", bbox_to_anchor=(1.0, 0.5))

    return plots.svg(15.0, 4.4 * -(-len(panels) // 2), fill)
