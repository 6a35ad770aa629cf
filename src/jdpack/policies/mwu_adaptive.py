"""Public: mwu-adaptive, the paper's Algorithm 1, repaired.

Huang & Zhu, Scalable and Jointly Differentially Private Packing (ICALP 2019), Algorithm 1:
multiplicative weights on the dual prices, with step sizes and noise scales that follow the size
of the gradient. We write it in relative loads, so the paper's eta is theta / b, its gradient
b (1 - L_j), and its price p_j is P_j / b. `docs/notes-on-the-paper.md` explains every departure:

1. The step size divides by the **absolute** gradient (the printed one can be negative).
2. The gradient's scale passes the door as a noisy `scale` release. The printed algorithm uses the
   exact scale, which the weights of the output reveal to every agent.
3. So the stopping rule is public, and needs no private counter.
4. The filter calibrates the noise. With the printed sigma, the paper's own lemmas prove an epsilon
   that is too large by order ln(Tm/delta).
5. A floor of 1e-300 on relative prices prevents underflow, which real numbers do not have.
6. The number of rounds has a public bound, the one that the paper proves.
7. Without an alpha, it takes the one with the least planned loss (`MwuAdaptive.alpha_in`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from jdpack.billboard.lines import Release, Step
from jdpack.common import checks, portable_math
from jdpack.common.portable_math import FloatArray
from jdpack.errors import BudgetError, MarketError
from jdpack.market.grid import SHARE
from jdpack.market.market import Market
from jdpack.policies import fixed_rounds
from jdpack.policies.base import check_alpha
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.accounting import Budget, round_up
from jdpack.privacy.noise import Gaussian, Noise, NoNoise, TruncatedLaplace
from jdpack.privacy.tail_bounds import Outlook

SCALE_SHARE = 0.1
"""The part of rho for the scale releases; the demand releases get the rest."""

_SLACK = 1.0 - 1e-9  # keeps float rounding in the noise scales on the private side of the filter
_FLOOR = 1e-300
_ALPHA_STEPS = 1000  # an alpha that it picks itself is a multiple of 1 / this
_ALPHA_MOST = 100  # the largest that it picks: 0.1
STEPS_PICKED = 5_000
"""The most steps of full size, Theta / alpha, with an alpha that it picks itself. A run takes about
as many rounds, and 3 m + 1 times as many at most."""

NOISES = ("gaussian", "truncated-laplace")


@dataclass(frozen=True)
class State:
    """What the policy knows from the billboard so far."""

    market: Market
    constants: _Constants
    weights: FloatArray
    """Relative prices of the m resources and the dummy; they sum to 1."""
    theta: int = 0
    """This round's step size, or the last round's until this round's scale is known; in 1/SHARE."""
    total: int = 0
    rounds: int = 0
    scaled: bool = False
    """Whether this round's scale has been released."""


@dataclass(frozen=True)
class _Constants:
    """What Algorithm 1 fixes before its first round."""

    alpha: float
    price_sum: float
    """p_max: the paper's 2n/b per unit, so 2 n V for whole supplies."""
    theta_max: int
    """alpha, in 1/SHARE: the cap alpha/b of line 4."""
    theta_sum: int
    """eta_sum = ln(m+1) / (alpha b), in 1/SHARE."""
    rounds_at_most: int
    demand_variance: float
    """The variance of a demand release, times its step size."""
    scale_variance: float
    """The variance of a scale release, times the previous round's step size."""


@dataclass(frozen=True)
class MwuAdaptive:
    """Algorithm 1 with its parameter alpha. It aims for an additive loss of order alpha n V.

    Args:
        alpha: the loss to aim for, as a fraction of n times the value cap. Without it, the one with
            the least planned loss (`alpha_in`).
        noise: "gaussian", or "truncated-laplace" as in the paper.
    """

    alpha: float | None = None
    noise: str = "gaussian"

    name: ClassVar[str] = "mwu-adaptive"

    def __post_init__(self) -> None:
        if self.alpha is not None:
            check_alpha(self.alpha)
        if self.noise not in NOISES:
            shown = checks.quoted(self.noise)
            raise MarketError(f"noise {shown} is not known", f"one of: {', '.join(NOISES)}")

    @property
    def truncated(self) -> bool:
        return self.noise == "truncated-laplace"

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "alpha": self.alpha, "noise": self.noise}

    def outlook(self, market: Market, budget: Budget) -> Outlook:
        c = self._constants(market, budget)
        # (weight * scale)^2 = weight^2 * demand_variance / (weight / SHARE). The weights sum to at
        # most theta_sum + theta_max, because the last round starts below theta_sum.
        per_weight = c.demand_variance * SHARE
        return Outlook(
            rounds_at_most=c.rounds_at_most,
            variance=per_weight * (c.theta_sum + c.theta_max),
            peak=math.sqrt(per_weight * c.theta_max),
            weight=c.theta_sum + c.theta_max,
        )

    def start(self, market: Market, budget: Budget) -> State:
        constants = self._constants(market, budget)
        m = len(market.resources)
        state = State(market, constants, np.full(m + 1, 1.0 / (m + 1)), theta=constants.theta_max)
        if self.truncated and constants.demand_variance > 0.0:
            self._check_truncation(state, budget)
        # The smallest step has the most noise. If that cannot be drawn, refuse before the run.
        for variance in (constants.demand_variance, constants.scale_variance):
            _gaussian(variance, theta=1).cost(queries.change(market, "scale"))
        return state

    def step(self, state: State) -> Step | None:
        c = state.constants
        if state.total >= c.theta_sum or state.rounds >= c.rounds_at_most:
            return None  # line 1: until the step sizes sum to eta_sum
        prices = fixed_rounds.price_codes(state.market, state.weights * c.price_sum)
        if not state.scaled:
            return Step("scale", prices, _gaussian(c.scale_variance, state.theta))
        return Step("demand", prices, self._demand_noise(state), weight=state.theta)

    def observe(self, state: State, release: Release) -> State:
        c = state.constants
        if release.step.query == "scale":
            # Line 4: eta = min{alpha / b, alpha / |gradient_j|}; the scale is max{1, |1 - L_j|}.
            scale = max(1.0, release.answer[0] / min(state.market.supply_codes))
            return replace(state, theta=max(1, int(c.theta_max / scale)), scaled=True)
        # Lines 5 to 7. The exponent is cut to [-1, 1], where the regret lemma needs it. The
        # dummy's gradient is 0.
        loads = fixed_rounds.loads(state.market, release)
        exponent = np.clip((state.theta / SHARE) * (loads - 1.0), -1.0, 1.0)
        weights = state.weights.copy()
        weights[:-1] *= portable_math.exp(exponent)
        weights = np.maximum(weights / math.fsum(weights.tolist()), _FLOOR)
        return replace(
            state,
            weights=weights,
            total=state.total + release.step.weight,
            rounds=state.rounds + 1,
            scaled=False,
        )

    def alpha_in(self, market: Market, budget: Budget) -> float:
        """The alpha of a run in this market: the given one, or the one with the least planned loss.

        In units of n V, and with s as in `supply_ratio`, the proof allows for a loss of

            2 alpha + 2 alpha + 2 (Theta + alpha) s^2 + 2 (z_m + z_1) s,  Theta = ln(m + 1) / alpha.

        The first term is for prices that start too high. The second is the second-order term while
        no load is above twice its supply (at worst it is 5 alpha). The last does not depend on
        alpha. So the best alpha is s sqrt(ln(m + 1) / (2 + s^2)). All terms are several times what
        happens, but by about the same factor. It is rounded up to a multiple of 1/1000, then raised
        until `STEPS_PICKED` steps are enough (their number grows as 1 / alpha^2), a million rounds
        are enough, and so is the delta for truncated noise. It is at most 0.1: where noise is that
        large, it decides the loss, and steps that are too large only add to it.
        """
        return _least_alpha(self, market, budget) if self.alpha is None else self.alpha

    def supply_ratio(self, market: Market, budget: Budget, failure: float = 0.05) -> float:
        """The supply as a multiple of what the paper requires, with every constant explicit.

        The paper asks for a supply of order sqrt(m) / (alpha epsilon), with logarithms, so that
        noise adds at most alpha n to the regret lemma. Let s be the standard deviation of the
        noise on the averaged load of one resource, relative to supply. With P_max = 2nV, the noise
        adds at most P_max ((z_m + z_1) s + (Theta + alpha) s^2), as for Gaussian noise and with
        probability 1 - failure. z_m is for the resource with the largest noise, and z_1 for the
        martingale of noise against the posted prices. The last term is the mean of what noise adds
        to the second-order term. At the required supply this sum is alpha n V. Deviations are
        inversely proportional to supply, so the ratio is s_required / s. This is a yardstick, not
        a promise: the certificate says what a run achieved.
        """
        c = self._constants(market, budget)
        if c.demand_variance == 0.0:
            return math.inf
        m = len(market.resources)
        total = (c.theta_sum + c.theta_max) / SHARE
        z = math.sqrt(2.0 * math.log(2 * m / failure)) + math.sqrt(2.0 * math.log(2 / failure))
        required = (math.sqrt(4 * z * z + 8 * total * c.alpha) - 2 * z) / (4 * total)
        return required / self.average_noise(market, budget)

    def average_noise(self, market: Market, budget: Budget) -> float:
        """s: the deviation of the noise on the averaged load of the scarcest resource.

        It is relative to supply, and the same for every alpha: with variance v / theta_t at weight
        theta_t it is sqrt(v / (Theta + alpha)), and v grows with Theta + alpha (`_constants`).
        """
        spread = 2.0 if self.truncated else 1.0  # the variance of Laplace noise at the same rho
        rho = tail_bounds.rounds_rho(market, budget) * _SLACK * (1.0 - SCALE_SHARE)
        squares = queries.change(market, "demand").squares
        return math.sqrt(spread * squares / (2.0 * rho)) / min(market.supply_codes)

    def _constants(self, market: Market, budget: Budget) -> _Constants:
        m, alpha = len(market.resources), self.alpha_in(market, budget)
        theta_max = int(alpha * SHARE)
        theta_sum = math.ceil(portable_math.log(m + 1.0) / alpha * SHARE)
        # With variance v / theta at step theta, the demand releases cost a total rho of
        # sum_t theta_t Delta^2 / (2 v) <= (Theta + alpha) Delta^2 / (2 v), whatever the number
        # of rounds. This is the paper's noise scale, inversely proportional to sqrt(eta). A scale
        # release uses the previous step, and the first one uses alpha: that adds one more alpha.
        whole = (theta_sum + theta_max) / SHARE
        demand = queries.change(market, "demand").squares * whole
        scale = queries.change(market, "scale").squares * (theta_sum + 2 * theta_max) / SHARE
        rho = tail_bounds.rounds_rho(market, budget) * _SLACK
        return _Constants(
            alpha=alpha,
            price_sum=2.0 * fixed_rounds.worth(market),
            theta_max=theta_max,
            theta_sum=theta_sum,
            rounds_at_most=math.ceil((3 * m + 1) * theta_sum / SHARE / alpha),
            demand_variance=demand / (2.0 * rho * (1.0 - SCALE_SHARE)),
            scale_variance=scale / (2.0 * rho * SCALE_SHARE),
        )

    def _demand_noise(self, state: State) -> Noise:
        if not self.truncated or state.constants.demand_variance == 0.0:
            return _gaussian(state.constants.demand_variance, state.theta)
        scale = _deviation(state.constants.demand_variance, state.theta)
        # The paper's support [mu - (1 - alpha), mu + (1 - alpha)] for the exponent, in codes.
        room = (1.0 - state.constants.alpha) * min(state.market.supply_codes)
        bound = int(room / (state.theta / SHARE))
        return TruncatedLaplace(scale, bound)

    def _check_truncation(self, state: State, budget: Budget) -> None:
        """Refuse beforehand if the delta for truncation could run out.

        bound / scale grows as the step shrinks, so the largest step has the largest tail. Its cost
        times the largest number of rounds bounds the sum. This is where sigma ln(Tm/delta) must be
        well below 1 - alpha, which the paper's lemma assumes silently.
        """
        noise = self._demand_noise(replace(state, theta=state.constants.theta_max))
        cost = noise.cost(queries.change(state.market, "demand"))
        worst = round_up(cost.delta) * state.constants.rounds_at_most
        if worst > budget.truncation:
            raise BudgetError(
                f"truncated Laplace noise could cost delta = {float(worst):.2g}, and "
                f"only {budget.truncation:.2g} is set aside for it",
                "use Gaussian noise, a larger supply, or a larger epsilon",
            )


@functools.lru_cache(maxsize=256)
def _least_alpha(policy: MwuAdaptive, market: Market, budget: Budget) -> float:
    """`MwuAdaptive.alpha_in` without a given alpha. A larger alpha meets all limits more easily."""

    def meets(steps: int) -> bool:
        alpha = steps / _ALPHA_STEPS
        own = replace(policy, alpha=alpha)
        rounds = own.outlook(market, budget).rounds_at_most
        if size > STEPS_PICKED * alpha * alpha or rounds > fixed_rounds.ROUNDS_MAX:
            return False
        try:
            own.start(market, budget)
        except BudgetError:
            return False
        return True

    s, size = policy.average_noise(market, budget), portable_math.log(len(market.resources) + 1.0)
    best = math.ceil(_ALPHA_STEPS * s * math.sqrt(size / (2.0 + s * s)))
    low, high = min(max(1, best), _ALPHA_MOST) - 1, _ALPHA_MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high / _ALPHA_STEPS


def _gaussian(variance: float, theta: int) -> Gaussian | NoNoise:
    return Gaussian((_deviation(variance, theta),)) if variance > 0.0 else NoNoise()


def _deviation(variance: float, theta: int) -> float:
    return math.sqrt(variance / (theta / SHARE))
