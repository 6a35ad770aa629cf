"""Private: read everything that a run would read, spend nothing, and say what looks wrong.

For the curator alone: what it says is about the records, without any noise.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jdpack.common.by_name import ByName
from jdpack.engines.base import Engine
from jdpack.engines.settings import RunInfo, choice_of
from jdpack.errors import AgentsError
from jdpack.market.market import Market
from jdpack.pages.number_text import short, short_percent
from jdpack.planning.plan import Plan, plan
from jdpack.policies.base import Policy
from jdpack.privacy.accounting import Budget
from jdpack.records import tables
from jdpack.records.ids import plain_ids
from jdpack.records.schema import has_runs
from jdpack.records.source import Source
from jdpack.run.arguments import check_curated, source_of

CURATOR_ONLY = (
    "CURATOR ONLY: this is about the records, without noise. Publish none of it. If you change a "
    "public number because of it, that change reveals something about the records."
)
_SHOWN = 12  # resources


@dataclass(frozen=True)
class Checked:
    """Private: what a run would read and do, and what looks wrong. `str(checked)` is for people."""

    plan: Plan
    """What the budget buys; public."""
    agents: int
    """How many agents the table has."""
    requests: int
    """How many requests they make."""
    beyond: int
    """How many numbers are beyond the public bounds."""
    refused: str | None
    """Why `solve` would refuse the table; None if it would not."""
    wanted: ByName
    """What everybody would take if all prices were 0, as a multiple of each supply."""
    value: float
    """The total value if everybody got that."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What looks wrong."""
        return tuple(_problems(self))

    def to_dict(self) -> dict[str, Any]:
        """For programs. Curator only."""
        return {
            "curator_only": True,
            "plan": self.plan.to_dict(),
            "agents": self.agents,
            "requests": self.requests,
            "beyond": self.beyond,
            "refused": self.refused,
            "wanted": self.wanted.to_dict(),
            "value": self.value,
            "problems": list(self.problems),
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def __repr__(self) -> str:
        many = len(self.problems)
        return f"Checked({self.plan.market.name!r}, {self.agents:,} agents, {many} problems)"


def check(
    market: Market | str | Path,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    groups_of: Any = None,
    requests_of: Any = None,
    epsilon: float | None = None,
    delta: float | None = None,
    policy: Policy[Any] | str | None = None,
    clamp: bool = False,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Checked:
    """Read everything that `solve` would read, spend nothing, and say what looks wrong.

    Args:
        market: the public market, or the path of a market file.
        agents, values, demands, ids, groups_of, requests_of: the records, as for `solve`.
        epsilon, delta, policy: the budget and the algorithm, as for `solve`.
        clamp: as for `solve`.
        threads: how many cores to use.
        progress: called with the fraction of the records that has been read.

    The result is **for the curator only**: it has no noise.
    """
    planned = plan(market, epsilon=epsilon, delta=delta, policy=policy)
    check_curated(planned.policy)
    source = source_of(planned.market, agents, values, demands, ids, groups_of, requests_of, clamp)
    refused = None
    with contextlib.ExitStack() as held:
        try:
            engine = held.enter_context(_opened(source, threads, progress))
        except AgentsError as error:
            _tell_repeated(source, planned.budget)
            if clamp:
                raise
            refused = error.message
            try:  # numbers beyond the bounds are counted; anything else is an error
                engine = held.enter_context(_opened(replace(source, clamp=True), threads, progress))
            except AgentsError:
                raise error from None
        free = (0,) * len(planned.market.resources)
        supplies = planned.market.supply_codes
        loads = [load / s for load, s in zip(engine.demand(free), supplies, strict=True)]
        return Checked(
            plan=planned,
            agents=engine.count,
            requests=engine.requests,
            beyond=engine.clamped,
            refused=refused,
            wanted=ByName([r.name for r in planned.market.resources], loads),
            value=engine.value(free) * planned.market.value_step,
        )


@contextlib.contextmanager
def _opened(
    source: Source, threads: int | None, progress: Callable[[float], None] | None
) -> Iterator[Engine]:
    choice = choice_of(None, source.market, source.agents)
    with tempfile.TemporaryDirectory() as folder:
        info = RunInfo("check", Path(folder))
        opened = choice.open(source, threads, info, progress or (lambda done: None))
        with contextlib.closing(opened) as engine:
            yield engine


def _tell_repeated(source: Source, budget: Budget) -> None:
    """Raise an error if ids are in several rows; it says what each reading of them would protect.

    Only if a row is all that an agent asks for; otherwise the market says how to read them.
    """
    market = source.market
    if has_runs(market):
        return
    try:
        chunks = [rows.ids for piece in source.pieces() for rows in tables.read(market, piece)]
        counts = pa.chunked_array([plain_ids(ids) for ids in chunks if ids is not None])
        times = counts.value_counts()
    except (AgentsError, pa.ArrowException):  # which is refused for another reason
        return
    many = int(pc.sum(pc.greater(times.field("counts"), 1)).as_py() or 0)
    if many == 0:
        return
    most = pc.max(times.field("counts")).as_py()
    id = times.field("values")[pc.index(times.field("counts"), most).as_py()].as_py()
    epsilon = budget.epsilon_of_group(most)
    worse = "is hardly protected" if epsilon is None else f"has epsilon {epsilon:.3g}"
    raise AgentsError(
        f"{many:,} of {len(times):,} ids are in several rows; {id!r} is in {most:,}",
        "what are the rows of one id? If they are options, of which the agent takes one, set "
        f"{market.hint('options in [agents]', 'Market(options=...)')}: all of them are protected "
        "together. If they are requests, each decided on its own, set "
        f"{market.hint('requests in [person]', 'Market(person=...)')}: everything that one person "
        "asks for is protected, however many requests. If you give each row its own id, only "
        f"single rows are protected: whoever has {most:,} of them {worse} instead of "
        f"{budget.epsilon:g}",
    )


def _protected(checked: Checked) -> str:
    """Who is protected, by how the market reads the rows of one id."""
    market = checked.plan.market
    if market.requests > 1:
        each = checked.requests / max(1, checked.agents)
        mean = f"{checked.requests:,} requests, {each:.3g} per agent on average"
        return f"everything that one agent asks for, over all requests ({mean})"
    if market.options > 1:
        return "everything that one agent asks for: its rows are options, and it takes one at most"
    return "one agent: people with several ids are protected for each of them alone"


def _problems(checked: Checked) -> Iterator[str]:
    planned, wanted = checked.plan, checked.wanted.to_dict()
    if checked.refused is not None:
        yield f"solve would refuse the table: {checked.refused}"
    if checked.beyond:
        are = "number is" if checked.beyond == 1 else "numbers are"
        yield f"{checked.beyond:,} {are} beyond the public bounds; --clamp moves them to the bounds"
    if planned.warning is not None:
        yield planned.warning.message
    if planned.weakness is not None:
        yield planned.weakness.message
    if checked.value == 0.0:
        yield "no record asks for anything of value, so nobody would get anything"
        return
    idle = [name for name, load in wanted.items() if load == 0.0]
    if idle:
        more = f" (and {len(idle) - 1:,} more)" if len(idle) > 1 else ""
        yield f"nobody asks for {idle[0]!r}{more}: is the column the right one?"
    if max(wanted.values()) <= 1.0:
        yield "nothing is scarce: everybody could have their favourite without any allocation"


def _lines(checked: Checked) -> Iterator[str]:
    planned = checked.plan
    market, budget = planned.market, planned.budget
    at_most = "at most " if market.neighbours.value == "add-remove" else ""
    yield CURATOR_ONLY
    yield ""
    declared = f"the market declares {at_most}{market.agents:,}"
    yield f"{market.name}: {checked.agents:,} agents; {declared}"
    yield f"  protects   {_protected(checked)}"
    for name, load in list(checked.wanted.to_dict().items())[:_SHOWN]:
        yield f"  wanted     {short(load)} times the supply of {name}"
    if len(checked.wanted) > _SHOWN:
        yield f"             ... and {len(checked.wanted) - _SHOWN:,} more with --json"
    spends = f"epsilon {budget.epsilon:g} and delta {budget.delta:g}"
    yield f"  a run      {planned.policy.to_dict()['name']}; it would spend {spends}"
    yield f"  margin     {short_percent(planned.margin)} of the supplies would stay free for noise"
    found = checked.problems
    yield "" if found else "  nothing looks wrong"
    if found:
        yield "what looks wrong"
        yield from (f"  - {problem}" for problem in found)
        yield ""
    yield "nothing was spent, and nothing was written"
