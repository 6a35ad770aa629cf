"""Public side: the algorithms. A policy computes prices from the market and the billboard alone.

Read in this order:

* `base`: what a policy is.
* `registry`: all policies by name.
* `mwu_adaptive`: the paper's Algorithm 1.
* `newton`, with `newton_response`, `newton_trends` and `newton_targets`: the default.
* `fixed_rounds`, then `mwu_fixed`, `dual_gd` and `mirror_descent`: policies with equal rounds.
* `nested_blocks`, then `mwu_online`: one pass over the agents.
* `spec`: policies as text.
"""
