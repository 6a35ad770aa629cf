"""Private: the engine for more agents than fit in memory, with codes on disk.

Records are encoded once, piece by piece on all cores, to a code store (`jdpack.store`), in which
later runs on the same records find them again. Rounds go over the mapped codes: the operating
system keeps in memory what fits, and reads the rest again. Shares stand on disk too, and what is
copied of the codes or sorted of the ids is held to a limit.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from pathlib import Path

from jdpack import files
from jdpack.encoding import Codes, Tally, encode_piece, gather
from jdpack.engines.choice import Source, Tell
from jdpack.engines.memory import MemoryEngine
from jdpack.errors import OutputError
from jdpack.market import Market
from jdpack.store import Keep, Store
from jdpack.tables import Piece
from jdpack.threads import Threads

_PIECE_ROWS = 2**19  # one file each


class MappedEngine(MemoryEngine):
    """Agents in one shard of mapped parts."""

    @classmethod
    def open(
        cls,
        source: Source,
        threads: int | None,
        folder: Path | None,
        near: Path,
        room: int,
        tell: Tell,
    ) -> MappedEngine:
        """Map the codes of some files, encoding them first if the store has none.

        With no folder for a store, one is made `near` and removed as soon as it is mapped: its
        files live until the engine goes, and even a kill leaves nothing behind.
        """
        market, own = source.market, Threads(threads)
        if folder is not None:
            key = f"{files.fingerprint(source.agents, own)} {key_of(market, source.clamp)}"
            codes = stored(Store(folder), key, source, own, tell)
        else:
            try:
                temporary = tempfile.mkdtemp(prefix=".jdpack-codes-", dir=near)
            except OSError as error:
                raise OutputError(
                    f"cannot write codes to {str(near)!r}: {error.strerror}",
                    "choose a folder for them with --store",
                ) from None
            try:
                codes = stored(Store(Path(temporary)), "", source, own, tell)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        agents = gather(market, codes, room // 2)
        return cls(agents, threads, Store(folder or near).scratch, room // 2)


def key_of(market: Market, clamp: bool) -> str:
    """What codes depend on beside the records."""
    data = market.to_dict()
    data["privacy"] = data["privacy"]["neighbours"]
    return json.dumps([data | {"name": ""}, clamp], sort_keys=True)


def stored(store: Store, key: str, source: Source, threads: Threads, tell: Tell) -> list[Codes]:
    """The codes of a source, encoded if the store does not have them."""
    pieces, finished = source.pieces(_PIECE_ROWS), itertools.count(1)

    def encode(piece: Piece, keep: Keep) -> Tally:
        tally = encode_piece(source.market, piece, clamp=source.clamp, keep=keep)
        tell(next(finished) / len(pieces))
        return tally

    return store.codes(key, pieces, encode, threads)
