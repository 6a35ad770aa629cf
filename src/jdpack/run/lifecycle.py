"""Private: the life of a run: begin it or reopen it, carry it out, and leave nothing half done.

The order is what keeps a crash harmless: reserve the budget, read the records, post the header,
play the rounds, write the allocation, tell the ledger. Until the header is posted, nothing is
spent, and a failure undoes everything. After that, whatever is posted is spent, and the run can
only be resumed.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jdpack.billboard.board import Billboard
from jdpack.billboard.file import Note, first_line, lost
from jdpack.billboard.lines import Header
from jdpack.door import Randomness, SeededRandomness, SystemRandomness
from jdpack.engines.base import Engine
from jdpack.engines.settings import Choice, Ray, RunInfo, Sql
from jdpack.errors import AgentsError, BillboardError, LedgerError, OutputError, SupplyWarning
from jdpack.ledger.account import Account
from jdpack.ledger.balance import Balance
from jdpack.policies.base import Policy
from jdpack.records.source import Source
from jdpack.run.arguments import check_order
from jdpack.run.folder import Output
from jdpack.run.loop import run
from jdpack.run.result import Progress, Result
from jdpack.run.run_file import RunFile, locked
from jdpack.run.write_back import Target, rows_of


@dataclass(frozen=True, kw_only=True)
class Lifecycle:
    """A run that is about to begin, or to resume."""

    file: RunFile
    header: Header
    policy: Policy[Any]
    source: Source
    choice: Choice
    account: Account | None
    folder: Output | None
    target: Target | None
    warning: SupplyWarning | None
    threads: int | None
    progress: Callable[[Progress], None] | None

    def begin(self) -> Result:
        """Make the folder, if there is to be one, and carry out the run.

        If the run fails before anything is posted or owed to a ledger, the folder is removed.
        """
        if self.folder is None:
            return self.carry_out(None)
        self.folder.create()
        with locked(self.folder.private):
            try:
                self.folder.keep(self.file)
                return self.carry_out(None)
            except BaseException:
                with contextlib.suppress(BillboardError):
                    begun = first_line(self.folder.billboard, self.folder.journal)
                    if begun is None and not self.owes():
                        self.folder.remove()
                raise

    def carry_out(self, board: Billboard | None, again: bool = False) -> Result:
        """Reserve, read, play the rounds that are left, and allocate.

        `board` is None if nothing is posted yet. Then any failure before the header is posted
        gives back what was reserved.
        """
        with contextlib.ExitStack() as held:
            note: Note | None = None
            if self.account is not None:
                held.enter_context(self.account.held(self.header))
            with contextlib.ExitStack() as undo:
                if self.account is not None:
                    if board is None:  # registered before reserving: Ctrl-C may come at once
                        undo.callback(self.account.cancel, self.header)
                    self.account.reserve(self.header, board, again)
                    note = self.account.note(self.header, board)
                engine = held.enter_context(contextlib.closing(self._read()))
                if board is None:
                    board = self._post_header(engine, note)
                else:
                    self._mend(board, note)
                undo.pop_all()
            held.callback(board.close)
            result = self._play(engine, board)
            if self.folder is not None:
                self.folder.write(result)
                if self.target is not None:
                    self._write_back(self.target, self.folder)
            elif isinstance(self.choice, Ray | Sql):
                result.shares  # noqa: B018 (computed now, while its machines still answer)
            if self.account is not None:
                result = replace(result, balance=self._finish(self.account, board))
            return result

    def _write_back(self, target: Target, folder: Output) -> None:
        hint = (
            "the budget is spent, and the billboard and the files are complete; all rows are there "
            f"or none: run `jdpack resume {folder.folder}`, which writes them if they are missing, "
            "and spends nothing more"
        )
        rows = rows_of(folder.private / "allocation.parquet")
        target.write(self.header.commitment, rows, hint)

    def owes(self) -> bool:
        """Whether a ledger holds something for this run."""
        return self.account is not None and self.account.owes(self.header)

    def _finish(self, account: Account, board: Billboard) -> Balance | None:
        try:
            return account.finish(board, followed=self.folder is not None)
        except LedgerError as error:
            if self.folder is not None:
                raise
            text = f"the run is complete, but its ledger does not know: {error.message}"
            warnings.warn(text, stacklevel=5)
            return None

    def _read(self) -> Engine:
        """Read and encode the records."""

        def tell(done: float) -> None:
            if self.progress is not None:
                self.progress(Progress(0, done, "reading"))

        near = None if self.folder is None else self.folder.folder.absolute().parent
        info = RunInfo(self.header.commitment[:8], near)
        engine = self.choice.open(self.source, self.threads, info, tell)
        try:
            check_order(self.policy.outlook(self.header.market, self.header.budget), engine)
            digest = self.file.digest
            if digest is not None and digest != engine.digest(self.header.coin_hash):
                raise AgentsError(
                    "the records have changed since the run began",
                    "a run must end with the records it began with; a new run spends again",
                )
        except BaseException:
            engine.close()
            raise
        return engine

    def _post_header(self, engine: Engine, note: Note | None) -> Billboard:
        """Begin the billboard. From here on, what is posted is spent."""
        folder = self.folder
        if folder is None:  # nobody can resume it, so one note stands for all its lines
            board = Billboard(self.header)
            if note is not None:
                note(board.head)
            return board
        read = replace(self.file, digest=engine.digest(self.header.coin_hash))
        folder.keep(read)
        try:
            board = Billboard(self.header, folder.billboard, folder.journal, note)
        except OutputError as error:
            hint = "nothing is spent: free some space and run again, or resume if the folder exists"
            raise OutputError(error.message, hint) from None
        folder.keep(replace(read, begun=True))
        return board

    def _mend(self, board: Billboard, note: Note | None) -> None:
        """Post the line that was about to be posted, now that no other process can resume."""
        board.mend(note)
        if self.folder is not None and not self.file.begun:
            self.folder.keep(replace(self.file, begun=True))

    def _play(self, engine: Engine, board: Billboard) -> Result:
        """Play all rounds that are left, and allocate."""
        coins, seed = self.file.coin_seed, self.file.seed
        noise: Randomness = SystemRandomness() if seed is None else SeededRandomness(seed)
        spent = run(engine, self.policy, board, noise, coins, self.progress)
        board.close()
        if self.progress is not None:
            self.progress(Progress(sum(1 for _ in board.rounds), 1.0, "allocation"))
        allocation = engine.allocate(board)
        # Records that stay in their database are not read again here.
        stay = isinstance(self.choice, Sql) and self.source.query is not None
        source = None if stay else self.source
        return Result(board, spent, engine, allocation, self.warning, source=source)


@dataclass(frozen=True)
class Begun:
    """What an interrupted run left in its folder."""

    folder: Output
    file: RunFile
    header: Header
    board: Billboard | None
    """None if nothing is posted yet."""

    def at_ledger(self, ledger: str | Path) -> Begun:
        """The same run, with its ledger in another place; the run file remembers it."""
        account = Account.from_dict(self.file.ledger, ledger)
        assert account is not None
        file = replace(self.file, ledger=account.to_dict())
        self.folder.keep(file)
        return replace(self, file=file)


@contextlib.contextmanager
def reopened(output: str | Path) -> Iterator[Begun]:
    """Lock the folder of an interrupted run, and check that its billboard is its own."""
    folder = Output.reopen(output)
    with locked(folder.private), contextlib.ExitStack() as held:
        file = RunFile.read(folder.run_file)
        folder.settle()
        header, board = Billboard.from_text(file.header + "\n").header, None
        begun = first_line(folder.billboard, folder.journal)
        if begun is None and file.begun:
            raise lost()
        if begun not in (None, file.header) or not file.fits(header):
            raise BillboardError(
                "the billboard's header is not the one that the run began with",
                "it is the billboard of another run: put back the right one",
            )
        if begun is not None:
            board = Billboard.reopen(folder.billboard, folder.journal)
            held.callback(board.close)
        yield Begun(folder, file, header, board)
