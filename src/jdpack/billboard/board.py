"""Public: the billboard, the one record of a run that everybody may read.

A billboard is a header, then a line a release, then the certificate and the seed: JSON lines,
append-only, each on disk before it is used. Every line carries the SHA-256 of its own text
(`hash`, over all that stands before it) and that of the line before (`prev`), so a changed,
lost or reordered line shows. It is the only state of a run: policies, allocations, certificates
and pages are pure functions of it. `docs/billboard-format.md` is the reference of schema 1.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

from jdpack.billboard import file as boardfile
from jdpack.billboard.file import BoardFile, Note
from jdpack.common.batches import BATCHES_MAX, Batch
from jdpack.errors import BillboardError, JdpackError
from jdpack.market.grid import PRICE_CODE_MAX, SHARE
from jdpack.market.market import CLOSING, Market, Query
from jdpack.privacy import noise as noises
from jdpack.privacy.accounting import Budget, weakness
from jdpack.privacy.noise import Noise, NoNoise
from jdpack.storage.hash_chain import hash_of, open_line, seal

SCHEMA = 1

WEIGHT_SUM_MAX = 2**39 - 1
"""With it, weight sum times scale factor stays below 2^63: exact in compiled code."""

ANSWER_MAX = 2**64
"""Sums and noise are both below 2^63 in absolute value."""


@dataclass(frozen=True)
class Step:
    """What is asked for next: a query at posted prices, its noise, and the round's weight."""

    query: Query
    """What is asked."""
    prices: tuple[int, ...]
    """Price codes; none if the query is about the allocation of the rounds so far."""
    noise: Noise
    """What is added to the answer."""
    weight: int = 0
    """The round's share of the allocation; 0 where the round only steers."""
    batch: Batch | None = None
    """Who is asked; all agents if None."""


@dataclass(frozen=True)
class Release:
    """A step with its answer: the exact integers plus noise, as they came through the door."""

    step: Step
    """What was asked."""
    answer: tuple[int, ...]
    """In demand codes or value codes, as the query has it."""


@dataclass(frozen=True)
class Header:
    """What is fixed before the first record is read."""

    market: Market
    """The public market."""
    policy: Mapping[str, Any]
    """The algorithm's name and parameters."""
    budget: Budget
    """How epsilon and delta are split."""
    commitment: str
    """The hash of the seed of the agents' coins."""
    private: bool = True
    """False if the noise was seeded or absent: such a billboard protects nobody."""

    @property
    def local(self) -> bool:
        """Whether the agents add the noise themselves, and show nothing else (`run.local`)."""
        return self.policy.get("local") is True

    @property
    def order(self) -> bytes:
        """The key of the public random order of the agents: fixed before any record is read."""
        return bytes.fromhex(self.commitment)[:16]

    @property
    def why_not_private(self) -> str:
        """What every reader shows of a billboard that is not private."""
        noise = "without noise" if self.budget.epsilon == math.inf else "with seeded noise"
        return f"this run was made {noise}, for comparison; it protects nobody"

    @property
    def weakness(self) -> str | None:
        """What every reader shows of a private billboard whose budget promises little."""
        found = weakness(self.budget, self.market.agents) if self.private else None
        return None if found is None else found.message


@dataclass(frozen=True)
class Certificate:
    """What this run achieved; `jdpack.protocol.certificate` has the proofs."""

    factors: tuple[int, ...]
    """An option's share is scaled by the least factor / SHARE of the resources that it touches."""
    load_at_most: tuple[float, ...]
    """The load of what is given of each resource, as a share of its supply."""
    beta: float
    """The probability that any of these bounds on loads fails."""
    welfare_at_least: float
    """The total value of what is given."""
    optimum_at_most: float | None
    """The best total value of any allocation; None if the noise allows no such bound."""
    ratio_at_least: float | None
    """The total value of what is given, as a share of the optimum."""
    value_beta: float
    """The probability that any of the three statements about value fails."""


@dataclass(frozen=True)
class Seed:
    """The public seed of the agents' coins, shown after the last round."""

    seed: bytes
    """16 bytes."""

    @property
    def commitment(self) -> str:
        """Its hash, which the header shows before the first round."""
        return hashlib.sha256(b"jdpack seed " + self.seed).hexdigest()

    @classmethod
    def draw(cls) -> Seed:
        return cls(secrets.token_bytes(16))


class Billboard:
    """A billboard in memory and, if given a path, on disk.

    `solve` starts one; `Billboard.read` reads one back.

    Args:
        header: what is fixed before the first record is read.
        path: its file, which must not exist yet; in memory only if not given.
        journal: a file in which each line is before it is posted (`jdpack.billboard.file`).
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
        """The weight of all rounds in which one agent is asked."""
        self._first: Step | None = None
        self._counted = 0
        self._last_hash = ""
        self._lines: list[str] = []
        self._file = BoardFile.make(path, journal) if path is not None else None
        if self._file is not None:
            self._file.note = note
        self._write(_header_to_dict(header))

    def post(self, record: Release | Certificate | Seed) -> None:
        """Append a record; it is on disk when this returns."""
        self._check_order(record)
        self._write(_to_dict(record))
        self._add(record)

    def mend(self, note: Note | None = None) -> None:
        """Make the file what was read back, with no torn line. `note` is as for a new one."""
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
        """Whether the run came to its end, and the seed is posted."""
        return self.seed is not None

    @property
    def rounds(self) -> Iterator[Step]:
        """The steps that count in the allocation."""
        return (r.step for r in self.releases if r.step.weight > 0)

    @property
    def final_prices(self) -> tuple[int, ...]:
        """Of each resource, the median price of the rounds that count, by their weights.

        The last of them is no better than the others: `newton` uses it to make up for what the
        average still lacks, and others begin far from where they end, which spoils a mean.
        """
        counted = list(self.rounds)
        return tuple(
            _median([(step.prices[j], step.weight) for step in counted])
            for j in range(len(self.header.market.resources) if counted else 0)
        )

    @property
    def first_line(self) -> str:
        """The line of the header, which fixes the market, the policy and the budget."""
        return self._lines[0]

    @property
    def head(self) -> str:
        """The hash of the last line, which fixes all of them."""
        return self._last_hash

    @property
    def noisy(self) -> list[str]:
        """The hashes of all lines but the header, which holds no noise."""
        return [hash_of(line) for line in self._lines[1:]]

    @property
    def drawn(self) -> bool:
        """Whether the last line was read back from the journal, and `mend` has yet to post it."""
        return self._file is not None and self._file.drawn

    def lines(self) -> Iterator[str]:
        """The text of the billboard, line by line."""
        return iter(self._lines)

    @classmethod
    def read(cls, path: str | Path) -> Billboard:
        """Read a billboard back, checking its schema and hash chain."""
        return cls.from_text(boardfile.read(path))

    @classmethod
    def reopen(cls, path: Path, journal: Path) -> Billboard:
        """Read back the billboard of an interrupted run, to go on with it.

        Of a torn last line nothing is read, or all of it from the journal; `mend` before anything
        is posted.
        """
        file = BoardFile.reopen(path, journal)
        try:
            board = cls.from_text(file.text)
        except BaseException as error:
            file.close()
            if isinstance(error, BillboardError) and not error.hint:
                error = BillboardError(error.message, "put back what was posted: it is damaged")
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
            board = cls(_header_from_dict(open_line(first, "")))
            if board._lines[0] != first:
                raise _other_spelling()
        board._extend(more)
        return board

    def extend(self, text: str) -> None:
        """Take over the text of whole lines that were posted after those that were read.

        If it raises BillboardError, lines before the wrong one are taken over: do not go on.
        """
        if text:
            self._extend(text.removesuffix("\n").split("\n"))

    def _extend(self, lines: Sequence[str]) -> None:
        for number, line in enumerate(lines, start=len(self._lines) + 1):
            with _of_line(number):
                record = _from_dict(open_line(line, self._last_hash), self.header.market)
                self._check_order(record)
                if seal(_to_dict(record), self._last_hash) != line:
                    raise _other_spelling()
                self._remember(line)
                self._add(record)

    def _check_order(self, record: Release | Certificate | Seed) -> None:
        late = self.certificate is not None if not isinstance(record, Seed) else self.finished
        if late or (isinstance(record, Seed) and self.certificate is None):
            raise BillboardError(f"a {type(record).__name__.lower()} line is out of place")
        if isinstance(record, Seed) and record.commitment != self.header.commitment:
            raise BillboardError("the seed is not the one that the header committed to")
        if isinstance(record, Release) and record.step.weight:
            self._check_round(record.step)
        elif isinstance(record, Release) and record.step.batch is not None:
            raise BillboardError("a batch is asked in rounds that count")
        bounded = self.header.budget.rho < math.inf
        if isinstance(record, Release) and isinstance(record.step.noise, NoNoise) and bounded:
            raise BillboardError("an answer without noise is beyond any budget")

    def _check_round(self, step: Step) -> None:
        """Rounds ask all agents, or else one batch after the other, each once and alike."""
        first = self._first or step
        if (step.batch is None) != (first.batch is None):
            raise BillboardError("some rounds ask all agents and others a batch")
        if step.batch is None or first.batch is None:
            if self.weight + step.weight > WEIGHT_SUM_MAX:
                raise BillboardError("the weights sum to 2^39 or more")
        elif step.batch != Batch(self._counted, first.batch.count) or step.weight != first.weight:
            raise BillboardError("the batches do not follow each other with one weight")

    def _add(self, record: Release | Certificate | Seed) -> None:
        match record:
            case Release(step):
                if step.weight:
                    self._first = self._first or step
                    self._counted += 1
                    self.weight += step.weight if step.batch is None or self.weight == 0 else 0
                self.releases.append(record)
            case Certificate():
                self.certificate = record
            case Seed():
                self.seed = record

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
    """Say of which line an error is."""
    try:
        yield
    except JdpackError as error:
        raise BillboardError(f"billboard line {number}: {error.message}") from None
    except RecursionError:
        raise BillboardError(f"billboard line {number}: it is nested too deeply") from None


def _other_spelling() -> BillboardError:
    return BillboardError("it is not written as schema 1 writes it")


def _header_to_dict(header: Header) -> dict[str, Any]:
    return {
        "type": "header",
        "schema": SCHEMA,
        "private": header.private,
        "market": header.market.to_dict(),
        "policy": dict(header.policy),
        "budget": {k: None if v == math.inf else v for k, v in asdict(header.budget).items()},
        "seed_commitment": header.commitment,
    }


def _header_from_dict(data: dict[str, Any]) -> Header:
    match data:
        case {
            "type": "header",
            "schema": int(schema),
            "private": bool(private),
            "market": dict(market),
            "policy": dict(policy),
            "budget": dict(budget),
            "seed_commitment": str(commitment),
        } if schema == SCHEMA:
            budget = {k: math.inf if v is None else v for k, v in budget.items()}
            names = set(Budget.__dataclass_fields__)
            if set(budget) != names or not all(isinstance(b, float) for b in budget.values()):
                raise BillboardError("its budget is not one of schema 1")
            endless = [k for k, v in budget.items() if v == math.inf]
            if endless and (endless != ["epsilon", "rho"] or private):
                raise BillboardError("its budget is without bound where it cannot be")
            if re.fullmatch("[0-9a-f]{64}", commitment) is None:
                raise BillboardError(f"seed commitment {commitment!r} is not a SHA-256")
            return Header(Market.from_dict(market), policy, Budget(**budget), commitment, private)
        case {"type": "header", "schema": schema} if schema != SCHEMA:
            raise BillboardError(f"schema {schema!r} is not {SCHEMA}, the one this version reads")
    raise BillboardError("it is not a header of schema 1")


def _to_dict(record: Release | Certificate | Seed) -> dict[str, Any]:
    match record:
        case Release(step, answer):
            return {
                "type": "release",
                "query": step.query,
                "prices": list(step.prices),
                "noise": step.noise.to_dict(),
                "weight": step.weight,
                **({"batch": [step.batch.index, step.batch.count]} if step.batch else {}),
                "answer": list(answer),
            }
        case Certificate():
            return {
                "type": "certificate",
                **asdict(record),
                "factors": list(record.factors),
                "load_at_most": list(record.load_at_most),
            }
        case Seed(seed):
            return {"type": "seed", "seed": seed.hex()}


def _from_dict(data: dict[str, Any], market: Market) -> Release | Certificate | Seed:
    m = len(market.resources)
    match data:
        case {
            "type": "release",
            "query": query,
            "prices": list(prices),
            "noise": dict(noise),
            "weight": int(weight),
            "answer": list(answer),
        }:
            if query not in get_args(Query):
                raise BillboardError(f"query {query!r} is not known")
            posted = 0 if query in CLOSING else m
            if not _whole(prices, posted) or not all(0 <= p <= PRICE_CODE_MAX for p in prices):
                raise BillboardError(f"its prices are not {posted} price codes")
            if not _whole(answer, market.width(query)) or max(map(abs, answer)) > ANSWER_MAX:
                raise BillboardError(f"its answer is not {market.width(query)} whole numbers")
            fits = _whole([weight], 1) and 0 <= weight <= WEIGHT_SUM_MAX
            if not fits or (weight and query != "demand"):
                raise BillboardError(f"weight {weight} is out of range")
            batch = _batch(data["batch"]) if "batch" in data else None
            step = Step(query, tuple(prices), noises.from_dict(noise), weight, batch)
            return Release(step, tuple(answer))
        case {
            "type": "certificate",
            "factors": list(factors),
            "load_at_most": list(loads),
            "beta": float(beta),
            "welfare_at_least": float(welfare),
            "optimum_at_most": float() | None as optimum,
            "ratio_at_least": float() | None as ratio,
            "value_beta": float(value_beta),
        }:
            if not _whole(factors, m) or not all(0 <= f <= SHARE for f in factors):
                raise BillboardError(f"its scale factors are not {m} numbers from 0 to {SHARE}")
            if len(loads) != m or not all(isinstance(load, float) for load in loads):
                raise BillboardError(f"its load bounds are not {m} numbers")
            return Certificate(
                tuple(factors), tuple(loads), beta, welfare, optimum, ratio, value_beta
            )
        case {"type": "seed", "seed": str(text)}:
            try:
                seed = bytes.fromhex(text)
            except ValueError:
                raise BillboardError(f"seed {text!r} is not hexadecimal") from None
            if len(seed) != 16:
                raise BillboardError(f"the seed has {len(seed)} bytes, not 16")
            return Seed(seed)
    raise BillboardError(f"a line of type {data.get('type')!r} is not one of schema 1")


def _batch(data: object) -> Batch:
    if not (isinstance(data, list) and _whole(data, 2) and 0 <= data[0] < data[1] <= BATCHES_MAX):
        raise BillboardError(f"batch {data!r} is not one of at most {BATCHES_MAX}")
    return Batch(*data)


def _median(weighted: list[tuple[int, int]]) -> int:
    """The least number such that half of all the weight, or more, is not above it."""
    ordered = sorted(weighted)
    below = accumulate(weight for _, weight in ordered)
    total = sum(weight for _, weight in ordered)
    return next(n for (n, _), so_far in zip(ordered, below, strict=True) if 2 * so_far >= total)


def _whole(values: list[Any], count: int) -> bool:
    return len(values) == count and all(type(v) is int for v in values)
