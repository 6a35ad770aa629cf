"""Curator side: attacks on the real pipeline that test whether it keeps its privacy promise.

Read in this order:

* `auditor`: the whole audit. It needs SciPy (`pip install 'jdpack[audit]'`).
* `people`, `recording`, `scripted_policy`: data sets, recorded runs, a policy that asks everything.
* `paths`: runs that force every private path.
* `checks`: what must hold for every recorded run. It uses `fold` (recomputes the public side),
  `answers` and `reference` (recompute exact answers and allocations), `budget_checks` and
  `noise_checks`.
* `neighbours`: the same run on neighbouring records, with the same randomness.
* `coalition` and `lower_bound`: the attacks, and the epsilon they prove.
* `findings` and `page`: the results, as data and as a page.
"""

from jdpack.audit.auditor import audit
from jdpack.audit.findings import Audit, Finding
from jdpack.audit.lower_bound import LowerBound, distinguish, gaussian_epsilon, lower_bound

__all__ = [
    "Audit",
    "Finding",
    "LowerBound",
    "audit",
    "distinguish",
    "gaussian_epsilon",
    "lower_bound",
]
