"""Private: the engine for a Ray cluster.

Every worker is an actor that owns some pieces of the input. A piece is a path and a range, so a
worker reads and encodes its records by itself, wherever it runs. The driver only sends prices and
receives sums. It draws noise once per round, after all sums have arrived.

If a worker's process dies, Ray restarts it with the same pieces and asks it again. The answer is
the same, because it is a function of the records. Every answer carries a digest of the records it
was computed from. If the digest changes, a file has changed during the run, and the run stops.
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
from jdpack.engines.allocation_files import files_in, put_file, remove_file, tables_in
from jdpack.engines.base import Allocation
from jdpack.engines.code_store import Keep, Store
from jdpack.engines.mapped import key_of
from jdpack.engines.settings import Ray, RunInfo, Tell
from jdpack.engines.shard import Final, Rounds, Shard
from jdpack.engines.sharded import Combined, final
from jdpack.errors import AgentsError, EngineError, JdpackError, OutputError
from jdpack.market.market import Market
from jdpack.records.arrow import to_arrow
from jdpack.records.codes import PART_ROWS
from jdpack.records.encode import Codes, Tally, check_tallies, encode_piece
from jdpack.records.ids import first_ids, keys, repeated, survey
from jdpack.records.readers import FilePiece
from jdpack.records.refusals import repeated_id
from jdpack.records.schema import has_several
from jdpack.records.source import Source
from jdpack.records.threads import Threads

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send nothing from a curator's machine
try:
    import ray
    import ray.exceptions
except ImportError:
    raise EngineError("the engine ray needs Ray", "pip install 'jdpack[ray]'") from None

_RESTARTS = 20  # of one worker; if it dies more often, the cause is permanent
_OBJECTS = 200 * 10**6  # bytes of shared memory for a local Ray; answers are small
_BUCKET = 2**22  # about how many keys of ids are compared at a time
_COPIED = 10**9  # bytes for copies of the codes that a worker has on disk
_READING = 10  # a worker may take this many times longer to read its records than to answer


class Worker:
    """The actor: a shard of some pieces, which it reads at the first question."""

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
        """The digest of the records, the seconds it took, and the answer to a question."""
        shard = self._loaded()
        start = time.perf_counter()
        answer = getattr(self if hasattr(self, question) else shard, question)(*about)
        return self._digest, time.perf_counter() - start, answer

    def tallies(self) -> list[Tally]:
        return self._tallies

    def ends(self) -> tuple[int, int] | None:
        """The first and the last id, if all ids are increasing whole numbers."""
        ids = list(self._ids())
        if not ids or not survey(iter(ids))[1]:
            return None
        return ids[0][0].as_py(), ids[-1][-1].as_py()

    def keys(self, bucket: int, of: int) -> NDArray[np.uint64]:
        """The keys of the agents' ids that fall into one of `of` buckets."""
        if self._keys is None:
            self._keys = np.concatenate([np.empty(0, np.uint64), *map(keys, self._ids())])
            self._keys.sort()
        edges = [2**64 * at // of for at in (bucket, bucket + 1)]
        first, last = (int(np.searchsorted(self._keys, _edge(e), "left")) for e in edges)
        last = len(self._keys) if bucket + 1 == of else last
        own = self._keys[first:last].copy()
        if bucket + 1 == of:
            self._keys = None  # this was the last bucket
        return own

    def repeated(self, *found: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The keys that occur more than once among those of all workers."""
        return repeated(found)

    def named(self, suspects: NDArray[np.uint64]) -> list[int | str]:
        """The ids of the agents with one of these keys."""
        same = (ids.filter(to_arrow(np.isin(keys(ids), suspects))) for ids in self._ids())
        return [id for ids in same for id in ids.to_pylist()]

    def probe(self, place: str, name: str) -> None:
        """Write an empty file where the allocation will be."""
        put_file(place, name, lambda file: None)

    def write(self, final: Final, place: str, name: str) -> None:
        """Write what the worker's agents get to its own file, whole or not at all."""
        put_file(place, name, lambda file: self._loaded().write(final, file))

    def _ids(self) -> Iterator[pa.Array]:
        """The id of every agent, some at a time."""
        rows = (part.ids for part in self._loaded().parts)
        return first_ids(rows) if has_several(self.market) else rows

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
            return codes, {"scratch": store.scratch, "limit_bytes": _COPIED}

        def in_memory(piece: FilePiece) -> Codes:
            parts: list[Any] = []
            tally = encode(piece, parts.append)
            return parts, tally

        return self.threads.map(in_memory, self.pieces), {}


class RayEngine(Combined):
    """The agents of a cluster."""

    seconds = 0.0
    """How long the slowest worker took for the last question."""

    numbered = False  # tables have ids

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
        self.count = self.requests = self.clamped = 0

    @classmethod
    def open(
        cls, source: Source, threads: int | None, settings: Ray, run: RunInfo, tell: Tell
    ) -> RayEngine:
        """Start workers and wait until they have read the files."""
        _connect(settings.address)
        cores = int(ray.cluster_resources().get("CPU", 1))  # type: ignore[no-untyped-call]
        workers = settings.workers or max(1, cores // (threads or 1))
        each = threads or max(1, cores // workers)
        if workers * each > cores:
            raise EngineError(
                f"{workers} workers with {each} cores each do not fit on {cores} cores",
                "ask for fewer workers or threads",
            )
        even = source.market.agents // (4 * workers)  # several pieces per worker, for even loads
        pieces = source.pieces(max(1, min(PART_ROWS, even)))
        rest = source.clamp, each, settings, run.name
        engine = cls(source.market, _cut(pieces, workers), *rest)
        try:
            if run.folder is not None:
                engine._check_place(settings.allocation or str(run.folder))
            engine._load(tell)
        except BaseException:
            engine.close()
            raise
        return engine

    def write(self, board: Billboard, allocation: Allocation, folder: Path) -> None:
        """Write one file per worker, to the folder `allocation` or to where the settings say.

        File names include the name of the run and the number of workers. Files that this run wrote
        with another number of workers are removed.
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
        """End the workers, so that others can use their cores."""
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []

    def _all(self, question: str, *about: Any) -> list[Any]:
        if not self._workers:
            raise EngineError(
                "the workers of this run have ended",
                "read the allocation in the output folder; a run without one keeps Result.shares",
            )
        # Send large arguments once, not once per worker.
        sent = [ray.put(a) if isinstance(a, Rounds | Final) else a for a in about]
        return self._collect([w.answer.remote(question, *sent) for w in self._workers])

    def _collect(self, coming: list[Any]) -> list[Any]:
        """The answers of all workers, after checking that their records have not changed."""
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
                    "restore the files that the run began with, then `jdpack resume`",
                )
        self.seconds = max(seconds)
        return answers

    def _get(self, coming: Any, who: str, times: int = 1) -> Any:
        """A result from the cluster; any error there is raised as an error of jdpack."""
        patience = times * self._settings.patience
        try:
            return ray.get(coming, timeout=patience)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, JdpackError):
                raise error.cause from None
            if isinstance(error.cause, OSError):
                raise OutputError(
                    f"{who} cannot write: {error.cause}",
                    "free some space there, then `jdpack resume`, which spends nothing more",
                ) from None
            raise
        except ray.exceptions.GetTimeoutError:
            problem = f"has not answered for {patience:g} seconds"
        except ray.exceptions.RayError as error:
            problem = f"is lost: {str(error).splitlines()[0].rstrip('.')}"
        raise EngineError(
            f"{who} {problem}",
            "what is posted is kept: when the cluster works again, `jdpack resume`",
        ) from None

    def _who(self, number: int) -> str:
        return f"worker {number + 1} of {len(self._workers)}, with {self._what(number)},"

    def _what(self, number: int) -> str:
        """The files of a worker's records, for a message."""
        spans = [span for piece in self._pieces[number] for span in piece.spans]
        names = list(dict.fromkeys(span.file.where for span in spans))
        return f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")

    def _load(self, tell: Tell) -> None:
        """Wait until all workers have read their pieces, then check them together."""
        tallies: list[Tally] = []
        busy = []
        coming = [worker.answer.remote("tallies") for worker in self._workers]
        for number, one in enumerate(coming):
            digest, _, own = self._get(one, self._who(number), _READING)
            if any(tally.rows for tally in own):
                busy.append((self._workers[number], self._pieces[number], digest))
            else:  # all its rows belong to agents that begin in an earlier piece
                ray.kill(self._workers[number])
            tallies += own
            tell((number + 1) / len(coming))
        check_tallies(self.market, tallies)
        workers, pieces, digests = zip(*busy, strict=True)
        self._workers, self._pieces, self._digests = list(workers), list(pieces), list(digests)
        self.count = sum(t.agents for t in tallies)
        self.requests = sum(t.requests for t in tallies)
        self.clamped = sum(t.clamped for t in tallies)
        self._check_unique()

    def _check_place(self, place: str) -> None:
        """Refuse a place that workers cannot write the allocation to, before anything is spent."""
        try:
            others = [name for name in tables_in(place) if not self._is_ours(name)]
        except OSError as error:
            raise OutputError(
                f"cannot write an allocation to {place!r}: {error}",
                "give a folder that all machines share, or a URI, with --allocation",
            ) from None
        if others and place == self._settings.allocation:
            raise OutputError(
                f"{place!r} already contains {others[0]!r}",
                "give the allocation of each run its own folder",
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
                    f"the workers' {place!r} is not the folder that this process sees",
                    "give a folder that all machines share, or a URI, with --allocation",
                )
            remove_file(place, name)

    def _is_ours(self, name: str) -> bool:
        return name.startswith(f"{self._run}-")

    def _check_unique(self) -> None:
        """Refuse an id of two agents, even on different workers."""
        ends = self._all("ends")
        if None not in ends and all(a[1] < b[0] for a, b in pairwise(ends)):
            return
        first = self._workers[0]  # compares them: a process of its own would take a second to start
        buckets = -(-self.count // _BUCKET)
        for bucket in range(buckets):  # keys do not pass through the driver
            found = [worker.keys.remote(bucket, buckets) for worker in self._workers]
            suspects = self._get(first.repeated.remote(*found), "the comparison of ids", _READING)
            if len(suspects):
                named = Counter(id for some in self._all("named", suspects) for id in some)
                id, times = named.most_common(1)[0]
                if times > 1:
                    raise repeated_id(id, has_several(self.market))


def _edge(key: int) -> np.uint64:
    return np.uint64(min(key, 2**64 - 1))


# --- Ray ----------------------------------------------------------------------------------


_connected: list[str | None] = []
"""The address that this module has connected to."""


def _connect(address: str | None) -> None:
    """Use the Ray that this process is connected to; otherwise connect, or start a local one."""
    if ray.is_initialized():
        if address is not None and address not in _connected:
            raise EngineError(
                f"this process is already connected to another Ray than {address!r}",
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
    """Split the pieces into consecutive runs of about equal rows, at most one per worker."""
    if len(pieces) <= workers:
        return [[piece] for piece in pieces]
    rows, before, runs = sum(piece.rows for piece in pieces), 0, dict[int, list[FilePiece]]()
    for piece in pieces:  # each goes to the worker whose even part contains its middle
        runs.setdefault((2 * before + piece.rows) * workers // max(1, 2 * rows), []).append(piece)
        before += piece.rows
    return list(runs.values())
