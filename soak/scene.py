"""Small worlds for the soak: markets, records, and a ledger whose data sets pay for a few runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

import ledgers
from jdpack import Ledger, Market, MwuAdaptive, MwuOnline, Newton
from jdpack.policies.base import Policy
from jdpack.privacy.accounting import Accounting
from power import Durable, as_it_is

AGENTS = 300
EPSILON, DELTA = 9.0, 1e-6
KINDS = ("whole", "parts", "options", "parts of options")
POLICIES: dict[str, Policy] = {
    "mwu-adaptive": MwuAdaptive(0.5),
    "truncated": MwuAdaptive(0.5, noise="truncated-laplace"),
    "mwu-online": MwuOnline(batch=25),
    "newton": Newton(),
}
DATASETS: dict[str, tuple[float, float, Accounting]] = {
    "clinic": (24.0, 1e-4, "zcdp"),
    "ward": (50.0, 1e-5, "gdp"),
    "school": (40.0, 6e-6, "gdp"),
}
"""Totals for about 5, 5 and 3 runs. Only zCDP takes runs with truncated noise."""


def market(kind: str) -> Market:
    """A market with two scarce resources."""
    return Market(
        supply=[150.0, 210.0],
        max_demand=[2.0, 3.0],
        max_value=10.0,
        epsilon=EPSILON,
        delta=DELTA,
        agents=AGENTS,
        names=["beds", "nurses"],
        divisible="parts" in kind,
        options=2 if "options" in kind else 1,
    )


def columns(kind: str, seed: int = 1) -> dict[str, np.ndarray]:
    """The records."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(AGENTS), 2 if "options" in kind else 1)
    return {
        "id": ids,
        "value": rng.uniform(0, 10, len(ids)),
        "beds": rng.uniform(0, 2, len(ids)),
        "nurses": rng.uniform(0, 3, len(ids)),
    }


@dataclass(frozen=True)
class World:
    """A folder with a ledger, records and runs."""

    folder: Path

    @property
    def ledger(self) -> Path | str:
        return ledgers.ledger_of(self.folder)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def copies(self) -> Path:
        """Copies of folders of runs."""
        return self.folder / "copies"

    def records(self, kind: str, bad: bool) -> Path:
        return self.folder / f"{'bad ' if bad else ''}{kind}.parquet"

    def make(self) -> World:
        """Write a ledger, good records, and bad ones, whose last value is out of bounds."""
        self.runs.mkdir(parents=True)
        ledgers.make(self.folder)
        for kind in KINDS:
            table = columns(kind)
            pyarrow.parquet.write_table(pa.table(table), self.records(kind, False))
            table["value"][-1] = 11.0
            pyarrow.parquet.write_table(pa.table(table), self.records(kind, True))
        for name, (epsilon, delta, accounting) in DATASETS.items():
            Ledger.create(self.ledger, name, epsilon=epsilon, delta=delta, accounting=accounting)
        return self


@dataclass
class Case:
    """A run of the soak, as an observer knows it."""

    world: World
    folder: Path
    kind: str
    policy: str
    dataset: str
    bad: bool = False
    seen: bytes = b""
    """Everything that a reader of the billboard may have seen."""
    left: bytes | None = None
    """The billboard as a power cut left it, until it is mended."""
    name: str = ""
    """The run's name in the ledger, once known."""
    safe: Durable = field(default_factory=Durable)

    @classmethod
    def draw(cls, world: World, name: str, datasets: list[str], rng: random.Random) -> Case:
        kind, dataset = rng.choice(KINDS), rng.choice(datasets)
        policy = rng.choices(list(POLICIES), weights=(4, 2, 2, 2))[0]
        case = cls(world, world.runs / name, kind, policy, dataset, bad=rng.random() < 0.12)
        case.safe = case.now()
        return case

    @classmethod
    def small(cls, world: World, start: Case | None = None) -> Case:
        """The run that the sweep kills, or a copy of `start` in another world."""
        case = cls(world, world.runs / "1", "whole", "mwu-adaptive", "clinic")
        if start is not None and start.name:
            case.seen, case.name = start.seen, start.name
            run_file = case.private / "run.json"
            moved = run_file.read_text().replace(str(start.world.folder), str(world.folder))
            moved = moved.replace(str(start.world.ledger), str(world.ledger))
            run_file.write_text(moved)
        case.safe = case.now()
        return case

    @property
    def heads(self) -> Path | None:
        """The file beside the ledger that says how far the run has come, if there is one."""
        return ledgers.heads_file(self.world.ledger, self.name)

    def now(self) -> Durable:
        """Everything there is of the run, as if it had been on disk for long."""
        return as_it_is(self.folder, self.heads)

    @property
    def billboard(self) -> Path:
        return self.folder / "public" / "billboard.jsonl"

    @property
    def private(self) -> Path:
        return self.folder / "private"
