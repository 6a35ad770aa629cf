"""Public: all policies by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jdpack.common import checks
from jdpack.errors import BillboardError
from jdpack.policies.base import Policy
from jdpack.policies.dual_gd import DualGd
from jdpack.policies.mirror_descent import MirrorDescent
from jdpack.policies.mwu_adaptive import MwuAdaptive
from jdpack.policies.mwu_fixed import MwuFixed
from jdpack.policies.mwu_online import MwuOnline
from jdpack.policies.newton import Newton

KINDS: dict[str, type[Any]] = {
    kind.name: kind for kind in (Newton, MwuAdaptive, MwuFixed, MwuOnline, DualGd, MirrorDescent)
}
"""Every policy by name; the first is the default."""

EARLIER: dict[str, dict[str, Any]] = {"newton": {"beta_parts": "even", "grants": "unmeasured"}}
"""The parameters of older headers, written before the policy had them."""


def from_dict(data: Mapping[str, Any]) -> Policy[Any]:
    """The policy that a billboard's header names."""
    name = data.get("name")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise BillboardError(f"policy {checks.quoted(name)} is not known")
    try:
        given = {**EARLIER.get(kind.name, {}), **data}
        del given["name"]
        return kind(**given)  # type: ignore[no-any-return]
    except TypeError:
        raise BillboardError(f"policy {checks.quoted(dict(data))} has unknown parameters") from None
