"""Public: what one person may ask for in total, over all requests, counted exactly.

An agent is a person: whoever the promise protects. A person makes one request, or several. Each
request has its own options, takes at most one of them, and is decided separately at the posted
prices. So how far one person can move a sum is bounded by what all requests together can take, and
these bounds limit that.

Counting. A request counts with the largest of its options: the largest value, the most of each
resource, the largest total, the most resources. What a person takes is at most the sum over the
requests. As in `jdpack.market.totals`, a code c stands for amounts above (c - 1) units, so a
resource counts with c - 1: every person who truly asks for no more than a bound passes unchanged.
All sums are sums of whole numbers: exact, and the same in Python, in the kernels
(`jdpack.records.person_kernels`) and in JavaScript (`pages/web/allocate.js`).

Beyond the bounds. Requests are counted in the order in which the person lists them. A request that
would go beyond a bound is left out as a whole: it takes nothing and gets nothing, and the requests
after it are counted without it. So what is kept depends on the person's own record alone.

Formal guarantees. Let x be what a person takes in total, in codes, R the most requests, and C the
largest code. Then, for everybody who passes or was cut:

* x_j <= min(R C, the bound on j in whole units + R), because each request that touches j counts
  at least its code minus 1;
* the value codes taken sum to at most min(R times the cap, the code of the bound on value);
* x touches at most `bundle_size` resources. Two numbers bound how many it touches, and the smaller
  one counts: the sum over requests of the most that one option touches, and the number of
  resources that any option of any request touches;
* for a total B, sum_j x_j w_j <= B + R (the sum of w_j over the resources that one option touches).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jdpack.common import checks
from jdpack.errors import MarketError
from jdpack.market.totals import MaxTotal, Total, max_totals_of

REQUESTS_MAX = 10**6


@dataclass(frozen=True)
class PersonBounds:
    """The most that one person may ask for in total. `requests` bounds what nothing else does."""

    requests: int = 1
    """The most requests."""
    max_value: float | None = None
    """The most value of all requests together."""
    bundle_size: int | None = None
    """The most resources that all requests together may touch."""
    max_demand: Mapping[str, float] = field(default_factory=dict)
    """By resource name: the most of that resource, over all requests."""
    max_total: tuple[MaxTotal, ...] = ()
    """The most of some resources together, in the unit that they share."""

    def __hash__(self) -> int:
        demand = tuple(self.max_demand.items())
        return hash((self.requests, self.max_value, self.bundle_size, demand, self.max_total))

    @classmethod
    def of(cls, given: Any) -> PersonBounds:
        """Bounds from a table of a market file, a number of requests, or checked if they exist."""
        if isinstance(given, PersonBounds):
            parts: dict[str, Any] = dict(vars(given))
        elif isinstance(given, Mapping):
            section = checks.Section("[person]", given)
            parts = {
                "requests": section.take("requests", int),
                "max_value": section.number("max_value", None),
                "bundle_size": section.take("bundle_size", int, None),
                "max_demand": section.take("max_demand", object, {}),
                "max_total": section.take("max_total", object, None),
            }
            section.close()
        else:
            parts = {"requests": 1 if given is None else given, "max_demand": {}}
        demand, value = parts["max_demand"], parts.get("max_value")
        if not isinstance(demand, Mapping):
            raise MarketError(
                f"[person]: max_demand must be a table, not {checks.quoted(demand)}",
                "give an amount for each resource by its name",
            )
        size = parts.get("bundle_size")
        found = cls(
            checks.count("requests", parts["requests"], REQUESTS_MAX),
            None if value is None else checks.positive("[person]: max_value", value),
            None if size is None else checks.count("[person]: bundle_size", size, 2**16),
            {
                str(name): checks.positive(f"[person]: max_demand of {name!r}", amount)
                for name, amount in demand.items()
            },
            max_totals_of(parts.get("max_total") or None),
        )
        if found.requests == 1 and found != cls():
            raise MarketError(
                "bounds per person are for people with several requests, but requests is 1",
                "bound an option with max_demand, max_value, bundle_size and max_total",
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `of`."""
        found: dict[str, Any] = {"requests": self.requests}
        if self.max_value is not None:
            found["max_value"] = self.max_value
        if self.bundle_size is not None:
            found["bundle_size"] = self.bundle_size
        if self.max_demand:
            found["max_demand"] = dict(self.max_demand)
        if self.max_total:
            found["max_total"] = [total.to_dict() for total in self.max_total]
        return found


@dataclass(frozen=True)
class PersonLimits:
    """The bounds of one person in whole numbers, over the declared resources."""

    requests: int
    value: int
    """The most value, in value codes."""
    bundle: int
    """The most resources."""
    steps: tuple[int, ...]
    """The most of each resource, in codes; each request counts with its code minus 1."""
    totals: tuple[Total, ...]


class Count:
    """What a person has asked for so far."""

    def __init__(self, limits: PersonLimits) -> None:
        self._limits = limits
        self._requests = self._value = self._width = 0
        self._touched: set[int] = set()
        self._steps = [0] * len(limits.steps)
        self._totals = [0] * len(limits.totals)

    def admit(self, options: Sequence[tuple[int, Sequence[int]]]) -> str | None:
        """Count one more request, given as value and demand codes of its options.

        Returns None, or which bound it would exceed; then it is left out and not counted.
        """
        limits, each = self._limits, range(len(self._steps))
        if self._requests == limits.requests:
            return "requests"
        value = self._value + max(v for v, _ in options)
        steps = [self._steps[j] + max(max(c[j] - 1, 0) for _, c in options) for j in each]
        totals = [
            so_far + max(total.count(c) for _, c in options)
            for so_far, total in zip(self._totals, limits.totals, strict=True)
        ]
        width = self._width + max(sum(c[j] > 0 for j in each) for _, c in options)
        touched = self._touched | {j for j in each if any(c[j] > 0 for _, c in options)}
        if value > limits.value:
            return "max_value"
        if min(width, len(touched)) > limits.bundle:
            return "bundle_size"
        if any(sum_ > most for sum_, most in zip(steps, limits.steps, strict=True)):
            return "max_demand"
        if any(sum_ > total.limit for sum_, total in zip(totals, limits.totals, strict=True)):
            return "max_total"
        self._requests, self._value, self._width = self._requests + 1, value, width
        self._touched, self._steps, self._totals = touched, steps, totals
        return None
