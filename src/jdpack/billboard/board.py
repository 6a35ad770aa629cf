"""Public: the billboard, the one log of a run that everybody may read.

A billboard is a header, then one line per release, then the certificate and the seed. Its lines are
JSON, append-only, and each is on disk before it is used. They form a chain (`storage.hash_chain`),
so a changed, lost or reordered line is detected. The billboard is the only state of a run:
policies, allocations, certificates and pages are pure functions of it. `docs/billboard-format.md`
is the reference for schema 2.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from jdpack.billboard import file as boardfile
from jdpack.billboard.file import BoardFile, Note
from jdpack.billboard.lines import WEIGHT_SUM_MAX, Certificate, Header, Release, Seed, Step
from jdpack.billboard.schema import header_from_dict, header_to_dict, line_from_dict, line_to_dict
from jdpack.common import notebook
from jdpack.common.batches import Batch
from jdpack.common.by_name import ByName
from jdpack.errors import BillboardError, JdpackError
from jdpack.privacy.noise import NoNoise
from jdpack.storage.hash_chain import hash_of, open_line, seal


class Billboard:
    """A billboard in memory and, if given a path, on disk.

    `solve` starts one; `Billboard.read` reads one back.

    Args:
        header: what is fixed before the first record is read.
        path: its file, which must not exist yet; without it, the billboard is in memory only.
        journal: a file that gets each line before it is posted (`jdpack.billboard.file`).
        note: gets the hash of each line that holds noise before the line is posted.
    """

    def __init__(
        self,
        header: Header,
        path: Path | None = None,
        journal: Path | None = None,
        note: Note | None = None,
    ) -> None:
        self.header = header
        self.releases: list[Release] = []
        self.certificate: Certificate | None = None
        self.seed: Seed | None = None
        self.weight = 0
        """The total weight of the rounds that ask any one agent."""
        self._first: Step | None = None
        self._counted = 0
        self._last_hash = ""
        self._lines: list[str] = []
        self._file = BoardFile.make(path, journal) if path is not None else None
        if self._file is not None:
            self._file.note = note
        self._write(header_to_dict(header))

    def post(self, posted: Release | Certificate | Seed) -> None:
        """Append a line; it is on disk when this returns."""
        self._check_order(posted)
        self._write(line_to_dict(posted))
        self._add(posted)

    def mend(self, note: Note | None = None) -> None:
        """Make the file equal to what was read back, without a torn line. `note` is as above."""
        if self._file is not None:
            self._file.note = note
            self._file.mend()

    def close(self) -> None:
        """Close the file; the billboard in memory stays readable."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def finished(self) -> bool:
        """Whether the run has ended: the seed is posted."""
        return self.seed is not None

    @property
    def rounds(self) -> Iterator[Step]:
        """The steps that count in the allocation."""
        return (r.step for r in self.releases if r.step.weight > 0)

    @property
    def final_prices(self) -> tuple[int, ...]:
        """The median price of each resource over the rounds that count, by weight.

        The last price is no better than the others: `newton` uses the last round to make up for
        what the average still lacks. A mean is worse, as other policies start far from their end.
        """
        counted = list(self.rounds)
        return tuple(
            _median([(step.prices[j], step.weight) for step in counted])
            for j in range(len(self.header.market.resources) if counted else 0)
        )

    @property
    def prices(self) -> ByName:
        """The final price of a unit of each resource, by name; empty before the first round."""
        market = self.header.market
        prices = [market.unit_price(j, price) for j, price in enumerate(self.final_prices)]
        return ByName([r.name for r in market.resources][: len(prices)], prices)

    def plot(self) -> Any:
        """Draw how prices and noisy demand moved, with matplotlib; returns the two axes."""
        from jdpack.billboard.plot import plot

        return plot(self)

    def __repr__(self) -> str:
        count = sum(1 for _ in self.rounds)
        state = "finished" if self.finished else "not finished"
        return f"Billboard({self.header.market.name!r}, {state}, {count:,} rounds that count)"

    def _repr_html_(self) -> str:
        header, number = self.header, notebook.number
        market, certificate, prices = header.market, self.certificate, self.prices
        budget = header.budget
        facts = [f"({budget.epsilon:g}, {budget.delta:g})-joint differential privacy"]
        if not header.private:
            facts = [f"Not private: {header.why_not_private}."]
        rows = []
        for j, r in enumerate(market.resources):
            cells = [r.name, f"{number(r.supply)} {r.unit}".strip()]
            cells.append(number(prices[j]) if prices else "-")
            cells.append(f"{certificate.load_at_most[j]:.1%}" if certificate else "-")
            rows.append(cells)
        head = ["resource", "supply", "price of a unit", "given, at most"]
        return notebook.sheet(repr(self), facts, head, rows)

    @property
    def first_line(self) -> str:
        """The header's line, which fixes the market, the policy and the budget."""
        return self._lines[0]

    @property
    def head(self) -> str:
        """The hash of the last line, which fixes all lines."""
        return self._last_hash

    @property
    def noisy(self) -> list[str]:
        """The hashes of all lines except the header, which holds no noise."""
        return [hash_of(line) for line in self._lines[1:]]

    @property
    def drawn(self) -> bool:
        """Whether the last line comes from the journal, and `mend` has yet to post it."""
        return self._file is not None and self._file.drawn

    def lines(self) -> Iterator[str]:
        """The text of the billboard, line by line."""
        return iter(self._lines)

    @classmethod
    def of(cls, given: Billboard | str | Path) -> Billboard:
        """A billboard, or the one in a file."""
        return given if isinstance(given, Billboard) else cls.read(given)

    @classmethod
    def read(cls, path: str | Path) -> Billboard:
        """Read a billboard back, checking its schema and hash chain."""
        return cls.from_text(boardfile.read(path))

    @classmethod
    def reopen(cls, path: Path, journal: Path) -> Billboard:
        """Read back the billboard of an interrupted run, to resume it.

        A torn last line is dropped, or restored from the journal. Call `mend` before posting.
        """
        file = BoardFile.reopen(path, journal)
        try:
            board = cls.from_text(file.text)
        except BaseException as error:
            file.close()
            if isinstance(error, BillboardError) and not error.hint:
                error = BillboardError(
                    error.message, "the billboard is damaged: put back the posted one"
                )
            raise error from None
        board._file = file
        return board

    @classmethod
    def from_text(cls, text: str) -> Billboard:
        """Parse the text of a billboard, checking its schema and hash chain."""
        if not text.endswith("\n"):
            raise BillboardError(
                "the billboard's last line is torn", "the run that wrote it did not finish the line"
            )
        first, *more = text[:-1].split("\n")
        with _of_line(1):
            board = cls(header_from_dict(open_line(first, "")))
            if board._lines[0] != first:
                raise _other_spelling()
        board._extend(more)
        return board

    def extend(self, text: str) -> None:
        """Add the text of whole lines that were posted after those already read.

        If this raises BillboardError, the lines before the wrong one have been added: stop using
        this billboard.
        """
        if text:
            self._extend(text.removesuffix("\n").split("\n"))

    def _extend(self, lines: Sequence[str]) -> None:
        for number, line in enumerate(lines, start=len(self._lines) + 1):
            with _of_line(number):
                posted = line_from_dict(open_line(line, self._last_hash), self.header.market)
                self._check_order(posted)
                if seal(line_to_dict(posted), self._last_hash) != line:
                    raise _other_spelling()
                self._remember(line)
                self._add(posted)

    def _check_order(self, posted: Release | Certificate | Seed) -> None:
        late = self.certificate is not None if not isinstance(posted, Seed) else self.finished
        if late or (isinstance(posted, Seed) and self.certificate is None):
            raise BillboardError(f"a {type(posted).__name__.lower()} line is out of place")
        if isinstance(posted, Seed) and posted.commitment != self.header.commitment:
            raise BillboardError("the seed is not the one that the header committed to")
        if isinstance(posted, Release) and posted.step.weight:
            self._check_round(posted.step)
        elif isinstance(posted, Release) and posted.step.batch is not None:
            raise BillboardError("only rounds that count may ask a batch")
        if isinstance(posted, Release) and not posted.step.spans_right:
            raise BillboardError(f"a span of {posted.step.span} batches does not end at its own")
        bounded = self.header.budget.rho < math.inf
        if isinstance(posted, Release) and isinstance(posted.step.noise, NoNoise) and bounded:
            raise BillboardError("an answer without noise exceeds every budget")

    def _check_round(self, step: Step) -> None:
        """All rounds ask all agents, or else each batch in order, once, with the same weight."""
        first = self._first or step
        if (step.batch is None) != (first.batch is None):
            raise BillboardError("some rounds ask all agents and others one batch")
        if step.batch is None or first.batch is None:
            if self.weight + step.weight > WEIGHT_SUM_MAX:
                raise BillboardError("the weights sum to 2^39 or more")
        elif step.batch != Batch(self._counted, first.batch.count) or step.weight != first.weight:
            raise BillboardError("the batches do not follow each other in order, with one weight")

    def _add(self, posted: Release | Certificate | Seed) -> None:
        match posted:
            case Release(step):
                if step.weight:
                    self._first = self._first or step
                    self._counted += 1
                    self.weight += step.weight if step.batch is None or self.weight == 0 else 0
                self.releases.append(posted)
            case Certificate():
                self.certificate = posted
            case Seed():
                self.seed = posted

    def _write(self, data: dict[str, Any]) -> None:
        line = seal(data, self._last_hash)
        if self._file is not None:
            self._file.append(line, len(self.releases))
        self._remember(line)

    def _remember(self, line: str) -> None:
        self._lines.append(line)
        self._last_hash = hash_of(line)


@contextlib.contextmanager
def _of_line(number: int) -> Iterator[None]:
    """Add the line's number to an error."""
    try:
        yield
    except JdpackError as error:
        raise BillboardError(f"billboard line {number}: {error.message}") from None
    except RecursionError:
        raise BillboardError(f"billboard line {number}: it is nested too deeply") from None


def _other_spelling() -> BillboardError:
    return BillboardError("it is not written as schema 2 writes it")


def _median(weighted: list[tuple[int, int]]) -> int:
    """The smallest number such that at least half of the total weight is at or below it."""
    ordered = sorted(weighted)
    below = accumulate(weight for _, weight in ordered)
    total = sum(weight for _, weight in ordered)
    return next(n for (n, _), so_far in zip(ordered, below, strict=True) if 2 * so_far >= total)
