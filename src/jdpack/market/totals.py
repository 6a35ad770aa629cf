"""Public: bounds on the sum of what one option asks for, counted exactly.

A `MaxTotal` bounds the sum of an option's demands over some resources that share a unit. It is
counted on the grid. A code c of a resource whose unit size is w stands for amounts above (c - 1) w,
up to c w. So the codes of the resources that an option touches say that it asks for more than
sum_j (c_j - 1) w_j, and an option is beyond the bound B if that sum is above B.

Formal guarantees. Every option whose true total is at most B passes unchanged, because the sum is
below its true total. The codes of every option that passes or was cut obey

    sum_j c_j w_j <= B + (the sum of w_j over the resources that it touches),

which is what sensitivities rest on. Unit sizes have 37 significant bits, so they are whole numbers
of a power of two, the quantum of their set. All sums are sums of whole numbers: exact, and the same
in Python, in the kernels (`jdpack.records.encode_kernels`) and in JavaScript
(`pages/web/allocate.js`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jdpack.common import checks
from jdpack.errors import MarketError

_UNIT_BITS = 37  # significant bits of a unit size
_SIZE_MAX = 2**53  # kernels and JavaScript hold sizes in doubles and 64-bit integers


@dataclass(frozen=True)
class MaxTotal:
    """The most that one option may ask for of some resources together, in the unit they share."""

    amount: float
    """The bound."""
    resources: tuple[str, ...] = ()
    """The names of the resources; empty for all resources of the market."""

    @classmethod
    def of(cls, given: Any, where: str = "max_total") -> MaxTotal:
        """A bound from a table of a market file, or checked if it already is one."""
        names: Any
        if isinstance(given, MaxTotal):
            amount, names = given.amount, given.resources
        else:
            section = checks.Section(where, given)
            amount, names = section.number("amount"), section.take("resources", list, ())
            section.close()
            if names == []:
                raise MarketError(
                    f"{where}: resources is empty", "leave it out to bound all resources together"
                )
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise MarketError(
                f"{where}: resources must list names of resources, not {checks.quoted(names)}"
            )
        return cls(checks.positive(f"{where}: amount", amount), tuple(names))

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `of`."""
        named = {"resources": list(self.resources)} if self.resources else {}
        return {"amount": self.amount, **named}


def max_totals_of(given: Any) -> tuple[MaxTotal, ...]:
    """The bounds as a market takes them: a number for all resources, one bound, or a list."""
    if given is None:
        return ()
    if isinstance(given, MaxTotal | Mapping):
        given = [given]
    elif isinstance(given, str) or not hasattr(given, "__iter__"):
        return (MaxTotal.of({"amount": checks.positive("max_total", given)}),)
    return tuple(MaxTotal.of(each, f"max_total {i}") for i, each in enumerate(given, start=1))


@dataclass(frozen=True)
class Total:
    """A bound on the sum of one option's demands, with everything that is needed to count."""

    amount: float
    """The bound B."""
    resources: tuple[int, ...]
    """The numbers of the resources, in ascending order."""
    unit_sizes: tuple[float, ...]
    """The unit size w_j of each of them."""

    @cached_property
    def quantum(self) -> float:
        """A power of two; all unit sizes are whole multiples of it."""
        return math.ldexp(1.0, min(math.frexp(w)[1] for w in self.unit_sizes) - _UNIT_BITS)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The unit sizes in whole numbers of the quantum; the division is exact."""
        return tuple(int(w / self.quantum) for w in self.unit_sizes)

    @cached_property
    def limit(self) -> int:
        """The bound in whole numbers of the quantum, rounded down; the division is exact."""
        return math.floor(self.amount / self.quantum)

    @property
    def countable(self) -> bool:
        """Whether the unit sizes are close enough to each other for 64-bit integers."""
        return max(self.sizes) < _SIZE_MAX

    def fits(self, codes: Sequence[int]) -> bool:
        """Whether an option is within the bound; it has one code per resource of the market."""
        return self.count(codes) <= self.limit

    def count(self, codes: Sequence[int]) -> int:
        """What an option is sure to ask for, in whole numbers of the quantum."""
        pairs = zip(self.resources, self.sizes, strict=True)
        return sum(max(codes[j] - 1, 0) * size for j, size in pairs)

    def cut(self, codes: list[int]) -> None:
        """Cut the codes of an option that is beyond the bound; others are left as they are.

        In the order of the resources, codes are kept while they fit. The first that does not fit
        is lowered to the largest that does, and the codes after it become 0. So what is left
        depends on the option alone.
        """
        if self.fits(codes):
            return
        left = self.limit
        for j, size in zip(self.resources, self.sizes, strict=True):
            if codes[j] == 0:
                continue
            steps = codes[j] - 1
            if left < 0:
                codes[j] = 0
            elif steps * size <= left:
                left -= steps * size
            else:
                codes[j], left = left // size + 1, -1
