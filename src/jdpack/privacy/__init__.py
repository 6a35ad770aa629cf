"""Public side: what privacy costs. A reviewer can read this room alone.

Read in this order:

* `accounting`: budgets, the zCDP filter, (epsilon, delta) to rho and back.
* `noise`: the noise that a policy may ask for, and what it costs.
* `tail_bounds`: how far noise and coins can carry a sum.

The sensitivities are proved in `jdpack.market.market`; `jdpack.door` is where noise is drawn.
"""
