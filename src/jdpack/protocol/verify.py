"""Public: anybody's check of a billboard, from the file alone.

It checks, in this order:

* the schema and the hash chain of every line (`Billboard.read`);
* that the header's budget proves its epsilon and delta;
* that every line has the query, prices, noise and weight that the policy asks for there;
* that all of them together cost no more than the budget;
* that the certificate follows from the lines;
* that the seed is the one that the header committed to.

No reader can check that the answers were computed from true records, or that the noise was drawn as
posted. For that you must trust the curator, who can be audited (`jdpack.audit`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Header
from jdpack.errors import BillboardError
from jdpack.policies import registry
from jdpack.privacy.accounting import Cost, proved
from jdpack.protocol.bounds import SURELY_BETA
from jdpack.protocol.run_state import RunState


@dataclass(frozen=True)
class Verdict:
    """The result for a billboard that is right. A wrong one raises an error instead."""

    board: Billboard
    """The billboard that was checked."""
    spent: Cost
    """The total cost of its releases, recomputed."""

    @property
    def finished(self) -> bool:
        """Whether the run ended. Anybody may have cut off the end of an unfinished billboard."""
        return self.board.finished

    def to_dict(self) -> dict[str, Any]:
        """The verdict as strict JSON."""
        header = self.board.header
        return {
            "finished": self.finished,
            "private": header.private,
            "weakness": header.weakness,
            "releases": len(self.board.releases),
            "rounds": sum(1 for _ in self.board.rounds),
            "rho_spent": _finite(float(self.spent.rho)),
            "rho": _finite(header.budget.rho),
            "epsilon": _finite(header.budget.epsilon),
            "delta": header.budget.delta,
            "head": self.board.head,
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        header, releases = self.board.header, len(self.board.releases)
        if not header.private:
            yield f"NOT PRIVATE: {header.why_not_private}."
        if header.weakness is not None:
            yield f"LITTLE IS PROMISED: {header.weakness}."
        rounds = sum(1 for _ in self.board.rounds)
        yield f"right: the hash chain of {sum(1 for _ in self.board.lines())} lines"
        name = header.policy["name"]
        yield f"right: {releases} releases, in {rounds} rounds that count, are what {name} asks for"
        yield (
            f"right: they cost rho {float(self.spent.rho):.6g} of {header.budget.rho:.6g}, for "
            f"epsilon {header.budget.epsilon:g}, delta {header.budget.delta:g}"
        )
        if header.market.provenance:
            epsilon, delta = header.in_all
            yield (
                "the bounds of the market were chosen from the records; with what that cost, this "
                f"is epsilon {epsilon:g}, delta {delta:g}"
            )
        if self.finished:
            yield "right: the certificate and the seed of the coins"
            if (may_exceed := excess_words(self.board)) is not None:
                yield f"A SUPPLY MAY BE EXCEEDED: {may_exceed}; nothing is repaired"
        else:
            yield "NOT FINISHED: the run has not ended, or somebody cut off the end of the file"
        yield f"head: {self.board.head}"


def verify(billboard: Billboard | str | Path) -> Verdict:
    """Check everything in a billboard that can be recomputed; raise at the first thing wrong.

    Args:
        billboard: a billboard, or the path of one.
    """
    board = billboard if isinstance(billboard, Billboard) else Billboard.read(billboard)
    header = board.header
    check_budget(header)
    policy = registry.from_dict(header.policy)
    try:
        state = RunState(policy, board)
    except (ArithmeticError, ValueError) as error:  # numbers that no run produces
        raise BillboardError(f"the policy cannot follow the posted answers: {error}") from None
    return Verdict(board, state.filter.spent)


def check_budget(header: Header) -> None:
    """Refuse a budget whose parts do not prove its epsilon and delta."""
    budget = header.budget
    excess = header.market.excess_probability
    if budget.repaired != header.repaired or (excess and budget.beta != excess):
        raise BillboardError(
            "billboard line 1: its budget and its market do not agree on how often a supply may be "
            "exceeded"
        )
    if budget.epsilon != math.inf and not proved(budget):
        raise BillboardError(
            f"billboard line 1: rho {budget.rho:g}, beta {budget.beta:g} and truncation "
            f"{budget.truncation:g} do not prove epsilon {budget.epsilon:g}, delta {budget.delta:g}"
        )


def excess_words(board: Billboard) -> str | None:
    """How rarely and how far supplies are exceeded; None if the market says never."""
    certificate = board.certificate
    if certificate is None or certificate.excess_at_most is None or board.header.local:
        return None
    if certificate.excess_at_most == 0.0:
        return f"not exceeded, with probability 1 - {SURELY_BETA:g}"
    percent = math.ceil(1000 * certificate.excess_at_most) / 10
    return (
        f"not exceeded, with probability 1 - {certificate.beta:g}; "
        f"not by more than {percent:.1f}%, with probability 1 - {SURELY_BETA:g}"
    )


def _finite(number: float) -> float | None:
    return None if number == math.inf else number
