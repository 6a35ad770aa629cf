"""Public: the lines of a billboard."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jdpack.common import notebook
from jdpack.common.batches import Batch
from jdpack.common.coins import SIPHASH, CoinHash
from jdpack.market.market import Market
from jdpack.privacy.accounting import Budget, weakness
from jdpack.privacy.noise import Noise
from jdpack.privacy.queries import Query

WEIGHT_SUM_MAX = 2**39 - 1
"""Weight sum times scale factor then stays below 2^63: exact in compiled code."""


@dataclass(frozen=True)
class Step:
    """What a run asks next: a query at posted prices, its noise, and the round's weight."""

    query: Query
    prices: tuple[int, ...]
    """Price codes; empty if the query is about the allocation of the rounds so far."""
    noise: Noise
    """The noise to add to the answer."""
    weight: int = 0
    """How much the round counts in the allocation; 0 if it only steers."""
    batch: Batch | None = None
    """The agents who are asked; None for all."""
    span: int = 1
    """How many batches the answer sums up: this one and those just before it, each at the prices of
    its own round."""

    @property
    def spans_right(self) -> bool:
        """Whether the span is possible: no batch before the first, and 1 if it asks all agents."""
        return 1 <= self.span <= (1 if self.batch is None else self.batch.index + 1)


@dataclass(frozen=True)
class Release:
    """A step with its answer: the exact integers plus noise, as they came through the door."""

    step: Step
    """What was asked."""
    answer: tuple[int, ...]
    """The noisy answer, in demand codes or value codes, depending on the query."""


@dataclass(frozen=True)
class Header:
    """What is fixed before the first record is read."""

    market: Market
    policy: Mapping[str, Any]
    """The algorithm's name and parameters."""
    budget: Budget
    """How epsilon and delta are split."""
    commitment: str
    """The hash of the coins' seed."""
    private: bool = True
    """False if the noise was seeded or absent: such a run protects nobody."""
    coin_hash: CoinHash = SIPHASH
    """The hash behind coins and turns (`common.coins`)."""
    earlier: bool = False
    """Whether it was written before the certified ratio could rest on measured grants."""

    @property
    def local(self) -> bool:
        """Whether the agents add the noise themselves, and show nothing else (`run.local`)."""
        return is_local(self.policy)

    @property
    def coins(self) -> bool:
        """Whether coins decide who gets something: not if each round asks one batch."""
        return not self.market.divisible and not asks_batches(self.policy)

    @property
    def repaired(self) -> bool:
        """Whether winners are dropped if a supply would be exceeded."""
        return not self.local and self.market.excess_probability == 0.0

    @property
    def by_worth(self) -> bool:
        """Whether prices and noise decide the parts of beta. If not, they are equal."""
        return self.policy.get("beta_parts") == "by worth"

    @property
    def measured(self) -> bool:
        """Whether a closing release measures what coins grant."""
        return self.coins and measures_grants(self.policy)

    @property
    def ratio_by_grants(self) -> bool:
        """Whether the certified ratio rests on the measured grants too."""
        return self.measured and not self.earlier

    @property
    def order(self) -> bytes:
        """The key of the public random order of the agents (`common.batches`)."""
        return bytes.fromhex(self.commitment)[:16]

    @property
    def in_all(self) -> tuple[float, float]:
        """The (epsilon, delta) of everything that the billboard shows.

        It also shows bounds that were chosen from the records. Their cost adds to the budget of the
        run (basic composition).
        """
        more = self.market.provenance
        epsilon = math.fsum([self.budget.epsilon, *(entry.epsilon for entry in more)])
        return epsilon, math.fsum([self.budget.delta, *(entry.delta for entry in more)])

    @property
    def why_not_private(self) -> str:
        """What every page and summary says about a billboard that is not private."""
        noise = "without noise" if self.budget.epsilon == math.inf else "with seeded noise"
        return f"this run was made {noise}, for comparison; it protects nobody"

    @property
    def weakness(self) -> str | None:
        """What every page and summary says about a private run whose budget promises little."""
        epsilon, delta = self.in_all
        whole = replace(self.budget, epsilon=epsilon, delta=delta)
        found = weakness(whole, self.market.agents) if self.private else None
        return None if found is None else found.message


def is_local(policy: Mapping[str, Any]) -> bool:
    """`Header.local`, from a policy's parameters."""
    return policy.get("local") is True


def asks_batches(policy: Mapping[str, Any]) -> bool:
    """Whether each round of a policy asks one batch of the agents."""
    return "batch" in policy


def measures_grants(policy: Mapping[str, Any]) -> bool:
    """Whether a closing release of a policy measures what coins grant, where coins decide."""
    return policy.get("grants") == "measured"


@dataclass(frozen=True)
class Certificate:
    """Bounds on what this run achieved; `jdpack.protocol.certificate` has the proofs."""

    factors: tuple[int, ...]
    """One factor per resource, in 1/SHARE. The smallest of those that an option touches scales its
    share."""
    load_at_most: tuple[float, ...]
    """An upper bound on the load of what is given of each resource, as a fraction of its supply."""
    beta: float
    """An upper bound on the probability that any of these bounds on loads fails."""
    welfare_at_least: float
    """A lower bound on the total value of what is given."""
    optimum_at_most: float | None
    """An upper bound on the best total value of any allocation; None if there is no such bound."""
    ratio_at_least: float | None
    """A lower bound on the total value of what is given, as a fraction of the optimum."""
    value_beta: float
    """An upper bound on the probability that any of the three bounds on value fails."""
    load_surely: tuple[float, ...] | None = None
    """If nothing is repaired: bounds on loads that hold with probability 1 - SURELY_BETA."""

    def __repr__(self) -> str:
        ratio = "no bound" if self.ratio_at_least is None else f"{self.ratio_at_least:.4g}"
        worth = f"welfare at least {self.welfare_at_least:.6g}"
        return f"Certificate(ratio at least {ratio}, {worth}, loads at most {self._most:.4g})"

    def _repr_html_(self) -> str:
        ratio = "no bound" if self.ratio_at_least is None else f"{self.ratio_at_least:.2%}"
        best = self.optimum_at_most
        rows = [
            ("of the best possible value, at least", ratio),
            ("value of what is given, at least", notebook.number(self.welfare_at_least)),
            ("best possible value, at most", "no bound" if best is None else notebook.number(best)),
            ("chance that one of these three fails, at most", f"{self.value_beta:.2g}"),
            ("largest load, at most", f"{self._most:.2%} of the supply"),
            ("chance that a bound on a load fails, at most", f"{self.beta:.2g}"),
        ]
        return notebook.sheet("Certificate", (), ("", ""), rows)

    @property
    def _most(self) -> float:
        return max(self.load_at_most)

    @property
    def excess_at_most(self) -> float | None:
        """The largest excess over any supply by `load_surely`, as a fraction of that supply."""
        return None if self.load_surely is None else max(0.0, max(self.load_surely) - 1.0)


@dataclass(frozen=True)
class Seed:
    """The seed of the agents' coins, posted after the last round."""

    seed: bytes
    """16 bytes."""

    @property
    def commitment(self) -> str:
        """The seed's hash, which the header shows before the first round."""
        return hashlib.sha256(b"jdpack seed " + self.seed).hexdigest()

    @classmethod
    def draw(cls) -> Seed:
        return cls(secrets.token_bytes(16))
