"""Private: what `resume` needs besides the billboard, in out/private/run.json.

The file is written before anything is reserved or read, and again, with the digest of the records,
before the billboard begins. A run holds the lock of the file's folder, so two processes never work
on the same run. The file holds the coins' seed, which is secret until the billboard shows it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from jdpack.billboard.lines import Header, Seed
from jdpack.errors import AgentsError, OutputError
from jdpack.storage.files import read_regular, take_lock, write_text

if TYPE_CHECKING:
    from jdpack.records.databases.database import DatabaseQuery

_VERSION = 3
_MOST = 2**27  # bytes; more than any run file has


@dataclass(frozen=True)
class RunFile:
    """What is fixed when a run begins."""

    header: str
    """The billboard's first line."""
    market: str | None
    """The market file; None if the market was given in memory."""
    agents: list[str] | None
    """Where the records are, without passwords; None if they were given in memory."""
    clamp: bool
    engine: dict[str, Any]
    seed: int | None
    """The seed of the noise, in experiments."""
    coins: str
    """The coins' seed, in hexadecimal."""
    ledger: dict[str, str] | None
    """The ledger and the data set that pay for the run (`jdpack.ledger.account`)."""
    digest: int | None = None
    """The digest of the records (`jdpack.records.digest`); None until they are read."""
    allocation: str | None = None
    """The SHA-256 of private/allocation.parquet, once it is written."""
    query: str | None = None
    """The query, if the records are in a database."""
    write_to: str | None = None
    """The table of that database to write the allocation to, if any."""
    begun: bool = False
    """Whether the billboard has its header. If so, an empty billboard has lost what was posted."""

    def records(self, caller: str) -> list[str] | DatabaseQuery:
        """Where the records were when the run began."""
        if self.agents is None:
            raise AgentsError(
                "the records of this run were given in memory",
                f"give them again: jdpack.{caller}(folder, values=..., demands=...)",
            )
        if self.query is not None:
            # Imported here, because a report needs no codes.
            from jdpack.records.databases.database import DatabaseQuery

            return DatabaseQuery(self.agents[0], self.query)
        return self.agents

    @property
    def coin_seed(self) -> Seed:
        return Seed(bytes.fromhex(self.coins))

    def fits(self, first: Header) -> bool:
        """Whether these secrets belong to a header: the coins, and the seed of the noise if any."""
        seeded = self.seed is not None or first.budget.epsilon == math.inf
        return self.coin_seed.commitment == first.commitment and first.private != seeded

    def write(self, path: Path) -> None:
        """Write the whole file; it is on disk when this returns."""
        write_text(path, 0o600, json.dumps({"version": _VERSION, **asdict(self)}))

    @classmethod
    def read(cls, path: Path) -> RunFile:
        try:
            data = json.loads(read_regular(path, _MOST).decode())
            if not isinstance(data, dict) or data.pop("version", None) != _VERSION:
                raise ValueError("another version of jdpack wrote it")
            run = cls(**data)
            run._check()
        except (OSError, TypeError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise OutputError(
                f"cannot read the run file {str(path)!r}: {reason}",
                "give the output folder of a run that solve began",
            ) from None
        return run

    def _check(self) -> None:
        for name, kind in get_type_hints(RunFile).items():
            kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
            if not isinstance(getattr(self, name), tuple(get_origin(k) or k for k in kinds)):
                raise ValueError(f"its {name} is not what solve writes")
        if not all(isinstance(text, str) for text in self.agents or []):
            raise ValueError("its agents are not what solve writes")
        if self.query is not None and len(self.agents or []) != 1:
            raise ValueError("its query is not what solve writes")
        if len(self.coin_seed.seed) != 16:
            raise ValueError("its coins are not 16 bytes")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run by its private folder; refuse if another process holds it."""
    with contextlib.ExitStack() as held:
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            held.callback(os.close, handle)
            take_lock(handle)
        except BlockingIOError:
            raise OutputError(
                f"another process is working on {str(folder.parent)!r}", "wait until it ends"
            ) from None
        except OSError as error:
            raise OutputError(
                f"cannot lock the run {str(folder)!r}: {error.strerror}",
                "it must be a folder that you can read, on a disk that supports locks",
            ) from None
        yield
