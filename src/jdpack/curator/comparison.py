"""Private: the result of a comparison of policies: rows, a table, and JSON. Curator only."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jdpack.market.market import Market
from jdpack.storage import new_folder

NOTICE = (
    "CURATOR ONLY: true loads and the optimum are private numbers; runs are seeded and protect "
    "nobody; publish none of this"
)
UNTOUCHED = "Nothing is released, and no privacy budget is touched."
CONFIDENCE = 0.95
_PROVED = 1e-9  # how closely the optimum is known


@dataclass(frozen=True)
class Interval:
    """A mean over the seeds, and its confidence interval by Student's t."""

    mean: float
    low: float | None
    """None if there is only one number."""
    high: float | None

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Interval:
        from scipy.stats import t  # type: ignore[import-untyped]

        mean, n = statistics.fmean(numbers), len(numbers)
        if n == 1:
            return cls(mean, None, None)
        reach = float(t.ppf((1.0 + CONFIDENCE) / 2.0, n - 1)) * statistics.stdev(numbers)
        reach /= math.sqrt(n)
        return cls(mean, mean - reach, mean + reach)


@dataclass(frozen=True)
class MeasuredRun:
    """One seeded run, measured on the true numbers."""

    seed: int
    welfare: float
    """The total value of what is given."""
    share: float
    """The welfare as a fraction of the optimum."""
    certified: float | None
    """The fraction that the certificate promises; None if it promises nothing."""
    load: float
    """The largest load, as a fraction of its supply."""
    fits: bool
    """Whether no supply is exceeded and nobody gets more than one option in total."""
    dropped: int
    """How many agents were dropped because the certified bound on loads failed."""
    rounds: int
    """How many times demand was released."""
    releases: int
    seconds: float
    """The time for rounds, certificate and allocation, without reading records."""

    @property
    def valid(self) -> bool | None:
        """Whether the certificate's promise is true; None if it promises nothing."""
        return None if self.certified is None else self.certified <= self.share + _PROVED


@dataclass(frozen=True)
class Row:
    """One policy: its runs, or why there are none."""

    label: str
    policy: dict[str, Any]
    """Its name and parameters."""
    epsilon: float | None
    runs: tuple[MeasuredRun, ...] = ()
    refused: str | None = None
    """Why there is no run."""
    notes: tuple[str, ...] = ()
    """Warnings: supply is too small for the budget, or time ran out before all runs."""

    @property
    def share(self) -> Interval | None:
        """The welfare as a fraction of the optimum."""
        return Interval.of([run.share for run in self.runs]) if self.runs else None

    @property
    def promises(self) -> tuple[MeasuredRun, ...]:
        """The runs whose certificate promises a fraction of the optimum."""
        return tuple(run for run in self.runs if run.certified is not None)

    @property
    def certified(self) -> Interval | None:
        """The fraction that certificates promise, over the runs in which they promise one."""
        promised = [run.certified for run in self.promises if run.certified is not None]
        return Interval.of(promised) if promised else None

    @property
    def valid(self) -> int:
        """How many of these promises are true."""
        return sum(run.valid is True for run in self.runs)

    @property
    def fits(self) -> bool | None:
        """Whether supply held in every run."""
        return all(run.fits for run in self.runs) if self.runs else None

    @property
    def dropped(self) -> int:
        """Agents dropped, over all runs."""
        return sum(run.dropped for run in self.runs)

    @property
    def rounds(self) -> float | None:
        return statistics.fmean(run.rounds for run in self.runs) if self.runs else None

    @property
    def releases(self) -> float | None:
        return statistics.fmean(run.releases for run in self.runs) if self.runs else None

    @property
    def seconds(self) -> float | None:
        """The median: the first run of a process also loads its kernels."""
        return statistics.median(run.seconds for run in self.runs) if self.runs else None

    def to_dict(self) -> dict[str, Any]:
        share, certified = self.share, self.certified
        return {
            "label": self.label,
            "policy": self.policy,
            "epsilon": self.epsilon if self.epsilon != math.inf else None,
            "refused": self.refused,
            "notes": list(self.notes),
            "share": None if share is None else asdict(share),
            "certified": None if certified is None else asdict(certified),
            "promises": len(self.promises),
            "valid": self.valid,
            "fits": self.fits,
            "dropped": self.dropped,
            "rounds": self.rounds,
            "releases": self.releases,
            "seconds": self.seconds,
            "runs": [{**asdict(run), "valid": run.valid} for run in self.runs],
        }


@dataclass(frozen=True)
class Best:
    """The optimum without privacy, and its proof."""

    value: float
    """The value of an allocation that was found."""
    bound: float
    """The value of the dual: no allocation is worth more."""
    seconds: float
    """How long it took."""


@dataclass(frozen=True)
class Comparison:
    """Private: policies side by side; `str(comparison)` is the table for people."""

    market: Market
    """The market."""
    agents: int
    """How many agents there are."""
    clamped: int
    """How many numbers were beyond the public bounds."""
    epsilon: float
    """The epsilon of every run except the reference."""
    delta: float
    """The delta of every run."""
    seeds: int
    """How many runs there are of each policy."""
    optimum: Best
    """The best total value of any allocation."""
    rows: tuple[Row, ...]
    """The reference without privacy, then the policies in the given order."""

    def row(self, label: str) -> Row:
        """The row of a policy."""
        return next(row for row in self.rows if row.label == label)

    @property
    def notes(self) -> list[tuple[str, str]]:
        """What to know about the policies: pairs of a label and a note."""
        return [
            (row.label, note)
            for row in self.rows
            for note in (*([f"no run: {row.refused}"] if row.refused else []), *row.notes)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for programs: strict JSON."""
        return {
            "notice": NOTICE,
            "market": self.market.name,
            "agents": self.agents,
            "clamped": self.clamped,
            "epsilon": self.epsilon if self.epsilon != math.inf else None,
            "delta": self.delta,
            "seeds": self.seeds,
            "confidence": CONFIDENCE,
            "optimum": asdict(self.optimum),
            "rows": [row.to_dict() for row in self.rows],
        }

    def __str__(self) -> str:
        return "\n".join(_text(self))

    def write(self, folder: str | Path) -> None:
        """Make a folder of mode 0700 with the page, the table and the JSON, each of mode 0600."""
        from jdpack.curator.comparison_page import comparison_page  # which imports this module

        page = comparison_page(self)
        new_folder.fill_with_study(folder, "comparison", page, str(self), self.to_dict())


# --- the table ----------------------------------------------------------------------------

HEADS = (
    "Policy", "Fraction of the optimum", "Certified", "True in", "Supply", "Dropped", "Rounds",
    "Releases", "Seconds",
)  # fmt: skip


def _text(c: Comparison) -> Iterator[str]:
    market, privacy = c.market, "no privacy"
    if c.epsilon != math.inf:
        privacy = f"({c.epsilon:g}, {c.delta:g})-joint differential privacy"
    kind = "divisible" if market.divisible else "indivisible"
    runs = f"{c.seeds} seeded run{'s' if c.seeds > 1 else ''} of each"
    yield from textwrap.wrap(NOTICE, 100)
    yield f"{market.name}: {len(market.resources)} {kind} resources, {c.agents:,} agents"
    yield f"noise as for {privacy}; {runs}"
    yield UNTOUCHED
    if c.clamped:
        yield f"{c.clamped:,} numbers beyond the public bounds are clamped, for the optimum too"
    yield ""
    gap = max(0.0, c.optimum.bound - c.optimum.value)
    yield f"optimum: {c.optimum.value:,.6g}; the dual bound is above it by {gap:.1g}"
    yield ""
    heads = tuple(head.lower() for head in HEADS)
    lines = [heads, optimum_cells(c.optimum), *(row_cells(row) for row in c.rows if row.runs)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        first, *others = (
            cell.rjust(w) if i else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        yield "  ".join([first, *others]).rstrip()
    yield ""
    if c.seeds > 1:
        yield f"mean with {CONFIDENCE:.0%} confidence interval (Student's t), median seconds"
    yield from (f"{label}: {note}" for label, note in c.notes)


def optimum_cells(best: Best) -> tuple[str, ...]:
    """The line of the table for the optimum."""
    return ("optimum", "100%", *[""] * (len(HEADS) - 3), f"{best.seconds:.3g}")


def row_cells(row: Row) -> tuple[str, ...]:
    """The line of the table for a policy that ran."""
    share, certified, promises = row.share, row.certified, len(row.promises)
    assert share is not None
    return (
        row.label,
        _share(share),
        # A promise is rounded down.
        f"{math.floor(1e4 * certified.mean) / 100:.2f}%" if certified is not None else "none",
        f"{row.valid} of {promises}",
        "held" if row.fits else "EXCEEDED",
        f"{row.dropped:,}",
        _mean(row.rounds),
        _mean(row.releases),
        f"{row.seconds:.3g}",
    )


def _mean(number: float | None) -> str:
    return f"{number:,.1f}".removesuffix(".0")


def _share(interval: Interval) -> str:
    text = f"{100 * interval.mean:.2f}%"
    if interval.low is None or interval.high is None:
        return text
    return f"{text} ({100 * interval.low:.2f} to {100 * interval.high:.2f})"
