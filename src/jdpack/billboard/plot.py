"""Public: how prices and demand moved, as a figure of matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jdpack.errors import BillboardError

if TYPE_CHECKING:
    from jdpack.billboard.board import Billboard

LINES = 8
"""The most resources in a figure: those with the largest loads in the last round."""


def plot(board: Billboard) -> Any:
    """Draw the price and the noisy load of each resource in every round."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise BillboardError("plot() needs matplotlib", "pip install 'jdpack[plots]'") from None
    market = board.header.market
    asked = [r for r in board.releases if r.step.query == "demand"]
    if not asked:
        raise BillboardError("no round is posted yet, so there is nothing to plot")
    batches = [1 if r.step.batch is None else r.step.batch.count for r in asked]
    supplies = np.array(market.supply_codes, dtype=np.float64)
    answers = np.array([r.answer for r in asked], dtype=np.float64)
    loads = answers / supplies * np.array(batches)[:, None]
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    rounds = range(1, len(asked) + 1)
    shown = np.argsort(-loads[-1], kind="stable")[:LINES]
    for j in sorted(shown.tolist()):
        prices = [market.unit_price(j, r.step.prices[j]) for r in asked]
        axes[0].plot(rounds, prices, label=market.resources[j].name)
        axes[1].plot(rounds, 100.0 * loads[:, j])
    axes[1].axhline(100.0, color="black", linewidth=1, linestyle="--")
    axes[0].set(title="Price of one unit", xlabel="round")
    axes[1].set(title="Noisy demand, in % of supply", xlabel="round")
    figure.suptitle(market.name)
    figure.legend(loc="outside right center")
    return axes
