"""Private: empirical tests of the promised privacy. Curator only.

An audit runs the real pipeline many times, attacks it, examines its noise, replays it on
neighbouring data sets and forces every private path to run. It recomputes everything that each run
published, answered and gave. It needs SciPy (`pip install 'jdpack[audit]'`). A pass is no proof.
The proofs are in the docstrings of `queries`, `noise`, `accounting` and `release`; an audit
finds code that does not do what they say, as far as its attacks can see.
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
from jdpack.audit.checks import RecordedRuns, of_all_runs, of_every_run, runs_of
from jdpack.audit.coalition import Coalition, attack, right_at_most
from jdpack.audit.epsilon_bounds import LowerBound, scipy
from jdpack.audit.findings import AGAINST, Audit, Finding, fact, guarded, judged, located
from jdpack.audit.people import (
    People,
    example,
    example_groups,
    example_requests,
    example_sparse,
    example_totals,
)
from jdpack.audit.recording import Setting, Tape
from jdpack.audit.scripted_policy import BATCHES, GREEDY, HALF, LEVELS, Script, known
from jdpack.common.checks import check_whole
from jdpack.engines.settings import Choice, choice_of
from jdpack.errors import BudgetError, EngineError, MarketError
from jdpack.market.market import Market
from jdpack.planning.prepare import prepare
from jdpack.policies.base import Policy
from jdpack.policies.spec import label_of
from jdpack.run.arguments import source_of

TRIALS = 110
"""How often the coalition plays each world. It takes 101 trials to refute an epsilon of 1."""
NEIGHBOURS = 16
"""How many alternative records of one agent are replayed."""


def audit(
    market: Market | str | Path | None = None,
    agents: Any = None,
    *,
    values: Any = None,
    demands: Any = None,
    ids: Any = None,
    groups_of: Any = None,
    requests_of: Any = None,
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
        market: the public market, or the path of a market file. The default is a small market.
        agents, values, demands, ids, groups_of, requests_of: the records, as for `solve`. By
            default the audit invents records within the market's bounds. Runs are real: with many
            agents they take long.
        policy, epsilon, delta: as for `solve`; without a market, Newton at (1, 1e-6).
        trials: how often the coalition plays each of its two worlds.
        neighbours: how many alternative records of one agent each engine replays.
        engines: the engines whose sensitivities are checked.
        confidence: of the lower bounds shown. It does not change what is flagged: an honest
            pipeline fails with a probability of about 1e-6.
        seed: for the audit's own choices of data. Noise and coins are never seeded.
        paths: whether to force every private path to run too (`jdpack.audit.paths`), which takes
            about 20 seconds.
        progress: called with the fraction done and the current stage.
    """
    scipy("stats")
    check_whole("trials", trials, least=4)
    check_whole("neighbours", neighbours, least=2)
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
        choice_of(engine, example(), None)  # refuses an unknown engine
    market, policy, budget = prepare(market, policy, epsilon, delta)
    if budget.epsilon == math.inf:
        raise BudgetError("without noise there is no privacy to test", "use a finite epsilon")
    setting = Setting(policy, budget.epsilon, budget.delta)
    records = agents, values, demands, ids, groups_of, requests_of
    if any(some is not None for some in records):
        people = People.read(source_of(market, *records, clamp=False))
    else:
        people = People.invented(market, seed or 0)
    auditor = _Auditor(setting, people, neighbours, seed or 0, tell, paths)
    return auditor.audit(engines, trials, confidence)


@dataclass
class _Auditor:
    """The findings, and the real runs recorded on the way, in order."""

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
    recorded: list[RecordedRuns] = field(default_factory=list)

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
        self.tell(0.3, "private paths")
        self._force_paths()
        with known(Script):
            own = replace(self.setting, policy=GREEDY), 2 * trials, confidence, 0.55, 0.1
            self._guard("coalition: to its end (greedy)", self._attack, "greedy", *own)
        own = self.setting, trials, confidence, 0.65, 0.3
        self._guard(f"coalition: to its end ({policy})", self._attack, policy, *own)
        # All runs at once: a process without records rebuilds what they published.
        self.found += [*of_every_run(self.recorded), *of_all_runs(self.recorded)]
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
        """Run a check. If the pipeline raises meanwhile, that is a failure."""
        self.found += guarded(check, partial(look, *about))

    def _force_paths(self) -> None:
        """Run every private path that can run, on the audit's own data."""
        if not self.paths:
            self.found.append(fact("paths: all", "each is taken", [], "skipped", tested=False))
            return
        forced = private_paths.Paths(self.setting.epsilon, self.setting.delta, self.seed)
        forced.run()
        self.found += forced.found
        self.recorded += forced.recorded

    def _replay_policy(
        self, name: str, engine: str | Choice, all_engines: Sequence[str | Choice]
    ) -> None:
        """Replay neighbours of the given people, under the given policy."""
        setting, people = self.setting, self.people
        family = replays.family(setting, people, self.neighbours, self.seed, engine)
        self._keep(family, name)
        if all_engines and family.recorded.board is not None:
            self.found.append(replays.of_same_people(setting, people, all_engines, family.recorded))

    def _replay_queries(
        self, name: str, engine: str | Choice, all_engines: Sequence[str | Choice]
    ) -> None:
        """Replay neighbours under a script that asks every query, here and in other markets."""
        sparse = People.invented(example_sparse(), self.seed)
        plenty = People.invented(example_sparse(agents=40, plenty=True), self.seed)
        totals = People.invented(example_totals(agents=60, options=2, plenty=True), self.seed)
        groups = People.invented(example_groups(agents=60, plenty=True), self.seed)
        wide = People.invented(example_groups(agents=60, plenty=True, wide=True), self.seed)
        requests = People.invented(
            example_requests(agents=40, plenty=True, wide=bool(all_engines)), self.seed
        )
        with known(Script):
            for what, people, policy in [
                ("all queries", self.people, Script()),
                ("batches", self.people, BATCHES),
                ("sparse", sparse, Script()),
                ("plenty", plenty, HALF),
                ("totals", totals, Script((*LEVELS, 0.1))),
                ("groups", wide if all_engines else groups, Script((*LEVELS, 0.1))),
                ("requests", requests, Script((*LEVELS, 0.1))),
            ]:
                own, where = replace(self.setting, policy=policy), f"{name}, {what}"
                family = replays.family(own, people, self.neighbours, self.seed, engine)
                self._keep(family, where, winners=what != "sparse")
                if what == "all queries" and all_engines and family.recorded.board is not None:
                    same = replays.of_same_people(own, people, all_engines, family.recorded)
                    self.found += located([same], where)

    def _keep(self, family: replays.Family, where: str, *, winners: bool = True) -> None:
        """Keep a family of runs, and what comparing them shows."""
        self.runs.append(family.recorded)
        self.recorded += runs_of(family, where)
        found = [*replays.of_steps(family), *replays.of_sensitivity(family)]
        if winners:  # a market without winners has nothing to compare
            found.append(replays.of_others(family))
        self.found += located(found, where)

    def _attack(
        self,
        name: str,
        setting: Setting,
        trials: int,
        confidence: float,
        start: float,
        length: float,
    ) -> None:
        """Attack a policy; `start` and `length` are its part of the progress."""
        findings, bound, tapes = attack(
            setting,
            Coalition.against(self.people, setting),
            trials,
            confidence,
            lambda done: self.tell(start + length * done, f"coalition ({name})"),
        )
        self.runs += tapes
        self.recorded.append(RecordedRuns(f"coalition, {name}", tapes))
        self.found += located(findings, name)
        if bound is not None:
            self.bounds[AGAINST + name] = bound
            self.limits[AGAINST + name] = right_at_most(setting, self.people.market)
