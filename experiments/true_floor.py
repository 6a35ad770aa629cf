"""How good F is: the least loss of any noise scales, without the first-order approximation.

F counts what small margins cost at today's prices. Large margins change the prices, and a resource
whose slack is smaller than its margin begins to bind. The exact loss of margins z sigma_j is
1 - V(b (1 - z sigma)) / V(b), with V the optimum as a function of supply. F* is the least of that
over all scales sigma that cost at most rho: where a loss misses an aim in F, compare it with F*.
Both are about one release with the whole budget, so neither is a lower bound for everything that
an algorithm might do.

V is concave, and every vector y of prices bounds it from above: V(b') <= y b' + r(y), where r(y) is
what the agents keep at prices y. Take a mixture of such vectors. Let pi be the mixture of their
y b / V, and o <= 0 that of their 1 - (y b + r(y)) / V. Then the least loss is at least
o + z h(pi)^(3/2) / sqrt(2 rho); `floors` defines h. This is concave in the mixture, so we maximise
it, put its best scales into the linear program, and add the prices that come out, until both sides
are close. The result is an interval that contains F*.

The lower end is for margins of at most the whole supply. Where supplies span decades it can be
better to give up the smallest: noise far above a supply costs no more than that supply. Then the
upper end, which is always reached by some scales, may fall below the other; both are set to it.

Results go to true_floor.json as they come. The table goes to stdout, with losses from loss.json.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.optimize

import floors
from families import FAMILIES, SIZES, Instance
from jdpack import JdpackError
from jdpack.curator.optimum import optimum
from loss import (
    DELTA,
    INSTANCE_SEED,
    LARGEST,
    Cell,
    Store,
    head,
    line,
    mean_loss,
    numbers,
    on_file,
    say,
)

CLOSE, MOST = 0.03, 40
_LEAST = 0.01  # of the average weight, for a resource that prices do not weigh yet


@dataclass(frozen=True)
class Interval:
    """F* is at least `low` and at most `high`."""

    low: float
    high: float
    solved: int
    """Linear programs."""


def true_floor(instance: Instance, epsilon: float, delta: float = DELTA) -> Interval:
    """The interval that contains F*, narrower than CLOSE of itself unless MOST programs end it."""
    supply, best = instance.supply, instance.optimum()
    times = floors.factor(len(supply), epsilon, delta)
    weights, offsets = [best.prices * supply / best.value], [0.0]
    low, high, mixture = 0.0, 1.0, np.ones(1)
    for solved in range(1, MOST + 1):  # noqa: B007
        mixture, found = _mixed(instance, np.array(weights), np.array(offsets), times, mixture)
        low = max(low, found)
        pi = mixture @ np.array(weights)
        sigma = instance.best_shape(pi + _LEAST * pi.mean())[1]
        less = supply * (1.0 - np.minimum(times * sigma, 1.0 - 1e-9))
        new = optimum(instance.values, instance.demands, less, instance.agents, tolerance=1e-6)
        high = min(high, 1.0 - new.value / best.value)
        if high - low <= CLOSE * high:
            low = min(low, high)  # below it if a resource is given up
            break
        weights.append(new.prices * supply / best.value)
        offsets.append(1.0 - (new.bound + float(new.prices @ (supply - less))) / best.value)
        mixture = np.append(mixture, 0.0)
    return Interval(low, high, solved)


def floor_of(instance: Instance, epsilon: float) -> float:
    """The upper end of the interval that contains F*. It is 1 if margins leave nothing."""
    try:
        return true_floor(instance, epsilon).high
    except JdpackError:  # the optimum of what margins leave is too close to 0 to be found
        return 1.0


def _mixed(
    instance: Instance, weights: np.ndarray, offsets: np.ndarray, times: float, start: np.ndarray
) -> tuple[np.ndarray, float]:
    """The mixture with the largest bound, and that bound."""

    def negative(mixture: np.ndarray) -> tuple[float, np.ndarray]:
        loss, sigma = instance.best_shape(mixture @ weights)
        known = np.isfinite(sigma)
        sigma = np.where(known, sigma, 10.0 * sigma[known].max(initial=0.0))
        return -(mixture @ offsets + times * loss), -(offsets + times * (weights @ sigma))

    count = len(offsets)
    start = 0.8 * start + 0.2 / count
    found = scipy.optimize.minimize(
        negative,
        start / start.sum(),
        jac=True,
        bounds=[(0.0, 1.0)] * count,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1.0, "jac": np.ones_like},
        method="SLSQP",
        options={"maxiter": 100},
    )
    mixture = np.maximum(found.x, 0.0)
    mixture /= mixture.sum()
    return mixture, -negative(mixture)[0]


HEAD = ["family", "n", "epsilon", "M", "F", "F*, at least", "F*, at most", "divisible loss / F",
        "/ F*", "indivisible loss / F", "/ F*"]  # fmt: skip


def main() -> None:
    """Compute what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--families", default=",".join(FAMILIES), help="names, with commas")
    parser.add_argument("--n", type=numbers, default=[1e4, 1e5], help="numbers of agents")
    parser.add_argument("--epsilon", type=numbers, default=[0.3, 1.0, 3.0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the files go")
    given = parser.parse_args()
    store, losses = Store(given.results / "true_floor.json"), on_file(given.results / "loss.json")
    print(head(HEAD), flush=True)
    for family in given.families.split(","):
        for n in SIZES.get(family, [int(n) for n in given.n]):
            instance = FAMILIES[family](n, np.random.default_rng(INSTANCE_SEED))
            pi = instance.price_shares()
            for epsilon in given.epsilon:
                margin = instance.margin(epsilon, DELTA)
                first = instance.floor(pi, epsilon, DELTA)
                if first >= LARGEST:
                    continue
                key = f"{family} n={n} epsilon={epsilon:g}"
                if key not in store.data:
                    found = true_floor(instance, epsilon)
                    say(f"{key}: {found}")
                    store.put(key, [found.low, found.high])
                low, high = store.data[key]
                ratios = []
                for divisible in (True, False):
                    runs = losses.get(Cell(family, n, epsilon, divisible, "default"))
                    loss = mean_loss(runs) if runs else math.nan
                    exact = high if high - low <= 2.0 * CLOSE * high else math.inf  # not found
                    ratios += [
                        f"{loss / x:.2f}" if runs and x < 1.0 else "" for x in (first, exact)
                    ]
                texts = [f"{x:.2%}" for x in (margin, first, low, high)]
                print(line([family, f"{n:,}", f"{epsilon:g}", *texts, *ratios]), flush=True)


if __name__ == "__main__":
    main()
