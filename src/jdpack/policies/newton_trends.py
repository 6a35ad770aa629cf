"""Public: what the rounds themselves show of how loads respond to prices.

A gauge is one noisy look at the response (`jdpack.policies.newton_response`). Where its noise is
large, the model that it leaves may be several times too stiff or too soft, and then prices hardly
move or miss their targets in every round. But prices move all the time, and loads follow. So we
regress loads on log prices over the rounds since the approach, with falling weights, and combine
the slopes with what the gauge told, each by its precision (Bayesian linear regression).

Let x be the log of the price of a fixed basket of resources, and q_j that of resource j, both
relative to the first of these rounds.

* The level is how far the mean load of the basket falls as x rises by 1.
* With c the common part of the model, L_j + c x falls by d_j as q_j rises by 1.

Prices follow noise of earlier rounds, but not that of the round in which they are posted, so the
noise of a load is independent of its own x and q.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from jdpack.common import portable_math
from jdpack.common.portable_math import FloatArray
from jdpack.policies.newton_response import Response

_MEMORY = 0.97  # how much earlier rounds still count after one more
_SOFTEST = 0.1  # the least level
_DOUBTS = 2.0  # how many deviations of the level are added to it
_STIFFEST = 2.0  # no d is raised above this many levels


@dataclass(frozen=True)
class Trends:
    """Weighted sums over rounds."""

    start: FloatArray
    """The prices of the first round."""
    basket: FloatArray
    """The weight of each load in their mean. It is also the part of the basket's price, at the
    start, that its price makes up."""
    sums: FloatArray
    """Of 1, q, q^2, L, L q, x and x q, weighted by precision: a column for each resource, and one
    for the basket."""

    @classmethod
    def begin(cls, weights: FloatArray, prices: FloatArray) -> Trends:
        """No rounds yet, and a basket with these weights."""
        return cls(prices, weights / math.fsum(weights.tolist()), np.zeros((7, len(prices) + 1)))

    def seen(self, prices: FloatArray, loads: FloatArray, variances: FloatArray) -> Trends:
        """The sums with one more round."""
        ratios = prices / self.start
        x = portable_math.log(math.fsum((self.basket * ratios).tolist()))
        q = np.append(portable_math.logs(ratios), x)
        y = np.append(loads, math.fsum((self.basket * loads).tolist()))
        mean_variance = math.fsum((self.basket * self.basket * variances).tolist())
        rows = np.stack([np.ones_like(q), q, q * q, y, y * q, np.full_like(q, x), x * q])
        sums = _MEMORY * self.sums + rows / np.append(variances, mean_variance)
        return Trends(self.start, self.basket, sums)

    def corrected(self, model: Response, prices: FloatArray, *, crossed: bool) -> Response:
        """The model as these rounds correct it.

        `crossed` tells whether agents have several options. If not, a higher price raises no other
        load, so c is not negative, and no level is below the d that make it up.
        """
        told = model.told
        if told is None or told.level_variance == 0.0:  # it is exact
            return model
        precision, slope = self._slopes(0.0)
        whole = 1.0 / told.level_variance + float(precision[-1])
        level = (told.level / told.level_variance + float(slope[-1])) / whole
        # If the market is taken to be too stiff, prices only move slowly. So doubt is added.
        level = max(level, _SOFTEST) + _DOUBTS * math.sqrt(1.0 / whole)
        model = model.corrected(prices, level, model.diagonal)
        diagonal, least = told.diagonal, told.least
        if not crossed:
            own = math.fsum((prices * diagonal).tolist()) / math.fsum(prices.tolist())
            diagonal, least = (min(1.0, level / own) * d for d in (diagonal, least))
        precision, slope = (column[:-1] for column in self._slopes(model.common))
        found = (diagonal / told.variances + slope) / (1.0 / told.variances + precision)
        found = np.clip(found, least, np.maximum(diagonal, _STIFFEST * level))
        return model.corrected(prices, level, found)

    def _slopes(self, common: float) -> tuple[FloatArray, FloatArray]:
        """The precision of each slope of L + common x in q, and minus the slope times that."""
        n, q, qq, y, yq, x, xq = self.sums
        return qq - q * q / n, q * (y + common * x) / n - (yq + common * xq)
