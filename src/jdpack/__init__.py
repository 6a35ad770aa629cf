"""Allocate scarce goods with joint differential privacy.

Even if all the other agents pooled what they got, they would learn almost nothing about what you
asked for. Only what this module exports is public API.

A guided tour, by task:

* See a whole run: `run/lifecycle.py` from start to finish, and `run/loop.py` for the rounds, which
  join both sides.
* Check the privacy: `privacy/` for the sensitivities and what they cost, then `door.py`, the only
  place where a number leaves the private side, then `audit/`, which attacks it all.
* Check a result: `protocol/certificate.py` for the bounds, `protocol/verify.py` for everything that
  anybody can recompute, `agent/allocate.py` for what one agent gets, `common/coins.py` for coins.
* Follow the budget over several runs: `ledger/ledger.py`, which `run/lifecycle.py` calls.
* See what a crash leaves: `billboard/file.py`, `ledger/progress.py`, `run/solve.py` (`resume`).
* See what is said before a run: `planning/plan.py`, and `planning/headroom.py` for the warning that
  a supply is too small.
* Write a policy: `policies/base.py` says what it must do; `policies/mwu_adaptive.py` is an example.
* Write an engine: `engines/base.py`, then its peers.
* Read another kind of data: `records/readers.py` for files, `records/databases/` for databases,
  `records/tables.py` for what both become. `records/refusals.py` words the errors.
* Change what people read: `common/languages/en.toml` has the words, `agent/in_words.py` decides
  what to say about an outcome, and `pages/` makes the pages from the files in `pages/web/`.

The rooms lie in layers, and no room imports one above it. At the top are the command line (`cli`)
and what only the curator runs (`audit`, `curator`, `run`). Next come the door and the rooms that
hold records (`engines`, `records`). Below them is the wall: nothing under it imports anything above
it, so nothing under it can see a record (`serve`, `planning`, `agent`, `pages`, `protocol`,
`policies`, `ledger`, `billboard`, `privacy`, `market`, `common`, `storage`). Each room's docstring
says in its first line which side the room is on, and then in which order to read it.
"""

import importlib
import os
import typing

# Arrow reads this when it loads. Its own allocator would hold on to tens of megabytes.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

if typing.TYPE_CHECKING:
    from jdpack.agent.allocate import Outcome, allocate
    from jdpack.agent.explain import Explanation, Explanations, explain
    from jdpack.agent.options import Request
    from jdpack.billboard.board import Billboard
    from jdpack.billboard.lines import Certificate
    from jdpack.curator.check import Checked, check
    from jdpack.curator.compare import compare
    from jdpack.curator.comparison import Comparison
    from jdpack.curator.letters import letters
    from jdpack.curator.reports import Reports, report_run
    from jdpack.curator.verify_run import verify_run
    from jdpack.engines.settings import Mapped, Memory, Ray, Sql
    from jdpack.errors import (
        AgentsError,
        BillboardError,
        BudgetError,
        BudgetWarning,
        EngineError,
        JdpackError,
        LedgerError,
        MarketError,
        OutputError,
        RecordWarning,
        SupplyWarning,
    )
    from jdpack.ledger.ledger import Ledger
    from jdpack.market.groups import Group
    from jdpack.market.market import Columns, Market, Neighbours, Provenance, Resource
    from jdpack.market.person import PersonBounds
    from jdpack.market.totals import MaxTotal
    from jdpack.planning.bounds import Bounds
    from jdpack.planning.plan import Plan, plan
    from jdpack.policies.dual_gd import DualGd
    from jdpack.policies.mirror_descent import MirrorDescent
    from jdpack.policies.mwu_adaptive import MwuAdaptive
    from jdpack.policies.mwu_fixed import MwuFixed
    from jdpack.policies.mwu_online import MwuOnline
    from jdpack.policies.newton import Newton
    from jdpack.privacy.accounting import Budget
    from jdpack.protocol.verify import Verdict, verify
    from jdpack.records.databases.database import DatabaseQuery
    from jdpack.run.bounds import bounds
    from jdpack.run.linear_program import LinearProgram, from_lp
    from jdpack.run.local import LocalAgent, LocalRun
    from jdpack.run.result import Result
    from jdpack.run.solve import resume, solve

__version__ = "0.1.0"

__all__ = [
    "AgentsError",
    "Billboard",
    "BillboardError",
    "Bounds",
    "Budget",
    "BudgetError",
    "BudgetWarning",
    "Certificate",
    "Checked",
    "Columns",
    "Comparison",
    "DatabaseQuery",
    "DualGd",
    "EngineError",
    "Explanation",
    "Explanations",
    "Group",
    "JdpackError",
    "Ledger",
    "LedgerError",
    "LinearProgram",
    "LocalAgent",
    "LocalRun",
    "Mapped",
    "Market",
    "MarketError",
    "MaxTotal",
    "Memory",
    "MirrorDescent",
    "MwuAdaptive",
    "MwuFixed",
    "MwuOnline",
    "Neighbours",
    "Newton",
    "Outcome",
    "OutputError",
    "PersonBounds",
    "Plan",
    "Provenance",
    "Ray",
    "RecordWarning",
    "Reports",
    "Request",
    "Resource",
    "Result",
    "Sql",
    "SupplyWarning",
    "Verdict",
    "allocate",
    "bounds",
    "check",
    "compare",
    "explain",
    "from_lp",
    "letters",
    "plan",
    "report_run",
    "resume",
    "solve",
    "verify",
    "verify_run",
]

_HOMES = {
    "jdpack.agent.allocate": "Outcome allocate",
    "jdpack.agent.explain": "Explanation Explanations explain",
    "jdpack.agent.options": "Request",
    "jdpack.billboard.board": "Billboard",
    "jdpack.billboard.lines": "Certificate",
    "jdpack.curator.check": "Checked check",
    "jdpack.curator.compare": "compare",
    "jdpack.curator.comparison": "Comparison",
    "jdpack.curator.letters": "letters",
    "jdpack.curator.reports": "Reports report_run",
    "jdpack.curator.verify_run": "verify_run",
    "jdpack.engines.settings": "Mapped Memory Ray Sql",
    "jdpack.errors": "AgentsError BillboardError BudgetError BudgetWarning EngineError JdpackError "
    "LedgerError MarketError OutputError RecordWarning SupplyWarning",
    "jdpack.ledger.ledger": "Ledger",
    "jdpack.market.groups": "Group",
    "jdpack.market.market": "Columns Market Neighbours Provenance Resource",
    "jdpack.market.person": "PersonBounds",
    "jdpack.market.totals": "MaxTotal",
    "jdpack.planning.bounds": "Bounds",
    "jdpack.planning.plan": "Plan plan",
    "jdpack.policies.dual_gd": "DualGd",
    "jdpack.policies.mirror_descent": "MirrorDescent",
    "jdpack.policies.mwu_adaptive": "MwuAdaptive",
    "jdpack.policies.mwu_fixed": "MwuFixed",
    "jdpack.policies.mwu_online": "MwuOnline",
    "jdpack.policies.newton": "Newton",
    "jdpack.privacy.accounting": "Budget",
    "jdpack.protocol.verify": "Verdict verify",
    "jdpack.records.databases.database": "DatabaseQuery",
    "jdpack.run.bounds": "bounds",
    "jdpack.run.linear_program": "LinearProgram from_lp",
    "jdpack.run.local": "LocalAgent LocalRun",
    "jdpack.run.result": "Result",
    "jdpack.run.solve": "resume solve",
}
"""The public names that each module defines."""


def __getattr__(name: str) -> object:
    """Load each public name at first use: reading a billboard need not wait for compilers."""
    for home, names in _HOMES.items():
        if name in names.split():
            thing: object = getattr(importlib.import_module(home), name)
            globals()[name] = thing
            return thing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
