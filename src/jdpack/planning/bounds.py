"""Public: bounds for a market from noisy counts of agents by level, and what they would clamp.

The counts were released through the door, so everything here may be published.

How a bound is suggested. Let e_0 > e_1 > ... be the edges of a grid (`jdpack.market.levels`), c_k
the noisy count of level k, and n the number of agents. Then c_0 + ... + c_k estimates how many
agents ask for more than e_k, and n - c_last how many ask for anything; where n is not public, the
sum of all other levels does. Discrete Gaussian noise is sub-Gaussian with its own scale s, and so
is a sum of h of them with s sqrt h (`jdpack.privacy.tail_bounds`). With probability 1 - BETA, no
such sum, over all edges of all grids, is off by more than s sqrt(2 h ln(S / BETA)), where S is the
number of statements. So the share of those who ask whose amounts are above e_k is at most

    (c_0 + ... + c_k + their radius) / (those who ask - their radius)

for all edges at once. The suggestion is the last edge, from the largest on, for which this is at
most the share that may be clamped. If it is too large already at the present bound, or at the first
edge below, the present bound stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jdpack.common import notebook
from jdpack.market.levels import grids, widths
from jdpack.market.market import Market, Neighbours, Provenance
from jdpack.pages.number_text import short, short_percent
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import Noise, deviation
from jdpack.privacy.queries import LEVEL_UNIT

BETA = 0.05
"""The probability with which some statement about a share may be wrong."""


@dataclass(frozen=True)
class Suggestion:
    """A bound for one resource, or for the value."""

    name: str | None
    """The name of the resource; None for the value."""
    unit: str
    """The unit of the resource."""
    present: float
    """The bound that the market has now."""
    bound: float
    """The bound that is suggested; the present one if no smaller one is shown to be enough."""
    clamped: float
    """The estimated share, of those who ask for any of it, who ask for more than that."""
    at_most: float
    """This share is at most so large, for all bounds together with probability 1 - BETA."""

    @property
    def changed(self) -> bool:
        """Whether a smaller bound is suggested."""
        return self.bound < self.present

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "resource": self.name,
            "unit": self.unit,
            "present": self.present,
            "bound": self.bound,
            "clamped": self.clamped,
            "at_most": self.at_most if math.isfinite(self.at_most) else None,
        }


@dataclass(frozen=True)
class Bounds:
    """Public: suggested bounds, from private counts. `str(bounds)` is for people."""

    given: Market
    """The market as it was, with the widest bounds that make sense."""
    budget: Budget
    """What was spent."""
    share: float
    """The share of those who ask for a resource that may be clamped."""
    noise: Noise
    """The noise on every count, in units of LEVEL_UNIT."""
    counts: tuple[tuple[int, ...], ...]
    """For each resource and then for the value: the noisy count of agents at each level, in units
    of LEVEL_UNIT."""
    run: str
    """The name of this release in the ledger; empty if it is not private."""

    @classmethod
    def of(
        cls,
        given: Market,
        budget: Budget,
        share: float,
        noise: Noise,
        answer: tuple[int, ...],
        run: str,
    ) -> Bounds:
        """From the answer of the door."""
        rest, counts = list(answer), []
        for width in widths(given):
            counts.append(tuple(rest[:width]))
            del rest[:width]
        return cls(given, budget, share, noise, tuple(counts), run)

    @cached_property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """One for each resource, and at last one for the value."""
        what = [(r.name, r.unit) for r in self.given.declared]
        named: list[tuple[str | None, str]] = [*what, (None, "")]
        rows = zip(named, grids(self.given), self.counts, strict=True)
        return tuple(self._suggest(name, unit, grid, own) for (name, unit), grid, own in rows)

    def _suggest(
        self, name: str | None, unit: str, edges: tuple[float, ...], counts: tuple[int, ...]
    ) -> Suggestion:
        found = Suggestion(name, unit, edges[0], edges[0], *self._shares(counts, 0))
        for k in range(len(edges)):
            clamped, at_most = self._shares(counts, k)
            if at_most > self.share:
                break
            found = Suggestion(name, unit, edges[0], edges[k], clamped, at_most)
        return found

    def _shares(self, counts: tuple[int, ...], k: int) -> tuple[float, float]:
        """The share of those who ask that is above edge k: an estimate, and at most."""
        above = sum(counts[: k + 1]) / LEVEL_UNIT
        if self.given.neighbours is Neighbours.REPLACE_ONE:
            asking, terms = self.given.agents - counts[-1] / LEVEL_UNIT, 1
        else:
            asking, terms = sum(counts[:-1]) / LEVEL_UNIT, len(counts) - 1
        least = asking - self._radius(terms)
        estimate = min(1.0, max(0.0, above) / asking) if asking > 0.0 else 1.0
        most = max(0.0, above + self._radius(k + 1))
        return estimate, most / least if least > 0.0 else math.inf

    def _radius(self, terms: int) -> float:
        """How far a sum of this many counts may be off."""
        statements = sum(widths(self.given))
        scale = max(deviation(self.noise)) / LEVEL_UNIT
        return scale * math.sqrt(2.0 * terms * math.log(statements / BETA))

    @cached_property
    def market(self) -> Market:
        """The market with the suggested bounds, which says what choosing them cost."""
        *caps, value = self.suggestions
        return self.given.changed(
            max_demand=[cap.bound for cap in caps],
            max_value=value.bound,
            provenance=(*self.given.provenance, *self._provenance()),
        )

    def _provenance(self) -> Iterator[Provenance]:
        if self.run:
            yield Provenance(self.budget.epsilon, self.budget.delta, self.run)

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "private": bool(self.run),
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "run": self.run,
            "share": self.share,
            "noise": self.noise.to_dict(),
            "unit": LEVEL_UNIT,
            "bounds": [
                {**one.to_dict(), "edges": list(edges), "counts": list(counts)}
                for one, edges, counts in zip(
                    self.suggestions, grids(self.given), self.counts, strict=True
                )
            ],
        }

    def __repr__(self) -> str:
        many = sum(one.changed for one in self.suggestions)
        return f"Bounds({self.given.name!r}, {many} of {len(self.suggestions)} smaller)"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return notebook.typed(str(self))

    def _lines(self) -> Iterator[str]:
        if not self.run:
            yield "NOT PRIVATE: made with seeded noise; it protects nobody."
        yield f"{self.given.name}: bounds that clamp at most {short_percent(self.share)} of those"
        yield "who ask for a resource, with probability 0.95 for all of them together (public)"
        width = max(len(one.name or "value") for one in self.suggestions)
        for one in self.suggestions:
            yield f"  {one.name or 'value':<{width}}  {_words(one)}"
        spent = f"epsilon {self.budget.epsilon:g} and delta {self.budget.delta:g}"
        yield f"spent {spent}, on top of what runs spend; each count is off by about"
        people = max(deviation(self.noise)) / LEVEL_UNIT
        yield f"{short(people)} agents. Records beyond a bound need --clamp (clamp=True) in a run."


def _words(one: Suggestion) -> str:
    """A suggestion for a person."""
    unit = f" {one.unit}" if one.unit else ""
    if one.changed:
        about = f"about {short_percent(one.clamped)} are clamped, at most"
        return (
            f"{short(one.bound)}{unit} instead of {short(one.present)}: {about} "
            f"{short_percent(one.at_most)}"
        )
    return f"{short(one.present)}{unit} as before: no smaller bound is shown to be enough"
