"""Public: the algorithms. A policy is a pure function of the market and the billboard.

A policy never sees a private number. It folds over the releases on the billboard: `start` gives
its state before the first one, `step` the next release that it wants (or None to stop), `observe`
its state after one more. Recomputing a whole run from its file is the same fold, and so is
resuming one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from jdpack.billboard.lines import Release, Step
from jdpack.common import checks
from jdpack.errors import BillboardError
from jdpack.market.market import Market
from jdpack.policies.dual_gd import DualGd
from jdpack.policies.mirror_descent import MirrorDescent
from jdpack.policies.mwu_adaptive import MwuAdaptive
from jdpack.policies.mwu_fixed import MwuFixed
from jdpack.policies.mwu_online import MwuOnline
from jdpack.policies.newton import Newton
from jdpack.privacy.accounting import Budget
from jdpack.privacy.tail_bounds import Outlook

State = TypeVar("State")


class Policy(Protocol[State]):
    """An algorithm: an immutable configuration and three pure functions."""

    @property
    def truncated(self) -> bool:
        """Whether it asks for noise with moving support, which needs a share of delta."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Its name and parameters, for the billboard's header."""
        ...

    def outlook(self, market: Market, budget: Budget) -> Outlook: ...

    def start(self, market: Market, budget: Budget) -> State: ...

    def step(self, state: State) -> Step | None: ...

    def observe(self, state: State, release: Release) -> State: ...


KINDS: dict[str, type[Any]] = {
    kind.name: kind for kind in (Newton, MwuAdaptive, MwuFixed, MwuOnline, DualGd, MirrorDescent)
}
"""Every policy by its name; the first is the default."""


def from_dict(data: Mapping[str, Any]) -> Policy[Any]:
    """The policy that a billboard's header names."""
    name = data.get("name")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise BillboardError(f"policy {checks.quoted(name)} is not known")
    try:
        return kind(**{key: value for key, value in data.items() if key != "name"})  # type: ignore[no-any-return]
    except TypeError:
        raise BillboardError(f"policy {checks.quoted(dict(data))} has unknown parameters") from None
