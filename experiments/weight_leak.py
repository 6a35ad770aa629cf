"""The weight leak: a coalition reads the last agent's record out of Algorithm 1 as printed.

Huang & Zhu (ICALP 2019), Algorithm 1, hands agent i the output xbar_i = sum_t eta^t x_i^t /
eta_sum. The step sizes eta^t are exact functions of everybody's demand, and no billboard shows
them. All agents except one pool what they know: the posted prices, their own records (so their own
x_i^t) and their own outputs. That is a linear system for the eta^t. A round with eta^t < alpha / b
reveals the total demand b + alpha / eta^t. Subtracting the coalition's own demand leaves the last
agent's.

The same coalition then faces jdpack, where every number that shapes an output is on the billboard
and got its noise first. To run it: `python experiments/weight_leak.py`, or `make experiments`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jdpack import Billboard, Market, MwuAdaptive, solve
from jdpack.door import statistic
from jdpack.engines.memory import MemoryEngine
from jdpack.market.grid import DEMAND_CODE_MAX
from jdpack.records.encode import encode
from jdpack.records.tables import array_pieces

Floats = NDArray[np.float64]

AGENTS, SUPPLY, ALPHA, EPSILON, DELTA = 800, 80.0, 0.15, 1.0, 1e-6
CAP = 1.0  # the paper's: every demand and value is in [0, 1]


@dataclass(frozen=True)
class People:
    """Values and demands; the others attack the agent in the last row."""

    values: Floats
    demands: Floats

    @property
    def coalition(self) -> People:
        return People(self.values[:-1], self.demands[:-1])


def make_people(last_demand: float, agents: int = AGENTS, seed: int = 2019) -> People:
    """Two resources, similar values per unit, and a last agent that values its bundle most."""
    rng = np.random.default_rng(seed)
    demands = np.stack([rng.uniform(0.6, 1.0, agents), rng.uniform(0.3, 0.7, agents)], axis=1)
    values = rng.uniform(0.6, 0.8, agents) * demands.mean(axis=1)
    demands[-1], values[-1] = (last_demand, 0.0), CAP
    return People(values, demands)


# --- Algorithm 1 as printed ---------------------------------------------------------------


@dataclass(frozen=True)
class Printed:
    """A run of Algorithm 1. `prices` are on its billboard; agent i also sees `outputs[i]`."""

    prices: Floats
    outputs: Floats
    hidden_steps: Floats
    """The step sizes eta^t, for comparison. No agent sees them."""


def printed_algorithm(
    people: People, supply: float, alpha: float, epsilon: float, delta: float, seed: int
) -> Printed:
    """Algorithm 1 line by line, with |gradient| in line 4 and the counter of line 1 exact.

    Line 4 uses T, the number of rounds, before line 8 defines it: we take the bound on T that
    the paper's section on time complexity proves.
    """
    rng = np.random.default_rng(seed)
    n, m = people.demands.shape
    p_max, eta_sum = 2.0 * n / supply, math.log(m + 1) / (alpha * supply)
    most_rounds = math.ceil((3 * m + 1) * math.log(m + 1) / alpha**2)
    price = np.full(m + 1, p_max / (m + 1))
    prices, steps, outputs = [], [], np.zeros(n)
    while sum(steps) < eta_sum:  # line 1
        taken = best_responses(people, price[:-1])  # line 2
        gradient = supply - people.demands[taken].sum(axis=0)  # line 3
        eta = min(alpha / supply, alpha / float(np.abs(gradient).max()))  # line 4
        sigma = math.sqrt(m * eta_sum * eta * math.log(most_rounds * m / delta)) / epsilon
        if sigma > alpha:
            raise ValueError(f"the paper's noise needs sigma <= alpha, but sigma is {sigma:.3g}")
        noise = truncated_laplace(rng, sigma, 1.0 - alpha, m)
        exponent = np.append(eta * gradient + noise, 0.0)  # line 5
        prices.append(price[:-1].copy())
        steps.append(eta)
        outputs += eta * taken
        price = price * np.exp(-exponent)  # line 6
        price *= p_max / price.sum()  # line 7
    return Printed(np.array(prices), outputs / eta_sum, np.array(steps))


def best_responses(people: People, price: Floats) -> NDArray[np.bool_]:
    """Who buys: value >= cost."""
    return (people.demands * price).sum(axis=1) <= people.values


def truncated_laplace(rng: np.random.Generator, scale: float, bound: float, count: int) -> Floats:
    """Laplace noise conditioned on [-bound, bound], by inversion."""
    size = -scale * np.log1p(rng.random(count) * math.expm1(-bound / scale))
    return np.where(rng.random(count) < 0.5, -size, size)


# --- the attack on it ---------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """What the coalition reads in one round: the last agent's demand, or 0 if it did not buy."""

    round: int
    resource: int
    demand: float


def solve_for_steps(coalition: People, prices: Floats, outputs: Floats, eta_sum: float) -> Floats:
    """The step sizes that the coalition's outputs determine; NaN for the other rounds.

    The system is sum_t x_i^t eta^t = eta_sum xbar_i, with one row per member. Rounds in which every
    member does the same have one column, and only their sum can be known.
    """
    bought = np.array([best_responses(coalition, p) for p in prices])
    patterns, column, shared = np.unique(bought, axis=0, return_inverse=True, return_counts=True)
    sums = row_reduce(np.column_stack([patterns.T.astype(np.float64), outputs * eta_sum]))
    return np.where(shared == 1, sums, np.nan)[column]


def row_reduce(system: Floats) -> Floats:
    """Gauss-Jordan elimination; the unknowns that the system determines, NaN for the others."""
    unknowns, pivots = system.shape[1] - 1, []
    for c in range(unknowns):
        r = len(pivots)
        best = r + int(np.abs(system[r:, c]).argmax()) if r < len(system) else r
        if r == len(system) or abs(system[best, c]) < 1e-9:
            continue  # a free unknown
        system[[r, best]] = system[[best, r]]
        system[r] /= system[r, c]
        others = np.flatnonzero(system[:, c])
        others = others[others != r]
        system[others] -= system[others, c : c + 1] * system[r]
        pivots.append(c)
    known = np.full(unknowns, np.nan)
    free = np.setdiff1d(np.arange(unknowns), pivots)
    for r, c in enumerate(pivots):
        if np.all(np.abs(system[r, free]) < 1e-9):
            known[c] = system[r, -1]
    return known


def attack_printed(
    coalition: People, prices: Floats, outputs: Floats, supply: float, alpha: float
) -> list[Reading]:
    """Everything the coalition reads about the last agent, whose row it never sees."""
    m = prices.shape[1]
    steps = solve_for_steps(coalition, prices, outputs, math.log(m + 1) / (alpha * supply))
    readings = []
    for t, (price, eta) in enumerate(zip(prices, steps, strict=True)):
        if not eta < alpha / supply * (1.0 - 1e-9):  # NaN, or capped, which only says D <= 2b
            continue
        # |b - D_j| = alpha / eta > b for some j, and demand is not negative: D_j = b + alpha / eta.
        largest = supply + alpha / eta
        own = coalition.demands[best_responses(coalition, price)].sum(axis=0)
        j = int(own.argmax())
        if np.delete(own, j).max(initial=-math.inf) + CAP < own[j]:  # then j is certain
            readings.append(Reading(t, j, float(largest - own[j])))
    return readings


def guess_printed(people: People, seed: int) -> float:
    """The coalition's estimate of the last agent's demand for the first resource."""
    run = printed_algorithm(people, SUPPLY, ALPHA, EPSILON, DELTA, seed)
    readings = attack_printed(people.coalition, run.prices, run.outputs[:-1], SUPPLY, ALPHA)
    return max((r.demand for r in readings if r.resource == 0), default=0.0)


# --- the same coalition against jdpack ----------------------------------------------------


def make_market(agents: int, supply: float = SUPPLY) -> Market:
    """The same market for jdpack."""
    return Market(
        supply=[supply, supply], max_demand=CAP, max_value=CAP, agents=agents, divisible=True
    )


def run_ours(people: People, seed: int, epsilon: float = EPSILON) -> Billboard:
    """The billboard of a seeded jdpack run, with as much noise as a private run."""
    return solve(
        make_market(len(people.values)),
        values=people.values,
        demands=people.demands,
        epsilon=epsilon,
        delta=DELTA,
        policy=MwuAdaptive(alpha=ALPHA),
        seed=seed,
        threads=1,  # faster on one core with so few agents
    ).billboard


class Coalition:
    """It knows everything except the last demand, and computes what follows from each guess."""

    def __init__(self, coalition: People) -> None:
        self.people = coalition
        self.market = make_market(len(coalition.values) + 1)
        self.engines = {demand: self._engine(demand) for demand in (0.0, CAP)}

    def _engine(self, last_demand: float) -> MemoryEngine:
        values = np.append(self.people.values, CAP)
        demands = np.vstack([self.people.demands, [last_demand, 0.0]])
        batches = array_pieces(self.market, values, demands)
        return MemoryEngine(encode(self.market, batches), threads=1)

    def expected(self, board: Billboard, last_demand: float) -> list[tuple[int, ...]]:
        """The exact answer to every query on the billboard, for this last demand."""
        engine, seed = self.engines[last_demand], board.seed
        assert seed is not None
        return [statistic(r.step, engine, board, seed) for r in board.releases]

    def evidence(self, board: Billboard) -> float:
        """The log-likelihood of a demand of the cap, minus that of a demand of 0.

        Prices, weights and noise scales follow from earlier lines, and so do all outputs of the
        coalition. By Neyman and Pearson no test of the two beats the sign of this.
        """
        total = 0.0
        for release, none, full in zip(
            board.releases, self.expected(board, 0.0), self.expected(board, CAP), strict=True
        ):
            variance = release.step.noise.scales[0] ** 2
            for answer, a, b in zip(release.answer, none, full, strict=True):
                total += ((answer - a) ** 2 - (answer - b) ** 2) / (2.0 * variance)
        return total

    def read_weights(self, board: Billboard) -> list[float]:
        """The attack on the printed algorithm: the largest demand from each small step size."""
        errors, expected = [], self.expected(board, 0.0)
        for release, answer in zip(board.releases, expected, strict=True):
            if release.step.query == "scale" and release.answer[0] > min(self.market.supply_codes):
                errors.append((release.answer[0] - answer[0]) / DEMAND_CODE_MAX)
        return errors

    def read_demands(self, board: Billboard) -> tuple[float, float]:
        """The best average over all rounds of answer minus own demand, and its deviation.

        Both in caps.
        """
        weighted, weights = 0.0, 0.0
        for release, own in zip(board.releases, self.expected(board, 0.0), strict=True):
            if release.step.query == "demand":
                precision = release.step.noise.scales[0] ** -2
                weighted += precision * (release.answer[0] - own[0])
                weights += precision
        return weighted / weights / DEMAND_CODE_MAX, weights**-0.5 / DEMAND_CODE_MAX


# --- how often the attacks are right ------------------------------------------------------


def success_printed(runs: int) -> int:
    """In how many runs the coalition can tell a demand of 0 from the cap."""
    worlds = [make_people(0.0), make_people(CAP)]
    right = 0
    for seed in range(runs):
        guess = guess_printed(worlds[seed % 2], seed)
        right += (guess > CAP / 2) == bool(seed % 2)
    return right


def success_ours(runs: int, epsilon: float = EPSILON) -> int:
    """The same against jdpack, by the best possible test."""
    worlds = [make_people(0.0), make_people(CAP)]
    coalition = Coalition(worlds[0].coalition)
    right = 0
    for seed in range(runs):
        evidence = coalition.evidence(run_ours(worlds[seed % 2], seed, epsilon))
        right += (evidence > 0.0) == bool(seed % 2)
    return right


def most_success(epsilon: float, delta: float) -> float:
    """Under (epsilon, delta)-DP, no test of two equally likely neighbours is right more often."""
    return (math.exp(epsilon) + delta) / (math.exp(epsilon) + 1.0)


def most_success_gaussian(rho: float) -> float:
    """The same for Gaussian noise of total cost rho: Phi(mu / 2), mu = sqrt(2 rho)."""
    return 0.5 * (1.0 + math.erf(math.sqrt(2.0 * rho) / 2.0 / math.sqrt(2.0)))


def wilson(right: int, runs: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval for a proportion; 95% with the default z."""
    p, shrink = right / runs, 1.0 + z * z / runs
    middle = (p + z * z / (2.0 * runs)) / shrink
    half = z * math.sqrt(p * (1.0 - p) / runs + z * z / (4.0 * runs * runs)) / shrink
    return middle - half, middle + half


def main(runs: int = 200) -> None:
    """Print the table."""
    secret = 0.7319
    people = make_people(secret)
    run = printed_algorithm(people, SUPPLY, ALPHA, EPSILON, DELTA, seed=1)
    readings = attack_printed(people.coalition, run.prices, run.outputs[:-1], SUPPLY, ALPHA)
    print(
        f"{AGENTS} agents, 2 resources of supply {SUPPLY:g}, epsilon {EPSILON:g}, delta {DELTA:g}"
    )
    print(f"the last agent demands {secret} of the first resource; all the others collude\n")
    print(f"Algorithm 1 as printed: {len(run.prices)} rounds, {len(readings)} of them read")
    print("  round   demand read    error")
    for r in readings[:5]:
        bought = best_responses(people, run.prices[r.round])[-1]
        error = abs(r.demand - secret * bought)
        print(f"  {r.round + 1:5}   {r.demand:.9f}   {error:7.0e}   {'bought' if bought else ''}")

    board = run_ours(people, seed=1)
    coalition = Coalition(people.coalition)
    errors = np.abs(coalition.read_weights(board))
    pooled, deviation = coalition.read_demands(board)
    print(f"\njdpack, mwu-adaptive: {sum(1 for _ in board.rounds)} rounds")
    print(f"  from one step size    off by {np.median(errors):.0f} times the cap (median)")
    print(f"  from all the answers  {pooled:.1f} +- {deviation:.1f}, against {secret} in truth")

    print(f"\ndemand 0 or the cap? right in {runs} runs")
    rows = [("as printed", success_printed(runs)), ("jdpack", success_ours(runs))]
    for name, right in rows:
        low, high = wilson(right, runs)
        print(f"  {name:11} {right / runs:6.1%}   95% interval {low:.1%} to {high:.1%}")
    rho = board.header.budget.rho
    print(f"  at most     {most_success(EPSILON, DELTA):6.1%}   for any (epsilon, delta)-DP method")
    print(f"  at most     {most_success_gaussian(rho):6.1%}   for Gaussian noise of this budget")


if __name__ == "__main__":
    main()
