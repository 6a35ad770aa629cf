"""Public: one number per resource, by name and in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jdpack.common import checks
from jdpack.errors import MarketError


class ByName(tuple[float, ...]):
    """One number per resource: a tuple in the market's order that also knows the names.

    `loads["North"]` and `loads[0]` both work, and so do `max(loads)` and `loads.to_dict()`.
    """

    names: tuple[str, ...]

    def __new__(cls, names: Iterable[str], numbers: Iterable[float]) -> ByName:
        made = super().__new__(cls, numbers)
        made.names = tuple(names)
        return made

    def __getnewargs__(self) -> Any:  # so that copies know the names, too
        return self.names, tuple(self)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return tuple.__getitem__(self, key)
        if key not in self.names:
            raise MarketError(f"there is no resource {key!r}", checks.closest(key, self.names))
        return tuple.__getitem__(self, self.names.index(key))

    def to_dict(self) -> dict[str, float]:
        """The numbers by name."""
        return dict(zip(self.names, self, strict=True))

    def __repr__(self) -> str:
        shown = [f"{name}: {number:.4g}" for name, number in list(self.to_dict().items())[:20]]
        more = [f"... and {len(self) - 20:,} more"] if len(self) > 20 else []
        return f"{{{', '.join([*shown, *more])}}}"
