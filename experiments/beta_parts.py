"""What it brings to split beta by what noise costs, and not evenly over the resources.

The certificate may fail with probability beta, and every resource has a part of that
(`jdpack.privacy.tail_bounds`). Equal parts are right where all resources bind alike. Where few do,
the others hardly need theirs. Each market is run with both splits and the same seeds. The margin is
what the certificate adds to observed loads, weighted by what prices explain of the optimum. The
table goes to stdout; with the defaults it takes a minute of CPU time.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
import scipy.sparse

import families
from families import Instance, Rng
from jdpack import Newton, solve
from jdpack.protocol.bounds import load_bounds


def some_bind(m: int, width: int, binding: int) -> Callable[[int, Rng], Instance]:
    """Agents ask for `width` of m resources, of which the first few bind."""

    def make(n: int, rng: Rng) -> Instance:
        chosen = np.argsort(rng.random((n, m)), axis=1)[:, :width]
        rows = np.repeat(np.arange(n), width)
        amounts = rng.uniform(0.3, 1.0, n * width)
        demands = scipy.sparse.csr_matrix((amounts, (rows, chosen.ravel())), shape=(n, m))
        times = np.where(np.arange(m) < binding, 0.5, 1.3)
        return Instance(rng.random(n), demands, times * np.asarray(demands.sum(axis=0))[0], width)

    return make


MARKETS = {
    "3 of 100 resources, 2 bind": some_bind(100, 3, 2),
    "3 of 100 resources, 10 bind": some_bind(100, 3, 10),
    "1 of 10 resources, 1 binds": some_bind(10, 1, 1),
} | {name: families.FAMILIES[name] for name in ("few-binding", "zipf", "mixed", "sparse")}


def measure(agents: Instance, *, divisible: bool, epsilon: float, parts: str, seeds: int) -> tuple:
    """The mean loss and margin."""
    pi, found = agents.price_shares(), []
    for seed in range(seeds):
        run = solve(
            agents.market(divisible=divisible), **agents.solve_input(), epsilon=epsilon,
            delta=1e-8, seed=seed, policy=Newton(beta_parts=parts), force=True,
        )  # fmt: skip
        board = run.billboard
        counted = [r for r in board.releases if r.step.weight]
        observed = sum(r.step.weight * np.array(r.answer, float) for r in counted) / board.weight
        added = np.array(load_bounds(board)) - observed / board.header.market.supply_codes
        found.append((1.0 - run.welfare / agents.optimum().value, float(pi @ added / pi.sum())))
    return tuple(np.mean(found, axis=0))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n", type=float, default=40_000, help="agents")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--markets", nargs="+", default=list(MARKETS), choices=list(MARKETS))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| market | goods | margin, even | by worth | times | loss, even | by worth | times |")
    print("|---|---|---|---|---|---|---|---|")
    for name in given.markets:
        agents = MARKETS[name](int(given.n), np.random.default_rng(1))
        for divisible in (True, False):
            rows = [
                measure(
                    agents, divisible=divisible, epsilon=given.epsilon, parts=parts,
                    seeds=given.seeds,
                )
                for parts in ("even", "by worth")
            ]  # fmt: skip
            (loss, margin), (less, smaller) = rows
            goods = "divisible" if divisible else "indivisible"
            print(
                f"| {name} | {goods} | {margin:.2%} | {smaller:.2%} | {smaller / margin:.3f} "
                f"| {loss:.2%} | {less:.2%} | {less / loss:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
