"""Private: the engine for more agents than fit in memory, with codes on disk.

Records are encoded once, piece by piece on all cores, to a code store
(`jdpack.engines.code_store`), in which later runs on the same records find them again. Rounds go
over the mapped codes: the operating system keeps in memory what fits, and reads the rest again.
Shares stand on disk too, and what is copied of the codes or sorted of the ids is held to a limit.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from jdpack.engines.code_store import Keep, Store
from jdpack.engines.memory import MemoryEngine
from jdpack.engines.settings import Tell
from jdpack.market.market import Market
from jdpack.records import locate, readers
from jdpack.records.encode import Tally, encode_piece, gather
from jdpack.records.source import Source
from jdpack.records.tables import Piece
from jdpack.records.threads import Threads

_PIECE_ROWS = 2**19


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

        With no folder for a store, they stand `near` in files without a name, which are gone with
        the engine or its process: even a kill leaves nothing behind.
        """
        market, own = source.market, Threads(threads)
        found, finished = locate.find(source.agents), itertools.count(1)
        pieces = readers.file_pieces(market, found, _PIECE_ROWS)

        def encode(piece: Piece, keep: Keep) -> Tally:
            tally = encode_piece(market, piece, clamp=source.clamp, keep=keep)
            tell(next(finished) / len(pieces))
            return tally

        store = Store(folder or near)
        if folder is None:
            codes = store.unnamed(pieces, encode, own)
        else:
            key = f"{readers.fingerprint(found, own)} {key_of(market, source.clamp)}"
            codes = store.codes(key, pieces, encode, own)
        return cls(gather(market, codes, room // 2), threads, store.scratch, room // 2)


def key_of(market: Market, clamp: bool) -> str:
    """What codes depend on beside the records."""
    data = market.to_dict()
    data["privacy"] = data["privacy"]["neighbours"]
    return json.dumps([data | {"name": ""}, clamp], sort_keys=True)
