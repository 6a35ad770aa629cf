"""Public: newton, our own policy and the default. Tens of rounds instead of thousands.

The dual has only m variables, and in a market that is large enough to be private, the noise is
small compared to the loads. So a small part of the budget goes to the dual's curvature (the queries
gauge and curvature, from which `jdpack.policies.newton_response` builds a model), and prices move
by Newton steps that are as cautious as the noise demands. The log prices q_j = ln P_j move, and
loads are relative to supply.

1. Approach. q_j += gain_j (L_j / target_j - 1), where the excess counts only beyond what noise
   explains. A gain is halved when its resource passes the target, and grows while it does not.
2. Bridge. A filter (Kalman 1960) estimates where loads meet their targets. The estimate, `center`,
   moves by how far each round's loads differ from what was expected, and by less the more rounds it
   has seen. Along price directions in which loads hardly respond, noisy loads say nothing, and the
   filter leaves prices where they are. These rounds do not count in the allocation.
3. Tail. These rounds count, first with equal weights and then with falling ones, and get most of
   the budget. Prices are set around the center so that the remaining rounds make up what the
   *observed* average still lacks. So the observed average ends at its target, up to the noise of
   the last rounds, and the certificate scales by almost 1.

target_j is the largest load that can be certified to fit unscaled. For divisible goods, a larger
load that is scaled down may be worth more (in the extreme, identical agents lose nothing by being
scaled). The ratio of prices to the dual value tells whether it is. For that, the policy asks once
for the value of what is taken.

The noise of every round and all weights are fixed beforehand, so the certificate may use the tail
of the normal distribution (`jdpack.privacy.tail_bounds`). Numbers below without a source were
chosen on simulated markets (`experiments/`). Privacy does not depend on any of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Release, Step
from jdpack.common import checks, portable_math
from jdpack.common.portable_math import FloatArray
from jdpack.errors import MarketError
from jdpack.market.grid import PRICE_CODE_MAX, PRICE_UNITS_PER_VALUE_CODE
from jdpack.market.market import Market
from jdpack.policies import newton_response as response
from jdpack.policies.newton_response import Response
from jdpack.privacy import queries, tail_bounds
from jdpack.privacy.accounting import Budget
from jdpack.privacy.noise import Gaussian, NoNoise, gaussian
from jdpack.privacy.queries import Query
from jdpack.privacy.tail_bounds import Outlook

APPROACH, WARM_APPROACH, BRIDGE, TAIL, SETTLE = 14, 5, 8, 58, 8
"""How many rounds each phase has; the approach is shorter after a warm start."""

APPROACH_SHARE, WARM_APPROACH_SHARE, BRIDGE_SHARE = 0.06, 0.02, 0.03
QUERY_SHARES: dict[Query, float] = {"gauge": 0.015, "value": 0.01, "curvature": 0.03}
"""Parts of the policy's rho, for one release of each; the rounds that count get the rest."""

WEIGHT, FALL = 2**16, 0.7
"""The weight of a round in the tail, and the ratio of each falling weight to the one before."""

MATRIX_MAX = 64
"""With more resources than this, the policy does not ask for the m^2 numbers of curvature."""

_LANDING, _LANDING_DENSE, _LANDING_EXACT = 2.0, 2.5, 3.0
"""How many deviations the load after coins should stay below its bound. More if options touch most
resources, because then thinning one resource takes from nearly all agents; most without noise."""
_COIN_SPREAD = 0.1  # first guess of the part of the load that coins decide
_COIN_SPREAD_MIN, _COIN_SPREAD_EXACT = 0.01, 0.02  # its least value, with noise and without
_WASTE = 0.65  # if the certified load is below this, aim for a full load and scale it down
_SCALED = 1.9  # with a certificate's radius r, about 1.9 r is then the best load to scale down
_LEAST = 0.2  # the smallest target
_OVERSHOOT = 1.5  # the largest target, unless supply is far too small
_DOUBT = 2.0  # the approach ignores an excess below this many deviations
_PRIOR = 0.25  # the variance of a log price after the approach
_MEMORY = 0.9  # how much earlier rounds still count after one more: the model is only locally right
_ROUGH = 0.01  # about how far loads are off the model, whatever the noise
_CAUTION = 0.05  # against large price moves for small gains in load
_FLOOR = 1e-8  # the lowest price, relative to the highest starting price


@dataclass(frozen=True)
class State:
    """The fold over the billboard."""

    market: Market
    budget: Budget
    targets: FloatArray
    radius: float
    """What the certificate adds to the observed average of divisible goods."""
    floor: float
    prices: FloatArray
    """Price codes before rounding, for the next step."""
    center: FloatArray
    """Where loads seem to meet their targets."""
    gains: FloatArray
    signs: FloatArray
    """The side of its target on which each resource was last seen for certain."""
    owed: FloatArray
    """Over the rounds that count: the weighted sum of observed loads minus targets."""
    swings: FloatArray
    """Over the rounds that count: sums of loads and log prices, and of their squares."""
    response: Response | None = None
    known: float = 0.0
    """What the rounds since the approach tell us: the sum of their inverse variances."""
    value: Release | None = None
    asked: int = 0
    """How many queries about curvature and value have been answered."""
    rounds: int = 0

    @property
    def rho(self) -> float:
        """What the policy may spend."""
        return tail_bounds.rounds_rho(self.market, self.budget)


@dataclass(frozen=True)
class Newton:
    """Newton steps on noisy loads.

    Args:
        start_prices: prices to start from, in value per unit of each resource, from an earlier
            run (`Newton.warm`) or any other public source. By default, a guess from the market.
    """

    start_prices: tuple[float, ...] | None = None

    name: ClassVar[str] = "newton"

    def __post_init__(self) -> None:
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
        return {"name": self.name, "start_prices": None if start is None else list(start)}

    def outlook(self, market: Market, budget: Budget) -> Outlook:
        rho, weights = tail_bounds.rounds_rho(market, budget), _weights()
        noises = [self._noise(market, rho, self._steering + t) for t in range(len(weights))]
        scales = [n.scale for n in noises if isinstance(n, Gaussian)]
        spreads = [w * s for w, s in zip(weights, scales, strict=False)]
        return Outlook(
            rounds_at_most=self._steering + len(weights),
            variance=math.fsum(s * s for s in spreads),
            peak=max(spreads, default=0.0),
            weight=sum(weights),
            scales=tuple(scales) or None,
        )

    def start(self, market: Market, budget: Budget) -> State:
        m, rho = len(market.resources), tail_bounds.rounds_rho(market, budget)
        for query, share in QUERY_SHARES.items():  # refuse noise that cannot be drawn
            gaussian(queries.shifts(market, query), rho * share).cost(queries.shifts(market, query))
        targets, radius = self._targets(market, budget)
        # All agents together can pay at most n V, so no supply is worth more.
        highest = float(market.agents * market.value_cap_code) * PRICE_UNITS_PER_VALUE_CODE
        highest /= market.supply_code
        prices = np.full(m, highest / (2 * m))
        if self.start_prices is not None:
            if len(self.start_prices) != m:
                raise MarketError(
                    f"there are {len(self.start_prices)} starting prices for {m} resources"
                )
            unit = market.value_step / PRICE_UNITS_PER_VALUE_CODE
            sized = zip(self.start_prices, market.unit_sizes, strict=True)
            prices = np.array([min(highest, price * size / unit) for price, size in sized])
        prices = np.clip(prices, _FLOOR * highest, highest)
        zero = np.zeros(m)
        return State(
            market=market,
            budget=budget,
            targets=targets,
            radius=radius,
            floor=_FLOOR * highest,
            prices=prices,
            center=prices,
            gains=np.full(m, 0.8 if self.start_prices is None else 0.3),
            signs=zero,
            owed=zero,
            swings=np.zeros((4, m)),
        )

    def step(self, state: State) -> Step | None:
        prices = tuple(min(PRICE_CODE_MAX, round(p)) for p in state.prices.tolist())
        query = self._question(state)
        if query is not None:
            share = QUERY_SHARES[query]
            return Step(
                query, prices, gaussian(queries.shifts(state.market, query), state.rho * share)
            )
        counting, weights = state.rounds - self._steering, _weights()
        if counting == len(weights):
            return None
        noise = self._noise(state.market, state.rho, state.rounds)
        return Step("demand", prices, noise, weights[counting] if counting >= 0 else 0)

    def observe(self, state: State, release: Release) -> State:
        noise = _scale(release)
        query = release.step.query
        if query != "demand":
            state = replace(state, asked=state.asked + 1)
        if query == "value":
            return replace(state, value=release)
        if query == "gauge":
            model = response.from_gauge(
                state.market, state.prices, state.floor, release.answer, noise
            )
            return replace(state, response=model)
        if query == "curvature":
            assert state.response is not None
            model = response.with_curvature(state.response, state.market, release.answer, noise)
            return replace(state, response=model)
        counting = state.rounds - self._steering
        if counting == 0 and state.value is not None:
            state = replace(state, targets=_overshoot(state, release))
        if counting == TAIL // 2 and not state.market.divisible:
            state = self._aimed(state, noise / state.market.supply_code, counting)
        loads = np.array(release.answer, dtype=np.float64) / state.market.supply_code
        excess = loads - state.targets
        noise /= state.market.supply_code
        state = replace(state, rounds=state.rounds + 1)
        if state.rounds <= self._approach:
            return _approached(state, excess, noise)
        if counting >= 0:
            state = replace(state, swings=state.swings + _swing(release, loads))
        state = _estimated(state, excess, noise)
        if counting < 0:
            return state
        return _counted(state, excess, counting)

    @property
    def _approach(self) -> int:
        return APPROACH if self.start_prices is None else WARM_APPROACH

    @property
    def _steering(self) -> int:
        """How many rounds come before the first one that counts."""
        return self._approach + BRIDGE

    def _question(self, state: State) -> Query | None:
        """What to ask before the next round, if anything."""
        questions: list[Query] = []
        if state.rounds >= self._approach:
            questions.append("gauge")
        if state.rounds >= self._steering:
            questions.append("gauge")
            if len(state.prices) <= MATRIX_MAX:
                questions.append("curvature")
            if state.market.divisible:
                questions.append("value")
        return questions[state.asked] if state.asked < len(questions) else None

    def _noise(self, market: Market, rho: float, round: int) -> Gaussian | NoNoise:
        """The noise of a demand release. Rounds that count split their rho by weight."""
        approach = APPROACH_SHARE if self.start_prices is None else WARM_APPROACH_SHARE
        if round < self._approach:
            share = approach / self._approach
        elif round < self._steering:
            share = BRIDGE_SHARE / BRIDGE
        else:
            weights = _weights()
            asked = math.fsum([*QUERY_SHARES.values(), QUERY_SHARES["gauge"]])
            rest = 1.0 - approach - BRIDGE_SHARE - asked
            share = rest * weights[round - self._steering] / sum(weights)
        return gaussian(queries.shifts(market, "demand"), rho * share)

    def _targets(
        self, market: Market, budget: Budget, spread: float = _COIN_SPREAD
    ) -> tuple[FloatArray, float]:
        """The load to aim for, per resource, and the radius of the averaged loads."""
        outlook, tail = self.outlook(market, budget), tail_bounds.tail(market, budget)
        whole = outlook.weight * market.supply_code
        radius = tail_bounds.noise_radius(outlook, tail) / whole
        granted, supply = tail_bounds.granted_noise(market, budget), market.supply_code
        bound = tail_bounds.release_radius(granted, tail)
        if market.divisible:
            targets = [1.0 - radius] * len(market.resources)
        else:
            clear = landing(market, budget)
            targets = [
                indivisible_target(outlook, granted, bound, cap, supply, clear, spread)
                for cap in market.cap_codes
            ]
        # Coins alone are no reason to overshoot: thinning would take away more than they need.
        certified = 1.0 - (radius if market.divisible else bound / supply)
        if certified < _WASTE:
            targets = [max(1.0, _SCALED * (1.0 - target)) for target in targets]
        return np.maximum(np.array(targets), _LEAST), radius

    def _aimed(self, state: State, noise: float, counting: int) -> State:
        """The state with targets corrected for how much coins will decide.

        Coins decide for agents who take their option in some rounds and not in others. The swings
        of prices, and of loads beyond their noise, show how much load that is: if a load swings
        with standard deviation s, coins decide about s/2 of it.
        """
        assert state.response is not None
        mean, squares = state.swings[0::2] / counting, state.swings[1::2] / counting
        loads, prices = np.maximum(squares - mean * mean, 0.0)
        shares = (state.center / math.fsum(state.center.tolist())).tolist()
        swing = math.fsum(s * v for s, v in zip(shares, loads.tolist(), strict=True))
        turn = math.fsum(s * v for s, v in zip(shares, prices.tolist(), strict=True))
        stiffness = state.response.common + float(np.max(state.response.diagonal))
        spread = max(
            math.sqrt(max(0.0, swing - noise * noise)),
            min(1.0, stiffness * math.sqrt(turn / state.market.bundle_size)),
        )
        least = _COIN_SPREAD_MIN if noise > 0.0 else _COIN_SPREAD_EXACT
        targets, _ = self._targets(state.market, state.budget, max(least, 0.6 * spread))
        done = sum(_weights()[:counting])
        return replace(state, targets=targets, owed=state.owed + done * (state.targets - targets))


def _swing(release: Release, loads: FloatArray) -> FloatArray:
    prices = np.array([portable_math.log(float(max(1, p))) for p in release.step.prices])
    return np.stack([loads, loads * loads, prices, prices * prices])


def landing(market: Market, budget: Budget) -> float:
    """How many deviations the load after coins should stay below its bound."""
    if budget.epsilon == math.inf:
        return _LANDING_EXACT
    return _LANDING_DENSE if 2 * market.bundle_size > len(market.resources) else _LANDING


def indivisible_target(
    outlook: Outlook,
    granted: Gaussian | NoNoise,
    bound: float,
    cap: int,
    supply: float,
    landing: float,
    spread: float = _COIN_SPREAD,
) -> float:
    """The load to aim for so that what coins grant of an indivisible good is certified to fit.

    `bound` is the radius of the granted release. `bound`, `cap` and `supply` are in codes,
    `landing` is in deviations of noise and coins, and `spread` is the part of the load that coins
    decide.
    """
    scale = granted.scale / supply if isinstance(granted, Gaussian) else 0.0
    whole = outlook.weight * supply
    variance = outlook.variance / (whole * whole) + scale * scale
    return 1.0 - bound / supply - landing * math.sqrt(variance + spread * cap / supply)


def _weights() -> list[int]:
    weights, last = [WEIGHT] * TAIL, float(WEIGHT)
    for _ in range(SETTLE):
        last *= FALL
        weights.append(round(last))
    return weights


def _scale(release: Release) -> float:
    noise = release.step.noise
    return noise.scale if isinstance(noise, Gaussian) else 0.0


def _approached(state: State, excess: FloatArray, noise: float) -> State:
    """The state after a round of the approach."""
    sure = np.sign(excess) * np.maximum(np.abs(excess) - _DOUBT * noise, 0.0)
    error = _pressing(state, np.clip(sure / state.targets, -1.0, 1.0))
    signs = np.sign(error)
    turned = signs * state.signs
    gains = np.where(turned < 0.0, 0.5 * state.gains, state.gains)
    gains = np.where(turned > 0.0, np.minimum(1.4 * gains, 1.5), gains)
    prices = np.maximum(
        state.prices * portable_math.exp(np.clip(gains * error, -1.0, 1.0)), state.floor
    )
    signs = np.where(signs != 0.0, signs, state.signs)
    return replace(state, prices=prices, center=prices, gains=gains, signs=signs)


def _estimated(state: State, excess: FloatArray, noise: float) -> State:
    """The state after a round's loads have moved the estimate of the center.

    Let e be the error of the center, with prior N(0, PRIOR), and let loads be L = target +
    G (e - drift) plus noise. Then the posterior mean of e solves a regularised least-squares
    problem.
    """
    assert state.response is not None
    precision = 1.0 / (noise * noise + _ROUGH * _ROUGH)
    known = _MEMORY * state.known + precision
    drift = np.array([portable_math.log(r) for r in (state.prices / state.center).tolist()])
    news = _pressing(state, excess) + state.response.falls(state.prices, drift)
    moves = state.response.moves(state.prices, news, 1.0 / (_PRIOR * known))
    center = _turned(state.center, np.clip(moves * (precision / known), -0.7, 0.7), state.floor)
    return replace(state, known=known, center=center, prices=center)


def _counted(state: State, excess: FloatArray, counting: int) -> State:
    """The state after a round that counts, with prices that make up for what is owed."""
    assert state.response is not None
    weights = _weights()
    owed = state.owed + weights[counting] * excess
    # A resource at the price floor owes nothing for its spare supply.
    owed = np.where((state.center <= state.floor) & (owed < 0.0), 0.0, owed)
    left = sum(weights[counting + 1 :])
    if left == 0:
        return replace(state, owed=owed)
    moves = state.response.moves(state.center, owed / left, _CAUTION)
    prices = _turned(state.center, np.clip(moves, -0.5, 0.5), state.floor)
    return replace(state, prices=prices, owed=owed)


def _overshoot(state: State, release: Release) -> FloatArray:
    """Targets of divisible goods: a larger load, if it is worth more after scaling.

    With r the certificate's radius, a load L >= 1 - r is scaled by 1 / (L + r). The dual value D at
    these prices bounds the optimum, so the welfare at load 1 - r is about D - r sum P. More load
    adds welfare at the rate sum P at first, and less as prices fall.
    """
    assert state.value is not None and state.response is not None
    prices, supply = [float(p) for p in release.step.prices], state.market.supply_code
    total = math.fsum(prices) * supply
    slack = math.fsum(p * (supply - a) for p, a in zip(prices, release.answer, strict=True))
    value = float(state.value.answer[0] * PRICE_UNITS_PER_VALUE_CODE)
    doubt = _scale(state.value) * PRICE_UNITS_PER_VALUE_CODE
    noise = _scale(release)
    squares = math.fsum(p * p for p in prices) * noise * noise
    dual = value + slack + 2.0 * math.sqrt(doubt * doubt + squares)
    least = 1.0 - state.radius
    welfare = dual - state.radius * total
    if welfare <= 0.0 or total <= 0.0 or least < _WASTE:
        return state.targets
    rate, stiffness = min(total / welfare, 1.0 / least), max(state.response.common, 0.1)

    def worth(load: float) -> float:
        more = load - least
        return (1.0 + rate * more * (1.0 - more / stiffness)) / (load + state.radius)

    loads = [least + i * (_OVERSHOOT - least) / 32.0 for i in range(33)]
    best = max(loads, key=worth)
    return state.targets if worth(best) <= worth(least) else np.full(len(prices), best)


def _pressing(state: State, excess: FloatArray) -> FloatArray:
    """The excess, with 0 for resources that have spare supply at the price floor."""
    return np.where((state.prices <= state.floor) & (excess < 0.0), 0.0, excess)


def _turned(prices: FloatArray, moves: FloatArray, floor: float) -> FloatArray:
    """Prices after moves in their logarithms. Only the mean of the moves changes their sum.

    Otherwise large moves in opposite directions would raise the sum, and with it all costs.
    """
    moved = prices * portable_math.exp(moves)
    before = math.fsum(prices.tolist())
    common = math.fsum((prices * moves).tolist()) / before
    ratio = portable_math.exp(np.array([common])) * before / math.fsum(moved.tolist())
    return np.maximum(moved * ratio, floor)
