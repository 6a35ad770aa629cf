"""Public: the plan. What a budget buys in a market, before any record is read.

`jdpack.planning.headroom` says what share of every supply must be kept free, the margin. The
optimum is a concave function of supply, and 0 without supply. So with a fraction x less supply, the
optimum falls by at most the fraction x. Hence 1 - margin is about the least share of the optimum to
expect, before what noise costs while the run looks for prices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jdpack.billboard.lines import Release
from jdpack.common import notebook
from jdpack.errors import BudgetWarning, SupplyWarning
from jdpack.market.market import Market
from jdpack.pages.number_text import short_percent
from jdpack.planning import text
from jdpack.planning.headroom import (
    Need,
    floor,
    margin_at,
    margin_if_any,
    margin_with,
    shortfall,
)
from jdpack.planning.prepare import prepare
from jdpack.planning.remedies import Help, remedies
from jdpack.planning.several_runs import SeveralRuns, several_runs
from jdpack.policies.base import Policy
from jdpack.policies.mwu_adaptive import MwuAdaptive
from jdpack.policies.newton import Newton
from jdpack.privacy import queries
from jdpack.privacy.accounting import EPSILON_RANGE, Budget, weakness
from jdpack.privacy.noise import NoNoise, TruncatedLaplace, deviation
from jdpack.privacy.tail_bounds import Outlook
from jdpack.storage import new_folder

EXPECTED_LOSS: dict[bool, float] = {True: 0.75, False: 0.95}
"""The loss against the optimum in multiples of the margin, for divisible and for indivisible goods:
about the median over the families of `experiments/families.py` where the floor is below 20%
(`experiments/plan_check.py`)."""

LEVELS = (0.01, 0.05, 0.1)
EPSILONS = (0.1, 1.0, 10.0)
"""Epsilons that every plan shows, besides its own, half of that and twice that."""

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors on all supplies that every plan shows."""

GROUPS = (2, 5, 10)
"""Group sizes for which a plan says what the promise becomes."""


@dataclass(frozen=True)
class LeastSupply:
    """The smallest supply for a margin, if one factor multiplies all supplies."""

    margin: float
    """The share of each supply that is kept free."""
    factor: float | None
    """The factor on the present supplies, rounded up; None if no market may be that large."""
    supply: tuple[float, ...] | None
    """The supply of each resource, in its unit."""
    demands: float | None
    """The scarcest supply in units of its `max_demand`: what the paper calls b."""
    paper: float
    """What the paper requires of b for alpha = margin: sqrt(m) / (alpha epsilon)."""
    explicit: float
    """The same with logarithms and constants (`MwuAdaptive.supply_ratio`)."""


@dataclass(frozen=True)
class Plan:
    """What a budget buys. As text, it is the verdict for people; `Plan.details` has the rest."""

    market: Market
    """The market that the plan is for."""
    policy: Policy[Any]
    """The algorithm."""
    budget: Budget
    """How epsilon and delta are split."""
    rounds_at_most: int
    """How many rounds a run takes at most."""
    round_noise: tuple[float, float | None]
    """The smallest and the largest standard deviation of the noise in a round that counts, as a
    share of each supply; None if it depends on the run."""
    alpha: float | None
    """The loss that mwu-adaptive aims for, as a fraction of the agents times the value cap: the
    given one, or the one that it picks. None for other policies."""
    margin: float
    """The share of each supply that is kept free; above 1 if noise exceeds supply."""
    floor: float
    """M = z Delta / sqrt(2 rho), z = sqrt(2 ln(m / beta)): the margin of one Gaussian release of
    demand with the whole budget, as a share of supply. Other kinds of noise can need less."""
    share_expected: float | None
    """About the share of the optimum that a run reaches; None if public numbers do not tell."""
    share_at_least: float | None
    """About the least share of the optimum to expect, whatever the prices turn out to be, even if
    all agents are alike; None if public numbers do not tell."""
    margins: tuple[float, ...]
    """The margin of each resource, as a share of its supply, if the noise is even."""
    least_supply: tuple[LeastSupply, ...]
    """The supply that is enough for margins of 1%, 5% and 10%."""
    by_epsilon: tuple[tuple[float, float | None], ...]
    """Margins at the same delta; None if the policy refuses the budget."""
    by_supply: tuple[tuple[float, float | None], ...]
    """Margins with all supplies multiplied by a factor; None if a run would refuse that."""
    by_group: tuple[tuple[int, float | None, float], ...]
    """The promise for several agents at once: how many (g), the epsilon of the billboard at the
    same delta (`Budget.epsilon_of_group`), and the delta of the whole promise at g times epsilon
    (`Budget.delta_of_group`)."""
    by_requests: tuple[tuple[int, float | None], ...]
    """Margins if a person may make fewer requests, with the other bounds per person as they are.
    The last one is for a single request, which is also what it would take to protect each request
    alone. Empty if people make one request."""
    weakness: BudgetWarning | None
    """Set if the budget promises little; `solve` gives the same warning."""
    warning: SupplyWarning | None
    """Set if supply is too small for the budget; `solve` gives the same warning."""
    helps: tuple[Help, ...]
    """What would help then. Changes that are enough by themselves come first."""
    several: SeveralRuns | None
    """Set if the plan is for one of several runs: how the total is divided."""

    @property
    def private(self) -> bool:
        """Whether epsilon is finite."""
        return self.budget.epsilon != math.inf

    @property
    def tightest(self) -> tuple[str, float]:
        """The resource with the largest margin, and that margin.

        It sets the margin of the market if it turns out to be scarce.
        """
        j = max(range(len(self.margins)), key=self.margins.__getitem__)
        return self.market.resources[j].name, self.margins[j]

    @property
    def delta_split(self) -> dict[str, float | None]:
        """The parts of delta: for noise, for repair, and for noise with moving support."""
        repair = self.budget.repair
        rest = self.budget.delta - repair - self.budget.truncation
        return {
            "noise": rest if self.private else None,
            "repair": repair,
            "truncation": self.budget.truncation,
        }

    @property
    def basis(self) -> str:
        """What the expected share rests on."""
        return "; ".join(text.basis(self))

    def to_dict(self) -> dict[str, Any]:
        """The plan as strict JSON, with null for numbers that are not finite."""
        found = {
            "private": self.private,
            "market": self.market.name,
            "policy": self.policy.to_dict(),
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "delta_split": self.delta_split,
            "neighbours": self.market.neighbours.value,
            "rho": self.budget.rho,
            "beta": self.budget.beta,
            "rounds_at_most": self.rounds_at_most,
            "round_noise": self.round_noise,
            "alpha": self.alpha,
            "margin": self.margin,
            "floor": self.floor,
            "share_expected": self.share_expected,
            "share_at_least": self.share_at_least,
            "margins": self.margins,
            "tightest": {"resource": self.tightest[0], "margin": self.tightest[1]},
            "excess_probability": self.market.excess_probability,
            "basis": self.basis,
            "least_supply": [asdict(least) for least in self.least_supply],
            "by_epsilon": [{"epsilon": e, "margin": x} for e, x in self.by_epsilon],
            "by_supply": [{"factor": f, "margin": x} for f, x in self.by_supply],
            "by_group": [
                {"agents": g, "epsilon_at_delta": e, "delta_at_g_epsilon": d}
                for g, e, d in self.by_group
            ],
            "by_requests": [{"requests": r, "margin": x} for r, x in self.by_requests],
            "weakness": None if self.weakness is None else str(self.weakness),
            "warning": None if self.warning is None else str(self.warning),
            "helps": [asdict(help) for help in self.helps],
            "several_runs": None if self.several is None else asdict(self.several),
        }
        return {key: _strict(value) for key, value in found.items()}

    @property
    def details(self) -> str:
        """The rest in words: rounds, noise, other budgets and supplies, what the paper asks for."""
        return "\n".join(text.details(self))

    def __str__(self) -> str:
        return "\n".join(text.verdict(self))

    def __repr__(self) -> str:
        return f"Plan({self.market.name!r}, margin {short_percent(self.margin)})"

    def _repr_html_(self) -> str:
        return notebook.typed(str(self))

    def write(self, folder: str | Path) -> None:
        """Create a folder with the plan as a page and as JSON."""
        from jdpack.planning.page import plan_page  # which imports this module

        data = json.dumps(self.to_dict(), allow_nan=False, indent=1)
        texts = {"report.html": plan_page(self), "plan.json": f"{data}\n"}
        new_folder.fill(folder, texts, private=False)


def plan(
    market: Market | str | Path,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    policy: Policy[Any] | str | None = None,
    runs: int | None = None,
) -> Plan:
    """Compute what a budget buys in a market, from public numbers alone.

    Args:
        market: the public market, or the path of a market file.
        epsilon, delta: the privacy budget; by default the market's own.
        policy: the algorithm, as for `solve`; by default newton.
        runs: how many runs on the same people share epsilon and delta. The plan is then for one of
            them.

    It refuses whatever `solve` would refuse before reading records, in the same words.
    """
    market, policy, budget = prepare(market, policy, epsilon, delta)
    several = None
    if runs is not None:
        several = several_runs(market, policy, runs, budget.epsilon, budget.delta)
        market, policy, budget = prepare(market, policy, *several.each)
    need = Need(market, budget, policy)
    margin, least = need.margin(), floor(market, budget)
    steered = isinstance(policy, Newton)
    warning = shortfall(market, budget, policy)
    private = budget.epsilon != math.inf
    return Plan(
        market=market,
        policy=policy,
        budget=budget,
        rounds_at_most=need.outlook.rounds_at_most,
        round_noise=_round_noise(market, budget, policy, need.outlook),
        alpha=policy.alpha_in(market, budget) if isinstance(policy, MwuAdaptive) else None,
        margin=margin,
        floor=least,
        share_expected=expected_share(market, margin) if steered else None,
        share_at_least=max(0.0, 1.0 - need.most()) if steered else None,
        margins=tuple(need.margins().tolist()),
        least_supply=tuple(_least_supplies(market, budget, need)) if private else (),
        by_epsilon=tuple(_by_epsilon(market, budget, policy)),
        by_supply=tuple((x, margin_with(market, budget, policy, x)) for x in FACTORS),
        by_group=tuple(_by_group(budget)) if private else (),
        by_requests=tuple(_by_requests(market, budget, policy)),
        weakness=weakness(budget, market.agents),
        warning=warning,
        helps=tuple(remedies(market, budget, policy, scarce=warning is not None))
        if private
        else (),
        several=several,
    )


def expected_share(market: Market, margin: float) -> float:
    """About the share of the optimum that newton reaches with this margin."""
    return max(0.0, 1.0 - EXPECTED_LOSS[market.divisible] * margin)


def _round_noise(
    market: Market, budget: Budget, policy: Policy[Any], outlook: Outlook
) -> tuple[float, float | None]:
    supply = max(market.supply_codes)
    if outlook.batches is not None and outlook.scales is not None:  # blocks, then all batches
        step = policy.step(policy.start(market, budget))
        assert step is not None
        block, whole = deviation(step.noise)[0], outlook.scales[0]
        return min(block, whole) / supply, max(block, whole) / supply
    if outlook.scales is not None:
        return min(outlook.scales) / supply, max(outlook.scales) / supply
    if outlook.variance == 0.0:
        return 0.0, 0.0
    if outlook.batches is not None:  # local noise: that of a batch of average size
        spread = math.sqrt(outlook.variance / outlook.batches) / supply
        return spread, spread
    # If nobody demands anything, the first round takes a full step and so has the least noise.
    state = policy.start(market, budget)
    while (step := policy.step(state)) is not None and step.query != "demand":
        state = policy.observe(state, Release(step, (0,) * queries.width(market, step.query)))
    assert step is not None and not isinstance(step.noise, NoNoise)
    spread = math.sqrt(2.0) if isinstance(step.noise, TruncatedLaplace) else 1.0
    return spread * deviation(step.noise)[0] / supply, None


def _by_epsilon(
    market: Market, budget: Budget, policy: Policy[Any]
) -> Iterator[tuple[float, float | None]]:
    low, high = EPSILON_RANGE
    near = (factor * budget.epsilon for factor in (0.5, 1.0, 2.0))
    for epsilon in sorted({*EPSILONS, *(e for e in near if low <= e <= high)}):
        yield epsilon, margin_at(market, policy, epsilon, budget.delta)


def _by_group(budget: Budget) -> Iterator[tuple[int, float | None, float]]:
    for agents in GROUPS:
        yield agents, budget.epsilon_of_group(agents), budget.delta_of_group(agents)


def _by_requests(
    market: Market, budget: Budget, policy: Policy[Any]
) -> Iterator[tuple[int, float | None]]:
    """For half the requests, a quarter, and so on, down to one."""
    requests = market.requests
    while requests > 1:
        person = replace(market.person, requests=requests)
        yield requests, margin_if_any(market.changed(person=person), budget, policy)
        requests = max(1, requests // (2 if market.requests <= 32 else 4))
    if market.requests > 1:
        alone = market.changed(person=1, columns=replace(market.columns, request="request"))
        yield 1, margin_if_any(alone, budget, policy)


def _least_supplies(market: Market, budget: Budget, need: Need) -> Iterator[LeastSupply]:
    present = min(r.supply / r.max_demand for r in market.resources)
    for level in LEVELS:
        factor = need.factor(level)
        supply = None if factor is None else tuple(r.supply * factor for r in market.resources)
        yield LeastSupply(
            margin=level,
            factor=factor,
            supply=supply,
            demands=None if factor is None else present * factor,
            paper=math.sqrt(len(market.resources)) / (level * budget.epsilon),
            explicit=present / MwuAdaptive(alpha=level).supply_ratio(market, budget),
        )


def _strict(value: Any) -> Any:
    """The value with None for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    return value
