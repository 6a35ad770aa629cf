"""Allocate scarce goods so that nobody learns your value or demand from what all others receive.

The public API is what this module exports; nothing else is importable by promise.
"""

import os

# Arrow's own allocator keeps tens of megabytes for itself; it reads this when it is loaded.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

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
    EngineError,
    JdpackError,
    LedgerError,
    MarketError,
    OutputError,
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
