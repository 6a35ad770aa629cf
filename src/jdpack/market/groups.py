"""Public: groups of agents with a cap or a reserve, as separate resources.

A market may limit how much of a resource goes to a group of agents (a cap), or keep a part of it
for them (a reserve: everybody else together gets at most the rest). Each such rule is one more
resource, *derived* from the resource it is about, its base. The agents whom the rule limits demand
as much of the derived resource as they demand of the base:

* a cap: supply is the cap, and the members of the group demand it;
* a reserve r of a supply b: supply is b - r, and everybody who is not a member demands it.

So prices, noise and certificates need no rule for groups. Which group an agent is in is part of its
record, and private like the rest. A derived resource has the max_demand of its base, and so the
same grid: its code is the code of the base, or 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jdpack.common import checks
from jdpack.errors import MarketError


@dataclass(frozen=True)
class Group:
    """A group of agents, with public bounds on what they get of some resources."""

    name: str
    """As in the records; shown to people."""
    cap: Mapping[str, float] = field(default_factory=dict)
    """By resource name: at most this much goes to the group."""
    reserve: Mapping[str, float] = field(default_factory=dict)
    """By resource name: all others together get at most the supply minus this."""

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.cap.items()), tuple(self.reserve.items())))

    @classmethod
    def of(cls, given: Any, where: str = "group") -> Group:
        """A group from a table of a market file, or checked if it already is one."""
        stated: dict[str, Any] = {}
        if isinstance(given, Group):
            name, stated = given.name, {"cap": given.cap, "reserve": given.reserve}
        else:
            section = checks.Section(where, given)
            name = section.take("name", str)
            stated = {rule: section.take(rule, object, {}) for rule in ("cap", "reserve")}
            section.close()
        if not checks.text("name", name):
            raise MarketError(f"{where} has an empty name")
        rules = {}
        for rule, amounts in stated.items():
            if not isinstance(amounts, Mapping):
                raise MarketError(f"{where}: {rule} must be a table, not {checks.quoted(amounts)}")
            rules[rule] = {
                str(resource): checks.positive(f"group {name!r}: {rule} of {resource!r}", amount)
                for resource, amount in amounts.items()
            }
        if not rules["cap"] and not rules["reserve"]:
            raise MarketError(
                f"group {name!r} has neither a cap nor a reserve", "give it one, or leave it out"
            )
        return cls(name, **rules)

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `of`."""
        rules = {"cap": dict(self.cap), "reserve": dict(self.reserve)}
        return {"name": self.name} | {rule: given for rule, given in rules.items() if given}


def groups_of(given: Any) -> tuple[Group, ...]:
    """The groups as a market takes them: a list of groups or of tables."""
    found = tuple(
        Group.of(each, f"group {i}")
        for i, each in enumerate(checks.sequence("groups", given or ()), start=1)
    )
    names = [group.name for group in found]
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise MarketError(f"two groups have the name {twice[0]!r}")
    return found


@dataclass(frozen=True)
class Derived:
    """What a derived resource stands for."""

    base: int
    """The number of the resource it is about."""
    group: int
    """The number of the group it is about."""
    members: bool
    """Whether the group's members demand it (a cap), or everybody else (a reserve)."""

    def demanded_by(self, group: int) -> bool:
        """Whether agents of a group demand it; -1 is no group."""
        return (group == self.group) == self.members
