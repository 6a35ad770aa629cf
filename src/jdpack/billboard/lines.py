"""Public: the lines of a billboard."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jdpack.common.batches import Batch
from jdpack.market.market import Market
from jdpack.privacy.accounting import Budget, weakness
from jdpack.privacy.noise import Noise
from jdpack.privacy.queries import Query

WEIGHT_SUM_MAX = 2**39 - 1
"""With it, weight sum times scale factor stays below 2^63: exact in compiled code."""


@dataclass(frozen=True)
class Step:
    """What is asked for next: a query at posted prices, its noise, and the round's weight."""

    query: Query
    """What is asked."""
    prices: tuple[int, ...]
    """Price codes; none if the query is about the allocation of the rounds so far."""
    noise: Noise
    """What is added to the answer."""
    weight: int = 0
    """The round's share of the allocation; 0 where the round only steers."""
    batch: Batch | None = None
    """Who is asked; all agents if None."""


@dataclass(frozen=True)
class Release:
    """A step with its answer: the exact integers plus noise, as they came through the door."""

    step: Step
    """What was asked."""
    answer: tuple[int, ...]
    """In demand codes or value codes, as the query has it."""


@dataclass(frozen=True)
class Header:
    """What is fixed before the first record is read."""

    market: Market
    """The public market."""
    policy: Mapping[str, Any]
    """The algorithm's name and parameters."""
    budget: Budget
    """How epsilon and delta are split."""
    commitment: str
    """The hash of the seed of the agents' coins."""
    private: bool = True
    """False if the noise was seeded or absent: such a billboard protects nobody."""

    @property
    def local(self) -> bool:
        """Whether the agents add the noise themselves, and show nothing else (`run.local`)."""
        return is_local(self.policy)

    @property
    def measured(self) -> bool:
        """Whether the load of what the coins grant is released, rather than bounded by rounds."""
        return not self.market.divisible and not self.local

    @property
    def order(self) -> bytes:
        """The key of the public random order of the agents: fixed before any record is read."""
        return bytes.fromhex(self.commitment)[:16]

    @property
    def why_not_private(self) -> str:
        """What every reader shows of a billboard that is not private."""
        noise = "without noise" if self.budget.epsilon == math.inf else "with seeded noise"
        return f"this run was made {noise}, for comparison; it protects nobody"

    @property
    def weakness(self) -> str | None:
        """What every reader shows of a private billboard whose budget promises little."""
        found = weakness(self.budget, self.market.agents) if self.private else None
        return None if found is None else found.message


def is_local(policy: Mapping[str, Any]) -> bool:
    """`Header.local`, of a policy's parameters."""
    return policy.get("local") is True


@dataclass(frozen=True)
class Certificate:
    """What this run achieved; `jdpack.protocol.certificate` has the proofs."""

    factors: tuple[int, ...]
    """An option's share is scaled by the least factor / SHARE of the resources that it touches."""
    load_at_most: tuple[float, ...]
    """The load of what is given of each resource, as a share of its supply."""
    beta: float
    """The probability that any of these bounds on loads fails."""
    welfare_at_least: float
    """The total value of what is given."""
    optimum_at_most: float | None
    """The best total value of any allocation; None if the noise allows no such bound."""
    ratio_at_least: float | None
    """The total value of what is given, as a share of the optimum."""
    value_beta: float
    """The probability that any of the three statements about value fails."""


@dataclass(frozen=True)
class Seed:
    """The public seed of the agents' coins, shown after the last round."""

    seed: bytes
    """16 bytes."""

    @property
    def commitment(self) -> str:
        """Its hash, which the header shows before the first round."""
        return hashlib.sha256(b"jdpack seed " + self.seed).hexdigest()

    @classmethod
    def draw(cls) -> Seed:
        return cls(secrets.token_bytes(16))
