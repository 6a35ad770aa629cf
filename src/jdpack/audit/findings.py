"""Private: what an audit found.

A check has one of three verdicts. "not tested" means that the check could not have failed on its
data and trials, whatever the pipeline did. It is neither a failure nor a pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jdpack.audit.epsilon_bounds import LowerBound
from jdpack.storage import new_folder

ALARM = 1e-6
"""The checks of an audit together flag an honest pipeline with at most this probability."""

ALARM_BY_CHANCE = ALARM / 2
"""The part of it that goes to p-values, by Holm's rule."""

NO_PROOF = (
    "A pass is no proof: the audit tries some attacks on some data sets, and finds only what they "
    "can see."
)


AGAINST = "coalition against "
"""The name of a lower bound is this, then the policy attacked."""

Verdict = Literal["ok", "FAILED", "not tested"]

NAMED = 5
"""The last line names at most this many untested checks. Each has its own line anyway."""


@dataclass(frozen=True)
class Finding:
    """One check: the claim, and what was seen."""

    check: str
    claimed: str
    seen: str
    passed: bool = True
    p_value: float | None = None
    """For a statistical check: the probability of something this odd if the claim is true."""
    least_p: float = 0.0
    """The smallest p-value that this number of trials or draws can give."""
    tested: bool = True
    """Whether the check could have failed at all."""

    @property
    def verdict(self) -> Verdict:
        if not self.passed:
            return "FAILED"
        return "ok" if self.tested else "not tested"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def fact(
    check: str,
    claimed: str,
    wrong: Iterable[str],
    seen: str = "it holds",
    *,
    tested: bool = True,
) -> Finding:
    """A check without chance: it fails if anything is `wrong`, and shows the first such thing."""
    wrong = list(wrong)
    told = f"{wrong[0]} ({len(wrong)} in total)" if wrong else seen
    return Finding(check, claimed, told, not wrong, tested=tested)


def guarded(check: str, look: Callable[[], Iterable[Finding] | None]) -> list[Finding]:
    """The findings of `look`, or one failure if the pipeline raises where it should not."""
    try:
        return list(look() or ())
    except Exception as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        return [Finding(check, "it runs to the end", told, passed=False)]


def located(found: Iterable[Finding], where: str) -> list[Finding]:
    """The same findings, each named with the place where it was checked."""
    return [replace(one, check=f"{one.check} ({where})") for one in found]


def differ(one: Sequence[int], two: Sequence[int]) -> str:
    """Where two answers first differ."""
    if len(one) != len(two):
        return f"has {len(one)} numbers, but {len(two)}"
    at = next(i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b)
    return f"is {one[at]} in coordinate {at}, but {two[at]}"


def statistical(
    check: str, claimed: str, seen: str, p_value: float, least_p: float = 0.0, tested: bool = True
) -> Finding:
    """A statistical check, which `judged` judges together with all the others."""
    p_value = 0.0 if math.isnan(p_value) else float(p_value)
    return Finding(check, claimed, seen, True, p_value, least_p, tested)


def judged(findings: Iterable[Finding], alarm: float = ALARM_BY_CHANCE) -> list[Finding]:
    """Flag statistical checks by Holm's rule: `alarm` bounds the probability of any false flag.

    A check with too few trials to be flagged, whatever they show, is not tested.
    """
    found = list(findings)
    order = sorted(
        (i for i, one in enumerate(found) if one.p_value is not None),
        key=lambda i: found[i].p_value or 0.0,
    )
    for rank, i in enumerate(order):
        if (found[i].p_value or 0.0) > alarm / (len(order) - rank):
            break
        found[i] = replace(found[i], passed=False)
    for i in order:
        if found[i].least_p > alarm / len(order):
            few = f"{found[i].seen}: too few to show anything"
            found[i] = replace(found[i], seen=few, tested=False)
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
    right_at_most: dict[str, float] = field(default_factory=dict)
    """How often an attack can be right at most, by theory; the keys are those of `lower_bounds`."""

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.passed]

    @property
    def not_tested(self) -> list[Finding]:
        """Checks that could not have failed, so they say nothing."""
        return [finding for finding in self.findings if finding.verdict == "not tested"]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "passed": self.passed,
            "failed": len(self.failures),
            "not_tested": [finding.check for finding in self.not_tested],
            "epsilon": self.epsilon,
            "delta": self.delta,
            "policy": self.policy,
            "engines": list(self.engines),
            "lower_bounds": {name: asdict(bound) for name, bound in self.lower_bounds.items()},
            "right_at_most": self.right_at_most,
            "findings": [finding.to_dict() for finding in self.findings],
            "note": NO_PROOF,
        }

    def write(self, folder: str | Path) -> None:
        """Write the page, the text and the JSON (mode 0600) to a new folder (mode 0700)."""
        from jdpack.audit.page import audit_page  # which imports this module

        new_folder.fill_with_study(folder, "audit", audit_page(self), str(self), self.to_dict())

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
                f"  epsilon >= {bound.epsilon:.3g} with confidence {bound.confidence:.0%}; "
                f"the claim is {self.epsilon:g}",
                f"  this number of trials can prove at most {bound.at_best:.3g}",
                f"  epsilon >= {bound.epsilon_if_gaussian:.3g} if it is like a Gaussian (mu-GDP)",
            ]
        return "\n".join([*lines, "", self._verdict(), NO_PROOF])

    def _verdict(self) -> str:
        many, missing = len(self.failures), [one.check for one in self.not_tested]
        verdict = "Passed" if self.passed else f"FAILED: {many} of {len(self.findings)} checks"
        if not missing:
            return f"{verdict}."
        named = "; ".join(missing[:NAMED])
        more = f"; and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        count = f"{len(missing)} check{'s' * (len(missing) > 1)}"
        return f"{verdict}; {count} could not be tested: {named}{more}."


def _shown(group: str, findings: list[Finding]) -> list[str]:
    """One line for all checks that passed, and the details of those that failed or could not."""
    lines = []
    for one in findings:
        if not one.passed:
            chance = "" if one.p_value is None else f" (p = {one.p_value:.1e})"
            lines += [f"{'FAILED':12}{one.check}: {one.seen}{chance}"]
            lines += [f"{'':12}claimed: {one.claimed}"]
    for one in findings:
        if one.verdict == "not tested":
            lines.append(f"{'not tested':12}{one.check}: {one.seen}")
    right = [one for one in findings if one.verdict == "ok"]
    if right:
        chances = [one.p_value for one in right if one.p_value is not None]
        least = f"; {len(chances)} statistical, smallest p {min(chances):.2g}" if chances else ""
        only = f": {right[0].seen}" if len(right) == 1 and not chances else ""
        count = f"{len(right)} check{'s' * (len(right) > 1)}"
        lines.append(f"{'ok':12}{group}, {count}{only}{least}")
    return lines
