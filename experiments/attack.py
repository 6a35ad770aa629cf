"""4,999 people read off the record of the 5,000th; then they try the same against jdpack.

The records are invented. Everybody except the last person pools what they know: their own records,
and what they got. Run it with `python experiments/attack.py`; it needs the extra "experiments".
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

import jdpack

Floats = NDArray[np.float64]

AGENTS, SUPPLY = 5000, 1000.0
VALUE, DEMAND = 9.5, 0.7321  # the last person's secret
MARKET = jdpack.Market(
    supply={"hours": SUPPLY}, max_demand=1.0, max_value=10.0, agents=AGENTS, divisible=True
)


@dataclass(frozen=True)
class Records:
    """What everybody asks for. The last row is the person whom all others attack."""

    values: Floats
    demands: Floats


def invented(value: float = VALUE, demand: float = DEMAND) -> Records:
    """Random people, and the last one with this record."""
    rng = np.random.default_rng(8)
    values, demands = rng.uniform(0, 10, AGENTS), rng.uniform(0.2, 1, AGENTS)
    values[-1], demands[-1] = value, demand
    return Records(values, demands)


def by_highs(records: Records) -> tuple[Floats, float]:
    """The optimal shares and the price of an hour, by HiGHS."""
    found = linprog(
        -records.values, A_ub=records.demands[None], b_ub=[SUPPLY], bounds=(0, 1), method="highs"
    )
    return found.x, -float(found.ineqlin.marginals[0])


def read_from_highs(value: float, demand: float) -> tuple[float, float]:
    """What the coalition reads off two optimal allocations: the last person's value and demand.

    The optimum uses up the supply, so what the others did not get, the last person got. If all
    others lie, the last person is the one who gets only a part, so the price tells the value.
    """
    records = invented(value, demand)
    shares, _ = by_highs(records)
    read = SUPPLY - float(shares[:-1] @ records.demands[:-1])
    lies = Records(np.append(np.full(AGENTS - 1, 10.0), value), np.full(AGENTS, 0.2))
    lies.demands[-1] = demand
    _, price = by_highs(lies)
    return price * read, read


def read_from_jdpack(demand: float, seed: int) -> float:
    """About the best estimate of the last person's demand that all others can make together.

    They know what they themselves take at the prices of every round. The rest of each noisy sum is
    noise, plus the last person's demand. They average it, with more weight where noise is smaller.
    """
    records = invented(demand=demand)
    board = jdpack.solve(
        MARKET,
        values=records.values,
        demands=records.demands[:, None],
        epsilon=1.0,
        delta=1e-8,
        seed=seed,  # so that the script always says the same; a real run has no seed
    ).billboard
    codes = np.ceil(records.demands[:-1] / MARKET.unit_sizes[0])
    worth = np.floor(records.values[:-1] / MARKET.value_step) * 2**20
    asked = [line for line in board.releases if line.step.query == "demand"]
    theirs = [codes[codes * line.step.prices[0] <= worth].sum() for line in asked]
    left = [line.answer[0] - known for line, known in zip(asked, theirs, strict=True)]
    weights = [line.step.noise.scales[0] ** -2.0 for line in asked]
    return float(MARKET.unit_sizes[0] * np.average(left, weights=weights))


def main() -> None:
    """Attack both, and say what came out."""
    value, demand = read_from_highs(VALUE, DEMAND)
    print(f"the secret        value {VALUE:.4f}, demand {DEMAND:.4f}")
    print(f"read from HiGHS   value {value:.4f}, demand {demand:.4f}")
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    reads = np.array([read_from_jdpack(DEMAND, seed) for seed in range(runs)])
    shown = ", ".join(f"{read:.1f}" for read in reads)
    print(f"read from jdpack  demand {shown}")
    print(
        f"                  off by {np.abs(reads - DEMAND).mean():.1f} on average; it is at most 1"
    )


if __name__ == "__main__":
    main()
