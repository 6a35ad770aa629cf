"""Private: what an audit found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from jdpack.audit.bound import LowerBound

ALARM = 1e-6
"""An honest pipeline is flagged with at most this probability by all checks of an audit."""

NO_PROOF = (
    "A pass is no proof: the audit tries some attacks on some data sets, and finds only what they "
    "can see."
)


@dataclass(frozen=True)
class Finding:
    """One check: what was claimed, and what was seen."""

    check: str
    claimed: str
    seen: str
    passed: bool = True
    p_value: float | None = None
    """Of a statistical check: the probability of something as odd if the claim is true."""


def fact(check: str, claimed: str, wrong: Iterable[str], seen: str = "it holds") -> Finding:
    """A check that is right or wrong; of what is wrong, the first is told."""
    wrong = list(wrong)
    return Finding(
        check, claimed, f"{wrong[0]} ({len(wrong)} in all)" if wrong else seen, not wrong
    )


def differ(one: Sequence[int], two: Sequence[int]) -> str:
    """Where two answers differ first."""
    if len(one) != len(two):
        return f"has {len(one)} numbers, and {len(two)}"
    at = next(i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b)
    return f"is {one[at]} in coordinate {at}, and {two[at]}"


def odds(check: str, claimed: str, seen: str, p_value: float) -> Finding:
    """A statistical check, to be judged together with all others."""
    return Finding(check, claimed, seen, True, 0.0 if math.isnan(p_value) else float(p_value))


def judged(findings: Iterable[Finding], alarm: float = ALARM / 2) -> list[Finding]:
    """Statistical checks are flagged by Holm's rule, with at most `alarm` of any false one."""
    found = list(findings)
    order = sorted(
        (i for i, one in enumerate(found) if one.p_value is not None),
        key=lambda i: found[i].p_value or 0.0,
    )
    for rank, i in enumerate(order):
        if (found[i].p_value or 0.0) > alarm / (len(order) - rank):
            break
        found[i] = replace(found[i], passed=False)
    return found


@dataclass(frozen=True)
class Audit:
    """What an audit found. Curator only: it may quote private data."""

    findings: list[Finding]
    lower_bounds: dict[str, LowerBound] = field(default_factory=dict)
    epsilon: float = math.inf
    delta: float = 0.0
    policy: str = ""
    engines: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.passed]

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "passed": self.passed,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "policy": self.policy,
            "engines": list(self.engines),
            "lower_bounds": {name: asdict(bound) for name, bound in self.lower_bounds.items()},
            "findings": [asdict(finding) for finding in self.findings],
            "note": NO_PROOF,
        }

    def __str__(self) -> str:
        lines = [
            f"Audit of {self.policy} at epsilon {self.epsilon:g}, delta {self.delta:g}, "
            f"engines: {', '.join(self.engines)}",
            "",
        ]
        groups: dict[str, list[Finding]] = {}
        for one in self.findings:
            groups.setdefault(one.check.partition(":")[0], []).append(one)
        for group, some in groups.items():
            lines += _shown(group, some)
        for name, bound in self.lower_bounds.items():
            lines += [
                "",
                f"{name}: right in {bound.success:.1%} of {bound.measured} trials",
                f"  epsilon >= {bound.epsilon:.3g} with confidence {bound.confidence:.0%}, "
                f"{self.epsilon:g} is claimed",
                f"  epsilon >= {bound.epsilon_if_gaussian:.3g} if it is like a Gaussian (mu-GDP)",
            ]
        many = len(self.failures)
        verdict = "Passed." if self.passed else f"FAILED: {many} of {len(self.findings)} checks."
        return "\n".join([*lines, "", verdict, NO_PROOF])


def _shown(group: str, findings: list[Finding]) -> list[str]:
    """A line for what passed, and all about what did not."""
    lines = []
    for one in findings:
        if not one.passed:
            chance = "" if one.p_value is None else f" (p = {one.p_value:.1e})"
            lines += [f"FAILED  {one.check}: {one.seen}{chance}", f"        claimed: {one.claimed}"]
    right = [one for one in findings if one.passed]
    if right:
        chances = [one.p_value for one in right if one.p_value is not None]
        least = f"; {len(chances)} by chance, the least p {min(chances):.2g}" if chances else ""
        only = f": {right[0].seen}" if len(right) == 1 and not chances else ""
        lines.append(f"ok      {group}, {len(right)} check{'s' * (len(right) > 1)}{only}{least}")
    return lines
