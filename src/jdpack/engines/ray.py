"""Private: the engine of a Ray cluster.

Every worker is an actor that owns some pieces of the input. A piece is a path and a range, so a
worker reads and encodes its records by itself, wherever it runs: nothing passes through the driver
but prices on the way out and sums on the way back. Noise is drawn at the driver, once a round,
after all sums are in.

If a worker's process dies, Ray starts it again with the same pieces and asks it again. An answer is
a function of the records, so it is the same one. Every answer carries the digest of the records
that it was computed from: if it changes, a file has changed under the run, and the run stops.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
from numpy.typing import NDArray

from jdpack.billboard.board import Billboard
from jdpack.engines.allocation_files import files_in, put_file, remove_file
from jdpack.engines.base import Allocation
from jdpack.engines.code_store import Keep, Store
from jdpack.engines.mapped import key_of
from jdpack.engines.settings import Place, Ray, Tell
from jdpack.engines.shard import Final, Rounds, Shard
from jdpack.engines.sharded import Combined, final
from jdpack.errors import AgentsError, EngineError, JdpackError, OutputError
from jdpack.market.market import Market
from jdpack.records.arrow import to_arrow
from jdpack.records.codes import PART_ROWS
from jdpack.records.encode import Codes, Tally, check_tallies, encode_piece
from jdpack.records.ids import first_ids, keys, refuse_repeated, repeated, survey
from jdpack.records.readers import FilePiece
from jdpack.records.source import Source
from jdpack.records.threads import Threads

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a curator's machine calls nobody
try:
    import ray
    import ray.exceptions
except ImportError:
    raise EngineError("the engine ray needs Ray", "pip install 'jdpack[ray]'") from None

_RESTARTS = 20  # of one worker; what dies more often has a cause that stays
_OBJECTS = 200 * 10**6  # bytes of shared memory of a local Ray: answers are small
_BUCKET = 2**22  # ids whose keys are compared at a time
_ROOM = 10**9  # bytes for copies of codes that are on a worker's disk
_READING = 10  # a worker may take so many times as long to read its records as to answer


class Worker:
    """The actor: the shard of some pieces, read when it is first asked."""

    def __init__(
        self, market: Market, pieces: list[FilePiece], clamp: bool, threads: int, store: str | None
    ) -> None:
        self.market, self.pieces, self.clamp, self.store = market, pieces, clamp, store
        self.threads = Threads(threads)
        self._shard: Shard | None = None
        self._digest = 0
        self._keys: NDArray[np.uint64] | None = None
        self._tallies: list[Tally] = []

    def answer(self, question: str, *about: Any) -> tuple[int, float, Any]:
        """The digest of the records, the seconds that it took, and the answer to a question."""
        shard = self._loaded()
        start = time.perf_counter()
        answer = getattr(self if hasattr(self, question) else shard, question)(*about)
        return self._digest, time.perf_counter() - start, answer

    def tallies(self) -> list[Tally]:
        return self._tallies

    def ends(self) -> tuple[int, int] | None:
        """The first and the last id, if all are whole numbers in increasing order."""
        ids = list(self._ids())
        if not ids or not survey(iter(ids))[1]:
            return None
        return ids[0][0].as_py(), ids[-1][-1].as_py()

    def keys(self, bucket: int, of: int) -> NDArray[np.uint64]:
        """The keys of the agents' ids that fall into one of some buckets."""
        if self._keys is None:
            self._keys = np.concatenate([np.empty(0, np.uint64), *map(keys, self._ids())])
            self._keys.sort()
        edges = [2**64 * at // of for at in (bucket, bucket + 1)]
        first, last = (int(np.searchsorted(self._keys, _edge(e), "left")) for e in edges)
        last = len(self._keys) if bucket + 1 == of else last
        own = self._keys[first:last].copy()
        if bucket + 1 == of:
            self._keys = None  # all are compared
        return own

    def named(self, suspects: NDArray[np.uint64]) -> list[int | str]:
        """The ids of the agents that have one of these keys."""
        same = (ids.filter(to_arrow(np.isin(keys(ids), suspects))) for ids in self._ids())
        return [id for ids in same for id in ids.to_pylist()]

    def probe(self, place: str, name: str) -> None:
        """Write an empty file where the allocation will be."""
        put_file(place, name, lambda file: None)

    def write(self, final: Final, place: str, name: str) -> None:
        """Write what the worker's agents get to a file of its own, whole."""
        put_file(place, name, lambda file: self._loaded().write(final, file))

    def _ids(self) -> Iterator[pa.Array]:
        """The id of every agent, some at a time."""
        rows = (part.ids for part in self._loaded().parts)
        return first_ids(rows) if self.market.options > 1 else rows

    def _loaded(self) -> Shard:
        if self._shard is None:
            codes, scratch = self._codes()
            parts = [part for some, _ in codes for part in some]
            shard = Shard(self.market, parts, self.threads, **scratch)
            self._tallies, self._digest = [tally for _, tally in codes], shard.digest()
            self._shard = shard
        return self._shard

    def _codes(self) -> tuple[list[Codes], dict[str, Any]]:
        def encode(piece: FilePiece, keep: Keep) -> Tally:
            return encode_piece(self.market, piece, clamp=self.clamp, keep=keep)

        if self.store is not None:
            store, key = Store(Path(self.store)), f"{self.pieces} {key_of(self.market, self.clamp)}"
            codes = store.codes(key, self.pieces, encode, self.threads)
            return codes, {"scratch": store.scratch, "room": _ROOM}

        def in_memory(piece: FilePiece) -> Codes:
            parts: list[Any] = []
            tally = encode(piece, parts.append)
            return parts, tally

        return self.threads.map(in_memory, self.pieces), {}


class RayEngine(Combined):
    """The agents of a cluster."""

    seconds = 0.0
    """How long the slowest worker was at work on the last question."""

    def __init__(
        self,
        market: Market,
        pieces: list[list[FilePiece]],
        clamp: bool,
        threads: int,
        settings: Ray,
        run: str,
    ) -> None:
        super().__init__(market)
        self._settings, self._pieces, self._run = settings, pieces, run
        actor: Any = ray.remote(
            num_cpus=threads,
            max_restarts=_RESTARTS,
            max_task_retries=_RESTARTS,
            scheduling_strategy="SPREAD",
        )(Worker)
        rest = clamp, threads, settings.store
        self._workers: list[Any] = [actor.remote(market, own, *rest) for own in pieces]
        self._digests: list[int] = []
        self._count = self._clamped = 0

    @classmethod
    def open(
        cls, source: Source, threads: int | None, settings: Ray, place: Place, tell: Tell
    ) -> RayEngine:
        """Start workers that read some files, and wait until they have."""
        _connect(settings.address)
        cores = int(ray.cluster_resources().get("CPU", 1))  # type: ignore[no-untyped-call]
        workers = settings.workers or max(1, cores // (threads or 1))
        each = threads or max(1, cores // workers)
        if workers * each > cores:
            raise EngineError(
                f"{workers} workers of {each} cores do not fit on the {cores} cores of the cluster",
                "ask for fewer workers or threads",
            )
        even = source.market.agents // (4 * workers)  # a few for each, so that loads are even
        pieces = source.pieces(max(1, min(PART_ROWS, even)))
        rest = source.clamp, each, settings, place.name
        engine = cls(source.market, _cut(pieces, workers), *rest)
        try:
            if place.folder is not None:
                engine._check_place(settings.allocation or str(place.folder))
            engine._load(tell)
        except BaseException:
            engine.close()
            raise
        return engine

    @property
    def count(self) -> int:
        return self._count

    @property
    def clamped(self) -> int:
        return self._clamped

    @property
    def numbered(self) -> bool:
        return False  # tables have ids

    def write(self, board: Billboard, allocation: Allocation, folder: Path) -> None:
        """A file a worker, in the folder `allocation`, or where the settings say.

        Files bear the name of the run and how many there are; what this run wrote when there were
        more or fewer workers is removed.
        """
        place = self._settings.allocation
        if place is None:
            place = str((folder / "allocation").absolute())
            Path(place).mkdir(mode=0o700, exist_ok=True)
        get, of = ray.put(final(board, allocation.drop_from)), len(self._workers)
        names = [f"{self._run}-{i:05d}-of-{of:05d}.parquet" for i in range(of)]
        self._collect(
            [
                worker.answer.remote("write", get, place, name)
                for worker, name in zip(self._workers, names, strict=True)
            ]
        )
        for name in files_in(place):
            if self._is_ours(name) and name not in names:
                remove_file(place, name)

    def close(self) -> None:
        """End the workers, whose cores others may wait for."""
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []

    def _all(self, question: str, *about: Any) -> list[Any]:
        if not self._workers:
            raise EngineError(
                "the workers of this run have ended",
                "read the allocation in the output folder, or in Result.shares of a run without",
            )
        # What is large is sent once, not once for each.
        sent = [ray.put(a) if isinstance(a, Rounds | Final) else a for a in about]
        return self._collect([w.answer.remote(question, *sent) for w in self._workers])

    def _collect(self, coming: list[Any]) -> list[Any]:
        """What all workers answer, once it is sure that their records are still the same."""
        digests, seconds, answers = [], [], []
        for number, one in enumerate(coming):
            digest, took, answer = self._get(one, self._who(number))
            digests.append(digest)
            seconds.append(took)
            answers.append(answer)
        for number, (was, now) in enumerate(zip(self._digests, digests, strict=True)):
            if was != now:
                raise AgentsError(
                    f"the records of {self._what(number)} have changed since the run began",
                    "put back the files that the run began with, then `jdpack resume` goes on",
                )
        self.seconds = max(seconds)
        return answers

    def _get(self, coming: Any, who: str, times: int = 1) -> Any:
        """What comes from the cluster; what goes wrong there, as one of our errors."""
        patience = times * self._settings.patience
        try:
            return ray.get(coming, timeout=patience)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, JdpackError):
                raise error.cause from None
            if isinstance(error.cause, OSError):
                raise OutputError(
                    f"{who} cannot write: {error.cause}",
                    "make room there, then `jdpack resume` goes on; nothing more is spent",
                ) from None
            raise
        except ray.exceptions.GetTimeoutError:
            problem = f"has not answered for {patience:g} seconds"
        except ray.exceptions.RayError as error:
            problem = f"is lost: {str(error).splitlines()[0].rstrip('.')}"
        raise EngineError(
            f"{who} {problem}",
            "what is posted is kept: once the cluster is well, `jdpack resume` goes on from there",
        ) from None

    def _who(self, number: int) -> str:
        return f"worker {number + 1} of {len(self._workers)}, with {self._what(number)},"

    def _what(self, number: int) -> str:
        """A worker's records, for people."""
        spans = [span for piece in self._pieces[number] for span in piece.spans]
        names = list(dict.fromkeys(span.file.where for span in spans))
        return f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")

    def _load(self, tell: Tell) -> None:
        """Wait until all have read their pieces; check what only all of them together show."""
        tallies: list[Tally] = []
        busy = []
        coming = [worker.answer.remote("tallies") for worker in self._workers]
        for number, one in enumerate(coming):
            digest, _, own = self._get(one, self._who(number), _READING)
            if any(tally.rows for tally in own):
                busy.append((self._workers[number], self._pieces[number], digest))
            else:  # of some files all rows belong to agents that begin in the files before
                ray.kill(self._workers[number])
            tallies += own
            tell((number + 1) / len(coming))
        check_tallies(self.market, tallies)
        workers, pieces, digests = zip(*busy, strict=True)
        self._workers, self._pieces, self._digests = list(workers), list(pieces), list(digests)
        self._count = sum(t.agents for t in tallies)
        self._clamped = sum(t.clamped for t in tallies)
        self._check_unique()

    def _check_place(self, place: str) -> None:
        """Refuse a place for the allocation that workers cannot write to, before any is spent."""
        try:
            others = [n for n in files_in(place) if n.endswith(".parquet") and not self._is_ours(n)]
        except OSError as error:
            raise OutputError(
                f"cannot write an allocation to {place!r}: {error}",
                "give a folder that all machines share, or a URI, with --allocation",
            ) from None
        if others and place == self._settings.allocation:
            raise OutputError(
                f"there is {others[0]!r} in {place!r} already",
                "choose a folder of its own for the allocation of each run",
            )
        names = [f".jdpack-{self._run}-{i}" for i in range(len(self._workers))]
        probes = [
            worker.probe.remote(place, name)
            for worker, name in zip(self._workers, names, strict=True)
        ]
        for number, one in enumerate(probes):
            self._get(one, self._who(number))
        there = set(files_in(place))
        for name in names:
            if name not in there:
                raise OutputError(
                    f"the workers do not write to the same {place!r} as this process reads",
                    "give a folder that all machines share, or a URI, with --allocation",
                )
            remove_file(place, name)

    def _is_ours(self, name: str) -> bool:
        return name.startswith(f"{self._run}-")

    def _check_unique(self) -> None:
        """Refuse an id of two agents, wherever they are."""
        ends = self._all("ends")
        if None not in ends and all(a[1] < b[0] for a, b in pairwise(ends)):
            return
        compare = ray.remote(num_cpus=0)(_repeated)
        buckets = -(-self._count // _BUCKET)
        for bucket in range(buckets):  # keys go from worker to worker, not through the driver
            found = [worker.keys.remote(bucket, buckets) for worker in self._workers]
            suspects = self._get(compare.remote(*found), "the comparison of ids", _READING)
            if len(suspects):
                named = Counter(id for some in self._all("named", suspects) for id in some)
                id, times = named.most_common(1)[0]
                if times > 1:
                    refuse_repeated(id, self.market.options > 1)


def _repeated(*found: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return repeated(found)


def _edge(key: int) -> np.uint64:
    return np.uint64(min(key, 2**64 - 1))


# --- where the allocation goes ------------------------------------------------------------


# --- Ray ----------------------------------------------------------------------------------


_connected: list[str | None] = []
"""The address that this module has connected the process to."""


def _connect(address: str | None) -> None:
    """Use the Ray that this process is connected to, or connect, or start one here."""
    if ray.is_initialized():
        if address is not None and address not in _connected:
            raise EngineError(
                f"this process is connected to a Ray other than {address!r}",
                "leave the address out to use that one, or call ray.shutdown() first",
            )
        return
    try:
        if address is not None or "RAY_ADDRESS" in os.environ:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        else:
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=_OBJECTS,
            )
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        problem = str(error).splitlines()[0].rstrip(".")
        raise EngineError(
            f"cannot reach Ray{f' at {address!r}' if address else ''}: {problem}",
            "start it with `ray start --head`, or leave the address out",
        ) from None
    _connected[:] = [address]


def _cut(pieces: Sequence[Any], workers: int) -> list[list[FilePiece]]:
    """Consecutive runs of pieces, of about the same number of rows, for at most so many workers."""
    if len(pieces) <= workers:
        return [[piece] for piece in pieces]
    rows, before, runs = sum(piece.rows for piece in pieces), 0, dict[int, list[FilePiece]]()
    for piece in pieces:  # it goes to the worker in whose even share its middle is
        runs.setdefault((2 * before + piece.rows) * workers // max(1, 2 * rows), []).append(piece)
        before += piece.rows
    return list(runs.values())
