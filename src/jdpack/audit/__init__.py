"""Curator side: attacks on the real pipeline that test whether it keeps its privacy promise.

Read in this order:

* `auditor`: the whole audit. It needs SciPy (`pip install 'jdpack[audit]'`).
* `people`, `recording`, `scripted_policy`: data sets, recorded runs, a policy that asks everything.
* `paths`: runs that force every private path.
* `checks`: what must hold for every recorded run. It uses `fold` (recomputes the public side),
  `answers` and `reference` (recompute exact answers and allocations), `budget_checks` and
  `noise_checks`.
* `neighbours`: the same run on neighbouring records, with the same randomness.
* `coalition` and `epsilon_bounds`: the attacks, and the epsilon they prove.
* `findings` and `page`: the results, as data and as a page.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from jdpack.audit.auditor import audit
    from jdpack.audit.epsilon_bounds import LowerBound, distinguish, gaussian_epsilon, lower_bound
    from jdpack.audit.findings import Audit, Finding

__all__ = [
    "Audit",
    "Finding",
    "LowerBound",
    "audit",
    "distinguish",
    "gaussian_epsilon",
    "lower_bound",
]


def __getattr__(name: str) -> object:
    """Load each name at first use: the process of `fold` must load nothing private."""
    if name in __all__:
        for home in ("findings", "epsilon_bounds", "auditor"):
            module = importlib.import_module(f"jdpack.audit.{home}")
            if name in vars(module):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
