"""Private: the engine for more agents than fit in memory, with codes on disk.

Records are encoded once, piece by piece on all cores, to a code store
(`jdpack.engines.code_store`), where later runs on the same records find them. Rounds read the
mapped codes: the operating system keeps what fits in memory, and reads the rest again. Shares are
on disk too, and a limit bounds the memory for copies of codes and for sorting ids.
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
    """All agents in one shard of mapped parts."""

    @classmethod
    def open(
        cls,
        source: Source,
        threads: int | None,
        folder: Path | None,
        near: Path,
        limit_bytes: int,
        tell: Tell,
    ) -> MappedEngine:
        """Map the codes of some files, after encoding them if the store does not have them.

        Without a `folder` for a store, the codes go to unnamed files in the folder `near`. These
        disappear with the engine or its process: even a kill leaves nothing behind.
        """
        market, own = source.market, Threads(threads)
        finished = itertools.count(1)
        if source.query is not None:
            pieces = source.pieces()
        else:
            found = locate.find(source.agents)
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
        half = limit_bytes // 2
        return cls(gather(market, codes, half), threads, store.scratch, half)


def key_of(market: Market, clamp: bool) -> str:
    """What codes depend on besides the records."""
    data = market.to_dict()
    data["privacy"] = data["privacy"]["neighbours"]
    return json.dumps([data | {"name": ""}, clamp], sort_keys=True)
