"""Private: the demo, a realistic market with random agents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from jdpack.ledger.ledger import Ledger
from jdpack.market.market import Market
from jdpack.run.folder import Output
from jdpack.run.result import Progress, Result
from jdpack.run.solve import solve

MARKET = """\
# Charging at the public stations of a town on a winter night: 60,000 households ask for energy
# in one of four windows or in several, and say what it is worth to them.
name = "Night charging"
divisible = true

[privacy]
epsilon = 1.0
delta = 1e-8
neighbours = "replace-one"

[value]
column = "value"
max = 40.0

[agents]
count = 60000
bundle_size = 2
id = "household"

[[resource]]
name = "18-21 h"
supply = 150000.0
max_demand = 30.0
unit = "kWh"

[[resource]]
name = "21-24 h"
supply = 200000.0
max_demand = 30.0
unit = "kWh"

[[resource]]
name = "0-3 h"
supply = 250000.0
max_demand = 30.0
unit = "kWh"

[[resource]]
name = "3-6 h"
supply = 250000.0
max_demand = 30.0
unit = "kWh"
"""


DATASET = "households"


def run(folder: Path, progress: Callable[[Progress], None] | None = None) -> Result:
    """Write the demo's market, agents and ledger to a new folder, and solve into folder/out."""
    Output.claim(folder)
    folder.mkdir()
    (folder / "market.toml").write_text(MARKET, encoding="utf-8")
    market = Market.from_toml(folder / "market.toml")
    pyarrow.parquet.write_table(households(market), folder / "agents.parquet")
    Ledger.create(folder / "ledger.db", DATASET, epsilon=4.0, delta=1e-6)
    return solve(
        folder / "market.toml",
        folder / "agents.parquet",
        output=folder / "out",
        ledger=folder / "ledger.db",
        dataset=DATASET,
        progress=progress,
    )


def households(market: Market) -> pa.Table:
    """Random households: most want the early evening, and need and urgency vary widely."""
    rng = np.random.default_rng(2019)
    n, m = market.agents, len(market.resources)
    energy = np.minimum(30.0, rng.lognormal(2.4, 0.5, n))
    first = rng.choice(m, n, p=[0.4, 0.3, 0.2, 0.1])
    second = (first + 1) % m
    split = np.where(rng.random(n) < 0.4, 0.5, 1.0)
    demand = np.zeros((n, m))
    demand[np.arange(n), first] = energy * split
    demand[np.arange(n), second] += energy * (1.0 - split)
    value = np.minimum(40.0, energy * rng.gamma(3.0, 0.25, n))
    demand, value = demand.round(1), value.round(2)  # as people write them
    columns = {"household": pa.array([f"H{i:05d}" for i in range(n)]), "value": value}
    columns |= {r.name: demand[:, j] for j, r in enumerate(market.resources)}
    return pa.table(columns)
