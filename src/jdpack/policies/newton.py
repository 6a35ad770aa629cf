"""Public: newton, our own policy and the default. Tens of rounds instead of thousands.

The dual has only m variables, and in a market that is large enough to be private, the noise is
small compared to the loads. So a small part of the budget goes to the dual's curvature (the queries
gauge and curvature, from which `jdpack.policies.newton_response` builds a model), and prices move
by Newton steps that are as cautious as the noise demands. The log prices q_j = ln P_j move, and
loads are relative to supply.

1. Approach. q_j += gain_j (L_j / target_j - 1), where the excess counts only beyond what noise
   explains. A gain is halved when its resource passes the target, and grows while it does not.
   Prices start high, because an empty market is soon seen, or lower where noise would hide that.
2. Bridge. A filter (Kalman 1960) estimates where loads meet their targets. The estimate, `center`,
   moves by how far each round's loads differ from what was expected, and by less the more rounds it
   has seen. Along price directions in which loads hardly respond, noisy loads say nothing, and the
   filter leaves prices where they are. From here on, every round also corrects the model by how
   loads followed prices (`jdpack.policies.newton_trends`). The rounds of the bridge do not count in
   the allocation.
3. Tail. These rounds count, first with equal weights and then with falling ones, and get most of
   the budget. Prices are set around the center so that the remaining rounds make up what the
   *observed* average still lacks. So the observed average ends at its target, up to the noise of
   the last rounds, and the certificate scales by almost 1.

target_j is the largest load that can be certified to fit unscaled, or a larger one if that is
worth more after it was scaled or thinned (in the extreme, identical agents lose nothing by being
scaled). The ratio of prices to value tells whether it is (`newton_targets.best_targets`). For that,
the policy asks once for the value of what is taken.

The noise of every round and all weights are fixed before the first round that counts, so the
certificate may use the tail of the normal distribution (`jdpack.privacy.tail_bounds`). Numbers
below without a source were chosen on simulated markets (`experiments/`). Privacy does not depend on
any of them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Release, Step
from jdpack.common import checks, portable_math
from jdpack.common.portable_math import FloatArray
from jdpack.errors import MarketError
from jdpack.market.grid import DEMAND_CODE_MAX, PRICE_UNITS_PER_VALUE_CODE
from jdpack.market.market import Market
from jdpack.policies import fixed_rounds
from jdpack.policies import newton_response as response
from jdpack.policies.newton_response import Response
from jdpack.policies.newton_targets import (
    LEAST,
    Grants,
    best_shape,
    best_targets,
    granted_scales,
    kept_free,
    likely_shares,
    steering_shape,
)
from jdpack.policies.newton_trends import Trends
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import Gaussian, NoNoise, deviation, gaussian
from jdpack.privacy.queries import Query
from jdpack.privacy.tail_bounds import Outlook, Sum

APPROACH, WARM_APPROACH, BRIDGE, TAIL, SETTLE = 14, 5, 8, 58, 8
"""How many rounds each phase has; the approach is shorter after a warm start."""

APPROACH_SHARE, WARM_APPROACH_SHARE, BRIDGE_SHARE = 0.06, 0.02, 0.03
QUERY_SHARES: dict[Query, float] = {"gauge": 0.015, "value": 0.01, "curvature": 0.03}
"""Parts of the policy's rho, at most (`steering`), for one release of each; the rounds that count
get the rest."""

WEIGHT, FALL = 2**16, 0.7
"""The weight of a round in the tail, and the ratio of each falling weight to the one before."""

MATRIX_MAX = 64
"""With more resources than this, the policy does not ask for the m^2 numbers of curvature."""

_SWING, _SWING_MIN = 4.0, 0.002  # first guess of the load that swings with prices: this many
# deviations of the averaged noise, plus this part of supply
_COIN_VARIANCE = 0.35  # the variance that coins add, per load that swings and cap: 1 / sqrt(pi) for
# swings of a normal law, times the typical size of a demand
_BALANCED = 2.5  # how many times what loads swing by, in the model, may turn at most
_UNLIKE = 0.3  # how much options differ that ask for the same resources: a squared deviation
_AGAIN = (TAIL // 2, 3 * TAIL // 4, 7 * TAIL // 8)  # rounds after which targets are corrected
_EMPTY, _EVEN = 0.5, 0.1  # a market is empty below this mean load; noise below this counts alike
_FAINT = 0.3  # noise of this deviation, as a part of supply, halves how far a load moves its price
_RATE = 0.6  # before value is known, prices of all supplies are taken to be this part of it
_FULL = 1.5  # a load that is aimed for may not be reached: the most that counts as paid for
_UNSURE = 1.5  # how far the value may be off what prices tell of it, as a part of that
_DEAF = 0.5  # if the approach sees the mean load no better than this, prices start lower
_GAIN = 0.8  # how far an excess moves a log price at first
_DOUBT = 2.0  # the approach is sure of an excess beyond this many deviations
_SLACK = 3.0  # a resource is taken to be slack beyond this many deviations
_FADE, _FAINTEST = 0.8, 1e-3  # how fast the price of a slack resource falls, and the part of an
# average price at which that ends
_LACK = 0.1  # no more is made up in a round than the load by which a common rise of log prices by
# this lowers the mean load; all prices together may rise by this divided by their part of the value
_PRIOR = 0.5  # the variance of a log price after the approach
_MEMORY, _LONGEST = 0.9, 0.97  # how much earlier rounds still count after one more, because the
# model is only locally right: the first in the bridge, up to the second in the rounds that count
_DRIFT = 0.0015  # about how much load the model gets wrong in each round that counts
_ROUGH = 0.01  # about how far loads are off the model, whatever the noise
_CAUTION = 0.05  # against large price moves for small gains in load; it falls to 0 at the end
_BOLD = 2e-2  # the same where a guess of prices decides the shape of the noise
_MOST = 0.5  # the most that a log price moves away from the center in one round
_AVOID = 20.0  # how much worse it is at the end to be above a target than below it
_SCALED = 0.1  # a load that is aimed this far above what fits counts as scaled down anyway
_DROWNED = 1.0  # a margin above this part of supply leaves nothing to steer
_FLOOR = 1e-8  # the lowest price, relative to the highest starting price
_FAR, _NEAR = 12.5, 1.0 / 3.0  # the part of the approach's share that it gets, per square root of
# the relative noise of one release with all of rho, and the least part


@dataclass(frozen=True)
class State:
    """The fold over the billboard."""

    market: Market
    budget: Budget
    shape: tuple[float, ...]
    """The shape of the noise of the rounds that count; even until it is chosen."""
    targets: FloatArray
    radii: FloatArray
    """What the certificate is expected to add to the observed averages."""
    powers: FloatArray
    """What becomes of a load that does not fit (`newton_targets.Free`)."""
    floor: float
    prices: FloatArray
    """Prices of whole supplies, for the next step."""
    center: FloatArray
    """Where loads seem to meet their targets."""
    gains: FloatArray
    signs: FloatArray
    """The side of its target on which each resource was last seen for certain."""
    owed: FloatArray
    """Over the rounds that count: the weighted sum of observed loads minus targets."""
    tails: tuple[float, ...]
    """The part of beta for each resource; equal until prices tell more."""
    swings: FloatArray
    """Over the rounds that count: sums of loads, log prices, their mean and what the model says
    that loads fell, and of the squares of each."""
    known: FloatArray
    """What the rounds since the approach tell us of each load: the sum of inverse variances."""
    told: FloatArray
    """The sum of excesses times inverse variances, over the same rounds."""
    slack: NDArray[np.bool_]
    """Which resources would stay below their targets even if they were free."""
    response: Response | None = None
    trends: Trends | None = None
    """What the rounds since the approach show of the response."""
    seen: FloatArray | None = None
    """The sum of the loads of the bridge."""
    value: Release | None = None
    asked: int = 0
    """How many queries about curvature and value have been answered."""
    rounds: int = 0
    counted: bool = False
    """Whether a round has counted."""
    worth: tuple[float, FloatArray] | None = None
    """See `_worth`; known from the first round that counts on."""

    def but(self, **changed: Any) -> State:
        """As `dataclasses.replace`, which would take a tenth of the time of a small run."""
        assert changed.keys() <= self.__dict__.keys()
        found = object.__new__(State)
        found.__dict__.update(self.__dict__, **changed)
        return found


@dataclass(frozen=True)
class Newton:
    """Newton steps on noisy loads.

    Args:
        start_prices: prices to start from, in value per unit of each resource, from an earlier
            run (`Newton.warm`) or any other public source. By default, a guess from the market.
        beta_parts: how beta is split over the resources (`tail_bounds.tails`). Billboards from
            before there was a choice have "even" parts.
        grants: whether a closing release measures what coins grant.
    """

    start_prices: tuple[float, ...] | None = None
    beta_parts: Literal["by worth", "even"] = "by worth"
    grants: Literal["measured", "unmeasured"] = "measured"

    name: ClassVar[str] = "newton"

    def __post_init__(self) -> None:
        if self.beta_parts not in ("by worth", "even"):
            shown = checks.quoted(self.beta_parts)
            raise MarketError(f"beta_parts must be 'by worth' or 'even', not {shown}")
        if self.grants not in ("measured", "unmeasured"):
            shown = checks.quoted(self.grants)
            raise MarketError(f"grants must be 'measured' or 'unmeasured', not {shown}")
        if self.start_prices is None:
            return
        object.__setattr__(self, "start_prices", tuple(self.start_prices))
        for price in self.start_prices:
            if not isinstance(price, float) or not 0.0 <= price < math.inf:
                shown = checks.quoted(price)
                raise MarketError(f"a starting price must be a number of at least 0, not {shown}")

    @classmethod
    def warm(cls, board: Billboard, market: Market) -> Newton:
        """Start from the prices of an earlier billboard with the same resources."""
        earlier = board.header.market
        if [r.name for r in earlier.resources] != [r.name for r in market.resources]:
            raise MarketError(
                "the earlier billboard has other resources",
                f"its resources: {', '.join(r.name for r in earlier.resources[:20])}",
            )
        if not board.header.private:
            raise MarketError(
                f"the earlier billboard is not private: {board.header.why_not_private}",
                "its prices may show records, and then this run would show them too",
            )
        if board.weight == 0:
            raise MarketError("the earlier billboard has no round that counts")
        totals = [0] * len(market.resources)
        for step in board.rounds:
            totals = [a + step.weight * p for a, p in zip(totals, step.prices, strict=True)]
        mean = [round(total / board.weight) for total in totals]
        return cls(tuple(earlier.unit_price(j, p) for j, p in enumerate(mean)))

    @property
    def truncated(self) -> bool:
        return False

    def to_dict(self) -> dict[str, Any]:
        start = self.start_prices
        found = {"name": self.name, "start_prices": None if start is None else list(start)}
        # These are written as they were before there was a choice.
        found |= {} if self.beta_parts == "even" else {"beta_parts": self.beta_parts}
        return found | ({} if self.grants == "unmeasured" else {"grants": self.grants})

    def rho(self, market: Market, budget: Budget) -> float:
        """What the policy may spend."""
        return tail_bounds.rounds_rho(market, budget, measured=self.grants == "measured")

    @functools.lru_cache(maxsize=64)  # noqa: B019 (the cache holds only public numbers)
    def outlook(self, market: Market, budget: Budget) -> Outlook:
        scales, spreads = self._scales(market, budget)
        return Outlook(
            rounds_at_most=self._approach + BRIDGE + len(_weights()),
            variance=math.fsum(s * s for s in spreads),
            peak=max(spreads, default=0.0),
            weight=sum(_weights()),
            scales=scales or None,
        )

    def _scales(self, market: Market, budget: Budget) -> tuple[tuple[float, ...], list[float]]:
        """The scales of the rounds that count if noise is even, and their weights times scales."""
        noises = self._noises(market, budget, (1.0,))
        scales = tuple(n.scales[0] for n in noises if isinstance(n, Gaussian))
        return scales, [w * s for w, s in zip(_weights(), scales, strict=False)]

    def start(self, market: Market, budget: Budget) -> State:
        m, rho = len(market.resources), self.rho(market, budget)
        for query, share in QUERY_SHARES.items():  # refuse noise that cannot be drawn
            change = queries.change(market, query)
            gaussian(change, rho * share * steering(market, rho)[1]).cost(change)
        # All agents together can pay at most n V, so no supply is worth more.
        supply = fixed_rounds.supplies(market)
        highest = fixed_rounds.worth(market)
        prices = likely_shares(market) * (highest / 2.0)
        if self.start_prices is not None:
            if len(self.start_prices) != m:
                raise MarketError(
                    f"there are {len(self.start_prices)} starting prices for {m} resources"
                )
            unit = market.value_step / PRICE_UNITS_PER_VALUE_CODE
            sized = zip(self.start_prices, market.unit_sizes, strict=True)
            prices = supply * np.array([price * size / unit for price, size in sized])
        prices = np.clip(prices, _FLOOR * highest, highest)
        zero = np.zeros(m)
        state = State(
            market=market,
            budget=budget,
            shape=(1.0,),
            targets=zero,
            radii=zero,
            powers=zero,
            floor=_FLOOR * highest,
            prices=prices,
            center=prices,
            gains=np.full(m, _GAIN if self.start_prices is None else 0.3),
            signs=zero,
            owed=zero,
            tails=tail_bounds.tails(market, budget),
            swings=np.zeros((8, m)),
            known=zero,
            told=zero,
            slack=np.zeros(m, np.bool_),
        )
        return self._aimed_at(state if self.start_prices is not None else self._lowered(state))

    def step(self, state: State) -> Step | None:
        prices = fixed_rounds.price_codes(state.market, state.prices)
        query = self._question(state)
        if query is not None:
            share = (
                QUERY_SHARES[query]
                * steering(state.market, self.rho(state.market, state.budget))[1]
            )
            return Step(
                query,
                prices,
                gaussian(
                    queries.change(state.market, query),
                    self.rho(state.market, state.budget) * share,
                ),
            )
        counting = state.rounds - self._steering(state)
        if counting < 0:
            return Step("demand", prices, self._steering_noise(state))
        if counting == len(_weights()):
            return None
        noises = self._noises(state.market, state.budget, state.shape)
        return Step("demand", prices, noises[counting], _weights()[counting])

    def observe(self, state: State, release: Release) -> State:
        query, market = release.step.query, state.market
        scales = np.array(deviation(release.step.noise))
        if query != "demand":
            state = state.but(asked=state.asked + 1)
        if query == "value":
            return state.but(value=release)
        if query == "gauge":
            model = response.from_gauge(
                market, state.prices, state.floor, release.answer, float(scales[0]), state.response
            )
            return state.but(response=model)
        if query == "curvature":
            assert state.response is not None
            model = response.with_curvature(
                state.response, market, release.answer, float(scales[0])
            )
            return state.but(response=model)
        counting = state.rounds - self._steering(state)
        if counting == 0:
            state = state.but(worth=_worth(state))
            state = state.but(targets=self._targets(state))
        noise = scales / fixed_rounds.supplies(market)
        if counting in _AGAIN and not market.divisible:
            state = self._aimed_again(state, noise, counting)
        loads = fixed_rounds.loads(market, release)
        excess = loads - state.targets
        state = state.but(rounds=state.rounds + 1)
        if state.rounds <= self._approach:
            return _approached(state, excess, noise)
        if counting >= 0:
            state = state.but(swings=state.swings + _swing(state, release, loads), counted=True)
        else:
            seen = loads if state.seen is None else state.seen + loads
            state = state.but(seen=seen)
        state = _estimated(_corrected(state, loads, noise), excess, noise)
        if counting == -1:
            return self._shaped(state, noise)
        return state if counting < 0 else _counted(state, excess, counting)

    @property
    def _approach(self) -> int:
        return APPROACH if self.start_prices is None else WARM_APPROACH

    def _steering(self, state: State) -> int:
        """How many rounds come before the first one that counts."""
        return self._approach + BRIDGE

    def _question(self, state: State) -> Query | None:
        """What to ask before the next round, if anything."""
        questions: list[Query] = []
        if state.rounds >= self._approach:
            questions.append("gauge")
        if state.rounds >= self._steering(state):
            questions.append("gauge")
            if _crosses(state.market):
                questions.append("curvature")
            questions.append("value")
        return questions[state.asked] if state.asked < len(questions) else None

    def shares(self, market: Market, rho: float, factor: float = 1.0) -> tuple[float, float, float]:
        """The parts of rho for the approach, the bridge, and the rounds that count.

        With a factor, the parts if all supplies are multiplied by it.
        """
        far, close = steering(market, rho, factor)
        approach = far * (APPROACH_SHARE if self.start_prices is None else WARM_APPROACH_SHARE)
        bridge = close * BRIDGE_SHARE
        asked = [QUERY_SHARES["gauge"]] * 2 + [QUERY_SHARES["value"]]
        asked += [QUERY_SHARES["curvature"]] if _crosses(market) else []
        return approach, bridge, 1.0 - approach - bridge - close * math.fsum(asked)

    def _lowered(self, state: State) -> State:
        """The state with lower prices if the approach could not see that they are too high.

        Prices that are too high sell nothing. Prices that are too low only scale everything down.
        """
        noise = np.array(deviation(self._steering_noise(state)))
        _, spread = _pooled(noise / fixed_rounds.supplies(state.market))
        lower = state.prices / (1.0 + (spread / _DEAF) ** 2)
        prices = np.maximum(lower, state.floor)
        return state.but(prices=prices, center=prices)

    def _steering_noise(self, state: State) -> Gaussian | NoNoise:
        """The noise of a round that does not count."""
        market, bridging = state.market, state.rounds - self._approach
        approach, bridge, _ = self.shares(market, self.rho(state.market, state.budget))
        share = approach / self._approach if bridging < 0 else bridge / BRIDGE
        change = queries.change(market, "demand")
        return gaussian(
            change, self.rho(state.market, state.budget) * share, steering_shape(market)
        )

    @functools.lru_cache(maxsize=64)  # noqa: B019 (the cache holds only public numbers)
    def _noises(
        self, market: Market, budget: Budget, shape: tuple[float, ...]
    ) -> tuple[Gaussian | NoNoise, ...]:
        """The noise of the rounds that count; they split what is left of rho by weight."""
        rho, whole = self.rho(market, budget), sum(_weights())
        rest = rho * self.shares(market, rho)[-1] if rho < math.inf else rho
        change, found = queries.change(market, "demand"), {}
        for weight in _weights():
            if weight not in found:
                found[weight] = gaussian(change, rest * weight / whole, shape)
        return tuple(found[weight] for weight in _weights())

    def _shaped(self, state: State, noise: FloatArray) -> State:
        """The state with the shape of the noise chosen, from what is public before the tail."""
        assert state.seen is not None
        weights = _weights()
        scales, spreads = self._scales(state.market, state.budget)
        if not scales:
            return state
        sums = Sum(math.fsum(s * s for s in spreads), float(sum(weights)), scales)
        reach = sums.radius(tail_bounds.tail(state.market, state.budget)) / sum(weights)
        model, trust = state.response, np.ones(len(state.center))

        def dearer(margins: FloatArray) -> FloatArray:
            """How far log prices rise, on average on the way, if supplies fall by margins."""
            assert model is not None
            short = np.where(state.center <= state.floor, 0.0, margins)
            return model.moves(state.center, short, _BOLD, trust) / 2.0

        shape = best_shape(
            state.market,
            state.center,
            state.seen / BRIDGE,
            noise / math.sqrt(BRIDGE),
            reach,
            dearer,
        )
        shape = shape if max(shape) > 1.0 else (1.0,)
        return self._aimed_at(self._parted(state.but(shape=shape)))

    def _parted(self, state: State) -> State:
        """The state with the parts of beta, as if the next round were the first that counts."""
        if self.beta_parts == "even":
            return state
        market, budget = state.market, state.budget
        prices = fixed_rounds.price_codes(market, state.prices)
        noise = self._noises(market, budget, state.shape)[0]
        return state.but(tails=tail_bounds.tails(market, budget, prices, noise))

    def _aimed_at(self, state: State, swing: FloatArray | None = None) -> State:
        """The state with targets for its shape, if these parts of the loads swing with prices."""
        market, budget, sums = state.market, state.budget, self._sums(state)
        supply, weight = fixed_rounds.supplies(market), sum(_weights())
        grants = None
        if not market.divisible:
            deviations = np.array([math.sqrt(own.variance) for own in sums]) / weight
            coins = coins_expected(supply, deviations, swing)
            scales = None
            if self.grants == "measured":
                scales = granted_scales(market, budget, state.shape)
            grants = Grants(coins, scales)
        free = kept_free(market, budget, sums, state.tails, float(weight), grants)
        state = state.but(radii=free.radii, powers=free.powers)
        return state.but(targets=self._targets(state))

    def _targets(self, state: State) -> FloatArray:
        """The loads to aim for."""
        market, reach = state.market, state.radii
        if state.worth is not None:
            return best_targets(reach, state.powers, *state.worth)
        # Nothing is known about value yet, so we guess what it is at full loads.
        guess = _RATE, np.ones(1)
        if market.bundle_width == 1:
            return best_targets(reach, state.powers, *guess)
        # Where resources are asked for together, scaling for one of them takes from all. So all are
        # scaled down by the factor that is best for an average resource that noise does not drown.
        known = state.center / (1.0 + (reach / _DROWNED) ** 2)
        known = known / math.fsum(known.tolist())
        mean = np.array([math.fsum((known * reach).tolist())])
        power = np.array([math.fsum((known * state.powers).tolist())])
        over = max(1.0, float((best_targets(mean, power, *guess) + mean)[0]))
        return np.maximum(over - reach, LEAST)

    def _sums(self, state: State) -> list[Sum]:
        """The noise of the averaged load of each resource."""
        weights, whole = _weights(), float(sum(_weights()))
        noises = self._noises(state.market, state.budget, state.shape)
        scales = np.array([deviation(noise) for noise in noises])
        variances = np.sum((np.array(weights)[:, None] * scales) ** 2, axis=0).tolist()
        sums = [
            Sum(variance, whole, tuple(column) if column[0] > 0.0 else None)
            for variance, column in zip(variances, scales.T.tolist(), strict=True)
        ]
        return sums * len(state.center) if len(sums) == 1 else sums

    def _aimed_again(self, state: State, noise: FloatArray, counting: int) -> State:
        """The state with targets corrected for how much coins will decide.

        Coins decide for agents who take their option in some rounds and not in others. The swings
        of prices, and of loads beyond their noise, show how much load that is.
        """
        assert state.response is not None
        mean, squares = state.swings[0::2] / counting, state.swings[1::2] / counting
        loads, prices, common, falls = np.maximum(squares - mean * mean, 0.0)
        # One load's swing beyond its noise is badly known; the mean over all of them is better.
        shares = state.center / math.fsum(state.center.tolist())
        beyond = math.fsum((shares * (loads - noise * noise)).tolist())
        # What an option costs follows the common move of prices, and a little of the others: less
        # the more resources it touches, and the more alike options are.
        width, stiffness = state.market.bundle_width, state.response.diagonal
        if width > 1:
            others = max(0.0, math.fsum((shares * prices).tolist()) - float(common[0]))
            spare = min(1.0, 1.0 + _UNLIKE - width / len(loads))
            prices = common + spare * others / width
            stiffness = np.full(len(loads), state.response.level(state.center))
        # Moves that balance each other in every load turn few.
        turned = np.minimum(stiffness * np.sqrt(prices), _BALANCED * np.sqrt(falls))
        swing = np.maximum(turned, max(_SWING_MIN, math.sqrt(max(0.0, beyond))))
        again = self._aimed_at(state, swing)
        done = sum(_weights()[:counting])
        return again.but(owed=state.owed + done * (state.targets - again.targets))


def steering(market: Market, rho: float, factor: float = 1.0) -> tuple[float, float]:
    """What parts of their shares the approach gets, and the bridge with the questions.

    Let x be the relative noise of one release with all of rho, if all supplies are multiplied by a
    factor. What the rounds that count lack costs in proportion to x. What a badly found price costs
    is of second order, x^2 over its share. So the best share grows with the square root of x, up to
    where more was of no use. The bridge and the questions tell how the prices of m resources depend
    on each other, and a single price is found from its own load: they get m / (m + 2) of their
    share.
    """
    noise, m = _relative_noise(market, rho) / factor, len(market.resources)
    return min(1.0, max(_NEAR, _FAR * math.sqrt(noise))), m / (m + 2.0)


@functools.lru_cache(maxsize=64)
def _relative_noise(market: Market, rho: float) -> float:
    """The deviation of one release with all of rho, as the same part of every supply."""
    change = queries.change(market, "demand")
    return math.sqrt(change.worst(tuple(float(s) for s in market.supply_codes)) / (2.0 * rho))


def coins_expected(
    supply: FloatArray, noise: FloatArray, swing: FloatArray | None = None
) -> FloatArray:
    """About the variance that coins add to a load, in squared codes.

    `noise` is the deviation of the averaged load, in codes. Coins decide for agents whose decision
    turns as prices follow the noise: by default we guess how much load that is.
    """
    swing = _SWING_MIN + _SWING * noise / supply if swing is None else swing
    return _COIN_VARIANCE * np.minimum(1.0, swing) * supply * float(DEMAND_CODE_MAX)


def _crosses(market: Market) -> bool:
    """Whether the policy asks how the price of one resource moves the load of another."""
    alone = market.bundle_width == 1 and market.options == 1
    return not alone and 1 < len(market.resources) <= MATRIX_MAX


def _swing(state: State, release: Release, loads: FloatArray) -> FloatArray:
    codes = np.array(release.step.prices, dtype=np.float64)
    prices = portable_math.logs(np.maximum(1.0, codes))
    worth = fixed_rounds.supplies(state.market) * codes
    whole = max(1.0, math.fsum(worth.tolist()))
    common = np.full(len(loads), math.fsum((worth * prices).tolist()) / whole)
    assert state.response is not None
    # Relative to the prices of the model, so that the squares of its rounding do not matter.
    moved = portable_math.logs(np.maximum(1.0, worth) / state.response.prices)
    falls = state.response.falls(state.response.prices, moved)
    rows = [loads, prices, common, falls]
    return np.stack([row for each in rows for row in (each, each * each)])


@functools.cache
def _weights() -> tuple[int, ...]:
    """The weights of the rounds that count."""
    weights, last = [WEIGHT] * TAIL, float(WEIGHT)
    for _ in range(SETTLE):
        last *= FALL
        weights.append(round(last))
    return tuple(weights)


def _approached(state: State, excess: FloatArray, noise: FloatArray) -> State:
    """The state after a round of the approach."""
    trust = 1.0 / (1.0 + (noise / _FAINT) ** 2)
    error = _pressing(state, np.clip(trust * excess / state.targets, -1.0, 1.0))
    shortage = _shortage(excess / state.targets + 1.0, noise / state.targets)
    sure = np.abs(excess) > _DOUBT * noise
    fresh = state.gains >= _GAIN  # never seen on both sides of its target
    error = np.where(fresh & ~(sure & (error > 0.0)), np.minimum(error, -shortage), error)
    signs = np.where(sure, np.sign(error), 0.0)
    turned = signs * state.signs
    gains = np.where(turned < 0.0, 0.5 * state.gains, state.gains)
    gains = np.where(turned > 0.0, np.minimum(1.4 * gains, 1.5), gains)
    gains = np.where(fresh, np.maximum(gains, min(1.0, 2.0 * shortage)), gains)
    prices = np.maximum(
        state.prices * portable_math.exp(np.clip(gains * error, -1.0, 1.0)), state.floor
    )
    signs = np.where(signs != 0.0, signs, state.signs)
    return state.but(prices=prices, center=prices, gains=gains, signs=signs)


def _shortage(loads: FloatArray, noise: FloatArray) -> float:
    """By how much all prices should fall because the market as a whole is nearly empty.

    Noise may hide that in any one load, but less in their mean. (A mean that is too high tells
    nothing, because most resources may have plenty.)
    """
    trust, spread = _pooled(noise)
    missing = _EMPTY - math.fsum((trust * loads).tolist()) - 0.5 * spread
    return min(1.0, max(0.0, 4.0 * missing))


def _pooled(noise: FloatArray) -> tuple[FloatArray, float]:
    """What each load weighs in the mean of all loads, and the deviation of the noise of that."""
    trust = 1.0 / (noise * noise + _EVEN * _EVEN)
    trust = trust / math.fsum(trust.tolist())
    return trust, math.sqrt(math.fsum((trust * trust * noise * noise).tolist()))


def _corrected(state: State, loads: FloatArray, noise: FloatArray) -> State:
    """The state with a model that follows what the rounds show."""
    assert state.response is not None
    trust = 1.0 / (1.0 + (noise / _FAINT) ** 2)
    trends = (
        Trends.begin(trust * state.center, state.prices) if state.trends is None else state.trends
    )
    trends = trends.seen(state.prices, loads, noise * noise + _ROUGH * _ROUGH)
    model = trends.corrected(state.response, state.center, crossed=state.market.options > 1)
    return state.but(trends=trends, response=model)


def _estimated(state: State, excess: FloatArray, noise: FloatArray) -> State:
    """The state after a round's loads have moved the estimate of the center.

    Let e be the error of the center, with prior N(0, PRIOR), and let loads be L = target +
    G (e - drift) plus noise. Then the posterior mean of e solves a regularised least-squares
    problem.
    """
    assert state.response is not None
    precision = 1.0 / (noise * noise + _ROUGH * _ROUGH)
    memory: FloatArray | float = _MEMORY
    if state.counted:  # what a steady Kalman filter forgets per round is about drift over noise
        memory = np.clip(1.0 - _DRIFT * np.sqrt(precision), _MEMORY, _LONGEST)
    known, told = memory * state.known + precision, memory * state.told + precision * excess
    slack = told / known + _SLACK / np.sqrt(known) < -state.response.own(state.center)
    drift = portable_math.logs(state.prices / state.center)
    news = _pressing(state, excess) + state.response.falls(state.prices, drift)
    news = np.where(slack, 0.0, news)
    most = float(known.max())
    moves = state.response.moves(
        state.prices, news * (precision / known), 1.0 / (_PRIOR * most), known / most
    )
    center = _turned(state.center, _bounded(state, moves, 0.7), state.floor)
    # Nothing that is slack may hold back the others: its price goes to almost 0.
    least = _FAINTEST * math.fsum(center.tolist()) / len(center)
    center = np.where(slack, np.minimum(center, np.maximum(_FADE * center, least)), center)
    return state.but(known=known, told=told, slack=slack, center=center, prices=center)


def _counted(state: State, excess: FloatArray, counting: int) -> State:
    """The state after a round that counts, with prices that make up for what is owed."""
    assert state.response is not None
    weights = _weights()
    owed = state.owed + weights[counting] * excess
    # A resource that is slack or at the price floor owes nothing for its spare supply.
    spare = (state.center <= state.floor) | state.slack
    owed = np.where(spare & (owed < 0.0), 0.0, owed)
    left = sum(weights[counting + 1 :])
    if left == 0:
        return state.but(owed=owed)
    # Whatever noise would drown anyway must not move the other prices, nor what cannot be made up.
    trust = 1.0 / (1.0 + (state.radii / _DROWNED) ** 2)
    done = 1.0 - left / sum(weights)
    # Being above a target is worse than being below it, unless the load is scaled down anyway.
    scaled = np.clip((state.targets + state.radii - 1.0) / _SCALED, 0.0, 1.0)
    trust = trust * np.where(owed > 0.0, 1.0 + (1.0 - scaled) * _AVOID * done * done, 1.0)
    caution = _CAUTION * left / sum(weights)
    level = state.response.level(state.center)
    lack = np.clip(owed / left, -_LACK * level, _LACK * level)
    moves = state.response.moves(state.center, lack, caution, trust)
    moves = _bounded(state, moves, _MOST)
    # What single prices cannot put right, all of them together must, or whatever touches the
    # resource is scaled down: everything, if options touch all resources. That takes from the
    # average option, and higher prices only from the least valuable ones. So the smaller a part of
    # the value prices are, the further they may rise, unless noise is large.
    assert state.worth is not None
    dear = _LACK * level / np.clip(2.0 * state.radii, min(1.0, state.worth[0]), 1.0)
    over = np.where(state.radii < _DROWNED, np.minimum(owed / left, dear), 0.0)
    over = over - state.response.falls(state.center, moves)
    touched = state.market.bundle_width / len(owed)
    pays = touched >= min(1.0, state.worth[0])
    most = max(0.0, float(((1.0 - scaled) * over).max()))
    common = pays * touched * done * done * most / level
    moves = np.clip(moves + min(_MOST, common), -1.0, 1.0)
    prices = _turned(state.center, moves, state.floor)
    return state.but(prices=prices, owed=owed)


def _worth(state: State) -> tuple[float, FloatArray]:
    """The price of all supplies as a fraction of the value taken, and the loads at that point.

    If the value cap is far above the values, noise may drown the answer. Then what agents pay
    tells more about the value than the answer does, and we take the mean of both, by precision.
    """
    assert state.value is not None
    prices, loads = state.prices, state.targets
    answer = float(state.value.answer[0] * PRICE_UNITS_PER_VALUE_CODE)
    noise = deviation(state.value.step.noise)[0] * PRICE_UNITS_PER_VALUE_CODE
    guess = math.fsum((prices * np.minimum(loads, 1.0)).tolist()) / _RATE
    doubt = _UNSURE * guess
    trust = doubt * doubt / (doubt * doubt + noise * noise)
    value = guess + trust * (answer - guess)
    # Nobody pays more than the value.
    paid = math.fsum((prices * np.minimum(loads, _FULL)).tolist())
    return math.fsum(prices.tolist()) / max(value + 0.5 * math.sqrt(trust) * noise, paid), loads


def _pressing(state: State, excess: FloatArray) -> FloatArray:
    """The excess, with 0 for resources that have spare supply at the price floor."""
    return np.where((state.prices <= state.floor) & (excess < 0.0), 0.0, excess)


def _bounded(state: State, moves: FloatArray, most: float) -> FloatArray:
    """Moves that are not too large.

    Where resources depend on each other, moves in opposite directions balance each other, so they
    are all made smaller by one factor; what all prices have in common is bounded by itself.
    """
    assert state.response is not None
    if state.response.common == 0.0 and state.response.beyond is None:
        return np.clip(moves, -most, most)
    prices = state.center
    common = math.fsum((prices * moves).tolist()) / math.fsum(prices.tolist())
    others = np.where(state.radii < _DROWNED, moves - common, 0.0)
    largest = float(np.abs(others).max())
    others *= min(1.0, most / largest) if largest > 0.0 else 1.0
    return np.clip(min(most, max(-most, common)) + others, -1.0, 1.0)


def _turned(prices: FloatArray, moves: FloatArray, floor: float) -> FloatArray:
    """Prices after moves in their logarithms. Only the mean of the moves changes their sum.

    Otherwise large moves in opposite directions would raise the sum, and with it all costs.
    """
    moved = prices * portable_math.exp(moves)
    before = math.fsum(prices.tolist())
    common = math.fsum((prices * moves).tolist()) / before
    ratio = portable_math.exp(np.array([common])) * before / math.fsum(moved.tolist())
    return np.maximum(moved * ratio, floor)
