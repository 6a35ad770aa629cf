"""Public side: what privacy costs. A reviewer can read this room alone.

Read in this order:

* `queries`: what a run may ask, and how far one agent can move each answer.
* `noise`: the noise that a policy may ask for, and what it costs.
* `gdp`: what Gaussian noise costs, as (epsilon, delta); `zcdp`: the same for any noise.
* `accounting`: budgets, and the filter that no run can overspend.
* `tail_bounds`: how far noise and coins can move a sum.

Noise is drawn in `jdpack.door` only.
"""
