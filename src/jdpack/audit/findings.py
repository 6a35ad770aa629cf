"""Private: what an audit found.

A check has one of three verdicts. "not tested" is for one that could not have failed on the data
and the trials that it had, whatever the pipeline does; it is no failure, and no pass either.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jdpack.audit.lower_bound import LowerBound
from jdpack.storage import new_folder

ALARM = 1e-6
"""An honest pipeline is flagged with at most this probability by all checks of an audit."""

ALARM_BY_CHANCE = ALARM / 2
"""The part of it for checks of p-values, by Holm's rule."""

NO_PROOF = (
    "A pass is no proof: the audit tries some attacks on some data sets, and finds only what they "
    "can see."
)


AGAINST = "coalition against "
"""How lower bounds are named: by the policy that is attacked."""

Verdict = Literal["ok", "FAILED", "not tested"]

NAMED = 5
"""So many checks that were not made are named in the last line; all have a line of their own."""


@dataclass(frozen=True)
class Finding:
    """One check: what was claimed, and what was seen."""

    check: str
    claimed: str
    seen: str
    passed: bool = True
    p_value: float | None = None
    """Of a statistical check: the probability of something as odd if the claim is true."""
    least_p: float = 0.0
    """The least p-value that so many trials or draws can give."""
    tested: bool = True
    """Whether it could have failed at all."""

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
    """A check that is right or wrong; of what is wrong, the first is told."""
    wrong = list(wrong)
    told = f"{wrong[0]} ({len(wrong)} in all)" if wrong else seen
    return Finding(check, claimed, told, not wrong, tested=tested)


def guarded(check: str, look: Callable[[], Iterable[Finding] | None]) -> list[Finding]:
    """What is found; or one failure, if the pipeline breaks down where it should not."""
    try:
        return list(look() or ())
    except Exception as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        return [Finding(check, "it comes to its end", told, passed=False)]


def differ(one: Sequence[int], two: Sequence[int]) -> str:
    """Where two answers differ first."""
    if len(one) != len(two):
        return f"has {len(one)} numbers, and {len(two)}"
    at = next(i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b)
    return f"is {one[at]} in coordinate {at}, and {two[at]}"


def odds(
    check: str, claimed: str, seen: str, p_value: float, least_p: float = 0.0, tested: bool = True
) -> Finding:
    """A statistical check, to be judged together with all others."""
    p_value = 0.0 if math.isnan(p_value) else float(p_value)
    return Finding(check, claimed, seen, True, p_value, least_p, tested)


def judged(findings: Iterable[Finding], alarm: float = ALARM_BY_CHANCE) -> list[Finding]:
    """Statistical checks are flagged by Holm's rule, with at most `alarm` of any false one.

    One that has too few trials to be flagged by itself, whatever they show, is not tested.
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
    """By theory: no attack is right more often, by the names of `lower_bounds`."""

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.passed]

    @property
    def not_tested(self) -> list[Finding]:
        """Checks that could not have failed: they say nothing."""
        return [finding for finding in self.findings if finding.verdict == "not tested"]

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON."""
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
        """Make a folder of mode 0700 with the page, the text and the JSON, each of mode 0600."""
        from jdpack.audit.page import audit_page  # which imports this module

        data = json.dumps(self.to_dict(), allow_nan=False, indent=1)
        texts = {
            "report.html": audit_page(self),
            "audit.txt": f"{self}\n",
            "audit.json": f"{data}\n",
        }
        new_folder.fill(folder, texts, private=True)

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
                f"  so many trials can prove {bound.at_best:.3g} at most",
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
        return f"{verdict}; {count} could not be made: {named}{more}."


def _shown(group: str, findings: list[Finding]) -> list[str]:
    """A line for what passed, and all about what did not, or could not."""
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
        least = f"; {len(chances)} by chance, the least p {min(chances):.2g}" if chances else ""
        only = f": {right[0].seen}" if len(right) == 1 and not chances else ""
        count = f"{len(right)} check{'s' * (len(right) > 1)}"
        lines.append(f"{'ok':12}{group}, {count}{only}{least}")
    return lines
