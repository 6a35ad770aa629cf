"""Allocate scarce goods so that what all others receive tells next to nothing of your record.

The public API is what this module exports; nothing else is importable by promise.
"""

import importlib
import os
import sys
import types
import typing

# Arrow's own allocator keeps tens of megabytes for itself; it reads this when it is loaded.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

if typing.TYPE_CHECKING:
    from jdpack.accounting import Budget
    from jdpack.allocate import Outcome, allocate
    from jdpack.billboard import Billboard, Certificate
    from jdpack.compare import compare
    from jdpack.comparison import Comparison
    from jdpack.engines.choice import Mapped, Memory, Ray
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
    from jdpack.ledger import Ledger
    from jdpack.local import LocalAgent, LocalRun
    from jdpack.market import Columns, Market, Neighbours, Resource
    from jdpack.outcome import Explanation, explain
    from jdpack.plan import Plan, plan
    from jdpack.policies.dual_gd import DualGd
    from jdpack.policies.mirror_descent import MirrorDescent
    from jdpack.policies.mwu_adaptive import MwuAdaptive
    from jdpack.policies.mwu_fixed import MwuFixed
    from jdpack.policies.mwu_online import MwuOnline
    from jdpack.policies.newton import Newton
    from jdpack.report_run import Reports, report_run
    from jdpack.solve import Result, resume, solve
    from jdpack.verify import Verdict, verify
    from jdpack.verify_run import verify_run

__version__ = "0.1.0"

__all__ = [
    "AgentsError",
    "Billboard",
    "BillboardError",
    "Budget",
    "BudgetError",
    "BudgetWarning",
    "Certificate",
    "Columns",
    "Comparison",
    "DualGd",
    "EngineError",
    "Explanation",
    "JdpackError",
    "Ledger",
    "LedgerError",
    "LocalAgent",
    "LocalRun",
    "Mapped",
    "Market",
    "MarketError",
    "Memory",
    "MirrorDescent",
    "MwuAdaptive",
    "MwuFixed",
    "MwuOnline",
    "Neighbours",
    "Newton",
    "Outcome",
    "OutputError",
    "Plan",
    "Ray",
    "RecordWarning",
    "Reports",
    "Resource",
    "Result",
    "SupplyWarning",
    "Verdict",
    "allocate",
    "compare",
    "explain",
    "plan",
    "report_run",
    "resume",
    "solve",
    "verify",
    "verify_run",
]

_HOMES = {
    "jdpack.accounting": "Budget",
    "jdpack.allocate": "Outcome allocate",
    "jdpack.billboard": "Billboard Certificate",
    "jdpack.compare": "compare",
    "jdpack.comparison": "Comparison",
    "jdpack.engines.choice": "Mapped Memory Ray",
    "jdpack.errors": "AgentsError BillboardError BudgetError BudgetWarning EngineError JdpackError "
    "LedgerError MarketError OutputError RecordWarning SupplyWarning",
    "jdpack.ledger": "Ledger",
    "jdpack.local": "LocalAgent LocalRun",
    "jdpack.market": "Columns Market Neighbours Resource",
    "jdpack.outcome": "Explanation explain",
    "jdpack.plan": "Plan plan",
    "jdpack.policies.dual_gd": "DualGd",
    "jdpack.policies.mirror_descent": "MirrorDescent",
    "jdpack.policies.mwu_adaptive": "MwuAdaptive",
    "jdpack.policies.mwu_fixed": "MwuFixed",
    "jdpack.policies.mwu_online": "MwuOnline",
    "jdpack.policies.newton": "Newton",
    "jdpack.report_run": "Reports report_run",
    "jdpack.solve": "Result resume solve",
    "jdpack.verify": "Verdict verify",
    "jdpack.verify_run": "verify_run",
}
"""What each module has of the public API."""


class _Package(types.ModuleType):
    """Loads what is promised at first use: who asks a billboard need not wait for compilers."""

    def __getattr__(self, name: str) -> object:
        for home, names in _HOMES.items():
            if name in names.split():
                thing = getattr(importlib.import_module(home), name)
                setattr(self, name, thing)
                return thing
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        # `solve`, `plan` and others are functions that hide the modules of the same name.
        if not (name in __all__ and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
