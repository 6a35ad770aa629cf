"""Private: choose bounds for a market from its records, privately.

It makes one release of counts, and nothing else. The order is the same as in a run: reserve the
budget, read the records, tell the ledger that noise is about to be drawn, draw it, tell the ledger
that all is done, and write. If anything fails before the ledger knows, what was reserved is given
back. From then on it is spent, even if the process is killed before anybody sees the result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jdpack.billboard.lines import Seed
from jdpack.common.checks import check_whole
from jdpack.door import Randomness, SeededRandomness, SystemRandomness, release_levels
from jdpack.errors import BudgetError, LedgerError, MarketError, OutputError
from jdpack.ledger.ledger import Ledger
from jdpack.market.levels import widths
from jdpack.market.market import Market
from jdpack.market.template import with_bounds
from jdpack.planning.bounds import Bounds
from jdpack.privacy import queries
from jdpack.privacy.accounting import Budget, Filter, check_delta
from jdpack.privacy.noise import gaussian
from jdpack.records.levels import count_levels
from jdpack.run.arguments import source_of
from jdpack.storage.files import write_text


def bounds(
    market: Market | str | Path,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    groups_of: Any = None,
    requests_of: Any = None,
    epsilon: float,
    delta: float | None = None,
    share: float = 0.02,
    ledger: str | Path | None = None,
    dataset: str | None = None,
    seed: int | None = None,
    output: str | Path | None = None,
) -> Bounds:
    """Suggest smaller bounds for a market, from its records, with differential privacy.

    The market's own `max_demand` and `max_value` are the widest bounds that make sense, chosen
    without looking at the records. The result is public. It costs (epsilon, delta) on top of what
    runs spend, so it is charged to the ledger of these people.

    Args:
        market: the public market, or the path of a market file.
        agents, values, demands, ids, groups_of, requests_of: the records, as for `solve`.
        epsilon, delta: what it may cost; the market's delta if not given.
        share: the fraction of those who ask for a resource whose amounts a bound may clamp.
        ledger, dataset: the ledger that holds these people's total budget, and their name in it.
        seed: draw reproducible noise, for experiments, without a ledger or an output. The result is
            **not private** and says so.
        output: write the market file with the suggested bounds to this new path. It says what they
            cost.

    Formal guarantees. The result is (epsilon, delta)-differentially private for the market's
    neighbour relation, unless `seed` is given: it is a function of one release
    (`door.release_levels`). Bad input raises before anything is spent or written.
    """
    text = None
    if isinstance(market, str | Path):
        text, market = Path(market), Market.from_toml(market)
    delta = market.delta if delta is None else delta
    if delta is None:
        raise BudgetError("the market has no delta", "give one, such as 1e-8")
    budget = Budget.split(epsilon, delta, truncated=False, repaired=False)
    if budget.epsilon == math.inf:
        raise BudgetError("epsilon inf would publish the exact counts", "1 or less is usual")
    check_delta(budget)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 < share < 1.0:
        raise MarketError(f"share must be above 0 and below 1, not {share!r}")
    target = None if output is None else _Target(text, market, Path(output))
    source = source_of(market, agents, values, demands, ids, groups_of, requests_of, clamp=False)
    change = queries.levels_change(market)
    noise, filter = gaussian(change, budget.rho), Filter(budget)
    Filter(budget).charge(noise.cost(change, sum(widths(market))))  # refuses what is not covered
    if seed is not None:
        check_whole("seed", seed, 0)
        if ledger is not None or dataset is not None:
            raise BudgetError(
                "counts with seeded noise protect nobody and fit no budget",
                "leave out the seed, or the ledger",
            )
        if target is not None:
            raise OutputError(
                "bounds with seeded noise are not private, and a market file could not say so",
                "leave out the seed, or the output; .market of the result is for experiments",
            )
        levels, draws = count_levels(source), SeededRandomness(seed)
        answer = release_levels(market, levels, noise, filter, draws)
        return Bounds.of(market, budget, share, noise, answer, "")
    if ledger is None or dataset is None:
        raise LedgerError(
            "bounds from records spend a part of these people's budget, so they need a ledger and "
            "a data set",
            "`jdpack ledger create` makes a ledger; runs on the same people use it too",
        )
    run, book = f"bounds {Seed.draw().commitment[:32]}", Ledger.open(ledger)
    system: Randomness = SystemRandomness()
    with book.held(run):
        with _given_back(book, run):
            book.reserve(dataset, run, budget, market.neighbours)
            levels = count_levels(source)
            first = _hash({"run": run, "market": market.to_dict(), "noise": noise.to_dict()})
            book.post(run, "", first)  # from here on it is spent
        answer = release_levels(market, levels, noise, filter, system)
        found = Bounds.of(market, budget, share, noise, answer, run)
        last = _hash(found.to_dict())
        book.post(run, first, last)
        book.finish(run, last)
    if target is not None:
        target.write(found)
    return found


@contextlib.contextmanager
def _given_back(book: Ledger, run: str) -> Iterator[None]:
    """If something fails in here, give back what was reserved."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(LedgerError):  # what cannot be given back stays spent
            book.cancel(run)
        raise


class _Target:
    """The market file to write. Everything about it is checked before the release."""

    def __init__(self, source: Path | None, market: Market, path: Path) -> None:
        if source is None:
            raise OutputError(
                "a market made in Python has no file to copy", "use .market of the result"
            )
        if path.exists() or path.is_symlink():
            raise OutputError(f"{str(path)!r} already exists", "give another name")
        if not path.absolute().parent.is_dir():
            raise OutputError(f"there is no folder {str(path.absolute().parent)!r}")
        self.path, self.text = path, source.read_text(encoding="utf-8")
        half = market.changed(
            max_demand=[r.max_demand / 2 for r in market.declared], max_value=market.max_value / 2
        )
        with_bounds(self.text, half)  # raises if the file is not laid out as expected

    def write(self, found: Bounds) -> None:
        """Write it; if that fails, the error has the bounds, because they are paid for."""
        try:
            write_text(self.path, 0o644, with_bounds(self.text, found.market))
        except (OSError, MarketError) as error:
            why = error.message if isinstance(error, MarketError) else error.strerror
            raise OutputError(
                f"cannot write {str(self.path)!r}: {why}", f"enter the bounds by hand:\n{found}"
            ) from None


def _hash(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
