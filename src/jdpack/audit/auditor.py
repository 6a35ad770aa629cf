"""Private: empirical tests of the privacy that is promised. Curator only.

An audit runs the real pipeline many times, attacks it, looks at its noise, replays it on
neighbouring data sets, forces every private path to run, and computes again all that each run made
public, answered and gave. It needs SciPy (`pip install 'jdpack[audit]'`). A pass is no proof: the
proofs are in the docstrings of `Market.shifts`, `noise`, `accounting` and `release`; an audit finds
where the code does not do what they say, as far as its attacks can see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from jdpack.audit import budget_checks, noise_checks
from jdpack.audit import neighbours as replays
from jdpack.audit import paths as private_paths
from jdpack.audit.checks import Group, of_every_run
from jdpack.audit.coalition import Coalition, attack, right_at_most
from jdpack.audit.findings import AGAINST, Audit, Finding, fact, guarded, judged
from jdpack.audit.lower_bound import LowerBound, scipy
from jdpack.audit.people import People, example, example_sparse
from jdpack.audit.recording import Setting, Tape
from jdpack.audit.scripted_policy import BATCHES, GREEDY, HALF, Script, known
from jdpack.engines.settings import Choice, choice_of
from jdpack.errors import BudgetError, EngineError, MarketError
from jdpack.market.market import Market
from jdpack.planning.prepare import prepare
from jdpack.policies.base import Policy
from jdpack.policies.spec import label_of
from jdpack.run.arguments import source_of

TRIALS = 110
"""How often the coalition plays each world: more than the 101 that can refute an epsilon of 1."""
NEIGHBOURS = 16
"""How many records of one agent are replayed."""


def audit(
    market: Market | str | Path | None = None,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    policy: Policy[Any] | str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    trials: int = TRIALS,
    neighbours: int = NEIGHBOURS,
    engines: Sequence[str | Choice] = ("memory", "mapped"),
    confidence: float = 0.95,
    seed: int | None = None,
    paths: bool = True,
    progress: Callable[[float, str], None] | None = None,
) -> Audit:
    """Test the privacy of the real pipeline.

    Args:
        market: the public market, or the path of a market file; a small one if not given.
        agents, values, demands, ids: the records, as for `solve`; invented ones within the
            market's bounds if not given. Runs are real, so many agents take long.
        policy, epsilon, delta: as for `solve`; without a market, Newton at (1, 1e-6).
        trials: how often the coalition plays each of its two worlds.
        neighbours: how many records of one agent are replayed, in each engine.
        engines: where sensitivities are checked.
        confidence: of the lower bounds that are shown. What is flagged does not depend on it: an
            honest pipeline fails with a probability of about 1e-6.
        seed: of the audit's own choices of data; noise and coins are never seeded.
        paths: whether to force every private path to run too (`jdpack.audit.paths`), which takes
            some 15 seconds.
        progress: called with the share that is done, and what is being done.
    """
    scipy("stats")
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 4:
        raise MarketError(f"trials must be a whole number from 4 on, not {trials!r}")
    if isinstance(neighbours, bool) or not isinstance(neighbours, int) or neighbours < 2:
        raise MarketError(f"neighbours must be a whole number from 2 on, not {neighbours!r}")
    if not isinstance(confidence, float) or not 0.0 < confidence < 1.0:
        raise MarketError(f"confidence must be a number between 0 and 1, not {confidence!r}")
    if isinstance(engines, str) or not engines:
        raise EngineError(f"engines must be a list of engines, not {engines!r}")
    tell = progress if progress is not None else lambda done, label: None
    if market is None:
        market = example()
        epsilon = 1.0 if epsilon is None else epsilon
        delta = 1e-6 if delta is None else delta
    for engine in engines:
        choice_of(engine, example(), None)  # refuses what is none
    market, policy, budget = prepare(market, policy, epsilon, delta)
    if budget.epsilon == math.inf:
        raise BudgetError("without noise there is no privacy to test", "use a finite epsilon")
    setting = Setting(policy, budget.epsilon, budget.delta)
    people = _people(market, agents, values, demands, ids, seed)

    auditor = _Auditor(setting, people, neighbours, seed or 0, tell, paths)
    return auditor.audit(engines, trials, confidence)


@dataclass
class _Auditor:
    """What is found, and the real runs that were recorded on the way, in their order."""

    setting: Setting
    people: People
    neighbours: int
    seed: int
    tell: Callable[[float, str], None]
    paths: bool
    found: list[Finding] = field(default_factory=list)
    bounds: dict[str, LowerBound] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    runs: list[Tape] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)

    def audit(self, engines: Sequence[str | Choice], trials: int, confidence: float) -> Audit:
        names = [e if isinstance(e, str) else type(e).__name__.lower() for e in engines]
        policy = label_of(self.setting.policy)
        self.tell(0.0, "budget")
        self.found += [
            budget_checks.of_filter(self.people, self.setting.epsilon, self.setting.delta),
            budget_checks.of_batch_filter(self.setting),
            budget_checks.of_formulas([self.people.market, *private_paths.markets()]),
        ]
        for number, (name, engine) in enumerate(zip(names, engines, strict=True)):
            self.tell(0.3 * number / len(engines), f"neighbours ({name})")
            all_engines = engines if number == 0 else ()
            self._replay_policy(name, engine, all_engines)
            self._guard(
                f"replay: to its end ({name})", self._replay_queries, name, engine, all_engines
            )
        with known(Script):
            own = replace(self.setting, policy=GREEDY), 2 * trials, confidence, 0.3, 0.15
            self._guard("coalition: to its end (greedy)", self._attack, "greedy", *own)
        own = self.setting, trials, confidence, 0.45, 0.25
        self._guard(f"coalition: to its end ({policy})", self._attack, policy, *own)
        self.tell(0.7, "private paths")
        self._force_paths()
        self.tell(0.85, "every run again")
        self.found += of_every_run(self.groups)
        self.tell(0.95, "noise")
        self.found += guarded(
            "noise: tested", lambda: noise_checks.of_noise(noise_checks.draws_of(self.runs))
        )
        self.found += noise_checks.of_source()
        self.tell(1.0, "done")
        budget = self.setting.epsilon, self.setting.delta
        found = judged(self.found)
        return Audit(found, self.bounds, *budget, policy, tuple(names), self.limits)

    def _guard(self, check: str, look: Callable[..., None], *about: Any) -> None:
        """Look; a pipeline that breaks down meanwhile has failed."""
        self.found += guarded(check, partial(look, *about))

    def _force_paths(self) -> None:
        """Every private path that can run, on data of the audit's own."""
        if not self.paths:
            self.found.append(fact("paths: all", "each is taken", [], "left out", tested=False))
            return
        forced = private_paths.Paths(self.setting.epsilon, self.setting.delta, self.seed)
        forced.run()
        self.found += forced.found
        self.groups += forced.groups

    def _replay_policy(
        self, name: str, engine: str | Choice, all_engines: Sequence[str | Choice]
    ) -> None:
        """Neighbours of the people given, under the policy given."""
        setting, people = self.setting, self.people
        group = replays.family(setting, people, self.neighbours, self.seed, engine)
        self._keep(group, name)
        if all_engines and group.recorded.board is not None:
            self.found.append(replays.of_same_people(setting, people, all_engines, group.recorded))

    def _replay_queries(
        self, name: str, engine: str | Choice, all_engines: Sequence[str | Choice]
    ) -> None:
        """Neighbours under a script that asks every query, here and in markets of other kinds."""
        sparse = People.invented(example_sparse(), self.seed)
        plenty = People.invented(example_sparse(agents=40, plenty=True), self.seed)
        with known(Script):
            for what, people, policy in [
                ("all queries", self.people, Script()),
                ("batches", self.people, BATCHES),
                ("sparse", sparse, Script()),
                ("plenty", plenty, HALF),
            ]:
                own, where = replace(self.setting, policy=policy), f"{name}, {what}"
                group = replays.family(own, people, self.neighbours, self.seed, engine)
                self._keep(group, where, winners=what != "sparse")
                if what == "all queries" and all_engines and group.recorded.board is not None:
                    same = replays.of_same_people(own, people, all_engines, group.recorded)
                    self.found.append(replace(same, check=f"{same.check} ({where})"))

    def _keep(self, group: replays.Family, where: str, *, winners: bool = True) -> None:
        """Note a family of runs, and what is found by comparing them."""
        self.runs.append(group.recorded)
        again = [tape for _, tape in group.replayed]
        self.groups.append(Group(where, [group.recorded]))
        self.groups.append(Group(f"{where}, neighbours", again, replayed=True))
        found = [*replays.of_steps(group), *replays.of_sensitivity(group)]
        if winners:  # a market without any has nothing to compare
            found.append(replays.of_others(group))
        self.found += [replace(one, check=f"{one.check} ({where})") for one in found]

    def _attack(
        self,
        name: str,
        setting: Setting,
        trials: int,
        confidence: float,
        start: float,
        share: float,
    ) -> None:
        findings, bound, tapes = attack(
            setting,
            Coalition.against(self.people, setting),
            trials,
            confidence,
            lambda done: self.tell(start + share * done, f"coalition ({name})"),
        )
        self.runs += tapes
        self.groups.append(Group(f"coalition, {name}", tapes))
        self.found += [replace(one, check=f"{one.check} ({name})") for one in findings]
        if bound is not None:
            self.bounds[AGAINST + name] = bound
            self.limits[AGAINST + name] = right_at_most(setting)


def _people(
    market: Market, agents: Any, values: Any, demands: Any, ids: Any, seed: int | None
) -> People:
    if agents is None and values is None and demands is None and ids is None:
        return People.invented(market, seed or 0)
    return People.read(source_of(market, agents, values, demands, ids, clamp=False))
