"""Public: a run followed from its billboard alone: its next step, and what it has spent.

A policy is a pure function of the market and the billboard. So anybody who has the billboard can
tell which step had to come next, and what it costs. The loop of a run, resume and `verify` all
follow the billboard through this class.
"""

from __future__ import annotations

from copy import copy
from dataclasses import fields
from typing import Any

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Release, Step
from jdpack.errors import BillboardError, JdpackError
from jdpack.policies.base import Policy
from jdpack.privacy.accounting import Filter
from jdpack.protocol import closing
from jdpack.protocol.certificate import proves
from jdpack.protocol.charge import charge

_HINT = "the file was changed, or another version of jdpack wrote it"


class RunState:
    """Where a run stands. Every line on its billboard is checked and charged.

    Raises BillboardError at the first line that is not what the policy asks for, and BudgetError
    at the first line that the budget does not cover.
    """

    def __init__(self, policy: Policy[Any], board: Billboard) -> None:
        market, budget = board.header.market, board.header.budget
        self.filter = Filter(budget)
        self._policy = policy
        self._state, self._closing = policy.start(market, budget), False
        self._board = copy(board)  # the lines followed so far
        self._board.releases = []
        for line, release in enumerate(board.releases, start=2):
            self._follow(line, release)
        self._board = board
        if board.certificate is not None:
            line = 2 + len(board.releases)
            if self.step() is not None:
                raise BillboardError(
                    f"billboard line {line}: it ends the run before the policy does", _HINT
                )
            if not proves(board, board.certificate):
                raise BillboardError(
                    f"billboard line {line}: the certificate does not follow from earlier lines",
                    _HINT,
                )

    def step(self) -> Step | None:
        """What to ask for next; None once only the certificate is left."""
        if not self._closing:
            asked = self._policy.step(self._state)
            if asked is not None:
                return asked
            self._closing = True
        return closing.step(self._board)

    def observe(self, release: Release) -> None:
        """Take note of a release that was charged and posted."""
        if not self._closing:
            self._state = self._policy.observe(self._state, release)

    def _follow(self, line: int, release: Release) -> None:
        asked = self.step()
        if asked is None:
            raise BillboardError(f"billboard line {line}: the run had already ended", _HINT)
        wrong = [
            f.name for f in fields(Step) if getattr(asked, f.name) != getattr(release.step, f.name)
        ]
        if wrong:
            raise BillboardError(
                f"billboard line {line}: its {wrong[0]} is not what the policy asks for", _HINT
            )
        try:
            charge(asked, self.filter, self._board)
        except JdpackError as error:
            raise type(error)(f"billboard line {line}: {error.message}") from None
        self._board.releases.append(release)
        self.observe(release)
